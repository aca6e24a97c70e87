-- claims: which published figures about DeepSeek-V4.1-Flash come out again, and on which assumptions does that hang?
--
-- Time      two minutes on two cores: no GPU, no numerics
-- Plays     every row of scenarios/claims/published_claims.csv, by the first test below that fits it. Figures of a
--           shape are computed; readings of published curves are computed from the published points; speeds on GB300
--           are modelled: 48 recorded coding-agent sessions by the AgentX rules (fast), and single prompts, on
--           scenarios/hardware/gb300-tp4.lua and gb300-dep2.lua. A row that no test fits is an error.
-- Look at   the ledger (`cedar report claims.db`, `--csv v_claims`): published, ours, the interval that the assumptions
--           give, the verdict. The rules stand in the table below, before any figure; the verdicts follow from them.
--           Absolute speeds depend on assumed efficiencies and on other sessions than the published ones; ratios less.

local file = "scenarios/claims/published_claims.csv"

-- --- rules: where our figure must lie, by kind of claim --------------------------------------------------------------

local rules = {
  { kind = "bytes",     rule = "rounded",                   about = "counts of bytes: exact" },
  { kind = "count",     rule = "digit",                     about = "parameters, published in whole billions" },
  { kind = "reading",   rule = "rounded",                   about = "values read off published points" },
  { kind = "ratio",     rule = "within",   share = 0.2,     about = "modelled ratios" },
  { kind = "level",     rule = "within",   share = 0.2,     about = "modelled latencies and rates" },
  { kind = "at least",  rule = "at_least", share = 0.2,     about = "modelled, published as a lower bound" },
  { kind = "at most",   rule = "at_most",  share = 0.2,     about = "modelled, published as an upper bound" },
}
print("Rules, set before any figure is known:")
for _, r in ipairs(rules) do
  rules[r.kind] = r
  print(string.format("  %-9s %-9s %5s  %s", r.kind, r.rule, r.share and string.format("%.1f%%", 100 * r.share) or "",
                      r.about))
end

-- --- assumptions: what is varied, one at a time ----------------------------------------------------------------------

local base = { name = "base", set = {} }
local function hardware(key, lo, hi)
  local function setting(v) return { name = key .. "=" .. v, set = { assume = string.format("%s=%g", key, v) } } end
  return { name = key, lo = lo, hi = hi, at_lo = setting(lo), at_hi = setting(hi) }
end
local function option(key, lo, hi, locked)
  local function setting(v) return { name = key .. "=" .. v, set = { [key] = v, unsafe_override = locked } } end
  return { name = key, lo = lo, hi = hi, at_lo = setting(lo), at_hi = setting(hi) }
end

local of_sessions = {
  hardware("memory_efficiency", 0.35, 0.65),
  hardware("matmul_efficiency", 0.1, 0.3),
  hardware("step_host_ns", 270000, 1080000),
  hardware("eager_launch_ns", 111300, 445200),
  hardware("layer_ns", 21800, 87200),
  hardware("launch_ns", 1500, 6000),
  hardware("kernels_per_layer", 15, 20),    -- the published range
  option("acceptance_length", 3, 4),
  option("time_scale", 0.4, 1.5, true),     -- recorded delays: the published corpus has 0.4 of ours at the median
}
-- Half and twice what is described; published step lengths of single prompts are not known.
local of_prompts = {
  TP4 = { hardware("matmul_efficiency", 0.1, 0.3), hardware("eager_launch_ns", 111300, 445200),
          option("step_tokens", 16384, 65536) },
  DEP2 = { hardware("matmul_efficiency", 0.16, 0.45), hardware("eager_launch_ns", 71550, 286200),
           option("step_tokens", 16384, 65536) },
}

-- --- engines ---------------------------------------------------------------------------------------------------------

-- The first rung of ladder.lua, and its last one that is published; speculation in both, as in the published runs.
local switches = {
  day0 = { replay = "exact", graphs = "decode", kv_rows = "fp8", window_store = "paged",
           window_cache_bytes = 24000000000 },
  all = { replay = "both", graphs = "trimmed", kernels = "fused", side_stream = true, allreduce = "fused" },
}
local seeds = { 42, 43, 44 }

local function merged(...)
  local out = {}
  for _, t in ipairs { ... } do for k, v in pairs(t) do out[k] = v end end
  return out
end

-- assume = a and b: both, joined.
local function with(setting, extra)
  local out = merged(setting.set, extra)
  if setting.set.assume and extra.assume then out.assume = setting.set.assume .. "," .. extra.assume end
  return out
