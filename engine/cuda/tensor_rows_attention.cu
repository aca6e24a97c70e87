/* Attention of whole rows: 64 heads of 512 channels, the real model's, or a rank's share of those heads. */
#include "engine/cuda/pairs.cuh"
#include "engine/cuda/tensor.cuh"
#include "engine/cuda/tensor_weights.cuh"
#include "engine/cuda/wgmma.cuh"

/* One row a block: 64 heads of 512 channels against up to ROW_TILES tiles of 64 keys. Two groups of four warps: for the
 * logits each has every second tile, for the values each has half of the channels. Keys are decoded twice, since they
 * do not fit decoded; queries give their room to the probabilities. */
enum {
    ROW_HEADS = 64, ROW_DIM = 512, ROW_TILES = 10, ROW_THREADS = 256, GROUP = 128,
    TILE_BYTES = 64 * 128,                      /* 64 rows of 64 values */
    QUERY_BYTES = ROW_TILES * TILE_BYTES,       /* 8 tiles of queries, then up to 10 of probabilities */
    KEYS_BYTES = 8 * TILE_BYTES,                /* a group's: 64 keys of 512 channels, or twice 64 of 256 */
    ROW_BYTES = QUERY_BYTES + 2 * KEYS_BYTES    /* then row_keys */
};

static __device__ __forceinline__ void group_barrier(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "r"((int)GROUP) : "memory");
}

/* What keys are, in shared memory. */
template <int N> struct key_refs {
    dev_key at[N];
    uint8_t four[N];
};
struct row_keys : key_refs<ROW_TILES * 64> {
    float top[2][ROW_HEADS], sum[2][ROW_HEADS];     /* of the two groups */
};

/* Byte of a 16-byte piece of a key among keys of 128 bytes, as the matrix units have it, or of 64: eight keys' pieces
 * of one number meet all banks. */
template <int KEY_BYTES> static __device__ __forceinline__ int key_place(int key, int piece) {
    static_assert(KEY_BYTES == 128 || KEY_BYTES == 64, "whole channels of a slice");
    return KEY_BYTES == 128 ? key * 128 + (int)swizzled(key, piece) : key * 64 + (piece ^ key / 2 % 4) * 16;
}

/* Keys on their way from storage to tiles of KEYS keys by 64 channels, or as many as UNITS are, by the 128 threads of a
 * group or by all THREADS. A thread has 16 channels, unit `first + thread % UNITS`, of COUNT keys; those share a scale
 * in either format. */
template <int UNITS, int COUNT, int THREADS = GROUP, int KEYS = 64> struct key_round {
    enum { STEP = THREADS / UNITS, KEY_BYTES = UNITS < 4 ? UNITS * 32 : 128 };
    uint4 v[COUNT];
    uint8_t scale[COUNT];
    bool four[COUNT];

    /* Number j of the thread's keys. */
    __device__ __forceinline__ void load_one(int j, const dev_key &at, bool is_four, int first) {
        int k = 16 * (first + (int)threadIdx.x % UNITS);
        four[j] = is_four;
        /* records and entries begin at multiples of 16 and 8 bytes */
        const uint8_t *p = at.code + (is_four ? k / 2 : k);
        uint2 lo = *(const uint2 *)p, hi = is_four ? lo : *(const uint2 *)(p + 8);
        v[j] = make_uint4(lo.x, lo.y, hi.x, hi.y);
        scale[j] = at.scale[is_four ? k / 16 : k / 32];
    }

    template <class Refs> __device__ __forceinline__ void load_own(const Refs &r, int first) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) load_one(j, r.at[j], r.four[j], first);
    }

    /* Keys key, key + STEP, ... */
    template <int N> __device__ __forceinline__ void load(const key_refs<N> &r, int key, int first) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) load_one(j, r.at[key + j * STEP], r.four[key + j * STEP], first);
    }

    /* The first PART keys to rows n, n + STEP, ... of the tiles. */
    template <int PART = COUNT> __device__ __forceinline__ void store(int n, uint8_t *to) const {
        int unit = threadIdx.x % UNITS;
#pragma unroll
        for (int j = 0; j < PART; j++, n += STEP) {
            uint4 lo, hi;
            if (four[j]) {
                factor_value scaled(e4m3(scale[j]), E2M1_GAP);
                uint32_t f[4];
                e2m1_crossed(v[j].x, scaled, f);
                lo = uncrossed(f);
                e2m1_crossed(v[j].y, scaled, f);
                hi = uncrossed(f);
            } else {
                factor_value scaled(ue8m0(scale[j]), E4M3_GAP);
                uint2 a = e4m3_pairs(v[j].x, scaled), b = e4m3_pairs(v[j].y, scaled),
                      c = e4m3_pairs(v[j].z, scaled), e = e4m3_pairs(v[j].w, scaled);
                lo = make_uint4(a.x, a.y, b.x, b.y);
                hi = make_uint4(c.x, c.y, e.x, e.y);
            }
            /* every second four threads begin with the other piece: eight then meet all banks */
            int turn = unit / 4 % 2, piece = unit % 4 * 2;
            uint8_t *tile = to + unit / 4 * (KEYS * 128);
            *(uint4 *)(tile + key_place<KEY_BYTES>(n, piece + turn)) = turn ? hi : lo;
            *(uint4 *)(tile + key_place<KEY_BYTES>(n, piece + (turn ^ 1))) = turn ? lo : hi;
        }
    }

    /* All, PART at a time; keys move up, so that the loop stays one and its code small (see row_kernel). */
    template <int PART> __device__ __forceinline__ void store_moving(int n, uint8_t *to) {
        static_assert(COUNT % PART == 0, "whole parts");
#pragma unroll 1
        for (int i = 0; i < COUNT; i += PART, n += PART * STEP) {
            store<PART>(n, to);
#pragma unroll
            for (int j = 0; j + PART < COUNT; j++) {
                v[j] = v[j + PART];
                scale[j] = scale[j + PART];
                four[j] = four[j + PART];
            }
        }
    }
};

