/* Golden vectors: runs every case of a directory that the independent oracle wrote and compares quantity by quantity.
 *
 * wide   logits within 1e-6 of the largest logit; bytes, lists, picks and ids without a mismatch.
 * f32    rounding is discontinuous: one fp32-sized error can turn a decision (a code, a pick), and every later row of
 *        the sequence follows it. So each case runs three times. A wide run, which must meet the bounds of wide,
 *        records its decisions (engine/tape.h). The f32 run follows them: each decision of its own that differs must be
 *        a near-tie; every row of logits must be within 1e-5, where the oracle asks that of the median row; what is
 *        traced, within 1e-5 of its largest element; discrete quantities have no mismatch. Nothing is exempt. Last the
 *        f32 run is left to itself, as it is used: without a near-tie it must give the same bits; after one it is shown
 *        only.
 *        A backend that cannot follow (cuda): each block is checked alone, started from the golden streams: half of the
 *        rows within 1e-6 and at most 8 % of the elements of discrete quantities off. Of the final logits, half of all
 *        rows of all cases must be within 1e-5; a quantity whose median row is not, or whose RMS is above 0.01 + 3 x
 *        the manifest's fp32 noise, is shown as "off, not counted", and those are summed up at the end.
 * bf16   two correct bf16 runs of a random model differ by 0.15 in final logits, so those are shown only. Each block is
 *        checked alone: against a directory made in the oracle's `ref` precision half of the rows within 1e-6, against
 *        `wide` vectors within what bf16 rounding of one block explains. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/model_int.h"
#include "engine/tape.h"

#include <jansson.h>

enum { TEXT = 200, BLOCK_ROWS = 33, DRAFT_MAX = 64 };

/* What a run of a case is for. */
typedef enum pass {
    PASS_PLAIN,         /* the engine under test alone */
    PASS_RECORD,        /* a wide run whose decisions are recorded */
    PASS_FOLLOW,        /* the engine under test, following them */
    PASS_FREE           /* the engine under test, left to itself */
} pass;

typedef struct golden {
    const cedar_golden_opts *opts;
    cedar_model *model, *tested;        /* of the directory; of the engine under test, NULL when it is that one */
    const cedar_config *c;
    cedar_engine *engines[2][2];        /* [recording][wo_a_fp8], opened when first used */
    cedar_engine *e;                    /* of the present pass */
    pass pass;
    cedar_arith arith;                  /* of the present pass */
    bool taped;                         /* the engine under test follows tapes */
    cedar_tape tape;
    bool keeps;                         /* a free run comes after the one that follows */
    float *kept;                        /* floats compared while following, in order, for the free run */
    uint64_t kept_count, kept_at;
    uint64_t free_differ;               /* of the free run: elements that differ from the run that followed */
    double free_rms;                    /* its largest distance */
    uint64_t decisions, ties;           /* of all cases */
    double widest;
    uint32_t off;                       /* quantities shown as off */
    cedar_safetensors *st;
    bool *used;                         /* [tensors of st] somebody asked for it */
    cedar_json *manifest;
    int32_t *tokens;
    uint32_t token_count;
    float *logits;                      /* [token_count, vocab] rows of the case being run, from position `first` */
    uint32_t first;
    float *step_logits;                 /* [token_count, vocab] of one step */
    cedar_plan_entry entry;
    uint32_t checked, failed;
    bool ref_precision;                 /* the directory was made with bf16 rounding */
    uint64_t rows_seen, rows_close;     /* rows of final logits; of them within 1e-5 */
    cedar_err *err;
} golden;

/* One case of the manifest. */
typedef struct golden_case {
    const char *id;
    int64_t n, hit, suffix, start, tail, chunk, decode, token, first, end, row_first, row_end;
    const char *variant, *tensor;
    double f32_rms;
} golden_case;

/* --- reporting ---------------------------------------------------------------------------------------------------- */

/* Of a recording run only misses are told: its quantities are those of the run that follows. */
static void verdict(golden *g, bool ok, const char *what, const char *text) {
    if (ok && g->pass == PASS_RECORD) return;
    g->checked++;
    g->failed += !ok;
    if ((ok && !g->opts->verbose) || !g->opts->line) return;
    char line[TEXT + 160];
    snprintf(line, sizeof line, "%-34s %s%s", what, text, g->pass == PASS_RECORD ? "  in the recording wide run" : "");
    g->opts->line(g->opts->self, ok, line);
}

typedef struct distance { double max_rel, rms_rel, median_row, worst_row; } distance;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Distance of got to want [rows, width]; row errors are relative to the RMS of all of want. NaN anywhere gives
 * infinity. */
static distance compare(const float *got, const float *want, uint64_t rows, uint64_t width, double *row_error) {
    double sum = 0, top = 0, err2 = 0, top_err = 0;
    for (uint64_t k = 0; k < rows * width; k++) {
        sum += (double)want[k] * (double)want[k];
        top = fmax(top, fabs((double)want[k]));
    }
    double mean = sum / (double)(rows * width);
    for (uint64_t r = 0; r < rows; r++) {
        double e2 = 0;
        for (uint64_t k = 0; k < width; k++) {
            double d = (double)got[r * width + k] - (double)want[r * width + k];
            if (d != d) d = INFINITY;
            e2 += d * d;
            top_err = fmax(top_err, fabs(d));
        }
        err2 += e2;
        row_error[r] = sqrt(e2 / (double)width / mean);
    }
    qsort(row_error, rows, sizeof *row_error, by_value);
    double median = rows % 2 ? row_error[rows / 2] : (row_error[rows / 2 - 1] + row_error[rows / 2]) / 2;
    return (distance){ top_err / top, sqrt(err2 / (double)(rows * width) / mean), median, row_error[rows - 1] };
}

/* The free run against the one that followed: elements that are not the same bits. */
static uint64_t differing(const float *a, const float *b, uint64_t count) {
    uint64_t n = 0;
    for (uint64_t k = 0; k < count; k++) n += memcmp(a + k, b + k, sizeof *a) != 0;
    return n;
}

/* Keeps what the run that follows gives for the free run, or compares. */
static void keep_floats(golden *g, const float *got, uint64_t count, double rms) {
    CEDAR_ASSERT(g->kept_at + count <= g->kept_count);
    float *kept = g->kept + g->kept_at;
    g->kept_at += count;
    if (g->pass == PASS_FOLLOW) {
        memcpy(kept, got, count * sizeof *got);
    } else {
        g->free_differ += differing(got, kept, count);
        g->free_rms = fmax(g->free_rms, rms);
    }
}

