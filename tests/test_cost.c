/* The cost model against hand-made figures: bytes and floors of spec tables that were computed elsewhere, and the
 * properties a price must have. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cost.h"

static cedar_config shape(const char *name) {
    char path[128];
    cedar_config c;
    cedar_err err = { 0 };
    snprintf(path, sizeof path, "scenarios/models/%s.json", name);
    ck_assert_msg(cedar_config_load(path, &c, &err) == CEDAR_OK, "%s", err.msg);
    return c;
}

/* The bare roofline: 4.3 TB/s, nothing else costs anything. */
static cedar_hardware roofline(void) {
    cedar_hardware h = { .name = "roofline",
                         .gpus = 1,
                         .hbm_bytes = 141e9,
                         .copy_bytes_s = 4.3e12,
                         .matmul_flop_s = 1e18,
                         .attention_flop_s = 1e18,
                         .indexer_flop_s = 1e18,
                         .memory_efficiency = 1,
                         .matmul_efficiency = 1,
                         .attention_efficiency = 1,
                         .indexer_efficiency = 1,
                         .overlap = 1,
                         .kernels_per_layer = 0,
                         .link_bytes_s = 1e12,
                         .host_link_bytes_s = 1e11 };
    return h;
}

static cedar_cost cost_of(const cedar_config *c, const cedar_hardware *h, cedar_graphs graphs) {
    cedar_cost k;
    cedar_err err = { 0 };
    ck_assert_msg(cedar_cost_make(c, h, graphs, &k, &err) == CEDAR_OK, "%s", err.msg);
    return k;
}

static cedar_step_plan decode_plan(cedar_plan_entry *e, uint32_t batch, uint32_t context) {
    for (uint32_t i = 0; i < batch; i++)
        e[i] = (cedar_plan_entry){
            .seq = (int32_t)i, .kind = CEDAR_ROWS_DECODE, .pos = context, .rows = 1, .kept = 1, .logits = 1
        };
    cedar_step_plan p = { .entry_count = batch, .entries = e };
    cedar_plan_total(&p);
    return p;
}

static double near_rel(double got, double want) { return fabs(got / want - 1); }

/* Expected distinct experts: U(B) for E = 384, k = 6, computed by hand with 50 digits. */
START_TEST(experts_touched) {
    static const struct {
        uint32_t rows;
        double experts;
    } rows[] = {
        { 1, 6 }, { 4, 23.4 }, { 8, 45.5 }, { 16, 85.5 }, { 32, 152 }, { 64, 244 }, { 128, 333 }, { 256, 377 }
    };
    cedar_config c = shape("flash");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_msg(near_rel(cedar_cost_experts_touched(&c, rows[i].rows), rows[i].experts) < 0.003, "%u rows",
                      rows[i].rows);
    ck_assert_double_eq(cedar_cost_experts_touched(&c, 0), 0);
}
END_TEST

/* Milliseconds of a full-shape decode step at 8 K context on bandwidth alone. The table leaves out Engram, as we do. */
START_TEST(decode_floor_table) {
    static const struct { const char *model; uint32_t batch; double gb, ms;
    } rows[] = { { "flash", 1, 12.7, 2.95 },      { "flash", 4, 25.8, 6.01 },      { "flash", 8, 42.4, 9.87 },
                 { "flash", 16, 72.7, 16.9 },     { "flash", 64, 192, 44.7 },      { "flash", 256, 295, 68.6 },
                 { "flash-e128", 1, 12.6, 2.93 }, { "flash-e128", 8, 38.9, 9.04 }, { "flash-e128", 64, 100.6, 23.4 } };
    cedar_plan_entry e[256];
    cedar_hardware h = roofline();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cedar_config c = shape(rows[i].model);
        cedar_cost k = cost_of(&c, &h, CEDAR_GRAPHS_FULL);
        cedar_step_plan p = decode_plan(e, rows[i].batch, 8192);
        cedar_cost_parts parts;
        double ms = (double)cedar_cost_step_ns(&k, &p, &parts) / 1e6;
        ck_assert_msg(near_rel(ms, rows[i].ms) < 0.015, "%s batch %u: %.3f ms, table %.3f", rows[i].model,
                      rows[i].batch, ms, rows[i].ms);
        ck_assert_msg(near_rel(parts.bytes / 1e9, rows[i].gb) < 0.015, "%s batch %u: %.2f GB, table %.2f",
                      rows[i].model, rows[i].batch, parts.bytes / 1e9, rows[i].gb);
    }
}
END_TEST

