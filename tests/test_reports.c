/* Tests of reports/: metrics against hand-computed numbers, the store under kill -9 and full disks, CSV, text, HTML.
 *
 * `test_reports --fake FILE` writes a plausible database instead, to look at reports without running anything. */
#include <check.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "lua/script.h"
#include "reports/reports.h"
#include "sim/cli_int.h"

static const int64_t MS = 1000000, S = 1000000000;
static const double NONE = -1e300;      /* expects NULL */

static char dir[64], db_path[96];
static cedar_err err;

/* --- files -------------------------------------------------------------------------------------------------------- */

static void make_dir(void) {
    snprintf(dir, sizeof dir, "/tmp/cedar-reports-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(db_path, sizeof db_path, "%s/run.db", dir);
    memset(&err, 0, sizeof err);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void remove_dir(void) { nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS); }

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

/* Touches check only on failure: --fake runs outside of it. */
static void must(cedar_status st, const char *what) {
    if (st) ck_abort_msg("%s: %s", what, err.msg);
}
#define OK(call) must(call, #call)

/* --- rows --------------------------------------------------------------------------------------------------------- */

static cedar_manifest_row manifest_row(void) {
    return (cedar_manifest_row){ .cedar_version = "0.1",
                                 .commit = "0123456789abcdef0123",
                                 .compiler = "cc 1",
                                 .build_flags = "-O3",
                                 .scenario_path = "scenarios/ladder.lua",
                                 .scenario_text = "run { lanes = 8 }\n",
                                 .scenario_hash = "aa11",
                                 .overrides = "[\"seed=7\"]",
                                 .machine = "{\"cpu\":\"test\",\"cores\":2}",
                                 .started_at = "2026-01-02T03:04:05Z",
                                 .seed = UINT64_MAX };
}

static cedar_run_row run_row(int64_t id, const char *label, const char *replay) {
    return (cedar_run_row){ .run_id = id,
                            .label = label,
                            .config_json = "{\"lanes\":8,\"model\":\"tiny\"}",
                            .config_hash = "c0",
                            .model_name = "tiny",
                            .model_hash = "m0",
                            .model_origin = "synthetic seed 1",
                            .trace_paths = "traces/kv-cache-tester",
                            .trace_hash = "t0",
                            .backend = "cuda",
                            .device = "card-x",
                            .arith = "f32",
                            .clock = "modelled",
                            .replay = replay,
                            .seed = 42,
                            .lanes = 8,
                            .vocab = 512,
                            .window = 128,
                            .page_tokens = 64,
                            .kv_token_bytes_x1000 = 890000,
                            .window_snap_bytes = 5000000,
                            .plan_total_bytes = 1 << 30 };
}

static cedar_run_end_row run_end_row(int64_t id) {
    return (cedar_run_end_row){ .run_id = id, .status = "finished", .error = "", .event_hash = 0xfedcba9876543210ull,
                                .end_sched_ns = 9 * S, .end_ns = 9 * S, .wall_ns = 3 * S };
}

static cedar_request_row request_row(int64_t run, int64_t id, double arrival, double first, double last, uint32_t in,
                                     uint32_t out) {
    cedar_request_row r = { .run_id = run,
                            .request_id = id,
                            .session_id = 1,
                            .trace_id = "t",
                            .phase = "profiling",
                            .error = "",
                            .in_recorded = in,
                            .out_recorded = out,
                            .in_tokens = in,
                            .out_tokens = out,
                            .arrival_ns = llround(arrival * 1e9),
                            .first_ns = first < 0 ? -1 : llround(first * 1e9),
                            .last_ns = last < 0 ? -1 : llround(last * 1e9) };
    r.admit_ns = r.arrival_ns;
    r.arrival_sched_ns = r.arrival_ns;
    r.admit_sched_ns = r.admit_ns;
    r.first_sched_ns = r.first_ns;
    r.last_sched_ns = r.last_ns;
    return r;
}

static cedar_step_row step_row(int64_t run, int64_t id) {
    return (cedar_step_row){ .run_id = run,
                             .step_id = id,
                             .steps = 1,
                             .engine = 1,
                             .entries = 1,
                             .decode_entries = 1,
                             .rows = 1,
                             .decode_rows = 1,
                             .kept_rows = 1,
                             .graph = "none",
                             .start_sched_ns = id * MS,
                             .end_sched_ns = id * MS + MS,
                             .start_ns = id * MS,
                             .end_ns = id * MS + MS / 2 + id,
                             .duration_ns = MS / 2 + id };
}

static cedar_quality_row quality_row(int64_t request, uint32_t pos, int32_t offset, double kl, double logp_p,
                                     double logp_q, double margin, bool same) {
    return (cedar_quality_row){ .run_id = 1,
                                .request_id = request,
                                .pos = pos,
                                .offset = offset,
                                .token = 5,
                                .kl_pq = kl,
                                .kl_qp = kl / 2,
                                .js = kl / 4,
                                .logp_p = logp_p,
                                .logp_q = logp_q,
                                .top1_prob_p = 0.5,
                                .margin_p = margin,
                                .ratio_max = kl * 10,
                                .top1_same = same };
}

static cedar_store *open_store(const cedar_observer **o) {
    cedar_store *s;
    OK(cedar_store_create(db_path, false, &s, &err));
    *o = cedar_store_observer(s);
    cedar_manifest_row m = manifest_row();
    OK((*o)->manifest((*o)->self, &m, &err));
    return s;
}

/* --- the hand-computed example ---------------------------------------------------------------------------------- */

/* Five kept requests (A to E), one in error, one of the warm-up:
 *      arrival first last    in  out  ttft   itl          e2el  norm
 *   A  1.0     1.5   3.5     100 5    0.5    2.0/4=0.5    2.5   0.5
 *   B  1.2     1.5   2.7     200 3    0.3    1.2/2=0.6    1.5   0.5
 *   C  2.0     2.8   2.8      50 1    0.8    -            0.8   0.8
 *   D  3.0     -     -        30 0    -      -            -     -
 *   E  1.4     2.0   6.1     400 11   0.6    4.1/10=0.41  4.7   4.7/11
 * Expected numbers were worked out from this table apart from the code, by hand and with Python's fractions module. */
static void write_example(void) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    cedar_run_row run = run_row(1, "example", "encoder"), tens = run_row(2, "tens", "exact");
    OK(o->run_begin(o->self, &run, &err));
    cedar_request_row q[] = { request_row(1, 1, 1.0, 1.5, 3.5, 100, 5), request_row(1, 2, 1.2, 1.5, 2.7, 200, 3),
                              request_row(1, 3, 2.0, 2.8, 2.8, 50, 1), request_row(1, 4, 3.0, -1, -1, 30, 0),
                              request_row(1, 5, 1.4, 2.0, 6.1, 400, 11), request_row(1, 6, 3.2, 3.3, 9.0, 1000, 100),
                              request_row(1, 7, 0.1, 0.2, 0.9, 7, 2) };
    const uint32_t blocks[][2] = { { 2, 0 }, { 4, 2 }, { 1, 0 }, { 1, 0 }, { 8, 5 }, { 20, 20 }, { 1, 1 } };
    q[1].hit_tokens = 128, q[1].matched_tokens = 128, q[1].replayed_tokens = 64;
    q[4].hit_tokens = 256, q[4].matched_tokens = 300, q[4].replayed_tokens = 128, q[4].trimmed_tokens = 44;
    q[0].miss = CEDAR_MISS_COLD, q[2].miss = CEDAR_MISS_COLD, q[4].provenance_depth = 2, q[4].turn = 1;
    q[5].error = "boom", q[6].phase = "warmup";
    for (int i = 0; i < 7; i++) {
        q[i].blocks_total = blocks[i][0], q[i].blocks_hit_theory = blocks[i][1];
        OK(o->request(o->self, &q[i], &err));
    }
    /* Steps: 10 + 30 ms busy in a span of 100 ms. */
    cedar_step_row a = step_row(1, 1), b = step_row(1, 2);
    a.start_ns = 0, a.end_ns = a.duration_ns = 10 * MS, a.rows = 20, a.prefill_rows = 16, a.decode_rows = 4;
    a.replayed_rows = 4, a.kept_rows = 10;
    a.entries = 3, a.trimmed = true, a.kv_bytes_used = 1000, a.window_bytes_stored = 4000, a.pages_free = 9;
    b.start_ns = 70 * MS, b.end_ns = 100 * MS, b.duration_ns = 30 * MS, b.rows = 10, b.prefill_rows = 0;
    b.decode_rows = 10, b.kept_rows = 10;
    b.entries = 10, b.kv_bytes_used = 2000, b.window_bytes_stored = 3000, b.pages_free = 5;
    OK(o->step(o->self, &a, &err));
    OK(o->step(o->self, &b, &err));
    cedar_quality_row k[] = { quality_row(2, 128, 0, 0.0, -1.0, -1.0, 0.5, true),
                              quality_row(2, 129, 1, 1e-3, -1.0, -1.25, 0.2, true),
                              quality_row(2, 143, 15, 3e-3, -2.0, -1.5, 0.1, false),
                              quality_row(5, 272, 16, 1e-2, -0.5, -0.5, 0.3, false),
                              quality_row(5, 511, 255, 2.0, -3.0, -5.0, 0.05, false) };
    for (int i = 0; i < 5; i++) OK(o->quality(o->self, &k[i], &err));
    cedar_session_row session = { .run_id = 1, .session_id = 1, .trace_id = "t", .streams = 1, .requests_planned = 9,
                                  .requests_done = 7, .end_ns = 9 * S, .outcome = "cut" };
    OK(o->session(o->self, &session, &err));
    cedar_run_end_row end = run_end_row(1);
    end.requests_unfinished = 2, end.sessions_unfinished = 1;
    OK(o->run_end(o->self, &end, &err));
    /* ITL of 1, 2, ..., 10 ms. */
    OK(o->run_begin(o->self, &tens, &err));
    for (int i = 1; i <= 10; i++) {
        cedar_request_row r = request_row(2, i, i, i + 0.001, i + 0.001 + i * 0.001, 10, 2);
        OK(o->request(o->self, &r, &err));
    }
    end = run_end_row(2);
    OK(o->run_end(o->self, &end, &err));
    cedar_expect_row expect = { "p90 TTFT", "0.74 s <= 1 s", true };
    OK(o->expect(o->self, &expect, &err));
    OK(cedar_store_close(s, true, &err));
}

