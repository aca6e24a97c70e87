/* Private to engine/cuda: linear layers on tensor cores, bf16 arithmetic only.
 *
 * Contract (class D1): an output is the sum of SEGMENTS partial sums over consecutive parts of K, added in order; a
 * part is a chain of m16n8k16 products, ascending in the order below, summed in fp32 by the tensor core. mma.sync and
 * wgmma give the same bits for such a chain, and rows of a tile do not see each other (docs/ENGINE.md has the check),
 * so the number of rows, their place in a tile and the kernel that was chosen take no part.
 *
 * Both sides are bf16: FP8 and FP4 weights times their power-of-two scales and FP8Q32 activations times theirs fit bf16
 * exactly (spec/model.md 3.5), so decoding loses nothing.
 *
 * Order of K   Blocks of 128. Thread t of a quad takes of each half of a block the 16 values of a row from 16 t on, and
 *              feeds them, eight at a time, to two instructions as the pairs (0,4) (1,5) and (2,6) (3,7): as two masks
 *              take pairs from a word of stored FP4, and as weights' codes are spread (pairs.cuh); whole sectors are
 *              read, and 16 values have one scale.
 *              Activations hold each eight as those pairs: plain, one eight after the other, for the kernels for few
 *              rows, or woven, in the order of the instructions. */
#ifndef CEDAR_ENGINE_CUDA_TENSOR_CUH
#define CEDAR_ENGINE_CUDA_TENSOR_CUH

#include "engine/cuda/peers.cuh"

enum { SEGMENTS = 8, K_BLOCK = 128 };

/* Up to this many rows of a step activations are plain and the kernels for few rows run. */
enum { FEW_ROWS = 32 };
static inline bool few_rows(uint32_t rows) { return rows <= FEW_ROWS; }

/* 1: thread blocks that have the same rows load them together (tensor_many.cuh), in dense layers and in those of
 * experts, whose rows are gathered for it. 0: each block loads its own rows. The bits are the same. */
enum { DENSE_TOGETHER = 1, EXPERTS_TOGETHER = 1 };

/* Columns of a row of packed activations. */
static __host__ __device__ inline int64_t padded(int64_t k_count) {
    return (k_count + K_BLOCK - 1) / K_BLOCK * K_BLOCK;
}

/* Once per device, before the first launch. */
cudaError_t tensor_prepare(void);

/* Largest scale byte of a weight of a kind that decoding can hold (pairs.cuh). */
int tensor_scale_max(int kind);

/* out row = bf16 of row of x [*, ldx] (floats, or bf16 if x_bf16), through FP8Q32 if `quantise`; the same row numbers,
 * those listed or 0 .. n-1. out [*, padded(K)]; columns past K are zero. */
void tensor_pack(const void *x, bool x_bf16, int64_t ldx, const uint32_t *list, uint32_t n, int64_t k_count,
                 bool quantise, bool woven, uint16_t *out, chain s);

/* Rows 0 .. n-1 of x [n, width] floats normed and packed through FP8Q32; width at most tensor_norm_width_max. */
int tensor_norm_width_max(void);
void tensor_norm(const float *x, int width, uint32_t n, const dev_weight &gain, double eps, bool woven, uint16_t *out,
                 chain s);
/* norm(collapse(h, pre)) packed, by row or by place: plain as it is, quantised through FP8Q32; either may be NULL. */
struct collapse_into {
    const void *pre;
    dev_weight gain;
    bool indexed, woven;
    uint16_t *plain, *quantised;
};
void tensor_collapse(const dev &d, uint32_t n, const collapse_into &to, chain s);

/* Streams expanded with y (floats by place), or, if that is NULL, as tensor_expand_experts does, and then collapsed, in
 * one launch, with the bits of two. The one kernel before it in s may still run when it reads streams and picks:
 * something earlier must have written those, for which that kernel has waited before it let this one begin. */
bool tensor_expand_collapse_can(const dev &d, uint32_t n);
void tensor_expand_collapse(const dev &d, uint32_t n, const float *y, const dev_moe &m, const collapse_into &to,
                            chain s);

/* Packed activations of a dense launch: row i of the result is made from row (list ? list[i] : i) * stride + first. The
 * list is there before the kernel in front of the launch begins, as the launch reads it before it waits. */
