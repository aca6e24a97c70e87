/* Model shapes: the published numbers, the derived ones, every rule of config.json, and the generator behind the Engram
 * multipliers. Expected values come from the published model and from numpy, not from this code. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/model_int.h"

static cedar_config load(const char *path) {
    cedar_config c;
    cedar_err err = { 0 };
    cedar_status st = cedar_config_load(path, &c, &err);
    ck_assert_msg(st == CEDAR_OK, "%s", err.msg);
    return c;
}

/* --- numpy's generator -------------------------------------------------------------------------------------------- */

START_TEST(pcg64_gives_numpys_numbers) {
    static const uint64_t want[] = { 14276969152011380360u, 8095878257575067585u, 15838336090824644132u,
                                     12864169557245331597u };
    cedar_pcg64 g;
    cedar_pcg64_seed(&g, 42);
    for (int i = 0; i < 4; i++) ck_assert_uint_eq(cedar_pcg64_next(&g), want[i]);
    cedar_pcg64_seed(&g, 42);
    ck_assert(cedar_pcg64_double(&g) == 0.7739560485559633);
    cedar_pcg64_seed(&g, 0);
    ck_assert(cedar_pcg64_double(&g) == 0.6369616873214543);
    cedar_pcg64_seed(&g, 9498404945125676575u);
    ck_assert(cedar_pcg64_double(&g) == 0.9021088424105904);
}
END_TEST

/* --- the published model ------------------------------------------------------------------------------------------ */

START_TEST(flash_has_the_published_engram_numbers) {
    static const int64_t mul[2][4] = { { 76632096046245, 4839876093313, 35959672319349, 73987337458391 },
                                       { 67716810739261, 51510806800915, 30921347202721, 82619226485591 } };
    static const int32_t above[2][24] = {
        /* prime - 16000000 */
        { 57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
          277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463 },
        { 477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
          711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889 },
    };
    cedar_config c = load("scenarios/models/flash.json");
    ck_assert_int_eq(c.engram_layer_count, 2);
    ck_assert_int_eq(c.engram_layers[0], 1);
    ck_assert_int_eq(c.engram_layers[1], 14);
    ck_assert_int_eq(c.engram_rows[0], 384006168);
    ck_assert_int_eq(c.engram_rows[1], 384016682);
    ck_assert_int_eq(c.engram_rows_per_token, 24);
    for (int e = 0; e < 2; e++) {
        for (int k = 0; k < 4; k++) ck_assert_int_eq(c.engram_mul[e][k], mul[e][k]);
        for (int i = 0; i < 24; i++) ck_assert_int_eq(c.engram_prime[e][i], 16000000 + above[e][i]);
    }
}
END_TEST

/* Table row of one (n-gram, head), by the published hash; ids are compressed, pad 2 before position 0. */
static int64_t engram_row(const cedar_config *c, int e, const int64_t *ids, int p, int row) {
    int64_t r = 0;
    for (int k = 0; k <= row / c->engram_heads + 1; k++) r ^= (p >= k ? ids[p - k] : 2) * c->engram_mul[e][k];
    return r % c->engram_prime[e][row] + c->engram_offset[e][row];
}

START_TEST(flash_engram_rows_match_the_vectors) {
    static const int64_t ids[] = { 5, 77, 1234, 99091 };
    static const struct { int e, p, row; int64_t want;
    } v[] = {
        { 0, 0, 0, 5412672 },   { 0, 0, 1, 18319159 },   { 0, 0, 2, 35492627 },  { 0, 0, 8, 143494632 },
        { 0, 0, 9, 151789366 }, { 0, 0, 23, 372009279 }, { 0, 3, 0, 7841506 },   { 0, 3, 1, 26173565 },
        { 0, 3, 2, 36537651 },  { 0, 3, 8, 130980189 },  { 0, 3, 9, 144092973 }, { 0, 3, 23, 373203253 },
        { 1, 3, 0, 3315102 },   { 1, 3, 1, 30010869 },   { 1, 3, 2, 33829090 },  { 1, 3, 8, 133678184 },
        { 1, 3, 9, 147885803 }, { 1, 3, 23, 378540063 },
    };
    cedar_config c = load("scenarios/models/flash.json");
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++)
        ck_assert_int_eq(engram_row(&c, v[i].e, ids, v[i].p, v[i].row), v[i].want);
}
END_TEST

START_TEST(flash_schedule_is_the_published_table) {
    cedar_config c = load("scenarios/models/flash.json");
    ck_assert_str_eq(c.name, "flash");
    ck_assert_int_eq(c.layers, 40);
    ck_assert_int_eq(c.stages, 3);
    ck_assert_int_eq(c.cut, 20);
    ck_assert_int_eq(c.ratio_lcm, 2);
    for (int i = 0; i < 43; i++) {
        int ratio = i < 2 || i >= 40 ? 0 : i < 20 ? 2 : 1;
        int source = ratio == 0 ? -1 : i < 8 ? 2 : i < 14 ? 8 : i < 20 ? 14 : 20;
        bool kv = i == 2 || i == 8 || i == 14 || i == 20, index = kv || i == 24 || i == 28 || i == 32 || i == 36;
        ck_assert_int_eq(c.ratio[i], ratio);
        ck_assert_int_eq(c.kv_source_of[i], source);
        ck_assert_int_eq(c.is_kv_source[i], kv);
        ck_assert_int_eq(c.is_index_source[i], index);
        ck_assert_int_eq(c.is_target[i], i >= 37 && i <= 39);
        ck_assert_int_eq(c.engram_at[i], i == 1 ? 0 : i == 14 ? 1 : -1);
    }
}
END_TEST

