/* Launchers of engine/cuda, one by one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/ops.cuh"
#include "engine/cuda/tensor.cuh"
#include "tests/gpu/device_ops.h"

static void need(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "device_ops: %s: %s\n", what, cudaGetErrorString(e));
    exit(70);
}

static void wait_for(const char *what) {
    need(cudaGetLastError(), what);
    need(cudaDeviceSynchronize(), what);
}

static dev_weight weight(const cedar_weight *w) {
    return dev_weight{ (int)w->kind, w->rows, w->cols, w->data, w->scale };
}
static operand of(const gpu_operand *x) { return operand{ x->x, x->list, x->stride, x->first, x->woven }; }
static const chain alone = { 0, false };

void gpu_start(void) {
    need(tensor_prepare(), "tensor_prepare");
    need(tensor_attention_prepare(), "tensor_attention_prepare");
}

void *gpu_put(const void *host, size_t bytes) {
    void *p = NULL;
    need(cudaMalloc(&p, bytes ? bytes : 1), "cudaMalloc");
    if (host) need(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), "copying in");
    else need(cudaMemset(p, 0xFF, bytes), "filling");
    return p;
}

void *gpu_put_codes(cedar_weight_kind kind, const uint8_t *host, size_t bytes) {
    uint8_t *p = (uint8_t *)gpu_put(host, bytes);
    launch_spread(kind, p, bytes, 0);
    wait_for("launch_spread");
    return p;
}

void gpu_get(void *host, const void *from, size_t bytes) {
    need(cudaMemcpy(host, from, bytes, cudaMemcpyDeviceToHost), "copying out");
}

void gpu_drop(void *p) { need(cudaFree(p), "cudaFree"); }
int64_t gpu_padded(int64_t k) { return padded(k); }
int gpu_few_rows(void) { return FEW_ROWS; }
int gpu_scale_max(int kind) { return tensor_scale_max(kind); }

void gpu_pack(const float *x, int64_t ldx, const uint32_t *list, uint32_t n, int64_t k, bool quantise, bool woven,
              uint16_t *out) {
    tensor_pack(x, false, ldx, list, n, k, quantise, woven, out, alone);
    wait_for("tensor_pack");
}

void gpu_norm(const float *x, int width, uint32_t n, const cedar_weight *gain, double eps, bool woven, uint16_t *out) {
    tensor_norm(x, width, n, weight(gain), eps, woven, out, alone);
    wait_for("tensor_norm");
}

void gpu_linear(const cedar_weight *w, const gpu_operand *x, uint32_t rows, float *y, int64_t ldy, bool round) {
    tensor_linear(weight(w), of(x), rows, result{ y, ldy, round ? AS_ROUNDED : AS_SUMMED }, alone);
    wait_for("tensor_linear");
}

void gpu_linear_two(const cedar_weight *w0, const cedar_weight *w1, const gpu_operand *x, uint32_t rows, float *y0,
                    float *y1, int64_t ldy, bool round) {
    tensor_linear_two(weight(w0), weight(w1), of(x), rows, result{ y0, ldy, round ? AS_ROUNDED : AS_SUMMED }, y1,
                      alone);
    wait_for("tensor_linear_two");
}

void gpu_linear_beside(const cedar_weight *w0, const cedar_weight *w1, const gpu_operand *x, uint32_t rows, float *y0,
                       float *y1) {
    tensor_linear_beside(weight(w0), weight(w1), of(x), rows, result{ y0, w0->rows, AS_SUMMED }, y1, alone);
    wait_for("tensor_linear_beside");
}

void gpu_linear_aside(const cedar_weight *w, const gpu_operand *x, uint32_t rows, float *y) {
    tensor_linear_aside(weight(w), of(x), rows, result{ y, w->rows, AS_SUMMED }, alone);
    wait_for("tensor_linear_aside");
}

void gpu_groups(const cedar_weight *w, int groups, const gpu_operand *x, uint32_t rows, float *y, int64_t ldy) {
    tensor_groups(weight(w), groups, of(x), rows, result{ y, ldy, AS_ROUNDED }, alone);
    wait_for("tensor_groups");
}

static __global__ void nothing(void) {}

/* Experts and pairs on the device, as tensor_experts takes them. */
struct expert_lists {
    dev_weight *weights;
    int32_t *chosen;
    expert_tiles t;
};

