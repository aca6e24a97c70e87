-- floor-search: how many sessions keep a speed floor, and what does a scheduler that protects it cost in TTFT?
--
-- Time      about a second: no GPU and no numerics, steps are priced by the cost model (clock = "modelled")
-- Plays     six recorded coding-agent sessions (6 turns of each) at full length, six at a time, on the real layer
--           shapes with 128 experts on one H200. The floor is 150 tok/s per user, so a step may take 6.67 ms.
-- Look at   interactivity and ttft p90 with the floor only marked, with prompts held back (floor_mode = "admit"), and
--           with a policy of the scenario's own that admits long prompts only while few requests run: speed is bought
--           with TTFT. Then the search: the largest number of lanes whose speed holds with 95 % confidence over three
--           seeds, prompts not held back.

local base = {
  model = "flash-e128", clock = "modelled", hardware = "h200", page_tokens = 64, step_tokens = 2048,
  lanes = 6, turns_max = 6, think_cap_s = 10,
  trace = "traces/kv-cache-tester/trace_0057.json,traces/kv-cache-tester/trace_0103.json,"
    .. "traces/kv-cache-tester/trace_0187.json,traces/kv-cache-tester/trace_0460.json,"
    .. "traces/kv-cache-tester/trace_0504.json,traces/kv-cache-tester/trace_0538.json",
  floor = { tok_s_user = 150, percentile = 90 },
}

local function with(changes)
  local options = {}
  for key, value in pairs(base) do options[key] = value end
  for key, value in pairs(changes) do options[key] = value end
  return options
end

local function short_first(request, state)
  return request.in_tokens < 8000 or state.running < 2
end

local marked = run(with { label = "marked" })
local kept = run(with { label = "kept", floor = { tok_s_user = 150, percentile = 90, mode = "admit" } })
local own = run(with { label = "own policy", admission = short_first })
for _, r in ipairs { marked, kept, own } do
  print(string.format("%-12s %5d requests, ttft p90 %9.1f ms, interactivity p90 %7.1f, floor %s", r.label, r.requests,
                      r.ttft_p90_ms, r.interactivity_p90, r.floor_met and "holds" or "missed"))
  expect { what = r.label .. ": no request failed", value = r.errors, eq = 0 }
  expect { what = r.label .. ": the same answers", value = r.out_tokens, eq = marked.out_tokens }
end
expect { what = "the floor is kept", value = kept.interactivity_p90, ge = 150 }
expect { what = "keeping the floor takes more and smaller steps", value = kept.steps, ge = marked.steps }

local best = search(base, { key = "lanes", lo = 1, hi = 8, seeds = 3 })
print("lanes that keep the floor:", best.found and best.value .. (best.at_hi and ", the most tried" or "") or "none")
for _, p in ipairs(best.probes) do
  print(string.format("  %d lanes: mean %.1f, lower bound %.1f, %s", p.value, p.mean, p.bound,
                      p.holds and "holds" or "misses"))
end
