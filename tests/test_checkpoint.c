/* Checkpoints: the safetensors format, opening, refusing, synthetic weights, saving. Expected bytes and hashes were
 * computed with an independent implementation in another language; messages are those of the corpus in tests/broken. */
#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/model_int.h"
#include "engine/quant.h"

static const char tiny_shape[] = "scenarios/models/tiny.json";

static cedar_config load(const char *path) {
    cedar_config c;
    cedar_err err = { 0 };
    cedar_status st = cedar_config_load(path, &c, &err);
    ck_assert_msg(st == CEDAR_OK, "%s", err.msg);
    return c;
}

static cedar_model *open_ok(const char *dir) {
    cedar_model *m = NULL;
    cedar_err err = { 0 };
    cedar_status st = cedar_model_open(dir, &m, &err);
    ck_assert_msg(st == CEDAR_OK, "%s", err.msg);
    return m;
}

static cedar_model *synth_ok(const char *shape, uint64_t seed) {
    cedar_config c = load(shape);
    cedar_model *m = NULL;
    cedar_err err = { 0 };
    cedar_status st = cedar_model_synth(&c, seed, 1ull << 30, &m, &err);
    ck_assert_msg(st == CEDAR_OK, "%s", err.msg);
    return m;
}

/* Bytes of a file and a terminating 0; the caller frees. */
static char *slurp(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s: %s", path, strerror(errno));
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = malloc((size_t)n + 1);
    ck_assert_uint_eq(fread(text, 1, (size_t)n, f), (size_t)n);
    text[n] = 0;
    fclose(f);
    if (bytes) *bytes = (size_t)n;
    return text;
}

