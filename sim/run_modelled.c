/* What lies between a request's arrival and its last token where nothing is computed: engines of the cost model.
 *
 * A run may have several engines, each with a line, a scheduler, pages and a prefix cache of its own, on one clock. A
 * step costs what its sums cost, not what its requests are many: all requests that decode go one token forward in every
 * step, so an engine counts its decode steps, and a request knows at which count it ends. What comes out is, row for
 * row, what run_engine.c would do with an engine whose steps take the same time (tests/test_modelled.c). With
 * speculation each goes forward by what is accepted of its drafts, drawn from a stream of its own, so that it still
 * knows where it ends.
 *
 * Meter and schedule time are one. Order of what happens at one time: steps end, in the order of engines; then events,
 * in theirs; then engines that are free begin their next steps. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sim/accept.h"
#include "sim/run_int.h"

typedef cedar_run_state run;
typedef cedar_request request;

enum { PROGRESS_STEPS = 256 };      /* steps between two calls of the host's progress */
enum { NO_ENGINE = UINT32_MAX };

/* A line of requests; first in, first out. */
typedef struct line {
    request **q;                    /* ring [mask + 1] */
    size_t first, count, mask;
} line;

typedef struct engine {
    uint32_t number;                /* from 0 */
    cedar_ledger *ledger;
    cedar_ledger_tree **trees;      /* [lanes] of the session the lane plays; NULL before its first admission */
    line waiting;
    request **prompts;              /* [seq_count] running requests that have no token yet, in order of admission */
    cedar_sched_item *items;        /* [seq_count] the same as the scheduler sees them */
    uint32_t prompt_count;
    request **decoding;             /* [seq_count] heap: which ends first, then order of admission */
    uint32_t decoding_count;
    uint64_t prompt_tokens;         /* of `prompts`, all together */
    uint64_t context;               /* positions that each request's first decode row of the next step attends to */
    uint32_t verify_rows;           /* rows of the decode step under way: one of each request without speculation */
    uint32_t yielded;               /* tokens that they will have yielded, with speculation */
    uint64_t decode_steps, admitted;
    bool blocked;                   /* the first waiting request did not fit; wait for one to end */
    bool busy;                      /* a step is under way */
    int64_t step_end_ns;
    cedar_sched_slice *chunks;      /* [seq_count] prompt chunks of the step under way, of prompts[0 ..] */
    cedar_plan_entry *entries;      /* [seq_count] the same as planned */
    uint32_t chunk_count;
    cedar_cost_memo memo;
    cedar_step_row row;             /* steps since the last row that was reported; steps 0 = none */
} engine;

struct run_modelled {
    run *r;
    engine *engines;
    uint32_t count;
    uint32_t *of_session;           /* [lanes] engine of the lane's session, NO_ENGINE before its first request */
    uint32_t next;                  /* round robin */
    cedar_policy_engine *seen;      /* [count] scratch of a router */
    bool stopping;                  /* no step begins any more */
    request **ended;                /* [seq_count] scratch: requests that end with a step */
};

/* --- making and freeing ------------------------------------------------------------------------------------------- */

static cedar_status engine_open(run_modelled *m, engine *e, uint32_t number, cedar_err *err) {
    const run *r = m->r;
    const cedar_engine_opts *o = &r->engine_opts;
    cedar_ledger_opts l = { .page_count = o->page_count, .cache = r->opts->prefix_cache, .windows = !r->rules.encoder,
                            .window_bytes_max = (uint64_t)r->opts->window_cache_bytes };
    e->number = number;
    cedar_status st = cedar_ledger_new(r->prefixes, &l, &e->ledger, err);
    if (st) return st;
    e->trees = cedar_calloc(r->lane_rules.lanes, sizeof *e->trees);
    e->prompts = cedar_calloc(o->seq_count, sizeof *e->prompts);
    e->items = cedar_calloc(o->seq_count, sizeof *e->items);
    e->decoding = cedar_calloc(o->seq_count, sizeof *e->decoding);
    e->chunks = cedar_calloc(o->seq_count, sizeof *e->chunks);
    e->entries = cedar_calloc(o->seq_count, sizeof *e->entries);
    if (e->trees && e->prompts && e->items && e->decoding && e->chunks && e->entries) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_OOM, "no memory for engines of %u sequences", o->seq_count);
}

