/* Exchanges between ranks against the same on the host: 2, 3, 4 and 8 ranks that share the first GPU, and 2 on GPUs of
 * their own where there are two. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/quant.h"
#include "tests/engine_rig.h"
#include "tests/gpu/device_ops.h"
#include "tests/gpu/device_ranks.h"
#include "tests/gpu/suites.h"

static const struct crowd { int ranks; bool distinct; } crowds[] = { { 2, false }, { 3, false }, { 4, false },
                                                                     { 8, false }, { 2, true } };
enum { CROWDS = sizeof crowds / sizeof *crowds };

static uint64_t draws;
static uint32_t draw(uint32_t n) { return (uint32_t)cedar_rng_below(91, draws++, n); }

static uint16_t bf16_bits(float x) {
    uint32_t u;
    x = cedar_bf16_round(x);
    memcpy(&u, &x, sizeof u);
    return (uint16_t)(u >> 16);
}

static int64_t opened_ns;

/* NULL where there are too few GPUs. */
static gpu_ranks *open_crowd(int i, uint32_t rows, size_t row_bytes, size_t values) {
    opened_ns = cedar_now_ns();
    if (crowds[i].distinct && gpu_devices() < crowds[i].ranks) return NULL;
    return gpu_ranks_open(crowds[i].ranks, crowds[i].distinct, rows, row_bytes, values);
}

/* Says how long it took at once: some of these tests take a minute where the ranks share a GPU with other programs. */
static void close_crowd(gpu_ranks *g, int i, const char *test) {
    gpu_ranks_close(g);
    printf("ranks, %s, %d on %s: %.1f s\n", test, crowds[i].ranks, crowds[i].distinct ? "GPUs of their own" : "one GPU",
           (double)(cedar_now_ns() - opened_ns) / 1e9);
    fflush(stdout);
}

/* --- one exchange at a time --------------------------------------------------------------------------------------- */

/* Random values of a real type, over many exponents. */
static void random_values(void *to, size_t count, int real_bytes) {
    static double power[24];
    for (int i = 0; i < 24; i++) power[i] = ldexp(1, i - 30);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = cedar_rng_at(91, draws++);
        double v = ((double)(bits >> 44) - (1 << 19)) * power[bits % 24];
        if (real_bytes == 2) ((uint16_t *)to)[i] = bf16_bits((float)v);
        else if (real_bytes == 4) ((float *)to)[i] = (float)v;
        else ((double *)to)[i] = v;
    }
}

/* In rank order, in float, rounded once; or in the type itself. */
static void add_ranks(void *const *part, int ranks, size_t count, int real_bytes, void *out) {
    for (size_t i = 0; i < count; i++) {
        float f = 0;
        double d = 0;
        for (int r = 0; r < ranks; r++) {
            float x = real_bytes == 2   ? cedar_bf16_value(((const uint16_t *)part[r])[i])
                      : real_bytes == 4 ? ((const float *)part[r])[i]
                                        : 0;
            f = r ? f + x : x;
            if (real_bytes == 8) d = r ? d + ((const double *)part[r])[i] : ((const double *)part[r])[i];
        }
        if (real_bytes == 2) ((uint16_t *)out)[i] = bf16_bits(f);
        else if (real_bytes == 4) ((float *)out)[i] = f;
        else ((double *)out)[i] = d;
    }
}

/* One assertion for all: each of them writes to a file. */
static void check_same(const void *got, const void *want, size_t count, int real_bytes, const char *what, int rank) {
    size_t size = (size_t)real_bytes, i = 0;
    while (i < count && !memcmp((const char *)got + i * size, (const char *)want + i * size, size)) i++;
    ck_assert_msg(i == count, "%s, rank %d: number %zu of %zu has other bits than on the host", what, rank, i, count);
}

