/* Tests of base/: error details, the memory hook, hashes, random numbers, files, JSON. Expected numbers are published
 * test vectors: SHA-256 of FIPS 180-2, SplitMix64 with seed 0. */
#include <check.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/utf8.h"
#include "base/version.h"

static cedar_err err;

/* --- status ------------------------------------------------------------------------------------------------------- */

START_TEST(fail_fills_code_and_message) {
    ck_assert_int_eq(cedar_fail(&err, CEDAR_E_IO, "%s:%d: no", "a.json", 7), CEDAR_E_IO);
    ck_assert_int_eq(err.code, CEDAR_E_IO);
    ck_assert_str_eq(err.msg, "a.json:7: no");
    ck_assert_int_eq(cedar_fail_in(&err, CEDAR_E_FORMAT, "run %d", 3), CEDAR_E_FORMAT);
    ck_assert_int_eq(err.code, CEDAR_E_FORMAT);
    ck_assert_str_eq(err.msg, "run 3: a.json:7: no");
    ck_assert_int_eq(cedar_fail(NULL, CEDAR_E_OOM, "x"), CEDAR_E_OOM);
    ck_assert_int_eq(cedar_fail_in(NULL, CEDAR_E_OOM, "x"), CEDAR_E_OOM);
    ck_assert_int_eq(cedar_fail_too(&err, CEDAR_E_IO, "%d left", 2), CEDAR_E_IO);
    ck_assert_int_eq(err.code, CEDAR_E_FORMAT);
    ck_assert_str_eq(err.msg, "run 3: a.json:7: no; 2 left");
    err = (cedar_err){ 0 };
    ck_assert_int_eq(cedar_fail_too(&err, CEDAR_E_IO, "alone"), CEDAR_E_IO);
    ck_assert_int_eq(err.code, CEDAR_E_IO);
    ck_assert_str_eq(err.msg, "alone");
    ck_assert_int_eq(cedar_fail_too(NULL, CEDAR_E_OOM, "x"), CEDAR_E_OOM);
}
END_TEST

/* A message that does not fit ends in "..." and its last byte is 0; one that just fits stays whole. */
START_TEST(long_messages_are_cut) {
    char text[600];
    const int room = (int)sizeof err.msg;
    memset(text, 'a', sizeof text);
    cedar_fail(&err, CEDAR_E_ARG, "%.*s", room - 1, text);
    ck_assert_uint_eq(strlen(err.msg), (size_t)room - 1);
    ck_assert_int_eq(err.msg[room - 2], 'a');
    cedar_fail(&err, CEDAR_E_ARG, "%.*s", room, text);
    ck_assert_uint_eq(strlen(err.msg), (size_t)room - 1);
    ck_assert_str_eq(err.msg + room - 4, "...");
    for (int outer = room - 8; outer <= room + 1; outer++) {
        cedar_fail(&err, CEDAR_E_ARG, "inner");
        cedar_fail_in(&err, CEDAR_E_ARG, "%.*s", outer, text);
        ck_assert_uint_eq(strlen(err.msg), (size_t)room - 1);
        const char *end = outer == room - 8 ? ": inner" : "...";
        ck_assert_str_eq(err.msg + room - 1 - strlen(end), end);
    }
    for (int first = room - 8; first <= room + 1; first++) {
        cedar_fail(&err, CEDAR_E_ARG, "%.*s", first, text);
        cedar_fail_too(&err, CEDAR_E_ARG, "later");
        ck_assert_uint_eq(strlen(err.msg), (size_t)room - 1);
        const char *end = first == room - 8 ? "; later" : "...";
        ck_assert_str_eq(err.msg + room - 1 - strlen(end), end);
    }
}
END_TEST

START_TEST(every_code_has_a_name) {
    ck_assert_str_eq(cedar_status_name(CEDAR_OK), "ok");
    ck_assert_str_eq(cedar_status_name(CEDAR_E_FORMAT), "format");
    ck_assert_str_eq(cedar_status_name(CEDAR_E_INTERRUPT), "interrupted");
    ck_assert_str_eq(cedar_status_name((cedar_status)(CEDAR_E_INTERRUPT - 1)), "unknown");
    ck_assert_str_eq(cedar_status_name((cedar_status)1), "unknown");
    ck_assert_str_eq(cedar_status_name((cedar_status)INT_MIN), "unknown");
}
END_TEST

START_TEST(assertions_abort) { CEDAR_ASSERT(err.code == CEDAR_E_DB); }
END_TEST

