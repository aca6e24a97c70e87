/* Operators of the CPU engine in one arithmetic: the including file defines CEDAR_ARITH_WIDE, _F32 or _BF16. Expected
 * values are the worked examples of the model's description, or plain loops in double. */
#include <check.h>
#include <complex.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/cpu/ops/forward.h"

#if defined CEDAR_ARITH_WIDE
#define SUITE "ops (double)"
static const double tolerance = 1e-12, printed = 6e-8;      /* printed: half a digit of the examples */
#elif defined CEDAR_ARITH_F32
#define SUITE "ops (float)"
static const double tolerance = 3e-6, printed = 1e-6;
#else
#define SUITE "ops (bf16)"
static const double tolerance = 0x1p-8, printed = 1e-6;
#endif

static void near(double got, double want, double tol) {
    ck_assert_msg(fabs(got - want) <= tol * fmax(1, fabs(want)), "%.10g, expected %.10g", got, want);
}

/* Deterministic reals in [-1, 1). */
static real noise_at(uint64_t seed, uint64_t i) {
    return (real)((double)(cedar_mix64(seed * 1000003 + i) >> 11) * 0x1p-52 - 1);
}

static void noise(real *x, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) x[i] = noise_at(seed, (uint64_t)i);
}

static bool bits_equal(const real *a, const real *b, int64_t n) { return memcmp(a, b, (size_t)n * sizeof *a) == 0; }

/* --- mHC ---------------------------------------------------------------------------------------------------------- */

START_TEST(hc_coefficients_of_the_description) {
    static const double want_pre[4] = { .2689424, .6224603, .4378245, .5926676 };
    static const double want_post[4] = { 1.2153263, .9687602, 1.0624187, .8146668 };
    static const double want_comb[16] = { .1267709, .5521209, .1943349, .1267721, .2816277, .0050130,
                                          .4317313, .2816270, .0996749, .4341089, .3665392, .0996760,
                                          .4919255, .0087562, .0073936, .4919238 };
    real m[24], base[24], scale[3] = { (real).5, (real).25, 2 }, pre[4], post[4], comb[16];
    for (int i = 0; i < 24; i++) {
        m[i] = (real)(((7 * i % 11) - 5) / 4.0);
        base[i] = (real)(((5 * i % 7) - 3) / 8.0);
    }
    OP(hc_from_logits)(m, base, scale, 4, 20, (real)1e-6, pre, post, comb);
    for (int i = 0; i < 4; i++) {
        near((double)pre[i], want_pre[i], printed);
        near((double)post[i], want_post[i], printed);
    }
    for (int i = 0; i < 16; i++) near((double)comb[i], want_comb[i], printed);
    for (int k = 0; k < 4; k++)
        near((double)(comb[k] + comb[4 + k] + comb[8 + k] + comb[12 + k]), 1, 2e-6); /* columns */
}
END_TEST

START_TEST(hc_collapse_and_expand_are_the_formulas) {
    enum { N = 3, D = 20 };
    real h[N * D], old[N * D], y[D], x[D], pre[N], post[N], comb[N * N];
    noise(h, N * D, 1);
    noise(y, D, 2);
    noise(pre, N, 3);
    noise(post, N, 4);
    noise(comb, N * N, 5);
    memcpy(old, h, sizeof h);
    OP(hc_collapse)(h, pre, N, D, x);
    OP(hc_expand)(h, y, post, comb, N, D);
    for (int k = 0; k < D; k++) {
        double sum = 0;
        for (int s = 0; s < N; s++) sum += (double)pre[s] * (double)old[s * D + k];
        near((double)x[k], sum, tolerance);
        for (int to = 0; to < N; to++) {
            double v = (double)post[to] * (double)y[k];
            for (int from = 0; from < N; from++) v += (double)comb[from * N + to] * (double)old[from * D + k];
            near((double)h[to * D + k], v, tolerance);
        }
    }
}
END_TEST

/* --- norm and rotation -------------------------------------------------------------------------------------------- */

