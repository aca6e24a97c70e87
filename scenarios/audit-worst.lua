-- audit-worst: who sees the error of bounded replay? One entry per case of the worst-case list.
--
-- Time      a minute on two cores, no GPU.
-- Plays     a small audit per case on the tiny model: encoder replay, decoder replay, both, beside exact recomputation
--           in another shape. Lengths follow the model's window W; with another model change W with it.
-- Look at   the printed table: the same arms, case by case; and the expectations, which say what must hold in each.
-- The list is that of docs/AUDIT.md "Worst cases". Case 10 has no images, which the text model does not have.

local W = 16                        -- sliding window of the model
local HALO = W + 2 * (W - 1)        -- first length at which every clipped layer of the decoder is clipped in full

local cases = {
  { "1 full hit", "a fully cached prompt and one new token",
    { turns = 3, suffix = 1, answer = 8 } },
  { "2 short suffix", "one to W - 1 new tokens behind a hit",
    { turns = 4, suffix = { 1, 2, 4, 8, W - 1 }, answer = 8 } },
  { "3a prompt <= W", "decoder replay of prompts no longer than the window",
    { turns = 1, prompts = { 2, W - 1, W }, answer = 24 } },
  { "3b prompt > W", "decoder replay of prompts of W + 1, 2 W, the first full clip, and long ones",
    { turns = 1, prompts = { W + 1, 2 * W, HALO, 8 * W }, answer = 24 } },
  { "4 last chunk", "prompts in chunks of 64 whose last one has 1, 8, W - 1, W or W + 1 rows",
    { turns = 1, prompts = { 65, 72, 64 + W - 1, 64 + W, 64 + W + 1 }, answer = 24, step_tokens = 64 } },
  { "5 entity at S", "the replay starts inside a recurring multi-token entity",
    { turns = 3, pattern = "entity", lag = 3 * W } },
  { "6 needle near S", "a fact in [H - 4 W, H - W): inside old windows, but clipped",
    { turns = 3, needles = { W + 6, 2 * W, 3 * W } } },
  { "7 copies", "text that repeats with lags of W / 2 to 3 W",
    { turns = 3, pattern = "copy", lag = 3 * W } },
  { "8a brackets", "counting: brackets to match over the last positions", { turns = 3, pattern = "brackets" } },
  { "8b runs", "long runs of one token, which only positions tell apart", { turns = 3, pattern = "run", lag = 2 * W } },
  { "9 many turns", "twelve turns, each hitting at the end of the one before",
    { docs = 4, turns = 12, suffix = { W // 8, W, 4 * W }, answer = 8 } },
  { "10 rare n-grams", "n-grams that recur across S; Engram must not notice",
    { turns = 3, pattern = "entity", lag = 2 * W, layers = { 1, 3 } } },
  { "11 odd hits", "hits that end inside a pair of positions",
    { turns = 4, prompts = 97, suffix = { 23, 24 }, answer = { 16, 17 }, hit_back = { 1, 0, 3 } } },
  { "12 drafts", "greedy decode and DSpark right behind the prompt",
    { turns = 2, greedy_tokens = 48, greedy_turns = "all", drafts = true } },
  { "13 same hit", "several continuations of one cached prompt", { turns = 2, repeats = 4 } },
}

print(string.format("%-16s %9s %22s %22s %22s", "case", "positions", "encoder kl (top1)", "decoder kl (top1)",
                    "both kl (top1)"))
local results = {}
for _, case in ipairs(cases) do
  local name, what, options = case[1], case[2], case[3]
  local o = { label = name, model = "tiny", docs = 8, prompts = { 96, 120 }, suffix = { 24, 9 }, answer = 16,
              arms = { "exact hits=cold chunk=13", "encoder", "decoder", "both" } }
  for _, option in ipairs { "docs", "turns", "prompts", "suffix", "answer", "hit_back", "repeats", "pattern", "lag",
                            "needles", "layers", "step_tokens", "greedy_tokens", "greedy_turns", "drafts" } do
    if options[option] ~= nil then o[option] = options[option] end
  end
  local r = audit(o)
  local a = r.arms
  results[name] = a
  local function cell(arm) return string.format("%.3g (%.3f)", arm.kl_mean, arm.top1_rate) end
  print(string.format("%-16s %9d %22s %22s %22s", name, r.positions, cell(a.encoder), cell(a.decoder), cell(a.both)))
  expect { what = name .. " (" .. what .. "): exact in another shape is the same", value = a[1].kl_max, eq = 0 }
  expect { what = name .. ": decoder replay leaves the cache alone", value = a.decoder.global_differ, eq = 0 }
  expect { what = name .. ": no replay changes cached rows", value = a.encoder.adopted_changed + a.both.adopted_changed,
           eq = 0 }
end

expect { what = "prompts no longer than the window are untouched by decoder replay",
         value = results["3a prompt <= W"].decoder.kl_max, eq = 0 }
expect { what = "longer ones are not", value = results["3b prompt > W"].decoder.kl_max > 0, eq = true }
expect { what = "a prompt without a hit is untouched by encoder replay",
         value = results["3b prompt > W"].encoder.kl_max, eq = 0 }
expect { what = "one new token behind a full hit sees it",
         value = results["1 full hit"].encoder.kl_mean > 0, eq = true }
expect { what = "odd hits see it", value = results["11 odd hits"].encoder.kl_mean > 0, eq = true }