/* --- memory ------------------------------------------------------------------------------------------------------- */

START_TEST(memory_is_counted_zeroed_and_aligned) {
    int64_t before = cedar_mem_live();
    char *a = cedar_calloc(3, 100), *empty = cedar_calloc(0, 8);
    ck_assert(a && empty);
    ck_assert_uint_eq((uintptr_t)a % 64, 0);
    for (int i = 0; i < 300; i++) ck_assert_int_eq(a[i], 0);
    ck_assert_int_eq(cedar_mem_live(), before + 2);
    a[0] = 'x';
    a = cedar_realloc(a, 1000, 10);
    ck_assert(a && a[0] == 'x');
    ck_assert_int_eq(cedar_mem_live(), before + 2);
    char *copy = cedar_strdup("copy");
    ck_assert_str_eq(copy, "copy");
    ck_assert_ptr_null(cedar_strdup(NULL));
    cedar_free(a);
    cedar_free(empty);
    cedar_free(copy);
    cedar_free(NULL);
    ck_assert_int_eq(cedar_mem_live(), before);
}
END_TEST

START_TEST(memory_refuses_overflow) {
    ck_assert_ptr_null(cedar_calloc(SIZE_MAX / 2, 3));
    ck_assert_ptr_null(cedar_calloc(SIZE_MAX, 1));
    ck_assert_ptr_null(cedar_realloc(NULL, SIZE_MAX / 2, 3));
}
END_TEST

START_TEST(the_nth_allocation_fails_once) {
    cedar_mem_fail_at(2);
    void *a = cedar_calloc(1, 1);
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_null(cedar_realloc(a, 2, 1));
    void *b = cedar_calloc(1, 1);
    ck_assert_ptr_nonnull(b);
    cedar_mem_fail_at(1);
    cedar_mem_fail_at(0);
    void *c = cedar_calloc(1, 1);
    ck_assert_ptr_nonnull(c);
    cedar_free(a);
    cedar_free(b);
    cedar_free(c);
}
END_TEST

START_TEST(a_step_may_not_allocate) {
    cedar_step_begin("a test");
    cedar_free(cedar_calloc(1, 1));
}
END_TEST

START_TEST(a_step_may_not_free) {
    void *p = cedar_calloc(1, 1);
    cedar_step_begin("a test");
    cedar_free(p);
}
END_TEST

START_TEST(behind_a_step_memory_is_there_again) {
    cedar_step_begin("a test");
    cedar_free(NULL);
    cedar_step_end();
    cedar_free(cedar_calloc(1, 1));
}
END_TEST

/* --- text --------------------------------------------------------------------------------------------------------- */

/* The Unicode Standard, table 3-7: first and last of every form, and what lies just outside. */
static const struct { const char *text; size_t bytes; uint32_t code; } characters[] = {
    { "", 1, 0 }, { "\x01", 1, 1 }, { "A", 1, 'A' }, { "\x7F", 1, 0x7F },
    { "\xC2\x80", 2, 0x80 }, { "\xDF\xBF", 2, 0x7FF }, { "\xE0\xA0\x80", 3, 0x800 }, { "\xED\x9F\xBF", 3, 0xD7FF },
    { "\xEE\x80\x80", 3, 0xE000 }, { "\xEF\xBF\xBF", 3, 0xFFFF }, { "\xF0\x90\x80\x80", 4, 0x10000 },
    { "\xF4\x8F\xBF\xBF", 4, 0x10FFFF }, { "\xC3\xA9t\xC3\xA9", 2, 0xE9 },
    { "\x80", 0, 7 }, { "\xBF", 0, 7 }, { "\xC0\x80", 0, 7 }, { "\xC1\xBF", 0, 7 }, { "\xE0\x9F\xBF", 0, 7 },
    { "\xED\xA0\x80", 0, 7 }, { "\xED\xBF\xBF", 0, 7 }, { "\xF0\x8F\xBF\xBF", 0, 7 }, { "\xF4\x90\x80\x80", 0, 7 },
    { "\xF5\x80\x80\x80", 0, 7 }, { "\xF8\x88\x80\x80\x80", 0, 7 }, { "\xFF", 0, 7 },
    { "\xC3", 0, 7 }, { "\xC3(", 0, 7 }, { "\xE2\x82", 0, 7 }, { "\xF0\x9F\x98", 0, 7 }
};

