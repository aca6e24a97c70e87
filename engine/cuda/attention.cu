/* Window rows, rotary embedding, sink attention, ring commits (spec/model.md 2.3, 2.5, 2.8, 2.11). */
#include "engine/cuda/ops.cuh"

template <class A> static __device__ const typename A::real *table_of(const dev &d, int kind, uint32_t row) {
    return (const typename A::real *)d.table + ((uint64_t)kind * d.row_max + row) * d.rope;
}

template <class A>
static __device__ void rotate(typename A::real *tail, const typename A::real *t, int pair, int sign) {
    typedef typename A::real real;
    real a = tail[2 * pair], b = tail[2 * pair + 1], co = t[2 * pair],
         si = sign < 0 ? -t[2 * pair + 1] : t[2 * pair + 1];
    tail[2 * pair] = A::rb(a * co - b * si);
    tail[2 * pair + 1] = A::rb(a * si + b * co);
}

template <class A> static __global__ void rope_kernel(dev d, void *q, int heads, int width, int kind, int sign) {
    typedef typename A::real real;
    uint32_t row = d.active[blockIdx.x];
    const real *t = table_of<A>(d, kind, row);
    int pairs = d.rope / 2;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < heads * pairs; i += gridDim.y * blockDim.x) {
        real *tail = (real *)q + ((uint64_t)blockIdx.x * heads + i / pairs) * width + width - d.rope;
        rotate<A>(tail, t, i % pairs, sign);
    }
}

template <class A>
void launch_rope_heads(const dev &d, uint32_t n, void *q, int heads, int width, int kind, int sign, cudaStream_t s) {
    rope_kernel<A><<<dim3(n, (unsigned)(heads * d.rope / 2 + 127) / 128), 128, 0, s>>>(d, q, heads, width, kind, sign);
}

/* Norm, rotation and FP8 record of a row. A thread has EACH channels, WINDOW_THREADS apart; gains and the table are on
 * their way before the values are there. */
enum { WINDOW_THREADS = 512, WINDOW_EACH_MAX = 4096 / WINDOW_THREADS };
template <class A, int EACH>
static __global__ void __launch_bounds__(WINDOW_THREADS, 1)
    window_kernel(dev d, dev_weight gain, const void *kv_in, int kind) {
    typedef typename A::real real;
    uint32_t row = d.active[blockIdx.x];
    int tail = d.head_dim - d.rope;
    const real *kv = (const real *)kv_in + (uint64_t)blockIdx.x * d.head_dim, *t = table_of<A>(d, kind, row);
    uint8_t *record = d.window_rows + (uint64_t)row * d.l->ring_row_bytes;
    real x[EACH], g[EACH], co[EACH], si[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int k = threadIdx.x + j * WINDOW_THREADS;
        if (k >= d.head_dim) break;
        g[j] = (real)bf16_value(((const uint16_t *)gain.data)[k]);
        if (k < tail) continue;
        co[j] = t[(k - tail) / 2 * 2];
        si[j] = t[(k - tail) / 2 * 2 + 1];
    }
    await_launch();
    double square = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        if (threadIdx.x + j * WINDOW_THREADS < d.head_dim) x[j] = kv[threadIdx.x + j * WINDOW_THREADS];
    allow_launch();
#pragma unroll
    for (int j = 0; j < EACH; j++)
        if (threadIdx.x + j * WINDOW_THREADS < d.head_dim) square += (double)x[j] * (double)x[j];
    square = block_sum(square);
    real r = 1 / real_sqrt((real)square / (real)d.head_dim + (real)d.norm_eps);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int k = threadIdx.x + j * WINDOW_THREADS;
        if (k >= d.head_dim) break;             /* whole warps: there are 32 m channels, an even number in the tail */
        real y = A::rb(g[j] * (x[j] * r)), other = __shfl_xor_sync(0xffffffffu, y, 1);
        if (k >= tail) y = A::rb(k % 2 ? other * si[j] + y * co[j] : y * co[j] - other * si[j]);
        uint8_t s = fp8q32_scale((double)y);
        record[k] = e4m3_encode((double)y / ue8m0_value(s));
        if (k % 32 == 0) record[d.head_dim + k / 32] = s;
    }
}

template <class A>
void launch_window_rows(const dev &d, uint32_t n, const dev_weight &gain, const void *kv, int kind, chain s) {
    bool one = d.head_dim <= WINDOW_THREADS;
    launch_chained(one ? window_kernel<A, 1> : window_kernel<A, WINDOW_EACH_MAX>, n, WINDOW_THREADS, 0, s, d, gain, kv,
                   kind);
}

