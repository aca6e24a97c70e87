/* What lies between a request's arrival and its last token at an endpoint: routing, the line, sending, and what becomes
 * of answers. Real time: schedule and meter are both the nanoseconds since the run began, and waits are waited for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "http/http.h"
#include "sim/run_int.h"
#include "sim/talk.h"

typedef cedar_run_state run;
typedef cedar_request request;

enum {
    HEADERS_MAX = CEDAR_HTTP_SESSION_HEADERS_MAX + 1,
    HEADER_BYTES = 160,
    METRICS_BYTES_MAX = 16 << 20
};
static const int64_t LOOK_NS = 100000000;           /* longest wait without looking for a stop */
static const int64_t SCRAPE_NS = 10000000000;

typedef struct endpoint {
    char *url, *metrics_url;
    uint32_t on_their_way;          /* requests of it, waiting ones included */
} endpoint;

typedef struct sticky {
    int64_t session_id;
    uint32_t endpoint;
} sticky;

struct run_http {
    run *r;
    cedar_config shape;             /* what stands for a model: vocabulary and longest context */
    cedar_http *client;
    cedar_talk talk;
    endpoint *endpoints;            /* [count] */
    uint32_t count, next;           /* next: of routing round_robin */
    sticky *sessions;               /* [lanes] where each lane's session goes */
    request **flying;               /* [flying_count of flying_capacity]; request.order is its place */
    size_t flying_count, flying_capacity;
    request **line;                 /* [line_count of line_capacity] from line_first on, in order of arrival */
    size_t line_first, line_count, line_capacity;
    uint64_t nonce;
    int64_t zero_ns;                /* base/clock.h at the run's begin */
    const char *cut;                /* why requests are cut, while they are */
    cedar_http_class first_class;   /* of the first request that failed while others counted */
    char first_error[320];
    uint64_t first_class_count;     /* failures of that class */
};

/* --- making and freeing ------------------------------------------------------------------------------------------- */

static char *join(const char *a, size_t a_bytes, const char *b) {
    size_t n = strlen(b);
    char *s = cedar_calloc(a_bytes + n + 1, 1);
    if (!s) return NULL;
    memcpy(s, a, a_bytes);
    memcpy(s + a_bytes, b, n);
    return s;
}

/* "http://host", "http://host/" and "http://host/v1" mean the same. */
static cedar_status add_endpoint(run_http *h, const char *url, size_t n, cedar_err *err) {
    const char *path = h->talk.chat ? "/v1/chat/completions" : "/v1/completions";
    while (n && url[n - 1] == '/') n--;
    if (n > 3 && memcmp(url + n - 3, "/v1", 3) == 0) n -= 3;
    endpoint *e = &h->endpoints[h->count++];
    e->url = join(url, n, path);
    e->metrics_url = join(url, n, "/metrics");
    return e->url && e->metrics_url ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "no memory for the URL of an endpoint");
}

static cedar_status add_endpoints(run_http *h, cedar_err *err) {
    const char *list = h->r->opts->endpoints;
    size_t count = 1;
    for (const char *s = list; *s; s++) count += *s == ',';
    h->endpoints = cedar_calloc(count, sizeof *h->endpoints);
    h->sessions = cedar_calloc((size_t)h->r->opts->lanes, sizeof *h->sessions);
    if (!h->endpoints || !h->sessions) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu endpoints", count);
    cedar_status st = CEDAR_OK;
    for (const char *s = list; !st; s++) {
        size_t n = strcspn(s, ",");
        st = add_endpoint(h, s, n, err);
        s += n;
        if (!*s) break;
    }
    return st;
}

/* Prompts of an earlier run against the same endpoint must not be hit, so the salt differs from run to run. */
static cedar_status make_nonce(run_http *h, cedar_err *err) {
    const run *r = h->r;
    uint64_t fresh;
    char name[24];
    const char *nonce = r->opts->http_nonce;
    if (!*nonce) {
        if (getrandom(&fresh, sizeof fresh, 0) != sizeof fresh)
            return cedar_fail(err, CEDAR_E_IO, "the system gives no random number; give http_nonce");
        snprintf(name, sizeof name, "%016" PRIx64, fresh);
        nonce = name;
    }
    h->nonce = cedar_rng_key(0, nonce);
    snprintf(h->r->origin, sizeof h->r->origin, "nonce %.40s at %.180s", nonce, r->opts->endpoints);
    return CEDAR_OK;
}

