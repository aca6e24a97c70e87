/* One block of the model over the rows of a step, in three phases with a barrier between them: a row's attention reads
 * window rows and global rows that other rows of the same step write (spec/model.md 2.2, 2.4-2.8). For several ranks
 * the last phase is three: behind attention and behind the experts they add up what each has a part of. */
#include <string.h>

#include "engine/cpu/ops/forward.h"

static real *streams(const OP(forward) * f, uint32_t row) {
    return f->h + (uint64_t)row * (uint64_t)f->c->hc * (uint64_t)f->c->hidden;
}
static real *per_stream(const OP(forward) * f, real *at, uint32_t row) {
    return at + (uint64_t)row * (uint64_t)f->c->hc;
}
static real *comb_of(const OP(forward) * f, uint32_t row) {
    return f->comb + (uint64_t)row * (uint64_t)f->c->hc * (uint64_t)f->c->hc;
}
static real *x_of(const OP(forward) *f, uint32_t row) { return f->x + (uint64_t)row * (uint64_t)f->c->hidden; }
static real *comp_of(const OP(forward) * f, uint32_t row) {
    return f->comp + (uint64_t)row * 2 * (uint64_t)f->c->head_dim;
}
static uint8_t *window_of(const OP(forward) * f, uint32_t row) {
    return f->window + (uint64_t)row * f->l->ring_row_bytes;
}

static const cedar_plan_entry *entry_of(const OP(forward) * f, uint32_t row) {
    return &f->plan->entries[f->row_entry[row]];
}

uint32_t OP(window_lo)(const OP(forward) *f, const cedar_plan_entry *e) {
    return f->layer < f->c->cut ? e->bounds.lo_encoder : f->layer == f->c->cut ? e->bounds.lo_cut : e->bounds.lo_late;
}

/* --- taps --------------------------------------------------------------------------------------------------------- */

static void tap_bytes(const OP(forward) * f, cedar_tap_kind kind, int32_t layer, uint32_t row, const void *data,
                      uint32_t width) {
    if (!f->env->tap) return;
    f->env->tap(f->env->tap_self, kind, layer, f->draft ? f->draft->seq : entry_of(f, row)->seq, f->row_pos[row], data,
                width);
}

static void tap_reals(const OP(forward) * f, OP(worker) * w, cedar_tap_kind kind, uint32_t row, const real *data,
                      uint32_t width) {
    if (!f->env->tap) return;
    for (uint32_t k = 0; k < width; k++) w->wide[k] = (double)data[k];
    tap_bytes(f, kind, f->layer, row, w->wide, width);
}

/* --- before attention --------------------------------------------------------------------------------------------- */

/* Raw token at position p of the row's sequence: from this step, or from its history. */
static int32_t token_at(const OP(forward) *f, const cedar_plan_entry *e, uint32_t p) {
    return p >= e->pos ? e->tokens[p - e->pos] : f->seqs[e->seq].tokens[p];
}

static void engram_row(OP(forward) *f, OP(worker) *w, uint32_t row) {
    const cedar_config *c = f->c;
    const cedar_plan_entry *e = entry_of(f, row);
    const int32_t *map = f->env->model->token_map;
    int64_t back[CEDAR_NGRAM_MAX], rows[CEDAR_ENGRAM_ROWS_MAX];
    uint32_t p = f->row_pos[row];
    for (uint32_t k = 0; k < (uint32_t)c->ngram; k++) back[k] = map[k <= p ? token_at(f, e, p - k) : c->engram_pad];
    OP(engram_hash)(c, c->engram_at[f->layer], back, rows);
    tap_bytes(f, CEDAR_TAP_ENGRAM_ROWS, f->layer, row, rows, (uint32_t)c->engram_rows_per_token);
    OP(engram)(&f->weights, c, f->block, rows, streams(f, row), w->engram_e, w->engram_kv, w->gains, &w->linear);
}

