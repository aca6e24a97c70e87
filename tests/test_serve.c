/* The HTTP server over the engine: its parts alone, and the whole of it through raw sockets. What answers must hold is
 * taken from an engine that this file drives itself. */
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "serve/serve_int.h"

static cedar_err failure;
#define OK(call) ck_assert_msg(!(call), "%s", failure.msg)

enum { ROWS_MAX = 512, CONTEXT = 512, WAIT_S = 60 };

/* --- a server in this process ------------------------------------------------------------------------------------- */

typedef struct rig {
    cedar_config config;
    cedar_model *model;
    cedar_serve_opts opts;
    cedar_observer observer;
    cedar_server *server;
    pthread_t thread;
    bool runs;
    cedar_status st;
    cedar_err err;
    /* written by the engine thread, read once it has ended */
    cedar_request_row rows[ROWS_MAX];
    char ids[ROWS_MAX][64];
    uint32_t row_count, step_count, ticks;
    uint64_t step_rows;
    uint32_t fail_at_step;          /* the observer fails there; 0 = never */
} rig;

static cedar_status keep_request(void *self, const cedar_request_row *row, cedar_err *err) {
    rig *r = self;
    (void)err;
    if (r->row_count == ROWS_MAX) abort();
    snprintf(r->ids[r->row_count], sizeof r->ids[0], "%s", row->trace_id);
    r->rows[r->row_count++] = *row;
    return CEDAR_OK;
}

static cedar_status keep_step(void *self, const cedar_step_row *row, cedar_err *err) {
    rig *r = self;
    r->step_count++;
    r->step_rows += row->rows;
    if (row->step_id != r->step_count || row->end_ns < row->start_ns) abort();
    if (r->fail_at_step && r->step_count == r->fail_at_step) return cedar_fail(err, CEDAR_E_IO, "the disk is full");
    return CEDAR_OK;
}

static cedar_status keep_tick(void *self, cedar_err *err) {
    rig *r = self;
    (void)err;
    r->ticks++;
    return CEDAR_OK;
}

/* The model tiny with `eos` as the id that ends answers, and a server's usual options. */
static rig *rig_new(int32_t eos) {
    rig *r = calloc(1, sizeof *r);
    OK(cedar_config_load("scenarios/models/tiny.json", &r->config, &failure));
    r->config.eos = eos;
    OK(cedar_model_synth(&r->config, 1, 1u << 30, &r->model, &failure));
    cedar_engine_opts e = cedar_engine_defaults(&r->config);
    e.backend = "cpu";
    e.arith = CEDAR_F32;
    e.threads = 1;
    e.page_tokens = 8;
    e.page_count = 8 * CONTEXT / 8;
    e.seq_count = e.step_seqs = 8;
    e.context_tokens = CONTEXT;
    e.step_rows = 64;
    e.verify_rows = 0;
    r->opts = (cedar_serve_opts){ .model = r->model, .name = "tiny", .engine = e,
                                  .rules = { .window = (uint32_t)r->config.window,
                                             .encoder_rows = (uint32_t)r->config.window,
                                             .decoder_rows = (uint32_t)r->config.window },
                                  .prefix_cache = true, .seed = 42, .address = "127.0.0.1", .body_bytes_max = 1 << 20,
                                  .connections_max = 256, .queue_max = 64, .grace_ns = 60000000000, .run_id = 1 };
    r->observer = (cedar_observer){ .self = r, .request = keep_request, .step = keep_step,
                                    .tick = keep_tick };
    r->opts.observer = &r->observer;
    return r;
}

static void *run_rig(void *self) {
    rig *r = self;
    r->st = cedar_serve_run(r->server, NULL, &r->err);
    return NULL;
}

static void rig_open(rig *r) { OK(cedar_serve_open(&r->opts, &r->server, &failure)); }

static void rig_run(rig *r) {
    r->runs = true;
    ck_assert_int_eq(pthread_create(&r->thread, NULL, run_rig, r), 0);
}

static rig *rig_start(void) {
    rig *r = rig_new(-1);
    rig_open(r);
    rig_run(r);
    return r;
}

/* Stops and waits; rows are there afterwards. */
static void rig_stop(rig *r) {
    if (!r->runs) return;
    r->runs = false;
    cedar_serve_stop(r->server);
    pthread_join(r->thread, NULL);
}

static void rig_free(rig *r) {
    rig_stop(r);
    OK(cedar_serve_close(r->server, &failure));
    cedar_model_close(r->model);
    ck_assert_int_eq(cedar_mem_live(), 0);
    free(r);
}

/* --- a client ----------------------------------------------------------------------------------------------------- */

static int dial(const rig *r) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(cedar_serve_port(r->server)),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct timeval wait = { .tv_sec = WAIT_S };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    ck_assert_msg(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "connect: %s", strerror(errno));
    return fd;
}

static void say(int fd, const char *text, size_t bytes) {
    while (bytes) {
        ssize_t n = send(fd, text, bytes, MSG_NOSIGNAL);
        ck_assert_msg(n > 0, "send: %s", strerror(errno));
        text += n;
        bytes -= (size_t)n;
    }
}

/* A request as text, to be freed. */
static char *compose(const char *method, const char *path, const char *headers, const char *body) {
    char *out;
    ck_assert_int_gt(asprintf(&out, "%s %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n%s", method, path,
                              headers, strlen(body), body), 0);
    return out;
}

/* All that comes until the other side closes, to be freed. */
static char *hear(int fd) {
    size_t bytes = 0, capacity = 4096;
    char *out = malloc(capacity);
    for (;;) {
        if (bytes + 1 == capacity) out = realloc(out, capacity *= 2);
        ssize_t n = recv(fd, out + bytes, capacity - bytes - 1, 0);
        ck_assert_msg(n >= 0 || errno == ECONNRESET, "recv: %s", strerror(errno));
        if (n <= 0) break;
        bytes += (size_t)n;
    }
    out[bytes] = 0;
    return out;
}

typedef struct reply { int status; char *all, *body; } reply;

static void reply_free(reply *a) { free(a->all); }

/* Undoes chunked encoding in place. */
static void join_chunks(char *body) {
    char *to = body;
    for (const char *at = body;;) {
        char *end;
        size_t n = strtoul(at, &end, 16);
        if (!n || strncmp(end, "\r\n", 2)) break;
        memmove(to, end + 2, n);
        to += n;
        at = end + 2 + n + 2;
    }
    *to = 0;
}

static reply finish_reply(int fd) {
    reply a = { .all = hear(fd) };
    close(fd);
    char *end = strstr(a.all, "\r\n\r\n");
    ck_assert_msg(sscanf(a.all, "HTTP/1.1 %d", &a.status) == 1 && end, "no HTTP answer: %.200s", a.all);
    a.body = end + 4;
    *end = 0;
    if (strcasestr(a.all, "transfer-encoding: chunked")) join_chunks(a.body);
    return a;
}

static int start(const rig *r, const char *path, const char *body) {
    int fd = dial(r);
    char *text = compose("POST", path, "Connection: close\r\nX-Request-Id: mine\r\n", body);
    say(fd, text, strlen(text));
    free(text);
    return fd;
}

