/* DSpark: draft ring rows from the target layers' features, and draft passes (spec/model.md 2.11). */
#include <string.h>

#include "engine/cpu/ops/forward.h"

/* Ring rows of committed positions: only those a ring still holds after the step, unless a tap looks. */
void OP(phase_rings)(void *self, uint32_t item, uint32_t worker) {
    OP(forward) *f = self;
    OP(worker) *w = &f->workers[worker];
    const cedar_config *c = f->c;
    const cedar_model *m = f->env->model;
    int64_t d = c->hidden, width = c->target_count * d;
    int count;
    const uint32_t *rows = block_of(f, item, &count);
    memset(w->features, 0, (size_t)(count * width) * sizeof(real));
    for (int i = 0; i < count; i++)
        memcpy(w->features + i * width, f->features + rows[i] * (uint64_t)width, (size_t)width * sizeof(real));
    OP(quantise)(w->features, count * width, w->features, w->linear.tape);
    OP(linear)(&f->weights, &m->main_proj, w->features, width, count, w->x, d, &w->linear);
    for (int i = 0; i < count; i++)
        OP(rms_norm)(vector_of(f, &m->main_norm), w->x + i * d, d, (real)c->norm_eps, w->x + i * d);
    OP(quantise)(w->x, count * d, w->xq, w->linear.tape);
    for (int32_t stage = 0; stage < c->stages; stage++) {
        const cedar_block *b = &m->blocks[c->layers + stage];
        OP(linear)(&f->weights, &b->wkv, w->xq, d, count, w->kv, c->head_dim, &w->linear);
        for (int i = 0; i < count; i++) {
            const cedar_plan_entry *e = &f->plan->entries[f->row_entry[rows[i]]];
            uint32_t p = f->row_pos[rows[i]];
            uint8_t *record = f->window + (uint64_t)rows[i] * f->l->ring_row_bytes;
            real *kv = w->kv + (int64_t)i * c->head_dim;
            OP(rms_norm)(vector_of(f, &b->kv_norm), kv, c->head_dim, (real)c->norm_eps, kv);
            OP(rope)(kv, c->head_dim, f->table[0] + rows[i] * (uint64_t)c->rope_dim, c->rope_dim / 2, 1);
            OP(ring_encode)(kv, c->head_dim, record, w->linear.tape);
            if (p + f->l->ring_slots >= e->pos + e->rows)
                memcpy(store_ring(f->env->store, e->seq, (uint32_t)(c->layers + stage), p), record,
                       f->l->ring_row_bytes);
            if (f->env->tap)
                f->env->tap(f->env->tap_self, CEDAR_TAP_RING, stage, e->seq, p, record, f->l->ring_row_bytes);
        }
    }
}

/* Of several ranks each makes the base logits of its part of the vocabulary, for all positions, and puts them where all
 * find them: the Markov chain is then run by each of them alone. x [block, D]. */
static bool gather_base(OP(forward) *f, OP(worker) *w, const real *x) {
    const cedar_weight *head = &f->env->model->head;
    int64_t rows = f->c->draft_block, vocab = f->c->vocab;
    real *out = f->peers[0]->base + OP(head_first)(f);
    for (int64_t v = 0; v < head->rows; v += HEAD_SLICE) {
        int64_t n = head->rows - v < HEAD_SLICE ? head->rows - v : HEAD_SLICE;
        for (int64_t k = 0; k < rows; k++)
            OP(linear_rows)
            (&f->weights, head, v, n, x + k * f->c->hidden, f->c->hidden, 1, out + k * vocab + v, vocab, &w->linear);
    }
    return OP(meet)(f);
}

/* Logits of draft position k after the Markov term; argmax in the arithmetic's own precision. */
static int32_t markov_row(OP(forward) *f, OP(worker) *w, int row, const real *x, int32_t prev, float *logits) {
    const cedar_config *c = f->c;
    const cedar_model *m = f->env->model;
    real *e = w->att, best = 0;
    double top = 0, taken = NAN;    /* largest logit, and that of the tape's pick */
    int32_t pick = 0;
    const int32_t *theirs = w->linear.tape ? cedar_tape_peek(w->linear.tape, CEDAR_TAPE_DRAFT, sizeof pick) : NULL;
    OP(decode_row)(&m->markov_embed, prev, e);
    for (int64_t v = 0; v < c->vocab; v += HEAD_SLICE) {
        int64_t n = c->vocab - v < HEAD_SLICE ? c->vocab - v : HEAD_SLICE;
        real *extra = w->head + HEAD_SLICE;
        const real *base = w->head;
        if (f->ranks > 1) base = f->peers[0]->base + row * (int64_t)c->vocab + v;
        else OP(linear_rows)(&f->weights, &m->head, v, n, x, c->hidden, 1, w->head, HEAD_SLICE, &w->linear);
        OP(linear_rows)(&f->weights, &m->markov_head, v, n, e, c->markov_rank, 1, extra, HEAD_SLICE, &w->linear);
        for (int64_t k = 0; k < n; k++) {
            real s = base[k] + extra[k];
            if (logits) logits[v + k] = (float)s;
            if (v + k == 0 || s > best) {
                best = s;
                pick = (int32_t)(v + k);
            }
            if (!theirs) continue;
            top = fmax(top, fabs((double)s));
            if (v + k == *theirs) taken = (double)s;
        }
    }
    if (w->linear.tape) cedar_tape_next(w->linear.tape, CEDAR_TAPE_DRAFT, &pick, sizeof pick, 1);
    if (!theirs || *theirs == pick) return pick;
    cedar_tape_judge(w->linear.tape, CEDAR_TAPE_DRAFT, ((double)best - taken) / top);
    return *theirs;
}

