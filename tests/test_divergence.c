/* Tests of the arithmetic under an audit: exp and log against the C library's in long double, sums against the formulas
 * in long double, and the same bits from every instruction set, block length and compiler. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "audit/divergence.h"
#include "audit/softmax.h"
#include "base/rng.h"

/* A number in [0, 1) of 53 bits. */
static double unit(uint64_t key, uint64_t i) { return (double)(cedar_rng_at(key, i) >> 11) * 0x1p-53; }

/* --- exp and log -------------------------------------------------------------------------------------------------- */

/* Distance from the true value in units of the last place of a double there. */
static double units(double got, long double want) {
    if (want == 0) return got == 0 ? 0 : (double)INFINITY;
    int last = ilogbl(want) - (DBL_MANT_DIG - 1);
    if (last < -1074) last = -1074;
    return (double)(fabsl((long double)got - want) / ldexpl(1, last));
}

static double exp_units(double x) { return units(audit_exp(x), expl((long double)x)); }

/* Dense from 0 to the last x whose result is not 0, dense near 0, random of every size. */
START_TEST(exp_is_accurate) {
    double worst = 0, denormal = 0;
    for (int i = 0; i < 3000000; i++) {
        worst = fmax(worst, exp_units(-708.0 * i / 3000000));
        worst = fmax(worst, exp_units(-708.0 * unit(1, (uint64_t)i)));
        worst = fmax(worst, exp_units(-ldexp(1 + unit(2, (uint64_t)i), -(int)cedar_rng_below(3, (uint64_t)i, 1070))));
    }
    for (int i = 0; i < 400000; i++) denormal = fmax(denormal, exp_units(-708.4 - 37.7 * i / 400000));
    for (int k = 0; k < 1080; k++)                  /* where the power of two changes */
        for (int i = -50; i < 50; i++) {
            double x = -(k + 0.5) * log(2.0), at = x + i * fabs(x) * DBL_EPSILON;
            worst = fmax(worst, at > -708 ? exp_units(at) : 0);
            denormal = fmax(denormal, at > -708 ? 0 : exp_units(at));
        }
    ck_assert_double_lt(worst, 1.1);
    ck_assert_double_lt(denormal, 1.1);
}
END_TEST

START_TEST(exp_at_the_ends) {
    ck_assert_double_eq(audit_exp(0), 1);
    ck_assert_double_eq(audit_exp(-0.0), 1);
    ck_assert_double_eq(audit_exp(-DBL_TRUE_MIN), 1);
    ck_assert_double_eq(audit_exp(-0x1p-54), 1);
    ck_assert_double_eq(audit_exp(-0x1p-53), 1 - 0x1p-53);
    ck_assert_double_eq(audit_exp(-745), 0x1p-1074);            /* the smallest number there is */
    ck_assert_double_eq(audit_exp(-745.13), 0x1p-1074);
    ck_assert_double_eq(audit_exp(-745.14), 0);
    ck_assert_double_eq(audit_exp(-749.999), 0);
    ck_assert_double_eq(audit_exp(-751), 0);
    ck_assert_double_eq(audit_exp(-DBL_MAX), 0);
    ck_assert_double_eq(audit_exp(-(double)INFINITY), 0);
    ck_assert_double_nan(audit_exp((double)NAN));
    ck_assert_double_nan(audit_exp(-(double)NAN));
}
END_TEST

static double mean_units(double low, double high) {
    long double l = (long double)low, h = (long double)high;
    return units(audit_log_mean(low, high), log1pl((l - h) / (2 * h)));
}

START_TEST(log_of_a_mean_is_accurate) {
    double worst = 0;
    for (int i = 0; i < 3000000; i++) {
        double high = ldexp(0.5 + 0.5 * unit(1, (uint64_t)i), -(int)cedar_rng_below(2, (uint64_t)i, 900));
        worst = fmax(worst, mean_units(i / 3000000.0, 1));
        worst = fmax(worst, mean_units(high * unit(3, (uint64_t)i), high));
        worst = fmax(worst, mean_units(high * (1 - ldexp(unit(4, (uint64_t)i), -(i % 50))), high));
    }
    ck_assert_double_lt(worst, 4);
    for (int i = 0; i < 1000; i++) {
        double x = ldexp(unit(5, (uint64_t)i), -i);
        ck_assert_double_eq(audit_log_mean(x, x), 0);
    }
    ck_assert_double_eq_tol(audit_log_mean(0, 0x1p-1074), -log(2.0), 1e-15);
    ck_assert_double_nan(audit_log_mean((double)NAN, 1));
    ck_assert_double_nan(audit_log_mean(0, (double)NAN));
}
END_TEST

