/* The allocation hook. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t live_count;
static _Atomic int64_t fail_in; /* allocations until the planted failure; 0 = none */
static _Thread_local const char *guarded_phase;

static void check_guard(const char *what) {
    if (!guarded_phase) return;
    fprintf(stderr, "cedar: internal error: %s inside %s, where nothing may be allocated\n", what, guarded_phase);
    abort();
}

static int fault_due(void) {
    int64_t n = atomic_load(&fail_in);
    return n > 0 && atomic_fetch_sub(&fail_in, 1) == 1;
}

void *cedar_calloc(size_t count, size_t size) {
    check_guard("allocation");
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - 128 || fault_due()) return NULL;
    void *p = NULL;
    bytes = bytes ? bytes : 1;
    if (posix_memalign(&p, 64, bytes)) return NULL;
    memset(p, 0, bytes);
    atomic_fetch_add(&live_count, 1);
    return p;
}

void *cedar_realloc(void *p, size_t count, size_t size) {
    check_guard("reallocation");
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || fault_due()) return NULL;
    void *q = realloc(p, bytes ? bytes : 1);
    if (q && !p) atomic_fetch_add(&live_count, 1);
    return q;
}

char *cedar_strdup(const char *s) {
    if (!s) return NULL;
    size_t n = strlen(s) + 1;
    char *p = cedar_calloc(n, 1);
    if (p) memcpy(p, s, n);
    return p;
}

void cedar_free(void *p) {
    if (!p) return;
    check_guard("free");
    atomic_fetch_sub(&live_count, 1);
    free(p);
}

void cedar_step_begin(const char *phase) { guarded_phase = phase; }
void cedar_step_end(void) { guarded_phase = NULL; }
void cedar_mem_fail_at(int64_t n) { atomic_store(&fail_in, n); }
int64_t cedar_mem_live(void) { return atomic_load(&live_count); }
