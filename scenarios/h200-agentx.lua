-- h200-agentx: what does bounded replay save on agent sessions of more than 100,000 tokens, on one H200?
--
-- Time      five minutes on one H200; needs a build with CUDA and 80 GB of device memory. Without a GPU, in
--           modelled time: cedar run scenarios/h200-agentx.lua clock=modelled hardware=h200 backend=none
-- Plays     four recorded coding-agent sessions at full length (21 requests, prompts of 48,000 to 154,000 tokens), each
--           on a lane of its own, on flash-e32: all 40 layers and the full width of the model, 32 of its experts,
--           seeded weights. Once exact, once with decoder replay, once with both forms. Delays between turns are cut to
--           2 s, so that the lanes overlap. Graphs are split at the cut.
-- Look at   ttft of exact against replay: what the layers behind the cut no longer run; itl with several lanes at more
--           than 100,000 tokens; window MB: what stored windows cost beside the pages and encoder replay does without.
-- Seeded weights: speeds are those of this engine on this shape. Quality is not scored, since recomputing every prompt
-- would double the time; full-length.lua does that on shorter sessions.

local base = {
  model = "flash-e32", backend = "cuda", arith = "bf16", clock = "measured", graphs = "split", cut = "inside",
  trace = "traces/kv-cache-tester/trace_0091.json,traces/kv-cache-tester-long/long2.jsonl,"
    .. "traces/kv-cache-tester/trace_0058.json",
  lanes = 4, think_cap_s = 2, page_tokens = 128, step_tokens = 2048, context_max = 163840,
}

local arms = sweep(base, { replay = { "exact", "decoder", "both" } })

print(string.format("%-8s %8s %9s %9s %9s %9s %12s %12s %12s %10s %10s", "replay", "requests", "prompt", "hit",
                    "replayed", "trimmed", "ttft p50 ms", "ttft p90 ms", "itl p50 ms", "tok/s", "window MB"))
for _, r in ipairs(arms) do
  print(string.format("%-8s %8d %9d %9d %9d %9d %12.1f %12.1f %12.2f %10.1f %10.1f", r.replay, r.requests, r.in_tokens,
                      r.hit_tokens, r.replayed_tokens, r.trimmed_tokens, r.ttft_p50_ms, r.ttft_p90_ms, r.itl_p50_ms,
                      r.total_tok_s, r.window_bytes_peak / 1e6))
end

for _, r in ipairs(arms) do
  expect { what = r.replay .. ": no request failed", value = r.errors, eq = 0 }
  expect { what = r.replay .. ": the arms played the same prompts", value = r.in_tokens, eq = arms[1].in_tokens }
  expect { what = r.replay .. ": prompts of more than 100,000 tokens", value = r.in_tokens / r.requests, ge = 100000 }
  if r.replay == "exact" then
    expect { what = "exact trims nothing", value = r.trimmed_tokens, eq = 0 }
  else
    expect { what = r.replay .. " trims", value = r.trimmed_tokens, ge = 1 }
  end
  if r.replay == "both" then
    expect { what = "both replays after hits", value = r.replayed_tokens, ge = 1 }
  end
end
