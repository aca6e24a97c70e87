/* A run: lanes against an engine. The event loop, and what becomes of a request between arrival and last token.
 *
 * Everything is decided from schedule time and earlier results; the host's clock is read only to report how long
 * planning and the whole run took. Between the engine's steps memory may be allocated, inside them not (the engine sees
 * to it). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "sim/run_int.h"
#include "sim/validity.h"

/* What is folded into the event hash, first word of each event. */
typedef enum mark {
    MARK_ARRIVAL = 1, MARK_ADMIT, MARK_STEP, MARK_ENTRY, MARK_TOKEN, MARK_END, MARK_SESSION, MARK_PHASE
} mark;

typedef cedar_run_state run;
typedef cedar_request request;

static int64_t host_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void note(run *r, mark what, uint64_t a, uint64_t b, uint64_t c) {
    const uint64_t words[] = { what, a, b, c };
    for (int i = 0; i < 4; i++) r->hash = cedar_fold64(r->hash, words[i]);
}

static bool stores_windows(const run *r) { return r->cache && !r->rules.encoder; }

/* --- reporting the beginning -------------------------------------------------------------------------------------- */

static cedar_status emit_begin(run *r, cedar_err *err) {
    static const char *const replays[] = { "exact", "decoder", "encoder", "both" };
    static const char *const ariths[] = { "wide", "f32", "bf16" }, *const clocks[] = { "measured", "recorded",
                                                                                       "modelled" };
    char *json = NULL, hash[CEDAR_SHA256_HEX];
    cedar_status st = cedar_opts_json(r->opts, &json, err);
    if (st) return st;
    cedar_sha256 s;
    cedar_sha256_init(&s);
    cedar_sha256_add(&s, json, strlen(json));
    cedar_sha256_hex(&s, hash);
    snprintf(r->result.replay, sizeof r->result.replay, "%s", replays[r->opts->replay]);
    snprintf(r->result.label, sizeof r->result.label, "%s", *r->opts->label ? r->opts->label : r->result.replay);
    cedar_run_row row = { .run_id = r->run_id,
                          .label = r->result.label,
                          .config_json = json,
                          .config_hash = hash,
                          .model_name = r->config->name,
                          .model_hash = r->model_hash,
                          .model_origin = r->origin,
                          .trace_paths = r->opts->trace,
                          .trace_hash = r->corpus->hash,
                          .backend = cedar_engine_options(r->engine)->backend,
                          .arith = ariths[r->opts->arith],
                          .clock = clocks[r->opts->clock],
                          .replay = r->result.replay,
                          .rules = cedar_opts_get(r->opts, "rules"),
                          .admission = r->opts->admission,
                          .floor_mode = cedar_opts_get(r->opts, "floor_mode"),
                          .floor_milli_tok_s_user = (uint64_t)r->opts->floor_ppb / 1000000,
                          .floor_percentile = (uint32_t)r->opts->floor_percentile,
                          .seed = (uint64_t)r->opts->seed,
                          .lanes = (uint32_t)r->opts->lanes,
                          .vocab = (uint32_t)r->config->vocab,
                          .window = (uint32_t)r->config->window,
                          .page_tokens = r->engine_opts.page_tokens,
                          .kv_token_bytes_x1000 = r->memory.kv_token_bytes_x1000,
                          .window_snap_bytes = r->memory.window_bytes + r->memory.draft_ring_bytes,
                          .plan_total_bytes = r->memory.total_bytes };
    st = r->obs->run_begin(r->obs->self, &row, err);
    cedar_free(json);
    return st;
}

/* --- sessions ----------------------------------------------------------------------------------------------------- */

static cedar_status emit_session(run *r, const cedar_session *s, cedar_err *err) {
    const cedar_trace *t = &r->corpus->traces[s->trace];
    cedar_session_row row = { .run_id = r->run_id,
                              .session_id = s->session_id,
                              .lane = (int32_t)s->lane,
                              .pass = (int32_t)s->pass,
                              .trace_id = t->id,
                              .streams = t->stream_count,
                              .requests_planned = s->planned,
                              .requests_done = s->done,
                              .start_sched_ns = s->start_sched_ns,
                              .end_sched_ns = s->end_sched_ns,
                              .start_ns = s->start_ns,
                              .first_turn = s->first_turn,
                              .t_star_ns = s->t_star_ns,
                              .idle_cut_ns = s->shift_ns,
                              .end_ns = cedar_clock_meter(&r->clock, s->end_sched_ns),
                              .outcome = s->outcome };
    note(r, MARK_SESSION, (uint64_t)s->session_id, s->done, (uint64_t)s->end_sched_ns);
    r->sessions_ended++;
    r->sessions_unfinished += strcmp(s->outcome, "cut") == 0;
    if (r->quality) cedar_quality_forget(r->quality, s->session_id);
    return r->obs->session(r->obs->self, &row, err);
}

/* The run is over: trees that still live were cut. */
static cedar_status emit_cut_sessions(run *r, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < r->lane_rules.lanes && !st; i++) {
        cedar_session *s = &r->lanes->lanes[i];
        if (!s->live) continue;
        s->live = false;
        s->outcome = s->overflow ? "overflow" : "cut";
        s->end_sched_ns = r->clock.sched_ns;
        st = emit_session(r, s, err);
    }
    return st;
}

/* --- the end of a request ----------------------------------------------------------------------------------------- */

