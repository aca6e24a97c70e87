/* Engines: bookkeeping of sequences and KV pages over a backend. Owns no numerics. */
#include "engine/engine.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/backend.h"

struct cedar_engine {
    const cedar_model *model;
    const cedar_config *config;
    cedar_engine_opts opts;
    cedar_layout layout;
    const cedar_backend *backend;
    void *impl;
    cedar_seq_state *seqs;              /* [seq_count] */
    uint32_t pages_per_seq;             /* longest page table */
    int32_t *page_refs;                 /* [page_count] */
    int32_t *page_free;                 /* [free_count] stack, lowest id on top */
    uint32_t free_count;
    int32_t *tokens_block, *pages_block;/* storage of the sequences' arrays */
    cedar_tape *tape;
};

struct cedar_snap {
    uint32_t pos;
    cedar_bounds bounds;                /* rows below them were never written, or came from before a clip */
    uint64_t stored_bytes;              /* what a cache must keep, for accounting */
    uint64_t buf_bytes;
    uint8_t *buf;
};

#ifdef CEDAR_HAVE_CUDA
#define CEDAR_BACKENDS "cpu, cuda and none"
static const cedar_backend *find_cuda(const char *name) {
    return strcmp(name, "cuda") == 0 || (strcmp(name, "auto") == 0 && cedar_cuda_present()) ? &cedar_backend_cuda
                                                                                            : NULL;
}
#else
#define CEDAR_BACKENDS "cpu and none"
static const cedar_backend *find_cuda(const char *name) {
    (void)name;
    return NULL;
}
#endif

const cedar_backend *cedar_backend_find(const char *name) {
    const cedar_backend *gpu = find_cuda(name);
    if (gpu) return gpu;
    if (strcmp(name, "none") == 0) return &cedar_backend_none;
    return strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0 ? &cedar_backend_cpu : NULL;
}

static cedar_status check_opts(const cedar_config *c, const cedar_engine_opts *o, cedar_err *err) {
    if (!o->page_count || !o->seq_count || !o->context_tokens || !o->step_rows || !o->step_seqs)
        return cedar_fail(err, CEDAR_E_ARG,
                          "page_count, seq_count, context_tokens, step_rows and step_seqs must be at least 1");
    return cedar_engine_opts_check(c, o, err);
}

cedar_status cedar_engine_open(const cedar_model *model, const cedar_engine_opts *opts, cedar_engine **out,
                               cedar_err *err) {
    const cedar_config *c = cedar_model_config(model);
    cedar_status st = check_opts(c, opts, err);
    if (st) return st;
    const cedar_backend *b = cedar_backend_find(opts->backend ? opts->backend : "cpu");
    if (!b)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "backend \"%s\" is not in this build, which has " CEDAR_BACKENDS,
                          opts->backend);
    if (!model->embed.data && b != &cedar_backend_none && !(model->seeded && b->makes_weights))
        return cedar_fail(err, CEDAR_E_ARG, "backend \"%s\" needs weights in host memory, and the model has none there",
                          b->name);
    cedar_engine *e = cedar_calloc(1, sizeof *e);
    if (!e) return cedar_fail(err, CEDAR_E_OOM, "no memory for an engine");
    *e = (cedar_engine){ .model = model, .config = c, .opts = *opts, .backend = b };
    e->opts.backend = b->name;
    e->opts.gpus = opts->gpus ? opts->gpus : 1;
    if (opts->gpus > 1) e->backend = &cedar_backend_group;
    cedar_layout_make(c, opts->page_tokens, opts->verify_rows, &e->layout);
    e->pages_per_seq = (opts->context_tokens + opts->page_tokens - 1) / opts->page_tokens;
    e->seqs = cedar_calloc(opts->seq_count, sizeof *e->seqs);
    e->page_refs = cedar_calloc(opts->page_count, sizeof *e->page_refs);
    e->page_free = cedar_calloc(opts->page_count, sizeof *e->page_free);
    e->tokens_block = cedar_calloc((size_t)opts->seq_count * opts->context_tokens, sizeof *e->tokens_block);
    e->pages_block = cedar_calloc((size_t)opts->seq_count * e->pages_per_seq, sizeof *e->pages_block);
    if (!e->seqs || !e->page_refs || !e->page_free || !e->tokens_block || !e->pages_block) {
        st = cedar_fail(err, CEDAR_E_OOM, "no memory for %u sequences of %u tokens", opts->seq_count,
                        opts->context_tokens);
    } else {
        for (uint32_t s = 0; s < opts->seq_count; s++) {
            e->seqs[s].tokens = e->tokens_block + (size_t)s * opts->context_tokens;
            e->seqs[s].pages = e->pages_block + (size_t)s * e->pages_per_seq;
        }
        for (uint32_t p = 0; p < opts->page_count; p++) e->page_free[p] = (int32_t)(opts->page_count - 1 - p);
        e->free_count = opts->page_count;
        st = e->backend->open(model, &e->opts, &e->layout, NULL, &e->impl, err);
    }
    if (st) {
        (void)cedar_engine_close(e, NULL);
        return st;
    }
    *out = e;
    return CEDAR_OK;
}

