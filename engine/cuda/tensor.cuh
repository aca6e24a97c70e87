/* Private to engine/cuda: linear layers on tensor cores, bf16 arithmetic only.
 *
 * Contract (class D1): an output is the sum of SEGMENTS partial sums over consecutive parts of K, added in order; a
 * part is summed block by block of 32, each block by two m16n8k16 instructions whose other rows and columns cannot
 * change it. Neither the number of rows nor their place in a tile takes part, so any tile size gives the same bits.
 *
 * Two forms. Codes: FP8 or FP4 weights times FP8 activations; codes multiply exactly in f16, fp32 sums, and the two
 * power-of-two scales of each block of 32 come in afterwards (spec/model.md 3.2, 3.3). Plain: bf16 activations times
 * bf16 weights, or FP8 weights decoded to bf16, which is lossless. */
#ifndef CEDAR_ENGINE_CUDA_TENSOR_CUH
#define CEDAR_ENGINE_CUDA_TENSOR_CUH

#include "engine/cuda/ops.cuh"

enum { SEGMENTS = 8 };

/* FP8Q32 codes of activation rows: code [rows, K], scale [rows, K/32]. */
struct dev_codes {
    uint8_t *code, *scale;
};

/* Rows of a dense launch: row i of the result is made from row (list ? list[i] : i) * stride + first of the codes. */
struct row_map {
    const uint32_t *list;
    int stride, first;
};

/* FP8 codes of rows of x [*, K] floats, under the same row numbers: the listed ones, or rows 0 .. n-1. */
void tensor_pack(const float *x, const dev_codes &out, const uint32_t *list, uint32_t n, int64_t k_count,
                 cudaStream_t s);

/* y[i * ldy + n] = codes of row map(i) times rows [n_first, n_first + n_count) of w, rounded to bf16. w: TILES. */
void tensor_codes(const dev_weight &w, int64_t n_first, int64_t n_count, const dev_codes &x, const row_map &map,
                  uint32_t rows, float *y, int64_t ldy, cudaStream_t s);

/* Plain form; x floats that are bf16 values; w: BF16 or TILES; round: to bf16. `groups` blocks of n_count rows of w,
 * each with its own K columns of x and n_count columns of y, side by side; n_first with one group only. */
void tensor_plain(const dev_weight &w, int groups, const float *x, int64_t ldx, const uint32_t *list, uint32_t rows,
                  int64_t n_first, int64_t n_count, float *y, int64_t ldy, bool round, cudaStream_t s);

/* Routed experts: pairs (place, slot) sorted by expert, in tiles of one expert. */
struct expert_tiles {
    uint32_t *pairs;            /* [rows * per_token] place * (per_token + 1) + slot, by expert, then ascending */
    int32_t *tile_expert;       /* [tiles_max] */
    uint32_t *tile_first, *tile_count;
    uint32_t *tile_total;       /* [1] */
    uint32_t tiles_max;
};
uint32_t tensor_tiles_max(uint32_t rows, int per_token, int experts);
void tensor_sort(const int32_t *ids, uint32_t rows, int per_token, int experts, const expert_tiles &t, cudaStream_t s);

/* FP4 experts over the tiles: row of y and of the codes is pair (source_div 1) or pair / (per_token + 1). */
void tensor_experts(const dev_weight *list, int64_t n_count, int64_t k_count, const dev_codes &x, int source_div,
                    const expert_tiles &t, bool few, float *y, int64_t ldy, cudaStream_t s);

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

/* Scores as launch_scores, summed over the heads in a fixed tree. */
void tensor_scores(const dev &d, uint32_t first, uint32_t n, const float *iq, const float *g, int part, int ratio,
                   bool pooled, cudaStream_t s);

#endif
