/* Private to audit/: exponentials, logarithms and sums over a vocabulary, for audit/divergence.c.
 *
 * Plain double arithmetic without branches, so that compilers turn the loops into vectors; and the same bits whatever
 * the instruction set, the compiler and the C library: nothing is fused (-ffp-contract=off), nothing comes from libm,
 * and the order of a sum is fixed, however wide the vectors are. Token i goes to partial sum i % AUDIT_LANES of its
 * block, blocks are added to AUDIT_LANES sums of the whole, tokens behind the last whole block one by one, and those
 * sums at last in pairs.
 * Threads: no state. Allocation: none. Class D1. */
#ifndef CEDAR_AUDIT_SOFTMAX_H
#define CEDAR_AUDIT_SOFTMAX_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "audit/divergence.h"

#define AUDIT_INLINE static inline __attribute__((always_inline))

enum { AUDIT_LANES = 8, AUDIT_BLOCK = 64 };

/* --- functions ---------------------------------------------------------------------------------------------------- */

/* exp(x) for x <= 0, off by less than 1.1 units in the last place, denormal results included. exp(0) is 1, exp(-inf) is
 * 0, NaN stays.
 * x = k ln 2 + r with abs(r) <= ln(2) / 2: exp(r) is 1 + r + r^2 times a polynomial of degree 9 fitted to (exp(r) - 1 -
 * r) / r^2 at Chebyshev nodes (0.07 units), and 2^k is applied 64 powers too high first, where no k leaves the normal
 * numbers: one rounding, in the last product. ln 2 is cut in two, the upper part times k exact. */
AUDIT_INLINE double audit_exp(double x) {
    const double shift = 0x1.8p52;              /* added, it rounds to a whole number, which stands in the last bits */
    x = x < -750 ? -750 : x;                    /* exp(-745.2) is 0 already */
    double t = x * 0x1.71547652b82fep0 + shift, k = t - shift;
    double r = (x - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
    double s = 0x1.af38a9b0ec855p-26;
    s = s * r + 0x1.289185613a3d6p-22;
    s = s * r + 0x1.71de0dae63bb3p-19;
    s = s * r + 0x1.a019b90d2ae7ap-16;
    s = s * r + 0x1.a01a01a7c41d5p-13;
    s = s * r + 0x1.6c16c1788bd90p-10;
    s = s * r + 0x1.11111111109b3p-7;
    s = s * r + 0x1.5555555553d63p-5;
    s = s * r + 0x1.5555555555556p-3;
    s = s * r + 0x1.0000000000001p-1;
    uint64_t bits;
    double power;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 1023 + 64) << 52;
    memcpy(&power, &bits, sizeof power);
    return (1 + (r + r * r * s)) * power * 0x1p-64;
}

/* log((low + high) / (2 high)) for 0 <= low <= 2 high, 0 < high: the logarithm of [1/2, 3/2] without rounding that
 * quotient, exactly 0 for equal arguments, off by less than 4 units in the last place.
 * It is 2 atanh(s) = 2 s (1 + s^2 times a polynomial of degree 9 in s^2) with abs(s) <= 1/3, fitted likewise. */
AUDIT_INLINE double audit_log_mean(double low, double high) {
    double s = (low - high) / ((low + high) + 2 * high), y = s * s;
    double q = 0x1.4b0ed4be611b2p-4;
    q = q * y + 0x1.687604d0c86a1p-5;
    q = q * y + 0x1.eb913ba3ef69ep-5;
    q = q * y + 0x1.10ac6a3d3e5f6p-4;
    q = q * y + 0x1.3b18b34a260a3p-4;
    q = q * y + 0x1.745cf0aa6a011p-4;
    q = q * y + 0x1.c71c727164156p-4;
    q = q * y + 0x1.24924923d422cp-3;
    q = q * y + 0x1.999999999a3dfp-3;
    q = q * y + 0x1.5555555555555p-2;
    return 2 * s + 2 * s * (y * q);
}

/* log(x) of a normal x, exactly 0 at 1. */
AUDIT_INLINE double audit_log(double x) {
    int k = 0;
    double m = frexp(x, &k);
    if (m < 0.75) m *= 2, k--;                  /* [3/4, 3/2): nothing cancels near x = 1 */
    return k * 0x1.62e42feep-1 + (k * 0x1.a39ef35793c76p-33 + audit_log_mean(2 * m - 1, 1));
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* Logits with what a softmax needs. */
typedef struct audit_dist {
    const float *x;             /* [vocab] */
    const double *kept;         /* [vocab] exp(x - top), or NULL: computed again, to the same bits */
    double top, sum, z;         /* largest logit, sum of exp(x - top), log of the sum of exp(x) */
} audit_dist;

typedef struct audit_vocab_sums {
    double kl_pq, kl_qp, js2;   /* js2: of both halves */
    double ratio_max;           /* max |log p - log q| over p > 1e-4 */
} audit_vocab_sums;

/* The loops for one instruction set. */
typedef struct audit_loops {
    const char *name;
    /* Sum of exp(x - top); kept [n] gets the terms, or is NULL. */
    double (*sum_exp)(const float *x, int32_t n, double top, double *kept);
    audit_vocab_sums (*compare)(const audit_dist *p, const audit_dist *q, int32_t n);
} audit_loops;

/* The i-th instruction set, narrowest first; NULL behind the last one that this machine has. */
const audit_loops *audit_loops_at(size_t i);
const audit_loops *audit_loops_best(void);

/* cedar_divergence_make with the loops of one instruction set. */
void audit_divergence_make(const audit_loops *loops, const float *p, const float *q, int32_t vocab, int32_t token,
                           double *work, cedar_divergence *out);

#endif
