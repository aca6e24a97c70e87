/* What a run is made of: traces, model, rules, engine, cache, exact shadow and buffers, from the options. */
#include <inttypes.h>
#include <math.h>

#include "base/mem.h"
#include "sim/accept.h"
#include "sim/assume.h"
#include "sim/run_int.h"

/* Share of described device memory that weights, windows and pages may take; the rest is for activations. */
static const double MEMORY_SHARE = 0.95;

typedef cedar_run_state run;

static cedar_status refuse_early(const run *r, cedar_err *err) {
    const cedar_run_opts *o = r->opts;
    if (o->quality && o->continuation != CEDAR_CONTINUATION_FORCED)
        return cedar_fail(err, CEDAR_E_ARG,
                          "quality = true compares the arm with exact recomputation on the same tokens, so it "
                          "needs continuation = \"forced\"");
    if (*o->admission && !o->policy)
        return cedar_fail(err, CEDAR_E_ARG,
                          "admission = \"%.64s\" names a policy; give it as a function, in a scenario", o->admission);
    if (o->routing == CEDAR_ROUTING_POLICY && cedar_run_backend(o) != CEDAR_BACKEND_NONE)
        return cedar_fail(err, CEDAR_E_ARG, "routing: a function is asked only where engines are modelled and compute "
                          "nothing; take clock = \"modelled\" and backend = \"none\"");
    if (o->routing == CEDAR_ROUTING_POLICY && !o->router)
        return cedar_fail(err, CEDAR_E_ARG, "routing = \"policy\" needs a function, which a scenario can give: "
                          "routing = function(request, engines) ... end");
    if (o->engines > 1 && cedar_run_backend(o) != CEDAR_BACKEND_NONE)
        return cedar_fail(err, CEDAR_E_ARG,
                          "engines = %" PRId64 ": a run has several engines only when they are modelled and compute "
                          "nothing; take clock = \"modelled\" and backend = \"none\"", o->engines);
    if (o->steps_per_row > 1 && cedar_run_backend(o) != CEDAR_BACKEND_NONE)
        return cedar_fail(err, CEDAR_E_ARG,
                          "steps_per_row = %" PRId64 ": steps are summed up only where they are modelled and compute "
                          "nothing; else the duration of each is needed to replay them", o->steps_per_row);
    if (o->draft_tokens && !o->acceptance_ppb && cedar_run_backend(o) == CEDAR_BACKEND_NONE)
        return cedar_fail(err, CEDAR_E_ARG, "draft_tokens = %" PRId64 ": nothing verifies drafts where nothing is "
                          "computed; give acceptance_length, for example 3.51", o->draft_tokens);
    if (o->clock == CEDAR_CLOCK_RECORDED && !r->host->recorded)
        return cedar_fail(err, CEDAR_E_ARG,
                          "clock = \"recorded\" needs the durations of an earlier run; use `cedar replay RUN.db`");
    if (o->clock == CEDAR_CLOCK_MODELLED && (!*o->hardware || !r->host->hardware))
        return cedar_fail(err, CEDAR_E_ARG, "clock = \"modelled\" needs hardware to price, e.g. hardware = \"h200\"");
    if (o->clock != CEDAR_CLOCK_MODELLED && o->backend == CEDAR_BACKEND_NONE)
        return cedar_fail(err, CEDAR_E_ARG,
                          "backend = \"none\" computes nothing that could be measured; it needs clock = \"modelled\"");
    if (cedar_run_backend(o) == CEDAR_BACKEND_NONE && (o->quality || o->continuation == CEDAR_CONTINUATION_GREEDY))
        return cedar_fail(err, CEDAR_E_ARG,
                          "modelled time without an engine has no logits; quality = true and continuation = "
                          "\"greedy\" need backend = \"cpu\" or \"cuda\"");
    return CEDAR_OK;
}

