/* Operators of engine/cuda alone, against plain loops in double on the host.
 *
 * Whole numbers  Where inputs are small whole numbers times powers of two, every partial sum is exact in fp32, so the
 *                result must be the reference's bits: an error in indexing, order or decoding cannot hide in rounding.
 * Random data    Kernels for few rows and for many give the same bits (class D1), which are near the reference: a chain
 *                of m16n8k16 adds 16 products and the sum so far, each cut to 2^-23 of the largest; a part of K has
 *                K / 128 / 8 blocks of 8 chains, rounded up. So the error is at most 17 * 2^-23 * (K / 128 + 8) of the
 *                sum of magnitudes, and 8 roundings for the parts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/quant.h"
#include "tests/engine_rig.h"
#include "tests/gpu/device_ops.h"
#include "tests/gpu/suites.h"

static uint64_t draws;
static uint64_t draw(uint32_t n) { return cedar_rng_below(31, draws++, n); }
/* About normal, variance 1. */
static float normal(void) {
    double s = 0;
    for (int i = 0; i < 12; i++) s += (double)draw(1 << 20) / (1 << 20);
    return (float)(s - 6);
}

/* --- packed activations ------------------------------------------------------------------------------------------- */

/* Where column k of a packed row is (engine/cuda/tensor.cuh). */
static int64_t place_of(int64_t k, bool woven) {
    int64_t pair = k % 4, second = k % 8 / 4, eight = k / 8 * 8;
    if (!woven) return eight + 2 * pair + second;
    return k / 64 * 64 + 32 * (k % 16 / 8) + 8 * pair + 2 * (k % 64 / 16) + second;
}

static uint16_t bf16_bits(float x) {
    uint32_t u;
    x = cedar_bf16_round(x);
    memcpy(&u, &x, sizeof u);
    return (uint16_t)(u >> 16);
}

/* The reference of tensor_pack: a row's values as bf16. */
static void pack_row(const float *x, int64_t k, bool quantise, float *out) {
    uint8_t code[32], scale;
    for (int64_t i = 0; i < k; i += 32) {
        int n = k - i < 32 ? (int)(k - i) : 32;
        if (quantise) cedar_fp8q32_f(x + i, n, code, &scale);
        for (int j = 0; j < n; j++)
            out[i + j] = quantise ? (float)((double)cedar_e4m3_value[code[j]] * cedar_ue8m0_value(scale))
                                  : cedar_bf16_round(x[i + j]);
    }
}

static const uint32_t row_counts[] = { 1, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64, 65, 129, 300 };
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts, ROWS = 300 };

START_TEST(packing) {
    static const int64_t widths[] = { 32, 96, 128, 160, 512, 1280, 5120, 8192 };
    gpu_start();
    for (size_t c = 0; c < sizeof widths / sizeof *widths; c++) {
        int64_t k = widths[c], wide = gpu_padded(k);
        uint32_t n = 5, list[5] = { 4, 0, 3, 1, 2 };
        float *x = malloc((size_t)(n * k) * sizeof *x), *want = malloc((size_t)k * sizeof *want);
        for (int64_t i = 0; i < n * k; i++) x[i] = normal() * (float)(1u << draw(12)) / 64;
        for (int i = 0; i < 32; i++) x[i] = 0;                      /* a block of zeros */
        uint16_t *got = malloc((size_t)(n * wide) * sizeof *got);
        float *dx = gpu_put(x, (size_t)(n * k) * sizeof *x);
        uint32_t *dl = gpu_put(list, sizeof list);
        for (int how = 0; how < 8; how++) {
            bool quantise = how & 1, woven = how & 2, listed = how & 4;
            uint16_t *out = gpu_put(NULL, (size_t)(n * wide) * 2);
            gpu_pack(dx, k, listed ? dl : NULL, n, k, quantise, woven, out);
            gpu_get(got, out, (size_t)(n * wide) * 2);
            for (uint32_t r = 0; r < n; r++) {
                pack_row(x + r * k, k, quantise, want);
                for (int64_t i = 0; i < wide; i++) {
                    float v = i < k ? want[i] : 0, g = cedar_bf16_value(got[r * wide + place_of(i, woven)]);
                    if (g != v)
                        ck_abort_msg("width %d, how %d, row %u, column %d: %g, expected %g",
                                     (int)k, how, r, (int)i, (double)g, (double)v);
                }
            }
            gpu_drop(out);
        }
        gpu_drop(dx);
        gpu_drop(dl);
        free(x);
        free(want);
        free(got);
    }
}
END_TEST

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* A weight on the host, its values, and the same on the device. */
typedef struct matrix {
    cedar_weight host, dev;
    double *value;
} matrix;

static size_t data_bytes(cedar_weight_kind kind, int64_t rows, int64_t cols) {
    size_t n = (size_t)(rows * cols);
    return kind == CEDAR_W_FP4 ? n / 2 : kind == CEDAR_W_BF16 ? 2 * n : n;
}

static size_t scale_count(cedar_weight_kind kind, int64_t rows, int64_t cols) {
    if (kind == CEDAR_W_TILES) return (size_t)((rows + 31) / 32 * ((cols + 31) / 32));
    return kind == CEDAR_W_FP4 ? (size_t)(rows * (cols / 32)) : 0;
}

static double value_at(const cedar_weight *w, int64_t row, int64_t col) {
    size_t i = (size_t)(row * w->cols + col);
    if (w->kind == CEDAR_W_TILES)
        return (double)cedar_e4m3_value[w->data[i]] *
               cedar_ue8m0_value(w->scale[row / 32 * ((w->cols + 31) / 32) + col / 32]);
    if (w->kind == CEDAR_W_FP4)
        return (double)cedar_e2m1_value[w->data[i / 2] >> (i % 2 * 4) & 15] *
               cedar_ue8m0_value(w->scale[row * (w->cols / 32) + col / 32]);
    uint16_t u;
    memcpy(&u, w->data + 2 * i, 2);
    return (double)cedar_bf16_value(u);
}

/* whole: values -6 .. 6 times 1, 2 or 4 (bf16: -6 .. 6); else anything that is not NaN. */
static matrix make_matrix(cedar_weight_kind kind, int64_t rows, int64_t cols, bool whole) {
    size_t n = data_bytes(kind, rows, cols), scales = scale_count(kind, rows, cols);
    uint8_t *data = malloc(n), *scale = malloc(scales + 1);
    for (size_t i = 0; i < n; i++) {
        if (kind == CEDAR_W_TILES)
            data[i] = whole ? cedar_e4m3_encode((double)draw(13) - 6) : (uint8_t)(draw(256) & 0xBF);
        else if (kind == CEDAR_W_FP4) data[i] = whole ? (uint8_t)(draw(256) & 0xEE) : (uint8_t)draw(256);
        else if (i % 2 == 0) {
            uint16_t u = bf16_bits(whole ? (float)draw(13) - 6 : normal());
            memcpy(data + i, &u, 2);
        }
    }
    /* 2^0 to 2^2, of FP4 to 2^1: larger ones are refused when weights are read */
    uint32_t spread = kind == CEDAR_W_FP4 ? 2 : 3;
    for (size_t i = 0; i < scales; i++) scale[i] = (uint8_t)((whole ? 127 : 117) + draw(spread));
    matrix m = { .host = { .kind = kind, .rows = rows, .cols = cols, .data = data, .scale = scales ? scale : NULL } };
    m.value = malloc((size_t)(rows * cols) * sizeof *m.value);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) m.value[r * cols + c] = value_at(&m.host, r, c);
    m.dev = m.host;
    m.dev.data = gpu_put_codes(kind, data, n);
    m.dev.scale = scales ? gpu_put(scale, scales) : NULL;
    return m;
}

static void drop_matrix(matrix *m) {
    gpu_drop((void *)(uintptr_t)m->dev.data);
    if (m->dev.scale) gpu_drop((void *)(uintptr_t)m->dev.scale);
    free((void *)(uintptr_t)m->host.data);
    free((void *)(uintptr_t)m->host.scale);
    free(m->value);
}

/* Activations [rows, k]: values, and packed both ways on the device. whole: -4 .. 4. */
typedef struct batch {
    float *value;
    uint16_t *packed[2];
} batch;

