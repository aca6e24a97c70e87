/* Divergences of many rows: rows are independent, so threads take every n-th one. */
#include <pthread.h>

#include "audit/audit_int.h"

enum { THREADS_MAX = 64 };
static const uint64_t WORTH_A_THREAD = 200000;     /* logits; fewer are done before a thread has started */

typedef struct share {
    const float *p, *q;
    const int32_t *token;
    cedar_divergence *out;
    uint32_t rows, first, stride;
    int32_t vocab;
} share;

static void *score_share(void *self) {
    const share *s = self;
    size_t v = (size_t)s->vocab;
    for (uint32_t i = s->first; i < s->rows; i += s->stride)
        cedar_divergence_make(s->p + i * v, s->q + i * v, s->vocab, s->token[i], &s->out[i]);
    return NULL;
}

void audit_score(const float *p, const float *q, uint32_t rows, int32_t vocab, const int32_t *token, uint32_t threads,
                 cedar_divergence *out) {
    share part[THREADS_MAX];
    pthread_t id[THREADS_MAX];
    bool runs[THREADS_MAX] = { false };
    uint64_t most = (uint64_t)rows * (uint64_t)vocab / WORTH_A_THREAD + 1;
    if (threads > THREADS_MAX) threads = THREADS_MAX;
    if (threads > most) threads = (uint32_t)most;
    if (threads > rows) threads = rows;
    if (threads == 0) threads = 1;
    for (uint32_t i = 0; i < threads; i++) {
        part[i] = (share){ p, q, token, out, rows, i, threads, vocab };
        runs[i] = i > 0 && pthread_create(&id[i], NULL, score_share, &part[i]) == 0;
    }
    for (uint32_t i = 0; i < threads; i++)      /* its own share, and those of threads the system refused */
        if (!runs[i]) score_share(&part[i]);
    for (uint32_t i = 0; i < threads; i++)
        if (runs[i]) pthread_join(id[i], NULL);
}
