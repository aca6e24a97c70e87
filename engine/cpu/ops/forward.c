/* The forward pass of a step: embedding, layers in order with the cut, window commits, head (spec/model.md 2.0, 5). */
#include <string.h>

#include "base/hash.h"
#include "engine/cpu/ops/forward.h"

void OP(run)(OP(forward) *f, uint32_t items, cedar_pool_fn fn) {
    if (f->env->tap || f->env->tape) {
        for (uint32_t i = 0; i < items; i++) fn(f, i, 0);
        return;
    }
    cedar_pool_run(f->env->pool, items, fn, f);
}

/* Blocks small enough that every thread has one. */
void OP(set_active)(OP(forward) *f, const uint32_t *rows, uint32_t count) {
    memmove(f->active, rows, count * sizeof *rows);
    f->active_count = count;
    uint32_t share = (count + f->worker_count - 1) / f->worker_count;
    f->block_rows = share > BLOCK ? BLOCK : share ? share : 1;
}

bool OP(meet)(const OP(forward) *f) { return f->ranks == 1 || cedar_ranks_meet(f->env->rank->group, f->rank); }

bool OP(run_after)(OP(forward) *f, uint32_t items) {
    if (f->ranks == 1) {
        OP(run)(f, items, OP(phase_after));
        return true;
    }
    OP(run)(f, items, OP(phase_attention));
    if (!OP(meet)(f)) return false;
    OP(run)(f, items, OP(phase_ffn));
    if (!OP(meet)(f)) return false;
    OP(run)(f, items, OP(phase_finish));
    return true;
}

static void begin(OP(forward) *f) {
    const cedar_config *c = f->c;
    uint32_t row = 0, wanted = 0;
    for (uint32_t i = 0; i < f->plan->entry_count; i++) {
        const cedar_plan_entry *e = &f->plan->entries[i];
        f->first_row[i] = row;
        for (uint32_t k = 0; k < e->rows; k++, row++) {
            f->row_entry[row] = i;
            f->row_pos[row] = e->pos + k;
            f->kept[row] = row;
            if (k >= e->rows - e->logits) f->logit_rows[wanted++] = row;
            for (int t = 0; t < 2; t++)
                OP(rope_table)
                (f->freq[t], c->rope_dim / 2, e->pos + k, f->table[t] + (uint64_t)row * (uint32_t)c->rope_dim);
        }
    }
    f->first_row[f->plan->entry_count] = row;
    f->logits_count = wanted;
    f->pooled = false;
    OP(set_active)(f, f->kept, row);
    cedar_plan_kept_rows(f->plan, f->kept, f->first_kept);
}

/* Every stream starts as the embedding; pre is one-hot. */
static void embed_row(OP(forward) *f, uint32_t row, int32_t token, real *scratch) {
    const cedar_config *c = f->c;
    uint64_t d = (uint64_t)c->hidden, n = (uint64_t)c->hc;
    real *e = scratch;
    OP(decode_row)(&f->env->model->embed, token, e);
    for (uint64_t s = 0; s < n; s++) {
        memcpy(f->h + (row * n + s) * d, e, d * sizeof *e);
        f->pre[row * n + s] = s == 0;
    }
}

static void phase_embed(void *self, uint32_t item, uint32_t worker) {
    OP(forward) *f = self;
    int count;
    const uint32_t *rows = block_of(f, item, &count);
    for (int i = 0; i < count; i++) {
        const cedar_plan_entry *e = &f->plan->entries[f->row_entry[rows[i]]];
        embed_row(f, rows[i], e->tokens[f->row_pos[rows[i]] - e->pos], f->workers[worker].gains);
    }
}

/* Compressed entries this step completes: last position in the step and not below the write floor. */
static void list_groups(OP(forward) *f) {
    uint32_t ratio = (uint32_t)f->c->ratio[f->layer], n = 0;
    for (uint32_t a = 0; a < f->active_count; a++) {
        uint32_t row = f->active[a], i = f->row_entry[row], p = f->row_pos[row];
        if (p % ratio == ratio - 1 && p >= f->plan->entries[i].write_floor) f->groups[n++] = (OP(group)){ row, i };
    }
    f->group_count = n;
}

