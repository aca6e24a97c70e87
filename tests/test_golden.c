/* The engine against golden vectors of the independent oracle, in every arithmetic; and that the comparison fails,
 * naming the right quantity, when a byte of the vectors or of a weight is wrong. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "engine/model_int.h"
#include "engine/tape.h"
#include "tests/sanitized.h"

#include <jansson.h>

#define FOLDER "tests/golden"
#define SOURCE FOLDER "/tiny-s1"

static const cedar_arith ariths[] = { CEDAR_WIDE, CEDAR_F32, CEDAR_BF16 };
static const char *const arith_name[] = { "wide", "f32", "bf16" };

/* --- running a directory ------------------------------------------------------------------------------------------ */

typedef struct outcome {
    cedar_status status;
    cedar_err err;
    uint32_t checked, failed;
    char bad[200000];           /* lines of failed quantities */
    cedar_tape_kind change;     /* what change_decision looks for, and how often it found it */
    uint64_t changed;
} outcome;

static void keep_line(void *self, bool ok, const char *text) {
    outcome *o = self;
    size_t used = strlen(o->bad);
    if (!ok) snprintf(o->bad + used, sizeof o->bad - used, "%s\n", text);
}

/* Runs and frees everything; the caller frees the outcome. */
static outcome *run_with(const char *dir, cedar_golden_opts opts, cedar_tape_kind change) {
    outcome *o = calloc(1, sizeof *o);
    o->change = change;
    opts.backend = "cpu";
    opts.line = keep_line;
    opts.self = o;
    int64_t live = cedar_mem_live();
    o->status = cedar_golden_check(dir, &opts, &o->checked, &o->failed, &o->err);
    ck_assert_msg(cedar_mem_live() == live, "%s: memory is lost", dir);
    return o;
}

static outcome *run(const char *dir, cedar_arith arith, uint32_t threads) {
    return run_with(dir, (cedar_golden_opts){ .arith = arith, .threads = threads }, 0);
}

static void passes(const char *dir, int arith, uint32_t threads) {
    outcome *o = run(dir, ariths[arith], threads);
    ck_assert_msg(!o->status, "%s: %s", dir, o->err.msg);
    ck_assert_msg(!o->failed, "%s in %s: %u of %u failed\n%.3000s", dir, arith_name[arith], o->failed, o->checked,
                  o->bad);
    ck_assert_msg(o->checked > 100, "%s in %s: only %u quantities", dir, arith_name[arith], o->checked);
    free(o);
}

/* Directories made with bf16 rounding (-ref) suit that arithmetic alone. */
START_TEST(every_directory_passes) {
    if (sanitized_skips("every_directory_passes", _i)) return;
    DIR *d = opendir(FOLDER);
    ck_assert_ptr_nonnull(d);
    int seen = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        char dir[512];
        snprintf(dir, sizeof dir, FOLDER "/%s", e->d_name);
        size_t n = strlen(dir);
        bool ref = n > 4 && !strcmp(dir + n - 4, "-ref");
        if (!ref || ariths[_i] == CEDAR_BF16) passes(dir, _i, 2);
        seen++;
    }
    closedir(d);
    ck_assert_int_ge(seen, 3);
}
END_TEST

/* --- planted faults ----------------------------------------------------------------------------------------------- */

static const char *const parts[] = { "config.json", "manifest.json", "golden.safetensors", "model.safetensors",
                                     "token_map.bin" };

static char *read_file(const char *dir, const char *name, size_t *bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *text = calloc(1, *bytes + 1);
    ck_assert_uint_eq(fread(text, 1, *bytes, f), *bytes);
    fclose(f);
    return text;
}

/* A directory in which everything but `name` is a link to the sound one. */
static void copy_with(char dir[32], const char *name, const char *text, size_t bytes) {
    strcpy(dir, "/tmp/cedar-golden-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    char from[4096], to[512], here[3072];
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(to, sizeof to, "%s/%s", dir, parts[i]);
        snprintf(from, sizeof from, "%s/" SOURCE "/%s", here, parts[i]);
        if (strcmp(parts[i], name)) {
            ck_assert_int_eq(symlink(from, to), 0);
        } else if (text) {
            FILE *f = fopen(to, "wb");
            ck_assert_ptr_nonnull(f);
            ck_assert_uint_eq(fwrite(text, 1, bytes, f), bytes);
            fclose(f);
        }
    }
}

