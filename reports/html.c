/* The HTML report: one file that needs no network.
 *
 * Everything a reader must know is in the tables, written here; the script only draws charts from the JSON block, and
 * sorts and filters rows that are there, and works from nothing else. All text from the database is escaped, and a
 * content security policy that names the two scripts by hash keeps anything else from running. */
#include "reports/reports.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reports/html_int.h"

/* --- cards -------------------------------------------------------------------------------------------------------- */

/* One card per run; `better` says which direction of a change is good (0: neither). */
static const struct {
    const char *name, *unit, *column;
    reports_kind kind;
    int better;
} measures[] = {
    { "TTFT p90", "ms", "ttft_p90_ms", REPORTS_NUMBER, -1 },
    { "ITL p90", "ms", "itl_p90_ms", REPORTS_NUMBER, -1 },
    { "Interactivity p90", "tok/s/user", "intvty_p90", REPORTS_NUMBER, 1 },
    { "Output", "tok/s", "output_tok_s", REPORTS_NUMBER, 1 },
    { "Total, cached input included", "tok/s", "total_tok_s", REPORTS_NUMBER, 1 },
    { "Cache hit rate", "", "hit_rate", REPORTS_SHARE, 0 },
    { "Stored windows, peak", "", "window_bytes_peak", REPORTS_BYTES, -1 },
    { "KL mean", "nats", "kl_mean", REPORTS_SMALL, 0 },
    { "Top-1 agreement", "", "top1_rate", REPORTS_SHARE, 0 }
};
enum { MEASURES = sizeof measures / sizeof *measures, CARD_FIXED = 7 };

/* The run that others are compared with: side a of the scenario's first paired comparison, else an exact run. */
#define BASE_FIRST "run_id <> COALESCE((SELECT a_run FROM paired WHERE paired_id = 1), run_id), replay <> 'exact'"

/* Change against the base run: "-43.1 %", coloured by whether it is for the better. */
static void put_change(const page *p, double ratio, int better) {
    double change = 100 * (ratio - 1);
    const char *class = better == 0 || fabs(change) < 0.05 ? "same" : (change > 0) == (better > 0) ? "good" : "bad";
    const char *sign = fabs(change) < 0.05 ? "\u00B1" : change > 0 ? "+" : "\u2212";
    if (isfinite(change)) fprintf(p->to, " <span class=\"%s\">%s%.1f&#8239;%%</span>", class, sign, fabs(change));
}

static void put_card(const page *p, sqlite3_stmt *q) {
    char text[REPORTS_CELL_BYTES];
    bool base = sqlite3_column_int(q, 4);
    const char *status = reports_column_text(q, 3);
    fputs("<article class=\"card\"><header><h3><i class=\"dot\" data-run=\"", p->to);
    page_text(p->to, reports_column_text(q, 0));
    fputs("\"></i>", p->to);
    page_text(p->to, reports_column_text(q, 1));
    fputs("</h3><p><span class=\"tag\">replay ", p->to);
    page_text(p->to, reports_column_text(q, 2));
    fputs("</span>", p->to);
    if (base) fputs(" <span class=\"tag base\">base</span>", p->to);
    if (strcmp(status, "finished")) {
        fputs(" <span class=\"tag warn\">", p->to);
        page_text(p->to, status);
        fputs("</span>", p->to);
    }
    reports_format(REPORTS_COUNT, q, 5, text);
    fprintf(p->to, "</p></header><dl><div><dt>Requests kept</dt><dd>%s</dd></div>\n", text);
    for (int i = 0; i < MEASURES; i++) {
        int at = CARD_FIXED + 2 * i;
        if (sqlite3_column_type(q, at) == SQLITE_NULL) continue;
        reports_format(measures[i].kind, q, at, text);
        fprintf(p->to, "<div><dt>%s</dt><dd>%s%s%s", measures[i].name, text, *measures[i].unit ? "&#8239;" : "",
                measures[i].unit);
        if (!base && measures[i].better && sqlite3_column_type(q, at + 1) != SQLITE_NULL)
            put_change(p, sqlite3_column_double(q, at + 1), measures[i].better);
        fputs("</dd></div>\n", p->to);
    }
    fputs("</dl></article>\n", p->to);
}

