/* Step plans against the numbers that the schedulers and workers of other engines assert in their own tests: hits,
 * chunks, write floors, kept rows, window bounds, halo lengths. Nothing here opens an engine. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/engine.h"

static const cedar_bounds none = { 0, 0, 0 };

static cedar_replay_rules both(uint32_t w) {
    return (cedar_replay_rules){
        .window = w, .decoder = true, .encoder = true, .cut = CEDAR_CUT_AFTER, .encoder_rows = w, .decoder_rows = w
    };
}

static cedar_plan_entry rows(const cedar_replay_rules *r, cedar_rows_kind kind, uint32_t pos, uint32_t count,
                             cedar_bounds now) {
    cedar_plan_entry e;
    cedar_plan_rows(r, kind, pos, count, now, 0, false, 1, &e);
    return e;
}

static void hit_is(const cedar_replay_rules *r, uint32_t hit, uint32_t adopted, uint32_t start, uint32_t replayed) {
    cedar_hit_plan p = cedar_plan_hit(r, hit);
    ck_assert_msg(p.hit == adopted && p.start == start && p.replayed == replayed && p.write_floor == adopted,
                  "hit %u: %u from %u, %u replayed, floor %u", hit, p.hit, p.start, p.replayed, p.write_floor);
}

/* --- prefix hits -------------------------------------------------------------------------------------------------- */

/* vLLM, window 32: 96 of 100 tokens cached -> start 64, 36 rows; 64 -> start 32, 68 rows; 48 -> 16; a hit as long
 * as the window is not adopted; the producer of a split prefill replays [68, 100). */
START_TEST(hits_as_vllm_plans_them) {
    cedar_replay_rules r = both(32);
    hit_is(&r, 96, 96, 64, 32);
    hit_is(&r, 64, 64, 32, 32);
    hit_is(&r, 48, 48, 16, 32);
    hit_is(&r, 33, 33, 1, 32);
    hit_is(&r, 32, 0, 0, 0);
    hit_is(&r, 1, 0, 0, 0);
    hit_is(&r, 0, 0, 0, 0);
    hit_is(&r, 100, 100, 68, 32);
}
END_TEST

/* SGLang, TRT-LLM and tokenspeed replay short hits from 0. */
START_TEST(short_hits_replay_from_the_start) {
    cedar_replay_rules r = both(128);
    r.adopt_short_hits = true;
    hit_is(&r, 0, 0, 0, 0);
    hit_is(&r, 1, 1, 0, 1);
    hit_is(&r, 64, 64, 0, 64);
    hit_is(&r, 127, 127, 0, 127);
    hit_is(&r, 128, 128, 0, 128);
    hit_is(&r, 129, 129, 1, 128);
    hit_is(&r, 192, 192, 64, 128);      /* write floor 64 + 128 */
    hit_is(&r, 255, 255, 127, 128);
    hit_is(&r, 512, 512, 384, 128);
    r = both(4);
    r.adopt_short_hits = true;
    hit_is(&r, 7, 7, 3, 4);             /* odd: pair (6, 7) is completed by replayed row 6 and new row 7 */
}
END_TEST

/* Replay lengths other than W, as an audit sweeps them. */
START_TEST(replay_length_is_a_parameter) {
    cedar_replay_rules r = both(16);
    r.encoder_rows = 0;
    hit_is(&r, 0, 0, 0, 0);
    hit_is(&r, 40, 40, 40, 0);
    r.encoder_rows = 1;
    hit_is(&r, 40, 40, 39, 1);
    r.encoder_rows = 5080;
    hit_is(&r, 6000, 6000, 920, 5080);
    hit_is(&r, 5080, 0, 0, 0);
    r.adopt_short_hits = true;
    hit_is(&r, 5080, 5080, 0, 5080);
}
END_TEST

