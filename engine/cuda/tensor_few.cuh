/* Private to engine/cuda: linear layers of few rows, bound by memory: the warps of a thread block share a tile of
 * outputs, a segment of K each. That is for few tiles and for odd sizes; tensor_tiles.cuh is for more tiles. */
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

/* Thread blocks of a multiprocessor; two of bf16 weights by four tiles do not fit its shared memory. */
template <class Weights> static constexpr int few_per_sm(int tiles, bool deep) {
    return deep || (tiles == 4 && !Weights::SCALED) ? 1 : tiles > 1 ? 2 : Weights::FEW_PER_SM;
}

/* A value of this lane that stays in a register. Left to itself the compiler works addresses out again in each round
 * of a loop, from the thread's number on, a quarter of all instructions there; a shuffle it can only do once. */
static __device__ __forceinline__ uint32_t kept(uint32_t v) { return __shfl_sync(~0u, v, threadIdx.x % 32); }

/* Where in a slot this lane reads codes, of either half, and scales. */
struct few_place { uint32_t half[2], scale; };
template <class Weights> static __device__ __forceinline__ few_place few_places(int g, int t) {
    return few_place{ { kept(Weights::at(g, 0, t)), kept(Weights::at(g, 1, t)) },
                      kept((uint32_t)(FEW_N * Weights::BLOCK_PIECES * 16 + g * 4 + t / 2)) };
}

/* A lane's activations of half a block of K, from `at` on of a row of each tile of 8 rows. Loads to registers end in
 * the order in which they and copies to shared memory began, those of other warps too, so these take as long as weights
 * from memory: a half that follows is asked for as soon as one has been multiplied. */
template <int TILES> struct x_half {
    uint4 v[TILES][2];
    __device__ __forceinline__ void load(const uint16_t *const (&row)[TILES], int at) {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) v[n][i] = *(const uint4 *)(row[n] + at + i * 8);
    }
};

/* A lane's row of each tile; rows past the last are that one. Make it before weights are asked for: loads of a list
 * that begin later end behind them. Call at() after that, since it waits for the list. */
template <int TILES> struct few_rows_of {
    uint32_t place[TILES], entry[TILES];
    __device__ __forceinline__ few_rows_of(const source &src, const work_item &it) {
        int g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            place[n] = it.first + (8 * n + g < (int)it.count ? 8 * n + g : it.count - 1);
            entry[n] = src.entry(place[n]);
        }
    }
    /* Where the lane's part of a row begins. */
    __device__ __forceinline__ const uint16_t *at(const source &src, int n, int blocks) const {
        return src.x + (uint64_t)src.from(place[n], entry[n]) * (unsigned)blocks * K_BLOCK + threadIdx.x % 4 * 16;
    }
};

/* Adds the products of half the block in the slot at `at`. */
template <class Weights, int TILES>
static __device__ __forceinline__ void few_half(float (&acc)[TILES][4], uint32_t at, const few_place &place, int half,
                                                const x_half<TILES> &x) {
    enum { EIGHT_ROWS = 8 * Weights::BLOCK_PIECES * 16 };
    uint32_t row = at + place.half[half], s = at + place.scale + (uint32_t)half * 2;
    typename Weights::raw r0 = Weights::read(row), r1 = Weights::read(row + EIGHT_ROWS);
    typename Weights::scale s0(Weights::SCALED ? shared_1(s) : 0), s1(Weights::SCALED ? shared_1(s + 32) : 0);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t f0[4], f1[4];
        Weights::decode(r0, s0, i, f0);
        Weights::decode(r1, s1, i, f1);
        uint32_t a[2][4] = { { f0[0], f1[0], f0[1], f1[1] }, { f0[2], f1[2], f0[3], f1[3] } };
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            mma(acc[n], a[0], x.v[n][i].x, x.v[n][i].y);
            mma(acc[n], a[1], x.v[n][i].z, x.v[n][i].w);
        }
    }
}

/* FEW_N outputs by 8 * TILES rows of plain activations at a time, a warp for each segment of K; with the weights of the
 * next blocks on their way to shared memory of each warp's own. A block goes on to every gridDim.x-th tile of outputs
 * without letting that stream end, and its warps change segments then, since some segments are longer; they wait for
 * each other once in TOGETHER tiles. */
