/* An OpenAI-compatible HTTP server over one engine.
 *
 * Ownership   A server borrows the model and the observer and owns engine, prefix cache, listening socket and requests.
 * Threads     cedar_serve_run's caller is the engine thread: it alone uses engine, cache and observer. One more thread,
 *             libmicrohttpd's, reads requests and writes answers. cedar_serve_port, cedar_serve_stop: any thread.
 * Allocation  A request's memory is taken when it arrives; a step allocates nothing.
 * Errors      base/status.h; what a client did wrong is told to the client alone. Nothing here prints.
 * Rules       docs/SERVE.md: endpoints, fields, limits, tokens and texts. */
#ifndef CEDAR_SERVE_SERVE_H
#define CEDAR_SERVE_SERVE_H

#include "engine/engine.h"
#include "sim/observer.h"

typedef struct cedar_server cedar_server;

typedef struct cedar_serve_opts {
    const cedar_model *model;
    const char *name;               /* what clients call the model; borrowed */
    cedar_engine_opts engine;       /* seq_count: requests that run at the same time */
    cedar_replay_rules rules;
    bool prefix_cache;
    uint64_t window_bytes_max;      /* stored windows of the prefix cache; 0 = unlimited */
    uint32_t chunk_rows;            /* prompt tokens of one request in one step; 0 = step_rows */
    uint64_t seed;                  /* of requests that give none */

    const char *address;            /* numeric, "127.0.0.1" or "::1" */
    uint16_t port;                  /* 0 = any free one */
    uint64_t body_bytes_max;
    uint32_t connections_max;
    uint32_t queue_max;             /* requests that wait; one more gets 429 */
    int64_t grace_ns;               /* after a stop, for what is on its way */

    const cedar_observer *observer; /* gets request and step rows; NULL = nobody */
    int64_t run_id;
} cedar_serve_opts;

/* What happened, for the row that ends a run. */
typedef struct cedar_serve_totals {
    uint64_t requests, steps;       /* reported */
    uint64_t failed;                /* of the requests: cancelled by their clients, or cut */
    uint64_t event_hash;            /* over requests and their tokens, in the order of their ends */
    int64_t end_ns;                 /* since the server was opened */
} cedar_serve_totals;

/* Opens engine and socket. Connections are accepted from now on; requests wait for cedar_serve_run. */
cedar_status cedar_serve_open(const cedar_serve_opts *opts, cedar_server **out, cedar_err *err) CEDAR_USE_RESULT;
uint16_t cedar_serve_port(const cedar_server *s);
const char *cedar_serve_backend(const cedar_server *s);     /* that "auto" has become */

/* Serves until *stop is set or cedar_serve_stop is called; then new requests get 503, and what is on its way has the
 * grace time to end. Returns an error only when engine or observer failed: clients were told. Once per server. */
cedar_status cedar_serve_run(cedar_server *s, const volatile int *stop, cedar_err *err) CEDAR_USE_RESULT;
void cedar_serve_stop(cedar_server *s);

cedar_serve_totals cedar_serve_result(const cedar_server *s);       /* after cedar_serve_run */
/* NULL is allowed. Returns what cedar_engine_close returns. */
cedar_status cedar_serve_close(cedar_server *s, cedar_err *err);

#endif
