/* The CPU backend: owns the cache bytes and the thread pool, and hands plans to the forward pass of its arithmetic. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "engine/cpu/cpu_int.h"

typedef struct cpu_backend {
    cedar_layout layout;
    cedar_store_cpu store;
    cedar_engine_opts opts;
    cedar_model *own;           /* slices of a rank; NULL alone */
    cedar_forward_env env;
    const cedar_forward_ops *ops;
    void *forward;
} cpu_backend;

static const cedar_forward_ops *ops_of(cedar_arith a) {
    return a == CEDAR_WIDE  ? &cedar_wide_forward_ops
           : a == CEDAR_F32 ? &cedar_f32_forward_ops
                            : &cedar_bf16_forward_ops;
}

/* Threads of one rank: those of the engine are shared out, and each rank has at least one. */
static uint32_t threads_of(const cedar_engine_opts *o, uint32_t rank) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t all = o->threads ? o->threads : online > 0 ? (uint32_t)online : 1, ranks = o->gpus ? o->gpus : 1;
    uint32_t own = all / ranks + (rank < all % ranks);
    return own ? own : 1;
}

uint64_t cedar_cpu_workspace_bytes(const cedar_config *c, const cedar_engine_opts *o) {
    return ops_of(o->arith)->workspace_bytes(c, o, threads_of(o, 0));
}

static void cpu_close(void *self) {
    cpu_backend *b = self;
    if (b->forward) b->ops->close(b->forward);
    cedar_pool_close(b->env.pool);
    cedar_model_close(b->own);
    cedar_free(b->store.pages);
    cedar_free(b->store.rank_pages);
    cedar_free(b->store.rings);
    cedar_free(b->store.open);
    cedar_free(b);
}

static cedar_status take_store(cpu_backend *b, cedar_err *err) {
    const cedar_engine_opts *o = &b->opts;
    const cedar_layout *l = &b->layout;
    const cedar_rank *rank = b->env.rank;
    cedar_store_cpu *s = &b->store;
    uint32_t pages = rank ? cedar_shard_pages(&rank->shard, o->page_count) : o->page_count;
    s->rank = rank ? rank->shard.rank : 0;
    s->ranks = rank ? rank->shard.ranks : 1;
    s->pages = cedar_calloc(pages, l->page_bytes);
    s->rank_pages = cedar_calloc(s->ranks, sizeof *s->rank_pages);
    s->rings = cedar_calloc(o->seq_count, l->ring_bytes);
    s->open = cedar_calloc((size_t)o->seq_count * l->open_reals, s->real_bytes);
    if (!s->pages || !s->rank_pages || !s->rings || !s->open)
        return cedar_fail(err, CEDAR_E_OOM,
                          "no memory for %u KV pages of %llu bytes and %u sequences of %llu bytes; see `cedar plan`",
                          pages, (unsigned long long)l->page_bytes, o->seq_count, (unsigned long long)l->ring_bytes);
    s->rank_pages[s->rank] = s->pages;
    if (rank && !cedar_ranks_share(rank->group, s->rank, s->pages, (void **)s->rank_pages))
        return cedar_ranks_error(rank->group, err);
    return CEDAR_OK;
}

static cedar_status cpu_open(const cedar_model *m, const cedar_engine_opts *o, const cedar_layout *l,
                             const cedar_rank *rank, void **self, cedar_err *err) {
    cpu_backend *b = cedar_calloc(1, sizeof *b);
    if (!b) return cedar_fail(err, CEDAR_E_OOM, "no memory for the CPU backend");
    b->layout = *l;
    b->opts = *o;
    b->ops = ops_of(o->arith);
    b->store = (cedar_store_cpu){ .c = &m->config, .l = &b->layout, .real_bytes = b->ops->real_bytes };
    b->env = (cedar_forward_env){ .model = m, .rank = rank, .opts = &b->opts, .store = &b->store };
    cedar_status st = take_store(b, err);
    if (!st && rank && !(st = cedar_cpu_slice(m, &rank->shard, &b->own, err))) b->env.model = b->own;
    if (!st) st = cedar_pool_open(threads_of(o, b->store.rank), &b->env.pool, err);
    if (!st) st = b->ops->open(&b->env, &b->forward, err);
    if (st) {
        cpu_close(b);
        return st;
    }
    *self = b;
    return CEDAR_OK;
}

/* E4M3 NaN codes and a scale of 1: a slot read before it was written shows in every result. */
static void ring_row_nan(const cedar_layout *l, uint8_t *row) { memset(row, 0x7F, l->ring_row_bytes); }

static void real_nan(uint8_t *at, uint64_t count, uint32_t real_bytes) {
    const double d = NAN;
    const float f = NAN;
    for (uint64_t i = 0; i < count; i++)
        memcpy(at + i * real_bytes, real_bytes == 8 ? (const void *)&d : &f, real_bytes);
}

static void cpu_seq_reset(void *self, int32_t seq) {
    cpu_backend *b = self;
    memset(b->store.rings + (uint64_t)seq * b->layout.ring_bytes, 0x7F, b->layout.ring_bytes);
    real_nan(b->store.open + (uint64_t)seq * b->layout.open_reals * b->store.real_bytes, b->layout.open_reals,
             b->store.real_bytes);
}

static void cpu_page_copy(void *self, int32_t to, int32_t from) {
    cpu_backend *b = self;
    memcpy(store_page(&b->store, to), store_page(&b->store, from), b->layout.page_bytes);
}

static cedar_status cpu_step(void *self, const cedar_step_plan *plan, const cedar_seq_state *seqs, cedar_step_out *out,
                             cedar_err *err) {
    cpu_backend *b = self;
    return b->ops->step(b->forward, plan, seqs, out, err);
}