START_TEST(flash_has_the_published_keys) {
    cedar_config c = load("scenarios/models/flash.json");
    const int32_t got[] = { c.vocab,
                            c.hidden,
                            c.heads,
                            c.head_dim,
                            c.rope_dim,
                            c.q_lora,
                            c.o_groups,
                            c.o_lora,
                            c.window,
                            c.candidate_source,
                            c.candidate_blocks,
                            c.candidate_block,
                            c.index_heads,
                            c.index_dim,
                            c.index_topk,
                            c.yarn_original,
                            c.positions_max,
                            c.experts,
                            c.experts_per_token,
                            c.moe_dim,
                            c.hc,
                            c.hc_iters,
                            c.ngram,
                            c.engram_heads,
                            c.engram_dim,
                            c.engram_pad,
                            c.engram_vocab_compressed,
                            c.draft_block,
                            c.draft_noise,
                            c.markov_rank,
                            c.draft_experts,
                            c.draft_experts_per_token,
                            c.target_count };
    const int32_t want[] = { 129280, 5120, 64,  512, 64,    1280,    8,      1024, 128,  20, 2048,
                             8,      32,   128, 512, 65536, 1048576, 384,    6,    2304, 4,  20,
                             4,      8,    256, 2,   99092, 5,       128799, 256,  128,  3,  3 };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        ck_assert_msg(got[i] == want[i], "key %zu: %d", i, got[i]);
    ck_assert_int_eq(c.engram_vocab, 16000000);
    ck_assert(c.rope_theta == 1e4 && c.compress_theta == 1.6e5 && c.yarn_factor == 16);
    ck_assert(c.yarn_beta_fast == 32 && c.yarn_beta_slow == 1 && c.route_scale == 1.5 && c.swiglu_limit == 10);
    ck_assert(c.hc_eps == 1e-6 && c.norm_eps == 1e-20);
}
END_TEST

/* --- reduced shapes ----------------------------------------------------------------------------------------------- */

START_TEST(tiny_has_its_primes_and_multipliers) {
    static const int64_t prime[2][6] = { { 251, 257, 263, 269, 271, 277 }, { 281, 283, 293, 307, 311, 313 } };
    static const int64_t mul[2][4] = { { 19775072034933939, 1248940108954747, 9279468357992093, 19092586571424545 },
                                       { 7103393517263957, 21072337324090931, 2807072806331147, 18140272803099203 } };
    cedar_config c = load("scenarios/models/tiny.json");
    ck_assert_int_eq(c.cut, 4);
    for (int e = 0; e < 2; e++) {
        int64_t sum = 0;
        for (int i = 0; i < 6; i++) {
            ck_assert_int_eq(c.engram_prime[e][i], prime[e][i]);
            ck_assert_int_eq(c.engram_offset[e][i], sum);
            sum += prime[e][i];
        }
        for (int k = 0; k < 4; k++) ck_assert_int_eq(c.engram_mul[e][k], mul[e][k]);
        ck_assert_int_eq(c.engram_rows[e], sum);
    }
}
END_TEST

/* The golden configurations carry numpy's multipliers; deriving them must give the same. */
START_TEST(derived_multipliers_equal_the_stored_ones) {
    static const char *const dir[] = { "tests/golden/tiny-s1", "tests/golden/tiny2-s1" };
    for (int d = 0; d < 2; d++) {
        cedar_config stored = load(dir[d]), derived;
        char path[64], text[8192];
        snprintf(path, sizeof path, "%s/config.json", dir[d]);
        FILE *f = fopen(path, "rb");
        ck_assert_ptr_nonnull(f);
        size_t n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
        text[n] = 0;
        char *key = strstr(text, "engram_multipliers");
        ck_assert_ptr_nonnull(key);
        key[0] = 'E';                   /* hides the key */
        cedar_err err = { 0 };
        cedar_status st = cedar_config_parse(text, n, path, &derived, &err);
        ck_assert_msg(st == CEDAR_OK, "%s", err.msg);
        for (int e = 0; e < 2; e++)
            for (int k = 0; k < stored.ngram; k++) ck_assert_int_eq(derived.engram_mul[e][k], stored.engram_mul[e][k]);
    }
}
END_TEST

