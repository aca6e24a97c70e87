/* Attention and index scores on tensor cores. */
#include "engine/cuda/pairs.cuh"
#include "engine/cuda/tensor.cuh"
#include "engine/cuda/wgmma.cuh"

enum { HEADS = 64, KEYS = 64, DIMS = 64, THREADS = 256 };     /* 4 warps of 16 heads by 2 halves of keys or channels */

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

static __device__ __forceinline__ float e4m3(uint8_t v) {
    uint32_t h;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((uint16_t)v));
    return __half22float2(*(__half2 *)&h).x;
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

void tensor_keys(const dev &d, uint32_t first, uint32_t n, int layer, int part, int lo_kind, const attention_work &w,
                 cudaStream_t s) {
    key_kernel<<<n, 128, 0, s>>>(d, first, layer, part, lo_kind, w);
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
    tensor_keys(d, first, n, layer, part, lo_kind, w, s);
    /* few rows: a block per tile; many rows: a block runs through the tiles with its queries at hand */
    logits_kernel<<<dim3(n, n >= 128 ? 1 : tiles, groups), THREADS, shared, s>>>(d, first, q, w);
    softmax_kernel<<<(n * (unsigned)d.heads * 32 + 255) / 256, 256, 0, s>>>(d, sink, w, n);
    values_kernel<<<dim3(n, (unsigned)(d.head_dim + DIMS - 1) / DIMS, groups), THREADS, 0, s>>>(d, first, q, w);
}

/* --- the real heads ----------------------------------------------------------------------------------------------- */

/* One row a block: 64 heads of 512 channels against up to ROW_TILES tiles of 64 keys. Two groups of four warps: for the
 * logits each has every second tile, for the values each has half of the channels. Keys are decoded twice, since they
 * do not fit decoded; queries give their room to the probabilities. */
enum {
    ROW_HEADS = 64, ROW_DIM = 512, ROW_TILES = 10, ROW_THREADS = 256, GROUP = 128,
    TILE_BYTES = 64 * 128,                      /* 64 rows of 64 values */
    QUERY_BYTES = ROW_TILES * TILE_BYTES,       /* 8 tiles of queries, then up to 10 of probabilities */
    KEYS_BYTES = 8 * TILE_BYTES,                /* a group's: 64 keys of 512 channels, or twice 64 of 256 */
    ROW_BYTES = QUERY_BYTES + 2 * KEYS_BYTES    /* then row_keys */
};

static __device__ __forceinline__ void group_barrier(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "r"((int)GROUP) : "memory");
}

/* What a row's keys are, in shared memory. */
struct row_keys {
    dev_key at[ROW_TILES * 64];
    uint8_t four[ROW_TILES * 64];
    float top[2][ROW_HEADS], sum[2][ROW_HEADS];     /* of the two groups */
};

/* Keys of a tile on their way from storage to tiles of 64 keys by 64 channels, by the 128 threads of a group. A thread
 * has 16 channels, unit `first + thread % UNITS`, of COUNT keys; those share a scale in either format. */
