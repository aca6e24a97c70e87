/* Fuzz target (libFuzzer): safetensors. Any bytes give a sentence or tensors that tile the data of the buffer.
 *
 *     clang -std=gnu11 -g -O1 -fsanitize=fuzzer,address,undefined -I. -D_GNU_SOURCE tests/fuzz/fuzz_safetensors.c \
 *           engine/safetensors.c base/json.c base/mem.c base/status.c -ljansson -o fuzz_safetensors && \
 *     ./fuzz_safetensors -max_total_time=60 tests/broken/safetensors */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_tensors(const cedar_safetensors *s, const uint8_t *data, size_t size) {
    uint64_t total = 0;
    for (uint64_t i = 0; i < cedar_st_count(s); i++) {
        const cedar_st_tensor *t = cedar_st_at(s, i);
        if (cedar_st_find(s, t->name) != t) abort();
        if (t->data < data + 8 || t->data > data + size || t->bytes > (uint64_t)(data + size - t->data)) abort();
        if (t->ndim < 0 || t->ndim > 8) abort();
        total += t->bytes;
        for (uint64_t b = 0; b < t->bytes; b += 64) (void)*(const volatile uint8_t *)(t->data + b);
    }
    uint64_t header = 0;
    memcpy(&header, data, 8);
    if (total != size - 8 - header) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    cedar_safetensors *s = NULL;
    cedar_err err = { 0 };
    cedar_status st = cedar_st_parse(data, size, "fuzz", &s, &err);
    if (st ? err.code != st || !err.msg[0] : err.msg[0]) abort();
    if (!st) check_tensors(s, data, size);
    cedar_st_close(s);
    if (cedar_mem_live()) abort();
    return 0;
}
