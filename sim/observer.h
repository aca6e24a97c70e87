/* What a run reports while it happens: fixed-size rows through one struct of function pointers.
 *
 * sim/ emits, reports/ turns rows into a database; nothing else knows both. Strings are borrowed for the call.
 * Every row is deterministic except the members marked [timing]: two runs of one scenario agree in all others.
 *
 * Two time axes (docs/METHOD.md "Time"): schedule time decides the order of everything; meter time is what metrics use.
 * With clock "recorded" or pace "measured" they are tied; with the default pace they differ in step lengths only.
 * Threads: called from the run's thread. A callback that fails ends the run with its error. */
#ifndef CEDAR_SIM_OBSERVER_H
#define CEDAR_SIM_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Once per scenario execution. */
typedef struct cedar_manifest_row {
    const char *cedar_version, *commit;     /* commit "" when unknown */
    bool commit_dirty;
    const char *compiler, *build_flags;
    const char *scenario_path, *scenario_text, *scenario_hash;
    const char *overrides;                  /* key=value words of the command line, JSON array */
    const char *machine;                    /* JSON: cpu, cores, memory_bytes, os */
    const char *started_at;                 /* [timing] ISO 8601 UTC */
    uint64_t seed;
} cedar_manifest_row;

/* One run{...}: an arm, a point of a sweep. */
typedef struct cedar_run_row {
    int64_t run_id;                         /* 1, 2, ... within the database */
    const char *label, *config_json, *config_hash;
    const char *model_name, *model_hash, *model_origin;   /* origin: "checkpoint PATH" or "synthetic seed N" */
    const char *trace_paths, *trace_hash;
    const char *backend, *arith, *clock, *replay;
    const char *device;                     /* name of the GPU that computes, "" = none */
    const char *rules, *admission;          /* admission: name and hash of the scenario's policy, "" = none */
    const char *floor_mode;                 /* "mark" | "admit" */
    uint64_t floor_milli_tok_s_user;        /* speed floor in 1/1000 tok/s/user, 0 = none */
    uint32_t floor_percentile;              /* of the inter-token latency */
    uint64_t seed;
    uint32_t lanes, vocab, window, page_tokens;
    uint64_t kv_token_bytes_x1000;          /* global KV and index keys per token, times 1000 */
    uint64_t window_snap_bytes;             /* stored windows of one position */
    uint64_t plan_total_bytes;
} cedar_run_row;

/* One session tree played by a lane. */
typedef struct cedar_session_row {
    int64_t run_id, session_id;             /* session_id 1, 2, ... in starting order within the run */
    int32_t lane, pass;                     /* pass: how often the lane has taken a new tree before */
    const char *trace_id;
    uint32_t streams, requests_planned, requests_done;
    int64_t start_sched_ns, end_sched_ns;
    int64_t start_ns, end_ns;               /* [timing] meter */
    const char *outcome;                    /* "finished" | "cut" | "overflow" | "error" */
    uint32_t first_turn;                    /* of the root, at the session's start */
    int64_t t_star_ns;                      /* recorded time of the start, -1: at the first turn */
    int64_t idle_cut_ns;                    /* idle time of this tree alone that the tree's cap took out */
} cedar_session_row;

typedef enum cedar_miss_reason {            /* why a prompt token was not served from the prefix cache */
    CEDAR_MISS_NONE, CEDAR_MISS_COLD, CEDAR_MISS_EVICTED, CEDAR_MISS_PAGE_TAIL, CEDAR_MISS_NO_WINDOWS,
    CEDAR_MISS_SHORT_HIT, CEDAR_MISS_OFF
} cedar_miss_reason;

typedef struct cedar_request_row {
    int64_t run_id, request_id, session_id; /* request_id 1, 2, ... in arrival order within the run */
    int32_t lane, stream, turn;
    uint32_t engine;                        /* 1, 2, ...; 0: the request never came to one */
    const char *trace_id, *phase;           /* phase "profiling" | "primer" | "warmup"; only profiling counts */
    uint32_t in_recorded, out_recorded;     /* tokens in the trace */
    uint32_t in_tokens, out_tokens;         /* tokens replayed (after length scale) */
    uint32_t hit_tokens;                    /* prefix adopted from the cache */
    uint32_t matched_tokens;                /* prefix found in the cache, adopted or not */
    uint32_t replayed_tokens;               /* fed again to rebuild windows */
    uint32_t trimmed_tokens;                /* prompt rows that skipped the layers behind the cut */
    uint32_t prefill_steps, decode_steps;
    uint32_t drafted_tokens, accepted_tokens;   /* drafts that decode steps fed, and those of them that stayed */
    uint32_t blocks_total, blocks_hit_theory; /* infinite cache, one seen-set per trace */
    uint32_t provenance_depth;              /* earlier replays that produced adopted rows */
    cedar_miss_reason miss;
    int64_t arrival_sched_ns, admit_sched_ns, first_sched_ns, last_sched_ns;
    int64_t arrival_ns, admit_ns, first_ns, last_ns;   /* [timing] meter: arrival, admission, first and last token */
    const char *error;                      /* "" or a sentence; then first/last may be -1 */
} cedar_request_row;