/* All channels of the 64 keys of a tile; a round is loaded while the one before is decoded. */
static __device__ __forceinline__ void decode_keys(const row_keys &r, int tile, uint8_t *to) {
    enum { UNITS = ROW_DIM / 16, COUNT = 4, STEP = GROUP / UNITS };
    int n = (int)(threadIdx.x % GROUP) / UNITS;
    key_round<UNITS, COUNT> now;
    now.load(r, tile * 64 + n, 0);
#pragma unroll 1                                /* the code must stay small, see row_kernel */
    for (; n < 64; n += COUNT * STEP) {
        key_round<UNITS, COUNT> next = now;
        if (n + COUNT * STEP < 64) next.load(r, tile * 64 + n + COUNT * STEP, 0);
        now.store(n, to);
        now = next;
    }
}

static __device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

static __device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* Rotates neighbours as rope_kernel does; t: cos, sin of the pair. */
static __device__ __forceinline__ void rotate_pair(float &a, float &b, const float *t, float sign) {
    float x = a, y = b, si = sign * t[1];
    a = rounded(x * t[0] - y * si);
    b = rounded(x * si + y * t[0]);
}

/* The same for eight neighbours in bf16. */
static __device__ __forceinline__ void rotate_eight(uint4 &x, const float turn[8]) {
    uint32_t p[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float a = __uint_as_float(p[j] << 16), b = __uint_as_float(p[j] & 0xffff0000u);
        rotate_pair(a, b, turn + 2 * j, 1);
        p[j] = pair_of(a, b);
    }
    x = make_uint4(p[0], p[1], p[2], p[3]);
}

/* Heads of a row: ROW_HEADS, or with SOME d.heads. Those that are not there have queries of zeros, and their outputs go
 * nowhere; the others have the same bits whatever their number. */
template <bool SOME> static __device__ __forceinline__ int heads_of(const dev &d) { return SOME ? d.heads : ROW_HEADS; }

/* Queries of the row, rotated, as 8 tiles of 64 heads by 64 channels; eight loads of a thread are under way at once. */
template <bool SOME>
static __device__ __forceinline__ void load_queries(const dev &d, const uint16_t *q, const float *table, uint8_t *to) {
    enum { AT_ONCE = 8, EIGHTS = ROW_DIM / 8, STEP = ROW_THREADS / EIGHTS };
    int k = (int)threadIdx.x % EIGHTS * 8, rope_from = ROW_DIM - d.rope;
    float turn[8] = { 1, 0, 1, 0, 1, 0, 1, 0 };     /* cos, sin of the thread's pairs: it has the same of every head */
    if (k >= rope_from)
#pragma unroll
        for (int j = 0; j < 8; j++) turn[j] = table[k - rope_from + j];
    for (int h0 = (int)threadIdx.x / EIGHTS; h0 < ROW_HEADS; h0 += AT_ONCE * STEP) {
        uint4 x[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            x[i] = !SOME || h0 + i * STEP < d.heads ? *(const uint4 *)(q + (h0 + i * STEP) * ROW_DIM + k)
                                                     : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int h = h0 + i * STEP;
            if (k >= rope_from) rotate_eight(x[i], turn);
            *(uint4 *)(to + k / 64 * TILE_BYTES + h * 128 + swizzled(h, k % 64 / 8)) = x[i];
        }
    }
}

/* A thread's place: of two groups of four warps, with 16 heads a warp, as the matrix instructions have it. */
struct row_thread {
    int group, lane, t, head;                   /* head: of its first row; the other is 8 on */
    __device__ __forceinline__ row_thread()
        : group(threadIdx.x / GROUP), lane(threadIdx.x % 32), t(threadIdx.x % 4),
          head((int)(threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4)) {}
};

/* References to keys [first, first + N), which do not wait for the number of keys. */
template <int N> struct ref_round {
    enum { COUNT = (N + ROW_THREADS - 1) / ROW_THREADS };
    dev_key at[COUNT];
    uint8_t four[COUNT];

    __device__ __forceinline__ void load(const attention_work &w, int first) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            int i = first + j * ROW_THREADS + (int)threadIdx.x;
            uint64_t from = (uint64_t)blockIdx.x * w.keys_max + (i < w.keys_max ? i : w.keys_max - 1);
            at[j] = w.keys[from];
            four[j] = w.fp4[from];
        }
        asm volatile("" ::: "memory");          /* or these loads would move to where `store` wants them */
    }

    /* Past the last key that one again: its probability will be zero, whatever it is. */
    template <int ALL>
    __device__ __forceinline__ void store(key_refs<ALL> &refs, const attention_work &w, int count, int first) {
        uint64_t last = (uint64_t)blockIdx.x * w.keys_max + count - 1;
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            int n = j * ROW_THREADS + (int)threadIdx.x;
            if (n >= N) break;
            refs.at[first + n] = first + n < count ? at[j] : w.keys[last];
            refs.four[first + n] = first + n < count ? four[j] : w.fp4[last];
        }
    }
};

