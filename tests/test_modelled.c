/* Modelled time: hardware descriptions, and runs that the cost model clocks instead of an engine. */
#define JOURNAL_MODEL "scenarios/models/tiny.json"

#include "journal.h"
#include "lua/hardware.h"

#define TWO HEAD("one", 8) TURN(0, 66, 6, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16") "," \
    TURN(3, 90, 7, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22") "]}\n" \
    HEAD("two", 8) TURN(0, 40, 3, 1, "31,32,33,34,35,36,37,38,39,40") "," \
    TURN(2, 61, 8, 1, "31,32,33,34,35,36,37,38,39,40,41,42,43,44,45") "]}"

#define MODELLED "clock=modelled hardware=h200 lanes=2 page_tokens=4 step_tokens=24 "

/* Plays TWO; NULL and the message in `says` when it is refused. */
static journal *play(const char *settings, bool knows_hardware, char says[480]) {
    journal *l = calloc(1, sizeof *l);
    cedar_run_result out;
    cedar_err err = { 0 };
    if (knows_hardware) l->hardware = cedar_hardware_find;
    int64_t live = cedar_mem_live();
    cedar_status st = play_run(TWO, settings, l, NULL, &out, &err);
    ck_assert_int_eq(cedar_mem_live(), live);
    snprintf(says, 480, "%s", err.msg);
    if (!st) return l;
    journal_free(l);
    return NULL;
}

static journal *must_play(const char *settings) {
    char says[480];
    journal *l = play(settings, true, says);
    ck_assert_msg(l, "%s", says);
    return l;
}

START_TEST(twice_the_same_to_the_nanosecond) {
    journal *x = must_play(MODELLED), *y = must_play(MODELLED "threads=2");
    ck_assert_str_eq(x->rows, y->rows);
    ck_assert_str_eq(x->timing, y->timing);
    ck_assert_uint_eq(x->requests, 4);
    ck_assert_uint_gt(x->hits, 0);
    journal_free(x);
    journal_free(y);
}
END_TEST

/* The engine, when one computes beside the clock, must not change what is scheduled. */
START_TEST(with_and_without_an_engine_the_same_schedule) {
    journal *x = must_play(MODELLED), *y = must_play(MODELLED "backend=cpu");
    ck_assert_str_eq(x->timing, y->timing);
    /* without the first line, which names the backend, and the event hash, which covers the logits */
    char *rows_x = strchr(x->rows, '\n'), *rows_y = strchr(y->rows, '\n');
    *strstr(rows_x, "end finished") = *strstr(rows_y, "end finished") = 0;
    ck_assert(strcmp(rows_x, rows_y) == 0);
    journal_free(x);
    journal_free(y);
}
END_TEST

START_TEST(launches_and_hardware_have_a_price) {
    journal *split = must_play(MODELLED), *off = must_play(MODELLED "graphs=off");
    journal *four = must_play("clock=modelled hardware=gb300-tp4 lanes=2 page_tokens=4 step_tokens=24");
    ck_assert_int_gt(off->step_ns[0], split->step_ns[0]);
    ck_assert_int_ne(four->step_ns[0], split->step_ns[0]);
    journal_free(split);
    journal_free(off);
    journal_free(four);
}
END_TEST

static const struct { const char *settings; bool knows; const char *says;
} refusals[] = {
    { "clock=modelled", true, "needs hardware to price" },
    { "clock=modelled hardware=h200", false, "needs hardware to price" },
    { "clock=modelled hardware=h2000", true,
      "hardware \"h2000\" is not known: there is no ./scenarios/hardware/h2000.lua" },
    { "clock=modelled hardware=./nowhere.lua", true, "./nowhere.lua: No such file" },
    { "backend=none", true, "needs clock = \"modelled\"" },
    { "clock=modelled hardware=h200 quality=true", true, "no logits" },
    { "clock=modelled hardware=h200 continuation=greedy", true, "no logits" },
};

START_TEST(refusals_say_what_to_do) {
    char says[480];
    ck_assert_ptr_null(play(refusals[_i].settings, refusals[_i].knows, says));
    ck_assert_msg(strstr(says, refusals[_i].says), "%s: %s", refusals[_i].settings, says);
}
END_TEST

/* --- descriptions ------------------------------------------------------------------------------------------------- */
#define ALL "gpus = 1, hbm_bytes = 141e9, copy_bytes_s = 4e12, matmul_flop_s = 8e14, attention_flop_s = 4e14, " \
    "indexer_flop_s = 7e14, kernels_per_layer = 18, launch_ns = 970, eager_launch_ns = 6500"

/* Loads a description from text through a file. */
static cedar_status load(const char *text, cedar_hardware *hw, cedar_err *err) {
    char path[] = "/tmp/cedar-test-XXXXXX.lua";
    int fd = mkstemps(path, 4);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    int64_t live = cedar_mem_live();
    cedar_status st = cedar_hardware_load(path, hw, err);
    ck_assert_int_eq(cedar_mem_live(), live);
    unlink(path);
    return st;
}

static const struct { const char *text, *says; } broken[] = {
    { "return 7", "must return a table" },
    { "return {", "expected" },
    { "return { 5 }", "every figure needs a name" },
    { "return { name = 7, " ALL " }", "name must be a string" },
    { "return { " ALL " }", "name is missing" },
    { "return { name = 'x', gpu = 1, " ALL " }", "unknown figure \"gpu\"; did you mean \"gpus\"?" },
    { "return { name = 'x', " ALL ", step_host_ns = 'fast' }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = '970' }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = { 970 } }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = -1 }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = 0/0 }", "step_host_ns must be a number" },
    { "return { name = 'x', gpus = 1 }", "is missing" },
    { "while true do end", "instructions for a table" },
    { "return { name = os.getenv('HOME'), " ALL " }", "global 'os'" },
};

START_TEST(broken_descriptions_name_the_fault) {
    cedar_hardware hw = { .gpus = -7 };
    cedar_err err = { 0 };
    ck_assert_int_ne(load(broken[_i].text, &hw, &err), CEDAR_OK);
    ck_assert_msg(strstr(err.msg, broken[_i].says), "%s: %s", broken[_i].text, err.msg);
    ck_assert_double_eq(hw.gpus, -7); /* nothing was set */
}
END_TEST

START_TEST(good_descriptions_load) {
    cedar_hardware hw;
    OK(load("return { name = 'x', " ALL ", step_host_ns = { 970, 'measured' } }", &hw, &failure));
    ck_assert_str_eq(hw.name, "x");
    ck_assert_double_eq(hw.step_host_ns, 970);
    static const char *const shipped[] = { "h200", "gb300-tp4" };
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        OK(cedar_hardware_find(".", shipped[i], &hw, &failure));
        ck_assert_str_eq(hw.name, shipped[i]);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("modelled");
    TCase *t = tcase_create("runs");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, twice_the_same_to_the_nanosecond);
    tcase_add_test(t, with_and_without_an_engine_the_same_schedule);
    tcase_add_test(t, launches_and_hardware_have_a_price);
    tcase_add_loop_test(t, refusals_say_what_to_do, 0, sizeof refusals / sizeof *refusals);
    suite_add_tcase(s, t);
    t = tcase_create("descriptions");
    tcase_add_loop_test(t, broken_descriptions_name_the_fault, 0, sizeof broken / sizeof *broken);
    tcase_add_test(t, good_descriptions_load);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
