/* Private to serve/: requests as parsed, requests on their way, and the server that both threads share.
 *
 *     parse.c    body -> serve_request, or a refusal          pure
 *     tokens.c   token ids <-> text                           pure
 *     sample.c   logits -> token, log probabilities           pure
 *     answer.c   what a job has produced -> JSON              pure
 *     metrics.c  counters -> Prometheus text                  pure
 *     http.c     the HTTP thread: routes, limits, streams
 *     batch.c    the engine thread: admission, steps, ends
 *
 * One lock, cedar_server.lock. Members are marked with who may touch them: [fixed] set before a second thread sees
 * them; [engine], [http] that thread alone; [lock] with the lock held. libmicrohttpd's own lock is only ever taken
 * inside ours (suspend, resume), never the other way round. */
#ifndef CEDAR_SERVE_SERVE_INT_H
#define CEDAR_SERVE_SERVE_INT_H

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>

#include "serve/serve.h"
#include "sim/cache.h"
#include "sim/sched.h"

/* --- tokens.c (docs/SERVE.md "Tokens and texts") ------------------------------------------------------------------ */

enum {
    SERVE_TOKEN_BYTES = 4,          /* most UTF-8 bytes of a token's text */
    SERVE_VOCAB_MIN = 256,          /* every byte is a token */
    SERVE_VOCAB_MAX = 131068        /* characters of Unicode's two supplementary private use areas */
};

/* Text of a token: one character. Returns its bytes. */
size_t serve_token_text(int32_t id, char out[SERVE_TOKEN_BYTES]);

/* Ids of valid UTF-8 text, at most `bytes` of them, into out; returns how many. */
uint32_t serve_tokens_encode(int32_t vocab, const char *text, size_t bytes, int32_t *out);

/* --- parse.c ------------------------------------------------------------------------------------------------------ */

enum { SERVE_STOPS_MAX = 16, SERVE_STOP_BYTES_MAX = 256, SERVE_TOP_LOGPROBS_MAX = 20 };

typedef enum serve_kind { SERVE_CHAT, SERVE_COMPLETION } serve_kind;

/* Why a request is not served: an OpenAI error object. */
typedef struct serve_refusal {
    unsigned status;                /* HTTP */
    const char *type, *code;        /* code NULL: null */
    char param[64];                 /* "" = null */
    char message[320];
} serve_refusal;

typedef struct serve_request {
    serve_kind kind;
    int32_t *tokens;                /* [prompt + max_tokens] owned; the prompt's are filled */
    uint32_t prompt, max_tokens, min_tokens;
    bool stream, include_usage, ignore_eos;
    bool seeded;
    uint64_t seed;
    double temperature, top_p;
    bool logprobs;
    uint32_t top_logprobs;
    uint32_t stop_count;
    char stops[SERVE_STOPS_MAX][SERVE_STOP_BYTES_MAX + 1];
} serve_request;

typedef struct serve_shape { const char *model; int32_t vocab; uint32_t context; } serve_shape;

/* Parses a body. false: *why says what is wrong, and nothing is owned. */
bool serve_parse(serve_kind kind, const serve_shape *shape, const char *body, size_t bytes, serve_request *out,
                 serve_refusal *why);

