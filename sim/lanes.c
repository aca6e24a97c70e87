/* Lanes: each plays one session tree at a time, as state machines over streams; the event queue holds the timers.
 *
 * A turn is due its recorded delay after the end of its predecessor. A subagent starts its recorded offset after the
 * end of its spawn turn, and the root's join turn also waits for it; with barriers a turn waits for turns of other
 * streams too. A lane takes the next trace once the whole tree has drained. sim/warmup.c decides where lanes start and
 * what is sent before the profiling phase.
 *
 * Timers are kept per stream. The queue holds one event per lane, that of its first timer: so idle time is taken out of
 * a tree by adding to its shift and putting that one event anew, and out of all trees by adding to the queue's
 * shift. */
#include "sim/lanes_int.h"

#include "base/mem.h"
#include "base/rng.h"

int64_t lanes_scaled(const cedar_lane_rules *rules, int64_t ns) {
    __int128 t = (__int128)ns * rules->time_scale_ppb / 1000000000;
    return t > rules->think_cap_ns ? rules->think_cap_ns : (int64_t)t;
}

const cedar_trace *lanes_trace(const cedar_lanes *l, const cedar_session *s) { return &l->corpus->traces[s->trace]; }

uint32_t cedar_lanes_turns(const cedar_lane_rules *rules, const cedar_trace *t, uint32_t stream) {
    uint32_t most = rules->turns_max;
    const cedar_stream *s = &t->streams[stream];
    uint32_t root = most && most < t->streams[0].turn_count ? most : t->streams[0].turn_count;
    if (stream > 0 && s->spawn_turn >= 0 && (uint32_t)s->spawn_turn >= root) return 0;
    return most && most < s->turn_count ? most : s->turn_count;
}

static uint32_t planned(const cedar_lane_rules *rules, const cedar_trace *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->stream_count; i++) n += cedar_lanes_turns(rules, t, i);
    return n;
}

uint64_t cedar_lanes_planned(const cedar_lanes *l) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < l->corpus->trace_count; i++) n += planned(&l->rules, &l->corpus->traces[i]);
    return l->rules.recycle ? n : n * l->rules.passes;
}

cedar_status cedar_lanes_new(const cedar_corpus *corpus, const cedar_lane_rules *rules, cedar_lanes **out,
                             cedar_err *err) {
    uint32_t streams_max = 1;
    for (uint32_t i = 0; i < corpus->trace_count; i++)
        if (corpus->traces[i].stream_count > streams_max) streams_max = corpus->traces[i].stream_count;
    cedar_lanes *l = cedar_calloc(1, sizeof *l);
    if (!l) goto oom;
    l->corpus = corpus;
    l->rules = *rules;
    l->warming = rules->warmup_requests || rules->start_hi > 0;
    l->lanes = cedar_calloc(rules->lanes, sizeof *l->lanes);
    l->states = cedar_calloc((size_t)rules->lanes * streams_max, sizeof *l->states);
    l->order = cedar_calloc(corpus->trace_count, sizeof *l->order);
    l->next = cedar_calloc(streams_max, sizeof *l->next);
    if (!l->lanes || !l->states || !l->order || !l->next) goto oom;
    for (uint32_t i = 0; i < rules->lanes; i++)
        l->lanes[i] = (cedar_session){ .lane = i, .quota = rules->warmup_requests, .head = UINT32_MAX,
                                       .streams = l->states + (size_t)i * streams_max };
    *out = l;
    return CEDAR_OK;
oom:
    cedar_lanes_free(l);
    return cedar_fail(err, CEDAR_E_OOM, "no memory for %u lanes of up to %u streams", rules->lanes, streams_max);
}

void cedar_lanes_free(cedar_lanes *l) {
    if (!l) return;
    cedar_free(l->lanes);
    cedar_free(l->states);
    cedar_free(l->order);
    cedar_free(l->next);
    cedar_free(l);
}

/* --- timers ------------------------------------------------------------------------------------------------------- */

