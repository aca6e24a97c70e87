/* Indexer: quantised queries, scores, exact top-k with one tie rule, candidate pools (spec/model.md 2.7). */
#include "engine/cuda/ops.cuh"

/* iq [place, heads, dim] rotated -> its FP4Q32 values; g scaled. One warp per (row, head) and block of 32. */
template <class A> static __global__ void query_kernel(dev d, void *iq, void *g, typename A::real factor) {
    typedef typename A::real real;
    int blocks = d.index_heads * d.index_dim / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int b = warp; b < blocks; b += blockDim.x / 32) {
        real *x = (real *)iq + (uint64_t)blockIdx.x * d.index_heads * d.index_dim + b * 32 + lane;
        double s = ue8m0_value(pow2_ceil_byte(fmax(group_max<32>((double)*x), 6 * 0x1p-126), 1.0f / 6));
        *x = (real)(e2m1_value(e2m1_encode((double)*x, s)) * s);
    }
    if (threadIdx.x < d.index_heads) ((real *)g)[(uint64_t)blockIdx.x * d.index_heads + threadIdx.x] *= factor;
}

template <class A> void launch_index_query(const dev &d, uint32_t n, void *iq, void *g, cudaStream_t s) {
    query_kernel<A><<<n, 128, 0, s>>>(
        d, iq, g, (typename A::real)(pow((double)d.index_dim, -0.5) * pow((double)d.index_heads, -0.5)));
}

/* Entry number `n` of the row's list: n itself, or inside its pool; -1 past the end. */
static __device__ int64_t entry_at(const dev &d, uint32_t row, int64_t n, int64_t visible, bool pooled) {
    int64_t j = n;
    if (pooled) {
        int64_t b = n / d.candidate_block;
        if (b >= d.pool_count[row]) return -1;
        j = (int64_t)d.pool[(uint64_t)row * d.candidate_blocks + b] * d.candidate_block + n % d.candidate_block;
    }
    return j < visible ? j : -1;
}

/* Scores of the rows [first, first + gridDim.y) of the list; scores [row in batch, context]. */
template <class A>
static __global__ void scores_kernel(dev d, uint32_t first, const void *iq_in, const void *g_in, int part, int ratio,
                                     bool pooled, int64_t count_max) {
    typedef typename A::real real;
    uint32_t i = first + blockIdx.y, row = d.active[i];
    const dev_entry &e = d.entries[d.row_entry[row]];
    const cedar_page_part &p = d.l->part[part];
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, visible = (d.row_pos[row] + 1) / ratio;
    int64_t j = n < count_max ? entry_at(d, row, n, visible, pooled) : -1;
    if (n >= count_max) return;
    real sum = -INFINITY;
    if (j >= 0) {
        const uint8_t *page = dev_page(d, e.seq, (uint32_t)(j / p.entries));
        const uint8_t *code = page + p.index_codes + (uint64_t)(j % p.entries) * d.l->index_code_bytes;
        const uint8_t *scale = page + p.index_scales + (uint64_t)(j % p.entries) * d.l->index_scale_bytes;
        const real *iq = (const real *)iq_in + (uint64_t)i * d.index_heads * d.index_dim,
                   *g = (const real *)g_in + (uint64_t)i * d.index_heads;
        sum = 0;
        for (int h = 0; h < d.index_heads; h++) {
            double dot = 0;
            for (int k = 0; k < d.index_dim; k++) {
                uint8_t b = code[k / 2];
                dot += (double)iq[h * d.index_dim + k] *
                       (e2m1_value(k & 1 ? b >> 4 : b & 15) * ue8m0_value(scale[k / 32]));
            }
            real v = (real)dot;
            sum += g[h] * (v > 0 ? v : 0);
        }
    }
    ((real *)d.scores)[(uint64_t)blockIdx.y * d.context + n] = sum;
}

static int64_t list_max(const dev &d, bool pooled) {
    int64_t pool = (int64_t)d.candidate_blocks * d.candidate_block;
    return pooled && pool < d.context ? pool : d.context;
}

template <class A>
void launch_scores(const dev &d, uint32_t first, uint32_t n, const void *iq, const void *g, int part, int ratio,
                   bool pooled, cudaStream_t s) {
    int64_t count = list_max(d, pooled);
    scores_kernel<A>
        <<<dim3((unsigned)((count + 127) / 128), n), 128, 0, s>>>(d, first, iq, g, part, ratio, pooled, count);
}

/* --- exact selection ---------------------------------------------------------------------------------------------- */

/* Monotone integer key of a score: larger score, larger key; -0 equals +0; -inf and NaN give 0, which is never
 * picked. */
static __device__ unsigned long long key_of(double s) {
    if (!(s > -INFINITY)) return 0;
    unsigned long long u = (unsigned long long)__double_as_longlong(s + 0.0);
    return u >> 63 ? ~u : u | 0x8000000000000000ull;
}
static __device__ unsigned key_of(float s) {
    if (!(s > -INFINITY)) return 0;
    unsigned u = __float_as_uint(s + 0.0f);
    return u >> 31 ? ~u : u | 0x80000000u;
}
template <class R> struct key_type;
template <> struct key_type<double> { typedef unsigned long long type; };
template <> struct key_type<float> { typedef unsigned type; };

