/* Model shapes: reads config.json and checks every assumption the engine makes about it.
 *
 * Owns the rules of the published configuration: which keys there are, their bounds, how they hang together, and what
 * follows from them (sources, cut, Engram primes and multipliers). Bounds are chosen so that no product of sizes of an
 * accepted shape overflows 63 bits. Allocation: the JSON document only, freed before return. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/rng.h"
#include "engine/model_int.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* An integer key and where it goes. A value must lie in [lo, hi] and be a multiple of `multiple`. */
typedef struct int_key {
    const char *key;
    size_t offset;
    int32_t lo, hi, multiple;
} int_key;

typedef struct real_key {
    const char *key;
    size_t offset;
    double lo, hi;
} real_key;

#define AT(field) offsetof(cedar_config, field)

static const int_key shape_ints[] = {
    { "vocab_size", AT(vocab), 1, 1 << 22, 1 },
    { "hidden_size", AT(hidden), 32, 1 << 16, 32 },
    { "num_hidden_layers", AT(layers), 1, CEDAR_LAYERS_MAX, 1 },
    { "num_attention_heads", AT(heads), 1, 1024, 1 },
    { "head_dim", AT(head_dim), 32, 4096, 32 },
    { "qk_rope_head_dim", AT(rope_dim), 2, 4096, 2 },
    { "q_lora_rank", AT(q_lora), 32, 1 << 16, 32 },
    { "o_groups", AT(o_groups), 1, 1024, 1 },
    { "o_lora_rank", AT(o_lora), 1, 1 << 16, 1 },
    { "sliding_window", AT(window), 1, 1 << 16, 1 },
    { "index_n_heads", AT(index_heads), 1, 1024, 1 },
    { "index_head_dim", AT(index_dim), 32, 4096, 32 },
    { "index_topk", AT(index_topk), 1, 1 << 16, 1 },
    { "max_position_embeddings", AT(positions_max), 1, 1 << 30, 1 },
    { "n_routed_experts", AT(experts), 1, 4096, 1 },
    { "num_experts_per_tok", AT(experts_per_token), 1, CEDAR_EXPERTS_PER_TOKEN_MAX, 1 },
    { "moe_intermediate_size", AT(moe_dim), 32, 1 << 16, 32 },
    { "hc_mult", AT(hc), 1, CEDAR_HC_MAX, 1 },
    { "hc_sinkhorn_iters", AT(hc_iters), 1, 1000, 1 },
    { "num_nextn_predict_layers", AT(stages), 0, CEDAR_LAYERS_MAX - 1, 1 },
};

static const real_key shape_reals[] = {
    { "rope_theta", AT(rope_theta), 1, 1e12 },
    { "compress_rope_theta", AT(compress_theta), 1, 1e12 },
    { "routed_scaling_factor", AT(route_scale), 1e-6, 1e6 },
    { "swiglu_limit", AT(swiglu_limit), 0, 1e6 },
    { "hc_eps", AT(hc_eps), 0, 0.1 },
    { "rms_norm_eps", AT(norm_eps), 0, 0.1 },
};

static const real_key yarn_reals[] = {
    { "factor", AT(yarn_factor), 1, 1e6 },
    { "beta_fast", AT(yarn_beta_fast), 1e-3, 1e6 },
    { "beta_slow", AT(yarn_beta_slow), 1e-3, 1e6 },
};

static const int_key yarn_ints[] = {
    { "original_max_position_embeddings", AT(yarn_original), 1, 1 << 30, 1 },
};

static const int_key candidate_ints[] = {
    { "candidate_topk_blocks", AT(candidate_blocks), 1, 1 << 24, 1 },
    { "candidate_block_size", AT(candidate_block), 1, 1 << 16, 1 },
};

static const int_key engram_ints[] = {
    { "engram_max_ngram_size", AT(ngram), 2, CEDAR_NGRAM_MAX, 1 },
    { "engram_n_heads", AT(engram_heads), 1, CEDAR_ENGRAM_ROWS_MAX, 1 },
    { "engram_head_dim", AT(engram_dim), 32, 4096, 32 },
    { "engram_compressed_vocab_size", AT(engram_vocab_compressed), 1, 1 << 22, 1 },
};