template <int UNITS, int COUNT> struct key_round {
    enum { STEP = GROUP / UNITS };
    uint4 v[COUNT];
    uint8_t scale[COUNT];
    bool four[COUNT];

    /* Keys key, key + STEP, ... */
    __device__ __forceinline__ void load(const row_keys &r, int key, int first) {
        int k = 16 * (first + (int)threadIdx.x % UNITS);
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const dev_key &at = r.at[key + j * STEP];
            four[j] = r.four[key + j * STEP];
            /* records and entries begin at multiples of 16 and 8 bytes */
            const uint8_t *p = at.code + (four[j] ? k / 2 : k);
            uint2 lo = __ldg((const uint2 *)p), hi = four[j] ? lo : __ldg((const uint2 *)(p + 8));
            v[j] = make_uint4(lo.x, lo.y, hi.x, hi.y);
            scale[j] = __ldg(at.scale + (four[j] ? k / 16 : k / 32));
        }
    }

    /* To rows n, n + STEP, ... of the tiles. */
    __device__ __forceinline__ void store(int n, uint8_t *to) const {
        int unit = threadIdx.x % UNITS;
#pragma unroll
        for (int j = 0; j < COUNT; j++, n += STEP) {
            uint4 lo, hi;
            if (four[j]) {
                factor_value scaled(e4m3(scale[j]), E2M1_GAP);
                uint32_t f[4];
                e2m1_crossed(v[j].x, scaled, f);
                lo = uncrossed(f);
                e2m1_crossed(v[j].y, scaled, f);
                hi = uncrossed(f);
            } else {
                factor_value scaled(ue8m0(scale[j]), E4M3_GAP);
                uint2 a = e4m3_pairs(v[j].x, scaled), b = e4m3_pairs(v[j].y, scaled),
                      c = e4m3_pairs(v[j].z, scaled), e = e4m3_pairs(v[j].w, scaled);
                lo = make_uint4(a.x, a.y, b.x, b.y);
                hi = make_uint4(c.x, c.y, e.x, e.y);
            }
            /* every second four threads begin with the other piece: eight then meet all banks */
            int turn = unit / 4 % 2, piece = unit % 4 * 2;
            uint8_t *row = to + unit / 4 * TILE_BYTES + n * 128;
            *(uint4 *)(row + swizzled(n, piece + turn)) = turn ? hi : lo;
            *(uint4 *)(row + swizzled(n, piece + (turn ^ 1))) = turn ? lo : hi;
        }
    }
};

/* All channels of the 64 keys of a tile; a round is loaded while the one before is decoded. */
static __device__ __forceinline__ void decode_keys(const row_keys &r, int tile, uint8_t *to) {
    enum { UNITS = ROW_DIM / 16, COUNT = 4, STEP = GROUP / UNITS };
    int n = (int)(threadIdx.x % GROUP) / UNITS;
    key_round<UNITS, COUNT> now;
    now.load(r, tile * 64 + n, 0);
#pragma unroll 1                                /* the code must stay small, see row_kernel */
    for (; n < 64; n += COUNT * STEP) {
        key_round<UNITS, COUNT> next = now;
        if (n + COUNT * STEP < 64) next.load(r, tile * 64 + n + COUNT * STEP, 0);
        now.store(n, to);
        now = next;
    }
}

static __device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

static __device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* Rotates neighbours as rope_kernel does; t: cos, sin of the pair. */
static __device__ __forceinline__ void rotate_pair(float &a, float &b, const float *t, float sign) {
    float x = a, y = b, si = sign * t[1];
    a = rounded(x * t[0] - y * si);
    b = rounded(x * si + y * t[0]);
}

/* Queries of the row, rotated, as 8 tiles of 64 heads by 64 channels; four loads of a thread are under way at once. */
static __device__ __forceinline__ void load_queries(const dev &d, const float *q, const float *table, uint8_t *to) {
    enum { AT_ONCE = 4, EIGHTS = ROW_DIM / 8, STEP = ROW_THREADS / EIGHTS };
    int k = (int)threadIdx.x % EIGHTS * 8, rope_from = ROW_DIM - d.rope;
    float turn[8] = { 1, 0, 1, 0, 1, 0, 1, 0 };     /* cos, sin of the thread's pairs: it has the same of every head */
    if (k >= rope_from)
#pragma unroll
        for (int j = 0; j < 8; j++) turn[j] = table[k - rope_from + j];
    for (int h0 = (int)threadIdx.x / EIGHTS; h0 < ROW_HEADS; h0 += AT_ONCE * STEP) {
        float4 x[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float4 *from = (const float4 *)(q + (h0 + i * STEP) * ROW_DIM + k);
            x[i][0] = __ldg(from);
            x[i][1] = __ldg(from + 1);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            float v[8] = { x[i][0].x, x[i][0].y, x[i][0].z, x[i][0].w, x[i][1].x, x[i][1].y, x[i][1].z, x[i][1].w };
            int h = h0 + i * STEP;
            if (k >= rope_from)
#pragma unroll
                for (int j = 0; j < 8; j += 2) rotate_pair(v[j], v[j + 1], turn + j, 1);
            *(uint4 *)(to + k / 64 * TILE_BYTES + h * 128 + swizzled(h, k % 64 / 8)) =
                make_uint4(pair_of(v[0], v[1]), pair_of(v[2], v[3]), pair_of(v[4], v[5]), pair_of(v[6], v[7]));
        }
    }
}

