/* Exchange between ranks: the kernels that only exchange, and what they need on the host. */
#include "engine/cuda/exchange.cuh"

enum { SUM_THREADS = 128, AT_ONCE = 4 };

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* A thread's units: COUNT of them `step` apart, of which some may lie past the end. */
template <int COUNT> struct batch {
    uint32_t unit[COUNT];
    bool there[COUNT];
    __device__ __forceinline__ batch(uint32_t first, uint32_t step, uint32_t end) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            unit[j] = first + j * step;
            there[j] = unit[j] < end;
        }
    }
};

/* Inboxes are [ranks, units]. */
template <class W, int COUNT, class Part>
static __global__ void __launch_bounds__(SUM_THREADS)
    one_step(const __grid_constant__ peers p, Part part, uint32_t units, uint4 *out) {
    await_launch();
    if (p.early) allow_launch();
    exchange x(p);
    uint32_t step = gridDim.x * SUM_THREADS;
    for (uint32_t u = blockIdx.x * SUM_THREADS + threadIdx.x; u < units; u += COUNT * step) {
        batch<COUNT> b(u, step, units);
        uint4 mine[COUNT];
        typename W::real sum[COUNT][W::UNIT];
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (b.there[j]) mine[j] = W::full(part(b.unit[j]));
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (b.there[j]) x.send(p, (uint32_t)p.rank * units + b.unit[j], mine[j]);
        x.add<W, COUNT>(p, mine, b.unit, b.there, units, sum);
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (b.there[j]) out[b.unit[j]] = W::give(sum[j]);
    }
    x.done(p);
}

static __device__ uint32_t share_begin(uint32_t units, int rank, int ranks) {
    return (uint32_t)((uint64_t)units * (uint32_t)rank / (uint32_t)ranks);
}

/* Inboxes are [ranks, longest share] for the parts of this rank's share, then [units] for the sums of the others. */
template <class W, class Part>
static __global__ void __launch_bounds__(SUM_THREADS)
    two_steps(const __grid_constant__ peers p, Part part, uint32_t units, uint32_t longest, uint4 *out) {
    await_launch();
    if (p.early) allow_launch();
    exchange x(p);
    uint32_t step = gridDim.x * SUM_THREADS, me = blockIdx.x * SUM_THREADS + threadIdx.x,
             begin = share_begin(units, p.rank, p.ranks), end = share_begin(units, p.rank + 1, p.ranks),
             sums = (uint32_t)p.ranks * longest;
    for (int i = 1; i < p.ranks; i++) {                 /* not all to the same one at first */
        int to = (p.rank + i) % p.ranks;
        uint32_t b = share_begin(units, to, p.ranks), e = share_begin(units, to + 1, p.ranks);
        for (uint32_t u = b + me; u < e; u += step)
            put16(x.inbox(p, to) + (uint32_t)p.rank * longest + (u - b), W::full(part(u)));
    }
    for (uint32_t u = begin + me; u < end; u += AT_ONCE * step) {
        batch<AT_ONCE> b(u, step, end), place(u - begin, step, end - begin);
        uint4 mine[AT_ONCE];
        typename W::real sum[AT_ONCE][W::UNIT];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (b.there[j]) mine[j] = part(b.unit[j]);
        x.add<W, AT_ONCE>(p, mine, place.unit, b.there, longest, sum);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (!b.there[j]) continue;
            uint4 v = W::full(W::give(sum[j]));
            x.send(p, sums + b.unit[j], v);
            out[b.unit[j]] = v;
        }
    }
    for (int i = 1; i < p.ranks; i++) {
        int from = (p.rank + i) % p.ranks;
        uint32_t e = share_begin(units, from + 1, p.ranks);
        uint4 *own = x.inbox(p, p.rank) + sums;
        for (uint32_t u = share_begin(units, from, p.ranks) + me; u < e; u += AT_ONCE * step) {
            batch<AT_ONCE> b(u, step, e);
            uint4 v[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
                if (b.there[j]) v[j] = get16(own + b.unit[j]);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (!b.there[j]) continue;
                out[b.unit[j]] = arrived<W>(p, from, v[j], own + b.unit[j]);
                own[b.unit[j]] = make_uint4(~0u, ~0u, ~0u, ~0u);
            }
        }
    }
    x.done(p);
}

static uint32_t longest_share(uint32_t units, int ranks) { return units / (uint32_t)ranks + 1; }

uint64_t peers_sum_bytes(int ranks, uint32_t rows, uint64_t row_bytes) {
    uint32_t units = (uint32_t)(rows * row_bytes / 16);
    uint64_t two = (uint64_t)ranks * longest_share(units, ranks) + units, one = (uint64_t)ranks * units;
    return 16 * (peers_one_step(ranks, rows, SUM_AS_MEASURED) && one > two ? one : two);
}

