#!/usr/bin/env python3
"""Opens reports in a headless Chromium and compares what they show with their databases.

usage: report.py CEDAR OUT          from the repository root; databases, pages and pictures are kept in OUT
Needs chromium (or CHROMIUM=program). CEDAR_TALLY=FILE appends "passed failed skipped" there instead of the totals.

For each database: no console messages and no requests, charts with the database's values in them, tables and answers
with the database's values in their text, the same numbers in --text and --csv, nothing wider than a phone, contrast in
both colour schemes, and a keyboard that reaches everything. Then each of these checks is shown a page that it must
refuse.
"""
import csv
import io
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(__file__))
import expected as want                                             # noqa: E402
from chromium import Chromium, Failure, Page                        # noqa: E402

LOOK = os.path.join(os.path.dirname(__file__), "page.js")
CURVES_MAX, TIMELINE_MAX, CONTRAST = 300, 400, 4.5
BYTES_MAX = 3 << 20                                                 # of any page
# name, scenario, options on the command line, exit codes that are fine (2: an expectation fails on a shortened run)
SUBJECTS = [
    ("quickstart", "scenarios/quickstart.lua", [], (0,)),
    ("claims", "tests/report.lua", [], (0,)),
    ("frontier", "scenarios/agentx150.lua", ["steps_per_row=64"], (0,)),
    ("audit", "scenarios/audit.lua", ["docs=3"], (0, 2)),
]


class Tally:
    def __init__(self):
        self.passed, self.failed = 0, 0

    def check(self, what, found):
        """found: None or nothing when all is well, else a sentence or a list of them."""
        if not found:
            self.passed += 1
            return
        self.failed += 1
        print("FAIL  " + what)
        for line in ([found] if isinstance(found, str) else found)[:6]:
            print("      " + str(line))


# --- the checks: each takes a page (and its database) and returns what is wrong --------------------------------------

def console(page, _db):
    found = []
    for event in page.events():
        name, p = event["method"], event["params"]
        if name == "Runtime.exceptionThrown":
            found.append("exception: " + p["exceptionDetails"].get("exception", {}).get("description", "?"))
        elif name == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            found.append("console: " + str([a.get("value") for a in p["args"]]))
        elif name == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            found.append("log: " + p["entry"]["text"])
        elif name == "Network.loadingFailed":
            found.append("a request failed: " + p.get("errorText", "?"))
        elif name == "Network.requestWillBeSent" and not p["request"]["url"].startswith((page.url, "data:")):
            found.append("a request to " + p["request"]["url"])
    return found


def points_of(chart):
    found = {}
    for one in chart["sets"]:
        data = one["data"]
        found[one["label"]] = [(p["x"], p["y"]) if isinstance(p, dict) else p for p in data]
    return found


def curve_differs(got, wanted, limit):
    """A curve has all points, or a sample of them that keeps both ends."""
    if len(wanted) <= limit:
        return want.first_difference(got, wanted)
    if not limit * 0.8 <= len(got) <= limit + 2:
        return "%d points of %d" % (len(got), len(wanted))
    if want.first_difference((got[0], got[-1]), (wanted[0], wanted[-1])):
        return "the ends are %s, %s" % (got[0], got[-1])
    for x, y in got:
        rank = round(y * len(wanted)) - 1
        if want.first_difference((x, y), wanted[rank]):
            return "(%r, %r) instead of %r" % (x, y, wanted[rank])
    return None


def curves(db, column, sets):
    wanted = want.times(db, column)
    if set(sets) != set(wanted):
        return "curves %s instead of %s" % (sorted(sets), sorted(wanted))
    return [name + ": " + why for name in wanted for why in [curve_differs(sets[name], wanted[name], CURVES_MAX)] if why]


