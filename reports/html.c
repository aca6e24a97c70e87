/* The HTML report: one file that needs no network.
 *
 * Everything a reader must know is in the tables, written here; the script only draws charts from the JSON block and
 * works from nothing else. All text from the database is escaped, and a content security policy that names the two
 * scripts by hash keeps anything else from running. */
#include "reports/reports.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "reports/reports_int.h"

enum {
    CURVE_POINTS_MAX = 400,     /* per run and distribution, up to FULL_RUNS runs */
    TIMELINE_MAX = 400,         /* requests per run, up to FULL_RUNS runs */
    FULL_RUNS = 16,             /* more runs share the points of so many */
    TIME_BINS = 120,            /* per run, for step rows and memory */
    CARDS_MAX = 8
};

typedef struct page {
    sqlite3 *db;
    const char *path;
    FILE *to;
    int run_count;
} page;

/* Points per run that keep the page small however many runs there are. */
static int shared(const page *p, int limit) {
    int each = p->run_count > FULL_RUNS ? limit * FULL_RUNS / p->run_count : limit;
    return each < 20 ? 20 : each;
}

/* --- escaping ----------------------------------------------------------------------------------------------------- */

/* Controls other than line ends have no place in HTML; bytes that are not UTF-8 come as U+FFFD already. */
static uint32_t printable(uint32_t c) {
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0) || (c & 0xFFFE) == 0xFFFE ? 0xFFFD : c;
}

static void put_html_char(FILE *to, uint32_t c) {
    switch (c) {
    case '<': fputs("&lt;", to); break;
    case '>': fputs("&gt;", to); break;
    case '&': fputs("&amp;", to); break;
    case '"': fputs("&quot;", to); break;
    case '\'': fputs("&#39;", to); break;
    default: reports_utf8_put(to, printable(c));
    }
}

static void put_html(FILE *to, const char *s) {
    for (uint32_t c; (c = reports_utf8_next(&s));) put_html_char(to, c);
}

/* JSON string that cannot end a script element either. */
static void put_json_text(FILE *to, const char *s) {
    fputc('"', to);
    for (uint32_t c; (c = reports_utf8_next(&s));) {
        if (c < 0x20 || strchr("<>&\"\\'", (int)(c < 0x80 ? c : 'x')) || c == 0x2028 || c == 0x2029)
            fprintf(to, "\\u%04x", c);
        else reports_utf8_put(to, printable(c));
    }
    fputc('"', to);
}

static void put_json_value(FILE *to, sqlite3_stmt *q, int column) {
    double x;
    switch (sqlite3_column_type(q, column)) {
    case SQLITE_INTEGER: fprintf(to, "%lld", (long long)sqlite3_column_int64(q, column)); return;
    case SQLITE_FLOAT:
        x = sqlite3_column_double(q, column);
        if (isfinite(x)) fprintf(to, "%.7g", x);
        else fputs("null", to);
        return;
    case SQLITE_NULL: fputs("null", to); return;
    default: put_json_text(to, reports_column_text(q, column));
    }
}

/* A word of a shell command, quoted when it has to be. */
static void put_shell_word(FILE *to, const char *word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./=:,+-";
    if (*word && word[strspn(word, plain)] == 0) {
        fputs(word, to);
        return;
    }
    put_html_char(to, '\'');
    for (uint32_t c; (c = reports_utf8_next(&word));) {
        if (c == '\'') put_html(to, "'\\''");
        else put_html_char(to, c);
    }
    put_html_char(to, '\'');
}

/* --- embedded files --------------------------------------------------------------------------------------------- */

static void put_file(FILE *to, const char *from, const char *end) { fwrite(from, 1, (size_t)(end - from), to); }

