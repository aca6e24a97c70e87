/* The conduct of an audit: documents, turns, blocks of rows; the exact arm and the arms under test side by side.
 *
 * A turn is cut into blocks at T - 1 and T: [first, T - 1) prompt rows behind the hit, row T - 1 which chooses the
 * first token of the answer, and the forced answer. In each block the exact arm runs first; then every arm runs the
 * same rows and is compared with it while the next one runs, the last one while the exact arm runs the next block. Four
 * blocks of logits are all that is ever held. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit_int.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"

static const uint64_t LOGITS_BYTES = 256ull << 20;

/* A forced answer as far as it is scored. */
typedef struct answer {
    double logp_p, logp_q;
    bool exact_p, exact_q;
} answer;

typedef struct lane {
    audit_track track;
    audit_tally tally;
    cedar_engine *own;          /* yardsticks with another engine */
    float *carry;               /* [vocab] logits of row T - 1 */
    uint32_t first;             /* first scored row of the turn */
    audit_rows before, after;   /* adopted rows that replay feeds again, before the turn and behind it */
    audit_rows fresh;           /* the turn's new rows */
    answer answers[CEDAR_NEEDLES_MAX];
} lane;

typedef struct audit {
    const cedar_audit_opts *o;
    const cedar_audit_host *host;
    const cedar_config *c;
    int64_t id;
    cedar_engine_opts engine_opts;
    cedar_engine *engine;
    lane exact, *lanes;         /* [arm_count] */
    float *p[2], *q[2];         /* [block_rows, vocab] each; one p and one q are compared while others are filled */
    int p_now, q_next;          /* the exact arm's last block; the q to fill */
    audit_job *job;
    lane *compared;             /* whose rows the job works on, or NULL */
    uint32_t compared_from, compared_rows;
    int32_t *forced;            /* [block_rows] */
    cedar_divergence *result;   /* [block_rows] */
    uint32_t block_rows, threads;
    audit_inside *inside;
    audit_greedy greedy;
    uint64_t hash, positions;
    int64_t score_ns, start_ns;
    /* what is being done */
    const cedar_audit_doc *doc;
    const cedar_audit_turn *turn;
    uint32_t doc_index, turn_index, first;
    lane *now;
} audit;

static void fold(audit *x, uint64_t word) { x->hash = cedar_fold64(x->hash, word); }

static void fold_real(audit *x, double v) {
    uint64_t bits = 0;
    if (!isnan(v)) memcpy(&bits, &v, sizeof bits);
    fold(x, bits);
}

static cedar_status emit(audit *x, cedar_audit_kind kind, const void *row, cedar_err *err) {
    fold(x, (uint64_t)kind);
    return x->host->observer->row(x->host->observer->self, kind, row, err);
}

static int64_t arm_id(const audit *x, const lane *l) { return l - x->lanes + 1; }

/* What an arm does at a hit counts from H; what decoder replay alone does, and turns without a hit, from T - 1. */
static int32_t offset_of(const audit *x, const lane *l, uint32_t pos) {
    bool from_hit = x->turn->hit > 0 && (l->track.arm.hits == CEDAR_HITS_REPLAY || !l->track.arm.decoder);
    return from_hit ? (int32_t)pos - (int32_t)x->turn->hit : (int32_t)pos - (int32_t)x->turn->prompt + 1;
}

/* --- comparing a block -------------------------------------------------------------------------------------------- */

static void tally_position(audit *x, lane *l, int32_t offset, const cedar_divergence *d) {
    int bins[2] = { audit_bin(offset), AUDIT_ALL };
    for (int i = 0; i < 2; i++) {
        audit_sums *s = &l->tally.doc[x->doc_index][bins[i]];
        s->kl += d->kl_pq;
        s->dlogp += d->logp_q - d->logp_p;
        s->n++;
        s->differ += !d->top1_same;
        s->decisive += d->margin_p > 0.1;
        s->decisive_differ += d->margin_p > 0.1 && !d->top1_same;
    }
    if (d->kl_pq > l->tally.kl_max) l->tally.kl_max = d->kl_pq;
    l->tally.end.positions++;
    x->positions++;
}

static void tally_answers(const audit *x, lane *l, uint32_t pos, int32_t token, const cedar_divergence *d) {
    for (uint32_t i = 0; i < x->turn->needle_count; i++) {
        const cedar_needle *n = &x->turn->needle[i];
        if (pos + 1 < n->answer || pos + 1 >= n->answer + n->tokens) continue;
        answer *a = &l->answers[i];
        a->logp_p += d->logp_p;
        a->logp_q += d->logp_q;
        a->exact_p = a->exact_p && d->top1_p == token;
        a->exact_q = a->exact_q && d->top1_q == token;
    }
}

