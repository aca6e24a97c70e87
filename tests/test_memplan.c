/* The memory plan against the totals of the published checkpoint and the sizes printed in the specification. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/engine.h"

static cedar_config load(const char *name) {
    cedar_config c;
    cedar_err err = { 0 };
    char path[64];
    snprintf(path, sizeof path, "scenarios/models/%s.json", name);
    cedar_status st = cedar_config_load(path, &c, &err);
    ck_assert_msg(st == CEDAR_OK, "%s", err.msg);
    return c;
}

static cedar_memory_plan plan(const cedar_config *c, const cedar_engine_opts *o) {
    cedar_memory_plan p;
    cedar_err err = { 0 };
    cedar_status st = cedar_plan_memory(c, o, &p, &err);
    ck_assert_msg(st == CEDAR_OK, "%s", err.msg);
    return p;
}

/* x / unit, rounded to the nearest. */
static uint64_t in_units(uint64_t x, uint64_t unit) { return (x + unit / 2) / unit; }

START_TEST(flash_has_the_tensors_and_elements_of_the_checkpoint) {
    cedar_config c = load("flash");
    cedar_memory_plan p = plan(&c, NULL);
    /* The published figures hold 266 vision tensors: 485,268,480 BF16 parameters. */
    const uint64_t vision = 485268480;
    ck_assert_uint_eq(p.tensor_count, 96085 - 266);
    ck_assert_uint_eq(p.tensor_count_draft, 2401);
    ck_assert_uint_eq(p.weight_bytes, 510286023000 - 2 * vision);
    ck_assert_uint_eq(p.elements_f8, 204015223296);
    ck_assert_uint_eq(p.elements_fp4, 557171343360);
    ck_assert_uint_eq(p.elements_bf16, 1976441856 - vision);
    ck_assert_uint_eq(p.elements_f32, 42307282);
    ck_assert_uint_eq(p.parameters, 763205315794 - vision);
}
END_TEST

START_TEST(flash_parts_are_those_of_the_specification) {
    cedar_config c = load("flash");
    cedar_memory_plan p = plan(&c, NULL);
    const uint64_t mb = 1000000, expert = 18800640;
    ck_assert_uint_eq(p.expert_bytes, 40 * 384 * expert);                       /* 288.8 GB */
    ck_assert_uint_eq(in_units(p.expert_bytes, 100 * mb), 2888);
    ck_assert_uint_eq(in_units(p.engram_table_bytes, 100 * mb), 2028);          /* 202.8 GB */
    ck_assert_uint_eq(p.engram_table_bytes, (384006168ull + 384016682ull) * (256 + 8));
    ck_assert_uint_eq(in_units(p.draft_bytes, 100 * mb), 79);                   /* 7.9 GB */
    /* These count the draft stages in: 43 layers instead of 40. */
    ck_assert_uint_eq(in_units(p.attention_bytes / 40 * 43, 10 * mb), 545);     /* 5.45 GB */
    ck_assert_uint_eq(in_units(p.shared_bytes / 40 * 43, 10 * mb), 152);        /* 1.52 GB */
    ck_assert_uint_eq(in_units(p.hc_bytes / 40 * 43, 10 * mb), 17);             /* 0.17 GB */
    ck_assert_uint_eq(in_units(p.embed_head_bytes, 10 * mb), 265);              /* 2.65 GB */
    ck_assert_uint_eq(in_units(p.weight_bytes - p.engram_table_bytes, 100 * mb), 3066);     /* 306.6 GB */
    ck_assert_uint_eq(p.expert_bytes + p.draft_bytes + p.engram_table_bytes + p.attention_bytes + p.shared_bytes +
                      p.embed_head_bytes + p.hc_bytes + p.other_bytes, p.weight_bytes);
}
END_TEST

