/* The HTTP thread: routes, bodies, limits, answers and streams, on libmicrohttpd.
 *
 * A request that waits for the engine suspends its connection; the engine thread resumes it when there is something to
 * send. libmicrohttpd calls in here from one thread of its own. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "serve/serve_int.h"

enum {
    BLOCK_BYTES = 16384,            /* of a stream, handed to libmicrohttpd at once */
    IDLE_S = 75                     /* a connection that says nothing is closed; those that wait for us are not */
};

typedef enum route_kind { ROUTE_CHAT, ROUTE_COMPLETION, ROUTE_MODELS, ROUTE_HEALTH, ROUTE_METRICS } route_kind;

static const struct route { const char *path; route_kind kind; bool post; } routes[] = {
    { "/v1/chat/completions", ROUTE_CHAT, true }, { "/v1/completions", ROUTE_COMPLETION, true },
    { "/v1/models", ROUTE_MODELS, false },        { "/health", ROUTE_HEALTH, false },
    { "/metrics", ROUTE_METRICS, false },
};

/* One request, from its headers to the last byte of its answer. */
typedef struct exchange {
    cedar_server *s;
    char *body;
    size_t bytes, capacity;
    int64_t arrival_ns;
    serve_job *job;                 /* NULL: it never came to the engine */
    serve_shown shown;
    char *events;                   /* of the stream, being sent */
    size_t events_bytes, events_sent;
} exchange;

/* --- jobs --------------------------------------------------------------------------------------------------------- */

void serve_job_free(serve_job *j) {
    if (!j) return;
    cedar_free(j->req.tokens);
    cedar_free(j->text);
    cedar_free(j->chosen);
    cedar_free(j->top_ids);
    cedar_free(j->top_values);
    cedar_free(j);
}

void serve_wake_client(serve_job *j) {
    if (!j->suspended) return;
    j->suspended = false;
    MHD_resume_connection(j->connection);
}

/* A job with all the memory it will need; takes the request over, also on failure. */
static serve_job *job_new(const serve_request *req) {
    serve_job *j = cedar_calloc(1, sizeof *j);
    if (!j) {
        cedar_free(req->tokens);
        return NULL;
    }
    j->req = *req;
    j->seq = j->node = -1;
    j->text = cedar_calloc(req->max_tokens, SERVE_TOKEN_BYTES);
    if (req->logprobs) {
        j->chosen = cedar_calloc(req->max_tokens, sizeof *j->chosen);
        j->top_ids = cedar_calloc(req->max_tokens, req->top_logprobs * sizeof *j->top_ids);
        j->top_values = cedar_calloc(req->max_tokens, req->top_logprobs * sizeof *j->top_values);
    }
    if (j->text && (!req->logprobs || (j->chosen && j->top_ids && j->top_values))) return j;
    serve_job_free(j);
    return NULL;
}

/* The client's name for the request, as far as it is plain text. */
static void copy_client_id(serve_job *j, struct MHD_Connection *c) {
    const char *id = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-Request-Id");
    size_t n = 0;
    for (; id && id[n] > 32 && id[n] < 127 && n + 1 < sizeof j->client_id; n++) j->client_id[n] = id[n];
}

static void fill_row(const cedar_server *s, serve_job *j) {
    j->row = (cedar_request_row){ .run_id = s->opts.run_id, .request_id = j->id, .session_id = j->id, .engine = 1,
                                  .trace_id = j->client_id, .phase = "profiling", .in_recorded = j->req.prompt,
                                  .out_recorded = j->req.max_tokens, .in_tokens = j->req.prompt,
                                  .arrival_sched_ns = j->arrival_ns, .arrival_ns = j->arrival_ns,
                                  .admit_sched_ns = -1, .admit_ns = -1, .first_sched_ns = -1, .first_ns = -1,
                                  .last_sched_ns = -1, .last_ns = -1, .error = "" };
}

