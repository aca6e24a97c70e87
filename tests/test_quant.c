/* Number formats: every code, every midpoint, the worked examples of the model's description. Expected values come from
 * formulas written here, not from the tables under test. */
#include <check.h>
#include <math.h>
#include <stdbool.h>

#include "engine/quant.h"

/* Value of an E4M3 code: sign, 4 exponent bits with bias 7, 3 fraction bits, no infinities. */
static double e4m3(int code) {
    int e = code >> 3 & 15, m = code & 7;
    if ((code & 0x7F) == 0x7F) return NAN;
    double v = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
    return code & 128 ? -v : v;
}

/* Value of an E2M1 code: sign, 2 exponent bits with bias 1, 1 fraction bit. */
static double e2m1(int code) {
    int e = code >> 1 & 3, m = code & 1;
    double v = e ? ldexp(2 + m, e - 2) : m * 0.5;
    return code & 8 ? -v : v;
}

static bool same(double a, double b) { return a == b && signbit(a) == signbit(b); }

static uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* --- codes -------------------------------------------------------------------------------------------------------- */

START_TEST(e4m3_table_is_the_format) {
    for (int c = 0; c < 256; c++) {
        if ((c & 0x7F) == 0x7F) ck_assert(isnan(cedar_e4m3_value[c]));
        else
            ck_assert_msg(same((double)cedar_e4m3_value[c], e4m3(c)), "code %02x is %g, not %g", (unsigned)c,
                          (double)cedar_e4m3_value[c], e4m3(c));
    }
    ck_assert(cedar_e4m3_value[0x7E] == 448);
    ck_assert(cedar_e4m3_value[0x01] == 0x1p-9f);
    ck_assert(cedar_e4m3_value[0x08] == 0x1p-6f);
}
END_TEST

START_TEST(e4m3_codes_survive_a_round_trip) {
    for (int c = 0; c < 256; c++) {
        if ((c & 0x7F) == 0x7F) continue;
        ck_assert_uint_eq(cedar_e4m3_encode(e4m3(c)), (unsigned)c);
    }
}
END_TEST

/* The midpoint of neighbours goes to the even code, and the next double on either side to the nearer one. */
START_TEST(e4m3_midpoints_go_to_the_even_code) {
    for (int sign = 0; sign < 256; sign += 128)
        for (int c = 0; c < 0x7E; c++) {
            double mid = (e4m3(c) + e4m3(c + 1)) / 2, s = sign ? -1 : 1;
            int even = c % 2 ? c + 1 : c;
            ck_assert_int_eq(cedar_e4m3_encode(s * mid), sign | even);
            ck_assert_int_eq(cedar_e4m3_encode(s * nextafter(mid, 0)), sign | c);
            ck_assert_int_eq(cedar_e4m3_encode(s * nextafter(mid, 1e9)), sign | (c + 1));
        }
}
END_TEST

START_TEST(e4m3_saturates_and_keeps_nan) {
    static const double big[] = { 448, 448.0000001, 464, 479, 480, 1e30, INFINITY };
    for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
        ck_assert_uint_eq(cedar_e4m3_encode(big[i]), 0x7E);
        ck_assert_uint_eq(cedar_e4m3_encode(-big[i]), 0xFE);
    }
    ck_assert_uint_eq(cedar_e4m3_encode(NAN), 0x7F);
    ck_assert_uint_eq(cedar_e4m3_encode(0.0), 0x00);
    ck_assert_uint_eq(cedar_e4m3_encode(-0.0), 0x80);
    ck_assert_uint_eq(cedar_e4m3_encode(-1e-30), 0x80);
    ck_assert_uint_eq(cedar_e4m3_encode(5e-324), 0x00);
}
END_TEST

START_TEST(e2m1_table_round_trip_and_midpoints) {
    for (int c = 0; c < 16; c++) {
        ck_assert(same((double)cedar_e2m1_value[c], e2m1(c)));
        ck_assert_int_eq(cedar_e2m1_encode(e2m1(c)), c);
    }
    for (int sign = 0; sign < 16; sign += 8)
        for (int c = 0; c < 7; c++) {
            double mid = (e2m1(c) + e2m1(c + 1)) / 2, s = sign ? -1 : 1;
            ck_assert_int_eq(cedar_e2m1_encode(s * mid), sign | (c % 2 ? c + 1 : c));
            ck_assert_int_eq(cedar_e2m1_encode(s * nextafter(mid, 0)), sign | c);
            ck_assert_int_eq(cedar_e2m1_encode(s * nextafter(mid, 9)), sign | (c + 1));
        }
}
END_TEST

