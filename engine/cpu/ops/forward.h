/* Private to engine/cpu/ops: the state of a forward pass. Everything is carved out of two blocks when the engine opens.
 *
 * R rows of a step, D hidden, n streams, d head_dim, H heads, BLOCK rows worked on together by one thread. */
#ifndef CEDAR_ENGINE_CPU_FORWARD_H
#define CEDAR_ENGINE_CPU_FORWARD_H

#include "engine/cpu/ops/ops.h"

enum { BLOCK = 16, HEAD_SLICE = 512 };

/* Scratch of one thread. */
typedef struct OP(worker) {
    real *x, *xq;               /* [BLOCK, D] */
    real *att, *y;              /* [BLOCK, D] */
    real *qr, *qrq;             /* [BLOCK, q_lora] */
    real *q;                    /* [BLOCK, H * d] queries, then attention outputs */
    real *kv;                   /* [BLOCK, d] */
    real *iq;                   /* [BLOCK, index_heads * index_dim] */
    real *ig;                   /* [BLOCK, index_heads] */
    real *u;                    /* [BLOCK, o_groups * o_lora] */
    real *features;             /* [BLOCK, targets * D] */
    real *keys;                 /* [window + max(index_topk, draft_block), d] */
    real *logits;               /* [window + max(index_topk, draft_block)] */
    real *scores;               /* [context entries] */
    real *block_scores;         /* [context entries / candidate_block + 1] */
    real *heap;                 /* [max(index_topk, candidate_blocks)] */
    int32_t *names;             /* [candidate_blocks * candidate_block] */
    uint8_t *mask;              /* [context entries] for the tap */
    double *wide;               /* [n * D] for the tap */
    real *index_keys;           /* [4, index_dim] */
    real *latent, *index_key;   /* [d], [index_dim] */
    real *table;                /* [rope_dim] rotation of an entry */
    real *engram_e, *engram_kv; /* [rows * dim], [(n + 1) * D] */
    real *head;                 /* [BLOCK, HEAD_SLICE] */
    real *gains;                /* [max(2 * D, markov_rank)] rows decoded for one use */
    real *streams;              /* [BLOCK, n * D] */
    real *mixes;                /* [BLOCK, (2 + n) n] */
    OP(linear_scratch) linear;
    OP(moe_scratch) moe;
} OP(worker);

typedef struct OP(group) { uint32_t row, entry; } OP(group);    /* a compressed entry completed by `row` */

typedef struct OP(forward) OP(forward);
struct OP(forward) {
    cedar_forward_env *env;
    const cedar_config *c;
    const cedar_layout *l;
    OP(weights) weights;
    void *arena, *decoded_store;
    const real **decoded;       /* [tensors] */
    double *freq[2];            /* [rope_dim / 2] plain, YaRN */
    uint32_t row_max;           /* R */
    uint32_t worker_count;
    OP(worker) *workers;
    /* by row of the step */
    uint32_t *row_entry, *row_pos;      /* [R] */
    real *h;                            /* [R, n, D] */
    real *pre, *pre_attn, *post, *comb; /* [R, n] three times, [R, n, n] */
    real *x;                            /* [R, D] normed attention input of the layer */
    uint8_t *window;                    /* [R, ring_row_bytes] window rows of the layer */
    real *comp;                         /* [R, 2, d] compressor inputs of the source layer */
    int32_t *topk;                      /* [R, index_topk] */
    int32_t *pool, *pool_count;         /* [R, candidate_blocks], [R] */
    real *features;                     /* [R, targets, D] */
    real *table[2];                     /* [R, rope_dim] cos, sin per pair; plain, YaRN */
    uint32_t *active, *kept, *first_kept;/* [R], [R], [step_seqs + 1] rows that run now; behind the cut; per entry */
    OP(group) *groups;                  /* [R] */
    uint32_t *first_row;                /* [step_seqs + 1] */
    /* the layer being run */
    const cedar_step_plan *plan;
    const cedar_seq_state *seqs;
    cedar_step_out *out;
    int32_t layer;
    const cedar_block *block;
    uint32_t active_count, group_count, block_rows, logits_count;
    bool pooled;                        /* the candidate pool of this step has been built */
    uint32_t *logit_rows;               /* [R] rows whose logits are wanted */
    const cedar_draft_item *draft;      /* a draft pass instead of a step */
    /* one of several ranks (engine/ranks.h); alone: ranks = 1 and no memory */
    uint32_t rank, ranks;
    OP(forward) **peers;                /* [ranks] this one too */
    real *part[2];                      /* [R, D] this rank's part of attention and experts, for the others to add */
    real *best;                         /* [R] largest logit of this rank's part of the vocabulary */
    int32_t *best_id;                   /* [R] and its token, -1 = no part; drafted ids */
    real *base;                         /* [draft_block, vocab] logits of all ranks; that of rank 0 is used */
};