/* A thread's place: of two groups of four warps, with 16 heads a warp, as the matrix instructions have it. */
struct row_thread {
    int group, lane, t, head;                   /* head: of its first row; the other is 8 on */
    __device__ __forceinline__ row_thread()
        : group(threadIdx.x / GROUP), lane(threadIdx.x % 32), t(threadIdx.x % 4),
          head((int)(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4)) {}
};

/* Past the last key that one again: its probability will be zero, whatever it is. */
static __device__ __forceinline__ void load_refs(row_keys &refs, const attention_work &w, int count) {
    for (int i = threadIdx.x; i < ROW_TILES * 64; i += ROW_THREADS) {
        uint64_t at = (uint64_t)blockIdx.x * w.keys_max + (i < count ? i : count - 1);
        refs.at[i] = w.keys[at];
        refs.four[i] = w.fp4[at];
    }
}

/* c = 64 heads by the 64 keys of a tile, for one group, which decodes them to `keys` first; scaled, -inf past the last
 * key. */
static __device__ __forceinline__ void tile_logits(float (&c)[32], const uint8_t *queries, uint8_t *keys,
                                                   const row_keys &refs, int tile, int count, const row_thread &me) {
    uint32_t queries_at = (uint32_t)__cvta_generic_to_shared(queries),
             keys_at = (uint32_t)__cvta_generic_to_shared(keys);
    float scale = (float)(1 / sqrt((double)ROW_DIM));
    decode_keys(refs, tile, keys);
    wgmma_publish();
    group_barrier(me.group);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < ROW_DIM / 16; k++)
        wgmma_tiles(c, tile_descriptor(queries_at + k / 4 * TILE_BYTES) + k % 4 * 2,
                    tile_descriptor(keys_at + k / 4 * TILE_BYTES) + k % 4 * 2, k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    group_barrier(me.group);
#pragma unroll
    for (int n = 0; n < 32; n++) {
        asm volatile("" : "+f"(c[n])::"memory");
        c[n] = tile * 64 + n / 4 * 8 + 2 * me.t + (n & 1) < count ? c[n] * scale : -INFINITY;
    }
}

/* s: logits of every second tile from the group's first on. Leaves the probabilities, bf16, as tiles of 64 heads by 64
 * keys, visible to the matrix units, and in part 1 / their unrounded sum with the sink, for the thread's two heads. */
static __device__ __forceinline__ void probabilities(float (&s)[ROW_TILES / 2][32], int tile_count, row_keys &refs,
                                                     const float *sink, uint8_t *tiles, const row_thread &me,
                                                     float part[2]) {
    float top[2] = { -1e30f, -1e30f }, sum[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < ROW_TILES / 2; i++)
#pragma unroll
        for (int n = 0; n < 32; n++) top[n / 2 & 1] = fmaxf(top[n / 2 & 1], s[i][n]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = quad_max(top[r]);
        if (me.t == 0) refs.top[me.group][me.head + 8 * r] = top[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) top[r] = fmaxf(refs.top[0][me.head + 8 * r], refs.top[1][me.head + 8 * r]);
#pragma unroll 1
    for (int tile = me.group; tile < tile_count; tile += 2) {       /* tiles move up: the loop stays a loop */
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float a = __expf(s[0][4 * n + 2 * r] - top[r]), b = __expf(s[0][4 * n + 2 * r + 1] - top[r]);
                int h = me.head + 8 * r;
                sum[r] += a;
                sum[r] += b;
                *(uint32_t *)(tiles + tile * TILE_BYTES + h * 128 + swizzled(h, n) + 4 * me.t) = pair_of(a, b);
            }
#pragma unroll
        for (int n = 0; n < 32; n++)
#pragma unroll
            for (int i = 0; i + 1 < ROW_TILES / 2; i++) s[i][n] = s[i + 1][n];
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] = quad_sum(sum[r]);
        if (me.t == 0) refs.sum[me.group][me.head + 8 * r] = sum[r];
    }
    wgmma_publish();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int h = me.head + 8 * r;
        part[r] = 1 / (refs.sum[0][h] + refs.sum[1][h] + expf(sink[h] - top[r]));
    }
}

