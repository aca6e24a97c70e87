/* Percentiles of a list of numbers, for the summary of a run; reports/views.sql has the same definitions in
 * SQL.
 *
 * Percentile p of n values: sort them, k = (n - 1) * p / 100, linear between v[floor k] and v[floor k + 1]. Empty lists
 * give NaN.
 * Threads: no state. Allocation: none. Class D0. */
#ifndef CEDAR_SIM_PERCENTILE_H
#define CEDAR_SIM_PERCENTILE_H

#include <stddef.h>

/* Ascending; NaN must not be among the values. */
void cedar_sort_real(double *v, size_t n);

/* v [n] ascending; p in 0..100. */
double cedar_percentile(const double *v, size_t n, double p);

#endif