/* 'sha256-BASE64' of an inline script, as a content security policy wants it. */
static void put_script_hash(FILE *to, const char *from, const char *end) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t d[33] = { 0 };      /* 32 bytes and a zero: 11 groups of 3 */
    cedar_sha256 hash;
    cedar_sha256_init(&hash);
    cedar_sha256_add(&hash, from, (size_t)(end - from));
    cedar_sha256_digest(&hash, d);
    fputs(" &#39;sha256-", to);
    for (int i = 0; i < 33; i += 3) {
        uint32_t v = (uint32_t)d[i] << 16 | (uint32_t)d[i + 1] << 8 | d[i + 2];
        for (int k = 18; k >= (i == 30 ? 6 : 0); k -= 6) fputc(digits[v >> k & 63], to);
    }
    fputs("=&#39;", to);
}

/* --- data for the charts ------------------------------------------------------------------------------------------ */

/* Every query yields the rows of one array of arrays; ?1 is its limit. */
static const struct {
    const char *name;
    int limit;
    bool shared;                /* the limit shrinks with the number of runs */
    const char *sql;
} datasets[] = {
    { "runs", 0, false, "SELECT run_id, label, replay, status FROM runs ORDER BY run_id" },
    { "ttft", CURVE_POINTS_MAX, true,
      "SELECT run_id, v, i * 1.0 / n FROM (SELECT run_id, ttft_ns / 1e6 AS v, "
      "ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY ttft_ns) AS i, COUNT(*) OVER (PARTITION BY run_id) AS n "
      "FROM v_request_times WHERE ttft_ns IS NOT NULL) "
      "WHERE n <= ?1 OR i = 1 OR i = n OR i * ?1 / n <> (i - 1) * ?1 / n ORDER BY run_id, i" },
    { "itl", CURVE_POINTS_MAX, true,
      "SELECT run_id, v, i * 1.0 / n FROM (SELECT run_id, itl_ns / 1e6 AS v, "
      "ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY itl_ns) AS i, COUNT(*) OVER (PARTITION BY run_id) AS n "
      "FROM v_request_times WHERE itl_ns IS NOT NULL) "
      "WHERE n <= ?1 OR i = 1 OR i = n OR i * ?1 / n <> (i - 1) * ?1 / n ORDER BY run_id, i" },
    { "points", 0, false,
      "SELECT run_id, intvty_p90, total_tok_s, output_tok_s, ttft_p90_ms, lanes FROM v_summary "
      "ORDER BY run_id" },
    { "timeline", TIMELINE_MAX, true,
      "SELECT run_id, lane, stream, turn, arrival_ns / 1e9, admit_ns / 1e9, first_ns / 1e9, last_ns / 1e9, trace_id,"
      " in_tokens, out_tokens, hit_tokens, replayed_tokens, error, phase FROM (SELECT *, "
      "ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY arrival_ns, request_id) AS i FROM requests) "
      "WHERE i <= ?1 ORDER BY run_id, i" },
    { "steps", TIME_BINS, false,
      "WITH span AS (SELECT run_id, MIN(start_ns) AS t0, MAX(end_ns) - MIN(start_ns) + 1 AS ns "
      "FROM steps GROUP BY run_id) "
      "SELECT run_id, (start_ns - t0) * ?1 / ns AS bin, (t0 + ns * 1.0 * ((start_ns - t0) * ?1 / ns) / ?1) / 1e9,"
      " SUM(prefill_rows - replayed_rows) * (?1 * 1e9 / ns), SUM(replayed_rows) * (?1 * 1e9 / ns),"
      " SUM(decode_rows) * (?1 * 1e9 / ns), SUM(kept_rows) * (?1 * 1e9 / ns), MAX(kv_bytes_used),"
      " MAX(window_bytes_stored) FROM steps JOIN span USING (run_id) GROUP BY run_id, bin ORDER BY run_id, bin" },
    { "offset", 0, false,
      "SELECT run_id, bin, bin_label, kl_mean, kl_p99, top1_rate, positions FROM v_quality_offset "
      "ORDER BY run_id, bin" },
    { "turn", 0, false,
      "SELECT run_id, turn, kl_mean, top1_rate, positions FROM v_quality_turn ORDER BY run_id, turn" },
    { "histogram", 0, false,
      "SELECT run_id, bucket, label, positions, "
      "CAST(positions AS REAL) / SUM(positions) OVER (PARTITION BY run_id) FROM v_kl_histogram "
      "ORDER BY run_id, bucket" },
    { "cache", 0, false,
      "SELECT run_id, hit_rate, hit_rate_theory, kv_bytes_peak, window_bytes_peak "
      "FROM v_cache JOIN v_memory USING (run_id) ORDER BY run_id" }
};

