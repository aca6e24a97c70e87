/* What lies between a request's arrival and its last token on an engine: the line, admission, step plans, steps, and
 * what becomes of their results.
 *
 * Between the engine's steps memory may be allocated, inside them not (the engine sees to it). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sim/accept.h"
#include "sim/run_int.h"

typedef cedar_run_state run;
typedef cedar_request request;

/* --- arrival and end ---------------------------------------------------------------------------------------------- */

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

cedar_status run_engine_arrive(run *r, request *q, const cedar_turn_ref *ref, cedar_err *err) {
    uint64_t total = (uint64_t)q->row.in_tokens + q->row.out_tokens;
    q->tokens = cedar_calloc(total, sizeof *q->tokens);
    if (!q->tokens)
        return cedar_fail(err, CEDAR_E_OOM, "no memory for the %" PRIu64 " tokens of a request", total);
    bool forced = r->opts->continuation == CEDAR_CONTINUATION_FORCED;
    cedar_prompt_fill(r->prompts, ref, 0, forced ? (uint32_t)total : q->row.in_tokens, q->tokens);
    q->row.engine = 1;
    return wait_in_line(r, q, err);
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
    cedar_status st = run_emit_request(r, q, err);
    if (!st) st = run_end_turn(r, q, CEDAR_TURN_DONE, r->clock.sched_ns, err);
    cedar_request_free(r, q);
    return st;
}

/* --- admission ---------------------------------------------------------------------------------------------------- */

/* Takes a sequence and all pages of prompt and answer. */
static cedar_status admit(run *r, request *q, bool *admitted, cedar_err *err) {
    const cedar_admitter a = { .engine = r->engine, .cache = r->cache, .rules = &r->rules,
                               .windows = run_stores_windows(r), .pages = r->pages };
    cedar_admission got;
    cedar_status st =
        cedar_admit(&a, q->tokens, q->row.in_tokens, q->row.in_tokens + q->row.out_tokens - 1, &got, admitted, err);
    if (st || !*admitted) return st;
    q->seq = got.seq;
    q->node = got.node;
    q->boundary = got.boundary;
    q->depth = got.depth;
    q->row.hit_tokens = got.plan.hit;
    q->row.matched_tokens = got.hit.matched_tokens;
    q->row.provenance_depth = got.hit.depth;
    q->row.miss = got.hit.miss;
    q->row.admit_sched_ns = r->clock.sched_ns;
    q->row.admit_ns = r->clock.meter_ns;
    run_note(r, RUN_MARK_ADMIT, (uint64_t)q->row.request_id, (uint64_t)got.plan.hit << 32 | got.plan.start,
         (uint64_t)r->clock.sched_ns);
    return CEDAR_OK;
}

/* Sequences that decode in the next step, and the positions their first rows attend to. */
static uint32_t decode_load(const run *r, uint64_t *context_sum) {
    uint32_t seqs = 0;
    *context_sum = 0;
    for (uint32_t i = 0; i < r->running_count; i++) {
        const request *q = r->running[i];
        if (!q->produced) continue;
        seqs++;
        *context_sum += q->row.in_tokens + q->produced;
    }
    return seqs;
}

/* One more request, once it decodes, must not make the others miss the floor. */
static bool floor_admits(const run *r, const request *q) {
    if (!r->predictor.step_ns || !r->running_count) return true;
    uint64_t context = q->row.in_tokens;
    for (uint32_t i = 0; i < r->running_count; i++) context += r->running[i]->row.in_tokens + r->running[i]->produced;
    return r->predictor.step_ns(r->predictor.self, 0, run_decode_rows(r, r->running_count + 1), context) <=
           r->floor_step_ns;
}

static cedar_status ask_policy(const run *r, const request *q, size_t waiting, bool *yes, cedar_err *err) {
    uint64_t context;
    const cedar_policy_state now = { .now_ns = r->clock.sched_ns, .waiting = (uint32_t)waiting,
                                     .running = r->running_count, .decoding = decode_load(r, &context),
                                     .pages_free = cedar_pages_free(r->engine),
                                     .pages_total = r->engine_opts.page_count };
    return run_policy_admits(r, q, &now, yes, err);
}

/* Failures that concern one request and not the engine. */
static bool is_request_failure(cedar_status st) {
    return st == CEDAR_E_BUSY || st == CEDAR_E_ARG || st == CEDAR_E_UNSUPPORTED || st == CEDAR_E_BUDGET;
}

