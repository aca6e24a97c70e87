/* Verdicts on published figures. */
#include "sim/claims.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const rule_names[] = { "rounded", "digit", "within", "at_least", "at_most" };

bool cedar_claim_rule_find(const char *name, cedar_claim_rule *out) {
    for (size_t i = 0; i < sizeof rule_names / sizeof *rule_names; i++)
        if (strcmp(rule_names[i], name) == 0) {
            *out = (cedar_claim_rule)i;
            return true;
        }
    return false;
}

const char *cedar_claim_verdict_name(cedar_claim_verdict v) {
    static const char *const names[] = { "reproduced", "not reproduced", "undecided", "not tested" };
    return names[v];
}

/* Where our figure must lie, and the rule in words. */
typedef struct band { double lo, hi; char words[96]; } band;

static band band_of(const cedar_claim_test *t) {
    double p = t->published, most = fabs(p) * t->share;
    band b = { -(double)INFINITY, (double)INFINITY, "" };
    if (t->rule == CEDAR_CLAIM_ROUNDED) most = t->last_digit / 2;
    if (t->rule == CEDAR_CLAIM_DIGIT) most = t->last_digit;
    if (t->rule != CEDAR_CLAIM_AT_MOST) b.lo = p - most;
    if (t->rule != CEDAR_CLAIM_AT_LEAST) b.hi = p + most;
    switch (t->rule) {
    case CEDAR_CLAIM_ROUNDED:
        snprintf(b.words, sizeof b.words, "rounded, the published %.6g", p);
        break;
    case CEDAR_CLAIM_DIGIT:
        snprintf(b.words, sizeof b.words, "within a unit of the last digit of %.6g: %.6g to %.6g", p, b.lo, b.hi);
        break;
    case CEDAR_CLAIM_WITHIN:
        snprintf(b.words, sizeof b.words, "within %.4g %% of %.6g: %.6g to %.6g", 100 * t->share, p, b.lo, b.hi);
        break;
    case CEDAR_CLAIM_AT_LEAST: snprintf(b.words, sizeof b.words, "at least %.6g", b.lo); break;
    case CEDAR_CLAIM_AT_MOST: snprintf(b.words, sizeof b.words, "at most %.6g", b.hi); break;
    }
    return b;
}

cedar_claim_verdict cedar_claim_judge(const cedar_claim_test *t, char *why, size_t bytes) {
    const band b = band_of(t);
    bool point = isnan(t->lo);
    double lo = point ? t->ours : t->lo, hi = point ? t->ours : t->hi;
    cedar_claim_verdict v = lo >= b.lo && hi <= b.hi ? CEDAR_CLAIM_REPRODUCED
                            : hi < b.lo || lo > b.hi ? CEDAR_CLAIM_NOT_REPRODUCED
                                                     : CEDAR_CLAIM_UNDECIDED;
    static const char *const of_points[] = { "is that", "is not", "", "" };
    static const char *const of_intervals[] = { "all of it is that", "none of it is", "only a part of it is", "" };
    if (point) snprintf(why, bytes, "rule: %s; ours, %.6g, %s", b.words, t->ours, of_points[v]);
    else
        snprintf(why, bytes, "rule: %s; ours, %.6g, interval %.6g to %.6g: %s", b.words, t->ours, lo, hi,
                 of_intervals[v]);
    return v;
}
