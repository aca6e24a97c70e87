/* An OpenAI-compatible endpoint for tests, on raw sockets in a thread of its own, that answers well or plays a fault.
 * What it has seen may be read once it has been stopped. Include once. */
#ifndef CEDAR_TESTS_FAULT_SERVER_H
#define CEDAR_TESTS_FAULT_SERVER_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"

typedef enum fault {
    FAULT_NONE,             /* max_tokens events of one token each */
    FAULT_SPLIT,            /* the same byte by byte, with \r\n and comments */
    FAULT_DRIP,             /* the same, slowly */
    FAULT_REASONING,        /* reasoning deltas alone */
    FAULT_MULTI,            /* five tokens in an event */
    FAULT_EMPTY_DELTAS,     /* events without content around those that have some */
    FAULT_NO_CONTENT,       /* nothing but such events: no token at all */
    FAULT_EARLY_STOP,       /* three tokens, whatever was asked for */
    FAULT_LONG_EVENT,       /* one event of 300 kB, which is allowed */
    FAULT_DONE_HANG,        /* says [DONE], and does not end the response */
    FAULT_GOOD_COUNT,       /* those before are no failures */
    FAULT_RESET = FAULT_GOOD_COUNT,
    FAULT_CLOSE,            /* ends the connection in the middle */
    FAULT_UNFRAMED,         /* the same where nothing but that end says how long the answer is */
    FAULT_STALL,            /* nothing more after the second event */
    FAULT_SILENT,           /* nothing at all */
    FAULT_ENDLESS,          /* drips for ever */
    FAULT_MALFORMED,        /* an event that is no JSON */
    FAULT_HUGE,             /* an event of 2 MB */
    FAULT_NOT_STREAM,       /* 200, and a JSON document */
    FAULT_COMPRESSED,       /* 200, and what might be gzip */
    FAULT_GARBAGE,          /* not HTTP */
    FAULT_302,              /* to another endpoint */
    FAULT_400,              /* with a body */
    FAULT_400_EMPTY,
    FAULT_OVERFLOW,
    FAULT_429,
    FAULT_503,
    FAULT_NO_USAGE,
    FAULT_NO_DONE,          /* ends well, but before the answer's end is said */
    FAULT_STREAM_ERROR,
    FAULT_COUNT
} fault;

/* Class that the client must find. */
static const char *const fault_class[FAULT_COUNT] = {
    [FAULT_NONE] = "", [FAULT_SPLIT] = "", [FAULT_DRIP] = "", [FAULT_REASONING] = "", [FAULT_MULTI] = "",
    [FAULT_EMPTY_DELTAS] = "", [FAULT_NO_CONTENT] = "", [FAULT_EARLY_STOP] = "", [FAULT_LONG_EVENT] = "",
    [FAULT_DONE_HANG] = "", [FAULT_RESET] = "reset", [FAULT_CLOSE] = "reset", [FAULT_UNFRAMED] = "ended_early",
    [FAULT_STALL] = "stall_timeout", [FAULT_SILENT] = "first_timeout", [FAULT_ENDLESS] = "total_timeout",
    [FAULT_MALFORMED] = "malformed", [FAULT_HUGE] = "too_long", [FAULT_NOT_STREAM] = "malformed",
    [FAULT_GARBAGE] = "malformed", [FAULT_COMPRESSED] = "malformed", [FAULT_302] = "http_4xx",
    [FAULT_400] = "http_4xx", [FAULT_400_EMPTY] = "http_4xx", [FAULT_OVERFLOW] = "context_overflow",
    [FAULT_429] = "http_429", [FAULT_503] = "http_5xx", [FAULT_NO_USAGE] = "no_usage", [FAULT_NO_DONE] = "ended_early",
    [FAULT_STREAM_ERROR] = "stream_error" };