/* Switches that only the cost model has. */
static cedar_status refuse_switches(const run *r, cedar_err *err) {
    const cedar_run_opts *o = r->opts;
    bool modelled = o->clock == CEDAR_CLOCK_MODELLED, bare = cedar_run_backend(o) == CEDAR_BACKEND_NONE;
    const struct { const char *key; bool set, can; const char *why; } switches[] = {
        { "graphs", o->graphs == CEDAR_GRAPHS_DECODE || o->graphs == CEDAR_GRAPHS_TRIMMED, modelled,
          "an engine launches all steps in one way" },
        { "kv_rows", o->kv_rows != CEDAR_KV_ROWS_FP4, bare, "the engine's global rows are FP4" },
        { "window_store", o->window_store != CEDAR_WINDOWS_STEP, bare,
          "the engine stores windows at the end of a step" },
        { "kernels", o->kernels != CEDAR_KERNELS_SEPARATE, modelled, "an engine has the kernels that it has" },
        { "side_stream", o->side_stream, modelled, "a GPU has side streams unless one_stream = true" },
        { "assume", *o->assume, modelled, "time is taken from a clock, not worked out from figures" },
    };
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (switches[i].set && !switches[i].can)
            return cedar_fail(err, CEDAR_E_UNSUPPORTED, "%s = \"%s\": %s; take clock = \"modelled\"%s", switches[i].key,
                              cedar_opts_get(o, switches[i].key), switches[i].why,
                              modelled ? " and backend = \"none\"" : "");
    if (modelled && o->one_stream)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "one_stream = true is of a GPU that computes; in modelled time "
                          "side_stream is the switch");
    if (modelled && o->allreduce == CEDAR_ALLREDUCE_NCCL)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "allreduce = \"nccl\": the cost model has no price for it; take "
                          "\"plain\" or \"fused\"");
    return CEDAR_OK;
}

cedar_backend_kind cedar_run_backend(const cedar_run_opts *o) {
    return o->clock == CEDAR_CLOCK_MODELLED && o->backend == CEDAR_BACKEND_AUTO ? CEDAR_BACKEND_NONE : o->backend;
}

void cedar_run_special_ids(const cedar_config *c, cedar_prompt_rules *rules) {
    int32_t a = c->stages ? c->draft_noise : -1, b = c->engram_layer_count ? c->engram_pad : -1;
    if (a > b) {
        int32_t t = a;
        a = b;
        b = t;
    }
    if (a >= 0 && a < c->vocab) rules->special[rules->special_count++] = a;
    if (b >= 0 && b < c->vocab && b != a) rules->special[rules->special_count++] = b;
}

cedar_replay_rules cedar_run_replay_rules(const cedar_run_opts *o, const cedar_config *c) {
    uint32_t window = (uint32_t)c->window;
    return (cedar_replay_rules){ .window = window,
                                 .decoder = (o->replay == CEDAR_REPLAY_DECODER || o->replay == CEDAR_REPLAY_BOTH) &&
                                            o->graphs != CEDAR_GRAPHS_FULL,
                                 .encoder = o->replay == CEDAR_REPLAY_ENCODER || o->replay == CEDAR_REPLAY_BOTH,
                                 .cut = o->cut,
                                 .encoder_rows = o->encoder_rows ? (uint32_t)o->encoder_rows : window,
                                 .decoder_rows = o->decoder_rows ? (uint32_t)o->decoder_rows : window,
                                 .adopt_short_hits = o->adopt_short_hits };
}

