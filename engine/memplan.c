/* The memory plan: which options an engine can have, and what weights, caches and working memory then cost, from the
 * shape alone.
 *
 * Weights are summed over the same tensor walk that opening uses; caches come from the layout the engine allocates by.
 * Allocation: none. */
#include <string.h>

#include "engine/backend.h"
#include "engine/layout.h"
#include "engine/model_int.h"
#include "engine/shard.h"

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* Which part of the plan a backbone tensor counts for, by its name; first match. The rest (norms of the residual,
 * routers, compressors, indexers, Engram projections) is other_bytes. */
static const struct { const char *part; size_t offset; } parts[] = {
    { ".experts.", offsetof(cedar_memory_plan, expert_bytes) },
    { ".shared_experts.", offsetof(cedar_memory_plan, shared_bytes) },
    { ".engram.embed.", offsetof(cedar_memory_plan, engram_table_bytes) },
    { ".compressor.", offsetof(cedar_memory_plan, other_bytes) },
    { ".indexer.", offsetof(cedar_memory_plan, other_bytes) },
    { ".attn.", offsetof(cedar_memory_plan, attention_bytes) },
    { ".hc_", offsetof(cedar_memory_plan, hc_bytes) },
};

static size_t part_of(const char *name) {
    if (!strncmp(name, "mtp.", 4)) return offsetof(cedar_memory_plan, draft_bytes);
    if (!strcmp(name, "embed.weight") || !strcmp(name, "head.weight"))
        return offsetof(cedar_memory_plan, embed_head_bytes);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(name, parts[i].part)) return parts[i].offset;
    return offsetof(cedar_memory_plan, other_bytes);
}

static cedar_status add_tensor(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    cedar_memory_plan *p = self;
    uint64_t bytes = cedar_tensor_data_bytes(t) + cedar_tensor_scale_bytes(t), part;
    uint64_t elements = (uint64_t)t->rows * (uint64_t)t->cols, stored = t->scale_name[0] ? 2 : 1;
    const size_t place = part_of(t->name);
    char *at = (char *)p + place;
    memcpy(&part, at, sizeof part);
    part += bytes;
    memcpy(at, &part, sizeof part);
    p->weight_bytes += bytes;
    p->parameters += elements;
    if (place == offsetof(cedar_memory_plan, engram_table_bytes)) p->parameters_engram += elements;
    if (place == offsetof(cedar_memory_plan, draft_bytes)) p->parameters_draft += elements;
    p->tensor_count += stored;
    if (!strncmp(t->name, "mtp.", 4)) p->tensor_count_draft += stored;
    switch (t->kind) {
    case CEDAR_W_TILES:
    case CEDAR_W_ROWS: p->elements_f8 += elements; break;
    case CEDAR_W_FP4: p->elements_fp4 += elements; break;
    case CEDAR_W_BF16: p->elements_bf16 += elements; break;
    case CEDAR_W_F32: p->elements_f32 += elements; break;
    case CEDAR_W_NONE: break;
    }
    return CEDAR_OK;
}

/* --- caches ------------------------------------------------------------------------------------------------------- */

static void add_shape(const cedar_config *c, cedar_memory_plan *p) {
    cedar_layout l;
    cedar_layout_make(c, (uint32_t)c->ratio_lcm, 0, &l);
    p->kv_entry_bytes = l.kv_code_bytes + l.kv_scale_bytes;
    p->index_entry_bytes = l.index_code_bytes + l.index_scale_bytes;
    p->kv_token_bytes_x1000 = l.page_bytes * 1000 / (uint64_t)c->ratio_lcm;
    p->window_layer_bytes = (uint64_t)c->window * l.ring_row_bytes;
    p->window_bytes = p->window_layer_bytes * (uint64_t)c->layers;
    p->draft_ring_bytes = p->window_layer_bytes * (uint64_t)c->stages;
    p->open_group_bytes = l.open_reals * 4;
}

