-- A small scenario for the end-to-end tests: two short runs, one with quality, in about a second.
-- The word `want` in the options below is replaced by tests that need an expectation to fail: kl=... cannot be set.
local base = {
  model = "tiny", trace = { "traces/kv-cache-tester/trace_0057.json", "traces/kv-cache-tester/trace_0103.json" },
  length_scale = 1/64, lanes = 2, turns_max = 3, page_tokens = 16, step_tokens = 64,
}
for _, r in ipairs(sweep(base, { replay = { "exact", "both" } })) do
  expect { what = r.replay .. ": requests were played", value = r.requests, ge = 1 }
  print(r.replay, r.requests)
end
