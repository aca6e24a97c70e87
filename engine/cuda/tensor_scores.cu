/* Index scores on tensor cores. */
#include "engine/cuda/pairs.cuh"
#include "engine/cuda/tensor.cuh"
#include "engine/cuda/wgmma.cuh"

enum { SCORE_WARPS = 4 };

/* What a row's list is: entries, or those of its pool. Numbers fit 32 bits, in which it is quick to divide. */
struct scored_list {
    const int32_t *pool;                /* NULL: all entries */
    uint32_t block, visible, count;

    __device__ __forceinline__ scored_list(const dev &d, uint32_t row, int ratio, bool pooled)
        : pool(pooled ? d.pool + (uint64_t)row * d.candidate_blocks : NULL), block((uint32_t)d.candidate_block),
          visible((d.row_pos[row] + 1) / (uint32_t)ratio),
          count(pooled ? (uint32_t)d.pool_count[row] * block : visible) {}

    /* Entry number n; -1 past the end. */
    __device__ __forceinline__ int32_t entry(uint32_t n) const {
        if (n >= count) return -1;
        uint32_t j = pool ? (uint32_t)pool[n / block] * block + n % block : n;
        return j < visible ? (int32_t)j : -1;
    }
};

/* A thread's share of an entry's index record: 32 channels and their scale. */
struct index_share {
    uint32_t words[4];
    uint8_t scale;
    bool there;
};

static __device__ __forceinline__ index_share share_of(const dev &d, const cedar_page_part &p, int32_t seq, int32_t j,
                                                       int t) {
    index_share r = { { 0, 0, 0, 0 }, 127, j >= 0 };
    if (j < 0) return r;
    uint32_t at = (uint32_t)j % p.entries;
    const uint8_t *page = dev_page(d, seq, (uint32_t)j / p.entries);
    const uint8_t *code = page + p.index_codes + (uint64_t)at * d.l->index_code_bytes + 16 * t;
    uint2 lo = load_words(code), hi = load_words(code + 8);
    r.words[0] = lo.x; r.words[1] = lo.y; r.words[2] = hi.x; r.words[3] = hi.y;
    r.scale = page[p.index_scales + (uint64_t)at * d.l->index_scale_bytes + t];
    return r;
}

/* A row's queries in the order in which a warp's lanes keep them: q[h][k][r] of lane 4 g + t is word ((h * 8 + k) * 32
 * + 4 g + t) * 4 + r. A thread makes the four words of 8 channels of a head. */
static __device__ __forceinline__ void weave_queries(const float *iq, int heads, int tiles, uint32_t *woven) {
    for (int i = threadIdx.x; i < tiles * 16 * 16; i += blockDim.x) {
        int head = i / 16, t = i % 16 / 4, k = i % 4, h = head / 16, r = head % 16 / 8, g = head % 8;
        float4 lo = make_float4(0, 0, 0, 0), hi = lo;
        if (head < heads) {
            lo = *(const float4 *)(iq + head * 128 + 32 * t + 8 * k);
            hi = *(const float4 *)(iq + head * 128 + 32 * t + 8 * k + 4);
        }
        uint32_t *w = woven + ((h * 8 + 2 * k) * 32 + 4 * g + t) * 4 + r;
        w[0] = pair_of(lo.x, hi.x);
        w[2] = pair_of(lo.y, hi.y);
        w[128] = pair_of(lo.z, hi.z);
        w[130] = pair_of(lo.w, hi.w);
    }
}

/* index_dim 128: a thread of a quad holds 32 channels of a head or an entry, in pairs as in tensor.cuh. Up to
 * 16 * TILES heads, a multiple of 16. A warp keeps its row's queries in registers and walks a share of the list, at
 * least `least` entries, eight at a time; the next ones are loaded meanwhile. */
template <int TILES>
static __global__ void __launch_bounds__(32 * SCORE_WARPS)
    scores_kernel(dev d, uint32_t first, const float *iq_in, const float *g_in, int part, int ratio, bool pooled,
                  uint32_t count_max, uint32_t least) {
    __shared__ uint4 woven[TILES * 8 * 32];
    allow_launch();
    uint32_t i = first + blockIdx.y, row = d.active[i];
    int32_t seq = d.entries[d.row_entry[row]].seq;
    const cedar_page_part &p = d.l->part[part];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    scored_list list(d, row, ratio, pooled);
    uint32_t listed = list.count < count_max ? list.count : count_max, warps = gridDim.x * SCORE_WARPS,
             share = (listed + warps - 1) / warps;
    share = share < least ? least : (share + 7) / 8 * 8;
    if (blockIdx.x * SCORE_WARPS * share >= listed) return;
    uint32_t n0 = (blockIdx.x * SCORE_WARPS + warp) * share, end = n0 + share < listed ? n0 + share : listed;
    float *out = (float *)d.scores + (uint64_t)blockIdx.y * d.context;
    index_share next = share_of(d, p, seq, n0 < end ? list.entry(n0 + g) : -1, t);
    weave_queries(iq_in + (uint64_t)i * d.index_heads * 128, d.index_heads, TILES, (uint32_t *)woven);
    const float *gate = g_in + (uint64_t)i * d.index_heads;
    uint32_t q[TILES][8][4];
    float gates[TILES][2];
    __syncthreads();
#pragma unroll
    for (int h = 0; h < TILES; h++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int head = 16 * h + g + 8 * r;
            gates[h][r] = head < d.index_heads ? gate[head] : 0;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            uint4 v = woven[(h * 8 + k) * 32 + lane];
            q[h][k][0] = v.x; q[h][k][1] = v.y; q[h][k][2] = v.z; q[h][k][3] = v.w;
        }
    }
    for (uint32_t n = n0; n < end; n += 8) {
        index_share now = next;
        if (n + 8 < end) next = share_of(d, p, seq, list.entry(n + 8 + g), t);
        factor_value scaled(ue8m0(now.scale), E2M1_GAP);
        float c[TILES][4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t b[4];
            e2m1_crossed(now.words[k], scaled, b);
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
        uint32_t there = __ballot_sync(0xffffffffu, now.there) >> 8 * t, m = n + 2 * t;    /* entry n + g: lane 4 g */
        if (g == 0) {
            if (m < count_max) out[m] = there & 1 ? sum0 : -INFINITY;
            if (m + 1 < count_max) out[m + 1] = there & 16 ? sum1 : -INFINITY;
        }
    }
}

void tensor_scores(const dev &d, uint32_t first, uint32_t n, const float *iq, const float *g, int part, int ratio,
                   bool pooled, cudaStream_t s) {
    enum { BLOCKS = 528 };      /* what a GPU holds at once */
    int64_t count = pooled ? (int64_t)d.candidate_blocks * d.candidate_block : d.context;
    if (count > d.context) count = d.context;
    /* few rows: shares as short as fill the GPU; many rows: a long walk spares loading the queries again */
    uint32_t least = few_rows(n) ? 8 : 256, each = few_rows(n) ? BLOCKS / n : UINT32_MAX;
    int64_t blocks = (count + SCORE_WARPS * least - 1) / (SCORE_WARPS * least);
    dim3 grid((unsigned)(blocks < each ? blocks : each), n);
    auto kernel = d.index_heads <= 32 ? scores_kernel<2> : scores_kernel<4>;
    kernel<<<grid, 32 * SCORE_WARPS, 0, s>>>(d, first, iq, g, part, ratio, pooled, (uint32_t)count, least);
}
