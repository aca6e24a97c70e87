/* Percentiles. */
#include "sim/percentile.h"

#include <math.h>
#include <stdlib.h>

#include "base/status.h"

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void cedar_sort_real(double *v, size_t n) {
    if (n > 1) qsort(v, n, sizeof *v, ascending);
}

double cedar_percentile(const double *v, size_t n, double p) {
    CEDAR_ASSERT(p >= 0 && p <= 100);
    if (!n) return NAN;
    double rank = (double)(n - 1) * p / 100;
    size_t low = (size_t)rank;
    if (low + 1 >= n) return v[n - 1];
    return v[low] + (rank - (double)low) * (v[low + 1] - v[low]);
}
