/* Private to engine/cuda: device types, arithmetics, number formats, and the state that kernels see.
 *
 * Ownership   The backend (backend.cu) owns all device memory, taken once in open. Kernels get a `dev` by value.
 * Class       Every kernel here is D1: an output depends on its row's inputs alone, and each sum has one fixed order.
 *             No float atomics. */
#ifndef CEDAR_ENGINE_CUDA_INT_CUH
#define CEDAR_ENGINE_CUDA_INT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "engine/cuda/pairs.cuh"

extern "C" {
#include "engine/backend.h"
#include "engine/quant.h"
}

/* --- arithmetics (as engine/cpu/arith.h) -------------------------------------------------------------------------- */

struct wide {
    typedef double real, stream;        /* stream: how residual streams are kept */
    static __device__ real rb(real x) { return x; }
};
struct f32 {
    typedef float real, stream;
    static __device__ real rb(real x) { return x; }
};
struct bf16 {
    typedef float real;
    typedef __nv_bfloat16 stream;       /* they are rounded wherever they are written */
    static __device__ real rb(real x) { return __bfloat162float(__float2bfloat16_rn(x)); }
};

static __device__ inline double real_exp(double x) { return exp(x); }
static __device__ inline float real_exp(float x) { return expf(x); }
static __device__ inline double real_log1p(double x) { return log1p(x); }
static __device__ inline float real_log1p(float x) { return log1pf(x); }
static __device__ inline double real_sqrt(double x) { return sqrt(x); }
static __device__ inline float real_sqrt(float x) { return sqrtf(x); }
template <class R> static __device__ inline R sigmoid(R x) { return 1 / (1 + real_exp(-x)); }

/* --- number formats (engine/quant.h on the device) ---------------------------------------------------------------- */

static __device__ inline float bf16_value(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }

static __device__ inline double e4m3_value(uint8_t c) {
    int e = c >> 3 & 15, m = c & 7;
    if ((c & 127) == 127) return __longlong_as_double(0x7ff8000000000000ll);
    double v = e ? ldexp(1.0 + m / 8.0, e - 7) : ldexp((double)m, -9);
    return c & 128 ? -v : v;
}

static __device__ inline double e2m1_value(uint8_t c) {
    int e = c >> 1 & 3, m = c & 1;
    double v = e ? ldexp(1.0 + m / 2.0, e - 1) : m / 2.0;
    return c & 8 ? -v : v;
}

static __device__ inline double ue8m0_value(uint8_t b) {
    return b == 255 ? __longlong_as_double(0x7ff8000000000000ll)
                    : __longlong_as_double((long long)(b - 127 + 1023) << 52);
}

static __device__ inline uint8_t e4m3_encode(double x) {
    if (x != x) return 0x7F;
    unsigned long long u = (unsigned long long)__double_as_longlong(x);
    uint8_t sign = (uint8_t)(u >> 63 << 7);
    double a = fabs(x);
    if (a >= 448) return sign | 0x7E;
    if (a < 0x1p-6) return sign | (uint8_t)rint(a * 512);
    u = (unsigned long long)__double_as_longlong(a);
    u = (u + ((1ull << 48) - 1) + ((u >> 49) & 1)) >> 49;
    return sign | (uint8_t)(u - ((unsigned long long)(1023 - 7) << 3));
}

static __device__ inline uint8_t e2m1_encode(double x, double s) {
    double a = fabs(x);
    int c = (a > .25 * s) + (a >= .75 * s) + (a > 1.25 * s) + (a >= 1.75 * s) + (a > 2.5 * s) + (a >= 3.5 * s) +
            (a > 5 * s);
    if (x != x) c = 7;
    return (uint8_t)(c | (signbit(x) ? 8 : 0));
}

static __device__ inline uint8_t pow2_ceil_byte(double amax, float inverse_max) {
    uint32_t u = __float_as_uint(__fmul_rn((float)amax, inverse_max));
    return (uint8_t)((u >> 23) + ((u & 0x7fffffu) != 0));
}

/* Largest magnitude over the 2^k lanes of an aligned group; NaN counts as 0. */
template <int LANES> static __device__ inline double group_max(double a) {
    a = a == a ? fabs(a) : 0;
    for (int o = LANES / 2; o; o /= 2) a = fmax(a, __shfl_xor_sync(0xffffffffu, a, o));
    return a;
}