end

-- Played once.
local played, failed = {}, 0
local function once(name, options, keep)
  if not played[name] then
    options.label, options.keep = name, keep
    played[name] = run(options)
    failed = failed + played[name].errors
  end
  return played[name]
end

-- One run of the recorded sessions; extra: options of its own, with a name. Only the base case of the first seed is
-- stored.
local function sessions(arm, lanes, setting, extra, seed)
  local o = merged({ rules = "agentx-fast", model = "flash", clock = "modelled", hardware = "gb300-tp4", lanes = lanes,
                     trace = "traces/kv-cache-tester/corpus48.jsonl.gz", page_tokens = 64, step_tokens = 8192,
                     draft_tokens = 5, acceptance_length = 3.51, steps_per_row = 1000000, seed = seed or seeds[1] },
                   switches[arm], with(setting, extra or {}))
  local name = string.format("%s c%d%s%s%s", arm, lanes, extra and " " .. extra.name or "",
                             setting == base and "" or " " .. setting.name, seed and " seed " .. seed or "")
  o.name = nil
  return once(name, o, setting == base and not seed)
end

local function points(arm, setting, at, seed)
  local list = {}
  for i, lanes in ipairs(at) do
    local r = sessions(arm, lanes, setting, nil, seed ~= seeds[1] and seed or nil)
    list[i] = { interactivity_p90 = r.interactivity_p90, total_tok_s = r.total_tok_s / 4,
                ttft_mean_ms = r.ttft_mean_ms }
  end
  return list
end

-- One prompt: nothing cached, nobody else there.
local hardware_of = { TP4 = "gb300-tp4", DEP2 = "gb300-dep2" }
local decoder = { ["off"] = { replay = "exact", graphs = "decode" },
                  ["on, eager decoder"] = { replay = "decoder", graphs = "decode" },
                  ["on, decoder graph"] = { replay = "decoder", graphs = "trimmed" } }
local function prompt(layout, how, kilo, setting)
  local o = merged({ model = "flash", clock = "modelled", hardware = hardware_of[layout], lanes = 1,
                     prefix_cache = false, trace = "traces/cedar/prompt.json", length_scale = kilo .. "/2",
                     page_tokens = 64, step_tokens = 32768 }, decoder[how], setting.set)
  return once(string.format("%s prompt %dk %s%s", layout, kilo, how, setting == base and "" or " " .. setting.name), o,
              setting == base)
end

-- --- figures ---------------------------------------------------------------------------------------------------------

-- A modelled figure: value(setting) in the base case, and with each assumption low and high; the interval is the range
-- of all of them. Where a setting gives no value, that assumption is left out, and that is said.
local function modelled(assumptions, value, how, n)
  local ours = value(base)
  if not ours then return nil end
  local f = { ours = ours, lo = ours, hi = ours, n = n, provenance = "modelled", why = how, sensitivity = {} }
  for _, a in ipairs(assumptions) do
    local lo, hi = value(a.at_lo), value(a.at_hi)
    if lo and hi then
      f.lo, f.hi = math.min(f.lo, lo, hi), math.max(f.hi, lo, hi)
      table.insert(f.sensitivity, { assumption = a.name, setting_lo = a.lo, setting_hi = a.hi, ours_lo = lo,
                                    ours_hi = hi })
    else
      f.why = f.why .. " No value with " .. a.name .. " at both its settings."
    end
  end
  return f
end

local function computed(ours, how) return { ours = ours, provenance = "computed", why = how } end

local function number_in(row, pattern)
  local text = row.condition:match(pattern)
  if not text then error(string.format("%s:%d: condition names no %s", file, row.line, pattern)) end
  return tonumber(text)
end

local rows = published(file)
local flash = shape("flash")

local function of_shape(value, unit, how)
  return function() return computed(value / unit, how) end
end

-- The InferenceX table: concurrency by concurrency.
local ladder_metrics = {
  total_tput_per_gpu = function(r) return r.total_tok_s / 4 end,
  output_tput_per_gpu = function(r) return r.output_tok_s / 4 end,
  ttft_mean = function(r) return r.ttft_mean_ms end,
  tpot_mean = function(r) return r.itl_mean_ms end,
}
local function of_ladder(row)
  local lanes, metric = number_in(row, "concurrency=(%d+)"), ladder_metrics[row.metric]
  local first = sessions("day0", lanes, base)
  local f = modelled(of_sessions, function(s) return metric(sessions("day0", lanes, s)) end,
                     "Day-0 switches on gb300-tp4; 48 sessions of another collection than the published one.",
                     first.requests - first.warmup_requests)
  f.run = first
  return f
