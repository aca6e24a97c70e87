/* Indexer: quantised queries, scores, exact top-k with one tie rule, candidate pools (spec/model.md 2.7). */
#include "engine/cuda/ops.cuh"

/* A warp per block of 32 channels; blockIdx.y picks which. The last d.rope of a head are rotated as in attention.cu,
 * neighbours by neighbouring lanes; rotations are read before the wait. */
enum { QUERY_THREADS = 128 };
template <class A>
static __global__ void __launch_bounds__(QUERY_THREADS) query_kernel(dev d, void *iq) {
    typedef typename A::real real;
    int i = (int)blockIdx.y * QUERY_THREADS + (int)threadIdx.x, width = d.index_heads * d.index_dim,
        k = i % d.index_dim - (d.index_dim - d.rope);
    real co = 1, si = 0, *x = (real *)iq + (uint64_t)blockIdx.x * width + i;
    if (k >= 0) {
        const real *t = (const real *)d.table + ((uint64_t)d.row_max + d.active[blockIdx.x]) * d.rope;
        co = t[k / 2 * 2];
        si = t[k / 2 * 2 + 1];
    }
    await_launch();
    allow_launch();
    if (i >= width) return;                     /* whole warps: the width is a multiple of 32 */
    real v = *x, other = __shfl_xor_sync(0xffffffffu, v, 1);
    if (k >= 0) v = A::rb(k % 2 ? other * si + v * co : v * co - other * si);
    double s = ue8m0_value(pow2_ceil_byte(fmax(group_max<32>((double)v), 6 * 0x1p-126), 1.0f / 6));
    *x = (real)(e2m1_value(e2m1_encode((double)v, s)) * s);
}

template <class A> void launch_index_query(const dev &d, uint32_t n, void *iq, chain s) {
    unsigned blocks = (unsigned)(d.index_heads * d.index_dim + QUERY_THREADS - 1) / QUERY_THREADS;
    launch_chained(query_kernel<A>, dim3(n, blocks), QUERY_THREADS, 0, s, d, iq);
}

template <class R> static __global__ void gates_kernel(R *g, uint32_t count, R factor) {
    await_launch();
    allow_launch();
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) g[i] *= factor;
}

template <class A> void launch_index_gates(const dev &d, uint32_t n, void *g, chain s) {
    typedef typename A::real real;
    uint32_t count = n * (uint32_t)d.index_heads;
    launch_chained(gates_kernel<real>, (count + 127) / 128, 128, 0, s, (real *)g, count,
                   (real)(pow((double)d.index_dim, -0.5) * pow((double)d.index_heads, -0.5)));
}

/* Entry number `n` of the row's list: n itself, or inside its pool; -1 past the end. */
static __device__ int64_t entry_at(const dev &d, uint32_t row, int64_t n, int64_t visible, bool pooled) {
    int64_t j = n;
    if (pooled) {
        uint32_t block = (uint32_t)d.candidate_block, b = (uint32_t)n / block;         /* quicker than in 64 bits */
        if (b >= (uint32_t)d.pool_count[row]) return -1;
        j = (int64_t)d.pool[(uint64_t)row * d.candidate_blocks + b] * block + (uint32_t)n % block;
    }
    return j < visible ? j : -1;
}

/* Scores of the rows [first, first + gridDim.y) of the list; scores [row in batch, context]. */
template <class A>
static __global__ void scores_kernel(dev d, uint32_t first, const void *iq_in, const void *g_in, int part, int ratio,
                                     bool pooled, int64_t count_max) {
    typedef typename A::real real;
    uint32_t i = first + blockIdx.y, row = d.active[i];
    const dev_entry &e = d.entries[d.row_entry[row]];
    const cedar_page_part &p = d.l->part[part];
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, visible = (d.row_pos[row] + 1) / ratio;
    int64_t j = n < count_max ? entry_at(d, row, n, visible, pooled) : -1;
    if (n >= count_max) return;
    real sum = -INFINITY;
    if (j >= 0) {
        const uint8_t *page = dev_page(d, e.seq, (uint32_t)(j / p.entries));
        const uint8_t *code = page + p.index_codes + (uint64_t)(j % p.entries) * d.l->index_code_bytes;
        const uint8_t *scale = page + p.index_scales + (uint64_t)(j % p.entries) * d.l->index_scale_bytes;
        const real *iq = (const real *)iq_in + (uint64_t)i * d.index_heads * d.index_dim,
                   *g = (const real *)g_in + (uint64_t)i * d.index_heads;
        sum = 0;
        for (int h = 0; h < d.index_heads; h++) {
            double dot = 0;
            for (int k = 0; k < d.index_dim; k++) {
                uint8_t b = code[k / 2];
                dot += (double)iq[h * d.index_dim + k] *
                       (e2m1_value(k & 1 ? b >> 4 : b & 15) * ue8m0_value(scale[k / 32]));
            }
            real v = (real)dot;
            sum += g[h] * (v > 0 ? v : 0);
        }
    }
    ((real *)d.scores)[(uint64_t)blockIdx.y * d.context + n] = sum;
}

