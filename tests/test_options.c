/* The option table: defaults, strict parsing, canonical text, JSON, and what error messages say. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sim/options_int.h"

static cedar_err err;
static cedar_run_opts *opts;

static void open_opts(void) {
    memset(&err, 0, sizeof err);
    ck_assert_int_eq(cedar_opts_new(&opts, &err), CEDAR_OK);
}

static void close_opts(void) {
    cedar_opts_free(opts);
    ck_assert_int_eq(cedar_mem_live(), 0);
}

static void set_ok(const char *key, const char *value) {
    ck_assert_msg(cedar_opts_set(opts, key, value, &err) == CEDAR_OK, "%s=%s: %s", key, value, err.msg);
}

static void set_bad(const char *key, const char *value, const char *message) {
    ck_assert_msg(cedar_opts_set(opts, key, value, &err) == CEDAR_E_ARG, "%s=%s was accepted", key, value);
    ck_assert_str_eq(err.msg, message);
}

START_TEST(defaults_are_the_documented_ones) {
    ck_assert_str_eq(opts->label, "");
    ck_assert_str_eq(opts->model, "tiny");
    ck_assert_str_eq(opts->trace, "");
    ck_assert_int_eq(opts->weights_seed, 1);
    ck_assert_int_eq(opts->backend, CEDAR_BACKEND_AUTO);
    ck_assert_int_eq(opts->arith, CEDAR_F32);
    ck_assert_int_eq(opts->lanes, 4);
    ck_assert_int_eq(opts->seed, 42);
    ck_assert_int_eq(opts->order, CEDAR_ORDER_SEQUENTIAL);
    ck_assert_int_eq(opts->passes, 1);
    ck_assert_int_eq(opts->duration_ns, 0);
    ck_assert_int_eq(opts->length_num, 1);
    ck_assert_int_eq(opts->length_den, 1);
    ck_assert_int_eq(opts->time_scale_ppb, 1000000000);
    ck_assert_int_eq(opts->think_cap_ns, 300000000000);
    ck_assert_int_eq(opts->replay, CEDAR_REPLAY_EXACT);
    ck_assert_int_eq(opts->cut, CEDAR_CUT_AFTER);
    ck_assert(opts->prefix_cache && !opts->strict && !opts->quality && !opts->adopt_short_hits && !opts->prompt_scores);
    ck_assert_int_eq(opts->page_tokens, 16);
    ck_assert_int_eq(opts->step_tokens, 256);
    ck_assert_int_eq(opts->continuation, CEDAR_CONTINUATION_FORCED);
    ck_assert_int_eq(opts->clock, CEDAR_CLOCK_MEASURED);
    ck_assert_int_eq(opts->pace, CEDAR_PACE_FIXED);
    ck_assert_int_eq(opts->pace_step_us, 1000);
    ck_assert_int_eq(opts->pace_row_us, 20);
    ck_assert_int_eq(opts->quality_every, 1);
}
END_TEST

START_TEST(table_is_complete) {
    size_t count;
    const cedar_opt_info *table = cedar_opt_table(&count);
    ck_assert_uint_ge(count, 60);
    for (size_t i = 0; i < count; i++) {
        ck_assert(*table[i].key && strlen(table[i].help) > 10 && strlen(table[i].help) < 100);
        ck_assert_str_eq(cedar_opts_get(opts, table[i].key), table[i].value_default);
        ck_assert_int_eq(table[i].choices != NULL, table[i].type == CEDAR_OPT_CHOICE);
        for (size_t j = 0; j < i; j++) ck_assert_str_ne(table[i].key, table[j].key);
    }
    ck_assert_ptr_null(cedar_opts_get(opts, "speculation"));
}
END_TEST

START_TEST(values_reach_their_fields) {
    set_ok("model", "flash-e32");
    set_ok("trace", "a.json,b\xC3\xA9.json");
    set_ok("backend", "cuda");
    set_ok("arith", "wide");
    set_ok("lanes", "0032");
    set_ok("seed", "9007199254740991");
    set_ok("order", "shuffle");
    set_ok("strict", "true");
    set_ok("duration_s", "1.5");
    set_ok("think_cap_s", "0.000001");
    set_ok("time_scale", "0.25");
    set_ok("length_scale", "2/128");
    set_ok("replay", "both");
    set_ok("cut", "inside_clip");
    set_ok("continuation", "greedy");
    set_ok("clock", "recorded");
    set_ok("pace", "measured");
    set_ok("window_cache_bytes", "141000000000");
    set_ok("prefix_cache", "false");
    ck_assert_str_eq(opts->model, "flash-e32");
    ck_assert_str_eq(opts->trace, "a.json,b\xC3\xA9.json");
    ck_assert_int_eq(opts->backend, CEDAR_BACKEND_CUDA);
    ck_assert_int_eq(opts->arith, CEDAR_WIDE);
    ck_assert_int_eq(opts->lanes, 32);
    ck_assert_int_eq(opts->seed, 9007199254740991);
    ck_assert_int_eq(opts->order, CEDAR_ORDER_SHUFFLE);
    ck_assert(opts->strict && !opts->prefix_cache);
    ck_assert_int_eq(opts->duration_ns, 1500000000);
    ck_assert_int_eq(opts->think_cap_ns, 1000);
    ck_assert_int_eq(opts->time_scale_ppb, 250000000);
    ck_assert_int_eq(opts->length_num, 1);
    ck_assert_int_eq(opts->length_den, 64);
    ck_assert_int_eq(opts->replay, CEDAR_REPLAY_BOTH);
    ck_assert_int_eq(opts->cut, CEDAR_CUT_INSIDE_CLIP);
    ck_assert_int_eq(opts->continuation, CEDAR_CONTINUATION_GREEDY);
    ck_assert_int_eq(opts->clock, CEDAR_CLOCK_RECORDED);
    ck_assert_int_eq(opts->pace, CEDAR_PACE_MEASURED);
    ck_assert_int_eq(opts->window_cache_bytes, 141000000000);
}
END_TEST

/* One spelling per value. */
START_TEST(text_is_canonical) {
    static const char *const cases[][3] = {
        { "lanes", "007", "7" }, { "duration_s", "10.500000000", "10.5" }, { "duration_s", "3.0", "3" },
        { "length_scale", "0.015625", "1/64" }, { "length_scale", "0.0078125", "1/128" }, { "length_scale", "2/4",
                                                                                            "1/2" },
        { "length_scale", "4/2", "2" }, { "length_scale", "64", "64" }, { "length_scale", "1/3", "1/3" },
        { "requests_max", "-0", "0" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_ok(cases[i][0], cases[i][1]);
        ck_assert_str_eq(cedar_opts_get(opts, cases[i][0]), cases[i][2]);
    }
}
END_TEST

START_TEST(bad_values_name_key_and_value) {
    set_bad("lanes", "abc", "lanes = \"abc\": must be a whole number");
    set_bad("lanes", "4 ", "lanes = \"4 \": must be a whole number");
    set_bad("lanes", " 4", "lanes = \" 4\": must be a whole number");
    set_bad("lanes", "+4", "lanes = \"+4\": must be a whole number");
    set_bad("lanes", "4.0", "lanes = \"4.0\": must be a whole number");
    set_bad("lanes", "0x10", "lanes = \"0x10\": must be a whole number");
    set_bad("lanes", "", "lanes: the value is empty");
    set_bad("lanes", "0", "lanes = 0: allowed are 1 to 4096");
    set_bad("lanes", "-1", "lanes = -1: allowed are 1 to 4096");
    set_bad("seed", "9223372036854775808", "seed = 9223372036854775808: allowed are 0 to 9007199254740991");
    set_bad("seed", "9007199254740992", "seed = 9007199254740992: allowed are 0 to 9007199254740991");
    set_bad("duration_s", "1e3", "duration_s = \"1e3\": must be a number with at most 6 digits after the point");
    set_bad("duration_s", "1.", "duration_s = \"1.\": must be a number with at most 6 digits after the point");
    set_bad("duration_s", ".5", "duration_s = \".5\": must be a number with at most 6 digits after the point");
    set_bad("duration_s", "0.0000001",
            "duration_s = \"0.0000001\": must be a number with at most 6 digits after the point");
    set_bad("duration_s", "nan", "duration_s = \"nan\": must be a number with at most 6 digits after the point");
    set_bad("duration_s", "-0.5", "duration_s = -0.5: allowed are 0 to 31536000");
    set_bad("duration_s", "9999999999", "duration_s = 9999999999: allowed are 0 to 31536000");
    set_bad("duration_s", "99999999999999999999", "duration_s = 99999999999999999999: allowed are 0 to 31536000");
    set_bad("lanes", "184467440737095516200", "lanes = 184467440737095516200: allowed are 1 to 4096");
    set_bad("length_scale", "99999999999/1", "length_scale = 99999999999/1: allowed are numbers above 0 to 64");
    set_bad("length_scale", "99999999999999999999/99999999999999999998",
            "length_scale = 99999999999999999999/99999999999999999998: allowed are numbers above 0 to 64");
    set_bad("length_scale", "0", "length_scale = 0: allowed are numbers above 0 to 64");
    set_bad("length_scale", "1/0", "length_scale = 1/0: allowed are numbers above 0 to 64");
    set_bad("length_scale", "65", "length_scale = 65: allowed are numbers above 0 to 64");
    set_bad("length_scale", "1/", "length_scale = \"1/\": must be a number, or two whole numbers such as \"1/64\"");
    set_bad("length_scale", "1/2/3", "length_scale = \"1/2/3\": must be a number, or two whole numbers such as "
                                     "\"1/64\"");
    set_bad("length_scale", "-1/2", "length_scale = \"-1/2\": must be a number, or two whole numbers such as \"1/64\"");
    set_bad("strict", "yes", "strict = \"yes\": must be true or false");
    set_bad("replay", "encodr", "replay = \"encodr\": must be one of exact|decoder|encoder|both");
    set_bad("replay", "exact|decoder", "replay = \"exact|decoder\": must be one of exact|decoder|encoder|both");
    set_bad("model", "", "model = \"\": must not be empty");
    set_bad("trace", "a\nb", "trace: byte 2 of the value is a control character or not UTF-8");
    set_bad("trace", "ab\xFF", "trace: byte 3 of the value is a control character or not UTF-8");
    set_bad("trace", "\xC0\xAF", "trace: byte 1 of the value is a control character or not UTF-8");
    set_bad("trace", "\xED\xA0\x80", "trace: byte 1 of the value is a control character or not UTF-8");
    set_bad("label", "0123456789012345678901234567890123456789012345678901234567890123",
            "label = \"01234567890123456789012345678901...\": 64 bytes, at most 63 are allowed");
    /* Nothing of that has changed a value. */
    ck_assert_int_eq(opts->lanes, 4);
    ck_assert_str_eq(cedar_opts_get(opts, "replay"), "exact");
    ck_assert_str_eq(opts->model, "tiny");
}
END_TEST

START_TEST(unknown_keys_name_the_nearest) {
    set_bad("lane", "4", "unknown option \"lane\"; did you mean \"lanes\"?");
    set_bad("lnaes", "4", "unknown option \"lnaes\"; did you mean \"lanes\"?");
    set_bad("tarce", "x", "unknown option \"tarce\"; did you mean \"trace\"?");
    set_bad("duration", "1", "unknown option \"duration\"; did you mean \"duration_s\"?");
    set_bad("Model", "x", "unknown option \"Model\"; did you mean \"model\"?");
    set_bad("think", "x", "unknown option \"think\"; did you mean \"think_cap_s\"?");
    set_bad("speculation", "true", "unknown option \"speculation\"; docs/SCENARIOS.md lists the options");
    set_bad("", "true", "unknown option \"\"; docs/SCENARIOS.md lists the options");
}
END_TEST

START_TEST(nearest_word) {
    static const char *const words[] = { "run", "sweep", "expect", "print" };
    ck_assert_str_eq(cedar_nearest("swep", words, 4), "sweep");
    ck_assert_str_eq(cedar_nearest("prnit", words, 4), "print");
    ck_assert_str_eq(cedar_nearest("exp", words, 4), "expect");
    ck_assert_str_eq(cedar_nearest("rum", words, 4), "run");
    ck_assert_str_eq(cedar_nearest("urn", words, 4), "run");
    ck_assert_ptr_null(cedar_nearest("x", words, 4));
    ck_assert_ptr_null(cedar_nearest("", words, 4));
    ck_assert_ptr_null(cedar_nearest("banana", words, 4));
    ck_assert_ptr_null(cedar_nearest("run", words, 0));
    char longer[200];
    memset(longer, 'r', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    ck_assert_ptr_null(cedar_nearest(longer, words, 4));
}
END_TEST

START_TEST(json_goes_there_and_back) {
    set_ok("trace", "dir/a \"q\" \\ b.json");
    set_ok("length_scale", "1/64");
    set_ok("duration_s", "31535999.999999");
    set_ok("time_scale", "0.000001");
    set_ok("quality", "true");
    set_ok("seed", "9007199254740991");
    char *json = NULL, *again = NULL;
    cedar_run_opts *other = NULL;
    ck_assert_int_eq(cedar_opts_json(opts, &json, &err), CEDAR_OK);
    ck_assert_ptr_nonnull(strstr(json, "{\"label\":\"\",\"rules\":\"plain\",\"unsafe_override\":false,\"model\":"
                                       "\"tiny\",\"weights_seed\":1,\"backend\":\"auto\","));
    ck_assert_ptr_nonnull(strstr(json, "\"trace\":\"dir/a \\\"q\\\" \\\\ b.json\",\"traces_max\":0,\"strict\":false,"));
    ck_assert_ptr_nonnull(strstr(json, "\"length_scale\":\"1/64\",\"time_scale\":0.000001,"));
    ck_assert_msg(cedar_opts_parse(json, "config", &other, &err) == CEDAR_OK, "%s", err.msg);
    ck_assert_int_eq(other->duration_ns, 31535999999999000);
    ck_assert_str_eq(other->trace, "dir/a \"q\" \\ b.json");
    ck_assert_int_eq(cedar_opts_json(other, &again, &err), CEDAR_OK);
    ck_assert_str_eq(json, again);
    cedar_free(json);
    cedar_free(again);
    cedar_opts_free(other);
}
END_TEST

START_TEST(bad_json_is_refused) {
    cedar_run_opts *other = NULL;
    ck_assert_int_eq(cedar_opts_parse("{", "config", &other, &err), CEDAR_E_FORMAT);
    ck_assert_int_eq(cedar_opts_parse("{\"label\":\"\"}", "config", &other, &err), CEDAR_E_FORMAT);
    ck_assert_str_eq(err.msg, "config: \"rules\" is missing");
    char *json = NULL;
    ck_assert_int_eq(cedar_opts_json(opts, &json, &err), CEDAR_OK);
    char *at = strstr(json, "\"lanes\":4");
    at[8] = '0';
    ck_assert_int_eq(cedar_opts_parse(json, "config", &other, &err), CEDAR_E_FORMAT);
    ck_assert_str_eq(err.msg, "config: lanes = 0: allowed are 1 to 4096");
    cedar_free(json);
    ck_assert_ptr_null(other);
}
END_TEST

START_TEST(copies_are_independent) {
    cedar_run_opts *copy = NULL;
    set_ok("trace", "one");
    ck_assert_int_eq(cedar_opts_copy(opts, &copy, &err), CEDAR_OK);
    set_ok("trace", "two");
    ck_assert_str_eq(copy->trace, "one");
    ck_assert_str_eq(opts->trace, "two");
    cedar_opts_free(copy);
    cedar_opts_free(NULL);
}
END_TEST

static void check_bad(const char *message) {
    ck_assert_int_eq(cedar_opts_check(opts, &err), CEDAR_E_ARG);
    ck_assert_str_eq(err.msg, message);
}

START_TEST(checks_over_several_keys) {
    check_bad("trace is not set; give a trace file or directory");
    set_ok("trace", "a,,b");
    check_bad("trace = \"a,,b\": a path between the commas is empty");
    set_ok("trace", "a,");
    check_bad("trace = \"a,\": a path between the commas is empty");
    set_ok("trace", "a,b");
    ck_assert_int_eq(cedar_opts_check(opts, &err), CEDAR_OK);
    set_ok("chunk_tokens", "257");
    check_bad("chunk_tokens = 257 is more than step_tokens = 256; a chunk is part of a step");
    set_ok("step_tokens", "257");
    ck_assert_int_eq(cedar_opts_check(opts, &err), CEDAR_OK);
    set_ok("keep", "false");
    check_bad("keep = false needs clock = \"modelled\": a measured run could not be played again without its stored "
              "step lengths");
    set_ok("keep", "true");
    set_ok("prompt_scores", "true");
    check_bad("prompt_scores = true needs quality = true");
    set_ok("quality", "true");
    set_ok("kv_pages", "4");
    set_ok("context_max", "65");
    check_bad("kv_pages = 4 of page_tokens = 16 hold 64 tokens, less than context_max = 65");
    set_ok("context_max", "64");
    ck_assert_int_eq(cedar_opts_check(opts, &err), CEDAR_OK);
}
END_TEST

/* Every allocation of new, set, copy, JSON and back fails once; nothing leaks and the options stay whole. */
START_TEST(memory_faults) {
    bool done = false;
    for (int64_t n = 1; !done; n++) {
        ck_assert_int_lt(n, 1000);
        cedar_run_opts *o = NULL, *copy = NULL, *back = NULL;
        char *json = NULL;
        cedar_mem_fail_at(n);
        cedar_status st = cedar_opts_new(&o, &err);
        if (!st) st = cedar_opts_set(o, "trace", "somewhere", &err);
        if (!st) st = cedar_opts_copy(o, &copy, &err);
        if (!st) st = cedar_opts_json(copy, &json, &err);
        if (!st) st = cedar_opts_parse(json, "config", &back, &err);
        cedar_mem_fail_at(0);
        done = st == CEDAR_OK;
        ck_assert_msg(done || st == CEDAR_E_OOM, "allocation %d: %s", (int)n, err.msg);
        if (o) ck_assert_ptr_nonnull(cedar_opts_get(o, "trace"));
        cedar_free(json);
        cedar_opts_free(back);
        cedar_opts_free(copy);
        cedar_opts_free(o);
    }
}
END_TEST

/* Other rules change the defaults of what nobody has given, whatever the order of setting. */
START_TEST(rules_bring_their_defaults) {
    set_ok("warmup_requests", "3");
    set_ok("rules", "agentx");
    ck_assert_int_eq(opts->duration_ns, 3600000000000);
    ck_assert_int_eq(opts->start_lo_ppb, 250000000);
    ck_assert_int_eq(opts->start_hi_ppb, 750000000);
    ck_assert_int_eq(opts->warmup_requests, 3);
    ck_assert_int_eq(opts->tree_idle_cap_ns, 300000000000);
    ck_assert_int_eq(opts->global_idle_cap_ns, 10000000000);
    ck_assert_int_eq(opts->errors_max_ppb, 100000000);
    ck_assert_int_eq(opts->floor_ppb, 150000000000);
    ck_assert(opts->recycle && opts->barriers);
    ck_assert_int_eq(opts->seed, 42);
    ck_assert_int_eq(opts->warmup_grace_ns, 1800000000000);
    set_ok("rules", "agentx-fast");
    ck_assert_int_eq(opts->duration_ns, 1200000000000);
    ck_assert_int_eq(opts->warmup_requests, 3);
    set_ok("duration_s", "1000");
    cedar_run_opts *copy = NULL;
    ck_assert_int_eq(cedar_opts_copy(opts, &copy, &err), CEDAR_OK);
    ck_assert_int_eq(cedar_opts_set(copy, "rules", "plain", &err), CEDAR_OK);    /* a copy knows what was given */
    ck_assert_str_eq(cedar_opts_get(copy, "duration_s"), "1000");
    ck_assert_str_eq(cedar_opts_get(copy, "start_hi"), "0");
    ck_assert(!copy->recycle);
    cedar_opts_free(copy);
    set_bad("rules", "agentix", "rules = \"agentix\": must be one of plain|agentx|agentx-fast");
    ck_assert_int_eq(opts->rules, CEDAR_RULES_AGENTX_FAST);
}
END_TEST

START_TEST(locked_keys_need_a_word) {
    char names[256];
    set_ok("trace", "x");
    set_ok("rules", "agentx");
    ck_assert_int_eq(cedar_opts_check(opts, &err), CEDAR_OK);
    ck_assert_uint_eq(cedar_opts_locks(opts, names, sizeof names), 0);
    set_ok("warmup_requests", "5");     /* a recorded parameter, not a lock */
    set_ok("lanes", "64");
    ck_assert_int_eq(cedar_opts_check(opts, &err), CEDAR_OK);
    set_ok("time_scale", "0.5");
    set_ok("global_idle_cap_s", "60");
    set_ok("duration_s", "899");
    ck_assert_int_eq(cedar_opts_check(opts, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg,
                                 "lock time_scale, global_idle_cap_s, duration_s; duration_s is at least 900"));
    set_ok("unsafe_override", "true");
    ck_assert_int_eq(cedar_opts_check(opts, &err), CEDAR_OK);
    ck_assert_uint_eq(cedar_opts_locks(opts, names, sizeof names), 3);
    char little[12];
    ck_assert_uint_eq(cedar_opts_locks(opts, little, sizeof little), 3);
    set_ok("rules", "plain");
    ck_assert_uint_eq(cedar_opts_locks(opts, names, sizeof names), 0);
}
END_TEST

/* docs/SCENARIOS.md has a row for each option, in the order of the table, with its default and its help. */
START_TEST(the_documentation_is_complete) {
    static char doc[65536];
    FILE *f = fopen("docs/SCENARIOS.md", "r");
    ck_assert_msg(f != NULL, "docs/SCENARIOS.md is not there; run the tests from the top folder");
    doc[fread(doc, 1, sizeof doc - 1, f)] = 0;
    fclose(f);
    size_t count;
    const cedar_opt_info *table = cedar_opt_table(&count);
    const char *at = doc;
    for (size_t i = 0; i < count; i++) {
        char row[64], rest[256];
        snprintf(row, sizeof row, "| `%s` | ", table[i].key);
        snprintf(rest, sizeof rest, " | `%s` | %s |\n", *table[i].value_default ? table[i].value_default : "\"\"",
                 table[i].help);
        at = strstr(at, row);
        ck_assert_msg(at != NULL, "no row for %s, or not in its place", table[i].key);
        const char *end = strchr(at, '\n') + 1;
        ck_assert_msg((size_t)(end - at) > strlen(rest) && strncmp(end - strlen(rest), rest, strlen(rest)) == 0,
                      "the row of %s does not end in%s", table[i].key, rest);
    }
}
END_TEST

int main(void) {
    Suite *suite = suite_create("options");
    TCase *c = tcase_create("options");
    tcase_set_timeout(c, 20);
    tcase_add_checked_fixture(c, open_opts, close_opts);
    tcase_add_test(c, defaults_are_the_documented_ones);
    tcase_add_test(c, table_is_complete);
    tcase_add_test(c, values_reach_their_fields);
    tcase_add_test(c, text_is_canonical);
    tcase_add_test(c, bad_values_name_key_and_value);
    tcase_add_test(c, unknown_keys_name_the_nearest);
    tcase_add_test(c, nearest_word);
    tcase_add_test(c, json_goes_there_and_back);
    tcase_add_test(c, bad_json_is_refused);
    tcase_add_test(c, copies_are_independent);
    tcase_add_test(c, checks_over_several_keys);
    tcase_add_test(c, rules_bring_their_defaults);
    tcase_add_test(c, locked_keys_need_a_word);
    tcase_add_test(c, the_documentation_is_complete);
    tcase_add_test(c, memory_faults);
    suite_add_tcase(suite, c);
    SRunner *r = srunner_create(suite);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