/* One request as the server saw it. */
typedef struct seen {
    fault what;
    uint32_t prompt_tokens, max_tokens;     /* prompt: ids or words of it */
    char session[80], request[80], key[80];
    char path[40];
    uint64_t front_hash;                    /* of the first 400 bytes behind "prompt" or "messages" */
    char *body;                             /* kept when asked for */
    int64_t got_ns, first_ns, last_ns;      /* request complete; first and last event with content sent, 0 = none */
} seen;

enum { TLS_HANDSHAKE = 22 };                /* first byte of a client that wants TLS */

typedef enum ending { END_KEEP, END_CLOSE, END_RESET, END_HANG } ending;

typedef struct connection {
    int fd;
    char *in, *out;
    size_t in_bytes, in_room, out_bytes, out_room, out_at, piece;
    size_t first_at, last_at;               /* ends of the first and last event with content in out, 0 = none */
    int64_t due_ns, pause_ns;               /* between pieces */
    ending end;
    bool answering, unframed;               /* unframed: the answer has no chunks */
    size_t seen;                            /* number in the log, SIZE_MAX = of none */
    size_t at;                              /* place in the list */
} connection;

typedef struct fault_server {
    int listener, epoll, port;
    pthread_t thread;
    atomic_bool stop;
    fault always;                           /* this one, when script is NULL and random is 0 */
    const fault *script;                    /* [script_count], then again from its beginning */
    size_t script_count;
    uint64_t random;                        /* key of the faults drawn, 0 = none */
    fault random_last;                      /* FAULT_COUNT: all but FAULT_ENDLESS */
    int64_t drip_ns;                        /* pause of FAULT_DRIP, and in front of the first event of all */
    bool keep_bodies;
    const char *elsewhere;                  /* where FAULT_302 points; NULL: nobody listens there */
    ending hello;                           /* what a client gets that begins with TLS; END_KEEP: a 400 and the end */
    connection **list;
    size_t count, room;
    seen *log;
    size_t logged, log_room;
    uint32_t answering, answering_max;
    uint32_t taken;                         /* connections */
} fault_server;

static void server_check(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fault server: %s: %s\n", what, strerror(errno));
    abort();
}

static void out_bytes(connection *c, const char *bytes, size_t n) {
    if (c->out_room - c->out_bytes < n) {
        while (c->out_room - c->out_bytes < n) c->out_room = c->out_room ? 2 * c->out_room : 4096;
        c->out = realloc(c->out, c->out_room);
        server_check(c->out, "memory");
    }
    memcpy(c->out + c->out_bytes, bytes, n);
    c->out_bytes += n;
}

