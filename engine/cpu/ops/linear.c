/* Dot products, weight decoding, linear layers and the quantisers as the operators see them. */
#include <string.h>

#include "engine/cpu/ops/ops.h"

/* Cloned functions have names of their own per arithmetic, since clang 14 exports their resolvers even when they are
 * static.
 * Wider vectors change no bit: each lane keeps its own sum and products are never fused (-ffp-contract=off). */
#if defined __x86_64__ && !defined CEDAR_SANITIZED
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

/* Products are summed in double in every arithmetic: a float product is exact there, so an fp32 engine's results carry
 * one rounding per sum and flip few quantisation codes. */
typedef double lanes __attribute__((vector_size(64)));
typedef real half __attribute__((vector_size(8 * sizeof(real)), aligned(sizeof(real)), may_alias));
enum { LANES = 8 };

/* A macro: returning a vector from a function would depend on the instruction set. */
#define LOAD(x) __builtin_convertvector(*(const half *)(x), lanes)

static inline __attribute__((always_inline)) double lanes_sum(const lanes *v) {
    double s[LANES];
    memcpy(s, v, sizeof s);
    for (int h = LANES / 2; h; h /= 2)
        for (int i = 0; i < h; i++) s[i] += s[i + h];
    return s[0];
}

static inline __attribute__((always_inline)) void dot4_body(const real *const a[4], const real *const b[4], int64_t n,
                                                            real out[4]) {
    lanes s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES) {
        s0 += LOAD(a[0] + k) * LOAD(b[0] + k);
        s1 += LOAD(a[1] + k) * LOAD(b[1] + k);
        s2 += LOAD(a[2] + k) * LOAD(b[2] + k);
        s3 += LOAD(a[3] + k) * LOAD(b[3] + k);
    }
    double tail[4] = { 0, 0, 0, 0 };
    for (; k < n; k++)
        for (int i = 0; i < 4; i++) tail[i] += (double)a[i][k] * (double)b[i][k];
    out[0] = (real)(lanes_sum(&s0) + tail[0]);
    out[1] = (real)(lanes_sum(&s1) + tail[1]);
    out[2] = (real)(lanes_sum(&s2) + tail[2]);
    out[3] = (real)(lanes_sum(&s3) + tail[3]);
}

CLONES static void OP(dot4_cloned)(const real *const a[4], const real *const b[4], int64_t n, real out[4]) {
    dot4_body(a, b, n, out);
}

CLONES static real OP(dot_cloned)(const real *a, const real *b, int64_t n) {
    lanes s = { 0 };
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES) s += LOAD(a + k) * LOAD(b + k);
    double tail = 0;
    for (; k < n; k++) tail += (double)a[k] * (double)b[k];
    return (real)(lanes_sum(&s) + tail);
}

/* Plain symbols for other files: clang 14 exports cloned functions under other names. */
void OP(dot4)(const real *const a[4], const real *const b[4], int64_t n, real out[4]) { OP(dot4_cloned)(a, b, n, out); }
real OP(dot)(const real *a, const real *b, int64_t n) { return OP(dot_cloned)(a, b, n); }

/* --- matrices as panels ----------------------------------------------------------------------------------------------
 *
 * A decoded matrix lies in panels of PANEL rows, [K, PANEL] each, the last one padded with zeros: then PANEL outputs
 * are summed side by side, each in ascending k, in double. No order depends on the number of rows or of threads. */

typedef double panel_half __attribute__((vector_size(8 * sizeof(double))));
#define PANEL_LOAD(w) __builtin_convertvector(*(const half *)(w), panel_half)

static inline __attribute__((always_inline)) void panel_store(const panel_half *lo, const panel_half *hi, real *y,
                                                              int64_t n) {
    double out[PANEL];
    memcpy(out, lo, sizeof *lo);
    memcpy(out + 8, hi, sizeof *hi);
    for (int64_t i = 0; i < n; i++) y[i] = (real)out[i];
}

/* Four rows of x against one panel. x [4, K] in double. */
CLONES static void OP(four_rows)(const real *w, int64_t k_count, const double *x, real *y, int64_t ldy, int64_t n) {
    panel_half a0 = { 0 }, b0 = { 0 }, a1 = { 0 }, b1 = { 0 }, a2 = { 0 }, b2 = { 0 }, a3 = { 0 }, b3 = { 0 };
    for (int64_t k = 0; k < k_count; k++) {
        panel_half lo = PANEL_LOAD(w + k * PANEL), hi = PANEL_LOAD(w + k * PANEL + 8);
        double x0 = x[k], x1 = x[k_count + k], x2 = x[2 * k_count + k], x3 = x[3 * k_count + k];
        a0 += lo * x0;
        b0 += hi * x0;
        a1 += lo * x1;
        b1 += hi * x1;
        a2 += lo * x2;
        b2 += hi * x2;
        a3 += lo * x3;
        b3 += hi * x3;
    }
    panel_store(&a0, &b0, y, n);
    panel_store(&a1, &b1, y + ldy, n);
    panel_store(&a2, &b2, y + 2 * ldy, n);
    panel_store(&a3, &b3, y + 3 * ldy, n);
}

