/* The tables about audits that the text and the HTML report show. */
#include "reports/reports_int.h"

/* Arms by number and label; the audit's number where there are several. */
#define ARM_NAME "printf('%s%d %s', CASE (SELECT COUNT(*) FROM audits) WHEN 1 THEN '' ELSE a.audit_id || '.' END, " \
                 "a.arm_id, a.label)"
#define ARM_JOIN " JOIN audit_arms a USING (audit_id, arm_id) "

static const reports_table tables[] = {
    { "audit",
      "Audit: arms against controls",
      "Each arm (Q) against exact recomputation (P) of the same tokens, nats over the full vocabulary. The "
      "interval is a 95 % bootstrap over documents. Controls: C0, C1 exact again and in another shape, C2 replay "
      "over the whole halo (all three must be 0), C3 other replay lengths, C4 deliberate faults (must be "
      "seen), C5 yardsticks. Verdict on the mean KL: zero, equivalent (within the margin given beforehand, by "
      "interval and by TOST at 5 %), different (the interval lies above the margin), else undecided.",
      "SELECT " ARM_NAME ", CASE a.control WHEN '' THEN 'arm' ELSE a.control END, v.docs, v.positions, v.kl_mean,"
      " v.kl_lo, v.kl_hi, v.kl_p50, v.kl_p99, v.kl_p999, v.kl_max, v.top1_rate, v.decisive_n, v.decisive_rate,"
      " v.top5_jaccard, v.dlogp_mean, v.ppl_delta, v.verdict "
      "FROM v_audit v" ARM_JOIN "ORDER BY a.audit_id, a.arm_id",
      { { "arm", REPORTS_TEXT },
        { "control", REPORTS_TEXT },
        { "docs", REPORTS_COUNT },
        { "positions", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL },
        { "from", REPORTS_SMALL },
        { "to", REPORTS_SMALL },
        { "KL p50", REPORTS_SMALL },
        { "KL p99", REPORTS_SMALL },
        { "KL p99.9", REPORTS_SMALL },
        { "KL max", REPORTS_SMALL },
        { "top-1 agree", REPORTS_SHARE },
        { "decisive n", REPORTS_COUNT },
        { "decisive agree", REPORTS_SHARE },
        { "top-5 Jaccard", REPORTS_NUMBER },
        { "dlogp nats/tok", REPORTS_SIGNED },
        { "ppl delta", REPORTS_SIGNED },
        { "verdict", REPORTS_TEXT } } },
    { "audit_setup",
      "Audit: what was compared",
      "",
      "SELECT printf('%d %s', audit_id, label), status, model_name, model_origin, backend, arith, documents, docs,"
      " turns, positions, resamples, margin_kl, margin_dlogp, margin_top1, COALESCE(result_hash, '') FROM audits "
      "ORDER BY audit_id",
      { { "audit", REPORTS_TEXT },
        { "status", REPORTS_TEXT },
        { "model", REPORTS_TEXT },
        { "origin", REPORTS_TEXT },
        { "backend", REPORTS_TEXT },
        { "arith", REPORTS_TEXT },
        { "documents", REPORTS_TEXT },
        { "docs", REPORTS_COUNT },
        { "turns", REPORTS_COUNT },
        { "positions", REPORTS_COUNT },
        { "resamples", REPORTS_COUNT },
        { "margin KL", REPORTS_SMALL },
        { "margin dlogp", REPORTS_SMALL },
        { "margin top-1", REPORTS_SMALL },
        { "result hash", REPORTS_TEXT } } },
    { "audit_stats",
      "Audit: tests",
      "By document. kl: mean KL, tested against the margin only, since it cannot be negative. dlogp: log Q - log P "
      "of the forced token. top1, decisive: share of positions with another most likely token, of all and of those "
      "where P leads by more than 0.1; Wilson intervals, which count positions as independent. p: of no "
      "difference. p equiv.: of a difference as large as the margin. Both are adjusted over the bins by Holm's "
      "method. fault: a deliberate fault's mean KL less that of the same replay without the fault, document by "
      "document.",
      "SELECT " ARM_NAME ", s.metric, COALESCE(b.label, 'all'), s.docs, s.positions, s.value, s.lo, s.hi, s.p_holm,"
      " s.margin, s.p_equivalent_holm, s.verdict FROM audit_stats s" ARM_JOIN
      "LEFT JOIN offset_bins b ON b.bin = s.bin ORDER BY a.audit_id, a.arm_id, s.metric, s.bin",
      { { "arm", REPORTS_TEXT },
        { "metric", REPORTS_TEXT },
        { "offset", REPORTS_TEXT },
        { "docs", REPORTS_COUNT },
        { "n", REPORTS_COUNT },
        { "value", REPORTS_SIGNED },
        { "from", REPORTS_SIGNED },
        { "to", REPORTS_SIGNED },
        { "p", REPORTS_SMALL },
        { "margin", REPORTS_SMALL },
        { "p equiv.", REPORTS_SMALL },
        { "verdict", REPORTS_TEXT } } },
    { "audit_offset",
      "Audit: by offset",
      "Offset: position minus the hit's end H; with decoder replay alone, and without a hit, minus the prompt's last "
      "position T - 1.",
      "SELECT " ARM_NAME ", bin_label, o.docs, o.positions, kl_mean, kl_p50, kl_p99, kl_max, top1_rate, decisive_rate,"
      " dlogp_mean FROM v_audit_offset o" ARM_JOIN "ORDER BY a.audit_id, a.arm_id, bin",
      { { "arm", REPORTS_TEXT },
        { "offset", REPORTS_TEXT },
        { "docs", REPORTS_COUNT },
        { "positions", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL },
        { "KL p50", REPORTS_SMALL },
        { "KL p99", REPORTS_SMALL },
        { "KL max", REPORTS_SMALL },
        { "top-1 agree", REPORTS_SHARE },
        { "decisive agree", REPORTS_SHARE },
        { "dlogp nats/tok", REPORTS_SIGNED } } },
    { "audit_fronts",
      "Audit: theoretical fronts",
      "Offset from which the dependency recursion promises an exact output of the layer. \"may return\": global rows "
      "that were computed from inexact positions can be selected later, so the error has no fixed reach.",
      "SELECT " ARM_NAME ", f.layer, f.from_offset, CASE f.holds WHEN 1 THEN 'exact from there' ELSE 'may return' END "
      "FROM audit_fronts f" ARM_JOIN "ORDER BY a.audit_id, a.arm_id, f.layer",
      { { "arm", REPORTS_TEXT },
        { "layer", REPORTS_COUNT },
        { "from offset", REPORTS_COUNT },
        { "promise", REPORTS_TEXT } } },
    { "audit_turn",
      "Audit: by turn",
      "Does the error build up over the turns of a document?",
      "SELECT " ARM_NAME ", turn, t.docs, t.positions, kl_mean, kl_max, top1_rate, dlogp_mean FROM v_audit_turn t"
      ARM_JOIN "ORDER BY a.audit_id, a.arm_id, turn",
      { { "arm", REPORTS_TEXT },
        { "turn", REPORTS_COUNT },
        { "docs", REPORTS_COUNT },
        { "positions", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL },
        { "KL max", REPORTS_SMALL },
        { "top-1 agree", REPORTS_SHARE },
        { "dlogp nats/tok", REPORTS_SIGNED } } },
    { "audit_depth",
      "Audit: by provenance",
      "Depth: earlier replays that went into the adopted rows; the turn's own does not count.",
      "SELECT " ARM_NAME ", provenance_depth, d.docs, d.positions, kl_mean, kl_max, top1_rate FROM v_audit_depth d"
      ARM_JOIN "ORDER BY a.audit_id, a.arm_id, provenance_depth",
      { { "arm", REPORTS_TEXT },
        { "depth", REPORTS_COUNT },
        { "docs", REPORTS_COUNT },
        { "positions", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL },
        { "KL max", REPORTS_SMALL },
        { "top-1 agree", REPORTS_SHARE } } },
    { "audit_length",
      "Audit: by replay length",
      "Encoder replay of R rows; from the halo on it must be exact.",
      "SELECT " ARM_NAME ", l.rows, window, halo_encoder, l.docs, l.positions, kl_mean, lo, hi FROM v_audit_length l"
      ARM_JOIN "ORDER BY a.audit_id, l.rows, a.arm_id",
      { { "arm", REPORTS_TEXT },
        { "R", REPORTS_COUNT },
        { "window", REPORTS_COUNT },
        { "halo", REPORTS_COUNT },
        { "docs", REPORTS_COUNT },
        { "positions", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL },
        { "from", REPORTS_SMALL },
        { "to", REPORTS_SMALL } } },
    { "audit_globals",
      "Audit: contamination of new global rows",
      "Rows that a turn adds to the cache, by source layer and offset: how many differ from exact ones, share of "
      "bytes that differ, relative error before quantisation (where layers were looked into).",
      "SELECT " ARM_NAME ", g.layer, bin_label, rows_new, rows_differ, kv_differ, index_differ, latent_rel "
      "FROM v_audit_globals g" ARM_JOIN "ORDER BY a.audit_id, a.arm_id, g.layer, bin",
      { { "arm", REPORTS_TEXT },
        { "source", REPORTS_COUNT },
        { "offset", REPORTS_TEXT },
        { "rows", REPORTS_COUNT },
        { "differ", REPORTS_COUNT },
        { "KV bytes", REPORTS_SHARE },
        { "index bytes", REPORTS_SHARE },
        { "latent error", REPORTS_SMALL } } },
    { "audit_layers",
      "Audit: inside the layers",
      "Relative L2 error of the streams behind a layer and of the vector they collapse to; window bytes that differ; "
      "overlap of the selected global rows; rows that go to other experts. Engram rows must never differ.",
      "SELECT " ARM_NAME ", l.layer, bin_label, l.positions, stream_rel, stream_rel_max, vector_rel, cosine,"
      " window_differ, topk_jaccard, router_flips, engram_differs FROM v_audit_layers l" ARM_JOIN
      "ORDER BY a.audit_id, a.arm_id, l.layer, bin",
      { { "arm", REPORTS_TEXT },
        { "layer", REPORTS_COUNT },
        { "offset", REPORTS_TEXT },
        { "positions", REPORTS_COUNT },
        { "streams", REPORTS_SMALL },
        { "largest", REPORTS_SMALL },
        { "vector", REPORTS_SMALL },
        { "cosine", REPORTS_NUMBER },
        { "window bytes", REPORTS_SHARE },
        { "top-k Jaccard", REPORTS_NUMBER },
        { "router flips", REPORTS_SHARE },
        { "Engram", REPORTS_COUNT } } },
    { "audit_greedy",
      "Audit: greedy decode",
      "Tokens until greedy decode leaves the exact arm's, censored at the length followed; mean: restricted mean of "
      "the Kaplan-Meier curve. Ties: it left where P's lead was within the noise margin.",
      "SELECT " ARM_NAME ", continuations, tokens, censored, ties, first_at, agree_mean, margin_mean "
      "FROM v_audit_greedy g" ARM_JOIN "ORDER BY a.audit_id, a.arm_id",
      { { "arm", REPORTS_TEXT },
        { "continuations", REPORTS_COUNT },
        { "tokens", REPORTS_COUNT },
        { "never left", REPORTS_COUNT },
        { "ties", REPORTS_COUNT },
        { "first at", REPORTS_COUNT },
        { "mean", REPORTS_NUMBER },
        { "P's lead there", REPORTS_SMALL } } },
    { "audit_drafts",
      "Audit: DSpark acceptance",
      "Drafts from the arm's state against the exact arm's greedy tokens, by generated tokens: the first window, "
      "up to the decoder halo, the rest.",
      "SELECT CASE d.arm_id WHEN 0 THEN 'exact' ELSE " ARM_NAME " END, printf('%d-%d', generated_lo, generated_hi),"
      " cycles, drafted, accepted, tokens_per_cycle, acceptance FROM v_audit_drafts d LEFT" ARM_JOIN
      "ORDER BY d.audit_id, d.arm_id, part",
      { { "arm", REPORTS_TEXT },
        { "generated", REPORTS_TEXT },
        { "cycles", REPORTS_COUNT },
        { "drafted", REPORTS_COUNT },
        { "accepted", REPORTS_COUNT },
        { "tokens/cycle", REPORTS_NUMBER },
        { "acceptance", REPORTS_SHARE } } },
    { "audit_needles",
      "Audit: retrieval",
      "A fact in the cached prompt, asked for at its end; log probability of the forced answer per token, and answers "
      "that only one arm gets right. Places: replayed [S, H), window [S-W, S), near [S-3W, S-W), far below.",
      "SELECT " ARM_NAME ", place, n.docs, needles, dlogp_token, exact_p, exact_q, lost, won FROM v_audit_needles n"
      ARM_JOIN "ORDER BY a.audit_id, a.arm_id, place = 'far', place = 'near', place = 'window', place = 'replayed'",
      { { "arm", REPORTS_TEXT },
        { "place", REPORTS_TEXT },
        { "docs", REPORTS_COUNT },
        { "needles", REPORTS_COUNT },
        { "dlogp nats/tok", REPORTS_SIGNED },
        { "P right", REPORTS_COUNT },
        { "Q right", REPORTS_COUNT },
        { "lost", REPORTS_COUNT },
        { "won", REPORTS_COUNT } } },
    { "audit_cost",
      "Audit: what it saves",
      "Prompt rows fed and rows that ran behind the cut; work: layers run on prompt rows, over all layers on all "
      "prompt tokens of every turn (1 = no prefix cache). Windows: bytes stored for hits over all turns, which "
      "encoder replay does without, next to the global KV the turns added. Seconds are those of this machine and "
      "model.",
      "SELECT " ARM_NAME ", c.prompt_rows, c.prompt_kept, c.replayed, prompt_work, c.window_bytes, c.kv_bytes,"
      " prompt_s, forward_s, c.adopted_changed, c.global_differ, kl_mean FROM v_audit_cost c" ARM_JOIN
      "ORDER BY a.audit_id, a.arm_id",
      { { "arm", REPORTS_TEXT },
        { "prompt rows", REPORTS_COUNT },
        { "behind the cut", REPORTS_COUNT },
        { "replayed", REPORTS_COUNT },
        { "work", REPORTS_SHARE },
        { "windows stored", REPORTS_BYTES },
        { "KV added", REPORTS_BYTES },
        { "prompt s", REPORTS_NUMBER },
        { "all s", REPORTS_NUMBER },
        { "cached rows changed", REPORTS_COUNT },
        { "new rows differ", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL } } }
};

const reports_table *reports_audit_tables(size_t *count) {
    *count = sizeof tables / sizeof *tables;
    return tables;
}
