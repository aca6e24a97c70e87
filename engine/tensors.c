/* The tensor list of a shape: names, kinds and sizes of every text tensor, and where each belongs in a model.
 *
 * One walk serves counting, opening, making, saving and hashing, so that the five cannot disagree.
 * Allocation: none. */
#include <stdio.h>
#include <string.h>

#include "engine/model_int.h"

typedef cedar_status (*visit_fn)(void *self, const cedar_tensor_info *t, cedar_err *err);

typedef struct walk {
    const cedar_config *c;
    visit_fn visit;
    void *self;
    cedar_err *err;
    cedar_status st;            /* first failure; later tensors are skipped */
    uint32_t next;              /* place of the next tensor in the order */
    char prefix[64];            /* "layers.3." */
    uint32_t index;             /* of the next tensor */
} walk;

/* The slot of a member when there is a model to put it in. */
#define SLOT(owner, member) ((owner) ? &(owner)->member : NULL)

static bool has_scale(cedar_weight_kind kind) {
    return kind == CEDAR_W_TILES || kind == CEDAR_W_ROWS || kind == CEDAR_W_FP4;
}

static void emit(walk *w, cedar_weight *slot, cedar_weight_kind kind, int ndim, int64_t rows, int64_t cols,
                 const char *name) {
    if (w->st) return;
    cedar_tensor_info t = { .kind = kind, .rows = rows, .cols = cols, .ndim = ndim, .slot = slot };
    int n = snprintf(t.name, sizeof t.name, "%s%s", w->prefix, name);
    CEDAR_ASSERT(n > 0 && (size_t)n < sizeof t.name);
    if (has_scale(kind)) {
        int stem = n - (int)strlen(".weight");
        CEDAR_ASSERT(stem > 0 && !strcmp(t.name + stem, ".weight"));
        snprintf(t.scale_name, sizeof t.scale_name, "%.*s.scale", stem, t.name);
    }
    w->st = w->visit(w->self, &t, w->err);
    /* After the visit, which may fill the whole slot; a walk over a finished model writes nothing. */
    if (!w->st && slot && slot->index != w->index) slot->index = w->index;
    w->index++;
}

static void vector(walk *w, cedar_weight *slot, cedar_weight_kind kind, int64_t cols, const char *name) {
    emit(w, slot, kind, 1, 1, cols, name);
}

static void matrix(walk *w, cedar_weight *slot, cedar_weight_kind kind, int64_t rows, int64_t cols, const char *name) {
    emit(w, slot, kind, 2, rows, cols, name);
}

static void visit_expert(walk *w, cedar_expert *e, cedar_weight_kind kind, const char *name) {
    static const char *const part[] = { "w1", "w2", "w3" };
    cedar_weight *slot[] = { SLOT(e, w1), SLOT(e, w2), SLOT(e, w3) };
    for (int i = 0; i < 3; i++) {
        char full[64];
        snprintf(full, sizeof full, "ffn.%s.%s.weight", name, part[i]);
        bool down = i == 1;
        matrix(w, slot[i], kind, down ? w->c->hidden : w->c->moe_dim, down ? w->c->moe_dim : w->c->hidden, full);
    }
}