static void remove_checkpoint(const char *dir) {
    static const char *const name[] = { "config.json", "model.safetensors", "token_map.bin" };
    char path[256];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, name[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* --- safetensors -------------------------------------------------------------------------------------------------- */

START_TEST(a_sound_file_reads_back) {
    cedar_safetensors *s = NULL;
    cedar_err err = { 0 };
    ck_assert_int_eq(cedar_st_open("tests/broken/safetensors/good-metadata.safetensors", &s, &err), CEDAR_OK);
    ck_assert_uint_eq(cedar_st_count(s), 2);
    ck_assert_str_eq(cedar_st_at(s, 0)->name, "a");
    ck_assert_ptr_null(cedar_st_at(s, 2));
    ck_assert_ptr_null(cedar_st_find(s, "c"));
    ck_assert_ptr_null(cedar_st_find(s, "__metadata__"));
    const cedar_st_tensor *b = cedar_st_find(s, "b");
    ck_assert_ptr_nonnull(b);
    ck_assert_str_eq(b->dtype, "BF16");
    ck_assert_int_eq(b->ndim, 2);
    ck_assert_int_eq(b->shape[0], 2);
    ck_assert_int_eq(b->shape[1], 2);
    ck_assert_uint_eq(b->bytes, 8);
    ck_assert_uint_eq(b->data[0], 8);       /* the data is 0, 1, 2, ... */
    cedar_st_close(s);
    cedar_st_close(NULL);
    ck_assert_int_eq(cedar_st_open("tests/broken/safetensors/good-scalar.safetensors", &s, &err), CEDAR_OK);
    ck_assert_int_eq(cedar_st_find(s, "s")->ndim, 0);
    ck_assert_uint_eq(cedar_st_find(s, "z")->bytes, 0);
    cedar_st_close(s);
}
END_TEST

/* One case of a corpus: status, message and live allocations. */
static void check_case(const char *path, cedar_status st, const cedar_err *err, const char *want) {
    if (!strcmp(want, "ok")) {
        ck_assert_msg(st == CEDAR_OK, "%s: %s", path, err->msg);
        return;
    }
    ck_assert_msg(st == CEDAR_E_FORMAT || (st == CEDAR_E_IO && strstr(want, "cannot be opened")) ||
                  (st == CEDAR_E_IO && strstr(want, "No such file")), "%s: status %d", path, (int)st);
    ck_assert_msg(strstr(err->msg, want) != NULL, "%s: got \"%s\", want \"%s\"", path, err->msg, want);
}

static int each_case(const char *folder, const char *suffix, void (*run)(const char *path, const char *want)) {
    char line[512], path[400];
    int seen = 0;
    snprintf(path, sizeof path, "%s/expected.txt", folder);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        char *want = strchr(line, '\t');
        ck_assert_ptr_nonnull(want);
        *want++ = 0;
        want[strcspn(want, "\n")] = 0;
        snprintf(path, sizeof path, "%s/%.100s%s", folder, line, suffix);
        int64_t live = cedar_mem_live();
        run(path, want);
        ck_assert_msg(cedar_mem_live() == live, "%s: %lld allocations leaked", path,
                      (long long)(cedar_mem_live() - live));
        seen++;
    }
    fclose(f);
    return seen;
}

static void run_safetensors(const char *path, const char *want) {
    size_t bytes;
    char *text = slurp(path, &bytes);
    cedar_safetensors *s = NULL;
    cedar_err err = { 0 };
    cedar_status st = cedar_st_open(path, &s, &err);
    check_case(path, st, &err, want);
    cedar_st_close(s);
    s = NULL;
    st = cedar_st_parse((const uint8_t *)text, bytes, path, &s, &err);
    check_case(path, st, &err, want);
    cedar_st_close(s);
    free(text);
}

START_TEST(every_broken_safetensors_file_gets_its_sentence) {
    ck_assert_int_eq(each_case("tests/broken/safetensors", ".safetensors", run_safetensors), 36);
}
END_TEST

START_TEST(a_file_cut_anywhere_is_refused) {
    size_t bytes;
    char *text = slurp("tests/broken/safetensors/good.safetensors", &bytes);
    for (size_t n = 0; n < bytes; n++) {
        uint8_t *cut = malloc(n ? n : 1);   /* exact size: the address sanitizer sees any read behind it */
        memcpy(cut, text, n);
        cedar_safetensors *s = NULL;
        cedar_err err = { 0 };
        ck_assert_int_eq(cedar_st_parse(cut, n, "cut", &s, &err), CEDAR_E_FORMAT);
        ck_assert_ptr_null(s);
        free(cut);
    }
    free(text);
}
END_TEST

START_TEST(folders_and_missing_files_are_io_errors) {
    cedar_safetensors *s = NULL;
    cedar_err err = { 0 };
    ck_assert_int_eq(cedar_st_open("tests/broken", &s, &err), CEDAR_E_IO);
    ck_assert_str_eq(err.msg, "tests/broken: not a regular file");
    ck_assert_int_eq(cedar_st_open("tests/broken/none", &s, &err), CEDAR_E_IO);
    ck_assert_str_eq(err.msg, "tests/broken/none: No such file or directory");
}
END_TEST

/* --- opening ------------------------------------------------------------------------------------------------------ */

START_TEST(golden_checkpoints_open_with_the_right_hash) {
    char hash[65];
    cedar_model *m = open_ok("tests/golden/tiny-s1");
    cedar_model_hash(m, hash);
    ck_assert_str_eq(hash, "973e6bc6e839caa0b56ec39a1fe48f7304f4828eedd67733a5cfb1b382914f13");
    ck_assert_str_eq(m->origin, "checkpoint tests/golden/tiny-s1");
    ck_assert_int_eq(cedar_model_config(m)->cut, 4);
    for (int i = 0; i < 512; i++) ck_assert_int_eq(cedar_model_token_map(m)[i], i < 384 ? i : i - 128);
    cedar_model_close(m);
    m = open_ok("tests/golden/tiny2-s1");
    cedar_model_hash(m, hash);
    ck_assert_str_eq(hash, "76d84661d3db375eb4e0af377c2c88b750efb1d27125093cebf8e001bc345dd1");
    for (int i = 0; i < 320; i++) ck_assert_int_eq(cedar_model_token_map(m)[i], i < 250 ? i : (i * 7 + 3) % 250);
    cedar_model_close(m);
    cedar_model_close(NULL);
}
END_TEST

static void check_weight(const cedar_weight *w, cedar_weight_kind kind, int64_t rows, int64_t cols) {
    ck_assert_int_eq(w->kind, kind);
    ck_assert_int_eq(w->rows, rows);
    ck_assert_int_eq(w->cols, cols);
    ck_assert_ptr_nonnull(w->data);
    ck_assert_int_eq(w->scale != NULL, kind == CEDAR_W_TILES || kind == CEDAR_W_ROWS || kind == CEDAR_W_FP4);
}

START_TEST(weights_land_in_their_roles) {
    cedar_model *m = open_ok("tests/golden/tiny-s1");
    const cedar_block *b = m->blocks;
    check_weight(&m->embed, CEDAR_W_BF16, 512, 128);
    check_weight(&m->norm, CEDAR_W_BF16, 1, 128);
    check_weight(&b[0].wq_b, CEDAR_W_TILES, 256, 64);
    check_weight(&b[0].wo_a, CEDAR_W_TILES, 64, 128);
    check_weight(&b[0].hc_ffn_fn, CEDAR_W_F32, 24, 512);
    check_weight(&b[0].experts[7].w1, CEDAR_W_FP4, 64, 128);
    check_weight(&b[0].experts[7].w2, CEDAR_W_FP4, 128, 64);
    check_weight(&b[0].shared.w2, CEDAR_W_TILES, 128, 64);
    ck_assert_int_eq(b[0].comp_wkv.kind, CEDAR_W_NONE);
    ck_assert_int_eq(b[0].engram_embed.kind, CEDAR_W_NONE);
    check_weight(&b[1].comp_wgate, CEDAR_W_BF16, 64, 128);
    check_weight(&b[1].engram_embed, CEDAR_W_ROWS, 1588, 32);
    check_weight(&b[3].engram_wkv, CEDAR_W_TILES, 640, 192);
    check_weight(&b[4].comp_wkv, CEDAR_W_BF16, 64, 128);
    ck_assert_int_eq(b[4].comp_wgate.kind, CEDAR_W_NONE);       /* ratio 1 */
    check_weight(&b[6].index_wq_b, CEDAR_W_TILES, 128, 64);
    ck_assert_int_eq(b[6].index_wk.kind, CEDAR_W_NONE);         /* reindexes only */
    check_weight(&m->main_proj, CEDAR_W_TILES, 128, 384);
    check_weight(&m->confidence, CEDAR_W_BF16, 1, 160);
    check_weight(&m->markov_head, CEDAR_W_BF16, 512, 32);
    ck_assert_int_eq(b[7].expert_count, 8);
    ck_assert_int_eq(b[8].expert_count, 4);
    ck_assert_uint_eq(m->embed.index, 0);
    ck_assert_uint_eq(m->norm.index, 2);
    ck_assert_uint_eq(b[0].attn_norm.index, 3);

    /* The bytes are those that the file holds under the official name. */
    cedar_safetensors *s = NULL;
    cedar_err err = { 0 };
    ck_assert_int_eq(cedar_st_open("tests/golden/tiny-s1/model.safetensors", &s, &err), CEDAR_OK);
    ck_assert_uint_eq(cedar_st_count(s), 780);
    const struct { const cedar_weight *w; const char *name;
    } v[] = {
        { &m->blocks[5].wkv, "layers.5.attn.wkv" },
        { &m->blocks[2].experts[3].w1, "layers.2.ffn.experts.3.w1" },
        { &m->blocks[2].experts[3].w3, "layers.2.ffn.experts.3.w3" },
        { &m->blocks[9].shared.w1, "mtp.1.ffn.shared_experts.w1" },
    };
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s.weight", v[i].name);
        const cedar_st_tensor *t = cedar_st_find(s, name);
        ck_assert_msg(t && !memcmp(t->data, v[i].w->data, t->bytes), "%s", name);
        snprintf(name, sizeof name, "%s.scale", v[i].name);
        t = cedar_st_find(s, name);
        ck_assert_msg(t && !memcmp(t->data, v[i].w->scale, t->bytes), "%s", name);
    }
    cedar_st_close(s);
    cedar_model_close(m);
}
END_TEST