template <class Weights, int TILES, bool DEEP>
static __global__ void __launch_bounds__(32 * FEW_WARPS, few_per_sm<Weights>(TILES, DEEP))
    few_kernel(source src) {
    typedef few_stage<Weights, DEEP> stage;
    enum {
        WIDTH = 8 * TILES,
        PIECES = Weights::BLOCK_PIECES,
        COPIES = FEW_N * PIECES / 32,
        ROWS_AT_ONCE = 32 / PIECES,
        TOGETHER = TILES == 1 ? Weights::FEW_TOGETHER : 1,
        X_HALVES = TILES == 1 ? 2 : 1           /* of activations under way */
    };
    extern __shared__ __align__(1024) uint8_t stages[];
    __shared__ float part[2][TOGETHER][SEGMENTS][FEW_N][WIDTH + 1];
    work_item it;
    if (!src.early) await_launch();             /* else weights can be on their way before the input is there */
    if (!src.item(WIDTH, blockIdx.z, &it)) return;
    Weights w(it.w);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int blocks = (int)((w.k_count + K_BLOCK - 1) / K_BLOCK), z_rows = (int)blockIdx.z * src.z_rows,
        n_count = (int)src.outputs(), last = n_count - 1, step = src.blocks() * FEW_N, n_first = src.block() * FEW_N;
    /* slots of this warp's stream in shared memory, and where in one this lane copies */
    const uint32_t begin = kept((uint32_t)__cvta_generic_to_shared(stages) +
                                (uint32_t)warp * stage::COUNT * stage::BYTES),
                   finish = kept(begin + stage::COUNT * stage::BYTES),
                   scale_to = kept((uint32_t)(stage::CODES + lane % FEW_N * 4));
    const few_place reads = few_places<Weights>(g, t);
    uint32_t place[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int r = i * ROWS_AT_ONCE + lane / PIECES;
        place[i] = kept((uint32_t)(r * PIECES + Weights::place(r, lane % PIECES)) * 16);
    }
    /* Blocks of K in which this lane's piece lies: the last block may be shorter. Scales of whole blocks come four at a
     * time, unless a row's begin in the middle of a word. */
    const int there = (int)kept((uint32_t)((w.row_bytes() - lane % PIECES * 16 + PIECES * 16 - 1) / (PIECES * 16)));
    enum { NO_SCALES, WORDS, BYTES_APART };
    const uint32_t scale_mode = kept(!Weights::SCALED || lane >= FEW_N ? NO_SCALES
                                     : w.k_blocks % 4 == 0 && ((uintptr_t)w.scales_data() & 3) == 0 ? WORDS
                                     : BYTES_APART);
    /* the stream: `left` more blocks of the segment of the tile at load_n; the next one, load_b, is there */
    int load_n = n_first - step, load_turn = warp - 1, left = 0, load_b = 0;
    const uint8_t *from[COPIES], *scales = NULL;
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
    auto load_next = [&](uint32_t to) {         /* to that slot */
        if (left == 0) next_segment();
        if (left) {
#pragma unroll
            for (int i = 0; i < COPIES; i++) {
                copy16(to + place[i], from[i], load_b < there);
                from[i] += PIECES * 16;
            }
            if (Weights::SCALED) {
                copy4(to + scale_to, scales, scale_mode == WORDS);
                if (scale_mode == BYTES_APART) copy_scales(to + scale_to, scales, (int)w.k_blocks - 4 * load_b);
                scales += 4;
            }
            load_b++;
            left--;
        }
        copies_commit();
    };
    const few_rows_of<TILES> rows(src, it);
    for (int i = 0; i < stage::COUNT - 1; i++) load_next(begin + i * stage::BYTES);
    if (src.early) await_launch();
    allow_launch();
    const uint16_t *xr[TILES];
#pragma unroll
    for (int n = 0; n < TILES; n++) xr[n] = rows.at(src, n, blocks);
    int turn = 0, done = 0, seg = warp;         /* done: tiles whose parts lie in part[turn] */
    uint32_t at = begin, before = finish - stage::BYTES;    /* slots: of the next block, and the one it follows */
    for (int n0 = n_first; n0 < n_count; n0 += step, seg = (seg + 1) % SEGMENTS) {
        float acc[TILES][4] = {};
        int b, end;
        segment(blocks, seg, &b, &end);
        const uint16_t *xb[TILES];
#pragma unroll
        for (int n = 0; n < TILES; n++) xb[n] = xr[n] + b * K_BLOCK;
        x_half<TILES> x[X_HALVES];
#pragma unroll
        for (int h = 0; h < X_HALVES; h++)
            if (b < end) x[h].load(xb, h * (K_BLOCK / 2));
        for (int more = (int)kept((uint32_t)(end - b)); more > 0; more--) {
            copies_wait<stage::COUNT - 2>();
            __syncwarp();
#pragma unroll
            for (int half = 0; half < 2; half++) {
                x_half<TILES> &now = x[half % X_HALVES];
                few_half<Weights, TILES>(acc, at, reads, half, now);
                if (half + X_HALVES < 2 || more > 1) now.load(xb, (half + X_HALVES) * (K_BLOCK / 2));
            }
#pragma unroll
            for (int n = 0; n < TILES; n++) xb[n] += K_BLOCK;
            __syncwarp();                       /* the slot before this one may be written */
            load_next(before);
            before = at;
            at = at + stage::BYTES == finish ? begin : at + stage::BYTES;
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) part[turn][done][seg][g + 8 * (i / 2)][8 * n + 2 * t + (i & 1)] = acc[n][i];
        if (++done < TOGETHER && n0 + step < n_count) continue;
        __syncthreads();                        /* and the sums of the turn before last are done with */
        for (int i = threadIdx.x; i < done * FEW_N * WIDTH; i += blockDim.x) {
            int tile = i / (FEW_N * WIDTH), n = i % FEW_N, c = i / FEW_N % WIDTH,
                to = n0 - (done - 1 - tile) * step + n;
            if (to >= n_count || c >= (int)it.count) continue;
            float sum = 0;
#pragma unroll
            for (int s = 0; s < SEGMENTS; s++) sum += part[turn][tile][s][n][c];
            src.put(it.first + c, to, sum);
        }
        turn ^= 1;
        done = 0;
    }
    copies_wait<0>();
}

#endif
