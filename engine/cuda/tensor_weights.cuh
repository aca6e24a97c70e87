/* Private to engine/cuda: how the kernels of tensor.cu see weights, and what a launch of them works on. */
#ifndef CEDAR_ENGINE_CUDA_TENSOR_WEIGHTS_CUH
#define CEDAR_ENGINE_CUDA_TENSOR_WEIGHTS_CUH

#include "engine/cuda/pairs.cuh"
#include "engine/cuda/tensor.cuh"

/* A weight type says where a row's codes and scales lie, and reads one row's 16 values from 64 half + 16 t on of a
 * block whose rows lie in shared memory, BLOCK_PIECES pieces of 16 bytes each. Piece p of row r is at place(r, p), so
 * that a quarter of a warp meets all banks; place is the same eight rows on. The values are at(r, half, t) bytes
 * behind the block, and read takes their address in shared memory. SCALED: four scale bytes a row and block.
 * Of the kernel for few rows: FEW_STAGES, FEW_PER_SM, FEW_TOGETHER: blocks under way a warp, thread blocks a
 * multiprocessor, and tiles of outputs between two sums over the warps; DEEP_STAGES: blocks under way when there is a
 * multiprocessor for each thread block. */

static __device__ __forceinline__ uint4 shared_16(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from));
    return v;
}

static __device__ __forceinline__ uint2 shared_8(uint32_t from) {
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from));
    return v;
}

static __device__ __forceinline__ uint8_t shared_1(uint32_t from) {
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from));
    return (uint8_t)v;
}

/* FP8 with a scale per 32 x 32 tile; spread codes (pairs.cuh). */
struct fp8_tiles {
    enum { BLOCK_PIECES = 8, SCALED = 1, FEW_STAGES = 3, FEW_PER_SM = 3, FEW_TOGETHER = 2, DEEP_STAGES = 8 };
    const uint8_t *code, *scales;
    int64_t k_count, k_blocks;
    __device__ fp8_tiles(const dev_weight &w)
        : code(w.data), scales(w.scale), k_count(w.cols), k_blocks(w.cols / 32) {}
    __device__ __forceinline__ const uint8_t *row_data(int64_t row) const { return code + row * k_count; }
    __device__ __forceinline__ int64_t row_bytes() const { return k_count; }
    __device__ __forceinline__ const uint8_t *row_scale(int64_t row) const { return scales + row / 32 * k_blocks; }
    __device__ __forceinline__ const uint8_t *scales_data() const { return scales; }
    static __device__ __forceinline__ int place(int row, int piece) { return piece ^ (row % 2 * 4 + row / 2 % 4); }
    typedef uint4 raw;
    static __device__ __forceinline__ uint32_t at(int row, int half, int t) {
        return (uint32_t)(row * 128 + place(row, 4 * half + t) * 16);
    }
    static __device__ __forceinline__ raw read(uint32_t from) { return shared_16(from); }
    struct scale : factor {
        __device__ __forceinline__ scale(uint8_t b) : factor(b, E4M3_GAP) {}
    };
    static __device__ __forceinline__ void decode(const raw &r, const scale &s, int i, uint32_t f[4]) {
        e4m3_laid(i ? make_uint2(r.z, r.w) : make_uint2(r.x, r.y), f);
#pragma unroll
        for (int p = 0; p < 4; p++) f[p] = s(f[p]);
    }
};

/* MXFP4: a scale per row and 32; spread codes (pairs.cuh). */
struct fp4_rows {
    enum { BLOCK_PIECES = 4, SCALED = 1, FEW_STAGES = 8, FEW_PER_SM = 2, FEW_TOGETHER = 2, DEEP_STAGES = 16 };
    const uint8_t *code, *scales;
    int64_t k_count, k_blocks;
    __device__ fp4_rows(const dev_weight &w)
        : code(w.data), scales(w.scale), k_count(w.cols), k_blocks(w.cols / 32) {}
    __device__ __forceinline__ const uint8_t *row_data(int64_t row) const { return code + row * k_count / 2; }
    __device__ __forceinline__ int64_t row_bytes() const { return k_count / 2; }
    __device__ __forceinline__ const uint8_t *row_scale(int64_t row) const { return scales + row * k_blocks; }
    __device__ __forceinline__ const uint8_t *scales_data() const { return scales; }
    static __device__ __forceinline__ int place(int row, int piece) { return piece ^ row / 2 % 2 * 2; }
    typedef uint2 raw;
    static __device__ __forceinline__ uint32_t at(int row, int half, int t) {
        return (uint32_t)(row * 64 + place(row, 2 * half + t / 2) * 16 + t % 2 * 8);
    }
    static __device__ __forceinline__ raw read(uint32_t from) { return shared_8(from); }
    struct scale : factor {
        __device__ __forceinline__ scale(uint8_t b) : factor(b, E2M1_GAP) {}
    };
    static __device__ __forceinline__ void decode(const raw &r, const scale &s, int i, uint32_t f[4]) {
        e2m1_laid(i ? r.y : r.x, f);
#pragma unroll
        for (int p = 0; p < 4; p++) f[p] = s(f[p]);
    }
};

