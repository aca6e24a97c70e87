-- audit: what does bounded replay cost against exact recomputation, where does it begin and end, and does it build up?
--
-- Time      a minute on two cores, no GPU.
-- Plays     sixteen documents of four turns on the tiny model (window 16), each turn hitting at the previous turn's
--           end; the same forced tokens through the exact arm, the arms under test, and the controls C0 to C5.
-- Look at   the controls first: C0 to C2 must be exactly 0, C3 must fall with the replay length and reach 0, C4 must be
--           seen. Then the arms: KL by offset with the fronts marked, by turn, the contamination map, the needles; and
--           the verdicts against the margins below, which were fixed before the audit was run.
-- Sizes of errors on seeded weights say nothing about a trained model; zeros, fronts and growth do (docs/AUDIT.md).

local r = audit {
  label = "tiny", model = "tiny", docs = 16, turns = 4,
  prompts = { 96, 120, 150 }, suffix = { 24, 9, 40, 6, 64 }, answer = { 16, 24 },
  needles = { 8, 24, 40, 80 }, greedy_tokens = 16, greedy_turns = "last", drafts = true,
  margin_kl = 0.001, margin_dlogp = 0.001, margin_top1 = 0.001,
  arms = {
    "encoder", "decoder", "decoder cut=inside_clip", "both",                    -- what the audit is about
    "exact", "exact hits=cold chunk=37", "stored",                              -- C0, C1
    "encoder rows=halo", "decoder keep=halo", "both rows=halo keep=halo",       -- C2
    "encoder rows=0", "encoder rows=8", "encoder rows=32", "encoder rows=64",   -- C3
    "stale", "zero", "floor", "shift",                                          -- C4
    "coarse", "wo_a",                                                           -- C5
  },
}

print(string.format("%-26s %-8s %9s %10s %10s %8s %10s %9s %s", "arm", "control", "positions", "kl mean", "kl max",
                    "top1", "dlogp", "new rows", "verdict"))
for _, a in ipairs(r.arms) do
  print(string.format("%-26s %-8s %9d %10.3g %10.3g %8.4f %10.3g %8.1f%% %s", a.label, a.control, a.positions,
                      a.kl_mean, a.kl_max, a.top1_rate, a.dlogp_mean, 100 * a.global_differ / a.global_rows, a.verdict))
end
print(string.format("%d positions; comparing and storing added %.1f %% to %.1f s of forward passes", r.positions,
                    100 * r.overhead, r.forward_s))

local arm = r.arms
for _, a in ipairs(arm) do
  if a.control == "C0" or a.control == "C1" or a.control == "C2" then
    expect { what = a.label .. ": exact to the bit", value = a.kl_max, eq = 0 }
    expect { what = a.label .. ": no new global row differs", value = a.global_differ, eq = 0 }
  end
  if a.control == "C4" then
    expect { what = a.label .. ": the fault is seen", value = a.kl_lo, ge = 1e-3 }
  end
  expect { what = a.label .. ": cached rows stay as they were, unless that is the fault",
           value = a.adopted_changed > 0, eq = a.label == "floor" }
end
local last = math.huge
for _, name in ipairs { "encoder rows=0", "encoder rows=8", "encoder", "encoder rows=32", "encoder rows=64",
                        "encoder rows=halo" } do
  expect { what = name .. ": a longer replay is closer", value = arm[name].kl_mean < last, eq = true }
  last = arm[name].kl_mean
end
expect { what = "decoder replay leaves the cache alone", value = arm["decoder"].global_differ, eq = 0 }
expect { what = "encoder replay contaminates it", value = arm["encoder"].global_differ, ge = 1 }
expect { what = "losing the write floor is worse", value = arm["floor"].kl_lo, ge = arm["encoder"].kl_hi }
expect { what = "rows one position off are worse", value = arm["shift"].kl_lo, ge = arm["encoder"].kl_hi }
