/* The simulator without numerics: queue, clocks, scheduler, prompts, lanes, and whole runs over a fake engine. */
#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fake_engine.h"
#include "journal.h"
#include "sim/accept.h"
#include "sim/sim_int.h"

/* --- queue -------------------------------------------------------------------------------------------------------- */

START_TEST(events_come_in_order) {
    cedar_events q = { 0 };
    const struct { int64_t t; cedar_event_class c; uint32_t lane; } in[] = {
        { 5, CEDAR_EVENT_LANE, 0 }, { 5, CEDAR_EVENT_TURN, 1 }, { 1, CEDAR_EVENT_LANE, 2 }, { 5, CEDAR_EVENT_TURN, 3 },
        { 9, CEDAR_EVENT_TURN, 4 }, { 1, CEDAR_EVENT_LANE, 5 }, { 0, CEDAR_EVENT_TURN, 6 } };
    const uint32_t order[] = { 6, 2, 5, 1, 3, 0, 4 };
    for (size_t i = 0; i < 7; i++)
        OK(cedar_events_push(&q, (cedar_event){ .time_ns = in[i].t, .class_ = in[i].c, .lane = in[i].lane }, &failure));
    for (size_t i = 0; i < 7; i++) ck_assert_uint_eq(cedar_events_pop(&q).lane, order[i]);
    ck_assert_ptr_null(cedar_events_first(&q));
    uint64_t key = cedar_rng_key(1, "test/events");
    for (uint64_t i = 0; i < 2000; i++)
        OK(cedar_events_push(&q, (cedar_event){ .time_ns = (int64_t)cedar_rng_below(key, i, 50) }, &failure));
    cedar_event last = cedar_events_pop(&q);
    while (cedar_events_first(&q)) {
        cedar_event e = cedar_events_pop(&q);
        ck_assert(e.time_ns > last.time_ns || (e.time_ns == last.time_ns && e.sequence > last.sequence));
        last = e;
    }
    cedar_events_free(&q);
}
END_TEST

/* --- synthetic acceptance ----------------------------------------------------------------------------------------- */

/* Steps of two neighbouring lengths, so that the mean is the one that was asked for: within four standard errors of a
 * draw with probability 0.51, and exactly where no draw is needed. */
START_TEST(acceptance_has_its_mean_and_least_variance) {
    enum { STEPS = 100000 };
    uint64_t key = cedar_accept_key(42), sum = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        uint32_t kept = cedar_accept_drafts(key, 1 + i / 1000, i % 1000, 5, 3510000000);
        ck_assert(kept == 2 || kept == 3);
        sum += kept;
    }
    ck_assert_double_eq_tol((double)sum / STEPS, 2.51, 4 * sqrt(0.51 * 0.49 / STEPS));
    for (uint32_t i = 0; i < 100; i++) {
        ck_assert_uint_eq(cedar_accept_drafts(key, 7, i, 5, 1000000000), 0);
        ck_assert_uint_eq(cedar_accept_drafts(key, 7, i, 5, 6000000000), 5);
        ck_assert_uint_eq(cedar_accept_drafts(key, 7, i, 1, 3510000000), 1);    /* never more than there are */
        ck_assert_uint_eq(cedar_accept_drafts(key, 7, i, 0, 3510000000), 0);
    }
    uint32_t same = 0;
    for (uint32_t i = 0; i < 1000; i++)
        same += cedar_accept_drafts(key, 1, i, 5, 3510000000) ==
                cedar_accept_drafts(cedar_accept_key(43), 1, i, 5, 3510000000);
    ck_assert(same > 400 && same < 600);    /* seeds are independent */
}
END_TEST

/* --- clocks ------------------------------------------------------------------------------------------------------- */

START_TEST(clocks_map_inside_steps) {
    cedar_clocks c = { 0 };
    cedar_clock_idle(&c, 1000);
    ck_assert_int_eq(c.meter_ns, 1000);
    cedar_clock_step(&c, 400, 1000); /* schedule 1000..1400, meter 1000..2000 */
    ck_assert_int_eq(c.sched_ns, 1400);
    ck_assert_int_eq(c.meter_ns, 2000);
    ck_assert_int_eq(cedar_clock_meter(&c, 1100), 1250);
    ck_assert_int_eq(cedar_clock_meter(&c, 1399), 1997); /* 997.5 rounds down */
    ck_assert_int_eq(cedar_clock_meter(&c, 1400), 2000);
    cedar_clock_idle(&c, 1500);
    ck_assert_int_eq(c.meter_ns, 2100);
    cedar_clock_step(&c, 3600000000000, 7200000000000); /* an hour: the product exceeds 64 bits */
    ck_assert_int_eq(cedar_clock_meter(&c, 1500 + 1800000000000), 2100 + 3600000000000);
    cedar_clock_step(&c, 0, 0);
    ck_assert_int_eq(cedar_clock_meter(&c, c.sched_ns), c.meter_ns);
    ck_assert_int_eq(cedar_clock_pace(1000, 20, 256), 6120000);
}
END_TEST

/* --- scheduler ---------------------------------------------------------------------------------------------------- */

START_TEST(sched_chunks_16_16_4) { /* spec vector: hit 96 of 100, window 32 -> start 64, chunk cap 16 */
    cedar_sched_limits limits = { .step_rows = 256, .step_seqs = 8, .chunk_rows = 16 };
    cedar_replay_rules rules = { .window = 32, .encoder = true, .encoder_rows = 32 };
    cedar_hit_plan hit = cedar_plan_hit(&rules, 96);
    cedar_sched_item item = { .pos = hit.start, .prompt_tokens = 100 };
    cedar_sched_slice s;
    ck_assert_uint_eq(item.pos, 64);
    const uint32_t rows[] = { 16, 16, 4 };
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(cedar_sched_plan(&limits, &item, 1, &s), 1);
        ck_assert_uint_eq(s.rows, rows[i]);
        ck_assert(!s.decode);
        item.pos += s.rows;
    }
    ck_assert_uint_eq(cedar_sched_plan(&limits, &item, 1, &s), 1);
    ck_assert(s.decode);
    ck_assert_uint_eq(cedar_plan_hit(&rules, 32).hit, 0); /* hit = window: not adopted */
    ck_assert_uint_eq(cedar_plan_hit(&rules, 48).start, 16);
}
END_TEST

