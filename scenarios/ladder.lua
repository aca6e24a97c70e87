-- ladder: what does each optimisation give, one at a time, from a day-0 engine to bounded replay with speculation?
--
-- Time      a minute on two cores: modelled for the full model on GB300 (TP4 and DEP2), no GPU. On an engine:
--           cedar run scenarios/ladder.lua clock=measured                                  the tiny model on the CPU
--           cedar run scenarios/ladder.lua clock=measured model=flash-e32 backend=cuda arith=bf16        one H200
--           (seconds; five and a half minutes)
-- Plays     Per rung: one prompt of 1 K to 128 K tokens alone, prefix caching off (TTFT); 48 recorded coding-agent
--           sessions at full length by the fast AgentX rules, more and more lanes (ITL of one lane, throughput at
--           150 tok/s per user); and, on the tiny model, quality against exact recomputation.
-- Look at   v_ladder: each rung's figures and factors. A ladder is modelled or measured, never both. Three modelled
--           ladders: speculation as the last rung; and on every rung, as in what is published, for both layouts. No
--           quality is known of rungs that change no numerics here; FP8 rows have no engine to measure.
-- Modelled figures move with scenarios/hardware/gb300-*.lua: their anchors are no checks
-- (docs/evidence/2026-11-30-ladder.md has all comparisons with what is published).

local prompt = "traces/cedar/prompt.json"       -- 2048 tokens, scaled
local probe = run { label = "which clock", model = "tiny", clock = "modelled", hardware = "gb300-tp4", trace = prompt,
                    length_scale = 1/64, lanes = 1 }
local measured = probe.options.clock == "measured"
local gpu = probe.options.backend == "cuda"
local tiny = measured and probe.options.model == "tiny"
local model = measured and probe.options.model or "flash"

local lengths = tiny and { 1024, 2048 } or { 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072 }
local windows = 24000000000      -- bytes of stored windows: 64 for each of 128 sequences, as published recipes reserve
local speculation = { draft_tokens = tiny and 3 or 5, acceptance_length = 3.51 }

-- What a rung changes. `on`: the engine has it; "gpu": only there it makes a difference.
local all = {
  { name = "day 0", why = "exact prefill; prompts are launched kernel by kernel, decode steps as a graph; FP8 rows",
    set = { replay = "exact", graphs = "decode", kv_rows = "fp8", window_store = "paged",
            window_cache_bytes = windows } },
  { name = "FP4 rows", why = "890 bytes a token instead of 1650, the model's own format", set = { kv_rows = "fp4" } },
  { name = "exact, no graph", why = "all layers on all rows, kernel by kernel", on = "gpu",
    set = { replay = "exact", graphs = "off" } },
  { name = "exact", why = "all layers on all rows; on a GPU one graph a step", on = "any",
    set = { replay = "exact", graphs = "full" } },
  { name = "encoder replay", why = "no stored windows: their memory is for pages, and 128 tokens are fed again behind "
    .. "each hit", both = true, on = "any",
    set = { replay = "encoder", window_cache_bytes = 0 } },
  { name = "decoder replay, eager", why = "layers 21-39 run on 128 rows, launched kernel by kernel", both = true,
    on = "gpu", set = { replay = "both" }, engine = { graphs = "off" } },
  { name = "decoder replay, split graphs", why = "the trimmed layers are a graph of their own", both = true, on = "any",
    set = { replay = "both", graphs = "trimmed" }, engine = { graphs = "split" } },
  { name = "fused kernels", why = "13 kernels a layer instead of 18, residual streams read once",
    set = { kernels = "fused" } },
  { name = "side-stream overlap", why = "mHC coefficients on a second stream", set = { side_stream = true } },
  { name = "fused all-reduce", why = "with the mHC kernel behind it in one", set = { allreduce = "fused" } },
  { name = "speculation", why = "five drafts a step, 3.51 tokens on average (AgentX)", both = true, on = "any",
    speculation = true, set = speculation },
  { name = "whole prompts in graphs", why = "beyond what is published: no prompt waits for launches", beyond = true,
    set = { graphs = "split" } },
}

local function merged(...)
  local out = {}
  for _, t in ipairs { ... } do
    for k, v in pairs(t) do out[k] = v end
  end
  return out
end