cedar_status run_modelled_new(run *r, run_modelled **out, cedar_err *err) {
    run_modelled *m = cedar_calloc(1, sizeof *m);
    if (!m) return cedar_fail(err, CEDAR_E_OOM, "no memory for modelled engines");
    m->r = r;
    m->count = (uint32_t)r->opts->engines;
    m->engines = cedar_calloc(m->count, sizeof *m->engines);
    m->ended = cedar_calloc(r->engine_opts.seq_count, sizeof *m->ended);
    m->seen = cedar_calloc(m->count, sizeof *m->seen);
    m->of_session = cedar_calloc(r->lane_rules.lanes, sizeof *m->of_session);
    bool there = m->engines && m->ended && m->seen && m->of_session;
    cedar_status st = there ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "no memory for %u engines", m->count);
    for (uint32_t i = 0; i < r->lane_rules.lanes && !st; i++) m->of_session[i] = NO_ENGINE;
    for (uint32_t i = 0; i < m->count && !st; i++) st = engine_open(m, &m->engines[i], i, err);
    if (st) run_modelled_free(m);
    else *out = m;
    return st;
}

void run_modelled_unpin(run_modelled *m, const request *q) {
    cedar_ledger_unpin(m->engines[q->engine].ledger, q->node);
}

static request *line_at(const line *l, size_t i) { return l->q[(l->first + i) & l->mask]; }

static void engine_close(run *r, engine *e) {
    for (uint32_t i = 0; i < e->prompt_count; i++) cedar_request_free(r, e->prompts[i]);
    for (uint32_t i = 0; i < e->decoding_count; i++) cedar_request_free(r, e->decoding[i]);
    for (size_t i = 0; i < e->waiting.count; i++) cedar_request_free(r, line_at(&e->waiting, i));
    for (uint32_t i = 0; i < r->lane_rules.lanes && e->trees; i++) cedar_ledger_tree_end(e->trees[i]);
    cedar_ledger_free(e->ledger);
    void *const parts[] = { e->trees, e->waiting.q, e->prompts, e->items, e->decoding, e->chunks, e->entries };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) cedar_free(parts[i]);
}

void run_modelled_free(run_modelled *m) {
    if (!m) return;
    for (uint32_t i = 0; i < m->count && m->engines; i++) engine_close(m->r, &m->engines[i]);
    cedar_free(m->engines);
    cedar_free(m->ended);
    cedar_free(m->seen);
    cedar_free(m->of_session);
    cedar_free(m);
}

void run_modelled_forget(run_modelled *m, uint32_t lane) {
    for (uint32_t i = 0; i < m->count; i++) {
        cedar_ledger_tree_end(m->engines[i].trees[lane]);
        m->engines[i].trees[lane] = NULL;
    }
    m->of_session[lane] = NO_ENGINE;
}

/* --- the line ----------------------------------------------------------------------------------------------------- */

static cedar_status line_add(line *l, request *q, cedar_err *err) {
    if (!l->q || l->count > l->mask) {
        size_t room = l->q ? 2 * (l->mask + 1) : 64;
        request **grown = cedar_calloc(room, sizeof *grown);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu waiting requests", room);
        for (size_t i = 0; i < l->count; i++) grown[i] = line_at(l, i);
        cedar_free(l->q);
        *l = (line){ .q = grown, .count = l->count, .mask = room - 1 };
    }
    l->q[(l->first + l->count++) & l->mask] = q;
    return CEDAR_OK;
}

static void line_drop_first(line *l) {
    l->first = (l->first + 1) & l->mask;
    l->count--;
}

static uint32_t running(const engine *e) { return e->prompt_count + e->decoding_count; }

/* --- admission ---------------------------------------------------------------------------------------------------- */

/* Steps end where windows are stored. */
static bool ends_at_windows(const run *r) {
    return run_stores_windows(r) && r->opts->window_store == CEDAR_WINDOWS_STEP;
}

static const cedar_turn_edges *edges_of(const run *r, const request *q) {
    return cedar_prefixes_turn(r->prefixes, &q->ref);
}

/* What the cache holds of the prompt, and what the arm's rules make of it, in tokens. */
static cedar_hit_plan find_hit(const run *r, const engine *e, const request *q, cedar_ledger_hit *hit) {
    cedar_ledger_find(e->ledger, e->trees[q->lane], edges_of(r, q)->find, hit);
    cedar_hit_plan plan = run_hit_plan(r, hit->hit_pages * r->engine_opts.page_tokens);
    if (hit->hit_pages && !plan.hit) {
        hit->run = -1;
        hit->depth = 0;
        hit->miss = CEDAR_MISS_SHORT_HIT;
    }
    return plan;
}

