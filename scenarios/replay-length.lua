-- replay-length: how does the error of bounded replay shrink as more tokens are fed again, and is it gone at the halo?
--
-- Time      about ten seconds on two cores.
-- Plays     two short sessions on the tiny model (window 16, 8 layers, cut at layer 4) with growing replay lengths.
-- Look at   kl mean against rows. At the halo every window is rebuilt from the tokens it really depends on, so the
--           error must be exactly 0, not just small: (W - 1) * layers = 120 rows for encoder replay, and
--           W + (J - 1) * (W - 1) = 46 rows with J = 3 clipped layers for decoder replay. A number other than 0 there
--           is a bug in the engine.
-- Prefix hits no longer than encoder_rows are adopted too (adopt_short_hits), so that every length sees the same hits.

local base = {
  model = "tiny", trace = "traces/kv-cache-tester/trace_0187.json,traces/kv-cache-tester/trace_0504.json",
  length_scale = 1/32, lanes = 1, think_cap_s = 1, step_tokens = 512, quality = true, adopt_short_hits = true,
}

local function show(name, key, points)
  print(string.format("%s replay: %6s %10s %12s %12s %8s", name, "rows", "replayed", "kl mean", "kl p99", "top1"))
  for _, r in ipairs(points) do
    print(string.format("%s         %6d %10d %12.3g %12.3g %8.4f", name, r.options[key], r.replayed_tokens, r.kl_mean,
                        r.kl_p99, r.top1_rate))
  end
  local first, last = points[1], points[#points]
  expect { what = name .. " replay: positions were scored", value = last.quality_rows, ge = 1 }
  if #points > 1 then
    expect(name .. " replay: one window of rows leaves an error", first.kl_mean > 0)
    expect { what = name .. " replay: no error at the halo", value = last.kl_mean, eq = 0 }
  end
end

base.replay = "encoder"
show("encoder", "encoder_rows", sweep(base, { encoder_rows = { 16, 32, 64, 96, 120 } }))

base.replay = "decoder"
show("decoder", "decoder_rows", sweep(base, { decoder_rows = { 16, 24, 31, 46 } }))
