/* Where the rows of audits go: tables and columns of every kind. */
#include <stddef.h>

#include "reports/reports_int.h"

#define B(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_begin_row, member) }
static const reports_field begin_columns[] = {
    B(audit_id, I64), B(label, TEXT), B(config_json, TEXT), B(model_name, TEXT), B(model_hash, TEXT),
    B(model_origin, TEXT), B(documents, TEXT), B(backend, TEXT), B(arith, TEXT), B(seed, SEED), B(docs, U32),
    B(turns, U32), B(vocab, U32), B(window, U32), B(layers, U32), B(cut, U32), B(halo_encoder, U32),
    B(halo_decoder, U32), B(kv_token_bytes_x1000, U64), B(window_snap_bytes, U64), B(resamples, U32),
    B(margin_kl, REAL), B(margin_dlogp, REAL), B(margin_top1, REAL)
};

#define A(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_arm_row, member) }
static const reports_field arm_columns[] = { A(audit_id, I64), A(arm_id, I64), A(label, TEXT), A(control, TEXT),
                                             A(what, TEXT), A(decoder, BOOL), A(encoder, BOOL), A(cut, TEXT),
                                             A(hits, TEXT), A(fault, TEXT), A(rows, U32), A(keep, U32), A(chunk, U32) };

#define F(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_front_row, member) }
static const reports_field front_columns[] = { F(audit_id, I64), F(arm_id, I64), F(layer, I32), F(from_offset, I32),
                                               F(holds, BOOL) };

#define T(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_turn_row, member) }
static const reports_field turn_columns[] = {
    T(audit_id, I64), T(arm_id, I64), T(doc, U32), T(turn, U32), T(doc_name, TEXT), T(hit, U32), T(start, U32),
    T(prompt_end, U32), T(end, U32), T(replayed, U32), T(trimmed, U32), T(rows, U32), T(kept, U32),
    T(prompt_rows, U32), T(prompt_kept, U32), T(steps, U32), T(provenance_depth, U32), T(adopted_changed, U32),
    T(window_bytes, U64), T(prompt_ns, I64), T(forward_ns, I64)
};

#define P(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_position_row, member) }
static const reports_field position_columns[] = {
    P(audit_id, I64), P(arm_id, I64), P(doc, U32), P(turn, U32), P(pos, U32), P(offset, I32), P(token, I32),
    P(kl_pq, REAL), P(kl_qp, REAL), P(js, REAL), P(logp_p, REAL), P(logp_q, REAL), P(top1_prob_p, REAL),
    P(margin_p, REAL), P(ratio_max, REAL), P(top5_jaccard, REAL), P(top1_p, I32), P(top1_q, I32), P(top1_same, BOOL)
};

#define L(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_layer_row, member) }
static const reports_field layer_columns[] = {
    L(audit_id, I64), L(arm_id, I64), L(doc, U32), L(turn, U32), L(pos, U32), L(offset, I32), L(layer, I32),
    L(stream_rel, REAL), L(vector_rel, REAL), L(cosine, REAL), L(window_differ, OPTIONAL), L(topk_jaccard, OPTIONAL),
    L(router_flip, BOOL), L(engram_differs, BOOL)
};

#define G(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_global_row, member) }
static const reports_field global_columns[] = { G(audit_id, I64), G(arm_id, I64), G(doc, U32), G(turn, U32),
                                                G(layer, I32), G(entry, U32), G(pos, U32), G(offset, I32),
                                                G(kv_differ, REAL), G(index_differ, REAL), G(latent_rel, OPTIONAL) };

#define Y(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_greedy_row, member) }
static const reports_field greedy_columns[] = { Y(audit_id, I64), Y(arm_id, I64), Y(doc, U32), Y(turn, U32),
                                                Y(tokens, U32), Y(diverged_at, I32), Y(margin_p, OPTIONAL),
                                                Y(tie, BOOL) };

