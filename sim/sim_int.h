/* Private to sim/: the parts of a run. Each part is one file; none of them reads a clock, and only run*.c, quality.c
 * and model_find.c call the engine, so that everything else can be tested without numerics.
 *
 * Threads: the run's. Memory: base/mem.h; nothing here is allocated while a step runs. */
#ifndef CEDAR_SIM_SIM_INT_H
#define CEDAR_SIM_SIM_INT_H

#include <stdio.h>

#include "audit/divergence.h"
#include "engine/engine.h"
#include "sim/admit.h"
#include "sim/cache.h"
#include "sim/options_int.h"
#include "sim/sched.h"
#include "sim/sim.h"
#include "traces/traces.h"

/* --- events.c: what happens at which schedule time ---------------------------------------------------------------- */

/* Order of events of one time: turns of running sessions come before lanes taking a new session. */
typedef enum cedar_event_class { CEDAR_EVENT_TURN, CEDAR_EVENT_LANE } cedar_event_class;

typedef struct cedar_event {
    int64_t time_ns;                        /* schedule time */
    cedar_event_class class_;
    uint64_t sequence;                      /* 0: cedar_events_push numbers it in the order of pushing */
    uint32_t lane, stream;                  /* stream: for the pusher */
    uint64_t ticket;                        /* turns only: an event that its lane has replaced since is stale */
} cedar_event;

/* Priority queue keyed (time, class, sequence); zero-initialised is empty. Adding to shift_ns makes everything in the
 * queue come that much earlier, at no cost. */
typedef struct cedar_events {
    cedar_event *heap;                      /* times are schedule time plus the shift */
    size_t count, capacity;
    uint64_t pushed;
    int64_t shift_ns;
    cedar_event first;                      /* copy of the first event, with its schedule time */
} cedar_events;

cedar_status cedar_events_push(cedar_events *q, cedar_event event, cedar_err *err) CEDAR_USE_RESULT;
const cedar_event *cedar_events_first(cedar_events *q);   /* NULL when empty; valid until the next call */
cedar_event cedar_events_pop(cedar_events *q);                  /* must not be empty */
void cedar_events_clear(cedar_events *q);
void cedar_events_free(cedar_events *q);

/* --- clock.c: the two time axes (docs/METHOD.md "Time") ----------------------------------------------------------- */

typedef struct cedar_clocks {
    int64_t sched_ns, meter_ns;             /* now; inside a step: its start */
    int64_t step_sched_ns, step_meter_ns;   /* lengths of the step in progress or of the last one */
    int64_t last_sched_ns, last_meter_ns;   /* start of the last step */
} cedar_clocks;

/* Nothing runs: both axes move by the same amount, to schedule time `to` (not before now). */
void cedar_clock_idle(cedar_clocks *c, int64_t to_sched_ns);

/* A step of the given lengths has run; both axes move to its end. */
void cedar_clock_step(cedar_clocks *c, int64_t sched_ns, int64_t meter_ns);

/* Meter time of a schedule time inside the last step, or at now. */
int64_t cedar_clock_meter(const cedar_clocks *c, int64_t sched_ns);

/* Schedule length of a step with pace "fixed". */
int64_t cedar_clock_pace(int64_t step_us, int64_t row_us, uint32_t rows);

/* --- prompt.c: token ids of prompts and answers (docs/METHOD.md "Prompts") ---------------------------------------- */

typedef struct cedar_prompt_rules {
    int32_t vocab;
    int32_t special[4];                     /* ids never used, ascending, no duplicates */
    uint32_t special_count;
    uint32_t length_num, length_den;        /* length scale */
} cedar_prompt_rules;

/* What follows from the traces' block ids, computed once: which turn continues which, and the theoretical hits. */
typedef struct cedar_prompts cedar_prompts;