struct operand {
    const uint16_t *x;
    const uint32_t *list;
    int stride, first;
    bool woven;
};

/* Where results go: row i from i * ld elements on, as they were summed, rounded to bf16, or kept as bf16. */
enum result_kind { AS_SUMMED, AS_ROUNDED, AS_BF16 };
struct result {
    void *y;
    int64_t ld;
    result_kind kind;
};

/* y row i, column n = row i of x times row n of w. */
void tensor_linear(const dev_weight &w, const operand &x, uint32_t rows, const result &y, chain s);
/* The same beside the main work: where it has few rows and many outputs it leaves room for other thread blocks. */
void tensor_linear_aside(const dev_weight &w, const operand &x, uint32_t rows, const result &y, chain s);
/* The same for two weights of one shape and one input at once; the second result has the rows and kind of the first. */
void tensor_linear_two(const dev_weight &w0, const dev_weight &w1, const operand &x, uint32_t rows, const result &y0,
                       void *y1, chain s);
/* The same for two weights of any numbers of rows; rows of the second result have no gaps. One launch, if a
 * multiprocessor can have each tile of outputs. */
void tensor_linear_beside(const dev_weight &w0, const dev_weight &w1, const operand &x, uint32_t rows, const result &y0,
                          void *y1, chain s);
/* `groups` equal blocks of rows of w, group g from row ... * stride + first + g of x to columns from g * (rows of a
 * block) of y. */
void tensor_groups(const dev_weight &w, int groups, const operand &x, uint32_t rows, const result &y, chain s);

/* Routed experts: pairs (place, slot) sorted by expert, in tiles of one expert. */
struct expert_tiles {
    uint32_t *pairs;            /* [rows * per_token] place * (per_token + 1) + slot, by expert, then ascending */
    int32_t *tile_expert;       /* [tiles_max] */
    uint32_t *tile_first, *tile_count;  /* [tiles_max] stretches of pairs; a tile without any is skipped */
    uint32_t tiles_max, width;  /* width: pairs of a tile, at most; 8 for few rows, as the kernels for them take it */
    uint32_t pairs_max;
    bool sorted;                /* packed activations lie in the order of `pairs`, where tensor_gather puts them */
};
/* Width and number of tiles for a batch; the largest number for up to `rows` rows. */
void tensor_tiles(uint32_t rows, int per_token, int experts, bool woven, expert_tiles *t);
uint32_t tensor_tiles_max(uint32_t rows, int per_token, int experts);
void tensor_sort(const int32_t *ids, uint32_t rows, int per_token, int experts, bool woven, const expert_tiles &t,
                 cudaStream_t s);

/* launch_route and tensor_sort, not woven, in one launch, with the same bits; rows 0 .. rows - 1 of m. */
bool tensor_route_can(const dev_moe &m, uint32_t rows);
void tensor_route(const dev_moe &m, uint32_t rows, const expert_tiles &t, chain s);

/* Packed activations of pairs, out [rows * (per_token + 1), padded(moe_dim)], from m.a and m.b, which are bf16: slots
 * [first, first + count) of each row. */
void tensor_act(const dev_moe &m, int first, int count, uint32_t rows, bool woven, uint16_t *out, chain s);

/* Streams of rows [first, first + n) of the list expanded with the sum of their pairs' outputs, m.ids and m.out (bf16)
 * from the first of them on. */
void tensor_expand_experts(const dev &d, uint32_t first, uint32_t n, const dev_moe &m, chain s);

/* Only the sum, rounded: out [n, width]. */
void tensor_sum_experts(const dev_moe &m, uint32_t n, int width, uint16_t *out, cudaStream_t s);
/* Streams expanded with one output a row, y [place, hidden] in bf16. */
void tensor_expand(const dev &d, uint32_t n, const uint16_t *y, chain s);

/* A block's end with several ranks in one launch: the sum of the ranks' parts (as peers_sum), expanded into the
 * streams (as tensor_expand), and the next block's input (as tensor_collapse), with the same bits. Streams are read
 * before the wait: with s.kernel_before, the kernel before this one must not write them. */
bool tensor_site_can(const dev &d, const peers &p, uint32_t n);
void tensor_site(const dev &d, const peers &p, const uint16_t *part, uint32_t n, const collapse_into &next, chain s);
void tensor_site_experts(const dev &d, const peers &p, const dev_moe &m, uint32_t n, const collapse_into &next,
                         chain s);

