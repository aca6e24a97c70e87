/* What an audit reports while it happens: fixed-size rows, told apart by kind. docs/METRICS.md "Audits" describes them;
 * reports/ turns each kind into a table.
 *
 * Strings are borrowed for the call. NaN means "not measured". Rows are deterministic except the members marked
 * [timing].
 * Threads: called from the audit's thread. A callback that fails ends the audit with its error. */
#ifndef CEDAR_AUDIT_OBSERVER_H
#define CEDAR_AUDIT_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum cedar_audit_kind {
    CEDAR_AUDIT_BEGIN,      /* cedar_audit_begin_row, first */
    CEDAR_AUDIT_ARM,        /* cedar_audit_arm_row, one per arm, before what belongs to it */
    CEDAR_AUDIT_FRONT,      /* cedar_audit_front_row */
    CEDAR_AUDIT_TURN,       /* cedar_audit_turn_row, behind the turn's positions */
    CEDAR_AUDIT_POSITION,
    CEDAR_AUDIT_LAYER,
    CEDAR_AUDIT_GLOBAL,
    CEDAR_AUDIT_GREEDY,
    CEDAR_AUDIT_DRAFT,
    CEDAR_AUDIT_NEEDLE,
    CEDAR_AUDIT_STAT,       /* at the end */
    CEDAR_AUDIT_ARM_END,
    CEDAR_AUDIT_END,        /* last */
    CEDAR_AUDIT_KIND_COUNT
} cedar_audit_kind;

/* Once per audit{...}. */
typedef struct cedar_audit_begin_row {
    int64_t audit_id;                   /* 1, 2, ... within the database */
    const char *label, *config_json;
    const char *model_name, *model_hash, *model_origin, *documents;   /* documents: where they come from */
    const char *backend, *arith;        /* backend: and on what: "cpu", "cpu, 2 ranks", "cuda, NVIDIA H200" */
    uint64_t seed;
    uint32_t docs, turns, vocab, window, layers, cut, halo_encoder, halo_decoder;
    uint64_t kv_token_bytes_x1000, window_snap_bytes;
    uint32_t resamples;
    double margin_kl, margin_dlogp, margin_top1;   /* of the equivalence tests, given before the audit */
} cedar_audit_begin_row;

typedef struct cedar_audit_arm_row {
    int64_t audit_id, arm_id;           /* arm_id 1, 2, ... in the order given */
    const char *label, *control;        /* control "C0" .. "C5", or "" for an arm under test */
    const char *what;                   /* one sentence */
    bool decoder, encoder;
    const char *cut, *hits, *fault;
    uint32_t rows, keep, chunk;         /* replayed before a hit; kept behind the cut; rows of a step, 0 = most */
} cedar_audit_arm_row;

/* Where theory puts exactness again: the output of `layer` (its streams) from this offset on. */
typedef struct cedar_audit_front_row {
    int64_t audit_id, arm_id;
    int32_t layer, from_offset;
    bool holds;                         /* false: global rows of inexact positions may undo it (docs/AUDIT.md) */
} cedar_audit_front_row;

/* One turn of a document in an arm. */
typedef struct cedar_audit_turn_row {
    int64_t audit_id, arm_id;
    uint32_t doc, turn;
    const char *doc_name;
    uint32_t hit, start, prompt_end, end;       /* H, S, T and the end of the forced answer */
    uint32_t replayed, trimmed;                 /* rows fed again; prompt rows that skipped the late layers */
    uint32_t rows, kept;                        /* rows fed, and those that ran behind the cut, answer included */
    uint32_t prompt_rows, prompt_kept, steps, provenance_depth;
    uint32_t adopted_changed;                   /* global rows below H whose bytes changed */
    uint64_t window_bytes;                      /* windows stored for the next hit */
    int64_t prompt_ns, forward_ns;              /* [timing] steps of the prompt; all steps of the turn */
} cedar_audit_turn_row;

/* One scored position: the arm (Q) against exact recomputation (P) of the same tokens. */
typedef struct cedar_audit_position_row {
    int64_t audit_id, arm_id;
    uint32_t doc, turn, pos;
    int32_t offset;                     /* pos - H behind a hit; decoder replay alone: pos - (T - 1) */
    int32_t token;                      /* forced next token */
    double kl_pq, kl_qp, js, logp_p, logp_q, top1_prob_p, margin_p, ratio_max, top5_jaccard;
    int32_t top1_p, top1_q;
    bool top1_same;
} cedar_audit_position_row;

