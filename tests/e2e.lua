-- A small scenario for the end-to-end tests: two runs of about a second together.
local base = {
  model = "tiny", trace = { "traces/kv-cache-tester/trace_0057.json", "traces/kv-cache-tester/trace_0103.json" },
  length_scale = 1/64, lanes = 2, turns_max = 3, page_tokens = 16, step_tokens = 64,
}
for _, r in ipairs(sweep(base, { replay = { "exact", "both" } })) do
  print(r.replay, r.requests)
  expect { what = r.replay .. ": no more than 1000 prompt tokens in a step", value = r.options.step_tokens, le = 1000 }
end