START_TEST(rms_norm_is_the_formula_and_survives_zero) {
    enum { N = 45 };
    real x[N], g[N], y[N];
    noise(x, N, 11);
    noise(g, N, 12);
    double sum = 0;
    for (int k = 0; k < N; k++) sum += (double)x[k] * (double)x[k];
    OP(rms_norm)(g, x, N, (real)1e-20, y);
    for (int k = 0; k < N; k++) near((double)y[k], (double)g[k] * (double)x[k] / sqrt(sum / N + 1e-20), tolerance);
    memset(x, 0, sizeof x);
    OP(rms_norm)(g, x, N, (real)1e-20, y);
    for (int k = 0; k < N; k++) ck_assert(y[k] == 0);
    OP(rms_norm)(g, g, N, (real)1e-20, g);      /* in place */
}
END_TEST

/* A small model with the rotation of the published one. */
static cedar_model *rope_model(void) {
    cedar_config c;
    cedar_err err = { 0 };
    cedar_model *m = NULL;
    ck_assert_msg(!cedar_config_load("scenarios/models/tiny.json", &c, &err), "%s", err.msg);
    c.rope_dim = c.index_dim = 64;
    c.rope_theta = 1e4;
    c.compress_theta = 1.6e5;
    c.yarn_factor = 16;
    c.yarn_original = 65536;
    c.yarn_beta_fast = 32;
    c.yarn_beta_slow = 1;
    ck_assert_msg(!cedar_model_synth(&c, 1, 1u << 30, &m, &err), "%s", err.msg);
    return m;
}

/* A forward pass without sequences. */
typedef struct bench {
    cedar_model *model;
    cedar_engine_opts opts;
    cedar_layout layout;
    cedar_store_cpu store;
    cedar_forward_env env;
    OP(forward) *f;
} bench;

static void bench_open(bench *b, cedar_model *m, uint64_t cache) {
    cedar_err err = { 0 };
    void *self = NULL;
    *b = (bench){ .model = m, .opts = cedar_engine_defaults(&m->config) };
    b->opts.arith = sizeof(real) == 8 ? CEDAR_WIDE : CEDAR_F32;
    b->opts.weight_cache_bytes = cache;
    b->opts.step_rows = 4;
    b->opts.threads = 1;
    cedar_layout_make(&m->config, b->opts.page_tokens, 0, &b->layout);
    b->store = (cedar_store_cpu){ .c = &m->config, .l = &b->layout, .real_bytes = sizeof(real) };
    b->env = (cedar_forward_env){ .model = m, .opts = &b->opts, .store = &b->store };
    ck_assert(!cedar_pool_open(1, &b->env.pool, &err));
    ck_assert_msg(!OP(forward_open)(&b->env, &self, &err), "%s", err.msg);
    b->f = self;
}

static void bench_close(bench *b) {
    OP(forward_close)(b->f);
    cedar_pool_close(b->env.pool);
    cedar_model_close(b->model);
}

START_TEST(rope_frequencies_of_the_description) {
    static const struct {
        int i;
        double yarn;
    } y[] = { { 0, 1 },
              { 1, .68765602 },
              { 14, .0052868563 },
              { 15, .0036355386 },
              { 16, .002265625 },
              { 20, 2.9697778e-4 },
              { 24, 1.953125e-5 },
              { 25, 5.3723127e-6 },
              { 31, 5.6805290e-7 } };
    bench b;
    bench_open(&b, rope_model(), 0);
    for (size_t i = 0; i < sizeof y / sizeof *y; i++)
        ck_assert_msg(fabs(b.f->freq[1][y[i].i] / y[i].yarn - 1) < 2e-8, "f'_%d = %.9g", y[i].i, b.f->freq[1][y[i].i]);
    ck_assert(fabs(b.f->freq[0][1] / .74989421 - 1) < 2e-8);
    ck_assert(fabs(b.f->freq[0][15] / .013335214 - 1) < 5e-8);
    ck_assert(fabs(b.f->freq[0][31] / 1.3335214e-4 - 1) < 5e-8);
    ck_assert(b.f->freq[0][0] == 1);
    bench_close(&b);
}
END_TEST

