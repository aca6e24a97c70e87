/* Linear layers on tensor cores. */
#include "engine/cuda/pairs.cuh"
#include "engine/cuda/tensor.cuh"
#include "engine/cuda/wgmma.cuh"

enum { FEW_WARPS = SEGMENTS, FEW_N = 16, MANY_WARPS = 8, MANY_N = 128 };

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* A weight type says where a row's codes and scales lie, and reads one row's 16 values from 64 half + 16 t on of a block
 * whose rows lie in shared memory, BLOCK_PIECES pieces of 16 bytes each. Piece p of row r is at place(r, p), so that a
 * quarter of a warp meets all banks. SCALED: four scale bytes a row and block. FEW_STAGES, FEW_PER_SM: blocks under way a
 * warp, and thread blocks a multiprocessor, of the kernel for few rows. */

/* FP8 with a scale per 32 x 32 tile. */
struct fp8_tiles {
    enum { BLOCK_PIECES = 8, SCALED = 1, FEW_STAGES = 3, FEW_PER_SM = 3 };
    const uint8_t *code, *scales;
    int64_t k_count, k_blocks;
    __device__ fp8_tiles(const dev_weight &w) 
        : code(w.data), scales(w.scale), k_count(w.cols), k_blocks(w.cols / 32) {}
    __device__ __forceinline__ const uint8_t *row_data(int64_t row) const { return code + row * k_count; }
    __device__ __forceinline__ int64_t row_bytes() const { return k_count; }
    __device__ __forceinline__ const uint8_t *row_scale(int64_t row) const { return scales + row / 32 * k_blocks; }
    static __device__ __forceinline__ int place(int row, int piece) { return piece ^ (row % 2 * 4 + row / 2 % 4); }
    typedef uint4 raw;
    static __device__ __forceinline__ raw read(const uint8_t *block, int row, int half, int t) {
        return *(const uint4 *)(block + row * 128 + place(row, 4 * half + t) * 16);
    }
    struct scale : factor {
        __device__ __forceinline__ scale(uint8_t b) : factor(b, E4M3_GAP) {}
    };
    static __device__ __forceinline__ void decode(const raw &r, const scale &s, int i, uint32_t f[4]) {
        e4m3_crossed(i ? r.z : r.x, i ? r.w : r.y, s, f);
    }
};

/* MXFP4: a scale per row and 32. */
struct fp4_rows {
    enum { BLOCK_PIECES = 4, SCALED = 1, FEW_STAGES = 8, FEW_PER_SM = 2 };
    const uint8_t *code, *scales;
    int64_t k_count, k_blocks;
    __device__ fp4_rows(const dev_weight &w) 
        : code(w.data), scales(w.scale), k_count(w.cols), k_blocks(w.cols / 32) {}
    __device__ __forceinline__ const uint8_t *row_data(int64_t row) const { return code + row * k_count / 2; }
    __device__ __forceinline__ int64_t row_bytes() const { return k_count / 2; }
    __device__ __forceinline__ const uint8_t *row_scale(int64_t row) const { return scales + row * k_blocks; }
    static __device__ __forceinline__ int place(int row, int piece) { return piece ^ row / 2 % 2 * 2; }
    typedef uint2 raw;
    static __device__ __forceinline__ raw read(const uint8_t *block, int row, int half, int t) {
        return *(const uint2 *)(block + row * 64 + place(row, 2 * half + t / 2) * 16 + t % 2 * 8);
    }
    struct scale : factor {
        __device__ __forceinline__ scale(uint8_t b) : factor(b, E2M1_GAP) {}
    };
    static __device__ __forceinline__ void decode(const raw &r, const scale &s, int i, uint32_t f[4]) {
        e2m1_crossed(i ? r.y : r.x, s, f);
    }
};

