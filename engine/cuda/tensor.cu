/* Linear layers on tensor cores. */
#include "engine/cuda/tensor.cuh"

enum { FEW_T = 8, FEW_WARPS = SEGMENTS, MANY_T = 128, MANY_N = 128, MANY_WARPS = 8, TILE_PAIRS = 64 };

/* --- building blocks ---------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t f16x2_of_e4m3x2(uint16_t v) {
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(v));
    return r;
}

/* Four f16x2 of eight E4M3 codes. */
static __device__ __forceinline__ void f16_of_fp8(uint2 v, uint32_t r[4]) {
    r[0] = f16x2_of_e4m3x2((uint16_t)v.x);
    r[1] = f16x2_of_e4m3x2((uint16_t)(v.x >> 16));
    r[2] = f16x2_of_e4m3x2((uint16_t)v.y);
    r[3] = f16x2_of_e4m3x2((uint16_t)(v.y >> 16));
}

/* The same in the order FP4 weights come in: pairs (0,4) (1,5) (2,6) (3,7). */
static __device__ __forceinline__ void f16_of_fp8_crossed(uint2 v, uint32_t r[4]) {
    r[0] = f16x2_of_e4m3x2((uint16_t)__byte_perm(v.x, v.y, 0x40));
    r[1] = f16x2_of_e4m3x2((uint16_t)__byte_perm(v.x, v.y, 0x51));
    r[2] = f16x2_of_e4m3x2((uint16_t)__byte_perm(v.x, v.y, 0x62));
    r[3] = f16x2_of_e4m3x2((uint16_t)__byte_perm(v.x, v.y, 0x73));
}

/* Four f16x2 of eight E2M1 codes times 2^-14: exponent and mantissa land in f16's low exponents, where E2M1's subnormal
 * 0.5 is a subnormal too. Codes i and i + 4 share a register, which leaves two shifts and masks for both. */
static __device__ __forceinline__ void f16_of_fp4(uint32_t v, uint32_t r[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w = v >> (4 * i);
        r[i] = (w << 12 & 0x80008000u) | (w << 9 & 0x0e000e00u);
    }
}

static __device__ __forceinline__ float pow2(uint8_t b) { return __uint_as_float(b ? (uint32_t)b << 23 : 0x400000u); }