/* What came of a request at its endpoint (backend "http"); comes before its cedar_request_row, whose in_tokens,
 * out_tokens and hit_tokens are then those the endpoint has counted. A run in wall time does not repeat: all of it may
 * differ. */
typedef struct cedar_http_row {
    int64_t run_id, request_id;
    uint32_t endpoint;                      /* 1, 2, ...; 0: the request was not sent */
    int32_t status;                         /* HTTP status, 0 = none came */
    const char *error_class;                /* "" or a name of http/http.h */
    const char *finish;                     /* finish_reason, "" = none */
    uint32_t in_asked, out_asked;           /* tokens of the prompt that was made, and max_tokens */
    uint32_t deltas;                        /* events with content */
    bool usage;                             /* the endpoint has counted tokens */
    int64_t retry_after_s;                  /* -1 = not asked for */
    int64_t end_ns;                         /* [timing] meter: the answer is complete, or has failed */
} cedar_http_row;

/* A sample of an endpoint's /metrics. */
typedef struct cedar_metric_row {
    int64_t run_id;
    uint32_t endpoint;
    const char *moment;                     /* "before" | "after" */
    const char *name, *labels;
    double value;
} cedar_metric_row;

/* One step, or in modelled runs with steps_per_row > 1 several of one engine: counts are sums over them, waiting,
 * running, pages and bytes the most of any (pages_free the least). */
typedef struct cedar_step_row {
    int64_t run_id, step_id;                /* of the first */
    uint32_t steps, engine;                 /* engine: 1, 2, ... */
    uint32_t entries, prefill_entries, decode_entries;
    uint32_t rows, prefill_rows, decode_rows, replayed_rows, kept_rows;
    uint32_t trimmed;                       /* steps in which some rows skipped the layers behind the cut */
    const char *graph;                      /* "none" on the CPU */
    uint32_t waiting, running;              /* requests after planning */
    uint32_t pages_free, pages_cached;
    uint64_t kv_bytes_used;                 /* pages in use, cached ones included */
    uint64_t window_bytes_stored;           /* snapshots held by the prefix cache */
    int64_t start_sched_ns, end_sched_ns;
    int64_t start_ns, end_ns;               /* [timing] meter */
    int64_t duration_ns;                    /* [timing] measured, recorded or modelled */
    int64_t plan_ns;                        /* [timing] host time spent planning */
} cedar_step_row;

/* One scored position: the run's arm (Q) against exact recomputation (P) on the same forced tokens. */
typedef struct cedar_quality_row {
    int64_t run_id, request_id;
    uint32_t pos;                           /* absolute position whose next token is predicted */
    int32_t offset;                         /* pos - hit (encoder replay) or pos - prompt end + 1 (decoder replay) */
    uint32_t hit_tokens, prompt_tokens;
    int32_t token;                          /* forced next token */
    double kl_pq, kl_qp, js;                /* nats, full vocabulary */
    double logp_p, logp_q;                  /* of the forced token */
    double top1_prob_p, margin_p;           /* P(top1), P(top1) - P(top2) */
    double ratio_max;                       /* max |log P - log Q| over P > 1e-4 */
    bool top1_same;
} cedar_quality_row;

typedef struct cedar_run_end_row {
    int64_t run_id;
    const char *status;                     /* "finished" | "failed" | "interrupted" */
    const char *error;
    uint64_t event_hash;
    uint64_t requests, sessions, steps, quality_rows;
    uint64_t requests_unfinished, sessions_unfinished;   /* cut at the end: never dropped silently */
    int64_t end_sched_ns;
    int64_t end_ns, wall_ns;                /* [timing] */
    int64_t profile_sched_ns;               /* start of the profiling phase, -1 = it never began */
    int64_t profile_ns;                     /* [timing] the same on the meter */
    uint64_t primers, warmups, overflows;   /* requests of the warm-up; context overflows of the profiling phase */
    uint64_t traces_passed_over;            /* whose start left a lane nothing to do */
    uint64_t forced_turns;                  /* started although their tree's streams waited for each other */
    int64_t idle_cut_ns;                    /* idle time that the global cap took out */
    bool submission_valid, gate_ok;         /* sim/validity.h; only AgentX runs can be submitted */
    const char *invalid, *invalid_why;      /* names of the reasons, joined by spaces; sentences; "" = valid */
} cedar_run_end_row;

/* A check the scenario makes: expect{...}. */
typedef struct cedar_expect_row {
    const char *what, *detail;
    bool ok;
} cedar_expect_row;

