-- Views of a cedar database: every metric, with the population it excludes. Explained in docs/METRICS.md.
--
-- Percentiles: sort n values as v[0..n-1], k = (n-1)*p/100, linear between v[floor k] and v[floor k + 1]. Written as a
-- sum in which v[i] has the weight max(0, 1 - |i - k|), in integer hundredths, so that nothing is lost to rounding.
-- A request is "kept" when its phase is 'profiling' and it has no error. Latencies that are not > 0 are left out.

CREATE VIEW v_population AS                 -- which requests the metrics of a run rest on
SELECT u.run_id, u.label, u.status,
       COUNT(r.request_id) AS requests,
       COUNT(r.request_id) FILTER (WHERE r.phase = 'profiling' AND r.error = '') AS kept,
       COUNT(r.request_id) FILTER (WHERE r.phase <> 'profiling') AS excluded_phase,
       COUNT(r.request_id) FILTER (WHERE r.phase = 'profiling' AND r.error <> '') AS excluded_error,
       COUNT(r.request_id) FILTER (WHERE r.phase = 'profiling' AND r.error = '' AND r.out_tokens = 0) AS kept_osl_0,
       COUNT(r.request_id) FILTER (WHERE r.phase = 'profiling' AND r.error = '' AND r.out_tokens = 1) AS kept_osl_1,
       u.requests_unfinished, u.sessions_unfinished
FROM runs u LEFT JOIN requests r USING (run_id)
GROUP BY u.run_id ORDER BY u.run_id;

CREATE VIEW v_request_times AS              -- per request: the latencies metrics are made of, NULL when left out
SELECT *,
       CASE WHEN kept AND first_ns > arrival_ns THEN first_ns - arrival_ns END AS ttft_ns,
       CASE WHEN kept AND last_ns > arrival_ns THEN last_ns - arrival_ns END AS e2el_ns,
       CASE WHEN kept AND out_tokens >= 2 AND first_ns >= 0 AND last_ns > first_ns
            THEN CAST(last_ns - first_ns AS REAL) / (out_tokens - 1) END AS itl_ns,
       CASE WHEN kept AND out_tokens >= 1 AND last_ns > arrival_ns
            THEN CAST(last_ns - arrival_ns AS REAL) / out_tokens END AS e2e_norm_ns
FROM (SELECT run_id, request_id, session_id, lane, stream, turn, trace_id, phase, error,
             phase = 'profiling' AND error = '' AS kept,
             in_tokens, out_tokens, hit_tokens, replayed_tokens, trimmed_tokens,
             arrival_ns, admit_ns, first_ns, last_ns, COALESCE(end_ns, MAX(last_ns, arrival_ns)) AS end_ns
      FROM requests LEFT JOIN request_ends USING (run_id, request_id))
ORDER BY run_id, request_id;

CREATE VIEW v_latency AS                    -- per run and metric: ttft, itl, e2el, e2e_norm; nanoseconds
WITH metrics(metric, rank) AS (VALUES ('ttft', 1), ('itl', 2), ('e2el', 3), ('e2e_norm', 4)),
samples AS (
    SELECT run_id, metric, CASE metric WHEN 'ttft' THEN ttft_ns WHEN 'itl' THEN itl_ns WHEN 'e2el' THEN e2el_ns
                           ELSE e2e_norm_ns END AS v
    FROM v_request_times CROSS JOIN metrics),
ranked AS (
    SELECT run_id, metric, v,
           ROW_NUMBER() OVER (PARTITION BY run_id, metric ORDER BY v) - 1 AS i,
           COUNT(*) OVER (PARTITION BY run_id, metric) AS n,
           AVG(v) OVER (PARTITION BY run_id, metric) AS mean
    FROM samples WHERE v IS NOT NULL),
stats AS (
    SELECT run_id, metric, n, mean AS mean_ns,
           SUM(v * MAX(0, 100 - ABS(100 * i - 50 * (n - 1)))) / 100.0 AS p50_ns,
           SUM(v * MAX(0, 100 - ABS(100 * i - 75 * (n - 1)))) / 100.0 AS p75_ns,
           SUM(v * MAX(0, 100 - ABS(100 * i - 90 * (n - 1)))) / 100.0 AS p90_ns,
           SUM(v * MAX(0, 100 - ABS(100 * i - 95 * (n - 1)))) / 100.0 AS p95_ns,
           SUM(v * MAX(0, 100 - ABS(100 * i - 99 * (n - 1)))) / 100.0 AS p99_ns,
           SQRT(AVG((v - mean) * (v - mean))) AS std_ns, MIN(v) AS min_ns, MAX(v) AS max_ns
    FROM ranked GROUP BY run_id, metric)
SELECT p.run_id, p.label, m.metric, COALESCE(s.n, 0) AS n,
       p.excluded_phase, p.excluded_error, p.kept - COALESCE(s.n, 0) AS excluded_undefined,
       s.mean_ns, s.p50_ns, s.p75_ns, s.p90_ns, s.p95_ns, s.p99_ns, s.std_ns, s.min_ns, s.max_ns
FROM v_population p CROSS JOIN metrics m LEFT JOIN stats s ON s.run_id = p.run_id AND s.metric = m.metric
ORDER BY p.run_id, m.rank;

CREATE VIEW v_interactivity AS              -- per run: tok/s/user; pXX is 1 / pXX(latency), the slow tail
SELECT l.run_id, l.label, l.metric, l.n, l.excluded_phase, l.excluded_error, l.excluded_undefined,
       1e9 / l.mean_ns AS mean_intvty, 1e9 / l.p50_ns AS p50_intvty, 1e9 / l.p75_ns AS p75_intvty,
       1e9 / l.p90_ns AS p90_intvty, 1e9 / l.p95_ns AS p95_intvty, 1e9 / l.p99_ns AS p99_intvty,
       d.std AS std_intvty
FROM v_latency l LEFT JOIN (
    SELECT run_id, metric, SQRT(AVG((x - mean) * (x - mean))) AS std
    FROM (SELECT run_id, metric, x, AVG(x) OVER (PARTITION BY run_id, metric) AS mean
          FROM (SELECT run_id, 'itl' AS metric, 1e9 / itl_ns AS x FROM v_request_times WHERE itl_ns IS NOT NULL
                UNION ALL
                SELECT run_id, 'e2e_norm', 1e9 / e2e_norm_ns FROM v_request_times WHERE e2e_norm_ns IS NOT NULL))
    GROUP BY run_id, metric) d ON d.run_id = l.run_id AND d.metric = l.metric
WHERE l.metric IN ('itl', 'e2e_norm')
ORDER BY l.run_id, l.metric = 'e2e_norm';

CREATE VIEW v_throughput AS                 -- per run: tokens per second; total includes cached input
SELECT p.run_id, p.label, p.kept AS n, p.excluded_phase, p.excluded_error, t.duration_ns,
       t.input_tokens, t.output_tokens, t.input_tokens + t.output_tokens AS total_tokens,
       t.input_tokens * 1e9 / t.duration_ns AS input_tok_s,
       t.output_tokens * 1e9 / t.duration_ns AS output_tok_s,
       (t.input_tokens + t.output_tokens) * 1e9 / t.duration_ns AS total_tok_s,
       p.kept * 1e9 / t.duration_ns AS requests_s
FROM v_population p LEFT JOIN (
    SELECT run_id, SUM(in_tokens) AS input_tokens, SUM(out_tokens) AS output_tokens,
           NULLIF(MAX(end_ns) - MIN(arrival_ns), 0) AS duration_ns
    FROM v_request_times WHERE kept GROUP BY run_id) t USING (run_id)
ORDER BY p.run_id;

CREATE VIEW v_qps_windows AS                -- completions in consecutive 1 s windows from the first completion on
WITH RECURSIVE ends AS (
    SELECT run_id, last_ns FROM v_request_times WHERE kept AND last_ns >= 0),
span AS (
    SELECT run_id, MIN(last_ns) AS t0_ns, (MAX(last_ns) - MIN(last_ns)) / 1000000000 AS windows
    FROM ends GROUP BY run_id),
grid(run_id, t0_ns, windows, window_index) AS (
    SELECT run_id, t0_ns, windows, 0 FROM span WHERE windows > 0
    UNION ALL
    SELECT run_id, t0_ns, windows, window_index + 1 FROM grid WHERE window_index + 1 < windows),
counts AS (
    SELECT run_id, (last_ns - t0_ns) / 1000000000 AS window_index, COUNT(*) AS completions
    FROM ends JOIN span USING (run_id) GROUP BY 1, 2)
SELECT g.run_id, g.window_index, g.t0_ns + g.window_index * 1000000000 AS start_ns,
       COALESCE(c.completions, 0) AS completions
FROM grid g LEFT JOIN counts c USING (run_id, window_index)
ORDER BY g.run_id, g.window_index;

CREATE VIEW v_qps AS                        -- per run: completions per second over the windows
WITH ranked AS (
    SELECT run_id, completions AS v,
           ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY completions, window_index) - 1 AS i,
           COUNT(*) OVER (PARTITION BY run_id) AS n,
           AVG(completions) OVER (PARTITION BY run_id) AS mean
    FROM v_qps_windows),
stats AS (
    SELECT run_id, n, mean,
           SUM(v * MAX(0, 100 - ABS(100 * i - 50 * (n - 1)))) / 100.0 AS p50,
           SUM(v * MAX(0, 100 - ABS(100 * i - 75 * (n - 1)))) / 100.0 AS p75,
           SUM(v * MAX(0, 100 - ABS(100 * i - 90 * (n - 1)))) / 100.0 AS p90,
           SUM(v * MAX(0, 100 - ABS(100 * i - 95 * (n - 1)))) / 100.0 AS p95,
           SQRT(AVG((v - mean) * (v - mean))) AS std
    FROM ranked GROUP BY run_id),
ends AS (
    SELECT run_id, COUNT(*) AS completions, MAX(last_ns) - MIN(last_ns) AS span_ns
    FROM v_request_times WHERE kept AND last_ns >= 0 GROUP BY run_id)
