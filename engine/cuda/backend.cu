/* The CUDA backend: owns device memory (weights as stored, page pool, rings, workspace), all taken in open, and runs
 * step plans as a list of launches on one stream with one wait at the end.
 *
 * Arithmetics: wide and f32 validate indexing, plans and caches against the golden vectors; bf16 is the one to run. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <type_traits>

#include "engine/cuda/ops.cuh"
#include "engine/cuda/tensor.cuh"

extern "C" {
#include "base/mem.h"
}

static cedar_status check(cudaError_t e, const char *what, cedar_err *err) {
    if (e == cudaSuccess) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_CUDA, "CUDA: %s failed: %s", what, cudaGetErrorString(e));
}

/* One device allocation, carved twice: first to count, then for real. */
struct carver {
    uint8_t *base;
    uint64_t used;
    void *take(uint64_t count, uint64_t size) {
        used = (used + 255) / 256 * 256;
        uint64_t at = used;
        used += count * size;
        return base ? base + at : NULL;
    }
};

/* What a step leaves for the host, in one piece on the device and in pinned memory. */
struct step_results {
    unsigned long long digest;          /* with several ranks */
    int32_t argmax[];                   /* [R] */
};

/* Work buffers; rows of a step by place in the list unless said otherwise. Reals, if no type is given. */
struct work {
    void *qr, *q, *kv, *iq, *ig, *u, *att, *y, *xc, *xqc, *e, *ekv, *features_q, *main_x, *head, *extra, *row_y, *row_e,
        *latents;
    dev_moe moe;                        /* a, b, aq, out hold MOE_BATCH rows */
    void *head_part;                    /* with several ranks: [HEAD_BATCH, columns of this one] */
    uint16_t *sum;                      /* with several ranks, bf16 only: [R, hidden] sum of all parts */
    step_results *results;
    int32_t *draft_ids;
    float *logits, *confidence;
    double *freq;                       /* [2, rope / 2] plain, YaRN */
    int64_t *engram;                    /* [engram layers, 3, CEDAR_ENGRAM_ROWS_MAX] multipliers, primes, offsets */
    cedar_layout *layout;
    uint32_t *active, *kept, *logit_rows;
    /* bf16 only, packed activations: the block's input and the same through FP8 (by row), the low-rank query, whatever
     * is multiplied next, attention outputs by group, pairs */
    uint16_t *px, *pxq, *pq, *pt, *po, *pa, *ps;
    /* of few rows, the Engram layers' part that needs tokens only: packed table rows, and by layer what they give */
    uint16_t *pe;
    void *ekv_ahead;
    expert_tiles tiles;
    attention_work attention;
};

/* rows worked on at once where a row needs much room */
enum { SCORE_BATCH = 128, ATTENTION_BATCH = 528, MOE_BATCH = 2048, HEAD_BATCH = 64, SUM_BATCH = 2048 };

/* Up to this many rows the sum over the ranks can be fused with what follows. Between two H200 it paid at every size
 * measured, 1 to 2,048 rows (docs/evidence/2026-11-30-h200-ranks.md). More ranks all send to all: 16 is a guess. */
static uint32_t fused_rows(uint32_t ranks) { return ranks == 2 ? 2048 : 16; }

/* Inputs of a step and its results, in pinned memory. */
struct staging {
    dev_entry *entries;
    int32_t *token, *entry, *page_table;
    uint32_t *pos, *active, *kept, *first_kept, *logit_rows, *page_count;
    step_results *results;
};

/* A step captured as a graph: everything after its inputs. Two steps of the same key differ in inputs only. */
struct graph_key {
    uint32_t rows, kept, entries, logits;
    int32_t cut;
    bool trimmed, want_logits, want_argmax;
};

struct graph_slot {
    graph_key key;
    cudaGraphExec_t exec;
    uint64_t used;                      /* for replacing the least recently used */
};

enum { GRAPHS_MAX = 64 };

/* Work that the main stream waits for later only: mHC coefficients; window rows and global rows; the shared expert, a
 * list of keys, gates of index queries, or the drafter's rings and the digest; what Engram layers need of tokens
 * only. */
enum { SIDE_HC, SIDE_KV, SIDE_SHARED, SIDE_ENGRAM, SIDES };

struct cuda_backend {
    graph_slot graphs[GRAPHS_MAX];
    uint64_t graph_clock;
    bool use_graphs;
    const cedar_model *model;
    const cedar_config *c;              /* the model's, or `local`: what this rank computes of it */
    cedar_config local;
    cedar_engine_opts o;
    int device;
    const cedar_rank *rank;             /* NULL: alone */
    bool shared;                        /* several ranks on one GPU */
    bool one_stream;
    peer_link link;
    peer_columns columns;               /* of the head, by rank */
    nccl *n;                            /* rank 0's, used by all */
    cedar_layout l;
    cudaStream_t stream, side[SIDES];
    cudaEvent_t forked[SIDES], joined[SIDES], engram[CEDAR_ENGRAM_LAYERS_MAX];
    uint8_t *weights_mem, *memory;      /* device */
    uint8_t *pinned;
    uint64_t state_bytes, work_bytes;
    dev_weight *weight;                 /* [tensors] by cedar_weight.index */
    dev_weight **experts;               /* [layers + stages] device arrays: w1, w2, w3 of all experts */
    dev d;
    work w;
    staging h;
    cedar_tap_fn tap;
    void *tap_self;
    cedar_inject_fn inject;
    void *inject_self;
};

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* --- memory ------------------------------------------------------------------------------------------------------- */

static uint32_t rows_of(const cedar_config *c, const cedar_engine_opts *o) {
    return (uint32_t)max_u64(o->step_rows, (uint64_t)c->draft_block);
}

static void carve_state(carver &m, dev &d, const cedar_engine_opts &o, const cedar_layout &l, const cedar_shard *s) {
    d.pages = (uint8_t *)m.take(s ? cedar_shard_pages(s, o.page_count) : o.page_count, l.page_bytes);
    d.rings = (uint8_t *)m.take(o.seq_count, l.ring_bytes);
    d.open = (uint8_t *)m.take((uint64_t)o.seq_count * l.open_reals, d.real_bytes);
    d.page_table = (int32_t *)m.take((uint64_t)o.seq_count * d.pages_per_seq, 4);
}

static void carve_rows(carver &m, dev &d, const cedar_config *c, const cedar_engine_opts &o, const cedar_layout &l) {
    uint64_t r = d.row_max, b = d.real_bytes, n = c->hc, dm = c->hidden;
    d.entries = (dev_entry *)m.take(o.step_seqs, sizeof(dev_entry));
    d.row_token = (int32_t *)m.take(r, 4);
    d.row_entry = (int32_t *)m.take(r, 4);
    d.row_pos = (uint32_t *)m.take(r, 4);
    d.token_map = (int32_t *)m.take(c->vocab, 4);
    d.h = m.take(r * n * dm, d.stream_bytes);
    d.pre = m.take(r * n, b);
    d.pre_attn = m.take(r * n, b);
    d.post = m.take(r * n, b);
    d.comb = m.take(r * n * n, b);
    d.hc_tickets = (uint32_t *)m.take(r, 4);
    d.hc_partial = (double *)m.take(r * HC_SPLITS * ((2 + n) * n + 1), sizeof(double));
    d.x = m.take(r * dm, b);
    d.xq = m.take(r * dm, b);
    d.table = m.take(2 * r * c->rope_dim, b);
    d.window_rows = (uint8_t *)m.take(r, l.ring_row_bytes);
    d.comp = m.take(r * 2 * c->head_dim, b);
    d.topk_ids = (int32_t *)m.take(r * c->index_topk, 4);
    d.pool = (int32_t *)m.take(r * max_u64(1, c->candidate_source >= 0 ? c->candidate_blocks : 0), 4);
    d.pool_count = (int32_t *)m.take(r, 4);
    d.scores = m.take((uint64_t)SCORE_BATCH * o.context_tokens, b);
    d.block_scores = m.take((uint64_t)SCORE_BATCH * o.context_tokens, b);
    d.features = m.take(r * c->target_count * dm, b);
    d.engram_ids = (int64_t *)m.take(r * max_u64(1, c->engram_rows_per_token), 8);
}

static uint16_t *take_packed(carver &m, uint64_t rows, int64_t k) {
    return (uint16_t *)m.take(rows * (uint64_t)padded(k), 2);
}

/* What only the tensor-core path needs. */
static void carve_tensor(carver &m, work &w, const cedar_config *c, uint64_t r, const cedar_shard *s) {
    uint64_t k = max_u64(c->experts_per_token, c->draft_experts_per_token),
             pairs = max_u64(r < MOE_BATCH ? r : MOE_BATCH, 1);
    uint64_t widest =
        max_u64(max_u64((uint64_t)c->o_groups * c->o_lora, (uint64_t)c->engram_rows_per_token * c->engram_dim),
                max_u64((uint64_t)c->target_count * c->hidden, c->hidden));
    if (s) w.sum = (uint16_t *)m.take(r * (uint64_t)c->hidden, 2);
    w.px = take_packed(m, r, c->hidden);
    w.pxq = take_packed(m, r, c->hidden);
    w.pq = take_packed(m, r, c->q_lora);
    w.pt = take_packed(m, r, (int64_t)widest);
    w.po = take_packed(m, r * (uint64_t)c->o_groups, (int64_t)c->heads * c->head_dim / c->o_groups);
    w.pa = take_packed(m, pairs * (k + 1), c->moe_dim);
    w.ps = take_packed(m, EXPERTS_TOGETHER ? pairs * k : 0, (int64_t)max_u64(c->hidden, c->moe_dim));
    if (c->engram_layer_count) {
        w.pe = take_packed(m, FEW_ROWS, (int64_t)c->engram_rows_per_token * c->engram_dim);
        w.ekv_ahead = m.take((uint64_t)c->engram_layer_count * FEW_ROWS * (c->hc + 1) * c->hidden, 4);
    }
    w.tiles.tiles_max = tensor_tiles_max((uint32_t)pairs, (int)k, (int)max_u64(c->experts, c->draft_experts));
    w.tiles.pairs = (uint32_t *)m.take(pairs * k, 4);
    w.tiles.tile_expert = (int32_t *)m.take(w.tiles.tiles_max, 4);
    w.tiles.tile_first = (uint32_t *)m.take(w.tiles.tiles_max, 4);
    w.tiles.tile_count = (uint32_t *)m.take(w.tiles.tiles_max, 4);
    uint64_t rows = r < ATTENTION_BATCH ? r : ATTENTION_BATCH;
    w.attention.keys_max = (c->window + c->index_topk + 63) / 64 * 64;
    w.attention.keys = (dev_key *)m.take(rows * w.attention.keys_max, sizeof(dev_key));
    w.attention.fp4 = (uint8_t *)m.take(rows * w.attention.keys_max, 1);
    w.attention.count = (int32_t *)m.take(rows, 4);
    uint64_t heads = s ? max_u64((uint64_t)c->heads, (uint64_t)tensor_attention_rows_heads()) : (uint64_t)c->heads;
    w.attention.logits = (float *)m.take(rows * heads * max_u64(w.attention.keys_max, ROW_KEYS_MAX), 4);
    w.attention.total = (float *)m.take(rows * c->heads, 4);
}

static step_results *take_results(carver &m, uint64_t rows) {
    return (step_results *)m.take(1, sizeof(step_results) + rows * sizeof(int32_t));
}

