/* Pairs of rows and experts in the order in which experts are worked on; for few rows the picks, too. */
#include "engine/cuda/tensor.cuh"

void tensor_tiles(uint32_t rows, int per_token, int experts, bool woven, expert_tiles *t) {
    uint32_t pairs = rows * (uint32_t)per_token, each = pairs / (uint32_t)experts;
    t->width = !woven ? 8 : each > 64 ? 128 : each > 32 ? 64 : 32;
    t->tiles_max = pairs / t->width + (uint32_t)experts;
    if (!woven && t->tiles_max > pairs) t->tiles_max = pairs;
    t->pairs_max = pairs;
    t->sorted = EXPERTS_TOGETHER && woven && t->width == 128;   /* narrower tiles are bound by weights */
}

uint32_t tensor_tiles_max(uint32_t rows, int per_token, int experts) {
    return rows * (uint32_t)per_token / 32 + (uint32_t)experts + FEW_ROWS * (uint32_t)per_token;
}

/* Pairs of few rows by one block, a thread each: a pair's place is the number of pairs before it. id [total], and room
 * for as many, in shared memory; an id below 0, which stands for none, is larger than any as it is compared. */
static __device__ __forceinline__ void sort_block(const int32_t *id, int32_t *begins, uint32_t total, int per_token,
                                                  const expert_tiles &t) {
    uint32_t i = threadIdx.x, lower = 0, before = 0, count = 0, mine = ~0u;
    if (i < total) {                            /* warps without a pair leave the others their time */
        mine = (uint32_t)id[i];
#pragma unroll 8
        for (uint32_t k = 0; k < total; k++) {
            uint32_t its = (uint32_t)id[k];
            lower += its < mine;
            before += its == mine && k < i;
            count += its == mine;
        }
        begins[i] = before % t.width == 0;      /* the first pair of a tile describes it */
    }
    if (i < t.tiles_max) t.tile_count[i] = 0;
    __syncthreads();
    if ((int32_t)mine < 0) return;
    t.pairs[lower + before] = i / per_token * (per_token + 1) + i % per_token;
    if (!begins[i]) return;
    uint32_t tile = before / t.width;
#pragma unroll 8
    for (uint32_t k = 0; k < total; k++) tile += (uint32_t)id[k] < mine && begins[k];
    t.tile_expert[tile] = (int32_t)mine;
    t.tile_first[tile] = lower + before;
    t.tile_count[tile] = count - before < t.width ? count - before : t.width;
}

static __global__ void sort_few(const int32_t *ids, uint32_t total, int per_token, expert_tiles t) {
    extern __shared__ int32_t id[];
    await_launch();
    allow_launch();
    if (threadIdx.x < total) id[threadIdx.x] = ids[threadIdx.x];
    __syncthreads();
    sort_block(id, id + total, total, per_token, t);
}

