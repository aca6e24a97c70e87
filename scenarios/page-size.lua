-- page-size: how many prompt tokens does a prefix cache lose to the size of its pages?
--
-- Time      a few seconds on two cores.
-- Plays     the small recorded sessions on the tiny model with both replays and pages of 4 to 64 tokens.
-- Look at   hit rate: only whole pages are shared, so it can only fall as pages grow.

local base = {
  model = "tiny", trace = { "traces/kv-cache-tester/trace_0057.json", "traces/kv-cache-tester/trace_0103.json",
                            "traces/kv-cache-tester/trace_0538.json" },
  length_scale = 1/64, lanes = 1, think_cap_s = 1, step_tokens = 128, replay = "both",
}

local points = sweep(base, { page_tokens = { 4, 8, 16, 32, 64 } })

print(string.format("%11s %10s %10s %10s %14s", "page tokens", "prompt", "hit", "hit rate", "kv bytes peak"))
for i, r in ipairs(points) do
  print(string.format("%11d %10d %10d %10.4f %14d", r.options.page_tokens, r.in_tokens, r.hit_tokens, r.hit_rate,
                      r.kv_bytes_peak))
  if i > 1 then
    local smaller = points[i - 1]
    expect { what = r.label .. ": no more hits than with smaller pages", value = r.hit_tokens, le = smaller.hit_tokens }
  end
end
