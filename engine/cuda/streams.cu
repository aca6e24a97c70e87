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

enum { EMBED_THREADS = 256 };
template <class A> static __global__ void embed_kernel(dev d, dev_weight w) {
    typedef typename A::real real;
    typedef typename A::stream stream;
    uint32_t row = d.active[blockIdx.x];
    int k = blockIdx.y * EMBED_THREADS + threadIdx.x;
    if (k < d.hc) ((real *)d.pre)[(uint64_t)row * d.hc + k] = k == 0;
    if (k >= d.hidden) return;
    stream *h = (stream *)d.h + (uint64_t)row * d.hc * d.hidden + k,
           v = (stream)(real)weight_at(w, d.row_token[row], k);
    for (int i = 0; i < d.hc; i++) h[(int64_t)i * d.hidden] = v;
}

template <class A> void launch_embed(const dev &d, uint32_t n, const dev_weight &embed, cudaStream_t s) {
    unsigned parts = (unsigned)((d.hidden + EMBED_THREADS - 1) / EMBED_THREADS);
    embed_kernel<A><<<dim3(n, parts), EMBED_THREADS, 0, s>>>(d, embed);
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
    await_launch();
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

enum { FEW_OUTPUTS = 3 };

/* Four channels of a row added to the sums of its products with each output's weights and to that of its squares. */
template <class real, class stream, class sum>
static __device__ __forceinline__ void add_quad(const stream *h, const float4 *w, sum *dot) {
    sum x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = (sum)(real)h[i];
        dot[FEW_OUTPUTS] = fma(x[i], x[i], dot[FEW_OUTPUTS]);
    }
#pragma unroll
    for (int n = 0; n < FEW_OUTPUTS; n++) {
        dot[n] = fma(x[0], (sum)w[n].x, dot[n]);
        dot[n] = fma(x[1], (sum)w[n].y, dot[n]);
        dot[n] = fma(x[2], (sum)w[n].z, dot[n]);
        dot[n] = fma(x[3], (sum)w[n].w, dot[n]);
    }
}