static cedar_status open_client(run_http *h, cedar_err *err) {
    const cedar_run_opts *o = h->r->opts;
    cedar_http_opts c = { .streams_max = (uint32_t)o->http_concurrent_max, .connect_ns = o->http_connect_ns,
                          .first_ns = o->http_first_ns, .stall_ns = o->http_stall_ns, .total_ns = o->http_total_ns };
    char *key;
    cedar_status st = cedar_http_key(o->http_key, &key, err);
    if (st) return st;
    c.key = key;
    c.ca_file = *o->http_ca_file ? o->http_ca_file : NULL;
    st = cedar_http_new(&c, &h->client, err);
    if (key) explicit_bzero(key, strlen(key));
    cedar_free(key);
    return st;
}

cedar_status run_http_new(run *r, run_http **out, cedar_err *err) {
    const cedar_run_opts *o = r->opts;
    run_http *h = cedar_calloc(1, sizeof *h);
    if (!h) return cedar_fail(err, CEDAR_E_OOM, "no memory for a run");
    h->r = r;
    *out = h;       /* freed with the run, also after a failure */
    h->shape = (cedar_config){ .vocab = o->http_vocab ? (int32_t)o->http_vocab : CEDAR_TALK_WORDS,
                               .positions_max = INT32_MAX };
    r->config = &h->shape;
    r->engine_opts = (cedar_engine_opts){ .backend = "http", .page_tokens = (uint32_t)o->page_tokens,
                                          .page_count = UINT32_MAX };
    cedar_status st = cedar_talk_open(o->model, o->http_body, o->http_ignore_eos, o->http_api == CEDAR_HTTP_API_CHAT,
                                      o->http_vocab > 0, &h->talk, err);
    if (!st) st = add_endpoints(h, err);
    if (!st) st = make_nonce(h, err);
    return st ? st : open_client(h, err);
}

void run_http_free(run_http *h) {
    if (!h) return;
    for (size_t i = 0; i < h->flying_count; i++) cedar_request_free(h->r, h->flying[i]);
    for (size_t i = 0; i < h->line_count; i++) cedar_request_free(h->r, h->line[h->line_first + i]);
    for (uint32_t i = 0; i < h->count; i++) {
        cedar_free(h->endpoints[i].url);
        cedar_free(h->endpoints[i].metrics_url);
    }
    cedar_http_free(h->client);
    cedar_talk_close(&h->talk);
    void *const buffers[] = { h->endpoints, h->sessions, h->flying, h->line, h };
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) cedar_free(buffers[i]);
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static int64_t now_of(const run_http *h) { return cedar_now_ns() - h->zero_ns; }

static uint32_t least_loaded(const run_http *h) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < h->count; i++)
        if (h->endpoints[i].on_their_way < h->endpoints[best].on_their_way) best = i;
    return best;
}

static uint32_t route(run_http *h, const request *q) {
    cedar_routing rule = h->r->opts->routing;
    if (rule == CEDAR_ROUTING_ROUND_ROBIN) return h->next++ % h->count;
    if (rule == CEDAR_ROUTING_LEAST_LOADED) return least_loaded(h);
    sticky *s = &h->sessions[q->lane];
    if (s->session_id != q->row.session_id) *s = (sticky){ q->row.session_id, least_loaded(h) };
    return s->endpoint;
}

/* The session's id for routers, and the request's for logs. */
static size_t make_headers(const run_http *h, const request *q, char text[HEADERS_MAX][HEADER_BYTES],
                           const char *lines[HEADERS_MAX]) {
    uint64_t session = cedar_mix64(h->nonce ^ cedar_mix64((uint64_t)q->row.session_id));
    size_t n = 0;
    for (const char *s = h->r->opts->http_session_headers; *s; n++) {
        int name = (int)strcspn(s, ",");
        snprintf(text[n], HEADER_BYTES, "%.*s: cedar-%016" PRIx64, name, s, session);
        s += name + (s[name] == ',');
    }
    snprintf(text[n], HEADER_BYTES, "X-Request-ID: cedar-%016" PRIx64 "-%" PRId64, h->nonce, q->row.request_id);
    n++;
    for (size_t i = 0; i < n; i++) lines[i] = text[i];
    return n;
}

