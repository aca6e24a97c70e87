-- Runs, two ladders and claims for the tests of the HTML report. The figures are made up: what is tested is that the
-- page shows them as the database has them.
local base = {
  model = "tiny", trace = { "traces/kv-cache-tester/trace_0057.json", "traces/kv-cache-tester/trace_0103.json" },
  length_scale = 1/64, turns_max = 3, page_tokens = 16, step_tokens = 64, quality = true,
  floor = { tok_s_user = 100, percentile = 90 },
}
sweep(base, { replay = { "exact", "both" }, lanes = { 1, 2 } })

local function rungs(scale, names)
  local list = {}
  for i, name in ipairs(names) do
    local figures = {
      { metric = "itl", value = 8.5 / scale ^ (i - 1), unit = "ms", n = 40 },
      { metric = "tok_s_gpu_at_floor", value = 11234.5 * (i == 3 and 2.5 or 1) * scale ^ (i - 1), unit = "tok/s/GPU",
        n = 40 },
      { metric = "kv_tokens_max", value = 1234567 * i, unit = "tokens", n = 1 },
    }
    for j, context in ipairs { 1024, 4096, 8192, 32768, 131072 } do
      figures[#figures + 1] = { metric = "ttft", context = context, value = 103.25 * 2 ^ j / scale ^ (i - 1), unit =
        "ms",
                                lo = 100 * 2 ^ j / scale ^ (i - 1), hi = 110 * 2 ^ j / scale ^ (i - 1), n = 3 }
    end
    if i == #names then figures[#figures + 1] = { metric = "kl_mean", value = 0.0108, unit = "nats", n = 258,
                                                  note = "258 positions of the tiny model" } end
    list[i] = { name = name, why = "why of " .. name, switches = { graphs = name }, figures = figures }
  end
  return list
end
ladder { title = "One GPU <script>alert(1)</script>", provenance = "measured", hardware = "H200", model = "flash-e32",
         rungs = rungs(1.1, { "day 0", "FP4 rows", "decoder replay" }) }
ladder { title = "Four GPUs", provenance = "modelled", hardware = "GB300", model = "flash",
         rungs = rungs(1.3, { "day 0", "FP4 rows", "decoder replay", "graphs" }) }

local row = 0
local function published(metric, condition, value, unit, source)
  row = row + 1
  return { row = row, source = source or "A blog", date = "2026-10-07", model = "DeepSeek-V4.1-Flash", hardware =
    "GB300",
           engine = "vLLM", metric = metric, condition = condition, value = value, unit = unit, last_digit = 0.01,
           url = "https://example.org/" .. row }
end
claim { published = published("speedup_low_concurrency", "low latency", 1.9, "x"), why = "No such engine here." }
claim { published = published("throughput_ratio_at_interactivity", "at 150 tok/s/user", 5.3, "x"), ours = 4.87, lo =
  4.1,
        hi = 5.9, n = 9, provenance = "modelled", rule = "within", share = 0.2, why = "By the second ladder.",
        sensitivity = { { assumption = "matrix efficiency", setting_lo = 0.2, setting_hi = 0.4, ours_lo = 3.9, ours_hi
          = 5.6 },
                        { assumption = "launch time, us", setting_lo = 2, setting_hi = 8, ours_lo = 5.1, ours_hi = 4.5
                          } } }
claim { published = published("kv_bytes_per_token", "FP4", 890, "bytes/token"), ours = 890, provenance = "computed",
        rule = "rounded" }
for i, concurrency in ipairs { 1, 2, 4, 8, 16, 32, 64, 128 } do
  local condition = "TP4 concurrency=" .. concurrency .. "; mean"
  claim { published = published("total_tput_per_gpu", condition, 6000.5 * i, "tok/s/GPU", "A PR"), ours = 5500.25 * i,
          lo = 5000 * i, hi = 6000 * i, n = i, provenance = "modelled", rule = "within", share = 0.05 }
  claim { published = published("ttft_mean", condition, 450 - i, "ms", "A PR"), ours = 300 + 20 * i,
          provenance = "modelled", rule = "within", share = 0.2 }
end
for i, kilo in ipairs { 1, 4, 8, 32, 128 } do
  local condition = "TP4; prompt " .. kilo .. "K; decoder replay off over on with decoder graph"
  claim { published = published("ttft_single_ratio", condition, 1.5 + 0.01 * i, "x", "Figure 4"), ours = 1.2 + 0.1 * i,
          provenance = "modelled", rule = "within", share = 0.2 }
  claim { published = published("ttft_single_ratio", "DEP2; prompt " .. kilo .. "K; off over on", 1.6, "x", "Figure 4"),
          why = "Not described." }
end
