/* Single operators on made-up data for `cedar bench gpu` (engine/gpu_bench.h): the launchers that steps use, in the
 * sizes of a model, and three limits of the device: copying, reading, and matrix instructions on tiles that stay in
 * shared memory.
 *
 * Data  Codes, scales and activations are random bits within ranges that keep values finite: the speed of the matrix
 *       units depends on them. Two sequences of CONTEXT tokens hold the caches; rows alternate between them.
 * Time  A graph of `rounds` runs, each on the next weights or rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/ops.cuh"
#include "engine/cuda/tensor.cuh"
#include "engine/cuda/wgmma.cuh"

extern "C" {
#include "base/mem.h"
#include "base/rng.h"
#include "engine/gpu_bench.h"
}

enum { CONTEXT = 1 << 20, PAGE = 128, SEQUENCES = 2, ROWS = 2048, SCORE_ROWS = 64, ROUNDS_MAX = 32 };
/* Rows of the state: where those at the end of each context begin, and how many there are. */
enum { AT_1M = 0, COUNT_1M = 528, AT_128K = 528, AT_16K = 592, COUNT_FEW = 64 };
static const uint64_t BIG = 1ull << 30, FP8_POOL = 1ull << 29, Y_BYTES = 640ull << 20;

enum op_kind { COPY, READ, MATRIX, EMPTY, LINEAR, GROUPS, EXPERTS, ATTENTION, SCORES, SELECT, POOL, SITE, NORM, PACK };
enum pattern { RANDOM, EQUAL, SORTED };

struct op {
    cedar_gpu_row row;
    op_kind kind;
    uint32_t n, rounds;
    int weight;                 /* LINEAR: cedar_weight_kind */
    int64_t rows, cols;         /* of the weight, or of the rows */
    int context;                /* entries */
    bool pooled;
    pattern scores;
};

enum { OPS_MAX = 64, TAKEN_MAX = 64 };

struct cedar_gpu_bench {
    cedar_config c;
    cedar_layout l;
    cudaStream_t s;
    cudaEvent_t begin, end;
    void *taken[TAKEN_MAX];
    int taken_count;
    bool out_of_memory;
    op ops[OPS_MAX];
    uint32_t op_count;
    dev d;
    uint8_t *big, *fp8, *bf16_pool, *fp4, *tile_scales, *row_scales;
    uint64_t bf16_bytes;
    uint16_t *px, *packed;      /* activations in and out */
    uint16_t *sorted;           /* the same of pairs, by expert */
    float *q, *y;
    int32_t *ids, *picked;
    float *pair_weight;
    dev_weight *experts;        /* [3, experts] */
    dev_weight gain, sink;
    hc_site site;
    attention_work attention;
    expert_tiles tiles;
    uint32_t *sink_word;        /* where READ leaves its sum */
};

static cedar_status check(cudaError_t e, const char *what, cedar_err *err) {
    if (e == cudaSuccess) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_CUDA, "CUDA: %s failed: %s", what, cudaGetErrorString(e));
}

/* --- made-up data ------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ unsigned long long random_word(unsigned long long i) {
    i = (i + 0x9E3779B97F4A7C15ull) * 0xBF58476D1CE4E5B9ull;
    i = (i ^ (i >> 27)) * 0x94D049BB133111EBull;
    return i ^ (i >> 31);
}

static __global__ void fill_words(unsigned long long *p, uint64_t count, unsigned long long keep,
                                  unsigned long long set) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = (random_word(i) & keep) | set;
}

/* What random bits become: spread E4M3 (pairs.cuh) below 2 and never NaN, UE8M0 around 2^-7, E4M3 scales below 1, bf16
 * and floats from 2^-7 to 2. */
enum fill { CODES_FP8, CODES_FP4, SCALES_UE8M0, VALUES_BF16, VALUES_FLOAT, ONES_FLOAT };

static void fill(cedar_gpu_bench *b, void *p, uint64_t bytes, enum fill kind) {
    static const struct { unsigned long long keep, set; } masks[] = {
        { 0xBBFFBBFFBBFFBBFFull, 0 },
        { ~0ull, 0 },
        { 0x0101010101010101ull, 0x7878787878787878ull },
        { 0x83FF83FF83FF83FFull, 0x3C003C003C003C00ull },
        { 0x83FFFFFF83FFFFFFull, 0x3C0000003C000000ull },
        { 0, 0x3F8000003F800000ull },
    };
    fill_words<<<2048, 256, 0, b->s>>>((unsigned long long *)p, bytes / 8, masks[kind].keep, masks[kind].set);
}

static __global__ void fill_ramp(float *p, uint64_t count) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = (float)i;
}

/* Bytes of pages by what lies there. */
static __global__ void fill_pages(const cedar_layout *l, uint8_t *pages, uint64_t bytes) {
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += step) {
        uint64_t at = i % l->page_bytes;
        int part = 0;
        while (part + 1 < l->part_count && at >= l->part[part + 1].kv_codes) part++;
        const cedar_page_part &p = l->part[part];
        uint8_t r = (uint8_t)random_word(i);
        if (at >= p.index_scales) r = 0x78 | (r & 1);
        else if (at >= p.kv_scales && at < p.index_codes) r = 0x30 | (r & 7);
        pages[i] = r;
    }
}

static __global__ void fill_records(uint8_t *p, uint64_t bytes, uint32_t codes, uint32_t record) {
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += step) {
        uint8_t r = (uint8_t)random_word(i);
        p[i] = i % record < codes ? r & 0xBF : 0x78 | (r & 1);
    }
}

