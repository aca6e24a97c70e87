/* Private to engine/cuda: stored codes as pairs of bf16, exactly. */
#ifndef CEDAR_ENGINE_CUDA_PAIRS_CUH
#define CEDAR_ENGINE_CUDA_PAIRS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

static __device__ __forceinline__ uint32_t pair_of(float lo, float hi) {
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(uint32_t *)&v;
}

static __device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b) {
    __nv_bfloat162 r = __hmul2(*(__nv_bfloat162 *)&a, *(__nv_bfloat162 *)&b);
    return *(uint32_t *)&r;
}

/* A code's exponent is laid into bf16's as it is, which is off by 2^gap: 127 less the code's own bias. */
enum { E4M3_GAP = 127 - 7, E2M1_GAP = 127 - 1 };

/* Multiplies by 2^gap and a UE8M0 scale, of which bf16 holds the product up to a byte of 254 - gap: E4M3 weights may
 * have scales up to 2^7, E2M1 up to 2. Weights with larger ones are refused at open (tensor_scale_max). */
struct factor {
    uint32_t pair;
    __device__ __forceinline__ factor(uint8_t scale, int gap)
        : pair(scale * 0x00800080u + (uint32_t)gap * 0x00800080u) {}        /* one instruction */
    __device__ __forceinline__ uint32_t operator()(uint32_t v) const { return times(v, pair); }
};

static __device__ __forceinline__ float e4m3(uint8_t v) {
    uint32_t h;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((uint16_t)v));
    return __half22float2(*(__half2 *)&h).x;
}

static __device__ __forceinline__ float ue8m0(uint8_t b) { return __uint_as_float(b ? (uint32_t)b << 23 : 0x400000u); }

/* Multiplies by 2^gap, then by a bf16 value: whatever the scale, for what a step computes itself. */
struct factor_value {
    uint32_t gap_pair, pair;
    __device__ __forceinline__ factor_value(float value, int gap)
        : gap_pair((uint32_t)(127 + gap) << 7 | (uint32_t)(127 + gap) << 23), pair(pair_of(value, value)) {}
    __device__ __forceinline__ uint32_t operator()(uint32_t v) const { return times(times(v, gap_pair), pair); }
};

/* E4M3 codes in bytes 1 and 3 of p; the other bytes do not matter. */
template <class Scale> static __device__ __forceinline__ uint32_t e4m3_pair(uint32_t p, const Scale &scaled) {
    return scaled((p & 0x80008000u) | ((p >> 4) & 0x07f007f0u));
}

/* Four codes as the pairs (0,1) (2,3). */
template <class Scale> static __device__ __forceinline__ uint2 e4m3_pairs(uint32_t a, const Scale &scaled) {
    return make_uint2(e4m3_pair(__byte_perm(a, 0, 0x1000), scaled), e4m3_pair(__byte_perm(a, 0, 0x3020), scaled));
}

/* FP8 and FP4 codes of weights do not lie in words as they are stored, but so that a few instructions lay pairs out as
 * bf16 (launch_spread). */

/* Where two E4M3 codes have their signs, exponents and mantissas as a pair of bf16. */
static const uint32_t E4M3_TAKEN = 0x87f087f0u;

/* Eight stored codes, two words, as decoding wants them: codes p and p + 4 are pair p. Of a word's two pairs the first
 * is where it is needed; of the second, four bits and the sign lie 4 too low, the other three 4 too high. */
static __host__ __device__ __forceinline__ uint2 e4m3_spread(uint2 codes) {
    uint32_t v[4];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        uint32_t pair = (codes.x >> 8 * p & 0xff) | (codes.y >> 8 * p & 0xff) << 16;
        v[p] = (pair & 0x00800080u) << 8 | (pair & 0x007f007fu) << 4;
    }
    return make_uint2(v[0] | (v[1] & 0x80f080f0u) >> 4 | (v[1] & 0x07000700u) << 4,
                      v[2] | (v[3] & 0x80f080f0u) >> 4 | (v[3] & 0x07000700u) << 4);
}

