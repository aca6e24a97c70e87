/* Helpers of the engine's tests: an engine over a golden model, feeding by plan, and what a sequence holds as bytes. */
#ifndef CEDAR_TESTS_ENGINE_RIG_H
#define CEDAR_TESTS_ENGINE_RIG_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "tests/sanitized.h"

enum { TOKENS_MAX = 320 };

/* Ranks of the rigs' engines. */
#ifndef RIG_GPUS
#define RIG_GPUS 1
#endif

typedef struct rig {
    cedar_model *model;
    const cedar_config *c;
    cedar_engine *e;
    uint32_t w, v;              /* window, vocabulary */
    int32_t token[TOKENS_MAX];
} rig;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        cedar_err ok_err = { 0 };                                                                                      \
        cedar_err *err = &ok_err;                                                                                      \
        ck_assert_msg((call) == CEDAR_OK, "%s", ok_err.msg);                                                           \
    } while (0)

/* A call that must fail with `status` and say `part`. */
#define FAILS(call, status, part)                                                                                      \
    do {                                                                                                               \
        cedar_err fails_err = { 0 }, *err = &fails_err;                                                                \
        cedar_status fails_got = (call);                                                                               \
        ck_assert_msg(fails_got == (status), "status %d, expected %d (%s)", (int)fails_got, (int)(status),             \
                      fails_err.msg);                                                                                  \
        ck_assert_msg(strstr(fails_err.msg, part) != NULL, "\"%s\" does not say \"%s\"", fails_err.msg, part);         \
    } while (0)

static inline cedar_engine_opts rig_opts(cedar_arith arith) {
    return (cedar_engine_opts){ .backend = "cpu",
                                .arith = arith,
                                .threads = 1,
                                .page_tokens = 8,
                                .page_count = 200,
                                .seq_count = 8,
                                .context_tokens = TOKENS_MAX,
                                .step_rows = TOKENS_MAX,
                                .step_seqs = 8,
                                .verify_rows = 4,
                                .gpus = RIG_GPUS,
                                .weight_cache_bytes = 1u << 30 };
}

static inline rig rig_open(const char *dir, const cedar_engine_opts *o) {
    rig r = { 0 };
    OK(cedar_model_open(dir, &r.model, err));
    r.c = cedar_model_config(r.model);
    OK(cedar_engine_open(r.model, o, &r.e, err));
    r.w = (uint32_t)r.c->window;
    r.v = (uint32_t)r.c->vocab;
    for (uint32_t i = 0; i < TOKENS_MAX; i++) r.token[i] = (int32_t)cedar_rng_below(77, i, r.v);
    for (uint32_t i = 0; i < 12; i++) r.token[60 + i] = r.token[20 + i];
    return r;
}

static inline rig rig_tiny(cedar_arith arith) {
    cedar_engine_opts o = rig_opts(arith);
    return rig_open("tests/golden/tiny-s1", &o);
}

/* Closes everything; all pages must have come back. */
static inline void rig_close(rig *r) {
    uint32_t count = cedar_engine_options(r->e)->page_count;
    ck_assert_uint_eq(cedar_pages_free(r->e), count);
    OK(cedar_engine_close(r->e, err));
    cedar_model_close(r->model);
}

static inline int32_t rig_seq(rig *r) {
    int32_t seq;
    OK(cedar_seq_open(r->e, &seq, err));
    return seq;
}

static inline cedar_replay_rules rules_exact(const rig *r) {
    return (cedar_replay_rules){ .window = r->w, .encoder_rows = r->w, .decoder_rows = r->w, .adopt_short_hits = true };
}

static inline cedar_replay_rules rules_decoder(const rig *r) {
    cedar_replay_rules u = rules_exact(r);
    u.decoder = true;
    return u;
}

static inline cedar_plan_entry rig_entry(const rig *r, int32_t seq, const int32_t *tokens, cedar_rows_kind kind,
                                         uint32_t rows, const cedar_replay_rules *rules) {
    cedar_plan_entry e;
    cedar_plan_rows(rules, kind, cedar_seq_pos(r->e, seq), rows, cedar_seq_bounds(r->e, seq),
                    cedar_seq_write_floor(r->e, seq), false, rows, &e);
    e.seq = seq;
    e.tokens = tokens + e.pos;
    return e;
}

/* One step of prepared entries. logits [kept rows of all entries, V]. */
static inline void rig_step(rig *r, cedar_plan_entry *e, uint32_t count, cedar_cut cut, float *logits) {
    for (uint32_t i = 0; i < count; i++) OK(cedar_seq_reserve(r->e, e[i].seq, e[i].pos + e[i].rows, err));
    cedar_step_plan plan = { .cut = cut, .entry_count = count, .entries = e };
    cedar_plan_total(&plan);
    cedar_step_out out = { .logits = logits };
    OK(cedar_engine_step(r->e, &plan, &out, err));
}

typedef struct feeding {
    uint32_t chunk;             /* 0 = all at once */
    cedar_rows_kind kind;
    bool poison;                /* before every step */
    const int32_t *tokens;      /* NULL = the rig's */
} feeding;