/* --- limits ------------------------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(512) read_kernel(const uint4 *p, uint64_t count, uint32_t *out) {
    enum { AT_ONCE = 8 };
    uint64_t step = (uint64_t)gridDim.x * blockDim.x, i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t sum = 0;
    for (; i + (AT_ONCE - 1) * step < count; i += AT_ONCE * step) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) v[k] = __ldcs(p + i + k * step);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (sum == 0x12345678u) *out = sum;         /* so that the reads are needed */
}

/* Two groups of four warps, each 64 rows by 256 columns by 64 of k a turn, on tiles that stay. */
enum {
    MATRIX_TURNS = 4000, MATRIX_A = 64 * 128, MATRIX_B = 4 * 64 * 128, MATRIX_BYTES = 2 * MATRIX_A + MATRIX_B + 1024
};

static __global__ void __launch_bounds__(256) matrix_kernel(uint32_t *out) {
    extern __shared__ uint8_t raw[];
    uint8_t *tiles = raw + (1024 - (uint32_t)__cvta_generic_to_shared(raw) % 1024) % 1024;
    for (int i = threadIdx.x; i < (2 * MATRIX_A + MATRIX_B) / 4; i += blockDim.x)
        ((uint32_t *)tiles)[i] = ((uint32_t)random_word((uint64_t)blockIdx.x << 20 | i) & 0x83FF83FFu) | 0x3C003C00u;
    wgmma_publish();
    __syncthreads();
    uint32_t at = (uint32_t)__cvta_generic_to_shared(tiles);
    uint64_t a = tile_descriptor(at + threadIdx.x / 128 * MATRIX_A),
             b = turned_descriptor(at + 2 * MATRIX_A, MATRIX_B / 4);
    float c[128] = {};
    for (int turn = 0; turn < MATRIX_TURNS; turn += 4) {
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 16; k++) wgmma_turned(c, a + k % 4 * 2, b + k % 4 * 128, true);
        wgmma_commit();
        wgmma_wait<0>();
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 128; i++) {
        asm volatile("" : "+f"(c[i])::"memory");
        sum += c[i];
    }
    if (sum == 0.5f) *out = 1;
}

static __global__ void empty_kernel(void) {}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static void *take(cedar_gpu_bench *b, uint64_t bytes) {
    void *p = NULL;
    if (b->out_of_memory || b->taken_count == TAKEN_MAX || cudaMalloc(&p, (bytes + 255) / 256 * 256) != cudaSuccess) {
        b->out_of_memory = true;
        return NULL;
    }
    b->taken[b->taken_count++] = p;
    return p;
}

static void take_all(cedar_gpu_bench *b) {
    const cedar_config *c = &b->c;
    uint64_t n = ROWS, dm = (uint64_t)c->hidden, expert = 3 * dm * (uint64_t)c->moe_dim / 2;
    dev &d = b->d;
    b->big = (uint8_t *)take(b, 2 * BIG);
    b->fp8 = (uint8_t *)take(b, FP8_POOL);
    b->bf16_bytes = 2 * (uint64_t)c->vocab * dm;
    b->bf16_pool = (uint8_t *)take(b, b->bf16_bytes);
    b->fp4 = (uint8_t *)take(b, (uint64_t)c->experts * expert);
    b->tile_scales = (uint8_t *)take(b, FP8_POOL / 1024 + (1u << 20));
    b->row_scales = (uint8_t *)take(b, (uint64_t)c->experts * expert / 16);
    b->px = (uint16_t *)take(b, n * (uint64_t)c->heads * c->head_dim * 2);
    b->packed = (uint16_t *)take(b, n * (uint64_t)(c->experts_per_token + 1) * padded(c->moe_dim) * 2);
    b->sorted = (uint16_t *)take(b, n * (uint64_t)c->experts_per_token * (padded(c->hidden) + padded(c->moe_dim)) * 2);
    b->q = (float *)take(b, (uint64_t)COUNT_1M * c->heads * c->head_dim * 4);
    b->y = (float *)take(b, Y_BYTES);
    b->ids = (int32_t *)take(b, ROUNDS_MAX * n * c->experts_per_token * 4);
    b->picked = (int32_t *)take(b, n * c->index_topk * 4);
    b->pair_weight = (float *)take(b, n * c->experts_per_token * 4);
    b->experts = (dev_weight *)take(b, 3 * (uint64_t)c->experts * sizeof(dev_weight));
    b->sink_word = (uint32_t *)take(b, 4);
    b->tiles.tiles_max = tensor_tiles_max(ROWS, c->experts_per_token, c->experts);
    b->tiles.pairs = (uint32_t *)take(b, n * c->experts_per_token * 4);
    b->tiles.tile_expert = (int32_t *)take(b, b->tiles.tiles_max * 4);
    b->tiles.tile_first = (uint32_t *)take(b, b->tiles.tiles_max * 4);
    b->tiles.tile_count = (uint32_t *)take(b, b->tiles.tiles_max * 4);
    attention_work &w = b->attention;
    w.keys_max = (c->window + c->index_topk + 63) / 64 * 64;
    w.keys = (dev_key *)take(b, (uint64_t)COUNT_1M * w.keys_max * sizeof(dev_key));
    w.fp4 = (uint8_t *)take(b, (uint64_t)COUNT_1M * w.keys_max);
    w.count = (int32_t *)take(b, COUNT_1M * 4);
    w.logits = (float *)take(b, (uint64_t)COUNT_1M * c->heads * w.keys_max * 4);
    w.total = (float *)take(b, (uint64_t)COUNT_1M * c->heads * 4);
    d.pages = (uint8_t *)take(b, (uint64_t)SEQUENCES * (CONTEXT / PAGE) * b->l.page_bytes);
    d.rings = (uint8_t *)take(b, SEQUENCES * b->l.ring_bytes);
    d.page_table = (int32_t *)take(b, (uint64_t)SEQUENCES * (CONTEXT / PAGE) * 4);
    d.entries = (dev_entry *)take(b, n * sizeof(dev_entry));
    d.row_entry = (int32_t *)take(b, n * 4);
    d.row_pos = (uint32_t *)take(b, n * 4);
    d.active = (uint32_t *)take(b, n * 4);
    d.h = take(b, n * c->hc * dm * 2);
    d.pre = take(b, n * c->hc * 4);
    d.pre_attn = take(b, n * c->hc * 4);
    d.post = take(b, n * c->hc * 4);
    d.comb = take(b, n * c->hc * c->hc * 4);
    d.hc_tickets = (uint32_t *)take(b, n * 4);
    if (d.hc_tickets) cudaMemset(d.hc_tickets, 0, n * 4);
    d.hc_partial = (double *)take(b, n * HC_SPLITS * ((2 + c->hc) * c->hc + 1) * 8);
    d.table = take(b, 2 * n * c->rope_dim * 4);
    d.window_rows = (uint8_t *)take(b, n * b->l.ring_row_bytes);
    d.topk_ids = (int32_t *)take(b, n * c->index_topk * 4);
    d.pool = (int32_t *)take(b, n * (uint64_t)c->candidate_blocks * 4);
    d.pool_count = (int32_t *)take(b, n * 4);
    d.scores = take(b, (uint64_t)SCORE_ROWS * CONTEXT * 4);
    d.block_scores = take(b, (uint64_t)SCORE_ROWS * CONTEXT * 4);
}