/* s: this rank's share; NULL: alone. */
static void carve_work(carver &m, work &w, const cedar_config *c, const cedar_engine_opts &o, uint64_t r, uint64_t b,
                       const cedar_shard *s) {
    uint64_t dm = c->hidden, hd = (uint64_t)c->heads * c->head_dim, experts = max_u64(c->experts, c->draft_experts);
    uint64_t k = max_u64(c->experts_per_token, c->draft_experts_per_token), block = max_u64(1, c->draft_block);
    w.qr = m.take(r * c->q_lora, b);
    w.q = m.take(r * hd, b);
    w.kv = m.take(r * c->head_dim, b);
    w.iq = m.take(r * c->index_heads * c->index_dim, b);
    w.ig = m.take(r * c->index_heads, b);
    w.u = m.take(r * c->o_groups * c->o_lora, b);
    w.att = m.take(r * dm, b);
    w.y = m.take(r * dm, b);
    w.xc = m.take(r * dm, b);
    w.xqc = m.take(r * dm, b);
    w.e = m.take(r * c->engram_rows_per_token * c->engram_dim, b);
    w.ekv = m.take(r * (c->hc + 1) * dm, b);
    w.features_q = m.take(r * c->target_count * dm, b);
    w.main_x = m.take(r * dm, b);
    w.head = m.take((uint64_t)HEAD_BATCH * c->vocab, b);
    w.extra = m.take(c->vocab, b);
    w.row_y = m.take(block * dm, b);
    w.row_e = m.take(max_u64(1, c->markov_rank), b);
    w.latents = m.take(r * c->head_dim, b);
    w.moe.z = m.take(r * experts, b);
    w.moe.ids = (int32_t *)m.take(r * k, 4);
    w.moe.weight = m.take(r * k, b);
    uint64_t batch = r < MOE_BATCH ? r : MOE_BATCH;
    w.moe.a = m.take(batch * (k + 1) * c->moe_dim, b);
    w.moe.b = m.take(batch * (k + 1) * c->moe_dim, b);
    w.moe.aq = m.take(batch * (k + 1) * c->moe_dim, b);
    w.moe.out = m.take(batch * (k + 1) * dm, b);
    if (s) w.head_part = m.take((uint64_t)HEAD_BATCH * s->vocab, b);
    w.results = take_results(m, r);
    w.draft_ids = (int32_t *)m.take(block, 4);
    w.logits = (float *)m.take(max_u64(r, block) * c->vocab, 4);
    w.confidence = (float *)m.take(block, 4);
    w.freq = (double *)m.take(c->rope_dim, sizeof(double));
    w.engram = (int64_t *)m.take((uint64_t)CEDAR_ENGRAM_LAYERS_MAX * 3 * CEDAR_ENGRAM_ROWS_MAX, 8);
    w.layout = (cedar_layout *)m.take(1, sizeof(cedar_layout));
    w.active = (uint32_t *)m.take(r, 4);
    w.kept = (uint32_t *)m.take(r, 4);
    w.logit_rows = (uint32_t *)m.take(r, 4);
    if (o.arith == CEDAR_BF16) carve_tensor(m, w, c, r, s);
}

static void carve_staging(carver &m, staging &h, const cedar_engine_opts &o, uint64_t r, uint64_t pages_per_seq) {
    h.entries = (dev_entry *)m.take(o.step_seqs, sizeof(dev_entry));
    h.token = (int32_t *)m.take(r, 4);
    h.entry = (int32_t *)m.take(r, 4);
    h.pos = (uint32_t *)m.take(r, 4);
    h.active = (uint32_t *)m.take(r, 4);
    h.kept = (uint32_t *)m.take(r, 4);
    h.first_kept = (uint32_t *)m.take((uint64_t)o.step_seqs + 1, 4);
    h.logit_rows = (uint32_t *)m.take(r, 4);
    h.page_count = (uint32_t *)m.take(o.step_seqs, 4);
    h.results = take_results(m, r);
    h.page_table = (int32_t *)m.take((uint64_t)o.step_seqs * pages_per_seq, 4);
}

static void sizes_of(dev &d, const cedar_config *c, const cedar_engine_opts &o) {
    memset(&d, 0, sizeof d);
    d.hidden = c->hidden; d.hc = c->hc; d.head_dim = c->head_dim; d.heads = c->heads; d.rope = c->rope_dim;
    d.window = c->window; d.q_lora = c->q_lora; d.index_heads = c->index_heads; d.index_dim = c->index_dim;
    d.topk = c->index_topk; d.cut = c->cut; d.layers = c->layers;
    d.candidate_blocks = c->candidate_source >= 0 ? c->candidate_blocks : 0;
    d.candidate_block = c->candidate_block; d.context = (int32_t)o.context_tokens; d.hc_iters = c->hc_iters;
    d.ngram = c->ngram; d.engram_heads = c->engram_heads; d.engram_rows = c->engram_rows_per_token;
    d.targets = c->target_count; d.hc_eps = c->hc_eps; d.norm_eps = c->norm_eps;
    d.pages_per_seq = (int32_t)((o.context_tokens + o.page_tokens - 1) / o.page_tokens);
    d.real_bytes = o.arith == CEDAR_WIDE ? 8 : 4;
    d.stream_bytes = o.arith == CEDAR_BF16 ? 2 : d.real_bytes;
    d.row_max = rows_of(c, &o);
}

/* Half of a rank's inbox: for sums of a batch of rows, and for the head's columns. */
static uint64_t inbox_bytes(const cedar_config *c, const cedar_engine_opts &o, const dev &d) {
    uint32_t rows = d.row_max < SUM_BATCH ? d.row_max : SUM_BATCH;
    uint64_t width = (uint64_t)c->hidden * d.stream_bytes, ranks = o.gpus, fused = fused_rows(o.gpus);
    if (o.allreduce != CEDAR_ALLREDUCE_FUSED) fused = 0;
    if (fused > rows) fused = rows;
    return max_u64(max_u64(peers_sum_bytes((int)ranks, rows, width), ranks * fused * width),
                   (uint64_t)HEAD_BATCH * c->vocab * d.real_bytes);
}

