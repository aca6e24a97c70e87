#!/usr/bin/env python3
"""Expected values of tests/test_audit.c, from scipy and numpy. Not part of the tests: they hold the numbers.

Printed with scipy 1.17.1, numpy 2.4.6."""
import sys
from math import log, sqrt

try:
    import numpy as np
    from scipy import stats
except ImportError:
    sys.exit("needs scipy; the tests themselves do not")

print("Student's t, P(T <= t):")
for t, df in [(-2.5, 1), (0.3, 3), (1.7, 9), (4.2, 19), (-0.01, 40), (12, 2.5), (-8.5, 99)]:
    print(f"  t {t} df {df}: {stats.t.cdf(t, df)!r}")

d = np.array([0.0031, -0.0012, 0.0048, 0.0005, 0.0022, -0.0003, 0.0017, 0.0029])
print("t test:", d.mean(), d.std(ddof=1) / sqrt(len(d)), stats.ttest_1samp(d, 0).pvalue)
for m in (0.004, 0.002):
    print("one-sided tests of margin", m, stats.ttest_1samp(d, m, alternative="less").pvalue,
          stats.ttest_1samp(d, -m, alternative="greater").pvalue)

for k, n in [(0, 20), (20, 20), (3, 11), (995, 1000)]:
    print("Wilson", k, n, stats.binomtest(k, n).proportion_ci(0.95, method="wilson"))
for p in [1e-12, 0.001, 0.025, 0.3, 0.5, 0.9999]:
    print("normal quantile", p, stats.norm.ppf(p))
for b, c in [(3, 9), (0, 6), (5, 5), (1, 0), (40, 70)]:
    print("McNemar", b, c, stats.binomtest(min(b, c), b + c, 0.5).pvalue)

s, w = np.array([3.0, 1, 4, 1, 5]), np.array([10.0, 4, 8, 5, 12])
v = s.sum() / w.sum()
e = s - v * w
print("ratio and its linearised standard error:", v, sqrt((e @ e) * 5 / 4) / w.sum())

p = np.array([0.01, 0.04, 0.03, 0.005, 0.5, 1e-20])
adjusted, run = np.empty(len(p)), 0.0
for rank, i in enumerate(np.argsort(p, kind="stable")):
    run = max(run, (len(p) - rank) * p[i])
    adjusted[i] = min(1, run)
print("Holm", adjusted)

x = np.array([0.8, 1.9, 0.3, 2.4, 1.1, 0.7, 3.0, 1.6, 0.9, 1.3, 2.2, 0.5])
print("bootstrap", x.mean(),
      stats.bootstrap((x,), np.mean, n_resamples=200000, method="percentile", random_state=1).confidence_interval)

steps, limit = [3, 5, 5, 8, 10, 10, 1], 10
sf = stats.ecdf(stats.CensoredData(uncensored=[t for t in steps if t < limit],
                                   right=[t for t in steps if t >= limit])).sf
print("Kaplan-Meier", sf.quantiles, sf.probabilities)


def kl(a, b):
    return sum(u * log(u / v) for u, v in zip(a, b))


for p, q in [((.5, .25, .25), (.25, .5, .25)), ((.5, .25, .25), (.4, .2, .4)), ((.5, .25, .25), (1 / 3,) * 3),
             ((.9, .05, .05), (.2, .4, .4))]:
    m = [(u + v) / 2 for u, v in zip(p, q)]
    print("KL, reverse, JS of", p, q, kl(p, q), kl(q, p), (kl(p, m) + kl(q, m)) / 2)