/* Takes all pages of prompt and answer, so that a running request never waits for memory. */
static cedar_status admit(run *r, engine *e, request *q, bool *admitted, cedar_err *err) {
    uint32_t page = r->engine_opts.page_tokens, fed = q->row.in_tokens + q->row.out_tokens - 1;
    cedar_status st = CEDAR_OK;
    if (!e->trees[q->lane]) st = cedar_ledger_tree_open(e->ledger, q->ref.trace, &e->trees[q->lane], err);
    if (st) return st;
    cedar_ledger_hit hit;
    cedar_hit_plan plan = find_hit(r, e, q, &hit);
    if (hit.run >= 0) cedar_ledger_pin(e->ledger, hit.run);
    uint32_t pages = (fed + page - 1) / page - plan.hit / page;
    cedar_ledger_take(e->ledger, pages, admitted);
    if (!*admitted) {
        if (hit.run >= 0) cedar_ledger_unpin(e->ledger, hit.run);
        return CEDAR_OK;
    }
    uint32_t boundary = q->row.in_tokens / page * page;
    q->node = hit.run;
    q->pages = pages;
    q->pos = q->start = plan.start;
    q->write_floor = plan.write_floor;
    q->order = e->admitted++;
    q->boundary = ends_at_windows(r) && boundary > plan.start ? boundary : 0;
    q->depth = hit.depth + (plan.replayed > 0);
    q->row.hit_tokens = plan.hit;
    q->row.matched_tokens = hit.matched_pages * page;
    q->row.provenance_depth = hit.depth;
    q->row.miss = hit.miss;
    q->row.admit_sched_ns = r->clock.sched_ns;
    q->row.admit_ns = r->clock.meter_ns;
    run_note(r, RUN_MARK_ADMIT, (uint64_t)q->row.request_id, (uint64_t)plan.hit << 32 | plan.start,
             (uint64_t)r->clock.sched_ns);
    e->items[e->prompt_count] = (cedar_sched_item){ .pos = q->pos, .prompt_tokens = q->row.in_tokens,
                                                    .boundary = q->boundary };
    e->prompts[e->prompt_count++] = q;
    e->prompt_tokens += q->row.in_tokens;
    return CEDAR_OK;
}

/* One more request, once it decodes, must not make the others miss the floor. */
static bool floor_admits(const run *r, const engine *e, const request *q) {
    if (!r->predictor.step_ns || !running(e)) return true;
    uint64_t context = q->row.in_tokens + e->prompt_tokens + e->context;
    return r->predictor.step_ns(r->predictor.self, 0, run_decode_rows(r, running(e) + 1), context) <= r->floor_step_ns;
}

static cedar_policy_state state_of(const run *r, const engine *e) {
    return (cedar_policy_state){ .now_ns = r->clock.sched_ns, .waiting = (uint32_t)e->waiting.count,
                                 .running = running(e), .decoding = e->decoding_count,
                                 .pages_free = cedar_ledger_free_pages(e->ledger),
                                 .pages_total = r->engine_opts.page_count };
}

static cedar_status admit_waiting(run *r, engine *e, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    while (!st && !e->blocked && e->waiting.count && running(e) < r->engine_opts.seq_count) {
        request *q = line_at(&e->waiting, 0);
        bool admitted = floor_admits(r, e, q);
        if (admitted && r->opts->policy) {
            const cedar_policy_state now = state_of(r, e);
            st = run_policy_admits(r, q, &now, &admitted, err);
        }
        if (st || !admitted) break;
        st = admit(r, e, q, &admitted, err);
        if (!st && admitted) line_drop_first(&e->waiting);
        e->blocked = !admitted;
    }
    return st;
}

/* --- routing ------------------------------------------------------------------------------------------------------ */

static size_t load_of(const engine *e) { return e->waiting.count + running(e); }

static uint32_t least_loaded(const run_modelled *m) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < m->count; i++)
        if (load_of(&m->engines[i]) < load_of(&m->engines[best])) best = i;
    return best;
}

/* Tokens of the prompt that an engine's prefix cache can serve. */
static uint32_t cached_tokens(const run *r, const engine *e, const request *q) {
    cedar_ledger_hit hit;
    return find_hit(r, e, q, &hit).hit;
}

/* Most of the prompt cached; then the least loaded. */
static uint32_t most_cached(const run_modelled *m, const request *q) {
    uint32_t best = 0, most = cached_tokens(m->r, &m->engines[0], q);
    for (uint32_t i = 1; i < m->count; i++) {
        uint32_t tokens = cached_tokens(m->r, &m->engines[i], q);
        bool lighter = tokens == most && load_of(&m->engines[i]) < load_of(&m->engines[best]);
        if (tokens < most || (tokens == most && !lighter)) continue;
        best = i;
        most = tokens;
    }
    return best;
}