static cedar_status put_dataset(const page *p, const char *sql, int limit, cedar_err *err) {
    sqlite3_stmt *q;
    bool row, first = true;
    cedar_status st = reports_prepare(p->db, p->path, sql, &q, err);
    if (!st && sqlite3_bind_parameter_count(q)) sqlite3_bind_int(q, 1, limit);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        fputs(first ? "\n[" : ",\n[", p->to);
        first = false;
        for (int i = 0; i < sqlite3_column_count(q); i++) {
            if (i) fputc(',', p->to);
            put_json_value(p->to, q, i);
        }
        fputc(']', p->to);
    }
    sqlite3_finalize(q);
    return st;
}

static cedar_status put_data(const page *p, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    fprintf(p->to, "<script type=\"application/json\" id=\"data\">{\"bins\":%d", TIME_BINS);
    for (size_t i = 0; i < sizeof datasets / sizeof *datasets && !st; i++) {
        fprintf(p->to, ",\n\"%s\":[", datasets[i].name);
        int limit = datasets[i].shared ? shared(p, datasets[i].limit) : datasets[i].limit;
        st = put_dataset(p, datasets[i].sql, limit, err);
        fputc(']', p->to);
    }
    fputs("}</script>\n", p->to);
    return st;
}

/* --- tables ------------------------------------------------------------------------------------------------------- */

static void put_table_head(const page *p, const reports_table *t) {
    fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"", p->to);
    put_html(p->to, t->title);
    fputs("\"><table><caption>", p->to);
    put_html(p->to, t->title);
    if (t->note[0]) {
        fputs(" <small>", p->to);
        put_html(p->to, t->note);
        fputs("</small>", p->to);
    }
    fputs("</caption><thead><tr>", p->to);
    for (int i = 0; t->columns[i].head; i++) {
        fprintf(p->to, "<th scope=\"col\"%s>", t->columns[i].kind == REPORTS_TEXT ? "" : " class=\"n\"");
        put_html(p->to, t->columns[i].head);
        fputs("</th>", p->to);
    }
    fputs("</tr></thead><tbody>\n", p->to);
}

static void put_table_row(const page *p, const reports_table *t, sqlite3_stmt *q) {
    char text[REPORTS_CELL_BYTES];
    fputs("<tr>", p->to);
    for (int i = 0; t->columns[i].head; i++) {
        bool number = t->columns[i].kind != REPORTS_TEXT;
        fputs(i == 0 ? "<th scope=\"row\">" : number ? "<td class=\"n\">" : "<td>", p->to);
        if (number) reports_format(t->columns[i].kind, q, i, text);
        put_html(p->to, number ? text : reports_column_text(q, i));
        fputs(i == 0 ? "</th>" : "</td>", p->to);
    }
    fputs("</tr>\n", p->to);
}

/* A table in a fold ("fold") or open; *any tells whether it has rows. Without rows nothing is written. */
static cedar_status put_table(const page *p, const char *id, bool fold, bool *any, cedar_err *err) {
    const reports_table *t = reports_table_get(id);
    sqlite3_stmt *q;
    bool row, first = true;
    cedar_status st = reports_prepare(p->db, p->path, t->sql, &q, err);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        if (first && fold) {
            fputs("<details class=\"data\"><summary>Data: ", p->to);
            put_html(p->to, t->title);
            fputs("</summary>\n", p->to);
        }
        if (first) put_table_head(p, t);
        first = false;
        put_table_row(p, t, q);
    }
    sqlite3_finalize(q);
    if (!first) fputs(fold ? "</tbody></table></div></details>\n" : "</tbody></table></div>\n", p->to);
    if (any) *any = !first;
    return st;
}

