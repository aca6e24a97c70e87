/* Row kernels around the linear layers on tensor cores: they leave their results packed (tensor.cuh). */
#include <cooperative_groups.h>

#include "engine/cuda/exchange.cuh"
#include "engine/cuda/packing.cuh"
#include "engine/cuda/tensor.cuh"
#include "engine/cuda/together.cuh"

static unsigned ceil_div(int64_t a, int64_t b) { return (unsigned)((a + b - 1) / b); }

/* --- packing ------------------------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(256)
    pack_kernel(const void *x, bool x_bf16, int64_t ldx, const uint32_t *list, int64_t k_count, bool quantise,
                bool woven, uint16_t *out) {
    allow_launch();                             /* of a linear layer, for its weights */
    prefetch(x);
    prefetch(out);
    await_launch();
    uint64_t row = list ? list[blockIdx.x] : blockIdx.x;
    int64_t width = (k_count + K_BLOCK - 1) / K_BLOCK * K_BLOCK, k = 8 * ((int64_t)blockIdx.y * 256 + threadIdx.x);
    float v[8] = {};
    if (k < k_count && x_bf16) unpack8(*(const uint4 *)((const uint16_t *)x + row * ldx + k), v);
    else if (k < k_count) load8((const float *)x + row * ldx + k, v);
    uint32_t p[4];
    pack8(v, quantise, p);
    if (k < width) store8(out + row * width, k, p, woven);
}

/* SwiGLU of the pairs' gates and ups, times the pair's weight (the shared expert has none), packed through FP8Q32; of
 * `count` slots of each row from `first` on, `total` pairs in all. */
static __global__ void __launch_bounds__(256)
    act_kernel(dev_moe m, uint32_t first, uint32_t count, uint32_t total, bool woven, uint16_t *out) {
    await_launch();
    allow_launch();
    uint32_t width = (uint32_t)(m.moe_dim + K_BLOCK - 1) / K_BLOCK * K_BLOCK, i = blockIdx.x * 256 + threadIdx.x,
             place = i / (width / 8), k = i % (width / 8) * 8, slots = (uint32_t)m.per_token + 1,
             slot = first + place % count, pair = place / count * slots + slot;
    bool there = place < total && (int)k < m.moe_dim;
    float v[8] = {}, weight = 1, lim = (float)m.limit;
    if (there && slot < slots - 1) weight = ((const float *)m.weight)[pair / slots * (slots - 1) + slot];
    if (there) {
        float a[8], b[8];
        unpack8(*(const uint4 *)((const uint16_t *)m.a + (uint64_t)pair * m.moe_dim + k), a);
        unpack8(*(const uint4 *)((const uint16_t *)m.b + (uint64_t)pair * m.moe_dim + k), b);
        activate8(a, b, weight, lim, v);
    }
    uint32_t p[4];
    pack8(v, true, p);
    if (place < total) store8(out + (uint64_t)pair * width, k, p, woven);
}

/* --- norms -------------------------------------------------------------------------------------------------------- */

/* Rows of up to 8 * NORM_CHUNKS * NORM_THREADS channels, one a block, in registers. */
enum { NORM_THREADS = 512, NORM_CHUNKS = 2, NORM_WIDTH_MAX = 8 * NORM_CHUNKS * NORM_THREADS };

static __device__ __forceinline__ int64_t chunk(int i) { return 8 * ((int64_t)i * NORM_THREADS + threadIdx.x); }

/* A thread's part of the gain, which is bf16 (engine/tensors.c). No launch writes weights, so it is on its way before a
 * kernel waits for its input. */
struct gain_part {
    uint4 w[NORM_CHUNKS];
    __device__ __forceinline__ gain_part(const dev_weight &gain, int width) {
#pragma unroll
        for (int i = 0; i < NORM_CHUNKS; i++)
            if (chunk(i) < width) w[i] = *(const uint4 *)(gain.data + 2 * chunk(i));
    }
};

/* Where a row's normed values go: packed as they are (plain), through FP8Q32 (quantised), or both. */
struct normed {
    int width;
    bool woven;
    uint16_t *plain, *quantised;

