/* The client: libcurl's multi interface over epoll, so that the work of a moment is that of the connections with
 * something to say, however many there are. */
#include <curl/curl.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "http/http_int.h"

enum { EVENTS_MAX = 256, BODY_BYTES = 4096, CA_BYTES_MAX = 16 << 20 };
static const int64_t LOOK_NS = 25000000;        /* between two looks at the limits */
static const int64_t DONE_NS = 1000000000;      /* how long an answer that has said [DONE] may take to end */

typedef struct call {
    cedar_http *client;
    CURL *easy;                 /* kept from request to request */
    struct call *next;          /* of those ended, or of those to be used again */
    uint32_t at;                /* place among the active ones */
    struct curl_slist *headers;
    char *body;                 /* NULL once it is sent and the answer has begun: it is large */
    size_t body_bytes;
    int64_t now_ns;             /* when the bytes at hand came */
    http_sse stream;
    http_answer answer;
    bool is_stream, typed;      /* the answer's content type, once seen */
    bool coded;                 /* it is compressed, though nobody asked for that */
    char *error_body;           /* [BODY_BYTES] beginning of an answer that is none, NULL = nothing of it came */
    size_t error_bytes;
    char curl_error[CURL_ERROR_SIZE];
    cedar_http_result result;
} call;

struct cedar_http {
    cedar_http_opts opts;
    char *key;
    CURLM *multi;
    int epoll;
    int64_t timer_ns;           /* when libcurl wants to be called, -1 = never */
    int64_t look_ns;            /* when limits are looked at next */
    call **active;              /* [active_count of active_capacity] */
    uint32_t active_count, active_capacity;
    call *ended, **ended_tail, *spare;
};

const char *cedar_http_class_name(cedar_http_class c) {
    static const char *const names[CEDAR_HTTP_CLASS_COUNT] = {
        "", "connect", "reset", "first_timeout", "stall_timeout", "total_timeout", "malformed", "too_long", "http_4xx",
        "http_429", "http_5xx", "context_overflow", "ended_early", "stream_error", "no_usage", "cut" };
    return (unsigned)c < CEDAR_HTTP_CLASS_COUNT ? names[c] : "?";
}

/* --- making and freeing ------------------------------------------------------------------------------------------- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *self, void *known) {
    cedar_http *c = self;
    (void)easy;
    struct epoll_event e = { .data.fd = fd };
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(c->epoll, EPOLL_CTL_DEL, fd, &e);
        curl_multi_assign(c->multi, fd, NULL);
        return 0;
    }
    e.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
    int rc = epoll_ctl(c->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &e);
    if (rc && errno == EEXIST) rc = epoll_ctl(c->epoll, EPOLL_CTL_MOD, fd, &e);
    if (rc && errno == ENOENT) rc = epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &e);
    curl_multi_assign(c->multi, fd, c);
    return rc ? -1 : 0;
}

static int on_timer(CURLM *multi, long timeout_ms, void *self) {
    cedar_http *c = self;
    (void)multi;
    c->timer_ns = timeout_ms < 0 ? -1 : cedar_now_ns() + timeout_ms * 1000000;
    return 0;
}

/* libcurl looks at the file when it connects: of each request it would say what can be said before the first. A pipe
 * would be empty by then, and who opens one waits for its other end. */
static cedar_status check_ca_file(const char *path, cedar_err *err) {
    char *text;
    size_t bytes;
    struct stat is;
    if (!stat(path, &is) && !S_ISREG(is.st_mode))
        return cedar_fail(err, CEDAR_E_IO, "http_ca_file: %.200s is no regular file, and it is read again for later "
                          "connections", path);
    cedar_status st = cedar_file_read(path, CA_BYTES_MAX, &text, &bytes, err);
    if (st) return cedar_fail_in(err, st, "http_ca_file");
    bool any = strstr(text, "CERTIFICATE-----") != NULL;
    cedar_free(text);
    if (any) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_FORMAT, "http_ca_file: %.200s has no certificate in PEM form, which begins with "
                      "-----BEGIN CERTIFICATE-----", path);
}

