/* Published figures: the reader of their file, verdicts, figures of a shape, and assumptions changed for one run. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "sim/assume.h"
#include "sim/claims.h"
#include "sim/shape.h"

static cedar_err err;
static char path[64];

static void setup(void) {
    snprintf(path, sizeof path, "/tmp/cedar-claims-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    err = (cedar_err){ 0 };
}

static void teardown(void) {
    unlink(path);
    ck_assert_int_eq(cedar_mem_live(), 0);
}

static void write_file(const char *text, size_t bytes) {
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, bytes, f), bytes);
    ck_assert_int_eq(fclose(f), 0);
}

/* --- the reader --------------------------------------------------------------------------------------------------- */

#define HEAD "source,date,model,hardware,engine,metric,condition,value,unit,url\n"

START_TEST(reads_rows) {
    static const char text[] = HEAD "blog,2026-10-07,m,GB300,\"vLLM (a, b)\",ratio,"
                                    "\"says \"\"so\"\"\ntwice\",5.3,x,https://a\r\n"
                                    "\n"
                                    "blog,,m,,,bytes,,-890,B,";
    cedar_published_list *l;
    write_file(text, sizeof text - 1);
    ck_assert_msg(cedar_published_load(path, &l, &err) == CEDAR_OK, "%s", err.msg);
    ck_assert_uint_eq(l->count, 2);
    const cedar_published *a = &l->rows[0], *b = &l->rows[1];
    ck_assert_int_eq(a->row, 1);
    ck_assert_int_eq(a->line, 2);
    ck_assert_str_eq(a->source, "blog");
    ck_assert_str_eq(a->date, "2026-10-07");
    ck_assert_str_eq(a->model, "m");
    ck_assert_str_eq(a->hardware, "GB300");
    ck_assert_str_eq(a->engine, "vLLM (a, b)");
    ck_assert_str_eq(a->metric, "ratio");
    ck_assert_str_eq(a->condition, "says \"so\"\ntwice");
    ck_assert_double_eq(a->value, 5.3);
    ck_assert_double_eq_tol(a->last_digit, 0.1, 1e-15);
    ck_assert_str_eq(a->unit, "x");
    ck_assert_str_eq(a->url, "https://a");
    ck_assert_int_eq(b->row, 2);
    ck_assert_int_eq(b->line, 5);
    ck_assert_double_eq(b->value, -890);
    ck_assert_double_eq(b->last_digit, 1);
    ck_assert_str_eq(b->url, "");
    cedar_published_free(l);
    cedar_published_free(NULL);
}
END_TEST

static const struct { const char *text, *message; } broken[] = {
    { "", ":1: has 1 fields instead of 10; the first that is missing: date" },
    { "source,date,model,hardware,engine,metrik,condition,value,unit,url\n",
      ":1: column 6 is called \"metrik\", wanted \"metric\"" },
    { "source,date,model\n", ":1: has 3 fields instead of 10; the first that is missing: hardware" },
    { HEAD, ": has a heading and no line below it" },
    { HEAD "\n\n", ": has a heading and no line below it" },
    { HEAD "s,d,m,h,e,x,c,1,u,w\ns,d,m,h,e,x,c,1,u\n",
      ":3: has 9 fields instead of 10; the first that is missing: url" },
    { HEAD "s,d,m,h,e,x,c,1,u,w,more\n", ":2: has 11 fields instead of 10; is a comma not in quotes?" },
    { HEAD ",d,m,h,e,x,c,1,u,w\n", ":2: field source is empty" },
    { HEAD "s,d,m,h,e,\"\",c,1,u,w\n", ":2: field metric is empty" },
    { HEAD "s,d,m,h,e,x,c,,u,w\n", ":2: field value is empty" },
    { HEAD "s,d,m,h,e,x,c,fast,u,w\n", ":2: field value: \"fast\" is not a decimal number" },
    { HEAD "s,d,m,h,e,x,c,1e3,u,w\n", ":2: field value: \"1e3\" is not a decimal number" },
    { HEAD "s,d,m,h,e,x,c,0x10,u,w\n", ":2: field value: \"0x10\" is not a decimal number" },
    { HEAD "s,d,m,h,e,x,c,inf,u,w\n", ":2: field value: \"inf\" is not a decimal number" },
    { HEAD "s,d,m,h,e,x,c, 1,u,w\n", ":2: field value: \" 1\" is not a decimal number" },
    { HEAD "s,d,m,h,e,x,c,1.,u,w\n", ":2: field value: \"1.\" is not a decimal number" },
    { HEAD "s,d,m,h,e,x,c,-,u,w\n", ":2: field value: \"-\" is not a decimal number" },
    { HEAD "s,d,m,h,e,x,c,1234567890123456,u,w\n", ":2: field value: \"1234567890123456\" is not a decimal number" },
    { HEAD "s,d,m,h,e,x,\"c,1,u,w\n", ":2: field condition: the quote that opens it is never closed" },
    { HEAD "s,d,\"m\"n,h,e,x,c,1,u,w\n", ":2: field model: \"n,h,e,x,\" stands behind the closing quote" },
    { HEAD "s,d,m\"n\",h,e,x,c,1,u,w\n", ":2: field model: a quote inside a field that does not begin with one" },
    { HEAD "s,d,m,h,e,x,c,1,u\rw,w\n", ":2: field unit: a carriage return inside a line" },
    { HEAD "s,d,m,h,e,x,\"a\nb\",1,u,w\ns,d,m,h,e,x,c,?,u,w\n", ":4: field value: \"?\" is not a decimal number" },
    { HEAD "s,d,m,h,e,x,c,1,u,w\ns,d,m,h,e,y,c,1,u,w\ns,d,m,h,e,x,c,2,v,w\n",
      ":4: claims the same as line 2: x, \"c\"" },
};

