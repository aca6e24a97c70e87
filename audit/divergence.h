/* Two next-token distributions, compared over the full vocabulary (docs/AUDIT.md "Per position").
 *
 * P is the exact arm, Q the arm under test. Inputs are logits [vocab] in float; everything is computed in double,
 * nothing is clipped. Equal logits give exactly 0.
 * Threads: no state. Allocation: none. Class D1: a pair depends on itself alone. */
#ifndef CEDAR_AUDIT_DIVERGENCE_H
#define CEDAR_AUDIT_DIVERGENCE_H

#include <stdbool.h>
#include <stdint.h>

enum { CEDAR_TOP_TOKENS = 5 };

typedef struct cedar_divergence {
    double kl_pq, kl_qp, js;            /* nats */
    double logp_p, logp_q;              /* of the forced token */
    double top1_prob_p, margin_p;       /* P(top 1), P(top 1) - P(top 2) */
    double ratio_max;                   /* max |log P - log Q| over P > 1e-4 */
    double top5_jaccard;                /* of the five most likely tokens of each, or of all where there are fewer */
    int32_t top1_p, top1_q;             /* lowest id on ties */
    bool top1_same;
} cedar_divergence;

/* work: [2 * vocab], which saves time; NULL gives the same bits. A logit that is NaN makes every sum NaN. */
void cedar_divergence_make(const float *p, const float *q, int32_t vocab, int32_t token, double *work,
                           cedar_divergence *out);

/* The most likely token, and P(top 1) - P(top 2): what the above says of one distribution, to the same bits. */
int32_t cedar_top1(const float *x, int32_t vocab, double *margin);

#endif