/* Adjacent channels, the last ones, e^{jpf}; a million positions away, too; and back. */
START_TEST(rope_rotates_adjacent_pairs) {
    enum { N = 12, PAIRS = 4 };
    static const double freq[PAIRS] = { 1, .3, .01, 1e-4 };
    static const int64_t at[] = { 0, 1, 17, 1000003 };
    for (int t = 0; t < 4; t++) {
        real x[N], y[N], table[2 * PAIRS];
        noise(x, N, 21);
#if defined CEDAR_ARITH_BF16
        for (int k = 0; k < N; k++) x[k] = rb(x[k]);
#endif
        memcpy(y, x, sizeof x);
        OP(rope_table)(freq, PAIRS, at[t], table);
        OP(rope)(y, N, table, PAIRS, 1);
        for (int k = 0; k < N - 2 * PAIRS; k++) ck_assert(y[k] == x[k]);
        for (int i = 0; i < PAIRS; i++) {
            int k = N - 2 * PAIRS + 2 * i;
            double complex want = ((double)x[k] + I * (double)x[k + 1]) * cexp(I * ((double)at[t] * freq[i]));
            near((double)y[k], creal(want), tolerance);
            near((double)y[k + 1], cimag(want), tolerance);
        }
        OP(rope)(y, N, table, PAIRS, -1);
        for (int k = 0; k < N; k++) near((double)y[k], (double)x[k], 3 * tolerance);
        if (at[t] == 0) ck_assert(bits_equal(x, y, N));
    }
}
END_TEST

/* --- router and Engram -------------------------------------------------------------------------------------------- */

START_TEST(sqrt_softplus_of_the_description) {
    static const struct {
        double z, want, tol;
    } v[] = { { -20, 4.54e-5, 5e-9 }, { -1, .5596979, 6e-8 },   { 0, .8325546, 6e-8 },
              { 1, 1.1459763, 6e-8 }, { 2.5, 1.6058922, 6e-8 }, { 25, 5, 0 } };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++)
        near((double)OP(sqrt_softplus)((real)v[i].z), v[i].want, v[i].tol + (sizeof(real) == 4) * 2e-7 * v[i].want);
    ck_assert(OP(sqrt_softplus)(-60) > 0);      /* log(1 + e^z) would be 0 */
    ck_assert(OP(sqrt_softplus)(1000) < 32 && OP(sqrt_softplus)(1000) > 31);    /* e^z would overflow */
}
END_TEST

START_TEST(engram_gates_of_the_description) {
    near((double)OP(engram_gate)(0), .50025, 5e-7);
    near((double)OP(engram_gate)((real).25), .6224593, printed);
    near((double)OP(engram_gate)((real)-.25), .3775407, printed);
    near((double)OP(engram_gate)(4), .8807971, printed);
    ck_assert(OP(engram_gate)((real)-0.0) < (real).5);      /* the sign of zero counts */
}
END_TEST

START_TEST(engram_hash_of_the_description) {
    cedar_config c;
    cedar_err err = { 0 };
    ck_assert_msg(!cedar_config_load("scenarios/models/flash.json", &c, &err), "%s", err.msg);
    const int64_t first[4] = { 5, 2, 2, 2 }, fourth[4] = { 99091, 1234, 77, 5 };
    int64_t rows[CEDAR_ENGRAM_ROWS_MAX];
    static const int64_t a[] = { 5412672, 18319159, 35492627, 143494632, 151789366, 372009279 };
    static const int64_t b[] = { 7841506, 26173565, 36537651, 130980189, 144092973, 373203253 };
    static const int64_t d[] = { 3315102, 30010869, 33829090, 133678184, 147885803, 378540063 };
    static const int at[] = { 0, 1, 2, 8, 9, 23 };
    OP(engram_hash)(&c, 0, first, rows);
    for (int i = 0; i < 6; i++) ck_assert_int_eq(rows[at[i]], a[i]);
    OP(engram_hash)(&c, 0, fourth, rows);
    for (int i = 0; i < 6; i++) ck_assert_int_eq(rows[at[i]], b[i]);
    OP(engram_hash)(&c, 1, fourth, rows);
    for (int i = 0; i < 6; i++) ck_assert_int_eq(rows[at[i]], d[i]);
}
END_TEST

