/* Samples of a run and their percentiles, for the summary. The database computes its own from the rows. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sim/sim_int.h"

cedar_status cedar_samples_add(cedar_samples *s, double v, cedar_err *err) {
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 256;
        double *grown = cedar_realloc(s->v, capacity, sizeof *grown);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu samples", capacity);
        s->v = grown;
        s->capacity = capacity;
    }
    s->v[s->count++] = v;
    return CEDAR_OK;
}

void cedar_samples_free(cedar_samples *s) {
    cedar_free(s->v);
    *s = (cedar_samples){ 0 };
}

double cedar_samples_mean(const cedar_samples *s) {
    double sum = 0;
    for (size_t i = 0; i < s->count; i++) sum += s->v[i];
    return s->count ? sum / (double)s->count : NAN;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cedar_samples_percentile(cedar_samples *s, double p) {
    if (!s->count) return NAN;
    qsort(s->v, s->count, sizeof *s->v, ascending);
    double rank = (double)(s->count - 1) * p / 100;
    size_t low = (size_t)rank;
    if (low + 1 >= s->count) return s->v[s->count - 1];
    return s->v[low] + (rank - (double)low) * (s->v[low + 1] - s->v[low]);
}