/* One row of x against one or two panels. */
CLONES static void OP(one_row)(const real *w, int64_t k_count, const double *x, real *y, int64_t n) {
    panel_half a0 = { 0 }, b0 = { 0 }, a1 = { 0 }, b1 = { 0 };
    const real *second = n > PANEL ? w + k_count * PANEL : w;
    for (int64_t k = 0; k < k_count; k++) {
        double xk = x[k];
        a0 += PANEL_LOAD(w + k * PANEL) * xk;
        b0 += PANEL_LOAD(w + k * PANEL + 8) * xk;
        a1 += PANEL_LOAD(second + k * PANEL) * xk;
        b1 += PANEL_LOAD(second + k * PANEL + 8) * xk;
    }
    panel_store(&a0, &b0, y, n < PANEL ? n : PANEL);
    if (n > PANEL) panel_store(&a1, &b1, y + PANEL, n - PANEL);
}

/* y [T, N] of a matrix in panels; x [T, K] in double. */
static void gemm(const real *w, int64_t n_count, int64_t k_count, const double *x, int t_count, real *y, int64_t ldy) {
    int t = 0;
    for (; t + 4 <= t_count; t += 4)
        for (int64_t n = 0; n < n_count; n += PANEL)
            OP(four_rows)(w + n * k_count, k_count, x + t * k_count, y + t * ldy + n, ldy,
             n_count - n < PANEL ? n_count - n : PANEL);
    for (; t < t_count; t++)
        for (int64_t n = 0; n < n_count; n += 2 * PANEL)
            OP(one_row)(w + n * k_count, k_count, x + t * k_count, y + t * ldy + n,
             n_count - n < 2 * PANEL ? n_count - n : 2 * PANEL);
}

static real ue8m0(uint8_t b) { return (real)cedar_ue8m0_value(b); }

static void nibbles_decode(const uint8_t *nibbles, int n, real s, real *x) {
    for (int k = 0; k < n; k += 2) {
        x[k] = (real)cedar_e2m1_value[nibbles[k / 2] & 15] * s;
        x[k + 1] = (real)cedar_e2m1_value[nibbles[k / 2] >> 4] * s;
    }
}

void OP(decode_row)(const cedar_weight *w, int64_t row, real *out) {
    CEDAR_ASSERT(w->kind != CEDAR_W_NONE);
    const uint8_t *code = w->data;
    int64_t k_count = w->cols;
    switch (w->kind) {
    case CEDAR_W_TILES:
    case CEDAR_W_ROWS: {
        const uint8_t *scale = w->scale + (w->kind == CEDAR_W_TILES ? row / 32 : row) * ((k_count + 31) / 32);
        code += row * k_count;
        for (int64_t b = 0; b < k_count; b += 32) {
            real s = ue8m0(scale[b / 32]);
            int64_t end = b + 32 < k_count ? b + 32 : k_count;
            for (int64_t k = b; k < end; k++) out[k] = (real)cedar_e4m3_value[code[k]] * s;
        }
        return;
    }
    case CEDAR_W_FP4: {
        const uint8_t *scale = w->scale + row * (k_count / 32);
        code += row * (k_count / 2);
        for (int64_t k = 0; k < k_count; k += 32) nibbles_decode(code + k / 2, 32, ue8m0(scale[k / 32]), out + k);
        return;
    }
    case CEDAR_W_BF16:
        for (int64_t k = 0; k < k_count; k++) {
            uint16_t v;
            memcpy(&v, code + 2 * (row * k_count + k), 2);
            out[k] = (real)cedar_bf16_value(v);
        }
        return;
    case CEDAR_W_F32:
        for (int64_t k = 0; k < k_count; k++) {
            float v;
            memcpy(&v, code + 4 * (row * k_count + k), 4);
            out[k] = (real)v;
        }
        return;
    case CEDAR_W_NONE: return;
    }
}

void OP(decode_panel)(const cedar_weight *w, int64_t first, real *panel, real *scratch) {
    for (int64_t i = 0; i < PANEL; i++) {
        bool there = first + i < w->rows;
        if (there) OP(decode_row)(w, first + i, scratch);
        for (int64_t k = 0; k < w->cols; k++) panel[k * PANEL + i] = there ? scratch[k] : 0;
    }
}