static cedar_status cpu_draft(void *self, cedar_draft_item *items, uint32_t count, const cedar_seq_state *seqs,
                              cedar_err *err) {
    cpu_backend *b = self;
    return b->ops->draft(b->forward, items, count, seqs, err);
}

/* --- snapshots: window rows of every ring, then open groups ------------------------------------------------------- */

static uint64_t cpu_snap_bytes(const void *self) {
    const cpu_backend *b = self;
    return (uint64_t)b->layout.ring_count * (uint32_t)b->store.c->window * b->layout.ring_row_bytes +
           b->layout.open_reals * b->store.real_bytes;
}

static void snap_copy(const cpu_backend *b, int32_t seq, uint32_t pos, uint8_t *buf, bool save) {
    uint32_t w = (uint32_t)b->store.c->window, lo = pos > w ? pos - w : 0, bytes = b->layout.ring_row_bytes;
    for (uint32_t ring = 0; ring < b->layout.ring_count; ring++)
        for (uint32_t p = lo; p < pos; p++) {
            uint8_t *row = store_ring(&b->store, seq, ring, p), *at = buf + ((uint64_t)ring * w + p % w) * bytes;
            memcpy(save ? at : row, save ? row : at, bytes);
        }
    uint8_t *open = b->store.open + (uint64_t)seq * b->layout.open_reals * b->store.real_bytes;
    uint8_t *at = buf + (uint64_t)b->layout.ring_count * w * bytes;
    memcpy(save ? at : open, save ? open : at, b->layout.open_reals * b->store.real_bytes);
}

static void cpu_snap_save(const void *self, int32_t seq, uint32_t pos, uint8_t *buf) {
    snap_copy(self, seq, pos, buf, true);
}

static void cpu_snap_load(void *self, int32_t seq, uint32_t pos, const uint8_t *buf) {
    union { const uint8_t *in; uint8_t *io; } u = { .in = buf };   /* snap_copy only reads it when not saving */
    snap_copy(self, seq, pos, u.io, false);
}

/* --- looking inside ----------------------------------------------------------------------------------------------- */

static void cpu_tap(void *self, cedar_tap_fn fn, void *tap_self) {
    cpu_backend *b = self;
    b->env.tap = fn;
    b->env.tap_self = tap_self;
}

static void cpu_inject(void *self, cedar_inject_fn fn, void *inject_self) {
    cpu_backend *b = self;
    b->env.inject = fn;
    b->env.inject_self = inject_self;
}

static void cpu_tape(void *self, cedar_tape *tape) {
    cpu_backend *b = self;
    b->env.tape = tape;
}

/* One record: codes of an entry, then its scales. */
static void read_record(uint8_t *to, const uint8_t *codes, uint32_t code_bytes, const uint8_t *scales,
                        uint32_t scale_bytes, uint32_t entry) {
    memcpy(to, codes + (uint64_t)entry * code_bytes, code_bytes);
    memcpy(to + code_bytes, scales + (uint64_t)entry * scale_bytes, scale_bytes);
}

static void cpu_read_entries(const void *self, int32_t page, int32_t part, uint32_t first, uint32_t count, uint8_t *kv,
                             uint8_t *index) {
    const cpu_backend *b = self;
    const cedar_layout *l = &b->layout;
    const cedar_page_part *p = &l->part[part];
    const uint8_t *at = store_page(&b->store, page);
    for (uint32_t i = 0; i < count; i++) {
        if (kv)
            read_record(kv + (uint64_t)i * (l->kv_code_bytes + l->kv_scale_bytes), at + p->kv_codes, l->kv_code_bytes,
                        at + p->kv_scales, l->kv_scale_bytes, first + i);
        if (index)
            read_record(index + (uint64_t)i * (l->index_code_bytes + l->index_scale_bytes), at + p->index_codes,
                        l->index_code_bytes, at + p->index_scales, l->index_scale_bytes, first + i);
    }
}

static void cpu_read_open(const void *self, int32_t seq, int32_t part, uint32_t pos, double *kvf, double *score) {
    const cpu_backend *b = self;
    const uint8_t *at = store_open(&b->store, seq, part, pos);
    for (int32_t k = 0; k < 2 * b->store.c->head_dim; k++) {
        double v;
        float f;
        if (b->store.real_bytes == 8) memcpy(&v, at + 8 * k, 8);
        else memcpy(&f, at + 4 * k, 4), v = (double)f;
        if (k < b->store.c->head_dim) kvf[k] = v;
        else score[k - b->store.c->head_dim] = v;
    }
}

static void cpu_poison(void *self, int32_t seq, uint32_t ring, uint32_t lo, uint32_t hi) {
    cpu_backend *b = self;
    for (uint32_t slot = 0; slot < b->layout.ring_slots; slot++) {
        bool live = false;
        for (uint32_t p = lo; p < hi && !live; p++) live = p % b->layout.ring_slots == slot;
        if (!live) ring_row_nan(&b->layout, store_ring(&b->store, seq, ring, slot));
    }
}

const cedar_backend cedar_backend_cpu = {
    .name = "cpu",
    .workspace_bytes = cedar_cpu_workspace_bytes,
    .open = cpu_open,
    .close = cpu_close,
    .seq_reset = cpu_seq_reset,
    .page_copy = cpu_page_copy,
    .step = cpu_step,
    .draft = cpu_draft,
    .snap_bytes = cpu_snap_bytes,
    .snap_save = cpu_snap_save,
    .snap_load = cpu_snap_load,
    .tap = cpu_tap,
    .inject = cpu_inject,
    .read_entries = cpu_read_entries,
    .read_open = cpu_read_open,
    .poison = cpu_poison,
    .tape = cpu_tape,
};