static cedar_status emit_position(audit *x, lane *l, uint32_t pos, const cedar_divergence *d, cedar_err *err) {
    cedar_audit_position_row row = {
        .audit_id = x->id, .arm_id = arm_id(x, l), .doc = x->doc_index, .turn = x->turn_index, .pos = pos,
        .offset = offset_of(x, l, pos), .token = x->turn->tokens[pos + 1], .kl_pq = d->kl_pq, .kl_qp = d->kl_qp,
        .js = d->js, .logp_p = d->logp_p, .logp_q = d->logp_q, .top1_prob_p = d->top1_prob_p, .margin_p = d->margin_p,
        .ratio_max = d->ratio_max, .top5_jaccard = d->top5_jaccard, .top1_p = d->top1_p, .top1_q = d->top1_q,
        .top1_same = d->top1_same };
    tally_position(x, l, row.offset, d);
    tally_answers(x, l, pos, row.token, d);
    fold(x, pos);
    fold_real(x, d->kl_pq);
    fold_real(x, d->js);
    fold_real(x, d->logp_q);
    return x->o->keep_positions ? emit(x, CEDAR_AUDIT_POSITION, &row, err) : CEDAR_OK;
}

static cedar_status emit_layers(audit *x, lane *l, uint32_t pos, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; x->inside && !l->own && i < x->o->layers.count && !st; i++) {
        cedar_audit_layer_row row = { .audit_id = x->id, .arm_id = arm_id(x, l), .doc = x->doc_index,
                                      .turn = x->turn_index, .pos = pos, .offset = offset_of(x, l, pos) };
        if (!audit_inside_compare(x->inside, pos, i, &row)) continue;
        if (!(row.stream_rel <= l->tally.layer_max)) l->tally.layer_max = row.stream_rel;
        fold_real(x, row.stream_rel);
        fold_real(x, row.window_differ);
        st = emit(x, CEDAR_AUDIT_LAYER, &row, err);
    }
    return st;
}

/* Waits for the comparison under way and reports it. */
static cedar_status report_rows(audit *x, cedar_err *err) {
    lane *l = x->compared;
    if (!l) return CEDAR_OK;
    int64_t start = cedar_now_ns();
    cedar_status st = CEDAR_OK;
    audit_job_wait(x->job);
    x->compared = NULL;
    for (uint32_t i = 0; i < x->compared_rows && !st; i++) {
        st = emit_position(x, l, x->compared_from + i, &x->result[i], err);
        if (!st) st = emit_layers(x, l, x->compared_from + i, err);
    }
    x->score_ns += cedar_now_ns() - start;
    return st;
}

/* Rows [from, to) of the exact arm against q: reports the comparison before and begins this one. The last row of a turn
 * has no token forced behind it. */
static cedar_status compare(audit *x, lane *l, uint32_t from, uint32_t to, const float *q, cedar_err *err) {
    cedar_status st = report_rows(x, err);
    if (st) return st;
    int64_t start = cedar_now_ns();
    x->compared = l;
    x->compared_from = from;
    x->compared_rows = (to < x->turn->end ? to : x->turn->end - 1) - from;
    for (uint32_t i = 0; i < x->compared_rows; i++) x->forced[i] = x->turn->tokens[from + i + 1];
    audit_job_start(x->job, x->p[x->p_now], q, x->compared_rows, x->c->vocab, x->forced, x->result);
    x->score_ns += cedar_now_ns() - start;
    return x->inside ? report_rows(x, err) : CEDAR_OK;      /* the taps' store serves one arm at a time */
}

static bool is_prompt_trimmed(const lane *l) { return l->track.arm.decoder; }

static cedar_status run_lane(audit *x, lane *l, uint32_t from, uint32_t to, cedar_err *err) {
    const int32_t *tokens = x->turn->tokens;
    if (from < l->first) return CEDAR_OK;
    if (is_prompt_trimmed(l) && to == x->turn->prompt) return compare(x, l, from, to, l->carry, err);
    if (x->inside && !l->own) audit_inside_watch(x->inside, l->track.engine, from, false);
    float *q = x->q[x->q_next];
    cedar_status st = audit_track_feed(&l->track, tokens, to, (audit_feed){ .logits = q }, err);
    if (x->inside && !l->own) audit_inside_stop(l->track.engine);
    if (to == x->turn->prompt && !st) memcpy(l->carry, q, (size_t)x->c->vocab * sizeof *q);
    x->q_next = !x->q_next;
    return st ? st : compare(x, l, from, to, q, err);
}