def frontier_chart(db, sets):
    got = sorted(sorted(points) for name, points in sets.items()
                 if not name.endswith((", beaten", " at the floor")) and points)
    beaten = sorted(sorted(points) for name, points in sets.items() if name.endswith(", beaten") and points)
    fronts = want.fronts(db)
    crosses = sorted(p for name, points in sets.items() if name.endswith(" at the floor") for p in points)
    return (want.first_difference(got, sorted(front for front, _ in fronts)) or
            want.first_difference(beaten, sorted(rest for _, rest in fronts if rest)) or
            want.first_difference(crosses, sorted(want.rows(db, """SELECT floor_tok_s_user, total_tok_s FROM
                v_frontier_at
                                                                   WHERE total_tok_s IS NOT NULL"""))))


def binned(db, sets, sql, view):
    wanted = want.by_bin(db, sql)
    bins = [b for (b,) in want.rows(db, "SELECT DISTINCT %s FROM %s ORDER BY 1" % view)]
    if len(next(iter(sets.values()), [])) != len(bins):
        return "%d bins instead of %d" % (len(next(iter(sets.values()), [])), len(bins))
    got = {name: [v for v in values if v is not None] for name, values in sets.items()}
    wanted = {name: [v for v in want.positive(values)] for name, values in wanted.items()}
    wanted = {name: [v for v in values if v is not None] for name, values in wanted.items()}
    wanted = {name: values for name, values in wanted.items() if values}
    if set(got) != set(wanted):
        return "series %s instead of %s" % (sorted(got), sorted(wanted))
    return [name + ": " + why for name in wanted for why in [want.first_difference(got[name], wanted[name])] if why]


def steps_chart(db, sets):
    """Rates over equal intervals times their length are the rows of the first run."""
    span, new, replayed, decode, kept = want.rows(db, """SELECT (MAX(end_ns) - MIN(start_ns) + 1) / 1e9,
        SUM(prefill_rows - replayed_rows), SUM(replayed_rows), SUM(decode_rows), SUM(kept_rows) FROM steps
        WHERE run_id = 1""")[0]
    sums = {name: sum(y for _, y in points) * span / len(points) for name, points in sets.items()}
    wanted = {"new prefill": new, "replayed": replayed, "decode": decode, "kept behind the cut": kept}
    return [name + ": %r rows instead of %r" % (sums.get(name), wanted[name]) for name in wanted
            if abs(sums.get(name, -1) - wanted[name]) > 1e-5 * max(1, wanted[name])]


def memory_chart(db, sets):
    kv, windows = want.rows(db, "SELECT kv_bytes_peak, window_bytes_peak FROM v_memory WHERE run_id = 1")[0]
    got = [max(y for _, y in sets[name] if y is not None) for name in ("global KV in use", "stored windows")]
    return want.first_difference(got, [kv, windows])


def explore_chart(db, chart):
    points = [(p["run"], p["step"], p["x"], p["y"]) for one in chart["sets"] for p in one["data"]]
    known = {(run, step): (n, ms) for run, step, n, ms in want.rows(
        db, """SELECT u.run_id || ' ' || u.label, step_id, rows, duration_ns / 1e6 FROM steps JOIN runs u USING (run_id)
               WHERE duration_ns > 0""")}
    wrong = [p for p in points if (p[0], p[1]) not in known or not want.same(p[2], known[p[0], p[1]][0])
             or not want.same(p[3], known[p[0], p[1]][1])]
    slowest = want.rows(db, """SELECT u.run_id || ' ' || u.label, step_id FROM runs u, steps s WHERE s.run_id =
        u.run_id AND
        s.step_id = (SELECT step_id FROM steps WHERE run_id = u.run_id ORDER BY duration_ns DESC, step_id LIMIT 1)""")
    missing = set(slowest) - {(p[0], p[1]) for p in points}
    if wrong:
        return "wrong or unknown steps: %s" % wrong[:3]
    if missing:
        return "the slowest step of a run is missing: %s" % sorted(missing)
    return None if len(points) >= min(len(known), 200) else "only %d of %d steps" % (len(points), len(known))