static int64_t axis(const cedar_session *s, const cedar_events *q) { return s->shift_ns + q->shift_ns; }

/* Stream with the first timer, UINT32_MAX when there is none. */
static uint32_t first_timer(const cedar_lanes *l, const cedar_session *s) {
    uint32_t best = UINT32_MAX, n = lanes_trace(l, s)->stream_count;
    for (uint32_t i = 0; i < n; i++) {
        const cedar_stream_state *a = &s->streams[i];
        if (a->phase != CEDAR_STREAM_TIMER) continue;
        const cedar_stream_state *b = best == UINT32_MAX ? NULL : &s->streams[best];
        if (!b || a->ready_ns < b->ready_ns || (a->ready_ns == b->ready_ns && a->sequence < b->sequence)) best = i;
    }
    return best;
}

cedar_status lanes_arm(cedar_lanes *l, cedar_session *s, cedar_events *q, cedar_err *err) {
    uint32_t head = first_timer(l, s);
    uint64_t ticket = ++l->tickets;
    s->head = head;
    s->ticket = ticket;
    if (head == UINT32_MAX) return CEDAR_OK;
    const cedar_stream_state *st = &s->streams[head];
    return cedar_events_push(q, (cedar_event){ .time_ns = st->ready_ns - axis(s, q), .class_ = CEDAR_EVENT_TURN,
                                               .sequence = st->sequence, .lane = s->lane, .ticket = ticket }, err);
}

/* Subagents that the root's next turn waits for and that have not finished. */
static bool joins_open(const cedar_lanes *l, const cedar_session *s) {
    const cedar_trace *t = lanes_trace(l, s);
    for (uint32_t i = 1; i < t->stream_count; i++)
        if (t->streams[i].join_turn == (int32_t)s->streams[0].next_turn && cedar_lanes_turns(&l->rules, t, i) &&
            s->streams[i].phase != CEDAR_STREAM_DONE) return true;
    return false;
}

/* A turn of another stream that must complete before the stream's next one and has not. Turns that are not played
 * count as completed once all that is played of their stream is. */
static bool barriers_open(const cedar_lanes *l, const cedar_session *s, uint32_t stream) {
    const cedar_trace *t = lanes_trace(l, s);
    const cedar_turn *turn = &t->streams[stream].turns[s->streams[stream].next_turn];
    for (uint32_t i = 0; i < turn->barrier_count && l->rules.barriers; i++) {
        const cedar_barrier *b = &turn->barriers[i];
        if (cedar_lanes_turns(&l->rules, t, b->stream) == 0 || s->streams[b->stream].phase == CEDAR_STREAM_DONE)
            continue;
        if (s->streams[b->stream].next_turn <= b->turn) return true;
    }
    return false;
}

bool lanes_blocked(const cedar_lanes *l, const cedar_session *s, uint32_t stream) {
    return (stream == 0 && joins_open(l, s)) || barriers_open(l, s, stream);
}

static void set_timer(cedar_session *s, uint32_t stream, cedar_events *q) {
    s->streams[stream].phase = CEDAR_STREAM_TIMER;
    s->streams[stream].sequence = ++q->pushed;
}

void lanes_due(cedar_lanes *l, cedar_session *s, uint32_t stream, int64_t time_ns, cedar_events *q) {
    s->streams[stream].ready_ns = time_ns + axis(s, q);
    if (lanes_blocked(l, s, stream)) s->streams[stream].phase = CEDAR_STREAM_WAITING;
    else set_timer(s, stream, q);
}

void lanes_due_at_once(cedar_session *s, uint32_t stream, int64_t time_ns, cedar_events *q) {
    s->streams[stream].ready_ns = time_ns + axis(s, q);
    set_timer(s, stream, q);
}

