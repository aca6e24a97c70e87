/* Divergences of two next-token distributions. */
#include "audit/divergence.h"

#include "audit/softmax.h"

/* Whether any of AUDIT_BLOCK logits is above `least`: no branch, so vectors look. */
static bool any_above(const float *x, float least) {
    int above = 0;
    for (int k = 0; k < AUDIT_BLOCK; k++) above |= x[k] > least;
    return above;
}

/* The most likely tokens, best first; the lowest id wins a tie. Returns how many there are. */
static int top_tokens(const float *x, int32_t n, int32_t top[CEDAR_TOP_TOKENS]) {
    int count = 0;
    for (int32_t i = 0; i < n; i++) {
        if (i % AUDIT_BLOCK == 0 && count == CEDAR_TOP_TOKENS)
            while (i + AUDIT_BLOCK < n && !any_above(x + i, x[top[count - 1]])) i += AUDIT_BLOCK;
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

static audit_dist dist_make(const audit_loops *loops, const float *x, int32_t n, int32_t top, double *kept) {
    audit_dist d = { .x = x, .kept = kept, .top = (double)x[top] };
    d.sum = loops->sum_exp(x, n, d.top, kept);
    d.z = d.top + audit_log(d.sum);
    return d;
}

/* p(first) - p(second) of the most likely tokens. */
static double margin_of(const audit_dist *d, const int32_t *top, int count) {
    double first = 1 / d->sum;
    return count > 1 ? first - audit_exp((double)d->x[top[1]] - d->top) * first : first;
}

static double not_negative(double x) { return x < 0 ? 0 : x; } /* rounding can leave -1e-17. NaN stays. */

void audit_divergence_make(const audit_loops *loops, const float *p, const float *q, int32_t vocab, int32_t token,
                           double *work, cedar_divergence *out) {
    int32_t top_p[CEDAR_TOP_TOKENS], top_q[CEDAR_TOP_TOKENS];
    int count = top_tokens(p, vocab, top_p);
    top_tokens(q, vocab, top_q);
    audit_dist a = dist_make(loops, p, vocab, top_p[0], work);
    audit_dist b = dist_make(loops, q, vocab, top_q[0], work ? work + vocab : NULL);
    audit_vocab_sums s = loops->compare(&a, &b, vocab);
    *out = (cedar_divergence){ .kl_pq = not_negative(s.kl_pq), .kl_qp = not_negative(s.kl_qp),
                               .js = not_negative(0.5 * s.js2), .logp_p = (double)p[token] - a.z,
                               .logp_q = (double)q[token] - b.z, .top1_prob_p = 1 / a.sum,
                               .margin_p = margin_of(&a, top_p, count),
                               .ratio_max = isnan(s.js2) ? s.js2 : s.ratio_max,     /* no comparison shows NaN */
                               .top5_jaccard = jaccard(top_p, top_q, count), .top1_p = top_p[0], .top1_q = top_q[0],
                               .top1_same = top_p[0] == top_q[0] };
}

void cedar_divergence_make(const float *p, const float *q, int32_t vocab, int32_t token, double *work,
                           cedar_divergence *out) {
    audit_divergence_make(audit_loops_best(), p, q, vocab, token, work, out);
}

int32_t cedar_top1(const float *x, int32_t vocab, double *margin) {
    int32_t top[CEDAR_TOP_TOKENS];
    int count = top_tokens(x, vocab, top);
    audit_dist d = dist_make(audit_loops_best(), x, vocab, top[0], NULL);
    *margin = margin_of(&d, top, count);
    return top[0];
}
