/* Tapes of decisions: what is a near-tie and what is not, on blocks and lists whose borders are known by hand. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/quant.h"
#include "engine/tape.h"

#define TIE 1e-5
#define SHAPE "tests/golden/tiny-s1"

/* The forward passes' side of lists, of the arithmetics that record and follow. */
void cedar_f32_tape_picks(cedar_tape *tape, cedar_tape_kind kind, const float *score, const int32_t *names, int count,
                          int k, int32_t *ids);

/* A tape with room for a few records. */
static cedar_tape blank(void) {
    cedar_tape t = { .bytes = cedar_calloc(1, 1 << 16), .size = 1 << 16 };
    ck_assert_ptr_nonnull(t.bytes);
    cedar_tape_record(&t);
    return t;
}

/* Frees the tape; what it counted remains. */
static cedar_tape counted(cedar_tape *t) {
    cedar_tape seen = *t;
    cedar_tape_free(t);
    seen.bytes = NULL;
    return seen;
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

typedef struct quantised { uint8_t codes[32], scale; } quantised;

static quantised fp8(cedar_tape *t, const double x[32]) {
    quantised q;
    cedar_fp8q32_d(x, 32, q.codes, &q.scale);
    cedar_tape_fp8q32(t, x, q.codes, &q.scale);
    return q;
}

/* Records a block of ones and zeros whose element 5 is `truth`, follows with `mine` there. */
static cedar_tape fp8_pair(double truth, double mine, quantised *out) {
    double x[32] = { 448 };
    cedar_tape t = blank();
    x[5] = truth;
    quantised want = fp8(&t, x);
    cedar_tape_follow(&t, TIE);
    x[5] = mine;
    *out = fp8(&t, x);
    cedar_tape_end(&t);
    ck_assert_mem_eq(out->codes, want.codes, 32);       /* what goes on is the tape's, whatever the verdict */
    ck_assert_uint_eq(out->scale, want.scale);
    ck_assert(!t.lost);
    ck_assert_uint_eq(t.decisions, 33);
    return counted(&t);
}

static void counts(const cedar_tape *t, uint64_t ties, uint64_t wrong) {
    ck_assert_msg(t->ties == ties && t->wrong == wrong, "%llu near-ties and %llu wrong, expected %llu and %llu",
                  (unsigned long long)t->ties, (unsigned long long)t->wrong, (unsigned long long)ties,
                  (unsigned long long)wrong);
}

/* With 448 in the block the scale is 1, the codes around 104 are 104 and 112, and their border is 108. */
START_TEST(a_code_is_a_near_tie_at_its_border_only) {
    static const struct { double truth, mine, distance; int ties, wrong; } cases[] = {
        { 107, 105, 0, 0, 0 },                                      /* the same code */
        { 108 + 1e-9, 108 - 448e-6, 1e-6, 1, 0 },
        { 108 + 1e-9, 108 - 448 * 9e-6, 9e-6, 1, 0 },
        { 108 + 1e-9, 108 - 448 * 11e-6, 11e-6, 0, 1 },             /* too far below the border */
        { 107, 113, 5. / 448, 0, 1 },
        { -108 - 1e-9, -108 + 448e-6, 1e-6, 1, 0 },
        { 104, 104 + 16.0, INFINITY, 0, 1 },                        /* two codes further */
        { 0x1p-11, -0x1p-11, 0, 0, 0 },                             /* +0 and -0 are one code */
        { 0x1p-10 * 1.01, -0x1p-11, (0x1p-10 + 0x1p-11) / 448, 1, 0 },  /* beside zero codes lie close */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        quantised q;
        cedar_tape t = fp8_pair(cases[i].truth, cases[i].mine, &q);
        ck_assert_msg(t.ties == (uint64_t)cases[i].ties && t.wrong == (uint64_t)cases[i].wrong, "case %zu", i);
        double seen = cases[i].wrong ? t.wrong_distance : t.widest;
        if (isinf(cases[i].distance)) ck_assert(isinf(seen));
        else ck_assert_msg(fabs(seen - cases[i].distance) < 1e-9, "case %zu: %g", i, seen);
    }
}
END_TEST

START_TEST(nan_is_never_a_near_tie) {
    quantised q;
    cedar_tape t = fp8_pair(448, NAN, &q);
    counts(&t, 0, 1);
    t = fp8_pair(NAN, NAN, &q);
    counts(&t, 0, 0);
    t = fp8_pair(1, NAN, &q);
    counts(&t, 0, 1);
}
END_TEST

/* 448 is the last largest element with scale 1; the codes are judged by the tape's scale. */
START_TEST(a_scale_is_a_near_tie_where_it_doubles) {
    static const struct { double truth, mine; int ties, wrong; } cases[] = {
        { 448, 448 * (1 + 2e-6), 1, 0 },        /* with the tape's scale it saturates: the same code */
        { 448 * (1 + 2e-6), 448 * (1 - 2e-6), 1, 0 },
        { 448, 448 * (1 + 2e-5), 0, 1 },
        { 448, 897, 0, 1 },                     /* the scale is four times as large: not the next one */
        { 448, 896, 0, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double x[32] = { 0 };
        cedar_tape t = blank();
        x[0] = cases[i].truth;
        x[9] = 3;
        quantised want = fp8(&t, x);
        cedar_tape_follow(&t, TIE);
        x[0] = cases[i].mine;
        quantised got = fp8(&t, x);
        ck_assert_mem_eq(&got, &want, sizeof got);
        ck_assert_msg(t.ties == (uint64_t)cases[i].ties && (t.wrong > 0) == cases[i].wrong, "case %zu", i);
        cedar_tape_free(&t);
    }
}
END_TEST

/* FP4Q16 has an E4M3 scale, rounded; FP4Q32 a power of two. Nibbles come back packed. */
START_TEST(fp4_blocks_follow) {
    double x[32] = { 6, -3, 1.5 }, y[32];
    x[16] = 6;
    for (int format = 0; format < 2; format++) {
        uint8_t want[16], want_scale[2] = { 0 }, got[16], got_scale[2] = { 0 };
        cedar_tape t = blank();
        for (int k = 0; k < 32; k++) y[k] = x[k];
        for (int follow = 0; follow < 2; follow++) {
            if (follow) cedar_tape_follow(&t, TIE);
            y[7] = follow ? .25 + 6e-6 : .25 - 1e-9;        /* the border of 0 and 0.5 */
            y[20] = follow ? 2.6 : 2.4;                     /* on both sides of 2.5, far from it */
            uint8_t *codes = follow ? got : want, *scales = follow ? got_scale : want_scale;
            if (format) {
                cedar_fp4q32(y, 32, codes, scales);
                cedar_tape_fp4q32(&t, y, 32, codes, scales);
            } else {
                cedar_fp4q16(y, 32, codes, scales);
                cedar_tape_fp4q16(&t, y, 32, codes, scales);
            }
        }
        cedar_tape_end(&t);
        counts(&t, 1, 1);
        ck_assert(fabs(t.widest - 1e-6) < 1e-12);
        ck_assert(fabs(t.wrong_distance - .1 / 6) < 1e-12);
        ck_assert_mem_eq(got, want, 16);
        ck_assert_mem_eq(got_scale, want_scale, 2);
        ck_assert_uint_eq(t.decisions, format ? 33 : 34);
        cedar_tape_free(&t);
    }
}
END_TEST

/* The scales 1 and 1.125 meet at 1.0625: a largest element of 6.375. */
START_TEST(an_e4m3_scale_has_its_border_in_the_middle) {
    static const struct { double mine; int ties, wrong; } cases[] = {
        { 6.375 * (1 - 5e-6), 1, 0 }, { 6.375 * (1 - 2e-5), 0, 1 }, { 6, 0, 1 }, { 7, 0, 0 }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double x[16] = { 6.375 * (1 + 1e-9) };
        uint8_t nibbles[8], scale;
        cedar_tape t = blank();
        for (int follow = 0; follow < 2; follow++) {
            if (follow) {
                cedar_tape_follow(&t, TIE);
                x[0] = cases[i].mine;
            }
            cedar_fp4q16(x, 16, nibbles, &scale);
            cedar_tape_fp4q16(&t, x, 16, nibbles, &scale);
        }
        counts(&t, (uint64_t)cases[i].ties, (uint64_t)cases[i].wrong);
        cedar_tape_free(&t);
    }
}
END_TEST

/* --- lists -------------------------------------------------------------------------------------------------------- */

/* Follows a tape that says `theirs`, with scores of which `mine` are the best two. */
static cedar_tape pick(const float *score, const int32_t *names, int count, const int32_t theirs[2], int32_t mine[2]) {
    cedar_tape t = blank();
    cedar_tape_next(&t, CEDAR_TAPE_TOPK, theirs, 8, 1);
    cedar_tape_follow(&t, TIE);
    cedar_f32_tape_picks(&t, CEDAR_TAPE_TOPK, score, names, count, 2, mine);
    cedar_tape_end(&t);
    ck_assert(!t.lost);
    return counted(&t);
}

START_TEST(a_pick_is_a_near_tie_beside_the_last_one) {
    const float score[5] = { 1, 4, 2.00001f, 2, -8 };
    int32_t mine[2] = { 1, 2 };
    cedar_tape t = pick(score, NULL, 5, (const int32_t[]){ 1, 3 }, mine);   /* 1e-5 / 8 apart */
    counts(&t, 1, 0);
    ck_assert(fabs(t.widest - 1.25e-6) < 1e-7);
    ck_assert(mine[0] == 1 && mine[1] == 3);
    int32_t other[2] = { 1, 2 };
    t = pick(score, NULL, 5, (const int32_t[]){ 0, 1 }, other);             /* 1 / 8 apart */
    counts(&t, 0, 1);
    ck_assert(other[0] == 0 && other[1] == 1);
    int32_t both[2] = { 1, 2 };
    t = pick(score, NULL, 5, (const int32_t[]){ 2, 3 }, both);              /* 4 against 2 */
    counts(&t, 0, 1);
    ck_assert(fabs(t.wrong_distance - .25) < 1e-6);
}
END_TEST

START_TEST(names_of_picks_are_compared_and_not_their_places) {
    const float score[3] = { 3, 2.00001f, 2 };
    const int32_t names[3] = { 7, 11, 30 };
    int32_t mine[2] = { 7, 11 };
    cedar_tape t = pick(score, names, 3, (const int32_t[]){ 7, 30 }, mine);
    counts(&t, 1, 0);
    ck_assert(mine[1] == 30);
    int32_t absent[2] = { 7, 11 };
    t = pick(score, names, 3, (const int32_t[]){ 7, 12 }, absent);          /* 12 has no score: not followed */
    counts(&t, 0, 1);
    ck_assert(isinf(t.wrong_distance) && absent[1] == 11);
    int32_t fewer[2] = { 7, 11 };
    t = pick(score, names, 3, (const int32_t[]){ 7, -1 }, fewer);
    counts(&t, 0, 1);
    ck_assert(fewer[1] == 11);
}
END_TEST

/* --- order -------------------------------------------------------------------------------------------------------- */

START_TEST(another_order_of_decisions_is_noticed) {
    const int32_t one = 1, two[2] = { 1, 2 };
    for (int way = 0; way < 4; way++) {
        cedar_tape t = blank();
        cedar_tape_next(&t, CEDAR_TAPE_EXPERTS, two, 8, 1);
        cedar_tape_next(&t, CEDAR_TAPE_GATE, &one, 4, 1);
        cedar_tape_follow(&t, TIE);
        ck_assert_ptr_null(cedar_tape_peek(&t, CEDAR_TAPE_GATE, 4));
        if (way != 0) ck_assert_ptr_nonnull(cedar_tape_next(&t, CEDAR_TAPE_EXPERTS, two, 8, 1));
        else ck_assert_ptr_null(cedar_tape_next(&t, CEDAR_TAPE_TOPK, two, 8, 1));       /* another kind */
        if (way == 1) ck_assert_ptr_null(cedar_tape_next(&t, CEDAR_TAPE_GATE, two, 8, 1));  /* another length */
        if (way >= 2) ck_assert_ptr_nonnull(cedar_tape_next(&t, CEDAR_TAPE_GATE, &one, 4, 1));
        if (way == 3) ck_assert_ptr_null(cedar_tape_next(&t, CEDAR_TAPE_GATE, &one, 4, 1)); /* one too many */
        cedar_tape_end(&t);
        ck_assert(t.lost == (way != 2));
        cedar_tape_follow(&t, TIE);
        cedar_tape_next(&t, CEDAR_TAPE_EXPERTS, two, 8, 1);
        cedar_tape_end(&t);
        ck_assert(t.lost);      /* one is left over */
        cedar_tape_free(&t);
    }
}
END_TEST

START_TEST(room_is_taken_ahead_or_refused) {
    cedar_config *c = malloc(sizeof *c);
    cedar_err err = { 0 };
    ck_assert_msg(!cedar_config_load(SHAPE, c, &err), "%s", err.msg);
    cedar_tape t = { 0 };
    cedar_mem_fail_at(1);
    ck_assert_int_eq(cedar_tape_reserve(&t, c, 10, &err), CEDAR_E_OOM);
    ck_assert_ptr_nonnull(strstr(err.msg, "decisions of 10 rows"));
    ck_assert_ptr_null(t.bytes);
    ck_assert_int_eq(cedar_tape_reserve(&t, c, 10, &err), CEDAR_OK);
    uint64_t size = t.size;
    ck_assert_uint_gt(size, 0);
    ck_assert_int_eq(cedar_tape_reserve(&t, c, 5, &err), CEDAR_OK);     /* still empty: there is room */
    ck_assert_uint_eq(t.size, size);
    t.used = size;
    ck_assert_int_eq(cedar_tape_reserve(&t, c, 5, &err), CEDAR_OK);
    ck_assert_uint_gt(t.size, size);
    cedar_tape_follow(&t, TIE);
    size = t.size;
    ck_assert_int_eq(cedar_tape_reserve(&t, c, 1000, &err), CEDAR_OK);  /* following writes nothing */
    ck_assert_uint_eq(t.size, size);
    cedar_tape_free(&t);
    free(c);
}
END_TEST

/* The distance grows with depth and stays of the size of float's noise for every shape. */
START_TEST(distances_are_of_the_size_of_float_noise) {
    static const char *const shapes[] = { SHAPE, "tests/golden/tiny2-s1",
                                          "scenarios/models/flash.json" };
    double before = 0;
    for (size_t i = 0; i < 3; i++) {
        cedar_config *c = malloc(sizeof *c);
        cedar_err err = { 0 };
        ck_assert_msg(!cedar_config_load(shapes[i], c, &err), "%s", err.msg);
        double tie = cedar_tape_tie(c);
        ck_assert_msg(tie > before && tie > 20 * 0x1p-24 && tie < 400 * 0x1p-24, "%s: %g", shapes[i], tie);
        before = tie;
        free(c);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("tape");
    TCase *t = tcase_create("decisions");
    tcase_add_test(t, a_code_is_a_near_tie_at_its_border_only);
    tcase_add_test(t, nan_is_never_a_near_tie);
    tcase_add_test(t, a_scale_is_a_near_tie_where_it_doubles);
    tcase_add_test(t, fp4_blocks_follow);
    tcase_add_test(t, an_e4m3_scale_has_its_border_in_the_middle);
    tcase_add_test(t, a_pick_is_a_near_tie_beside_the_last_one);
    tcase_add_test(t, names_of_picks_are_compared_and_not_their_places);
    tcase_add_test(t, another_order_of_decisions_is_noticed);
    tcase_add_test(t, room_is_taken_ahead_or_refused);
    tcase_add_test(t, distances_are_of_the_size_of_float_noise);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