/* The four pairs of two words of spread codes, in the bits of E4M3_TAKEN. */
static __device__ __forceinline__ void e4m3_laid(uint2 w, uint32_t f[4]) {
    f[0] = w.x & E4M3_TAKEN;
    f[1] = (w.x << 4 & 0x80f080f0u) | (w.x >> 4 & 0x07000700u);
    f[2] = w.y & E4M3_TAKEN;
    f[3] = (w.y << 4 & 0x80f080f0u) | (w.y >> 4 & 0x07000700u);
}

/* Code i, as it was stored, of two words of spread codes. */
static __device__ __forceinline__ uint8_t e4m3_code(uint2 w, int i) {
    uint32_t f[4];
    e4m3_laid(w, f);
    uint32_t v = f[i % 4] >> i / 4 * 16;
    return (uint8_t)((v >> 8 & 0x80) | (v >> 4 & 0x7f));
}

/* Where two E2M1 codes have their signs, exponents and mantissas as a pair of bf16. */
static const uint32_t E2M1_TAKEN = 0x81c081c0u;

/* Eight E2M1 codes as the pairs (0,4) (1,5) (2,6) (3,7): a product lays the codes at one place of both halves out
 * twice, 12 bits up for their signs and 6 for the rest. */
template <class Scale>
static __device__ __forceinline__ void e2m1_crossed(uint32_t v, const Scale &scaled, uint32_t f[4]) {
    const uint32_t low = 0x000f000fu, high = 0x00f000f0u;
    uint32_t w = v >> 8;
    f[0] = scaled((v & low) * 0x1040u & E2M1_TAKEN);
    f[1] = scaled((v & high) * 0x104u & E2M1_TAKEN);
    f[2] = scaled((w & low) * 0x1040u & E2M1_TAKEN);
    f[3] = scaled((w & high) * 0x104u & E2M1_TAKEN);
}

enum { E2M1_SPREAD_BY = 3 };

/* A word of eight stored codes as decoding wants it: the first pair is where it is needed, two are rotated by 3 and 6,
 * and a product puts the bits that were left over to their places. Codes p and p + 4 are pair p. */
static __host__ __device__ __forceinline__ uint32_t e2m1_spread(uint32_t codes) {
    uint32_t w = 0, v = 0;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        v = (codes >> 4 * p & 0x000f000fu) * 0x1040u & E2M1_TAKEN;
        if (p < 3) w |= v << E2M1_SPREAD_BY * p | (uint32_t)((uint64_t)v << E2M1_SPREAD_BY * p >> 32);
    }
    return w | (v >> 7 & 0x00030003u) | (v >> 12 & 0x00080008u) | (v >> 2 & 0x00100010u);
}

/* The four pairs of a word of spread codes, in the bits of E2M1_TAKEN. */
static __device__ __forceinline__ void e2m1_laid(uint32_t w, uint32_t f[4]) {
    f[0] = w & E2M1_TAKEN;
    f[1] = __funnelshift_r(w, w, E2M1_SPREAD_BY) & E2M1_TAKEN;
    f[2] = __funnelshift_r(w, w, 2 * E2M1_SPREAD_BY) & E2M1_TAKEN;
    f[3] = (w & 0x001b001bu) * 0x1084u & E2M1_TAKEN;
}

/* Code i, as it was stored, of a word of spread codes. */
static __device__ __forceinline__ uint8_t e2m1_code(uint32_t w, int i) {
    uint32_t f[4];
    e2m1_laid(w, f);
    uint32_t v = f[i % 4] >> i / 4 * 16;
    return (uint8_t)((v >> 12 & 8) | (v >> 6 & 7));
}

/* Crossed pairs as (0,1) (2,3) (4,5) (6,7). */
static __device__ __forceinline__ uint4 uncrossed(const uint32_t f[4]) {
    return make_uint4(__byte_perm(f[0], f[1], 0x5410), __byte_perm(f[2], f[3], 0x5410),
                      __byte_perm(f[0], f[1], 0x7632), __byte_perm(f[2], f[3], 0x7632));
}

/* Small shapes have records of odd sizes: those are read byte by byte. */
static __device__ __forceinline__ uint32_t load_word(const uint8_t *p) {
    if (((uintptr_t)p & 3) == 0) return *(const uint32_t *)p;
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static __device__ __forceinline__ uint2 load_words(const uint8_t *p) {
    if (((uintptr_t)p & 7) == 0) return *(const uint2 *)p;
    return make_uint2(load_word(p), load_word(p + 4));
}

#endif
