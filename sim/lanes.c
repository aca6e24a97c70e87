/* Lanes: each plays one session tree at a time, as state machines over streams; the event queue holds the timers.
 *
 * A turn is due its recorded delay after the end of its predecessor. A subagent starts its recorded offset after the
 * end of its spawn turn, and the root's join turn also waits for it. A lane takes the next trace once the whole tree
 * has drained. The start points, primers, warm-up, idle caps and barriers of the AgentX rules belong here too: they
 * decide when a timer is set and shift timers, and nothing outside this file needs to know. */
#include "base/mem.h"
#include "base/rng.h"
#include "sim/sim_int.h"

static int64_t scaled(const cedar_lane_rules *rules, int64_t ns) {
    __int128 t = (__int128)ns * rules->time_scale_ppb / 1000000000;
    return t > rules->think_cap_ns ? rules->think_cap_ns : (int64_t)t;
}

static const cedar_trace *trace_of(const cedar_lanes *l, const cedar_session *s) {
    return &l->corpus->traces[s->trace];
}

uint32_t cedar_lanes_turns(const cedar_lane_rules *rules, const cedar_trace *t, uint32_t stream) {
    uint32_t most = rules->turns_max;
    const cedar_stream *s = &t->streams[stream];
    uint32_t root = most && most < t->streams[0].turn_count ? most : t->streams[0].turn_count;
    if (stream > 0 && (s->spawn_turn < 0 || (uint32_t)s->spawn_turn >= root)) return 0;
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
    return n * l->rules.passes;
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
    l->lanes = cedar_calloc(rules->lanes, sizeof *l->lanes);
    l->states = cedar_calloc((size_t)rules->lanes * streams_max, sizeof *l->states);
    l->order = cedar_calloc(corpus->trace_count, sizeof *l->order);
    if (!l->lanes || !l->states || !l->order) goto oom;
    for (uint32_t i = 0; i < rules->lanes; i++) {
        l->lanes[i].lane = i;
        l->lanes[i].streams = l->states + (size_t)i * streams_max;
    }
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
    cedar_free(l);
}

cedar_status cedar_lanes_start(cedar_lanes *l, cedar_events *q, cedar_err *err) {
    for (uint32_t i = 0; i < l->rules.lanes; i++) {
        cedar_status st = cedar_events_push(q, (cedar_event){ .class_ = CEDAR_EVENT_LANE, .lane = i }, err);
        if (st) return st;
    }
    return CEDAR_OK;
}

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

static cedar_status set_timer(cedar_session *s, uint32_t stream, int64_t time_ns, cedar_events *q, cedar_err *err) {
    cedar_event e = { .time_ns = time_ns, .class_ = CEDAR_EVENT_TURN, .lane = s->lane, .stream = stream,
                      .session_id = s->session_id };
    cedar_status st = cedar_events_push(q, e, err);
    if (st == CEDAR_OK) s->streams[stream].phase = CEDAR_STREAM_TIMER;
    return st;
}

cedar_status cedar_lanes_take(cedar_lanes *l, const cedar_event *e, cedar_events *q, bool *started, cedar_err *err) {
    cedar_session *s = &l->lanes[e->lane];
    CEDAR_ASSERT(!s->live);
    uint32_t n = l->corpus->trace_count;
    *started = false;
    if (l->closed || l->taken >= (uint64_t)n * l->rules.passes) return CEDAR_OK;
    if (l->taken % n == 0) order_make(l, l->taken / n);
    uint32_t trace = l->order[l->taken % n], pass = s->session_id ? s->pass + 1 : 0;
    const cedar_trace *t = &l->corpus->traces[trace];
    cedar_stream_state *streams = s->streams;
    *s = (cedar_session){ .session_id = l->sessions + 1, .lane = e->lane, .pass = pass, .trace = trace, .live = true,
                          .salt = cedar_prompt_salt(t, l->rules.seed, e->lane, pass),
                          .planned = planned(&l->rules, t), .start_sched_ns = e->time_ns, .streams = streams };
    for (uint32_t i = 0; i < t->stream_count; i++) streams[i] = (cedar_stream_state){ .phase = CEDAR_STREAM_UNBORN };
    l->sessions++;
    l->taken++;
    *started = true;
    return set_timer(s, 0, e->time_ns, q, err);
}

bool cedar_lanes_turn(cedar_lanes *l, const cedar_event *e, cedar_turn_ref *out) {
    cedar_session *s = &l->lanes[e->lane];
    if (l->closed || s->session_id != e->session_id || !s->live || s->overflow) return false;
    cedar_stream_state *st = &s->streams[e->stream];
    CEDAR_ASSERT(st->phase == CEDAR_STREAM_TIMER);
    st->phase = CEDAR_STREAM_FLYING;
    s->in_flight++;
    *out = (cedar_turn_ref){ .trace = s->trace, .stream = e->stream, .turn = st->next_turn, .salt = s->salt };
    return true;
}