def audit_sets(db, sets, sql):
    wanted = want.per_arm(db, sql)
    if set(sets) != set(wanted):
        return "arms %s instead of %s" % (sorted(sets), sorted(wanted))
    return [name + ": " + why for name in wanted for why in [want.first_difference(sets[name], wanted[name])] if why]


def bars(db, chart, sql, pairs=False):
    """pairs: each bar goes from one value to another."""
    wanted = want.rows(db, sql)
    got = [[label] + [one["data"][i] for one in chart["sets"]] for i, label in enumerate(chart["labels"])]
    if pairs:
        got = [[label] + ends for label, ends in got]
    return want.first_difference(got, wanted)


def ladder_curves(db, chart, sets):
    wanted = want.ladder_charts(db, int(chart["id"][9:]))[0]
    if list(wanted) != list(sets):
        return "rungs %s instead of %s" % (list(sets), list(wanted))
    return want.first_difference(list(sets.values()), list(wanted.values()))


def claim_ratios(db, chart, _sets):
    got = sorted((p["claim"], p["x"]) for one in chart["sets"] for p in one["data"])
    return want.first_difference(got, want.rows(db, """SELECT claim_id, ours / published FROM claims WHERE ours > 0
        AND condition NOT LIKE '%concurrency=%' AND condition NOT LIKE '%prompt %K%' ORDER BY 1"""))


def claim_points(db, chart, sets):
    """The chart's name says metric and condition; the claims are looked up by both."""
    metric, series = re.match(r"(\w+), [^:]*: (.*?), GB300, ", chart["label"]).groups()
    pattern = re.escape(series).replace("concurrency", r"concurrency=(\d+)").replace("prompt", r"prompt (\d+)K")
    found = [(re.fullmatch(pattern, condition), published, ours) for condition, published, ours in want.rows(
        db, "SELECT condition, published, ours FROM claims WHERE metric = ? ORDER BY claim_id", metric)]
    points = [(int(match[1]), published, ours) for match, published, ours in found if match]
    return want.first_difference(list(sets.values()), [[(x, p) for x, p, _ in points], [(x, o) for x, _, o in points]])


def replay_lengths(db, _chart, sets):
    return want.first_difference(list(sets.values())[0], want.rows(
        db, "SELECT rows, CASE WHEN kl_mean > 0 THEN kl_mean END FROM v_audit_length ORDER BY rows, arm_id"))


def by_run(value, view, order):
    """Series by run over the bins of a view."""
    sql = "SELECT q.run_id || ' ' || u.label, %s FROM %s q JOIN runs u USING (run_id) ORDER BY q.run_id, %s"
    return lambda db, _chart, sets: binned(db, sets, sql % (value, view, order), (order, view))


def by_arm(x, view):
    sql = ("SELECT arm_id || ' ' || label, %s, kl_mean FROM %s JOIN audit_arms USING (audit_id, arm_id) "
           "ORDER BY arm_id, %s")
    return lambda db, _chart, sets: audit_sets(db, sets, sql % (x, view, x))


def in_bars(sql, pairs=False):
    return lambda db, chart, _sets: bars(db, chart, sql, pairs)