static void check_floats(golden *g, const char *what, const float *got, const float *want, uint64_t rows,
                         uint64_t width, double f32_rms) {
    double *row_error = cedar_calloc(rows, sizeof *row_error);
    if (!row_error) {
        verdict(g, false, what, "no memory");
        return;
    }
    distance d = compare(got, want, rows, width, row_error);
    g->rows_seen += rows;
    for (uint64_t r = 0; r < rows; r++) g->rows_close += row_error[r] < 1e-5;
    cedar_free(row_error);
    if (g->keeps && g->pass != PASS_RECORD) keep_floats(g, got, rows * width, d.rms_rel);
    if (g->pass == PASS_FREE) return;
    bool close = d.median_row < 1e-5 && d.rms_rel < 0.01 + 3 * f32_rms, finite = d.rms_rel < 10;
    bool off = g->pass == PASS_PLAIN && g->arith == CEDAR_F32 && !close;
    char text[TEXT];
    snprintf(text, sizeof text, "%5llu rows  max %.2e  rms %.2e  median row %.2e%s", (unsigned long long)rows,
             d.max_rel, d.rms_rel, d.median_row,
             off                      ? "  off, not counted"
             : g->arith == CEDAR_BF16 ? "  shown only"
                                      : "");
    g->off += off;
    bool ok = g->arith == CEDAR_WIDE ? d.max_rel <= 1e-6 : g->pass == PASS_FOLLOW ? d.worst_row < 1e-5 : finite;
    verdict(g, ok, what, text);
}

/* Discrete quantities at the end of a whole run: mismatches out of count. */
static void check_discrete(golden *g, const char *what, uint64_t differ, uint64_t count) {
    char text[TEXT];
    if (g->pass == PASS_FREE) {
        g->free_differ += differ;
        return;
    }
    /* without a tape shown only: downstream of any decision that turned */
    bool counted = g->arith == CEDAR_WIDE || g->pass == PASS_FOLLOW;
    snprintf(text, sizeof text, "%llu of %llu differ%s", (unsigned long long)differ, (unsigned long long)count,
             counted ? "" : "  shown only");
    verdict(g, !counted || differ == 0, what, text);
}

/* The decisions of a case: how many were near-ties, and what the run does when it is left to itself. */
static void report_decisions(golden *g, const char *id, bool was_free) {
    const cedar_tape *t = &g->tape;
    char what[128], text[TEXT], alone[48] = "";
    snprintf(what, sizeof what, "%s decisions", id);
    if (was_free && g->free_differ) snprintf(alone, sizeof alone, "; left to itself rms %.2e", g->free_rms);
    else if (was_free) snprintf(alone, sizeof alone, "; left to itself the same bits");
    if (t->lost)
        snprintf(text, sizeof text, "the run does not make the decisions of the wide run after %llu of them",
                 (unsigned long long)t->decisions);
    else if (t->wrong)
        snprintf(text, sizeof text, "%llu of %llu differ and are no near-ties, first %s in layer %d, by %.1e of %.1e",
                 (unsigned long long)t->wrong, (unsigned long long)t->decisions, cedar_tape_kind_name[t->wrong_kind],
                 t->wrong_layer, t->wrong_distance, t->tie);
    else
        snprintf(text, sizeof text, "%llu of %llu are near-ties, widest %.1e of %.1e%s", (unsigned long long)t->ties,
                 (unsigned long long)t->decisions, t->widest, t->tie, alone);
    verdict(g, !t->lost && !t->wrong && (t->ties || !g->free_differ), what, text);
    g->decisions += t->decisions;
    g->ties += t->ties;
    g->widest = fmax(g->widest, t->widest);
}

/* --- golden tensors ----------------------------------------------------------------------------------------------- */

static const cedar_st_tensor *find(const golden *g, const char *name) {
    const cedar_st_tensor *t = cedar_st_find(g->st, name);
    if (t) g->used[t - cedar_st_at(g->st, 0)] = true;
    return t;
}

/* A tensor that nothing was compared with is a misspelt name, or belongs to a case that is not in the manifest. The
 * exact logits are there in more roundings than one run compares. */
static cedar_status check_used(const golden *g) {
    for (uint64_t i = 0; i < cedar_st_count(g->st); i++)
        if (!g->used[i] && strncmp(cedar_st_at(g->st, i)->name, "exact.", 6))
            return cedar_fail(g->err, CEDAR_E_FORMAT,
                              "golden.safetensors: no case of manifest.json uses its tensor \"%s\"",
                              cedar_st_at(g->st, i)->name);
    return CEDAR_OK;
}

static cedar_status tensor(golden *g, const char *name, const char *dtype, const cedar_st_tensor **out) {
    const cedar_st_tensor *t = find(g, name);
    if (!t) return cedar_fail(g->err, CEDAR_E_FORMAT, "golden.safetensors has no tensor \"%s\"", name);
    if (strcmp(t->dtype, dtype))
        return cedar_fail(g->err, CEDAR_E_FORMAT, "golden tensor \"%s\" is %s, expected %s", name, t->dtype, dtype);
    *out = t;
    return CEDAR_OK;
}

/* Copy of a tensor's floats (the mapping may be unaligned); owned by the caller. */
static float *floats(golden *g, const cedar_st_tensor *t) {
    float *f = cedar_calloc(1, t->bytes);
    if (f) memcpy(f, t->data, t->bytes);
    else cedar_fail(g->err, CEDAR_E_OOM, "no memory for golden tensor \"%s\"", t->name);
    return f;
}

/* --- feeding ------------------------------------------------------------------------------------------------------ */

static cedar_replay_rules rules_of(const golden *g, const golden_case *k) {
    uint32_t w = (uint32_t)g->c->window;
    cedar_replay_rules r = { .window = w, .decoder = k->tail > 0, .cut = CEDAR_CUT_AFTER, .encoder_rows = w,
                             .decoder_rows = k->tail > 0 ? (uint32_t)k->tail : w, .adopt_short_hits = true };
    if (k->variant && strcmp(k->variant, "inside20") == 0) r.cut = CEDAR_CUT_INSIDE;
    if (k->variant && strcmp(k->variant, "inside20clip") == 0) r.cut = CEDAR_CUT_INSIDE_CLIP;
    return r;
}

