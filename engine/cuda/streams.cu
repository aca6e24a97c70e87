/* Streams: embedding, single-pass mHC, RMS norms, the drafter's features (spec/model.md 2.0-2.2). */
#include <type_traits>

#include "engine/cuda/ops.cuh"

/* One number of threads for every batch: sums over a block depend on it. */
enum { ROW_THREADS = 1024 };

template <class A> static __global__ void tables(dev d, uint32_t n, const double *freq) {
    typedef typename A::real real;
    int pairs = d.rope / 2;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < 2 * n * pairs; i += gridDim.x * blockDim.x) {
        uint32_t kind = i / (n * pairs), row = i / pairs % n, pair = i % pairs;
        double angle = (double)d.row_pos[row] * freq[kind * pairs + pair];
        real *t = (real *)d.table + ((uint64_t)kind * d.row_max + row) * d.rope;
        t[2 * pair] = (real)cos(angle);
        t[2 * pair + 1] = (real)sin(angle);
    }
}

template <class A> void launch_begin(const dev &d, uint32_t n, const double *freq, cudaStream_t s) {
    tables<A><<<(2 * n * d.rope / 2 + 255) / 256, 256, 0, s>>>(d, n, freq);
}

template <class A> static __global__ void embed_kernel(dev d, dev_weight w) {
    typedef typename A::real real;
    uint32_t row = d.active[blockIdx.x];
    typedef typename A::stream stream;
    stream *h = (stream *)d.h + (uint64_t)row * d.hc * d.hidden;
    for (int k = threadIdx.x; k < d.hidden; k += blockDim.x) {
        stream v = (stream)(real)weight_at(w, d.row_token[row], k);
        for (int i = 0; i < d.hc; i++) h[(int64_t)i * d.hidden + k] = v;
    }
    if (threadIdx.x < d.hc) ((real *)d.pre)[(uint64_t)row * d.hc + threadIdx.x] = threadIdx.x == 0;
}

template <class A> void launch_embed(const dev &d, uint32_t n, const dev_weight &embed, cudaStream_t s) {
    embed_kernel<A><<<n, 256, 0, s>>>(d, embed);
}

/* ROWS rows by OUTPUTS projections by one of HC_SPLITS parts of the channels a warp. Each sum runs over a lane's
 * channels, four at a time, then the warp's lanes, then (in hc_coefficients) the parts: the same order whichever rows
 * and outputs share a warp. `sum`: what a lane sums in. partial [row, HC_SPLITS, outputs + 1], the last one the sum of
 * squares. */
template <class A, class sum, int ROWS, int OUTPUTS>
static __global__ void __launch_bounds__(256) hc_project(dev d, dev_weight fn, uint32_t count) {
    typedef typename A::real real;
    int64_t quads = (int64_t)d.hc * d.hidden / 4, begin = quads * blockIdx.z / HC_SPLITS,
            end = quads * (blockIdx.z + 1) / HC_SPLITS;
    uint32_t first = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * ROWS;
    int n0 = blockIdx.y * OUTPUTS, lane = threadIdx.x % 32;
    if (first >= count) return;
    typedef typename A::stream stream;
    struct __align__(4 * sizeof(stream)) quad { stream v[4]; };
    const quad *h[ROWS];
    const float4 *w = (const float4 *)fn.data;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        h[r] = (const quad *)d.h + d.active[first + r < count ? first + r : count - 1] * quads;
    sum dot[ROWS][OUTPUTS] = {}, square[ROWS] = {};
    for (int64_t k = begin + lane; k < end; k += 32) {
        sum x[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            quad q = h[r][k];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[r][i] = (sum)(real)q.v[i];
                square[r] = fma(x[r][i], x[r][i], square[r]);
            }
        }
#pragma unroll
        for (int n = 0; n < OUTPUTS; n++) {
            float4 wn = w[(n0 + n < fn.rows ? n0 + n : fn.rows - 1) * quads + k];
            float wk[4] = { wn.x, wn.y, wn.z, wn.w };
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < 4; i++) dot[r][n] = fma(x[r][i], (sum)wk[i], dot[r][n]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        double *out = d.hc_partial +
                      ((uint64_t)d.active[first + r < count ? first + r : count - 1] * HC_SPLITS + blockIdx.z) *
                          (fn.rows + 1);
#pragma unroll
        for (int n = 0; n <= OUTPUTS; n++) {
            sum v = n < OUTPUTS ? dot[r][n < OUTPUTS ? n : 0] : square[r];
            for (int o = 16; o; o /= 2) v += __shfl_down_sync(0xffffffffu, v, o);
            if (lane || first + r >= count) continue;
            if (n == OUTPUTS && blockIdx.y == 0) out[fn.rows] = (double)v;
            if (n < OUTPUTS && n0 + n < fn.rows) out[n0 + n] = (double)v;
        }
    }
}