static cedar_status put_cards(const page *p, cedar_err *err) {
    if (p->run_count > PAGE_CARDS) return CEDAR_OK;     /* the tables and charts of arms tell more then */
    char sql[2048];
    size_t at = (size_t)snprintf(sql, sizeof sql,
        "WITH s AS MATERIALIZED (SELECT * FROM v_summary), "
        "b AS (SELECT * FROM s ORDER BY " BASE_FIRST ", run_id LIMIT 1) "
        "SELECT s.run_id, s.label, "
        "s.replay || CASE s.clock WHEN 'modelled' THEN ', modelled time' ELSE '' END, "
        "s.status, s.run_id = b.run_id, s.requests, b.label");
    for (int i = 0; i < MEASURES; i++)
        at += (size_t)snprintf(sql + at, sizeof sql - at, ", s.%s, CAST(s.%s AS REAL) / b.%s", measures[i].column,
                               measures[i].column, measures[i].column);
    snprintf(sql + at, sizeof sql - at, " FROM s, b ORDER BY s.run_id");
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(p->db, p->path, sql, &q, err);
    fputs("<div class=\"cards\">\n", p->to);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) put_card(p, q);
    fputs("</div>\n", p->to);
    sqlite3_finalize(q);
    return st;
}

static const char run_choice[] = "SELECT run_id, run_id || ' ' || label FROM runs WHERE run_id IN page_runs "
                                 "ORDER BY run_id";

/* --- sections ----------------------------------------------------------------------------------------------------- */

static void put_head(const page *p, const char *title) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>", p->to);
    page_text(p->to, title);
    fputs(" - cedar report</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; "
          "style-src &#39;unsafe-inline&#39;; img-src data:; script-src", p->to);
    page_script_hash(p->to, _binary_chart_min_js_start, _binary_chart_min_js_end);
    page_script_hash(p->to, _binary_report_js_start, _binary_report_js_end);
    fputs("\">\n<style>\n", p->to);
    page_file(p->to, _binary_report_css_start, _binary_report_css_end);
    fputs("</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the report</a>\n", p->to);
}

static cedar_status put_masthead(const page *p, const char *title, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    fputs(
        "<header class=\"masthead\"><div><p class=\"brand\">cedar <span>causal encoder-decoder agent replay</span></p>"
        "<h1>",
        p->to);
    page_text(p->to, title);
    fputs("</h1>", p->to);
    cedar_status st = reports_prepare(p->db, p->path, "SELECT finished, started_at, seed, cedar_version, "
        "substr(commit_id, 1, 12), commit_dirty, (SELECT COUNT(*) FROM runs), (SELECT COUNT(*) FROM requests), "
        "(SELECT COALESCE(SUM(steps), 0) FROM steps), "
        "(SELECT COUNT(*) FROM quality) + (SELECT COALESCE(SUM(positions), 0) FROM audits) FROM manifest", &q, err);
    if (!st) st = reports_next(p->db, p->path, q, &row, err);
    if (!st) {
        char counts[4][REPORTS_CELL_BYTES];
        bool finished = row && sqlite3_column_int(q, 0);
        for (int i = 0; i < 4; i++)
            reports_format_real(REPORTS_COUNT, row ? sqlite3_column_double(q, 6 + i) : 0, counts[i]);
        fprintf(p->to,
                "<p class=\"meta\"><span class=\"tag %s\">%s</span> <span>%s runs</span> <span>%s requests</span> "
                "<span>%s steps</span> <span>%s scored positions</span>",
                finished ? "ok" : "warn", finished ? "finished" : "not finished", counts[0], counts[1], counts[2],
                counts[3]);
        for (int i = 1; row && i <= 4; i++) {
            static const char *const names[] = { "", "started", "seed", "version", "commit" };
            if (!*reports_column_text(q, i)) continue;
            fprintf(p->to, " <span>%s ", names[i]);
            page_text(p->to, reports_column_text(q, i));
            fprintf(p->to, "%s</span>", i == 4 && sqlite3_column_int(q, 5) ? " with changed files" : "");
        }
        fputs("</p>", p->to);
    }
    fputs("</div></header>\n", p->to);
    sqlite3_finalize(q);
    return st;
}

/* Questions with their answers, as v_answers has them. */
static cedar_status put_answers(const page *p, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    char last[256] = "";
    cedar_status st = reports_prepare(p->db, p->path, "SELECT question, answer, basis, section FROM v_answers", &q,
        err);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        if (strcmp(last, reports_column_text(q, 0))) {
            fputs(*last ? "</ul></article>\n<article><h3>" : "<div id=\"answers\"><article><h3>", p->to);
            snprintf(last, sizeof last, "%s", reports_column_text(q, 0));
            page_text(p->to, last);
            fputs("</h3><ul>\n", p->to);
        }
        fputs("<li><span>", p->to);
        page_text(p->to, reports_column_text(q, 1));
        fputs("</span>", p->to);
        if (*reports_column_text(q, 2)) {
            fputs(" <span class=\"tag ", p->to);
            page_text(p->to, reports_column_text(q, 2));
            fputs("\">", p->to);
            page_text(p->to, reports_column_text(q, 2));
            fputs("</span>", p->to);
        }
        fprintf(p->to, " <a href=\"#%s\">%s</a></li>\n", reports_column_text(q, 3), reports_column_text(q, 3));
    }
    sqlite3_finalize(q);
    if (*last) fputs("</ul></article></div>\n", p->to);
    return st;
}