/* Picks the best k of score(0) .. score(count - 1) by one block: radix select of the k-th key, then ascending
 * compaction, taking the lowest ids among equal keys. name(i) is what is written. Returns how many. */
template <class R, class Score, class Name>
static __device__ int select_block(Score score, int64_t count, int k, int32_t *out, Name name) {
    typedef typename key_type<R>::type Key;
    enum { TOP = 8 * sizeof(Key) - 8 };
    __shared__ unsigned hist[256];
    __shared__ Key prefix;
    __shared__ unsigned long long remaining;
    if (threadIdx.x == 0) {
        prefix = 0;
        remaining = k;
    }
    __syncthreads();
    for (int shift = TOP; shift >= 0; shift -= 8) {
        for (int b = threadIdx.x; b < 256; b += blockDim.x) hist[b] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
            Key u = key_of(score(i));
            /* counts: order cannot matter */
            if (u && (shift == TOP || u >> (shift + 8) == prefix >> (shift + 8)))
                atomicAdd(&hist[u >> shift & 255], 1u);
        }
        __syncthreads();
        /* the bin of the k-th key: lane l of a warp has bins 255 - 8 l down to 248 - 8 l */
        if (threadIdx.x < 32) {
            int lane = threadIdx.x, top = 255 - 8 * lane;
            unsigned long long left = remaining;
            unsigned mine = 0, upto;
            for (int i = 0; i < 8; i++) mine += hist[top - i];
            upto = mine;
            for (int o = 1; o < 32; o *= 2) {
                unsigned other = __shfl_up_sync(0xffffffffu, upto, o);
                if (lane >= o) upto += other;
            }
            unsigned reached = __ballot_sync(0xffffffffu, upto >= left);
            int at = reached ? __ffs(reached) - 1 : 31;     /* fewer keys than k: the lowest bin */
            if (lane == at) {
                unsigned long long above = upto - mine;
                int b = top;
                for (; b > top - 7 && above + hist[b] < left; b--) above += hist[b];
                remaining = left - above;
                prefix |= (Key)b << shift;
            }
        }
        __syncthreads();
    }
    /* now prefix is the k-th largest key (or the smallest there is), and `remaining` of its equals are taken */
    /* each thread writes those of a stretch, after all of the threads before it */
    int64_t stretch = (count + blockDim.x - 1) / blockDim.x, i0 = threadIdx.x * stretch,
            i1 = i0 + stretch < count ? i0 + stretch : count;
    unsigned mine_above = 0, mine_equal = 0, all_above, all_equal, most = (unsigned)remaining;
    for (int64_t i = i0; i < i1; i++) {
        Key u = key_of(score(i));
        mine_above += u > prefix;
        mine_equal += u && u == prefix;
    }
    unsigned above = scan_block(mine_above, &all_above), equal = scan_block(mine_equal, &all_equal);
    for (int64_t i = i0; i < i1; i++) {
        Key u = key_of(score(i));
        bool taken = u > prefix || (u && u == prefix && equal < most);
        if (taken) out[above + (equal < most ? equal : most)] = name(i);
        above += u > prefix;
        equal += u && u == prefix;
    }
    int n = (int)(all_above + (all_equal < most ? all_equal : most));
    for (int i = n + threadIdx.x; i < k; i += blockDim.x) out[i] = -1;
    __syncthreads();
    return n;
}

struct entry_name {
    dev d;
    uint32_t row;
    int64_t visible;
    bool pooled;
    __device__ int32_t operator()(int64_t n) const { return (int32_t)entry_at(d, row, n, visible, pooled); }
};

/* Numbers from `from` on. */
struct number_name {
    int64_t from;
    __device__ int32_t operator()(int64_t n) const { return (int32_t)(from + n); }
};

template <class R> struct scores_in_order {
    const R *score;
    __device__ R operator()(int64_t i) const { return score[i]; }
};

/* Of listed numbers; -1 is none. */
template <class R> struct scores_of_list {
    const R *score;
    const int32_t *list;
    __device__ R operator()(int64_t i) const { return list[i] < 0 ? (R)-INFINITY : score[list[i]]; }
};

struct listed_name {
    entry_name entry;
    const int32_t *list;
    __device__ int32_t operator()(int64_t i) const { return entry(list[i]); }
};

static __device__ int64_t list_count(const dev &d, uint32_t row, int64_t visible, bool pooled) {
    int64_t count = pooled ? (int64_t)d.pool_count[row] * d.candidate_block : visible;
    return count < d.context ? count : d.context;
}