/* Two ranks send as much in either way: on two H200 one step is faster up to 128 rows of 5,120 and slower from 256 on
 * (docs/evidence/2026-11-30-h200-ranks.md). For more ranks 64 is a guess. */
bool peers_one_step(int ranks, uint32_t rows, sum_way way) {
    return way == SUM_AS_MEASURED ? rows <= (ranks == 2 ? 128 : 64) : way == SUM_ONE_STEP;
}

static unsigned blocks_for(const peers &p, uint64_t items) {
    uint64_t blocks = (items + SUM_THREADS - 1) / SUM_THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks < (uint64_t)p.blocks ? blocks : (uint64_t)p.blocks);
}

template <class W, class Part>
static void sum(const peers &p, const Part &part, uint32_t rows, int width, void *out, sum_way way, chain s) {
    uint32_t units = rows * (uint32_t)(width / W::UNIT);
    unsigned blocks = blocks_for(p, units);
    if (!peers_one_step(p.ranks, rows, way) || (uint64_t)p.ranks * units * 16 > p.half_bytes)
        launch_chained(two_steps<W, Part>, blocks, SUM_THREADS, 0, s, p, part, units, longest_share(units, p.ranks),
                       (uint4 *)out);
    else if (units <= blocks * SUM_THREADS)
        launch_chained(one_step<W, 1, Part>, blocks, SUM_THREADS, 0, s, p, part, units, (uint4 *)out);
    else launch_chained(one_step<W, AT_ONCE, Part>, blocks, SUM_THREADS, 0, s, p, part, units, (uint4 *)out);
}

void peers_sum(const peers &p, const uint16_t *part, uint32_t rows, int width, uint16_t *out, sum_way way, chain s) {
    sum<bf16_words>(p, stored_part{ (const uint4 *)part }, rows, width, out, way, s);
}

void peers_sum_experts(const peers &p, const dev_moe &m, uint32_t rows, int width, uint16_t *out, sum_way way,
                       chain s) {
    sum<bf16_words>(p, part_of(m, width), rows, width, out, way, s);
}

template <> void peers_sum_reals(const peers &p, float *y, bool none, uint32_t rows, int width, sum_way way,
                                 cudaStream_t s) {
    sum<f32_words>(p, stored_part{ none ? NULL : (const uint4 *)y }, rows, width, y, way, chain{ s, false });
}
template <> void peers_sum_reals(const peers &p, double *y, bool none, uint32_t rows, int width, sum_way way,
                                 cudaStream_t s) {
    sum<f64_words>(p, stored_part{ none ? NULL : (const uint4 *)y }, rows, width, y, way, chain{ s, false });
}

/* --- columns ------------------------------------------------------------------------------------------------------ */

/* Words of one value, since parts may be of any width. */
template <class B> static __device__ __forceinline__ void put1(B *to, B v) { *(volatile B *)to = v; }
template <class B> static __device__ __forceinline__ B get1(const B *from) { return *(const volatile B *)from; }

/* Values as bits: all ones becomes another NaN, as it comes out of arithmetic. */
static __device__ __forceinline__ uint32_t full1(uint32_t v) { return v == ~0u ? 0x7FFFFFFFu : v; }
static __device__ __forceinline__ unsigned long long full1(unsigned long long v) { return v == ~0ull ? ~0ull >> 1 : v; }

/* Inboxes are [rows, width], each with gaps where its own columns are. */
template <class B>
static __global__ void __launch_bounds__(SUM_THREADS)
    gather(const __grid_constant__ peers p, const B *part, uint32_t rows, const __grid_constant__ peer_columns c,
           B *out) {
    exchange x(p);
    uint32_t step = gridDim.x * SUM_THREADS, me = blockIdx.x * SUM_THREADS + threadIdx.x;
    uint32_t first = (uint32_t)c.first[p.rank], mine = (uint32_t)c.first[p.rank + 1] - first,
             width = (uint32_t)c.first[p.ranks];
    for (uint32_t i = me; i < rows * mine; i += step) {
        uint32_t at = i / mine * width + first + i % mine;
        B v = full1(part[i]);
        for (int r = 0; r < p.ranks; r++)
            if (r != p.rank) put1((B *)x.inbox(p, r) + at, v);
        out[at] = v;
    }
    for (int k = 1; k < p.ranks; k++) {
        int from = (p.rank + k) % p.ranks;
        uint32_t begin = (uint32_t)c.first[from], theirs = (uint32_t)c.first[from + 1] - begin;
        B *own = (B *)x.inbox(p, p.rank);
        for (uint32_t i = me; i < rows * theirs; i += AT_ONCE * step) {
            batch<AT_ONCE> b(i, step, rows * theirs);
            B v[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                uint32_t u = b.unit[j];
                b.unit[j] = u / theirs * width + begin + u % theirs;
                if (b.there[j]) v[j] = get1(own + b.unit[j]);
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (!b.there[j]) continue;
                waiting w;
                while (v[j] == (B)~(B)0 && !w.over(p, from)) v[j] = get1(own + b.unit[j]);
                out[b.unit[j]] = v[j];
                own[b.unit[j]] = (B)~(B)0;
            }
        }
    }
    x.done(p);
}