static cedar_status put_overview(const page *p, cedar_err *err) {
    static const char *const of_runs[] = { "summary", "population", NULL };
    char base[200], fails[24];
    cedar_status st = page_one_text(p, "SELECT printf('Cards put the runs side by side; changes are against run %d, "
                                       "%s.', "
                                    "run_id, label) FROM runs WHERE (SELECT COUNT(*) FROM runs) BETWEEN 2 AND 8 "
                                    "ORDER BY " BASE_FIRST ", run_id LIMIT 1", base, sizeof base, err);
    if (!st) st = page_one_text(p, "SELECT SUM(NOT ok) FROM expectations", fails, sizeof fails, err);
    if (st) return st;
    fputs("<section id=\"overview\"><h2>Questions and answers</h2>\n<p class=\"intro\">What the database says to what "
          "is "
          "asked first. <b>Measured</b> figures come from a clock or from computed outputs, <b>modelled</b> ones from "
          "a cost model. ", p->to);
    page_text(p->to, base);
    fputs("</p>\n", p->to);
    st = put_answers(p, err);
    if (!st && p->run_count) st = put_cards(p, err);
    if (!st) st = page_table(p, "paired", false, NULL, err);
    if (!st) st = page_tables(p, of_runs, p->run_count > PAGE_FOLD, err);
    if (!st) st = page_table(p, "http_errors", false, NULL, err);
    if (!st) st = page_table(p, "errors", false, NULL, err);
    if (!st) st = page_table(p, "expectations", atoi(fails) == 0, NULL, err);
    page_section_end(p);
    return st;
}

/* Ladders one below the other: a table holds figures of one provenance only. */
static cedar_status put_ladder(const page *p, int64_t id, const char *title, cedar_err *err) {
    char canvas[48], name[640];
    snprintf(canvas, sizeof canvas, "c-ladder-%lld", (long long)id);
    fputs("<div class=\"pair\">", p->to);
    page_chart(p, canvas, "Time to first token by rung", "Milliseconds against prompt tokens, both axes logarithmic.");
    snprintf(canvas, sizeof canvas, "c-factors-%lld", (long long)id);
    page_chart(p, canvas, "What each rung gives", "Times less time, times more throughput, than the rung before it; 1 "
                          "is no "
               "change.");
    fputs("</div>\n", p->to);
    cedar_status st = page_table_bound(p, "ladder", id, title, err);
    snprintf(name, sizeof name, "What each rung changes: %s", title);
    if (!st) st = page_table_bound(p, "ladder_rungs", id, name, err);
    snprintf(name, sizeof name, "Every figure: %s", title);
    fputs("<details class=\"data\"><summary>Data: every figure of this ladder</summary>\n", p->to);
    if (!st) st = page_table_bound(p, "ladder_figures", id, name, err);
    fputs("</details>\n", p->to);
    return st;
}

static cedar_status put_ladders(const page *p, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    page_section(p, "ladder", "Ladder", "One optimisation at a time, each on top of those before it. What was "
                    "measured and "
                 "what was modelled are different ladders and never share a table.");
    cedar_status st = reports_prepare(p->db, p->path, "SELECT ladder_id, title || ': ' || provenance || ', ' || "
                                                      "hardware || "
                                      "', ' || model, note FROM ladders ORDER BY ladder_id", &q, err);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        fputs("<h3>", p->to);
        page_text(p->to, reports_column_text(q, 1));
        fputs("</h3>\n<p class=\"intro\">", p->to);
        page_text(p->to, reports_column_text(q, 2));
        fputs("</p>\n", p->to);
        st = put_ladder(p, sqlite3_column_int64(q, 0), reports_column_text(q, 1), err);
    }
    sqlite3_finalize(q);
    page_section_end(p);
    return st;
}