static cedar_status run_block(audit *x, uint32_t from, uint32_t to, cedar_err *err) {
    if (x->inside) audit_inside_watch(x->inside, x->engine, from, true);
    x->p_now = !x->p_now;
    float *p = x->p[x->p_now];
    cedar_status st = audit_track_feed(&x->exact.track, x->turn->tokens, to, (audit_feed){ .logits = p }, err);
    if (x->inside) audit_inside_stop(x->engine);
    for (uint32_t i = 0; i < x->o->arm_count && !st; i++) st = run_lane(x, &x->lanes[i], from, to, err);
    return st;
}

/* --- global rows -------------------------------------------------------------------------------------------------- */

static bool compares_globals(const audit *x) { return x->o->globals && x->doc_index % x->o->globals == 0; }

static bool adopts(const audit *x, const lane *l) {
    return compares_globals(x) && l->track.arm.hits == CEDAR_HITS_REPLAY && x->turn->hit > 0;
}

/* Rows of [S, H): the ones replayed rows could overwrite. */
static cedar_status read_adopted(const audit *x, lane *l, audit_rows *to, cedar_err *err) {
    return audit_rows_read(to, l->track.engine, x->c, l->track.seq, l->track.start, x->turn->hit, err);
}

static cedar_status emit_global(void *self, int32_t source, uint32_t entry, uint32_t pos, double kv, double index,
                                cedar_err *err) {
    audit *x = self;
    lane *l = x->now;
    cedar_audit_global_row row = { .audit_id = x->id, .arm_id = arm_id(x, l), .doc = x->doc_index,
                                   .turn = x->turn_index, .layer = source, .entry = entry, .pos = pos,
                                   .offset = offset_of(x, l, pos), .kv_differ = kv, .index_differ = index,
                                   .latent_rel = (double)NAN };
    if (x->inside && !l->own) row.latent_rel = audit_inside_latent(x->inside, source, entry);
    l->tally.end.global_rows++;
    l->tally.end.global_differ += kv > 0 || index > 0;
    fold_real(x, kv);
    fold_real(x, index);
    return x->o->keep_positions ? emit(x, CEDAR_AUDIT_GLOBAL, &row, err) : CEDAR_OK;
}

static cedar_status compare_globals(audit *x, cedar_err *err) {
    uint32_t from = x->turn->hit, to = x->turn->end;
    cedar_status st = audit_rows_read(&x->exact.fresh, x->engine, x->c, x->exact.track.seq, from, to, err);
    for (uint32_t i = 0; i < x->o->arm_count && !st; i++) {
        lane *l = x->now = &x->lanes[i];
        st = audit_rows_read(&l->fresh, l->track.engine, x->c, l->track.seq, from, to, err);
        if (!st) st = audit_rows_compare(x->c, &x->exact.fresh, &l->fresh, emit_global, x, err);
    }
    return st;
}

/* --- greedy continuations ----------------------------------------------------------------------------------------- */

static cedar_status emit_draft(void *self, uint32_t generated, uint32_t drafted, uint32_t accepted, cedar_err *err) {
    audit *x = self;
    cedar_audit_draft_row row = { .audit_id = x->id, .arm_id = x->now == &x->exact ? 0 : arm_id(x, x->now),
                                  .doc = x->doc_index, .turn = x->turn_index, .generated = generated,
                                  .drafted = drafted, .accepted = accepted };
    fold(x, (uint64_t)generated << 32 | accepted);
    return emit(x, CEDAR_AUDIT_DRAFT, &row, err);
}

static cedar_status follow(audit *x, lane *l, const float *first, cedar_err *err) {
    uint32_t diverged;
    x->now = l;
    bool drafts = x->o->drafts && x->c->stages > 0;
    cedar_status st =
        audit_greedy_follow(&x->greedy, &l->track, first, drafts ? emit_draft : NULL, x, &diverged, err);
    if (st || l == &x->exact) return st;
    bool none = diverged == x->greedy.count;
    double margin = none ? (double)NAN : x->greedy.margin[diverged];
    cedar_audit_greedy_row row = { .audit_id = x->id, .arm_id = arm_id(x, l), .doc = x->doc_index,
                                   .turn = x->turn_index, .tokens = x->greedy.count,
                                   .diverged_at = none ? -1 : (int32_t)diverged, .margin_p = margin,
                                   .tie = !none && margin <= x->o->noise_margin };
    l->tally.greedy[l->tally.greedy_count++] = diverged;
    fold(x, diverged);
    return emit(x, CEDAR_AUDIT_GREEDY, &row, err);
}

