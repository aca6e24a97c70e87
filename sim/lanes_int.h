/* Private to sim/lanes.c and sim/warmup.c: the moves of a session tree that both make. */
#ifndef CEDAR_SIM_LANES_INT_H
#define CEDAR_SIM_LANES_INT_H

#include "sim/sim_int.h"

const cedar_trace *lanes_trace(const cedar_lanes *l, const cedar_session *s);

/* A recorded span of time as replayed: scaled, and capped at the longest delay. */
int64_t lanes_scaled(const cedar_lane_rules *rules, int64_t ns);

/* Next trace of the list; false when it has come to its end. */
bool lanes_pick(cedar_lanes *l, uint32_t *trace);

/* The lane has a new tree; all its streams are unborn. */
void lanes_open(cedar_lanes *l, cedar_session *s, uint32_t trace, int64_t now);

/* The stream's next turn waits for turns of other streams. */
bool lanes_blocked(const cedar_lanes *l, const cedar_session *s, uint32_t stream);

/* The stream's next turn is due at a schedule time, once nothing it waits for is open. */
void lanes_due(cedar_lanes *l, cedar_session *s, uint32_t stream, int64_t time_ns, cedar_events *q);

/* The same for a turn that waits for nothing. */
void lanes_due_at_once(cedar_session *s, uint32_t stream, int64_t time_ns, cedar_events *q);

/* Starts the waiting turn recorded first when nothing else of the tree can ever start. */
void lanes_force(cedar_lanes *l, cedar_session *s, int64_t now, cedar_events *q);

/* Puts the event of the lane's first timer; to be called after timers or the shift have changed. */
cedar_status lanes_arm(cedar_lanes *l, cedar_session *s, cedar_events *q, cedar_err *err) CEDAR_USE_RESULT;

/* warmup.c */

/* Gives every lane its first trace and start and sets the timers of the primers. */
cedar_status lanes_warm_start(cedar_lanes *l, cedar_events *q, cedar_err *err) CEDAR_USE_RESULT;

/* A primer of the stream has ended. */
void lanes_primed(cedar_lanes *l, cedar_session *s, uint32_t stream, int64_t now, cedar_events *q);

#endif
