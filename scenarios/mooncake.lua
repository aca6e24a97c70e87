-- mooncake: how much of a chat workload's prompts is shared between users, and does the cache find it?
--
-- Time      about half a minute on two cores.
-- Plays     the first requests of the Mooncake conversation trace (512-token blocks with ids that are comparable
--           between requests) on the tiny model at 1/128 of their length, with and without the prefix cache.
-- Look at   hit rate and TTFT. In this trace nearly all requests share their first block only; long shared prefixes
--           belong to agent sessions (scenarios/lanes.lua). Encoder replay finds the same prefixes and adopts none:
--           it would have to feed all of a hit that is no longer than the window again. Try adopt_short_hits=true.

local base = {
  model = "tiny", trace = "traces/mooncake/conversation_trace.first600.jsonl", traces_max = 96, requests_max = 96,
  length_scale = 1/128, lanes = 8, page_tokens = 4, step_tokens = 128,
}

local points = sweep(base, { replay = { "exact", "encoder" }, prefix_cache = { true, false } })

print(string.format("%-8s %-6s %10s %10s %10s %12s %12s", "replay", "cache", "prompt", "hit", "hit rate", "ttft p50 ms",
                    "ttft p90 ms"))
for _, r in ipairs(points) do
  print(string.format("%-8s %-6s %10d %10d %10.4f %12.3f %12.3f", r.replay, r.options.prefix_cache and "on" or "off",
                      r.in_tokens, r.hit_tokens, r.hit_rate, r.ttft_p50_ms, r.ttft_p90_ms))
  if not r.options.prefix_cache then
    expect { what = r.label .. ": no hits without a cache", value = r.hit_tokens, eq = 0 }
  end
end