static cedar_status count_request(run *r, const request *q, cedar_err *err) {
    const cedar_request_row *w = &q->row;
    cedar_run_result *s = &r->result;
    s->requests++;
    if (q->phase != CEDAR_PHASE_PROFILING) {
        s->warmup_requests++;
        return CEDAR_OK;
    }
    r->failed += *w->error != 0;
    r->completed += *w->error == 0;
    if (*w->error) {
        s->errors++;
        return CEDAR_OK;
    }
    if (w->last_sched_ns > r->last_sample_sched_ns) r->last_sample_sched_ns = w->last_sched_ns;
    s->in_tokens += w->in_tokens;
    s->out_tokens += w->out_tokens;
    s->hit_tokens += w->hit_tokens;
    s->replayed_tokens += w->replayed_tokens;
    s->trimmed_tokens += w->trimmed_tokens;
    if (r->first_arrival_ns < 0 || w->arrival_ns < r->first_arrival_ns) r->first_arrival_ns = w->arrival_ns;
    if (w->last_ns > r->last_token_ns) r->last_token_ns = w->last_ns;
    cedar_status st = CEDAR_OK;
    if (w->first_ns > w->arrival_ns) st = cedar_samples_add(&r->ttft, (double)(w->first_ns - w->arrival_ns), err);
    if (!st && w->out_tokens > 1 && w->last_ns > w->first_ns)
        st = cedar_samples_add(&r->itl, (double)(w->last_ns - w->first_ns) / (w->out_tokens - 1), err);
    return st;
}

static cedar_status emit_request(run *r, const request *q, cedar_err *err) {
    note(r, MARK_END, (uint64_t)q->row.request_id, q->produced, (uint64_t)r->clock.sched_ns);
    cedar_status st = r->obs->request(r->obs->self, &q->row, err);
    return st ? st : count_request(r, q, err);
}

/* The share of failed requests that ends a run. A single early failure says nothing, so the first ten are waited for.
 * */
static void give_up_if_hopeless(run *r) {
    uint64_t all = r->completed + r->failed;
    if (r->opts->errors_max_ppb >= 1000000000 || all < 10 || r->lanes->closed) return;
    if ((unsigned __int128)r->failed * 1000000000 <=
        (unsigned __int128)r->completed * (uint64_t)r->opts->errors_max_ppb)
        return;
    r->gave_up = true;
    cedar_lanes_close(r->lanes);
}

/* A request has ended at schedule time `now`; its lane goes on. */
static cedar_status end_turn(run *r, const request *q, cedar_turn_end how, int64_t now, cedar_err *err) {
    bool drained;
    if (how != CEDAR_TURN_DONE && q->phase == CEDAR_PHASE_PRIMER && q->stream == 0)
        return cedar_fail(err, CEDAR_E_ARG,
                          "lane %u cannot start in the middle of trace %.64s: its primer, turn %d of %u "
                          "prompt tokens, failed: %.200s",
                          q->lane, q->row.trace_id, q->row.turn, q->row.in_tokens, q->row.error);
    if (how == CEDAR_TURN_OVERFLOW && q->phase == CEDAR_PHASE_PROFILING) r->overflows++;
    give_up_if_hopeless(r);
    cedar_status st = cedar_lanes_ended(r->lanes, q->lane, q->stream, how, now, &r->events, &drained, err);
    return st || !drained ? st : emit_session(r, &r->lanes->lanes[q->lane], err);
}

/* A request that never ran: it ends at schedule time `now`. */
static cedar_status reject(run *r, request *q, cedar_turn_end how, const char *why, int64_t now, cedar_err *err) {
    q->row.error = why;
    cedar_status st = emit_request(r, q, err);
    return st ? st : end_turn(r, q, how, now, err);
}

/* Whole pages of prompt and answer go to the prefix cache; the sequence is given back. */
static void keep_pages(run *r, request *q) {
    if (!r->cache) return;
    uint32_t count, pos = cedar_seq_pos(r->engine, q->seq);
    const int32_t *pages = cedar_seq_pages(r->engine, q->seq, &count);
    cedar_snap *snap = q->snap;
    q->snap = NULL;
    cedar_cache_insert(r->cache, q->tokens, pages, pos / r->engine_opts.page_tokens, q->depth, snap,
                       snap ? cedar_snap_pos(snap) : 0);
}

static cedar_status finish(run *r, uint32_t index, cedar_err *err) {
    request *q = r->running[index];
    memmove(r->running + index, r->running + index + 1, (r->running_count - index - 1) * sizeof *r->running);
    r->running_count--;
    r->blocked = false;
    q->row.last_sched_ns = r->clock.sched_ns;
    q->row.last_ns = r->clock.meter_ns;
    keep_pages(r, q);
    cedar_status st = emit_request(r, q, err);
    if (!st) st = end_turn(r, q, CEDAR_TURN_DONE, r->clock.sched_ns, err);
    cedar_request_free(r, q);
    return st;
}

/* --- arrival ------------------------------------------------------------------------------------------------------ */

static cedar_status request_new(run *r, const cedar_turn_ref *ref, cedar_phase phase, const cedar_event *e,
                                request **out, cedar_err *err) {
    static const char *const phases[] = { "profiling", "primer", "warmup" };
    const cedar_trace *t = &r->corpus->traces[ref->trace];
    const cedar_turn *turn = &t->streams[ref->stream].turns[ref->turn];
    request *q = cedar_calloc(1, sizeof *q);
    if (!q) return cedar_fail(err, CEDAR_E_OOM, "no memory for a request");
    q->phase = phase;
    q->lane = e->lane;
    q->stream = ref->stream;
    q->seq = q->node = -1;
    q->row = (cedar_request_row){
        .run_id = r->run_id,
        .request_id = ++r->requests,
        .session_id = r->lanes->lanes[e->lane].session_id,
        .lane = (int32_t)e->lane,
        .stream = (int32_t)ref->stream,
        .turn = (int32_t)ref->turn,
        .trace_id = t->id,
        .phase = phases[phase],
        .in_recorded = turn->in_recorded,
        .out_recorded = turn->out_tokens,
        .in_tokens = cedar_prompt_scale(&r->prompt_rules, turn->in_tokens),
        .out_tokens = phase == CEDAR_PHASE_PROFILING ? cedar_prompt_scale(&r->prompt_rules, turn->out_tokens) : 1,
        .blocks_total = turn->block_count,
        .blocks_hit_theory = cedar_prompt_theory(r->prompts, ref->trace, ref->stream, ref->turn),
        .arrival_sched_ns = e->time_ns,
        .arrival_ns = cedar_clock_meter(&r->clock, e->time_ns),
        .admit_sched_ns = -1,
        .admit_ns = -1,
        .first_sched_ns = -1,
        .first_ns = -1,
        .last_sched_ns = -1,
        .last_ns = -1,
        .error = ""
    };
    q->scored =
        r->opts->quality && phase == CEDAR_PHASE_PROFILING && (q->row.request_id - 1) % r->opts->quality_every == 0;
    note(r, MARK_ARRIVAL, (uint64_t)q->row.request_id,
         (uint64_t)phase << 62 | (uint64_t)ref->stream << 32 | ref->turn, (uint64_t)e->time_ns);
    r->primers += phase == CEDAR_PHASE_PRIMER;
    r->warmups += phase == CEDAR_PHASE_WARMUP;
    r->profiled += phase == CEDAR_PHASE_PROFILING;
    *out = q;
    return CEDAR_OK;
}