/* Sum over four lanes whose numbers differ in the two bits from `step` on: ((0+1) + (2+3)) seen from each lane. */
template <class R> static __device__ R quad_sum(R v, int step) {
    v += __shfl_xor_sync(0xffffffffu, v, step);
    return v + __shfl_xor_sync(0xffffffffu, v, 2 * step);
}

static __device__ inline double max_of(double a, double b) { return a > b ? a : b; }
static __device__ inline float max_of(float a, float b) { return a > b ? a : b; }

template <class R> static __device__ void normalise(R *comb, int n, int step_in, int step_out, R eps) {
    for (int o = 0; o < n; o++) {
        R sum = 0;
        for (int i = 0; i < n; i++) sum += comb[o * step_out + i * step_in];
        for (int i = 0; i < n; i++) comb[o * step_out + i * step_in] /= sum + eps;
    }
}

/* comb of a row by one lane, for any number of streams. */
template <class R>
static __device__ void sinkhorn_serial(const R *m, const float *base, R scale, int n, int iters, R eps, R *out) {
    R comb[CEDAR_HC_MAX * CEDAR_HC_MAX];
    for (int j = 0; j < n; j++) {
        R *r = comb + j * n, top = -INFINITY, sum = 0;
        for (int k = 0; k < n; k++) {
            r[k] = m[j * n + k] * scale + (R)base[j * n + k];
            if (r[k] > top) top = r[k];
        }
        for (int k = 0; k < n; k++) sum += r[k] = real_exp(r[k] - top);
        for (int k = 0; k < n; k++) r[k] = r[k] / sum + eps;
    }
    normalise(comb, n, n, 1, eps);
    for (int k = 1; k < iters; k++) {
        normalise(comb, n, 1, n, eps);
        normalise(comb, n, n, 1, eps);
    }
    for (int k = 0; k < n * n; k++) out[k] = comb[k];
}

