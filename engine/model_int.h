/* Private to engine/: a model's weights as stored, by role. Read-only after loading.
 *
 * D hidden, n residual streams, H heads, d head_dim. Matrices are [out, in], row major, applied as y = x W^T. */
#ifndef CEDAR_ENGINE_MODEL_INT_H
#define CEDAR_ENGINE_MODEL_INT_H

#include "base/rng.h"
#include "engine/engine.h"

typedef enum cedar_weight_kind {
    CEDAR_W_NONE,       /* not present in this block */
    CEDAR_W_TILES,      /* E4M3 codes [rows, cols], UE8M0 scale per 32x32 tile [ceil(rows/32), ceil(cols/32)] */
    CEDAR_W_ROWS,       /* E4M3 codes [rows, cols], UE8M0 scale per row and 32 columns [rows, cols/32] (Engram table) */
    CEDAR_W_FP4,        /* E2M1 nibbles [rows, cols/2], low nibble = even column, UE8M0 scale [rows, cols/32] */
    CEDAR_W_BF16,       /* [rows, cols] */
    CEDAR_W_F32         /* [rows, cols] */
} cedar_weight_kind;

typedef struct cedar_weight {
    cedar_weight_kind kind;
    uint32_t index;             /* place in the order of cedar_tensors_visit, which sets it */
    int64_t rows, cols;         /* logical shape; vectors are [1, cols] */
    const uint8_t *data;        /* may be unaligned (mapped file) */
    const uint8_t *scale;       /* NULL for BF16 and F32 */
} cedar_weight;

typedef struct cedar_expert {
    cedar_weight w1, w2, w3;    /* gate [moe, D], down [D, moe], up [moe, D] */
} cedar_expert;

/* One block: a backbone layer or a draft stage (then experts = draft_experts and no source weights). */
typedef struct cedar_block {
    cedar_weight attn_norm, ffn_norm;                           /* [D] */
    cedar_weight hc_attn_fn, hc_attn_base, hc_attn_scale;       /* [(2+n)n, nD], [(2+n)n], [3] */
    cedar_weight hc_ffn_fn, hc_ffn_base, hc_ffn_scale;
    cedar_weight attn_sink;                                     /* [H] */
    cedar_weight wq_a, q_norm, wq_b, wkv, kv_norm, wo_a, wo_b;
    cedar_weight gate, gate_bias, gate_bias_vl;                 /* bias_vl: image tokens only, loaded and unused */
    cedar_expert *experts;                                      /* [experts] */
    cedar_expert shared;
    int32_t expert_count;
    cedar_weight comp_wkv, comp_wgate, comp_norm;               /* KV sources; wgate for ratio > 1 */
    cedar_weight index_wk, index_k_norm;                        /* KV sources */
    cedar_weight index_wq_b, index_weights_proj;                /* index sources */
    cedar_weight engram_embed, engram_wkv, engram_q, engram_k;  /* Engram layers */
} cedar_block;

struct cedar_model {
    cedar_config config;
    cedar_weight embed, head, norm;                             /* [vocab, D], [vocab, D], [D] */
    cedar_block *blocks;                                        /* [layers + stages] */
    cedar_weight main_proj, main_norm, draft_norm;              /* drafter: [D, targets*D], [D], [D] */
    cedar_weight markov_embed, markov_head, confidence;         /* [vocab, rank] twice, [1, D + rank] */
    int32_t *token_map;                                         /* [vocab] */
    bool seeded;                                                /* weights have shapes but no bytes: a backend makes */
    uint64_t seed;                                              /* them from this seed (synth.c) */
    char origin[256];                                           /* "checkpoint PATH" or "synthetic seed N" */
    bool kept;                                                  /* cedar_model_close leaves it alone */
    void *storage;                                              /* mapped files or owned bytes; checkpoint.c, synth.c */
    void (*storage_free)(void *storage);
};

/* Reads a config.json text; `path` goes into messages and names the shape. */
cedar_status cedar_config_parse(const char *text, size_t bytes, const char *path, cedar_config *out,
                                cedar_err *err) CEDAR_USE_RESULT;

/* An empty model of a shape: blocks and experts allocated, no weights, identity token map (id modulo the compressed
 * vocabulary). Owned by the caller (cedar_model_close). */