static int64_t list_max(const dev &d, bool pooled) {
    int64_t pool = (int64_t)d.candidate_blocks * d.candidate_block;
    return pooled && pool < d.context ? pool : d.context;
}

template <class A>
void launch_scores(const dev &d, uint32_t first, uint32_t n, const void *iq, const void *g, int part, int ratio,
                   bool pooled, cudaStream_t s) {
    int64_t count = list_max(d, pooled);
    scores_kernel<A>
        <<<dim3((unsigned)((count + 127) / 128), n), 128, 0, s>>>(d, first, iq, g, part, ratio, pooled, count);
}

/* --- exact selection ---------------------------------------------------------------------------------------------- */

/* Monotone integer key of a score: larger score, larger key; -0 equals +0; -inf and NaN give 0, which is never
 * picked. */
static __device__ unsigned long long key_of(double s) {
    if (!(s > -INFINITY)) return 0;
    unsigned long long u = (unsigned long long)__double_as_longlong(s + 0.0);
    return u >> 63 ? ~u : u | 0x8000000000000000ull;
}
static __device__ unsigned key_of(float s) {
    if (!(s > -INFINITY)) return 0;
    unsigned u = __float_as_uint(s + 0.0f);
    return u >> 31 ? ~u : u | 0x80000000u;
}
template <class R> struct key_type;
template <> struct key_type<double> { typedef unsigned long long type; };
template <> struct key_type<float> { typedef unsigned type; };

/* A block of PICKERS threads picks. Keys are read digit by digit, highest first; a digit is counted in COPIES, one to
 * every COPIES-th lane, since scores share their exponents and lanes that count the same digit wait for each other. */
enum { PICKERS = 1024, DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, COPIES = 4, TOGETHER = 8 };
static_assert(DIGITS == 2 * PICKERS, "a thread has two digits");

/* A block's working memory: counts of a digit, zero between passes; the digits so far of the k-th key, and how many of
 * the keys that begin with them are picked, `whole` if all are; then the numbers picked. */
struct pick_room {
    union {
        uint4 digits[DIGITS];
        int32_t numbers[DIGITS * COPIES];
    };
    unsigned long long prefix;
    unsigned left;
    bool whole;
};

/* Keys of up to ALL scores in registers. A warp has a stretch of `words` words of 32 scores, a lane one of each
 * word. */
template <class R> struct tile_keys {
    typedef typename key_type<R>::type Key;
    enum { EACH = 64 / sizeof(R), ALL = PICKERS * EACH };
    Key key[EACH];
    int words;

    __device__ __forceinline__ void load(const R *score, int from, int count) {
        int left = count - from < ALL ? count - from : ALL;
        words = (left + PICKERS - 1) / PICKERS;
        int lane = threadIdx.x % 32, before = 32 * words * (threadIdx.x / 32);
        left = (left - before < 32 * words ? left - before : 32 * words) - lane;
        score += from + before + lane;
        R value[EACH];
        each([&](int i) { value[i] = 32 * i < left ? score[32 * i] : (R)-INFINITY; });
        each([&](int i) { key[i] = key_of(value[i]); });
    }

    /* The loads of TOGETHER words are under way at once; what is beyond the stretch has the key 0. */
    template <class F> __device__ __forceinline__ void each(F f) const {
#pragma unroll
        for (int base = 0; base < EACH; base += TOGETHER)
            if (base < words)
#pragma unroll
                for (int i = base; i < base + TOGETHER; i++) f(i);
    }
};

