/* Statistics of an arm from the sums of its documents. */
#include <math.h>
#include <stdio.h>

#include "audit/audit_int.h"
#include "base/mem.h"

enum { ROWS = CEDAR_OFFSET_BINS + 1 };      /* bins, then all positions */
static const double alpha = 0.05;

/* Bins of spec/replay.md 4.4; reports/schema.sql has the same as offset_bins. Upper ends, inclusive. */
static const int32_t bin_end[CEDAR_OFFSET_BINS] = { -1, 0, 15, 63, 127, 254, 888, 1650, 2412, 4952, INT32_MAX };

int audit_bin(int32_t offset) {
    int bin = 0;
    while (offset > bin_end[bin]) bin++;
    return bin;
}

typedef enum measure { KL, DLOGP, TOP1, DECISIVE, MEASURES } measure;

static const struct { const char *name; bool one_sided, share; } measures[MEASURES] = {
    [KL] = { "kl", true, false },           /* never negative, so a test against 0 would say nothing */
    [DLOGP] = { "dlogp", false, false },
    [TOP1] = { "top1", true, true },
    [DECISIVE] = { "decisive", true, true }
};

static cedar_part part_of(measure m, const audit_sums *s) {
    switch (m) {
    case KL: return (cedar_part){ s->kl, (double)s->n };
    case DLOGP: return (cedar_part){ s->dlogp, (double)s->n };
    case TOP1: return (cedar_part){ (double)s->differ, (double)s->n };
    default: return (cedar_part){ (double)s->decisive_differ, (double)s->decisive };
    }
}

static double margin_of(const cedar_audit_opts *o, measure m) {
    return m == KL ? o->margin_kl : m == DLOGP ? o->margin_dlogp : o->margin_top1;
}

/* One measure in one bin: value, interval and raw p values. parts: room for `docs`. */
static cedar_status test_bin(const cedar_audit_opts *o, const audit_tally *t, uint32_t docs, measure m, int bin,
                             cedar_part *part, cedar_audit_stat_row *row, cedar_err *err) {
    uint64_t successes = 0;
    double value, se;
    size_t used;
    cedar_interval interval;
    row->positions = 0;
    for (uint32_t i = 0; i < docs; i++) {
        part[i] = part_of(m, &t->doc[i][bin]);
        row->positions += (uint64_t)part[i].weight;
        successes += measures[m].share ? (uint64_t)part[i].sum : 0;
    }
    cedar_ratio_se(part, docs, &value, &se, &used);
    row->docs = used;
    row->metric = measures[m].name;
    row->margin = margin_of(o, m);
    row->p = measures[m].one_sided ? (double)NAN : cedar_t_test(value, se, used);
    row->p_equivalent = cedar_tost(value, se, used, row->margin, measures[m].one_sided);
    if (measures[m].share) {
        interval = cedar_wilson(successes, row->positions, 0.95);
    } else {
        cedar_status st = cedar_bootstrap(part, docs, o->resamples, o->seed, 0.95, &interval, err);
        if (st) return st;
    }
    row->value = interval.value;
    row->lo = interval.lo;
    row->hi = interval.hi;
    return CEDAR_OK;
}

static const char *verdict_of(const cedar_audit_stat_row *r, bool one_sided, bool all_zero) {
    if (all_zero) return "zero";
    /* both, for the t test leans on document means that are nearly normal */
    bool inside = r->hi < r->margin && (one_sided || r->lo > -r->margin);
    if (inside && r->p_equivalent_holm < alpha) return "equivalent";
    if (one_sided ? r->lo > r->margin : r->p_holm < alpha) return "different";
    return "undecided";
}

/* The bins are one family of tests; all positions together are one test. */
static void adjust(cedar_audit_stat_row row[ROWS]) {
    double p[2][CEDAR_OFFSET_BINS], adjusted[2][CEDAR_OFFSET_BINS];
    for (int b = 0; b < CEDAR_OFFSET_BINS; b++) {
        p[0][b] = row[b].p;
        p[1][b] = row[b].p_equivalent;
    }
    for (int i = 0; i < 2; i++) cedar_holm(p[i], CEDAR_OFFSET_BINS, adjusted[i]);
    for (int b = 0; b < CEDAR_OFFSET_BINS; b++) {
        row[b].p_holm = adjusted[0][b];
        row[b].p_equivalent_holm = adjusted[1][b];
    }
    row[AUDIT_ALL].p_holm = row[AUDIT_ALL].p;
    row[AUDIT_ALL].p_equivalent_holm = row[AUDIT_ALL].p_equivalent;
}