/* The layer's window rows of this step become the ring; only rows at or above the bound were meant to be written. */
static void commit_windows(OP(forward) *f) {
    for (uint32_t i = 0; i < f->plan->entry_count; i++) {
        const cedar_plan_entry *e = &f->plan->entries[i];
        uint32_t end = e->pos + e->rows, lo = OP(window_lo)(f, e),
                 first = end > f->l->ring_slots ? end - f->l->ring_slots : 0;
        if (first < e->pos) first = e->pos;
        if (first < lo) first = lo;
        for (uint32_t p = first; p < end; p++)
            memcpy(store_ring(f->env->store, e->seq, (uint32_t)f->layer, p),
                   f->window + (uint64_t)(f->first_row[i] + (p - e->pos)) * f->l->ring_row_bytes, f->l->ring_row_bytes);
    }
}

static void commit_open_groups(OP(forward) *f) {
    int32_t part = f->l->part_of[f->layer];
    uint32_t slots = f->l->open_slots[part], bytes = 2 * (uint32_t)f->c->head_dim * (uint32_t)sizeof(real);
    for (uint32_t i = 0; i < f->plan->entry_count && slots; i++) {
        const cedar_plan_entry *e = &f->plan->entries[i];
        uint32_t end = e->pos + e->rows, first = end > slots ? end - slots : 0;
        for (uint32_t p = first < e->pos ? e->pos : first; p < end; p++)
            memcpy(store_open(f->env->store, e->seq, part, p),
                   f->comp + (uint64_t)(f->first_row[i] + (p - e->pos)) * 2 * (uint32_t)f->c->head_dim, bytes);
    }
}

static void inject_rows(OP(forward) *f) {
    const cedar_config *c = f->c;
    uint64_t width = (uint64_t)c->hc * (uint64_t)c->hidden;
    double *h = f->workers[0].wide, pre[CEDAR_HC_MAX];
    for (uint32_t a = 0; a < f->active_count; a++) {
        uint32_t row = f->active[a];
        real *hr = f->h + row * width, *pr = f->pre + (uint64_t)row * (uint64_t)c->hc;
        int32_t seq = f->plan->entries[f->row_entry[row]].seq;
        if (!f->env->inject(f->env->inject_self, f->layer, seq, f->row_pos[row], h, pre)) continue;
        for (uint64_t k = 0; k < width; k++) hr[k] = (real)h[k];
        for (int s = 0; s < c->hc; s++) pr[s] = (real)pre[s];
    }
}

static bool run_layer(OP(forward) *f) {
    if (f->env->inject && f->layer > 0) inject_rows(f);
    bool at_cut = f->layer == f->c->cut && f->plan->trimmed;
    OP(run)(f, block_count(f), OP(phase_before));
    if (f->c->is_kv_source[f->layer]) {
        list_groups(f);
        OP(run)(f, f->group_count, OP(phase_groups));
        if (!OP(meet)(f)) return false;
    }
    if (at_cut && f->plan->cut != CEDAR_CUT_AFTER) OP(set_active)(f, f->kept, f->plan->kept);
    if (!OP(run_after)(f, block_count(f))) return false;
    if (at_cut && f->plan->cut == CEDAR_CUT_AFTER) OP(set_active)(f, f->kept, f->plan->kept);
    if (f->layer == f->c->candidate_source) f->pooled = true;
    commit_windows(f);
    if (f->c->is_kv_source[f->layer]) commit_open_groups(f);
    return true;
}

/* --- head --------------------------------------------------------------------------------------------------------- */

/* Logits of rows whose collapsed, normed output is in w->x [count, D], for the vocabulary of this rank's head; out rows
 * and the best of them by position in the list. */
static void head_rows(OP(forward) *f, OP(worker) *w, int count, uint64_t first, float *logits) {
    const cedar_weight *head = &f->env->model->head;
    int64_t offset = OP(head_first)(f);
    for (int64_t v = 0; v < head->rows; v += HEAD_SLICE) {
        int64_t n = head->rows - v < HEAD_SLICE ? head->rows - v : HEAD_SLICE;
        OP(linear_rows)(&f->weights, head, v, n, w->x, f->c->hidden, count, w->head, HEAD_SLICE, &w->linear);
        for (int i = 0; i < count; i++) {
            uint64_t row = first + (uint64_t)i;
            for (int64_t k = 0; k < n; k++) {
                real x = w->head[i * HEAD_SLICE + k];
                if (logits) logits[row * (uint64_t)f->c->vocab + (uint64_t)(offset + v + k)] = (float)x;
                if (v + k > 0 && !(x > f->best[row])) continue;
                f->best[row] = x;
                f->best_id[row] = (int32_t)(offset + v + k);
            }
        }
    }
}