static expert_lists put_experts(const cedar_weight *list, int count, int experts, const int32_t *ids, uint32_t rows,
                                int per_token, bool woven) {
    expert_lists l = {};
    dev_weight *host = (dev_weight *)calloc((size_t)count, sizeof *host);
    for (int e = 0; e < count; e++) host[e] = weight(&list[e]);
    l.weights = (dev_weight *)gpu_put(host, (size_t)count * sizeof *host);
    l.chosen = (int32_t *)gpu_put(ids, (size_t)rows * per_token * sizeof *ids);
    uint32_t tiles = tensor_tiles_max(rows, per_token, experts);
    l.t.pairs = (uint32_t *)gpu_put(NULL, (size_t)rows * per_token * 4);
    l.t.tile_expert = (int32_t *)gpu_put(NULL, (size_t)tiles * 4);
    l.t.tile_first = (uint32_t *)gpu_put(NULL, (size_t)tiles * 4);
    l.t.tile_count = (uint32_t *)gpu_put(NULL, (size_t)tiles * 4);
    tensor_tiles(rows, per_token, experts, woven, &l.t);
    if (l.t.tiles_max > tiles) {
        fprintf(stderr, "device_ops: %u tiles, room for %u\n", l.t.tiles_max, tiles);
        exit(70);
    }
    nothing<<<1, 1>>>();                        /* tensor_sort follows a kernel */
    tensor_sort(l.chosen, rows, per_token, experts, woven, l.t, 0);
    free(host);
    return l;
}

static void drop_experts(expert_lists *l) {
    void *all[] = { l->weights, l->chosen, l->t.pairs, l->t.tile_expert, l->t.tile_first, l->t.tile_count };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpu_drop(all[i]);
}

void gpu_experts(const cedar_weight *list, int experts, const int32_t *ids, uint32_t rows, int per_token,
                 const uint16_t *x, bool by_pair, bool woven, float *y) {
    expert_lists l = put_experts(list, experts, experts, ids, rows, per_token, woven);
    int64_t k_count = list[0].cols;
    uint16_t *sorted = (uint16_t *)gpu_put(NULL, (size_t)l.t.pairs_max * padded(k_count) * 2);
    int slots = per_token + 1, div = by_pair ? 1 : slots;
    if (l.t.sorted) tensor_gather(x, k_count, by_pair ? rows * (uint32_t)slots : rows, div, l.t, sorted, 0);
    tensor_experts(l.weights, 1, 0, list[0].rows, k_count, l.t.sorted ? sorted : x, woven, div, l.t, false,
                   result{ y, list[0].rows, AS_ROUNDED }, y, chain{ 0, true });
    wait_for("tensor_experts");
    gpu_drop(sorted);
    drop_experts(&l);
}

void gpu_gated(const cedar_weight *list, int experts, const int32_t *ids, const float *weights, uint32_t rows,
               int per_token, const uint16_t *x, double limit, bool fused, uint16_t *out) {
    expert_lists l = put_experts(list, 3 * experts, experts, ids, rows, per_token, false);
    int slots = per_token + 1, dim = (int)list[0].rows;
    size_t pairs = (size_t)rows * slots, bytes = pairs * padded(dim) * 2;
    uint16_t *packed = (uint16_t *)gpu_put(NULL, bytes);
    dev_moe m = {};
    m.w1 = l.weights;
    m.experts = experts;
    m.per_token = per_token;
    m.moe_dim = dim;
    m.limit = limit;
    m.weight = gpu_put(weights, (size_t)rows * per_token * 4);
    m.a = gpu_put(NULL, pairs * dim * 2);
    m.b = gpu_put(NULL, pairs * dim * 2);
    if (!tensor_gated_can(m, list[0].cols, false, l.t)) {
        fprintf(stderr, "device_ops: %u rows of %d outputs are not activated in one launch\n", rows, dim);
        exit(70);
    }
    if (fused) {
        tensor_gated(m, list[0].cols, x, l.t, packed, chain{ 0, true });
    } else {
        tensor_experts(m.w1, 2, 2 * experts, dim, list[0].cols, x, false, slots, l.t, false,
                       result{ m.a, dim, AS_BF16 }, m.b, chain{ 0, true });
        tensor_act(m, 0, per_token, rows, false, packed, alone);
    }
    wait_for("tensor_gated");
    gpu_get(out, packed, bytes);
    void *all[] = { packed, m.weight, m.a, m.b };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpu_drop(all[i]);
    drop_experts(&l);
}