template <int N, int ALL>
static __device__ __forceinline__ void load_refs(key_refs<ALL> &refs, const attention_work &w, int count, int first) {
    ref_round<N> found;
    found.load(w, first);
    found.store(refs, w, count, first);
}

/* The logits of the block's row from a tile on, as tile_logits gives them: eight groups of eight keys, of each a float4
 * for every thread of a group. */
static __device__ __forceinline__ float4 *logits_of(const attention_work &w, int tile) {
    return (float4 *)w.logits + ((uint64_t)blockIdx.x * ROW_TILES + tile) * 8 * GROUP;
}

/* c = 64 heads by the KEYS decoded keys from `first` on, for one group; scaled, -inf past the last key. */
template <int KEYS>
static __device__ __forceinline__ void tile_logits(float (&c)[KEYS / 2], const uint8_t *queries, const uint8_t *keys,
                                                   int first, int count, const row_thread &me) {
    uint32_t queries_at = (uint32_t)__cvta_generic_to_shared(queries),
             keys_at = (uint32_t)__cvta_generic_to_shared(keys);
    float scale = (float)(1 / sqrt((double)ROW_DIM));
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < ROW_DIM / 16; k++)
        wgmma_tiles(c, tile_descriptor(queries_at + k / 4 * TILE_BYTES) + k % 4 * 2,
                    tile_descriptor(keys_at + k / 4 * (KEYS * 128)) + k % 4 * 2, k > 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int n = 0; n < KEYS / 2; n++) {
        asm volatile("" : "+f"(c[n])::"memory");
        c[n] = first + n / 4 * 8 + 2 * me.t + (n & 1) < count ? c[n] * scale : -INFINITY;
    }
}

/* s: logits of every second tile from the group's first on, of `heads` heads. Leaves the probabilities, bf16, as tiles
 * of 64 heads by 64 keys, visible to the matrix units, and in part 1 / their unrounded sum with the sink, for the
 * thread's two heads. */
static __device__ __forceinline__ void probabilities(float (&s)[ROW_TILES / 2][32], int tile_count, row_keys &refs,
                                                     const float *sink, int heads, uint8_t *tiles,
                                                     const row_thread &me, float part[2]) {
    float top[2] = { -1e30f, -1e30f }, sum[2] = { 0, 0 };
#pragma unroll
    for (int i = 0; i < ROW_TILES / 2; i++)
#pragma unroll
        for (int n = 0; n < 32; n++) top[n / 2 & 1] = fmaxf(top[n / 2 & 1], s[i][n]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = quad_max(top[r]);
        if (me.t == 0) refs.top[me.group][me.head + 8 * r] = top[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) top[r] = fmaxf(refs.top[0][me.head + 8 * r], refs.top[1][me.head + 8 * r]);
#pragma unroll 1
    for (int tile = me.group; tile < tile_count; tile += 2) {       /* tiles move up: the loop stays a loop */
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float a = __expf(s[0][4 * n + 2 * r] - top[r]), b = __expf(s[0][4 * n + 2 * r + 1] - top[r]);
                int h = me.head + 8 * r;
                sum[r] += a;
                sum[r] += b;
                *(uint32_t *)(tiles + tile * TILE_BYTES + h * 128 + swizzled(h, n) + 4 * me.t) = pair_of(a, b);
            }
#pragma unroll
        for (int n = 0; n < 32; n++)
#pragma unroll
            for (int i = 0; i + 1 < ROW_TILES / 2; i++) s[i][n] = s[i + 1][n];
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] = quad_sum(sum[r]);
        if (me.t == 0) refs.sum[me.group][me.head + 8 * r] = sum[r];
    }
    wgmma_publish();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int h = me.head + 8 * r;
        part[r] = 1 / (refs.sum[0][h] + refs.sum[1][h] + expf(sink[h < heads ? h : 0] - top[r]));
    }
}

/* Where a row's output goes. */
struct row_output {
    uint16_t *out;
    const float *table;
    int heads_per_group, rope_from;
    bool woven;
    int heads;

    __device__ __forceinline__ uint16_t *row_of(int head, uint32_t place) const {
        int64_t width = padded((int64_t)heads_per_group * ROW_DIM);
        return out + ((uint64_t)place * (heads / heads_per_group) + head / heads_per_group) * width +
               head % heads_per_group * ROW_DIM;
    }
};

/* Channels [k0, k0 + CHANNELS) of the thread's two heads, whose rows of the output are given, divided by the sum,
 * rotated back, packed. */
template <int CHANNELS>
static __device__ __forceinline__ void put_values(float (&o)[CHANNELS / 2], int k0, const float part[2],
                                                  const row_output &to, uint16_t *const rows[2], const row_thread &me) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int h = me.head + 8 * r;
#pragma unroll
        for (int n = 0; n < CHANNELS / 8; n++) {
            asm volatile("" : "+f"(o[4 * n + 2 * r]), "+f"(o[4 * n + 2 * r + 1])::"memory");
            float a = rounded(o[4 * n + 2 * r] * part[r]), b = rounded(o[4 * n + 2 * r + 1] * part[r]);
            int k = k0 + 8 * n;
            if (k >= to.rope_from) rotate_pair(a, b, to.table + k - to.rope_from + 2 * me.t, -1);
            /* threads 0 and 2 of a quad hold 0, 1 and 4, 5 of eight channels, 1 and 3 the others: with what its partner
             * gives, each has one of the pairs (0,4) (1,5) (2,6) (3,7) of tensor.cuh */
            float other = __shfl_xor_sync(0xffffffffu, me.t < 2 ? b : a, 2);
            uint32_t p = me.t < 2 ? pair_of(a, other) : pair_of(other, b);
            int pair = 2 * (me.t & 1) + (me.t >> 1),
                at = to.woven ? k / 64 * 64 + k % 16 * 4 + 8 * pair + k % 64 / 16 * 2 : k + 2 * pair;
            if (h < to.heads) *(uint32_t *)(rows[r] + at) = p;
        }
    }
}