SHARE = "positions * 1.0 / (SELECT COUNT(*) FROM quality x WHERE x.run_id = q.run_id)"
# What a chart must hold, by the beginning of its id.
CHARTS = {
    "c-ttft": lambda db, _chart, sets: curves(db, "ttft", sets),
    "c-itl": lambda db, _chart, sets: curves(db, "itl", sets),
    "c-e2e": lambda db, _chart, sets: curves(db, "e2e", sets),
    "c-frontier": lambda db, _chart, sets: frontier_chart(db, sets),
    "c-kl": by_run("kl_mean", "v_quality_offset", "bin"),
    "c-top1": by_run("top1_rate", "v_quality_offset", "bin"),
    "c-hist": by_run(SHARE, "v_kl_histogram", "bucket"),
    "c-turn": by_run("kl_mean", "v_quality_turn", "turn"),
    "c-hit": in_bars("SELECT run_id || ' ' || label, hit_rate, hit_rate_theory FROM v_cache"),
    "c-peak": in_bars("SELECT run_id || ' ' || label, kv_bytes_peak, window_bytes_peak FROM v_memory"),
    "c-steps": lambda db, _chart, sets: steps_chart(db, sets),
    "c-memory": lambda db, _chart, sets: memory_chart(db, sets),
    "c-explore": lambda db, chart, _sets: explore_chart(db, chart),
    "c-ladder-": ladder_curves,
    "c-factors-": lambda db, chart, sets: want.first_difference(
        list(sets.values()), want.ladder_charts(db, int(chart["id"][10:]))[1]),
    "c-claims": claim_ratios,
    "c-sensitivity": in_bars("""SELECT assumption, MIN(ours_lo, ours_hi, ours), MAX(ours_lo, ours_hi, ours)
        FROM claim_sensitivity JOIN claims USING (claim_id)
        WHERE published = 5.3 ORDER BY ABS(ours_hi - ours_lo) DESC""", pairs=True),
    "c-points-": claim_points,
    "c-profile": by_arm('"offset"', "v_audit_profile"),
    "c-audit-turn": by_arm("turn", "v_audit_turn"),
    "c-length": replay_lengths,
    "c-work": in_bars("SELECT arm_id || ' ' || label, prompt_work FROM v_audit_cost"),
    "c-windows": in_bars("SELECT arm_id || ' ' || label, window_bytes, kv_bytes FROM v_audit_cost"),
}


def chart_differs(db, chart):
    kind = re.sub(r"\d+$", "", chart["id"]) if chart["id"] not in CHARTS else chart["id"]
    if kind not in CHARTS:
        return "nothing is known about it"
    return CHARTS[kind](db, chart, points_of(chart))


# Charts that stay away when there is nothing to draw: the query says whether there is something.
MAY_HIDE = {"c-frontier": "SELECT 1 FROM v_frontier",
            "c-itl": "SELECT 1 FROM v_request_times WHERE itl_ns IS NOT NULL",
            "c-length": "SELECT 1 FROM v_audit_length LIMIT 1 OFFSET 1",
            "c-turn": "SELECT 1 FROM v_quality_turn WHERE kl_mean > 0"}


def charts(page, db):
    found = []
    for chart in page.evaluate("look.charts()"):
        if chart["hidden"]:
            if chart["id"] not in MAY_HIDE or want.rows(db, MAY_HIDE[chart["id"]]):
                found.append(chart["id"] + " is hidden")
            continue
        if chart["drawn"] < 500:
            found.append("%s is blank: %d pixels" % (chart["id"], chart["drawn"]))
        why = chart_differs(db, chart)
        if why:
            found.append("%s: %s" % (chart["id"], why if isinstance(why, str) else why[0]))
    return found


def drawings(page, db):
    """The timeline and the contamination map, which are SVG."""
    found = []
    for kind, query in (("timeline", "SELECT COUNT(*) FROM requests WHERE run_id = 1"),
                        ("map", "SELECT COUNT(*) FROM v_audit_map WHERE arm_id = (SELECT MIN(arm_id) FROM audit_arms "
                                "WHERE control = '')")):
        titles = page.evaluate("[...document.querySelectorAll('#%s-plot title')].map((t) => t.textContent)" % kind)
        wanted = min(want.rows(db, query)[0][0], TIMELINE_MAX if kind == "timeline" else 1 << 30)
        if len(titles) != wanted:
            found.append("%s: %d shapes with a hint instead of %d" % (kind, len(titles), wanted))
        if kind == "timeline" and titles:
            first, arrival, tokens = want.rows(db, """SELECT first_ns, arrival_ns, in_tokens FROM requests WHERE
                run_id = 1
                ORDER BY lane, arrival_ns, request_id LIMIT 1""")[0]
            if "TTFT" in titles[0] and "%d tokens in" % tokens not in titles[0]:
                found.append("timeline: the first hint lacks %d tokens: %r" % (tokens, titles[0]))
    return found