cedar_status cedar_model_new(const cedar_config *c, cedar_model **out, cedar_err *err) CEDAR_USE_RESULT;

/* From now on the model stays in memory until the program ends: a thread that cannot be ended may still read it. */
void cedar_model_keep(const cedar_model *m);

/* Angles of rotation per position, plain [rope_dim / 2] for window-only layers, yarn [rope_dim / 2] for layers that
 * read global KV (spec/model.md 2.3). The one place, so that all backends rotate by the same doubles. */
void cedar_rope_frequencies(const cedar_config *c, double *plain, double *yarn);

/* One logical tensor of a shape, without its companion scale. */
typedef struct cedar_tensor_info {
    char name[96];              /* official name, e.g. "layers.3.attn.wq_a.weight" */
    char scale_name[96];        /* "" when the kind has none */
    cedar_weight_kind kind;
    int64_t rows, cols;
    int ndim;                   /* as stored: 1 or 2 */
    cedar_weight *slot;         /* where it belongs in the model; NULL when the model is NULL */
} cedar_tensor_info;

/* Visits every text tensor of the shape in the official order. m may be NULL (counting only). A visit that returns
 * non-zero stops the walk, which returns it. */
cedar_status cedar_tensors_visit(const cedar_config *c, cedar_model *m,
                                 cedar_status (*visit)(void *self, const cedar_tensor_info *t, cedar_err *err),
                                 void *self, cedar_err *err) CEDAR_USE_RESULT;

/* Stored bytes of a tensor's data and of its scales. */
uint64_t cedar_tensor_data_bytes(const cedar_tensor_info *t);
uint64_t cedar_tensor_scale_bytes(const cedar_tensor_info *t);

/* How synthetic values of one tensor are made (synth.c): a pure function of seed, tensor and element, in integers only,
 * so that any device makes the same bits. */
enum { CEDAR_SYNTH_LEVELS = 1021 };     /* sums of four bytes: 0 .. 1020, nearly normal */

typedef struct cedar_synth_recipe {
    uint64_t key, scale_key;            /* streams of elements and of scale bytes (base/rng.h) */
    int64_t split;                      /* columns from here on use table[1] */
    uint8_t scale_base;                 /* scale byte i is scale_base + {0, 1, 2}[rng_below(scale_key, i, 3)] */
    uint32_t table[2][CEDAR_SYNTH_LEVELS];  /* stored bits of a level: a byte, a nibble, a bf16 or a float */
} cedar_synth_recipe;

void cedar_synth_recipe_make(uint64_t seed, const cedar_tensor_info *t, cedar_synth_recipe *out);

/* Sum of the four bytes. */
static inline uint32_t cedar_synth_sum(uint32_t half) {
    half = (half & 0x00ff00ffu) + (half >> 8 & 0x00ff00ffu);
    return (half & 0xffffu) + (half >> 16);
}

/* Level of element i (row major): the sum of the bytes of half i%2 (0 = low) of stream number i/2. */
static inline uint32_t cedar_synth_level(uint64_t key, uint64_t i) {
    return cedar_synth_sum((uint32_t)(cedar_rng_at(key, i >> 1) >> (i % 2 * 32)));
}

/* A safetensors file mapped read-only (safetensors.c). */
typedef struct cedar_safetensors cedar_safetensors;
typedef struct cedar_st_tensor {
    const char *name, *dtype;   /* dtype as written: F8_E4M3, F8_E8M0, I8, U8, BF16, F32, I32, I64, ... */
    int ndim;
    int64_t shape[8];
    const uint8_t *data;
    uint64_t bytes;
} cedar_st_tensor;

cedar_status cedar_st_open(const char *path, cedar_safetensors **out, cedar_err *err) CEDAR_USE_RESULT;
/* The same over a buffer (tests, fuzzing); the buffer is borrowed. */
cedar_status cedar_st_parse(const uint8_t *data, uint64_t bytes, const char *name, cedar_safetensors **out,
                            cedar_err *err) CEDAR_USE_RESULT;
void cedar_st_close(cedar_safetensors *s);
uint64_t cedar_st_count(const cedar_safetensors *s);
const cedar_st_tensor *cedar_st_at(const cedar_safetensors *s, uint64_t i);
const cedar_st_tensor *cedar_st_find(const cedar_safetensors *s, const char *name);   /* NULL if absent */

#endif
