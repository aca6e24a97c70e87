/* Private to engine/: which part of a model each of several ranks holds (tensor parallelism).
 *
 * Split: attention by output groups with their heads (wq_b, attn_sink and wo_a by rows or elements, wo_b by columns);
 * every expert, the shared one too, by its inner width (w1 and w3 by rows, w2 by columns); the head by vocabulary rows.
 * Whole on every rank: all else. What comes out of wo_b and w2 is then a part of a sum: the ranks' parts, each rounded
 * to bf16 in that arithmetic, are added in rank order and rounded once.
 *
 * Rank r of N gets the units [U*r/N, U*(r+1)/N) of U: shares may differ, or be empty.
 * Pages: page p of the pool lies on rank p % N, there as number p / N. */
#ifndef CEDAR_ENGINE_SHARD_H
#define CEDAR_ENGINE_SHARD_H

#include "engine/model_int.h"

typedef struct cedar_shard {
    uint32_t rank, ranks;
    int32_t group_first, groups;        /* output groups */
    int32_t head_first, heads;          /* attention heads: those of the groups */
    int32_t moe_first, moe;             /* columns of the experts' inner width, in units of 32; may be 0 */
    int32_t vocab_first, vocab;         /* rows of the head, in units of 8; may be 0 */
} cedar_shard;

enum { CEDAR_SHARD_MOE_UNIT = 32, CEDAR_SHARD_VOCAB_UNIT = 8 };

/* CEDAR_E_ARG with a sentence when the shape cannot be split over so many ranks. ranks = 1 holds everything. */
cedar_status cedar_shard_make(const cedar_config *whole, uint32_t rank, uint32_t ranks, cedar_shard *out,
                              cedar_err *err) CEDAR_USE_RESULT;

/* The shape as one rank computes it: heads, o_groups and moe_dim are its own, the rest is unchanged (vocab too, since
 * the embedding is whole: the head has shard->vocab rows). */
void cedar_shard_config(const cedar_config *whole, const cedar_shard *s, cedar_config *local);

/* Which elements of a tensor of the whole shape the rank holds: rows [row, row + rows), columns [col, col + cols);
 * vectors are [1, cols]. Needs t->name, rows and cols only. Cuts never go through a scale's block. */
typedef struct cedar_slice {
    int64_t row, rows, col, cols;
    bool whole;                         /* the rank holds all of it */
} cedar_slice;

cedar_slice cedar_shard_slice(const cedar_config *whole, const cedar_shard *s, const cedar_tensor_info *t);

/* Stored bytes of a slice's data and of its scales, as those of a tensor of that size. */
uint64_t cedar_slice_data_bytes(const cedar_tensor_info *t, const cedar_slice *s);
uint64_t cedar_slice_scale_bytes(const cedar_tensor_info *t, const cedar_slice *s);

/* Copies a slice out of a whole tensor in host memory (t->slot): row major, scales likewise; scale may be NULL for
 * kinds that have none. */
void cedar_slice_copy(const cedar_tensor_info *t, const cedar_slice *s, uint8_t *data, uint8_t *scale);

/* Pages of the pool on a rank, of `pages` in all. */
static inline uint32_t cedar_shard_pages(const cedar_shard *s, uint32_t pages) {
    return pages / s->ranks + (s->rank < pages % s->ranks);
}

#endif