static cedar_status put_claims(const page *p, cedar_err *err) {
    page_section(p, "claims", "Claim ledger", "Published figures against ours: conditions, interval, where ours comes "
                 "from, and a verdict with its rule. What could not be tested says why.");
    cedar_status st = page_table(p, "claims_summary", false, NULL, err);
    char about[240];
    snprintf(about, sizeof about, "One row per tested claim, the first %d, logarithmic axis; 1 is as published, bars "
                                  "are our "
             "intervals. Series over concurrency or length of prompt follow below.", PAGE_CLAIMS);
    page_chart(p, "c-claims", "Ours over published", about);
    page_chart(p, "c-sensitivity", "What the ratio of throughput at a speed hangs on",
               "Least to most of our figure with "
               "one assumption low, as assumed and high, all else equal. memory_efficiency: the share of "
               "the memory bandwidth that reads of weights and cache reach; time_scale: recorded delays "
               "between turns times this. Values at a speed are read off by Steffen&#39;s curve: a smooth one through "
               "the points of a front that never overshoots them.");
    if (!st) st = page_table(p, "sensitivity", false, NULL, err);
    fputs("<div class=\"pair\" id=\"points\"></div>\n", p->to);
    if (!st) st = page_table(p, "claim_points", false, NULL, err);
    if (!st) st = page_table(p, "claims", false, NULL, err);
    if (!st) st = page_table(p, "claim_sources", true, NULL, err);
    page_section_end(p);
    return st;
}

static cedar_status put_frontier(const page *p, cedar_err *err) {
    page_section(p, "frontier", "Frontier", "Speed per user against throughput: each point is a run, each line the "
                    "front of "
                 "an arm, that is of runs that differ in lanes alone. What a front gives at the floor is read off "
                 "between "
                 "its points; nothing is extended beyond them. TTFT stands beside it, for a front knows no limit on "
                 "it.");
    page_chart(p, "c-frontier", "Throughput against speed", "Total tokens per second, cached input included, against "
                  "p90 "
               "interactivity in tokens per second and user. Filled: on the front. Hollow: beaten. The upright line "
               "is the "
               "speed floor, crosses are the values there.");
    cedar_status st = page_table(p, "frontier_at", false, NULL, err);
    if (!st) st = page_table(p, "floor", p->run_count > PAGE_FOLD, NULL, err);
    if (!st) st = page_table(p, "frontier", true, NULL, err);
    page_section_end(p);
    return st;
}

static cedar_status put_latency(const page *p, cedar_err *err) {
    char intro[320];
    snprintf(intro, sizeof intro, "Empirical distributions over kept requests: the share of requests at or below a "
             "latency. Curves have at most %d points per run, evenly spaced in rank. One colour is one arm; dashes "
             "tell its runs apart.", page_shared(p, PAGE_CURVE_POINTS));
    page_section(p, "latency", "Latency", intro);
    fputs("<div class=\"pair three\">", p->to);
    page_chart(p, "c-ttft", "Time to first token",
              "Share of requests at or below a TTFT, milliseconds, logarithmic axis.");
    page_chart(p, "c-itl", "Inter-token latency",
              "Share of requests at or below an ITL, milliseconds. ITL is (end minus "
              "first token) / (OSL - 1), one value per request.");
    page_chart(p, "c-e2e", "Request from end to end", "Share of requests at or below a time from arrival to last "
               "token, milliseconds.");
    fputs("</div>\n", p->to);
    cedar_status st = page_table(p, "latency", p->run_count > PAGE_FOLD, NULL, err);
    if (!st) st = page_table(p, "interactivity", true, NULL, err);
    page_section_end(p);
    return st;
}

static cedar_status put_timeline(const page *p, cedar_err *err) {
    static const char *const fold[] = { "lanes", "sessions", NULL };
    char intro[320];
    snprintf(intro, sizeof intro, "Each bar is a request in its lane: waiting for admission, prefill up to the first "
             "token, decode. Requests of one lane that overlap (subagents) are stacked. The first %d requests of a run "
             "are drawn.", page_shared(p, PAGE_TIMELINE));
    page_section(p, "timeline", "Timeline", intro);
    cedar_status st = page_choice(p, "pick-timeline", "Run", run_choice, err);
    fputs(
        "<figure><figcaption class=\"keys\"><span class=\"k-wait\">waiting</span> <span class=\"k-prefill\">prefill"
        "</span> <span class=\"k-decode\">decode</span> <span class=\"k-error\">error</span></figcaption>"
        "<div id=\"timeline-plot\" class=\"plot\" tabindex=\"0\" role=\"region\" aria-label=\"Timeline of requests by "
        "lane; the sums are in the table Time per lane.\"></div></figure>\n",
        p->to);
    if (!st) st = page_tables(p, fold, true, err);
    page_section_end(p);
    return st;
}

