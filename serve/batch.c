/* The engine thread: admission, steps, what becomes of their results, and how jobs end. Continuous batching with the
 * scheduler, admission and prefix cache of runs.
 *
 * A step runs without the lock. What it made is worked out without it too, then published for all jobs at once. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "serve/serve_int.h"
#include "sim/admit.h"

enum {
    LOOK_NS = 20000000,         /* between two looks for clients that have gone */
    IDLE_MS = 100,              /* longest sleep: how late a stop by flag is seen */
    FAREWELL_MS = 2000          /* for the last answers to be sent */
};

/* --- opening ------------------------------------------------------------------------------------------------------ */

static cedar_status open_cache(cedar_server *s, cedar_err *err) {
    const cedar_engine_opts *e = &s->opts.engine;
    if (!s->opts.prefix_cache) return CEDAR_OK;
    cedar_cache_opts o = { .page_tokens = e->page_tokens, .page_count = e->page_count,
                           .windows = !s->opts.rules.encoder, .window_bytes_max = s->opts.window_bytes_max };
    cedar_cache_host h = cedar_cache_engine_host(s->engine);
    return cedar_cache_new(&o, &h, &s->cache, err);
}

cedar_status serve_batch_open(cedar_server *s, cedar_err *err) {
    cedar_status st = cedar_engine_open(s->opts.model, &s->opts.engine, &s->engine, err);
    if (!st) st = open_cache(s, err);
    if (st) return st;
    const cedar_engine_opts *e = &s->opts.engine;
    size_t seqs = e->seq_count, vocab = (size_t)s->config->vocab;
    s->running = cedar_calloc(seqs, sizeof(serve_job *));
    s->items = cedar_calloc(seqs, sizeof *s->items);
    s->slices = cedar_calloc(seqs, sizeof *s->slices);
    s->entries = cedar_calloc(seqs, sizeof *s->entries);
    s->pages = cedar_calloc((size_t)e->context_tokens / e->page_tokens + 1, sizeof *s->pages);
    s->argmax = cedar_calloc(seqs, sizeof *s->argmax);
    s->logits = cedar_calloc(seqs, vocab * sizeof *s->logits);
    s->weights = cedar_calloc(vocab, sizeof *s->weights);
    s->heap = cedar_calloc(vocab, sizeof *s->heap);
    s->polled = cedar_calloc(seqs + s->opts.queue_max, sizeof *s->polled);
    s->metrics.pages = s->metrics.pages_free = e->page_count;
    if (s->running && s->items && s->slices && s->entries && s->pages && s->argmax && s->logits && s->weights &&
        s->heap && s->polled)
        return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_OOM, "no memory for steps of %zu sequences", seqs);
}

cedar_status serve_batch_close(cedar_server *s, cedar_err *err) {
    void *const buffers[] = { s->running, s->items, s->slices, s->entries, s->pages,
                              s->argmax,  s->logits, s->weights, s->heap,  s->polled };
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) cedar_free(buffers[i]);
    cedar_cache_free(s->cache);
    return cedar_engine_close(s->engine, err);
}

/* --- the end of a job --------------------------------------------------------------------------------------------- */

static bool stores_windows(const cedar_server *s) { return s->cache && !s->opts.rules.encoder; }

/* Whole pages of prompt and answer go to the prefix cache: a later prompt may hold the answer, or another one. */
static void keep_pages(cedar_server *s, serve_job *j) {
    if (!s->cache) return;
    uint32_t count, page = s->opts.engine.page_tokens, pos = cedar_seq_pos(s->engine, j->seq);
    const int32_t *pages = cedar_seq_pages(s->engine, j->seq, &count);
    cedar_snap *snap = j->snap_prompt, *last = j->snap_answer;
    j->snap_prompt = j->snap_answer = NULL;
    if (snap)
        cedar_cache_insert(s->cache, j->req.tokens, pages, cedar_snap_pos(snap) / page, j->depth, snap,
                           cedar_snap_pos(snap));
    cedar_cache_insert(s->cache, j->req.tokens, pages, pos / page, j->depth, last, last ? cedar_snap_pos(last) : 0);
}

