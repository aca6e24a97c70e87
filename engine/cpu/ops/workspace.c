/* Working memory of the forward pass: one layout, walked once to count and once to carve. */
#include "base/mem.h"
#include "engine/cpu/ops/forward.h"

typedef struct arena { uint8_t *base; uint64_t used; } arena;

static void *take(arena *a, uint64_t count, uint64_t size) {
    uint64_t at = (a->used + 63) / 64 * 64;
    a->used = at + count * size;
    return a->base ? a->base + at : NULL;
}

static real *reals(arena *a, uint64_t count) { return take(a, count, sizeof(real)); }

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Longest row of any matrix that is multiplied, and long enough for two vectors of D. */
static uint64_t longest_k(const cedar_config *c) {
    uint64_t k = (uint64_t)c->hc * (uint64_t)c->hidden;
    k = max_u64(k, (uint64_t)c->engram_rows_per_token * (uint64_t)c->engram_dim);
    k = max_u64(k, (uint64_t)c->heads * (uint64_t)c->head_dim / (uint64_t)c->o_groups);
    k = max_u64(k, (uint64_t)c->o_groups * (uint64_t)c->o_lora);
    k = max_u64(k, (uint64_t)c->target_count * (uint64_t)c->hidden);
    k = max_u64(k, (uint64_t)c->hidden + (uint64_t)c->markov_rank);
    k = max_u64(k, (uint64_t)c->moe_dim);
    return max_u64(k, (uint64_t)c->q_lora);
}

static void carve_worker(arena *a, OP(worker) *w, const cedar_config *c, const cedar_engine_opts *o) {
    uint64_t d = (uint64_t)c->hidden, hd = (uint64_t)c->head_dim, topk = (uint64_t)c->index_topk;
    uint64_t keys = (uint64_t)c->window + max_u64(topk, (uint64_t)c->draft_block), entries = o->context_tokens;
    uint64_t blocks = c->candidate_source >= 0 ? (uint64_t)c->candidate_blocks : 0, k = longest_k(c);
    uint64_t experts = max_u64((uint64_t)c->experts, (uint64_t)c->draft_experts);
    uint64_t per_token = max_u64((uint64_t)c->experts_per_token, (uint64_t)c->draft_experts_per_token);
    OP(worker)
    v = {
        .x = reals(a, BLOCK * d),
        .xq = reals(a, BLOCK * d),
        .att = reals(a, BLOCK * d),
        .y = reals(a, BLOCK * d),
        .qr = reals(a, BLOCK * (uint64_t)c->q_lora),
        .qrq = reals(a, BLOCK * (uint64_t)c->q_lora),
        .q = reals(a, BLOCK * (uint64_t)c->heads * hd),
        .kv = reals(a, BLOCK * hd),
        .iq = reals(a, BLOCK * (uint64_t)c->index_heads * (uint64_t)c->index_dim),
        .ig = reals(a, BLOCK * (uint64_t)c->index_heads),
        .u = reals(a, BLOCK * (uint64_t)c->o_groups * (uint64_t)c->o_lora),
        .features = reals(a, BLOCK * (uint64_t)c->target_count * d),
        .keys = reals(a, keys * hd),
        .logits = reals(a, keys),
        .scores = reals(a, entries),
        .block_scores = reals(a, entries / max_u64((uint64_t)c->candidate_block, 1) + 1),
        .heap = reals(a, max_u64(topk, blocks)),
        .names = take(a, blocks * (uint64_t)c->candidate_block, sizeof(int32_t)),
        .mask = take(a, entries, 1),
        .wide = take(a, max_u64((uint64_t)c->hc * d, entries), sizeof(double)),
        .index_keys = reals(a, 4 * (uint64_t)c->index_dim),
        .latent = reals(a, hd),
        .index_key = reals(a, (uint64_t)c->index_dim),
        .table = reals(a, (uint64_t)c->rope_dim),
        .engram_e = reals(a, (uint64_t)c->engram_rows_per_token * (uint64_t)c->engram_dim),
        .engram_kv = reals(a, (uint64_t)(c->hc + 1) * d),
        .head = reals(a, BLOCK * HEAD_SLICE),
        .gains = reals(a, max_u64(2 * d, (uint64_t)c->markov_rank)),
        .streams = reals(a, BLOCK * (uint64_t)c->hc * d),
        .mixes = reals(a, BLOCK * (uint64_t)(2 + c->hc) * (uint64_t)c->hc),
        .linear = { .x = take(a, BLOCK * k, sizeof(double)), .panel = reals(a, PANEL * k), .row = reals(a, k) },
        .moe = { .score = reals(a, BLOCK * experts),
                 .biased = reals(a, experts),
                 .heap = reals(a, CEDAR_EXPERTS_PER_TOKEN_MAX),
                 .ids = take(a, BLOCK * per_token, sizeof(int32_t)),
                 .weight = reals(a, BLOCK * per_token),
                 .xq = reals(a, BLOCK * d),
                 .gather = reals(a, BLOCK * d),
                 .gate = reals(a, BLOCK * (uint64_t)c->moe_dim),
                 .up = reals(a, BLOCK * (uint64_t)c->moe_dim),
                 .out = reals(a, BLOCK * d) },
    };
    if (!w) return;
    *w = v;
    w->moe.linear = &w->linear;
}