end

-- SGLang on two GPUs: chunk and cap from the condition.
local tp2_metrics = {
  total_tput_per_gpu = function(r) return r.total_tok_s / 2 end,
  p90_interactivity = function(r) return r.interactivity_p90 end,
  ttft_p90 = function(r) return r.ttft_p90_ms / 1e3 end,
}
local function of_tp2(row)
  local chunk, cap = number_in(row, "chunk (%d+)"), number_in(row, "cap (%d+)")
  local metric, lanes = tp2_metrics[row.metric], number_in(row, "concurrency=(%d+)")
  local extra = { name = string.format("TP2 %d cap %d", chunk, cap), assume = "gpus=2", step_tokens = chunk,
                  batch_max = cap }
  local first = sessions("day0", lanes, base, extra)
  local f = modelled(of_sessions, function(s) return metric(sessions("day0", lanes, s, extra)) end,
                     "Day-0 switches on two of the GPUs of gb300-tp4; stored windows; other sessions.",
                     first.requests - first.warmup_requests)
  f.run = first
  return f
end

-- One prompt, by length; ratios are off over on.
local kilo_of = { ["1K"] = 1, ["4K"] = 4, ["8K"] = 8, ["32K"] = 32, ["128K"] = 128 }
local function kilos(row) return kilo_of[row.condition:match("prompt (%d+K)")] end
local function layout_of(row) return row.condition:match("^(%u+%d);") end
local function of_prompt(row)
  local how, layout = row.condition:match("decoder replay (.-); prefix"), layout_of(row)
  local first = prompt(layout, how, kilos(row), base)
  local f = modelled(of_prompts[layout], function(s) return prompt(layout, how, kilos(row), s).ttft_mean_ms end,
                     "One prompt on " .. hardware_of[layout] .. "; published on GB200.", 1)
  f.run = first
  if math.abs(f.ours / prompt(layout, "off", 1, base).ttft_mean_ms - 1) < 0.001 then
    f.why = f.why .. " The host's launches take all of it, as of the 1 K anchor: it is the anchor's figure again."
  end
  return f
end
local function saving(layout, how, kilo, s)
  return prompt(layout, "off", kilo, s).ttft_mean_ms / prompt(layout, how, kilo, s).ttft_mean_ms
end
local function of_prompt_ratio(row)
  local how = row.condition:find("with eager", 1, true) and "on, eager decoder" or "on, decoder graph"
  local layout = layout_of(row)
  return modelled(of_prompts[layout], function(s) return saving(layout, how, kilos(row), s) end,
                  "One prompt on " .. hardware_of[layout] .. "; published on GB200.", 1)
end

