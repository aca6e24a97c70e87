/* cedar bench gpu: how close the CUDA engine comes to what the device can do, each figure beside a limit that was
 * measured in the same process.
 *
 * Operators (engine/gpu_bench.h) are timed by the device, alternating inputs; steps by the engine, from plan to result,
 * so that they include the host's part. A row is repeated `repeat` times, or as often as fits ROW_SECONDS but at least
 * three times; shown are median, least, and the 90th percentile. */
#include <getopt.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/version.h"
#include "engine/gpu_bench.h"
#include "sim/cli_int.h"
#include "sim/percentile.h"
#include "sim/sim_int.h"

enum { REPEAT_MAX = 999, WARM = 20, RESULTS_MAX = 256, FILTERS_MAX = 32, BATCH_MAX = 32, CHUNK = 2048, LONG = 32768 };
static const double ROW_SECONDS = 5;

typedef struct result {
    char name[40];
    double p50, least, p90;     /* microseconds */
    uint32_t n;
} result;

/* How an engine differs from others of the bench. */
typedef struct engine_kind {
    bool eager, one_stream;
    uint32_t gpus;
    cedar_allreduce allreduce;
} engine_kind;

typedef struct bench {
    const char *filter[FILTERS_MAX];
    bool filter_met[FILTERS_MAX];
    uint32_t filters, repeat;
    bool csv;
    engine_kind kind;           /* of the open engine */
    char data_dir[1024];
    double bandwidth, matrix;   /* measured: bytes and operations a second */
    cedar_config c;
    cedar_model *model;
    cedar_engine *e;
    int32_t *tokens;            /* [LONG + CHUNK] */
    uint32_t experts_seen[BATCH_MAX + 1];   /* over all layers in one step of a batch; 0 = not counted yet */
    uint8_t *seen;              /* [layers, experts] */
    result results[RESULTS_MAX];
    uint32_t count;
} bench;

/* --- results ------------------------------------------------------------------------------------------------------ */

static bool wanted(bench *b, const char *name) {
    bool any = b->filters == 0;
    for (uint32_t i = 0; i < b->filters; i++) {
        bool begins = !strncmp(name, b->filter[i], strlen(b->filter[i]));
        b->filter_met[i] |= begins;
        any |= begins;
    }
    return any;
}

/* A filter that no row begins with is a mistake, which must not pass for a bench without findings. */
static cedar_status check_filters(const bench *b, cedar_err *err) {
    for (uint32_t i = 0; i < b->filters; i++)
        if (!b->filter_met[i])
            return cedar_fail(err, CEDAR_E_ARG, "--row \"%.64s\": no row begins so; without --row all are measured and "
                              "named", b->filter[i]);
    return CEDAR_OK;
}

static const result *find(const bench *b, const char *name) {
    for (uint32_t i = 0; i < b->count; i++)
        if (!strcmp(b->results[i].name, name)) return &b->results[i];
    return NULL;
}

static const result *keep(bench *b, const char *name, double *us, uint32_t n) {
    cedar_sort_real(us, n);
    CEDAR_ASSERT(b->count < RESULTS_MAX);
    result *r = &b->results[b->count++];
    *r = (result){ .p50 = cedar_percentile(us, n, 50), .least = us[0], .p90 = cedar_percentile(us, n, 90), .n = n };
    snprintf(r->name, sizeof r->name, "%s", name);
    return r;
}

/* value: what the row is about, in `unit`; r: the times behind it, or NULL; goal 0: none, below 0: at most that. */
static void print_row(const bench *b, const char *name, double value, const char *unit, const result *r, double goal,
                      const char *what) {
    const char *met = goal > 0 ? value >= goal ? "yes" : "no" : goal < 0 ? value <= -goal ? "yes" : "no" : "";
    double p50 = r ? r->p50 : 0, least = r ? r->least : 0, p90 = r ? r->p90 : 0;
    uint32_t n = r ? r->n : 0;
    if (b->csv) {
        printf("%s,%.4g,%s,%.4g,%.4g,%.4g,%u,%g,%s,\"%s\"\n", name, value, unit, p50, least, p90, n, goal, met, what);
    } else {
        printf("%-24s %9.4g %-8s", name, value, unit);
        if (r) printf(" %11.2f %11.2f %11.2f %4u", p50, least, p90, n);
        else printf(" %11s %11s %11s %4s", "", "", "", "");
        if (goal > 0) printf("  >= %-5g %-3s", goal, met);
        else if (goal < 0) printf("  <= %-5g %-3s", -goal, met);
        else printf("  %-12s", "");
        printf("  %s\n", what);
    }
    fflush(stdout);
}

static void print_head(const bench *b, const cedar_gpu_device *d, const char *model) {
    char driver[256] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    if (f && fgets(driver, sizeof driver, f)) driver[strcspn(driver, "\n")] = 0;
    if (f) fclose(f);
    const char *mark = b->csv ? "# " : "";
    printf("%scedar %s, commit %s%s, %s %s\n", mark, cedar_version(), cedar_build_commit(),
           cedar_build_dirty() ? " (changed)" : "", cedar_build_compiler(), cedar_build_flags());
    printf("%s%s, %d multiprocessors, %.1f GB; CUDA of the driver %d.%d, of the program %d.%d; %s\n", mark, d->name,
           d->multiprocessors, (double)d->bytes / 1e9, d->driver / 1000, d->driver % 1000 / 10, d->runtime / 1000,
           d->runtime % 1000 / 10, driver);
    printf("%smodel %s, seeded weights, bf16 arithmetic; %d warm-up runs; times in microseconds\n", mark, model, WARM);
    if (b->csv) puts("row,value,unit,p50_us,least_us,p90_us,repeats,goal,met,what");
    else
        printf("\n%-24s %9s %-8s %11s %11s %11s %4s  %-12s  what\n", "row", "value", "", "p50", "least", "p90", "n",
               "goal");
}