static void set_sizes(cedar_gpu_bench *b) {
    const cedar_config *c = &b->c;
    dev &d = b->d;
    d.hidden = c->hidden; d.hc = c->hc; d.head_dim = c->head_dim; d.heads = c->heads; d.rope = c->rope_dim;
    d.window = c->window; d.q_lora = c->q_lora; d.index_heads = c->index_heads; d.index_dim = c->index_dim;
    d.topk = c->index_topk; d.cut = c->cut; d.layers = c->layers; d.candidate_blocks = c->candidate_blocks;
    d.candidate_block = c->candidate_block; d.context = CONTEXT; d.hc_iters = c->hc_iters; d.hc_eps = c->hc_eps;
    d.norm_eps = c->norm_eps; d.pages_per_seq = CONTEXT / PAGE; d.real_bytes = 4; d.stream_bytes = 2; d.row_max = ROWS;
}

static uint32_t position_of(uint32_t row) {
    if (row < AT_128K) return CONTEXT - 1 - row % 2;
    if (row < AT_16K) return (1u << 17) - 1;
    return row < AT_16K + COUNT_FEW ? (1u << 14) - 1 : 127;
}

/* On the bench's stream, which does not wait for the default one. */
static cedar_status upload(cedar_gpu_bench *b, void *to, const void *from, uint64_t bytes, cedar_err *err) {
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, b->s), "copying made-up data", err);
}

/* Rows, their entries and picks, and the experts of tokens: `k` of them, distinct and ascending. */
static void distinct(uint64_t seed, uint64_t row, int32_t *out, int k, uint32_t below) {
    for (int i = 0, draw = 0; i < k; draw++) {
        int32_t v = (int32_t)cedar_rng_below(seed, row * 4096 + (uint64_t)draw, below);
        int at = i;
        while (at > 0 && out[at - 1] > v) at--;
        if (at > 0 && out[at - 1] == v) continue;
        memmove(out + at + 1, out + at, (size_t)(i - at) * sizeof *out);
        out[at] = v;
        i++;
    }
}

static cedar_status upload_rows(cedar_gpu_bench *b, cedar_err *err) {
    const cedar_config *c = &b->c;
    uint64_t pages = SEQUENCES * (CONTEXT / PAGE), picks = (uint64_t)ROWS * c->index_topk,
             chosen = (uint64_t)ROUNDS_MAX * ROWS * c->experts_per_token;
    dev_entry *entry = (dev_entry *)cedar_calloc(ROWS, sizeof *entry);
    int32_t *ints = (int32_t *)cedar_calloc(pages + picks + chosen + 2 * ROWS, sizeof *ints);
    if (!entry || !ints) {
        cedar_free(entry);
        cedar_free(ints);
        return cedar_fail(err, CEDAR_E_OOM, "no memory for a bench's rows");
    }
    int32_t *table = ints, *pick = table + pages, *chose = pick + picks, *number = chose + chosen, *pos = number + ROWS;
    for (uint64_t i = 0; i < pages; i++) table[i] = (int32_t)i;
    for (uint32_t i = 0; i < ROWS; i++) {
        number[i] = (int32_t)i;
        pos[i] = (int32_t)position_of(i);
        entry[i] = dev_entry{ (int32_t)(i % SEQUENCES), position_of(i), 1, i, 0, { 0, 0, 0 }, { 0 } };
        distinct(1, i, pick + (uint64_t)i * c->index_topk, c->index_topk, CONTEXT / 2);
    }
    for (uint64_t i = 0; i < (uint64_t)ROUNDS_MAX * ROWS; i++)
        distinct(2, i, chose + i * c->experts_per_token, c->experts_per_token, (uint32_t)c->experts);
    cedar_status st = upload(b, b->d.page_table, table, pages * 4, err);
    if (!st) st = upload(b, b->d.topk_ids, pick, picks * 4, err);
    if (!st) st = upload(b, b->ids, chose, chosen * 4, err);
    if (!st) st = upload(b, b->d.active, number, ROWS * 4, err);
    if (!st) st = upload(b, b->d.row_entry, number, ROWS * 4, err);
    if (!st) st = upload(b, b->d.row_pos, pos, ROWS * 4, err);
    if (!st) st = upload(b, b->d.entries, entry, ROWS * sizeof *entry, err);
    cedar_free(entry);
    cedar_free(ints);
    return st;
}