/* FP4 experts over the tiles, `lists` (1 or 2) lists of weights list_step apart with results y and, in the same form,
 * y_second: the row of y is the pair, that of x is its place in t.pairs (t.sorted), or else the pair (source_div 1) or
 * pair / source_div. early: t was there before the kernel in front of this one began. All weights, dense ones too,
 * begin at multiples of 16 bytes, and so do their scales. */
void tensor_experts(const dev_weight *list, int lists, int list_step, int64_t n_count, int64_t k_count,
                    const uint16_t *x, bool woven, int source_div, const expert_tiles &t, bool early, const result &y,
                    void *y_second, chain s);

/* tensor_experts for both of m.w1 and m.w3, and then tensor_act of all but the shared expert's slots, in one launch,
 * with the bits of two. x [rows, k_count], few rows; out as tensor_act's. m.experts from w1 on lies w2, then w3. */
bool tensor_gated_can(const dev_moe &m, int64_t k_count, bool woven, const expert_tiles &t);
void tensor_gated(const dev_moe &m, int64_t k_count, const uint16_t *x, const expert_tiles &t, uint16_t *out, chain s);

/* out [t.pairs_max, padded(k_count)]: rows pair / source_div of x, of which there are `rows`, in the order of t.pairs.
 * Places without a pair are left as they are. */
void tensor_gather(const uint16_t *x, int64_t k_count, uint32_t rows, int source_div, const expert_tiles &t,
                   uint16_t *out, cudaStream_t s);

/* --- attention and index scores, bf16 arithmetic ---------------------------------------------------------------------
 *
 * Attention of a batch of rows in three launches: logits of all keys; probabilities against the final maximum, rounded
 * to bf16, and their unrounded sum with the sink; their product with the keys, keys ascending. A row's sums run over
 * its own keys in order, so neither batch nor launch shape takes part (D1). */

/* Keys of a batch's rows, filled by key_kernel: references to codes and scales. */
struct dev_key {
    const uint8_t *code, *scale;    /* NULL code: no key */
};

struct attention_work {
    dev_key *keys;                  /* [rows, keys_max] */
    uint8_t *fp4;                   /* [rows, keys_max] 1: global entry, 0: window record */
    int32_t *count;                 /* [rows] */
    float *logits;                  /* [rows, heads, keys_max]; probabilities after the second launch */
    float *total;                   /* [rows, heads] */
    int keys_max;                   /* a multiple of 64 */
};

/* Rows [first, first + n) of the list; part -1: no global entries. q [place, heads, head_dim] in, output in place. */
void tensor_attention(const dev &d, uint32_t first, uint32_t n, int layer, int part, int lo_kind, float *q,
                      const dev_weight &sink, const attention_work &w, cudaStream_t s);

enum { ROW_KEYS_MAX = 640 };        /* logits of a row in the layout of tensor_attention_rows, whatever keys_max is */

/* Lists the keys of the rows, as tensor_attention does first; tensor_attention_rows is given the list. */
void tensor_keys(const dev &d, uint32_t first, uint32_t n, int layer, int part, int lo_kind, const attention_work &w,
                 chain s);

/* The same for whole rows, if the shape is that of the real model, or a rank's share of its heads: q as wq_b left it,
 * in bf16, which is rotated on the way; out packed [place, groups of heads, heads_per_group * head_dim], rotated back:
 * what wo_a reads. The kernel after it in s may begin before the last two launches here have ended: of what they write
 * (logits, out) it may read nothing before it waits. */
bool tensor_attention_rows_can(const dev &d, const cedar_layout &l, const attention_work &w);
int tensor_attention_rows_heads(void);      /* w.logits has room for so many, whatever d.heads is */
cudaError_t tensor_attention_prepare(void);
void tensor_attention_rows(const dev &d, uint32_t first, uint32_t n, int table_kind, const uint16_t *q,
                           const dev_weight &sink, int heads_per_group, const attention_work &w, bool woven,
                           uint16_t *out, chain s);

/* Scores as launch_scores, summed over the heads in a fixed tree. */
void tensor_scores(const dev &d, uint32_t first, uint32_t n, const float *iq, const float *g, int part, int ratio,
                   bool pooled, cudaStream_t s);

#endif