static void make_rules(run *r) {
    const cedar_run_opts *o = r->opts;
    r->rules = cedar_run_replay_rules(o, r->config);
    r->lane_rules = (cedar_lane_rules){
        .lanes = (uint32_t)o->lanes, .passes = (uint32_t)o->passes, .turns_max = (uint32_t)o->turns_max,
        .seed = (uint64_t)o->seed, .shuffle = o->order == CEDAR_ORDER_SHUFFLE, .time_scale_ppb = o->time_scale_ppb,
        .think_cap_ns = o->think_cap_ns, .recycle = o->recycle, .barriers = o->barriers,
        .end_on_error = o->on_error == CEDAR_ON_ERROR_END, .no_salt = o->salt == CEDAR_SALT_NONE,
        .burst = o->primers == CEDAR_PRIMERS_BURST, .start_lo = (double)o->start_lo_ppb / 1e9,
        .start_hi = (double)o->start_hi_ppb / 1e9, .warmup_requests = (uint32_t)o->warmup_requests,
        .tree_cap_ns = o->tree_idle_cap_ns, .global_cap_ns = o->global_idle_cap_ns };
    r->prompt_rules = (cedar_prompt_rules){ .vocab = r->config->vocab, .length_num = (uint32_t)o->length_num,
                                            .length_den = (uint32_t)o->length_den };
    cedar_run_special_ids(r->config, &r->prompt_rules);
    r->accept_key = cedar_accept_key((uint64_t)o->seed);
    r->context_max = (uint32_t)r->config->positions_max;
    if (o->context_max && o->context_max < r->context_max) r->context_max = (uint32_t)o->context_max;
}

/* Longest sequence that will be played, and the most streams of one tree. */
static void measure_traces(const run *r, uint32_t *longest, uint32_t *streams) {
    *longest = *streams = 1;
    for (uint32_t i = 0; i < r->corpus->trace_count; i++) {
        const cedar_trace *t = &r->corpus->traces[i];
        if (t->stream_count > *streams) *streams = t->stream_count;
        for (uint32_t s = 0; s < t->stream_count; s++)
            for (uint32_t k = 0; k < cedar_lanes_turns(&r->lane_rules, t, s); k++) {
                const cedar_turn *turn = &t->streams[s].turns[k];
                uint64_t in = cedar_prompt_scale(&r->prompt_rules, turn->in_tokens);
                uint64_t n = in + cedar_prompt_scale(&r->prompt_rules, turn->out_tokens);
                if (n <= r->context_max && n > *longest) *longest = (uint32_t)n;
                if (r->lanes->warming && in < r->context_max && in >= *longest) *longest = (uint32_t)in + 1;
            }
    }
}

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static void make_engine_opts(run *r) {
    const cedar_run_opts *o = r->opts;
    uint32_t longest, streams;
    measure_traces(r, &longest, &streams);
    uint64_t decode_rows = (uint64_t)o->draft_tokens + 1;       /* of a sequence: all of them fit into a step */
    uint64_t seqs = min_u64((uint64_t)o->lanes * streams, (uint64_t)o->step_tokens / decode_rows);
    seqs = min_u64(seqs, o->batch_max ? (uint64_t)o->batch_max : 4096);
    cedar_engine_opts *e = &r->engine_opts;
    *e = cedar_engine_defaults(r->config);
    static const char *const backends[] = { "auto", "cpu", "cuda", "none" };     /* others have no engine */
    e->backend = backends[cedar_run_backend(o)];
    e->eager = o->graphs == CEDAR_GRAPHS_OFF;
    e->arith = o->arith;
    e->threads = (uint32_t)o->threads;
    e->gpus = (uint32_t)o->gpus;
    e->one_stream = o->one_stream;
    e->stop = r->host->stop;
    if (o->clock != CEDAR_CLOCK_MODELLED) e->allreduce = o->allreduce;
    e->page_tokens = (uint32_t)o->page_tokens;
    uint64_t pages = (longest + e->page_tokens - 1) / e->page_tokens;
    e->page_count = (uint32_t)min_u64(o->kv_pages ? (uint64_t)o->kv_pages : 4 * (uint64_t)o->lanes * pages, INT32_MAX);
    e->seq_count = (uint32_t)seqs;
    e->context_tokens = longest;
    e->step_rows = (uint32_t)o->step_tokens;
    e->step_seqs = e->seq_count;
    e->verify_rows = (uint32_t)o->draft_tokens;
}

static int64_t paced_step_ns(void *self, uint32_t prefill_rows, uint32_t decode_rows, uint64_t context_sum) {
    const cedar_run_opts *o = self;
    (void)context_sum;
    return cedar_clock_pace(o->pace_step_us, o->pace_row_us, prefill_rows + decode_rows);
}