/* All arms are at T, and the exact arm's last block is row T - 1. */
static cedar_status continue_greedily(audit *x, cedar_err *err) {
    bool last = x->turn_index + 1 == x->doc->turn_count;
    if (!x->o->greedy_tokens || (!last && strcmp(x->o->greedy_turns, "all"))) return CEDAR_OK;
    const float *p = x->p[x->p_now];
    cedar_status st = report_rows(x, err);      /* rows before continuations */
    if (!st) st = audit_greedy_lead(&x->greedy, &x->exact.track, p, err);
    if (!st && x->o->drafts && x->c->stages > 0) st = follow(x, &x->exact, p, err);      /* its own acceptance */
    for (uint32_t i = 0; i < x->o->arm_count && !st; i++) st = follow(x, &x->lanes[i], x->lanes[i].carry, err);
    return st;
}

/* --- turns -------------------------------------------------------------------------------------------------------- */

static uint32_t first_scored(const audit *x, const lane *l) {
    bool all = strcmp(x->o->score, "all") == 0 && x->turn->hit > 0 && !is_prompt_trimmed(l);
    return all ? x->turn->hit : x->turn->prompt - 1;
}

/* Brings an arm to its first scored row; trimmed prompts are fed whole. */
static cedar_status begin_lane(audit *x, lane *l, cedar_err *err) {
    const int32_t *tokens = x->turn->tokens;
    l->first = first_scored(x, l);
    for (uint32_t i = 0; i < CEDAR_NEEDLES_MAX; i++) l->answers[i] = (answer){ .exact_p = true, .exact_q = true };
    cedar_status st = audit_track_begin(&l->track, x->doc, x->turn_index, err);
    if (!st && adopts(x, l)) st = read_adopted(x, l, &l->before, err);
    if (!st && is_prompt_trimmed(l))
        return audit_track_feed(&l->track, tokens, x->turn->prompt,
                                (audit_feed){ .prompt = true, .last_only = true, .logits = l->carry }, err);
    return st ? st : audit_track_feed(&l->track, tokens, l->first, (audit_feed){ .prompt = true }, err);
}

static cedar_status begin_turn(audit *x, cedar_err *err) {
    x->first = x->turn->prompt - 1;
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < x->o->arm_count && !st; i++) {
        st = begin_lane(x, &x->lanes[i], err);
        if (x->lanes[i].first < x->first) x->first = x->lanes[i].first;
    }
    if (!st) st = audit_track_begin(&x->exact.track, x->doc, x->turn_index, err);
    if (!st) st = audit_track_feed(&x->exact.track, x->turn->tokens, x->first, (audit_feed){ 0 }, err);
    if (x->inside) audit_inside_turn(x->inside, x->first);
    return st;
}

static const char *place_of(const audit *x, const cedar_needle *n) {
    int64_t w = x->c->window, s = (int64_t)x->turn->hit - w, pos = n->pos;
    if (pos >= x->turn->hit) return "suffix";
    return pos >= s ? "replayed" : pos >= s - w ? "window" : pos >= s - 3 * w ? "near" : "far";
}

static cedar_status end_answers(audit *x, lane *l, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < x->turn->needle_count && !st; i++) {
        const answer *a = &l->answers[i];
        const cedar_needle *n = &x->turn->needle[i];
        cedar_audit_needle_row row = { .audit_id = x->id, .arm_id = arm_id(x, l), .doc = x->doc_index,
                                       .turn = x->turn_index, .needle = i, .pos = n->pos, .tokens = n->tokens,
                                       .place = place_of(x, n), .logp_p = a->logp_p, .logp_q = a->logp_q,
                                       .exact_p = a->exact_p, .exact_q = a->exact_q };
        cedar_part *part = &l->tally.needle[x->doc_index];
        part->sum += a->logp_q - a->logp_p;
        part->weight += 1;
        l->tally.needle_b += a->exact_p && !a->exact_q;
        l->tally.needle_c += a->exact_q && !a->exact_p;
        fold_real(x, a->logp_q);
        st = emit(x, CEDAR_AUDIT_NEEDLE, &row, err);
    }
    return st;
}

static void add_cost(cedar_audit_arm_end_row *end, const audit_cost *c) {
    end->rows_fed += c->rows;
    end->kept += c->kept;
    end->prompt_rows += c->prompt_rows;
    end->prompt_kept += c->prompt_kept;
    end->replayed += c->replayed;
    end->steps += c->steps;
    end->window_bytes += c->window_bytes;
    end->prompt_ns += c->prompt_ns;
    end->forward_ns += c->forward_ns;
}