SELECT p.run_id, p.label, COALESCE(s.n, 0) AS windows, COALESCE(e.completions, 0) AS completions,
       p.excluded_phase, p.excluded_error, p.kept - COALESCE(e.completions, 0) AS excluded_undefined,
       -- shorter than one window: completions over their span
       COALESCE(s.mean, CASE WHEN e.span_ns > 0 THEN e.completions * 1e9 / e.span_ns END) AS mean_qps,
       s.p50 AS p50_qps, s.p75 AS p75_qps, s.p90 AS p90_qps, s.p95 AS p95_qps, s.std AS std_qps
FROM v_population p LEFT JOIN stats s USING (run_id) LEFT JOIN ends e USING (run_id)
ORDER BY p.run_id;

CREATE VIEW v_cache AS                      -- per run, kept requests: what the prefix cache could give and gave
SELECT p.run_id, p.label, p.kept AS n, p.excluded_phase, p.excluded_error,
       t.blocks_total, t.blocks_hit_theory,
       CAST(t.blocks_hit_theory AS REAL) / NULLIF(t.blocks_total, 0) AS hit_rate_theory,
       t.in_tokens, t.matched_tokens, t.hit_tokens, CAST(t.hit_tokens AS REAL) / NULLIF(t.in_tokens, 0) AS hit_rate,
       t.replayed_tokens, t.trimmed_tokens,
       CAST(t.replayed_tokens AS REAL) / NULLIF(t.hit_tokens, 0) AS replayed_per_hit_token,
       CAST(t.trimmed_tokens AS REAL) / NULLIF(t.in_tokens - t.hit_tokens + t.replayed_tokens, 0) AS trimmed_share,
       t.provenance_depth_max
FROM v_population p LEFT JOIN (
    SELECT run_id, SUM(blocks_total) AS blocks_total, SUM(blocks_hit_theory) AS blocks_hit_theory,
           SUM(in_tokens) AS in_tokens, SUM(matched_tokens) AS matched_tokens, SUM(hit_tokens) AS hit_tokens,
           SUM(replayed_tokens) AS replayed_tokens, SUM(trimmed_tokens) AS trimmed_tokens,
           MAX(provenance_depth) AS provenance_depth_max
    FROM requests JOIN runs USING (run_id)      -- imported records do not say what a cache gave
    WHERE phase = 'profiling' AND requests.error = '' AND backend <> 'imported' GROUP BY run_id) t USING (run_id)
ORDER BY p.run_id;

CREATE VIEW v_misses AS                     -- per run and reason, kept requests: prompt tokens not taken from the cache
SELECT r.run_id, r.miss, COUNT(*) AS requests, SUM(r.in_tokens - r.hit_tokens) AS miss_tokens,
       p.excluded_phase, p.excluded_error
FROM requests r JOIN v_population p USING (run_id) JOIN runs u USING (run_id)
WHERE r.phase = 'profiling' AND r.error = '' AND u.backend <> 'imported'
GROUP BY r.run_id, r.miss ORDER BY r.run_id, r.miss;

CREATE VIEW v_steps AS                      -- per run: how full and how busy the steps were; steps of all phases
SELECT u.run_id, u.label, COALESCE(SUM(s.steps), 0) AS steps, SUM(s.trimmed) AS trimmed_steps,
       SUM(s.rows) AS rows, SUM(s.prefill_rows) AS prefill_rows, SUM(s.decode_rows) AS decode_rows,
       SUM(s.replayed_rows) AS replayed_rows, SUM(s.kept_rows) AS kept_rows,
       CAST(SUM(s.rows) AS REAL) / SUM(s.steps) AS rows_per_step,
       CAST(SUM(s.entries) AS REAL) / SUM(s.steps) AS entries_per_step,
       CAST(SUM(s.replayed_rows) AS REAL) / NULLIF(SUM(s.prefill_rows), 0) AS replayed_share,
       CAST(SUM(s.kept_rows) AS REAL) / NULLIF(SUM(s.rows), 0) AS kept_share,
       SUM(s.duration_ns) AS busy_ns, MAX(s.end_ns) - MIN(s.start_ns) AS span_ns,
       CAST(SUM(s.duration_ns) AS REAL) / NULLIF((MAX(s.end_ns) - MIN(s.start_ns)) * COUNT(DISTINCT s.engine), 0)
           AS busy_share,
       SUM(s.rows) * 1e9 / NULLIF(SUM(s.duration_ns), 0) AS rows_per_busy_s,
       SUM(s.plan_ns) AS plan_ns, MAX(s.waiting) AS waiting_max, MAX(s.running) AS running_max
FROM runs u LEFT JOIN steps s USING (run_id)
GROUP BY u.run_id ORDER BY u.run_id;

CREATE VIEW v_engines AS                    -- per run and engine: kept requests, and steps of all phases
WITH served AS (
    SELECT run_id, engine, COUNT(*) AS requests, COUNT(DISTINCT session_id) AS sessions, SUM(in_tokens) AS in_tokens,
           SUM(hit_tokens) AS hit_tokens, SUM(out_tokens) AS out_tokens,
           AVG(first_ns - arrival_ns) / 1e6 AS ttft_mean_ms
    FROM requests WHERE phase = 'profiling' AND error = '' GROUP BY run_id, engine),
stepped AS (
    SELECT run_id, engine, SUM(steps) AS steps, SUM(duration_ns) AS busy_ns, MAX(waiting) AS waiting_max,
           MAX(running) AS running_max, MIN(pages_free) AS pages_free_min, MAX(kv_bytes_used) AS kv_bytes_peak
    FROM steps GROUP BY run_id, engine),
span AS (SELECT run_id, MAX(end_ns) - MIN(start_ns) AS ns FROM steps GROUP BY run_id)
SELECT u.run_id, u.label, t.engine, COALESCE(v.requests, 0) AS n, p.excluded_phase, p.excluded_error,
       COALESCE(v.sessions, 0) AS sessions, v.in_tokens, v.hit_tokens,
       CAST(v.hit_tokens AS REAL) / NULLIF(v.in_tokens, 0) AS hit_rate, v.out_tokens, v.ttft_mean_ms,
       t.steps, CAST(t.busy_ns AS REAL) / NULLIF(s.ns, 0) AS busy_share, t.waiting_max, t.running_max,
       t.pages_free_min, t.kv_bytes_peak
FROM stepped t JOIN runs u USING (run_id) JOIN v_population p USING (run_id) JOIN span s USING (run_id)
     LEFT JOIN served v ON v.run_id = t.run_id AND v.engine = t.engine
ORDER BY u.run_id, t.engine;

CREATE VIEW v_speculation AS                -- per run with drafts, kept requests: what became of them
SELECT u.run_id, u.label, COUNT(*) AS n, SUM(r.decode_steps) AS decode_steps, SUM(r.drafted_tokens) AS drafted_tokens,
       SUM(r.accepted_tokens) AS accepted_tokens,
       CAST(SUM(r.accepted_tokens) AS REAL) / SUM(r.drafted_tokens) AS acceptance_rate,
       1 + CAST(SUM(r.accepted_tokens) AS REAL) / SUM(r.decode_steps) AS acceptance_length
FROM runs u JOIN requests r USING (run_id)
WHERE r.phase = 'profiling' AND r.error = ''
GROUP BY u.run_id HAVING SUM(r.drafted_tokens) > 0 ORDER BY u.run_id;

CREATE VIEW v_memory AS                     -- per run: peaks of cache memory over the steps of all phases
SELECT u.run_id, u.label, COALESCE(SUM(s.steps), 0) AS steps, MAX(s.kv_bytes_used) AS kv_bytes_peak,
       MAX(s.window_bytes_stored) AS window_bytes_peak,
       CAST(MAX(s.window_bytes_stored) AS REAL) / NULLIF(MAX(s.kv_bytes_used), 0) AS window_per_kv,
       MIN(s.pages_free) AS pages_free_min, MAX(s.pages_cached) AS pages_cached_max, u.plan_total_bytes
FROM runs u LEFT JOIN steps s USING (run_id)
GROUP BY u.run_id ORDER BY u.run_id;

CREATE VIEW v_quality AS                    -- per run: the arm against exact recomputation, all scored positions
WITH stats AS MATERIALIZED (
    SELECT run_id, COUNT(*) AS n, AVG(kl_pq) AS kl_mean, MAX(kl_pq) AS kl_max, SUM(kl_pq = 0) AS kl_zero_n,
           AVG(kl_qp) AS kl_qp_mean, AVG(js) AS js_mean, MAX(ratio_max) AS ratio_max, AVG(top1_same) AS top1_rate,
           COUNT(*) FILTER (WHERE margin_p > 0.1) AS decisive_n,
           AVG(top1_same) FILTER (WHERE margin_p > 0.1) AS decisive_rate,
           AVG(logp_q - logp_p) AS dlogp_mean, SUM(logp_q - logp_p) AS dlogp_sum,
           AVG(ABS(logp_q - logp_p) > 0.1) AS dlogp_over_01, AVG(ABS(logp_q - logp_p) > 1) AS dlogp_over_1,
           EXP(-AVG(logp_p)) AS ppl_p, EXP(-AVG(logp_q)) AS ppl_q
    FROM quality GROUP BY run_id),
ranked AS (
    SELECT run_id, kl_pq, ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY kl_pq) - 1 AS i FROM quality),
percentiles AS (
    SELECT r.run_id,
           SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 500 * (n - 1)))) / 1000.0 AS kl_p50,
           SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 900 * (n - 1)))) / 1000.0 AS kl_p90,
           SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 990 * (n - 1)))) / 1000.0 AS kl_p99,
           SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 999 * (n - 1)))) / 1000.0 AS kl_p999
    FROM ranked r JOIN stats USING (run_id) GROUP BY r.run_id),
clusters AS (                               -- tokens of one request depend on each other: the unit is the request
    SELECT run_id, COUNT(*) AS m, SUM(kl_dev * kl_dev) AS kl_dev2, SUM(d_dev * d_dev) AS d_dev2
    FROM (SELECT q.run_id, q.request_id, SUM(q.kl_pq - s.kl_mean) AS kl_dev,
                 SUM(q.logp_q - q.logp_p - s.dlogp_mean) AS d_dev
          FROM quality q JOIN stats s USING (run_id) GROUP BY q.run_id, q.request_id)
    GROUP BY run_id),
