/* Compressors of the KV sources: pooled groups, global rows, index keys (spec/model.md 2.6, 2.7). */
#include "engine/cuda/ops.cuh"

template <class A> static __global__ void store_kernel(dev d, const void *kv, int half, bool round) {
    typedef typename A::real real;
    uint32_t row = d.active[blockIdx.x];
    real *to = (real *)d.comp + ((uint64_t)row * 2 + half) * d.head_dim;
    const real *from = (const real *)kv + (uint64_t)blockIdx.x * d.head_dim;
    for (int k = threadIdx.x; k < d.head_dim; k += blockDim.x) to[k] = round ? A::rb(from[k]) : from[k];
}

template <class A>
void launch_comp_store(const dev &d, uint32_t n, const void *kv, int half, bool round, cudaStream_t s) {
    store_kernel<A><<<n, 128, 0, s>>>(d, kv, half, round);
}

template <class A> static __device__ void rotate_at(typename A::real *tail, const double *freq, int pair, int64_t pos) {
    typedef typename A::real real;
    double angle = (double)pos * freq[pair];
    real co = (real)cos(angle), si = (real)sin(angle), a = tail[2 * pair], b = tail[2 * pair + 1];
    tail[2 * pair] = A::rb(a * co - b * si);
    tail[2 * pair + 1] = A::rb(a * si + b * co);
}

template <class A>
static __device__ void norm_shared(typename A::real *x, int width, const dev_weight &gain, double eps) {
    typedef typename A::real real;
    double square = 0;
    for (int k = threadIdx.x; k < width; k += blockDim.x) square += (double)x[k] * (double)x[k];
    square = block_sum(square);
    real r = 1 / real_sqrt((real)square / (real)width + (real)eps);
    for (int k = threadIdx.x; k < width; k += blockDim.x) x[k] = A::rb((real)weight_at(gain, 0, k) * (x[k] * r));
    __syncthreads();
}