static int64_t modelled_step_ns(void *self, uint32_t prefill_rows, uint32_t decode_rows, uint64_t context_sum) {
    const run *r = self;
    uint32_t seqs = decode_rows / (uint32_t)(r->opts->draft_tokens + 1);
    return cedar_cost_predict_ns(&r->cost, seqs, seqs ? (uint32_t)(context_sum / seqs) : 0, prefill_rows, 0);
}

static int64_t learnt_step_ns(void *self, uint32_t prefill_rows, uint32_t decode_rows, uint64_t context_sum) {
    (void)context_sum;
    return cedar_step_history_ns(self, prefill_rows + decode_rows);
}

/* The floor is kept on the schedule axis: steps have fixed prices there, or the lengths seen so far. */
static void make_floor(run *r) {
    const cedar_run_opts *o = r->opts;
    if (!o->floor_ppb || o->floor_mode != CEDAR_FLOOR_ADMIT) return;
    r->floor_step_ns = cedar_floor_step_ns(o->floor_ppb);
    /* A step that makes several tokens may take as many times longer. How many drafts real verification will keep
     * nobody knows beforehand: there the floor is kept as if it were none. */
    if (o->acceptance_ppb)
        r->floor_step_ns = (int64_t)((__int128)r->floor_step_ns * o->acceptance_ppb / 1000000000);
    if (o->clock == CEDAR_CLOCK_MODELLED) r->predictor = (cedar_predictor){ r, modelled_step_ns };
    else if (o->pace == CEDAR_PACE_FIXED) r->predictor = (cedar_predictor){ (void *)(uintptr_t)o, paced_step_ns };
    else r->predictor = (cedar_predictor){ &r->history, learnt_step_ns };
}

/* What the same pages take with FP8 rows. */
static void widen_rows(run *r) {
    cedar_memory_plan *m = &r->memory;
    uint64_t from = m->kv_entry_bytes + m->index_entry_bytes, to = cedar_cost_fp8_row_bytes(r->config);
    uint64_t *const figures[] = { &m->page_bytes, &m->kv_token_bytes_x1000 };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) *figures[i] = *figures[i] * to / from;
}

static cedar_cost_switches switches_of(const cedar_run_opts *o) {
    return (cedar_cost_switches){ .graphs = o->graphs,
                                  .fp8_rows = o->kv_rows == CEDAR_KV_ROWS_FP8,
                                  .fused_kernels = o->kernels == CEDAR_KERNELS_FUSED,
                                  .side_stream = o->side_stream,
                                  .fused_allreduce = o->allreduce == CEDAR_ALLREDUCE_FUSED,
                                  .draft_tokens = (uint32_t)o->draft_tokens };
}

/* Prices, and what the described memory holds: weights (Engram tables lie in host memory), then pages, windows, and
 * what stored windows may take. */