template <> void peers_gather(const peers &p, const float *part, uint32_t rows, const peer_columns &c, float *out,
                              cudaStream_t s) {
    gather<uint32_t><<<blocks_for(p, (uint64_t)rows * c.first[p.ranks] / 2), SUM_THREADS, 0, s>>>(
        p, (const uint32_t *)part, rows, c, (uint32_t *)out);
}
template <> void peers_gather(const peers &p, const double *part, uint32_t rows, const peer_columns &c, double *out,
                              cudaStream_t s) {
    gather<unsigned long long><<<blocks_for(p, (uint64_t)rows * c.first[p.ranks] / 2), SUM_THREADS, 0, s>>>(
        p, (const unsigned long long *)part, rows, c, (unsigned long long *)out);
}

/* --- meetings ----------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void put_released(uint32_t *to, uint32_t v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

static __device__ __forceinline__ uint32_t get_acquired(const uint32_t *from) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

/* A thread for each rank. */
static __global__ void meet(const __grid_constant__ peers p) {
    int r = threadIdx.x;
    uint32_t number = ((const volatile peer_state *)p.state)->meetings + 1;
    __threadfence_system();
    __syncthreads();
    if (r < p.ranks && r != p.rank) {
        waiting w;
        put_released(p.flags[r] + p.rank, number);
        while ((int32_t)(get_acquired(p.flags[p.rank] + r) - number) < 0 && !w.over(p, r)) {}
    }
    __syncthreads();
    if (r == 0) ((volatile peer_state *)p.state)->meetings = number;
    __threadfence_system();
}

void peers_meet(const peers &p, cudaStream_t s) { meet<<<1, 32, 0, s>>>(p); }

/* --- the ends of the exchange ------------------------------------------------------------------------------------- */

/* Before the inbox: flags, then counters. */
enum { FLAGS_BYTES = 1024, HEAD_BYTES = 4096, WAIT_S = 5 };

cudaError_t peers_open(peer_link *l, int rank, int ranks, bool shared, uint64_t half_bytes) {
    half_bytes = (half_bytes + 255) / 256 * 256;
    *l = peer_link{};
    l->p.rank = rank;
    l->p.ranks = ranks;
    l->p.blocks = shared ? 8 : 2 * 132;
    l->p.early = !shared;
    l->p.limit_ns = WAIT_S * 1000000000ull;
    l->p.half_bytes = half_bytes;
    void *host = NULL, *mapped = NULL;
    cudaError_t e = cudaGetDevice(&l->device);
    if (!e) e = cudaMalloc(&l->memory, HEAD_BYTES + 2 * half_bytes);
    if (!e) e = cudaMemset(l->memory, 0, HEAD_BYTES);
    if (!e) e = cudaMemset(l->memory + HEAD_BYTES, 0xFF, 2 * half_bytes);
    if (!e) e = cudaHostAlloc(&host, 2 * sizeof *l->fault, cudaHostAllocMapped | cudaHostAllocPortable);
    if (e) return e;
    l->fault = (volatile unsigned long long *)host;
    l->fault[0] = l->fault[1] = 0;
    e = cudaHostGetDevicePointer(&mapped, host, 0);
    l->p.fault = (volatile unsigned long long *)mapped;
    l->p.state = (peer_state *)(l->memory + FLAGS_BYTES);
    return e ? e : cudaDeviceSynchronize();
}

cudaError_t peers_connect(peer_link *l, peer_link *const *all) {
    for (int r = 0; r < l->p.ranks; r++) {
        l->p.flags[r] = (uint32_t *)all[r]->memory;
        l->p.inbox[r] = all[r]->memory + HEAD_BYTES;
        if (all[r]->device == l->device) continue;
        int can = 0;
        cudaError_t e = cudaDeviceCanAccessPeer(&can, l->device, all[r]->device);
        if (!e && !can) e = cudaErrorPeerAccessUnsupported;
        if (!e) e = cudaDeviceEnablePeerAccess(all[r]->device, 0);
        if (e == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();           /* by another engine of this process */
            e = cudaSuccess;
        }
        if (e) return e;
    }
    return cudaSuccess;
}

void peers_close(peer_link *l) {
    cudaFree(l->memory);
    cudaFreeHost((void *)(uintptr_t)l->fault);
    *l = peer_link{};
}

int peers_fault(const peer_link *l) {
    unsigned long long v = l->fault ? *l->fault : 0;
    return v ? (int)(v >> 32 & 0xFF) : -1;
}

void peers_stop(peer_link *l) { l->fault[1] = 1; }