struct bf16_rows {
    enum { BLOCK_PIECES = 16, SCALED = 0, FEW_STAGES = 3, FEW_PER_SM = 2 };
    const uint8_t *data;
    int64_t k_count, k_blocks;
    __device__ bf16_rows(const dev_weight &w) : data(w.data), k_count(w.cols), k_blocks(w.cols / 32) {}
    __device__ __forceinline__ const uint8_t *row_data(int64_t row) const { return data + 2 * row * k_count; }
    __device__ __forceinline__ int64_t row_bytes() const { return 2 * k_count; }
    __device__ __forceinline__ const uint8_t *row_scale(int64_t) const { return NULL; }
    static __device__ __forceinline__ int place(int row, int piece) { return piece ^ row % 8; }
    struct raw { uint4 v[2]; };
    static __device__ __forceinline__ raw read(const uint8_t *block, int row, int half, int t) {
        const uint8_t *r = block + row * 256;
        return raw{ { *(const uint4 *)(r + place(row, 8 * half + 2 * t) * 16),
                      *(const uint4 *)(r + place(row, 8 * half + 2 * t + 1) * 16) } };
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

static __device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* The four scales of a row's block to shared memory; those out of K, of which there are `left` still, as 1. */
static __device__ __forceinline__ void copy_scales(uint8_t *to, const uint8_t *from, int left) {
    if (left >= 4 && ((uintptr_t)from & 3) == 0) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
        return;
    }
    for (int i = 0; i < 4; i++) to[i] = i < left ? from[i] : 127;
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

/* blockIdx.y is a tile of rows, or of one expert's pairs; blockIdx.z a group, or one of two weights. */
struct source {
    const dev_weight *experts;  /* on the device; NULL: `dense` */
    dev_weight dense[2];
    const uint32_t *list;       /* NULL: the number itself */
    int div, stride, offset, z_offset;
    uint32_t rows;
    expert_tiles tiles;
    bool by_place;              /* destination is the place in the list, else the entry */
    const uint16_t *x;
    float *y[2];
    int64_t ldy, n_count;
    int z_dense, z_list, z_rows, z_y;   /* what one more in z adds to: dense, experts, rows of w, y */
    int64_t z_columns;                  /* columns of y */
    bool round;

    __device__ __forceinline__ bool item(uint32_t width, work_item *it) const {
        uint32_t tile = blockIdx.y, z = blockIdx.z;
        if (experts) {
            it->count = tiles.tile_count[tile];
            if (!it->count) return false;
            it->first = tiles.tile_first[tile];
            it->w = experts[tiles.tile_expert[tile] + z * z_list];
            return true;
        }
        it->w = dense[z * z_dense];
        it->first = tile * width;
        it->count = rows - it->first < width ? rows - it->first : width;
        return true;
    }
    __device__ __forceinline__ uint32_t entry(uint32_t i) const { return list ? list[i] : i; }
    __device__ __forceinline__ uint32_t from(uint32_t i) const {
        return entry(i) / div * stride + offset + blockIdx.z * z_offset;
    }
    __device__ __forceinline__ float *row_of_y(uint32_t i) const {
        return y[blockIdx.z * z_y] + (uint64_t)(by_place ? i : entry(i)) * ldy + blockIdx.z * z_columns;
    }
    __device__ __forceinline__ float out(float v) const { return round ? rounded(v) : v; }
};

/* --- few rows: memory bound --------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                           uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* What a warp has under way of its segment: blocks of FEW_N rows, and their scales. */
template <class Weights> struct few_stage {
    enum {
        CODES = FEW_N * Weights::BLOCK_PIECES * 16,
        BYTES = CODES + Weights::SCALED * FEW_N * 4,
        COUNT = Weights::FEW_STAGES,
        BLOCK_BYTES = FEW_WARPS * COUNT * BYTES     /* of a thread block */
    };
};

/* FEW_N outputs by 8 * TILES rows of plain activations at a time, a warp for each segment of K; with the weights of the
 * next blocks on their way to shared memory of each warp's own. A block goes on to every gridDim.x-th tile of outputs
 * without letting that stream end, and its warps change segments then, since some segments are longer. */
template <class Weights, int TILES>
static __global__ void __launch_bounds__(32 * FEW_WARPS, TILES == 1 ? Weights::FEW_PER_SM : TILES == 2 ? 2 : 1) few_kernel(source src) {
    typedef few_stage<Weights> stage;
    enum { WIDTH = 8 * TILES, PIECES = Weights::BLOCK_PIECES, COPIES = FEW_N * PIECES / 32, ROWS_AT_ONCE = 32 / PIECES };
    extern __shared__ __align__(1024) uint8_t stages[];
    __shared__ float part[2][SEGMENTS][FEW_N][WIDTH + 1];
    work_item it;
    if (src.experts) await_launch();            /* dense weights can be on their way before the input is there */
    if (!src.item(WIDTH, &it)) return;
    Weights w(it.w);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int blocks = (int)((w.k_count + K_BLOCK - 1) / K_BLOCK), z_rows = (int)blockIdx.z * src.z_rows,
        n_count = (int)src.n_count, last = n_count - 1, step = (int)gridDim.x * FEW_N;
    bool whole = w.k_count % K_BLOCK == 0;
    uint8_t *mine = stages + warp * stage::COUNT * stage::BYTES;
    /* the stream: `left` more blocks of the segment of the tile at load_n, the next from these addresses to slot load_to;
     * what this lane copies of each */
    int load_n = (int)blockIdx.x * FEW_N - step, load_turn = warp - 1, left = 0, load_to = 0, load_b = 0;
    const uint8_t *from[COPIES], *scales = NULL;
    int place[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int r = i * ROWS_AT_ONCE + lane / PIECES;
        place[i] = (r * PIECES + Weights::place(r, lane % PIECES)) * 16;
    }
    auto next_segment = [&] {
        while (left == 0 && load_n < n_count) { /* a segment may be empty */
            int end;
            load_n += step;
            load_turn = (load_turn + 1) % SEGMENTS;
            segment(blocks, load_turn, &load_b, &end);
            if (load_n >= n_count) return;
            left = end - load_b;
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                int row = load_n + i * ROWS_AT_ONCE + lane / PIECES;
                from[i] = w.row_data(z_rows + (row < last ? row : last)) + (load_b * PIECES + lane % PIECES) * 16;
            }
            if (Weights::SCALED) {
                int row = load_n + lane % FEW_N;
                scales = w.row_scale(z_rows + (row < last ? row : last)) + 4 * load_b;
            }
        }
    };
    auto load_next = [&] {
        if (left == 0) next_segment();
        if (left) {
            uint32_t to = (uint32_t)__cvta_generic_to_shared(mine) + (uint32_t)load_to;
            bool there = whole || (load_b * PIECES + lane % PIECES) * 16 < (int)w.row_bytes();
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                copy16(to + (uint32_t)place[i], from[i], there);
                from[i] += PIECES * 16;
            }
            if (Weights::SCALED && lane < FEW_N)
                copy_scales(mine + load_to + stage::CODES + lane * 4, scales, whole ? 4 : (int)w.k_blocks - 4 * load_b);
            if (Weights::SCALED) scales += 4;
            load_to = load_to + stage::BYTES == stage::COUNT * stage::BYTES ? 0 : load_to + stage::BYTES;
            load_b++;
            left--;
        }
        copies_commit();
    };
    for (int i = 0; i < stage::COUNT - 1; i++) load_next();
    if (!src.experts) await_launch();
    allow_launch();
    const uint16_t *xr[TILES];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        int i = 8 * n + g < (int)it.count ? 8 * n + g : (int)it.count - 1;
        xr[n] = src.x + (uint64_t)src.from(it.first + i) * (unsigned)blocks * K_BLOCK + 16 * t;
    }
    int at = 0, turn = 0, seg = warp;
    for (int n0 = (int)blockIdx.x * FEW_N; n0 < n_count; n0 += step, turn ^= 1, seg = (seg + 1) % SEGMENTS) {
        float acc[TILES][4] = {};
        int b, end;
        segment(blocks, seg, &b, &end);
        for (; b < end; b++) {
            uint4 x[4];                         /* of the first tile, before the wait */
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = *(const uint4 *)(xr[0] + b * K_BLOCK + e / 2 * 64 + e % 2 * 8);
            copies_wait<stage::COUNT - 2>();
            __syncwarp();
            const uint8_t *codes = mine + at;
            at = at + stage::BYTES == stage::COUNT * stage::BYTES ? 0 : at + stage::BYTES;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                typename Weights::raw r0 = Weights::read(codes, g, half, t), r1 = Weights::read(codes, g + 8, half, t);
                const uint8_t *s = codes + stage::CODES + g * 4 + half * 2 + t / 2;
                typename Weights::scale s0(Weights::SCALED ? s[0] : 0), s1(Weights::SCALED ? s[32] : 0);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t f0[4], f1[4];
                    Weights::decode(r0, s0, i, f0);
                    Weights::decode(r1, s1, i, f1);
#pragma unroll
                    for (int n = 0; n < TILES; n++) {
                        uint4 v = n == 0 ? x[2 * half + i] : *(const uint4 *)(xr[n] + b * K_BLOCK + half * 64 + i * 8);
                        mma(acc[n], f0[0], f1[0], f0[1], f1[1], v.x, v.y);
                        mma(acc[n], f0[2], f1[2], f0[3], f1[3], v.z, v.w);
                    }
                }
            }
            __syncwarp();                       /* the slot before this one may be written */
            load_next();
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) part[turn][seg][g + 8 * (i / 2)][8 * n + 2 * t + (i & 1)] = acc[n][i];
        __syncthreads();                        /* and the sums of the turn before last are done with */
        for (int i = threadIdx.x; i < FEW_N * WIDTH; i += blockDim.x) {
            int n = i % FEW_N, c = i / FEW_N;
            if (n0 + n >= n_count || c >= (int)it.count) continue;
            float sum = 0;
#pragma unroll
            for (int s = 0; s < SEGMENTS; s++) sum += part[turn][s][n][c];
            src.row_of_y(it.first + c)[n0 + n] = src.out(sum);
        }
    }
    copies_wait<0>();
}

