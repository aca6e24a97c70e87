/* Host memory: one hook for every allocation of cedar's own code.
 *
 * The hook counts, can fail the N-th allocation (fault tests), and refuses to allocate between
 * cedar_step_begin and cedar_step_end (a step's memory is planned and taken before).
 * Threads: all functions may be called from any thread. */
#ifndef CEDAR_BASE_MEM_H
#define CEDAR_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed memory for count * size bytes, 64-byte aligned; NULL when the product overflows, the system refuses,
 * or a fault is due. count or size 0 gives a valid pointer that must be freed. */
void *cedar_calloc(size_t count, size_t size);

/* Grows p (from cedar_calloc or cedar_realloc; NULL starts) to count * size bytes; new bytes are NOT zeroed.
 * On failure returns NULL and p stays valid. */
void *cedar_realloc(void *p, size_t count, size_t size);

/* Copy of a string; NULL when out of memory or s is NULL. */
char *cedar_strdup(const char *s);

void cedar_free(void *p); /* NULL is allowed */

/* Allocation guard: between the two calls any cedar_calloc/realloc/free of this thread aborts with `phase`. */
void cedar_step_begin(const char *phase);
void cedar_step_end(void);

/* Fault test: the n-th allocation from now on (1 = the next) fails, once. 0 switches off. */
void cedar_mem_fail_at(int64_t n);

/* Allocations alive. */
int64_t cedar_mem_live(void);

#endif
