/* A run: lanes against an engine, a modelled one, or endpoints. What all have in common: how requests arrive and end,
 * what a policy is asked, the phases, and what is reported. sim/run_engine.c, sim/run_modelled.c and sim/run_http.c
 * have what lies between arrival and last token.
 *
 * Everything is decided from schedule time and earlier results; the host's clock is read only to report how long
 * planning and the whole run took. With endpoints it is the schedule. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "sim/run_int.h"
#include "sim/validity.h"

typedef cedar_run_state run;
typedef cedar_request request;

void run_note(run *r, run_mark what, uint64_t a, uint64_t b, uint64_t c) {
    const uint64_t words[] = { what, a, b, c };
    for (int i = 0; i < 4; i++) r->hash = cedar_fold64(r->hash, words[i]);
}

bool run_stores_windows(const run *r) { return r->opts->prefix_cache && !r->rules.encoder; }

cedar_hit_plan run_hit_plan(const run *r, uint32_t tokens) { return cedar_admit_hit(&r->rules, tokens); }

/* How the step was launched: graphs are the GPU's, real or modelled. */
const char *run_step_graph(const run *r) {
    static const char *const modes[] = { "full", "split", "off", "decode", "trimmed" };
    bool gpu = r->opts->clock == CEDAR_CLOCK_MODELLED || strcmp(r->engine_opts.backend, "cuda") == 0;
    return gpu ? modes[r->opts->graphs] : "none";
}

/* --- reporting the beginning -------------------------------------------------------------------------------------- */

