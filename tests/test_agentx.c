/* The AgentX replay rules: start points, primers, warm-up, barriers, idle caps, recycling, validity, the speed floor;
 * and one named test for each public bug report about such tools that concerns them.
 *
 * Reports, by number, and where they are tested (here unless another suite is named):
 *    1 answers of 0 tokens                     bug01        14 survivor bias                  bug14
 *    2 last block whole or partial             bug02        15 reader slower than producer    no queue between them
 *    3 block count against length              test_traces  16 reasoning deltas               waits for HTTP targets
 *    4 finished root, living subagent          bug04        17 several tokens per chunk       bug17
 *    5 overflow never counted, phase hangs     bug05        18 clock set back                 bug18
 *    6 64-bit ids cut                          test_sim     19 requested for produced length  bug19
 *    7 time limit ignored                      bug07        20 answers of 0 and 1 tokens      bug20
 *    8 idle system never moves on              bug08        21, 22 parsers                    test_traces
 *    9 block size of trace and cache           bug09        23 frozen server                  waits for HTTP targets
 *   10 wall clock in results                   bug10        24 units of formats               test_traces
 *   11 time-outs as completions                bug11        25 frontier                       test_score
 *   12 compacted contexts                      bug12        26 interleaved streams            bug26
 *   13 lossy conversion                        test_traces  27 parallel subagents             bug27
 *   28 memory over a million requests          test_swarm */
#include <check.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#include "fake_engine.h"
#include "journal.h"
#include "sim/start.h"
#include "sim/sim_int.h"

static const int64_t second = 1000000000;

static cedar_corpus *parse(const char *text) {
    cedar_corpus *c = NULL;
    cedar_corpus_opts o = { .format = CEDAR_TRACE_WEKA, .strict = true };
    cedar_err err = { 0 };
    ck_assert_msg(cedar_corpus_parse(text, strlen(text), "test", &o, &c, &err) == CEDAR_OK, "%s", err.msg);
    return c;
}

/* --- lanes alone -------------------------------------------------------------------------------------------------- */

static cedar_lane_rules plain_rules(uint32_t lanes) {
    return (cedar_lane_rules){ .lanes = lanes, .passes = 1, .seed = 42, .time_scale_ppb = 1000000000,
                               .think_cap_ns = 31536000 * second };
}

typedef struct script {
    char text[8192];
    size_t n;
    uint32_t live_max;
    uint64_t forced, passed_over, sessions, ends;
    int64_t profile_ns;         /* -1: never */
} script;