static cedar_status upload_experts(cedar_gpu_bench *b, cedar_err *err) {
    const cedar_config *c = &b->c;
    int n = c->experts;
    uint64_t size = (uint64_t)c->hidden * c->moe_dim;
    dev_weight *list = (dev_weight *)cedar_calloc(3 * (size_t)n, sizeof *list);
    if (!list) return cedar_fail(err, CEDAR_E_OOM, "no memory for a bench's experts");
    for (int i = 0; i < 3 * n; i++) {
        bool down = i / n == 1;
        list[i] = dev_weight{ CEDAR_W_FP4, down ? c->hidden : c->moe_dim, down ? c->moe_dim : c->hidden,
                              b->fp4 + (uint64_t)i * size / 2, b->row_scales + (uint64_t)i * size / 32 };
    }
    cedar_status st = upload(b, b->experts, list, 3 * (size_t)n * sizeof *list, err);
    cedar_free(list);
    return st;
}

static cedar_status fill_all(cedar_gpu_bench *b, cedar_err *err) {
    const cedar_config *c = &b->c;
    dev &d = b->d;
    uint64_t expert = 3 * (uint64_t)c->hidden * c->moe_dim / 2,
             page_bytes = (uint64_t)SEQUENCES * (CONTEXT / PAGE) * b->l.page_bytes;
    uint32_t codes = (uint32_t)c->head_dim, record = b->l.ring_row_bytes;
    cedar_layout *l = (cedar_layout *)take(b, sizeof *l);
    double *freq = (double *)take(b, (uint64_t)c->rope_dim * sizeof *freq);
    double host[8192];
    if (b->out_of_memory)
        return cedar_fail(err, CEDAR_E_BUDGET, "a bench of operators needs about 9 GB of device memory");
    cedar_rope_frequencies(c, host, host + c->rope_dim / 2);
    cedar_status st = upload(b, freq, host, (uint64_t)c->rope_dim * sizeof *freq, err);
    if (!st) st = upload(b, l, &b->l, sizeof b->l, err);
    if (!st) st = upload_rows(b, err);
    if (!st) st = upload_experts(b, err);
    if (st) return st;
    d.l = l;
    fill(b, b->big, 2 * BIG, CODES_FP4);
    fill(b, b->fp8, FP8_POOL, CODES_FP8);
    fill(b, b->bf16_pool, b->bf16_bytes, VALUES_BF16);
    fill(b, b->fp4, (uint64_t)c->experts * expert, CODES_FP4);
    fill(b, b->tile_scales, FP8_POOL / 1024 + (1u << 20), SCALES_UE8M0);
    fill(b, b->row_scales, (uint64_t)c->experts * expert / 16, SCALES_UE8M0);
    fill(b, b->px, ROWS * (uint64_t)c->heads * c->head_dim * 2, VALUES_BF16);
    fill(b, b->q, (uint64_t)COUNT_1M * c->heads * c->head_dim * 4, VALUES_FLOAT);
    fill(b, b->y, Y_BYTES, VALUES_FLOAT);
    fill(b, b->pair_weight, (uint64_t)ROWS * c->experts_per_token * 4, VALUES_FLOAT);
    fill(b, d.h, (uint64_t)ROWS * c->hc * c->hidden * 2, VALUES_BF16);
    fill(b, d.pre, (uint64_t)ROWS * c->hc * 4, VALUES_FLOAT);
    fill(b, d.post, (uint64_t)ROWS * c->hc * 4, VALUES_FLOAT);
    fill(b, d.comb, (uint64_t)ROWS * c->hc * c->hc * 4, VALUES_FLOAT);
    fill_pages<<<4096, 256, 0, b->s>>>(l, d.pages, page_bytes);
    fill_records<<<1024, 256, 0, b->s>>>(d.rings, SEQUENCES * b->l.ring_bytes, codes, record);
    fill_records<<<1024, 256, 0, b->s>>>(d.window_rows, (uint64_t)ROWS * record, codes, record);
    launch_begin<bf16>(d, ROWS, freq, b->s);
    b->gain = dev_weight{ CEDAR_W_BF16, 1, c->hidden, b->bf16_pool, NULL };
    b->sink = dev_weight{ CEDAR_W_F32, 1, c->heads, (const uint8_t *)b->q, NULL };
    int64_t mixes = (int64_t)(2 + c->hc) * c->hc;
    b->site = hc_site{ { CEDAR_W_F32, mixes, (int64_t)c->hc * c->hidden, (const uint8_t *)b->q, NULL },
                       { CEDAR_W_F32, 1, mixes, (const uint8_t *)b->q, NULL },
                       { CEDAR_W_F32, 1, 3, (const uint8_t *)b->q, NULL } };
    return check(cudaDeviceSynchronize(), "making data for a bench", err);
}

/* --- the list of rows --------------------------------------------------------------------------------------------- */

static op *add(cedar_gpu_bench *b, op_kind kind, const char *name, const char *what, cedar_gpu_limit limit,
               double amount, double goal, uint32_t n, uint32_t rounds) {
    op *o = &b->ops[b->op_count++];
    *o = op{};
    o->row = cedar_gpu_row{ name, what, limit, amount, goal };
    o->kind = kind;
    o->n = n;
    o->rounds = rounds;
    return o;
}

