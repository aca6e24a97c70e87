/* A stand-in for the engine: the functions of engine/engine.h that sim/ calls, with made-up numbers instead of a model.
 *
 * Logits at a position are a pure function of all tokens up to it, so cached and recomputed prefixes must agree; after
 * an adopted hit (encoder replay) they are slightly off, as the real ones would be. Pages remember their tokens, and a
 * prefix served from foreign pages aborts. Step durations differ from call to call, as on a real machine. Include once.
 */
#ifndef CEDAR_TESTS_FAKE_ENGINE_H
#define CEDAR_TESTS_FAKE_ENGINE_H

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/engine.h"

enum { FAKE_VOCAB = 97, FAKE_WINDOW = 8, FAKE_POSITIONS = 4096, FAKE_SNAP_BYTES = 1000 };

struct cedar_model { cedar_config config; };

typedef struct fake_seq {
    bool open;
    uint32_t pos, floor, page_count;
    cedar_bounds bounds;
    int32_t *tokens, *pages;
    bool off;                   /* windows came from a replay */
} fake_seq;

struct cedar_engine {
    cedar_engine_opts opts;
    fake_seq *seqs;
    int *refs;                  /* [page_count] */
    uint64_t *content;          /* [page_count] hash of the prefix up to the page's end */
    uint32_t free_count;
};

struct cedar_snap { uint32_t pos; uint64_t prefix; bool off; };

static int64_t fake_calls;      /* never reset: durations of two runs differ */
static uint32_t fake_entries_max, fake_fail_step, fake_hidden_pages;
static uint32_t fake_models;     /* opened so far */
static int32_t fake_vocab = FAKE_VOCAB;     /* ids that prompts have; logits are there for the first FAKE_VOCAB */
static uint32_t fake_refuse_every, fake_opens;    /* every n-th sequence is refused, 0 = none */

static uint64_t fake_prefix(const int32_t *t, uint32_t n) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < n; i++) h = cedar_fold64(h, (uint32_t)t[i]);
    return h;
}

cedar_status cedar_config_load(const char *path, cedar_config *out, cedar_err *err) {
    (void)path;
    (void)err;
    *out = (cedar_config){ .name = "fake",
                           .vocab = fake_vocab,
                           .window = FAKE_WINDOW,
                           .positions_max = FAKE_POSITIONS,
                           .ratio_lcm = 2,
                           .layers = 4,
                           .cut = 2,
                           /* for prices, when time is modelled */
                           .hidden = 64, .heads = 4, .head_dim = 32, .q_lora = 32, .o_groups = 1, .o_lora = 16,
                           .experts = 8, .experts_per_token = 2, .moe_dim = 32, .hc = 4,
                           .index_heads = 2, .index_dim = 32, .index_topk = 8, .candidate_source = 1,
                           .candidate_blocks = 4, .candidate_block = 4,
                           .ratio = { 0, 2, 1, 1 }, .is_kv_source = { false, true, true },
                           .is_index_source = { false, true, true, true },
                           .stages = 1,
                           .draft_block = 5,
                           .draft_noise = 5,
                           .engram_layer_count = 1,
                           .engram_pad = 2 };
    return CEDAR_OK;
}

cedar_status cedar_model_open(const char *dir, cedar_model **out, cedar_err *err) {
    fake_models++;
    *out = cedar_calloc(1, sizeof **out);
    if (!*out) return cedar_fail(err, CEDAR_E_OOM, "no memory");
    return cedar_config_load(dir, &(*out)->config, err);
}

cedar_status cedar_model_synth(const cedar_config *config, uint64_t seed, uint64_t bytes_max, cedar_model **out,
                               cedar_err *err) {
    (void)seed;
    (void)bytes_max;
    fake_models++;
    *out = cedar_calloc(1, sizeof **out);
    if (!*out) return cedar_fail(err, CEDAR_E_OOM, "no memory");
    (*out)->config = *config;
    return CEDAR_OK;
}

cedar_status cedar_model_seeded(const cedar_config *config, uint64_t seed, cedar_model **out, cedar_err *err) {
    return cedar_model_synth(config, seed, 0, out, err);
}

cedar_status cedar_model_shape(const cedar_config *config, cedar_model **out, cedar_err *err) {
    return cedar_model_synth(config, 0, 0, out, err);
}

