/* Attention and index scores on tensor cores. */
#include "engine/cuda/tensor.cuh"

enum { HEADS = 64, KEYS = 64, DIMS = 64, THREADS = 256 };     /* 4 warps of 16 heads by 2 halves of keys or channels */

static __device__ __forceinline__ uint32_t pair(float lo, float hi) {
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&v;
}

static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void load4(uint32_t r[4], const void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(p)));
}

static __device__ __forceinline__ void load4_transposed(uint32_t r[4], const void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(p)));
}

static __device__ __forceinline__ float pow2(uint8_t b) { return __uint_as_float(b ? (uint32_t)b << 23 : 0x400000u); }

static __device__ __forceinline__ float2 fp8x2(uint16_t v) {
    uint32_t h;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(v));
    return __half22float2(*(__half2 *)&h);
}

static __device__ __forceinline__ float fp8(uint8_t v) { return fp8x2(v).x; }

static __device__ __forceinline__ float2 fp4x2(uint8_t b) {
    uint32_t h =
        (uint32_t)(b & 8) << 12 | (uint32_t)(b & 7) << 9 | (uint32_t)(b & 0x80) << 24 | (uint32_t)(b & 0x70) << 21;
    float2 v = __half22float2(*(__half2 *)&h);
    v.x *= 16384.0f;
    v.y *= 16384.0f;
    return v;
}