template <class A> static __global__ void select_kernel(dev d, uint32_t first, int ratio, bool pooled) {
    typedef typename A::real real;
    uint32_t row = d.active[first + blockIdx.x];
    int64_t visible = (d.row_pos[row] + 1) / ratio;
    select_block<real>(scores_in_order<real>{ (const real *)d.scores + (uint64_t)blockIdx.x * d.context },
                       list_count(d, row, visible, pooled), d.topk, d.topk_ids + (uint64_t)row * d.topk,
                       entry_name{ d, row, visible, pooled });
}

/* A long list of few rows: the best of each slice by a block of its own, then the best of those. Slices and what they
 * keep stand in ascending order, so equal keys are taken as by one block. What slices keep lies in block_scores. */
enum { SLICE = 8192, SPLIT_ROWS = 16 };

template <class A> static __global__ void select_slice(dev d, uint32_t first, int ratio, bool pooled) {
    typedef typename A::real real;
    uint32_t row = d.active[first + blockIdx.y];
    int64_t from = (int64_t)blockIdx.x * SLICE, visible = (d.row_pos[row] + 1) / ratio,
            left = list_count(d, row, visible, pooled) - from;
    if (left <= 0) return;
    int32_t *list = (int32_t *)d.block_scores + (uint64_t)blockIdx.y * d.context + (uint64_t)blockIdx.x * d.topk;
    select_block<real>(scores_in_order<real>{ (const real *)d.scores + (uint64_t)blockIdx.y * d.context + from },
                       left < SLICE ? left : SLICE, d.topk, list, number_name{ from });
}

template <class A> static __global__ void select_merge(dev d, uint32_t first, int ratio, bool pooled) {
    typedef typename A::real real;
    uint32_t row = d.active[first + blockIdx.x];
    int64_t visible = (d.row_pos[row] + 1) / ratio,
            slices = (list_count(d, row, visible, pooled) + SLICE - 1) / SLICE;
    const int32_t *list = (const int32_t *)d.block_scores + (uint64_t)blockIdx.x * d.context;
    int32_t *out = d.topk_ids + (uint64_t)row * d.topk;
    listed_name name = { { d, row, visible, pooled }, list };
    if (slices > 1) {
        select_block<real>(scores_of_list<real>{ (const real *)d.scores + (uint64_t)blockIdx.x * d.context, list },
                           slices * d.topk, d.topk, out, name);
        return;
    }
    for (int i = threadIdx.x; i < d.topk; i += blockDim.x) out[i] = slices && list[i] >= 0 ? name(i) : -1;
}

template <class A>
void launch_select(const dev &d, uint32_t first, uint32_t n, int ratio, bool pooled, cudaStream_t s) {
    int64_t longest = list_max(d, pooled);
    if (n > SPLIT_ROWS || longest <= 2 * SLICE || 2 * d.topk > SLICE) {
        select_kernel<A><<<n, 1024, 0, s>>>(d, first, ratio, pooled);
        return;
    }
    select_slice<A><<<dim3((unsigned)((longest + SLICE - 1) / SLICE), n), 1024, 0, s>>>(d, first, ratio, pooled);
    select_merge<A><<<n, 1024, 0, s>>>(d, first, ratio, pooled);
}

template <class A> static __global__ void pool_kernel(dev d, uint32_t first, int ratio) {
    typedef typename A::real real;
    uint32_t row = d.active[first + blockIdx.x];
    int64_t visible = (d.row_pos[row] + 1) / ratio, blocks = (visible + d.candidate_block - 1) / d.candidate_block;
    const real *score = (const real *)d.scores + (uint64_t)blockIdx.x * d.context;
    real *best = (real *)d.block_scores + (uint64_t)blockIdx.x * d.context;
    for (int64_t b = threadIdx.x; b < blocks; b += blockDim.x) {
        real top = -INFINITY;
        for (int64_t j = b * d.candidate_block; j < (b + 1) * d.candidate_block && j < visible; j++)
            if (score[j] > top) top = score[j];
        best[b] = b == blocks - 1 ? (real)INFINITY : top;       /* the newest visible entry's block is always kept */
    }
    __syncthreads();
    int n = select_block<real>(scores_in_order<real>{ best }, blocks, d.candidate_blocks,
                               d.pool + (uint64_t)row * d.candidate_blocks, number_name{ 0 });
    if (threadIdx.x == 0) d.pool_count[row] = n;
}

template <class A> void launch_pool(const dev &d, uint32_t first, uint32_t n, int ratio, cudaStream_t s) {
    pool_kernel<A><<<n, 1024, 0, s>>>(d, first, ratio);
}

#define INSTANTIATE(A)                                                                                                 \
    template void launch_index_query<A>(const dev &, uint32_t, void *, void *, cudaStream_t);                          \
    template void launch_scores<A>(const dev &, uint32_t, uint32_t, const void *, const void *, int, int, bool,        \
                                   cudaStream_t);                                                                      \
    template void launch_select<A>(const dev &, uint32_t, uint32_t, int, bool, cudaStream_t);                          \
    template void launch_pool<A>(const dev &, uint32_t, uint32_t, int, cudaStream_t);
CEDAR_ARITHMETICS(INSTANTIATE)