static sqlite3 *open_plain(void) {
    sqlite3 *db;
    ck_assert_int_eq(sqlite3_open_v2(db_path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    return db;
}

static double number(sqlite3 *db, const char *sql) {
    sqlite3_stmt *q;
    ck_assert_msg(sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    ck_assert_msg(sqlite3_step(q) == SQLITE_ROW, "%s: no row", sql);
    double x = sqlite3_column_type(q, 0) == SQLITE_NULL ? NONE : sqlite3_column_double(q, 0);
    sqlite3_finalize(q);
    return x;
}

static void check_text(sqlite3 *db, const char *sql, const char *want) {
    sqlite3_stmt *q;
    ck_assert_msg(sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    ck_assert_msg(sqlite3_step(q) == SQLITE_ROW, "%s: no row", sql);
    ck_assert_str_eq((const char *)sqlite3_column_text(q, 0), want);
    sqlite3_finalize(q);
}

typedef struct wanted { const char *what; double value; } wanted;

static void check_wanted(sqlite3 *db, const char *from, const wanted *w, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char sql[256];
        snprintf(sql, sizeof sql, "SELECT %s FROM %s", w[i].what, from);
        double x = number(db, sql);
        ck_assert_msg(fabs(x - w[i].value) <= 1e-12 * fabs(w[i].value), "%s: %.17g, expected %.17g", sql, x,
                      w[i].value);
    }
}
#define WANT(db, from, ...) do { static const wanted w_[] = { __VA_ARGS__ }; \
    check_wanted(db, from, w_, sizeof w_ / sizeof *w_); } while (0)

START_TEST(test_latency) {
    write_example();
    sqlite3 *db = open_plain();
    WANT(db, "v_population WHERE run_id = 1", { "requests", 7 }, { "kept", 5 }, { "excluded_phase", 1 },
         { "excluded_error", 1 }, { "kept_osl_0", 1 }, { "kept_osl_1", 1 }, { "requests_unfinished", 2 },
         { "sessions_unfinished", 1 });
    WANT(db, "v_latency WHERE run_id = 1 AND metric = 'ttft'", { "n", 4 }, { "excluded_undefined", 1 },
         { "excluded_error", 1 }, { "excluded_phase", 1 }, { "mean_ns", 5.5e8 }, { "p50_ns", 5.5e8 },
         { "p75_ns", 6.5e8 }, { "p90_ns", 7.4e8 }, { "p95_ns", 7.7e8 }, { "p99_ns", 7.94e8 },
         { "std_ns", 180277563.77319946 }, { "min_ns", 3e8 }, { "max_ns", 8e8 });
    WANT(db, "v_latency WHERE run_id = 1 AND metric = 'itl'", { "n", 3 }, { "excluded_undefined", 2 },
         { "mean_ns", 503333333.3333333 }, { "p50_ns", 5e8 }, { "p75_ns", 5.5e8 }, { "p90_ns", 5.8e8 },
         { "p95_ns", 5.9e8 }, { "std_ns", 77602978.17881376 });
    WANT(db, "v_latency WHERE run_id = 1 AND metric = 'e2el'", { "n", 4 }, { "mean_ns", 2.375e9 }, { "p50_ns", 2e9 },
         { "p75_ns", 3.05e9 }, { "p90_ns", 4.04e9 }, { "p95_ns", 4.37e9 }, { "std_ns", 1472030910.001553 });
    /* norm: 4.7/11 = 0.42727, 0.5, 0.5, 0.8 */
    WANT(db, "v_latency WHERE run_id = 1 AND metric = 'e2e_norm'", { "n", 4 }, { "mean_ns", 556818181.8181818 },
         { "p50_ns", 5e8 }, { "p75_ns", 5.75e8 }, { "p90_ns", 7.1e8 }, { "std_ns", 143506126.22624448 });
    sqlite3_close(db);
}
END_TEST

START_TEST(test_interactivity) {
    write_example();
    sqlite3 *db = open_plain();
    WANT(db, "v_interactivity WHERE run_id = 1 AND metric = 'itl'", { "n", 3 }, { "mean_intvty", 1.9867549668874172 },
         { "p50_intvty", 2 }, { "p75_intvty", 1 / 0.55 }, { "p90_intvty", 1 / 0.58 }, { "p95_intvty", 1 / 0.59 },
         { "std_intvty", 0.31629627101282237 });
    WANT(db, "v_interactivity WHERE run_id = 1 AND metric = 'e2e_norm'", { "p90_intvty", 1 / 0.71 },
         { "p50_intvty", 2 });
    /* Ten ITLs of 1..10 ms: p90 is 9.1 ms, so 1 / p90(ITL) = 109.890; the slow tail of 1/ITL would be
     * p10(1/ITL) = 110 and p90(1/ITL) = 550. */
    WANT(db, "v_interactivity WHERE run_id = 2 AND metric = 'itl'", { "n", 10 }, { "p90_intvty", 1000 / 9.1 },
         { "p50_intvty", 1000 / 5.5 }, { "mean_intvty", 1000 / 5.5 });
    sqlite3_close(db);
}
END_TEST

START_TEST(test_throughput) {
    write_example();
    sqlite3 *db = open_plain();
    /* From A's arrival 1.0 s to E's end 6.1 s; error and warm-up rows add neither time nor tokens. */
    WANT(db, "v_throughput WHERE run_id = 1", { "n", 5 }, { "duration_ns", 5.1e9 }, { "input_tokens", 780 },
         { "output_tokens", 20 }, { "total_tokens", 800 }, { "input_tok_s", 780 / 5.1 }, { "output_tok_s", 20 / 5.1 },
         { "total_tok_s", 800 / 5.1 }, { "requests_s", 5 / 5.1 });
    /* Ends 2.7, 2.8, 3.5, 6.1: whole windows from 2.7 s on hold 3, 0, 0. */
    WANT(db, "v_qps WHERE run_id = 1", { "windows", 3 }, { "completions", 4 }, { "excluded_undefined", 1 },
         { "mean_qps", 1 }, { "p50_qps", 0 }, { "p75_qps", 1.5 }, { "p90_qps", 2.4 }, { "p95_qps", 2.7 },
         { "std_qps", 1.4142135623730951 });
    WANT(db, "v_qps_windows WHERE run_id = 1 AND window_index = 0", { "completions", 3 }, { "start_ns", 2.7e9 });
    WANT(db, "(SELECT * FROM v_qps_windows WHERE run_id = 1)", { "COUNT(*)", 3 }, { "SUM(completions)", 3 });
    sqlite3_close(db);
}
END_TEST

/* Two engines, worked out by hand. Engine 1: steps 0-40 ms in a row of four with 30 ms inside, and 60-70 ms; engine 2:
 * 10-100 ms, no request of its own that counts. */
START_TEST(test_engines) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    cedar_run_row run = run_row(1, "two engines", "both");
    cedar_step_row a = step_row(1, 1), b = step_row(1, 5), c = step_row(1, 2);
    a.steps = 4, a.start_ns = 0, a.end_ns = 40 * MS, a.duration_ns = 30 * MS, a.rows = 40, a.entries = 12;
    a.trimmed = 2, a.waiting = 3, a.running = 5, a.pages_free = 7, a.kv_bytes_used = 900;
    b.start_ns = 60 * MS, b.end_ns = 70 * MS, b.duration_ns = 10 * MS, b.rows = 5, b.entries = 5, b.waiting = 1;
    b.running = 8, b.pages_free = 9, b.kv_bytes_used = 800;
    c.engine = 2, c.start_ns = 10 * MS, c.end_ns = 100 * MS, c.duration_ns = 90 * MS, c.rows = 3, c.entries = 3;
    cedar_request_row q[] = { request_row(1, 1, 0, 0.010, 0.020, 100, 10), request_row(1, 2, 0, 0.030, 0.040, 300, 20),
                              request_row(1, 3, 0, 0.100, 0.100, 50, 1), request_row(1, 4, 0, -1, -1, 50, 1) };
    q[0].engine = q[1].engine = 1, q[2].engine = 2, q[3].error = "refused";
    q[0].decode_steps = 4, q[0].drafted_tokens = 16, q[0].accepted_tokens = 5;
    q[1].decode_steps = 6, q[1].drafted_tokens = 24, q[1].accepted_tokens = 13;
    q[2].decode_steps = 7, q[2].drafted_tokens = 7;     /* not of the profiling phase */
    q[0].hit_tokens = 40, q[1].hit_tokens = 260, q[1].session_id = 2, q[2].phase = "warmup";
    OK(o->run_begin(o->self, &run, &err));
    OK(o->step(o->self, &a, &err));
    OK(o->step(o->self, &b, &err));
    OK(o->step(o->self, &c, &err));
    for (int i = 0; i < 4; i++) OK(o->request(o->self, &q[i], &err));
    OK(cedar_store_close(s, true, &err));
    sqlite3 *db = open_plain();
    WANT(db, "v_engines WHERE engine = 1", { "n", 2 }, { "excluded_phase", 1 }, { "excluded_error", 1 },
         { "sessions", 2 }, { "in_tokens", 400 }, { "hit_tokens", 300 }, { "hit_rate", 0.75 }, { "out_tokens", 30 },
         { "ttft_mean_ms", 20 }, { "steps", 5 }, { "busy_share", 0.4 }, { "waiting_max", 3 }, { "running_max", 8 },
         { "pages_free_min", 7 }, { "kv_bytes_peak", 900 });
    WANT(db, "v_engines WHERE engine = 2", { "n", 0 }, { "sessions", 0 }, { "steps", 1 }, { "busy_share", 0.9 });
    WANT(db, "v_steps", { "steps", 6 }, { "trimmed_steps", 2 }, { "rows", 48 }, { "rows_per_step", 8 },
         { "entries_per_step", 20.0 / 6 }, { "busy_ns", 13e7 }, { "span_ns", 1e8 }, { "busy_share", 0.65 });
    WANT(db, "v_memory", { "steps", 6 }, { "kv_bytes_peak", 900 });
    WANT(db, "v_speculation", { "n", 2 }, { "decode_steps", 10 }, { "drafted_tokens", 40 }, { "accepted_tokens", 18 },
         { "acceptance_rate", 0.45 }, { "acceptance_length", 2.8 });
    sqlite3_close(db);
}
END_TEST

/* A run of one request with a speed of x tok/s/user and y total tok/s: times so long that whole nanoseconds and tokens
 * come close enough. */
static void write_point(const cedar_observer *o, int64_t id, const char *replay, double x, double y) {
    char label[32], config[200];
    snprintf(label, sizeof label, "%s %lld", replay, (long long)id);
    snprintf(config, sizeof config, "{\"label\":\"%s\",\"rules\":\"plain\",\"lanes\":%lld,\"seed\":42,"
             "\"replay\":\"%s\",\"window_cache_bytes\":%d}",
             label, (long long)id, replay, strcmp(replay, "exact") ? 0 : 2000);
    cedar_run_row run = run_row(id, label, replay);
    run.config_json = config, run.lanes = (uint32_t)id, run.floor_milli_tok_s_user = 150000, run.floor_percentile = 90;
    OK(o->run_begin(o->self, &run, &err));
    double out = round(20000 * x), last = 1 + (out - 1) / x;
    cedar_request_row r = request_row(id, 1, 0, 1, last, (uint32_t)round(y * last - out), (uint32_t)out);
    OK(o->request(o->self, &r, &err));
    cedar_run_end_row end = run_end_row(id);
    OK(o->run_end(o->self, &end, &err));
}

/* The measured points of two layouts in tests/test_score.c as one arm; the front and its values at 150 are known. The
 * last run is an arm of its own, whose exact counterpart has as many lanes. */
START_TEST(test_fronts) {
    static const double points[][2] = {
        { 287.23, 10133.87 }, { 255.57, 10743.47 }, { 166.86, 27095.30 }, { 104.87, 46969.42 }, { 57.33, 83359.20 },
        { 24.83, 103358.43 }, { 284.58, 5691.77 }, { 221.80, 14553.90 }, { 141.46, 26473.64 }, { 82.72, 47932.15 },
        { 40.45, 67353.94 }
    };
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    for (int i = 0; i < 11; i++) write_point(o, i + 1, "exact", points[i][0], points[i][1]);
    cedar_run_row run = run_row(12, "both 3", "both");
    run.config_json = "{\"label\":\"both 3\",\"rules\":\"plain\",\"lanes\":3,\"seed\":42,\"replay\":\"both\","
                      "\"window_cache_bytes\":0}";
    run.lanes = 3;
    OK(o->run_begin(o->self, &run, &err));
    OK(cedar_store_close(s, true, &err));
    sqlite3 *db = open_plain();
    check_text(db, "SELECT group_concat(run_id) FROM (SELECT run_id FROM v_frontier WHERE on_front "
                   "ORDER BY intvty_p90)", "6,5,10,4,3,8,2,1");
    check_text(db, "SELECT arm || arm_label || runs FROM v_arms WHERE run_id = 5", "1exact11");
    check_text(db, "SELECT arm || arm_label || runs || exact_run FROM v_arms WHERE run_id = 12", "2both 313");
    WANT(db, "v_frontier_at", { "points", 11 }, { "knots", 8 }, { "floor_tok_s_user", 150 }, { "COUNT(*)", 1 });
    const double known[] = { 32843.35169266598, 32500.65026939829, 1000, 1000 };
    const char *const columns[] = { "total_tok_s", "total_tok_s_linear", "ttft_p90_ms", "ttft_p90_ms_linear" };
    for (int i = 0; i < 4; i++) {
        char sql[80];
        snprintf(sql, sizeof sql, "SELECT %s FROM v_frontier_at", columns[i]);
        ck_assert_double_eq_tol(number(db, sql), known[i], 1e-7 * known[i]);
    }
    /* A floor beyond the front has no value. */
    ck_assert_int_eq(sqlite3_exec(db, "UPDATE runs SET floor_milli_tok_s_user = 287300", NULL, NULL, NULL), SQLITE_OK);
    WANT(db, "v_frontier_at", { "total_tok_s", NONE }, { "ttft_p90_ms", NONE });
    check_text(db, "SELECT answer FROM v_answers WHERE rank = 60",
               "exact: none of its points keeps the floor, the fastest has 287.2 tok/s/user.");
    ck_assert_int_eq(sqlite3_exec(db, "UPDATE runs SET floor_milli_tok_s_user = 24000", NULL, NULL, NULL), SQLITE_OK);
    check_text(db, "SELECT answer FROM v_answers WHERE rank = 60",
               "exact: at least 103,358 tok/s of all GPUs, what its slowest point gives at 24.8 tok/s/user; the front "
               "is not extended.");
    sqlite3_close(db);
}
END_TEST

/* A run of three requests, one after the other, with these times to first token. */
static void write_ttfts(const cedar_observer *o, int64_t id, const char *replay, const double ttft[3]) {
    char config[160];
    snprintf(config, sizeof config, "{\"label\":\"%s\",\"rules\":\"plain\",\"lanes\":1,\"seed\":42,"
             "\"replay\":\"%s\",\"window_cache_bytes\":0}", replay, replay);
    cedar_run_row run = run_row(id, replay, replay);
    run.config_json = config, run.lanes = 1;
    OK(o->run_begin(o->self, &run, &err));
    for (int i = 0; i < 3; i++) {
        double at = 100 * i;
        cedar_request_row r = request_row(id, i + 1, at, at + ttft[i], at + ttft[i] + 10, 1000, 11);
        OK(o->request(o->self, &r, &err));
    }
    cedar_run_end_row end = run_end_row(id);
    OK(o->run_end(o->self, &end, &err));
}

/* What replay saves at p90 does not hide a median that got worse. */
START_TEST(test_savings) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    write_ttfts(o, 1, "exact", (const double[]){ 0.1, 0.2, 0.9 });
    write_ttfts(o, 2, "decoder", (const double[]){ 0.1, 0.3, 0.5 });
    write_ttfts(o, 3, "both", (const double[]){ 0.1, 0.2, 0.5 });
    OK(cedar_store_close(s, true, &err));
    sqlite3 *db = open_plain();
    check_text(db, "SELECT SUBSTR(answer, INSTR(answer, ': ') + 2, 90) FROM v_answers WHERE rank = 30 AND answer "
               "LIKE 'decoder%'", "TTFT p90 460.0 ms instead of 760.0 (-39.5 %), TTFT p50 300.0 ms instead of 200.0 "
               "(+50.0 %)");
    check_text(db, "SELECT answer LIKE '%TTFT p50%' FROM v_answers WHERE rank = 30 AND answer LIKE 'both%'", "0");
    sqlite3_close(db);
}
END_TEST

