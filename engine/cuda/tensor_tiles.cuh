/* Private to engine/cuda: linear layers of few rows and many outputs, whose tiles of outputs warps have to themselves.
 *
 * tiles_kernel  a warp a tile: it adds up all segments of K, and no warp waits for another
 * team_kernel   four warps a tile, two segments each: for fewer tiles
 * gated_kernel  one or two warps a tile of experts' first two matrices, with their activation
 *
 * All add up the segments that few_kernel does, in its order, so they give the same bits. */
#ifndef CEDAR_ENGINE_CUDA_TENSOR_TILES_CUH
#define CEDAR_ENGINE_CUDA_TENSOR_TILES_CUH

#include <type_traits>

#include "engine/cuda/packing.cuh"
#include "engine/cuda/tensor_few.cuh"

/* Warps of a thread block, of which a multiprocessor holds TILES_PER_SM. A warp has COUNT slots of AT_ONCE blocks of K
 * under way: 256 bytes of a row at a time, since memory is slow at less. A lone row of activations, all that an item
 * has, comes with them, if it is there when the first weights are asked for. */
enum { TILES_WARPS = 4, TILES_PER_SM = 4, ROW_PIECES = 16 };
template <class Weights, int TILES> struct tiles_stage {
    enum {
        AT_ONCE = ROW_PIECES / Weights::BLOCK_PIECES,
        LONE_AT = few_stage<Weights, false>::BYTES,     /* in a block: where the lone row's lies */
        BLOCK = LONE_AT + (TILES == 1 ? K_BLOCK * 2 : 0),
        BYTES = AT_ONCE * BLOCK,
        COUNT = 2,
        BLOCK_BYTES = TILES_WARPS * COUNT * BYTES   /* of a thread block */
    };
};

/* Outputs of a warp: tiles from `first` on, `step` outputs apart, and segments seg_first .. seg_last - 1 of K. */
struct tile_range { int first, step, seg_first, seg_last; };

/* The same as x_half::load, of a lone row whose block lies there in shared memory. */
static __device__ __forceinline__ void read_lone(x_half<1> &x, uint32_t block, int half) {
    uint32_t at = block + (uint32_t)half * K_BLOCK + threadIdx.x % 4 * 32;
#pragma unroll
    for (int i = 0; i < 2; i++) x.v[0][i] = shared_16(at + (uint32_t)i * 16);
}

/* A warp's stream of the weights of its tiles into slots of shared memory, and of a lone row, as often as there are
 * tiles. */