/* Where a row's output goes. */
struct row_output {
    uint16_t *out;
    const float *table;
    int heads_per_group, rope_from;
    bool woven;
};

/* Channels [k0, k0 + CHANNELS) of all heads for one group: probabilities times keys, ascending. While a tile is
 * multiplied the next is decoded, and the one after that is loaded. Divided by the sum, rotated back, packed. */
template <int CHANNELS>
static __device__ __forceinline__ void row_values(const uint8_t *tiles, uint8_t *keys, const row_keys &refs,
                                                  int tile_count, int k0, const float part[2], const row_output &to,
                                                  uint32_t place, const row_thread &me) {
    enum { BUFFER = 64 * CHANNELS * 2, UNITS = CHANNELS / 16 };
    uint32_t tiles_at = (uint32_t)__cvta_generic_to_shared(tiles),
             keys_at = (uint32_t)__cvta_generic_to_shared(keys);
    float o[CHANNELS / 2];
    int n = (int)(threadIdx.x % GROUP) / UNITS;
    key_round<UNITS, 64 * UNITS / GROUP> keys_of;
    keys_of.load(refs, n, k0 / 16);
    for (int tile = 0; tile < tile_count; tile++) {
        int buffer = (tile & 1) * BUFFER;
        wgmma_wait<1>();                        /* the products of the tile before last, by all of the group */
        group_barrier(me.group);
        keys_of.store(n, keys + buffer);
        if (tile + 1 < tile_count) keys_of.load(refs, (tile + 1) * 64 + n, k0 / 16);
        wgmma_publish();
        group_barrier(me.group);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_turned(o, tile_descriptor(tiles_at + (uint32_t)tile * TILE_BYTES) + k * 2,
                         turned_descriptor(keys_at + (uint32_t)buffer, TILE_BYTES) + k * 128, tile + k > 0);
        wgmma_commit();
    }
    wgmma_wait<0>();
    int64_t width = padded((int64_t)to.heads_per_group * ROW_DIM);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int h = me.head + 8 * r;
        uint16_t *row = to.out + ((uint64_t)place * (ROW_HEADS / to.heads_per_group) + h / to.heads_per_group) * width +
                        h % to.heads_per_group * ROW_DIM;
#pragma unroll
        for (int n = 0; n < CHANNELS / 8; n++) {
            asm volatile("" : "+f"(o[4 * n + 2 * r]), "+f"(o[4 * n + 2 * r + 1])::"memory");
            float a = rounded(o[4 * n + 2 * r] * part[r]), b = rounded(o[4 * n + 2 * r + 1] * part[r]);
            int k = k0 + 8 * n;
            if (k >= to.rope_from) rotate_pair(a, b, to.table + k - to.rope_from + 2 * me.t, -1);
            /* threads 0 and 2 of a quad hold 0, 1 and 4, 5 of eight channels, 1 and 3 the others: with what its partner
             * gives, each has one of the pairs (0,4) (1,5) (2,6) (3,7) of tensor.cuh */
            float other = __shfl_xor_sync(0xffffffffu, me.t < 2 ? b : a, 2);
            uint32_t p = me.t < 2 ? pair_of(a, other) : pair_of(other, b);
            int pair = 2 * (me.t & 1) + (me.t >> 1);
            *(uint32_t *)(row + (to.woven ? k / 64 * 64 + k % 16 * 4 + 8 * pair + k % 64 / 16 * 2 : k + 2 * pair)) = p;
        }
    }
}

