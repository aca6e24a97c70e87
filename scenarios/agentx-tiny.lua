-- agentx-tiny: how much throughput is left at 150 tok/s per user, exact against bounded replay, by the AgentX rules?
--
-- Time      under two minutes on two cores; one point: cedar run scenarios/agentx-tiny.lua lanes=2 replay=both
-- Plays     six recorded coding-agent sessions on the tiny model at 1/64 of their length, by the AgentX rules: lanes
--           enter their sessions in the middle, primers and warm-up requests are not scored, and sessions are recycled
--           until the time is over. Shorter prompts and a short phase break locks of the rules, so unsafe_override is
--           set and no point of this file is a valid submission.
-- Look at   p90 interactivity against total tok/s, the front of each arm, and its value at the floor. TTFT stands
--           beside every speed: a floor can be bought with it.

local base = {
  model = "tiny", rules = "agentx-fast", unsafe_override = true, length_scale = 1/64, duration_s = 20,
  context_max = 4096, step_tokens = 128,
  trace = "traces/kv-cache-tester/trace_0057.json,traces/kv-cache-tester/trace_0103.json,"
    .. "traces/kv-cache-tester/trace_0187.json,traces/kv-cache-tester/trace_0460.json,"
    .. "traces/kv-cache-tester/trace_0504.json,traces/kv-cache-tester/trace_0538.json",
  floor = { tok_s_user = 150, percentile = 90 },
}

local points = sweep(base, { lanes = { 1, 2, 4 }, replay = { "exact", "both" } })

print(string.format("%5s %-8s %9s %8s %12s %14s %11s %6s", "lanes", "replay", "requests", "warm-up", "ttft p90 ms",
                    "interactivity", "tok/s", "floor"))
local arms = { exact = {}, both = {} }
for _, r in ipairs(points) do
  table.insert(arms[r.replay], r)
  print(string.format("%5d %-8s %9d %8d %12.3f %14.1f %11.1f %6s", r.options.lanes, r.replay, r.requests,
                      r.warmup_requests, r.ttft_p90_ms, r.interactivity_p90, r.total_tok_s,
                      r.floor_met and "yes" or "NO"))
  expect { what = r.label .. ": no request failed", value = r.errors, eq = 0 }
  expect(r.label .. ": cannot be submitted", not r.submission_valid, r.invalid)
end

for _, replay in ipairs { "exact", "both" } do
  local front = frontier(arms[replay])
  local steffen, linear = front:at(150)
  print(replay, "front of " .. #front.points, "at 150 tok/s/user:", steffen or "outside the front", linear or "")
end