/* Small shapes have records of odd sizes: those are read byte by byte. */
static __device__ __forceinline__ uint32_t load_word(const uint8_t *p) {
    if (((uintptr_t)p & 3) == 0) return *(const uint32_t *)p;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static __device__ __forceinline__ uint2 load_words(const uint8_t *p) {
    if (((uintptr_t)p & 7) == 0) return *(const uint2 *)p;
    return make_uint2(load_word(p), load_word(p + 4));
}

/* Eight values of a key from channel k (a multiple of 8) on, as four bf16 pairs: exact, every format fits bf16. */
static __device__ __forceinline__ uint4 key_values(const dev_key &r, bool four, int k) {
    uint32_t out[4] = { 0, 0, 0, 0 };
    if (r.code) {
        if (four) {
            uint32_t v = load_word(r.code + k / 2);
            float s = fp8(r.scale[k / 16]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 x = fp4x2((uint8_t)(v >> (8 * i)));
                out[i] = pair(x.x * s, x.y * s);
            }
        } else {
            uint2 v = load_words(r.code + k);
            float s = pow2(r.scale[k / 32]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 x = fp8x2((uint16_t)((i < 2 ? v.x : v.y) >> (16 * (i & 1))));
                out[i] = pair(x.x * s, x.y * s);
            }
        }
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* --- keys of a row ------------------------------------------------------------------------------------------------ */

static __global__ void key_kernel(dev d, uint32_t first, int layer, int part, int lo_kind, attention_work w) {
    uint32_t row = d.active[first + blockIdx.x], p = d.row_pos[row];
    const dev_entry &e = d.entries[d.row_entry[row]];
    uint32_t from = p + 1 > (uint32_t)d.window ? p + 1 - d.window : 0;
    if (from < e.lo[lo_kind]) from = e.lo[lo_kind];
    int windowed = (int)(p + 1 - from);
    const int32_t *ids = d.topk_ids + (uint64_t)row * d.topk;
    __shared__ int picked;
    if (threadIdx.x == 0) picked = 0;
    __syncthreads();
    for (int i = threadIdx.x; part >= 0 && i < d.topk; i += blockDim.x)
        if (ids[i] >= 0) atomicAdd(&picked, 1);     /* a count: order cannot matter; picks come before the -1 padding */
    __syncthreads();
    int count = windowed + picked;
    for (int n = threadIdx.x; n < w.keys_max; n += blockDim.x) {
        dev_key k = { NULL, NULL };
        bool four = n >= windowed;
        if (n < windowed) {
            uint32_t pos = from + n;
            const uint8_t *record = pos >= e.pos
                                        ? d.window_rows + (uint64_t)(e.first_row + (pos - e.pos)) * d.l->ring_row_bytes
                                        : dev_ring(d, e.seq, (uint32_t)layer, pos);
            k.code = record;
            k.scale = record + d.head_dim;
        } else if (n < count) {
            const cedar_page_part &g = d.l->part[part];
            uint32_t j = (uint32_t)ids[n - windowed], at = j % g.entries;
            const uint8_t *page = dev_page(d, e.seq, j / g.entries);
            k.code = page + g.kv_codes + (uint64_t)at * d.l->kv_code_bytes;
            k.scale = page + g.kv_scales + (uint64_t)at * d.l->kv_scale_bytes;
        }
        w.keys[(uint64_t)blockIdx.x * w.keys_max + n] = k;
        w.fp4[(uint64_t)blockIdx.x * w.keys_max + n] = four;
    }
    if (threadIdx.x == 0) w.count[blockIdx.x] = count;
}

/* --- logits ------------------------------------------------------------------------------------------------------- */

/* 64 heads by tiles of 64 keys; blockIdx.z picks the heads, and tiles blockIdx.y, blockIdx.y + gridDim.y, ... */
static __global__ void __launch_bounds__(THREADS)
    logits_kernel(dev d, uint32_t first, const float *q, attention_work w) {
    extern __shared__ __align__(16) uint16_t tile[];
    int dim = d.head_dim, stride = dim + 8, warp = threadIdx.x / 32, half = warp / 4, lane = threadIdx.x % 32,
        g = lane / 4, t = lane % 4;
    uint16_t *qs = tile, *ks = tile + HEADS * stride;
    int count = w.count[blockIdx.x], h0 = blockIdx.z * HEADS;
    const float *qr = q + (uint64_t)(first + blockIdx.x) * d.heads * dim;
    if ((int)blockIdx.y * KEYS >= count) return;
    for (int i = threadIdx.x; i < HEADS * dim / 4; i += THREADS) {
        int h = i / (dim / 4), k = i % (dim / 4) * 4;
        float4 v = h0 + h < d.heads ? *(const float4 *)(qr + (uint64_t)(h0 + h) * dim + k) : make_float4(0, 0, 0, 0);
        *(uint2 *)(qs + h * stride + k) = make_uint2(pair(v.x, v.y), pair(v.z, v.w));
    }
    float scale = (float)(1 / sqrt((double)dim));
    for (int k0 = blockIdx.y * KEYS; k0 < count; k0 += gridDim.y * KEYS) {
        __syncthreads();
        for (int i = threadIdx.x; i < KEYS * dim / 8; i += THREADS) {
            int n = i / (dim / 8), k = i % (dim / 8) * 8;
            uint64_t at = (uint64_t)blockIdx.x * w.keys_max + k0 + n;
            *(uint4 *)(ks + n * stride + k) = key_values(w.keys[at], w.fp4[at], k);
        }
        __syncthreads();
        float c[KEYS / 16][4] = {};
        for (int k = 0; k < dim; k += 16) {
            uint32_t a[4];
            load4(a, qs + (warp % 4 * 16 + lane % 16) * stride + k + lane / 16 * 8);
#pragma unroll
            for (int n = 0; n < KEYS / 2; n += 16) {
                uint32_t b[4];
                load4(b, ks + (half * (KEYS / 2) + n + lane % 8 + lane / 16 * 8) * stride + k + (lane / 8 & 1) * 8);
                mma(c[n / 8], a, b[0], b[1]);
                mma(c[n / 8 + 1], a, b[2], b[3]);
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int h = h0 + warp % 4 * 16 + g + 8 * (i / 2), key = k0 + half * (KEYS / 2) + 8 * n + 2 * t + (i & 1);
                if (h < d.heads) w.logits[((uint64_t)blockIdx.x * d.heads + h) * w.keys_max + key] = c[n][i] * scale;
            }
    }
}

/* --- probabilities ------------------------------------------------------------------------------------------------ */

/* One warp per (row, head): lanes take keys in turn, so the sum's order is that of the keys. */
static __global__ void softmax_kernel(dev d, dev_weight sink, attention_work w, uint32_t n) {
    uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32, row = i / d.heads,
             h = i % d.heads;
    if (row >= n) return;
    float *l = w.logits + ((uint64_t)row * d.heads + h) * w.keys_max, top = -1e30f, sum = 0;
    int count = w.count[row], padded = (count + KEYS - 1) / KEYS * KEYS;
    for (int k = lane; k < count; k += 32) top = fmaxf(top, l[k]);
    for (int o = 16; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    for (int k = lane; k < padded; k += 32) {
        float e = k < count ? expf(l[k] - top) : 0;
        sum += e;
        l[k] = __bfloat162float(__float2bfloat16_rn(e));
    }
    for (int o = 16; o; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (lane == 0) w.total[(uint64_t)row * d.heads + h] = sum + expf(((const float *)sink.data)[h] - top);
}

/* --- probabilities times keys ------------------------------------------------------------------------------------- */

/* 64 heads by 64 channels of one row over all its keys, ascending. The next tile is on its way while one is
 * multiplied. */
static __global__ void __launch_bounds__(THREADS) values_kernel(dev d, uint32_t first, float *q, attention_work w) {
    enum { P_LOADS = HEADS * KEYS / 4 / THREADS, V_LOADS = KEYS * DIMS / 8 / THREADS };
    __shared__ __align__(16) uint16_t ps[HEADS][KEYS + 8], vs[KEYS][DIMS + 8];
    int dim = d.head_dim, warp = threadIdx.x / 32, half = warp / 4, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int d0 = blockIdx.y * DIMS, h0 = blockIdx.z * HEADS, count = w.count[blockIdx.x];
    float c[DIMS / 16][4] = {};
    float4 p_next[P_LOADS];
    uint4 v_next[V_LOADS];
    auto fetch = [&](int k0) {
#pragma unroll
        for (int j = 0; j < P_LOADS; j++) {
            int i = j * THREADS + threadIdx.x, h = i / (KEYS / 4), k = i % (KEYS / 4) * 4;
            p_next[j] =
                h0 + h < d.heads
                    ? *(const float4 *)(w.logits + ((uint64_t)blockIdx.x * d.heads + h0 + h) * w.keys_max + k0 + k)
                    : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < V_LOADS; j++) {
            int i = j * THREADS + threadIdx.x, n = i / (DIMS / 8), k = i % (DIMS / 8) * 8;
            uint64_t at = (uint64_t)blockIdx.x * w.keys_max + k0 + n;
            v_next[j] = d0 + k < dim ? key_values(w.keys[at], w.fp4[at], d0 + k) : make_uint4(0, 0, 0, 0);
        }
    };
    if (count) fetch(0);
    for (int k0 = 0; k0 < count; k0 += KEYS) {
        __syncthreads();
#pragma unroll
        for (int j = 0; j < P_LOADS; j++) {
            int i = j * THREADS + threadIdx.x;
            *(uint2 *)&ps[i / (KEYS / 4)][i % (KEYS / 4) * 4] =
                make_uint2(pair(p_next[j].x, p_next[j].y), pair(p_next[j].z, p_next[j].w));
        }
#pragma unroll
        for (int j = 0; j < V_LOADS; j++) {
            int i = j * THREADS + threadIdx.x;
            *(uint4 *)&vs[i / (DIMS / 8)][i % (DIMS / 8) * 8] = v_next[j];
        }
        __syncthreads();
        if (k0 + KEYS < count) fetch(k0 + KEYS);
#pragma unroll
        for (int k = 0; k < KEYS; k += 16) {
            uint32_t a[4];
            load4(a, &ps[warp % 4 * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
            for (int n = 0; n < DIMS / 2; n += 16) {
                uint32_t b[4];
                load4_transposed(b, &vs[k + lane % 16][half * (DIMS / 2) + n + lane / 16 * 8]);
                mma(c[n / 8], a, b[0], b[1]);
                mma(c[n / 8 + 1], a, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < DIMS / 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int h = h0 + warp % 4 * 16 + g + 8 * (i / 2), k = d0 + half * (DIMS / 2) + 8 * n + 2 * t + (i & 1);
            if (h < d.heads && k < dim)
                q[((uint64_t)(first + blockIdx.x) * d.heads + h) * dim + k] =
                    __bfloat162float(__float2bfloat16_rn(c[n][i] / w.total[(uint64_t)blockIdx.x * d.heads + h]));
        }
}

void tensor_attention(const dev &d, uint32_t first, uint32_t n, int layer, int part, int lo_kind, float *q,
                      const dev_weight &sink, const attention_work &w, cudaStream_t s) {
    unsigned groups = (unsigned)(d.heads + HEADS - 1) / HEADS, tiles = (unsigned)w.keys_max / KEYS;
    size_t shared = (size_t)(HEADS + KEYS) * (d.head_dim + 8) * sizeof(uint16_t);
    cudaFuncSetAttribute(logits_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    key_kernel<<<n, 128, 0, s>>>(d, first, layer, part, lo_kind, w);
    /* few rows: a block per tile; many rows: a block runs through the tiles with its queries at hand */
    logits_kernel<<<dim3(n, n >= 128 ? 1 : tiles, groups), THREADS, shared, s>>>(d, first, q, w);
    softmax_kernel<<<(n * (unsigned)d.heads * 32 + 255) / 256, 256, 0, s>>>(d, sink, w, n);
    values_kernel<<<dim3(n, (unsigned)(d.head_dim + DIMS - 1) / DIMS, groups), THREADS, 0, s>>>(d, first, q, w);
}

/* --- index scores ------------------------------------------------------------------------------------------------- */

enum { SCORE_WARPS = 4, SCORE_ENTRIES = 64 };   /* entries of a warp */

static __device__ __forceinline__ int64_t entry_of(const dev &d, uint32_t row, int64_t n, int64_t visible,
                                                   bool pooled) {
    int64_t j = n;
    if (pooled) {
        int64_t b = n / d.candidate_block;
        if (b >= d.pool_count[row]) return -1;
        j = (int64_t)d.pool[(uint64_t)row * d.candidate_blocks + b] * d.candidate_block + n % d.candidate_block;
    }
    return j < visible ? j : -1;
}

/* index_dim 128 (four threads hold 32 channels each), heads a multiple of 16 up to 64. */
static __global__ void __launch_bounds__(32 * SCORE_WARPS)
    scores_kernel(dev d, uint32_t first, const float *iq_in, const float *g_in, int part, int ratio, bool pooled,
                  int64_t count_max) {
    uint32_t i = first + blockIdx.y, row = d.active[i];
    const dev_entry &e = d.entries[d.row_entry[row]];
    const cedar_page_part &p = d.l->part[part];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int64_t visible = (d.row_pos[row] + 1) / ratio,
            listed = pooled ? (int64_t)d.pool_count[row] * d.candidate_block : visible;
    int64_t n0 = ((int64_t)blockIdx.x * SCORE_WARPS + warp) * SCORE_ENTRIES;
    float *out = (float *)d.scores + (uint64_t)blockIdx.y * d.context;
    if (n0 >= listed || n0 >= count_max) return;
    const float *iq = iq_in + (uint64_t)i * d.index_heads * 128, *gate = g_in + (uint64_t)i * d.index_heads;
    for (int64_t n = n0; n < n0 + SCORE_ENTRIES && n < listed && n < count_max; n += 8) {
        int64_t j = entry_of(d, row, n + g, visible, pooled);
        uint32_t b[16];
        if (j >= 0) {
            const uint8_t *page = dev_page(d, e.seq, (uint32_t)(j / p.entries));
            const uint8_t *code = page + p.index_codes + (uint64_t)(j % p.entries) * d.l->index_code_bytes + 16 * t;
            uint2 lo = load_words(code), hi = load_words(code + 8);
            float s = pow2(page[p.index_scales + (uint64_t)(j % p.entries) * d.l->index_scale_bytes + t]);
            uint32_t words[4] = { lo.x, lo.y, hi.x, hi.y };
#pragma unroll
            for (int k = 0; k < 16; k++) {
                float2 x = fp4x2((uint8_t)(words[k / 4] >> (8 * (k % 4))));
                b[k] = pair(x.x * s, x.y * s);
            }
        } else {
#pragma unroll
            for (int k = 0; k < 16; k++) b[k] = 0;
        }
        float sum0 = 0, sum1 = 0;
        for (int h = 0; h < d.index_heads; h += 16) {
            float c[4] = { 0, 0, 0, 0 };
            const float *q0 = iq + (uint64_t)(h + g) * 128 + 32 * t, *q1 = iq + (uint64_t)(h + g + 8) * 128 + 32 * t;
#pragma unroll
            for (int k = 0; k < 8; k++) {
                float4 x0 = *(const float4 *)(q0 + 4 * k), x1 = *(const float4 *)(q1 + 4 * k);
                uint32_t a[4] = { pair(x0.x, x0.y), pair(x1.x, x1.y), pair(x0.z, x0.w), pair(x1.z, x1.w) };
                mma(c, a, b[2 * k], b[2 * k + 1]);
            }
            float g0 = gate[h + g], g1 = gate[h + g + 8];
            sum0 += g0 * fmaxf(c[0], 0.0f) + g1 * fmaxf(c[2], 0.0f);
            sum1 += g0 * fmaxf(c[1], 0.0f) + g1 * fmaxf(c[3], 0.0f);
        }
#pragma unroll
        for (int o = 4; o < 32; o *= 2) {
            sum0 += __shfl_xor_sync(0xffffffffu, sum0, o);
            sum1 += __shfl_xor_sync(0xffffffffu, sum1, o);
        }
        if (g == 0) {
            int64_t m = n + 2 * t;
            if (m < count_max) out[m] = entry_of(d, row, m, visible, pooled) >= 0 ? sum0 : -INFINITY;
            if (m + 1 < count_max) out[m + 1] = entry_of(d, row, m + 1, visible, pooled) >= 0 ? sum1 : -INFINITY;
        }
    }
}

void tensor_scores(const dev &d, uint32_t first, uint32_t n, const float *iq, const float *g, int part, int ratio,
                   bool pooled, cudaStream_t s) {
    int64_t count = pooled ? (int64_t)d.candidate_blocks * d.candidate_block : d.context;
    if (count > d.context) count = d.context;
    scores_kernel<<<dim3((unsigned)((count + SCORE_WARPS * SCORE_ENTRIES - 1) / (SCORE_WARPS * SCORE_ENTRIES)), n),
                    32 * SCORE_WARPS, 0, s>>>(d, first, iq, g, part, ratio, pooled, count);
}