/* What every backbone layer and every draft stage has. */
static void visit_block(walk *w, cedar_block *b, int32_t experts) {
    const cedar_config *c = w->c;
    int64_t d = c->hidden, n = c->hc, hd = c->head_dim, ql = c->q_lora, mixes = (2 + n) * n;
    int64_t lora = (int64_t)c->o_groups * c->o_lora;
    vector(w, SLOT(b, attn_norm), CEDAR_W_BF16, d, "attn_norm.weight");
    matrix(w, SLOT(b, hc_attn_fn), CEDAR_W_F32, mixes, n * d, "hc_attn_fn");
    vector(w, SLOT(b, hc_attn_base), CEDAR_W_F32, mixes, "hc_attn_base");
    vector(w, SLOT(b, hc_attn_scale), CEDAR_W_F32, 3, "hc_attn_scale");
    vector(w, SLOT(b, ffn_norm), CEDAR_W_BF16, d, "ffn_norm.weight");
    matrix(w, SLOT(b, hc_ffn_fn), CEDAR_W_F32, mixes, n * d, "hc_ffn_fn");
    vector(w, SLOT(b, hc_ffn_base), CEDAR_W_F32, mixes, "hc_ffn_base");
    vector(w, SLOT(b, hc_ffn_scale), CEDAR_W_F32, 3, "hc_ffn_scale");
    vector(w, SLOT(b, attn_sink), CEDAR_W_F32, c->heads, "attn.attn_sink");
    matrix(w, SLOT(b, wq_a), CEDAR_W_TILES, ql, d, "attn.wq_a.weight");
    vector(w, SLOT(b, q_norm), CEDAR_W_BF16, ql, "attn.q_norm.weight");
    matrix(w, SLOT(b, wq_b), CEDAR_W_TILES, c->heads * hd, ql, "attn.wq_b.weight");
    matrix(w, SLOT(b, wkv), CEDAR_W_TILES, hd, d, "attn.wkv.weight");
    vector(w, SLOT(b, kv_norm), CEDAR_W_BF16, hd, "attn.kv_norm.weight");
    matrix(w, SLOT(b, wo_a), CEDAR_W_TILES, lora, c->heads * hd / c->o_groups, "attn.wo_a.weight");
    matrix(w, SLOT(b, wo_b), CEDAR_W_TILES, d, lora, "attn.wo_b.weight");
    matrix(w, SLOT(b, gate), CEDAR_W_BF16, experts, d, "ffn.gate.weight");
    vector(w, SLOT(b, gate_bias), CEDAR_W_F32, experts, "ffn.gate.bias");
    vector(w, SLOT(b, gate_bias_vl), CEDAR_W_F32, experts, "ffn.gate.bias_vl");
    for (int32_t e = 0; e < experts && !w->st; e++) {
        char name[32];
        snprintf(name, sizeof name, "experts.%d", e);
        visit_expert(w, b ? &b->experts[e] : NULL, CEDAR_W_FP4, name);
    }
    visit_expert(w, SLOT(b, shared), CEDAR_W_TILES, "shared_experts");
}

static void visit_kv_source(walk *w, cedar_block *b, int32_t ratio) {
    const cedar_config *c = w->c;
    matrix(w, SLOT(b, comp_wkv), CEDAR_W_BF16, c->head_dim, c->hidden, "attn.compressor.wkv.weight");
    if (ratio > 1) matrix(w, SLOT(b, comp_wgate), CEDAR_W_BF16, c->head_dim, c->hidden, "attn.compressor.wgate.weight");
    vector(w, SLOT(b, comp_norm), CEDAR_W_BF16, c->head_dim, "attn.compressor.norm.weight");
    matrix(w, SLOT(b, index_wk), CEDAR_W_BF16, c->index_dim, c->head_dim, "attn.indexer.wk.weight");
    vector(w, SLOT(b, index_k_norm), CEDAR_W_BF16, c->index_dim, "attn.indexer.k_norm.weight");
}

static void visit_index_source(walk *w, cedar_block *b) {
    const cedar_config *c = w->c;
    matrix(w, SLOT(b, index_wq_b), CEDAR_W_TILES, (int64_t)c->index_heads * c->index_dim, c->q_lora,
           "attn.indexer.wq_b.weight");
    matrix(w, SLOT(b, index_weights_proj), CEDAR_W_BF16, c->index_heads, c->hidden, "attn.indexer.weights_proj.weight");
}