/* Feeds tokens [pos, end) in chunks; logits of rows at or after g->first land in g->logits. */
static cedar_status feed(golden *g, cedar_engine *e, int32_t seq, uint32_t end, uint32_t chunk, cedar_rows_kind kind,
                         const cedar_replay_rules *rules) {
    cedar_status st = cedar_seq_reserve(e, seq, end, g->err);
    while (!st && cedar_seq_pos(e, seq) < end) {
        uint32_t pos = cedar_seq_pos(e, seq), rows = end - pos < chunk ? end - pos : chunk;
        uint32_t from = pos > g->first ? pos : g->first, wanted = from < pos + rows ? pos + rows - from : 0;
        cedar_plan_rows(rules, kind, pos, rows, cedar_seq_bounds(e, seq), cedar_seq_write_floor(e, seq), false, wanted,
                        &g->entry);
        g->entry.seq = seq;
        g->entry.tokens = g->tokens + pos;
        cedar_step_plan plan = { .cut = rules->cut, .entry_count = 1, .entries = &g->entry };
        cedar_plan_total(&plan);
        cedar_step_out out = { .logits = g->step_logits };
        st = cedar_engine_step(e, &plan, &out, g->err);
        uint64_t v = (uint64_t)g->c->vocab, n = g->entry.logits;
        if (!st && n) memcpy(g->logits + (pos + rows - n - g->first) * v, g->step_logits, n * v * sizeof(float));
    }
    return st;
}

static cedar_status feed_steps(golden *g, cedar_engine *e, int32_t seq, uint32_t count) {
    const cedar_replay_rules exact = { .window = (uint32_t)g->c->window };
    return feed(g, e, seq, cedar_seq_pos(e, seq) + count, 1, CEDAR_ROWS_DECODE, &exact);
}

/* A fresh sequence fed with n tokens in one chunk; no logits are kept. */
static cedar_status fresh(golden *g, cedar_engine *e, uint32_t n, const cedar_replay_rules *rules, int32_t *seq) {
    g->first = UINT32_MAX;
    cedar_status st = cedar_seq_open(e, seq, g->err);
    if (!st) {
        st = feed(g, e, *seq, n, n, CEDAR_ROWS_PREFILL, rules);
        if (st) cedar_seq_close(e, *seq);
    }
    return st;
}

/* What a prefix cache of global rows gives: a new sequence after a hit in `source`, which is closed. */
static cedar_status hit_of(golden *g, int32_t source, uint32_t hit, uint32_t start, int32_t *seq) {
    cedar_status st = cedar_seq_open(g->e, seq, g->err);
    uint32_t count;
    const cedar_hit_plan plan = { hit, start, hit - start, hit };
    if (!st && (st = cedar_seq_adopt(g->e, *seq, g->tokens, cedar_seq_pages(g->e, source, &count), &plan, g->err)))
        cedar_seq_close(g->e, *seq);
    cedar_seq_close(g->e, source);
    return st;
}

/* --- cases -------------------------------------------------------------------------------------------------------- */

static cedar_status run_plain(golden *g, const golden_case *k, cedar_engine *e, int32_t *seq) {
    cedar_status st = cedar_seq_open(e, seq, g->err);
    if (st) return st;
    cedar_replay_rules rules = rules_of(g, k);
    st = feed(g, e, *seq, (uint32_t)k->n, (uint32_t)(k->chunk ? k->chunk : k->n), CEDAR_ROWS_PREFILL, &rules);
    if (!st && k->decode) st = feed_steps(g, e, *seq, (uint32_t)k->decode);
    if (st) cedar_seq_close(e, *seq);
    return st;
}

/* State of the sequence whose prefix is hit: an exact prefill, or for E.turns an earlier replayed turn. */
static cedar_status hit_source(golden *g, const golden_case *k, int32_t *source) {
    const cedar_replay_rules exact = { .window = (uint32_t)g->c->window };
    unsigned first_hit, second;
    if (sscanf(k->id, "E.turns.h%u.h%u", &first_hit, &second) != 2)
        return fresh(g, g->e, (uint32_t)k->hit, &exact, source);
    enum { TURN_DECODE = 8 };
    int32_t before;
    uint32_t w = (uint32_t)g->c->window;
    cedar_status st = fresh(g, g->e, first_hit, &exact, &before);
    if (st) return st;
    if ((st = hit_of(g, before, first_hit, first_hit > w ? first_hit - w : 0, source))) return st;
    cedar_replay_rules rules = { .window = w, .decoder = true, .decoder_rows = w };
    st = feed(g, g->e, *source, second - TURN_DECODE, UINT32_MAX, CEDAR_ROWS_PREFILL, &rules);
    if (!st) st = feed_steps(g, g->e, *source, TURN_DECODE);
    if (st) cedar_seq_close(g->e, *source);
    return st;
}

static cedar_status run_hit(golden *g, const golden_case *k, int32_t *seq) {
    int32_t source;
    cedar_status st = hit_source(g, k, &source);
    if (st) return st;
    if (k->start < 0) {                     /* stored windows: exact restore */
        cedar_snap *snap = NULL;
        uint32_t count;
        st = cedar_snap_save(g->e, source, &snap, g->err);
        if (!st) st = cedar_seq_open(g->e, seq, g->err);
        if (!st)
            st = cedar_seq_restore(g->e, *seq, g->tokens, cedar_seq_pages(g->e, source, &count), (uint32_t)k->hit, snap,
                                   g->err);
        cedar_snap_free(snap);
        cedar_seq_close(g->e, source);
    } else {
        st = hit_of(g, source, (uint32_t)k->hit, (uint32_t)k->start, seq);
    }
    if (st) return st;
    g->first = (uint32_t)k->first;
    cedar_replay_rules rules = rules_of(g, k);
    uint32_t end = (uint32_t)(k->hit + k->suffix);
    st = feed(g, g->e, *seq, end, k->chunk ? (uint32_t)k->chunk : UINT32_MAX, CEDAR_ROWS_PREFILL, &rules);
    if (!st && k->decode) st = feed_steps(g, g->e, *seq, (uint32_t)k->decode);
    if (st) cedar_seq_close(g->e, *seq);
    return st;
}

