/* Fuzz target (libFuzzer): config.json. Any bytes give a sentence or a shape whose sizes can be summed and laid out.
 *
 *     clang -std=gnu11 -g -O1 -fsanitize=fuzzer,address,undefined -I. -D_GNU_SOURCE tests/fuzz/fuzz_config.c \
 *           engine/config.c engine/tensors.c engine/layout.c base/json.c base/mem.c base/rng.c base/status.c \
 *           -ljansson -o fuzz_config && \
 *     ./fuzz_config -max_total_time=60 tests/broken/config */
#include <stdlib.h>

#include "base/mem.h"
#include "engine/layout.h"
#include "engine/model_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static cedar_status add_bytes(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    uint64_t *sum = self, bytes = cedar_tensor_data_bytes(t) + cedar_tensor_scale_bytes(t);
    if (t->rows < 1 || t->cols < 1 || !bytes || bytes > UINT64_MAX / 2) abort();
    if (__builtin_add_overflow(*sum, bytes, sum)) abort();
    return CEDAR_OK;
}

static void check_shape(const cedar_config *c) {
    if (c->cut < 0 || c->cut >= c->layers || c->ratio_lcm < 1) abort();
    for (int32_t i = 0; i < c->layers + c->stages; i++) {
        if ((c->kv_source_of[i] < 0) != (c->ratio[i] == 0) || c->kv_source_of[i] > i) abort();
        if (c->is_kv_source[i] && !c->is_index_source[i]) abort();
    }
    for (int32_t e = 0; e < c->engram_layer_count; e++) {
        for (int32_t k = 0; k < c->ngram; k++)      /* hashing never leaves 63 bits */
            if (c->engram_mul[e][k] < 1 || c->engram_mul[e][k] > INT64_MAX / c->engram_vocab_compressed) abort();
        int32_t last = c->engram_rows_per_token - 1;
        if (c->engram_offset[e][last] + c->engram_prime[e][last] != c->engram_rows[e]) abort();
    }
    cedar_layout l;
    cedar_layout_make(c, (uint32_t)c->ratio_lcm, 8, &l);
    uint64_t sum = 0;
    bool is_small = (int64_t)(c->layers + c->stages) * c->experts < 4096;     /* keeps the fuzzer fast */
    if (is_small && cedar_tensors_visit(c, NULL, add_bytes, &sum, NULL)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cedar_config c;
    cedar_err err = { 0 };
    cedar_status st = cedar_config_parse((const char *)data, size, "fuzz/config.json", &c, &err);
    if (st ? err.code != st || !err.msg[0] : err.msg[0]) abort();
    if (!st) check_shape(&c);
    if (cedar_mem_live()) abort();
    return 0;
}