static void tell(script *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void tell(script *out, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (out->n < sizeof out->text) out->n += (size_t)vsnprintf(out->text + out->n, sizeof out->text - out->n, fmt, ap);
    va_end(ap);
}

/* Plays lanes with a fixed service time per request, as many at once as come, until `until_ns` after the warm-up. A
 * turn is written "time:lane.stream.turn", with p behind primers and w behind warm-up requests; "profile" marks the
 * phase. */
static void play(const cedar_corpus *c, const cedar_lane_rules *rules, int64_t service_ns, int64_t until_ns,
                 script *out) {
    cedar_lanes *l = NULL;
    cedar_events q = { 0 }, ends = { 0 };
    int64_t now = 0;
    memset(out, 0, sizeof *out);
    out->profile_ns = -1;
    OK(cedar_lanes_new(c, rules, &l, &failure));
    if (!l->warming) out->profile_ns = 0;
    OK(cedar_lanes_start(l, &q, &failure));
    for (;;) {
        const cedar_event *a = cedar_lanes_next(l, &q), *b = cedar_events_first(&ends);
        if (!a && !b) {
            if (!l->warming) break;
            out->profile_ns = now;
            tell(out, "%g:profile ", (double)now / 1e9);
            OK(cedar_lanes_profile(l, now, &q, &failure));
            continue;
        }
        if (b && (!a || b->time_ns <= a->time_ns)) {
            cedar_event e = cedar_events_pop(&ends);
            bool drained;
            now = e.time_ns;
            OK(cedar_lanes_ended(l, e.lane, e.stream, CEDAR_TURN_DONE, now, &q, &drained, &failure));
            out->ends += drained;
            if (drained) tell(out, "%g:end%u ", (double)now / 1e9, e.lane);
            continue;
        }
        if (!b) cedar_lanes_idle(l, now, &q);
        cedar_event e = cedar_events_pop(&q);
        ck_assert_int_ge(e.time_ns, now);
        if (until_ns && out->profile_ns >= 0 && e.time_ns - out->profile_ns >= until_ns) {
            cedar_lanes_close(l);
            cedar_events_clear(&q);
            continue;
        }
        now = e.time_ns;
        bool started, send = false;
        cedar_turn_ref ref;
        cedar_phase phase;
        if (e.class_ == CEDAR_EVENT_LANE) OK(cedar_lanes_take(l, &e, &q, &started, &failure));
        else OK(cedar_lanes_turn(l, &e, &q, &send, &ref, &phase, &failure));
        uint32_t live = 0;
        for (uint32_t i = 0; i < rules->lanes; i++) live += l->lanes[i].live;
        if (live > out->live_max) out->live_max = live;
        if (!send) continue;
        const char *mark = phase == CEDAR_PHASE_PRIMER ? "p" : phase == CEDAR_PHASE_WARMUP ? "w" : "";
        tell(out, "%g:%u.%u.%u%s ", (double)now / 1e9, e.lane, ref.stream, ref.turn, mark);
        OK(cedar_events_push(&ends, (cedar_event){ .time_ns = now + service_ns, .lane = e.lane, .stream = ref.stream },
                             &failure));
    }
    out->forced = l->forced;
    out->passed_over = l->passed_over;
    out->sessions = (uint64_t)l->sessions;
    cedar_events_free(&q);
    cedar_events_free(&ends);
    cedar_lanes_free(l);
}

/* Ten turns, one every 10 s, each of 1 s. */
#define T10(t) TURN(t, 8, 4, 1, "1,2")
#define TENS(id) HEAD(id, 0) T10(0) "," T10(10) "," T10(20) "," T10(30) "," T10(40) "," T10(50) "," T10(60) "," \
    T10(70) "," T10(80) "," T10(90) "]}"

START_TEST(lanes_start_in_the_window_with_primers) {
    /* t* lies between 22.5 and 67.5 s. The turn before it is the primer, the next one starts the profiling phase. */
    cedar_corpus *c = parse(TENS("a"));
    cedar_lane_rules r = plain_rules(1);
    r.start_lo = 0.25;
    r.start_hi = 0.75;
    uint32_t next;
    cedar_start start;
    OK(cedar_start_draw(&c->traces[0], 42, 0, 0.25, 0.75, &next, &start, &failure));
    ck_assert(start.t_star_s >= 22.5 && start.t_star_s < 67.5);
    script s;
    char want[64];
    play(c, &r, second, 0, &s);
    snprintf(want, sizeof want, "0:0.0.%up 1:profile 1:0.0.%u 11:0.0.%u ", next - 1, next, next + 1);
    ck_assert_msg(strncmp(s.text, want, strlen(want)) == 0, "%s instead of %s", s.text, want);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(lanes_above_the_pool_wrap) {
    cedar_corpus *c = parse(TENS("a"));
    cedar_lane_rules r = plain_rules(3);
    r.start_hi = 0.75;
    r.recycle = true;
    script s;
    play(c, &r, second, 5 * second, &s);
    ck_assert_uint_eq(s.live_max, 3);
    ck_assert_uint_eq(s.sessions, 3);
    cedar_trace *t = &c->traces[0];
    ck_assert(cedar_prompt_salt(t, 42, 0, 0) != cedar_prompt_salt(t, 42, 1, 0)); /* same trace, distinct markers */
    cedar_corpus_free(c);
}
END_TEST

START_TEST(spread_primers_reach_the_start_together) {
    /* With the window at 1/2: t* = 45 s in both traces; a's primer was recorded 5 s before it, b's 2 s. */
    cedar_corpus *c = parse(HEAD("a", 0) T10(0) "," T10(40) "," T10(50) "," T10(90) "]}\n"
                            HEAD("b", 0) T10(0) "," T10(43) "," T10(51) "," T10(90) "]}");
    cedar_lane_rules r = plain_rules(2);
    r.start_lo = r.start_hi = 0.5;
    script s;
    play(c, &r, second, 0, &s);
    ck_assert_msg(strncmp(s.text, "0:0.0.1p 3:1.0.1p 4:profile 4:0.0.2 4:1.0.2 ", 44) == 0, "%s", s.text);
    r.tree_cap_ns = 3 * second;                             /* leads are clamped to the idle cap */
    play(c, &r, second, 0, &s);
    ck_assert_msg(strncmp(s.text, "0:0.0.1p 1:1.0.1p 2:profile ", 28) == 0, "%s", s.text);
    r.burst = true;
    play(c, &r, second, 0, &s);
    ck_assert_msg(strncmp(s.text, "0:0.0.1p 0:1.0.1p 1:profile ", 28) == 0, "%s", s.text);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(each_lane_warms_up_with_exactly_its_share) {
    cedar_corpus *c = parse(TENS("a") "\n" TENS("b"));
    cedar_lane_rules r = plain_rules(2);
    r.start_lo = r.start_hi = 0.5;
    r.warmup_requests = 3;
    script s;
    play(c, &r, second, 0, &s);                             /* t* = 45: primer 4, then 5, 6, 7 without delays */
    ck_assert_str_eq(s.text, "0:0.0.4p 0:1.0.4p 1:0.0.5w 1:1.0.5w 2:0.0.6w 2:1.0.6w 3:0.0.7w 3:1.0.7w 4:profile "
                             "4:0.0.8 4:1.0.8 14:0.0.9 14:1.0.9 15:end0 15:end1 ");
    r.warmup_requests = 7;                                  /* more than is left of the tree: the next one helps out */
    r.lanes = 1;
    r.recycle = true;
    play(c, &r, second, 3 * second, &s);
    ck_assert_str_eq(s.text, "0:0.0.4p 1:0.0.5w 2:0.0.6w 3:0.0.7w 4:0.0.8w 5:0.0.9w 6:end0 6:0.0.0w 7:0.0.1w "
                             "8:profile 8:0.0.2 ");
    cedar_corpus_free(c);
}
END_TEST

/* A subagent from 2 to 40 s beside a root that goes on; a second one that starts at 60. */
#define FORKED HEAD("f", 0) TURN(0, 8, 4, 1, "1,2") "," SUB(2, "a", T10(0) "," T10(10) "," T10(20) "," T10(37)) "," \
    TURN(5, 8, 4, 1, "1,2") "," TURN(30, 8, 4, 1, "1,2") "," TURN(50, 8, 4, 1, "1,2") "," SUB(60, "b", T10(0)) "," \
    TURN(100, 8, 4, 1, "1,2") "]}"

START_TEST(primers_and_hand_over_of_living_subagents) {
    /* t* = 25: root turn 2 (30) and a's turn 3 (39) come next; their primers are root 1 (5) and a 2 (22). The join of a
     * is root turn 3 (50). After the hand-over root 2 starts at once, a's turn 9 s later, as recorded. */
    cedar_corpus *c = parse(FORKED);
    cedar_lane_rules r = plain_rules(1);
    r.start_lo = r.start_hi = 0.25;
    ck_assert_int_eq(c->traces[0].streams[1].join_turn, 3);
    script s;
    play(c, &r, second, 0, &s);
    ck_assert_msg(strncmp(s.text, "0:0.0.1p 17:0.1.2p 18:profile 18:0.0.2 27:0.1.3 ", 48) == 0, "%s", s.text);
    /* root 3 was due 19 s after root 2's end, at 38; a ended at 28. */
    ck_assert_msg(strstr(s.text, " 38:0.0.3 ") != NULL, "%s", s.text);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(bug04_a_finished_root_keeps_its_lane_while_a_subagent_lives) {
    /* The root's last turn lies at 5 s, the background subagent goes on to 100: t* = 50 leaves the subagent only. */
    cedar_corpus *c = parse(HEAD("g", 0) TURN(0, 8, 4, 1, "1,2") "," SUB(2, "a", T10(0) "," T10(30) "," T10(60) ","
                            T10(98)) "," TURN(5, 8, 4, 1, "1,2") "]}\n" HEAD("h", 0) TURN(0, 8, 4, 1, "1,2") "]}");
    cedar_lane_rules r = plain_rules(1);
    r.start_lo = r.start_hi = 0.5;
    r.recycle = true;
    script s;
    play(c, &r, second, 45 * second, &s);
    /* primer 1 (32), then turns 2 (62) and 3 (100): 37 s between them; only then the next tree, from its first turn. */
    ck_assert_msg(strncmp(s.text, "0:0.1.1p 1:profile 1:0.1.2 39:0.1.3 40:end0 40:0.0.0 41:end0 41:0.0.0 ", 70) == 0,
                  "%s", s.text);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(roots_that_leave_nothing_are_passed_over) {
    /* With two turns per stream and t* = 45 there is nothing left of a; b's turns are late enough. */
    cedar_corpus *c = parse(HEAD("a", 0) T10(0) "," T10(10) "," T10(90) "]}\n" HEAD("b", 0) T10(0) "," T10(60) ","
                            T10(90) "]}");
    cedar_lane_rules r = plain_rules(1);
    r.start_lo = r.start_hi = 0.5;
    r.turns_max = 2;
    script s;
    play(c, &r, second, 0, &s);
    ck_assert_str_eq(s.text, "0:0.0.0p 1:profile 1:0.0.1 2:end0 ");
    ck_assert_uint_eq(s.passed_over, 1);
    /* Nothing left anywhere: N + 2 x pool attempts, then an error. */
    r.turns_max = 1;
    r.recycle = true;
    r.lanes = 3;
    cedar_lanes *l = NULL;
    cedar_events q = { 0 };
    cedar_err err = { 0 };
    OK(cedar_lanes_new(c, &r, &l, &failure));
    ck_assert_int_eq(cedar_lanes_start(l, &q, &err), CEDAR_E_ARG);
    ck_assert_uint_eq(l->passed_over, 3 + 2 * 2);
    ck_assert_ptr_nonnull(strstr(err.msg, "none of 7 traces"));
    cedar_lanes_free(l);
    cedar_corpus_free(c);
}
END_TEST

START_TEST(barriers_hold_turns_back) {
    /* Root turn 2 was recorded after subagent a's turn 1 had ended; a is a background one that no join waits for. */
    cedar_corpus *c = parse(HEAD("b", 0) TURN(0, 8, 4, 1, "1,2") "," SUB(1, "a", TURN(0, 8, 4, 1, "20,21") ","
        TURN(3, 8, 4, 1, "20,21") "," TURN(30, 8, 4, 1, "20,21")) "," TURN(2, 8, 4, 1, "1,2") "," TURN(
        8, 8, 4, 1, "1,2") "]}");
    cedar_trace *t = &c->traces[0];
    const cedar_barrier wait = { 1, 1 };
    for (uint32_t i = 0; i < t->stream_count; i++)
        for (uint32_t k = 0; k < t->streams[i].turn_count; k++) t->streams[i].turns[k].barrier_count = 0;
    t->streams[0].turns[2].barriers = &wait;
    t->streams[0].turns[2].barrier_count = 1;
    ck_assert_int_eq(t->streams[1].join_turn, -1);
    cedar_lane_rules r = plain_rules(1);
    script s;
    play(c, &r, 3 * second, 0, &s);                         /* without them: root 0..3, 4..7, 12; a 3..6, 8..11, ... */
    ck_assert_msg(strncmp(s.text, "0:0.0.0 3:0.1.0 4:0.0.1 8:0.1.1 12:0.0.2 ", 41) == 0, "%s", s.text);
    r.barriers = true;
    play(c, &r, 6 * second, 0, &s);                         /* root 2 due at 18, a's turn 1 runs from 14 to 20 */
    ck_assert_msg(strncmp(s.text, "0:0.0.0 6:0.1.0 7:0.0.1 14:0.1.1 20:0.0.2 ", 42) == 0, "%s", s.text);
    ck_assert_uint_eq(s.forced, 0);
    /* A cycle: a's turn 1 waits for root turn 2 as well. Somebody goes first, and it is counted. */
    const cedar_barrier back = { 0, 2 };
    t->streams[1].turns[1].barriers = &back;
    t->streams[1].turns[1].barrier_count = 1;
    play(c, &r, second, 0, &s);
    ck_assert_uint_eq(s.forced, 1);
    ck_assert_ptr_nonnull(strstr(s.text, ":end0"));
    cedar_corpus_free(c);
}
END_TEST

START_TEST(real_sessions_have_barriers_and_never_block_themselves) {
    const char *const paths[] = { "traces/kv-cache-tester" };
    cedar_corpus *c = NULL;
    uint64_t barriers = 0, traces;
    OK(cedar_corpus_load(paths, 1, &(cedar_corpus_opts){ .strict = true }, &c, &failure));
    for (uint32_t i = 0; i < c->trace_count; i++)
        for (uint32_t s = 0; s < c->traces[i].stream_count; s++)
            for (uint32_t k = 0; k < c->traces[i].streams[s].turn_count; k++)
                barriers += c->traces[i].streams[s].turns[k].barrier_count;
    ck_assert_uint_gt(barriers, 50);
    traces = c->trace_count;
    cedar_lane_rules r = plain_rules(4);
    r.barriers = true;
    r.tree_cap_ns = 300 * second;
    r.global_cap_ns = 10 * second;
    for (int64_t service = 1; service <= 100; service *= 10) {
        script s;
        play(c, &r, service * second, 0, &s);
        ck_assert_uint_eq(s.forced, 0);
        ck_assert_uint_eq(s.sessions, traces);
        ck_assert_uint_eq(s.ends, traces);
    }
    cedar_corpus_free(c);
}
END_TEST

START_TEST(idle_caps_shift_trees_and_everything) {
    /* a waits 1000 s for its second turn, b 1005 s. */
    cedar_corpus *c = parse(HEAD("a", 0) TURN(0, 8, 4, 1, "1,2") "," TURN(1001, 8, 4, 1, "1,2") "]}\n"
                            HEAD("b", 0) TURN(0, 8, 4, 1, "1,2") "," TURN(1006, 8, 4, 1, "1,2") "]}");
    cedar_lane_rules r = plain_rules(2);
    script s;
    play(c, &r, second, 0, &s);
    ck_assert_str_eq(s.text, "0:0.0.0 0:1.0.0 1001:0.0.1 1002:end0 1006:1.0.1 1007:end1 ");
    r.tree_cap_ns = 300 * second;                           /* each tree by itself: both come at 301 */
    play(c, &r, second, 0, &s);
    ck_assert_str_eq(s.text, "0:0.0.0 0:1.0.0 301:0.0.1 301:1.0.1 302:end0 302:end1 ");
    r.tree_cap_ns = 0;
    r.global_cap_ns = 10 * second;                          /* all together: the distance of 5 s between them stays */
    play(c, &r, second, 0, &s);
    ck_assert_str_eq(s.text, "0:0.0.0 0:1.0.0 11:0.0.1 12:end0 16:1.0.1 17:end1 ");
    r.tree_cap_ns = 300 * second;
    play(c, &r, second, 0, &s);
    ck_assert_str_eq(s.text, "0:0.0.0 0:1.0.0 11:0.0.1 11:1.0.1 12:end0 12:end1 ");
    cedar_corpus_free(c);
}
END_TEST

START_TEST(a_tree_shift_keeps_the_distances_inside_the_tree) {
    /* Two subagents 400 and 407 s after the root's turn: the cap brings the first to 300 s, the second stays 7 s
     * behind. */
    cedar_corpus *c = parse(HEAD("t", 0) TURN(0, 8, 4, 1, "1,2") "," SUB(401, "a", TURN(0, 8, 4, 1, "20,21")) ","
                            SUB(408, "b", TURN(0, 8, 4, 1, "30,31")) "]}");
    cedar_lane_rules r = plain_rules(1);
    r.tree_cap_ns = 300 * second;
    script s;
    play(c, &r, second, 0, &s);
    ck_assert_str_eq(s.text, "0:0.0.0 301:0.1.0 308:0.2.0 309:end0 ");
    cedar_corpus_free(c);
}
END_TEST

START_TEST(bug27_overlapping_subagents_overlap) {
    cedar_corpus *c = parse(HEAD("o", 0) TURN(0, 8, 4, 1, "1,2") "," SUB(2, "a", TURN(0, 8, 4, 9, "20,21")) "," SUB(
        3, "b", TURN(0, 8, 4, 9, "30,31")) "," TURN(20, 8, 4, 1, "1,2") "]}");
    cedar_lane_rules r = plain_rules(1);
    script s;
    play(c, &r, 5 * second, 0, &s);
    ck_assert_str_eq(s.text, "0:0.0.0 6:0.1.0 7:0.2.0 24:0.0.1 29:end0 ");
    cedar_corpus_free(c);
}
END_TEST

/* --- whole runs --------------------------------------------------------------------------------------------------- */

static const char real_traces[] = "traces/kv-cache-tester/trace_0057.json,traces/kv-cache-tester/trace_0103.json,"
                                  "traces/kv-cache-tester/trace_0187.json,traces/kv-cache-tester/trace_0291.json";
#define REAL "rules=agentx unsafe_override=true length_scale=1/64 page_tokens=4 lanes=3 step_tokens=64 " \
    "warmup_requests=2 duration_s=60 "

static uint32_t count_of(const char *text, const char *what) {
    uint32_t n = 0;
    for (const char *s = text; (s = strstr(s, what)); s += strlen(what)) n++;
    return n;
}

START_TEST(warmup_rows_are_told_apart_and_not_scored) {
    cedar_run_result a;
    journal *l = run_ok(real_traces, REAL "quality=true", NULL, &a);
    ck_assert_uint_eq(count_of(l->rows, " warmup "), 3 * 2);
    ck_assert_uint_ge(count_of(l->rows, " primer "), 1);
    ck_assert_uint_eq(a.warmup_requests, count_of(l->rows, " warmup ") + count_of(l->rows, " primer "));
    ck_assert_uint_eq(a.requests, a.warmup_requests + count_of(l->rows, " profiling "));
    ck_assert_uint_eq(l->quality, l->out_tokens);           /* profiling answers only */
    ck_assert(!a.submission_valid);                         /* keys were overridden */
    ck_assert_ptr_nonnull(strstr(a.invalid, "unsafe_override"));
    ck_assert(a.gate_ok);
    journal_free(l);
}
END_TEST

START_TEST(bug10_the_same_run_twice_is_the_same) {
    static const char *const settings[] = { REAL, REAL "primers=burst order=shuffle lanes=7",
                                            REAL "pace_step_us=500000" };
    cedar_run_result a, b;
    journal *x = run_ok(real_traces, settings[_i], NULL, &a), *y = run_ok(real_traces, settings[_i], NULL, &b);
    ck_assert_str_eq(x->rows, y->rows);
    ck_assert_uint_eq(a.event_hash, b.event_hash);
    ck_assert_str_ne(x->timing, y->timing);
    journal_free(x);
    journal_free(y);
}
END_TEST

START_TEST(bug07_nothing_arrives_after_the_duration) {
    cedar_run_result a;
    journal *l = run_ok(real_traces, REAL "duration_s=20", NULL, &a);
    ck_assert_int_ge(l->profile_ns, 0);
    ck_assert_int_lt(l->arrival_max, l->profile_ns + 20 * second);
    ck_assert_int_gt(l->arrival_max, l->profile_ns + 10 * second);      /* and the phase was used */
    ck_assert_uint_eq(l->unfinished, 0);                                /* what was on its way drained and counts */
    journal_free(l);
}
END_TEST

START_TEST(bug08_an_idle_system_jumps) {
    /* An hour between two turns costs no steps. */
    cedar_run_result a;
    journal *l = run_ok(HEAD("i", 0) TURN(0, 8, 4, 1, "1,2") "," TURN(3601, 8, 4, 1, "1,2") "]}",
                        "lanes=1 page_tokens=4 think_cap_s=7200", NULL, &a);
    ck_assert_uint_eq(l->requests, 2);
    ck_assert_uint_le(l->steps, 8);
    ck_assert_int_gt(l->arrival_max, 3600 * second);
    journal_free(l);
}
END_TEST

START_TEST(recycled_roots_start_at_turn_0_with_a_new_salt) {
    /* One short trace, again and again: no pass may hit what another has cached, the system segment apart. */
    cedar_run_result a;
    journal *l = run_ok(HEAD("r", 0) TURN(0, 32, 4, 1, "1,2,3,4,5,6,7,8") "]}",
                        "lanes=2 recycle=true requests_max=9 page_tokens=4 replay=encoder encoder_rows=4", NULL, &a);
    ck_assert_uint_eq(l->requests, 9);
    ck_assert_uint_eq(l->hits, 0);
    ck_assert_ptr_nonnull(strstr(l->rows, "pass 3"));
    journal_free(l);
    l = run_ok(HEAD("r", 0) TURN(0, 32, 4, 1, "1,2,3,4,5,6,7,8") "]}",
               "lanes=1 recycle=true requests_max=3 page_tokens=4 salt=none replay=encoder encoder_rows=4", NULL, &a);
    ck_assert_uint_eq(l->hits, 2 * 28);                     /* whole pages that leave a token to compute */
    journal_free(l);
}
END_TEST

START_TEST(bug05_an_overflow_in_the_last_lane_is_counted_once) {
    static const char two[] = HEAD("ok", 0) TURN(0, 8, 4, 1, "1,2") "," TURN(3, 12, 4, 1, "1,2,3") "]}\n"
        HEAD("long", 0) TURN(0, 8, 4, 1, "1,2") "," TURN(3, 200, 4, 1, "1,2") "," TURN(6, 9, 4, 1, "1,2") "]}";
    cedar_run_result a;
    journal *l = run_ok(two, "lanes=2 context_max=64 page_tokens=4 recycle=true duration_s=12", NULL, &a);
    ck_assert_uint_ge(l->requests, 8);
    ck_assert_uint_eq(l->errors, count_of(l->rows, "context overflow"));
    ck_assert_uint_eq(l->overflows, l->errors);
    ck_assert_uint_eq(count_of(l->session_ends, "overflow"), l->errors);
    ck_assert_ptr_nonnull(strstr(a.invalid, "context_overflow"));
    ck_assert_ptr_nonnull(strstr(a.invalid, "error_rate"));
    journal_free(l);
}
END_TEST

static void fails(const char *trace, const char *settings, cedar_status code, const char *words) {
    journal *l = calloc(1, sizeof *l);
    cedar_run_result a;
    cedar_err err = { 0 };
    int64_t live = cedar_mem_live();
    ck_assert_int_eq(play_run(trace, settings, l, NULL, &a, &err), code);
    ck_assert_msg(strstr(err.msg, words), "%s", err.msg);
    ck_assert_int_eq(cedar_mem_live(), live);
    journal_free(l);
}

START_TEST(a_failed_root_primer_ends_the_run_a_subagents_does_not) {
    fails(HEAD("p", 0) TURN(0, 8, 4, 1, "1,2") "," TURN(10, 200, 4, 1, "1,2") "," TURN(20, 8, 4, 1, "1,2") "," TURN(
              30, 8, 4, 1, "1,2") "]}",
          "lanes=1 page_tokens=4 context_max=64 start_lo=0.5 start_hi=0.5", CEDAR_E_ARG,
          "lane 0 cannot start in the middle of trace p: its primer, turn 1 of 200 prompt tokens, failed: context "
          "overflow");
    cedar_run_result a;
    journal *l =
        run_ok(HEAD("p", 0)
                   TURN(0, 8, 4, 1, "1,2") "," SUB(2, "a", T10(0) "," TURN(10, 200, 4, 1, "1,2") "," T10(40)) "," TURN(
                       15, 8, 4, 1, "1,2") "," TURN(60, 8, 4, 1, "1,2") "]}",
               "lanes=1 page_tokens=4 kv_pages=16 start_lo=0.5 start_hi=0.5", NULL, &a);
    ck_assert_uint_eq(count_of(l->rows, "never fits"), 1);
    ck_assert_ptr_nonnull(strstr(l->session_ends, "finished"));
    journal_free(l);
}
END_TEST

START_TEST(warmup_that_does_not_drain_is_cut) {
    /* A step takes 100 s and 20 us a row of schedule time; the grace is 150 s, a prompt of 64 tokens needs 4 steps. */
    cedar_run_result a;
    journal *l = run_ok(
        HEAD("w", 0) TURN(0, 64, 4, 1, "1,2") "," TURN(10, 64, 4, 1, "1,2") "]}",
        "lanes=1 page_tokens=4 step_tokens=16 warmup_requests=1 warmup_grace_s=150 pace_step_us=100000000", NULL, &a);
    ck_assert_uint_eq(count_of(l->rows, "did not drain within warmup_grace_s"), 1);
    ck_assert_uint_eq(count_of(l->rows, " profiling "), 1);
    ck_assert_int_eq(l->profile_ns, 200 * second + 32 * 20000);
    journal_free(l);
}
END_TEST

START_TEST(bug11_failed_requests_add_no_tokens_and_advance) {
    /* Every third request is refused by the engine: no retry, the lane goes on, and the row counts as an error. */
    cedar_run_result a;
    fake_refuse_every = 3;
    journal *l = run_ok(TENS("e"), "lanes=1 page_tokens=4 salt=none", NULL, &a);
    fake_refuse_every = 0;
    ck_assert_uint_eq(l->requests, 10);
    ck_assert_uint_eq(l->errors, 3);
    ck_assert_uint_eq(l->in_tokens, 7 * 8);
    ck_assert_str_eq(l->session_ends, "finished ");
    ck_assert_ptr_nonnull(strstr(l->error, "engine: planted"));
    ck_assert(!a.gate_ok);
    journal_free(l);
    fake_refuse_every = 3;
    fake_opens = 0;
    l = run_ok(TENS("e"), "lanes=1 page_tokens=4 on_error=end_session", NULL, &a);
    fake_refuse_every = 0;
    ck_assert_str_eq(l->session_ends, "error ");
    ck_assert_uint_eq(l->requests, 3);
    journal_free(l);
}
END_TEST

START_TEST(too_many_failures_stop_the_run_early) {
    cedar_run_result a;
    fake_refuse_every = 3;
    journal *l = run_ok(TENS("e"), "lanes=1 page_tokens=4 recycle=true duration_s=10000 errors_max=0.1", NULL, &a);
    fake_refuse_every = 0;
    ck_assert_uint_eq(l->requests, 10);                     /* the first ten are waited for */
    ck_assert_ptr_nonnull(strstr(a.invalid, "cancelled"));
    ck_assert_ptr_nonnull(strstr(a.invalid, "error_rate"));
    journal_free(l);
}
END_TEST

START_TEST(bug14_every_session_is_reported) {
    cedar_run_result a;
    journal *l = run_ok(real_traces, REAL "duration_s=30", NULL, &a);
    ck_assert_uint_eq(count_of(l->session_ends, "finished") + count_of(l->session_ends, "cut") +
                      count_of(l->session_ends, "overflow"), l->sessions);
    ck_assert_uint_ge(count_of(l->session_ends, "cut"), 1);
    journal_free(l);
}
END_TEST

START_TEST(bug01_an_answer_of_nothing_asks_for_one_token) {
    cedar_run_result a;
    journal *l = run_ok(HEAD("z", 0) TURN(0, 8, 0, 1, "1,2") "," TURN(3, 8, 1, 1, "1,2") "]}", "lanes=1 page_tokens=4",
                        NULL, &a);
    ck_assert_uint_eq(l->errors, 0);
    ck_assert_uint_eq(l->out_tokens, 2);
    journal_free(l);
}
END_TEST

START_TEST(bug20_one_token_has_no_itl) {
    cedar_run_result a;
    journal *l = run_ok(HEAD("z", 0) TURN(0, 8, 0, 1, "1,2") "," TURN(3, 8, 1, 1, "1,2") "]}", "lanes=1 page_tokens=4",
                        NULL, &a);
    ck_assert(isnan(a.itl_p90_ms) && isnan(a.interactivity_p90));
    ck_assert_double_gt(a.ttft_p50_ms, 0);
    ck_assert_uint_eq(a.out_tokens, 2);                     /* kept for throughput */
    journal_free(l);
}
END_TEST

START_TEST(bug02_prompts_have_their_recorded_length) {
    static const uint32_t in[] = { 16, 17, 15 };
    static const char *const ids[] = { "1,2,3,4", "1,2,3", "1,2,3,4,5" };
    for (int i = 0; i < 9; i++) {
        char trace[512];
        snprintf(trace, sizeof trace, HEAD("n", 0) "{\"t\":0,\"type\":\"s\",\"model\":\"m\",\"in\":%u,\"out\":2,"
                 "\"hash_ids\":[%s],\"api_time\":1}]}", in[i / 3], ids[i % 3]);
        cedar_run_result a;
        journal *l = run_ok(trace, "lanes=1 page_tokens=4", NULL, &a);
        ck_assert_uint_eq(l->in_tokens, in[i / 3]);
        journal_free(l);
    }
}
END_TEST

START_TEST(bug09_the_page_size_hardly_changes_the_hits) {
    cedar_run_result a;
    uint64_t hits[3], i = 0;
    for (int page = 4; page <= 16; page *= 2, i++) {
        char settings[160];
        snprintf(settings, sizeof settings, "length_scale=1/16 page_tokens=%d turns_max=5 lanes=1 replay=encoder "
                 "encoder_rows=1", page);
        journal *l = run_ok("traces/kv-cache-tester/trace_0057.json", settings, NULL, &a);
        hits[i] = l->hits;
        if (i) ck_assert_uint_le(hits[i - 1] - hits[i], l->requests * (uint64_t)page);     /* within a block each */
        journal_free(l);
    }
    ck_assert_uint_gt(hits[0], 0);
}
END_TEST

START_TEST(bug12_compacted_contexts_use_their_recorded_length) {
    cedar_run_result a;
    journal *l = run_ok(HEAD("k", 0) TURN(0, 40, 4, 1, "1,2,3,4,5,6,7,8,9,10") "," TURN(3, 12, 4, 1, "1,11,12") "]}",
                        "lanes=1 page_tokens=4", NULL, &a);
    ck_assert_uint_eq(l->in_tokens, 52);
    journal_free(l);
}
END_TEST

START_TEST(bug17_18_19_latencies_follow_their_definition) {
    /* Fixed pace of 1000 + 20 us per row: prompt of 8 in one step, then 3 decode steps; the times are known. */
    cedar_run_result a;
    journal *l = run_ok(HEAD("d", 0) TURN(0, 8, 4, 1, "1,2") "]}", "lanes=1 page_tokens=4", NULL, &a);
    ck_assert_ptr_nonnull(strstr(l->rows, "at 0 0 1160000 4220000 "));
    ck_assert_double_eq_tol(a.itl_p90_ms, (double)(l->step_ns[1] + l->step_ns[2] + l->step_ns[3]) / 3e6, 1e-9);
    ck_assert_double_eq_tol(a.ttft_p50_ms, (double)l->step_ns[0] / 1e6, 1e-9);
    journal_free(l);
}
END_TEST

START_TEST(bug26_streams_have_contexts_of_their_own) {
    /* Two interleaved agents with different prefixes: each hits its own earlier prompt. */
    cedar_run_result a;
    journal *l = run_ok(HEAD("s", 0) TURN(0, 16, 4, 1, "1,2,3,4") "," SUB(1, "a", TURN(0, 16, 4, 1, "21,22,23,24") ","
        TURN(3, 24, 4, 1, "21,22,23,24,25,26")) "," TURN(3, 24, 4, 1, "1,2,3,4,5,6") "]}",
        "lanes=1 page_tokens=4 replay=encoder encoder_rows=4", NULL, &a);
    ck_assert_uint_eq(count_of(l->rows, "in 24 out 4 hit 16/16"), 2);
    journal_free(l);
}
END_TEST

START_TEST(hits_stay_below_the_theory) {
    /* Without cached answers, and with one session of each trace, no prompt hits more blocks than an infinite cache of
     * its trace would. A block is 4 tokens here. */
    cedar_run_result a;
    journal *l = run_ok(real_traces, "length_scale=1/16 turns_max=8 lanes=3 continuation=greedy page_tokens=4 "
                        "replay=encoder encoder_rows=1", NULL, &a);
    ck_assert_uint_gt(l->hits, 0);
    ck_assert_uint_le(l->hits, 4 * l->theory_blocks);
    journal_free(l);
}
END_TEST

START_TEST(runs_share_what_they_have_in_common) {
    cedar_run_cache *cache = NULL;
    cedar_run_result a[4];
    static const char *const settings[] = { "lanes=1 page_tokens=4", "lanes=2 page_tokens=4", "lanes=2 page_tokens=4",
                                            "lanes=1 page_tokens=4 weights_seed=2" };
    static const char trace[] = "traces/kv-cache-tester/trace_0057.json";
    int64_t live = cedar_mem_live();
    OK(cedar_run_cache_new(&cache, &failure));
    fake_models = 0;
    for (int i = 0; i < 4; i++) {
        journal *l = calloc(1, sizeof *l);
        char words[128];
        snprintf(words, sizeof words, "%s length_scale=1/64 turns_max=3", settings[i]);
        l->cache = cache;
        OK(play_run(trace, words, l, NULL, &a[i], &failure));
        journal_free(l);
    }
    ck_assert_uint_eq(fake_models, 2);                      /* the last run asks for another one */
    ck_assert_uint_eq(a[1].event_hash, a[2].event_hash);
    cedar_run_cache_free(cache);
    ck_assert_int_eq(cedar_mem_live(), live);
    journal *alone = run_ok(trace, "lanes=2 page_tokens=4 length_scale=1/64 turns_max=3", NULL, &a[0]);
    ck_assert_uint_eq(a[0].event_hash, a[1].event_hash);
    journal_free(alone);
}
END_TEST

/* --- the speed floor ---------------------------------------------------------------------------------------------- */

static int64_t linear_step(void *self, uint32_t prefill, uint32_t decode, uint64_t context) {
    (void)self;
    return 1000 + 10 * (int64_t)prefill + 100 * (int64_t)decode + (int64_t)context;
}

START_TEST(floor_leaves_room_for_as_many_prompt_rows) {
    cedar_predictor p = { NULL, linear_step };
    ck_assert_int_eq(cedar_floor_step_ns(150 * second), 6666666);       /* 1/150 s, rounded down */
    ck_assert_uint_eq(cedar_floor_prefill_rows(&p, 2000, 256, 2, 300), 50);
    ck_assert_uint_eq(cedar_floor_prefill_rows(&p, 2009, 256, 2, 300), 50);
    ck_assert_uint_eq(cedar_floor_prefill_rows(&p, 2010, 256, 2, 300), 51);
    ck_assert_uint_eq(cedar_floor_prefill_rows(&p, 1000, 256, 2, 300), 0);
    ck_assert_uint_eq(cedar_floor_prefill_rows(&p, 99999, 256, 2, 300), 256);
}
END_TEST

START_TEST(step_lengths_are_learnt) {
    cedar_step_history h = { 0 };
    ck_assert_int_eq(cedar_step_history_ns(&h, 7), 0);
    for (int i = 0; i < 50; i++) {
        cedar_step_history_add(&h, 4, 4000);
        cedar_step_history_add(&h, 64, 16000);
    }
    ck_assert_int_eq(cedar_step_history_ns(&h, 4), 4000);
    ck_assert_int_eq(cedar_step_history_ns(&h, 64), 16000);
    ck_assert_int_eq(cedar_step_history_ns(&h, 34), 10000);     /* half way */
    ck_assert_int_eq(cedar_step_history_ns(&h, 128), 32000);
    ck_assert_int_eq(cedar_step_history_ns(&h, 1), 4000);
    for (int i = 0; i < 200; i++) cedar_step_history_add(&h, 64, 32000);    /* the machine got slower */
    ck_assert_int_ge(cedar_step_history_ns(&h, 64), 31900);
}
END_TEST

START_TEST(admit_keeps_the_floor_and_ttft_pays) {
    /* 1 ms a step and 0.1 ms a row: 4 ms, the floor of 250 tok/s/user, hold 30 rows in all. */
    static const char pace[] = "lanes=4 page_tokens=4 length_scale=1/64 step_tokens=128 turns_max=4 time_scale=0 "
                               "pace_step_us=1000 pace_row_us=100 floor_tok_s_user=250 ";
    char settings[256];
    cedar_run_result a, b;
    snprintf(settings, sizeof settings, "%sfloor_mode=mark", pace);
    journal *mark = run_ok(real_traces, settings, NULL, &a);
    snprintf(settings, sizeof settings, "%sfloor_mode=admit", pace);
    journal *admit = run_ok(real_traces, settings, NULL, &b);
    ck_assert_double_gt(mark->itl_sched_max, 4e6);
    ck_assert_double_le(admit->itl_sched_max, 4e6); /* no user ever gets less, since every step is short enough */
    ck_assert_double_gt(admit->ttft_sched_mean, mark->ttft_sched_mean);
    ck_assert_uint_eq(mark->requests, admit->requests);
    ck_assert_uint_eq(mark->out_tokens, admit->out_tokens);
    journal_free(mark);
    journal_free(admit);
    admit = run_ok(real_traces, "lanes=4 page_tokens=4 length_scale=1/64 pace=measured turns_max=3 time_scale=0 "
                   "floor_tok_s_user=500 floor_mode=admit", NULL, &b);      /* learnt prices: it ends, and repeats */
    cedar_recorded rec = { admit->step_ns, admit->steps, b.event_hash };
    journal *again = run_ok(real_traces,
                            "lanes=4 page_tokens=4 length_scale=1/64 pace=measured turns_max=3 time_scale=0 "
                            "floor_tok_s_user=500 floor_mode=admit clock=recorded",
                            &rec, &a);
    ck_assert_str_eq(admit->rows, again->rows);
    journal_free(admit);
    journal_free(again);
}
END_TEST

START_TEST(a_missed_floor_is_marked) {
    cedar_run_result a;
    journal *l = run_ok(TENS("e"), "lanes=1 page_tokens=4 floor_tok_s_user=100", NULL, &a);
    ck_assert_double_eq_tol(a.floor_interactivity, a.interactivity_p90, 1e-9);
    ck_assert(a.floor_met);                                 /* fake steps take up to 1.5 ms */
    journal_free(l);
    l = run_ok(TENS("e"), "lanes=1 page_tokens=4 floor_tok_s_user=10000", NULL, &a);
    ck_assert(!a.floor_met);
    journal_free(l);
}
END_TEST

int main(void) {
    Suite *s = suite_create("agentx");
    TCase *lanes = tcase_create("lanes"), *runs = tcase_create("runs"), *bugs = tcase_create("bugs"),
          *floors = tcase_create("floor");
    TCase *all[] = { lanes, runs, bugs, floors };
    tcase_add_test(lanes, lanes_start_in_the_window_with_primers);
    tcase_add_test(lanes, lanes_above_the_pool_wrap);
    tcase_add_test(lanes, spread_primers_reach_the_start_together);
    tcase_add_test(lanes, each_lane_warms_up_with_exactly_its_share);
    tcase_add_test(lanes, primers_and_hand_over_of_living_subagents);
    tcase_add_test(lanes, roots_that_leave_nothing_are_passed_over);
    tcase_add_test(lanes, barriers_hold_turns_back);
    tcase_add_test(lanes, real_sessions_have_barriers_and_never_block_themselves);
    tcase_add_test(lanes, idle_caps_shift_trees_and_everything);
    tcase_add_test(lanes, a_tree_shift_keeps_the_distances_inside_the_tree);
    tcase_add_test(runs, warmup_rows_are_told_apart_and_not_scored);
    tcase_add_test(runs, recycled_roots_start_at_turn_0_with_a_new_salt);
    tcase_add_test(runs, a_failed_root_primer_ends_the_run_a_subagents_does_not);
    tcase_add_test(runs, warmup_that_does_not_drain_is_cut);
    tcase_add_test(runs, too_many_failures_stop_the_run_early);
    tcase_add_test(runs, hits_stay_below_the_theory);
    tcase_add_test(runs, runs_share_what_they_have_in_common);
    tcase_add_test(bugs, bug01_an_answer_of_nothing_asks_for_one_token);
    tcase_add_test(bugs, bug02_prompts_have_their_recorded_length);
    tcase_add_test(bugs, bug04_a_finished_root_keeps_its_lane_while_a_subagent_lives);
    tcase_add_test(bugs, bug05_an_overflow_in_the_last_lane_is_counted_once);
    tcase_add_test(bugs, bug07_nothing_arrives_after_the_duration);
    tcase_add_test(bugs, bug08_an_idle_system_jumps);
    tcase_add_test(bugs, bug09_the_page_size_hardly_changes_the_hits);
    tcase_add_loop_test(bugs, bug10_the_same_run_twice_is_the_same, 0, 3);
    tcase_add_test(bugs, bug11_failed_requests_add_no_tokens_and_advance);
    tcase_add_test(bugs, bug12_compacted_contexts_use_their_recorded_length);
    tcase_add_test(bugs, bug14_every_session_is_reported);
    tcase_add_test(bugs, bug17_18_19_latencies_follow_their_definition);
    tcase_add_test(bugs, bug20_one_token_has_no_itl);
    tcase_add_test(bugs, bug26_streams_have_contexts_of_their_own);
    tcase_add_test(bugs, bug27_overlapping_subagents_overlap);
    tcase_add_test(floors, floor_leaves_room_for_as_many_prompt_rows);
    tcase_add_test(floors, step_lengths_are_learnt);
    tcase_add_test(floors, admit_keeps_the_floor_and_ttft_pays);
    tcase_add_test(floors, a_missed_floor_is_marked);
    for (int i = 0; i < 4; i++) {
        tcase_set_timeout(all[i], 60);
        suite_add_tcase(s, all[i]);
    }
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