/* Larger values have larger numbers, equal ones the same; 0: not to be picked. */
static __device__ __forceinline__ uint32_t ordered(float x) {
    if (!(x > -INFINITY)) return 0;
    uint32_t u = x == 0 ? 0 : __float_as_uint(x);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ float route_score(float x) { return real_sqrt(x > 20 ? x : real_log1p(real_exp(x))); }

/* What route_kernel does (moe.cu), a warp a row, with the scores in registers, EACH a lane; then sort_few. The same
 * bits: each score, the sum in ascending id and the division are computed alike. */
template <int EACH>
static __global__ void __launch_bounds__(32 * FEW_ROWS) route_few(dev_moe m, uint32_t total, expert_tiles t) {
    extern __shared__ int32_t id[];
    int lane = threadIdx.x % 32, row = threadIdx.x / 32, n = 0, k_count = m.per_token;
    const float *z = (const float *)m.z + (uint64_t)row * m.experts, *bias = (const float *)m.bias.data;
    int32_t *row_id = id + row * k_count;
    float *row_score = (float *)(id + total) + row * k_count, score[EACH], added[EACH];
    uint32_t key[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) added[i] = lane + 32 * i < m.experts ? bias[lane + 32 * i] : 0;
    await_launch();
    allow_launch();
#pragma unroll
    for (int i = 0; i < EACH; i++) score[i] = lane + 32 * i < m.experts ? z[lane + 32 * i] : 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        score[i] = route_score(score[i]);
        key[i] = lane + 32 * i < m.experts ? ordered(score[i] + added[i]) : 0;
    }
    /* lane k keeps the k-th pick: higher score, then lower id */
    uint32_t mine = 0x7fffffff;
    float its_score = 0;
    for (; n < k_count; n++) {
        uint32_t top = 0;
        int at = 0;
        float s = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (key[i] > top) {
                top = key[i];
                at = i;
                s = score[i];
            }
        uint32_t most = __reduce_max_sync(~0u, top);
        if (most == 0) break;
        uint32_t best = __reduce_min_sync(~0u, top == most ? (uint32_t)(lane + 32 * at) : 0x7fffffffu);
        s = __shfl_sync(~0u, s, (int)(best % 32));
        if (lane == n) {
            mine = best;
            its_score = s;
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (lane + 32 * i == (int)best) key[i] = 0;
    }
    /* ids ascending, weights divided by their sum in that order */
    int rank = 0;
    for (int k = 0; k < n; k++) rank += __shfl_sync(~0u, mine, k) < mine;
    if (lane < k_count) {
        int place = lane < n ? rank : lane;
        row_id[place] = lane < n ? (int32_t)mine : -1;
        row_score[place] = its_score;
    }
    __syncwarp();
    float s = lane < n ? row_score[lane] : 0, sum = 0;
    for (int place = 0; place < n; place++) sum += __shfl_sync(~0u, s, place);
    if (lane < k_count) {
        m.ids[row * k_count + lane] = row_id[lane];
        ((float *)m.weight)[row * k_count + lane] = lane < n ? s / (sum + (float)1e-20) * (float)m.route_scale : 0;
    }
    __syncthreads();
    sort_block(id, id + total, total, k_count, t);
}

/* For fewer rows still a warp has 32 of a row's experts, one a lane, and offers its best OFFERS to the row's first
 * warp, ids ascending. Ranks are counted: no pick waits for another, and picks come in the order of their ids. */
enum { OFFERS = 8, TEAM_WARPS = 32 / OFFERS, TEAM_ROWS = 8 };
struct __align__(16) route_team {
    float rated[TEAM_WARPS][32], offered[32];   /* -inf: not to be picked */
    float score[32], picked[OFFERS];            /* of what is offered; of the picks, then zeros */
    int32_t id[32];
};

/* Whether number `at` of 32 is among the best k: larger ones are better, and of equal ones those in front. */
static __device__ __forceinline__ bool among_best(int at, const float *of, int k) {
    float mine = of[at], better[2] = { 0, 0 };  /* counts: floats are compared and added in two instructions */
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
        float4 v = *(const float4 *)(of + i);
        better[0] += v.x > mine ? 1.0f : 0.0f;
        better[1] += v.y > mine ? 1.0f : 0.0f;
        better[0] += v.z > mine ? 1.0f : 0.0f;
        better[1] += v.w > mine ? 1.0f : 0.0f;
    }
    float rank = better[0] + better[1];
    if (__popc(__ballot_sync(~0u, rank < (float)k)) > k)    /* seldom: equal ones where the best end */
#pragma unroll 1
        for (int i = 0; i < at; i++) rank += of[i] == mine ? 1.0f : 0.0f;
    return rank < (float)k;
}

