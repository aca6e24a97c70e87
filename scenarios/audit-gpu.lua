-- audit-gpu: the audit at the real model's depth and width: 40 layers, window 128, on a GPU.
--
-- Time      three minutes on one H200; needs a build with CUDA and a GPU with 80 GB or more.
-- Plays     twenty documents of ten turns on flash-e32 (seeded weights), each turn hitting at the previous turn's end:
--           1,000 tokens of prompt, then 180 new ones and 128 of forced answer per turn; 10^5 positions of the arms.
-- Look at   the control first: exact recomputation in chunks of 96 rows must be exactly 0. Then KL by offset against
--           the fronts at H + 126, 888, 1,650, 2,412 and 4,952, and by turn.
-- The same audit on the tiny model, on a CPU and on a GPU, for comparing the two:
--           cedar run scenarios/audit-gpu.lua model=tiny backend=cpu arith=f32 docs=4
-- Seeded weights: the size of the errors says nothing about the trained model (docs/AUDIT.md).

local r = audit {
  label = "flash-e32", model = "flash-e32", backend = "cuda", arith = "bf16",
  docs = 20, turns = 10, prompts = 1000, suffix = 180, answer = 128,
  arms = { "encoder", "decoder", "both", "exact chunk=96" },
  greedy_tokens = 32, globals = 4, page_tokens = 64, step_tokens = 2048, score_rows = 256,
  margin_kl = 0.001, margin_dlogp = 0.001, margin_top1 = 0.001,
}

local scored = 0
for _, a in ipairs(r.arms) do
  print(string.format("%-16s %-3s %7d positions  KL %.3g (%.3g to %.3g)  largest %.3g", a.label, a.control, a.positions,
                      a.kl_mean, a.kl_lo, a.kl_hi, a.kl_max) ..
        string.format("  top-1 %.4f  dlogp %.3g  greedy %.1f  %s", a.top1_rate, a.dlogp_mean, a.greedy_mean, a.verdict))
  if a.control == "" then scored = scored + a.positions end
end
print(string.format("%d positions of the arms; %.1f s of forward passes, %.1f s in all, %.1f %% added", scored,
                    r.forward_s, r.wall_s, 100 * r.overhead))

expect { what = "exact in another shape is exact to the bit", value = r.arms["exact chunk=96"].kl_max, eq = 0 }
expect { what = "no new global row of it differs", value = r.arms["exact chunk=96"].global_differ, eq = 0 }
expect { what = "decoder replay leaves the cache alone", value = r.arms["decoder"].global_differ, eq = 0 }
expect { what = "no replay changes cached rows",
         value = r.arms["encoder"].adopted_changed + r.arms["both"].adopted_changed, eq = 0 }
expect { what = "encoder replay is not exact", value = r.arms["encoder"].kl_max > 0, eq = true }
