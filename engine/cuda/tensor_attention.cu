/* Attention and index scores on tensor cores. */
#include "engine/cuda/pairs.cuh"
#include "engine/cuda/tensor.cuh"
#include "engine/cuda/wgmma.cuh"

enum { HEADS = 64, KEYS = 64, DIMS = 64, THREADS = 256 };     /* 4 warps of 16 heads by 2 halves of keys or channels */

/* Eight stored values of a key from channel k (a multiple of 8) on, with their scale's byte. */
struct key_codes {
    uint2 v;
    uint8_t scale;
};

static __device__ __forceinline__ key_codes load_codes(const dev_key &r, bool four, int k) {
    if (!r.code) return key_codes{ make_uint2(0, 0), 0 };
    if (four) return key_codes{ make_uint2(load_word(r.code + k / 2), 0), r.scale[k / 16] };
    return key_codes{ load_words(r.code + k), r.scale[k / 32] };
}

/* The same as pairs of bf16 (0,1) .. (6,7): exact, every format fits. */
static __device__ __forceinline__ uint4 key_pairs(const key_codes &c, bool four) {
    if (four) {
        uint32_t f[4];
        e2m1_crossed(c.v.x, factor_value(e4m3(c.scale), E2M1_GAP), f);
        return uncrossed(f);
    }
    factor_value scaled(ue8m0(c.scale), E4M3_GAP);
    uint2 lo = e4m3_pairs(c.v.x, scaled), hi = e4m3_pairs(c.v.y, scaled);
    return make_uint4(lo.x, lo.y, hi.x, hi.y);
}

static __device__ __forceinline__ uint4 key_values(const dev_key &r, bool four, int k) {
    return key_pairs(load_codes(r, four, k), four);
}

/* --- keys of a row ------------------------------------------------------------------------------------------------ */

enum { KEY_THREADS = ROW_KEYS_MAX };

/* Where the window's keys lie, then the picks, which come before the -1 that their list ends with. A thread has a pick
 * or a row of the window, so that it can ask for its pick before it knows where the window ends. The kernel before this
 * one may write picks; what rows and entries are is read before the wait. */
static __global__ void __launch_bounds__(KEY_THREADS)
    key_kernel(dev d, uint32_t first, int layer, int part, int lo_kind, attention_work w) {
    uint32_t row = d.active[first + blockIdx.x], p = d.row_pos[row];
    const dev_entry &e = d.entries[d.row_entry[row]];
    int32_t seq = e.seq;
    uint32_t begin = e.pos, first_row = e.first_row, entries = part >= 0 ? d.l->part[part].entries : 1,
             from = max(p + 1 > (uint32_t)d.window ? p + 1 - d.window : 0, e.lo[lo_kind]);
    const int32_t *ids = d.topk_ids + (uint64_t)row * d.topk;
    int windowed = (int)(p + 1 - from), picked = 0;
    await_launch();
    allow_launch();
    for (int base = 0; base < w.keys_max; base += KEY_THREADS) {
        int i = base + (int)threadIdx.x, id = part >= 0 && i < d.topk ? ids[i] : -1;
        asm volatile("" ::: "memory");          /* or this load would wait for the window's */
        int n = windowed + i;
        dev_key k = { NULL, NULL };
        if (id >= 0) {
            const cedar_page_part &g = d.l->part[part];
            uint32_t at = (uint32_t)id % entries;
            const uint8_t *page = dev_page(d, seq, (uint32_t)id / entries);
            k.code = page + g.kv_codes + (uint64_t)at * d.l->kv_code_bytes;
            k.scale = page + g.kv_scales + (uint64_t)at * d.l->kv_scale_bytes;
        } else if (i - d.topk >= windowed) {
            n = i;                              /* behind the window and as many picks as there can be */
        } else if (i >= d.topk) {
            n = i - d.topk;
            uint32_t pos = from + n;
            k.code = pos >= begin ? d.window_rows + (uint64_t)(first_row + (pos - begin)) * d.l->ring_row_bytes
                                  : dev_ring(d, seq, (uint32_t)layer, pos);
            k.scale = k.code + d.head_dim;
        }
        if (i < w.keys_max) {
            w.keys[(uint64_t)blockIdx.x * w.keys_max + n] = k;
            w.fp4[(uint64_t)blockIdx.x * w.keys_max + n] = n >= windowed;
        }
        picked += __syncthreads_count(id >= 0);
    }
    if (threadIdx.x == 0) w.count[blockIdx.x] = windowed + picked;
}

void tensor_keys(const dev &d, uint32_t first, uint32_t n, int layer, int part, int lo_kind, const attention_work &w,
                 chain s) {
    launch_chained(key_kernel, n, KEY_THREADS, 0, s, d, first, layer, part, lo_kind, w);
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
        *(uint2 *)(qs + h * stride + k) = make_uint2(pair_of(v.x, v.y), pair_of(v.z, v.w));
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
        l[k] = rounded(e);
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
                make_uint2(pair_of(p_next[j].x, p_next[j].y), pair_of(p_next[j].z, p_next[j].w));
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
    tensor_keys(d, first, n, layer, part, lo_kind, w, chain{ s, false });
    /* few rows: a block per tile; many rows: a block runs through the tiles with its queries at hand */
    logits_kernel<<<dim3(n, n >= 128 ? 1 : tiles, groups), THREADS, shared, s>>>(d, first, q, w);
    softmax_kernel<<<(n * (unsigned)d.heads * 32 + 255) / 256, 256, 0, s>>>(d, sink, w, n);
    values_kernel<<<dim3(n, (unsigned)(d.head_dim + DIMS - 1) / DIMS, groups), THREADS, 0, s>>>(d, first, q, w);
}