static cedar_status grow(request ***list, size_t *capacity, size_t count, cedar_err *err) {
    if (count < *capacity) return CEDAR_OK;
    size_t more = *capacity ? 2 * *capacity : 64;
    request **grown = cedar_realloc(*list, more, sizeof *grown);
    if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu requests", more);
    *list = grown;
    *capacity = more;
    return CEDAR_OK;
}

/* On success the request flies; on failure it is still the caller's. */
static cedar_status send_request(run_http *h, request *q, cedar_err *err) {
    char text[HEADERS_MAX][HEADER_BYTES], *body;
    const char *lines[HEADERS_MAX];
    size_t bytes;
    cedar_status st = grow(&h->flying, &h->flying_capacity, h->flying_count, err);
    if (!st)
        st = cedar_talk_body(&h->talk, h->r->prompts, &q->ref, q->row.in_tokens, q->row.out_tokens, &body, &bytes, err);
    if (st) return st;
    size_t n = make_headers(h, q, text, lines);
    q->row.admit_sched_ns = now_of(h);
    st = cedar_http_send(h->client, h->endpoints[q->engine].url, lines, n, body, bytes, q, err);
    if (st) return st;
    q->order = h->flying_count;
    h->flying[h->flying_count++] = q;
    return CEDAR_OK;
}

static bool is_full(const run_http *h) {
    uint64_t most = (uint64_t)h->r->opts->http_concurrent_max;
    return most && h->flying_count >= most;
}

cedar_status run_http_arrive(run_http *h, request *q, const cedar_turn_ref *ref, cedar_err *err) {
    q->ref = *ref;
    if (ref->salt) q->ref.salt = cedar_mix64(ref->salt ^ h->nonce) | 1;
    q->engine = route(h, q);
    q->row.engine = q->engine + 1;
    q->row.arrival_ns = now_of(h);
    q->waited = is_full(h) || h->line_count;
    cedar_status st = CEDAR_OK;
    if (q->waited) {
        st = grow(&h->line, &h->line_capacity, h->line_first + h->line_count, err);
        if (!st) h->line[h->line_first + h->line_count++] = q;
    } else {
        st = send_request(h, q, err);
    }
    if (!st) h->endpoints[q->engine].on_their_way++;
    return st;
}

static cedar_status send_waiting(run_http *h, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    while (!st && h->line_count && !is_full(h)) {
        st = send_request(h, h->line[h->line_first], err);
        if (st) break;
        h->line_first++;
        h->line_count--;
    }
    if (!h->line_count) h->line_first = 0;
    if (h->line_first > h->line_count) {
        memmove(h->line, h->line + h->line_first, h->line_count * sizeof *h->line);
        h->line_first = 0;
    }
    return st;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static int64_t since_zero(const run_http *h, int64_t ns) { return ns < 0 ? -1 : ns - h->zero_ns; }

/* Times and tokens as the endpoint has them. A failed request keeps the tokens it asked for, which count nowhere. */
static void fill_row(const run_http *h, request *q, const cedar_http_result *a) {
    cedar_request_row *w = &q->row;
    w->admit_ns = w->admit_sched_ns = since_zero(h, a->start_ns);
    if (!q->waited) w->arrival_ns = w->admit_ns;
    w->first_ns = w->first_sched_ns = since_zero(h, a->first_ns);
    w->last_ns = w->last_sched_ns = since_zero(h, a->last_ns);
    if (a->class_) return;
    w->in_tokens = a->prompt_tokens;
    w->out_tokens = a->completion_tokens;
    w->hit_tokens = w->matched_tokens = a->cached_tokens;
    q->produced = a->completion_tokens;
}

static cedar_status emit_http(const run_http *h, const cedar_http_row *row, cedar_err *err) {
    const cedar_observer *obs = h->r->obs;
    return obs->http ? obs->http(obs->self, row, err) : CEDAR_OK;
}

cedar_status run_http_not_sent(const run_http *h, const request *q, bool overflow, cedar_err *err) {
    cedar_http_class why = overflow ? CEDAR_HTTP_OVERFLOW : CEDAR_HTTP_CUT;
    const cedar_http_row row = { .run_id = h->r->run_id, .request_id = q->row.request_id, .finish = "",
                                 .error_class = cedar_http_class_name(why), .in_asked = q->row.in_tokens,
                                 .out_asked = q->row.out_tokens, .retry_after_s = -1, .end_ns = q->row.arrival_ns };
    return emit_http(h, &row, err);
}

/* Reports an answered, failed or cut request. */
static cedar_status emit_answer(run_http *h, request *q, const cedar_http_result *a, cedar_err *err) {
    const cedar_http_row row = { .run_id = h->r->run_id, .request_id = q->row.request_id, .endpoint = q->engine + 1,
                                 .status = a->status, .error_class = cedar_http_class_name(a->class_),
                                 .finish = a->finish, .in_asked = q->row.in_tokens, .out_asked = q->row.out_tokens,
                                 .deltas = a->deltas, .usage = a->usage, .retry_after_s = a->retry_after_s,
                                 .end_ns = since_zero(h, a->end_ns) };
    fill_row(h, q, a);
    q->row.error = a->class_ == CEDAR_HTTP_CUT && h->cut ? h->cut : a->error;
    cedar_status st = emit_http(h, &row, err);
    return st ? st : run_emit_request(h->r, q, err);
}

static void forget_flying(run_http *h, const request *q) {
    h->flying[q->order] = h->flying[--h->flying_count];
    h->flying[q->order]->order = q->order;
    h->endpoints[q->engine].on_their_way--;
}

static void note_failure(run_http *h, const request *q, const cedar_http_result *a) {
    if (!a->class_ || q->phase != CEDAR_PHASE_PROFILING) return;
    if (!h->first_class_count) {
        h->first_class = a->class_;
        snprintf(h->first_error, sizeof h->first_error, "%s", a->error);
    }
    h->first_class_count += a->class_ == h->first_class;
}

/* A run of failures alone measures nothing. */
static cedar_status check_completed(const run_http *h, cedar_err *err) {
    const run *r = h->r;
    if (r->completed || !h->first_class_count) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_IO, "no request completed at %.120s: %" PRIu64 " failed, %" PRIu64 " of them of "
                      "class %s, for example: %.300s", r->opts->endpoints, r->failed, h->first_class_count,
                      cedar_http_class_name(h->first_class), h->first_error);
}