/* The ties as the model's description lists them. */
START_TEST(e2m1_ties_of_the_description) {
    static const double x[] = { .25, .75, 1.25, 1.75, 2.5, 3.5, 5 }, want[] = { 0, 1, 1, 2, 2, 4, 4 };
    for (int i = 0; i < 7; i++) ck_assert(e2m1(cedar_e2m1_encode(x[i])) == want[i]);
    ck_assert_int_eq(cedar_e2m1_encode(6.1), 7);
    ck_assert_int_eq(cedar_e2m1_encode(-1e30), 15);
    ck_assert_int_eq(cedar_e2m1_encode(NAN) & 7, 7);
}
END_TEST

START_TEST(ue8m0_bytes_are_powers_of_two) {
    for (int b = 0; b < 255; b++) {
        double v = cedar_ue8m0_value((uint8_t)b);
        ck_assert(v == ldexp(1, b - 127));
        ck_assert((double)(float)v == v);     /* exact in float too, also where float is subnormal */
    }
    ck_assert(isnan(cedar_ue8m0_value(255)));
}
END_TEST

/* --- bf16 --------------------------------------------------------------------------------------------------------- */

START_TEST(bf16_rounds_to_nearest_even) {
    static const struct { uint32_t in, out; } v[] = {
        { 0x3f800000, 0x3f800000 }, { 0x3f807fff, 0x3f800000 }, { 0x3f808000, 0x3f800000 },     /* tie, even below */
        { 0x3f808001, 0x3f810000 }, { 0x3f818000, 0x3f820000 },                                 /* tie, even above */
        { 0xbf818000, 0xbf820000 }, { 0x00000000, 0x00000000 }, { 0x80000000, 0x80000000 },
        { 0x00008000, 0x00000000 }, { 0x00018000, 0x00020000 }, { 0x00000001, 0x00000000 },     /* subnormal */
        { 0x7f7fffff, 0x7f800000 }, { 0x7f7f7fff, 0x7f7f0000 }, { 0x7f800000, 0x7f800000 }, { 0xff800000, 0xff800000 },
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        ck_assert_msg(float_bits(cedar_bf16_round(float_of(v[i].in))) == v[i].out, "%08x", v[i].in);
    ck_assert(isnan(cedar_bf16_round(NAN)));
    ck_assert(isnan(cedar_bf16_round(float_of(0x7f800001))));   /* rounding a NaN must not make it infinite */
}
END_TEST

START_TEST(bf16_values_are_the_upper_halves) {
    for (uint32_t b = 0; b < 65536; b++) {
        float f = cedar_bf16_value((uint16_t)b);
        ck_assert_uint_eq(float_bits(f), b << 16);
        if (f == f) ck_assert_uint_eq(float_bits(cedar_bf16_round(f)), b << 16);
    }
}
END_TEST

/* --- quantisers --------------------------------------------------------------------------------------------------- */

/* First element amax, then smaller ones of both signs. */
static void fill(double *x, int n, double amax) {
    for (int k = 0; k < n; k++) x[k] = k ? (k % 2 ? -1 : 1) * amax * (n - k) / n : amax;
}

START_TEST(fp8q32_scales_of_the_description) {
    static const struct {
        double a, scale;
    } v[] = { { 1, 0x1p-8 }, { 6, 0x1p-6 },  { 10, 0x1p-5 },    { 448, 1 },
              { 449, 2 },    { 0, 0x1p-22 }, { 1e-4, 0x1p-22 }, { 0x1p-20, 0x1p-22 } };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        double x[32];
        float f[32];
        uint8_t code[32], scale, code_f[32], scale_f;
        fill(x, 32, v[i].a);
        for (int k = 0; k < 32; k++) f[k] = (float)x[k];
        cedar_fp8q32_d(x, 32, code, &scale);
        ck_assert_msg(cedar_ue8m0_value(scale) == v[i].scale, "A = %g: scale %g", v[i].a, cedar_ue8m0_value(scale));
        for (int k = 0; k < 32; k++) ck_assert_uint_eq(code[k], cedar_e4m3_encode(x[k] / v[i].scale));
        cedar_fp8q32_f(f, 32, code_f, &scale_f);
        ck_assert_uint_eq(scale_f, scale);
    }
}
END_TEST