uint32_t gpu_route(const float *z, const float *bias, uint32_t rows, int experts, int per_token, bool fused,
                   int32_t *ids, float *weights, uint32_t *pairs, uint32_t (*tiles)[3]) {
    size_t total = (size_t)rows * per_token, most = tensor_tiles_max(rows, per_token, experts);
    dev_moe m = {};
    expert_tiles t = {};
    m.experts = experts;
    m.per_token = per_token;
    m.route_scale = 1.5;
    m.z = gpu_put(z, (size_t)rows * experts * sizeof *z);
    m.bias.data = (const uint8_t *)gpu_put(bias, (size_t)experts * sizeof *bias);
    m.ids = (int32_t *)gpu_put(NULL, total * 4);
    m.weight = gpu_put(NULL, total * 4);
    t.pairs = (uint32_t *)gpu_put(NULL, total * 4);
    t.tile_expert = (int32_t *)gpu_put(NULL, most * 4);
    t.tile_first = (uint32_t *)gpu_put(NULL, most * 4);
    t.tile_count = (uint32_t *)gpu_put(NULL, most * 4);
    tensor_tiles(rows, per_token, experts, false, &t);
    if (fused) {
        tensor_route(m, rows, t, alone);
    } else {
        launch_route<bf16>(rows, m, alone);
        tensor_sort(m.ids, rows, per_token, experts, false, t, 0);
    }
    wait_for("tensor_route");
    gpu_get(ids, m.ids, total * 4);
    gpu_get(weights, m.weight, total * 4);
    gpu_get(pairs, t.pairs, total * 4);
    uint32_t *lists = (uint32_t *)calloc(3 * (size_t)t.tiles_max, 4), count = 0;
    gpu_get(lists, t.tile_expert, t.tiles_max * 4);
    gpu_get(lists + t.tiles_max, t.tile_first, t.tiles_max * 4);
    gpu_get(lists + 2 * t.tiles_max, t.tile_count, t.tiles_max * 4);
    for (uint32_t i = 0; i < t.tiles_max; i++) {
        if (!lists[2 * t.tiles_max + i]) continue;
        for (uint32_t k = 0; k < 3; k++) tiles[count][k] = lists[k * t.tiles_max + i];
        count++;
    }
    free(lists);
    void *all[] = { m.z, (void *)(uintptr_t)m.bias.data, m.ids, m.weight, t.pairs, t.tile_expert, t.tile_first,
                    t.tile_count };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpu_drop(all[i]);
    return count;
}

void gpu_expand_collapse(const gpu_streams *x, bool fused, uint16_t *h, uint16_t *plain, uint16_t *quantised) {
    uint64_t n = x->n, width = (uint64_t)x->hidden, rows = n * width, streams = 4 * rows * 2;
    uint64_t packed = n * (uint64_t)padded(x->hidden) * 2;
    dev d = {};
    dev_moe m = {};
    uint32_t *active = (uint32_t *)calloc(n, 4);
    for (uint32_t i = 0; i < n; i++) active[i] = x->n - 1 - i;
    d.hidden = x->hidden;
    d.hc = 4;
    d.norm_eps = 1e-20;
    d.active = (uint32_t *)gpu_put(active, n * 4);
    d.h = gpu_put(h, streams);
    d.pre = gpu_put(x->pre, n * 16);
    d.post = gpu_put(x->post, n * 16);
    d.comb = gpu_put(x->comb, n * 64);
    m.per_token = x->per_token;
    m.ids = (int32_t *)gpu_put(x->ids, x->y ? 0 : n * (uint64_t)x->per_token * 4);
    m.out = gpu_put(x->out, x->y ? 0 : rows * 2 * ((uint64_t)x->per_token + 1));
    float *y = x->y ? (float *)gpu_put(x->y, rows * 4) : NULL;
    collapse_into to = { d.pre,
                         { CEDAR_W_BF16, 1, x->hidden, (const uint8_t *)gpu_put(x->gain, width * 2), NULL },
                         x->indexed,
                         false,
                         (uint16_t *)gpu_put(NULL, packed),
                         (uint16_t *)gpu_put(NULL, packed) };
    if (!tensor_expand_collapse_can(d, x->n)) {
        fprintf(stderr, "device_ops: %u rows of %d channels are not expanded in one launch\n", x->n, x->hidden);
        exit(70);
    }
    if (fused) {
        tensor_expand_collapse(d, x->n, y, m, to, alone);
    } else {
        if (y) launch_expand<bf16>(d, x->n, y, 0);
        else tensor_expand_experts(d, 0, x->n, m, alone);
        tensor_collapse(d, x->n, to, alone);
    }
    wait_for("tensor_expand_collapse");
    gpu_get(h, d.h, streams);
    gpu_get(plain, to.plain, packed);
    gpu_get(quantised, to.quantised, packed);
    free(active);
    void *all[] = { d.active, d.h, d.pre, d.post, d.comb, m.ids, m.out, y, (void *)(uintptr_t)to.gain.data, to.plain,
                    to.quantised };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpu_drop(all[i]);
}