/* The best token over all ranks; the lowest on ties, as their vocabularies ascend. */
static void pick_rows(const OP(forward) *f, int32_t *argmax) {
    for (uint32_t i = 0; i < f->logits_count; i++) {
        const OP(forward) *at = f;
        for (uint32_t r = 0; r < f->ranks; r++) {
            const OP(forward) *p = f->ranks == 1 ? f : f->peers[r];
            if (r == 0 || at->best_id[i] < 0 || (p->best_id[i] >= 0 && p->best[i] > at->best[i])) at = p;
        }
        argmax[i] = at->best_id[i];
    }
}

static void phase_head(void *self, uint32_t item, uint32_t worker) {
    OP(forward) *f = self;
    OP(worker) *w = &f->workers[worker];
    const cedar_config *c = f->c;
    uint64_t d = (uint64_t)c->hidden, n = (uint64_t)c->hc;
    int count;
    const uint32_t *rows = block_of(f, item, &count);
    for (int i = 0; i < count; i++) {
        real *x = w->x + (uint64_t)i * d;
        OP(hc_collapse)(f->h + rows[i] * n * d, f->pre + rows[i] * n, c->hc, c->hidden, x);
        OP(rms_norm)(vector_of(f, &f->env->model->norm), x, c->hidden, (real)c->norm_eps, x);
    }
    head_rows(f, w, count, (uint64_t)item * f->block_rows, f->ranks == 1 ? f->out->logits : f->peers[0]->out->logits);
}

static bool run_head(OP(forward) *f) {
    OP(set_active)(f, f->logit_rows, f->logits_count);
    for (uint32_t i = 0; i < f->logits_count; i++) f->best_id[i] = -1;
    OP(run)(f, block_count(f), phase_head);
    if (!OP(meet)(f)) return false;
    if (f->out->argmax) pick_rows(f, f->out->argmax);
    return true;
}

/* Of the streams behind the last row of each entry: what all ranks have to agree on. */
static uint64_t digest(const OP(forward) *f) {
    uint64_t hash = 0, width = (uint64_t)f->c->hc * (uint64_t)f->c->hidden;
    for (uint32_t i = 0; i < f->plan->entry_count; i++) {
        const real *h = f->h + (f->first_row[i + 1] - 1) * width;
        for (uint64_t k = 0; k < width; k++) {
            uint64_t bits = 0;
            memcpy(&bits, h + k, sizeof *h);
            hash = cedar_fold64(hash, bits);
        }
    }
    return hash;
}

static cedar_status step(void *self, const cedar_step_plan *plan, const cedar_seq_state *seqs, cedar_step_out *out,
                         cedar_err *err) {
    OP(forward) *f = self;
    bool whole = true;
    f->plan = plan;
    f->seqs = seqs;
    f->out = out;
    f->draft = NULL;
    f->workers[0].linear.tape = f->env->tape;       /* the only one that works while there is a tape */
    begin(f);
    OP(run)(f, block_count(f), phase_embed);
    for (f->layer = 0; f->layer < f->c->layers && whole; f->layer++) {
        f->block = &f->env->model->blocks[f->layer];
        if (f->env->tape) f->env->tape->layer = f->layer;
        whole = run_layer(f);
    }
    if (whole && f->c->stages) OP(run)(f, block_count(f), OP(phase_rings));
    /* the group of several ranks wants the tokens of each of them */
    if (whole && (out->logits || out->argmax)) whole = run_head(f);
    if (!whole) return cedar_ranks_error(f->env->rank->group, err);
    if (f->ranks > 1) *f->env->rank->digest = digest(f);
    return CEDAR_OK;
}

const cedar_forward_ops OP(forward_ops) = {
    .real_bytes = sizeof(real),
    .workspace_bytes = OP(workspace_bytes),
    .open = OP(forward_open),
    .close = OP(forward_close),
    .step = step,
    .draft = OP(draft),
};