cedar_status cedar_engine_close(cedar_engine *e, cedar_err *err) {
    if (!e) return CEDAR_OK;
    cedar_status st = e->impl && e->backend->settle ? e->backend->settle(e->impl, err) : CEDAR_OK;
    if (st) {
        cedar_model_keep(e->model);
        return st;
    }
    if (e->impl) e->backend->close(e->impl);
    cedar_free(e->seqs);
    cedar_free(e->page_refs);
    cedar_free(e->page_free);
    cedar_free(e->tokens_block);
    cedar_free(e->pages_block);
    cedar_free(e);
    return CEDAR_OK;
}

const cedar_engine_opts *cedar_engine_options(const cedar_engine *e) { return &e->opts; }

cedar_status cedar_engine_gpus_check(const char *backend, uint32_t gpus, cedar_err *err) {
#ifdef CEDAR_HAVE_CUDA
    int devices = cedar_cuda_devices();
    if (cedar_backend_find(backend) == &cedar_backend_cuda && gpus > 1 && gpus > (uint32_t)devices)
        return cedar_fail(err, CEDAR_E_ARG, "gpus is %u, but this machine has %d that can be used", gpus, devices);
#endif
    (void)backend;
    (void)gpus;
    (void)err;
    return CEDAR_OK;
}

void cedar_device_name(const char *backend, uint32_t gpus, char out[CEDAR_DEVICE_BYTES]) {
    char one[CEDAR_DEVICE_BYTES] = "";
#ifdef CEDAR_HAVE_CUDA
    if (strcmp(backend, "cuda") == 0) cedar_cuda_device_name(one);
#else
    (void)backend;
#endif
    if (*one && gpus > 1) snprintf(out, CEDAR_DEVICE_BYTES, "%u x %.100s", gpus, one);
    else if (gpus > 1) snprintf(out, CEDAR_DEVICE_BYTES, "%u ranks", gpus);
    else snprintf(out, CEDAR_DEVICE_BYTES, "%s", one);
}

/* --- pages -------------------------------------------------------------------------------------------------------- */

static int32_t page_take(cedar_engine *e) {
    CEDAR_ASSERT(e->free_count > 0);
    int32_t p = e->page_free[--e->free_count];
    e->page_refs[p] = 1;
    return p;
}

void cedar_page_retain(cedar_engine *e, int32_t page) {
    CEDAR_ASSERT(page >= 0 && (uint32_t)page < e->opts.page_count && e->page_refs[page] > 0);
    e->page_refs[page]++;
}

void cedar_page_release(cedar_engine *e, int32_t page) {
    CEDAR_ASSERT(page >= 0 && (uint32_t)page < e->opts.page_count && e->page_refs[page] > 0);
    if (--e->page_refs[page] == 0) e->page_free[e->free_count++] = page;
}

uint32_t cedar_pages_free(const cedar_engine *e) { return e->free_count; }
uint64_t cedar_page_bytes(const cedar_engine *e) { return e->layout.page_bytes; }

/* --- sequences ---------------------------------------------------------------------------------------------------- */

static cedar_seq_state *seq_at(const cedar_engine *e, int32_t seq) {
    CEDAR_ASSERT(seq >= 0 && (uint32_t)seq < e->opts.seq_count && e->seqs[seq].open);
    return &e->seqs[seq];
}

