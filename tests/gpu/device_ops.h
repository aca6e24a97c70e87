/* Launchers of engine/cuda for tests in C: each runs one operator and waits. Pointers are of the device unless they say
 * host; weights have their data on the device. A CUDA error ends the process with a message. */
#ifndef CEDAR_TESTS_GPU_DEVICE_OPS_H
#define CEDAR_TESTS_GPU_DEVICE_OPS_H

#ifdef __cplusplus
extern "C" {
#endif
#include "engine/layout.h"
#include "engine/model_int.h"

void gpu_start(void);                                   /* before the first launch of a process */
void *gpu_put(const void *host, size_t bytes);          /* host NULL: all bits set, which is a NaN everywhere */
void *gpu_put_codes(cedar_weight_kind kind, const uint8_t *host, size_t bytes);  /* a weight's, as kernels take them */
void gpu_get(void *host, const void *from, size_t bytes);
void gpu_drop(void *p);
int64_t gpu_padded(int64_t k);
int gpu_few_rows(void);
int gpu_scale_max(int kind);

/* Packed activations of a launch; see tensor.cuh. */
typedef struct gpu_operand {
    const uint16_t *x;
    const uint32_t *list;
    int stride, first;
    bool woven;
} gpu_operand;

void gpu_pack(const float *x, int64_t ldx, const uint32_t *list, uint32_t n, int64_t k, bool quantise, bool woven,
              uint16_t *out);
void gpu_norm(const float *x, int width, uint32_t n, const cedar_weight *gain, double eps, bool woven, uint16_t *out);
void gpu_linear(const cedar_weight *w, const gpu_operand *x, uint32_t rows, float *y, int64_t ldy, bool round);
void gpu_linear_two(const cedar_weight *w0, const cedar_weight *w1, const gpu_operand *x, uint32_t rows, float *y0,
                    float *y1, int64_t ldy, bool round);
void gpu_linear_beside(const cedar_weight *w0, const cedar_weight *w1, const gpu_operand *x, uint32_t rows, float *y0,
                       float *y1);                  /* rows without gaps, as they were summed */
void gpu_linear_aside(const cedar_weight *w, const gpu_operand *x, uint32_t rows, float *y);
void gpu_groups(const cedar_weight *w, int groups, const gpu_operand *x, uint32_t rows, float *y, int64_t ldy);

/* FP4 experts list (host) of `experts` weights, for `ids` (host) [rows, per_token]; x by token, or by pair. y [rows *
 * (per_token + 1), ldy]; unchosen rows of it are left alone. */
void gpu_experts(const cedar_weight *list, int experts, const int32_t *ids, uint32_t rows, int per_token,
                 const uint16_t *x, bool by_pair, bool woven, float *y);

/* Experts' gates and ups, activated; list (host) of `experts` gates, as many that are not read, and as many ups; ids,
 * weights (host) [rows, per_token]; x by token, plain -> out (host) [rows * (per_token + 1), padded outputs], 0xFFFF
 * where no expert was chosen. fused: by one launch. */
void gpu_gated(const cedar_weight *list, int experts, const int32_t *ids, const float *weights, uint32_t rows,
               int per_token, const uint16_t *x, double limit, bool fused, uint16_t *out);

/* Picks of `rows` (few) rows and their pairs by expert, all on the host. z [rows, experts], bias [experts] -> ids and
 * weights [rows, per_token], pairs [rows * per_token] up to the last one, tiles [rows * per_token][3] expert, first and
 * count of those that have pairs; returns their number. fused: by one launch. */
uint32_t gpu_route(const float *z, const float *bias, uint32_t rows, int experts, int per_token, bool fused,
                   int32_t *ids, float *weights, uint32_t *pairs, uint32_t (*tiles)[3]);

/* Streams h [n, 4, hidden] of n (few) rows expanded with y [n, hidden], or if that is NULL with the outputs of their
 * experts, out [n, per_token + 1, hidden] bf16 and ids [n, per_token]; then collapsed, normed and packed. All on the
 * host. Place i is row n - 1 - i, and coefficients and h are by row; the results by row if `indexed`. fused: by one
 * launch. */
typedef struct gpu_streams {
    int hidden, per_token;
    uint32_t n;
    const float *pre, *post, *comb;     /* [n, 4], [n, 4], [n, 4, 4] */
    const float *y;
    const int32_t *ids;
    const uint16_t *out, *gain;
    bool indexed;
} gpu_streams;
void gpu_expand_collapse(const gpu_streams *x, bool fused, uint16_t *h, uint16_t *plain, uint16_t *quantised);
/* Activations of rows * (per_token + 1) pairs, all on the host: a, b [pairs, dim] bf16, weight [rows, per_token] -> out
 * [pairs, padded dim]. split: the last slot of each row by a launch of its own. */
void gpu_act(const uint16_t *a, const uint16_t *b, const float *weight, uint32_t rows, int per_token, int dim,
             double limit, bool split, bool woven, uint16_t *out);

/* One sequence of a model's shape with rows at its end: caches from host bytes. */
typedef struct gpu_world gpu_world;
typedef struct gpu_rows {
    uint32_t count, pos;                /* rows at pos, pos + 1, ... of one entry */
    uint32_t lo;                        /* first window position that may be read */
} gpu_rows;
gpu_world *gpu_world_open(const cedar_config *c, const cedar_layout *l, uint32_t context, const uint8_t *pages,
                          uint32_t page_count, const uint8_t *rings, const uint8_t *window_rows, const gpu_rows *rows);
void gpu_world_close(gpu_world *w);
/* iq [count, heads, dim], g [count, heads] -> host scores [count, context] */
void gpu_scores(gpu_world *w, const float *iq, const float *g, int part, int ratio, float *scores);
/* host scores [count, context] -> host ids [count, topk] */
void gpu_select(gpu_world *w, const float *scores, int ratio, int32_t *ids);
/* Best k of row r's first pos[r] + 1 scores, of `context` each. */
void gpu_select_long(const float *scores, uint32_t count, uint32_t context, const uint32_t *pos, int k, int32_t *ids);
/* Of blocks of `block` of them, the best k by their best scores; picked [count] of each row. */
void gpu_pool_long(const float *scores, uint32_t count, uint32_t context, const uint32_t *pos, int block, int k,
                   int32_t *ids, int32_t *picked);
/* q [count, heads, head_dim] as wq_b leaves it, host ids [count, topk] (NULL: none) -> host packed [count, heads *
 * head_dim], rotated back. many: by the kernels for many rows, woven. */
bool gpu_attention_can(const gpu_world *w);
void gpu_attention(gpu_world *w, const float *q, const float *sink, const int32_t *ids, int layer, int part,
                   int table_kind, bool many, uint16_t *out);
/* A rank's share: heads [first, first + heads) of q and sink, after gpu_attention of the same rows -> out [count,
 * heads * head_dim]. */
void gpu_attention_share(gpu_world *w, const float *q, const float *sink, int table_kind, int first, int heads,
                         bool many, uint16_t *out);

#ifdef __cplusplus
}
#endif
#endif