local function figure(rung, metric, unit, value, more)
  if value ~= value then return end        -- NaN: not there
  table.insert(rung.figures, merged({ metric = metric, unit = unit, value = value }, more or {}))
end

-- TTFT of one prompt alone, by length.
local function single_prompts(rung, base, lengths)
  for _, n in ipairs(lengths) do
    local r = run(merged(base, { label = rung.name .. ", prompt of " .. n, trace = prompt, length_scale = n / 2048,
                                 lanes = 1, prefix_cache = false }))
    expect { what = r.label .. ": no request failed", value = r.errors, eq = 0 }
    figure(rung, "ttft", "ms", r.ttft_p50_ms, { context = n, n = 1, run = r })
    rung.ttft = r.ttft_p50_ms
  end
end

-- Divergence from exact recomputation on the tiny model; one run per form of replay, whatever else is switched.
local qualities = {}
local function quality(rung, base, note)
  local replay = base.replay
  if base.kv_rows == "fp8" then return end
  if not qualities[replay] then
    qualities[replay] = run { label = "quality of " .. replay, model = model == "flash" and "tiny" or model,
                              clock = "measured", replay = replay, quality = true, lanes = 2, turns_max = 3,
                              page_tokens = tiny and 16 or 64, step_tokens = tiny and 128 or 2048,
                              trace = "traces/kv-cache-tester/trace_0187.json,traces/kv-cache-tester/trace_0538.json",
                              length_scale = (tiny or model == "flash") and 1/32 or 1/8 }
  end
  local r = qualities[replay]
  figure(rung, "kl_mean", "nats", r.kl_mean, { n = r.quality_rows, run = r, note = note })
end

local function ladder_of(title, hardware, base, rungs, climb)
  local state, set = base, {}
  for i, rung in ipairs(rungs) do
    rung.figures = {}
    state = merged(state, rung.set)
    climb(rung, state)
  end
  for i, rung in ipairs(rungs) do
    set[i] = { name = rung.name, why = rung.why, switches = rung.set, figures = rung.figures,
               beyond = rung.beyond }
  end
  ladder { title = title, provenance = measured and "measured" or "modelled", model = model,
           hardware = hardware, rungs = set,
           note = measured and "" or "modelled time; kl_mean alone is measured, on the tiny model with seeded weights" }
end

local line = "%-30s %9.1f %10.1f %8.2f %12s %14s %10s"
local function show(rung)
  local by = {}
  for _, f in ipairs(rung.figures) do by[f.metric .. (f.context or "")] = f.value end
  print(string.format(line, rung.name, by.ttft1024, rung.ttft, by.itl or 0,
                      by.tok_s_gpu_at_floor and string.format("%.0f", by.tok_s_gpu_at_floor) or "-",
                      by.kv_tokens_max and string.format("%.1f", by.kv_tokens_max / 1e6) or "-",
                      by.kl_mean and string.format("%.3g", by.kl_mean) or "-"))
end

local function head(title, last)
  print(title)
  print(string.format("%-30s %9s %10s %8s %12s %14s %10s", "rung", "ttft 1k", "ttft " .. last, "itl ms",
                      "tok/s/GPU@150", "KV tokens, M", "kl mean"))
end

-- --- modelled -------------------------------------------------------------------------------------------------------