cedar_status cedar_seq_open(cedar_engine *e, int32_t *seq, cedar_err *err) {
    for (uint32_t s = 0; s < e->opts.seq_count; s++) {
        cedar_seq_state *q = &e->seqs[s];
        if (q->open) continue;
        *q = (cedar_seq_state){ .open = true, .tokens = q->tokens, .pages = q->pages };
        e->backend->seq_reset(e->impl, (int32_t)s);
        *seq = (int32_t)s;
        return CEDAR_OK;
    }
    return cedar_fail(err, CEDAR_E_BUSY, "all %u sequences are in use", e->opts.seq_count);
}

void cedar_seq_close(cedar_engine *e, int32_t seq) {
    cedar_seq_state *q = seq_at(e, seq);
    for (uint32_t i = 0; i < q->page_count; i++) cedar_page_release(e, q->pages[i]);
    q->page_count = 0;
    q->open = false;
}

uint32_t cedar_seq_pos(const cedar_engine *e, int32_t seq) { return seq_at(e, seq)->pos; }
uint32_t cedar_seq_write_floor(const cedar_engine *e, int32_t seq) { return seq_at(e, seq)->write_floor; }
cedar_bounds cedar_seq_bounds(const cedar_engine *e, int32_t seq) { return seq_at(e, seq)->bounds; }
const int32_t *cedar_seq_tokens(const cedar_engine *e, int32_t seq) { return seq_at(e, seq)->tokens; }

const int32_t *cedar_seq_pages(const cedar_engine *e, int32_t seq, uint32_t *count) {
    *count = seq_at(e, seq)->page_count;
    return e->seqs[seq].pages;
}

/* Takes over the pages of the first `hit` tokens; a last page that is not full is copied, since it will be written. */
static cedar_status adopt_pages(cedar_engine *e, int32_t seq, const int32_t *pages, uint32_t hit, cedar_err *err) {
    cedar_seq_state *q = seq_at(e, seq);
    if (q->pos || q->page_count)
        return cedar_fail(err, CEDAR_E_ARG, "a prefix can only be adopted by a fresh sequence");
    if (hit > e->opts.context_tokens)
        return cedar_fail(err, CEDAR_E_ARG, "a prefix of %u tokens is longer than context_tokens, %u", hit,
                          e->opts.context_tokens);
    uint32_t full = hit / e->opts.page_tokens, partial = hit % e->opts.page_tokens != 0;
    if (partial && e->free_count == 0)
        return cedar_fail(err, CEDAR_E_BUSY, "no free KV page to copy a partly used page into");
    for (uint32_t i = 0; i < full; i++) {
        cedar_page_retain(e, pages[i]);
        q->pages[i] = pages[i];
    }
    if (partial) {
        q->pages[full] = page_take(e);
        e->backend->page_copy(e->impl, q->pages[full], pages[full]);
    }
    q->page_count = full + partial;
    return CEDAR_OK;
}

cedar_status cedar_seq_adopt(cedar_engine *e, int32_t seq, const int32_t *tokens, const int32_t *pages,
                             const cedar_hit_plan *hit, cedar_err *err) {
    if (hit->start > hit->hit)
        return cedar_fail(err, CEDAR_E_ARG, "replay starts at %u, after the hit's end %u", hit->start, hit->hit);
    for (int32_t k = 0; k < e->config->kv_source_count; k++) {
        uint32_t open = hit->hit % (uint32_t)e->config->ratio[e->config->kv_sources[k]];
        if (hit->hit - hit->start < open)
            return cedar_fail(err, CEDAR_E_ARG,
                              "a hit of %u tokens leaves %u tokens of a compressed entry open, but only %u are "
                              "replayed; replay at least as many",
                              hit->hit, open, hit->hit - hit->start);
    }
    cedar_status st = adopt_pages(e, seq, pages, hit->hit, err);
    if (st) return st;
    cedar_seq_state *q = seq_at(e, seq);
    memcpy(q->tokens, tokens, (size_t)hit->hit * sizeof *tokens);
    q->pos = q->high = q->truncate_min = hit->start;
    q->write_floor = hit->write_floor;
    q->bounds = (cedar_bounds){ hit->start, hit->start, hit->start };
    return CEDAR_OK;
}

