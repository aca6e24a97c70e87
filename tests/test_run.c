/* Whole runs on the CPU engine with a small synthetic model: the controls of the quality method. */
#define JOURNAL_MODEL "scenarios/models/tiny.json"

#include "engine/engine.h"
#include "journal.h"
#include "sim/sim_int.h"

/* Two sessions of one stream each; prompts of up to 110 tokens, beyond the window of 16, that continue one another. */
#define TWO HEAD("one", 8) TURN(0, 66, 6, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16") "," \
    TURN(3, 90, 7, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22") "," \
    TURN(6, 110, 9, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27") "]}\n" \
    HEAD("two", 8) TURN(0, 40, 3, 1, "31,32,33,34,35,36,37,38,39,40") "," \
    TURN(2, 61, 8, 1, "31,32,33,34,35,36,37,38,39,40,41,42,43,44,45") "]}"

START_TEST(exact_against_exact_is_zero) { /* C0 and C1: any batch, chunk or page size, hits or not */
    static const char *const settings[] = { "lanes=1 page_tokens=4", "lanes=2 page_tokens=8 step_tokens=16",
                                            "lanes=2 page_tokens=4 chunk_tokens=7 step_tokens=24",
                                            "lanes=2 page_tokens=4 prefix_cache=false time_scale=0",
                                            "lanes=2 page_tokens=4 threads=1 prompt_scores=true" };
    char words[256];
    cedar_run_result a;
    snprintf(words, sizeof words, "%s quality=true replay=exact", settings[_i]);
    journal *l = run_ok(TWO, words, NULL, &a);
    ck_assert_uint_ge(l->quality, 33); /* every answer token */
    ck_assert_double_eq(l->kl_sum, 0);
    if (_i == 0) ck_assert_uint_gt(l->hits, 0);
    journal_free(l);
}
END_TEST