static cedar_status make_cost(run *r, cedar_err *err) {
    const cedar_run_opts *o = r->opts;
    r->result.kv_tokens_fit = (double)NAN;
    if (o->clock != CEDAR_CLOCK_MODELLED) return CEDAR_OK;
    const cedar_cost_switches on = switches_of(o);
    cedar_status st = r->host->hardware(r->host->data_dir, o->hardware, &r->hardware, err);
    if (!st) st = cedar_hardware_assume(&r->hardware, o->assume, err);
    if (!st && o->gpus > 1 && (double)o->gpus != r->hardware.gpus)
        st = cedar_fail(err, CEDAR_E_ARG, "gpus = %lld, but modelled time has the price of hardware \"%s\", %g GPU(s); "
                        "add assume = \"gpus=%lld\", or take other hardware",
                        (long long)o->gpus, r->hardware.name, r->hardware.gpus, (long long)o->gpus);
    if (!st) st = cedar_cost_make(r->config, &r->hardware, &on, &r->cost, err);
    if (st) return st;
    if (on.fp8_rows) widen_rows(r);
    double room = r->hardware.gpus * r->hardware.hbm_bytes * MEMORY_SHARE,
           weights = cedar_cost_weight_bytes(r->config, r->hardware.attention_ranks);
    double needed =
        weights + (double)r->engine_opts.seq_count * (double)(r->memory.window_bytes + r->memory.draft_ring_bytes);
    if (needed + (double)r->memory.page_bytes > room)
        return cedar_fail(
            err, CEDAR_E_BUDGET,
            "%s: weights and windows of %s need %.1f GB, %.1f GB of %g GPU(s) are usable; describe more GPUs "
            "or take fewer lanes",
            r->hardware.name, r->config->name, needed / 1e9, room / 1e9, r->hardware.gpus);
    double pages = (room - needed - (double)o->window_cache_bytes) / (double)r->memory.page_bytes;
    r->result.kv_tokens_fit = floor(pages < 0 ? 0 : pages) * r->engine_opts.page_tokens;
    if (o->kv_pages) return CEDAR_OK;
    if (pages < 1)
        return cedar_fail(err, CEDAR_E_BUDGET, "%s: window_cache_bytes leaves no room for KV pages in %.1f GB",
                          r->hardware.name, room / 1e9);
    if (pages < r->engine_opts.page_count) r->engine_opts.page_count = (uint32_t)pages;
    return CEDAR_OK;
}

static cedar_status open_cache(run *r, cedar_err *err) {
    if (!r->opts->prefix_cache) return CEDAR_OK;
    cedar_cache_opts o = { .page_tokens = r->engine_opts.page_tokens, .page_count = r->engine_opts.page_count,
                           .windows = !r->rules.encoder, .window_bytes_max = (uint64_t)r->opts->window_cache_bytes };
    cedar_cache_host h = cedar_cache_engine_host(r->engine);
    return cedar_cache_new(&o, &h, &r->cache, err);
}

static cedar_status open_quality(run *r, cedar_err *err) {
    if (!r->opts->quality) return CEDAR_OK;
    const cedar_engine_opts *e = &r->engine_opts;
    uint32_t alive = e->seq_count > (uint32_t)r->opts->lanes ? e->seq_count : (uint32_t)r->opts->lanes;
    uint32_t decode_rows = e->verify_rows + 1;
    r->logit_rows = r->opts->prompt_scores ? e->step_rows : e->step_seqs * decode_rows;
    r->logits = cedar_calloc(r->logit_rows, (size_t)r->config->vocab * sizeof *r->logits);
    if (!r->logits)
        return cedar_fail(err, CEDAR_E_OOM, "no memory for %u rows of %d logits", r->logit_rows, r->config->vocab);
    return cedar_quality_open(r->model, e, alive, r->opts->prompt_scores ? e->step_rows : decode_rows, &r->quality,
                              err);
}

static cedar_status open_buffers(run *r, cedar_err *err) {
    const cedar_engine_opts *e = &r->engine_opts;
    r->running = cedar_calloc(e->seq_count, sizeof *r->running);
    r->items = cedar_calloc(e->seq_count, sizeof *r->items);
    r->slices = cedar_calloc(e->seq_count, sizeof *r->slices);
    r->entries = cedar_calloc(e->seq_count, sizeof *r->entries);
    r->pages = cedar_calloc((size_t)e->context_tokens / e->page_tokens + 1, sizeof *r->pages);
    r->argmax = cedar_calloc(e->step_rows, sizeof *r->argmax);
    if (r->running && r->items && r->slices && r->entries && r->pages && r->argmax) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_OOM, "no memory for steps of %u sequences", e->seq_count);
}

static cedar_status open_engine(run *r, cedar_err *err) {
    cedar_status st = cedar_engine_open(r->model, &r->engine_opts, &r->engine, err);
    if (st) return st;
    r->engine_opts.backend = cedar_engine_options(r->engine)->backend;
    st = open_cache(r, err);
    if (!st && r->opts->draft_tokens) st = run_drafts_new(r, &r->drafts, err);
    if (!st) st = open_quality(r, err);
    return st ? st : open_buffers(r, err);
}