START_TEST(characters_of_utf8) {
    uint32_t code = 7;
    ck_assert_uint_eq(cedar_utf8_bytes(characters[_i].text, &code), characters[_i].bytes);
    ck_assert_uint_eq(code, characters[_i].code);
    ck_assert_uint_eq(cedar_utf8_bytes(characters[_i].text, NULL), characters[_i].bytes);
}
END_TEST

/* --- hashes and random numbers ------------------------------------------------------------------------------------ */

static const struct { const char *text, *hex; } sha[] = {
    { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
    { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
    { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
};

START_TEST(sha256_vectors) {
    char hex[CEDAR_SHA256_HEX];
    cedar_sha256 s;
    size_t n = strlen(sha[_i].text), half = n / 2;
    cedar_sha256_init(&s);
    cedar_sha256_add(&s, sha[_i].text, half);
    cedar_sha256_add(&s, sha[_i].text + half, n - half);
    cedar_sha256_hex(&s, hex);
    ck_assert_str_eq(hex, sha[_i].hex);
}
END_TEST

START_TEST(mix64_is_that_of_splitmix64) {
    static const uint64_t want[] = { 0xe220a8397b1dcdafull, 0x6e789e6aa1b965f4ull, 0x06c45d188009454full };
    for (uint64_t i = 0; i < 3; i++) ck_assert_uint_eq(cedar_rng_at(0, i), want[i]);
}
END_TEST

START_TEST(fold_sees_order_and_length) {
    uint64_t a = cedar_fold64(cedar_fold64(0, 1), 2), b = cedar_fold64(cedar_fold64(0, 2), 1);
    ck_assert_uint_ne(a, b);
    ck_assert_uint_ne(cedar_fold64(0, 0), 0);
    ck_assert_uint_ne(cedar_fold64(cedar_fold64(0, 0), 0), cedar_fold64(0, 0));
}
END_TEST

START_TEST(streams_and_seeds_differ) {
    ck_assert_uint_ne(cedar_rng_key(1, "a"), cedar_rng_key(1, "b"));
    ck_assert_uint_ne(cedar_rng_key(1, "a"), cedar_rng_key(2, "a"));
    ck_assert_uint_ne(cedar_rng_key(1, "ab"), cedar_rng_key(1, "ba"));
    ck_assert_uint_eq(cedar_rng_key(1, "a"), cedar_rng_key(1, "a"));
}
END_TEST

/* 60000 draws of 6 values: each count within five standard deviations (91.3) of 10000. */
START_TEST(below_is_uniform_and_in_range) {
    int count[6] = { 0 };
    uint64_t key = cedar_rng_key(7, "dice");
    for (uint64_t i = 0; i < 60000; i++) {
        uint64_t v = cedar_rng_below(key, i, 6);
        ck_assert_uint_lt(v, 6);
        count[v]++;
    }
    for (int v = 0; v < 6; v++) ck_assert(abs(count[v] - 10000) < 457);
    ck_assert_uint_eq(cedar_rng_below(key, 0, 1), 0);
}
END_TEST

/* --- files and JSON ----------------------------------------------------------------------------------------------- */

static char path[64];

static void write_file(const char *text, size_t bytes) {
    snprintf(path, sizeof path, "/tmp/cedar-base-%d", (int)getpid());
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(text, 1, bytes, f), bytes);
    ck_assert_int_eq(fclose(f), 0);
}

/* Sizes around the buffer's first room and its growth. */
START_TEST(files_of_many_sizes) {
    static const size_t sizes[] = { 0, 1, 61439, 61440, 61441, 65535, 65536, 65537, 131072, 1000000 };
    size_t n = sizes[_i], got = 99;
    char *text = cedar_calloc(n + 1, 1), *back = NULL;
    for (size_t i = 0; i < n; i++) text[i] = (char)(cedar_rng_at(1, i) & 255);
    write_file(text, n);
    ck_assert_msg(cedar_file_read(path, n, &back, &got, &err) == CEDAR_OK, "%s", err.msg);
    ck_assert_uint_eq(got, n);
    ck_assert_int_eq(memcmp(text, back, n), 0);
    ck_assert_int_eq(back[n], 0);
    cedar_free(back);
    if (n) {
        ck_assert_int_eq(cedar_file_read(path, n - 1, &back, &got, &err), CEDAR_E_FORMAT);
        ck_assert_ptr_nonnull(strstr(err.msg, "larger than"));
    }
    cedar_free(text);
    unlink(path);
    ck_assert_int_eq(cedar_mem_live(), 0);
}
END_TEST

START_TEST(files_that_cannot_be_read) {
    char *text = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(cedar_file_read("tests/none", 10, &text, &bytes, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "tests/none: "));
    ck_assert_int_eq(cedar_file_read("tests", 10, &text, &bytes, &err), CEDAR_E_IO);
    write_file("abc", 3);
    cedar_mem_fail_at(1);
    ck_assert_int_eq(cedar_file_read(path, 10, &text, &bytes, &err), CEDAR_E_OOM);
    ck_assert_ptr_null(text);
    unlink(path);
    ck_assert_int_eq(cedar_mem_live(), 0);
}
END_TEST

static const struct { const char *text, *message; } broken[] = {
    { "{\"a\": 1,\n \"a\": 2}", "doc:" },           /* a key twice */
    { "{} x", "doc:5: " },                           /* text behind the value */
    { "", "doc:5: " },
    { "{\n\n\"a\": }", "doc:7: " },
};

START_TEST(broken_json_names_its_line) {
    cedar_json *doc = NULL;
    ck_assert_int_eq(cedar_json_parse(broken[_i].text, strlen(broken[_i].text), "doc", 5, &doc, &err), CEDAR_E_FORMAT);
    ck_assert_msg(strncmp(err.msg, broken[_i].message, strlen(broken[_i].message)) == 0, "%s", err.msg);
}
END_TEST

/* In a process of its own, as every test: the limits are lowered for good. */
START_TEST(open_files_have_a_limit) {
    struct rlimit l;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &l), 0);
    l.rlim_cur = 100;
    l.rlim_max = 300;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &l), 0);
    ck_assert_int_eq(cedar_files_allow(20, "x", &err), CEDAR_OK);
    ck_assert(!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur == 100);
    ck_assert_int_eq(cedar_files_allow(200, "x", &err), CEDAR_OK);
    ck_assert(!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur == 264);
    ck_assert_int_eq(cedar_files_allow(237, "--this", &err), CEDAR_E_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.msg, "237 connections need 301 open files, and the system allows 300"));
    ck_assert_ptr_nonnull(strstr(err.msg, "lower --this"));
    ck_assert_int_eq(cedar_files_allow(0, "x", &err), CEDAR_OK);
    ck_assert(!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur == 300);
}
END_TEST