/* One warp per row: lanes add up the parts of a projection each, then lane j n + k holds comb[j][k] where that fits. */
template <class A>
static __global__ void hc_coefficients(dev d, dev_weight base, dev_weight scale, void *pre_out, uint32_t count,
                                       int outputs) {
    typedef typename A::real real;
    uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32, n = d.hc;
    if (i >= count) return;
    uint32_t row = d.active[i];
    const double *partial = d.hc_partial + (uint64_t)row * HC_SPLITS * (outputs + 1);
    const float *b = (const float *)base.data, *sc = (const float *)scale.data;
    real *m = (real *)d.mixes + (uint64_t)row * outputs;
    double square = 0;
    for (int s = 0; s < HC_SPLITS; s++) square += partial[s * (outputs + 1) + outputs];
    real norm = real_sqrt((real)square / (real)((int64_t)n * d.hidden) + (real)d.norm_eps), eps = (real)d.hc_eps;
    for (int k = lane; k < outputs; k += 32) {
        double sum = 0;
        for (int s = 0; s < HC_SPLITS; s++) sum += partial[s * (outputs + 1) + k];
        m[k] = (real)sum / norm;
    }
    __syncwarp();
    if (lane < n) {
        ((real *)pre_out)[(uint64_t)row * n + lane] = sigmoid(m[lane] * (real)sc[0] + (real)b[lane]) + eps;
        ((real *)d.post)[(uint64_t)row * n + lane] = 2 * sigmoid(m[n + lane] * (real)sc[1] + (real)b[n + lane]);
    }
    real *out = (real *)d.comb + (uint64_t)row * n * n;
    if (n != 4) {
        if (lane == 0) sinkhorn_serial(m + 2 * n, b + 2 * n, (real)sc[2], n, d.hc_iters, eps, out);
        return;
    }
    /* four lanes of a row (bits 0-1), four rows (bits 2-3); lanes 16-31 repeat lanes 0-15 */
    int at = lane % 16;
    real v = m[8 + at] * (real)sc[2] + (real)b[8 + at], top = v;
    top = max_of(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = max_of(top, __shfl_xor_sync(0xffffffffu, top, 2));
    v = real_exp(v - top);
    v = v / quad_sum(v, 1) + eps;
    v /= quad_sum(v, 4) + eps;
    for (int k = 1; k < d.hc_iters; k++) {
        v /= quad_sum(v, 1) + eps;
        v /= quad_sum(v, 4) + eps;
    }
    if (lane < 16) out[at] = v;
}

template <class A> void launch_hc(const dev &d, uint32_t n, const hc_site &site, void *pre, cudaStream_t s) {
    unsigned outputs = (unsigned)site.fn.rows;
    /* bf16 streams: a product has at most 32 bits, and a lane adds few of them */
    typedef typename std::conditional<std::is_same<A, bf16>::value, float, double>::type sum;
    if (n <= 32) hc_project<A, sum, 1, 3><<<dim3(n, (outputs + 2) / 3, HC_SPLITS), 32, 0, s>>>(d, site.fn, n);
    else hc_project<A, sum, 4, 12><<<dim3((n + 31) / 32, (outputs + 11) / 12, HC_SPLITS), 256, 0, s>>>(d, site.fn, n);
    hc_coefficients<A><<<(n + 3) / 4, 128, 0, s>>>(d, site.base, site.scale, pre, n, (int)outputs);
}

/* x[k] of a row becomes its norm and, if xq is given, its FP8 round trip; all threads of the block take part. */
template <class A>
static __device__ void norm_row(typename A::real *x, int64_t width, const dev_weight &gain, double eps,
                                typename A::real *xq) {
    typedef typename A::real real;
    double square = 0;
    for (int64_t k = threadIdx.x; k < width; k += blockDim.x) square += (double)x[k] * (double)x[k];
    square = block_sum(square);
    real r = 1 / real_sqrt((real)square / (real)width + (real)eps);
    for (int64_t k = threadIdx.x; k < width; k += blockDim.x) {
        real y = A::rb((real)weight_at(gain, 0, k) * (x[k] * r));
        x[k] = y;
        if (xq) {                       /* width is a multiple of 32, so a warp holds a block of 32 */
            double s = ue8m0_value(fp8q32_scale((double)y));
            xq[k] = (real)(e4m3_value(e4m3_encode((double)y / s)) * s);
        }
    }
    __syncthreads();
}

template <class A>
static __global__ void collapse_kernel(dev d, const void *pre_in, dev_weight gain, void *x_out, void *xq_out,
                                       bool indexed) {
    typedef typename A::real real;
    uint32_t row = d.active[blockIdx.x];
    uint64_t at = indexed ? row : blockIdx.x;
    typedef typename A::stream stream;
    const stream *h = (const stream *)d.h + (uint64_t)row * d.hc * d.hidden;
    const real *pre = (const real *)pre_in + (uint64_t)row * d.hc;
    real *x = (real *)x_out + at * d.hidden;
    for (int k = threadIdx.x; k < d.hidden; k += blockDim.x) {
        real sum = 0;
        for (int i = 0; i < d.hc; i++) sum += pre[i] * (real)h[(int64_t)i * d.hidden + k];
        x[k] = A::rb(sum);
    }
    if (gain.kind == CEDAR_W_NONE) return;
    norm_row<A>(x, d.hidden, gain, d.norm_eps, xq_out ? (real *)xq_out + at * d.hidden : NULL);
}

template <class A>
void launch_collapse(const dev &d, uint32_t n, const void *pre, const dev_weight &gain, void *x, void *xq,
                     bool out_indexed, cudaStream_t s) {
    collapse_kernel<A><<<n, ROW_THREADS, 0, s>>>(d, pre, gain, x, xq, out_indexed);
}

template <class A> static __global__ void norm_kernel(dev_weight gain, void *x, int64_t width, double eps, void *xq) {
    typedef typename A::real real;
    norm_row<A>((real *)x + blockIdx.x * width, width, gain, eps, xq ? (real *)xq + blockIdx.x * width : NULL);
}

template <class A>
void launch_norm(const dev &d, uint32_t n, const dev_weight &gain, void *x, int64_t width, void *xq, cudaStream_t s) {
    norm_kernel<A><<<n, ROW_THREADS, 0, s>>>(gain, x, width, d.norm_eps, xq);
}

template <class A> static __global__ void quantise_kernel(const void *x, void *xq, int64_t count) {
    typedef typename A::real real;
    int64_t k = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    double v = k < count ? (double)((const real *)x)[k] : 0;
    double s = ue8m0_value(fp8q32_scale(v));
    if (k < count) ((real *)xq)[k] = (real)(e4m3_value(e4m3_encode(v / s)) * s);
}

template <class A> void launch_quantise(const void *x, void *xq, int64_t blocks, cudaStream_t s) {
    quantise_kernel<A><<<(unsigned)((blocks * 32 + 255) / 256), 256, 0, s>>>(x, xq, blocks * 32);
}

/* Four neighbouring channels of all streams a thread. */
enum { EXPAND_THREADS = 256 };
template <class A> static __global__ void __launch_bounds__(EXPAND_THREADS) expand_kernel(dev d, const void *y_in) {
    allow_launch();
    int k = blockIdx.y * EXPAND_THREADS + threadIdx.x;
    if (k < d.hidden / 4)
        expand_quad<A>(d, d.active[blockIdx.x], k,
                       (const typename A::real *)y_in + (uint64_t)blockIdx.x * d.hidden + 4 * k);
}

template <class A> void launch_expand(const dev &d, uint32_t n, const void *y, cudaStream_t s) {
    expand_kernel<A><<<dim3(n, (d.hidden / 4 + EXPAND_THREADS - 1) / EXPAND_THREADS), EXPAND_THREADS, 0, s>>>(d, y);
}

/* A sum of mixed words: atomic, since whole numbers add up the same in any order. */
static __global__ void digest_kernel(dev d, unsigned long long *digest) {
    uint32_t row = d.active[blockIdx.x], words = (uint32_t)d.hc * d.hidden * d.stream_bytes / 4;
    const uint32_t *h = (const uint32_t *)d.h + (uint64_t)row * words;
    unsigned long long sum = 0;
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) {
        unsigned long long v = ((unsigned long long)(blockIdx.x * words + i) << 32 | h[i]) * 0x9E3779B97F4A7C15ull;
        sum += (v ^ v >> 29) * 0xBF58476D1CE4E5B9ull;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) atomicAdd(digest, sum);
}