/* Feeds up to position `end`; logits [TOKENS_MAX, V] by absolute position (NULL = not wanted). */
static inline void rig_feed(rig *r, int32_t seq, uint32_t end, const cedar_replay_rules *rules, feeding f,
                            float *logits) {
    float *rows = malloc((size_t)TOKENS_MAX * r->v * sizeof *rows);
    while (cedar_seq_pos(r->e, seq) < end) {
        uint32_t pos = cedar_seq_pos(r->e, seq), n = end - pos;
        if (f.chunk && n > f.chunk) n = f.chunk;
        cedar_plan_entry e = rig_entry(r, seq, f.tokens ? f.tokens : r->token, f.kind, n, rules);
        if (f.poison) cedar_engine_poison(r->e, seq);
        rig_step(r, &e, 1, rules->cut, rows);
        if (logits) memcpy(logits + (size_t)(pos + n - e.kept) * r->v, rows, (size_t)e.kept * r->v * sizeof *rows);
    }
    free(rows);
}

static inline float *rig_logits(const rig *r) { return calloc((size_t)TOKENS_MAX * r->v, sizeof(float)); }

static inline bool row_finite(const rig *r, const float *a, uint32_t p) {
    for (uint32_t k = 0; k < r->v; k++)
        if (!isfinite(a[(size_t)p * r->v + k])) return false;
    return true;
}

/* Rows [lo, hi) of two runs: the same bits, and no NaN. One assertion a row: Check writes each to a file, which takes
 * longer than the engine for a real vocabulary. */
static inline void same_rows(const rig *r, const float *a, const float *b, uint32_t lo, uint32_t hi, const char *what) {
    for (uint32_t p = lo; p < hi; p++) {
        ck_assert_msg(row_finite(r, a, p), "%s: position %u is not finite", what, p);
        ck_assert_msg(!memcmp(a + (size_t)p * r->v, b + (size_t)p * r->v, r->v * sizeof *a), "%s: position %u differs",
                      what, p);
    }
}

static inline bool rows_equal(const rig *r, const float *a, const float *b, uint32_t p) {
    return !memcmp(a + (size_t)p * r->v, b + (size_t)p * r->v, r->v * sizeof *a);
}

/* Bytes of all complete global entries of the first `tokens` tokens, source by source. Caller frees. */
static inline uint8_t *rig_globals(const rig *r, int32_t seq, uint32_t tokens, size_t *bytes) {
    size_t kv = (size_t)r->c->head_dim / 2 + (size_t)r->c->head_dim / 16,
           ix = (size_t)r->c->index_dim / 2 + (size_t)r->c->index_dim / 32;
    uint8_t *all = calloc((size_t)r->c->kv_source_count * (tokens + 1), kv + ix);
    *bytes = 0;
    for (int32_t i = 0; i < r->c->kv_source_count; i++) {
        int32_t layer = r->c->kv_sources[i];
        uint32_t n = tokens / (uint32_t)r->c->ratio[layer];
        if (!n) continue;
        OK(cedar_engine_read_global(r->e, seq, layer, 0, n, all + *bytes, all + *bytes + n * kv, err));
        *bytes += n * (kv + ix);
    }
    return all;
}

static inline void same_globals(const rig *a, int32_t sa, const rig *b, int32_t sb, uint32_t tokens, const char *what) {
    size_t na, nb;
    uint8_t *x = rig_globals(a, sa, tokens, &na), *y = rig_globals(b, sb, tokens, &nb);
    ck_assert_uint_eq(na, nb);
    ck_assert_msg(!memcmp(x, y, na), "%s: global rows differ", what);
    free(x);
    free(y);
}

/* A sequence after a hit of `hit` tokens in the pages of `source`; it still has to be fed from its position on. */
static inline int32_t rig_hit(rig *r, int32_t source, uint32_t hit, const cedar_replay_rules *rules) {
    int32_t seq = rig_seq(r);
    uint32_t count;
    const cedar_hit_plan plan = cedar_plan_hit(rules, hit);
    const int32_t *pages = cedar_seq_pages(r->e, source, &count);
    OK(cedar_seq_adopt(r->e, seq, r->token, pages, &plan, err));
    return seq;
}

/* Drafts after the present position. ids [block], logits [block, V]. */
static inline void rig_draft(rig *r, int32_t seq, int32_t token, int32_t *ids, float *logits) {
    cedar_draft_item it = { .seq = seq, .token = token, .ids = ids, .logits = logits };
    OK(cedar_engine_draft(r->e, &it, 1, err));
}

/* Two sequences draft the same bits. */
static inline void same_drafts(rig *a, int32_t sa, rig *b, int32_t sb, const char *what) {
    size_t n = (size_t)a->c->draft_block * a->v;
    float *x = calloc(n, sizeof *x), *y = calloc(n, sizeof *y);
    int32_t i[64], j[64];
    rig_draft(a, sa, 9, i, x);
    rig_draft(b, sb, 9, j, y);
    for (size_t k = 0; k < n; k++) ck_assert_msg(isfinite(x[k]), "%s: a draft is not finite", what);
    ck_assert_msg(!memcmp(x, y, n * sizeof *x) && !memcmp(i, j, (size_t)a->c->draft_block * sizeof *i),
                  "%s: drafts differ", what);
    free(x);
    free(y);
}

#endif