cedar_status cedar_http_new(const cedar_http_opts *opts, cedar_http **out, cedar_err *err) {
    cedar_status st = cedar_files_allow(opts->streams_max, "http_concurrent_max", err);
    if (!st && opts->ca_file) st = check_ca_file(opts->ca_file, err);
    if (st) return st;
    if (curl_global_init(CURL_GLOBAL_DEFAULT)) return cedar_fail(err, CEDAR_E_OOM, "libcurl does not start");
    cedar_http *c = cedar_calloc(1, sizeof *c);
    if (!c) {
        curl_global_cleanup();
        return cedar_fail(err, CEDAR_E_OOM, "no memory for an HTTP client");
    }
    c->opts = *opts;
    c->opts.key = NULL;
    c->timer_ns = -1;
    c->ended_tail = &c->ended;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->multi = curl_multi_init();
    c->key = cedar_strdup(opts->key);
    if (c->epoll < 0 || !c->multi || (opts->key && !c->key)) {
        cedar_http_free(c);
        return cedar_fail(err, CEDAR_E_OOM, "no memory for an HTTP client");
    }
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, opts->streams_max ? (long)opts->streams_max : 4096L);
    *out = c;
    return CEDAR_OK;
}

/* What a request needed and the next one does not. */
static void release(call *q) {
    curl_slist_free_all(q->headers);
    q->headers = NULL;
    cedar_free(q->body);
    q->body = NULL;
    cedar_free(q->error_body);
    q->error_body = NULL;
}

static void call_free(call *q) {
    release(q);
    http_sse_free(&q->stream);
    curl_easy_cleanup(q->easy);
    cedar_free(q);
}

static void list_free(call *q) {
    while (q) {
        call *next = q->next;
        call_free(q);
        q = next;
    }
}

void cedar_http_free(cedar_http *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->active_count; i++) {
        curl_multi_remove_handle(c->multi, c->active[i]->easy);
        call_free(c->active[i]);
    }
    list_free(c->ended);
    list_free(c->spare);
    if (c->multi) curl_multi_cleanup(c->multi);
    if (c->epoll >= 0) close(c->epoll);
    if (c->key) explicit_bzero(c->key, strlen(c->key));
    cedar_free(c->key);
    cedar_free(c->active);
    cedar_free(c);
    curl_global_cleanup();
}

/* --- what comes --------------------------------------------------------------------------------------------------- */

static bool on_event(void *self, const char *data, size_t bytes) {
    call *q = self;
    return http_answer_event(&q->answer, data, bytes, q->now_ns);
}

/* The value of a header line when it has this name, else NULL. Not ended by a 0 byte. */
static const char *header_value(const char *line, size_t bytes, const char *name, size_t *value_bytes) {
    size_t n = strlen(name);
    if (bytes <= n || strncasecmp(line, name, n)) return NULL;
    while (n < bytes && line[n] == ' ') n++;
    *value_bytes = bytes - n;
    return line + n;
}

static size_t on_header(char *line, size_t size, size_t count, void *self) {
    call *q = self;
    size_t bytes = size * count, n;
    const char *v;
    if (bytes > 5 && memcmp(line, "HTTP/", 5) == 0) {   /* an answer may come behind one that says "go on" */
        q->typed = q->is_stream = q->coded = false;
        q->result.retry_after_s = -1;
    }
    if ((v = header_value(line, bytes, "content-type:", &n))) {
        q->typed = true;
        q->is_stream = n >= 17 && strncasecmp(v, "text/event-stream", 17) == 0;
    } else if ((v = header_value(line, bytes, "content-encoding:", &n))) {
        q->coded = n < 8 || strncasecmp(v, "identity", 8) != 0;
    } else if ((v = header_value(line, bytes, "retry-after:", &n)) && n && *v >= '0' && *v <= '9') {
        int64_t s = 0;
        for (size_t i = 0; i < n && v[i] >= '0' && v[i] <= '9' && s < 1000000000; i++) s = 10 * s + (v[i] - '0');
        q->result.retry_after_s = s;
    }
    return bytes;
}

