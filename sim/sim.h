/* Runs: N lanes of recorded sessions against an engine, under a clock, into an observer.
 *
 * Ownership   cedar_run_opts owns its strings (set through cedar_opts_set); a run owns everything else it makes.
 * Threads     A run uses the caller's thread and the engine's own.
 * Errors      base/status.h. Nothing here prints. */
#ifndef CEDAR_SIM_SIM_H
#define CEDAR_SIM_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "sim/frontier.h"
#include "sim/observer.h"

/* --- options: one table for Lua, the command line, the database and the help -------------------------------------- */

typedef enum cedar_opt_type {
    CEDAR_OPT_INT,      /* whole number */
    CEDAR_OPT_REAL,     /* decimal number with at most 6 digits after the point */
    CEDAR_OPT_RATIO,    /* "1/64", or a decimal number */
    CEDAR_OPT_BOOL,     /* true | false */
    CEDAR_OPT_STRING,
    CEDAR_OPT_CHOICE
} cedar_opt_type;

typedef struct cedar_opt_info {
    const char *key;
    cedar_opt_type type;
    const char *value_default;      /* as text */
    double lo, hi;                  /* numbers: allowed range */
    const char *choices;            /* CEDAR_OPT_CHOICE: "a|b|c" */
    const char *help;               /* one line, with the unit */
    size_t place;                   /* private to sim/options.c */
} cedar_opt_info;

/* The table, in the order of the documentation; *count entries. */
const cedar_opt_info *cedar_opt_table(size_t *count);

typedef struct cedar_run_opts cedar_run_opts;