/* I9: a start is never below 0 or above the hit, whatever the numbers. */
START_TEST(hits_hold_their_invariants) {
    for (uint64_t i = 0; i < 20000; i++) {
        cedar_replay_rules r = both(1 + (uint32_t)cedar_rng_below(1, i, 200));
        r.encoder_rows = (uint32_t)cedar_rng_below(2, i, 300);
        r.adopt_short_hits = i % 2;
        uint32_t hit = (uint32_t)cedar_rng_below(3, i, 600);
        cedar_hit_plan p = cedar_plan_hit(&r, hit);
        ck_assert(p.hit == 0 || p.hit == hit);
        ck_assert(p.start <= p.hit && p.hit - p.start == p.replayed && p.write_floor == p.hit);
        ck_assert(p.replayed <= r.encoder_rows);
        if (p.hit && p.start) ck_assert_uint_eq(p.replayed, r.encoder_rows);
        if (!r.adopt_short_hits && hit <= r.encoder_rows) ck_assert_uint_eq(p.hit, 0);
    }
}
END_TEST

/* --- write floors ------------------------------------------------------------------------------------------------- */

/* vLLM's worker, window 4: rows 16..21 of a request that starts at 16 after a hit of 20: 16..19 are not written. */
START_TEST(replayed_rows_lie_below_the_write_floor) {
    cedar_replay_rules r = both(4);
    r.decoder = false;
    cedar_plan_entry e;
    const cedar_bounds at16 = { 16, 16, 16 };
    cedar_plan_rows(&r, CEDAR_ROWS_PREFILL, 16, 6, at16, 20, false, 1, &e);
    ck_assert_uint_eq(e.replayed, 4);
    ck_assert_uint_eq(e.write_floor, 20);
    ck_assert_uint_eq(e.kept, 6);
    ck_assert_uint_eq(e.bounds.lo_encoder, 16);
    cedar_plan_rows(&r, CEDAR_ROWS_PREFILL, 16, 3, at16, 20, false, 0, &e);     /* a chunk of replayed rows only */
    ck_assert_uint_eq(e.replayed, 3);
    cedar_plan_rows(&r, CEDAR_ROWS_PREFILL, 19, 3, at16, 20, false, 0, &e);
    ck_assert_uint_eq(e.replayed, 1);
    cedar_plan_rows(&r, CEDAR_ROWS_DECODE, 22, 1, at16, 20, false, 1, &e);
    ck_assert_uint_eq(e.replayed, 0);
}
END_TEST

/* --- kept rows ---------------------------------------------------------------------------------------------------- */

static cedar_step_plan total(cedar_plan_entry *e, uint32_t count) {
    cedar_step_plan p = { .entry_count = count, .entries = e };
    cedar_plan_total(&p);
    return p;
}

/* vLLM's worker, window 128: queries 1, 300, 100 of sequences 500, 300, 300 long; the first decodes, the third
 * starts at 50 after a hit. */
START_TEST(kept_rows_of_a_mixed_batch) {
    cedar_replay_rules r = both(128);
    const cedar_bounds at50 = { 50, 50, 50 };
    cedar_plan_entry e[3] = { rows(&r, CEDAR_ROWS_DECODE, 499, 1, none), rows(&r, CEDAR_ROWS_PREFILL, 0, 300, none),
                              rows(&r, CEDAR_ROWS_PREFILL, 200, 100, at50) };
    cedar_step_plan p = total(e, 3);
    ck_assert_uint_eq(p.rows, 401);
    ck_assert_uint_eq(p.kept, 229);
    ck_assert_uint_eq(p.logits, 3);
    ck_assert(p.trimmed);
    uint32_t kept[229], first[4];
    static const uint32_t want_first[4] = { 0, 1, 129, 229 };
    cedar_plan_kept_rows(&p, kept, first);
    ck_assert_mem_eq(first, want_first, sizeof first);
    ck_assert_uint_eq(kept[0], 0);
    for (uint32_t i = 1; i < 129; i++) ck_assert_uint_eq(kept[i], 172 + i);
    for (uint32_t i = 129; i < 229; i++) ck_assert_uint_eq(kept[i], 172 + i);
    ck_assert_uint_eq(e[0].bounds.lo_late, 0);
    ck_assert_uint_eq(e[1].bounds.lo_late, 172);
    ck_assert_uint_eq(e[2].bounds.lo_late, 50);
    ck_assert_uint_eq(e[1].bounds.lo_encoder, 0);
    ck_assert_uint_eq(e[1].bounds.lo_cut, 0);
}
END_TEST