/* Whether the answer's bytes are an event stream; status: of HTTP. */
static bool has_stream(const call *q, long status) {
    return status == 200 && (!q->typed || q->is_stream) && !q->coded;
}

static void keep_error(call *q, const char *bytes, size_t count) {
    if (!q->error_body) q->error_body = cedar_calloc(BODY_BYTES, 1);
    if (!q->error_body) return;
    size_t room = BODY_BYTES - 1 - q->error_bytes, n = count < room ? count : room;
    memcpy(q->error_body + q->error_bytes, bytes, n);
    q->error_bytes += n;
}

/* What the event stream's parser thinks of it, as the class of the request. */
static void stream_failed(call *q, cedar_status st) {
    http_answer *a = &q->answer;
    if (a->class_) return;
    a->class_ = st == CEDAR_E_BUDGET ? CEDAR_HTTP_TOO_LONG : CEDAR_HTTP_MALFORMED;
    if (st == CEDAR_E_BUDGET)
        snprintf(a->error, sizeof a->error, "an event is longer than %d bytes", CEDAR_HTTP_EVENT_BYTES_MAX);
    else snprintf(a->error, sizeof a->error, "no memory for an event");
}

/* An endpoint may answer before it has read the whole body; libcurl then still sends it. */
static void drop_body(call *q) {
    curl_off_t sent = 0;
    if (!q->body) return;
    curl_easy_getinfo(q->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
    if (sent < (curl_off_t)q->body_bytes) return;
    cedar_free(q->body);
    q->body = NULL;
}

static size_t on_bytes(char *bytes, size_t size, size_t count, void *self) {
    call *q = self;
    size_t n = size * count;
    long status = 0;
    q->now_ns = cedar_now_ns();
    drop_body(q);
    curl_easy_getinfo(q->easy, CURLINFO_RESPONSE_CODE, &status);
    if (!has_stream(q, status)) {
        keep_error(q, bytes, n);
        return n;
    }
    cedar_status st = http_sse_feed(&q->stream, bytes, n);
    if (!st) return n;
    stream_failed(q, st);
    return 0;       /* ends the transfer */
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static cedar_status take_call(cedar_http *c, call **out, cedar_err *err) {
    if (c->active_count == c->active_capacity) {
        uint32_t capacity = c->active_capacity ? 2 * c->active_capacity : 64;
        call **grown = cedar_realloc(c->active, capacity, sizeof *grown);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u requests", capacity);
        c->active = grown;
        c->active_capacity = capacity;
    }
    call *q = c->spare;
    if (q) {
        c->spare = q->next;
    } else {
        q = cedar_calloc(1, sizeof *q);
        if (q) q->easy = curl_easy_init();
        if (!q || !q->easy) {
            cedar_free(q);
            return cedar_fail(err, CEDAR_E_OOM, "no memory for a request");
        }
        q->client = c;
        q->stream = (http_sse){ .limit = CEDAR_HTTP_EVENT_BYTES_MAX, .self = q, .event = on_event };
    }
    q->next = NULL;
    q->answer = (http_answer){ .key = c->key, .first_ns = -1, .last_ns = -1 };
    q->typed = q->is_stream = q->coded = false;
    q->error_bytes = 0;
    *q->curl_error = 0;
    http_sse_restart(&q->stream);
    *out = q;
    return CEDAR_OK;
}

static bool add_header(call *q, const char *line) {
    struct curl_slist *longer = curl_slist_append(q->headers, line);
    if (longer) q->headers = longer;
    return longer != NULL;
}

static bool add_headers(call *q, const char *const *headers, size_t count) {
    /* "Expect: 100-continue" would put a wait of libcurl's own in front of every long prompt */
    bool ok = add_header(q, "Content-Type: application/json") && add_header(q, "Accept: text/event-stream") &&
              add_header(q, "Expect:");
    for (size_t i = 0; i < count && ok; i++) ok = add_header(q, headers[i]);
    if (q->client->key && ok) {
        size_t n = strlen(q->client->key) + 32;
        char *line = cedar_calloc(n, 1);
        ok = line != NULL;
        if (line) {
            snprintf(line, n, "Authorization: Bearer %s", q->client->key);
            ok = add_header(q, line);
            explicit_bzero(line, n);
        }
        cedar_free(line);
    }
    return ok;
}

cedar_status cedar_http_url(const char *url, size_t bytes) {
    static const CURLUPart secrets[] = { CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT };
    CURLU *parts = curl_url();
    char *text = cedar_calloc(bytes + 1, 1), *part = NULL;
    bool memory = parts && text, good = memory;
    if (text) memcpy(text, url, bytes);
    /* libcurl takes the path of "http:///path" for a host */
    good = good && !strstr(text, ":///") && curl_url_set(parts, CURLUPART_URL, text, 0) == CURLUE_OK &&
           curl_url_get(parts, CURLUPART_SCHEME, &part, 0) == CURLUE_OK &&
           (strcmp(part, "http") == 0 || strcmp(part, "https") == 0);
    curl_free(part);
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets && good; i++) {
        good = curl_url_get(parts, secrets[i], &part, 0) != CURLUE_OK;
        if (!good) curl_free(part);
    }
    cedar_free(text);
    curl_url_cleanup(parts);
    return good ? CEDAR_OK : memory ? CEDAR_E_ARG : CEDAR_E_OOM;
}

/* What all transfers have in common. */
static void set_common(CURL *easy, const char *url, const char *ca_file, int64_t connect_ns) {
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
    /* to libcurl 0 is its own limit of 300 s */
    long connect_ms = connect_ns ? (long)((connect_ns + 999999) / 1000000) : (long)INT32_MAX;
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, connect_ms);
    /* A folder of authorities would stay beside those of a file. And while there is one libcurl reads the system's file
     * anew at each connection: some 20 ms in the thread that takes the times. */
    curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
    if (ca_file) curl_easy_setopt(easy, CURLOPT_CAINFO, ca_file);
}