static bool all_zero(const audit_tally *t, uint32_t docs, int bin) {
    for (uint32_t i = 0; i < docs; i++) {
        const audit_sums *s = &t->doc[i][bin];
        if (s->kl != 0 || s->dlogp != 0 || s->differ) return false;
    }
    return true;
}

static cedar_status summarise_measure(const cedar_audit_opts *o, const audit_tally *t, uint32_t docs, measure m,
                                      cedar_part *part, cedar_audit_stat_row row[ROWS], audit_stat_fn fn, void *self,
                                      cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (int b = 0; b < ROWS && !st; b++) {
        row[b].bin = b == AUDIT_ALL ? -1 : b;
        st = test_bin(o, t, docs, m, b, part, &row[b], err);
    }
    if (st) return st;
    adjust(row);
    for (int b = 0; b < ROWS && !st; b++) {
        if (row[b].positions == 0) continue;
        row[b].verdict = verdict_of(&row[b], measures[m].one_sided, all_zero(t, docs, b));
        st = fn(self, &row[b], err);
    }
    return st;
}

/* Forced answers: difference of log probability, and pairs that only one arm gets right. */
static cedar_status summarise_needles(const cedar_audit_opts *o, const audit_tally *t, uint32_t docs,
                                      cedar_audit_stat_row base, audit_stat_fn fn, void *self, double *dlogp,
                                      cedar_err *err) {
    double se;
    size_t used;
    cedar_interval interval;
    cedar_ratio_se(t->needle, docs, dlogp, &se, &used);
    if (used == 0) return CEDAR_OK;
    cedar_status st = cedar_bootstrap(t->needle, docs, o->resamples, o->seed, 0.95, &interval, err);
    if (st) return st;
    double needles = 0;
    for (uint32_t i = 0; i < docs; i++) needles += t->needle[i].weight;
    cedar_audit_stat_row row = base;
    row.metric = "needle";
    row.bin = -1;
    row.docs = used;
    row.positions = (uint64_t)needles;
    row.value = interval.value;
    row.lo = interval.lo;
    row.hi = interval.hi;
    row.margin = o->margin_dlogp;
    row.p = row.p_holm = cedar_t_test(*dlogp, se, used);
    row.p_equivalent = row.p_equivalent_holm = cedar_tost(*dlogp, se, used, row.margin, false);
    bool zero = true;
    for (uint32_t i = 0; i < docs; i++) zero = zero && t->needle[i].sum == 0;
    row.verdict = verdict_of(&row, false, zero);
    st = fn(self, &row, err);
    if (st) return st;
    row.metric = "needle_exact";    /* value: more answers right (+) or fewer (-), of all; exact McNemar test */
    row.value = ((double)t->needle_c - (double)t->needle_b) / needles;
    row.lo = row.hi = row.margin = row.p_equivalent = row.p_equivalent_holm = (double)NAN;
    row.p = row.p_holm = cedar_mcnemar(t->needle_b, t->needle_c);
    row.verdict = t->needle_b + t->needle_c == 0 ? "zero" : row.p < alpha ? "different" : "undecided";
    return fn(self, &row, err);
}

/* A deliberate fault beside the same replay without it: the difference in KL, document by document. */
static cedar_status summarise_fault(const cedar_audit_opts *o, const audit_tally *t, uint32_t docs,
                                    cedar_audit_stat_row row, cedar_part *part, audit_stat_fn fn, void *self,
                                    cedar_audit_arm_result *out, cedar_err *err) {
    double se;
    size_t used;
    cedar_interval interval;
    bool zero = true;
    out->fault_kl = out->fault_lo = out->fault_hi = (double)NAN;
    if (!t->clean) return CEDAR_OK;
    row.positions = 0;
    for (uint32_t i = 0; i < docs; i++) {
        const audit_sums *s = &t->doc[i][AUDIT_ALL];
        part[i] = (cedar_part){ s->kl - t->clean->doc[i][AUDIT_ALL].kl, (double)s->n };
        row.positions += s->n;
        zero = zero && part[i].sum == 0;
    }
    cedar_ratio_se(part, docs, &row.value, &se, &used);
    if (used == 0) return CEDAR_OK;
    cedar_status st = cedar_bootstrap(part, docs, o->resamples, o->seed, 0.95, &interval, err);
    if (st) return st;
    row.metric = "fault";
    row.bin = -1;
    row.docs = used;
    out->fault_kl = row.value = interval.value;
    out->fault_lo = row.lo = interval.lo;
    out->fault_hi = row.hi = interval.hi;
    row.margin = row.p_equivalent = row.p_equivalent_holm = (double)NAN;
    row.p = row.p_holm = cedar_t_test(row.value, se, used);
    row.verdict = zero ? "zero" : row.lo > 0 || row.hi < 0 ? "different" : "undecided";
    return fn(self, &row, err);
}