/* New global rows after a hit against CASE.L{s}.kv_bytes and .index_bytes, where the directory has them. */
static cedar_status check_global_rows(golden *g, const cedar_st_tensor *t, int32_t seq, int32_t layer, int part,
                                      uint32_t lo) {
    uint64_t d = (uint64_t)g->c->head_dim, x = (uint64_t)g->c->index_dim,
             record = part ? x / 2 + x / 32 : d / 2 + d / 16;
    if (t->ndim != 2 || (uint64_t)t->shape[1] != record)
        return cedar_fail(g->err, CEDAR_E_FORMAT, "golden tensor \"%s\" is not made of records of %llu bytes", t->name,
                          (unsigned long long)record);
    uint8_t *got = cedar_calloc(1, t->bytes);
    if (!got) return cedar_fail(g->err, CEDAR_E_OOM, "no memory for %s", t->name);
    cedar_status st = cedar_engine_read_global(g->e, seq, layer, lo, (uint32_t)t->shape[0], part ? NULL : got,
                                               part ? got : NULL, g->err);
    uint64_t differ = 0;
    for (uint64_t b = 0; b < t->bytes; b++) differ += got[b] != t->data[b];
    if (!st) check_discrete(g, t->name, differ, t->bytes);
    cedar_free(got);
    return st;
}

static cedar_status check_new_rows(golden *g, const golden_case *k, int32_t seq) {
    cedar_status st = CEDAR_OK;
    int32_t found = 0;
    for (int32_t i = 0; i < g->c->kv_source_count && !st; i++)
        for (int part = 0; part < 2 && !st; part++) {
            char name[128];
            int32_t layer = g->c->kv_sources[i];
            snprintf(name, sizeof name, "%s.L%d.%s_bytes", k->id, layer, part ? "index" : "kv");
            const cedar_st_tensor *t = find(g, name);
            found += t != NULL;
            if (t) st = check_global_rows(g, t, seq, layer, part, (uint32_t)k->hit / (uint32_t)g->c->ratio[layer]);
        }
    if (!st && found && found != 2 * g->c->kv_source_count)
        st = cedar_fail(g->err, CEDAR_E_FORMAT, "golden.safetensors has %d of the %d tensors %s.L*.*_bytes", found,
                        2 * g->c->kv_source_count, k->id);
    return st;
}

static cedar_status check_logits(golden *g, const golden_case *k) {
    const cedar_st_tensor *t = NULL;
    cedar_status st = tensor(g, k->tensor, "F32", &t);
    if (st) return st;
    uint64_t v = (uint64_t)g->c->vocab, rows = (uint64_t)(k->row_end - k->row_first);
    if (t->ndim != 2 || (uint64_t)t->shape[1] != v || k->row_end > t->shape[0] || k->row_first < 0 || rows == 0 ||
        k->row_end - k->row_first != k->end - k->first)
        return cedar_fail(g->err, CEDAR_E_FORMAT, "case %s does not match golden tensor \"%s\"", k->id, k->tensor);
    float *want = floats(g, t);
    if (!want) return CEDAR_E_OOM;
    check_floats(g, k->id, g->logits, want + (uint64_t)k->row_first * v, rows, v, k->f32_rms);
    cedar_free(want);
    return CEDAR_OK;
}

static cedar_status run_draft(golden *g, const golden_case *k) {
    cedar_replay_rules rules = rules_of(g, k);
    if (strncmp(k->id, "F.replay", 8) == 0) {
        rules.decoder = true;
        rules.decoder_rows = rules.window;
    }
    int32_t seq, ids[DRAFT_MAX];
    float confidence[DRAFT_MAX], *logits = g->step_logits;
    uint32_t b = (uint32_t)g->c->draft_block;
    if (b > DRAFT_MAX || b > g->token_count)
        return cedar_fail(g->err, CEDAR_E_UNSUPPORTED, "draft blocks of %u are not checked", b);
    cedar_status st = fresh(g, g->e, (uint32_t)k->n, &rules, &seq);
    if (st) return st;
    char name[128];
    const cedar_st_tensor *want_ids = NULL, *want_conf = NULL, *want_logits = NULL;
    snprintf(name, sizeof name, "%s.ids", k->id);
    st = tensor(g, name, "I32", &want_ids);
    snprintf(name, sizeof name, "%s.confidence", k->id);
    if (!st) st = tensor(g, name, "F32", &want_conf);
    snprintf(name, sizeof name, "%s.logits", k->id);
    if (!st) st = tensor(g, name, "F32", &want_logits);
    if (!st && (want_ids->bytes != b * 4 || want_conf->bytes != b * 4 ||
                want_logits->bytes != (uint64_t)4 * b * (uint64_t)g->c->vocab))
        st = cedar_fail(g->err, CEDAR_E_FORMAT, "golden drafts of %s are not %u long", k->id, b);
    int32_t forced[DRAFT_MAX];
    if (!st) memcpy(forced, want_ids->data, want_ids->bytes);
    /* bf16 follows the golden chain, so that its logits can be compared */
    cedar_draft_item item = { seq, (int32_t)k->token, g->arith == CEDAR_BF16 ? forced : NULL, ids, logits, confidence };
    if (!st) st = cedar_engine_draft(g->e, &item, 1, g->err);
    cedar_seq_close(g->e, seq);
    if (st) return st;
    uint64_t differ = 0;
    for (uint32_t i = 0; i < b; i++) differ += ids[i] != forced[i];
    snprintf(name, sizeof name, "%s.ids", k->id);
    check_discrete(g, name, differ, b);
    float *want = floats(g, want_logits), *conf = floats(g, want_conf);
    if (!want || !conf) {
        cedar_free(want);
        cedar_free(conf);
        return CEDAR_E_OOM;
    }
    snprintf(name, sizeof name, "%s.logits", k->id);
    check_floats(g, name, logits, want, b, (uint64_t)g->c->vocab, k->f32_rms);
    snprintf(name, sizeof name, "%s.confidence", k->id);
    check_floats(g, name, confidence, conf, 1, b, k->f32_rms);
    cedar_free(want);
    cedar_free(conf);
    return CEDAR_OK;
}

/* Opens an engine of the present pass. */
static cedar_status open_engine(golden *g, bool wo_a_fp8, cedar_engine **out) {
    cedar_engine_opts o = cedar_engine_defaults(g->c);
    uint32_t lcm = (uint32_t)g->c->ratio_lcm;
    o.backend = g->opts->backend;
    o.arith = g->arith;
    o.threads = g->opts->threads;
    o.gpus = g->opts->gpus;
    o.page_tokens = 8 * lcm;
    o.context_tokens = g->token_count;
    o.seq_count = 3;
    o.page_count = 3 * (g->token_count / o.page_tokens + 2);
    o.step_rows = g->token_count;
    o.step_seqs = 1;
    o.wo_a_fp8 = wo_a_fp8;
    return cedar_engine_open(g->tested && g->pass != PASS_RECORD ? g->tested : g->model, &o, out, g->err);
}