    /* The eight from k on, times r and gain, rounded. Whole warps, for the shuffles. */
    __device__ __forceinline__ void put(float v[8], int64_t k, float r, uint4 gain) const {
        if (k / 256 * 256 >= padded(width)) return;
        float w[8];
        unpack8(gain, w);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (k < width) v[j] = rounded(w[j] * (v[j] * r));
        uint32_t p[4];
        if (plain) {
            pack8(v, false, p);
            if (k < padded(width)) store8(plain, k, p, woven);
        }
        if (quantised) {
            pack8(v, true, p);
            if (k < padded(width)) store8(quantised, k, p, woven);
        }
    }
};

/* 1 / rms of a row from its sum of squares; from each thread's part of that. */
static __device__ __forceinline__ float norm_of(double square, int width, double eps) {
    return 1 / sqrtf((float)square / (float)width + (float)eps);
}
static __device__ __forceinline__ float norm_factor(double square, int width, double eps) {
    return norm_of(block_sum(square), width, eps);
}

static __device__ __forceinline__ void norm_row(float v[NORM_CHUNKS][8], const gain_part &gain, double eps,
                                                const normed &to) {
    double square = 0;
#pragma unroll
    for (int i = 0; i < NORM_CHUNKS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) square += (double)v[i][j] * (double)v[i][j];
    float r = norm_factor(square, to.width, eps);
#pragma unroll
    for (int i = 0; i < NORM_CHUNKS; i++) to.put(v[i], chunk(i), r, gain.w[i]);
}

static __global__ void __launch_bounds__(NORM_THREADS)
    norm_kernel(const float *x, int width, dev_weight gain, double eps, bool woven, uint16_t *out) {
    float v[NORM_CHUNKS][8] = {};
    gain_part part(gain, width);
    allow_launch();                             /* of a linear layer, for its weights */
    prefetch(out);
    await_launch();
#pragma unroll
    for (int i = 0; i < NORM_CHUNKS; i++)
        if (chunk(i) < width) load8(x + (uint64_t)blockIdx.x * width + chunk(i), v[i]);
    norm_row(v, part, eps, normed{ width, woven, NULL, out + blockIdx.x * (uint64_t)padded(width) });
}

static __global__ void __launch_bounds__(NORM_THREADS)
    collapse_kernel(dev d, const float *pre_in, dev_weight gain, bool indexed, bool woven, uint16_t *plain,
                    uint16_t *quantised) {
    float v[NORM_CHUNKS][8] = {};
    gain_part part(gain, d.hidden);
    await_launch();
    allow_launch();
    uint32_t row = d.active[blockIdx.x];
    uint64_t at = (indexed ? row : blockIdx.x) * (uint64_t)padded(d.hidden);
    const uint16_t *h = (const uint16_t *)d.h + (uint64_t)row * d.hc * d.hidden;
    const float *pre = pre_in + (uint64_t)row * d.hc;
#pragma unroll
    for (int i = 0; i < NORM_CHUNKS; i++) {
        if (chunk(i) >= d.hidden) continue;
        for (int n = 0; n < d.hc; n++) {
            float x[8];
            unpack8(*(const uint4 *)(h + (int64_t)n * d.hidden + chunk(i)), x);
#pragma unroll
            for (int j = 0; j < 8; j++) v[i][j] += pre[n] * x[j];
        }
#pragma unroll
        for (int j = 0; j < 8; j++) v[i][j] = rounded(v[i][j]);
    }
    norm_row(v, part, d.norm_eps,
             normed{ d.hidden, woven, plain ? plain + at : NULL, quantised ? quantised + at : NULL });
}

/* --- end of a block ----------------------------------------------------------------------------------------------- */