def tables(page, db):
    found, seen = [], 0
    for name in want.TABLES:
        got = page.evaluate("look.table('t-%s')" % name)
        wanted = want.table(db, name)
        seen += got is not None
        if (got or []) != wanted:
            why = want.first_difference(got or [], wanted)
            found.append("%s: %s" % (name, why))
    if seen < 2:
        found.append("only %d tables are known" % seen)
    said = want.rows(db, "SELECT question, answer FROM v_answers")
    why = want.first_difference(page.evaluate("look.answers()"), said)
    return found + (["answers: " + why] if why else []) + ([] if said else ["no question is answered"])


def phone(page, _db):
    page.size(360, 740, True)
    found = page.evaluate("look.settled().then(() => look.overflow())")
    page.size(1200, 900)
    return found


def paper(page, _db):
    """A4 across, less its margins, has 1030 pixels."""
    page.media(False, "print")
    page.size(1030, 700)
    found = page.evaluate("look.settled().then(() => look.overflow())")
    page.size(1200, 900)
    page.media(False)
    return found


def contrast(page, _db):
    found = []
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for scheme in ("light", "dark"):
        if page.evaluate("document.documentElement.dataset.theme || ''") != scheme:
            page.evaluate("""(() => { const b = document.getElementById('theme');
                if (b.textContent.toLowerCase() === '%s') b.click(); })()""" % scheme)
        result = page.evaluate("look.contrast(%g)" % CONTRAST)
        dark = page.evaluate("look.ratio(look.behind(document.body), [255, 255, 255, 1])") > 10
        if dark != (scheme == "dark"):
            found.append("the button does not give the %s scheme" % scheme)
        if result["texts"] < 50:
            found.append("only %d texts" % result["texts"])
        found += [scheme + " " + line for line in result["found"]]
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = false; }); localStorage.clear()")
    return found


def keyboard(page, _db):
    """Tab goes through every stop in order, shows where it is, and keys do what a mouse does."""
    found = ["without a name: " + text for text in page.evaluate("look.names()")]
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    count = page.evaluate("look.stops().filter((node) => node.tabIndex >= 0).length")
    everything = page.evaluate("look.stops().length")
    if count != everything:
        found.append("%d of %d stops are left out of the tab order" % (everything - count, everything))
    last = -1
    for _ in range(everything):
        page.key("Tab", 9)
        at = page.evaluate("look.focus()")
        if at["at"] != last + 1:
            found.append("tab goes from stop %d to %d (%s)" % (last, at["at"], at["what"]))
            break
        if not at["seen"]:
            found.append("no outline on " + at["what"])
            break
        last = at["at"]
    return found


