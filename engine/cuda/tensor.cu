/* Linear layers on tensor cores: which kernel, which tiles, launches. */
#include "engine/cuda/tensor_few.cuh"
#include "engine/cuda/tensor_many.cuh"
#include "engine/cuda/tensor_tiles.cuh"

static unsigned ceil_div(int64_t a, int64_t b) { return (unsigned)((a + b - 1) / b); }

int tensor_scale_max(int kind) { return 254 - (kind == CEDAR_W_FP4 ? E2M1_GAP : E4M3_GAP); }

template <class Weights, int WIDTH> static cudaError_t allow_shared() {
    int bytes = stage<Weights, WIDTH>::COUNT * stage<Weights, WIDTH>::BYTES;
    cudaError_t e =
        cudaFuncSetAttribute(many_kernel<Weights, WIDTH>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e) return e;
    return cudaFuncSetAttribute(together_kernel<Weights, WIDTH>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <class Weights, int TILES> static cudaError_t allow_few() {
    cudaError_t e = cudaFuncSetAttribute(few_kernel<Weights, TILES, true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         few_stage<Weights, true>::BLOCK_BYTES);
    if (e) return e;
    return cudaFuncSetAttribute(few_kernel<Weights, TILES, false>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                few_stage<Weights, false>::BLOCK_BYTES);
}

template <class Weights, int TILES> static cudaError_t allow_tiles() {
    return cudaFuncSetAttribute(tiles_kernel<Weights, TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                tiles_stage<Weights, TILES>::BLOCK_BYTES);
}

template <class Weights, int TILES> static cudaError_t allow_team() {
    return cudaFuncSetAttribute(team_kernel<Weights, TILES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                tiles_stage<Weights, TILES>::BLOCK_BYTES);
}

template <int HALVES> static cudaError_t allow_gated() {
    return cudaFuncSetAttribute(gated_kernel<HALVES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                HALVES * tiles_stage<fp4_rows, 1>::BLOCK_BYTES);
}

template <class Weights> static cudaError_t allow_many() {
    cudaError_t e = allow_shared<Weights, 32>();
    if (!e) e = allow_shared<Weights, 64>();
    return e ? e : allow_shared<Weights, 128>();
}

template <class Weights> static cudaError_t allow_dense() {
    cudaError_t e = allow_few<Weights, 1>();
    if (!e) e = allow_few<Weights, 2>();
    if (!e) e = allow_few<Weights, 4>();
    return e ? e : allow_many<Weights>();
}

static cudaError_t allow_dense_tiles() {
    cudaError_t e = allow_tiles<fp8_tiles, 1>();
    if (!e) e = allow_tiles<fp8_tiles, 2>();
    if (!e) e = allow_tiles<fp8_tiles, 4>();
    if (!e) e = allow_team<fp8_tiles, 1>();
    return e ? e : allow_team<fp8_tiles, 2>();
}

/* Tiles of few rows' pairs are eight wide (tensor_tiles). */
static cudaError_t allow_experts() {
    cudaError_t e = allow_few<fp4_rows, 1>();
    if (!e) e = allow_tiles<fp4_rows, 1>();
    if (!e) e = allow_team<fp4_rows, 1>();
    if (!e) e = allow_gated<1>();
    if (!e) e = allow_gated<2>();
    return e ? e : allow_many<fp4_rows>();
}

/* The driver's function that describes an array to the hardware that copies it; NULL if there is none. */
typedef CUresult (*encode_map)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                               const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                               CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_map find_encode(void) {
    void *found = NULL;
    cudaDriverEntryPointQueryResult how;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &how);
    return e == cudaSuccess && how == cudaDriverEntryPointSuccess ? (encode_map)found : NULL;
}

static encode_map encoder(void) {
    static const encode_map found = find_encode();
    return found;
}

cudaError_t tensor_prepare(void) {
    if ((DENSE_TOGETHER || EXPERTS_TOGETHER) && !encoder()) return cudaErrorNotSupported;
    cudaError_t e = allow_dense<fp8_tiles>();
    if (!e) e = allow_dense<bf16_rows>();
    if (!e) e = allow_dense_tiles();
    return e ? e : allow_experts();
}

enum { MULTIPROCESSORS = 132 };

/* Blocks along the tiles of outputs, `others` times, so that as little as possible waits for a last round: a block
 * costs its tiles and about one more to begin. */
static unsigned few_blocks(unsigned tiles, unsigned others, unsigned at_once) {
    unsigned best = 1, least = ~0u;
    for (unsigned per_block = 1; per_block <= tiles && per_block <= 64; per_block++) {
        unsigned blocks = ceil_div(tiles, per_block),
                 cost = ceil_div((int64_t)blocks * others, at_once) * (per_block + 1);
        if (cost >= least) continue;
        least = cost;
        best = blocks;
    }
    return best;
}

/* The same for experts' pairs. How many of their tiles have any is not known when a step is planned, and blocks of
 * those that have none end at once: so they are as many as a few rounds of what runs at once, and even out. */
static unsigned expert_blocks(unsigned tiles, unsigned others, unsigned at_once) {
    enum { ROUNDS = 8 };
    unsigned most = ceil_div((int64_t)ROUNDS * at_once, others);
    return most < tiles ? ceil_div(tiles, ceil_div(tiles, most)) : tiles;
}

/* Whether a tile of n_count outputs, `others` times, gets so many warps only: each multiprocessor must then have enough
 * of them to hide waiting, and run_tiles asks for whole tiles, whole blocks of K, and one a segment. */
static bool warps_a_tile(int64_t n_count, int64_t k_count, unsigned others, unsigned warps) {
    enum { WARPS_AT_LEAST = 12 };
    return n_count % FEW_N == 0 && k_count % K_BLOCK == 0 && k_count >= SEGMENTS * K_BLOCK &&
           n_count / FEW_N * others * warps >= WARPS_AT_LEAST * MULTIPROCESSORS;
}

/* A kernel whose blocks take so many outputs at a time; tiles: of rows. */
template <class Weights, int TILES>
static void launch_tiles(void (*kernel)(source), unsigned outputs, unsigned tiles, unsigned z, const source &src,
                         chain s) {
    unsigned at_once = MULTIPROCESSORS * (src.aside ? 1 : TILES_PER_SM);
    dim3 grid((src.experts ? expert_blocks : few_blocks)(ceil_div(src.n_count, outputs), tiles * z, at_once), tiles, z);
    launch_chained(kernel, grid, 32 * TILES_WARPS, tiles_stage<Weights, TILES>::BLOCK_BYTES, s, src);
}

template <class Weights, int TILES> static void launch_few(unsigned tiles, unsigned z, const source &src, chain s) {
    unsigned others = tiles * z, at_once = MULTIPROCESSORS * (unsigned)few_per_sm<Weights>(TILES, false);
    if constexpr (Weights::SCALED) {
        if (warps_a_tile(src.n_count, src.k_count, others, 1))
            return launch_tiles<Weights, TILES>(tiles_kernel<Weights, TILES>, FEW_N * TILES_WARPS, tiles, z, src, s);
    }
    if constexpr (Weights::SCALED && TILES < 4) {
        if (warps_a_tile(src.n_count, src.k_count, others, TILES_WARPS))
            return launch_tiles<Weights, TILES>(team_kernel<Weights, TILES>, FEW_N, tiles, z, src, s);
    }
    dim3 grid(few_blocks(ceil_div(src.n_count, FEW_N), others, at_once), tiles, z);
    if (grid.x * grid.y * grid.z <= MULTIPROCESSORS)
        launch_chained(few_kernel<Weights, TILES, true>, grid, 32 * FEW_WARPS, few_stage<Weights, true>::BLOCK_BYTES, s,
                       src);
    else
        launch_chained(few_kernel<Weights, TILES, false>, grid, 32 * FEW_WARPS, few_stage<Weights, false>::BLOCK_BYTES,
                       s, src);
}

/* A map of the rows that a launch reads, for boxes of 64 columns and a block's share of the rows of a tile: columns,
 * layers (the rows that lie between a row and the next), rows. False if blocks cannot load together: rows that are
 * listed lie anywhere, and tiles of outputs must come in twos. */
static bool rows_map(const source &src, dim3 grid, int width, CUtensorMap *map) {
    int64_t last_layer = (int64_t)(grid.z - 1) * src.z_offset, k = padded(src.k_count);
    bool allowed = src.experts ? src.tiles.sorted : DENSE_TOGETHER && !src.list;
    if (!allowed || grid.x % TOGETHER || last_layer >= src.stride) return false;
    cuuint64_t counts[3] = { (cuuint64_t)k, (cuuint64_t)src.stride, src.rows },
               steps[2] = { (cuuint64_t)k * 2, (cuuint64_t)(k * 2 * src.stride) };
    cuuint32_t box[3] = { 64, 1, (cuuint32_t)(width / TOGETHER) }, each[3] = { 1, 1, 1 };
    return encoder()(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)(src.x + src.offset * k), counts, steps, box,
                     each, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class Weights, int WIDTH> static void launch_width(dim3 grid, const source &src, chain s) {
    typedef stage<Weights, WIDTH> stage;
    unsigned threads = 32 * MANY_WARPS, shared = stage::COUNT * stage::BYTES;
    CUtensorMap map;
    if (!s.apart && rows_map(src, grid, WIDTH, &map))
        launch_cluster(together_kernel<Weights, WIDTH>, grid, TOGETHER, threads, shared, chain{ s.stream, false }, src,
                       map);
    else many_kernel<Weights, WIDTH><<<grid, threads, shared, s.stream>>>(src);
}

template <class Weights>
static void launch_many(const source &src, unsigned tiles, unsigned z, int width, chain s) {
    dim3 grid(ceil_div(src.n_count, MANY_N), tiles, z);
    if (width == 32) launch_width<Weights, 32>(grid, src, s);
    else if (width == 64) launch_width<Weights, 64>(grid, src, s);
    else launch_width<Weights, 128>(grid, src, s);
}

/* The widest tile that still gives every multiprocessor one: narrow tiles decode weights once more each. */
static int many_width(const source &src, unsigned z) {
    for (int width = 128; width > 32; width /= 2)
        if (ceil_div(src.n_count, MANY_N) * ceil_div(src.rows, width) * z >= MULTIPROCESSORS) return width;
    return 32;
}

static source dense_source(const dev_weight &w0, const dev_weight &w1, const operand &x, uint32_t rows, int64_t n_count,
                           const result &y0, void *y1) {
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
    src.y[0] = y0.y;
    src.y[1] = y1;
    src.ldy = y0.ld;
    src.kind = y0.kind;
    src.n_count = n_count;
    src.k_count = w0.cols;
    src.early = true;
    return src;
}

template <class Weights> static void launch_weights(const source &src, bool woven, unsigned z, chain s) {
    if (woven) {
        int width = many_width(src, z);
        launch_many<Weights>(src, ceil_div(src.rows, width), z, width, s);
    } else if (src.rows <= 8) {
        launch_few<Weights, 1>(1, z, src, s);
    } else if (src.rows <= 16) {
        launch_few<Weights, 2>(1, z, src, s);
    } else {
        launch_few<Weights, 4>(ceil_div(src.rows, 32), z, src, s);
    }
}

static void launch_dense(const source &src, bool woven, unsigned z, chain s) {
    if (src.dense[0].kind == CEDAR_W_BF16) launch_weights<bf16_rows>(src, woven, z, s);
    else launch_weights<fp8_tiles>(src, woven, z, s);
}

void tensor_linear(const dev_weight &w, const operand &x, uint32_t rows, const result &y, chain s) {
    launch_dense(dense_source(w, w, x, rows, w.rows, y, y.y), x.woven, 1, s);
}

void tensor_linear_aside(const dev_weight &w, const operand &x, uint32_t rows, const result &y, chain s) {
    source src = dense_source(w, w, x, rows, w.rows, y, y.y);
    src.aside = true;
    launch_dense(src, x.woven, 1, s);
}

void tensor_linear_two(const dev_weight &w0, const dev_weight &w1, const operand &x, uint32_t rows, const result &y0,
                       void *y1, chain s) {
    source src = dense_source(w0, w1, x, rows, w0.rows, y0, y1);
    src.z_dense = 1;
    src.z_y = 1;
    launch_dense(src, x.woven, 2, s);
}

/* With a multiprocessor for each tile of both, so that neither waits for the other. */
template <class Weights, int TILES> static void launch_beside(source src, chain s) {
    src.split = ceil_div(src.n_count, FEW_N);
    unsigned blocks = src.split + ceil_div(src.n_second, FEW_N);
    launch_chained(few_kernel<Weights, TILES, true>, blocks, 32 * FEW_WARPS, few_stage<Weights, true>::BLOCK_BYTES, s,
                   src);
}

void tensor_linear_beside(const dev_weight &w0, const dev_weight &w1, const operand &x, uint32_t rows, const result &y0,
                          void *y1, chain s) {
    source src = dense_source(w0, w1, x, rows, w0.rows, y0, y1);
    src.n_second = w1.rows;
    unsigned blocks = ceil_div(w0.rows, FEW_N) + ceil_div(w1.rows, FEW_N);
    bool fits = few_rows(rows) && blocks <= MULTIPROCESSORS && w0.kind == CEDAR_W_TILES && w1.kind == CEDAR_W_TILES;
    if (!fits) {
        tensor_linear(w0, x, rows, y0, s);
        tensor_linear(w1, x, rows, result{ y1, w1.rows, y0.kind }, s);
    } else if (rows <= 8) {
        launch_beside<fp8_tiles, 1>(src, s);
    } else if (rows <= 16) {
        launch_beside<fp8_tiles, 2>(src, s);
    } else {
        launch_beside<fp8_tiles, 4>(src, s);
    }
}

void tensor_groups(const dev_weight &w, int groups, const operand &x, uint32_t rows, const result &y, chain s) {
    source src = dense_source(w, w, x, rows, w.rows / groups, y, y.y);
    src.z_offset = 1;
    src.z_rows = (int)src.n_count;
    src.z_columns = src.n_count;
    launch_dense(src, x.woven, (unsigned)groups, s);
}

static source expert_source(const dev_weight *list, int list_step, int64_t n_count, int64_t k_count, const uint16_t *x,
                            int source_div, const expert_tiles &t, bool early) {
    source src = {};
    src.experts = list;
    src.list = t.pairs;
    src.div = source_div;
    src.stride = 1;
    src.rows = t.pairs_max;
    src.tiles = t;
    src.x = x;
    src.n_count = n_count;
    src.k_count = k_count;
    src.z_list = list_step;
    src.early = early;
    return src;
}

void tensor_experts(const dev_weight *list, int lists, int list_step, int64_t n_count, int64_t k_count,
                    const uint16_t *x, bool woven, int source_div, const expert_tiles &t, bool early,
                    const result &y, void *y_second, chain s) {
    source src = expert_source(list, list_step, n_count, k_count, x, source_div, t, early);
    src.y[0] = y.y;
    src.y[1] = y_second;
    src.ldy = y.ld;
    src.kind = y.kind;
    src.z_y = 1;
    if (woven) launch_many<fp4_rows>(src, t.tiles_max, (unsigned)lists, (int)t.width, s);
    else launch_few<fp4_rows, 1>(t.tiles_max, (unsigned)lists, src, s);
}

/* Warps a tile of gates or ups in one launch with their activation, 0: that launch is not for these. */
static unsigned gated_halves(const dev_moe &m, int64_t k_count, bool woven, const expert_tiles &t) {
    if (woven || m.moe_dim % K_BLOCK) return 0;     /* rows have no padding to fill, and end with whole steps */
    if (warps_a_tile(m.moe_dim, k_count, 2 * t.tiles_max, 1)) return 1;
    return warps_a_tile(m.moe_dim, k_count, 2 * t.tiles_max, 2) ? 2 : 0;
}

bool tensor_gated_can(const dev_moe &m, int64_t k_count, bool woven, const expert_tiles &t) {
    return gated_halves(m, k_count, woven, t) > 0;
}

template <int HALVES> static void launch_gated(const source &src, const activation &to, unsigned tiles, chain s) {
    unsigned at_once = MULTIPROCESSORS * TILES_PER_SM / HALVES;
    dim3 grid(expert_blocks(ceil_div(src.n_count, GATED_N), tiles, at_once), tiles);
    launch_chained(gated_kernel<HALVES>, grid, 32 * GATED_WARPS * HALVES,
                   HALVES * tiles_stage<fp4_rows, 1>::BLOCK_BYTES, s, src, to);
}

void tensor_gated(const dev_moe &m, int64_t k_count, const uint16_t *x, const expert_tiles &t, uint16_t *out,
                  chain s) {
    int slots = m.per_token + 1;
    source src = expert_source(m.w1, 2 * m.experts, m.moe_dim, k_count, x, slots, t, false);
    activation to = { (const float *)m.weight, m.per_token, (float)m.limit, out };
    if (gated_halves(m, k_count, false, t) == 1) launch_gated<1>(src, to, t.tiles_max, s);
    else launch_gated<2>(src, to, t.tiles_max, s);
}