static const int_key draft_ints[] = {
    { "dspark_block_size", AT(draft_block), 1, 64, 1 },
    { "dspark_noise_token_id", AT(draft_noise), 0, (1 << 22) - 1, 1 },
    { "dspark_markov_rank", AT(markov_rank), 1, 1 << 16, 1 },
    { "dspark_n_routed_experts", AT(draft_experts), 1, 4096, 1 },
    { "dspark_num_experts_per_tok", AT(draft_experts_per_token), 1, CEDAR_EXPERTS_PER_TOKEN_MAX, 1 },
};

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* --- single keys -------------------------------------------------------------------------------------------------- */

static cedar_status read_ints(const cedar_json *o, const char *where, const int_key *keys, size_t count,
                              cedar_config *c, cedar_err *err) {
    for (size_t i = 0; i < count; i++) {
        int64_t v;
        cedar_status st = cedar_json_int(o, where, keys[i].key, keys[i].lo, keys[i].hi, &v, err);
        if (st) return st;
        if (v % keys[i].multiple)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is %lld, it must be a multiple of %d", where,
                              keys[i].key, (long long)v, keys[i].multiple);
        int32_t narrow = (int32_t)v;
        memcpy((char *)c + keys[i].offset, &narrow, sizeof narrow);
    }
    return CEDAR_OK;
}

static cedar_status read_reals(const cedar_json *o, const char *where, const real_key *keys, size_t count,
                               cedar_config *c, cedar_err *err) {
    for (size_t i = 0; i < count; i++) {
        double v;
        cedar_status st = cedar_json_real(o, where, keys[i].key, keys[i].lo, keys[i].hi, &v, err);
        if (st) return st;
        memcpy((char *)c + keys[i].offset, &v, sizeof v);
    }
    return CEDAR_OK;
}

/* A list of layers: each in [0, layers), strictly ascending. */
static cedar_status read_layers(const cedar_json *o, const char *where, const char *key, int32_t layers,
                                size_t count_max, int32_t *out, int32_t *count, cedar_err *err) {
    int64_t v[CEDAR_LAYERS_MAX];
    size_t n;
    cedar_status st = cedar_json_ints(o, where, key, 0, layers - 1, count_max, v, &n, err);
    if (st) return st;
    for (size_t i = 0; i < n; i++) {
        if (i && v[i] <= v[i - 1])
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" must ascend, but %lld follows %lld", where, key,
                              (long long)v[i], (long long)v[i - 1]);
        out[i] = (int32_t)v[i];
    }
    *count = (int32_t)n;
    return CEDAR_OK;
}

static cedar_status want_string(const cedar_json *o, const char *where, const char *key, const char *want,
                                cedar_err *err) {
    const char *v;
    cedar_status st = cedar_json_string(o, where, key, &v, err);
    if (st || !strcmp(v, want)) return st;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is \"%s\", only \"%s\" is supported", where, key, v, want);
}

static cedar_status want_bool(const cedar_json *o, const char *where, const char *key, bool want, cedar_err *err) {
    bool v;
    cedar_status st = cedar_json_bool(o, where, key, &v, err);
    if (st || v == want) return st;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is %s, only %s is supported", where, key, v ? "true" : "false",
                      want ? "true" : "false");
}