static reply ask(const rig *r, const char *method, const char *path, const char *body) {
    int fd = dial(r);
    char *text = compose(method, path, "Connection: close\r\n", body);
    say(fd, text, strlen(text));
    free(text);
    return finish_reply(fd);
}

static reply post(const rig *r, const char *path, const char *body) { return ask(r, "POST", path, body); }

static json_t *parse_json(const char *text) {
    json_error_t why;
    json_t *o = json_loads(text, 0, &why);
    ck_assert_msg(o != NULL, "%s in %.300s", why.text, text);
    return o;
}

/* What an answer, streamed or not, comes to. */
typedef struct result {
    char text[CONTEXT * SERVE_TOKEN_BYTES + 1];
    char finish[16];
    int64_t prompt, completion, cached;
    uint32_t chunks;                /* with text */
    bool done, role;
} result;

static void read_usage(const json_t *o, result *out) {
    const json_t *u = json_object_get(o, "usage");
    if (!json_is_object(u)) return;
    out->prompt = json_integer_value(json_object_get(u, "prompt_tokens"));
    out->completion = json_integer_value(json_object_get(u, "completion_tokens"));
    ck_assert_int_eq(json_integer_value(json_object_get(u, "total_tokens")), out->prompt + out->completion);
    out->cached = json_integer_value(json_object_get(json_object_get(u, "prompt_tokens_details"), "cached_tokens"));
}

static void read_choice(const json_t *o, result *out) {
    const json_t *c = json_array_get(json_object_get(o, "choices"), 0);
    const json_t *message = json_object_get(c, "message"), *delta = json_object_get(c, "delta");
    const char *text = json_string_value(json_object_get(message ? message : delta ? delta : c,
                                                         message || delta ? "content" : "text"));
    const char *finish = json_string_value(json_object_get(c, "finish_reason"));
    if (json_object_get(delta, "role")) {
        ck_assert(!out->role && !out->chunks);      /* it comes first, once */
        out->role = true;
    }
    if (text && *text) out->chunks++;
    if (text) strcat(out->text, text);
    if (finish) snprintf(out->finish, sizeof out->finish, "%s", finish);
    read_usage(o, out);
}

static result read_events(const char *body) {
    result out = { .prompt = -1 };
    for (const char *at = body, *end; (end = strstr(at, "\n\n")); at = end + 2) {
        ck_assert_msg(strncmp(at, "data: ", 6) == 0 && !out.done, "%.100s", at);
        if (strncmp(at + 6, "[DONE]", 6) == 0) {
            out.done = true;
            continue;
        }
        char *one = strndup(at + 6, (size_t)(end - at - 6));
        json_t *o = parse_json(one);
        read_choice(o, &out);
        json_decref(o);
        free(one);
    }
    return out;
}

static result read_answer(reply *a) {
    ck_assert_msg(a->status == 200, "%d: %s", a->status, a->body);
    if (strcasestr(a->all, "text/event-stream")) {
        result out = read_events(a->body);
        reply_free(a);
        return out;
    }
    result out = { .prompt = -1 };
    json_t *o = parse_json(a->body);
    read_choice(o, &out);
    json_decref(o);
    reply_free(a);
    return out;
}

static result get_result(const rig *r, const char *path, const char *body) {
    reply a = post(r, path, body);
    return read_answer(&a);
}

#define PLAIN "/v1/completions"
#define CHAT "/v1/chat/completions"

static void expect_refusal(reply *a, int status, const char *param, const char *code) {
    ck_assert_msg(a->status == status, "%d instead of %d: %s", a->status, status, a->body);
    json_t *o = parse_json(a->body), *e = json_object_get(o, "error");
    ck_assert_int_gt((int)json_string_length(json_object_get(e, "message")), 5);
    ck_assert(json_is_string(json_object_get(e, "type")));
    const char *has = json_string_value(json_object_get(e, "param"));
    if (param) ck_assert_msg(has && strcmp(has, param) == 0, "%s", a->body);
    has = json_string_value(json_object_get(e, "code"));
    if (code) ck_assert_msg(has && strcmp(has, code) == 0, "%s", a->body);
    json_decref(o);
    reply_free(a);
}

/* The value of a metric's first line, -1 when there is none. */
static double metric(const rig *r, const char *name) {
    reply a = ask(r, "GET", "/metrics", "");
    ck_assert_int_eq(a.status, 200);
    double out = -1;
    for (char *line = strtok(a.body, "\n"); line && out < 0; line = strtok(NULL, "\n"))
        if (strncmp(line, name, strlen(name)) == 0) out = atof(strrchr(line, ' '));
    reply_free(&a);
    return out;
}

/* Waits until a metric has the value. */
static void await_metric(const rig *r, const char *name, double value) {
    for (int i = 0; i < WAIT_S * 100; i++) {
        if (metric(r, name) == value) return;
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    ck_abort_msg("%s is %g and does not become %g", name, metric(r, name), value);
}

/* --- the peer: the same tokens from an engine driven here --------------------------------------------------------- */

/* Greedy tokens after a prompt, each from a prefill of everything before it; log_p [count, vocab] may be NULL. */
static void greedy(const rig *r, const int32_t *prompt, uint32_t n, uint32_t count, int32_t *out, double *log_p) {
    cedar_engine_opts o = r->opts.engine;
    uint32_t vocab = (uint32_t)r->config.vocab;
    int32_t tokens[CONTEXT];
    o.step_rows = CONTEXT;
    cedar_engine *e;
    OK(cedar_engine_open(r->model, &o, &e, &failure));
    float *logits = malloc(vocab * sizeof *logits);
    memcpy(tokens, prompt, n * sizeof *tokens);
    for (uint32_t i = 0; i < count; i++, n++) {
        int32_t seq, best = 0;
        OK(cedar_seq_open(e, &seq, &failure));
        OK(cedar_seq_reserve(e, seq, n, &failure));
        cedar_plan_entry entry;
        cedar_plan_rows(&r->opts.rules, CEDAR_ROWS_PREFILL, 0, n, cedar_seq_bounds(e, seq), 0, true, 1, &entry);
        entry.seq = seq;
        entry.tokens = tokens;
        cedar_step_plan plan = { .entry_count = 1, .entries = &entry };
        cedar_plan_total(&plan);
        cedar_step_out step = { .logits = logits };
        OK(cedar_engine_step(e, &plan, &step, &failure));
        cedar_seq_close(e, seq);
        double sum = 0;
        for (uint32_t v = 1; v < vocab; v++)
            if (logits[v] > logits[best]) best = (int32_t)v;
        for (uint32_t v = 0; v < vocab; v++) sum += exp((double)logits[v]);
        for (uint32_t v = 0; v < vocab && log_p; v++) log_p[i * vocab + v] = (double)logits[v] - log(sum);
        tokens[n] = out[i] = best;
    }
    free(logits);
    OK(cedar_engine_close(e, &failure));
}

/* Text of ids by the rule as docs/SERVE.md has it, written out a second time. */
static void spell(const int32_t *ids, uint32_t count, char *out) {
    for (uint32_t i = 0; i < count; i++) {
        int32_t id = ids[i];
        if (id == 9 || id == 10 || id == 13 || (id >= 32 && id <= 126)) {
            *out++ = (char)id;
            continue;
        }
        unsigned code = 0xF0000u + (unsigned)id + (id >= 65534 ? 2u : 0u);
        *out++ = (char)(0xF0 + code / 262144);
        *out++ = (char)(0x80 + code / 4096 % 64);
        *out++ = (char)(0x80 + code / 64 % 64);
        *out++ = (char)(0x80 + code % 64);
    }
    *out = 0;
}

static uint32_t characters(const char *text) {
    uint32_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xC0) != 0x80;
    return n;
}