/* --- operators ---------------------------------------------------------------------------------------------------- */

static cedar_status operator_row(bench *b, cedar_gpu_bench *g, uint32_t i, cedar_err *err) {
    const cedar_gpu_row *row = cedar_gpu_bench_row(g, i);
    double us[REPEAT_MAX];
    cedar_status st = cedar_gpu_bench_time(g, i, WARM, b->repeat, us, err);
    if (st) return st;
    const result *r = keep(b, row->name, us, b->repeat);
    double rate = row->amount / (r->p50 * 1e-6);
    if (row->limit == CEDAR_GPU_IS_BANDWIDTH) {
        if (rate > b->bandwidth) b->bandwidth = rate;
        print_row(b, row->name, rate / 1e12, "TB/s", r, 0, row->what);
    } else if (row->limit == CEDAR_GPU_IS_MATRIX) {
        b->matrix = rate;
        print_row(b, row->name, rate / 1e12, "TFLOP/s", r, 0, row->what);
    } else if (row->limit == CEDAR_GPU_TIME) {
        print_row(b, row->name, r->p50, "us", r, 0, row->what);
    } else {
        bool bytes = row->limit == CEDAR_GPU_OF_BANDWIDTH;
        print_row(b, row->name, rate / (bytes ? b->bandwidth : b->matrix), bytes ? "of bw" : "of mma", r, row->goal,
                  row->what);
    }
    return CEDAR_OK;
}

/* How much a second row takes of the first one's time, where both were measured. */
static void ratio_row(bench *b, const char *name, const char *over, const char *under, double goal, const char *what) {
    const result *a = find(b, over), *d = find(b, under);
    if (a && d && wanted(b, name)) print_row(b, name, a->p50 / d->p50, "x", NULL, goal, what);
}

static cedar_status operators(bench *b, cedar_err *err) {
    cedar_gpu_bench *g = NULL;
    cedar_status st = cedar_gpu_bench_open(&b->c, &g, err);
    for (uint32_t i = 0; !st && i < cedar_gpu_bench_count(g) && !*cedar_cli_stop(); i++) {
        const cedar_gpu_row *row = cedar_gpu_bench_row(g, i);
        bool limit = row->limit == CEDAR_GPU_IS_BANDWIDTH || row->limit == CEDAR_GPU_IS_MATRIX;
        if (wanted(b, row->name) || limit) st = operator_row(b, g, i, err);
    }
    cedar_gpu_bench_close(g);
    if (st) return st;
    ratio_row(b, "indexer_flatness", "indexer_pooled_1m", "indexer_pooled_128k", -1.2,
              "a consumer's scores at 1,048,576 entries over those at 131,072");
    ratio_row(b, "topk512_worst_equal", "topk512_1x128k_equal", "topk512_1x128k", -3, "equal over random scores");
    ratio_row(b, "topk512_worst_sorted", "topk512_1x128k_sorted", "topk512_1x128k", -3, "sorted over random scores");
    return CEDAR_OK;
}

/* --- sums between GPUs -------------------------------------------------------------------------------------------- */

static const struct { cedar_sum_kind kind; const char *name, *what; } sum_rows[] = {
    { CEDAR_SUM_NCCL, "allreduce_nccl", "NCCL's sum" },
    { CEDAR_SUM_ONE_STEP, "allreduce_peer", "ours in one step" },
    { CEDAR_SUM_TWO_STEPS, "allreduce_two_steps", "ours in two steps" },
    { CEDAR_SUM_SITE_NCCL, "site_nccl", "NCCL's sum, then streams expanded, then the next input collapsed and normed" },
    { CEDAR_SUM_SITE, "site_plain", "the same with our sum" },
    { CEDAR_SUM_SITE_FUSED, "site_fused", "the same in one launch" },
};
static const uint32_t sum_tokens[] = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048 };
enum { SUM_ROWS = sizeof sum_rows / sizeof *sum_rows, SUM_SIZES = sizeof sum_tokens / sizeof *sum_tokens };

static cedar_status sum_row(bench *b, cedar_gpu_sums *g, int k, uint32_t tokens, cedar_err *err) {
    char name[40], what[200];
    double us[REPEAT_MAX];
    snprintf(name, sizeof name, "%s_%u", sum_rows[k].name, tokens);
    if (!wanted(b, name)) return CEDAR_OK;
    cedar_status st = cedar_gpu_sums_time(g, sum_rows[k].kind, tokens, WARM, b->repeat, us, err);
    if (st == CEDAR_E_NCCL) {
        printf("%s%s: not measured: %s\n", b->csv ? "# " : "", name, err->msg);
        return CEDAR_OK;
    }
    if (st) return st;
    const result *r = keep(b, name, us, b->repeat);
    bool first = sum_rows[k].kind == CEDAR_SUM_ONE_STEP && tokens == 1;
    snprintf(what, sizeof what, "%s, %u x %d bf16 on two GPUs, in a graph of 20, the later GPU", sum_rows[k].what,
             tokens, b->c.hidden);
    print_row(b, name, r->p50, "us", r, first ? -3.2 : 0, what);
    return CEDAR_OK;
}