template <class Weights, int TILES> struct tile_stream {
    typedef tiles_stage<Weights, TILES> stage;
    enum { PIECES = Weights::BLOCK_PIECES, COPIES = FEW_N / 2, PLACES = 4, CODES = FEW_N * PIECES * 16 };
    const Weights &w;
    const tile_range &range;
    const int first_block, blocks;      /* of K */
    const int scale_block;              /* of those in a slot, whose scales this lane copies first */
    int row, left, tiles;               /* the tile under way begins there, with `left` more blocks; with it `tiles` */
    const uint8_t *from, *scales;       /* of this lane: two rows at a time */
    const uint8_t *lone, *lone_from;    /* this lane's part of the lone row: of its first blocks, of the next ones */
    int lone_left;                      /* blocks from lone_from on */
    uint32_t place[PLACES], scale_to, piece;

    __device__ __forceinline__ tile_stream(const Weights &weights, const tile_range &of, int first_row, int n_count)
        : w(weights), range(of), first_block((int)(w.k_count / K_BLOCK) * of.seg_first / SEGMENTS),
          blocks((int)(w.k_count / K_BLOCK) * of.seg_last / SEGMENTS - first_block),
          scale_block((int)threadIdx.x % 32 / FEW_N), row(first_row + of.first),
          tiles(of.first < n_count ? (n_count - of.first + of.step - 1) / of.step : 0) {
        const int lane = threadIdx.x % 32, p = lane % ROW_PIECES;
#pragma unroll
        for (int i = 0; i < PLACES; i++) {
            int r = 2 * i + lane / ROW_PIECES;
            place[i] = kept((uint32_t)(p / PIECES * stage::BLOCK + (r * PIECES + Weights::place(r, p % PIECES)) * 16));
        }
        scale_to = kept((uint32_t)(scale_block * stage::BLOCK + CODES + lane % FEW_N * 4));
        piece = kept((uint32_t)p);
        begin_tile();
    }
    __device__ __forceinline__ void begin_tile() {
        const int lane = threadIdx.x % 32;
        left = blocks;
        from = w.row_data(row + lane / ROW_PIECES) + first_block * PIECES * 16 + piece * 16;
        scales = w.row_scale(row + lane % FEW_N) + 4 * (first_block + scale_block);
    }
    __device__ __forceinline__ void begin_lone(const uint16_t *lone_row) {
        lone = (const uint8_t *)(lone_row + first_block * K_BLOCK) + threadIdx.x % 32 * 16;
        lone_from = lone;
        lone_left = blocks;
    }
    /* The lone row's next blocks into the slot at `to`, two at a time. */
    __device__ __forceinline__ void load_lone(uint32_t to) {
        const int lane = threadIdx.x % 32, block = lane / (K_BLOCK / 8), p = lane % (K_BLOCK / 8);
#pragma unroll
        for (int i = 0; i < stage::AT_ONCE; i += 2)
            if (i + block < lone_left)
                copy16_cached(to + (i + block) * stage::BLOCK + stage::LONE_AT + p * 16, lone_from + i * K_BLOCK * 2);
        lone_from += stage::AT_ONCE * K_BLOCK * 2;
        lone_left -= stage::AT_ONCE;
        if (lone_left > 0) return;
        lone_from = lone;
        lone_left = blocks;
    }
    /* The next blocks of weights into the slot at `to`, if there are any. */
    __device__ __forceinline__ void load(uint32_t to) {
        if (tiles > 0) {
            const uint8_t *of_row = from;
#pragma unroll
            for (int i = 0; i < COPIES; i++) {  /* a block's places repeat every eight rows */
                copy16(to + place[i % PLACES] + i / PLACES * 8 * PIECES * 16, of_row, (int)piece < left * PIECES);
                of_row += 2 * w.row_bytes();
            }
#pragma unroll
            for (int i = 0; i < stage::AT_ONCE / 2; i++)
                copy4(to + scale_to + i * 2 * stage::BLOCK, scales + 8 * i, 2 * i + scale_block < left);
            from += ROW_PIECES * 16;
            scales += 4 * stage::AT_ONCE;
            left -= stage::AT_ONCE;
            if (left <= 0) {
                row += range.step;
                tiles--;
                begin_tile();
            }
        }
    }
};