static void visit_engram(walk *w, cedar_block *b, int64_t rows) {
    const cedar_config *c = w->c;
    int64_t d = c->hidden, n = c->hc;
    matrix(w, SLOT(b, engram_embed), CEDAR_W_ROWS, rows, c->engram_dim, "engram.embed.weight");
    matrix(w, SLOT(b, engram_wkv), CEDAR_W_TILES, (n + 1) * d, (int64_t)c->engram_rows_per_token * c->engram_dim,
           "engram.wkv.weight");
    matrix(w, SLOT(b, engram_q), CEDAR_W_BF16, n, d, "engram.q_weight");
    matrix(w, SLOT(b, engram_k), CEDAR_W_BF16, n, d, "engram.k_weight");
}

static void visit_layers(walk *w, cedar_model *m) {
    const cedar_config *c = w->c;
    for (int32_t i = 0; i < c->layers && !w->st; i++) {
        cedar_block *b = m ? &m->blocks[i] : NULL;
        snprintf(w->prefix, sizeof w->prefix, "layers.%d.", i);
        visit_block(w, b, c->experts);
        if (c->is_kv_source[i]) visit_kv_source(w, b, c->ratio[i]);
        if (c->is_index_source[i]) visit_index_source(w, b);
        if (c->engram_at[i] >= 0) visit_engram(w, b, c->engram_rows[c->engram_at[i]]);
    }
}

static void visit_draft(walk *w, cedar_model *m) {
    const cedar_config *c = w->c;
    for (int32_t i = 0; i < c->stages && !w->st; i++) {
        snprintf(w->prefix, sizeof w->prefix, "mtp.%d.", i);
        visit_block(w, m ? &m->blocks[c->layers + i] : NULL, c->draft_experts);
        if (i == 0) {
            matrix(w, SLOT(m, main_proj), CEDAR_W_TILES, c->hidden, (int64_t)c->target_count * c->hidden,
                   "main_proj.weight");
            vector(w, SLOT(m, main_norm), CEDAR_W_BF16, c->hidden, "main_norm.weight");
        }
        if (i == c->stages - 1) {
            vector(w, SLOT(m, draft_norm), CEDAR_W_BF16, c->hidden, "norm.weight");
            matrix(w, SLOT(m, markov_embed), CEDAR_W_BF16, c->vocab, c->markov_rank, "markov_head.embed.weight");
            matrix(w, SLOT(m, markov_head), CEDAR_W_BF16, c->vocab, c->markov_rank, "markov_head.head.weight");
            matrix(w, SLOT(m, confidence), CEDAR_W_BF16, 1, c->hidden + c->markov_rank, "confidence_head.proj.weight");
        }
    }
}

cedar_status cedar_tensors_visit(const cedar_config *c, cedar_model *m, visit_fn visit, void *self, cedar_err *err) {
    walk w = { .c = c, .visit = visit, .self = self, .err = err };
    matrix(&w, SLOT(m, embed), CEDAR_W_BF16, c->vocab, c->hidden, "embed.weight");
    matrix(&w, SLOT(m, head), CEDAR_W_BF16, c->vocab, c->hidden, "head.weight");
    vector(&w, SLOT(m, norm), CEDAR_W_BF16, c->hidden, "norm.weight");
    visit_layers(&w, m);
    visit_draft(&w, m);
    return w.st;
}

uint64_t cedar_tensor_data_bytes(const cedar_tensor_info *t) {
    uint64_t elements = (uint64_t)t->rows * (uint64_t)t->cols;
    switch (t->kind) {
    case CEDAR_W_TILES:
    case CEDAR_W_ROWS: return elements;
    case CEDAR_W_FP4: return elements / 2;
    case CEDAR_W_BF16: return elements * 2;
    case CEDAR_W_F32: return elements * 4;
    case CEDAR_W_NONE: break;
    }
    return 0;
}

uint64_t cedar_tensor_scale_bytes(const cedar_tensor_info *t) {
    uint64_t rows = (uint64_t)t->rows, cols = (uint64_t)t->cols;
    if (t->kind == CEDAR_W_TILES) return (rows + 31) / 32 * ((cols + 31) / 32);
    return has_scale(t->kind) ? rows * (cols / 32) : 0;
}