static cedar_status end_lane(audit *x, lane *l, cedar_err *err) {
    const audit_track *t = &l->track;
    uint32_t changed = 0;
    cedar_status st = end_answers(x, l, err);
    if (!st && adopts(x, l)) {
        st = read_adopted(x, l, &l->after, err);
        if (!st) changed = audit_rows_differ(x->c, &l->before, &l->after);
    }
    if (st) return st;
    cedar_audit_turn_row row = {
        .audit_id = x->id, .arm_id = arm_id(x, l), .doc = x->doc_index, .turn = x->turn_index,
        .doc_name = x->doc->name, .hit = x->turn->hit, .start = t->start, .prompt_end = x->turn->prompt,
        .end = x->turn->end, .replayed = (uint32_t)t->cost.replayed, .trimmed = (uint32_t)t->cost.trimmed,
        .rows = (uint32_t)t->cost.rows, .kept = (uint32_t)t->cost.kept, .prompt_rows = (uint32_t)t->cost.prompt_rows,
        .prompt_kept = (uint32_t)t->cost.prompt_kept, .steps = (uint32_t)t->cost.steps,
        .provenance_depth = t->depth, .adopted_changed = changed, .window_bytes = t->cost.window_bytes,
        .prompt_ns = t->cost.prompt_ns, .forward_ns = t->cost.forward_ns };
    l->tally.end.adopted_changed += changed;
    add_cost(&l->tally.end, &t->cost);
    fold(x, (uint64_t)row.rows << 32 | row.kept);
    return emit(x, CEDAR_AUDIT_TURN, &row, err);
}

/* Blocks between two of the borders first, T - 1, T, end. */
static cedar_status run_blocks(audit *x, uint32_t from, uint32_t to, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    while (from < to && !st) {
        uint32_t end = to - from < x->block_rows ? to : from + x->block_rows;
        st = run_block(x, from, end, err);
        from = end;
    }
    return st;
}

static cedar_status run_turn(audit *x, cedar_err *err) {
    const cedar_audit_turn *t = x->turn;
    cedar_status st = begin_turn(x, err);
    if (!st) st = run_blocks(x, x->first, t->prompt - 1, err);
    if (!st) st = run_block(x, t->prompt - 1, t->prompt, err);
    if (!st) st = continue_greedily(x, err);
    if (!st) st = run_blocks(x, t->prompt, t->end, err);
    if (!st) st = report_rows(x, err);
    if (!st && compares_globals(x)) st = compare_globals(x, err);
    add_cost(&x->exact.tally.end, &x->exact.track.cost);
    for (uint32_t i = 0; i < x->o->arm_count && !st; i++) st = end_lane(x, &x->lanes[i], err);
    return st;
}

static cedar_status run_docs(audit *x, cedar_err *err) {
    uint64_t done = 0;
    cedar_status st = CEDAR_OK;
    for (x->doc_index = 0; x->doc_index < x->host->docs->count && !st; x->doc_index++) {
        x->doc = &x->host->docs->docs[x->doc_index];
        for (x->turn_index = 0; x->turn_index < x->doc->turn_count && !st; x->turn_index++) {
            x->turn = &x->doc->turns[x->turn_index];
            st = run_turn(x, err);
            if (st && st != CEDAR_E_INTERRUPT)
                cedar_fail_in(err, st, "%s turn %u", x->doc->name, x->turn_index);
            done++;
            if (x->host->progress)
                x->host->progress(x->host->self, x->o->label, done, x->host->docs->turns, cedar_now_ns() - x->start_ns);
        }
        audit_track_end(&x->exact.track);
        for (uint32_t i = 0; i < x->o->arm_count; i++) audit_track_end(&x->lanes[i].track);
    }
    return st;
}

/* --- beginning and end -------------------------------------------------------------------------------------------- */

static cedar_arith arith_of(const char *name) {
    return strcmp(name, "wide") == 0 ? CEDAR_WIDE : strcmp(name, "bf16") == 0 ? CEDAR_BF16 : CEDAR_F32;
}

static uint32_t block_rows_of(const cedar_audit_opts *o, const cedar_config *c) {
    uint64_t rows = LOGITS_BYTES / (4 * sizeof(float) * (uint64_t)c->vocab);
    if (o->score_rows) rows = o->score_rows;
    if (rows > o->step_tokens) rows = o->step_tokens;
    return rows ? (uint32_t)rows : 1;
}

/* Greedy continuations must end within the positions that the model has. */
static cedar_status check_greedy(const audit *x, cedar_err *err) {
    const cedar_audit_docs *d = x->host->docs;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < d->count; i++)
        for (uint32_t k = 0; k < d->docs[i].turn_count; k++)
            if (d->docs[i].turns[k].prompt > longest) longest = d->docs[i].turns[k].prompt;
    if (!x->o->greedy_tokens || (uint64_t)longest + x->o->greedy_tokens <= (uint64_t)x->c->positions_max)
        return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_ARG,
                      "greedy_tokens %u behind a prompt of %u tokens is more than the model's %d positions; make "
                      "greedy_tokens or the documents smaller", x->o->greedy_tokens, longest, x->c->positions_max);
}