/* The engine of the present pass, with the tape when it takes part. */
static cedar_status engine_of(golden *g, bool wo_a_fp8, cedar_engine **out) {
    cedar_engine **e = &g->engines[g->pass == PASS_RECORD][wo_a_fp8];
    cedar_status st = *e ? CEDAR_OK : open_engine(g, wo_a_fp8, e);
    if (st) return st;
    *out = *e;
    bool taped = cedar_engine_tape(*e, g->pass == PASS_RECORD || g->pass == PASS_FOLLOW ? &g->tape : NULL);
    if (g->pass == PASS_PLAIN) g->taped = taped && g->arith == CEDAR_F32;
    return CEDAR_OK;
}

static cedar_status begin_pass(golden *g, pass p) {
    g->pass = p;
    g->arith = p == PASS_RECORD ? CEDAR_WIDE : g->opts->arith;
    g->kept_at = g->free_differ = 0;
    g->free_rms = 0;
    if (p == PASS_RECORD) cedar_tape_record(&g->tape);
    if (p == PASS_FOLLOW) {
        if (g->opts->recorded) g->opts->recorded(g->opts->self, &g->tape);
        cedar_tape_follow(&g->tape, cedar_tape_tie(g->c));
    }
    return engine_of(g, false, &g->e);
}

static cedar_status run_pass(golden *g, const golden_case *k, pass p) {
    cedar_status st = begin_pass(g, p);
    if (st) return st;
    if (k->id[0] == 'F') return run_draft(g, k);
    int32_t seq;
    cedar_engine *e = NULL;
    if ((st = engine_of(g, strstr(k->id, ".wo_a_fp8") != NULL, &e))) return st;
    g->first = (uint32_t)k->first;
    st = k->hit >= 0 ? run_hit(g, k, &seq) : run_plain(g, k, e, &seq);
    if (st) return st;
    st = check_logits(g, k);
    if (!st && k->hit >= 0) st = check_new_rows(g, k, seq);
    cedar_seq_close(e, seq);
    return st;
}

static cedar_status run_case(golden *g, const golden_case *k) {
    if (k->end > g->token_count || k->n > g->token_count || k->hit + k->suffix > g->token_count)
        return cedar_fail(g->err, CEDAR_E_FORMAT, "case %s goes beyond the %u golden tokens", k->id, g->token_count);
    if (!g->taped) return run_pass(g, k, PASS_PLAIN);
    g->keeps = true;
    cedar_status st = run_pass(g, k, PASS_RECORD);
    if (!st) st = run_pass(g, k, PASS_FOLLOW);
    if (!st) cedar_tape_end(&g->tape);
    if (!st) st = run_pass(g, k, PASS_FREE);
    g->keeps = false;
    if (!st) report_decisions(g, k->id, true);
    return st;
}

/* --- manifest ----------------------------------------------------------------------------------------------------- */

static int64_t int_or(const cedar_json *o, const char *key, int64_t fallback) {
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : fallback;
}

static double noise_of(const cedar_json *o, const char *arith) {
    const json_t *v = json_object_get(json_object_get(json_object_get(o, "noise"), arith), "rms_rel");
    return json_is_number(v) ? json_number_value(v) : 0;
}

/* A half-open range [first, end). */
static cedar_status read_pair(golden *g, const cedar_json *o, const char *where, const char *key, int64_t pair[2]) {
    size_t n = 0;
    cedar_status st = cedar_json_ints(o, where, key, 0, INT32_MAX, 2, pair, &n, g->err);
    if (!st && (n != 2 || pair[0] >= pair[1]))
        return cedar_fail(g->err, CEDAR_E_FORMAT, "case %s: \"%s\" must be two numbers, first and end", where, key);
    return st;
}

static cedar_status read_case(golden *g, const cedar_json *o, golden_case *k) {
    const cedar_json *logits;
    int64_t pair[2];
    *k = (golden_case){ .n = int_or(o, "n", 0), .hit = int_or(o, "hit", -1), .suffix = int_or(o, "suffix", 0),
                        .start = int_or(o, "start", -1), .tail = int_or(o, "tail", 0), .chunk = int_or(o, "chunk", 0),
                        .decode = int_or(o, "decode", 0), .token = int_or(o, "token", -1),
                        .variant = json_string_value(json_object_get(o, "variant")),
                        .f32_rms = noise_of(o, "f32") };
    cedar_status st = cedar_json_string(o, "manifest.json: case", "id", &k->id, g->err);
    if (!st) st = read_pair(g, o, k->id, "positions", pair);
    if (st) return st;
    k->first = pair[0];
    k->end = pair[1];
    if (!st) st = cedar_json_object(o, k->id, "logits", &logits, g->err);
    if (!st) st = cedar_json_string(logits, k->id, "tensor", &k->tensor, g->err);
    if (!st) st = read_pair(g, logits, k->id, "rows", pair);
    if (!st) {
        k->row_first = pair[0];
        k->row_end = pair[1];
    }
    return st;
}

static cedar_status run_cases(golden *g) {
    const json_t *cases = json_object_get(g->manifest, "cases");
    if (!json_is_array(cases)) return cedar_fail(g->err, CEDAR_E_FORMAT, "manifest.json has no list \"cases\"");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        golden_case k;
        cedar_status st = read_case(g, json_array_get(cases, i), &k);
        if (!st) st = run_case(g, &k);
        if (st) return st;
    }
    return CEDAR_OK;
}

/* --- traces ------------------------------------------------------------------------------------------------------- */

enum { TRACE_ROWS = 4096 };

typedef struct trace_sum {
    uint64_t differ, count, rows;
    double err2, want2, want_max, err_max;
    double row_error[TRACE_ROWS];       /* relative RMS error by row */
} trace_sum;

typedef struct trace_run {
    golden *g;
    trace_sum sum[CEDAR_TAP_KIND_COUNT][CEDAR_LAYERS_MAX];
    int64_t stream_row[4096];           /* position -> row of trace.L{i}.h, or -1 */
    uint32_t n;
    const char *misshapen;              /* a golden tensor whose rows do not have the engine's width */
} trace_run;

static const char *const tap_names[CEDAR_TAP_KIND_COUNT] = { "h",           "pre",          "latent",     "scores",
                                                             "topk",        "pool",         "router_ids", "router_w",
                                                             "engram_rows", "window_bytes", "ring_bytes" };

/* Bytes of an element in golden.safetensors. */
static const uint64_t tap_bytes[CEDAR_TAP_KIND_COUNT] = { 4, 4, 4, 4, 4, 1, 4, 4, 8, 1, 1 };

