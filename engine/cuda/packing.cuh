/* Private to engine/cuda: activations as linear layers read them, eight values at a time (tensor.cuh). */
#ifndef CEDAR_ENGINE_CUDA_PACKING_CUH
#define CEDAR_ENGINE_CUDA_PACKING_CUH

#include "engine/cuda/pairs.cuh"
#include "engine/cuda/tensor.cuh"

/* Eight values become bf16, through FP8Q32 if wanted: four neighbouring lanes share a block of 32. */
static __device__ __forceinline__ void pack8(float v[8], bool quantise, uint32_t out[4]) {
    if (quantise) {
        float top = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) top = fmaxf(top, fabsf(v[i]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        uint8_t s = pow2_ceil_byte((double)fmaxf(top, 1e-4f), 1.0f / 448);
        float scale = __uint_as_float((uint32_t)s << 23), inverse = __uint_as_float((uint32_t)(254 - s) << 23);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            uint16_t code;
            uint32_t h;
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(code) : "f"(v[i + 1] * inverse), "f"(v[i] * inverse));
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(code));
            float2 x = __half22float2(*(__half2 *)&h);
            v[i] = x.x * scale;
            v[i + 1] = x.y * scale;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = pair_of(v[2 * i], v[2 * i + 1]);
}

/* Eight packed values from column k on of a row, as the pairs (0,4) (1,5) (2,6) (3,7): plain, one after the other, or
 * woven: pair q of the eight from 64 h + 16 t + 8 e on at 64 h + 32 e + 8 q + 2 t of its block (tensor.cuh). */
static __device__ __forceinline__ void store8(uint16_t *row, int64_t k, const uint32_t p[4], bool woven) {
    uint4 c = make_uint4(__byte_perm(p[0], p[2], 0x5410), __byte_perm(p[0], p[2], 0x7632),
                         __byte_perm(p[1], p[3], 0x5410), __byte_perm(p[1], p[3], 0x7632));
    if (!woven) {
        *(uint4 *)(row + k) = c;
        return;
    }
    int t = (int)(k % 64) / 16, e = (int)(k % 16) / 8;
    uint32_t *pairs = (uint32_t *)(row + k / 64 * 64 + 32 * e + 2 * t);
    pairs[0] = c.x;
    pairs[4] = c.y;
    pairs[8] = c.z;
    pairs[12] = c.w;
}

/* Eight bf16 values. */
static __device__ __forceinline__ void unpack8(uint4 u, float v[8]) {
    uint32_t p[4] = { u.x, u.y, u.z, u.w };
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = __uint_as_float(j % 2 ? p[j / 2] & 0xffff0000u : p[j / 2] << 16);
}

static __device__ __forceinline__ void load8(const float *x, float v[8]) {
    float4 lo = *(const float4 *)x, hi = *(const float4 *)(x + 4);
    v[0] = lo.x; v[1] = lo.y; v[2] = lo.z; v[3] = lo.w;
    v[4] = hi.x; v[5] = hi.y; v[6] = hi.z; v[7] = hi.w;
}

/* v = SwiGLU of gates a and ups b, both cut off at `limit` if that is above 0, times weight. */
static __device__ __forceinline__ void activate8(const float a[8], const float b[8], float weight, float limit,
                                                 float v[8]) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float gate = a[j], up = b[j];
        if (limit > 0) {
            up = up > limit ? limit : up < -limit ? -limit : up;
            gate = gate > limit ? limit : gate;
        }
        v[j] = rounded(weight * (gate * sigmoid(gate) * up));
    }
}

/* y = a row's experts in ascending id, then the shared one, added up for eight channels: bf16, one slot `step` units
 * behind the other, those without an expert left out. AT_ONCE slots are asked for together, whether they count or not,
 * so that they need not wait for the ids. */
static __device__ __forceinline__ void sum_experts(const int32_t *ids, int per_token, const uint4 *from, int step,
                                                   float y[8]) {
    enum { AT_ONCE = 8 };
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = 0;
#pragma unroll 1
    for (int first = 0; first <= per_token; first += AT_ONCE) {
        uint4 u[AT_ONCE];
        bool there[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int slot = first + i;
            there[i] = slot == per_token || (slot < per_token && ids[slot] >= 0);
            if (slot <= per_token) u[i] = from[(int64_t)slot * step];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (!there[i]) continue;
            float x[8];
            unpack8(u[i], x);
#pragma unroll
            for (int j = 0; j < 8; j++) y[j] += x[j];
        }
    }
}

#endif
