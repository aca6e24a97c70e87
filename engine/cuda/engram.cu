/* Engram: hash, table rows, gate (spec/model.md 2.10). */
#include "engine/cuda/ops.cuh"

/* Mapped ids of the tokens that end at the row's, its own first, and of `pad` before the sequence's start. Both places
 * where a token may lie are asked for at once. */
static __device__ __forceinline__ void tokens_back(const dev &d, uint32_t row, int32_t pad, int32_t *id) {
    const dev_entry &e = d.entries[d.row_entry[row]];
    int32_t raw[CEDAR_NGRAM_MAX], before[CEDAR_NGRAM_MAX];
    uint32_t in_step = row - e.first_row;
#pragma unroll
    for (int k = 0; k < CEDAR_NGRAM_MAX; k++) {
        raw[k] = d.row_token[row >= (uint32_t)k ? row - k : 0];
        before[k] = e.history[k > (int)in_step ? k - in_step - 1 : 0];
    }
#pragma unroll
    for (int k = 0; k < CEDAR_NGRAM_MAX; k++) {
        if ((uint32_t)k > in_step) raw[k] = before[k];
        id[k] = d.token_map[k >= d.ngram || raw[k] < 0 ? pad : raw[k]];
    }
}

/* Each block has a part of a row's values; all work out where the row's table rows lie. Tokens and tables were there
 * before the step began, so only what is written waits for the kernel before this one. */
enum { ROW_THREADS = 1024 };
template <class A>
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    rows_kernel(dev d, const int64_t *mul, const int64_t *prime, const int64_t *offset, int32_t pad, dev_weight embed,
                void *e_out) {
    typedef typename A::real real;
    uint32_t row = d.active[blockIdx.x];
    __shared__ int64_t ids[CEDAR_ENGRAM_ROWS_MAX];
    if ((int)threadIdx.x < d.engram_rows) {
        int gram = threadIdx.x / d.engram_heads + 1;
        int32_t id[CEDAR_NGRAM_MAX];
        int64_t r = 0, p = prime[threadIdx.x], first = offset[threadIdx.x];
        tokens_back(d, row, pad, id);
#pragma unroll
        for (int k = 0; k < CEDAR_NGRAM_MAX; k++)
            if (k <= gram) r ^= (int64_t)id[k] * mul[k];
        ids[threadIdx.x] = r % p + first;
    }
    __syncthreads();
    int dim = (int)embed.cols, width = d.engram_rows * dim, k = blockIdx.y * ROW_THREADS + threadIdx.x;
    if (k >= width) return;                     /* whole warps: the width is a multiple of 32 */
    int64_t at = ids[k / dim] * dim + k % dim;  /* a row of codes has a scale for 32 */
    uint8_t code = embed.data[at], scale = embed.scale[at / 32];
    double v = e4m3_value(code) * ue8m0_value(scale), s = ue8m0_value(fp8q32_scale(v));
    v = e4m3_value(e4m3_encode(v / s)) * s;
    await_launch();
    allow_launch();
    ((real *)e_out)[(int64_t)blockIdx.x * width + k] = (real)v;
    if (k < d.engram_rows) d.engram_ids[(uint64_t)row * d.engram_rows + k] = ids[k];
}

template <class A>
void launch_engram_rows(const dev &d, uint32_t n, int slot, const int64_t *mul, const int64_t *prime,
                        const int64_t *offset, int32_t pad, const dev_weight &embed, void *e, chain s) {
    (void)slot;
    unsigned parts = (unsigned)((d.engram_rows * embed.cols + ROW_THREADS - 1) / ROW_THREADS);
    launch_chained(rows_kernel<A>, dim3(n, parts), ROW_THREADS, 0, s, d, mul, prime, offset, pad, embed, e);
}

/* block_sum of several values at once, each in the same order; once in a kernel. */
template <int COUNT> static __device__ void block_sums(double (&v)[COUNT]) {
    __shared__ double part[COUNT][33];
    int warp = threadIdx.x / 32;
    for (int o = 16; o; o /= 2)
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] += __shfl_down_sync(0xffffffffu, v[i], o);
    if (threadIdx.x % 32 == 0)
#pragma unroll
        for (int i = 0; i < COUNT; i++) part[i][warp] = v[i];
    __syncthreads();
    if (warp < COUNT) {                         /* a warp a value */
        double sum = threadIdx.x % 32 < (blockDim.x + 31) / 32 ? part[warp][threadIdx.x % 32] : 0;
        for (int o = 16; o; o /= 2) sum += __shfl_down_sync(0xffffffffu, sum, o);
        if (threadIdx.x % 32 == 0) part[warp][32] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++) v[i] = part[i][32];
}

/* The channels of a thread are GATE_THREADS apart; GATE_ROUNDS of them are asked for at once. */
enum { GATE_THREADS = 256, GATE_ROUNDS = 20 };

/* A thread's part of three sums over stream i: the product of values and keys, each weighed, and both squares. Weights
 * are bf16, and on their way before keys are there. */