static const cedar_st_tensor *trace_tensor(const golden *g, cedar_tap_kind kind, int32_t layer) {
    char name[96];
    snprintf(name, sizeof name, "trace.%c%d.%s", kind == CEDAR_TAP_RING ? 'M' : 'L', layer, tap_names[kind]);
    return find(g, name);
}

static void add_row(trace_sum *s, double err2, double want2) {
    if (s->rows <= TRACE_ROWS) s->row_error[s->rows - 1] = want2 > 0 ? sqrt(err2 / want2) : err2 > 0;
    s->err2 += err2;
    s->want2 += want2;
}

static void add_doubles(trace_sum *s, const double *got, const uint8_t *want, uint32_t width) {
    double err2 = 0, want2 = 0;
    for (uint32_t k = 0; k < width; k++) {
        float w;
        memcpy(&w, want + 4 * k, 4);
        if (isinf(w) && isinf(got[k]) && (w > 0) == (got[k] > 0)) continue;
        double d = fabs(got[k] - (double)w);
        if (!(d <= 1e300)) d = 1e300;
        err2 += d * d;
        want2 += (double)w * (double)w;
        s->err_max = fmax(s->err_max, d);
        s->want_max = fmax(s->want_max, fabs((double)w));
    }
    add_row(s, err2, want2);
}

/* Decoded ring rows: what a flipped code is worth. */
static void add_record(trace_sum *s, const uint8_t *got, const uint8_t *want, uint32_t width) {
    static const float e4m3[8] = { 1, 1.125f, 1.25f, 1.375f, 1.5f, 1.625f, 1.75f, 1.875f };
    uint32_t d = width / 33 * 32;
    double err2 = 0, want2 = 0;
    for (uint32_t k = 0; k < d; k++) {
        double v[2];
        for (int i = 0; i < 2; i++) {
            uint8_t c = i ? want[k] : got[k], b = i ? want[d + k / 32] : got[d + k / 32];
            int e = c >> 3 & 15;
            double m = e ? ldexp((double)e4m3[c & 7], e - 7) : ldexp(c & 7, -9);
            v[i] = ldexp(c & 128 ? -m : m, b - 127);
        }
        err2 += (v[0] - v[1]) * (v[0] - v[1]);
        want2 += v[1] * v[1];
    }
    add_row(s, err2, want2);
}

static bool is_zero_code(uint8_t a) { return (a & 0x7F) == 0; }

static void trace_tap(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                      uint32_t width) {
    (void)seq;
    trace_run *t = self;
    const cedar_st_tensor *w = trace_tensor(t->g, kind, layer);
    int64_t row = kind == CEDAR_TAP_H ? t->stream_row[pos] : pos;
    if (!w || row < 0 || row >= w->shape[0]) return;
    uint64_t cols = 1;
    for (int i = 1; i < w->ndim; i++) cols *= (uint64_t)w->shape[i];
    uint64_t row_bytes = w->bytes / (uint64_t)w->shape[0];
    bool grows = kind == CEDAR_TAP_SCORES || kind == CEDAR_TAP_POOL;      /* as wide as the last row's */
    if (grows ? row_bytes < width * tap_bytes[kind] : row_bytes != width * tap_bytes[kind]) {
        t->misshapen = w->name;
        return;
    }
    const uint8_t *want = w->data + (uint64_t)row * row_bytes;
    trace_sum *s = &t->sum[kind][layer];
    s->rows++;
    switch (kind) {
    case CEDAR_TAP_H: case CEDAR_TAP_PRE: case CEDAR_TAP_LATENT: case CEDAR_TAP_ROUTER_W: case CEDAR_TAP_SCORES:
        add_doubles(s, data, want, width);
        return;
    case CEDAR_TAP_TOPK: case CEDAR_TAP_ROUTER_IDS:
        for (uint32_t k = 0; k < width; k++) s->differ += memcmp((const uint8_t *)data + 4 * k, want + 4 * k, 4) != 0;
        s->count += width;
        return;
    case CEDAR_TAP_ENGRAM_ROWS:
        for (uint32_t k = 0; k < width; k++) s->differ += memcmp((const uint8_t *)data + 8 * k, want + 8 * k, 8) != 0;
        s->count += width;
        return;
    case CEDAR_TAP_POOL:
        for (uint64_t k = 0; k < cols; k++) s->differ += (k < width ? ((const uint8_t *)data)[k] : 0) != want[k];
        s->count += cols;
        return;
    case CEDAR_TAP_WINDOW: case CEDAR_TAP_RING:
        for (uint32_t k = 0; k < width; k++) {
            uint8_t a = ((const uint8_t *)data)[k], b = want[k];
            s->differ += a != b && !(k < width / 33 * 32 && is_zero_code(a) && is_zero_code(b));
        }
        s->count += width;
        add_record(s, data, want, width);
        return;
    case CEDAR_TAP_KIND_COUNT: return;
    }
}

static bool trace_inject(void *self, int32_t layer, int32_t seq, uint32_t pos, double *h, double *pre) {
    (void)seq;
    trace_run *t = self;
    const cedar_st_tensor *wh = trace_tensor(t->g, CEDAR_TAP_H, layer - 1),
                          *wp = trace_tensor(t->g, CEDAR_TAP_PRE, layer - 1);
    uint64_t width = (uint64_t)t->g->c->hc * (uint64_t)t->g->c->hidden;
    if (!wh || !wp || t->stream_row[pos] < 0 || t->stream_row[pos] >= wh->shape[0] || pos >= wp->shape[0]) return false;
    if (wh->bytes != 4 * width * (uint64_t)wh->shape[0] ||
        wp->bytes != 4ull * (uint32_t)t->g->c->hc * (uint64_t)wp->shape[0]) {
        t->misshapen = wh->name;
        return false;
    }
    for (uint64_t k = 0; k < width; k++) {
        float v;
        memcpy(&v, wh->data + 4 * ((uint64_t)t->stream_row[pos] * width + k), 4);
        h[k] = (double)v;
    }
    for (int32_t k = 0; k < t->g->c->hc; k++) {
        float v;
        memcpy(&v, wp->data + 4 * (pos * (uint32_t)t->g->c->hc + (uint32_t)k), 4);
        pre[k] = (double)v;
    }
    return true;
}

/* Median row error allowed one block deep. bf16 against wide vectors: two roundings of the streams (2^-9 each) and what
 * flipped FP8 (a few %) and FP4 codes add to a branch. */