static void run_checkpoint(const char *path, const char *want) {
    cedar_model *m = NULL;
    cedar_err err = { 0 };
    cedar_status st = cedar_model_open(path, &m, &err);
    check_case(path, st, &err, want);
    ck_assert(st == CEDAR_OK ? m != NULL : m == NULL);
    cedar_model_close(m);
}

START_TEST(every_broken_checkpoint_gets_its_sentence) {
    ck_assert_int_eq(each_case("tests/broken/checkpoint", "", run_checkpoint), 32);
}
END_TEST

START_TEST(shards_and_one_file_are_the_same_model) {
    char one[65], two[65];
    cedar_model *m = open_ok("tests/broken/checkpoint/good");
    cedar_model_hash(m, one);
    for (int i = 0; i < 6; i++) ck_assert_int_eq(m->token_map[i], i % 4);       /* no token_map.bin */
    cedar_model_close(m);
    m = open_ok("tests/broken/checkpoint/good-shards");
    cedar_model_hash(m, two);
    cedar_model_close(m);
    ck_assert_str_eq(one, two);
    m = open_ok("tests/broken/checkpoint/good-map");
    cedar_model_hash(m, two);
    ck_assert_int_eq(m->token_map[4], 3);
    cedar_model_close(m);
    ck_assert_str_ne(one, two);
}
END_TEST