static cedar_status put_tables(const page *p, const char *const *ids, bool fold, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (; *ids && !st; ids++) st = put_table(p, *ids, fold, NULL, err);
    return st;
}

/* A chart to be drawn by the script; `about` is its text alternative. */
static void put_chart(const page *p, const char *id, const char *title, const char *about) {
    fprintf(p->to,
            "<figure id=\"fig-%s\"><figcaption><b>%s</b> <span>%s</span></figcaption><div class=\"chart\">"
            "<canvas id=\"%s\" role=\"img\" aria-label=\"%s. %s The numbers are in the tables of this section.\">"
            "</canvas></div></figure>\n",
            id, title, about, id, title, about);
}

static void put_section(const page *p, const char *id, const char *title, const char *intro) {
    fprintf(p->to, "<section id=\"%s\"><h2>%s</h2>\n<p class=\"intro\">%s</p>\n", id, title, intro);
}

static cedar_status put_run_choice(const page *p, const char *id, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(p->db, p->path, "SELECT run_id, label FROM runs ORDER BY run_id", &q, err);
    fprintf(p->to, "<p class=\"choice\"><label for=\"%s\">Run</label> <select id=\"%s\" class=\"run-choice\">", id, id);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) {
        fprintf(p->to, "<option value=\"%s\">%s ", reports_column_text(q, 0), reports_column_text(q, 0));
        put_html(p->to, reports_column_text(q, 1));
        fputs("</option>", p->to);
    }
    fputs("</select></p>\n", p->to);
    sqlite3_finalize(q);
    return st;
}

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
    put_html(p->to, reports_column_text(q, 0));
    fputs("\"></i>", p->to);
    put_html(p->to, reports_column_text(q, 1));
    fputs("</h3><p><span class=\"tag\">replay ", p->to);
    put_html(p->to, reports_column_text(q, 2));
    fputs("</span>", p->to);
    if (base) fputs(" <span class=\"tag base\">base</span>", p->to);
    if (strcmp(status, "finished")) {
        fputs(" <span class=\"tag warn\">", p->to);
        put_html(p->to, status);
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
    char sql[2048];
    size_t at = (size_t)snprintf(sql, sizeof sql,
        "WITH s AS MATERIALIZED (SELECT * FROM v_summary), "
        "b AS (SELECT * FROM s ORDER BY replay <> 'exact', run_id LIMIT 1) "
        "SELECT s.run_id, s.label, "
        "s.replay || CASE s.clock WHEN 'modelled' THEN ', modelled time' ELSE '' END, "
        "s.status, s.run_id = b.run_id, s.requests, b.label");
    for (int i = 0; i < MEASURES; i++)
        at += (size_t)snprintf(sql + at, sizeof sql - at, ", s.%s, CAST(s.%s AS REAL) / b.%s", measures[i].column,
                               measures[i].column, measures[i].column);
    snprintf(sql + at, sizeof sql - at, " FROM s, b ORDER BY s.run_id LIMIT %d", CARDS_MAX);
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(p->db, p->path, sql, &q, err);
    fputs("<div class=\"cards\">\n", p->to);
    while (!st && !(st = reports_next(p->db, p->path, q, &row, err)) && row) put_card(p, q);
    fputs("</div>\n", p->to);
    sqlite3_finalize(q);
    return st;
}

/* --- sections ----------------------------------------------------------------------------------------------------- */

static cedar_status one_text(const page *p, const char *sql, char *out, size_t bytes, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    cedar_status st = reports_prepare(p->db, p->path, sql, &q, err);
    if (!st) st = reports_next(p->db, p->path, q, &row, err);
    snprintf(out, bytes, "%s", !st && row ? reports_column_text(q, 0) : "");
    sqlite3_finalize(q);
    return st;
}

static void put_head(const page *p, const char *title) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>", p->to);
    put_html(p->to, title);
    fputs(" - cedar report</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; "
          "style-src &#39;unsafe-inline&#39;; img-src data:; script-src", p->to);
    put_script_hash(p->to, _binary_chart_min_js_start, _binary_chart_min_js_end);
    put_script_hash(p->to, _binary_report_js_start, _binary_report_js_end);
    fputs("\">\n<style>\n", p->to);
    put_file(p->to, _binary_report_css_start, _binary_report_css_end);
    fputs("</style>\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the report</a>\n", p->to);
}

