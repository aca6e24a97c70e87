/* Tests of what is stored of audits: five positions, and a few rows of every other kind, whose metrics are worked out
 * by
 * hand; and what the reports say of them. */
#include <check.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit_int.h"
#include "base/rng.h"
#include "reports/reports.h"

static cedar_err err;
static char db_path[64];

#define OK(call) ck_assert_msg((call) == CEDAR_OK, "%s", err.msg)

/* --- the example
 * ---------------------------------------------------------------------------------------------------- */

static void put(cedar_store *s, cedar_audit_kind kind, const void *row) {
    const cedar_audit_observer *o = cedar_store_audit_observer(s);
    OK(o->row(o->self, kind, row, &err));
}

/* Five positions of two documents. exp(-1.5) and exp(-1.79) are the mean probabilities of the forced tokens. */
static const cedar_audit_position_row five[] = {
    { .doc = 0, .turn = 1, .pos = 40, .offset = 0, .token = 7, .kl_pq = 0.1, .kl_qp = 0.2, .js = 0.01, .logp_p = -1,
      .logp_q = -1.5, .top1_prob_p = 0.5, .margin_p = 0.3, .ratio_max = 0.5, .top5_jaccard = 0.25, .top1_p = 7,
      .top1_q = 9, .top1_same = false },
    { .doc = 0, .turn = 1, .pos = 41, .offset = 1, .token = 3, .kl_pq = 0.2, .kl_qp = 0.1, .js = 0.02, .logp_p = -2,
      .logp_q = -1.95, .top1_prob_p = 0.2, .margin_p = 0.05, .ratio_max = 0.7, .top5_jaccard = 1, .top1_p = 4,
      .top1_q = 4, .top1_same = true },
    { .doc = 0, .turn = 2, .pos = 60, .offset = 1, .token = 5, .kl_pq = 0, .kl_qp = 0, .js = 0, .logp_p = -0.5,
      .logp_q = -0.5, .top1_prob_p = 0.6, .margin_p = 0.5, .ratio_max = 0, .top5_jaccard = 1, .top1_p = 5, .top1_q = 5,
      .top1_same = true },
    { .doc = 1, .turn = 1, .pos = 55, .offset = 16, .token = 5, .kl_pq = 0.4, .kl_qp = 0.3, .js = 0.04, .logp_p = -3,
      .logp_q = -4.2, .top1_prob_p = 0.4, .margin_p = 0.2, .ratio_max = 1.2, .top5_jaccard = 0.5, .top1_p = 8,
      .top1_q = 1, .top1_same = false },
    { .doc = 1, .turn = 2, .pos = 5100, .offset = 5000, .token = 5, .kl_pq = 0.3, .kl_qp = 0.4, .js = 0.03,
      .logp_p = -1, .logp_q = -0.8, .top1_prob_p = 0.3, .margin_p = 0.02, .ratio_max = 0.2, .top5_jaccard = 1,
      .top1_p = 2, .top1_q = 2, .top1_same = true } };

static void put_positions(cedar_store *s, int64_t arm, double kl_scale) {
    for (size_t i = 0; i < 5; i++) {
        cedar_audit_position_row row = five[i];
        row.audit_id = 1;
        row.arm_id = arm;
        row.kl_pq *= kl_scale;
        put(s, CEDAR_AUDIT_POSITION, &row);
    }
}

static void put_turns(cedar_store *s, int64_t arm) {
    for (uint32_t doc = 0; doc < 2; doc++)
        for (uint32_t turn = 0; turn < 3; turn++) {
            cedar_audit_turn_row row = { .audit_id = 1, .arm_id = arm, .doc = doc, .turn = turn, .doc_name = "d" };
            row.hit = turn * 20;
            row.start = turn ? row.hit - 16 : 0;
            row.prompt_end = row.hit + 10 + turn;
            row.end = row.hit + 20;
            row.provenance_depth = arm == 1 ? turn : 0;
            put(s, CEDAR_AUDIT_TURN, &row);
        }
}