static __device__ __forceinline__ void mma_f16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void mma_bf16(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t bf16x2(float lo, float hi) {
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&v;
}

static __device__ __forceinline__ float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

/* Within a block of 32, thread t of four holds k = 8t .. 8t+7 of its rows, and feeds them to two instructions as pairs
 * (0,1)(2,3) and (4,5)(6,7): the same order of k for weights and activations. */

/* Blocks [first, last) of a segment of `blocks` blocks. */
static __device__ __forceinline__ void segment(int64_t blocks, int seg, int64_t *first, int64_t *last) {
    *first = blocks * seg / SEGMENTS;
    *last = blocks * (seg + 1) / SEGMENTS;
}

/* --- weights as fragments: rows g and g + 8 of a 16-row tile ------------------------------------------------------ */

/* FP8 with tile scales. */
struct fp8_tiles {
    const uint8_t *code, *scale;
    int64_t k_count;
    __device__ fp8_tiles(const dev_weight &w) : code(w.data), scale(w.scale), k_count(w.cols) {}
    typedef uint2 raw;
    __device__ __forceinline__ raw fetch(int64_t row, int64_t block, int t) const {
        return *(const uint2 *)(code + row * k_count + block * 32 + 8 * t);
    }
    static __device__ __forceinline__ void decode(raw v, uint32_t f[4]) { f16_of_fp8(v, f); }
    static __device__ __forceinline__ void decode_input(uint2 v, uint32_t f[4]) { f16_of_fp8(v, f); }
    __device__ __forceinline__ uint8_t fetch_scale(int64_t row, int64_t block) const {
        return scale[row / 32 * (k_count / 32) + block];
    }
    static __device__ __forceinline__ float decode_scale(uint8_t b) { return pow2(b); }
};

/* MXFP4; 2^14 undoes what f16_of_fp4 leaves out. */
struct fp4_rows {
    const uint8_t *code, *scale;
    int64_t k_count;
    __device__ fp4_rows(const dev_weight &w) : code(w.data), scale(w.scale), k_count(w.cols) {}
    typedef uint32_t raw;
    __device__ __forceinline__ raw fetch(int64_t row, int64_t block, int t) const {
        return *(const uint32_t *)(code + (row * k_count + block * 32) / 2 + 4 * t);
    }
    static __device__ __forceinline__ void decode(raw v, uint32_t f[4]) { f16_of_fp4(v, f); }
    static __device__ __forceinline__ void decode_input(uint2 v, uint32_t f[4]) { f16_of_fp8_crossed(v, f); }
    __device__ __forceinline__ uint8_t fetch_scale(int64_t row, int64_t block) const {
        return scale[row * (k_count / 32) + block];
    }
    static __device__ __forceinline__ float decode_scale(uint8_t b) { return pow2(b) * 16384.0f; }
};

/* What a launch works on: dense rows, or one tile of an expert's pairs. */
struct work_item {
    dev_weight w;
    uint32_t first, count;      /* of the list */
};

struct source {
    const dev_weight *weights;  /* experts on the device; NULL: `dense` */
    dev_weight dense;
    const uint32_t *list;       /* NULL: the number itself */
    int source_div, stride, offset;
    uint32_t rows;
    const int32_t *tile_expert;
    const uint32_t *tile_first, *tile_count, *tile_total;
    bool by_place;              /* dest is the place in the list, else the entry */

    __device__ __forceinline__ bool item(uint32_t tile, uint32_t width, uint32_t part, work_item *it) const {
        if (weights) {
            if (tile >= *tile_total) return false;
            it->w = weights[tile_expert[tile]];
            it->first = tile_first[tile] + part * width;
            uint32_t end = tile_first[tile] + tile_count[tile];
            if (it->first >= end) return false;
            it->count = end - it->first < width ? end - it->first : width;
            return true;
        }
        it->w = dense;
        it->first = tile * width;
        if (it->first >= rows) return false;
        it->count = rows - it->first < width ? rows - it->first : width;
        return true;
    }
    __device__ __forceinline__ uint32_t entry(uint32_t i) const { return list ? list[i] : i; }
    __device__ __forceinline__ uint32_t from(uint32_t i) const { return entry(i) / source_div * stride + offset; }
    __device__ __forceinline__ uint32_t to(uint32_t i) const { return by_place ? i : entry(i); }
};

/* --- few rows: memory bound --------------------------------------------------------------------------------------- */

/* 16 outputs by 8 rows; each warp sums one segment of K. */
template <class Weights>
static __global__ void __launch_bounds__(32 * FEW_WARPS)
    codes_few(source src, int64_t n_first, int64_t n_count, dev_codes x, float *y, int64_t ldy, int parts) {
    __shared__ float part[SEGMENTS][16][FEW_T + 1];
    work_item it;
    if (!src.item(blockIdx.y / parts, FEW_T, blockIdx.y % parts, &it)) return;
    Weights w(it.w);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int64_t n0 = (int64_t)blockIdx.x * 16, r0 = n0 + g, r1 = n0 + g + 8, blocks = w.k_count / 32, b, end;
    if (r0 >= n_count) r0 = n_count - 1;
    if (r1 >= n_count) r1 = n_count - 1;
    r0 += n_first;
    r1 += n_first;
    uint32_t row = src.from(it.first + (g < it.count ? g : it.count - 1));
    uint32_t col0 = src.from(it.first + (2 * t < (int)it.count ? 2 * t : it.count - 1)),
             col1 = src.from(it.first + (2 * t + 1 < (int)it.count ? 2 * t + 1 : it.count - 1));
    const uint8_t *xc = x.code + (uint64_t)row * w.k_count + 8 * t, *s0 = x.scale + (uint64_t)col0 * blocks,
                  *s1 = x.scale + (uint64_t)col1 * blocks;
    float acc[4] = { 0, 0, 0, 0 };
    segment(blocks, warp, &b, &end);
#pragma unroll 4
    for (; b < end; b++) {
        uint32_t a0[4], a1[4], bx[4];
        Weights::decode(w.fetch(r0, b, t), a0);
        Weights::decode(w.fetch(r1, b, t), a1);
        Weights::decode_input(*(const uint2 *)(xc + b * 32), bx);
        float p[4] = { 0, 0, 0, 0 }, w0 = Weights::decode_scale(w.fetch_scale(r0, b)),
              w1 = Weights::decode_scale(w.fetch_scale(r1, b)), x0 = pow2(s0[b]), x1 = pow2(s1[b]);
        mma_f16(p, a0[0], a1[0], a0[1], a1[1], bx[0], bx[1]);
        mma_f16(p, a0[2], a1[2], a0[3], a1[3], bx[2], bx[3]);
        acc[0] = __fmaf_rn(p[0], x0 * w0, acc[0]);      /* the product is exact: fusing it changes no bit */
        acc[1] = __fmaf_rn(p[1], x1 * w0, acc[1]);
        acc[2] = __fmaf_rn(p[2], x0 * w1, acc[2]);
        acc[3] = __fmaf_rn(p[3], x1 * w1, acc[3]);
    }
    part[warp][g][2 * t] = acc[0];
    part[warp][g][2 * t + 1] = acc[1];
    part[warp][g + 8][2 * t] = acc[2];
    part[warp][g + 8][2 * t + 1] = acc[3];
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * FEW_T; i += blockDim.x) {
        int n = i % 16, c = i / 16;
        if (n0 + n >= n_count || c >= (int)it.count) continue;
        float sum = 0;
        for (int s = 0; s < SEGMENTS; s++) sum += part[s][n][c];
        y[(uint64_t)src.to(it.first + c) * ldy + n0 + n] = rounded(sum);
    }
}

