/* Runs at HTTP endpoints: the event stream, the faults, the rules of spec/agentx.md sections 1.5 and 6, TLS, many
 * streams. The other side is tests/fault_server.h, which says what it did; tests/tls_front.py puts TLS in front. */
#include <check.h>
#include <ctype.h>
#include <spawn.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/mem.h"
#include "fault_server.h"
#include "http/http_int.h"
#include "reports/reports.h"
#include "sanitized.h"
#include "sim/sim.h"

/* The machine's clock is set back all the time: what is measured must not notice (spec/agentx.md section 6, row 18).
 * Sanitizers have functions of their own in this place. */
#ifndef CEDAR_SANITIZED
int clock_gettime(clockid_t which, struct timespec *t) {
    static atomic_long back;
    long rc = syscall(SYS_clock_gettime, which, t);
    if (which == CLOCK_REALTIME) t->tv_sec -= atomic_fetch_add(&back, 60);
    return (int)rc;
}

START_TEST(the_clock_is_set_back) {
    struct timespec a, b;
    clock_gettime(CLOCK_REALTIME, &a);
    clock_gettime(CLOCK_REALTIME, &b);
    ck_assert_int_lt(b.tv_sec, a.tv_sec);
    int64_t x = cedar_now_ns(), y = cedar_now_ns();
    ck_assert_int_ge(y, x);
}
END_TEST
#endif

static cedar_err failure;
#define OK(call) ck_assert_msg((call) == CEDAR_OK, "%s", failure.msg)

/* --- the event stream --------------------------------------------------------------------------------------------- */

typedef struct collected {
    char text[4096];
    size_t bytes;
    int events, stop_at;
} collected;

static bool collect(void *self, const char *data, size_t bytes) {
    collected *c = self;
    ck_assert_uint_lt(c->bytes + bytes + 2, sizeof c->text);
    c->text[c->bytes++] = '[';
    memcpy(c->text + c->bytes, data, bytes);
    c->bytes += bytes;
    c->text[c->bytes++] = ']';
    c->text[c->bytes] = 0;
    return ++c->events != c->stop_at;
}

static const struct { const char *stream, *events; } streams[] = {
    { "data: a\n\ndata: b\n\n", "[a][b]" },
    { "data:a\r\n\r\ndata:  b\r\n\r\n", "[a][ b]" },
    { "data: a\r\rdata: b\r\r", "[a][b]" },
    { "data: a\ndata: b\n\n", "[a\nb]" },
    { "data: a\r\ndata: b\r\n\r\n", "[a\nb]" },
    { "\xEF\xBB\xBF" "data: a\n\n", "[a]" },
    { "\n\n: comment\nevent: x\nid: 7\nretry: 3\n\ndata: a\n\n", "[a]" },
    { "data\n\ndata:\n\n", "[][]" },
    { "dat: a\ndatax: b\n data: c\n\ndata: d\n\n", "[d]" },
    { "data: {\"a\": \"\\n\"}\n\ndata: [DONE]\n\n", "[{\"a\": \"\\n\"}][[DONE]]" },
    { "data: a\n\ndata: not closed", "[a][not closed]" },
    { "", "" }, { "\n", "" }, { ":\n\n", "" }
};

START_TEST(events_do_not_depend_on_packets) {
    const char *text = streams[_i].stream;
    size_t n = strlen(text);
    for (size_t step = 1; step <= n + 1; step++) {
        collected c = { .stop_at = -1 };
        http_sse s = { .limit = 1000, .self = &c, .event = collect };
        for (size_t at = 0; at < n; at += step) OK(http_sse_feed(&s, text + at, n - at < step ? n - at : step));
        OK(http_sse_end(&s));
        ck_assert_msg(strcmp(c.text, streams[_i].events) == 0, "in steps of %zu: %s", step, c.text);
        http_sse_free(&s);
    }
}
END_TEST

START_TEST(streams_have_bounds) {
    char block[100];
    memset(block, 'x', sizeof block);
    collected c = { .stop_at = 2 };
    http_sse s = { .limit = 1000, .self = &c, .event = collect };
    OK(http_sse_feed(&s, "data: ", 6));
    for (int i = 0; i < 9; i++) OK(http_sse_feed(&s, block, sizeof block));
    ck_assert_int_eq(http_sse_feed(&s, block, sizeof block), CEDAR_E_BUDGET);
    http_sse_restart(&s);
    for (int i = 0; i < 100; i++) OK(http_sse_feed(&s, ": forgotten\n", 12));
    ck_assert_int_eq(http_sse_feed(&s, "data: a\n\ndata: b\n\ndata: c\n\n", 27), CEDAR_E_INTERRUPT);
    ck_assert_str_eq(c.text, "[a][b]");
    int64_t live = cedar_mem_live();
    http_sse_restart(&s);
    c = (collected){ .stop_at = -1 };
    for (int i = 0; i < 300; i++) OK(http_sse_feed(&s, "data: y\n\n", 9));    /* no memory for events */
    ck_assert_int_eq(c.events, 300);
    ck_assert_int_eq(cedar_mem_live(), live);
    http_sse_free(&s);
}
END_TEST

static bool say(http_answer *a, const char *event, int64_t now) {
    return http_answer_event(a, event, strlen(event), now);
}

START_TEST(what_counts_as_content) {
    static const struct { const char *event; bool content; } cases[] = {
        { "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}", false },
        { "{\"choices\":[{\"delta\":{\"content\":null}}]}", false },
        { "{\"choices\":[{\"text\":\"\"}]}", false },
        { "{\"choices\":[]}", false },
        { "{\"choices\":null,\"x\":1}", false },
        { "{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}", true },
        { "{\"choices\":[{\"delta\":{\"reasoning_content\":\"a\"}}]}", true },
        { "{\"choices\":[{\"delta\":{\"reasoning\":\"a\",\"content\":null}}]}", true },
        { "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}", true },
        { "{\"choices\":[{\"text\":\" \"}]}", true },
        { "{\"choices\":[{\"text\":\"\\u0000\"}],\"seed\":18446744073709551615}", true } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        http_answer a = { .first_ns = -1, .last_ns = -1 };
        ck_assert(say(&a, cases[i].event, 5));
        ck_assert_msg((a.deltas == 1) == cases[i].content && (a.first_ns == 5) == cases[i].content, "%s",
                      cases[i].event);
    }
}
END_TEST

START_TEST(answers_are_read) {
    http_answer a = { .first_ns = -1, .last_ns = -1 };
    ck_assert(say(&a, "{\"choices\":[{\"text\":\"a\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}", 10));
    ck_assert(say(&a, "{\"choices\":[{\"text\":\"b\",\"finish_reason\":\"length\"}]}", 20));
    ck_assert(say(&a, "{\"choices\":[],\"usage\":{\"prompt_tokens\":70,\"completion_tokens\":9,"
                  "\"prompt_tokens_details\":{\"cached_tokens\":64}}}", 30));
    ck_assert(say(&a, "[DONE]", 40));
    ck_assert(say(&a, "{\"choices\":[{\"text\":\"behind the end\"}]}", 50));
    ck_assert(a.done && a.finished && a.usage && !a.class_);
    ck_assert_int_eq(a.first_ns, 10);
    ck_assert_int_eq(a.last_ns, 20);
    ck_assert_uint_eq(a.deltas, 2);
    ck_assert_uint_eq(a.prompt_tokens, 70);
    ck_assert_uint_eq(a.completion_tokens, 9);
    ck_assert_uint_eq(a.cached_tokens, 64);
    ck_assert_str_eq(a.finish, "length");
    static const struct { const char *event; cedar_http_class class_; } bad[] = {
        { "{", CEDAR_HTTP_MALFORMED }, { "[1]", CEDAR_HTTP_MALFORMED }, { "7", CEDAR_HTTP_MALFORMED },
        { "{\"error\":{\"message\":\"no memory\"}}", CEDAR_HTTP_STREAM_ERROR },
        { "{\"error\":\"no memory\"}", CEDAR_HTTP_STREAM_ERROR },
        { "{\"error\":{\"message\":\"maximum context length is 7\"}}", CEDAR_HTTP_OVERFLOW } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        http_answer b = { .first_ns = -1, .last_ns = -1 };
        ck_assert(!say(&b, bad[i].event, 1));
        ck_assert_int_eq(b.class_, bad[i].class_);
        ck_assert(*b.error);
    }
    static const char *const counts[] = { "7", "7,\"completion_tokens\":-1", "7,\"completion_tokens\":1.5",
                                          "7,\"completion_tokens\":\"1\"", "4294967296,\"completion_tokens\":1",
                                          "18446744073709551616,\"completion_tokens\":1" };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {       /* that cannot be counted with */
        http_answer c = { .first_ns = -1, .last_ns = -1 };
        char event[160];
        snprintf(event, sizeof event, "{\"choices\":[],\"usage\":{\"prompt_tokens\":%s}}", counts[i]);
        ck_assert(say(&c, event, 1));
        ck_assert_msg(!c.usage, "%s", event);
    }
}
END_TEST

