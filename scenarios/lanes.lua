-- lanes: how do speed per user and total throughput trade off as more sessions run at the same time?
--
-- Time      about ten seconds on two cores; one point: cedar run scenarios/lanes.lua lanes=2
-- Plays     the small recorded sessions on the tiny model with 1, 2, 4 and 8 lanes, exact and with both replays.
-- Look at   interactivity (1 / p90 of the inter-token latency, tok/s/user) against total tok/s: the curve that a speed
--           floor cuts. Then the last columns: both replays relative to exact at the same number of lanes.

local base = {
  model = "tiny", trace = "traces/kv-cache-tester/trace_0057.json,traces/kv-cache-tester/trace_0103.json,"
    .. "traces/kv-cache-tester/trace_0187.json,traces/kv-cache-tester/trace_0460.json,"
    .. "traces/kv-cache-tester/trace_0504.json,traces/kv-cache-tester/trace_0538.json",
  length_scale = 1/64, turns_max = 6, passes = 2, order = "shuffle", think_cap_s = 10, step_tokens = 128,
}

local points = sweep(base, { lanes = { 1, 2, 4, 8 }, replay = { "exact", "both" } })

print(string.format("%5s %-8s %12s %12s %14s %10s %9s %11s %11s", "lanes", "replay", "ttft p50 ms", "itl p90 ms",
                    "interactivity", "tok/s", "hit rate", "ttft/exact", "tok/s/exact"))
local exact
for _, r in ipairs(points) do
  if r.replay == "exact" then exact = r end
  local ratio = compare(r, exact or r)
  print(string.format("%5d %-8s %12.3f %12.3f %14.1f %10.1f %9.3f %11.3f %11.3f", r.options.lanes, r.replay,
                      r.ttft_p50_ms, r.itl_p90_ms, r.interactivity_p90, r.total_tok_s, r.hit_rate, ratio.ttft_p50_ms,
                      ratio.total_tok_s))
  expect { what = r.label .. ": no request failed", value = r.errors, eq = 0 }
end