/* Keys with one supported value. Those of the second list may be absent. */
static cedar_status check_constants(const cedar_json *t, const char *where, cedar_err *err) {
    cedar_status st;
    int64_t one;
    double temperature;
    if ((st = cedar_json_int(t, where, "num_key_value_heads", 1, 1, &one, err))) return st;
    if ((st = cedar_json_int(t, where, "n_shared_experts", 1, 1, &one, err))) return st;
    if ((st = want_string(t, where, "scoring_func", "sqrtsoftplus", err))) return st;
    if ((st = want_string(t, where, "topk_method", "noaux_tc", err))) return st;
    if ((st = want_string(t, where, "hidden_act", "silu", err))) return st;
    if ((st = want_bool(t, where, "norm_topk_prob", true, err))) return st;
    if (cedar_json_has(t, "model_type") && (st = want_string(t, where, "model_type", "deepseek_v41_text", err)))
        return st;
    if (cedar_json_has(t, "attention_bias") && (st = want_bool(t, where, "attention_bias", false, err))) return st;
    if (cedar_json_has(t, "tie_word_embeddings") && (st = want_bool(t, where, "tie_word_embeddings", false, err)))
        return st;
    if (cedar_json_has(t, "gate_temp") && (st = cedar_json_real(t, where, "gate_temp", 1, 1, &temperature, err)))
        return st;
    if (cedar_json_has(t, "n_group") && (st = cedar_json_int(t, where, "n_group", 1, 1, &one, err))) return st;
    if (cedar_json_has(t, "topk_group") && (st = cedar_json_int(t, where, "topk_group", 1, 1, &one, err))) return st;
    return CEDAR_OK;
}

static cedar_status check_quantization(const cedar_json *doc, const char *name, cedar_err *err) {
    if (!cedar_json_has(doc, "quantization_config")) return CEDAR_OK;
    char where[160];
    snprintf(where, sizeof where, "%.100s: quantization_config", name);
    const cedar_json *q;
    int64_t block[2] = { 0, 0 };
    size_t n;
    cedar_status st;
    if ((st = cedar_json_object(doc, name, "quantization_config", &q, err))) return st;
    if ((st = want_string(q, where, "quant_method", "fp8", err))) return st;
    if ((st = want_string(q, where, "scale_fmt", "ue8m0", err))) return st;
    if ((st = want_string(q, where, "expert_dtype", "fp4", err))) return st;
    if ((st = cedar_json_ints(q, where, "weight_block_size", 1, 1 << 20, 2, block, &n, err))) return st;
    if (n != 2 || block[0] != 32 || block[1] != 32)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"weight_block_size\" is not [32, 32], the only block that is supported", where);
    return CEDAR_OK;
}

/* --- layer schedule ----------------------------------------------------------------------------------------------- */

