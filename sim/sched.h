/* The scheduler: (state, limits) -> which rows run next. Pure: no time, no memory, no engine. */
#ifndef CEDAR_SIM_SCHED_H
#define CEDAR_SIM_SCHED_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cedar_sched_limits {
    uint32_t step_rows, step_seqs;
    uint32_t chunk_rows;                    /* most rows of one prompt in one step; 0 = step_rows */
    bool prefill_capped;
    uint32_t prefill_rows;                  /* when capped: most prompt rows beside decode rows */
} cedar_sched_limits;

/* A running request as the scheduler sees it; items are in order of admission, which is (arrival, id). */
typedef struct cedar_sched_item {
    uint32_t pos;                           /* next position to feed */
    uint32_t prompt_tokens;
    uint32_t boundary;                      /* a chunk ends here when it lies ahead; 0 = nowhere */
    uint32_t drafts;                        /* rows beside the one that a decode step feeds */
} cedar_sched_item;

typedef struct cedar_sched_slice {
    uint32_t item;
    uint32_t rows;
    bool decode;
} cedar_sched_slice;

/* slices [count of items] out; returns how many. Decode rows of all items come first, then prompt chunks, both in order
 * of admission, within the limits. No item waits for the drafts of another: they get what rows are left. */
uint32_t cedar_sched_plan(const cedar_sched_limits *limits, const cedar_sched_item *items, uint32_t count,
                          cedar_sched_slice *slices);

/* The prompt chunks of that plan alone, beside decode_rows rows of `decoding` sequences: of items that are all in their
 * prompts, the first ones, one slice each. */
uint32_t cedar_sched_chunks(const cedar_sched_limits *limits, uint32_t decoding, uint32_t decode_rows,
                            const cedar_sched_item *items, uint32_t count, cedar_sched_slice *slices);

#endif
