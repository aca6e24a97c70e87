/* Index scores on tensor cores. */
#include "engine/cuda/pairs.cuh"
#include "engine/cuda/tensor.cuh"
#include "engine/cuda/wgmma.cuh"

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

/* index_dim 128: a thread of a quad holds 32 channels of a head or an entry, in pairs as in tensor.cuh. Up to
 * 16 * TILES heads, a multiple of 16. A warp keeps its row's queries in registers and walks `entries` entries, eight at
 * a time. */
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