static int32_t gcd(int32_t a, int32_t b) {
    while (b) {
        int32_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static cedar_status read_ratios(const cedar_json *t, const char *where, cedar_config *c, cedar_err *err) {
    int64_t v[CEDAR_LAYERS_MAX];
    size_t n;
    cedar_status st = cedar_json_ints(t, where, "compress_ratios", 0, CEDAR_RATIO_MAX, CEDAR_LAYERS_MAX, v, &n, err);
    if (st) return st;
    if (n != (size_t)(c->layers + c->stages))
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"compress_ratios\" has %zu entries, it needs one for each of %d layers "
                          "and %d draft layers",
                          where, n, c->layers, c->stages);
    for (size_t i = 0; i < n; i++) {
        if (i >= (size_t)c->layers && v[i])
            return cedar_fail(err, CEDAR_E_FORMAT,
                              "%s: \"compress_ratios\"[%zu] is %lld, but a draft layer only has a window "
                              "(0)",
                              where, i, (long long)v[i]);
        c->ratio[i] = (int32_t)v[i];
    }
    return CEDAR_OK;
}

/* Which source every layer reads, by the rule of slots: a KV source overwrites what later layers read. */
static cedar_status follow_sources(const char *where, cedar_config *c, cedar_err *err) {
    int32_t source = -1;
    c->ratio_lcm = 1;
    for (int32_t i = 0; i < c->layers + c->stages; i++) {
        c->kv_source_of[i] = -1;
        if (c->is_kv_source[i]) {
            source = i;
            c->ratio_lcm = c->ratio_lcm / gcd(c->ratio_lcm, c->ratio[i]) * c->ratio[i];
        }
        if (!c->ratio[i]) continue;
        if (source < 0)
            return cedar_fail(err, CEDAR_E_FORMAT,
                              "%s: layer %d is the first with a compress ratio above 0, so it must be in "
                              "\"kv_source_layer_ids\"",
                              where, i);
        if (c->ratio[i] != c->ratio[source])
            return cedar_fail(err, CEDAR_E_FORMAT,
                              "%s: \"compress_ratios\"[%d] is %d, but the layer reads the KV of layer %d, "
                              "which has ratio %d",
                              where, i, c->ratio[i], source, c->ratio[source]);
        c->kv_source_of[i] = source;
    }
    return CEDAR_OK;
}

static cedar_status read_sources(const cedar_json *t, const char *where, cedar_config *c, cedar_err *err) {
    int32_t index[CEDAR_LAYERS_MAX], index_count;
    cedar_status st = read_layers(t, where, "kv_source_layer_ids", c->layers, CEDAR_LAYERS_MAX, c->kv_sources,
                                  &c->kv_source_count, err);
    if (st) return st;
    if ((st = read_layers(t, where, "index_source_layer_ids", c->layers, CEDAR_LAYERS_MAX, index, &index_count, err)))
        return st;
    if (!c->kv_source_count)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"kv_source_layer_ids\" is empty, the model needs at least one",
                          where);
    for (int32_t i = 0; i < index_count; i++) c->is_index_source[index[i]] = true;
    for (int32_t i = 0; i < c->kv_source_count; i++) {
        int32_t layer = c->kv_sources[i];
        c->is_kv_source[layer] = true;
        if (!c->is_index_source[layer])
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: layer %d is in \"kv_source_layer_ids\", so it must be in "
                              "\"index_source_layer_ids\" too", where, layer);
    }
    for (int32_t i = 0; i < index_count; i++)
        if (!c->ratio[index[i]])
            return cedar_fail(err, CEDAR_E_FORMAT,
                              "%s: layer %d is a source, but its \"compress_ratios\" entry is 0 (window "
                              "only)",
                              where, index[i]);
    c->cut = c->kv_sources[c->kv_source_count - 1];
    return follow_sources(where, c, err);
}

static cedar_status read_candidates(const cedar_json *t, const char *where, cedar_config *c, cedar_err *err) {
    int64_t source;
    cedar_status st = cedar_json_int(t, where, "candidate_source_layer_id", INT32_MIN, c->layers - 1, &source, err);
    if (st) return st;
    c->candidate_source = source < 0 ? -1 : (int32_t)source;
    if (source < 0) return CEDAR_OK;
    if ((st = read_ints(t, where, candidate_ints, COUNT(candidate_ints), c, err))) return st;
    if (source != c->cut)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"candidate_source_layer_id\" is %lld, it must be the last KV source, layer "
                          "%d",
                          where, (long long)source, c->cut);
    if ((int64_t)c->candidate_blocks * c->candidate_block < c->index_topk)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"candidate_topk_blocks\" %d times \"candidate_block_size\" %d must reach "
                          "\"index_topk\" %d",
                          where, c->candidate_blocks, c->candidate_block, c->index_topk);
    return CEDAR_OK;
}

/* --- Engram ------------------------------------------------------------------------------------------------------- */

static bool is_prime(int64_t x) {
    for (int64_t q = 2; q * q <= x; q++)
        if (x % q == 0) return false;
    return x > 1;
}

/* Consecutive primes from engram_vocab_size on: every (n-gram size, head) of every Engram layer gets the next one. */
static void fill_primes(cedar_config *c) {
    int64_t x = c->engram_vocab;
    for (int32_t e = 0; e < c->engram_layer_count; e++) {
        c->engram_rows[e] = 0;
        for (int32_t i = 0; i < c->engram_rows_per_token; i++) {
            while (!is_prime(x)) x++;
            c->engram_prime[e][i] = x;
            c->engram_offset[e][i] = c->engram_rows[e];
            c->engram_rows[e] += x++;
        }
    }
}

/* The published rule: odd numbers from numpy's default_rng(10007 * layer), small enough that a multiplier times a
 * compressed id stays below 2^63. */