/* How the sums compare at one size. */
static void sum_ratios(bench *b, uint32_t tokens) {
    static const struct { const char *name, *over, *under; double goal; uint32_t up_to; const char *what; } rows[] = {
        { "allreduce_gain", "allreduce_nccl", "allreduce_peer", 2, 1, "NCCL's sum over ours in one step" },
        { "site_gain", "site_plain", "site_fused", 1.3, 16, "our sum and separate kernels over one launch" },
        { "site_gain_nccl", "site_nccl", "site_fused", 0, 0, "NCCL's sum and separate kernels over one launch" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[40], over[40], under[40];
        snprintf(name, sizeof name, "%s_%u", rows[i].name, tokens);
        snprintf(over, sizeof over, "%s_%u", rows[i].over, tokens);
        snprintf(under, sizeof under, "%s_%u", rows[i].under, tokens);
        ratio_row(b, name, over, under, tokens <= rows[i].up_to ? rows[i].goal : 0, rows[i].what);
    }
}

static cedar_status sums(bench *b, cedar_err *err) {
    cedar_gpu_sums *g = NULL;
    bool any = false;
    for (int k = 0; k < SUM_ROWS; k++)
        for (int i = 0; i < SUM_SIZES; i++) {
            char name[40];
            snprintf(name, sizeof name, "%s_%u", sum_rows[k].name, sum_tokens[i]);
            any |= wanted(b, name);
        }
    if (!any) return CEDAR_OK;
    cedar_status st = cedar_gpu_sums_open(&b->c, &g, err);
    if (st == CEDAR_E_UNSUPPORTED) {
        printf("%ssums between GPUs: not measured: %s\n", b->csv ? "# " : "", err->msg);
        return CEDAR_OK;
    }
    for (int i = 0; i < SUM_SIZES && !st && !*cedar_cli_stop(); i++) {
        for (int k = 0; k < SUM_ROWS && !st; k++) st = sum_row(b, g, k, sum_tokens[i], err);
        if (!st) sum_ratios(b, sum_tokens[i]);
    }
    cedar_gpu_sums_close(g);
    return st;
}

/* --- the engine --------------------------------------------------------------------------------------------------- */

static cedar_status open_engine(bench *b, engine_kind k, cedar_err *err) {
    if (b->e && b->kind.eager == k.eager && b->kind.one_stream == k.one_stream && b->kind.gpus == k.gpus &&
        b->kind.allreduce == k.allreduce)
        return CEDAR_OK;
    cedar_status st = cedar_engine_close(b->e, err);
    b->e = NULL;
    if (st) return st;
    b->kind = k;
    cedar_engine_opts o = { .backend = "cuda", .arith = CEDAR_BF16, .page_tokens = 128, .page_count = 2048,
                            .seq_count = BATCH_MAX + 4, .context_tokens = LONG + CHUNK, .step_rows = CHUNK,
                            .step_seqs = BATCH_MAX, .verify_rows = 8, .eager = k.eager,
                            .one_stream = k.one_stream, .gpus = k.gpus, .allreduce = k.allreduce };
    return cedar_engine_open(b->model, &o, &b->e, err);
}

static cedar_status open_alone(bench *b, bool eager, cedar_err *err) {
    return open_engine(b, (engine_kind){ .eager = eager, .gpus = 1 }, err);
}

static cedar_replay_rules rules_of(const bench *b, bool decoder, uint32_t kept) {
    uint32_t w = (uint32_t)b->c.window;
    return (cedar_replay_rules){ .window = w, .decoder = decoder, .cut = CEDAR_CUT_INSIDE, .encoder_rows = w,
                                 .decoder_rows = kept, .adopt_short_hits = true };
}

static cedar_plan_entry entry_of(const bench *b, int32_t seq, cedar_rows_kind kind, uint32_t rows,
                                 const cedar_replay_rules *rules) {
    cedar_plan_entry e;
    uint32_t pos = cedar_seq_pos(b->e, seq);
    cedar_plan_rows(rules, kind, pos, rows, cedar_seq_bounds(b->e, seq), cedar_seq_write_floor(b->e, seq), false, 1,
                    &e);
    e.seq = seq;
    e.tokens = b->tokens + pos;
    return e;
}

static cedar_status run_step(bench *b, cedar_plan_entry *entries, uint32_t count, cedar_cut cut, int64_t *ns,
                             cedar_err *err) {
    int32_t argmax[BATCH_MAX];
    for (uint32_t i = 0; i < count; i++) {
        cedar_status st = cedar_seq_reserve(b->e, entries[i].seq, entries[i].pos + entries[i].rows, err);
        if (st) return st;
    }
    cedar_step_plan plan = { .cut = cut, .entry_count = count, .entries = entries };
    cedar_plan_total(&plan);
    cedar_step_out out = { .argmax = argmax };
    cedar_status st = cedar_engine_step(b->e, &plan, &out, err);
    *ns += out.duration_ns;
    return st;
}

/* Feeds a sequence up to `end` in chunks; adds the steps' time to *ns. */
static cedar_status feed(bench *b, int32_t seq, uint32_t end, const cedar_replay_rules *rules, int64_t *ns,
                         cedar_err *err) {
    cedar_status st = CEDAR_OK;
    while (!st && cedar_seq_pos(b->e, seq) < end) {
        uint32_t left = end - cedar_seq_pos(b->e, seq);
        cedar_plan_entry e = entry_of(b, seq, CEDAR_ROWS_PREFILL, left < CHUNK ? left : CHUNK, rules);
        st = run_step(b, &e, 1, rules->cut, ns, err);
    }
    return st;
}

/* What is repeated: adds one measurement to *ns. */
typedef cedar_status (*measured)(bench *b, void *self, int64_t *ns, cedar_err *err);

/* One warm-up for each of `warm`, then as often as the options say, or as long. */
static cedar_status repeat(bench *b, const char *name, uint32_t warm, measured fn, void *self, const result **out,
                           cedar_err *err) {
    double us[REPEAT_MAX], spent = 0;
    cedar_status st = CEDAR_OK;
    uint32_t n = 0;
    for (uint32_t i = 0; i < warm && !st; i++) {
        int64_t ns = 0;
        st = fn(b, self, &ns, err);
    }
    while (!st && n < b->repeat && (n < 3 || spent < ROW_SECONDS) && !*cedar_cli_stop()) {
        int64_t ns = 0;
        st = fn(b, self, &ns, err);
        us[n] = (double)ns / 1e3;
        spent += us[n++] / 1e6;
    }
    if (!st && !n) st = cedar_fail(err, CEDAR_E_ARG, "%s was interrupted", name);
    if (!st) *out = keep(b, name, us, n);
    return st;
}

/* --- prefill ------------------------------------------------------------------------------------------------------ */

typedef struct prefill {
    uint32_t tokens;
    cedar_replay_rules rules;
} prefill;

static cedar_status run_prefill(bench *b, void *self, int64_t *ns, cedar_err *err) {
    const prefill *p = self;
    int32_t seq;
    cedar_status st = cedar_seq_open(b->e, &seq, err);
    if (st) return st;
    st = feed(b, seq, p->tokens, &p->rules, ns, err);
    cedar_seq_close(b->e, seq);
    return st;
}

typedef struct prefill_row {
    const char *name, *what;
    uint32_t tokens, kept;      /* kept 0: exact, else decoder replay with that many rows */
    bool eager;
} prefill_row;

static const prefill_row prefill_rows[] = {
    { "prefill_8k_exact", "whole prompt of 8192 in chunks of 2048, all layers, graphs", 8192, 0, false },
    { "prefill_8k_replay", "the same with decoder replay, cut inside, 128 rows kept, split graphs", 8192, 128, false },
    { "prefill_8k_encoder",
      "the same with 1 row kept: layers before the cut, keys of the cut layer, and 1 row through the rest", 8192, 1,
      false },
    { "prefill_1k_exact", "prompt of 1024, all layers, graphs", 1024, 0, false },
    { "prefill_1k_replay", "prompt of 1024, decoder replay, split graphs", 1024, 128, false },
    { "prefill_8k_exact_eager", "as prefill_8k_exact, kernels launched one by one", 8192, 0, true },
    { "prefill_8k_replay_eager", "as prefill_8k_replay, kernels launched one by one", 8192, 128, true },
    { "prefill_8k_encoder_eager", "as prefill_8k_encoder, kernels launched one by one", 8192, 1, true },
    { "prefill_1k_exact_eager", "as prefill_1k_exact, kernels launched one by one", 1024, 0, true },
    { "prefill_1k_replay_eager", "as prefill_1k_replay, kernels launched one by one", 1024, 128, true },
};

static cedar_status prefill_one(bench *b, const prefill_row *row, cedar_err *err) {
    prefill p = { row->tokens, rules_of(b, row->kept > 0, row->kept) };
    const result *r = NULL;
    double encoder, all;
    cedar_status st = repeat(b, row->name, 1, run_prefill, &p, &r, err);
    if (!st) st = cedar_prefill_flops(&b->c, row->tokens, &encoder, &all, err);
    if (st) return st;
    if (row->kept == 1)
        print_row(b, row->name, encoder / (r->p50 * 1e-6) / b->matrix, "of mma", r, row->eager ? 0 : 0.35, row->what);
    else if (row->kept == 0)
        print_row(b, row->name, all / (r->p50 * 1e-6) / b->matrix, "of mma", r, 0, row->what);
    else print_row(b, row->name, row->tokens / (r->p50 * 1e-6), "tok/s", r, 0, row->what);
    return CEDAR_OK;
}

static cedar_status prefills(bench *b, bool eager, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (size_t i = 0; i < sizeof prefill_rows / sizeof *prefill_rows && !st; i++) {
        if (prefill_rows[i].eager != eager || !wanted(b, prefill_rows[i].name)) continue;
        st = open_alone(b, eager, err);
        if (!st) st = prefill_one(b, &prefill_rows[i], err);
    }
    return st;
}

static void prefill_ratios(bench *b) {
    ratio_row(b, "ced_gain_8k", "prefill_8k_exact", "prefill_8k_replay", 1.6,
              "decoder replay over exact, whole prompt, both with graphs");
    ratio_row(b, "ced_gain_1k", "prefill_1k_exact", "prefill_1k_replay", 0, "the same at 1024 tokens");
    ratio_row(b, "split_graph_1k", "prefill_1k_replay_eager", "prefill_1k_replay", 1, "split graphs over eager, 1024");
    ratio_row(b, "split_graph_8k", "prefill_8k_replay_eager", "prefill_8k_replay", 0, "split graphs over eager, 8192");
    ratio_row(b, "graph_8k", "prefill_8k_exact_eager", "prefill_8k_exact", 0, "graphs over eager at 8192, exact");
    ratio_row(b, "graph_decode", "decode_b1_8k_eager", "decode_b1_8k", 0, "graphs over eager, one row");
}

/* --- decode ------------------------------------------------------------------------------------------------------- */

/* Sequences at one context: the first one fed, the others restored from it, all with pages and windows of their own
 * behind it. */
typedef struct decode {
    int32_t seq[BATCH_MAX];
    uint32_t open, batch;
    uint64_t steps;
} decode;

static void close_all(bench *b, decode *d) {
    while (d->open) cedar_seq_close(b->e, d->seq[--d->open]);
}

static cedar_status open_all(bench *b, decode *d, uint32_t context, cedar_err *err) {
    const cedar_replay_rules exact = rules_of(b, false, 0);
    cedar_snap *snap = NULL;
    int64_t ns = 0;
    cedar_status st = cedar_seq_open(b->e, &d->seq[0], err);
    if (st) return st;
    d->open = 1;
    st = feed(b, d->seq[0], context, &exact, &ns, err);
    if (!st) st = cedar_snap_save(b->e, d->seq[0], &snap, err);
    while (!st && d->open < BATCH_MAX) {
        uint32_t count;
        const int32_t *pages = cedar_seq_pages(b->e, d->seq[0], &count);
        st = cedar_seq_open(b->e, &d->seq[d->open], err);
        if (st) break;
        d->open++;
        st = cedar_seq_restore(b->e, d->seq[d->open - 1], b->tokens, pages, context, snap, err);
    }
    cedar_snap_free(snap);
    return st;
}

/* One token for each sequence, another one each, so that they choose experts of their own. */
static cedar_status run_decode(bench *b, void *self, int64_t *ns, cedar_err *err) {
    decode *d = self;
    const cedar_replay_rules exact = rules_of(b, false, 0);
    cedar_plan_entry entries[BATCH_MAX];
    int32_t token[BATCH_MAX];
    for (uint32_t i = 0; i < d->batch; i++) {
        token[i] = (int32_t)cedar_rng_below(7, d->steps++, (uint64_t)b->c.vocab);
        entries[i] = entry_of(b, d->seq[i], CEDAR_ROWS_DECODE, 1, &exact);
        entries[i].tokens = &token[i];
    }
    return run_step(b, entries, d->batch, CEDAR_CUT_AFTER, ns, err);
}

static void see_experts(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                        uint32_t width) {
    (void)seq;
    (void)pos;
    bench *b = self;
    const int32_t *ids = data;
    for (uint32_t i = 0; kind == CEDAR_TAP_ROUTER_IDS && i < width; i++) {
        uint8_t *seen = &b->seen[layer * b->c.experts + ids[i]];
        b->experts_seen[0] += !*seen;
        *seen = 1;
    }
}

/* Experts per layer that a step of the batch touches, counted in one step of its own. */
static cedar_status count_experts(bench *b, decode *d, double *experts, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    if (d->batch > 1 && !b->experts_seen[d->batch]) {
        int64_t ns = 0;
        memset(b->seen, 0, (size_t)b->c.layers * (size_t)b->c.experts);
        b->experts_seen[0] = 0;
        cedar_engine_tap(b->e, see_experts, b);
        st = run_decode(b, d, &ns, err);
        cedar_engine_tap(b->e, NULL, NULL);
        b->experts_seen[d->batch] = b->experts_seen[0];
    }
    *experts = d->batch > 1 ? (double)b->experts_seen[d->batch] / b->c.layers : b->c.experts_per_token;
    return st;
}

static cedar_status decode_one(bench *b, decode *d, const char *name, uint32_t context, double goal, cedar_err *err) {
    const result *r = NULL;
    double experts, bytes;
    char what[160];
    cedar_status st = count_experts(b, d, &experts, err);
    if (!st) st = repeat(b, name, WARM, run_decode, d, &r, err);
    if (!st) st = cedar_decode_bytes(&b->c, experts, d->batch, context, &bytes, err);
    if (st) return st;
    snprintf(what, sizeof what, "step of %u at %u tokens: %.2f GB with %.1f experts a layer, floor %.2f ms, %.1f tok/s",
             d->batch, context, bytes / 1e9, experts, 1e3 * bytes / b->bandwidth, d->batch / (r->p50 * 1e-6));
    print_row(b, name, bytes / (r->p50 * 1e-6) / b->bandwidth, "of bw", r, goal, what);
    return CEDAR_OK;
}

/* The largest batch whose median step keeps 150 tokens a second, by bisection. */
static cedar_status users_150(bench *b, decode *d, cedar_err *err) {
    uint32_t good = 0, bad = BATCH_MAX + 1;
    const result *r = NULL;
    cedar_status st = CEDAR_OK;
    while (bad - good > 1 && !st) {
        char name[40];
        d->batch = (good + bad) / 2;
        snprintf(name, sizeof name, "decode_user150 b%u", d->batch);
        st = repeat(b, name, WARM, run_decode, d, &r, err);
        if (st) break;
        if (r->p50 <= 1e6 / 150) good = d->batch;
        else bad = d->batch;
    }
    if (st) return st;
    uint32_t floor = 0;
    for (uint32_t n = 1; n <= 64 && !st; n++) {
        double touched = b->c.experts * (1 - pow(1 - (double)b->c.experts_per_token / b->c.experts, n)), bytes = 0;
        st = cedar_decode_bytes(&b->c, touched, n, 8192, &bytes, err);
        if (bytes / b->bandwidth <= 1.0 / 150) floor = n;
    }
    char what[120];
    snprintf(what, sizeof what, "largest batch with p50 <= 6.67 ms at 8192 tokens: %u%s; by bandwidth alone %u", good,
             good == BATCH_MAX ? " (the most tried)" : "", floor);
    print_row(b, "decode_user150", floor ? (double)good / floor : 0, "of floor", NULL, 0.5, what);
    return st;
}

static cedar_status decodes(bench *b, uint32_t context, const char *label, cedar_err *err) {
    static const uint32_t batches[] = { 1, 8, 32 };
    char name[40];
    bool any = context == 8192 && wanted(b, "decode_user150");
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "decode_b%u_%s", batches[i], label);
        any |= wanted(b, name);
    }
    if (!any) return CEDAR_OK;
    decode d = { .steps = 1 };
    cedar_status st = open_alone(b, false, err);
    if (!st) st = open_all(b, &d, context, err);
    for (int i = 0; i < 3 && !st; i++) {
        d.batch = batches[i];
        snprintf(name, sizeof name, "decode_b%u_%s", batches[i], label);
        if (wanted(b, name)) st = decode_one(b, &d, name, context, i == 0 && context == 8192 ? 0.35 : 0, err);
    }
    if (!st && context == 8192 && wanted(b, "decode_user150")) st = users_150(b, &d, err);
    if (b->e) close_all(b, &d);
    return st;
}

