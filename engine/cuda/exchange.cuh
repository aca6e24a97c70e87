/* Private to engine/cuda: what a kernel does in an exchange (peers.cuh). */
#ifndef CEDAR_ENGINE_CUDA_EXCHANGE_CUH
#define CEDAR_ENGINE_CUDA_EXCHANGE_CUH

#include "engine/cuda/packing.cuh"
#include "engine/cuda/peers.cuh"

/* --- words -------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void put16(uint4 *to, uint4 v) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

static __device__ __forceinline__ uint4 get16(const uint4 *from) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/* 16 bytes of a type: UNIT values, which arrive in words of their own. empty: some word is not there yet; full: the
 * same values with no word of all ones, which only NaN can be. */
struct words32 {
    static __device__ __forceinline__ bool empty(uint4 v) {
        return v.x == ~0u || v.y == ~0u || v.z == ~0u || v.w == ~0u;
    }
    static __device__ __forceinline__ uint4 full(uint4 v, uint32_t nan) {
        return make_uint4(v.x == ~0u ? nan : v.x, v.y == ~0u ? nan : v.y, v.z == ~0u ? nan : v.z,
                          v.w == ~0u ? nan : v.w);
    }
};

struct bf16_words : words32 {
    enum { UNIT = 8 };
    typedef float real;
    static __device__ __forceinline__ uint4 full(uint4 v) { return words32::full(v, 0x7FFF7FFFu); }
    static __device__ __forceinline__ void take(uint4 v, float x[UNIT]) {
        uint32_t p[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
        for (int i = 0; i < UNIT; i++) x[i] = __uint_as_float(i % 2 ? p[i / 2] & 0xffff0000u : p[i / 2] << 16);
    }
    static __device__ __forceinline__ uint4 give(const float x[UNIT]) {
        return make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]), pair_of(x[6], x[7]));
    }
};

struct f32_words : words32 {
    enum { UNIT = 4 };
    typedef float real;
    static __device__ __forceinline__ uint4 full(uint4 v) { return words32::full(v, 0x7FFFFFFFu); }
    static __device__ __forceinline__ void take(uint4 v, float x[UNIT]) {
        x[0] = __uint_as_float(v.x); x[1] = __uint_as_float(v.y);
        x[2] = __uint_as_float(v.z); x[3] = __uint_as_float(v.w);
    }
    static __device__ __forceinline__ uint4 give(const float x[UNIT]) {
        return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
    }
};

/* Halves of a double may be all ones; the whole only in a NaN. A double arrives in one piece. */
struct f64_words {
    enum { UNIT = 2 };
    typedef double real;
    static __device__ __forceinline__ bool empty(uint4 v) { return (v.x & v.y) == ~0u || (v.z & v.w) == ~0u; }
    static __device__ __forceinline__ uint4 full(uint4 v) {
        return make_uint4(v.x, (v.x & v.y) == ~0u ? 0x7FFFFFFFu : v.y, v.z, (v.z & v.w) == ~0u ? 0x7FFFFFFFu : v.w);
    }
    static __device__ __forceinline__ void take(uint4 v, double x[UNIT]) {
        x[0] = __hiloint2double((int)v.y, (int)v.x);
        x[1] = __hiloint2double((int)v.w, (int)v.z);
    }
    static __device__ __forceinline__ uint4 give(const double x[UNIT]) {
        return make_uint4((uint32_t)__double2loint(x[0]), (uint32_t)__double2hiint(x[0]),
                          (uint32_t)__double2loint(x[1]), (uint32_t)__double2hiint(x[1]));
    }
};

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

enum { TURNS = 256 };           /* looks at a word between two looks at the clock */

/* After TURNS more looks in vain: when the wait began (0: only now), or 0 when it is over. */
static __device__ __noinline__ unsigned long long patience(volatile peer_state *s, volatile unsigned long long *fault,
                                                           unsigned long long limit_ns, int from,
                                                           unsigned long long since) {
    unsigned long long now = now_ns();
    if (s->broken) return 0;
    bool stop = fault[1] != 0;
    if (!since && !stop) return now;
    if (now - since < limit_ns && !stop) return since;
    s->broken = 1;
    *fault = 1ull << 63 | (unsigned long long)from << 32 | s->exchanges;
    __threadfence_system();
    return 0;
}

