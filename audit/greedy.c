/* Greedy continuations: the exact arm leads, the arm under test follows. Up to the first token it would choose itself
 * it sees what it would see alone, so that token is where its own greedy decode would leave the exact one. */
#include "audit/audit_int.h"
#include "base/clock.h"
#include "base/mem.h"

enum { ROWS_MAX = 64 };     /* of a step of the arm that follows */

void audit_greedy_free(audit_greedy *g) {
    cedar_free(g->token);
    cedar_free(g->margin);
    cedar_free(g->logits);
    cedar_free(g->ids);
    *g = (audit_greedy){ 0 };
}

cedar_status audit_greedy_new(const cedar_config *c, uint32_t count, audit_greedy *g, cedar_err *err) {
    *g = (audit_greedy){ .count = count };
    if (count == 0) return CEDAR_OK;
    g->token = cedar_calloc(count + 1, sizeof *g->token);
    g->margin = cedar_calloc(count, sizeof *g->margin);
    g->logits = cedar_calloc((size_t)c->vocab, sizeof *g->logits);
    g->ids = cedar_calloc((size_t)c->draft_block + 1, sizeof *g->ids);
    if (g->token && g->margin && g->logits && g->ids) return CEDAR_OK;
    audit_greedy_free(g);
    return cedar_fail(err, CEDAR_E_OOM, "no memory for a greedy continuation of %u tokens", count);
}

static cedar_status fork_of(audit_track *t, audit_track *fork, cedar_err *err) {
    *fork = *t;
    fork->snap = NULL;
    fork->next_hit = 0;
    return audit_track_fork(t, &fork->seq, err);
}

/* The fork's steps took time but are none of the turn's rows. */
static void close_fork(audit_track *t, const audit_track *fork) {
    cedar_seq_close(fork->engine, fork->seq);
    t->cost.forward_ns = fork->cost.forward_ns;
}

cedar_status audit_greedy_lead(audit_greedy *g, audit_track *exact, const float *first, cedar_err *err) {
    audit_track fork;
    uint32_t base = cedar_seq_pos(exact->engine, exact->seq);
    cedar_status st = fork_of(exact, &fork, err);
    if (st) return st;
    const float *logits = first;
    for (uint32_t i = 0; i < g->count && !st; i++) {
        g->token[i] = cedar_top1(logits, exact->c->vocab, &g->margin[i]);
        logits = g->logits;
        if (i + 1 == g->count) break;
        st = audit_track_feed_at(&fork, g->token, base, base + i + 1, (audit_feed){ .logits = g->logits }, err);
    }
    close_fork(exact, &fork);
    return st;
}

/* Leading drafts that agree with the continuation behind token `at`. */
static uint32_t accepted(const audit_greedy *g, uint32_t at, uint32_t drafted) {
    uint32_t n = 0;
    while (n < drafted && g->ids[n] == g->token[at + 1 + n]) n++;
    return n;
}

/* Tokens 0 .. at are chosen, 0 .. at - 1 are fed. Drafts follow token `at`. */
static cedar_status draft_cycle(audit_greedy *g, audit_track *fork, uint32_t at, audit_draft_fn draft, void *self,
                                uint32_t *take, cedar_err *err) {
    uint32_t left = g->count - 1 - at, block = (uint32_t)fork->c->draft_block;
    cedar_draft_item item = { .seq = fork->seq, .token = g->token[at], .ids = g->ids };
    *take = 1;
    if (!draft || left == 0) return CEDAR_OK;
    int64_t start = cedar_now_ns();
    cedar_status st = cedar_engine_draft(fork->engine, &item, 1, err);
    fork->cost.forward_ns += cedar_now_ns() - start;
    if (st) return st;
    uint32_t drafted = block < left ? block : left, good = accepted(g, at, drafted);
    *take = 1 + good;
    return draft(self, at, drafted, good, err);
}

cedar_status audit_greedy_follow(audit_greedy *g, audit_track *arm, const float *first, audit_draft_fn draft,
                                 void *self, uint32_t *diverged, cedar_err *err) {
    audit_track fork;
    uint32_t base = cedar_seq_pos(arm->engine, arm->seq), at = 0;
    int32_t argmax[ROWS_MAX];
    double margin;
    *diverged = cedar_top1(first, arm->c->vocab, &margin) == g->token[0] ? g->count : 0;
    cedar_status st = fork_of(arm, &fork, err);
    if (st) return st;
    while (!st && at + 1 < g->count) {
        uint32_t take, left = g->count - 1 - at;
        st = draft_cycle(g, &fork, at, draft, self, &take, err);
        if (!draft || take > left) take = left;
        if (take > ROWS_MAX) take = ROWS_MAX;
        if (!st)
            st = audit_track_feed_at(&fork, g->token, base, base + at + take, (audit_feed){ .argmax = argmax }, err);
        for (uint32_t i = 0; i < take && !st; i++)      /* row at + i chooses token at + i + 1 */
            if (argmax[i] != g->token[at + i + 1] && at + i + 1 < *diverged) *diverged = at + i + 1;
        at += take;
    }
    close_fork(arm, &fork);
    return st;
}
