/* Step plans: which rows of which sequence run through which layers. Pure functions of their arguments. */
#include "engine/engine.h"

static uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

cedar_hit_plan cedar_plan_hit(const cedar_replay_rules *rules, uint32_t hit) {
    cedar_hit_plan p = { hit, 0, 0, hit };
    uint32_t rows = rules->encoder_rows;
    if (hit <= rows && !rules->adopt_short_hits) return (cedar_hit_plan){ 0, 0, 0, 0 };
    p.start = hit > rows ? hit - rows : 0;
    p.replayed = hit - p.start;
    return p;
}

void cedar_plan_rows(const cedar_replay_rules *rules, cedar_rows_kind kind, uint32_t pos, uint32_t rows,
                     cedar_bounds now, uint32_t write_floor, bool prompt_logprobs, uint32_t logits,
                     cedar_plan_entry *entry) {
    CEDAR_ASSERT(rows > 0 && logits <= rows);
    bool trim = rules->decoder && kind == CEDAR_ROWS_PREFILL && !prompt_logprobs && rows > rules->decoder_rows;
    uint32_t kept = trim ? max_u32(rules->decoder_rows, 1) : rows, first = pos + rows - kept;
    cedar_bounds b = now;
    if (trim) {
        b.lo_late = max_u32(b.lo_late, first);
        if (rules->cut == CEDAR_CUT_INSIDE_CLIP) b.lo_cut = max_u32(b.lo_cut, first);
    }
    *entry = (cedar_plan_entry){ .seq = -1, .kind = kind, .pos = pos, .rows = rows, .kept = kept,
                                 .replayed = write_floor > pos ? min_u32(rows, write_floor - pos) : 0,
                                 .write_floor = write_floor, .logits = min_u32(logits, kept), .bounds = b };
}

void cedar_plan_total(cedar_step_plan *plan) {
    plan->rows = plan->kept = plan->logits = 0;
    plan->trimmed = false;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        plan->rows += e->rows;
        plan->kept += e->kept;
        plan->logits += e->logits;
        plan->trimmed |= e->kept < e->rows;
    }
}

void cedar_plan_kept_rows(const cedar_step_plan *plan, uint32_t *kept_rows, uint32_t *first_kept) {
    uint32_t row = 0, n = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        first_kept[i] = n;
        for (uint32_t k = e->rows - e->kept; k < e->rows; k++) kept_rows[n++] = row + k;
        row += e->rows;
    }
    first_kept[plan->entry_count] = n;
}

uint32_t cedar_plan_chunk(uint32_t left, uint32_t budget, uint32_t min_last) {
    if (left <= budget) return left;
    if (min_last == 0) return budget;
    if (left - budget >= min_last) return budget;
    return left > min_last ? left - min_last : 0;   /* shorten so that exactly min_last rows remain */
}

uint32_t cedar_halo_encoder(const cedar_config *c) { return (uint32_t)((c->window - 1) * c->layers); }

uint32_t cedar_halo_decoder(const cedar_config *c, cedar_cut cut) {
    int32_t clipped = c->layers - c->cut - (cut == CEDAR_CUT_INSIDE_CLIP ? 0 : 1);
    return (uint32_t)(c->window + (clipped - 1) * (c->window - 1));
}
