/* Statistics of paired audits: bootstrap over documents, t tests, Holm, equivalence, proportions, survival
 * (docs/AUDIT.md "Statistics").
 *
 * The unit is the document: tokens of one document depend on each other. A measure is a ratio of sums, sum / weight
 * over documents (mean over positions), so documents with more positions weigh more.
 * Threads: no state. Allocation: base/mem.h, released before return. Class D0: the resamples come from a named stream.
 */
#ifndef CEDAR_AUDIT_STATS_H
#define CEDAR_AUDIT_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* One document's part of a measure: the sum over its positions, and how many they are. */
typedef struct cedar_part {
    double sum, weight;
} cedar_part;

typedef struct cedar_interval {
    double value, lo, hi;       /* NaN where there is nothing to compute from */
} cedar_interval;

/* sum / weight over all parts, with the percentile interval of `resamples` resamples of documents. The same seed gives
 * the same documents in every call with as many parts, so measures are resampled together. level: 0.95. Fewer than 2
 * parts with weight: lo and hi are NaN. */
cedar_status cedar_bootstrap(const cedar_part *part, size_t n, uint32_t resamples, uint64_t seed, double level,
                             cedar_interval *out, cedar_err *err) CEDAR_USE_RESULT;

/* Mean and standard error of the ratio over n parts (linearised, documents as clusters). se NaN below 2 parts. */
void cedar_ratio_se(const cedar_part *part, size_t n, double *value, double *se, size_t *used);

/* P(T <= t) of Student's t with df > 0 degrees of freedom. */
double cedar_student_cdf(double t, double df);

/* Two-sided p of value = 0, given its standard error over `used` documents. NaN below 2; se 0: 1 when the value is 0,
 * else 0. */
double cedar_t_test(double value, double se, size_t used);

/* Two one-sided tests of -margin < value < margin: the larger p. Equivalent at level alpha when it is below alpha.
 * one_sided: a quantity that cannot be negative, only value < margin is tested. */
double cedar_tost(double value, double se, size_t used, double margin, bool one_sided);

/* Holm's step-down adjustment of p [n], each in its place. NaN stays NaN and is not counted. */
void cedar_holm(const double *p, size_t n, double *adjusted);

/* Wilson interval of k successes in n; level 0.95. n 0: NaN. */
cedar_interval cedar_wilson(uint64_t k, uint64_t n, double level);

/* Quantile of the standard normal distribution, 0 < p < 1. */
double cedar_normal_quantile(double p);

/* Exact two-sided McNemar test of b against c discordant pairs. */
double cedar_mcnemar(uint64_t b, uint64_t c);

/* Kaplan-Meier of divergence steps. step[i] in 0 .. limit - 1: index of the first differing token; limit: none differed
 * (censored). survival [limit + 1]: share of which the first k tokens agree; *mean: restricted mean, tokens of `limit`
 * that agree. n 0: NaN. */
void cedar_survival(const uint32_t *step, size_t n, uint32_t limit, double *survival, double *mean);

#endif
