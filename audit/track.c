/* One arm: how it comes to its windows at a hit, what it keeps for the next one, and its steps. */
#include "audit/audit_int.h"

cedar_status audit_stop_check(const volatile int *stop, cedar_err *err) {
    return stop && *stop ? cedar_fail(err, CEDAR_E_INTERRUPT, "the audit was interrupted") : CEDAR_OK;
}

void audit_track_init(audit_track *t, cedar_engine *e, const cedar_config *c, const cedar_arm *arm, uint32_t chunk,
                      const volatile int *stop) {
    *t = (audit_track){ .engine = e, .c = c, .arm = *arm, .seq = -1, .chunk = arm->chunk ? arm->chunk : chunk,
                        .stop = stop };
    if (t->chunk > chunk) t->chunk = chunk;
    t->rules = (cedar_replay_rules){ .window = (uint32_t)c->window, .decoder = arm->decoder, .cut = arm->cut,
                                     .encoder = arm->hits == CEDAR_HITS_REPLAY, .encoder_rows = arm->rows,
                                     .decoder_rows = arm->keep, .adopt_short_hits = true };
}

static void close_seq(audit_track *t) {
    if (t->seq >= 0) cedar_seq_close(t->engine, t->seq);
    t->seq = -1;
}

static void drop_snap(audit_track *t) {
    cedar_snap_free(t->snap);
    t->snap = NULL;
}