void cedar_model_close(cedar_model *m) { cedar_free(m); }
const cedar_config *cedar_model_config(const cedar_model *m) { return &m->config; }
void cedar_model_hash(const cedar_model *m, char out[65]) {
    (void)m;
    memset(out, 'f', 64);
    out[64] = 0;
}

cedar_status cedar_plan_memory(const cedar_config *c, const cedar_engine_opts *opts, cedar_memory_plan *out,
                               cedar_err *err) {
    (void)c;
    (void)opts;
    (void)err;
    *out =
        (cedar_memory_plan){ .kv_token_bytes_x1000 = 890000, .window_bytes = FAKE_SNAP_BYTES, .total_bytes = 1 << 20 };
    return CEDAR_OK;
}

cedar_engine_opts cedar_engine_defaults(const cedar_config *c) {
    (void)c;
    return (cedar_engine_opts){ .backend = "cpu" };
}

cedar_status cedar_engine_gpus_check(const char *backend, uint32_t gpus, cedar_err *err) {
    (void)backend, (void)gpus, (void)err;
    return CEDAR_OK;
}

void cedar_device_name(const char *backend, uint32_t gpus, char out[CEDAR_DEVICE_BYTES]) {
    (void)backend, (void)gpus;
    *out = 0;
}

cedar_status cedar_engine_open(const cedar_model *model, const cedar_engine_opts *o, cedar_engine **out,
                               cedar_err *err) {
    (void)model;
    if (strcmp(o->backend, "cuda") == 0) return cedar_fail(err, CEDAR_E_UNSUPPORTED, "\"cuda\" is not in this build");
    cedar_engine *e = cedar_calloc(1, sizeof *e);
    if (!e) goto oom;
    e->opts = *o;
    e->opts.backend = "cpu";
    e->seqs = cedar_calloc(o->seq_count, sizeof *e->seqs);
    e->refs = cedar_calloc(o->page_count, sizeof *e->refs);
    e->content = cedar_calloc(o->page_count, sizeof *e->content);
    if (!e->seqs || !e->refs || !e->content) goto oom;
    e->free_count = o->page_count;
    for (uint32_t i = 0; i < o->seq_count; i++) {
        e->seqs[i].tokens = cedar_calloc(o->context_tokens + o->page_tokens, sizeof(int32_t));
        e->seqs[i].pages = cedar_calloc(o->context_tokens / o->page_tokens + 1, sizeof(int32_t));
        if (!e->seqs[i].tokens || !e->seqs[i].pages) goto oom;
    }
    *out = e;
    return CEDAR_OK;
oom:
    (void)cedar_engine_close(e, NULL);
    return cedar_fail(err, CEDAR_E_OOM, "no memory");
}

cedar_status cedar_engine_close(cedar_engine *e, cedar_err *err) {
    (void)err;
    if (!e) return CEDAR_OK;
    for (uint32_t i = 0; e->seqs && i < e->opts.seq_count; i++) {
        if (e->seqs[i].open) cedar_seq_close(e, (int32_t)i);
        cedar_free(e->seqs[i].tokens);
        cedar_free(e->seqs[i].pages);
    }
    if (e->seqs && e->refs && e->content) CEDAR_ASSERT(e->free_count == e->opts.page_count); /* nobody leaks pages */
    cedar_free(e->seqs);
    cedar_free(e->refs);
    cedar_free(e->content);
    cedar_free(e);
    return CEDAR_OK;
}

const cedar_engine_opts *cedar_engine_options(const cedar_engine *e) { return &e->opts; }

void cedar_page_retain(cedar_engine *e, int32_t page) {
    CEDAR_ASSERT(e->refs[page] > 0);
    e->refs[page]++;
}

void cedar_page_release(cedar_engine *e, int32_t page) {
    CEDAR_ASSERT(e->refs[page] > 0);
    e->free_count += --e->refs[page] == 0;
}

uint32_t cedar_pages_free(const cedar_engine *e) {
    return e->free_count > fake_hidden_pages ? e->free_count - fake_hidden_pages : 0;
}

uint64_t cedar_page_bytes(const cedar_engine *e) {
    (void)e;
    return 100;
}

cedar_status cedar_seq_open(cedar_engine *e, int32_t *seq, cedar_err *err) {
    if (fake_refuse_every && ++fake_opens % fake_refuse_every == 0)
        return cedar_fail(err, CEDAR_E_BUSY, "planted refusal of a sequence");
    for (uint32_t i = 0; i < e->opts.seq_count; i++) {
        fake_seq *s = &e->seqs[i];
        if (s->open) continue;
        *s = (fake_seq){ .open = true, .tokens = s->tokens, .pages = s->pages };
        *seq = (int32_t)i;
        return CEDAR_OK;
    }
    return cedar_fail(err, CEDAR_E_BUSY, "no sequence is free");
}