static batch make_batch(uint32_t rows, int64_t k, bool whole) {
    batch b = { .value = malloc((size_t)(rows * k) * sizeof(float)) };
    for (int64_t i = 0; i < rows * k; i++) b.value[i] = whole ? (float)draw(9) - 4 : cedar_bf16_round(normal());
    float *x = gpu_put(b.value, (size_t)(rows * k) * sizeof(float));
    for (int w = 0; w < 2; w++) {
        b.packed[w] = gpu_put(NULL, (size_t)(rows * gpu_padded(k)) * 2);
        gpu_pack(x, k, NULL, rows, k, false, w == 1, b.packed[w]);
    }
    gpu_drop(x);
    return b;
}

static void drop_batch(batch *b) {
    free(b->value);
    for (int w = 0; w < 2; w++) gpu_drop(b->packed[w]);
}

/* y and, with `size`, the sum of magnitudes. */
static double product(const double *w, const float *x, int64_t k, double *size) {
    double sum = 0, all = 0;
    for (int64_t i = 0; i < k; i++) {
        sum += w[i] * (double)x[i];
        all += fabs(w[i] * (double)x[i]);
    }
    if (size) *size = all;
    return sum;
}

static double chain_error(int64_t k) { return 17 * 0x1p-23 * ((double)k / 128 + 8) + 8 * 0x1p-24; }

/* Rows of x as the engine feeds them: woven for more than a few, else in plain slices of `few` rows. */
static void run_linear(const cedar_weight *w, const batch *b, uint32_t rows, uint32_t few, float *y) {
    size_t bytes = (size_t)rows * (size_t)w->rows * sizeof(float);
    float *dy = gpu_put(NULL, bytes);
    if (!few) {
        gpu_linear(w, &(gpu_operand){ b->packed[1], NULL, 1, 0, true }, rows, dy, w->rows, false);
    } else {
        for (uint32_t i = 0; i < rows; i += few)
            gpu_linear(w, &(gpu_operand){ b->packed[0], NULL, 1, (int)i, false }, rows - i < few ? rows - i : few,
                       dy + i * w->rows, w->rows, false);
    }
    gpu_get(y, dy, bytes);
    gpu_drop(dy);
}

static const struct { int64_t n, k; } linear_shapes[] = {
    { 1, 32 },      { 15, 96 },     { 16, 128 },    { 17, 160 },   { 127, 512 },
    { 128, 1280 },  { 129, 1152 },  { 512, 5120 },  { 320, 8192 },
    { 5629, 672 },          /* enough outputs for tiles of 128, 64 and 32 rows, by how many rows there are */
    { 12805, 160 },         /* three tiles a block */
    { 25600, 1152 },        /* few rows: a warp a tile; some segments of K are longer */
    { 33856, 1024 },        /* more tiles than warps that run at once */
    { 6400, 1280 }, { 9504, 1152 },     /* four warps a tile; with more tiles than blocks that run at once */
};
enum { LINEAR_SHAPES = sizeof linear_shapes / sizeof *linear_shapes };

static void check_linear(cedar_weight_kind kind, int64_t n, int64_t k, bool whole) {
    matrix m = make_matrix(kind, n, k, whole);
    batch b = make_batch(ROWS, k, whole);
    size_t count = (size_t)(ROWS * n);
    float *many = malloc(count * sizeof *many), *other = malloc(count * sizeof *other);
    run_linear(&m.dev, &b, ROWS, 0, many);
    uint32_t step = (whole ? 1 : 7) * (1 + (uint32_t)(n * k >> 22));    /* large ones: fewer rows by hand */
    for (uint32_t r = 0; r < ROWS; r += step)
        for (int64_t i = 0; i < n; i++) {
            double size, want = product(m.value + i * k, b.value + r * k, k, &size), got = (double)many[r * n + i];
            double most = whole ? 0 : chain_error(k) * size;
            if (!(fabs(got - want) <= most))
                ck_abort_msg("kind %d, %d x %d, row %u, output %d: %.9g, expected %.9g within %.3g",
                             kind, (int)n, (int)k, r, (int)i, got, want, most);
        }
    for (int c = 0; c < ROW_COUNTS; c++) {                      /* other batches, and both kernels: the same bits */
        uint32_t rows = row_counts[c];
        bool few = rows <= (uint32_t)gpu_few_rows();
        run_linear(&m.dev, &b, few ? ROWS : rows, few ? rows : 0, other);
        ck_assert_msg(!memcmp(many, other, (size_t)((few ? ROWS : rows) * n) * sizeof *many),
                      "kind %d, %d x %d: other bits by %u rows", kind, (int)n, (int)k, rows);
    }
    free(many);
    free(other);
    drop_batch(&b);
    drop_matrix(&m);
}

START_TEST(linear) {
    static const cedar_weight_kind kinds[] = { CEDAR_W_TILES, CEDAR_W_BF16 };
    gpu_start();
    int64_t n = linear_shapes[_i].n, k = linear_shapes[_i].k;
    int some = n * k > 1 << 23 ? 1 : 2;         /* the large ones are for kernels of FP8 */
    for (int kind = 0; kind < some; kind++)
        for (int whole = 0; whole < 2; whole++) check_linear(kinds[kind], n, k, whole);
}
END_TEST

/* Every code at every scale from where all values are normal numbers up to the largest that a checkpoint may have. */
static void check_codes(cedar_weight_kind kind, int first) {
    enum { N = 256, K = 32 };
    uint8_t data[N * K] = { 0 }, scale[N];
    float one[K] = { 1 };
    float *x = gpu_put(one, sizeof one), y[N];
    bool four = kind == CEDAR_W_FP4;
    cedar_weight w = { .kind = kind, .rows = N, .cols = K };
    for (int r = 0; r < N; r++) data[four ? r * K / 2 : r * K] = (uint8_t)r;
    w.data = gpu_put_codes(kind, data, data_bytes(kind, N, K));
    int32_t id = 0;
    float *dy = gpu_put(NULL, 2 * sizeof y);
    for (int s = first; s <= gpu_scale_max((int)kind); s++)
        for (int woven = 0; woven < 2; woven++) {
            memset(scale, s, sizeof scale);
            w.scale = gpu_put(scale, sizeof scale);
            uint16_t *px = gpu_put(NULL, (size_t)gpu_padded(K) * 2);
            gpu_pack(x, K, NULL, 1, K, false, woven, px);
            if (four) gpu_experts(&w, 1, &id, 1, 1, px, false, woven, dy);
            else gpu_linear(&w, &(gpu_operand){ px, NULL, 1, 0, woven }, 1, dy, N, false);
            gpu_get(y, dy, sizeof y);
            for (int r = 0; r < N; r++) {
                if (!four && (r & 127) == 127) continue;            /* NaN, which no weight has */
                double code = (double)(four ? cedar_e2m1_value[r & 15] : cedar_e4m3_value[r]),
                       v = code * cedar_ue8m0_value((uint8_t)s);
                if ((double)y[r] != v)
                    ck_abort_msg("kind %d, scale %d, code %d: %g, expected %g", kind, s, r, (double)y[r], v);
            }
            gpu_drop(px);
            gpu_drop((void *)(uintptr_t)w.scale);
        }
    gpu_drop(x);
    gpu_drop(dy);
    gpu_drop((void *)(uintptr_t)w.data);
}

START_TEST(codes) {
    gpu_start();
    check_codes(CEDAR_W_TILES, 10);     /* 2^-9 * 2^(10 - 127) = 2^-126 */
    check_codes(CEDAR_W_FP4, 2);        /* 0.5 * 2^(2 - 127) = 2^-126 */
}
END_TEST

/* y [rows, n] of whole numbers against rows i * stride + first + (output / part) of b. */
static void check_whole(const char *what, const matrix *m, const batch *b, int stride, int first, int64_t part,
                        uint32_t rows, const float *y) {
    int64_t n_count = m->host.rows, k = m->host.cols;
    for (uint32_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < n_count; n++) {
            int64_t from = (int64_t)r * stride + first + n / part;
            float v = cedar_bf16_round((float)product(m->value + n * k, b->value + from * k, k, NULL));
            if (y[r * n_count + n] != v)
                ck_abort_msg("%s, %u rows: row %u, output %d: %g, expected %g",
                             what, rows, r, (int)n, (double)y[r * n_count + n], (double)v);
        }
}