def keys_work(page, _db):
    found = []

    def press(selector, key, code, text):
        page.evaluate("document.querySelector(%r).focus()" % selector)
        page.key(key, code, text)

    before = page.evaluate("document.getElementById('theme').textContent")
    press("#theme", "Enter", 13, "\r")
    if page.evaluate("document.getElementById('theme').textContent") == before:
        found.append("Enter does not switch the colours")
    press("#theme", "Enter", 13, "\r")
    if page.evaluate("Boolean(document.querySelector('.legend button'))"):
        press(".legend button", " ", 32, " ")
        if page.evaluate("document.querySelector('.legend button').getAttribute('aria-pressed')") != "false":
            found.append("a space does not hide a curve")
        press(".legend button", " ", 32, " ")
    page.evaluate("localStorage.clear()")
    table = page.evaluate("([...document.querySelectorAll('table.explore')].sort((a, b) => b.rows.length - "
                          "a.rows.length)[0]"
                          " || {}).id")
    if table:
        column = page.evaluate("""[...document.getElementById('%s').rows[0].cells].findIndex((cell) =>
            cell.classList.contains('n'))""" % table)
        for order in ("ascending", "descending"):
            press("#%s thead th:nth-child(%d) button" % (table, column + 1), "Enter", 13, "\r")
            values = page.evaluate("""[...document.getElementById('%s').tBodies[0].rows].map((row) =>
                Number(row.cells[%d].dataset.v))""" % (table, column))
            if values != sorted(values, reverse=order == "descending"):
                found.append("%s is not sorted %s" % (table, order))
        bar = "document.getElementById('%s').closest('.scroll').previousElementSibling" % table
        page.evaluate("""(() => { const choice = %s.querySelector('select');
            choice.selectedIndex = 1; choice.dispatchEvent(new Event('change')); })()""" % bar)
        shown, all_ = page.evaluate("""(() => { const rows = [...document.getElementById('%s').tBodies[0].rows];
            return [rows.filter((row) => row.getClientRects().length).length, rows.length]; })()""" % table)
        if not 0 < shown < all_:
            found.append("a choice shows %d of %d rows" % (shown, all_))
        if not page.evaluate(bar + ".querySelector('output').textContent").startswith("%d of %d" % (shown, all_)):
            found.append("the count does not say %d of %d" % (shown, all_))
        page.evaluate("""(() => { const choice = %s.querySelector('select');
            choice.selectedIndex = 0; choice.dispatchEvent(new Event('change')); })()""" % bar)
    return found


CHECKS = [("no console messages, no requests", console), ("charts hold the values of the database", charts),
          ("timeline and map", drawings), ("tables and answers are the database's", tables),
          ("nothing wider than a phone", phone), ("nothing wider than paper", paper),
          ("contrast of 4.5 in both schemes", contrast),
          ("the keyboard reaches everything", keyboard), ("keys work", keys_work)]

# One page for each check to refuse: what is done to it, and the check.
MUTANTS = [
    ("a message on the console", console, "console.error('x')"),
    ("a request", console, "fetch('http://127.0.0.1:9/').catch(() => 0)"),
    ("an exception", console, "setTimeout(() => { throw new Error('x'); })"),
    ("a blank chart", charts, "(() => { const c = document.getElementById('c-ttft');"
     " c.getContext('2d').clearRect(0, 0, c.width, c.height); })()"),
    ("a moved point", charts, "Chart.getChart('c-ttft').data.datasets[0].data[0].x *= 1.0001"),
    ("a moved point of a front", charts, "Chart.getChart('c-frontier').data.datasets[0].data[0].y *= 1.0001"),
    ("a point too few", charts, "Chart.getChart('c-e2e').data.datasets[0].data.pop()"),
    ("a hidden chart", charts, "document.getElementById('fig-c-ttft').hidden = true"),
    ("an unknown chart", charts, "document.getElementById('c-itl').id = 'c-no'"),
    ("a wrong ratio", charts, "Chart.getChart('c-claims').data.datasets[0].data[0].x += 0.01"),
    ("a wrong end of a bar", charts, "Chart.getChart('c-sensitivity').data.datasets[0].data[0][1] += 0.01"),
    ("a wrong factor", charts, "Chart.getChart('c-factors-1').data.datasets[0].data[0] += 0.01"),
    ("a request left out of the timeline", drawings, "document.querySelector('#timeline-plot title').remove()"),
    ("a digit in a table", tables, "document.querySelector('#t-summary tbody td:nth-child(4)').textContent = '1'"),
    ("a claim less", tables, "document.querySelector('#t-claims tbody tr').remove()"),
    ("another answer", tables, "document.querySelector('#answers li span').textContent += '.'"),
    ("a wide table", phone, "document.querySelector('#latency').insertAdjacentHTML('beforeend',"
     " '<table><tr><td style=\"min-width: 500px\">x</td></tr></table>')"),
    ("a table too wide for paper", paper, "document.querySelector('#t-summary').style.width = '1100px'"),
    ("faint text", contrast, "document.querySelector('.intro').style.color = 'rgb(128, 128, 128)'"),
    ("a faint axis", contrast, "(() => { const c = Chart.getChart('c-ttft');"
     " c.config.options.scales.x.ticks.color = 'rgb(170, 170, 170)'; c.update(); })()"),
    ("a stop left out", keyboard, "document.querySelector('.scroll').tabIndex = -1"),
    ("no outline", keyboard, "document.head.insertAdjacentHTML('beforeend', '<style>*:focus { outline: none "
                             "!important }"
     "</style>')"),
    ("a trap", keyboard, "document.querySelector('#pick-timeline').addEventListener('keydown', (e) => "
                         "e.preventDefault())"),
    ("a button without a name", keyboard, "(() => { const b = document.querySelector('.legend button');"
     " b.textContent = ''; })()"),
    ("a choice that chooses nothing", keys_work, "document.querySelectorAll('.filters select').forEach((s) => {"
     " s.dispatchEvent = () => 0; })"),
    ("a table that does not sort", keys_work, "document.querySelectorAll('table.explore tbody').forEach((b) => { "
                                              "b.append = () => 0; })"),
]