START_TEST(error_texts_are_clean) {
    char text[] = "key sk-1 and sk-1\nend\x01 \xC3\xA9 \xFF";
    http_clean_text(text, "sk-1");
    ck_assert_str_eq(text, "key **** and **** end  \xC3\xA9 ?");
    char overlong[] = "\xE0\x80\x80 \xED\xA0\x80 \xF4\x90\x80\x80";
    http_clean_text(overlong, NULL);
    ck_assert_str_eq(overlong, "??? ??? ????");
}
END_TEST

/* An endpoint that repeats the key, in any text and at any place of it: no part of it stays. */
START_TEST(texts_hold_no_part_of_the_key) {
    static const char key[] = "kk/secret/kk";
    char body[2 * CEDAR_HTTP_ERROR_BYTES], event[sizeof body + 64], out[CEDAR_HTTP_ERROR_BYTES];
    for (size_t before = 0; before < CEDAR_HTTP_ERROR_BYTES + 4; before++) {
        memset(body, '.', before);
        snprintf(body + before, sizeof body - before, "kk\\/secret\\/kk\\/secret\\/kk");
        snprintf(event, sizeof event, "{\"error\":{\"message\":\"%s\"}}", body);
        http_answer a = { .key = key, .first_ns = -1, .last_ns = -1 };
        ck_assert(!say(&a, event, 1));
        ck_assert_msg(strspn(a.error, ".*") == strlen(a.error), "%zu: %s", before, a.error);
        http_error_text(event, key, out);
        ck_assert_str_eq(out, a.error);
        snprintf(body + before, sizeof body - before, "%s", key);
        http_error_text(body, key, out);
        ck_assert_msg(strspn(out, ".*") == strlen(out), "%zu: %s", before, out);
    }
    http_answer a = { .key = key, .first_ns = -1, .last_ns = -1 };
    ck_assert(say(&a, "{\"choices\":[{\"finish_reason\":\"because of kk/secret/kk\"}]}", 1));
    ck_assert_str_eq(a.finish, "because of ************");
}
END_TEST

START_TEST(prometheus_samples) {
    const char *text = "# HELP a x\n# TYPE a counter\na 1\nb{x=\"} \\\" {\",y=\"2\"} 2.5e3 1700000000\n\n"
                       "bad{x=\"1\" 3\nc NaN\nd +Inf\ne{} 4\r\n9 \n{} 1\nf";
    static const struct { const char *name, *labels; double value; } want[] = {
        { "a", "", 1 }, { "b", "x=\"} \\\" {\",y=\"2\"", 2500 }, { "e", "", 4 } };
    cedar_http_sample s;
    size_t n = 0;
    for (; cedar_http_sample_next(&text, &s); n++) {
        ck_assert_uint_lt(n, 3);
        ck_assert_msg(s.name_bytes == strlen(want[n].name) && !memcmp(s.name, want[n].name, s.name_bytes), "%zu", n);
        ck_assert(s.label_bytes == strlen(want[n].labels) && !memcmp(s.labels, want[n].labels, s.label_bytes));
        ck_assert_double_eq(s.value, want[n].value);
    }
    ck_assert_uint_eq(n, 3);
}
END_TEST

START_TEST(keys_come_from_elsewhere) {
    char *key = NULL, path[] = "/tmp/cedar-key-XXXXXX", source[64];
    OK(cedar_http_key("", &key, &failure));
    ck_assert_ptr_null(key);
    setenv("CEDAR_TEST_KEY", " sk-from-env\n", 1);
    OK(cedar_http_key("env:CEDAR_TEST_KEY", &key, &failure));
    ck_assert_str_eq(key, "sk-from-env");
    cedar_free(key);
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, "sk-from-file\n", 13), 13);
    close(fd);
    snprintf(source, sizeof source, "file:%s", path);
    OK(cedar_http_key(source, &key, &failure));
    ck_assert_str_eq(key, "sk-from-file");
    cedar_free(key);
    unlink(path);
    setenv("CEDAR_TEST_KEY", "sk secret", 1);
    static const char *const bad[] = { "sk-secret", "env:", "file:", "env:CEDAR_TEST_KEY", "env:CEDAR_NO_SUCH_KEY" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cedar_err err = { 0 };
        ck_assert_int_ne(cedar_http_key(bad[i], &key, &err), CEDAR_OK);
        ck_assert_msg(!strstr(err.msg, "secret") && *err.msg, "%s", err.msg);
    }
}
END_TEST

/* --- runs --------------------------------------------------------------------------------------------------------- */

/* What a run has reported. */
typedef struct rows {
    cedar_request_row *requests;            /* [count], texts copied */
    cedar_http_row *http;                   /* [http_count] */
    size_t count, room, http_count, http_room, sessions, metrics, ticks;
    char status[16], outcomes[256];
    cedar_status ends;          /* what play_at expects */
    uint64_t unfinished, cut_sessions;
    double metric_sum;
    volatile int stop;
    size_t stop_at;                         /* rows of requests; 0 = never */
    int64_t fail_alloc;                     /* the run's n-th allocation fails; 0 = none does */
    char config[16384], origin[256];
} rows;

static cedar_status on_begin(void *self, const cedar_run_row *r, cedar_err *err) {
    rows *x = self;
    (void)err;
    snprintf(x->config, sizeof x->config, "%s", r->config_json);
    snprintf(x->origin, sizeof x->origin, "%s", r->model_origin);
    return CEDAR_OK;
}

static cedar_status on_session(void *self, const cedar_session_row *r, cedar_err *err) {
    rows *x = self;
    (void)err;
    x->sessions++;
    size_t n = strlen(x->outcomes);
    snprintf(x->outcomes + n, sizeof x->outcomes - n, "%s ", r->outcome);
    return CEDAR_OK;
}

static cedar_status on_request(void *self, const cedar_request_row *r, cedar_err *err) {
    rows *x = self;
    (void)err;
    if (x->count == x->room) {
        x->room = x->room ? 2 * x->room : 64;
        x->requests = realloc(x->requests, x->room * sizeof *x->requests);
    }
    ck_assert_uint_eq(x->count + 1, x->http_count);             /* it comes behind the endpoint's row */
    ck_assert_int_eq(r->request_id, x->http[x->count].request_id);
    x->requests[x->count] = *r;
    x->requests[x->count++].error = strdup(r->error);
    if (x->count == x->stop_at) x->stop = 1;
    return CEDAR_OK;
}

static cedar_status on_http(void *self, const cedar_http_row *r, cedar_err *err) {
    rows *x = self;
    (void)err;
    if (x->http_count == x->http_room) {
        x->http_room = x->http_room ? 2 * x->http_room : 64;
        x->http = realloc(x->http, x->http_room * sizeof *x->http);
    }
    ck_assert_uint_eq(x->count, x->http_count);
    x->http[x->http_count] = *r;
    x->http[x->http_count++].finish = strdup(r->finish);
    return CEDAR_OK;
}

static cedar_status on_metric(void *self, const cedar_metric_row *r, cedar_err *err) {
    rows *x = self;
    (void)err;
    x->metrics++;
    x->metric_sum += r->value;
    return CEDAR_OK;
}

static cedar_status on_tick(void *self, cedar_err *err) {
    rows *x = self;
    (void)err;
    x->ticks++;
    return CEDAR_OK;
}

static cedar_status on_step(void *self, const cedar_step_row *r, cedar_err *err) {
    (void)self;
    (void)r;
    return cedar_fail(err, CEDAR_E_DB, "a run at an endpoint has no steps");
}

static cedar_status on_end(void *self, const cedar_run_end_row *r, cedar_err *err) {
    rows *x = self;
    (void)err;
    snprintf(x->status, sizeof x->status, "%s", r->status);
    x->unfinished = r->requests_unfinished;
    x->cut_sessions = r->sessions_unfinished;
    ck_assert_uint_eq(r->requests, x->count);
    return CEDAR_OK;
}

