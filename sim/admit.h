/* Admission: what an engine and its prefix cache give a request before its first step.
 *
 * A request takes a sequence and all pages of its prompt and answer at once, so that one that runs never waits for
 * memory; cached pages are given up for it, the least recently used first.
 * Threads: the engine's. Memory: base/mem.h. */
#ifndef CEDAR_SIM_ADMIT_H
#define CEDAR_SIM_ADMIT_H

#include "sim/cache.h"

typedef struct cedar_admitter {
    cedar_engine *engine;
    cedar_cache *cache;                     /* NULL: prefixes are not reused */
    const cedar_replay_rules *rules;
    bool windows;                           /* cached prefixes are stored with their windows */
    int32_t *pages;                         /* [pages of the longest sequence] scratch */
} cedar_admitter;

typedef struct cedar_admission {
    int32_t seq;                            /* the caller closes it */
    int32_t node;                           /* pinned in the cache until the caller unpins it; -1 = none */
    uint32_t boundary;                      /* where a chunk must end because windows are stored there; 0 = nowhere */
    uint32_t depth;                         /* provenance of the rows the request computes */
    cedar_cache_hit hit;                    /* depth and miss describe what was adopted */
    cedar_hit_plan plan;                    /* what the rules made of it; its hit is 0 when nothing was adopted */
} cedar_admission;

/* The cache's way to a real engine. */
cedar_cache_host cedar_cache_engine_host(cedar_engine *e);

/* What the rules make of a hit of so many tokens; its hit is 0 when they do not adopt it. */
cedar_hit_plan cedar_admit_hit(const cedar_replay_rules *rules, uint32_t tokens);

/* Admits a request of `prompt` tokens that will feed `fed` in all. *admitted false: pages in use are in the way, and
 * nothing is taken; the same after a failure. */
cedar_status cedar_admit(const cedar_admitter *a, const int32_t *tokens, uint32_t prompt, uint32_t fed,
                         cedar_admission *out, bool *admitted, cedar_err *err) CEDAR_USE_RESULT;

#endif