# --- the same numbers elsewhere ---------------------------------------------------------------------------------------

def printed(cedar, path, *how):
    """A report on the standard output, wide enough for every column."""
    return subprocess.run([cedar, "report", path, *how], capture_output=True, text=True, check=False,
                          env=dict(os.environ, COLUMNS="400")).stdout


def csv_differs(cedar, path, db):
    found = []
    views = [name for (name,) in want.rows(db, "SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY 1")]
    for view in views:
        text = printed(cedar, path, "--csv", view)
        got = list(csv.reader(io.StringIO(text)))
        cursor = db.execute("SELECT * FROM " + view)
        names, wanted = [c[0] for c in cursor.description], cursor.fetchall()
        if not got or got[0] != names or len(got) != len(wanted) + 1:
            found.append("%s: %d rows instead of %d" % (view, len(got) - 1, len(wanted)))
            continue
        for line, row in zip(got[1:], wanted):
            wrong = [(g, w) for g, w in zip(line, row) if not (
                g == "" if w is None else g == w if isinstance(w, str) else float(g) == w)]
            if wrong:
                found.append("%s: %r instead of %r" % ((view,) + wrong[0]))
                break
    return found + ([] if len(views) > 40 else ["only %d views" % len(views)])


def text_differs(cedar, path, db):
    """Every answer, and every number of the summary, is in the text report."""
    text = printed(cedar, path, "--text")
    words = " ".join(text.split())
    found = ["no answer %r" % answer for (answer,) in want.rows(db, "SELECT answer FROM v_answers")
             if " ".join(answer.split()) not in words]
    for name in ("summary", "audit", "frontier_at", "claims_summary"):
        for row in want.table(db, name):
            kinds = want.TABLES[name][0]
            found += ["%s: no %s" % (name, cell) for cell, kind in zip(row, kinds) if kind != "t" and cell not in words]
    return found


def printed_fronts(out, db):
    """The scenario reads its own fronts at the floor, by other code: both must agree."""
    printed = {m[1]: (float(m[2]), float(m[3])) for m in re.finditer(
        r"^(\w+) +tok/s at 150 tok/s/user \(modelled\): (\d+) on the Steffen curve, (\d+) on", out, re.M)}
    view = {name: (round(a), round(b)) for name, a, b in want.rows(
        db, "SELECT arm_label, total_tok_s, total_tok_s_linear FROM v_frontier_at WHERE total_tok_s IS NOT NULL")}
    return None if printed and printed == view else "the scenario prints %s, the view has %s" % (printed, view)


# --- the run ----------------------------------------------------------------------------------------------------------

def make_database(cedar, out, name, scenario, options, fine):
    path = os.path.join(out, name + ".db")
    run = subprocess.run([cedar, "run", scenario, "-q", "-r", "-o", path] + options, capture_output=True, text=True,
                         check=False)
    if run.returncode not in fine:
        raise Failure("%s ends with %d: %s" % (scenario, run.returncode, run.stderr[-300:]))
    subprocess.run([cedar, "report", path, "-o", os.path.join(out, name + ".html")], check=True,
                   stderr=subprocess.DEVNULL)
    return path, run.stdout