static void rows_free(rows *x) {
    for (size_t i = 0; i < x->count; i++) free((char *)(uintptr_t)x->requests[i].error);
    for (size_t i = 0; i < x->http_count; i++) free((char *)(uintptr_t)x->http[i].finish);
    free(x->requests);
    free(x->http);
}

/* One trace of `turns` turns each; prompts grow by two blocks of 4 tokens, answers have `out` tokens. */
static char *make_traces(int traces, int turns, int out) {
    char path[] = "/tmp/cedar-http-XXXXXX.jsonl";
    int fd = mkstemps(path, 6);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    ck_assert_ptr_nonnull(f);
    for (int t = 0; t < traces; t++) {
        fprintf(f, "{\"id\":\"t%d\",\"models\":[\"m\"],\"block_size\":4,\"hash_id_scope\":\"local\",\"tool_tokens\":0,"
                "\"system_tokens\":4,\"requests\":[", t);
        for (int k = 0; k < turns; k++) {
            fprintf(f, "%s{\"t\":%d,\"type\":\"s\",\"model\":\"m\",\"in\":%d,\"out\":%d,\"hash_ids\":[",
                    k ? "," : "", k * 2, 4 * (3 + 2 * k) + 1, out);
            for (int b = 0; b < 3 + 2 * k; b++) fprintf(f, "%s%d", b ? "," : "", b + 1);
            fprintf(f, "],\"api_time\":1}");
        }
        fprintf(f, "]}\n");
    }
    fclose(f);
    return strdup(path);
}

static void drop_traces(char *path) {
    unlink(path);
    free(path);
}

static cedar_run_opts *make_opts(const char *trace, const char *endpoints, const char *settings) {
    char words[1024], *save = NULL;
    cedar_run_opts *o = NULL;
    OK(cedar_opts_new(&o, &failure));
    OK(cedar_opts_set(o, "backend", "http", &failure));
    OK(cedar_opts_set(o, "endpoints", endpoints, &failure));
    OK(cedar_opts_set(o, "trace", trace, &failure));
    snprintf(words, sizeof words, "%s", settings);
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(w, '=');
        *equals = 0;
        OK(cedar_opts_set(o, w, equals + 1, &failure));
    }
    return o;
}

static cedar_status play(const char *trace, const char *endpoints, const char *settings, rows *x, cedar_run_result *out,
                         cedar_err *err) {
    cedar_run_opts *o = make_opts(trace, endpoints, settings);
    cedar_observer obs = { .self = x, .run_begin = on_begin, .session = on_session, .request = on_request,
                           .step = on_step, .run_end = on_end, .http = on_http, .metric = on_metric, .tick = on_tick };
    cedar_run_host host = { .observer = &obs, .data_dir = ".", .stop = &x->stop };
    int64_t live = cedar_mem_live();
    *out = (cedar_run_result){ 0 };
    cedar_mem_fail_at(x->fail_alloc);
    cedar_status st = cedar_run(o, 1, &host, out, err);
    cedar_mem_fail_at(0);
    ck_assert_int_eq(cedar_mem_live(), live);
    cedar_opts_free(o);
    return st;
}

/* Plays at a URL that leads to a started server, stops it, and checks what holds for every run. */
static void play_url(fault_server *v, const char *url, const char *trace, const char *settings, rows *x,
                     cedar_run_result *out) {
    cedar_err err = { 0 };
    cedar_status st = play(trace, url, settings, x, out, &err);
    server_stop(v);
    ck_assert_msg(st == x->ends || x->stop_at, "%s", err.msg);
    ck_assert_uint_eq(x->http_count, x->count);
    for (size_t i = 0; i < x->count; i++) {
        const cedar_request_row *r = &x->requests[i];
        ck_assert_int_ge(r->arrival_sched_ns, 0);
        ck_assert_int_ge(r->arrival_ns, r->arrival_sched_ns);
        if (r->admit_ns >= 0) ck_assert_int_ge(r->admit_ns, r->arrival_ns);
        if (r->first_ns >= 0) ck_assert_int_gt(r->first_ns, r->admit_ns);
        ck_assert_int_ge(r->last_ns, r->first_ns);
        ck_assert_int_ge(x->http[i].end_ns, r->last_ns);
        ck_assert(!*r->error == !*x->http[i].error_class);
        if (*r->error) ck_assert_uint_eq(r->in_tokens, x->http[i].in_asked);
    }
}

static void play_at(fault_server *v, const char *trace, const char *settings, rows *x, cedar_run_result *out) {
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", v->port);
    play_url(v, url, trace, settings, x, out);
}

