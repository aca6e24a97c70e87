/* Private to engine/cpu: what does not depend on the arithmetic: storage of caches, and the face each arithmetic's
 * forward pass shows to the backend. */
#ifndef CEDAR_ENGINE_CPU_INT_H
#define CEDAR_ENGINE_CPU_INT_H

#include "engine/backend.h"
#include "engine/cpu/pool.h"
#include "engine/tape.h"

/* Bytes of the caches. Everything is taken when the engine opens. */
typedef struct cedar_store_cpu {
    const cedar_config *c;
    const cedar_layout *l;
    uint8_t *pages;             /* [its share of page_count, page_bytes] */
    uint32_t rank, ranks;
    uint8_t **rank_pages;       /* [ranks] the pages of each; only this rank's are written */
    uint8_t *rings;             /* [seq_count, ring_count, ring_slots, ring_row_bytes] */
    uint8_t *open;              /* [seq_count, open_reals] of real_bytes each */
    uint32_t real_bytes;
} cedar_store_cpu;

/* Page p lies on rank p % ranks (engine/shard.h). */
static inline uint8_t *store_page(const cedar_store_cpu *s, int32_t page) {
    uint32_t p = (uint32_t)page;
    return s->rank_pages[p % s->ranks] + (uint64_t)(p / s->ranks) * s->l->page_bytes;
}
static inline bool store_owns(const cedar_store_cpu *s, int32_t page) { return (uint32_t)page % s->ranks == s->rank; }

/* Ring row of position `pos`; ring = layer, or layers + stage. */
static inline uint8_t *store_ring(const cedar_store_cpu *s, int32_t seq, uint32_t ring, uint32_t pos) {
    return s->rings + (uint64_t)seq * s->l->ring_bytes +
           ((uint64_t)ring * s->l->ring_slots + pos % s->l->ring_slots) * s->l->ring_row_bytes;
}

/* kvf of position `pos` in part k's open group; the score follows it. 2 * head_dim reals. */
static inline uint8_t *store_open(const cedar_store_cpu *s, int32_t seq, int32_t k, uint32_t pos) {
    uint64_t first = s->l->open_first[k] + (uint64_t)(pos % s->l->open_slots[k]) * 2 * (uint32_t)s->c->head_dim;
    return s->open + ((uint64_t)seq * s->l->open_reals + first) * s->real_bytes;
}

/* Storage that a forward pass works on, and its options. */
typedef struct cedar_forward_env {
    const cedar_model *model;   /* of one of several ranks: its slices, with its own config */
    const cedar_rank *rank;     /* NULL: alone */
    const cedar_engine_opts *opts;
    cedar_store_cpu *store;
    cedar_pool *pool;
    cedar_tap_fn tap;
    void *tap_self;
    cedar_inject_fn inject;
    void *inject_self;
    cedar_tape *tape;
} cedar_forward_env;

/* One arithmetic's forward pass. */
typedef struct cedar_forward_ops {
    uint32_t real_bytes;
    uint64_t (*workspace_bytes)(const cedar_config *c, const cedar_engine_opts *o, uint32_t workers);
    cedar_status (*open)(cedar_forward_env *env, void **self, cedar_err *err);
    void (*close)(void *self);
    cedar_status (*step)(void *self, const cedar_step_plan *plan, const cedar_seq_state *seqs, cedar_step_out *out,
                         cedar_err *err);
    cedar_status (*draft)(void *self, cedar_draft_item *items, uint32_t count, const cedar_seq_state *seqs,
                          cedar_err *err);
} cedar_forward_ops;

/* The part of a model that a rank holds, as a model of the rank's own shape. Slices are copied; what is whole is
 * borrowed, so `whole` must live longer. Owned by the caller (cedar_model_close). */
cedar_status cedar_cpu_slice(const cedar_model *whole, const cedar_shard *shard, cedar_model **out,
                             cedar_err *err) CEDAR_USE_RESULT;

extern const cedar_forward_ops cedar_wide_forward_ops, cedar_f32_forward_ops, cedar_bf16_forward_ops;

#endif