struct bf16_rows {
    enum { BLOCK_PIECES = 16, SCALED = 0, FEW_STAGES = 3, FEW_PER_SM = 2, FEW_TOGETHER = 1, DEEP_STAGES = 6 };
    const uint8_t *data;
    int64_t k_count, k_blocks;
    __device__ bf16_rows(const dev_weight &w) : data(w.data), k_count(w.cols), k_blocks(w.cols / 32) {}
    __device__ __forceinline__ const uint8_t *row_data(int64_t row) const { return data + 2 * row * k_count; }
    __device__ __forceinline__ int64_t row_bytes() const { return 2 * k_count; }
    __device__ __forceinline__ const uint8_t *row_scale(int64_t) const { return NULL; }
    __device__ __forceinline__ const uint8_t *scales_data() const { return NULL; }
    static __device__ __forceinline__ int place(int row, int piece) { return piece ^ row % 8; }
    struct raw { uint4 v[2]; };
    static __device__ __forceinline__ uint32_t at(int row, int half, int t) {
        return (uint32_t)(row * 256 + place(row, 8 * half + 2 * t) * 16);
    }
    /* the second piece is the neighbour, blocks being multiples of 32 bytes */
    static __device__ __forceinline__ raw read(uint32_t from) {
        return raw{ { shared_16(from), shared_16(from ^ 16) } };
    }
    struct scale {
        __device__ __forceinline__ scale(uint8_t) {}
    };
    static __device__ __forceinline__ void decode(const raw &r, const scale &, int i, uint32_t f[4]) {
        uint4 v = r.v[i];
        f[0] = __byte_perm(v.x, v.z, 0x5410);
        f[1] = __byte_perm(v.x, v.z, 0x7632);
        f[2] = __byte_perm(v.y, v.w, 0x5410);
        f[3] = __byte_perm(v.y, v.w, 0x7632);
    }
};

/* 16 bytes to shared memory, or zeros when there are none. */
static __device__ __forceinline__ void copy16(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

/* 16 bytes to shared memory, and to L1, for what other warps of the multiprocessor read too. */
static __device__ __forceinline__ void copy16_cached(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

static __device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* 4 bytes to shared memory, if wanted; both addresses are multiples of 4. */
static __device__ __forceinline__ void copy4(uint32_t to, const void *from, bool wanted) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.ca.shared.global [%0], [%1], 4; }" ::"r"(to),
                 "l"(from), "r"((uint32_t)wanted));
}

/* The four scales of a row's block to shared memory; those out of K, of which there are `left` still, as 1. */
static __device__ __forceinline__ void copy_scales(uint32_t to, const uint8_t *from, int left) {
    if (left >= 4 && ((uintptr_t)from & 3) == 0) {
        copy4(to, from, true);
        return;
    }
    for (int i = 0; i < 4; i++)
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(to + (uint32_t)i), "r"((uint32_t)(i < left ? from[i] : 127)));
}

/* Blocks [first, last) of a segment. */
static __device__ __forceinline__ void segment(int blocks, int seg, int *first, int *last) {
    *first = blocks * seg / SEGMENTS;
    *last = blocks * (seg + 1) / SEGMENTS;
}

/* --- what a launch works on --------------------------------------------------------------------------------------- */

struct work_item {
    dev_weight w;
    uint32_t first, count;      /* of the list */
};

/* blockIdx.y is a tile of rows, or of one expert's pairs; blockIdx.z, or what item is given, a group, or one of two
 * weights. */