/* The engine refused the request: an error row, and its lane goes on. */
static cedar_status refused(run *r, request *q, const cedar_err *reason, cedar_err *err) {
    char why[256];
    snprintf(why, sizeof why, "engine: %.200s", reason->msg);
    cedar_status st = run_reject(r, q, CEDAR_TURN_FAILED, why, r->clock.sched_ns, err);
    cedar_request_free(r, q);
    return st;
}

static cedar_status admit_waiting(run *r, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    size_t taken = 0;
    while (!st && !r->blocked && taken < r->waiting_count && r->running_count < r->engine_opts.seq_count) {
        request *q = r->waiting[taken];
        bool admitted = floor_admits(r, q);
        if (admitted) st = ask_policy(r, q, r->waiting_count - taken, &admitted, err);
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

/* Rows of an entry whose logits are wanted: those that make tokens, and with prompt_scores all new ones. */
static uint32_t wanted_logits(const run *r, const request *q, const cedar_sched_slice *s, uint32_t pos,
                              uint32_t floor) {
    if (r->opts->prompt_scores && q->scored && !s->decode) {
        uint32_t first = pos > floor ? pos : floor;
        return pos + s->rows > first ? pos + s->rows - first : 0;
    }
    return s->decode ? s->rows : pos + s->rows == q->row.in_tokens;
}

/* A running request as the scheduler sees it. */
static cedar_sched_item sched_item(const run *r, const request *q) {
    uint32_t pos = cedar_seq_pos(r->engine, q->seq), in = q->row.in_tokens, end = in + q->row.out_tokens - 1;
    cedar_sched_item item = { .pos = pos, .prompt_tokens = in, .boundary = q->boundary };
    if (pos < in) return item;
    /* The answer's last windows are stored at a whole page, so a step must end there (store_windows). */
    bool stores = run_stores_windows(r) && r->opts->continuation == CEDAR_CONTINUATION_FORCED;
    uint32_t page = r->engine_opts.page_tokens;
    item.drafts =
        cedar_accept_rows((uint32_t)r->opts->draft_tokens, pos, end, stores ? end / page * page : 0) - 1;
    return item;
}

static cedar_rows_kind rows_kind(const cedar_sched_slice *s) {
    if (!s->decode) return CEDAR_ROWS_PREFILL;
    return s->rows > 1 ? CEDAR_ROWS_VERIFY : CEDAR_ROWS_DECODE;
}

/* Plans the next step; entry_count 0 when nothing runs. *scored: some row of it is compared with the shadow. */
static void make_plan(run *r, cedar_step_plan *plan, bool *scored) {
    for (uint32_t i = 0; i < r->running_count; i++) r->items[i] = sched_item(r, r->running[i]);
    cedar_sched_limits limits = { .step_rows = r->engine_opts.step_rows, .step_seqs = r->engine_opts.step_seqs,
                                  .chunk_rows = (uint32_t)r->opts->chunk_tokens };
    if (r->predictor.step_ns) {
        uint64_t context;
        uint32_t decode = run_decode_rows(r, decode_load(r, &context));
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
        cedar_plan_rows(&r->rules, rows_kind(s), pos, s->rows,
                        cedar_seq_bounds(r->engine, q->seq), floor, r->opts->prompt_scores && q->scored, logits,
                        &r->entries[i]);
        r->entries[i].seq = q->seq;
        r->entries[i].tokens = q->tokens + pos;
        *scored |= q->scored && logits;
    }
    *plan = (cedar_step_plan){ .cut = r->rules.cut, .entry_count = n, .entries = r->entries };
    cedar_plan_total(plan);
}

static void describe_step(const run *r, const cedar_step_plan *plan, cedar_step_row *row) {
    *row = (cedar_step_row){ .run_id = r->run_id,
                             .step_id = r->steps + 1,
                             .steps = 1,
                             .engine = 1,
                             .entries = plan->entry_count,
                             .rows = plan->rows,
                             .kept_rows = plan->kept,
                             .trimmed = plan->trimmed,
                             .graph = run_step_graph(r),
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
        bool decode = e->kind != CEDAR_ROWS_PREFILL;
        row->decode_entries += decode;
        row->decode_rows += decode ? e->rows : 0;
        row->prefill_entries += !decode;
        row->prefill_rows += decode ? 0 : e->rows;
        row->replayed_rows += e->replayed;
    }
}

static void note_step(run *r, const cedar_step_plan *plan) {
    run_note(r, RUN_MARK_STEP, (uint64_t)r->steps, plan->entry_count, (uint64_t)r->clock.sched_ns);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        run_note(r, RUN_MARK_ENTRY, (uint64_t)r->running[r->slices[i].item]->row.request_id,
                 (uint64_t)e->pos << 32 | e->rows, (uint64_t)e->kept << 32 | e->replayed);
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

/* Scores the first `count` of an entry's rows with logits. */
static cedar_status score(run *r, request *q, const cedar_plan_entry *e, uint32_t count, const float *logits,
                          cedar_err *err) {
    uint32_t pos = e->pos + e->rows - e->logits, in = q->row.in_tokens, vocab = (uint32_t)r->config->vocab;
    const float *exact;
    cedar_status st =
        cedar_quality_rows(r->quality, q->row.session_id, q->stream, q->tokens, pos, count, &exact, err);
    for (uint32_t i = 0; i < count && !st; i++, pos++) {
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
    if (!run_stores_windows(r) || pos % page || pos < q->row.in_tokens / page * page) return CEDAR_OK;
    cedar_snap *snap;
    cedar_status st = cedar_snap_save(r->engine, q->seq, &snap, err);
    if (st) return st;
    cedar_snap_free(q->snap);
    q->snap = snap;
    return CEDAR_OK;
}

/* The next token of a request is there. own: the engine's. */
static void make_token(run *r, request *q, int32_t own) {
    uint32_t at = q->row.in_tokens + q->produced;
    if (r->opts->continuation == CEDAR_CONTINUATION_GREEDY) q->tokens[at] = own;
    run_note(r, RUN_MARK_TOKEN, (uint64_t)q->row.request_id, (uint64_t)at << 32 | (uint32_t)q->tokens[at],
             (uint32_t)own);
    if (q->produced++ == 0) {
        q->row.first_sched_ns = r->clock.sched_ns;
        q->row.first_ns = r->clock.meter_ns;
    }
}

/* Decode rows whose tokens stay: that of the sampled token, and of accepted drafts. The others are taken back. */
static cedar_status keep_drafts(run *r, request *q, const cedar_plan_entry *e, const int32_t *argmax, uint32_t *kept,
                                cedar_err *err) {
    *kept = 1;
    if (e->kind != CEDAR_ROWS_VERIFY) return CEDAR_OK;
    uint32_t accepted = run_drafts_accepted(r, q, e, argmax);
    q->row.drafted_tokens += e->rows - 1;
    q->row.accepted_tokens += accepted;
    *kept = accepted + 1;
    return *kept < e->rows ? cedar_seq_truncate(r->engine, q->seq, e->pos + *kept, err) : CEDAR_OK;
}

/* What an executed entry means for its request. argmax, logits: of the entry's rows that have them. */
static cedar_status advance(run *r, request *q, const cedar_plan_entry *e, const int32_t *argmax, const float *logits,
                            cedar_err *err) {
    bool decode = e->kind != CEDAR_ROWS_PREFILL;
    uint32_t made = 0, scored = e->logits;
    cedar_status st = CEDAR_OK;
    if (decode) st = keep_drafts(r, q, e, argmax, &made, err);
    else if (e->pos + e->rows == q->row.in_tokens) made = 1;
    if (decode) scored = made;
    if (!st && q->scored && scored) st = score(r, q, e, scored, logits, err);
    q->row.decode_steps += decode;
    q->row.prefill_steps += !decode;
    q->row.replayed_tokens += e->replayed;
    q->row.trimmed_tokens += e->rows - e->kept;
    if (!st) st = store_windows(r, q, err);
    for (uint32_t i = 0; i < made && !st; i++) make_token(r, q, argmax[decode ? i : e->logits - 1]);
    return st;
}

static cedar_status after_step(run *r, const cedar_step_plan *plan, cedar_err *err) {
    uint32_t row = 0;
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < plan->entry_count && !st; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        const float *logits = r->logits ? r->logits + (size_t)row * (uint32_t)r->config->vocab : NULL;
        st = advance(r, r->running[r->slices[i].item], e, r->argmax + row, logits, err);
        row += e->logits;
    }
    for (uint32_t i = 0; i < r->running_count && !st;) {
        if (r->running[i]->produced == r->running[i]->row.out_tokens) st = finish(r, i, err);
        else i++;
    }
    return st;
}

static cedar_status step(run *r, cedar_step_plan *plan, bool scored, int64_t plan_start_ns, cedar_err *err) {
    const cedar_run_opts *o = r->opts;
    cedar_step_row row;
    describe_step(r, plan, &row);
    bool measured = o->clock == CEDAR_CLOCK_MEASURED,
         paced = o->pace == CEDAR_PACE_FIXED && o->clock != CEDAR_CLOCK_MODELLED;
    row.plan_ns = measured ? cedar_now_ns() - plan_start_ns : 0;
    cedar_step_out out = { .logits = scored ? r->logits : NULL, .argmax = r->argmax };
    int64_t draft_ns = 0;
    cedar_status st = r->drafts ? run_drafts_make(r, plan, &draft_ns, err) : CEDAR_OK;
    if (!st) st = cedar_engine_step(r->engine, plan, &out, err);
    if (!st) st = step_length(r, row.step_id, plan, draft_ns + out.duration_ns, &row.duration_ns, err);
    if (st) return st;
    r->steps++;
    note_step(r, plan);
    int64_t sched =
        paced ? cedar_clock_pace(o->pace_step_us, o->pace_row_us, plan->rows) : row.duration_ns;
    cedar_clock_step(&r->clock, sched, row.duration_ns);
    cedar_step_history_add(&r->history, plan->rows, sched);
    row.end_sched_ns = r->clock.sched_ns;
    row.end_ns = r->clock.meter_ns;
    run_peak(&r->result.kv_bytes_peak, row.kv_bytes_used);
    run_peak(&r->result.window_bytes_peak, row.window_bytes_stored);
    st = r->obs->step(r->obs->self, &row, err);
    /* What came due while the step ran arrived before its results did. */
    if (!st) st = run_handle_until(r, r->clock.sched_ns - 1, err);
    return st ? st : after_step(r, plan, err);
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

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

/* All warm-up requests are sent: what has not ended within the grace is cut. */
static cedar_status drain_warmup(run *r, cedar_err *err) {
    if (!run_warmup_late(r, r->running_count || r->waiting_count)) return CEDAR_OK;
    cedar_status st = CEDAR_OK;
    r->blocked = false;
    while (!st && r->running_count) st = run_cut_warmup(r, r->running[--r->running_count], err);
    while (!st && r->waiting_count) st = run_cut_warmup(r, r->waiting[--r->waiting_count], err);
    return st;
}

cedar_status run_engine_loop(run *r, cedar_err *err) {
    cedar_status st = cedar_lanes_start(r->lanes, &r->events, err);
    bool over = false, stepped = true;
    while (!st && !over) {
        /* only right behind a step: a replay of the recording ends there too, and must reach the same events */
        if (stepped && r->host->stop && *r->host->stop)
            return cedar_fail(err, CEDAR_E_INTERRUPT, "stopped by the user");
        st = run_handle_until(r, r->clock.sched_ns, err);
        int64_t plan_start = cedar_now_ns();
        if (!st) st = admit_waiting(r, err);
        if (!st) st = drain_warmup(r, err);
        if (st) break;
        cedar_step_plan plan;
        bool scored;
        make_plan(r, &plan, &scored);
        stepped = plan.entry_count > 0;
        if (stepped) {
            st = step(r, &plan, scored, plan_start, err);
            run_progress(r);
        } else if (r->waiting_count && !due_now(r)) {
            st = stuck(r, err);
        } else if (!r->waiting_count) {
            st = run_idle(r, &over, err);
        }
    }
    return st;
}

/* Requests that the end of the run found on their way: reported, not dropped. */
cedar_status run_engine_unfinished(run *r, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < r->running_count && !st; i++, r->requests_unfinished++) {
        r->running[i]->row.error = RUN_CUT_RUNNING;
        st = run_emit_request(r, r->running[i], err);
    }
    for (size_t i = 0; i < r->waiting_count && !st; i++, r->requests_unfinished++) {
        r->waiting[i]->row.error = RUN_CUT_WAITING;
        st = run_emit_request(r, r->waiting[i], err);
    }
    return st;
}