static double weight_bytes(int kind, int64_t rows, int64_t cols) {
    double n = (double)rows * (double)cols;
    return kind == CEDAR_W_BF16 ? 2 * n : n + n / 1024;
}

static void add_linear(cedar_gpu_bench *b, op_kind kind, const char *name, const char *what, int weight, int64_t rows,
                       int64_t cols, uint32_t n) {
    bool few = few_rows(n);
    double amount = few ? weight_bytes(weight, rows, cols) : 2.0 * n * (double)rows * (double)cols;
    op *o = add(b, kind, name, what, few ? CEDAR_GPU_OF_BANDWIDTH : CEDAR_GPU_OF_MATRIX, amount, 0, n, few ? 32 : 4);
    o->weight = weight;
    o->rows = rows;
    o->cols = cols;
}

/* Experts that the tokens of a round choose, on average. */
static double unique_experts(const cedar_gpu_bench *b, uint32_t n, uint32_t rounds) {
    int k = b->c.experts_per_token, total = 0;
    int32_t row[CEDAR_EXPERTS_PER_TOKEN_MAX];
    for (uint32_t r = 0; r < rounds; r++) {
        bool seen[4096] = { false };
        for (uint32_t i = 0; i < n; i++) {
            distinct(2, (uint64_t)r * ROWS + i, row, k, (uint32_t)b->c.experts);
            for (int e = 0; e < k; e++) {
                total += !seen[row[e]];
                seen[row[e]] = true;
            }
        }
    }
    return (double)total / rounds;
}

static void add_experts(cedar_gpu_bench *b, const char *name, const char *what, uint32_t n, double goal, bool matrix) {
    const cedar_config *c = &b->c;
    uint32_t rounds = few_rows(n) ? 16 : 4;
    double expert = 3.0 * c->hidden * c->moe_dim,
           amount = matrix ? 2.0 * n * c->experts_per_token * expert : unique_experts(b, n, rounds) * expert * 17 / 32;
    add(b, EXPERTS, name, what, matrix ? CEDAR_GPU_OF_MATRIX : CEDAR_GPU_OF_BANDWIDTH, amount, goal, n, rounds);
}

static void add_attention(cedar_gpu_bench *b, const char *name, const char *what, uint32_t n) {
    const cedar_config *c = &b->c;
    double bytes = (double)n * ((double)c->index_topk * (b->l.kv_code_bytes + b->l.kv_scale_bytes) +
                                (double)c->window * b->l.ring_row_bytes),
           flops = 4.0 * n * c->heads * c->head_dim * (c->index_topk + c->window);
    bool few = few_rows(n);
    add(b, ATTENTION, name, what, few ? CEDAR_GPU_OF_BANDWIDTH : CEDAR_GPU_OF_MATRIX, few ? bytes : flops, 0, n,
        few ? 16 : 4);
}

static void add_scores(cedar_gpu_bench *b, const char *name, const char *what, int context, bool pooled, uint32_t n,
                       double goal) {
    const cedar_config *c = &b->c;
    int pool = c->candidate_blocks * c->candidate_block, scored = pooled && pool < context ? pool : context;
    op *o = add(b, SCORES, name, what, n == 1 ? CEDAR_GPU_OF_BANDWIDTH : CEDAR_GPU_OF_MATRIX,
                n == 1 ? (double)scored * (b->l.index_code_bytes + b->l.index_scale_bytes)
                       : 2.0 * n * scored * c->index_heads * c->index_dim,
                goal, n, n == 1 ? 16 : 4);
    o->context = context;
    o->pooled = pooled;
}

static void add_select(cedar_gpu_bench *b, op_kind kind, const char *name, const char *what, uint32_t n, int context,
                       pattern scores) {
    op *o = add(b, kind, name, what, CEDAR_GPU_TIME, 0, 0, n, 16);
    o->context = context;
    o->scores = scores;
}

static void add_linears(cedar_gpu_bench *b) {
    const cedar_config *c = &b->c;
    int64_t d = c->hidden, hd = (int64_t)c->heads * c->head_dim, lora = (int64_t)c->o_groups * c->o_lora;
    int tiles = CEDAR_W_TILES;
    add_linear(b, LINEAR, "linear_wq_a_1", "FP8 weight read, 1 row", tiles, c->q_lora, d, 1);
    add_linear(b, LINEAR, "linear_wq_b_1", "FP8 weight read, 1 row", tiles, hd, c->q_lora, 1);
    add_linear(b, LINEAR, "linear_wq_b_8", "the same, 8 rows", tiles, hd, c->q_lora, 8);
    add_linear(b, LINEAR, "linear_wq_b_32", "the same, 32 rows", tiles, hd, c->q_lora, 32);
    add_linear(b, GROUPS, "linear_wo_a_1", "FP8 weight read in groups, 1 row", tiles, lora, hd / c->o_groups, 1);
    add_linear(b, LINEAR, "linear_wo_b_1", "FP8 weight read, 1 row", tiles, d, lora, 1);
    add_linear(b, LINEAR, "linear_head_1", "bf16 weight read, 1 row", CEDAR_W_BF16, c->vocab, d, 1);
    add_linear(b, LINEAR, "linear_wq_b_2048", "FP8 weight, 2048 rows", tiles, hd, c->q_lora, 2048);
    add_linear(b, GROUPS, "linear_wo_a_2048", "FP8 weight in groups, 2048 rows", tiles, lora, hd / c->o_groups, 2048);
    add_linear(b, LINEAR, "linear_wo_b_2048", "FP8 weight, 2048 rows", tiles, d, lora, 2048);
}

