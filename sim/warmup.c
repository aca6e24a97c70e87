/* Before the profiling phase: where lanes enter their first sessions, the primers that bring the prefix cache to that
 * point, the warm-up requests, and the hand-over. The rules are in docs/METHOD.md "AgentX rules". */
#include "sim/lanes_int.h"
#include "sim/start.h"

/* Sets the streams of a fresh tree to what they are at the start drawn for the lane. */
static void enter(cedar_lanes *l, cedar_session *s, const cedar_start *start) {
    const cedar_trace *t = lanes_trace(l, s);
    uint32_t root = l->next[0];
    s->first_turn = root;
    s->t_star_ns = start->t_star_ns;
    s->planned = 0;
    for (uint32_t i = 0; i < t->stream_count; i++) {
        uint32_t turns = cedar_lanes_turns(&l->rules, t, i), next = l->next[i];
        bool born = i == 0 || next > 0 || t->streams[i].spawn_turn < (int32_t)root;
        bool over = next >= turns;
        s->streams[i] = (cedar_stream_state){ .next_turn = next, .priming = !over && next > 0 };
        s->streams[i].phase = over ? CEDAR_STREAM_DONE : born ? CEDAR_STREAM_HELD : CEDAR_STREAM_UNBORN;
        if (over) continue;
        s->primers += next > 0;
        s->planned += turns - next + (next > 0);
    }
}

/* True when the start leaves the lane something to do among the turns that are played. */
static bool leaves_work(const cedar_lanes *l, const cedar_trace *t) {
    for (uint32_t i = 0; i < t->stream_count; i++)
        if (l->next[i] < cedar_lanes_turns(&l->rules, t, i)) return true;
    return false;
}

/* First trace of a lane. attempts: traces that may still be looked at, all lanes together. */
static cedar_status take_first(cedar_lanes *l, cedar_session *s, uint64_t *attempts, cedar_err *err) {
    uint32_t trace;
    while (*attempts > 0 && lanes_pick(l, &trace)) {
        const cedar_trace *t = &l->corpus->traces[trace];
        cedar_start start;
        (*attempts)--;
        cedar_status st = cedar_start_draw(t, l->rules.seed, s->lane, l->rules.start_lo, l->rules.start_hi, l->next,
                                           &start, err);
        if (st) return st;
        if (leaves_work(l, t)) {
            lanes_open(l, s, trace, 0);
            enter(l, s, &start);
            return CEDAR_OK;
        }
        l->passed_over++;
    }
    return CEDAR_OK;
}

/* How long before its start the turn a stream is primed with was recorded, as replayed. */
static int64_t lead(const cedar_lanes *l, const cedar_session *s, uint32_t stream) {
    const cedar_start start = { .t_star_ns = s->t_star_ns };
    const cedar_turn *primed = &lanes_trace(l, s)->streams[stream].turns[s->streams[stream].next_turn - 1];
    int64_t cap = l->rules.tree_cap_ns ? l->rules.tree_cap_ns : INT64_MAX;
    int64_t ns = lanes_scaled(&l->rules, cedar_start_lead_ns(&start, primed, INT64_MAX));
    return ns < cap ? ns : cap;
}

static int64_t longest_lead(const cedar_lanes *l) {
    int64_t most = 0;
    for (uint32_t i = 0; i < l->rules.lanes && !l->rules.burst; i++) {
        const cedar_session *s = &l->lanes[i];
        uint32_t n = s->live ? lanes_trace(l, s)->stream_count : 0;
        for (uint32_t k = 0; k < n; k++) {
            int64_t one = s->streams[k].priming ? lead(l, s, k) : 0;
            if (one > most) most = one;
        }
    }
    return most;
}

/* The lane's primers have ended, or it has none: its warm-up requests begin. */
static void release_held(cedar_lanes *l, cedar_session *s, int64_t at, cedar_events *q) {
    uint32_t n = lanes_trace(l, s)->stream_count;
    for (uint32_t i = 0; i < n && s->quota; i++)
        if (s->streams[i].phase == CEDAR_STREAM_HELD) lanes_due(l, s, i, at, q);
    lanes_force(l, s, at, q);
}

cedar_status lanes_warm_start(cedar_lanes *l, cedar_events *q, cedar_err *err) {
    uint64_t attempts = l->rules.lanes + 2 * (uint64_t)l->corpus->trace_count;
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < l->rules.lanes && !st; i++) st = take_first(l, &l->lanes[i], &attempts, err);
    if (st) return st;
    if (!l->sessions)
        return cedar_fail(err, CEDAR_E_ARG, "none of %llu traces leaves a lane anything to do behind its start; choose "
                          "a smaller start_hi or a larger turns_max", (unsigned long long)l->taken);
    int64_t most = longest_lead(l);
    for (uint32_t i = 0; i < l->rules.lanes && !st; i++) {
        cedar_session *s = &l->lanes[i];
        if (!s->live) continue;
        for (uint32_t k = 0; k < lanes_trace(l, s)->stream_count; k++)
            if (s->streams[k].priming) lanes_due_at_once(s, k, l->rules.burst ? 0 : most - lead(l, s, k), q);
        if (!s->primers) release_held(l, s, most, q);
        st = lanes_arm(l, s, q, err);
    }
    return st;
}

void lanes_primed(cedar_lanes *l, cedar_session *s, uint32_t stream, int64_t now, cedar_events *q) {
    s->streams[stream].phase = CEDAR_STREAM_HELD;
    if (--s->primers == 0) release_held(l, s, now, q);
}

/* --- hand-over ---------------------------------------------------------------------------------------------------- */

static int64_t recorded_next(const cedar_lanes *l, const cedar_session *s, uint32_t stream) {
    return lanes_trace(l, s)->streams[stream].turns[s->streams[stream].next_turn].t_ns;
}

static void hand_over(cedar_lanes *l, cedar_session *s, int64_t now, cedar_events *q) {
    uint32_t n = lanes_trace(l, s)->stream_count;
    int64_t first = INT64_MAX;
    for (uint32_t i = 0; i < n; i++)
        if (s->streams[i].phase == CEDAR_STREAM_HELD && !lanes_blocked(l, s, i) && recorded_next(l, s, i) < first)
            first = recorded_next(l, s, i);
    for (uint32_t i = 0; i < n; i++) {
        cedar_stream_phase phase = s->streams[i].phase;
        if (phase != CEDAR_STREAM_HELD && phase != CEDAR_STREAM_WAITING) continue;
        int64_t after = first == INT64_MAX ? 0 : recorded_next(l, s, i) - first;
        lanes_due(l, s, i, now + (after > 0 ? lanes_scaled(&l->rules, after) : 0), q);
    }
    lanes_force(l, s, now, q);
}

cedar_status cedar_lanes_profile(cedar_lanes *l, int64_t now_sched_ns, cedar_events *q, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    CEDAR_ASSERT(l->warming);
    l->warming = false;
    for (uint32_t i = 0; i < l->rules.lanes && !st; i++) {
        cedar_session *s = &l->lanes[i];
        if (!s->live) continue;
        hand_over(l, s, now_sched_ns, q);
        st = lanes_arm(l, s, q, err);
    }
    return st;
}