static cedar_status ask_router(run_modelled *m, const request *q, uint32_t *out, cedar_err *err) {
    const cedar_router *router = m->r->opts->router;
    const cedar_policy_request ask = run_policy_request(m->r, q);
    for (uint32_t i = 0; i < m->count; i++) {
        const engine *e = &m->engines[i];
        const cedar_policy_state s = state_of(m->r, e);
        m->seen[i] = (cedar_policy_engine){ .waiting = s.waiting, .running = s.running, .decoding = s.decoding,
                                            .pages_free = s.pages_free, .pages_total = s.pages_total,
                                            .cached_tokens = cached_tokens(m->r, e, q) };
    }
    cedar_status st = router->route(router->self, &ask, m->seen, m->count, out, err);
    CEDAR_ASSERT(st || *out < m->count);
    return st;
}

static cedar_status route(run_modelled *m, const request *q, uint32_t *out, cedar_err *err) {
    *out = 0;
    switch (m->r->opts->routing) {
    case CEDAR_ROUTING_SESSION:
        if (m->of_session[q->lane] == NO_ENGINE) m->of_session[q->lane] = least_loaded(m);
        *out = m->of_session[q->lane];
        return CEDAR_OK;
    case CEDAR_ROUTING_ROUND_ROBIN:
        *out = m->next++ % m->count;
        return CEDAR_OK;
    case CEDAR_ROUTING_LEAST_LOADED: *out = least_loaded(m); return CEDAR_OK;
    case CEDAR_ROUTING_PREFIX: *out = most_cached(m, q); return CEDAR_OK;
    case CEDAR_ROUTING_POLICY: return ask_router(m, q, out, err);
    }
    return CEDAR_OK;
}

cedar_status run_modelled_arrive(run_modelled *m, request *q, const cedar_turn_ref *ref, cedar_err *err) {
    q->ref = *ref;
    cedar_status st = route(m, q, &q->engine, err);
    if (st) return st;
    q->row.engine = q->engine + 1;
    return line_add(&m->engines[q->engine].waiting, q, err);
}

/* --- the heap of decoding requests -------------------------------------------------------------------------------- */

static bool ends_before(const request *a, const request *b) {
    return a->ends != b->ends ? a->ends < b->ends : a->order < b->order;
}

static void heap_push(engine *e, request *q) {
    uint32_t i = e->decoding_count++;
    for (; i > 0 && ends_before(q, e->decoding[(i - 1) / 2]); i = (i - 1) / 2)
        e->decoding[i] = e->decoding[(i - 1) / 2];
    e->decoding[i] = q;
}

static request *heap_pop(engine *e) {
    request *first = e->decoding[0], *last = e->decoding[--e->decoding_count];
    uint32_t i = 0, n = e->decoding_count;
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && ends_before(e->decoding[child + 1], e->decoding[child])) child++;
        if (!ends_before(e->decoding[child], last)) break;
        e->decoding[i] = e->decoding[child];
    }
    if (n) e->decoding[i] = last;
    return first;
}

/* --- speculation -------------------------------------------------------------------------------------------------- */

/* Rows that the request's next decode step feeds, and how many of their tokens stay; as on an engine. */
static uint32_t verify_rows(const run *r, const request *q, uint32_t produced, uint32_t step, uint32_t *stay) {
    uint32_t page = r->engine_opts.page_tokens, pos = q->row.in_tokens + produced - 1,
             end = q->row.in_tokens + q->row.out_tokens - 1;
    uint32_t rows = cedar_accept_rows((uint32_t)r->opts->draft_tokens, pos, end,
                                      ends_at_windows(r) ? end / page * page : 0);
    *stay = 1 + cedar_accept_drafts(r->accept_key, q->row.request_id, step, rows - 1, r->opts->acceptance_ppb);
    return rows;
}

/* How many steps the answer takes from its first token on. */
static uint32_t decode_steps_of(const run *r, const request *q) {
    uint32_t steps = 0, stay;
    if (!r->opts->draft_tokens) return q->row.out_tokens - 1;
    for (uint32_t produced = 1; produced < q->row.out_tokens; produced += stay)
        verify_rows(r, q, produced, steps++, &stay);
    return steps;
}

/* Rows of the next decode step into the load: one of each request, or with speculation one and its drafts. */
static void load_decoding(const run *r, engine *e, cedar_cost_load *load) {
    uint64_t context = e->context;
    e->verify_rows = e->decoding_count;
    if (r->opts->draft_tokens) {
        context = e->verify_rows = e->yielded = 0;
        for (uint32_t i = 0; i < e->decoding_count; i++) {
            request *q = e->decoding[i];
            q->fed = verify_rows(r, q, q->produced, q->row.decode_steps, &q->yield);
            e->verify_rows += q->fed;
            e->yielded += q->yield;
            load->drafts += q->fed > 1;
            context += (uint64_t)q->fed * (q->row.in_tokens + q->produced) + q->fed * (q->fed - 1) / 2;
        }
    }
    load->context = load->kept_context = (double)context;
    load->rows = load->kept_rows = load->logits = e->verify_rows;
}