static cedar_status check_snap(const cedar_engine *e, const cedar_snap *snap, uint32_t pos, cedar_err *err) {
    if (snap->pos != pos)
        return cedar_fail(err, CEDAR_E_ARG, "windows stored at %u cannot serve a hit of %u tokens", snap->pos, pos);
    if (snap->buf_bytes != e->backend->snap_bytes(e->impl))
        return cedar_fail(err, CEDAR_E_ARG,
                          "the windows were stored by an engine with another shape, arithmetic or verify_rows");
    return CEDAR_OK;
}

cedar_status cedar_seq_adopt_unclipped(cedar_engine *e, int32_t seq, const int32_t *tokens, const int32_t *pages,
                                       const cedar_hit_plan *hit, const cedar_snap *windows, cedar_err *err) {
    cedar_status st = check_snap(e, windows, hit->start, err);
    if (!st) st = cedar_seq_adopt(e, seq, tokens, pages, hit, err);
    if (st) return st;
    uint32_t w = (uint32_t)e->config->window, lo = hit->start > w ? hit->start - w : 0;
    seq_at(e, seq)->bounds = (cedar_bounds){ lo, lo, lo };
    e->backend->snap_load(e->impl, seq, hit->start, windows->buf);
    return CEDAR_OK;
}

cedar_status cedar_seq_restore(cedar_engine *e, int32_t seq, const int32_t *tokens, const int32_t *pages,
                               uint32_t hit, const cedar_snap *snap, cedar_err *err) {
    cedar_status st = check_snap(e, snap, hit, err);
    if (!st) st = adopt_pages(e, seq, pages, hit, err);
    if (st) return st;
    cedar_seq_state *q = seq_at(e, seq);
    memcpy(q->tokens, tokens, (size_t)hit * sizeof *tokens);
    uint32_t lo = hit > (uint32_t)e->config->window ? hit - (uint32_t)e->config->window : 0;
    q->pos = q->high = q->truncate_min = q->write_floor = hit;
    const cedar_bounds *b = &snap->bounds;
    q->bounds = (cedar_bounds){ b->lo_encoder > lo ? b->lo_encoder : lo, b->lo_cut > lo ? b->lo_cut : lo,
                                b->lo_late > lo ? b->lo_late : lo };
    e->backend->snap_load(e->impl, seq, hit, snap->buf);
    return CEDAR_OK;
}

cedar_status cedar_seq_reserve(cedar_engine *e, int32_t seq, uint32_t tokens, cedar_err *err) {
    cedar_seq_state *q = seq_at(e, seq);
    if (tokens > e->opts.context_tokens)
        return cedar_fail(err, CEDAR_E_ARG, "%u tokens are more than context_tokens, %u", tokens,
                          e->opts.context_tokens);
    uint32_t need = (tokens + e->opts.page_tokens - 1) / e->opts.page_tokens;
    if (need <= q->page_count) return CEDAR_OK;
    if (need - q->page_count > e->free_count)
        return cedar_fail(err, CEDAR_E_BUSY, "%u KV pages are needed, %u are free", need - q->page_count,
                          e->free_count);
    while (q->page_count < need) q->pages[q->page_count++] = page_take(e);
    return CEDAR_OK;
}

cedar_status cedar_seq_truncate(cedar_engine *e, int32_t seq, uint32_t tokens, cedar_err *err) {
    cedar_seq_state *q = seq_at(e, seq);
    const cedar_bounds *b = &q->bounds;
    /* below a bound there are no windows left to continue from */
    bool clipped = tokens < b->lo_encoder || tokens < b->lo_cut || tokens < b->lo_late;
    if (tokens > q->pos || tokens < q->truncate_min || tokens < q->write_floor || clipped ||
        q->high - tokens > e->opts.verify_rows)
        return cedar_fail(err, CEDAR_E_ARG, "cannot roll back from %u to %u tokens; verify_rows is %u", q->pos, tokens,
                          e->opts.verify_rows);
    q->pos = tokens;
    return CEDAR_OK;
}