START_TEST(test_cache_and_steps) {
    write_example();
    sqlite3 *db = open_plain();
    WANT(db, "v_cache WHERE run_id = 1", { "blocks_total", 16 }, { "blocks_hit_theory", 7 },
         { "hit_rate_theory", 0.4375 }, { "hit_tokens", 384 }, { "matched_tokens", 428 }, { "hit_rate", 384.0 / 780 },
         { "replayed_tokens", 192 }, { "trimmed_tokens", 44 }, { "replayed_per_hit_token", 0.5 },
         { "trimmed_share", 44.0 / (780 - 384 + 192) }, { "provenance_depth_max", 2 });
    WANT(db, "v_misses WHERE run_id = 1 AND miss = 'cold'", { "requests", 2 }, { "miss_tokens", 150 });
    WANT(db, "v_steps WHERE run_id = 1", { "steps", 2 }, { "trimmed_steps", 1 }, { "rows", 30 },
         { "rows_per_step", 15 }, { "entries_per_step", 6.5 }, { "replayed_share", 0.25 }, { "kept_share", 2.0 / 3 },
         { "busy_ns", 4e7 }, { "span_ns", 1e8 }, { "busy_share", 0.4 }, { "rows_per_busy_s", 750 });
    WANT(db, "v_memory WHERE run_id = 1", { "kv_bytes_peak", 2000 }, { "window_bytes_peak", 4000 },
         { "window_per_kv", 2 }, { "pages_free_min", 5 });
    WANT(db, "v_memory WHERE run_id = 2", { "steps", 0 }, { "kv_bytes_peak", -1e300 });
    WANT(db, "v_sessions WHERE run_id = 1", { "sessions", 1 }, { "requests_planned", 9 }, { "requests_done", 7 });
    WANT(db, "v_validity WHERE run_id = 1", { "completed", 5 }, { "errors", 1 }, { "errors_per_completed", 0.2 },
         { "errors_ok", 0 }, { "ttft_p90_s", 0.74 }, { "valid", 0 });
    WANT(db, "v_validity WHERE run_id = 2", { "errors_ok", 1 }, { "valid", 1 });
    WANT(db, "v_summary WHERE run_id = 1", { "requests", 5 }, { "ttft_p50_ms", 550 }, { "ttft_p90_ms", 740 },
         { "itl_p90_ms", 580 }, { "intvty_p90", 1 / 0.58 }, { "total_tok_s", 800 / 5.1 }, { "hit_rate", 384.0 / 780 },
         { "kl_mean", 0.4028 });
    sqlite3_close(db);
}
END_TEST

START_TEST(test_quality) {
    write_example();
    sqlite3 *db = open_plain();
    /* KL 0, 0.001, 0.003, 0.01, 2: mean 2.014/5. p90: k = 3.6, 0.01 + 0.6 * 1.99. p99: k = 3.96.
     * Decisive (margin > 0.1, so not the 0.1 one): three, of which two agree. dlogp: 0, -0.25, 0.5, 0, -2.
     * SE by request: request 2 sums to 0.004 - 3 * 0.4028, request 5 to 2.01 - 2 * 0.4028 = 1.2044;
     * sqrt(2 * 1.2044^2 * 2 / 1) / 5. */
    WANT(db, "v_quality WHERE run_id = 1", { "positions", 5 }, { "requests", 2 }, { "positions_unkept", 0 },
         { "kl_mean", 0.4028 }, { "kl_mean_se", 0.48176 }, { "kl_p50", 0.003 }, { "kl_p90", 1.204 },
         { "kl_p99", 1.9204 }, { "kl_p999", 1.99204 }, { "kl_max", 2 }, { "kl_zero_n", 1 }, { "kl_qp_mean", 0.2014 },
         { "js_mean", 0.1007 }, { "ratio_max", 20 }, { "top1_rate", 0.4 }, { "decisive_n", 3 },
         { "decisive_rate", 2.0 / 3 }, { "dlogp_mean", -0.35 }, { "dlogp_sum", -1.75 }, { "dlogp_per_100", -35 },
         { "dlogp_over_01", 0.6 }, { "dlogp_over_1", 0.2 }, { "ppl_p", 4.4816890703380645 },
         { "ppl_q", 6.359819522601832 });
    WANT(db, "v_quality WHERE run_id = 2", { "positions", 0 }, { "kl_mean", -1e300 });
    WANT(db, "v_quality_offset WHERE bin_label = '0'", { "positions", 1 }, { "kl_mean", 0 });
    WANT(db, "v_quality_offset WHERE bin_label = '1-15'", { "positions", 2 }, { "requests", 1 }, { "kl_mean", 0.002 },
         { "kl_p50", 0.002 }, { "kl_p90", 0.0028 }, { "top1_rate", 0.5 }, { "decisive_n", 1 }, { "decisive_rate", 1 },
         { "dlogp_mean", 0.125 });
    WANT(db, "v_quality_offset WHERE bin_label = '16-63'", { "positions", 1 }, { "kl_mean", 0.01 });
    WANT(db, "v_quality_offset WHERE bin_label = '255-888'", { "positions", 1 }, { "kl_mean", 2 });
    WANT(db, "(SELECT * FROM v_quality_offset)", { "COUNT(*)", 4 });
    WANT(db, "v_quality_turn WHERE turn = 1", { "positions", 2 }, { "kl_mean", 1.005 });
    WANT(db, "v_quality_depth WHERE provenance_depth = 2", { "positions", 2 }, { "top1_rate", 0 });
    WANT(db, "v_kl_histogram WHERE label = '1e-3'", { "positions", 2 });
    WANT(db, "v_kl_histogram WHERE label = '1e-2'", { "positions", 1 });
    WANT(db, "v_kl_histogram WHERE label = '0'", { "positions", 1 });
    WANT(db, "v_kl_histogram WHERE label = '>= 1'", { "positions", 1 });
    sqlite3_close(db);
}
END_TEST

/* Bins must cover every offset exactly once, also at the ends. */
START_TEST(test_offset_bins) {
    write_example();
    sqlite3 *db = open_plain();
    WANT(db, "offset_bins", { "COUNT(*)", 11 });
    WANT(db,
         "(SELECT lo, LAG(hi) OVER (ORDER BY bin) AS before FROM offset_bins) WHERE before IS NOT NULL AND lo <> "
         "before + 1",
         { "COUNT(*)", 0 });
    WANT(db,
         "timing_columns t LEFT JOIN pragma_table_info(t.table_name) c ON c.name = t.column_name WHERE c.name IS NULL",
         { "COUNT(*)", 0 });
    sqlite3_close(db);
}
END_TEST

/* Latencies that are not positive are dropped; a run without requests has rows with n = 0. */
START_TEST(test_odd_requests) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    cedar_run_row one = run_row(1, "one", "exact"), none = run_row(2, "none", "exact");
    OK(o->run_begin(o->self, &one, &err));
    cedar_request_row r[] = { request_row(1, 1, 1, 1, 1, 10, 2), request_row(1, 2, 2, 2.5, 2.5, 10, 4) };
    for (int i = 0; i < 2; i++) OK(o->request(o->self, &r[i], &err));
    cedar_quality_row scored[] = { quality_row(1, 9, 0, 0.5, -1, -1, 0.5, true),
                                   quality_row(3, 9, 0, 0.5, -1, -1, 0.5, true) };  /* request 3 never ended */
    for (int i = 0; i < 2; i++) OK(o->quality(o->self, &scored[i], &err));
    cedar_run_end_row end = run_end_row(1);
    OK(o->run_end(o->self, &end, &err));
    OK(o->run_begin(o->self, &none, &err));
    end = run_end_row(2);
    end.status = "interrupted";
    OK(o->run_end(o->self, &end, &err));
    OK(cedar_store_close(s, true, &err));
    sqlite3 *db = open_plain();
    WANT(db, "v_latency WHERE run_id = 1 AND metric = 'ttft'", { "n", 1 }, { "excluded_undefined", 1 },
         { "p90_ns", 5e8 }, { "std_ns", 0 });
    WANT(db, "v_latency WHERE run_id = 1 AND metric = 'itl'", { "n", 0 }, { "excluded_undefined", 2 },
         { "p90_ns", -1e300 });
    WANT(db, "v_throughput WHERE run_id = 1", { "output_tokens", 6 }, { "duration_ns", 1.5e9 });
    WANT(db, "v_quality WHERE run_id = 1", { "positions", 2 }, { "positions_unkept", 1 }, { "kl_mean", 0.5 });
    /* Two completions 1.5 s apart: one whole window, holding the first of them. */
    WANT(db, "v_qps WHERE run_id = 1", { "windows", 1 }, { "mean_qps", 1 });
    WANT(db, "v_latency WHERE run_id = 2 AND metric = 'e2el'", { "n", 0 }, { "mean_ns", -1e300 });
    WANT(db, "v_throughput WHERE run_id = 2", { "n", 0 }, { "total_tok_s", -1e300 });
    WANT(db, "v_qps WHERE run_id = 2", { "windows", 0 }, { "mean_qps", -1e300 });
    WANT(db, "v_cache WHERE run_id = 2", { "hit_rate", -1e300 });
    sqlite3_close(db);
    FILE *f = fopen("/dev/null", "w");
    OK(cedar_report_text(db_path, f, 80, false, &err));
    OK(cedar_report_html(db_path, f, &err));
    fclose(f);
}
END_TEST

/* --- the store ---------------------------------------------------------------------------------------------------- */

START_TEST(test_store_close) {
    write_example();
    char side[128];
    snprintf(side, sizeof side, "%s-wal", db_path);
    ck_assert(!exists(side));
    snprintf(side, sizeof side, "%s-shm", db_path);
    ck_assert(!exists(side));
    sqlite3 *db = open_plain();
    check_text(db, "PRAGMA journal_mode", "delete");
    check_text(db, "PRAGMA integrity_check", "ok");
    check_text(db, "SELECT seed FROM manifest", "18446744073709551615");
    check_text(db, "SELECT event_hash FROM runs WHERE run_id = 1", "fedcba9876543210");
    check_text(db, "SELECT device FROM runs WHERE run_id = 1", "card-x");
    WANT(db, "pragma_foreign_key_check", { "COUNT(*)", 0 });
    WANT(db, "manifest", { "finished", 1 });
    WANT(db, "pragma_application_id", { "application_id", 0x43454452 });
    WANT(db, "pragma_user_version", { "user_version", 5 });
    sqlite3_close(db);
}
END_TEST

