/* Published figures: how ours are judged against them.
 *
 * A rule is chosen before the figure is known; the verdict follows from the numbers alone. Pure functions. */
#ifndef CEDAR_SIM_CLAIMS_H
#define CEDAR_SIM_CLAIMS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Where our figure must lie. */
typedef enum cedar_claim_rule {
    CEDAR_CLAIM_ROUNDED,        /* it rounds to the published figure: within half a unit of its last digit */
    CEDAR_CLAIM_WITHIN,         /* within a share of the published figure, above and below */
    CEDAR_CLAIM_AT_LEAST,       /* no more than a share below it: the published figure is a lower bound */
    CEDAR_CLAIM_AT_MOST         /* no more than a share above it: an upper bound */
} cedar_claim_rule;

typedef enum cedar_claim_verdict {
    CEDAR_CLAIM_REPRODUCED,     /* the whole interval lies where it must */
    CEDAR_CLAIM_NOT_REPRODUCED, /* none of it does */
    CEDAR_CLAIM_UNDECIDED,      /* some of it does */
    CEDAR_CLAIM_NOT_TESTED
} cedar_claim_verdict;

typedef struct cedar_claim_test {
    cedar_claim_rule rule;
    double share;               /* 0.2 = 20 %; of every rule but ROUNDED */
    double published;
    double last_digit;          /* one unit of the last digit that was published: 0.1 for 5.3; of ROUNDED */
    double ours, lo, hi;        /* lo and hi NaN: no interval, ours stands for it */
} cedar_claim_test;

/* Judges, and writes the rule and what came of it as one sentence into why [bytes]. ours must be a finite number, and
 * lie in the interval if there is one: the caller has checked. */
cedar_claim_verdict cedar_claim_judge(const cedar_claim_test *t, char *why, size_t bytes);

const char *cedar_claim_verdict_name(cedar_claim_verdict v);

/* By name: "rounded", "within", "at_least", "at_most". False when there is no such rule. */
bool cedar_claim_rule_find(const char *name, cedar_claim_rule *out);

#endif