cedar_status cedar_snap_save(const cedar_engine *e, int32_t seq, cedar_snap **out, cedar_err *err) {
    const cedar_seq_state *q = seq_at(e, seq);
    cedar_snap *s = cedar_calloc(1, sizeof *s);
    uint64_t bytes = e->backend->snap_bytes(e->impl);
    if (s) s->buf = cedar_calloc(1, bytes);
    if (!s || !s->buf) {
        cedar_snap_free(s);
        return cedar_fail(err, CEDAR_E_OOM, "no memory for %llu bytes of stored windows", (unsigned long long)bytes);
    }
    s->pos = q->pos;
    s->buf_bytes = bytes;
    s->bounds = q->bounds;
    uint64_t rows = q->pos < (uint32_t)e->config->window ? q->pos : (uint32_t)e->config->window;
    s->stored_bytes = rows * e->layout.ring_row_bytes * e->layout.ring_count;
    for (int32_t k = 0; k < e->layout.part_count; k++)
        s->stored_bytes +=
            (uint64_t)(q->pos % (uint32_t)e->layout.part[k].ratio) * 2 * (uint32_t)e->config->head_dim * 4;
    e->backend->snap_save(e->impl, seq, q->pos, s->buf);
    *out = s;
    return CEDAR_OK;
}

/* Nearest code without the last mantissa bit. Codes grow with the value within a sign, so the carry of a tie runs into
 * the exponent as it should; the largest finite code stays below the NaN code. */
static uint8_t coarse_code(uint8_t code) {
    uint8_t size = code & 0x7F;
    if (size == 0x7F) return code;
    uint8_t down = size & 0xFE, up = (uint8_t)(down + 2), even = down & 2 ? up : down;
    if (size & 1) size = even > 0x7E ? down : even;
    return (uint8_t)((code & 0x80) | size);
}

void cedar_snap_damage_windows(const cedar_engine *e, cedar_snap *s, cedar_snap_damage damage) {
    uint64_t rows = (uint64_t)e->layout.ring_count * (uint32_t)e->config->window;
    for (uint64_t r = 0; r < rows; r++) {
        uint8_t *row = s->buf + r * e->layout.ring_row_bytes;
        if (damage == CEDAR_SNAP_ZERO) memset(row, 0, e->layout.ring_row_bytes);
        for (int32_t k = 0; damage == CEDAR_SNAP_COARSE && k < e->config->head_dim; k++) row[k] = coarse_code(row[k]);
    }
}

uint32_t cedar_snap_pos(const cedar_snap *s) { return s->pos; }
uint64_t cedar_snap_bytes(const cedar_snap *s) { return s->stored_bytes; }