/* --- many rows: arithmetic bound ---------------------------------------------------------------------------------- */

enum { SHARED_MAX = 227 * 1024 - 2048 };    /* of a block, less what kernels declare themselves */

template <class Weights, int WIDTH> struct stage {
    enum {
        HALF_BYTES = WIDTH * 128,               /* 64 k of the activations */
        WEIGHTS = 2 * HALF_BYTES,               /* where the weights' blocks begin */
        SCALES = WEIGHTS + MANY_N * Weights::BLOCK_PIECES * 16,
        BYTES = SCALES + Weights::SCALED * 1024,    /* 4 bytes a row, and tiles at multiples of 1024 */
        COUNT = 4 * BYTES <= SHARED_MAX ? 4 : 3
    };
};

/* MANY_N outputs by WIDTH rows of woven activations. Two groups of four warps have 64 outputs each; every thread
 * decodes the weights of its own fragments while the tensor cores work on those before. Codes and activations of the
 * next blocks are on their way to shared memory meanwhile. */
template <class Weights, int WIDTH>
static __global__ void __launch_bounds__(32 * MANY_WARPS, 1) many_kernel(source src) {
    typedef stage<Weights, WIDTH> stage;
    enum {
        THREADS = 32 * MANY_WARPS,
        X_PIECES = K_BLOCK / 8, X_STEP = THREADS / X_PIECES, X_COPIES = WIDTH / X_STEP,
        W_PIECES = Weights::BLOCK_PIECES, W_STEP = THREADS / W_PIECES, W_COPIES = MANY_N / W_STEP
    };
    extern __shared__ __align__(1024) uint8_t stages[];
    work_item it;
    if (!src.item(WIDTH, &it)) return;
    Weights w(it.w);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int blocks = (int)((w.k_count + K_BLOCK - 1) / K_BLOCK), n_count = (int)src.n_count,
        n_tile = (int)blockIdx.x * MANY_N, z_rows = (int)blockIdx.z * src.z_rows;
    auto row_of = [&](int i) {                  /* of the weights; rows past the end repeat the last */
        return z_rows + (n_tile + i < n_count ? n_tile + i : n_count - 1);
    };
    /* what this thread copies of each block: the same piece of every X_STEP-th (W_STEP-th) row */
    int x_row = threadIdx.x / X_PIECES, x_piece = threadIdx.x % X_PIECES, w_row = threadIdx.x / W_PIECES,
        w_piece = threadIdx.x % W_PIECES;
    const uint8_t *x_from[X_COPIES], *w_from[W_COPIES];
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) {
        int c = x_row + i * X_STEP;
        x_from[i] = (const uint8_t *)(src.x + (uint64_t)src.from(it.first + (c < (int)it.count ? c : it.count - 1)) *
                                                  blocks * K_BLOCK + x_piece * 8);
    }