/* --- selection ---------------------------------------------------------------------------------------------------- */

/* Picks by the rule, one at a time. */
static int plain_top_k(const real *score, const int32_t *names, int count, int k, int32_t *ids) {
    bool *taken = calloc((size_t)count + 1, sizeof *taken);
    int n = 0;
    for (; n < k; n++) {
        int best = -1;
        for (int i = 0; i < count; i++) {
            if (taken[i] || score[i] != score[i] || score[i] == -INFINITY) continue;
            if (best < 0 || score[i] > score[best]) best = i;
        }
        if (best < 0) break;
        taken[best] = true;
    }
    int at = 0;
    for (int i = 0; i < count; i++)
        if (taken[i]) ids[at++] = names ? names[i] : i;
    for (int i = at; i < k; i++) ids[i] = -1;
    free(taken);
    return at;
}

START_TEST(top_k_follows_the_tie_rule) {
    int32_t ids[16];
    real heap[16];
    const real zeros[6] = { (real)-0.0, 0, (real)-0.0, 0, 1, (real)-0.0 };
    ck_assert_int_eq(OP(top_k)(zeros, NULL, 6, 3, ids, heap), 3);
    ck_assert_int_eq(ids[0], 0);        /* -0 is 0: the lower id wins */
    ck_assert_int_eq(ids[1], 1);
    ck_assert_int_eq(ids[2], 4);
    const real odd[7] = { NAN, -INFINITY, 2, -5, INFINITY, NAN, 2 };
    ck_assert_int_eq(OP(top_k)(odd, NULL, 7, 6, ids, heap), 4);
    static const int32_t want[6] = { 2, 3, 4, 6, -1, -1 };
    ck_assert_mem_eq(ids, want, sizeof want);
    ck_assert_int_eq(OP(top_k)(odd, NULL, 0, 3, ids, heap), 0);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(ids[i], -1);
    real equal[16];
    for (int i = 0; i < 16; i++) equal[i] = (real).25;
    OP(top_k)(equal, NULL, 16, 5, ids, heap);
    for (int i = 0; i < 5; i++) ck_assert_int_eq(ids[i], i);
    static const int32_t names[4] = { 3, 8, 9, 40 };
    const real by_name[4] = { 1, 5, 5, 5 };
    ck_assert_int_eq(OP(top_k)(by_name, names, 4, 2, ids, heap), 2);
    ck_assert_int_eq(ids[0], 8);
    ck_assert_int_eq(ids[1], 9);
}
END_TEST

START_TEST(top_k_equals_picking_one_at_a_time) {
    enum { N = 90 };
    real score[N], heap[N];
    int32_t names[N], got[N], want[N];
    for (uint64_t seed = 0; seed < 400; seed++) {
        int n = (int)(cedar_mix64(seed) % N) + 1, k = (int)(cedar_mix64(seed + 1000) % N) + 1,
            levels = 1 + (int)(seed % 9) * 3;
        for (int i = 0; i < n; i++) {
            uint64_t r = cedar_mix64(seed * 1000 + (uint64_t)i);
            score[i] = (real)((int)(r % (uint64_t)levels) - levels / 2);
            if (r >> 40 & 1) score[i] = -score[i];      /* -0 among them */
            if ((r >> 32) % 13 == 0) score[i] = -INFINITY;
            if ((r >> 32) % 29 == 1) score[i] = NAN;
            names[i] = 2 * i + (int)(r >> 50 & 1);
        }
        const int32_t *use = seed % 2 ? names : NULL;
        ck_assert_int_eq(OP(top_k)(score, use, n, k, got, heap), plain_top_k(score, use, n, k, want));
        ck_assert_mem_eq(got, want, (size_t)k * sizeof *got);
    }
}
END_TEST

