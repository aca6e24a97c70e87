/* The JSON block of the HTML report: what the charts are drawn from. */
#include "reports/html_int.h"

/* --- data for the charts ------------------------------------------------------------------------------------------ */

/* Values of a run in rank order with the share of requests at or below each; few enough of them. */
#define CURVE(column) \
    "SELECT run_id, v, i * 1.0 / n FROM (SELECT run_id, " column " / 1e6 AS v, " \
    "ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY " column ") AS i, COUNT(*) OVER (PARTITION BY run_id) AS n " \
    "FROM v_request_times WHERE " column " IS NOT NULL AND run_id IN page_runs) " \
    "WHERE n <= ?1 OR i = 1 OR i = n OR i * ?1 / n <> (i - 1) * ?1 / n ORDER BY run_id, i"

/* Every query yields the rows of one array of arrays; ?1 is its limit. */
static const struct {
    const char *name;
    int limit;
    bool shared;                /* the limit shrinks with the number of runs */
    const char *sql;
} datasets[] = {
    { "runs", 0, false, "SELECT run_id, label, arm - 1, arm_label, ROW_NUMBER() OVER (PARTITION BY arm "
      "ORDER BY run_id) - 1 FROM runs JOIN v_arms USING (run_id) ORDER BY run_id" },
    { "ttft", PAGE_CURVE_POINTS, true, CURVE("ttft_ns") },
    { "itl", PAGE_CURVE_POINTS, true, CURVE("itl_ns") },
    { "e2e", PAGE_CURVE_POINTS, true, CURVE("e2el_ns") },
    { "frontier", PAGE_ARMS, false,
      "SELECT arm - 1, run_id, intvty_p90, total_tok_s, ttft_p90_ms, lanes, on_front, clock FROM v_frontier "
      "WHERE arm IN (SELECT arm FROM v_frontier GROUP BY arm ORDER BY COUNT(DISTINCT lanes) > 1 DESC, arm LIMIT ?1) "
      "ORDER BY arm, intvty_p90, run_id" },
    { "frontier_at", PAGE_ARMS, false,
      "SELECT arm - 1, floor_tok_s_user, total_tok_s, total_tok_s_linear, ttft_p90_ms FROM v_frontier_at "
      "WHERE arm IN (SELECT arm FROM v_frontier GROUP BY arm ORDER BY COUNT(DISTINCT lanes) > 1 DESC, arm LIMIT ?1) "
      "ORDER BY arm" },
    { "ladders", 0, false, "SELECT ladder_id, title, provenance FROM ladders ORDER BY ladder_id" },
    { "figures", 0, false,
      "SELECT ladder_id, rung, name, metric, context_tokens, value, lo, hi, unit, factor FROM v_ladder_figures "
      "ORDER BY ladder_id, rung, metric, context_tokens" },
    { "claims", PAGE_CLAIMS, false,
      "SELECT claim_id, metric, condition, ratio, lo / NULLIF(published, 0), hi / NULLIF(published, 0), provenance, "
      "verdict, published, ours, unit FROM v_claims WHERE ratio > 0 AND claim_id NOT IN (SELECT claim_id FROM "
      "v_claim_points WHERE tested > 1) ORDER BY claim_id LIMIT ?1" },
    { "sensitivity", 0, false,
      "SELECT assumption, setting_lo, setting_hi, ours_lo, ours_hi, published, ours, unit FROM v_claim_sensitivity "
      "WHERE claim_id = (SELECT MIN(claim_id) FROM claims WHERE metric = 'throughput_ratio_at_interactivity') "
      "ORDER BY ABS(ours_hi - ours_lo) DESC, assumption" },
    { "claim_points", 0, false,
      "SELECT source, hardware, metric, series, unit, axis, x, published, ours, lo, hi, provenance FROM v_claim_points "
      "WHERE tested > 1 ORDER BY source, hardware, metric, series, x, claim_id" },
    { "timeline", PAGE_TIMELINE, true,
      "SELECT run_id, lane, stream, turn, arrival_ns / 1e9, admit_ns / 1e9, first_ns / 1e9, last_ns / 1e9, trace_id,"
      " in_tokens, out_tokens, hit_tokens, replayed_tokens, error, phase FROM (SELECT *, "
      "ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY arrival_ns, request_id) AS i FROM requests "
      "WHERE run_id IN page_runs) "
      "WHERE i <= ?1 ORDER BY run_id, i" },
    { "steps", PAGE_TIME_BINS, false,
      "WITH span AS (SELECT run_id, MIN(start_ns) AS t0, MAX(end_ns) - MIN(start_ns) + 1 AS ns "
      "FROM steps WHERE run_id IN page_runs GROUP BY run_id) "
      "SELECT run_id, (start_ns - t0) * ?1 / ns AS bin, (t0 + ns * 1.0 * ((start_ns - t0) * ?1 / ns) / ?1) / 1e9,"
      " SUM(prefill_rows - replayed_rows) * (?1 * 1e9 / ns), SUM(replayed_rows) * (?1 * 1e9 / ns),"
      " SUM(decode_rows) * (?1 * 1e9 / ns), SUM(kept_rows) * (?1 * 1e9 / ns), MAX(kv_bytes_used),"
      " MAX(window_bytes_stored) FROM steps JOIN span USING (run_id) GROUP BY run_id, bin ORDER BY run_id, bin" },
    { "offset", 0, false,
      "SELECT run_id, bin, bin_label, kl_mean, kl_p99, top1_rate, positions FROM v_quality_offset "
      "ORDER BY run_id, bin" },
    { "turn", 0, false,
      "SELECT run_id, turn, kl_mean, top1_rate, positions FROM v_quality_turn ORDER BY run_id, turn" },
    { "histogram", 0, false,
      "SELECT run_id, bucket, label, positions, "
      "CAST(positions AS REAL) / SUM(positions) OVER (PARTITION BY run_id) FROM v_kl_histogram "
      "ORDER BY run_id, bucket" },
    { "audits", 0, false, "SELECT audit_id, label, \"window\", halo_encoder, halo_decoder, model_name FROM audits "
      "ORDER BY audit_id" },
    { "arms", 0, false, "SELECT audit_id, arm_id, label, control FROM audit_arms ORDER BY audit_id, arm_id" },
    { "fronts", 0, false, "SELECT audit_id, arm_id, layer, from_offset, holds FROM audit_fronts "
      "ORDER BY audit_id, arm_id, layer" },
    { "profile", PAGE_PROFILE, false,
      "SELECT audit_id, arm_id, MIN(\"offset\"), MAX(\"offset\"), SUM(kl_mean * positions) / SUM(positions), "
      "MAX(kl_max), SUM(positions) FROM (SELECT *, MAX(1, (MAX(\"offset\") OVER (PARTITION BY audit_id, arm_id) + ?1) "
      "/ ?1) AS wide FROM v_audit_profile) GROUP BY audit_id, arm_id, \"offset\" / wide "
      "ORDER BY audit_id, arm_id, 3" },
    { "audit_turn", 0, false, "SELECT audit_id, arm_id, turn, kl_mean, positions FROM v_audit_turn "
      "ORDER BY audit_id, arm_id, turn" },
    { "length", 0, false, "SELECT audit_id, arm_id, rows, kl_mean, lo, hi FROM v_audit_length "
      "ORDER BY audit_id, rows, arm_id" },
    { "map", 0, false, "SELECT audit_id, arm_id, layer, stretch, pos_lo, pos_hi, kv_differ, rows_new FROM v_audit_map "
      "ORDER BY audit_id, arm_id, layer, stretch" },
    { "saves", 0, false, "SELECT audit_id, arm_id, prompt_work, window_bytes, kv_bytes, prompt_s, kl_mean "
      "FROM v_audit_cost ORDER BY audit_id, arm_id" },
    { "cache", PAGE_BARS, false,
      "SELECT run_id, hit_rate, hit_rate_theory, kv_bytes_peak, window_bytes_peak "
      "FROM v_cache JOIN v_memory USING (run_id) ORDER BY run_id LIMIT ?1" }
};

static cedar_status put_dataset(const page *p, const char *sql, int limit, cedar_err *err) {
    sqlite3_stmt *q;
    bool row, first = true;
    cedar_status st = reports_prepare(p->db, p->path, sql, &q, err);
    if (!st && sqlite3_bind_parameter_count(q)) sqlite3_bind_int(q, 1, limit);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        fputs(first ? "\n[" : ",\n[", p->to);
        first = false;
        for (int i = 0; i < sqlite3_column_count(q); i++) {
            if (i) fputc(',', p->to);
            page_json_value(p->to, q, i);
        }
        fputc(']', p->to);
    }
    sqlite3_finalize(q);
    return st;
}

cedar_status page_data(const page *p, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    fprintf(p->to, "<script type=\"application/json\" id=\"data\">{\"bins\":%d", PAGE_TIME_BINS);
    for (size_t i = 0; i < sizeof datasets / sizeof *datasets && !st; i++) {
        fprintf(p->to, ",\n\"%s\":[", datasets[i].name);
        int limit = datasets[i].shared ? page_shared(p, datasets[i].limit) : datasets[i].limit;
        st = put_dataset(p, datasets[i].sql, limit, err);
        fputc(']', p->to);
    }
    fputs("}</script>\n", p->to);
    return st;
}
