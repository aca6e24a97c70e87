/* Synthetic weights: seeded values for any shape, made in memory.
 *
 * Recipe. Element i of a tensor gets a level, the sum of four bytes of the tensor's own random stream: 0 .. 1020, mean
 * 510, nearly normal. z = (level - 510) / SIGMA has variance 1 and never exceeds 3.46. What is stored for a level is
 * looked up in a table of 1021 entries made once per tensor, so elements need integer operations only, in any order.
 * A tensor's value is mean + spread * z, spread divided by sqrt(columns) where it multiplies activations.
 * Quantised kinds hold the code of spread * z at a fixed power-of-two scale that uses the code's whole range; a block's
 * scale byte then moves the block by a factor 1/2, 1 or 2, over 1.3229 so that the variance stays.
 *
 * The spreads are chosen so that every mechanism matters but one rounding flip does not decide everything: a random
 * model with quantised activations is chaotic where branches are as large as the residual. So branch outputs (wo_b, w2,
 * Engram) are a few percent of the residual, the embedding lives in the first 3/4 of the channels, and the head mostly
 * reads the last quarter, where only branch outputs are found. Norm gains are about 1, attention sinks about 0.5.
 *
 * Class D0 on every machine: host arithmetic is +, -, *, / and sqrt in double, each correctly rounded.
 * Ownership: one block of bytes, the model's storage. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/model_int.h"
#include "engine/quant.h"

enum { MIDDLE = (CEDAR_SYNTH_LEVELS - 1) / 2, ALIGN = 64 };
static const double SIGMA = 147.80054127099805;         /* sqrt(4 * (256^2 - 1) / 12) */
static const double SCALE_SPREAD = 1.3228756555322954;  /* sqrt((1/4 + 1 + 4) / 3) */

/* Values of the tensors whose name contains `part`; the last match counts. */
typedef struct rule {
    const char *part;
    double mean, spread;
    bool fan_in;                /* spread is divided by sqrt(columns) */
    double lo, hi;              /* clamp; lo == hi: none */
    double tail;                /* columns from 3/4 on: spread times this; 0 = like the others */
    double body;                /* columns before 3/4: spread times this; 0 = like the others */
} rule;

static const rule rules[] = {
    { "", .spread = 1, .fan_in = true },
    { "hc_attn_base", .spread = 0.5 },
    { "hc_ffn_base", .spread = 0.5 },
    { "hc_attn_scale", .mean = 1.1, .spread = 0.29, .lo = 0.6, .hi = 1.6 },
    { "hc_ffn_scale", .mean = 1.1, .spread = 0.29, .lo = 0.6, .hi = 1.6 },
    { "attn_sink", .mean = 0.5, .spread = 1 },
    { "gate.bias", .spread = 0.25 },
    { "norm.weight", .mean = 1, .spread = 0.3, .lo = 0.1, .hi = 4 },
    { "engram.q_weight", .mean = 1, .spread = 0.3, .lo = 0.1, .hi = 4 },
    { "engram.k_weight", .mean = 1, .spread = 0.3, .lo = 0.1, .hi = 4 },
    { "engram.embed", .spread = 1 },
    { "engram.wkv", .spread = 0.06, .fan_in = true },
    { "attn.wq_b", .spread = 1.6, .fan_in = true },
    { "indexer.wq_b", .spread = 1.6, .fan_in = true },
    { "indexer.weights_proj", .spread = 1.5, .fan_in = true },
    { "compressor.wgate", .spread = 2, .fan_in = true },
    { "attn.wo_a", .spread = 1.7, .fan_in = true },
    { "attn.wo_b", .spread = 0.026, .fan_in = true },
    { "ffn.gate.weight", .spread = 1.5, .fan_in = true },
    { ".w2.weight", .spread = 0.04, .fan_in = true },
    { "markov_head.embed", .spread = 1 },
    { "markov_head.head", .spread = 1.5, .fan_in = true },
    { "confidence_head", .spread = 1.5, .fan_in = true },
};

/* The two whose short names are part of other names. */
static const rule embed_rule = { "embed.weight", .spread = 1, .tail = 0.03 };
static const rule head_rule = { "head.weight", .spread = 28, .fan_in = true, .body = 0.006 };

static const rule *find_rule(const char *name) {
    if (!strcmp(name, embed_rule.part)) return &embed_rule;
    if (!strcmp(name, head_rule.part)) return &head_rule;
    size_t i = sizeof rules / sizeof rules[0] - 1;
    while (!strstr(name, rules[i].part)) i--;           /* "" matches */
    return &rules[i];
}