/* Channels [k0, k0 + CHANNELS) of all heads for one group: probabilities times keys, ascending. While a tile is
 * multiplied the next is decoded, and the one after that is loaded. */
template <int CHANNELS>
static __device__ __forceinline__ void row_values(const uint8_t *tiles, uint8_t *keys, const row_keys &refs,
                                                  int tile_count, int k0, const float part[2], const row_output &to,
                                                  uint32_t place, const row_thread &me) {
    enum { BUFFER = 64 * CHANNELS * 2, UNITS = CHANNELS / 16 };
    uint32_t tiles_at = (uint32_t)__cvta_generic_to_shared(tiles),
             keys_at = (uint32_t)__cvta_generic_to_shared(keys);
    float o[CHANNELS / 2];
    int n = (int)(threadIdx.x % GROUP) / UNITS;
    key_round<UNITS, 64 * UNITS / GROUP> keys_of;
    keys_of.load(refs, n, k0 / 16);
    for (int tile = 0; tile < tile_count; tile++) {
        int buffer = (tile & 1) * BUFFER;
        wgmma_wait<1>();                        /* the products of the tile before last, by all of the group */
        group_barrier(me.group);
        keys_of.store(n, keys + buffer);
        if (tile + 1 < tile_count) keys_of.load(refs, (tile + 1) * 64 + n, k0 / 16);
        wgmma_publish();
        group_barrier(me.group);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_turned(o, tile_descriptor(tiles_at + (uint32_t)tile * TILE_BYTES) + k * 2,
                         turned_descriptor(keys_at + (uint32_t)buffer, TILE_BYTES) + k * 128, tile + k > 0);
        wgmma_commit();
    }
    wgmma_wait<0>();
    uint16_t *rows[2] = { to.row_of(me.head, place), to.row_of(me.head + 8, place) };
    put_values<CHANNELS>(o, k0, part, to, rows, me);
}

/* What the kernels are given: rows [first, first + gridDim.x) of the list; q [place, heads, dim] as wq_b left
 * it; to.out a row per place and group of heads. */
struct row_work {
    uint32_t first;
    int table_kind;
    const uint16_t *q;
    const float *sink;
    row_output to;
};

static __device__ __forceinline__ const float *rotations_of(const dev &d, const row_work &r, uint32_t row) {
    return (const float *)d.table + ((uint64_t)r.table_kind * d.row_max + row) * d.rope;
}
static __device__ __forceinline__ const float *rotations(const dev &d, const row_work &r) {
    return rotations_of(d, r, d.active[r.first + blockIdx.x]);
}

/* A block per row. Tiles of logits move up as they come: unrolled, the kernel would not fit the instruction cache. */
template <bool SOME>
static __global__ void __launch_bounds__(ROW_THREADS, 1) row_kernel(dev d, row_work r, attention_work w) {
    r.to.heads = heads_of<SOME>(d);
    extern __shared__ __align__(1024) uint8_t tiles[];
    row_keys &refs = *(row_keys *)(tiles + ROW_BYTES);
    row_thread me;
    int count = w.count[blockIdx.x], tile_count = (count + 63) / 64;
    uint8_t *keys = tiles + QUERY_BYTES + me.group * KEYS_BYTES;
    r.to.table = rotations(d, r);
    load_refs<ROW_TILES * 64>(refs, w, count, 0);
    load_queries<SOME>(d, r.q + (uint64_t)(r.first + blockIdx.x) * heads_of<SOME>(d) * ROW_DIM, r.to.table, tiles);
    wgmma_publish();
    __syncthreads();
    float s[ROW_TILES / 2][32], part[2];
#pragma unroll 1
    for (int tile = me.group; tile < ROW_TILES; tile += 2) {
        float c[32];
        if (tile < tile_count) {
            decode_keys(refs, tile, keys);
            wgmma_publish();
            group_barrier(me.group);
            tile_logits<64>(c, tiles, keys, tile * 64, count, me);
            group_barrier(me.group);
        }
#pragma unroll
        for (int n = 0; n < 32; n++) {
#pragma unroll
            for (int i = 0; i + 1 < ROW_TILES / 2; i++) s[i][n] = s[i + 1][n];
            s[ROW_TILES / 2 - 1][n] = tile < tile_count ? c[n] : -INFINITY;
        }
    }
    __syncthreads();                            /* queries give way */
    probabilities(s, tile_count, refs, r.sink, r.to.heads, tiles, me, part);
    row_values<ROW_DIM / 2>(tiles, keys, refs, tile_count, me.group * (ROW_DIM / 2), part, r.to, r.first + blockIdx.x,
                            me);
}

/* Few rows: first a block per row and two tiles of keys, one a group. All keys are under way at once, while the queries
 * come; a thread's logits of a tile lie together. */