/* The same with prompt log-probabilities on the second of 1, 300, 300: only the third is trimmed. */
START_TEST(prompt_logprobs_are_never_trimmed) {
    cedar_replay_rules r = both(128);
    cedar_plan_entry e[3] = { rows(&r, CEDAR_ROWS_DECODE, 499, 1, none),
                              { 0 },
                              rows(&r, CEDAR_ROWS_PREFILL, 0, 300, none) };
    cedar_plan_rows(&r, CEDAR_ROWS_PREFILL, 0, 300, none, 0, true, 300, &e[1]);
    cedar_step_plan p = total(e, 3);
    ck_assert_uint_eq(p.kept, 1 + 300 + 128);
    ck_assert_uint_eq(e[1].logits, 300);
    ck_assert_uint_eq(e[1].bounds.lo_late, 0);
    uint32_t kept[429], first[4];
    cedar_plan_kept_rows(&p, kept, first);
    for (uint32_t i = 0; i < 301; i++) ck_assert_uint_eq(kept[i], i);
    for (uint32_t i = 301; i < 429; i++) ck_assert_uint_eq(kept[i], 172 + i);      /* 473 .. 600 */
}
END_TEST

/* ATOM, tail 133: lengths 5, 300, 133, 134 from 0, 1000, 40, 7 -> window floors 0, 1167, 0, 8. */
START_TEST(window_floors_of_a_longer_tail) {
    static const uint32_t length[] = { 5, 300, 133, 134 }, start[] = { 0, 1000, 40, 7 }, floors[] = { 0, 1167, 0, 8 };
    cedar_replay_rules r = both(128);
    r.decoder_rows = 133;
    for (int i = 0; i < 4; i++) {
        cedar_plan_entry e = rows(&r, CEDAR_ROWS_PREFILL, start[i], length[i], none);
        ck_assert_uint_eq(e.bounds.lo_late, floors[i]);
        ck_assert_uint_eq(e.kept, length[i] > 133 ? 133 : length[i]);
    }
}
END_TEST

/* SGLang's fold: (prefix, new) = (0, 40), (512, 30), (64, 20). */
START_TEST(replay_and_suffix_in_one_forward) {
    static const uint32_t hit[] = { 0, 512, 64 }, suffix[] = { 40, 30, 20 }, fed[] = { 40, 158, 84 },
                          from[] = { 0, 384, 0 }, skip[] = { 0, 128, 64 }, tail[] = { 40, 128, 84 },
                          floors[] = { 0, 414, 0 };
    cedar_replay_rules r = both(128);
    r.adopt_short_hits = true;
    for (int i = 0; i < 3; i++) {
        cedar_hit_plan h = cedar_plan_hit(&r, hit[i]);
        cedar_plan_entry e;
        const cedar_bounds at = { h.start, h.start, h.start };
        uint32_t n = hit[i] + suffix[i] - h.start;
        cedar_plan_rows(&r, CEDAR_ROWS_PREFILL, h.start, n, at, h.write_floor, false, 1, &e);
        ck_assert_uint_eq(h.start, from[i]);
        ck_assert_uint_eq(n, fed[i]);
        ck_assert_uint_eq(e.replayed, skip[i]);
        ck_assert_uint_eq(e.kept, tail[i]);
        ck_assert_uint_eq(e.bounds.lo_late, floors[i]);
        ck_assert_uint_eq(e.bounds.lo_encoder, h.start);
    }
}
END_TEST

/* Lengths around the window: I4 (a prompt not longer than W is not trimmed), and what each cut does to the bounds. */
START_TEST(trimming_starts_above_the_window) {
    cedar_replay_rules r = both(128);
    static const uint32_t n[] = { 1, 127, 128, 129, 256, 2414 };
    for (int cut = CEDAR_CUT_AFTER; cut <= CEDAR_CUT_INSIDE_CLIP; cut++)
        for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
            r.cut = (cedar_cut)cut;
            cedar_plan_entry e = rows(&r, CEDAR_ROWS_PREFILL, 0, n[i], none);
            uint32_t first = n[i] > 128 ? n[i] - 128 : 0;
            ck_assert_uint_eq(e.kept, n[i] - first);
            ck_assert_uint_eq(e.bounds.lo_late, first);
            ck_assert_uint_eq(e.bounds.lo_cut, cut == CEDAR_CUT_INSIDE_CLIP ? first : 0);
            ck_assert_uint_eq(e.bounds.lo_encoder, 0);
            cedar_step_plan p = total(&e, 1);
            ck_assert(p.trimmed == (n[i] > 128));
        }
}
END_TEST