START_TEST(candidate_blocks_keep_the_newest) {
    int32_t ids[8];
    real block_score[16], heap[16];
    /* blocks of 4: maxima 5, 9, 9, 7, and one entry of block 4, the worst of all */
    const real s[17] = { 5, 0, 0, 0, 1, 9, 0, 0, 9, 0, 0, 0, 0, 0, 7, 0, -8 };
    ck_assert_int_eq(OP(candidate_blocks)(s, 17, 4, 3, ids, block_score, heap), 3);
    ck_assert_int_eq(ids[0], 1);
    ck_assert_int_eq(ids[1], 2);
    ck_assert_int_eq(ids[2], 4);
    ck_assert_int_eq(OP(candidate_blocks)(s, 17, 4, 2, ids, block_score, heap), 2);     /* tie of 1 and 2: the lower */
    ck_assert_int_eq(ids[0], 1);
    ck_assert_int_eq(ids[1], 4);
    ck_assert_int_eq(OP(candidate_blocks)(s, 16, 4, 1, ids, block_score, heap), 1);     /* newest visible entry 15 */
    ck_assert_int_eq(ids[0], 3);
    ck_assert_int_eq(OP(candidate_blocks)(s, 3, 4, 5, ids, block_score, heap), 1);      /* fewer blocks than wanted */
    ck_assert_int_eq(ids[0], 0);
    ck_assert_int_eq(ids[1], -1);
    ck_assert_int_eq(OP(candidate_blocks)(s, 0, 4, 2, ids, block_score, heap), 0);
    /* a block of -inf is dropped, the newest is kept whatever its score; NaN counts as -inf */
    const real t[6] = { -INFINITY, -INFINITY, 1, 2, NAN, NAN };
    ck_assert_int_eq(OP(candidate_blocks)(t, 6, 2, 3, ids, block_score, heap), 2);
    ck_assert_int_eq(ids[0], 1);
    ck_assert_int_eq(ids[1], 2);
}
END_TEST

/* --- attention ---------------------------------------------------------------------------------------------------- */

START_TEST(attention_is_the_formula) {
    enum { H = 3, D = 24, N = 37 };
    real q[H * D], o[H * D], keys[N * D], sink[H] = { (real).7, -2, 30 }, logits[N];
    noise(q, H * D, 31);
    noise(keys, N * D, 32);
    for (int count = 0; count <= N; count += count < 6 ? 1 : 7) {
        memcpy(o, q, sizeof q);
        OP(sink_attention)(o, H, D, keys, count, sink, logits);
        for (int h = 0; h < H; h++) {
            double l[N], top = -1e30, total = 0;
            for (int n = 0; n < count; n++) {
                l[n] = 0;
                for (int k = 0; k < D; k++) l[n] += (double)q[h * D + k] * (double)keys[n * D + k];
                l[n] /= sqrt(D);
                top = fmax(top, l[n]);
            }
            for (int n = 0; n < count; n++) total += exp(l[n] - top);
            total += exp((double)sink[h] - top);
            for (int k = 0; k < D; k++) {
                double v = 0;
                for (int n = 0; n < count; n++) v += exp(l[n] - top) * (double)keys[n * D + k];
                near((double)o[h * D + k], v / total, 3 * tolerance);
                if (!count) ck_assert(o[h * D + k] == 0);       /* nothing to attend to */
            }
        }
    }
}
END_TEST

/* --- linear ------------------------------------------------------------------------------------------------------- */

START_TEST(four_dots_are_four_times_one) {
    enum { N = 200 };
    real a[4][N], b[4][N];
    for (int i = 0; i < 4; i++) {
        noise(a[i], N, 41 + (uint64_t)i);
        noise(b[i], N, 51 + (uint64_t)i);
    }
    for (int n = 0; n <= N; n++) {
        const real *const pa[4] = { a[0], a[1], a[2], a[3] }, *const pb[4] = { b[0], b[1], b[2], b[3] };
        real four[4];
        OP(dot4)(pa, pb, n, four);
        for (int i = 0; i < 4; i++) {
            real one = OP(dot)(a[i], b[i], n);
            ck_assert(bits_equal(&one, &four[i], 1));
            double want = 0;
            for (int k = 0; k < n; k++) want += (double)a[i][k] * (double)b[i][k];
            near((double)one, want, sizeof(real) == 8 ? 1e-13 : 1e-6);
        }
    }
}
END_TEST

