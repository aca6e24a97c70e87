/* Statistics of paired audits. Pure functions; nothing here knows of engines or tokens. */
#include "audit/stats.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"

/* --- ratios over documents ---------------------------------------------------------------------------------------- */

static double ratio_of(const cedar_part *part, size_t n) {
    double sum = 0, weight = 0;
    for (size_t i = 0; i < n; i++) {
        sum += part[i].sum;
        weight += part[i].weight;
    }
    return weight > 0 ? sum / weight : (double)NAN;
}

static size_t weighted(const cedar_part *part, size_t n) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += part[i].weight > 0;
    return used;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Linear between the two nearest of n sorted values. */
static double quantile(const double *sorted, size_t n, double p) {
    double at = p * (double)(n - 1);
    size_t k = (size_t)at;
    return k + 1 < n ? sorted[k] + (at - (double)k) * (sorted[k + 1] - sorted[k]) : sorted[n - 1];
}

cedar_status cedar_bootstrap(const cedar_part *part, size_t n, uint32_t resamples, uint64_t seed, double level,
                             cedar_interval *out, cedar_err *err) {
    *out = (cedar_interval){ ratio_of(part, n), (double)NAN, (double)NAN };
    if (weighted(part, n) < 2 || resamples < 2) return CEDAR_OK;
    double *value = cedar_calloc(resamples, sizeof *value);
    if (!value) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u bootstrap resamples", resamples);
    uint64_t key = cedar_rng_key(seed, "audit/bootstrap"), draw = 0;
    size_t count = 0;
    for (uint32_t b = 0; b < resamples; b++) {
        double sum = 0, weight = 0;
        for (size_t i = 0; i < n; i++) {
            const cedar_part *p = &part[cedar_rng_below(key, draw++, n)];
            sum += p->sum;
            weight += p->weight;
        }
        if (weight > 0) value[count++] = sum / weight;   /* a resample may miss every document with positions */
    }
    qsort(value, count, sizeof *value, by_value);
    if (count > 0) {
        out->lo = quantile(value, count, (1 - level) / 2);
        out->hi = quantile(value, count, (1 + level) / 2);
    }
    cedar_free(value);
    return CEDAR_OK;
}

void cedar_ratio_se(const cedar_part *part, size_t n, double *value, double *se, size_t *used) {
    *value = ratio_of(part, n);
    *used = weighted(part, n);
    *se = (double)NAN;
    if (*used < 2) return;
    double squares = 0, weight = 0;
    for (size_t i = 0; i < n; i++) {
        double rest = part[i].sum - *value * part[i].weight;
        squares += rest * rest;
        weight += part[i].weight;
    }
    *se = sqrt(squares * (double)*used / (double)(*used - 1)) / weight;
}

/* --- Student's t -------------------------------------------------------------------------------------------------- */

/* Continued fraction of the incomplete beta function, by Lentz's method. */
static double beta_fraction(double a, double b, double x) {
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double h = d;
    for (int m = 1; m <= 500; m++) {
        for (int odd = 0; odd < 2; odd++) {
            double k = m, term = odd ? -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1))
                                     : k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k));
            d = 1 + term * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + term / c;
            if (fabs(c) < tiny) c = tiny;
            h *= d * c;
            if (odd && fabs(d * c - 1) < 1e-16) return h;
        }
    }
    return h;
}