/* Stored bits of x; `unit` is the value of code 1 in quantised kinds. */
static uint32_t stored_bits(cedar_weight_kind kind, double x, double unit) {
    float f = (float)x;
    uint32_t bits;
    switch (kind) {
    case CEDAR_W_TILES:
    case CEDAR_W_ROWS: return cedar_e4m3_encode(x / unit);
    case CEDAR_W_FP4: return cedar_e2m1_encode(x / unit);
    case CEDAR_W_BF16: f = cedar_bf16_round(f); break;
    case CEDAR_W_F32:
    case CEDAR_W_NONE: break;
    }
    memcpy(&bits, &f, sizeof bits);
    return kind == CEDAR_W_BF16 ? bits >> 16 : bits;
}

/* Exponent of the smallest power of two that brings `top` down to `code_max`. */
static int fit_exponent(double top, double code_max) {
    int e = 0;
    double unit = 1;
    while (top > code_max * unit) { unit *= 2; e++; }
    while (top <= code_max * unit / 2) { unit /= 2; e--; }
    return e;
}

static double power_of_two(int e) {
    double x = 1;
    for (; e > 0; e--) x *= 2;
    for (; e < 0; e++) x /= 2;
    return x;
}

static void fill_table(const rule *r, const cedar_tensor_info *t, double spread, double unit, uint32_t *table) {
    for (int level = 0; level < CEDAR_SYNTH_LEVELS; level++) {
        double x = r->mean + spread * ((level - MIDDLE) / SIGMA);
        if (r->lo < r->hi) x = x < r->lo ? r->lo : x > r->hi ? r->hi : x;
        table[level] = stored_bits(t->kind, x, unit);
    }
}

void cedar_synth_recipe_make(uint64_t seed, const cedar_tensor_info *t, cedar_synth_recipe *out) {
    const rule *r = find_rule(t->name);
    double spread = r->fan_in ? r->spread / __builtin_sqrt((double)t->cols) : r->spread, unit = 1;
    *out = (cedar_synth_recipe){ .key = cedar_rng_key(seed, t->name), .split = t->cols };
    if (t->scale_name[0]) {
        spread /= SCALE_SPREAD;
        int e = fit_exponent(spread * (MIDDLE / SIGMA), t->kind == CEDAR_W_FP4 ? 6 : 448);
        unit = power_of_two(e);
        out->scale_base = (uint8_t)(127 + e - 1);
        out->scale_key = cedar_rng_key(seed, t->scale_name);
    }
    if (r->tail > 0 || r->body > 0) out->split = t->cols * 3 / 4;
    fill_table(r, t, spread * (r->body > 0 ? r->body : 1), unit, out->table[0]);
    fill_table(r, t, spread * (r->tail > 0 ? r->tail : 1), unit, out->table[1]);
}

/* --- filling ------------------------------------------------------------------------------------------------------ */

static inline void store_bits(cedar_weight_kind kind, uint8_t *data, uint64_t i, uint32_t bits) {
    switch (kind) {
    case CEDAR_W_TILES:
    case CEDAR_W_ROWS: data[i] = (uint8_t)bits; break;
    case CEDAR_W_FP4: data[i / 2] |= (uint8_t)(bits << (i % 2 * 4)); break;
    case CEDAR_W_BF16:
        data[2 * i] = (uint8_t)bits;
        data[2 * i + 1] = (uint8_t)(bits >> 8);
        break;
    case CEDAR_W_F32:
        for (uint64_t b = 0; b < 4; b++) data[4 * i + b] = (uint8_t)(bits >> (8 * b));
        break;
    case CEDAR_W_NONE: break;
    }
}

/* All elements of a tensor with one table. Inlined with a constant kind: this loop makes billions of elements. */
static inline __attribute__((always_inline)) void fill_flat(cedar_weight_kind kind, const cedar_synth_recipe *r,
                                                            uint64_t count, uint8_t *data) {
    const uint32_t *table = r->table[0];
    for (uint64_t i = 0; i + 1 < count; i += 2) {
        uint64_t word = cedar_rng_at(r->key, i / 2);
        store_bits(kind, data, i, table[cedar_synth_sum((uint32_t)word)]);
        store_bits(kind, data, i + 1, table[cedar_synth_sum((uint32_t)(word >> 32))]);
    }
    if (count % 2) store_bits(kind, data, count - 1, table[cedar_synth_level(r->key, count - 1)]);
}