/* Every kind of matrix: decoded ahead or at each use, rows alone or together, whole or a slice: the same bits, and the
 * sum that the stored values give. */
START_TEST(linear_does_not_depend_on_caching_or_batch) {
    enum { T = 7 };
    cedar_config c;
    cedar_err err = { 0 };
    cedar_model *m = NULL;
    ck_assert_msg(!cedar_config_load("scenarios/models/tiny2.json", &c, &err), "%s", err.msg);
    ck_assert_msg(!cedar_model_synth(&c, 5, 1u << 30, &m, &err), "%s", err.msg);
    bench b;
    bench_open(&b, m, UINT64_MAX);
    const real **none = calloc(100000, sizeof *none);
    OP(weights) cached = b.f->weights, per_use = { none };
    const cedar_block *blk = &m->blocks[1];
    const cedar_weight *const list[] = { &blk->wq_a,          &blk->wo_b,          &blk->comp_wkv, &blk->hc_attn_fn,
                                         &blk->experts[0].w1, &blk->experts[0].w2, &blk->gate,     &m->head };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const cedar_weight *w = list[i];
        int64_t k_count = w->cols, n_count = w->rows;
        real *x = calloc((size_t)(T * k_count), sizeof *x), *row = calloc((size_t)k_count, sizeof *row);
        real *y[3];
        for (int v = 0; v < 3; v++) y[v] = calloc((size_t)(T * n_count), sizeof(real));
        noise(x, T * k_count, 60 + i);
        ck_assert_ptr_nonnull(cached.decoded[w->index]);
        OP(linear_raw)(&cached, w, x, k_count, T, y[0], n_count, &b.f->workers[0].linear);
        OP(linear_raw)(&per_use, w, x, k_count, T, y[1], n_count, &b.f->workers[0].linear);
        for (int t = 0; t < T; t++)
            OP(linear_raw)
            (t % 2 ? &cached : &per_use, w, x + t * k_count, k_count, 1, y[2] + t * n_count, n_count,
             &b.f->workers[0].linear);
        ck_assert_msg(bits_equal(y[0], y[1], T * n_count), "matrix %zu: decoding ahead changes bits", i);
        ck_assert_msg(bits_equal(y[0], y[2], T * n_count), "matrix %zu: the batch changes bits", i);
        for (int64_t first = 0; first < n_count; first += 48) { /* slices, as the output projection and the head use */
            int64_t n = n_count - first < 48 ? n_count - first : 48;
            OP(linear_rows)(&per_use, w, first, n, x, k_count, T, y[1] + first, n_count, &b.f->workers[0].linear);
        }
        ck_assert_msg(bits_equal(y[0], y[1], T * n_count), "matrix %zu: slices change bits", i);
        for (int64_t n = 0; n < n_count; n++) {
            OP(decode_row)(w, n, row);
            for (int t = 0; t < T; t++) {
                double want = 0;
                for (int64_t k = 0; k < k_count; k++) want += (double)x[t * k_count + k] * (double)row[k];
                near((double)y[0][t * n_count + n], want, sizeof(real) == 8 ? 1e-12 : 1e-6);
            }
        }
        for (int v = 0; v < 3; v++) free(y[v]);
        free(x);
        free(row);
    }
    free(none);
    bench_close(&b);
}
END_TEST