/* The drafter's feature: mean over the streams of the block's input (spec/model.md 2.0 5b). */
static void capture_feature(OP(forward) *f, uint32_t row) {
    const cedar_config *c = f->c;
    int slot = 0;
    while (c->targets[slot] != f->layer) slot++;
    const real *h = streams(f, row);
    real *out = f->features + ((uint64_t)row * (uint64_t)c->target_count + (uint64_t)slot) * (uint64_t)c->hidden;
    for (int64_t k = 0; k < c->hidden; k++) {
        real sum = 0;
        for (int s = 0; s < c->hc; s++) sum += h[s * (int64_t)c->hidden + k];
        out[k] = rb(sum / (real)c->hc);
    }
}

static void gather_x(const OP(forward) *f, const uint32_t *rows, int count, real *x) {
    for (int i = 0; i < count; i++)
        memcpy(x + i * (int64_t)f->c->hidden, x_of(f, rows[i]), (size_t)f->c->hidden * sizeof *x);
}

/* Coefficients of a site for a block of rows. */
static void mix_rows(OP(forward) * f, OP(worker) * w, const OP(hc_site) * site, const uint32_t *rows, int count,
                     real *pre) {
    int64_t width = (int64_t)f->c->hc * f->c->hidden;
    for (int i = 0; i < count; i++) memcpy(w->streams + i * width, streams(f, rows[i]), (size_t)width * sizeof(real));
    OP(hc_project)(&f->weights, f->c, site, w->streams, count, w->mixes, &w->linear);
    for (int i = 0; i < count; i++)
        OP(hc_coefficients)(&f->weights, f->c, site, w->mixes + i * site->fn->rows, per_stream(f, pre, rows[i]),
                            per_stream(f, f->post, rows[i]), comb_of(f, rows[i]));
}

static void window_rows(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count) {
    const cedar_config *c = f->c;
    int d = c->head_dim;
    OP(linear)(&f->weights, &f->block->wkv, w->xq, c->hidden, count, w->kv, d, &w->linear);
    for (int i = 0; i < count; i++) {
        real *kv = w->kv + (int64_t)i * d;
        OP(rms_norm)(vector_of(f, &f->block->kv_norm), kv, d, (real)c->norm_eps, kv);
        OP(rope)(kv, d, table_of(f, rows[i]), c->rope_dim / 2, 1);
        OP(ring_encode)(kv, d, window_of(f, rows[i]), w->linear.tape);
        if (!f->draft) tap_bytes(f, CEDAR_TAP_WINDOW, f->layer, rows[i], window_of(f, rows[i]), f->l->ring_row_bytes);
    }
}

/* Projections of a KV source: kvf and, for ratio > 1, score; for ratio 1 the rounded latent before its norm. */
static void compressor_rows(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count) {
    const cedar_config *c = f->c;
    int64_t d = c->head_dim;
    bool gated = c->ratio[f->layer] > 1;
    OP(linear_raw)(&f->weights, &f->block->comp_wkv, w->x, c->hidden, count, w->kv, d, &w->linear);
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; k < d; k++) comp_of(f, rows[i])[k] = gated ? w->kv[i * d + k] : rb(w->kv[i * d + k]);
    if (!gated) return;
    OP(linear_raw)(&f->weights, &f->block->comp_wgate, w->x, c->hidden, count, w->kv, d, &w->linear);
    for (int i = 0; i < count; i++) memcpy(comp_of(f, rows[i]) + d, w->kv + i * d, (size_t)d * sizeof(real));
}