static void carve(arena *a, OP(forward) *f, const cedar_config *c, const cedar_engine_opts *o, uint32_t ring_row_bytes,
                  uint32_t workers) {
    uint64_t d = (uint64_t)c->hidden, n = (uint64_t)c->hc, rows = f->row_max, rope = (uint64_t)c->rope_dim;
    f->freq[0] = take(a, rope / 2, sizeof(double));
    f->freq[1] = take(a, rope / 2, sizeof(double));
    f->row_entry = take(a, rows, sizeof(uint32_t));
    f->row_pos = take(a, rows, sizeof(uint32_t));
    f->h = reals(a, rows * n * d);
    f->pre = reals(a, rows * n);
    f->pre_attn = reals(a, rows * n);
    f->post = reals(a, rows * n);
    f->comb = reals(a, rows * n * n);
    f->x = reals(a, rows * d);
    f->window = take(a, rows, ring_row_bytes);
    f->comp = reals(a, rows * 2 * (uint64_t)c->head_dim);
    f->topk = take(a, rows * (uint64_t)c->index_topk, sizeof(int32_t));
    f->pool = take(a, rows * (c->candidate_source >= 0 ? (uint64_t)c->candidate_blocks : 0), sizeof(int32_t));
    f->pool_count = take(a, rows, sizeof(int32_t));
    f->features = reals(a, rows * (uint64_t)c->target_count * d);
    f->table[0] = reals(a, rows * rope);
    f->table[1] = reals(a, rows * rope);
    f->active = take(a, rows, sizeof(uint32_t));
    f->kept = take(a, rows, sizeof(uint32_t));
    f->logit_rows = take(a, rows, sizeof(uint32_t));
    f->first_kept = take(a, o->step_seqs + 1, sizeof(uint32_t));
    f->first_row = take(a, o->step_seqs + 1, sizeof(uint32_t));
    f->groups = take(a, rows, sizeof *f->groups);
    f->best = reals(a, rows);
    f->best_id = take(a, rows, sizeof(int32_t));
    for (int i = 0; i < 2 && o->gpus > 1; i++) f->part[i] = reals(a, rows * d);
    if (o->gpus > 1) f->base = reals(a, (uint64_t)c->draft_block * (uint64_t)c->vocab);
    if (o->gpus > 1) f->peers = take(a, o->gpus, sizeof *f->peers);
    f->workers = take(a, workers, sizeof *f->workers);
    for (uint32_t w = 0; w < workers; w++) carve_worker(a, f->workers ? f->workers + w : NULL, c, o);
}

static uint32_t rows_of(const cedar_config *c, const cedar_engine_opts *o) {
    return (uint32_t)max_u64(o->step_rows, (uint64_t)c->draft_block);
}

uint64_t OP(workspace_bytes)(const cedar_config *c, const cedar_engine_opts *o, uint32_t workers) {
    OP(forward) f = { .row_max = rows_of(c, o) };
    arena a = { NULL, 0 };
    carve(&a, &f, c, o, (uint32_t)(c->head_dim + c->head_dim / 32), workers);
    return a.used;
}

/* --- decoded weights ---------------------------------------------------------------------------------------------- */

typedef struct decode_walk {
    const OP(forward) *f;
    const real **decoded;       /* NULL while counting */
    arena *a;
    real *scratch;
    uint64_t tensors;
    bool all;
} decode_walk;

/* Used as a vector. A matrix that happens to have one row (one index head, one expert) is still a matrix. */
static bool is_vector(const OP(forward) *f, const cedar_tensor_info *t) {
    return t->ndim == 1 || t->slot == &f->env->model->confidence;
}

/* Vectors are always decoded. Matrices that are read a row at a time (embeddings, Engram tables and gains) never
 * are. */