/* 0.833 GFLOP a layer and token with a full window and 512 selected keys; 40 layers 33.3. */
START_TEST(prefill_operations) {
    cedar_config c = shape("flash");
    cedar_hardware h = roofline();
    cedar_cost k = cost_of(&c, &h, CEDAR_GRAPHS_FULL);
    ck_assert_double_lt(near_rel(k.layer_flop + 640 * k.core_flop, 0.833e9 + 2 * (384 * 5120.0 + 983040)), 0.003);
    ck_assert_double_lt(near_rel(k.score_flop, 8192), 1e-9);
}
END_TEST

/* Trimming at the cut: of 8192 rows layers 21-39 see 128; layers alone give 40 / (21 + 19 * 128 / 8192) = 1.878. */
START_TEST(decoder_replay_gain) {
    cedar_config c = shape("flash");
    cedar_hardware h = roofline();
    h.copy_bytes_s = 1e15;
    h.matmul_flop_s = 790e12;
    cedar_cost k = cost_of(&c, &h, CEDAR_GRAPHS_SPLIT), full = cost_of(&c, &h, CEDAR_GRAPHS_FULL);
    cedar_replay_rules exact = { .window = 128 }, replay = { .window = 128, .decoder = true, .decoder_rows = 128 };
    cedar_plan_entry e;
    cedar_step_plan p = { .entry_count = 1, .entries = &e };
    cedar_plan_rows(&exact, CEDAR_ROWS_PREFILL, 0, 8192, (cedar_bounds){ 0, 0, 0 }, 0, false, 1, &e);
    cedar_plan_total(&p);
    double all = (double)cedar_cost_step_ns(&k, &p, NULL);
    cedar_plan_rows(&replay, CEDAR_ROWS_PREFILL, 0, 8192, (cedar_bounds){ 0, 0, 0 }, 0, false, 1, &e);
    cedar_plan_total(&p);
    double kept = (double)cedar_cost_step_ns(&k, &p, NULL);
    ck_assert_msg(near_rel(all / kept, 1.878) < 0.01, "gain %.4f", all / kept);
    ck_assert_int_eq(cedar_cost_step_ns(&full, &p, NULL), (int64_t)all);    /* one full graph cannot trim */
}
END_TEST

START_TEST(prices_grow) {
    cedar_config c = shape("flash-e32");
    cedar_hardware h = roofline();
    h.kernels_per_layer = 15;
    h.launch_ns = 1000;
    h.eager_launch_ns = 6000;
    h.matmul_flop_s = 790e12;
    cedar_cost k = cost_of(&c, &h, CEDAR_GRAPHS_SPLIT), eager = cost_of(&c, &h, CEDAR_GRAPHS_OFF);
    int64_t last = 0;
    for (uint32_t n = 1; n <= 64; n *= 2) {
        int64_t ns = cedar_cost_predict_ns(&k, n, 8192, 0, 0);
        ck_assert_int_gt(ns, last);
        ck_assert_int_gt(cedar_cost_predict_ns(&k, n, 100000, 0, 0), ns);
        ck_assert_int_gt(cedar_cost_predict_ns(&k, n, 8192, 512, 0), ns);
        ck_assert_int_eq(cedar_cost_predict_ns(&eager, n, 8192, 0, 0) - ns, 40 * 15 * 5000);
        last = ns;
    }
    ck_assert_int_eq(cedar_cost_predict_ns(&k, 0, 0, 0, 0), 0);
    h.gpus = 2;
    h.allreduce_ns = 3000;
    cedar_cost two = cost_of(&c, &h, CEDAR_GRAPHS_SPLIT);
    ck_assert_int_lt(cedar_cost_predict_ns(&two, 1, 8192, 0, 0), cedar_cost_predict_ns(&k, 1, 8192, 0, 0));
}
END_TEST

/* What a memo keeps changes no price: a run of steps whose batch and contexts change now and then, priced with one memo
 * and as plans, to the nanosecond; on shapes whose windows, choices and candidate pools are partly full. */
