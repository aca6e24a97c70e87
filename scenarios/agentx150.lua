-- agentx150: how much throughput is left at 150 tok/s per user on described hardware, exact against bounded replay?
--
-- Time      ten seconds: no GPU and no numerics, steps are priced by the cost model (clock = "modelled")
-- Plays     48 recorded coding-agent sessions at full length by the AgentX rules (the fast ones: 20 minutes, one
--           warm-up request a lane), real layer shapes with 128 experts on one H200. All arms have the same memory:
--           exact and decoder keep stored windows in it, encoder and both have it all for KV pages.
-- Look at   p90 interactivity against total tok/s, the front of each arm, its value at 150, and TTFT beside it. Every
--           figure is modelled: it moves with the efficiencies in scenarios/hardware/h200.lua. A point is
--           valid when it kept the rules; modelled time and a reduced model are no submission.

local base = {
  rules = "agentx-fast", model = "flash-e128", clock = "modelled", hardware = "h200",
  trace = "traces/kv-cache-tester/corpus48.jsonl.gz", page_tokens = 64, step_tokens = 4096,
  floor = { tok_s_user = 150, percentile = 90 },
}
local windows = { exact = 2e9 // 1 | 0, decoder = 2e9 // 1 | 0, encoder = 0, both = 0 }   -- bytes of stored windows

print(string.format("%-8s %5s %9s %12s %12s %14s %10s %6s", "replay", "lanes", "requests", "ttft p50 ms", "ttft p90 ms",
                    "interactivity", "tok/s", "valid"))
local fronts = {}
for _, replay in ipairs { "exact", "decoder", "encoder", "both" } do
  local points = {}
  for _, lanes in ipairs { 1, 2, 4, 8 } do
    base.replay, base.lanes, base.window_cache_bytes = replay, lanes, windows[replay]
    base.label = replay .. " " .. lanes
    local r = run(base)
    points[#points + 1] = r
    print(string.format("%-8s %5d %9d %12.1f %12.1f %14.1f %10.0f %6s", replay, lanes, r.requests, r.ttft_p50_ms,
                        r.ttft_p90_ms, r.interactivity_p90, r.total_tok_s, r.submission_valid and "yes" or "no"))
    expect { what = base.label .. ": no request failed", value = r.errors, eq = 0 }
  end
  fronts[replay] = frontier(points)
end

for _, replay in ipairs { "exact", "decoder", "encoder", "both" } do
  local steffen, linear = fronts[replay]:at(150)
  print(string.format("%-8s tok/s at 150 tok/s/user (modelled): %s", replay, steffen and
    string.format("%.0f on the Steffen curve, %.0f on straight lines", steffen, linear) or "outside the front"))
end