/* --- many rows: arithmetic bound ---------------------------------------------------------------------------------- */

/* 128 outputs by WIDTH rows; a warp has 32 outputs by WIDTH / 2 rows and runs through all segments. */
template <class Weights, int WIDTH>
static __global__ void __launch_bounds__(32 * MANY_WARPS, 2)
    codes_many(source src, int64_t n_first, int64_t n_count, dev_codes x, float *y, int64_t ldy, int parts) {
    enum { TILES = WIDTH / 16 };
    /* f16x2: 16 words of a block, padded to spread the banks */
    __shared__ __align__(16) uint32_t xs[2][WIDTH][20];
    __shared__ float ss[2][WIDTH];
    __shared__ uint32_t from[WIDTH];
    work_item it;
    if (!src.item(blockIdx.y / parts, WIDTH, blockIdx.y % parts, &it)) return;
    Weights w(it.w);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int64_t blocks = w.k_count / 32, n0 = (int64_t)blockIdx.x * MANY_N + (warp % 4) * 32, rows[4];
    int c0 = (warp / 4) * (WIDTH / 2);
    for (int i = 0; i < 4; i++) {
        rows[i] = n0 + g + 8 * i;
        if (rows[i] >= n_count) rows[i] = n_count - 1;
        rows[i] += n_first;
    }
    for (int i = threadIdx.x; i < WIDTH; i += blockDim.x)
        from[i] = src.from(it.first + (i < (int)it.count ? i : it.count - 1));
    __syncthreads();
    float total[2][TILES][4] = {}, acc[2][TILES][4] = {};
    /* each thread fetches 8 codes of some rows of the next block and one scale */
    enum { FETCH = WIDTH * 4 / (32 * MANY_WARPS) };
    uint2 next[FETCH ? FETCH : 1];
    uint8_t next_scale = 0;
    auto fetch = [&](int64_t b) {
#pragma unroll
        for (int i = 0; i < FETCH; i++) {
            int at = i * 32 * MANY_WARPS + threadIdx.x;
            next[i] = *(const uint2 *)(x.code + (uint64_t)from[at / 4] * w.k_count + b * 32 + 8 * (at % 4));
        }
        if (threadIdx.x < WIDTH) next_scale = x.scale[(uint64_t)from[threadIdx.x] * blocks + b];
    };
    auto put = [&](int buf) {
#pragma unroll
        for (int i = 0; i < FETCH; i++) {
            int at = i * 32 * MANY_WARPS + threadIdx.x;
            uint32_t f[4];
            Weights::decode_input(next[i], f);
            *(uint4 *)&xs[buf][at / 4][4 * (at % 4)] = make_uint4(f[0], f[1], f[2], f[3]);
        }
        if (threadIdx.x < WIDTH) ss[buf][threadIdx.x] = pow2(next_scale);
    };
    /* weights of the next AHEAD blocks are on their way while a block is multiplied */
    enum { AHEAD = 2 };
    typename Weights::raw wr[AHEAD][4];
    uint8_t wsr[AHEAD][4];
    auto fetch_weights = [&](int64_t block, int slot) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            wr[slot][i] = w.fetch(rows[i], block, t);
            wsr[slot][i] = w.fetch_scale(rows[i], block);
        }
    };
    int64_t b = 0;
    fetch(0);
    fetch_weights(0, 0);
    fetch_weights(blocks > 1 ? 1 : 0, 1);
    put(0);
    __syncthreads();
    for (int seg = 0; seg < SEGMENTS; seg++) {
        int64_t first, end;
        segment(blocks, seg, &first, &end);
        for (; b < end; b++) {
            int buf = (int)(b & 1);
            if (b + 1 < blocks) fetch(b + 1);
            uint32_t a[4][4];
            float ws[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {       /* slots by selection: an index known only at run time would spill */
                Weights::decode(buf ? wr[1][i] : wr[0][i], a[i]);
                ws[i] = Weights::decode_scale(buf ? wsr[1][i] : wsr[0][i]);
            }
            if (b + AHEAD < blocks) {
                if (buf) fetch_weights(b + AHEAD, 1);
                else fetch_weights(b + AHEAD, 0);
            }
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint4 bx = *(const uint4 *)&xs[buf][c0 + 8 * n + g][4 * t];
                float x0 = ss[buf][c0 + 8 * n + 2 * t], x1 = ss[buf][c0 + 8 * n + 2 * t + 1];
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    float p[4] = { 0, 0, 0, 0 };
                    mma_f16(p, a[2 * m][0], a[2 * m + 1][0], a[2 * m][1], a[2 * m + 1][1], bx.x, bx.y);
                    mma_f16(p, a[2 * m][2], a[2 * m + 1][2], a[2 * m][3], a[2 * m + 1][3], bx.z, bx.w);
                    acc[m][n][0] = __fmaf_rn(p[0], x0 * ws[2 * m], acc[m][n][0]);
                    acc[m][n][1] = __fmaf_rn(p[1], x1 * ws[2 * m], acc[m][n][1]);
                    acc[m][n][2] = __fmaf_rn(p[2], x0 * ws[2 * m + 1], acc[m][n][2]);
                    acc[m][n][3] = __fmaf_rn(p[3], x1 * ws[2 * m + 1], acc[m][n][3]);
                }
            }
            if (b + 1 < blocks) put(buf ^ 1);
            __syncthreads();
        }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    total[m][n][i] += acc[m][n][i];
                    acc[m][n][i] = 0;
                }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t out = n0 + 16 * m + g + 8 * (i / 2);
                int c = c0 + 8 * n + 2 * t + (i & 1);
                if (out < n_count && c < (int)it.count)
                    y[(uint64_t)src.to(it.first + c) * ldy + out] = rounded(total[m][n][i]);
            }
}

