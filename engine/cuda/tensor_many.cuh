/* Private to engine/cuda: linear layers of many rows, bound by arithmetic. */
#ifndef CEDAR_ENGINE_CUDA_TENSOR_MANY_CUH
#define CEDAR_ENGINE_CUDA_TENSOR_MANY_CUH

#include "engine/cuda/tensor_weights.cuh"
#include "engine/cuda/together.cuh"
#include "engine/cuda/wgmma.cuh"

enum { MANY_WARPS = 8, MANY_N = 128 };
enum { OUT_PITCH = MANY_N + 4 };            /* floats of a row of results in shared memory, so that banks differ */
enum { SHARED_MAX = 227 * 1024 - 2048 };    /* of a block, less what kernels declare themselves */

template <class Weights, int WIDTH> struct stage {
    enum {
        HALF_BYTES = WIDTH * 128,               /* 64 k of the activations */
        WEIGHTS = 2 * HALF_BYTES,               /* where the weights' blocks begin */
        SCALES = WEIGHTS + MANY_N * Weights::BLOCK_PIECES * 16,
        BYTES = SCALES + Weights::SCALED * 1024,    /* 4 bytes a row, and tiles at multiples of 1024 */
        COUNT = 4 * BYTES <= SHARED_MAX ? 4 : 3
    };
    static_assert(WIDTH * OUT_PITCH * 4 <= COUNT * BYTES, "results take the place of the blocks");
};

/* MANY_N outputs by WIDTH rows of woven activations. Two groups of four warps have 64 outputs each; every thread
 * decodes the weights of its own fragments while the tensor cores work on those before. Codes and activations of the
 * next blocks are on their way to shared memory meanwhile. The groups meet in the middle of a block, with products
 * under way, so that the tensor cores need not run dry from one block to the next.
 *
 * With a map two thread blocks that differ in blockIdx.x load the rows they share together, half of them each; the map
 * has the columns, the layers z_offset * z and the rows of the launch, in boxes of BOX rows (0: there is no map). */