/* The decode step has ended: each request has its tokens. Without speculation that is the engine's count alone. */
static void count_decoded(const run *r, engine *e) {
    e->decode_steps++;
    e->context += r->opts->draft_tokens ? e->yielded : e->decoding_count;
    for (uint32_t i = 0; i < e->decoding_count && r->opts->draft_tokens; i++) {
        request *q = e->decoding[i];
        q->produced += q->yield;
        q->row.decode_steps++;
        q->row.drafted_tokens += q->fed - 1;
        q->row.accepted_tokens += q->yield - 1;
    }
}

/* Where the request stands; without speculation it follows from the engine's count. */
static void count_produced(const run *r, const engine *e, request *q) {
    if (r->opts->draft_tokens) return;
    q->produced = q->row.out_tokens - (uint32_t)(q->ends - e->decode_steps);
    q->row.decode_steps = q->produced - 1;
}

/* --- the end of a request ----------------------------------------------------------------------------------------- */

/* Stored windows of a request at its end: at the last page boundary it has passed behind the prompt's last whole page.
 * Every position from there on was the end of a step. */
static uint64_t snap_bytes(const run *r, const request *q) {
    uint32_t page = r->engine_opts.page_tokens, window = (uint32_t)r->config->window;
    uint32_t end = (q->row.in_tokens + q->row.out_tokens - 1) / page * page;
    if (!run_stores_windows(r) || end <= q->start) return 0;
    return (r->memory.window_bytes + r->memory.draft_ring_bytes) / window * (end < window ? end : window);
}

static cedar_status keep_pages(run *r, engine *e, request *q, cedar_err *err) {
    const cedar_turn_edges *edges = edges_of(r, q);
    uint32_t edge = q->phase == CEDAR_PHASE_PROFILING ? edges->all : edges->prompt;
    cedar_ledger_give(e->ledger, q->pages);
    cedar_status st = cedar_ledger_keep(e->ledger, e->trees[q->lane], edge, q->depth, snap_bytes(r, q), err);
    if (q->node >= 0) cedar_ledger_unpin(e->ledger, q->node);
    q->node = -1;
    return st;
}