static cedar_status open_modelled(run *r, cedar_err *err) {
    cedar_status st = cedar_prefixes_new(r->prompts, r->corpus, r->engine_opts.page_tokens, !r->lane_rules.no_salt,
                                         &r->prefixes, err);
    return st ? st : run_modelled_new(r, &r->modelled, err);
}

cedar_status cedar_run_open(run *r, cedar_err *err) {
    const cedar_run_opts *o = r->opts;
    cedar_status st = cedar_opts_check(o, err);
    if (!st) st = refuse_early(r, err);
    if (!st) st = refuse_switches(r, err);
    cedar_run_cache *cache = r->host->cache;
    if (!st) st = cedar_run_load_corpus(cache, o, r->host->data_dir, &r->corpus, err);
    bool http = cedar_run_backend(o) == CEDAR_BACKEND_HTTP;
    if (!st && http) st = run_http_new(r, &r->http, err);
    if (!st && !http) st = cedar_run_load_model(cache, o, r->host->data_dir, &r->model, r->origin, r->model_hash, err);
    if (st) return st;
    if (!http) r->config = cedar_model_config(r->model);
    make_rules(r);
    make_floor(r);
    st = cedar_prompts_new(r->corpus, &r->prompt_rules, &r->prompts, err);
    if (!st) st = cedar_lanes_new(r->corpus, &r->lane_rules, &r->lanes, err);
    if (st) return st;
    r->planned = cedar_lanes_planned(r->lanes);
    if (o->recycle) r->planned = (uint64_t)o->requests_max;
    else if (o->requests_max) r->planned = min_u64(r->planned, (uint64_t)o->requests_max);
    if (http) return CEDAR_OK;
    make_engine_opts(r);
    st = cedar_engine_gpus_check(r->engine_opts.backend, r->engine_opts.gpus, err);
    if (!st) st = cedar_plan_memory(r->config, &r->engine_opts, &r->memory, err);
    if (!st) st = make_cost(r, err);
    if (st) return st;
    return cedar_run_backend(o) == CEDAR_BACKEND_NONE ? open_modelled(r, err) : open_engine(r, err);
}

/* --- closing ------------------------------------------------------------------------------------------------------ */

void cedar_request_free(run *r, cedar_request *q) {
    if (!q) return;
    if (q->seq >= 0) cedar_seq_close(r->engine, q->seq);
    if (q->node >= 0 && r->modelled) run_modelled_unpin(r->modelled, q);
    else if (q->node >= 0) cedar_cache_unpin(r->cache, q->node);
    cedar_snap_free(q->snap);
    cedar_free(q->tokens);
    q->next = r->spare;
    r->spare = q;
}

cedar_status cedar_run_close(run *r, cedar_err *err) {
    for (uint32_t i = 0; i < r->running_count; i++) cedar_request_free(r, r->running[i]);
    for (size_t i = 0; i < r->waiting_count; i++) cedar_request_free(r, r->waiting[i]);
    run_modelled_free(r->modelled);
    run_http_free(r->http);
    cedar_prefixes_free(r->prefixes);
    cedar_cache_free(r->cache);
    cedar_status st = cedar_quality_close(r->quality, err);
    run_drafts_free(r->drafts);
    cedar_status closed = cedar_engine_close(r->engine, err);
    cedar_lanes_free(r->lanes);
    cedar_prompts_free(r->prompts);
    if (!r->host->cache) {
        cedar_corpus_free(r->corpus);
        cedar_model_close(r->model);
    }
    while (r->spare) {
        cedar_request *q = r->spare;
        r->spare = q->next;
        cedar_free(q);
    }
    cedar_events_free(&r->events);
    cedar_samples_free(&r->ttft);
    cedar_samples_free(&r->itl);
    cedar_samples_free(&r->kl);
    cedar_samples_free(&r->dlogp);
    void *const buffers[] = { r->waiting, r->running, r->items, r->slices, r->entries, r->pages, r->argmax, r->logits };
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) cedar_free(buffers[i]);
    cedar_free(r);
    return st ? st : closed;
}