/* What the three kernels are given: rows [first, first + gridDim.x) of the list; q [place, heads, dim] as wq_b left
 * it; to.out a row per place and group of heads. */
struct row_work {
    uint32_t first;
    int table_kind;
    const float *q, *sink;
    row_output to;
};

static __device__ __forceinline__ const float *rotations(const dev &d, const row_work &r) {
    return (const float *)d.table + ((uint64_t)r.table_kind * d.row_max + d.active[r.first + blockIdx.x]) * d.rope;
}

/* A block per row. Tiles of logits move up as they come: unrolled, the kernel would not fit the instruction cache. */
static __global__ void __launch_bounds__(ROW_THREADS, 1) row_kernel(dev d, row_work r, attention_work w) {
    extern __shared__ __align__(1024) uint8_t tiles[];
    row_keys &refs = *(row_keys *)(tiles + ROW_BYTES);
    row_thread me;
    int count = w.count[blockIdx.x], tile_count = (count + 63) / 64;
    uint8_t *keys = tiles + QUERY_BYTES + me.group * KEYS_BYTES;
    r.to.table = rotations(d, r);
    load_refs(refs, w, count);
    load_queries(d, r.q + (uint64_t)(r.first + blockIdx.x) * ROW_HEADS * ROW_DIM, r.to.table, tiles);
    wgmma_publish();
    __syncthreads();
    float s[ROW_TILES / 2][32], part[2];
#pragma unroll 1
    for (int tile = me.group; tile < ROW_TILES; tile += 2) {
        float c[32];
        if (tile < tile_count) tile_logits(c, tiles, keys, refs, tile, count, me);
#pragma unroll
        for (int n = 0; n < 32; n++) {
#pragma unroll
            for (int i = 0; i + 1 < ROW_TILES / 2; i++) s[i][n] = s[i + 1][n];
            s[ROW_TILES / 2 - 1][n] = tile < tile_count ? c[n] : -INFINITY;
        }
    }
    __syncthreads();                            /* queries give way */
    probabilities(s, tile_count, refs, r.sink, tiles, me, part);
    row_values<ROW_DIM / 2>(tiles, keys, refs, tile_count, me.group * (ROW_DIM / 2), part, r.to, r.first + blockIdx.x, me);
}

/* Few rows: first a block per row and two tiles of keys, one a group; a thread's logits of a tile lie together. */
static __global__ void __launch_bounds__(ROW_THREADS, 1) tile_kernel(dev d, row_work r, attention_work w) {
    allow_launch();
    extern __shared__ __align__(1024) uint8_t tiles[];
    row_keys &refs = *(row_keys *)(tiles + ROW_BYTES);
    row_thread me;
    int count = w.count[blockIdx.x], tile = 2 * blockIdx.y + me.group;
    if ((int)blockIdx.y * 128 >= count) return;
    load_refs(refs, w, count);
    load_queries(d, r.q + (uint64_t)(r.first + blockIdx.x) * ROW_HEADS * ROW_DIM, rotations(d, r), tiles);
    wgmma_publish();
    __syncthreads();
    if (tile * 64 >= count) return;
    float c[32];
    tile_logits(c, tiles, tiles + QUERY_BYTES + me.group * KEYS_BYTES, refs, tile, count, me);
    float4 *to = (float4 *)w.logits + (((uint64_t)blockIdx.x * ROW_TILES + tile) * 8) * GROUP + threadIdx.x % GROUP;
#pragma unroll
    for (int n = 0; n < 8; n++) to[n * GROUP] = make_float4(c[4 * n], c[4 * n + 1], c[4 * n + 2], c[4 * n + 3]);
}