/* With o->gpus > 1: of one rank, whose shape c is. */
static uint64_t cuda_workspace_bytes(const cedar_config *c, const cedar_engine_opts *o) {
    dev d;
    work w;
    cedar_layout l;
    cedar_shard s = {};
    bool several = o->gpus > 1;
    if (several) s.vocab = (int32_t)((c->vocab + o->gpus * CEDAR_SHARD_VOCAB_UNIT - 1) / o->gpus);   /* at most */
    cedar_layout_make(c, o->page_tokens, o->verify_rows, &l);
    sizes_of(d, c, *o);
    carver m = { NULL, 0 };
    carve_rows(m, d, c, *o, l);
    carve_work(m, w, c, *o, d.row_max, d.real_bytes, several ? &s : NULL);
    return m.used + (several ? 2 * inbox_bytes(c, *o, d) : 0);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

struct upload {
    cuda_backend *b;
    carver m;
    uint32_t count;
    bool copy;
    cedar_synth_recipe *recipe;     /* on the device */
    /* of a rank that makes its weights: room for whole tensors, of which slices are kept */
    uint64_t whole_data, whole_scale;
    uint8_t *scratch;
};

/* bf16 decoding multiplies by a scale in one product, which has room for scales of any sane weight. */
static cedar_status check_scales(const cuda_backend *b, const cedar_tensor_info *t, uint64_t count, cedar_err *err) {
    int most = tensor_scale_max(t->slot->kind);
    for (uint64_t i = 0; b->o.arith == CEDAR_BF16 && i < count; i++)
        if (t->slot->scale[i] > most)
            return cedar_fail(err, CEDAR_E_UNSUPPORTED,
                              "tensor %s: scale %llu is 2^%d, and backend \"cuda\" in bf16 holds up to 2^%d", t->name,
                              (unsigned long long)i, t->slot->scale[i] - 127, most - 127);
    return CEDAR_OK;
}

/* Rows [row, row + rows) of `width` bytes from byte `first` on, out of rows of `pitch` bytes. */
static cudaError_t cut_out(uint8_t *to, const uint8_t *from, int64_t pitch, int64_t row, int64_t rows, int64_t first,
                           int64_t width, cudaStream_t s) {
    if (!rows || !width) return cudaSuccess;
    return cudaMemcpy2DAsync(to, (size_t)width, from + row * pitch + first, (size_t)pitch, (size_t)width, (size_t)rows,
                             cudaMemcpyDeviceToDevice, s);
}

/* The same cuts as cedar_slice_copy, on the device. */
static cudaError_t keep_slice(const upload *u, const cedar_tensor_info *t, const cedar_slice &cut,
                              const dev_weight &w) {
    int64_t halves = t->kind == CEDAR_W_FP4 ? 1 : t->kind == CEDAR_W_BF16 ? 4 : t->kind == CEDAR_W_F32 ? 8 : 2;
    int64_t tall = t->kind == CEDAR_W_TILES ? 32 : 1;
    cudaError_t e = cut_out((uint8_t *)(uintptr_t)w.data, u->scratch, t->cols * halves / 2, cut.row, cut.rows,
                            cut.col * halves / 2, cut.cols * halves / 2, u->b->stream);
    if (e || !w.scale) return e;
    return cut_out((uint8_t *)(uintptr_t)w.scale, u->scratch + u->whole_data, (t->cols + 31) / 32, cut.row / tall,
                   (cut.rows + tall - 1) / tall, cut.col / 32, (cut.cols + 31) / 32, u->b->stream);
}

/* Seeded weights are made on the device. */
static cedar_status make_weight(upload *u, const cedar_tensor_info *t, const cedar_slice &cut, const dev_weight &w,
                                cedar_err *err) {
    cedar_synth_recipe r;
    cudaStream_t s = u->b->stream;
    cedar_synth_recipe_make(u->b->model->seed, t, &r);
    cedar_status st =
        check(cudaMemcpyAsync(u->recipe, &r, sizeof r, cudaMemcpyHostToDevice, s), "copying a recipe", err);
    if (st) return st;
    uint8_t *data = (uint8_t *)(uintptr_t)w.data, *scale = (uint8_t *)(uintptr_t)w.scale;
    if (cut.whole) {
        launch_synth(u->recipe, w, data, scale, cedar_tensor_scale_bytes(t), s);
    } else {
        dev_weight whole = { t->kind, t->rows, t->cols, u->scratch, u->scratch + u->whole_data };
        launch_synth(u->recipe, whole, u->scratch, u->scratch + u->whole_data, cedar_tensor_scale_bytes(t), s);
        st = check(keep_slice(u, t, cut, w), "cutting weights", err);
    }
    cudaError_t e = cudaStreamSynchronize(s);       /* the recipe has been read */
    return st ? st : check(e, "making weights", err);
}

static cedar_status copy_weight(upload *u, const cedar_tensor_info *t, const cedar_slice &cut, const dev_weight &w,
                                cedar_err *err) {
    uint64_t data = cedar_slice_data_bytes(t, &cut), scale = cedar_slice_scale_bytes(t, &cut);
    const uint8_t *from = t->slot->data, *from_scale = t->slot->scale;
    uint8_t *own = NULL;
    cedar_status st = check_scales(u->b, t, cedar_tensor_scale_bytes(t), err);
    if (!st && !cut.whole) {
        own = (uint8_t *)cedar_calloc(data + scale + 1, 1);
        if (!own) return cedar_fail(err, CEDAR_E_OOM, "no memory for a part of tensor %s", t->name);
        cedar_slice_copy(t, &cut, own, own + data);
        from = own;
        from_scale = own + data;
    }
    if (!st && data)
        st = check(cudaMemcpyAsync((void *)(uintptr_t)w.data, from, data, cudaMemcpyHostToDevice, u->b->stream),
                   "copying weights", err);
    if (!st && scale)
        st = check(cudaMemcpyAsync((void *)(uintptr_t)w.scale, from_scale, scale, cudaMemcpyHostToDevice,
                                   u->b->stream),
                   "copying scales", err);
    cudaError_t e = cudaStreamSynchronize(u->b->stream);    /* the copies are done with what is freed */
    cedar_free(own);
    return st ? st : check(e, "copying weights", err);
}

static cedar_status upload_visit(void *self, const cedar_tensor_info *t, cedar_err *err) {
    upload *u = (upload *)self;
    const cedar_rank *rank = u->b->rank;
    cedar_slice cut = { 0, t->rows, 0, t->cols, true };
    if (rank) cut = cedar_shard_slice(&u->b->model->config, &rank->shard, t);
    u->count++;
    uint64_t data = cedar_slice_data_bytes(t, &cut), scale = cedar_slice_scale_bytes(t, &cut);
    uint8_t *at = (uint8_t *)u->m.take(data, 1), *at_scale = scale ? (uint8_t *)u->m.take(scale, 1) : NULL;
    if (!cut.whole) {
        u->whole_data = max_u64(u->whole_data, cedar_tensor_data_bytes(t));
        u->whole_scale = max_u64(u->whole_scale, cedar_tensor_scale_bytes(t));
    }
    if (!u->copy) return CEDAR_OK;
    dev_weight w = { t->slot->kind, cut.rows, cut.cols, at, at_scale };
    u->b->weight[t->slot->index] = w;
    cedar_status st = u->b->model->seeded ? make_weight(u, t, cut, w, err) : copy_weight(u, t, cut, w, err);
    if (!st) launch_spread(w.kind, at, data, u->b->stream);
    return st ? st : check(cudaStreamSynchronize(u->b->stream), "preparing weights", err);
}

static cedar_status upload_experts(cuda_backend *b, int32_t i, cedar_err *err) {
    const cedar_block *k = &b->model->blocks[i];
    size_t n = (size_t)k->expert_count;
    dev_weight *list = (dev_weight *)cedar_calloc(3 * n, sizeof *list);
    if (!list) return cedar_fail(err, CEDAR_E_OOM, "no memory for a list of %zu experts", n);
    for (size_t e = 0; e < n; e++) {
        list[e] = b->weight[k->experts[e].w1.index];
        list[n + e] = b->weight[k->experts[e].w2.index];
        list[2 * n + e] = b->weight[k->experts[e].w3.index];
    }
    cedar_status st = check(cudaMalloc(&b->experts[i], 3 * n * sizeof *list), "taking memory for expert lists", err);
    if (!st)
        st = check(cudaMemcpy(b->experts[i], list, 3 * n * sizeof *list, cudaMemcpyHostToDevice),
                   "copying expert lists", err);
    cedar_free(list);
    return st;
}

static cedar_status upload_weights(cuda_backend *b, cedar_err *err) {
    cedar_model *m = (cedar_model *)(uintptr_t)b->model;    /* the visitor hands out slots; nothing is changed */
    upload u = { b, { NULL, 0 }, 0, false, NULL, 0, 0, NULL };
    cedar_status st = cedar_tensors_visit(&m->config, m, upload_visit, &u, err);
    if (st) return st;
    int32_t blocks = b->c->layers + b->c->stages;
    b->weight = (dev_weight *)cedar_calloc(u.count, sizeof *b->weight);
    b->experts = (dev_weight **)cedar_calloc((size_t)blocks, sizeof *b->experts);
    if (!b->weight || !b->experts) return cedar_fail(err, CEDAR_E_OOM, "no memory for the list of weights");
    if (cudaMalloc(&b->weights_mem, u.m.used) != cudaSuccess) {
        size_t left = 0, total = 0;
        cudaMemGetInfo(&left, &total);
        return cedar_fail(err, CEDAR_E_BUDGET, "the weights need %.2f GB of device memory, %.2f GB of %.2f GB are free",
                          (double)u.m.used / 1e9, (double)left / 1e9, (double)total / 1e9);
    }
    u.m.base = b->weights_mem;
    u.m.used = 0;
    u.copy = true;
    u.whole_data = (u.whole_data + 255) / 256 * 256;
    if (m->seeded) st = check(cudaMalloc(&u.recipe, sizeof *u.recipe), "taking memory for a recipe", err);
    if (!st && m->seeded && u.whole_data)
        st = check(cudaMalloc(&u.scratch, u.whole_data + u.whole_scale), "taking memory for whole weights", err);
    if (!st) st = cedar_tensors_visit(&m->config, m, upload_visit, &u, err);
    cudaFree(u.recipe);
    cudaFree(u.scratch);
    for (int32_t i = 0; i < blocks && !st; i++) st = upload_experts(b, i, err);
    return st;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Also while one of them runs: it goes when it has ended. */
static void drop_graphs(cuda_backend *b) {
    for (int i = 0; i < GRAPHS_MAX; i++) {
        if (b->graphs[i].exec) cudaGraphExecDestroy(b->graphs[i].exec);
        b->graphs[i].exec = NULL;
    }
}

static void cuda_close(void *self) {
    cuda_backend *b = (cuda_backend *)self;
    if (!b) return;
    cudaSetDevice(b->device);
    drop_graphs(b);
    if (b->n) nccl_leave(b->n, (int)b->rank->shard.rank);
    if (b->rank) peers_close(&b->link);
    if (b->stream) cudaStreamDestroy(b->stream);
    for (int i = 0; i < SIDES; i++) {
        if (b->side[i]) cudaStreamDestroy(b->side[i]);
        if (b->forked[i]) cudaEventDestroy(b->forked[i]);
        if (b->joined[i]) cudaEventDestroy(b->joined[i]);
    }
    for (int i = 0; i < CEDAR_ENGRAM_LAYERS_MAX; i++)
        if (b->engram[i]) cudaEventDestroy(b->engram[i]);
    cudaFree(b->weights_mem);
    cudaFree(b->memory);
    if (b->experts)
        for (int32_t i = 0; i < b->c->layers + b->c->stages; i++) cudaFree(b->experts[i]);
    cudaFreeHost(b->pinned);
    cedar_free(b->weight);
    cedar_free(b->experts);
    cedar_free(b);
}

static cedar_status fill_constants(cuda_backend *b, cedar_err *err) {
    const cedar_config *c = b->c;
    double freq[8192];
    if (c->rope_dim > 8192) return cedar_fail(err, CEDAR_E_UNSUPPORTED, "rotary width %d is beyond 8192", c->rope_dim);
    cedar_rope_frequencies(c, freq, freq + c->rope_dim / 2);
    cedar_status st = check(cudaMemcpy(b->w.freq, freq, (size_t)c->rope_dim * sizeof *freq, cudaMemcpyHostToDevice),
                            "copying constants", err);
    for (int32_t e = 0; e < c->engram_layer_count && !st; e++) {
        int64_t *at = b->w.engram + (size_t)e * 3 * CEDAR_ENGRAM_ROWS_MAX;
        st = check(cudaMemcpy(at, c->engram_mul[e], sizeof c->engram_mul[e], cudaMemcpyHostToDevice),
                   "copying constants", err);
        if (!st)
            st = check(cudaMemcpy(at + CEDAR_ENGRAM_ROWS_MAX, c->engram_prime[e], sizeof c->engram_prime[e],
                                  cudaMemcpyHostToDevice),
                       "copying constants", err);
        if (!st)
            st = check(cudaMemcpy(at + 2 * CEDAR_ENGRAM_ROWS_MAX, c->engram_offset[e], sizeof c->engram_offset[e],
                                  cudaMemcpyHostToDevice),
                       "copying constants", err);
    }
    if (!st) st = check(cudaMemcpy(b->w.layout, &b->l, sizeof b->l, cudaMemcpyHostToDevice), "copying constants", err);
    if (!st)
        st = check(cudaMemcpy(b->d.token_map, b->model->token_map, (size_t)c->vocab * 4, cudaMemcpyHostToDevice),
                   "copying the token map", err);
    b->d.l = b->w.layout;
    return st;
}

static cedar_status take_memory(cuda_backend *b, cedar_err *err) {
    const cedar_shard *s = b->rank ? &b->rank->shard : NULL;
    sizes_of(b->d, b->c, b->o);
    carver m = { NULL, 0 };
    carve_state(m, b->d, b->o, b->l, s);
    b->state_bytes = m.used;
    carve_rows(m, b->d, b->c, b->o, b->l);
    carve_work(m, b->w, b->c, b->o, b->d.row_max, b->d.real_bytes, s);
    if (cudaMalloc(&b->memory, m.used) != cudaSuccess) {
        size_t left = 0, total = 0;
        cudaMemGetInfo(&left, &total);
        return cedar_fail(
            err, CEDAR_E_BUDGET,
            "KV pages, sequences and workspace need %.2f GB of device memory, %.2f GB of %.2f GB are free; "
            "see `cedar plan`",
            (double)m.used / 1e9, (double)left / 1e9, (double)total / 1e9);
    }
    m.base = b->memory;
    m.used = 0;
    carve_state(m, b->d, b->o, b->l, s);
    carve_rows(m, b->d, b->c, b->o, b->l);
    carve_work(m, b->w, b->c, b->o, b->d.row_max, b->d.real_bytes, s);
    carver p = { NULL, 0 };
    carve_staging(p, b->h, b->o, b->d.row_max, b->d.pages_per_seq);
    cedar_status st = check(cudaMallocHost(&b->pinned, p.used), "taking pinned host memory", err);
    if (st) return st;
    p.base = b->pinned;
    p.used = 0;
    carve_staging(p, b->h, b->o, b->d.row_max, b->d.pages_per_seq);
    st = check(cudaMemset(b->memory, 0x7F, m.used), "filling device memory", err);
    return st ? st : check(cudaMemset(b->d.hc_tickets, 0, b->d.row_max * 4), "filling device memory", err);
}

/* Norms of bf16 hold a row in registers. */
static cedar_status check_shape(const cedar_config *c, const cedar_engine_opts *o, cedar_err *err) {
    int most = tensor_norm_width_max();
    if (o->arith != CEDAR_BF16 || (c->hidden <= most && c->q_lora <= most)) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_UNSUPPORTED,
                      "hidden width %d and query rank %d: backend \"cuda\" in bf16 takes up to %d; f32 takes any",
                      c->hidden, c->q_lora, most);
}

/* What the main stream will wait for goes first where both have blocks to place, Engram's long matrices last. */
static cedar_status make_streams(cuda_backend *b, cedar_err *err) {
    int least = 0, most = 0;
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &most);
    int middle = most < least ? least - 1 : least;
    if (!e) e = cudaStreamCreateWithPriority(&b->stream, cudaStreamNonBlocking, middle);
    for (int i = 0; i < SIDES && !e && !b->one_stream; i++) {
        e = cudaStreamCreateWithPriority(&b->side[i], cudaStreamNonBlocking, i == SIDE_ENGRAM ? least : most);
        if (!e) e = cudaEventCreateWithFlags(&b->forked[i], cudaEventDisableTiming);
        if (!e) e = cudaEventCreateWithFlags(&b->joined[i], cudaEventDisableTiming);
    }
    for (int i = 0; i < b->c->engram_layer_count && !e && !b->one_stream; i++)
        e = cudaEventCreateWithFlags(&b->engram[i], cudaEventDisableTiming);
    return check(e, "making streams", err);
}

/* --- several ranks ------------------------------------------------------------------------------------------------ */

/* Which GPU, and what that asks for. */
static cedar_status place_rank(cuda_backend *b, int devices, cedar_err *err) {
    if (!b->rank) return check(cudaGetDevice(&b->device), "asking for the GPU", err);
    const cedar_shard *s = &b->rank->shard;
    const char *loading = getenv("CUDA_MODULE_LOADING");
    b->shared = (uint32_t)devices < s->ranks;
    b->one_stream = b->one_stream || b->shared;     /* fewer queues that one rank's waits could block for another's */
    b->device = (int)(s->rank % (uint32_t)devices);
    if (s->ranks > CEDAR_CUDA_RANKS_MAX)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "gpus is %u; backend \"cuda\" takes up to %d", s->ranks,
                          CEDAR_CUDA_RANKS_MAX);
    /* a kernel that is loaded at its first launch may have to wait for the GPU, which waits for that kernel */
    if (b->shared && (!loading || strcmp(loading, "EAGER")))
        return cedar_fail(err, CEDAR_E_ARG,
                          "gpus is %u, but this machine has %d; to let ranks share a GPU, as tests do, set "
                          "CUDA_MODULE_LOADING=EAGER in the environment",
                          s->ranks, devices);
    if (b->shared && b->o.allreduce == CEDAR_ALLREDUCE_NCCL)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "allreduce is \"nccl\", which needs a GPU for each of %u ranks; "
                          "there are %d", s->ranks, devices);
    return check(cudaSetDevice(b->device), "choosing a GPU", err);
}

static cedar_status open_nccl(cuda_backend *b, cedar_err *err) {
    const cedar_shard *s = &b->rank->shard;
    int device[CEDAR_CUDA_RANKS_MAX];
    void *all[CEDAR_CUDA_RANKS_MAX];
    for (uint32_t r = 0; r < s->ranks; r++) device[r] = (int)r;
    uint64_t rows = b->d.row_max < SUM_BATCH ? b->d.row_max : SUM_BATCH,
             bytes = rows * (uint64_t)b->c->hidden * (uint64_t)b->d.stream_bytes;
    cedar_status st = s->rank == 0 ? nccl_open((int)s->ranks, device, bytes, &b->n, err) : CEDAR_OK;
    if (st) return st;
    if (!cedar_ranks_share(b->rank->group, s->rank, b->n, all)) return cedar_ranks_error(b->rank->group, err);
    b->n = (nccl *)all[0];
    return check(cudaSetDevice(b->device), "choosing a GPU", err);
}

/* After all memory is there: connects this rank with the others. */
static cedar_status join_ranks(cuda_backend *b, cedar_err *err) {
    const cedar_rank *rank = b->rank;
    const cedar_config *whole = &b->model->config;
    const cedar_shard *s = &rank->shard;
    void *links[CEDAR_CUDA_RANKS_MAX], *pools[CEDAR_CUDA_RANKS_MAX];
    cedar_status st = check(peers_open(&b->link, (int)s->rank, (int)s->ranks, b->shared,
                                       inbox_bytes(whole, b->o, b->d)),
                            "taking memory for exchanges", err);
    if (st) return st;
    if (!cedar_ranks_share(rank->group, s->rank, &b->link, links) ||
        !cedar_ranks_share(rank->group, s->rank, b->d.pages, pools))
        return cedar_ranks_error(rank->group, err);
    st = check(peers_connect(&b->link, (peer_link *const *)links),
               "switching on access between GPUs (gpus > 1 needs NVLink or PCIe peer access)", err);
    b->d.rank = (int32_t)s->rank;
    b->d.ranks = (int32_t)s->ranks;
    for (uint32_t r = 0; r < s->ranks && !st; r++) {
        cedar_shard other;
        b->d.pages_of[r] = (uint8_t *)pools[r];
        st = cedar_shard_make(whole, r, s->ranks, &other, err);
        if (!st) b->columns.first[r + 1] = other.vocab_first + other.vocab;
    }
    return !st && b->o.allreduce == CEDAR_ALLREDUCE_NCCL ? open_nccl(b, err) : st;
}

