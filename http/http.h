/* Streaming requests to OpenAI-compatible endpoints: many at a time, in the caller's thread.
 *
 * What is measured: monotonic nanoseconds (base/clock.h) at the start of a request, at its first and last content, and
 * at its end. Content is any text that the model made: content, reasoning, reasoning_content, text, tool calls.
 * Nothing is sent twice, nothing is redirected, no proxy of the environment is used, no certificate goes unchecked.
 *
 * Ownership   Said at each function. The key is copied and appears in no message.
 * Threads     One thread per client.
 * Errors      base/status.h for what concerns the client; what happens to one request is in its result. */
#ifndef CEDAR_HTTP_HTTP_H
#define CEDAR_HTTP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* What became of a request. Everything but OK is a failed one. */
typedef enum cedar_http_class {
    CEDAR_HTTP_OK,
    CEDAR_HTTP_CONNECT,         /* no connection: refused, no such host, connect timeout, TLS */
    CEDAR_HTTP_RESET,           /* the connection broke */
    CEDAR_HTTP_FIRST_TIMEOUT,   /* no content within first_ns */
    CEDAR_HTTP_STALL_TIMEOUT,   /* no further content within stall_ns */
    CEDAR_HTTP_TOTAL_TIMEOUT,
    CEDAR_HTTP_MALFORMED,       /* what came is no event stream of JSON objects */
    CEDAR_HTTP_TOO_LONG,        /* an event of more than CEDAR_HTTP_EVENT_BYTES_MAX bytes */
    CEDAR_HTTP_4XX,             /* a status that is neither 200 nor one of the following */
    CEDAR_HTTP_429,
    CEDAR_HTTP_5XX,
    CEDAR_HTTP_OVERFLOW,        /* the endpoint says that prompt and answer exceed its context */
    CEDAR_HTTP_ENDED_EARLY,     /* the stream ended before it said that the answer had */
    CEDAR_HTTP_STREAM_ERROR,    /* an error object in the stream */
    CEDAR_HTTP_NO_USAGE,        /* the answer came without token counts */
    CEDAR_HTTP_CUT,             /* the caller gave it up */
    CEDAR_HTTP_CLASS_COUNT
} cedar_http_class;

const char *cedar_http_class_name(cedar_http_class c);  /* "" for OK */

enum { CEDAR_HTTP_EVENT_BYTES_MAX = 1 << 20, CEDAR_HTTP_ERROR_BYTES = 320 };

typedef struct cedar_http_opts {
    const char *key;            /* sent as "Authorization: Bearer KEY"; NULL: none */
    const char *ca_file;        /* PEM: whom https trusts in place of the system's authorities; NULL: those. Borrowed */
    uint32_t streams_max;       /* requests at one time, for the number of open files; 0: nobody knows */
    int64_t connect_ns, first_ns, stall_ns, total_ns;   /* limits, 0 = none; kept within 50 ms */
} cedar_http_opts;

typedef struct cedar_http cedar_http;

/* CEDAR_E_UNSUPPORTED: the system does not allow so many open files. CEDAR_E_IO, CEDAR_E_FORMAT: ca_file cannot be
 * read, or has no certificate. */
cedar_status cedar_http_new(const cedar_http_opts *opts, cedar_http **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_http_free(cedar_http *c);    /* gives up what is on its way */

/* The key that "env:NAME" or "file:PATH" names; "" gives NULL. No message contains the source's value or the key.
 * *out is owned by the caller (cedar_free). */
cedar_status cedar_http_key(const char *source, char **out, cedar_err *err) CEDAR_USE_RESULT;

/* True for the two forms above and for "". */
bool cedar_http_key_source(const char *source);

/* CEDAR_E_ARG unless it is an http or https URL of `bytes` bytes that libcurl can read, without user, password, query
 * and fragment, which may be secrets. */
cedar_status cedar_http_url(const char *url, size_t bytes) CEDAR_USE_RESULT;

typedef struct cedar_http_result {
    void *tag;
    cedar_http_class class_;
    int32_t status;                     /* HTTP status, 0 = none came */
    int64_t start_ns, end_ns;
    int64_t first_ns, last_ns;          /* content, -1 = none */
    uint32_t deltas;                    /* events with content */
    bool usage;                         /* the three counts are known */
    uint32_t prompt_tokens, completion_tokens, cached_tokens;
    int64_t retry_after_s;              /* what the endpoint asked for, -1 = nothing */
    char finish[24];                    /* its finish_reason, "" = none */
    char error[CEDAR_HTTP_ERROR_BYTES]; /* a sentence, "" for OK */
} cedar_http_result;

/* Starts a streaming POST of a JSON body. headers [count]: "Name: value". The body is the client's from now on, also
 * after a failure (cedar_free). A result with this tag follows. */
cedar_status cedar_http_send(cedar_http *c, const char *url, const char *const *headers, size_t count, char *body,
                             size_t body_bytes, void *tag, cedar_err *err) CEDAR_USE_RESULT;

/* Lets things happen for at most timeout_ns, or until a request has ended. */
cedar_status cedar_http_poll(cedar_http *c, int64_t timeout_ns, cedar_err *err) CEDAR_USE_RESULT;

/* The next ended request; false when there is none. */
bool cedar_http_next(cedar_http *c, cedar_http_result *out);

/* Ends everything that is on its way, as CEDAR_HTTP_CUT. */
void cedar_http_cut(cedar_http *c);

/* A whole small document. CEDAR_E_IO: it cannot be had within timeout_ns, has another status than 200, or more than
 * bytes_max bytes. *out, ended by a 0 byte, is owned by the caller (cedar_free). */
cedar_status cedar_http_get(const cedar_http *c, const char *url, size_t bytes_max, int64_t timeout_ns, char **out,
                            cedar_err *err) CEDAR_USE_RESULT;

/* --- Prometheus text ---------------------------------------------------------------------------------------------- */

/* One sample; both texts are borrowed from the document. */
typedef struct cedar_http_sample {
    const char *name, *labels;          /* labels without the braces */
    size_t name_bytes, label_bytes;
    double value;                       /* finite */
} cedar_http_sample;

/* The next sample of *text, which is moved behind it; false at the end. Lines that are no sample are passed over. */
bool cedar_http_sample_next(const char **text, cedar_http_sample *out);

#endif