START_TEST(decode_and_verify_rows_are_never_trimmed) {
    cedar_replay_rules r = both(4);
    ck_assert_uint_eq(rows(&r, CEDAR_ROWS_VERIFY, 100, 9, none).kept, 9);
    ck_assert_uint_eq(rows(&r, CEDAR_ROWS_DECODE, 100, 9, none).kept, 9);
    ck_assert_uint_eq(rows(&r, CEDAR_ROWS_PREFILL, 100, 9, none).kept, 4);
    r.decoder = false;
    ck_assert_uint_eq(rows(&r, CEDAR_ROWS_PREFILL, 100, 9, none).kept, 9);
    r.decoder = true;
    r.decoder_rows = 0;                 /* the last row always reaches the head */
    cedar_plan_entry e;
    cedar_plan_rows(&r, CEDAR_ROWS_PREFILL, 100, 9, none, 0, false, 9, &e);
    ck_assert_uint_eq(e.kept, 1);
    ck_assert_uint_eq(e.logits, 1);
    ck_assert_uint_eq(e.bounds.lo_late, 108);
}
END_TEST

/* Bounds never decrease and never exceed the first kept row or what they were. */
START_TEST(bounds_never_decrease) {
    for (uint64_t i = 0; i < 3000; i++) {
        cedar_replay_rules r = both(1 + (uint32_t)cedar_rng_below(11, i, 40));
        r.decoder_rows = (uint32_t)cedar_rng_below(12, i, 60);
        r.cut = (cedar_cut)cedar_rng_below(13, i, 3);
        uint32_t pos = (uint32_t)cedar_rng_below(14, i, 50);
        cedar_bounds b = { pos, pos, pos };
        for (uint64_t step = 0; step < 20; step++) {
            uint32_t n = 1 + (uint32_t)cedar_rng_below(15, i * 100 + step, 100);
            cedar_plan_entry e = rows(&r, (cedar_rows_kind)cedar_rng_below(16, i * 100 + step, 3), pos, n, b);
            ck_assert(e.bounds.lo_encoder == b.lo_encoder);
            ck_assert(e.bounds.lo_cut >= b.lo_cut && e.bounds.lo_late >= b.lo_late &&
                      e.bounds.lo_late >= e.bounds.lo_cut);
            ck_assert(e.kept >= 1 && e.kept <= n);
            uint32_t first = pos + n - e.kept;
            ck_assert(e.bounds.lo_late == b.lo_late || e.bounds.lo_late == first);
            if (e.kept < n) ck_assert(e.bounds.lo_late >= first || b.lo_late > first);
            b = e.bounds;
            pos += n;
        }
    }
}
END_TEST

START_TEST(kept_rows_of_untrimmed_steps_are_all_rows) {
    cedar_replay_rules r = both(8);
    cedar_plan_entry e[3] = { rows(&r, CEDAR_ROWS_DECODE, 4, 1, none), rows(&r, CEDAR_ROWS_PREFILL, 0, 8, none),
                              rows(&r, CEDAR_ROWS_VERIFY, 9, 3, none) };
    cedar_step_plan p = total(e, 3);
    uint32_t kept[12], first[4];
    ck_assert(!p.trimmed);
    ck_assert_uint_eq(p.kept, 12);
    cedar_plan_kept_rows(&p, kept, first);
    for (uint32_t i = 0; i < 12; i++) ck_assert_uint_eq(kept[i], i);
    cedar_plan_total(&p);               /* counting again starts from zero */
    ck_assert_uint_eq(p.rows, 12);
}
END_TEST

/* --- chunks ------------------------------------------------------------------------------------------------------- */

static void schedule_is(uint32_t left, uint32_t budget, uint32_t min_last, const uint32_t *want, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t n = cedar_plan_chunk(left, budget, min_last);
        ck_assert_msg(n == want[i], "chunk %zu is %u, expected %u", i, n, want[i]);
        left -= n;
    }
    ck_assert_uint_eq(left, 0);
}