/* Text as a JSON string, into out. */
static const char *quoted(const char *text, char *out, size_t bytes) {
    json_t *s = json_string(text);
    char *all = json_dumps(s, JSON_ENCODE_ANY);
    ck_assert_uint_lt(strlen(all), bytes);
    strcpy(out, all);
    free(all);
    json_decref(s);
    return out;
}

/* One more item of a list. */
static void add_item(char *body, size_t bytes, int item) {
    size_t n = strlen(body);
    int m = snprintf(body + n, bytes - n, ",%d", item);
    ck_assert(m > 0 && (size_t)m < bytes - n);
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

START_TEST(tokens_and_texts_give_each_other_back) {
    static const struct { int32_t id; const char *text; } known[] = {
        { 'A', "A" }, { '\n', "\n" }, { 0, "\xF3\xB0\x80\x80" }, { 127, "\xF3\xB0\x81\xBF" },
        { 0xFFFD, "\xF3\xBF\xBF\xBD" }, { 0xFFFE, "\xF4\x80\x80\x80" }, { 131067, "\xF4\x8F\xBF\xBD" } };
    char text[8] = "";
    int32_t ids[8];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        text[serve_token_text(known[i].id, text)] = 0;
        ck_assert_str_eq(text, known[i].text);
    }
    for (int32_t id = 0; id < SERVE_VOCAB_MAX; id++) {
        size_t n = serve_token_text(id, text);
        ck_assert_uint_eq(serve_tokens_encode(SERVE_VOCAB_MAX, text, n, ids), 1);
        ck_assert_int_eq(ids[0], id);
        char again[8];
        spell(&id, 1, again);
        ck_assert_mem_eq(again, text, n);
    }
    ck_assert_uint_eq(serve_tokens_encode(512, "a\xC3\xA9", 3, ids), 3);     /* no character of its own: bytes */
    ck_assert(ids[0] == 'a' && ids[1] == 0xC3 && ids[2] == 0xA9);
    size_t n = serve_token_text(512, text);
    ck_assert_uint_eq(serve_tokens_encode(512, text, n, ids), 4);            /* beyond the vocabulary */
    ck_assert_uint_eq(serve_tokens_encode(512, "\xF3\xB0\x81\x81", 4, ids), 4);     /* 'A' has one spelling only */
}
END_TEST

START_TEST(sampling_follows_the_probabilities) {
    const float two[] = { 0, 1.0986123f }, ties[] = { 1, 3, 3, 2 };          /* 1/4 and 3/4 */
    double w[4];
    int32_t heap[4];
    const uint64_t below = (uint64_t)(0.2499 * 0x1p64), above = (uint64_t)(0.2501 * 0x1p64);
#define PICK(logits, n, t, p, ban, u) serve_sample(logits, n, &(serve_choice){ t, p, ban, u }, w, heap)
    ck_assert_int_eq(PICK(ties, 4, 0, 1, -1, above), 1);                     /* the lower id */
    ck_assert_int_eq(PICK(ties, 4, 0, 1, 1, above), 2);
    ck_assert_int_eq(PICK(two, 2, 1, 1, -1, 0), 0);
    ck_assert_int_eq(PICK(two, 2, 1, 1, -1, below), 0);
    ck_assert_int_eq(PICK(two, 2, 1, 1, -1, above), 1);
    ck_assert_int_eq(PICK(two, 2, 1, 1, -1, UINT64_MAX), 1);
    ck_assert_int_eq(PICK(two, 2, 1, 1, 1, UINT64_MAX), 0);
    ck_assert_int_eq(PICK(two, 2, 1, 0.7, -1, 0), 1);                        /* 3/4 alone reach 0.7 */
    ck_assert_int_eq(PICK(two, 2, 1, 0.8, -1, 0), 0);
    ck_assert_int_eq(PICK(two, 2, 0.5, 1, -1, (uint64_t)(0.0999 * 0x1p64)), 0);      /* 1/10 and 9/10 */
    ck_assert_int_eq(PICK(two, 2, 0.5, 1, -1, (uint64_t)(0.1001 * 0x1p64)), 1);
    uint32_t first = 0;
    for (uint64_t i = 0; i < 40000; i++) first += PICK(two, 2, 1, 1, -1, cedar_rng_at(7, i)) == 0;
    ck_assert_uint_gt(first, 10000 - 400);                                   /* four deviations */
    ck_assert_uint_lt(first, 10000 + 400);
    int32_t ids[4];
    float values[4];
    ck_assert_double_eq_tol((double)serve_logprobs(two, 2, 0, 2, ids, values), log(0.25), 1e-6);
    ck_assert(ids[0] == 1 && ids[1] == 0);
    ck_assert_double_eq_tol((double)values[0], log(0.75), 1e-6);
    serve_logprobs(ties, 4, 0, 3, ids, values);
    ck_assert(ids[0] == 1 && ids[1] == 2 && ids[2] == 3);
}
END_TEST