/* f(where the tile begins) with the keys of each tile. Those of a single one are loaded before. */
template <class R, class F>
static __device__ __forceinline__ void each_tile(tile_keys<R> &keys, const R *score, int count, F f) {
    for (int from = 0; from < count; from += tile_keys<R>::ALL) {
        if (count > tile_keys<R>::ALL) keys.load(score, from, count);
        f(from);
    }
}

/* Picked are all keys above `key`, and the first `equal` of those that are equal to it. */
template <class R> struct border {
    typename key_type<R>::type key;
    unsigned equal;
};

static __device__ __forceinline__ unsigned take_count(uint4 *of) {
    uint4 v = *of;
    *of = make_uint4(0, 0, 0, 0);
    return v.x + v.y + v.z + v.w;
}

/* Adds to the prefix the digit in which the k-th key is, from the counts; false: there are fewer than `left` keys. */
template <class R> static __device__ bool next_digit(pick_room &room, int shift) {
    typedef typename key_type<R>::type Key;
    int top = DIGITS - 1 - 2 * (int)threadIdx.x;
    unsigned left = room.left, high = take_count(&room.digits[top]), low = take_count(&room.digits[top - 1]), all,
             above = scan_block(high + low, &all);
    if (above < left && left <= above + high + low) {
        bool in_high = left <= above + high;
        if (!in_high) above += high;
        room.prefix |= (unsigned long long)(Key)(in_high ? top : top - 1) << shift;
        room.left = left - above;
        room.whole = left - above == (in_high ? high : low);
    }
    __syncthreads();
    return all >= left;
}

/* By radix select, which ends as soon as all keys of the digit are picked. */
template <class R>
static __device__ __forceinline__ border<R> find_border(pick_room &room, tile_keys<R> &keys, const R *score, int count,
                                                        int k) {
    typedef typename key_type<R>::type Key;
    if (count <= k) return border<R>{ 0, 0 };
    for (int i = threadIdx.x; i < DIGITS; i += PICKERS) room.digits[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) {
        room.prefix = 0;
        room.left = (unsigned)k;
        room.whole = false;
    }
    __syncthreads();
    for (int top = 8 * sizeof(Key), shift; top > 0; top = shift) {
        shift = top > DIGIT_BITS ? top - DIGIT_BITS : 0;
        Key prefix = (Key)room.prefix, digits = (Key)1 << (top - shift);
        each_tile(keys, score, count, [&](int) {
            keys.each([&](int i) {
                Key digit = (keys.key[i] - prefix) >> shift;        /* past the last one if the prefix is another */
                if (keys.key[i] && digit < digits)
                    atomicAdd((unsigned *)&room.digits[digit] + threadIdx.x % COPIES, 1u);
            });
        });
        __syncthreads();
        if (!next_digit<R>(room, shift)) return border<R>{ 0, 0 };
        if (room.whole) return border<R>{ (Key)room.prefix ? (Key)room.prefix - 1 : 0, 0 };
    }
    return border<R>{ (Key)room.prefix, room.left };
}

/* Numbers of a tile's picks, ascending, behind those of the tiles before. A warp's votes are words of a bit map in
 * ascending order, of which a lane keeps one. */
template <class R>
static __device__ __forceinline__ void list_tile(const tile_keys<R> &keys, int from, const border<R> &b,
                                                 unsigned &above_before, unsigned &equal_before, int32_t *numbers) {
    int lane = threadIdx.x % 32;
    unsigned above = 0, equal = 0, all_above, all_equal = 0;
    keys.each([&](int i) {
        unsigned votes = __ballot_sync(~0u, keys.key[i] > b.key);
        if (lane == i) above = votes;
    });
    if (b.equal)
        keys.each([&](int i) {
            unsigned votes = __ballot_sync(~0u, keys.key[i] == b.key && keys.key[i]);
            if (lane == i) equal = votes;
        });
    unsigned a = above_before + scan_block(__popc(above), &all_above), e = equal_before;
    if (b.equal) e += scan_block(__popc(equal), &all_equal);
    int word = from + 32 * (keys.words * (int)(threadIdx.x / 32) + lane);
    for (unsigned rest = above | equal; rest; rest &= rest - 1) {
        unsigned bit = rest & -rest;
        bool larger = above & bit;
        if (larger || e < b.equal) numbers[a + (e < b.equal ? e : b.equal)] = word + __ffs(rest) - 1;
        a += larger;
        e += !larger;
    }
    above_before += all_above;
    equal_before += all_equal;
}