static cedar_status wait_in_line(run *r, request *q, cedar_err *err) {
    if (r->waiting_count == r->waiting_capacity) {
        size_t capacity = r->waiting_capacity ? 2 * r->waiting_capacity : 64;
        request **grown = cedar_realloc(r->waiting, capacity, sizeof *grown);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu waiting requests", capacity);
        r->waiting = grown;
        r->waiting_capacity = capacity;
    }
    r->waiting[r->waiting_count++] = q;
    return CEDAR_OK;
}

static cedar_status arrive(run *r, const cedar_turn_ref *ref, cedar_phase phase, const cedar_event *e,
                           cedar_err *err) {
    request *q = NULL;
    cedar_status st = request_new(r, ref, phase, e, &q, err);
    if (st) return st;
    char why[192];
    uint64_t total = (uint64_t)q->row.in_tokens + q->row.out_tokens, page = r->engine_opts.page_tokens;
    if (total > r->context_max) {
        snprintf(why, sizeof why, "context overflow: %u prompt and %u answer tokens exceed the context of %u",
                 q->row.in_tokens, q->row.out_tokens, r->context_max);
        st = reject(r, q, CEDAR_TURN_OVERFLOW, why, q->row.arrival_sched_ns, err);
        goto drop;
    }
    if ((total + page - 1) / page > r->engine_opts.page_count) {
        snprintf(why, sizeof why, "never fits: %" PRIu64 " tokens need %" PRIu64 " KV pages, the pool has %u", total,
                 (total + page - 1) / page, r->engine_opts.page_count);
        st = reject(r, q, CEDAR_TURN_FAILED, why, q->row.arrival_sched_ns, err);
        goto drop;
    }
    q->tokens = cedar_calloc(total, sizeof *q->tokens);
    if (!q->tokens) {
        st = cedar_fail(err, CEDAR_E_OOM, "no memory for the %" PRIu64 " tokens of a request", total);
        goto drop;
    }
    bool forced = r->opts->continuation == CEDAR_CONTINUATION_FORCED;
    cedar_prompt_fill(r->prompts, ref, 0, forced ? (uint32_t)total : q->row.in_tokens, q->tokens);
    st = wait_in_line(r, q, err);
    if (!st) return CEDAR_OK;
drop:
    cedar_request_free(r, q);
    return st;
}

/* No request starts any more: the phase is over, or enough were sent. */
static bool is_over(const run *r, int64_t time_ns) {
    const cedar_run_opts *o = r->opts;
    if (r->profile_sched_ns < 0) return false;
    return (o->duration_ns && time_ns - r->profile_sched_ns >= o->duration_ns) ||
           (o->requests_max && r->profiled >= (uint64_t)o->requests_max);
}

static cedar_status handle(run *r, const cedar_event *e, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    if (is_over(r, e->time_ns)) {
        cedar_lanes_close(r->lanes);
        cedar_events_clear(&r->events);
        return CEDAR_OK;
    }
    if (e->class_ == CEDAR_EVENT_LANE) {
        bool started;
        st = cedar_lanes_take(r->lanes, e, &r->events, &started, err);
        if (!st && started) r->lanes->lanes[e->lane].start_ns = cedar_clock_meter(&r->clock, e->time_ns);
        return st;
    }
    cedar_turn_ref ref;
    cedar_phase phase;
    bool send;
    st = cedar_lanes_turn(r->lanes, e, &r->events, &send, &ref, &phase, err);
    return st || !send ? st : arrive(r, &ref, phase, e, err);
}

/* Handles what is due up to a schedule time. */
static cedar_status handle_until(run *r, int64_t time_ns, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    while (!st) {
        const cedar_event *next = cedar_lanes_next(r->lanes, &r->events);
        if (!next || next->time_ns > time_ns) break;
        cedar_event e = cedar_events_pop(&r->events);
        st = handle(r, &e, err);
    }
    return st;
}

/* --- admission ---------------------------------------------------------------------------------------------------- */

/* What the cache holds of the prompt, and what the arm's rules make of it. */
static cedar_hit_plan find_hit(run *r, request *q, cedar_cache_hit *hit) {
    *hit = (cedar_cache_hit){ .node = -1, .miss = CEDAR_MISS_OFF };
    if (!r->cache) return (cedar_hit_plan){ 0, 0, 0, 0 };
    cedar_cache_find(r->cache, q->tokens, q->row.in_tokens, hit);
    uint32_t n = hit->hit_tokens;
    if (!r->rules.encoder) return (cedar_hit_plan){ .hit = n, .start = n, .replayed = 0, .write_floor = n };
    cedar_hit_plan plan = n ? cedar_plan_hit(&r->rules, n) : (cedar_hit_plan){ 0, 0, 0, 0 };
    if (n && !plan.hit) {
        hit->node = -1;
        hit->depth = 0;
        hit->miss = CEDAR_MISS_SHORT_HIT;
    }
    return plan;
}