/* Bodies, and what is wrong with them: NULL = nothing. */
static const struct body { serve_kind kind; const char *text, *param; unsigned status; } bodies[] = {
    { SERVE_COMPLETION, "{\"prompt\":\"hi\"}", NULL, 200 },
    { SERVE_COMPLETION, "{\"prompt\":[\"hi\"],\"model\":\"tiny\",\"user\":\"me\",\"n\":1,\"logit_bias\":{}}", NULL,
      200 },
    { SERVE_COMPLETION, "{\"prompt\":[[1,2]],\"top_k\":-1,\"echo\":false,\"suffix\":null,\"tools\":[]}", NULL, 200 },
    { SERVE_COMPLETION, "{\"prompt\":[1,2],\"max_tokens\":3,\"max_completion_tokens\":3}", NULL, 200 },
    { SERVE_COMPLETION, "{\"prompt\":[1],\"max_tokens\":99}", NULL, 200 },
    { SERVE_COMPLETION, "{\"prompt\":[1],\"stream\":true,\"stream_options\":{\"include_usage\":null}}", NULL, 200 },
    { SERVE_COMPLETION, "{\"prompt\":[1],\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
      "stream_options", 400 },
    { SERVE_COMPLETION, "{\"prompt\":[1],\"max_tokens\":100}", "prompt", 400 },
    { SERVE_COMPLETION, "{\"prompt\":[512]}", "prompt", 400 },
    { SERVE_COMPLETION, "{\"prompt\":[-1]}", "prompt", 400 },
    { SERVE_COMPLETION, "{\"prompt\":[1.5]}", "prompt", 400 },
    { SERVE_COMPLETION, "{\"prompt\":[]}", "prompt", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"\"}", "prompt", 400 },
    { SERVE_COMPLETION, "{\"prompt\":[\"a\",\"b\"]}", "prompt", 400 },
    { SERVE_COMPLETION, "{}", "prompt", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"messages\":[]}", "messages", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"n\":2}", "n", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"best_of\":2}", "best_of", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"echo\":true}", "echo", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"max_tokns\":2}", "max_tokns", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"max_tokens\":\"2\"}", "max_tokens", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"max_tokens\":2,\"max_completion_tokens\":3}", "max_tokens", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"max_tokens\":2,\"min_tokens\":3}", "min_tokens", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"temperature\":2.1}", "temperature", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"temperature\":true}", "temperature", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"top_p\":0}", "top_p", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"seed\":1.5}", "seed", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"seed\":99999999999999999999}", NULL, 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"stop\":[\"a\",1]}", "stop", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"stop\":\"\"}", "stop", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"top_logprobs\":1}", "top_logprobs", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"stream\":1}", "stream", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"stream_options\":{}}", "stream_options", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"x\":1}}", "stream_options", 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"model\":\"large\"}", "model", 404 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\",\"prompt\":\"b\"}", NULL, 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"a\"} x", NULL, 400 },
    { SERVE_COMPLETION, "[1]", NULL, 400 },
    { SERVE_COMPLETION, "", NULL, 400 },
    { SERVE_COMPLETION, "{\"prompt\":\"\xFF\"}", NULL, 400 },
    { SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"logprobs\":false}", NULL, 200 },
    { SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}],"
                  "\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"]}", NULL, 200 },
    { SERVE_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":null}]}", NULL, 200 },
    { SERVE_CHAT, "{\"messages\":[]}", "messages", 400 },
    { SERVE_CHAT, "{\"messages\":[{\"role\":\"me\",\"content\":\"hi\"}]}", "messages", 400 },
    { SERVE_CHAT, "{\"messages\":[{\"content\":\"hi\"}]}", "messages", 400 },
    { SERVE_CHAT, "{\"messages\":[7]}", "messages", 400 },
    { SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages", 400 },
    { SERVE_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]}]}", "messages", 400 },
    { SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{}]}", "tools", 400 },
    { SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":2}", "top_logprobs", 400 },
    { SERVE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"json\"}}",
      "response_format", 400 },
};

START_TEST(bodies_are_taken_or_refused_with_the_field) {
    const struct body *b = &bodies[_i];
    const serve_shape shape = { "tiny", 512, 100 };
    serve_request req;
    serve_refusal why = { 0 };
    bool good = serve_parse(b->kind, &shape, b->text, strlen(b->text), &req, &why);
    ck_assert_msg(good == (b->status == 200), "%s: %s", b->text, why.message);
    if (good) cedar_free(req.tokens);
    else ck_assert_msg(why.status == b->status && *why.message && (!b->param || strcmp(why.param, b->param) == 0),
                       "%s: %u, %s, %s", b->text, why.status, why.param, why.message);
    ck_assert_int_eq(cedar_mem_live(), 0);
}
END_TEST