-- Throughput at 150 tok/s per user: read off the front of each seed; the mean, and the least and most of them.
local function at_floor(rung, points, gpus)
  local by_seed, seeds, sum, count, lo, hi = {}, {}, 0, 0
  for _, r in ipairs(points) do
    local s = r.options.seed
    if not by_seed[s] then
      by_seed[s] = {}
      seeds[#seeds + 1] = s
    end
    table.insert(by_seed[s], r)
  end
  for _, s in ipairs(seeds) do
    local at = frontier(by_seed[s]):at(150)
    if at then
      sum, count = sum + at / gpus, count + 1
      lo, hi = math.min(lo or at, at), math.max(hi or at, at)
    end
  end
  if count < #seeds then return end             -- a front that does not reach the floor, or lies above it
  figure(rung, "tok_s_gpu_at_floor", "tok/s/GPU", sum / count,
         { n = count, lo = lo / gpus, hi = hi / gpus,
           note = "on the front of p90 interactivity, between runs of different lanes; least and most of the seeds" })
end

local function agents(rung, base, lanes, gpus)
  local load = merged(base, { label = rung.name, rules = "agentx-fast", page_tokens = 64, step_tokens = 8192, seed = 42,
                              trace = "traces/kv-cache-tester/corpus48.jsonl.gz", steps_per_row = 4096 })
  local points = sweep(load, { lanes = lanes })
  local first = points[1]
  if first.options.seed == 42 then              -- other seeds say how much a figure moves; they are not stored
    for _, r in ipairs(sweep(merged(load, { keep = false }), { seed = { 43, 44 }, lanes = lanes })) do
      points[#points + 1] = r
    end
  end
  for _, r in ipairs(points) do expect { what = r.label .. ": no request failed", value = r.errors, eq = 0 } end
  figure(rung, "itl", "ms", first.itl_mean_ms, { n = first.requests - first.warmup_requests, run = first })
  figure(rung, "ttft_agentx", "ms", first.ttft_mean_ms, { n = first.requests - first.warmup_requests, run = first })
  figure(rung, "interactivity_p90", "tok/s/user", first.interactivity_p90, { run = first })
  figure(rung, "kv_tokens_max", "tokens", first.kv_tokens_fit, { run = first })
  at_floor(rung, points, gpus)
end

local function modelled(title, gpus, base, rungs, lanes)
  head(title, "128k")
  local before
  ladder_of(title, base.hardware, base, rungs, function(rung, state)
    single_prompts(rung, merged(state, { step_tokens = 32768 }), lengths)
    agents(rung, state, lanes, gpus)
    quality(rung, state, "on the tiny model, seeded weights")
    show(rung)
    if before then
      expect { what = title .. ", " .. rung.name .. ": the longest prompt takes no longer", value = rung.ttft / before,
               le = 1.02 }
    end
    before = rung.ttft
  end)
end

local function rungs_for(wanted)
  local out = {}
  for _, r in ipairs(all) do
    local set = merged(r.set, measured and r.engine or {})
    if wanted(r) then out[#out + 1] = { name = r.name, why = r.why, set = set, beyond = r.beyond } end
  end
  return out
end

if not measured then
  local base = { model = "flash", clock = "modelled", hardware = "gb300-tp4" }
  local function modelled_rung(r) return r.both or not r.on end
  local function same_drafts(r) return modelled_rung(r) and not r.speculation end
  modelled("TP4, speculation last", 4, base, rungs_for(modelled_rung), { 1, 2, 4, 8, 16, 32, 64, 128 })
  modelled("TP4, speculation on every rung, as published", 4, merged(base, speculation), rungs_for(same_drafts),
           { 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128 })
  modelled("DEP2, speculation on every rung, as published", 2, merged(base, speculation, { hardware = "gb300-dep2" }),
           rungs_for(same_drafts), { 1, 4, 8, 12, 16, 24, 32, 64 })
  return
end

-- --- measured -------------------------------------------------------------------------------------------------------

local rungs = rungs_for(function(r) return r.on == "any" or r.on == "gpu" and gpu end)
local base = { model = model, clock = "measured", page_tokens = tiny and 16 or 64 }
head("measured", tiny and "2k" or "128k")
ladder_of("on the engine at hand", "the " .. (gpu and "GPU" or "CPU") .. " of its runs", base, rungs,
          function(rung, state)
  state = merged(state, { kv_rows = "fp4", window_cache_bytes = 0 })
  single_prompts(rung, merged(state, { step_tokens = 2048 }), lengths)
  local r = run(merged(state, { label = rung.name .. ", agents", lanes = 2, think_cap_s = 1, turns_max = 3,
                                trace = "traces/kv-cache-tester/trace_0187.json,traces/kv-cache-tester/trace_0538.json",
                                length_scale = tiny and 1/32 or 1, step_tokens = tiny and 128 or 2048 }))
  expect { what = r.label .. ": no request failed", value = r.errors, eq = 0 }
  figure(rung, "itl", "ms", r.itl_mean_ms, { n = r.requests, run = r })
  figure(rung, "ttft_agents", "ms", r.ttft_mean_ms, { n = r.requests, run = r })
  figure(rung, "total_tok_s", "tok/s", r.total_tok_s, { n = r.requests, run = r })
  figure(rung, "window_bytes", "bytes", r.window_bytes_peak, { run = r })
  quality(rung, state, "seeded weights")
  show(rung)
end)