/* Two weights of n outputs and GROUPS groups of `part`, with up to so many rows. */
enum { GROUPS = 4 };
static const struct { int64_t n, k, part, part_k; uint32_t rows; } joint_shapes[] = {
    { 160, 288, 256, 672, ROWS },
    { 3200, 1152, 1600, 1024, 17 },     /* few rows: four warps a tile of all weights together */
    { 12800, 1024, 6400, 1024, 9 },     /* a warp a tile */
};
enum { JOINT_SHAPES = sizeof joint_shapes / sizeof *joint_shapes };

/* Both have the bits of one by one, with the kernel for many rows. */
static void check_two(int64_t n, int64_t k, uint32_t most) {
    matrix m[2];
    float *want[2], *got = malloc((size_t)(most * n) * sizeof *got);
    batch b = make_batch(most, k, false);
    for (int i = 0; i < 2; i++) {
        m[i] = make_matrix(CEDAR_W_TILES, n, k, false);
        want[i] = malloc((size_t)(most * n) * sizeof **want);
        run_linear(&m[i].dev, &b, most, 0, want[i]);
    }
    for (int c = 0; c < ROW_COUNTS; c++) {
        uint32_t rows = row_counts[c];
        bool woven = rows > (uint32_t)gpu_few_rows();
        size_t bytes = (size_t)(rows * n) * sizeof *got;
        if (rows > most) continue;
        float *y[2] = { gpu_put(NULL, bytes), gpu_put(NULL, bytes) };
        gpu_linear_two(&m[0].dev, &m[1].dev, &(gpu_operand){ b.packed[woven], NULL, 1, 0, woven }, rows, y[0], y[1], n,
                       false);
        for (int i = 0; i < 2; i++) {
            gpu_get(got, y[i], bytes);
            ck_assert_msg(!memcmp(got, want[i], bytes), "%u rows: weight %d of two differs", rows, i);
            gpu_drop(y[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        drop_matrix(&m[i]);
        free(want[i]);
    }
    drop_batch(&b);
    free(got);
}

static void check_groups(int64_t part, int64_t k, uint32_t most) {
    int64_t n = GROUPS * part;
    matrix m = make_matrix(CEDAR_W_TILES, n, k, true);
    batch b = make_batch(most * GROUPS, k, true);
    float *got = malloc((size_t)(most * n) * sizeof *got);
    for (int c = 0; c < ROW_COUNTS; c++) {
        uint32_t rows = row_counts[c];
        bool woven = rows > (uint32_t)gpu_few_rows();
        size_t bytes = (size_t)(rows * n) * sizeof *got;
        if (rows > most) continue;
        float *y = gpu_put(NULL, bytes);
        gpu_groups(&m.dev, GROUPS, &(gpu_operand){ b.packed[woven], NULL, GROUPS, 0, woven }, rows, y, n);
        gpu_get(got, y, bytes);
        check_whole("groups", &m, &b, GROUPS, 0, part, rows, got);
        gpu_linear(&m.dev, &(gpu_operand){ b.packed[woven], NULL, GROUPS, 3, woven }, rows, y, n, true);
        gpu_get(got, y, bytes);
        check_whole("every fourth row", &m, &b, GROUPS, 3, n, rows, got);
        gpu_drop(y);
    }
    drop_matrix(&m);
    drop_batch(&b);
    free(got);
}

/* Two at once, groups, and rows with others between them are the linear layers they stand for. */
START_TEST(linear_two_and_groups) {
    gpu_start();
    check_two(joint_shapes[_i].n, joint_shapes[_i].k, joint_shapes[_i].rows);
    check_groups(joint_shapes[_i].part, joint_shapes[_i].part_k, joint_shapes[_i].rows);
}
END_TEST

/* Two weights at once that have no shape in common, and one that leaves room beside it. n1 0: only the latter. */
static const struct { int64_t n0, n1, k; } beside_shapes[] = {
    { 129, 17, 1152 },      { 1, 300, 96 },     { 1280, 512, 5120 },
    { 16, 2096, 160 },      { 32, 2096, 160 },      /* as many tiles as multiprocessors, and one more: two launches */
    { 12805, 0, 160 },      { 33856, 0, 1024 },     /* tiles that a block takes after another */
};
enum { BESIDE_SHAPES = sizeof beside_shapes / sizeof *beside_shapes };

/* Both have the bits of one by one, with the kernel for many rows; and of the first alone, aside. */
START_TEST(linear_beside_and_aside) {
    enum { MOST = 65 };
    gpu_start();
    const int64_t n[2] = { beside_shapes[_i].n0, beside_shapes[_i].n1 }, k = beside_shapes[_i].k;
    const uint32_t most = n[1] ? MOST : 17;
    batch b = make_batch(most, k, false);
    matrix m[2];
    float *want[2], *got = malloc((size_t)(most * (n[0] + n[1])) * sizeof *got);
    int weights = n[1] ? 2 : 1;
    for (int i = 0; i < weights; i++) {
        m[i] = make_matrix(CEDAR_W_TILES, n[i], k, false);
        want[i] = malloc((size_t)(most * n[i]) * sizeof **want);
        run_linear(&m[i].dev, &b, most, 0, want[i]);
    }
    for (int c = 0; c < ROW_COUNTS && row_counts[c] <= most; c++) {
        uint32_t rows = row_counts[c];
        bool woven = rows > (uint32_t)gpu_few_rows();
        gpu_operand x = { b.packed[woven], NULL, 1, 0, woven };
        float *y[2];
        for (int i = 0; i < weights; i++) y[i] = gpu_put(NULL, (size_t)(rows * n[i]) * sizeof *got);
        for (int together = n[1] > 0; together >= 0; together--) {
            if (together) gpu_linear_beside(&m[0].dev, &m[1].dev, &x, rows, y[0], y[1]);
            else gpu_linear_aside(&m[0].dev, &x, rows, y[0]);
            for (int i = 0; i <= together; i++) {
                gpu_get(got, y[i], (size_t)(rows * n[i]) * sizeof *got);
                ck_assert_msg(!memcmp(got, want[i], (size_t)(rows * n[i]) * sizeof *got),
                              "%u rows, %s: weight %d differs", rows, together ? "beside" : "aside", i);
            }
            gpu_drop(y[0]);
            y[0] = gpu_put(NULL, (size_t)(rows * n[0]) * sizeof *got);
        }
        for (int i = 0; i < weights; i++) gpu_drop(y[i]);
    }
    for (int i = 0; i < weights; i++) {
        drop_matrix(&m[i]);
        free(want[i]);
    }
    drop_batch(&b);
    free(got);
}
END_TEST

static uint16_t *fill_bf16(size_t count, float scale) {
    uint16_t *x = malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = bf16_bits(scale * normal());
    return x;
}

static float *fill_float(size_t count, float scale) {
    float *x = malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = scale * normal();
    return x;
}

/* --- experts ------------------------------------------------------------------------------------------------------ */

enum { EXPERTS = 7, PER_TOKEN = 3, SLOTS = PER_TOKEN + 1 };

/* Tokens choose distinct experts in ascending order; some have fewer, the last ones -1. `crowd`: all choose 5 first. */
static void choose(int32_t *ids, uint32_t rows, bool crowd) {
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t n = 0;
        for (int32_t e = 0; e < EXPERTS && n < PER_TOKEN; e++)
            if (crowd ? e == 5 : draw(2)) ids[r * PER_TOKEN + n++] = e;
        while (n < PER_TOKEN) ids[r * PER_TOKEN + n++] = -1;
    }
}

static void check_experts(int64_t n, int64_t k, uint32_t rows, bool by_pair, bool crowd) {
    matrix m[EXPERTS];
    cedar_weight list[EXPERTS];
    int32_t ids[ROWS * PER_TOKEN];
    for (int e = 0; e < EXPERTS; e++) {
        m[e] = make_matrix(CEDAR_W_FP4, n, k, true);
        list[e] = m[e].dev;
    }
    batch b = make_batch(rows * SLOTS, k, true);
    choose(ids, rows, crowd);
    bool woven = rows > (uint32_t)gpu_few_rows();
    size_t bytes = (size_t)(rows * SLOTS * n) * sizeof(float);
    float *dy = gpu_put(NULL, bytes), *y = malloc(bytes);
    gpu_experts(list, EXPERTS, ids, rows, PER_TOKEN, b.packed[woven], by_pair, woven, dy);
    gpu_get(y, dy, bytes);
    for (uint32_t r = 0; r < rows; r++)
        for (int s = 0; s < SLOTS; s++)
            for (int64_t i = 0; i < n; i++) {
                int32_t e = s < PER_TOKEN ? ids[r * PER_TOKEN + (uint32_t)s] : -1;
                float got = y[(r * SLOTS + (uint32_t)s) * n + i];
                if (e < 0) {
                    if (!isnan(got))
                        ck_abort_msg("%u rows: row %u, slot %d was written", rows, r, s);
                    continue;
                }
                double v = product(m[e].value + i * k, b.value + (by_pair ? r * SLOTS + (uint32_t)s : r) * k, k, NULL);
                if (got != cedar_bf16_round((float)v))
                    ck_abort_msg("%u rows: row %u, slot %d, output %d: %g, expected %g",
                                 rows, r, s, (int)i, (double)got, v);
            }
    gpu_drop(dy);
    free(y);
    drop_batch(&b);
    for (int e = 0; e < EXPERTS; e++) drop_matrix(&m[e]);
}

START_TEST(experts) {
    gpu_start();
    uint32_t rows = row_counts[_i];
    check_experts(144, 96, rows, false, false);
    check_experts(130, 320, rows, true, false);
    check_experts(16, 32, rows, false, true);
    if (rows == 1 || rows == 33) check_experts(96, 5120, rows, false, false);
    if (rows <= (uint32_t)gpu_few_rows()) check_experts(5120, 1152, rows, true, false);     /* a warp a tile */
    if (rows == 300) {                          /* tiles of 128, and of what is left over, in two blocks of outputs */
        check_experts(200, 1312, rows, true, false);
        check_experts(200, 1312, rows, false, true);
    }
}
END_TEST

/* Gates, ups and their activation in one launch have the bits of three, with two warps a tile (one row) and one. */
START_TEST(gated) {
    enum { DIM = 2304, K = 1280, TOKENS = 32 };
    static const uint32_t counts[] = { 1, 2, 7, 9, TOKENS };
    gpu_start();
    matrix m[2 * EXPERTS];
    cedar_weight list[3 * EXPERTS];
    for (int e = 0; e < 2 * EXPERTS; e++) m[e] = make_matrix(CEDAR_W_FP4, DIM, K, false);
    for (int e = 0; e < 3 * EXPERTS; e++) list[e] = m[e < EXPERTS ? e : e - EXPERTS].dev;
    batch b = make_batch(TOKENS, K, false);
    int32_t ids[TOKENS * PER_TOKEN];
    float *weights = fill_float(TOKENS * PER_TOKEN, 1);
    uint16_t *out[2] = { malloc(TOKENS * SLOTS * DIM * 2), malloc(TOKENS * SLOTS * DIM * 2) };
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int crowd = 0; crowd < 2; crowd++) {
            uint32_t rows = counts[c];
            choose(ids, rows, crowd);
            for (int fused = 0; fused < 2; fused++)
                gpu_gated(list, EXPERTS, ids, weights, rows, PER_TOKEN, b.packed[0], 10, fused, out[fused]);
            for (uint32_t pair = 0; pair < rows * SLOTS; pair++) {
                uint32_t slot = pair % SLOTS;
                bool chosen = slot < PER_TOKEN && ids[pair / SLOTS * PER_TOKEN + slot] >= 0;
                for (size_t i = pair * DIM; i < (pair + 1) * DIM; i++)
                    if (chosen ? out[0][i] != out[1][i] : out[1][i] != 0xFFFF)
                        ck_abort_msg("%u rows: pair %u, column %d: %04x, by three launches %04x", rows, pair,
                                     (int)(i % DIM), out[1][i], out[0][i]);
            }
        }
    for (int i = 0; i < 2; i++) free(out[i]);
    free(weights);
    drop_batch(&b);
    for (int e = 0; e < 2 * EXPERTS; e++) drop_matrix(&m[e]);
}
END_TEST

/* --- router ------------------------------------------------------------------------------------------------------- */

/* Scores from a grid of 64 values a 16th apart, so that many tie and no two others are near each other; some are not to
 * be picked at all. In one launch and in two: the same bits. Picks and pairs against plain loops. */
static void check_route(uint32_t rows, int all, int per_token, uint32_t unpickable) {
    uint32_t total = rows * (uint32_t)per_token, *pairs[2], (*tiles[2])[3], count[2];
    float *z = malloc((size_t)rows * (size_t)all * sizeof *z), *bias = malloc((size_t)all * sizeof *bias),
          *weights[2];
    int32_t *ids[2], *want = malloc(total * sizeof *want);
    for (uint32_t i = 0; i < rows * (uint32_t)all; i++) z[i] = (float)draw(64) / 16 - 2;
    for (int e = 0; e < all; e++) bias[e] = draw(100) < unpickable ? draw(2) ? -INFINITY : NAN : 0;
    for (int f = 0; f < 2; f++) {
        ids[f] = malloc(total * sizeof *ids[f]);
        weights[f] = malloc(total * sizeof *weights[f]);
        pairs[f] = malloc(total * sizeof *pairs[f]);
        tiles[f] = malloc(total * sizeof *tiles[f]);
        count[f] = gpu_route(z, bias, rows, all, per_token, f == 1, ids[f], weights[f], pairs[f], tiles[f]);
    }
    uint32_t chosen = 0;
    for (uint32_t r = 0; r < rows; r++) {
        bool taken[512] = { false };
        int n = 0;
        for (int k = 0; k < per_token; k++) {
            int best = -1;
            for (int e = 0; e < all; e++)
                if (bias[e] == 0 && !taken[e] &&
                    (best < 0 || z[r * (uint32_t)all + (uint32_t)e] > z[r * (uint32_t)all + (uint32_t)best]))
                    best = e;
            if (best >= 0) taken[best] = true;
        }
        for (int e = 0; e < all; e++)
            if (taken[e]) want[r * (uint32_t)per_token + (uint32_t)n++] = e;
        chosen += (uint32_t)n;
        while (n < per_token) want[r * (uint32_t)per_token + (uint32_t)n++] = -1;
    }
    ck_assert_msg(memcmp(ids[1], want, total * sizeof *want) == 0, "%u rows, %d experts: other picks", rows, all);
    ck_assert_msg(memcmp(ids[0], ids[1], total * sizeof *want) == 0, "%u rows, %d experts: picks differ", rows,
                  all);
    ck_assert_msg(memcmp(weights[0], weights[1], total * sizeof *weights[0]) == 0,
                  "%u rows, %d experts: weights differ", rows, all);
    for (uint32_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int k = 0; k < per_token; k++) sum += (double)weights[1][r * (uint32_t)per_token + (uint32_t)k];
        ck_assert_msg(fabs(sum - (want[r * (uint32_t)per_token] < 0 ? 0 : 1.5)) < 1e-5, "weights of row %u: sum %g", r,
                      sum);
    }
    uint32_t at = 0;
    ck_assert_uint_eq(count[0], count[1]);
    ck_assert_int_eq(memcmp(tiles[0], tiles[1], count[1] * sizeof *tiles[1]), 0);
    for (int e = 0; e < all; e++)
        for (uint32_t i = 0; i < total; i++)
            if (want[i] == e) {
                uint32_t pair = i / (uint32_t)per_token * ((uint32_t)per_token + 1) + i % (uint32_t)per_token;
                if (!(pairs[0][at] == pair && pairs[1][at] == pair))
                    ck_abort_msg("%u rows, %d experts: pair %u is %u, not %u", rows, all, at, pairs[1][at], pair);
                at++;
            }
    ck_assert_uint_eq(at, chosen);
    for (uint32_t i = 0, next = 0; i < count[1]; i++) {
        ck_assert_uint_eq(tiles[1][i][1], next);
        for (uint32_t k = next; k < next + tiles[1][i][2]; k++) {
            uint32_t pair = pairs[1][k], slots = (uint32_t)per_token + 1;
            ck_assert_int_eq(want[pair / slots * (uint32_t)per_token + pair % slots], (int32_t)tiles[1][i][0]);
        }
        next += tiles[1][i][2];
        if (i + 1 == count[1]) ck_assert_uint_eq(next, chosen);
    }
    for (int f = 0; f < 2; f++) {
        free(ids[f]);
        free(weights[f]);
        free(pairs[f]);
        free(tiles[f]);
    }
    free(z);
    free(bias);
    free(want);
}