static cedar_status put_steps(const page *p, cedar_err *err) {
    static const char *const fold[] = { "throughput", "steps", "engines", NULL };
    char intro[512];
    snprintf(intro, sizeof intro,
             "Token rows that the engine ran per second, by kind, in %d equal intervals of the run; then single steps "
             "to "
             "sort and to choose from. Replayed rows rebuild windows after a prefix hit; kept rows are those that ran "
             "behind the cut.", PAGE_TIME_BINS);
    page_section(p, "steps", "Steps", intro);
    cedar_status st = page_choice(p, "pick-steps", "Run", run_choice, err);
    page_chart(p, "c-steps", "Rows per second", "New prefill, replayed and decode rows, stacked; kept rows as a line.");
    if (!st) st = page_tables(p, fold, true, err);
    page_chart(p, "c-explore", "Duration of steps", "Milliseconds against rows of the steps in the table below, which "
               "its choices narrow down.");
    if (!st) st = page_table_bound(p, "step_rows", page_step_rows(p), NULL, err);
    page_section_end(p);
    return st;
}

static cedar_status put_quality(const page *p, cedar_err *err) {
    static const char *const fold[] = { "offset", "histogram", "turn", "depth", NULL };
    bool any;
    page_section(p, "quality", "Quality", "Bounded replay against exact recomputation of the same tokens: divergence "
                "in nats over the full vocabulary, by distance from where the approximation begins.");
    cedar_status st = page_table(p, "quality", false, &any, err);
    if (!st && any) {
        fputs("<div class=\"pair\">", p->to);
        page_chart(p, "c-kl", "Mean KL by offset", "KL(P||Q) in nats by offset bin, logarithmic axis.");
        page_chart(p, "c-top1", "Top-1 agreement by offset", "Share of positions with the same most likely token.");
        page_chart(p, "c-hist", "Sizes of KL", "Share of positions per decade of KL(P||Q).");
        page_chart(p, "c-turn", "Mean KL by turn", "Whether the error builds up over a conversation.");
        fputs("</div>\n", p->to);
        st = page_tables(p, fold, true, err);
    } else if (!st) {
        fputs("<p class=\"notice\">No positions were scored in this database.</p>\n", p->to);
    }
    page_section_end(p);
    return st;
}

static cedar_status put_cache(const page *p, cedar_err *err) {
    static const char *const fold[] = { "cache", "misses", NULL };
    page_section(p, "cache", "Cache", "Global KV is small and shared; stored windows are what exact prefix reuse has "
                "to keep, and what encoder replay does without.");
    fputs("<div class=\"pair\">", p->to);
    page_chart(p, "c-hit", "Hit rate", "Adopted prompt tokens over prompt tokens, next to what an infinite cache could "
              "give.");
    page_chart(p, "c-peak", "Cache memory, peak", "Global KV in use and windows stored for prefix reuse, bytes.");
    fputs("</div>\n", p->to);
    cedar_status st = page_choice(p, "pick-memory", "Run", run_choice, err);
    page_chart(p, "c-memory", "Cache memory over time", "Highest value in each interval.");
    if (!st) st = page_tables(p, fold, true, err);
    page_section_end(p);
    return st;
}

static cedar_status put_manifest(const page *p, cedar_err *err) {
    static const char *const of_runs[] = { "runs", "options_differ", NULL };
    static const char *const names[] = { "cedar version",    "commit",      "built from changed files",
                                         "compiler",         "build flags", "scenario",
                                         "scenario SHA-256", "overrides",   "machine",
                                         "started",          "seed",        "finished" };
    sqlite3_stmt *q;
    bool row = false;
    page_section(p, "manifest", "What ran", "Everything needed to know where these numbers come from.");
    cedar_status st = reports_prepare(
        p->db, p->path,
        "SELECT cedar_version, commit_id, CASE commit_dirty WHEN 1 THEN 'yes' "
        "ELSE 'no' END, compiler, build_flags, scenario_path, scenario_hash, overrides, machine, started_at, seed, "
        "CASE finished WHEN 1 THEN 'yes' ELSE 'no' END FROM manifest",
        &q, err);
    if (!st) st = reports_next(p->db, p->path, q, &row, err);
    if (!st && row) {
        fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Manifest\"><table class=\"facts\">"
              "<caption>Manifest</caption><tbody>\n", p->to);
        for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
            fprintf(p->to, "<tr><th scope=\"row\">%s</th><td>", names[i]);
            page_text(p->to, *reports_column_text(q, i) ? reports_column_text(q, i) : "unknown");
            fputs("</td></tr>\n", p->to);
        }
        fputs("</tbody></table></div>\n", p->to);
    } else if (!st) {
        fputs("<p class=\"notice\">No manifest: the program that wrote this file was stopped before it began.</p>\n",
              p->to);
    }
    sqlite3_finalize(q);
    if (!st) st = page_tables(p, of_runs, p->run_count > PAGE_FOLD, err);
    if (!st) st = page_table(p, "options_same", true, NULL, err);
    page_section_end(p);
    return st;
}

