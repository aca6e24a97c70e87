/* A model as an object: making an empty one, closing it, its hash, and what a shape fixes for all backends. Weights are
 * put in by checkpoint.c and synth.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "engine/model_int.h"

cedar_status cedar_model_new(const cedar_config *c, cedar_model **out, cedar_err *err) {
    int32_t block_count = c->layers + c->stages;
    cedar_model *m = cedar_calloc(1, sizeof *m);
    if (!m) goto oom;
    m->config = *c;
    m->blocks = cedar_calloc((size_t)block_count, sizeof *m->blocks);
    m->token_map = cedar_calloc((size_t)c->vocab, sizeof *m->token_map);
    if (!m->blocks || !m->token_map) goto oom;
    for (int32_t i = 0; i < c->vocab; i++) m->token_map[i] = i % c->engram_vocab_compressed;
    for (int32_t i = 0; i < block_count; i++) {
        m->blocks[i].expert_count = i < c->layers ? c->experts : c->draft_experts;
        m->blocks[i].experts = cedar_calloc((size_t)m->blocks[i].expert_count, sizeof(cedar_expert));
        if (!m->blocks[i].experts) goto oom;
    }
    *out = m;
    return CEDAR_OK;
oom:
    cedar_model_close(m);
    return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for the list of weights", c->name);
}

cedar_status cedar_model_shape(const cedar_config *c, cedar_model **out, cedar_err *err) {
    cedar_status st = cedar_model_new(c, out, err);
    if (!st) snprintf((*out)->origin, sizeof (*out)->origin, "shape only");
    return st;
}

void cedar_model_close(cedar_model *m) {
    if (!m || m->kept) return;
    if (m->storage_free) m->storage_free(m->storage);
    for (int32_t i = 0; m->blocks && i < m->config.layers + m->config.stages; i++) cedar_free(m->blocks[i].experts);
    cedar_free(m->blocks);
    cedar_free(m->token_map);
    cedar_free(m);
}

/* Engines only read a model, and say this one thing about it. */
void cedar_model_keep(const cedar_model *m) { ((cedar_model *)(uintptr_t)m)->kept = true; }

const cedar_config *cedar_model_config(const cedar_model *m) { return &m->config; }

const int32_t *cedar_model_token_map(const cedar_model *m) { return m->token_map; }

void cedar_rope_frequencies(const cedar_config *c, double *plain, double *yarn) {
    int dim = c->rope_dim;
    double t = c->compress_theta, span = 2 * log(t);
    double d_fast = dim * log(c->yarn_original / (2 * M_PI * c->yarn_beta_fast)) / span;
    double d_slow = dim * log(c->yarn_original / (2 * M_PI * c->yarn_beta_slow)) / span;
    double low = fmax(floor(d_fast), 0), high = fmin(ceil(d_slow), dim - 1);
    for (int i = 0; i < dim / 2; i++) {
        plain[i] = pow(c->rope_theta, -2.0 * i / dim);
        double f = pow(t, -2.0 * i / dim), g = (i - low) / fmax(high - low, 0.001);
        g = g < 0 ? 0 : g > 1 ? 1 : g;
        yarn[i] = f * (1 - g) + f / c->yarn_factor * g;
    }
}

/* One tensor's header line and bytes. */
static cedar_status hash_tensor(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    cedar_sha256 *s = self;
    char line[160];
    int n = snprintf(line, sizeof line, "%s %d %d %lld %lld\n", t->name, (int)t->kind, t->ndim, (long long)t->rows,
                     (long long)t->cols);
    cedar_sha256_add(s, line, (size_t)n);
    if (!t->slot->data) return CEDAR_OK;        /* a shape without weights: its list of tensors is what it is */
    cedar_sha256_add(s, t->slot->data, cedar_tensor_data_bytes(t));
    if (t->slot->scale) cedar_sha256_add(s, t->slot->scale, cedar_tensor_scale_bytes(t));
    return CEDAR_OK;
}

void cedar_model_hash(const cedar_model *m, char out[65]) {
    cedar_sha256 s;
    cedar_sha256_init(&s);
    /* The walk wants a model it could fill; hash_tensor only reads the slots. */
    cedar_status st = cedar_tensors_visit(&m->config, (cedar_model *)(uintptr_t)m, hash_tensor, &s, NULL);
    CEDAR_ASSERT(!st);
    for (int32_t i = 0; i < m->config.vocab; i++) {
        uint32_t id = (uint32_t)m->token_map[i];
        uint8_t le[4] = { (uint8_t)id, (uint8_t)(id >> 8), (uint8_t)(id >> 16), (uint8_t)(id >> 24) };
        cedar_sha256_add(&s, le, sizeof le);
    }
    cedar_sha256_hex(&s, out);
}
