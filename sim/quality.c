/* Quality: the arm's next-token distributions (Q) against exact recomputation (P) of the same tokens.
 *
 * P comes from a shadow: a second engine on the same model that approximates nothing and keeps one sequence per stream
 * alive. The engine's operators give the same bits however a prompt is cut into steps, so feeding only what is new
 * equals a cold computation of the whole prompt. Where a prompt does not continue what the shadow holds, the shadow
 * goes back a few tokens or starts over. Shadow steps cost no schedule and no meter time. */

#include "base/mem.h"
#include "sim/sim_int.h"

enum { ROLLBACK_ROWS = 64 };    /* answers often end a few tokens behind what the next prompt keeps of them */

/* --- the shadow --------------------------------------------------------------------------------------------------- */

typedef struct shadow {
    int64_t session_id;         /* 0 = free */
    uint32_t stream;
    int32_t seq;
    uint64_t used;              /* number of the last use */
} shadow;

struct cedar_quality {
    cedar_engine *engine;
    cedar_replay_rules rules;
    int32_t vocab;
    uint32_t step_rows, rows_max;
    shadow *shadows;            /* [shadow_count] */
    uint32_t shadow_count;
    uint64_t uses;
    float *logits;              /* [rows_max, vocab] */
};

cedar_status cedar_quality_open(const cedar_model *model, const cedar_engine_opts *main_opts, uint32_t streams,
                                uint32_t rows_max, cedar_quality **out, cedar_err *err) {
    const cedar_config *c = cedar_model_config(model);
    cedar_engine_opts opts = *main_opts;
    opts.seq_count = streams;
    opts.page_count = streams * ((opts.context_tokens + opts.page_tokens - 1) / opts.page_tokens);
    opts.step_seqs = 1;
    opts.verify_rows = ROLLBACK_ROWS;
    cedar_status st = CEDAR_OK;
    cedar_quality *q = cedar_calloc(1, sizeof *q);
    if (!q) goto oom;
    q->vocab = c->vocab;
    q->step_rows = opts.step_rows;
    q->rows_max = rows_max;
    q->shadow_count = streams;
    q->rules = (cedar_replay_rules){ .window = (uint32_t)c->window, .encoder_rows = (uint32_t)c->window,
                                     .decoder_rows = (uint32_t)c->window };
    q->shadows = cedar_calloc(streams, sizeof *q->shadows);
    q->logits = cedar_calloc(rows_max, (size_t)c->vocab * sizeof *q->logits);
    if (!q->shadows || !q->logits) goto oom;
    st = cedar_engine_open(model, &opts, &q->engine, err);
    if (st) {
        st = cedar_fail_in(err, st, "the exact shadow of quality = true");
        goto fail;
    }
    *out = q;
    return CEDAR_OK;
oom:
    st = cedar_fail(err, CEDAR_E_OOM, "no memory for the exact shadow of quality = true: %u rows of %d logits",
                    rows_max, c->vocab);
fail:
    (void)cedar_quality_close(q, NULL);
    return st;
}

cedar_status cedar_quality_close(cedar_quality *q, cedar_err *err) {
    if (!q) return CEDAR_OK;
    cedar_status st = cedar_engine_close(q->engine, err);
    cedar_free(q->shadows);
    cedar_free(q->logits);
    cedar_free(q);
    return st;
}

static void drop(cedar_quality *q, shadow *s) {
    if (!s->session_id) return;
    cedar_seq_close(q->engine, s->seq);
    s->session_id = 0;
}

void cedar_quality_forget(cedar_quality *q, int64_t session_id) {
    for (uint32_t i = 0; i < q->shadow_count; i++)
        if (q->shadows[i].session_id == session_id) drop(q, &q->shadows[i]);
}

/* The stream's shadow; a new one takes a free place or that of the stream unused for longest. */
static cedar_status shadow_of(cedar_quality *q, int64_t session_id, uint32_t stream, shadow **out, cedar_err *err) {
    shadow *place = &q->shadows[0];
    for (uint32_t i = 0; i < q->shadow_count; i++) {
        shadow *s = &q->shadows[i];
        if (s->session_id == session_id && s->stream == stream) {
            *out = s;
            return CEDAR_OK;
        }
        if (place->session_id && (!s->session_id || s->used < place->used)) place = s;
    }
    drop(q, place);
    cedar_status st = cedar_seq_open(q->engine, &place->seq, err);
    if (st) return st;
    place->session_id = session_id;
    place->stream = stream;
    *out = place;
    return CEDAR_OK;
}

/* Leaves the sequence with a prefix of tokens[0, most), by going back or by starting over. */
static cedar_status rewind_to(cedar_quality *q, shadow *s, const int32_t *tokens, uint32_t most, cedar_err *err) {
    uint32_t pos = cedar_seq_pos(q->engine, s->seq), common = 0;
    const int32_t *held = cedar_seq_tokens(q->engine, s->seq);
    while (common < pos && common < most && held[common] == tokens[common]) common++;
    if (common == pos) return CEDAR_OK;
    cedar_err why;
    if (pos - common <= ROLLBACK_ROWS && cedar_seq_truncate(q->engine, s->seq, common, &why) == CEDAR_OK)
        return CEDAR_OK;
    cedar_seq_close(q->engine, s->seq);
    cedar_status st = cedar_seq_open(q->engine, &s->seq, err);
    if (st) s->session_id = 0;
    return st;
}

static cedar_status feed(cedar_quality *q, int32_t seq, const int32_t *tokens, uint32_t pos, uint32_t rows,
                         uint32_t logits, cedar_err *err) {
    cedar_plan_entry entry;
    cedar_plan_rows(&q->rules, CEDAR_ROWS_PREFILL, pos, rows, cedar_seq_bounds(q->engine, seq),
                    cedar_seq_write_floor(q->engine, seq), true, logits, &entry);
    entry.seq = seq;
    entry.tokens = tokens + pos;
    cedar_step_plan plan = { .cut = CEDAR_CUT_AFTER, .entry_count = 1, .entries = &entry };
    cedar_plan_total(&plan);
    cedar_step_out out = { .logits = logits ? q->logits : NULL };
    return cedar_engine_step(q->engine, &plan, &out, err);
}

cedar_status cedar_quality_rows(cedar_quality *q, int64_t session_id, uint32_t stream, const int32_t *tokens,
                                uint32_t pos, uint32_t rows, const float **logits, cedar_err *err) {
    CEDAR_ASSERT(rows > 0 && rows <= q->rows_max && rows <= q->step_rows);
    shadow *s;
    cedar_status st = shadow_of(q, session_id, stream, &s, err);
    if (st) return st;
    s->used = ++q->uses;
    st = rewind_to(q, s, tokens, pos, err);
    if (st) return st;
    st = cedar_seq_reserve(q->engine, s->seq, pos + rows, err);
    while (!st) {
        uint32_t at = cedar_seq_pos(q->engine, s->seq), left = pos - at;
        if (left == 0) break;
        st = feed(q, s->seq, tokens, at, left < q->step_rows ? left : q->step_rows, 0, err);
    }
    if (!st) st = feed(q, s->seq, tokens, pos, rows, rows, err);
    *logits = q->logits;
    return st ? cedar_fail_in(err, st, "exact shadow") : CEDAR_OK;
}