/* The overrides are a JSON array of words. */
static cedar_status put_overrides(const page *p, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(p->db, p->path, "SELECT w.value FROM manifest, json_each(CASE WHEN "
                                      "json_valid(overrides) THEN overrides ELSE '[]' END) w ORDER BY w.id", &q, err);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        fputc(' ', p->to);
        page_shell_word(p->to, reports_column_text(q, 0));
    }
    sqlite3_finalize(q);
    return st;
}

static cedar_status put_reproduce(const page *p, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    const char *name = strrchr(p->path, '/') ? strrchr(p->path, '/') + 1 : p->path;
    page_section(p, "reproduce", "How to reproduce",
                "Run the scenario again, repeat it from its recorded step durations "
                "(the event hashes must agree), or ask the database.");
    cedar_status st = reports_prepare(p->db, p->path, "SELECT scenario_path, scenario_text FROM manifest", &q, err);
    if (!st) st = reports_next(p->db, p->path, q, &row, err);
    fputs("<pre class=\"shell\"><code>", p->to);
    if (!st && row) {
        fputs("cedar run ", p->to);
        page_shell_word(p->to, reports_column_text(q, 0));
        fputs(" -o again.db", p->to);
        st = put_overrides(p, err);
        fputc('\n', p->to);
    }
    fputs("cedar replay ", p->to);
    page_shell_word(p->to, name);
    fputs("\nsqlite3 -header -column ", p->to);
    page_shell_word(p->to, name);
    fputs(" &quot;SELECT * FROM v_summary&quot;</code></pre>\n", p->to);
    if (!st && row) {
        fputs("<details class=\"data\"><summary>The scenario</summary><pre tabindex=\"0\"><code>", p->to);
        page_text(p->to, reports_column_text(q, 1));
        fputs("</code></pre></details>\n", p->to);
    }
    sqlite3_finalize(q);
    page_section_end(p);
    return st;
}

/* --- audits ------------------------------------------------------------------------------------------------------- */

/* Rows of one text column as a list. */
static cedar_status put_sentences(const page *p, const char *sql, cedar_err *err) {
    sqlite3_stmt *q;
    bool row, any = false;
    cedar_status st = reports_prepare(p->db, p->path, sql, &q, err);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        fputs(any ? "<li>" : "<ul class=\"sentences\"><li>", p->to);
        any = true;
        page_text(p->to, reports_column_text(q, 0));
        fputs("</li>\n", p->to);
    }
    sqlite3_finalize(q);
    if (any) fputs("</ul>\n", p->to);
    return st;
}