/* --- plain form --------------------------------------------------------------------------------------------------- */

/* bf16x2 of 8 values of a weight row. */
static __device__ __forceinline__ void bf16_of_weight(const dev_weight &w, int64_t row, int64_t block, int t,
                                                      uint32_t f[4]) {
    if (w.kind == CEDAR_W_BF16) {
        uint4 v = *(const uint4 *)(w.data + 2 * (row * w.cols + block * 32 + 8 * t));
        f[0] = v.x; f[1] = v.y; f[2] = v.z; f[3] = v.w;
        return;
    }
    uint32_t h[4];
    f16_of_fp8(*(const uint2 *)(w.data + row * w.cols + block * 32 + 8 * t), h);
    float s = pow2(w.scale[row / 32 * (w.cols / 32) + block]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 v = __half22float2(*(__half2 *)&h[i]);
        f[i] = bf16x2(v.x * s, v.y * s);
    }
}

/* 16 outputs by 8 rows, a warp per segment. */
static __global__ void __launch_bounds__(32 * FEW_WARPS)
    plain_few(dev_weight w, int64_t n_first, int64_t n_count, const float *x, int64_t ldx, const uint32_t *list,
              uint32_t rows, float *y, int64_t ldy, bool round) {
    n_first += blockIdx.z * n_count;        /* group z: its own inputs, weights and outputs, side by side */
    x += blockIdx.z * w.cols;
    y += blockIdx.z * n_count;
    __shared__ float part[SEGMENTS][16][FEW_T + 1];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t first = blockIdx.y * FEW_T, count = rows - first < FEW_T ? rows - first : FEW_T,
             at = first + (g < (int)count ? g : count - 1);
    int64_t n0 = (int64_t)blockIdx.x * 16, r0 = n0 + g, r1 = n0 + g + 8, blocks = w.cols / 32, b, end;
    if (r0 >= n_count) r0 = n_count - 1;
    if (r1 >= n_count) r1 = n_count - 1;
    const float *xr = x + (uint64_t)(list ? list[at] : at) * ldx + 8 * t;
    float acc[4] = { 0, 0, 0, 0 };
    segment(blocks, warp, &b, &end);
#pragma unroll 4
    for (; b < end; b++) {
        uint32_t a0[4], a1[4];
        bf16_of_weight(w, n_first + r0, b, t, a0);
        bf16_of_weight(w, n_first + r1, b, t, a1);
        float4 lo = *(const float4 *)(xr + b * 32), hi = *(const float4 *)(xr + b * 32 + 4);
        mma_bf16(acc, a0[0], a1[0], a0[1], a1[1], bf16x2(lo.x, lo.y), bf16x2(lo.z, lo.w));
        mma_bf16(acc, a0[2], a1[2], a0[3], a1[3], bf16x2(hi.x, hi.y), bf16x2(hi.z, hi.w));
    }
    part[warp][g][2 * t] = acc[0];
    part[warp][g][2 * t + 1] = acc[1];
    part[warp][g + 8][2 * t] = acc[2];
    part[warp][g + 8][2 * t + 1] = acc[3];
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * FEW_T; i += blockDim.x) {
        int n = i % 16, c = i / 16;
        if (n0 + n >= n_count || c >= (int)count) continue;
        float sum = 0;
        for (int s = 0; s < SEGMENTS; s++) sum += part[s][n][c];
        y[(uint64_t)(first + c) * ldy + n0 + n] = round ? rounded(sum) : sum;
    }
}