START_TEST(routes) {
    static const int counts[] = { 6, 7, 32, 33, 128, 129, 384, 512 };
    static const uint32_t rows[] = { 1, 2, 7, 8, 31, 32 };
    gpu_start();
    for (size_t e = 0; e < sizeof counts / sizeof *counts; e++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            check_route(rows[r], counts[e], 6, 0);
            check_route(rows[r], counts[e], 3, 90);
        }
    check_route(32, 64, 32, 20);
}
END_TEST

/* --- norm --------------------------------------------------------------------------------------------------------- */

START_TEST(norms) {
    static const int widths[] = { 32, 160, 512, 1280, 5120 };
    gpu_start();
    for (size_t c = 0; c < sizeof widths / sizeof *widths; c++) {
        int width = widths[c];
        uint32_t n = 33;
        int64_t wide = gpu_padded(width);
        matrix gain = make_matrix(CEDAR_W_BF16, 1, width, false);
        float *x = malloc((size_t)n * (size_t)width * sizeof *x), *v = malloc((size_t)width * sizeof *v),
              *want = malloc((size_t)width * sizeof *want);
        for (size_t i = 0; i < (size_t)n * (size_t)width; i++) x[i] = normal() * 3;
        float *dx = gpu_put(x, (size_t)n * (size_t)width * sizeof *x);
        uint16_t *got = malloc((size_t)(n * wide) * 2), *out = gpu_put(NULL, (size_t)(n * wide) * 2);
        for (int woven = 0; woven < 2; woven++) {
            gpu_norm(dx, width, n, &gain.dev, 1e-20, woven, out);
            gpu_get(got, out, (size_t)(n * wide) * 2);
            for (uint32_t r = 0; r < n; r++) {
                double square = 0;
                const float *row = x + (size_t)r * (size_t)width;
                for (int i = 0; i < width; i++) square += (double)row[i] * (double)row[i];
                float inverse = 1 / sqrtf((float)square / (float)width + 1e-20f);
                for (int i = 0; i < width; i++) v[i] = cedar_bf16_round((float)gain.value[i] * (row[i] * inverse));
                pack_row(v, width, true, want);
                for (int i = 0; i < width; i++) {
                    float g = cedar_bf16_value(got[r * wide + place_of(i, woven)]);
                    if (g != want[i])
                        ck_abort_msg("width %d, row %u, channel %d: %g, expected %g",
                                     width, r, i, (double)g, (double)want[i]);
                }
            }
        }
        gpu_drop(dx);
        gpu_drop(out);
        free(x);
        free(v);
        free(want);
        free(got);
        drop_matrix(&gain);
    }
}
END_TEST

