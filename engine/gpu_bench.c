/* What a step must read and multiply at least; and, in a build without CUDA, the face of the operator bench. */
#include <string.h>

#include "engine/gpu_bench.h"
#include "engine/layout.h"
#include "engine/model_int.h"

typedef struct sum {
    const cedar_config *c;
    double experts, bytes;              /* of a decode step */
    double encoder, all;                /* multiply-adds a token */
} sum;

static bool has(const char *name, const char *part) { return strstr(name, part) != NULL; }

/* Layer of a backbone tensor, or -1. */
static int32_t layer_of(const char *name) {
    int32_t layer = 0;
    if (strncmp(name, "layers.", 7)) return -1;
    for (const char *p = name + 7; *p >= '0' && *p <= '9'; p++) layer = 10 * layer + (*p - '0');
    return layer;
}

/* A step fills the draft rings, which reads these of the drafter's weights. */
static bool fills_rings(const char *name) { return has(name, ".main_proj.") || has(name, ".attn.wkv."); }

static cedar_status add_bytes(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    sum *s = self;
    double bytes = (double)(cedar_tensor_data_bytes(t) + cedar_tensor_scale_bytes(t));
    if (!strcmp(t->name, "embed.weight") || has(t->name, ".engram.embed.")) return CEDAR_OK;
    if (!strncmp(t->name, "mtp.", 4) && !fills_rings(t->name)) return CEDAR_OK;
    s->bytes += has(t->name, ".experts.") ? bytes * s->experts / s->c->experts : bytes;
    return CEDAR_OK;
}

static double least(double a, double b) { return a < b ? a : b; }

/* Entries of its global cache that a layer picks from, and how many of them an index source scores, at `visible`
 * tokens. */
static double scored(const cedar_config *c, int32_t layer, double visible) {
    double entries = visible / c->ratio[layer];
    bool restricted = c->candidate_source >= 0 && layer > c->candidate_source;
    return restricted ? least(entries, (double)c->candidate_blocks * c->candidate_block) : entries;
}

cedar_status cedar_decode_bytes(const cedar_config *c, double experts, uint32_t batch, uint32_t context, double *bytes,
                                cedar_err *err) {
    sum s = { .c = c, .experts = experts };
    cedar_status st = cedar_tensors_visit(c, NULL, add_bytes, &s, err);
    if (st) return st;
    cedar_layout l;
    cedar_layout_make(c, (uint32_t)c->ratio_lcm, 0, &l);
    double row = 2.0 * c->hidden + (double)c->engram_rows_per_token * c->engram_layer_count * c->engram_dim * 33 / 32;
    for (int32_t i = 0; i < c->layers; i++) {
        row += least(c->window, context) * l.ring_row_bytes;
        if (c->ratio[i] > 0)
            row += least(c->index_topk, (double)context / c->ratio[i]) * (l.kv_code_bytes + l.kv_scale_bytes);
        if (c->is_index_source[i]) row += scored(c, i, context) * (l.index_code_bytes + l.index_scale_bytes);
    }
    *bytes = s.bytes + batch * row;
    return CEDAR_OK;
}

/* Matrices that all rows of a prompt go through; of the cut layer those of its keys count as the encoder's. */
static cedar_status add_products(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    sum *s = self;
    int32_t layer = layer_of(t->name);
    if (layer < 0 || t->ndim != 2 || has(t->name, ".engram.embed.") || has(t->name, "_weight")) return CEDAR_OK;
    double n = (double)t->rows * (double)t->cols;
    if (has(t->name, ".experts.")) n *= (double)s->c->experts_per_token / s->c->experts;
    bool keys = has(t->name, ".attn.wkv.") || has(t->name, ".compressor.") || has(t->name, ".indexer.wk.");
    s->all += n;
    if (layer < s->c->cut || (layer == s->c->cut && keys)) s->encoder += n;
    return CEDAR_OK;
}

/* Products of queries with keys and values, and of index queries with entries, of a row at `position`. */
static double attention_products(const cedar_config *c, int32_t layer, double position) {
    double keys = least(c->window, position + 1), index = 0;
    if (c->ratio[layer] > 0) keys += least(c->index_topk, (position + 1) / c->ratio[layer]);
    if (c->is_index_source[layer])
        index = scored(c, layer, position + 1) * (double)c->index_heads * (double)c->index_dim;
    return 2 * keys * (double)c->heads * (double)c->head_dim + index;
}

cedar_status cedar_prefill_flops(const cedar_config *c, uint32_t tokens, double *encoder, double *all, cedar_err *err) {
    sum s = { .c = c };
    cedar_status st = cedar_tensors_visit(c, NULL, add_products, &s, err);
    if (st) return st;
    s.encoder *= tokens;
    s.all *= tokens;
    for (int32_t i = 0; i < c->layers; i++)
        for (uint32_t p = 0; p < tokens; p++) {
            double n = attention_products(c, i, p);
            s.all += n;
            if (i < c->cut) s.encoder += n;
        }
    *encoder = 2 * s.encoder;
    *all = 2 * s.all;
    return CEDAR_OK;
}

/* --- without CUDA ------------------------------------------------------------------------------------------------- */

#ifndef CEDAR_HAVE_CUDA
static cedar_status missing(cedar_err *err) {
    return cedar_fail(err, CEDAR_E_UNSUPPORTED, "this build has no CUDA, which `cedar bench gpu` needs");
}

cedar_status cedar_gpu_device_find(cedar_gpu_device *out, cedar_err *err) {
    (void)out;
    return missing(err);
}

cedar_status cedar_gpu_bench_open(const cedar_config *c, cedar_gpu_bench **out, cedar_err *err) {
    (void)c;
    (void)out;
    return missing(err);
}

void cedar_gpu_bench_close(cedar_gpu_bench *b) { (void)b; }

uint32_t cedar_gpu_bench_count(const cedar_gpu_bench *b) {
    (void)b;
    return 0;
}

const cedar_gpu_row *cedar_gpu_bench_row(const cedar_gpu_bench *b, uint32_t row) {
    (void)b;
    (void)row;
    return NULL;
}

cedar_status cedar_gpu_bench_time(cedar_gpu_bench *b, uint32_t row, uint32_t warm, uint32_t repeat, double *us,
                                  cedar_err *err) {
    (void)b;
    (void)row;
    (void)warm;
    (void)repeat;
    (void)us;
    return missing(err);
}

cedar_status cedar_gpu_sums_open(const cedar_config *c, cedar_gpu_sums **out, cedar_err *err) {
    (void)c;
    (void)out;
    return missing(err);
}

void cedar_gpu_sums_close(cedar_gpu_sums *b) { (void)b; }

cedar_status cedar_gpu_sums_time(cedar_gpu_sums *b, cedar_sum_kind kind, uint32_t tokens, uint32_t warm,
                                 uint32_t repeat, double *us, cedar_err *err) {
    (void)b;
    (void)kind;
    (void)tokens;
    (void)warm;
    (void)repeat;
    (void)us;
    return missing(err);
}
#endif
