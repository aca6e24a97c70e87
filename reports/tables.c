/* The tables that the text and the HTML report show: query, headings, number formats. Numbers come from the views. */
#include <math.h>
#include <string.h>

#include "reports/reports_int.h"

#define RUN_NAME "printf('%d %s', run_id, label)"

/* The same where measured and modelled figures stand in one column. */
#define CLOCKED_RUN_NAME RUN_NAME " || CASE clock WHEN 'modelled' THEN ' (modelled)' ELSE '' END"

static const reports_table tables[] = {
    { "summary",
      "Summary",
      "Latencies over kept requests (profiling phase, no error). Interactivity p90 is 1 / p90(ITL), the slow tail. "
      "Total "
      "tok/s includes cached input. Quality compares each arm with exact recomputation on the same tokens.",
      "SELECT " CLOCKED_RUN_NAME
      ", replay, requests, ttft_p50_ms, ttft_p90_ms, itl_p50_ms, itl_p90_ms, intvty_p90, total_tok_s,"
      " output_tok_s, hit_rate, kv_bytes_peak, window_bytes_peak, kl_mean, kl_p99, top1_rate, dlogp_mean "
      "FROM v_summary ORDER BY run_id",
      { { "run", REPORTS_TEXT },
        { "replay", REPORTS_TEXT },
        { "requests", REPORTS_COUNT },
        { "TTFT p50 ms", REPORTS_NUMBER },
        { "TTFT p90 ms", REPORTS_NUMBER },
        { "ITL p50 ms", REPORTS_NUMBER },
        { "ITL p90 ms", REPORTS_NUMBER },
        { "intvty p90 tok/s", REPORTS_NUMBER },
        { "total tok/s", REPORTS_NUMBER },
        { "output tok/s", REPORTS_NUMBER },
        { "hit rate", REPORTS_SHARE },
        { "KV peak", REPORTS_BYTES },
        { "windows peak", REPORTS_BYTES },
        { "KL mean", REPORTS_SMALL },
        { "KL p99", REPORTS_SMALL },
        { "top-1 agree", REPORTS_SHARE },
        { "dlogp nats/tok", REPORTS_SIGNED } } },
    { "floor",
      "Speed floor",
      "Holds when 1 / the percentile of ITL reaches the floor. TTFT stands beside it because speed can be bought with "
      "it: p90 up to 5 s is acceptable for online use.",
      "SELECT " CLOCKED_RUN_NAME
      ", floor_mode, floor_tok_s_user, floor_percentile, tok_s_user, CASE met WHEN 1 THEN 'yes' ELSE 'NO' END, "
      "ttft_p50_ms, ttft_p90_ms, total_tok_s "
      "FROM (SELECT f.*, r.clock FROM v_floor f JOIN runs r USING (run_id)) ORDER BY run_id",
      { { "run", REPORTS_TEXT },
        { "mode", REPORTS_TEXT },
        { "floor tok/s/user", REPORTS_NUMBER },
        { "percentile", REPORTS_COUNT },
        { "tok/s/user", REPORTS_NUMBER },
        { "holds", REPORTS_TEXT },
        { "TTFT p50 ms", REPORTS_NUMBER },
        { "TTFT p90 ms", REPORTS_NUMBER },
        { "total tok/s", REPORTS_NUMBER } } },
    { "latency",
      "Latency",
      "Milliseconds. Percentiles are linear between the two nearest of n sorted values; std is over the population. "
      "Left out: other phases, errors, and kept requests for which the metric is undefined (ITL needs two tokens).",
      "SELECT " RUN_NAME ", metric, n, excluded_phase, excluded_error, excluded_undefined, mean_ns / 1e6, p50_ns / 1e6,"
      " p75_ns / 1e6, p90_ns / 1e6, p95_ns / 1e6, p99_ns / 1e6, std_ns / 1e6 FROM v_latency "
      "ORDER BY run_id, metric = 'e2e_norm', metric = 'e2el', metric = 'itl'",
      { { "run", REPORTS_TEXT },
        { "metric", REPORTS_TEXT },
        { "n", REPORTS_COUNT },
        { "other phase", REPORTS_COUNT },
        { "errors", REPORTS_COUNT },
        { "undefined", REPORTS_COUNT },
        { "mean", REPORTS_NUMBER },
        { "p50", REPORTS_NUMBER },
        { "p75", REPORTS_NUMBER },
        { "p90", REPORTS_NUMBER },
        { "p95", REPORTS_NUMBER },
        { "p99", REPORTS_NUMBER },
        { "std", REPORTS_NUMBER } } },
    { "interactivity",
      "Interactivity",
      "Tokens per second and user. pXX is 1 / pXX of the latency, so p90 is the speed that 90 % of requests reach.",
      "SELECT " RUN_NAME ", metric, n, mean_intvty, p50_intvty, p75_intvty, p90_intvty, p95_intvty, std_intvty "
      "FROM v_interactivity ORDER BY run_id, metric = 'e2e_norm'",
      { { "run", REPORTS_TEXT },
        { "from", REPORTS_TEXT },
        { "n", REPORTS_COUNT },
        { "mean", REPORTS_NUMBER },
        { "p50", REPORTS_NUMBER },
        { "p75", REPORTS_NUMBER },
        { "p90", REPORTS_NUMBER },
        { "p95", REPORTS_NUMBER },
        { "std", REPORTS_NUMBER } } },
    { "throughput",
      "Throughput",
      "Over the time from the first arrival to the last token of kept requests. QPS: completions in consecutive 1 s "
      "windows.",
      "SELECT printf('%d %s', t.run_id, t.label), t.n, duration_ns / 1e9, input_tokens, output_tokens, input_tok_s,"
      " output_tok_s, total_tok_s, windows, mean_qps, p50_qps, p90_qps "
      "FROM v_throughput t JOIN v_qps q USING (run_id) ORDER BY run_id",
      { { "run", REPORTS_TEXT },
        { "requests", REPORTS_COUNT },
        { "span s", REPORTS_NUMBER },
        { "input tokens", REPORTS_COUNT },
        { "output tokens", REPORTS_COUNT },
        { "input tok/s", REPORTS_NUMBER },
        { "output tok/s", REPORTS_NUMBER },
        { "total tok/s", REPORTS_NUMBER },
        { "windows", REPORTS_COUNT },
        { "QPS mean", REPORTS_NUMBER },
        { "QPS p50", REPORTS_NUMBER },
        { "QPS p90", REPORTS_NUMBER } } },
    { "lanes",
      "Time per lane",
      "Sums over the requests of a lane, all phases: waiting for admission, prefill (to the first token), decode. Of "
      "the runs whose requests are shown.",
      "SELECT printf('%d %s', u.run_id, u.label), r.lane, COUNT(*), SUM(r.error <> ''),"
      " SUM(CASE WHEN admit_ns >= 0 THEN admit_ns - arrival_ns END) / 1e9,"
      " SUM(CASE WHEN first_ns >= 0 AND admit_ns >= 0 THEN first_ns - admit_ns END) / 1e9,"
      " SUM(CASE WHEN first_ns >= 0 AND last_ns >= 0 THEN last_ns - first_ns END) / 1e9 "
      "FROM requests r JOIN runs u USING (run_id) WHERE u.run_id IN page_runs "
      "GROUP BY u.run_id, r.lane ORDER BY u.run_id, r.lane",
      { { "run", REPORTS_TEXT },
        { "lane", REPORTS_COUNT },
        { "requests", REPORTS_COUNT },
        { "errors", REPORTS_COUNT },
        { "waiting s", REPORTS_NUMBER },
        { "prefill s", REPORTS_NUMBER },
        { "decode s", REPORTS_NUMBER } } },
    { "steps",
      "Steps",
      "Steps of all phases. Replayed: share of prefill rows fed again to rebuild windows. Kept: share of rows that ran "
      "behind the cut. Busy: share of the run's time inside steps.",
      "SELECT " RUN_NAME ", steps, trimmed_steps, rows, rows_per_step, entries_per_step, replayed_share, kept_share,"
      " busy_share, rows_per_busy_s, waiting_max, running_max FROM v_steps ORDER BY run_id",
      { { "run", REPORTS_TEXT },
        { "steps", REPORTS_COUNT },
        { "trimmed", REPORTS_COUNT },
        { "rows", REPORTS_COUNT },
        { "rows/step", REPORTS_NUMBER },
        { "seqs/step", REPORTS_NUMBER },
        { "replayed", REPORTS_SHARE },
        { "kept", REPORTS_SHARE },
        { "busy", REPORTS_SHARE },
        { "rows/busy s", REPORTS_NUMBER },
        { "waiting max", REPORTS_COUNT },
        { "running max", REPORTS_COUNT } } },
    { "engines",
      "Engines",
      "Runs with several engines: kept requests, share of their prompt tokens that the engine's prefix cache had, mean "
      "time to first token, share of the run inside steps, and the most that waited and ran.",
      "SELECT " RUN_NAME ", engine, n, hit_rate, ttft_mean_ms, busy_share, waiting_max, running_max FROM v_engines "
      "WHERE run_id IN (SELECT run_id FROM v_engines GROUP BY run_id HAVING COUNT(*) > 1) ORDER BY run_id, engine",
      { { "run", REPORTS_TEXT },
        { "engine", REPORTS_COUNT },
        { "requests", REPORTS_COUNT },
        { "hit rate", REPORTS_SHARE },
        { "TTFT mean ms", REPORTS_NUMBER },
        { "busy", REPORTS_SHARE },
        { "waiting max", REPORTS_COUNT },
        { "running max", REPORTS_COUNT } } },
    { "quality",
      "Quality",
      "The arm (Q) against exact recomputation (P) on the same forced tokens; nats, full vocabulary. SE: standard "
      "error with the request as the unit. Decisive: positions where P leads by more than 0.1.",
      "SELECT " RUN_NAME
      ", positions, requests, kl_mean, kl_mean_se, kl_p50, kl_p90, kl_p99, kl_p999, kl_max, top1_rate,"
      " decisive_n, decisive_rate, dlogp_mean, dlogp_mean_se, dlogp_over_01, ratio_max, ppl_delta "
      "FROM v_quality WHERE positions > 0 ORDER BY run_id",
      { { "run", REPORTS_TEXT },
        { "positions", REPORTS_COUNT },
        { "requests", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL },
        { "SE", REPORTS_SMALL },
        { "KL p50", REPORTS_SMALL },
        { "KL p90", REPORTS_SMALL },
        { "KL p99", REPORTS_SMALL },
        { "KL p99.9", REPORTS_SMALL },
        { "KL max", REPORTS_SMALL },
        { "top-1 agree", REPORTS_SHARE },
        { "decisive n", REPORTS_COUNT },
        { "decisive agree", REPORTS_SHARE },
        { "dlogp nats/tok", REPORTS_SIGNED },
        { "dlogp SE", REPORTS_SMALL },
        { "|dlogp| > 0.1", REPORTS_SHARE },
        { "max log ratio", REPORTS_SMALL },
        { "ppl delta", REPORTS_SIGNED } } },
    { "offset",
      "Quality by offset",
      "Offset: position minus the prefix hit (encoder replay) or minus the prompt's end (decoder replay).",
      "SELECT printf('%d %s', o.run_id, u.label), bin_label, positions, o.requests, kl_mean, kl_p99, kl_max, top1_rate,"
      " decisive_rate, dlogp_mean FROM v_quality_offset o JOIN runs u USING (run_id) ORDER BY o.run_id, bin",
      { { "run", REPORTS_TEXT },
        { "offset", REPORTS_TEXT },
        { "positions", REPORTS_COUNT },
        { "requests", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL },
        { "KL p99", REPORTS_SMALL },
        { "KL max", REPORTS_SMALL },
        { "top-1 agree", REPORTS_SHARE },
        { "decisive agree", REPORTS_SHARE },
        { "dlogp nats/tok", REPORTS_SIGNED } } },
    { "turn",
      "Quality by turn",
      "Does the error build up over the turns of a conversation?",
      "SELECT printf('%d %s', t.run_id, u.label), turn, positions, t.requests, kl_mean, kl_max, top1_rate, dlogp_mean "
      "FROM v_quality_turn t JOIN runs u USING (run_id) ORDER BY t.run_id, turn",
      { { "run", REPORTS_TEXT },
        { "turn", REPORTS_COUNT },
        { "positions", REPORTS_COUNT },
        { "requests", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL },
        { "KL max", REPORTS_SMALL },
        { "top-1 agree", REPORTS_SHARE },
        { "dlogp nats/tok", REPORTS_SIGNED } } },
    { "depth",
      "Quality by provenance",
      "Depth: earlier replays that produced the adopted cache rows.",
      "SELECT printf('%d %s', t.run_id, u.label), provenance_depth, positions, t.requests, kl_mean, kl_max, top1_rate,"
      " dlogp_mean FROM v_quality_depth t JOIN runs u USING (run_id) ORDER BY t.run_id, provenance_depth",
      { { "run", REPORTS_TEXT },
        { "depth", REPORTS_COUNT },
        { "positions", REPORTS_COUNT },
        { "requests", REPORTS_COUNT },
        { "KL mean", REPORTS_SMALL },
        { "KL max", REPORTS_SMALL },
        { "top-1 agree", REPORTS_SHARE },
        { "dlogp nats/tok", REPORTS_SIGNED } } },
    { "histogram",
      "KL by decade",
      "Positions by size of KL(P||Q) in nats; each decade starts at the value shown.",
      "SELECT printf('%d %s', h.run_id, u.label), h.label, positions, "
      "CAST(positions AS REAL) / SUM(positions) OVER (PARTITION BY h.run_id) "
      "FROM v_kl_histogram h JOIN runs u USING (run_id) ORDER BY h.run_id, bucket",
      { { "run", REPORTS_TEXT },
        { "KL nats", REPORTS_TEXT },
        { "positions", REPORTS_COUNT },
        { "share", REPORTS_SHARE } } },
    { "cache",
      "Cache",
      "Hit rate: adopted prompt tokens over prompt tokens. Theory: hit blocks over blocks for an infinite cache with "
      "one seen-set per trace.",
      "SELECT printf('%d %s', c.run_id, c.label), in_tokens, matched_tokens, hit_tokens, hit_rate, hit_rate_theory,"
      " replayed_tokens, trimmed_tokens, trimmed_share, kv_bytes_peak, window_bytes_peak, window_per_kv "
      "FROM v_cache c JOIN v_memory m USING (run_id) ORDER BY run_id",
      { { "run", REPORTS_TEXT },
        { "prompt tokens", REPORTS_COUNT },
        { "matched", REPORTS_COUNT },
        { "adopted", REPORTS_COUNT },
        { "hit rate", REPORTS_SHARE },
        { "theory", REPORTS_SHARE },
        { "replayed", REPORTS_COUNT },
        { "trimmed", REPORTS_COUNT },
        { "trimmed share", REPORTS_SHARE },
        { "KV peak", REPORTS_BYTES },
        { "windows peak", REPORTS_BYTES },
        { "windows / KV", REPORTS_NUMBER } } },
    { "misses",
      "Why tokens missed the cache",
      "Prompt tokens of kept requests that were not adopted, by reason.",
      "SELECT printf('%d %s', m.run_id, u.label), miss, m.requests, miss_tokens FROM v_misses m JOIN runs u USING "
      "(run_id) "
      "ORDER BY m.run_id, miss",
      { { "run", REPORTS_TEXT },
        { "reason", REPORTS_TEXT },
        { "requests", REPORTS_COUNT },
        { "tokens", REPORTS_COUNT } } },
    { "population",
      "Populations",
      "Requests that metrics rest on, and what they leave out. Valid: finished, something completed, errors at most a "
      "tenth of it. TTFT guidance: p90 up to 5 s is acceptable for online use.",
      "SELECT printf('%d %s', p.run_id, p.label), p.status, p.requests, kept, excluded_phase, excluded_error, "
      "kept_osl_0,"
      " kept_osl_1, requests_unfinished, sessions_unfinished, ttft_guidance, CASE valid WHEN 1 THEN 'yes' ELSE 'no' "
      "END "
      "FROM v_population p JOIN v_validity v USING (run_id) ORDER BY run_id",
      { { "run", REPORTS_TEXT },
        { "status", REPORTS_TEXT },
        { "requests", REPORTS_COUNT },
        { "kept", REPORTS_COUNT },
        { "other phase", REPORTS_COUNT },
        { "errors", REPORTS_COUNT },
        { "OSL 0", REPORTS_COUNT },
        { "OSL 1", REPORTS_COUNT },
        { "req. unfinished", REPORTS_COUNT },
        { "sess. unfinished", REPORTS_COUNT },
        { "TTFT", REPORTS_TEXT },
        { "valid", REPORTS_TEXT } } },
    { "http",
      "Endpoints",
      "Profiling requests. Prompt asked: tokens as made; counted: as the endpoint says. Late: how long after it was "
      "due a request was ready to be sent.",
      "SELECT printf('%d %s', h.run_id, u.label), endpoint, h.requests, answered, failed, stopped_early, prompt_asked, "
      "prompt_counted, prompt_ratio, tokens_per_event, late_mean_ms, late_max_ms "
      "FROM v_http h JOIN runs u USING (run_id) ORDER BY h.run_id, endpoint",
      { { "run", REPORTS_TEXT },
        { "endpoint", REPORTS_COUNT },
        { "requests", REPORTS_COUNT },
        { "answered", REPORTS_COUNT },
        { "failed", REPORTS_COUNT },
        { "stopped early", REPORTS_COUNT },
        { "prompt asked", REPORTS_COUNT },
        { "prompt counted", REPORTS_COUNT },
        { "ratio", REPORTS_NUMBER },
        { "tokens/event", REPORTS_NUMBER },
        { "late mean ms", REPORTS_NUMBER },
        { "late max ms", REPORTS_NUMBER } } },
    { "http_errors",
      "Failures at endpoints",
      "All phases.",
      "SELECT printf('%d %s', h.run_id, u.label), endpoint, error_class, h.requests, status_max, example "
      "FROM v_http_errors h JOIN runs u USING (run_id) ORDER BY h.run_id, endpoint, error_class",
      { { "run", REPORTS_TEXT },
        { "endpoint", REPORTS_COUNT },
        { "class", REPORTS_TEXT },
        { "requests", REPORTS_COUNT },
        { "status", REPORTS_COUNT },
        { "example", REPORTS_TEXT } } },
    { "sessions",
      "Sessions",
      "Session trees by outcome.",
      "SELECT printf('%d %s', s.run_id, u.label), outcome, s.sessions, requests_planned, requests_done "
      "FROM v_sessions s JOIN runs u USING (run_id) ORDER BY s.run_id, outcome",
      { { "run", REPORTS_TEXT },
        { "outcome", REPORTS_TEXT },
        { "sessions", REPORTS_COUNT },
        { "requests planned", REPORTS_COUNT },
        { "requests done", REPORTS_COUNT } } },
    { "expectations",
      "Expectations",
      "Checks made by the scenario.",
      "SELECT CASE ok WHEN 1 THEN 'holds' ELSE 'FAILS' END, what, detail FROM expectations ORDER BY ok, expect_id",
      { { "result", REPORTS_TEXT }, { "what", REPORTS_TEXT }, { "detail", REPORTS_TEXT } } },
    { "errors",
      "Requests in error",
      "The first twenty.",
      "SELECT printf('%d %s', r.run_id, u.label), request_id, phase, r.error FROM requests r JOIN runs u USING "
      "(run_id) "
      "WHERE r.error <> '' ORDER BY r.run_id, request_id LIMIT 20",
      { { "run", REPORTS_TEXT }, { "request", REPORTS_COUNT }, { "phase", REPORTS_TEXT }, { "error", REPORTS_TEXT } } },
    { "runs",
      "Runs",
      "",
      "SELECT " RUN_NAME ", model_name, model_origin, " REPORTS_BACKEND ", arith, clock, replay, seed, lanes,"
      " trace_paths,"
      " COALESCE(event_hash, '') FROM runs ORDER BY run_id",
      { { "run", REPORTS_TEXT },
        { "model", REPORTS_TEXT },
        { "origin", REPORTS_TEXT },
        { "backend", REPORTS_TEXT },
        { "arith", REPORTS_TEXT },
        { "clock", REPORTS_TEXT },
        { "replay", REPORTS_TEXT },
        { "seed", REPORTS_TEXT },
        { "lanes", REPORTS_COUNT },
        { "trace", REPORTS_TEXT },
        { "event hash", REPORTS_TEXT } } },
    { "options_same",
      "Options shared by all runs",
      "",
      "SELECT key, MIN(COALESCE(value, 'null')) FROM runs, "
      "json_each(CASE WHEN json_valid(config_json) THEN config_json ELSE '{}' END) "
      "GROUP BY key HAVING COUNT(DISTINCT COALESCE(value, 'null')) = 1 AND COUNT(*) = (SELECT COUNT(*) FROM runs) "
      "ORDER BY MIN(run_id), MIN(id)",
      { { "option", REPORTS_TEXT }, { "value", REPORTS_TEXT } } },
    { "options_differ",
      "Options that differ between runs",
      "Of the runs whose requests are shown.",
      "WITH o AS (SELECT run_id, label, id, key, COALESCE(value, 'null') AS value FROM runs, "
      "json_each(CASE WHEN json_valid(config_json) THEN config_json ELSE '{}' END)) "
      "SELECT " RUN_NAME ", key, value FROM o WHERE key NOT IN (SELECT key FROM o GROUP BY key "
      "HAVING COUNT(DISTINCT value) = 1 AND COUNT(*) = (SELECT COUNT(*) FROM runs)) AND run_id IN page_runs "
      "ORDER BY run_id, id",
      { { "run", REPORTS_TEXT }, { "option", REPORTS_TEXT }, { "value", REPORTS_TEXT } } }
};