/* The corpus is borrowed. A block that does not scale to a whole number of tokens is CEDAR_E_ARG. */
cedar_status cedar_prompts_new(const cedar_corpus *corpus, const cedar_prompt_rules *rules, cedar_prompts **out,
                               cedar_err *err) CEDAR_USE_RESULT;
void cedar_prompts_free(cedar_prompts *p);

/* Which turn of which trace, and the salt of its session tree. */
typedef struct cedar_turn_ref {
    uint32_t trace, stream, turn;
    uint64_t salt;
} cedar_turn_ref;

/* Salt of a tree: differs by lane, pass and seed; 0 for traces whose ids are global. */
uint64_t cedar_prompt_salt(const cedar_trace *t, uint64_t seed, uint32_t lane, uint32_t pass);

/* Scaled length, at least 1. */
uint32_t cedar_prompt_scale(const cedar_prompt_rules *rules, uint32_t tokens);

/* Tokens [first, first + count) of the turn's prompt followed by its recorded answer. */
void cedar_prompt_fill(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t first, uint32_t count, int32_t *out);

/* Scaled lengths of a turn's prompt and answer. */
void cedar_prompt_lengths(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t *in, uint32_t *out);

/* What a page of prompt and answer holds, without its tokens: equal names mean equal tokens under one salt (64-bit
 * hashes of what the tokens are made from). salted: the tree's salt changes its tokens. */
typedef struct cedar_page_name {
    uint64_t name;
    bool salted;
} cedar_page_name;

/* Names of pages [first, count) of the turn's prompt and answer into out [count]. Of ref->salt only counts whether
 * there is one. */
void cedar_prompt_names(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t page_tokens, uint32_t first,
                        uint32_t count, cedar_page_name *out);

/* First pages of the turn whose names are those of the turn before it in its stream, as far as block ids tell. */
uint32_t cedar_prompt_pages_kept(const cedar_prompts *p, const cedar_turn_ref *ref, uint32_t page_tokens);

/* Tokens that the turn's prompt has in common with prompt and answer of the turn before it, as far as block ids
 * tell. */
uint32_t cedar_prompt_common(const cedar_prompts *p, const cedar_turn_ref *ref);

/* Scaled length of the trace's system segment at the front of a stream's prompts: whole blocks. */
uint32_t cedar_prompt_system(const cedar_prompts *p, uint32_t trace, uint32_t stream);

/* Key of the block content of a trace: traces with equal keys share the meaning of their block ids. */
uint64_t cedar_prompt_scope(const cedar_prompts *p, uint32_t trace);

/* Block ids of the turn that an infinite cache of its trace alone has seen before. */
uint32_t cedar_prompt_theory(const cedar_prompts *p, uint32_t trace, uint32_t stream, uint32_t turn);

/* --- prefixes.c: which turns of a corpus share which pages, worked out once -------------------------------------- */

enum { CEDAR_NO_EDGE = UINT32_MAX };

/* A stretch of pages that prompts have in common: pages [first, end) of every prompt that runs through it. */
typedef struct cedar_edge {
    uint32_t parent;                        /* CEDAR_NO_EDGE: it begins at page 0 */
    uint32_t first, end;
    bool salted;                            /* its tokens differ from session to session */
} cedar_edge;

/* Where a turn's pages end: edges, CEDAR_NO_EDGE for no page. A turn never ends inside an edge. */
typedef struct cedar_turn_edges {
    uint32_t find;                          /* whole pages with a token of the prompt left over */
    uint32_t prompt;                        /* whole pages of the prompt */
    uint32_t all;                           /* whole pages of prompt and answer, without the last token */
} cedar_turn_edges;

typedef struct cedar_prefixes {
    cedar_edge *edges;                      /* [edge_count], those of a group in a row */
    uint32_t edge_count;
    uint32_t *group_first;                  /* [trace_count] first edge of the trace's group: traces with common ids */
    uint32_t *group_count;                  /* [trace_count] edges of it */
    uint32_t *stream_first;                 /* [trace_count] index of the trace's stream 0 in turn_first */
    uint64_t *turn_first;                   /* [streams of all traces] index of its turn 0 in turns */
    cedar_turn_edges *turns;                /* [turns of all traces] */
} cedar_prefixes;