static void remove_copy(const char *dir) {
    char path[512];
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, parts[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* --- a directory with few cases, for faults that need no more ----------------------------------------------------- */

static void write_file(const char *dir, const char *name, const void *bytes, size_t count) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, count, f), count);
    fclose(f);
}

static const char *const kept_cases[] = { "A.n33", "A.wo_a_fp8.n33", "C.n16.inside20clip", "D.h17.s16", "F.p5" };

/* Part of a kept case, of the exact run, or a trace. */
static bool is_kept(const char *tensor) {
    bool kept = !strcmp(tensor, "tokens") || !strncmp(tensor, "exact.", 6) || !strncmp(tensor, "trace.", 6);
    for (size_t i = 0; i < sizeof kept_cases / sizeof *kept_cases; i++) {
        size_t n = strlen(kept_cases[i]);
        kept |= !strncmp(tensor, kept_cases[i], n) && tensor[n] == '.';
    }
    return kept;
}

/* Writes golden.safetensors with the kept tensors of a whole one. */
static void write_kept_tensors(const char *dir) {
    cedar_safetensors *st = NULL;
    cedar_err err = { 0 };
    ck_assert_msg(!cedar_st_open(SOURCE "/golden.safetensors", &st, &err), "%s", err.msg);
    json_t *header = json_object();
    size_t bytes = 0, at = 8;
    for (uint64_t i = 0; i < cedar_st_count(st); i++) {
        const cedar_st_tensor *t = cedar_st_at(st, i);
        if (!is_kept(t->name)) continue;
        json_t *shape = json_array();
        for (int k = 0; k < t->ndim; k++) json_array_append_new(shape, json_integer(t->shape[k]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                                      (json_int_t)bytes, (json_int_t)(bytes + t->bytes)));
        bytes += t->bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t length = strlen(text);
    uint8_t *file = malloc(8 + length + bytes);
    memcpy(file, &length, 8);
    memcpy(file + at, text, length);
    at += length;
    for (uint64_t i = 0; i < cedar_st_count(st); i++) {
        const cedar_st_tensor *t = cedar_st_at(st, i);
        if (!is_kept(t->name)) continue;
        memcpy(file + at, t->data, t->bytes);
        at += t->bytes;
    }
    write_file(dir, "golden.safetensors", file, at);
    free(file);
    free(text);
    json_decref(header);
    cedar_st_close(st);
}

static void write_kept_cases(const char *dir) {
    json_t *all = json_load_file(SOURCE "/manifest.json", 0, NULL), *cases = json_array(), *k;
    size_t i;
    json_array_foreach(json_object_get(all, "cases"), i, k)
        for (size_t n = 0; n < sizeof kept_cases / sizeof *kept_cases; n++)
            if (!strcmp(json_string_value(json_object_get(k, "id")), kept_cases[n])) json_array_append(cases, k);
    ck_assert_uint_eq(json_array_size(cases), sizeof kept_cases / sizeof *kept_cases);
    json_object_set_new(all, "cases", cases);
    char *text = json_dumps(all, 0);
    write_file(dir, "manifest.json", text, strlen(text));
    free(text);
    json_decref(all);
}

/* Leaves a few short cases and the traces of a copied directory, whose vectors are sound. */
static void keep_few_cases(const char *dir) {
    static const char *const files[] = { "golden.safetensors", "manifest.json" };
    char path[512];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        ck_assert_int_eq(unlink(path), 0);
    }
    write_kept_tensors(dir);
    write_kept_cases(dir);
}

static void small_copy(char dir[32]) {
    copy_with(dir, "", NULL, 0);
    keep_few_cases(dir);
}