void gpu_act(const uint16_t *a, const uint16_t *b, const float *weight, uint32_t rows, int per_token, int dim,
             double limit, bool split, bool woven, uint16_t *out) {
    size_t pairs = (size_t)rows * (per_token + 1), bytes = pairs * padded(dim) * 2;
    dev_moe m = {};
    m.per_token = per_token;
    m.moe_dim = dim;
    m.limit = limit;
    m.a = gpu_put(a, pairs * dim * 2);
    m.b = gpu_put(b, pairs * dim * 2);
    m.weight = gpu_put(weight, (size_t)rows * per_token * 4);
    uint16_t *packed = (uint16_t *)gpu_put(NULL, bytes);
    tensor_act(m, 0, split ? per_token : per_token + 1, rows, woven, packed, alone);
    if (split) tensor_act(m, per_token, 1, rows, woven, packed, alone);
    wait_for("tensor_act");
    gpu_get(out, packed, bytes);
    void *all[] = { m.a, m.b, m.weight, packed };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpu_drop(all[i]);
}

/* --- a sequence --------------------------------------------------------------------------------------------------- */

struct gpu_world {
    dev d;
    cedar_layout l;
    attention_work a;
    cedar_config c;
    uint32_t count;
    void *taken[32];
    int taken_count;
};

static void *keep(gpu_world *w, void *p) { return w->taken[w->taken_count++] = p; }
static void *keep_bytes(gpu_world *w, size_t bytes) { return keep(w, gpu_put(NULL, bytes)); }

static void make_rows(gpu_world *w, const gpu_rows *rows) {
    dev &d = w->d;
    uint32_t n = rows->count;
    dev_entry e = { 0, rows->pos, n, 0, 0, { rows->lo, rows->lo, rows->lo }, { 0 } };
    int32_t *ints = (int32_t *)calloc(n, sizeof *ints);
    d.entries = (dev_entry *)keep(w, gpu_put(&e, sizeof e));
    d.row_entry = (int32_t *)keep(w, gpu_put(ints, n * 4));
    for (uint32_t i = 0; i < n; i++) ints[i] = (int32_t)i;
    d.active = (uint32_t *)keep(w, gpu_put(ints, n * 4));
    for (uint32_t i = 0; i < n; i++) ints[i] = (int32_t)(rows->pos + i);
    d.row_pos = (uint32_t *)keep(w, gpu_put(ints, n * 4));
    free(ints);
}

static void make_attention(gpu_world *w) {
    attention_work &a = w->a;
    size_t n = w->count;
    a.keys_max = (w->c.window + w->c.index_topk + 63) / 64 * 64;
    a.keys = (dev_key *)keep_bytes(w, n * a.keys_max * sizeof(dev_key));
    a.fp4 = (uint8_t *)keep_bytes(w, n * a.keys_max);
    a.count = (int32_t *)keep_bytes(w, n * 4);
    a.logits = (float *)keep_bytes(w, n * w->c.heads * a.keys_max * 4);
    a.total = (float *)keep_bytes(w, n * w->c.heads * 4);
}