static void derive_multipliers(cedar_config *c) {
    uint64_t bound = (uint64_t)INT64_MAX / (uint64_t)c->engram_vocab_compressed / 2;
    for (int32_t e = 0; e < c->engram_layer_count; e++) {
        cedar_pcg64 g;
        cedar_pcg64_seed(&g, 10007 * (uint64_t)c->engram_layers[e]);
        for (int32_t k = 0; k < c->ngram; k++) c->engram_mul[e][k] = (int64_t)(cedar_pcg64_integers(&g, bound) * 2 + 1);
    }
}

static cedar_status read_multiplier_row(const json_t *row, const char *where, int32_t e, cedar_config *c,
                                        cedar_err *err) {
    int64_t hi = INT64_MAX / c->engram_vocab_compressed;
    if (!json_is_array(row) || json_array_size(row) != (size_t)c->ngram)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"engram_multipliers\"[%d] must be an array of %d integers, one for each "
                          "look-back",
                          where, e, c->ngram);
    for (int32_t k = 0; k < c->ngram; k++) {
        const json_t *v = json_array_get(row, (size_t)k);
        int64_t m = json_is_integer(v) ? json_integer_value(v) : 0;
        if (m < 1 || m > hi || m % 2 == 0)
            return cedar_fail(err, CEDAR_E_FORMAT,
                              "%s: \"engram_multipliers\"[%d][%d] must be an odd integer from 1 to %lld", where, e, k,
                              (long long)hi);
        c->engram_mul[e][k] = m;
    }
    return CEDAR_OK;
}

static cedar_status read_multipliers(const cedar_json *t, const char *where, cedar_config *c, cedar_err *err) {
    const json_t *rows = json_object_get(t, "engram_multipliers");
    if (!json_is_array(rows) || json_array_size(rows) != (size_t)c->engram_layer_count)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"engram_multipliers\" must be an array of %d rows, one for each Engram "
                          "layer",
                          where, c->engram_layer_count);
    for (int32_t e = 0; e < c->engram_layer_count; e++) {
        cedar_status st = read_multiplier_row(json_array_get(rows, (size_t)e), where, e, c, err);
        if (st) return st;
    }
    return CEDAR_OK;
}

static cedar_status read_engram(const cedar_json *t, const char *where, cedar_config *c, cedar_err *err) {
    int64_t rows[CEDAR_ENGRAM_LAYERS_MAX], pad;
    size_t row_count;
    cedar_status st = read_layers(t, where, "engram_layer_ids", c->layers, CEDAR_ENGRAM_LAYERS_MAX, c->engram_layers,
                                  &c->engram_layer_count, err);
    if (st) return st;
    for (int32_t i = 0; i < CEDAR_LAYERS_MAX; i++) c->engram_at[i] = -1;
    for (int32_t e = 0; e < c->engram_layer_count; e++) {
        c->engram_at[c->engram_layers[e]] = e;
        if (c->engram_layers[e] > c->cut)
            return cedar_fail(err, CEDAR_E_FORMAT,
                              "%s: \"engram_layer_ids\" names layer %d, but Engram layers must not lie "
                              "behind the last KV source, layer %d",
                              where, c->engram_layers[e], c->cut);
    }
    if ((st = read_ints(t, where, engram_ints, COUNT(engram_ints), c, err))) return st;
    const char *pad_key = cedar_json_has(t, "engram_pad_id") ? "engram_pad_id" : "engram_pad_token_id";
    if ((st = cedar_json_int(t, where, pad_key, 0, c->vocab - 1, &pad, err))) return st;
    c->engram_pad = (int32_t)pad;
    if ((st = cedar_json_int(t, where, "engram_vocab_size", 2, INT32_MAX, &c->engram_vocab, err))) return st;
    if (c->engram_vocab_compressed > c->vocab)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"engram_compressed_vocab_size\" is %d, it may not exceed \"vocab_size\" %d", where,
                          c->engram_vocab_compressed, c->vocab);
    c->engram_rows_per_token = (c->ngram - 1) * c->engram_heads;
    if (c->engram_rows_per_token > CEDAR_ENGRAM_ROWS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"engram_max_ngram_size\" %d and \"engram_n_heads\" %d make %d rows per "
                          "token, at most %d are supported",
                          where, c->ngram, c->engram_heads, c->engram_rows_per_token, CEDAR_ENGRAM_ROWS_MAX);
    fill_primes(c);
    st = cedar_json_ints(t, where, "engram_num_embeddings", 0, INT64_MAX, CEDAR_ENGRAM_LAYERS_MAX, rows, &row_count,
                         err);
    if (st) return st;
    if (row_count != (size_t)c->engram_layer_count)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"engram_num_embeddings\" has %zu entries, it needs one for each of %d "
                          "Engram layers",
                          where, row_count, c->engram_layer_count);
    for (size_t e = 0; e < row_count; e++)
        if (rows[e] != c->engram_rows[e])
            return cedar_fail(err, CEDAR_E_FORMAT,
                              "%s: \"engram_num_embeddings\"[%zu] is %lld, but the %d primes of layer %d "
                              "from \"engram_vocab_size\" on sum to %lld",
                              where, e, (long long)rows[e], c->engram_rows_per_token, c->engram_layers[e],
                              (long long)c->engram_rows[e]);
    if (cedar_json_has(t, "engram_multipliers")) return read_multipliers(t, where, c, err);
    derive_multipliers(c);
    return CEDAR_OK;
}