/* Gives back what the job holds of the engine. */
static void leave_engine(cedar_server *s, serve_job *j) {
    if (j->node >= 0) cedar_cache_unpin(s->cache, j->node);
    if (j->seq >= 0) cedar_seq_close(s->engine, j->seq);
    cedar_snap_free(j->snap_prompt);
    cedar_snap_free(j->snap_answer);
    j->snap_prompt = j->snap_answer = NULL;
    j->seq = j->node = -1;
    s->blocked = false;
}

static cedar_status report(cedar_server *s, serve_job *j, const char *error, cedar_err *err) {
    j->row.out_tokens = j->produced;
    j->row.error = error;
    s->totals.requests++;
    s->totals.failed += *error != 0;
    s->totals.event_hash = cedar_fold64(s->totals.event_hash, (uint64_t)j->id);
    for (uint32_t i = 0; i < j->produced; i++)
        s->totals.event_hash = cedar_fold64(s->totals.event_hash, (uint64_t)j->req.tokens[j->req.prompt + i]);
    return s->opts.observer ? s->opts.observer->request(s->opts.observer->self, &j->row, err) : CEDAR_OK;
}

/* The engine is through with a job: from here on it may be gone. */
static void let_go(cedar_server *s, serve_job *j) {
    pthread_mutex_lock(&s->lock);
    j->engine_done = true;
    bool last = !j->connection;
    pthread_mutex_unlock(&s->lock);
    if (last) serve_job_free(j);
}

/* Ends a job that did not come to its end. on_us: not the client's doing. */
static cedar_status drop(cedar_server *s, serve_job *j, bool on_us, const char *error, cedar_err *err) {
    leave_engine(s, j);
    pthread_mutex_lock(&s->lock);
    j->failed_on_us = on_us;
    j->view.finish = SERVE_FAILED;
    s->metrics.cancelled += !on_us;
    s->metrics.failed += on_us;
    serve_wake_client(j);
    pthread_mutex_unlock(&s->lock);
    cedar_status st = report(s, j, error, err);
    let_go(s, j);
    return st;
}

static cedar_status finish(cedar_server *s, serve_job *j, cedar_err *err) {
    keep_pages(s, j);
    leave_engine(s, j);
    cedar_status st = report(s, j, "", err);
    let_go(s, j);
    return st;
}

/* --- clients ------------------------------------------------------------------------------------------------------ */

/* Requests whose clients have closed the connection are cancelled: libmicrohttpd does not look at connections that
 * wait. With the lock held. */
static void look_for_clients(cedar_server *s) {
    int64_t now = serve_now(s);
    if (now - s->looked_ns < LOOK_NS) return;
    s->looked_ns = now;
    nfds_t n = 0;
    for (uint32_t i = 0; i < s->running_count; i++)
        if (s->running[i]->connection) s->polled[n++] = (struct pollfd){ s->running[i]->fd, POLLRDHUP, 0 };
    for (serve_job *j = s->first; j; j = j->next)
        if (j->connection) s->polled[n++] = (struct pollfd){ j->fd, POLLRDHUP, 0 };
    if (!n || poll(s->polled, n, 0) <= 0) return;
    n = 0;
    for (uint32_t i = 0; i < s->running_count; i++)
        if (s->running[i]->connection && s->polled[n++].revents) s->running[i]->cancelled = true;
    for (serve_job *j = s->first; j; j = j->next)
        if (j->connection && s->polled[n++].revents) j->cancelled = true;
}

/* Takes those that wait and are cancelled, or all of them, out of the line. With the lock held. */
static serve_job *leave_line(cedar_server *s, bool all) {
    serve_job *out = NULL, **end = &out, **at = &s->first;
    while (*at) {
        serve_job *j = *at;
        if (!all && !j->cancelled) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        j->next = NULL;
        *end = j;
        end = &j->next;
        s->waiting--;
    }
    s->last = at;
    return out;
}

static const char GONE[] = "cancelled: the client closed the connection";
static const char CUT[] = "cut: the server was stopped before the request ended";

