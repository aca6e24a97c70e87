/* The scheduler: continuous batching under a token budget. A pure function: no time, no memory, no engine. */
#include "sim/sim_int.h"

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

static uint32_t chunk_rows(const cedar_sched_limits *limits, const cedar_sched_item *item, uint32_t budget) {
    uint32_t end = item->boundary > item->pos ? min_u32(item->boundary, item->prompt_tokens) : item->prompt_tokens;
    uint32_t most = limits->chunk_rows ? min_u32(limits->chunk_rows, budget) : budget;
    return cedar_plan_chunk(end - item->pos, most, 0);
}

/* Prompt rows beside so many decode rows. */
static uint32_t prompt_budget(const cedar_sched_limits *limits, uint32_t decode_rows) {
    uint32_t left = limits->step_rows - decode_rows;
    return decode_rows && limits->prefill_capped ? min_u32(left, limits->prefill_rows) : left;
}

uint32_t cedar_sched_chunks(const cedar_sched_limits *limits, uint32_t decoding, uint32_t decode_rows,
                            const cedar_sched_item *items, uint32_t count, cedar_sched_slice *slices) {
    uint32_t n = 0, budget = prompt_budget(limits, decode_rows);
    for (; n < count && budget && decoding + n < limits->step_seqs; n++) {
        uint32_t rows = chunk_rows(limits, &items[n], budget);
        slices[n] = (cedar_sched_slice){ .item = n, .rows = rows, .decode = false };
        budget -= rows;
    }
    return n;
}

/* One row each first, then drafts. Returns how many slices; *rows: of all of them. */
static uint32_t plan_decode(const cedar_sched_limits *limits, const cedar_sched_item *items, uint32_t count,
                            cedar_sched_slice *slices, uint32_t *rows) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < count && n < limits->step_rows && n < limits->step_seqs; i++) {
        if (items[i].pos < items[i].prompt_tokens) continue;
        slices[n++] = (cedar_sched_slice){ .item = i, .rows = 1, .decode = true };
    }
    *rows = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t drafts = min_u32(items[slices[i].item].drafts, limits->step_rows - *rows);
        slices[i].rows += drafts;
        *rows += drafts;
    }
    return n;
}

uint32_t cedar_sched_plan(const cedar_sched_limits *limits, const cedar_sched_item *items, uint32_t count,
                          cedar_sched_slice *slices) {
    uint32_t decode_rows, n = plan_decode(limits, items, count, slices, &decode_rows);
    uint32_t budget = prompt_budget(limits, decode_rows);
    for (uint32_t i = 0; i < count && budget && n < limits->step_seqs; i++) {
        if (items[i].pos >= items[i].prompt_tokens) continue;
        uint32_t rows = chunk_rows(limits, &items[i], budget);
        slices[n++] = (cedar_sched_slice){ .item = i, .rows = rows, .decode = false };
        budget -= rows;
    }
    return n;
}