static cedar_status finish(run *r, engine *e, request *q, cedar_err *err) {
    e->blocked = false;
    CEDAR_ASSERT(q->produced == q->row.out_tokens);
    q->row.last_sched_ns = r->clock.sched_ns;
    q->row.last_ns = r->clock.meter_ns;
    cedar_status st = keep_pages(r, e, q, err);
    if (!st) st = run_emit_request(r, q, err);
    if (!st) st = run_end_turn(r, q, CEDAR_TURN_DONE, r->clock.sched_ns, err);
    cedar_request_free(r, q);
    return st;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static uint32_t plan_chunks(const run *r, engine *e) {
    cedar_sched_limits limits = { .step_rows = r->engine_opts.step_rows, .step_seqs = r->engine_opts.step_seqs,
                                  .chunk_rows = (uint32_t)r->opts->chunk_tokens };
    if (r->predictor.step_ns && e->prompt_count) {
        limits.prefill_capped = true;
        limits.prefill_rows = cedar_floor_prefill_rows(&r->predictor, r->floor_step_ns, limits.step_rows,
                                                       run_decode_rows(r, e->decoding_count), e->context);
    }
    return cedar_sched_chunks(&limits, e->decoding_count, e->verify_rows, e->items, e->prompt_count, e->chunks);
}

static void describe_step(const run *r, const engine *e, cedar_step_row *row) {
    *row = (cedar_step_row){ .run_id = r->run_id,
                             .step_id = r->steps,
                             .steps = 1,
                             .engine = e->number + 1,
                             .entries = e->decoding_count + e->chunk_count,
                             .prefill_entries = e->chunk_count,
                             .decode_entries = e->decoding_count,
                             .decode_rows = e->verify_rows,
                             .rows = e->verify_rows,
                             .kept_rows = e->verify_rows,
                             .graph = run_step_graph(r),
                             .waiting = (uint32_t)e->waiting.count,
                             .running = running(e),
                             .pages_free = cedar_ledger_free_pages(e->ledger),
                             .pages_cached = cedar_ledger_cached_pages(e->ledger),
                             .window_bytes_stored = cedar_ledger_window_bytes(e->ledger),
                             .start_sched_ns = r->clock.sched_ns,
                             .start_ns = r->clock.meter_ns };
    row->kv_bytes_used = (r->engine_opts.page_count - row->pages_free) * r->memory.page_bytes;
    for (uint32_t i = 0; i < e->chunk_count; i++) {
        const cedar_plan_entry *p = &e->entries[i];
        row->rows += p->rows;
        row->prefill_rows += p->rows;
        row->replayed_rows += p->replayed;
        row->kept_rows += p->kept;
        row->trimmed |= p->kept < p->rows;
    }
}

/* One row of several steps: sums, and the most and the least of what is no sum. */
static void merge_step(cedar_step_row *to, const cedar_step_row *s) {
    uint32_t *const sums[] = { &to->steps, &to->entries, &to->prefill_entries, &to->decode_entries, &to->rows,
                               &to->prefill_rows, &to->decode_rows, &to->replayed_rows, &to->kept_rows, &to->trimmed };
    const uint32_t adds[] = { s->steps, s->entries, s->prefill_entries, s->decode_entries, s->rows,
                              s->prefill_rows, s->decode_rows, s->replayed_rows, s->kept_rows, s->trimmed };
    for (size_t i = 0; i < sizeof adds / sizeof *adds; i++) *sums[i] += adds[i];
    if (s->waiting > to->waiting) to->waiting = s->waiting;
    if (s->running > to->running) to->running = s->running;
    if (s->pages_free < to->pages_free) to->pages_free = s->pages_free;
    if (s->pages_cached > to->pages_cached) to->pages_cached = s->pages_cached;
    run_peak(&to->kv_bytes_used, s->kv_bytes_used);
    run_peak(&to->window_bytes_stored, s->window_bytes_stored);
    to->end_sched_ns = s->end_sched_ns;
    to->end_ns = s->end_ns;
    to->duration_ns += s->duration_ns;
}

static cedar_status flush_steps(run *r, engine *e, cedar_err *err) {
    if (!e->row.steps) return CEDAR_OK;
    cedar_status st = r->obs->step(r->obs->self, &e->row, err);
    e->row.steps = 0;
    return st;
}

static cedar_status emit_step(run *r, engine *e, const cedar_step_row *row, cedar_err *err) {
    run_peak(&r->result.kv_bytes_peak, row->kv_bytes_used);
    run_peak(&r->result.window_bytes_peak, row->window_bytes_stored);
    if (e->row.steps) merge_step(&e->row, row);
    else e->row = *row;
    return e->row.steps >= (uint32_t)r->opts->steps_per_row ? flush_steps(r, e, err) : CEDAR_OK;
}

/* Decode rows follow from the marks of admissions and steps, so prompt chunks alone have marks of their own. */
static void note_step(run *r, const engine *e, int64_t step_ns) {
    run_note(r, RUN_MARK_STEP, (uint64_t)e->number << 32 | e->decoding_count, (uint64_t)r->clock.sched_ns,
             (uint64_t)step_ns);
    if (r->opts->draft_tokens) run_note(r, RUN_MARK_TOKEN, e->number, e->verify_rows, e->yielded);
    for (uint32_t i = 0; i < e->chunk_count; i++) {
        const cedar_plan_entry *p = &e->entries[i];
        run_note(r, RUN_MARK_ENTRY, (uint64_t)e->prompts[i]->row.request_id, (uint64_t)p->pos << 32 | p->rows,
                 (uint64_t)p->kept << 32 | p->replayed);
    }
}

/* Plans and prices the engine's next step; nothing happens when nothing runs. */
static cedar_status begin_step(run *r, engine *e, cedar_err *err) {
    static const cedar_bounds none;
    cedar_cost_load load = { 0 };
    load_decoding(r, e, &load);
    e->chunk_count = plan_chunks(r, e);
    if (!e->chunk_count && !e->decoding_count) return CEDAR_OK;
    load.prompts = e->chunk_count > 0;
    load.sequences = e->decoding_count + e->chunk_count;
    for (uint32_t i = 0; i < e->chunk_count; i++) {
        const request *q = e->prompts[i];
        uint32_t rows = e->chunks[i].rows;
        cedar_plan_rows(&r->rules, CEDAR_ROWS_PREFILL, q->pos, rows, none, q->write_floor, false,
                        q->pos + rows == q->row.in_tokens, &e->entries[i]);
        cedar_cost_load_add(&load, q->pos, rows, e->entries[i].kept);
        load.logits += e->entries[i].logits;
    }
    int64_t ns = cedar_cost_load_ns(&r->cost, r->rules.cut, &load, &e->memo);
    r->steps++;
    note_step(r, e, ns);
    cedar_step_row row;
    describe_step(r, e, &row);
    row.end_sched_ns = e->step_end_ns = r->clock.sched_ns + ns;
    row.end_ns = row.start_ns + ns;
    row.duration_ns = ns;
    e->busy = true;
    return emit_step(r, e, &row, err);
}

/* The prompt has been fed: the first token is there. */
static void begin_decoding(run *r, engine *e, request *q, uint32_t *ended) {
    q->produced = 1;
    q->row.first_sched_ns = r->clock.sched_ns;
    q->row.first_ns = r->clock.meter_ns;
    e->prompt_tokens -= q->row.in_tokens;
    if (q->row.out_tokens == 1) {
        r->modelled->ended[(*ended)++] = q;
        return;
    }
    q->ends = e->decode_steps + decode_steps_of(r, q);
    e->context += q->row.in_tokens + 1;
    heap_push(e, q);
}

static int by_order(const void *a, const void *b) {
    const request *x = *(request *const *)a, *y = *(request *const *)b;
    return (x->order > y->order) - (x->order < y->order);
}

static cedar_status end_step(run *r, engine *e, cedar_err *err) {
    uint32_t ended = 0, kept = 0;
    e->busy = false;
    count_decoded(r, e);
    while (e->decoding_count && e->decoding[0]->ends == e->decode_steps) {
        request *q = heap_pop(e);
        count_produced(r, e, q);
        e->context -= q->row.in_tokens + q->row.out_tokens;
        r->modelled->ended[ended++] = q;
    }
    for (uint32_t i = 0; i < e->chunk_count; i++) {
        request *q = e->prompts[i];
        const cedar_plan_entry *p = &e->entries[i];
        q->pos += p->rows;
        q->row.prefill_steps++;
        q->row.replayed_tokens += p->replayed;
        q->row.trimmed_tokens += p->rows - p->kept;
        if (q->pos == q->row.in_tokens) {
            begin_decoding(r, e, q, &ended);
            continue;
        }
        e->items[kept] = e->items[i];
        e->items[kept].pos = q->pos;
        e->prompts[kept++] = q;
    }
    if (kept < e->chunk_count) {
        uint32_t rest = e->prompt_count - e->chunk_count;
        memmove(e->prompts + kept, e->prompts + e->chunk_count, rest * sizeof *e->prompts);
        memmove(e->items + kept, e->items + e->chunk_count, rest * sizeof *e->items);
        e->prompt_count = kept + rest;
    }
    qsort(r->modelled->ended, ended, sizeof *r->modelled->ended, by_order);
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < ended; i++) {
        if (!st) st = finish(r, e, r->modelled->ended[i], err);
        else cedar_request_free(r, r->modelled->ended[i]);
    }
    return st;
}