/* Drops what its client has given up, or everything. */
static cedar_status drop_gone(cedar_server *s, bool all, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    pthread_mutex_lock(&s->lock);
    look_for_clients(s);
    serve_job *line = leave_line(s, all);
    pthread_mutex_unlock(&s->lock);
    while (line && !st) {
        serve_job *j = line;
        line = j->next;
        pthread_mutex_lock(&s->lock);
        bool gone = j->cancelled;
        pthread_mutex_unlock(&s->lock);
        st = drop(s, j, !gone, gone ? GONE : CUT, err);
    }
    for (uint32_t i = 0; i < s->running_count && !st;) {
        serve_job *j = s->running[i];
        pthread_mutex_lock(&s->lock);
        bool gone = j->cancelled;
        pthread_mutex_unlock(&s->lock);
        if (!gone && !all) {
            i++;
            continue;
        }
        s->running_count--;
        memmove(s->running + i, s->running + i + 1, (s->running_count - i) * sizeof(serve_job *));
        st = drop(s, j, !gone, gone ? GONE : CUT, err);
    }
    return st;
}

/* --- admission ---------------------------------------------------------------------------------------------------- */

static cedar_status admit(cedar_server *s, serve_job *j, bool *admitted, cedar_err *err) {
    const cedar_admitter a = { .engine = s->engine, .cache = s->cache, .rules = &s->opts.rules,
                               .windows = stores_windows(s), .pages = s->pages };
    cedar_admission got;
    cedar_status st = cedar_admit(&a, j->req.tokens, j->req.prompt, j->req.prompt + j->req.max_tokens - 1, &got,
                                  admitted, err);
    if (st || !*admitted) return st;
    j->seq = got.seq;
    j->node = got.node;
    j->boundary = got.boundary;
    j->depth = got.depth;
    j->row.lane = got.seq;
    j->row.hit_tokens = got.plan.hit;
    j->row.matched_tokens = got.hit.matched_tokens;
    j->row.provenance_depth = got.hit.depth;
    j->row.miss = got.hit.miss;
    j->row.admit_ns = j->row.admit_sched_ns = serve_now(s);
    return CEDAR_OK;
}

static serve_job *first_waiting(cedar_server *s) {
    pthread_mutex_lock(&s->lock);
    serve_job *j = s->first;
    pthread_mutex_unlock(&s->lock);
    return j;
}

/* Out of the line and, `admitted`, among those that run. */
static void take_first(cedar_server *s, serve_job *j, bool admitted) {
    pthread_mutex_lock(&s->lock);
    s->first = j->next;
    if (!s->first) s->last = &s->first;
    j->next = NULL;
    s->waiting--;
    if (admitted) {
        s->metrics.prompt_tokens += j->req.prompt;
        s->metrics.prefix_queries += s->cache ? j->req.prompt : 0;
        s->metrics.prefix_hits += j->row.hit_tokens;
        j->view.hit_tokens = j->row.hit_tokens;
    }
    pthread_mutex_unlock(&s->lock);
    if (admitted) s->running[s->running_count++] = j;
}