/* Waiting streams whose wait is over. */
static void release_waiting(cedar_lanes *l, cedar_session *s, int64_t now, cedar_events *q) {
    uint32_t n = lanes_trace(l, s)->stream_count;
    for (uint32_t i = 0; i < n; i++) {
        cedar_stream_state *st = &s->streams[i];
        if (st->phase != CEDAR_STREAM_WAITING || lanes_blocked(l, s, i)) continue;
        if (st->ready_ns < now + axis(s, q)) st->ready_ns = now + axis(s, q);
        set_timer(s, i, q);
    }
}

/* Nothing of the tree is on its way and nothing will be, since all that is left waits for each other, which recordings
 * with contradicting times can ask for: the turn recorded first goes on. */
void lanes_force(cedar_lanes *l, cedar_session *s, int64_t now, cedar_events *q) {
    const cedar_trace *t = lanes_trace(l, s);
    uint32_t best = UINT32_MAX;
    if (s->in_flight) return;
    for (uint32_t i = 0; i < t->stream_count; i++) {
        const cedar_stream_state *st = &s->streams[i];
        if (st->phase == CEDAR_STREAM_TIMER || st->phase == CEDAR_STREAM_HELD) return;
        if (st->phase != CEDAR_STREAM_WAITING) continue;
        if (best == UINT32_MAX || t->streams[i].turns[st->next_turn].t_ns <
                                  t->streams[best].turns[s->streams[best].next_turn].t_ns) best = i;
    }
    if (best == UINT32_MAX) return;
    l->forced++;
    if (s->streams[best].ready_ns < now + axis(s, q)) s->streams[best].ready_ns = now + axis(s, q);
    set_timer(s, best, q);
}

/* --- taking a trace ----------------------------------------------------------------------------------------------- */

/* Order of the traces in one pass through the list: as loaded, or a shuffle of its own for each pass. */
static void order_make(cedar_lanes *l, uint64_t pass) {
    uint32_t n = l->corpus->trace_count;
    for (uint32_t i = 0; i < n; i++) l->order[i] = i;
    if (!l->rules.shuffle) return;
    uint64_t key = cedar_rng_key(l->rules.seed ^ cedar_mix64(pass), "lanes/order");
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)cedar_rng_below(key, i, i), t = l->order[j];
        l->order[j] = l->order[i - 1];
        l->order[i - 1] = t;
    }
}

bool lanes_pick(cedar_lanes *l, uint32_t *trace) {
    uint32_t n = l->corpus->trace_count;
    if (!l->rules.recycle && l->taken >= (uint64_t)n * l->rules.passes) return false;
    if (l->taken % n == 0) order_make(l, l->taken / n);
    *trace = l->order[l->taken++ % n];
    return true;
}

void lanes_open(cedar_lanes *l, cedar_session *s, uint32_t trace, int64_t now) {
    const cedar_trace *t = &l->corpus->traces[trace];
    uint32_t pass = s->session_id ? s->pass + 1 : 0;
    *s = (cedar_session){ .session_id = ++l->sessions, .lane = s->lane, .pass = pass, .trace = trace, .live = true,
                          .salt = l->rules.no_salt ? 0 : cedar_prompt_salt(t, l->rules.seed, s->lane, pass),
                          .planned = planned(&l->rules, t), .quota = s->quota, .t_star_ns = -1, .head = UINT32_MAX,
                          .start_sched_ns = now, .streams = s->streams };
    for (uint32_t i = 0; i < t->stream_count; i++) s->streams[i] = (cedar_stream_state){ .phase = CEDAR_STREAM_UNBORN };
}

/* The root, and streams that begin with the session, from their first turns on. */
static void begin(cedar_lanes *l, cedar_session *s, int64_t now, cedar_events *q) {
    const cedar_trace *t = lanes_trace(l, s);
    for (uint32_t i = 0; i < t->stream_count; i++) {
        if ((i > 0 && t->streams[i].spawn_turn >= 0) || !cedar_lanes_turns(&l->rules, t, i)) continue;
        if (l->warming && !s->quota) s->streams[i].phase = CEDAR_STREAM_HELD;
        else
            lanes_due(l, s, i, now + (i && !l->warming ? lanes_scaled(&l->rules, t->streams[i].spawn_offset_ns) : 0),
                      q);
    }
}