static cedar_status decode_eager(bench *b, cedar_err *err) {
    if (!wanted(b, "decode_b1_8k_eager")) return CEDAR_OK;
    decode d = { .steps = 1, .batch = 1 };
    const cedar_replay_rules exact = rules_of(b, false, 0);
    int64_t ns = 0;
    cedar_status st = open_alone(b, true, err);
    if (!st) st = cedar_seq_open(b->e, &d.seq[0], err);
    if (st) return st;
    d.open = 1;
    st = feed(b, d.seq[0], 8192, &exact, &ns, err);
    if (!st) st = decode_one(b, &d, "decode_b1_8k_eager", 8192, 0, err);
    close_all(b, &d);
    return st;
}

/* --- decode by several GPUs --------------------------------------------------------------------------------------- */

static const struct { const char *label; engine_kind kind; } several[] = {
    { "tp1", { .gpus = 1 } },
    { "tp1_one_stream", { .gpus = 1, .one_stream = true } },
    { "tp2", { .gpus = 2 } },
    { "tp2_fused", { .gpus = 2, .allreduce = CEDAR_ALLREDUCE_FUSED } },
    { "tp2_fused_one_stream", { .gpus = 2, .allreduce = CEDAR_ALLREDUCE_FUSED, .one_stream = true } },
    { "tp2_nccl", { .gpus = 2, .allreduce = CEDAR_ALLREDUCE_NCCL } },
};
static const uint32_t several_batches[] = { 1, 8, 32 };