/* workspace.c */
uint64_t OP(workspace_bytes)(const cedar_config *c, const cedar_engine_opts *o, uint32_t workers);
cedar_status OP(forward_open)(cedar_forward_env *env, void **self, cedar_err *err);
void OP(forward_close)(void *self);

/* block.c: one block in three phases; `item` is a block of active rows, or a group. */
/* to the attention input, window rows, compressor inputs */
void OP(phase_before)(void *f, uint32_t item, uint32_t worker);
void OP(phase_groups)(void *f, uint32_t item, uint32_t worker);     /* global rows and index keys */
void OP(phase_after)(void *f, uint32_t item, uint32_t worker);      /* attention and MoE, in one when alone; else: */
void OP(phase_attention)(void *f, uint32_t item, uint32_t worker);
void OP(phase_ffn)(void *f, uint32_t item, uint32_t worker);
void OP(phase_finish)(void *f, uint32_t item, uint32_t worker);
uint32_t OP(window_lo)(const OP(forward) *f, const cedar_plan_entry *e);

/* indexer.c: top-k lists of a block's rows. qr_quantised [count, q_lora], x [count, D]. */
void OP(select_rows)(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count);

/* draft.c */
void OP(phase_rings)(void *f, uint32_t item, uint32_t worker);      /* draft ring rows of active rows */
cedar_status OP(draft)(void *self, cedar_draft_item *items, uint32_t count, const cedar_seq_state *seqs,
                       cedar_err *err);

/* forward.c */
void OP(run)(OP(forward) *f, uint32_t items, cedar_pool_fn fn);     /* over the pool; in order with a tap or a tape */
void OP(set_active)(OP(forward) *f, const uint32_t *rows, uint32_t count);
/* Attention and MoE of the active rows, with all ranks. False here and below = the group of ranks is broken. */
bool OP(run_after)(OP(forward) *f, uint32_t items) CEDAR_USE_RESULT;
bool OP(meet)(const OP(forward) *f) CEDAR_USE_RESULT;

static inline uint32_t block_count(const OP(forward) *f) {
    return (f->active_count + f->block_rows - 1) / f->block_rows;
}

/* Rows of block `item`: *count of them. */
static inline const uint32_t *block_of(const OP(forward) *f, uint32_t item, int *count) {
    uint32_t first = item * f->block_rows, left = f->active_count - first;
    *count = (int)(left < f->block_rows ? left : f->block_rows);
    return f->active + first;
}

/* First token of this rank's part of the vocabulary. */
static inline int64_t OP(head_first)(const OP(forward) *f) {
    return f->env->rank ? f->env->rank->shard.vocab_first : 0;
}

/* The gain of a norm: vectors are always held decoded. */
static inline const real *vector_of(const OP(forward) *f, const cedar_weight *w) { return f->decoded[w->index]; }

/* Rotation of a row in the layer being run: plain for window-only layers, YaRN elsewhere (spec/model.md 2.3). */
static inline const real *table_of(const OP(forward) *f, uint32_t row) {
    return f->table[f->c->ratio[f->layer] > 0] + (uint64_t)row * (uint32_t)f->c->rope_dim;
}

#endif
