/* How rows of ladders, claims and paired comparisons are stored: name, kind and place of each member. */
#include <stddef.h>

#include "reports/reports_int.h"

#define LADDER(member, kind) { #member, COLUMN_##kind, offsetof(cedar_ladder_row, member) }
static const reports_field ladder_columns[] = {
    LADDER(ladder_id, I64), LADDER(title, TEXT), LADDER(provenance, TEXT), LADDER(hardware, TEXT), LADDER(model, TEXT),
    LADDER(note, TEXT)
};

#define RUNG(member, kind) { #member, COLUMN_##kind, offsetof(cedar_rung_row, member) }
static const reports_field rung_columns[] = {
    RUNG(ladder_id, I64), RUNG(rung, U32), RUNG(name, TEXT), RUNG(why, TEXT), RUNG(switches, TEXT),
    RUNG(beyond, BOOL)
};

#define FIGURE(member, kind) { #member, COLUMN_##kind, offsetof(cedar_figure_row, member) }
static const reports_field figure_columns[] = {
    FIGURE(ladder_id, I64), FIGURE(rung, U32), FIGURE(metric, TEXT), FIGURE(context_tokens, U32), FIGURE(value, REAL),
    FIGURE(lo, OPTIONAL), FIGURE(hi, OPTIONAL), FIGURE(n, U64), FIGURE(unit, TEXT), FIGURE(run_id, ID),
    FIGURE(note, TEXT)
};

#define CLAIM(member, kind) { #member, COLUMN_##kind, offsetof(cedar_claim_row, member) }
static const reports_field claim_columns[] = {
    CLAIM(claim_id, I64), CLAIM(source, TEXT), CLAIM(date, TEXT), CLAIM(model, TEXT), CLAIM(hardware, TEXT),
    CLAIM(engine, TEXT), CLAIM(metric, TEXT), CLAIM(condition, TEXT), CLAIM(published, REAL), CLAIM(unit, TEXT),
    CLAIM(url, TEXT), CLAIM(ours, OPTIONAL), CLAIM(lo, OPTIONAL), CLAIM(hi, OPTIONAL), CLAIM(n, U64),
    CLAIM(provenance, TEXT), CLAIM(verdict, TEXT), CLAIM(why, TEXT), CLAIM(run_id, ID)
};

#define SENSITIVITY(member, kind) { #member, COLUMN_##kind, offsetof(cedar_sensitivity_row, member) }
static const reports_field sensitivity_columns[] = {
    SENSITIVITY(claim_id, I64), SENSITIVITY(assumption, TEXT), SENSITIVITY(setting_lo, REAL),
    SENSITIVITY(setting_hi, REAL), SENSITIVITY(ours_lo, REAL), SENSITIVITY(ours_hi, REAL)
};

#define PAIRED(member, kind) { #member, COLUMN_##kind, offsetof(cedar_paired_row, member) }
static const reports_field paired_columns[] = {
    PAIRED(paired_id, I64), PAIRED(a_run, I64), PAIRED(b_run, I64), PAIRED(a_runs, TEXT), PAIRED(b_runs, TEXT),
    PAIRED(metric, TEXT), PAIRED(pairs, U64), PAIRED(sessions, U64), PAIRED(left_out, U64), PAIRED(mean_a, OPTIONAL),
    PAIRED(mean_b, OPTIONAL), PAIRED(diff, OPTIONAL), PAIRED(diff_lo, OPTIONAL), PAIRED(diff_hi, OPTIONAL),
    PAIRED(ratio, OPTIONAL), PAIRED(ratio_lo, OPTIONAL), PAIRED(ratio_hi, OPTIONAL), PAIRED(resamples, U32),
    PAIRED(seed, SEED)
};

#define COUNT(columns) columns, sizeof columns / sizeof *columns

const reports_row_kind *reports_finding_kind(cedar_finding kind) {
    static const reports_row_kind kinds[CEDAR_FINDING_COUNT] = {
        [CEDAR_FINDING_LADDER] = { "ladders", COUNT(ladder_columns), .commit = false },
        [CEDAR_FINDING_RUNG] = { "ladder_rungs", COUNT(rung_columns), .commit = false },
        [CEDAR_FINDING_FIGURE] = { "ladder_figures", COUNT(figure_columns), .commit = false },
        [CEDAR_FINDING_CLAIM] = { "claims", COUNT(claim_columns), .commit = false },
        [CEDAR_FINDING_SENSITIVITY] = { "claim_sensitivity", COUNT(sensitivity_columns), .commit = false },
        [CEDAR_FINDING_PAIRED] = { "paired", COUNT(paired_columns), .commit = false }
    };
    return &kinds[kind];
}