/* Sum over four lanes whose numbers differ in the two bits from `step` on: ((0+1) + (2+3)) seen from each lane. */
template <class R> static __device__ R quad_sum(R v, int step) {
    R one = __shfl_xor_sync(0xffffffffu, v, step), two = __shfl_xor_sync(0xffffffffu, v, 2 * step),
      three = __shfl_xor_sync(0xffffffffu, v, 3 * step);
    return (v + one) + (two + three);
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

/* comb of a row from its logits by one lane, for any number of streams. */
template <class R> static __device__ void sinkhorn_serial(const R *logit, int n, int iters, R eps, R *out) {
    R comb[CEDAR_HC_MAX * CEDAR_HC_MAX];
    for (int j = 0; j < n; j++) {
        R *r = comb + j * n, top = -INFINITY, sum = 0;
        for (int k = 0; k < n; k++) {
            r[k] = logit[j * n + k];
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

static __device__ inline float near_reciprocal(float b) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
    return r;
}

/* a / b for operands and results between QUOTIENT_MIN and its inverse: the steps that the compiler makes of a division,
 * without its test for other operands and the branch that waits for it. */
static constexpr float QUOTIENT_MIN = 0x1p-40f;
static __device__ inline float quotient(float a, float b) {
    float r = near_reciprocal(b);
    r = fmaf(r, fmaf(-b, r, 1), r);
    float q = a * r;
    return fmaf(r, fmaf(-b, q, a), q);
}

struct divided {
    template <class R> static __device__ R of(R a, R b) { return a / b; }
};
struct divided_quickly {
    static __device__ float of(float a, float b) { return quotient(a, b); }
};

/* Columns, then `iters` - 1 times rows and columns, divided by their sums. *low: the least v on the way. */
template <class division, class R> static __device__ R sinkhorn_rounds(R v, int iters, R eps, R *low) {
    v = division::of(v, quad_sum(v, 4) + eps);
    for (int k = 1; k < iters; k++) {
        *low = min(*low, v);
        v = division::of(v, quad_sum(v, 1) + eps);
        *low = min(*low, v);
        v = division::of(v, quad_sum(v, 4) + eps);
    }
    *low = min(*low, v);
    return v;
}

/* comb of a row of four streams by a warp: four lanes of a row (bits 0-1), four rows (bits 2-3); lanes 16-31 repeat
 * lanes 0-15. */
template <class R> static __device__ R sinkhorn_four(R logit, int iters, R eps) {
    R top = logit;
    top = max_of(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = max_of(top, __shfl_xor_sync(0xffffffffu, top, 2));
    R v = real_exp(logit - top);
    v = v / quad_sum(v, 1) + eps;
    R low = v;
    if constexpr (std::is_same<R, float>::value) {
        /* no v exceeds its sum, and what is not a number stays that: the range is left at the lower end, or for good */
        R quick = sinkhorn_rounds<divided_quickly>(v, iters, eps, &low);
        if (__all_sync(0xffffffffu, low >= QUOTIENT_MIN && quick <= 2)) return quick;
    }
    return sinkhorn_rounds<divided>(v, iters, eps, &low);
}

/* Parts of a projection, `step` apart, asked for at once and added in order. */
static __device__ __forceinline__ double parts_sum(const double *partial, int step) {
    double part[HC_SPLITS], sum = 0;
#pragma unroll
    for (int s = 0; s < HC_SPLITS; s++) part[s] = __ldcg(partial + s * step);
#pragma unroll
    for (int s = 0; s < HC_SPLITS; s++) sum += part[s];
    return sum;
}

/* The coefficients of a row by a warp, which adds up the parts of its projections: a lane has outputs 32 apart, and one
 * past the last has the squares; that makes the logits of all, then lane j n + k holds comb[j][k] where that fits. */
enum { HC_OUTPUTS_MAX = (2 + CEDAR_HC_MAX) * CEDAR_HC_MAX };
template <class A> struct hc_row {
    typedef typename A::real real;
    enum { EACH = (HC_OUTPUTS_MAX + 31) / 32 };
    real bias[EACH], factor[EACH];

    /* What no launch writes. */
    __device__ __forceinline__ hc_row(const dev &d, const dev_weight &base, const dev_weight &scale, int outputs) {
        int lane = threadIdx.x % 32, n = d.hc;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int k = min(lane + 32 * e, outputs - 1);
            bias[e] = (real)((const float *)base.data)[k];
            factor[e] = (real)((const float *)scale.data)[k < n ? 0 : k < 2 * n ? 1 : 2];
        }
    }

    /* logit [outputs] in shared memory. */
    __device__ __forceinline__ void make(const dev &d, uint32_t row, int outputs, real *logit, void *pre_out) const {
        int lane = threadIdx.x % 32, n = d.hc;
        const double *partial = d.hc_partial + (uint64_t)row * HC_SPLITS * (outputs + 1);
        double sum[EACH], square = 0;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (32 * e > outputs) break;
            square = sum[e] = parts_sum(partial + min(lane + 32 * e, outputs), outputs + 1);
        }
        square = __shfl_sync(0xffffffffu, square, 31);
        real norm = real_sqrt((real)square / (real)((int64_t)n * d.hidden) + (real)d.norm_eps), eps = (real)d.hc_eps;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            int k = lane + 32 * e;
            if (k < outputs) logit[k] = (real)sum[e] / norm * factor[e] + bias[e];
        }
        __syncwarp();
        if (lane < 2 * n) {
            real share = sigmoid(logit[lane]);
            if (lane < n) ((real *)pre_out)[(uint64_t)row * n + lane] = share + eps;
            else ((real *)d.post)[(uint64_t)row * n + lane - n] = 2 * share;
        }
        real *out = (real *)d.comb + (uint64_t)row * n * n;
        if (n == 4) {
            real v = sinkhorn_four(logit[8 + lane % 16], d.hc_iters, eps);
            if (lane < 16) out[lane] = v;
        } else if (lane == 0) sinkhorn_serial(logit + 2 * n, n, d.hc_iters, eps, out);
    }
};

/* One warp per row. */
enum { HC_THREADS = 128 };
template <class A>
static __global__ void __launch_bounds__(HC_THREADS, 1)
    hc_coefficients(dev d, dev_weight base, dev_weight scale, void *pre_out, uint32_t count, int outputs) {
    __shared__ typename A::real logits[HC_THREADS / 32][HC_OUTPUTS_MAX];
    uint32_t i = (blockIdx.x * HC_THREADS + threadIdx.x) / 32;
    if (i >= count) return;
    hc_row<A> of(d, base, scale, outputs);
    await_launch();
    of.make(d, d.active[i], outputs, logits[threadIdx.x / 32], pre_out);
}

/* Whether this warp is the last of `all` to come here; what the others wrote before is then visible to it. */
static __device__ __forceinline__ bool comes_last(uint32_t *tickets, uint32_t all) {
    uint32_t before = 0;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        before = atomicAdd(tickets, 1);
        if (before == all - 1) *tickets = 0;
        __threadfence();
    }
    __syncwarp();
    return __shfl_sync(0xffffffffu, before, 0) == all - 1;
}

