/* Private to the run: its state, shared by run_open.c (what a run is made of) and run*.c (what happens in it). */
#ifndef CEDAR_SIM_RUN_INT_H
#define CEDAR_SIM_RUN_INT_H

#include "sim/sim_int.h"

/* A request between arrival and last token. */
typedef struct cedar_request {
    struct cedar_request *next;     /* of those that can be used again */
    cedar_request_row row;          /* filled as things happen */
    cedar_phase phase;
    uint32_t lane, stream;
    int32_t *tokens;                /* [in_tokens + out_tokens] prompt, then answer */
    uint32_t produced;              /* answer tokens so far */
    int32_t seq;
    int32_t node;                   /* pinned cache node, -1 = none */
    uint32_t boundary;              /* where a chunk must end because windows are stored there; 0 = nowhere */
    uint32_t depth;                 /* provenance of the rows it computes */
    bool scored;
    cedar_snap *snap;               /* windows at the last page boundary */
    /* on a modelled engine alone */
    cedar_turn_ref ref;
    uint32_t engine, pages;         /* its number from 0, and pages it holds there beside those of its hit */
    uint32_t pos, start, write_floor;       /* next position to feed, the first one fed */
    uint64_t order;                 /* of admission, on its engine */
    uint64_t ends;                  /* decode step of its engine behind which it ends */
    uint32_t fed, yield;            /* with speculation: rows of the decode step under way, tokens of it that stay */
    /* at an endpoint alone, beside ref and engine */
    bool waited;                    /* http_concurrent_max held it back */
} cedar_request;

typedef struct run_drafts run_drafts;   /* run_drafts.c */

/* What a run has when nothing computes: run_modelled.c. */
typedef struct run_modelled run_modelled;

/* What a run has when endpoints compute: run_http.c. */
typedef struct run_http run_http;

typedef struct cedar_run_state {
    const cedar_run_opts *opts;
    const cedar_run_host *host;
    const cedar_observer *obs;
    int64_t run_id;

    cedar_model *model;             /* model and corpus: owned unless the host's cache keeps them */
    const cedar_config *config;
    char origin[256], model_hash[65];
    cedar_corpus *corpus;
    cedar_prompts *prompts;
    cedar_prefixes *prefixes;       /* of modelled runs */
    cedar_prompt_rules prompt_rules;
    cedar_lane_rules lane_rules;
    cedar_replay_rules rules;
    cedar_engine_opts engine_opts;
    cedar_memory_plan memory;
    cedar_engine *engine;           /* NULL: the run is modelled, without numerics */
    run_modelled *modelled;
    run_http *http;                 /* not NULL: neither of the two, nor a model */
    cedar_quality *quality;
    cedar_cache *cache;             /* NULL: prefix_cache is off */
    cedar_lanes *lanes;
    uint32_t context_max;
    uint64_t planned;
    cedar_hardware hardware;        /* clock modelled */
    cedar_cost cost;
    cedar_predictor predictor;      /* step_ns NULL: no floor is kept */
    cedar_step_history history;
    int64_t floor_step_ns;          /* longest step that keeps the floor */

    int64_t profile_sched_ns, profile_ns;   /* when the profiling phase began; -1 during the warm-up */
    int64_t drain_sched_ns;         /* since when the warm-up only waits for its last requests; -1 = it does not */
    uint64_t primers, warmups, profiled;    /* requests sent */
    uint64_t completed, failed, overflows;  /* profiling requests ended */
    int64_t last_sample_sched_ns;   /* of the profiling phase's TTFT and ITL samples; -1 = none */
    bool gave_up;                   /* too many requests failed */

    cedar_events events;
    cedar_clocks clock;
    uint64_t hash;
    cedar_request **waiting;        /* [waiting_count] in order of (arrival, id) */
    size_t waiting_count, waiting_capacity;
    cedar_request **running;        /* [running_count of seq_count] in order of admission */
    uint32_t running_count;
    bool blocked;                   /* the first waiting request did not fit; wait for one to end */
    int64_t requests, steps;
    cedar_request *spare;           /* ended ones, to be used again */

    cedar_sched_item *items;        /* [seq_count] */
    cedar_sched_slice *slices;      /* [seq_count] */
    cedar_plan_entry *entries;      /* [seq_count] */
    int32_t *pages;                 /* [pages of the longest sequence] */
    int32_t *argmax;                /* [step_rows] */
    run_drafts *drafts;             /* NULL: no speculation on an engine */
    uint64_t accept_key;            /* stream of synthetic acceptance */
    float *logits;                  /* [logit_rows, vocab], with quality */
    uint32_t logit_rows;

    cedar_samples ttft, itl, kl, dlogp;
    uint64_t top1_same, quality_rows, requests_unfinished, sessions_unfinished, sessions_ended;
    int64_t first_arrival_ns, last_token_ns;
    cedar_run_result result;
    int64_t wall_start_ns;
} cedar_run_state;

