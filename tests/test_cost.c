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
                         .attention_ranks = 1,
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
    const cedar_cost_switches on = { .graphs = graphs };
    ck_assert_msg(cedar_cost_make(c, h, &on, &k, &err) == CEDAR_OK, "%s", err.msg);
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
        double head = k.head_bytes / 4.3e3, work = (double)ns - head - 40 * 15 * 1000, host = 40 * 15 * 6000;
        double longer = work > host ? work : host;
        ck_assert_double_le(fabs((double)cedar_cost_predict_ns(&eager, n, 8192, 0, 0) - head - longer), 2);
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
            h.gpus = h.attention_ranks = 1 + (double)(c % 2);
            h.eager_launch_ns = 20000;
            h.stream_passes = 2;
            static const cedar_graphs modes[] = { CEDAR_GRAPHS_FULL, CEDAR_GRAPHS_SPLIT, CEDAR_GRAPHS_OFF,
                                                  CEDAR_GRAPHS_DECODE, CEDAR_GRAPHS_TRIMMED };
            cedar_cost k = cost_of(&config, &h, modes[c]);
            cedar_cost_memo memo = { 0 };
            cedar_replay_rules rules = { .window = 128, .decoder = true, .decoder_rows = 128 };
            cedar_plan_entry e[9];
            uint32_t pos = starts[c];
            for (uint32_t step = 0; step < 300; step++, pos++) {
                uint32_t batch = 1 + step / 40;
                cedar_step_plan p = decode_plan(e, batch, pos);
                cedar_cost_load load = { .logits = batch, .sequences = batch + (step % 17 == 3) };
                for (uint32_t i = 0; i < batch; i++) cedar_cost_load_add(&load, pos, 1, 1);
                if (step % 17 == 3) {       /* a prompt chunk beside them, trimmed when it is long */
                    uint32_t rows = 20 + step;
                    cedar_plan_rows(&rules, CEDAR_ROWS_PREFILL, step, rows, (cedar_bounds){ 0, 0, 0 }, 0, false, 0,
                                    &e[batch]);
                    p.entry_count++;
                    load.prompts = true;
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

/* --- switches, each by hand --------------------------------------------------------------------------------------- */

/* Nothing takes time but what a test sets. */
static cedar_hardware weightless(void) {
    cedar_hardware h = roofline();
    h.copy_bytes_s = 1e15;
    h.kernels_per_layer = 18;
    h.link_bytes_s = 1e15;
    return h;
}

static int64_t price_of(const cedar_config *c, const cedar_hardware *h, cedar_cost_switches on, cedar_step_plan *p,
                        cedar_cost_parts *parts) {
    cedar_cost k;
    cedar_err err = { 0 };
    ck_assert_msg(cedar_cost_make(c, h, &on, &k, &err) == CEDAR_OK, "%s", err.msg);
    cedar_plan_total(p);
    return cedar_cost_step_ns(&k, p, parts);
}

/* A prompt chunk of 512 rows, with decoder replay or without. */
static cedar_step_plan prompt_plan(cedar_plan_entry *e, bool trimmed) {
    cedar_replay_rules rules = { .window = 128, .decoder = trimmed, .decoder_rows = 128 };
    cedar_step_plan p = { .entry_count = 1, .entries = e };
    cedar_plan_rows(&rules, CEDAR_ROWS_PREFILL, 0, 512, (cedar_bounds){ 0, 0, 0 }, 0, false, 1, e);
    return p;
}

/* 40 layers of 18 kernels: 1 us in a graph, 50 us from the host. Layers 0 to 20 run before the trimmed ones. */
START_TEST(launches_by_kind_of_graph) {
    enum { GRAPH = 18 * 1000, EAGER = 18 * 50000 };
    static const struct { cedar_graphs graphs; int64_t decode, prompt, trimmed; } want[] = {
        { CEDAR_GRAPHS_FULL, 40 * GRAPH, 40 * GRAPH, 40 * GRAPH },
        { CEDAR_GRAPHS_SPLIT, 40 * GRAPH, 40 * GRAPH, 40 * GRAPH + 4000 },
        { CEDAR_GRAPHS_OFF, 40 * EAGER, 40 * EAGER, 40 * EAGER },
        { CEDAR_GRAPHS_DECODE, 40 * GRAPH, 40 * EAGER, 40 * EAGER },
        { CEDAR_GRAPHS_TRIMMED, 40 * GRAPH, 40 * EAGER, 21 * EAGER + 19 * GRAPH },
    };
    cedar_config c = shape("flash");
    cedar_hardware h = weightless();
    cedar_plan_entry e;
    h.gpus = 1000;      /* so that even their work takes nothing */
    h.launch_ns = 1000;
    h.eager_launch_ns = 50000;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const cedar_cost_switches on = { .graphs = want[i].graphs };
        const int64_t expected[] = { want[i].decode, want[i].prompt, want[i].trimmed };
        for (int n = 0; n < 3; n++) {
            cedar_step_plan p = n == 0 ? decode_plan(&e, 1, 100) : prompt_plan(&e, n == 2);
            int64_t got = price_of(&c, &h, on, &p, NULL);
            ck_assert_msg(llabs(got - expected[n]) < 2000, "graphs %zu, plan %d: %ld", i, n, (long)got);
        }
    }
}
END_TEST

/* The host launches ahead: an eager step takes its launches or its work, whichever is longer. */
START_TEST(eager_launches_hide_behind_work) {
    cedar_config c = shape("flash");
    cedar_hardware h = roofline();
    cedar_plan_entry e;
    cedar_cost_parts parts;
    h.kernels_per_layer = 10;
    for (h.eager_launch_ns = 1000; h.eager_launch_ns < 2e5; h.eager_launch_ns *= 100) {
        cedar_step_plan p = decode_plan(&e, 1, 8192);
        int64_t ns = price_of(&c, &h, (cedar_cost_switches){ .graphs = CEDAR_GRAPHS_OFF }, &p, &parts);
        double host = 40 * 10 * h.eager_launch_ns, work = 2.95e6 - 0.31e6;  /* the floor without its head */
        ck_assert_double_lt(near_rel((double)(ns - parts.head_ns), host > work ? host : work), 0.015);
    }
}
END_TEST

/* 18 kernels, or 13; less 2 of a second stream; less 2 with an all-reduce that takes 4.1 us instead of 4.6. */
START_TEST(kernels_streams_and_allreduces) {
    cedar_config c = shape("flash");
    cedar_hardware h = weightless();
    cedar_plan_entry e[17];
    h.gpus = 4;
    h.launch_ns = 3000;
    h.layer_ns = 7000;
    h.fused_kernels_per_layer = 13;
    h.side_stream_kernels = 2;
    h.allreduce_ns = 4600;
    h.fused_allreduce_ns = 4100;
    h.fused_allreduce_kernels = 2;
    h.fused_allreduce_rows = 16;
    static const struct { cedar_cost_switches on; int64_t kernels, reduce; } want[] = {
        { { .graphs = CEDAR_GRAPHS_SPLIT }, 18, 4600 },
        { { .graphs = CEDAR_GRAPHS_SPLIT, .fused_kernels = true }, 13, 4600 },
        { { .graphs = CEDAR_GRAPHS_SPLIT, .side_stream = true }, 16, 4600 },
        { { .graphs = CEDAR_GRAPHS_SPLIT, .fused_allreduce = true }, 16, 4100 },
        { { .graphs = CEDAR_GRAPHS_SPLIT, .fused_kernels = true, .side_stream = true, .fused_allreduce = true },
          9, 4100 },
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        for (uint32_t batch = 1; batch <= 17; batch += 8) {     /* the fused all-reduce takes 16 rows and no more */
            bool wide = want[i].on.fused_allreduce && batch > 16;
            cedar_step_plan p = decode_plan(e, batch, 10);
            cedar_cost_parts parts;
            price_of(&c, &h, want[i].on, &p, &parts);
            ck_assert_int_eq(parts.launch_ns, 40 * ((want[i].kernels + 2 * wide) * 3000 + 7000));
            ck_assert_int_le(llabs(parts.link_ns - 80 * (wide ? 4600 : want[i].reduce)), 17);   /* the rows' bytes */
        }
    }
    /* the host launches what a second stream hides */
    h.eager_launch_ns = 50000;
    cedar_cost_parts parts;
    cedar_step_plan p = decode_plan(e, 1, 10);
    price_of(&c, &h, (cedar_cost_switches){ .graphs = CEDAR_GRAPHS_OFF, .side_stream = true }, &p, &parts);
    ck_assert_int_le(llabs(parts.total_ns - 40 * 18 * 50000), 1000);
}
END_TEST

/* At 8,192 tokens a row reads 512 entries in 38 layers and scores 3 x 4,096 + 5 x 8,192: 240 and 64 bytes more each. */
START_TEST(fp8_rows_are_read_and_kept) {
    cedar_config c = shape("flash");
    cedar_hardware h = roofline();
    cedar_plan_entry e;
    cedar_cost_parts fp4, fp8;
    ck_assert_uint_eq(cedar_cost_fp8_row_bytes(&c) * 5 / 2, 1650);  /* spec/model.md 4.1: bytes per token */
    cedar_step_plan p = decode_plan(&e, 1, 8191);
    int64_t a = price_of(&c, &h, (cedar_cost_switches){ .graphs = CEDAR_GRAPHS_SPLIT }, &p, &fp4);
    int64_t b = price_of(&c, &h, (cedar_cost_switches){ .graphs = CEDAR_GRAPHS_SPLIT, .fp8_rows = true }, &p, &fp8);
    double more = 38 * 512 * 240.0 + (3 * 4096 + 5 * 8192) * 64.0;
    ck_assert_double_lt(fabs(fp8.bytes - fp4.bytes - more), 1);
    ck_assert_double_lt(fabs((double)(b - a) - more / 4.3e12 * 1e9), 2);
}
END_TEST

/* Per site and 8,192 rows on one H200: pre alone 98 us, post alone 176, one pass for both 196
 * (spec/performance.md 2.5); more GPUs make it no shorter. */
START_TEST(residual_streams) {
    static const struct { double passes, us; } rows[] = { { 1.25, 98 }, { 2.25, 176 }, { 2.5, 196 } };
    cedar_config c = shape("flash");
    cedar_plan_entry e = { .kind = CEDAR_ROWS_PREFILL, .rows = 8192, .kept = 8192 };
    for (int i = 0; i < 6; i++) {
        cedar_hardware h = roofline();
        h.gpus = 1 + i % 2;
        h.stream_passes = i < 4 ? rows[i / 2].passes : 9;
        h.fused_stream_passes = i < 4 ? 0 : rows[2].passes;
        h.fused_kernels_per_layer = 1;
        cedar_step_plan p = { .entry_count = 1, .entries = &e };
        cedar_cost_parts parts;
        price_of(&c, &h, (cedar_cost_switches){ .graphs = CEDAR_GRAPHS_SPLIT, .fused_kernels = true }, &p, &parts);
        ck_assert_double_lt(near_rel((double)parts.stream_ns, 80e3 * rows[i / 2].us), 0.01);
    }
}
END_TEST

/* Five drafts of one sequence on bandwidth alone: three stages of 167.3 MB, and 14.3 of 128 experts of 18.8 MB for five
 * rows of three; main_proj 78.7 MB, the head 1323.8 MB, and five times the chain's 66.2 MB. */
START_TEST(a_draft_pass_is_paid) {
    cedar_config c = shape("flash");
    cedar_hardware h = roofline();
    cedar_plan_entry e;
    cedar_cost k;
    cedar_err err = { 0 };
    const cedar_cost_switches on = { .graphs = CEDAR_GRAPHS_SPLIT, .draft_tokens = 5 };
    ck_assert_int_eq(cedar_cost_make(&c, &h, &on, &k, &err), CEDAR_OK);
    cedar_cost_load load = { .logits = 6 };
    cedar_cost_load_add(&load, 8192, 6, 6);
    int64_t without = cedar_cost_load_ns(&k, CEDAR_CUT_AFTER, &load, NULL);
    load.drafts = 1;
    double got = (double)(cedar_cost_load_ns(&k, CEDAR_CUT_AFTER, &load, NULL) - without);
    double megabytes = 3 * (167.3 + 14.32 * 18.8) + 78.7 + 1323.8 + 5 * 66.2;
    ck_assert_msg(near_rel(got, megabytes / 4.3e6 * 1e9) < 0.005, "%.0f ns", got);
    /* and 3 layers of 18 launches, two launches a draft, two all-reduces a layer */
    h = weightless();
    h.gpus = 4;
    h.launch_ns = 1000;
    h.allreduce_ns = 2000;
    ck_assert_int_eq(cedar_cost_make(&c, &h, &on, &k, &err), CEDAR_OK);
    cedar_step_plan p = decode_plan(&e, 1, 10);
    cedar_cost_parts parts;
    price_of(&c, &h, on, &p, &parts);
    ck_assert_int_eq(parts.draft_ns, 0);        /* a plan of an engine has no drafts */
    int64_t with = cedar_cost_load_ns(&k, CEDAR_CUT_AFTER, &load, NULL);
    load.drafts = 0;
    with -= cedar_cost_load_ns(&k, CEDAR_CUT_AFTER, &load, NULL);
    ck_assert_int_ge(with, 3 * (18000 + 2 * 2000) + 10000);
    ck_assert_int_le(with, 3 * (18000 + 2 * 2000) + 10000 + 2000);
}
END_TEST

/* Two GPUs, each with attention of its own. One sequence: 8.16 GB that every GPU holds are read by one, experts by
 * both; so two sequences take no longer but for their experts. A long prompt alone: what is no routed expert has one
 * GPU. */
START_TEST(ranks_attend_on_their_own) {
    cedar_config c = shape("flash");
    cedar_hardware h = roofline();
    cedar_plan_entry e[2];
    const cedar_cost_switches on = { .graphs = CEDAR_GRAPHS_SPLIT };
    h.gpus = h.attention_ranks = 2;
    for (uint32_t batch = 1; batch <= 2; batch++) {
        cedar_step_plan p = decode_plan(e, batch, 8192);
        double experts = batch == 1 ? 6 : 11.91;        /* 384 (1 - (1 - 6/384)^2) */
        double ms = 8.16 / 4.3 + 40 * experts * 0.0188006 / 8.6;
        ck_assert_double_lt(near_rel((double)price_of(&c, &h, on, &p, NULL) / 1e6, ms), 0.015);
    }
    h.copy_bytes_s = h.link_bytes_s = 1e15;
    h.matmul_flop_s = 790e12;
    for (uint32_t batch = 1; batch <= 2; batch++) {
        cedar_plan_entry prompts[2];
        for (int i = 0; i < 2; i++)
            prompts[i] = (cedar_plan_entry){ .kind = CEDAR_ROWS_PREFILL, .rows = 8192, .kept = 8192, .logits = 1 };
        cedar_step_plan p = { .entry_count = batch, .entries = prompts };
        double routed = 6 * 2 * 35.389e6, own = 2 * (126.6e6 + 35.389e6 + 384 * 5120 + 983040);
        double s = 8192 * 40 * (batch == 1 ? own / 790e12 + routed / 1580e12 : 2 * (own + routed) / 1580e12);
        ck_assert_double_lt(near_rel((double)price_of(&c, &h, on, &p, NULL) / 1e9, s), 0.01);
    }
    cedar_cost k = cost_of(&c, &h, CEDAR_GRAPHS_SPLIT);
    cedar_cost_memo memo = { 0 };
    for (uint32_t sequences = 2; sequences; sequences--) {      /* as many rows, of fewer sequences */
        cedar_cost_load load = { .logits = 2, .sequences = sequences };
        cedar_cost_load_add(&load, 8192, 2, 2);
        ck_assert_int_eq(cedar_cost_load_ns(&k, CEDAR_CUT_AFTER, &load, &memo),
                         cedar_cost_load_ns(&k, CEDAR_CUT_AFTER, &load, NULL));
    }
    ck_assert_double_lt(near_rel(cedar_cost_weight_bytes(&c, 2) - cedar_cost_weight_bytes(&c, 1),
                                 306.6e9 - 288.8e9), 0.03);
}
END_TEST

START_TEST(switches_need_their_figures) {
    static const struct { cedar_cost_switches on; const char *says; } wrong[] = {
        { { .fused_kernels = true }, "kernels = \"fused\": hardware \"roofline\" does not describe it; give fused_" },
        { { .side_stream = true }, "give side_stream_kernels" },
        { { .fused_allreduce = true }, "give fused_allreduce_ns" },
        { { .draft_tokens = 6 }, "draft_tokens = 6: the drafter of flash makes 5 tokens" },
    };
    cedar_config c = shape("flash");
    cedar_hardware h = roofline();
    h.gpus = 2;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cedar_cost k;
        cedar_err err = { 0 };
        ck_assert_int_eq(cedar_cost_make(&c, &h, &wrong[i].on, &k, &err), CEDAR_E_ARG);
        ck_assert_msg(strstr(err.msg, wrong[i].says), "%s", err.msg);
    }
}
END_TEST

START_TEST(hardware_is_checked) {
    cedar_config c = shape("tiny");
    cedar_hardware h = roofline();
    cedar_cost k;
    const cedar_cost_switches plain = { .graphs = CEDAR_GRAPHS_FULL };
    cedar_err err = { 0 };
    h.matmul_flop_s = NAN;
    ck_assert_int_eq(cedar_cost_make(&c, &h, &plain, &k, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "matmul_flop_s"));
    h = roofline();
    h.memory_efficiency = 1.5;
    ck_assert_int_eq(cedar_cost_make(&c, &h, &plain, &k, &err), CEDAR_E_ARG);
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
    tcase_add_test(t, launches_by_kind_of_graph);
    tcase_add_test(t, eager_launches_hide_behind_work);
    tcase_add_test(t, kernels_streams_and_allreduces);
    tcase_add_test(t, fp8_rows_are_read_and_kept);
    tcase_add_test(t, residual_streams);
    tcase_add_test(t, a_draft_pass_is_paid);
    tcase_add_test(t, ranks_attend_on_their_own);
    tcase_add_test(t, switches_need_their_figures);
    tcase_add_test(t, hardware_is_checked);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