static cedar_engine_opts engine_options(const audit *x) {
    const cedar_audit_opts *o = x->o;
    uint32_t context = x->host->docs->longest + o->greedy_tokens + 1;
    uint32_t lcm = (uint32_t)x->c->ratio_lcm, page = (o->page_tokens + lcm - 1) / lcm * lcm;
    cedar_engine_opts e = cedar_engine_defaults(x->c);
    e.backend = o->backend;
    e.arith = arith_of(o->arith);
    e.threads = o->threads;
    e.gpus = o->gpus;
    e.stop = x->host->stop;
    e.page_tokens = page;
    e.seq_count = o->arm_count + 4;     /* every arm's, the exact one's, a next one, a fork or a fault's scratch */
    e.page_count = e.seq_count * ((context + page - 1) / page + 1);
    e.context_tokens = context;
    e.step_rows = o->step_tokens > x->block_rows ? o->step_tokens : x->block_rows;
    e.step_seqs = 1;
    e.verify_rows = 0;
    e.weight_cache_bytes = 1ull << 30;
    return e;
}

static cedar_status open_lane(audit *x, lane *l, const cedar_arm *arm, cedar_err *err) {
    cedar_engine *e = x->engine;
    if (arm->wo_a_fp8 || arm->arith >= 0) {
        cedar_engine_opts own = x->engine_opts;
        own.wo_a_fp8 = arm->wo_a_fp8;
        if (arm->arith >= 0) own.arith = (cedar_arith)arm->arith;
        own.seq_count = 4;
        own.page_count = x->engine_opts.page_count / x->engine_opts.seq_count * own.seq_count;
        cedar_status st = cedar_engine_open(x->host->model, &own, &l->own, err);
        if (st) return cedar_fail_in(err, st, "arm \"%s\"", arm->label);
        e = l->own;
    }
    audit_track_init(&l->track, e, x->c, arm, x->o->step_tokens, x->host->stop);
    uint32_t docs = x->host->docs->count;
    l->carry = cedar_calloc((size_t)x->c->vocab, sizeof *l->carry);
    l->tally.doc = cedar_calloc(docs, sizeof *l->tally.doc);
    l->tally.needle = cedar_calloc(docs, sizeof *l->tally.needle);
    l->tally.greedy = cedar_calloc(x->host->docs->turns, sizeof *l->tally.greedy);
    l->tally.layer_max = (double)NAN;
    l->tally.end.audit_id = x->id;
    if (l->carry && l->tally.doc && l->tally.needle && l->tally.greedy) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_OOM, "no memory for arm \"%s\"", arm->label);
}

static cedar_status close_lane(lane *l, cedar_err *err) {
    if (l->track.engine) audit_track_end(&l->track);
    cedar_status st = cedar_engine_close(l->own, err);
    audit_rows_free(&l->before);
    audit_rows_free(&l->after);
    audit_rows_free(&l->fresh);
    cedar_free(l->carry);
    cedar_free(l->tally.doc);
    cedar_free(l->tally.needle);
    cedar_free(l->tally.greedy);
    return st;
}

static cedar_status open_all(audit *x, cedar_err *err) {
    const cedar_arm exact = { .label = "exact", .hits = CEDAR_HITS_CONTINUE, .arith = -1 };
    x->block_rows = block_rows_of(x->o, x->c);
    x->threads = x->o->threads ? x->o->threads : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    x->lanes = cedar_calloc(x->o->arm_count, sizeof *x->lanes);
    if (!x->lanes) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u arms", x->o->arm_count);
    cedar_status st = check_greedy(x, err);
    if (st) return st;
    x->engine_opts = engine_options(x);
    st = cedar_engine_gpus_check(x->engine_opts.backend, x->engine_opts.gpus, err);
    if (!st) st = cedar_engine_open(x->host->model, &x->engine_opts, &x->engine, err);
    if (!st) st = open_lane(x, &x->exact, &exact, err);
    for (uint32_t i = 0; i < x->o->arm_count && !st; i++) {
        cedar_arm arm;
        st = cedar_arm_parse(x->o->arms[i], x->c, &arm, err);
        for (uint32_t k = 0; k < i && !st; k++)
            if (strcmp(x->lanes[k].track.arm.label, arm.label) == 0)
                st = cedar_fail(err, CEDAR_E_ARG, "arms: \"%s\" is there twice; name each arm once", arm.label);
        if (!st) st = open_lane(x, &x->lanes[i], &arm, err);
    }
    if (!st)
        st = audit_inside_new(x->c, &x->o->layers, x->block_rows, x->host->docs->longest, &x->inside, err);
    if (!st) st = audit_greedy_new(x->c, x->o->greedy_tokens, &x->greedy, err);
    if (st) return st;
    size_t logits = (size_t)x->block_rows * (size_t)x->c->vocab;
    for (int i = 0; i < 2; i++) {
        x->p[i] = cedar_calloc(logits, sizeof *x->p[i]);
        x->q[i] = cedar_calloc(logits, sizeof *x->q[i]);
    }
    x->job = audit_job_new(x->c->vocab, x->threads);
    x->forced = cedar_calloc(x->block_rows, sizeof *x->forced);
    x->result = cedar_calloc(x->block_rows, sizeof *x->result);
    if (x->p[0] && x->p[1] && x->q[0] && x->q[1] && x->job && x->forced && x->result) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_OOM, "no memory for four blocks of %u rows of %d logits", x->block_rows,
                      x->c->vocab);
}

