/* Divergences of many rows, beside whatever else goes on: rows are independent, so threads take every n-th one. */
#include <pthread.h>

#include "audit/audit_int.h"
#include "base/mem.h"

enum { THREADS_MAX = 64 };
static const uint64_t WORTH_A_THREAD = 40000;      /* logits: 0.2 ms; to start and join a thread takes below 0.1 */

typedef struct share {
    const float *p, *q;
    const int32_t *token;
    cedar_divergence *out;
    double *work;               /* [2 * vocab] */
    uint32_t rows, first, stride;
    int32_t vocab;
} share;

struct audit_job {
    share part[THREADS_MAX];
    pthread_t id[THREADS_MAX];
    bool runs[THREADS_MAX];
    uint32_t threads, threads_max;
    double *work;               /* [threads_max][2 * vocab] */
};

audit_job *audit_job_new(int32_t vocab, uint32_t threads) {
    audit_job *j = cedar_calloc(1, sizeof *j);
    if (!j) return NULL;
    j->threads_max = threads > THREADS_MAX ? THREADS_MAX : threads ? threads : 1;
    j->work = cedar_calloc(2 * (size_t)vocab * j->threads_max, sizeof *j->work);
    if (j->work) return j;
    cedar_free(j);
    return NULL;
}

void audit_job_free(audit_job *j) {
    if (j) cedar_free(j->work);
    cedar_free(j);
}

static void *score_share(void *self) {
    const share *s = self;
    size_t v = (size_t)s->vocab;
    for (uint32_t i = s->first; i < s->rows; i += s->stride)
        cedar_divergence_make(s->p + i * v, s->q + i * v, s->vocab, s->token[i], s->work, &s->out[i]);
    return NULL;
}

void audit_job_start(audit_job *j, const float *p, const float *q, uint32_t rows, int32_t vocab, const int32_t *token,
                     cedar_divergence *out) {
    uint64_t most = (uint64_t)rows * (uint64_t)vocab / WORTH_A_THREAD;
    uint32_t threads = j->threads_max;
    if (threads > most) threads = (uint32_t)most;
    if (threads > rows) threads = rows;
    j->threads = threads;
    if (threads == 0) score_share(&(share){ p, q, token, out, j->work, rows, 0, 1, vocab });
    for (uint32_t i = 0; i < threads; i++) {
        j->part[i] = (share){ p, q, token, out, j->work + 2 * (size_t)vocab * i, rows, i, threads, vocab };
        j->runs[i] = pthread_create(&j->id[i], NULL, score_share, &j->part[i]) == 0;
    }
}

void audit_job_wait(audit_job *j) {
    for (uint32_t i = 0; i < j->threads; i++) {
        if (j->runs[i]) pthread_join(j->id[i], NULL);
        else score_share(&j->part[i]);      /* the system refused a thread */
    }
    j->threads = 0;
}