/* --- streams and activations -------------------------------------------------------------------------------------- */

/* What a place adds to the streams, for one channel. */
static float added(const gpu_streams *x, uint32_t place, int channel) {
    if (x->y) return x->y[place * (uint32_t)x->hidden + (uint32_t)channel];
    float sum = 0;
    for (uint32_t i = 0, slots = (uint32_t)x->per_token + 1; i < slots; i++)
        if (i + 1 == slots || x->ids[place * (slots - 1) + i] >= 0)
            sum += cedar_bf16_value(x->out[(place * slots + i) * (uint32_t)x->hidden + (uint32_t)channel]);
    return cedar_bf16_round(sum);
}

/* The row's streams expanded in place (by value), and v = what they collapse to, normed. */
static void expand_host(const gpu_streams *x, uint32_t row, float *h, float *v) {
    double square = 0;
    for (int k = 0; k < x->hidden; k++) {
        float y = added(x, x->n - 1 - row, k), to[4], sum = 0;
        for (uint32_t t = 0; t < 4; t++) {
            float mixed = 0;
            for (uint32_t f = 0; f < 4; f++) mixed += x->comb[row * 16 + f * 4 + t] * h[(int)f * x->hidden + k];
            to[t] = cedar_bf16_round(x->post[row * 4 + t] * y + mixed);
        }
        for (uint32_t t = 0; t < 4; t++) {
            h[(int)t * x->hidden + k] = to[t];
            sum += x->pre[row * 4 + t] * to[t];
        }
        v[k] = cedar_bf16_round(sum);
        square += (double)v[k] * (double)v[k];
    }
    float inverse = 1 / sqrtf((float)square / (float)x->hidden + 1e-20f);
    for (int k = 0; k < x->hidden; k++) v[k] = cedar_bf16_round(cedar_bf16_value(x->gain[k]) * (v[k] * inverse));
}

static void check_row_of_streams(const gpu_streams *x, uint32_t row, const uint16_t *before, const uint16_t *h,
                                 const uint16_t *plain, const uint16_t *quantised) {
    size_t width = (size_t)x->hidden;
    float *want_h = malloc(4 * width * sizeof *want_h), *v = malloc(width * sizeof *v),
          *want = malloc(width * sizeof *want);
    for (size_t i = 0; i < 4 * width; i++) want_h[i] = cedar_bf16_value(before[row * 4 * width + i]);
    expand_host(x, row, want_h, v);
    for (size_t i = 0; i < 4 * width; i++)
        if (cedar_bf16_value(h[row * 4 * width + i]) != want_h[i])
            ck_abort_msg("%d channels, row %u: stream at %zu", x->hidden, row, i);
    for (int q = 0; q < 2; q++) {
        const uint16_t *packed = q ? quantised : plain;
        pack_row(v, x->hidden, q == 1, want);
        for (int k = 0; k < x->hidden; k++) {
            float got = cedar_bf16_value(
                packed[(x->indexed ? row : x->n - 1 - row) * gpu_padded(x->hidden) + place_of(k, false)]);
            if (got != want[k])
                ck_abort_msg("%d channels, row %u, channel %d: %g, expected %g",
                             x->hidden, row, k, (double)got, (double)want[k]);
        }
    }
    free(want_h);
    free(v);
    free(want);
}

/* In one launch and in two: the same bits, those of the reference. per_token 0: y, else experts. */
static void check_streams(int hidden, uint32_t n, int per_token, bool indexed) {
    size_t width = (size_t)hidden, streams = n * 4 * width, packed = n * (size_t)gpu_padded(hidden),
           picks = n * (size_t)per_token;
    float *pre = fill_float(n * 4, 1), *post = fill_float(n * 4, 1), *comb = fill_float(n * 16, .3f),
          *y = per_token ? NULL : fill_float(n * width, 1);
    uint16_t *out = per_token ? fill_bf16(n * width * (size_t)(per_token + 1), 1) : NULL, *gain = fill_bf16(width, 1),
             *before = fill_bf16(streams, 1), *h[2], *plain[2], *quantised[2];
    int32_t *ids = malloc((picks + 1) * sizeof *ids);
    for (size_t i = 0; i < picks; i++) ids[i] = draw(4) ? (int32_t)draw(9) : -1;
    for (size_t i = 0; y && i < n * width; i++) y[i] = cedar_bf16_round(y[i]);
    const gpu_streams x = { hidden, per_token, n, pre, post, comb, y, ids, out, gain, indexed };
    for (int f = 0; f < 2; f++) {
        h[f] = malloc(streams * 2);
        memcpy(h[f], before, streams * 2);
        plain[f] = malloc(packed * 2);
        quantised[f] = malloc(packed * 2);
        gpu_expand_collapse(&x, f == 1, h[f], plain[f], quantised[f]);
    }
    ck_assert_msg(memcmp(h[0], h[1], streams * 2) == 0, "%d channels, %u rows: streams differ", hidden, n);
    ck_assert_msg(memcmp(plain[0], plain[1], packed * 2) == 0, "%d channels, %u rows: plain differs", hidden, n);
    ck_assert_msg(memcmp(quantised[0], quantised[1], packed * 2) == 0, "%d channels, %u rows: FP8 differs", hidden, n);
    for (uint32_t r = 0; r < n; r++) check_row_of_streams(&x, r, before, h[1], plain[1], quantised[1]);
    for (int f = 0; f < 2; f++) {
        free(h[f]);
        free(plain[f]);
        free(quantised[f]);
    }
    free(pre);
    free(post);
    free(comb);
    free(y);
    free(out);
    free(gain);
    free(before);
    free(ids);
}