static void add_rows(cedar_gpu_bench *b) {
    const cedar_config *c = &b->c;
    double d = c->hidden, h = c->hc, n = ROWS;
    add(b, COPY, "limit_copy", "copy of 1 GiB, read and written", CEDAR_GPU_IS_BANDWIDTH, 2.0 * (double)BIG, 0, 1, 4);
    add(b, READ, "limit_read", "2 GiB read", CEDAR_GPU_IS_BANDWIDTH, 2.0 * (double)BIG, 0, 1, 4);
    add(b, MATRIX, "limit_matrix", "wgmma bf16 64x256x16 on random tiles that stay in shared memory",
        CEDAR_GPU_IS_MATRIX, 132.0 * 2 * MATRIX_TURNS * 64 * 256 * 64 * 2, 0, 1, 2);
    add(b, EMPTY, "graph_node", "an empty kernel in a graph of 1000", CEDAR_GPU_TIME, 0, 0, 1, 1000);
    add_linears(b);
    add_experts(b, "moe_decode_1", "FP4 experts chosen, read; 1 token", 1, 0.65, false);
    add_experts(b, "moe_decode_8", "the same, 8 tokens", 8, 0, false);
    add_experts(b, "moe_decode_32", "the same, 32 tokens", 32, 0, false);
    add_experts(b, "moe_decode_64", "the same, 64 tokens (kernel for many rows)", 64, 0.85, false);
    add_experts(b, "moe_decode_256", "the same, 256 tokens", 256, 0.85, false);
    add_experts(b, "moe_prefill_2048", "FP4 experts, routed pairs only; 2048 tokens", 2048, 0.75, true);
    add_attention(b, "sparse_attn_1", "keys read; 1 row of 512 picks and 128 window rows", 1);
    add_attention(b, "sparse_attn_16", "the same, 16 rows", 16);
    add_attention(b, "sparse_attn_64", "the same, 64 rows (kernel for many rows)", 64);
    add_attention(b, "sparse_attn_128", "the same, 128 rows", 128);
    add_attention(b, "sparse_attn_512", "the same, 512 rows", 512);
    add_scores(b, "indexer_logits_128k", "index keys read; 1 query, all of 131,072 entries", 1 << 17, false, 1, 0);
    add_scores(b, "indexer_logits_1m", "the same, 1,048,576 entries", CONTEXT, false, 1, 0.7);
    add_scores(b, "indexer_pooled_128k", "16,384 entries of a pool over 131,072", 1 << 17, true, 1, 0);
    add_scores(b, "indexer_pooled_1m", "16,384 entries of a pool over 1,048,576", CONTEXT, true, 1, 0);
    add_scores(b, "indexer_rows_64x16k", "64 queries of a prompt, 16,384 entries", 1 << 14, false, 64, 0);
    add_select(b, SELECT, "topk512_1x16k", "1 row, 16,384 random scores", 1, 1 << 14, RANDOM);
    add_select(b, SELECT, "topk512_1x128k", "1 row, 131,072 random scores", 1, 1 << 17, RANDOM);
    add_select(b, SELECT, "topk512_1x128k_equal", "the same, all equal", 1, 1 << 17, EQUAL);
    add_select(b, SELECT, "topk512_1x128k_sorted", "the same, ascending", 1, 1 << 17, SORTED);
    add_select(b, SELECT, "topk512_1x1m", "1 row, 1,048,576 random scores", 1, CONTEXT, RANDOM);
    add_select(b, SELECT, "topk512_64x16k", "64 rows, 16,384 random scores", 64, 1 << 14, RANDOM);
    add_select(b, SELECT, "topk512_64x128k", "64 rows, 131,072 random scores", 64, 1 << 17, RANDOM);
    add_select(b, POOL, "pool_1x128k", "best 2048 blocks of 8 of 131,072 scores", 1, 1 << 17, RANDOM);
    /* streams read and written, a sub-layer's output read, its input written, as bf16 */
    add(b, SITE, "mhc_site_2048", "post, mix, pre and norm of 2048 rows, bytes as bf16", CEDAR_GPU_OF_BANDWIDTH,
        n * d * 2 * (2 * h + 2), 0.8, ROWS, 4);
    add(b, SITE, "mhc_site_1", "the same, 1 row", CEDAR_GPU_TIME, 0, 0, 1, 32);
    add(b, NORM, "norm_2048", "norm and FP8 round trip of 2048 low-rank queries", CEDAR_GPU_OF_BANDWIDTH,
        n * c->q_lora * 6.0, 0, ROWS, 8)->cols = c->q_lora;
    add(b, PACK, "pack_2048", "FP8 round trip of 2048 rows of wo_b's input", CEDAR_GPU_OF_BANDWIDTH,
        n * c->o_groups * c->o_lora * 6.0, 0, ROWS, 4)->cols = (int64_t)c->o_groups * c->o_lora;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static uint32_t first_row(int context) { return context == CONTEXT ? AT_1M : context == 1 << 17 ? AT_128K : AT_16K; }

/* The next weight of a size in its pool. */
static dev_weight weight_of(const cedar_gpu_bench *b, const op &o, uint32_t round) {
    uint64_t bytes = (uint64_t)o.rows * o.cols * (o.weight == CEDAR_W_BF16 ? 2 : 1),
             copies = (o.weight == CEDAR_W_BF16 ? b->bf16_bytes : FP8_POOL) / bytes;
    const uint8_t *pool = o.weight == CEDAR_W_BF16 ? b->bf16_pool : b->fp8;
    uint64_t at = round % copies * bytes;
    return dev_weight{ o.weight, o.rows, o.cols, pool + at, b->tile_scales + at / 1024 };
}

static void run_experts(cedar_gpu_bench *b, const op &o, uint32_t round, bool first) {
    const cedar_config *c = &b->c;
    bool woven = !few_rows(o.n);
    int k = c->experts_per_token, e = c->experts, slots = k + 1;
    uint64_t width = (uint64_t)ROWS * slots * c->moe_dim;
    const int32_t *ids = b->ids + (uint64_t)round * ROWS * k;
    dev_moe m = {};
    m.experts = e;
    m.per_token = k;
    m.moe_dim = c->moe_dim;
    m.limit = c->swiglu_limit;
    m.weight = b->pair_weight;
    m.a = b->y;
    m.b = b->y + width;
    float *out = b->y + 2 * width;
    expert_tiles t = b->tiles;
    tensor_tiles(o.n, k, e, woven, &t);
    chain next = { b->s, true };
    if (first) empty_kernel<<<1, 1, 0, b->s>>>();       /* tensor_sort follows a kernel */
    tensor_sort(ids, o.n, k, e, woven, t, b->s);
    m.w1 = b->experts;
    if (tensor_gated_can(m, c->hidden, woven, t)) {
        tensor_gated(m, c->hidden, b->px, t, b->packed, next);
    } else {
        if (t.sorted) tensor_gather(b->px, c->hidden, o.n, slots, t, b->sorted, b->s);
        tensor_experts(m.w1, 2, 2 * e, c->moe_dim, c->hidden, t.sorted ? b->sorted : b->px, woven, slots, t, false,
                       result{ m.a, c->moe_dim, AS_BF16 }, m.b, next);
        tensor_act(m, 0, k, o.n, woven, b->packed, next);
        if (t.sorted) tensor_gather(b->packed, c->moe_dim, o.n * (uint32_t)slots, 1, t, b->sorted, b->s);
    }
    tensor_experts(b->experts + e, 1, 0, c->hidden, c->moe_dim, t.sorted ? b->sorted : b->packed, woven, 1, t,
                   true, result{ out, c->hidden, AS_BF16 }, out, next);
}

static void run_site(cedar_gpu_bench *b, const op &o, uint32_t round, chain s) {
    dev d = b->d;
    if (o.n == 1) d.active += round * 61 % ROWS;
    launch_expand<bf16>(d, o.n, b->y, b->s);
    launch_hc<bf16>(d, o.n, b->site, d.pre_attn, chain{ b->s, false });
    s.kernel_before = true;
    tensor_collapse(d, o.n, collapse_into{ d.pre, b->gain, true, !few_rows(o.n), NULL, b->packed }, s);
}

static void run(cedar_gpu_bench *b, const op &o, uint32_t round) {
    const cedar_config *c = &b->c;
    bool woven = !few_rows(o.n);
    chain s = { b->s, round > 0 };
    dev d = b->d;
    if (o.context) {
        d.context = o.context;
        d.active += first_row(o.context) + (o.n == 1 ? round % SEQUENCES : 0);
        d.topk_ids = b->picked;
    }
    switch (o.kind) {
    case COPY: cudaMemcpyAsync(b->big + BIG, b->big, BIG, cudaMemcpyDeviceToDevice, b->s); break;
    case READ: read_kernel<<<132 * 4, 512, 0, b->s>>>((const uint4 *)b->big, 2 * BIG / 16, b->sink_word); break;
    case MATRIX: matrix_kernel<<<132, 256, MATRIX_BYTES, b->s>>>(b->sink_word); break;
    case EMPTY: empty_kernel<<<1, 32, 0, b->s>>>(); break;
    case LINEAR:
        tensor_linear(weight_of(b, o, round), operand{ b->px, NULL, 1, 0, woven }, o.n,
                      result{ b->y, o.rows, AS_BF16 }, s);
        break;
    case GROUPS:
        tensor_groups(weight_of(b, o, round), c->o_groups, operand{ b->px, NULL, c->o_groups, 0, woven }, o.n,
                      result{ b->y, o.rows, AS_BF16 }, s);
        break;
    case EXPERTS: run_experts(b, o, round, round == 0); break;
    case ATTENTION:
        d.active += o.n < COUNT_1M / ROUNDS_MAX ? round * o.n : 0;
        tensor_keys(d, 0, o.n, b->c.kv_sources[0], 0, 0, b->attention, chain{ b->s, false });
        tensor_attention_rows(d, 0, o.n, 1, (const uint16_t *)b->q, b->sink, c->heads / c->o_groups, b->attention,
                              woven, b->packed, chain{ b->s, true });
        break;
    case SCORES:
        tensor_scores(d, 0, o.n, b->q, b->q, b->l.part_count - 1, 1, o.pooled, b->s);
        break;
    case SELECT: launch_select<bf16>(d, 0, o.n, 1, false, s); break;
    case POOL: launch_pool<bf16>(d, 0, o.n, 1, s); break;
    case SITE: run_site(b, o, round, s); break;
    case NORM: tensor_norm(b->y, (int)o.cols, o.n, b->gain, c->norm_eps, woven, b->packed, s); break;
    case PACK: tensor_pack(b->y, false, o.cols, NULL, o.n, o.cols, true, woven, b->packed, s); break;
    }
}

/* Scores to pick from, or the pools that restrict a consumer. */
static void prepare(cedar_gpu_bench *b, const op &o) {
    uint64_t count = (uint64_t)o.n * o.context;
    if (o.kind == SELECT || o.kind == POOL) {
        if (o.scores == SORTED) fill_ramp<<<1024, 256, 0, b->s>>>((float *)b->d.scores, count);
        else fill(b, b->d.scores, count * 4, o.scores == EQUAL ? ONES_FLOAT : VALUES_FLOAT);
    }
    if (o.kind == SCORES && o.pooled)
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            op all = o;
            all.pooled = false;
            run(b, all, i);
            all.kind = POOL;
            run(b, all, i);
        }
}