START_TEST(a_memo_changes_no_price) {
    static const char *const shapes[] = { "flash-e32", "tiny", "flash" };
    static const uint32_t starts[] = { 1, 100, 700, 9000, 200000 };
    for (size_t m = 0; m < 3; m++)
        for (size_t c = 0; c < sizeof starts / sizeof *starts; c++) {
            cedar_config config = shape(shapes[m]);
            cedar_hardware h = roofline();
            h.matmul_flop_s = 790e12;
            h.attention_flop_s = 400e12;
            h.indexer_flop_s = 600e12;
            h.kernels_per_layer = 15;
            h.launch_ns = 1000;
            h.gpus = 1 + (double)(c % 2);
            cedar_cost k = cost_of(&config, &h, c % 2 ? CEDAR_GRAPHS_SPLIT : CEDAR_GRAPHS_FULL);
            cedar_cost_memo memo = { 0 };
            cedar_replay_rules rules = { .window = 128, .decoder = true, .decoder_rows = 128 };
            cedar_plan_entry e[9];
            uint32_t pos = starts[c];
            for (uint32_t step = 0; step < 300; step++, pos++) {
                uint32_t batch = 1 + step / 40;
                cedar_step_plan p = decode_plan(e, batch, pos);
                cedar_cost_load load = { .logits = batch };
                for (uint32_t i = 0; i < batch; i++) cedar_cost_load_add(&load, pos, 1, 1);
                if (step % 17 == 3) {       /* a prompt chunk beside them, trimmed when it is long */
                    uint32_t rows = 20 + step;
                    cedar_plan_rows(&rules, CEDAR_ROWS_PREFILL, step, rows, (cedar_bounds){ 0, 0, 0 }, 0, false, 0,
                                    &e[batch]);
                    p.entry_count++;
                    cedar_plan_total(&p);
                    cedar_cost_load_add(&load, step, rows, e[batch].kept);
                }
                ck_assert_int_eq(cedar_cost_load_ns(&k, CEDAR_CUT_AFTER, &load, &memo),
                                 cedar_cost_step_ns(&k, &p, NULL));
            }
        }
}
END_TEST

/* 2,048 rows are bound by operations in every group of layers: what does not overlap is a share of all weight reads.
 * One row is bound by those: there it is a share of the operations. */
START_TEST(what_does_not_overlap_is_paid) {
    cedar_config c = shape("flash-e32");
    const uint32_t rows[] = { 2048, 1 };
    for (int i = 0; i < 2; i++) {
        cedar_hardware h = roofline();
        h.matmul_flop_s = 790e12;
        cedar_cost whole = cost_of(&c, &h, CEDAR_GRAPHS_SPLIT);
        h.overlap = 0.25;
        cedar_cost part = cost_of(&c, &h, CEDAR_GRAPHS_SPLIT);
        cedar_plan_entry e = { .kind = CEDAR_ROWS_PREFILL, .rows = rows[i], .kept = rows[i], .logits = 1 };
        cedar_step_plan p = { .entry_count = 1, .entries = &e };
        cedar_cost_parts parts;
        cedar_plan_total(&p);
        int64_t more = cedar_cost_step_ns(&part, &p, NULL) - cedar_cost_step_ns(&whole, &p, &parts);
        double shorter = (double)(i ? parts.matmul_ns : parts.weights_ns);
        ck_assert_double_gt(shorter, 1e3);
        ck_assert_double_le(fabs((double)more - 0.75 * shorter), 2);
    }
}
END_TEST

START_TEST(hardware_is_checked) {
    cedar_config c = shape("tiny");
    cedar_hardware h = roofline();
    cedar_cost k;
    cedar_err err = { 0 };
    h.matmul_flop_s = NAN;
    ck_assert_int_eq(cedar_cost_make(&c, &h, CEDAR_GRAPHS_FULL, &k, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "matmul_flop_s"));
    h = roofline();
    h.memory_efficiency = 1.5;
    ck_assert_int_eq(cedar_cost_make(&c, &h, CEDAR_GRAPHS_FULL, &k, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "memory_efficiency is 1.5, allowed are 0.01 to 1"));
}
END_TEST

int main(void) {
    Suite *s = suite_create("cost");
    TCase *t = tcase_create("cost");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, experts_touched);
    tcase_add_test(t, decode_floor_table);
    tcase_add_test(t, prefill_operations);
    tcase_add_test(t, decoder_replay_gain);
    tcase_add_test(t, prices_grow);
    tcase_add_test(t, a_memo_changes_no_price);
    tcase_add_test(t, what_does_not_overlap_is_paid);
    tcase_add_test(t, hardware_is_checked);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
