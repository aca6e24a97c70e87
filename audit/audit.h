/* Audits: what bounded replay costs, measured against exact recomputation of the same tokens (docs/AUDIT.md).
 *
 * Documents of several turns are fed to the exact arm (P) and to every arm under test (Q) in one engine; the logits of
 * both lie side by side in memory and only scalars leave. An arm keeps its own cache from turn to turn, so what its
 * replays leave in the global rows is part of the arm.
 * Ownership   The caller owns what it passes. cedar_audit_docs owns its tokens.
 * Threads     One audit per thread; scoring uses threads of its own.
 * Errors      base/status.h. Nothing here prints. */
#ifndef CEDAR_AUDIT_AUDIT_H
#define CEDAR_AUDIT_AUDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "audit/observer.h"
#include "base/status.h"
#include "engine/engine.h"

enum { CEDAR_AUDIT_LIST_MAX = 64, CEDAR_AUDIT_TEXT_MAX = 256, CEDAR_OFFSET_BINS = 11 };

/* --- options ------------------------------------------------------------------------------------------------------ */

typedef struct cedar_audit_list {
    uint32_t v[CEDAR_AUDIT_LIST_MAX];
    uint32_t count;
} cedar_audit_list;

typedef struct cedar_audit_opts {
    char label[64], model[CEDAR_AUDIT_TEXT_MAX], backend[8], arith[8], score[8], pattern[16], greedy_turns[8];
    char trace[2048], length_scale[32], documents[1024];
    char arms[CEDAR_AUDIT_LIST_MAX][64];
    uint32_t arm_count;
    uint64_t weights_seed, seed;
    uint32_t threads, gpus, docs, turns, repeats, page_tokens, step_tokens, score_rows, context_max;
    cedar_audit_list prompts, suffix, answer, hit_back, layers, needles;
    uint32_t lag, globals, greedy_tokens, resamples;
    bool drafts, keep_positions;
    double margin_kl, margin_dlogp, margin_top1, noise_margin;
} cedar_audit_opts;

typedef enum cedar_audit_type {
    CEDAR_AUDIT_INT, CEDAR_AUDIT_REAL, CEDAR_AUDIT_BOOL, CEDAR_AUDIT_TEXT, CEDAR_AUDIT_CHOICE,
    CEDAR_AUDIT_INTS,           /* list of whole numbers */
    CEDAR_AUDIT_TEXTS           /* list of texts */
} cedar_audit_type;

typedef struct cedar_audit_option {
    const char *key;
    cedar_audit_type type;
    const char *value_default;  /* as text; lists are separated by commas */
    double lo, hi;
    const char *choices;        /* "a|b" */
    const char *help;
    size_t place, room;         /* private to audit/options.c */
} cedar_audit_option;

/* The table, in the order of the documentation. */
const cedar_audit_option *cedar_audit_table(size_t *count);

void cedar_audit_defaults(cedar_audit_opts *o);

/* Sets a key from text; a failed call changes nothing. */
cedar_status cedar_audit_set(cedar_audit_opts *o, const char *key, const char *text, cedar_err *err) CEDAR_USE_RESULT;

/* The option's value as text. */
void cedar_audit_get(const cedar_audit_opts *o, const cedar_audit_option *k, char *out, size_t bytes);

/* --- documents ---------------------------------------------------------------------------------------------------- */

enum { CEDAR_NEEDLES_MAX = 8 };

/* A fact planted in a prompt and asked for at its end. The forced answer is what follows its key. */
typedef struct cedar_needle {
    uint32_t pos, tokens;       /* first token of the value, how many */
    uint32_t answer;            /* position of the forced answer's first token */
    uint32_t back;              /* distance asked for: H - pos */
} cedar_needle;

typedef struct cedar_audit_turn {
    const int32_t *tokens;      /* [end] */
    uint32_t hit;               /* H: leading tokens that the turn before has left in the cache */
    uint32_t prompt, end;       /* T, end of the forced answer; hit < prompt < end */
    cedar_needle needle[CEDAR_NEEDLES_MAX];
    uint32_t needle_count;
} cedar_audit_turn;

typedef struct cedar_audit_doc {
    char name[64];
    cedar_audit_turn *turns;
    uint32_t turn_count;
} cedar_audit_doc;

typedef struct cedar_audit_docs {
    cedar_audit_doc *docs;
    uint32_t count, turns, longest;     /* turns in all; tokens of the longest turn */
    int32_t **blocks;                   /* token storage [block_count] */
    uint32_t block_count;
} cedar_audit_docs;

/* Where documents end at the latest: context_max, or what the model has. */
uint32_t cedar_audit_context(const cedar_audit_opts *o, const cedar_config *c);