START_TEST(sched_decodes_first_then_prompts_in_order) {
    cedar_sched_limits limits = { .step_rows = 20, .step_seqs = 8, .chunk_rows = 12 };
    const cedar_sched_item items[] = { { 0, 50, 0, 0 }, { 30, 30, 0, 0 }, { 5, 10, 8, 0 }, { 44, 40, 0, 0 },
                                       { 0, 9, 0, 0 } };
    cedar_sched_slice s[5];
    ck_assert_uint_eq(cedar_sched_plan(&limits, items, 5, s), 5);
    const cedar_sched_slice expect[] = {
        { 1, 1, true }, { 3, 1, true }, { 0, 12, false }, { 2, 3, false }, { 4, 3, false }
    };
    for (int i = 0; i < 5; i++) {
        ck_assert_uint_eq(s[i].item, expect[i].item);
        ck_assert_uint_eq(s[i].rows, expect[i].rows);
        ck_assert(s[i].decode == expect[i].decode);
    }
    limits.step_rows = 1;
    ck_assert_uint_eq(cedar_sched_plan(&limits, items, 5, s), 1);
    ck_assert(s[0].decode);
    limits = (cedar_sched_limits){ .step_rows = 20, .step_seqs = 3 };
    ck_assert_uint_eq(cedar_sched_plan(&limits, items, 5, s), 3);
    ck_assert_uint_eq(s[2].rows, 18);
    ck_assert_uint_eq(cedar_sched_plan(&limits, items, 0, s), 0);
}
END_TEST

/* Every decoding sequence gets its row before any gets drafts; prompts get what is left of the step. */
START_TEST(sched_gives_drafts_what_rows_are_left) {
    cedar_sched_limits limits = { .step_rows = 20, .step_seqs = 8 };
    const cedar_sched_item items[] = { { 30, 30, 0, 5 }, { 0, 50, 0, 0 }, { 44, 40, 0, 5 }, { 12, 12, 0, 1 } };
    const uint32_t step_rows[] = { 20, 14, 10, 4, 3, 2 };
    const uint32_t rows[][4] = { { 6, 6, 2, 6 }, { 6, 6, 2, 0 }, { 6, 3, 1, 0 }, { 2, 1, 1, 0 }, { 1, 1, 1, 0 },
                                 { 1, 1, 0, 0 } };
    for (int k = 0; k < 6; k++) {
        limits.step_rows = step_rows[k];
        cedar_sched_slice s[4] = { { 0 } };
        uint32_t n = cedar_sched_plan(&limits, items, 4, s);
        const uint32_t item[] = { 0, 2, 3, 1 };
        for (uint32_t i = 0; i < 4; i++) {
            ck_assert_uint_eq(i < n ? s[i].rows : 0, rows[k][i]);
            if (i < n) ck_assert_uint_eq(s[i].item, item[i]);
        }
    }
}
END_TEST

START_TEST(decode_rows_end_with_the_request_and_at_its_windows) {
    ck_assert_uint_eq(cedar_accept_rows(5, 100, 200, 0), 6);
    ck_assert_uint_eq(cedar_accept_rows(0, 100, 200, 0), 1);
    ck_assert_uint_eq(cedar_accept_rows(5, 196, 200, 0), 4);
    ck_assert_uint_eq(cedar_accept_rows(5, 199, 200, 0), 1);
    ck_assert_uint_eq(cedar_accept_rows(5, 100, 200, 104), 4);
    ck_assert_uint_eq(cedar_accept_rows(5, 104, 200, 104), 6);     /* reached: nothing lies ahead */
    ck_assert_uint_eq(cedar_accept_rows(5, 198, 200, 200), 2);
}
END_TEST

/* --- traces for the tests ----------------------------------------------------------------------------------------- */

static cedar_corpus *parse(const char *text) {
    cedar_corpus *c = NULL;
    cedar_corpus_opts o = { .format = CEDAR_TRACE_WEKA, .strict = true };
    cedar_err err = { 0 };
    ck_assert_msg(cedar_corpus_parse(text, strlen(text), "test", &o, &c, &err) == CEDAR_OK, "%s", err.msg);
    return c;
}

/* Three turns that continue each other (floor ids), one that cuts the context. */
#define CHAIN HEAD("chain", 8) TURN(0, 14, 6, 1, "1,2,3") "," TURN(3, 15, 2, 1, "1,2,3") "," \
    TURN(6, 29, 9, 1, "1,2,3,4,5,6,7") "," TURN(9, 11, 0, 1, "1,2") "]}"

static const cedar_prompt_rules plain = {
    .vocab = FAKE_VOCAB, .special = { 2, 5 }, .special_count = 2, .length_num = 1, .length_den = 1
};