/* --- synthetic weights -------------------------------------------------------------------------------------------- */

START_TEST(levels_are_the_documented_stream) {
    static const struct { const char *name; uint32_t first[6], at_1000[2]; uint64_t scale[6]; } v[] = {
        { "layers.3.attn.wq_a", { 638, 335, 427, 369, 394, 406 }, { 683, 564 }, { 0, 1, 0, 2, 2, 1 } },
        { "layers.0.ffn.experts.1.w2", { 810, 497, 464, 830, 240, 483 }, { 566, 519 }, { 0, 2, 2, 0, 0, 2 } },
    };
    for (size_t t = 0; t < sizeof v / sizeof v[0]; t++) {
        char name[96];
        snprintf(name, sizeof name, "%s.weight", v[t].name);
        uint64_t key = cedar_rng_key(7, name);
        for (uint64_t i = 0; i < 6; i++) ck_assert_uint_eq(cedar_synth_level(key, i), v[t].first[i]);
        for (uint64_t i = 0; i < 2; i++) ck_assert_uint_eq(cedar_synth_level(key, 1000 + i), v[t].at_1000[i]);
        snprintf(name, sizeof name, "%s.scale", v[t].name);
        key = cedar_rng_key(7, name);
        for (uint64_t i = 0; i < 6; i++) ck_assert_uint_eq(cedar_rng_below(key, i, 3), v[t].scale[i]);
    }
}
END_TEST

static uint16_t bf16_at(const cedar_weight *w, int i) { return (uint16_t)(w->data[2 * i] | w->data[2 * i + 1] << 8); }

static float f32_at(const cedar_weight *w, int i) {
    float f;
    memcpy(&f, w->data + 4 * i, 4);
    return f;
}