void OP(phase_before)(void *self, uint32_t item, uint32_t worker) {
    OP(forward) *f = self;
    OP(worker) *w = &f->workers[worker];
    const cedar_config *c = f->c;
    const cedar_block *b = f->block;
    const OP(hc_site) site = { &b->hc_attn_fn, &b->hc_attn_base, &b->hc_attn_scale };
    int count;
    const uint32_t *rows = block_of(f, item, &count);
    for (int i = 0; i < count; i++) {
        uint32_t r = rows[i];
        if (!f->draft && c->engram_at[f->layer] >= 0) engram_row(f, w, r);
        if (!f->draft && c->is_target[f->layer]) capture_feature(f, r);
        OP(hc_collapse)(streams(f, r), per_stream(f, f->pre, r), c->hc, c->hidden, x_of(f, r));
        OP(rms_norm)(vector_of(f, &b->attn_norm), x_of(f, r), c->hidden, (real)c->norm_eps, x_of(f, r));
    }
    mix_rows(f, w, &site, rows, count, f->pre_attn);
    gather_x(f, rows, count, w->x);
    OP(quantise)(w->x, count * (int64_t)c->hidden, w->xq, w->linear.tape);
    window_rows(f, w, rows, count);
    if (c->is_kv_source[f->layer]) compressor_rows(f, w, rows, count);
}

/* --- global rows -------------------------------------------------------------------------------------------------- */

/* Compressor input of position p: of this step, or kept from an earlier one. 2 * d reals. */
static const real *comp_at(const OP(forward) * f, const cedar_plan_entry *e, uint32_t first_row, int32_t part,
                           uint32_t p) {
    if (p >= e->pos) return comp_of(f, first_row + (p - e->pos));
    return (const real *)(const void *)store_open(f->env->store, e->seq, part, p);
}

/* Softmax over the group's tokens, per channel (spec/model.md 2.6). */
static void pool_group(const OP(forward) * f, const cedar_plan_entry *e, uint32_t first_row, int32_t part,
                       uint32_t last, real *z) {
    int r = f->c->ratio[f->layer], d = f->c->head_dim;
    const real *member[CEDAR_RATIO_MAX];
    for (int i = 0; i < r; i++) member[i] = comp_at(f, e, first_row, part, last - (uint32_t)(r - 1 - i));
    for (int k = 0; k < d; k++) {
        real top = -INFINITY, sum = 0, out = 0, weight[CEDAR_RATIO_MAX];
        for (int i = 0; i < r; i++)
            if (member[i][d + k] > top) top = member[i][d + k];
        for (int i = 0; i < r; i++) sum += weight[i] = real_exp(member[i][d + k] - top);
        for (int i = 0; i < r; i++) out += weight[i] / sum * member[i][k];
        z[k] = rb(out);
    }
}

void OP(phase_groups)(void *self, uint32_t item, uint32_t worker) {
    OP(forward) *f = self;
    OP(worker) *w = &f->workers[worker];
    const cedar_config *c = f->c;
    const cedar_block *b = f->block;
    const OP(group) g = f->groups[item];
    const cedar_plan_entry *e = &f->plan->entries[g.entry];
    int32_t part = f->l->part_of[f->layer];
    const cedar_page_part *p = &f->l->part[part];
    uint32_t last = f->row_pos[g.row], j = last / (uint32_t)p->ratio, at = j % p->entries;
    int32_t number = f->seqs[e->seq].pages[j / p->entries];
    bool mine = store_owns(f->env->store, number);      /* else another rank's; a tap wants to see all */
    if (!mine && !f->env->tap) return;
    if (p->ratio == 1) memcpy(w->latent, comp_of(f, g.row), (size_t)c->head_dim * sizeof(real));
    else pool_group(f, e, f->first_row[g.entry], part, last, w->latent);
    OP(rms_norm)(vector_of(f, &b->comp_norm), w->latent, c->head_dim, (real)c->norm_eps, w->latent);
    if (f->env->tap) {
        for (int k = 0; k < c->head_dim; k++) w->wide[k] = (double)w->latent[k];
        f->env->tap(f->env->tap_self, CEDAR_TAP_LATENT, f->layer, e->seq, j, w->wide, (uint32_t)c->head_dim);
    }
    OP(linear)(&f->weights, &b->index_wk, w->latent, c->head_dim, 1, w->index_key, c->index_dim, &w->linear);
    OP(rms_norm)(vector_of(f, &b->index_k_norm), w->index_key, c->index_dim, (real)c->norm_eps, w->index_key);
    OP(rope_table)(f->freq[1], c->rope_dim / 2, (int64_t)j * p->ratio, w->table);
    OP(rope)(w->index_key, c->index_dim, w->table, c->rope_dim / 2, 1);
    OP(rope)(w->latent, c->head_dim, w->table, c->rope_dim / 2, 1);
    if (!mine) return;
    uint8_t *page = store_page(f->env->store, number);
    OP(fp4q32_encode)(w->index_key, c->index_dim, page + p->index_codes + (uint64_t)at * f->l->index_code_bytes,
                      page + p->index_scales + (uint64_t)at * f->l->index_scale_bytes, w->linear.tape);
    OP(fp4q16_encode)(w->latent, c->head_dim, page + p->kv_codes + (uint64_t)at * f->l->kv_code_bytes,
                      page + p->kv_scales + (uint64_t)at * f->l->kv_scale_bytes, w->linear.tape);
}