static void set_options(call *q, const char *url) {
    curl_easy_reset(q->easy);
    set_common(q->easy, url, q->client->opts.ca_file, q->client->opts.connect_ns);
    curl_easy_setopt(q->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body_bytes);
    curl_easy_setopt(q->easy, CURLOPT_POSTFIELDS, q->body);
    curl_easy_setopt(q->easy, CURLOPT_HTTPHEADER, q->headers);
    curl_easy_setopt(q->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(q->easy, CURLOPT_HEADERDATA, q);
    curl_easy_setopt(q->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(q->easy, CURLOPT_WRITEDATA, q);
    curl_easy_setopt(q->easy, CURLOPT_PRIVATE, q);
    curl_easy_setopt(q->easy, CURLOPT_ERRORBUFFER, q->curl_error);
}

cedar_status cedar_http_send(cedar_http *c, const char *url, const char *const *headers, size_t count, char *body,
                             size_t body_bytes, void *tag, cedar_err *err) {
    call *q = NULL;
    cedar_status st = take_call(c, &q, err);
    if (st) {
        cedar_free(body);
        return st;
    }
    q->body = body;
    q->body_bytes = body_bytes;
    bool ok = add_headers(q, headers, count);
    if (ok) {
        set_options(q, url);
        q->result = (cedar_http_result){ .tag = tag, .first_ns = -1, .last_ns = -1, .retry_after_s = -1,
                                         .start_ns = cedar_now_ns() };
        ok = curl_multi_add_handle(c->multi, q->easy) == CURLM_OK;
    }
    if (!ok) {
        release(q);
        q->next = c->spare;
        c->spare = q;
        return cedar_fail(err, CEDAR_E_OOM, "no memory for a request");
    }
    q->at = c->active_count;
    c->active[c->active_count++] = q;
    return CEDAR_OK;
}

/* --- the end of a request ----------------------------------------------------------------------------------------- */

static void say(call *q, cedar_http_class why, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void say(call *q, cedar_http_class why, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    q->result.class_ = why;
    vsnprintf(q->result.error, sizeof q->result.error, fmt, args);
    va_end(args);
}

static cedar_http_class class_of_status(long status) {
    return status == 429 ? CEDAR_HTTP_429 : status >= 500 ? CEDAR_HTTP_5XX : CEDAR_HTTP_4XX;
}

/* An answer that is no event stream. */
static void judge_body(call *q, int status) {
    char text[CEDAR_HTTP_ERROR_BYTES] = "";
    if (q->coded) snprintf(text, sizeof text, "it is compressed, which was not asked for");
    else if (q->error_body) http_error_text(q->error_body, q->client->key, text);
    if (status == 200) {
        say(q, CEDAR_HTTP_MALFORMED, "the answer is no event stream: %.200s", text);
        return;
    }
    bool overflow = status >= 400 && status < 500 && http_says_overflow(text);
    say(q, overflow ? CEDAR_HTTP_OVERFLOW : class_of_status(status), "%sHTTP status %d%s%.200s",
        overflow ? "context overflow: " : "", status, *text ? ": " : "", text);
}

static void judge_stream(call *q) {
    http_answer *a = &q->answer;
    bool overflow = a->class_ == CEDAR_HTTP_OVERFLOW;
    if (a->class_) say(q, a->class_, "%s%.240s", overflow ? "context overflow: " : "", a->error);
    else if (!a->done && !(a->finished && a->usage))
        say(q, CEDAR_HTTP_ENDED_EARLY, "the stream ended after %u events with content, without [DONE]", a->deltas);
    else if (!a->usage) say(q, CEDAR_HTTP_NO_USAGE, "the answer came without usage, so its tokens cannot be counted");
}

/* What would help TLS, NULL when it is not TLS that failed. */
static const char *tls_advice(CURLcode code) {
    switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
        return "the certificate must name the URL's host, be in date, and come from an authority of the system or of "
               "http_ca_file";
    case CURLE_SSL_CACERT_BADFILE:
        return "authorities are those of http_ca_file, else of the system (package ca-certificates)";
    case CURLE_SSL_CONNECT_ERROR: return "is it https that this port speaks?";
    default: return NULL;
    }
}

/* libcurl's reason; about TLS that is in the words of the TLS library. */
static void explain(const call *q, CURLcode code, char out[CEDAR_HTTP_ERROR_BYTES]) {
    const char *why = *q->curl_error ? q->curl_error : curl_easy_strerror(code), *advice = tls_advice(code);
    if (advice) snprintf(out, CEDAR_HTTP_ERROR_BYTES, "TLS: %.150s; %s", why, advice);
    else snprintf(out, CEDAR_HTTP_ERROR_BYTES, "%.200s", why);
}

static void judge_transfer(call *q, CURLcode code) {
    char why[CEDAR_HTTP_ERROR_BYTES];
    explain(q, code, why);
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
    case CURLE_PEER_FAILED_VERIFICATION: say(q, CEDAR_HTTP_CONNECT, "no connection: %.300s", why); break;
    case CURLE_OPERATION_TIMEDOUT:
        say(q, CEDAR_HTTP_CONNECT, "no connection within http_connect_s, the handshake of TLS included: %.200s", why);
        break;
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_BAD_CONTENT_ENCODING: say(q, CEDAR_HTTP_MALFORMED, "not HTTP: %.200s", why); break;
    default:
        say(q, CEDAR_HTTP_RESET, "the connection broke after %u events with content: %.200s", q->answer.deltas, why);
    }
}

/* Moves a request from the active to the ended ones. What it says of itself is set before. */
static void end_call(call *q) {
    cedar_http *c = q->client;
    cedar_http_result *r = &q->result;
    const http_answer *a = &q->answer;
    curl_multi_remove_handle(c->multi, q->easy);
    r->first_ns = a->first_ns;
    r->last_ns = a->last_ns;
    r->deltas = a->deltas;
    r->usage = a->usage;
    r->prompt_tokens = a->prompt_tokens;
    r->completion_tokens = a->completion_tokens;
    r->cached_tokens = a->cached_tokens;
    memcpy(r->finish, a->finish, sizeof r->finish);
    r->end_ns = cedar_now_ns();
    http_clean_text(r->error, c->key);
    c->active[q->at] = c->active[--c->active_count];
    c->active[q->at]->at = q->at;
    release(q);
    *c->ended_tail = q;
    c->ended_tail = &q->next;
}

static void on_done(call *q, CURLcode code) {
    long status = 0;
    curl_easy_getinfo(q->easy, CURLINFO_RESPONSE_CODE, &status);
    q->result.status = (int32_t)status;
    bool stream = has_stream(q, status);
    if (stream && code == CURLE_OK && !q->answer.class_) {
        cedar_status st = http_sse_end(&q->stream);
        if (st) stream_failed(q, st);
    }
    if (stream && (code == CURLE_OK || q->answer.done || q->answer.class_)) judge_stream(q);
    else if (code == CURLE_OK || (status >= 400 && q->error_body)) judge_body(q, (int)status);
    else judge_transfer(q, code);
    end_call(q);
}

/* The limits of one request. */
static void look_at(call *q, int64_t now) {
    const cedar_http_opts *o = &q->client->opts;
    const http_answer *a = &q->answer;
    int64_t ran = now - q->result.start_ns;
    if (a->done) {      /* all is said; an endpoint that does not end its stream is not waited for */
        if (now - (a->last_ns < 0 ? q->result.start_ns : a->last_ns) < DONE_NS) return;
        judge_stream(q);
    } else if (o->total_ns && ran > o->total_ns) {
        say(q, CEDAR_HTTP_TOTAL_TIMEOUT, "no end within %.3g s, after %u events with content",
            (double)o->total_ns / 1e9, a->deltas);
    } else if (o->first_ns && !a->deltas && ran > o->first_ns) {
        say(q, CEDAR_HTTP_FIRST_TIMEOUT, "no content within %.3g s", (double)o->first_ns / 1e9);
    } else if (o->stall_ns && a->deltas && now - a->last_ns > o->stall_ns) {
        say(q, CEDAR_HTTP_STALL_TIMEOUT, "no further content within %.3g s, after %u events with content",
            (double)o->stall_ns / 1e9, a->deltas);
    } else {
        return;
    }
    long status = 0;
    curl_easy_getinfo(q->easy, CURLINFO_RESPONSE_CODE, &status);
    q->result.status = (int32_t)status;
    end_call(q);
}

void cedar_http_cut(cedar_http *c) {
    while (c->active_count) {
        call *q = c->active[c->active_count - 1];
        say(q, CEDAR_HTTP_CUT, "cut");
        end_call(q);
    }
}

bool cedar_http_next(cedar_http *c, cedar_http_result *out) {
    call *q = c->ended;
    if (!q) return false;
    c->ended = q->next;
    if (!c->ended) c->ended_tail = &c->ended;
    *out = q->result;
    q->next = c->spare;
    c->spare = q;
    return true;
}

/* --- letting things happen ---------------------------------------------------------------------------------------- */

static cedar_status collect(cedar_http *c, CURLMcode code, cedar_err *err) {
    if (code != CURLM_OK) return cedar_fail(err, CEDAR_E_IO, "libcurl: %s", curl_multi_strerror(code));
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left));) {
        if (m->msg != CURLMSG_DONE) continue;
        char *q = NULL;
        CURLcode result = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &q);
        on_done((call *)(void *)q, result);
    }
    return CEDAR_OK;
}