/* The floor counts bytes of all GPUs' memory and, if it was measured, the sums: two a layer of `batch` rows. */
static cedar_status several_one(bench *b, decode *d, int i, const char *name, cedar_err *err) {
    const result *r = NULL;
    double experts, bytes, gpus = several[i].kind.gpus;
    char what[200], sum[40];
    cedar_status st = count_experts(b, d, &experts, err);
    if (!st) st = repeat(b, name, WARM, run_decode, d, &r, err);
    if (!st) st = cedar_decode_bytes(&b->c, experts, d->batch, 8192, &bytes, err);
    if (st) return st;
    snprintf(sum, sizeof sum, "allreduce_peer_%u", d->batch);
    const result *one = find(b, sum);
    double sums = gpus > 1 && one ? 2.0 * b->c.layers * one->p50 * 1e-6 : 0,
           floor = bytes / b->bandwidth / gpus + sums;
    snprintf(what, sizeof what, "step of %u at 8192 tokens on %u GPUs: floor %.2f ms, of it sums %.2f ms, %.1f tok/s",
             d->batch, several[i].kind.gpus, 1e3 * floor, 1e3 * sums, d->batch / (r->p50 * 1e-6));
    print_row(b, name, floor / (r->p50 * 1e-6), "of floor", r, 0, what);
    return CEDAR_OK;
}