template <bool SOME>
static __global__ void __launch_bounds__(ROW_THREADS, 1) tile_kernel(dev d, row_work r, attention_work w) {
    await_launch();
    allow_launch();
    enum { UNITS = ROW_DIM / 16 };
    extern __shared__ __align__(1024) uint8_t tiles[];
    row_keys &refs = *(row_keys *)(tiles + ROW_BYTES);
    row_thread me;
    int count = w.count[blockIdx.x], tile = 2 * blockIdx.y + me.group, n = (int)(threadIdx.x % GROUP) / UNITS;
    if ((int)blockIdx.y * 128 >= count) return;
    uint8_t *keys = tiles + QUERY_BYTES + me.group * KEYS_BYTES;
    load_refs<128>(refs, w, count, (int)blockIdx.y * 128);
    __syncthreads();
    key_round<UNITS, 64 * UNITS / GROUP> of_tile;
    of_tile.load(refs, tile * 64 + n, 0);
    load_queries<SOME>(d, r.q + (uint64_t)(r.first + blockIdx.x) * heads_of<SOME>(d) * ROW_DIM, rotations(d, r), tiles);
    of_tile.template store_moving<4>(n, keys);
    wgmma_publish();
    __syncthreads();
    if (tile * 64 >= count) return;
    float c[32];
    tile_logits<64>(c, tiles, keys, tile * 64, count, me);
    float4 *to = logits_of(w, tile) + threadIdx.x % GROUP;
#pragma unroll
    for (int i = 0; i < 8; i++) to[i * GROUP] = make_float4(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
}

/* Then a block per row and slice of channels. Its keys, decoded by half of them a group, do not wait for the logits:
 * tile_kernel let it begin when the list of keys and the caches were complete. */
enum { SLICE = 64, SLICES = ROW_DIM / SLICE };
template <bool SOME>
static __global__ void __launch_bounds__(ROW_THREADS, 1) slice_kernel(dev d, row_work r, attention_work w) {
    r.to.heads = heads_of<SOME>(d);
    enum { UNITS = SLICE / 16, KEYS = ROW_TILES * 64 / 2 };
    extern __shared__ __align__(1024) uint8_t tiles[];
    row_keys &refs = *(row_keys *)(tiles + ROW_BYTES);
    row_thread me;
    int count = w.count[blockIdx.x], tile_count = (count + 63) / 64, k0 = (int)blockIdx.y * SLICE,
        n = (int)(threadIdx.x % GROUP) / UNITS;
    uint8_t *keys = tiles + QUERY_BYTES;
    r.to.table = rotations(d, r);
    load_refs<ROW_TILES * 64>(refs, w, count, 0);
    __syncthreads();
    key_round<UNITS, KEYS * UNITS / GROUP> of_group;
    of_group.load(refs, me.group * KEYS + n, k0 / 16);
    of_group.template store_moving<2>(n, keys + me.group * (KEYS / 64 * TILE_BYTES));
    await_launch();
    allow_launch();
    float s[ROW_TILES / 2][32], part[2];
#pragma unroll
    for (int i = 0; i < ROW_TILES / 2; i++) {
        int tile = 2 * i + me.group;
        const float4 *from = logits_of(w, tile) + threadIdx.x % GROUP;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float4 v = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            if (tile < tile_count) v = from[j * GROUP];
            s[i][4 * j] = v.x; s[i][4 * j + 1] = v.y; s[i][4 * j + 2] = v.z; s[i][4 * j + 3] = v.w;
        }
    }
    probabilities(s, tile_count, refs, r.sink, r.to.heads, tiles, me, part);    /* publishes the keys, too */
    if (me.group) return;
    uint32_t tiles_at = (uint32_t)__cvta_generic_to_shared(tiles), keys_at = (uint32_t)__cvta_generic_to_shared(keys);
    float o[SLICE / 2];
    for (int tile = 0; tile < tile_count; tile++) {
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_turned(o, tile_descriptor(tiles_at + (uint32_t)tile * TILE_BYTES) + k * 2,
                         turned_descriptor(keys_at + (uint32_t)tile * TILE_BYTES, TILE_BYTES) + k * 128, tile + k > 0);
        wgmma_commit();
    }
    wgmma_wait<0>();
    uint32_t place = r.first + blockIdx.x;
    uint16_t *rows[2] = { r.to.row_of(me.head, place), r.to.row_of(me.head + 8, place) };
    put_values<SLICE>(o, k0, part, r.to, rows, me);
}

static_assert(SLICE == 64 && ROW_TILES * TILE_BYTES <= 2 * KEYS_BYTES, "a slice is a tile wide; its keys have room");

/* --- the fewest rows ----------------------------------------------------------------------------------------------
 *
 * The same two parts over more blocks: of 16 or 32 keys, then of 16 heads by 32 or 64 channels. Logits lie in the same
 * places, and every sum has the same order. */
enum { SPREAD_ROWS = 8, SPREAD_HEADS = 16, SPREAD_WARPS = ROW_THREADS / 32, EIGHTS_MAX = ROW_TILES * 8 };

/* References to the COUNT keys of a thread, STEP apart, read by itself; none waits for the number of keys. */
template <int COUNT, int STEP> struct own_refs {
    dev_key at[COUNT];
    bool four[COUNT];

    __device__ __forceinline__ void load(const attention_work &w, int key) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            int i = key + j * STEP;
            uint64_t from = (uint64_t)blockIdx.x * w.keys_max + (i < w.keys_max ? i : w.keys_max - 1);
            at[j] = w.keys[from];
            four[j] = w.fp4[from];
        }
        __syncwarp();                           /* or these loads would move behind those of queries and sinks */
    }

    /* Past the last key that one again, as in ref_round. */
    __device__ __forceinline__ void settle(const attention_work &w, int key, int count) {
        uint64_t last = (uint64_t)blockIdx.x * w.keys_max + count - 1;
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (key + j * STEP >= count) {
                at[j] = w.keys[last];
                four[j] = w.fp4[last];
            }
    }
};