#pragma unroll
    for (int i = 0; i < W_COPIES; i++) w_from[i] = w.row_data(row_of(w_row + i * W_STEP)) + w_piece * 16;
    uint32_t base = (uint32_t)__cvta_generic_to_shared(stages),
             x_to = x_piece / 8 * stage::HALF_BYTES + x_row * 128 + swizzled(x_row, x_piece % 8),
             w_to = stage::WEIGHTS + (w_row * W_PIECES + Weights::place(w_row, w_piece)) * 16;
    int w_left = (int)w.row_bytes() - w_piece * 16;
    const uint8_t *scales = w.row_scale(row_of(threadIdx.x % MANY_N));
    auto load = [&](int block) {
        uint32_t to = base + (uint32_t)(block % stage::COUNT) * stage::BYTES;
#pragma unroll
        for (int i = 0; i < X_COPIES; i++) copy16(to + x_to + i * X_STEP * 128, x_from[i] + block * K_BLOCK * 2, true);
#pragma unroll
        for (int i = 0; i < W_COPIES; i++)
            copy16(to + w_to + i * W_STEP * W_PIECES * 16, w_from[i] + block * W_PIECES * 16,
                   block * W_PIECES * 16 < w_left);
        if (Weights::SCALED && threadIdx.x < MANY_N)
            copy_scales(stages + block % stage::COUNT * stage::BYTES + stage::SCALES + threadIdx.x * 4,
                        scales + 4 * block, (int)w.k_blocks - 4 * block);
    };
    for (int b = 0; b < stage::COUNT - 1; b++) {
        if (b < blocks) load(b);
        copies_commit();
    }
    float total[WIDTH / 2] = {}, acc[WIDTH / 2];
    uint32_t f[2][2][4];                        /* [in turn][instruction][fragment] */
    typename Weights::raw raw[2][2];            /* [half of a block][row] */
    uint8_t s[2][2] = { { 127, 127 }, { 127, 127 } };
    auto read = [&](int block, int half) {
        const uint8_t *from = stages + block % stage::COUNT * stage::BYTES;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = warp * 16 + g + 8 * r;
            raw[half][r] = Weights::read(from + stage::WEIGHTS, row, half, t);
            if (Weights::SCALED) s[half][r] = from[stage::SCALES + row * 4 + half * 2 + t / 2];
        }
    };
    /* values 64 (i / 2) + 16 t + 8 (i % 2) on of a block */
    auto decode = [&](int i, uint32_t (&to)[2][4]) {
        uint32_t f0[4], f1[4];
        Weights::decode(raw[i / 2][0], typename Weights::scale(s[i / 2][0]), i % 2, f0);
        Weights::decode(raw[i / 2][1], typename Weights::scale(s[i / 2][1]), i % 2, f1);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            to[k][0] = f0[2 * k];
            to[k][1] = f1[2 * k];
            to[k][2] = f0[2 * k + 1];
            to[k][3] = f1[2 * k + 1];
        }
    };
    copies_wait<stage::COUNT - 2>();
    __syncthreads();
    read(0, 0);
    decode(0, f[0]);
    int b = 0;
    for (int seg = 0; seg < SEGMENTS; seg++) {
        int first, end;
        segment(blocks, seg, &first, &end);
        if (first == end) continue;
        bool add = false;
        for (; b < end; b++) {
            /* this block and the next are there for all threads, and the one before is done with */
            copies_wait<stage::COUNT - 3>();
            wgmma_publish();
            __syncthreads();
            if (b + stage::COUNT - 1 < blocks) load(b + stage::COUNT - 1);
            copies_commit();
            uint64_t tile = tile_descriptor(base + (uint32_t)(b % stage::COUNT) * stage::BYTES);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                wgmma_begin();
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    wgmma(acc, f[i & 1][k], tile + (i / 2 * stage::HALF_BYTES + (2 * i + k) % 4 * 32) / 16, add);
                    add = true;
                }
                wgmma_commit();
                /* on their way for the decoding after the next */
                if (i == 0) read(b, 1);
                if (i == 2 && b + 1 < blocks) read(b + 1, 0);
                wgmma_wait<1>();
                decode((i + 1) % 4, f[(i + 1) & 1]);
            }
            wgmma_wait<0>();
        }
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) {
            asm volatile("" : "+f"(acc[i])::"memory");
            total[i] += acc[i];
        }
    }
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int c = 8 * n + 2 * t + k;
            if (c >= (int)it.count) continue;
            float *y = src.row_of_y(it.first + c);
            int n0 = n_tile + warp * 16 + g;
            if (n0 < n_count) y[n0] = src.out(total[4 * n + k]);
            if (n0 + 8 < n_count) y[n0 + 8] = src.out(total[4 * n + 2 + k]);
        }
}