/* Rows of a run in real time are there for other programs, and after a kill, though no row comes behind them. */
START_TEST(test_store_tick) {
    cedar_store *s;
    OK(cedar_store_create(db_path, false, &s, &err));
    const cedar_observer *o = cedar_store_observer(s);
    cedar_manifest_row m = manifest_row();
    cedar_run_row r = run_row(1, "a", "exact");
    cedar_step_row w = { .run_id = 1, .step_id = 1, .steps = 1, .engine = 1, .graph = "none" };
    OK(o->manifest(o->self, &m, &err));
    OK(o->run_begin(o->self, &r, &err));
    OK(o->step(o->self, &w, &err));
    usleep(1100000);
    sqlite3 *db = open_plain();
    WANT(db, "steps", { "COUNT(*)", 0 });
    OK(o->tick(o->self, &err));
    WANT(db, "steps", { "COUNT(*)", 1 });
    sqlite3_close(db);
    OK(cedar_store_close(s, true, &err));
}
END_TEST

START_TEST(test_store_replace) {
    cedar_store *s;
    write_text(db_path, "my thesis\n");
    ck_assert_int_eq(cedar_store_create(db_path, false, &s, &err), CEDAR_E_IO);
    ck_assert_int_eq(cedar_store_create(db_path, true, &s, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "not a cedar database"));
    ck_assert_ptr_null(s);
    struct stat info;
    ck_assert(stat(db_path, &info) == 0 && info.st_size == 10);
    /* Another program's SQLite file is as untouchable. */
    unlink(db_path);
    sqlite3 *db;
    ck_assert_int_eq(sqlite3_open(db_path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, "CREATE TABLE t (a)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    ck_assert_int_eq(cedar_store_create(db_path, true, &s, &err), CEDAR_E_IO);
    ck_assert(exists(db_path));
    unlink(db_path);
    write_example();
    ck_assert_int_eq(cedar_store_create(db_path, false, &s, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "exists"));
    OK(cedar_store_create(db_path, true, &s, &err));
    OK(cedar_store_close(s, false, &err));
    db = open_plain();
    WANT(db, "runs", { "COUNT(*)", 0 });
    sqlite3_close(db);
    ck_assert_int_eq(cedar_store_create(dir, true, &s, &err), CEDAR_E_IO);
    char missing[128];
    snprintf(missing, sizeof missing, "%s/no/such/run.db", dir);
    ck_assert_int_eq(cedar_store_create(missing, false, &s, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "No such file"));
    OK(cedar_store_close(NULL, true, &err));
}
END_TEST

/* A database that someone is writing is not pulled away from under them. */
START_TEST(test_store_in_use) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o), *second;
    ck_assert_int_eq(cedar_store_create(db_path, true, &second, &err), CEDAR_E_BUSY);
    ck_assert_ptr_nonnull(strstr(err.msg, "in use"));
    cedar_run_row run = run_row(1, "a", "exact");
    OK(o->run_begin(o->self, &run, &err));
    /* Reports may be made meanwhile. */
    FILE *f = fopen("/dev/null", "w");
    OK(cedar_report_text(db_path, f, 80, false, &err));
    OK(cedar_report_html(db_path, f, &err));
    fclose(f);
    OK(cedar_store_close(s, false, &err));
    sqlite3 *db = open_plain();
    WANT(db, "runs", { "COUNT(*)", 1 });
    WANT(db, "manifest", { "finished", 0 });
    sqlite3_close(db);
}
END_TEST

START_TEST(test_store_refused_rows) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    cedar_run_row run = run_row(1, "a", "exact");
    cedar_step_row step = step_row(1, 1);
    cedar_manifest_row m = manifest_row();
    ck_assert_int_eq(o->manifest(o->self, &m, &err), CEDAR_E_DB);
    ck_assert_int_eq(o->step(o->self, &step, &err), CEDAR_E_DB);            /* no such run */
    OK(o->run_begin(o->self, &run, &err));
    OK(o->step(o->self, &step, &err));
    ck_assert_int_eq(o->step(o->self, &step, &err), CEDAR_E_DB);            /* twice */
    ck_assert_ptr_nonnull(strstr(err.msg, "table steps refuses a row"));
    cedar_quality_row q = quality_row(1, 0, 0, NAN, -1, -1, 0, true);
    ck_assert_int_eq(o->quality(o->self, &q, &err), CEDAR_E_DB);
    ck_assert_ptr_nonnull(strstr(err.msg, "kl_pq is not a number"));
    step.step_id = 2, step.kv_bytes_used = UINT64_MAX;
    ck_assert_int_eq(o->step(o->self, &step, &err), CEDAR_E_DB);
    ck_assert_ptr_nonnull(strstr(err.msg, "kv_bytes_used"));
    cedar_run_end_row end = run_end_row(2);
    ck_assert_int_eq(o->run_end(o->self, &end, &err), CEDAR_E_DB);          /* never began */
    end = run_end_row(1);
    end.status = "great";
    ck_assert_int_eq(o->run_end(o->self, &end, &err), CEDAR_E_DB);
    end.status = "failed", end.error = "a refused row";
    OK(o->run_end(o->self, &end, &err));                                    /* the run can still say that it failed */
    OK(cedar_store_close(s, true, &err));
    sqlite3 *db = open_plain();
    WANT(db, "steps", { "COUNT(*)", 1 });
    check_text(db, "SELECT status FROM runs", "failed");
    sqlite3_close(db);
}
END_TEST

/* A child writes steps and counts them in shared memory; it is killed somewhere. */
static void write_until_killed(volatile uint64_t *written) {
    const cedar_observer *o;
    (void)open_store(&o);
    cedar_run_row run = run_row(1, "killed", "exact");
    OK(o->run_begin(o->self, &run, &err));
    *written = 1;
    for (int64_t i = 1;; i++) {
        cedar_step_row step = step_row(1, i);
        if (o->step(o->self, &step, &err)) _exit(3);
        *written = (uint64_t)i + 1;
    }
}

START_TEST(test_kill) {
    volatile uint64_t *written = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne((void *)(uintptr_t)written, MAP_FAILED);
    *written = 0;
    uint64_t target = cedar_rng_below(cedar_rng_key(7, "kill"), (uint64_t)_i, 30000);
    fflush(NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) write_until_killed(written);
    while (*written <= target) usleep(50);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    uint64_t sent = *written - 1;

    cedar_stored *stored;
    OK(cedar_stored_load(db_path, &stored, &err));      /* read-only, with the -wal file beside it */
    ck_assert(!stored->finished);
    ck_assert_uint_eq(stored->run_count, 1);
    ck_assert_str_eq(stored->runs[0].status, "running");
    uint64_t kept = stored->runs[0].recorded.count;
    cedar_stored_free(stored);
    FILE *f = fopen("/dev/null", "w");
    OK(cedar_report_text(db_path, f, 80, false, &err));
    fclose(f);
    sqlite3 *db = open_plain();
    check_text(db, "PRAGMA integrity_check", "ok");
    check_text(db, "SELECT status FROM runs", "running");
    ck_assert_double_eq(number(db, "SELECT COUNT(*) FROM steps"), (double)kept);
    ck_assert_double_eq(number(db, "SELECT COALESCE(MAX(step_id), 0) FROM steps"), (double)kept);
    sqlite3_close(db);
    /* At most one transaction is lost, and the one under way may have been committed. */
    ck_assert_msg(kept + 4096 >= sent && kept <= sent + 1, "%lu rows sent, %lu kept", sent, kept);
    munmap((void *)(uintptr_t)written, 4096);
    cedar_store *s;
    OK(cedar_store_create(db_path, true, &s, &err));    /* what is left behind can be replaced */
    OK(cedar_store_close(s, true, &err));
}
END_TEST

/* A full disk: the first failure names the file and the cause, and nothing is written after it. */
static int fill_disk(void) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    cedar_run_row run = run_row(1, "full", "exact");
    if (o->run_begin(o->self, &run, &err)) return 1;
    struct rlimit limit = { 1 << 20, 1 << 20 };
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit)) return 2;
    cedar_status st = CEDAR_OK;
    int64_t i = 0;
    while (!st && i < 200000) {
        cedar_step_row step = step_row(1, ++i);
        st = o->step(o->self, &step, &err);
    }
    if (st != CEDAR_E_IO || !strstr(err.msg, db_path) || !strstr(err.msg, "while")) return 3;
    /* Some kernels say "File too large", else SQLite's own code is all there is. */
    if (!strstr(err.msg, "File too large") && !strstr(err.msg, "cannot be written")) return 7;
    cedar_step_row step = step_row(1, ++i);
    if (o->step(o->self, &step, &err) != CEDAR_E_IO) return 4;
    if (cedar_store_close(s, true, &err) != CEDAR_E_IO) return 5;
    return cedar_mem_live() ? 6 : 0;
}

START_TEST(test_disk_full) {
    fflush(NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) _exit(fill_disk());
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child said %d", WEXITSTATUS(status));
    sqlite3 *db = open_plain();
    check_text(db, "PRAGMA integrity_check", "ok");
    check_text(db, "SELECT status FROM runs", "running");
    WANT(db, "manifest", { "finished", 0 });
    ck_assert(number(db, "SELECT COUNT(*) = MAX(step_id) FROM steps") == 1);
    sqlite3_close(db);
}
END_TEST