struct source {
    const dev_weight *experts;  /* on the device; NULL: `dense` */
    dev_weight dense[2];
    const uint32_t *list;       /* NULL: the number itself */
    int div, stride, offset, z_offset;
    uint32_t rows;
    expert_tiles tiles;
    bool by_place;              /* destination is the place in the list, else the entry */
    const uint16_t *x;
    void *y[2];
    int64_t ldy, n_count, k_count;
    int z_dense, z_list, z_rows, z_y;   /* what one more in z adds to: dense, experts, rows of w, y */
    int64_t z_columns;                  /* columns of y */
    result_kind kind;
    bool early;     /* weights, tiles and list were there before the kernel in front of this one began */
    bool aside;     /* no more than a thread block a multiprocessor, which leaves room for others */
    /* Not 0: blocks along x from this one on have tiles of dense[1], of which there are n_second outputs, in y[1]. */
    uint32_t split;
    int64_t n_second;

    /* This block's place among those that share a matrix, and how many they are; outputs of that matrix. */
    __device__ __forceinline__ bool second() const { return split && blockIdx.x >= split; }
    __device__ __forceinline__ int block() const { return (int)(second() ? blockIdx.x - split : blockIdx.x); }
    __device__ __forceinline__ int blocks() const {
        return (int)(second() ? gridDim.x - split : split ? split : gridDim.x);
    }
    __device__ __forceinline__ int64_t outputs() const { return second() ? n_second : n_count; }

    __device__ __forceinline__ bool item(uint32_t width, uint32_t z, work_item *it) const {
        uint32_t tile = blockIdx.y;
        if (experts) {
            int expert = tiles.tile_expert[tile];   /* asked for at once; an empty tile may have any */
            it->count = tiles.tile_count[tile];
            it->first = tiles.tile_first[tile];
            if (!it->count) return false;
            it->w = experts[expert + z * z_list];
            return true;
        }
        it->w = dense[second() ? 1 : z * z_dense];
        it->first = tile * width;
        it->count = rows - it->first < width ? rows - it->first : width;
        return true;
    }
    __device__ __forceinline__ uint32_t entry(uint32_t i) const { return list ? list[i] : i; }
    /* The row of x of entry e, which is at i. */
    __device__ __forceinline__ uint32_t from(uint32_t i, uint32_t e) const {
        return (tiles.sorted ? i : e / div) * stride + offset + blockIdx.z * z_offset;
    }
    __device__ __forceinline__ uint32_t from(uint32_t i) const { return from(i, tiles.sorted ? 0 : entry(i)); }
    /* Column n of the result of row i of the list. */
    __device__ __forceinline__ void put(uint32_t i, int n, float v) const {
        void *to = y[second() ? 1 : blockIdx.z * z_y];
        uint64_t at = (uint64_t)(by_place ? i : entry(i)) * (second() ? n_second : ldy) + blockIdx.z * z_columns + n;
        if (kind == AS_BF16) ((__nv_bfloat16 *)to)[at] = __float2bfloat16_rn(v);
        else ((float *)to)[at] = kind == AS_ROUNDED ? rounded(v) : v;
    }
    /* Columns n .. n + 7, those that there are; v at a multiple of 16 bytes. Nothing may write the list meanwhile. */
    __device__ __forceinline__ void put8(uint32_t i, int n, const float *v) const {
        uint64_t at = (uint64_t)(by_place ? i : __ldg(list + i)) * ldy + blockIdx.z * z_columns + n;
        uint8_t *to = (uint8_t *)y[blockIdx.z * z_y] + at * (kind == AS_BF16 ? 2 : 4);
        if (n + 8 > n_count || ((uintptr_t)to & 15)) {
#pragma unroll 1
            for (int k = 0; k < 8 && n + k < n_count; k++) put(i, n + k, v[k]);
            return;
        }
        float4 lo = *(const float4 *)v, hi = *(const float4 *)(v + 4);
        if (kind == AS_BF16) {
            *(uint4 *)to = make_uint4(pair_of(lo.x, lo.y), pair_of(lo.z, lo.w), pair_of(hi.x, hi.y),
                                      pair_of(hi.z, hi.w));
            return;
        }
        if (kind == AS_ROUNDED) {
            lo = make_float4(rounded(lo.x), rounded(lo.y), rounded(lo.z), rounded(lo.w));
            hi = make_float4(rounded(hi.x), rounded(hi.y), rounded(hi.z), rounded(hi.w));
        }
        *(float4 *)to = lo;
        *(float4 *)(to + 16) = hi;
    }
};

#endif
