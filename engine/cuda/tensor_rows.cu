/* Row kernels around the linear layers on tensor cores: they leave their results packed (tensor.cuh). */
#include "engine/cuda/exchange.cuh"
#include "engine/cuda/tensor.cuh"

static unsigned ceil_div(int64_t a, int64_t b) { return (unsigned)((a + b - 1) / b); }

/* Eight values become bf16, through FP8Q32 if wanted: four neighbouring lanes share a block of 32. */
static __device__ __forceinline__ void pack8(float v[8], bool quantise, uint32_t out[4]) {
    if (quantise) {
        float top = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) top = fmaxf(top, fabsf(v[i]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        uint8_t s = pow2_ceil_byte((double)fmaxf(top, 1e-4f), 1.0f / 448);
        float scale = __uint_as_float((uint32_t)s << 23), inverse = __uint_as_float((uint32_t)(254 - s) << 23);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            uint16_t code;
            uint32_t h;
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(code) : "f"(v[i + 1] * inverse), "f"(v[i] * inverse));
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(code));
            float2 x = __half22float2(*(__half2 *)&h);
            v[i] = x.x * scale;
            v[i + 1] = x.y * scale;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = pair_of(v[2 * i], v[2 * i + 1]);
}

/* Eight packed values from column k on of a row, as the pairs (0,4) (1,5) (2,6) (3,7): plain, one after the other, or
 * woven: pair q of the eight from 64 h + 16 t + 8 e on at 64 h + 32 e + 8 q + 2 t of its block (tensor.cuh). */
static __device__ __forceinline__ void store8(uint16_t *row, int64_t k, const uint32_t p[4], bool woven) {
    uint4 c = make_uint4(__byte_perm(p[0], p[2], 0x5410), __byte_perm(p[0], p[2], 0x7632),
                         __byte_perm(p[1], p[3], 0x5410), __byte_perm(p[1], p[3], 0x7632));
    if (!woven) {
        *(uint4 *)(row + k) = c;
        return;
    }
    int t = (int)(k % 64) / 16, e = (int)(k % 16) / 8;
    uint32_t *pairs = (uint32_t *)(row + k / 64 * 64 + 32 * e + 2 * t);
    pairs[0] = c.x;
    pairs[4] = c.y;
    pairs[8] = c.z;
    pairs[12] = c.w;
}

/* Eight bf16 values. */
static __device__ __forceinline__ void unpack8(uint4 u, float v[8]) {
    uint32_t p[4] = { u.x, u.y, u.z, u.w };
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = __uint_as_float(j % 2 ? p[j / 2] & 0xffff0000u : p[j / 2] << 16);
}

static __device__ __forceinline__ void load8(const float *x, float v[8]) {
    float4 lo = *(const float4 *)x, hi = *(const float4 *)(x + 4);
    v[0] = lo.x; v[1] = lo.y; v[2] = lo.z; v[3] = lo.w;
    v[4] = hi.x; v[5] = hi.y; v[6] = hi.z; v[7] = hi.w;
}

/* --- packing ------------------------------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(256)
    pack_kernel(const void *x, bool x_bf16, int64_t ldx, const uint32_t *list, int64_t k_count, bool quantise,
                bool woven, uint16_t *out) {
    await_launch();
    allow_launch();
    uint64_t row = list ? list[blockIdx.x] : blockIdx.x;
    int64_t width = (k_count + K_BLOCK - 1) / K_BLOCK * K_BLOCK, k = 8 * ((int64_t)blockIdx.y * 256 + threadIdx.x);
    float v[8] = {};
    if (k < k_count && x_bf16) unpack8(*(const uint4 *)((const uint16_t *)x + row * ldx + k), v);
    else if (k < k_count) load8((const float *)x + row * ldx + k, v);
    uint32_t p[4];
    pack8(v, quantise, p);
    if (k < width) store8(out + row * width, k, p, woven);
}

/* SwiGLU of the pairs' gates and ups, times the pair's weight (the shared expert has none), packed through FP8Q32. */
static __global__ void __launch_bounds__(256) act_kernel(dev_moe m, uint32_t pairs, bool woven, uint16_t *out) {
    await_launch();
    allow_launch();
    uint32_t width = (uint32_t)(m.moe_dim + K_BLOCK - 1) / K_BLOCK * K_BLOCK, i = blockIdx.x * 256 + threadIdx.x,
             pair = i / (width / 8), k = i % (width / 8) * 8, slots = (uint32_t)m.per_token + 1, slot = pair % slots;
    bool there = pair < pairs && (int)k < m.moe_dim;
    float v[8] = {}, weight = 1, lim = (float)m.limit;
    if (there && slot < slots - 1) weight = ((const float *)m.weight)[pair / slots * (slots - 1) + slot];
    if (there) {
        float a[8], b[8];
        unpack8(*(const uint4 *)((const uint16_t *)m.a + (uint64_t)pair * m.moe_dim + k), a);
        unpack8(*(const uint4 *)((const uint16_t *)m.b + (uint64_t)pair * m.moe_dim + k), b);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (lim > 0) {
                b[j] = b[j] > lim ? lim : b[j] < -lim ? -lim : b[j];
                a[j] = a[j] > lim ? lim : a[j];
            }
            v[j] = rounded(weight * (a[j] * sigmoid(a[j]) * b[j]));
        }
    }
    uint32_t p[4];
    pack8(v, true, p);
    if (pair < pairs) store8(out + (uint64_t)pair * width, k, p, woven);
}