/* One block per row; rows that complete no entry, or one below the write floor, have nothing to do. */
template <class A> static __global__ void groups_kernel(dev d, int part, int ratio, dev_weight norm, dev_weight wk,
                                                        dev_weight k_norm, const double *freq, void *latents) {
    typedef typename A::real real;
    extern __shared__ __align__(16) uint8_t shared[];
    real *z = (real *)shared, *key = z + d.head_dim;
    uint32_t row = d.active[blockIdx.x], last = d.row_pos[row];
    const dev_entry &e = d.entries[d.row_entry[row]];
    const cedar_page_part &p = d.l->part[part];
    if (last % ratio != (uint32_t)ratio - 1 || last < e.write_floor) return;
    uint32_t j = last / ratio, at = j % p.entries;
    const real *member[CEDAR_RATIO_MAX];
    for (int i = 0; i < ratio; i++) {
        uint32_t pos = last - (ratio - 1 - i);
        member[i] = pos >= e.pos ? (const real *)d.comp + (uint64_t)(e.first_row + (pos - e.pos)) * 2 * d.head_dim
                                 : (const real *)dev_open(d, e.seq, part, pos);
    }
    for (int k = threadIdx.x; k < d.head_dim; k += blockDim.x) {
        if (ratio == 1) {
            z[k] = member[0][k];
            continue;
        }
        real top = -INFINITY, sum = 0, out = 0, w[CEDAR_RATIO_MAX];
        for (int i = 0; i < ratio; i++)
            if (member[i][d.head_dim + k] > top) top = member[i][d.head_dim + k];
        for (int i = 0; i < ratio; i++) sum += w[i] = real_exp(member[i][d.head_dim + k] - top);
        for (int i = 0; i < ratio; i++) out += w[i] / sum * member[i][k];
        z[k] = A::rb(out);
    }
    __syncthreads();
    norm_shared<A>(z, d.head_dim, norm, d.norm_eps);
    if (latents)
        for (int k = threadIdx.x; k < d.head_dim; k += blockDim.x)
            ((real *)latents)[(uint64_t)blockIdx.x * d.head_dim + k] = z[k];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int n = warp; n < d.index_dim; n += warps) {
        double dot = 0;
        for (int k = lane; k < d.head_dim; k += 32) dot += (double)z[k] * (double)(real)weight_at(wk, n, k);
        for (int o = 16; o; o /= 2) dot += __shfl_down_sync(0xffffffffu, dot, o);
        if (lane == 0) key[n] = A::rb((real)dot);
    }
    __syncthreads();
    norm_shared<A>(key, d.index_dim, k_norm, d.norm_eps);
    for (int i = threadIdx.x; i < d.rope / 2; i += blockDim.x) {
        rotate_at<A>(key + d.index_dim - d.rope, freq, i, (int64_t)j * ratio);
        rotate_at<A>(z + d.head_dim - d.rope, freq, i, (int64_t)j * ratio);
    }
    __syncthreads();
    if (!dev_owns(d, e.seq, j / p.entries)) return;
    uint8_t *page = dev_page(d, e.seq, j / p.entries);
    for (int b = threadIdx.x; b < d.index_dim / 32; b += blockDim.x) {
        double top = 0;
        for (int k = 0; k < 32; k++) top = fmax(top, fabs((double)key[b * 32 + k]));
        uint8_t s = pow2_ceil_byte(fmax(top, 6 * 0x1p-126), 1.0f / 6);
        uint8_t *code = page + p.index_codes + (uint64_t)at * d.l->index_code_bytes + b * 16;
        for (int k = 0; k < 32; k += 2)
            code[k / 2] = e2m1_encode((double)key[b * 32 + k], ue8m0_value(s)) |
                          e2m1_encode((double)key[b * 32 + k + 1], ue8m0_value(s)) << 4;
        page[p.index_scales + (uint64_t)at * d.l->index_scale_bytes + b] = s;
    }
    for (int b = threadIdx.x; b < d.head_dim / 16; b += blockDim.x) {
        double top = 0;
        for (int k = 0; k < 16; k++) top = fmax(top, fabs((double)z[b * 16 + k]));
        uint8_t s = e4m3_encode(fmax(top, 6 * 0x1p-9) / 6);
        uint8_t *code = page + p.kv_codes + (uint64_t)at * d.l->kv_code_bytes + b * 8;
        for (int k = 0; k < 16; k += 2)
            code[k / 2] = e2m1_encode((double)z[b * 16 + k], e4m3_value(s)) |
                          e2m1_encode((double)z[b * 16 + k + 1], e4m3_value(s)) << 4;
        page[p.kv_scales + (uint64_t)at * d.l->kv_scale_bytes + b] = s;
    }
}

template <class A>
void launch_groups(const dev &d, uint32_t n, int part, int ratio, const dev_weight &norm, const dev_weight &wk,
                   const dev_weight &k_norm, const double *freq, void *latents, cudaStream_t s) {
    groups_kernel<A><<<n, 512, (d.head_dim + d.index_dim) * sizeof(typename A::real), s>>>(d, part, ratio, norm, wk,
                                                                                           k_norm, freq, latents);
}

template <class A> static __global__ void commit_open_kernel(dev d, int part) {
    typedef typename A::real real;
    const dev_entry &e = d.entries[blockIdx.x];
    uint32_t end = e.pos + e.rows, slots = d.l->open_slots[part], first = end > slots ? end - slots : 0;
    for (uint32_t p = first < e.pos ? e.pos : first; p < end; p++) {
        real *to = (real *)dev_open(d, e.seq, part, p);
        const real *from = (const real *)d.comp + (uint64_t)(e.first_row + (p - e.pos)) * 2 * d.head_dim;
        for (int k = threadIdx.x; k < 2 * d.head_dim; k += blockDim.x) to[k] = from[k];
    }
}

template <class A> void launch_commit_open(const dev &d, uint32_t entries, int part, cudaStream_t s) {
    commit_open_kernel<A><<<entries, 128, 0, s>>>(d, part);
}

#define INSTANTIATE(A)                                                                                                 \
    template void launch_comp_store<A>(const dev &, uint32_t, const void *, int, bool, cudaStream_t);                  \
    template void launch_groups<A>(const dev &, uint32_t, int, int, const dev_weight &, const dev_weight &,            \
                                   const dev_weight &, const double *, void *, cudaStream_t);                          \
    template void launch_commit_open<A>(const dev &, uint32_t, int, cudaStream_t);
CEDAR_ARITHMETICS(INSTANTIATE)