/* hc_project for ROWS rows and three outputs a warp: everything of ROUNDS rounds is asked for at once. Weights, which
 * no launch writes, are on their way before the streams are there. Of a row by itself the last warp that is done makes
 * the coefficients, where another kernel would have to wait for room beside the linear layers. */
enum { HC_ALONE = 8 };          /* rows that are by themselves */
template <class A, class sum, int ROWS, int ROUNDS>
static __global__ void __launch_bounds__(32)
    hc_project_few(dev d, dev_weight fn, dev_weight base, dev_weight scale, void *pre_out, uint32_t count) {
    typedef typename A::real real;
    typedef typename A::stream stream;
    struct __align__(4 * sizeof(stream)) quad { stream v[4]; };
    int quads = d.hc * d.hidden / 4, begin = quads * (int)blockIdx.z / HC_SPLITS,
        end = quads * ((int)blockIdx.z + 1) / HC_SPLITS;
    int n0 = blockIdx.y * FEW_OUTPUTS, lane = threadIdx.x, outputs = (int)fn.rows;
    uint32_t row[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) row[r] = d.active[min(blockIdx.x * ROWS + r, count - 1)];
    const float4 *w[FEW_OUTPUTS];
#pragma unroll
    for (int n = 0; n < FEW_OUTPUTS; n++) w[n] = (const float4 *)fn.data + (int64_t)min(n0 + n, outputs - 1) * quads;
    sum dot[ROWS][FEW_OUTPUTS + 1] = {};        /* the last one is that of squares */
    do {
        int k = begin + lane;
        float4 weight[ROUNDS][FEW_OUTPUTS];
        quad x[ROUNDS][ROWS];
#pragma unroll
        for (int j = 0; j < ROUNDS; j++)
#pragma unroll
            for (int n = 0; n < FEW_OUTPUTS; n++)
                if (k + 32 * j < end) weight[j][n] = w[n][k + 32 * j];
        await_launch();
#pragma unroll
        for (int j = 0; j < ROUNDS; j++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (k + 32 * j < end) x[j][r] = ((const quad *)d.h + (uint64_t)row[r] * quads)[k + 32 * j];
        if (ROWS > 1) allow_launch();           /* of what makes the coefficients */
#pragma unroll
        for (int j = 0; j < ROUNDS; j++)
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (k + 32 * j < end) add_quad<real>(x[j][r].v, weight[j], dot[r]);
        begin += 32 * ROUNDS;
    } while (begin < end);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int o = 16; o; o /= 2)
#pragma unroll
            for (int n = 0; n <= FEW_OUTPUTS; n++) dot[r][n] += __shfl_down_sync(0xffffffffu, dot[r][n], o);
        if (lane || blockIdx.x * ROWS + r >= count) continue;
        double *out = d.hc_partial + ((uint64_t)row[r] * HC_SPLITS + blockIdx.z) * (outputs + 1);
        if (blockIdx.y == 0) out[outputs] = (double)dot[r][FEW_OUTPUTS];
#pragma unroll
        for (int n = 0; n < FEW_OUTPUTS; n++)
            if (n0 + n < outputs) out[n0 + n] = (double)dot[r][n];
    }
    if constexpr (ROWS == 1) {
        __shared__ real logits[HC_OUTPUTS_MAX];
        if (!comes_last(d.hc_tickets + blockIdx.x, gridDim.y * gridDim.z)) return;
        hc_row<A>(d, base, scale, outputs).make(d, row[0], outputs, logits, pre_out);
    }
}