/* Frees cached pages until `need` are there; false when pinned ones are in the way. */
static cedar_status make_room(run *r, uint32_t need, bool *there, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    bool evicted = true;
    while (!st && cedar_pages_free(r->engine) < need && r->cache && evicted)
        st = cedar_cache_evict(r->cache, &evicted, err);
    *there = cedar_pages_free(r->engine) >= need;
    return st;
}

static cedar_status take_sequence(run *r, request *q, const cedar_cache_hit *hit, const cedar_hit_plan *plan,
                                  uint32_t fed, cedar_err *err) {
    cedar_status st = cedar_seq_open(r->engine, &q->seq, err);
    if (st) {
        q->seq = -1;
        return st;
    }
    if (plan->hit) cedar_cache_pages(r->cache, hit->node, r->pages);
    if (plan->hit && r->rules.encoder) st = cedar_seq_adopt(r->engine, q->seq, q->tokens, r->pages, plan, err);
    else if (plan->hit) st = cedar_seq_restore(r->engine, q->seq, q->tokens, r->pages, plan->hit, hit->snap, err);
    return st ? st : cedar_seq_reserve(r->engine, q->seq, fed, err);
}

/* Takes a sequence and all pages of prompt and answer, so that a running request never waits for memory. */
static cedar_status admit(run *r, request *q, bool *admitted, cedar_err *err) {
    uint32_t page = r->engine_opts.page_tokens, fed = q->row.in_tokens + q->row.out_tokens - 1;
    cedar_cache_hit hit;
    cedar_hit_plan plan = find_hit(r, q, &hit);
    if (hit.node >= 0) cedar_cache_pin(r->cache, hit.node);
    q->node = hit.node;
    cedar_status st = make_room(r, (fed + page - 1) / page - plan.hit / page, admitted, err);
    if (!st && *admitted) st = take_sequence(r, q, &hit, &plan, fed, err);
    if (st || !*admitted) {
        if (q->node >= 0) cedar_cache_unpin(r->cache, q->node);
        q->node = -1;
        return st;
    }
    uint32_t boundary = q->row.in_tokens / page * page;
    q->boundary = stores_windows(r) && boundary > plan.start ? boundary : 0;
    q->depth = hit.depth + (plan.replayed > 0);
    q->row.hit_tokens = plan.hit;
    q->row.matched_tokens = hit.matched_tokens;
    q->row.provenance_depth = hit.depth;
    q->row.miss = hit.miss;
    q->row.admit_sched_ns = r->clock.sched_ns;
    q->row.admit_ns = r->clock.meter_ns;
    note(r, MARK_ADMIT, (uint64_t)q->row.request_id, (uint64_t)plan.hit << 32 | plan.start,
         (uint64_t)r->clock.sched_ns);
    return CEDAR_OK;
}

/* Decode rows of the next step, and the positions they attend to. */
static uint32_t decode_load(const run *r, uint64_t *context_sum) {
    uint32_t rows = 0;
    *context_sum = 0;
    for (uint32_t i = 0; i < r->running_count; i++) {
        const request *q = r->running[i];
        if (!q->produced) continue;
        rows++;
        *context_sum += q->row.in_tokens + q->produced;
    }
    return rows;
}

/* One more request, once it decodes, must not make the others miss the floor. */
static bool floor_admits(const run *r, const request *q) {
    if (!r->predictor.step_ns || !r->running_count) return true;
    uint64_t context = q->row.in_tokens;
    for (uint32_t i = 0; i < r->running_count; i++) context += r->running[i]->row.in_tokens + r->running[i]->produced;
    return r->predictor.step_ns(r->predictor.self, 0, r->running_count + 1, context) <= r->floor_step_ns;
}

static cedar_status policy_admits(const run *r, const request *q, size_t waiting, bool *yes, cedar_err *err) {
    const cedar_policy *p = r->opts->policy;
    uint64_t context;
    *yes = true;
    if (!p || !r->running_count) return CEDAR_OK;
    cedar_policy_request ask = { .request_id = q->row.request_id,
                                 .lane = q->lane,
                                 .stream = q->stream,
                                 .turn = (uint32_t)q->row.turn,
                                 .in_tokens = q->row.in_tokens,
                                 .out_tokens = q->row.out_tokens,
                                 .waited_ns = r->clock.sched_ns - q->row.arrival_sched_ns,
                                 .warmup = q->phase != CEDAR_PHASE_PROFILING };
    cedar_policy_state now = { .now_ns = r->clock.sched_ns, .waiting = (uint32_t)waiting, .running = r->running_count,
                               .decoding = decode_load(r, &context), .pages_free = cedar_pages_free(r->engine),
                               .pages_total = r->engine_opts.page_count };
    return p->admit(p->self, &ask, &now, yes, err);
}

/* Failures that concern one request and not the engine. */
static bool is_request_failure(cedar_status st) {
    return st == CEDAR_E_BUSY || st == CEDAR_E_ARG || st == CEDAR_E_UNSUPPORTED || st == CEDAR_E_BUDGET;
}

/* The engine refused the request: an error row, and its lane goes on. */
static cedar_status refused(run *r, request *q, const cedar_err *reason, cedar_err *err) {
    char why[256];
    snprintf(why, sizeof why, "engine: %.200s", reason->msg);
    cedar_status st = reject(r, q, CEDAR_TURN_FAILED, why, r->clock.sched_ns, err);
    cedar_request_free(r, q);
    return st;
}

