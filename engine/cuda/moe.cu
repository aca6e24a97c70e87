/* Router and experts for any shape and arithmetic (spec/model.md 2.9): a row's experts are worked on one by one, and
 * their outputs summed in ascending expert id, whatever the other rows chose. */
#include "engine/cuda/ops.cuh"

/* One block per row: scores, the best experts with ascending ids, their weights. */
template <class A> static __global__ void route_kernel(dev_moe m) {
    typedef typename A::real real;
    extern __shared__ __align__(16) uint8_t shared[];
    await_launch();
    allow_launch();
    real *score = (real *)shared, *biased = score + m.experts;
    const real *z = (const real *)m.z + (uint64_t)blockIdx.x * m.experts;
    const float *bias = (const float *)m.bias.data;
    for (int e = threadIdx.x; e < m.experts; e += blockDim.x) {
        real x = z[e];
        score[e] = real_sqrt(x > 20 ? x : real_log1p(real_exp(x)));
        biased[e] = score[e] + (real)bias[e];
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    /* lane k keeps the k-th pick: higher score, then lower id */
    int lane = threadIdx.x, n = 0;
    int32_t mine = 0x7fffffff;
    for (; n < m.per_token; n++) {
        int best = -1;
        for (int e = lane; e < m.experts; e += 32)
            if (biased[e] > -INFINITY && (best < 0 || biased[e] > biased[best])) best = e;
        for (int o = 16; o; o /= 2) {
            int other = __shfl_xor_sync(0xffffffffu, best, o);
            if (other >= 0 &&
                (best < 0 || biased[other] > biased[best] || (biased[other] == biased[best] && other < best)))
                best = other;
        }
        if (best < 0) break;
        __syncwarp();
        if (lane == 0) biased[best] = -INFINITY;
        if (lane == n) mine = best;
        __syncwarp();
    }
    /* ids ascending, weights divided by their sum in that order */
    int rank = 0;
    real sum = 0;
    for (int k = 0; k < n; k++) rank += __shfl_sync(0xffffffffu, mine, k) < mine;
    for (int place = 0; place < n; place++) {
        unsigned who = __ballot_sync(0xffffffffu, lane < n && rank == place);
        sum += score[__shfl_sync(0xffffffffu, mine, __ffs(who) - 1)];
    }
    int32_t *ids = m.ids + (uint64_t)blockIdx.x * m.per_token;
    real *w = (real *)m.weight + (uint64_t)blockIdx.x * m.per_token;
    if (lane < n) {
        ids[rank] = mine;
        w[rank] = score[mine] / (sum + (real)1e-20) * (real)m.route_scale;
    } else if (lane < m.per_token) {
        ids[lane] = -1;
        w[lane] = 0;
    }
}

enum { WARPS = 4 };

/* Slot per_token of a row is the shared expert. */
static __device__ const dev_weight *expert_weight(const dev_moe &m, int slot, int32_t id, int which) {
    if (slot == m.per_token) return which == 1 ? &m.shared1 : which == 2 ? &m.shared2 : &m.shared3;
    return (which == 1 ? m.w1 : which == 2 ? m.w2 : m.w3) + id;
}

/* Gate and up projections of (row, slot), activation, weight, FP8 round trip follow in act_kernel. One warp per
 * output. */
template <class A> static __global__ void up_kernel(dev d, dev_moe m, const void *xq) {
    typedef typename A::real real;
    int slot = blockIdx.y, lane = threadIdx.x % 32, n = blockIdx.x * WARPS + threadIdx.x / 32;
    int32_t id = slot < m.per_token ? m.ids[(uint64_t)blockIdx.z * m.per_token + slot] : 0;
    if (n >= m.moe_dim || id < 0) return;
    const real *x = (const real *)xq + (uint64_t)blockIdx.z * d.hidden;
    uint64_t at = ((uint64_t)blockIdx.z * (m.per_token + 1) + slot) * m.moe_dim + n;
    const dev_weight *w[2] = { expert_weight(m, slot, id, 1), expert_weight(m, slot, id, 3) };
    void *to[2] = { m.a, m.b };
    for (int i = 0; i < 2; i++) {
        double dot = 0;
        for (int k = lane; k < d.hidden; k += 32) dot += (double)x[k] * weight_at(*w[i], n, k);
        for (int o = 16; o; o /= 2) dot += __shfl_down_sync(0xffffffffu, dot, o);
        if (lane == 0) ((real *)to[i])[at] = A::rb((real)dot);
    }
}

template <class A> static __global__ void act_kernel(dev_moe m) {
    typedef typename A::real real;
    int slot = blockIdx.y;
    uint64_t row = blockIdx.x, at = (row * (m.per_token + 1) + slot) * m.moe_dim;
    if (slot < m.per_token && m.ids[row * m.per_token + slot] < 0) return;
    real lim = (real)m.limit;
    /* moe_dim is a multiple of 32: warps hold blocks of 32 */
    for (int k = threadIdx.x; k < m.moe_dim; k += blockDim.x) {
        real a = ((const real *)m.a)[at + k], b = ((const real *)m.b)[at + k];
        if (lim > 0) {
            b = b > lim ? lim : b < -lim ? -lim : b;
            a = a > lim ? lim : a;
        }
        real y = a * sigmoid(a) * b;
        if (slot < m.per_token) y = ((const real *)m.weight)[row * m.per_token + slot] * y;
        y = A::rb(y);
        double s = ue8m0_value(fp8q32_scale((double)y));
        ((real *)m.aq)[at + k] = (real)(e4m3_value(e4m3_encode((double)y / s)) * s);
    }
}

template <class A> static __global__ void down_kernel(dev d, dev_moe m) {
    typedef typename A::real real;
    int slot = blockIdx.y, lane = threadIdx.x % 32, n = blockIdx.x * WARPS + threadIdx.x / 32;
    int32_t id = slot < m.per_token ? m.ids[(uint64_t)blockIdx.z * m.per_token + slot] : 0;
    if (n >= d.hidden || id < 0) return;
    const real *x = (const real *)m.aq + ((uint64_t)blockIdx.z * (m.per_token + 1) + slot) * m.moe_dim;
    const dev_weight *w = expert_weight(m, slot, id, 2);
    double dot = 0;
    for (int k = lane; k < m.moe_dim; k += 32) dot += (double)x[k] * weight_at(*w, n, k);
    for (int o = 16; o; o /= 2) dot += __shfl_down_sync(0xffffffffu, dot, o);
    if (lane == 0) ((real *)m.out)[((uint64_t)blockIdx.z * (m.per_token + 1) + slot) * d.hidden + n] = A::rb((real)dot);
}

template <class A> static __global__ void sum_kernel(dev d, dev_moe m, void *y) {
    typedef typename A::real real;
    const int32_t *ids = m.ids + (uint64_t)blockIdx.x * m.per_token;
    const real *out = (const real *)m.out + (uint64_t)blockIdx.x * (m.per_token + 1) * d.hidden;
    for (int k = threadIdx.x; k < d.hidden; k += blockDim.x) {
        real sum = 0;
        for (int i = 0; i < m.per_token; i++)
            if (ids[i] >= 0) sum += out[(uint64_t)i * d.hidden + k];
        ((real *)y)[(uint64_t)blockIdx.x * d.hidden + k] = A::rb(sum + out[(uint64_t)m.per_token * d.hidden + k]);
    }
}

template <class A> void launch_route(uint32_t n, const dev_moe &m, chain s) {
    launch_chained(route_kernel<A>, n, 128, 2 * (size_t)m.experts * sizeof(typename A::real), s, m);
}

template <class A>
void launch_moe(const dev &d, uint32_t n, const dev_moe &m, const void *xq, void *y, cudaStream_t s) {
    unsigned slots = (unsigned)m.per_token + 1;
    launch_route<A>(n, m, chain{ s, false });
    up_kernel<A><<<dim3((m.moe_dim + WARPS - 1) / WARPS, slots, n), 32 * WARPS, 0, s>>>(d, m, xq);
    act_kernel<A><<<dim3(n, slots), 512, 0, s>>>(m);
    down_kernel<A><<<dim3((d.hidden + WARPS - 1) / WARPS, slots, n), 32 * WARPS, 0, s>>>(d, m);
    sum_kernel<A><<<n, 1024, 0, s>>>(d, m, y);
}

#define INSTANTIATE(A) \
    template void launch_moe<A>(const dev &, uint32_t, const dev_moe &, const void *, void *, cudaStream_t); \
    template void launch_route<A>(uint32_t, const dev_moe &, chain);
CEDAR_ARITHMETICS(INSTANTIATE)
