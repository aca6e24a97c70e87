/* Percentiles, mean and spread of a list of numbers: the one definition that every summary uses.
 *
 * Percentile p of n values: sort them, k = (n - 1) * p / 100, linear between v[floor k] and v[floor k + 1]. The
 * standard deviation is that of the population (divided by n). Empty lists give NaN.
 * Threads: no state. Allocation: none. Class D0. */
#ifndef CEDAR_SIM_PERCENTILE_H
#define CEDAR_SIM_PERCENTILE_H

#include <stddef.h>

/* Leaves only finite values above 0, in their order, and returns how many: other latencies are no measurements. */
size_t cedar_latencies_keep(double *v, size_t n);

/* Ascending; NaN must not be among the values. */
void cedar_sort_real(double *v, size_t n);

/* v [n] ascending; p in 0..100. */
double cedar_percentile(const double *v, size_t n, double p);

double cedar_mean(const double *v, size_t n);
double cedar_std(const double *v, size_t n);

#endif