START_TEST(synthetic_bytes_are_the_documented_recipe) {
    static const uint8_t wq_a[] = { 103, 234, 226, 232, 229, 228, 90, 225 },
                         wq_a_scale[] = { 116, 117, 116, 118, 118, 117, 116, 118 };
    static const uint8_t w2[] = { 132, 73, 140, 170, 0, 145, 32, 25 },
                         w2_scale[] = { 118, 120, 120, 118, 118, 120, 118, 118 };
    static const uint8_t rows[] = { 242, 222, 95, 107, 111, 229, 245, 92 },
                         rows_scale[] = { 120, 120, 119, 119, 119, 119, 121, 119 };
    static const int at[] = { 0, 1, 94, 95, 96, 97, 127, 128 };
    static const uint16_t embed[] = { 0x3f3d, 0xbf80, 0xbfff, 0x3e26, 0x3cec, 0x3d1b, 0xbcfd, 0x3ed7 };
    static const uint16_t head[] = { 0xbd02, 0x3d12, 0x3bb2, 0x3ba1, 0xc00c, 0xbfbf, 0xbfab, 0x3c8a };
    static const uint16_t norm[] = { 0x3f59, 0x3f8a, 0x3f2a, 0x3f87, 0x3f0f, 0x3f84 };
    static const float fn[] = { -0x1.39897ep-7f, 0x1.745346p-6f,  0x1.7bac7ep-5f,
                                -0x1.3d361ap-4f, -0x1.ca0edep-5f, -0x1.39897ep-9f };
    static const float scale[] = { 0x1.cab8cep-1f, 0x1.63701ap+0f, 0x1.819368p+0f };
    cedar_model *m = synth_ok(tiny_shape, 7);
    ck_assert_mem_eq(m->blocks[3].wq_a.data, wq_a, sizeof wq_a);
    ck_assert_mem_eq(m->blocks[3].wq_a.scale, wq_a_scale, sizeof wq_a_scale);
    ck_assert_mem_eq(m->blocks[0].experts[1].w2.data, w2, sizeof w2);
    ck_assert_mem_eq(m->blocks[0].experts[1].w2.scale, w2_scale, sizeof w2_scale);
    ck_assert_mem_eq(m->blocks[1].engram_embed.data, rows, sizeof rows);
    ck_assert_mem_eq(m->blocks[1].engram_embed.scale, rows_scale, sizeof rows_scale);
    for (int i = 0; i < 8; i++) {
        ck_assert_uint_eq(bf16_at(&m->embed, at[i]), embed[i]);
        ck_assert_uint_eq(bf16_at(&m->head, at[i]), head[i]);
    }
    for (int i = 0; i < 6; i++) {
        ck_assert_uint_eq(bf16_at(&m->norm, i), norm[i]);
        ck_assert(f32_at(&m->blocks[2].hc_attn_fn, i) == fn[i]);
    }
    for (int i = 0; i < 3; i++) ck_assert(f32_at(&m->blocks[2].hc_attn_scale, i) == scale[i]);
    ck_assert_str_eq(m->origin, "synthetic seed 7");
    ck_assert_int_eq(m->token_map[400], 400 - 384);
    cedar_model_close(m);
}
END_TEST

START_TEST(seeds_decide_the_weights) {
    char a[65], b[65], c[65];
    cedar_model *m = synth_ok(tiny_shape, 1);
    cedar_model_hash(m, a);
    cedar_model_close(m);
    m = synth_ok(tiny_shape, 1);
    cedar_model_hash(m, b);
    cedar_model_close(m);
    m = synth_ok(tiny_shape, 2);
    cedar_model_hash(m, c);
    cedar_model_close(m);
    ck_assert_str_eq(a, b);
    ck_assert_str_ne(a, c);
}
END_TEST

/* Root mean square of a decoded tensor. */
static double rms(const cedar_weight *w, int64_t col_lo, int64_t col_hi) {
    double sum = 0;
    for (int64_t r = 0; r < w->rows; r++) {
        for (int64_t k = col_lo; k < col_hi; k++) {
            int64_t i = r * w->cols + k;
            double x = 0;
            if (w->kind == CEDAR_W_TILES)
                x = (double)cedar_e4m3_value[w->data[i]] *
                    cedar_ue8m0_value(w->scale[r / 32 * ((w->cols + 31) / 32) + k / 32]);
            else if (w->kind == CEDAR_W_ROWS)
                x = (double)cedar_e4m3_value[w->data[i]] * cedar_ue8m0_value(w->scale[r * (w->cols / 32) + k / 32]);
            else if (w->kind == CEDAR_W_FP4)
                x = (double)cedar_e2m1_value[w->data[i / 2] >> (i % 2 * 4) & 15] *
                    cedar_ue8m0_value(w->scale[r * (w->cols / 32) + k / 32]);
            else if (w->kind == CEDAR_W_BF16)
                x = (double)cedar_bf16_value((uint16_t)(w->data[2 * i] | w->data[2 * i + 1] << 8));
            sum += x * x;
        }
    }
    return sqrt(sum / (double)(w->rows * (col_hi - col_lo)));
}

