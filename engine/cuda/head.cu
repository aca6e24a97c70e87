/* Logits, greedy picks, and the drafter's Markov chain and confidence (spec/model.md 2.0, 2.11). */
#include <cooperative_groups.h>

#include "engine/cuda/ops.cuh"
#include "engine/cuda/together.cuh"

template <class R> struct pick {
    R value;
    int32_t id;
};

/* The larger value, the lower id on ties. */
template <class R> static __device__ __forceinline__ pick<R> better(const pick<R> &a, const pick<R> &b) {
    return b.value > a.value || (b.value == a.value && b.id < a.id) ? b : a;
}

/* Best of value(v) for first <= v < end, by the whole block; everyone gets it. Several values are asked for at once. */
enum { NO_ID = 0x7fffffff };
template <class R, class Value> static __device__ pick<R> best_in_block(int first, int end, Value value) {
    enum { AT_ONCE = 16 };
    __shared__ pick<R> best_of[32];
    const pick<R> none = { -(R)INFINITY, NO_ID };
    pick<R> best = none;
    for (int from = first + threadIdx.x; from < end; from += AT_ONCE * blockDim.x) {
        R x[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int v = from + i * (int)blockDim.x;
            x[i] = v < end ? value(v) : none.value;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (x[i] > best.value) best = pick<R>{ x[i], from + i * (int)blockDim.x };
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int o = 16; o; o /= 2)
            best = better(best, pick<R>{ __shfl_xor_sync(0xffffffffu, best.value, o),
                                         __shfl_xor_sync(0xffffffffu, best.id, o) });
        if (pass) break;
        if (threadIdx.x % 32 == 0) best_of[threadIdx.x / 32] = best;
        __syncthreads();
        best = threadIdx.x % 32 < blockDim.x / 32 ? best_of[threadIdx.x % 32] : none;
    }
    return best;
}

/* Best of a row, which BLOCKS blocks of a cluster share; only the first thread of the first block gets it. */
template <class R, int BLOCKS> static __device__ pick<R> best_in_cluster(const R *row, int vocab) {
    int part = blockIdx.x % BLOCKS;
    __shared__ pick<R> best_of[BLOCKS];
    if (BLOCKS > 1) cluster_arrive();
    pick<R> best = best_in_block<R>((int)((int64_t)vocab * part / BLOCKS), (int)((int64_t)vocab * (part + 1) / BLOCKS),
                                    [&](int v) { return row[v]; });
    if (BLOCKS == 1) return best;
    cluster_wait();                             /* all are there */
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    if (threadIdx.x == 0) cluster.map_shared_rank(best_of, 0)[part] = best;
    cluster.sync();
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) best = better(best, best_of[i]);
    return best;
}

enum { LOGITS_BLOCKS = 8, LOGITS_THREADS = 1024 };
template <class A, int BLOCKS>
static __global__ void __launch_bounds__(LOGITS_THREADS, 1)
    logits_kernel(const void *y, float *logits, int32_t *argmax, int vocab) {
    typedef typename A::real real;
    await_launch();
    uint32_t place = blockIdx.x / BLOCKS;
    const real *row = (const real *)y + (uint64_t)place * vocab;
    if (logits)
        for (int v = blockIdx.x % BLOCKS * LOGITS_THREADS + threadIdx.x; v < vocab; v += BLOCKS * LOGITS_THREADS)
            logits[(uint64_t)place * vocab + v] = (float)row[v];
    if (!argmax) return;
    pick<real> best = best_in_cluster<real, BLOCKS>(row, vocab);
    if (threadIdx.x == 0 && blockIdx.x % BLOCKS == 0) argmax[place] = best.id == NO_ID ? 0 : best.id;
}

template <class A>
void launch_logits(const dev &d, uint32_t n, const void *y, float *logits, int32_t *argmax, int vocab, chain s) {
    (void)d;
    if (!n) return;
    if (s.apart) {                              /* no room is sure for a whole cluster */
        launch_chained(logits_kernel<A, 1>, n, LOGITS_THREADS, 0, s, y, logits, argmax, vocab);
        return;
    }
    launch_cluster(logits_kernel<A, LOGITS_BLOCKS>, n * LOGITS_BLOCKS, LOGITS_BLOCKS, LOGITS_THREADS, 0, s, y, logits,
                   argmax, vocab);
}

/* base + extra -> logits, and the greedy id, by one block. */
template <class A>
static __global__ void markov_kernel(int vocab, const void *base, const void *extra, float *logits, int32_t *id) {
    typedef typename A::real real;
    pick<double> best = best_in_block<double>(0, vocab, [&](int v) {
        real s = ((const real *)base)[v] + ((const real *)extra)[v];
        if (logits) logits[v] = (float)s;
        return (double)s;
    });
    if (threadIdx.x == 0) *id = best.id == NO_ID ? 0 : best.id;
}

template <class A>
void launch_markov(const dev &d, int vocab, const void *base, const void *extra, float *logits, int32_t *id,
                   cudaStream_t s) {
    (void)d;
    markov_kernel<A><<<1, 1024, 0, s>>>(vocab, base, extra, logits, id);
}

/* One row of a weight: row *id, or `forced` when id is NULL. */
template <class A> static __global__ void row_kernel(dev_weight w, const int32_t *id, int forced, void *out) {
    int64_t row = id ? *id : forced;
    for (int64_t k = threadIdx.x; k < w.cols; k += blockDim.x)
        ((typename A::real *)out)[k] = (typename A::real)weight_at(w, row, k);
}

template <class A>
void launch_row(const dev &d, const dev_weight &w, const int32_t *id, int forced, void *out, cudaStream_t s) {
    (void)d;
    row_kernel<A><<<1, 128, 0, s>>>(w, id, forced, out);
}

template <class A>
static __global__ void confidence_kernel(dev_weight w, const void *y, const void *e, int hidden, int rank, float *out) {
    typedef typename A::real real;
    double dot = 0;
    for (int k = threadIdx.x; k < hidden + rank; k += blockDim.x)
        dot += weight_at(w, 0, k) * (double)(k < hidden ? ((const real *)y)[k] : ((const real *)e)[k - hidden]);
    dot = block_sum(dot);
    if (threadIdx.x == 0) *out = (float)(real)dot;
}

template <class A>
void launch_confidence(const dev &d, const dev_weight &w, const void *y, const void *e, int rank, float *out,
                       cudaStream_t s) {
    confidence_kernel<A><<<1, 256, 0, s>>>(w, y, e, d.hidden, rank, out);
}

#define INSTANTIATE(A)                                                                                                 \
    template void launch_logits<A>(const dev &, uint32_t, const void *, float *, int32_t *, int, chain);               \
    template void launch_markov<A>(const dev &, int, const void *, const void *, float *, int32_t *, cudaStream_t);    \
    template void launch_row<A>(const dev &, const dev_weight &, const int32_t *, int, void *, cudaStream_t);          \
    template void launch_confidence<A>(const dev &, const dev_weight &, const void *, const void *, int, float *,      \
                                       cudaStream_t);
CEDAR_ARITHMETICS(INSTANTIATE)
