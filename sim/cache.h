/* The prefix cache: a tree over KV pages by the tokens in them, and the windows stored at some of its nodes.
 *
 * Ownership   It retains pages through its host and owns the snapshots given to it.
 * Threads     One at a time. Memory: base/mem.h. No clock, no engine: the host's functions are its only way there. */
#ifndef CEDAR_SIM_CACHE_H
#define CEDAR_SIM_CACHE_H

#include "engine/engine.h"
#include "sim/observer.h"

/* The cache's way to the engine. */
typedef struct cedar_cache_host {
    void *self;
    void (*page_retain)(void *self, int32_t page);
    void (*page_release)(void *self, int32_t page);
    uint64_t (*snap_bytes)(void *self, const cedar_snap *snap);
    void (*snap_free)(void *self, cedar_snap *snap);
} cedar_cache_host;

typedef struct cedar_cache_opts {
    uint32_t page_tokens;
    uint32_t page_count;                    /* of the pool: the cache cannot hold more */
    bool windows;                           /* a hit needs stored windows at its end */
    uint64_t window_bytes_max;              /* budget of stored windows; 0 = unlimited */
} cedar_cache_opts;

typedef struct cedar_cache cedar_cache;

typedef struct cedar_cache_hit {
    uint32_t matched_tokens;                /* whole pages found, at least one token of the prompt left over */
    uint32_t hit_tokens;                    /* of them usable: up to the deepest stored windows when those are needed */
    int32_t node;                           /* deepest usable node, -1 = none */
    uint32_t depth;                         /* largest provenance depth on the usable path */
    const cedar_snap *snap;                 /* stored windows at hit_tokens, NULL when not needed; borrowed */
    cedar_miss_reason miss;                 /* why the prompt was not served further */
} cedar_cache_hit;

cedar_status cedar_cache_new(const cedar_cache_opts *opts, const cedar_cache_host *host, cedar_cache **out,
                             cedar_err *err) CEDAR_USE_RESULT;
void cedar_cache_free(cedar_cache *c);      /* releases all pages and snapshots */

/* Longest cached prefix of a prompt. Changes nothing. */
void cedar_cache_find(const cedar_cache *c, const int32_t *tokens, uint32_t count, cedar_cache_hit *out);

/* Keeps the path to a node from eviction; once per call of unpin, which also makes the path the most recently used. */
void cedar_cache_pin(cedar_cache *c, int32_t node);
void cedar_cache_unpin(cedar_cache *c, int32_t node);

/* Pages of the path to a node, in order of position. */
void cedar_cache_pages(const cedar_cache *c, int32_t node, int32_t *pages);

/* Largest provenance depth on the path to a node; 0 for node -1. */
uint32_t cedar_cache_depth(const cedar_cache *c, int32_t node);

/* Adds page_count whole pages of a sequence; pages already there are not added again. New pages are retained and get
 * provenance `depth`. snap (NULL = none; owned by the cache from now on, also on failure) belongs to position snap_pos,
 * a multiple of the page size not behind the pages. */
void cedar_cache_insert(cedar_cache *c, const int32_t *tokens, const int32_t *pages, uint32_t page_count,
                        uint32_t depth, cedar_snap *snap, uint32_t snap_pos);

/* Gives up the least recently used unpinned page that no other cached page builds on. *evicted: false when all are
 * pinned. The only failure is memory for remembering what was evicted; the cache is unchanged then. */
cedar_status cedar_cache_evict(cedar_cache *c, bool *evicted, cedar_err *err) CEDAR_USE_RESULT;

uint32_t cedar_cache_page_count(const cedar_cache *c);
uint64_t cedar_cache_window_bytes(const cedar_cache *c);

/* Checks every structural invariant; NULL when all hold, else the broken one (tests). */
const char *cedar_cache_broken(const cedar_cache *c);

#endif