static const reports_table *find_table(const reports_table *list, size_t n, const char *id) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i].id, id)) return &list[i];
    return NULL;
}

const reports_table *reports_table_get(const char *id) {
    size_t audits, claims;
    const reports_table *of_audits = reports_audit_tables(&audits), *of_claims = reports_claim_tables(&claims);
    const reports_table *t = find_table(tables, sizeof tables / sizeof *tables, id);
    if (!t) t = find_table(of_audits, audits, id);
    if (!t) t = find_table(of_claims, claims, id);
    CEDAR_ASSERT(t != NULL);
    return t;
}

int reports_table_width(const reports_table *t) {
    int n = 0;
    while (t->columns[n].head) n++;
    return n;
}

bool reports_is_text(reports_kind kind) {
    return kind == REPORTS_TEXT || kind == REPORTS_CHOICE || kind == REPORTS_LINK;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* Puts commas between groups of three digits of the integer part. */
static void group_digits(const char *plain, char out[REPORTS_CELL_BYTES]) {
    size_t sign = *plain == '-' ? 1 : 0, whole = sign + strspn(plain + sign, "0123456789"), at = 0;
    for (size_t i = 0; plain[i] && at < REPORTS_CELL_BYTES - 2; i++) {
        if (i > sign && i < whole && (whole - i) % 3 == 0) out[at++] = ',';
        out[at++] = plain[i];
    }
    out[at] = 0;
}

static void format_number(double x, char out[REPORTS_CELL_BYTES]) {
    double size = fabs(x);
    char plain[REPORTS_CELL_BYTES];
    if (size >= 1e15 || (size > 0 && size < 1e-4)) {
        snprintf(out, REPORTS_CELL_BYTES, "%.3g", x);
        return;
    }
    int decimals = size >= 1000 || size == 0 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 ? 3 : 5;
    snprintf(plain, sizeof plain, "%.*f", decimals, x);
    group_digits(plain, out);
}

static void format_share(double x, char out[REPORTS_CELL_BYTES]) {
    if (x < 1 && x >= 0.99995) snprintf(out, REPORTS_CELL_BYTES, ">99.99%%");
    else if (x > 0 && x < 0.00005) snprintf(out, REPORTS_CELL_BYTES, "<0.01%%");
    else snprintf(out, REPORTS_CELL_BYTES, "%.2f%%", 100 * x);
}

static void format_bytes(double x, char out[REPORTS_CELL_BYTES]) {
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    size_t i = 0;
    while (x >= 1024 && i + 1 < sizeof units / sizeof *units) {
        x /= 1024;
        i++;
    }
    snprintf(out, REPORTS_CELL_BYTES, "%.*f %s", i == 0 || x >= 100 ? 0 : x >= 10 ? 1 : 2, x, units[i]);
}

void reports_format_real(reports_kind kind, double x, char out[REPORTS_CELL_BYTES]) {
    char plain[REPORTS_CELL_BYTES];
    switch (kind) {
    case REPORTS_TEXT: case REPORTS_CHOICE: case REPORTS_LINK: case REPORTS_COUNT:
        snprintf(plain, sizeof plain, "%.0f", x);
        group_digits(plain, out);
        return;
    case REPORTS_NUMBER: format_number(x, out); return;
    case REPORTS_SHARE: format_share(x, out); return;
    case REPORTS_BYTES: format_bytes(x, out); return;
    case REPORTS_SMALL: snprintf(out, REPORTS_CELL_BYTES, x == 0 ? "0" : "%.2e", x); return;
    case REPORTS_SIGNED: snprintf(out, REPORTS_CELL_BYTES, x == 0 ? "0" : "%+.2e", x); return;
    }
}

void reports_format(reports_kind kind, sqlite3_stmt *q, int column, char out[REPORTS_CELL_BYTES]) {
    if (sqlite3_column_type(q, column) == SQLITE_NULL) snprintf(out, REPORTS_CELL_BYTES, "\u2013");
    else reports_format_real(kind, sqlite3_column_double(q, column), out);
}