/* 128 outputs by 128 rows. */
static __global__ void __launch_bounds__(32 * MANY_WARPS, 1)
    plain_many(dev_weight w, int64_t n_first, int64_t n_count, const float *x, int64_t ldx, const uint32_t *list,
               uint32_t rows, float *y, int64_t ldy, bool round) {
    n_first += blockIdx.z * n_count;
    x += blockIdx.z * w.cols;
    y += blockIdx.z * n_count;
    enum { TILES = MANY_T / 16, FETCH = MANY_T * 4 / (32 * MANY_WARPS) };
    __shared__ __align__(16) uint32_t xs[2][MANY_T][20];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, c0 = (warp / 4) * (MANY_T / 2);
    uint32_t first = blockIdx.y * MANY_T, count = rows - first < MANY_T ? rows - first : MANY_T;
    int64_t blocks = w.cols / 32, n0 = (int64_t)blockIdx.x * MANY_N + (warp % 4) * 32, out_rows[4];
    for (int i = 0; i < 4; i++) {
        out_rows[i] = n0 + g + 8 * i;
        if (out_rows[i] >= n_count) out_rows[i] = n_count - 1;
        out_rows[i] += n_first;
    }
    const float *xr[FETCH];
    for (int i = 0; i < FETCH; i++) {
        uint32_t r = (uint32_t)(i * 32 * MANY_WARPS + threadIdx.x) / 4, at = first + (r < count ? r : count - 1);
        xr[i] = x + (uint64_t)(list ? list[at] : at) * ldx + 8 * (threadIdx.x % 4);
    }
    float total[2][TILES][4] = {}, acc[2][TILES][4] = {};
    auto put = [&](int buf, int64_t b) {
#pragma unroll
        for (int i = 0; i < FETCH; i++) {
            int at = i * 32 * MANY_WARPS + threadIdx.x;
            float4 lo = *(const float4 *)(xr[i] + b * 32), hi = *(const float4 *)(xr[i] + b * 32 + 4);
            *(uint4 *)&xs[buf][at / 4][4 * (at % 4)] =
                make_uint4(bf16x2(lo.x, lo.y), bf16x2(lo.z, lo.w), bf16x2(hi.x, hi.y), bf16x2(hi.z, hi.w));
        }
    };
    int64_t b = 0;
    put(0, 0);
    __syncthreads();
    for (int seg = 0; seg < SEGMENTS; seg++) {
        int64_t begin, end;
        segment(blocks, seg, &begin, &end);
        for (; b < end; b++) {
            int buf = (int)(b & 1);
            if (b + 1 < blocks) put(buf ^ 1, b + 1);
            uint32_t a[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) bf16_of_weight(w, out_rows[i], b, t, a[i]);
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                uint4 bx = *(const uint4 *)&xs[buf][c0 + 8 * n + g][4 * t];
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    mma_bf16(acc[m][n], a[2 * m][0], a[2 * m + 1][0], a[2 * m][1], a[2 * m + 1][1], bx.x, bx.y);
                    mma_bf16(acc[m][n], a[2 * m][2], a[2 * m + 1][2], a[2 * m][3], a[2 * m + 1][3], bx.z, bx.w);
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    total[m][n][i] += acc[m][n][i];
                    acc[m][n][i] = 0;
                }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int64_t out = n0 + 16 * m + g + 8 * (i / 2);
                int c = c0 + 8 * n + 2 * t + (i & 1);
                if (out < n_count && c < (int)count)
                    y[(uint64_t)(first + c) * ldy + out] = round ? rounded(total[m][n][i]) : total[m][n][i];
            }
}