#define D(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_draft_row, member) }
static const reports_field draft_columns[] = { D(audit_id, I64), D(arm_id, I64), D(doc, U32), D(turn, U32),
                                               D(generated, U32), D(drafted, U32), D(accepted, U32) };

#define N(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_needle_row, member) }
static const reports_field needle_columns[] = { N(audit_id, I64), N(arm_id, I64), N(doc, U32), N(turn, U32),
                                                N(needle, U32), N(pos, U32), N(tokens, U32), N(place, TEXT),
                                                N(logp_p, REAL), N(logp_q, REAL), N(exact_p, BOOL), N(exact_q, BOOL) };

#define S(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_stat_row, member) }
static const reports_field stat_columns[] = {
    S(audit_id, I64), S(arm_id, I64), S(metric, TEXT), S(bin, I32), S(docs, U64), S(positions, U64),
    S(value, OPTIONAL), S(lo, OPTIONAL), S(hi, OPTIONAL), S(p, OPTIONAL), S(p_holm, OPTIONAL), S(margin, OPTIONAL),
    S(p_equivalent, OPTIONAL), S(p_equivalent_holm, OPTIONAL), S(verdict, TEXT)
};

/* The keys come last: they are the WHERE of an update. */
#define E(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_arm_end_row, member) }
static const reports_field arm_end_columns[] = {
    E(positions, U64), E(rows_fed, U64), E(kept, U64), E(prompt_rows, U64), E(prompt_kept, U64), E(replayed, U64),
    E(steps, U64), E(adopted_changed, U64), E(global_rows, U64), E(global_differ, U64), E(window_bytes, U64),
    E(greedy_mean, OPTIONAL), E(prompt_ns, I64), E(forward_ns, I64), E(audit_id, I64), E(arm_id, I64)
};

#define X(member, kind) { #member, COLUMN_##kind, offsetof(cedar_audit_end_row, member) }
static const reports_field end_columns[] = { X(status, TEXT), X(error, TEXT), X(result_hash, HASH), X(positions, U64),
                                             X(exact_ns, I64), X(forward_ns, I64), X(score_ns, I64), X(wall_ns, I64),
                                             X(audit_id, I64) };

#define COUNT(columns) columns, sizeof columns / sizeof *columns

const reports_row_kind *reports_audit_kind(cedar_audit_kind kind) {
    static const reports_row_kind kinds[CEDAR_AUDIT_KIND_COUNT] = {
        [CEDAR_AUDIT_BEGIN] = { "audits", COUNT(begin_columns), .commit = true },
        [CEDAR_AUDIT_ARM] = { "audit_arms", COUNT(arm_columns), .commit = false },
        [CEDAR_AUDIT_FRONT] = { "audit_fronts", COUNT(front_columns), .commit = false },
        [CEDAR_AUDIT_TURN] = { "audit_turns", COUNT(turn_columns), .commit = false },
        [CEDAR_AUDIT_POSITION] = { "audit_positions", COUNT(position_columns), .commit = false },
        [CEDAR_AUDIT_LAYER] = { "audit_layers", COUNT(layer_columns), .commit = false },
        [CEDAR_AUDIT_GLOBAL] = { "audit_globals", COUNT(global_columns), .commit = false },
        [CEDAR_AUDIT_GREEDY] = { "audit_greedy", COUNT(greedy_columns), .commit = false },
        [CEDAR_AUDIT_DRAFT] = { "audit_drafts", COUNT(draft_columns), .commit = false },
        [CEDAR_AUDIT_NEEDLE] = { "audit_needles", COUNT(needle_columns), .commit = false },
        [CEDAR_AUDIT_STAT] = { "audit_stats", COUNT(stat_columns), .commit = false },
        [CEDAR_AUDIT_ARM_END] = { "audit_arms", COUNT(arm_end_columns), .keys = 2 },
        [CEDAR_AUDIT_END] = { "audits", COUNT(end_columns), .commit = true, .keys = 1 }
    };
    return &kinds[kind];
}
