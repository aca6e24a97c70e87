"""What a report must show, worked out from the database without the program's own queries for pages."""
import json
import math
import sqlite3

SMALL = 1e-6


def rows(db, sql, *args):
    return db.execute(sql, args).fetchall()


def open_database(path):
    db = sqlite3.connect("file:%s?mode=ro" % path, uri=True)
    db.text_factory = lambda b: b.decode("utf-8", "replace")
    return db


# --- numbers as text, written anew from docs/METRICS.md "How numbers are written" -----------------------------------

def group(text):
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, dot, rest = digits.partition(".")
    return sign + "{:,}".format(int(whole)) + dot + rest


def number(x):
    size = abs(x)
    if size >= 1e15 or 0 < size < 1e-4:
        return "%.3g" % x
    return group("%.*f" % (0 if size >= 1000 or size == 0 else 1 if size >= 100 else 2 if size >= 10 else
                           3 if size >= 0.1 else 5, x))


def share(x):
    if 0.99995 <= x < 1:
        return ">99.99%"
    return "<0.01%" if 0 < x < 0.00005 else "%.2f%%" % (100 * x)


def size(x):
    unit = 0
    while x >= 1024 and unit < 5:
        x, unit = x / 1024, unit + 1
    return "%.*f %s" % (0 if unit == 0 or x >= 100 else 1 if x >= 10 else 2, x,
                        ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit])


FORMATS = {"t": lambda x: str(x), "c": lambda x: group("%.0f" % x), "n": number, "s": share, "b": size,
           "e": lambda x: "0" if x == 0 else "%.2e" % x, "g": lambda x: "0" if x == 0 else "%+.2e" % x}


def shown(value, kind):
    if value is None:
        return "" if kind == "t" else "\u2013"
    return FORMATS[kind](value)


# --- tables: id, kinds of the columns, query over the views ----------------------------------------------------------