/* The next turn's delay counts from the last content; a failed request has ended when that was known. */
static cedar_status finish(run_http *h, const cedar_http_result *a, cedar_err *err) {
    request *q = a->tag;
    forget_flying(h, q);
    note_failure(h, q, a);
    cedar_status st = emit_answer(h, q, a, err);
    cedar_turn_end how = !a->class_ ? CEDAR_TURN_DONE
                         : a->class_ == CEDAR_HTTP_OVERFLOW ? CEDAR_TURN_OVERFLOW : CEDAR_TURN_FAILED;
    int64_t end = since_zero(h, !a->class_ && a->last_ns >= 0 ? a->last_ns : a->end_ns);
    if (!st) st = run_end_turn(h->r, q, how, end, err);
    cedar_request_free(h->r, q);
    return st;
}

static cedar_status collect(run_http *h, cedar_err *err) {
    cedar_http_result a;
    cedar_status st = CEDAR_OK;
    while (!st && cedar_http_next(h->client, &a)) st = finish(h, &a, err);
    return st;
}

/* --- what the end of the run or of the warm-up finds on its way --------------------------------------------------- */

cedar_status run_http_unfinished(run_http *h, cedar_err *err) {
    run *r = h->r;
    cedar_status st = CEDAR_OK;
    cedar_http_result a;
    h->cut = RUN_CUT_RUNNING;
    cedar_http_cut(h->client);
    while (!st && cedar_http_next(h->client, &a)) {
        request *q = a.tag;
        r->requests_unfinished += a.class_ == CEDAR_HTTP_CUT;
        forget_flying(h, q);
        st = emit_answer(h, q, &a, err);
        cedar_request_free(r, q);
    }
    for (size_t i = 0; i < h->line_count && !st; i++, r->requests_unfinished++) {
        request *q = h->line[h->line_first + i];
        q->row.error = RUN_CUT_WAITING;
        st = run_http_not_sent(h, q, false, err);
        if (!st) st = run_emit_request(r, q, err);
    }
    return st;
}

/* All warm-up requests are sent: what has not ended within the grace is cut. */
static cedar_status drain_warmup(run_http *h, cedar_err *err) {
    if (!run_warmup_late(h->r, h->flying_count + h->line_count > 0)) return CEDAR_OK;
    h->cut = RUN_CUT_WARMUP;
    cedar_http_cut(h->client);
    cedar_status st = collect(h, err);
    while (!st && h->line_count) {
        request *q = h->line[h->line_first + --h->line_count];
        h->endpoints[q->engine].on_their_way--;
        st = run_cut_warmup(h->r, q, err);
    }
    h->cut = NULL;
    return st;
}