static cedar_status several_group(bench *b, int i, cedar_err *err) {
    decode d = { .steps = 1 };
    char name[40];
    bool any = false;
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "decode_%s_b%u", several[i].label, several_batches[k]);
        any |= wanted(b, name);
    }
    if (!any) return CEDAR_OK;
    cedar_status st = open_engine(b, several[i].kind, err);
    if (st && several[i].kind.gpus > 1) {
        printf("%sdecode_%s: not measured: %s\n", b->csv ? "# " : "", several[i].label, err->msg);
        return CEDAR_OK;
    }
    if (!st) st = open_all(b, &d, 8192, err);
    for (int k = 0; k < 3 && !st; k++) {
        d.batch = several_batches[k];
        snprintf(name, sizeof name, "decode_%s_b%u", several[i].label, d.batch);
        if (wanted(b, name)) st = several_one(b, &d, i, name, err);
    }
    if (b->e) close_all(b, &d);
    return st;
}

static cedar_status several_gpus(bench *b, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (int i = 0; i < (int)(sizeof several / sizeof *several) && !st && !*cedar_cli_stop(); i++)
        st = several_group(b, i, err);
    ratio_row(b, "decode_tp_gain_b1", "decode_tp1_b1", "decode_tp2_fused_b1", 1.5,
              "one GPU over two, fused sums, batch 1");
    ratio_row(b, "side_stream_tp1_b1", "decode_tp1_one_stream_b1", "decode_tp1_b1", 0, "one stream over side streams");
    ratio_row(b, "side_stream_tp2_b1", "decode_tp2_fused_one_stream_b1", "decode_tp2_fused_b1", 0,
              "the same on two GPUs, fused sums");
    ratio_row(b, "decode_tp_gain_b8", "decode_tp1_b8", "decode_tp2_fused_b8", 0, "the same, batch 8");
    ratio_row(b, "decode_tp_gain_b32", "decode_tp1_b32", "decode_tp2_fused_b32", 0, "the same, batch 32");
    return st;
}