static void check_sum(gpu_ranks *g, int ranks, uint32_t rows, int width, int real_bytes, bool two_steps) {
    size_t count = (size_t)rows * (size_t)width, bytes = count * (size_t)real_bytes;
    void *part[GPU_RANKS_MAX], *want = malloc(bytes), *got = malloc(bytes);
    char what[100];
    snprintf(what, sizeof what, "%d ranks, %u rows of %d, %d bytes a number, %s", ranks, rows, width, real_bytes,
             two_steps ? "two steps" : "one step");
    for (int r = 0; r < ranks; r++) {
        part[r] = malloc(bytes);
        random_values(part[r], count, real_bytes);
        gpu_ranks_put(g, r, part[r], bytes);
    }
    add_ranks(part, ranks, count, real_bytes, want);
    gpu_ranks_delay(g, (int)draw((uint32_t)ranks), 20000);
    gpu_ranks_sum(g, rows, width, real_bytes, two_steps, ranks);
    for (int r = 0; r < ranks; r++) {
        gpu_ranks_get(g, r, got, bytes);
        ck_assert_int_eq(gpu_ranks_fault(g, r), -1);
        check_same(got, want, count, real_bytes, what, r);
    }
    for (int r = 0; r < ranks; r++) free(part[r]);
    free(want);
    free(got);
}

START_TEST(sums) {
    static const uint32_t rows[] = { 1, 2, 3, 5, 16, 33, 128, 700 };
    enum { WIDTH = 160, MOST = 700 };
    gpu_ranks *g = open_crowd(_i, MOST, WIDTH * 8, (size_t)MOST * WIDTH);
    if (!g) return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int bytes = 2; bytes <= 8; bytes *= 2)
            for (int two = 0; two < 2; two++) check_sum(g, crowds[_i].ranks, rows[i], WIDTH, bytes, two);
    close_crowd(g, _i, "sums");
}
END_TEST

/* Real widths, up to a whole prompt chunk between two ranks; more of them take turns on one GPU for too long. */
START_TEST(wide_sums) {
    static const uint32_t rows[] = { 1, 7, 32, 129, 600, 2048 };
    gpu_ranks *g = open_crowd(_i, 2048, 5120 * 2, 2048 * 5120 / 4);
    if (!g) return;
    size_t sizes = sizeof rows / sizeof *rows - (crowds[_i].ranks > 4 ? 2 : crowds[_i].ranks > 2);
    for (size_t i = 0; i < sizes; i++)
        for (int two = 0; two < 2; two++) check_sum(g, crowds[_i].ranks, rows[i], 5120, 2, two);
    close_crowd(g, _i, "wide sums");
}
END_TEST

/* All ones is the word for "not there": as a NaN it must come through as a NaN, and hold nobody up. */
START_TEST(not_a_number) {
    enum { WIDTH = 32 };
    int ranks = crowds[_i].ranks;
    gpu_ranks *g = open_crowd(_i, 1, WIDTH * 8, WIDTH);
    if (!g) return;
    uint8_t ones[WIDTH * 8], zeros[WIDTH * 8] = { 0 }, got[WIDTH * 8];
    memset(ones, 0xFF, sizeof ones);
    for (int bytes = 2; bytes <= 8; bytes *= 2)
        for (int two = 0; two < 2; two++) {
            for (int r = 0; r < ranks; r++) gpu_ranks_put(g, r, r == 1 ? ones : zeros, sizeof ones);
            gpu_ranks_sum(g, 1, WIDTH, bytes, two, ranks);
            for (int r = 0; r < ranks; r++) {
                gpu_ranks_get(g, r, got, (size_t)(WIDTH * bytes));
                ck_assert_int_eq(gpu_ranks_fault(g, r), -1);
                for (int i = 0; i < WIDTH; i++)
                    ck_assert(bytes == 2   ? isnan(cedar_bf16_value(((uint16_t *)got)[i]))
                              : bytes == 4 ? isnan(((float *)got)[i])
                                           : isnan(((double *)got)[i]));
            }
        }
    close_crowd(g, _i, "not a number");
}
END_TEST