/* Returns st, or, when that is CEDAR_OK, how closing went. */
static cedar_status close_all(audit *x, cedar_status st, cedar_err *err) {
    if (x->compared) audit_job_wait(x->job);
    cedar_status left = CEDAR_OK;
    for (uint32_t i = 0; x->lanes && i < x->o->arm_count; i++) {
        cedar_status closed = close_lane(&x->lanes[i], err);
        if (closed) left = closed;
    }
    cedar_status exact = close_lane(&x->exact, err), shared = cedar_engine_close(x->engine, err);
    audit_inside_free(x->inside);
    audit_greedy_free(&x->greedy);
    cedar_free(x->lanes);
    for (int i = 0; i < 2; i++) {
        cedar_free(x->p[i]);
        cedar_free(x->q[i]);
    }
    audit_job_free(x->job);
    cedar_free(x->forced);
    cedar_free(x->result);
    if (!left) left = exact ? exact : shared;
    return st ? st : left;
}

static cedar_status emit_begin(audit *x, cedar_err *err) {
    enum { JSON_BYTES = 65536 };
    cedar_memory_plan plan = { 0 };
    char *json = cedar_calloc(JSON_BYTES, 1);
    if (!json) return cedar_fail(err, CEDAR_E_OOM, "no memory for the options as text");
    audit_options_json(x->o, json, JSON_BYTES);
    cedar_status st = cedar_plan_memory(x->c, NULL, &plan, err);
    const cedar_audit_opts *o = x->o;
    const cedar_engine_opts *e = cedar_engine_options(x->engine);
    char device[CEDAR_DEVICE_BYTES], place[CEDAR_DEVICE_BYTES + 16];
    cedar_device_name(e->backend, e->gpus, device);
    snprintf(place, sizeof place, "%.8s%s%s", e->backend, *device ? ", " : "", device);
    cedar_audit_begin_row row = {
        .audit_id = x->id, .label = o->label, .config_json = json, .model_name = x->c->name,
        .model_hash = x->host->model_hash, .model_origin = x->host->model_origin, .documents = x->host->documents,
        .backend = place, .arith = o->arith, .seed = o->seed,
        .docs = x->host->docs->count, .turns = x->host->docs->turns, .vocab = (uint32_t)x->c->vocab,
        .window = (uint32_t)x->c->window, .layers = (uint32_t)x->c->layers, .cut = (uint32_t)x->c->cut,
        .halo_encoder = cedar_halo_encoder(x->c), .halo_decoder = cedar_halo_decoder(x->c, CEDAR_CUT_AFTER),
        .kv_token_bytes_x1000 = plan.kv_token_bytes_x1000,
        .window_snap_bytes = plan.window_bytes + plan.draft_ring_bytes, .resamples = o->resamples,
        .margin_kl = o->margin_kl, .margin_dlogp = o->margin_dlogp, .margin_top1 = o->margin_top1 };
    if (!st) st = emit(x, CEDAR_AUDIT_BEGIN, &row, err);
    cedar_free(json);
    return st;
}

static cedar_status emit_arm(audit *x, const lane *l, cedar_err *err) {
    const cedar_arm *a = &l->track.arm;
    cedar_audit_arm_row row = { .audit_id = x->id, .arm_id = arm_id(x, l), .label = a->label, .control = a->control,
                                .what = a->what, .decoder = a->decoder, .encoder = a->hits == CEDAR_HITS_REPLAY,
                                .cut = a->decoder ? audit_cut_name(a->cut) : "", .hits = audit_hits_name(a->hits),
                                .fault = audit_fault_name(a->fault), .rows = a->rows, .keep = a->keep,
                                .chunk = a->chunk };
    cedar_status st = emit(x, CEDAR_AUDIT_ARM, &row, err);
    for (int32_t layer = 0; layer < x->c->layers && !st; layer++) {
        cedar_audit_front_row front = { .audit_id = x->id, .arm_id = row.arm_id, .layer = layer };
        front.from_offset = cedar_exact_front(x->c, a, layer, &front.holds);
        if (front.from_offset == INT32_MIN || front.from_offset == INT32_MAX) continue;
        st = emit(x, CEDAR_AUDIT_FRONT, &front, err);
    }
    return st;
}