static void fill_turn(const cedar_prompts *p, uint32_t turn, uint64_t salt, uint32_t count, int32_t *out) {
    cedar_turn_ref ref = { 0, 0, turn, salt };
    cedar_prompt_fill(p, &ref, 0, count, out);
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

START_TEST(prompts_continue_token_for_token) {
    cedar_corpus *c = parse(CHAIN);
    cedar_prompts *p = NULL;
    OK(cedar_prompts_new(c, &plain, &p, &failure));
    int32_t t[4][64];
    const uint32_t in[] = { 14, 15, 29, 11 }, out[] = { 6, 2, 9, 1 };
    for (uint32_t k = 0; k < 4; k++) fill_turn(p, k, 9, in[k] + out[k], t[k]);
    ck_assert_mem_eq(t[0], t[1], 15 * sizeof(int32_t)); /* prompt 0, and as much of answer 0 as prompt 1 keeps */
    ck_assert_mem_eq(t[1], t[2], 17 * sizeof(int32_t)); /* prompt 1 and answer 1 lie in prompt 2 */
    ck_assert_mem_ne(t[0] + 15, t[2] + 15, 5 * sizeof(int32_t)); /* answer 0 behind prompt 1 is its own */
    ck_assert_mem_eq(t[3], t[2], 8 * sizeof(int32_t)); /* the cut keeps two whole blocks */
    ck_assert_mem_ne(t[3] + 8, t[2] + 8, 3 * sizeof(int32_t));
    for (uint32_t k = 0; k < 4; k++)
        for (uint32_t i = 0; i < in[k] + out[k]; i++)
            ck_assert(t[k][i] >= 0 && t[k][i] < FAKE_VOCAB && t[k][i] != 2 && t[k][i] != 5);
    int32_t part[7];
    cedar_turn_ref ref = { 0, 0, 2, 9 };
    cedar_prompt_fill(p, &ref, 25, 7, part); /* any range gives the same tokens */
    ck_assert_mem_eq(part, t[2] + 25, sizeof part);
    cedar_prompts_free(p);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(salt_spares_the_system_segment) {
    cedar_corpus *c = parse(CHAIN);
    cedar_prompts *p = NULL;
    OK(cedar_prompts_new(c, &plain, &p, &failure));
    int32_t a[29], b[29], again[29];
    uint64_t salt0 = cedar_prompt_salt(&c->traces[0], 42, 0, 0);
    fill_turn(p, 2, salt0, 29, a);
    fill_turn(p, 2, cedar_prompt_salt(&c->traces[0], 42, 1, 0), 29, b);
    fill_turn(p, 2, salt0, 29, again);
    ck_assert_mem_eq(a, again, sizeof a);
    ck_assert_mem_eq(a, b, 8 * sizeof(int32_t)); /* system_tokens 8 = two blocks */
    ck_assert_mem_ne(a + 8, b + 8, 4 * sizeof(int32_t));
    ck_assert(salt0 != cedar_prompt_salt(&c->traces[0], 42, 0, 1));
    ck_assert(salt0 != cedar_prompt_salt(&c->traces[0], 43, 0, 0));
    cedar_prompts_free(p);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(lengths_scale_by_blocks) {
    cedar_corpus *c = parse(CHAIN);
    cedar_prompts *p = NULL;
    cedar_prompt_rules half = plain, odd = plain;
    half.length_den = 2;
    odd.length_den = 3;
    cedar_err err = { 0 };
    ck_assert_int_eq(cedar_prompts_new(c, &odd, &p, &err), CEDAR_E_ARG); /* 4-token blocks do not split in three */
    ck_assert_ptr_nonnull(strstr(err.msg, "length_scale 1/3"));
    ck_assert_int_eq(cedar_prompts_new(c, &half, &p, &err), CEDAR_OK);
    ck_assert_uint_eq(cedar_prompt_scale(&half, 29), 14);
    ck_assert_uint_eq(cedar_prompt_scale(&half, 1), 1);
    int32_t a[14], b[14];
    fill_turn(p, 1, 9, 7, a);
    fill_turn(p, 2, 9, 14, b);
    ck_assert_mem_eq(a, b, 7 * sizeof(int32_t));
    cedar_prompts_free(p);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(ceil_ids_and_64_bit_ids) {
    /* Last id covers a part of a block; the second trace's ids differ from the first's by 2^32. */
    cedar_corpus *c = parse(HEAD("ceil", 0) TURN(0, 10, 2, 1, "1,2,3") "," TURN(2, 10, 2, 1, "1,2,3") "," TURN(
        4, 14, 2, 1, "1,2,9,10") "," TURN(6, 8, 1, 1, "4294967297,2") "]}");
    cedar_prompts *p = NULL;
    OK(cedar_prompts_new(c, &plain, &p, &failure));
    int32_t t[4][16];
    for (uint32_t k = 0; k < 4; k++) fill_turn(p, k, 1, k == 2 ? 14 : k == 3 ? 8 : 10, t[k]);
    ck_assert_mem_eq(t[0], t[1], 10 * sizeof(int32_t));
    ck_assert_mem_eq(t[1], t[2], 10 * sizeof(int32_t)); /* the part is the front of the later block */
    ck_assert_mem_ne(t[3], t[0], 4 * sizeof(int32_t));  /* 2^32 + 1 is not 1 */
    ck_assert_mem_eq(t[3] + 4, t[0] + 4, 4 * sizeof(int32_t));
    ck_assert_uint_eq(cedar_prompt_theory(p, 0, 0, 0), 0);
    ck_assert_uint_eq(cedar_prompt_theory(p, 0, 0, 1), 3);
    ck_assert_uint_eq(cedar_prompt_theory(p, 0, 0, 2), 2);
    ck_assert_uint_eq(cedar_prompt_theory(p, 0, 0, 3), 1);
    cedar_prompts_free(p);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(theory_equals_the_published_statistics) {
    const char *const files[] = { "traces/kv-cache-tester/trace_0057.json", "traces/kv-cache-tester/trace_0291.json",
                                  "traces/kv-cache-tester-neon/trace_0009.json" };
    const uint64_t seen[] = { 1541, 0, 1064 }; /* blocks_hit_seen of traces/STATS_weka.csv; 0: compared below */
    for (int i = 0; i < 3; i++) {
        cedar_corpus *c = NULL;
        cedar_prompts *p = NULL;
        OK(cedar_corpus_load(&files[i], 1, &(cedar_corpus_opts){ .strict = true }, &c, &failure));
        OK(cedar_prompts_new(c, &plain, &p, &failure));
        uint64_t hits = 0;
        for (uint32_t s = 0; s < c->traces[0].stream_count; s++)
            for (uint32_t k = 0; k < c->traces[0].streams[s].turn_count; k++) hits += cedar_prompt_theory(p, 0, s, k);
        cedar_trace_stats stats;
        OK(cedar_trace_stats_make(&c->traces[0], &stats, &failure));
        ck_assert_uint_eq(hits, seen[i] ? seen[i] : stats.blocks_hit_seen);
        cedar_trace_stats_free(&stats);
        cedar_prompts_free(p);
        cedar_corpus_free(c);
    }
}
END_TEST

/* --- lanes -------------------------------------------------------------------------------------------------------- */

/* Root of three turns; two overlapping subagents after turn 0 that turn 1 waits for; a background one after turn 1. */
#define TREE HEAD("tree", 0) TURN(0, 8, 4, 1, "1,2") "," SUB(2, "a", TURN(0, 8, 4, 3, "20,21")) "," \
    SUB(3, "b", TURN(0, 8, 4, 3, "30,31") "," TURN(4, 12, 4, 1, "30,31,32")) "," TURN(9, 16, 4, 1, "1,2,3,4") "," \
    SUB(11, "c", TURN(0, 8, 4, 9, "40,41")) "," TURN(12, 20, 4, 1, "1,2,3,4,5") "]}"

typedef struct script { char text[4096]; size_t n; } script;

/* Plays lanes with a fixed service time per turn, as many at once as come, and writes down what starts when. */
static void play_lanes(const cedar_corpus *c, const cedar_lane_rules *rules, int64_t service_ns, script *out) {
    cedar_lanes *l = NULL;
    cedar_events q = { 0 }, ends = { 0 };
    OK(cedar_lanes_new(c, rules, &l, &failure));
    OK(cedar_lanes_start(l, &q, &failure));
    memset(out, 0, sizeof *out);
    while (cedar_lanes_next(l, &q) || cedar_events_first(&ends)) {
        const cedar_event *a = cedar_lanes_next(l, &q), *b = cedar_events_first(&ends);
        if (b && (!a || b->time_ns <= a->time_ns)) {
            cedar_event e = cedar_events_pop(&ends);
            bool drained;
            OK(cedar_lanes_ended(l, e.lane, e.stream, CEDAR_TURN_DONE, e.time_ns, &q, &drained, &failure));
            if (drained)
                out->n += (size_t)snprintf(out->text + out->n, sizeof out->text - out->n, "%g:end%u ",
                                           (double)e.time_ns / 1e9, e.lane);
            continue;
        }
        cedar_event e = cedar_events_pop(&q);
        bool started = false, send = false;
        cedar_turn_ref ref;
        cedar_phase phase;
        if (e.class_ == CEDAR_EVENT_LANE) OK(cedar_lanes_take(l, &e, &q, &started, &failure));
        else OK(cedar_lanes_turn(l, &e, &q, &send, &ref, &phase, &failure));
        if (send) {
            out->n += (size_t)snprintf(out->text + out->n, sizeof out->text - out->n, "%g:%u.%u.%u ",
                                       (double)e.time_ns / 1e9, e.lane, ref.stream, ref.turn);
            OK(cedar_events_push(
                &ends, (cedar_event){ .time_ns = e.time_ns + service_ns, .lane = e.lane, .stream = ref.stream },
                &failure));
        }
    }
    cedar_events_free(&q);
    cedar_events_free(&ends);
    cedar_lanes_free(l);
}

static const cedar_lane_rules one_lane = {
    .lanes = 1, .passes = 1, .time_scale_ppb = 1000000000, .think_cap_ns = 300000000000
};

START_TEST(subagents_overlap_and_are_joined) {
    cedar_corpus *c = parse(TREE);
    script s;
    play_lanes(c, &one_lane, 2000000000, &s);
    /* turn 0: 0..2. a (+1 s after the recorded end): 3..5. b (+2 s): 4..6, its second turn 1 s later: 7..9. Root turn 1
     * is due 9 - 1 = 8 s after the end of turn 0, at 10. c and turn 2: recorded 1 s and 2 s after turn 1's end. */
    ck_assert_str_eq(s.text, "0:0.0.0 3:0.1.0 4:0.2.0 7:0.2.1 10:0.0.1 13:0.3.0 14:0.0.2 16:end0 ");
    cedar_lane_rules fast = one_lane;
    fast.think_cap_ns = 1000000000; /* now the root would be due before b ends: it waits for the join */
    play_lanes(c, &fast, 2000000000, &s);
    ck_assert_str_eq(s.text, "0:0.0.0 3:0.1.0 3:0.2.0 6:0.2.1 8:0.0.1 11:0.3.0 11:0.0.2 13:end0 ");
    fast.turns_max = 1;
    play_lanes(c, &fast, 2000000000, &s);
    ck_assert_str_eq(s.text, "0:0.0.0 3:0.1.0 3:0.2.0 5:end0 ");
    cedar_corpus_free(c);
}
END_TEST

START_TEST(lanes_hold_their_tree_and_take_the_next) {
    cedar_corpus *c = parse(HEAD("a", 0) TURN(0, 8, 4, 1, "1,2") "," TURN(3, 8, 4, 1, "1,2") "]}\n"
                            HEAD("b", 0) TURN(0, 8, 4, 1, "1,2") "]}\n" HEAD("c", 0) TURN(0, 8, 4, 1, "1,2") "]}");
    ck_assert_uint_eq(c->trace_count, 3);
    cedar_lane_rules two = one_lane;
    two.lanes = 2;
    two.passes = 2;
    script s;
    play_lanes(c, &two, 1000000000, &s);
    ck_assert_str_eq(
        s.text,
        "0:0.0.0 0:1.0.0 1:end1 1:1.0.0 2:end1 2:1.0.0 3:0.0.1 4:end0 4:0.0.0 5:end0 5:1.0.1 5:0.0.0 6:end1 6:end0 ");
    cedar_lane_rules many = two;
    many.lanes = 9;
    many.passes = 1;
    play_lanes(c, &many, 1000000000, &s); /* more lanes than trees: the rest stays idle */
    ck_assert_str_eq(s.text, "0:0.0.0 0:1.0.0 0:2.0.0 1:end1 1:end2 3:0.0.1 4:end0 ");
    cedar_lanes *l = NULL;
    OK(cedar_lanes_new(c, &two, &l, &failure));
    ck_assert_uint_eq(cedar_lanes_planned(l), 8);
    cedar_lanes_free(l);
    cedar_corpus_free(c);
}
END_TEST

/* --- whole runs --------------------------------------------------------------------------------------------------- */

static const char real_traces[] = "traces/kv-cache-tester/trace_0057.json,traces/kv-cache-tester/trace_0103.json,"
                                  "traces/kv-cache-tester/trace_0291.json";
#define REAL "length_scale=1/64 page_tokens=4 turns_max=5 lanes=2 passes=2 step_tokens=64 "

START_TEST(same_scenario_same_run) {
    static const char *const replays[] = { "exact", "decoder", "encoder", "both" };
    char settings[256];
    snprintf(settings, sizeof settings, REAL "quality=true quality_every=3 replay=%s", replays[_i]);
    cedar_run_result a, b, c;
    journal *x = run_ok(real_traces, settings, NULL, &a), *y = run_ok(real_traces, settings, NULL, &b);
    ck_assert_str_eq(x->rows, y->rows);
    ck_assert_uint_eq(a.event_hash, b.event_hash);
    ck_assert_str_ne(x->timing, y->timing); /* measured durations do differ */
    ck_assert_uint_gt(x->requests, 25);
    ck_assert_uint_gt(x->hits, 0);
    ck_assert_uint_gt(x->quality, 50);
    if (_i == 0 || _i == 1) ck_assert_double_eq(x->kl_sum, 0); /* the fake's decoder replay changes nothing */
    else ck_assert_double_gt(x->kl_sum, 0);
    ck_assert_int_eq(x->depth_max > 0, _i >= 2); /* replays build on replays */
    /* clock recorded: equal in everything, timing included */
    cedar_recorded rec = { x->step_ns, x->steps, a.event_hash };
    snprintf(settings, sizeof settings, REAL "quality=true quality_every=3 replay=%s clock=recorded", replays[_i]);
    journal *z = run_ok(real_traces, settings, &rec, &c);
    ck_assert_str_eq(x->rows, z->rows);
    ck_assert_str_eq(x->timing, z->timing);
    ck_assert_uint_eq(a.event_hash, c.event_hash);
    ck_assert_double_eq(a.ttft_p90_ms, c.ttft_p90_ms);
    journal_free(x);
    journal_free(y);
    journal_free(z);
}
END_TEST

START_TEST(pace_measured_repeats_from_recorded_durations) {
    cedar_run_result a, b;
    journal *x = run_ok(real_traces, REAL "pace=measured", NULL, &a);
    cedar_recorded rec = { x->step_ns, x->steps, a.event_hash };
    journal *y = run_ok(real_traces, REAL "pace=measured clock=recorded", &rec, &b);
    ck_assert_str_eq(x->rows, y->rows);
    ck_assert_str_eq(x->timing, y->timing);
    journal_free(x);
    journal_free(y);
}
END_TEST

START_TEST(a_seed_changes_prompts_only) {
    cedar_run_result a, b;
    journal *x = run_ok(real_traces, REAL "seed=1", NULL, &a), *y = run_ok(real_traces, REAL "seed=2", NULL, &b);
    ck_assert(a.event_hash != b.event_hash);
    ck_assert_uint_eq(x->in_tokens, y->in_tokens);
    journal_free(x);
    journal_free(y);
}
END_TEST

START_TEST(forced_answers_are_hit_by_the_next_prompt) {
    /* 14 + 6 tokens: 15 agree with prompt 1; 15 + 2 with prompt 2, the page boundary below 17 - 1 fed is 16. */
    cedar_run_result a;
    journal *l = run_ok(CHAIN, "lanes=1 page_tokens=4 replay=exact", NULL, &a);
    ck_assert_ptr_nonnull(strstr(l->rows, "0.0 in 14 out 6 hit 0/0"));
    ck_assert_ptr_nonnull(strstr(l->rows, "0.2 in 29 out 9 hit 16/16"));
    ck_assert_ptr_nonnull(strstr(l->rows, "0.3 in 11 out 1 hit 0/8")); /* context shrinks: no windows stored at 8 */
    ck_assert_int_eq(l->misses[3], CEDAR_MISS_NO_WINDOWS);
    journal_free(l);
    l = run_ok(CHAIN, "lanes=1 page_tokens=4 replay=encoder encoder_rows=4", NULL, &a);
    ck_assert_ptr_nonnull(strstr(l->rows, "0.1 in 15 out 2 hit 12/12 replay 4"));
    ck_assert_ptr_nonnull(strstr(l->rows, "0.2 in 29 out 9 hit 16/16 replay 4"));
    ck_assert_ptr_nonnull(strstr(l->rows, "0.3 in 11 out 1 hit 8/8 replay 4"));
    journal_free(l);
    l = run_ok(CHAIN, "lanes=1 page_tokens=4 replay=encoder", NULL, &a); /* window 8: a hit of 8 is short */
    ck_assert_ptr_nonnull(strstr(l->rows, "0.3 in 11 out 1 hit 0/8 replay 0"));
    ck_assert_int_eq(l->misses[3], CEDAR_MISS_SHORT_HIT);
    journal_free(l);
    l = run_ok(CHAIN, "lanes=1 page_tokens=4 prefix_cache=false", NULL, &a);
    ck_assert_uint_eq(l->hits, 0);
    ck_assert_int_eq(l->misses[1], CEDAR_MISS_OFF);
    journal_free(l);
    l = run_ok(CHAIN, "lanes=1 page_tokens=4 continuation=greedy", NULL,
               &a); /* own answers do not continue the trace */
    ck_assert_uint_eq(l->out_tokens, 18);
    ck_assert_ptr_nonnull(strstr(l->rows, "0.2 in 29 out 9 hit 12/12")); /* turn 1's prompt, but not its answer */
    journal_free(l);
}
END_TEST

START_TEST(the_shadow_follows_cuts_and_divergence) {
    /* Turn 1 leaves turn 0's answer after a token, turn 3 cuts the context: the shadow goes back or starts over. */
    cedar_run_result a;
    journal *l = run_ok(CHAIN, "lanes=1 page_tokens=4 replay=exact quality=true", NULL, &a);
    ck_assert_uint_eq(l->quality, 6 + 2 + 9 + 1);
    ck_assert_double_eq(l->kl_sum, 0);
    journal_free(l);
}
END_TEST

START_TEST(overflow_ends_the_session_and_the_lane_goes_on) {
    static const char two[] = HEAD("long", 0)
        TURN(0, 8, 4, 1, "1,2") "," TURN(3, 200, 4, 1, "1,2") "," TURN(6, 9, 4, 1, "1,2") "]}\n" HEAD("next", 0)
            TURN(0, 8, 4, 1, "1,2") "]}";
    cedar_run_result a;
    journal *l = run_ok(two, "lanes=1 context_max=64 page_tokens=4", NULL, &a);
    ck_assert_str_eq(l->session_ends, "overflow finished ");
    ck_assert_uint_eq(l->requests, 3);
    ck_assert_uint_eq(l->errors, 1);
    ck_assert_ptr_nonnull(
        strstr(l->error, "context overflow: 200 prompt and 4 answer tokens exceed the context of 64"));
    ck_assert_uint_eq(l->in_tokens, 16); /* error rows add no tokens */
    journal_free(l);
}
END_TEST

START_TEST(what_never_fits_is_an_error_row) {
    cedar_run_result a;
    journal *l = run_ok(CHAIN, "lanes=1 page_tokens=4 kv_pages=6", NULL, &a); /* 24 tokens; turn 2 needs 38 */
    ck_assert_str_eq(l->session_ends, "finished ");
    ck_assert_uint_eq(l->errors, 1);
    ck_assert_ptr_nonnull(strstr(l->error, "never fits: 38 tokens need 10 KV pages, the pool has 6"));
    journal_free(l);
}
END_TEST

START_TEST(a_tight_pool_neither_hangs_nor_leaks) {
    cedar_run_result a;
    for (int pages = 60; pages <= 240; pages += 60) {
        char settings[256];
        snprintf(settings, sizeof settings, "length_scale=1/64 page_tokens=4 turns_max=4 lanes=3 kv_pages=%d replay=%s",
                 pages, pages % 120 ? "exact" : "both");
        journal *l = run_ok(real_traces, settings, NULL, &a);
        journal_free(l);
    }
}
END_TEST

START_TEST(limits_stop_the_run) {
    cedar_run_result a;
    journal *l = run_ok(real_traces, REAL "requests_max=7", NULL, &a);
    ck_assert_uint_eq(l->requests, 7);
    ck_assert_ptr_nonnull(strstr(l->session_ends, "cut"));
    journal_free(l);
    l = run_ok(CHAIN, "lanes=1 page_tokens=4 duration_s=4", NULL, &a); /* turns are due at 0, about 2, 4, 6 s */
    ck_assert_uint_eq(l->requests, 2);
    ck_assert_str_eq(l->session_ends, "cut ");
    journal_free(l);
}
END_TEST

START_TEST(batches_stay_within_their_limits) {
    cedar_run_result a;
    fake_entries_max = 0;
    journal *l = run_ok(real_traces, REAL "lanes=3 batch_max=2 time_scale=0", NULL, &a);
    ck_assert_uint_eq(fake_entries_max, 2);
    ck_assert_ptr_null(strstr(l->rows, "run 3 pages"));
    journal_free(l);
}
END_TEST

START_TEST(no_progress_is_noticed) {
    journal *l = calloc(1, sizeof *l);
    cedar_run_result a;
    cedar_err err = { 0 };
    int64_t live = cedar_mem_live();
    fake_hidden_pages = 1 << 20; /* pages that never come free */
    ck_assert_int_eq(play_run(CHAIN, "page_tokens=4", l, NULL, &a, &err), CEDAR_E_LIVENESS);
    fake_hidden_pages = 0;
    ck_assert_msg(strstr(err.msg, "no progress is possible"), "%s", err.msg);
    ck_assert_str_eq(l->status, "failed");
    ck_assert_int_eq(cedar_mem_live(), live);
    journal_free(l);
}
END_TEST

START_TEST(steps_may_be_short) {
    cedar_run_result a;
    journal *l = run_ok(real_traces, REAL "pace_step_us=1 pace_row_us=0 time_scale=0", NULL, &a);
    journal_free(l);
}
END_TEST

START_TEST(prompt_scores_cover_every_new_row) {
    cedar_run_result a;
    journal *l = run_ok(CHAIN, "lanes=1 page_tokens=4 replay=exact quality=true prompt_scores=true", NULL, &a);
    ck_assert_uint_eq(l->quality, 14 + 5 + 15 + 1 + (29 - 16) + 8 + 11); /* fed rows: nothing is hit but 16 of turn 2 */
    ck_assert_double_eq(l->kl_sum, 0);
    journal_free(l);
}
END_TEST

START_TEST(stop_ends_between_steps) {
    journal *l = calloc(1, sizeof *l);
    cedar_run_result a;
    cedar_err err = { 0 };
    int64_t live = cedar_mem_live();
    l->stop_at_step = 5;
    ck_assert_int_eq(play_run(real_traces, REAL, l, NULL, &a, &err), CEDAR_E_INTERRUPT);
    ck_assert_str_eq(l->status, "interrupted");
    ck_assert_str_eq(a.status, "interrupted");
    ck_assert_uint_eq(l->steps, 5);
    ck_assert_uint_ge(l->unfinished, 1); /* counted, and written as rows */
    ck_assert_int_eq(cedar_mem_live(), live);
    journal_free(l);
}
END_TEST

/* Wherever the wish to stop arrives, a replay of what was recorded reaches the same events. */
START_TEST(stopped_runs_replay_to_the_same_events) {
    int stopped = 0;
    for (int row = 1; row < 200; row++) {
        journal *l = calloc(1, sizeof *l), *again = calloc(1, sizeof *l);
        cedar_run_result a, b;
        cedar_err err = { 0 };
        l->stop_at_row = row;
        cedar_status st = play_run(real_traces, REAL "requests_max=12", l, NULL, &a, &err);
        cedar_recorded rec = { l->step_ns, l->steps, 0 };
        again->stop_at_step = (int)l->steps;
        if (st == CEDAR_E_INTERRUPT && l->steps) {
            stopped++;
            ck_assert_int_eq(play_run(real_traces, REAL "requests_max=12 clock=recorded", again, &rec, &b, &err),
                             CEDAR_E_INTERRUPT);
            ck_assert_msg(a.event_hash == b.event_hash, "stopped after row %d, step %d", row, (int)l->steps);
            ck_assert(strcmp(l->rows, again->rows) == 0);
        }
        journal_free(l);
        journal_free(again);
    }
    ck_assert_int_ge(stopped, 50);
}
END_TEST

START_TEST(failures_are_written_down_and_leak_nothing) {
    cedar_run_result a;
    cedar_err err = { 0 };
    int64_t live = cedar_mem_live();
    journal *l = calloc(1, sizeof *l);
    fake_fail_step = 3;
    ck_assert_int_eq(play_run(real_traces, REAL, l, NULL, &a, &err), CEDAR_E_IO);
    fake_fail_step = 0;
    ck_assert_str_eq(l->status, "failed");
    ck_assert_int_eq(cedar_mem_live(), live);
    journal_free(l);
    l = calloc(1, sizeof *l);
    l->fail_at_step = 4; /* the database fails: the run stops at once */
    ck_assert_int_eq(play_run(real_traces, REAL, l, NULL, &a, &err), CEDAR_E_DB);
    ck_assert_str_eq(l->status, "");
    ck_assert_int_eq(cedar_mem_live(), live);
    journal_free(l);
}
END_TEST

START_TEST(no_allocation_failure_leaks) {
    int64_t live = cedar_mem_live();
    for (int64_t n = 1;; n += n < 150 ? 1 : 7) {
        journal *l = calloc(1, sizeof *l);
        cedar_run_result a;
        cedar_err err = { 0 };
        /* the options are made before the count starts */
        char path[] = "/tmp/cedar-test-XXXXXX.json";
        int fd = mkstemps(path, 5);
        ck_assert_int_eq(write(fd, CHAIN, strlen(CHAIN)), (ssize_t)strlen(CHAIN));
        close(fd);
        cedar_run_opts *o = NULL;
        OK(cedar_opts_new(&o, &failure));
        OK(cedar_opts_set(o, "model", "tests/golden/tiny-s1", &failure));
        OK(cedar_opts_set(o, "trace", path, &failure));
        OK(cedar_opts_set(o, "page_tokens", "4", &failure));
        OK(cedar_opts_set(o, "quality", "true", &failure));
        l->to = open_memstream(&l->rows, &l->rows_bytes);
        l->timing_to = open_memstream(&l->timing, &l->timing_bytes);
        cedar_observer obs = { .self = l,
                               .run_begin = on_run,
                               .session = on_session,
                               .request = on_request,
                               .step = on_step,
                               .quality = on_quality,
                               .run_end = on_end };
        cedar_run_host host = { .observer = &obs, .data_dir = "." };
        cedar_mem_fail_at(n);
        cedar_status st = cedar_run(o, 1, &host, &a, &err);
        cedar_mem_fail_at(0);
        cedar_opts_free(o);
        unlink(path);
        fclose(l->to);
        fclose(l->timing_to);
        journal_free(l);
        ck_assert_int_eq(cedar_mem_live(), live);
        if (st == CEDAR_OK) {
            ck_assert_int_gt(n, 40);
            break;
        }
        ck_assert_msg(st == CEDAR_E_OOM, "allocation %ld: %s", (long)n, err.msg);
    }
}
END_TEST

static void refused(const char *settings, cedar_status code, const char *words) {
    journal *l = calloc(1, sizeof *l);
    cedar_run_result a;
    cedar_err err = { 0 };
    ck_assert_int_eq(play_run(CHAIN, settings, l, NULL, &a, &err), code);
    ck_assert_msg(strstr(err.msg, words), "%s", err.msg);
    ck_assert_uint_eq(l->steps, 0);
    journal_free(l);
}

START_TEST(impossible_options_are_refused) {
    refused("quality=true continuation=greedy", CEDAR_E_ARG, "needs continuation = \"forced\"");
    refused("draft_tokens=6", CEDAR_E_ARG, "the drafter of fake makes 5 tokens");
    refused("draft_tokens=2 acceptance_length=3.5", CEDAR_E_ARG, "makes 1 to 3 tokens");
    refused("acceptance_length=3.5", CEDAR_E_ARG, "makes 1 to 1 tokens");
    refused("draft_tokens=2 acceptance_length=0.5", CEDAR_E_ARG, "makes 1 to 3 tokens");
    refused("draft_tokens=2 acceptance_length=2 continuation=greedy", CEDAR_E_ARG, "needs continuation = forced");
    refused("draft_tokens=5 step_tokens=5", CEDAR_E_ARG, "leaves no room");
    refused("draft_tokens=5 clock=modelled hardware=h200", CEDAR_E_ARG, "no price for drafts");
    refused("clock=recorded", CEDAR_E_ARG, "cedar replay");
    refused("backend=cuda", CEDAR_E_UNSUPPORTED, "not in this build");
    refused("model=nonesuch", CEDAR_E_IO, "scenarios/models/nonesuch.json");
    refused("trace=traces/none.json", CEDAR_E_IO, "traces/none.json");
    refused("length_scale=1/64", CEDAR_E_ARG, "whole number of tokens");
}
END_TEST

START_TEST(recorded_runs_notice_a_missing_step) {
    journal *l = calloc(1, sizeof *l);
    cedar_run_result a;
    cedar_err err = { 0 };
    int64_t ns[2] = { 1000, 1000 };
    cedar_recorded rec = { ns, 2, 0 };
    ck_assert_int_eq(play_run(CHAIN, "page_tokens=4 clock=recorded", l, &rec, &a, &err), CEDAR_E_DIVERGED);
    ck_assert_msg(strstr(err.msg, "step 3 has no recorded duration"), "%s", err.msg);
    journal_free(l);
}
END_TEST

/* --- divergences -------------------------------------------------------------------------------------------------- */

START_TEST(divergences_of_known_distributions) {
    /* P = (1/2, 1/4, 1/4), Q = (1/4, 1/2, 1/4): KL = ln(2)/4 both ways; M = (3/8, 3/8, 1/4), so
     * JS = ln(4/3)/2 + ln(2/3)/4. */
    const float p[] = { 0.6931471806f, 0, 0 }, q[] = { 0, 0.6931471806f, 0 };
    cedar_divergence d;
    cedar_divergence_make(p, q, 3, 0, NULL, &d);
    ck_assert_double_eq_tol(d.kl_pq, 0.1732867951, 1e-7);
    ck_assert_double_eq_tol(d.kl_qp, 0.1732867951, 1e-7);
    ck_assert_double_eq_tol(d.js, 0.0424747592, 1e-7);
    ck_assert_double_eq_tol(d.logp_p, -0.6931471806, 1e-7);
    ck_assert_double_eq_tol(d.logp_q, -1.3862943611, 1e-7);
    ck_assert_double_eq_tol(d.top1_prob_p, 0.5, 1e-7);
    ck_assert_double_eq_tol(d.margin_p, 0.25, 1e-7);
    ck_assert_double_eq_tol(d.ratio_max, 0.6931471806, 1e-7);
    ck_assert(!d.top1_same);
    cedar_divergence_make(p, p, 3, 1, NULL, &d);
    ck_assert(d.kl_pq == 0 && d.kl_qp == 0 && d.js == 0 && d.ratio_max == 0 && d.top1_same);
    const float far[] = { 0, -2000, 100 }, other[] = { 0, -1000, 99 }; /* no overflow, no NaN */
    cedar_divergence_make(far, other, 3, 1, NULL, &d);
    ck_assert(isfinite(d.kl_pq) && isfinite(d.kl_qp) && isfinite(d.js));
}
END_TEST

static double percentile_of(cedar_samples *s, double p) {
    double v;
    OK(cedar_samples_percentile(s, p, &v, &failure));
    return v;
}

START_TEST(percentiles_are_linear_between_ranks) {
    cedar_samples s = { 0 };
    ck_assert(isnan(percentile_of(&s, 50)));
    for (int i = 10; i > 0; i--) OK(cedar_samples_add(&s, i, &failure));
    ck_assert_double_eq_tol(percentile_of(&s, 90), 9.1, 1e-12);
    ck_assert_double_eq_tol(percentile_of(&s, 50), 5.5, 1e-12);
    ck_assert_double_eq(percentile_of(&s, 100), 10);
    ck_assert_double_eq_tol(cedar_samples_mean(&s), 5.5, 1e-12);
    cedar_samples_free(&s);
}
END_TEST

int main(void) {
    Suite *s = suite_create("sim");
    TCase *parts = tcase_create("parts"), *runs = tcase_create("runs");
    tcase_set_timeout(parts, 20);
    tcase_set_timeout(runs, 60);
    tcase_add_test(parts, events_come_in_order);
    tcase_add_test(parts, acceptance_has_its_mean_and_least_variance);
    tcase_add_test(parts, clocks_map_inside_steps);
    tcase_add_test(parts, sched_chunks_16_16_4);
    tcase_add_test(parts, sched_gives_drafts_what_rows_are_left);
    tcase_add_test(parts, decode_rows_end_with_the_request_and_at_its_windows);
    tcase_add_test(parts, sched_decodes_first_then_prompts_in_order);
    tcase_add_test(parts, prompts_continue_token_for_token);
    tcase_add_test(parts, salt_spares_the_system_segment);
    tcase_add_test(parts, lengths_scale_by_blocks);
    tcase_add_test(parts, ceil_ids_and_64_bit_ids);
    tcase_add_test(parts, theory_equals_the_published_statistics);
    tcase_add_test(parts, subagents_overlap_and_are_joined);
    tcase_add_test(parts, lanes_hold_their_tree_and_take_the_next);
    tcase_add_test(parts, divergences_of_known_distributions);
    tcase_add_test(parts, percentiles_are_linear_between_ranks);
    tcase_add_loop_test(runs, same_scenario_same_run, 0, 4);
    tcase_add_test(runs, pace_measured_repeats_from_recorded_durations);
    tcase_add_test(runs, a_seed_changes_prompts_only);
    tcase_add_test(runs, forced_answers_are_hit_by_the_next_prompt);
    tcase_add_test(runs, the_shadow_follows_cuts_and_divergence);
    tcase_add_test(runs, overflow_ends_the_session_and_the_lane_goes_on);
    tcase_add_test(runs, what_never_fits_is_an_error_row);
    tcase_add_test(runs, a_tight_pool_neither_hangs_nor_leaks);
    tcase_add_test(runs, limits_stop_the_run);
    tcase_add_test(runs, batches_stay_within_their_limits);
    tcase_add_test(runs, no_progress_is_noticed);
    tcase_add_test(runs, steps_may_be_short);
    tcase_add_test(runs, prompt_scores_cover_every_new_row);
    tcase_add_test(runs, stop_ends_between_steps);
    tcase_add_test(runs, stopped_runs_replay_to_the_same_events);
    tcase_add_test(runs, failures_are_written_down_and_leak_nothing);
    tcase_add_test(runs, no_allocation_failure_leaks);
    tcase_add_test(runs, impossible_options_are_refused);
    tcase_add_test(runs, recorded_runs_notice_a_missing_step);
    suite_add_tcase(s, parts);
    suite_add_tcase(s, runs);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