static cedar_status admit_waiting(cedar_server *s, cedar_err *err) {
    while (!s->blocked && s->running_count < s->opts.engine.seq_count) {
        serve_job *j = first_waiting(s);
        if (!j) break;
        bool admitted = false;
        cedar_err why = { 0 };
        cedar_status st = admit(s, j, &admitted, &why);
        if (!st && !admitted && s->running_count) {
            s->blocked = true;
            break;
        }
        take_first(s, j, admitted);
        if (admitted) continue;
        char text[256];
        snprintf(text, sizeof text, "engine: %.200s", st ? why.msg : "the pages of the pool do not suffice");
        st = drop(s, j, true, text, err);
        if (st) return st;
    }
    return CEDAR_OK;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static bool bans_end(const cedar_server *s, const serve_job *j) {
    return s->config->eos >= 0 && !j->req.ignore_eos && j->produced < j->req.min_tokens;
}

/* The engine's own argmax does not suffice. */
static bool needs_logits(const cedar_server *s, const serve_job *j) {
    return j->req.temperature > 0 || j->req.logprobs || bans_end(s, j);
}

static void make_plan(cedar_server *s, cedar_step_plan *plan, bool *logits) {
    for (uint32_t i = 0; i < s->running_count; i++) {
        const serve_job *j = s->running[i];
        s->items[i] = (cedar_sched_item){ .pos = cedar_seq_pos(s->engine, j->seq), .prompt_tokens = j->req.prompt,
                                          .boundary = j->boundary };
    }
    const cedar_sched_limits limits = { .step_rows = s->opts.engine.step_rows, .step_seqs = s->opts.engine.step_seqs,
                                        .chunk_rows = s->opts.chunk_rows };
    uint32_t n = cedar_sched_plan(&limits, s->items, s->running_count, s->slices);
    *logits = false;
    for (uint32_t i = 0; i < n; i++) {
        const cedar_sched_slice *c = &s->slices[i];
        const serve_job *j = s->running[c->item];
        uint32_t pos = s->items[c->item].pos;
        bool last = pos + c->rows >= j->req.prompt;
        cedar_plan_rows(&s->opts.rules, c->decode ? CEDAR_ROWS_DECODE : CEDAR_ROWS_PREFILL, pos, c->rows,
                        cedar_seq_bounds(s->engine, j->seq), cedar_seq_write_floor(s->engine, j->seq), false, last,
                        &s->entries[i]);
        s->entries[i].seq = j->seq;
        s->entries[i].tokens = j->req.tokens + pos;
        *logits |= last && needs_logits(s, j);
    }
    *plan = (cedar_step_plan){ .cut = s->opts.rules.cut, .entry_count = n, .entries = s->entries };
    cedar_plan_total(plan);
}

/* How steps are launched: graphs are the GPU's. */
static const char *launches(const cedar_server *s) {
    if (strcmp(cedar_engine_options(s->engine)->backend, "cuda")) return "none";
    return s->opts.engine.eager ? "off" : "split";
}

static void describe_step(const cedar_server *s, const cedar_step_plan *plan, cedar_step_row *row) {
    *row = (cedar_step_row){ .run_id = s->opts.run_id,
                             .step_id = (int64_t)s->totals.steps + 1,
                             .steps = 1,
                             .engine = 1,
                             .entries = plan->entry_count,
                             .rows = plan->rows,
                             .kept_rows = plan->kept,
                             .trimmed = plan->trimmed,
                             .graph = launches(s),
                             .running = s->running_count,
                             .pages_free = cedar_pages_free(s->engine),
                             .pages_cached = s->cache ? cedar_cache_page_count(s->cache) : 0,
                             .window_bytes_stored = s->cache ? cedar_cache_window_bytes(s->cache) : 0 };
    row->kv_bytes_used = (s->opts.engine.page_count - row->pages_free) * cedar_page_bytes(s->engine);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        bool decode = e->kind == CEDAR_ROWS_DECODE;
        row->decode_entries += decode;
        row->decode_rows += decode;
        row->prefill_entries += !decode;
        row->prefill_rows += decode ? 0 : e->rows;
        row->replayed_rows += e->replayed;
    }
}