/* --- norms -------------------------------------------------------------------------------------------------------- */

/* Rows of up to 8 * NORM_CHUNKS * NORM_THREADS channels, one a block, in registers. */
enum { NORM_THREADS = 512, NORM_CHUNKS = 2, NORM_WIDTH_MAX = 8 * NORM_CHUNKS * NORM_THREADS };

static __device__ __forceinline__ int64_t chunk(int i) { return 8 * ((int64_t)i * NORM_THREADS + threadIdx.x); }

static __device__ __forceinline__ void load_gain(const dev_weight &gain, int64_t k, float w[8]) {
    if (gain.kind == CEDAR_W_BF16) {
        unpack8(*(const uint4 *)(gain.data + 2 * k), w);
    } else {
#pragma unroll
        for (int j = 0; j < 8; j++) w[j] = (float)weight_at(gain, 0, k + j);
    }
}

/* v = rounded gain times v / rms, packed as it is (plain), through FP8Q32 (quantised), or both. */
static __device__ __forceinline__ void norm_pack(float v[NORM_CHUNKS][8], int width, const dev_weight &gain, double eps,
                                                 bool woven, uint16_t *plain, uint16_t *quantised) {
    float w[NORM_CHUNKS][8];                    /* on their way during the sum */
    double square = 0;
#pragma unroll
    for (int i = 0; i < NORM_CHUNKS; i++) {
        if (chunk(i) < width) load_gain(gain, chunk(i), w[i]);
#pragma unroll
        for (int j = 0; j < 8; j++) square += (double)v[i][j] * (double)v[i][j];
    }
    square = block_sum(square);
    float r = 1 / sqrtf((float)square / (float)width + (float)eps);
#pragma unroll
    for (int i = 0; i < NORM_CHUNKS; i++) {
        int64_t k = chunk(i);
        if (k / 256 * 256 >= padded(width)) break;      /* whole warps, for the shuffles */
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (k < width) v[i][j] = rounded(w[i][j] * (v[i][j] * r));
        uint32_t p[4];
        if (plain) {
            pack8(v[i], false, p);
            if (k < padded(width)) store8(plain, k, p, woven);
        }
        if (quantised) {
            pack8(v[i], true, p);
            if (k < padded(width)) store8(quantised, k, p, woven);
        }
    }
}

static __global__ void __launch_bounds__(NORM_THREADS)
    norm_kernel(const float *x, int width, dev_weight gain, double eps, bool woven, uint16_t *out) {
    await_launch();
    allow_launch();
    float v[NORM_CHUNKS][8] = {};
#pragma unroll
    for (int i = 0; i < NORM_CHUNKS; i++)
        if (chunk(i) < width) load8(x + (uint64_t)blockIdx.x * width + chunk(i), v[i]);
    norm_pack(v, width, gain, eps, woven, NULL, out + blockIdx.x * (uint64_t)padded(width));
}

