/* Divergences of two next-token distributions. */
#include "audit/divergence.h"

#include <math.h>

/* The most likely tokens, best first; the lowest id wins a tie. Returns how many there are. */
static int top_tokens(const float *x, int32_t n, int32_t top[CEDAR_TOP_TOKENS]) {
    int count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (count == CEDAR_TOP_TOKENS && !(x[i] > x[top[count - 1]])) continue;
        int at = count < CEDAR_TOP_TOKENS ? count++ : count - 1;
        for (; at > 0 && x[i] > x[top[at - 1]]; at--) top[at] = top[at - 1];
        top[at] = i;
    }
    return count;
}

static double jaccard(const int32_t *a, const int32_t *b, int count) {
    int both = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < count; k++) both += a[i] == b[k];
    return (double)both / (double)(2 * count - both);
}

static double log_sum_exp(const float *x, int32_t n, double top) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += exp((double)x[i] - top);
    return top + log(sum);
}

static double not_negative(double x) { return x < 0 ? 0 : x; } /* rounding can leave -1e-17. NaN stays. */

void cedar_divergence_make(const float *p, const float *q, int32_t vocab, int32_t token, cedar_divergence *out) {
    int32_t top_p[CEDAR_TOP_TOKENS], top_q[CEDAR_TOP_TOKENS];
    int count = top_tokens(p, vocab, top_p);
    top_tokens(q, vocab, top_q);
    double zp = log_sum_exp(p, vocab, (double)p[top_p[0]]), zq = log_sum_exp(q, vocab, (double)q[top_q[0]]);
    double kl_pq = 0, kl_qp = 0, js = 0, ratio = 0;
    for (int32_t i = 0; i < vocab; i++) {
        double lp = (double)p[i] - zp, lq = (double)q[i] - zq, d = lp - lq;
        if (d == 0) continue;                               /* equal terms add nothing, exactly */
        double pp = exp(lp), pq = exp(lq), size = fabs(d);
        if (pp > 1e-4 && size > ratio) ratio = size;
        double high = lp > lq ? lp : lq, mid = high + log1p(exp(-size)) - M_LN2;    /* log of the mean probability */
        if (pp > 0) kl_pq += pp * d, js += 0.5 * pp * (lp - mid);
        if (pq > 0) kl_qp -= pq * d, js += 0.5 * pq * (lq - mid);
    }
    double top = exp((double)p[top_p[0]] - zp), second = count > 1 ? exp((double)p[top_p[1]] - zp) : 0;
    *out = (cedar_divergence){ .kl_pq = not_negative(kl_pq), .kl_qp = not_negative(kl_qp), .js = not_negative(js),
                               .logp_p = (double)p[token] - zp, .logp_q = (double)q[token] - zq, .top1_prob_p = top,
                               .margin_p = top - second, .ratio_max = ratio,
                               .top5_jaccard = jaccard(top_p, top_q, count), .top1_p = top_p[0], .top1_q = top_q[0],
                               .top1_same = top_p[0] == top_q[0] };
}
