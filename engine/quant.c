/* Number formats. */
#include "engine/quant.h"

#include <math.h>

#define OCTAVE(s, p) s(p) * 1.0f, s(p) * 1.125f, s(p) * 1.25f, s(p) * 1.375f, s(p) * 1.5f, s(p) * 1.625f, s(p) * 1.75f
#define SUBNORMAL(s) s 0.0f, s 0x1p-9f, s 0x2p-9f, s 0x3p-9f, s 0x4p-9f, s 0x5p-9f, s 0x6p-9f, s 0x7p-9f
#define FULL(s, p) OCTAVE(s, p), s(p) * 1.875f
#define E4M3_HALF(s) \
    SUBNORMAL(s), FULL(s, 0x1p-6f), FULL(s, 0x1p-5f), FULL(s, 0x1p-4f), FULL(s, 0x1p-3f), FULL(s, 0x1p-2f), \
    FULL(s, 0x1p-1f), FULL(s, 0x1p0f), FULL(s, 0x1p1f), FULL(s, 0x1p2f), FULL(s, 0x1p3f), FULL(s, 0x1p4f), \
    FULL(s, 0x1p5f), FULL(s, 0x1p6f), FULL(s, 0x1p7f), OCTAVE(s, 0x1p8f), NAN

const float cedar_e4m3_value[256] = { E4M3_HALF(+), E4M3_HALF(-) };
const float cedar_e2m1_value[16] = { 0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6 };

static uint64_t bits_of(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

uint8_t cedar_e4m3_encode(double x) {
    if (x != x) return 0x7F;
    uint64_t u = bits_of(x);
    uint8_t sign = (uint8_t)(u >> 63 << 7);
    double a = fabs(x);
    if (a >= 448) return sign | 0x7E;
    if (a < 0x1p-6) return sign | (uint8_t)(a * 512 + 0x1p52 - 0x1p52);     /* subnormal codes; 8 is the first normal */
    u = bits_of(a);
    u = (u + (((uint64_t)1 << 48) - 1) + ((u >> 49) & 1)) >> 49;            /* exponent and 3 bits, ties to even */
    return sign | (uint8_t)(u - ((uint64_t)(1023 - 7) << 3));
}

/* E2M1 code of x / s without dividing: the midpoints times s are exact, so this is the exact comparison. */
static uint8_t e2m1_scaled(double x, double s) {
    double a = fabs(x);
    int c = (a > .25 * s) + (a >= .75 * s) + (a > 1.25 * s) + (a >= 1.75 * s) + (a > 2.5 * s) + (a >= 3.5 * s) +
            (a > 5 * s);
    if (x != x) c = 7;
    return (uint8_t)(c | (int)(bits_of(x) >> 63 << 3));
}

uint8_t cedar_e2m1_encode(double x) { return e2m1_scaled(x, 1); }

uint8_t cedar_pow2_ceil_byte(double amax, float inverse_max) {
    float p = (float)amax * inverse_max;
    uint32_t u;
    memcpy(&u, &p, sizeof u);
    return (uint8_t)((u >> 23) + ((u & 0x7fffffu) != 0));
}

#define MAX_ABS(x, n, out)                                                                                             \
    do {                                                                                                               \
        out = 0;                                                                                                       \
        for (int q_ = 0; q_ < n; q_++) {                                                                               \
            double a_ = fabs((double)(x)[q_]);                                                                         \
            if (a_ > out) out = a_;                                                                                    \
        }                                                                                                              \
    } while (0)

void cedar_fp8q32_d(const double *x, int n, uint8_t *codes, uint8_t *scales) {
    for (int b = 0; b < n; b += 32) {
        double amax;
        MAX_ABS(x + b, 32, amax);
        uint8_t s = cedar_pow2_ceil_byte(fmax(amax, (double)1e-4f), 1.0f / 448);
        double inv = 1 / cedar_ue8m0_value(s);
        for (int k = 0; k < 32; k++) codes[b + k] = cedar_e4m3_encode(x[b + k] * inv);
        scales[b / 32] = s;
    }
}

void cedar_fp8q32_f(const float *x, int n, uint8_t *codes, uint8_t *scales) {
    double block[32];
    for (int b = 0; b < n; b += 32) {
        for (int k = 0; k < 32; k++) block[k] = (double)x[b + k];
        cedar_fp8q32_d(block, 32, codes + b, scales + b / 32);
    }
}

static void pack(const double *x, int n, double s, uint8_t *nibbles) {
    for (int k = 0; k < n; k += 2) nibbles[k / 2] = (uint8_t)(e2m1_scaled(x[k], s) | e2m1_scaled(x[k + 1], s) << 4);
}

void cedar_fp4q32(const double *x, int n, uint8_t *nibbles, uint8_t *scales) {
    for (int b = 0; b < n; b += 32) {
        double amax;
        MAX_ABS(x + b, 32, amax);
        uint8_t s = cedar_pow2_ceil_byte(fmax(amax, 6 * 0x1p-126), 1.0f / 6);
        pack(x + b, 32, cedar_ue8m0_value(s), nibbles + b / 2);
        scales[b / 32] = s;
    }
}

void cedar_fp4q16(const double *x, int n, uint8_t *nibbles, uint8_t *scales) {
    for (int b = 0; b < n; b += 16) {
        double amax;
        MAX_ABS(x + b, 16, amax);
        uint8_t s = cedar_e4m3_encode(fmax(amax, 6 * 0x1p-9) / 6);
        pack(x + b, 16, (double)cedar_e4m3_value[s], nibbles + b / 2);
        scales[b / 16] = s;
    }
}
