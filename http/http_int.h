/* Private to http/: the event stream, and what its events say. */
#ifndef CEDAR_HTTP_HTTP_INT_H
#define CEDAR_HTTP_HTTP_INT_H

#include "http/http.h"

/* --- sse.c: server-sent events, bytes as they come ---------------------------------------------------------------- */

/* Zero-initialised with `limit`, `self` and `event` set is a new stream. The buffer grows with the longest event and is
 * then used again: events themselves cost no allocation. */
typedef struct http_sse {
    size_t limit;               /* most bytes of an event, with the line under way */
    void *self;
    /* One event's data, not ended by a 0 byte; false stops the stream. */
    bool (*event)(void *self, const char *data, size_t bytes);
    char *text;                 /* [capacity] data lines so far, each ended by \n, then the line under way */
    size_t capacity, data, line;
    bool cr;                    /* the last byte was a \r: a \n now belongs to it */
    bool begun;                 /* a byte order mark is no longer expected */
    bool any_data;              /* the event under way has a data line */
} http_sse;

/* CEDAR_E_BUDGET: longer than the limit. CEDAR_E_INTERRUPT: the event's receiver stopped it. */
cedar_status http_sse_feed(http_sse *s, const char *bytes, size_t count) CEDAR_USE_RESULT;

/* The stream has ended; an event that was not closed counts all the same. */
cedar_status http_sse_end(http_sse *s) CEDAR_USE_RESULT;

void http_sse_restart(http_sse *s);     /* for another stream; keeps the buffer */
void http_sse_free(http_sse *s);

/* --- answer.c: what events say about the answer ------------------------------------------------------------------- */

typedef struct http_answer {
    const char *key;            /* blotted out of all texts; borrowed, NULL = none */
    cedar_http_class class_;    /* of the first thing that is wrong */
    bool done;                  /* [DONE] has come */
    bool finished;              /* a finish_reason has come */
    bool usage;
    uint32_t prompt_tokens, completion_tokens, cached_tokens, deltas;
    int64_t first_ns, last_ns;
    char finish[24];
    char error[CEDAR_HTTP_ERROR_BYTES];     /* what the endpoint says */
} http_answer;

/* One event that came at now_ns. False: class_ says why the stream is of no use any more. */
bool http_answer_event(http_answer *a, const char *data, size_t bytes, int64_t now_ns);

/* What an error body says: the message of its JSON, else its beginning; without the key, which may be NULL. */
void http_error_text(const char *body, const char *key, char out[CEDAR_HTTP_ERROR_BYTES]);

/* Whether an error's text says that prompt and answer exceed the context. */
bool http_says_overflow(const char *text);

/* Copies as much as there is room for, with stars for the key, which may be NULL: blotted out before it is cut, since
 * half a key is one too many. text may be out. */
void http_copy_text(char *out, size_t room, const char *text, const char *key);

/* Blots out the key, and everything that is not printable UTF-8. key may be NULL. */
void http_clean_text(char *text, const char *key);

#endif