unkept AS (
    SELECT run_id, SUM(positions) AS positions
    FROM (SELECT run_id, request_id, COUNT(*) AS positions FROM quality GROUP BY run_id, request_id) q
    LEFT JOIN requests r USING (run_id, request_id)
    WHERE r.phase IS NULL OR r.phase <> 'profiling' OR r.error <> '' GROUP BY run_id)
SELECT u.run_id, u.label, u.replay, COALESCE(s.n, 0) AS positions, COALESCE(c.m, 0) AS requests,
       COALESCE(x.positions, 0) AS positions_unkept,     -- included here, though latency metrics leave them out
       s.kl_mean, CASE WHEN c.m > 1 THEN SQRT(c.kl_dev2 * c.m / (c.m - 1)) / s.n END AS kl_mean_se,
       p.kl_p50, p.kl_p90, p.kl_p99, p.kl_p999, s.kl_max, s.kl_zero_n, s.kl_qp_mean, s.js_mean, s.ratio_max,
       s.top1_rate, s.decisive_n, s.decisive_rate,
       s.dlogp_mean, CASE WHEN c.m > 1 THEN SQRT(c.d_dev2 * c.m / (c.m - 1)) / s.n END AS dlogp_mean_se,
       s.dlogp_sum, 100 * s.dlogp_mean AS dlogp_per_100, s.dlogp_over_01, s.dlogp_over_1,
       s.ppl_p, s.ppl_q, s.ppl_q - s.ppl_p AS ppl_delta
FROM runs u LEFT JOIN stats s USING (run_id) LEFT JOIN percentiles p USING (run_id)
     LEFT JOIN clusters c USING (run_id) LEFT JOIN unkept x USING (run_id)
ORDER BY u.run_id;

CREATE VIEW v_quality_offset AS             -- per run and offset bin
WITH ranked AS (
    SELECT q.run_id, b.bin, b.label AS bin_label, request_id, kl_pq, logp_q - logp_p AS dlogp,
           margin_p > 0.1 AS decisive, top1_same,
           ROW_NUMBER() OVER (PARTITION BY q.run_id, b.bin ORDER BY kl_pq, request_id, pos) - 1 AS i,
           COUNT(*) OVER (PARTITION BY q.run_id, b.bin) AS n
    FROM quality q JOIN offset_bins b ON q."offset" BETWEEN b.lo AND b.hi)
SELECT run_id, bin, bin_label, n AS positions, COUNT(DISTINCT request_id) AS requests, AVG(kl_pq) AS kl_mean,
       SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 500 * (n - 1)))) / 1000.0 AS kl_p50,
       SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 900 * (n - 1)))) / 1000.0 AS kl_p90,
       SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 990 * (n - 1)))) / 1000.0 AS kl_p99,
       SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 999 * (n - 1)))) / 1000.0 AS kl_p999,
       MAX(kl_pq) AS kl_max, AVG(top1_same) AS top1_rate, SUM(decisive) AS decisive_n,
       AVG(top1_same) FILTER (WHERE decisive) AS decisive_rate, AVG(dlogp) AS dlogp_mean
FROM ranked GROUP BY run_id, bin ORDER BY run_id, bin;

CREATE VIEW v_quality_turn AS               -- per run and turn of the conversation: does the error build up?
SELECT q.run_id, r.turn, COUNT(*) AS positions, COUNT(DISTINCT q.request_id) AS requests, AVG(q.kl_pq) AS kl_mean,
       MAX(q.kl_pq) AS kl_max, AVG(q.top1_same) AS top1_rate, AVG(q.logp_q - q.logp_p) AS dlogp_mean
FROM quality q JOIN requests r ON r.run_id = q.run_id AND r.request_id = q.request_id
GROUP BY q.run_id, r.turn ORDER BY q.run_id, r.turn;

CREATE VIEW v_quality_depth AS              -- per run and number of earlier replays behind the adopted rows
SELECT q.run_id, r.provenance_depth, COUNT(*) AS positions, COUNT(DISTINCT q.request_id) AS requests,
       AVG(q.kl_pq) AS kl_mean, MAX(q.kl_pq) AS kl_max, AVG(q.top1_same) AS top1_rate,
       AVG(q.logp_q - q.logp_p) AS dlogp_mean
FROM quality q JOIN requests r ON r.run_id = q.run_id AND r.request_id = q.request_id
GROUP BY q.run_id, r.provenance_depth ORDER BY q.run_id, r.provenance_depth;

CREATE VIEW v_kl_histogram AS               -- per run: positions by decade of KL(P||Q); lo <= KL < hi, nats
WITH decades(bucket, label, lo, hi) AS (VALUES
    (0, '0', -9e999, 0.0), (1, '< 1e-8', 0.0, 1e-8), (2, '1e-8', 1e-8, 1e-7), (3, '1e-7', 1e-7, 1e-6),
    (4, '1e-6', 1e-6, 1e-5), (5, '1e-5', 1e-5, 1e-4), (6, '1e-4', 1e-4, 1e-3), (7, '1e-3', 1e-3, 1e-2),
    (8, '1e-2', 1e-2, 1e-1), (9, '1e-1', 1e-1, 1.0), (10, '>= 1', 1.0, 9e999))
SELECT q.run_id, d.bucket, d.label, d.lo, d.hi, COUNT(*) AS positions
FROM quality q JOIN decades d ON CASE d.bucket WHEN 0 THEN q.kl_pq <= 0 WHEN 1 THEN q.kl_pq > 0 AND q.kl_pq < d.hi
    WHEN 10 THEN q.kl_pq >= d.lo ELSE q.kl_pq >= d.lo AND q.kl_pq < d.hi END
GROUP BY q.run_id, d.bucket ORDER BY q.run_id, d.bucket;

CREATE VIEW v_http AS                       -- per run and endpoint: what was asked, what came; over profiling requests
SELECT h.run_id, h.endpoint, COUNT(*) AS requests, COUNT(*) FILTER (WHERE r.error = '') AS answered,
       COUNT(*) FILTER (WHERE r.error <> '') AS failed,
       COUNT(*) FILTER (WHERE r.error = '' AND r.out_tokens < h.out_asked) AS stopped_early,
       SUM(h.in_asked) FILTER (WHERE r.error = '') AS prompt_asked,
       SUM(r.in_tokens) FILTER (WHERE r.error = '') AS prompt_counted,
       CAST(SUM(r.in_tokens) FILTER (WHERE r.error = '') AS REAL) /
           NULLIF(SUM(h.in_asked) FILTER (WHERE r.error = ''), 0) AS prompt_ratio,
       CAST(SUM(r.out_tokens) FILTER (WHERE r.error = '') AS REAL) /
           NULLIF(SUM(h.deltas) FILTER (WHERE r.error = ''), 0) AS tokens_per_event,
       AVG(r.arrival_ns - r.arrival_sched_ns) / 1e6 AS late_mean_ms,
       MAX(r.arrival_ns - r.arrival_sched_ns) / 1e6 AS late_max_ms
FROM http_requests h JOIN requests r USING (run_id, request_id)
WHERE r.phase = 'profiling' GROUP BY h.run_id, h.endpoint ORDER BY h.run_id, h.endpoint;

CREATE VIEW v_http_errors AS                -- per run, endpoint, class: failed requests of all phases
SELECT h.run_id, h.endpoint, h.error_class, COUNT(*) AS requests, MIN(h.status) AS status_min,
       MAX(h.status) AS status_max, MAX(h.retry_after_s) AS retry_after_s, MIN(r.error) AS example
FROM http_requests h JOIN requests r USING (run_id, request_id)
WHERE h.error_class <> '' GROUP BY h.run_id, h.endpoint, h.error_class ORDER BY h.run_id, h.endpoint, h.error_class;

CREATE VIEW v_sessions AS                   -- per run and outcome
SELECT run_id, outcome, COUNT(*) AS sessions, SUM(requests_planned) AS requests_planned,
       SUM(requests_done) AS requests_done
FROM sessions GROUP BY run_id, outcome ORDER BY run_id, outcome;

CREATE VIEW v_validity AS                   -- per run: may its numbers be quoted?
SELECT p.run_id, p.label, p.status, p.kept AS completed, p.excluded_error AS errors,
       CAST(p.excluded_error AS REAL) / NULLIF(p.kept, 0) AS errors_per_completed,
       p.kept > 0 AND p.excluded_error * 10 <= p.kept AS errors_ok,
       l.p90_ns / 1e9 AS ttft_p90_s,
       CASE WHEN l.p90_ns IS NULL THEN 'none' WHEN l.p90_ns <= 5e9 THEN 'acceptable'
            ELSE 'too slow' END AS ttft_guidance,
       p.status = 'finished' AND p.kept > 0 AND p.excluded_error * 10 <= p.kept AS valid,
       u.rules, u.overflows, CAST(u.overflows AS REAL) / NULLIF(p.kept + p.excluded_error, 0) AS overflow_rate,
       u.submission_valid, u.gate_ok, u.invalid, u.invalid_why
FROM v_population p JOIN v_latency l ON l.run_id = p.run_id AND l.metric = 'ttft' JOIN runs u ON u.run_id = p.run_id
ORDER BY p.run_id;

CREATE VIEW v_floor AS                      -- per run with a speed floor: does it hold, and what is the price in TTFT?
WITH ranked AS (
    SELECT t.run_id, t.itl_ns AS v, u.floor_percentile AS p,
           ROW_NUMBER() OVER (PARTITION BY t.run_id ORDER BY t.itl_ns) - 1 AS i,
           COUNT(*) OVER (PARTITION BY t.run_id) AS n
    FROM v_request_times t JOIN runs u USING (run_id) WHERE t.itl_ns IS NOT NULL),
stats AS (
    SELECT run_id, n, SUM(v * MAX(0, 100 - ABS(100 * i - p * (n - 1)))) / 100.0 AS itl_ns FROM ranked GROUP BY run_id)
SELECT u.run_id, u.label, u.lanes, u.floor_mode, u.floor_milli_tok_s_user / 1000.0 AS floor_tok_s_user,
       u.floor_percentile, COALESCE(s.n, 0) AS n, 1e9 / s.itl_ns AS tok_s_user,
       COALESCE(1e12 >= s.itl_ns * u.floor_milli_tok_s_user, 0) AS met,
       f.p50_ns / 1e6 AS ttft_p50_ms, f.p90_ns / 1e6 AS ttft_p90_ms, h.total_tok_s
