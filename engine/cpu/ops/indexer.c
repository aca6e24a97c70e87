/* The indexer: scores of global entries, top-k lists, candidate pools (spec/model.md 2.7). */
#include "engine/cpu/ops/forward.h"

/* Four index keys: entries first .. first+3 of the list, the last one repeated past the end. */
static void load_keys(const OP(forward) * f, const cedar_page_part *p, const int32_t *pages, const int32_t *names,
                      int first, int count, real *keys) {
    for (int i = 0; i < 4; i++) {
        int n = first + i < count ? first + i : count - 1;
        uint32_t j = (uint32_t)(names ? names[n] : n), at = j % p->entries;
        const uint8_t *page = store_page(f->env->store, pages[j / p->entries]);
        OP(fp4q32_decode)(page + p->index_codes + (uint64_t)at * f->l->index_code_bytes,
                          page + p->index_scales + (uint64_t)at * f->l->index_scale_bytes, f->c->index_dim,
                          keys + (int64_t)i * f->c->index_dim);
    }
}

/* S(t, j) = sum_h g_h max(0, iq_h . ik_j) for entries 0..count-1, or names[0..count-1]. */
static void score_entries(const OP(forward) * f, OP(worker) * w, const cedar_page_part *p, const int32_t *pages,
                          const real *iq, const real *g, const int32_t *names, int count, real *score) {
    int64_t dim = f->c->index_dim;
    const real *const keys[4] = { w->index_keys, w->index_keys + dim, w->index_keys + 2 * dim,
                                  w->index_keys + 3 * dim };
    for (int n = 0; n < count; n += 4) {
        load_keys(f, p, pages, names, n, count, w->index_keys);
        real sum[4] = { 0, 0, 0, 0 }, dot[4];
        for (int h = 0; h < f->c->index_heads; h++) {
            const real *q = iq + h * dim;
            const real *const qs[4] = { q, q, q, q };
            OP(dot4)(keys, qs, dim, dot);
            for (int i = 0; i < 4; i++) sum[i] += g[h] * (dot[i] > 0 ? dot[i] : 0);
        }
        for (int i = 0; i < 4 && n + i < count; i++) score[n + i] = sum[i];
    }
}

/* Entries of the row's pool, ascending. */
static int pool_names(const OP(forward) *f, uint32_t row, int visible, int32_t *names) {
    const int32_t *blocks = f->pool + (uint64_t)row * (uint64_t)f->c->candidate_blocks;
    int n = 0;
    for (int b = 0; b < f->pool_count[row]; b++)
        for (int j = blocks[b] * f->c->candidate_block; j < (blocks[b] + 1) * f->c->candidate_block && j < visible; j++)
            names[n++] = j;
    return n;
}

/* The pool of the row: best blocks of its scores. */
static void select_pool(OP(forward) *f, OP(worker) *w, uint32_t row, int visible) {
    const cedar_config *c = f->c;
    int32_t *pool = f->pool + (uint64_t)row * (uint64_t)c->candidate_blocks;
    f->pool_count[row] = OP(candidate_blocks)(w->scores, visible, c->candidate_block, c->candidate_blocks, pool,
                                              w->block_scores, w->heap);
    OP(tape_picks)(w->linear.tape, CEDAR_TAPE_BLOCKS, w->block_scores, NULL,
                   (visible + c->candidate_block - 1) / c->candidate_block, c->candidate_blocks, pool);
}

static void tap_scores(const OP(forward) *f, OP(worker) *w, int32_t seq, uint32_t pos, int visible) {
    for (int j = 0; j < visible; j++) w->wide[j] = (double)w->scores[j];
    f->env->tap(f->env->tap_self, CEDAR_TAP_SCORES, f->layer, seq, pos, w->wide, (uint32_t)visible);
}

static void tap_pool(const OP(forward) *f, OP(worker) *w, int32_t seq, uint32_t row, int visible) {
    for (int j = 0; j < visible; j++) w->mask[j] = 0;
    int n = pool_names(f, row, visible, w->names);
    for (int i = 0; i < n; i++) w->mask[w->names[i]] = 1;
    f->env->tap(f->env->tap_self, CEDAR_TAP_POOL, f->layer, seq, f->row_pos[row], w->mask, (uint32_t)visible);
}

/* Selection of one row. Inside a pool only its entries are scored: they get the same bits as in a full scan. */
static void select_row(OP(forward) *f, OP(worker) *w, uint32_t row, const real *iq, const real *g) {
    const cedar_config *c = f->c;
    const cedar_plan_entry *e = &f->plan->entries[f->row_entry[row]];
    const cedar_page_part *p = &f->l->part[f->l->part_of[c->kv_source_of[f->layer]]];
    const int32_t *pages = f->seqs[e->seq].pages;
    int visible = (int)((f->row_pos[row] + 1) / (uint32_t)p->ratio);
    int32_t *topk = f->topk + (uint64_t)row * (uint64_t)c->index_topk;
    bool restricted = f->pooled && f->layer != c->candidate_source;
    if (!restricted || f->env->tap) score_entries(f, w, p, pages, iq, g, NULL, visible, w->scores);
    if (f->env->tap) tap_scores(f, w, e->seq, f->row_pos[row], visible);
    if (restricted) {
        int n = pool_names(f, row, visible, w->names);
        score_entries(f, w, p, pages, iq, g, w->names, n, w->scores);
        OP(top_k)(w->scores, w->names, n, c->index_topk, topk, w->heap);
        OP(tape_picks)(w->linear.tape, CEDAR_TAPE_TOPK, w->scores, w->names, n, c->index_topk, topk);
    } else {
        if (f->layer == c->candidate_source) {
            select_pool(f, w, row, visible);
            if (f->env->tap) tap_pool(f, w, e->seq, row, visible);
        }
        OP(top_k)(w->scores, NULL, visible, c->index_topk, topk, w->heap);
        OP(tape_picks)(w->linear.tape, CEDAR_TAPE_TOPK, w->scores, NULL, visible, c->index_topk, topk);
    }
    if (f->env->tap)
        f->env->tap(f->env->tap_self, CEDAR_TAP_TOPK, f->layer, e->seq, f->row_pos[row], topk, (uint32_t)c->index_topk);
}

void OP(select_rows)(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count) {
    const cedar_config *c = f->c;
    int64_t dim = c->index_dim, width = c->index_heads * dim;
    real factor = (real)(pow((double)c->index_dim, -0.5) * pow((double)c->index_heads, -0.5));
    OP(linear)(&f->weights, &f->block->index_wq_b, w->qrq, c->q_lora, count, w->iq, width, &w->linear);
    OP(linear)(&f->weights, &f->block->index_weights_proj, w->x, c->hidden, count, w->ig, c->index_heads, &w->linear);
    for (int i = 0; i < count; i++) {
        real *iq = w->iq + i * width, *g = w->ig + i * (int64_t)c->index_heads;
        uint8_t nibbles[CEDAR_VECTOR_MAX / 2], scales[CEDAR_VECTOR_MAX / 32];
        for (int h = 0; h < c->index_heads; h++) {
            OP(rope)(iq + h * dim, c->index_dim, table_of(f, rows[i]), c->rope_dim / 2, 1);
            OP(fp4q32_encode)(iq + h * dim, c->index_dim, nibbles, scales, w->linear.tape);
            OP(fp4q32_decode)(nibbles, scales, c->index_dim, iq + h * dim);
            g[h] *= factor;
        }
        select_row(f, w, rows[i], iq, g);
    }
}
