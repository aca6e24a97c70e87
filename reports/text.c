/* The text report: a summary table and short sections, never wider than the terminal.
 *
 * A table is read into a grid of strings first, since column widths depend on all rows. Wide tables with few rows are
 * turned: one line per quantity, as many rows side by side as fit. */
#include "reports/reports.h"

#include <stdarg.h>
#include <string.h>

#include "base/mem.h"
#include "reports/reports_int.h"

enum { WIDTH_MIN = 60, CELL_COLUMNS_MAX = 28, GAP = 2, SUMMARY_RUNS = 30 };

typedef struct cell { char text[4 * CELL_COLUMNS_MAX + 8]; int width; } cell;    /* width in terminal columns */

typedef struct grid {
    int rows, columns;          /* row 0 is the head */
    cell *cells;                /* [rows][columns] */
    const reports_table *table;
} grid;

typedef struct text_report {
    sqlite3 *db;
    const char *path;
    FILE *to;
    int width;
    bool color;
} text_report;

/* --- characters --------------------------------------------------------------------------------------------------- */

/* Terminal columns of a character: 0 for marks that combine, 2 for the wide scripts. */
static int char_columns(uint32_t c) {
    static const uint32_t zero[][2] = { { 0x300, 0x36F }, { 0x200B, 0x200F }, { 0x202A, 0x202E }, { 0x2060, 0x206F },
                                        { 0xFE00, 0xFE0F } };
    static const uint32_t two[][2] = { { 0x1100, 0x115F }, { 0x2E80, 0xA4CF }, { 0xAC00, 0xD7A3 }, { 0xF900, 0xFAFF },
                                       { 0xFE30, 0xFE6F }, { 0xFF00, 0xFF60 }, { 0xFFE0, 0xFFE6 }, { 0x1F300, 0x1FAFF },
                                       { 0x20000, 0x3FFFD } };
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++)
        if (c >= zero[i][0] && c <= zero[i][1]) return 0;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (c >= two[i][0] && c <= two[i][1]) return 2;
    return 1;
}

/* Next character fit for a terminal: no controls, no marks that combine or turn the direction. 0 at the end. */
static uint32_t next_char(const char **s) {
    uint32_t c = reports_utf8_next(s);
    return c && (c < 0x20 || (c >= 0x7F && c < 0xA0) || !char_columns(c)) ? 0xFFFD : c;
}

static int text_columns(const char *s) {
    int n = 0;
    for (uint32_t c; (c = next_char(&s));) n += char_columns(c);
    return n;
}

static size_t put_utf8(char *out, uint32_t c) {
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3F));
    out[0] = (char)(lead[n] | c);
    return n;
}