/* Then a block per row and slice of channels. */
enum { SLICE = 64, SLICES = ROW_DIM / (2 * SLICE) };
static __global__ void __launch_bounds__(ROW_THREADS, 1) slice_kernel(dev d, row_work r, attention_work w) {
    await_launch();
    allow_launch();
    extern __shared__ __align__(1024) uint8_t tiles[];
    row_keys &refs = *(row_keys *)(tiles + ROW_BYTES);
    row_thread me;
    int count = w.count[blockIdx.x], tile_count = (count + 63) / 64;
    r.to.table = rotations(d, r);
    load_refs(refs, w, count);
    float s[ROW_TILES / 2][32], part[2];
#pragma unroll
    for (int i = 0; i < ROW_TILES / 2; i++) {
        int tile = 2 * i + me.group;
        const float4 *from =
            (const float4 *)w.logits + (((uint64_t)blockIdx.x * ROW_TILES + tile) * 8) * GROUP + threadIdx.x % GROUP;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float4 v = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            if (tile < tile_count) v = from[n * GROUP];
            s[i][4 * n] = v.x; s[i][4 * n + 1] = v.y; s[i][4 * n + 2] = v.z; s[i][4 * n + 3] = v.w;
        }
    }
    probabilities(s, tile_count, refs, r.sink, tiles, me, part);
    row_values<SLICE>(tiles, tiles + QUERY_BYTES + me.group * KEYS_BYTES, refs, tile_count,
                      (2 * (int)blockIdx.y + me.group) * SLICE, part, r.to, r.first + blockIdx.x, me);
}

bool tensor_attention_rows_can(const dev &d, const cedar_layout &l, const attention_work &w) {
    bool aligned = l.page_bytes % 8 == 0 && l.ring_row_bytes % 8 == 0 && l.ring_bytes % 8 == 0;
    for (int32_t i = 0; i < l.part_count; i++) aligned = aligned && l.part[i].kv_codes % 8 == 0;
    return aligned && d.heads == ROW_HEADS && d.head_dim == ROW_DIM && w.keys_max <= ROW_TILES * 64 && d.rope <= 64 &&
           d.rope % 8 == 0;
}

enum { ROW_SHARED = ROW_BYTES + sizeof(row_keys) };

cudaError_t tensor_attention_prepare(void) {
    cudaError_t e = cudaFuncSetAttribute(row_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ROW_SHARED);
    if (!e) e = cudaFuncSetAttribute(tile_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ROW_SHARED);
    return e ? e : cudaFuncSetAttribute(slice_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ROW_SHARED);
}

void tensor_attention_rows(const dev &d, uint32_t first, uint32_t n, int table_kind, const float *q,
                           const dev_weight &sink, int heads_per_group, const attention_work &w, bool woven,
                           uint16_t *out, cudaStream_t s) {
    row_work r = { first, table_kind, q, (const float *)sink.data, { out, NULL, heads_per_group, d.head_dim - d.rope, woven } };
    if (woven) {
        row_kernel<<<n, ROW_THREADS, ROW_SHARED, s>>>(d, r, w);
    } else {
        tile_kernel<<<dim3(n, ROW_TILES / 2), ROW_THREADS, ROW_SHARED, s>>>(d, r, w);
        launch_chained(slice_kernel, dim3(n, SLICES), ROW_THREADS, ROW_SHARED, chain{ s, true }, d, r, w);
    }
}

/* --- index scores ------------------------------------------------------------------------------------------------- */

enum { SCORE_WARPS = 4 };

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

/* index_dim 128: a thread of a quad holds 32 channels of a head or an entry, in the order of tensor.cuh. Up to 16 * TILES
 * heads, a multiple of 16. A warp keeps its row's queries in registers and walks `entries` entries, eight at a time. */