static void put_arms(cedar_store *s) {
    static const cedar_audit_arm_row arms[] = {
        { .arm_id = 1, .label = "encoder", .control = "", .what = "w", .encoder = true, .cut = "", .hits = "replay",
          .fault = "", .rows = 16, .keep = 16 },
        { .arm_id = 2, .label = "exact chunk=7", .control = "C1", .what = "w", .cut = "", .hits = "continue",
          .fault = "", .chunk = 7 } };
    for (int i = 0; i < 2; i++) {
        cedar_audit_arm_row row = arms[i];
        row.audit_id = 1;
        put(s, CEDAR_AUDIT_ARM, &row);
    }
    put(s, CEDAR_AUDIT_FRONT, &(cedar_audit_front_row){ 1, 1, 3, 44, false });
}

static void put_inside(cedar_store *s) {
    static const struct { int32_t offset; double rel, window, jaccard; bool flip; } layers[] = {
        { 1, 0.1, 0.5, 0.25, true }, { 2, 0.3, 0, 0.75, false }, { 20, 0, 0, 1, false } };
    for (uint32_t i = 0; i < 3; i++) {
        cedar_audit_layer_row row = { .audit_id = 1, .arm_id = 1, .doc = 0, .turn = 1, .pos = 40 + i,
                                      .offset = layers[i].offset, .layer = 3, .stream_rel = layers[i].rel,
                                      .vector_rel = 2 * layers[i].rel, .cosine = 1 - layers[i].rel,
                                      .window_differ = layers[i].window, .topk_jaccard = layers[i].jaccard,
                                      .router_flip = layers[i].flip };
        if (i == 2) row.topk_jaccard = (double)NAN;
        put(s, CEDAR_AUDIT_LAYER, &row);
    }
    for (uint32_t i = 0; i < 4; i++) {
        cedar_audit_global_row row = { .audit_id = 1, .arm_id = 1, .doc = 0, .turn = 1, .layer = 3, .entry = 10 + i,
                                       .pos = 21 + 2 * i, .offset = 1 + (int32_t)i, .kv_differ = i == 0 ? 0.5 : 0,
                                       .index_differ = i == 1 ? 0.25 : 0, .latent_rel = i < 2 ? 0.2 : (double)NAN };
        put(s, CEDAR_AUDIT_GLOBAL, &row);
    }
}

static void put_generation(cedar_store *s) {
    static const int32_t left[] = { 3, -1, 0, 8, 3 };
    for (uint32_t i = 0; i < 5; i++)
        put(s, CEDAR_AUDIT_GREEDY,
            &(cedar_audit_greedy_row){ .audit_id = 1, .arm_id = 1, .doc = i, .turn = 2, .tokens = 10,
                                       .diverged_at = left[i], .margin_p = left[i] < 0 ? (double)NAN : 0.1 * (i + 1),
                                       .tie = i == 0 });
    static const uint32_t cycles[][3] = { { 0, 3, 2 }, { 3, 3, 0 }, { 16, 3, 3 }, { 45, 2, 1 }, { 47, 1, 0 } };
    for (uint32_t i = 0; i < 5; i++)        /* window 16, decoder halo 46 */
        put(s, CEDAR_AUDIT_DRAFT,
            &(cedar_audit_draft_row){ .audit_id = 1, .arm_id = 1, .turn = 2, .generated = cycles[i][0],
                                      .drafted = cycles[i][1], .accepted = cycles[i][2] });
    static const struct { const char *place; double p, q; bool ep, eq; } needles[] = {
        { "far", -4, -8, true, false }, { "far", -8, -8, true, true }, { "replayed", -2, -1, false, true },
        { "far", -4, -4, true, false }, { "window", -4, -5, false, false } };
    for (uint32_t i = 0; i < 5; i++)
        put(s, CEDAR_AUDIT_NEEDLE,
            &(cedar_audit_needle_row){ .audit_id = 1, .arm_id = 1, .doc = i % 2, .turn = 2, .needle = i, .pos = 5,
                                       .tokens = 4, .place = needles[i].place, .logp_p = needles[i].p,
                                       .logp_q = needles[i].q, .exact_p = needles[i].ep, .exact_q = needles[i].eq });
}