/* --- attention and MoE -------------------------------------------------------------------------------------------- */

/* Window keys of a row, ascending position; returns how many. */
static int window_keys(const OP(forward) *f, const cedar_plan_entry *e, uint32_t row, real *keys) {
    uint32_t p = f->row_pos[row], lo = OP(window_lo)(f, e), w = (uint32_t)f->c->window, first_row = row - (p - e->pos);
    uint32_t from = p + 1 > w ? p + 1 - w : 0;
    int n = 0;
    for (uint32_t q = from > lo ? from : lo; q <= p; q++, n++) {
        const uint8_t *record = q >= e->pos ? window_of(f, first_row + (q - e->pos))
                                            : store_ring(f->env->store, e->seq, (uint32_t)f->layer, q);
        OP(ring_decode)(record, f->c->head_dim, keys + (int64_t)n * f->c->head_dim);
    }
    return n;
}

/* Selected global entries of a row, ascending; returns how many. */
static int global_keys(const OP(forward) *f, const cedar_plan_entry *e, uint32_t row, real *keys) {
    const cedar_page_part *p = &f->l->part[f->l->part_of[f->c->kv_source_of[f->layer]]];
    const int32_t *topk = f->topk + (uint64_t)row * (uint64_t)f->c->index_topk;
    int n = 0;
    for (; n < f->c->index_topk && topk[n] >= 0; n++) {
        uint32_t j = (uint32_t)topk[n], at = j % p->entries;
        const uint8_t *page = store_page(f->env->store, f->seqs[e->seq].pages[j / p->entries]);
        OP(fp4q16_decode)(page + p->kv_codes + (uint64_t)at * f->l->kv_code_bytes,
                          page + p->kv_scales + (uint64_t)at * f->l->kv_scale_bytes, f->c->head_dim,
                          keys + (int64_t)n * f->c->head_dim);
    }
    return n;
}

/* Draft rows see the ring's last W rows and the whole draft block, without a causal mask (spec/model.md 2.11). */
static int draft_keys(const OP(forward) *f, real *keys) {
    const cedar_seq_state *q = &f->seqs[f->draft->seq];
    uint32_t w = (uint32_t)f->c->window, from = q->pos > w ? q->pos - w : 0;
    int n = 0, d = f->c->head_dim;
    for (uint32_t p = from > q->bounds.lo_late ? from : q->bounds.lo_late; p < q->pos; p++, n++)
        OP(ring_decode)(store_ring(f->env->store, f->draft->seq, (uint32_t)f->layer, p), d, keys + (int64_t)n * d);
    for (uint32_t r = 0; r < f->active_count; r++, n++) OP(ring_decode)(window_of(f, r), d, keys + (int64_t)n * d);
    return n;
}

