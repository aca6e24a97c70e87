/* The two time axes. Schedule time orders everything; meter time is what metrics use. They differ inside steps only:
 * a step has one length on each axis. Integer arithmetic throughout, so that equal inputs give equal times. */
#include "sim/sim_int.h"

void cedar_clock_idle(cedar_clocks *c, int64_t to_sched_ns) {
    CEDAR_ASSERT(to_sched_ns >= c->sched_ns);
    c->meter_ns += to_sched_ns - c->sched_ns;
    c->sched_ns = to_sched_ns;
}

void cedar_clock_step(cedar_clocks *c, int64_t sched_ns, int64_t meter_ns) {
    CEDAR_ASSERT(sched_ns >= 0 && meter_ns >= 0);
    c->last_sched_ns = c->sched_ns;
    c->last_meter_ns = c->meter_ns;
    c->step_sched_ns = sched_ns;
    c->step_meter_ns = meter_ns;
    c->sched_ns += sched_ns;
    c->meter_ns += meter_ns;
}

int64_t cedar_clock_meter(const cedar_clocks *c, int64_t sched_ns) {
    int64_t into = sched_ns - c->last_sched_ns;
    if (sched_ns >= c->sched_ns || into >= c->step_sched_ns) return c->meter_ns - (c->sched_ns - sched_ns);
    CEDAR_ASSERT(into >= 0);
    return c->last_meter_ns + (int64_t)((__int128)into * c->step_meter_ns / c->step_sched_ns);
}

int64_t cedar_clock_pace(int64_t step_us, int64_t row_us, uint32_t rows) { return (step_us + row_us * rows) * 1000; }