START_TEST(a_chat_becomes_lines) {
    static const char body[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
                               "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]}";
    static const char lines[] = "system: s\nuser: ab\nassistant: ";
    const serve_shape shape = { "tiny", 512, 100 };
    serve_request req;
    serve_refusal why;
    ck_assert(serve_parse(SERVE_CHAT, &shape, body, sizeof body - 1, &req, &why));
    ck_assert_uint_eq(req.prompt, sizeof lines - 1);
    for (uint32_t i = 0; i < req.prompt; i++) ck_assert_int_eq(req.tokens[i], lines[i]);
    ck_assert_uint_eq(req.max_tokens, 100 - req.prompt);     /* what the context leaves */
    ck_assert(req.temperature == 1 && req.top_p == 1 && !req.seeded && !req.stream);
    cedar_free(req.tokens);
}
END_TEST

/* --- answers ------------------------------------------------------------------------------------------------------ */

#define IDS "[7,300,12,45,99,8,301,44,260,11,17,23,5,6,401,77,31,90,210,3]"
static const int32_t ids[] = { 7, 300, 12, 45, 99, 8, 301, 44, 260, 11, 17, 23, 5, 6, 401, 77, 31, 90, 210, 3 };
enum { IDS_COUNT = sizeof ids / sizeof *ids };

START_TEST(answers_are_what_the_engine_says) {
    rig *r = rig_start();
    int32_t want[24];
    char text[24 * 4 + 1];
    greedy(r, ids, IDS_COUNT, 24, want, NULL);
    spell(want, 24, text);
    result a = get_result(r, PLAIN, "{\"prompt\":" IDS ",\"max_tokens\":24,\"temperature\":0}");
    ck_assert_str_eq(a.text, text);
    ck_assert_str_eq(a.finish, "length");
    ck_assert(a.prompt == IDS_COUNT && a.completion == 24 && a.cached == 0);
    /* the same prompt, again and streamed: whole pages of it are in the cache, and nothing else changes */
    result b = get_result(r, PLAIN, "{\"prompt\":" IDS ",\"max_tokens\":24,\"temperature\":0,\"stream\":true,"
                                    "\"stream_options\":{\"include_usage\":true}}");
    ck_assert_str_eq(b.text, text);
    ck_assert_str_eq(b.finish, "length");
    ck_assert(b.done && b.prompt == IDS_COUNT && b.completion == 24 && b.cached == 16);
    ck_assert_uint_gt(b.chunks, 1);
    /* the text as a prompt is the tokens it was made from */
    char body[512], words[200];
    snprintf(body, sizeof body, "{\"prompt\":%s,\"max_tokens\":5,\"temperature\":0}",
             quoted(text, words, sizeof words));
    result c = get_result(r, PLAIN, body);
    ck_assert_int_eq(c.prompt, 24);
    snprintf(body, sizeof body, "{\"max_tokens\":5,\"temperature\":0,\"prompt\":[%d", want[0]);
    for (int i = 1; i < 24; i++) add_item(body, sizeof body, want[i]);
    strcat(body, "]}");
    result d = get_result(r, PLAIN, body);
    ck_assert_str_eq(c.text, d.text);
    rig_stop(r);
    ck_assert_uint_ge(r->row_count, 2);
    ck_assert(r->rows[0].in_tokens == IDS_COUNT && r->rows[0].out_tokens == 24 && r->rows[1].hit_tokens == 16);
    ck_assert(r->rows[0].prefill_steps == 2 && r->rows[0].decode_steps == 23);       /* windows are stored at 16 */
    for (uint32_t i = 0; i < r->row_count; i++) {
        const cedar_request_row *w = &r->rows[i];
        ck_assert(w->arrival_ns <= w->admit_ns && w->admit_ns < w->first_ns && w->first_ns <= w->last_ns);
        ck_assert_str_eq(w->error, "");
    }
    cedar_serve_totals t = cedar_serve_result(r->server);
    ck_assert(t.requests == r->row_count && t.steps == r->step_count && t.failed == 0);
    rig_free(r);
}
END_TEST

START_TEST(chat_streams_begin_with_the_role) {
    rig *r = rig_start();
    static const char whole[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":9,\"seed\":3}";
    static const char stream[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":9,\"seed\":3,"
                                 "\"stream\":true}";
    result a = get_result(r, CHAT, whole), b = get_result(r, CHAT, stream);
    ck_assert_str_eq(a.text, b.text);
    ck_assert(b.role && b.done && b.prompt == -1);       /* no usage unless asked for */
    ck_assert_uint_eq(characters(a.text), 9);
    ck_assert_int_eq(a.prompt, (int)strlen("user: hi\nassistant: "));
    rig_free(r);
}
END_TEST

START_TEST(a_seed_gives_the_same_text_whatever_runs_beside_it) {
    rig *r = rig_start();
    char body[8][200];
    for (int i = 0; i < 8; i++)
        snprintf(body[i], sizeof body[i], "{\"prompt\":[%d,2,3,4,5,6,7,8,9,10,11],\"max_tokens\":%d,\"seed\":%d,"
                 "\"temperature\":1.3,\"top_p\":%s%s}", 20 + i % 2, 12 + 5 * i, i / 2, i % 3 ? "1" : "0.9",
                 i % 4 == 1 ? ",\"stream\":true" : "");
    result alone[8];
    for (int i = 0; i < 8; i++) alone[i] = get_result(r, PLAIN, body[i]);
    int fd[8];
    for (int i = 0; i < 8; i++) fd[i] = start(r, PLAIN, body[i]);
    for (int i = 0; i < 8; i++) {
        reply a = finish_reply(fd[i]);
        result together = read_answer(&a);
        ck_assert_str_eq(together.text, alone[i].text);
    }
    ck_assert_str_ne(alone[0].text, alone[2].text);
    result x = get_result(r, PLAIN, "{\"prompt\":[1],\"max_tokens\":20}"),
           y = get_result(r, PLAIN, "{\"prompt\":[1],\"max_tokens\":20}");
    ck_assert_str_ne(x.text, y.text);                    /* no seed: each request has its own */
    rig_free(r);
}
END_TEST

START_TEST(stop_strings_end_the_text_before_them) {
    rig *r = rig_start();
    int32_t want[24];
    char text[24 * 4 + 1], body[300], until[100];
    greedy(r, ids, IDS_COUNT, 24, want, NULL);
    for (uint32_t first = 4; first < 12; first += 3)
        for (uint32_t length = 1; length <= 3; length += 2) {
            spell(want + first, length, text);
            char all[100], words[100], *at;
            spell(want, 24, all);
            at = strstr(all, text);
            snprintf(until, sizeof until, "%.*s", (int)(at - all), all);
            for (int stream = 0; stream < 2; stream++) {
                snprintf(body, sizeof body, "{\"prompt\":" IDS ",\"max_tokens\":24,\"temperature\":0,\"stop\":[\"zz\","
                         "%s]%s}", quoted(text, words, sizeof words),
                         stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
                result a = get_result(r, PLAIN, body);
                ck_assert_str_eq(a.text, until);
                ck_assert_str_eq(a.finish, "stop");
                ck_assert_int_eq(a.completion, (int)(characters(until) + length));
            }
        }
    /* a stop string that begins and does not come is text in the end */
    char words[40];
    spell(want + 23, 1, text);
    strcat(text, "!!!");
    snprintf(body, sizeof body, "{\"prompt\":" IDS ",\"max_tokens\":24,\"temperature\":0,\"stop\":%s,\"stream\":true}",
             quoted(text, words, sizeof words));
    result a = get_result(r, PLAIN, body);
    ck_assert_str_eq(a.finish, "length");
    ck_assert_uint_eq(characters(a.text), 24);
    rig_free(r);
}
END_TEST

START_TEST(the_end_id_ends_unless_told_otherwise) {
    rig *r = rig_new(-1);
    int32_t want[24];
    greedy(r, ids, IDS_COUNT, 24, want, NULL);
    uint32_t at = 6;
    while (at < 20) {                                    /* a token whose first place this is */
        uint32_t i = 0;
        while (want[i] != want[at]) i++;
        if (i == at) break;
        at++;
    }
    ck_assert_uint_lt(at, 20);
    int32_t eos = want[at];
    rig_free(r);
    r = rig_new(eos);
    rig_open(r);
    rig_run(r);
    char text[24 * 4 + 1];
    result a = get_result(r, PLAIN, "{\"prompt\":" IDS ",\"max_tokens\":24,\"temperature\":0}");
    spell(want, at, text);
    ck_assert_str_eq(a.text, text);
    ck_assert_str_eq(a.finish, "stop");
    ck_assert_int_eq(a.completion, at + 1);
    result b = get_result(r, PLAIN, "{\"prompt\":" IDS ",\"max_tokens\":24,\"temperature\":0,\"ignore_eos\":true}");
    spell(want, 24, text);
    ck_assert_str_eq(b.text, text);
    ck_assert_str_eq(b.finish, "length");
    char body[200];
    snprintf(body, sizeof body, "{\"prompt\":" IDS ",\"max_tokens\":24,\"temperature\":0,\"min_tokens\":%u}", at + 2);
    result c = get_result(r, PLAIN, body);
    ck_assert_int_ge(c.completion, at + 3);
    spell(&eos, 1, text);
    ck_assert_ptr_null(strstr(c.text, text));
    rig_free(r);
}
END_TEST

START_TEST(log_probabilities_are_those_of_the_logits) {
    rig *r = rig_start();
    int32_t want[6];
    double *log_p = malloc(6 * 512 * sizeof *log_p);
    greedy(r, ids, IDS_COUNT, 6, want, log_p);
    reply a = post(r, PLAIN, "{\"prompt\":" IDS ",\"max_tokens\":6,\"temperature\":0,\"logprobs\":3}");
    json_t *o = parse_json(a.body);
    const json_t *lp = json_object_get(json_array_get(json_object_get(o, "choices"), 0), "logprobs");
    for (uint32_t i = 0; i < 6; i++) {
        double value = json_real_value(json_array_get(json_object_get(lp, "token_logprobs"), i));
        ck_assert_double_eq_tol(value, log_p[i * 512 + (uint32_t)want[i]], 1e-5);
        const json_t *top = json_array_get(json_object_get(lp, "top_logprobs"), i);
        ck_assert_uint_eq(json_object_size(top), 3);
        uint32_t better = 0;
        const char *word;
        json_t *v;
        json_object_foreach((json_t *)(uintptr_t)top, word, v) {
            int32_t id;
            ck_assert_uint_eq(serve_tokens_encode(512, word, strlen(word), &id), 1);
            ck_assert_double_eq_tol(json_real_value(v), log_p[i * 512 + (uint32_t)id], 1e-5);
            for (uint32_t k = 0; k < 512; k++) better += log_p[i * 512 + k] > json_real_value(v) + 1e-5;
        }
        ck_assert_uint_eq(better, 0 + 1 + 2);            /* nothing is above the first, one above the second ... */
    }
    json_decref(o);
    reply_free(&a);
    a = post(r, CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":4,\"logprobs\":true,"
                      "\"top_logprobs\":2,\"stream\":true,\"seed\":9}");
    uint32_t entries = 0;
    for (const char *at = a.body; (at = strstr(at, "\"top_logprobs\":[{")); at++) entries++;
    ck_assert_uint_eq(entries, 4);
    reply_free(&a);
    free(log_p);
    rig_free(r);
}
END_TEST

START_TEST(bounded_replay_is_what_rows_say) {
    static const struct { bool decoder, encoder; } arms[] = { { 0, 0 }, { 1, 0 }, { 0, 1 }, { 1, 1 } };
    rig *r = rig_new(-1);
    r->opts.rules.decoder = arms[_i].decoder;
    r->opts.rules.encoder = arms[_i].encoder;
    rig_open(r);
    rig_run(r);
    char body[2000] = "{\"max_tokens\":2,\"temperature\":0,\"prompt\":[1";
    for (int i = 2; i <= 121; i++) add_item(body, sizeof body, i);
    strcat(body, "]}");
    result a = get_result(r, PLAIN, body), b = get_result(r, PLAIN, body);
    ck_assert(a.cached == 0 && b.cached == 120);         /* whole pages, at least a token left over */
    rig_stop(r);
    uint32_t window = (uint32_t)r->config.window;
    ck_assert_uint_eq(r->rows[0].replayed_tokens, 0);
    ck_assert_uint_eq(r->rows[1].replayed_tokens, arms[_i].encoder ? window : 0);
    ck_assert_uint_eq(r->rows[0].trimmed_tokens > 0, arms[_i].decoder);
    if (!arms[_i].decoder && !arms[_i].encoder) ck_assert_str_eq(a.text, b.text);
    rig_free(r);
}
END_TEST

/* --- routes and limits -------------------------------------------------------------------------------------------- */

START_TEST(routes) {
    rig *r = rig_start();
    reply a = ask(r, "GET", "/health", "");
    ck_assert(a.status == 200 && strstr(a.body, "ok"));
    reply_free(&a);
    a = ask(r, "GET", "/v1/models", "");
    ck_assert(a.status == 200 && strstr(a.body, "\"id\":\"tiny\"") && strstr(a.body, "\"max_model_len\":512"));
    reply_free(&a);
    a = ask(r, "GET", "/v1/models/tiny", "");
    ck_assert_int_eq(a.status, 200);
    reply_free(&a);
    a = ask(r, "HEAD", "/health", "");
    ck_assert(a.status == 200 && !*a.body);
    reply_free(&a);
    a = ask(r, "GET", "/v1/models/large", "");
    expect_refusal(&a, 404, NULL, NULL);
    a = ask(r, "POST", "/v2/completions", "{}");
    expect_refusal(&a, 404, NULL, NULL);
    a = ask(r, "GET", PLAIN, "");
    ck_assert_ptr_nonnull(strcasestr(a.all, "allow: POST"));
    expect_refusal(&a, 405, NULL, NULL);
    a = ask(r, "DELETE", "/metrics", "");
    expect_refusal(&a, 405, NULL, NULL);
    a = post(r, PLAIN, "{\"prompt\":");
    expect_refusal(&a, 400, NULL, NULL);
    a = post(r, PLAIN, "{\"prompt\":[1],\"max_tokens\":512}");
    expect_refusal(&a, 400, "prompt", "context_length_exceeded");
    a = post(r, PLAIN, "{\"prompt\":[1],\"model\":\"large\"}");
    expect_refusal(&a, 404, "model", "model_not_found");
    rig_free(r);
}
END_TEST

START_TEST(bodies_that_are_too_long) {
    rig *r = rig_new(-1);
    r->opts.body_bytes_max = 1000;
    rig_open(r);
    rig_run(r);
    int fd = dial(r);
    static const char announced[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n";
    say(fd, announced, sizeof announced - 1);
    reply a = finish_reply(fd);                          /* refused before a byte of it is sent */
    expect_refusal(&a, 413, NULL, NULL);
    fd = dial(r);
    static const char chunked[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    say(fd, chunked, sizeof chunked - 1);
    char chunk[300];
    memset(chunk, ' ', sizeof chunk);
    for (int i = 0; i < 5; i++) {                        /* 1,500 bytes; the other side may have closed already */
        if (send(fd, "12c\r\n", 5, MSG_NOSIGNAL) < 0) break;
        if (send(fd, chunk, 300, MSG_NOSIGNAL) < 0) break;
        if (send(fd, "\r\n", 2, MSG_NOSIGNAL) < 0) break;
    }
    char *heard = hear(fd);
    ck_assert_str_eq(heard, "");
    free(heard);
    close(fd);
    rig_free(r);
}
END_TEST

START_TEST(a_full_line_is_429) {
    rig *r = rig_new(-1);
    r->opts.queue_max = 2;
    rig_open(r);                                         /* nothing runs yet, so that requests wait */
    int fd[2];
    for (int i = 0; i < 2; i++) {
        fd[i] = start(r, PLAIN, "{\"prompt\":[1],\"max_tokens\":2}");
        await_metric(r, "cedar_requests_waiting", i + 1);
    }
    reply a = post(r, PLAIN, "{\"prompt\":[1],\"max_tokens\":2}");
    ck_assert_ptr_nonnull(strcasestr(a.all, "retry-after: "));
    expect_refusal(&a, 429, NULL, "queue_full");
    rig_run(r);
    for (int i = 0; i < 2; i++) {
        a = finish_reply(fd[i]);
        ck_assert_int_eq(a.status, 200);
        reply_free(&a);
    }
    ck_assert(metric(r, "cedar_requests_refused_total{model_name=\"tiny\",reason=\"queue_full\"}") == 1);
    rig_free(r);
}
END_TEST

START_TEST(connections_are_limited) {
    rig *r = rig_new(-1);
    r->opts.connections_max = 4;
    rig_open(r);
    rig_run(r);
    int fd[5];
    for (int i = 0; i < 4; i++) fd[i] = dial(r);
    static const char get[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    char got[16];
    for (int i = 0; i < 4; i++) {                        /* all four have been accepted once they are answered */
        say(fd[i], get, sizeof get - 1);
        ck_assert_int_eq(recv(fd[i], got, 12, MSG_WAITALL), 12);
        ck_assert_mem_eq(got, "HTTP/1.1 200", 12);
    }
    fd[4] = dial(r);
    send(fd[4], get, sizeof get - 1, MSG_NOSIGNAL);
    struct pollfd p = { fd[4], POLLIN, 0 };
    bool answered = poll(&p, 1, 300) > 0 && recv(fd[4], got, 12, 0) > 0;
    ck_assert(!answered);
    for (int i = 0; i < 5; i++) close(fd[i]);
    rig_free(r);
}
END_TEST

START_TEST(bodies_in_pieces_and_several_in_a_row) {
    rig *r = rig_start();
    static const char body[] = "{\"prompt\":[1,2,3],\"max_tokens\":2,\"temperature\":0}";
    char *text = compose("POST", PLAIN, "Connection: close\r\n", body);
    int fd = dial(r);
    for (size_t i = 0; text[i]; i++) {
        say(fd, text + i, 1);
        if (i % 16 == 0) nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    reply a = finish_reply(fd);
    ck_assert_int_eq(a.status, 200);
    reply_free(&a);
    /* two requests at once, and rubbish behind them: both are answered, in order */
    char *first = compose("POST", PLAIN, "", body);
    char *second = compose("GET", "/health", "", "");
    fd = dial(r);
    char *both;
    ck_assert_int_gt(asprintf(&both, "%s%s\r\n\x01\x02 rubbish\r\n\r\n", first, second), 0);
    say(fd, both, strlen(both));
    char *heard = hear(fd);
    const char *answer = strstr(heard, "text_completion"), *health = strstr(heard, "\"ok\"");
    ck_assert_msg(answer && health && answer < health, "%s", heard);
    free(heard);
    close(fd);
    free(first);
    free(second);
    free(both);
    free(text);
    rig_free(r);
}
END_TEST

START_TEST(rubbish_gets_no_answer_and_does_no_harm) {
    static const char *const words[] = { "\r\n\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01\x02",
                                         "POST /v1/completions HTTP/9.9\r\n\r\n",
                                         "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
                                         "POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                                         "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" };
    rig *r = rig_start();
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        int fd = dial(r);
        say(fd, words[i], strlen(words[i]));
        shutdown(fd, SHUT_WR);
        free(hear(fd));
        close(fd);
    }
    result a = get_result(r, PLAIN, "{\"prompt\":[1],\"max_tokens\":1}");
    ck_assert_int_eq(a.completion, 1);
    rig_free(r);
}
END_TEST

/* --- clients that go, and the end --------------------------------------------------------------------------------- */

#define LONG "\"max_tokens\":400,\"temperature\":0,\"prompt\":[5,6,7]"

START_TEST(a_client_that_goes_frees_its_pages) {
    rig *r = rig_new(-1);
    r->opts.prefix_cache = false;
    r->opts.engine.seq_count = r->opts.engine.step_seqs = 2;
    rig_open(r);
    rig_run(r);
    int fd[4];
    for (int i = 0; i < 4; i++)                          /* two run, two wait; streams and not */
        fd[i] = start(r, PLAIN, i % 2 ? "{" LONG "}" : "{\"stream\":true," LONG "}");
    await_metric(r, "cedar_requests_waiting", 2);
    for (int i = 3; i >= 0; i--) close(fd[i]);
    await_metric(r, "cedar_requests_total{model_name=\"tiny\",outcome=\"cancelled\"}", 4);
    await_metric(r, "cedar_requests_running", 0);
    await_metric(r, "cedar_kv_pages_free", r->opts.engine.page_count);
    rig_stop(r);
    ck_assert_uint_eq(r->row_count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_msg(strncmp(r->rows[i].error, "cancelled", 9) == 0, "%s", r->rows[i].error);
        ck_assert_str_eq(r->ids[i], "mine");
        ck_assert_int_eq(r->rows[i].last_ns, -1);
        ck_assert_uint_lt(r->rows[i].out_tokens, 400);
    }
    ck_assert_uint_eq(cedar_serve_result(r->server).failed, 4);
    rig_free(r);
}
END_TEST

START_TEST(what_runs_ends_before_the_server_does) {
    rig *r = rig_start();
    int stream = start(r, PLAIN, "{\"stream\":true," LONG "}"), whole = start(r, PLAIN, "{" LONG "}");
    await_metric(r, "cedar_requests_running", 2);
    cedar_serve_stop(r->server);
    reply a = { 0 };
    for (int i = 0; i < WAIT_S * 100; i++) {             /* the engine thread sees the wish within a step */
        a = ask(r, "GET", "/health", "");
        if (a.status == 503) break;
        reply_free(&a);
        a = (reply){ 0 };
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    expect_refusal(&(reply){ a.status, a.all, (char[]){ "{\"error\":{\"message\":\"draining\",\"type\":\"\"}}" } }, 503,
                   NULL, NULL);
    a = post(r, PLAIN, "{\"prompt\":[1],\"max_tokens\":1}");
    ck_assert_ptr_nonnull(strcasestr(a.all, "retry-after: "));
    expect_refusal(&a, 503, NULL, NULL);
    a = finish_reply(stream);
    result x = read_answer(&a);
    ck_assert(x.done && characters(x.text) == 400);
    a = finish_reply(whole);
    result y = read_answer(&a);
    ck_assert_str_eq(x.text, y.text);
    rig_stop(r);
    ck_assert_int_eq(r->st, CEDAR_OK);
    ck_assert_uint_eq(cedar_serve_result(r->server).failed, 0);
    rig_free(r);
}
END_TEST

START_TEST(what_outlasts_the_grace_is_cut_and_told) {
    rig *r = rig_new(-1);
    r->opts.grace_ns = 0;
    rig_open(r);
    rig_run(r);
    int stream = start(r, PLAIN, "{\"stream\":true," LONG "}"), whole = start(r, PLAIN, "{" LONG "}");
    await_metric(r, "cedar_requests_running", 2);
    rig_stop(r);
    ck_assert_int_eq(r->st, CEDAR_OK);
    ck_assert_uint_eq(r->row_count, 2);
    for (uint32_t i = 0; i < 2; i++) ck_assert_msg(strncmp(r->rows[i].error, "cut", 3) == 0, "%s", r->rows[i].error);
    reply a = finish_reply(whole);
    expect_refusal(&a, 503, NULL, NULL);
    a = finish_reply(stream);
    ck_assert(strstr(a.body, "\"error\":") && !strstr(a.body, "[DONE]"));
    reply_free(&a);
    rig_free(r);
}
END_TEST

START_TEST(a_failure_of_ours_is_an_error_and_told) {
    rig *r = rig_new(-1);
    r->fail_at_step = 3;
    rig_open(r);
    int fd = start(r, PLAIN, "{" LONG "}");
    await_metric(r, "cedar_requests_waiting", 1);
    rig_run(r);
    reply a = finish_reply(fd);
    expect_refusal(&a, 503, NULL, NULL);
    rig_stop(r);
    ck_assert_int_eq(r->st, CEDAR_E_IO);
    ck_assert_str_eq(r->err.msg, "the disk is full");
    rig_free(r);
}
END_TEST

/* Rows that came before a long silence are saved in it. */
START_TEST(silence_is_told_to_the_observer) {
    rig *r = rig_start();
    usleep(600000);
    rig_stop(r);
    ck_assert_uint_ge(r->ticks, 2);
    ck_assert_uint_lt(r->ticks, 100);
    rig_free(r);
}
END_TEST

START_TEST(a_server_that_never_ran_closes) {
    rig *r = rig_new(-1);
    rig_open(r);
    int fd = start(r, PLAIN, "{" LONG "}");
    await_metric(r, "cedar_requests_waiting", 1);
    OK(cedar_serve_close(r->server, &failure));
    r->server = NULL;
    free(hear(fd));
    close(fd);
    rig_free(r);
}
END_TEST

/* More requests than sequences, and pages for few of them: all are answered as each would be alone. */
START_TEST(many_at_once_in_a_small_pool) {
    enum { MANY = 48 };
    rig *r = rig_new(-1);
    r->opts.engine.page_count = 30;
    r->opts.engine.seq_count = r->opts.engine.step_seqs = 6;
    rig_open(r);
    rig_run(r);
    char body[12][300];
    result alone[12];
    for (int k = 0; k < 12; k++) {
        snprintf(body[k], sizeof body[k], "{\"max_tokens\":%d,\"temperature\":%s,\"seed\":%d%s,\"prompt\":[%d", 3 + k,
                 k % 2 ? "1" : "0", k, k % 3 ? "" : ",\"stream\":true", k / 4);
        for (int i = 0; i < 20 + 5 * k; i++) add_item(body[k], sizeof body[k], i % 90);
        strcat(body[k], "]}");
        alone[k] = get_result(r, PLAIN, body[k]);
    }
    int fd[MANY];
    for (int i = 0; i < MANY; i++) fd[i] = start(r, PLAIN, body[i * 7 % 12]);
    for (int i = 0; i < MANY; i++) {
        reply a = finish_reply(fd[i]);
        result x = read_answer(&a);
        ck_assert_str_eq(x.text, alone[i * 7 % 12].text);
    }
    ck_assert(metric(r, "cedar_requests_total{model_name=\"tiny\",outcome=\"length\"}") == MANY + 12);
    ck_assert(metric(r, "cedar_time_to_first_token_seconds_count") == MANY + 12);
    ck_assert(metric(r, "cedar_prefix_cache_hits_total") > 0);
    rig_stop(r);
    uint64_t produced = 0, fed = 0;
    for (uint32_t i = 0; i < r->row_count; i++) {
        produced += r->rows[i].out_tokens;
        fed += r->rows[i].in_tokens - r->rows[i].hit_tokens + r->rows[i].out_tokens - 1;
    }
    ck_assert_uint_eq(r->row_count, MANY + 12);
    ck_assert_uint_eq(fed, r->step_rows);                /* every row of every step belongs to a request */
    ck_assert_uint_gt(produced, 0);
    rig_free(r);
}
END_TEST

START_TEST(what_cannot_be_served_is_refused_at_once) {
    rig *r = rig_new(-1);
    cedar_server *s = NULL;
    cedar_serve_opts o = r->opts;
    o.address = "localhost";
    ck_assert_int_eq(cedar_serve_open(&o, &s, &failure), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(failure.msg, "127.0.0.1"));
    o = r->opts;
    o.queue_max = 0;
    ck_assert_int_eq(cedar_serve_open(&o, &s, &failure), CEDAR_E_ARG);
    o = r->opts;
    o.name = "a\"b";
    ck_assert_int_eq(cedar_serve_open(&o, &s, &failure), CEDAR_E_ARG);
    o = r->opts;
    o.chunk_rows = o.engine.step_rows + 1;
    ck_assert_int_eq(cedar_serve_open(&o, &s, &failure), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(failure.msg, "chunk_tokens = 65"));
    rig_open(r);
    o = r->opts;
    o.port = cedar_serve_port(r->server);                /* taken */
    ck_assert_int_eq(cedar_serve_open(&o, &s, &failure), CEDAR_E_IO);
    rig_free(r);
}
END_TEST

START_TEST(opening_without_memory_leaves_nothing) {
    rig *r = rig_new(-1);
    int64_t alive = cedar_mem_live(), n = 1;
    for (;; n++) {
        cedar_mem_fail_at(n);
        cedar_status st = cedar_serve_open(&r->opts, &r->server, &failure);
        cedar_mem_fail_at(0);
        if (!st) break;
        ck_assert_int_eq(st, CEDAR_E_OOM);
        ck_assert_int_eq(cedar_mem_live(), alive);
    }
    ck_assert_int_gt(n, 12);
    rig_free(r);
}
END_TEST

/* Wherever memory runs out for a request, its client is told, or the connection is closed; the server goes on. */
START_TEST(requests_without_memory_do_no_harm) {
    static const char body[] = "{\"prompt\":[1,2,3],\"max_tokens\":1,\"logprobs\":1,\"temperature\":0}";
    rig *r = rig_new(-1);
    r->opts.prefix_cache = false;
    rig_open(r);
    uint32_t told = 0, closed = 0;
    char *text = compose("POST", PLAIN, "Connection: close\r\n", body);
    for (int64_t n = 1; n <= 9; n++) {      /* of the HTTP thread alone, up to the job's: the engine does not run yet */
        int fd = dial(r);
        cedar_mem_fail_at(n);
        say(fd, text, strlen(text));
        char *heard = hear(fd);
        cedar_mem_fail_at(0);
        told += strncmp(heard, "HTTP/1.1 503", 12) == 0;
        closed += !*heard;
        ck_assert_msg(!*heard || strncmp(heard, "HTTP/1.1 503", 12) == 0, "%s", heard);
        free(heard);
        close(fd);
    }
    free(text);
    rig_run(r);
    reply a = post(r, PLAIN, body);
    ck_assert_int_eq(a.status, 200);
    reply_free(&a);
    ck_assert(told == 7 && closed == 2);    /* without an exchange or a body there is nothing to answer with */
    rig_free(r);
}
END_TEST

int main(void) {
    Suite *s = suite_create("serve");
    TCase *parts = tcase_create("parts"), *whole = tcase_create("whole");
    tcase_add_test(parts, tokens_and_texts_give_each_other_back);
    tcase_add_test(parts, sampling_follows_the_probabilities);
    tcase_add_loop_test(parts, bodies_are_taken_or_refused_with_the_field, 0, sizeof bodies / sizeof *bodies);
    tcase_add_test(parts, a_chat_becomes_lines);
    tcase_add_test(whole, answers_are_what_the_engine_says);
    tcase_add_test(whole, chat_streams_begin_with_the_role);
    tcase_add_test(whole, a_seed_gives_the_same_text_whatever_runs_beside_it);
    tcase_add_test(whole, stop_strings_end_the_text_before_them);
    tcase_add_test(whole, the_end_id_ends_unless_told_otherwise);
    tcase_add_test(whole, log_probabilities_are_those_of_the_logits);
    tcase_add_loop_test(whole, bounded_replay_is_what_rows_say, 0, 4);
    tcase_add_test(whole, routes);
    tcase_add_test(whole, bodies_that_are_too_long);
    tcase_add_test(whole, a_full_line_is_429);
    tcase_add_test(whole, connections_are_limited);
    tcase_add_test(whole, bodies_in_pieces_and_several_in_a_row);
    tcase_add_test(whole, rubbish_gets_no_answer_and_does_no_harm);
    tcase_add_test(whole, a_client_that_goes_frees_its_pages);
    tcase_add_test(whole, what_runs_ends_before_the_server_does);
    tcase_add_test(whole, what_outlasts_the_grace_is_cut_and_told);
    tcase_add_test(whole, a_failure_of_ours_is_an_error_and_told);
    tcase_add_test(whole, silence_is_told_to_the_observer);
    tcase_add_test(whole, a_server_that_never_ran_closes);
    tcase_add_test(whole, many_at_once_in_a_small_pool);
    tcase_add_test(whole, what_cannot_be_served_is_refused_at_once);
    tcase_add_test(whole, opening_without_memory_leaves_nothing);
    tcase_add_test(whole, requests_without_memory_do_no_harm);
    tcase_set_timeout(whole, 300);
    tcase_set_timeout(parts, 60);
    suite_add_tcase(s, parts);
    suite_add_tcase(s, whole);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