/* Decoding a stored matrix: codes times scales of 32x32 tiles, of rows, of nibbles. */
START_TEST(decoded_rows_are_codes_times_scales) {
    enum { K = 64 };
    uint8_t codes[40 * K], scales[2 * 2] = { 127, 128, 120, 130 };
    real out[K];
    for (int i = 0; i < 40 * K; i++) codes[i] = (uint8_t)(i * 7 % 127);
    cedar_weight w = { .kind = CEDAR_W_TILES, .rows = 40, .cols = K, .data = codes, .scale = scales };
    static const int rows[] = { 0, 31, 32, 39 };
    for (int i = 0; i < 4; i++) {
        OP(decode_row)(&w, rows[i], out);
        for (int k = 0; k < K; k++) {
            double s = ldexp(1, scales[rows[i] / 32 * 2 + k / 32] - 127);
            ck_assert((double)out[k] == (double)cedar_e4m3_value[codes[rows[i] * K + k]] * s);
        }
    }
    w = (cedar_weight){ .kind = CEDAR_W_FP4, .rows = 2, .cols = K, .data = codes, .scale = scales };
    OP(decode_row)(&w, 1, out);
    for (int k = 0; k < K; k++) {
        int nibble = codes[32 + k / 2] >> (k % 2 * 4) & 15;
        ck_assert((double)out[k] == (double)cedar_e2m1_value[nibble] * ldexp(1, scales[2 + k / 32] - 127));
    }
    w = (cedar_weight){ .kind = CEDAR_W_ROWS, .rows = 2, .cols = K, .data = codes, .scale = scales };
    OP(decode_row)(&w, 1, out);
    for (int k = 0; k < K; k++)
        ck_assert((double)out[k] == (double)cedar_e4m3_value[codes[K + k]] * ldexp(1, scales[2 + k / 32] - 127));
}
END_TEST

/* --- records ------------------------------------------------------------------------------------------------------ */

START_TEST(records_decode_to_what_was_encoded) {
    enum { D = 64 };
    real x[D], y[D], z[D];
    uint8_t record[D + D / 32], again[D + D / 32], nibbles[D / 2], scales[D / 16];
    noise(x, D, 71);
    OP(ring_encode)(x, D, record, NULL);
    OP(ring_decode)(record, D, y);
    OP(quantise)(x, D, z, NULL);
    ck_assert(bits_equal(y, z, D));
    OP(ring_encode)(y, D, again, NULL);
    OP(ring_decode)(again, D, z);
    ck_assert(bits_equal(y, z, D));
    for (int k = 0; k < D; k++) near((double)y[k], (double)x[k], 0x1p-4);
    OP(fp4q32_encode)(x, D, nibbles, scales, NULL);
    OP(fp4q32_decode)(nibbles, scales, D, y);
    for (int k = 0; k < D; k++)
        ck_assert((double)y[k] ==
                  (double)cedar_e2m1_value[nibbles[k / 2] >> (k % 2 * 4) & 15] * ldexp(1, scales[k / 32] - 127));
    OP(fp4q16_encode)(x, D, nibbles, scales, NULL);
    OP(fp4q16_decode)(nibbles, scales, D, y);
    for (int k = 0; k < D; k++)
        ck_assert((double)y[k] == (double)cedar_e2m1_value[nibbles[k / 2] >> (k % 2 * 4) & 15] *
                                      (double)cedar_e4m3_value[scales[k / 16]]);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create(SUITE);
    TCase *t = tcase_create("operators");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, hc_coefficients_of_the_description);
    tcase_add_test(t, hc_collapse_and_expand_are_the_formulas);
    tcase_add_test(t, rms_norm_is_the_formula_and_survives_zero);
    tcase_add_test(t, rope_frequencies_of_the_description);
    tcase_add_test(t, rope_rotates_adjacent_pairs);
    tcase_add_test(t, sqrt_softplus_of_the_description);
    tcase_add_test(t, engram_gates_of_the_description);
    tcase_add_test(t, engram_hash_of_the_description);
    tcase_add_test(t, top_k_follows_the_tie_rule);
    tcase_add_test(t, top_k_equals_picking_one_at_a_time);
    tcase_add_test(t, candidate_blocks_keep_the_newest);
    tcase_add_test(t, attention_is_the_formula);
    tcase_add_test(t, four_dots_are_four_times_one);
    tcase_add_test(t, linear_does_not_depend_on_caching_or_batch);
    tcase_add_test(t, decoded_rows_are_codes_times_scales);
    tcase_add_test(t, records_decode_to_what_was_encoded);
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
