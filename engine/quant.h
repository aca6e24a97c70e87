/* Number formats of the model: decoders, and the three quantisers of activations and caches (spec/model.md 3.2-3.5).
 *
 * Codes keep the sign of zero. Rounding is to nearest, ties to the even code. Every decoded value is exact in float
 * and double. Class D1: each block of 32 or 16 channels depends on itself alone. Allocation: none. */
#ifndef CEDAR_ENGINE_QUANT_H
#define CEDAR_ENGINE_QUANT_H

#include <stdint.h>
#include <string.h>

extern const float cedar_e4m3_value[256];   /* E4M3 (finite only; 0x7F and 0xFF are NaN) */
extern const float cedar_e2m1_value[16];    /* E2M1, bit 3 = sign */

/* UE8M0: 2^(byte-127); 255 is NaN. Exact, also where float is subnormal (byte 0). */
static inline double cedar_ue8m0_value(uint8_t b) {
    if (b == 255) return __builtin_nan("");
    uint64_t u = (uint64_t)(b - 127 + 1023) << 52;
    double d;
    memcpy(&d, &u, sizeof d);
    return d;
}

static inline float cedar_bf16_value(uint16_t b) {
    uint32_t u = (uint32_t)b << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Rounds to bf16 precision. */
static inline float cedar_bf16_round(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return x;
    u = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint8_t cedar_e4m3_encode(double x);        /* saturates at 448; NaN -> 0x7F */
uint8_t cedar_e2m1_encode(double x);        /* saturates at 6; NaN -> 7 */

/* Byte of the smallest power of two >= amax / max, by the exponent bits of fl32(amax) * inverse_max (spec 3.4). */
uint8_t cedar_pow2_ceil_byte(double amax, float inverse_max);

/* FP8Q32: x [n], n a multiple of 32 -> codes [n], UE8M0 scales [n/32]. */
void cedar_fp8q32_d(const double *x, int n, uint8_t *codes, uint8_t *scales);
void cedar_fp8q32_f(const float *x, int n, uint8_t *codes, uint8_t *scales);
/* FP4Q32: n a multiple of 32 -> nibbles [n/2] (low = even channel), UE8M0 scales [n/32]. */
void cedar_fp4q32(const double *x, int n, uint8_t *nibbles, uint8_t *scales);
/* FP4Q16: n a multiple of 16 -> nibbles [n/2], E4M3 scales [n/16]. */
void cedar_fp4q16(const double *x, int n, uint8_t *nibbles, uint8_t *scales);

#endif