static __device__ inline uint8_t fp8q32_scale(double x) {
    return pow2_ceil_byte(fmax(group_max<32>(x), (double)1e-4f), 1.0f / 448);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

struct dev_weight {
    int kind;                   /* cedar_weight_kind */
    int64_t rows, cols;
    const uint8_t *data, *scale;
};

/* Element [row, col] of a weight as launch_spread leaves it: rows of FP8 and FP4 are whole eights. */
static __device__ inline double weight_at(const dev_weight &w, int64_t row, int64_t col) {
    switch (w.kind) {
    case CEDAR_W_TILES: {
        uint8_t c = e4m3_code(((const uint2 *)w.data)[(row * w.cols + col) / 8], (int)(col % 8));
        return e4m3_value(c) * ue8m0_value(w.scale[row / 32 * ((w.cols + 31) / 32) + col / 32]);
    }
    case CEDAR_W_ROWS:
        return e4m3_value(w.data[row * w.cols + col]) * ue8m0_value(w.scale[row * (w.cols / 32) + col / 32]);
    case CEDAR_W_FP4: {
        uint8_t c = e2m1_code(((const uint32_t *)w.data)[(row * w.cols + col) / 8], (int)(col % 8));
        return e2m1_value(c) * ue8m0_value(w.scale[row * (w.cols / 32) + col / 32]);
    }
    case CEDAR_W_BF16: return (double)bf16_value(((const uint16_t *)w.data)[row * w.cols + col]);
    default: return (double)((const float *)w.data)[row * w.cols + col];
    }
}

/* --- what kernels see --------------------------------------------------------------------------------------------- */

struct dev_entry {
    int32_t seq;
    uint32_t pos, rows, first_row, write_floor;
    uint32_t lo[3];             /* encoder, cut, late */
    int32_t history[CEDAR_NGRAM_MAX];   /* raw tokens at pos-1, pos-2, ...; -1 before the start */
};

enum { HC_SPLITS = 16 };        /* parts of the channels an mHC projection is summed in */
enum { CEDAR_CUDA_RANKS_MAX = 8 };

/* Sizes and pointers; passed by value. Reals of the arithmetic are behind void pointers. */
struct dev {
    int32_t hidden, hc, head_dim, heads, rope, window, q_lora, index_heads, index_dim, topk, cut, layers;
    int32_t candidate_blocks, candidate_block, context, pages_per_seq, hc_iters, ngram, engram_heads, engram_rows,
        targets;
    double hc_eps, norm_eps;
    const cedar_layout *l;      /* on the device */
    uint32_t real_bytes, stream_bytes;
    uint8_t *pages, *rings, *open;
    int32_t rank, ranks;        /* ranks up to 1: alone */
    uint8_t *pages_of[CEDAR_CUDA_RANKS_MAX];    /* with several ranks, the pool of each */
    int32_t *page_table;        /* [seq_count, pages_per_seq] */
    dev_entry *entries;
    int32_t *row_token, *row_entry;
    uint32_t *row_pos;
    uint32_t *active;           /* rows that run now */
    int32_t *token_map;
    void *h;                    /* [R, hc, hidden] streams, of the arithmetic's own type */
    void *pre, *pre_attn, *post, *comb, *x, *xq, *table;   /* table [2, R, rope] cos, sin per pair */
    uint32_t row_max;
    double *hc_partial;         /* [R, HC_SPLITS, (2 + n) n + 1] */
    uint32_t *hc_tickets;       /* by place in the list: parts of a row that are done, 0 between launches */
    uint8_t *window_rows;       /* [R, ring_row_bytes] */
    void *comp;                 /* [R, 2, head_dim] */
    int32_t *topk_ids;          /* [R, topk] */
    int32_t *pool, *pool_count; /* [R, candidate_blocks], [R] */
    void *scores;               /* [score rows, context] */
    void *block_scores;         /* likewise: best scores of blocks of entries, and what slices of a list keep */
    void *features;             /* [R, targets, hidden] */
    int64_t *engram_ids;        /* [R, engram_rows] */
};

static __device__ inline uint8_t *dev_page(const dev &d, int32_t seq, uint32_t page) {
    uint32_t p = (uint32_t)d.page_table[(uint64_t)seq * d.pages_per_seq + page];
    if (d.ranks > 1) return d.pages_of[p % d.ranks] + (uint64_t)(p / d.ranks) * d.l->page_bytes;
    return d.pages + (uint64_t)p * d.l->page_bytes;
}

/* Whether this rank writes a page; all read it. */
static __device__ inline bool dev_owns(const dev &d, int32_t seq, uint32_t page) {
    return d.ranks <= 1 || d.page_table[(uint64_t)seq * d.pages_per_seq + page] % d.ranks == d.rank;
}

static __device__ inline uint8_t *dev_ring(const dev &d, int32_t seq, uint32_t ring, uint32_t pos) {
    return d.rings + (uint64_t)seq * d.l->ring_bytes +
           ((uint64_t)ring * d.l->ring_slots + pos % d.l->ring_slots) * d.l->ring_row_bytes;
}

static __device__ inline uint8_t *dev_open(const dev &d, int32_t seq, int part, uint32_t pos) {
    return d.open + ((uint64_t)seq * d.l->open_reals + d.l->open_first[part] +
                     (uint64_t)(pos % d.l->open_slots[part]) * 2 * d.head_dim) *
                        d.real_bytes;
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

/* A stream, and whether a kernel is the last work before the launch there: then it may begin before that kernel and
 * those joined since then have ended, up to await_launch. */
struct chain {
    cudaStream_t stream;
    bool kernel_before;
    bool apart;                 /* no thread blocks in twos: another rank's waits may leave no room for both */
};

/* In a kernel: what follows sees all that the kernels before have written; the next one may begin. Most kernels allow
 * that behind their own wait, so that the next has only the one in front of it to think of. One that allows it before
 * its wait lets the next begin while the kernel before both still runs: what packs or norms the input of a linear layer
 * does, so that weights are on their way meanwhile. It says so. */
static __device__ __forceinline__ void await_launch() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
static __device__ __forceinline__ void allow_launch() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* Before a wait: what the way to p takes is then done. That is also reading its pointer, as a kernel's parameters come
 * from memory. */
static __device__ __forceinline__ void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/* `cluster` neighbouring blocks along x share their shared memory and are there together. */
template <class... Parameters, class... Arguments>
static void launch_cluster(void (*kernel)(Parameters...), dim3 grid, unsigned cluster, unsigned threads, size_t shared,
                           chain s, const Arguments &...arguments) {
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = s.stream;
    config.attrs = attribute;
    if (s.kernel_before) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[config.numAttrs].val.clusterDim.x = cluster;
        attribute[config.numAttrs].val.clusterDim.y = attribute[config.numAttrs].val.clusterDim.z = 1;
        config.numAttrs++;
    }
    cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... Parameters, class... Arguments>
static void launch_chained(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared, chain s,
                           const Arguments &...arguments) {
    launch_cluster(kernel, grid, 1, threads, shared, s, arguments...);
}

/* --- shared by kernels -------------------------------------------------------------------------------------------- */

/* Channels 4 k .. 4 k + 3 of the row's streams become expand(y, streams, post, comb) (spec/model.md 2.2). */
template <class A>
static __device__ __forceinline__ void expand_quad(const dev &d, uint32_t row, int k, const typename A::real y[4]) {
    typedef typename A::real real;
    typedef typename A::stream stream;
    struct __align__(4 * sizeof(stream)) quad { stream v[4]; };
    int n = d.hc, quads = d.hidden / 4;
    quad *h = (quad *)d.h + (uint64_t)row * n * quads, old[CEDAR_HC_MAX];
    const real *post = (const real *)d.post + (uint64_t)row * n, *comb = (const real *)d.comb + (uint64_t)row * n * n;
#pragma unroll
    for (int i = 0; i < CEDAR_HC_MAX; i++)
        if (i < n) old[i] = h[i * quads + k];
#pragma unroll
    for (int to = 0; to < CEDAR_HC_MAX; to++) {
        if (to >= n) break;
        real sum[4] = { 0, 0, 0, 0 };
#pragma unroll
        for (int from = 0; from < CEDAR_HC_MAX; from++)
            if (from < n)
                for (int i = 0; i < 4; i++) sum[i] += comb[from * n + to] * (real)old[from].v[i];
        quad out;
        for (int i = 0; i < 4; i++) out.v[i] = (stream)A::rb(post[to] * y[i] + sum[i]);
        h[to * quads + k] = out;
    }
}

/* Sum over a block's threads in one fixed order: pairs within a warp, then pairs of warps, which each warp adds for
 * itself. Everyone gets it. Warps of zeros change no bit. */
template <class R> static __device__ inline R block_sum(R v) {
    __shared__ R part[32];
    uint32_t lane = threadIdx.x % 32;
    for (int o = 16; o; o /= 2) v += __shfl_down_sync(0xffffffffu, v, o);
    __syncthreads();                            /* the part of a sum before this one has been read */
    if (lane == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    R s = lane < (blockDim.x + 31) / 32 ? part[lane] : 0;
    for (int o = 16; o; o /= 2) s += __shfl_down_sync(0xffffffffu, s, o);
    return __shfl_sync(0xffffffffu, s, 0);
}

/* Sum of v over the block's threads before this one, and over all. */
static __device__ uint32_t scan_block(uint32_t v, uint32_t *all) {
    __shared__ uint32_t part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = v;
    for (int o = 1; o < 32; o *= 2) {
        uint32_t other = __shfl_up_sync(0xffffffffu, sum, o);
        if (lane >= o) sum += other;
    }
    __syncthreads();
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    uint32_t upto = lane < (int)blockDim.x / 32 ? part[lane] : 0;
    for (int o = 1; o < 32; o *= 2) {
        uint32_t other = __shfl_up_sync(0xffffffffu, upto, o);
        if (lane >= o) upto += other;
    }
    *all = __shfl_sync(0xffffffffu, upto, 31);
    uint32_t before = __shfl_sync(0xffffffffu, upto, (warp + 31) % 32);
    if (warp == 0) before = 0;
    return before + sum - v;
}

#endif