/* A rank's launches are done, or have given up. */
static cedar_status wait_for_ranks(cuda_backend *b, const char *what, cedar_err *err) {
    const cedar_rank *rank = b->rank;
    cudaError_t e;
    while ((e = cudaStreamQuery(b->stream)) == cudaErrorNotReady) {
        (void)cudaGetLastError();
        if (cedar_ranks_broken(rank->group)) {
            peers_stop(&b->link);
            if (b->n) {
                drop_graphs(b);
                nccl_stop(b->n, (int)rank->shard.rank);
            }
        }
        sched_yield();
    }
    cedar_status st = check(e, what, err);
    int late = peers_fault(&b->link);
    if (st || late < 0) return st;
    cedar_ranks_fail(rank->group, (uint32_t)late, CEDAR_E_LIVENESS,
                     "its part of an exchange between GPUs did not come within 5 s");
    return cedar_ranks_error(rank->group, err);
}

static cedar_status cuda_open(const cedar_model *m, const cedar_engine_opts *o, const cedar_layout *l,
                              const cedar_rank *rank, void **self, cedar_err *err) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return cedar_fail(err, CEDAR_E_CUDA, "backend \"cuda\" finds no GPU on this machine");
    cuda_backend *b = (cuda_backend *)cedar_calloc(1, sizeof *b);
    if (!b) return cedar_fail(err, CEDAR_E_OOM, "no memory for the CUDA backend");
    b->model = m;
    b->c = &m->config;
    b->o = *o;
    b->l = *l;
    b->use_graphs = !o->eager;
    b->one_stream = o->one_stream;
    b->rank = rank;
    if (rank) {
        cedar_shard_config(&m->config, &rank->shard, &b->local);
        b->c = &b->local;
    }
    cedar_status st = check_shape(&m->config, o, err);
    if (!st) st = place_rank(b, devices, err);
    if (!st) st = make_streams(b, err);
    /* A multiprocessor that runs kernels with little shared memory would have to end them all before it can take one
     * with much: so all leave that to it. */
    if (!st) st = check(cudaDeviceSetCacheConfig(cudaFuncCachePreferShared), "setting up kernels", err);
    if (!st) st = check(tensor_prepare(), "setting up kernels", err);
    if (!st) st = check(tensor_attention_prepare(), "setting up kernels", err);
    if (!st) st = upload_weights(b, err);
    if (!st) st = take_memory(b, err);
    if (!st) st = fill_constants(b, err);
    if (!st && rank) st = join_ranks(b, err);
    if (!st) st = check(cudaDeviceSynchronize(), "opening", err);
    if (st) {
        cuda_close(b);
        return st;
    }
    *self = b;
    return CEDAR_OK;
}

/* --- looking inside ----------------------------------------------------------------------------------------------- */

/* Where ranks share a GPU, the copies of one that looks inside a step may stand behind kernels of another that wait for
 * it: none goes on before all have their copies. Ranks that do not meet end at their next exchange. */
static void meet_looking(const cuda_backend *b) {
    if (b->shared) (void)cedar_ranks_meet(b->rank->group, b->rank->shard.rank);
}

/* Copies `bytes` from the device after all launches so far; NULL when that fails (the step's own check reports it). */
static uint8_t *fetch(cuda_backend *b, const void *from, uint64_t bytes) {
    /* taps are a debugging path: outside the allocation guard on purpose */
    uint8_t *to = (uint8_t *)malloc(bytes);
    if (to && (cudaStreamSynchronize(b->stream) != cudaSuccess ||
               cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost) != cudaSuccess)) {
        free(to);
        return NULL;
    }
    return to;
}

enum tap_type { TAP_REAL, TAP_BYTES };

/* Calls the tap for the rows of the list. by_row: data lies by row id, else by place. width: elements handed over per
 * row; ld: elements from one row to the next; unit: bytes of an element as stored. */
static void tap_rows(cuda_backend *b, cedar_tap_kind kind, int32_t layer, const cedar_step_plan *plan,
                     const uint32_t *list, uint32_t n, const void *data, bool by_row, uint64_t ld, uint32_t width,
                     tap_type type, uint32_t unit) {
    if (!b->tap) return;
    uint8_t *host = fetch(b, data, (uint64_t)(by_row ? b->d.row_max : n) * ld * unit);
    double *wide_row = (double *)malloc(sizeof(double) * (width ? width : 1));
    for (uint32_t i = 0; host && wide_row && i < n; i++) {
        uint32_t row = list[i];
        const uint8_t *at = host + (uint64_t)(by_row ? row : i) * ld * unit;
        for (uint32_t k = 0; type == TAP_REAL && k < width; k++)
            wide_row[k] = unit == 8   ? ((const double *)at)[k]
                          : unit == 4 ? (double)((const float *)at)[k]
                                      : (double)cedar_bf16_value(((const uint16_t *)at)[k]);
        b->tap(b->tap_self, kind, layer, plan->entries[b->h.entry[row]].seq, b->h.pos[row],
               type == TAP_REAL ? (const void *)wide_row : at, width);
    }
    meet_looking(b);
    free(host);
    free(wide_row);
}

/* Scores of rows [first, first + n) of the list, as many as each row sees. */
static void tap_scores(cuda_backend *b, int32_t layer, const cedar_step_plan *plan, const uint32_t *list,
                       uint32_t first, uint32_t n, int ratio) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t visible = (b->h.pos[list[first + i]] + 1) / (uint32_t)ratio;
        tap_rows(b, CEDAR_TAP_SCORES, layer, plan, list + first + i, 1,
                 (const uint8_t *)b->d.scores + (uint64_t)i * b->d.context * b->d.real_bytes, false, visible, visible,
                 TAP_REAL, b->d.real_bytes);
    }
}

static void tap_pool(cuda_backend *b, int32_t layer, const cedar_step_plan *plan, const uint32_t *list, uint32_t first,
                     uint32_t n, int ratio) {
    uint8_t *blocks = fetch(b, b->d.pool, (uint64_t)b->d.row_max * b->d.candidate_blocks * 4),
            *counts = fetch(b, b->d.pool_count, (uint64_t)b->d.row_max * 4);
    uint8_t *mask = (uint8_t *)malloc((size_t)b->d.context);
    for (uint32_t i = first; blocks && counts && mask && i < first + n; i++) {
        uint32_t row = list[i], visible = (b->h.pos[row] + 1) / (uint32_t)ratio;
        memset(mask, 0, visible);
        for (int32_t k = 0; k < ((const int32_t *)counts)[row]; k++)
            for (int32_t j = 0; j < b->d.candidate_block; j++) {
                uint32_t at = (uint32_t)(((const int32_t *)blocks)[(uint64_t)row * b->d.candidate_blocks + k] *
                                             b->d.candidate_block +
                                         j);
                if (at < visible) mask[at] = 1;
            }
        b->tap(b->tap_self, CEDAR_TAP_POOL, layer, plan->entries[b->h.entry[row]].seq, b->h.pos[row], mask, visible);
    }
    meet_looking(b);
    free(blocks);
    free(counts);
    free(mask);
}

/* --- the forward pass --------------------------------------------------------------------------------------------- */

