-- endpoint-ab: is endpoint B faster than endpoint A on the same agent sessions, request by request?
--
-- Time      real time: four times what 30 requests take at your endpoints, behind two warm-ups. 129 s with the two
--           servers below, on two cores with a load of about 8 from other work (2026-11-30, commit dc2ae36).
-- Start     two endpoints, here two servers of cedar, one with bounded replay, and stop them afterwards:
--             ./cedar serve --model tiny --port 8000 lanes=3 threads=1 & a=$!
--             ./cedar serve --model tiny --port 8001 lanes=3 threads=1 replay=both & b=$!
--             sleep 3; ./cedar run scenarios/endpoint-ab.lua; kill -INT $a $b
--           For others, edit `arms`: two endpoints, or one endpoint with two bodies.
-- Plays     the same recorded sessions, lanes and think times against A, B, B, A, behind one first turn of each session
--           that warms up both. Contents differ from run to run, so that no run hits what another has left in the
--           prefix cache, system prompts excepted; lengths and shared prefixes are the same.
-- Look at   ratio b/a with its 95 % interval, over requests paired by session, stream and turn and resampled by
--           session: below 1, B is faster. The rows "A again" and "B again" compare an arm with itself: they show what
--           the machine and the order of runs do. An interval of theirs that leaves 1 out is warned of: one in twenty
--           does so by chance. `cedar report` has all of them (v_paired) and the answer in words.
-- Both sides are measured alike whatever the engine: wall time at the client, tokens as the endpoint counts them.
-- length_scale = 1 plays the sessions at their full length.

local arms = {
  A = { label = "A", endpoints = "http://127.0.0.1:8000" },
  B = { label = "B", endpoints = "http://127.0.0.1:8001" },
  -- one endpoint, two bodies: the same endpoints in both, and for example http_body = '{"priority": 1}' in B
}

local base = {
  backend = "http", model = "tiny", http_api = "chat",     -- model: as the endpoints call it
  trace = "traces/kv-cache-tester/trace_0057.json,traces/kv-cache-tester/trace_0103.json,"
    .. "traces/kv-cache-tester/trace_0187.json,traces/kv-cache-tester/trace_0460.json,"
    .. "traces/kv-cache-tester/trace_0504.json,traces/kv-cache-tester/trace_0538.json",
  length_scale = 1/32, lanes = 3, turns_max = 8, think_cap_s = 1, seed = 42,
}

local function play(name, turns)
  local o = {}
  for k, v in pairs(base) do o[k] = v end
  for k, v in pairs(arms[name]) do o[k] = v end
  if turns then o.turns_max, o.label = turns, name .. " warm-up" end
  return run(o)
end

play("A", 1)
play("B", 1)
local a1, b1, b2, a2 = play("A"), play("B"), play("B"), play("A")

print(string.format("%-4s %9s %7s %10s %8s %9s %12s %12s %11s %11s %10s", "arm", "requests", "errors", "prompt",
                    "answer", "hit rate", "ttft p50 ms", "ttft p90 ms", "itl p50 ms", "itl p90 ms", "tok/s"))
for _, r in ipairs { a1, b1, b2, a2 } do
  print(string.format("%-4s %9d %7d %10d %8d %9.3f %12.1f %12.1f %11.2f %11.2f %10.1f", r.label, r.requests, r.errors,
                      r.in_tokens, r.out_tokens, r.hit_rate, r.ttft_p50_ms, r.ttft_p90_ms, r.itl_p50_ms, r.itl_p90_ms,
                      r.total_tok_s))
end

print(string.format("\n%-10s %-9s %7s %9s %9s %11s %11s %9s %18s", "compared", "metric", "pairs", "sessions",
                    "left out", "mean a ms", "mean b ms", "b/a", "95 % interval"))
local function show(name, a, b, alike)
  for _, metric in ipairs { "ttft_ms", "itl_ms", "e2el_ms" } do
    local p = paired(a, b, { metric = metric })
    print(string.format("%-10s %-9s %7d %9d %9d %11.2f %11.2f %9.4f %9.4f %8.4f", name, metric:sub(1, -4), p.pairs,
                        p.sessions, p.left_out, p.mean_a, p.mean_b, p.ratio, p.ratio_lo, p.ratio_hi))
    expect { what = name .. ", " .. metric .. ": most requests have a partner", value = p.pairs,
             ge = math.max(1, 5 * p.left_out) }
    if alike and p.sessions > 1 and not (p.ratio_lo <= 1 and 1 <= p.ratio_hi) then
      print("WARNING: " .. name .. ", " .. metric .. ": 1 is not in the interval, though both sides are the same arm; "
            .. "trust no difference of this size")
    end
  end
end
show("B to A", { a1, a2 }, { b1, b2 })
show("A again", a1, a2, true)
show("B again", b1, b2, true)

for _, r in ipairs { a1, b1, b2, a2 } do
  expect { what = "run " .. r.run_id .. ", " .. r.label .. ": no request failed", value = r.errors, eq = 0 }
end