START_TEST(broken_files) {
    cedar_published_list *l = (cedar_published_list *)&err;
    write_file(broken[_i].text, strlen(broken[_i].text));
    ck_assert_int_eq(cedar_published_load(path, &l, &err), CEDAR_E_FORMAT);
    ck_assert_ptr_null(l);
    ck_assert_int_eq(strncmp(err.msg, path, strlen(path)), 0);
    const char *rest = err.msg + strlen(path);
    ck_assert_msg(strncmp(rest, broken[_i].message, strlen(broken[_i].message)) == 0, "case %d: \"%s\"\nwanted \"%s\"",
                  _i, rest, broken[_i].message);
}
END_TEST

START_TEST(unreadable_files) {
    cedar_published_list *l;
    write_file(HEAD "s\0", sizeof HEAD + 1);
    ck_assert_int_eq(cedar_published_load(path, &l, &err), CEDAR_E_FORMAT);
    ck_assert_ptr_nonnull(strstr(err.msg, "byte 68 is 0"));
    ck_assert_int_eq(cedar_published_load("/no/such.csv", &l, &err), CEDAR_E_IO);
    ck_assert_ptr_null(l);
}
END_TEST

/* The project's own file. */
START_TEST(own_file) {
    cedar_published_list *l;
    ck_assert_msg(cedar_published_load("scenarios/claims/published_claims.csv", &l, &err) == CEDAR_OK, "%s", err.msg);
    ck_assert_uint_ge(l->count, 240);
    double speedup = 0;
    for (size_t i = 0; i < l->count; i++)
        if (strcmp(l->rows[i].metric, "throughput_ratio_at_interactivity") == 0) speedup = l->rows[i].value;
    ck_assert_double_eq(speedup, 5.3);
    cedar_published_free(l);
}
END_TEST

/* --- verdicts ----------------------------------------------------------------------------------------------------- */

#define POINT (double)NAN, (double)NAN

