-- routing: how much prefix-cache hit rate, and TTFT, does the routing of requests cost with four engines?
--
-- Time      a second: no GPU and no numerics, steps are priced by the cost model (clock = "modelled")
-- Plays     48 recorded coding-agent sessions at full length, 32 at a time, on four engines of one H200 each, with room
--           for 1.5 million tokens in each prefix cache. "session" keeps a session where its first request went;
--           "prefix" goes where most of the prompt is cached; "own" is a function of this file: like "prefix", but not
--           to an engine with twice the load of the idlest. "one cache" is the limit: one engine with the memory of all
--           four, so that nothing can be elsewhere, and a quarter of their speed.
-- Look at   the hit rate of each way of routing against the session's own and against one cache, TTFT beside it, and
--           how evenly the engines are used (cedar report --csv v_engines). All figures are modelled.

local base = {
  model = "flash-e32", clock = "modelled", hardware = "h200", trace = "traces/kv-cache-tester/corpus48.jsonl.gz",
  lanes = 32, page_tokens = 64, step_tokens = 8192, replay = "both", start_lo = 0.25, start_hi = 0.75,
  recycle = true, requests_max = 4000, engines = 4, kv_pages = 24000, steps_per_row = 64,
}

-- The engine with most of the prompt cached, among those whose load is at most twice that of the idlest.
local function own(request, engines)
  local idlest, best = math.huge, nil
  for _, e in ipairs(engines) do idlest = math.min(idlest, e.waiting + e.running) end
  for i, e in ipairs(engines) do
    local fits = e.waiting + e.running <= 2 * idlest + 1
    if fits and (not best or e.cached_tokens > engines[best].cached_tokens) then best = i end
  end
  return best
end

print(string.format("%-14s %9s %12s %12s %14s %10s", "routing", "hit rate", "ttft p50 ms", "ttft p90 ms",
                    "interactivity", "tok/s"))
local function play(label, changes)
  local o = { label = label }
  for k, v in pairs(base) do o[k] = v end
  for k, v in pairs(changes) do o[k] = v end
  local r = run(o)
  print(string.format("%-14s %8.1f%% %12.1f %12.1f %14.1f %10.0f", label, 100 * r.hit_rate, r.ttft_p50_ms,
                      r.ttft_p90_ms, r.interactivity_p90, r.total_tok_s))
  expect { what = label .. ": no request failed", value = r.errors, eq = 0 }
  return r
end

local one = play("one cache", { engines = 1, kv_pages = 4 * base.kv_pages })
local session = play("session", { routing = "session" })
local prefix = play("prefix", { routing = "prefix" })
play("own", { routing = own })
play("least_loaded", { routing = "least_loaded" })
local round = play("round_robin", { routing = "round_robin" })
expect { what = "a session's own engine finds more than one after the other", value = session.hit_rate - round.hit_rate,
         ge = 0 }
expect { what = "where most is cached is no worse than one after the other", value = prefix.hit_rate - round.hit_rate,
         ge = 0 }
