/* Private to audit/: what its files share.
 *
 * options.c options, arms.c arms and fronts, docs.c documents, track.c one arm's cache and steps, score.c distributions
 * of many rows on threads, inside.c layers through taps, globals.c global rows, greedy.c greedy continuations and
 * drafts, summary.c statistics, audit.c the conduct of it all. */
#ifndef CEDAR_AUDIT_INT_H
#define CEDAR_AUDIT_INT_H

#include "audit/audit.h"
#include "audit/divergence.h"
#include "audit/stats.h"

/* --- options.c, arms.c -------------------------------------------------------------------------------------------- */

void audit_options_json(const cedar_audit_opts *o, char *out, size_t bytes);    /* bytes: at least 64 KiB */

const char *audit_cut_name(cedar_cut cut);
const char *audit_hits_name(cedar_hits hits);
const char *audit_fault_name(cedar_fault fault);

/* --- track.c: one arm's sequence, its cache from turn to turn, and its steps -------------------------------------- */

/* What a turn cost. */
typedef struct audit_cost {
    uint64_t rows, kept, prompt_rows, prompt_kept, replayed, trimmed, steps, window_bytes;
    int64_t prompt_ns, forward_ns;
} audit_cost;

typedef struct audit_track {
    cedar_engine *engine;       /* borrowed */
    const cedar_config *c;
    cedar_arm arm;
    cedar_replay_rules rules;
    uint32_t chunk;             /* rows of a step at most */
    int32_t seq;                /* -1: none */
    cedar_snap *snap;           /* windows at the hit of the next turn, if it needs them */
    uint32_t next_hit;          /* where to store them; 0: nowhere */
    uint32_t start;             /* S of the turn */
    uint32_t depth, made;       /* provenance of the rows it adopted, and of those it computes (docs/METHOD.md) */
    uint32_t prompt;            /* T of the turn */
    audit_cost cost;            /* of the turn */
    const volatile int *stop;   /* non-zero: no step is begun any more; may be NULL */
} audit_track;

/* CEDAR_E_INTERRUPT when the user wants the audit to end. stop may be NULL. */
cedar_status audit_stop_check(const volatile int *stop, cedar_err *err) CEDAR_USE_RESULT;

void audit_track_init(audit_track *t, cedar_engine *e, const cedar_config *c, const cedar_arm *arm, uint32_t chunk,
                      const volatile int *stop);

/* Brings the arm's sequence to where turn k of the document must be fed from; clears the cost. */
cedar_status audit_track_begin(audit_track *t, const cedar_audit_doc *doc, uint32_t k, cedar_err *err) CEDAR_USE_RESULT;

/* Feeds tokens up to position `end`. As a prompt, decoder replay may trim. logits [rows, vocab] of all rows, or with
 * last_only of the last one alone; NULL: none are wanted. */
typedef struct audit_feed {
    bool prompt, last_only;
    float *logits;
    int32_t *argmax;            /* [rows], NULL: not wanted */
} audit_feed;
cedar_status audit_track_feed(audit_track *t, const int32_t *tokens, uint32_t end, audit_feed how,
                              cedar_err *err) CEDAR_USE_RESULT;

/* The same for tokens that begin at position `base`. */
cedar_status audit_track_feed_at(audit_track *t, const int32_t *tokens, uint32_t base, uint32_t end, audit_feed how,
                                 cedar_err *err) CEDAR_USE_RESULT;

/* A copy of the sequence at its present position; the caller closes it. */
cedar_status audit_track_fork(audit_track *t, int32_t *seq, cedar_err *err) CEDAR_USE_RESULT;

/* The document ends: everything of it is given up. */
void audit_track_end(audit_track *t);

/* --- score.c ------------------------------------------------------------------------------------------------------ */

/* Divergences of rows p[i], q[i] of `vocab` logits, on up to the job's threads while the caller goes on; token[i] is
 * forced behind row i. The result does not depend on how many threads there are. Everything passed is borrowed until
 * audit_job_wait, which must follow every start. */
typedef struct audit_job audit_job;
audit_job *audit_job_new(int32_t vocab, uint32_t threads);      /* NULL: no memory */
void audit_job_free(audit_job *j);
void audit_job_start(audit_job *j, const float *p, const float *q, uint32_t rows, int32_t vocab, const int32_t *token,
                     cedar_divergence *out);
void audit_job_wait(audit_job *j);

/* --- inside.c: layers ----------------------------------------------------------------------------------------------*/

typedef struct audit_inside audit_inside;

/* rows_max: of a block; tokens_max: positions of a turn. *out stays NULL when `layers` is empty. */
cedar_status audit_inside_new(const cedar_config *c, const cedar_audit_list *layers, uint32_t rows_max,
                              uint32_t tokens_max, audit_inside **out, cedar_err *err) CEDAR_USE_RESULT;