/* Subagents that the root's next turn waits for and that have not finished. */
static bool joins_open(const cedar_lanes *l, const cedar_session *s) {
    const cedar_trace *t = trace_of(l, s);
    for (uint32_t i = 1; i < t->stream_count; i++)
        if (t->streams[i].join_turn == (int32_t)s->streams[0].next_turn && cedar_lanes_turns(&l->rules, t, i) &&
            s->streams[i].phase != CEDAR_STREAM_DONE) return true;
    return false;
}

static cedar_status spawn_children(cedar_lanes *l, cedar_session *s, uint32_t turn, int64_t now, cedar_events *q,
                                   cedar_err *err) {
    const cedar_trace *t = trace_of(l, s);
    for (uint32_t i = 1; i < t->stream_count; i++) {
        if (t->streams[i].spawn_turn != (int32_t)turn) continue;
        cedar_status st = CEDAR_OK;
        if (cedar_lanes_turns(&l->rules, t, i))
            st = set_timer(s, i, now + scaled(&l->rules, t->streams[i].spawn_offset_ns), q, err);
        else s->streams[i].phase = CEDAR_STREAM_DONE;
        if (st) return st;
    }
    return CEDAR_OK;
}

/* Sets the stream's next timer, or ends it. */
static cedar_status advance(cedar_lanes *l, cedar_session *s, uint32_t stream, int64_t now, cedar_events *q,
                            cedar_err *err) {
    const cedar_trace *t = trace_of(l, s);
    cedar_stream_state *st = &s->streams[stream];
    if (stream == 0) {
        cedar_status status = spawn_children(l, s, st->next_turn, now, q, err);
        if (status) return status;
    }
    st->next_turn++;
    if (st->next_turn >= cedar_lanes_turns(&l->rules, t, stream)) {
        st->phase = CEDAR_STREAM_DONE;
        return CEDAR_OK;
    }
    st->ready_ns = now + scaled(&l->rules, t->streams[stream].turns[st->next_turn].delay_ns);
    if (stream == 0 && joins_open(l, s)) {
        st->phase = CEDAR_STREAM_JOINING;
        return CEDAR_OK;
    }
    return set_timer(s, stream, st->ready_ns, q, err);
}

/* A subagent has finished: the root may have waited for it. */
static cedar_status join(cedar_lanes *l, cedar_session *s, int64_t now, cedar_events *q, cedar_err *err) {
    cedar_stream_state *root = &s->streams[0];
    if (root->phase != CEDAR_STREAM_JOINING || joins_open(l, s)) return CEDAR_OK;
    return set_timer(s, 0, root->ready_ns > now ? root->ready_ns : now, q, err);
}

static bool all_done(const cedar_lanes *l, const cedar_session *s) {
    const cedar_trace *t = trace_of(l, s);
    for (uint32_t i = 0; i < t->stream_count; i++)
        if (s->streams[i].phase != CEDAR_STREAM_DONE && cedar_lanes_turns(&l->rules, t, i)) return false;
    return true;
}

cedar_status cedar_lanes_ended(cedar_lanes *l, uint32_t lane, uint32_t stream, cedar_turn_end how, int64_t now_sched_ns,
                               cedar_events *q, bool *drained, cedar_err *err) {
    cedar_session *s = &l->lanes[lane];
    CEDAR_ASSERT(s->live && s->in_flight > 0 && s->streams[stream].phase == CEDAR_STREAM_FLYING);
    *drained = false;
    s->in_flight--;
    s->done++;
    if (how == CEDAR_TURN_OVERFLOW) s->overflow = true;
    cedar_status st = CEDAR_OK;
    if (s->overflow || l->closed) {
        s->streams[stream].next_turn++;
        bool more = s->streams[stream].next_turn < cedar_lanes_turns(&l->rules, trace_of(l, s), stream);
        s->streams[stream].phase = more ? CEDAR_STREAM_UNBORN : CEDAR_STREAM_DONE;
    } else {
        st = advance(l, s, stream, now_sched_ns, q, err);
        if (!st && stream > 0 && s->streams[stream].phase == CEDAR_STREAM_DONE) st = join(l, s, now_sched_ns, q, err);
    }
    if (st) return st;
    bool done = all_done(l, s);
    if (s->in_flight || (!done && !s->overflow && !l->closed)) return CEDAR_OK;
    s->live = false;
    s->outcome = s->overflow ? "overflow" : done ? "finished" : "cut";
    s->end_sched_ns = now_sched_ns;
    *drained = true;
    return cedar_events_push(q, (cedar_event){ .time_ns = now_sched_ns, .class_ = CEDAR_EVENT_LANE, .lane = lane },
                             err);
}

void cedar_lanes_close(cedar_lanes *l) { l->closed = true; }