START_TEST(streams) {
    static const int widths[] = { 32, 128, 160, 4064, 4096, 4128, 5120 };
    gpu_start();
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int i = 0; i < 4; i++) {
            check_streams(widths[w], i < 2 ? 1 : 32, 0, i % 2 == 1);
            check_streams(widths[w], i < 2 ? 1 : 7, 6, i % 2 == 1);
        }
    check_streams(5120, 2, 7, true);                /* eight slots, one more, and the most */
    check_streams(5120, 2, 8, true);
    check_streams(5120, 2, CEDAR_EXPERTS_PER_TOKEN_MAX, true);
}
END_TEST

/* Routed and shared slots apart give the bits of one launch, near the reference: a code of E4M3 is off by 2^-4 of the
 * value, or by half the least one, 2^-10 of its scale, which is at most 2 / 448 of the largest value of 32. */
static void check_act(uint32_t rows, int per_token, int dim, bool woven) {
    uint32_t slots = (uint32_t)per_token + 1, pairs = rows * slots;
    size_t count = (size_t)pairs * (size_t)dim, wide = (size_t)gpu_padded(dim);
    uint16_t *a = fill_bf16(count, 4), *b = fill_bf16(count, 4), *out[2];
    float *weight = fill_float((size_t)rows * (size_t)per_token, 1);
    for (int split = 0; split < 2; split++) {
        out[split] = malloc(pairs * wide * 2);
        gpu_act(a, b, weight, rows, per_token, dim, 10, split, woven, out[split]);
    }
    ck_assert_msg(memcmp(out[0], out[1], pairs * wide * 2) == 0, "%u rows of %d slots: other bits apart", rows,
                  per_token);
    for (uint32_t i = 0; i < pairs * (uint32_t)dim; i += 32) {
        uint32_t pair = i / (uint32_t)dim, slot = pair % slots;
        double want[32], top = 1e-4;
        for (uint32_t j = 0; j < 32; j++) {
            double g = fmin((double)cedar_bf16_value(a[i + j]), 10),
                   u = fmax(fmin((double)cedar_bf16_value(b[i + j]), 10), -10);
            want[j] = g / (1 + exp(-g)) * u;
            if (slot < slots - 1) want[j] *= (double)weight[pair / slots * (slots - 1) + slot];
            top = fmax(top, fabs(want[j]));
        }
        for (uint32_t j = 0; j < 32; j++) {
            double got = (double)cedar_bf16_value(out[1][pair * wide + (size_t)place_of(i % (uint32_t)dim + j, woven)]),
                   room = 1.1 * (fabs(want[j]) / 16 + top * 2 / 448 / 1024);
            if (!(fabs(got - want[j]) <= room))
                ck_abort_msg("%u rows, pair %u, channel %u: %g, expected %g within %.2g",
                             rows, pair, i % (uint32_t)dim + j, got, want[j], room);
        }
    }
    free(a);
    free(b);
    free(out[0]);
    free(out[1]);
    free(weight);
}

START_TEST(activations) {
    gpu_start();
    check_act(1, 6, 2304, false);
    check_act(1, 1, 32, false);
    check_act(7, 3, 96, false);
    check_act(32, 6, 160, false);
    check_act(40, 6, 160, true);
}
END_TEST

/* --- index scores, picks, attention: flash-e32's heads ------------------------------------------------------------ */

enum { PAGE = 64, CONTEXT = 2048, PAGES = CONTEXT / PAGE };

typedef struct world {
    cedar_config c;
    cedar_layout l;
    uint8_t *pages, *rings, *window_rows;
    gpu_rows rows;
    gpu_world *gpu;
} world;

/* Caches of random codes; scales of a few powers of two, so that values are neither all large nor all small. */
static world make_world(uint32_t count, uint32_t pos, uint32_t lo) {
    world w = { .rows = { count, pos, lo } };
    OK(cedar_config_load("scenarios/models/flash-e32.json", &w.c, err));
    cedar_layout_make(&w.c, PAGE, 0, &w.l);
    size_t page_bytes = PAGES * w.l.page_bytes, record = w.l.ring_row_bytes;
    w.pages = malloc(page_bytes);
    w.rings = malloc(w.l.ring_bytes);
    w.window_rows = malloc(count * record);
    for (size_t i = 0; i < page_bytes; i++) w.pages[i] = (uint8_t)draw(256);
    for (uint32_t p = 0; p < PAGES; p++)
        for (int k = 0; k < w.l.part_count; k++) {
            const cedar_page_part *t = &w.l.part[k];
            uint8_t *page = w.pages + p * w.l.page_bytes;
            for (size_t i = 0; i < (size_t)t->entries * w.l.kv_scale_bytes; i++)
                page[t->kv_scales + i] = (uint8_t)(0x28 + draw(8));                     /* E4M3: 0.25 .. 0.47 */
            for (size_t i = 0; i < (size_t)t->entries * w.l.index_scale_bytes; i++)
                page[t->index_scales + i] = (uint8_t)(126 + draw(3));                   /* 0.5, 1, 2 */
        }
    for (size_t i = 0; i < w.l.ring_bytes; i++)
        w.rings[i] = i % record < (size_t)w.c.head_dim ? (uint8_t)(draw(256) & 0xBF) : (uint8_t)(126 + draw(2));
    for (size_t i = 0; i < count * record; i++)
        w.window_rows[i] = i % record < (size_t)w.c.head_dim ? (uint8_t)(draw(256) & 0xBF) : (uint8_t)(126 + draw(2));
    gpu_start();
    w.gpu = gpu_world_open(&w.c, &w.l, CONTEXT, w.pages, PAGES, w.rings, w.window_rows, &w.rows);
    return w;
}

static void drop_world(world *w) {
    gpu_world_close(w->gpu);
    free(w->pages);
    free(w->rings);
    free(w->window_rows);
}

/* Channel k of entry j in a part: of its global record, or of its index record. */
static double entry_value(const world *w, int part, uint32_t j, int k, bool index) {
    const cedar_page_part *p = &w->l.part[part];
    const uint8_t *page = w->pages + j / p->entries * w->l.page_bytes;
    uint32_t at = j % p->entries;
    uint8_t byte = index ? page[p->index_codes + (uint64_t)at * w->l.index_code_bytes + (unsigned)k / 2]
                         : page[p->kv_codes + (uint64_t)at * w->l.kv_code_bytes + (unsigned)k / 2];
    double code = (double)cedar_e2m1_value[k % 2 ? byte >> 4 : byte & 15];
    const uint8_t *scale = page + (index ? p->index_scales + (uint64_t)at * w->l.index_scale_bytes + (unsigned)k / 32
                                         : p->kv_scales + (uint64_t)at * w->l.kv_scale_bytes + (unsigned)k / 16);
    return code * (index ? cedar_ue8m0_value(*scale) : (double)cedar_e4m3_value[*scale]);
}

static double window_value(const world *w, uint32_t pos, int layer, int k) {
    uint32_t record = w->l.ring_row_bytes;
    size_t slot = (size_t)layer * w->l.ring_slots + pos % w->l.ring_slots;
    const uint8_t *r =
        pos >= w->rows.pos ? w->window_rows + (size_t)(pos - w->rows.pos) * record : w->rings + slot * record;
    return (double)cedar_e4m3_value[r[k]] * cedar_ue8m0_value(r[w->c.head_dim + k / 32]);
}