static unsigned ceil_div(int64_t a, int64_t b) { return (unsigned)((a + b - 1) / b); }

/* --- launchers ---------------------------------------------------------------------------------------------------- */

int tensor_scale_max(int kind) { return 254 - (kind == CEDAR_W_FP4 ? E2M1_GAP : E4M3_GAP); }

template <class Weights, int WIDTH> static cudaError_t allow_shared() {
    return cudaFuncSetAttribute(many_kernel<Weights, WIDTH>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                stage<Weights, WIDTH>::COUNT * stage<Weights, WIDTH>::BYTES);
}

template <class Weights, int TILES> static cudaError_t allow_few() {
    return cudaFuncSetAttribute(few_kernel<Weights, TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                few_stage<Weights>::BLOCK_BYTES);
}

template <class Weights> static cudaError_t allow_widths() {
    cudaError_t e = allow_few<Weights, 1>();
    if (!e) e = allow_few<Weights, 2>();
    if (!e) e = allow_few<Weights, 4>();
    if (!e) e = allow_shared<Weights, 32>();
    if (!e) e = allow_shared<Weights, 64>();
    return e ? e : allow_shared<Weights, 128>();
}

cudaError_t tensor_prepare(void) {
    cudaError_t e = allow_widths<fp8_tiles>();
    if (!e) e = allow_widths<fp4_rows>();
    return e ? e : allow_widths<bf16_rows>();
}

