-- quickstart: what do the three forms of bounded replay cost in quality, and what do they save?
--
-- Time      under a minute on two cores, no GPU.
-- Plays     six recorded coding-agent sessions on the tiny model, at 1/32 of their length, four at a time; the same
--           requests once per arm: exact, decoder replay, encoder replay, both.
-- Look at   kl and top1: 0 and 1 for the exact arm, since scoring exact against exact must find nothing; and at
--           trimmed, replayed and window bytes: the work and the memory that the approximations save.
-- Speeds of the tiny model on a CPU say nothing about the real model; the quality method and the counts are real.

local traces = {}
for _, number in ipairs { "0057", "0103", "0187", "0242", "0504", "0538" } do
  traces[#traces + 1] = "traces/kv-cache-tester/trace_" .. number .. ".json"
end

local base = {
  model = "tiny", trace = traces, length_scale = 1/32, lanes = 4, turns_max = 4,
  page_tokens = 16, step_tokens = 128, quality = true,
}

local arms = sweep(base, { replay = { "exact", "decoder", "encoder", "both" } })

print(string.format("%-8s %8s %8s %8s %8s %8s %12s %8s %10s %8s", "replay", "requests", "prompt", "hit", "replayed",
                    "trimmed", "window bytes", "scored", "kl mean", "top1"))
for _, r in ipairs(arms) do
  print(string.format("%-8s %8d %8d %8d %8d %8d %12d %8d %10.3g %8.4f", r.replay, r.requests, r.in_tokens,
                      r.hit_tokens, r.replayed_tokens, r.trimmed_tokens, r.window_bytes_peak, r.quality_rows,
                      r.kl_mean, r.top1_rate))
end

for _, r in ipairs(arms) do
  expect { what = r.replay .. ": no request failed", value = r.errors, eq = 0 }
  expect { what = r.replay .. ": positions were scored", value = r.quality_rows, ge = 1 }
  expect { what = r.replay .. ": the arms played the same prompts", value = r.in_tokens, eq = arms[1].in_tokens }
  if r.replay == "exact" then
    expect { what = "exact against exact is no different", value = r.kl_mean, eq = 0 }
    expect { what = "exact against exact agrees everywhere", value = r.top1_rate, eq = 1 }
    expect { what = "exact trims nothing", value = r.trimmed_tokens, eq = 0 }
  elseif r.replay ~= "encoder" then
    expect { what = r.replay .. ": rows were trimmed", value = r.trimmed_tokens, ge = 1 }
  end
  if r.replay == "encoder" or r.replay == "both" then
    expect { what = r.replay .. ": windows were replayed", value = r.replayed_tokens, ge = 1 }
    expect { what = r.replay .. ": no windows are stored", value = r.window_bytes_peak, eq = 0 }
  end
end