/* Documents made from the seed by the options docs, turns, prompt, suffix, answer, pattern, ... */
cedar_status cedar_audit_docs_make(const cedar_audit_opts *o, const cedar_config *c, cedar_audit_docs **out,
                                   cedar_err *err) CEDAR_USE_RESULT;
/* Room for documents that the caller fills. */
cedar_status cedar_audit_docs_new(uint32_t count, uint32_t block_count, cedar_audit_docs **out,
                                  cedar_err *err) CEDAR_USE_RESULT;
/* Sums of documents that are filled; refuses turns that make no sense. */
cedar_status cedar_audit_docs_check(cedar_audit_docs *d, cedar_err *err) CEDAR_USE_RESULT;
void cedar_audit_docs_free(cedar_audit_docs *d);

/* --- arms --------------------------------------------------------------------------------------------------------- */

/* How the windows come back at a prefix hit. */
typedef enum cedar_hits {
    CEDAR_HITS_CONTINUE,    /* they never went: the sequence goes on */
    CEDAR_HITS_STORED,      /* from a snapshot */
    CEDAR_HITS_REPLAY,      /* by encoder replay */
    CEDAR_HITS_COLD         /* there are no hits: every prompt from 0 */
} cedar_hits;

/* Deliberate faults (controls C4) and a yardstick (C5). */
typedef enum cedar_fault {
    CEDAR_FAULT_NONE,
    CEDAR_FAULT_STALE,      /* no clip: rows below S read another sequence's windows */
    CEDAR_FAULT_ZERO,       /* no clip: rows below S read zeros */
    CEDAR_FAULT_FLOOR,      /* no write floor: replayed rows overwrite cached global rows */
    CEDAR_FAULT_SHIFT,      /* adopted global rows are one position off */
    CEDAR_FAULT_COARSE      /* stored windows with one mantissa bit less */
} cedar_fault;

typedef struct cedar_arm {
    char label[64], control[4], what[200];
    cedar_hits hits;
    cedar_fault fault;
    bool decoder;
    cedar_cut cut;
    uint32_t rows, keep, chunk;
    bool wo_a_fp8;          /* an engine of its own, with one quantiser more */
    int32_t arith;          /* an engine of its own with this arithmetic, or -1 */
} cedar_arm;

/* "exact", "stored", "encoder rows=64", "decoder cut=clip keep=halo", "both", "stale", ... (docs/AUDIT.md "Arms"). */
cedar_status cedar_arm_parse(const char *text, const cedar_config *c, cedar_arm *out, cedar_err *err) CEDAR_USE_RESULT;

/* --- theory ------------------------------------------------------------------------------------------------------- */

/* Offset from which theory promises an exact output of `layer` (spec/replay.md 3.2), in the arm's own offsets; *holds
 * is false where inexact global rows may undo it. INT32_MIN: always exact; INT32_MAX: no promise. */
int32_t cedar_exact_front(const cedar_config *c, const cedar_arm *arm, int32_t layer, bool *holds);

/* --- auditing ----------------------------------------------------------------------------------------------------- */

typedef struct cedar_audit_arm_result {
    char label[64], control[4];
    uint64_t docs, positions;
    double kl_mean, kl_lo, kl_hi, kl_max, top1_rate, decisive_rate, dlogp_mean, dlogp_lo, dlogp_hi;
    double kl_p_equivalent, needle_dlogp, greedy_mean;
    double fault_kl, fault_lo, fault_hi;    /* KL of a fault less that of the same arm without it; NaN: none */
    double layer_max;           /* largest relative error of the streams in any tapped layer; NaN without taps */
    uint64_t decisive, global_rows, global_differ, adopted_changed, window_bytes, prompt_rows, prompt_kept, replayed;
    char verdict[16];           /* of KL over all positions */
    double prompt_s, forward_s; /* [timing] */
} cedar_audit_arm_result;

typedef struct cedar_audit_result {
    int64_t audit_id;
    char status[16];
    uint64_t result_hash, positions;
    cedar_audit_arm_result arms[CEDAR_AUDIT_LIST_MAX];
    uint32_t arm_count;
    double exact_s, forward_s, score_s, wall_s, overhead;   /* [timing] overhead: wall / (exact + arms) - 1 */
} cedar_audit_result;

/* What the caller lends. */
typedef struct cedar_audit_host {
    const cedar_audit_observer *observer;
    const cedar_model *model;
    const char *model_hash, *model_origin;
    const cedar_audit_docs *docs;
    const char *documents;          /* one sentence about them */
    void (*progress)(void *self, const char *label, uint64_t done, uint64_t total, int64_t elapsed_ns);
    void *self;
    const volatile int *stop;       /* non-zero ends the audit early; may be NULL */
} cedar_audit_host;

cedar_status cedar_audit(const cedar_audit_opts *o, int64_t audit_id, const cedar_audit_host *host,
                         cedar_audit_result *out, cedar_err *err) CEDAR_USE_RESULT;

#endif
