/* paired(...) of scenarios: requests that runs of a database have in common, with bootstrap intervals over sessions. */
#include <math.h>

#include "audit/stats.h"
#include "base/mem.h"
#include "lua/script.h"
#include "reports/reports.h"
#include "sim/cli_int.h"

static const double LEVEL = 0.95;

/* A session is one unit: its requests depend on each other. */
static cedar_status compare(const cedar_pairs *x, const cedar_paired_opts *o, cedar_part *part, cedar_paired *out,
                            cedar_err *err) {
    double a = 0, b = 0;
    cedar_interval diff, ratio;
    for (size_t i = 0; i < x->count; i++) {
        const cedar_pair *p = &x->list[i];
        a += p->a;
        b += p->b;
        out->pairs += p->count;
        part[i] = (cedar_part){ p->b - p->a, (double)p->count };
    }
    cedar_status st = cedar_bootstrap(part, x->count, o->resamples, o->seed, LEVEL, &diff, err);
    for (size_t i = 0; i < x->count; i++) part[i] = (cedar_part){ x->list[i].b, x->list[i].a };
    if (!st) st = cedar_bootstrap(part, x->count, o->resamples, o->seed, LEVEL, &ratio, err);
    if (st) return st;
    out->sessions = x->count;
    out->left_out = x->left_out;
    out->mean_a = out->pairs ? a / (double)out->pairs : (double)NAN;
    out->mean_b = out->pairs ? b / (double)out->pairs : (double)NAN;
    out->diff = diff.value;
    out->diff_lo = diff.lo;
    out->diff_hi = diff.hi;
    out->ratio = ratio.value;
    out->ratio_lo = ratio.lo;
    out->ratio_hi = ratio.hi;
    return CEDAR_OK;
}

cedar_status cedar_cli_paired(const char *db, const cedar_paired_opts *o, cedar_paired *out, cedar_err *err) {
    cedar_pairs x;
    *out = (cedar_paired){ 0 };
    cedar_status st = cedar_pairs_load(db, o->a, o->b, o->count, o->metric, &x, err);
    if (st) return st;
    cedar_part *part = cedar_calloc(x.count + 1, sizeof *part);
    st = part ? compare(&x, o, part, out, err) : cedar_fail(err, CEDAR_E_OOM, "no memory for %zu sessions", x.count);
    cedar_free(part);
    cedar_pairs_free(&x);
    return st;
}