START_TEST(spreads_are_those_of_the_recipe) {
    cedar_model *m = synth_ok("scenarios/models/tiny2.json", 3);
    const cedar_block *b = m->blocks;
    const struct { const cedar_weight *w; double want;
    } v[] = {
        { &b[0].wq_b, 1.6 / sqrt(96) },
        { &b[0].wo_a, 1.7 / sqrt(192) },
        { &b[0].wo_b, 0.026 / sqrt(96) },
        { &b[7].experts[5].w1, 1 / sqrt(160) },
        { &b[7].experts[5].w2, 0.04 / sqrt(32) },
        { &b[3].comp_wgate, 2 / sqrt(160) },
        { &b[2].engram_embed, 1 },
        { &b[2].engram_wkv, 0.06 / sqrt(192) },
        { &b[9].gate, 1.5 / sqrt(160) },
    };
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        double got = rms(v[i].w, 0, v[i].w->cols);
        ck_assert_msg(fabs(got / v[i].want - 1) < 0.2, "tensor %zu: rms %g, want %g", i, got, v[i].want);
    }
    ck_assert(fabs(rms(&m->embed, 0, 120) - 1) < 0.05);
    ck_assert(fabs(rms(&m->embed, 120, 160) - 0.03) < 0.002);
    ck_assert(fabs(rms(&m->head, 120, 160) / (28 / sqrt(160)) - 1) < 0.05);
    ck_assert(fabs(rms(&m->head, 0, 120) / (0.006 * 28 / sqrt(160)) - 1) < 0.05);
    cedar_model_close(m);
}
END_TEST

START_TEST(too_large_a_shape_is_refused_before_anything_is_taken) {
    cedar_config c = load("scenarios/models/flash-e128.json");
    cedar_model *m = NULL;
    cedar_err err = { 0 };
    int64_t live = cedar_mem_live();
    ck_assert_int_eq(cedar_model_synth(&c, 1, 100000000000, &m, &err), CEDAR_E_BUDGET);
    ck_assert_ptr_null(m);
    ck_assert_int_eq(cedar_mem_live(), live);
    ck_assert_ptr_nonnull(strstr(err.msg, "\"flash-e128\" need 1211"));       /* 121.19 GB and some alignment */
    ck_assert_ptr_nonnull(strstr(err.msg, "only 100000000000 are allowed"));
}
END_TEST

/* --- saving ------------------------------------------------------------------------------------------------------- */

START_TEST(a_saved_model_opens_as_itself) {
    char dir[] = "/tmp/cedar-checkpoint-XXXXXX", made[65], opened[65], path[128];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    char *text = slurp(tiny_shape, NULL);
    cedar_err err = { 0 };
    cedar_model *m = synth_ok(tiny_shape, 11);
    m->token_map[500] = 5;
    cedar_model_hash(m, made);
    snprintf(path, sizeof path, "%s/new", dir);
    ck_assert_msg(cedar_model_save(m, text, path, &err) == CEDAR_OK, "%s", err.msg);
    char file[160];
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    char *bytes = slurp(file, NULL);
    ck_assert_int_eq(bytes[0] % 8, 0);                  /* the data starts at a multiple of 8 */
    free(bytes);
    cedar_model *again = open_ok(path);                 /* checks every value for NaN as well */
    cedar_model_hash(again, opened);
    ck_assert_str_eq(made, opened);
    cedar_model_close(again);
    ck_assert_int_eq(cedar_model_save(m, text, path, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "/new: not empty"));
    cedar_model_close(open_ok(path));                   /* the refusal left it alone */
    remove_checkpoint(path);
    ck_assert_msg(cedar_model_save(m, text, dir, &err) == CEDAR_OK, "%s", err.msg);    /* empty and existing */
    cedar_model_close(m);
    remove_checkpoint(dir);
    free(text);
}
END_TEST