FROM runs u LEFT JOIN stats s USING (run_id) JOIN v_latency f ON f.run_id = u.run_id AND f.metric = 'ttft'
     JOIN v_throughput h ON h.run_id = u.run_id
WHERE u.floor_milli_tok_s_user > 0 ORDER BY u.run_id;

CREATE VIEW v_summary AS                    -- one row per run: the table of the report
WITH times AS (
    SELECT run_id, MAX(CASE metric WHEN 'ttft' THEN p50_ns END) / 1e6 AS ttft_p50_ms,
           MAX(CASE metric WHEN 'ttft' THEN p90_ns END) / 1e6 AS ttft_p90_ms,
           MAX(CASE metric WHEN 'itl' THEN p50_ns END) / 1e6 AS itl_p50_ms,
           MAX(CASE metric WHEN 'itl' THEN p90_ns END) / 1e6 AS itl_p90_ms,
           1e9 / MAX(CASE metric WHEN 'itl' THEN p90_ns END) AS intvty_p90
    FROM v_latency GROUP BY run_id)
SELECT u.run_id, u.label, u.replay, u.clock, u.lanes, u.status, p.kept AS requests, p.excluded_phase, p.excluded_error,
       u.requests_unfinished, t.ttft_p50_ms, t.ttft_p90_ms, t.itl_p50_ms, t.itl_p90_ms, t.intvty_p90,
       h.total_tok_s, h.output_tok_s, c.hit_rate, c.hit_rate_theory, c.replayed_tokens, c.trimmed_tokens,
       m.kv_bytes_peak, m.window_bytes_peak, q.positions AS quality_positions, q.kl_mean, q.kl_p99, q.top1_rate,
       q.dlogp_mean, g.floor_tok_s_user, g.met AS floor_met
FROM runs u LEFT JOIN v_floor g USING (run_id) JOIN v_population p USING (run_id) JOIN times t USING (run_id)
     JOIN v_throughput h USING (run_id)
     JOIN v_cache c USING (run_id) JOIN v_memory m USING (run_id) JOIN v_quality q USING (run_id)
ORDER BY u.run_id;

-- --- arms and their fronts ------------------------------------------------------------------------------------------

CREATE VIEW v_arms AS                       -- per run: its arm; runs of one arm differ in lanes, seed and label alone
WITH options AS (                           -- without the label, which comes first; views may not use JSON functions
    SELECT run_id, label, lanes, seed, clock, replay,
           admission || model_hash || trace_hash || backend || REPLACE(REPLACE(SUBSTR(config_json, INSTR(config_json,
           '"rules":')), '"lanes":' || lanes || ',', ''), '"seed":' || seed || ',', '') AS all_of_arm
    FROM runs),
named AS (
    SELECT *,                               -- without what an exact run of the same engine has otherwise
           REPLACE(REPLACE(REPLACE(all_of_arm, '"replay":"' || replay || '",', ''), '"window_cache_bytes":' ||
           CAST(SUBSTR(all_of_arm, INSTR(all_of_arm, '"window_cache_bytes":') + 21) AS INTEGER), ''), '"kv_pages":' ||
           CAST(SUBSTR(all_of_arm, INSTR(all_of_arm, '"kv_pages":') + 11) AS INTEGER), '') AS but_replay,
           TRIM(REPLACE(REPLACE(            -- the label without what tells the runs of the arm apart
               CASE WHEN label LIKE '% ' || lanes THEN SUBSTR(label, 1, LENGTH(label) - LENGTH(lanes) - 1)
                    WHEN label LIKE '% c' || lanes THEN SUBSTR(label, 1, LENGTH(label) - LENGTH(lanes) - 2)
                    ELSE label END, 'lanes=' || lanes, ''), 'seed=' || seed, ''), ' :') AS short
    FROM options),
arms AS (
    SELECT all_of_arm, MIN(run_id) AS first_run, COUNT(*) AS runs FROM named GROUP BY all_of_arm),
titled AS (
    SELECT a.all_of_arm, a.runs, DENSE_RANK() OVER (ORDER BY a.first_run) AS arm,
           CASE WHEN a.runs = 1 THEN n.label WHEN n.short = '' THEN n.replay ELSE n.short END AS name
    FROM arms a JOIN named n ON n.run_id = a.first_run)
SELECT n.run_id, t.arm, CASE COUNT(*) OVER (PARTITION BY t.name) WHEN t.runs THEN t.name
                             ELSE t.name || ' (arm ' || t.arm || ')' END AS arm_label, t.runs, n.replay, n.clock,
       -- the first run that is like it in all but replay and the memory that goes with it, and exact; NULL: none
       (SELECT MIN(x.run_id) FROM named x WHERE n.replay NOT IN ('exact', '') AND x.replay = 'exact'
        AND x.lanes = n.lanes AND x.seed = n.seed AND x.but_replay = n.but_replay) AS exact_run
FROM named n JOIN titled t USING (all_of_arm) ORDER BY n.run_id;

CREATE VIEW v_frontier AS                   -- per run with a speed: its point, and whether its arm's front has it
WITH points AS MATERIALIZED (
    SELECT a.arm, a.arm_label, a.clock, u.run_id, u.label, u.lanes, i.p90_intvty AS intvty_p90, h.total_tok_s,
           l.p50_ns / 1e6 AS ttft_p50_ms, l.p90_ns / 1e6 AS ttft_p90_ms,
           NULLIF(u.floor_milli_tok_s_user, 0) / 1000.0 AS floor_tok_s_user
    FROM runs u JOIN v_arms a USING (run_id) JOIN v_interactivity i ON i.run_id = u.run_id AND i.metric = 'itl'
         JOIN v_throughput h ON h.run_id = u.run_id JOIN v_latency l ON l.run_id = u.run_id AND l.metric = 'ttft'
    WHERE i.p90_intvty > 0 AND h.total_tok_s IS NOT NULL)
SELECT p.*, NOT EXISTS (                    -- none of the arm is as fast and gives as much; of equals the first stays
           SELECT 1 FROM points b WHERE b.arm = p.arm AND b.intvty_p90 >= p.intvty_p90
           AND b.total_tok_s >= p.total_tok_s AND (b.intvty_p90 > p.intvty_p90 OR b.total_tok_s > p.total_tok_s
           OR b.run_id < p.run_id)) AS on_front
FROM points p ORDER BY p.arm, p.intvty_p90, p.run_id;

CREATE VIEW v_frontier_at AS                -- per arm with a speed floor: what its front gives there
WITH knots AS (
    SELECT arm, metric, i, n, x, v, x - LAG(x) OVER w AS h0, LEAD(x) OVER w - x AS h1,
           (v - LAG(v) OVER w) / (x - LAG(x) OVER w) AS s0, (LEAD(v) OVER w - v) / (LEAD(x) OVER w - x) AS s1
    FROM (SELECT f.arm, m.metric, f.intvty_p90 AS x,
                 CASE m.metric WHEN 'tok' THEN f.total_tok_s ELSE f.ttft_p90_ms END AS v,
                 ROW_NUMBER() OVER (PARTITION BY f.arm, m.metric ORDER BY f.intvty_p90) AS i,
                 COUNT(*) OVER (PARTITION BY f.arm, m.metric) AS n
          FROM v_frontier f CROSS JOIN (SELECT 'tok' AS metric UNION ALL SELECT 'ttft') m WHERE f.on_front)
    WINDOW w AS (PARTITION BY arm, metric ORDER BY x)),
inner_slopes AS (                           -- Steffen's, of knots with two neighbours
    SELECT *, (SIGN(s0) + SIGN(s1)) * MIN(ABS(s0), ABS(s1), ABS((s0 * h1 + s1 * h0) / (h0 + h1)) / 2) AS m FROM knots),
slopes AS (
    SELECT *, CASE WHEN n = 1 THEN 0.0 WHEN n = 2 THEN COALESCE(s0, s1)
                   WHEN i = 1 THEN (3 * s1 - LEAD(m) OVER w) / 2 WHEN i = n THEN (3 * s0 - LAG(m) OVER w) / 2
                   ELSE m END AS slope
    FROM inner_slopes WINDOW w AS (PARTITION BY arm, metric ORDER BY x)),
pieces AS (                                 -- from each knot to the next one
    SELECT arm, metric, i, n, x, v, slope, LEAD(x) OVER w AS x1, LEAD(v) OVER w AS v1, LEAD(slope) OVER w AS slope1
    FROM slopes WINDOW w AS (PARTITION BY arm, metric ORDER BY x)),
floors AS (
    SELECT arm, arm_label, clock, COUNT(*) AS points, SUM(on_front) AS knots, MAX(floor_tok_s_user) AS at,
           MIN(intvty_p90) FILTER (WHERE on_front) AS x_min, MAX(intvty_p90) FILTER (WHERE on_front) AS x_max
    FROM v_frontier GROUP BY arm HAVING at IS NOT NULL),
found AS (
    SELECT p.arm, p.metric, p.v + COALESCE((p.v1 - p.v) * t, 0) AS linear,
           CASE WHEN t = 0 THEN p.v ELSE (1 + 2 * t) * (1 - t) * (1 - t) * p.v + (p.x1 - p.x) * t * (1 - t) * (1 - t)
                  * p.slope
                + t * t * (3 - 2 * t) * p.v1 + (p.x1 - p.x) * t * t * (t - 1) * p.slope1 END AS steffen
    FROM (SELECT pieces.*, COALESCE((f.at - x) / (x1 - x), 0) AS t FROM pieces JOIN floors f USING (arm)
          WHERE x <= f.at AND (x1 > f.at OR (i = n AND x = f.at))) p)
SELECT f.arm, f.arm_label, f.clock, f.points, f.knots, f.x_min, f.x_max, f.at AS floor_tok_s_user,
       MAX(0, MAX(g.steffen) FILTER (WHERE g.metric = 'tok')) AS total_tok_s,
       MAX(0, MAX(g.linear) FILTER (WHERE g.metric = 'tok')) AS total_tok_s_linear,
       MAX(g.steffen) FILTER (WHERE g.metric = 'ttft') AS ttft_p90_ms,
       MAX(g.linear) FILTER (WHERE g.metric = 'ttft') AS ttft_p90_ms_linear