/* Where numerics happen: what the options say, and with clock modelled nowhere unless they say so. */
cedar_backend_kind cedar_run_backend(const cedar_run_opts *o);

/* What the options approximate on a model of this shape. */
cedar_replay_rules cedar_run_replay_rules(const cedar_run_opts *o, const cedar_config *c);

/* Loads traces and model, turns options into rules, and opens engine, cache, shadow and buffers. r holds opts, host and
 * obs; after a failure it is closed with cedar_run_close all the same. */
cedar_status cedar_run_open(cedar_run_state *r, cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_run_close(cedar_run_state *r, cedar_err *err);     /* as cedar_engine_close */

/* Model and traces of the options: from the cache, which then keeps them (NULL: the caller owns them). */
cedar_status cedar_run_load_model(cedar_run_cache *c, const cedar_run_opts *o, const char *data_dir, cedar_model **out,
                                  char origin[256], char hash[65], cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_run_load_corpus(cedar_run_cache *c, const cedar_run_opts *o, const char *data_dir,
                                   cedar_corpus **out, cedar_err *err) CEDAR_USE_RESULT;

/* Ids that no prompt uses: the noise id of the drafter and the id in front of position 0. */
void cedar_run_special_ids(const cedar_config *c, cedar_prompt_rules *rules);

/* Gives back what a request holds, and the request itself for another one; q may be NULL. */
void cedar_request_free(cedar_run_state *r, cedar_request *q);

/* --- run.c: what the kinds of run have in common ------------------------------------------------------------------ */

/* What is folded into the event hash, first word of each event (docs/METHOD.md "Determinism"). */
typedef enum run_mark {
    RUN_MARK_ARRIVAL = 1, RUN_MARK_ADMIT, RUN_MARK_STEP, RUN_MARK_ENTRY, RUN_MARK_TOKEN, RUN_MARK_END, RUN_MARK_SESSION,
    RUN_MARK_PHASE
} run_mark;

void run_note(cedar_run_state *r, run_mark what, uint64_t a, uint64_t b, uint64_t c);

bool run_stores_windows(const cedar_run_state *r);

/* What the arm's rules make of a hit of so many tokens; its hit is 0 when they do not adopt it. */
cedar_hit_plan run_hit_plan(const cedar_run_state *r, uint32_t tokens);

const char *run_step_graph(const cedar_run_state *r);       /* how steps are launched: graphs are the GPU's */
void run_progress(const cedar_run_state *r);

/* Rows that so many decoding sequences feed, drafts included. */
static inline uint32_t run_decode_rows(const cedar_run_state *r, uint32_t sequences) {
    return sequences * (uint32_t)(r->opts->draft_tokens + 1);
}

static inline void run_peak(uint64_t *most, uint64_t now) {
    if (now > *most) *most = now;
}

/* Reports an ended request. */
cedar_status run_emit_request(cedar_run_state *r, const cedar_request *q, cedar_err *err) CEDAR_USE_RESULT;

/* A request has ended at schedule time `now`; its lane goes on. */
cedar_status run_end_turn(cedar_run_state *r, const cedar_request *q, cedar_turn_end how, int64_t now,
                          cedar_err *err) CEDAR_USE_RESULT;

/* A request that never ran: it ends at schedule time `now`. */
cedar_status run_reject(cedar_run_state *r, cedar_request *q, cedar_turn_end how, const char *why, int64_t now,
                        cedar_err *err) CEDAR_USE_RESULT;

/* Handles what is due up to a schedule time. */
cedar_status run_handle_until(cedar_run_state *r, int64_t time_ns, cedar_err *err) CEDAR_USE_RESULT;

/* A request as policies see it. */
cedar_policy_request run_policy_request(const cedar_run_state *r, const cedar_request *q);

/* The scenario's policy, asked with the state of the engine; *yes without one, and while nothing runs there. */
cedar_status run_policy_admits(const cedar_run_state *r, const cedar_request *q, const cedar_policy_state *now,
                               bool *yes, cedar_err *err) CEDAR_USE_RESULT;

/* Nothing runs and nothing waits: on to the next event, or phase. *over: there is none. */
cedar_status run_idle(cedar_run_state *r, bool *over, cedar_err *err) CEDAR_USE_RESULT;

/* Errors of requests that a phase's or the run's end found on their way. */
#define RUN_CUT_WARMUP "cut: the warm-up did not drain within warmup_grace_s"
#define RUN_CUT_RUNNING "cut: the run ended before the request did"
#define RUN_CUT_WAITING "cut: the run ended before the request started"

/* Whether what is left of the warm-up, all of which is sent, has had its grace and must be cut. at_work: something of
 * it runs or waits. */
bool run_warmup_late(cedar_run_state *r, bool at_work);

/* Ends such a request, which ran or waited; it is freed. */
cedar_status run_cut_warmup(cedar_run_state *r, cedar_request *q, cedar_err *err) CEDAR_USE_RESULT;

/* --- run_engine.c ------------------------------------------------------------------------------------------------- */

/* A request that fits the engine joins the line; owned from then on, not after a failure. */
cedar_status run_engine_arrive(cedar_run_state *r, cedar_request *q, const cedar_turn_ref *ref,
                               cedar_err *err) CEDAR_USE_RESULT;
cedar_status run_engine_loop(cedar_run_state *r, cedar_err *err) CEDAR_USE_RESULT;

/* Requests that the end of the run found on their way: reported, not dropped. */
cedar_status run_engine_unfinished(cedar_run_state *r, cedar_err *err) CEDAR_USE_RESULT;

/* --- run_drafts.c: speculative decoding on an engine -------------------------------------------------------------- */

cedar_status run_drafts_new(const cedar_run_state *r, run_drafts **out, cedar_err *err) CEDAR_USE_RESULT;
void run_drafts_free(run_drafts *d);

/* Drafts for the plan's verify entries, whose tokens they become unless acceptance is synthetic. *duration_ns: of the
 * drafter. */
cedar_status run_drafts_make(cedar_run_state *r, cedar_step_plan *plan, int64_t *duration_ns,
                             cedar_err *err) CEDAR_USE_RESULT;

/* Drafts of an executed decode entry that stay. argmax: [entry->logits] of its rows. */
uint32_t run_drafts_accepted(const cedar_run_state *r, const cedar_request *q, const cedar_plan_entry *e,
                             const int32_t *argmax);

/* --- run_modelled.c: the same where nothing is computed ----------------------------------------------------------- */

cedar_status run_modelled_new(cedar_run_state *r, run_modelled **out, cedar_err *err) CEDAR_USE_RESULT;
void run_modelled_free(run_modelled *m);    /* requests on their way, too */

cedar_status run_modelled_arrive(run_modelled *m, cedar_request *q, const cedar_turn_ref *ref,
                                 cedar_err *err) CEDAR_USE_RESULT;
cedar_status run_modelled_loop(run_modelled *m, cedar_err *err) CEDAR_USE_RESULT;
cedar_status run_modelled_unfinished(run_modelled *m, cedar_err *err) CEDAR_USE_RESULT;

/* Lets go of the cached prefix that a request has pinned. */
void run_modelled_unpin(run_modelled *m, const cedar_request *q);

/* The lane's session has ended. */
void run_modelled_forget(run_modelled *m, uint32_t lane);

/* --- run_http.c: the same where endpoints compute, in real time --------------------------------------------------- */

/* Also sets r->config and r->engine_opts, which no model and no engine does here. */
cedar_status run_http_new(cedar_run_state *r, run_http **out, cedar_err *err) CEDAR_USE_RESULT;
void run_http_free(run_http *h);    /* requests on their way, too */

cedar_status run_http_arrive(run_http *h, cedar_request *q, const cedar_turn_ref *ref,
                             cedar_err *err) CEDAR_USE_RESULT;
cedar_status run_http_loop(run_http *h, cedar_err *err) CEDAR_USE_RESULT;
cedar_status run_http_unfinished(run_http *h, cedar_err *err) CEDAR_USE_RESULT;

/* Reports a request that never came to an endpoint; comes before its row. */
cedar_status run_http_not_sent(const run_http *h, const cedar_request *q, bool overflow,
                               cedar_err *err) CEDAR_USE_RESULT;

#endif