/* --- prefix hits -------------------------------------------------------------------------------------------------- */

/* Requests that find `hit` tokens in the pages of `source`, replay a window of them and feed `fresh` more, in one
 * step. */
typedef struct hits {
    int32_t source;
    uint32_t hit, fresh, count;
} hits;

static cedar_status run_hits(bench *b, void *self, int64_t *ns, cedar_err *err) {
    const hits *h = self;
    cedar_replay_rules rules = rules_of(b, true, (uint32_t)b->c.window);
    rules.encoder = true;
    int32_t seq[BATCH_MAX];
    uint32_t open = 0, count;
    cedar_plan_entry entries[BATCH_MAX];
    const int32_t *pages = cedar_seq_pages(b->e, h->source, &count);
    const cedar_hit_plan plan = cedar_plan_hit(&rules, h->hit);
    cedar_status st = CEDAR_OK;
    while (!st && open < h->count) {
        st = cedar_seq_open(b->e, &seq[open], err);
        if (st) break;
        open++;
        st = cedar_seq_adopt(b->e, seq[open - 1], b->tokens, pages, &plan, err);
        if (!st) entries[open - 1] = entry_of(b, seq[open - 1], CEDAR_ROWS_PREFILL, plan.replayed + h->fresh, &rules);
    }
    if (!st) st = run_step(b, entries, h->count, rules.cut, ns, err);
    while (open) cedar_seq_close(b->e, seq[--open]);
    return st;
}

static cedar_status prefix_rows(bench *b, int32_t source, cedar_err *err) {
    hits one = { source, LONG, 256, 1 }, alone = { source, 8192, 16, 1 }, packed = { source, 8192, 16, 8 };
    const result *hit, *single, *eight;
    const result *cold = find(b, "prefill_32k_cold");
    cedar_status st = repeat(b, "prefix_hit_32k", WARM, run_hits, &one, &hit, err);
    if (!st) st = repeat(b, "replay_alone", WARM, run_hits, &alone, &single, err);
    if (!st) st = repeat(b, "replay_packed_8", WARM, run_hits, &packed, &eight, err);
    if (st) return st;
    print_row(b, "prefix_hit_ttft", hit->p50 / cold->p50, "of cold", hit, -0.05,
              "hit of 32,768, 128 replayed, 256 new, over prefill_32k_cold");
    print_row(b, "replay_packed_8", eight->p50 / 8 / single->p50, "of alone", eight, -0.35,
              "8 requests that replay 128 and feed 16 in one step, a request, over one alone");
    return CEDAR_OK;
}

static cedar_status prefixes(bench *b, cedar_err *err) {
    if (!wanted(b, "prefix_hit_ttft") && !wanted(b, "replay_packed_8")) return CEDAR_OK;
    prefill cold = { LONG + 256, rules_of(b, true, (uint32_t)b->c.window) };
    const result *r = NULL;
    int32_t source;
    int64_t ns = 0;
    cedar_status st = open_alone(b, false, err);
    if (!st) st = repeat(b, "prefill_32k_cold", 0, run_prefill, &cold, &r, err);
    if (!st) {
        print_row(b, "prefill_32k_cold", cold.tokens / (r->p50 * 1e-6), "tok/s", r, 0,
                  "prompt of 33,024 in chunks of 2048, decoder replay, nothing cached");
        st = cedar_seq_open(b->e, &source, err);
    }
    if (st) return st;
    st = feed(b, source, LONG, &cold.rules, &ns, err);
    if (!st) st = prefix_rows(b, source, err);
    cedar_seq_close(b->e, source);
    return st;
}

/* --- bytes of the caches ------------------------------------------------------------------------------------------ */