/* rule, share, published, last digit, ours, lo, hi */
static const struct { cedar_claim_test t; cedar_claim_verdict want; } judged[] = {
    { { CEDAR_CLAIM_ROUNDED, 0, 890, 1, 890, POINT }, CEDAR_CLAIM_REPRODUCED },
    { { CEDAR_CLAIM_ROUNDED, 0, 890, 1, 890.5, POINT }, CEDAR_CLAIM_REPRODUCED },       /* the bound itself holds */
    { { CEDAR_CLAIM_ROUNDED, 0, 890, 1, 890.51, POINT }, CEDAR_CLAIM_NOT_REPRODUCED },
    { { CEDAR_CLAIM_ROUNDED, 0, 5.3, 0.1, 5.24, POINT }, CEDAR_CLAIM_NOT_REPRODUCED },
    { { CEDAR_CLAIM_ROUNDED, 0, 5.3, 0.1, 5.26, POINT }, CEDAR_CLAIM_REPRODUCED },
    { { CEDAR_CLAIM_DIGIT, 0, 196, 1, 196.61, POINT }, CEDAR_CLAIM_REPRODUCED },
    { { CEDAR_CLAIM_DIGIT, 0, 196, 1, 197.1, POINT }, CEDAR_CLAIM_NOT_REPRODUCED },
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 5, POINT }, CEDAR_CLAIM_REPRODUCED },
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 3, POINT }, CEDAR_CLAIM_REPRODUCED },
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 5.001, POINT }, CEDAR_CLAIM_NOT_REPRODUCED },
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 4, 3, 5 }, CEDAR_CLAIM_REPRODUCED },
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 4, 2.9, 5 }, CEDAR_CLAIM_UNDECIDED },           /* reaches out below */
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 4, 3, 5.1 }, CEDAR_CLAIM_UNDECIDED },           /* and above */
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 4, 1, 9 }, CEDAR_CLAIM_UNDECIDED },             /* on both sides */
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 6, 5, 7 }, CEDAR_CLAIM_UNDECIDED },             /* touches it */
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 2, 1, 3 }, CEDAR_CLAIM_UNDECIDED },
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 6, 5.1, 7 }, CEDAR_CLAIM_NOT_REPRODUCED },
    { { CEDAR_CLAIM_WITHIN, 0.25, 4, 0, 2, 1, 2.9 }, CEDAR_CLAIM_NOT_REPRODUCED },
    { { CEDAR_CLAIM_WITHIN, 0.25, -4, 0, -4.5, POINT }, CEDAR_CLAIM_REPRODUCED },       /* a published loss */
    { { CEDAR_CLAIM_WITHIN, 0.25, -4, 0, 4, POINT }, CEDAR_CLAIM_NOT_REPRODUCED },
    { { CEDAR_CLAIM_AT_LEAST, 0, 30, 1, 47, POINT }, CEDAR_CLAIM_REPRODUCED },
    { { CEDAR_CLAIM_AT_LEAST, 0.1, 30, 1, 27, POINT }, CEDAR_CLAIM_REPRODUCED },
    { { CEDAR_CLAIM_AT_LEAST, 0.1, 30, 1, 26, 20, 26.9 }, CEDAR_CLAIM_NOT_REPRODUCED },
    { { CEDAR_CLAIM_AT_LEAST, 0, 30, 1, 31, 29, 33 }, CEDAR_CLAIM_UNDECIDED },
    { { CEDAR_CLAIM_AT_MOST, 0, 40, 1, 20, POINT }, CEDAR_CLAIM_REPRODUCED },
    { { CEDAR_CLAIM_AT_MOST, 0, 40, 1, 41, POINT }, CEDAR_CLAIM_NOT_REPRODUCED },
    { { CEDAR_CLAIM_AT_MOST, 0, 40, 1, 39, 38, 41 }, CEDAR_CLAIM_UNDECIDED },
};

START_TEST(verdicts) {
    char why[400];
    cedar_claim_verdict v = cedar_claim_judge(&judged[_i].t, why, sizeof why);
    ck_assert_msg(v == judged[_i].want, "case %d: %s: %s", _i, cedar_claim_verdict_name(v), why);
    ck_assert_int_eq(strncmp(why, "rule: ", 6), 0);
}
END_TEST

START_TEST(reasons) {
    char why[400];
    const cedar_claim_test within = { CEDAR_CLAIM_WITHIN, 0.2, 5.3, 0.1, 4.8, 4.5, 6 };
    cedar_claim_judge(&within, why, sizeof why);
    ck_assert_str_eq(why, "rule: within 20 % of 5.3: 4.24 to 6.36; ours, 4.8, interval 4.5 to 6: all of it is that");
    const cedar_claim_test least = { CEDAR_CLAIM_AT_LEAST, 0.1, 30, 1, 12, POINT };
    cedar_claim_judge(&least, why, sizeof why);
    ck_assert_str_eq(why, "rule: at least 27; ours, 12, is not");
    const cedar_claim_test digit = { CEDAR_CLAIM_DIGIT, 0, 8, 1, 7.55, POINT };
    cedar_claim_judge(&digit, why, sizeof why);
    ck_assert_str_eq(why, "rule: within a unit of the last digit of 8: 7 to 9; ours, 7.55, is that");
    cedar_claim_rule rule;
    ck_assert(cedar_claim_rule_find("at_most", &rule) && rule == CEDAR_CLAIM_AT_MOST);
    ck_assert(!cedar_claim_rule_find("about", &rule));
    ck_assert_str_eq(cedar_claim_verdict_name(CEDAR_CLAIM_NOT_TESTED), "not tested");
}
END_TEST