enum { MULTIPROCESSORS = 132 };

/* Blocks along the tiles of outputs, `others` times, so that as little as possible waits for a last round: a block costs
 * its tiles and about one more to begin. */
static unsigned few_blocks(unsigned tiles, unsigned others, unsigned at_once) {
    unsigned best = 1, least = ~0u;
    for (unsigned per_block = 1; per_block <= tiles && per_block <= 64; per_block++) {
        unsigned blocks = ceil_div(tiles, per_block), cost = ceil_div((int64_t)blocks * others, at_once) * (per_block + 1);
        if (cost >= least) continue;
        least = cost;
        best = blocks;
    }
    return best;
}

/* Tile shape of a launch: the kernel for few rows, or the other, and rows of a tile. */
struct shape {
    bool few;
    int width;
};

template <class Weights, int TILES> static void launch_few(dim3 grid, const source &src, chain s) {
    launch_chained(few_kernel<Weights, TILES>, grid, 32 * FEW_WARPS, few_stage<Weights>::BLOCK_BYTES, s, src);
}

template <class Weights, int WIDTH> static void launch_many(dim3 grid, const source &src, chain s) {
    typedef stage<Weights, WIDTH> stage;
    many_kernel<Weights, WIDTH><<<grid, 32 * MANY_WARPS, stage::COUNT * stage::BYTES, s.stream>>>(src);
}

