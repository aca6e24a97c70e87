/* Samples of a run and their percentiles, for the summary. The database computes its own from the rows. */
#include "base/mem.h"
#include "sim/percentile.h"
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

double cedar_samples_mean(const cedar_samples *s) { return cedar_mean(s->v, s->count); }

double cedar_samples_percentile(cedar_samples *s, double p) {
    cedar_sort_real(s->v, s->count);
    return cedar_percentile(s->v, s->count, p);
}
