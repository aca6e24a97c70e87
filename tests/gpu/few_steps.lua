-- few_steps: eight steps of the tiny model, for tools that slow a GPU down: a prompt of 64 rows (kernels for many
-- rows), then a few rows each (kernels for few), with decoder replay and verified drafts.

local r = run { model = "tiny", backend = "cuda", arith = "bf16", replay = "decoder", decoder_rows = 16, lanes = 1,
                trace = "tests/gpu/few_steps.json", page_tokens = 16, step_tokens = 64,
                context_max = 128, draft_tokens = 2 }
expect { what = "no request failed", value = r.errors, eq = 0 }
expect { what = "the prompt was trimmed", value = r.trimmed_tokens, ge = 1 }