FROM floors f LEFT JOIN found g USING (arm) GROUP BY f.arm ORDER BY f.arm;

-- --- audits ---------------------------------------------------------------------------------------------------------

CREATE VIEW v_audit AS                      -- per arm: all scored positions
WITH stats AS MATERIALIZED (
    SELECT audit_id, arm_id, COUNT(*) AS n, COUNT(DISTINCT doc) AS docs, AVG(kl_pq) AS kl_mean, MAX(kl_pq) AS kl_max,
           SUM(kl_pq = 0) AS kl_zero_n, AVG(kl_qp) AS kl_qp_mean, AVG(js) AS js_mean, MAX(ratio_max) AS ratio_max,
           AVG(top5_jaccard) AS top5_jaccard, AVG(top1_same) AS top1_rate,
           COUNT(*) FILTER (WHERE margin_p > 0.1) AS decisive_n,
           AVG(top1_same) FILTER (WHERE margin_p > 0.1) AS decisive_rate,
           AVG(logp_q - logp_p) AS dlogp_mean, AVG(ABS(logp_q - logp_p) > 0.1) AS dlogp_over_01,
           AVG(ABS(logp_q - logp_p) > 1) AS dlogp_over_1, EXP(-AVG(logp_p)) AS ppl_p, EXP(-AVG(logp_q)) AS ppl_q
    FROM audit_positions GROUP BY audit_id, arm_id),
ranked AS (
    SELECT audit_id, arm_id, kl_pq, ROW_NUMBER() OVER (PARTITION BY audit_id, arm_id ORDER BY kl_pq) - 1 AS i
    FROM audit_positions),
percentiles AS (
    SELECT r.audit_id, r.arm_id,
           SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 500 * (n - 1)))) / 1000.0 AS kl_p50,
           SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 900 * (n - 1)))) / 1000.0 AS kl_p90,
           SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 990 * (n - 1)))) / 1000.0 AS kl_p99,
           SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 999 * (n - 1)))) / 1000.0 AS kl_p999
    FROM ranked r JOIN stats USING (audit_id, arm_id) GROUP BY r.audit_id, r.arm_id)
SELECT a.audit_id, a.arm_id, a.label, a.control, a.what, a.encoder, a.decoder, a.fault, a.rows, a.keep,
       COALESCE(s.n, 0) AS kept_positions, a.positions, COALESCE(t.docs, s.docs) AS docs,
       COALESCE(s.kl_mean, t.value) AS kl_mean, t.lo AS kl_lo, t.hi AS kl_hi,
       p.kl_p50, p.kl_p90, p.kl_p99, p.kl_p999, s.kl_max, s.kl_zero_n, s.kl_qp_mean, s.js_mean, s.ratio_max,
       s.top1_rate, s.top5_jaccard, s.decisive_n, s.decisive_rate,
       COALESCE(s.dlogp_mean, d.value) AS dlogp_mean, d.lo AS dlogp_lo, d.hi AS dlogp_hi,
       100 * s.dlogp_mean AS dlogp_per_100, s.dlogp_over_01, s.dlogp_over_1, s.ppl_p, s.ppl_q,
       s.ppl_q - s.ppl_p AS ppl_delta, t.verdict, t.p_equivalent
FROM audit_arms a LEFT JOIN stats s USING (audit_id, arm_id) LEFT JOIN percentiles p USING (audit_id, arm_id)
     LEFT JOIN audit_stats t ON t.audit_id = a.audit_id AND t.arm_id = a.arm_id AND t.metric = 'kl' AND t.bin = -1
     LEFT JOIN audit_stats d ON d.audit_id = a.audit_id AND d.arm_id = a.arm_id AND d.metric = 'dlogp' AND d.bin = -1
ORDER BY a.audit_id, a.arm_id;

CREATE VIEW v_audit_excess AS               -- per arm: KL beyond the noise floor, position by position
WITH noise AS (                             -- the first C1 arm of the audit: exact, in another shape
    SELECT audit_id, MIN(arm_id) AS arm_id FROM audit_arms WHERE control = 'C1' GROUP BY audit_id)
SELECT q.audit_id, q.arm_id, n.arm_id AS noise_arm, COUNT(*) AS positions, AVG(x.kl_pq) AS noise_kl,
       AVG(q.kl_pq - x.kl_pq) AS excess_kl
FROM audit_positions q JOIN noise n USING (audit_id)
     JOIN audit_positions x ON x.audit_id = q.audit_id AND x.arm_id = n.arm_id AND x.doc = q.doc AND x.turn = q.turn
     AND x.pos = q.pos
GROUP BY q.audit_id, q.arm_id ORDER BY q.audit_id, q.arm_id;

CREATE VIEW v_audit_offset AS               -- per arm and offset bin
WITH ranked AS (
    SELECT q.audit_id, q.arm_id, b.bin, b.label AS bin_label, doc, kl_pq, logp_q - logp_p AS dlogp,
           margin_p > 0.1 AS decisive, top1_same,
           ROW_NUMBER() OVER (PARTITION BY q.audit_id, q.arm_id, b.bin ORDER BY kl_pq, doc, turn, pos) - 1 AS i,
           COUNT(*) OVER (PARTITION BY q.audit_id, q.arm_id, b.bin) AS n
    FROM audit_positions q JOIN offset_bins b ON q."offset" BETWEEN b.lo AND b.hi)
SELECT audit_id, arm_id, bin, bin_label, n AS positions, COUNT(DISTINCT doc) AS docs, AVG(kl_pq) AS kl_mean,
       SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 500 * (n - 1)))) / 1000.0 AS kl_p50,
       SUM(kl_pq * MAX(0, 1000 - ABS(1000 * i - 990 * (n - 1)))) / 1000.0 AS kl_p99,
       MAX(kl_pq) AS kl_max, AVG(top1_same) AS top1_rate,
       AVG(top1_same) FILTER (WHERE decisive) AS decisive_rate, AVG(dlogp) AS dlogp_mean
FROM ranked GROUP BY audit_id, arm_id, bin ORDER BY audit_id, arm_id, bin;

CREATE VIEW v_audit_profile AS              -- per arm and offset: the mean error at every single offset
SELECT audit_id, arm_id, "offset", COUNT(*) AS positions, AVG(kl_pq) AS kl_mean, MAX(kl_pq) AS kl_max,
       AVG(top1_same) AS top1_rate
FROM audit_positions GROUP BY audit_id, arm_id, "offset" ORDER BY audit_id, arm_id, "offset";

CREATE VIEW v_audit_turn AS                 -- per arm and turn: does the error build up?
SELECT audit_id, arm_id, turn, COUNT(*) AS positions, COUNT(DISTINCT doc) AS docs, AVG(kl_pq) AS kl_mean,
       MAX(kl_pq) AS kl_max, AVG(top1_same) AS top1_rate, AVG(logp_q - logp_p) AS dlogp_mean
FROM audit_positions GROUP BY audit_id, arm_id, turn ORDER BY audit_id, arm_id, turn;

CREATE VIEW v_audit_depth AS                -- per arm and number of replays behind the adopted rows
SELECT q.audit_id, q.arm_id, t.provenance_depth, COUNT(*) AS positions, COUNT(DISTINCT q.doc) AS docs,
       AVG(q.kl_pq) AS kl_mean, MAX(q.kl_pq) AS kl_max, AVG(q.top1_same) AS top1_rate
FROM audit_positions q JOIN audit_turns t USING (audit_id, arm_id, doc, turn)
GROUP BY q.audit_id, q.arm_id, t.provenance_depth ORDER BY q.audit_id, q.arm_id, t.provenance_depth;

CREATE VIEW v_audit_suffix AS               -- per arm and length of the new prompt part behind the hit
SELECT q.audit_id, q.arm_id, t.prompt_end - t.hit AS suffix, COUNT(*) AS positions, COUNT(DISTINCT q.doc) AS docs,
       AVG(q.kl_pq) AS kl_mean, MAX(q.kl_pq) AS kl_max, AVG(q.top1_same) AS top1_rate
FROM audit_positions q JOIN audit_turns t USING (audit_id, arm_id, doc, turn)
GROUP BY q.audit_id, q.arm_id, suffix ORDER BY q.audit_id, q.arm_id, suffix;

CREATE VIEW v_audit_length AS               -- error against the replay length R of encoder arms without a fault
SELECT a.audit_id, a.arm_id, a.label, a.rows, u.window, u.halo_encoder, t.value AS kl_mean, t.lo, t.hi, t.docs,
       t.positions
FROM audit_arms a JOIN audits u USING (audit_id)
     JOIN audit_stats t ON t.audit_id = a.audit_id AND t.arm_id = a.arm_id AND t.metric = 'kl' AND t.bin = -1
WHERE a.encoder AND NOT a.decoder AND a.fault = '' ORDER BY a.audit_id, a.rows, a.arm_id;

CREATE VIEW v_audit_globals AS              -- per arm, source layer and offset bin: contamination of new global rows
SELECT g.audit_id, g.arm_id, g.layer, b.bin, b.label AS bin_label, COUNT(*) AS rows_new,
       SUM(g.kv_differ > 0 OR g.index_differ > 0) AS rows_differ, AVG(g.kv_differ) AS kv_differ,
       AVG(g.index_differ) AS index_differ, AVG(g.latent_rel) AS latent_rel
FROM audit_globals g JOIN offset_bins b ON g."offset" BETWEEN b.lo AND b.hi
GROUP BY g.audit_id, g.arm_id, g.layer, b.bin ORDER BY g.audit_id, g.arm_id, g.layer, b.bin;

CREATE VIEW v_audit_map AS                  -- per arm and source layer: share of differing bytes along the document
WITH span AS (                              -- 60 equal stretches of the longest document
    SELECT audit_id, MAX(pos) + 1 AS tokens FROM audit_globals GROUP BY audit_id)