static int wait_ms(const cedar_http *c, int64_t now, int64_t timeout_ns) {
    int64_t until = now + timeout_ns;
    if (c->timer_ns >= 0 && c->timer_ns < until) until = c->timer_ns;
    if (c->active_count && c->look_ns < until) until = c->look_ns;
    if (c->ended || until <= now) return 0;
    int64_t ms = (until - now + 999999) / 1000000;
    return ms > 60000 ? 60000 : (int)ms;
}

cedar_status cedar_http_poll(cedar_http *c, int64_t timeout_ns, cedar_err *err) {
    struct epoll_event events[EVENTS_MAX];
    int running, n = epoll_wait(c->epoll, events, EVENTS_MAX, wait_ms(c, cedar_now_ns(), timeout_ns));
    if (n < 0 && errno != EINTR) return cedar_fail(err, CEDAR_E_IO, "waiting for connections: %s", strerror(errno));
    cedar_status st = CEDAR_OK;
    for (int i = 0; i < n && !st; i++) {
        uint32_t e = events[i].events;
        int mask = (e & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) | (e & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                   (e & EPOLLERR ? CURL_CSELECT_ERR : 0);
        st = collect(c, curl_multi_socket_action(c->multi, events[i].data.fd, mask, &running), err);
    }
    int64_t now = cedar_now_ns();
    if (!st && c->timer_ns >= 0 && c->timer_ns <= now) {
        c->timer_ns = -1;
        st = collect(c, curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running), err);
    }
    if (st || now < c->look_ns) return st;
    c->look_ns = now + LOOK_NS;
    for (uint32_t i = c->active_count; i-- > 0;) look_at(c->active[i], now);
    return CEDAR_OK;
}