/* --- what a scenario concludes from its runs: ladder{...} and claim{...} ------------------------------------------ */

/* A row of optimisations. Its figures are all measured or all modelled. */
typedef struct cedar_ladder_row {
    int64_t ladder_id;                      /* 1, 2, ... within the database */
    const char *title, *provenance;         /* "measured" | "modelled" */
    const char *hardware, *model, *note;
} cedar_ladder_row;

typedef struct cedar_rung_row {
    int64_t ladder_id;
    uint32_t rung;                          /* 1, 2, ...: each has the switches of those before */
    const char *name, *why;
    const char *switches;                   /* options that differ from the rung before, JSON object */
    bool beyond;                            /* more than what is published: no part of what the ladder gives */
} cedar_rung_row;

typedef struct cedar_figure_row {
    int64_t ladder_id;
    uint32_t rung;
    const char *metric, *unit, *note;
    uint32_t context_tokens;                /* 0: not of one context length */
    double value, lo, hi;                   /* [timing] where measured; lo, hi NaN = unknown */
    uint64_t n;                             /* requests or repetitions behind it */
    int64_t run_id;                         /* 0: none */
} cedar_figure_row;

/* A published figure against our own. */
typedef struct cedar_claim_row {
    int64_t claim_id;                       /* row of the file, from 1 */
    const char *source, *date, *model, *hardware, *engine, *metric, *condition, *unit, *url;
    double published;
    double ours, lo, hi;                    /* [timing] where measured; NaN = none */
    uint64_t n;
    const char *provenance;                 /* "measured" | "modelled" | "computed" | "imported" | "none" */
    const char *verdict;                    /* [timing] where measured; sim/claims.h */
    const char *why;                        /* [timing] where measured: the rule applied, or why it is not tested */
    int64_t run_id;                         /* 0: none */
} cedar_claim_row;

/* Our figure with one assumption set low and high. */
typedef struct cedar_sensitivity_row {
    int64_t claim_id;
    const char *assumption;
    double setting_lo, setting_hi, ours_lo, ours_hi;
} cedar_sensitivity_row;

/* Runs compared request by request: ratio = b / a, diff = b - a, with 95 % intervals. */
typedef struct cedar_paired_row {
    int64_t paired_id;
    int64_t a_run, b_run;                   /* the first of each side */
    const char *a_runs, *b_runs;            /* all of each side, with commas */
    const char *metric;
    uint64_t pairs, sessions, left_out;
    double mean_a, mean_b, diff, diff_lo, diff_hi, ratio, ratio_lo, ratio_hi;   /* [timing] NaN = none */
    uint32_t resamples;
    uint64_t seed;
} cedar_paired_row;

/* In this order: a rung comes behind its ladder, a sensitivity behind its claim. */
typedef enum cedar_finding {
    CEDAR_FINDING_LADDER, CEDAR_FINDING_RUNG, CEDAR_FINDING_FIGURE, CEDAR_FINDING_CLAIM, CEDAR_FINDING_SENSITIVITY,
    CEDAR_FINDING_PAIRED,
    CEDAR_FINDING_COUNT
} cedar_finding;

typedef struct cedar_observer {
    void *self;
    cedar_status (*manifest)(void *self, const cedar_manifest_row *row, cedar_err *err);
    cedar_status (*run_begin)(void *self, const cedar_run_row *row, cedar_err *err);
    cedar_status (*session)(void *self, const cedar_session_row *row, cedar_err *err);
    cedar_status (*request)(void *self, const cedar_request_row *row, cedar_err *err);
    cedar_status (*step)(void *self, const cedar_step_row *row, cedar_err *err);
    cedar_status (*quality)(void *self, const cedar_quality_row *row, cedar_err *err);
    cedar_status (*run_end)(void *self, const cedar_run_end_row *row, cedar_err *err);
    cedar_status (*expect)(void *self, const cedar_expect_row *row, cedar_err *err);
    cedar_status (*finding)(void *self, cedar_finding kind, const void *row, cedar_err *err);
    cedar_status (*http)(void *self, const cedar_http_row *row, cedar_err *err);        /* runs at endpoints alone */
    cedar_status (*metric)(void *self, const cedar_metric_row *row, cedar_err *err);    /* the same */
    /* Time has passed, with rows or without: in real time, several times a second. NULL = of no interest. */
    cedar_status (*tick)(void *self, cedar_err *err);
} cedar_observer;

/* Keeps no row of a run (sim/silent.c); what a run does not report is NULL. */
extern const cedar_observer cedar_observer_silent;

/* Durations of an earlier run, for clock "recorded". */
typedef struct cedar_recorded {
    int64_t *step_ns;                       /* [count], by step_id - 1 */
    uint64_t count;
    uint64_t event_hash;
} cedar_recorded;

#endif