gpu_world *gpu_world_open(const cedar_config *c, const cedar_layout *l, uint32_t context, const uint8_t *pages,
                          uint32_t page_count, const uint8_t *rings, const uint8_t *window_rows, const gpu_rows *rows) {
    gpu_world *w = (gpu_world *)calloc(1, sizeof *w);
    dev &d = w->d;
    w->l = *l;
    w->c = *c;
    w->count = rows->count;
    d.hidden = c->hidden; d.hc = c->hc; d.head_dim = c->head_dim; d.heads = c->heads; d.rope = c->rope_dim;
    d.window = c->window; d.index_heads = c->index_heads; d.index_dim = c->index_dim; d.topk = c->index_topk;
    d.candidate_blocks = c->candidate_blocks; d.candidate_block = c->candidate_block;
    d.context = (int32_t)context; d.pages_per_seq = (int32_t)page_count; d.real_bytes = 4; d.row_max = rows->count;
    d.l = (const cedar_layout *)keep(w, gpu_put(l, sizeof *l));
    d.pages = (uint8_t *)keep(w, gpu_put(pages, page_count * l->page_bytes));
    d.rings = (uint8_t *)keep(w, gpu_put(rings, l->ring_bytes));
    d.window_rows = (uint8_t *)keep(w, gpu_put(window_rows, (size_t)rows->count * l->ring_row_bytes));
    int32_t *table = (int32_t *)calloc(page_count, sizeof *table);
    for (uint32_t i = 0; i < page_count; i++) table[i] = (int32_t)i;
    d.page_table = (int32_t *)keep(w, gpu_put(table, page_count * 4));
    free(table);
    make_rows(w, rows);
    make_attention(w);
    d.scores = keep_bytes(w, (size_t)rows->count * context * 4);
    d.topk_ids = (int32_t *)keep_bytes(w, (size_t)rows->count * c->index_topk * 4);
    d.table = keep_bytes(w, (size_t)2 * rows->count * c->rope_dim * 4);
    double *freq = (double *)calloc((size_t)c->rope_dim, sizeof *freq);
    cedar_rope_frequencies(c, freq, freq + c->rope_dim / 2);
    double *on_device = (double *)keep(w, gpu_put(freq, (size_t)c->rope_dim * sizeof *freq));
    free(freq);
    launch_begin<bf16>(d, rows->count, on_device, 0);
    wait_for("launch_begin");
    return w;
}

void gpu_world_close(gpu_world *w) {
    while (w->taken_count) gpu_drop(w->taken[--w->taken_count]);
    free(w);
}

void gpu_scores(gpu_world *w, const float *iq, const float *g, int part, int ratio, float *scores) {
    tensor_scores(w->d, 0, w->count, iq, g, part, ratio, false, 0);
    wait_for("tensor_scores");
    gpu_get(scores, w->d.scores, (size_t)w->count * w->d.context * 4);
}

void gpu_select(gpu_world *w, const float *scores, int ratio, int32_t *ids) {
    need(cudaMemcpy(w->d.scores, scores, (size_t)w->count * w->d.context * 4, cudaMemcpyHostToDevice), "scores");
    launch_select<bf16>(w->d, 0, w->count, ratio, false, chain{ 0, false });
    wait_for("launch_select");
    gpu_get(ids, w->d.topk_ids, (size_t)w->count * w->d.topk * 4);
}

/* Rows 0 .. count - 1 of `context` scores each. */
static dev long_rows(const float *scores, uint32_t count, uint32_t context, const uint32_t *pos) {
    dev d = {};
    size_t bytes = (size_t)count * context * 4;
    uint32_t *active = (uint32_t *)calloc(count, sizeof *active);
    for (uint32_t r = 0; r < count; r++) active[r] = r;
    d.context = (int32_t)context;
    d.active = (uint32_t *)gpu_put(active, count * sizeof *active);
    d.row_pos = (uint32_t *)gpu_put(pos, count * sizeof *pos);
    d.scores = gpu_put(scores, bytes);
    d.block_scores = gpu_put(NULL, bytes);
    free(active);
    return d;
}

static void drop_long_rows(dev &d) {
    void *all[] = { d.active, d.row_pos, d.scores, d.block_scores, d.topk_ids, d.pool, d.pool_count };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpu_drop(all[i]);
}