/* Every byte comes back from the parser as it was. */
START_TEST(json_characters) {
    char code[CEDAR_JSON_CHAR_BYTES], text[64];
    for (int c = 1; c < 128; c++) {
        snprintf(text, sizeof text, "{\"k\": \"%s\"}", cedar_json_char((char)c, code));
        cedar_json *doc;
        const char *back;
        ck_assert(cedar_json_parse(text, strlen(text), "text", 1, &doc, &err) == CEDAR_OK);
        ck_assert(cedar_json_string(doc, "text", "k", &back, &err) == CEDAR_OK);
        ck_assert_int_eq(back[0], c);
        ck_assert_int_eq(back[1], 0);
        cedar_json_free(doc);
    }
    ck_assert_str_eq(cedar_json_char('\xc3', code), "\xc3");
}
END_TEST

START_TEST(json_fields) {
    static const char text[] = "{\"i\": 5, \"r\": 0.5, \"s\": \"x\", \"b\": true, \"o\": {\"k\": 1}, \"a\": [1, 2, 9],"
                               " \"n\": null, \"big\": 9223372036854775807}";
    cedar_json *doc;
    int64_t i, list[3];
    double r;
    const char *s;
    bool b;
    size_t n;
    const cedar_json *o;
    ck_assert_msg(cedar_json_parse(text, sizeof text - 1, "doc", 1, &doc, &err) == CEDAR_OK, "%s", err.msg);
    ck_assert(cedar_json_int(doc, "doc", "i", 5, 5, &i, &err) == CEDAR_OK && i == 5);
    ck_assert(cedar_json_int(doc, "doc", "big", 0, INT64_MAX, &i, &err) == CEDAR_OK && i == INT64_MAX);
    ck_assert(cedar_json_real(doc, "doc", "r", 0.5, 0.5, &r, &err) == CEDAR_OK && r == 0.5);
    ck_assert(cedar_json_real(doc, "doc", "i", 0, 9, &r, &err) == CEDAR_OK && r == 5);
    ck_assert(cedar_json_string(doc, "doc", "s", &s, &err) == CEDAR_OK && strcmp(s, "x") == 0);
    ck_assert(cedar_json_bool(doc, "doc", "b", &b, &err) == CEDAR_OK && b);
    ck_assert(cedar_json_object(doc, "doc", "o", &o, &err) == CEDAR_OK && cedar_json_has(o, "k"));
    ck_assert(cedar_json_ints(doc, "doc", "a", 1, 9, 3, list, &n, &err) == CEDAR_OK && n == 3 && list[2] == 9);
    ck_assert(!cedar_json_has(doc, "n") && !cedar_json_has(doc, "no"));

    ck_assert_int_eq(cedar_json_int(doc, "doc", "no", 0, 9, &i, &err), CEDAR_E_FORMAT);
    ck_assert_str_eq(err.msg, "doc: \"no\" is missing");
    ck_assert_int_eq(cedar_json_int(doc, "doc", "i", 6, 9, &i, &err), CEDAR_E_FORMAT);
    ck_assert_str_eq(err.msg, "doc: \"i\" is 5, allowed are 6 to 9");
    ck_assert_int_eq(cedar_json_int(doc, "doc", "r", 0, 9, &i, &err), CEDAR_E_FORMAT);
    ck_assert_int_eq(cedar_json_real(doc, "doc", "r", 0.6, 1, &r, &err), CEDAR_E_FORMAT);
    ck_assert_int_eq(cedar_json_string(doc, "doc", "i", &s, &err), CEDAR_E_FORMAT);
    ck_assert_int_eq(cedar_json_bool(doc, "doc", "i", &b, &err), CEDAR_E_FORMAT);
    ck_assert_int_eq(cedar_json_object(doc, "doc", "a", &o, &err), CEDAR_E_FORMAT);
    ck_assert_int_eq(cedar_json_ints(doc, "doc", "a", 1, 9, 2, list, &n, &err), CEDAR_E_FORMAT);
    ck_assert_int_eq(cedar_json_ints(doc, "doc", "a", 1, 8, 3, list, &n, &err), CEDAR_E_FORMAT);
    ck_assert_int_eq(cedar_json_ints(doc, "doc", "s", 1, 8, 3, list, &n, &err), CEDAR_E_FORMAT);
    cedar_json_free(doc);
}
END_TEST