static void query_rows(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count) {
    const cedar_config *c = f->c;
    int64_t width = (int64_t)c->heads * c->head_dim;
    OP(linear)(&f->weights, &f->block->wq_a, w->xq, c->hidden, count, w->qr, c->q_lora, &w->linear);
    for (int i = 0; i < count; i++) {
        real *qr = w->qr + (int64_t)i * c->q_lora;
        OP(rms_norm)(vector_of(f, &f->block->q_norm), qr, c->q_lora, (real)c->norm_eps, qr);
    }
    OP(quantise)(w->qr, count * (int64_t)c->q_lora, w->qrq, w->linear.tape);
    OP(linear)(&f->weights, &f->block->wq_b, w->qrq, c->q_lora, count, w->q, width, &w->linear);
    for (int i = 0; i < count; i++)
        for (int h = 0; h < c->heads; h++)
            OP(rope)
            (w->q + i * width + h * (int64_t)c->head_dim, c->head_dim, table_of(f, rows[i]), c->rope_dim / 2, 1);
}

/* Inverse rotation and grouped low-rank output: w->q [count, H, d] -> w->att [count, D]. */
static void output_rows(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count) {
    const cedar_config *c = f->c;
    int64_t width = (int64_t)c->heads * c->head_dim, group = width / c->o_groups,
            u_width = (int64_t)c->o_groups * c->o_lora;
    for (int i = 0; i < count; i++)
        for (int h = 0; h < c->heads; h++)
            OP(rope)
            (w->q + i * width + h * (int64_t)c->head_dim, c->head_dim, table_of(f, rows[i]), c->rope_dim / 2, -1);
    if (f->env->opts->wo_a_fp8) OP(quantise)(w->q, count * width, w->q, w->linear.tape);
    for (int g = 0; g < c->o_groups; g++)
        OP(linear_rows)(&f->weights, &f->block->wo_a, g * (int64_t)c->o_lora, c->o_lora, w->q + g * group, width, count,
                        w->u + g * (int64_t)c->o_lora, u_width, &w->linear);
    for (int64_t k = 0; k < count * u_width; k++) w->u[k] = rb(w->u[k]);
    OP(quantise)(w->u, count * u_width, w->u, w->linear.tape);
    OP(linear)(&f->weights, &f->block->wo_b, w->u, u_width, count, w->att, c->hidden, &w->linear);
}

static void attend_rows(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count) {
    const cedar_config *c = f->c;
    for (int i = 0; i < count; i++) {
        int n;
        if (f->draft) {
            n = draft_keys(f, w->keys);
        } else {
            const cedar_plan_entry *e = entry_of(f, rows[i]);
            n = window_keys(f, e, rows[i], w->keys);
            if (c->ratio[f->layer] > 0) n += global_keys(f, e, rows[i], w->keys + (int64_t)n * c->head_dim);
        }
        OP(sink_attention)(w->q + i * (int64_t)c->heads * c->head_dim, c->heads, c->head_dim, w->keys, n,
                           vector_of(f, &f->block->attn_sink), w->logits);
    }
}

/* Attention of a block of rows -> w->att [count, D], or this rank's part of it. */
static void attention_rows(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count) {
    gather_x(f, rows, count, w->x);
    OP(quantise)(w->x, count * (int64_t)f->c->hidden, w->xq, w->linear.tape);
    query_rows(f, w, rows, count);
    if (!f->draft && f->c->is_index_source[f->layer]) OP(select_rows)(f, w, rows, count);
    attend_rows(f, w, rows, count);
    output_rows(f, w, rows, count);
}

/* From the whole w->att to w->y [count, D], the experts' output or this rank's part of it. */
static void ffn_rows(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count) {
    const cedar_config *c = f->c;
    const cedar_block *b = f->block;
    const OP(hc_site) site = { &b->hc_ffn_fn, &b->hc_ffn_base, &b->hc_ffn_scale };
    int64_t d = c->hidden;
    int per_token = f->draft ? c->draft_experts_per_token : c->experts_per_token;
    for (int i = 0; i < count; i++)
        OP(hc_expand)
        (streams(f, rows[i]), w->att + i * d, per_stream(f, f->post, rows[i]), comb_of(f, rows[i]), c->hc, d);
    mix_rows(f, w, &site, rows, count, f->pre);
    for (int i = 0; i < count; i++) {
        uint32_t r = rows[i];
        OP(hc_collapse)(streams(f, r), per_stream(f, f->pre_attn, r), c->hc, d, w->x + i * d);
        OP(rms_norm)(vector_of(f, &b->ffn_norm), w->x + i * d, d, (real)c->norm_eps, w->x + i * d);
    }
    OP(moe)(&f->weights, c, b, per_token, w->x, count, w->y, &w->moe);
    for (int i = 0; i < count && !f->draft; i++) {
        tap_bytes(f, CEDAR_TAP_ROUTER_IDS, f->layer, rows[i], w->moe.ids + (int64_t)i * per_token, (uint32_t)per_token);
        tap_reals(f, w, CEDAR_TAP_ROUTER_W, rows[i], w->moe.weight + (int64_t)i * per_token, (uint32_t)per_token);
    }
}

