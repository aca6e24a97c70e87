/* Logits, greedy picks, and the drafter's Markov chain and confidence (spec/model.md 2.0, 2.11). */
#include "engine/cuda/ops.cuh"

/* Largest of value(v) for v < vocab, lowest id on ties, by the whole block; everyone gets it. Several values are asked
 * for at once. */
template <class Value> static __device__ int32_t argmax_block(int vocab, Value value) {
    enum { AT_ONCE = 16 };
    typedef decltype(value(0)) real;
    __shared__ double best_of[32];
    __shared__ int32_t id_of[32];
    double best = -INFINITY;
    int32_t id = 0x7fffffff;
    for (int first = threadIdx.x; first < vocab; first += AT_ONCE * blockDim.x) {
        real x[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int v = first + i * (int)blockDim.x;
            x[i] = v < vocab ? value(v) : -(real)INFINITY;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if ((double)x[i] > best) {
                best = (double)x[i];
                id = first + i * (int)blockDim.x;
            }
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int o = 16; o; o /= 2) {
            double other = __shfl_xor_sync(0xffffffffu, best, o);
            int32_t other_id = __shfl_xor_sync(0xffffffffu, id, o);
            if (other > best || (other == best && other_id < id)) {
                best = other;
                id = other_id;
            }
        }
        if (pass) break;
        if (threadIdx.x % 32 == 0) {
            best_of[threadIdx.x / 32] = best;
            id_of[threadIdx.x / 32] = id;
        }
        __syncthreads();
        bool there = threadIdx.x % 32 < blockDim.x / 32;
        best = there ? best_of[threadIdx.x % 32] : -INFINITY;
        id = there ? id_of[threadIdx.x % 32] : 0x7fffffff;
    }
    return id == 0x7fffffff ? 0 : id;
}

template <class A> static __global__ void logits_kernel(const void *y, float *logits, int32_t *argmax, int vocab) {
    typedef typename A::real real;
    const real *row = (const real *)y + (uint64_t)blockIdx.x * vocab;
    if (logits)
        for (int v = threadIdx.x; v < vocab; v += blockDim.x) logits[(uint64_t)blockIdx.x * vocab + v] = (float)row[v];
    if (!argmax) return;
    int32_t id = argmax_block(vocab, [&](int v) { return row[v]; });
    if (threadIdx.x == 0) argmax[blockIdx.x] = id;
}

template <class A>
void launch_logits(const dev &d, uint32_t n, const void *y, float *logits, int32_t *argmax, int vocab, cudaStream_t s) {
    (void)d;
    if (n) logits_kernel<A><<<n, 1024, 0, s>>>(y, logits, argmax, vocab);
}

/* base + extra -> logits, and the greedy id, by one block. */
template <class A>
static __global__ void markov_kernel(int vocab, const void *base, const void *extra, float *logits, int32_t *id) {
    typedef typename A::real real;
    int32_t pick = argmax_block(vocab, [&](int v) {
        real s = ((const real *)base)[v] + ((const real *)extra)[v];
        if (logits) logits[v] = (float)s;
        return (double)s;
    });
    if (threadIdx.x == 0) *id = pick;
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
    template void launch_logits<A>(const dev &, uint32_t, const void *, float *, int32_t *, int, cudaStream_t);        \
    template void launch_markov<A>(const dev &, int, const void *, const void *, float *, int32_t *, cudaStream_t);    \
    template void launch_row<A>(const dev &, const dev_weight &, const int32_t *, int, void *, cudaStream_t);          \
    template void launch_confidence<A>(const dev &, const dev_weight &, const void *, const void *, int, float *,      \
                                       cudaStream_t);
CEDAR_ARITHMETICS(INSTANTIATE)