START_TEST(a_run_of_token_ids) {
    char *trace = make_traces(2, 3, 6);
    fault_server v = { .keep_bodies = true };
    rows x = { 0 };
    cedar_run_result r;
    setenv("CEDAR_TEST_KEY", "sk-secret", 1);
    server_start(&v);
    play_at(&v, trace, "model=some/name lanes=2 http_api=completions http_vocab=500 think_cap_s=0.02 "
            "http_key=env:CEDAR_TEST_KEY http_metrics=true http_body={\"temperature\":0.5,\"min_tokens\":6} "
            "http_session_headers=X-Session-ID,X-Other", &x, &r);
    ck_assert_str_eq(x.status, "finished");
    ck_assert_uint_eq(r.requests, 6);
    ck_assert_uint_eq(r.errors, 0);
    ck_assert_uint_eq(v.logged, 6);
    ck_assert_uint_eq(r.in_tokens, 2 * (13 + 21 + 29));         /* as recorded, one id a token */
    ck_assert_uint_eq(r.out_tokens, 6 * 6);
    ck_assert_uint_eq(r.hit_tokens, 2 * (6 + 10 + 14));         /* the server says half of the prompt */
    ck_assert_str_eq(x.outcomes, "finished finished ");
    ck_assert_uint_eq(x.metrics, 4);        /* two samples of three, before and after */
    ck_assert_double_eq(x.metric_sum, 2 * (12.5 + 7));
    ck_assert_ptr_null(strstr(x.config, "sk-secret"));
    for (size_t i = 0; i < v.logged; i++) {
        const seen *s = &v.log[i];
        ck_assert_str_eq(s->path, "/v1/completions");
        ck_assert_str_eq(s->key, "Bearer sk-secret");
        ck_assert_ptr_nonnull(strstr(s->body, "\"model\":\"some/name\",\"stream\":true,"
                                     "\"stream_options\":{\"include_usage\":true},"
                                     "\"ignore_eos\":true,\"temperature\":0.5,\"min_tokens\":6,\"prompt\":["));
        ck_assert_ptr_nonnull(strstr(s->body, "],\"max_tokens\":6}"));
        ck_assert_int_eq(strncmp(s->session, "cedar-", 6), 0);
    }
    /* prompts of one session continue one another, those of two share the system segment of 4 tokens alone */
    for (size_t i = 0; i < v.logged; i++)
        for (size_t k = 0; k < v.logged; k++) {
            const char *a = strstr(v.log[i].body, "\"prompt\":["), *b = strstr(v.log[k].body, "\"prompt\":[");
            size_t n = 0, ids = 0;
            for (; a[n] == b[n] && a[n] != ']'; n++) ids += a[n] == ',';
            bool same = strcmp(v.log[i].session, v.log[k].session) == 0;
            uint32_t less = v.log[i].prompt_tokens;
            if (v.log[k].prompt_tokens < less) less = v.log[k].prompt_tokens;
            if (same) ck_assert_uint_ge(ids, less - 1);
            else ck_assert_uint_lt(ids, 4 + 1 + 3);
        }
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

/* Two runs with a fresh nonce share no prompt, two with the same one all of them. */
START_TEST(runs_do_not_hit_each_other) {
    char *trace = make_traces(1, 2, 3);
    uint64_t hash[4][2];
    for (int run = 0; run < 4; run++) {
        fault_server v = { 0 };
        rows x = { 0 };
        cedar_run_result r;
        server_start(&v);
        play_at(&v, trace, run < 2 ? "lanes=1 http_api=completions think_cap_s=0"
                                   : "lanes=1 http_api=completions think_cap_s=0 http_nonce=same", &x, &r);
        ck_assert_uint_eq(v.logged, 2);
        for (int k = 0; k < 2; k++) hash[run][k] = v.log[k].front_hash;
        rows_free(&x);
        server_forget(&v);
    }
    ck_assert_uint_ne(hash[0][0], hash[1][0]);
    ck_assert_uint_ne(hash[1][0], hash[2][0]);
    ck_assert_uint_eq(hash[2][0], hash[3][0]);
    ck_assert_uint_eq(hash[2][1], hash[3][1]);
    drop_traces(trace);
}
END_TEST

/* Text of one message after the other, with the role in front. */
static void messages_of(const char *body, char *out, size_t room) {
    const char *at = strstr(body, "\"messages\":[") + 12;
    size_t n = 0;
    while (*at == '{' || *at == ',') {
        at += *at == ',';
        int role = 0, text = 0;
        ck_assert_int_eq(sscanf(at, "{\"role\":\"%*[a-z]%n\",\"content\":\"%*[a-z ]%n", &role, &text), 0);
        const char *content = strstr(at, "\"content\":\"") + 11;
        n += (size_t)snprintf(out + n, room - n, "%.1s<%.*s>", at + 9, (int)strcspn(content, "\""), content);
        at = strchr(at, '}') + 1;
    }
    out[n] = 0;
}

START_TEST(a_run_of_messages) {
    char *trace = make_traces(1, 3, 6), first[4096], second[4096], third[4096];
    fault_server v = { .keep_bodies = true };
    rows x = { 0 };
    cedar_run_result r;
    server_start(&v);
    play_at(&v, trace, "lanes=1 think_cap_s=0.25 http_ignore_eos=false", &x, &r);
    ck_assert_uint_eq(r.requests, 3);
    ck_assert_str_eq(v.log[0].path, "/v1/chat/completions");
    ck_assert_ptr_null(strstr(v.log[0].body, "ignore_eos"));
    messages_of(v.log[0].body, first, sizeof first);
    messages_of(v.log[1].body, second, sizeof second);
    messages_of(v.log[2].body, third, sizeof third);
    /* each conversation begins with the one before, goes on with an answer, and ends with the user */
    ck_assert_int_eq(strncmp(second, first, strlen(first)), 0);
    ck_assert_int_eq(strncmp(third, second, strlen(second)), 0);
    ck_assert_int_eq(first[0], 's');
    ck_assert_int_eq(second[strlen(first)], 'a');
    ck_assert_int_eq(third[strlen(second)], 'a');
    ck_assert_ptr_nonnull(strstr(second + strlen(first), ">u<"));
    for (int i = 0; i < 2; i++) {           /* think time begins with the last content, and is waited for */
        ck_assert_int_eq(x.requests[i + 1].arrival_sched_ns, x.requests[i].last_ns + 250000000);
        ck_assert_int_ge(v.log[i + 1].got_ns - v.log[i].got_ns, 250000000);
    }
    for (int i = 0; i < 3; i++) {           /* the server counts words: as many as recorded tokens */
        ck_assert_uint_eq(x.http[i].in_asked, 13u + 8u * (uint32_t)i);
        ck_assert_uint_eq(x.requests[i].in_tokens, 13u + 8u * (uint32_t)i);
    }
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

/* --- faults ------------------------------------------------------------------------------------------------------- */

#define LIMITS " http_first_s=0.7 http_stall_s=0.7 http_total_s=1.5"

/* Every fault alone: its class, and the lane goes on with the next turn. */
START_TEST(each_fault_is_what_it_is) {
    char *trace = make_traces(1, 3, 10);
    const fault script[] = { FAULT_NONE, (fault)_i, FAULT_NONE };
    fault_server v = { .script = script, .script_count = 3, .drip_ns = 5000000 };
    rows x = { 0 };
    cedar_run_result r;
    setenv("CEDAR_TEST_KEY", "sk-secret", 1);
    server_start(&v);
    play_at(&v, trace, "lanes=1 http_api=completions http_vocab=100 think_cap_s=0 http_key=env:CEDAR_TEST_KEY" LIMITS,
            &x, &r);
    const char *want = fault_class[_i];
    ck_assert_str_eq(x.status, "finished");
    ck_assert_uint_eq(x.count, _i == FAULT_OVERFLOW ? 2 : 3);   /* an overflow ends its session */
    ck_assert_uint_eq(v.logged, x.count);
    ck_assert_msg(strcmp(x.http[1].error_class, want) == 0, "class %s, wanted %s: %s", x.http[1].error_class, want,
                  x.requests[1].error);
    ck_assert_uint_eq(r.errors, *want != 0);
    ck_assert_str_eq(x.http[0].error_class, "");
    ck_assert_str_eq(x.outcomes, _i == FAULT_OVERFLOW ? "overflow " : "finished ");
    ck_assert_ptr_null(strstr(x.requests[1].error, "sk-secret"));
    if (_i == FAULT_429) ck_assert_int_eq(x.http[1].retry_after_s, 7);
    else ck_assert_int_eq(x.http[1].retry_after_s, -1);
    if (_i == FAULT_400) ck_assert_ptr_nonnull(strstr(x.requests[1].error, "HTTP status 400: no such thing"));
    if (_i == FAULT_OVERFLOW) ck_assert_int_eq(strncmp(x.requests[1].error, "context overflow: ", 18), 0);
    /* tokens of failed requests count nowhere (spec/agentx.md section 6, row 11) */
    uint64_t in = 0, out = 0;
    for (size_t i = 0; i < x.count; i++) {
        in += *x.requests[i].error ? 0 : x.requests[i].in_tokens;
        out += *x.requests[i].error ? 0 : x.requests[i].out_tokens;
    }
    ck_assert_uint_eq(r.in_tokens, in);
    ck_assert_uint_eq(r.out_tokens, out);
    if (*want) ck_assert_uint_eq(out, _i == FAULT_OVERFLOW ? 10 : 20);
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

/* The first and last content lie where the server's own clock has them. */
START_TEST(times_are_those_of_content) {
    static const fault script[] = { FAULT_EMPTY_DELTAS, FAULT_REASONING, FAULT_MULTI, FAULT_DRIP, FAULT_SPLIT };
    char *trace = make_traces(1, 5, 10);
    fault_server v = { .script = script, .script_count = 5, .drip_ns = 20000000 };
    rows x = { 0 };
    cedar_run_result r;
    server_start(&v);
    int64_t zero = cedar_now_ns();
    play_at(&v, trace, "lanes=1 think_cap_s=0", &x, &r);
    ck_assert_uint_eq(x.count, 5);
    for (size_t i = 0; i < 5; i++) {
        const seen *s = &v.log[i];
        const cedar_request_row *q = &x.requests[i];
        int64_t begin = s->got_ns - zero;           /* a little more than on the run's axis, which begins later */
        ck_assert_int_lt(q->admit_ns, begin);
        ck_assert_int_lt(s->first_ns - s->got_ns, q->first_ns - q->admit_ns);
        ck_assert_int_ge(q->first_ns - q->admit_ns, v.drip_ns);
        if (script[i] == FAULT_DRIP) ck_assert_int_ge(q->last_ns - q->first_ns, v.drip_ns * 3);
        if (s->last_ns) ck_assert_int_lt(s->last_ns - s->got_ns, q->last_ns - q->admit_ns);
        ck_assert_uint_eq(q->out_tokens, 10);
    }
    ck_assert_uint_eq(x.http[2].deltas, 2);         /* ten tokens in two events: ITL is over tokens (row 17) */
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

/* spec/agentx.md section 6, rows 19 and 20: what came counts, not what was asked for; 0 and 1 tokens are kept. */
START_TEST(short_answers) {
    static const fault script[] = { FAULT_EARLY_STOP, FAULT_NO_CONTENT, FAULT_NONE };
    char *trace = make_traces(1, 2, 100);
    fault_server v = { .script = script, .script_count = 2 };
    rows x = { 0 };
    cedar_run_result r;
    server_start(&v);
    play_at(&v, trace, "lanes=1 think_cap_s=0", &x, &r);
    ck_assert_uint_eq(r.errors, 0);
    ck_assert_uint_eq(x.requests[0].out_tokens, 3);
    ck_assert_str_eq(x.http[0].finish, "stop");
    ck_assert_uint_eq(x.http[0].out_asked, 100);
    double itl = (double)(x.requests[0].last_ns - x.requests[0].first_ns) / 2e6;
    ck_assert_double_eq_tol(r.itl_p50_ms, itl, 1e-9);           /* of the one request that has an ITL */
    ck_assert_uint_eq(x.requests[1].out_tokens, 0);
    ck_assert_int_eq(x.requests[1].first_ns, -1);
    ck_assert_int_eq(x.requests[1].last_ns, -1);
    ck_assert_uint_eq(r.in_tokens, 13 + 21);
    ck_assert_uint_eq(r.out_tokens, 3);
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

/* Row 1: a recorded answer of no tokens asks for one. */
START_TEST(no_answer_is_one_token) {
    char *trace = make_traces(1, 1, 0);
    fault_server v = { 0 };
    rows x = { 0 };
    cedar_run_result r;
    server_start(&v);
    play_at(&v, trace, "lanes=1", &x, &r);
    ck_assert_uint_eq(v.log[0].max_tokens, 1);
    ck_assert_uint_eq(x.requests[0].out_recorded, 0);
    ck_assert_uint_eq(r.out_tokens, 1);
    ck_assert_msg(r.itl_p50_ms != r.itl_p50_ms, "an answer of one token has no ITL");
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

START_TEST(nobody_listens) {
    char *trace = make_traces(2, 2, 3), url[64];
    int port;
    close(bound_socket(&port));
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/", port);
    rows x = { 0 };
    cedar_run_result r;
    ck_assert_int_eq(play(trace, url, "lanes=2 think_cap_s=0", &x, &r, &failure), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(failure.msg, "4 failed, 4 of them of class connect, for example: no connection: "));
    ck_assert_str_eq(x.status, "failed");
    ck_assert_uint_eq(x.count, 4);
    ck_assert_uint_eq(r.errors, 4);
    for (size_t i = 0; i < 4; i++) ck_assert_str_eq(x.http[i].error_class, "connect");
    rows_free(&x);
    rows y = { 0 };         /* /metrics that cannot be had is said before anything is played */
    ck_assert_int_eq(play(trace, url, "lanes=2 http_metrics=true", &y, &r, &failure), CEDAR_E_IO);
    ck_assert_str_eq(y.status, "failed");
    ck_assert_uint_eq(y.count, 0);
    rows_free(&y);
    drop_traces(trace);
}
END_TEST

/* Each allocation of a run fails once: an error that says so, nothing leaks, nothing hangs. */
START_TEST(memory_runs_out) {
    static const fault script[] = { FAULT_NONE, FAULT_400, FAULT_LONG_EVENT };
    char *trace = make_traces(2, 3, 3), url[64];
    fault_server v = { .script = script, .script_count = 3 };
    server_start(&v);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", v.port);
    int64_t n = 0;
    for (int well = 0; well < 3 && n < 2000; n++) {     /* some failures are survived: an error's text is lost */
        rows x = { .fail_alloc = n + 1 };
        cedar_run_result r;
        cedar_err err = { 0 };
        cedar_status st = play(trace, url, "lanes=2 think_cap_s=0 http_metrics=true", &x, &r, &err);
        ck_assert_msg(st == CEDAR_OK || (st == CEDAR_E_OOM && *err.msg), "allocation %d: %s", (int)n + 1, err.msg);
        ck_assert_uint_eq(x.count, x.http_count);
        well = st ? 0 : well + 1;
        rows_free(&x);
    }
    ck_assert_int_gt(n, 40);
    server_stop(&v);
    server_forget(&v);
    drop_traces(trace);
}
END_TEST

/* The circuit breaker: more than a tenth has failed. */
START_TEST(too_many_errors_end_a_run) {
    static const fault script[] = { FAULT_NONE, FAULT_503 };
    char *trace = make_traces(8, 50, 2);
    fault_server v = { .script = script, .script_count = 2 };
    rows x = { 0 };
    cedar_run_result r;
    server_start(&v);
    play_at(&v, trace, "lanes=4 think_cap_s=0 errors_max=0.1", &x, &r);
    ck_assert_uint_ge(x.count, 10);
    ck_assert_uint_lt(x.count, 20);
    ck_assert_ptr_nonnull(strstr(x.outcomes, "cut"));
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

/* Rows 14 and 23: an endpoint that freezes, and a run that is stopped: everything on its way is reported. */
START_TEST(nothing_hangs_and_nothing_is_dropped) {
    char *trace = make_traces(8, 4, 20);
    fault_server v = { .always = FAULT_SILENT };
    rows x = { .ends = CEDAR_E_IO };        /* nothing completed */
    cedar_run_result r;
    server_start(&v);
    int64_t begin = cedar_now_ns();
    play_at(&v, trace, "lanes=8 think_cap_s=0 http_first_s=0.2 turns_max=2", &x, &r);
    ck_assert_int_lt(cedar_now_ns() - begin, 5000000000);
    ck_assert_uint_eq(x.count, 16);
    for (size_t i = 0; i < 16; i++) ck_assert_str_eq(x.http[i].error_class, "first_timeout");
    ck_assert_uint_ge(x.ticks, 3);          /* also while nothing ends */
    rows_free(&x);
    server_forget(&v);

    static const fault mix[] = { FAULT_DRIP, FAULT_NONE };      /* some are on their way when others end */
    fault_server w = { .script = mix, .script_count = 2, .drip_ns = 20000000 };
    rows y = { .stop_at = 4 };
    server_start(&w);
    play_at(&w, trace, "lanes=8 think_cap_s=0 http_concurrent_max=5", &y, &r);
    ck_assert_str_eq(y.status, "interrupted");
    ck_assert_uint_ge(y.unfinished, 3);
    ck_assert_uint_eq(y.cut_sessions, 8);
    ck_assert_uint_le(w.answering_max, 5);
    uint64_t cut = 0;
    for (size_t i = 0; i < y.count; i++) cut += strncmp(y.requests[i].error, "cut: ", 5) == 0;
    ck_assert_uint_eq(cut, y.unfinished);
    ck_assert_uint_ge(y.count, 4 + y.unfinished);
    uint64_t sent = 0, flying = 0;
    for (size_t i = 0; i < y.count; i++) {
        sent += y.http[i].endpoint != 0;
        flying += y.http[i].endpoint && strcmp(y.http[i].error_class, "cut") == 0;
    }
    ck_assert_uint_ge(sent, w.logged);      /* what has reached the endpoint is there */
    ck_assert_uint_ge(flying, 2);
    rows_free(&y);
    server_forget(&w);
    drop_traces(trace);
}
END_TEST

/* Warm-up, primers, duration and recycling in real time; think time is waited for. */
START_TEST(agentx_rules_in_real_time) {
    char *trace = make_traces(3, 6, 4);
    fault_server v = { 0 };
    rows x = { 0 };
    cedar_run_result r;
    server_start(&v);
    int64_t begin = cedar_now_ns();
    play_at(&v, trace, "rules=agentx unsafe_override=true lanes=2 warmup_requests=2 duration_s=2 time_scale=0.1 "
            "primers=burst", &x, &r);
    int64_t took = cedar_now_ns() - begin;
    uint64_t primers = 0, warmups = 0;
    int64_t last = 0, first = INT64_MAX;
    for (size_t i = 0; i < x.count; i++) {
        const cedar_request_row *q = &x.requests[i];
        primers += strcmp(q->phase, "primer") == 0;
        warmups += strcmp(q->phase, "warmup") == 0;
        ck_assert_uint_eq(x.http[i].out_asked, strcmp(q->phase, "profiling") ? 1 : 4);
        if (strcmp(q->phase, "profiling")) continue;
        if (q->arrival_sched_ns > last) last = q->arrival_sched_ns;
        if (q->arrival_sched_ns < first) first = q->arrival_sched_ns;
    }
    ck_assert_uint_eq(primers, 2);
    ck_assert_uint_eq(warmups, 4);
    ck_assert_int_lt(last - first, 2000000000);
    /* a delay of 0.1 s, again and again until the end; a busy machine may hold up the last for a while */
    ck_assert_int_gt(last - first, 1000000000);
    ck_assert_int_gt(took, 1900000000);
    ck_assert_uint_ge(x.sessions, 3);
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

/* Sessions stay where they are, and two endpoints share them. */
START_TEST(sessions_are_sticky) {
    char *trace = make_traces(6, 4, 3), urls[128];
    fault_server v[2] = { { 0 }, { 0 } };
    rows x = { 0 };
    cedar_run_result r;
    server_start(&v[0]);
    server_start(&v[1]);
    snprintf(urls, sizeof urls, "http://127.0.0.1:%d,http://localhost:%d/v1", v[0].port, v[1].port);
    OK(play(trace, urls, "lanes=6 think_cap_s=0.01", &x, &r, &failure));
    server_stop(&v[0]);
    server_stop(&v[1]);
    ck_assert_uint_eq(v[0].logged, 12);
    ck_assert_uint_eq(v[1].logged, 12);
    for (size_t i = 0; i < 12; i++)
        for (size_t k = 0; k < 12; k++) ck_assert_str_ne(v[0].log[i].session, v[1].log[k].session);
    for (size_t i = 0; i < x.count; i++) {
        ck_assert_uint_eq(x.requests[i].engine, x.http[i].endpoint);
        for (size_t k = 0; k < x.count; k++)
            if (x.requests[i].session_id == x.requests[k].session_id)
                ck_assert_uint_eq(x.requests[i].engine, x.requests[k].engine);
    }
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v[0]);
    server_forget(&v[1]);
}
END_TEST

/* --- TLS ---------------------------------------------------------------------------------------------------------- */

/* tests/tls_front.py in front of a server. */
typedef struct front {
    pid_t pid;
    FILE *said;
    int port;
    unsigned used, refused;                 /* connections, when it has been stopped */
} front;

static char certificates[] = "/tmp/cedar-tls-XXXXXX";

static void make_certificates(void) {
    char command[64];
    ck_assert_ptr_nonnull(mkdtemp(certificates));
    snprintf(command, sizeof command, "tests/tls_front.py %s", certificates);
    ck_assert_int_eq(system(command), 0);
}

static void drop_certificates(void) {
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", certificates);
    ck_assert_int_eq(system(command), 0);
}

/* shown: name of the certificate. */
static void front_start(front *f, const char *shown, int port_behind) {
    char path[] = "tests/tls_front.py", name[16], port[16];
    snprintf(name, sizeof name, "%s", shown);
    snprintf(port, sizeof port, "%d", port_behind);
    char *args[] = { path, certificates, name, port, NULL };
    int ends[2];
    posix_spawn_file_actions_t files;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[1], 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 1);
    ck_assert_int_eq(posix_spawn(&f->pid, path, &files, NULL, args, environ), 0);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    f->said = fdopen(ends[0], "r");
    ck_assert_int_eq(fscanf(f->said, "%d", &f->port), 1);
    ck_assert_int_eq(fgetc(f->said), '\n');
}

static void front_stop(front *f) {
    char line[16];
    shutdown(fileno(f->said), SHUT_WR);
    while (fgets(line, sizeof line, f->said)) {
        f->used += strcmp(line, "used\n") == 0;
        f->refused += strcmp(line, "refused\n") == 0;
    }
    fclose(f->said);
    ck_assert_int_eq(waitpid(f->pid, NULL, 0), f->pid);
}

/* Streams arrive as they are sent, faults are what they are without TLS, and nothing is sent twice. Trusted is the
 * authority, or the endpoint's certificate itself. An end without TLS's goodbye, where nothing else says how long the
 * answer is, is a good one for libcurl 7.88, so that the stream has to say that it is none; 8.14 calls it an error. */
START_TEST(https_is_as_http) {
    static const fault script[] = { FAULT_NONE, FAULT_DRIP, FAULT_SPLIT, FAULT_LONG_EVENT, FAULT_RESET, FAULT_NONE,
                                    FAULT_CLOSE, FAULT_UNFRAMED, FAULT_400, FAULT_NONE };
    enum { COUNT = sizeof script / sizeof *script };
    char *trace = make_traces(1, COUNT, 10), url[64], settings[256];
    fault_server v = { .script = script, .script_count = COUNT, .drip_ns = 20000000 };
    front f = { 0 };
    rows x = { 0 };
    cedar_run_result r;
    setenv("CEDAR_TEST_KEY", "sk-secret", 1);
    server_start(&v);
    front_start(&f, "good", v.port);
    snprintf(url, sizeof url, "https://127.0.0.1:%d", f.port);
    snprintf(settings, sizeof settings, "lanes=1 http_api=completions think_cap_s=0 http_metrics=true "
             "http_key=env:CEDAR_TEST_KEY http_ca_file=%s/%s.pem", certificates, _i ? "good" : "authority");
    play_url(&v, url, trace, settings, &x, &r);
    front_stop(&f);
    ck_assert_str_eq(x.status, "finished");
    ck_assert_uint_eq(x.count, COUNT);
    ck_assert_uint_eq(v.logged, COUNT);
    ck_assert_uint_eq(x.metrics, 4);
    for (size_t i = 0; i < COUNT; i++) {
        const char *class_ = x.http[i].error_class;
        bool noticed = script[i] == FAULT_UNFRAMED && strcmp(class_, "reset") == 0;
        ck_assert_msg(noticed || strcmp(class_, fault_class[script[i]]) == 0, "%zu: class %s: %s", i, class_,
                      x.requests[i].error);
        ck_assert_str_eq(v.log[i].key, "Bearer sk-secret");
    }
    ck_assert_int_ge(x.requests[1].first_ns - x.requests[1].admit_ns, v.drip_ns);
    ck_assert_int_ge(x.requests[1].last_ns - x.requests[1].first_ns, v.drip_ns * 3);
    ck_assert_uint_eq(f.used, 2 + 4);           /* of the metrics; of requests, anew behind each that was cut */
    ck_assert_uint_eq(f.refused, 0);
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

/* Two requests that must fail without a connection; the run's error is in `failure`. */
static void fail_to_connect(const char *url, const char *settings) {
    char *trace = make_traces(1, 2, 3);
    rows x = { 0 };
    cedar_run_result r;
    failure = (cedar_err){ 0 };
    ck_assert_int_eq(play(trace, url, settings, &x, &r, &failure), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(failure.msg, "2 failed, 2 of them of class connect, for example: no connection"));
    ck_assert_uint_eq(x.count, 2);
    for (size_t i = 0; i < 2; i++) ck_assert_str_eq(x.http[i].error_class, "connect");
    rows_free(&x);
    drop_traces(trace);
}

/* The same before a run that reads the endpoint's metrics. */
static void fail_metrics(const char *url, const char *settings) {
    char *trace = make_traces(1, 1, 1), with_metrics[300];
    rows x = { 0 };
    cedar_run_result r;
    failure = (cedar_err){ 0 };
    snprintf(with_metrics, sizeof with_metrics, "%s http_metrics=true", settings);
    ck_assert_int_eq(play(trace, url, with_metrics, &x, &r, &failure), CEDAR_E_IO);
    ck_assert_uint_eq(x.count, 0);
    rows_free(&x);
    drop_traces(trace);
}

static void says_certificate(const char *message, const char *reason) {
    const char *const parts[] = { "TLS: ", reason, "certificate must", "http_ca_file" };
    for (size_t i = 0; i < 4; i++) ck_assert_msg(strstr(message, parts[i]) != NULL, "%s", message);
    for (const char *s = message; *s; s++) ck_assert_msg(isprint((unsigned char)*s), "%s", message);
}

/* Nothing is sent to an endpoint whose certificate is not good, and the environment does not make it good. */
START_TEST(certificates_are_checked) {
    static const struct { const char *shown, *trusted, *host, *reason; } bad[] = {
        { "good", NULL, "127.0.0.1", "issuer" }, { "good", "other", "127.0.0.1", "issuer" },
        { "good", "authority", "localhost", "subject name" }, { "expired", "authority", "127.0.0.1", "expired" },
        { "odd", "authority", "127.0.0.1", "subject name" } };
    char url[64], settings[256] = "think_cap_s=0", authority[64];
    fault_server v = { 0 };
    front f = { 0 };
    snprintf(authority, sizeof authority, "%s/authority.pem", certificates);
    setenv("SSL_CERT_FILE", authority, 1);
    setenv("CURL_CA_BUNDLE", authority, 1);
    server_start(&v);
    front_start(&f, bad[_i].shown, v.port);
    snprintf(url, sizeof url, "https://%s:%d", bad[_i].host, f.port);
    if (bad[_i].trusted)
        snprintf(settings, sizeof settings, "think_cap_s=0 http_ca_file=%s/%s.pem", certificates, bad[_i].trusted);
    fail_to_connect(url, settings);
    says_certificate(failure.msg, bad[_i].reason);
    fail_metrics(url, settings);
    says_certificate(failure.msg, bad[_i].reason);
    front_stop(&f);
    server_stop(&v);
    ck_assert_uint_eq(v.logged, 0);
    ck_assert_uint_eq(f.used, 0);
    ck_assert_uint_eq(f.refused, 2 + 1);
    server_forget(&v);
}
END_TEST

/* A server without TLS, and handshakes that are cut or never end: once for each request, and not without TLS then. */
START_TEST(https_needs_tls) {
    fault_server v = { .hello = (ending)_i };
    char url[64];
    server_start(&v);
    snprintf(url, sizeof url, "https://127.0.0.1:%d", v.port);
    fail_to_connect(url, "think_cap_s=0 http_connect_s=0.3");
    ck_assert_msg(strstr(failure.msg, "TLS") != NULL, "%s", failure.msg);
    server_stop(&v);
    ck_assert_uint_eq(v.taken, 2);
    ck_assert_uint_eq(v.logged, 0);
    server_forget(&v);
}
END_TEST

START_TEST(https_is_not_redirected) {
    static const fault script[] = { FAULT_302, FAULT_NONE };
    char *trace = make_traces(1, 2, 3), url[64], elsewhere[64], settings[256];
    fault_server v = { .script = script, .script_count = 2, .elsewhere = elsewhere }, w = { 0 };
    front f = { 0 };
    rows x = { 0 };
    cedar_run_result r;
    server_start(&w);
    snprintf(elsewhere, sizeof elsewhere, "http://127.0.0.1:%d", w.port);
    server_start(&v);
    front_start(&f, "good", v.port);
    snprintf(url, sizeof url, "https://127.0.0.1:%d", f.port);
    snprintf(settings, sizeof settings, "lanes=1 think_cap_s=0 http_ca_file=%s/authority.pem", certificates);
    play_url(&v, url, trace, settings, &x, &r);
    front_stop(&f);
    server_stop(&w);
    ck_assert_str_eq(x.http[0].error_class, "http_4xx");
    ck_assert_int_eq(x.http[0].status, 302);
    ck_assert_str_eq(x.http[1].error_class, "");
    ck_assert_uint_eq(w.taken, 0);
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
    server_forget(&w);
}
END_TEST

/* What can be said of http_ca_file before the first request is said then. */
START_TEST(authorities_must_be_there) {
    static const struct { const char *file; cedar_status status; } bad[] = { { "none.pem", CEDAR_E_IO },
                                                                             { "server.key", CEDAR_E_FORMAT },
                                                                             { ".", CEDAR_E_IO },
                                                                             { "pipe", CEDAR_E_IO } };
    char *trace = make_traces(1, 1, 1), settings[256];
    snprintf(settings, sizeof settings, "%s/pipe", certificates);
    ck_assert_int_eq(mkfifo(settings, 0600), 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rows x = { 0 };
        cedar_run_result r;
        cedar_err err = { 0 };
        snprintf(settings, sizeof settings, "http_ca_file=%s/%s", certificates, bad[i].file);
        ck_assert_int_eq(play(trace, "https://127.0.0.1:1", settings, &x, &r, &err), bad[i].status);
        ck_assert_msg(strstr(err.msg, "http_ca_file: ") && strstr(err.msg, bad[i].file), "%s", err.msg);
        ck_assert_uint_eq(x.count, 0);
        rows_free(&x);
    }
    drop_traces(trace);
}
END_TEST

START_TEST(authorities_must_be_whole) {
    char settings[256], url[64], path[64];
    fault_server v = { 0 };
    snprintf(path, sizeof path, "%s/broken.pem", certificates);
    FILE *broken = fopen(path, "w");
    ck_assert_ptr_nonnull(broken);
    fputs("-----BEGIN CERTIFICATE-----\nhalf of\n", broken);
    fclose(broken);
    server_start(&v);
    snprintf(url, sizeof url, "https://127.0.0.1:%d", v.port);
    snprintf(settings, sizeof settings, "think_cap_s=0 http_ca_file=%s", path);
    fail_to_connect(url, settings);
    ck_assert_msg(strstr(failure.msg, "TLS: ") && strstr(failure.msg, "broken.pem"), "%s", failure.msg);
    server_stop(&v);
    server_forget(&v);
}
END_TEST

/* --- all at once, into a database --------------------------------------------------------------------------------- */

static int64_t number_of(sqlite3 *db, const char *sql) {
    sqlite3_stmt *q;
    ck_assert_msg(sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    ck_assert_int_eq(sqlite3_step(q), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

/* Random faults: what the server did is what the database has, class by class. */
START_TEST(every_request_is_accounted_for) {
    int64_t requests = _i ? 10000 : 1500;
    char *trace = make_traces(50, 8, 6), url[64], settings[256], sql[256];
    fault_server v = { .random = cedar_rng_key((uint64_t)_i, "faults") };
    server_start(&v);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", v.port);
    snprintf(settings, sizeof settings, "lanes=%d http_api=completions http_vocab=300 think_cap_s=0 recycle=true "
             "requests_max=%d http_first_s=2 http_stall_s=2 http_total_s=60", _i ? 150 : 60, (int)requests);
    cedar_run_opts *o = make_opts(trace, url, settings);
    cedar_store *store;
    char path[64];
    snprintf(path, sizeof path, "/tmp/cedar-http-%d.db", (int)getpid());
    OK(cedar_store_create(path, true, &store, &failure));
    cedar_run_host host = { .observer = cedar_store_observer(store), .data_dir = "." };
    cedar_run_result r = { 0 };
    cedar_manifest_row m = { "0", "", false, "", "", "x", "y", "z", "[]", "{}", "now", 1 };
    OK(host.observer->manifest(host.observer->self, &m, &failure));
    int64_t live = cedar_mem_live();
    OK(cedar_run(o, 1, &host, &r, &failure));
    ck_assert_int_eq(cedar_mem_live(), live);
    OK(cedar_store_close(store, true, &failure));
    cedar_opts_free(o);
    server_stop(&v);
    sqlite3 *db;
    ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
    ck_assert_int_eq((int64_t)v.logged, requests);
    ck_assert_int_eq(number_of(db, "SELECT COUNT(*) FROM requests"), requests);
    ck_assert_int_eq(number_of(db, "SELECT COUNT(*) FROM http_requests JOIN requests USING (run_id, request_id)"),
                     requests);
    ck_assert_int_eq(number_of(db, "SELECT requests FROM runs"), requests);
    int64_t good = 0;
    for (int f = 0; f < FAULT_COUNT; f++) {
        int64_t count = 0, same = 0;
        for (size_t i = 0; i < v.logged; i++) {
            count += v.log[i].what == (fault)f;
            same += strcmp(fault_class[v.log[i].what], fault_class[f]) == 0;
        }
        if (f != FAULT_ENDLESS) ck_assert_msg(count > 5, "fault %d came %d times", f, (int)count);
        if (f < FAULT_GOOD_COUNT) good += count;
        snprintf(sql, sizeof sql, "SELECT COUNT(*) FROM http_requests WHERE error_class = '%s'", fault_class[f]);
        ck_assert_msg(number_of(db, sql) == same, "%s: %d in the database, %d at the server", fault_class[f],
                      (int)number_of(db, sql), (int)same);
    }
    ck_assert_int_eq(number_of(db, "SELECT kept FROM v_population"), good);
    ck_assert_int_eq(number_of(db, "SELECT SUM(requests_done) FROM sessions"), requests);
    sqlite3_close(db);
    unlink(path);
    drop_traces(trace);
    server_forget(&v);
}
END_TEST

/* How much longer first to last content takes by the client's clock than by the server's, on average over streams. */
static double lag_of(const fault_server *v, const rows *x) {
    double sum = 0;
    int64_t *took = calloc(x->count + 1, sizeof *took);
    ck_assert_ptr_nonnull(took);
    for (size_t i = 0; i < v->logged; i++)
        took[strtoul(strrchr(v->log[i].request, '-') + 1, NULL, 10)] = v->log[i].last_ns - v->log[i].first_ns;
    for (size_t i = 0; i < x->count; i++)
        sum += (double)(x->requests[i].last_ns - x->requests[i].first_ns - took[x->requests[i].request_id]);
    free(took);
    return sum / (double)x->count;
}

/* All streams at one time, every one with its tokens. */
START_TEST(many_streams) {
    int lanes = _i ? 2000 : 300;
    char *trace = make_traces(10, 1, 20), settings[128];
    fault_server v = { .always = FAULT_DRIP, .drip_ns = _i ? 200000000 : 100000000 };
    rows x = { 0 };
    cedar_run_result r;
    server_start(&v);
    snprintf(settings, sizeof settings, "lanes=%d passes=%d think_cap_s=0 http_concurrent_max=%d", lanes, lanes / 10,
             lanes);
    int64_t begin = cedar_now_ns();
    play_at(&v, trace, settings, &x, &r);
    int64_t took = cedar_now_ns() - begin;
    ck_assert_uint_eq(r.requests, (uint64_t)lanes);
    ck_assert_uint_eq(r.errors, 0);
    ck_assert_uint_eq(r.out_tokens, (uint64_t)lanes * 20);
    ck_assert_uint_eq(v.answering_max, (uint32_t)lanes);
    printf("%d streams at one time: %.2f s, ttft p50 %.1f p90 %.1f ms, itl p50 %.2f p90 %.2f ms; from first to last "
           "content on average %.3f ms more than the server's clock says\n", lanes, (double)took / 1e9, r.ttft_p50_ms,
           r.ttft_p90_ms, r.itl_p50_ms, r.itl_p90_ms, lag_of(&v, &x) / 1e6);
    drop_traces(trace);
    rows_free(&x);
    server_forget(&v);
}
END_TEST

/* --- options ------------------------------------------------------------------------------------------------------ */

START_TEST(what_cannot_be_honoured_is_refused) {
    static const struct { const char *settings, *message; } bad[] = {
        { "quality=true", "quality" }, { "replay=both", "replay" }, { "clock=measured", "need each other" },
        { "clock=modelled", "need each other" }, { "engines=2", "engines" }, { "hardware=h200", "hardware" },
        { "continuation=greedy", "continuation" }, { "routing=prefix", "routing" }, { "http_vocab=100", "completions" },
        { "endpoints=ftp://x", "endpoints" }, { "endpoints=http://u:p@host", "endpoints" },
        { "endpoints=http://a,,http://b", "endpoints" },
        { "endpoints=http://", "endpoints" }, { "endpoints=http://[::1", "endpoints" },
        { "endpoints=http://a:99999", "endpoints" }, { "endpoints=http://a:x", "endpoints" },
        { "endpoints=http://:80", "endpoints" }, { "endpoints=http:///v1", "endpoints" },
        { "endpoints=http://a?", "endpoints" }, { "endpoints=http://a,http://b:-1", "endpoints" },
        { "http_session_headers=a:b", "http_session_headers" },
        { "http_session_headers=a,", "http_session_headers" },
        { "http_session_headers=a,host", "http_session_headers" },
        { "http_session_headers=authorization", "http_session_headers" },
        { "http_session_headers=a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p", "http_session_headers" },
        { "http_session_headers=a23456789-b23456789-c23456789-d23456789-e23456789-f23456789-g23456789-h23456789-x",
          "http_session_headers" },
        { "http_ca_file=ca.pem", "https" }, { "floor_mode=admit floor_tok_s_user=10", "floor_mode" } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cedar_run_opts *o = make_opts("traces", "http://127.0.0.1:1", bad[i].settings);
        cedar_err err = { 0 };
        ck_assert_msg(cedar_opts_check(o, &err) == CEDAR_E_ARG, "%s", bad[i].settings);
        ck_assert_msg(strstr(err.msg, bad[i].message) != NULL && !strstr(err.msg, "u:p"), "%s", err.msg);
        cedar_opts_free(o);
    }
    static const char *const only_http[][2] = { { "clock", "wall" }, { "endpoints", "http://a" },
                                                { "http_key", "env:A" }, { "http_ignore_eos", "false" } };
    for (size_t i = 0; i < sizeof only_http / sizeof *only_http; i++) {
        cedar_run_opts *o = NULL;
        OK(cedar_opts_new(&o, &failure));
        OK(cedar_opts_set(o, "trace", "traces", &failure));
        OK(cedar_opts_set(o, only_http[i][0], only_http[i][1], &failure));
        ck_assert_int_eq(cedar_opts_check(o, &failure), CEDAR_E_ARG);
        cedar_opts_free(o);
    }
}
END_TEST

START_TEST(the_backend_brings_its_clock) {
    cedar_run_opts *o = NULL;
    OK(cedar_opts_new(&o, &failure));
    OK(cedar_opts_set(o, "backend", "http", &failure));
    ck_assert_str_eq(cedar_opts_get(o, "clock"), "wall");
    OK(cedar_opts_set(o, "backend", "cpu", &failure));
    ck_assert_str_eq(cedar_opts_get(o, "clock"), "measured");
    OK(cedar_opts_set(o, "clock", "modelled", &failure));
    OK(cedar_opts_set(o, "backend", "http", &failure));
    ck_assert_str_eq(cedar_opts_get(o, "clock"), "modelled");
    cedar_err err = { 0 };
    ck_assert_int_eq(cedar_opts_set(o, "http_key", "sk-secret", &err), CEDAR_E_ARG);
    ck_assert_ptr_null(strstr(err.msg, "sk-secret"));
    ck_assert_str_eq(cedar_opts_get(o, "http_key"), "");
    cedar_opts_free(o);
}
END_TEST

START_TEST(bad_bodies_are_refused) {
    char *trace = make_traces(1, 1, 1);
    static const char *const bodies[] = { "{", "[1]", "{\"model\":\"x\"}", "{\"stream\":false}", "{\"a\":1,\"a\":2}",
                                          "{\"n\":2}", "{\"ignore_eos\":false}", "{\"max_completion_tokens\":9}" };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        rows x = { 0 };
        cedar_run_result r;
        char settings[64];
        snprintf(settings, sizeof settings, "http_body=%s", bodies[i]);
        cedar_err err = { 0 };
        ck_assert_msg(play(trace, "http://127.0.0.1:1", settings, &x, &r, &err) == CEDAR_E_ARG, "%s", bodies[i]);
        ck_assert_ptr_nonnull(strstr(err.msg, "http_body"));
        rows_free(&x);
    }
    drop_traces(trace);
}
END_TEST

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    Suite *s = suite_create("http");
    TCase *t = tcase_create("http"), *tls = tcase_create("tls"), *slow = tcase_create("slow");
    tcase_set_timeout(t, 120);
    tcase_set_timeout(tls, 60);
    tcase_set_timeout(slow, 300);
    tcase_add_loop_test(t, events_do_not_depend_on_packets, 0, sizeof streams / sizeof *streams);
#ifndef CEDAR_SANITIZED
    tcase_add_test(t, the_clock_is_set_back);
#endif
    tcase_add_test(t, streams_have_bounds);
    tcase_add_test(t, what_counts_as_content);
    tcase_add_test(t, answers_are_read);
    tcase_add_test(t, error_texts_are_clean);
    tcase_add_test(t, texts_hold_no_part_of_the_key);
    tcase_add_test(t, prometheus_samples);
    tcase_add_test(t, keys_come_from_elsewhere);
    tcase_add_test(t, a_run_of_token_ids);
    tcase_add_test(t, runs_do_not_hit_each_other);
    tcase_add_test(t, a_run_of_messages);
    tcase_add_loop_test(t, each_fault_is_what_it_is, 0, FAULT_COUNT);
    tcase_add_test(t, times_are_those_of_content);
    tcase_add_test(t, short_answers);
    tcase_add_test(t, no_answer_is_one_token);
    tcase_add_test(t, nobody_listens);
    tcase_add_test(t, memory_runs_out);
    tcase_add_test(t, too_many_errors_end_a_run);
    tcase_add_test(t, nothing_hangs_and_nothing_is_dropped);
    tcase_add_test(t, agentx_rules_in_real_time);
    tcase_add_test(t, sessions_are_sticky);
    tcase_add_loop_test(t, every_request_is_accounted_for, 0, 1);
    tcase_add_loop_test(t, many_streams, 0, 1);
    tcase_add_test(t, what_cannot_be_honoured_is_refused);
    tcase_add_test(t, the_backend_brings_its_clock);
    tcase_add_test(t, bad_bodies_are_refused);
    tcase_add_unchecked_fixture(tls, make_certificates, drop_certificates);
    tcase_add_loop_test(tls, https_is_as_http, 0, 2);
    tcase_add_loop_test(tls, certificates_are_checked, 0, 5);
    tcase_add_loop_test(tls, https_needs_tls, END_KEEP, END_HANG + 1);
    tcase_add_test(tls, https_is_not_redirected);
    tcase_add_test(tls, authorities_must_be_there);
    tcase_add_test(tls, authorities_must_be_whole);
    tcase_add_loop_test(slow, every_request_is_accounted_for, 1, 2);
    tcase_add_loop_test(slow, many_streams, 1, 2);
    tcase_set_tags(slow, "slow");
    suite_add_tcase(s, t);
    suite_add_tcase(s, tls);
    suite_add_tcase(s, slow);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