template <class A>
static __device__ __forceinline__ void gate_sums(const dev &d, const dev_weight &qw, const dev_weight &kw, int i,
                                                 const typename A::stream *h, const typename A::real *key,
                                                 double (&sum)[3]) {
    typedef typename A::real real;
    const uint16_t *q_row = (const uint16_t *)qw.data + (int64_t)i * d.hidden,
                   *k_row = (const uint16_t *)kw.data + (int64_t)i * d.hidden;
    for (int first = threadIdx.x; first < d.hidden; first += GATE_ROUNDS * GATE_THREADS) {
        real x[GATE_ROUNDS], q[GATE_ROUNDS], k[GATE_ROUNDS], y[GATE_ROUNDS];
#pragma unroll
        for (int j = 0; j < GATE_ROUNDS; j++) {
            int at = first + j * GATE_THREADS;
            if (at < d.hidden) {
                q[j] = (real)bf16_value(q_row[at]);
                k[j] = (real)bf16_value(k_row[at]);
            }
        }
        await_launch();
#pragma unroll
        for (int j = 0; j < GATE_ROUNDS; j++) {
            int at = first + j * GATE_THREADS;
            if (at < d.hidden) {
                x[j] = (real)h[at];
                y[j] = key[at];
            }
        }
        allow_launch();
#pragma unroll
        for (int j = 0; j < GATE_ROUNDS; j++) {
            if (first + j * GATE_THREADS >= d.hidden) continue;
            sum[0] += (double)(x[j] * q[j] * k[j] * y[j]);
            sum[1] += (double)x[j] * (double)x[j];
            sum[2] += (double)y[j] * (double)y[j];
        }
    }
}

/* How far the gate opens, from the sums over all channels; scale: 1 / sqrt(channels). */
template <class A>
static __device__ __forceinline__ typename A::real gate_of(const dev &d, const double (&sum)[3],
                                                           typename A::real scale) {
    typedef typename A::real real;
    real eps = (real)d.norm_eps, inv_h = 1 / real_sqrt((real)sum[1] / (real)d.hidden + eps),
         inv_k = 1 / real_sqrt((real)sum[2] / (real)d.hidden + eps);
    real x = (real)sum[0] * inv_h * inv_k * scale, a = fabs(x);
    real g = real_sqrt(a > (real)1e-6 ? a : (real)1e-6);
    return sigmoid(signbit(x) ? -g : g);
}

/* Asks for a thread's channels from `first` on. */
template <class A>
static __device__ __forceinline__ void gate_ask(const dev &d, const typename A::stream *h,
                                                const typename A::real *value, int first, typename A::real *old,
                                                typename A::real *add) {
#pragma unroll
    for (int j = 0; j < GATE_ROUNDS; j++) {
        int k = first + j * GATE_THREADS;
        if (k < d.hidden) {
            old[j] = (typename A::real)h[k];
            add[j] = value[k];
        }
    }
}

template <class A>
static __global__ void __launch_bounds__(GATE_THREADS, 1)
    gate_kernel(dev d, dev_weight qw, dev_weight kw, const void *kv_in) {
    typedef typename A::real real;
    typedef typename A::stream stream;
    int i = blockIdx.y;
    const real *kv = (const real *)kv_in + (uint64_t)blockIdx.x * (d.hc + 1) * d.hidden;
    const real *key = kv + (int64_t)i * d.hidden, *value = kv + (int64_t)d.hc * d.hidden;
    stream *h = (stream *)d.h + ((uint64_t)d.active[blockIdx.x] * d.hc + i) * d.hidden;
    real scale = (real)(1 / sqrt((double)d.hidden));
    double sum[3] = { 0, 0, 0 };
    gate_sums<A>(d, qw, kw, i, h, key, sum);
    real old[GATE_ROUNDS], add[GATE_ROUNDS];
    gate_ask<A>(d, h, value, threadIdx.x, old, add);    /* on their way while the block adds up */
    block_sums(sum);
    real g = gate_of<A>(d, sum, scale);
    for (int first = threadIdx.x; first < d.hidden;) {
#pragma unroll
        for (int j = 0; j < GATE_ROUNDS; j++) {
            int k = first + j * GATE_THREADS;
            if (k < d.hidden) h[k] = (stream)A::rb(old[j] + g * add[j]);
        }
        first += GATE_ROUNDS * GATE_THREADS;
        gate_ask<A>(d, h, value, first, old, add);
    }
}

template <class A>
void launch_engram_gate(const dev &d, uint32_t n, const dev_weight &q, const dev_weight &k, const void *kv, chain s) {
    launch_chained(gate_kernel<A>, dim3(n, d.hc), GATE_THREADS, 0, s, d, q, k, kv);
}

#define INSTANTIATE(A)                                                                                                 \
    template void launch_engram_rows<A>(const dev &, uint32_t, int, const int64_t *, const int64_t *, const int64_t *, \
                                        int32_t, const dev_weight &, void *, chain);                                   \
    template void launch_engram_gate<A>(const dev &, uint32_t, const dev_weight &, const dev_weight &, const void *,   \
                                        chain);
CEDAR_ARITHMETICS(INSTANTIATE)