/* A rank of two: all that is whole, and half of what is split. Sizes from the shape, in bytes with their scales. */
START_TEST(two_gpus_share_what_is_split) {
    cedar_config c = load("flash-e128");
    cedar_engine_opts o = cedar_engine_defaults(&c);
    o.page_count = 101;
    cedar_memory_plan one = plan(&c, &o), two;
    o.gpus = 2;
    two = plan(&c, &o);
    const uint64_t blocks = 43, tile = 1024, d = 5120;
    uint64_t wq_b = 64 * 512 * 1280, wo_a = 8 * 1024 * 4096, wo_b = d * 8 * 1024;
    uint64_t attention = (wq_b + wo_a + wo_b) / tile * (tile + 1) + 64 * 4;
    uint64_t split = blocks * attention + one.expert_bytes + one.shared_bytes / 40 * 43 + 129280 * d * 2;
    split += one.expert_bytes / 40 / 128 * 3 * (uint64_t)c.draft_experts;      /* the drafter's experts */
    ck_assert_int_eq(c.q_lora, 1280);
    ck_assert_uint_eq(one.rank_weight_bytes, one.weight_bytes);
    ck_assert_uint_eq(one.rank_bytes, one.total_bytes);
    ck_assert_uint_eq(two.weight_bytes, one.weight_bytes);
    ck_assert_uint_eq(two.rank_weight_bytes, one.weight_bytes - split / 2);
    ck_assert_uint_eq(two.rank_pool_bytes, 51 * one.page_bytes);
    ck_assert_uint_eq(two.pool_bytes, one.pool_bytes);
    ck_assert_uint_eq(two.rank_bytes, two.rank_weight_bytes + two.rank_pool_bytes + two.seq_bytes +
                                          two.rank_workspace_bytes);
    ck_assert_uint_eq(two.total_bytes, 2 * two.rank_bytes - one.page_bytes);    /* the other has a page less */
}
END_TEST

START_TEST(flash_caches_are_those_of_the_specification) {
    cedar_config c = load("flash");
    cedar_memory_plan p = plan(&c, NULL);
    ck_assert_uint_eq(p.kv_entry_bytes, 288);
    ck_assert_uint_eq(p.index_entry_bytes, 68);
    ck_assert_uint_eq(p.kv_token_bytes_x1000, 890000);
    ck_assert_uint_eq(p.window_layer_bytes, 67584);
    ck_assert_uint_eq(p.window_bytes, 2703360);
    ck_assert_uint_eq(p.window_bytes + p.draft_ring_bytes, 2906112);
    ck_assert_uint_eq(p.open_group_bytes, 12288);
    ck_assert_uint_eq(
        p.page_bytes + p.pool_bytes + p.seq_bytes + p.workspace_bytes + p.total_bytes + p.verify_slack_bytes, 0);
}
END_TEST

START_TEST(reduced_shapes_have_the_printed_sizes) {
    static const struct { const char *name; uint64_t total_mb, without_tables_mb; } v[] = {   /* printed to 0.1 GB */
        { "flash-e32", 48900, 36300 }, { "flash-e48", 61000, 48300 }, { "flash-e64", 73000, 60400 },
        { "flash-e96", 97100, 84400 }, { "flash-e128", 121200, 108500 }, { "mid", 9400, 0 }, { "mid-small", 2500, 0 },
    };
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        cedar_config c = load(v[i].name);
        cedar_memory_plan p = plan(&c, NULL);
        uint64_t total = in_units(p.weight_bytes, 1000000),
                 rest = in_units(p.weight_bytes - p.engram_table_bytes, 1000000);
        ck_assert_msg(total + 60 >= v[i].total_mb && total <= v[i].total_mb + 60, "%s: %llu MB", v[i].name,
                      (unsigned long long)total);
        if (v[i].without_tables_mb)
            ck_assert_msg(rest + 50 >= v[i].without_tables_mb && rest <= v[i].without_tables_mb + 50, "%s: %llu MB",
                          v[i].name, (unsigned long long)rest);
        ck_assert_uint_eq(p.kv_token_bytes_x1000, 890000);
    }
}
END_TEST

START_TEST(mid_has_the_printed_parameters) {
    cedar_config c = load("mid"), bare;
    cedar_memory_plan p = plan(&c, NULL);
    uint64_t tables = (24003916ull + 24010950ull) * 64;
    ck_assert_uint_eq(in_units(tables, 10000000), 307);                         /* 3.07 B */
    bare = c;
    bare.stages = 0;
    ck_assert_uint_eq(in_units(plan(&bare, NULL).parameters - tables, 10000000), 812);      /* 8.12 B */
    /* 5.85 GB without Engram tables, Engram projections (two, with scales and gains) and draft. */
    uint64_t projections = 2 * (10240ull * 1536 + 320ull * 48 + 2 * 4 * 2048 * 2);
    ck_assert_uint_eq(in_units(p.weight_bytes - p.engram_table_bytes - p.draft_bytes - projections, 10000000), 585);
}
END_TEST

START_TEST(mid_small_has_the_printed_parameters) {
    cedar_config c = load("mid-small");
    c.stages = 0;
    cedar_memory_plan p = plan(&c, NULL);
    uint64_t tables = (uint64_t)(c.engram_rows[0] + c.engram_rows[1]) * 64;
    ck_assert_uint_eq(in_units(p.parameters - tables, 10000000), 226);          /* 2.26 B */
}
END_TEST