void audit_inside_free(audit_inside *in);
/* Watches the engine's next steps: rows [first, first + rows_max) of the exact arm, or of the arm under test. */
void audit_inside_watch(audit_inside *in, cedar_engine *e, uint32_t first, bool exact);
void audit_inside_stop(cedar_engine *e);
/* Compares row `pos` at the i-th chosen layer; fills all but the identifying members. False: one of the arms did not
 * run the layer on that row. */
bool audit_inside_compare(const audit_inside *in, uint32_t pos, uint32_t i, cedar_audit_layer_row *out);
/* A turn begins; forgets the latents of the turn before. Entries of positions below `first` are not watched. */
void audit_inside_turn(audit_inside *in, uint32_t first);
double audit_inside_latent(const audit_inside *in, int32_t source, uint32_t entry);     /* relative error, or NaN */

/* --- globals.c ---------------------------------------------------------------------------------------------------- */

/* Bytes of the global rows of positions [from, to), source by source. */
typedef struct audit_rows {
    uint8_t *bytes;
    size_t count, capacity;
    uint32_t from, to;
} audit_rows;

cedar_status audit_rows_read(audit_rows *r, const cedar_engine *e, const cedar_config *c, int32_t seq, uint32_t from,
                             uint32_t to, cedar_err *err) CEDAR_USE_RESULT;
void audit_rows_free(audit_rows *r);
/* How many whole entries differ in any byte. */
uint32_t audit_rows_differ(const cedar_config *c, const audit_rows *a, const audit_rows *b);
/* Calls `fn` for each whole entry with the shares of kv and index bytes that differ. */
typedef cedar_status (*audit_rows_fn)(void *self, int32_t source, uint32_t entry, uint32_t pos, double kv, double index,
                                      cedar_err *err);
cedar_status audit_rows_compare(const cedar_config *c, const audit_rows *a, const audit_rows *b, audit_rows_fn fn,
                                void *self, cedar_err *err) CEDAR_USE_RESULT;

/* --- greedy.c ----------------------------------------------------------------------------------------------------- */

typedef struct audit_greedy {
    int32_t *token;             /* [count + 1] the exact arm's continuation; token 0 follows the prompt */
    double *margin;             /* [count] P(top 1) - P(top 2) where token i was chosen */
    float *logits;              /* [vocab] */
    int32_t *ids;               /* [draft_block + 1] */
    uint32_t count;
} audit_greedy;

cedar_status audit_greedy_new(const cedar_config *c, uint32_t count, audit_greedy *g, cedar_err *err) CEDAR_USE_RESULT;
void audit_greedy_free(audit_greedy *g);
/* Continues the exact arm greedily from its present position; first [vocab]: logits of the prompt's last row. */
cedar_status audit_greedy_lead(audit_greedy *g, audit_track *exact, const float *first,
                               cedar_err *err) CEDAR_USE_RESULT;
/* Follows the continuation with an arm. first: its logits of the prompt's last row. *diverged: first token that
 * differs, g->count when none. draft: called per draft cycle, NULL: no drafts. */
typedef cedar_status (*audit_draft_fn)(void *self, uint32_t generated, uint32_t drafted, uint32_t accepted,
                                       cedar_err *err);
cedar_status audit_greedy_follow(audit_greedy *g, audit_track *arm, const float *first, audit_draft_fn draft,
                                 void *self, uint32_t *diverged, cedar_err *err) CEDAR_USE_RESULT;

/* --- summary.c ---------------------------------------------------------------------------------------------------- */

/* Sums of one document in one offset bin of one arm. */
typedef struct audit_sums {
    double kl, dlogp;
    uint64_t n, differ, decisive, decisive_differ;
} audit_sums;

enum { AUDIT_ALL = CEDAR_OFFSET_BINS };         /* index of the sums over all bins */

int audit_bin(int32_t offset);

/* Sums of one arm. */
typedef struct audit_tally {
    audit_sums (*doc)[CEDAR_OFFSET_BINS + 1];   /* [docs] */
    cedar_part *needle;                         /* [docs] dlogp of forced answers */
    uint64_t needle_b, needle_c;                /* answers that only P, only Q gets right */
    uint32_t *greedy;                           /* [greedy_count] divergence steps */
    uint32_t greedy_count;
    double kl_max, layer_max;
    const struct audit_tally *clean;            /* the arm that does the same without the fault; NULL: there is none */
    cedar_audit_arm_end_row end;
} audit_tally;

typedef cedar_status (*audit_stat_fn)(void *self, const cedar_audit_stat_row *row, cedar_err *err);

/* Emits the statistics of an arm and fills its result. */
cedar_status audit_summarise(const cedar_audit_opts *o, const audit_tally *t, uint32_t docs, int64_t audit_id,
                             int64_t arm_id, audit_stat_fn fn, void *self, cedar_audit_arm_result *out,
                             cedar_err *err) CEDAR_USE_RESULT;

#endif