/* Picks the best k of score[0 .. count) by one block, the lowest numbers among equal scores, and calls put(place,
 * number) for them in ascending order, then put(place, -1) up to k. Numbers that fit no room wait in spare() [k]
 * for it. Returns how many. */
template <class R, class Spare, class Put>
static __device__ __forceinline__ int pick_block(const R *score, int count, int k, Spare spare, Put put) {
    __shared__ pick_room room;
    tile_keys<R> keys;
    if (count <= tile_keys<R>::ALL) keys.load(score, 0, count);
    border<R> b = find_border(room, keys, score, count, k);
    int32_t *numbers = k <= DIGITS * COPIES ? room.numbers : spare();
    unsigned above = 0, equal = 0;
    each_tile(keys, score, count, [&](int from) { list_tile(keys, from, b, above, equal, numbers); });
    __syncthreads();
    int n = (int)(above + (equal < b.equal ? equal : b.equal));
    for (int i = threadIdx.x; i < k; i += PICKERS) put(i, i < n ? numbers[i] : -1);
    __syncthreads();
    return n;
}

static __device__ int64_t list_count(const dev &d, uint32_t row, int64_t visible, bool pooled) {
    int64_t count = pooled ? (int64_t)d.pool_count[row] * d.candidate_block : visible;
    return count < d.context ? count : d.context;
}

/* What is picked: for rows from `first` of the list on, entries, or blocks of entries for the rows' pools. */
struct pick_task {
    uint32_t first;
    int ratio;
    bool pooled, blocks;
    bool cut;                           /* into slices, if a row has more scores than a block holds */
};

/* A row's picks. Its scores are cut into slices of `length`, which keep k each: scores and numbers in block_scores.
 * They stand in ascending order, so equal scores are picked as from the whole. */
template <class R> struct row_picks {
    const R *score;
    R *kept;
    int32_t *number, *out;
    int64_t visible;
    uint32_t row;
    int count, k, length, slices;

    /* Reads nothing that the kernel before may write. */
    __device__ void find(const dev &d, const pick_task &t, uint32_t place) {
        row = d.active[t.first + place];
        visible = (d.row_pos[row] + 1) / t.ratio;
        R *best = (R *)d.block_scores + (uint64_t)place * d.context;
        score = t.blocks ? best : (const R *)d.scores + (uint64_t)place * d.context;
        count = (int)(t.blocks ? (visible + d.candidate_block - 1) / d.candidate_block
                               : list_count(d, row, visible, t.pooled));
        k = t.blocks ? d.candidate_blocks : d.topk;
        out = (t.blocks ? d.pool : d.topk_ids) + (uint64_t)row * k;
        kept = t.blocks ? best + count : best;
        cut(t, t.blocks ? d.context - count : d.context);
        number = (int32_t *)(kept + (int64_t)slices * k);
    }

    /* The shortest slices of which what they keep is read quickly; none if there is no room for it. */
    __device__ void cut(const pick_task &t, int room) {
        enum { WHOLE = tile_keys<R>::ALL };
        length = count;
        slices = 1;
        if (count <= WHOLE || !t.cut) return;
        int each = WHOLE / 2;
        while (each < 2 * WHOLE && (int64_t)((count + each - 1) / each) * k > WHOLE) each *= 2;
        int many = (count + each - 1) / each;
        if (2ll * many * k > room || 2 * k > each) return;
        length = each;
        slices = many;
    }

    __device__ void put(const dev &d, const pick_task &t, int place, int n) const {
        out[place] = n < 0 || t.blocks ? n : (int32_t)entry_at(d, row, n, visible, t.pooled);
    }
    __device__ int32_t *spare(int slice) const { return slices == 1 ? out : number + (int64_t)slice * k; }
    __device__ void keep(int slice, int place, int n) const {
        int64_t at = (int64_t)slice * k + place;
        int from = slice * length;
        kept[at] = n < 0 ? (R)-INFINITY : score[from + n];
        number[at] = n < 0 ? -1 : from + n;
    }
    __device__ void finish(const dev &d, const pick_task &t, int n) const {
        if (t.blocks && threadIdx.x == 0) d.pool_count[row] = n;
    }
};

