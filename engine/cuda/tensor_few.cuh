/* Private to engine/cuda: linear layers of few rows, bound by memory. */
#ifndef CEDAR_ENGINE_CUDA_TENSOR_FEW_CUH
#define CEDAR_ENGINE_CUDA_TENSOR_FEW_CUH

#include "engine/cuda/tensor_weights.cuh"
#include "engine/cuda/wgmma.cuh"

enum { FEW_WARPS = SEGMENTS, FEW_N = 16 };

/* What a warp has under way of its segment: blocks of FEW_N rows, and their scales. */
template <class Weights, bool DEEP> struct few_stage {
    enum {
        CODES = FEW_N * Weights::BLOCK_PIECES * 16,
        BYTES = CODES + Weights::SCALED * FEW_N * 4,
        COUNT = DEEP ? Weights::DEEP_STAGES : Weights::FEW_STAGES,
        BLOCK_BYTES = FEW_WARPS * COUNT * BYTES     /* of a thread block */
    };
};

/* Thread blocks of a multiprocessor. */
template <class Weights> static constexpr int few_per_sm(int tiles, bool deep) {
    return deep || tiles == 4 ? 1 : tiles == 2 ? 2 : Weights::FEW_PER_SM;
}

/* FEW_N outputs by 8 * TILES rows of plain activations at a time, a warp for each segment of K; with the weights of the
 * next blocks on their way to shared memory of each warp's own. A block goes on to every gridDim.x-th tile of outputs
 * without letting that stream end, and its warps change segments then, since some segments are longer. */
template <class Weights, int TILES, bool DEEP>
static __global__ void __launch_bounds__(32 * FEW_WARPS, few_per_sm<Weights>(TILES, DEEP))
    few_kernel(source src) {
    typedef few_stage<Weights, DEEP> stage;
    enum {
        WIDTH = 8 * TILES,
        PIECES = Weights::BLOCK_PIECES,
        COPIES = FEW_N * PIECES / 32,
        ROWS_AT_ONCE = 32 / PIECES
    };
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
    /* the stream: `left` more blocks of the segment of the tile at load_n, the next from these addresses to slot
     * load_to; what this lane copies of each */
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
                    uint32_t a[2][4] = { { f0[0], f1[0], f0[1], f1[1] }, { f0[2], f1[2], f0[3], f1[3] } };
#pragma unroll
                    for (int n = 0; n < TILES; n++) {
                        uint4 v = n == 0 ? x[2 * half + i] : *(const uint4 *)(xr[n] + b * K_BLOCK + half * 64 + i * 8);
                        mma(acc[n], a[0], v.x, v.y);
                        mma(acc[n], a[1], v.z, v.w);
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
            src.put(it.first + c, n0 + n, sum);
        }
    }
    copies_wait<0>();
}

#endif