static cedar_status emit_stat(void *self, const cedar_audit_stat_row *row, cedar_err *err) {
    audit *x = self;
    fold_real(x, row->value);
    fold_real(x, row->lo);
    fold_real(x, row->hi);
    cedar_status st = audit_stop_check(x->host->stop, err);     /* many resamples take long */
    return st ? st : emit(x, CEDAR_AUDIT_STAT, row, err);
}

/* The arm that does the same without the deliberate fault; NULL: there is none, or no fault. */
static const audit_tally *clean_of(const audit *x, const cedar_arm *a) {
    for (uint32_t i = 0; i < x->o->arm_count && a->fault; i++) {
        const cedar_arm *b = &x->lanes[i].track.arm;
        bool own_engine = b->wo_a_fp8 || b->arith >= 0;
        if (!b->fault && !own_engine && b->hits == a->hits && b->decoder == a->decoder && b->rows == a->rows)
            return &x->lanes[i].tally;
    }
    return NULL;
}

static cedar_status end_arm(audit *x, lane *l, cedar_audit_arm_result *out, cedar_err *err) {
    snprintf(out->label, sizeof out->label, "%s", l->track.arm.label);
    snprintf(out->control, sizeof out->control, "%s", l->track.arm.control);
    l->tally.clean = clean_of(x, &l->track.arm);
    cedar_status st = audit_summarise(x->o, &l->tally, x->host->docs->count, x->id, arm_id(x, l), emit_stat, x, out,
                                      err);
    if (st) return st;
    l->tally.end.arm_id = arm_id(x, l);
    l->tally.end.greedy_mean = out->greedy_mean;
    return emit(x, CEDAR_AUDIT_ARM_END, &l->tally.end, err);
}

static cedar_status end_all(audit *x, cedar_status st, cedar_audit_result *out, cedar_err *err) {
    cedar_err why = { 0 };
    int64_t exact = x->exact.tally.end.forward_ns, forward = exact;
    for (uint32_t i = 0; i < x->o->arm_count; i++) forward += x->lanes[i].tally.end.forward_ns;
    int64_t wall = cedar_now_ns() - x->start_ns;
    cedar_audit_end_row row = { .audit_id = x->id, .error = st ? err->msg : "", .positions = x->positions,
                                .status = !st ? "finished" : st == CEDAR_E_INTERRUPT ? "interrupted" : "failed",
                                .result_hash = x->hash, .exact_ns = exact, .forward_ns = forward,
                                .score_ns = x->score_ns, .wall_ns = wall };
    out->audit_id = x->id;
    snprintf(out->status, sizeof out->status, "%s", row.status);
    out->result_hash = x->hash;
    out->positions = x->positions;
    out->exact_s = (double)exact / 1e9;
    out->forward_s = (double)forward / 1e9;
    out->score_s = (double)x->score_ns / 1e9;
    out->wall_s = (double)wall / 1e9;
    out->overhead = forward > 0 ? (double)wall / (double)forward - 1 : (double)NAN;
    cedar_status ended = emit(x, CEDAR_AUDIT_END, &row, &why);
    if (!st && ended) return cedar_fail(err, ended, "%s", why.msg);
    return st;
}

cedar_status cedar_audit(const cedar_audit_opts *o, int64_t audit_id, const cedar_audit_host *host,
                         cedar_audit_result *out, cedar_err *err) {
    audit *x = cedar_calloc(1, sizeof *x);
    *out = (cedar_audit_result){ .arm_count = o->arm_count };
    if (!x) return cedar_fail(err, CEDAR_E_OOM, "no memory for an audit");
    x->o = o;
    x->host = host;
    x->c = cedar_model_config(host->model);
    x->id = audit_id;
    cedar_status st = open_all(x, err);
    if (!st) st = emit_begin(x, err);
    if (!st) {
        x->start_ns = cedar_now_ns();
        for (uint32_t i = 0; i < o->arm_count && !st; i++) st = emit_arm(x, &x->lanes[i], err);
        if (!st) st = run_docs(x, err);
        for (uint32_t i = 0; i < o->arm_count && !st; i++) st = end_arm(x, &x->lanes[i], &out->arms[i], err);
        st = end_all(x, st, out, err);
    }
    st = close_all(x, st, err);
    cedar_free(x);
    return st;
}