/* A wait for a rank: over is asked after each look in vain. */
struct waiting {
    unsigned long long since;
    uint32_t turn;
    __device__ __forceinline__ waiting() : since(0), turn(0) {}
    __device__ __forceinline__ bool over(const peers &p, int from) {
        if (++turn % TURNS) return false;
        since = patience(p.state, p.fault, p.limit_ns, from, since);
        return !since;
    }
};

/* v, read at `at`, or what is there once it has come. */
template <class W>
static __device__ __forceinline__ uint4 arrived(const peers &p, int from, uint4 v, const uint4 *at) {
    waiting w;
    while (W::empty(v) && !w.over(p, from)) v = get16(at);
    return v;
}

/* --- an exchange -------------------------------------------------------------------------------------------------- */

struct exchange {
    uint64_t half;              /* where in every inbox this exchange lies */
    __device__ __forceinline__ exchange(const peers &p)
        : half((((const volatile peer_state *)p.state)->exchanges & 1) * p.half_bytes) {}

    __device__ __forceinline__ uint4 *inbox(const peers &p, int rank) const {
        return (uint4 *)(p.inbox[rank] + half);
    }

    /* To all other ranks: this one's words at `at`. */
    __device__ __forceinline__ void send(const peers &p, uint32_t at, uint4 v) const {
#pragma unroll 1
        for (int r = 0; r < p.ranks; r++)
            if (r != p.rank) put16(inbox(p, r) + at, v);
    }

    /* Parts of COUNT units, by rank at `at[j] + rank * stride`, added to this rank's own in rank order. */
    template <class W, int COUNT>
    __device__ __forceinline__ void add(const peers &p, const uint4 (&mine)[COUNT], const uint32_t (&at)[COUNT],
                                        const bool (&there)[COUNT], uint32_t stride,
                                        typename W::real (&sum)[COUNT][W::UNIT]) const {
        uint4 *own = inbox(p, p.rank);
#pragma unroll 1
        for (int r = 0; r < p.ranks; r++) {
            uint4 v[COUNT];
            bool other = r != p.rank;
#pragma unroll
            for (int j = 0; j < COUNT; j++)
                v[j] = other && there[j] ? get16(own + (at[j] + (uint32_t)r * stride)) : mine[j];
#pragma unroll
            for (int j = 0; j < COUNT; j++) {
                if (!there[j]) continue;
                if (other) {
                    uint4 *from = own + (at[j] + (uint32_t)r * stride);
                    v[j] = arrived<W>(p, r, v[j], from);
                    *from = make_uint4(~0u, ~0u, ~0u, ~0u);
                }
                typename W::real x[W::UNIT];
                W::take(v[j], x);
#pragma unroll
                for (int i = 0; i < W::UNIT; i++) sum[j][i] = r ? sum[j][i] + x[i] : x[i];
            }
        }
    }

    /* By all threads of every block, last of all. */
    __device__ __forceinline__ void done(const peers &p) const {
        __syncthreads();
        if (threadIdx.x) return;
        volatile peer_state *s = p.state;
        if (atomicAdd(&p.state->tickets, 1u) + 1 < gridDim.x) return;
        s->tickets = 0;
        s->exchanges = s->exchanges + 1;
    }
};

/* --- parts -------------------------------------------------------------------------------------------------------- */

/* Unit u of this rank's part: as stored, or zeros; */
struct stored_part {
    const uint4 *x;
    __device__ __forceinline__ uint4 operator()(uint32_t u) const { return x ? x[u] : make_uint4(0, 0, 0, 0); }
};

/* or of the experts' outputs, in ascending id, then the shared one's, summed and rounded to bf16. */
struct experts_part {
    const int32_t *ids;
    const uint4 *out;
    int per_token, units;               /* units: of a row */
    __device__ __forceinline__ uint4 operator()(uint32_t u) const {
        uint32_t row = u / (uint32_t)units, k = u % (uint32_t)units;
        float y[8];
        sum_experts(ids + row * (uint32_t)per_token, per_token,
                    out + (uint64_t)row * (uint32_t)((per_token + 1) * units) + k, units, y);
        return bf16_words::give(y);
    }
};

static inline experts_part part_of(const dev_moe &m, int width) {
    return experts_part{ m.ids, (const uint4 *)m.out, m.per_token, width / 8 };
}

#endif
