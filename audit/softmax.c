/* The loops over a vocabulary, once per instruction set (audit/softmax.h). Blocks of terms lie in arrays, which
 * compilers fill with vectors; the tokens behind the last whole block go one by one, to the same bits.
 *
 * The Makefile lets gcc assume that no floating-point exception traps: without that it keeps the branches that choose
 * between two values, and no vectors come of it. It changes no value. */
#include "audit/softmax.h"

enum { BLOCK = AUDIT_BLOCK };

AUDIT_INLINE double lanes_sum(double *s) {
    for (int half = AUDIT_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) s[i] += s[i + half];
    return s[0];
}

AUDIT_INLINE void add_block(double *sum, const double *term) {
    double part[AUDIT_LANES] = { 0 };
    for (int i = 0; i < BLOCK; i += AUDIT_LANES)
        for (int k = 0; k < AUDIT_LANES; k++) part[k] += term[i + k];
    for (int k = 0; k < AUDIT_LANES; k++) sum[k] += part[k];
}

/* --- the sum of a softmax ----------------------------------------------------------------------------------------- */

AUDIT_INLINE double sum_exp_body(const float *x, int32_t n, double top, double *kept) {
    double sum[AUDIT_LANES] = { 0 };
    int32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        double e[BLOCK];
        for (int k = 0; k < BLOCK; k++) e[k] = audit_exp((double)x[i + k] - top);
        if (kept) memcpy(kept + i, e, sizeof e);
        add_block(sum, e);
    }
    for (; i < n; i++) {
        double e = audit_exp((double)x[i] - top);
        if (kept) kept[i] = e;
        sum[i % AUDIT_LANES] += e;
    }
    return lanes_sum(sum);
}

/* --- comparing two ------------------------------------------------------------------------------------------------ */

/* What one token adds. */
typedef struct term {
    double kl_pq, kl_qp, js2, ratio;
} term;

/* log p - log q = x - y - gap. The difference of two logits is exact or nearly so, and `gap`, that of their z, is not
 * one of two rounded numbers: what nearly equal distributions differ by is left. */
typedef struct pair {
    double gap, share_p, share_q;   /* share: 1 / sum */
} pair;

AUDIT_INLINE pair pair_of(const audit_dist *p, const audit_dist *q) {
    return (pair){ (p->top - q->top) + audit_log(p->sum / q->sum), 1 / p->sum, 1 / q->sum };
}

/* e, f: exp(x - top) of the token in p, q. Terms with probability 0 are 0 whatever the logarithms are, those of equal
 * log-probabilities exactly 0; NaN passes every choice here.
 * js2 is p log(p / m) + q log(q / m) with m = (p + q) / 2, from log(m / high) and the distance of log p and log q. */
AUDIT_INLINE term term_of(const pair *g, float x, float y, double e, double f) {
    double d = ((double)x - (double)y) - g->gap, size = fabs(d);
    double pp = e * g->share_p, pq = f * g->share_q;
    double high = pp > pq ? pp : pq, low = pp > pq ? pq : pp;
    double mean = audit_log_mean(low, high);
    double rest = low * (mean + size), js2 = -(high * mean + (low == 0 ? 0 : rest)), kl_pq = pp * d, kl_qp = -(pq * d);
    js2 = high == 0 ? 0 : js2;
    return (term){ .kl_pq = pp == 0 ? 0 : kl_pq, .kl_qp = pq == 0 ? 0 : kl_qp, .js2 = d == 0 ? 0 : js2,
                   .ratio = pp > 1e-4 ? size : 0 };
}

typedef struct block {
    double kl_pq[BLOCK], kl_qp[BLOCK], js2[BLOCK], ratio[BLOCK];
} block;

AUDIT_INLINE void exps(const audit_dist *d, int32_t at, double out[BLOCK]) {
    if (d->kept) memcpy(out, d->kept + at, BLOCK * sizeof *out);
    else
        for (int k = 0; k < BLOCK; k++) out[k] = audit_exp((double)d->x[at + k] - d->top);
}

AUDIT_INLINE double exp_at(const audit_dist *d, int32_t i) {
    return d->kept ? d->kept[i] : audit_exp((double)d->x[i] - d->top);
}

AUDIT_INLINE audit_vocab_sums compare_body(const audit_dist *p, const audit_dist *q, int32_t n) {
    double kl_pq[AUDIT_LANES] = { 0 }, kl_qp[AUDIT_LANES] = { 0 }, js2[AUDIT_LANES] = { 0 }, ratio[AUDIT_LANES] = { 0 };
    const pair g = pair_of(p, q);
    int32_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        double e[BLOCK], f[BLOCK];
        block b;
        exps(p, i, e);
        exps(q, i, f);
        for (int k = 0; k < BLOCK; k++) {
            term t = term_of(&g, p->x[i + k], q->x[i + k], e[k], f[k]);
            b.kl_pq[k] = t.kl_pq, b.kl_qp[k] = t.kl_qp, b.js2[k] = t.js2, b.ratio[k] = t.ratio;
        }
        add_block(kl_pq, b.kl_pq);
        add_block(kl_qp, b.kl_qp);
        add_block(js2, b.js2);
        for (int j = 0; j < BLOCK; j += AUDIT_LANES)
            for (int k = 0; k < AUDIT_LANES; k++) ratio[k] = b.ratio[j + k] > ratio[k] ? b.ratio[j + k] : ratio[k];
    }
    for (; i < n; i++) {
        term t = term_of(&g, p->x[i], q->x[i], exp_at(p, i), exp_at(q, i));
        int k = i % AUDIT_LANES;
        kl_pq[k] += t.kl_pq, kl_qp[k] += t.kl_qp, js2[k] += t.js2, ratio[k] = t.ratio > ratio[k] ? t.ratio : ratio[k];
    }
    audit_vocab_sums s = { .kl_pq = lanes_sum(kl_pq), .kl_qp = lanes_sum(kl_qp), .js2 = lanes_sum(js2) };
    for (int k = 0; k < AUDIT_LANES; k++) s.ratio_max = ratio[k] > s.ratio_max ? ratio[k] : s.ratio_max;
    return s;
}

/* --- instruction sets --------------------------------------------------------------------------------------------- */

#define LOOPS(set, attribute) \
    attribute static double sum_exp_##set(const float *x, int32_t n, double top, double *kept) { \
        return sum_exp_body(x, n, top, kept); \
    } \
    attribute static audit_vocab_sums compare_##set(const audit_dist *p, const audit_dist *q, int32_t n) { \
        return compare_body(p, q, n); \
    } \
    static const audit_loops loops_##set = { #set, sum_exp_##set, compare_##set };

LOOPS(baseline, )

#ifdef __x86_64__
LOOPS(avx2, __attribute__((target("avx2"))))
LOOPS(avx512, __attribute__((target("avx512f,avx512dq"))))

static size_t sets_here(void) {
    if (!__builtin_cpu_supports("avx2")) return 1;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") ? 3 : 2;
}

const audit_loops *audit_loops_at(size_t i) {
    static const audit_loops *const sets[] = { &loops_baseline, &loops_avx2, &loops_avx512 };
    return i < sets_here() ? sets[i] : NULL;
}

const audit_loops *audit_loops_best(void) { return audit_loops_at(sets_here() - 1); }
#else
const audit_loops *audit_loops_at(size_t i) { return i == 0 ? &loops_baseline : NULL; }
const audit_loops *audit_loops_best(void) { return &loops_baseline; }
#endif