def opened(browser, html, **how):
    page = Page(browser, html, **how)
    with open(LOOK, encoding="utf-8") as f:
        page.evaluate(f.read() + "; 0")
    return page


def pictures(page, out, name):
    """As the system's choice of colours has it: what the buttons stored is forgotten first."""
    found = None
    page.evaluate("localStorage.clear(); delete document.documentElement.dataset.theme")
    page.media(True)                                                # a change is drawn anew, also that to the first
    for kind in ("desktop", "dark", "phone"):
        page.media(kind == "dark")
        page.size(*((360, 740, True) if kind == "phone" else (1200, 900)))
        page.evaluate("look.settled().then(() => scrollTo({ top: 0, behavior: 'instant' }))")
        if (page.evaluate("look.ratio(look.behind(document.body), [255, 255, 255, 1])") > 10) != (kind == "dark"):
            found = "the page of kind %s has the wrong colours" % kind
        page.screenshot(os.path.join(out, "%s-%s.png" % (name, kind)))
    page.size(1200, 900)
    if page.pdf(os.path.join(out, name + "-print.pdf")) < 2:
        found = "what is printed has less than two pages"
    return found


def test(browser, cedar, out, name, made, tally):
    html = os.path.join(out, name + ".html")
    path, said = made.result()
    db = want.open_database(path)
    page = opened(browser, html)
    for what, check in CHECKS:
        tally.check("%s: %s" % (name, what), check(page, db))
    tally.check(name + ": colours of the system, print", pictures(page, out, name))
    tally.check(name + ": still no console messages", console(page, db))
    page.close()
    tally.check(name + ": the size is bounded", None if os.path.getsize(html) < BYTES_MAX else
                "%d bytes" % os.path.getsize(html))
    tally.check(name + ": --csv has the same numbers", csv_differs(cedar, path, db))
    tally.check(name + ": --text has the same numbers", text_differs(cedar, path, db))
    if name == "frontier":
        tally.check("fronts are read as the scenario reads them", printed_fronts(said, db))
    return db


def prove(browser, out, db, tally):
    """Each check refuses a page that is wrong in its way."""
    html = os.path.join(out, "claims.html")
    for what, check, change in MUTANTS:
        page = opened(browser, html)
        page.evaluate(change + "; 0")
        tally.check("refused: " + what, None if check(page, db) else "it passes")
        page.close()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    cedar, out = os.path.realpath(sys.argv[1]), sys.argv[2]
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not program:
        sys.exit("there is no chromium: apt-get install chromium, or set CHROMIUM=program")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    tally, databases, began = Tally(), {}, time.time()
    browser, pool = Chromium(program), ThreadPoolExecutor(2)        # databases are made while pages are looked at
    try:
        made = [(subject[0], pool.submit(make_database, cedar, out, *subject)) for subject in SUBJECTS]
        for name, future in made:
            start, before = time.time(), tally.passed
            databases[name] = test(browser, cedar, out, name, future, tally)
            print("%-12s %3d passed %6.1f s" % (name, tally.passed - before, time.time() - start))
        prove(browser, out, databases["claims"], tally)
    except Failure as failure:
        tally.check("the test comes to its end", str(failure))
    finally:
        pool.shutdown()
        browser.close()
    print("report: pages and pictures are in %s, %.0f s" % (out, time.time() - began))
    if os.environ.get("CEDAR_TALLY"):
        with open(os.environ["CEDAR_TALLY"], "a", encoding="ascii") as f:
            f.write("%d %d 0\n" % (tally.passed, tally.failed))
    else:
        print("%d passed, %d failed, 0 skipped" % (tally.passed, tally.failed))
    return tally.failed > 0


if __name__ == "__main__":
    sys.exit(main())