/* Inside a layer at a scored position. */
typedef struct cedar_audit_layer_row {
    int64_t audit_id, arm_id;
    uint32_t doc, turn, pos;
    int32_t offset, layer;
    double stream_rel, vector_rel, cosine;      /* relative L2 of the streams and of the collapsed vector; its cosine */
    double window_differ;                       /* share of window bytes that differ */
    double topk_jaccard;                        /* NaN where the layer selects nothing itself */
    bool router_flip, engram_differs;
} cedar_audit_layer_row;

/* A new global row of a turn. */
typedef struct cedar_audit_global_row {
    int64_t audit_id, arm_id;
    uint32_t doc, turn;
    int32_t layer;                              /* source */
    uint32_t entry, pos;                        /* pos: last position of the entry */
    int32_t offset;                             /* as of positions */
    double kv_differ, index_differ;             /* share of stored bytes that differ */
    double latent_rel;                          /* relative L2 before quantisation; NaN when not tapped */
} cedar_audit_global_row;

/* Greedy continuation of a prompt by the exact arm, forced on the arm. */
typedef struct cedar_audit_greedy_row {
    int64_t audit_id, arm_id;
    uint32_t doc, turn, tokens;
    int32_t diverged_at;                        /* first token that differs, -1: none of them (censored) */
    double margin_p;                            /* P(top 1) - P(top 2) there; NaN when censored */
    bool tie;                                   /* the margin is below the noise margin */
} cedar_audit_greedy_row;

/* One draft cycle along the exact arm's greedy continuation. */
typedef struct cedar_audit_draft_row {
    int64_t audit_id, arm_id;
    uint32_t doc, turn, generated;              /* tokens generated before the cycle */
    uint32_t drafted, accepted;                 /* accepted: leading drafts that are the exact arm's greedy tokens */
} cedar_audit_draft_row;

/* Forced answer to a needle. */
typedef struct cedar_audit_needle_row {
    int64_t audit_id, arm_id;
    uint32_t doc, turn, needle;                 /* needle: 0, 1, ... in the order they were planted */
    uint32_t pos, tokens;                       /* where its value begins, how many tokens are asked for */
    const char *place;                          /* "replayed" | "window" | "near" | "far" | "suffix" (docs/AUDIT.md) */
    double logp_p, logp_q;                      /* of the whole answer */
    bool exact_p, exact_q;                      /* every token is the most likely one */
} cedar_audit_needle_row;

/* A statistic over documents. */
typedef struct cedar_audit_stat_row {
    int64_t audit_id, arm_id;
    const char *metric;                         /* "kl" | "dlogp" | "top1" | "decisive" | "needle" | "fault" */
    int32_t bin;                                /* offset bin, -1: all positions */
    uint64_t docs, positions;
    double value, lo, hi;                       /* mean and 95 % interval */
    double p, p_holm;                           /* of value = 0; adjusted over the bins */
    double margin, p_equivalent, p_equivalent_holm;
    const char *verdict;                        /* "zero" | "equivalent" | "different" | "undecided" */
} cedar_audit_stat_row;

typedef struct cedar_audit_arm_end_row {
    int64_t audit_id, arm_id;
    uint64_t positions, rows_fed, kept, prompt_rows, prompt_kept, replayed, steps, adopted_changed;
    uint64_t global_rows, global_differ;        /* new global rows, and those that differ in any byte */
    uint64_t window_bytes;                      /* windows stored at hits, all turns */
    double greedy_mean;                         /* restricted mean of agreeing greedy tokens; NaN without */
    int64_t prompt_ns, forward_ns;              /* [timing] */
} cedar_audit_arm_end_row;

typedef struct cedar_audit_end_row {
    int64_t audit_id;
    const char *status, *error;                 /* "finished" | "failed" | "interrupted" */
    uint64_t result_hash;                       /* of every deterministic member of every row */
    uint64_t positions;
    int64_t exact_ns, forward_ns;               /* [timing] steps of the exact arm; of all arms, that one included */
    int64_t score_ns, wall_ns;                  /* [timing] comparing and reporting; everything */
} cedar_audit_end_row;

typedef struct cedar_audit_observer {
    void *self;
    cedar_status (*row)(void *self, cedar_audit_kind kind, const void *row, cedar_err *err);
} cedar_audit_observer;

#endif