/* Byte `at` of a tensor in the file's text. */
static char *tensor_byte(char *text, size_t bytes, const char *name, uint64_t at) {
    cedar_safetensors *st = NULL;
    cedar_err err = { 0 };
    ck_assert_msg(!cedar_st_parse((const uint8_t *)text, bytes, "copy", &st, &err), "%s", err.msg);
    const cedar_st_tensor *t = cedar_st_find(st, name);
    ck_assert_msg(t && at < t->bytes, "%s", name);
    char *p = text + ((const char *)t->data - text) + at;
    cedar_st_close(st);
    return p;
}

/* One flipped bit, the quantities that must complain (others may not), and how many at least. */
typedef struct fault {
    const char *file, *tensor;
    uint64_t byte;
    uint8_t flip;
    const char *named;      /* part of a complaining line */
    bool alone;             /* no other quantity complains (all of them are planted in one run) */
    int arith;
} fault;

static const fault faults[] = {
    { "golden.safetensors", "exact.logits", 4 * 3 + 3, 0x80, "A.n1 ", false, 0 }, /* sign of a logit of row 0 */
    { "golden.safetensors", "C.n200.after20.logits", 4 * 7 + 3, 0x80, "C.n200.after20 ", false, 0 },
    { "golden.safetensors", "D.h64.s16.logits", 4 * 7 + 3, 0x80, "D.h64.s16 ", true, 0 },
    { "golden.safetensors", "E.turns.h64.h92.logits", 3, 0x80, "E.turns.h64.h92 ", true, 0 },
    { "golden.safetensors", "A.wo_a_fp8.n33.logits", 3, 0x80, "A.wo_a_fp8.n33 ", true, 0 },
    { "golden.safetensors", "trace.L1.kv_bytes", 100, 0x01, "trace.L1.kv_bytes ", true, 0 },
    { "golden.safetensors", "trace.L4.index_bytes", 33, 0x10, "trace.L4.index_bytes ", true, 0 },
    { "golden.safetensors", "D.h64.s16.L3.kv_bytes", 5, 0x02, "D.h64.s16.L3.kv_bytes ", true, 0 },
    { "golden.safetensors", "D.h65.s16.L4.index_bytes", 5, 0x02, "D.h65.s16.L4.index_bytes ", true, 0 },
    { "golden.safetensors", "trace.L0.window_bytes", 40, 0x04, "trace.L0.window_bytes ", true, 0 },
    { "golden.safetensors", "trace.M1.ring_bytes", 300, 0x04, "trace.M1.ring_bytes ", true, 0 },
    { "golden.safetensors", "trace.L3.topk", 4 * 8 * 60, 0x01, "trace.L3.topk ", true, 0 },
    { "golden.safetensors", "trace.L4.pool", 65 * 64 + 3, 0x01, "trace.L4.pool ", true, 0 },
    { "golden.safetensors", "trace.L5.router_ids", 8, 0x01, "trace.L5.router_ids ", true, 0 },
    { "golden.safetensors", "trace.L1.engram_rows", 8 * 9, 0x01, "trace.L1.engram_rows ", true, 0 },
    { "golden.safetensors", "trace.L6.scores", 4 * 65 * 64 + 3, 0x40, "trace.L6.scores ", true, 0 },
    { "golden.safetensors", "trace.L2.h", 3, 0x80, "trace.L2.h ", true, 0 },
    { "golden.safetensors", "trace.L1.open65", 3, 0x80, "trace.L1.open65 ", true, 0 },
    { "golden.safetensors", "F.p40.ids", 4, 0x01, "F.p40.ids ", true, 0 },
    { "golden.safetensors", "F.p5.logits", 4 * 512 + 3, 0x80, "F.p5.logits ", true, 0 },
    { "golden.safetensors", "F.replay200.confidence", 3, 0x80, "F.replay200.confidence ", true, 0 },
    /* a weight: the layer's own quantities complain */
    { "model.safetensors", "layers.2.attn.wkv.weight", 77, 0x40, "trace.L2.window_bytes ", false, 0 },
    { "model.safetensors", "layers.4.attn.compressor.wkv.weight", 201, 0x40, "trace.L4.kv_bytes ", false, 0 },
    { "model.safetensors", "layers.3.ffn.gate.bias", 3, 0x41, "trace.L3.router_ids ", false, 0 },
    { "model.safetensors", "layers.6.attn.indexer.wq_b.scale", 0, 0x02, "trace.L6.scores ", false, 0 },
    { "model.safetensors", "mtp.1.markov_head.head.weight", 32 * 2 * 100 + 1, 0x40, "F.p5.logits ", false, 0 },
    /* one block deep, in the other arithmetics */
    { "model.safetensors", "layers.5.attn.wq_a.scale", 0, 0x04, "trace.L5.h ", false, 1 },
    { "model.safetensors", "layers.5.attn.wo_b.scale", 0, 0x04, "trace.L5.h ", false, 2 },
    { "model.safetensors", "layers.4.attn.indexer.wk.weight", 1, 0x40, "trace.L4.scores ", false, 2 },
};

