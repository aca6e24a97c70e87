/* Private to the run: its state, shared by run_open.c (what a run is made of) and run.c (what happens in it). */
#ifndef CEDAR_SIM_RUN_INT_H
#define CEDAR_SIM_RUN_INT_H

#include "sim/sim_int.h"

/* A request between arrival and last token. */
typedef struct cedar_request {
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
} cedar_request;

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
    cedar_prompt_rules prompt_rules;
    cedar_lane_rules lane_rules;
    cedar_replay_rules rules;
    cedar_engine_opts engine_opts;
    cedar_memory_plan memory;
    cedar_engine *engine;
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
    cedar_request **waiting;              /* [waiting_count] in order of (arrival, id) */
    size_t waiting_count, waiting_capacity;
    cedar_request **running;              /* [running_count of seq_count] in order of admission */
    uint32_t running_count;
    bool blocked;                   /* the first waiting request did not fit; wait for one to end */
    int64_t requests, steps;

    cedar_sched_item *items;        /* [seq_count] */
    cedar_sched_slice *slices;      /* [seq_count] */
    cedar_plan_entry *entries;      /* [seq_count] */
    int32_t *pages;                 /* [pages of the longest sequence] */
    int32_t *argmax;                /* [step_rows] */
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

/* Loads traces and model, turns options into rules, and opens engine, cache, shadow and buffers. r holds opts, host and
 * obs; after a failure it is closed with cedar_run_close all the same. */
cedar_status cedar_run_open(cedar_run_state *r, cedar_err *err) CEDAR_USE_RESULT;
void cedar_run_close(cedar_run_state *r);

/* Model and traces of the options: from the cache, which then keeps them (NULL: the caller owns them). */
cedar_status cedar_run_load_model(cedar_run_cache *c, const cedar_run_opts *o, const char *data_dir, cedar_model **out,
                                  char origin[256], char hash[65], cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_run_load_corpus(cedar_run_cache *c, const cedar_run_opts *o, const char *data_dir,
                                   cedar_corpus **out, cedar_err *err) CEDAR_USE_RESULT;

/* Ids that no prompt uses: the noise id of the drafter and the id in front of position 0. */
void cedar_run_special_ids(const cedar_config *c, cedar_prompt_rules *rules);

/* Gives back what a request holds; q may be NULL. */
void cedar_request_free(cedar_run_state *r, cedar_request *q);

#endif