/* Regularised incomplete beta function I_x(a, b). */
static double beta_share(double a, double b, double x) {
    if (x <= 0) return 0;
    if (x >= 1) return 1;
    double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double cedar_student_cdf(double t, double df) {
    if (isnan(t)) return (double)NAN;
    if (isinf(t)) return t > 0 ? 1 : 0;
    double tail = 0.5 * beta_share(df / 2, 0.5, df / (df + t * t));
    return t > 0 ? 1 - tail : tail;
}

/* Upper tail, without the loss of 1 - cdf. */
static double student_above(double t, double df) { return cedar_student_cdf(-t, df); }

double cedar_t_test(double value, double se, size_t used) {
    if (used < 2 || isnan(value) || isnan(se)) return (double)NAN;
    if (se == 0) return value == 0 ? 1 : 0;
    return 2 * student_above(fabs(value / se), (double)(used - 1));
}

double cedar_tost(double value, double se, size_t used, double margin, bool one_sided) {
    if (used < 2 || isnan(value) || isnan(se)) return (double)NAN;
    if (se == 0) return value < margin && (one_sided || value > -margin) ? 0 : 1;
    double df = (double)(used - 1), below = student_above((margin - value) / se, df),
           above = one_sided ? 0 : student_above((value + margin) / se, df);
    return below > above ? below : above;
}

/* --- several tests, proportions, pairs, survival ------------------------------------------------------------------ */

/* How many p values come before p[i] in ascending order; equal ones in the order of their places. */
static size_t rank_of(const double *p, size_t n, size_t i) {
    size_t rank = 0;
    for (size_t k = 0; k < n; k++)
        if (p[k] < p[i] || (p[k] == p[i] && k < i)) rank++;
    return rank;
}

void cedar_holm(const double *p, size_t n, double *adjusted) {
    size_t tests = 0;
    for (size_t i = 0; i < n; i++)
        if (!isnan(p[i])) tests++;
    for (size_t i = 0; i < n; i++) {
        size_t rank = rank_of(p, n, i);
        adjusted[i] = isnan(p[i]) ? (double)NAN : 0;
        for (size_t k = 0; k < n; k++) {        /* adjusted values never fall along the order */
            size_t r = rank_of(p, n, k);
            double one = p[k] * (double)(tests - r);
            if (r <= rank && one > adjusted[i]) adjusted[i] = one;
        }
        if (adjusted[i] > 1) adjusted[i] = 1;
    }
}

/* Acklam's rational approximation, then one step of Halley's method on erfc: full double precision. */
double cedar_normal_quantile(double p) {
    static const double a[] = { -3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02,
                                1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00 },
                        b[] = { -5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                                6.680131188771972e+01, -1.328068155288572e+01 },
                        c[] = { -7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                                -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00 },
                        d[] = { 7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                                3.754408661907416e+00 };
    double x, tail = p < 0.5 ? p : 1 - p;
    if (tail < 0.02425) {
        double q = sqrt(-2 * log(tail));
        x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
            ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
        if (p > 0.5) x = -x;
    } else {
        double q = p - 0.5, r = q * q;
        x = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
            (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
    }
    double e = 0.5 * erfc(-x / M_SQRT2) - p, u = e * sqrt(2 * M_PI) * exp(x * x / 2);
    return x - u / (1 + x * u / 2);
}

cedar_interval cedar_wilson(uint64_t k, uint64_t n, double level) {
    if (n == 0) return (cedar_interval){ (double)NAN, (double)NAN, (double)NAN };
    double z = cedar_normal_quantile((1 + level) / 2), share = (double)k / (double)n, m = (double)n, zz = z * z / m,
           middle = (share + zz / 2) / (1 + zz), half = z * sqrt(share * (1 - share) / m + zz / (4 * m)) / (1 + zz);
    return (cedar_interval){ share, k == 0 ? 0 : middle - half, k == n ? 1 : middle + half };
}

double cedar_mcnemar(uint64_t b, uint64_t c) {
    uint64_t n = b + c, least = b < c ? b : c;
    double sum = 0;
    for (uint64_t i = 0; i <= least; i++)
        sum += exp(lgamma((double)n + 1) - lgamma((double)i + 1) - lgamma((double)(n - i) + 1) - (double)n * M_LN2);
    return 2 * sum > 1 ? 1 : 2 * sum;
}

void cedar_survival(const uint32_t *step, size_t n, uint32_t limit, double *survival, double *mean) {
    *mean = n ? 0 : (double)NAN;
    double s = n ? 1 : (double)NAN;
    survival[0] = s;
    for (uint32_t k = 0; k < limit; k++) {
        size_t at_risk = 0, events = 0;
        for (size_t i = 0; i < n; i++) {
            at_risk += step[i] >= k;
            events += step[i] == k;
        }
        if (at_risk > 0) s *= 1 - (double)events / (double)at_risk;
        survival[k + 1] = s;
        *mean += s;
    }
}