-- Percent of TTFT saved: the least (pick = math.min) or the most over prompt lengths.
local function reduction(how, lengths, pick)
  return function()
    return modelled(of_prompts.TP4, function(s)
      local out
      for _, kilo in ipairs(lengths) do
        local percent = 100 * (1 - 1 / saving("TP4", how, kilo, s))
        out = out and pick(out, percent) or percent
      end
      return out
    end, "Decoder replay on TP4, single prompts of " .. table.concat(lengths, "k, ") .. "k tokens.", #lengths)
  end
end

-- All switches over day 0.
local function of_speedup()
  return modelled(of_sessions, function(s)
    return sessions("all", 1, s).interactivity_p90 / sessions("day0", 1, s).interactivity_p90
  end, "p90 interactivity at concurrency 1, all switches over day 0, speculation in both.",
    sessions("all", 1, base).requests - sessions("all", 1, base).warmup_requests)
end
-- tok/s/GPU at 150 tok/s/user: read off the front of each seed, and the mean.
local function at_150(arm, s)
  local sum = 0
  for _, seed in ipairs(seeds) do
    local y = frontier(points(arm, s, { 1, 2, 4, 8, 16, 24, 32, 48, 64, 96 }, seed)):at(150)
    if not y then return nil end
    sum = sum + y
  end
  return sum / #seeds
end
local function of_throughput()
  return modelled(of_sessions, function(s)
    local all, day0 = at_150("all", s), at_150("day0", s)
    return all and day0 and all / day0
  end, "tok/s/GPU at 150 tok/s/user (p90, Steffen; mean of " .. #seeds .. " seeds), all switches over day 0, "
    .. "speculation in both; on TP4, since DEP2 "
    .. "gives less there (ladder.lua). The claim also has other prompt kernels.", #seeds)
end
-- Mean TTFT at an equal throughput, read between the two points around it.
local function ttft_at(arm, tok_s_gpu, s)
  local list = points(arm, s, { 64, 128, 192, 256 })
  for i = 1, #list - 1 do
    local a, b = list[i], list[i + 1]
    if a.total_tok_s <= tok_s_gpu and tok_s_gpu <= b.total_tok_s then
      local t = (tok_s_gpu - a.total_tok_s) / (b.total_tok_s - a.total_tok_s)
      return a.ttft_mean_ms + t * (b.ttft_mean_ms - a.ttft_mean_ms)
    end
  end
end
local function of_ttft_at_load()
  return modelled(of_sessions, function(s)
    local all, day0 = ttft_at("all", 100000, s), ttft_at("day0", 100000, s)
    return all and day0 and 100 * (1 - all / day0)
  end, "Percent of mean TTFT at 100,000 tok/s/GPU, all switches against day 0.", 8)
end

-- Curves through points of the file itself. source, metric of x, how x follows from it, and which layouts.
local function published_front(source, x_metric, x_of, layouts)
  local by, list = {}, {}
  for _, r in ipairs(rows) do
    local layout, lanes = r.condition:match("(TP%d)"), r.condition:match("concurrency=(%d+)")
    if r.source:find(source, 1, true) and lanes and layouts[layout] then
      local key = layout .. " " .. lanes
      if not by[key] then
        by[key] = {}
        list[#list + 1] = by[key]
      end
      if r.metric == x_metric then by[key].interactivity_p90 = x_of(r.value) end
      if r.metric == "total_tput_per_gpu" then by[key].total_tok_s = r.value end
    end
  end
  return frontier(list)
end
local function same(v) return v end
local function of_atom(row)
  local layouts = { TP2 = row.condition:find("TP2", 1, true) ~= nil, TP4 = row.condition:find("TP4", 1, true) ~= nil }
  local steffen, linear = published_front("ROCm ATOM recipe", "p90_interactivity", same, layouts):at(150)
  local straight = row.condition:find("linear", 1, true)
  return computed(straight and linear or steffen, "Read off the published points by our frontier.")
end
local function of_tpot_curve()
  local steffen = published_front("InferenceX PR #3176", "tpot_mean", function(ms) return 1000 / ms end,
                                  { TP4 = true }):at(150)
  return computed(steffen, "Read off the published points by our frontier; x = 1000 / mean TPOT.")
end

-- --- tests: the first that fits a row is its test --------------------------------------------------------------------

-- model, hardware and metric must be equal to one of the words, source and condition hold one of them.
local function fits(row, t)
  for _, key in ipairs { "model", "hardware", "metric", "source", "condition" } do
    local words, held = t[key], not t[key]
    for _, word in ipairs(type(words) == "table" and words or { words }) do
      if key == "source" or key == "condition" then held = held or row[key]:find(word, 1, true) ~= nil
      else held = held or row[key] == word end
    end
    if not held then return false end
  end
  return true
end

local v41, pr = "DeepSeek-V4.1-Flash", "InferenceX PR #3176"
local anchor = "The hardware description was set so that this point comes out, so it is no check of the model."
local tests = {
  -- computed from the shape
  { model = v41, metric = "kv_bytes_per_token", kind = "bytes",
    figure = of_shape(flash.kv_token_bytes, 1, "Global rows and index keys of all sources.") },
  { model = v41, metric = "params_total", kind = "count",
    figure = of_shape(flash.parameters_backbone, 1e9, "All text tensors but Engram tables and draft stages.") },
  { model = v41, metric = "params_active_prefill", kind = "count",
    figure = of_shape(flash.active_prefill, 1e9, "Layers before the last KV source.") },
  { model = v41, metric = "params_active_decode", kind = "count",
    figure = of_shape(flash.active_decode, 1e9, "All layers and the head.") },
  { model = v41, metric = "engram_params", kind = "count",
    figure = of_shape(flash.parameters_engram, 1e9, "Engram tables.") },
  -- computed from published points
  { source = "derived from the ROCm ATOM recipe", kind = "reading", figure = of_atom },
  { source = "derived from PR #3176", kind = "reading", figure = of_tpot_curve },
  -- modelled
  { source = pr, metric = { "total_tput_per_gpu", "output_tput_per_gpu", "ttft_mean", "tpot_mean" },
    condition = "AgentX TP4/EP1 DSpark5 AL3.51", kind = "level", figure = of_ladder },
  { source = "InferenceX PR #3344", hardware = "GB300", condition = "AgentX TP2", kind = "level", figure = of_tp2,
    metric = { "total_tput_per_gpu", "p90_interactivity", "ttft_p90" } },
  { metric = "ttft_single", untested = anchor,
    condition = { "; prompt 1K; decoder replay off", "; prompt 128K; decoder replay off" } },
  { metric = "ttft_single", condition = { "TP4; ", "DEP2; " }, kind = "level", figure = of_prompt },
  { metric = "ttft_single_ratio", condition = { "TP4; ", "DEP2; " }, kind = "ratio", figure = of_prompt_ratio },
  { model = v41, hardware = "GB300", metric = "ttft_reduction", condition = "SWA bounded replay + CUDA graphs",
    kind = "at least", figure = reduction("on, decoder graph", { 1, 4, 8, 32, 128 }, math.min) },
  { model = v41, hardware = "GB300", metric = "prefill_compute_reduction_low", kind = "at least",
    figure = reduction("on, eager decoder", { 32, 128 }, math.min) },
  { model = v41, hardware = "GB300", metric = "prefill_compute_reduction_high", kind = "at most",
    figure = reduction("on, eager decoder", { 32, 128 }, math.max) },
  { model = v41, hardware = "GB300", metric = "speedup_low_concurrency", kind = "ratio", figure = of_speedup },
  { model = v41, hardware = "GB300", metric = { "throughput_ratio_at_interactivity", "throughput_headline" },
    kind = "ratio", figure = of_throughput },
  { model = v41, hardware = "GB300", metric = "ttft_reduction", condition = "100k tok/s/GPU", kind = "ratio",
    figure = of_ttft_at_load },
  -- not tested
  { model = v41, hardware = { "MI300X", "MI325X", "2xMI355X", "4xMI355X" },
    untested = "There is no description of this hardware: its kernels and their efficiencies are not known to us." },
  { model = "AgentX corpus", untested = "These sessions are not part of the project; ours are of another collection." },
  { model = { "DeepSeek-V4-Pro", "MiniMax-M3", "Kimi-K3", "DeepSeek-V4-Flash", "DeepSeek-V4-Flash-0731" },
    untested = "Another model: the engine and the cost model have the shapes of DeepSeek-V4.1-Flash." },
}

-- --- the ledger ------------------------------------------------------------------------------------------------------

local function test_of(row)
  for _, t in ipairs(tests) do
    if fits(row, t) then return t end
  end
  error(string.format("%s:%d: no test fits this claim: %s, %s, %s, %s", file, row.line, row.model, row.hardware,
                      row.metric, row.condition))
end

local chosen = {}
for i, row in ipairs(rows) do chosen[i] = test_of(row) end          -- all of them, before anything is played

-- A ratio so near to 1 that its rule lets no effect at all pass shows little.
local function weak(row, t)
  return t.kind == "ratio" and math.abs(row.value - 1) <= rules.ratio.share * row.value
end

local verdicts, order = {}, {}
local function count(kind, verdict)
  local key = string.format("%-11s %s", kind, verdict)
  if not verdicts[key] then order[#order + 1] = key end
  verdicts[key] = (verdicts[key] or 0) + 1
end

for i, row in ipairs(rows) do
  local t = chosen[i]
  local f = t.figure and t.figure(row)
  if f then
    local r = rules[t.kind]
    if weak(row, t) then f.why = f.why .. " The rule would also pass 1, no effect at all." end
    local verdict = claim { published = row, ours = f.ours, lo = f.lo, hi = f.hi, n = f.n, provenance = f.provenance,
                            rule = r.rule, share = r.share, why = f.why, run = f.run, sensitivity = f.sensitivity }
    count(f.provenance, verdict)
    if t.kind ~= "level" then
      print(string.format("%3d %-34s %10.6g %-12s ours %10.6g%s  %s", row.row, row.metric, row.value, row.unit, f.ours,
                          f.lo and string.format(" (%.4g to %.4g)", f.lo, f.hi) or "", verdict))
    end
  else
    claim { published = row, why = t.untested or "Our modelled points do not reach what is claimed." }
    count("", "not tested")
  end
end

expect { what = "every published row has a verdict", value = #chosen, eq = #rows }
expect { what = "no request of any run failed", value = failed, eq = 0 }
expect { what = "bytes of global KV per token", value = flash.kv_token_bytes, eq = 890 }
table.sort(order)
for _, key in ipairs(order) do print(string.format("%4d  %s", verdicts[key], key)) end