template <class A> struct forward {
    typedef typename A::real real;
    cuda_backend *b;
    dev d;
    const cedar_config *c;
    cudaStream_t s;
    const cedar_step_plan *plan;
    uint32_t n;                         /* rows that run now */
    const uint32_t *list;               /* their ids, on the host */
    bool pooled;
    bool collapsed;                     /* the last sums into the streams have made the next input, too */
    bool nccl_ok;                       /* no call of NCCL has failed */
    bool projected;                     /* the layer's low-rank queries and keys are there, or under way */

    dev_weight W(const cedar_weight &w) const {
        static const dev_weight none = { CEDAR_W_NONE, 0, 0, NULL, NULL };
        return w.kind == CEDAR_W_NONE ? none : b->weight[w.index];
    }
    dev_rows by_row(void *base, int64_t ld) const { return dev_rows{ base, ld, true }; }
    dev_rows by_place(void *base, int64_t ld) const { return dev_rows{ base, ld, false }; }
    static constexpr bool tensor = std::is_same<A, bf16>::value;

    /* Launches made by `work` go to a side stream, after all before them; join makes the main stream wait for them.
     * With a tap everything stays on one stream, which is what the tap reads behind. */
    bool one_stream() const { return b->one_stream || b->tap; }
    template <class Work> void fork(int side, Work work) {
        cudaStream_t main = s;
        if (!one_stream()) {
            cudaEventRecord(b->forked[side], s);
            s = b->side[side];
            cudaStreamWaitEvent(s, b->forked[side], 0);
        }
        work();
        s = main;
    }
    void join(int side) {
        if (one_stream()) return;
        cudaEventRecord(b->joined[side], b->side[side]);
        cudaStreamWaitEvent(s, b->joined[side], 0);
    }

    /* Everywhere but behind NCCL's sums a kernel is the last work before. */
    chain chained() const { return chain{ s, true, b->shared }; }

    operand packed(const uint16_t *x, bool indexed) const {
        return operand{ x, indexed ? d.active : NULL, 1, 0, !few_rows(n) };
    }
    /* Packs rows for the linear layers that follow; `quantised`: through FP8Q32. */
    void pack(const dev_rows &x, int64_t k_count, bool quantised, uint16_t *out) {
        if constexpr (tensor)
            tensor_pack(x.base, false, x.ld, x.indexed ? d.active : NULL, n, k_count, quantised, !few_rows(n),
                        out, chained());
    }
    /* x its values (of the other arithmetics), p the same packed, under the same row numbers. */
    void linear(const cedar_weight &w, dev_rows x, const uint16_t *p, void *y, bool round) {
        if constexpr (tensor)
            tensor_linear(W(w), packed(p, x.indexed), n, result{ y, W(w).rows, round ? AS_ROUNDED : AS_SUMMED },
                          chained());
        else launch_linear<A>(d, n, W(w), 0, W(w).rows, x, by_place(y, W(w).rows), round, s);
    }
    hc_site site(const cedar_weight &fn, const cedar_weight &base, const cedar_weight &scale) const {
        return hc_site{ W(fn), W(base), W(scale) };
    }

    /* A block's normed input: x by row and what the linear layers read, with `both` also without FP8. */
    void collapse(const void *pre, const cedar_weight &gain, void *x, void *xq, bool indexed, bool both) {
        if constexpr (!tensor) launch_collapse<A>(d, n, pre, W(gain), x, xq, indexed, s);
        else if (!collapsed) tensor_collapse(d, n, into(pre, gain, indexed, both), chained());
        collapsed = false;
    }
    collapse_into into(const void *pre, const cedar_weight &gain, bool indexed, bool both) const {
        return collapse_into{ pre, W(gain), indexed, !few_rows(n), both ? b->w.px : NULL, b->w.pxq };
    }
    /* Streams expanded with y, or with the sum of m's experts if that is NULL, and the input that `to` tells of. The
     * side stream with their coefficients must have been joined. */
    void expand_collapse(const real *y, const dev_moe &m, const collapse_into &to, chain last) {
        tensor_expand_collapse(d, n, (const float *)y, m, to, last);
        collapsed = true;
    }
    /* Sources also read a block's input as it is without FP8. */
    bool reads_plain(int32_t layer) const { return c->is_kv_source[layer] || c->is_index_source[layer]; }

    /* The layer's table rows by place in w.e. */
    dev_rows engram_rows(const cedar_block *k, int32_t layer) {
        const int64_t *e = b->w.engram + (size_t)c->engram_at[layer] * 3 * CEDAR_ENGRAM_ROWS_MAX;
        launch_engram_rows<A>(d, n, 0, e, e + CEDAR_ENGRAM_ROWS_MAX, e + 2 * CEDAR_ENGRAM_ROWS_MAX, c->engram_pad,
                              W(k->engram_embed), b->w.e, chained());
        tap_rows(b, CEDAR_TAP_ENGRAM_ROWS, layer, plan, list, n, d.engram_ids, true, d.engram_rows,
                 (uint32_t)d.engram_rows, TAP_BYTES, 8);
        return by_place(b->w.e, (int64_t)c->engram_rows_per_token * c->engram_dim);
    }

    /* Steps whose rows are few and stay the same: there Engram's matrices, which are long and need tokens only, run
     * beside the layers before them. */
    bool engram_ahead() const {
        return tensor && c->engram_layer_count && !one_stream() && few_rows(plan->rows) && !plan->trimmed;
    }
    void *ahead_of(int32_t e) const {
        return (float *)b->w.ekv_ahead + (uint64_t)e * FEW_ROWS * (uint64_t)((c->hc + 1) * c->hidden);
    }

    void start_engram() {
        if constexpr (tensor)
            fork(SIDE_ENGRAM, [&] {
                for (int32_t e = 0; e < c->engram_layer_count; e++) {
                    const cedar_block *k = &b->model->blocks[c->engram_layers[e]];
                    dev_rows rows = engram_rows(k, c->engram_layers[e]);
                    pack(rows, rows.ld, true, b->w.pe);
                    tensor_linear_aside(W(k->engram_wkv), packed(b->w.pe, false), n,
                                        result{ ahead_of(e), W(k->engram_wkv).rows, AS_ROUNDED }, chained());
                    cudaEventRecord(b->engram[e], s);
                }
            });
    }

    void engram(const cedar_block *k, int32_t layer) {
        void *kv = b->w.ekv;
        if (engram_ahead()) {
            cudaStreamWaitEvent(s, b->engram[c->engram_at[layer]], 0);
            kv = ahead_of(c->engram_at[layer]);
        } else {
            dev_rows rows = engram_rows(k, layer);
            pack(rows, rows.ld, true, b->w.pt);
            linear(k->engram_wkv, rows, b->w.pt, kv, true);
        }
        launch_engram_gate<A>(d, n, W(k->engram_q), W(k->engram_k), kv, chained());
    }

    /* Fewer rows go on between the keys and the queries of the layer. */
    bool moves(int32_t layer) const {
        return layer == c->cut && plan && plan->trimmed && plan->cut != CEDAR_CUT_AFTER;
    }

    /* Up to the keys of the layer's own rows, which may still be under way on SIDE_KV, as its mHC coefficients on
     * SIDE_HC. */
    void before(const cedar_block *k, int32_t layer, bool draft) {
        int kind = c->ratio[layer] > 0;
        if (!draft && c->engram_at[layer] >= 0) engram(k, layer);
        if (!draft && c->is_target[layer]) {
            int slot = 0;
            while (c->targets[slot] != layer) slot++;
            launch_feature<A>(d, n, slot, s);
        }
        fork(SIDE_HC, [&] {
            launch_hc<A>(d, n, site(k->hc_attn_fn, k->hc_attn_base, k->hc_attn_scale), d.pre_attn, chained());
        });
        collapse(d.pre, k->attn_norm, d.x, d.xq, true, !draft && reads_plain(layer));
        projected = project(k, layer);
        fork(SIDE_KV, [&] { keys(k, layer, kind, draft); });
        if constexpr (tensor)                   /* where keys lie; what they are is not read */
            if (!draft && lists_early(layer))
                fork(SIDE_SHARED, [&] {
                    tensor_keys(d, 0, n, layer, part_of(layer), lo_of(layer), b->w.attention, chained());
                });
    }

    /* A few rows' queries, low rank, and keys in one launch, unless fewer rows go on. */
    bool project(const cedar_block *k, int32_t layer) {
        if constexpr (!tensor) return false;
        if (!few_rows(n) || moves(layer)) return false;
        tensor_linear_beside(W(k->wq_a), W(k->wkv), packed(b->w.pxq, true), n,
                             result{ b->w.qr, W(k->wq_a).rows, AS_ROUNDED }, b->w.kv, chained());
        return true;
    }

    void keys(const cedar_block *k, int32_t layer, int kind, bool draft) {
        if (!projected) linear(k->wkv, by_row(d.xq, c->hidden), b->w.pxq, b->w.kv, true);
        launch_window_rows<A>(d, n, W(k->kv_norm), b->w.kv, kind, chained());
        if (draft) return;
        tap_rows(b, CEDAR_TAP_WINDOW, layer, plan, list, n, d.window_rows, true, b->l.ring_row_bytes,
                 b->l.ring_row_bytes, TAP_BYTES, 1);
        if (c->is_kv_source[layer]) global_rows(k, layer);
    }

    void global_rows(const cedar_block *k, int32_t layer) {
        bool group = c->ratio[layer] > 1;
        linear(k->comp_wkv, by_row(d.x, c->hidden), b->w.px, b->w.kv, false);
        launch_comp_store<A>(d, n, b->w.kv, 0, !group, s);
        if (group) {
            linear(k->comp_wgate, by_row(d.x, c->hidden), b->w.px, b->w.kv, false);
            launch_comp_store<A>(d, n, b->w.kv, 1, false, s);
        }
        groups(k, layer);
        if (b->rank) peers_meet(b->link.p, s);  /* their owners have written them */
    }

    /* Compressed entries this step completes. */
    void groups(const cedar_block *k, int32_t layer) {
        uint32_t ratio = (uint32_t)c->ratio[layer];
        launch_groups<A>(d, n, b->l.part_of[layer], (int)ratio, W(k->comp_norm), W(k->index_wk), W(k->index_k_norm),
                         b->w.freq + c->rope_dim / 2, b->tap ? b->w.latents : NULL, s);
        uint8_t *host = b->tap ? fetch(b, b->w.latents, (uint64_t)n * c->head_dim * sizeof(real)) : NULL;
        double *row = b->tap ? (double *)malloc((size_t)c->head_dim * sizeof *row) : NULL;
        for (uint32_t i = 0; host && row && i < n; i++) {
            uint32_t p = b->h.pos[list[i]];
            const cedar_plan_entry *e = &plan->entries[b->h.entry[list[i]]];
            if (p % ratio != ratio - 1 || p < e->write_floor) continue;
            for (int x = 0; x < c->head_dim; x++) row[x] = (double)((const real *)host)[(uint64_t)i * c->head_dim + x];
            b->tap(b->tap_self, CEDAR_TAP_LATENT, layer, e->seq, p / ratio, row, (uint32_t)c->head_dim);
        }
        if (b->tap) meet_looking(b);
        free(host);
        free(row);
    }

    void index_query(const cedar_block *k) {
        fork(SIDE_SHARED, [&] {                 /* gates are made of the layer's input, not of its queries */
            linear(k->index_weights_proj, by_row(d.x, c->hidden), b->w.px, b->w.ig, true);
            launch_index_gates<A>(d, n, b->w.ig, chained());
        });
        linear(k->index_wq_b, by_place(b->w.qr, c->q_lora), b->w.pq, b->w.iq, true);
        launch_index_query<A>(d, n, b->w.iq, chained());
        join(SIDE_SHARED);
    }

    void select(int32_t layer) {
        int part = b->l.part_of[c->kv_source_of[layer]], ratio = c->ratio[layer];
        bool restricted = pooled && layer != c->candidate_source;
        for (uint32_t first = 0; first < n; first += SCORE_BATCH) {
            uint32_t count = n - first < SCORE_BATCH ? n - first : SCORE_BATCH;
            if (b->tap) {
                scores(first, count, part, ratio, false);
                tap_scores(b, layer, plan, list, first, count, ratio);
            }
            scores(first, count, part, ratio, restricted);
            chain next = { s, !b->tap, b->shared };
            if (layer == c->candidate_source) {
                launch_pool<A>(d, first, count, ratio, next);
                if (b->tap) tap_pool(b, layer, plan, list, first, count, ratio);
            }
            launch_select<A>(d, first, count, ratio, restricted, next);
        }
        tap_rows(b, CEDAR_TAP_TOPK, layer, plan, list, n, d.topk_ids, true, d.topk, (uint32_t)d.topk, TAP_BYTES, 4);
    }

    /* x [place, width] normed and through FP8: its values in place, or packed. */
    void norm(const cedar_weight &gain, void *x, int64_t width, uint16_t *p) {
        if constexpr (tensor)
            tensor_norm((const float *)x, (int)width, n, W(gain), d.norm_eps, !few_rows(n), p, chained());
        else launch_norm<A>(d, n, W(gain), x, width, x, s);
    }

    void query(const cedar_block *k, int kind) {
        if (!projected) linear(k->wq_a, by_row(d.xq, c->hidden), b->w.pxq, b->w.qr, true);
        norm(k->q_norm, b->w.qr, c->q_lora, b->w.pq);
        if (whole_rows())
            tensor_linear(W(k->wq_b), packed(b->w.pq, false), n, result{ b->w.q, W(k->wq_b).rows, AS_BF16 }, chained());
        else linear(k->wq_b, by_place(b->w.qr, c->q_lora), b->w.pq, b->w.q, true);
        if (!whole_rows()) launch_rope_heads<A>(d, n, b->w.q, c->heads, c->head_dim, kind, 1, s);
    }

    /* Attention by one launch, rotations and packing included. */
    bool whole_rows() const {
        return tensor && plan && !b->o.wo_a_fp8 && tensor_attention_rows_can(d, b->l, b->w.attention);
    }

    /* w.u = each group of heads of w.q times its rows of w. */
    void grouped(const cedar_weight &w, int64_t k_count) {
        int groups = c->o_groups;
        int64_t w_rows = W(w).rows, rows = w_rows / groups;
        if constexpr (tensor) {
            if (!whole_rows())
                tensor_pack(b->w.q, false, k_count, NULL, n * (uint32_t)groups, k_count, false, !few_rows(n),
                            b->w.po, chained());
            tensor_groups(W(w), groups, operand{ b->w.po, NULL, groups, 0, !few_rows(n) }, n,
                          result{ b->w.u, w_rows, AS_BF16 }, chained());
        } else {
            for (int g = 0; g < groups; g++)
                launch_linear<A>(d, n, W(w), g * rows, rows, by_place((real *)b->w.q + g * k_count, groups * k_count),
                                 by_place((real *)b->w.u + g * rows, w_rows), true, s);
        }
    }

    void output(const cedar_block *k, int kind) {
        int64_t width = (int64_t)c->heads * c->head_dim, u_width = (int64_t)c->o_groups * c->o_lora;
        if (!whole_rows()) launch_rope_heads<A>(d, n, b->w.q, c->heads, c->head_dim, kind, -1, s);
        if (b->o.wo_a_fp8) launch_quantise<A>(b->w.q, b->w.q, n * width / 32, s);
        grouped(k->wo_a, width / c->o_groups);
        if (!tensor) launch_quantise<A>(b->w.u, b->w.u, n * u_width / 32, s);
        if constexpr (tensor)
            tensor_pack(b->w.u, true, u_width, NULL, n, u_width, true, !few_rows(n), b->w.pt, chained());
        if (tensor && b->rank) {
            tensor_linear(W(k->wo_b), packed(b->w.pt, false), n, result{ b->w.att, c->hidden, AS_BF16 }, chained());
            end_attention(k);
            return;
        }
        linear(k->wo_b, by_place(b->w.u, u_width), b->w.pt, b->w.att, true);
        if (b->rank) sum_reals(b->w.att, false);
        if constexpr (tensor)
            if (tensor_expand_collapse_can(d, n)) {
                expand_collapse((const real *)b->w.att, b->w.moe, into(d.pre_attn, k->ffn_norm, false, true),
                                chained());
                return;
            }
        launch_expand<A>(d, n, b->w.att, s);
    }

    /* --- with several ranks: their parts of a sub-layer's output are added --- */

    void sum_reals(void *y, bool none) {
        for (uint32_t first = 0; first < n; first += SUM_BATCH) {
            uint32_t count = n - first < SUM_BATCH ? n - first : SUM_BATCH;
            real *at = (real *)y + (uint64_t)first * c->hidden;
            if (b->n && none) cudaMemsetAsync(at, 0, (uint64_t)count * c->hidden * sizeof(real), s);
            if (b->n) nccl_ok &= nccl_sum(b->n, d.rank, at, at, (uint64_t)count * c->hidden, sizeof(real), s);
            else peers_sum_reals(b->link.p, at, none, count, c->hidden, SUM_AS_MEASURED, s);
        }
    }

    /* part [rows, hidden] of this rank, NULL: zeros -> w.sum from row `first` on. */
    void sum_rows(const uint16_t *part, uint32_t first, uint32_t rows, chain how) {
        uint16_t *out = b->w.sum + (uint64_t)first * c->hidden;
        uint64_t bytes = (uint64_t)rows * c->hidden * 2;
        if (!b->n) {
            peers_sum(b->link.p, part, rows, c->hidden, out, SUM_AS_MEASURED, how);
            return;
        }
        if (!part) cudaMemsetAsync(out, 0, bytes, s);
        nccl_ok &= nccl_sum(b->n, d.rank, part ? part : out, out, bytes / 2, 2, s);
    }

    bool fuses() const {
        return tensor && b->o.allreduce == CEDAR_ALLREDUCE_FUSED && n <= fused_rows((uint32_t)d.ranks) &&
               tensor_site_can(d, b->link.p, n);
    }

    void end_attention(const cedar_block *k) {
        if (fuses()) {
            tensor_site(d, b->link.p, (const uint16_t *)b->w.att, n, into(d.pre_attn, k->ffn_norm, false, true),
                        chained());
            collapsed = true;
            return;
        }
        for (uint32_t first = 0; first < n; first += SUM_BATCH) {
            uint32_t count = n - first < SUM_BATCH ? n - first : SUM_BATCH;
            sum_rows((const uint16_t *)b->w.att + (uint64_t)first * c->hidden, first, count, chain{ s, first == 0 });
        }
        tensor_expand(d, n, b->w.sum, b->n ? chain{ s, false } : chained());
    }

    /* Rows [first, first + count) of the list: m.out of this rank's part of the experts; next: as in ffn; last: how
     * the kernel that reads it is launched. */
    void end_experts(uint32_t first, uint32_t count, const dev_moe &m, int32_t next, chain last) {
        bool none = m.moe_dim == 0;
        chain alone = { s, false, b->shared };
        if (next >= 0 && count == n && fuses()) {
            collapse_into to = into(d.pre, b->model->blocks[next].attn_norm, true, reads_plain(next));
            if (none) tensor_site(d, b->link.p, NULL, n, to, alone);
            else tensor_site_experts(d, b->link.p, m, n, to, last);
            collapsed = true;
            return;
        }
        dev rows = d;
        rows.active += first;
        if (none) {
            sum_rows(NULL, first, count, alone);
        } else if (b->n) {
            tensor_sum_experts(m, count, c->hidden, (uint16_t *)b->w.att, s);
            sum_rows((const uint16_t *)b->w.att, first, count, alone);
        } else {
            peers_sum_experts(b->link.p, m, count, c->hidden, b->w.sum + (uint64_t)first * c->hidden, SUM_AS_MEASURED,
                              last);
        }
        tensor_expand(rows, count, b->w.sum + (uint64_t)first * c->hidden, b->n ? alone : chained());
    }

    /* Rows [first, first + count) of the list through the experts and into the streams; next: as in ffn. */
    void run_experts(uint32_t first, uint32_t count, const dev_moe &m, int32_t next) {
        if constexpr (!tensor) {
            uint64_t at = (uint64_t)first * c->hidden;
            if (m.moe_dim == 0) launch_route<A>(count, m, chain{ s, false });      /* taps look at it */
            else launch_moe<A>(d, count, m, (const real *)b->w.xqc + at, (real *)b->w.y + at, s);
        } else {
            int slots = m.per_token + 1;
            bool woven = !few_rows(n);
            const uint16_t *x = b->w.pxq + (uint64_t)first * (uint64_t)padded(c->hidden);
            expert_tiles t = b->w.tiles;
            tensor_tiles(count, m.per_token, m.experts, woven, &t);
            t.sorted = t.sorted && !b->shared;
            uint16_t *a = (uint16_t *)m.a, *g = (uint16_t *)m.b, *out = (uint16_t *)m.out;
            int64_t ld = m.moe_dim, shared_at = m.per_token * ld, dm = c->hidden;
            bool some = ld > 0;                 /* of a rank's share there may be nothing */
            operand px = { x, NULL, 1, 0, woven }, pa = { b->w.pa, NULL, slots, m.per_token, woven },
                    plain = { b->w.px + (uint64_t)first * (uint64_t)padded(dm), NULL, 1, 0, woven };
            fork(SIDE_SHARED, [&] {             /* all of it beside the router, which leaves the device idle */
                if (!some) return;
                tensor_linear_two(m.shared1, m.shared3, px, count, result{ a + shared_at, slots * ld, AS_BF16 },
                                  g + shared_at, chained());
                tensor_act(m, m.per_token, 1, count, woven, b->w.pa, chained());
                tensor_linear(m.shared2, pa, count, result{ out + m.per_token * dm, slots * dm, AS_BF16 }, chained());
            });
            tensor_linear(m.gate, plain, count, result{ m.z, m.experts, AS_SUMMED }, chained());
            if (!some) {
                launch_route<A>(count, m, chained());
                join(SIDE_SHARED);
                if (first == 0) join(SIDE_HC);
                end_experts(first, count, m, next, chain{ s, false });
                return;
            }
            if (tensor_route_can(m, n)) {
                tensor_route(m, count, t, chained());
            } else {
                launch_route<A>(count, m, chained());
                tensor_sort(m.ids, count, m.per_token, m.experts, woven, t, s);
            }
            bool gated = tensor_gated_can(m, dm, woven, t);
            /* The shared expert beside the others: for one row that saves time, for more they only slow each other. */
            bool beside = gated && count == 1;
            if (gated) {
                if (!beside) join(SIDE_SHARED);
                tensor_gated(m, dm, x, t, b->w.pa, chained());
            } else {
                if (t.sorted) tensor_gather(x, dm, count, slots, t, b->w.ps, s);
                tensor_experts(m.w1, 2, 2 * m.experts, ld, dm, t.sorted ? b->w.ps : x, woven, slots, t, false,
                               result{ a, ld, AS_BF16 }, g, chained());
                join(SIDE_SHARED);
                tensor_act(m, 0, m.per_token, count, woven, b->w.pa, chained());
                if (t.sorted) tensor_gather(b->w.pa, ld, count * (uint32_t)slots, 1, t, b->w.ps, s);
            }
            tensor_experts(m.w2, 1, 0, dm, ld, t.sorted ? b->w.ps : b->w.pa, woven, 1, t, true,
                           result{ out, dm, AS_BF16 }, out, chained());
            if (beside) join(SIDE_SHARED);
            if (first == 0) join(SIDE_HC);
            if (b->rank) end_experts(first, count, m, next, chained());
            else if (next >= 0 && tensor_expand_collapse_can(d, n))
                expand_collapse(NULL, m, into(d.pre, b->model->blocks[next].attn_norm, true, reads_plain(next)),
                                chained());
            else tensor_expand_experts(d, first, count, m, chained());
        }
    }

    /* next: the layer whose input may be made with the last sums; -1: none. */
    void ffn(const cedar_block *k, int32_t layer, bool draft, int32_t next) {
        fork(SIDE_HC, [&] {
            launch_hc<A>(d, n, site(k->hc_ffn_fn, k->hc_ffn_base, k->hc_ffn_scale), d.pre, chained());
        });
        collapse(d.pre_attn, k->ffn_norm, b->w.xc, b->w.xqc, false, true);
        if (!tensor) linear(k->gate, by_place(b->w.xc, c->hidden), NULL, b->w.moe.z, false);
        dev_moe m = b->w.moe;
        size_t experts = (size_t)k->expert_count;
        m.w1 = b->experts[layer];
        m.w2 = m.w1 + experts;
        m.w3 = m.w2 + experts;
        m.shared1 = W(k->shared.w1);
        m.shared2 = W(k->shared.w2);
        m.shared3 = W(k->shared.w3);
        m.bias = W(k->gate_bias);
        m.experts = k->expert_count;
        m.per_token = draft ? c->draft_experts_per_token : c->experts_per_token;
        m.moe_dim = c->moe_dim;
        m.route_scale = c->route_scale;
        m.limit = c->swiglu_limit;
        for (uint32_t first = 0; first < n; first += MOE_BATCH) {
            uint32_t count = n - first < MOE_BATCH ? n - first : MOE_BATCH;
            dev_moe part = m;
            part.z = (real *)m.z + (uint64_t)first * m.experts;
            part.ids = m.ids + (uint64_t)first * m.per_token;
            part.weight = (real *)m.weight + (uint64_t)first * m.per_token;
            if constexpr (tensor) part.gate = W(k->gate);
            run_experts(first, count, part, next);
        }
        if (!tensor) {
            if (b->rank) sum_reals(b->w.y, m.moe_dim == 0);
            join(SIDE_HC);
            launch_expand<A>(d, n, b->w.y, s);
        }
        if (draft || !b->tap) return;
        uint32_t k_count = (uint32_t)m.per_token, width = (uint32_t)(c->hc * c->hidden);
        tap_rows(b, CEDAR_TAP_ROUTER_IDS, layer, plan, list, n, m.ids, false, k_count, k_count, TAP_BYTES, 4);
        tap_rows(b, CEDAR_TAP_ROUTER_W, layer, plan, list, n, m.weight, false, k_count, k_count, TAP_REAL,
                 sizeof(real));
        tap_rows(b, CEDAR_TAP_H, layer, plan, list, n, d.h, true, width, width, TAP_REAL, d.stream_bytes);
        tap_rows(b, CEDAR_TAP_PRE, layer, plan, list, n, d.pre, true, (uint64_t)c->hc, (uint32_t)c->hc, TAP_REAL,
                 sizeof(real));
    }

    void keep() {
        d.active = b->w.kept;
        list = b->h.kept;
        n = plan->kept;
    }

    void inject(int32_t layer) {
        uint64_t width = (uint64_t)c->hc * c->hidden;
        double *h = (double *)malloc(width * sizeof *h), pre[CEDAR_HC_MAX];
        typedef typename A::stream stream;
        stream *row_h = (stream *)malloc(width * sizeof *row_h);
        real row_pre[CEDAR_HC_MAX];
        cudaStreamSynchronize(s);
        for (uint32_t i = 0; h && row_h && i < n; i++) {
            uint32_t row = list[i];
            if (!b->inject(b->inject_self, layer, plan->entries[b->h.entry[row]].seq, b->h.pos[row], h, pre)) continue;
            for (uint64_t k = 0; k < width; k++) row_h[k] = (stream)(real)h[k];
            for (int k = 0; k < c->hc; k++) row_pre[k] = (real)pre[k];
            cudaMemcpyAsync((stream *)d.h + row * width, row_h, width * sizeof(stream), cudaMemcpyHostToDevice, s);
            cudaMemcpyAsync((real *)d.pre + (uint64_t)row * c->hc, row_pre, (size_t)c->hc * sizeof(real),
                            cudaMemcpyHostToDevice, s);
        }
        cudaStreamSynchronize(s);               /* the copies are done with what is freed */
        meet_looking(b);
        free(h);
        free(row_h);
    }

    /* A layer that picks no entries of its own can list its keys before its queries are there. */
    bool lists_early(int32_t layer) const {
        return whole_rows() && n <= ATTENTION_BATCH && !c->is_index_source[layer] && !moves(layer);
    }
    int part_of(int32_t layer) const { return c->ratio[layer] > 0 ? b->l.part_of[c->kv_source_of[layer]] : -1; }
    int lo_of(int32_t layer) const { return layer < c->cut ? 0 : layer == c->cut ? 1 : 2; }

    void attend(const cedar_block *k, int32_t layer) {
        int part = part_of(layer), lo = lo_of(layer);
        if constexpr (tensor) {
            for (uint32_t first = 0; first < n; first += ATTENTION_BATCH) {
                uint32_t count = n - first < ATTENTION_BATCH ? n - first : ATTENTION_BATCH;
                if (whole_rows()) {
                    if (!lists_early(layer)) tensor_keys(d, first, count, layer, part, lo, b->w.attention, chained());
                    tensor_attention_rows(d, first, count, c->ratio[layer] > 0, (const uint16_t *)b->w.q,
                                          W(k->attn_sink), c->heads / c->o_groups, b->w.attention, !few_rows(n),
                                          b->w.po, chained());
                } else {
                    tensor_attention(d, first, count, layer, part, lo, (float *)b->w.q, W(k->attn_sink),
                                     b->w.attention, s);
                }
            }
        } else {
            launch_attention<A>(d, n, layer, part, lo, b->w.q, W(k->attn_sink), s);
        }
    }

    void scores(uint32_t first, uint32_t count, int part, int ratio, bool restricted) {
        if constexpr (tensor)
            if (c->index_dim == 128 && c->index_heads % 16 == 0 && c->index_heads <= 64) {
                tensor_scores(d, first, count, (const float *)b->w.iq, (const float *)b->w.ig, part, ratio, restricted,
                              s);
                return;
            }
        launch_scores<A>(d, first, count, b->w.iq, b->w.ig, part, ratio, restricted, s);
    }

    /* The layer that reads the streams as this one leaves them, with the same rows; -1: none. */
    int32_t follower(int32_t layer) const {
        bool follows = layer + 1 < c->layers && c->engram_at[layer + 1] < 0 && !plan->trimmed && !b->inject;
        return follows ? layer + 1 : -1;
    }

    void layer_step(int32_t layer) {
        const cedar_block *k = &b->model->blocks[layer];
        int kind = c->ratio[layer] > 0;
        bool at_cut = layer == c->cut && plan->trimmed;
        if (b->inject && layer > 0) inject(layer);
        before(k, layer, false);
        if (at_cut && plan->cut != CEDAR_CUT_AFTER) keep();
        query(k, kind);
        if (c->is_index_source[layer]) index_query(k);
        join(SIDE_KV);
        join(SIDE_HC);
        if (lists_early(layer)) join(SIDE_SHARED);
        if (c->is_index_source[layer]) select(layer);
        attend(k, layer);
        fork(SIDE_KV, [&] {                     /* the rings have been read; joined with the next layer's keys */
            launch_commit_windows(d, plan->entry_count, layer, lo_of(layer), s);
            if (c->is_kv_source[layer] && b->l.open_slots[b->l.part_of[layer]])
                launch_commit_open<A>(d, plan->entry_count, b->l.part_of[layer], s);
        });
        output(k, kind);
        ffn(k, layer, false, follower(layer));
        if (at_cut && plan->cut == CEDAR_CUT_AFTER) keep();
        if (layer == c->candidate_source) pooled = true;
    }

    void rings() {
        dev_rows f_rows = by_row(tensor ? d.features : b->w.features_q, (int64_t)c->target_count * c->hidden);
        if (!tensor)
            launch_quantise<A>(d.features, b->w.features_q, (int64_t)plan->rows * c->target_count * c->hidden / 32, s);
        pack(f_rows, f_rows.ld, true, b->w.pt);
        linear(b->model->main_proj, f_rows, b->w.pt, b->w.main_x, true);
        norm(b->model->main_norm, b->w.main_x, c->hidden, b->w.pt);
        join(SIDE_KV);                          /* the last layer's rows are in its ring */
        for (int32_t stage = 0; stage < c->stages; stage++) {
            const cedar_block *k = &b->model->blocks[c->layers + stage];
            linear(k->wkv, by_place(b->w.main_x, c->hidden), b->w.pt, b->w.kv, true);
            launch_window_rows<A>(d, n, W(k->kv_norm), b->w.kv, 0, chained());
            tap_rows(b, CEDAR_TAP_RING, stage, plan, list, n, d.window_rows, true, b->l.ring_row_bytes,
                     b->l.ring_row_bytes, TAP_BYTES, 1);
            launch_commit_ring<A>(d, n, (uint32_t)(c->layers + stage), s);
        }
    }

    /* The head's input by place, packed in px or its values in xc. */
    void head_input(const cedar_weight &gain, bool woven) {
        if constexpr (tensor)
            tensor_collapse(d, n, collapse_into{ d.pre, W(gain), false, woven, b->w.px, NULL }, chained());
        else launch_collapse<A>(d, n, d.pre, W(gain), b->w.xc, NULL, false, s);
    }

    /* Rows x of the head's input times the head -> w.head; with several ranks each has some of the columns. */
    void head_rows(dev_rows x, const uint16_t *p) {
        const cedar_weight &head = b->model->head;
        if (!b->rank) {
            linear(head, x, p, b->w.head, false);
            return;
        }
        if (W(head).rows) linear(head, x, p, b->w.head_part, false);
        peers_gather<real>(b->link.p, (const real *)b->w.head_part, n, b->columns, (real *)b->w.head, s);
    }

    /* Logits land in w.logits, tokens in w.results. */
    void logits(bool want) {
        for (uint32_t first = 0; first < plan->logits; first += HEAD_BATCH) {
            n = plan->logits - first < HEAD_BATCH ? plan->logits - first : HEAD_BATCH;
            d.active = b->w.logit_rows + first;
            head_input(b->model->norm, !few_rows(n));
            head_rows(by_place(b->w.xc, c->hidden), b->w.px);
            launch_logits<A>(d, n, b->w.head, want ? b->w.logits + (uint64_t)first * c->vocab : NULL,
                             b->w.results->argmax + first, c->vocab, chained());
        }
    }

    /* Behind the launches; nothing waits yet. */
    cedar_status copy_results(const cedar_step_out *out, cedar_err *err) {
        uint64_t bytes = sizeof(step_results) + (out->argmax ? plan->logits * sizeof(int32_t) : 0);
        return check(cudaMemcpyAsync(b->h.results, b->w.results, bytes, cudaMemcpyDeviceToHost, s), "reading tokens",
                     err);
    }

    cedar_status read_results(cedar_step_out *out, cedar_err *err) {
        cedar_status st = CEDAR_OK;
        if (out->logits)
            st = check(cudaMemcpyAsync(out->logits, b->w.logits, (uint64_t)plan->logits * c->vocab * 4,
                                       cudaMemcpyDeviceToHost, s),
                       "reading logits", err);
        cedar_status waited = check(cudaStreamSynchronize(s), "a step", err);
        if (!st) st = waited;
        if (!st && out->argmax) memcpy(out->argmax, b->h.results->argmax, plan->logits * sizeof *out->argmax);
        if (!st && b->rank) *b->rank->digest = b->h.results->digest;
        return st;
    }

    /* All launches of a step; nothing here reads a result. */
    void launches(const cedar_step_out *out) {
        d.active = b->w.active;
        launch_begin<A>(d, n, b->w.freq, s);
        launch_embed<A>(d, n, W(b->model->embed), s);
        if (engram_ahead()) start_engram();
        for (int32_t layer = 0; layer < c->layers; layer++) layer_step(layer);
        fork(SIDE_SHARED, [&] {                 /* beside the head */
            if (b->rank) launch_digest(d, n, &b->w.results->digest, s);
            if (c->stages) rings();
            else join(SIDE_KV);
        });
        if (out->logits || out->argmax) logits(out->logits != NULL);
        join(SIDE_SHARED);
    }

    /* What has to wait for a GPU comes before the first kernel that waits for another rank: inputs where ranks share a
     * GPU, a graph's memory where NCCL may hold all GPUs. */
    cedar_status meet_ranks(bool built, cedar_err *err) {
        if (!b->shared && !(b->n && built)) return CEDAR_OK;
        cedar_status st = check(cudaStreamSynchronize(s), "the inputs of a step", err);
        if (!st && !cedar_ranks_meet(b->rank->group, b->rank->shard.rank))
            st = cedar_ranks_error(b->rank->group, err);
        return st;
    }

    /* After the last launch of a step or draft; alone, reading results waits. */
    cedar_status launched(const char *what, cedar_err *err) {
        if (!b->rank) return CEDAR_OK;
        cedar_status st = wait_for_ranks(b, what, err);
        return st ? st : check_nccl(err);
    }

    cedar_status check_nccl(cedar_err *err) {
        return nccl_ok ? CEDAR_OK : cedar_fail(err, CEDAR_E_NCCL, "NCCL: %s", nccl_error(b->n));
    }

    graph_slot *find_graph(const graph_key &key) {
        graph_slot *oldest = &b->graphs[0];
        for (int i = 0; i < GRAPHS_MAX; i++) {
            graph_slot *g = &b->graphs[i];
            if (g->exec && memcmp(&g->key, &key, sizeof key) == 0) return g;
            if (g->used < oldest->used) oldest = g;
        }
        if (oldest->exec) cudaGraphExecDestroy(oldest->exec);
        oldest->exec = NULL;
        oldest->key = key;
        return oldest;
    }

    /* Runs the launches as a graph, captured at the first step of its kind. */
    cedar_status run_graph(const cedar_step_out *out, cedar_err *err) {
        graph_key key;
        memset(&key, 0, sizeof key);
        key.rows = plan->rows; key.kept = plan->kept; key.entries = plan->entry_count; key.logits = plan->logits;
        key.cut = plan->cut;
        key.trimmed = plan->trimmed;
        key.want_logits = out->logits != NULL;
        key.want_argmax = out->argmax != NULL;
        graph_slot *g = find_graph(key);
        cedar_status st = CEDAR_OK;
        bool built = !g->exec;
        g->used = ++b->graph_clock;
        if (built) {
            cudaGraph_t graph = NULL;
            cudaStreamCaptureMode mode = b->n ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeThreadLocal;
            st = check(cudaStreamBeginCapture(s, mode), "beginning a graph", err);
            if (st) return st;
            launches(out);
            cudaError_t e = cudaStreamEndCapture(s, &graph);
            st = check_nccl(err);
            if (!st) st = check(e, "capturing a graph", err);
            if (!st) st = check(cudaGraphInstantiate(&g->exec, graph, cudaGraphInstantiateFlagUseNodePriority),
                                "building a graph", err);
            if (!st && (b->shared || b->n)) st = check(cudaGraphUpload(g->exec, s), "uploading a graph", err);
            if (graph) cudaGraphDestroy(graph);
            if (st) return st;
        }
        st = meet_ranks(built, err);
        if (st) return st;
        return check(cudaGraphLaunch(g->exec, s), "launching a graph", err);
    }

    void stage_inputs(const cedar_seq_state *seqs) {
        staging &h = b->h;
        dev_inputs in = {};
        uint32_t row = 0, wanted = 0;
        for (uint32_t i = 0; i < plan->entry_count; i++) {
            const cedar_plan_entry *e = &plan->entries[i];
            dev_entry v = { e->seq, e->pos,         e->rows,
                            row,    e->write_floor, { e->bounds.lo_encoder, e->bounds.lo_cut, e->bounds.lo_late },
                            { 0 } };
            for (uint32_t k = 0; k < CEDAR_NGRAM_MAX; k++)
                v.history[k] = k < e->pos ? seqs[e->seq].tokens[e->pos - 1 - k] : -1;
            h.entries[i] = v;
            for (uint32_t k = 0; k < e->rows; k++, row++) {
                h.token[row] = e->tokens[k];
                h.entry[row] = (int32_t)i;
                h.pos[row] = e->pos + k;
                h.active[row] = row;
                if (k >= e->rows - e->logits) h.logit_rows[wanted++] = row;
            }
            memcpy(h.page_table + (uint64_t)i * d.pages_per_seq, seqs[e->seq].pages, seqs[e->seq].page_count * 4);
            h.page_count[i] = seqs[e->seq].page_count;
            if (h.page_count[i] > in.pages_most) in.pages_most = h.page_count[i];
        }
        cedar_plan_kept_rows(plan, h.kept, h.first_kept);
        in.add(d.entries, h.entries, plan->entry_count * sizeof(dev_entry));
        in.add(d.row_token, h.token, row * 4);
        in.add(d.row_entry, h.entry, row * 4);
        in.add(d.row_pos, h.pos, row * 4);
        in.add(b->w.active, h.active, row * 4);
        in.add(b->w.kept, h.kept, plan->kept * 4);
        in.add(b->w.logit_rows, h.logit_rows, wanted * 4);
        in.entries = plan->entry_count;
        in.pages_per_seq = (uint32_t)d.pages_per_seq;
        in.entry = h.entries;
        in.page_count = h.page_count;
        in.pages = h.page_table;
        in.page_table = d.page_table;
        launch_inputs(in, s);
    }

    static cedar_status step(cuda_backend *b, const cedar_step_plan *plan, const cedar_seq_state *seqs,
                             cedar_step_out *out, cedar_err *err) {
        forward f = { b, b->d, b->c, b->stream, plan, plan->rows, b->h.active, false, false, true };
        cedar_status st = check(cudaSetDevice(b->device), "choosing the GPU", err);
        if (st) return st;
        f.stage_inputs(seqs);
        if (b->use_graphs && !b->tap && !b->inject) {
            st = f.run_graph(out, err);
        } else {
            st = f.meet_ranks(false, err);
            if (!st) f.launches(out);
        }
        if (!st) st = f.copy_results(out, err);
        if (!st) st = f.launched("a step", err);
        if (!st) st = f.read_results(out, err);
        else cudaStreamSynchronize(f.s);
        return st ? st : check(cudaGetLastError(), "a launch in a step", err);
    }

    static cedar_status draft(cuda_backend *b, cedar_draft_item *it, const cedar_seq_state *seqs, cedar_err *err) {
        forward f = { b, b->d, b->c, b->stream, NULL, (uint32_t)b->c->draft_block, b->h.active, false, false, true };
        const cedar_config *c = b->c;
        const cedar_model *m = b->model;
        const cedar_seq_state *q = &seqs[it->seq];
        uint32_t w = (uint32_t)c->window, lo = q->pos > w ? q->pos - w : 0;
        if (lo < q->bounds.lo_late) lo = q->bounds.lo_late;
        for (uint32_t r = 0; r < f.n; r++) {
            b->h.token[r] = r == 0 ? it->token : c->draft_noise;
            b->h.pos[r] = q->pos + r;
            b->h.active[r] = r;
        }
        cedar_status st = check(cudaSetDevice(b->device), "choosing the GPU", err);
        if (st) return st;
        f.d.active = b->w.active;
        dev_inputs in = {};
        in.add(f.d.row_token, b->h.token, f.n * 4);
        in.add(f.d.row_pos, b->h.pos, f.n * 4);
        in.add(b->w.active, b->h.active, f.n * 4);
        launch_inputs(in, f.s);
        st = f.meet_ranks(false, err);
        if (st) return st;
        launch_begin<A>(f.d, f.n, b->w.freq, f.s);
        launch_embed<A>(f.d, f.n, f.W(m->embed), f.s);
        for (int32_t stage = 0; stage < c->stages; stage++) {
            int32_t layer = c->layers + stage;
            const cedar_block *k = &m->blocks[layer];
            f.before(k, layer, true);
            f.query(k, 0);
            f.join(SIDE_KV);
            f.join(SIDE_HC);
            launch_draft_attention<A>(f.d, f.n, it->seq, lo, q->pos, layer, b->w.q, f.W(k->attn_sink), f.s);
            f.output(k, 0);
            f.ffn(k, layer, true, -1);
        }
        const dev_weight none = { CEDAR_W_NONE, 0, 0, NULL, NULL };
        launch_collapse<A>(f.d, f.n, f.d.pre, none, b->w.row_y, NULL, false, f.s);
        f.head_input(m->draft_norm, false);         /* its rows are multiplied one by one */
        uint32_t block = f.n;
        f.n = 1;
        for (uint32_t k = 0; k < block; k++) {
            bool own = k > 0 && !it->forced;
            launch_row<A>(f.d, f.W(m->markov_embed), own ? b->w.draft_ids + k - 1 : NULL,
                          k == 0       ? it->token
                          : it->forced ? it->forced[k - 1]
                                       : 0,
                          b->w.row_e, f.s);
            dev_rows y = f.by_place((real *)b->w.xc + (uint64_t)k * c->hidden, c->hidden),
                     e = f.by_place(b->w.row_e, c->markov_rank);
            f.head_rows(y, b->w.px + (uint64_t)k * (uint64_t)padded(c->hidden));
            f.pack(e, c->markov_rank, false, b->w.pt);
            f.linear(m->markov_head, e, b->w.pt, b->w.extra, false);
            launch_markov<A>(f.d, c->vocab, b->w.head, b->w.extra, b->w.logits + (uint64_t)k * c->vocab,
                             b->w.draft_ids + k, f.s);
            launch_confidence<A>(f.d, f.W(m->confidence), (real *)b->w.row_y + (uint64_t)k * c->hidden, b->w.row_e,
                                 c->markov_rank, b->w.confidence + k, f.s);
        }
        st = f.launched("a draft", err);
        if (!st)
            st = check(cudaMemcpyAsync(it->ids, b->w.draft_ids, block * 4, cudaMemcpyDeviceToHost, f.s),
                       "reading drafts", err);
        if (!st && it->logits)
            st = check(
                cudaMemcpyAsync(it->logits, b->w.logits, (uint64_t)block * c->vocab * 4, cudaMemcpyDeviceToHost, f.s),
                "reading drafts", err);
        if (!st && it->confidence)
            st = check(cudaMemcpyAsync(it->confidence, b->w.confidence, block * 4, cudaMemcpyDeviceToHost, f.s),
                       "reading drafts", err);
        if (!st) st = check(cudaStreamSynchronize(f.s), "a draft", err);
        return st ? st : check(cudaGetLastError(), "a launch in a draft", err);
    }
};

