-- capacity: how many agents fit in the memory of described hardware, with stored windows and with encoder replay?
--
-- Time      ten seconds (clock = "modelled": no GPU, no numerics)
-- Plays     48 recorded coding-agent sessions at full length, more and more lanes, and the KV pages that 1.5 GB
--           hold. With stored windows a part of the memory goes to them; with encoder replay all of it holds KV pages.
-- Look at   the hit rate: while the agents' contexts fit it stays near its best, then it falls, and TTFT rises with it.
--           The last number of lanes before the fall is the capacity.

local gigabytes, page_tokens, token_bytes = 1.5, 64, 890
local function pages(bytes) return bytes // (page_tokens * token_bytes) | 0 end

local base = {
  model = "flash-e32", clock = "modelled", hardware = "h200", trace = "traces/kv-cache-tester/corpus48.jsonl.gz",
  turns_max = 12, think_cap_s = 60, page_tokens = page_tokens, step_tokens = 4096,
}
local arms = {
  { name = "stored windows", replay = "exact", windows = 0.5e9 },
  { name = "encoder replay", replay = "encoder", windows = 0 },
}

print(string.format("%-16s %5s %9s %12s %12s %10s", "arm", "lanes", "hit rate", "ttft p50 ms", "ttft p90 ms", "tok/s"))
for _, arm in ipairs(arms) do
  for _, lanes in ipairs { 4, 8, 16, 32 } do
    base.replay, base.lanes, base.label = arm.replay, lanes, arm.name .. " " .. lanes
    base.window_cache_bytes = arm.windows // 1 | 0
    base.kv_pages = pages(gigabytes * 1e9 - arm.windows)
    local r = run(base)
    print(string.format("%-16s %5d %8.1f%% %12.1f %12.1f %10.0f", arm.name, lanes, 100 * r.hit_rate, r.ttft_p50_ms,
                        r.ttft_p90_ms, r.total_tok_s))
    expect { what = base.label .. ": no request failed", value = r.errors, eq = 0 }
  end
end