void audit_track_end(audit_track *t) {
    close_seq(t);
    drop_snap(t);
    t->depth = t->made = 0;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Stored windows are for arms that do not rebuild them; one that goes on needs none where its sequence ends anyway. */
static cedar_status store_windows(audit_track *t, cedar_err *err) {
    bool stores = t->arm.hits == CEDAR_HITS_STORED || t->arm.hits == CEDAR_HITS_CONTINUE;
    if (!stores || !t->next_hit || cedar_seq_pos(t->engine, t->seq) != t->next_hit) return CEDAR_OK;
    if (t->snap && cedar_snap_pos(t->snap) == t->next_hit) return CEDAR_OK;
    drop_snap(t);
    cedar_status st = cedar_snap_save(t->engine, t->seq, &t->snap, err);
    if (!st) t->cost.window_bytes += cedar_snap_bytes(t->snap);
    return st;
}

static void count_step(audit_track *t, const cedar_plan_entry *e, bool prompt, int64_t ns) {
    audit_cost *c = &t->cost;
    c->rows += e->rows;
    c->kept += e->kept;
    c->replayed += e->replayed;
    c->trimmed += e->rows - e->kept;
    c->steps++;
    c->forward_ns += ns;
    uint32_t in_prompt = e->pos + e->rows <= t->prompt ? e->rows : e->pos < t->prompt ? t->prompt - e->pos : 0;
    if (!in_prompt) return;
    c->prompt_rows += in_prompt;
    c->prompt_kept += prompt ? e->kept : in_prompt;
    c->prompt_ns += ns * in_prompt / e->rows;
}

/* tokens [rows]. */
static cedar_status step(audit_track *t, int32_t seq, const int32_t *tokens, uint32_t rows, audit_feed how,
                         cedar_err *err) {
    cedar_plan_entry entry;
    uint32_t pos = cedar_seq_pos(t->engine, seq);
    uint32_t wanted = how.logits || how.argmax ? how.last_only ? 1 : rows : 0;
    cedar_plan_rows(&t->rules, CEDAR_ROWS_PREFILL, pos, rows, cedar_seq_bounds(t->engine, seq),
                    cedar_seq_write_floor(t->engine, seq), !how.prompt, wanted, &entry);
    entry.seq = seq;
    entry.tokens = tokens;
    cedar_step_plan plan = { .cut = t->arm.cut, .entry_count = 1, .entries = &entry };
    cedar_plan_total(&plan);
    cedar_step_out out = { .logits = how.logits, .argmax = how.argmax };
    cedar_status st = audit_stop_check(t->stop, err);
    if (!st) st = cedar_seq_reserve(t->engine, seq, pos + rows, err);
    if (!st) st = cedar_engine_step(t->engine, &plan, &out, err);
    if (!st) count_step(t, &entry, how.prompt, out.duration_ns);
    return st;
}

cedar_status audit_track_feed_at(audit_track *t, const int32_t *tokens, uint32_t base, uint32_t end, audit_feed how,
                                 cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (uint32_t pos; !st && (pos = cedar_seq_pos(t->engine, t->seq)) < end;) {
        uint32_t rows = end - pos < t->chunk ? end - pos : t->chunk;
        bool stores = t->arm.hits == CEDAR_HITS_STORED || t->arm.hits == CEDAR_HITS_CONTINUE;
        if (stores && pos < t->next_hit && t->next_hit < pos + rows) rows = t->next_hit - pos;
        audit_feed now = how;
        if (how.last_only && pos + rows < end) now.logits = NULL, now.argmax = NULL;
        st = step(t, t->seq, tokens + (pos - base), rows, now, err);
        if (how.logits && !how.last_only) how.logits += (size_t)rows * (size_t)t->c->vocab;
        if (how.argmax && !how.last_only) how.argmax += rows;
        if (!st) st = store_windows(t, err);
    }
    return st;
}

cedar_status audit_track_feed(audit_track *t, const int32_t *tokens, uint32_t end, audit_feed how, cedar_err *err) {
    return audit_track_feed_at(t, tokens, 0, end, how, err);
}

cedar_status audit_track_fork(audit_track *t, int32_t *seq, cedar_err *err) {
    cedar_snap *snap;
    uint32_t count, pos = cedar_seq_pos(t->engine, t->seq);
    cedar_status st = cedar_snap_save(t->engine, t->seq, &snap, err);
    if (st) return st;
    st = cedar_seq_open(t->engine, seq, err);
    if (!st) {
        st = cedar_seq_restore(t->engine, *seq, cedar_seq_tokens(t->engine, t->seq),
                               cedar_seq_pages(t->engine, t->seq, &count), pos, snap, err);
        if (st) cedar_seq_close(t->engine, *seq);
    }
    cedar_snap_free(snap);
    return st;
}

/* --- faults ------------------------------------------------------------------------------------------------------- */

static uint32_t round_up(uint32_t x, uint32_t unit) { return (x + unit - 1) / unit * unit; }

/* Windows of another text at position `start`, in *out: its tokens are the document's, backwards. */
static cedar_status foreign_windows(audit_track *t, const int32_t *tokens, uint32_t start, cedar_snap **out,
                                    cedar_err *err) {
    uint32_t count, w = 2 * (uint32_t)t->c->window;
    const cedar_hit_plan plan = { .hit = start, .start = start > w ? start - w : 0, .write_floor = start };
    int32_t seq, other[512];
    cedar_status st = cedar_seq_open(t->engine, &seq, err);
    if (st) return st;
    st = cedar_seq_adopt(t->engine, seq, tokens, cedar_seq_pages(t->engine, t->seq, &count), &plan, err);
    for (uint32_t pos = plan.start; !st && pos < start;) {
        uint32_t rows = start - pos, most = t->chunk < 512 ? t->chunk : 512;
        if (rows > most) rows = most;
        for (uint32_t i = 0; i < rows; i++) other[i] = tokens[start - 1 - (pos + i - plan.start)];
        st = step(t, seq, other, rows, (audit_feed){ 0 }, err);
        pos += rows;
    }
    if (!st) st = cedar_snap_save(t->engine, seq, out, err);
    cedar_seq_close(t->engine, seq);
    return st;
}

static cedar_status adopt_unclipped(audit_track *t, int32_t seq, const int32_t *tokens, const int32_t *pages,
                                    const cedar_hit_plan *plan, cedar_err *err) {
    cedar_snap *snap;
    cedar_status st = foreign_windows(t, tokens, plan->start, &snap, err);
    if (st) return st;
    if (t->arm.fault == CEDAR_FAULT_ZERO) cedar_snap_damage_windows(t->engine, snap, CEDAR_SNAP_ZERO);
    st = cedar_seq_adopt_unclipped(t->engine, seq, tokens, pages, plan, snap, err);
    cedar_snap_free(snap);
    return st;
}

/* A cache in which row p holds token p - 1; replaces the arm's sequence. */
static cedar_status shift_cache(audit_track *t, const int32_t *tokens, uint32_t hit, cedar_err *err) {
    int32_t shifted[512];
    close_seq(t);
    cedar_status st = cedar_seq_open(t->engine, &t->seq, err);
    if (st) t->seq = -1;
    for (uint32_t pos = 0; !st && pos < hit;) {
        uint32_t rows = hit - pos, most = t->chunk < 512 ? t->chunk : 512;
        if (rows > most) rows = most;
        for (uint32_t i = 0; i < rows; i++) shifted[i] = tokens[pos + i ? pos + i - 1 : 0];
        st = step(t, t->seq, shifted, rows, (audit_feed){ 0 }, err);
        pos += rows;
    }
    return st;
}

/* --- hits --------------------------------------------------------------------------------------------------------- */

static cedar_status replay_hit(audit_track *t, const cedar_audit_turn *turn, int32_t seq, cedar_err *err) {
    cedar_replay_rules rules = t->rules;
    uint32_t count, open = turn->hit % (uint32_t)t->c->ratio_lcm;
    if (rules.encoder_rows < open) rules.encoder_rows = open;  /* a half-finished entry is not cached */
    cedar_hit_plan plan = cedar_plan_hit(&rules, turn->hit);
    const int32_t *pages = cedar_seq_pages(t->engine, t->seq, &count);
    bool unclipped = t->arm.fault == CEDAR_FAULT_STALE || t->arm.fault == CEDAR_FAULT_ZERO;
    t->start = plan.start;
    if (t->arm.fault == CEDAR_FAULT_FLOOR) plan.write_floor = round_up(plan.start, (uint32_t)t->c->ratio_lcm);
    if (unclipped && plan.start > 0) return adopt_unclipped(t, seq, turn->tokens, pages, &plan, err);
    return cedar_seq_adopt(t->engine, seq, turn->tokens, pages, &plan, err);
}

static cedar_status restore_hit(audit_track *t, const cedar_audit_turn *turn, int32_t seq, cedar_err *err) {
    uint32_t count;
    t->start = turn->hit;
    if (t->arm.fault == CEDAR_FAULT_COARSE) cedar_snap_damage_windows(t->engine, t->snap, CEDAR_SNAP_COARSE);
    return cedar_seq_restore(t->engine, seq, turn->tokens, cedar_seq_pages(t->engine, t->seq, &count), turn->hit,
                             t->snap, err);
}

/* A new sequence takes the place of the turn before; without windows to be had it starts from nothing. */
static cedar_status next_sequence(audit_track *t, const cedar_audit_turn *turn, cedar_err *err) {
    int32_t seq;
    bool replay = t->arm.hits == CEDAR_HITS_REPLAY && turn->hit > 0 && t->seq >= 0;
    bool restore = t->arm.hits != CEDAR_HITS_REPLAY && t->arm.hits != CEDAR_HITS_COLD && turn->hit > 0 && t->snap &&
                   cedar_snap_pos(t->snap) == turn->hit;
    cedar_status st = CEDAR_OK;
    if (replay && t->arm.fault == CEDAR_FAULT_SHIFT) st = shift_cache(t, turn->tokens, turn->hit, err);
    if (!replay && !restore) close_seq(t);
    if (!st) st = cedar_seq_open(t->engine, &seq, err);
    if (st) return st;
    t->start = 0;
    if (replay) st = replay_hit(t, turn, seq, err);
    else if (restore) st = restore_hit(t, turn, seq, err);
    close_seq(t);
    t->seq = seq;
    t->depth = replay || restore ? t->made : 0;
    t->made = t->depth + (replay ? 1 : 0);
    return st;
}

cedar_status audit_track_begin(audit_track *t, const cedar_audit_doc *doc, uint32_t k, cedar_err *err) {
    const cedar_audit_turn *turn = &doc->turns[k];
    t->cost = (audit_cost){ 0 };
    t->prompt = turn->prompt;
    t->next_hit = 0;            /* a fault's scratch steps store nothing */
    bool goes_on = t->arm.hits == CEDAR_HITS_CONTINUE && t->seq >= 0 && turn->hit > 0 &&
                   cedar_seq_pos(t->engine, t->seq) == turn->hit;
    cedar_status st = goes_on ? CEDAR_OK : next_sequence(t, turn, err);
    if (goes_on) t->start = turn->hit, t->depth = t->made;
    if (st) return st;
    t->cost.rows = t->cost.kept = t->cost.steps = 0;            /* nor do they count */
    t->cost.prompt_rows = t->cost.prompt_kept = t->cost.replayed = t->cost.trimmed = 0;
    t->next_hit = k + 1 < doc->turn_count ? doc->turns[k + 1].hit : 0;
    if (t->arm.hits == CEDAR_HITS_CONTINUE && t->next_hit == turn->end) t->next_hit = 0;
    if (t->snap && cedar_snap_pos(t->snap) != t->next_hit) drop_snap(t);
    return store_windows(t, err);
}