/* The whole w->y goes into the streams. */
static void finish_rows(OP(forward) *f, OP(worker) *w, const uint32_t *rows, int count) {
    const cedar_config *c = f->c;
    int64_t d = c->hidden;
    for (int i = 0; i < count; i++) {
        uint32_t r = rows[i];
        OP(hc_expand)(streams(f, r), w->y + i * d, per_stream(f, f->post, r), comb_of(f, r), c->hc, d);
        if (f->draft) continue;
        tap_reals(f, w, CEDAR_TAP_H, r, streams(f, r), (uint32_t)(c->hc * d));
        tap_reals(f, w, CEDAR_TAP_PRE, r, per_stream(f, f->pre, r), (uint32_t)c->hc);
    }
}

void OP(phase_after)(void *self, uint32_t item, uint32_t worker) {
    OP(forward) *f = self;
    OP(worker) *w = &f->workers[worker];
    int count;
    const uint32_t *rows = block_of(f, item, &count);
    attention_rows(f, w, rows, count);
    ffn_rows(f, w, rows, count);
    finish_rows(f, w, rows, count);
}

/* --- several ranks ------------------------------------------------------------------------------------------------ */

static void put_part(const OP(forward) *f, int site, const uint32_t *rows, int count, const real *x) {
    int64_t d = f->c->hidden;
    for (int i = 0; i < count; i++) memcpy(f->part[site] + rows[i] * d, x + i * d, (size_t)d * sizeof *x);
}

/* The ranks' parts in rank order; each is rounded already. */
static void add_parts(const OP(forward) *f, int site, const uint32_t *rows, int count, real *x) {
    int64_t d = f->c->hidden;
    for (int i = 0; i < count; i++) {
        real *at = x + i * d;
        memcpy(at, f->peers[0]->part[site] + rows[i] * d, (size_t)d * sizeof *at);
        for (uint32_t r = 1; r < f->ranks; r++)
            for (int64_t k = 0; k < d; k++) at[k] += f->peers[r]->part[site][rows[i] * d + k];
        for (int64_t k = 0; k < d; k++) at[k] = rb(at[k]);
    }
}

void OP(phase_attention)(void *self, uint32_t item, uint32_t worker) {
    OP(forward) *f = self;
    OP(worker) *w = &f->workers[worker];
    int count;
    const uint32_t *rows = block_of(f, item, &count);
    attention_rows(f, w, rows, count);
    put_part(f, 0, rows, count, w->att);
}

void OP(phase_ffn)(void *self, uint32_t item, uint32_t worker) {
    OP(forward) *f = self;
    OP(worker) *w = &f->workers[worker];
    int count;
    const uint32_t *rows = block_of(f, item, &count);
    add_parts(f, 0, rows, count, w->att);
    ffn_rows(f, w, rows, count);
    put_part(f, 1, rows, count, w->y);
}

void OP(phase_finish)(void *self, uint32_t item, uint32_t worker) {
    OP(forward) *f = self;
    OP(worker) *w = &f->workers[worker];
    int count;
    const uint32_t *rows = block_of(f, item, &count);
    add_parts(f, 1, rows, count, w->y);
    finish_rows(f, w, rows, count);
}