template <int TILES>
static __global__ void __launch_bounds__(32 * SCORE_WARPS)
    scores_kernel(dev d, uint32_t first, const float *iq_in, const float *g_in, int part, int ratio, bool pooled,
                  int64_t count_max, int entries) {
    uint32_t i = first + blockIdx.y, row = d.active[i];
    const dev_entry &e = d.entries[d.row_entry[row]];
    const cedar_page_part &p = d.l->part[part];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int64_t visible = (d.row_pos[row] + 1) / ratio,
            listed = pooled ? (int64_t)d.pool_count[row] * d.candidate_block : visible;
    int64_t n0 = ((int64_t)blockIdx.x * SCORE_WARPS + warp) * entries, end = n0 + entries;
    if (end > listed) end = listed;
    if (end > count_max) end = count_max;
    float *out = (float *)d.scores + (uint64_t)blockIdx.y * d.context;
    if (n0 >= end) return;
    const float *iq = iq_in + (uint64_t)i * d.index_heads * 128, *gate = g_in + (uint64_t)i * d.index_heads;
    uint32_t q[TILES][8][4];
    float gates[TILES][2];
#pragma unroll
    for (int h = 0; h < TILES; h++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int head = 16 * h + g + 8 * r;
            bool there = head < d.index_heads;
            gates[h][r] = there ? gate[head] : 0;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float4 lo = make_float4(0, 0, 0, 0), hi = lo;
                if (there) {
                    lo = *(const float4 *)(iq + head * 128 + 32 * t + 8 * k);
                    hi = *(const float4 *)(iq + head * 128 + 32 * t + 8 * k + 4);
                }
                q[h][2 * k][r] = pair_of(lo.x, hi.x);
                q[h][2 * k][2 + r] = pair_of(lo.y, hi.y);
                q[h][2 * k + 1][r] = pair_of(lo.z, hi.z);
                q[h][2 * k + 1][2 + r] = pair_of(lo.w, hi.w);
            }
        }
    for (int64_t n = n0; n < end; n += 8) {
        int64_t j = entry_of(d, row, n + g, visible, pooled);
        uint32_t words[4] = { 0, 0, 0, 0 };
        uint8_t scale = 127;
        if (j >= 0) {
            const uint8_t *page = dev_page(d, e.seq, (uint32_t)(j / p.entries));
            const uint8_t *code = page + p.index_codes + (uint64_t)(j % p.entries) * d.l->index_code_bytes + 16 * t;
            uint2 lo = load_words(code), hi = load_words(code + 8);
            words[0] = lo.x; words[1] = lo.y; words[2] = hi.x; words[3] = hi.y;
            scale = page[p.index_scales + (uint64_t)(j % p.entries) * d.l->index_scale_bytes + t];
        }
        factor_value scaled(ue8m0(scale), E2M1_GAP);
        float c[TILES][4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t b[4];
            e2m1_crossed(words[k], scaled, b);
#pragma unroll
            for (int h = 0; h < TILES; h++) {
                mma(c[h], q[h][2 * k], b[0], b[1]);
                mma(c[h], q[h][2 * k + 1], b[2], b[3]);
            }
        }
        float sum0 = 0, sum1 = 0;
#pragma unroll
        for (int h = 0; h < TILES; h++) {
            sum0 += gates[h][0] * fmaxf(c[h][0], 0.0f) + gates[h][1] * fmaxf(c[h][2], 0.0f);
            sum1 += gates[h][0] * fmaxf(c[h][1], 0.0f) + gates[h][1] * fmaxf(c[h][3], 0.0f);
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
    int entries = few_rows(n) ? 32 : 256;       /* a long walk spares loading the queries again */
    dim3 grid((unsigned)((count + SCORE_WARPS * entries - 1) / (SCORE_WARPS * entries)), n);
    auto kernel = d.index_heads <= 32 ? scores_kernel<2> : scores_kernel<4>;
    kernel<<<grid, 32 * SCORE_WARPS, 0, s>>>(d, first, iq, g, part, ratio, pooled, count, entries);
}