static cedar_status cuda_step(void *self, const cedar_step_plan *plan, const cedar_seq_state *seqs, cedar_step_out *out,
                              cedar_err *err) {
    cuda_backend *b = (cuda_backend *)self;
    switch (b->o.arith) {
    case CEDAR_WIDE: return forward<wide>::step(b, plan, seqs, out, err);
    case CEDAR_F32: return forward<f32>::step(b, plan, seqs, out, err);
    default: return forward<bf16>::step(b, plan, seqs, out, err);
    }
}

static cedar_status cuda_draft(void *self, cedar_draft_item *items, uint32_t count, const cedar_seq_state *seqs,
                               cedar_err *err) {
    cuda_backend *b = (cuda_backend *)self;
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < count && !st; i++)
        st = b->o.arith == CEDAR_WIDE  ? forward<wide>::draft(b, &items[i], seqs, err)
             : b->o.arith == CEDAR_F32 ? forward<f32>::draft(b, &items[i], seqs, err)
                                       : forward<bf16>::draft(b, &items[i], seqs, err);
    return st;
}

/* --- state -------------------------------------------------------------------------------------------------------- */

/* Between steps. The stream of the steps does this work, too: a copy by another one may still be under way when it
 * returns, and steps would not wait for it. What comes from the host is pageable: it has been taken when a copy
 * returns. An error shows in the next step's check, since CUDA errors stick. */
