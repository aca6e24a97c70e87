/* Fuzz target (libFuzzer): the JSON wrapper. Any bytes give a document or a sentence; every getter keeps its promises.
 *
 *     clang -std=gnu11 -g -O1 -fsanitize=fuzzer,address,undefined -I. -D_GNU_SOURCE tests/fuzz/fuzz_json.c \
 *           base/json.c base/mem.c base/status.c -ljansson -o fuzz_json && \
 *     ./fuzz_json -max_total_time=60 tests/broken/config */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const key[] = { "a", "text_config", "vocab_size", "compress_ratios", "rope_theta", "norm_topk_prob",
                                   "scoring_func", "" };

/* A failure has a code and a sentence. */
static void check(cedar_status st, const cedar_err *err) {
    if (st && (err->code != st || !err->msg[0])) abort();
}

static void read_all(const cedar_json *o) {
    for (size_t k = 0; k < sizeof key / sizeof key[0]; k++) {
        cedar_err err = { 0 };
        int64_t n = 0, list[4];
        double x = 0;
        const char *s = NULL;
        bool b;
        size_t count = 0;
        const cedar_json *inner = NULL;
        cedar_status st = cedar_json_int(o, "fuzz", key[k], -5, 5, &n, &err);
        check(st, &err);
        if (!st && (n < -5 || n > 5)) abort();
        st = cedar_json_real(o, "fuzz", key[k], -1, 1, &x, &err);
        check(st, &err);
        if (!st && !(x >= -1 && x <= 1)) abort();
        st = cedar_json_string(o, "fuzz", key[k], &s, &err);
        check(st, &err);
        if (!st && strlen(s) > 1u << 20) abort();
        check(cedar_json_bool(o, "fuzz", key[k], &b, &err), &err);
        st = cedar_json_ints(o, "fuzz", key[k], 0, 9, 4, list, &count, &err);
        check(st, &err);
        if (!st && count > 4) abort();
        st = cedar_json_object(o, "fuzz", key[k], &inner, &err);
        check(st, &err);
        if (!st && !cedar_json_has(o, key[k])) abort();
        if (!st) check(cedar_json_int(inner, "fuzz: inner", "a", 0, 1, &n, &err), &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cedar_json *doc = NULL;
    cedar_err err = { 0 };
    cedar_status st = cedar_json_parse((const char *)data, size, "fuzz", 1, &doc, &err);
    check(st, &err);
    if (!st) read_all(doc);
    cedar_json_free(doc);
    if (cedar_mem_live()) abort();
    return 0;
}