static double block_limit(const golden *g, cedar_tap_kind kind) {
    if (g->arith != CEDAR_BF16 || g->ref_precision) return 1e-6;
    switch (kind) {
    case CEDAR_TAP_H: case CEDAR_TAP_PRE: return 0.006;
    case CEDAR_TAP_LATENT: case CEDAR_TAP_ROUTER_W: return 0.02;
    case CEDAR_TAP_WINDOW: return 0.05;
    default: return 0.15;
    }
}

/* Share of a discrete quantity's elements that may differ one block deep. */
static double block_flips(const golden *g, cedar_tap_kind kind) {
    if (kind == CEDAR_TAP_ENGRAM_ROWS) return 0;
    if (g->arith != CEDAR_BF16 || g->ref_precision) return 0.08;
    if (kind == CEDAR_TAP_WINDOW) return 0.4;
    return kind == CEDAR_TAP_ROUTER_IDS ? 0.08 : 0.25;      /* one other pick shifts the rest of an ascending list */
}

/* Without a tape, in an arithmetic that rounds, each block is checked alone. */
static bool checks_blocks(const golden *g) { return g->pass == PASS_PLAIN && g->arith != CEDAR_WIDE; }

static void report_trace(trace_run *t, cedar_tap_kind kind, int32_t layer) {
    golden *g = t->g;
    trace_sum *s = &t->sum[kind][layer];
    bool wide = g->arith == CEDAR_WIDE, by_block = checks_blocks(g);
    if (by_block && kind == CEDAR_TAP_RING) return;     /* many blocks deep */
    char name[96], text[TEXT];
    snprintf(name, sizeof name, "trace.%c%d.%s", kind == CEDAR_TAP_RING ? 'M' : 'L', layer, tap_names[kind]);
    uint64_t n = s->rows < TRACE_ROWS ? s->rows : TRACE_ROWS;
    qsort(s->row_error, n, sizeof *s->row_error, by_value);
    double median = n ? s->row_error[n / 2] : 0, top = s->want_max > 0 ? s->err_max / s->want_max : s->err_max;
    bool floats_ok = wide ? top <= 1e-6 : by_block ? median <= block_limit(g, kind) : top < 1e-5 && median < 1e-5;
    if (s->rows == 0) {
        verdict(g, false, name, "the engine never reported it");
    } else if (s->count == 0) {
        snprintf(text, sizeof text, "%5llu rows  max %.2e  median row %.2e", (unsigned long long)s->rows, top, median);
        verdict(g, floats_ok, name, text);
    } else {
        snprintf(text, sizeof text, "%llu of %llu differ", (unsigned long long)s->differ, (unsigned long long)s->count);
        double allowed = by_block ? block_flips(g, kind) : 0;
        verdict(g, (double)s->differ <= allowed * (double)s->count && (!by_block || floats_ok), name, text);
    }
}

/* kv_bytes, index_bytes of the prefill, by source. */
static cedar_status check_trace_bytes(golden *g, int32_t seq) {
    cedar_status st = CEDAR_OK;
    for (int32_t i = 0; i < g->c->kv_source_count && !st; i++)
        for (int part = 0; part < 2 && !st; part++) {
            char name[96];
            int32_t layer = g->c->kv_sources[i];
            snprintf(name, sizeof name, "trace.L%d.%s_bytes", layer, part ? "index" : "kv");
            const cedar_st_tensor *t = NULL;
            if (!(st = tensor(g, name, "U8", &t))) st = check_global_rows(g, t, seq, layer, part, 0);
        }
    return st;
}

/* trace.L{s}.open{n}: the open group after n tokens, [members, 2, d]. */
static cedar_status check_open(golden *g, int32_t seq, uint32_t n) {
    int32_t d = g->c->head_dim;
    double *pair = cedar_calloc(2 * (size_t)d, sizeof *pair);
    float *got = cedar_calloc(2 * (size_t)d * CEDAR_RATIO_MAX, sizeof *got);
    cedar_status st = pair && got ? CEDAR_OK : cedar_fail(g->err, CEDAR_E_OOM, "no memory for open groups");
    for (int32_t i = 0; i < g->c->kv_source_count && !st; i++) {
        char name[96];
        snprintf(name, sizeof name, "trace.L%d.open%u", g->c->kv_sources[i], n);
        const cedar_st_tensor *t = find(g, name);
        if (!t) continue;
        uint32_t members = (uint32_t)t->shape[0];
        if (members >= CEDAR_RATIO_MAX || t->bytes != 4ull * members * 2 * (uint32_t)d)
            st = cedar_fail(g->err, CEDAR_E_FORMAT, "golden tensor \"%s\" has an odd shape", name);
        for (uint32_t m = 0; m < members && !st; m++) {
            st = cedar_engine_read_open(g->e, seq, g->c->kv_sources[i], n - members + m, pair, pair + d, g->err);
            for (int32_t k = 0; k < 2 * d; k++) got[m * 2 * (uint32_t)d + (uint32_t)k] = (float)pair[k];
        }
        float *want = st ? NULL : floats(g, t);
        if (want) check_floats(g, name, got, want, 1, (uint64_t)members * 2 * (uint64_t)d, 0);
        cedar_free(want);
    }
    cedar_free(pair);
    cedar_free(got);
    return st;
}

static cedar_status trace_pass(golden *g, pass which) {
    const cedar_st_tensor *rows = NULL, *pre = NULL;
    cedar_status st = begin_pass(g, which);
    if (!st) st = tensor(g, "trace.rows", "I32", &rows);
    if (!st) st = tensor(g, "trace.L0.pre", "F32", &pre);
    if (st) return st;
    trace_run *t = cedar_calloc(1, sizeof *t);
    if (!t) return cedar_fail(g->err, CEDAR_E_OOM, "no memory for traces");
    t->g = g;
    bool by_block = checks_blocks(g);
    for (uint32_t p = 0; p < 4096; p++) t->stream_row[p] = -1;
    for (uint32_t r = 0; r < rows->bytes / 4; r++) {
        int32_t p;
        memcpy(&p, rows->data + 4 * r, 4);
        if (p >= 0 && p < 4096) t->stream_row[p] = r;
    }
    /* one block deep only as far as the golden streams are without a gap */
    t->n = by_block ? BLOCK_ROWS : (uint32_t)pre->shape[0];
    const cedar_replay_rules exact = { .window = (uint32_t)g->c->window };
    int32_t seq;
    if (t->n > g->token_count) st = cedar_fail(g->err, CEDAR_E_FORMAT, "the trace is longer than the golden tokens");
    cedar_engine_tap(g->e, trace_tap, t);
    if (by_block) cedar_engine_inject(g->e, trace_inject, t);
    if (!st) st = fresh(g, g->e, t->n, &exact, &seq);
    cedar_engine_tap(g->e, NULL, NULL);
    cedar_engine_inject(g->e, NULL, NULL);
    if (!st && t->misshapen) {
        st = cedar_fail(g->err, CEDAR_E_FORMAT, "golden tensor \"%s\" has rows of another width than this model",
                        t->misshapen);
        cedar_seq_close(g->e, seq);
    }
    if (!st) {
        for (int kind = 0; kind < CEDAR_TAP_KIND_COUNT; kind++)
            for (int32_t layer = 0; layer < g->c->layers; layer++)
                if (trace_tensor(g, (cedar_tap_kind)kind, layer)) report_trace(t, (cedar_tap_kind)kind, layer);
        if (!by_block) st = check_trace_bytes(g, seq);
        if (!by_block && !st) st = check_open(g, seq, t->n);
        cedar_seq_close(g->e, seq);
    }
    cedar_free(t);
    if (!st && !by_block && !(st = fresh(g, g->e, BLOCK_ROWS, &exact, &seq))) {
        st = check_open(g, seq, BLOCK_ROWS);
        cedar_seq_close(g->e, seq);
    }
    return st;
}