START_TEST(saving_refuses_what_cannot_be_opened_again) {
    cedar_err err = { 0 };
    cedar_model *m = synth_ok(tiny_shape, 1);
    char *other = slurp("scenarios/models/tiny2.json", NULL), *text = slurp(tiny_shape, NULL);
    struct stat info;
    char never[64];
    snprintf(never, sizeof never, "/tmp/cedar-never-%d", (int)getpid());
    ck_assert_int_eq(cedar_model_save(m, other, never, &err), CEDAR_E_ARG);
    ck_assert_ptr_nonnull(strstr(err.msg, "other tensors than the model \"tiny\""));
    ck_assert_int_eq(cedar_model_save(m, "{}", never, &err), CEDAR_E_FORMAT);
    ck_assert_int_eq(stat(never, &info), -1);
    ck_assert_int_eq(cedar_model_save(m, text, "tests/none/none", &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "tests/none/none: cannot be created: No such file or directory"));
    ck_assert_int_eq(cedar_model_save(m, text, tiny_shape, &err), CEDAR_E_IO);
    cedar_model_close(m);
    free(other);
    free(text);
}
END_TEST

/* --- faults ------------------------------------------------------------------------------------------------------- */

typedef cedar_status (*attempt)(cedar_model **out, cedar_err *err);

static cedar_status try_open(cedar_model **out, cedar_err *err) {
    return cedar_model_open("tests/broken/checkpoint/good-shards", out, err);
}

static cedar_status try_synth(cedar_model **out, cedar_err *err) {
    cedar_config c;
    cedar_status st = cedar_config_load(tiny_shape, &c, err);
    return st ? st : cedar_model_synth(&c, 1, 1ull << 30, out, err);
}

static cedar_status try_save(cedar_model **out, cedar_err *err) {
    char dir[64];
    snprintf(dir, sizeof dir, "/tmp/cedar-save-faults-%d", (int)getpid());
    cedar_status st = try_synth(out, err);
    if (st) return st;
    char *text = slurp(tiny_shape, NULL);
    st = cedar_model_save(*out, text, dir, err);
    free(text);
    struct stat info;
    ck_assert_int_eq(stat(dir, &info), st ? -1 : 0);     /* nothing is left after a failure */
    if (!st) remove_checkpoint(dir);
    if (st) {
        cedar_model_close(*out);
        *out = NULL;
    }
    return st;
}

START_TEST(every_failed_allocation_is_survived) {
    static const attempt all[] = { try_open, try_synth, try_save };
    int64_t live = cedar_mem_live();
    int failures = 0;
    cedar_status st = CEDAR_E_OOM;
    for (int64_t n = 1; st; n++) {
        cedar_model *m = NULL;
        cedar_err err = { 0 };
        cedar_mem_fail_at(n);
        st = all[_i](&m, &err);
        cedar_mem_fail_at(0);
        ck_assert_msg(st == CEDAR_OK || st == CEDAR_E_OOM, "allocation %lld: %s", (long long)n, err.msg);
        ck_assert(st ? m == NULL && err.msg[0] : m != NULL);
        failures += st != CEDAR_OK;
        cedar_model_close(m);
        ck_assert_int_eq(cedar_mem_live(), live);
    }
    ck_assert_int_ge(failures, 10);
}
END_TEST

int main(void) {
    Suite *s = suite_create("checkpoint");
    TCase *t = tcase_create("checkpoint");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_sound_file_reads_back);
    tcase_add_test(t, every_broken_safetensors_file_gets_its_sentence);
    tcase_add_test(t, a_file_cut_anywhere_is_refused);
    tcase_add_test(t, folders_and_missing_files_are_io_errors);
    tcase_add_test(t, golden_checkpoints_open_with_the_right_hash);
    tcase_add_test(t, weights_land_in_their_roles);
    tcase_add_test(t, every_broken_checkpoint_gets_its_sentence);
    tcase_add_test(t, shards_and_one_file_are_the_same_model);
    tcase_add_test(t, levels_are_the_documented_stream);
    tcase_add_test(t, synthetic_bytes_are_the_documented_recipe);
    tcase_add_test(t, seeds_decide_the_weights);
    tcase_add_test(t, spreads_are_those_of_the_recipe);
    tcase_add_test(t, too_large_a_shape_is_refused_before_anything_is_taken);
    tcase_add_test(t, a_saved_model_opens_as_itself);
    tcase_add_test(t, saving_refuses_what_cannot_be_opened_again);
    tcase_add_loop_test(t, every_failed_allocation_is_survived, 0, 3);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
