/* The tables about fronts, single steps, ladders and claims that the text and the HTML report show. */
#include "reports/reports_int.h"

#define CLOCKED_ARM "arm_label || CASE clock WHEN 'modelled' THEN ' (modelled)' ELSE '' END"

static const reports_table tables[] = {
    { "frontier",
      "Points of the fronts",
      "One point per run. On front: no run of the same arm is as fast and gives as much. Total tok/s includes cached "
      "input.",
      "SELECT " CLOCKED_ARM ", run_id || ' ' || label, lanes, intvty_p90, total_tok_s, ttft_p50_ms, ttft_p90_ms,"
      " floor_tok_s_user, CASE on_front WHEN 1 THEN 'yes' ELSE 'no' END FROM v_frontier ORDER BY arm, intvty_p90, "
      "run_id",
      { { "arm", REPORTS_TEXT },
        { "run", REPORTS_TEXT },
        { "lanes", REPORTS_COUNT },
        { "intvty p90 tok/s/user", REPORTS_NUMBER },
        { "total tok/s", REPORTS_NUMBER },
        { "TTFT p50 ms", REPORTS_NUMBER },
        { "TTFT p90 ms", REPORTS_NUMBER },
        { "floor tok/s/user", REPORTS_NUMBER },
        { "on front", REPORTS_TEXT } } },
    { "frontier_at",
      "Throughput at the floor",
      "Read off the front by Steffen's monotone cubic, and by straight lines. No value: the floor lies outside the "
      "front, "
      "which is not extended. TTFT over the same points.",
      "SELECT " CLOCKED_ARM ", floor_tok_s_user, total_tok_s, total_tok_s_linear, ttft_p90_ms, points, knots, x_min, "
      "x_max"
      " FROM v_frontier_at ORDER BY arm",
      { { "arm", REPORTS_TEXT },
        { "floor tok/s/user", REPORTS_NUMBER },
        { "total tok/s", REPORTS_NUMBER },
        { "straight lines", REPORTS_NUMBER },
        { "TTFT p90 ms", REPORTS_NUMBER },
        { "runs", REPORTS_COUNT },
        { "on front", REPORTS_COUNT },
        { "from tok/s/user", REPORTS_NUMBER },
        { "to tok/s/user", REPORTS_NUMBER } } },
    { "step_rows",
      "Single steps",
      "Evenly spaced over each run, and the ten slowest of each; all of them where a run has no more. A heading sorts.",
      "WITH RECURSIVE k(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM k WHERE i + 1 < ?1), "
      "span AS (SELECT run_id, MIN(step_id) AS first, MAX(step_id) + 1 - MIN(step_id) AS wide FROM steps "
      "WHERE run_id IN page_runs GROUP BY run_id), "
      "slow AS (SELECT run_id, step_id, ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY duration_ns DESC, step_id) "
      "AS i FROM steps WHERE run_id IN page_runs), "
      "picked AS (SELECT run_id, (SELECT MIN(step_id) FROM steps s WHERE s.run_id = span.run_id AND s.step_id >= "
      "first + k.i * wide / ?1) AS step_id FROM span, k UNION SELECT run_id, step_id FROM slow WHERE i <= 10) "
      "SELECT u.run_id || ' ' || u.label, step_id, CASE WHEN prefill_rows = 0 THEN 'decode' WHEN decode_rows = 0 THEN "
      "'prefill' ELSE 'mixed' END, graph, start_ns / 1e9, duration_ns / 1e6, rows, prefill_rows - replayed_rows,"
      " replayed_rows, decode_rows, kept_rows, entries, s.waiting, s.engine, s.steps "
      "FROM picked JOIN steps s USING (run_id, step_id) JOIN runs u USING (run_id) ORDER BY run_id, step_id",
      { { "run", REPORTS_CHOICE },
        { "step", REPORTS_COUNT },
        { "kind", REPORTS_CHOICE },
        { "graph", REPORTS_CHOICE },
        { "start s", REPORTS_NUMBER },
        { "duration ms", REPORTS_NUMBER },
        { "rows", REPORTS_COUNT },
        { "new prefill rows", REPORTS_COUNT },
        { "replayed rows", REPORTS_COUNT },
        { "decode rows", REPORTS_COUNT },
        { "kept rows", REPORTS_COUNT },
        { "sequences", REPORTS_COUNT },
        { "waiting", REPORTS_COUNT },
        { "engine", REPORTS_COUNT },
        { "steps summed", REPORTS_COUNT } } },
    { "ladder",
      "Ladder",
      "One optimisation at a time, each on top of those above it. Factors are over the rung before: how many times "
      "less "
      "time, how many times more throughput.",
      "SELECT rung || ' ' || name, ttft_1k_ms, ttft_4k_ms, ttft_8k_ms, ttft_32k_ms, ttft_128k_ms, ttft_128k_factor, "
      "itl_ms,"
      " itl_factor, tok_s_gpu_at_floor, tok_s_gpu_factor, tok_s_gpu_factor_first, kv_tokens_max, kl_mean "
      "FROM v_ladder WHERE ladder_id = ?1 ORDER BY rung",
      { { "rung", REPORTS_TEXT },
        { "TTFT 1k ms", REPORTS_NUMBER },
        { "TTFT 4k ms", REPORTS_NUMBER },
        { "TTFT 8k ms", REPORTS_NUMBER },
        { "TTFT 32k ms", REPORTS_NUMBER },
        { "TTFT 128k ms", REPORTS_NUMBER },
        { "TTFT 128k factor", REPORTS_NUMBER },
        { "ITL ms", REPORTS_NUMBER },
        { "ITL factor", REPORTS_NUMBER },
        { "tok/s/GPU at floor", REPORTS_NUMBER },
        { "tok/s factor", REPORTS_NUMBER },
        { "tok/s since first", REPORTS_NUMBER },
        { "KV tokens that fit", REPORTS_COUNT },
        { "KL mean nats, measured", REPORTS_SMALL } } },
    { "ladder_rungs",
      "What each rung changes",
      "",
      "SELECT rung || ' ' || name, why, switches FROM ladder_rungs WHERE ladder_id = ?1 ORDER BY rung",
      { { "rung", REPORTS_TEXT }, { "why", REPORTS_TEXT }, { "options that change", REPORTS_TEXT } } },
    { "ladder_figures",
      "Every figure of a ladder",
      "Intervals where they are known; n: requests or repetitions behind a figure.",
      "SELECT rung || ' ' || name, metric, context_tokens, value, lo, hi, unit, n, factor, factor_first, note "
      "FROM v_ladder_figures WHERE ladder_id = ?1 ORDER BY rung, metric, context_tokens",
      { { "rung", REPORTS_CHOICE },
        { "metric", REPORTS_CHOICE },
        { "context tokens", REPORTS_COUNT },
        { "value", REPORTS_NUMBER },
        { "from", REPORTS_NUMBER },
        { "to", REPORTS_NUMBER },
        { "unit", REPORTS_TEXT },
        { "n", REPORTS_COUNT },
        { "factor", REPORTS_NUMBER },
        { "since first", REPORTS_NUMBER },
        { "note", REPORTS_TEXT } } },
    { "ladder_text",
      "Ladders",
      "Factors are over the rung before. A ladder is measured or modelled as a whole.",
      "SELECT rung || ' ' || name, provenance || ', ' || hardware, ttft_1k_ms, ttft_32k_ms, ttft_128k_ms, itl_ms,"
      " tok_s_gpu_at_floor, tok_s_gpu_factor, tok_s_gpu_factor_first, kl_mean FROM v_ladder ORDER BY ladder_id, rung",
      { { "rung", REPORTS_TEXT },
        { "ladder", REPORTS_TEXT },
        { "TTFT 1k ms", REPORTS_NUMBER },
        { "TTFT 32k ms", REPORTS_NUMBER },
        { "TTFT 128k ms", REPORTS_NUMBER },
        { "ITL ms", REPORTS_NUMBER },
        { "tok/s/GPU at floor", REPORTS_NUMBER },
        { "factor", REPORTS_NUMBER },
        { "since first", REPORTS_NUMBER },
        { "KL mean", REPORTS_SMALL } } },
    { "claims_summary",
      "Claims by verdict",
      "Ratio: ours over published.",
      "SELECT verdict, provenance, claims, ratio_least, ratio_most FROM v_claims_summary "
      "ORDER BY verdict = 'not tested', verdict, provenance",
      { { "verdict", REPORTS_TEXT },
        { "provenance", REPORTS_TEXT },
        { "claims", REPORTS_COUNT },
        { "ratio from", REPORTS_NUMBER },
        { "to", REPORTS_NUMBER } } },
    { "claims",
      "Every claim",
      "Every published figure, ours where there is one, and the rule of its verdict. Ratio: ours over published. Not "
      "tested "
      "says why not.",
      "SELECT claim_id, verdict, provenance, metric, condition, published, ours, lo, hi, unit, ratio, n, why, model, "
      "hardware,"
      " engine, source, date FROM v_claims ORDER BY verdict = 'not tested', claim_id",
      { { "claim", REPORTS_COUNT },
        { "verdict", REPORTS_CHOICE },
        { "provenance", REPORTS_CHOICE },
        { "metric", REPORTS_TEXT },
        { "condition", REPORTS_TEXT },
        { "published", REPORTS_NUMBER },
        { "ours", REPORTS_NUMBER },
        { "from", REPORTS_NUMBER },
        { "to", REPORTS_NUMBER },
        { "unit", REPORTS_TEXT },
        { "ratio", REPORTS_NUMBER },
        { "n", REPORTS_COUNT },
        { "why", REPORTS_TEXT },
        { "model", REPORTS_CHOICE },
        { "hardware", REPORTS_CHOICE },
        { "engine", REPORTS_TEXT },
        { "source", REPORTS_CHOICE },
        { "date", REPORTS_TEXT } } },
    { "claims_tested",
      "Claims tested",
      "Ours against published; the interval is ours.",
      "SELECT claim_id, metric, condition, published, ours, lo, hi, ratio, provenance, verdict FROM v_claims "
      "WHERE verdict <> 'not tested' ORDER BY claim_id",
      { { "claim", REPORTS_COUNT },
        { "metric", REPORTS_TEXT },
        { "condition", REPORTS_TEXT },
        { "published", REPORTS_NUMBER },
        { "ours", REPORTS_NUMBER },
        { "from", REPORTS_NUMBER },
        { "to", REPORTS_NUMBER },
        { "ratio", REPORTS_NUMBER },
        { "provenance", REPORTS_TEXT },
        { "verdict", REPORTS_TEXT } } },
    { "sensitivity",
      "What the figures hang on",
      "Our figure with one assumption at its low and at its high setting, all else equal. A heading sorts.",
      "SELECT claim_id, metric, condition, published, ours, assumption, setting_lo, setting_hi, ours_lo, ours_hi, "
      "swing "
      "FROM v_claim_sensitivity ORDER BY claim_id, assumption",
      { { "claim", REPORTS_COUNT },
        { "metric", REPORTS_CHOICE },
        { "condition", REPORTS_TEXT },
        { "published", REPORTS_NUMBER },
        { "ours", REPORTS_NUMBER },
        { "assumption", REPORTS_CHOICE },
        { "low setting", REPORTS_NUMBER },
        { "high setting", REPORTS_NUMBER },
        { "ours at low", REPORTS_NUMBER },
        { "ours at high", REPORTS_NUMBER },
        { "high / low", REPORTS_NUMBER } } },
    { "claim_points",
      "Point by point",
      "Published figures that differ in concurrency, or in the length of the prompt, alone; ours beside them. Series "
      "of "
      "which fewer than two are tested are in the ledger only.",
      "SELECT metric || ', ' || unit, series, source, hardware, axis, x, published, ours, lo, hi, ratio, provenance, "
      "verdict "
      "FROM v_claim_points WHERE tested > 1 ORDER BY source, hardware, metric, series, x, claim_id",
      { { "metric", REPORTS_CHOICE },
        { "condition", REPORTS_CHOICE },
        { "source", REPORTS_CHOICE },
        { "hardware", REPORTS_TEXT },
        { "along", REPORTS_TEXT },
        { "at", REPORTS_COUNT },
        { "published", REPORTS_NUMBER },
        { "ours", REPORTS_NUMBER },
        { "from", REPORTS_NUMBER },
        { "to", REPORTS_NUMBER },
        { "ratio", REPORTS_NUMBER },
        { "provenance", REPORTS_TEXT },
        { "verdict", REPORTS_TEXT } } },
    { "claim_sources",
      "Sources of the claims",
      "",
      "SELECT source, MIN(date), COUNT(*), url FROM v_claims GROUP BY source, url ORDER BY source, url",
      { { "source", REPORTS_TEXT }, { "date", REPORTS_TEXT }, { "claims", REPORTS_COUNT }, { "address", REPORTS_LINK }
          } },
    { "paired",
      "Paired comparisons",
      "Requests that both sides have in common. b/a: mean of b over mean of a, with its 95 % interval over sessions; "
      "less "
      "than 1, b is faster. Left out: requests of either side without a partner.",
      "SELECT printf('%s (%s) to %s (%s)', b_label, b_runs, a_label, a_runs), metric, pairs, sessions, left_out, "
      "mean_a, mean_b, ratio, ratio_lo, ratio_hi, verdict FROM v_paired ORDER BY paired_id",
      { { "b to a", REPORTS_TEXT },
        { "metric", REPORTS_TEXT },
        { "pairs", REPORTS_COUNT },
        { "sessions", REPORTS_COUNT },
        { "left out", REPORTS_COUNT },
        { "mean a", REPORTS_NUMBER },
        { "mean b", REPORTS_NUMBER },
        { "b/a", REPORTS_NUMBER },
        { "from", REPORTS_NUMBER },
        { "to", REPORTS_NUMBER },
        { "interval", REPORTS_TEXT } } }
};

const reports_table *reports_claim_tables(size_t *count) {
    *count = sizeof tables / sizeof *tables;
    return tables;
}