void gpu_select_long(const float *scores, uint32_t count, uint32_t context, const uint32_t *pos, int k, int32_t *ids) {
    dev d = long_rows(scores, count, context, pos);
    size_t bytes = (size_t)count * (size_t)k * 4;
    d.topk = k;
    d.topk_ids = (int32_t *)gpu_put(NULL, bytes);
    launch_select<bf16>(d, 0, count, 1, false, chain{ 0, false });
    wait_for("launch_select");
    gpu_get(ids, d.topk_ids, bytes);
    drop_long_rows(d);
}

void gpu_pool_long(const float *scores, uint32_t count, uint32_t context, const uint32_t *pos, int block, int k,
                   int32_t *ids, int32_t *picked) {
    dev d = long_rows(scores, count, context, pos);
    size_t bytes = (size_t)count * (size_t)k * 4;
    d.candidate_block = block;
    d.candidate_blocks = k;
    d.pool = (int32_t *)gpu_put(NULL, bytes);
    d.pool_count = (int32_t *)gpu_put(NULL, count * 4);
    launch_pool<bf16>(d, 0, count, 1, chain{ 0, false });
    wait_for("launch_pool");
    gpu_get(ids, d.pool, bytes);
    gpu_get(picked, d.pool_count, count * 4);
    drop_long_rows(d);
}

static __global__ void narrow(const float *x, uint64_t count, __nv_bfloat16 *out) {
    for (uint64_t i = blockIdx.x * 256ull + threadIdx.x; i < count; i += gridDim.x * 256ull)
        out[i] = __float2bfloat16_rn(x[i]);
}

bool gpu_attention_can(const gpu_world *w) { return tensor_attention_rows_can(w->d, w->l, w->a); }

void gpu_attention(gpu_world *w, const float *q, const float *sink, const int32_t *ids, int layer, int part,
                   int table_kind, bool many, uint16_t *out) {
    size_t bytes = (size_t)w->count * w->c.heads * w->c.head_dim * 2;
    dev_weight s = { CEDAR_W_F32, 1, w->c.heads, (const uint8_t *)sink, NULL };
    uint16_t *packed = (uint16_t *)gpu_put(NULL, bytes);
    if (ids)
        need(cudaMemcpy(w->d.topk_ids, ids, (size_t)w->count * w->d.topk * 4, cudaMemcpyHostToDevice), "picks");
    __nv_bfloat16 *narrow_q = (__nv_bfloat16 *)gpu_put(NULL, bytes);
    narrow<<<256, 256>>>(q, bytes / 2, narrow_q);
    tensor_keys(w->d, 0, w->count, layer, ids ? part : -1, 0, w->a, chain{ 0, true });
    tensor_attention_rows(w->d, 0, w->count, table_kind, (const uint16_t *)narrow_q, s,
                          w->c.heads / w->c.o_groups, w->a, many, packed, chain{ 0, true });
    wait_for("tensor_attention_rows");
    gpu_get(out, packed, bytes);
    gpu_drop(packed);
    gpu_drop(narrow_q);
}

/* q [rows, heads * dim] -> out [rows, some * dim] from head `first` on. */
static __global__ void narrow_share(const float *q, int heads, int first, int some, int dim, __nv_bfloat16 *out) {
    const float *from = q + ((uint64_t)blockIdx.x * heads + first) * dim;
    for (int i = threadIdx.x; i < some * dim; i += blockDim.x)
        out[(uint64_t)blockIdx.x * some * dim + i] = __float2bfloat16_rn(from[i]);
}

void gpu_attention_share(gpu_world *w, const float *q, const float *sink, int table_kind, int first, int heads,
                         bool many, uint16_t *out) {
    size_t bytes = (size_t)w->count * heads * w->c.head_dim * 2;
    dev_weight s = { CEDAR_W_F32, 1, heads, (const uint8_t *)(sink + first), NULL };
    uint16_t *packed = (uint16_t *)gpu_put(NULL, bytes);
    __nv_bfloat16 *own = (__nv_bfloat16 *)gpu_put(NULL, bytes);
    dev d = w->d;
    d.heads = heads;
    narrow_share<<<w->count, 256>>>(q, w->c.heads, first, heads, w->c.head_dim, own);
    tensor_attention_rows(d, 0, w->count, table_kind, (const uint16_t *)own, s, w->c.heads / w->c.o_groups, w->a, many,
                          packed, chain{ 0, false });
    wait_for("tensor_attention_rows");
    gpu_get(out, packed, bytes);
    gpu_drop(packed);
    gpu_drop(own);
}