START_TEST(log_is_accurate) {
    double worst = 0;
    for (int i = 0; i < 1000000; i++) {
        double near = 1 + ldexp(unit(1, (uint64_t)i), -(i % 50)), far = ldexp(near, i % 40);
        worst = fmax(worst, units(audit_log(near), logl((long double)near)));
        worst = fmax(worst, units(audit_log(far), logl((long double)far)));
    }
    ck_assert_double_lt(worst, 4);
    ck_assert_double_eq(audit_log(1), 0);
    ck_assert_double_nan(audit_log((double)NAN));
}
END_TEST

/* --- sums --------------------------------------------------------------------------------------------------------- */

enum { VOCAB = 129280 };

/* Logits with a wide spread, exact in float on every machine; q differs from p by about `noise`. */
static void rows_make(float *p, float *q, int n, uint64_t seed, double noise) {
    for (int i = 0; i < n; i++) {
        double a = 0, b = 0;
        for (uint64_t k = 0; k < 4; k++) {
            a += unit(seed, 4 * (uint64_t)i + k) - 0.5;
            b += unit(seed + 1000, 4 * (uint64_t)i + k) - 0.5;
        }
        p[i] = (float)(8 * a);
        q[i] = (float)(8 * a + noise * b);
    }
}

/* The formulas as they stand, in long double. */
typedef struct wide {
    long double kl_pq, kl_qp, js, logp_p, logp_q, ratio;
} wide;

static long double wide_z(const float *x, int n) {
    long double sum = 0;
    for (int i = 0; i < n; i++) sum += expl((long double)x[i]);
    return logl(sum);
}

static wide wide_make(const float *p, const float *q, int n, int token) {
    long double zp = wide_z(p, n), zq = wide_z(q, n);
    wide w = { .logp_p = (long double)p[token] - zp, .logp_q = (long double)q[token] - zq };
    for (int i = 0; i < n; i++) {
        long double a = (long double)p[i] - zp, b = (long double)q[i] - zq, pp = expl(a), pq = expl(b);
        w.kl_pq += pp * (a - b);
        w.kl_qp += pq * (b - a);
        w.js -= 0.5L * (pp * log1pl((pq - pp) / (2 * pp)) + pq * log1pl((pp - pq) / (2 * pq)));
        if (pp > 1e-4L && fabsl(a - b) > w.ratio) w.ratio = fabsl(a - b);
    }
    return w;
}

static double off(double got, long double want) { return (double)fabsl((long double)got - want); }

/* A KL divergence is what is left of terms that nearly cancel, each as large as the noise; 2e-15 is what those of a sum
 * of 1 leave, whatever its size. */
START_TEST(sums_agree_with_long_double) {
    static const double noise[] = { 20, 3, 0.3, 0.03, 0.003, 1e-5 };
    float *p = malloc(VOCAB * sizeof *p), *q = malloc(VOCAB * sizeof *q);
    for (size_t i = 0; i < sizeof noise / sizeof *noise; i++) {
        cedar_divergence d;
        rows_make(p, q, VOCAB, i, noise[i]);
        cedar_divergence_make(p, q, VOCAB, 77, NULL, &d);
        wide w = wide_make(p, q, VOCAB, 77);
        ck_assert_double_le(off(d.kl_pq, w.kl_pq), 2e-15 + 5e-15 * (double)w.kl_pq);
        ck_assert_double_le(off(d.kl_qp, w.kl_qp), 2e-15 + 5e-15 * (double)w.kl_qp);
        ck_assert_double_le(off(d.js, w.js), 1e-16 + 5e-15 * (double)w.js);
        ck_assert_double_le(off(d.logp_p, w.logp_p), 8e-15);
        ck_assert_double_le(off(d.logp_q, w.logp_q), 8e-15);
        ck_assert_double_le(off(d.ratio_max, w.ratio), 8e-15);
    }
    free(p);
    free(q);
}
END_TEST

static bool same_bits(const cedar_divergence *a, const cedar_divergence *b) {
    const double x[] = { a->kl_pq, a->kl_qp, a->js, a->logp_p, a->logp_q, a->top1_prob_p, a->margin_p, a->ratio_max };
    const double y[] = { b->kl_pq, b->kl_qp, b->js, b->logp_p, b->logp_q, b->top1_prob_p, b->margin_p, b->ratio_max };
    return memcmp(x, y, sizeof x) == 0 && a->top1_p == b->top1_p && a->top1_q == b->top1_q;
}