void cedar_snap_free(cedar_snap *s) {
    if (!s) return;
    cedar_free(s->buf);
    cedar_free(s);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static cedar_status check_entry(const cedar_engine *e, const cedar_plan_entry *p, cedar_err *err) {
    if (p->seq < 0 || (uint32_t)p->seq >= e->opts.seq_count || !e->seqs[p->seq].open)
        return cedar_fail(err, CEDAR_E_ARG, "a step names sequence %d, which is not open", p->seq);
    const cedar_seq_state *q = &e->seqs[p->seq];
    if (p->pos != q->pos)
        return cedar_fail(err, CEDAR_E_ARG, "a step feeds sequence %d from %u, but it is at %u", p->seq, p->pos,
                          q->pos);
    if (p->rows == 0 || p->kept == 0 || p->kept > p->rows || p->logits > p->kept)
        return cedar_fail(err, CEDAR_E_ARG, "a step of sequence %d has %u rows, %u kept and %u with logits", p->seq,
                          p->rows, p->kept, p->logits);
    if ((uint64_t)p->pos + p->rows > (uint64_t)q->page_count * e->opts.page_tokens ||
        p->pos + p->rows > e->opts.context_tokens)
        return cedar_fail(err, CEDAR_E_ARG, "a step takes sequence %d to %u tokens without pages for them", p->seq,
                          p->pos + p->rows);
    for (uint32_t i = 0; i < p->rows; i++)
        if (p->tokens[i] < 0 || p->tokens[i] >= e->config->vocab)
            return cedar_fail(err, CEDAR_E_ARG, "token %d at position %u is outside the vocabulary of %d", p->tokens[i],
                              p->pos + i, e->config->vocab);
    return CEDAR_OK;
}

/* What an entry may read and write has to follow from the sequence's state. */
static cedar_status check_bounds(const cedar_engine *e, const cedar_step_plan *plan, const cedar_plan_entry *p,
                                 cedar_err *err) {
    const cedar_seq_state *q = &e->seqs[p->seq];
    uint32_t first_kept = p->pos + p->rows - p->kept,
             cut_max = plan->cut == CEDAR_CUT_INSIDE_CLIP ? first_kept : p->pos;
    const cedar_bounds *b = &p->bounds, *now = &q->bounds;
    if (p->write_floor != q->write_floor)
        return cedar_fail(err, CEDAR_E_ARG, "a step of sequence %d has write floor %u, but the sequence's is %u",
                          p->seq, p->write_floor, q->write_floor);
    if (b->lo_encoder < now->lo_encoder || b->lo_cut < now->lo_cut || b->lo_late < now->lo_late)
        return cedar_fail(err, CEDAR_E_ARG, "a step of sequence %d lowers a window bound", p->seq);
    if (b->lo_encoder > p->pos || b->lo_cut > cut_max || b->lo_late > first_kept)
        return cedar_fail(err, CEDAR_E_ARG, "a step of sequence %d has rows below a window bound", p->seq);
    return CEDAR_OK;
}

/* The totals size every buffer of a step. */
static cedar_status check_totals(const cedar_step_plan *plan, cedar_err *err) {
    cedar_step_plan t = { .entry_count = plan->entry_count, .entries = plan->entries };
    cedar_plan_total(&t);
    if (t.rows != plan->rows || t.kept != plan->kept || t.logits != plan->logits || t.trimmed != plan->trimmed)
        return cedar_fail(err, CEDAR_E_ARG, "a step's totals do not match its entries; sum them with cedar_plan_total");
    return CEDAR_OK;
}

static cedar_status check_plan(const cedar_engine *e, const cedar_step_plan *plan, cedar_err *err) {
    if (plan->rows > e->opts.step_rows || plan->entry_count > e->opts.step_seqs || plan->entry_count == 0)
        return cedar_fail(err, CEDAR_E_ARG,
                          "a step of %u rows and %u entries; this engine takes 1 to %u rows and %u entries", plan->rows,
                          plan->entry_count, e->opts.step_rows, e->opts.step_seqs);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        cedar_status st = check_entry(e, &plan->entries[i], err);
        if (!st) st = check_bounds(e, plan, &plan->entries[i], err);
        if (st) return st;
        for (uint32_t k = 0; k < i; k++)
            if (plan->entries[k].seq == plan->entries[i].seq)
                return cedar_fail(err, CEDAR_E_ARG, "a step names sequence %d twice", plan->entries[i].seq);
    }
    return check_totals(plan, err);
}

cedar_status cedar_engine_step(cedar_engine *e, const cedar_step_plan *plan, cedar_step_out *out, cedar_err *err) {
    cedar_status st = check_plan(e, plan, err);
    if (!st && e->tape) st = cedar_tape_reserve(e->tape, e->config, plan->rows, err);
    if (!st && e->backend->reserve) st = e->backend->reserve(e->impl, out->logits ? plan->logits : 0, err);
    if (st) return st;
    int64_t start = cedar_now_ns();
    cedar_step_begin("a step");
    st = e->backend->step(e->impl, plan, e->seqs, out, err);
    cedar_step_end();
    out->duration_ns = cedar_now_ns() - start;
    if (st) return st;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *p = &plan->entries[i];
        cedar_seq_state *q = &e->seqs[p->seq];
        memcpy(q->tokens + p->pos, p->tokens, (size_t)p->rows * sizeof *p->tokens);
        q->pos = p->pos + p->rows;
        if (q->pos > q->high) q->high = q->pos;
        q->bounds = p->bounds;
    }
    return CEDAR_OK;
}

cedar_status cedar_engine_draft(cedar_engine *e, cedar_draft_item *items, uint32_t count, cedar_err *err) {
    if (!e->config->stages) return cedar_fail(err, CEDAR_E_UNSUPPORTED, "this model has no drafter");
    uint64_t wanted = 0;            /* rows of logits */
    for (uint32_t i = 0; i < count; i++) {
        seq_at(e, items[i].seq);
        wanted += items[i].logits ? (uint64_t)e->config->draft_block : 0;
        if (items[i].token < 0 || items[i].token >= e->config->vocab)
            return cedar_fail(err, CEDAR_E_ARG, "token %d is outside the vocabulary of %d", items[i].token,
                              e->config->vocab);
        for (int32_t k = 0; items[i].forced && k < e->config->draft_block; k++)
            if (items[i].forced[k] < 0 || items[i].forced[k] >= e->config->vocab)
                return cedar_fail(err, CEDAR_E_ARG, "forced token %d is outside the vocabulary of %d",
                                  items[i].forced[k], e->config->vocab);
    }
    if (e->tape) {
        cedar_status st = cedar_tape_reserve(e->tape, e->config, count * (uint32_t)e->config->draft_block, err);
        if (st) return st;
    }
    if (e->backend->reserve) {
        cedar_status st = e->backend->reserve(e->impl, wanted, err);
        if (st) return st;
    }
    cedar_step_begin("a draft");
    cedar_status st = e->backend->draft(e->impl, items, count, e->seqs, err);
    cedar_step_end();
    return st;
}