static cedar_status admit_waiting(run *r, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    size_t taken = 0;
    while (!st && !r->blocked && taken < r->waiting_count && r->running_count < r->engine_opts.seq_count) {
        request *q = r->waiting[taken];
        bool admitted = floor_admits(r, q);
        if (admitted) st = policy_admits(r, q, r->waiting_count - taken, &admitted, err);
        if (st || !admitted) break;
        cedar_err why = { 0 };
        st = admit(r, q, &admitted, &why);
        if (is_request_failure(st)) {
            taken++;
            st = refused(r, q, &why, err);
        } else if (st) {
            if (err) *err = why;
        } else if (admitted) {
            r->running[r->running_count++] = q;
            taken++;
        } else {
            r->blocked = true;
        }
    }
    if (taken) memmove(r->waiting, r->waiting + taken, (r->waiting_count - taken) * sizeof *r->waiting);
    r->waiting_count -= taken;
    return st;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Rows of an entry whose logits are wanted: the one that makes the next token, and with prompt_scores all new ones. */
static uint32_t wanted_logits(const run *r, const request *q, const cedar_sched_slice *s, uint32_t pos,
                              uint32_t floor) {
    if (r->opts->prompt_scores && q->scored && !s->decode) {
        uint32_t first = pos > floor ? pos : floor;
        return pos + s->rows > first ? pos + s->rows - first : 0;
    }
    return s->decode || pos + s->rows == q->row.in_tokens;
}

/* Plans the next step; entry_count 0 when nothing runs. *scored: some row of it is compared with the shadow. */
static void make_plan(run *r, cedar_step_plan *plan, bool *scored) {
    for (uint32_t i = 0; i < r->running_count; i++) {
        const request *q = r->running[i];
        r->items[i] = (cedar_sched_item){ .pos = cedar_seq_pos(r->engine, q->seq), .prompt_tokens = q->row.in_tokens,
                                          .boundary = q->boundary };
    }
    cedar_sched_limits limits = { .step_rows = r->engine_opts.step_rows, .step_seqs = r->engine_opts.step_seqs,
                                  .chunk_rows = (uint32_t)r->opts->chunk_tokens };
    if (r->predictor.step_ns) {
        uint64_t context;
        uint32_t decode = decode_load(r, &context);
        limits.prefill_capped = true;
        limits.prefill_rows =
            cedar_floor_prefill_rows(&r->predictor, r->floor_step_ns, limits.step_rows, decode, context);
    }
    uint32_t n = cedar_sched_plan(&limits, r->items, r->running_count, r->slices);
    *scored = false;
    for (uint32_t i = 0; i < n; i++) {
        const cedar_sched_slice *s = &r->slices[i];
        const request *q = r->running[s->item];
        uint32_t pos = r->items[s->item].pos, floor = cedar_seq_write_floor(r->engine, q->seq);
        uint32_t logits = wanted_logits(r, q, s, pos, floor);
        cedar_plan_rows(&r->rules, s->decode ? CEDAR_ROWS_DECODE : CEDAR_ROWS_PREFILL, pos, s->rows,
                        cedar_seq_bounds(r->engine, q->seq), floor, r->opts->prompt_scores && q->scored, logits,
                        &r->entries[i]);
        r->entries[i].seq = q->seq;
        r->entries[i].tokens = q->tokens + pos;
        *scored |= q->scored && logits;
    }
    *plan = (cedar_step_plan){ .cut = r->rules.cut, .entry_count = n, .entries = r->entries };
    cedar_plan_total(plan);
}

/* How the step was launched: graphs are the GPU's, real or modelled. */
static const char *step_graph(const run *r) {
    static const char *const modes[] = { "full", "split", "off" };
    bool gpu = r->opts->clock == CEDAR_CLOCK_MODELLED || strcmp(cedar_engine_options(r->engine)->backend, "cuda") == 0;
    return gpu ? modes[r->opts->graphs] : "none";
}

static void describe_step(const run *r, const cedar_step_plan *plan, cedar_step_row *row) {
    *row = (cedar_step_row){ .run_id = r->run_id,
                             .step_id = r->steps + 1,
                             .entries = plan->entry_count,
                             .rows = plan->rows,
                             .kept_rows = plan->kept,
                             .trimmed = plan->trimmed,
                             .graph = step_graph(r),
                             .waiting = (uint32_t)r->waiting_count,
                             .running = r->running_count,
                             .pages_free = cedar_pages_free(r->engine),
                             .pages_cached = r->cache ? cedar_cache_page_count(r->cache) : 0,
                             .window_bytes_stored = r->cache ? cedar_cache_window_bytes(r->cache) : 0,
                             .start_sched_ns = r->clock.sched_ns,
                             .start_ns = r->clock.meter_ns };
    row->kv_bytes_used = (r->engine_opts.page_count - row->pages_free) * cedar_page_bytes(r->engine);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        bool decode = e->kind == CEDAR_ROWS_DECODE;
        row->decode_entries += decode;
        row->decode_rows += decode;
        row->prefill_entries += !decode;
        row->prefill_rows += decode ? 0 : e->rows;
        row->replayed_rows += e->replayed;
    }
}

static void note_step(run *r, const cedar_step_plan *plan) {
    note(r, MARK_STEP, (uint64_t)r->steps, plan->entry_count, (uint64_t)r->clock.sched_ns);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        note(r, MARK_ENTRY, (uint64_t)r->running[r->slices[i].item]->row.request_id, (uint64_t)e->pos << 32 | e->rows,
             (uint64_t)e->kept << 32 | e->replayed);
    }
}

/* Length of step `id` on the meter: measured just now, modelled, or recorded. */
static cedar_status step_length(const run *r, int64_t id, const cedar_step_plan *plan, int64_t measured_ns,
                                int64_t *out, cedar_err *err) {
    const cedar_recorded *rec = r->host->recorded;
    *out = r->opts->clock == CEDAR_CLOCK_MODELLED ? cedar_cost_step_ns(&r->cost, plan, NULL) : measured_ns;
    if (r->opts->clock != CEDAR_CLOCK_RECORDED) return CEDAR_OK;
    if ((uint64_t)id > rec->count)
        return cedar_fail(err, CEDAR_E_DIVERGED,
                          "step %" PRId64 " has no recorded duration: the earlier run had %" PRIu64 " steps", id,
                          rec->count);
    *out = rec->step_ns[id - 1];
    if (*out < 0) return cedar_fail(err, CEDAR_E_FORMAT, "recorded duration of step %" PRId64 " is negative", id);
    return CEDAR_OK;
}