static cedar_status run_trace(golden *g) {
    if (!find(g, "trace.rows")) return CEDAR_OK;
    if (!g->taped) return trace_pass(g, PASS_PLAIN);
    cedar_status st = trace_pass(g, PASS_RECORD);
    if (!st) st = trace_pass(g, PASS_FOLLOW);
    if (st) return st;
    cedar_tape_end(&g->tape);
    report_decisions(g, "trace", false);
    return CEDAR_OK;
}

/* --- the directory ------------------------------------------------------------------------------------------------ */

static cedar_status open_dir(golden *g, const char *dir) {
    char path[4096];
    cedar_status st = cedar_model_open(dir, &g->model, g->err);
    if (!st && g->opts->tested) st = cedar_model_open(g->opts->tested, &g->tested, g->err);
    if (st) return st;
    g->c = cedar_model_config(g->model);
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    if ((st = cedar_st_open(path, &g->st, g->err))) return st;
    g->used = cedar_calloc(cedar_st_count(g->st) + 1, sizeof *g->used);
    if (!g->used) return cedar_fail(g->err, CEDAR_E_OOM, "no memory for the list of golden tensors");
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    if ((st = cedar_json_load(path, 64u << 20, &g->manifest, g->err))) return st;
    const char *precision = json_string_value(json_object_get(g->manifest, "precision"));
    g->ref_precision = precision && strcmp(precision, "ref") == 0;
    if (g->ref_precision && g->opts->gpus > 1)
        return cedar_fail(g->err, CEDAR_E_UNSUPPORTED, "%s: holds roundings of one GPU (its precision is \"ref\"), and "
                          "several add in another order; take gpus = 1", dir);
    const cedar_st_tensor *t = NULL;
    if ((st = tensor(g, "tokens", "I32", &t))) return st;
    g->token_count = (uint32_t)(t->bytes / 4);
    if (g->token_count < BLOCK_ROWS)
        return cedar_fail(g->err, CEDAR_E_FORMAT, "golden.safetensors has only %u tokens", g->token_count);
    g->tokens = cedar_calloc(g->token_count, sizeof *g->tokens);
    g->logits = cedar_calloc((size_t)g->token_count * (size_t)g->c->vocab, sizeof *g->logits);
    g->step_logits = cedar_calloc((size_t)g->token_count * (size_t)g->c->vocab, sizeof *g->step_logits);
    g->kept_count = (uint64_t)g->token_count * (uint64_t)g->c->vocab + DRAFT_MAX;
    if (g->opts->arith == CEDAR_F32) g->kept = cedar_calloc(g->kept_count, sizeof *g->kept);
    if (!g->tokens || !g->logits || !g->step_logits || (g->opts->arith == CEDAR_F32 && !g->kept))
        return cedar_fail(g->err, CEDAR_E_OOM, "no memory for golden logits");
    memcpy(g->tokens, t->data, (size_t)g->token_count * sizeof *g->tokens);
    for (uint32_t i = 0; i < g->token_count; i++)
        if (g->tokens[i] < 0 || g->tokens[i] >= g->c->vocab)
            return cedar_fail(g->err, CEDAR_E_FORMAT,
                              "golden.safetensors: token %d at position %u is outside the vocabulary of %d",
                              g->tokens[i], i, g->c->vocab);
    return begin_pass(g, PASS_PLAIN);
}

/* What holds for all cases together. */
static void report_all(golden *g) {
    char text[TEXT];
    g->pass = PASS_PLAIN;
    if (g->taped) {
        snprintf(text, sizeof text, "%llu of %llu are near-ties, widest %.1e of %.1e", (unsigned long long)g->ties,
                 (unsigned long long)g->decisions, g->widest, cedar_tape_tie(g->c));
        verdict(g, g->decisions > 0, "decisions, all cases", text);
    } else if (g->arith == CEDAR_F32) {
        snprintf(text, sizeof text, "%llu of %llu rows within 1e-5; %u quantities are off and not counted",
                 (unsigned long long)g->rows_close, (unsigned long long)g->rows_seen, g->off);
        verdict(g, 2 * g->rows_close >= g->rows_seen, "final logits, all cases", text);
    }
}

cedar_status cedar_golden_check(const char *dir, const cedar_golden_opts *opts, uint32_t *checked, uint32_t *failed,
                                cedar_err *err) {
    golden g = { .opts = opts, .err = err };
    cedar_status st = open_dir(&g, dir);
    if (!st) st = run_cases(&g);
    if (!st) st = run_trace(&g);
    if (!st && (opts->arith == CEDAR_WIDE || g.taped)) st = check_used(&g);     /* the others compare less */
    if (!st) report_all(&g);
    *checked = g.checked;
    *failed = g.failed;
    for (int i = 0; i < 4; i++) {
        cedar_status closed = cedar_engine_close(g.engines[i / 2][i % 2], err);
        if (!st) st = closed;
    }
    cedar_tape_free(&g.tape);
    cedar_st_close(g.st);
    cedar_free(g.used);
    cedar_json_free(g.manifest);
    cedar_model_close(g.model);
    cedar_model_close(g.tested);
    cedar_free(g.kept);
    cedar_free(g.tokens);
    cedar_free(g.logits);
    cedar_free(g.step_logits);
    return st;
}