/* Lengths on both sides of a lane's and a block's; impossible tokens among them. */
START_TEST(every_instruction_set_gives_the_same_bits) {
    static const int lengths[] = { 1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 1000, VOCAB };
    float *p = malloc(VOCAB * sizeof *p), *q = malloc(VOCAB * sizeof *q);
    double *work = malloc(2 * VOCAB * sizeof *work);
    for (int i = 0; i < 5 * (int)(sizeof lengths / sizeof *lengths); i++) {
        int n = lengths[i / 5];
        rows_make(p, q, n, (uint64_t)i, i % 5);
        for (int k = 3; k < n; k += 17) p[k] = i % 2 ? -800 : -(float)INFINITY, q[k] = k % 2 ? p[k] : q[k];
        cedar_divergence first, d;
        audit_divergence_make(audit_loops_at(0), p, q, n, 0, work, &first);
        const audit_loops *l;
        for (size_t set = 0; (l = audit_loops_at(set)); set++) {
            audit_divergence_make(l, p, q, n, 0, work, &d);
            ck_assert_msg(same_bits(&first, &d), "%s, %d tokens", l->name, n);
            audit_divergence_make(l, p, q, n, 0, NULL, &d);     /* without room to keep terms */
            ck_assert_msg(same_bits(&first, &d), "%s, %d tokens, nothing kept", l->name, n);
        }
        double margin;
        ck_assert_int_eq(cedar_top1(p, n, &margin), first.top1_p);
        ck_assert(margin == first.margin_p);
    }
    free(p);
    free(q);
    free(work);
}
END_TEST

/* The order that audit/softmax.h promises, one token after the other. */
static double sum_by_hand(const float *x, int n) {
    double s[8] = { 0 }, part[8] = { 0 };
    int whole = n / 64 * 64;
    for (int i = 0; i < whole; i++) {
        part[i % 8] += audit_exp((double)x[i] - 16);
        if (i % 64 < 56) continue;
        s[i % 8] += part[i % 8];
        part[i % 8] = 0;
    }
    for (int i = whole; i < n; i++) s[i % 8] += audit_exp((double)x[i] - 16);
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

START_TEST(the_order_of_a_sum_is_fixed) {
    float *p = malloc(VOCAB * sizeof *p), *q = malloc(VOCAB * sizeof *q);
    rows_make(p, q, VOCAB, 5, 1);
    static const int lengths[] = { 13, 60, 63, 100, 130, 190, VOCAB - 35, VOCAB };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        double want = sum_by_hand(p, lengths[i]);
        const audit_loops *l;
        for (size_t set = 0; (l = audit_loops_at(set)); set++) ck_assert(l->sum_exp(p, lengths[i], 16, NULL) == want);
    }
    free(p);
    free(q);
}
END_TEST

/* Bits that every compiler, optimisation and C library must give: made with gcc 12.2 at -O3. */
START_TEST(bits_are_those_of_every_compiler) {
    float *p = malloc(VOCAB * sizeof *p), *q = malloc(VOCAB * sizeof *q);
    cedar_divergence d;
    rows_make(p, q, VOCAB, 42, 0.5);
    cedar_divergence_make(p, q, VOCAB, 77, NULL, &d);
    const double want[] = { 0x1.63d2276a6b71bp-5, 0x1.6284967ceb477p-5, 0x1.5fc310099508bp-7, -0x1.42c6b333399cep+4,
                            -0x1.4584963e1ab8cp+4, 0x1.9c521f79281cbp-7, 0x1.2b084582219b8p-9, 0x1.ce0dad5c237c8p-1 };
    const double got[] = { d.kl_pq, d.kl_qp, d.js, d.logp_p, d.logp_q, d.top1_prob_p, d.margin_p, d.ratio_max };
    for (size_t i = 0; i < sizeof got / sizeof *got; i++)
        ck_assert_msg(got[i] == want[i], "value %zu is %a, not %a", i, got[i], want[i]);
    free(p);
    free(q);
}
END_TEST

/* --- special logits ----------------------------------------------------------------------------------------------- */

START_TEST(equal_logits_give_zero) {
    float *p = malloc(VOCAB * sizeof *p), *q = malloc(VOCAB * sizeof *q);
    cedar_divergence d;
    rows_make(p, q, VOCAB, 9, 0);
    for (int k = 5; k < VOCAB; k += 1000) p[k] = q[k] = -(float)INFINITY;
    const audit_loops *l;
    for (size_t set = 0; (l = audit_loops_at(set)); set++) {
        audit_divergence_make(l, p, q, VOCAB, 1, NULL, &d);
        ck_assert(d.kl_pq == 0 && d.kl_qp == 0 && d.js == 0 && d.ratio_max == 0 && d.logp_p == d.logp_q);
    }
    /* All logits higher by a power of two: the same distribution, exactly. */
    for (int i = 0; i < VOCAB; i++) p[i] = floorf(p[i] * 1024) / 1024, q[i] = p[i] + 16;
    cedar_divergence_make(p, q, VOCAB, 1, NULL, &d);
    ck_assert(d.kl_pq == 0 && d.kl_qp == 0 && d.js == 0 && d.ratio_max == 0);
    free(p);
    free(q);
}
END_TEST