static double greedy_mean(const cedar_audit_opts *o, const audit_tally *t, cedar_err *err, cedar_status *st) {
    double mean = (double)NAN;
    if (t->greedy_count == 0) return mean;
    double *survival = cedar_calloc((size_t)o->greedy_tokens + 1, sizeof *survival);
    if (!survival) *st = cedar_fail(err, CEDAR_E_OOM, "no memory for a survival curve");
    else cedar_survival(t->greedy, t->greedy_count, o->greedy_tokens, survival, &mean);
    cedar_free(survival);
    return mean;
}

static void fill_result(const audit_tally *t, const cedar_audit_stat_row rows[MEASURES][ROWS],
                        cedar_audit_arm_result *out) {
    const cedar_audit_stat_row *kl = &rows[KL][AUDIT_ALL], *dlogp = &rows[DLOGP][AUDIT_ALL];
    out->docs = kl->docs;
    out->positions = kl->positions;
    out->kl_mean = kl->value;
    out->kl_lo = kl->lo;
    out->kl_hi = kl->hi;
    out->kl_max = t->kl_max;
    out->kl_p_equivalent = kl->p_equivalent;
    out->dlogp_mean = dlogp->value;
    out->dlogp_lo = dlogp->lo;
    out->dlogp_hi = dlogp->hi;
    out->top1_rate = 1 - rows[TOP1][AUDIT_ALL].value;
    out->decisive = rows[DECISIVE][AUDIT_ALL].positions;
    out->decisive_rate = 1 - rows[DECISIVE][AUDIT_ALL].value;
    out->layer_max = t->layer_max;
    out->global_rows = t->end.global_rows;
    out->global_differ = t->end.global_differ;
    out->adopted_changed = t->end.adopted_changed;
    out->window_bytes = t->end.window_bytes;
    out->prompt_rows = t->end.prompt_rows;
    out->prompt_kept = t->end.prompt_kept;
    out->replayed = t->end.replayed;
    out->prompt_s = (double)t->end.prompt_ns / 1e9;
    out->forward_s = (double)t->end.forward_ns / 1e9;
    snprintf(out->verdict, sizeof out->verdict, "%s", kl->verdict ? kl->verdict : "nothing");
}

cedar_status audit_summarise(const cedar_audit_opts *o, const audit_tally *t, uint32_t docs, int64_t audit_id,
                             int64_t arm_id, audit_stat_fn fn, void *self, cedar_audit_arm_result *out,
                             cedar_err *err) {
    const cedar_audit_stat_row base = { .audit_id = audit_id, .arm_id = arm_id };
    cedar_audit_stat_row rows[MEASURES][ROWS];
    cedar_part *part = cedar_calloc(docs, sizeof *part);
    if (!part) return cedar_fail(err, CEDAR_E_OOM, "no memory for the statistics of %u documents", docs);
    for (int m = 0; m < MEASURES; m++)
        for (int b = 0; b < ROWS; b++) rows[m][b] = base;
    cedar_status st = CEDAR_OK;
    for (int m = 0; m < MEASURES && !st; m++)
        st = summarise_measure(o, t, docs, (measure)m, part, rows[m], fn, self, err);
    if (!st) st = summarise_needles(o, t, docs, base, fn, self, &out->needle_dlogp, err);
    if (!st) st = summarise_fault(o, t, docs, base, part, fn, self, out, err);
    if (!st) out->greedy_mean = greedy_mean(o, t, err, &st);
    if (!st) fill_result(t, (const cedar_audit_stat_row(*)[ROWS])rows, out);
    cedar_free(part);
    return st;
}