static void write_to(const cuda_backend *b, void *to, const void *from, uint64_t bytes) {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, b->stream);
}
static void fill(const cuda_backend *b, void *to, int value, uint64_t bytes) {
    cudaMemsetAsync(to, value, bytes, b->stream);
}
/* `bytes` of each of `count` entries from the device to every `pitch` bytes of the host. */
static void read_rows(const cuda_backend *b, void *to, uint64_t pitch, const void *from, uint64_t bytes,
                      uint32_t count) {
    cudaMemcpy2DAsync(to, pitch, from, bytes, bytes, count, cudaMemcpyDeviceToHost, b->stream);
    cudaStreamSynchronize(b->stream);
}

static void cuda_seq_reset(void *self, int32_t seq) {
    cuda_backend *b = (cuda_backend *)self;
    cudaSetDevice(b->device);
    fill(b, b->d.rings + (uint64_t)seq * b->l.ring_bytes, 0x7F, b->l.ring_bytes);
    uint64_t bytes = b->l.open_reals * b->d.real_bytes;
    if (bytes) fill(b, b->d.open + (uint64_t)seq * bytes, 0xFF, bytes);    /* all ones is a NaN in both widths */
}

static uint8_t *page_at(const cuda_backend *b, int32_t page) {
    uint32_t p = (uint32_t)page, ranks = (uint32_t)b->d.ranks;
    return ranks > 1 ? b->d.pages_of[p % ranks] + (uint64_t)(p / ranks) * b->l.page_bytes
                     : b->d.pages + (uint64_t)p * b->l.page_bytes;
}