template <class Weights> static void launch(const source &src, unsigned tiles, unsigned z, shape sh, chain s) {
    unsigned at_once = MULTIPROCESSORS * (sh.width == 8 ? Weights::FEW_PER_SM : sh.width == 16 ? 2 : 1);
    dim3 few(few_blocks(ceil_div(src.n_count, FEW_N), tiles * z, at_once), tiles, z), many(ceil_div(src.n_count, MANY_N), tiles, z);
    if (sh.few) {
        if (sh.width == 8) launch_few<Weights, 1>(few, src, s);
        else if (sh.width == 16) launch_few<Weights, 2>(few, src, s);
        else launch_few<Weights, 4>(few, src, s);
    } else {
        if (sh.width == 32) launch_many<Weights, 32>(many, src, s);
        else if (sh.width == 64) launch_many<Weights, 64>(many, src, s);
        else launch_many<Weights, 128>(many, src, s);
    }
}

/* The widest tile that still gives every multiprocessor one: narrow tiles decode weights once more each. */
static shape dense_shape(const source &src, bool woven, unsigned z) {
    uint32_t rows = src.rows;
    if (!woven) return shape{ true, rows <= 8 ? 8 : rows <= 16 ? 16 : 32 };
    for (int width = 128; width > 32; width /= 2)
        if (ceil_div(src.n_count, MANY_N) * ceil_div(rows, width) * z >= MULTIPROCESSORS) return shape{ false, width };
    return shape{ false, 32 };
}

static source dense_source(const dev_weight &w0, const dev_weight &w1, const operand &x, uint32_t rows, int64_t n_count,
                           float *y0, float *y1, int64_t ldy, bool round) {
    source src = {};
    src.dense[0] = w0;
    src.dense[1] = w1;
    src.list = x.list;
    src.div = 1;
    src.stride = x.stride;
    src.offset = x.first;
    src.rows = rows;
    src.by_place = true;
    src.x = x.x;
    src.y[0] = y0;
    src.y[1] = y1;
    src.ldy = ldy;
    src.n_count = n_count;
    src.round = round;
    return src;
}

static void launch_dense(const source &src, bool woven, unsigned z, chain s) {
    shape sh = dense_shape(src, woven, z);
    unsigned tiles = ceil_div(src.rows, sh.width);
    if (src.dense[0].kind == CEDAR_W_BF16) launch<bf16_rows>(src, tiles, z, sh, s);
    else launch<fp8_tiles>(src, tiles, z, sh, s);
}

void tensor_linear(const dev_weight &w, const operand &x, uint32_t rows, float *y, int64_t ldy, bool round,
                   chain s) {
    launch_dense(dense_source(w, w, x, rows, w.rows, y, y, ldy, round), x.woven, 1, s);
}

void tensor_linear_two(const dev_weight &w0, const dev_weight &w1, const operand &x, uint32_t rows, float *y0,
                       float *y1, int64_t ldy, bool round, chain s) {
    source src = dense_source(w0, w1, x, rows, w0.rows, y0, y1, ldy, round);
    src.z_dense = 1;
    src.z_y = 1;
    launch_dense(src, x.woven, 2, s);
}

void tensor_groups(const dev_weight &w, int groups, const operand &x, uint32_t rows, float *y, int64_t ldy,
                   chain s) {
    source src = dense_source(w, w, x, rows, w.rows / groups, y, y, ldy, true);
    src.z_offset = 1;
    src.z_rows = (int)src.n_count;
    src.z_columns = src.n_count;
    launch_dense(src, x.woven, (unsigned)groups, s);
}

/* --- experts ------------------------------------------------------------------------------------------------------ */

void tensor_tiles(uint32_t rows, int per_token, int experts, bool woven, expert_tiles *t) {
    uint32_t pairs = rows * (uint32_t)per_token, each = pairs / (uint32_t)experts;
    t->width = !woven ? 8 : each > 64 ? 128 : each > 32 ? 64 : 32;
    t->tiles_max = pairs / t->width + (uint32_t)experts;
    if (!woven && t->tiles_max > pairs) t->tiles_max = pairs;
}

uint32_t tensor_tiles_max(uint32_t rows, int per_token, int experts) {
    return rows * (uint32_t)per_token / 32 + (uint32_t)experts + FEW_ROWS * (uint32_t)per_token;
}