static void put_end(cedar_store *s) {
    for (int64_t arm = 1; arm <= 2; arm++) {
        put(s, CEDAR_AUDIT_STAT,
            &(cedar_audit_stat_row){ .audit_id = 1, .arm_id = arm, .metric = "kl", .bin = -1, .docs = 2, .positions = 5,
                                     .value = arm == 1 ? 0.2 : 0.1, .lo = 0.1, .hi = 0.3, .p = (double)NAN,
                                     .p_holm = (double)NAN, .margin = 0.001, .p_equivalent = 0.9,
                                     .p_equivalent_holm = 0.9, .verdict = "different" });
        put(s, CEDAR_AUDIT_ARM_END,
            &(cedar_audit_arm_end_row){ .audit_id = 1, .arm_id = arm, .positions = 5, .rows_fed = 100, .kept = 90,
                                        .prompt_rows = 54, .prompt_kept = 24, .replayed = 32, .steps = 12,
                                        .global_rows = 4, .global_differ = 2, .window_bytes = 4096, .greedy_mean = 4.8,
                                        .prompt_ns = 2000000000, .forward_ns = 3000000000 });
    }
    put(s, CEDAR_AUDIT_END,
        &(cedar_audit_end_row){ .audit_id = 1, .status = "finished", .error = "", .result_hash = 0xABCD,
            .positions = 10,
                                .exact_ns = 1, .forward_ns = 7, .score_ns = 1, .wall_ns = 9 });
}