static void cuda_page_copy(void *self, int32_t to, int32_t from) {
    cuda_backend *b = (cuda_backend *)self;
    cudaSetDevice(b->device);
    write_to(b, page_at(b, to), page_at(b, from), b->l.page_bytes);
    if (b->rank) cudaStreamSynchronize(b->stream);      /* other ranks read it */
}

static uint64_t cuda_snap_bytes(const void *self) {
    const cuda_backend *b = (const cuda_backend *)self;
    return (uint64_t)b->l.ring_count * (uint32_t)b->c->window * b->l.ring_row_bytes + b->l.open_reals * b->d.real_bytes;
}

/* Rows [pos - W, pos) of every ring lie at position modulo W in the buffer, then the open groups. */
static void snap_copy(const cuda_backend *b, int32_t seq, uint32_t pos, uint8_t *buf, bool save) {
    uint32_t w = (uint32_t)b->c->window, lo = pos > w ? pos - w : 0, bytes = b->l.ring_row_bytes;
    cudaSetDevice(b->device);
    for (uint32_t ring = 0; ring < b->l.ring_count; ring++)
        for (uint32_t p = lo; p < pos;) {
            uint32_t run = pos - p, slot = p % b->l.ring_slots, at = p % w;     /* up to where either ring wraps */
            if (run > b->l.ring_slots - slot) run = b->l.ring_slots - slot;
            if (run > w - at) run = w - at;
            uint8_t *dev_row =
                b->d.rings + (uint64_t)seq * b->l.ring_bytes + ((uint64_t)ring * b->l.ring_slots + slot) * bytes;
            uint8_t *host_row = buf + ((uint64_t)ring * w + at) * bytes;
            if (save) write_to(b, host_row, dev_row, (uint64_t)run * bytes);
            else write_to(b, dev_row, host_row, (uint64_t)run * bytes);
            p += run;
        }
    uint64_t open_bytes = b->l.open_reals * b->d.real_bytes;
    uint8_t *dev_open_at = b->d.open + (uint64_t)seq * open_bytes,
            *host_open = buf + (uint64_t)b->l.ring_count * w * bytes;
    if (open_bytes && save) write_to(b, host_open, dev_open_at, open_bytes);
    else if (open_bytes) write_to(b, dev_open_at, host_open, open_bytes);
    if (save) cudaStreamSynchronize(b->stream);
}

static void cuda_snap_save(const void *self, int32_t seq, uint32_t pos, uint8_t *buf) {
    snap_copy((const cuda_backend *)self, seq, pos, buf, true);
}
static void cuda_snap_load(void *self, int32_t seq, uint32_t pos, const uint8_t *buf) {
    snap_copy((const cuda_backend *)self, seq, pos, (uint8_t *)(uintptr_t)buf, false);
}

static void cuda_tap(void *self, cedar_tap_fn fn, void *tap_self) {
    cuda_backend *b = (cuda_backend *)self;
    /* A rank with a GPU of its own need not stop where rank 0 looks; but with NCCL all have graphs, or none. */
    b->tap = b->rank && b->rank->shard.rank && !b->shared && !b->n ? NULL : fn;
    b->tap_self = tap_self;
}

static void cuda_inject(void *self, cedar_inject_fn fn, void *inject_self) {
    cuda_backend *b = (cuda_backend *)self;
    b->inject = fn;
    b->inject_self = inject_self;
}

static void cuda_read_entries(const void *self, int32_t page, int32_t part, uint32_t first, uint32_t count, uint8_t *kv,
                              uint8_t *index) {
    const cuda_backend *b = (const cuda_backend *)self;
    const cedar_page_part *p = &b->l.part[part];
    const uint8_t *at = page_at(b, page);
    const uint64_t code = b->l.kv_code_bytes, scale = b->l.kv_scale_bytes, index_code = b->l.index_code_bytes,
                   index_scale = b->l.index_scale_bytes;
    cudaSetDevice(b->device);
    if (kv) {
        read_rows(b, kv, code + scale, at + p->kv_codes + first * code, code, count);
        read_rows(b, kv + code, code + scale, at + p->kv_scales + first * scale, scale, count);
    }
    if (index) {
        read_rows(b, index, index_code + index_scale, at + p->index_codes + first * index_code, index_code, count);
        read_rows(b, index + index_code, index_code + index_scale, at + p->index_scales + first * index_scale,
                  index_scale, count);
    }
}

static void cuda_read_open(const void *self, int32_t seq, int32_t part, uint32_t pos, double *kvf, double *score) {
    const cuda_backend *b = (const cuda_backend *)self;
    uint64_t first = b->l.open_first[part] + (uint64_t)(pos % b->l.open_slots[part]) * 2 * (uint32_t)b->c->head_dim;
    const uint8_t *at = b->d.open + ((uint64_t)seq * b->l.open_reals + first) * b->d.real_bytes;
    cudaSetDevice(b->device);
    for (int32_t k = 0; k < 2 * b->c->head_dim; k++) {
        double v = 0;
        float f = 0;
        if (b->d.real_bytes == 8) {
            read_rows(b, &v, 8, at + 8 * k, 8, 1);
        } else {
            read_rows(b, &f, 4, at + 4 * k, 4, 1);
            v = (double)f;
        }
        if (k < b->c->head_dim) kvf[k] = v;
        else score[k - b->c->head_dim] = v;
    }
}

static void cuda_poison(void *self, int32_t seq, uint32_t ring, uint32_t lo, uint32_t hi) {
    cuda_backend *b = (cuda_backend *)self;
    cudaSetDevice(b->device);
    for (uint32_t slot = 0; slot < b->l.ring_slots; slot++) {
        bool live = false;
        for (uint32_t p = lo; p < hi && !live; p++) live = p % b->l.ring_slots == slot;
        if (!live)
            fill(b,
                 b->d.rings + (uint64_t)seq * b->l.ring_bytes +
                     ((uint64_t)ring * b->l.ring_slots + slot) * b->l.ring_row_bytes,
                 0x7F, b->l.ring_row_bytes);
    }
}

extern "C" int cedar_cuda_devices(void) {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

extern "C" bool cedar_cuda_present(void) { return cedar_cuda_devices() > 0; }

extern "C" void cedar_cuda_device_name(char out[CEDAR_DEVICE_BYTES]) {
    int device = 0;
    cudaDeviceProp p;
    bool known = cudaGetDevice(&device) == cudaSuccess && cudaGetDeviceProperties(&p, device) == cudaSuccess;
    snprintf(out, CEDAR_DEVICE_BYTES, "%.127s", known ? p.name : "");
}

extern "C" const cedar_backend cedar_backend_cuda = {
    "cuda",         true,        cuda_workspace_bytes, cuda_open,       cuda_close,     cuda_seq_reset,
    cuda_page_copy, cuda_step,   cuda_draft,           cuda_snap_bytes, cuda_snap_save, cuda_snap_load,
    cuda_tap,       cuda_inject, cuda_read_entries,    cuda_read_open,  cuda_poison,
};
