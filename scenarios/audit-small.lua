-- audit-small: what does bounded replay cost on a trained model, in held-out text and in agents' transcripts?
--
-- Time      26 minutes of processor time on two threads, no GPU.
-- Plays     models/small (16 layers, window 128, trained on bytes) over models/small/documents.json: 20 held-out texts
--           and 12 transcripts of 2,000 tokens in four turns, each turn hitting at the previous turn's end; then, three
--           turns each, controls C0 to C2 on the first two of them and C3 to C5 on the first sixteen.
-- Look at   the controls first: C0 to C2 must be exactly 0, C3 must fall with the replay length, floor and shift of C4
--           must cost more than clean replay of the same documents; C5 are sizes to compare with. Then the arms, their
--           intervals over documents and the verdicts against the margins below, which were fixed before the audit
--           was run; KL by offset and by turn.
-- The encoder halo (2,032) is longer than these documents: C2 replays all of a prompt. The model is small and was
-- trained for nine minutes: sizes need not carry over to the real one (docs/AUDIT.md). Longer documents, and more:
--   python3 tools/train/documents.py CORPUS.xz build/documents.json --texts 40 --transcripts 40 --tokens 8000
--   cedar run scenarios/audit-small.lua documents=build/documents.json

-- At most so many documents of the file, and turns of each.
local function play(label, docs, turns, arms)
  local r = audit {
    label = label, model = "models/small", documents = "models/small/documents.json",
    docs = docs, turns = turns, arms = arms,
    margin_kl = 0.001, margin_dlogp = 0.001, margin_top1 = 0.001,
  }
  for _, a in ipairs(r.arms) do
    print(string.format("%-24s %-3s %7d positions  KL %.3g (%.3g to %.3g)  largest %.3g", a.label, a.control,
                        a.positions, a.kl_mean, a.kl_lo, a.kl_hi, a.kl_max) ..
          string.format("  top-1 %.4f  dlogp %.3g  new rows %.1f %%  %s", a.top1_rate, a.dlogp_mean,
                        100 * a.global_differ / a.global_rows, a.verdict))
    if a.fault_kl == a.fault_kl then
      print(string.format("  beside clean replay: KL %+.3g (%+.3g to %+.3g)", a.fault_kl, a.fault_lo, a.fault_hi))
    end
    expect { what = a.label .. ": cached rows stay as they were, unless that is the fault",
             value = a.adopted_changed > 0, eq = a.label == "floor" }
  end
  print(string.format("%d positions in all; %.1f s of forward passes, %.1f %% added", r.positions, r.forward_s,
                      100 * r.overhead))
  return r.arms
end

local arms = play("small", 1000, 4, { "encoder", "decoder", "both" })
expect { what = "decoder replay leaves the cache alone", value = arms["decoder"].global_differ, eq = 0 }
expect { what = "encoder replay is not exact", value = arms["encoder"].kl_lo > 0, eq = true }

local zeros = play("small, exact", 2, 3, {
  "exact", "exact chunk=96", "encoder rows=halo", "decoder keep=halo",          -- C0, C1, C2
})
for _, a in ipairs(zeros) do
  expect { what = a.label .. ": exact to the bit", value = a.kl_max, eq = 0 }
  expect { what = a.label .. ": no new global row differs", value = a.global_differ, eq = 0 }
end

local sizes = play("small, sizes", 16, 3, {
  "encoder rows=0", "encoder", "encoder rows=384",                              -- C3
  "stale", "floor", "shift",                                                    -- C4
  "coarse", "wo_a",                                                             -- C5
})
-- `stale` is there to look at: behind a replayed window it cost hardly more than clean replay (docs/AUDIT.md).
for _, name in ipairs { "floor", "shift" } do
  expect { what = name .. ": the fault costs more than clean replay, document by document",
           value = sizes[name].fault_lo > 0, eq = true }
end
expect { what = "encoder rows=0: no replay costs more than the window", value = sizes["encoder rows=0"].kl_lo,
         ge = sizes["encoder"].kl_hi }
-- Both are far from the halo, and single positions of several nats make up much of either mean: it must not be seen to
-- be further away.
expect { what = "encoder rows=384: more than the window is not further away", value = sizes["encoder rows=384"].kl_lo,
         le = sizes["encoder"].kl_hi }