void OP(linear_rows)(const OP(weights) *ws, const cedar_weight *w, int64_t n_first, int64_t n_count, const real *x,
                     int64_t ldx, int t_count, real *y, int64_t ldy, OP(linear_scratch) *s) {
    CEDAR_ASSERT(n_first % PANEL == 0 && t_count <= LINEAR_ROWS);
    for (int t = 0; t < t_count; t++)
        for (int64_t k = 0; k < w->cols; k++) s->x[t * w->cols + k] = (double)x[t * ldx + k];
    const real *all = ws->decoded[w->index];
    if (all) {
        gemm(all + n_first * w->cols, n_count, w->cols, s->x, t_count, y, ldy);
        return;
    }
    for (int64_t n = 0; n < n_count; n += PANEL) {
        OP(decode_panel)(w, n_first + n, s->panel, s->row);
        gemm(s->panel, n_count - n < PANEL ? n_count - n : PANEL, w->cols, s->x, t_count, y + n, ldy);
    }
}

void OP(linear_raw)(const OP(weights) *ws, const cedar_weight *w, const real *x, int64_t ldx, int t_count, real *y,
                    int64_t ldy, OP(linear_scratch) *s) {
    OP(linear_rows)(ws, w, 0, w->rows, x, ldx, t_count, y, ldy, s);
}

void OP(linear)(const OP(weights) *ws, const cedar_weight *w, const real *x, int64_t ldx, int t_count, real *y,
                int64_t ldy, OP(linear_scratch) *s) {
    OP(linear_raw)(ws, w, x, ldx, t_count, y, ldy, s);
    for (int t = 0; t < t_count; t++)
        for (int64_t n = 0; n < w->rows; n++) y[t * ldy + n] = rb(y[t * ldy + n]);
}

/* --- quantisers --------------------------------------------------------------------------------------------------- */

static void widen(const real *x, int n, double *out) {
    CEDAR_ASSERT(n <= CEDAR_VECTOR_MAX);
    for (int k = 0; k < n; k++) out[k] = (double)x[k];
}

static void fp8q32(const real *x, int n, uint8_t *codes, uint8_t *scales, cedar_tape *tape) {
#if defined CEDAR_ARITH_WIDE
    cedar_fp8q32_d(x, n, codes, scales);
#else
    cedar_fp8q32_f(x, n, codes, scales);
#endif
    double block[32];
    for (int b = 0; tape && b < n; b += 32) {
        widen(x + b, 32, block);
        cedar_tape_fp8q32(tape, block, codes + b, scales + b / 32);
    }
}

void OP(quantise)(const real *x, int64_t n, real *out, cedar_tape *tape) {
    uint8_t code[32], scale;
    for (int64_t b = 0; b < n; b += 32) {
        fp8q32(x + b, 32, code, &scale, tape);
        real s = ue8m0(scale);
        for (int k = 0; k < 32; k++) out[b + k] = (real)cedar_e4m3_value[code[k]] * s;
    }
}

void OP(ring_encode)(const real *x, int n, uint8_t *record, cedar_tape *tape) {
    fp8q32(x, n, record, record + n, tape);
}

void OP(ring_decode)(const uint8_t *record, int n, real *x) {
    for (int b = 0; b < n; b += 32) {
        real s = ue8m0(record[n + b / 32]);
        for (int k = 0; k < 32; k++) x[b + k] = (real)cedar_e4m3_value[record[b + k]] * s;
    }
}

void OP(fp4q16_encode)(const real *x, int n, uint8_t *nibbles, uint8_t *scales, cedar_tape *tape) {
    double wide[CEDAR_VECTOR_MAX];
    widen(x, n, wide);
    cedar_fp4q16(wide, n, nibbles, scales);
    if (tape) cedar_tape_fp4q16(tape, wide, n, nibbles, scales);
}

void OP(fp4q32_encode)(const real *x, int n, uint8_t *nibbles, uint8_t *scales, cedar_tape *tape) {
    double wide[CEDAR_VECTOR_MAX];
    widen(x, n, wide);
    cedar_fp4q32(wide, n, nibbles, scales);
    if (tape) cedar_tape_fp4q32(tape, wide, n, nibbles, scales);
}

void OP(fp4q16_decode)(const uint8_t *nibbles, const uint8_t *scales, int n, real *x) {
    for (int b = 0; b < n; b += 16) nibbles_decode(nibbles + b / 2, 16, (real)cedar_e4m3_value[scales[b / 16]], x + b);
}

void OP(fp4q32_decode)(const uint8_t *nibbles, const uint8_t *scales, int n, real *x) {
    for (int b = 0; b < n; b += 32) nibbles_decode(nibbles + b / 2, 32, ue8m0(scales[b / 32]), x + b);
}