/* --- the face ----------------------------------------------------------------------------------------------------- */

extern "C" cedar_status cedar_gpu_device_find(cedar_gpu_device *out, cedar_err *err) {
    cudaDeviceProp p;
    int devices = 0;
    memset(out, 0, sizeof *out);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return cedar_fail(err, CEDAR_E_CUDA, "there is no GPU on this machine that CUDA can use");
    cedar_status st = check(cudaGetDeviceProperties(&p, 0), "asking for the device", err);
    if (st) return st;
    snprintf(out->name, sizeof out->name, "%.127s", p.name);
    out->multiprocessors = p.multiProcessorCount;
    out->bytes = p.totalGlobalMem;
    cudaDriverGetVersion(&out->driver);
    cudaRuntimeGetVersion(&out->runtime);
    return CEDAR_OK;
}

extern "C" cedar_status cedar_gpu_bench_open(const cedar_config *c, cedar_gpu_bench **out, cedar_err *err) {
    if (c->kv_source_count < 1 || c->ratio[c->kv_sources[c->kv_source_count - 1]] != 1 || c->candidate_source < 0 ||
        c->index_dim != 128 || c->rope_dim > 8192)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED,
                          "the operators of model \"%s\" are not those that are measured; take flash-e32", c->name);
    cedar_gpu_bench *b = (cedar_gpu_bench *)cedar_calloc(1, sizeof *b);
    if (!b) return cedar_fail(err, CEDAR_E_OOM, "no memory for a bench");
    b->c = *c;
    cedar_layout_make(c, PAGE, 0, &b->l);
    cedar_status st = check(cudaStreamCreateWithFlags(&b->s, cudaStreamNonBlocking), "making a stream", err);
    if (!st) st = check(cudaEventCreate(&b->begin), "making an event", err);
    if (!st) st = check(cudaEventCreate(&b->end), "making an event", err);
    if (!st) st = check(tensor_prepare(), "setting up kernels", err);
    if (!st) st = check(tensor_attention_prepare(), "setting up kernels", err);
    if (!st)
        st = check(cudaFuncSetAttribute(matrix_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MATRIX_BYTES),
                   "setting up kernels", err);
    if (!st) {
        set_sizes(b);
        take_all(b);
        st = fill_all(b, err);
    }
    if (!st && !tensor_attention_rows_can(b->d, b->l, b->attention))
        st = cedar_fail(err, CEDAR_E_UNSUPPORTED,
                        "the attention of model \"%s\" is not the one that is measured; take flash-e32", c->name);
    if (st) {
        cedar_gpu_bench_close(b);
        return st;
    }
    add_rows(b);
    *out = b;
    return CEDAR_OK;
}