/* Puts a job in line, with its connection suspended unless it streams. */
static bool submit(cedar_server *s, serve_job *j, struct MHD_Connection *c, serve_refusal *why) {
    bool taken = false;
    pthread_mutex_lock(&s->lock);
    if (s->draining) {
        s->metrics.refused_draining++;
        serve_refuse(why, 503, NULL, "", s->dead ? "the engine has failed" : "the server is shutting down");
    } else if (s->waiting >= s->opts.queue_max) {
        s->metrics.refused_full++;
        serve_refuse(why, 429, "queue_full", "", "%u requests wait already; try again later", s->waiting);
    } else {
        taken = true;
        j->id = ++s->jobs;
        j->key = cedar_rng_key(j->req.seeded ? j->req.seed : cedar_rng_at(s->unseeded_key, (uint64_t)j->id),
                               "serve/sample");
        fill_row(s, j);
        j->connection = c;
        *s->last = j;
        s->last = &j->next;
        s->waiting++;
        j->suspended = !j->req.stream;
        if (j->suspended) MHD_suspend_connection(c);
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    return taken;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

/* Sends text, which it frees. header may be NULL. */
static enum MHD_Result reply(struct MHD_Connection *c, unsigned status, const char *type, char *text,
                             const char *header, const char *value) {
    if (!text) return MHD_NO;
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (!r) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (header) MHD_add_response_header(r, header, value);
    enum MHD_Result out = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return out;
}

static enum MHD_Result reply_refusal(struct MHD_Connection *c, const serve_refusal *why) {
    bool later = why->status == 429 || why->status == 503;
    return reply(c, why->status, "application/json", serve_answer_error(why), later ? "Retry-After" : NULL, "1");
}

static enum MHD_Result reply_json(struct MHD_Connection *c, char *text) {
    return reply(c, 200, "application/json", text, NULL, NULL);
}

static serve_view look(cedar_server *s, const serve_job *j, bool *cancelled) {
    pthread_mutex_lock(&s->lock);
    serve_view v = j->view;
    *cancelled = j->cancelled || (v.finish == SERVE_FAILED && !j->failed_on_us);
    pthread_mutex_unlock(&s->lock);
    return v;
}

/* The engine has ended a job that does not stream. */
static enum MHD_Result reply_job(exchange *x, struct MHD_Connection *c) {
    bool cancelled;
    serve_view v = look(x->s, x->job, &cancelled);
    if (cancelled) return MHD_NO;
    if (v.finish != SERVE_FAILED) return reply_json(c, serve_answer_whole(x->job, &v, x->s->shape.model));
    serve_refusal why;
    serve_refuse(&why, 503, NULL, "", "the server ended this request before its answer was complete");
    return reply_refusal(c, &why);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

/* Makes the next events; false: there are none yet, and the connection is suspended. */
static bool next_events(exchange *x, bool *broken) {
    cedar_server *s = x->s;
    serve_job *j = x->job;
    pthread_mutex_lock(&s->lock);
    serve_view v = j->view;
    *broken = j->cancelled || (v.finish == SERVE_FAILED && !j->failed_on_us);
    bool news = v.finish != SERVE_RUNNING || v.text_bytes > x->shown.text_bytes ||
                (j->req.logprobs && v.produced > x->shown.tokens);
    if (!news && !*broken) {
        j->suspended = true;
        MHD_suspend_connection(j->connection);
    }
    pthread_mutex_unlock(&s->lock);
    if (*broken || !news) return false;
    free(x->events);
    x->events = serve_answer_events(j, &v, s->shape.model, &x->shown);
    *broken = !x->events;
    x->events_bytes = x->events ? strlen(x->events) : 0;
    x->events_sent = 0;
    return x->events != NULL;
}

static ssize_t read_events(void *self, uint64_t pos, char *out, size_t most) {
    exchange *x = self;
    (void)pos;
    if (x->events_sent == x->events_bytes) {
        bool broken = false;
        if (x->shown.ended) return MHD_CONTENT_READER_END_OF_STREAM;
        if (!next_events(x, &broken)) return broken ? MHD_CONTENT_READER_END_WITH_ERROR : 0;
    }
    size_t n = x->events_bytes - x->events_sent;
    if (n > most) n = most;
    memcpy(out, x->events + x->events_sent, n);
    x->events_sent += n;
    return (ssize_t)n;
}

static enum MHD_Result start_stream(exchange *x, struct MHD_Connection *c) {
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_events, x, NULL);
    if (!r) return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    enum MHD_Result out = MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    return out;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static enum MHD_Result refuse_invalid(cedar_server *s, struct MHD_Connection *c, const serve_refusal *why) {
    pthread_mutex_lock(&s->lock);
    s->metrics.refused_invalid++;
    pthread_mutex_unlock(&s->lock);
    return reply_refusal(c, why);
}

static enum MHD_Result complete(exchange *x, struct MHD_Connection *c, serve_kind kind) {
    cedar_server *s = x->s;
    serve_request req;
    serve_refusal why;
    if (!serve_parse(kind, &s->shape, x->body ? x->body : "", x->bytes, &req, &why)) return refuse_invalid(s, c, &why);
    cedar_free(x->body);
    x->body = NULL;
    serve_job *j = job_new(&req);
    if (!j) {
        serve_refuse(&why, 503, NULL, "", "no memory for this request");
        return reply_refusal(c, &why);
    }
    j->arrival_ns = x->arrival_ns;
    j->created_s = (int64_t)time(NULL);
    j->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    copy_client_id(j, c);
    if (!submit(s, j, c, &why)) {
        serve_job_free(j);
        return reply_refusal(c, &why);
    }
    x->job = j;
    return req.stream ? start_stream(x, c) : MHD_YES;
}

static enum MHD_Result health(cedar_server *s, struct MHD_Connection *c) {
    pthread_mutex_lock(&s->lock);
    bool draining = s->draining, dead = s->dead;
    pthread_mutex_unlock(&s->lock);
    char *text = NULL;
    if (asprintf(&text, "{\"status\":\"%s\"}", dead ? "failed" : draining ? "shutting down" : "ok") < 0) return MHD_NO;
    return reply(c, draining ? 503 : 200, "application/json", text, NULL, NULL);
}

static enum MHD_Result metrics(cedar_server *s, struct MHD_Connection *c) {
    pthread_mutex_lock(&s->lock);
    serve_metrics m = s->metrics;
    m.waiting = s->waiting;
    pthread_mutex_unlock(&s->lock);
    char *text = serve_metrics_text(&m, s->shape.model);
    return reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", text, NULL, NULL);
}

static enum MHD_Result not_found(cedar_server *s, struct MHD_Connection *c, const char *url) {
    serve_refusal why;
    serve_refuse(&why, 404, NULL, "", "there is no %.100s here; docs/SERVE.md lists the endpoints", url);
    return refuse_invalid(s, c, &why);
}

static enum MHD_Result wrong_method(cedar_server *s, struct MHD_Connection *c, const char *url, const char *method,
                                    bool post) {
    serve_refusal why;
    pthread_mutex_lock(&s->lock);
    s->metrics.refused_invalid++;
    pthread_mutex_unlock(&s->lock);
    serve_refuse(&why, 405, NULL, "", "%.20s is not allowed for %.100s", method, url);
    return reply(c, 405, "application/json", serve_answer_error(&why), "Allow", post ? "POST" : "GET, HEAD");
}

static enum MHD_Result model(cedar_server *s, struct MHD_Connection *c, const char *url, const char *name) {
    if (strcmp(name, s->shape.model)) return not_found(s, c, url);
    return reply_json(c, serve_answer_models(s->shape.model, s->shape.context, s->created_s, true));
}

/* The whole request is there. */
static enum MHD_Result answer(exchange *x, struct MHD_Connection *c, const char *url, const char *method) {
    static const char models[] = "/v1/models/";
    cedar_server *s = x->s;
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0, one = strncmp(url, models, 11) == 0;
    const struct route *r = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (strcmp(url, routes[i].path) == 0) r = &routes[i];
    if (!r && !one) return not_found(s, c, url);
    bool post = r && r->post;
    if (post ? strcmp(method, "POST") != 0 : !get) return wrong_method(s, c, url, method, post);
    if (one) return model(s, c, url, url + 11);
    switch (r->kind) {
    case ROUTE_CHAT: return complete(x, c, SERVE_CHAT);
    case ROUTE_COMPLETION: return complete(x, c, SERVE_COMPLETION);
    case ROUTE_HEALTH: return health(s, c);
    case ROUTE_METRICS: return metrics(s, c);
    default: return reply_json(c, serve_answer_models(s->shape.model, s->shape.context, s->created_s, false));
    }
}

/* --- bodies ------------------------------------------------------------------------------------------------------- */

/* Adds to the body; false when it becomes too long or memory runs out: the connection is closed. */
static bool add_body(exchange *x, const char *data, size_t bytes) {
    if (bytes > x->s->opts.body_bytes_max - x->bytes) return false;
    if (x->bytes + bytes > x->capacity) {
        size_t capacity = 2 * (x->bytes + bytes);
        char *grown = cedar_realloc(x->body, capacity, 1);
        if (!grown) return false;
        x->body = grown;
        x->capacity = capacity;
    }
    memcpy(x->body + x->bytes, data, bytes);
    x->bytes += bytes;
    return true;
}

/* The headers are there. A body that is announced as too long is refused before it is sent. */
static enum MHD_Result begin(cedar_server *s, struct MHD_Connection *c, void **state) {
    exchange *x = cedar_calloc(1, sizeof *x);
    if (!x) return MHD_NO;
    x->s = s;
    x->arrival_ns = serve_now(s);
    *state = x;
    pthread_mutex_lock(&s->lock);
    s->exchanges++;
    pthread_mutex_unlock(&s->lock);
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (!length || strtoull(length, NULL, 10) <= s->opts.body_bytes_max) return MHD_YES;
    serve_refusal why;
    serve_refuse(&why, 413, NULL, "", "the body has %.20s bytes; at most %llu are allowed", length,
                 (unsigned long long)s->opts.body_bytes_max);
    return refuse_invalid(s, c, &why);
}

static enum MHD_Result on_request(void *self, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_bytes, void **state) {
    (void)version;
    exchange *x = *state;
    if (!x) return begin(self, c, state);
    if (*upload_bytes) {
        size_t bytes = *upload_bytes;
        *upload_bytes = 0;
        return add_body(x, upload, bytes) ? MHD_YES : MHD_NO;
    }
    return x->job ? reply_job(x, c) : answer(x, c, url, method);
}

static void on_completed(void *self, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode how) {
    cedar_server *s = self;
    exchange *x = *state;
    (void)c;
    (void)how;
    if (!x) return;
    *state = NULL;
    serve_job *j = x->job;
    pthread_mutex_lock(&s->lock);
    bool last = j && j->engine_done;
    if (j) {
        j->connection = NULL;
        j->suspended = false;
        j->cancelled = j->cancelled || j->view.finish == SERVE_RUNNING;
    }
    s->exchanges--;
    pthread_cond_signal(&s->gone);
    pthread_mutex_unlock(&s->lock);
    if (last) serve_job_free(j);
    free(x->events);
    cedar_free(x->body);
    cedar_free(x);
}

/* --- opening and closing ------------------------------------------------------------------------------------------ */

static cedar_status find_address(const cedar_serve_opts *o, struct addrinfo **out, cedar_err *err) {
    char port[8];
    const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                    .ai_socktype = SOCK_STREAM };
    snprintf(port, sizeof port, "%u", o->port);
    if (getaddrinfo(o->address, port, &hints, out) == 0) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_ARG, "\"%.64s\" is no numeric address, such as 127.0.0.1 or ::1", o->address);
}

cedar_status serve_http_open(cedar_server *s, cedar_err *err) {
    const cedar_serve_opts *o = &s->opts;
    struct addrinfo *where = NULL;
    cedar_status st = cedar_files_allow(o->connections_max, "--connections", err);
    if (!st) st = find_address(o, &where, err);
    if (st) return st;
    /* not epoll: libmicrohttpd 0.9.75 then misses the end of a connection that comes along with its last bytes */
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    if (where->ai_family == AF_INET6) flags |= MHD_USE_IPv6;
    errno = 0;
    s->daemon = MHD_start_daemon(flags, o->port, NULL, NULL, on_request, s, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
                                 s, MHD_OPTION_SOCK_ADDR, where->ai_addr, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)o->connections_max, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
                                 MHD_OPTION_END);
    int why = errno;
    freeaddrinfo(where);
    if (!s->daemon)
        return cedar_fail(err, CEDAR_E_IO, "port %u of %s cannot be listened on: %s; choose another --port, "
                          "0 takes one that is free", o->port, o->address, strerror(why));
    s->port = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    return CEDAR_OK;
}

void serve_http_close(cedar_server *s) {
    if (s->daemon) MHD_stop_daemon(s->daemon);
}
