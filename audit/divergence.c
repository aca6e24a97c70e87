/* Divergences of two next-token distributions. */
#include "audit/divergence.h"

#include <math.h>
#include <stddef.h>

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

/* Logits with what a softmax needs. */
typedef struct dist {
    const float *x;
    double top, share, z;       /* largest logit, its probability, log of the sum of all exp(x) */
    double *kept;               /* exp(x - top), or NULL: computed again, to the same bits */
} dist;

static double exp_at(const dist *d, int32_t i) { return d->kept ? d->kept[i] : exp((double)d->x[i] - d->top); }

static dist dist_make(const float *x, int32_t n, int32_t top, double *kept) {
    dist d = { .x = x, .top = (double)x[top] };
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double e = exp((double)x[i] - d.top);
        if (kept) kept[i] = e;
        sum += e;
    }
    d.z = d.top + log(sum);
    d.share = 1 / sum;
    d.kept = kept;
    return d;
}

static double not_negative(double x) { return x < 0 ? 0 : x; } /* rounding can leave -1e-17. NaN stays. */

/* p log(p / m) + q log(q / m) with m = (p + q) / 2 and size = |log p - log q|. The logarithm of m over the larger of
 * the two is near 0 where they are near each other, so nothing cancels. */
static double js_term(double p, double q, double size) {
    double high = p > q ? p : q, low = p > q ? q : p;
    if (high == 0) return 0;                                /* both underflow */
    double mean = log(0.5 + 0.5 * (low / high));
    return -(high * mean + low * (mean + size));
}

void cedar_divergence_make(const float *p, const float *q, int32_t vocab, int32_t token, double *work,
                           cedar_divergence *out) {
    int32_t top_p[CEDAR_TOP_TOKENS], top_q[CEDAR_TOP_TOKENS];
    int count = top_tokens(p, vocab, top_p);
    top_tokens(q, vocab, top_q);
    dist a = dist_make(p, vocab, top_p[0], work), b = dist_make(q, vocab, top_q[0], work ? work + vocab : NULL);
    double kl_pq = 0, kl_qp = 0, js = 0, ratio = 0;
    for (int32_t i = 0; i < vocab; i++) {
        double d = ((double)p[i] - a.z) - ((double)q[i] - b.z), size = fabs(d);
        if (d == 0) continue;                               /* equal terms add nothing, exactly */
        double pp = exp_at(&a, i) * a.share, pq = exp_at(&b, i) * b.share;
        if (pp > 1e-4 && size > ratio) ratio = size;
        if (pp > 0) kl_pq += pp * d;
        if (pq > 0) kl_qp -= pq * d;
        js += 0.5 * js_term(pp, pq, size);
    }
    double top = a.share, second = count > 1 ? exp_at(&a, top_p[1]) * a.share : 0;
    *out = (cedar_divergence){ .kl_pq = not_negative(kl_pq), .kl_qp = not_negative(kl_qp), .js = not_negative(js),
                               .logp_p = (double)p[token] - a.z, .logp_q = (double)q[token] - b.z, .top1_prob_p = top,
                               .margin_p = top - second, .ratio_max = ratio,
                               .top5_jaccard = jaccard(top_p, top_q, count), .top1_p = top_p[0], .top1_q = top_q[0],
                               .top1_same = top_p[0] == top_q[0] };
}