template <class Weights, int WIDTH, int BOX>
static __device__ __forceinline__ void many_tile(const source &src, const work_item &it, uint8_t *stages,
                                                 const CUtensorMap *map) {
    typedef stage<Weights, WIDTH> stage;
    enum {
        THREADS = 32 * MANY_WARPS,
        X_PIECES = K_BLOCK / 8, X_STEP = THREADS / X_PIECES, X_COPIES = WIDTH / X_STEP,
        W_PIECES = Weights::BLOCK_PIECES, W_STEP = THREADS / W_PIECES, W_COPIES = MANY_N / W_STEP,
        MAP = BOX > 0
    };
    __shared__ uint64_t full[stage::COUNT], empty[stage::COUNT];
    uint32_t full_at = (uint32_t)__cvta_generic_to_shared(full), empty_at = (uint32_t)__cvta_generic_to_shared(empty),
             rank = MAP ? cluster_rank() : 0;
    if (MAP) {
        if (threadIdx.x == 0)
            for (int i = 0; i < stage::COUNT; i++) {
                barrier_make(full_at + 8 * i);
                barrier_make(empty_at + 8 * i);
            }
        barriers_made();
        cluster_arrive();                       /* awaited when weights are on their way */
    }
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
    for (int i = 0; i < X_COPIES && !MAP; i++) {
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
    /* this block's share of a block of K, to both, by one thread: half the rows, or if a box has all of them, half of
     * their columns */
    auto share_rows = [&](int block) {
        uint32_t place = (uint32_t)(block % stage::COUNT), bar = full_at + 8 * place, to = base + place * stage::BYTES;
        int k = block * K_BLOCK, z = (int)blockIdx.z * src.z_offset, row = (int)it.first, half = (int)rank;
        barrier_arm(bar, 2 * stage::HALF_BYTES);
        if (BOX == WIDTH) {
            copy_to_both(to + half * stage::HALF_BYTES, map, k + half * 64, z, row, bar);
            return;
        }
        to += rank * BOX * 128;
        copy_to_both(to, map, k, z, row + (int)rank * BOX, bar);
        copy_to_both(to + stage::HALF_BYTES, map, k + 64, z, row + (int)rank * BOX, bar);
    };
    auto load_rows = [&](int block) {
        uint32_t to = base + (uint32_t)(block % stage::COUNT) * stage::BYTES;
#pragma unroll
        for (int i = 0; i < X_COPIES; i++) copy16(to + x_to + i * X_STEP * 128, x_from[i] + block * K_BLOCK * 2, true);
    };
    auto load_weights = [&](int block) {
        uint32_t to = base + (uint32_t)(block % stage::COUNT) * stage::BYTES;
#pragma unroll
        for (int i = 0; i < W_COPIES; i++)
            copy16(to + w_to + i * W_STEP * W_PIECES * 16, w_from[i] + block * W_PIECES * 16,
                   block * W_PIECES * 16 < w_left);
        if (Weights::SCALED && threadIdx.x < MANY_N)
            copy_scales(to + stage::SCALES + threadIdx.x * 4, scales + 4 * block, (int)w.k_blocks - 4 * block);
    };
    for (int b = 0; b < stage::COUNT - 1; b++) {
        if (b < blocks) {
            if (!MAP) load_rows(b);
            load_weights(b);
        }
        copies_commit();
    }
    if (MAP) {
        cluster_wait();
        for (int b = 0; b < stage::COUNT - 1 && threadIdx.x == 0; b++)
            if (b < blocks) share_rows(b);
    }
    float total[WIDTH / 2] = {}, acc[WIDTH / 2];
    uint32_t f[2][2][4];                        /* [in turn][instruction][fragment] */
    typename Weights::raw raw[2][2];            /* [half of a block][row] */
    uint8_t s[2][2] = { { 127, 127 }, { 127, 127 } };
    auto read = [&](int block, int half) {
        uint32_t from = base + (uint32_t)(block % stage::COUNT) * stage::BYTES;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = warp * 16 + g + 8 * r;
            raw[half][r] = Weights::read(from + stage::WEIGHTS + Weights::at(row, half, t));
            if (Weights::SCALED)
                s[half][r] = shared_1(from + stage::SCALES + (uint32_t)(row * 4 + half * 2 + t / 2));
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
    if (!MAP) wgmma_publish();
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
            uint64_t tile = tile_descriptor(base + (uint32_t)(b % stage::COUNT) * stage::BYTES);
            int more = b + stage::COUNT - 1;    /* the block whose place is that of b - 1 */
            if (MAP) barrier_wait(full_at + 8 * (b % stage::COUNT), b / stage::COUNT);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                wgmma_begin();
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    wgmma(acc, f[i & 1][k], tile + (i / 2 * stage::HALF_BYTES + (2 * i + k) % 4 * 32) / 16, add);
                    add = true;
                }
                wgmma_commit();
                if (i == 0) read(b, 1);     /* on their way for the decoding after the next, as those of i == 2 */
                if (i == 1) {
                    /* the products of the block before were waited for with i == 0, so its place is free once all are
                     * here; and the next block is there for all threads */
                    copies_wait<stage::COUNT - 3>();
                    if (!MAP) wgmma_publish();
                    __syncthreads();
                    if (MAP && threadIdx.x == 0 && b > 0 && more < blocks)
                        barrier_tell(empty_at + 8 * (more % stage::COUNT), rank ^ 1);
                }
                if (i == 2 && b + 1 < blocks) read(b + 1, 0);
                if (!MAP && i == 2 && more < blocks) load_rows(more);
                if (MAP && i == 3 && threadIdx.x == 0 && more < blocks) {
                    /* the other block has had two products' time to say that its place is free */
                    if (b > 0) barrier_wait(empty_at + 8 * (more % stage::COUNT), more / stage::COUNT - 1);
                    share_rows(more);
                }
                if (i == 3) {
                    if (more < blocks) load_weights(more);
                    copies_commit();
                }
                wgmma_wait<1>();
                decode((i + 1) % 4, f[(i + 1) & 1]);
            }
        }
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < WIDTH / 2; i++) {
            asm volatile("" : "+f"(acc[i])::"memory");
            total[i] += acc[i];
        }
    }
    /* sums to rows of outputs in shared memory, in place of the blocks, and from there eight at a time */
    float *out = (float *)stages;
    if (MAP) cluster_arrive();                  /* all that comes to this block from the other is there */
    __syncthreads();
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[(8 * n + 2 * t + i % 2) * OUT_PITCH + warp * 16 + g + i / 2 * 8] = total[4 * n + i];
    __syncthreads();
    int n = (int)threadIdx.x % (MANY_N / 8) * 8;
#pragma unroll 1                                /* small code: a branch lies in it */
    for (int c = threadIdx.x / (MANY_N / 8); c < (int)it.count; c += THREADS / (MANY_N / 8))
        src.put8(it.first + c, n_tile + n, out + c * OUT_PITCH + n);
    if (MAP) cluster_wait();
}

/* A tile of at most half as many rows, as an expert's last one often is, takes half the products. */
template <class Weights, int WIDTH>
static __global__ void __launch_bounds__(32 * MANY_WARPS, 1) many_kernel(source src) {
    enum { HALF = WIDTH > 32 ? WIDTH / 2 : WIDTH };
    extern __shared__ __align__(1024) uint8_t stages[];
    work_item it;
    if (!src.item(WIDTH, blockIdx.z, &it)) return;
    if (HALF < WIDTH && it.count <= HALF) many_tile<Weights, HALF, 0>(src, it, stages, NULL);
    else many_tile<Weights, WIDTH, 0>(src, it, stages, NULL);
}

/* The same by two blocks that load together; both have the same tile of rows. */
template <class Weights, int WIDTH>
static __global__ void __launch_bounds__(32 * MANY_WARPS, 1)
    together_kernel(source src, const __grid_constant__ CUtensorMap map) {
    enum { HALF = WIDTH > 32 ? WIDTH / 2 : WIDTH, BOX = WIDTH / TOGETHER };
    extern __shared__ __align__(1024) uint8_t stages[];
    work_item it;
    if (!src.item(WIDTH, blockIdx.z, &it)) return;
    if (HALF < WIDTH && it.count <= HALF) many_tile<Weights, HALF, BOX>(src, it, stages, &map);
    else many_tile<Weights, WIDTH, BOX>(src, it, stages, &map);
}

#endif