/* Probabilities of the same logarithm that were rounded to different numbers. */
START_TEST(equal_logarithms_add_nothing) {
    enum { N = 65 };
    float x[N] = { 0 };
    double e[N], f[N];
    for (int i = 0; i < N; i++) e[i] = 0.5, f[i] = 0.5 + DBL_EPSILON;
    const audit_dist p = { .x = x, .kept = e, .sum = N }, q = { .x = x, .kept = f, .sum = N };
    const audit_loops *l;
    for (size_t set = 0; (l = audit_loops_at(set)); set++) {
        audit_vocab_sums s = l->compare(&p, &q, N);
        ck_assert(s.kl_pq == 0 && s.kl_qp == 0 && s.js2 == 0 && s.ratio_max == 0);
    }
}
END_TEST

/* Wherever it stands, and in whichever of the two. */
START_TEST(nan_is_seen) {
    enum { N = 200 };
    float p[N], q[N];
    for (int at = 0; at < N; at++) {
        for (int who = 0; who < 2; who++) {
            rows_make(p, q, N, 3, 1);
            (who ? q : p)[at] = (float)NAN;
            const audit_loops *l;
            for (size_t set = 0; (l = audit_loops_at(set)); set++) {
                cedar_divergence d;
                audit_divergence_make(l, p, q, N, 0, NULL, &d);
                ck_assert_double_nan(d.kl_pq);
                ck_assert_double_nan(d.kl_qp);
                ck_assert_double_nan(d.js);
                ck_assert_double_nan(d.ratio_max);
                ck_assert(isnan(who ? d.logp_q : d.logp_p));
            }
        }
    }
}
END_TEST

/* P = (1/2, 1/2, 0), Q = (1, 0, 0): KL(P||Q) is infinite, KL(Q||P) ln 2, JS = (KL(P, M) + KL(Q, M)) / 2 with M = (3/4,
 * 1/4, 0): (1/2 ln(2/3) + 1/2 ln 2 + ln(4/3)) / 2. */
START_TEST(impossible_tokens_by_hand) {
    const float never = -(float)INFINITY, p[] = { 3, 3, never }, q[] = { 7, never, never };
    cedar_divergence d;
    cedar_divergence_make(p, q, 3, 0, NULL, &d);
    ck_assert_double_infinite(d.kl_pq);
    ck_assert_double_eq_tol(d.kl_qp, log(2.0), 1e-15);
    ck_assert_double_eq_tol(d.js, (0.5 * log(2 / 3.0) + 0.5 * log(2.0) + log(4 / 3.0)) / 2, 1e-15);
}
END_TEST

/* The search skips blocks without a candidate: here the largest stand at every place in turn. */
START_TEST(top_tokens_are_found_everywhere) {
    enum { N = 300 };
    float p[N];
    for (int at = 0; at + 2 < N; at++) {
        for (int i = 0; i < N; i++) p[i] = (float)(i % 7);
        p[at] = 20, p[at + 2] = 21;
        double margin, sum = 0;
        for (int i = 0; i < N; i++) sum += exp((double)p[i] - 21);
        ck_assert_int_eq(cedar_top1(p, N, &margin), at + 2);
        ck_assert_double_eq_tol(margin, (1 - exp(-1.0)) / sum, 1e-14);
    }
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("divergence");
    TCase *t = tcase_create("functions");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, exp_is_accurate);
    tcase_add_test(t, exp_at_the_ends);
    tcase_add_test(t, log_of_a_mean_is_accurate);
    tcase_add_test(t, log_is_accurate);
    suite_add_tcase(s, t);
    t = tcase_create("sums");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, sums_agree_with_long_double);
    tcase_add_test(t, every_instruction_set_gives_the_same_bits);
    tcase_add_test(t, the_order_of_a_sum_is_fixed);
    tcase_add_test(t, bits_are_those_of_every_compiler);
    suite_add_tcase(s, t);
    t = tcase_create("special logits");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, equal_logits_give_zero);
    tcase_add_test(t, equal_logarithms_add_nothing);
    tcase_add_test(t, nan_is_seen);
    tcase_add_test(t, impossible_tokens_by_hand);
    tcase_add_test(t, top_tokens_are_found_everywhere);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