enum { FAULTS = sizeof faults / sizeof *faults };

/* All faults that concern one quantity each, in one run: those complain, and nobody else. */
START_TEST(each_quantity_complains_alone) {
    if (sanitized_skips("each_quantity_complains_alone", 1)) return;
    size_t bytes;
    char *text = read_file(SOURCE, "golden.safetensors", &bytes), dir[32];
    uint32_t planted = 0;
    for (int i = 0; i < FAULTS; i++) {
        if (!faults[i].alone) continue;
        *tensor_byte(text, bytes, faults[i].tensor, faults[i].byte) ^= (char)faults[i].flip;
        planted++;
    }
    copy_with(dir, "golden.safetensors", text, bytes);
    outcome *o = run(dir, CEDAR_WIDE, 2);
    remove_copy(dir);
    ck_assert_msg(!o->status, "%s", o->err.msg);
    for (int i = 0; i < FAULTS; i++)
        if (faults[i].alone)
            ck_assert_msg(strstr(o->bad, faults[i].named) != NULL, "%s: a flipped bit goes unnoticed",
                          faults[i].tensor);
    ck_assert_msg(o->failed == planted, "%u faults, %u complaints\n%.3000s", planted, o->failed, o->bad);
    free(text);
    free(o);
}
END_TEST

/* A few short cases are enough for a weight. Under a sanitizer only in the other arithmetics. */
START_TEST(a_flipped_bit_is_found) {
    const fault *f = &faults[_i];
    if (f->alone || sanitized_skips("a_flipped_bit_is_found", !f->arith)) return;
    size_t bytes;
    char *text = read_file(SOURCE, f->file, &bytes), dir[32];
    *tensor_byte(text, bytes, f->tensor, f->byte) ^= (char)f->flip;
    copy_with(dir, f->file, text, bytes);
    if (!strcmp(f->file, "model.safetensors")) keep_few_cases(dir);
    outcome *o = run(dir, ariths[f->arith], 2);
    remove_copy(dir);
    ck_assert_msg(!o->status, "%s", o->err.msg);
    ck_assert_msg(o->failed > 0, "%s: a flipped bit goes unnoticed", f->tensor);
    ck_assert_msg(strstr(o->bad, f->named) != NULL, "%s: \"%s\" does not complain, but\n%.3000s", f->tensor, f->named,
                  o->bad);
    free(text);
    free(o);
}
END_TEST

/* A wrong weight in layer 2 leaves what lies before it alone. */
START_TEST(layers_before_a_wrong_weight_do_not_complain) {
    size_t bytes;
    char *text = read_file(SOURCE, "model.safetensors", &bytes), dir[32];
    *tensor_byte(text, bytes, "layers.2.attn.wkv.weight", 77) ^= 0x40;
    copy_with(dir, "model.safetensors", text, bytes);
    keep_few_cases(dir);
    outcome *o = run(dir, CEDAR_WIDE, 2);
    remove_copy(dir);
    ck_assert_ptr_nonnull(strstr(o->bad, "trace.L2.h "));
    ck_assert_ptr_null(strstr(o->bad, "trace.L1."));
    ck_assert_ptr_null(strstr(o->bad, "trace.L0."));
    free(text);
    free(o);
}
END_TEST