/* --- drafter ------------------------------------------------------------------------------------------------------ */

static cedar_status read_draft(const cedar_json *t, const char *where, cedar_config *c, cedar_err *err) {
    if (!c->stages) return CEDAR_OK;
    cedar_status st = read_ints(t, where, draft_ints, COUNT(draft_ints), c, err);
    if (st) return st;
    st = read_layers(t, where, "dspark_target_layer_ids", c->layers, CEDAR_TARGETS_MAX, c->targets, &c->target_count,
                     err);
    if (st) return st;
    if (!c->target_count)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"dspark_target_layer_ids\" is empty, the drafter needs at least one", where);
    for (int32_t i = 0; i < c->target_count; i++) {
        c->is_target[c->targets[i]] = true;
        if (c->targets[i] <= c->cut)
            return cedar_fail(err, CEDAR_E_FORMAT,
                              "%s: \"dspark_target_layer_ids\" names layer %d, but the drafter may only "
                              "read layers behind the last KV source, layer %d",
                              where, c->targets[i], c->cut);
    }
    if (c->draft_noise >= c->vocab)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"dspark_noise_token_id\" is %d, but \"vocab_size\" is %d", where,
                          c->draft_noise, c->vocab);
    if (c->draft_experts_per_token > c->draft_experts)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"dspark_num_experts_per_tok\" is %d, but \"dspark_n_routed_experts\" is %d", where,
                          c->draft_experts_per_token, c->draft_experts);
    return CEDAR_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */

/* Rules between keys that the other readers do not cover. */
static cedar_status check_shape(const char *where, const cedar_config *c, cedar_err *err) {
    if (c->layers + c->stages > CEDAR_LAYERS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"num_hidden_layers\" %d and \"num_nextn_predict_layers\" %d together exceed "
                          "%d",
                          where, c->layers, c->stages, CEDAR_LAYERS_MAX);
    if (c->heads % c->o_groups)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"num_attention_heads\" is %d, it must be divisible by \"o_groups\" %d", where, c->heads,
                          c->o_groups);
    if ((int64_t)c->o_groups * c->o_lora % 32)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"o_groups\" %d times \"o_lora_rank\" %d must be a multiple of 32",
                          where, c->o_groups, c->o_lora);
    if (c->rope_dim > c->head_dim || c->rope_dim > c->index_dim)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: \"qk_rope_head_dim\" is %d, it may exceed neither \"head_dim\" %d nor "
                          "\"index_head_dim\" %d",
                          where, c->rope_dim, c->head_dim, c->index_dim);
    if (c->experts_per_token > c->experts)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"num_experts_per_tok\" is %d, but \"n_routed_experts\" is %d",
                          where, c->experts_per_token, c->experts);
    return CEDAR_OK;
}

