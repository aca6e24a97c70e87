/* Engram: hash, table rows, gate (spec/model.md 2.10). */
#include "engine/cuda/ops.cuh"

/* Raw token k positions before the row's; -1 before the sequence's start. */
static __device__ int32_t token_back(const dev &d, const dev_entry &e, uint32_t row, int k) {
    uint32_t in_step = row - e.first_row;
    if ((uint32_t)k <= in_step) return d.row_token[row - k];
    return e.history[k - in_step - 1];
}

/* Each block has a part of a row's values; all work out where the row's table rows lie. */
enum { ROW_THREADS = 1024 };
template <class A>
static __global__ void __launch_bounds__(ROW_THREADS)
    rows_kernel(dev d, const int64_t *mul, const int64_t *prime, const int64_t *offset, int32_t pad, dev_weight embed,
                void *e_out) {
    typedef typename A::real real;
    uint32_t row = d.active[blockIdx.x];
    const dev_entry &e = d.entries[d.row_entry[row]];
    __shared__ int64_t ids[CEDAR_ENGRAM_ROWS_MAX];
    if ((int)threadIdx.x < d.engram_rows) {
        int gram = threadIdx.x / d.engram_heads + 1;
        int64_t r = 0;
        for (int k = 0; k <= gram; k++) {
            int32_t raw = token_back(d, e, row, k);
            r ^= (int64_t)d.token_map[raw < 0 ? pad : raw] * mul[k];
        }
        ids[threadIdx.x] = r % prime[threadIdx.x] + offset[threadIdx.x];
        if (blockIdx.y == 0) d.engram_ids[(uint64_t)row * d.engram_rows + threadIdx.x] = ids[threadIdx.x];
    }
    __syncthreads();
    int64_t dim = embed.cols, width = d.engram_rows * dim;
    real *out = (real *)e_out + blockIdx.x * width;
    int64_t k = (int64_t)blockIdx.y * ROW_THREADS + threadIdx.x;
    if (k >= width) return;                     /* whole warps: the width is a multiple of 32 */
    double v = weight_at(embed, ids[k / dim], k % dim), s = ue8m0_value(fp8q32_scale(v));
    out[k] = (real)(e4m3_value(e4m3_encode(v / s)) * s);
}

template <class A>
void launch_engram_rows(const dev &d, uint32_t n, int slot, const int64_t *mul, const int64_t *prime,
                        const int64_t *offset, int32_t pad, const dev_weight &embed, void *e, cudaStream_t s) {
    (void)slot;
    unsigned parts = (unsigned)((d.engram_rows * embed.cols + ROW_THREADS - 1) / ROW_THREADS);
    rows_kernel<A><<<dim3(n, parts), ROW_THREADS, 0, s>>>(d, mul, prime, offset, pad, embed, e);
}

template <class A> static __global__ void gate_kernel(dev d, dev_weight qw, dev_weight kw, const void *kv_in) {
    typedef typename A::real real;
    uint32_t row = d.active[blockIdx.x];
    int i = blockIdx.y;
    const real *kv = (const real *)kv_in + (uint64_t)blockIdx.x * (d.hc + 1) * d.hidden;
    const real *key = kv + (int64_t)i * d.hidden, *value = kv + (int64_t)d.hc * d.hidden;
    typedef typename A::stream stream;
    stream *h = (stream *)d.h + ((uint64_t)row * d.hc + i) * d.hidden;
    double dot = 0, hh = 0, kk = 0;
#pragma unroll 4
    for (int k = threadIdx.x; k < d.hidden; k += blockDim.x) {
        real x = (real)h[k];
        dot += (double)(x * (real)weight_at(qw, i, k) * (real)weight_at(kw, i, k) * key[k]);
        hh += (double)x * (double)x;
        kk += (double)key[k] * (double)key[k];
    }
    dot = block_sum(dot);
    hh = block_sum(hh);
    kk = block_sum(kk);
    real eps = (real)d.norm_eps, inv_h = 1 / real_sqrt((real)hh / (real)d.hidden + eps),
         inv_k = 1 / real_sqrt((real)kk / (real)d.hidden + eps);
    real x = (real)dot * inv_h * inv_k * (real)(1 / sqrt((double)d.hidden)), a = fabs(x);
    real g = real_sqrt(a > (real)1e-6 ? a : (real)1e-6);
    g = sigmoid(signbit(x) ? -g : g);
    enum { AT_ONCE = 4 };
    for (int first = threadIdx.x; first < d.hidden; first += AT_ONCE * blockDim.x) {
        real old[AT_ONCE], add[AT_ONCE];        /* asked for at once */
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int k = first + j * (int)blockDim.x;
            if (k < d.hidden) {
                old[j] = (real)h[k];
                add[j] = value[k];
            }
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int k = first + j * (int)blockDim.x;
            if (k < d.hidden) h[k] = (stream)A::rb(old[j] + g * add[j]);
        }
    }
}

template <class A>
void launch_engram_gate(const dev &d, uint32_t n, const dev_weight &q, const dev_weight &k, const void *kv,
                        cudaStream_t s) {
    gate_kernel<A><<<dim3(n, d.hc), 256, 0, s>>>(d, q, k, kv);
}

#define INSTANTIATE(A)                                                                                                 \
    template void launch_engram_rows<A>(const dev &, uint32_t, int, const int64_t *, const int64_t *, const int64_t *, \
                                        int32_t, const dev_weight &, void *, cudaStream_t);                            \
    template void launch_engram_gate<A>(const dev &, uint32_t, const dev_weight &, const dev_weight &, const void *,   \
                                        cudaStream_t);
CEDAR_ARITHMETICS(INSTANTIATE)