extern "C" void cedar_gpu_bench_close(cedar_gpu_bench *b) {
    if (!b) return;
    for (int i = 0; i < b->taken_count; i++) cudaFree(b->taken[i]);
    if (b->begin) cudaEventDestroy(b->begin);
    if (b->end) cudaEventDestroy(b->end);
    if (b->s) cudaStreamDestroy(b->s);
    cedar_free(b);
}

extern "C" uint32_t cedar_gpu_bench_count(const cedar_gpu_bench *b) { return b->op_count; }

extern "C" const cedar_gpu_row *cedar_gpu_bench_row(const cedar_gpu_bench *b, uint32_t row) {
    CEDAR_ASSERT(row < b->op_count);
    return &b->ops[row].row;
}

static cedar_status capture(cedar_gpu_bench *b, const op &o, cudaGraphExec_t *out, cedar_err *err) {
    cudaGraph_t graph = NULL;
    prepare(b, o);
    cedar_status st = check(cudaStreamBeginCapture(b->s, cudaStreamCaptureModeThreadLocal), "beginning a graph", err);
    if (st) return st;
    for (uint32_t i = 0; i < o.rounds; i++) run(b, o, i);
    st = check(cudaStreamEndCapture(b->s, &graph), "capturing a graph", err);
    if (!st) st = check(cudaGraphInstantiate(out, graph, 0), "building a graph", err);
    if (graph) cudaGraphDestroy(graph);
    return st ? st : check(cudaGetLastError(), "a launch in a bench", err);
}

extern "C" cedar_status cedar_gpu_bench_time(cedar_gpu_bench *b, uint32_t row, uint32_t warm, uint32_t repeat,
                                             double *us, cedar_err *err) {
    CEDAR_ASSERT(row < b->op_count);
    const op &o = b->ops[row];
    cudaGraphExec_t graph = NULL;
    cedar_status st = capture(b, o, &graph, err);
    uint32_t warm_launches = (warm + o.rounds - 1) / o.rounds;
    for (uint32_t i = 0; i < warm_launches && !st; i++)
        st = check(cudaGraphLaunch(graph, b->s), "launching a graph", err);
    for (uint32_t i = 0; i < repeat && !st; i++) {
        float ms = 0;
        cudaEventRecord(b->begin, b->s);
        st = check(cudaGraphLaunch(graph, b->s), "launching a graph", err);
        cudaEventRecord(b->end, b->s);
        if (!st) st = check(cudaEventSynchronize(b->end), "running a graph", err);
        if (!st) st = check(cudaEventElapsedTime(&ms, b->begin, b->end), "timing a graph", err);
        us[i] = 1e3 * (double)ms / o.rounds;
    }
    if (graph) cudaGraphExecDestroy(graph);
    return st;
}