static void out_format(connection *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void out_format(connection *c, const char *fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    out_bytes(c, text, (size_t)n);
}

static void out_chunk(connection *c, const char *bytes, size_t n) {
    if (!c->unframed) out_format(c, "%zx\r\n", n);
    out_bytes(c, bytes, n);
    if (!c->unframed) out_bytes(c, "\r\n", 2);
}

static void out_event(connection *c, bool content, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void out_event(connection *c, bool content, const char *fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    int n = snprintf(text, sizeof text, "data: ");
    n += vsnprintf(text + n, sizeof text - (size_t)n, fmt, args);
    va_end(args);
    n += snprintf(text + n, sizeof text - (size_t)n, "\n\n");
    out_chunk(c, text, (size_t)n);
    if (content && !c->first_at) c->first_at = c->out_bytes;
    if (content) c->last_at = c->out_bytes;
}

static void out_status(connection *c, const char *status, const char *headers, const char *body) {
    out_format(c, "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n%s", status, headers, strlen(body), body);
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static void put_content(connection *c, const seen *s, const char *member, const char *value) {
    bool chat = strstr(s->path, "chat") != NULL;
    if (chat) out_event(c, *value, "{\"choices\":[{\"index\":0,\"delta\":{\"%s\":\"%s\"}}]}", member, value);
    else out_event(c, *value, "{\"choices\":[{\"index\":0,\"text\":\"%s\"}]}", value);
}

static void put_usage(connection *c, const seen *s, uint32_t completion) {
    out_event(c, false, "{\"choices\":[],\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":1,"
              "\"prompt_tokens_details\":{\"cached_tokens\":%u}}}", s->prompt_tokens, completion, s->prompt_tokens / 2);
}

static void put_end(connection *c) {
    out_event(c, false, "[DONE]");
    out_bytes(c, "0\r\n\r\n", 5);
}

static void put_answer(connection *c, const seen *s) {
    fault f = s->what;
    uint32_t tokens = f == FAULT_EARLY_STOP && s->max_tokens > 3 ? 3 : f == FAULT_NO_CONTENT ? 0 : s->max_tokens;
    bool empty = f == FAULT_EMPTY_DELTAS || f == FAULT_NO_CONTENT;
    const char *member = f == FAULT_REASONING ? "reasoning_content" : "content";
    if (empty) out_event(c, false, "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}");
    for (uint32_t i = 0; i < tokens; i += f == FAULT_MULTI ? 5 : 1) {
        put_content(c, s, member, "word ");
        if (empty) put_content(c, s, "content", "");
    }
    if (empty) put_content(c, s, "content", "");
    out_event(c, false, "{\"choices\":[{\"index\":0,\"delta\":{},\"text\":\"\",\"finish_reason\":\"%s\"}]}",
              f == FAULT_EARLY_STOP ? "stop" : "length");
    if (f != FAULT_NO_USAGE) put_usage(c, s, tokens);
}

static void put_long(connection *c, size_t n) {
    char *text = malloc(n + 64);
    server_check(text, "memory");
    size_t at = (size_t)sprintf(text, "data: {\"choices\":[{\"text\":\"");
    memset(text + at, 'x', n);
    at += n;
    at += (size_t)sprintf(text + at, "\",\"delta\":{}}]}\n\n");
    out_chunk(c, text, at);
    if (!c->first_at) c->first_at = c->out_bytes;
    c->last_at = c->out_bytes;
    free(text);
}

/* The answer so far as bytes, with \r\n for \n and a comment in front of each event. Chunks are made anew. */
static void put_split(connection *c, const seen *s) {
    connection plain = { 0 };
    put_answer(&plain, s);
    for (char *at = plain.out; at < plain.out + plain.out_bytes;) {
        char *data;
        size_t n = strtoul(at, &data, 16);
        data += 2;
        out_chunk(c, ": comment\r\n", 11);
        out_chunk(c, data, n - 2);
        out_chunk(c, "\r\n\r\n", 4);
        if (!c->first_at) c->first_at = c->out_bytes;
        at = data + n + 2;
    }
    c->last_at = 0;
    free(plain.out);
}

static void make_answer(const fault_server *v, connection *c, const seen *s) {
    static const char json[] = "Content-Type: application/json\r\n";
    char location[128];
    c->piece = SIZE_MAX;
    c->pause_ns = 0;
    c->end = END_KEEP;
    c->out_bytes = c->out_at = c->first_at = c->last_at = 0;
    switch (s->what) {
    case FAULT_SILENT: c->end = END_HANG; return;
    case FAULT_GARBAGE: out_format(c, "what is HTTP?\r\n\r\n"); c->end = END_CLOSE; return;
    case FAULT_400:
        out_status(c, "400 Bad Request", json, "{\"error\":{\"message\":\"no such thing, key sk-secret\"}}");
        return;
    case FAULT_COMPRESSED:
        out_status(c, "200 OK", "Content-Type: text/event-stream\r\nContent-Encoding: gzip\r\n", "\x1f\x8b\n\nwhat");
        return;
    case FAULT_302:
        snprintf(location, sizeof location, "Location: %s/v1/completions\r\n",
                 v->elsewhere ? v->elsewhere : "http://127.0.0.1:1");
        out_status(c, "302 Found", location, "");
        return;
    case FAULT_400_EMPTY: out_status(c, "400 Bad Request", "", ""); return;
    case FAULT_OVERFLOW:
        out_status(c, "400 Bad Request", json, "{\"object\":\"error\",\"message\":\"This model's maximum context "
                   "length is 4096 tokens. However, you requested 5000 tokens.\",\"code\":400}");
        return;
    case FAULT_429: out_status(c, "429 Too Many Requests", "Retry-After: 7\r\n", "slow down"); return;
    case FAULT_503: out_status(c, "503 Service Unavailable", "", "<html>busy</html>"); return;
    case FAULT_NOT_STREAM: out_status(c, "200 OK", json, "{\"choices\":[{\"text\":\"all at once\"}]}"); return;
    default: break;
    }
    c->unframed = s->what == FAULT_UNFRAMED;
    out_format(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n%s\r\n",
               c->unframed ? "Connection: close\r\n" : "Transfer-Encoding: chunked\r\n");
    switch (s->what) {
    case FAULT_SPLIT: put_split(c, s); c->piece = 1; break;
    case FAULT_LONG_EVENT: put_long(c, 300000); put_usage(c, s, s->max_tokens); break;
    case FAULT_HUGE: put_long(c, 2 << 20); break;
    case FAULT_MALFORMED: put_content(c, s, "content", "word"); out_event(c, false, "{\"choices\":[{"); break;
    case FAULT_STREAM_ERROR:
        put_content(c, s, "content", "word");
        out_event(c, false, "{\"error\":{\"message\":\"the engine died\",\"code\":500}}");
        break;
    case FAULT_RESET:
    case FAULT_CLOSE:
    case FAULT_UNFRAMED:
    case FAULT_STALL: put_content(c, s, "content", "a"); put_content(c, s, "content", "b"); break;
    case FAULT_NO_DONE: put_content(c, s, "content", "a"); break;
    case FAULT_ENDLESS: for (int i = 0; i < 10000; i++) put_content(c, s, "content", "a"); break;
    default: put_answer(c, s);
    }
    if (s->what == FAULT_RESET) c->end = END_RESET;
    else if (s->what == FAULT_CLOSE || c->unframed) c->end = END_CLOSE;
    else if (s->what == FAULT_STALL) c->end = END_HANG;
    else if (s->what == FAULT_NO_DONE) out_bytes(c, "0\r\n\r\n", 5);
    else put_end(c);
    if (s->what == FAULT_DONE_HANG) {
        c->out_bytes -= 5;      /* without the last chunk */
        c->end = END_HANG;
    }
    if (s->what == FAULT_DRIP || s->what == FAULT_ENDLESS) {
        c->piece = 70;
        c->pause_ns = v->drip_ns;
    }
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static void header_text(const char *head, const char *name, char *out, size_t room) {
    const char *at = strcasestr(head, name);
    *out = 0;
    if (!at) return;
    at += strlen(name);
    while (*at == ' ' || *at == ':') at++;
    snprintf(out, room, "%.*s", (int)strcspn(at, "\r\n"), at);
}

static void read_body(seen *s, const char *body) {
    const char *prompt = strstr(body, "\"prompt\":"), *max = strstr(body, "\"max_tokens\":");
    s->max_tokens = max ? (uint32_t)strtoul(max + 13, NULL, 10) : 0;
    if (!prompt) prompt = strstr(body, "\"messages\":");
    if (!prompt) return;
    bool ids = strncmp(prompt, "\"prompt\":[", 10) == 0;
    s->prompt_tokens = 1;
    const char *end = ids ? strchr(prompt, ']') : max;
    for (const char *p = prompt; p < end; p++)
        s->prompt_tokens += ids ? *p == ',' : *p == ' ' || strncmp(p, "},{", 3) == 0;
    for (size_t i = 0; i < 400 && prompt[i]; i++) s->front_hash = cedar_mix64(s->front_hash ^ (uint64_t)prompt[i]);
}

static fault choose(fault_server *v) {
    if (v->script) return v->script[v->logged % v->script_count];
    if (!v->random) return v->always;
    fault last = v->random_last ? v->random_last : FAULT_COUNT;
    for (uint64_t i = 0;; i++) {
        fault f = (fault)cedar_rng_below(v->random, v->logged * 64 + i, 2 * last);
        if (f >= last) f = FAULT_NONE;
        if (f != FAULT_ENDLESS) return f;
    }
}

static void log_request(fault_server *v, connection *c, char *body) {
    if (v->logged == v->log_room) {
        v->log_room = v->log_room ? 2 * v->log_room : 256;
        v->log = realloc(v->log, v->log_room * sizeof *v->log);
        server_check(v->log, "memory");
    }
    seen *s = &v->log[v->logged];
    *s = (seen){ .what = choose(v), .got_ns = cedar_now_ns() };
    header_text(c->in, "X-Session-ID", s->session, sizeof s->session);
    header_text(c->in, "X-Request-ID", s->request, sizeof s->request);
    header_text(c->in, "Authorization", s->key, sizeof s->key);
    sscanf(c->in, "POST %39s", s->path);
    read_body(s, body);
    if (v->keep_bodies) s->body = strdup(body);
    c->seen = v->logged++;
}

/* Starts an answer once the whole request is there. */
static void look_for_request(fault_server *v, connection *c) {
    char *head = c->in_bytes ? strstr(c->in, "\r\n\r\n") : NULL;
    if (!head || c->answering) return;
    const char *length = strcasestr(c->in, "Content-Length:");
    size_t bytes = length && length < head ? strtoul(length + 15, NULL, 10) : 0;
    if (c->in_bytes < (size_t)(head + 4 - c->in) + bytes) return;
    c->answering = true;
    if (strncmp(c->in, "GET", 3) == 0) {
        c->out_bytes = c->out_at = c->first_at = c->last_at = 0;
        c->piece = SIZE_MAX;
        c->end = END_KEEP;
        out_status(c, "200 OK", "", "# TYPE vllm:prefix_cache_hits_total counter\n"
                   "vllm:prefix_cache_hits_total{model_name=\"a } b\"} 12.5\nunrelated 3\n"
                   "spec_decode_accepted 7 1700\n");
        c->seen = SIZE_MAX;
    } else {
        head[2] = 0;
        log_request(v, c, head + 4);
        make_answer(v, c, &v->log[c->seen]);
        if (++v->answering > v->answering_max) v->answering_max = v->answering;
    }
    c->in_bytes = 0;
    c->due_ns = cedar_now_ns() + (c->seen == SIZE_MAX ? 0 : v->drip_ns);
}

static void end_answer(fault_server *v, connection *c) {
    if (c->answering && c->seen != SIZE_MAX) v->answering--;
    c->answering = false;
}

static void drop(fault_server *v, connection *c, bool reset) {
    struct linger now = { 1, 0 };
    end_answer(v, c);
    v->list[c->at] = v->list[--v->count];
    v->list[c->at]->at = c->at;
    if (reset) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

/* Sends what is due. */
static void go_on(fault_server *v, connection *c, int64_t now) {
    while (c->answering && c->out_at < c->out_bytes && c->due_ns <= now) {
        size_t left = c->out_bytes - c->out_at, n = left < c->piece ? left : c->piece;
        ssize_t sent = send(c->fd, c->out + c->out_at, n, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (sent < 0) {
            drop(v, c, false);
            return;
        }
        seen *s = c->seen == SIZE_MAX ? NULL : &v->log[c->seen];
        size_t before = c->out_at;
        c->out_at += (size_t)sent;
        if (s && before < c->first_at && c->out_at >= c->first_at) s->first_ns = now;
        if (s && before < c->last_at && c->out_at >= c->last_at) s->last_ns = now;
        c->due_ns = now + c->pause_ns;
        if (c->pause_ns) break;
    }
    if (!c->answering || c->out_at < c->out_bytes || c->end == END_HANG) return;
    if (c->end == END_KEEP) end_answer(v, c);
    else drop(v, c, c->end == END_RESET);
}

/* A client that wants TLS, which this server has not. Frees c, unless the client is left to wait. */
static void turn_away(fault_server *v, connection *c) {
    static const char bad[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    c->in_bytes = 0;
    if (v->hello == END_HANG) return;
    if (v->hello == END_KEEP) server_check(send(c->fd, bad, sizeof bad - 1, MSG_NOSIGNAL) > 0, "send");
    drop(v, c, v->hello == END_RESET);
}

static void read_more(fault_server *v, connection *c) {
    for (;;) {
        if (c->in_room - c->in_bytes < 4097) {
            c->in_room = c->in_room ? 2 * c->in_room : 16384;
            c->in = realloc(c->in, c->in_room);
            server_check(c->in, "memory");
        }
        ssize_t n = recv(c->fd, c->in + c->in_bytes, c->in_room - c->in_bytes - 1, 0);
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            drop(v, c, false);
            return;
        }
        c->in_bytes += (size_t)n;
        c->in[c->in_bytes] = 0;
    }
    if (c->in_bytes && c->in[0] == TLS_HANDSHAKE) turn_away(v, c);
    else look_for_request(v, c);
}

static void take_connections(fault_server *v) {
    for (int fd; (fd = accept4(v->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        int on = 1;
        v->taken++;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (v->count == v->room) {
            v->room = v->room ? 2 * v->room : 64;
            v->list = realloc(v->list, v->room * sizeof *v->list);
            server_check(v->list, "memory");
        }
        connection *c = calloc(1, sizeof *c);
        server_check(c, "memory");
        c->fd = fd;
        c->at = v->count;
        v->list[v->count++] = c;
        struct epoll_event e = { .events = EPOLLIN | EPOLLET, .data.ptr = c };
        server_check(epoll_ctl(v->epoll, EPOLL_CTL_ADD, fd, &e) == 0, "epoll_ctl");
    }
}

static void *serve(void *self) {
    fault_server *v = self;
    struct epoll_event events[64];
    while (!atomic_load(&v->stop)) {
        int n = epoll_wait(v->epoll, events, 64, 1);
        for (int i = 0; i < n; i++) {   /* one event for each socket, so what is dropped does not come again */
            if (events[i].data.ptr == v) take_connections(v);
            else read_more(v, events[i].data.ptr);
        }
        int64_t now = cedar_now_ns();
        for (size_t i = v->count; i-- > 0;)
            if (v->list[i]->answering && v->list[i]->due_ns <= now) go_on(v, v->list[i], now);
    }
    while (v->count) drop(v, v->list[v->count - 1], false);
    return NULL;
}

/* --- starting and stopping ---------------------------------------------------------------------------------------- */

/* A socket that is bound; its port. */
static int bound_socket(int *port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;
    server_check(fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0, "bind");
    server_check(getsockname(fd, (struct sockaddr *)&a, &n) == 0, "getsockname");
    *port = ntohs(a.sin_port);
    return fd;
}

static void server_start(fault_server *v) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    v->listener = bound_socket(&v->port);
    server_check(listen(v->listener, 4096) == 0, "listen");
    v->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = v };
    server_check(epoll_ctl(v->epoll, EPOLL_CTL_ADD, v->listener, &e) == 0, "epoll_ctl");
    if (!v->drip_ns) v->drip_ns = 1000000;
    server_check(pthread_create(&v->thread, NULL, serve, v) == 0, "pthread_create");
}

static void server_stop(fault_server *v) {
    atomic_store(&v->stop, true);
    pthread_join(v->thread, NULL);
    close(v->listener);
    close(v->epoll);
    free(v->list);
}

static void server_forget(fault_server *v) {
    for (size_t i = 0; i < v->logged; i++) free(v->log[i].body);
    free(v->log);
}

#endif