/* --- what the end of the run or of the warm-up finds on its way --------------------------------------------------- */

/* Running requests in order of admission, with their rows as far as they have come; scratch. */
static uint32_t gather_running(run_modelled *m, const engine *e) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->prompt_count; i++) m->ended[n++] = e->prompts[i];
    for (uint32_t i = 0; i < e->decoding_count; i++) {
        request *q = e->decoding[i];
        count_produced(m->r, e, q);
        m->ended[n++] = q;
    }
    qsort(m->ended, n, sizeof *m->ended, by_order);
    return n;
}

cedar_status run_modelled_unfinished(run_modelled *m, cedar_err *err) {
    run *r = m->r;
    cedar_status st = CEDAR_OK;
    for (uint32_t k = 0; k < m->count && !st; k++) {
        engine *e = &m->engines[k];
        st = flush_steps(r, e, err);
        uint32_t n = gather_running(m, e);
        for (uint32_t i = 0; i < n && !st; i++, r->requests_unfinished++) {
            m->ended[i]->row.error = RUN_CUT_RUNNING;
            st = run_emit_request(r, m->ended[i], err);
        }
        for (size_t i = 0; i < e->waiting.count && !st; i++, r->requests_unfinished++) {
            line_at(&e->waiting, i)->row.error = RUN_CUT_WAITING;
            st = run_emit_request(r, line_at(&e->waiting, i), err);
        }
    }
    return st;
}

static cedar_status cut_warmup(run *r, engine *e, request *q, cedar_err *err) {
    cedar_ledger_give(e->ledger, q->pages);
    return run_cut_warmup(r, q, err);
}

static cedar_status cut_engine(run_modelled *m, engine *e, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    uint32_t n = gather_running(m, e);
    e->blocked = false;
    e->prompt_count = e->decoding_count = e->chunk_count = 0;
    e->prompt_tokens = e->context = 0;
    while (!st && n) st = cut_warmup(m->r, e, m->ended[--n], err);
    memcpy(e->prompts, m->ended, n * sizeof *e->prompts);      /* what a failure leaves is reported as unfinished */
    e->prompt_count = n;
    while (!st && e->waiting.count) st = cut_warmup(m->r, e, line_at(&e->waiting, --e->waiting.count), err);
    return st;
}