/* Vectors under a name that no case asks for must not silently go unchecked, nor half of a case's be missing. */
START_TEST(renamed_vectors_are_refused) {
    if (sanitized_skips("renamed_vectors_are_refused", 1)) return;
    static const struct { const char *name; char to; const char *says; } renames[] = {
        { "\"D.h17.s16.L1.kv_bytes\"", '2', "5 of the 6 tensors" },
        { "\"trace.L1.topk\"", '0', "trace.L0.topk" },
    };
    size_t bytes;
    for (size_t i = 0; i < sizeof renames / sizeof *renames; i++) {
        char *text = read_file(SOURCE, "golden.safetensors", &bytes), dir[32];
        char *at = memmem(text, bytes, renames[i].name, strlen(renames[i].name));
        ck_assert_ptr_nonnull(at);
        *(strstr(at, "L1") + 1) = renames[i].to;
        copy_with(dir, "golden.safetensors", text, bytes);
        outcome *o = run(dir, CEDAR_WIDE, 2);
        remove_copy(dir);
        ck_assert_msg(o->status == CEDAR_E_FORMAT || strstr(o->bad, renames[i].says), "%s", renames[i].name);
        if (o->status) ck_assert_ptr_nonnull(strstr(o->err.msg, renames[i].says));
        free(text);
        free(o);
    }
}
END_TEST

/* The bit-for-bit vectors of the bf16 engine notice one weight's last bit. */
START_TEST(bf16_vectors_notice_a_weight) {
    if (sanitized_skips("bf16_vectors_notice_a_weight", 1)) return;
    size_t bytes;
    char *text = read_file(SOURCE, "model.safetensors", &bytes), dir[32], to[512], from[4096], here[3072];
    *tensor_byte(text, bytes, "layers.3.attn_norm.weight", 0) ^= 0x08;
    copy_with(dir, "model.safetensors", text, bytes);
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    static const char *const swap[] = { "golden.safetensors", "manifest.json" };
    for (int i = 0; i < 2; i++) {
        snprintf(to, sizeof to, "%s/%s", dir, swap[i]);
        snprintf(from, sizeof from, "%s/" SOURCE "-ref/%s", here, swap[i]);
        ck_assert_int_eq(unlink(to), 0);
        ck_assert_int_eq(symlink(from, to), 0);
    }
    outcome *o = run(dir, CEDAR_BF16, 2);
    remove_copy(dir);
    ck_assert_msg(!o->status, "%s", o->err.msg);
    ck_assert_msg(strstr(o->bad, "trace.L3.") != NULL, "%.3000s", o->bad);
    ck_assert_ptr_null(strstr(o->bad, "trace.L2."));
    ck_assert_ptr_null(strstr(o->bad, "trace.L4."));        /* each block is started from the golden streams */
    free(text);
    free(o);
}
END_TEST

/* --- decisions that are no near-ties: f32 against the decisions of a wide run ------------------------------------- */

START_TEST(a_few_cases_pass) {
    char dir[32];
    small_copy(dir);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        outcome *o = run(dir, CEDAR_F32, threads);
        ck_assert_msg(!o->status && !o->failed && o->checked > 80, "%u: %s %.3000s", o->checked, o->err.msg,
                      o->bad);
        free(o);
    }
    remove_copy(dir);
}
END_TEST

/* Constants of operators that only the engine under test has wrong. */
static const struct { const char *key, *from, *to; } constants[] = {
    { "routed_scaling_factor", "1.5", "1.501" },
    { "swiglu_limit", "10.0", "0.1" },
    { "rms_norm_eps", "1e-20", "1e-2" },
    { "rope_theta", "10000", "10010" },
    { "compress_rope_theta", "160000", "160900" },
    { "factor", "4", "4.1" },
    { "hc_sinkhorn_iters", "20", "1" },
    { "hc_eps", "1e-06", "1e-03" },
    { "sliding_window", "16", "15" },
    { "candidate_topk_blocks", "4", "3" },
};