/* All queries of a row as 8 tiles, as load_queries has them: a thread has one eight of each of two heads. The last 64
 * channels, which are rotated, come in registers, the others are copied. */
struct query_round {
    enum { STEP = ROW_HEADS / 2 };
    uint4 last[2];

    __device__ __forceinline__ void load(const dev &d, const uint16_t *q, uint8_t *to) {
        int h = threadIdx.x / 8, piece = threadIdx.x % 8;
        uint32_t at = (uint32_t)__cvta_generic_to_shared(to) + h * 128 + swizzled(h, piece);
        q += h * ROW_DIM + piece * 8;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            bool there = h + j * STEP < d.heads;
#pragma unroll
            for (int i = 0; i < 7; i++)
                copy16(at + i * TILE_BYTES + j * STEP * 128, q + j * STEP * ROW_DIM + i * 64, there);
            last[j] = there ? *(const uint4 *)(q + j * STEP * ROW_DIM + 7 * 64) : make_uint4(0, 0, 0, 0);
        }
        copies_commit();
    }

    /* table: cos, sin of the row's pairs. */
    __device__ __forceinline__ void rotate(const dev &d, const float *table, uint8_t *to) {
        int from = d.rope - 64 + (int)threadIdx.x % 8 * 8;      /* negative: not rotated */
        float4 lo = make_float4(0, 0, 0, 0), hi = lo;
        if (from >= 0) {
            lo = *(const float4 *)(table + from);
            hi = *(const float4 *)(table + from + 4);
        }
        float turn[8] = { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w };
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int h = threadIdx.x / 8 + j * STEP;
            if (from >= 0) rotate_eight(last[j], turn);
            *(uint4 *)(to + 7 * TILE_BYTES + h * 128 + swizzled(h, threadIdx.x % 8)) = last[j];
        }
    }
};

/* What a tile of keys has in shared memory. */
template <int KEYS> struct spread_tile {
    uint8_t queries[8 * TILE_BYTES], keys[KEYS * ROW_DIM * 2];
};

/* A block per row and KEYS keys. References are asked for first, then queries, then the keys themselves, and then the
 * rotations, for which nothing of that waits. */
template <int KEYS>
static __global__ void __launch_bounds__(ROW_THREADS) spread_tile_kernel(dev d, row_work r, attention_work w) {
    enum { UNITS = ROW_DIM / 16, COUNT = KEYS * UNITS / ROW_THREADS, STEP = ROW_THREADS / UNITS };
    extern __shared__ __align__(1024) uint8_t tiles[];
    spread_tile<KEYS> &shared = *(spread_tile<KEYS> *)tiles;
    row_thread me;
    int first = (int)blockIdx.y * KEYS, tile = first / 64, n = (int)threadIdx.x / UNITS;
    uint32_t row = d.active[r.first + blockIdx.x];
    own_refs<COUNT, STEP> refs;
    query_round queries;
    key_round<UNITS, COUNT, ROW_THREADS, KEYS> of_tile;
    await_launch();
    allow_launch();
    int count = w.count[blockIdx.x];
    refs.load(w, first + n);
    queries.load(d, r.q + (uint64_t)(r.first + blockIdx.x) * d.heads * ROW_DIM, shared.queries);
    __syncwarp();                               /* or the copies would move behind what waits for references */
    refs.settle(w, first + n, count);
    of_tile.load_own(refs, 0);
    queries.rotate(d, rotations_of(d, r, row), shared.queries);
    of_tile.store(n, shared.keys);
    copies_wait<0>();
    wgmma_publish();
    __syncthreads();
    if (me.group || tile * 64 >= count) return;
    float c[KEYS / 2];
    tile_logits<KEYS>(c, shared.queries, shared.keys, first, count, me);
    float4 *to = logits_of(w, tile) + first % 64 / 8 * GROUP + threadIdx.x;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++) to[i * GROUP] = make_float4(c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]);
}

/* What a slice has in shared memory. A lane has two heads, eight apart, and of every eight keys two neighbours, in
 * logits as in the matrix instruction's probabilities. */
template <int CHANNELS> struct spread_slice {
    uint8_t keys[ROW_TILES * 64 * CHANNELS * 2];
    float2 exps[2][EIGHTS_MAX][32];             /* before they are rounded; by head */
    uint2 pairs[EIGHTS_MAX][32];
    float top[SPREAD_WARPS][SPREAD_HEADS], sum[2][SPREAD_HEADS], part[SPREAD_HEADS], turn[64];
};

enum { SM_SHARED = 228 << 10, BLOCK_RESERVED = 1 << 10 };
static_assert(sizeof(spread_slice<64>) + sizeof(spread_tile<16>) + 2 * BLOCK_RESERVED <= SM_SHARED,
              "a slice has room beside the tile that it waits for");

/* The exponentials against the final maximum, zeros past the last tile; a warp has one of the eights of each tile.
 * Leaves the maxima in top. */