static cedar_status emit_begin(run *r, cedar_err *err) {
    static const char *const replays[] = { "exact", "decoder", "encoder", "both" };
    static const char *const ariths[] = { "wide", "f32", "bf16" }, *const clocks[] = { "measured", "recorded",
                                                                                       "modelled", "wall" };
    char *json = NULL, hash[CEDAR_SHA256_HEX];
    cedar_status st = cedar_opts_json(r->opts, &json, err);
    if (st) return st;
    cedar_sha256 s;
    cedar_sha256_init(&s);
    cedar_sha256_add(&s, json, strlen(json));
    cedar_sha256_hex(&s, hash);
    const char *name = r->http ? "http" : replays[r->opts->replay];
    snprintf(r->result.replay, sizeof r->result.replay, "%s", r->http ? "the endpoint's" : name);
    snprintf(r->result.label, sizeof r->result.label, "%s", *r->opts->label ? r->opts->label : name);
    char device[CEDAR_DEVICE_BYTES];
    cedar_device_name(r->engine_opts.backend, r->engine_opts.gpus, device);
    cedar_run_row row = { .run_id = r->run_id,
                          .label = r->result.label,
                          .config_json = json,
                          .config_hash = hash,
                          .model_name = r->http ? r->opts->model : r->config->name,
                          .model_hash = r->model_hash,
                          .model_origin = r->origin,
                          .trace_paths = r->opts->trace,
                          .trace_hash = r->corpus->hash,
                          .backend = r->engine_opts.backend,
                          .device = device,
                          .arith = r->http ? "the endpoint's" : ariths[r->opts->arith],
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
    run_note(r, RUN_MARK_SESSION, (uint64_t)s->session_id, s->done, (uint64_t)s->end_sched_ns);
    r->sessions_ended++;
    r->sessions_unfinished += strcmp(s->outcome, "cut") == 0;
    if (r->quality) cedar_quality_forget(r->quality, s->session_id);
    if (r->modelled) run_modelled_forget(r->modelled, s->lane);
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

cedar_status run_emit_request(run *r, const request *q, cedar_err *err) {
    run_note(r, RUN_MARK_END, (uint64_t)q->row.request_id, q->produced, (uint64_t)r->clock.sched_ns);
    cedar_status st = r->obs->request(r->obs->self, &q->row, err);
    return st ? st : count_request(r, q, err);
}

/* The share of failed requests that ends a run. A single early failure says nothing, so the first ten are waited
 * for. */
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
cedar_status run_end_turn(run *r, const request *q, cedar_turn_end how, int64_t now, cedar_err *err) {
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
cedar_status run_reject(run *r, request *q, cedar_turn_end how, const char *why, int64_t now, cedar_err *err) {
    q->row.error = why;
    cedar_status st = r->http ? run_http_not_sent(r->http, q, how == CEDAR_TURN_OVERFLOW, err) : CEDAR_OK;
    if (!st) st = run_emit_request(r, q, err);
    return st ? st : run_end_turn(r, q, how, now, err);
}

/* --- arrival ------------------------------------------------------------------------------------------------------ */

static cedar_status request_new(run *r, const cedar_turn_ref *ref, cedar_phase phase, const cedar_event *e,
                                request **out, cedar_err *err) {
    static const char *const phases[] = { "profiling", "primer", "warmup" };
    const cedar_trace *t = &r->corpus->traces[ref->trace];
    const cedar_turn *turn = &t->streams[ref->stream].turns[ref->turn];
    request *q = r->spare ? r->spare : cedar_calloc(1, sizeof *q);
    if (!q) return cedar_fail(err, CEDAR_E_OOM, "no memory for a request");
    r->spare = r->spare ? q->next : NULL;
    *q = (request){ 0 };
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
    run_note(r, RUN_MARK_ARRIVAL, (uint64_t)q->row.request_id,
         (uint64_t)phase << 62 | (uint64_t)ref->stream << 32 | ref->turn, (uint64_t)e->time_ns);
    r->primers += phase == CEDAR_PHASE_PRIMER;
    r->warmups += phase == CEDAR_PHASE_WARMUP;
    r->profiled += phase == CEDAR_PHASE_PROFILING;
    *out = q;
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
        st = run_reject(r, q, CEDAR_TURN_OVERFLOW, why, q->row.arrival_sched_ns, err);
        goto drop;
    }
    if ((total + page - 1) / page > r->engine_opts.page_count) {
        snprintf(why, sizeof why, "never fits: %" PRIu64 " tokens need %" PRIu64 " KV pages, the pool has %u", total,
                 (total + page - 1) / page, r->engine_opts.page_count);
        st = run_reject(r, q, CEDAR_TURN_FAILED, why, q->row.arrival_sched_ns, err);
        goto drop;
    }
    st = r->http       ? run_http_arrive(r->http, q, ref, err)
         : r->modelled ? run_modelled_arrive(r->modelled, q, ref, err)
                       : run_engine_arrive(r, q, ref, err);
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
cedar_status run_handle_until(run *r, int64_t time_ns, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    while (!st) {
        const cedar_event *next = cedar_lanes_next(r->lanes, &r->events);
        if (!next || next->time_ns > time_ns) break;
        cedar_event e = cedar_events_pop(&r->events);
        st = handle(r, &e, err);
    }
    return st;
}

/* --- policies and phases ------------------------------------------------------------------------------------------ */

cedar_policy_request run_policy_request(const run *r, const request *q) {
    return (cedar_policy_request){ .request_id = q->row.request_id,
                                   .lane = q->lane,
                                   .stream = q->stream,
                                   .turn = (uint32_t)q->row.turn,
                                   .in_tokens = q->row.in_tokens,
                                   .out_tokens = q->row.out_tokens,
                                   .waited_ns = r->clock.sched_ns - q->row.arrival_sched_ns,
                                   .warmup = q->phase != CEDAR_PHASE_PROFILING };
}

cedar_status run_policy_admits(const run *r, const request *q, const cedar_policy_state *now, bool *yes,
                               cedar_err *err) {
    const cedar_policy *p = r->opts->policy;
    *yes = true;
    if (!p || !now->running) return CEDAR_OK;
    const cedar_policy_request ask = run_policy_request(r, q);
    return p->admit(p->self, &ask, now, yes, err);
}

void run_progress(const run *r) {
    if (!r->host->progress) return;
    cedar_progress p = { .label = r->result.label, .done = r->result.requests, .total = r->planned,
                         .tokens = r->result.in_tokens + r->result.out_tokens, .steps = (uint64_t)r->steps,
                         .elapsed_wall_ns = cedar_now_ns() - r->wall_start_ns };
    r->host->progress(r->host->self, &p);
}

/* The warm-up is over: from here on requests count. */
static cedar_status begin_profiling(run *r, cedar_err *err) {
    r->profile_sched_ns = r->clock.sched_ns;
    r->profile_ns = r->clock.meter_ns;
    r->drain_sched_ns = -1;
    run_note(r, RUN_MARK_PHASE, r->primers, r->warmups, (uint64_t)r->profile_sched_ns);
    return cedar_lanes_profile(r->lanes, r->clock.sched_ns, &r->events, err);
}

/* Nothing runs and nothing waits: on to the next event. *over: there is none. */
cedar_status run_idle(run *r, bool *over, cedar_err *err) {
    const cedar_event *next = cedar_lanes_next(r->lanes, &r->events);
    if (!next && r->profile_sched_ns < 0) return begin_profiling(r, err);
    cedar_lanes_idle(r->lanes, r->clock.sched_ns, &r->events);
    next = cedar_lanes_next(r->lanes, &r->events);
    if (!next) {
        *over = true;
    } else if (is_over(r, next->time_ns)) {
        cedar_lanes_close(r->lanes);
        cedar_events_clear(&r->events);
    } else if (!r->http) {      /* real time goes by itself */
        cedar_clock_idle(&r->clock, next->time_ns);
    }
    return CEDAR_OK;
}

bool run_warmup_late(run *r, bool at_work) {
    bool sent = r->profile_sched_ns < 0 && !cedar_lanes_next(r->lanes, &r->events);
    if (!sent || !at_work) {
        r->drain_sched_ns = -1;
        return false;
    }
    if (r->drain_sched_ns < 0) r->drain_sched_ns = r->clock.sched_ns;
    return r->clock.sched_ns - r->drain_sched_ns >= r->opts->warmup_grace_ns;
}

cedar_status run_cut_warmup(run *r, request *q, cedar_err *err) {
    cedar_status st = run_reject(r, q, CEDAR_TURN_FAILED, RUN_CUT_WARMUP, r->clock.sched_ns, err);
    cedar_request_free(r, q);
    return st;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

/* Percentiles of the run's latencies and differences, in their units. */
static cedar_status percentiles(run *r, cedar_err *err) {
    cedar_run_result *s = &r->result;
    double floor_ns = NAN;
    const struct { cedar_samples *list; double p, *out, unit;
    } wanted[] = { { &r->ttft, 50, &s->ttft_p50_ms, 1e6 }, { &r->ttft, 90, &s->ttft_p90_ms, 1e6 },
                   { &r->itl, 50, &s->itl_p50_ms, 1e6 },   { &r->itl, 90, &s->itl_p90_ms, 1e6 },
                   { &r->itl, (double)r->opts->floor_percentile, &floor_ns, 1 }, { &r->kl, 99, &s->kl_p99, 1 } };
    cedar_status st = CEDAR_OK;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && !st; i++) {
        st = cedar_samples_percentile(wanted[i].list, wanted[i].p, wanted[i].out, err);
        *wanted[i].out /= wanted[i].unit;
    }
    s->interactivity_p90 = 1e3 / s->itl_p90_ms;
    s->floor_interactivity = 1e9 / floor_ns;
    return st;
}

static cedar_status summarise(run *r, cedar_err *err) {
    cedar_run_result *s = &r->result;
    s->run_id = r->run_id;
    s->event_hash = r->hash;
    s->sessions = r->sessions_ended;
    s->steps = (uint64_t)r->steps;
    s->ttft_mean_ms = cedar_samples_mean(&r->ttft) / 1e6;
    s->itl_mean_ms = cedar_samples_mean(&r->itl) / 1e6;
    s->kl_mean = cedar_samples_mean(&r->kl);
    s->dlogp_mean = cedar_samples_mean(&r->dlogp);
    cedar_status st = percentiles(r, err);
    s->floor_met = !r->opts->floor_ppb || s->floor_interactivity * 1e9 >= (double)r->opts->floor_ppb;
    s->span_s = r->first_arrival_ns >= 0 ? (double)(r->last_token_ns - r->first_arrival_ns) / 1e9 : 0;
    s->output_tok_s = s->span_s > 0 ? (double)s->out_tokens / s->span_s : NAN;
    s->total_tok_s = s->span_s > 0 ? (double)(s->in_tokens + s->out_tokens) / s->span_s : NAN;
    s->hit_rate = s->in_tokens ? (double)s->hit_tokens / (double)s->in_tokens : NAN;
    s->quality_rows = r->quality_rows;
    s->top1_rate = r->quality_rows ? (double)r->top1_same / (double)r->quality_rows : NAN;
    return st;
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
                              .wall_ns = cedar_now_ns() - r->wall_start_ns,
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
    cedar_status st = r->http       ? run_http_loop(r->http, &why)
                      : r->modelled ? run_modelled_loop(r->modelled, &why)
                                    : run_engine_loop(r, &why);
    const char *status = !st ? "finished" : st == CEDAR_E_INTERRUPT ? "interrupted" : "failed";
    cedar_status written = CEDAR_OK;
    if (st != CEDAR_E_DB) {
        written = r->http       ? run_http_unfinished(r->http, err)
                  : r->modelled ? run_modelled_unfinished(r->modelled, err)
                                : run_engine_unfinished(r, err);
        if (!written) written = emit_cut_sessions(r, err);
        if (!written) written = emit_end(r, status, why.msg, err);
    }
    snprintf(r->result.status, sizeof r->result.status, "%s", status);
    if (!written) written = summarise(r, err);
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
    r->wall_start_ns = cedar_now_ns();
    cedar_status st = cedar_run_open(r, err);
    if (!st) st = emit_begin(r, err);
    if (!st) {
        if (r->lanes->warming) r->profile_sched_ns = r->profile_ns = -1;
        st = play(r, err);
        *out = r->result;
    }
    cedar_status closed = cedar_run_close(r, err);
    return st ? st : closed;
}