static cedar_status put_masthead(const page *p, const char *title, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    fputs(
        "<header class=\"masthead\"><div><p class=\"brand\">cedar <span>causal encoder-decoder agent replay</span></p>"
        "<h1>",
        p->to);
    put_html(p->to, title);
    fputs("</h1>", p->to);
    cedar_status st = reports_prepare(p->db, p->path, "SELECT finished, started_at, seed, cedar_version, "
        "substr(commit_id, 1, 12), commit_dirty, (SELECT COUNT(*) FROM runs), (SELECT COUNT(*) FROM requests), "
        "(SELECT COALESCE(SUM(steps), 0) FROM steps), (SELECT COUNT(*) FROM quality) FROM manifest", &q, err);
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
            put_html(p->to, reports_column_text(q, i));
            fprintf(p->to, "%s</span>", i == 4 && sqlite3_column_int(q, 5) ? " with changed files" : "");
        }
        fputs("</p>", p->to);
    }
    fputs("</div>\n<nav aria-label=\"Sections\"><a href=\"#overview\">Overview</a> <a href=\"#latency\">Latency</a> "
          "<a href=\"#timeline\">Timeline</a> <a href=\"#throughput\">Throughput</a> <a href=\"#quality\">Quality</a> "
          "<a href=\"#cache\">Cache</a> <a href=\"#manifest\">What ran</a> <a href=\"#reproduce\">Reproduce</a></nav>"
          "</header>\n<main id=\"main\">\n<noscript><p class=\"notice\">Charts need JavaScript; every number is in the "
          "tables.</p></noscript>\n", p->to);
    sqlite3_finalize(q);
    return st;
}

static cedar_status put_overview(const page *p, cedar_err *err) {
    static const char *const open[] = { "summary", "population", "expectations", "errors", NULL };
    char more[160], base[160];
    cedar_status st =
        one_text(p,
                 "SELECT printf('The arms side by side; changes are against run %d %s.', run_id, label) FROM runs "
                 "ORDER BY replay <> 'exact', run_id LIMIT 1",
                 base, sizeof base, err);
    if (!st) st = one_text(p, "SELECT CASE WHEN COUNT(*) > 8 THEN printf('Cards show the first 8 of %d runs, the table "
                           "all.', COUNT(*)) ELSE '' END FROM runs", more, sizeof more, err);
    if (st) return st;
    fputs("<section id=\"overview\"><h2>Overview</h2>\n<p class=\"intro\">", p->to);
    put_html(p->to, base);
    fprintf(p->to, " %s</p>\n", more);
    st = put_cards(p, err);
    if (!st) {
        put_chart(p, "c-points", "Speed against throughput", "p90 interactivity and total tokens per second, one point "
                  "per run.");
        st = put_tables(p, open, false, err);
    }
    fputs("</section>\n", p->to);
    return st;
}

static cedar_status put_latency(const page *p, cedar_err *err) {
    static const char *const fold[] = { "latency", "interactivity", NULL };
    char intro[320];
    snprintf(intro, sizeof intro, "Empirical distributions over kept requests: the share of requests at or below a "
             "latency. Curves have at most %d points per run, evenly spaced in rank.", shared(p, CURVE_POINTS_MAX));
    put_section(p, "latency", "Latency", intro);
    fputs("<div class=\"pair\">", p->to);
    put_chart(p, "c-ttft", "Time to first token",
              "Share of requests at or below a TTFT, milliseconds, logarithmic axis.");
    put_chart(p, "c-itl", "Inter-token latency",
              "Share of requests at or below an ITL, milliseconds. ITL is (end minus "
              "first token) / (OSL - 1), one value per request.");
    fputs("</div>\n", p->to);
    cedar_status st = put_tables(p, fold, true, err);
    fputs("</section>\n", p->to);
    return st;
}