START_TEST(test_read_only_directory) {
    ck_assert_int_eq(chmod(dir, 0555), 0);
    fflush(NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        cedar_store *s;
        if (geteuid() == 0 && setuid(65534)) _exit(2);
        _exit(cedar_store_create(db_path, false, &s, &err) == CEDAR_E_IO && strstr(err.msg, "Permission denied") &&
              strstr(err.msg, db_path) ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    chmod(dir, 0755);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

/* --- reading back ------------------------------------------------------------------------------------------------- */

START_TEST(test_stored) {
    write_example();
    cedar_stored *s;
    OK(cedar_stored_load(db_path, &s, &err));
    ck_assert(s->finished);
    ck_assert_str_eq(s->scenario_text, "run { lanes = 8 }\n");
    ck_assert_str_eq(s->overrides, "[\"seed=7\"]");
    ck_assert_uint_eq(s->run_count, 2);
    ck_assert_str_eq(s->runs[0].label, "example");
    ck_assert_str_eq(s->runs[0].status, "finished");
    ck_assert(s->runs[0].event_hash == 0xfedcba9876543210ull &&
              s->runs[0].recorded.event_hash == s->runs[0].event_hash);
    ck_assert_uint_eq(s->runs[0].recorded.count, 2);
    ck_assert(s->runs[0].recorded.step_ns[0] == 10 * MS && s->runs[0].recorded.step_ns[1] == 30 * MS);
    ck_assert_uint_eq(s->runs[1].recorded.count, 0);
    cedar_stored_free(s);
    cedar_stored_free(NULL);
    /* A gap in the steps cannot be replayed. */
    sqlite3 *db = open_plain();
    ck_assert_int_eq(sqlite3_exec(db, "DELETE FROM steps WHERE step_id = 1", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    ck_assert_int_eq(cedar_stored_load(db_path, &s, &err), CEDAR_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "lacks step 1"));
}
END_TEST

START_TEST(test_foreign_files) {
    FILE *f = fopen("/dev/null", "w");
    ck_assert_int_eq(cedar_report_text(db_path, f, 80, false, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "no such file"));
    write_text(db_path, "");
    ck_assert_int_eq(cedar_report_text(db_path, f, 80, false, &err), CEDAR_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "empty"));
    write_text(db_path,
               "not a database, just some words that go on for longer than the header of an SQLite file is, which "
               "is one hundred bytes, so that nobody can say it was too short\n");
    ck_assert_int_eq(cedar_report_html(db_path, f, &err), CEDAR_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "not a cedar database"));
    ck_assert_int_eq(cedar_report_csv(dir, "v_summary", f, &err), CEDAR_E_FORMAT);
    unlink(db_path);
    write_example();
    sqlite3 *db = open_plain();
    ck_assert_int_eq(sqlite3_exec(db, "PRAGMA user_version = 0", NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(cedar_report_text(db_path, f, 80, false, &err), CEDAR_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "schema 0, this cedar reads schema 5"));
    ck_assert_int_eq(sqlite3_exec(db, "PRAGMA user_version = 5", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    /* Truncated, and with a page overwritten. */
    ck_assert_int_eq(truncate(db_path, 8192), 0);
    ck_assert_int_eq(cedar_report_text(db_path, f, 80, false, &err), CEDAR_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "damaged"));
    fclose(f);
}
END_TEST

/* --- output ------------------------------------------------------------------------------------------------------- */

typedef cedar_status (*report_fn)(const char *arg, FILE *to);

static cedar_status html_to(const char *arg, FILE *to) { (void)arg; return cedar_report_html(db_path, to, &err); }
static cedar_status csv_to(const char *view, FILE *to) { return cedar_report_csv(db_path, view, to, &err); }
static cedar_status text_to(const char *width, FILE *to) {
    return cedar_report_text(db_path, to, atoi(width), false, &err);
}
static cedar_status brief_to(const char *width, FILE *to) {
    return cedar_report_brief(db_path, "./cedar", to, atoi(width), false, &err);
}
static cedar_status color_to(const char *width, FILE *to) {
    return cedar_report_text(db_path, to, atoi(width), true, &err);
}

/* Output as a string; free() it. */
static char *output(report_fn fn, const char *arg) {
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(f);
    OK(fn(arg, f));
    fclose(f);
    ck_assert_uint_eq(strlen(text), bytes);
    return text;
}

/* Two rungs and a third beyond what is published, worked out by hand: TTFT at 1k 160 -> 100 -> none, throughput 10 ->
 * 25 -> 40. */
static void write_ladder(const cedar_observer *o) {
    const cedar_ladder_row ladder = { 1, "one by one", "modelled", "h", "flash", "" };
    OK(o->finding(o->self, CEDAR_FINDING_LADDER, &ladder, &err));
    const char *const names[] = { "day-0", "graphs", "more" };
    for (uint32_t i = 1; i <= 3; i++) {
        const cedar_rung_row rung = { 1, i, names[i - 1], "because", i == 2 ? "{\"graphs\":\"split\"}" : "{}",
                                      i == 3 };
        OK(o->finding(o->self, CEDAR_FINDING_RUNG, &rung, &err));
    }
    const cedar_figure_row figures[] = {
        { 1, 1, "ttft", "ms", "", 1024, 160, (double)NAN, (double)NAN, 3, 0 },
        { 1, 2, "ttft", "ms", "", 1024, 100, 90, 110, 3, 1 },
        { 1, 1, "tok_s_gpu_at_floor", "tok/s/GPU", "", 0, 10, (double)NAN, (double)NAN, 0, 0 },
        { 1, 2, "tok_s_gpu_at_floor", "tok/s/GPU", "", 0, 25, (double)NAN, (double)NAN, 3, 0 },
        { 1, 3, "tok_s_gpu_at_floor", "tok/s/GPU", "", 0, 40, (double)NAN, (double)NAN, 3, 0 },
        { 1, 1, "kl_mean", "nats", "", 0, 0.5, (double)NAN, (double)NAN, 0, 0 },
        { 1, 2, "kl_mean", "nats", "", 0, 0.25, (double)NAN, (double)NAN, 0, 0 },
    };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        OK(o->finding(o->self, CEDAR_FINDING_FIGURE, &figures[i], &err));
}

static cedar_claim_row claim_row(int64_t id, double ours, const char *provenance, const char *verdict) {
    return (cedar_claim_row){ .claim_id = id, .source = "blog", .date = "2026-10-07", .model = "m", .hardware = "GB300",
                              .engine = "e", .metric = "speedup", .condition = "c", .unit = "x", .url = "https://a",
                              .published = 5, .ours = ours, .lo = isnan(ours) ? ours : ours - 1,
                              .hi = isnan(ours) ? ours : ours + 1, .n = 7, .provenance = provenance,
                              .verdict = verdict, .why = "rule", .run_id = id == 1 ? 1 : 0 };
}

static void write_claims(const cedar_observer *o) {
    const cedar_claim_row claims[] = { claim_row(1, 6, "modelled", "undecided"),
                                       claim_row(2, 10, "modelled", "not reproduced"),
                                       claim_row(3, 2.5, "modelled", "not reproduced"),
                                       claim_row(4, (double)NAN, "none", "not tested") };
    for (size_t i = 0; i < 4; i++) OK(o->finding(o->self, CEDAR_FINDING_CLAIM, &claims[i], &err));
    const cedar_sensitivity_row swing = { 1, "launch_ns", 500, 2000, 8, 4 };
    OK(o->finding(o->self, CEDAR_FINDING_SENSITIVITY, &swing, &err));
}

static void write_paired(const cedar_observer *o) {
    cedar_paired_row row = { .paired_id = 1, .a_run = 1, .b_run = 1, .a_runs = "1", .b_runs = "1", .metric = "itl_ms",
                             .pairs = 5, .sessions = 2, .left_out = 3, .mean_a = 10, .mean_b = 12, .diff = 2,
                             .diff_lo = 1, .diff_hi = 3, .ratio = 1.2, .ratio_lo = 1.1, .ratio_hi = 1.3,
                             .resamples = 100, .seed = UINT64_MAX };
    OK(o->finding(o->self, CEDAR_FINDING_PAIRED, &row, &err));
    row.paired_id = 2;
    row.ratio_lo = row.ratio_hi = (double)NAN;
    OK(o->finding(o->self, CEDAR_FINDING_PAIRED, &row, &err));
    row.paired_id = 3;
    row.a_run = 9;
    ck_assert_int_eq(o->finding(o->self, CEDAR_FINDING_PAIRED, &row, &err), CEDAR_E_DB);
}

/* Kept, shown, and an empty table in databases of before there was one. */
START_TEST(test_paired_is_kept) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    cedar_run_row run = run_row(1, "a", "exact");
    OK(o->run_begin(o->self, &run, &err));
    write_paired(o);
    cedar_run_end_row end = run_end_row(1);
    OK(o->run_end(o->self, &end, &err));
    OK(cedar_store_close(s, true, &err));
    sqlite3 *db = open_plain();
    WANT(db, "v_paired WHERE paired_id = 1 AND verdict = 'more' AND a_label = 'a'", { "pairs", 5 }, { "left_out", 3 },
         { "ratio_lo", 1.1 }, { "mean_b", 12 });
    WANT(db, "v_paired WHERE paired_id = 2 AND verdict = 'no interval' AND ratio_lo IS NULL", { "ratio", 1.2 });
    check_text(db, "SELECT seed FROM paired WHERE paired_id = 1", "18446744073709551615");
    sqlite3_close(db);
    char *text = output(text_to, "160");
    ck_assert_ptr_nonnull(strstr(text, "a, run 1 against run 1: ITL 12.0 ms instead of 10.0, ratio 1.200"));
    ck_assert_ptr_nonnull(strstr(text, "Paired comparisons"));
    free(text);
    ck_assert_int_eq(sqlite3_open(db_path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, "DROP VIEW v_answers; DROP VIEW v_paired; DROP TABLE paired", NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    text = output(text_to, "160");
    ck_assert_ptr_null(strstr(text, "against run 1"));
    ck_assert_ptr_nonnull(strstr(text, "Summary"));
    free(text);
}
END_TEST

START_TEST(test_findings) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    cedar_run_row run = run_row(1, "a", "exact");
    OK(o->run_begin(o->self, &run, &err));
    write_ladder(o);
    write_claims(o);
    OK(cedar_store_close(s, true, &err));
    sqlite3 *db = open_plain();
    WANT(db, "pragma_foreign_key_check", { "COUNT(*)", 0 });
    WANT(db, "ladder_figures WHERE rung = 2 AND metric = 'ttft'", { "value", 100 }, { "lo", 90 }, { "hi", 110 },
         { "n", 3 }, { "run_id", 1 });
    WANT(db, "ladder_figures WHERE lo IS NULL AND hi IS NULL AND run_id IS NULL", { "COUNT(*)", 6 });
    WANT(db, "v_ladder", { "COUNT(*)", 3 });
    WANT(db, "v_ladder WHERE rung = 2", { "ttft_1k_ms", 100 }, { "ttft_1k_factor", 1.6 }, { "tok_s_gpu_factor", 2.5 },
         { "tok_s_gpu_factor_first", 2.5 }, { "kl_mean", 0.25 });
    WANT(db, "v_ladder WHERE rung = 1 AND ttft_1k_factor IS NULL AND ttft_4k_ms IS NULL", { "ttft_1k_ms", 160 },
         { "tok_s_gpu_factor_first", 1 });
    WANT(db, "v_ladder WHERE rung = 3 AND ttft_1k_ms IS NULL", { "COUNT(*)", 1 });
    WANT(db, "v_ladder_figures WHERE metric = 'kl_mean' AND factor IS NULL", { "COUNT(*)", 2 });
    WANT(db, "v_claims WHERE claim_id = 1", { "published", 5 }, { "ours", 6 }, { "lo", 5 }, { "hi", 7 },
         { "ratio", 1.2 }, { "n", 7 }, { "run_id", 1 });
    WANT(db, "v_claims WHERE claim_id = 4 AND ours IS NULL AND lo IS NULL AND run_id IS NULL", { "COUNT(*)", 1 });
    WANT(db, "v_claims_summary WHERE verdict = 'not reproduced'", { "claims", 2 }, { "ratio_least", 0.5 },
         { "ratio_most", 2 });
    WANT(db, "v_claims_summary", { "COUNT(*)", 3 });
    WANT(db, "v_claim_sensitivity", { "claim_id", 1 }, { "setting_lo", 500 }, { "ours_lo", 8 }, { "swing", 0.5 });
    check_text(db, "SELECT provenance FROM v_claims_summary LIMIT 1 OFFSET 2", "none");
    check_text(db, "SELECT switches FROM v_ladder WHERE rung = 2", "{\"graphs\":\"split\"}");
    check_text(db, "SELECT answer FROM v_answers WHERE rank = 20", "one by one: 2.50x in tok/s/GPU at the speed floor "
               "(mean of 3 seeds) over the first rung; most from graphs 2.50x. With 1 rung more than is published: "
               "4.00x.");
    sqlite3_close(db);
}
END_TEST

/* What the tables forbid: verdicts without a figure and figures without one, provenances that are none, a run that is
 * not there (row 1 names it), sensitivities of nothing. */
START_TEST(test_findings_refused) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    const cedar_claim_row bad[] = { claim_row(2, 6, "guessed", "reproduced"), claim_row(2, 6, "modelled", "likely"),
                                    claim_row(2, (double)NAN, "modelled", "not tested"),
                                    claim_row(2, (double)NAN, "none", "reproduced"),
                                    claim_row(2, 6, "none", "not tested"), claim_row(1, 6, "modelled", "undecided"),
                                    claim_row(0, 6, "modelled", "undecided") };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(o->finding(o->self, CEDAR_FINDING_CLAIM, &bad[i], &err), CEDAR_E_DB);
    const cedar_claim_row good = claim_row(2, 6, "modelled", "undecided");
    OK(o->finding(o->self, CEDAR_FINDING_CLAIM, &good, &err));
    const cedar_sensitivity_row swing = { 9, "a", 1, 2, 1, 2 };
    ck_assert_int_eq(o->finding(o->self, CEDAR_FINDING_SENSITIVITY, &swing, &err), CEDAR_E_DB);
    const cedar_ladder_row mixed = { 1, "t", "both", "h", "m", "" };
    ck_assert_int_eq(o->finding(o->self, CEDAR_FINDING_LADDER, &mixed, &err), CEDAR_E_DB);
    OK(cedar_store_close(s, true, &err));
}
END_TEST

/* Behind a run: the summary while there are few runs, expectations that fail, one line for all sessions cut. */
START_TEST(test_brief) {
    for (int64_t runs = 30; runs <= 31; runs++) {
        const cedar_observer *o;
        cedar_store *s = open_store(&o);
        for (int64_t id = 1; id <= runs; id++) {
            cedar_run_row run = run_row(id, "a", "exact");
            cedar_run_end_row end = run_end_row(id);
            end.sessions_unfinished = 2, end.requests_unfinished = id == 1;
            OK(o->run_begin(o->self, &run, &err));
            OK(o->run_end(o->self, &end, &err));
        }
        const cedar_expect_row e[] = { { "this is so", "", true }, { "that is so", "it is not", false } };
        for (int i = 0; i < 2; i++) OK(o->expect(o->self, &e[i], &err));
        OK(cedar_store_close(s, true, &err));
        char *text = output(brief_to, "300"), line[80];
        ck_assert_int_eq(strstr(text, "\nSummary\n") != NULL, runs == 30);
        ck_assert_ptr_nonnull(strstr(text, "1 of 2 expectations of the scenario FAIL."));
        ck_assert_ptr_nonnull(strstr(text, "\nexpectation fails: that is so it is not\n"));
        ck_assert_ptr_null(strstr(text, "this is so"));
        ck_assert_ptr_nonnull(strstr(text, "\nrun 1 a: unfinished at the end: 1 requests, 2 sessions\n"));
        ck_assert_ptr_null(strstr(text, "run 2 a: unfinished"));
        snprintf(line, sizeof line, "\nunfinished at the end: 0 requests, %d sessions (runs: %d)\n",
                 (int)(2 * (runs - 1)), (int)(runs - 1));
        ck_assert_ptr_nonnull(strstr(text, line));
        ck_assert_ptr_nonnull(strstr(text, "everything: ./cedar report "));
        free(text);
        text = output(text_to, "300");
        ck_assert_ptr_nonnull(strstr(text, "\n1 hold, 1 fail\n"));
        ck_assert_ptr_null(strstr(text, "this is so"));
        free(text);
        unlink(db_path);
    }
}
END_TEST

/* What is called measured may not rest on modelled time, nor the other way round. */
START_TEST(test_findings_of_another_clock) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    cedar_run_row run = run_row(1, "a", "exact");
    OK(o->run_begin(o->self, &run, &err));
    run = run_row(2, "b", "exact");
    run.clock = "measured";
    OK(o->run_begin(o->self, &run, &err));
    cedar_claim_row claim = claim_row(1, 6, "measured", "undecided");
    ck_assert_int_eq(o->finding(o->self, CEDAR_FINDING_CLAIM, &claim, &err), CEDAR_E_DB);
    ck_assert_ptr_nonnull(strstr(err.msg, "refuses a row: its provenance is not that of the run it names"));
    claim.run_id = 2;
    OK(o->finding(o->self, CEDAR_FINDING_CLAIM, &claim, &err));
    claim = claim_row(2, 6, "modelled", "undecided");
    claim.run_id = 2;
    ck_assert_int_eq(o->finding(o->self, CEDAR_FINDING_CLAIM, &claim, &err), CEDAR_E_DB);
    claim.provenance = "computed";
    OK(o->finding(o->self, CEDAR_FINDING_CLAIM, &claim, &err));
    for (int64_t id = 1; id <= 2; id++) {       /* ladder 1 is modelled, 2 measured; so are the runs */
        const cedar_ladder_row ladder = { id, "t", id == 1 ? "modelled" : "measured", "h", "m", "" };
        const cedar_rung_row rung = { id, 1, "n", "", "{}", false };
        OK(o->finding(o->self, CEDAR_FINDING_LADDER, &ladder, &err));
        OK(o->finding(o->self, CEDAR_FINDING_RUNG, &rung, &err));
        const cedar_figure_row own = { id, 1, "itl", "ms", "", 0, 1, (double)NAN, (double)NAN, 0, id },
                               other = { id, 1, "ttft", "ms", "", 0, 1, (double)NAN, (double)NAN, 0, 3 - id },
                               quality = { id, 1, "kl_mean", "nats", "", 0, 1, (double)NAN, (double)NAN, 0, 3 - id };
        OK(o->finding(o->self, CEDAR_FINDING_FIGURE, &own, &err));
        OK(o->finding(o->self, CEDAR_FINDING_FIGURE, &quality, &err));
        ck_assert_int_eq(o->finding(o->self, CEDAR_FINDING_FIGURE, &other, &err), CEDAR_E_DB);
        ck_assert_ptr_nonnull(strstr(err.msg, "the ladder's provenance is not that of the figure's run"));
    }
    OK(cedar_store_close(s, true, &err));
}
END_TEST

START_TEST(test_csv) {
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    cedar_run_row run = run_row(1, "a, \"b\"\r\nc", "exact");
    OK(o->run_begin(o->self, &run, &err));
    cedar_expect_row e[] = { { "plain", "", true },
                             { "with, comma", "say \"hi\"", false },
                             { "two\nlines", "\xC3\xA9", true } };
    for (int i = 0; i < 3; i++) OK(o->expect(o->self, &e[i], &err));
    OK(cedar_store_close(s, true, &err));
    char *text = output(csv_to, "expectations");
    ck_assert_str_eq(text, "expect_id,what,detail,ok\r\n1,plain,\"\",1\r\n2,\"with, comma\",\"say \"\"hi\"\"\",0\r\n"
                           "3,\"two\nlines\",\xC3\xA9,1\r\n");
    free(text);
    /* NULL is an empty field, and reals read back exactly. */
    text = output(csv_to, "v_throughput");
    ck_assert_str_eq(text,
                     "run_id,label,n,excluded_phase,excluded_error,duration_ns,input_tokens,output_tokens,total_tokens,"
                     "input_tok_s,output_tok_s,total_tok_s,requests_s\r\n1,\"a, \"\"b\"\"\r\nc\",0,0,0,,,,,,,,\r\n");
    free(text);
    size_t count;
    const char *const *views = cedar_report_views(&count);
    for (size_t i = 0; i < count; i++) {
        text = output(csv_to, views[i]);
        ck_assert_ptr_nonnull(strstr(text, "\r\n"));
        free(text);
    }
    ck_assert_int_eq(cedar_report_csv(db_path, "v_sumary; DROP TABLE runs", stdout, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "v_summary, v_population"));
    ck_assert_ptr_nonnull(strstr(err.msg, "v_answers"));
    ck_assert_ptr_nonnull(strstr(err.msg, "tables go without v_"));
    ck_assert_int_eq(cedar_report_csv(db_path, "request", stdout, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "manifest, runs"));
    ck_assert_ptr_nonnull(strstr(err.msg, "names with v_, audit or claim list theirs"));
    ck_assert_ptr_nonnull(strstr(err.msg, "expectations"));
    ck_assert_ptr_nonnull(strstr(err.msg, "endpoint_metrics"));
    ck_assert_int_eq(cedar_report_csv(db_path, "v_audits", stdout, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "v_audit, v_audit_excess"));
    ck_assert_ptr_nonnull(strstr(err.msg, "audit_stats"));
    ck_assert_int_eq(cedar_report_csv(db_path, "v_claim", stdout, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "known are v_ladder, v_ladder_figures, v_claims, v_claims_summary, "
                                          "v_claim_sensitivity, v_claim_points, ladders, ladder_rungs, "
                                          "ladder_figures, claims, claim_sensitivity"));
    FILE *full = fopen("/dev/full", "w");
    ck_assert_int_eq(cedar_report_csv(db_path, "runs", full, &err), CEDAR_E_IO);
    fclose(full);
}
END_TEST

/* Every view of the database is listed, so that the list, the help and docs/METRICS.md cannot fall behind. */
START_TEST(test_views_listed) {
    write_example();
    sqlite3 *db = open_plain();
    sqlite3_stmt *q;
    FILE *f = fopen("docs/METRICS.md", "r");
    ck_assert_ptr_nonnull(f);
    char *doc = calloc(1, 1 << 20);
    ck_assert(fread(doc, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    size_t count, found = 0;
    const char *const *views = cedar_report_views(&count);
    ck_assert_int_eq(sqlite3_prepare_v2(db, "SELECT name FROM sqlite_schema WHERE type = 'view'", -1, &q, NULL),
                     SQLITE_OK);
    while (sqlite3_step(q) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(q, 0);
        bool listed = false;
        for (size_t i = 0; i < count; i++) listed |= !strcmp(views[i], name);
        ck_assert_msg(listed, "%s is not in cedar_report_views", name);
        ck_assert_msg(strstr(doc, name) != NULL, "%s is not in docs/METRICS.md", name);
        found++;
    }
    ck_assert_uint_eq(found + 26, count);   /* and the tables: nine of runs, eleven of audits, six of findings */
    free(doc);
    sqlite3_finalize(q);
    sqlite3_close(db);
}
END_TEST

/* No line of a text report is wider than the limit; characters of two columns count as one here. */
static void check_widths(const char *text, int limit) {
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        int columns = 0;
        for (size_t i = 0; i < n; i++) columns += ((unsigned char)line[i] & 0xC0) != 0x80;
        ck_assert_msg(columns <= limit, "wider than %d: %.*s", limit, (int)n, line);
        line += n + (line[n] == '\n');
    }
}

START_TEST(test_text) {
    write_example();
    static const char *const widths[] = { "10", "60", "80", "120", "400" };
    static const int limits[] = { 60, 60, 80, 120, 400 };
    for (int w = 0; w < 5; w++) {
        char *text = output(text_to, widths[w]);
        check_widths(text, limits[w]);
        ck_assert_ptr_nonnull(strstr(text, "740.0"));           /* p90 TTFT */
        ck_assert_ptr_nonnull(strstr(text, "card-x"));
        ck_assert_ptr_nonnull(strstr(text, "49.23%"));          /* hit rate 384/780 */
        ck_assert_ptr_nonnull(strstr(text, "requests in error: 1"));
        ck_assert_ptr_nonnull(strstr(text, "16-63"));
        ck_assert_ptr_null(strchr(text, '\033'));
        free(text);
    }
    char *text = output(color_to, "80");
    ck_assert_ptr_nonnull(strchr(text, '\033'));
    free(text);
}
END_TEST

static const char hostile[] = "</script><img src=x onerror=alert(1)>&\"'\x1b[31m\xff\xe2\x80\xa8 \xe6\xa8\xb9";

static void write_hostile_findings(const cedar_observer *o) {
    const cedar_ladder_row ladder = { 1, hostile, "modelled", hostile, hostile, hostile };
    OK(o->finding(o->self, CEDAR_FINDING_LADDER, &ladder, &err));
    for (uint32_t i = 1; i <= 2; i++) {
        const cedar_rung_row rung = { 1, i, hostile, hostile, hostile, false };
        const cedar_figure_row figure = { 1, i, "itl", hostile, hostile, 0, i, 0, INFINITY, 3, 0 };
        OK(o->finding(o->self, CEDAR_FINDING_RUNG, &rung, &err));
        OK(o->finding(o->self, CEDAR_FINDING_FIGURE, &figure, &err));
    }
    cedar_claim_row claim = { 1, hostile, hostile, hostile, hostile, hostile, "throughput_ratio_at_interactivity",
                              hostile, hostile, hostile, 5, 6, -INFINITY, INFINITY, 7, "modelled", "undecided",
                              hostile, 0 };
    OK(o->finding(o->self, CEDAR_FINDING_CLAIM, &claim, &err));
    claim.claim_id = 2, claim.metric = hostile, claim.url = "https://\"><img src=x>";
    OK(o->finding(o->self, CEDAR_FINDING_CLAIM, &claim, &err));
    const cedar_sensitivity_row swing = { 1, hostile, -INFINITY, INFINITY, 0, INFINITY };
    OK(o->finding(o->self, CEDAR_FINDING_SENSITIVITY, &swing, &err));
}

static void write_hostile(void) {
    const cedar_observer *o;
    cedar_store *s;
    OK(cedar_store_create(db_path, false, &s, &err));
    o = cedar_store_observer(s);
    cedar_manifest_row m = manifest_row();
    m.scenario_path = m.scenario_text = m.machine = m.compiler = m.commit = m.started_at = hostile;
    m.overrides = "[\"x='</script><b>'; rm -rf ~\"]";
    OK(o->manifest(o->self, &m, &err));
    cedar_run_row run = run_row(1, hostile, hostile);
    run.config_json = "{\"</script><i>\":\"<b onclick='x'>\"}";
    run.model_name = run.model_origin = run.backend = hostile;
    char endless[400];
    memset(endless, 'x', sizeof endless - 1);       /* one word, wider than any terminal */
    endless[sizeof endless - 1] = 0;
    run.trace_paths = endless;
    OK(o->run_begin(o->self, &run, &err));
    cedar_request_row r = request_row(1, 1, 1, 2, 3, 10, 5);
    r.trace_id = r.error = hostile;
    OK(o->request(o->self, &r, &err));
    r = request_row(1, 2, 1, 2, 3, 10, 5);
    r.trace_id = hostile;
    OK(o->request(o->self, &r, &err));
    cedar_quality_row q = quality_row(2, 12, 1, INFINITY, -1, -INFINITY, 0.5, false);
    OK(o->quality(o->self, &q, &err));
    cedar_expect_row e = { hostile, hostile, false };
    OK(o->expect(o->self, &e, &err));
    write_hostile_findings(o);
    cedar_run_end_row end = run_end_row(1);
    end.status = "failed", end.error = hostile;
    OK(o->run_end(o->self, &end, &err));
    OK(cedar_store_close(s, true, &err));
    sqlite3 *db;                                /* and a file that was tampered with */
    ck_assert_int_eq(sqlite3_open(db_path, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, "PRAGMA ignore_check_constraints = 1; UPDATE claims SET provenance = "
                                  "'\"><img src=y>', verdict = '<img src=z>'", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* Checks that elements nest, that attributes are quoted and names are known ones; counts script and img elements.
 * A small parser of our own dialect: the report writes every end tag. */
typedef struct tags { int scripts, images, depth, ids; } tags;

static bool is_void(const char *name) {
    return !strcmp(name, "meta") || !strcmp(name, "img") || !strcmp(name, "link") || !strcmp(name, "!doctype");
}

static const char *skip_attributes(const char *p, tags *found) {
    while (*p && *p != '>') {
        p += strspn(p, " \n");
        if (*p == '>') break;
        size_t n = strcspn(p, "= \n>\"");
        ck_assert_msg(n > 0 && strspn(p, "abcdefghijklmnopqrstuvwxyz-") == n, "attribute name at: %.60s", p);
        ck_assert_msg(strncmp(p, "on", 2) != 0, "event handler at: %.60s", p);
        found->ids += n == 2 && !strncmp(p, "id", 2);
        p += n;
        if (*p != '=') continue;
        ck_assert_msg(p[1] == '"', "unquoted attribute at: %.60s", p);
        const char *end = strchr(p + 2, '"');
        ck_assert_ptr_nonnull(end);
        ck_assert_msg(!memchr(p + 2, '<', (size_t)(end - p - 2)), "raw < in an attribute at: %.60s", p);
        p = end + 1;
    }
    ck_assert_msg(*p == '>', "tag without end");
    return p + 1;
}

static tags check_html(const char *html) {
    char stack[64][16];
    tags found = { 0 };
    for (const char *p = html; (p = strchr(p, '<'));) {
        bool closing = p[1] == '/';
        const char *name = p + 1 + closing;
        size_t n = strcspn(name, " >\n");
        char tag[16];
        ck_assert_msg(n > 0 && n < sizeof tag, "tag at: %.60s", p);
        for (size_t i = 0; i < n; i++) tag[i] = (char)(name[i] | (name[i] >= 'A' && name[i] <= 'Z' ? 0x20 : 0));
        tag[n] = 0;
        if (!strcmp(tag, "!doctype")) {
            p = strchr(p, '>');
            continue;
        }
        p = skip_attributes(name + n, &found);
        if (closing) {
            ck_assert_msg(found.depth > 0 && !strcmp(stack[found.depth - 1], tag), "</%s> closes <%s>", tag,
                          found.depth ? stack[found.depth - 1] : "nothing");
            found.depth--;
            continue;
        }
        found.scripts += !strcmp(tag, "script");
        found.images += !strcmp(tag, "img");
        if (is_void(tag)) continue;
        ck_assert_int_lt(found.depth, 64);
        strcpy(stack[found.depth++], tag);
        if (!strcmp(tag, "script") || !strcmp(tag, "style")) {      /* raw text up to the end tag */
            char end[20];
            snprintf(end, sizeof end, "</%s", tag);
            p = strstr(p, end);
            ck_assert_ptr_nonnull(p);
        }
    }
    return found;
}

START_TEST(test_html) {
    write_example();
    char *html = output(html_to, NULL), *again = output(html_to, NULL);
    ck_assert_str_eq(html, again);
    tags t = check_html(html);
    ck_assert_int_eq(t.depth, 0);
    ck_assert_int_eq(t.scripts, 3);
    ck_assert_int_eq(t.images, 0);
    /* Nothing is fetched: no address of the network outside comments and names of standards. */
    ck_assert_ptr_null(strstr(html, "src=\"http"));
    ck_assert_ptr_null(strstr(html, "href=\"http"));
    ck_assert_ptr_nonnull(strstr(html, "740.0"));
    ck_assert_ptr_nonnull(strstr(html, "sha256-"));
    free(html);
    free(again);
}
END_TEST

START_TEST(test_html_hostile) {
    write_hostile();
    char *html = output(html_to, NULL);
    tags t = check_html(html);
    ck_assert_int_eq(t.depth, 0);
    ck_assert_int_eq(t.scripts, 3);
    ck_assert_int_eq(t.images, 0);
    ck_assert_ptr_null(strstr(html, "<img"));
    ck_assert_ptr_null(strstr(html, "<b onclick"));
    ck_assert_ptr_null(strchr(html, '\x1b'));
    ck_assert_ptr_nonnull(strstr(html, "&lt;/script&gt;&lt;img"));
    ck_assert_ptr_nonnull(strstr(html, "\\u003c/script\\u003e"));
    free(html);
    /* A terminal is not to be steered either. */
    char *text = output(text_to, "100");
    ck_assert_ptr_null(strchr(text, '\x1b'));
    ck_assert_ptr_nonnull(strstr(text, "failed"));
    check_widths(text, 100);
    free(text);
}
END_TEST

/* Every allocation of ours may fail: an error, no leak, no half-made file. */
START_TEST(test_faults) {
    write_example();
    int64_t live = cedar_mem_live();
    FILE *f = fopen("/dev/null", "w");
    char path[128];
    snprintf(path, sizeof path, "%s/new.db", dir);
    for (int what = 0; what < 4; what++) {
        cedar_status st = CEDAR_E_OOM;
        for (int n = 1; st; n++) {
            ck_assert_int_lt(n, 1000);
            cedar_store *s = NULL;
            cedar_stored *stored = NULL;
            cedar_mem_fail_at(n);
            if (what == 0) st = cedar_store_create(path, false, &s, &err);
            if (what == 1) st = cedar_stored_load(db_path, &stored, &err);
            if (what == 2) st = cedar_report_text(db_path, f, 80, false, &err);
            if (what == 3) st = cedar_report_html(db_path, f, &err);
            cedar_mem_fail_at(0);
            if (st) {
                ck_assert_int_eq(st, CEDAR_E_OOM);
                ck_assert(!s && !stored && (what != 0 || !exists(path)));
            }
            OK(cedar_store_close(s, false, &err));
            cedar_stored_free(stored);
            ck_assert_int_eq(cedar_mem_live(), live);
        }
    }
    fclose(f);
}
END_TEST

/* --- a plausible database to look at ---------------------------------------------------------------------------- */

typedef struct fake {
    const cedar_observer *o;
    uint64_t key, counter;
    int64_t run;
    bool decoder, encoder;
} fake;

static double uniform(fake *f) { return (double)cedar_rng_below(f->key, f->counter++, 1u << 24) / (1u << 24); }

static void fake_quality(fake *f, const cedar_request_row *r) {
    if (!f->decoder && !f->encoder) return;
    for (uint32_t d = 0; d < 6000 && d < r->out_tokens + 40; d += d < 130 ? 3 : 61) {
        double base = (f->encoder ? 4e-4 : 0) * exp(-(double)d / 180) + (f->decoder ? 2e-4 : 0) * exp(-(double)d / 60);
        double kl = base * (0.02 + 4 * pow(uniform(f), 6)) * (1 + 0.1 * r->turn) + 2e-7 * uniform(f);
        double dlogp = (uniform(f) - 0.51) * sqrt(kl);
        cedar_quality_row q = { .run_id = f->run,
                                .request_id = r->request_id,
                                .pos = r->in_tokens + d,
                                .offset = (int32_t)d,
                                .hit_tokens = r->hit_tokens,
                                .prompt_tokens = r->in_tokens,
                                .token = (int32_t)(d % 500),
                                .kl_pq = kl,
                                .kl_qp = kl * 1.1,
                                .js = kl / 4,
                                .logp_p = -1.2 * uniform(f) - 0.01,
                                .top1_prob_p = 0.7,
                                .margin_p = uniform(f),
                                .ratio_max = 20 * sqrt(kl),
                                .top1_same = uniform(f) > sqrt(kl) * 0.5 };
        q.logp_q = q.logp_p + dlogp;
        OK(f->o->quality(f->o->self, &q, &err));
    }
}

enum { FAKE_LANES = 8, FAKE_TURNS = 30 };

static int by_arrival(const void *a, const void *b) {
    const cedar_request_row *x = a, *y = b;
    return x->arrival_ns != y->arrival_ns ? (x->arrival_ns < y->arrival_ns ? -1 : 1)
                                          : (x->lane > y->lane) - (x->lane < y->lane);
}

static cedar_request_row fake_request(fake *f, int lane, int turn, uint32_t context, double *clock) {
    double hit = turn && uniform(f) > 0.06 ? (context > 900 ? context - 900 : 0) : 0;
    hit -= fmod(hit, 64);
    uint32_t out = (uint32_t)(20 + 300 * uniform(f) * uniform(f));
    double fed = context - hit + (f->encoder && hit > 0 ? 128 : 0);
    double wait = 0.03 * uniform(f) + (!f->encoder ? 0.12 * uniform(f) : 0);
    double prefill = 0.05 + fed * (f->decoder ? 0.00021 : 0.0004) * (0.8 + 0.4 * uniform(f));
    double itl = (f->decoder ? 0.0049 : 0.0057) * (0.85 + 0.5 * uniform(f));
    double first = *clock + wait + prefill;
    cedar_request_row r = request_row(f->run, 0, *clock, first, first + itl * (out - 1), context, out);
    r.admit_ns = llround((*clock + wait) * 1e9);
    r.lane = lane, r.turn = turn, r.session_id = lane + 1;
    r.hit_tokens = (uint32_t)hit, r.matched_tokens = r.hit_tokens,
    r.provenance_depth = f->encoder ? (uint32_t)turn / 3 : 0;
    r.replayed_tokens = f->encoder && hit > 0 ? 128 : 0;
    r.trimmed_tokens = f->decoder && fed > 128 ? (uint32_t)fed - 128 : 0;
    r.blocks_total = context / 64, r.blocks_hit_theory = turn ? (context - 700) / 64 : 0;
    r.miss = hit > 0 ? CEDAR_MISS_PAGE_TAIL : turn ? CEDAR_MISS_EVICTED : CEDAR_MISS_COLD;
    r.trace_id = lane % 2 ? "trace_0057" : "trace_0242";
    if (turn < 1) r.phase = "warmup";
    if (lane == 3 && turn == 17) r.error = "the context is longer than the model allows";
    *clock = (double)r.last_ns / 1e9 + (uniform(f) < 0.2 ? 3 * uniform(f) : 0.15 * uniform(f));
    return r;
}

static void fake_steps(fake *f, const cedar_request_row *r, int n) {
    int64_t end = 0, step_ns = 20 * MS, id = 0;
    for (int i = 0; i < n; i++) end = r[i].last_ns > end ? r[i].last_ns : end;
    for (int64_t t = 0; t < end; t += step_ns) {
        cedar_step_row s = { .run_id = f->run,
                             .step_id = ++id,
                             .steps = 1,
                             .engine = 1,
                             .graph = "none",
                             .start_sched_ns = t,
                             .end_sched_ns = t + step_ns,
                             .start_ns = t,
                             .plan_ns = 20000,
                             .pages_free = 1000,
                             .pages_cached = 500 };
        double context = 0;
        for (int i = 0; i < n; i++) {
            if (r[i].admit_ns <= t && t < r[i].first_ns) {
                double share = (double)step_ns / (double)(r[i].first_ns - r[i].admit_ns);
                s.prefill_entries++;
                s.prefill_rows +=
                    (uint32_t)((r[i].in_tokens - r[i].hit_tokens + r[i].replayed_tokens) * fmin(1, share));
                s.replayed_rows += (uint32_t)(r[i].replayed_tokens * fmin(1, share));
            } else if (r[i].first_ns <= t && t < r[i].last_ns) {
                s.decode_entries++;
                s.decode_rows += 4;
            }
            if (r[i].arrival_ns <= t && t < r[i].last_ns) context += r[i].in_tokens;
        }
        s.entries = s.running = s.prefill_entries + s.decode_entries;
        s.rows = s.prefill_rows + s.decode_rows;
        s.kept_rows = f->decoder ? s.decode_rows + (s.prefill_rows < 128 ? s.prefill_rows : 128) : s.rows;
        s.trimmed = s.kept_rows < s.rows;
        s.kv_bytes_used = (uint64_t)(context * 890 + 4e7 * (1 - exp(-(double)t / 2e10)));
        s.window_bytes_stored = f->encoder ? 0 : (uint64_t)(6e8 * (1 - exp(-(double)t / 1.5e10)));
        s.duration_ns = s.entries ? step_ns - MS - (int64_t)(uniform(f) * 4e6) : 0;
        if (s.entries) OK(f->o->step(f->o->self, &s, &err));
        else id--;
    }
}

static void fake_run(fake *f, const char *label, const char *replay, const char *config) {
    static cedar_request_row rows[FAKE_LANES * FAKE_TURNS];
    cedar_run_row run = run_row(f->run, label, replay);
    run.config_json = config;
    OK(f->o->run_begin(f->o->self, &run, &err));
    int n = 0;
    f->counter = 0;
    for (int lane = 0; lane < FAKE_LANES; lane++) {
        double clock = 0.2 * lane;
        uint32_t context = 3000 + (uint32_t)(4000 * uniform(f));
        for (int turn = 0; turn < FAKE_TURNS; turn++) {
            rows[n++] = fake_request(f, lane, turn, context, &clock);
            context += 300 + (uint32_t)(600 * uniform(f));
        }
        cedar_session_row s = { .run_id = f->run,
                                .session_id = lane + 1,
                                .lane = lane,
                                .trace_id = rows[n - 1].trace_id,
                                .streams = 1,
                                .requests_planned = 34,
                                .requests_done = FAKE_TURNS,
                                .end_ns = llround(clock * 1e9),
                                .outcome = "cut" };
        OK(f->o->session(f->o->self, &s, &err));
    }
    qsort(rows, (size_t)n, sizeof *rows, by_arrival);
    for (int i = 0; i < n; i++) {
        rows[i].request_id = i + 1;
        OK(f->o->request(f->o->self, &rows[i], &err));
        if (i % 3 == 0) fake_quality(f, &rows[i]);
    }
    fake_steps(f, rows, n);
    cedar_run_end_row end = run_end_row(f->run);
    end.requests_unfinished = 5, end.sessions_unfinished = 2;
    OK(f->o->run_end(f->o->self, &end, &err));
}

static void write_fake(void) {
    static const char *const replays[] = { "exact", "decoder", "encoder", "both" };
    cedar_store *s;
    OK(cedar_store_create(db_path, true, &s, &err));
    fake f = { .o = cedar_store_observer(s) };
    cedar_manifest_row m = manifest_row();
    m.scenario_text =
        "-- four arms of one load\nfor _, replay in ipairs { \"exact\", \"decoder\", \"encoder\", \"both\" } do\n"
        "    run { label = replay, replay = replay, lanes = 8, trace = \"traces/kv-cache-tester\" }\nend\n";
    OK(f.o->manifest(f.o->self, &m, &err));
    for (int i = 0; i < 4; i++) {
        char config[160];
        snprintf(config, sizeof config,
                 "{\"model\":\"tiny\",\"lanes\":8,\"replay\":\"%s\",\"trace\":\"traces/kv-cache-tester\","
                 "\"page_tokens\":64,\"duration_s\":600}",
                 replays[i]);
        f.run = i + 1, f.decoder = i & 1, f.encoder = i & 2, f.key = cedar_rng_key(42, "fake");
        fake_run(&f, replays[i], replays[i], config);
    }
    cedar_expect_row e = { "top-1 agreement of every arm", "at least 99 %", true };
    OK(f.o->expect(f.o->self, &e, &err));
    OK(cedar_store_close(s, true, &err));
}

START_TEST(test_fake_reports) {
    write_fake();
    char *html = output(html_to, NULL);
    tags t = check_html(html);
    ck_assert_int_eq(t.depth, 0);
    free(html);
    sqlite3 *db = open_plain();
    WANT(db, "runs", { "COUNT(*)", 4 });
    check_text(db, "PRAGMA integrity_check", "ok");
    sqlite3_close(db);
}
END_TEST

/* Two runs of two sessions with two turns each. TTFT of run 1: 100 and 200 ms, 400 ms and an error; of run 2: 110 and
 * 230 ms, 500 and 100 ms. Lanes have changed places in run 2, as they do in real time. Worked out by hand. */
static void write_pairs(void) {
    static const double ttft[2][4] = { { 0.1, 0.2, 0.4, 0.3 }, { 0.11, 0.23, 0.5, 0.1 } };
    const cedar_observer *o;
    cedar_store *s = open_store(&o);
    for (int run = 0; run < 2; run++) {
        cedar_run_row begin = run_row(run + 1, "pairs", "unknown");
        OK(o->run_begin(o->self, &begin, &err));
        for (int i = 0; i < 4; i++) {
            int id = run ? 4 - i : i + 1;       /* another order */
            cedar_request_row q = request_row(run + 1, id, i, i + ttft[run][i], i + 0.9, 10, 5);
            cedar_http_row h = { .run_id = run + 1, .request_id = id, .endpoint = 1, .status = 200, .error_class = "",
                                 .finish = "length", .in_asked = 8, .out_asked = i ? 5 : 6, .deltas = 2, .usage = true,
                                 .retry_after_s = -1, .end_ns = (int64_t)i * S + 2 * S };
            q.session_id = i / 2 + 1, q.lane = run ? 1 - i / 2 : i / 2, q.turn = i % 2;
            if (!run && i == 3) {
                q.error = "HTTP status 429";
                h.error_class = "http_429", h.status = 429, h.retry_after_s = 7;
            }
            OK(o->request(o->self, &q, &err));
            OK(o->http(o->self, &h, &err));
        }
        for (int i = 1; i < 3; i++) {
            cedar_session_row session = { .run_id = run + 1, .session_id = i, .lane = run ? 2 - i : i - 1,
                                          .trace_id = "t", .outcome = "finished" };
            OK(o->session(o->self, &session, &err));
        }
        cedar_metric_row m = { run + 1, 1, "after", "hits_total", "a=\"b\"", 12.5 };
        OK(o->metric(o->self, &m, &err));
        cedar_run_end_row end = run_end_row(run + 1);
        OK(o->run_end(o->self, &end, &err));
    }
    OK(cedar_store_close(s, true, &err));
}

START_TEST(test_pairs) {
    const int64_t a[] = { 1, 1 }, b[] = { 2, 2 };
    cedar_pairs x;
    write_pairs();
    OK(cedar_pairs_load(db_path, a, b, 1, "ttft_ms", &x, &err));
    ck_assert_uint_eq(x.count, 2);
    ck_assert_double_eq_tol(x.list[0].a, 300, 1e-6);
    ck_assert_double_eq_tol(x.list[0].b, 340, 1e-6);
    ck_assert_double_eq_tol(x.list[1].a, 400, 1e-6);
    ck_assert_double_eq_tol(x.list[1].b, 500, 1e-6);
    ck_assert_uint_eq(x.list[0].count, 2);
    ck_assert_uint_eq(x.list[1].count, 1);
    ck_assert_uint_eq(x.left_out, 1);
    cedar_pairs_free(&x);
    OK(cedar_pairs_load(db_path, a, b, 2, "ttft_ms", &x, &err));        /* the same couple twice: the same units */
    ck_assert_uint_eq(x.count, 2);
    ck_assert_double_eq_tol(x.list[1].b, 1000, 1e-6);
    ck_assert_uint_eq(x.left_out, 2);
    cedar_pairs_free(&x);
    ck_assert_int_eq(cedar_pairs_load(db_path, a, b, 1, "tftt_ms", &x, &err), CEDAR_E_ARG);
    const cedar_paired_opts opts = { .a = a, .b = b, .count = 1, .metric = "ttft_ms", .resamples = 500, .seed = 1 };
    cedar_paired p;
    OK(cedar_cli_paired(db_path, &opts, &p, &err));
    ck_assert_uint_eq(p.pairs, 3);
    ck_assert_uint_eq(p.sessions, 2);
    ck_assert_double_eq_tol(p.mean_a, 700 / 3.0, 1e-6);
    ck_assert_double_eq_tol(p.diff, 140 / 3.0, 1e-6);
    ck_assert_double_eq_tol(p.ratio, 1.2, 1e-9);
    /* the first session alone, and the second alone, are a quarter of all resamples each */
    ck_assert_double_eq_tol(p.diff_lo, 20, 1e-6);
    ck_assert_double_eq_tol(p.diff_hi, 100, 1e-6);
    ck_assert_double_eq_tol(p.ratio_lo, 340 / 300.0, 1e-9);
    ck_assert_double_eq_tol(p.ratio_hi, 1.25, 1e-9);
}
END_TEST

START_TEST(test_http) {
    write_pairs();
    sqlite3 *db = open_plain();
    WANT(db, "v_http WHERE run_id = 1", { "requests", 4 }, { "answered", 3 }, { "failed", 1 }, { "stopped_early", 1 },
         { "prompt_asked", 24 }, { "prompt_counted", 30 }, { "prompt_ratio", 1.25 }, { "tokens_per_event", 2.5 });
    WANT(db, "v_http_errors", { "run_id", 1 }, { "requests", 1 }, { "status_max", 429 }, { "retry_after_s", 7 });
    check_text(db, "SELECT error_class FROM v_http_errors", "http_429");
    char *text = output(text_to, "300");
    ck_assert_ptr_nonnull(strstr(text, ": 1 requests failed at endpoint 1, class http_429: "));
    free(text);
    WANT(db, "endpoint_metrics WHERE run_id = 2", { "value", 12.5 }, { "endpoint", 1 });
    WANT(db, "v_request_times WHERE run_id = 2 AND turn = 1 AND lane = 0", { "end_ns", 5e9 });
    sqlite3_close(db);
}
END_TEST

static Suite *reports_suite(void) {
    Suite *suite = suite_create("reports");
    TCase *metrics = tcase_create("metrics"), *store = tcase_create("store"), *out = tcase_create("output");
    TCase *cases[] = { metrics, store, out };
    for (int i = 0; i < 3; i++) {
        tcase_set_timeout(cases[i], 60);
        tcase_add_checked_fixture(cases[i], make_dir, remove_dir);
        suite_add_tcase(suite, cases[i]);
    }
    tcase_add_test(metrics, test_latency);
    tcase_add_test(metrics, test_interactivity);
    tcase_add_test(metrics, test_throughput);
    tcase_add_test(metrics, test_cache_and_steps);
    tcase_add_test(metrics, test_engines);
    tcase_add_test(metrics, test_fronts);
    tcase_add_test(metrics, test_savings);
    tcase_add_test(metrics, test_quality);
    tcase_add_test(metrics, test_offset_bins);
    tcase_add_test(metrics, test_odd_requests);
    tcase_add_test(metrics, test_pairs);
    tcase_add_test(metrics, test_http);
    tcase_add_test(store, test_store_close);
    tcase_add_test(store, test_store_tick);
    tcase_add_test(store, test_store_replace);
    tcase_add_test(store, test_store_in_use);
    tcase_add_test(store, test_store_refused_rows);
    tcase_add_loop_test(store, test_kill, 0, 8);
    tcase_add_test(store, test_disk_full);
    tcase_add_test(store, test_read_only_directory);
    tcase_add_test(store, test_stored);
    tcase_add_test(store, test_foreign_files);
    tcase_add_test(store, test_faults);
    tcase_add_test(out, test_paired_is_kept);
    tcase_add_test(out, test_findings);
    tcase_add_test(out, test_findings_refused);
    tcase_add_test(out, test_findings_of_another_clock);
    tcase_add_test(out, test_brief);
    tcase_add_test(out, test_csv);
    tcase_add_test(out, test_views_listed);
    tcase_add_test(out, test_text);
    tcase_add_test(out, test_html);
    tcase_add_test(out, test_html_hostile);
    tcase_add_test(out, test_fake_reports);
    return suite;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--fake")) {
        snprintf(db_path, sizeof db_path, "%s", argv[2]);
        write_fake();
        return 0;
    }
    SRunner *runner = srunner_create(reports_suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
