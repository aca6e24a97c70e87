/* Owns the arena: a chain of chunks that is freed as one. Ids, turns and names of a corpus lie here, so that loading
 * costs a few large allocations and freeing costs nothing per trace. */
#include <stdalign.h>
#include <string.h>

#include "base/mem.h"
#include "traces/traces_int.h"

/* In sanitized builds every allocation is a chunk of its own, so that reading past one shows and fault tests reach
 * each of them. */
#ifdef CEDAR_SANITIZED
#define CHUNK_BYTES_MIN ((size_t)16)
#define CHUNK_BYTES_MAX ((size_t)16)
#else
#define CHUNK_BYTES_MIN ((size_t)1 << 16)
#define CHUNK_BYTES_MAX ((size_t)1 << 22)
#endif

typedef struct chunk {
    struct chunk *next;
    size_t used, room;
    alignas(16) char bytes[];
} chunk;

struct traces_arena {
    chunk *top;
    size_t chunk_bytes; /* of the next chunk; doubles, so that small corpora stay small */
};

traces_arena *traces_arena_new(void) {
    traces_arena *a = cedar_calloc(1, sizeof *a);
    if (a) a->chunk_bytes = CHUNK_BYTES_MIN;
    return a;
}

void *traces_arena_alloc(traces_arena *a, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + 15) / 16 * 16;
    if (!a->top || a->top->room - a->top->used < bytes) {
        size_t room = bytes > a->chunk_bytes ? bytes : a->chunk_bytes;
        chunk *c = cedar_calloc(1, sizeof *c + room);
        if (!c) return NULL;
        c->room = room;
        c->next = a->top;
        a->top = c;
        if (a->chunk_bytes < CHUNK_BYTES_MAX) a->chunk_bytes *= 2;
    }
    void *p = a->top->bytes + a->top->used;
    a->top->used += bytes;
    return p;
}

char *traces_arena_string(traces_arena *a, const char *text, size_t bytes) {
    char *s = traces_arena_alloc(a, bytes + 1, 1);
    if (s) memcpy(s, text, bytes);
    return s;
}

void traces_arena_free(traces_arena *a) {
    if (!a) return;
    for (chunk *c = a->top, *next; c; c = next) {
        next = c->next;
        cedar_free(c);
    }
    cedar_free(a);
}

cedar_status traces_grow(void **p, size_t *room, size_t need, size_t size, cedar_err *err) {
    if (need <= *room) return CEDAR_OK;
    size_t wanted = *room ? *room : 16;
    while (wanted < need) wanted *= 2;
    void *grown = cedar_realloc(*p, wanted, size);
    if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu elements of %zu bytes", wanted, size);
    *p = grown;
    *room = wanted;
    return CEDAR_OK;
}