cedar_status cedar_lanes_take(cedar_lanes *l, const cedar_event *e, cedar_events *q, bool *started, cedar_err *err) {
    cedar_session *s = &l->lanes[e->lane];
    uint32_t trace;
    CEDAR_ASSERT(!s->live);
    *started = !l->closed && lanes_pick(l, &trace);
    if (!*started) return CEDAR_OK;
    lanes_open(l, s, trace, e->time_ns);
    begin(l, s, e->time_ns, q);
    lanes_force(l, s, e->time_ns, q);
    return lanes_arm(l, s, q, err);
}

cedar_status cedar_lanes_start(cedar_lanes *l, cedar_events *q, cedar_err *err) {
    if (l->warming) return lanes_warm_start(l, q, err);
    for (uint32_t i = 0; i < l->rules.lanes; i++) {
        cedar_status st = cedar_events_push(q, (cedar_event){ .class_ = CEDAR_EVENT_LANE, .lane = i }, err);
        if (st) return st;
    }
    return CEDAR_OK;
}

/* --- turns -------------------------------------------------------------------------------------------------------- */

static bool stale(const cedar_lanes *l, const cedar_event *e) {
    const cedar_session *s = &l->lanes[e->lane];
    return e->class_ == CEDAR_EVENT_TURN && (l->closed || e->ticket != s->ticket || !s->live || s->ending);
}

const cedar_event *cedar_lanes_next(cedar_lanes *l, cedar_events *q) {
    const cedar_event *e;
    while ((e = cedar_events_first(q)) && stale(l, e)) cedar_events_pop(q);
    return e;
}

cedar_status cedar_lanes_turn(cedar_lanes *l, const cedar_event *e, cedar_events *q, bool *send, cedar_turn_ref *out,
                              cedar_phase *phase, cedar_err *err) {
    cedar_session *s = &l->lanes[e->lane];
    *send = false;
    if (stale(l, e)) return CEDAR_OK;
    cedar_stream_state *st = &s->streams[s->head];
    CEDAR_ASSERT(st->phase == CEDAR_STREAM_TIMER);
    *out =
        (cedar_turn_ref){ .trace = s->trace, .stream = s->head, .turn = st->next_turn - st->priming, .salt = s->salt };
    *phase = st->priming ? CEDAR_PHASE_PRIMER : l->warming ? CEDAR_PHASE_WARMUP : CEDAR_PHASE_PROFILING;
    if (*phase == CEDAR_PHASE_WARMUP && !s->quota) {
        st->phase = CEDAR_STREAM_HELD;
    } else {
        *send = true;
        st->phase = CEDAR_STREAM_FLYING;
        s->in_flight++;
        s->quota -= *phase == CEDAR_PHASE_WARMUP;
    }
    return lanes_arm(l, s, q, err);
}

static void spawn_children(cedar_lanes *l, cedar_session *s, uint32_t turn, int64_t now, cedar_events *q) {
    const cedar_trace *t = lanes_trace(l, s);
    for (uint32_t i = 1; i < t->stream_count; i++) {
        if (t->streams[i].spawn_turn != (int32_t)turn || s->streams[i].phase != CEDAR_STREAM_UNBORN) continue;
        if (!cedar_lanes_turns(&l->rules, t, i)) s->streams[i].phase = CEDAR_STREAM_DONE;
        else lanes_due(l, s, i, now + (l->warming ? 0 : lanes_scaled(&l->rules, t->streams[i].spawn_offset_ns)), q);
    }
}