void cedar_seq_close(cedar_engine *e, int32_t seq) {
    fake_seq *s = &e->seqs[seq];
    CEDAR_ASSERT(s->open);
    for (uint32_t i = 0; i < s->page_count; i++) cedar_page_release(e, s->pages[i]);
    s->page_count = 0;
    s->open = false;
}

uint32_t cedar_seq_pos(const cedar_engine *e, int32_t seq) { return e->seqs[seq].pos; }
uint32_t cedar_seq_write_floor(const cedar_engine *e, int32_t seq) { return e->seqs[seq].floor; }
cedar_bounds cedar_seq_bounds(const cedar_engine *e, int32_t seq) { return e->seqs[seq].bounds; }
const int32_t *cedar_seq_tokens(const cedar_engine *e, int32_t seq) { return e->seqs[seq].tokens; }

const int32_t *cedar_seq_pages(const cedar_engine *e, int32_t seq, uint32_t *count) {
    *count = e->seqs[seq].page_count;
    return e->seqs[seq].pages;
}

static void fake_take_over(cedar_engine *e, fake_seq *s, const int32_t *tokens, const int32_t *pages, uint32_t hit) {
    CEDAR_ASSERT(s->pos == 0 && s->page_count == 0 && hit % e->opts.page_tokens == 0);
    for (uint32_t i = 0; i < hit / e->opts.page_tokens; i++) {
        CEDAR_ASSERT(e->content[pages[i]] == fake_prefix(tokens, (i + 1) * e->opts.page_tokens)); /* foreign KV */
        cedar_page_retain(e, pages[i]);
        s->pages[s->page_count++] = pages[i];
    }
    memcpy(s->tokens, tokens, hit * sizeof *tokens);
}

cedar_status cedar_seq_adopt(cedar_engine *e, int32_t seq, const int32_t *tokens, const int32_t *pages,
                             const cedar_hit_plan *hit, cedar_err *err) {
    (void)err;
    fake_seq *s = &e->seqs[seq];
    fake_take_over(e, s, tokens, pages, hit->hit);
    s->pos = hit->start;
    s->floor = hit->write_floor;
    s->off = true;
    return CEDAR_OK;
}

cedar_status cedar_seq_restore(cedar_engine *e, int32_t seq, const int32_t *tokens, const int32_t *pages, uint32_t hit,
                               const cedar_snap *snap, cedar_err *err) {
    (void)err;
    fake_seq *s = &e->seqs[seq];
    CEDAR_ASSERT(snap->pos == hit && snap->prefix == fake_prefix(tokens, hit));
    fake_take_over(e, s, tokens, pages, hit);
    s->pos = s->floor = hit;
    s->off = snap->off;
    return CEDAR_OK;
}

cedar_status cedar_seq_reserve(cedar_engine *e, int32_t seq, uint32_t tokens, cedar_err *err) {
    fake_seq *s = &e->seqs[seq];
    uint32_t need = (tokens + e->opts.page_tokens - 1) / e->opts.page_tokens;
    if (tokens > e->opts.context_tokens) return cedar_fail(err, CEDAR_E_ARG, "beyond the context");
    if (need > s->page_count && need - s->page_count > e->free_count) return cedar_fail(err, CEDAR_E_BUSY, "no pages");
    for (int32_t p = 0; s->page_count < need; p++) {
        if (e->refs[p]) continue;
        e->refs[p] = 1;
        e->free_count--;
        e->content[p] = 0;
        s->pages[s->page_count++] = p;
    }
    return CEDAR_OK;
}

cedar_status cedar_seq_truncate(cedar_engine *e, int32_t seq, uint32_t tokens, cedar_err *err) {
    fake_seq *s = &e->seqs[seq];
    if (tokens > s->pos || s->pos - tokens > e->opts.verify_rows) return cedar_fail(err, CEDAR_E_ARG, "too far back");
    s->pos = tokens;
    return CEDAR_OK;
}

