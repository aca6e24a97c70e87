/* Scenarios: sandboxed Lua programs over a few verbs. No Lua type appears here.
 *
 * Threads     The caller's. Errors: base/status.h; messages name the scenario's file and line. */
#ifndef CEDAR_LUA_SCRIPT_H
#define CEDAR_LUA_SCRIPT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "sim/sim.h"

/* What a scenario may do to the world: everything goes through here. */
typedef struct cedar_script_host {
    void *self;
    /* Plays a run with these options (already checked). */
    cedar_status (*run)(void *self, const cedar_run_opts *opts, cedar_run_result *out, cedar_err *err);
    /* Records an expectation; ok or not, the scenario goes on. */
    cedar_status (*expect)(void *self, const char *what, bool ok, const char *detail, cedar_err *err);
    /* print(...) and note(...) of the scenario. */
    void (*print)(void *self, const char *text);
} cedar_script_host;

typedef struct cedar_script_opts {
    const char *name;                       /* file name for messages */
    const char *text;                       /* the scenario */
    size_t bytes;
    const char *const *overrides;           /* "key=value": win over every run{...} */
    size_t override_count;
    uint64_t seed;                          /* of random() */
    uint64_t instructions_max;              /* 0 = default */
} cedar_script_opts;

/* Runs a scenario. CEDAR_E_SCRIPT for errors in it, CEDAR_E_EXPECT when an expectation failed. */
cedar_status cedar_script_run(const cedar_script_opts *opts, const cedar_script_host *host, cedar_err *err) CEDAR_USE_RESULT;

#endif