/* Uneven and empty shares. */
START_TEST(columns) {
    enum { ROWS = 64, WIDTH = 2000 };
    int ranks = crowds[_i].ranks, first[GPU_RANKS_MAX + 1];
    gpu_ranks *g = open_crowd(_i, 1, 16, (size_t)ROWS * WIDTH);
    if (!g) return;
    double *part = malloc((size_t)ROWS * WIDTH * 8), *got = malloc((size_t)ROWS * WIDTH * 8);
    for (int turn = 0; turn < 40; turn++) {
        int width = 1 + (int)draw(WIDTH), bytes = turn % 2 ? 8 : 4;
        uint32_t rows = 1 + draw(turn < 20 ? 2 : ROWS);
        first[0] = 0;
        for (int r = 1; r < ranks; r++) first[r] = first[r - 1] + (int)draw((uint32_t)(width - first[r - 1] + 1));
        first[ranks] = width;
        for (int r = 0; r < ranks; r++) {
            int mine = first[r + 1] - first[r];
            for (uint32_t i = 0; i < rows; i++)
                for (int k = 0; k < mine; k++) {
                    double v = (double)turn * 1e6 + i * 4096.0 + first[r] + k;
                    if (bytes == 8) part[(size_t)i * (size_t)mine + (size_t)k] = v;
                    else ((float *)part)[(size_t)i * (size_t)mine + (size_t)k] = (float)v;
                }
            gpu_ranks_put(g, r, part, (size_t)rows * (size_t)mine * (size_t)bytes);
        }
        gpu_ranks_gather(g, rows, first, bytes);
        for (int r = 0; r < ranks; r++) {
            gpu_ranks_get(g, r, got, (size_t)rows * (size_t)width * (size_t)bytes);
            ck_assert_int_eq(gpu_ranks_fault(g, r), -1);
            size_t at = 0, count = (size_t)rows * (size_t)width;
            for (; at < count; at++) {
                double v = (double)turn * 1e6 + (double)(at / (size_t)width) * 4096 + (double)(at % (size_t)width);
                if (bytes == 8 ? got[at] != v : ((float *)got)[at] != (float)v) break;
            }
            ck_assert_msg(at == count, "rank %d, %u rows of %d: number %zu has another value", r, rows, width, at);
        }
    }
    free(part);
    free(got);
    close_crowd(g, _i, "columns");
}
END_TEST

/* --- many in a row ------------------------------------------------------------------------------------------------ */

/* A chain in which every part comes from the result before it, so that one lost, stale or torn word anywhere shows at
 * the end; played on the host beside it. */
typedef struct chain_state {
    int ranks;
    uint32_t width, most;
    uint16_t *part[GPU_RANKS_MAX], *out;
} chain_state;

static void host_link(chain_state *c, uint32_t rows) {
    uint32_t count = rows * c->width;
    for (uint32_t i = 0; i < count; i++) {
        float sum = cedar_bf16_value(c->part[0][i]);
        for (int r = 1; r < c->ranks; r++) sum += cedar_bf16_value(c->part[r][i]);
        c->out[i] = bf16_bits(sum);
    }
    for (int r = 0; r < c->ranks; r++)
        for (uint32_t i = 0; i < count; i++) c->part[r][i] = bf16_bits((float)gpu_ranks_next(c->out[i], r, i));
}

static chain_state start_chain(gpu_ranks *g, int ranks, uint32_t width, uint32_t most) {
    chain_state c = { .ranks = ranks, .width = width, .most = most };
    size_t count = (size_t)width * most;
    c.out = calloc(count, 2);
    for (int r = 0; r < ranks; r++) {
        c.part[r] = calloc(count, 2);
        for (uint32_t i = 0; i < count; i++) c.part[r][i] = bf16_bits((float)gpu_ranks_next(17, r, i));
        gpu_ranks_put(g, r, c.part[r], count * 2);
    }
    return c;
}

static void end_chain(gpu_ranks *g, chain_state *c, const char *what) {
    size_t count = (size_t)c->width * c->most;
    uint16_t *got = malloc(count * 2);
    for (int r = 0; r < c->ranks; r++) {
        gpu_ranks_get(g, r, got, count * 2);
        ck_assert_int_eq(gpu_ranks_fault(g, r), -1);
        check_same(got, c->out, count, 2, what, r);
    }
    ck_assert_msg(gpu_ranks_wrong(g) == 0, "%s: notes were read before they were written", what);
    for (int r = 0; r < c->ranks; r++) free(c->part[r]);
    free(c->out);
    free(got);
}

