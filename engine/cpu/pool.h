/* Private to engine/cpu: a pool of threads that share out numbered items. Which thread takes which item never
 * changes a result: an item writes only what is its own. */
#ifndef CEDAR_ENGINE_CPU_POOL_H
#define CEDAR_ENGINE_CPU_POOL_H

#include <stdint.h>

#include "base/status.h"

typedef struct cedar_pool cedar_pool;
typedef void (*cedar_pool_fn)(void *ctx, uint32_t item, uint32_t worker);

/* 0 = processors online */
cedar_status cedar_pool_open(uint32_t threads, cedar_pool **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_pool_close(cedar_pool *p);
uint32_t cedar_pool_workers(const cedar_pool *p);

/* Calls fn(ctx, i, worker) for i in [0, items), worker < workers, and returns when all are done. Items are
 * handed out in ascending order; with one worker they run in the caller. Allocates nothing. */
void cedar_pool_run(cedar_pool *p, uint32_t items, cedar_pool_fn fn, void *ctx);

#endif