/* Routed experts' outputs in ascending id, then the shared one's, expanded into the streams. */
static __global__ void __launch_bounds__(256) expand_kernel(dev d, dev_moe m, uint32_t first) {
    await_launch();
    allow_launch();
    uint32_t row = d.active[first + blockIdx.x];
    int quads = d.hidden / 4, k = blockIdx.y * 256 + threadIdx.x;
    if (k >= quads) return;
    const int32_t *ids = m.ids + (uint64_t)blockIdx.x * m.per_token;
    const uint2 *out = (const uint2 *)m.out + (uint64_t)blockIdx.x * (m.per_token + 1) * quads + k;
    float y[4] = { 0, 0, 0, 0 };
    for (int i = 0; i <= m.per_token; i++) {
        if (i < m.per_token && ids[i] < 0) continue;
        uint2 v = out[(int64_t)i * quads];
        y[0] += __uint_as_float(v.x << 16);
        y[1] += __uint_as_float(v.x & 0xffff0000u);
        y[2] += __uint_as_float(v.y << 16);
        y[3] += __uint_as_float(v.y & 0xffff0000u);
    }
    for (int i = 0; i < 4; i++) y[i] = rounded(y[i]);
    expand_quad<bf16>(d, row, k, y);
}

/* The sum of a row's experts for the eight channels from k on, as expand_kernel takes it. */
static __device__ __forceinline__ void experts_of(const dev_moe &m, const int32_t *ids, uint64_t place, int hidden,
                                                  int64_t k, float y[8]) {
    sum_experts(ids, m.per_token,
                (const uint4 *)((const uint16_t *)m.out + place * (uint32_t)(m.per_token + 1) * (uint32_t)hidden + k),
                hidden / 8, y);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = rounded(y[j]);
}

enum { STREAMS = 4, EXPAND_THREADS = 640 };
static_assert(EXPAND_THREADS <= 2 * NORM_THREADS && NORM_CHUNKS == 2, "a thread has at most one more part");

/* What a row's streams are expanded and collapsed with. */
struct site_factors {
    float comb[STREAMS * STREAMS], post[STREAMS], pre[STREAMS];

    __device__ __forceinline__ void read(const dev &d, uint32_t row, const float *pre_in) {
        uint32_t t = threadIdx.x;
        if (t < STREAMS * STREAMS) comb[t] = ((const float *)d.comb)[row * STREAMS * STREAMS + t];
        if (t < STREAMS) {
            post[t] = ((const float *)d.post)[row * STREAMS + t];
            pre[t] = pre_in[row * STREAMS + t];
        }
    }