/* Position k: y [D] the output, x [D] the same through the norm. */
static void head_input(const OP(forward) *f, int k, real *y, real *x) {
    const cedar_config *c = f->c;
    uint64_t d = (uint64_t)c->hidden, n = (uint64_t)c->hc;
    OP(hc_collapse)(f->h + (uint64_t)k * n * d, f->pre + (uint64_t)k * n, c->hc, c->hidden, y);
    OP(rms_norm)(vector_of(f, &f->env->model->draft_norm), y, c->hidden, (real)c->norm_eps, x);
}

/* After the last stage: base logits, then the Markov chain and the confidences. */
static bool draft_head(OP(forward) *f, cedar_draft_item *it) {
    const cedar_config *c = f->c;
    const cedar_model *m = f->env->model;
    OP(worker) *w = &f->workers[0];
    uint64_t d = (uint64_t)c->hidden;
    int32_t prev = it->token;
    real *y = w->features;      /* [D + rank]: output before the norm, then the Markov embedding */
    for (int k = 0; k < c->draft_block && f->ranks > 1; k++) head_input(f, k, y, f->x + (uint64_t)k * d);
    if (f->ranks > 1 && !gather_base(f, w, f->x)) return false;
    for (int k = 0; k < c->draft_block; k++) {
        head_input(f, k, y, w->x);
        it->ids[k] = markov_row(f, w, k, w->x, prev, it->logits ? it->logits + (uint64_t)k * (uint64_t)c->vocab : NULL);
        memcpy(y + d, w->att, (size_t)c->markov_rank * sizeof *y);
        if (it->confidence)
            it->confidence[k] = (float)OP(dot)(vector_of(f, &m->confidence), y, c->hidden + c->markov_rank);
        prev = it->forced ? it->forced[k] : it->ids[k];
    }
    return true;
}

static bool draft_one(OP(forward) *f, cedar_draft_item *it) {
    const cedar_config *c = f->c;
    uint32_t rows = (uint32_t)c->draft_block, pos = f->seqs[it->seq].pos;
    uint64_t d = (uint64_t)c->hidden, n = (uint64_t)c->hc;
    f->draft = it;
    for (uint32_t r = 0; r < rows; r++) {
        real *e = f->workers[0].gains;
        OP(decode_row)(&f->env->model->embed, r == 0 ? it->token : c->draft_noise, e);
        for (uint64_t s = 0; s < n; s++) {
            memcpy(f->h + (r * n + s) * d, e, d * sizeof *e);
            f->pre[r * n + s] = s == 0;
        }
        f->row_pos[r] = pos + r;
        f->kept[r] = r;
        OP(rope_table)(f->freq[0], c->rope_dim / 2, pos + r, f->table[0] + (uint64_t)r * (uint32_t)c->rope_dim);
    }
    OP(set_active)(f, f->kept, rows);
    bool whole = true;
    for (int32_t stage = 0; stage < c->stages && whole; stage++) {
        f->layer = c->layers + stage;
        if (f->env->tape) f->env->tape->layer = f->layer;
        f->block = &f->env->model->blocks[f->layer];
        OP(run)(f, block_count(f), OP(phase_before));
        whole = OP(run_after)(f, block_count(f));
    }
    whole = whole && draft_head(f, it);
    f->draft = NULL;
    return whole;
}

cedar_status OP(draft)(void *self, cedar_draft_item *items, uint32_t count, const cedar_seq_state *seqs,
                       cedar_err *err) {
    OP(forward) *f = self;
    f->seqs = seqs;
    f->workers[0].linear.tape = f->env->tape;
    for (uint32_t i = 0; i < count; i++)
        if (!draft_one(f, &items[i])) return cedar_ranks_error(f->env->rank->group, err);
    return CEDAR_OK;
}