static sqlite3 *example(void) {
    cedar_store *s;
    sqlite3 *db;
    snprintf(db_path, sizeof db_path, "/tmp/cedar-audit-store-%d.db", (int)getpid());
    OK(cedar_store_create(db_path, true, &s, &err));
    put(s, CEDAR_AUDIT_BEGIN,
        &(cedar_audit_begin_row){ .audit_id = 1, .label = "five", .config_json = "{}", .model_name = "tiny",
                                  .model_hash = "h", .model_origin = "synthetic seed 1", .documents = "<by hand>",
                                  .backend = "cpu", .arith = "wide", .seed = 42, .docs = 2, .turns = 6, .vocab = 512,
                                  .window = 16, .layers = 8, .cut = 4, .halo_encoder = 120, .halo_decoder = 46,
                                  .kv_token_bytes_x1000 = 120000, .window_snap_bytes = 1000, .resamples = 100,
                                  .margin_kl = 0.001, .margin_dlogp = 0.001, .margin_top1 = 0.001 });
    put_arms(s);
    put_positions(s, 1, 1);
    put_positions(s, 2, 0.5);
    put_turns(s, 1);
    put_turns(s, 2);
    put_inside(s);
    put_generation(s);
    put_end(s);
    OK(cedar_store_close(s, true, &err));
    ck_assert_int_eq(sqlite3_open_v2(db_path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    return db;
}

static void end(sqlite3 *db) {
    sqlite3_close(db);
    unlink(db_path);
}

/* A number of one row; -1e300 for NULL. */
static double number(sqlite3 *db, const char *column, const char *from) {
    char sql[512];
    sqlite3_stmt *q;
    snprintf(sql, sizeof sql, "SELECT %s FROM %s", column, from);
    ck_assert_msg(sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    ck_assert_msg(sqlite3_step(q) == SQLITE_ROW, "%s: no row", sql);
    double x = sqlite3_column_type(q, 0) == SQLITE_NULL ? -1e300 : sqlite3_column_double(q, 0);
    ck_assert_msg(sqlite3_step(q) == SQLITE_DONE, "%s: more than one row", sql);
    sqlite3_finalize(q);
    return x;
}

typedef struct wanted { const char *column; double value; } wanted;

static void check_row(sqlite3 *db, const char *from, const wanted *w, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double x = number(db, w[i].column, from);
        ck_assert_msg(fabs(x - w[i].value) <= 1e-12 * (1 + fabs(w[i].value)), "%s of %s is %.15g, not %.15g",
                      w[i].column, from, x, w[i].value);
    }
}
#define WANT(from, ...)                                                                                                \
    do {                                                                                                               \
        const wanted w_[] = { __VA_ARGS__ };                                                                           \
        check_row(db, from, w_, sizeof w_ / sizeof *w_);                                                               \
    } while (0)

/* --- metrics of positions
 * -------------------------------------------------------------------------------------------- */

START_TEST(positions_by_hand) {
    sqlite3 *db = example();
    /* sorted KL: 0, 0.1, 0.2, 0.3, 0.4; p90 lies at 3.6, p99 at 3.96, p99.9 at 3.996 */
    WANT("v_audit WHERE arm_id = 1", { "docs", 2 }, { "kept_positions", 5 }, { "kl_mean", 0.2 }, { "kl_max", 0.4 },
         { "kl_zero_n", 1 }, { "kl_p50", 0.2 }, { "kl_p90", 0.36 }, { "kl_p99", 0.396 }, { "kl_p999", 0.3996 },
         { "kl_qp_mean", 0.2 }, { "js_mean", 0.02 }, { "ratio_max", 1.2 }, { "top1_rate", 0.6 },
         { "top5_jaccard", 0.75 }, { "decisive_n", 3 }, { "decisive_rate", 1 / 3.0 }, { "dlogp_mean", -0.29 },
         { "dlogp_per_100", -29 }, { "dlogp_over_01", 0.6 }, { "dlogp_over_1", 0.2 }, { "ppl_p", exp(1.5) },
         { "ppl_q", exp(1.79) }, { "ppl_delta", exp(1.79) - exp(1.5) }, { "kl_lo", 0.1 }, { "kl_hi", 0.3 });
    WANT("v_audit_excess WHERE arm_id = 1", { "noise_arm", 2 }, { "positions", 5 }, { "noise_kl", 0.1 },
         { "excess_kl", 0.1 });
    WANT("v_audit_excess WHERE arm_id = 2", { "excess_kl", 0 });
    WANT("v_audit_offset WHERE arm_id = 1 AND bin_label = '0'", { "positions", 1 }, { "kl_mean", 0.1 });
    WANT("v_audit_offset WHERE arm_id = 1 AND bin_label = '1-15'", { "positions", 2 }, { "docs", 1 }, { "kl_mean",
        0.1 },
         { "kl_p50", 0.1 }, { "kl_p99", 0.198 }, { "kl_max", 0.2 }, { "top1_rate", 1 }, { "decisive_rate", 1 },
         { "dlogp_mean", 0.025 });
    WANT("v_audit_offset WHERE arm_id = 1 AND bin_label = '> 4952'", { "positions", 1 }, { "kl_mean", 0.3 },
         { "decisive_rate", -1e300 });
    WANT("v_audit_profile WHERE arm_id = 1 AND \"offset\" = 1", { "positions", 2 }, { "kl_mean", 0.1 });
    WANT("v_audit_turn WHERE arm_id = 1 AND turn = 1", { "positions", 3 }, { "docs", 2 }, { "kl_mean", 0.7 / 3 },
         { "kl_max", 0.4 }, { "top1_rate", 1 / 3.0 }, { "dlogp_mean", -0.55 });
    WANT("v_audit_depth WHERE arm_id = 1 AND provenance_depth = 2", { "positions", 2 }, { "kl_mean", 0.15 });
    WANT("v_audit_suffix WHERE arm_id = 1 AND suffix = 11", { "positions", 3 }, { "kl_mean", 0.7 / 3 });
    WANT("v_audit_length", { "rows", 16 }, { "halo_encoder", 120 }, { "kl_mean", 0.2 }, { "docs", 2 });
    end(db);
}
END_TEST

START_TEST(other_rows_by_hand) {
    sqlite3 *db = example();
    WANT("v_audit_layers WHERE bin_label = '1-15'", { "positions", 2 }, { "stream_rel", 0.2 }, { "stream_rel_max",
        0.3 },
         { "vector_rel", 0.4 }, { "cosine", 0.8 }, { "window_differ", 0.25 }, { "topk_jaccard", 0.5 },
         { "router_flips", 0.5 }, { "engram_differs", 0 });
    WANT("v_audit_layers WHERE bin_label = '16-63'", { "topk_jaccard", -1e300 }, { "cosine", 1 });
    WANT("v_audit_globals", { "rows_new", 4 }, { "rows_differ", 2 }, { "kv_differ", 0.125 }, { "index_differ", 0.0625 },
         { "latent_rel", 0.2 });
    /* positions 21, 23, 25, 27 of 28 tokens lie in stretches 45, 49, 53, 57 of 60 */
    WANT("v_audit_map WHERE stretch = 45", { "kv_differ", 0.5 }, { "pos_lo", 21 }, { "rows_new", 1 });
    WANT("v_audit_greedy", { "continuations", 5 }, { "censored", 1 }, { "ties", 1 }, { "first_at", 0 },
         { "agree_mean", 4.8 }, { "margin_mean", 0.325 });
    WANT("v_audit_drafts WHERE part = 0", { "cycles", 2 }, { "drafted", 6 }, { "accepted", 2 }, { "tokens_per_cycle",
        2 },
         { "acceptance", 1 / 3.0 });
    WANT("v_audit_drafts WHERE part = 1", { "cycles", 2 }, { "generated_lo", 16 }, { "generated_hi", 45 },
         { "acceptance", 0.8 }, { "tokens_per_cycle", 3 });
    WANT("v_audit_drafts WHERE part = 2", { "cycles", 1 }, { "acceptance", 0 });
    WANT("v_audit_needles WHERE place = 'far'", { "needles", 3 }, { "docs", 2 }, { "dlogp_token", -1 / 3.0 },
         { "exact_p", 3 }, { "exact_q", 1 }, { "lost", 2 }, { "won", 0 });
    WANT("v_audit_needles WHERE place = 'replayed'", { "dlogp_token", 0.25 }, { "won", 1 });
    /* cold prompts: 2 x (10 + 31 + 52) rows of 8 layers; fed: 54 rows through 5 layers, 24 of them through 3 more */
    WANT("v_audit_cost WHERE arm_id = 1", { "cold_rows", 186 }, { "prompt_work", (54 * 5 + 24 * 3) / (186 * 8.0) },
         { "kv_bytes", 120 * 120 }, { "window_bytes", 4096 }, { "prompt_s", 2 }, { "kl_mean", 0.2 });
    end(db);
}
END_TEST

/* --- statistics of an arm
 * -------------------------------------------------------------------------------------------- */

static cedar_audit_stat_row all_rows[64];
static int all_count;

static cedar_status keep(void *self, const cedar_audit_stat_row *row, cedar_err *e) {
    (void)self;
    (void)e;
    ck_assert_int_lt(all_count, 64);
    all_rows[all_count++] = *row;
    return CEDAR_OK;
}

static const cedar_audit_stat_row *row_of(const char *metric, int bin) {
    for (int i = 0; i < all_count; i++)
        if (strcmp(all_rows[i].metric, metric) == 0 && all_rows[i].bin == bin) return &all_rows[i];
    return NULL;
}

/* Five documents; bin 1 (offset 0) has ten positions each, with these mean KL and dlogp. */
static void summarise(const double *kl, const double *dlogp, uint64_t decisive_differ, cedar_audit_arm_result *out) {
    static audit_sums doc[5][CEDAR_OFFSET_BINS + 1];
    static cedar_part needle[5];
    audit_tally t = { .doc = doc, .needle = needle };
    cedar_audit_opts *o = malloc(sizeof *o);
    cedar_audit_defaults(o);
    memset(doc, 0, sizeof doc);
    memset(needle, 0, sizeof needle);
    for (int i = 0; i < 5; i++) {
        audit_sums s = { .kl = 10 * kl[i], .dlogp = 10 * dlogp[i], .n = 10, .decisive = 4,
                         .differ = i == 0 ? decisive_differ : 0, .decisive_differ = i == 0 ? decisive_differ : 0 };
        doc[i][1] = doc[i][AUDIT_ALL] = s;
        needle[i] = (cedar_part){ 2 * dlogp[i], 2 };
    }
    t.needle_b = 6;
    all_count = 0;
    OK(audit_summarise(o, &t, 5, 1, 1, keep, NULL, out, &err));
    free(o);
}

START_TEST(verdicts_by_hand) {
    cedar_audit_arm_result r;
    static const double none[5] = { 0 }, small[] = { 1e-5, 2e-5, 3e-5, 4e-5, 5e-5 }, large[] = { 0.2, 0.3, 0.4, 0.5,
        0.6 },
                        mixed[] = { 0, 0.0005, 0.004, 0.0001, 0.0009 }, sign[] = { -0.1, 0.12, -0.09, 0.1, -0.02 };
    summarise(none, none, 0, &r);
    ck_assert_str_eq(r.verdict, "zero");
    ck_assert_str_eq(row_of("dlogp", 1)->verdict, "zero");
    summarise(small, small, 0, &r);
    ck_assert_str_eq(r.verdict, "equivalent");
    ck_assert_double_eq_tol(r.kl_mean, 3e-5, 1e-18);
    ck_assert_double_eq(r.top1_rate, 1);
    ck_assert_uint_eq(r.decisive, 20);
    ck_assert_str_eq(row_of("dlogp", -1)->verdict, "equivalent");
    /* t = 3e-5 / (1.5811e-5 / sqrt 5) = 4.2426, 4 degrees of freedom: p = 0.013236 */
    ck_assert_double_eq_tol(row_of("dlogp", -1)->p, 0.013236, 1e-5);
    ck_assert_double_nan(row_of("kl", -1)->p);
    ck_assert_str_eq(row_of("needle_exact", -1)->verdict, "different");         /* 6 lost, 0 won: p = 0.03125 */
    ck_assert_double_eq(row_of("needle_exact", -1)->value, -0.6);
    summarise(large, sign, 2, &r);
    ck_assert_str_eq(r.verdict, "different");
    ck_assert(row_of("kl", 1)->lo > 0.2 && row_of("kl", 1)->hi < 0.6);
    ck_assert_str_eq(row_of("dlogp", 1)->verdict, "undecided");                 /* neither equal nor different */
    ck_assert_double_eq_tol(row_of("top1", 1)->value, 0.04, 1e-15);
    ck_assert_double_eq_tol(row_of("decisive", 1)->value, 0.1, 1e-15);
    ck_assert_uint_eq(row_of("decisive", 1)->positions, 20);
    ck_assert(row_of("kl", 2) == NULL);                                         /* a bin without positions */
    summarise(mixed, sign, 0, &r);
    ck_assert_str_eq(r.verdict, "undecided");                                   /* the interval covers the margin */
}
END_TEST

/* A fault costs 1, 2, 3, 4 and 5 more than clean replay, which differs far more from document to document. */
START_TEST(a_fault_beside_clean_replay) {
    static audit_sums doc[5][CEDAR_OFFSET_BINS + 1], clean_doc[5][CEDAR_OFFSET_BINS + 1];
    static cedar_part needle[5];
    static const double replay[5] = { 900, 10, 4000, 0, 77 };
    audit_tally clean = { .doc = clean_doc }, t = { .doc = doc, .needle = needle, .clean = &clean };
    cedar_audit_opts *o = malloc(sizeof *o);
    cedar_audit_arm_result r;
    cedar_audit_defaults(o);
    for (int i = 0; i < 5; i++) {
        clean_doc[i][AUDIT_ALL] = (audit_sums){ .kl = 10 * replay[i], .n = 10 };
        doc[i][AUDIT_ALL] = (audit_sums){ .kl = 10 * (replay[i] + i + 1), .n = 10 };
    }
    all_count = 0;
    OK(audit_summarise(o, &t, 5, 1, 1, keep, NULL, &r, &err));
    ck_assert_double_eq(r.fault_kl, 3);
    ck_assert(r.fault_lo > 1 && r.fault_lo < 2.5 && r.fault_hi > 3.5 && r.fault_hi < 5);
    ck_assert_str_eq(row_of("fault", -1)->verdict, "different");
    ck_assert_double_eq_tol(row_of("fault", -1)->p, 0.013236, 1e-5);        /* t = 3 / (1.5811 / sqrt 5) */
    ck_assert_uint_eq(row_of("fault", -1)->positions, 50);
    t.clean = &t;
    all_count = 0;
    OK(audit_summarise(o, &t, 5, 1, 1, keep, NULL, &r, &err));
    ck_assert_str_eq(row_of("fault", -1)->verdict, "zero");
    t.clean = NULL;
    all_count = 0;
    OK(audit_summarise(o, &t, 5, 1, 1, keep, NULL, &r, &err));
    ck_assert_double_nan(r.fault_kl);
    ck_assert_ptr_null(row_of("fault", -1));
    free(o);
}
END_TEST

/* Threads change nothing, and every row is compared. */
START_TEST(threads_compare_every_row) {
    enum { ROWS = 41, VOCAB = 20000 };
    float *p = malloc(sizeof(float) * ROWS * VOCAB), *q = malloc(sizeof(float) * ROWS * VOCAB);
    int32_t token[ROWS];
    static cedar_divergence one[ROWS], many[ROWS];
    for (int i = 0; i < ROWS * VOCAB; i++) {
        p[i] = (float)(cedar_rng_below(1, (uint64_t)i, 1000)) / 100;
        q[i] = p[i] + (float)(cedar_rng_below(2, (uint64_t)i, 10)) / 100;
    }
    for (int i = 0; i < ROWS; i++) token[i] = 7 * i;
    for (uint32_t threads = 1; threads <= 4; threads += 3) {
        audit_job *j = audit_job_new(VOCAB, threads);
        audit_job_start(j, p, q, ROWS, VOCAB, token, threads == 1 ? one : many);
        audit_job_wait(j);
        audit_job_free(j);
    }
    for (int i = 0; i < ROWS; i++) {
        cedar_divergence d;
        cedar_divergence_make(p + i * VOCAB, q + i * VOCAB, VOCAB, token[i], NULL, &d);
        ck_assert(one[i].kl_pq == d.kl_pq && many[i].kl_pq == d.kl_pq && d.kl_pq > 0);
        ck_assert(one[i].kl_qp == d.kl_qp && one[i].margin_p == d.margin_p);   /* with and without room to work in */
        ck_assert(one[i].logp_q == d.logp_q && many[i].js == d.js && many[i].top1_q == d.top1_q);
    }
    free(p);
    free(q);
}
END_TEST

START_TEST(bins_are_those_of_the_schema) {
    sqlite3 *db = example();
    static const int32_t edges[] = { -5, -1, 0, 1, 15, 16, 63, 64, 127, 128, 254, 255, 888, 889, 1650, 1651, 2412, 2413,
                                     4952, 4953, 1 << 30 };
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        char from[96];
        snprintf(from, sizeof from, "offset_bins WHERE %d BETWEEN lo AND hi", edges[i]);
        ck_assert_int_eq((int)number(db, "bin", from), audit_bin(edges[i]));
    }
    end(db);
}
END_TEST

/* --- reports
 * --------------------------------------------------------------------------------------------------------- */

static char *report(cedar_status (*write)(FILE *to)) {
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    OK(write(f));
    fclose(f);
    return text;
}

static cedar_status as_text(FILE *to) { return cedar_report_text(db_path, to, 100, false, &err); }
static cedar_status as_html(FILE *to) { return cedar_report_html(db_path, to, &err); }

START_TEST(reports_say_what_was_found) {
    sqlite3 *db = example();
    char *text = report(as_text), *html = report(as_html);
    static const char *const in_text[] = { "Audit: arms against controls", "1 encoder", "different",
                                           "control C1 \"exact chunk=7\" must be 0, its mean KL is 0.1" };
    static const char *const in_html[] = {
        "<section id=\"audit\">", "0 of 1 controls that must be exactly 0 (C0 to C2) are, so the other numbers",
        "1.1 encoder: mean KL 0.2 nats (0.1 to 0.3), largest 0.4; top-1 agreement 60.000 %; 5 positions of 2 "
        "documents: "
        "different.", "The weights are seeded, not trained.", "Audit 1 has 2 documents", "&lt;by hand&gt;",
        "may return", "id=\"map-plot\"", "\"fronts\":[\n[1,1,3,44,0]]" };
    for (size_t i = 0; i < sizeof in_text / sizeof *in_text; i++)
        ck_assert_msg(strstr(text, in_text[i]) != NULL, "\"%s\" is not in:\n%s", in_text[i], text);
    for (size_t i = 0; i < sizeof in_html / sizeof *in_html; i++)
        ck_assert_msg(strstr(html, in_html[i]) != NULL, "\"%s\" is not in the page", in_html[i]);
    ck_assert_ptr_null(strstr(html, "<section id=\"latency\">"));      /* nothing was run */
    ck_assert_ptr_null(strstr(html, "<by hand>"));
    free(text);
    free(html);
    end(db);
}
END_TEST

static void change(const char *sql) {
    sqlite3 *db;
    ck_assert_int_eq(sqlite3_open(db_path, &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_close(db);
}

/* An audit that was cut off has no intervals, and no zeros in their place. */
START_TEST(reports_of_an_audit_cut_off) {
    sqlite3 *db = example();
    change("DELETE FROM audit_stats; UPDATE audit_arms SET positions = NULL");
    char *text = report(as_text), *html = report(as_html);
    static const char flat[] = "encoder: mean KL 2.00e-01 nats (no interval), the same most likely token at 60.00 % of "
                               "5 positions of 2 documents: not finished.";
    for (char *c = text; *c; c++)
        if (*c == '\n') *c = ' ';      /* the lines break where the terminal ends */
    ck_assert_ptr_nonnull(strstr(text, flat));
    ck_assert_ptr_nonnull(strstr(html, "mean KL 0.2 nats (no interval), largest 0.4; top-1 agreement 60.000 %; 5 "
                                       "positions of 2 documents: not finished."));
    free(html);
    change("DELETE FROM audit_positions");
    html = report(as_html);
    ck_assert_ptr_nonnull(strstr(html, "1.1 encoder: nothing was scored."));
    free(text);
    free(html);
    end(db);
}
END_TEST

int main(void) {
    Suite *s = suite_create("audit_store");
    TCase *t = tcase_create("store");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, positions_by_hand);
    tcase_add_test(t, other_rows_by_hand);
    tcase_add_test(t, verdicts_by_hand);
    tcase_add_test(t, a_fault_beside_clean_replay);
    tcase_add_test(t, threads_compare_every_row);
    tcase_add_test(t, bins_are_those_of_the_schema);
    tcase_add_test(t, reports_say_what_was_found);
    tcase_add_test(t, reports_of_an_audit_cut_off);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