/* --- shapes, assumptions ------------------------------------------------------------------------------------------ */

/* Against the counts of spec/model.md 1.3, which come from elsewhere. */
START_TEST(shape_of_flash) {
    cedar_shape s;
    ck_assert_msg(cedar_shape_figures("flash", ".", &s, &err) == CEDAR_OK, "%s", err.msg);
    ck_assert_str_eq(s.name, "flash");
    ck_assert_double_eq(s.layers, 40);
    ck_assert_double_eq(s.cut, 20);
    ck_assert_double_eq(s.window, 128);
    ck_assert_double_eq(s.kv_token_bytes, 890);
    ck_assert_double_eq(s.parameters_engram, 196613849600.0);
    ck_assert_double_eq(s.active_prefill, 20 * 377290752.0);
    ck_assert_double_eq(s.active_decode, 40 * 377290752.0 + 129280.0 * 5120);
    ck_assert_double_eq_tol(s.parameters_backbone, 551.88e9, 0.01e9);
    ck_assert_double_eq_tol(s.parameters_draft, 14.2e9, 0.1e9);
    ck_assert_double_eq(s.parameters, s.parameters_backbone + s.parameters_engram + s.parameters_draft);
    ck_assert_int_eq(cedar_shape_figures("flush", ".", &s, &err), CEDAR_E_IO);
}
END_TEST

START_TEST(assumptions) {
    cedar_hardware hw = { .name = "h", .launch_ns = 1000, .overlap = 1, .gpus = 4 };
    ck_assert_int_eq(cedar_hardware_assume(&hw, "", &err), CEDAR_OK);
    ck_assert_double_eq(hw.launch_ns, 1000);
    ck_assert_int_eq(cedar_hardware_assume(&hw, "launch_ns=500,overlap=0.25", &err), CEDAR_OK);
    ck_assert_double_eq(hw.launch_ns, 500);
    ck_assert_double_eq(hw.overlap, 0.25);
    ck_assert_double_eq(hw.gpus, 4);
    static const struct { const char *text, *message; } bad[] = {
        { "launch=5", "assume: unknown figure \"launch\"" },
        { "lunch_ns=5", "assume: unknown figure \"lunch_ns\"; did you mean \"launch_ns\"?" },
        { "launch_ns", "assume: \"launch_ns\" is not key=value, such as launch_ns=500" },
        { "launch_ns=", "assume: launch_ns = \"\" is not a number" },
        { "launch_ns=5x", "assume: launch_ns = \"5x\" is not a number" },
        { "overlap=2", "assume: overlap = 2: allowed are 0.01 to 1 (" },
        { "overlap=0.001", "assume: overlap = 0.001: allowed are 0.01 to 1 (" },
        { "overlap=nan", "assume: overlap = \"nan\" is not a number" },
        { "overlap=0x1", "assume: overlap = \"0x1\" is not a number" },
        { "overlap= 1", "assume: overlap = \" 1\" is not a number" },
        { "overlap=1,launch_ns=5,overlap=1", "assume: overlap is set twice" },
        { "overlap=1,", "assume: \"\" is not key=value" },
        { ",overlap=1", "assume: \"\" is not key=value" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_int_eq(cedar_hardware_assume(&hw, bad[i].text, &err), CEDAR_E_ARG);
        ck_assert_msg(strncmp(err.msg, bad[i].message, strlen(bad[i].message)) == 0, "%s", err.msg);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("claims");
    TCase *c = tcase_create("claims");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, reads_rows);
    tcase_add_loop_test(c, broken_files, 0, (int)(sizeof broken / sizeof *broken));
    tcase_add_test(c, unreadable_files);
    tcase_add_test(c, own_file);
    tcase_add_loop_test(c, verdicts, 0, (int)(sizeof judged / sizeof *judged));
    tcase_add_test(c, reasons);
    tcase_add_test(c, shape_of_flash);
    tcase_add_test(c, assumptions);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