/* Windows at the last whole page of the prompt, and later of the answer. */
static cedar_status store_windows(const cedar_server *s, serve_job *j, cedar_err *err) {
    uint32_t pos = cedar_seq_pos(s->engine, j->seq), page = s->opts.engine.page_tokens;
    if (!stores_windows(s) || pos % page || pos < j->req.prompt / page * page) return CEDAR_OK;
    cedar_snap **place = pos <= j->req.prompt ? &j->snap_prompt : &j->snap_answer, *snap;
    cedar_status st = cedar_snap_save(s->engine, j->seq, &snap, err);
    if (st) return st;
    cedar_snap_free(*place);
    *place = snap;
    return CEDAR_OK;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

/* Bytes at the end of the text that may be the beginning of a stop string. */
static size_t held_back(const serve_job *j) {
    size_t open = j->text_bytes - j->text_released, held = 0;
    for (uint32_t i = 0; i < j->req.stop_count; i++) {
        size_t n = strlen(j->req.stops[i]) - 1;
        if (n > open) n = open;
        while (n > held && memcmp(j->text + j->text_bytes - n, j->req.stops[i], n)) n--;
        if (n > held) held = n;
    }
    return held;
}

/* Ends the text before the first stop string in it. */
static bool stopped(serve_job *j) {
    const char *open = j->text + j->text_released, *first = NULL;
    for (uint32_t i = 0; i < j->req.stop_count; i++) {
        const char *at = memmem(open, j->text_bytes - j->text_released, j->req.stops[i], strlen(j->req.stops[i]));
        if (at && (!first || at < first)) first = at;
    }
    if (first) j->text_bytes = (size_t)(first - j->text);
    return first != NULL;
}

static void take_token(const cedar_server *s, serve_job *j, int32_t token) {
    j->req.tokens[j->req.prompt + j->produced++] = token;
    bool end = token == s->config->eos && !j->req.ignore_eos;
    if (!end) j->text_bytes += serve_token_text(token, j->text + j->text_bytes);
    if (end || (j->produced >= j->req.min_tokens && stopped(j))) j->finish = SERVE_STOP;
    else if (j->produced == j->req.max_tokens) j->finish = SERVE_LENGTH;
    j->text_released = j->text_bytes - (j->finish == SERVE_RUNNING ? held_back(j) : 0);
}

static void choose_token(const cedar_server *s, serve_job *j, int32_t argmax, const float *logits) {
    int32_t token = argmax, vocab = s->config->vocab;
    if (j->req.temperature > 0 || bans_end(s, j)) {
        const serve_choice c = { j->req.temperature, j->req.top_p, bans_end(s, j) ? s->config->eos : -1,
                                 cedar_rng_at(j->key, (uint64_t)j->req.prompt + j->produced) };
        token = serve_sample(logits, vocab, &c, s->weights, s->heap);
    }
    if (j->req.logprobs) {
        size_t top = (size_t)j->produced * j->req.top_logprobs;
        j->chosen[j->produced] =
            serve_logprobs(logits, vocab, token, j->req.top_logprobs, j->top_ids + top, j->top_values + top);
    }
    take_token(s, j, token);
}

/* What an executed entry means for its job. row: of its logits in the step's output. */
static cedar_status advance(cedar_server *s, serve_job *j, const cedar_plan_entry *e, uint32_t row, int64_t now,
                            cedar_err *err) {
    bool decode = e->kind == CEDAR_ROWS_DECODE;
    j->row.decode_steps += decode;
    j->row.prefill_steps += !decode;
    j->row.replayed_tokens += e->replayed;
    j->row.trimmed_tokens += e->rows - e->kept;
    cedar_status st = store_windows(s, j, err);
    if (st || !e->logits) return st;
    choose_token(s, j, s->argmax[row], s->logits + (size_t)row * (size_t)s->config->vocab);
    if (j->produced == 1) j->row.first_ns = j->row.first_sched_ns = now;
    if (j->finish != SERVE_RUNNING) j->row.last_ns = j->row.last_sched_ns = now;
    return CEDAR_OK;
}

/* --- publishing --------------------------------------------------------------------------------------------------- */

static void count_end(serve_metrics *m, const serve_job *j) {
    const cedar_request_row *w = &j->row;
    m->finished_length += j->finish == SERVE_LENGTH;
    m->finished_stop += j->finish == SERVE_STOP;
    serve_histogram_add(&m->ttft, w->first_ns - w->arrival_ns);
    serve_histogram_add(&m->e2el, w->last_ns - w->arrival_ns);
    if (j->produced > 1) serve_histogram_add(&m->itl, (w->last_ns - w->first_ns) / (int64_t)(j->produced - 1));
}

/* Shows the clients what the step has made. */
static void publish(cedar_server *s, const cedar_step_plan *plan) {
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        serve_job *j = s->running[s->slices[i].item];
        if (!plan->entries[i].logits) continue;
        s->metrics.generated_tokens++;
        j->view.produced = j->produced;
        j->view.text_bytes = j->text_released;
        j->view.finish = j->finish;
        if (j->finish != SERVE_RUNNING) count_end(&s->metrics, j);
        if (j->req.stream || j->finish != SERVE_RUNNING) serve_wake_client(j);
    }
    s->metrics.steps++;
    pthread_mutex_unlock(&s->lock);
}

static cedar_status end_finished(cedar_server *s, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    uint32_t left = 0;
    for (uint32_t i = 0; i < s->running_count; i++) {
        serve_job *j = s->running[i];
        if (j->finish == SERVE_RUNNING || st) s->running[left++] = j;
        else st = finish(s, j, err);
    }
    s->running_count = left;
    return st;
}