template <class A> void launch_hc(const dev &d, uint32_t n, const hc_site &site, void *pre, chain s) {
    unsigned outputs = (unsigned)site.fn.rows;
    /* bf16 streams: a product has at most 32 bits, and a lane adds few of them */
    typedef typename std::conditional<std::is_same<A, bf16>::value, float, double>::type sum;
    constexpr bool narrow = std::is_same<A, bf16>::value;
    unsigned parts = (outputs + FEW_OUTPUTS - 1) / FEW_OUTPUTS;
    if (n <= HC_ALONE) {
        launch_chained(hc_project_few<A, sum, 1, narrow ? 10 : 4>, dim3(n, parts, HC_SPLITS), 32, 0, s, d, site.fn,
                       site.base, site.scale, pre, n);
        return;
    }
    if (n <= 32)                                /* weights read for four rows at once */
        launch_chained(hc_project_few<A, sum, 4, narrow ? 5 : 2>, dim3((n + 3) / 4, parts, HC_SPLITS), 32, 0, s, d,
                       site.fn, site.base, site.scale, pre, n);
    else
        launch_chained(hc_project<A, sum, 4, 12>, dim3((n + 31) / 32, (outputs + 11) / 12, HC_SPLITS), 256, 0, s, d,
                       site.fn, n);
    launch_chained(hc_coefficients<A>, (n + 3) / 4, HC_THREADS, 0, chain{ s.stream, true }, d, site.base, site.scale,
                   pre, n, (int)outputs);
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

/* A sum of mixed words: atomic, since whole numbers add up the same in any order. Blocks share a row. */
static __global__ void digest_kernel(dev d, unsigned long long *digest) {
    uint32_t row = d.active[blockIdx.x], words = (uint32_t)d.hc * d.hidden * d.stream_bytes / 4;
    const uint32_t *h = (const uint32_t *)d.h + (uint64_t)row * words;
    unsigned long long sum = 0;
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < words; i += gridDim.y * blockDim.x) {
        unsigned long long v = ((unsigned long long)(blockIdx.x * words + i) << 32 | h[i]) * 0x9E3779B97F4A7C15ull;
        sum += (v ^ v >> 29) * 0xBF58476D1CE4E5B9ull;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) atomicAdd(digest, sum);
}

void launch_digest(const dev &d, uint32_t n, unsigned long long *digest, cudaStream_t s) {
    cudaMemsetAsync(digest, 0, sizeof *digest, s);
    digest_kernel<<<dim3(n, 16), 512, 0, s>>>(d, digest);
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
    template void launch_hc<A>(const dev &, uint32_t, const hc_site &, void *, chain);                                 \
    template void launch_collapse<A>(const dev &, uint32_t, const void *, const dev_weight &, void *, void *, bool,    \
                                     cudaStream_t);                                                                    \
    template void launch_expand<A>(const dev &, uint32_t, const void *, cudaStream_t);                                 \
    template void launch_norm<A>(const dev &, uint32_t, const dev_weight &, void *, int64_t, void *, cudaStream_t);    \
    template void launch_quantise<A>(const void *, void *, int64_t, cudaStream_t);                                     \
    template void launch_feature<A>(const dev &, uint32_t, int, cudaStream_t);
CEDAR_ARITHMETICS(INSTANTIATE)