/* --- small documents ---------------------------------------------------------------------------------------------- */

typedef struct document {
    char *text;
    size_t bytes, limit;
} document;

static size_t on_document(char *bytes, size_t size, size_t count, void *self) {
    document *d = self;
    size_t n = size * count;
    if (n > d->limit - d->bytes) return 0;
    memcpy(d->text + d->bytes, bytes, n);
    d->bytes += n;
    return n;
}

cedar_status cedar_http_get(const cedar_http *c, const char *url, size_t bytes_max, int64_t timeout_ns, char **out,
                            cedar_err *err) {
    document d = { .text = cedar_calloc(bytes_max + 1, 1), .limit = bytes_max };
    call q = { .client = (cedar_http *)(uintptr_t)c, .easy = curl_easy_init() };
    if (!d.text || !q.easy || !add_headers(&q, NULL, 0)) {
        cedar_free(d.text);
        release(&q);
        curl_easy_cleanup(q.easy);
        return cedar_fail(err, CEDAR_E_OOM, "no memory for %s", url);
    }
    set_common(q.easy, url, c->opts.ca_file, timeout_ns);
    curl_easy_setopt(q.easy, CURLOPT_ERRORBUFFER, q.curl_error);
    curl_easy_setopt(q.easy, CURLOPT_TIMEOUT_MS, (long)(timeout_ns / 1000000));
    curl_easy_setopt(q.easy, CURLOPT_HTTPHEADER, q.headers);
    curl_easy_setopt(q.easy, CURLOPT_WRITEFUNCTION, on_document);
    curl_easy_setopt(q.easy, CURLOPT_WRITEDATA, &d);
    CURLcode code = curl_easy_perform(q.easy);
    long status = 0;
    curl_easy_getinfo(q.easy, CURLINFO_RESPONSE_CODE, &status);
    release(&q);
    curl_easy_cleanup(q.easy);
    if (code == CURLE_OK && status == 200) {
        http_copy_text(d.text, SIZE_MAX, d.text, c->key);
        *out = d.text;
        return CEDAR_OK;
    }
    cedar_free(d.text);
    if (code == CURLE_OK) return cedar_fail(err, CEDAR_E_IO, "GET %.200s: HTTP status %ld", url, status);
    char why[CEDAR_HTTP_ERROR_BYTES];
    explain(&q, code, why);
    http_clean_text(why, c->key);       /* it may quote the certificate */
    return cedar_fail(err, CEDAR_E_IO, "GET %.120s: %s", url, why);
}
