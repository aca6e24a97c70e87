/* The speed floor: what a step may hold so that every user keeps the agreed tokens per second, and the prediction of
 * step lengths that this needs. Integers throughout, so that equal histories give equal schedules. */
#include "sim/sim_int.h"

static uint32_t class_of(uint32_t rows) {
    uint32_t c = 31 - (uint32_t)__builtin_clz(rows);
    return c < CEDAR_STEP_CLASSES ? c : CEDAR_STEP_CLASSES - 1;
}

void cedar_step_history_add(cedar_step_history *h, uint32_t rows, int64_t step_ns) {
    enum { MEMORY = 16 };       /* steps after which an old length has lost most of its weight */
    CEDAR_ASSERT(rows > 0);
    uint32_t c = class_of(rows);
    int64_t n = h->steps[c] < MEMORY ? ++h->steps[c] : MEMORY;
    h->mean_ns[c] += (step_ns - h->mean_ns[c]) / n;
    h->mean_rows[c] += ((int64_t)rows * 1024 - h->mean_rows[c]) / n;   /* rows in 1/1024: the mean is no whole number */
}

int64_t cedar_step_history_ns(const cedar_step_history *h, uint32_t rows) {
    int64_t at = (int64_t)rows * 1024;
    int lo = -1, hi = -1;
    for (int i = 0; i < CEDAR_STEP_CLASSES; i++) {
        if (!h->steps[i]) continue;
        if (h->mean_rows[i] <= at) lo = i;
        else if (hi < 0) hi = i;
    }
    if (lo < 0 && hi < 0) return 0;
    if (lo < 0) return h->mean_ns[hi];                      /* fewer rows never take longer */
    if (hi < 0) return (int64_t)((__int128)h->mean_ns[lo] * at / h->mean_rows[lo]);
    __int128 rise = (__int128)(h->mean_ns[hi] - h->mean_ns[lo]) * (at - h->mean_rows[lo]);
    return h->mean_ns[lo] + (int64_t)(rise / (h->mean_rows[hi] - h->mean_rows[lo]));
}

int64_t cedar_floor_step_ns(int64_t floor_ppb) {
    CEDAR_ASSERT(floor_ppb > 0);
    __int128 ns = (__int128)1000000000 * 1000000000 / floor_ppb;
    return ns > INT64_MAX ? INT64_MAX : (int64_t)ns;
}

uint32_t cedar_floor_prefill_rows(const cedar_predictor *p, int64_t step_ns, uint32_t rows_max, uint32_t decode_rows,
                                  uint64_t context_sum) {
    uint32_t lo = 0, hi = rows_max;     /* lo rows are allowed, hi + 1 are not */
    while (lo < hi) {
        uint32_t mid = hi - (hi - lo) / 2;
        if (p->step_ns(p->self, mid, decode_rows, context_sum) <= step_ns) lo = mid;
        else hi = mid - 1;
    }
    return lo;
}