static cedar_status put_timeline(const page *p, cedar_err *err) {
    static const char *const fold[] = { "lanes", "sessions", NULL };
    char intro[320];
    snprintf(intro, sizeof intro, "Each bar is a request in its lane: waiting for admission, prefill up to the first "
             "token, decode. Requests of one lane that overlap (subagents) are stacked. The first %d requests of a run "
             "are drawn.", shared(p, TIMELINE_MAX));
    put_section(p, "timeline", "Timeline", intro);
    cedar_status st = put_run_choice(p, "pick-timeline", err);
    fputs(
        "<figure><figcaption class=\"keys\"><span class=\"k-wait\">waiting</span> <span class=\"k-prefill\">prefill"
        "</span> <span class=\"k-decode\">decode</span> <span class=\"k-error\">error</span></figcaption>"
        "<div id=\"timeline-plot\" class=\"plot\" tabindex=\"0\" role=\"region\" aria-label=\"Timeline of requests by "
        "lane; the sums are in the table Time per lane.\"></div></figure>\n",
        p->to);
    if (!st) st = put_tables(p, fold, true, err);
    fputs("</section>\n", p->to);
    return st;
}

static cedar_status put_throughput(const page *p, cedar_err *err) {
    static const char *const fold[] = { "floor", "throughput", "steps", NULL };
    char intro[320];
    snprintf(intro, sizeof intro,
             "Token rows that the engine ran per second, by kind, in %d equal intervals of the run. "
             "Replayed rows rebuild windows after a prefix hit; kept rows are those that ran behind the cut.",
             TIME_BINS);
    put_section(p, "throughput", "Throughput", intro);
    cedar_status st = put_run_choice(p, "pick-steps", err);
    put_chart(p, "c-steps", "Rows per second", "New prefill, replayed and decode rows, stacked; kept rows as a line.");
    if (!st) st = put_tables(p, fold, true, err);
    fputs("</section>\n", p->to);
    return st;
}

static cedar_status put_quality(const page *p, cedar_err *err) {
    static const char *const fold[] = { "offset", "histogram", "turn", "depth", NULL };
    bool any;
    put_section(p, "quality", "Quality", "Bounded replay against exact recomputation of the same tokens: divergence in "
                "nats over the full vocabulary, by distance from where the approximation begins.");
    cedar_status st = put_table(p, "quality", false, &any, err);
    if (!st && any) {
        fputs("<div class=\"pair\">", p->to);
        put_chart(p, "c-kl", "Mean KL by offset", "KL(P||Q) in nats by offset bin, logarithmic axis.");
        put_chart(p, "c-top1", "Top-1 agreement by offset", "Share of positions with the same most likely token.");
        put_chart(p, "c-hist", "Sizes of KL", "Share of positions per decade of KL(P||Q).");
        put_chart(p, "c-turn", "Mean KL by turn", "Whether the error builds up over a conversation.");
        fputs("</div>\n", p->to);
        st = put_tables(p, fold, true, err);
    } else if (!st) {
        fputs("<p class=\"notice\">No positions were scored in this database.</p>\n", p->to);
    }
    fputs("</section>\n", p->to);
    return st;
}

static cedar_status put_cache(const page *p, cedar_err *err) {
    static const char *const fold[] = { "cache", "misses", NULL };
    put_section(p, "cache", "Cache", "Global KV is small and shared; stored windows are what exact prefix reuse has to "
                "keep, and what encoder replay does without.");
    fputs("<div class=\"pair\">", p->to);
    put_chart(p, "c-hit", "Hit rate", "Adopted prompt tokens over prompt tokens, next to what an infinite cache could "
              "give.");
    put_chart(p, "c-peak", "Cache memory, peak", "Global KV in use and windows stored for prefix reuse, bytes.");
    fputs("</div>\n", p->to);
    cedar_status st = put_run_choice(p, "pick-memory", err);
    put_chart(p, "c-memory", "Cache memory over time", "Highest value in each interval.");
    if (!st) st = put_tables(p, fold, true, err);
    fputs("</section>\n", p->to);
    return st;
}

