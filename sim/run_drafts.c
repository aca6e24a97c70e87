/* Speculative decoding on an engine: DSpark drafts behind the sampled token, one verify step feeds them all, and the
 * longest agreeing beginning stays (spec/model.md 2.11).
 *
 * Real verification keeps a draft that is the token which goes on the text: the recorded one, or the engine's own.
 * Synthetic acceptance drafts all the same, for the time it takes, but feeds the recorded tokens and keeps as many as
 * are drawn: rejected rows cost what they cost, and no wrong row ever stays. */
#include "base/clock.h"
#include "base/mem.h"
#include "sim/accept.h"
#include "sim/run_int.h"

typedef cedar_run_state run;

struct run_drafts {
    uint32_t block;             /* tokens the drafter makes, of which the first draft_tokens are used */
    cedar_draft_item *items;    /* [step_seqs] */
    int32_t *ids;               /* [step_seqs, block] */
    int32_t *rows;              /* [step_seqs, 1 + draft_tokens] tokens to verify */
};

cedar_status run_drafts_new(const run *r, run_drafts **out, cedar_err *err) {
    int64_t wanted = r->opts->draft_tokens, block = r->config->stages ? r->config->draft_block : 0;
    if (wanted > block)
        return cedar_fail(err, CEDAR_E_ARG, "draft_tokens = %lld: the drafter of %s makes %lld tokens%s",
                          (long long)wanted, r->config->name, (long long)block, block ? "" : ", it has none");
    uint32_t seqs = r->engine_opts.step_seqs;
    run_drafts *d = cedar_calloc(1, sizeof *d);
    if (!d) return cedar_fail(err, CEDAR_E_OOM, "no memory for drafts");
    d->block = (uint32_t)block;
    d->items = cedar_calloc(seqs, sizeof *d->items);
    d->ids = cedar_calloc((size_t)seqs * d->block, sizeof *d->ids);
    d->rows = cedar_calloc((size_t)seqs * (size_t)(wanted + 1), sizeof *d->rows);
    *out = d;
    if (d->items && d->ids && d->rows) return CEDAR_OK;
    run_drafts_free(d);
    *out = NULL;
    return cedar_fail(err, CEDAR_E_OOM, "no memory for drafts of %u sequences", seqs);
}

void run_drafts_free(run_drafts *d) {
    if (!d) return;
    cedar_free(d->items);
    cedar_free(d->ids);
    cedar_free(d->rows);
    cedar_free(d);
}

cedar_status run_drafts_make(run *r, cedar_step_plan *plan, int64_t *duration_ns, cedar_err *err) {
    run_drafts *d = r->drafts;
    uint32_t n = 0, width = (uint32_t)r->opts->draft_tokens + 1;
    *duration_ns = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        if (e->kind != CEDAR_ROWS_VERIFY) continue;
        d->items[n] = (cedar_draft_item){ .seq = e->seq, .token = e->tokens[0], .ids = d->ids + (size_t)n * d->block };
        n++;
    }
    if (!n) return CEDAR_OK;
    int64_t start = cedar_now_ns();
    cedar_status st = cedar_engine_draft(r->engine, d->items, n, err);
    *duration_ns = cedar_now_ns() - start;
    if (st || r->opts->acceptance_ppb) return st;
    n = 0;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        cedar_plan_entry *e = &plan->entries[i];
        if (e->kind != CEDAR_ROWS_VERIFY) continue;
        int32_t *row = d->rows + (size_t)n * width;
        row[0] = e->tokens[0];
        for (uint32_t k = 1; k < e->rows; k++) row[k] = d->items[n].ids[k - 1];
        e->tokens = row;
        n++;
    }
    return CEDAR_OK;
}

uint32_t run_drafts_accepted(const run *r, const cedar_request *q, const cedar_plan_entry *e, const int32_t *argmax) {
    uint32_t n = 0, drafts = e->rows - 1;
    if (r->opts->acceptance_ppb)
        return cedar_accept_drafts(r->accept_key, q->row.request_id, q->row.decode_steps, drafts,
                                   r->opts->acceptance_ppb);
    bool greedy = r->opts->continuation == CEDAR_CONTINUATION_GREEDY;
    while (n < drafts && e->tokens[n + 1] == (greedy ? argmax[n] : q->tokens[e->pos + n + 1])) n++;
    return n;
}