template <class Slice>
static __device__ __forceinline__ void spread_exps(const float4 *from, int tile_count, const row_thread &me,
                                                   Slice &slice, float top[2]) {
    int warp = threadIdx.x / 32;
    float4 s[ROW_TILES];
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++) {
        s[i] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (i < tile_count) s[i] = from[(i * 8 + warp) * GROUP];
    }
    top[0] = top[1] = -1e30f;
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++) {
        top[0] = fmaxf(top[0], fmaxf(s[i].x, s[i].y));
        top[1] = fmaxf(top[1], fmaxf(s[i].z, s[i].w));
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = quad_max(top[r]);
        if (me.t == 0) slice.top[warp][me.lane / 4 + 8 * r] = top[r];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SPREAD_WARPS; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) top[r] = fmaxf(top[r], slice.top[i][me.lane / 4 + 8 * r]);
#pragma unroll
    for (int i = 0; i < ROW_TILES; i++) {
        float2 a = make_float2(__expf(s[i].x - top[0]), __expf(s[i].y - top[0])),
               b = make_float2(__expf(s[i].z - top[1]), __expf(s[i].w - top[1]));
        slice.exps[0][i * 8 + warp][me.lane] = a;
        slice.exps[1][i * 8 + warp][me.lane] = b;
        slice.pairs[i * 8 + warp][me.lane] = make_uint2(pair_of(a.x, a.y), pair_of(b.x, b.y));
    }
}

/* Their sums, of every second tile from tile `half` on, of head r of the lane: in the order of `probabilities`. */
template <class Slice>
static __device__ __forceinline__ void spread_sum(int half, int r, int tile_count, const row_thread &me, Slice &slice) {
    float sum = 0;
    for (int tile = half; tile < tile_count; tile += 2)
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float2 v = slice.exps[r][tile * 8 + n][me.lane];
            sum += v.x;
            sum += v.y;
        }
    sum = quad_sum(sum);
    if (me.t == 0) slice.sum[half][me.lane / 4 + 8 * r] = sum;
}

/* What a warp multiplies of 32 keys: probabilities of 16 heads, and CHANNELS / 4 channels. */
template <int CHANNELS> struct value_step {
    uint2 p[4];
    uint32_t b[CHANNELS / 32][4];

    __device__ __forceinline__ void load(const spread_slice<CHANNELS> &slice, int key, const row_thread &me) {
        int warp = threadIdx.x / 32;
#pragma unroll
        for (int i = 0; i < 4; i++) p[i] = slice.pairs[key / 8 + i][me.lane];
        if (CHANNELS == 32)
            load4_transposed(b[0], slice.keys + key_place<64>(key + me.lane, warp));
        else
#pragma unroll
            for (int i = 0; i < CHANNELS / 32; i++)
                load4_transposed(b[i], slice.keys + key_place<128>(key + 16 * i + me.lane % 16,
                                                                   2 * warp + me.lane / 16));
    }

    __device__ __forceinline__ void multiply(float (&o)[CHANNELS / 8]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t a[4] = { p[2 * i].x, p[2 * i].y, p[2 * i + 1].x, p[2 * i + 1].y };
            if constexpr (CHANNELS == 32) {
                mma(o, a, b[0][2 * i], b[0][2 * i + 1]);
            } else {
                mma(o, a, b[i][0], b[i][1]);
                mma(o + CHANNELS / 16, a, b[i][2], b[i][3]);
            }
        }
    }
};

/* A block per row, CHANNELS channels and 16 heads. As in slice_kernel, its keys do not wait for the logits; nor does
 * the next kernel's beginning, which reads only weights before it waits for this one. Four warps multiply while the
 * others sum. */
template <int CHANNELS>
static __global__ void __launch_bounds__(ROW_THREADS) spread_slice_kernel(dev d, row_work r, attention_work w) {
    allow_launch();
    enum {
        UNITS = CHANNELS / 16, STEP = ROW_THREADS / UNITS, COUNT = ROW_TILES * 64 / STEP, PART = COUNT / 5,
        OWN = CHANNELS / 4
    };
    extern __shared__ __align__(1024) uint8_t tiles[];
    spread_slice<CHANNELS> &slice = *(spread_slice<CHANNELS> *)tiles;
    row_thread me;
    me.head = (int)blockIdx.z * SPREAD_HEADS + me.lane / 4;
    int n = (int)threadIdx.x / UNITS, k0 = (int)blockIdx.y * CHANNELS, warp = threadIdx.x / 32;
    uint32_t place = r.first + blockIdx.x, row = d.active[place];
    int count = w.count[blockIdx.x], tile_count = (count + 63) / 64;
    own_refs<COUNT, STEP> refs;
    key_round<UNITS, COUNT, ROW_THREADS> of_slice;
    float sink[2], top[2], o[CHANNELS / 8] = {}, turn = 0;
    refs.load(w, n);
    for (int i = 0; i < 2; i++) sink[i] = r.sink[me.head + 8 * i < d.heads ? me.head + 8 * i : 0];
    refs.settle(w, n, count);
    of_slice.load_own(refs, k0 / 16);
    if ((int)threadIdx.x < d.rope) turn = rotations_of(d, r, row)[threadIdx.x];
    r.to.table = slice.turn;
    uint16_t *rows[2] = { r.to.row_of(me.head, place), r.to.row_of(me.head + 8, place) };
    of_slice.template store_moving<PART>(n, slice.keys);
    if ((int)threadIdx.x < d.rope) slice.turn[threadIdx.x] = turn;
    await_launch();
    spread_exps(logits_of(w, 0) + blockIdx.z * 32 + me.lane, tile_count, me, slice, top);
    __syncthreads();
    if (warp < 4) {
        value_step<CHANNELS> now;
        now.load(slice, 0, me);
        for (int key = 0; key < tile_count * 64; key += 32) {
            value_step<CHANNELS> next;
            next.load(slice, key + 32 < tile_count * 64 ? key + 32 : key, me);
            now.multiply(o);
            now = next;
        }
    } else {
        spread_sum(warp / 2 % 2, warp % 2, tile_count, me, slice);
        group_barrier(1);
        for (int i = 0; i < 2; i++) {
            int h = me.lane / 4 + 8 * i;
            float part = 1 / (slice.sum[0][h] + slice.sum[1][h] + expf(sink[i] - top[i]));
            if (warp == 4 && me.t == 0) slice.part[h] = part;
        }
    }
    __syncthreads();
    if (warp >= 4) return;
    float part[2] = { slice.part[me.lane / 4], slice.part[me.lane / 4 + 8] };
    put_values<OWN>(o, k0 + warp * OWN, part, r.to, rows, me);
}

