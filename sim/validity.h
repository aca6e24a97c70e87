/* May a point be submitted? The AgentX rules on one run, with a reason for every "no".
 *
 * Threads: no state. Allocation: none. All comparisons are in integers. */
#ifndef CEDAR_SIM_VALIDITY_H
#define CEDAR_SIM_VALIDITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What happened in the profiling phase of a run. */
typedef struct cedar_validity_in {
    uint64_t completed;         /* requests without error */
    uint64_t errors;            /* requests in error, context overflows that were sent among them */
    uint64_t overflow;          /* context overflows, sent or skipped */
    uint64_t overflow_skipped;  /* context overflows never sent, so neither completed nor in error */
    int64_t phase_ns;           /* nominal length of the phase */
    int64_t last_sample_ns;     /* from the phase's start to its last TTFT or ITL sample; -1: there is none */
    bool locks_overridden;      /* a rule of the scenario was switched off */
    bool cancelled;             /* the run was ended early */
    bool scenario_unknown;      /* no AgentX rules were asked for */
} cedar_validity_in;

typedef enum cedar_invalid {    /* bits */
    CEDAR_INVALID_LOCKS = 1,    /* unsafe override */
    CEDAR_INVALID_OVERFLOW = 2, /* overflows above 1 % of completed + errors + skipped */
    CEDAR_INVALID_CANCELLED = 4,
    CEDAR_INVALID_COVERAGE = 8, /* samples end before 98 % of the phase */
    CEDAR_INVALID_SCENARIO = 16,
    CEDAR_INVALID_EMPTY = 32,   /* nothing completed */
    CEDAR_INVALID_ERRORS = 64   /* errors above 10 % of completed */
} cedar_invalid;

enum { CEDAR_INVALID_SUBMISSION = 31, CEDAR_INVALID_GATE = 96, CEDAR_INVALID_COUNT = 7, CEDAR_VALIDITY_BYTES = 768 };

typedef struct cedar_validity {
    unsigned reasons;           /* cedar_invalid bits */
    bool submission_valid;      /* none of CEDAR_INVALID_SUBMISSION: the scenario's own rules */
    bool gate_ok;               /* none of CEDAR_INVALID_GATE: the check after the run */
    bool valid;                 /* both */
    char text[CEDAR_VALIDITY_BYTES];    /* reasons in the order of their bits, joined by "; ", "" when valid */
} cedar_validity;

void cedar_validity_make(const cedar_validity_in *in, cedar_validity *out);

/* Short tag of one bit for databases, e.g. "context_overflow". */
const char *cedar_invalid_name(cedar_invalid reason);

#endif