void serve_refuse(serve_refusal *why, unsigned status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* --- sample.c ----------------------------------------------------------------------------------------------------- */

typedef struct serve_choice { double temperature, top_p; int32_t banned; uint64_t random; } serve_choice;

/* The id chosen from logits [vocab]; `banned` (-1 = none) is never chosen. weights, heap [vocab]: scratch. */
int32_t serve_sample(const float *logits, int32_t vocab, const serve_choice *c, double *weights, int32_t *heap);

/* Log probability of `id`, and of the `count` most likely ids (lower id first on ties) into ids, values. */
float serve_logprobs(const float *logits, int32_t vocab, int32_t id, uint32_t count, int32_t *ids, float *values);

/* --- jobs --------------------------------------------------------------------------------------------------------- */

typedef enum serve_finish { SERVE_RUNNING, SERVE_LENGTH, SERVE_STOP, SERVE_FAILED } serve_finish;

/* What of a job may be shown: a copy taken under the lock. */
typedef struct serve_view {
    uint32_t produced;              /* tokens */
    size_t text_bytes;              /* of them released: not part of what may become a stop string */
    uint32_t hit_tokens;
    serve_finish finish;
} serve_view;

typedef struct serve_job {
    /* [fixed] */
    serve_request req;
    int64_t id, arrival_ns;         /* arrival since the server was opened */
    int64_t created_s;              /* Unix time, as the API shows it */
    char client_id[64];             /* X-Request-Id of the client, "" = none */
    int fd;                         /* of the connection; valid while `connection` is set */
    uint64_t key;                   /* of the stream that its tokens are drawn from */

    /* [engine], published by `view` */
    int32_t seq, node;
    uint32_t boundary, depth, produced;
    cedar_snap *snap_prompt, *snap_answer;
    cedar_request_row row;
    char *text;                     /* [max_tokens * SERVE_TOKEN_BYTES] of the answer */
    size_t text_bytes, text_released;
    serve_finish finish;
    float *chosen;                  /* [max_tokens] log probabilities, with logprobs */
    int32_t *top_ids;               /* [max_tokens, top_logprobs] */
    float *top_values;

    /* [lock] */
    struct serve_job *next;         /* of those that wait */
    struct MHD_Connection *connection;      /* NULL: the HTTP side is through with it */
    bool suspended;
    bool cancelled;                 /* the client has gone: the engine drops it */
    bool engine_done;
    bool failed_on_us;              /* a shutdown or a fault of ours, not the client, ended it */
    serve_view view;
} serve_job;

void serve_job_free(serve_job *j);

/* --- answer.c ----------------------------------------------------------------------------------------------------- */

/* All of these return text that the caller frees with free(), NULL when memory runs out. */
char *serve_answer_whole(const serve_job *j, const serve_view *v, const char *model);

/* How far a stream has come. */
typedef struct serve_shown {
    uint32_t tokens;
    size_t text_bytes;
    bool started, ended;
} serve_shown;

/* Server-sent events for what is new since *shown, which moves on; "" when there is nothing. */
char *serve_answer_events(const serve_job *j, const serve_view *v, const char *model, serve_shown *shown);
char *serve_answer_error(const serve_refusal *why);
char *serve_answer_models(const char *model, uint32_t context, int64_t created_s, bool one);

/* --- metrics.c ---------------------------------------------------------------------------------------------------- */

enum { SERVE_BUCKETS = 18 };

typedef struct serve_histogram {
    uint64_t counts[SERVE_BUCKETS + 1];     /* the last: above all bounds */
    double sum_s;
} serve_histogram;

typedef struct serve_metrics {
    uint64_t finished_length, finished_stop, cancelled, failed;
    uint64_t refused_full, refused_draining, refused_invalid;
    uint64_t prompt_tokens, generated_tokens, prefix_queries, prefix_hits, steps;
    uint32_t running, waiting, pages, pages_free, pages_cached;
    serve_histogram ttft, itl, e2el;
} serve_metrics;

void serve_histogram_add(serve_histogram *h, int64_t ns);
char *serve_metrics_text(const serve_metrics *m, const char *model);    /* free() */

/* --- the server --------------------------------------------------------------------------------------------------- */

struct cedar_server {
    /* [fixed] */
    cedar_serve_opts opts;
    const cedar_config *config;
    serve_shape shape;
    int64_t opened_ns, created_s;
    uint64_t unseeded_key;
    struct MHD_Daemon *daemon;
    uint16_t port;

    /* [engine] */
    cedar_engine *engine;
    cedar_cache *cache;
    serve_job **running;            /* [running_count of seq_count] in order of admission */
    uint32_t running_count;
    bool blocked;                   /* the first that waits did not fit: an end must make room */
    cedar_sched_item *items;        /* [seq_count], like the next two */
    cedar_sched_slice *slices;
    cedar_plan_entry *entries;
    int32_t *pages;                 /* [pages of the longest sequence] */
    int32_t *argmax;                /* [seq_count] */
    float *logits;                  /* [seq_count, vocab] */
    double *weights;                /* [vocab] */
    int32_t *heap;                  /* [vocab] */
    struct pollfd *polled;          /* [seq_count + queue_max] */
    int64_t looked_ns;              /* when clients were last looked for */
    cedar_serve_totals totals;

    pthread_mutex_t lock;
    pthread_cond_t wake;            /* a job has come, a client has gone, or the end has */
    pthread_cond_t gone;            /* an exchange has ended */
    /* [lock] */
    serve_job *first, **last;       /* those that wait; the HTTP thread adds, the engine thread takes out */
    uint32_t waiting;
    uint32_t exchanges;             /* requests that libmicrohttpd is not through with */
    int64_t jobs;
    bool stopping, draining, dead;  /* asked to stop; new requests get 503; the engine failed */
    serve_metrics metrics;
};

int64_t serve_now(const cedar_server *s);       /* ns since the server was opened */

/* http.c */
cedar_status serve_http_open(cedar_server *s, cedar_err *err) CEDAR_USE_RESULT;
void serve_http_close(cedar_server *s);

/* Lets a job's connection go on, if it waits. With the lock held. */
void serve_wake_client(serve_job *j);

/* batch.c */
cedar_status serve_batch_open(cedar_server *s, cedar_err *err) CEDAR_USE_RESULT;
cedar_status serve_batch_close(cedar_server *s, cedar_err *err);     /* as cedar_engine_close */

/* The server is at its end: all that is on its way is told so, nothing is reported any more. */
void serve_batch_abandon(cedar_server *s);

#endif