/* Sums of changing sizes in both ways and meetings, with one rank or another late. */
START_TEST(races) {
    enum { CALLS = 4000, WIDTH = 256, MOST = 40 };
    static const uint32_t rows[] = { 1, 1, 1, 2, 3, 8, 17, MOST };
    int ranks = crowds[_i].ranks;
    gpu_ranks *g = open_crowd(_i, MOST, WIDTH * 2, MOST * WIDTH / 4);
    if (!g) return;
    chain_state c = start_chain(g, ranks, WIDTH, MOST);
    for (uint32_t i = 0; i < CALLS; i++) {
        uint32_t n = i + 1 == CALLS ? MOST : rows[draw(sizeof rows / sizeof *rows)];
        if (draw(4) == 0) gpu_ranks_delay(g, (int)draw((uint32_t)ranks), draw(15000));
        if (draw(8) == 0) gpu_ranks_meet(g, i * 5000);
        gpu_ranks_sum(g, n, WIDTH, 2, draw(2), ranks);
        gpu_ranks_remake(g, n * WIDTH);
        host_link(&c, n);
    }
    end_chain(g, &c, "4000 sums and 500 meetings");
    close_crowd(g, _i, "races");
}
END_TEST

/* The same launches again and again, each time on what the last time left. An odd number of exchanges, so that each
 * replay begins with the other half of the inbox. */
START_TEST(graphs) {
    enum { LINKS = 7, REPLAYS = 400, WIDTH = 160, MOST = 24 };
    static const uint32_t rows[LINKS] = { 1, 4, 24, 1, 2, 16, 24 };
    int ranks = crowds[_i].ranks;
    gpu_ranks *g = open_crowd(_i, MOST, WIDTH * 2, MOST * WIDTH / 4);
    if (!g) return;
    chain_state c = start_chain(g, ranks, WIDTH, MOST);
    gpu_ranks_capture(g);
    for (int i = 0; i < LINKS; i++) {
        gpu_ranks_sum(g, rows[i], WIDTH, 2, i % 3 == 2, ranks);
        gpu_ranks_remake(g, rows[i] * WIDTH);
        if (i == 3) gpu_ranks_meet(g, 77);
    }
    gpu_ranks_captured(g);
    for (int turn = 0; turn < REPLAYS; turn++) {
        if (draw(3) == 0) gpu_ranks_delay(g, (int)draw((uint32_t)ranks), draw(30000));
        gpu_ranks_replay(g);
        for (int i = 0; i < LINKS; i++) host_link(&c, rows[i]);
    }
    end_chain(g, &c, "400 replays of 7 sums");
    close_crowd(g, _i, "graphs");
}
END_TEST

/* --- a rank that does not come ------------------------------------------------------------------------------------ */

START_TEST(absence) {
    enum { WIDTH = 128 };
    int ranks = crowds[_i].ranks;
    gpu_ranks *g = open_crowd(_i, 1, WIDTH * 2, WIDTH);
    if (!g) return;
    gpu_ranks_limit(g, 0.2);
    gpu_ranks_sum(g, 1, WIDTH, 2, false, ranks - 1);            /* without the last rank */
    int64_t start = cedar_now_ns();
    gpu_ranks_wait(g);
    double waited = (double)(cedar_now_ns() - start) / 1e9;
    ck_assert_msg(waited < 2, "gave up after %.2f s instead of 0.2", waited);
    for (int r = 0; r + 1 < ranks; r++) ck_assert_int_eq(gpu_ranks_fault(g, r), ranks - 1);
    start = cedar_now_ns();
    for (int i = 0; i < 100; i++) gpu_ranks_sum(g, 1, WIDTH, 2, i % 2, ranks - 1);
    gpu_ranks_wait(g);
    waited = (double)(cedar_now_ns() - start) / 1e9;
    ck_assert_msg(waited < 2, "100 more sums took %.2f s: waits of a broken rank must end at once", waited);
    close_crowd(g, _i, "absence");
}
END_TEST

/* --- the end of a block in one launch ----------------------------------------------------------------------------- */