/* Rows whose columns from `split` on use the second table. */
static void fill_split(const cedar_tensor_info *t, const cedar_synth_recipe *r, uint8_t *data) {
    for (int64_t row = 0; row < t->rows; row++) {
        for (int64_t col = 0; col < t->cols; col++) {
            uint64_t i = (uint64_t)(row * t->cols + col);
            store_bits(t->kind, data, i, r->table[col >= r->split][cedar_synth_level(r->key, i)]);
        }
    }
}

static void fill_data(const cedar_tensor_info *t, const cedar_synth_recipe *r, uint8_t *data) {
    uint64_t count = (uint64_t)t->rows * (uint64_t)t->cols;
    if (r->split < t->cols) {
        fill_split(t, r, data);
        return;
    }
    switch (t->kind) {
    case CEDAR_W_TILES:
    case CEDAR_W_ROWS: fill_flat(CEDAR_W_TILES, r, count, data); break;
    case CEDAR_W_FP4: fill_flat(CEDAR_W_FP4, r, count, data); break;
    case CEDAR_W_BF16: fill_flat(CEDAR_W_BF16, r, count, data); break;
    case CEDAR_W_F32: fill_flat(CEDAR_W_F32, r, count, data); break;
    case CEDAR_W_NONE: break;
    }
}

typedef struct filler {
    uint64_t seed;
    uint8_t *bytes;             /* NULL while counting; zeroed */
    uint64_t used;
} filler;

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static cedar_status count_tensor(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    filler *f = self;
    f->used += aligned(cedar_tensor_data_bytes(t)) + aligned(cedar_tensor_scale_bytes(t));
    return CEDAR_OK;
}

static cedar_status fill_tensor(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    filler *f = self;
    cedar_synth_recipe r;
    uint8_t *data = f->bytes + f->used, *scale = data + aligned(cedar_tensor_data_bytes(t));
    uint64_t scales = cedar_tensor_scale_bytes(t);
    cedar_synth_recipe_make(f->seed, t, &r);
    fill_data(t, &r, data);
    for (uint64_t i = 0; i < scales; i++) scale[i] = (uint8_t)(r.scale_base + cedar_rng_below(r.scale_key, i, 3));
    *t->slot = (cedar_weight){
        .kind = t->kind, .rows = t->rows, .cols = t->cols, .data = data, .scale = scales ? scale : NULL
    };
    f->used += aligned(cedar_tensor_data_bytes(t)) + aligned(scales);
    return CEDAR_OK;
}

cedar_status cedar_model_synth(const cedar_config *config, uint64_t seed, uint64_t bytes_max, cedar_model **out,
                               cedar_err *err) {
    filler f = { .seed = seed };
    cedar_model *m = NULL;
    cedar_status st = cedar_tensors_visit(config, NULL, count_tensor, &f, err);
    if (st) return st;
    if (f.used > bytes_max)
        return cedar_fail(err, CEDAR_E_BUDGET,
                          "synthetic weights of \"%s\" need %llu bytes, but only %llu are allowed; take a "
                          "smaller shape or allow more",
                          config->name, (unsigned long long)f.used, (unsigned long long)bytes_max);
    if ((st = cedar_model_new(config, &m, err))) return st;
    f.bytes = cedar_calloc(f.used, 1);
    if (!f.bytes) {
        st = cedar_fail(err, CEDAR_E_OOM, "synthetic weights of \"%s\" need %llu bytes, which the system refused",
                        config->name, (unsigned long long)f.used);
        goto done;
    }
    m->storage = f.bytes;
    m->storage_free = cedar_free;
    f.used = 0;
    if ((st = cedar_tensors_visit(config, m, fill_tensor, &f, err))) goto done;
    snprintf(m->origin, sizeof m->origin, "synthetic seed %llu", (unsigned long long)seed);
    *out = m;
    m = NULL;
done:
    cedar_model_close(m);
    return st;
}

static cedar_status shape_tensor(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)self;
    (void)err;
    *t->slot = (cedar_weight){ .kind = t->kind, .rows = t->rows, .cols = t->cols };
    return CEDAR_OK;
}

cedar_status cedar_model_seeded(const cedar_config *config, uint64_t seed, cedar_model **out, cedar_err *err) {
    cedar_model *m = NULL;
    cedar_status st = cedar_model_new(config, &m, err);
    if (!st) st = cedar_tensors_visit(config, m, shape_tensor, NULL, err);
    if (st) {
        cedar_model_close(m);
        return st;
    }
    m->seeded = true;
    m->seed = seed;
    snprintf(m->origin, sizeof m->origin, "synthetic seed %llu", (unsigned long long)seed);
    *out = m;
    return CEDAR_OK;
}