/* --- looking inside ----------------------------------------------------------------------------------------------- */

void cedar_engine_tap(cedar_engine *e, cedar_tap_fn fn, void *self) { e->backend->tap(e->impl, fn, self); }

void cedar_engine_inject(cedar_engine *e, cedar_inject_fn fn, void *self) { e->backend->inject(e->impl, fn, self); }

bool cedar_engine_tape(cedar_engine *e, cedar_tape *t) {
    if (!e->backend->tape) return false;
    e->tape = t;
    e->backend->tape(e->impl, t);
    return true;
}

static int32_t part_at(const cedar_engine *e, int32_t layer) {
    return layer >= 0 && layer < CEDAR_LAYERS_MAX ? e->layout.part_of[layer] : -1;
}

cedar_status cedar_engine_read_global(const cedar_engine *e, int32_t seq, int32_t layer, uint32_t first, uint32_t count,
                                      uint8_t *kv, uint8_t *index, cedar_err *err) {
    const cedar_seq_state *q = seq_at(e, seq);
    int32_t k = part_at(e, layer);
    if (k < 0) return cedar_fail(err, CEDAR_E_ARG, "layer %d writes no global KV", layer);
    const cedar_page_part *p = &e->layout.part[k];
    if ((uint64_t)first + count > (uint64_t)q->page_count * p->entries)
        return cedar_fail(err, CEDAR_E_ARG, "entries up to %u of layer %d are not there", first + count, layer);
    uint64_t kv_bytes = e->layout.kv_code_bytes + e->layout.kv_scale_bytes;
    uint64_t index_bytes = e->layout.index_code_bytes + e->layout.index_scale_bytes;
    for (uint32_t i = 0, n; i < count; i += n) {
        uint32_t at = (first + i) % p->entries, left = p->entries - at;     /* in this page */
        n = count - i < left ? count - i : left;
        e->backend->read_entries(e->impl, q->pages[(first + i) / p->entries], k, at, n,
                                 kv ? kv + i * kv_bytes : NULL, index ? index + i * index_bytes : NULL);
    }
    return CEDAR_OK;
}

cedar_status cedar_engine_read_open(const cedar_engine *e, int32_t seq, int32_t layer, uint32_t pos, double *kvf,
                                    double *score, cedar_err *err) {
    const cedar_seq_state *q = seq_at(e, seq);
    int32_t k = part_at(e, layer);
    if (k < 0 || e->layout.open_slots[k] == 0)
        return cedar_fail(err, CEDAR_E_ARG, "layer %d keeps no open group", layer);
    if (pos >= q->pos || q->pos - pos > e->layout.open_slots[k])
        return cedar_fail(err, CEDAR_E_ARG, "position %u is not in an open group of a sequence at %u", pos, q->pos);
    e->backend->read_open(e->impl, seq, k, pos, kvf, score);
    return CEDAR_OK;
}

void cedar_engine_poison(cedar_engine *e, int32_t seq) {
    const cedar_seq_state *q = seq_at(e, seq);
    uint32_t w = (uint32_t)e->config->window, reach = q->pos + 1 > w ? q->pos + 1 - w : 0;
    for (uint32_t ring = 0; ring < e->layout.ring_count; ring++) {
        int32_t layer = (int32_t)ring;
        uint32_t lo = layer < e->config->cut    ? q->bounds.lo_encoder
                      : layer == e->config->cut ? q->bounds.lo_cut
                                                : q->bounds.lo_late;
        /* the drafter reads one position more: its ring ends at pos - 1 */
        uint32_t from = layer < e->config->layers ? reach : q->pos > w ? q->pos - w : 0;
        if (lo < from) lo = from;
        e->backend->poison(e->impl, seq, ring, lo, q->pos);
    }
}