START_TEST(approximations_show_and_halos_remove_them) {
    cedar_config c;
    OK(cedar_config_load(JOURNAL_MODEL, &c, &failure));
    char words[256];
    cedar_run_result a;
    const struct { const char *replay; bool zero; uint32_t encoder, decoder; } cases[] = {
        { "decoder", false, 0, 0 }, { "encoder", false, 0, 0 }, { "both", false, 0, 0 },
        { "decoder", true, 0, cedar_halo_decoder(&c, CEDAR_CUT_AFTER) },
        { "encoder", true, cedar_halo_encoder(&c), 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(words, sizeof words, "lanes=1 page_tokens=4 quality=true replay=%s encoder_rows=%u decoder_rows=%u "
                 "adopt_short_hits=true", cases[i].replay, cases[i].encoder, cases[i].decoder);
        journal *l = run_ok(TWO, words, NULL, &a);
        ck_assert_msg((l->kl_sum == 0) == cases[i].zero, "%s with %u and %u rows: %g", cases[i].replay,
                      cases[i].encoder, cases[i].decoder, l->kl_sum);
        ck_assert_uint_eq(l->in_tokens, 66 + 90 + 110 + 40 + 61);
        if (*cases[i].replay == 'e') ck_assert_uint_gt(l->replayed, 0);
        journal_free(l);
    }
}
END_TEST

START_TEST(threads_and_repeats_change_nothing) {
    cedar_run_result a, b;
    journal *x = run_ok(TWO, "lanes=2 page_tokens=4 replay=both continuation=greedy threads=1", NULL, &a);
    journal *y = run_ok(TWO, "lanes=2 page_tokens=4 replay=both continuation=greedy threads=2", NULL, &b);
    ck_assert_str_eq(x->rows, y->rows);
    ck_assert_uint_eq(a.event_hash, b.event_hash);
    cedar_recorded rec = { x->step_ns, x->steps, a.event_hash };
    journal *z = run_ok(TWO, "lanes=2 page_tokens=4 replay=both continuation=greedy clock=recorded", &rec, &b);
    ck_assert_str_eq(x->rows, z->rows);
    ck_assert_str_eq(x->timing, z->timing);
    ck_assert_uint_eq(a.event_hash, b.event_hash);
    journal_free(x);
    journal_free(y);
    journal_free(z);
}
END_TEST

/* The quality rows of a journal, one text. */
static char *quality_rows(const char *rows) {
    char *out = calloc(1, strlen(rows) + 1), *to = out;
    for (const char *line = rows; line && *line;) {
        const char *end = strchr(line, '\n');
        size_t n = end ? (size_t)(end - line) + 1 : strlen(line);
        if (strncmp(line, "quality ", 8) == 0) {
            memcpy(to, line, n);
            to += n;
        }
        line += n;
    }
    return out;
}

/* Verify rows give the bits of decode rows, and rejected ones leave nothing behind: speculation changes which step
 * makes a token, and no distribution. */
START_TEST(speculation_changes_no_distribution) {
    static const char *const arms[] = { "exact", "decoder", "encoder", "both" };
    static const char *const drafts[] = { "draft_tokens=3 acceptance_length=2.51", "draft_tokens=2 acceptance_length=1",
                                          "draft_tokens=3 acceptance_length=4", "draft_tokens=3" };
    char words[256];
    cedar_run_result a;
    const char *plain = "lanes=1 page_tokens=4 quality=true adopt_short_hits=true encoder_rows=4 decoder_rows=4 "
                        "replay=";
    snprintf(words, sizeof words, "%s%s", plain, arms[_i]);
    journal *none = run_ok(TWO, words, NULL, &a);
    char *expected = quality_rows(none->rows);
    ck_assert_uint_gt(strlen(expected), 1000);
    for (size_t i = 0; i < 4; i++) {
        snprintf(words, sizeof words, "%s%s %s", plain, arms[_i], drafts[i]);
        journal *l = run_ok(TWO, words, NULL, &a);
        char *rows = quality_rows(l->rows);
        ck_assert_str_eq(rows, expected);
        ck_assert_uint_gt(l->drafted, 10);
        if (i == 0) ck_assert(l->accepted > 0 && l->accepted < l->drafted);
        if (i == 1) ck_assert_uint_eq(l->accepted, 0);
        if (i == 2) ck_assert_uint_eq(l->accepted, l->drafted);
        ck_assert_uint_eq(l->hits, none->hits);
        free(rows);
        journal_free(l);
    }
    free(expected);
    journal_free(none);
}
END_TEST

/* The engine's own answers, verified: drafts that its greedy decode would have made stay, the others do not, so later
 * prompts and their hits are the same; and a run with drafts repeats. */
START_TEST(verified_drafts_repeat) {
    cedar_run_result a, b;
    const char *words = "lanes=2 page_tokens=4 continuation=greedy draft_tokens=3 replay=both";
    journal *x = run_ok(TWO, words, NULL, &a), *y = run_ok(TWO, words, NULL, &b);
    ck_assert_str_eq(x->rows, y->rows);
    ck_assert_uint_eq(a.event_hash, b.event_hash);
    ck_assert_uint_gt(x->drafted, 0);
    cedar_recorded rec = { x->step_ns, x->steps, a.event_hash };
    journal *z = run_ok(TWO, "lanes=2 page_tokens=4 continuation=greedy draft_tokens=3 replay=both "
                        "clock=recorded", &rec, &b);
    ck_assert_str_eq(x->rows, z->rows);
    ck_assert_uint_eq(a.event_hash, b.event_hash);
    journal_free(x);
    journal_free(y);
    journal_free(z);
}
END_TEST

int main(void) {
    Suite *s = suite_create("run");
    TCase *t = tcase_create("run");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, exact_against_exact_is_zero, 0, 5);
    tcase_add_test(t, approximations_show_and_halos_remove_them);
    tcase_add_test(t, threads_and_repeats_change_nothing);
    tcase_add_loop_test(t, speculation_changes_no_distribution, 0, 4);
    tcase_add_test(t, verified_drafts_repeat);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