static cedar_status step(cedar_server *s, cedar_err *err) {
    cedar_step_plan plan;
    cedar_step_row row;
    bool logits;
    int64_t planned = serve_now(s);
    make_plan(s, &plan, &logits);
    if (!plan.entry_count) return CEDAR_OK;
    describe_step(s, &plan, &row);
    pthread_mutex_lock(&s->lock);
    row.waiting = s->waiting;
    pthread_mutex_unlock(&s->lock);
    cedar_step_out out = { .logits = logits ? s->logits : NULL, .argmax = s->argmax };
    row.start_ns = row.start_sched_ns = serve_now(s);
    row.plan_ns = row.start_ns - planned;
    cedar_status st = cedar_engine_step(s->engine, &plan, &out, err);
    int64_t now = serve_now(s);
    uint32_t at = 0;
    for (uint32_t i = 0; i < plan.entry_count && !st; i++) {
        st = advance(s, s->running[s->slices[i].item], &plan.entries[i], at, now, err);
        at += plan.entries[i].logits;
    }
    if (st) return st;
    publish(s, &plan);
    s->totals.steps++;
    row.duration_ns = out.duration_ns;
    row.end_ns = row.end_sched_ns = now;
    if (s->opts.observer) st = s->opts.observer->step(s->opts.observer->self, &row, err);
    return st ? st : end_finished(s, err);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static void sleep_until(pthread_cond_t *c, pthread_mutex_t *lock, int64_t ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += ms % 1000 * 1000000;
    t.tv_sec += ms / 1000 + t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(c, lock, &t);
}

/* Waits for work, though not for long. *over: the server is stopping and nothing is left; *late: the grace time is
 * over. */
static void pulse(cedar_server *s, const volatile int *stop, int64_t *deadline_ns, bool *over, bool *late) {
    pthread_mutex_lock(&s->lock);
    s->metrics.running = s->running_count;
    s->metrics.pages_free = cedar_pages_free(s->engine);
    s->metrics.pages_cached = s->cache ? cedar_cache_page_count(s->cache) : 0;
    bool idle = !s->running_count && !s->waiting && !s->stopping && !(stop && *stop);
    if (idle) sleep_until(&s->wake, &s->lock, IDLE_MS);
    if (stop && *stop) s->stopping = true;
    if (s->stopping && !s->draining) {
        s->draining = true;
        *deadline_ns = serve_now(s) + s->opts.grace_ns;
    }
    *over = s->draining && !s->running_count && !s->waiting;
    *late = s->draining && serve_now(s) >= *deadline_ns;
    pthread_mutex_unlock(&s->lock);
}

void serve_batch_abandon(cedar_server *s) {
    const cedar_observer *observer = s->opts.observer;
    cedar_err ignored;
    pthread_mutex_lock(&s->lock);
    s->draining = s->dead = true;
    pthread_mutex_unlock(&s->lock);
    s->opts.observer = NULL;        /* without one nothing in here can fail */
    cedar_status st = drop_gone(s, true, &ignored);
    CEDAR_ASSERT(!st);
    s->opts.observer = observer;
}

static void say_farewell(cedar_server *s) {
    int64_t end = serve_now(s) + (int64_t)FAREWELL_MS * 1000000;
    pthread_mutex_lock(&s->lock);
    while (s->exchanges && serve_now(s) < end) sleep_until(&s->gone, &s->lock, IDLE_MS);
    pthread_mutex_unlock(&s->lock);
}

cedar_status cedar_serve_run(cedar_server *s, const volatile int *stop, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    int64_t deadline_ns = 0;
    for (bool over = false, late = false; !st;) {
        pulse(s, stop, &deadline_ns, &over, &late);
        if (over) break;
        st = drop_gone(s, late, err);
        if (!st) st = admit_waiting(s, err);
        if (!st && s->running_count) st = step(s, err);
        if (!st && s->opts.observer && s->opts.observer->tick) st = s->opts.observer->tick(s->opts.observer->self, err);
    }
    if (st) serve_batch_abandon(s);
    s->totals.end_ns = serve_now(s);
    say_farewell(s);
    return st;
}