cedar_status cedar_opts_new(cedar_run_opts **out, cedar_err *err) CEDAR_USE_RESULT;      /* all defaults */
cedar_status cedar_opts_copy(const cedar_run_opts *o, cedar_run_opts **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_opts_free(cedar_run_opts *o);

/* Sets a key from text. An unknown key names the nearest known one; a value out of range names the range. A failed call
 * changes nothing. */
cedar_status cedar_opts_set(cedar_run_opts *o, const char *key, const char *value, cedar_err *err) CEDAR_USE_RESULT;
const char *cedar_opts_get(const cedar_run_opts *o, const char *key);   /* text; NULL for unknown keys */

/* --- policies: a scenario's say in each request ------------------------------------------------------------------- */

/* A waiting request whose admission is asked for, and the state of the run at that time. Times are schedule times. */
typedef struct cedar_policy_request {
    int64_t request_id;
    uint32_t lane, stream, turn, in_tokens, out_tokens;
    int64_t waited_ns;
    bool warmup;
} cedar_policy_request;

typedef struct cedar_policy_state {
    int64_t now_ns;
    uint32_t waiting, running, decoding, pages_free, pages_total;
} cedar_policy_state;

/* Must decide from its arguments alone, so that runs repeat. It is asked before each step for the first waiting
 * request; a refusal is asked again after the next step, and does not hold when nothing runs. */
typedef struct cedar_policy {
    void *self;
    cedar_status (*admit)(void *self, const cedar_policy_request *request, const cedar_policy_state *state, bool *admit,
                          cedar_err *err);
} cedar_policy;

/* An engine of a run with several, as a router sees it. */
typedef struct cedar_policy_engine {
    uint32_t waiting, running, decoding, pages_free, pages_total;
    uint32_t cached_tokens;         /* of the prompt that its prefix cache can serve */
} cedar_policy_engine;

/* Chooses the engine of each request when it arrives, from its arguments alone: 0 .. count - 1. */
typedef struct cedar_router {
    void *self;
    cedar_status (*route)(void *self, const cedar_policy_request *request, const cedar_policy_engine *engines,
                          uint32_t count, uint32_t *engine, cedar_err *err);
} cedar_router;

/* Sets the router of routing = "policy", which `routing_policy` names; borrowed, also by copies. NULL: none. */
void cedar_opts_router(cedar_run_opts *o, const cedar_router *router);

/* Sets the policy of the option `admission`, which names it; borrowed, also by copies. NULL: none. */
void cedar_opts_policy(cedar_run_opts *o, const cedar_policy *policy);

/* All keys and values in table order, as one JSON object; *out is owned by the caller (cedar_free). */
cedar_status cedar_opts_json(const cedar_run_opts *o, char **out, cedar_err *err) CEDAR_USE_RESULT;

/* The options that cedar_opts_json wrote (`name` goes into messages). Every key must be there. */
cedar_status cedar_opts_parse(const char *json, const char *name, cedar_run_opts **out,
                              cedar_err *err) CEDAR_USE_RESULT;

/* Checks that concern several keys, or need a value that has no default (trace). cedar_run calls it; scenarios call it
 * for every point before the first one is played. */
cedar_status cedar_opts_check(const cedar_run_opts *o, cedar_err *err) CEDAR_USE_RESULT;

/* Nearest known word within an edit distance that makes sense, or NULL. words [count]. */
const char *cedar_nearest(const char *word, const char *const *words, size_t count);

/* --- running ------------------------------------------------------------------------------------------------------ */

typedef struct cedar_progress {
    const char *label;
    uint64_t done, total;           /* requests; total 0: nobody knows */
    uint64_t tokens, steps;
    int64_t elapsed_wall_ns;
} cedar_progress;

/* Model and traces that stay loaded from run to run; files are not looked at again while they do. */
typedef struct cedar_run_cache cedar_run_cache;

cedar_status cedar_run_cache_new(cedar_run_cache **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_run_cache_free(cedar_run_cache *c);

/* What the caller lends a run. */
struct cedar_hardware;

typedef struct cedar_run_host {
    const cedar_observer *observer;
    const char *data_dir;           /* where scenarios/models and traces are, when a path is not found as given */
    const cedar_recorded *recorded; /* durations for clock "recorded"; NULL otherwise */
    void (*progress)(void *self, const cedar_progress *p);   /* may be NULL */
    void *self;
    const volatile int *stop;       /* set to non-zero to end the run early ("interrupted"); may be NULL */
    /* Reads the description called `name`, for clock "modelled"; NULL: there are none. */
    cedar_status (*hardware)(const char *data_dir, const char *name, struct cedar_hardware *out, cedar_err *err);
    cedar_run_cache *cache;         /* used by one run at a time; NULL: every run loads what it needs */
} cedar_run_host;

/* Summary of a run, for the scenario and the table at the end. Times of the meter axis. */
typedef struct cedar_run_result {
    int64_t run_id;
    char label[64], replay[16], status[16];
    uint64_t event_hash;
    uint64_t requests;              /* all that ended; warm-up requests are not in any number but this and the next */
    uint64_t warmup_requests;       /* primers among them */
    uint64_t errors, sessions, steps;
    uint64_t in_tokens, out_tokens, hit_tokens, replayed_tokens, trimmed_tokens;
    double ttft_mean_ms, ttft_p50_ms, ttft_p90_ms, itl_mean_ms, itl_p50_ms, itl_p90_ms;
    double interactivity_p90;       /* 1 / p90(ITL), tok/s/user */
    double floor_interactivity;     /* the same at floor_percentile */
    bool floor_met;                 /* it reaches floor_tok_s_user; true without a floor */
    bool submission_valid, gate_ok; /* sim/validity.h; only AgentX runs can be submitted */
    char invalid[160];              /* names of the reasons, joined by spaces; "" = valid */
    double total_tok_s, output_tok_s, span_s;
    double hit_rate;                /* adopted prompt tokens / prompt tokens */
    uint64_t kv_bytes_peak, window_bytes_peak;
    double kv_tokens_fit;           /* what described memory holds beside weights and windows; NaN: none is described */
    uint64_t quality_rows;
    double kl_mean, kl_p99, top1_rate, dlogp_mean;   /* NaN without quality rows */
} cedar_run_result;

/* Plays one run. run_id: its number in the database. On CEDAR_E_INTERRUPT the database is complete up to there. */
cedar_status cedar_run(const cedar_run_opts *opts, int64_t run_id, const cedar_run_host *host, cedar_run_result *out,
                       cedar_err *err) CEDAR_USE_RESULT;

#endif
