/* Synthetic acceptance: sim/accept.h. */
#include "sim/accept.h"

#include "base/rng.h"

enum { BILLION = 1000000000 };

uint64_t cedar_accept_key(uint64_t seed) { return cedar_rng_key(seed, "acceptance"); }

uint32_t cedar_accept_drafts(uint64_t key, int64_t request_id, uint32_t step, uint32_t drafts, int64_t acceptance_ppb) {
    uint64_t mean_ppb = (uint64_t)acceptance_ppb - BILLION;
    uint64_t draw = cedar_rng_below(cedar_rng_at(key, (uint64_t)request_id), step, BILLION);
    uint64_t kept = mean_ppb / BILLION + (draw < mean_ppb % BILLION);
    return kept < drafts ? (uint32_t)kept : drafts;
}

uint32_t cedar_accept_rows(uint32_t drafts, uint32_t pos, uint32_t end, uint32_t boundary) {
    uint32_t stop = boundary > pos && boundary < end ? boundary : end;
    return drafts < stop - pos ? drafts + 1 : stop - pos;
}
