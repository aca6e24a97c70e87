/* Where a lane enters a recorded session: the AgentX draw of t*.
 *
 * A lane does not begin at the first turn but at a time t* between two shares of the session, drawn from (seed, trace,
 * lane) alone; every stream then goes on with its first turn at or after t*.
 * Threads: no state. Allocation: none. Class D0: the draw is numpy's default_rng, times are doubles in seconds as in
 * the published rule, and one fixed order of operations. */
#ifndef CEDAR_SIM_START_H
#define CEDAR_SIM_START_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "traces/traces.h"

/* Seed of the draw: the first 8 bytes, big endian, of SHA-256("<random_seed>:<trace_id>:<lane>"). */
uint64_t cedar_start_seed64(uint64_t random_seed, const char *trace_id, uint32_t lane);

/* Double in [0, 1) of the draw: the first of numpy's default_rng(seed64). */
double cedar_start_unit(uint64_t seed64);

typedef struct cedar_start {
    uint64_t seed64;
    double u;
    double lo_s, hi_s;          /* window of t*, seconds on the trace's clock */
    double t_star_s;
    int64_t t_star_ns;          /* first nanosecond not before t*: t_ns >= t_star_ns is "at or after t*" */
    uint32_t primers;           /* streams alive at t*: they have turns before it and at or after it */
    uint32_t ahead;             /* streams that have not started: nothing to prime */
    uint32_t over;              /* streams whose turns all lie before t* */
    bool empty;                 /* every stream is over: the trace leaves this lane nothing to do */
} cedar_start;

/* Draws t* = lo + u * (hi - lo) in the window [start + lo_ratio * (end - start), start + hi_ratio * (end - start)],
 * where start and end are the first and last turn's recorded times over all streams. The AgentX ratios are 0.25 and
 * 0.75. next [stream_count of t]: first turn of each stream at or after t*; its turn_count when there is none; the turn
 * before it is the one to prime. CEDAR_E_ARG unless 0 <= lo_ratio <= hi_ratio <= 1. */
cedar_status cedar_start_draw(const cedar_trace *t, uint64_t random_seed, uint32_t lane, double lo_ratio,
                              double hi_ratio, uint32_t *next, cedar_start *out, cedar_err *err) CEDAR_USE_RESULT;

/* Time a primer's turn lies before t*, at most cap_ns: in spread mode a primer leaves (largest lead - its lead) after
 * the warm-up begins, so that all lanes reach t* together. */
int64_t cedar_start_lead_ns(const cedar_start *s, const cedar_turn *primed, int64_t cap_ns);

#endif