static cedar_status score(run *r, request *q, const cedar_plan_entry *e, const float *logits, cedar_err *err) {
    uint32_t pos = e->pos + e->rows - e->logits, in = q->row.in_tokens, vocab = (uint32_t)r->config->vocab;
    const float *exact;
    cedar_status st =
        cedar_quality_rows(r->quality, q->row.session_id, q->stream, q->tokens, pos, e->logits, &exact, err);
    for (uint32_t i = 0; i < e->logits && !st; i++, pos++) {
        cedar_divergence d;
        int32_t token = q->tokens[pos + 1];
        cedar_divergence_make(exact + (size_t)i * vocab, logits + (size_t)i * vocab, r->config->vocab, token, NULL, &d);
        bool from_hit = r->rules.encoder && q->row.hit_tokens;
        cedar_quality_row row = {
            .run_id = r->run_id, .request_id = q->row.request_id, .pos = pos, .hit_tokens = q->row.hit_tokens,
            .offset = from_hit ? (int32_t)(pos - q->row.hit_tokens) : (int32_t)(pos - in) + 1, .prompt_tokens = in,
            .token = token, .kl_pq = d.kl_pq, .kl_qp = d.kl_qp, .js = d.js, .logp_p = d.logp_p, .logp_q = d.logp_q,
            .top1_prob_p = d.top1_prob_p, .margin_p = d.margin_p, .ratio_max = d.ratio_max, .top1_same = d.top1_same };
        r->quality_rows++;
        r->top1_same += d.top1_same;
        st = cedar_samples_add(&r->kl, d.kl_pq, err);
        if (!st) st = cedar_samples_add(&r->dlogp, d.logp_q - d.logp_p, err);
        if (!st) st = r->obs->quality(r->obs->self, &row, err);
    }
    return st;
}

/* Windows at the last whole page of the prompt, and later of the answer: the newest replaces the one before. An answer
 * of the engine's own is not in the trace's next prompt, so there the prompt's windows stay. */
static cedar_status store_windows(const run *r, request *q, cedar_err *err) {
    uint32_t pos = cedar_seq_pos(r->engine, q->seq), page = r->engine_opts.page_tokens;
    if (r->opts->continuation == CEDAR_CONTINUATION_GREEDY && pos > q->row.in_tokens) return CEDAR_OK;
    if (!stores_windows(r) || pos % page || pos < q->row.in_tokens / page * page) return CEDAR_OK;
    cedar_snap *snap;
    cedar_status st = cedar_snap_save(r->engine, q->seq, &snap, err);
    if (st) return st;
    cedar_snap_free(q->snap);
    q->snap = snap;
    return CEDAR_OK;
}

/* What an executed entry means for its request. argmax: of its last row with logits, -1 when it has none. */
static cedar_status advance(run *r, request *q, const cedar_plan_entry *e, int32_t argmax, cedar_err *err) {
    bool decode = e->kind == CEDAR_ROWS_DECODE;
    q->row.decode_steps += decode;
    q->row.prefill_steps += !decode;
    q->row.replayed_tokens += e->replayed;
    q->row.trimmed_tokens += e->rows - e->kept;
    cedar_status st = store_windows(r, q, err);
    if (st || e->pos + e->rows < q->row.in_tokens) return st;
    uint32_t at = q->row.in_tokens + q->produced;
    if (r->opts->continuation == CEDAR_CONTINUATION_GREEDY) q->tokens[at] = argmax;
    note(r, MARK_TOKEN, (uint64_t)q->row.request_id, (uint64_t)at << 32 | (uint32_t)q->tokens[at], (uint32_t)argmax);
    if (q->produced++ == 0) {
        q->row.first_sched_ns = r->clock.sched_ns;
        q->row.first_ns = r->clock.meter_ns;
    }
    return CEDAR_OK;
}

static cedar_status after_step(run *r, const cedar_step_plan *plan, cedar_err *err) {
    uint32_t row = 0;
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < plan->entry_count && !st; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        request *q = r->running[r->slices[i].item];
        if (q->scored && e->logits) st = score(r, q, e, r->logits + (size_t)row * (uint32_t)r->config->vocab, err);
        row += e->logits;
        if (!st) st = advance(r, q, e, e->logits ? r->argmax[row - 1] : -1, err);
    }
    for (uint32_t i = 0; i < r->running_count && !st;) {
        if (r->running[i]->produced == r->running[i]->row.out_tokens) st = finish(r, i, err);
        else i++;
    }
    return st;
}

static void peak(uint64_t *most, uint64_t now) {
    if (now > *most) *most = now;
}