RUN = "run_id || ' ' || label"
CLOCKED = RUN + " || CASE clock WHEN 'modelled' THEN ' (modelled)' ELSE '' END"
TABLES = {
    "summary": ("ttcnnnnnnnsbbeesg", "SELECT " + CLOCKED + """, replay, requests, ttft_p50_ms, ttft_p90_ms, itl_p50_ms,
        itl_p90_ms, intvty_p90, total_tok_s, output_tok_s, hit_rate, kv_bytes_peak, window_bytes_peak, kl_mean, kl_p99,
        top1_rate, dlogp_mean FROM v_summary"""),
    "population": ("ttcccccccctt", """SELECT p.run_id || ' ' || p.label, p.status, p.requests, p.kept, p.excluded_phase,
        p.excluded_error, p.kept_osl_0, p.kept_osl_1, p.requests_unfinished, p.sessions_unfinished, v.ttft_guidance,
        CASE v.valid WHEN 1 THEN 'yes' ELSE 'no' END FROM v_population p, v_validity v WHERE p.run_id = v.run_id"""),
    "expectations": ("ttt", "SELECT CASE ok WHEN 1 THEN 'holds' ELSE 'FAILS' END, what, detail FROM expectations "
                            "ORDER BY ok, expect_id"),
    "latency": ("ttccccnnnnnnn", "SELECT " + RUN + """, metric, n, excluded_phase, excluded_error, excluded_undefined,
        mean_ns / 1e6, p50_ns / 1e6, p75_ns / 1e6, p90_ns / 1e6, p95_ns / 1e6, p99_ns / 1e6, std_ns / 1e6
        FROM v_latency"""),
    "floor": ("ttncntnnn", "SELECT " + CLOCKED.replace("run_id", "f.run_id").replace("label", "f.label") + """,
        f.floor_mode, f.floor_tok_s_user, f.floor_percentile, f.tok_s_user, CASE f.met WHEN 1 THEN 'yes' ELSE 'NO' END,
        f.ttft_p50_ms, f.ttft_p90_ms, f.total_tok_s FROM v_floor f JOIN runs USING (run_id)"""),
    "frontier": ("ttcnnnnnt", """SELECT arm_label || CASE clock WHEN 'modelled' THEN ' (modelled)' ELSE '' END,
        """ + RUN +
        """, lanes, intvty_p90, total_tok_s, ttft_p50_ms, ttft_p90_ms, floor_tok_s_user,
        CASE on_front WHEN 1 THEN 'yes' ELSE 'no' END FROM v_frontier"""),
    "frontier_at": ("tnnnnccnn", """SELECT arm_label || CASE clock WHEN 'modelled' THEN ' (modelled)' ELSE '' END,
        floor_tok_s_user, total_tok_s, total_tok_s_linear, ttft_p90_ms, points, knots, x_min, x_max FROM
            v_frontier_at"""),
    "steps": ("tcccnnsssncc", "SELECT " + RUN + """, steps, trimmed_steps, rows, rows_per_step, entries_per_step,
        replayed_share, kept_share, busy_share, rows_per_busy_s, waiting_max, running_max FROM v_steps"""),
    "quality": ("tcceeeeeeescsgeseg", "SELECT " + RUN + """, positions, requests, kl_mean, kl_mean_se, kl_p50,
        kl_p90, kl_p99,
        kl_p999, kl_max, top1_rate, decisive_n, decisive_rate, dlogp_mean, dlogp_mean_se, dlogp_over_01, ratio_max,
            ppl_delta
        FROM v_quality WHERE positions > 0"""),
    "cache": ("tcccssccsbbn", """SELECT c.run_id || ' ' || c.label, in_tokens, matched_tokens, hit_tokens, hit_rate,
        hit_rate_theory, replayed_tokens, trimmed_tokens, trimmed_share, kv_bytes_peak, window_bytes_peak, window_per_kv
        FROM v_cache c JOIN v_memory USING (run_id)"""),
    "misses": ("ttcc", """SELECT m.run_id || ' ' || u.label, miss, m.requests, miss_tokens FROM v_misses m
        JOIN runs u USING (run_id)"""),
    "audit": ("ttcceeeeeeescsnggt", """SELECT arm_id || ' ' || label, CASE control WHEN '' THEN 'arm' ELSE control END,
        docs, positions, kl_mean, kl_lo, kl_hi, kl_p50, kl_p99, kl_p999, kl_max, top1_rate, decisive_n, decisive_rate,
        top5_jaccard, dlogp_mean, ppl_delta, verdict FROM v_audit"""),
    "ladder-1": ("tnnnnnnnnnnnce", """SELECT rung || ' ' || name, ttft_1k_ms, ttft_4k_ms, ttft_8k_ms, ttft_32k_ms,
        ttft_128k_ms, ttft_128k_factor, itl_ms, itl_factor, tok_s_gpu_at_floor, tok_s_gpu_factor,
            tok_s_gpu_factor_first,
        kv_tokens_max, kl_mean FROM v_ladder WHERE ladder_id = 1"""),
    "ladder_figures-1": ("ttcnnntcnnt", """SELECT rung || ' ' || name, metric, context_tokens, value, lo, hi, unit,
        n, factor,
        factor_first, note FROM v_ladder_figures WHERE ladder_id = 1"""),
    "claims_summary": ("ttcnn", """SELECT verdict, provenance, claims, ratio_least, ratio_most FROM v_claims_summary
        ORDER BY verdict = 'not tested', verdict, provenance"""),
    "claims": ("ctttt" "nnnntnc" "tttttt", """SELECT claim_id, verdict, provenance, metric, condition, published,
        ours, lo,
        hi, unit, ratio, n, why, model, hardware, engine, source, date FROM v_claims
        ORDER BY verdict = 'not tested', claim_id"""),
    "sensitivity": ("cttnntnnnnn", """SELECT claim_id, metric, condition, published, ours, assumption, setting_lo,
        setting_hi, ours_lo, ours_hi, swing FROM v_claim_sensitivity"""),
    "claim_points": ("tttttcnnnnntt", """SELECT metric || ', ' || unit, series, source, hardware, axis, x, published,
        ours,
        lo, hi, ratio, provenance, verdict FROM v_claim_points WHERE tested > 1"""),
}
for twin in ("ladder", "ladder_figures"):
    TABLES[twin + "-2"] = (TABLES[twin + "-1"][0], TABLES[twin + "-1"][1].replace("ladder_id = 1", "ladder_id = 2"))


