/* Private to engine/: the meeting place of the ranks of one engine (engine/group.c). A rank is a thread of this process
 * with a part of the weights and pages; all ranks execute the same plans, and meet where one needs what another made.
 *
 * A group that is broken stays so: every meeting fails at once, and the first reason is kept. It breaks when a rank
 * fails, when one does not come to a meeting in time, and when two do not agree.
 * Threads: each rank calls from its own thread; fail, broken and error may be called from any.
 * Allocation: open only. */
#ifndef CEDAR_ENGINE_RANKS_H
#define CEDAR_ENGINE_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/shard.h"

typedef struct cedar_ranks cedar_ranks;

/* What a backend is told that is one of several; it stays valid until the backend is closed. */
typedef struct cedar_rank {
    cedar_ranks *group;
    cedar_shard shard;          /* rank, ranks, and what of the model this one holds */
    /* Out, before a step or draft returns: hash of what must be the same bits on every rank, such as the streams that
     * go into the head. A backend that leaves it alone is compared by its tokens only. */
    uint64_t *digest;
} cedar_rank;

/* How long the others wait for a rank: this, and four times what they worked themselves since the last meeting, since a
 * slow machine is slow for all of them. */
#define CEDAR_RANKS_LIMIT_NS 5000000000

cedar_status cedar_ranks_open(uint32_t ranks, int64_t limit_ns, cedar_ranks **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_ranks_close(cedar_ranks *g);                 /* when no rank will call any more */

/* Before the first meeting: once *stop is not zero the limit is at most a second, and a rank that is late breaks the
 * group with CEDAR_E_INTERRUPT. stop is borrowed; NULL: none. */
void cedar_ranks_heed(cedar_ranks *g, const volatile int *stop);

/* Posts a pointer and returns those of all, by rank: all [ranks]. For opening, which may take any time: waits for all
 * ranks without a limit. False = the group is broken. */
bool cedar_ranks_share(cedar_ranks *g, uint32_t rank, void *mine, void **all);

/* Returns when all ranks have come here; what they wrote before is then visible. False = the group is broken. */
bool cedar_ranks_meet(cedar_ranks *g, uint32_t rank);

/* A meeting to which each rank brings a number; when they are not all the same the group breaks, and `what` says about
 * what: "executes another plan than rank 0". */
bool cedar_ranks_agree(cedar_ranks *g, uint32_t rank, uint64_t value, const char *what);

/* Breaks the group: rank `rank` failed with `why`. Messages name the rank and the step. */
void cedar_ranks_fail(cedar_ranks *g, uint32_t rank, cedar_status code, const char *why);
bool cedar_ranks_broken(const cedar_ranks *g);
/* The reason as an error; code and message of the first failure. CEDAR_OK when the group is whole. */
cedar_status cedar_ranks_error(const cedar_ranks *g, cedar_err *err);

/* What the ranks are doing, for messages: "step" and its number. By the group between steps. */
void cedar_ranks_now(cedar_ranks *g, const char *what, uint64_t number);

#endif
