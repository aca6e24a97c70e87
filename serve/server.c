/* Opening and closing a server: what both threads share. */
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "serve/serve_int.h"

int64_t serve_now(const cedar_server *s) { return cedar_now_ns() - s->opened_ns; }

static cedar_status check(const cedar_serve_opts *o, const cedar_config *c, cedar_err *err) {
    if (c->vocab < SERVE_VOCAB_MIN || c->vocab > SERVE_VOCAB_MAX)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "model %s has a vocabulary of %d; texts are made for %d to %d ids",
                          o->name, c->vocab, SERVE_VOCAB_MIN, SERVE_VOCAB_MAX);
    for (const char *n = o->name; *n; n++)
        if (*n < 32 || *n > 126 || *n == '"' || *n == '\\')
            return cedar_fail(err, CEDAR_E_ARG, "the model's name must be printable ASCII without quotes");
    if (!o->queue_max || !o->connections_max || !o->body_bytes_max)
        return cedar_fail(err, CEDAR_E_ARG, "queue, connections and body must have room for one at least");
    if (o->chunk_rows > o->engine.step_rows)
        return cedar_fail(err, CEDAR_E_ARG, "chunk_tokens = %u is more than step_tokens = %u; a chunk is part of a "
                          "step", o->chunk_rows, o->engine.step_rows);
    return CEDAR_OK;
}

/* Locks, whose condition variables wait on the clock that is never set back. */
static cedar_status open_locks(cedar_server *s, cedar_err *err) {
    pthread_condattr_t a;
    bool bad = pthread_condattr_init(&a) || pthread_condattr_setclock(&a, CLOCK_MONOTONIC) ||
               pthread_mutex_init(&s->lock, NULL) || pthread_cond_init(&s->wake, &a) || pthread_cond_init(&s->gone, &a);
    pthread_condattr_destroy(&a);
    return bad ? cedar_fail(err, CEDAR_E_OOM, "no lock could be made") : CEDAR_OK;
}

cedar_status cedar_serve_open(const cedar_serve_opts *opts, cedar_server **out, cedar_err *err) {
    const cedar_config *config = cedar_model_config(opts->model);
    cedar_status st = check(opts, config, err);
    if (st) return st;
    cedar_server *s = cedar_calloc(1, sizeof *s);
    if (!s) return cedar_fail(err, CEDAR_E_OOM, "no memory for a server");
    s->opts = *opts;
    s->config = config;
    const cedar_engine_opts *e = &opts->engine;
    uint64_t pool = (uint64_t)e->page_count * e->page_tokens;
    s->shape = (serve_shape){ opts->name, config->vocab,
                              pool < e->context_tokens ? (uint32_t)pool : e->context_tokens };
    s->opened_ns = cedar_now_ns();
    s->created_s = (int64_t)time(NULL);
    s->unseeded_key = cedar_rng_key(opts->seed, "serve/unseeded");
    s->last = &s->first;
    st = open_locks(s, err);
    if (!st) st = serve_batch_open(s, err);
    if (!st) st = serve_http_open(s, err);
    if (st) {
        (void)cedar_serve_close(s, NULL);
        return st;
    }
    *out = s;
    return CEDAR_OK;
}

uint16_t cedar_serve_port(const cedar_server *s) { return s->port; }

const char *cedar_serve_backend(const cedar_server *s) { return cedar_engine_options(s->engine)->backend; }

void cedar_serve_stop(cedar_server *s) {
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

cedar_serve_totals cedar_serve_result(const cedar_server *s) { return s->totals; }

cedar_status cedar_serve_close(cedar_server *s, cedar_err *err) {
    if (!s) return CEDAR_OK;
    serve_batch_abandon(s);     /* libmicrohttpd must not stop while connections are suspended */
    serve_http_close(s);
    cedar_status st = serve_batch_close(s, err);
    pthread_cond_destroy(&s->gone);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    cedar_free(s);
    return st;
}
