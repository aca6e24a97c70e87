-- full-length: what do the forms of bounded replay save, and what do they cost, on sessions of real length on a GPU?
--
-- Time      about eight minutes on one H200; needs a build with CUDA and a GPU with 80 GB or more.
-- Plays     two recorded coding-agent sessions (8 requests, prompts of 9,000 to 14,000 tokens) two at a time on
--           flash-e32: all 40 layers and the full width of the model, 32 of its experts, seeded weights. Once per arm.
-- Look at   ttft and trimmed: what the layers behind the cut no longer run; kl and top1 of the arms against exact.
-- Seeded weights: speeds are those of this engine on this shape; the size of the errors says nothing about the model.

local base = {
  model = "flash-e32", backend = "cuda", arith = "bf16", lanes = 2, think_cap_s = 1, quality = true,
  trace = "traces/kv-cache-tester/trace_0187.json,traces/kv-cache-tester/trace_0538.json",
  page_tokens = 128, step_tokens = 2048,
}

local arms = sweep(base, { replay = { "exact", "decoder", "encoder", "both" } })

print(string.format("%-8s %8s %8s %8s %8s %12s %12s %10s %10s %8s", "replay", "prompt", "hit", "replayed", "trimmed",
                    "ttft p50 ms", "itl p50 ms", "tok/s", "kl mean", "top1"))
for _, r in ipairs(arms) do
  print(string.format("%-8s %8d %8d %8d %8d %12.1f %12.2f %10.1f %10.3g %8.4f", r.replay, r.in_tokens, r.hit_tokens,
                      r.replayed_tokens, r.trimmed_tokens, r.ttft_p50_ms, r.itl_p50_ms, r.total_tok_s, r.kl_mean,
                      r.top1_rate))
end

for _, r in ipairs(arms) do
  expect { what = r.replay .. ": no request failed", value = r.errors, eq = 0 }
  expect { what = r.replay .. ": the arms played the same prompts", value = r.in_tokens, eq = arms[1].in_tokens }
  if r.replay == "exact" then expect { what = "exact against exact is no different", value = r.kl_mean, eq = 0 } end
end