static cedar_status put_manifest(const page *p, cedar_err *err) {
    static const char *const open[] = { "runs", "options_differ", NULL }, *const fold[] = { "options_same", NULL };
    static const char *const names[] = { "cedar version",    "commit",      "built from changed files",
                                         "compiler",         "build flags", "scenario",
                                         "scenario SHA-256", "overrides",   "machine",
                                         "started",          "seed",        "finished" };
    sqlite3_stmt *q;
    bool row = false;
    put_section(p, "manifest", "What ran", "Everything needed to know where these numbers come from.");
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
            put_html(p->to, *reports_column_text(q, i) ? reports_column_text(q, i) : "unknown");
            fputs("</td></tr>\n", p->to);
        }
        fputs("</tbody></table></div>\n", p->to);
    } else if (!st) {
        fputs("<p class=\"notice\">No manifest: the program that wrote this file was stopped before it began.</p>\n",
              p->to);
    }
    sqlite3_finalize(q);
    if (!st) st = put_tables(p, open, false, err);
    if (!st) st = put_tables(p, fold, true, err);
    fputs("</section>\n", p->to);
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
        put_shell_word(p->to, reports_column_text(q, 0));
    }
    sqlite3_finalize(q);
    return st;
}

static cedar_status put_reproduce(const page *p, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    const char *name = strrchr(p->path, '/') ? strrchr(p->path, '/') + 1 : p->path;
    put_section(p, "reproduce", "How to reproduce",
                "Run the scenario again, repeat it from its recorded step durations "
                "(the event hashes must agree), or ask the database.");
    cedar_status st = reports_prepare(p->db, p->path, "SELECT scenario_path, scenario_text FROM manifest", &q, err);
    if (!st) st = reports_next(p->db, p->path, q, &row, err);
    fputs("<pre class=\"shell\"><code>", p->to);
    if (!st && row) {
        fputs("cedar run ", p->to);
        put_shell_word(p->to, reports_column_text(q, 0));
        fputs(" -o again.db", p->to);
        st = put_overrides(p, err);
        fputc('\n', p->to);
    }
    fputs("cedar replay ", p->to);
    put_shell_word(p->to, name);
    fputs("\nsqlite3 -header -column ", p->to);
    put_shell_word(p->to, name);
    fputs(" &quot;SELECT * FROM v_summary&quot;</code></pre>\n", p->to);
    if (!st && row) {
        fputs("<details class=\"data\"><summary>The scenario</summary><pre tabindex=\"0\"><code>", p->to);
        put_html(p->to, reports_column_text(q, 1));
        fputs("</code></pre></details>\n", p->to);
    }
    sqlite3_finalize(q);
    fputs("</section>\n", p->to);
    return st;
}

static cedar_status put_page(page *p, cedar_err *err) {
    static cedar_status (*const sections[])(const page *, cedar_err *) = {
        put_overview, put_latency, put_timeline, put_throughput, put_quality, put_cache, put_manifest, put_reproduce
    };
    char title[256], count[24];
    cedar_status st = one_text(p, "SELECT scenario_path FROM manifest", title, sizeof title, err);
    if (!st) st = one_text(p, "SELECT COUNT(*) FROM runs", count, sizeof count, err);
    if (st) return st;
    p->run_count = atoi(count);
    if (!*title) snprintf(title, sizeof title, "Unfinished database");
    put_head(p, title);
    st = put_masthead(p, title, err);
    for (size_t i = 0; i < sizeof sections / sizeof *sections && !st; i++) st = sections[i](p, err);
    fputs("</main>\n<footer><p>Made by cedar from its database alone. Metrics are defined in "
          "docs/METRICS.md.</p></footer>\n",
          p->to);
    if (!st) st = put_data(p, err);
    fputs("<script>", p->to);
    put_file(p->to, _binary_chart_min_js_start, _binary_chart_min_js_end);
    fputs("</script>\n<script>", p->to);
    put_file(p->to, _binary_report_js_start, _binary_report_js_end);
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
