/* Private to engine/cuda: matrix instructions, bf16 in, fp32 sums: of one warp (mma), and Hopper's of a group of four
 * warps with the layout of their operands in shared memory. A group's products run on after it issued them, until
 * wgmma_wait. */
#ifndef CEDAR_ENGINE_CUDA_WGMMA_CUH
#define CEDAR_ENGINE_CUDA_WGMMA_CUH

#include <stdint.h>

/* c (16 x 8) += a (16 x 16) b. */
static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four blocks of 8 rows of 16 bytes from shared memory, a lane naming a row, as mma's operands; or turned. */
static __device__ __forceinline__ void load4(uint32_t r[4], const void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

static __device__ __forceinline__ void load4_transposed(uint32_t r[4], const void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

/* Byte of a 16-byte piece in a row of 128 bytes of a tile: pieces are swizzled so that eight rows meet all banks. */
static __device__ __forceinline__ uint32_t swizzled(int row, int piece) { return (uint32_t)(piece ^ row % 8) * 16; }

/* Descriptor of a tile of rows of 128 swizzled bytes, at a multiple of 1024 bytes, whose rows are outputs and whose 64
 * columns are k. 16 columns on: + 32 bytes, which is + 2. */
static __device__ __forceinline__ uint64_t tile_descriptor(uint32_t at) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

/* The same rows as k and their columns as outputs, 64 outputs a tile, `next` bytes from one tile to the next. 16 rows
 * on: + 2048 bytes, which is + 128. */
static __device__ __forceinline__ uint64_t turned_descriptor(uint32_t at, uint32_t next) {
    return (uint64_t)((at & 0x3ffff) >> 4) | ((uint64_t)(next >> 4) << 16) | (64ull << 32) | (1ull << 62);
}

/* Makes ordinary writes to shared memory visible to the matrix units; before the barrier. */
static __device__ __forceinline__ void wgmma_publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> static __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* Lists of accumulators, as long as a tile is wide. */
#define C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define C16(i) C4(i), C4(i + 4), C4(i + 8), C4(i + 12)
#define INPUTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add)

/* c += a (16 rows of each warp by 16 k, in registers) times the tile at b; c = instead when !add. */
static __device__ __forceinline__ void wgmma(float (&c)[16], const uint32_t a[4], uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0;"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},{%16,%17,%18,%19},%20,p,1,1,0;}"
                 : C16(0)
                 : INPUTS);
}

static __device__ __forceinline__ void wgmma(float (&c)[32], const uint32_t a[4], uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},{%32,%33,%34,%35},%36,p,1,1,0;}"
                 : C16(0), C16(16)
                 : INPUTS);
}

static __device__ __forceinline__ void wgmma(float (&c)[64], const uint32_t a[4], uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0;"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63},{%64,%65,%66,%67},%68,p,1,1,0;}"
                 : C16(0), C16(16), C16(32), C16(48)
                 : INPUTS);
}

/* c (64 rows by as many columns as it has halves) += or = the tile at a times that at b. */
#define DESCRIPTORS "l"(a), "l"(b), "r"((int)add)

static __device__ __forceinline__ void wgmma_tiles(float (&c)[8], uint64_t a, uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0;"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7}, %8,%9,p,1,1,0,0;}"
                 : C4(0), C4(4)
                 : DESCRIPTORS);
}

static __device__ __forceinline__ void wgmma_tiles(float (&c)[16], uint64_t a, uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0;"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16,%17,p,1,1,0,0;}"
                 : C16(0)
                 : DESCRIPTORS);
}

static __device__ __forceinline__ void wgmma_tiles(float (&c)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "%32,%33,p,1,1,0,0;}"
                 : C16(0), C16(16)
                 : DESCRIPTORS);
}

/* The tile at b turned. */
static __device__ __forceinline__ void wgmma_turned(float (&c)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "%32,%33,p,1,1,0,1;}"
                 : C16(0), C16(16)
                 : DESCRIPTORS);
}

static __device__ __forceinline__ void wgmma_turned(float (&c)[128], uint64_t a, uint64_t b, bool add) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0;"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
                 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
                 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
                 "%128,%129,p,1,1,0,1;}"
                 : C16(0), C16(16), C16(32), C16(48), C16(64), C16(80), C16(96), C16(112)
                 : DESCRIPTORS);
}

#undef C4
#undef C16
#undef INPUTS
#undef DESCRIPTORS

#endif