static cedar_status read_yarn(const cedar_json *t, const char *where, cedar_config *c, cedar_err *err) {
    char inner[160];
    snprintf(inner, sizeof inner, "%.130s: rope_scaling", where);
    const cedar_json *y;
    cedar_status st = cedar_json_object(t, where, "rope_scaling", &y, err);
    if (st) return st;
    if ((st = want_string(y, inner, "rope_type", "yarn", err))) return st;
    if ((st = read_reals(y, inner, yarn_reals, COUNT(yarn_reals), c, err))) return st;
    return read_ints(y, inner, yarn_ints, COUNT(yarn_ints), c, err);
}

static cedar_status read_document(const cedar_json *doc, const char *name, cedar_config *c, cedar_err *err) {
    char where[130];
    snprintf(where, sizeof where, "%.110s: text_config", name);
    const cedar_json *t;
    cedar_status st;
    if ((st = cedar_json_object(doc, name, "text_config", &t, err))) return st;
    if ((st = check_quantization(doc, name, err))) return st;
    if ((st = check_constants(t, where, err))) return st;
    if ((st = read_ints(t, where, shape_ints, COUNT(shape_ints), c, err))) return st;
    if ((st = read_reals(t, where, shape_reals, COUNT(shape_reals), c, err))) return st;
    if ((st = read_yarn(t, where, c, err))) return st;
    if ((st = check_shape(where, c, err))) return st;
    if ((st = read_ratios(t, where, c, err))) return st;
    if ((st = read_sources(t, where, c, err))) return st;
    if ((st = read_candidates(t, where, c, err))) return st;
    if ((st = read_engram(t, where, c, err))) return st;
    return read_draft(t, where, c, err);
}

/* The name of a shape: its file without folder and ".json"; for a config.json, the folder that holds it. */
static void name_shape(const char *path, char out[64]) {
    const char *end = path + strlen(path), *base = end;
    while (base > path && base[-1] != '/') base--;
    if (!strcmp(base, "config.json")) {
        end = base;
        while (end > path && end[-1] == '/') end--;
        base = end;
        while (base > path && base[-1] != '/') base--;
    } else if (end - base > 5 && !strcmp(end - 5, ".json")) {
        end -= 5;
    }
    snprintf(out, 64, "%.*s", (int)(end - base), base);
}

/* The id that ends an answer; the engine has no use for it, but whoever serves the model does. */
static int32_t end_id(const cedar_json *doc, int32_t vocab) {
    const json_t *id = json_object_get(doc, "eos_token_id");
    if (json_is_array(id)) id = json_array_get(id, 0);
    json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
    return n >= 0 && n < vocab ? (int32_t)n : -1;
}

/* Reads and frees the document; `out` is set on success only. */
static cedar_status finish(cedar_json *doc, const char *path, cedar_config *out, cedar_err *err) {
    cedar_config c;
    memset(&c, 0, sizeof c);
    cedar_status st = read_document(doc, path, &c, err);
    c.eos = end_id(doc, c.vocab);
    cedar_json_free(doc);
    if (st) return st;
    name_shape(path, c.name);
    *out = c;
    return CEDAR_OK;
}

cedar_status cedar_config_parse(const char *text, size_t bytes, const char *path, cedar_config *out, cedar_err *err) {
    cedar_json *doc = NULL;
    cedar_status st = cedar_json_parse(text, bytes, path, 1, &doc, err);
    return st ? st : finish(doc, path, out, err);
}

cedar_status cedar_config_load(const char *path, cedar_config *out, cedar_err *err) {
    struct stat info;
    char file[4096];
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    int n = snprintf(file, sizeof file, is_folder ? "%s/config.json" : "%s", path);
    if (n < 0 || (size_t)n >= sizeof file) return cedar_fail(err, CEDAR_E_ARG, "%s: the path is too long", path);
    cedar_json *doc = NULL;
    cedar_status st = cedar_json_load(file, CONFIG_BYTES_MAX, &doc, err);
    return st ? st : finish(doc, file, out, err);
}