START_TEST(chunk_schedules) {
    static const uint32_t vllm[] = { 16, 16, 4 }, whole[] = { 36 }, w[] = { 72, 128 }, exact[] = { 128, 128 },
                          mid[] = { 1000, 100 };
    schedule_is(36, 16, 0, vllm, 3);            /* window 32, hit 96 of 100: 36 rows, cap 16 */
    schedule_is(36, 36, 0, whole, 1);
    schedule_is(36, 4096, 128, whole, 1);       /* all in one chunk: nothing remains */
    schedule_is(200, 128, 128, w, 2);           /* 72 would remain, so the chunk is shortened until 128 do */
    schedule_is(256, 128, 128, exact, 2);
    schedule_is(1100, 1000, 100, mid, 2);
    ck_assert_uint_eq(cedar_plan_chunk(128, 100, 128), 0);      /* wait for a budget that takes all of it */
    ck_assert_uint_eq(cedar_plan_chunk(100, 50, 128), 0);
    ck_assert_uint_eq(cedar_plan_chunk(0, 16, 0), 0);
    ck_assert_uint_eq(cedar_plan_chunk(10, 0, 0), 0);
}
END_TEST

/* No final chunk is shorter than min_last, and every step but a waiting one makes progress. */
START_TEST(final_chunks_are_long_enough) {
    for (uint32_t left = 1; left < 400; left++)
        for (uint32_t budget = 1; budget < 100; budget += 7)
            for (uint32_t min_last = 0; min_last <= budget; min_last += 8) {
                uint32_t rest = left, guard = 0;
                while (rest) {
                    uint32_t n = cedar_plan_chunk(rest, budget, min_last);
                    ck_assert(n > 0 && n <= budget && n <= rest);
                    rest -= n;
                    if (rest) ck_assert(rest >= min_last);
                    ck_assert(++guard <= left);
                }
            }
}
END_TEST

/* --- halos -------------------------------------------------------------------------------------------------------- */

START_TEST(halo_lengths) {
    cedar_config c;
    cedar_err err = { 0 };
    ck_assert_msg(!cedar_config_load("scenarios/models/flash.json", &c, &err), "%s", err.msg);
    ck_assert_uint_eq(cedar_halo_encoder(&c), 5080);
    ck_assert_uint_eq(cedar_halo_decoder(&c, CEDAR_CUT_AFTER), 2414);
    ck_assert_uint_eq(cedar_halo_decoder(&c, CEDAR_CUT_INSIDE), 2414);
    ck_assert_uint_eq(cedar_halo_decoder(&c, CEDAR_CUT_INSIDE_CLIP), 2541);
    ck_assert_msg(!cedar_config_load("scenarios/models/tiny.json", &c, &err), "%s", err.msg);
    ck_assert_uint_eq(cedar_halo_encoder(&c), 120);
    ck_assert_uint_eq(cedar_halo_decoder(&c, CEDAR_CUT_AFTER), 46);
    ck_assert_uint_eq(cedar_halo_decoder(&c, CEDAR_CUT_INSIDE_CLIP), 61);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("plan");
    TCase *t = tcase_create("plans");
    tcase_set_timeout(t, 20);
    tcase_add_test(t, hits_as_vllm_plans_them);
    tcase_add_test(t, short_hits_replay_from_the_start);
    tcase_add_test(t, replay_length_is_a_parameter);
    tcase_add_test(t, hits_hold_their_invariants);
    tcase_add_test(t, replayed_rows_lie_below_the_write_floor);
    tcase_add_test(t, kept_rows_of_a_mixed_batch);
    tcase_add_test(t, prompt_logprobs_are_never_trimmed);
    tcase_add_test(t, window_floors_of_a_longer_tail);
    tcase_add_test(t, replay_and_suffix_in_one_forward);
    tcase_add_test(t, trimming_starts_above_the_window);
    tcase_add_test(t, decode_and_verify_rows_are_never_trimmed);
    tcase_add_test(t, bounds_never_decrease);
    tcase_add_test(t, kept_rows_of_untrimmed_steps_are_all_rows);
    tcase_add_test(t, chunk_schedules);
    tcase_add_test(t, final_chunks_are_long_enough);
    tcase_add_test(t, halo_lengths);
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