def table(db, name):
    kinds, sql = TABLES[name]
    return [[shown(value, kind) for value, kind in zip(row, kinds)] for row in rows(db, sql)]


# --- charts: id -> list of (label, points); a point is (x, y) or a bare value ----------------------------------------

def times(db, column):
    """Per run, the sorted latencies in ms with the share of requests at or below: from the raw table."""
    found = {}
    for run, label, arrival, first, last, out in rows(db, """SELECT u.run_id, u.label, arrival_ns, first_ns, last_ns,
            out_tokens FROM requests r JOIN runs u USING (run_id) WHERE phase = 'profiling' AND r.error = ''"""):
        value = None
        if column == "ttft" and first > arrival:
            value = (first - arrival) / 1e6
        elif column == "e2e" and last > arrival:
            value = (last - arrival) / 1e6
        elif column == "itl" and out >= 2 and 0 <= first < last:
            value = (last - first) / (out - 1) / 1e6
        if value is not None:
            found.setdefault("%d %s" % (run, label), []).append(value)
    return {name: [(v, (i + 1) / len(list_)) for i, v in enumerate(sorted(list_))] for name, list_ in found.items()}


def by_bin(db, sql):
    found = {}
    for name, value in rows(db, sql):
        found.setdefault(name, []).append(value)
    return found


def positive(values):
    return [v if v and v > 0 else None for v in values]


def per_arm(db, sql):
    found = {}
    for name, x, y in rows(db, sql):
        found.setdefault(name, []).append((x, y if y > 0 else None))
    return {name: points for name, points in found.items() if any(y is not None for _, y in points)}


def fronts(db):
    """Arms by the rule of docs/METRICS.md, from the options in runs.config_json; fronts by comparing all pairs."""
    points = {}
    for run, config, lanes, x, y in rows(db, """SELECT u.run_id, config_json || model_hash || trace_hash || admission,
            u.lanes, s.intvty_p90, s.total_tok_s FROM runs u JOIN v_summary s USING (run_id)"""):
        text, end = json.JSONDecoder().raw_decode(config)
        key = json.dumps({k: v for k, v in text.items() if k not in ("label", "lanes", "seed")}) + config[end:]
        if x and y:
            points.setdefault(key, []).append((x, y))
    found = []
    for arm in points.values():
        front = [p for p in arm if not any(q != p and q[0] >= p[0] and q[1] >= p[1] for q in arm)]
        found.append((sorted(front), sorted(set(arm) - set(front))))
    return found


def ladder_figures(db, ladder):
    return {(rung, metric, context): value for rung, metric, context, value in rows(
        db, "SELECT rung, metric, context_tokens, value FROM ladder_figures WHERE ladder_id = ?", ladder)}


def ladder_charts(db, ladder):
    names = dict(rows(db, "SELECT rung, rung || ' ' || name FROM ladder_rungs WHERE ladder_id = ? ORDER BY rung",
        ladder))
    figures = ladder_figures(db, ladder)
    curves = {names[r]: sorted((c, v) for (rung, metric, c), v in figures.items() if rung == r and metric == "ttft")
              for r in names}
    longest = max(c for (_, metric, c) in figures if metric == "ttft")
    factors = []
    for metric, context, less in (("tok_s_gpu_at_floor", 0, False), ("itl", 0, True), ("ttft", longest, True)):
        factors.append([(figures[r - 1, metric, context] / figures[r, metric, context]) ** (1 if less else -1)
                        for r in names if r > 1])
    return curves, factors


# --- comparing --------------------------------------------------------------------------------------------------------

def same(a, b):
    if a is None or b is None or isinstance(a, str) or isinstance(b, str):
        return a == b
    return math.isclose(a, b, rel_tol=SMALL, abs_tol=1e-12)


def first_difference(got, wanted):
    """None, or a sentence about where two nested lists part."""
    if isinstance(wanted, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
            return "%s items instead of %d" % (len(got) if isinstance(got, (list, tuple)) else "no", len(wanted))
        for i, (g, w) in enumerate(zip(got, wanted)):
            why = first_difference(g, w)
            if why:
                return "item %d: %s" % (i, why)
        return None
    return None if same(got, wanted) else "%r instead of %r" % (got, wanted)