START_TEST(version_says_what_was_built) {
    size_t n = strlen(cedar_build_commit());
    ck_assert(n == 0 || n == 40);
    ck_assert_uint_gt(strlen(cedar_version()), 0);
    ck_assert_uint_gt(strlen(cedar_build_compiler()), 0);
}
END_TEST

static void add_case(Suite *s, TCase *t) {
    tcase_set_timeout(t, 10);
    suite_add_tcase(s, t);
}

static Suite *base_suite(void) {
    Suite *s = suite_create("base");
    TCase *t = tcase_create("status");
    tcase_add_test(t, fail_fills_code_and_message);
    tcase_add_test(t, long_messages_are_cut);
    tcase_add_test(t, every_code_has_a_name);
    tcase_add_test_raise_signal(t, assertions_abort, SIGABRT);
    add_case(s, t);
    t = tcase_create("memory");
    tcase_add_test(t, memory_is_counted_zeroed_and_aligned);
    tcase_add_test(t, memory_refuses_overflow);
    tcase_add_test(t, the_nth_allocation_fails_once);
    tcase_add_test_raise_signal(t, a_step_may_not_allocate, SIGABRT);
    tcase_add_test_raise_signal(t, a_step_may_not_free, SIGABRT);
    tcase_add_test(t, behind_a_step_memory_is_there_again);
    add_case(s, t);
    t = tcase_create("text");
    tcase_add_loop_test(t, characters_of_utf8, 0, sizeof characters / sizeof *characters);
    add_case(s, t);
    t = tcase_create("numbers");
    tcase_add_loop_test(t, sha256_vectors, 0, sizeof sha / sizeof *sha);
    tcase_add_test(t, mix64_is_that_of_splitmix64);
    tcase_add_test(t, fold_sees_order_and_length);
    tcase_add_test(t, streams_and_seeds_differ);
    tcase_add_test(t, below_is_uniform_and_in_range);
    add_case(s, t);
    t = tcase_create("files");
    tcase_add_loop_test(t, files_of_many_sizes, 0, 10);
    tcase_add_test(t, files_that_cannot_be_read);
    tcase_add_loop_test(t, broken_json_names_its_line, 0, sizeof broken / sizeof *broken);
    tcase_add_test(t, open_files_have_a_limit);
    tcase_add_test(t, json_characters);
    tcase_add_test(t, json_fields);
    tcase_add_test(t, version_says_what_was_built);
    add_case(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(base_suite());
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