/* a * b + c, or a failure when that exceeds 64 bits. */
static bool add_product(uint64_t a, uint64_t b, uint64_t *sum) {
    uint64_t product;
    return !__builtin_mul_overflow(a, b, &product) && !__builtin_add_overflow(*sum, product, sum);
}

static cedar_status check_gpus(const cedar_config *c, const cedar_engine_opts *o, cedar_err *err) {
    const cedar_backend *b = cedar_backend_find(o->backend ? o->backend : "cpu");
    bool gpu = b && b->makes_weights, several = o->gpus > 1;
    cedar_shard s;
    if (several && b == &cedar_backend_none)
        return cedar_fail(err, CEDAR_E_ARG,
                          "gpus is %u, but the backend \"none\" computes nothing; in modelled time the description of "
                          "the hardware says how many GPUs there are",
                          o->gpus);
    if (o->one_stream && !gpu)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "one_stream = true needs a GPU: other backends have no streams");
    if (o->allreduce != CEDAR_ALLREDUCE_PLAIN && !several)
        return cedar_fail(err, CEDAR_E_ARG, "allreduce is not \"plain\", but with gpus = 1 there is nothing to add");
    if (o->allreduce != CEDAR_ALLREDUCE_PLAIN && !gpu)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED,
                          "allreduce is not \"plain\"; the ranks of the CPU engine add in one way only");
    return several ? cedar_shard_make(c, 0, o->gpus, &s, err) : CEDAR_OK;
}

cedar_status cedar_engine_opts_check(const cedar_config *c, const cedar_engine_opts *o, cedar_err *err) {
    if (!o->page_tokens || o->page_tokens % (uint32_t)c->ratio_lcm)
        return cedar_fail(err, CEDAR_E_ARG,
                          "page_tokens is %u; it must be a positive multiple of %d, so that no compressed entry "
                          "lies on two pages",
                          o->page_tokens, c->ratio_lcm);
    if (o->page_tokens > 1u << 20 || o->context_tokens > 1u << 30 || o->step_rows > 1u << 24 || o->verify_rows > 4096)
        return cedar_fail(err, CEDAR_E_ARG,
                          "page_tokens is %u, context_tokens %u, step_rows %u, verify_rows %u; the most that "
                          "any engine takes are 2^20, 2^30, 2^24 and 4096",
                          o->page_tokens, o->context_tokens, o->step_rows, o->verify_rows);
    if (o->page_count > INT32_MAX || o->seq_count > INT32_MAX)
        return cedar_fail(err, CEDAR_E_ARG,
                          "page_count is %u and seq_count %u; the most that any engine takes is 2^31 - 1",
                          o->page_count, o->seq_count);
    return check_gpus(c, o, err);
}

typedef struct rank_weights {
    const cedar_config *whole;
    cedar_shard shard;
    uint64_t bytes;
} rank_weights;

static cedar_status add_slice(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    rank_weights *w = self;
    const cedar_slice part = cedar_shard_slice(w->whole, &w->shard, t);
    w->bytes += cedar_slice_data_bytes(t, &part) + cedar_slice_scale_bytes(t, &part);
    return CEDAR_OK;
}

/* What rank r of o->gpus needs: into the totals, and it may be the one that needs most. */
static cedar_status add_rank(const cedar_config *c, const cedar_engine_opts *o, const cedar_backend *b, uint32_t r,
                             cedar_memory_plan *p, bool *fits, cedar_err *err) {
    uint32_t ranks = o->gpus > 1 ? o->gpus : 1;
    rank_weights w = { .whole = c, .bytes = ranks > 1 ? 0 : p->weight_bytes };
    cedar_config local;
    cedar_status st = cedar_shard_make(c, r, ranks, &w.shard, err);
    if (!st && ranks > 1) st = cedar_tensors_visit(c, NULL, add_slice, &w, err);
    if (st) return st;
    cedar_shard_config(c, &w.shard, &local);
    uint64_t pool = 0, workspace = b->workspace_bytes(&local, o), all = w.bytes;
    *fits = add_product(cedar_shard_pages(&w.shard, o->page_count), p->page_bytes, &pool) &&
            add_product(1, pool, &all) && add_product(o->seq_count, p->seq_bytes, &all) &&
            add_product(1, workspace, &all) && add_product(1, all, &p->total_bytes);
    p->workspace_bytes += workspace;
    if (all <= p->rank_bytes) return CEDAR_OK;
    p->rank_weight_bytes = w.bytes;
    p->rank_pool_bytes = pool;
    p->rank_workspace_bytes = workspace;
    p->rank_bytes = all;
    return CEDAR_OK;
}