static bool is_decoded(const OP(forward) *f, const cedar_tensor_info *t, bool all) {
    const cedar_model *m = f->env->model;
    bool by_row = t->kind == CEDAR_W_ROWS || t->slot == &m->embed || t->slot == &m->markov_embed;
    for (int32_t i = 0; i < f->c->layers; i++)
        by_row |= t->slot == &m->blocks[i].engram_q || t->slot == &m->blocks[i].engram_k;
    return is_vector(f, t) || (all && !by_row);
}

static uint64_t panels_of(int64_t rows) { return (uint64_t)(rows + PANEL - 1) / PANEL; }

static cedar_status decode_visit(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    decode_walk *w = self;
    w->tensors++;
    if (!is_decoded(w->f, t, w->all)) return CEDAR_OK;
    bool vector = is_vector(w->f, t);
    int64_t rows = t->slot->rows;   /* of a rank's head: not the whole vocabulary */
    real *at = reals(w->a, vector ? (uint64_t)t->cols : panels_of(rows) * PANEL * (uint64_t)t->cols);
    if (!w->decoded) return CEDAR_OK;
    if (vector) OP(decode_row)(t->slot, 0, at);
    for (int64_t r = 0; r < rows && !vector; r += PANEL) OP(decode_panel)(t->slot, r, at + r * t->cols, w->scratch);
    w->decoded[t->slot->index] = at;
    return CEDAR_OK;
}

static cedar_status decode_weights(OP(forward) *f, cedar_err *err) {
    cedar_model *m = (cedar_model *)(uintptr_t)f->env->model;   /* the visitor hands out slots; nothing is changed */
    arena count = { NULL, 0 };
    decode_walk w = { .f = f, .a = &count, .all = true };
    cedar_status st = cedar_tensors_visit(f->c, m, decode_visit, &w, err);
    if (st) return st;
    if (count.used > f->env->opts->weight_cache_bytes) {
        count.used = 0;
        w = (decode_walk){ .f = f, .a = &count, .all = false };
        if ((st = cedar_tensors_visit(f->c, m, decode_visit, &w, err))) return st;
    }
    f->decoded = cedar_calloc(w.tensors, sizeof *f->decoded);
    f->decoded_store = cedar_calloc(1, count.used);
    if (!f->decoded || !f->decoded_store)
        return cedar_fail(err, CEDAR_E_OOM,
                          "no memory for %llu bytes of decoded weights; free memory or take a smaller model",
                          (unsigned long long)count.used);
    arena a = { f->decoded_store, 0 };
    w = (decode_walk){ .f = f, .decoded = f->decoded, .a = &a, .scratch = f->workers[0].linear.row, .all = w.all };
    f->weights.decoded = f->decoded;
    return cedar_tensors_visit(f->c, m, decode_visit, &w, err);
}

cedar_status OP(forward_open)(cedar_forward_env *env, void **self, cedar_err *err) {
    OP(forward) *f = cedar_calloc(1, sizeof *f);
    if (!f) return cedar_fail(err, CEDAR_E_OOM, "no memory for a forward pass");
    f->env = env;
    f->c = &env->model->config;
    f->l = env->store->l;
    f->row_max = rows_of(f->c, env->opts);
    f->worker_count = cedar_pool_workers(env->pool);
    uint64_t bytes = OP(workspace_bytes)(f->c, env->opts, f->worker_count);
    f->arena = cedar_calloc(1, bytes);
    cedar_status st = CEDAR_OK;
    if (!f->arena)
        st = cedar_fail(err, CEDAR_E_OOM, "no memory for a workspace of %llu bytes; lower step_rows or context_tokens",
                        (unsigned long long)bytes);
    if (!st) {
        arena a = { f->arena, 0 };
        carve(&a, f, f->c, env->opts, f->l->ring_row_bytes, f->worker_count);
        cedar_rope_frequencies(f->c, f->freq[0], f->freq[1]);
        st = decode_weights(f, err);
    }
    const cedar_rank *rank = env->rank;
    f->rank = rank ? rank->shard.rank : 0;
    f->ranks = rank ? rank->shard.ranks : 1;
    if (!st && rank && !cedar_ranks_share(rank->group, f->rank, f, (void **)f->peers))
        st = cedar_ranks_error(rank->group, err);
    if (st) {
        OP(forward_close)(f);
        return st;
    }
    *self = f;
    return CEDAR_OK;
}

void OP(forward_close)(void *self) {
    OP(forward) *f = self;
    if (!f) return;
    cedar_free(f->arena);
    cedar_free(f->decoded);
    cedar_free(f->decoded_store);
    cedar_free(f);
}