/* run_tiles, LONE: for an item of one row. */
template <class Weights, int TILES, bool LONE, class Take, class Done>
static __device__ __forceinline__ void run_tiles_of(const source &src, const work_item &it, const tile_range &range,
                                                    const Take &take, const Done &done) {
    enum { X_HALVES = 4 / TILES };              /* of activations under way, in registers */
    typedef tiles_stage<Weights, TILES> stage;
    extern __shared__ __align__(1024) uint8_t stages[];
    const Weights w(it.w);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_count = (int)src.n_count,
              all_blocks = (int)(w.k_count / K_BLOCK);
    const uint32_t begin = kept((uint32_t)__cvta_generic_to_shared(stages) +
                                (uint32_t)warp * stage::COUNT * stage::BYTES),
                   finish = kept(begin + stage::COUNT * stage::BYTES);
    const few_place reads = few_places<Weights>(lane / 4, lane % 4);
    tile_stream<Weights, TILES> stream(w, range, (int)blockIdx.z * src.z_rows, n_count);
    const int first_block = stream.first_block, blocks = stream.blocks;
    const few_rows_of<TILES> rows(src, it);
    if constexpr (LONE)
        stream.begin_lone(src.x + (uint64_t)src.from(it.first, rows.entry[0]) * (unsigned)all_blocks * K_BLOCK);
    for (uint32_t to = begin; to != finish; to += stage::BYTES) {
        if (LONE) stream.load_lone(to);
        stream.load(to);
        copies_commit();
    }
    if (src.early) await_launch();
    allow_launch();
    const uint16_t *xr[TILES];
    x_half<TILES> x[X_HALVES];
    if (!LONE) {
#pragma unroll
        for (int n = 0; n < TILES; n++) xr[n] = rows.at(src, n, all_blocks) + first_block * K_BLOCK;
#pragma unroll
        for (int h = 0; h < X_HALVES; h++) x[h].load(xr, h * (K_BLOCK / 2));
    }
    uint32_t at = begin;
    for (int n0 = range.first; n0 < n_count; n0 += range.step) {
        float acc[TILES][4] = {};
        const uint16_t *xb[TILES];
#pragma unroll
        for (int n = 0; n < TILES; n++) xb[n] = LONE ? NULL : xr[n];
        /* Segment s ends with block all_blocks * s / SEGMENTS: `ahead` counts how far SEGMENTS a block would get. */
        int seg = range.seg_first, ahead = SEGMENTS * (first_block + 1) - all_blocks * seg;
        auto slot = [&](int more, auto whole) {
            copies_wait<stage::COUNT - 1>();
            __syncwarp();
#pragma unroll
            for (int j = 0; j < stage::AT_ONCE; j++) {
                if (!decltype(whole)::value && j >= more) break;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    x_half<TILES> &now = x[(2 * j + half) % X_HALVES];
                    if constexpr (LONE) read_lone(now, at + j * stage::BLOCK + stage::LONE_AT, half);
                    few_half<Weights, TILES>(acc, at + j * stage::BLOCK, reads, half, now);
                    if constexpr (!LONE) {      /* behind the tile's last half comes what the next has in this place */
                        const int next = half + X_HALVES, again = (2 * j + half) % X_HALVES;
                        const uint16_t *from[TILES];
#pragma unroll
                        for (int n = 0; n < TILES; n++)
                            from[n] = more > j + next / 2 ? xb[n] + next * (K_BLOCK / 2)
                                                          : xr[n] + again * (K_BLOCK / 2);
                        now.load(from, 0);
                    }
                }
#pragma unroll
                for (int n = 0; n < TILES; n++) xb[n] += K_BLOCK;
                ahead += SEGMENTS;
                if (ahead <= all_blocks) continue;
                ahead -= all_blocks;
                take(seg++, acc);
#pragma unroll
                for (int n = 0; n < TILES; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) acc[n][i] = 0;
            }
            __syncwarp();                       /* all lanes have read the slot */
            if (LONE) stream.load_lone(at);
            stream.load(at);
            copies_commit();
            at = at + stage::BYTES == finish ? begin : at + stage::BYTES;
        };
        int more = (int)kept((uint32_t)blocks);
        for (; more >= stage::AT_ONCE; more -= stage::AT_ONCE) slot(more, std::true_type());
        if (more > 0) slot(more, std::false_type());
        done(n0);
    }
    copies_wait<0>();
}

/* A warp goes through its tiles of FEW_N outputs by 8 * TILES rows, without letting the stream of their weights end. It
 * calls take(segment, sums) at the end of each segment, and done(n) at the end of the tile at n. Tiles and blocks of K
 * are whole, and a segment has one block at least. */
template <class Weights, int TILES, class Take, class Done>
static __device__ __forceinline__ void run_tiles(const source &src, const work_item &it, const tile_range &range,
                                                 const Take &take, const Done &done) {
    if constexpr (TILES == 1)
        if (it.count == 1 && !src.early) return run_tiles_of<Weights, TILES, true>(src, it, range, take, done);
    run_tiles_of<Weights, TILES, false>(src, it, range, take, done);
}

/* All segments of a tile, added up in order by one warp. */
template <int TILES> struct own_sums {
    float sum[TILES][4];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[n][i] = 0;
    }
    __device__ __forceinline__ void add(const float (&acc)[TILES][4]) {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[n][i] += acc[n][i];
    }
};

/* FEW_N outputs by 8 * TILES rows of plain activations at a time, a warp each. */
template <class Weights, int TILES>
static __global__ void __launch_bounds__(32 * TILES_WARPS, TILES_PER_SM) tiles_kernel(source src) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    work_item it;
    if (!src.early) await_launch();             /* else weights can be on their way before the input is there */
    if (!src.item(8 * TILES, blockIdx.z, &it)) return;
    own_sums<TILES> own;
    own.clear();
    auto take = [&](int, const float (&acc)[TILES][4]) { own.add(acc); };
    auto put = [&](int n0) {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int c = 8 * n + 2 * (lane % 4) + (i & 1);
                if (c < (int)it.count) src.put(it.first + c, n0 + lane / 4 + 8 * (i / 2), own.sum[n][i]);
            }
        own.clear();
    };
    run_tiles<Weights, TILES>(src, it, tile_range{ ((int)blockIdx.x * TILES_WARPS + warp) * FEW_N,
                                                   (int)gridDim.x * TILES_WARPS * FEW_N, 0, SEGMENTS }, take, put);
}