/* Queries and gates are whole numbers, so every score is exact. */
static void check_scores(uint32_t count, uint32_t pos, int part) {
    world w = make_world(count, pos, 0);
    int heads = w.c.index_heads, dim = w.c.index_dim, ratio = w.l.part[part].ratio;
    size_t n = (size_t)count * (size_t)(heads * dim);
    float *iq = malloc(n * sizeof *iq), *g = malloc(count * (size_t)heads * sizeof *g),
          *scores = malloc((size_t)count * CONTEXT * sizeof *scores);
    for (size_t i = 0; i < n; i++) iq[i] = cedar_e2m1_value[draw(16)] * 2;
    for (size_t i = 0; i < count * (size_t)heads; i++) g[i] = (float)draw(9) - 4;
    float *diq = gpu_put(iq, n * sizeof *iq), *dg = gpu_put(g, count * (size_t)heads * sizeof *g);
    gpu_scores(w.gpu, diq, dg, part, ratio, scores);
    for (uint32_t r = 0; r < count; r += 1 + count / 8)
        for (uint32_t j = 0; j < (pos + r + 1) / (uint32_t)ratio; j++) {
            double sum = 0, got = (double)scores[(size_t)r * CONTEXT + j];
            for (int h = 0; h < heads; h++) {
                size_t head = (size_t)r * (size_t)heads + (size_t)h;
                double dot = 0;
                for (int k = 0; k < dim; k++)
                    dot += (double)iq[head * (size_t)dim + (size_t)k] * entry_value(&w, part, j, k, true);
                sum += (double)g[head] * (dot > 0 ? dot : 0);
            }
            if (got != sum)
                ck_abort_msg("%u rows, row %u, entry %u: %.9g, expected %.9g", count, r, j, got, sum);
        }
    gpu_drop(diq);
    gpu_drop(dg);
    free(iq);
    free(g);
    free(scores);
    drop_world(&w);
}

START_TEST(index_scores) {
    check_scores(1, 0, 0);              /* no entry yet */
    check_scores(1, 1, 0);              /* one */
    check_scores(1, 255, 3);
    check_scores(3, 1021, 3);
    check_scores(32, 1000, 0);
    check_scores(33, 1000, 0);
    check_scores(64, 1983, 3);
}
END_TEST

typedef struct scored { float score; int32_t id; } scored;
static int better(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}
static int ascending(const void *a, const void *b) { return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1; }

/* `kinds` different scores: 1 is all equal, few are many ties, 0 is any. */
static float *random_scores(size_t count, uint32_t kinds) {
    float *scores = malloc(count * sizeof *scores);
    for (size_t i = 0; i < count; i++) scores[i] = kinds ? (float)draw(kinds) - 2 : normal();
    return scores;
}

static void check_picks(const float *scores, uint32_t visible, int k, const int32_t *ids, const char *what) {
    int32_t *want = malloc((size_t)k * sizeof *want);
    scored *list = malloc(visible * sizeof *list);
    for (uint32_t i = 0; i < visible; i++) list[i] = (scored){ scores[i], (int32_t)i };
    qsort(list, visible, sizeof *list, better);
    int n = visible < (uint32_t)k ? (int)visible : k;
    for (int i = 0; i < n; i++) want[i] = list[i].id;
    qsort(want, (size_t)n, sizeof *want, ascending);
    for (int i = n; i < k; i++) want[i] = -1;
    ck_assert_msg(!memcmp(want, ids, (size_t)k * sizeof *want), "%s: other picks", what);
    free(want);
    free(list);
}

static void check_select(uint32_t count, uint32_t pos, uint32_t kinds) {
    world w = make_world(count, pos, 0);
    size_t k = (size_t)w.c.index_topk;
    float *scores = random_scores((size_t)count * CONTEXT, kinds);
    int32_t *ids = malloc(count * k * sizeof *ids);
    gpu_select(w.gpu, scores, 1, ids);
    for (uint32_t r = 0; r < count; r++) {
        char what[80];
        snprintf(what, sizeof what, "%u rows, row %u of %u entries, %u kinds", count, r, pos + r + 1, kinds);
        check_picks(scores + (size_t)r * CONTEXT, pos + r + 1, (int)k, ids + r * k, what);
    }
    free(scores);
    free(ids);
    drop_world(&w);
}

/* Contexts that are cut into slices: a row that one block holds, at its end, in all slices. */
static void check_select_long(uint32_t context, uint32_t kinds) {
    enum { K = 512, COUNT = 8 };
    const uint32_t pos[COUNT] = { 10, 8191, 8192, 16383, 16384, 16500, context - 1, context / 2 };
    float *scores = random_scores((size_t)COUNT * context, kinds);
    int32_t *ids = malloc((size_t)COUNT * K * sizeof *ids);
    gpu_select_long(scores, COUNT, context, pos, K, ids);
    for (uint32_t r = 0; r < COUNT; r++) {
        char what[80];
        snprintf(what, sizeof what, "%u of %u entries, %u kinds", pos[r] + 1, context, kinds);
        check_picks(scores + (size_t)r * context, pos[r] + 1, K, ids + r * K, what);
    }
    free(scores);
    free(ids);
}

START_TEST(long_picks) {
    static const uint32_t contexts[] = { 16501, 40000, 131072, 300000 };       /* the last in slices of 16,384 */
    gpu_start();
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++)
        for (uint32_t kinds = 0; kinds < 5; kinds++) check_select_long(contexts[i], kinds);
}
END_TEST

/* Pools of which one block holds all candidates, and those of which it does not. */
static void check_pool_long(uint32_t context, int block, uint32_t kinds) {
    enum { K = 2048, COUNT = 4 };
    const uint32_t pos[COUNT] = { 10, 16384, context - 1, context / 2 };
    float *scores = random_scores((size_t)COUNT * context, kinds), *best = malloc(context * sizeof *best);
    int32_t *ids = malloc((size_t)COUNT * K * sizeof *ids), picked[COUNT];
    gpu_pool_long(scores, COUNT, context, pos, block, K, ids, picked);
    for (uint32_t r = 0; r < COUNT; r++) {
        uint32_t each = (uint32_t)block, blocks = pos[r] / each + 1;
        for (uint32_t b = 0; b < blocks; b++) best[b] = -INFINITY;
        for (uint32_t j = 0; j <= pos[r]; j++) best[j / each] = fmaxf(best[j / each], scores[(size_t)r * context + j]);
        best[blocks - 1] = INFINITY;
        char what[80];
        snprintf(what, sizeof what, "%u of %u entries, blocks of %d, %u kinds", pos[r] + 1, context, block, kinds);
        check_picks(best, blocks, K, ids + r * K, what);
        ck_assert_int_eq(picked[r], blocks < K ? (int)blocks : K);
    }
    free(scores);
    free(best);
    free(ids);
}

START_TEST(long_pools) {
    gpu_start();
    for (uint32_t kinds = 0; kinds < 5; kinds++) {
        check_pool_long(20000, 8, kinds);
        check_pool_long(131072, 8, kinds);
        check_pool_long(131072, 3, kinds);
    }
}
END_TEST

START_TEST(picks) {
    static const uint32_t at[] = { 0, 1, 510, 511, 512, 1023, 1024, 2000 };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (uint32_t kinds = 0; kinds < 6; kinds++) check_select(kinds == 5 ? 40 : 1, at[i], kinds);
}
END_TEST

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Rotates pairs of the last rope channels by the position's angles. */
static void rotate(const world *w, const double *freq, uint32_t pos, double *v, int sign) {
    for (int k = 0; k < w->c.rope_dim; k += 2) {
        double *p = v + w->c.head_dim - w->c.rope_dim + k, a = (double)pos * freq[k / 2], x = p[0], y = p[1],
               cosine = (double)(float)cos(a), sine = sign * (double)(float)sin(a);
        p[0] = (double)cedar_bf16_round((float)(x * cosine - y * sine));
        p[1] = (double)cedar_bf16_round((float)(x * sine + y * cosine));
    }
}