static cedar_status cache_bytes(bench *b, cedar_err *err) {
    if (!wanted(b, "kv_bytes") && !wanted(b, "window_bytes")) return CEDAR_OK;
    cedar_memory_plan p;
    cedar_status st = open_alone(b, false, err);
    if (!st) st = cedar_plan_memory(&b->c, cedar_engine_options(b->e), &p, err);
    if (st) return st;
    double token = (double)cedar_page_bytes(b->e) / cedar_engine_options(b->e)->page_tokens,
           needed = (double)p.kv_token_bytes_x1000 / 1000, rings = (double)(p.window_bytes + p.draft_ring_bytes);
    char what[120];
    snprintf(what, sizeof what, "%.1f bytes a cached token allocated over %.1f of the format", token, needed);
    if (wanted(b, "kv_bytes")) print_row(b, "kv_bytes", token / needed, "x", NULL, -1.02, what);
    double held = rings + (double)p.verify_slack_bytes;
    snprintf(what, sizeof what, "%.3f MB of windows a sequence, room for %u verified rows included, over %.3f MB",
             held / 1e6, cedar_engine_options(b->e)->verify_rows, rings / 1e6);
    if (wanted(b, "window_bytes")) print_row(b, "window_bytes", held / rings, "x", NULL, -1.05, what);
    return CEDAR_OK;
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

static cedar_status steps(bench *b, const char *model, cedar_err *err) {
    char origin[256];
    cedar_status st = cedar_model_find(model, b->data_dir, 1, CEDAR_WEIGHTS_DEVICE, &b->model, origin, err);
    if (st) return st;
    b->tokens = cedar_calloc(LONG + CHUNK, sizeof *b->tokens);
    b->seen = cedar_calloc((size_t)b->c.layers * (size_t)b->c.experts, 1);
    if (!b->tokens || !b->seen) return cedar_fail(err, CEDAR_E_OOM, "no memory for a bench's tokens");
    for (uint32_t i = 0; i < LONG + CHUNK; i++) b->tokens[i] = (int32_t)cedar_rng_below(3, i, (uint64_t)b->c.vocab);
    st = cache_bytes(b, err);
    if (!st) st = decodes(b, 2048, "2k", err);
    if (!st) st = decodes(b, 8192, "8k", err);
    if (!st) st = prefills(b, false, err);
    if (!st) st = prefixes(b, err);
    if (!st) st = prefills(b, true, err);
    if (!st) st = decode_eager(b, err);
    if (!st) prefill_ratios(b);
    if (!st) st = several_gpus(b, err);
    return st;
}

/* False after a usage error, which is never 0. */
static bool read_options(int argc, char **argv, bench *b, const char **model) {
    static const struct option options[] = { { "row", required_argument, NULL, 'r' },
                                             { "repeat", required_argument, NULL, 'n' },
                                             { "csv", no_argument, NULL, 'c' },
                                             { NULL, 0, NULL, 0 } };
    bool ok = true;
    uint64_t repeat = b->repeat;
    for (int c; ok && (c = getopt_long(argc, argv, "c", options, NULL)) != -1;) {
        if (c == 'r' && b->filters < FILTERS_MAX) b->filter[b->filters++] = optarg;
        else if (c == 'r') ok = !cedar_cli_usage("bench", "--row \"%s\": at most %d are taken", optarg, FILTERS_MAX);
        else if (c == 'n') ok = cedar_cli_count("bench", "--repeat", optarg, 3, REPEAT_MAX, &repeat);
        else if (c == 'c') b->csv = true;
        else ok = !cedar_cli_usage("bench", "an option of gpu is wrong");
    }
    b->repeat = (uint32_t)repeat;
    if (ok && optind < argc) *model = argv[optind++];
    if (ok && optind < argc) ok = !cedar_cli_usage("bench", "\"%s\" is too much", argv[optind]);
    return ok;
}

/* As cedar_engine_close. */
static cedar_status close_bench(bench *b, cedar_err *err) {
    cedar_status st = cedar_engine_close(b->e, err);
    cedar_model_close(b->model);
    cedar_free(b->tokens);
    cedar_free(b->seen);
    cedar_free(b);
    return st;
}

int cedar_cli_bench_gpu(int argc, char **argv) {
    const char *model = "flash-e32";
    cedar_gpu_device device;
    cedar_err err = { 0 };
    bench *b = cedar_calloc(1, sizeof *b);
    if (!b) return cedar_fail(&err, CEDAR_E_OOM, "no memory for a bench"), cedar_cli_fail(&err);
    b->repeat = 50;
    if (!read_options(argc, argv, b, &model)) {
        (void)close_bench(b, NULL);
        return CEDAR_EXIT_USAGE;
    }
    cedar_cli_data_dir(b->data_dir, sizeof b->data_dir);
    cedar_cli_catch_signals();
    cedar_status st = cedar_gpu_device_find(&device, &err);
    if (!st) st = cedar_shape_find(model, b->data_dir, &b->c, &err);
    if (!st) print_head(b, &device, model);
    if (!st) st = operators(b, &err);
    if (!st && !*cedar_cli_stop()) st = sums(b, &err);
    if (!st && !*cedar_cli_stop()) st = steps(b, model, &err);
    int stopped = *cedar_cli_stop();
    if (!st && !stopped) st = check_filters(b, &err);
    cedar_status closed = close_bench(b, &err);
    if (!st) st = closed;
    return st ? cedar_cli_fail(&err) : stopped ? CEDAR_EXIT_SIGNAL + stopped : CEDAR_EXIT_OK;
}