/* The same, the four warps of a block each with a part of the segments. */
template <class Weights, int TILES>
static __global__ void __launch_bounds__(32 * TILES_WARPS, TILES_PER_SM) team_kernel(source src) {
    enum { WIDTH = 8 * TILES };
    __shared__ float part[SEGMENTS][FEW_N][WIDTH + 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    work_item it;
    if (!src.early) await_launch();
    if (!src.item(WIDTH, blockIdx.z, &it)) return;
    auto take = [&](int seg, const float (&acc)[TILES][4]) {
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) part[seg][g + 8 * (i / 2)][8 * n + 2 * t + (i & 1)] = acc[n][i];
    };
    auto put = [&](int n0) {
        __syncthreads();
        for (int i = threadIdx.x; i < FEW_N * WIDTH; i += blockDim.x) {
            int n = i % FEW_N, c = i / FEW_N;
            if (c >= (int)it.count) continue;
            float sum = 0;
#pragma unroll
            for (int s = 0; s < SEGMENTS; s++) sum += part[s][n][c];
            src.put(it.first + c, n0 + n, sum);
        }
        __syncthreads();                        /* the parts may be written again */
    };
    run_tiles<Weights, TILES>(src, it, tile_range{ (int)blockIdx.x * FEW_N, (int)gridDim.x * FEW_N,
                                                   SEGMENTS * warp / TILES_WARPS, SEGMENTS * (warp + 1) / TILES_WARPS },
                              take, put);
}

/* What an expert's first two matrices give, activated (packing.cuh) and packed: out [pairs, columns]. */
struct activation {
    const float *weight;        /* [rows, per_token] */
    int per_token;
    float limit;
    uint16_t *out;
};

/* GATED_N gates and ups by 8 rows at a time, HALVES warps for FEW_N of either, each with its part of K; then one warp
 * packs them. */
enum { GATED_N = 32, GATED_WARPS = TILES_WARPS };
template <int HALVES>
static __global__ void __launch_bounds__(32 * GATED_WARPS * HALVES, TILES_PER_SM / HALVES)
    gated_kernel(source src, activation to) {
    enum { LATE = HALVES == 2 ? SEGMENTS / 2 : 0 };         /* segments that are added to the sum of those before */
    __shared__ float part[1 + LATE][2][8][GATED_N + 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, up = warp % 2, first = warp / 2 % 2 * FEW_N,
              half = warp / GATED_WARPS, c = 2 * (lane % 4), n = first + lane / 4;
    work_item it;
    if (!src.early) await_launch();
    if (!src.item(8, up, &it)) return;
    own_sums<1> own;
    own.clear();
    auto keep = [&](int at, const float (&sum)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) part[at][up][c + (i & 1)][n + 8 * (i / 2)] = sum[i];
    };
    auto take = [&](int seg, const float (&acc)[1][4]) {
        if (half == 0) own.add(acc);
        else keep(1 + seg - (SEGMENTS - LATE), acc[0]);
    };
    auto value = [&](int which, int column, int output) {   /* as bf16 */
        float sum = part[0][which][column][output];
#pragma unroll
        for (int s = 0; s < LATE; s++) sum += part[1 + s][which][column][output];
        return rounded(sum);
    };
    auto pack = [&](int n0) {
        if (half == 0) keep(0, own.sum[0]);
        own.clear();
        __syncthreads();
        if (warp == 0) {
            uint32_t column = lane / 4, p[4], slots = to.per_token + 1;
            bool there = column < it.count;
            uint32_t pair = src.entry(it.first + (there ? column : 0));
            float a[8], b[8], v[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                a[j] = value(0, column, lane % 4 * 8 + j);
                b[j] = value(1, column, lane % 4 * 8 + j);
            }
            activate8(a, b, to.weight[pair / slots * to.per_token + pair % slots], to.limit, v);
            pack8(v, true, p);
            if (there) store8(to.out + (uint64_t)pair * src.n_count, n0 + lane % 4 * 8, p, false);
        }
        __syncthreads();
    };
    run_tiles<fp4_rows, 1>(src, it, tile_range{ (int)blockIdx.x * GATED_N + first, (int)gridDim.x * GATED_N,
                                                half * SEGMENTS / HALVES, (half + 1) * SEGMENTS / HALVES }, take, pack);
}

#endif