/* The text of config.json with one value changed. */
static char *config_with(const char *key, const char *from, const char *to, size_t *bytes) {
    char *text = read_file(SOURCE, "config.json", bytes), old[96], *out = malloc(*bytes + 64);
    snprintf(old, sizeof old, "\"%s\": %s", key, from);
    char *at = strstr(text, old);
    ck_assert_msg(at != NULL, "config.json has no %s", old);
    *bytes = (size_t)sprintf(out, "%.*s\"%s\": %s%s", (int)(at - text), text, key, to, at + strlen(old));
    free(text);
    return out;
}

START_TEST(a_wrong_constant_is_found) {
    if (sanitized_skips("a_wrong_constant_is_found", _i)) return;
    size_t bytes;
    char *text = config_with(constants[_i].key, constants[_i].from, constants[_i].to, &bytes), dir[32], wrong[32];
    small_copy(dir);
    copy_with(wrong, "config.json", text, bytes);
    outcome *o = run_with(dir, (cedar_golden_opts){ .arith = CEDAR_F32, .threads = 2, .tested = wrong }, 0);
    remove_copy(dir);
    remove_copy(wrong);
    ck_assert_msg(!o->status, "%s", o->err.msg);
    ck_assert_msg(strstr(o->bad, "A.n33 decisions ") != NULL, "%s: no wrong decision\n%.3000s", constants[_i].key,
                  o->bad);
    ck_assert_ptr_null(strstr(o->bad, "in the recording"));     /* it was recorded with the sound one */
    free(text);
    free(o);
}
END_TEST

/* One bit of a weight that only the engine under test has: the layer is named. */
START_TEST(a_wrong_weight_is_found_in_its_layer) {
    size_t bytes;
    char *text = read_file(SOURCE, "model.safetensors", &bytes), dir[32], wrong[32];
    *tensor_byte(text, bytes, "layers.2.attn.wkv.weight", 77) ^= 0x40;
    small_copy(dir);
    copy_with(wrong, "model.safetensors", text, bytes);
    outcome *o = run_with(dir, (cedar_golden_opts){ .arith = CEDAR_F32, .threads = 2, .tested = wrong }, 0);
    remove_copy(dir);
    remove_copy(wrong);
    ck_assert_msg(!o->status, "%s", o->err.msg);
    ck_assert_msg(strstr(o->bad, "no near-ties, first FP8Q32 in layer 2,") != NULL, "%.3000s", o->bad);
    free(text);
    free(o);
}
END_TEST

/* Changes the middle one of the tape's decisions of a kind: a code by one step, a list by one id. */
static void change_decision(void *self, cedar_tape *t) {
    outcome *o = self;
    uint64_t count = 0, seen = 0;
    for (int round = 0; round < 2; round++)
        for (uint64_t at = 0; at < t->used;) {
            cedar_tape_head h;
            memcpy(&h, t->bytes + at, sizeof h);
            uint8_t *payload = t->bytes + at + sizeof h;
            at += sizeof h + (h.bytes + 7) / 8 * 8;
            if (h.kind != (uint32_t)o->change) continue;
            if (round == 0) {
                count++;
            } else if (seen++ == count / 2) {
                *payload ^= 1;
                o->changed++;
            }
        }
}

START_TEST(a_changed_decision_is_found) {
    static const cedar_tape_kind kinds[] = { CEDAR_TAPE_FP8Q32, CEDAR_TAPE_FP4Q32, CEDAR_TAPE_FP4Q16,
                                             CEDAR_TAPE_EXPERTS, CEDAR_TAPE_GATE };
    char dir[32];
    small_copy(dir);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (sanitized_drops((uint32_t)i, 3)) continue;
        outcome *o = run_with(dir, (cedar_golden_opts){ .arith = CEDAR_F32, .recorded = change_decision }, kinds[i]);
        ck_assert_msg(!o->status, "%s", o->err.msg);
        ck_assert_uint_ge(o->changed, 5);
        char says[96];
        snprintf(says, sizeof says, "no near-ties, first %s in layer", cedar_tape_kind_name[kinds[i]]);
        ck_assert_msg(strstr(o->bad, "A.n33 decisions ") && strstr(o->bad, says), "%s: %.3000s",
                      cedar_tape_kind_name[kinds[i]], o->bad);
        free(o);
    }
    remove_copy(dir);
}
END_TEST