SELECT g.audit_id, g.arm_id, g.layer, g.pos * 60 / s.tokens AS stretch, MIN(g.pos) AS pos_lo, MAX(g.pos) AS pos_hi,
       COUNT(*) AS rows_new, AVG(g.kv_differ) AS kv_differ
FROM audit_globals g JOIN span s USING (audit_id)
GROUP BY g.audit_id, g.arm_id, g.layer, stretch ORDER BY g.audit_id, g.arm_id, g.layer, stretch;

CREATE VIEW v_audit_layers AS               -- per arm, layer and offset bin
SELECT l.audit_id, l.arm_id, l.layer, b.bin, b.label AS bin_label, COUNT(*) AS positions,
       AVG(stream_rel) AS stream_rel, MAX(stream_rel) AS stream_rel_max, AVG(vector_rel) AS vector_rel,
       AVG(cosine) AS cosine, AVG(window_differ) AS window_differ, AVG(topk_jaccard) AS topk_jaccard,
       AVG(router_flip) AS router_flips, SUM(engram_differs) AS engram_differs
FROM audit_layers l JOIN offset_bins b ON l."offset" BETWEEN b.lo AND b.hi
GROUP BY l.audit_id, l.arm_id, l.layer, b.bin ORDER BY l.audit_id, l.arm_id, l.layer, b.bin;

CREATE VIEW v_audit_greedy AS               -- per arm: how long greedy decode stays with the exact arm
SELECT g.audit_id, g.arm_id, COUNT(*) AS continuations, MAX(g.tokens) AS tokens, SUM(g.diverged_at < 0) AS censored,
       SUM(g.tie) AS ties, MIN(g.diverged_at) FILTER (WHERE g.diverged_at >= 0) AS first_at,
       a.greedy_mean AS agree_mean, AVG(g.margin_p) AS margin_mean
FROM audit_greedy g JOIN audit_arms a USING (audit_id, arm_id)
GROUP BY g.audit_id, g.arm_id ORDER BY g.audit_id, g.arm_id;

CREATE VIEW v_audit_drafts AS               -- per arm and window of generated tokens: DSpark acceptance
SELECT d.audit_id, d.arm_id,
       CASE WHEN d.generated < u.window THEN 0 WHEN d.generated < u.halo_decoder THEN 1 ELSE 2 END AS part,
       MIN(d.generated) AS generated_lo, MAX(d.generated) AS generated_hi, COUNT(*) AS cycles,
       SUM(d.drafted) AS drafted, SUM(d.accepted) AS accepted,
       1 + CAST(SUM(d.accepted) AS REAL) / COUNT(*) AS tokens_per_cycle,
       CAST(SUM(d.accepted) AS REAL) / SUM(d.drafted) AS acceptance
FROM audit_drafts d JOIN audits u USING (audit_id)
GROUP BY d.audit_id, d.arm_id, part ORDER BY d.audit_id, d.arm_id, part;

CREATE VIEW v_audit_needles AS              -- per arm and place of the needle
SELECT audit_id, arm_id, place, COUNT(*) AS needles, COUNT(DISTINCT doc) AS docs,
       AVG((logp_q - logp_p) / tokens) AS dlogp_token, SUM(exact_p) AS exact_p, SUM(exact_q) AS exact_q,
       SUM(exact_p AND NOT exact_q) AS lost, SUM(exact_q AND NOT exact_p) AS won
FROM audit_needles GROUP BY audit_id, arm_id, place
ORDER BY audit_id, arm_id, place = 'far', place = 'near', place = 'window', place = 'replayed';

CREATE VIEW v_audit_cost AS                 -- per arm: what it feeds and stores, next to its error
SELECT a.audit_id, a.arm_id, a.label, a.control, a.prompt_rows, a.prompt_kept, a.replayed,
       -- prompt rows times layers that ran on them, all layers of every prompt row of an arm without hits = 1
       (a.prompt_rows * (u.cut + 1.0) + a.prompt_kept * (u.layers - u.cut - 1.0)) / NULLIF(c.cold_rows * u.layers, 0)
           AS prompt_work,
       c.cold_rows, a.window_bytes, c.kv_bytes, a.prompt_ns / 1e9 AS prompt_s, a.forward_ns / 1e9 AS forward_s,
       a.adopted_changed, a.global_rows, a.global_differ, t.value AS kl_mean
FROM audit_arms a JOIN audits u USING (audit_id)
     JOIN (SELECT audit_id, arm_id, SUM(prompt_end) AS cold_rows, SUM(hit) AS hit_rows,
                  MAX("end") AS longest, SUM("end" - hit) * u2.kv_token_bytes_x1000 / 1000 AS kv_bytes
           FROM audit_turns JOIN audits u2 USING (audit_id) GROUP BY audit_id, arm_id) c USING (audit_id, arm_id)
     LEFT JOIN audit_stats t ON t.audit_id = a.audit_id AND t.arm_id = a.arm_id AND t.metric = 'kl' AND t.bin = -1
ORDER BY a.audit_id, a.arm_id;

-- --- ladders and claims ---------------------------------------------------------------------------------------------

-- Per figure: how many times better than that of the rung before, and than that of the first rung. Of times less is
-- better; a change of quality has no factor.
CREATE VIEW v_ladder_figures AS
WITH figures AS (
    SELECT *, CASE WHEN metric GLOB 'ttft*' OR metric GLOB 'itl*' OR metric GLOB 'tpot*' THEN -1
                   WHEN metric GLOB 'kl*' THEN 0 ELSE 1 END AS better
    FROM ladder_figures)
SELECT f.ladder_id, f.rung, r.name, f.metric, f.context_tokens, f.value, f.lo, f.hi, f.n, f.unit,
       CASE f.better WHEN -1 THEN p.value / NULLIF(f.value, 0) WHEN 1 THEN f.value / NULLIF(p.value, 0) END AS factor,
       CASE f.better WHEN -1 THEN b.value / NULLIF(f.value, 0) WHEN 1 THEN f.value / NULLIF(b.value, 0) END
           AS factor_first, f.run_id, f.note
FROM figures f JOIN ladder_rungs r USING (ladder_id, rung)
     LEFT JOIN ladder_figures p ON p.ladder_id = f.ladder_id AND p.rung = f.rung - 1 AND p.metric = f.metric
     AND p.context_tokens = f.context_tokens
     LEFT JOIN ladder_figures b ON b.ladder_id = f.ladder_id AND b.rung = 1 AND b.metric = f.metric
     AND b.context_tokens = f.context_tokens
ORDER BY f.ladder_id, f.rung, f.metric, f.context_tokens;

CREATE VIEW v_ladder AS                     -- per rung: its main figures side by side, and factors over the rung before
WITH named AS (                             -- metric, and behind it the length: 1 is 1000 or 1024 tokens, and so on
    SELECT ladder_id, rung, value, factor, factor_first, metric || CASE
               WHEN context_tokens = 0 THEN '' WHEN context_tokens BETWEEN 1000 AND 1024 THEN '1'
               WHEN context_tokens BETWEEN 4000 AND 4096 THEN '4' WHEN context_tokens BETWEEN 8000 AND 8192 THEN '8'
               WHEN context_tokens BETWEEN 32000 AND 32768 THEN '32'
               WHEN context_tokens BETWEEN 128000 AND 131072 THEN '128' ELSE ' other' END AS what
    FROM v_ladder_figures)
SELECT l.ladder_id, l.title, l.provenance, l.hardware, l.model, r.rung, r.name, r.why, r.switches, r.beyond,
       MAX(f.value) FILTER (WHERE what = 'ttft1') AS ttft_1k_ms,
       MAX(f.value) FILTER (WHERE what = 'ttft4') AS ttft_4k_ms,
       MAX(f.value) FILTER (WHERE what = 'ttft8') AS ttft_8k_ms,
       MAX(f.value) FILTER (WHERE what = 'ttft32') AS ttft_32k_ms,
       MAX(f.value) FILTER (WHERE what = 'ttft128') AS ttft_128k_ms,
       MAX(f.value) FILTER (WHERE what = 'itl') AS itl_ms,
       MAX(f.value) FILTER (WHERE what = 'tok_s_gpu_at_floor') AS tok_s_gpu_at_floor,
       MAX(f.value) FILTER (WHERE what = 'kv_tokens_max') AS kv_tokens_max,
       MAX(f.value) FILTER (WHERE what = 'kl_mean') AS kl_mean,
       MAX(f.factor) FILTER (WHERE what = 'ttft1') AS ttft_1k_factor,
       MAX(f.factor) FILTER (WHERE what = 'ttft128') AS ttft_128k_factor,
       MAX(f.factor) FILTER (WHERE what = 'itl') AS itl_factor,
       MAX(f.factor) FILTER (WHERE what = 'tok_s_gpu_at_floor') AS tok_s_gpu_factor,
       MAX(f.factor_first) FILTER (WHERE what = 'tok_s_gpu_at_floor') AS tok_s_gpu_factor_first
FROM ladders l JOIN ladder_rungs r USING (ladder_id) LEFT JOIN named f USING (ladder_id, rung)
GROUP BY l.ladder_id, r.rung ORDER BY l.ladder_id, r.rung;

CREATE VIEW v_claims AS                     -- per claim
SELECT claim_id, source, date, model, hardware, engine, metric, condition, published, unit, ours, lo, hi,
       ours / NULLIF(published, 0) AS ratio, n, provenance, verdict, why, run_id, url
FROM claims ORDER BY claim_id;

CREATE VIEW v_claims_summary AS             -- claims by provenance and verdict
SELECT provenance, verdict, COUNT(*) AS claims, MIN(ours / NULLIF(published, 0)) AS ratio_least,
       MAX(ours / NULLIF(published, 0)) AS ratio_most
FROM claims GROUP BY provenance, verdict ORDER BY verdict = 'not tested', provenance, verdict;

CREATE VIEW v_claim_sensitivity AS          -- per claim and assumption: our figure at both settings
SELECT s.claim_id, c.metric, c.condition, c.published, c.unit, c.ours, s.assumption, s.setting_lo, s.setting_hi,
       s.ours_lo, s.ours_hi, s.ours_hi / NULLIF(s.ours_lo, 0) AS swing
FROM claim_sensitivity s JOIN claims c USING (claim_id) ORDER BY s.claim_id, s.assumption;