/* Copies what fits a cell; a cut text ends in an ellipsis. */
static void fill_cell(cell *to, const char *text) {
    int limit = text_columns(text) > CELL_COLUMNS_MAX ? CELL_COLUMNS_MAX - 1 : CELL_COLUMNS_MAX;
    size_t at = 0;
    to->width = 0;
    for (uint32_t c; (c = next_char(&text));) {
        if (to->width + char_columns(c) > limit) {
            at += put_utf8(to->text + at, 0x2026);
            to->width++;
            break;
        }
        at += put_utf8(to->text + at, c);
        to->width += char_columns(c);
    }
    to->text[at] = 0;
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

static void style(const text_report *r, const char *code) {
    if (r->color) fprintf(r->to, "\033[%sm", code);
}

static void put_spaces(FILE *to, int n) {
    for (; n > 0; n--) fputc(' ', to);
}

static void put_title(const text_report *r, const char *title) {
    style(r, "1");
    fprintf(r->to, "\n%s\n", title);
    style(r, "0");
}

/* Words broken into lines of at most the report's width; a word that is too long is broken anywhere. */
static void put_wrapped(const text_report *r, const char *text) {
    int at = 0;
    while (*text) {
        const char *end = text, *s = text;
        while (*end && *end != ' ' && *end != '\n') end++;
        int columns = 0;
        for (const char *p = text; p < end;) columns += char_columns(next_char(&p));
        if (at && at + 1 + columns > r->width) {
            fputc('\n', r->to);
            at = 0;
        } else if (at) {
            fputc(' ', r->to);
            at++;
        }
        while (s < end) {
            uint32_t c = next_char(&s);
            if (at + char_columns(c) > r->width) {
                fputc('\n', r->to);
                at = 0;
            }
            reports_utf8_put(r->to, c);
            at += char_columns(c);
        }
        text = *end ? end + 1 : end;
    }
    fputc('\n', r->to);
}

static void put_wrapped_format(const text_report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put_wrapped_format(const text_report *r, const char *fmt, ...) {
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    put_wrapped(r, line);
}

static void put_cell(const text_report *r, const cell *c, int width, bool right) {
    if (right) put_spaces(r->to, width - c->width);
    fputs(c->text, r->to);
    if (!right) put_spaces(r->to, width - c->width);
}

/* --- grids -------------------------------------------------------------------------------------------------------- */

static cell *at(const grid *g, int row, int column) {
    return &g->cells[(size_t)row * (size_t)g->columns + (size_t)column];
}

static cedar_status add_row(grid *g, int *capacity, cedar_err *err) {
    if (g->rows == *capacity) {
        int want = *capacity ? 2 * *capacity : 16;
        cell *more = cedar_realloc(g->cells, (size_t)want * (size_t)g->columns, sizeof *more);
        if (!more) return cedar_fail(err, CEDAR_E_OOM, "out of memory for table %s of the report", g->table->id);
        g->cells = more;
        *capacity = want;
    }
    g->rows++;
    return CEDAR_OK;
}

/* Reads a table; g->cells is the caller's (cedar_free), also on failure. */
static cedar_status read_grid(const text_report *r, const char *id, grid *g, cedar_err *err) {
    sqlite3_stmt *q = NULL;
    bool row;
    int capacity = 0;
    char text[REPORTS_CELL_BYTES];
    *g = (grid){ .table = reports_table_get(id) };
    g->columns = reports_table_width(g->table);
    cedar_status st = add_row(g, &capacity, err);
    if (st) return st;
    for (int i = 0; i < g->columns; i++) fill_cell(at(g, 0, i), g->table->columns[i].head);
    st = reports_prepare(r->db, r->path, g->table->sql, &q, err);
    while (!st && !(st = reports_next(r->db, r->path, q, &row, err)) && row && !(st = add_row(g, &capacity, err))) {
        for (int i = 0; i < g->columns; i++) {
            const char *value = text;
            if (reports_is_text(g->table->columns[i].kind)) value = reports_column_text(q, i);
            else reports_format(g->table->columns[i].kind, q, i, text);
            fill_cell(at(g, g->rows - 1, i), value);
        }
    }
    sqlite3_finalize(q);
    return st;
}

static int column_width(const grid *g, int column) {
    int width = 0;
    for (int i = 0; i < g->rows; i++)
        if (at(g, i, column)->width > width) width = at(g, i, column)->width;
    return width;
}

static int row_width(const grid *g, int row) {
    int width = 0;
    for (int i = 0; i < g->columns; i++)
        if (at(g, row, i)->width > width) width = at(g, row, i)->width;
    return width;
}

/* As it is; columns at the right that do not fit are left out, and that is said. */
static void put_upright(const text_report *r, const grid *g) {
    int widths[REPORTS_COLUMNS_MAX], shown = 0, used = 0;
    for (; shown < g->columns; shown++) {
        widths[shown] = column_width(g, shown);
        if (used + widths[shown] > r->width) break;
        used += widths[shown] + GAP;
    }
    for (int i = 0; i < g->rows; i++) {
        if (i == 0) style(r, "4");
        for (int c = 0; c < shown; c++) {
            bool right = !reports_is_text(g->table->columns[c].kind);
            put_cell(r, at(g, i, c), c + 1 < shown || right ? widths[c] : 0, right);
            if (c + 1 < shown) put_spaces(r->to, GAP);
        }
        if (i == 0) style(r, "0");
        fputc('\n', r->to);
    }
    if (shown < g->columns) put_wrapped_format(r, "(%d columns more in a wider terminal)", g->columns - shown);
}

/* One line per column of the table, blocks of rows side by side. */
static void put_turned(const text_report *r, const grid *g) {
    int head = row_width(g, 0), first = 1;
    while (first < g->rows) {
        int end = first, used = head;
        while (end < g->rows && (end == first || used + GAP + row_width(g, end) <= r->width)) {
            used += GAP + row_width(g, end);
            end++;
        }
        if (first > 1) fputc('\n', r->to);
        for (int c = 0; c < g->columns; c++) {
            if (c == 0) style(r, "4");
            put_cell(r, at(g, 0, c), head, false);
            for (int i = first; i < end; i++) {
                put_spaces(r->to, GAP);
                put_cell(r, at(g, i, c), row_width(g, i), true);
            }
            if (c == 0) style(r, "0");
            fputc('\n', r->to);
        }
        first = end;
    }
}

static int natural_width(const grid *g) {
    int width = -GAP;
    for (int i = 0; i < g->columns; i++) width += column_width(g, i) + GAP;
    return width;
}

/* A section with a table; nothing at all when the table has no rows. */
static cedar_status put_table(const text_report *r, const char *id, bool turn, bool note, cedar_err *err) {
    grid g;
    cedar_status st = read_grid(r, id, &g, err);
    if (!st && g.rows > 1) {
        put_title(r, g.table->title);
        if (turn && natural_width(&g) > r->width) put_turned(r, &g);
        else put_upright(r, &g);
        if (note && g.table->note[0]) {
            style(r, "2");
            put_wrapped(r, g.table->note);
            style(r, "0");
        }
    }
    cedar_free(g.cells);
    return st;
}

/* --- sections ----------------------------------------------------------------------------------------------------- */

static cedar_status put_manifest(const text_report *r, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    cedar_status st =
        reports_prepare(r->db, r->path,
                        "SELECT cedar_version, commit_id, commit_dirty, scenario_path,"
                        " overrides, seed, started_at, finished, substr(scenario_hash, 1, 12) FROM manifest",
                        &q, err);
    put_title(r, "What ran");
    if (!st) st = reports_next(r->db, r->path, q, &row, err);
    if (!st && row) {
        const char *commit = reports_column_text(q, 1), *overrides = reports_column_text(q, 4);
        put_wrapped_format(r, "cedar %s, commit %.12s%s; scenario %s (sha256 %s...), seed %s%s%s; started %s; %s.",
                           reports_column_text(q, 0), *commit ? commit : "unknown",
                           sqlite3_column_int(q, 2) ? " with changed files" : "", reports_column_text(q, 3),
                           reports_column_text(q, 8), reports_column_text(q, 5),
                           strcmp(overrides, "[]") && *overrides ? ", with " : "",
                           strcmp(overrides, "[]") ? overrides : "", reports_column_text(q, 6),
                           sqlite3_column_int(q, 7) ? "finished" : "NOT finished");
    } else if (!st) {
        put_wrapped(r, "No manifest: the program that wrote this file was stopped before it began.");
    }
    sqlite3_finalize(q);
    if (st) return st;
    st = reports_prepare(r->db, r->path, "SELECT run_id, label, model_name, model_origin, " REPORTS_BACKEND
                         ", CASE backend WHEN 'http' THEN 'endpoint' ELSE arith END, clock, lanes, "
                         "IIF(trace_paths = '', 'no traces', trace_paths), "
                         "COALESCE(event_hash, 'none yet') FROM runs "
                         "ORDER BY run_id", &q, err);
    while (!st && !(st = reports_next(r->db, r->path, q, &row, err)) && row)
        put_wrapped_format(r, "%s %s: %s (%s), %s %s, clock %s, %s lanes, %s, event hash %s", reports_column_text(q, 0),
                           reports_column_text(q, 1), reports_column_text(q, 2), reports_column_text(q, 3),
                           reports_column_text(q, 4), reports_column_text(q, 5), reports_column_text(q, 6),
                           reports_column_text(q, 7), reports_column_text(q, 8), reports_column_text(q, 9));
    sqlite3_finalize(q);
    return st;
}

/* Everything that did not end well: runs, requests, sessions, expectations. */
static cedar_status put_attention(const text_report *r, cedar_err *err) {
    static const char sql[] =
        "SELECT 1, u.run_id, printf('run %d %s: %s%s%s', u.run_id, u.label, u.status, "
        "  CASE WHEN u.error <> '' THEN ': ' ELSE '' END, u.error) FROM runs u WHERE u.status <> 'finished' "
        "UNION ALL SELECT 2, run_id, printf('run %d %s: requests in error: %d (left out of latencies and token sums)', "
        "  run_id, label, excluded_error) FROM v_population WHERE excluded_error > 0 "
        "UNION ALL SELECT 2, run_id, printf('run %d %s: %d requests failed at endpoint %d, class %s: %s', h.run_id, "
        "  u.label, h.requests, endpoint, error_class, example) FROM v_http_errors h JOIN runs u USING (run_id) "
        "UNION ALL SELECT 3, run_id, printf('run %d %s: unfinished at the end: %d requests, %d sessions', run_id, "
        "  label, requests_unfinished, sessions_unfinished) FROM runs WHERE requests_unfinished > 0 "
        "UNION ALL SELECT 3, 1 << 62, printf('unfinished at the end: 0 requests, %d sessions (runs: %d)', "
        "  SUM(sessions_unfinished), COUNT(*)) FROM runs WHERE requests_unfinished = 0 AND sessions_unfinished > 0 "
        "  HAVING COUNT(*) > 0 "
        "UNION ALL SELECT 4, run_id, printf('run %d %s: errors are %.0f%% of completed requests, above 10%%', run_id, "
        "label,"
        "  100 * errors_per_completed) FROM v_validity WHERE completed > 0 AND NOT errors_ok "
        "UNION ALL SELECT 5, run_id, printf('run %d %s: p90 TTFT of %.1f s is above the 5 s that suit online use', "
        "run_id,"
        "  label, ttft_p90_s) FROM v_validity WHERE ttft_guidance = 'too slow' "
        "UNION ALL SELECT 7, run_id, printf('run %d %s: not a valid AgentX submission: %s', run_id, label, "
        "  invalid_why) FROM runs WHERE rules LIKE 'agentx%' AND invalid <> '' "
        "UNION ALL SELECT 8, audit_id, printf('audit %d %s: %s%s%s', audit_id, label, status, "
        "  CASE WHEN error <> '' THEN ': ' ELSE '' END, error) FROM audits WHERE status <> 'finished' "
        "UNION ALL SELECT 9, audit_id, printf('audit %d: control %s \"%s\" must be 0, its mean KL is %.3g', audit_id, "
        "  control, label, kl_mean) FROM v_audit WHERE control IN ('C0', 'C1', 'C2') AND kl_mean <> 0 "
        "UNION ALL SELECT 9, audit_id, printf('audit %d ran none of the controls C0 to C2', audit_id) FROM audits "
        "  WHERE audit_id NOT IN (SELECT audit_id FROM audit_arms WHERE control IN ('C0', 'C1', 'C2')) "
        "UNION ALL SELECT 10, audit_id, printf('audit %d: \"%s\" overwrote %d cached global rows', audit_id, label, "
        "  adopted_changed) FROM audit_arms WHERE adopted_changed > 0 AND fault <> 'floor' "
        "UNION ALL SELECT 6, expect_id, printf('expectation fails: %s %s', what, detail) FROM expectations WHERE NOT "
        "ok ORDER BY 1, 2";
    sqlite3_stmt *q;
    bool row, any = false;
    cedar_status st = reports_prepare(r->db, r->path, sql, &q, err);
    while (!st && !(st = reports_next(r->db, r->path, q, &row, err)) && row) {
        if (!any) put_title(r, "Attention");
        any = true;
        style(r, "31");
        put_wrapped(r, reports_column_text(q, 2));
        style(r, "0");
    }
    sqlite3_finalize(q);
    return st;
}

/* How many expectations hold; those that fail are among what needs attention. */
static cedar_status put_expectations(const text_report *r, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(r->db, r->path, "SELECT SUM(ok), SUM(NOT ok) FROM expectations "
                                      "HAVING COUNT(*) > 0", &q, err);
    if (!st) st = reports_next(r->db, r->path, q, &row, err);
    if (!st && row) {
        put_title(r, "Expectations");
        put_wrapped_format(r, "%s hold, %s fail", reports_column_text(q, 0), reports_column_text(q, 1));
    }
    sqlite3_finalize(q);
    return st;
}

/* Questions with their answers, as v_answers has them. */
static cedar_status put_answers(const text_report *r, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    char last[256] = "";
    cedar_status st = reports_prepare(r->db, r->path, "SELECT question, answer, basis FROM v_answers", &q, err);
    while (!st && !(st = reports_next(r->db, r->path, q, &row, err)) && row) {
        const char *basis = reports_column_text(q, 2);
        if (strcmp(last, reports_column_text(q, 0))) {
            snprintf(last, sizeof last, "%s", reports_column_text(q, 0));
            put_title(r, last);
        }
        put_wrapped_format(r, "- %s%s%s%s", reports_column_text(q, 1), *basis ? " [" : "", basis, *basis ? "]" : "");
    }
    sqlite3_finalize(q);
    return st;
}

/* What audits found; nothing when there are none. */
static cedar_status put_audits(const text_report *r, cedar_err *err) {
    static const char *const upright[] = { "audit_length", "audit_turn", "audit_needles", "audit_greedy" };
    cedar_status st = put_table(r, "audit", true, true, err);
    if (!st) st = put_table(r, "audit_setup", true, false, err);
    for (size_t i = 0; i < sizeof upright / sizeof *upright && !st; i++)
        st = put_table(r, upright[i], false, true, err);
    return st ? st : put_table(r, "audit_cost", true, true, err);
}

cedar_status cedar_report_text(const char *path, FILE *to, int width, bool color, cedar_err *err) {
    text_report r = { .path = path, .to = to, .width = width < WIDTH_MIN ? WIDTH_MIN : width, .color = color };
    cedar_status st = reports_open_evaluated(path, &r.db, err);
    if (st) return st;
    st = put_answers(&r, err);
    if (!st) st = put_table(&r, "summary", true, true, err);
    if (!st) st = put_table(&r, "paired", false, true, err);
    if (!st) st = put_table(&r, "claims_summary", false, true, err);
    if (!st) st = put_table(&r, "claims_tested", false, true, err);
    if (!st) st = put_table(&r, "sensitivity", true, true, err);
    if (!st) st = put_table(&r, "ladder_text", false, true, err);
    if (!st) st = put_table(&r, "frontier_at", false, true, err);
    if (!st) st = put_table(&r, "floor", false, true, err);
    if (!st) st = put_table(&r, "engines", false, true, err);
    if (!st) st = put_manifest(&r, err);
    if (!st) st = put_table(&r, "offset", false, true, err);
    if (!st) st = put_audits(&r, err);
    if (!st) st = put_expectations(&r, err);
    if (!st) st = put_attention(&r, err);
    sqlite3_close(r.db);
    return st ? st : reports_flush(to, err);
}

/* The summary has a column or a row of every run: shown while there are few. */
static cedar_status put_few_runs(const text_report *r, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(r->db, r->path, "SELECT COUNT(*) FROM runs", &q, err);
    if (!st) st = reports_next(r->db, r->path, q, &row, err);
    bool few = !st && sqlite3_column_int(q, 0) <= SUMMARY_RUNS;
    sqlite3_finalize(q);
    return st || !few ? st : put_table(r, "summary", true, true, err);
}

cedar_status cedar_report_brief(const char *path, const char *program, FILE *to, int width, bool color,
                                cedar_err *err) {
    text_report r = { .path = path, .to = to, .width = width < WIDTH_MIN ? WIDTH_MIN : width, .color = color };
    cedar_status st = reports_open_evaluated(path, &r.db, err);
    if (st) return st;
    st = put_answers(&r, err);
    if (!st) st = put_few_runs(&r, err);
    if (!st) st = put_table(&r, "audit", true, true, err);
    if (!st) st = put_attention(&r, err);
    fputc('\n', to);
    if (!st) put_wrapped_format(&r, "everything: %s report %s, or -o X.html", program, path);
    sqlite3_close(r.db);
    return st ? st : reports_flush(to, err);
}