/* --- launchers ---------------------------------------------------------------------------------------------------- */

static __global__ void pack_kernel(const float *x, dev_codes out, const uint32_t *list, int64_t k_count) {
    uint64_t row = list ? list[blockIdx.x] : blockIdx.x;
    /* K is a multiple of 32: warps hold whole blocks */
    for (int64_t k = threadIdx.x; k < k_count; k += blockDim.x) {
        double v = (double)x[row * k_count + k];
        uint8_t s = fp8q32_scale(v);
        out.code[row * k_count + k] = e4m3_encode(v / ue8m0_value(s));
        if (k % 32 == 0) out.scale[(row * k_count + k) / 32] = s;
    }
}

void tensor_pack(const float *x, const dev_codes &out, const uint32_t *list, uint32_t n, int64_t k_count,
                 cudaStream_t s) {
    pack_kernel<<<n, 512, 0, s>>>(x, out, list, k_count);
}

/* From this many rows on the tile for many rows is faster. */
enum { FEW_ROWS = 32 };

static unsigned ceil_div(int64_t a, int64_t b) { return (unsigned)((a + b - 1) / b); }

void tensor_codes(const dev_weight &w, int64_t n_first, int64_t n_count, const dev_codes &x, const row_map &map,
                  uint32_t rows, float *y, int64_t ldy, cudaStream_t s) {
    source src = { NULL, w, map.list, 1, map.stride, map.first, rows, NULL, NULL, NULL, NULL, true };
    if (rows <= FEW_ROWS)
        codes_few<fp8_tiles><<<dim3(ceil_div(n_count, 16), ceil_div(rows, FEW_T)), 32 * FEW_WARPS, 0, s>>>(
            src, n_first, n_count, x, y, ldy, 1);
    else
        codes_many<fp8_tiles, TILE_PAIRS>
            <<<dim3(ceil_div(n_count, MANY_N), ceil_div(rows, TILE_PAIRS)), 32 * MANY_WARPS, 0, s>>>(
                src, n_first, n_count, x, y, ldy, 1);
}