-- --- answers --------------------------------------------------------------------------------------------------------

CREATE VIEW v_claim_points AS               -- claims that differ in concurrency, or in length of prompt, alone
WITH parts AS (                             -- the number in the condition, and the words in front of it
    SELECT *, CASE WHEN condition LIKE '%concurrency=%' THEN 'concurrency=' ELSE 'prompt ' END AS word FROM v_claims
    WHERE condition LIKE '%concurrency=%' OR condition GLOB '*prompt [0-9]*K*'),
numbers AS (
    SELECT *, CAST(SUBSTR(condition, INSTR(condition, word) + LENGTH(word)) AS INTEGER) AS x FROM parts),
series AS (
    SELECT *, REPLACE(condition, word || x || CASE word WHEN 'prompt ' THEN 'K' ELSE '' END,
                      CASE word WHEN 'prompt ' THEN 'prompt' ELSE 'concurrency' END) AS series
    FROM numbers)
SELECT claim_id, source, hardware, metric, series, unit,
       CASE word WHEN 'prompt ' THEN 'prompt, k tokens' ELSE 'concurrency' END AS axis, x, published, ours, lo, hi,
              ratio,
       provenance, verdict, COUNT(ours) OVER (PARTITION BY source, hardware, metric, series) AS tested
FROM series ORDER BY source, hardware, metric, series, x, claim_id;

CREATE VIEW v_paired AS                     -- paired comparisons with the labels of their runs
SELECT paired_id, a_run, b_run, a_runs, b_runs, a.label AS a_label, b.label AS b_label, metric, pairs, p.sessions,
       left_out, mean_a, mean_b, diff, diff_lo, diff_hi, ratio, ratio_lo, ratio_hi,
       CASE WHEN ratio_lo IS NULL THEN 'no interval' WHEN ratio_hi < 1 THEN 'less' WHEN ratio_lo > 1 THEN 'more'
            ELSE 'holds 1' END AS verdict,
       resamples, p.seed
FROM paired p JOIN runs a ON a.run_id = a_run JOIN runs b ON b.run_id = b_run ORDER BY paired_id;

CREATE VIEW v_answers AS                    -- what a reader asks first, answered in sentences from the other views
WITH pairs AS (                             -- each approximate run beside the exact one that is like it but for replay
    SELECT s.*, x.label AS exact_label, x.ttft_p90_ms AS exact_ttft, x.itl_p90_ms AS exact_itl,
           x.ttft_p50_ms AS exact_ttft_p50, x.total_tok_s AS exact_tok, x.window_bytes_peak AS exact_windows, a.arm,
           CASE WHEN MAX(s.window_bytes_peak, x.window_bytes_peak) < 1048576 THEN 10
                WHEN MAX(s.window_bytes_peak, x.window_bytes_peak) < 1073741824 THEN 20 ELSE 30 END AS unit,
           ROW_NUMBER() OVER (PARTITION BY a.arm ORDER BY s.lanes DESC, s.run_id) AS place
    FROM v_arms a JOIN v_summary s USING (run_id) JOIN v_summary x ON x.run_id = a.exact_run),
short AS (                                  -- labels without the lanes, which the sentence says itself
    SELECT run_id, COALESCE(NULLIF(TRIM(REPLACE(label, 'lanes=' || lanes, ''), ' :'), ''), label) AS name FROM runs),
ladder_of AS (                              -- arms with a run that a ladder has a figure of
    SELECT arm, MIN(ladder_id) AS ladder_id FROM ladder_figures JOIN v_arms USING (run_id) GROUP BY arm),
saves AS (                                  -- those of several lanes come first, then those that save most time
    SELECT p.*, n.name, m.name AS exact_name, COALESCE(l.title || ': ', '') AS ladder,
           CASE WHEN p.window_bytes_peak + exact_windows > 0
                THEN printf(', stored windows %,.1f %s instead of %,.1f', p.window_bytes_peak * 1.0 / (1 << unit),
                            CASE unit WHEN 10 THEN 'KiB' WHEN 20 THEN 'MiB' ELSE 'GiB' END,
                            exact_windows * 1.0 / (1 << unit)) ELSE '' END AS windows,
           CASE WHEN itl_p90_ms > 0 AND exact_itl > 0
                THEN printf('ITL p90 %,.2f ms instead of %,.2f (%+.1f %%), ', itl_p90_ms, exact_itl,
                            100 * (itl_p90_ms / exact_itl - 1)) ELSE '' END AS itl,
           CASE WHEN p.ttft_p50_ms > exact_ttft_p50     -- a saving at p90 must not hide it
                THEN printf('TTFT p50 %,.1f ms instead of %,.1f (%+.1f %%), ', p.ttft_p50_ms, exact_ttft_p50,
                            100 * (p.ttft_p50_ms / exact_ttft_p50 - 1)) ELSE '' END AS worse,
           ROW_NUMBER() OVER (ORDER BY p.lanes > 1 DESC, p.ttft_p90_ms / exact_ttft, p.run_id) AS i
    FROM pairs p JOIN short n USING (run_id) JOIN v_arms a USING (run_id) JOIN short m ON m.run_id = a.exact_run
         LEFT JOIN ladder_of o ON o.arm = p.arm LEFT JOIN ladders l USING (ladder_id)
    WHERE place = 1 AND p.ttft_p90_ms IS NOT NULL AND exact_ttft IS NOT NULL),
valid AS (
    SELECT COUNT(*) AS runs, SUM(valid) AS valid, SUM(rules LIKE 'agentx%') AS ruled,
           SUM(rules LIKE 'agentx%' AND submission_valid AND gate_ok) AS kept FROM v_validity),
expected AS (SELECT COUNT(*) AS n, SUM(NOT ok) AS fails FROM expectations),
steps_up AS (                               -- per ladder, its rungs by what they give in its main figure
    SELECT f.*, r.beyond,
           ROW_NUMBER() OVER (PARTITION BY f.ladder_id ORDER BY r.beyond, f.factor DESC, f.rung) AS place,
           FIRST_VALUE(f.factor_first) OVER (PARTITION BY f.ladder_id ORDER BY r.beyond, f.rung DESC) AS whole,
           FIRST_VALUE(f.factor_first) OVER (PARTITION BY f.ladder_id ORDER BY f.rung DESC) AS whole_beyond,
           SUM(r.beyond) OVER (PARTITION BY f.ladder_id) AS rungs_beyond
    FROM v_ladder_figures f JOIN ladder_rungs r USING (ladder_id, rung) JOIN (
        -- throughput at the floor, else TTFT of the longest context, else ITL
        SELECT ladder_id, metric, context_tokens, ROW_NUMBER() OVER (PARTITION BY ladder_id ORDER BY
               metric = 'tok_s_gpu_at_floor' DESC, metric = 'ttft' DESC, metric = 'itl' DESC,
               context_tokens DESC, metric) AS choice FROM ladder_figures GROUP BY ladder_id, metric, context_tokens) m
        ON m.choice = 1 AND m.ladder_id = f.ladder_id AND m.metric = f.metric
        AND m.context_tokens = f.context_tokens
    WHERE f.factor IS NOT NULL),
gives AS (
    SELECT ladder_id, whole, CASE metric WHEN 'tok_s_gpu_at_floor' THEN 'tok/s/GPU at the speed floor' ||
                  CASE n WHEN 0 THEN '' WHEN 1 THEN ' (one seed)' ELSE printf(' (mean of %d seeds)', n) END
           WHEN 'ttft' THEN printf('TTFT at %,d tokens', context_tokens) ELSE metric END AS what,
           GROUP_CONCAT(printf('%s %.2fx', name, factor), ', ') AS parts,
           CASE rungs_beyond WHEN 0 THEN '' ELSE printf(' With %d %s more than is published: %.2fx.', rungs_beyond,
                CASE rungs_beyond WHEN 1 THEN 'rung' ELSE 'rungs' END, whole_beyond) END AS more
    FROM (SELECT * FROM steps_up WHERE place <= 3 AND NOT beyond AND factor > 1 ORDER BY ladder_id, place)
    GROUP BY ladder_id),
headline AS (                               -- the claim of throughput at a speed, and the rest of its source
    SELECT claim_id, source, published AS headline_x FROM claims
    WHERE metric = 'throughput_ratio_at_interactivity' ORDER BY claim_id LIMIT 1),
seeds AS (
    SELECT arm, CASE COUNT(DISTINCT seed) WHEN 1 THEN printf('seed %s alone', MIN(seed))
                     ELSE printf('%d seeds together', COUNT(DISTINCT seed)) END AS seeds
    FROM v_arms JOIN runs USING (run_id) GROUP BY arm),