static cedar_status add_options(const cedar_config *c, const cedar_engine_opts *o, cedar_memory_plan *p,
                                cedar_err *err) {
    const char *name = o->backend ? o->backend : "cpu";
    const cedar_backend *b = cedar_backend_find(name);
    if (!b) return cedar_fail(err, CEDAR_E_UNSUPPORTED, "backend \"%s\" is not in this build", name);
    cedar_status st = cedar_engine_opts_check(c, o, err);
    if (st) return st;
    cedar_layout l, bare;
    cedar_layout_make(c, o->page_tokens, o->verify_rows, &l);
    cedar_layout_make(c, o->page_tokens, 0, &bare);
    uint64_t real_bytes = o->arith == CEDAR_WIDE ? 8 : 4,
             pages = (o->context_tokens + (uint64_t)o->page_tokens - 1) / o->page_tokens;
    p->page_bytes = l.page_bytes;
    p->verify_slack_bytes = l.ring_bytes - bare.ring_bytes + (l.open_reals - bare.open_reals) * real_bytes;
    p->seq_bytes = l.ring_bytes + l.open_reals * real_bytes + o->context_tokens * (uint64_t)sizeof(int32_t) +
                   pages * sizeof(int32_t);
    bool fits = add_product(o->page_count, p->page_bytes, &p->pool_bytes);
    for (uint32_t r = 0; r < (o->gpus > 1 ? o->gpus : 1) && fits && !st; r++) st = add_rank(c, o, b, r, p, &fits, err);
    if (st) return st;
    if (!fits)
        return cedar_fail(err, CEDAR_E_ARG,
                          "%u pages of %u tokens and %u sequences of %u tokens need more than 2^64 bytes",
                          o->page_count, o->page_tokens, o->seq_count, o->context_tokens);
    return CEDAR_OK;
}

cedar_status cedar_plan_memory(const cedar_config *c, const cedar_engine_opts *opts, cedar_memory_plan *out,
                               cedar_err *err) {
    cedar_memory_plan p;
    memset(&p, 0, sizeof p);
    cedar_status st = cedar_tensors_visit(c, NULL, add_tensor, &p, err);
    if (st) return st;
    add_shape(c, &p);
    if (opts && (st = add_options(c, opts, &p, err))) return st;
    *out = p;
    return CEDAR_OK;
}

static uint32_t lower(uint32_t a, uint32_t b) { return a < b ? a : b; }

cedar_engine_opts cedar_engine_defaults(const cedar_config *c) {
    uint32_t lcm = (uint32_t)c->ratio_lcm, context = lower((uint32_t)c->positions_max, 4096);
    uint32_t page = (64 + lcm - 1) / lcm * lcm;
    return (cedar_engine_opts){
        .backend = "cpu", .arith = CEDAR_F32, .threads = 0, .page_tokens = page,
        .page_count = (context + page - 1) / page, .seq_count = 1, .context_tokens = context,
        .step_rows = lower(context, 512), .step_seqs = 1,
        .verify_rows = c->stages ? (uint32_t)c->draft_block : 8,        /* a verify step may lose all its drafts */
        .weight_cache_bytes = 1ull << 30, .gpus = 1,
    };
}