/* Cuts the last record off, or its end. */
static void shorten(void *self, cedar_tape *t) {
    (void)self;
    t->used -= 16;
}

START_TEST(a_short_tape_is_found) {
    char dir[32];
    small_copy(dir);
    outcome *o = run_with(dir, (cedar_golden_opts){ .arith = CEDAR_F32, .threads = 2, .recorded = shorten }, 0);
    remove_copy(dir);
    ck_assert_ptr_nonnull(strstr(o->bad, "does not make the decisions of the wide run"));
    free(o);
}
END_TEST

/* --- broken directories ------------------------------------------------------------------------------------------- */

/* Removes the copy. */
static void fails_in(const char *dir, cedar_status status, const char *part) {
    outcome *o = run(dir, CEDAR_WIDE, 1);
    remove_copy(dir);
    ck_assert_msg(o->status == status, "%s: status %d (%s)", part, (int)o->status, o->err.msg);
    ck_assert_msg(strstr(o->err.msg, part) != NULL, "\"%s\" does not say \"%s\"", o->err.msg, part);
    free(o);
}

static void fails_with(const char *name, const char *text, size_t bytes, cedar_status status, const char *part) {
    char dir[32];
    copy_with(dir, name, text, bytes);
    fails_in(dir, status, part);
}

static void manifest_fails(const char *text, const char *part) {
    fails_with("manifest.json", text, strlen(text), CEDAR_E_FORMAT, part);
}

#define CASE(fields) "{\"cases\": [{" fields "}]}"
#define LOGITS(rows) "\"logits\": {\"tensor\": \"exact.logits\", \"rows\": " rows "}"

START_TEST(broken_manifests_are_named) {
    fails_with("manifest.json", NULL, 0, CEDAR_E_IO, "manifest.json");
    manifest_fails("{\"cases\": [", "manifest.json");
    manifest_fails("{}", "manifest.json has no list \"cases\"");
    manifest_fails("{\"cases\": 3}", "no list \"cases\"");
    manifest_fails(CASE("\"n\": 3"), "\"id\"");
    manifest_fails(CASE("\"id\": \"A.x\", \"n\": 3, " LOGITS("[0, 3]")), "\"positions\"");
    manifest_fails(CASE("\"id\": \"A.x\", \"n\": 3, \"positions\": [0], " LOGITS("[0, 3]")), "two numbers");
    manifest_fails(CASE("\"id\": \"A.x\", \"n\": 3, \"positions\": [3, 0], " LOGITS("[0, 3]")), "two numbers");
    manifest_fails(CASE("\"id\": \"A.x\", \"n\": 3, \"positions\": [0, 3]"), "\"logits\"");
    manifest_fails(CASE("\"id\": \"A.x\", \"n\": 3, \"positions\": [0, 3], " LOGITS("[0, 2]")),
                   "does not match golden tensor");
    manifest_fails(CASE("\"id\": \"A.x\", \"n\": 100000, \"positions\": [0, 3], " LOGITS("[0, 3]")), "goes beyond the");
    manifest_fails(CASE("\"id\": \"A.x\", \"n\": 3, \"positions\": [0, 3], \"logits\": {\"tensor\": \"nothing\", "
                        "\"rows\": [0, 3]}"),
                   "no tensor \"nothing\"");
    manifest_fails(
        CASE(
            "\"id\": \"A.x\", \"n\": 3, \"positions\": [0, 3], \"logits\": {\"tensor\": \"tokens\", \"rows\": [0, 3]}"),
        "golden tensor \"tokens\" is I32, expected F32");
    manifest_fails(CASE("\"id\": \"F.x\", \"n\": 3, \"token\": 1, \"positions\": [0, 3], " LOGITS("[0, 3]")),
                   "no tensor \"F.x.ids\"");
}
END_TEST

/* Other vectors for the few cases. */
static void vectors_fail(const char *text, size_t bytes, const char *part) {
    char dir[32];
    small_copy(dir);
    write_file(dir, "golden.safetensors", text, bytes);
    fails_in(dir, CEDAR_E_FORMAT, part);
}