static __global__ void __launch_bounds__(NORM_THREADS)
    collapse_kernel(dev d, const float *pre_in, dev_weight gain, bool indexed, bool woven, uint16_t *plain,
                    uint16_t *quantised) {
    await_launch();
    allow_launch();
    uint32_t row = d.active[blockIdx.x];
    uint64_t at = (indexed ? row : blockIdx.x) * (uint64_t)padded(d.hidden);
    const uint16_t *h = (const uint16_t *)d.h + (uint64_t)row * d.hc * d.hidden;
    const float *pre = pre_in + (uint64_t)row * d.hc;
    float v[NORM_CHUNKS][8] = {};
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
    norm_pack(v, d.hidden, gain, d.norm_eps, woven, plain ? plain + at : NULL, quantised ? quantised + at : NULL);
}

/* --- end of a block ----------------------------------------------------------------------------------------------- */

/* Routed experts' outputs in ascending id, then the shared one's, expanded into the streams. */
static __global__ void __launch_bounds__(256) expand_kernel(dev d, dev_moe m, uint32_t first) {
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

/* The same for one output a row, bf16 by place. */
static __global__ void __launch_bounds__(256) expand_rows_kernel(dev d, const uint16_t *y_in) {
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

enum { SITE_STREAMS = 4 };

/* What expanding eight channels of a row needs besides the output. */
struct site_row {
    uint4 old[NORM_CHUNKS][SITE_STREAMS];
    float post[SITE_STREAMS], comb[SITE_STREAMS][SITE_STREAMS], pre[SITE_STREAMS];

    __device__ __forceinline__ site_row(const dev &d, uint32_t row, const float *pre_in) {
#pragma unroll
        for (int i = 0; i < NORM_CHUNKS; i++)
#pragma unroll
            for (int n = 0; n < SITE_STREAMS; n++)
                if (chunk(i) < d.hidden)
                    old[i][n] = *(const uint4 *)((const uint16_t *)d.h +
                                                 ((uint64_t)row * SITE_STREAMS + n) * d.hidden + chunk(i));
#pragma unroll
        for (int n = 0; n < SITE_STREAMS; n++) {
            post[n] = ((const float *)d.post)[(uint64_t)row * SITE_STREAMS + n];
            pre[n] = pre_in[(uint64_t)row * SITE_STREAMS + n];
#pragma unroll
            for (int m = 0; m < SITE_STREAMS; m++)
                comb[n][m] = ((const float *)d.comb)[((uint64_t)row * SITE_STREAMS + n) * SITE_STREAMS + m];
        }
    }

    /* The sums of expand_quad, then those of collapse_kernel: v becomes the next input's channels. */
    __device__ __forceinline__ void step(const dev &d, uint32_t row, int i, const float y[8], float v[8]) const {
        float x[SITE_STREAMS][8];
#pragma unroll
        for (int n = 0; n < SITE_STREAMS; n++) unpack8(old[i][n], x[n]);
#pragma unroll
        for (int to = 0; to < SITE_STREAMS; to++) {
            float out[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float sum = 0;
#pragma unroll
                for (int from = 0; from < SITE_STREAMS; from++) sum += comb[from][to] * x[from][j];
                out[j] = rounded(post[to] * y[j] + sum);
                v[j] += pre[to] * out[j];
            }
            *(uint4 *)((uint16_t *)d.h + ((uint64_t)row * SITE_STREAMS + to) * d.hidden + chunk(i)) =
                bf16_words::give(out);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = rounded(v[j]);
    }
};

/* Sum over the ranks as peers_sum in one step, expand_rows_kernel and collapse_kernel: a row a block. */
template <class Part>
static __global__ void __launch_bounds__(NORM_THREADS)
    site_kernel(const __grid_constant__ dev d, const __grid_constant__ peers p, Part part, uint32_t n,
                const __grid_constant__ next_input next) {
    await_launch();
    if (p.early) allow_launch();
    exchange x(p);
    uint32_t units = (uint32_t)d.hidden / 8;
    for (int c = 0; c < NORM_CHUNKS; c++)               /* so that the norm need not wait for it */
        if (next.gain.kind == CEDAR_W_BF16 && chunk(c) < d.hidden)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(next.gain.data + 2 * chunk(c)));
    for (uint32_t i = blockIdx.x; i < n; i += gridDim.x) {
        uint32_t row = d.active[i], at[NORM_CHUNKS];
        uint4 mine[NORM_CHUNKS];
        bool there[NORM_CHUNKS];
        float y[NORM_CHUNKS][8], v[NORM_CHUNKS][8] = {};
#pragma unroll
        for (int c = 0; c < NORM_CHUNKS; c++) {
            there[c] = chunk(c) < d.hidden;
            at[c] = i * units + (uint32_t)chunk(c) / 8;
            if (!there[c]) continue;
            mine[c] = bf16_words::full(part(at[c]));
            x.send(p, (uint32_t)p.rank * n * units + at[c], mine[c]);
        }
        const site_row site(d, row, next.pre);
        x.add<bf16_words, NORM_CHUNKS>(p, mine, at, there, n * units, y);
#pragma unroll
        for (int c = 0; c < NORM_CHUNKS; c++) {
            if (!there[c]) continue;
#pragma unroll
            for (int j = 0; j < 8; j++) y[c][j] = rounded(y[c][j]);
            site.step(d, row, c, y[c], v[c]);
        }
        uint64_t to = (next.indexed ? row : i) * (uint64_t)padded(d.hidden);
        norm_pack(v, d.hidden, next.gain, d.norm_eps, next.woven, next.plain ? next.plain + to : NULL,
                  next.quantised ? next.quantised + to : NULL);
    }
    x.done(p);
}

template <class Part>
static void launch_site(const dev &d, const peers &p, const Part &part, uint32_t n, const next_input &next, chain s) {
    unsigned blocks = n < (uint32_t)p.blocks ? n : (unsigned)p.blocks;
    launch_chained(site_kernel<Part>, blocks, NORM_THREADS, 0, s, d, p, part, n, next);
}

bool tensor_site_can(const dev &d, const peers &p, uint32_t n) {
    return d.hc == SITE_STREAMS && d.hidden % 8 == 0 && d.hidden <= NORM_WIDTH_MAX &&
           (uint64_t)p.ranks * n * d.hidden * 2 <= p.half_bytes;
}

void tensor_site(const dev &d, const peers &p, const uint16_t *part, uint32_t n, const next_input &next, chain s) {
    launch_site(d, p, stored_part{ (const uint4 *)part }, n, next, s);
}

void tensor_site_experts(const dev &d, const peers &p, const dev_moe &m, uint32_t n, const next_input &next, chain s) {
    launch_site(d, p, part_of(m, d.hidden), n, next, s);
}

/* --- launchers ---------------------------------------------------------------------------------------------------- */

void tensor_pack(const void *x, bool x_bf16, int64_t ldx, const uint32_t *list, uint32_t n, int64_t k_count,
                 bool quantise, bool woven, uint16_t *out, chain s) {
    launch_chained(pack_kernel, dim3(n, ceil_div(padded(k_count), 8 * 256)), 256, 0, s, x, x_bf16, ldx, list, k_count,
                   quantise, woven, out);
}

void tensor_act(const dev_moe &m, uint32_t rows, bool woven, uint16_t *out, cudaStream_t s) {
    uint32_t pairs = rows * ((uint32_t)m.per_token + 1);
    act_kernel<<<ceil_div(pairs * padded(m.moe_dim) / 8, 256), 256, 0, s>>>(m, pairs, woven, out);
}


int tensor_norm_width_max(void) { return NORM_WIDTH_MAX; }

void tensor_norm(const float *x, int width, uint32_t n, const dev_weight &gain, double eps, bool woven, uint16_t *out,
                 chain s) {
    launch_chained(norm_kernel, n, NORM_THREADS, 0, s, x, width, gain, eps, woven, out);
}

void tensor_collapse(const dev &d, uint32_t n, const void *pre, const dev_weight &gain, bool indexed, bool woven,
                     uint16_t *plain, uint16_t *quantised, chain s) {
    launch_chained(collapse_kernel, n, NORM_THREADS, 0, s, d, (const float *)pre, gain, indexed, woven, plain,
                   quantised);
}

void tensor_sum_experts(const dev_moe &m, uint32_t n, int width, uint16_t *out, cudaStream_t s) {
    uint32_t units = n * (uint32_t)width / 8;
    pairs_kernel<<<ceil_div(units, 256), 256, 0, s>>>(part_of(m, width), units, (uint4 *)out);
}

void tensor_expand(const dev &d, uint32_t n, const uint16_t *y, cudaStream_t s) {
    expand_rows_kernel<<<dim3(n, ceil_div(d.hidden / 4, 256)), 256, 0, s>>>(d, y);
}

void tensor_expand_experts(const dev &d, uint32_t first, uint32_t n, const dev_moe &m, cudaStream_t s) {
    expand_kernel<<<dim3(n, ceil_div(d.hidden / 4, 256)), 256, 0, s>>>(d, m, first);
}