static __global__ void commit_ring_kernel(dev d, uint32_t ring) {
    uint32_t row = d.active[blockIdx.x], p = d.row_pos[row];
    int32_t i = d.row_entry[row];
    const dev_entry &e = d.entries[i];
    if (p + d.l->ring_slots < e.pos + e.rows) return;
    uint8_t *to = dev_ring(d, e.seq, ring, p);
    const uint8_t *from = d.window_rows + (uint64_t)row * d.l->ring_row_bytes;
    for (uint32_t k = threadIdx.x; k < d.l->ring_row_bytes; k += blockDim.x) to[k] = from[k];
}

template <class A> void launch_commit_ring(const dev &d, uint32_t n, uint32_t ring, cudaStream_t s) {
    commit_ring_kernel<<<n, 128, 0, s>>>(d, ring);
}

static __global__ void commit_windows_kernel(dev d, int layer, int lo_kind) {
    const dev_entry &e = d.entries[blockIdx.x];
    uint32_t end = e.pos + e.rows, first = end > d.l->ring_slots ? end - d.l->ring_slots : 0;
    if (first < e.pos) first = e.pos;
    if (first < e.lo[lo_kind]) first = e.lo[lo_kind];
    for (uint32_t p = first + blockIdx.y; p < end; p += gridDim.y) {
        uint8_t *to = dev_ring(d, e.seq, (uint32_t)layer, p);
        const uint8_t *from = d.window_rows + (uint64_t)(e.first_row + (p - e.pos)) * d.l->ring_row_bytes;
        for (uint32_t k = threadIdx.x; k < d.l->ring_row_bytes; k += blockDim.x) to[k] = from[k];
    }
}

void launch_commit_windows(const dev &d, uint32_t entries, int layer, int lo_kind, cudaStream_t s) {
    commit_windows_kernel<<<dim3(entries, 16), 128, 0, s>>>(d, layer, lo_kind);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Where a key's bytes lie: a ring-type record (codes, scales) or a global entry. */
struct key_ref {
    const uint8_t *code, *scale;
    bool fp4;
};

static __device__ double key_value(const key_ref &r, int k) {
    if (!r.code) return 0;
    if (!r.fp4) return e4m3_value(r.code[k]) * ue8m0_value(r.scale[k / 32]);
    uint8_t b = r.code[k / 2];
    return e2m1_value(k & 1 ? b >> 4 : b & 15) * e4m3_value(r.scale[k / 16]);
}

static __device__ key_ref ring_ref(const dev &d, const uint8_t *record) {
    key_ref r = { record, record + d.head_dim, false };
    return r;
}

static __device__ key_ref global_ref(const dev &d, const dev_entry &e, const cedar_page_part &p, uint32_t j) {
    const uint8_t *page = dev_page(d, e.seq, j / p.entries);
    uint32_t at = j % p.entries;
    key_ref r = { page + p.kv_codes + (uint64_t)at * d.l->kv_code_bytes,
                  page + p.kv_scales + (uint64_t)at * d.l->kv_scale_bytes, true };
    return r;
}

/* Softmax over `count` keys with a sink, one block per (row, head). q [d] becomes o [d]. shared: logits [count],
 * refs. */
template <class A>
static __device__ void attend(const dev &d, typename A::real *q, const key_ref *refs, typename A::real *logit,
                              int count, typename A::real sink) {
    typedef typename A::real real;
    real scale = (real)(1 / sqrt((double)d.head_dim));
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int n = warp; n < count; n += warps) {
        double dot = 0;
        for (int k = lane; k < d.head_dim; k += 32) dot += (double)q[k] * (double)(real)key_value(refs[n], k);
        for (int o = 16; o; o /= 2) dot += __shfl_down_sync(0xffffffffu, dot, o);
        if (lane == 0) logit[n] = (real)dot * scale;
    }
    __syncthreads();
    real top = (real)-1e30, total = 0;
    for (int n = 0; n < count; n++)
        if (logit[n] > top) top = logit[n];
    __syncthreads();
    for (int n = threadIdx.x; n < count; n += blockDim.x) logit[n] = real_exp(logit[n] - top);
    __syncthreads();
    for (int n = 0; n < count; n++) total += logit[n];
    total += real_exp(sink - top);
    for (int k = threadIdx.x; k < d.head_dim; k += blockDim.x) {
        real o = 0;
        for (int n = 0; n < count; n++) o += A::rb(logit[n]) * (real)key_value(refs[n], k);
        q[k] = A::rb(o / total);
    }
}