/* What route_few does, by up to TEAM_WARPS warps a row. Of one row each pick is a tile. */
static __global__ void __launch_bounds__(32 * TEAM_WARPS * TEAM_ROWS)
    route_fewer(dev_moe m, uint32_t total, expert_tiles t) {
    extern __shared__ int32_t id[];
    __shared__ route_team teams[TEAM_ROWS];
    int warps = (m.experts + 31) / 32, row = (int)threadIdx.x / 32 / warps, warp = (int)threadIdx.x / 32 % warps,
        lane = threadIdx.x % 32, e = 32 * warp + lane, k_count = m.per_token;
    route_team &team = teams[row];
    const float *z = (const float *)m.z + (uint64_t)row * m.experts + e;
    float added = e < m.experts ? ((const float *)m.bias.data)[e] : 0, scale = (float)m.route_scale;
    if (warp == 0) {
        team.offered[lane] = -INFINITY;
        if (lane < OFFERS) team.picked[lane] = 0;
    }
    prefetch(m.z);
    prefetch(t.pairs);
    __syncthreads();
    await_launch();
    allow_launch();
    float score = route_score(e < m.experts ? *z : 0), rated = score + added;
    if (e >= m.experts || !(rated > -INFINITY)) rated = -INFINITY;
    team.rated[warp][lane] = rated;
    __syncwarp();
    bool offers = among_best(lane, team.rated[warp], OFFERS);
    uint32_t votes = __ballot_sync(~0u, offers), below = (1u << lane) - 1;
    if (offers) {
        int at = OFFERS * warp + __popc(votes & below);
        team.offered[at] = rated;
        team.score[at] = score;
        team.id[at] = e;
    }
    __syncthreads();
    if (warp == 0) {
        bool picks = among_best(lane, team.offered, k_count) && team.offered[lane] > -INFINITY;
        votes = __ballot_sync(~0u, picks);
        int n = __popc(votes), place = __popc(votes & below);
        int32_t *ids = m.ids + row * k_count;
        float *weight = (float *)m.weight + row * k_count, sum = 0;
        if (picks) team.picked[place] = team.score[lane];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < OFFERS; i++) sum += team.picked[i];     /* ascending; zeros change no bit */
        if (picks) {
            ids[place] = id[row * k_count + place] = team.id[lane];
            weight[place] = team.score[lane] / (sum + (float)1e-20) * scale;
        }
        if (lane >= n && lane < k_count) {
            ids[lane] = id[row * k_count + lane] = -1;
            weight[lane] = 0;
        }
        if (total == (uint32_t)k_count) {
            if (lane < (int)t.tiles_max) t.tile_count[lane] = lane < n;
            if (!picks) return;
            t.pairs[place] = t.tile_first[place] = (uint32_t)place;
            t.tile_expert[place] = team.id[lane];
        }
    }
    if (total == (uint32_t)k_count) return;
    __syncthreads();
    sort_block(id, id + total, total, k_count, t);
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
    uint32_t tile = first / t.width + e,
             next = e + 1 < (int32_t)gridDim.x ? (first + n) / t.width + e + 1 : t.tiles_max;
    for (uint32_t k = tile + threadIdx.x; k < next; k += blockDim.x) {
        uint32_t done = (k - tile) * t.width;
        t.tile_expert[k] = e;
        t.tile_first[k] = first + done;
        t.tile_count[k] = done >= n ? 0 : n - done < t.width ? n - done : t.width;
    }
}

/* A block per place: rows of `pieces` pieces of 16 bytes. Places without a pair hold what was there before. */
static __global__ void __launch_bounds__(128)
    gather_kernel(const uint4 *x, uint32_t pieces, uint32_t rows, uint32_t div, const uint32_t *pairs, uint4 *out) {
    uint32_t row = pairs[blockIdx.x] / div;
    if (row >= rows) return;
    x += (uint64_t)row * pieces;
    out += (uint64_t)blockIdx.x * pieces;
#pragma unroll 5
    for (uint32_t i = threadIdx.x; i < pieces; i += 128) out[i] = x[i];
}

void tensor_gather(const uint16_t *x, int64_t k_count, uint32_t rows, int source_div, const expert_tiles &t,
                   uint16_t *out, cudaStream_t s) {
    gather_kernel<<<t.pairs_max, 128, 0, s>>>((const uint4 *)x, (uint32_t)(padded(k_count) / 8), rows,
                                              (uint32_t)source_div, t.pairs, (uint4 *)out);
}

void tensor_sort(const int32_t *ids, uint32_t rows, int per_token, int experts, bool woven, const expert_tiles &t,
                 cudaStream_t s) {
    uint32_t total = rows * (uint32_t)per_token;
    if (!woven)
        launch_chained(sort_few, 1, (total + 31) / 32 * 32, 2 * total * sizeof(int32_t), chain{ s, true }, ids, total,
                       per_token, t);
    else sort_many<<<(unsigned)experts, 256, 0, s>>>(ids, total, per_token, t);
}

bool tensor_route_can(const dev_moe &m, uint32_t rows) { return few_rows(rows) && m.experts <= 512; }

void tensor_route(const dev_moe &m, uint32_t rows, const expert_tiles &t, chain s) {
    uint32_t total = rows * (uint32_t)m.per_token, warps = (uint32_t)(m.experts + 31) / 32;
    size_t shared = 2 * total * sizeof(int32_t);
    if (warps <= TEAM_WARPS && rows <= TEAM_ROWS && m.per_token <= OFFERS) {
        launch_chained(route_fewer, 1, 32 * warps * rows, shared, s, m, total, t);
        return;
    }
    auto kernel = m.experts <= 32 ? route_few<1> : m.experts <= 128 ? route_few<4> : route_few<16>;
    launch_chained(kernel, 1, 32 * rows, shared, s, m, total, t);
}