static cedar_status step(run *r, const cedar_step_plan *plan, bool scored, int64_t plan_start_ns, cedar_err *err) {
    const cedar_run_opts *o = r->opts;
    cedar_step_row row;
    describe_step(r, plan, &row);
    bool measured = o->clock == CEDAR_CLOCK_MEASURED,
         paced = o->pace == CEDAR_PACE_FIXED && o->clock != CEDAR_CLOCK_MODELLED;
    row.plan_ns = measured ? host_ns() - plan_start_ns : 0;
    cedar_step_out out = { .logits = scored ? r->logits : NULL, .argmax = r->argmax };
    cedar_status st = cedar_engine_step(r->engine, plan, &out, err);
    if (!st) st = step_length(r, row.step_id, plan, out.duration_ns, &row.duration_ns, err);
    if (st) return st;
    r->steps++;
    note_step(r, plan);
    int64_t sched =
        paced ? cedar_clock_pace(o->pace_step_us, o->pace_row_us, plan->rows) : row.duration_ns;
    cedar_clock_step(&r->clock, sched, row.duration_ns);
    cedar_step_history_add(&r->history, plan->rows, sched);
    row.end_sched_ns = r->clock.sched_ns;
    peak(&r->result.kv_bytes_peak, row.kv_bytes_used);
    peak(&r->result.window_bytes_peak, row.window_bytes_stored);
    st = r->obs->step(r->obs->self, &row, err);
    /* What came due while the step ran arrived before its results did. */
    if (!st) st = handle_until(r, r->clock.sched_ns - 1, err);
    return st ? st : after_step(r, plan, err);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static void progress(const run *r) {
    if (!r->host->progress) return;
    cedar_progress p = { .label = r->result.label, .done = r->result.requests, .total = r->planned,
                         .tokens = r->result.in_tokens + r->result.out_tokens, .steps = (uint64_t)r->steps,
                         .elapsed_wall_ns = host_ns() - r->wall_start_ns };
    r->host->progress(r->host->self, &p);
}

/* Requests refused at admission may have made events due, and room. */
static bool due_now(run *r) {
    const cedar_event *next = cedar_lanes_next(r->lanes, &r->events);
    return next && next->time_ns <= r->clock.sched_ns;
}

static cedar_status stuck(const run *r, cedar_err *err) {
    const request *q = r->waiting[0];
    return cedar_fail(err, CEDAR_E_LIVENESS,
                      "no progress is possible at schedule time %" PRId64 " ns: %zu requests wait, the first "
                      "is request %" PRId64 " of %u + %u tokens, nothing runs, and %u of %u KV pages are free",
                      r->clock.sched_ns, r->waiting_count, q->row.request_id, q->row.in_tokens, q->row.out_tokens,
                      cedar_pages_free(r->engine), r->engine_opts.page_count);
}

/* The warm-up is over: from here on requests count. */
static cedar_status begin_profiling(run *r, cedar_err *err) {
    r->profile_sched_ns = r->clock.sched_ns;
    r->profile_ns = r->clock.meter_ns;
    r->drain_sched_ns = -1;
    note(r, MARK_PHASE, r->primers, r->warmups, (uint64_t)r->profile_sched_ns);
    return cedar_lanes_profile(r->lanes, r->clock.sched_ns, &r->events, err);
}

static cedar_status cut_warmup(run *r, request *q, cedar_err *err) {
    cedar_status st = reject(r, q, CEDAR_TURN_FAILED, "cut: the warm-up did not drain within warmup_grace_s",
                             r->clock.sched_ns, err);
    cedar_request_free(r, q);
    return st;
}

/* All warm-up requests are sent: what has not ended within the grace is cut. */
static cedar_status drain_warmup(run *r, cedar_err *err) {
    bool sent = r->profile_sched_ns < 0 && !cedar_lanes_next(r->lanes, &r->events);
    if (!sent || (!r->running_count && !r->waiting_count)) {
        r->drain_sched_ns = -1;
        return CEDAR_OK;
    }
    if (r->drain_sched_ns < 0) r->drain_sched_ns = r->clock.sched_ns;
    if (r->clock.sched_ns - r->drain_sched_ns < r->opts->warmup_grace_ns) return CEDAR_OK;
    cedar_status st = CEDAR_OK;
    r->blocked = false;
    while (!st && r->running_count) st = cut_warmup(r, r->running[--r->running_count], err);
    while (!st && r->waiting_count) st = cut_warmup(r, r->waiting[--r->waiting_count], err);
    return st;
}

/* Nothing runs and nothing waits: on to the next event. *over: there is none. */
static cedar_status idle(run *r, bool *over, cedar_err *err) {
    const cedar_event *next = cedar_lanes_next(r->lanes, &r->events);
    if (!next && r->profile_sched_ns < 0) return begin_profiling(r, err);
    cedar_lanes_idle(r->lanes, r->clock.sched_ns, &r->events);
    next = cedar_lanes_next(r->lanes, &r->events);
    if (!next) {
        *over = true;
    } else if (is_over(r, next->time_ns)) {
        cedar_lanes_close(r->lanes);
        cedar_events_clear(&r->events);
    } else {
        cedar_clock_idle(&r->clock, next->time_ns);
    }
    return CEDAR_OK;
}

static cedar_status loop(run *r, cedar_err *err) {
    cedar_status st = cedar_lanes_start(r->lanes, &r->events, err);
    bool over = false, stepped = true;
    while (!st && !over) {
        /* only right behind a step: a replay of the recording ends there too, and must reach the same events */
        if (stepped && r->host->stop && *r->host->stop)
            return cedar_fail(err, CEDAR_E_INTERRUPT, "stopped by the user");
        st = handle_until(r, r->clock.sched_ns, err);
        int64_t plan_start = host_ns();
        if (!st) st = admit_waiting(r, err);
        if (!st) st = drain_warmup(r, err);
        if (st) break;
        cedar_step_plan plan;
        bool scored;
        make_plan(r, &plan, &scored);
        stepped = plan.entry_count > 0;
        if (stepped) {
            st = step(r, &plan, scored, plan_start, err);
            progress(r);
        } else if (r->waiting_count && !due_now(r)) {
            st = stuck(r, err);
        } else if (!r->waiting_count) {
            st = idle(r, &over, err);
        }
    }
    return st;
}

/* Requests that the end of the run found on their way: reported, not dropped. */
static cedar_status emit_unfinished(run *r, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < r->running_count && !st; i++, r->requests_unfinished++) {
        r->running[i]->row.error = "cut: the run ended before the request did";
        st = emit_request(r, r->running[i], err);
    }
    for (size_t i = 0; i < r->waiting_count && !st; i++, r->requests_unfinished++) {
        r->waiting[i]->row.error = "cut: the run ended before the request started";
        st = emit_request(r, r->waiting[i], err);
    }
    return st;
}