bool tensor_attention_rows_can(const dev &d, const cedar_layout &l, const attention_work &w) {
    bool aligned = l.page_bytes % 8 == 0 && l.ring_row_bytes % 8 == 0 && l.ring_bytes % 8 == 0;
    for (int32_t i = 0; i < l.part_count; i++) aligned = aligned && l.part[i].kv_codes % 8 == 0;
    bool heads = d.heads == ROW_HEADS || (d.ranks > 1 && d.heads < ROW_HEADS);
    return aligned && heads && d.head_dim == ROW_DIM && w.keys_max <= ROW_TILES * 64 && d.rope <= 64 &&
           d.rope % 8 == 0;
}

static_assert(ROW_TILES * 64 == ROW_KEYS_MAX, "the buffer of logits is as long as the tiles of a row");

enum { ROW_SHARED = ROW_BYTES + sizeof(row_keys) };

int tensor_attention_rows_heads(void) { return ROW_HEADS; }

/* With one division into cache and shared memory for all, a slice can begin beside a tile. */
template <class Kernel> static cudaError_t takes(Kernel kernel, size_t shared) {
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared);
    return e ? e : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
}

template <bool SOME> static cudaError_t prepare(void) {
    cudaError_t e = takes(row_kernel<SOME>, ROW_SHARED);
    if (!e) e = takes(tile_kernel<SOME>, ROW_SHARED);
    return e ? e : takes(slice_kernel<SOME>, ROW_SHARED);
}

cudaError_t tensor_attention_prepare(void) {
    cudaError_t e = prepare<false>();
    if (!e) e = prepare<true>();
    if (!e) e = takes(spread_tile_kernel<16>, sizeof(spread_tile<16>));
    if (!e) e = takes(spread_tile_kernel<32>, sizeof(spread_tile<32>));
    if (!e) e = takes(spread_slice_kernel<32>, sizeof(spread_slice<32>));
    return e ? e : takes(spread_slice_kernel<64>, sizeof(spread_slice<64>));
}

template <int KEYS>
static void launch_tiles(const dev &d, uint32_t n, const row_work &r, const attention_work &w, chain s) {
    dim3 grid(n, (unsigned)w.keys_max / KEYS);
    launch_chained(spread_tile_kernel<KEYS>, grid, ROW_THREADS, sizeof(spread_tile<KEYS>), s, d, r, w);
}

template <int CHANNELS>
static void launch_slices(const dev &d, uint32_t n, const row_work &r, const attention_work &w, cudaStream_t s) {
    dim3 grid(n, ROW_DIM / CHANNELS, (unsigned)(d.heads + SPREAD_HEADS - 1) / SPREAD_HEADS);
    launch_chained(spread_slice_kernel<CHANNELS>, grid, ROW_THREADS, sizeof(spread_slice<CHANNELS>), chain{ s, true },
                   d, r, w);
}

/* The smaller blocks as long as a machine has about a multiprocessor for each. */
static void launch_spread_rows(const dev &d, uint32_t n, const row_work &r, const attention_work &w, chain s) {
    if (n <= 4) launch_tiles<16>(d, n, r, w, s);
    else launch_tiles<32>(d, n, r, w, s);
    if (n * (uint32_t)d.heads <= 2 * ROW_HEADS) launch_slices<32>(d, n, r, w, s.stream);
    else launch_slices<64>(d, n, r, w, s.stream);
}

template <bool SOME>
static void launch_rows(const dev &d, uint32_t n, const row_work &r, const attention_work &w, chain s) {
    if (r.to.woven) {
        row_kernel<SOME><<<n, ROW_THREADS, ROW_SHARED, s.stream>>>(d, r, w);
    } else if (n <= SPREAD_ROWS) {
        launch_spread_rows(d, n, r, w, s);
    } else {
        launch_chained(tile_kernel<SOME>, dim3(n, ROW_TILES / 2), ROW_THREADS, ROW_SHARED, s, d, r, w);
        launch_chained(slice_kernel<SOME>, dim3(n, SLICES), ROW_THREADS, ROW_SHARED, chain{ s.stream, true }, d, r, w);
    }
}

void tensor_attention_rows(const dev &d, uint32_t first, uint32_t n, int table_kind, const uint16_t *q,
                           const dev_weight &sink, int heads_per_group, const attention_work &w, bool woven,
                           uint16_t *out, chain s) {
    row_work r = { first,
                   table_kind,
                   q,
                   (const float *)sink.data,
                   { out, NULL, heads_per_group, d.head_dim - d.rope, woven, d.heads } };
    if (d.heads == ROW_HEADS) launch_rows<false>(d, n, r, w, s);
    else launch_rows<true>(d, n, r, w, s);
}