static uint16_t *random_bf16(size_t count, double size) {
    uint16_t *x = malloc(count * 2);
    for (size_t i = 0; i < count; i++) x[i] = bf16_bits((float)(((double)draw(1 << 20) / (1 << 19) - 1) * size));
    return x;
}

static float *random_floats(size_t count) {
    float *x = malloc(count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = (float)draw(1 << 20) / (1 << 20);
    return x;
}

static void check_site(gpu_ranks *g, int ranks, int hidden, uint32_t n, int per_token, bool woven) {
    size_t count = (size_t)n * (size_t)hidden, packed = 2 * (size_t)n * (size_t)gpu_padded(hidden);
    gpu_site s = { .hidden = hidden, .per_token = per_token, .n = n, .woven = woven };
    int32_t *ids = NULL;
    for (int r = 0; r < ranks; r++) s.x[r] = random_bf16(count * (size_t)(per_token + 1), 2);
    if (per_token) {
        ids = malloc((size_t)n * (size_t)per_token * sizeof *ids);
        for (uint32_t i = 0; i < n * (uint32_t)per_token; i++) ids[i] = draw(9) ? (int32_t)draw(30) : -1;
    }
    s.ids = ids;
    s.h = random_bf16(4 * count, 3);
    s.gain = random_bf16((size_t)hidden, 1);
    s.pre = random_floats(4 * n);
    s.post = random_floats(4 * n);
    s.comb = random_floats(16 * n);
    uint16_t *h[2], *p[2];
    for (int rank = 0; rank < ranks; rank += ranks - 1) {
        for (int fused = 0; fused < 2; fused++) {
            h[fused] = malloc(4 * count * 2);
            p[fused] = malloc(packed * 2);
            gpu_ranks_site(g, &s, fused, rank, h[fused], p[fused]);
            ck_assert_int_eq(gpu_ranks_fault(g, rank), -1);
        }
        ck_assert(memcmp(h[0], s.h, 4 * count * 2));            /* it did something */
        char what[100];
        snprintf(what, sizeof what, "%d ranks, %u rows of %d, %d experts: streams", ranks, n, hidden, per_token);
        check_same(h[1], h[0], 4 * count, 2, what, rank);
        snprintf(what, sizeof what, "%d ranks, %u rows of %d, %d experts: input", ranks, n, hidden, per_token);
        check_same(p[1], p[0], packed, 2, what, rank);
        for (int fused = 0; fused < 2; fused++) {
            free(h[fused]);
            free(p[fused]);
        }
    }
    const void *all[] = { s.h, s.gain, s.pre, s.post, s.comb, ids };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free((void *)(uintptr_t)all[i]);
    for (int r = 0; r < ranks; r++) free((void *)(uintptr_t)s.x[r]);
}

START_TEST(block_ends) {
    static const int widths[] = { 128, 160, 5120, 8192 };
    static const uint32_t rows[] = { 1, 2, 9, 32, 40, 600 };    /* 600: a block has several rows on a GPU of its own */
    size_t sizes = sizeof rows / sizeof *rows - (crowds[_i].ranks > 2);
    gpu_ranks *g = open_crowd(_i, rows[sizes - 1], 8192 * 2, rows[sizes - 1] * 8192 / 4);
    if (!g) return;
    gpu_start();
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t i = 0; i < sizes; i++)
            for (int per_token = 0; per_token <= 6; per_token += 6)
                check_site(g, crowds[_i].ranks, widths[w], rows[i], per_token, i % 2);
    close_crowd(g, _i, "block ends");
}
END_TEST

Suite *gpu_ranks_suite(void) {
    Suite *s = suite_create("gpu ranks");
    TCase *t = tcase_create("ranks");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, sums, 0, CROWDS);
    tcase_add_loop_test(t, wide_sums, 0, CROWDS);
    tcase_add_loop_test(t, not_a_number, 0, CROWDS);
    tcase_add_loop_test(t, columns, 0, CROWDS);
    tcase_add_loop_test(t, races, 0, CROWDS);
    tcase_add_loop_test(t, graphs, 0, CROWDS);
    tcase_add_loop_test(t, absence, 0, CROWDS);
    tcase_add_loop_test(t, block_ends, 0, CROWDS);
    suite_add_tcase(s, t);
    return s;
}