START_TEST(fp4q16_scales_of_the_description) {
    static const struct {
        double a, scale;
    } v[] = { { .01, 0x1p-9 }, { 1, .171875 }, { 3.3, .5625 },   { 6, 1 },    { 10, 1.625 },
              { 22.6, 3.75 },  { 0, 0x1p-9 },  { 6 * 448, 448 }, { 1e6, 448 } };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        double x[16];
        uint8_t nibbles[8], scale;
        fill(x, 16, v[i].a);
        cedar_fp4q16(x, 16, nibbles, &scale);
        ck_assert_msg(e4m3(scale) == v[i].scale, "A = %g: scale %g", v[i].a, e4m3(scale));
        for (int k = 0; k < 16; k++) {
            int code = nibbles[k / 2] >> (k % 2 * 4) & 15;          /* low nibble = even channel */
            ck_assert_int_eq(code, cedar_e2m1_encode(x[k] / v[i].scale));
        }
    }
}
END_TEST

START_TEST(fp4q16_example_of_the_description) {
    static const double x[16] = { .1, -.7, 1.3, 2.2, -3.3, .05, .9, -1.1, .33, -.21, 2.9, 1.75, -2.5, .6, -.45, 3 };
    static const double want[16] = { 0, -1, 2, 4, -6, 0, 1.5, -2, .5, -.5, 6, 3, -4, 1, -1, 6 };
    uint8_t nibbles[8], scale;
    cedar_fp4q16(x, 16, nibbles, &scale);
    ck_assert(e4m3(scale) == .5625);
    for (int k = 0; k < 16; k++) ck_assert(e2m1(nibbles[k / 2] >> (k % 2 * 4) & 15) == want[k]);
}
END_TEST

START_TEST(fp4q32_scales_of_the_description) {
    static const struct { double a, scale; } v[] = { { 1, .25 }, { 3, .5 }, { 6, 1 }, { 6.0001, 2 }, { 0, 0x1p-126 } };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        double x[32];
        uint8_t nibbles[16], scale;
        fill(x, 32, v[i].a);
        cedar_fp4q32(x, 32, nibbles, &scale);
        ck_assert_msg(cedar_ue8m0_value(scale) == v[i].scale, "A = %g: scale %g", v[i].a, cedar_ue8m0_value(scale));
        for (int k = 0; k < 32; k++)
            ck_assert_int_eq(nibbles[k / 2] >> (k % 2 * 4) & 15, cedar_e2m1_encode(x[k] / v[i].scale));
    }
}
END_TEST

/* The scale is the smallest power of two with amax / scale <= max, but for the float product's own rounding. */
START_TEST(pow2_scales_are_the_smallest_that_fit) {
    for (int e = -10; e <= 10; e++)
        for (int m = 0; m < 64; m++) {
            double a = ldexp(1 + m / 64.0, e);
            int want = (int)ceil(log2(a / 448) - 1e-12) + 127, want6 = (int)ceil(log2(a / 6) - 1e-12) + 127;
            ck_assert_int_eq(cedar_pow2_ceil_byte(a, 1.0f / 448), want);
            ck_assert_int_eq(cedar_pow2_ceil_byte(a, 1.0f / 6), want6);
        }
}
END_TEST

/* Deterministic reals of many magnitudes. */
static void noise(double *x, int n, unsigned seed, double scale) {
    for (int k = 0; k < n; k++) {
        seed = seed * 1664525u + 1013904223u;
        x[k] = scale * ((double)(seed >> 8) / (1 << 23) - 1) * ldexp(1, (int)(seed >> 3 & 7) - 4);
    }
}