void launch_digest(const dev &d, uint32_t n, unsigned long long *digest, cudaStream_t s) {
    cudaMemsetAsync(digest, 0, sizeof *digest, s);
    digest_kernel<<<n, 512, 0, s>>>(d, digest);
}

template <class A> static __global__ void feature_kernel(dev d, int slot) {
    typedef typename A::real real;
    uint32_t row = d.active[blockIdx.x];
    typedef typename A::stream stream;
    const stream *h = (const stream *)d.h + (uint64_t)row * d.hc * d.hidden;
    real *out = (real *)d.features + ((uint64_t)row * d.targets + slot) * d.hidden;
    for (int k = threadIdx.x; k < d.hidden; k += blockDim.x) {
        real sum = 0;
        for (int i = 0; i < d.hc; i++) sum += (real)h[(int64_t)i * d.hidden + k];
        out[k] = A::rb(sum / (real)d.hc);
    }
}

template <class A> void launch_feature(const dev &d, uint32_t n, int slot, cudaStream_t s) {
    feature_kernel<A><<<n, ROW_THREADS, 0, s>>>(d, slot);
}

#define INSTANTIATE(A)                                                                                                 \
    template void launch_begin<A>(const dev &, uint32_t, const double *, cudaStream_t);                                \
    template void launch_embed<A>(const dev &, uint32_t, const dev_weight &, cudaStream_t);                            \
    template void launch_hc<A>(const dev &, uint32_t, const hc_site &, void *, cudaStream_t);                          \
    template void launch_collapse<A>(const dev &, uint32_t, const void *, const dev_weight &, void *, void *, bool,    \
                                     cudaStream_t);                                                                    \
    template void launch_expand<A>(const dev &, uint32_t, const void *, cudaStream_t);                                 \
    template void launch_norm<A>(const dev &, uint32_t, const dev_weight &, void *, int64_t, void *, cudaStream_t);    \
    template void launch_quantise<A>(const void *, void *, int64_t, cudaStream_t);                                     \
    template void launch_feature<A>(const dev &, uint32_t, int, cudaStream_t);
CEDAR_ARITHMETICS(INSTANTIATE)
