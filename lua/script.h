/* Scenarios: sandboxed Lua programs over a few verbs (docs/SCENARIOS.md). No Lua type appears here.
 *
 * Ownership   The caller owns everything it passes; nothing of it is kept after cedar_script_run.
 * Threads     The caller's. Allocation: base/mem.h, all of it, up to memory_max.
 * Errors      base/status.h; messages name the scenario's file and line. Nothing here prints. */
#ifndef CEDAR_LUA_SCRIPT_H
#define CEDAR_LUA_SCRIPT_H

#include <stddef.h>
#include <stdint.h>

#include "audit/audit.h"
#include "base/status.h"
#include "sim/claims.h"
#include "sim/observer.h"
#include "sim/shape.h"
#include "sim/sim.h"

/* Runs a[i] against b[i] [count], request by request. */
typedef struct cedar_paired_opts {
    const int64_t *a, *b;                   /* numbers of runs */
    size_t count;
    const char *metric;
    uint32_t resamples;
    uint64_t seed;
} cedar_paired_opts;

/* Means over pairs of requests; differences b - a and ratios b / a, with 95 % intervals; NaN: nothing to say. */
typedef struct cedar_paired {
    uint64_t pairs, sessions, left_out;     /* left_out: requests without a partner */
    double mean_a, mean_b, diff, diff_lo, diff_hi, ratio, ratio_lo, ratio_hi;
} cedar_paired;

/* What a scenario may do to the world: everything goes through here. */
typedef struct cedar_script_host {
    void *self;
    /* Plays a run with these options (already checked). */
    cedar_status (*run)(void *self, const cedar_run_opts *opts, cedar_run_result *out, cedar_err *err);
    /* Plays an audit. */
    cedar_status (*audit)(void *self, const cedar_audit_opts *opts, cedar_audit_result *out, cedar_err *err);
    /* Compares runs that have been played; NULL: cannot. */
    cedar_status (*paired)(void *self, const cedar_paired_opts *opts, cedar_paired *out, cedar_err *err);
    /* Records an expectation; ok or not, the scenario goes on. */
    cedar_status (*expect)(void *self, const char *what, bool ok, const char *detail, cedar_err *err);
    /* Reads a file of published figures; the caller frees it (cedar_published_free). NULL: there are none. */
    cedar_status (*published)(void *self, const char *path, cedar_published_list **out, cedar_err *err);
    /* Figures of a model's shape. NULL: there are none. */
    cedar_status (*shape)(void *self, const char *model, cedar_shape *out, cedar_err *err);
    /* Records what ladder{...}, claim{...} or paired(...) says; NULL throws it away. */
    cedar_status (*finding)(void *self, cedar_finding kind, const void *row, cedar_err *err);
    /* One print(...) or note(...) of the scenario, without newline at the end; NULL throws the text away. */
    void (*print)(void *self, const char *text);
} cedar_script_host;

typedef struct cedar_script_opts {
    const char *name;                       /* file name for messages */
    const char *text;                       /* the scenario */
    size_t bytes;
    const char *const *overrides;           /* "key=value": win over every run{...} */
    size_t override_count;
    uint64_t seed;                          /* of random() */
    uint64_t instructions_max;              /* 0 = CEDAR_SCRIPT_INSTRUCTIONS */
    uint64_t memory_max;                    /* bytes; 0 = CEDAR_SCRIPT_MEMORY */
    const volatile int *stop;               /* non-zero ends the scenario with CEDAR_E_INTERRUPT; may be NULL */
} cedar_script_opts;

#define CEDAR_SCRIPT_INSTRUCTIONS 500000000ull
#define CEDAR_SCRIPT_MEMORY (256ull << 20)

/* Runs a scenario. CEDAR_E_SCRIPT for errors in it, CEDAR_E_ARG for bad overrides (before anything runs),
 * CEDAR_E_EXPECT when it came to its end and an expectation failed. A failing callback becomes an error of the
 * scenario with the callback's code; the scenario may catch it with pcall, except CEDAR_E_INTERRUPT and CEDAR_E_DB,
 * which end it. */
cedar_status cedar_script_run(const cedar_script_opts *opts, const cedar_script_host *host,
                              cedar_err *err) CEDAR_USE_RESULT;

#endif