said(rank, item, question, answer, basis, section) AS (
    SELECT 10, 0, printf('Is the published %gx plausible?', published),
           CASE WHEN ours IS NULL THEN printf('Not tested here: %s', why)
                WHEN lo IS NULL THEN printf('Ours is %.2fx: %s; %s', ours, verdict, why)
                ELSE printf('Ours is %.2fx (%.2f to %.2f): %s; %s', ours, lo, hi, verdict, why) END,
           provenance, 'claims'
    FROM v_claims JOIN headline USING (claim_id)
    UNION ALL SELECT 10, ROW_NUMBER() OVER (ORDER BY ABS(LN(MAX(1e-9, ABS(swing)))) DESC, assumption),
           printf('Is the published %gx plausible?', published),
           printf('%.2fx with %s %g, %.2fx as assumed, %.2fx with %g.', ours_lo, assumption, setting_lo, ours, ours_hi,
                  setting_hi),
           'sensitivity', 'claims'
    FROM v_claim_sensitivity JOIN headline USING (claim_id)
    UNION ALL SELECT 20, ladder_id,
           CASE WHEN headline_x IS NULL THEN 'What gives most of it?'
                ELSE printf('What gives most of it, of the published %gx?', headline_x) END,
           printf('%s: %.2fx in %s over the first rung; most from %s.%s', l.title, whole, what, parts, more),
           l.provenance, 'ladder'
    FROM gives JOIN ladders l USING (ladder_id) LEFT JOIN headline
    UNION ALL SELECT 30, i, 'What does bounded replay save?',
           printf('%s%s against %s, lanes %d, requests %d: TTFT p90 %,.1f ms instead of %,.1f (%+.1f %%), %s%stotal '
                  || '%,.1f tok/s instead of %,.1f (%+.1f %%)%s.', ladder, name, exact_name, lanes, requests,
                  ttft_p90_ms, exact_ttft, 100 * (ttft_p90_ms / exact_ttft - 1), worse, itl, total_tok_s, exact_tok,
                  100 * (total_tok_s / exact_tok - 1), COALESCE(windows, '')),
           CASE clock WHEN 'modelled' THEN clock ELSE 'measured' END, 'latency'
    FROM saves WHERE i <= 6
    UNION ALL SELECT 30, 7, 'What does bounded replay save?',
           printf('%d more pairs of runs are in the summary.', COUNT(*)), '', 'overview'
    FROM saves WHERE i > 6 HAVING COUNT(*) > 0
    UNION ALL SELECT 40, MIN(1000 * ladder_id + rung), 'What does it cost in quality?',
           printf('"%s": mean KL %.2e nats from exact recomputation, %s.', name, value, f.note), 'measured', 'ladder'
    FROM v_ladder_figures f JOIN ladder_rungs USING (ladder_id, rung, name)
    WHERE metric = 'kl_mean' AND rung = (SELECT MAX(rung) FROM ladder_figures m JOIN ladder_rungs g USING (ladder_id,
          rung) WHERE m.ladder_id = f.ladder_id AND m.metric = 'kl_mean' AND NOT g.beyond)
          AND COALESCE(f.run_id, 0) NOT IN (SELECT run_id FROM pairs WHERE place = 1 AND quality_positions > 0)
    GROUP BY name, value, f.note            -- once, where ladders share it
    UNION ALL SELECT 40, 1000000 + p.run_id, 'What does it cost in quality?',
           printf('%s, model %s (%s): mean KL %.2e nats from exact recomputation, the same most likely token at %.2f '
                  || '%% of %,d positions%s.', p.label, model_name, model_origin, kl_mean, 100 * top1_rate,
                  quality_positions, CASE runs.status WHEN 'finished' THEN '' ELSE '; it has not finished' END),
           'measured', 'quality'
    FROM pairs p JOIN runs USING (run_id) WHERE place = 1 AND quality_positions > 0
    UNION ALL SELECT 40, 2000000 + 1000 * audit_id + arm_id, 'What does it cost in quality?',
           printf('%s: mean KL %.2e nats (%s), the same most likely token at %.2f %% of %,d positions of %d '
                  || 'documents: %s.', label, kl_mean,
                  CASE WHEN kl_lo IS NULL THEN 'no interval' ELSE printf('%.2e to %.2e', kl_lo, kl_hi) END,
                  100 * top1_rate, COALESCE(positions, kept_positions), docs, COALESCE(verdict, 'not finished')),
           'measured', 'audit'
    FROM v_audit WHERE control = '' AND kl_mean IS NOT NULL
    UNION ALL SELECT 50, c.claim_id, 'What of the other claims of that source?',
           printf('%s%s: published %g %s, %s.', metric, CASE condition WHEN '' THEN '' ELSE ', ' || condition END,
                  published, unit,
                  CASE WHEN ours IS NULL THEN 'not tested: ' || RTRIM(why, '.')
                  ELSE printf('ours %.4g, %s', ours, verdict) END),
           provenance, 'claims'
    FROM v_claims c JOIN headline h ON h.source = c.source AND h.claim_id <> c.claim_id
    UNION ALL SELECT 60, arm, printf('How much throughput is left at %g tok/s/user?', floor_tok_s_user),
           CASE WHEN total_tok_s IS NOT NULL
                THEN printf('%s: %,d tok/s of all GPUs, cached input included (%,d on straight lines), %s; TTFT p90 '
                            || '%,d ms.', arm_label, CAST(ROUND(total_tok_s) AS INTEGER),
                            CAST(ROUND(total_tok_s_linear) AS INTEGER),
                            seeds, CAST(ROUND(ttft_p90_ms) AS INTEGER))
                WHEN points = 1 THEN printf('%s: one point, at %.1f tok/s/user; the floor is %s.', arm_label, x_max,
                                            CASE WHEN x_max >= floor_tok_s_user THEN 'kept' ELSE 'missed' END)
                WHEN floor_tok_s_user < x_min
                THEN printf('%s: at least %,d tok/s of all GPUs, what its slowest point gives at %.1f tok/s/user; the '
                            || 'front is not extended.', arm_label, CAST(ROUND((SELECT MAX(f.total_tok_s)
                            FROM v_frontier f WHERE f.arm = v_frontier_at.arm)) AS INTEGER), x_min)
                ELSE printf('%s: none of its points keeps the floor, the fastest has %.1f tok/s/user.', arm_label,
                            x_max) END, CASE clock WHEN 'modelled' THEN clock ELSE 'measured' END, 'frontier'
    FROM v_frontier_at JOIN seeds USING (arm)     -- ladders say it per GPU, over all seeds
    WHERE NOT EXISTS (SELECT 1 FROM ladder_figures WHERE metric = 'tok_s_gpu_at_floor')
    UNION ALL SELECT 70, 0, 'May these numbers be quoted?',
           printf('%d of %d runs are valid: finished, something completed, errors at most a tenth of it.%s', valid,
                  runs,
                  CASE WHEN ruled > 0 THEN printf(' %d of %d kept the AgentX rules.', kept, ruled) ELSE '' END),
           '', 'overview'
    FROM valid WHERE runs > 0
    UNION ALL SELECT 70, 1, 'May these numbers be quoted?',
           printf('%d of %d controls of audits that must be exactly 0 are.', SUM(kl_mean = 0), COUNT(*)), '', 'audit'
    FROM v_audit WHERE control IN ('C0', 'C1', 'C2') HAVING COUNT(*) > 0
    UNION ALL SELECT 70, 2, 'May these numbers be quoted?',
           CASE WHEN fails = 0 THEN printf('All %d expectations of the scenario hold.', n)
                ELSE printf('%d of %d expectations of the scenario FAIL.', fails, n) END, '', 'overview'
    FROM expected WHERE n > 0
    UNION ALL SELECT 70, 3, 'May these numbers be quoted?',
           'Modelled times are prices of a cost model, for which nothing was computed: they move with its assumptions.',
           'modelled', 'manifest'
    WHERE EXISTS (SELECT 1 FROM runs WHERE clock = 'modelled')
    UNION ALL SELECT 70, 4, 'May these numbers be quoted?',
           'The weights are seeded, not trained: counts, zeros and the method carry over to a trained model, sizes of '
           || 'errors do not.', '', 'manifest'
    WHERE EXISTS (SELECT 1 FROM runs WHERE clock <> 'modelled' AND model_origin LIKE 'synthetic%')
          OR EXISTS (SELECT 1 FROM audits WHERE model_origin LIKE 'synthetic%')
    UNION ALL SELECT 70, 5, 'May these numbers be quoted?',
           'Measured times are those of the CPU engine on this machine: they compare runs with each other, vary from '
           || 'run to run, and say nothing about a GPU.', 'measured', 'manifest'
    WHERE EXISTS (SELECT 1 FROM runs WHERE clock = 'measured' AND backend = 'cpu')
    UNION ALL SELECT 80, MIN(run_id), 'What ran?',
           printf('%d %s of %s (%s), backend %s, %s, up to %d lanes.', COUNT(*),
                  CASE COUNT(*) WHEN 1 THEN 'run' ELSE 'runs' END, model_name, origin,
                  CASE backend WHEN 'http' THEN backend
                       ELSE backend || CASE device WHEN '' THEN '' ELSE ' on ' || device END || ', ' || arith END,
                  CASE clock WHEN 'modelled' THEN 'modelled time' ELSE clock || ' time' END, MAX(lanes)), '', 'manifest'
    FROM (SELECT *, CASE WHEN backend = 'http' AND model_origin LIKE 'nonce %'   -- each run has another nonce
                         THEN SUBSTR(model_origin, INSTR(model_origin, ' at ') + 1) ELSE model_origin END AS origin
          FROM runs) GROUP BY model_name, origin, backend, device, arith, clock
    UNION ALL SELECT 80, 1000000 + audit_id, 'What ran?',
           printf('An audit of %s (%s), %s on %s: %d documents with %d turns in all, %s.', model_name, model_origin,
                  arith, backend, docs, turns, documents), '', 'manifest'
    FROM audits
    -- paired comparisons: of two labels, then of runs that should be alike
    UNION ALL SELECT CASE WHEN a_label <> b_label THEN 5 ELSE 6 END, paired_id,
           CASE WHEN a_label <> b_label THEN printf('Is %s faster than %s?', b_label, a_label)
                ELSE 'Do runs of one label agree?' END,
           printf('%s%s %,.1f ms instead of %,.1f, ratio %.3f (%s), %d pairs of %d sessions, %d requests left out: %s.',
                  CASE WHEN a_label <> b_label THEN '' ELSE printf('%s, run %s against run %s: ', b_label, b_runs,
                                                                   a_runs) END,
                  CASE metric WHEN 'ttft_ms' THEN 'TTFT' WHEN 'itl_ms' THEN 'ITL' WHEN 'e2el_ms' THEN 'end to end'
                       ELSE 'end to end per token' END, mean_b, mean_a, ratio,
                  CASE WHEN ratio_lo IS NULL THEN 'no interval' ELSE printf('%.3f to %.3f', ratio_lo, ratio_hi) END,
                  pairs, sessions, left_out,
                  CASE WHEN ratio_lo IS NULL THEN 'too few sessions to tell'
                       WHEN verdict = 'holds 1' THEN CASE WHEN a_label <> b_label THEN 'no difference is shown'
                                                          ELSE 'as it should be, the interval holds 1' END
                       WHEN a_label = b_label
                       THEN 'the machine or the order of runs makes a difference of its own, so distrust the others'
                       WHEN verdict = 'less' THEN 'faster' ELSE 'slower' END), 'measured', 'overview'
    FROM v_paired WHERE ratio IS NOT NULL)
SELECT rank, question, answer, basis, section FROM said ORDER BY rank, item;