template <class R> static __global__ void __launch_bounds__(PICKERS) pick_slices(dev d, pick_task t) {
    __shared__ row_picks<R> p;          /* registers are for keys */
    if (threadIdx.x == 0) p.find(d, t, blockIdx.y);
    await_launch();
    if (t.cut) allow_launch();
    __syncthreads();
    for (int slice = blockIdx.x; slice < p.slices; slice += gridDim.x) {
        int from = slice * p.length, left = p.count - from;
        auto put = [&](int place, int i) {
            if (p.slices == 1) p.put(d, t, place, i);
            else p.keep(slice, place, i);
        };
        int n = pick_block(
            p.score + from, left < p.length ? left : p.length, p.k, [&] { return p.spare(slice); }, put);
        if (p.slices == 1) p.finish(d, t, n);
    }
}

template <class R> static __global__ void __launch_bounds__(PICKERS) pick_of_slices(dev d, pick_task t) {
    __shared__ row_picks<R> p;
    if (threadIdx.x == 0) p.find(d, t, blockIdx.x);
    await_launch();
    __syncthreads();
    if (p.slices == 1) return;
    int n = pick_block(p.kept, p.slices * p.k, p.k, [&] { return p.out; },
                       [&](int place, int i) { p.put(d, t, place, i < 0 ? -1 : p.number[i]); });
    p.finish(d, t, n);
}

/* Rows of up to `longest` scores. */
template <class R> static void launch_picks(const dev &d, pick_task t, uint32_t n, int64_t longest, chain s) {
    enum { BLOCKS = 512, SHORTEST = tile_keys<R>::ALL / 2 };
    int64_t slices = (longest + SHORTEST - 1) / SHORTEST, blocks = n < BLOCKS ? BLOCKS / n : 1;
    if (blocks > slices) blocks = slices;
    t.cut = slices > 2;
    launch_chained(pick_slices<R>, dim3(t.cut ? (unsigned)blocks : 1, n), PICKERS, 0, s, d, t);
    if (t.cut) launch_chained(pick_of_slices<R>, n, PICKERS, 0, chain{ s.stream, true }, d, t);
}

template <class A> void launch_select(const dev &d, uint32_t first, uint32_t n, int ratio, bool pooled, chain s) {
    launch_picks<typename A::real>(d, pick_task{ first, ratio, pooled, false, false }, n, list_max(d, pooled), s);
}

/* The best score of each block of entries; the newest visible entry's block is always kept. */
template <class R> static __global__ void __launch_bounds__(128) best_kernel(dev d, uint32_t first, int ratio) {
    await_launch();
    allow_launch();
    uint32_t row = d.active[first + blockIdx.y];
    int64_t visible = (d.row_pos[row] + 1) / ratio, blocks = (visible + d.candidate_block - 1) / d.candidate_block,
            b = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= blocks) return;
    const R *score = (const R *)d.scores + (uint64_t)blockIdx.y * d.context + b * d.candidate_block;
    int count = b < blocks - 1 ? d.candidate_block : 0;
    R top = -INFINITY;
#pragma unroll 8
    for (int j = 0; j < count; j++)
        if (score[j] > top) top = score[j];
    ((R *)d.block_scores)[(uint64_t)blockIdx.y * d.context + b] = count ? top : (R)INFINITY;
}

template <class A> void launch_pool(const dev &d, uint32_t first, uint32_t n, int ratio, chain s) {
    int64_t longest = (d.context + d.candidate_block - 1) / d.candidate_block;
    dim3 grid((unsigned)((longest + 127) / 128), n);
    launch_chained(best_kernel<typename A::real>, grid, 128, 0, s, d, first, ratio);
    launch_picks<typename A::real>(d, pick_task{ first, ratio, false, true, false }, n, longest,
                                   chain{ s.stream, true });
}

#define INSTANTIATE(A)                                                                                                 \
    template void launch_index_query<A>(const dev &, uint32_t, void *, chain);                                         \
    template void launch_index_gates<A>(const dev &, uint32_t, void *, chain);                                         \
    template void launch_scores<A>(const dev &, uint32_t, uint32_t, const void *, const void *, int, int, bool,        \
                                   cudaStream_t);                                                                      \
    template void launch_select<A>(const dev &, uint32_t, uint32_t, int, bool, chain);                                 \
    template void launch_pool<A>(const dev &, uint32_t, uint32_t, int, chain);
CEDAR_ARITHMETICS(INSTANTIATE)