static bool at_work(const run_modelled *m) {
    for (uint32_t i = 0; i < m->count; i++)
        if (running(&m->engines[i]) || m->engines[i].waiting.count) return true;
    return false;
}

/* All warm-up requests are sent: what has not ended within the grace is cut, once no step is under way. */
static cedar_status drain_warmup(run_modelled *m, cedar_err *err) {
    if (!run_warmup_late(m->r, at_work(m))) return CEDAR_OK;
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < m->count && !st; i++)
        if (!m->engines[i].busy) st = cut_engine(m, &m->engines[i], err);
    return st;
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static cedar_status stuck(const run_modelled *m, cedar_err *err) {
    for (uint32_t i = 0; i < m->count; i++) {
        const engine *e = &m->engines[i];
        if (!e->waiting.count) continue;
        const request *q = line_at(&e->waiting, 0);
        return cedar_fail(err, CEDAR_E_LIVENESS,
                          "no progress is possible at schedule time %" PRId64 " ns: %zu requests wait, the first "
                          "is request %" PRId64 " of %u + %u tokens, nothing runs, and %u of %u KV pages are free",
                          m->r->clock.sched_ns, e->waiting.count, q->row.request_id, q->row.in_tokens,
                          q->row.out_tokens, cedar_ledger_free_pages(e->ledger), m->r->engine_opts.page_count);
    }
    return CEDAR_OK;
}

/* Time of the first step that ends, INT64_MAX when none is under way. */
static int64_t first_end(const run_modelled *m) {
    int64_t first = INT64_MAX;
    for (uint32_t i = 0; i < m->count; i++)
        if (m->engines[i].busy && m->engines[i].step_end_ns < first) first = m->engines[i].step_end_ns;
    return first;
}

/* Looked at before the first step and right behind the beginning of each: the step at hand is then the last one, and
 * the run ends when no step is under way. A replay that is told so when that step begins reaches the same events. */
static void look_for_stop(run_modelled *m) { m->stopping |= m->r->host->stop && *m->r->host->stop; }

/* Free engines admit what waits and begin their steps. */
static cedar_status begin_steps(run_modelled *m, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    if (m->stopping) return CEDAR_OK;
    for (uint32_t i = 0; i < m->count && !st; i++)
        if (!m->engines[i].busy) st = admit_waiting(m->r, &m->engines[i], err);
    if (!st && m->r->profile_sched_ns < 0) st = drain_warmup(m, err);
    for (uint32_t i = 0; i < m->count && !st && !m->stopping; i++) {
        if (m->engines[i].busy) continue;
        st = begin_step(m->r, &m->engines[i], err);
        if (m->engines[i].busy) look_for_stop(m);
    }
    return st;
}

static cedar_status end_steps(run_modelled *m, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    int64_t now = m->r->clock.sched_ns;
    for (uint32_t i = 0; i < m->count && !st; i++)
        if (m->engines[i].busy && m->engines[i].step_end_ns == now) st = end_step(m->r, &m->engines[i], err);
    return st;
}

cedar_status run_modelled_loop(run_modelled *m, cedar_err *err) {
    run *r = m->r;
    cedar_status st = cedar_lanes_start(r->lanes, &r->events, err);
    bool over = false;
    look_for_stop(m);
    while (!st && !over) {
        st = run_handle_until(r, r->clock.sched_ns, err);
        if (!st) st = begin_steps(m, err);
        if (st) break;
        const cedar_event *next = cedar_lanes_next(r->lanes, &r->events);
        int64_t end = first_end(m);
        if (end == INT64_MAX && m->stopping) {
            st = cedar_fail(err, CEDAR_E_INTERRUPT, "stopped by the user");
        } else if (end < INT64_MAX) {
            /* what comes due while a step runs arrives before its results do */
            bool event = next && next->time_ns < end;
            cedar_clock_idle(&r->clock, event ? next->time_ns : end);
            if (!event) st = end_steps(m, err);
            if (r->steps % PROGRESS_STEPS == 0) run_progress(r);
        } else if (at_work(m)) {
            if (!next || next->time_ns > r->clock.sched_ns) st = stuck(m, err);
        } else {
            st = run_idle(r, &over, err);
        }
    }
    for (uint32_t i = 0; i < m->count && !st; i++) st = flush_steps(r, &m->engines[i], err);
    return st;
}
