/* Linear layers for any shape and arithmetic: weights decoded as they are read, sums in double in ascending k. The
 * tiled kernels for real shapes live elsewhere; this one is what they are compared with. */
#include "engine/cuda/ops.cuh"

enum { TILE_N = 64, TILE_T = 8, TILE_K = 32 };

template <class A>
static __global__ void linear_kernel(dev d, dev_weight w, int64_t n_first, int64_t n_count, dev_rows xr, dev_rows yr,
                                     uint32_t rows, bool round) {
    typedef typename A::real real;
    __shared__ double x[TILE_T][TILE_K];
    __shared__ double wt[TILE_K][TILE_N + 1];
    int64_t n = (int64_t)blockIdx.x * TILE_N + threadIdx.x;
    uint32_t t_first = blockIdx.y * TILE_T;
    double acc[TILE_T] = { 0 };
    for (int64_t k0 = 0; k0 < w.cols; k0 += TILE_K) {
        int kn = (int)(w.cols - k0 < TILE_K ? w.cols - k0 : TILE_K);
        __syncthreads();
        for (int i = threadIdx.x; i < TILE_T * TILE_K; i += TILE_N) {
            uint32_t t = t_first + i / TILE_K;
            int k = i % TILE_K;
            uint64_t row = t < rows ? (xr.indexed ? d.active[t] : t) : 0;
            x[i / TILE_K][k] = t < rows && k < kn ? (double)((const real *)xr.base)[row * xr.ld + k0 + k] : 0;
        }
        for (int i = threadIdx.x; i < TILE_N * TILE_K; i += TILE_N) {
            int64_t nn = (int64_t)blockIdx.x * TILE_N + i / TILE_K;
            int k = i % TILE_K;
            wt[k][i / TILE_K] = nn < n_count && k < kn ? (double)(real)weight_at(w, n_first + nn, k0 + k) : 0;
        }
        __syncthreads();
        for (int k = 0; k < kn; k++)
            for (int t = 0; t < TILE_T; t++) acc[t] = __dadd_rn(acc[t], __dmul_rn(wt[k][threadIdx.x], x[t][k]));
    }
    if (n >= n_count) return;
    for (int t = 0; t < TILE_T && t_first + t < rows; t++) {
        uint64_t row = yr.indexed ? d.active[t_first + t] : t_first + t;
        real v = (real)acc[t];
        ((real *)yr.base)[row * yr.ld + n] = round ? A::rb(v) : v;
    }
}

template <class A> void launch_linear(const dev &d, uint32_t n, const dev_weight &w, int64_t n_first, int64_t n_count,
                                      const dev_rows &x, const dev_rows &y, bool round, cudaStream_t s) {
    if (n == 0) return;
    dim3 grid((unsigned)((n_count + TILE_N - 1) / TILE_N), (n + TILE_T - 1) / TILE_T);
    linear_kernel<A><<<grid, TILE_N, 0, s>>>(d, w, n_first, n_count, x, y, n, round);
}

#define INSTANTIATE(A)                                                                                                 \
    template void launch_linear<A>(const dev &, uint32_t, const dev_weight &, int64_t, int64_t, const dev_rows &,      \
                                   const dev_rows &, bool, cudaStream_t);
CEDAR_ARITHMETICS(INSTANTIATE)