template <class A>
static __global__ void attention_kernel(dev d, int layer, int part, int lo_kind, void *q, dev_weight sink) {
    typedef typename A::real real;
    extern __shared__ __align__(16) uint8_t shared[];
    uint32_t row = d.active[blockIdx.x], p = d.row_pos[row];
    const dev_entry &e = d.entries[d.row_entry[row]];
    uint32_t from = p + 1 > (uint32_t)d.window ? p + 1 - d.window : 0;
    if (from < e.lo[lo_kind]) from = e.lo[lo_kind];
    int windowed = (int)(p + 1 - from), count = windowed;
    const int32_t *ids = d.topk_ids + (uint64_t)row * d.topk;
    __shared__ int picked;
    if (threadIdx.x == 0) {
        picked = 0;
        while (part >= 0 && picked < d.topk && ids[picked] >= 0) picked++;
    }
    __syncthreads();
    count += picked;
    key_ref *refs = (key_ref *)shared;
    real *logit = (real *)(shared + (size_t)(d.window + d.topk) * sizeof(key_ref));
    for (int n = threadIdx.x; n < count; n += blockDim.x) {
        uint32_t pos = from + n;
        if (n >= windowed) refs[n] = global_ref(d, e, d.l->part[part], (uint32_t)ids[n - windowed]);
        else if (pos >= e.pos)
            refs[n] = ring_ref(d, d.window_rows + (uint64_t)(e.first_row + (pos - e.pos)) * d.l->ring_row_bytes);
        else refs[n] = ring_ref(d, dev_ring(d, e.seq, (uint32_t)layer, pos));
    }
    __syncthreads();
    attend<A>(d, (real *)q + ((uint64_t)blockIdx.x * d.heads + blockIdx.y) * d.head_dim, refs, logit, count,
              (real)((const float *)sink.data)[blockIdx.y]);
}

static size_t attention_shared(const dev &d, int keys) { return (size_t)keys * (sizeof(key_ref) + d.real_bytes); }

template <class A>
void launch_attention(const dev &d, uint32_t n, int layer, int part, int lo_kind, void *q, const dev_weight &sink,
                      cudaStream_t s) {
    attention_kernel<A>
        <<<dim3(n, d.heads), 64, attention_shared(d, d.window + d.topk), s>>>(d, layer, part, lo_kind, q, sink);
}

/* Draft rows: the ring's rows [lo, pos), then all rows of the block. */
template <class A>
static __global__ void draft_attention_kernel(dev d, uint32_t rows, int32_t seq, uint32_t lo, uint32_t pos, int ring,
                                              void *q, dev_weight sink) {
    typedef typename A::real real;
    extern __shared__ __align__(16) uint8_t shared[];
    int count = (int)(pos - lo + rows);
    key_ref *refs = (key_ref *)shared;
    real *logit = (real *)(shared + (size_t)(d.window + rows) * sizeof(key_ref));
    for (int n = threadIdx.x; n < count; n += blockDim.x)
        refs[n] = lo + n < pos ? ring_ref(d, dev_ring(d, seq, (uint32_t)ring, lo + n))
                               : ring_ref(d, d.window_rows + (uint64_t)(lo + n - pos) * d.l->ring_row_bytes);
    __syncthreads();
    attend<A>(d, (real *)q + ((uint64_t)blockIdx.x * d.heads + blockIdx.y) * d.head_dim, refs, logit, count,
              (real)((const float *)sink.data)[blockIdx.y]);
}

template <class A>
void launch_draft_attention(const dev &d, uint32_t rows, int32_t seq, uint32_t lo, uint32_t pos, int ring, void *q,
                            const dev_weight &sink, cudaStream_t s) {
    draft_attention_kernel<A><<<dim3(rows, d.heads), 64, attention_shared(d, d.window + (int)rows), s>>>(
        d, rows, seq, lo, pos, ring, q, sink);
}

#define INSTANTIATE(A)                                                                                                 \
    template void launch_rope_heads<A>(const dev &, uint32_t, void *, int, int, int, int, cudaStream_t);               \
    template void launch_window_rows<A>(const dev &, uint32_t, const dev_weight &, const void *, int, chain);          \
    template void launch_commit_ring<A>(const dev &, uint32_t, uint32_t, cudaStream_t);                                \
    template void launch_attention<A>(const dev &, uint32_t, int, int, int, void *, const dev_weight &, cudaStream_t); \
    template void launch_draft_attention<A>(const dev &, uint32_t, int32_t, uint32_t, uint32_t, int, void *,           \
                                            const dev_weight &, cudaStream_t);
CEDAR_ARITHMETICS(INSTANTIATE)