static void summarise(run *r) {
    cedar_run_result *s = &r->result;
    s->run_id = r->run_id;
    s->event_hash = r->hash;
    s->sessions = r->sessions_ended;
    s->steps = (uint64_t)r->steps;
    s->ttft_p50_ms = cedar_samples_percentile(&r->ttft, 50) / 1e6;
    s->ttft_p90_ms = cedar_samples_percentile(&r->ttft, 90) / 1e6;
    s->itl_p50_ms = cedar_samples_percentile(&r->itl, 50) / 1e6;
    s->itl_p90_ms = cedar_samples_percentile(&r->itl, 90) / 1e6;
    s->interactivity_p90 = 1e3 / s->itl_p90_ms;
    s->floor_interactivity = 1e9 / cedar_samples_percentile(&r->itl, (double)r->opts->floor_percentile);
    s->floor_met = !r->opts->floor_ppb || s->floor_interactivity * 1e9 >= (double)r->opts->floor_ppb;
    s->span_s = r->first_arrival_ns >= 0 ? (double)(r->last_token_ns - r->first_arrival_ns) / 1e9 : 0;
    s->output_tok_s = s->span_s > 0 ? (double)s->out_tokens / s->span_s : NAN;
    s->total_tok_s = s->span_s > 0 ? (double)(s->in_tokens + s->out_tokens) / s->span_s : NAN;
    s->hit_rate = s->in_tokens ? (double)s->hit_tokens / (double)s->in_tokens : NAN;
    s->quality_rows = r->quality_rows;
    s->kl_mean = cedar_samples_mean(&r->kl);
    s->kl_p99 = cedar_samples_percentile(&r->kl, 99);
    s->dlogp_mean = cedar_samples_mean(&r->dlogp);
    s->top1_rate = r->quality_rows ? (double)r->top1_same / (double)r->quality_rows : NAN;
}

/* What the AgentX rules say about the profiling phase. Other rules: the gate after the run alone. */
static void judge(const run *r, bool ended, cedar_validity *out) {
    const cedar_run_opts *o = r->opts;
    char names[256];
    bool plain = o->rules == CEDAR_RULES_PLAIN;
    cedar_validity_in in = {
        .completed = r->completed, .errors = r->failed, .overflow = r->overflows, .phase_ns = o->duration_ns,
        .last_sample_ns = r->last_sample_sched_ns < 0 ? -1 : r->last_sample_sched_ns - r->profile_sched_ns,
        .locks_overridden = cedar_opts_locks(o, names, sizeof names) > 0, .cancelled = !ended || r->gave_up,
        .scenario_unknown = plain };
    cedar_validity_make(&in, out);
}

/* Names of the reasons, joined by spaces. */
static void name_reasons(const cedar_validity *v, char *out, size_t bytes) {
    size_t n = 0;
    *out = 0;
    for (unsigned bit = 0; bit < CEDAR_INVALID_COUNT; bit++)
        if (v->reasons & 1u << bit && n < bytes)
            n += (size_t)snprintf(out + n, bytes - n, "%s%s", n ? " " : "",
                                  cedar_invalid_name((cedar_invalid)(1u << bit)));
}

static cedar_status emit_end(run *r, const char *status, const char *error, cedar_err *err) {
    cedar_validity v;
    judge(r, strcmp(status, "finished") == 0, &v);
    name_reasons(&v, r->result.invalid, sizeof r->result.invalid);
    r->result.submission_valid = v.submission_valid;
    r->result.gate_ok = v.gate_ok;
    cedar_run_end_row row = { .run_id = r->run_id,
                              .status = status,
                              .error = error,
                              .event_hash = r->hash,
                              .requests = r->result.requests,
                              .sessions = r->sessions_ended,
                              .steps = (uint64_t)r->steps,
                              .quality_rows = r->quality_rows,
                              .requests_unfinished = r->requests_unfinished,
                              .sessions_unfinished = r->sessions_unfinished,
                              .end_sched_ns = r->clock.sched_ns,
                              .end_ns = r->clock.meter_ns,
                              .wall_ns = host_ns() - r->wall_start_ns,
                              .profile_sched_ns = r->profile_sched_ns,
                              .profile_ns = r->profile_ns,
                              .primers = r->primers,
                              .warmups = r->warmups,
                              .overflows = r->overflows,
                              .traces_passed_over = r->lanes->passed_over,
                              .forced_turns = r->lanes->forced,
                              .idle_cut_ns = r->events.shift_ns,
                              .submission_valid = v.submission_valid,
                              .gate_ok = v.gate_ok,
                              .invalid = r->result.invalid,
                              .invalid_why = v.text };
    return r->obs->run_end(r->obs->self, &row, err);
}

/* Plays and reports. A failure is still written down, unless writing is what fails. */
static cedar_status play(run *r, cedar_err *err) {
    cedar_err why = { 0 };
    cedar_status st = loop(r, &why);
    const char *status = !st ? "finished" : st == CEDAR_E_INTERRUPT ? "interrupted" : "failed";
    cedar_status written = CEDAR_OK;
    if (st != CEDAR_E_DB) {
        written = emit_unfinished(r, err);
        if (!written) written = emit_cut_sessions(r, err);
        if (!written) written = emit_end(r, status, why.msg, err);
    }
    snprintf(r->result.status, sizeof r->result.status, "%s", status);
    summarise(r);
    if (st && err) *err = why;
    return st ? st : written;
}

cedar_status cedar_run(const cedar_run_opts *opts, int64_t run_id, const cedar_run_host *host, cedar_run_result *out,
                       cedar_err *err) {
    run *r = cedar_calloc(1, sizeof *r);
    if (!r) return cedar_fail(err, CEDAR_E_OOM, "no memory for a run");
    r->opts = opts;
    r->host = host;
    r->obs = host->observer;
    r->run_id = run_id;
    r->first_arrival_ns = -1;
    r->last_sample_sched_ns = r->drain_sched_ns = -1;
    r->wall_start_ns = host_ns();
    cedar_status st = cedar_run_open(r, err);
    if (!st) st = emit_begin(r, err);
    if (!st) {
        if (r->lanes->warming) r->profile_sched_ns = r->profile_ns = -1;
        st = play(r, err);
        *out = r->result;
    }
    cedar_run_close(r);
    return st;
}