cedar_status cedar_snap_save(const cedar_engine *e, int32_t seq, cedar_snap **out, cedar_err *err) {
    const fake_seq *s = &e->seqs[seq];
    *out = cedar_calloc(1, sizeof **out);
    if (!*out) return cedar_fail(err, CEDAR_E_OOM, "no memory for a snapshot");
    **out = (cedar_snap){ s->pos, fake_prefix(s->tokens, s->pos), s->off };
    return CEDAR_OK;
}

uint32_t cedar_snap_pos(const cedar_snap *s) { return s->pos; }

uint64_t cedar_snap_bytes(const cedar_snap *s) {
    (void)s;
    return FAKE_SNAP_BYTES;
}

void cedar_snap_free(cedar_snap *s) { cedar_free(s); }

static void fake_logits(const fake_seq *s, uint32_t pos, float *out) {
    uint64_t h = fake_prefix(s->tokens, pos + 1);
    for (uint64_t i = 0; i < FAKE_VOCAB; i++) {
        out[i] = (float)(cedar_rng_at(h, i) >> 40) / 4e6f;
        if (s->off && pos >= s->floor) out[i] += (float)(cedar_rng_at(~h, i) >> 40) / 4e8f;
    }
}

static int32_t fake_greedy(const fake_seq *s, uint32_t pos) {
    float logits[FAKE_VOCAB];
    int32_t best = 0;
    fake_logits(s, pos, logits);
    for (int32_t v = 1; v < FAKE_VOCAB; v++)
        if (logits[v] > logits[best]) best = v;
    return best;
}

/* Greedy tokens of the sequence itself, but every third one is wrong: a drafter that is right now and then. */
cedar_status cedar_engine_draft(cedar_engine *e, cedar_draft_item *items, uint32_t count, cedar_err *err) {
    (void)err;
    for (uint32_t i = 0; i < count; i++) {
        fake_seq s = e->seqs[items[i].seq];
        int32_t tokens[FAKE_POSITIONS + 8];
        memcpy(tokens, s.tokens, s.pos * sizeof *tokens);
        s.tokens = tokens;
        tokens[s.pos] = items[i].token;
        for (uint32_t k = 0; k < 5; k++) {
            items[i].ids[k] = fake_greedy(&s, s.pos + k);
            if (fake_prefix(tokens, s.pos + k) % 3 == 0) items[i].ids[k] = (items[i].ids[k] + 1) % FAKE_VOCAB;
            tokens[s.pos + k + 1] = items[i].ids[k];
        }
    }
    return CEDAR_OK;
}

cedar_status cedar_engine_step(cedar_engine *e, const cedar_step_plan *plan, cedar_step_out *out, cedar_err *err) {
    if (fake_fail_step && --fake_fail_step == 0) return cedar_fail(err, CEDAR_E_IO, "planted failure of a step");
    CEDAR_ASSERT(plan->rows <= e->opts.step_rows && plan->entry_count <= e->opts.step_seqs && plan->entry_count > 0);
    if (plan->entry_count > fake_entries_max) fake_entries_max = plan->entry_count;
    cedar_step_begin("a fake step");
    uint32_t row = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *p = &plan->entries[i];
        fake_seq *s = &e->seqs[p->seq];
        CEDAR_ASSERT(s->open && p->pos == s->pos && p->rows > 0 && p->logits <= p->kept);
        CEDAR_ASSERT(p->pos + p->rows <= s->page_count * e->opts.page_tokens);
        for (uint32_t k = 0; k < p->rows; k++) {
            CEDAR_ASSERT(p->tokens[k] >= 0 && p->tokens[k] < fake_vocab);
            s->tokens[s->pos++] = p->tokens[k];
            if (s->pos % e->opts.page_tokens == 0 && s->pos > s->floor)
                e->content[s->pages[s->pos / e->opts.page_tokens - 1]] = fake_prefix(s->tokens, s->pos);
        }
        s->bounds = p->bounds;
        for (uint32_t k = p->logits; k > 0; k--, row++) {
            float logits[FAKE_VOCAB];
            fake_logits(s, s->pos - k, logits);
            int32_t best = 0;
            for (int32_t v = 1; v < FAKE_VOCAB; v++)
                if (logits[v] > logits[best]) best = v;
            if (out->argmax) out->argmax[row] = best;
            if (out->logits) memcpy(out->logits + (size_t)row * FAKE_VOCAB, logits, sizeof logits);
        }
    }
    cedar_step_end();
    out->duration_ns = 500000 + (int64_t)cedar_rng_below(77, (uint64_t)fake_calls++, 1000000);
    return CEDAR_OK;
}

#endif