START_TEST(tiny_has_the_printed_numbers) {
    cedar_config c = load("tiny");
    cedar_memory_plan p = plan(&c, NULL);
    ck_assert_uint_eq(p.tensor_count, 780);
    ck_assert_uint_eq(in_units(p.parameters, 10000), 342);
    ck_assert_uint_eq(p.kv_entry_bytes, 36);
    ck_assert_uint_eq(p.index_entry_bytes, 17);
    ck_assert_uint_eq(p.kv_token_bytes_x1000, 106000);
    ck_assert_uint_eq(p.window_bytes, 8448);
}
END_TEST

/* --- what an engine allocates ---------------------------------------------------------------------------------------
 */

START_TEST(options_fill_the_rest) {
    cedar_config c = load("flash");
    cedar_engine_opts o = cedar_engine_defaults(&c);
    o.arith = CEDAR_F32;
    o.page_tokens = 64;
    o.page_count = 100;
    o.seq_count = 3;
    o.context_tokens = 1000;
    o.verify_rows = 5;
    cedar_memory_plan p = plan(&c, &o);
    const uint64_t rings = 43ull * (128 + 5) * 528, open = 3ull * (1 + 5) * 2 * 512 * 4;
    ck_assert_uint_eq(p.page_bytes, 64 * 890);
    ck_assert_uint_eq(p.pool_bytes, 100 * 64 * 890);
    ck_assert_uint_eq(p.verify_slack_bytes, 43ull * 5 * 528 + 3ull * 5 * 1024 * 4);
    ck_assert_uint_eq(p.seq_bytes, rings + open + 1000 * 4 + 16 * 4);
    ck_assert_uint_eq(p.workspace_bytes, cedar_cpu_workspace_bytes(&c, &o));
    ck_assert_uint_eq(p.total_bytes, p.weight_bytes + p.pool_bytes + 3 * p.seq_bytes + p.workspace_bytes);
    o.arith = CEDAR_WIDE;
    ck_assert_uint_eq(plan(&c, &o).seq_bytes, rings + 2 * open + 1000 * 4 + 16 * 4);
}
END_TEST

START_TEST(bad_options_are_refused) {
    cedar_config c = load("tiny");
    cedar_memory_plan p;
    cedar_err err = { 0 };
    cedar_engine_opts good = cedar_engine_defaults(&c), o = good;
    o.page_tokens = 63;
    ck_assert_int_eq(cedar_plan_memory(&c, &o, &p, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "page_tokens is 63; it must be a positive multiple of 2"));
    o.page_tokens = 0;
    ck_assert_int_eq(cedar_plan_memory(&c, &o, &p, &err), CEDAR_E_ARG);
    o = good;
    o.backend = "abacus";
    ck_assert_int_eq(cedar_plan_memory(&c, &o, &p, &err), CEDAR_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.msg, "\"abacus\""));
    o = good;
    o.verify_rows = UINT32_MAX;
    ck_assert_int_eq(cedar_plan_memory(&c, &o, &p, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "verify_rows"));
}
END_TEST

START_TEST(defaults_suit_every_shape) {
    static const char *const name[] = { "tiny", "tiny2", "mid", "mid-small", "small", "flash", "flash-e32" };
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        cedar_config c = load(name[i]);
        cedar_engine_opts o = cedar_engine_defaults(&c);
        ck_assert_uint_eq(o.page_tokens, 64);
        ck_assert_uint_le(o.context_tokens, (uint32_t)c.positions_max);
        ck_assert_uint_ge((uint64_t)o.page_count * o.page_tokens, o.context_tokens);
        ck_assert_uint_eq(o.verify_rows, (uint32_t)c.draft_block);
        ck_assert_uint_gt(plan(&c, &o).total_bytes, plan(&c, NULL).weight_bytes);
    }
    cedar_config c = load("tiny");
    c.ratio_lcm = 3;
    ck_assert_uint_eq(cedar_engine_defaults(&c).page_tokens, 66);
}
END_TEST

int main(void) {
    Suite *s = suite_create("memplan");
    TCase *t = tcase_create("memplan");
    tcase_set_timeout(t, 20);
    tcase_add_test(t, flash_has_the_tensors_and_elements_of_the_checkpoint);
    tcase_add_test(t, flash_parts_are_those_of_the_specification);
    tcase_add_test(t, two_gpus_share_what_is_split);
    tcase_add_test(t, flash_caches_are_those_of_the_specification);
    tcase_add_test(t, reduced_shapes_have_the_printed_sizes);
    tcase_add_test(t, mid_has_the_printed_parameters);
    tcase_add_test(t, mid_small_has_the_printed_parameters);
    tcase_add_test(t, tiny_has_the_printed_numbers);
    tcase_add_test(t, options_fill_the_rest);
    tcase_add_test(t, bad_options_are_refused);
    tcase_add_test(t, defaults_suit_every_shape);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