/* Pairs of few rows by one block, a thread each: a pair's place is the number of pairs before it. */
static __global__ void sort_few(const int32_t *ids, uint32_t total, int per_token, expert_tiles t) {
    extern __shared__ int32_t id[];
    await_launch();
    allow_launch();
    int32_t *within = id + total;
    uint32_t i = threadIdx.x;
    int32_t mine = i < total ? ids[i] : -1;
    if (i < total) id[i] = mine;
    __syncthreads();
    uint32_t lower = 0, before = 0, count = 0;
    for (uint32_t k = 0; k < total; k++) {
        lower += id[k] >= 0 && id[k] < mine;
        before += id[k] == mine && k < i;
        count += id[k] == mine;
    }
    if (i < total) within[i] = (int32_t)before;
    if (i < t.tiles_max) t.tile_count[i] = 0;
    __syncthreads();
    if (mine < 0) return;
    t.pairs[lower + before] = i / per_token * (per_token + 1) + i % per_token;
    if (before % t.width) return;               /* the first pair of a tile describes it */
    uint32_t tile = before / t.width;
    for (uint32_t k = 0; k < total; k++) tile += id[k] >= 0 && id[k] < mine && within[k] % t.width == 0;
    t.tile_expert[tile] = mine;
    t.tile_first[tile] = lower + before;
    t.tile_count[tile] = count - before < t.width ? count - before : t.width;
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
    uint32_t before = 0;
    *all = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) {
        if (w < warp) before += part[w];
        *all += part[w];
    }
    return before + sum - v;
}

/* Pairs of many rows, one block per expert; a thread walks a stretch of the ids. An expert with `lower` pairs before
 * its own starts at tile lower / width + expert: later ones cannot overlap, and the tiles between are empty. */
static __global__ void __launch_bounds__(256)
    sort_many(const int32_t *ids, uint32_t total, int per_token, expert_tiles t) {
    int32_t e = (int32_t)blockIdx.x;
    uint32_t stretch = (total + blockDim.x - 1) / blockDim.x, i0 = threadIdx.x * stretch,
             i1 = i0 + stretch < total ? i0 + stretch : total, lower = 0, equal = 0, n, first;
    for (uint32_t i = i0; i < i1; i++) {
        lower += ids[i] >= 0 && ids[i] < e;
        equal += ids[i] == e;
    }
    scan_block(lower, &first);
    uint32_t at = first + scan_block(equal, &n);
    for (uint32_t i = i0; i < i1; i++)
        if (ids[i] == e) t.pairs[at++] = i / per_token * (per_token + 1) + i % per_token;
    uint32_t tile = first / t.width + e, next = e + 1 < (int32_t)gridDim.x ? (first + n) / t.width + e + 1 : t.tiles_max;
    for (uint32_t k = tile + threadIdx.x; k < next; k += blockDim.x) {
        uint32_t done = (k - tile) * t.width;
        t.tile_expert[k] = e;
        t.tile_first[k] = first + done;
        t.tile_count[k] = done >= n ? 0 : n - done < t.width ? n - done : t.width;
    }
}

void tensor_sort(const int32_t *ids, uint32_t rows, int per_token, int experts, bool woven, const expert_tiles &t,
                 cudaStream_t s) {
    uint32_t total = rows * (uint32_t)per_token;
    if (!woven)
        launch_chained(sort_few, 1, (total + 31) / 32 * 32, 2 * total * sizeof(int32_t), chain{ s, true }, ids, total,
                       per_token, t);
    else sort_many<<<(unsigned)experts, 256, 0, s>>>(ids, total, per_token, t);
}

void tensor_experts(const dev_weight *list, int lists, int list_step, int64_t n_count, const uint16_t *x, bool woven,
                    int source_div, const expert_tiles &t, float *y, float *y_second, int64_t ldy, chain s) {
    source src = {};
    src.experts = list;
    src.list = t.pairs;
    src.div = source_div;
    src.stride = 1;
    src.tiles = t;
    src.x = x;
    src.y[0] = y;
    src.y[1] = y_second;
    src.ldy = ldy;
    src.n_count = n_count;
    src.z_list = list_step;
    src.z_y = 1;
    src.round = true;
    launch<fp4_rows>(src, t.tiles_max, (unsigned)lists, shape{ !woven, (int)t.width }, s);
}