    /* The sums of expand_quad, then those of collapse_kernel: v becomes the next input's channels. */
    __device__ __forceinline__ void step(const uint4 old[STREAMS], const float y[8], uint4 *h, uint32_t units,
                                         float v[8]) const {
#pragma unroll
        for (int to = 0; to < STREAMS; to++) {
            float x[8], sum[8] = {};
#pragma unroll
            for (int from = 0; from < STREAMS; from++) {
                unpack8(old[from], x);
#pragma unroll
                for (int j = 0; j < 8; j++) sum[j] += comb[from * STREAMS + to] * x[j];
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                x[j] = rounded(post[to] * y[j] + sum[j]);
                v[j] += pre[to] * x[j];
            }
            h[to * units] = bf16_words::give(x);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = rounded(v[j]);
    }
};

/* expand_kernel, then collapse_kernel, a row a block, eight channels a thread: the same sums in the same order, and the
 * streams are written as before. collapse_kernel's threads have a second part of the channels, whose squares they add
 * to those of the first; here they take it from shared memory. y: floats by place; NULL: the sum of m's experts. What
 * neither the kernel before this one writes, nor one that is joined, is read before the wait: streams, picks, gain. */
static __global__ void __launch_bounds__(EXPAND_THREADS)
    expand_collapse_kernel(dev d, const float *y_in, dev_moe m, const float *pre_in, dev_weight gain, bool indexed,
                           bool woven, uint16_t *plain, uint16_t *quantised) {
    __shared__ site_factors factors;
    __shared__ float second[EXPAND_THREADS - NORM_THREADS][9];
    __shared__ int32_t ids[CEDAR_EXPERTS_PER_TOKEN_MAX];
    int t = (int)threadIdx.x;
    int64_t k = 8 * (int64_t)t;
    bool there = k < d.hidden;
    uint32_t row = d.active[blockIdx.x], units = (uint32_t)d.hidden / 8;
    uint64_t at = (indexed ? row : blockIdx.x) * (uint64_t)padded(d.hidden);
    uint4 *h = (uint4 *)((uint16_t *)d.h + (uint64_t)row * STREAMS * d.hidden + k), old[STREAMS], g;
    if (there) {
        g = *(const uint4 *)(gain.data + 2 * k);
#pragma unroll
        for (int n = 0; n < STREAMS; n++) old[n] = h[n * units];
    }
    if (!y_in && t < m.per_token) ids[t] = m.ids[(uint64_t)blockIdx.x * m.per_token + t];
    __syncthreads();
    await_launch();
    allow_launch();
    factors.read(d, row, pre_in);
    float v[8] = {}, y[8];
    if (there && y_in) load8(y_in + (uint64_t)blockIdx.x * d.hidden + k, y);
    else if (there) experts_of(m, ids, blockIdx.x, d.hidden, k, y);
    __syncthreads();                            /* the factors are there */
    if (there) factors.step(old, y, h, units, v);
    if (t >= NORM_THREADS)
#pragma unroll
        for (int j = 0; j < 8; j++) second[t - NORM_THREADS][j] = v[j];
    __syncthreads();
    double square = 0;
    if (t < NORM_THREADS)
#pragma unroll
        for (int j = 0; j < 8; j++) square += (double)v[j] * (double)v[j];
    if (t < EXPAND_THREADS - NORM_THREADS)
#pragma unroll
        for (int j = 0; j < 8; j++) square += (double)second[t][j] * (double)second[t][j];
    float r = norm_factor(square, d.hidden, d.norm_eps);
    normed{ d.hidden, woven, plain ? plain + at : NULL, quantised ? quantised + at : NULL }.put(v, k, r, g);
}

/* Streams expanded with one output a row, bf16 by place. */
static __global__ void __launch_bounds__(256) expand_rows_kernel(dev d, const uint16_t *y_in) {
    await_launch();
    allow_launch();
    int quads = d.hidden / 4, k = blockIdx.y * 256 + threadIdx.x;
    if (k >= quads) return;
    uint2 v = ((const uint2 *)y_in)[(uint64_t)blockIdx.x * quads + k];
    float y[4] = { __uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
                   __uint_as_float(v.y & 0xffff0000u) };
    expand_quad<bf16>(d, d.active[blockIdx.x], k, y);
}

static __global__ void __launch_bounds__(256) pairs_kernel(experts_part part, uint32_t units, uint4 *out) {
    uint32_t u = blockIdx.x * 256 + threadIdx.x;
    if (u < units) out[u] = part(u);
}

/* --- end of a block with several ranks ---------------------------------------------------------------------------- */

enum { SITE_THREADS_MAX = NORM_CHUNKS * NORM_THREADS };

/* Sum over the ranks as peers_sum in one step, expand_rows_kernel and collapse_kernel: a row a block, eight channels a
 * thread; squares are added as in expand_collapse_kernel, and streams and gain are read before the wait. */
template <class Part, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    site_kernel(const __grid_constant__ dev d, const __grid_constant__ peers p, Part part, uint32_t n,
                const __grid_constant__ collapse_into next) {
    __shared__ site_factors factors;
    __shared__ float second[THREADS - NORM_THREADS][9];
    uint32_t t = threadIdx.x, units = (uint32_t)d.hidden / 8, i = blockIdx.x, row = d.active[i];
    bool there[1] = { t < units };
    uint4 gain, old[STREAMS], *h = (uint4 *)d.h + t;
    if (there[0]) {
        gain = ((const uint4 *)next.gain.data)[t];
#pragma unroll
        for (int k = 0; k < STREAMS; k++) old[k] = h[((uint64_t)row * STREAMS + k) * units];
    }
    await_launch();
    if (p.early) allow_launch();
    exchange x(p);
    while (i < n) {
        uint32_t at[1] = { i * units + t };
        factors.read(d, row, (const float *)next.pre);
        uint4 mine[1];
        float y[1][8], v[8] = {};
        if (there[0]) {
            mine[0] = bf16_words::full(part(at[0]));
            x.send(p, (uint32_t)p.rank * n * units + at[0], mine[0]);
        }
        __syncthreads();                        /* the factors are there */
        x.add<bf16_words, 1>(p, mine, at, there, n * units, y);
        if (there[0]) {
#pragma unroll
            for (int j = 0; j < 8; j++) y[0][j] = rounded(y[0][j]);
            factors.step(old, y[0], h + (uint64_t)row * STREAMS * units, units, v);
        }
        if (t >= NORM_THREADS)
#pragma unroll
            for (int j = 0; j < 8; j++) second[t - NORM_THREADS][j] = v[j];
        __syncthreads();
        double square = 0;
        if (t < NORM_THREADS)
#pragma unroll
            for (int j = 0; j < 8; j++) square += (double)v[j] * (double)v[j];
        if (t + NORM_THREADS < blockDim.x)
#pragma unroll
            for (int j = 0; j < 8; j++) square += (double)second[t][j] * (double)second[t][j];
        float r = norm_factor(square, d.hidden, d.norm_eps);
        uint64_t to = (next.indexed ? row : i) * (uint64_t)padded(d.hidden);
        normed{ d.hidden, next.woven, next.plain ? next.plain + to : NULL,
                next.quantised ? next.quantised + to : NULL }.put(v, 8 * (int64_t)t, r, gain);
        i += gridDim.x;
        if (i >= n) break;
        row = d.active[i];
        if (there[0])
#pragma unroll
            for (int k = 0; k < STREAMS; k++) old[k] = h[((uint64_t)row * STREAMS + k) * units];
    }
    x.done(p);
}

/* --- end of a block of a few rows --------------------------------------------------------------------------------- */

/* The output that a row's streams are expanded with, eight channels a thread: floats by place, */
struct stored_output {
    const float *y;
    int units;
    __device__ __forceinline__ void take(uint32_t place, uint32_t unit, float v[8]) const {
        load8(y + ((uint64_t)place * units + unit) * 8, v);
    }
    __device__ __forceinline__ bool early() const { return true; }
    __device__ __forceinline__ void done() const {}
};

/* or the sum of its experts, */
struct experts_output {
    dev_moe m;
    int units;
    __device__ __forceinline__ void take(uint32_t place, uint32_t unit, float v[8]) const {
        experts_of(m, m.ids + place * (uint32_t)m.per_token, place, 8 * units, 8 * (int64_t)unit, v);
    }
    __device__ __forceinline__ bool early() const { return true; }
    __device__ __forceinline__ void done() const {}
};

/* or the sum of the ranks' parts, in one step. */
template <class Part> struct summed_output {
    peers p;
    Part part;
    uint32_t rows;
    int units;
    __device__ __forceinline__ void take(uint32_t place, uint32_t unit, float v[8]) const {
        exchange x(p);
        const bool there[1] = { true };
        const uint32_t at[1] = { place * units + unit }, all = rows * units;
        const uint4 mine[1] = { bf16_words::full(part(at[0])) };
        float y[1][8];
        x.send(p, (uint32_t)p.rank * all + at[0], mine[0]);
        x.add<bf16_words, 1>(p, mine, at, there, all, y);
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = rounded(y[0][j]);
    }
    __device__ __forceinline__ bool early() const { return p.early; }
    __device__ __forceinline__ void done() const { exchange(p).done(p); }
};

/* What expand_collapse_kernel and site_kernel do, a row by a cluster: its blocks are small enough to be there before
 * the last ones of the kernel in front have left. A block has a stretch of the first NORM_THREADS units and one of the
 * second, so that squares meet as in a block by itself; its warps' sums of squares go to all blocks. */
enum { SPREAD_BLOCKS = 8, SPREAD_HALF = NORM_THREADS / SPREAD_BLOCKS, SPREAD_ROWS = 8 };
template <class Output>
static __global__ void __launch_bounds__(2 * SPREAD_HALF)
    spread_site_kernel(const __grid_constant__ dev d, const __grid_constant__ Output output,
                       const __grid_constant__ collapse_into next) {
    __shared__ site_factors factors;
    __shared__ float second[SPREAD_HALF][9];
    __shared__ double sums[NORM_THREADS / 32];
    uint32_t t = threadIdx.x, late = t / SPREAD_HALF, block = blockIdx.x % SPREAD_BLOCKS,
             i = blockIdx.x / SPREAD_BLOCKS,
             unit = late * NORM_THREADS + block * SPREAD_HALF + t % SPREAD_HALF, units = (uint32_t)d.hidden / 8,
             row = d.active[i];
    bool there = unit < units;
    uint4 gain, old[STREAMS], *h = (uint4 *)d.h + (uint64_t)row * STREAMS * units + unit;
    if (there) {
        gain = ((const uint4 *)next.gain.data)[unit];
#pragma unroll
        for (int k = 0; k < STREAMS; k++) old[k] = h[k * units];
    }
    cluster_arrive();
    await_launch();
    if (output.early()) allow_launch();
    factors.read(d, row, (const float *)next.pre);
    float y[8], v[8] = {};
    if (there) output.take(i, unit, y);
    __syncthreads();                            /* the factors are there */
    if (there) factors.step(old, y, h, units, v);
    if (late)
#pragma unroll
        for (int j = 0; j < 8; j++) second[t - SPREAD_HALF][j] = v[j];
    __syncthreads();
    double square = 0;
    if (!late) {
#pragma unroll
        for (int j = 0; j < 8; j++) square += (double)v[j] * (double)v[j];
#pragma unroll
        for (int j = 0; j < 8; j++) square += (double)second[t][j] * (double)second[t][j];
    }
    for (int o = 16; o; o /= 2) square += __shfl_down_sync(0xffffffffu, square, o);
    square = __shfl_sync(0xffffffffu, square, 0);
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    cluster_wait();                             /* all blocks are there */
    if (!late && t % 32 < SPREAD_BLOCKS)
        cluster.map_shared_rank(sums, t % 32)[(block * SPREAD_HALF + t) / 32] = square;
    cluster.sync();
    double all = t % 32 < NORM_THREADS / 32 ? sums[t % 32] : 0;
    for (int o = 16; o; o /= 2) all += __shfl_down_sync(0xffffffffu, all, o);
    float r = norm_of(__shfl_sync(0xffffffffu, all, 0), d.hidden, d.norm_eps);
    uint64_t to = (next.indexed ? row : i) * (uint64_t)padded(d.hidden);
    normed{ d.hidden, next.woven, next.plain ? next.plain + to : NULL,
            next.quantised ? next.quantised + to : NULL }.put(v, 8 * (int64_t)unit, r, gain);
    output.done();
}

template <class Output>
static void launch_spread_site(const dev &d, const Output &output, uint32_t n, const collapse_into &next, chain s) {
    launch_cluster(spread_site_kernel<Output>, n * SPREAD_BLOCKS, SPREAD_BLOCKS, 2 * SPREAD_HALF, 0, s, d, output,
                   next);
}

template <class Part>
static void launch_site(const dev &d, const peers &p, const Part &part, uint32_t n, const collapse_into &next,
                        chain s) {
    if (n <= SPREAD_ROWS && !s.apart) {
        launch_spread_site(d, summed_output<Part>{ p, part, n, d.hidden / 8 }, n, next, s);
        return;
    }
    unsigned blocks = n < (uint32_t)p.blocks ? n : (unsigned)p.blocks;
    unsigned threads = 32 * ceil_div(padded(d.hidden), 8 * 32);
    launch_chained(threads <= EXPAND_THREADS ? site_kernel<Part, EXPAND_THREADS> : site_kernel<Part, SITE_THREADS_MAX>,
                   blocks, threads, 0, s, d, p, part, n, next);
}

bool tensor_site_can(const dev &d, const peers &p, uint32_t n) {
    return d.hc == STREAMS && d.hidden % 8 == 0 && d.hidden <= NORM_WIDTH_MAX &&
           (uint64_t)p.ranks * n * d.hidden * 2 <= p.half_bytes;
}

void tensor_site(const dev &d, const peers &p, const uint16_t *part, uint32_t n, const collapse_into &next, chain s) {
    launch_site(d, p, stored_part{ (const uint4 *)part }, n, next, s);
}

void tensor_site_experts(const dev &d, const peers &p, const dev_moe &m, uint32_t n, const collapse_into &next,
                         chain s) {
    launch_site(d, p, part_of(m, d.hidden), n, next, s);
}

/* --- launchers ---------------------------------------------------------------------------------------------------- */

void tensor_pack(const void *x, bool x_bf16, int64_t ldx, const uint32_t *list, uint32_t n, int64_t k_count,
                 bool quantise, bool woven, uint16_t *out, chain s) {
    launch_chained(pack_kernel, dim3(n, ceil_div(padded(k_count), 8 * 256)), 256, 0, s, x, x_bf16, ldx, list, k_count,
                   quantise, woven, out);
}

void tensor_act(const dev_moe &m, int first, int count, uint32_t rows, bool woven, uint16_t *out, chain s) {
    uint32_t total = rows * (uint32_t)count;
    launch_chained(act_kernel, ceil_div(total * padded(m.moe_dim) / 8, 256), 256, 0, s, m, (uint32_t)first,
                   (uint32_t)count, total, woven, out);
}

int tensor_norm_width_max(void) { return NORM_WIDTH_MAX; }

void tensor_norm(const float *x, int width, uint32_t n, const dev_weight &gain, double eps, bool woven, uint16_t *out,
                 chain s) {
    unsigned threads = 32 * ceil_div(padded(width), 8 * 32);       /* of a narrow row no warp is without channels */
    launch_chained(norm_kernel, n, threads < NORM_THREADS ? threads : NORM_THREADS, 0, s, x, width, gain, eps, woven,
                   out);
}

void tensor_collapse(const dev &d, uint32_t n, const collapse_into &to, chain s) {
    launch_chained(collapse_kernel, n, NORM_THREADS, 0, s, d, (const float *)to.pre, to.gain, to.indexed, to.woven,
                   to.plain, to.quantised);
}

void tensor_sum_experts(const dev_moe &m, uint32_t n, int width, uint16_t *out, cudaStream_t s) {
    uint32_t units = n * (uint32_t)width / 8;
    pairs_kernel<<<ceil_div(units, 256), 256, 0, s>>>(part_of(m, width), units, (uint4 *)out);
}

void tensor_expand(const dev &d, uint32_t n, const uint16_t *y, chain s) {
    launch_chained(expand_rows_kernel, dim3(n, ceil_div(d.hidden / 4, 256)), 256, 0, s, d, y);
}

void tensor_expand_experts(const dev &d, uint32_t first, uint32_t n, const dev_moe &m, chain s) {
    launch_chained(expand_kernel, dim3(n, ceil_div(d.hidden / 4, 256)), 256, 0, s, d, m, first);
}

bool tensor_expand_collapse_can(const dev &d, uint32_t n) {
    return few_rows(n) && d.hc == STREAMS && d.hidden <= 8 * EXPAND_THREADS;
}

void tensor_expand_collapse(const dev &d, uint32_t n, const float *y, const dev_moe &m, const collapse_into &to,
                            chain s) {
    if (n <= SPREAD_ROWS && !s.apart) {
        if (y) launch_spread_site(d, stored_output{ y, d.hidden / 8 }, n, to, s);
        else launch_spread_site(d, experts_output{ m, d.hidden / 8 }, n, to, s);
        return;
    }
    launch_chained(expand_collapse_kernel, n, EXPAND_THREADS, 0, s, d, y, m, (const float *)to.pre, to.gain, to.indexed,
                   to.woven, to.plain, to.quantised);
}
