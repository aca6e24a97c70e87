/* Published figures: the file they come from, and how ours are judged against them.
 *
 * A rule is chosen before the figure is known; the verdict follows from the numbers alone.
 * Threads: no state. Memory: base/mem.h. */
#ifndef CEDAR_SIM_CLAIMS_H
#define CEDAR_SIM_CLAIMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* One line: texts are borrowed from the list. */
typedef struct cedar_published {
    int64_t row;                /* 1, 2, ... without the heading and blank lines */
    int line;                   /* of the file, from 1 */
    const char *source, *date, *model, *hardware, *engine, *metric, *condition, *unit, *url;
    double value;
    double last_digit;          /* one unit of the last digit that is given: 0.1 for 5.3, 1 for 890 */
} cedar_published;

typedef struct cedar_published_list {
    cedar_published *rows;
    size_t count;
    char *text;
} cedar_published_list;

/* Reads a CSV file (RFC 4180) whose first line is source,date,model,hardware,engine,metric,condition,value,unit,url.
 * source, model, metric, value and unit must not be empty, and no two lines may claim the same. CEDAR_E_FORMAT names
 * file, line and field. *out is owned by the caller (cedar_published_free). */
cedar_status cedar_published_load(const char *path, cedar_published_list **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_published_free(cedar_published_list *l);

/* --- verdicts ----------------------------------------------------------------------------------------------------- */

/* Where our figure must lie. */
typedef enum cedar_claim_rule {
    CEDAR_CLAIM_ROUNDED,        /* it rounds to the published figure: within half a unit of its last digit */
    CEDAR_CLAIM_DIGIT,          /* within one unit of its last digit, since figures are cut off as often as rounded */
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
    double share;               /* 0.2 = 20 %; of every rule but ROUNDED and DIGIT */
    double published;
    double last_digit;          /* one unit of the last digit that was published: 0.1 for 5.3; of ROUNDED and DIGIT */
    double ours, lo, hi;        /* lo and hi NaN: no interval, ours stands for it */
} cedar_claim_test;

/* Judges, and writes the rule and what came of it as one sentence into why [bytes]. ours must be a finite number, and
 * lie in the interval if there is one: the caller has checked. */
cedar_claim_verdict cedar_claim_judge(const cedar_claim_test *t, char *why, size_t bytes);

const char *cedar_claim_verdict_name(cedar_claim_verdict v);

/* By name: "rounded", "digit", "within", "at_least", "at_most". False when there is no such rule. */
bool cedar_claim_rule_find(const char *name, cedar_claim_rule *out);

#endif