void tensor_plain(const dev_weight &w, int groups, const float *x, int64_t ldx, const uint32_t *list, uint32_t rows,
                  int64_t n_first, int64_t n_count, float *y, int64_t ldy, bool round, cudaStream_t s) {
    unsigned z = (unsigned)groups;
    if (rows <= FEW_ROWS)
        plain_few<<<dim3(ceil_div(n_count, 16), ceil_div(rows, FEW_T), z), 32 * FEW_WARPS, 0, s>>>(
            w, n_first, n_count, x, ldx, list, rows, y, ldy, round);
    else
        plain_many<<<dim3(ceil_div(n_count, MANY_N), ceil_div(rows, MANY_T), z), 32 * MANY_WARPS, 0, s>>>(
            w, n_first, n_count, x, ldx, list, rows, y, ldy, round);
}

uint32_t tensor_tiles_max(uint32_t rows, int per_token, int experts) {
    uint32_t pairs = rows * (uint32_t)per_token;
    return pairs / TILE_PAIRS + (pairs < (uint32_t)experts ? pairs : (uint32_t)experts);
}

/* One warp per expert walks the ids in order, 32 at a time; one thread places the lists. */
static __global__ void sort_kernel(const int32_t *ids, uint32_t rows, int per_token, int experts, expert_tiles t) {
    extern __shared__ uint32_t counts[];    /* pairs, then tiles of each expert */
    uint32_t *tiles = counts + experts, total = rows * per_token;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int e = warp; e < experts; e += warps) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < total; i += 32)
            n += __popc(__ballot_sync(0xffffffffu, i + lane < total && ids[i + lane] == e));
        if (lane == 0) {
            counts[e] = n;
            tiles[e] = (n + TILE_PAIRS - 1) / TILE_PAIRS;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t pair = 0, tile = 0;
        for (int e = 0; e < experts; e++) {
            uint32_t n = counts[e], m = tiles[e];
            counts[e] = pair;
            for (uint32_t i = 0; i < m; i++) {
                t.tile_expert[tile + i] = e;
                t.tile_first[tile + i] = pair + i * TILE_PAIRS;
                t.tile_count[tile + i] = n - i * TILE_PAIRS < TILE_PAIRS ? n - i * TILE_PAIRS : TILE_PAIRS;
            }
            pair += n;
            tile += m;
        }
        *t.tile_total = tile;
    }
    __syncthreads();
    for (int e = warp; e < experts; e += warps) {
        uint32_t at = counts[e];
        for (uint32_t i = 0; i < total; i += 32) {
            uint32_t k = i + lane;
            bool mine = k < total && ids[k] == e;
            unsigned mask = __ballot_sync(0xffffffffu, mine);
            if (mine) t.pairs[at + __popc(mask & ((1u << lane) - 1))] = k / per_token * (per_token + 1) + k % per_token;
            at += __popc(mask);
        }
    }
}

void tensor_sort(const int32_t *ids, uint32_t rows, int per_token, int experts, const expert_tiles &t, cudaStream_t s) {
    sort_kernel<<<1, 1024, 2 * (size_t)experts * sizeof(uint32_t), s>>>(ids, rows, per_token, experts, t);
}

void tensor_experts(const dev_weight *list, int64_t n_count, int64_t k_count, const dev_codes &x, int source_div,
                    const expert_tiles &t, bool few, float *y, int64_t ldy, cudaStream_t s) {
    (void)k_count;
    dev_weight none = { CEDAR_W_NONE, 0, 0, NULL, NULL };
    source src = { list,          none,         t.pairs,      source_div,   1,    0, 0,
                   t.tile_expert, t.tile_first, t.tile_count, t.tile_total, false };
    enum { PARTS = TILE_PAIRS / FEW_T };
    if (few)
        codes_few<fp4_rows><<<dim3(ceil_div(n_count, 16), t.tiles_max * PARTS), 32 * FEW_WARPS, 0, s>>>(
            src, 0, n_count, x, y, ldy, PARTS);
    else
        codes_many<fp4_rows, TILE_PAIRS>
            <<<dim3(ceil_div(n_count, MANY_N), t.tiles_max), 32 * MANY_WARPS, 0, s>>>(src, 0, n_count, x, y, ldy, 1);
}