START_TEST(quantising_twice_changes_nothing) {
    for (unsigned seed = 1; seed <= 200; seed++) {
        double x[32], y[32];
        uint8_t a[32], sa[2], b[32], sb[2];
        noise(x, 32, seed, ldexp(1, (int)(seed % 12) - 2));
        cedar_fp8q32_d(x, 32, a, sa);
        for (int k = 0; k < 32; k++) y[k] = e4m3(a[k]) * cedar_ue8m0_value(sa[0]);
        cedar_fp8q32_d(y, 32, b, sb);
        for (int k = 0; k < 32; k++) ck_assert(e4m3(b[k]) * cedar_ue8m0_value(sb[0]) == y[k]);
        cedar_fp4q32(x, 32, a, sa);
        for (int k = 0; k < 32; k++) y[k] = e2m1(a[k / 2] >> (k % 2 * 4) & 15) * cedar_ue8m0_value(sa[0]);
        cedar_fp4q32(y, 32, b, sb);
        for (int k = 0; k < 32; k++) ck_assert(e2m1(b[k / 2] >> (k % 2 * 4) & 15) * cedar_ue8m0_value(sb[0]) == y[k]);
        cedar_fp4q16(x, 32, a, sa);
        if (e4m3(sa[0]) < 0x1p-6 || e4m3(sa[1]) < 0x1p-6) continue; /* FP4Q16 is not idempotent with subnormal scales */
        for (int k = 0; k < 32; k++) y[k] = e2m1(a[k / 2] >> (k % 2 * 4) & 15) * e4m3(sa[k / 16]);
        cedar_fp4q16(y, 32, b, sb);
        for (int k = 0; k < 32; k++) ck_assert(e2m1(b[k / 2] >> (k % 2 * 4) & 15) * e4m3(sb[k / 16]) == y[k]);
    }
}
END_TEST

START_TEST(blocks_depend_on_themselves_alone) {
    double x[96], y[96];
    uint8_t code[96], scale[6], code1[32], scale1[2];
    noise(x, 96, 7, 3);
    for (int b = 0; b < 3; b++) {
        for (int k = 0; k < 96; k++) y[k] = k / 32 == b ? x[k] : 1000 * x[95 - k];
        cedar_fp8q32_d(y, 96, code, scale);
        cedar_fp8q32_d(x + 32 * b, 32, code1, scale1);
        ck_assert_mem_eq(code + 32 * b, code1, 32);
        ck_assert_uint_eq(scale[b], scale1[0]);
        cedar_fp4q32(y, 96, code, scale);
        cedar_fp4q32(x + 32 * b, 32, code1, scale1);
        ck_assert_mem_eq(code + 16 * b, code1, 16);
        ck_assert_uint_eq(scale[b], scale1[0]);
        cedar_fp4q16(y, 96, code, scale);
        cedar_fp4q16(x + 32 * b, 32, code1, scale1);
        ck_assert_mem_eq(code + 16 * b, code1, 16);
        ck_assert_mem_eq(scale + 2 * b, scale1, 2);
    }
}
END_TEST

/* x / S is never formed: the coder compares with midpoints times S, which must give the nearest code for scales
 * that are not powers of two as well. */
START_TEST(fp4q16_codes_are_the_nearest) {
    for (unsigned seed = 1; seed <= 300; seed++) {
        double x[16];
        uint8_t nibbles[8], scale;
        noise(x, 16, seed * 77, 5);
        cedar_fp4q16(x, 16, nibbles, &scale);
        double s = e4m3(scale);
        for (int k = 0; k < 16; k++) {
            double got = fabs(x[k] - e2m1(nibbles[k / 2] >> (k % 2 * 4) & 15) * s), best = INFINITY;
            for (int c = 0; c < 16; c++) best = fmin(best, fabs(x[k] - e2m1(c) * s));
            ck_assert(got <= best);
        }
    }
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("quant");
    TCase *t = tcase_create("codes");
    tcase_set_timeout(t, 10);
    tcase_add_test(t, e4m3_table_is_the_format);
    tcase_add_test(t, e4m3_codes_survive_a_round_trip);
    tcase_add_test(t, e4m3_midpoints_go_to_the_even_code);
    tcase_add_test(t, e4m3_saturates_and_keeps_nan);
    tcase_add_test(t, e2m1_table_round_trip_and_midpoints);
    tcase_add_test(t, e2m1_ties_of_the_description);
    tcase_add_test(t, ue8m0_bytes_are_powers_of_two);
    tcase_add_test(t, bf16_rounds_to_nearest_even);
    tcase_add_test(t, bf16_values_are_the_upper_halves);
    suite_add_tcase(s, t);
    t = tcase_create("quantisers");
    tcase_set_timeout(t, 10);
    tcase_add_test(t, fp8q32_scales_of_the_description);
    tcase_add_test(t, fp4q16_scales_of_the_description);
    tcase_add_test(t, fp4q16_example_of_the_description);
    tcase_add_test(t, fp4q32_scales_of_the_description);
    tcase_add_test(t, pow2_scales_are_the_smallest_that_fit);
    tcase_add_test(t, quantising_twice_changes_nothing);
    tcase_add_test(t, blocks_depend_on_themselves_alone);
    tcase_add_test(t, fp4q16_codes_are_the_nearest);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