/* salts: trees have salts. The corpus of `p` has to stay. */
cedar_status cedar_prefixes_new(const cedar_prompts *p, const cedar_corpus *corpus, uint32_t page_tokens, bool salts,
                                cedar_prefixes **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_prefixes_free(cedar_prefixes *x);

const cedar_turn_edges *cedar_prefixes_turn(const cedar_prefixes *x, const cedar_turn_ref *ref);

/* --- ledger.c: pages and prefix cache where nothing is computed: pages are counted, not held ---------------------- */

/* One engine's ledger. What it finds, keeps and gives up is what cache.c would, page for page. */
typedef struct cedar_ledger cedar_ledger;

/* What a session tree has in one ledger. */
typedef struct cedar_ledger_tree cedar_ledger_tree;

typedef struct cedar_ledger_opts {
    uint32_t page_count;
    bool cache;                             /* false: pages end with their request */
    bool windows;                           /* a hit needs stored windows at its end */
    uint64_t window_bytes_max;              /* 0 = unlimited */
} cedar_ledger_opts;

typedef struct cedar_ledger_hit {
    uint32_t matched_pages, hit_pages;
    int32_t run;                            /* to pin: its end is the hit's, -1 = none */
    uint32_t depth;                         /* largest provenance depth on the path */
    cedar_miss_reason miss;
} cedar_ledger_hit;

cedar_status cedar_ledger_new(const cedar_prefixes *x, const cedar_ledger_opts *opts, cedar_ledger **out,
                              cedar_err *err) CEDAR_USE_RESULT;
void cedar_ledger_free(cedar_ledger *l);

/* A tree begins; its pages may stay in the cache when it has ended. Ending NULL is legal. */
cedar_status cedar_ledger_tree_open(cedar_ledger *l, uint32_t trace, cedar_ledger_tree **out,
                                    cedar_err *err) CEDAR_USE_RESULT;
void cedar_ledger_tree_end(cedar_ledger_tree *t);

/* Longest cached prefix of the pages that end at an edge; t NULL: the tree has nothing here yet. Changes nothing. */
void cedar_ledger_find(const cedar_ledger *l, const cedar_ledger_tree *t, uint32_t edge, cedar_ledger_hit *out);

void cedar_ledger_pin(cedar_ledger *l, int32_t run);
void cedar_ledger_unpin(cedar_ledger *l, int32_t run);

/* Takes pages for a request; gives up cached ones for them if it must. *there: false when pinned ones are in the
 * way. */
void cedar_ledger_take(cedar_ledger *l, uint32_t pages, bool *there);
void cedar_ledger_give(cedar_ledger *l, uint32_t pages);

/* Whole pages of an ended request, up to an edge, become cached; new ones have provenance `depth`. snap_bytes: stored
 * windows at their end, 0 = none. */
cedar_status cedar_ledger_keep(cedar_ledger *l, cedar_ledger_tree *t, uint32_t edge, uint32_t depth,
                               uint64_t snap_bytes, cedar_err *err) CEDAR_USE_RESULT;

uint32_t cedar_ledger_free_pages(const cedar_ledger *l);
uint32_t cedar_ledger_cached_pages(const cedar_ledger *l);
uint64_t cedar_ledger_window_bytes(const cedar_ledger *l);

/* Checks every structural invariant; NULL when all hold, else the broken one (tests). */
const char *cedar_ledger_broken(const cedar_ledger *l);

/* --- lanes.c: who asks what when ---------------------------------------------------------------------------------- */

typedef struct cedar_lane_rules {
    uint32_t lanes, passes, turns_max;      /* turns_max 0 = all */
    uint64_t seed;
    bool shuffle;
    bool recycle;                           /* the list of traces has no end; passes is not used */
    bool barriers;                          /* turns wait for turns of other streams as recorded */
    bool end_on_error;                      /* a failed turn ends its session */
    bool no_salt;
    bool burst;                             /* primers leave at once */
    double start_lo, start_hi; /* window of a lane's first start, shares of the session; 0, 0 = its start */
    uint32_t warmup_requests;               /* of each lane, behind its primers */
    int64_t time_scale_ppb, think_cap_ns;
    int64_t tree_cap_ns, global_cap_ns;     /* longest idle waits; 0 = no limit */
} cedar_lane_rules;

/* What a request is for. Primers and warm-up requests are answered with one token and never scored. */
typedef enum cedar_phase { CEDAR_PHASE_PROFILING, CEDAR_PHASE_PRIMER, CEDAR_PHASE_WARMUP } cedar_phase;

typedef enum cedar_stream_phase {
    CEDAR_STREAM_UNBORN,    /* its spawn turn has not ended */
    CEDAR_STREAM_HELD,      /* warm-up: its next turn is for the profiling phase, or for after the primers */
    CEDAR_STREAM_TIMER,     /* its next turn starts at ready_ns */
    CEDAR_STREAM_WAITING,   /* its next turn waits for other streams, and for ready_ns */
    CEDAR_STREAM_FLYING,    /* a request of it is on its way */
    CEDAR_STREAM_DONE
} cedar_stream_phase;

typedef struct cedar_stream_state {
    cedar_stream_phase phase;
    bool priming;                           /* the turn in question is the one before next_turn */
    uint32_t next_turn;                     /* turns before it have completed, or lie before the start */
    int64_t ready_ns;                       /* earliest start, on the tree's axis: schedule time plus both shifts */
    uint64_t sequence;                      /* of the timer, among equal times */
} cedar_stream_state;

/* The session tree a lane plays. */
typedef struct cedar_session {
    int64_t session_id;                     /* 0: the lane has had none yet */
    uint32_t lane, pass, trace;
    uint64_t salt;
    uint32_t in_flight, planned, done;
    uint32_t primers;                       /* that have not ended */
    uint32_t quota;                         /* warm-up requests the lane has left; kept from session to session */
    bool live;                              /* false: drained; the lane may take the next trace */
    bool ending, overflow;                  /* no further turn starts, because of an error or of an overflow */
    uint32_t first_turn;                    /* of the root, at the session's start */
    int64_t t_star_ns;                      /* recorded time of the start, -1 = at the first turn */
    int64_t shift_ns;                       /* idle time taken out of this tree alone */
    uint64_t ticket;                        /* of its event in the queue */
    uint32_t head;                          /* stream of that event, UINT32_MAX = there is none */
    int64_t start_sched_ns, start_ns, end_sched_ns;   /* start_ns is the caller's to set and to use */
    const char *outcome;                    /* once not live */
    cedar_stream_state *streams;            /* [stream_count of the widest trace] */
} cedar_session;

typedef struct cedar_lanes {
    const cedar_corpus *corpus;             /* borrowed */
    cedar_lane_rules rules;
    cedar_session *lanes;                   /* [rules.lanes] */
    cedar_stream_state *states;             /* [lanes, streams_max] */
    uint32_t *order;                        /* [trace_count] of the current pass through the list */
    uint32_t *next;                         /* [streams_max] scratch of the start draw */
    uint64_t taken;                         /* trees handed out or passed over */
    uint64_t passed_over;                   /* trees whose start left nothing to do */
    uint64_t forced;                        /* turns started because everything in their tree waited for each other */
    int64_t sessions;                       /* session ids given */
    uint64_t tickets;
    bool warming;                           /* primers and warm-up; false from the start when there are none */
    bool closed;                            /* no request starts any more */
} cedar_lanes;

typedef enum cedar_turn_end { CEDAR_TURN_DONE, CEDAR_TURN_FAILED, CEDAR_TURN_OVERFLOW } cedar_turn_end;

cedar_status cedar_lanes_new(const cedar_corpus *corpus, const cedar_lane_rules *rules, cedar_lanes **out,
                             cedar_err *err) CEDAR_USE_RESULT;
void cedar_lanes_free(cedar_lanes *l);

/* At time 0. Without warm-up: pushes the event that makes each lane take its first trace. With warm-up: gives every
 * lane its first trace and start, and sets the timers of the primers; CEDAR_E_ARG when no trace leaves anything to
 * do. */
cedar_status cedar_lanes_start(cedar_lanes *l, cedar_events *q, cedar_err *err) CEDAR_USE_RESULT;

/* First event that still counts, NULL when there is none; stale ones are thrown away. */
const cedar_event *cedar_lanes_next(cedar_lanes *l, cedar_events *q);

/* A lane event: the lane takes its next trace, if there is one; *started tells. */
cedar_status cedar_lanes_take(cedar_lanes *l, const cedar_event *e, cedar_events *q, bool *started,
                              cedar_err *err) CEDAR_USE_RESULT;

/* A turn event. *send: *out is to be sent for *phase; false when the event is stale or the turn is held. */
cedar_status cedar_lanes_turn(cedar_lanes *l, const cedar_event *e, cedar_events *q, bool *send, cedar_turn_ref *out,
                              cedar_phase *phase, cedar_err *err) CEDAR_USE_RESULT;

/* A turn has ended at `now`. *drained: its session has ended with it, and outcome and end are set. */
cedar_status cedar_lanes_ended(cedar_lanes *l, uint32_t lane, uint32_t stream, cedar_turn_end how, int64_t now_sched_ns,
                               cedar_events *q, bool *drained, cedar_err *err) CEDAR_USE_RESULT;

/* The warm-up is over: nothing is on its way and no event is left. In each lane the pending turn recorded first starts
 * now, the others keep their recorded distance from it. */
cedar_status cedar_lanes_profile(cedar_lanes *l, int64_t now_sched_ns, cedar_events *q,
                                 cedar_err *err) CEDAR_USE_RESULT;

/* Nothing is on its way in any lane: takes idle time beyond the global cap out of the wait for the next event. */
void cedar_lanes_idle(const cedar_lanes *l, int64_t now_sched_ns, cedar_events *q);

/* From now on no turn starts and no lane takes a trace. */
void cedar_lanes_close(cedar_lanes *l);

/* Requests the rules would send in all; with recycle, those of one pass. */
uint64_t cedar_lanes_planned(const cedar_lanes *l);

/* Turns of a stream that are played, 0 if its spawn turn is not. */
uint32_t cedar_lanes_turns(const cedar_lane_rules *rules, const cedar_trace *t, uint32_t stream);

/* --- floor.c: how long steps will take, and what a speed floor leaves room for ------------------------------------ */

/* Predicts schedule lengths of steps. context_sum: positions that the decode rows attend to, all together. */
typedef struct cedar_predictor {
    void *self;
    int64_t (*step_ns)(void *self, uint32_t prefill_rows, uint32_t decode_rows, uint64_t context_sum);
} cedar_predictor;

/* Learns from the steps of the run: a running mean per power of two of rows, in integers. Zero-initialised knows
 * nothing. */
enum { CEDAR_STEP_CLASSES = 18 };
typedef struct cedar_step_history {
    int64_t mean_ns[CEDAR_STEP_CLASSES];    /* of steps of [2^i, 2^(i+1)) rows */
    int64_t mean_rows[CEDAR_STEP_CLASSES];  /* of the same steps */
    uint32_t steps[CEDAR_STEP_CLASSES];
} cedar_step_history;

void cedar_step_history_add(cedar_step_history *h, uint32_t rows, int64_t step_ns);

/* Expected length of a step of so many rows: on the line through the neighbouring means, in proportion outside them;
 * 0 while nothing is known. */
int64_t cedar_step_history_ns(const cedar_step_history *h, uint32_t rows);

/* Longest step that keeps the floor of tok/s/user times 10^9. */
int64_t cedar_floor_step_ns(int64_t floor_ppb);

/* Most prompt rows, up to rows_max, beside decode_rows so that the step is predicted to take at most step_ns. */
uint32_t cedar_floor_prefill_rows(const cedar_predictor *p, int64_t step_ns, uint32_t rows_max, uint32_t decode_rows,
                                  uint64_t context_sum);

/* --- stats.c: lists and percentiles ------------------------------------------------------------------------------- */

/* A list of numbers that takes the same memory however long it gets: what does not fit lies in a temporary file that
 * has no name. Zero-initialised is empty. */
typedef struct cedar_samples {
    double *v;                              /* [count of capacity] the latest */
    size_t count, capacity;
    FILE *file;                             /* the `filed` before them; NULL = none */
    uint64_t filed;
    double sum;                             /* in the order of adding */
} cedar_samples;

cedar_status cedar_samples_add(cedar_samples *s, double v, cedar_err *err) CEDAR_USE_RESULT;
void cedar_samples_free(cedar_samples *s);
double cedar_samples_mean(const cedar_samples *s);             /* NaN when empty */

/* As sim/percentile.h defines it; NaN when empty. Fails only where the file cannot be read. */
cedar_status cedar_samples_percentile(cedar_samples *s, double p, double *out, cedar_err *err) CEDAR_USE_RESULT;

/* --- quality.c: the exact shadow ---------------------------------------------------------------------------------- */

typedef struct cedar_quality cedar_quality;

/* A second engine on the same model, without any approximation and with pages of its own. main_opts: the arm's.
 * streams: sequences kept alive. rows_max: most rows of one call of cedar_quality_rows. */
cedar_status cedar_quality_open(const cedar_model *model, const cedar_engine_opts *main_opts, uint32_t streams,
                                uint32_t rows_max, cedar_quality **out, cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_quality_close(cedar_quality *q, cedar_err *err);   /* as cedar_engine_close */

/* Logits P of rows [pos, pos + rows) of a stream whose tokens are tokens[0 ..]; key names the stream (session, stream).
 * *logits [rows, vocab] is borrowed until the next call. */
cedar_status cedar_quality_rows(cedar_quality *q, int64_t session_id, uint32_t stream, const int32_t *tokens,
                                uint32_t pos, uint32_t rows, const float **logits, cedar_err *err) CEDAR_USE_RESULT;

/* The session has ended: its sequences are given up. */
void cedar_quality_forget(cedar_quality *q, int64_t session_id);

/* --- model_find.c ------------------------------------------------------------------------------------------------- */

/* A model by name (DATA_DIR/scenarios/models/NAME.json), shape file, or checkpoint directory. *origin says which:
 * "checkpoint PATH" or "synthetic seed N". Owned by the caller (cedar_model_close). */
typedef enum cedar_weights_place {
    CEDAR_WEIGHTS_HOST,         /* in memory */
    CEDAR_WEIGHTS_DEVICE,       /* a shape's seeded weights are made by the GPU; checkpoints are read as ever */
    CEDAR_WEIGHTS_NONE          /* the shape alone */
} cedar_weights_place;

cedar_status cedar_model_find(const char *name, const char *data_dir, uint64_t seed, cedar_weights_place place,
                              cedar_model **out, char origin[256], cedar_err *err) CEDAR_USE_RESULT;

/* The shape alone, without making weights. */
cedar_status cedar_shape_find(const char *name, const char *data_dir, cedar_config *out,
                              cedar_err *err) CEDAR_USE_RESULT;

/* Traces by path, comma separated, relative to the current folder or else to data_dir. */
cedar_status cedar_traces_find(const char *paths, const char *data_dir, const cedar_corpus_opts *opts,
                               cedar_corpus **out, cedar_err *err) CEDAR_USE_RESULT;

#endif