/* --- what endpoints say of themselves ----------------------------------------------------------------------------- */

/* Prefix caches, speculation, tokens and preemptions: everything else of /metrics is left out. */
static bool is_wanted(const cedar_http_sample *s) {
    static const char *const parts[] = { "cache", "prefix", "spec", "draft", "accept", "tokens_total", "preempt" };
    if (s->name_bytes > 7 && memcmp(s->name + s->name_bytes - 7, "_bucket", 7) == 0) return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (memmem(s->name, s->name_bytes, parts[i], strlen(parts[i]))) return true;
    return false;
}

static cedar_status emit_metric(const run_http *h, uint32_t at, const char *moment, const cedar_http_sample *s,
                                cedar_err *err) {
    char name[200], labels[500];
    snprintf(name, sizeof name, "%.*s", (int)(s->name_bytes < 199 ? s->name_bytes : 199), s->name);
    snprintf(labels, sizeof labels, "%.*s", (int)(s->label_bytes < 499 ? s->label_bytes : 499), s->labels);
    const cedar_metric_row row = { .run_id = h->r->run_id, .endpoint = at + 1, .moment = moment, .name = name,
                                   .labels = labels, .value = s->value };
    return h->r->obs->metric(h->r->obs->self, &row, err);
}

static cedar_status scrape_one(const run_http *h, uint32_t at, const char *moment, cedar_err *err) {
    char *text;
    cedar_status st = cedar_http_get(h->client, h->endpoints[at].metrics_url, METRICS_BYTES_MAX, SCRAPE_NS, &text, err);
    if (st) return st;
    cedar_http_sample s;
    for (const char *left = text; !st && cedar_http_sample_next(&left, &s);)
        if (is_wanted(&s)) st = emit_metric(h, at, moment, &s, err);
    cedar_free(text);
    return st;
}

/* An endpoint that has none is said before the run. That it has them no longer is written down and does not undo the
 * run. */
static cedar_status scrape(const run_http *h, bool after, cedar_err *err) {
    static const cedar_http_sample missing = { .name = "cedar_scrape_failed", .name_bytes = 19, .labels = "",
                                               .value = 1 };
    cedar_status st = CEDAR_OK;
    if (!h->r->opts->http_metrics || !h->r->obs->metric) return CEDAR_OK;
    for (uint32_t i = 0; i < h->count && !st; i++) {
        cedar_err why = { 0 };
        st = scrape_one(h, i, after ? "after" : "before", &why);
        if (st == CEDAR_E_IO && after) st = emit_metric(h, i, "after", &missing, err);
        else if (st && err) *err = why;
    }
    return st;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static int64_t time_to_next(run_http *h) {
    const cedar_event *next = cedar_lanes_next(h->r->lanes, &h->r->events);
    int64_t wait = next ? next->time_ns - now_of(h) : LOOK_NS;
    return wait < 0 ? 0 : wait < LOOK_NS ? wait : LOOK_NS;
}

static cedar_status play(run_http *h, cedar_err *err) {
    run *r = h->r;
    h->zero_ns = cedar_now_ns();
    cedar_status st = cedar_lanes_start(r->lanes, &r->events, err);
    for (bool over = false; !st && !over;) {
        if (r->host->stop && *r->host->stop) return cedar_fail(err, CEDAR_E_INTERRUPT, "stopped by the user");
        cedar_clock_idle(&r->clock, now_of(h));
        st = run_handle_until(r, r->clock.sched_ns, err);
        if (!st) st = send_waiting(h, err);
        if (!st) st = drain_warmup(h, err);
        if (!st && !(h->flying_count + h->line_count)) st = run_idle(r, &over, err);
        if (st || over) break;
        st = cedar_http_poll(h->client, time_to_next(h), err);
        if (!st) st = collect(h, err);
        if (!st && r->obs->tick) st = r->obs->tick(r->obs->self, err);
        run_progress(r);
    }
    return st;
}

cedar_status run_http_loop(run_http *h, cedar_err *err) {
    cedar_status st = scrape(h, false, err);
    if (!st) st = play(h, err);
    cedar_err why = { 0 };
    cedar_status after = st && st != CEDAR_E_INTERRUPT ? CEDAR_OK : scrape(h, true, &why);
    if (!st && after && err) *err = why;
    if (!st) st = after;
    return st ? st : check_completed(h, err);
}