START_TEST(every_shape_loads) {
    static const struct { const char *name; int experts; int64_t rows[2]; } v[] = {
        { "tiny", 8, { 1588, 1788 } },   { "tiny2", 12, { 0, 0 } },       { "mid", 32, { 24003916, 24010950 } },
        { "mid-small", 32, { 0, 0 } },   { "flash-e32", 32, { 24003916, 24010950 } }, { "flash-e48", 48, { 0, 0 } },
        { "flash-e64", 64, { 0, 0 } },   { "flash-e96", 96, { 0, 0 } },   { "flash-e128", 128, { 0, 0 } },
        { "small", 24, { 160316, 160922 } },
    };
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        char path[64];
        snprintf(path, sizeof path, "scenarios/models/%s.json", v[i].name);
        cedar_config c = load(path);
        ck_assert_str_eq(c.name, v[i].name);
        ck_assert_int_eq(c.experts, v[i].experts);
        for (int e = 0; e < 2; e++)
            if (v[i].rows[e]) ck_assert_int_eq(c.engram_rows[e], v[i].rows[e]);
    }
}
END_TEST

START_TEST(a_shape_is_named_after_its_file) {
    static const struct { const char *path, *name; } v[] = {
        { "config.json", "" }, { "a/config.json", "a" }, { "/x/flash//config.json", "flash" }, { "m/mid.json", "mid" },
        { "mid.json", "mid" }, { ".json", ".json" }, { "mid", "mid" },
    };
    char text[8192];
    FILE *f = fopen("tests/broken/config/good.json", "rb");
    ck_assert_ptr_nonnull(f);
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        cedar_config c;
        cedar_err err = { 0 };
        ck_assert_int_eq(cedar_config_parse(text, n, v[i].path, &c, &err), CEDAR_OK);
        ck_assert_str_eq(c.name, v[i].name);
    }
}
END_TEST

/* --- refusals ----------------------------------------------------------------------------------------------------- */

START_TEST(missing_files_are_io_errors) {
    cedar_config c;
    cedar_err err = { 0 };
    ck_assert_int_eq(cedar_config_load("tests/broken/config/no-such.json", &c, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "tests/broken/config/no-such.json: No such file"));
    ck_assert_int_eq(cedar_config_load("tests/broken", &c, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "tests/broken/config.json: No such file"));
}
END_TEST

START_TEST(every_broken_config_gets_its_sentence) {
    FILE *f = fopen("tests/broken/config/expected.txt", "r");
    char line[512];
    int seen = 0;
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        char path[300], *want = strchr(line, '\t');
        ck_assert_ptr_nonnull(want);
        *want++ = 0;
        want[strcspn(want, "\n")] = 0;
        snprintf(path, sizeof path, "tests/broken/config/%.200s.json", line);
        cedar_config c;
        memset(&c, 0x5a, sizeof c);
        cedar_config before = c;
        cedar_err err = { 0 };
        cedar_status st = cedar_config_load(path, &c, &err);
        if (!strcmp(want, "ok")) {
            ck_assert_msg(st == CEDAR_OK, "%s: %s", path, err.msg);
        } else {
            ck_assert_msg(st == CEDAR_E_FORMAT && strstr(err.msg, want), "%s: got \"%s\", want \"%s\"", path, err.msg,
                          want);
            ck_assert_msg(!strncmp(err.msg, path, strlen(path)), "%s: the file is not named first: %s", path, err.msg);
            ck_assert_msg(!memcmp(&c, &before, sizeof c), "%s: the output was touched", path);
        }
        seen++;
    }
    fclose(f);
    ck_assert_int_eq(seen, 82);
}
END_TEST

START_TEST(loading_survives_every_failed_allocation) {
    int64_t live = cedar_mem_live();
    cedar_status st = CEDAR_E_OOM;
    int failures = 0;
    for (int64_t n = 1; st; n++) {
        cedar_config c;
        cedar_err err = { 0 };
        cedar_mem_fail_at(n);
        st = cedar_config_load("scenarios/models/flash.json", &c, &err);
        cedar_mem_fail_at(0);
        ck_assert_int_eq(cedar_mem_live(), live);
        if (st) {
            ck_assert_int_eq(st, CEDAR_E_OOM);
            failures++;
        }
    }
    ck_assert_int_ge(failures, 1);
}
END_TEST

int main(void) {
    Suite *s = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_set_timeout(t, 20);
    tcase_add_test(t, pcg64_gives_numpys_numbers);
    tcase_add_test(t, flash_has_the_published_engram_numbers);
    tcase_add_test(t, flash_engram_rows_match_the_vectors);
    tcase_add_test(t, flash_schedule_is_the_published_table);
    tcase_add_test(t, flash_has_the_published_keys);
    tcase_add_test(t, tiny_has_its_primes_and_multipliers);
    tcase_add_test(t, derived_multipliers_equal_the_stored_ones);
    tcase_add_test(t, every_shape_loads);
    tcase_add_test(t, a_shape_is_named_after_its_file);
    tcase_add_test(t, missing_files_are_io_errors);
    tcase_add_test(t, every_broken_config_gets_its_sentence);
    tcase_add_test(t, loading_survives_every_failed_allocation);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