/* One head of one row; `room` is the sum of the magnitudes that a channel adds up. */
static void attend_host(const world *w, const double *freq, uint32_t row, const float *q, double sink,
                        const int32_t *ids, int layer, int part, double *out, double *room) {
    int dim = w->c.head_dim, n = 0;
    uint32_t pos = w->rows.pos + row, from = pos + 1 > (uint32_t)w->c.window ? pos + 1 - (uint32_t)w->c.window : 0;
    if (from < w->rows.lo) from = w->rows.lo;
    double query[512], logit[640], top = -INFINITY, total = 0;
    static double key[640][512];
    for (int k = 0; k < dim; k++) query[k] = (double)q[k];
    rotate(w, freq, pos, query, 1);
    for (uint32_t p = from; p <= pos; p++, n++)
        for (int k = 0; k < dim; k++) key[n][k] = window_value(w, p, layer, k);
    for (int i = 0; ids && i < w->c.index_topk && ids[i] >= 0; i++, n++)
        for (int k = 0; k < dim; k++) key[n][k] = entry_value(w, part, (uint32_t)ids[i], k, false);
    for (int i = 0; i < n; i++) {
        logit[i] = 0;
        for (int k = 0; k < dim; k++) logit[i] += query[k] * key[i][k];
        logit[i] /= sqrt(dim);
        top = fmax(top, logit[i]);
    }
    for (int i = 0; i < n; i++) total += exp(logit[i] - top);
    total += exp(sink - top);
    for (int k = 0; k < dim; k++) {
        out[k] = room[k] = 0;
        for (int i = 0; i < n; i++) {
            double p = exp(logit[i] - top) / total;
            out[k] += p * key[i][k];
            room[k] += p * fabs(key[i][k]);
        }
    }
    rotate(w, freq, pos, out, -1);
    for (int k = dim - w->c.rope_dim; k < dim; k += 2) room[k] = room[k + 1] = room[k] + room[k + 1];
}

/* Ranks with some of the heads: the bits those heads have among all; out as all of them gave it. */
static void check_shares(world *w, const float *q, const float *sink, int kind, uint32_t count,
                         uint16_t *const out[2]) {
    static const struct { int first, heads; } shares[] = { { 0, 32 }, { 32, 32 }, { 16, 16 }, { 40, 24 }, { 56, 8 } };
    int64_t dim = w->c.head_dim, width = w->c.heads * dim;
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++)
        for (int many = 0; many < 2; many++) {
            int64_t own = shares[k].heads * dim, from = shares[k].first * dim;
            uint16_t *got = malloc((size_t)(count * own) * 2);
            gpu_attention_share(w->gpu, q, sink, kind, shares[k].first, shares[k].heads, many, got);
            for (int64_t r = 0; r < count; r++)
                ck_assert_msg(!memcmp(got + r * own, out[many] + r * width + from, (size_t)own * 2),
                              "%u rows, row %d: %d heads from %d on have other bits than among all", count, (int)r,
                              shares[k].heads, shares[k].first);
            free(got);
        }
}

/* Against the reference: a probability is rounded to bf16 (2^-8 of it at most), logits are off by fp32 noise of sums of
 * 512 products (2^-10 with logits up to some tens), the result is rounded twice: 2^-6 of what is added up. Queries are
 * large enough that few keys matter, so a wrong key shows. */
static void check_attention(uint32_t count, uint32_t pos, uint32_t lo, uint32_t picked, int layer, int part) {
    world w = make_world(count, pos, lo);
    int heads = w.c.heads, dim = w.c.head_dim, topk = w.c.index_topk, kind = part >= 0;
    int64_t width = (int64_t)heads * dim;
    double freq[64], want[512], room[512];
    float *q = malloc((size_t)(count * width) * sizeof *q), sink[64];
    int32_t *ids = malloc((size_t)count * (size_t)topk * sizeof *ids);
    uint16_t *out[2];
    ck_assert(gpu_attention_can(w.gpu) && heads <= 64 && dim == 512);
    cedar_rope_frequencies(&w.c, freq, freq + w.c.rope_dim / 2);
    for (int64_t i = 0; i < count * width; i++) q[i] = cedar_bf16_round(2 * normal());
    for (int h = 0; h < heads; h++) sink[h] = normal();
    for (uint32_t r = 0; r < count; r++) {                                  /* ascending, distinct */
        uint32_t visible = part >= 0 ? (pos + r + 1) / (uint32_t)w.l.part[part].ratio : 0, n = 0,
                 left = picked < visible ? picked : visible;
        for (uint32_t j = 0; j < visible && left; j++)
            if (draw(visible - j) < left) {
                ids[r * (uint32_t)topk + n++] = (int32_t)j;
                left--;
            }
        while (n < (uint32_t)topk) ids[r * (uint32_t)topk + n++] = -1;
    }
    float *dq = gpu_put(q, (size_t)(count * width) * sizeof *q), *ds = gpu_put(sink, sizeof sink);
    for (int many = 0; many < 2; many++) {
        out[many] = malloc((size_t)(count * width) * 2);
        gpu_attention(w.gpu, dq, ds, part >= 0 ? ids : NULL, layer, part, kind, many, out[many]);
    }
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < width; i++)
            if (out[0][r * width + place_of(i, false)] != out[1][r * width + place_of(i, true)])
                ck_abort_msg("%u rows, row %d, channel %d: other bits for few rows and many", count, (int)r, (int)i);
    check_shares(&w, dq, ds, kind, count, out);
    for (uint32_t r = 0; r < count; r += 1 + count / 3)
        for (int h = 0; h < heads; h += 9) {
            attend_host(&w, freq + kind * w.c.rope_dim / 2, r, q + r * width + h * dim, (double)sink[h],
                        part >= 0 ? ids + r * (uint32_t)topk : NULL, layer, part, want, room);
            for (int k = 0; k < dim; k++) {
                double got = (double)cedar_bf16_value(out[0][r * width + place_of(h * dim + k, false)]);
                if (!(fabs(got - want[k]) <= 0x1p-6 * room[k]))
                    ck_abort_msg("%u rows at %u, %u picks, row %u, head %d, channel %d: %g, expected %g within %.2g",
                                 count, pos, picked, r, h, k, got, want[k], 0x1p-6 * room[k]);
            }
        }
    gpu_drop(dq);
    gpu_drop(ds);
    free(q);
    free(ids);
    free(out[0]);
    free(out[1]);
    drop_world(&w);
}

START_TEST(attention) {
    check_attention(1, 0, 0, 0, 0, -1);             /* one key */
    check_attention(1, 1, 1, 0, 0, -1);             /* one key: the bound is the row */
    check_attention(2, 62, 0, 0, 1, -1);            /* 63 and 64 keys */
    check_attention(1, 127, 0, 1, 2, 0);
    check_attention(1, 300, 0, 63, 5, 0);           /* 128 + 63 */
    check_attention(3, 1000, 950, 64, 9, 1);
    check_attention(1, 1100, 0, 511, 21, 3);
    check_attention(1, 2000, 0, 512, 39, 3);
    check_attention(2, 60, 0, 512, 4, 0);           /* where blocks of 16 keys end in the middle of a tile */
    check_attention(4, 1200, 1190, 5, 7, 1);        /* blocks grow with the rows: from 3, 5 and 9 on */
    check_attention(5, 1500, 0, 512, 11, 2);
    check_attention(8, 1700, 0, 300, 17, 3);
    check_attention(9, 1700, 0, 300, 17, 3);
    check_attention(32, 1500, 0, 512, 14, 2);
    check_attention(40, 1500, 1490, 200, 30, 3);
}
END_TEST

static TCase *add_case(Suite *s, const char *name) {
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 600);
    suite_add_tcase(s, t);
    return t;
}

/* CK_RUN_CASE=name runs one of these alone. */
Suite *gpu_operators_suite(void) {
    Suite *s = suite_create("gpu operators");
    TCase *t = add_case(s, "linear");
    tcase_add_test(t, packing);
    tcase_add_test(t, codes);
    tcase_add_loop_test(t, linear, 0, LINEAR_SHAPES);
    t = add_case(s, "joint linear");
    tcase_add_loop_test(t, linear_two_and_groups, 0, JOINT_SHAPES);
    tcase_add_loop_test(t, linear_beside_and_aside, 0, BESIDE_SHAPES);
    t = add_case(s, "experts");
    tcase_add_loop_test(t, experts, 0, ROW_COUNTS);
    tcase_add_test(t, gated);
    tcase_add_test(t, routes);
    t = add_case(s, "rows");
    tcase_add_test(t, norms);
    tcase_add_test(t, streams);
    tcase_add_test(t, activations);
    t = add_case(s, "attention");
    tcase_add_test(t, index_scores);
    tcase_add_test(t, picks);
    tcase_add_test(t, long_picks);
    tcase_add_test(t, long_pools);
    tcase_add_test(t, attention);
    return s;
}