/* Sets the stream's next timer, or ends it. */
static void advance(cedar_lanes *l, cedar_session *s, uint32_t stream, int64_t now, cedar_events *q) {
    const cedar_trace *t = lanes_trace(l, s);
    cedar_stream_state *st = &s->streams[stream];
    if (stream == 0) spawn_children(l, s, st->next_turn, now, q);
    st->next_turn++;
    if (st->next_turn >= cedar_lanes_turns(&l->rules, t, stream)) {
        st->phase = CEDAR_STREAM_DONE;
        return;
    }
    int64_t delay = l->warming ? 0 : lanes_scaled(&l->rules, t->streams[stream].turns[st->next_turn].delay_ns);
    lanes_due(l, s, stream, now + delay, q);
}

static bool all_done(const cedar_lanes *l, const cedar_session *s) {
    const cedar_trace *t = lanes_trace(l, s);
    for (uint32_t i = 0; i < t->stream_count; i++)
        if (s->streams[i].phase != CEDAR_STREAM_DONE && cedar_lanes_turns(&l->rules, t, i)) return false;
    return true;
}

/* Idle time of a tree with nothing on its way, beyond the cap: all its timers come earlier. */
static void cap_tree_idle(cedar_lanes *l, cedar_session *s, int64_t now, const cedar_events *q) {
    uint32_t head = first_timer(l, s);
    if (l->warming || !l->rules.tree_cap_ns || s->in_flight || head == UINT32_MAX) return;
    int64_t over = s->streams[head].ready_ns - axis(s, q) - now - l->rules.tree_cap_ns;
    if (over > 0) s->shift_ns += over;
}

/* The turn is over and no other will follow it. */
static void stop_stream(const cedar_lanes *l, cedar_session *s, uint32_t stream) {
    cedar_stream_state *st = &s->streams[stream];
    st->next_turn++;
    bool more = st->next_turn < cedar_lanes_turns(&l->rules, lanes_trace(l, s), stream);
    st->phase = more ? CEDAR_STREAM_UNBORN : CEDAR_STREAM_DONE;
}

cedar_status cedar_lanes_ended(cedar_lanes *l, uint32_t lane, uint32_t stream, cedar_turn_end how, int64_t now_sched_ns,
                               cedar_events *q, bool *drained, cedar_err *err) {
    cedar_session *s = &l->lanes[lane];
    CEDAR_ASSERT(s->live && s->in_flight > 0 && s->streams[stream].phase == CEDAR_STREAM_FLYING);
    *drained = false;
    s->in_flight--;
    s->done++;
    bool primer = s->streams[stream].priming;
    s->streams[stream].priming = false;
    if (how == CEDAR_TURN_OVERFLOW) s->overflow = true;
    if (how == CEDAR_TURN_OVERFLOW || (how == CEDAR_TURN_FAILED && l->rules.end_on_error && !primer)) s->ending = true;
    if (primer && !s->ending && !l->closed) lanes_primed(l, s, stream, now_sched_ns, q);
    else if (s->ending || l->closed) stop_stream(l, s, stream);
    else advance(l, s, stream, now_sched_ns, q);
    bool done = all_done(l, s);
    if (!done && !s->ending && !l->closed) {
        release_waiting(l, s, now_sched_ns, q);
        lanes_force(l, s, now_sched_ns, q);
        cap_tree_idle(l, s, now_sched_ns, q);
        return lanes_arm(l, s, q, err);
    }
    if (s->in_flight) return CEDAR_OK;
    s->live = false;
    s->outcome = s->overflow ? "overflow" : s->ending ? "error" : done ? "finished" : "cut";
    s->end_sched_ns = now_sched_ns;
    *drained = true;
    return cedar_events_push(q, (cedar_event){ .time_ns = now_sched_ns, .class_ = CEDAR_EVENT_LANE, .lane = lane },
                             err);
}

void cedar_lanes_idle(const cedar_lanes *l, int64_t now_sched_ns, cedar_events *q) {
    const cedar_event *next = cedar_events_first(q);
    if (l->warming || !l->rules.global_cap_ns || !next) return;
    int64_t over = next->time_ns - now_sched_ns - l->rules.global_cap_ns;
    if (over > 0) q->shift_ns += over;
}

void cedar_lanes_close(cedar_lanes *l) { l->closed = true; }