/* The verdict in words: what was tested, what came out, what that cannot show. */
static cedar_status put_verdict(const page *p, cedar_err *err) {
    static const char tested[] =
        "SELECT printf('Audit %d%s: %s (%s), %s arithmetic on %s; %d documents with %d turns in all, %s. %d "
        "positions were scored. Margins were given beforehand: mean KL %g nats, mean dlogp %g nats per token, "
        "decisive disagreement %g. Intervals resample documents %d times.', audit_id, CASE label WHEN '' THEN '' "
        "ELSE ' ' || label END, model_name, model_origin, arith, backend, docs, turns, documents, positions, "
        "margin_kl, margin_dlogp, margin_top1, resamples) FROM audits ORDER BY audit_id";
    static const char found[] =
        "SELECT s FROM (SELECT audit_id, 0 AS arm_id, printf('Audit %d: %d of %d controls that must be exactly 0 (C0 "
        "to C2) are%s.', audit_id, SUM(kl_mean = 0), COUNT(*), CASE SUM(kl_mean = 0) WHEN COUNT(*) THEN '' ELSE ', "
        "so the other numbers of this audit must not be used' END) AS s FROM v_audit WHERE control IN ('C0', 'C1', "
        "'C2') GROUP BY audit_id UNION ALL SELECT audit_id, 0, printf('Audit %d ran none of the controls C0 to C2, so "
        "nothing shows that its other numbers are caused by replay.', audit_id) FROM audits WHERE audit_id NOT IN "
        "(SELECT audit_id FROM audit_arms WHERE control IN ('C0', 'C1', 'C2')) "
        "UNION ALL SELECT audit_id, arm_id, CASE WHEN kl_mean IS NULL THEN printf('%d.%d %s: nothing was scored.', "
        "audit_id, arm_id, label) ELSE printf('%d.%d %s: mean KL %.3g nats (%s), largest %.3g; top-1 agreement "
        "%.3f %%; %d positions of %d documents: %s.', audit_id, arm_id, label, kl_mean, CASE WHEN kl_lo IS NULL THEN "
        "'no interval' ELSE printf('%.3g to %.3g', kl_lo, kl_hi) END, kl_max, 100 * top1_rate, "
        "COALESCE(positions, kept_positions), docs, COALESCE(verdict, 'not finished')) END FROM v_audit WHERE "
        "control = '') ORDER BY audit_id, arm_id";
    static const char limits[] =
        "SELECT 'The weights are seeded, not trained. Where the error begins and ends, that controls are 0 and how "
        "rows are contaminated follow from the architecture; how large an error is does not carry over to a trained "
        "model.' WHERE EXISTS (SELECT 1 FROM audits WHERE model_origin NOT LIKE 'checkpoint%') UNION ALL SELECT "
        "'Tokens are forced. What a model does with its own different tokens is seen only where greedy decode was "
        "followed.' UNION ALL SELECT printf('Audit %d has %d documents; intervals of so few rest on little.', "
        "audit_id, docs) FROM audits WHERE docs < 20 UNION ALL SELECT 'No text of a real task was answered, so "
        "nothing here is an accuracy.' UNION ALL SELECT 'A verdict \"equivalent\" means: below the margin given "
        "beforehand, at these lengths, with this model. \"undecided\" is not \"equal\".'";
    fputs("<h3>What was tested</h3>\n", p->to);
    cedar_status st = put_sentences(p, tested, err);
    fputs("<h3>What was found</h3>\n", p->to);
    if (!st) st = put_sentences(p, found, err);
    fputs("<h3>What this cannot show</h3>\n", p->to);
    return st ? st : put_sentences(p, limits, err);
}

static cedar_status put_audit(const page *p, cedar_err *err) {
    static const char *const open[] = { "audit", "audit_cost", NULL };
    static const char *const fold[] = { "audit_stats", "audit_offset", "audit_fronts", "audit_turn", "audit_depth",
                                        "audit_length", "audit_globals", "audit_layers", "audit_greedy",
                                        "audit_drafts", "audit_needles", "audit_setup", NULL };
    page_section(p, "audit", "Audit", "Bounded replay against exact recomputation of the same tokens, side by side in "
                                     "one engine (docs/AUDIT.md).");
    cedar_status st = put_verdict(p, err);
    if (!st) st = page_tables(p, open, false, err);
    if (!st) st = page_choice(p, "pick-arm", "Arm for fronts and map",
                              "SELECT audit_id || '.' || arm_id, audit_id || '.' || arm_id || ' ' || label FROM "
                              "audit_arms ORDER BY control <> '', audit_id, arm_id", err);
    page_chart(p, "c-profile", "Error against offset", "Mean KL in nats, logarithmic axis; zero is not drawn. Offsets "
                                                      "count from the hit's end, or from the prompt's last position. "
                                                      "Lines mark where theory makes layers exact again.");
    fputs("<figure id=\"fig-map\"><figcaption><b>Contamination of new global rows</b> <span>Share of stored bytes "
          "that differ from exact ones, by source layer and position in the document; each cell is a sixtieth of the "
          "longest document.</span></figcaption><div id=\"map-plot\" class=\"plot\" tabindex=\"0\" role=\"region\" "
          "aria-label=\"Contamination map; the numbers are in the table on contamination.\"></div></figure>\n"
          "<div class=\"pair\">", p->to);
    page_chart(p, "c-audit-turn", "Error against turn", "Mean KL by turn: does it build up?");
    page_chart(p, "c-length", "Error against replay length", "Mean KL of encoder replay by R; the lines are the "
                                                            "window and the halo.");
    page_chart(p, "c-work", "Work of prompts", "Layers run on prompt rows, over all layers on all prompt tokens.");
    page_chart(p, "c-windows", "Bytes for hits", "Windows stored over all turns, next to the global KV the turns "
                                                "added.");
    fputs("</div>\n", p->to);
    if (!st) st = page_tables(p, fold, true, err);
    page_section_end(p);
    return st;
}

/* --- the page ----------------------------------------------------------------------------------------------------- */

static bool always(const page *p) { return p != NULL; }
static bool has_runs(const page *p) { return p->run_count > 0; }
static bool has_audits(const page *p) { return p->audit_count > 0; }
static bool has_ladders(const page *p) { return p->ladder_count > 0; }
static bool has_claims(const page *p) { return p->claim_count > 0; }