START_TEST(broken_vectors_are_named) {
    size_t bytes, k_bytes;
    char small[32];
    small_copy(small);
    char *text = read_file(small, "golden.safetensors", &bytes);
    remove_copy(small);
    fails_with("golden.safetensors", NULL, 0, CEDAR_E_IO, "golden.safetensors");
    const size_t keep[] = { 0, 7, 8, 100, 5000, 100000, bytes / 2, bytes - 1 };
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) vectors_fail(text, keep[i], "golden.safetensors");
    /* a tensor under another name, and one of another width: the header is text of fixed length */
    char *copy = malloc(bytes), *at;
    memcpy(copy, text, bytes);
    at = memmem(copy, 100000, "\"trace.L1.kv_bytes\"", 19);
    ck_assert_ptr_nonnull(at);
    at[8] = '?';
    vectors_fail(copy, bytes, "no tensor \"trace.L1.kv_bytes\"");
    memcpy(copy, text, bytes);
    at = memmem(copy, 100000, "\"trace.L2.window_bytes\"", 23);
    at = memmem(at, 200, "[65,66]", 7);
    ck_assert_ptr_nonnull(at);
    memcpy(at, "[66,65]", 7);
    vectors_fail(copy, bytes, "\"trace.L2.window_bytes\" has rows of another width");
    memcpy(copy, text, bytes);
    at = memmem(copy, 100000, "\"trace.L1.kv_bytes\"", 19);
    at = memmem(at, 200, "[32,36]", 7);
    ck_assert_ptr_nonnull(at);
    memcpy(at, "[36,32]", 7);
    vectors_fail(copy, bytes, "\"trace.L1.kv_bytes\" is not made of records of 36 bytes");
    free(copy);
    free(text);
    text = read_file(SOURCE, "model.safetensors", &k_bytes);
    fails_with("model.safetensors", text, k_bytes / 2, CEDAR_E_FORMAT, "model.safetensors");
    fails_with("config.json", "{}", 2, CEDAR_E_FORMAT, "config.json");
    free(text);
}
END_TEST

START_TEST(missing_folders_are_named) {
    outcome *o = run("/tmp/no-such-folder-of-cedar", CEDAR_WIDE, 1);
    ck_assert_int_eq(o->status, CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(o->err.msg, "no-such-folder-of-cedar"));
    free(o);
}
END_TEST

/* Those of the case "threads" run on 1 to 3 and are enough for ThreadSanitizer. */
static TCase *cases(const char *name) {
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 600);
    tcase_set_tags(t, strcmp(name, "threads") ? "one_thread" : "");
    return t;
}

static Suite *suite(void) {
    Suite *s = suite_create("golden");
    TCase *t = cases("threads");
    tcase_add_test(t, a_few_cases_pass);
    suite_add_tcase(s, t);
    t = cases("vectors");
    tcase_add_loop_test(t, every_directory_passes, 0, 3);
    suite_add_tcase(s, t);
    t = cases("planted faults");
    tcase_add_test(t, each_quantity_complains_alone);
    tcase_add_loop_test(t, a_flipped_bit_is_found, 0, FAULTS);
    tcase_add_test(t, layers_before_a_wrong_weight_do_not_complain);
    tcase_add_test(t, renamed_vectors_are_refused);
    tcase_add_test(t, bf16_vectors_notice_a_weight);
    suite_add_tcase(s, t);
    t = cases("decisions");
    tcase_add_loop_test(t, a_wrong_constant_is_found, 0, sizeof constants / sizeof *constants);
    tcase_add_test(t, a_wrong_weight_is_found_in_its_layer);
    tcase_add_test(t, a_changed_decision_is_found);
    tcase_add_test(t, a_short_tape_is_found);
    suite_add_tcase(s, t);
    t = cases("broken directories");
    tcase_add_test(t, broken_manifests_are_named);
    tcase_add_test(t, broken_vectors_are_named);
    tcase_add_test(t, missing_folders_are_named);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