static const struct {
    const char *id, *name;
    bool (*there)(const page *);
    cedar_status (*put)(const page *, cedar_err *);
} sections[] = {
    { "overview", "Answers", always, put_overview },
    { "claims", "Claims", has_claims, put_claims },
    { "ladder", "Ladder", has_ladders, put_ladders },
    { "frontier", "Frontier", has_runs, put_frontier },
    { "latency", "Latency", has_runs, put_latency },
    { "timeline", "Timeline", has_runs, put_timeline },
    { "steps", "Steps", has_runs, put_steps },
    { "quality", "Quality", has_runs, put_quality },
    { "audit", "Audit", has_audits, put_audit },
    { "cache", "Cache", has_runs, put_cache },
    { "manifest", "What ran", always, put_manifest },
    { "reproduce", "Reproduce", always, put_reproduce }
};
enum { SECTIONS = sizeof sections / sizeof *sections };

static void put_navigation(const page *p) {
    fputs("<nav aria-label=\"Sections\">", p->to);
    for (int i = 0; i < SECTIONS; i++)
        if (sections[i].there(p)) fprintf(p->to, "<a href=\"#%s\">%s</a> ", sections[i].id, sections[i].name);
    fputs("<button id=\"theme\" type=\"button\" hidden>Dark</button></nav>\n<main id=\"main\">\n<noscript><p "
          "class=\"notice\">Charts need JavaScript; every number is in the tables.</p></noscript>\n", p->to);
}

static cedar_status count_rows(page *p, cedar_err *err) {
    const struct { const char *sql; int *to; } counts[] = {
        { "SELECT COUNT(*) FROM runs", &p->run_count },
        { "SELECT COUNT(*) FROM audits", &p->audit_count },
        { "SELECT COUNT(*) FROM ladders", &p->ladder_count },
        { "SELECT COUNT(*) FROM claims", &p->claim_count }
    };
    char count[24];
    cedar_status st = CEDAR_OK;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && !st; i++) {
        st = page_one_text(p, counts[i].sql, count, sizeof count, err);
        *counts[i].to = atoi(count);
    }
    return st;
}

/* page_runs: the runs whose requests and steps are shown one by one. */
static cedar_status choose_runs(const page *p, cedar_err *err) {
    char sql[128];
    snprintf(sql, sizeof sql, "CREATE TEMP TABLE page_runs AS SELECT run_id FROM runs ORDER BY run_id LIMIT %d",
             PAGE_RUNS);
    return reports_run_sql(p->db, p->path, sql, "choosing runs", err);
}

/* What is shown of how much. */
static void put_footer(const page *p) {
    fprintf(p->to, "</main>\n<footer><p>Made by cedar from its database alone. Metrics are defined in docs/METRICS.md. "
            "To keep the file small, requests and steps are shown of the first %d runs, as a sample where there are "
            "many: %d points of a distribution, %d requests of a timeline, %d intervals of time and %d single steps "
            "per run. Tables of metrics rest on all rows, and <code>cedar report FILE --csv NAME</code> gives every "
            "row.</p></footer>\n", PAGE_RUNS, page_shared(p, PAGE_CURVE_POINTS), page_shared(p, PAGE_TIMELINE),
            PAGE_TIME_BINS, page_step_rows(p));
}

static cedar_status put_page(page *p, cedar_err *err) {
    char title[256];
    cedar_status st = page_one_text(p, "SELECT scenario_path FROM manifest", title, sizeof title, err);
    if (!st) st = count_rows(p, err);
    if (!st) st = choose_runs(p, err);
    if (st) return st;
    if (!*title) snprintf(title, sizeof title, "Unfinished database");
    put_head(p, title);
    st = put_masthead(p, title, err);
    put_navigation(p);
    for (int i = 0; i < SECTIONS && !st; i++)
        if (sections[i].there(p)) st = sections[i].put(p, err);
    put_footer(p);
    if (!st) st = page_data(p, err);
    fputs("<script>", p->to);
    page_file(p->to, _binary_chart_min_js_start, _binary_chart_min_js_end);
    fputs("</script>\n<script>", p->to);
    page_file(p->to, _binary_report_js_start, _binary_report_js_end);
    fputs("</script>\n</body>\n</html>\n", p->to);
    return st ? st : reports_flush(p->to, err);
}

cedar_status cedar_report_html(const char *path, FILE *to, cedar_err *err) {
    page p = { .path = path, .to = to };
    cedar_status st = reports_open_evaluated(path, &p.db, err);
    if (st) return st;
    st = put_page(&p, err);
    sqlite3_close(p.db);
    return st;
}
