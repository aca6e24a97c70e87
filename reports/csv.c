/* Views and tables as CSV (RFC 4180), and their names. */
#include "reports/reports.h"

#include <string.h>

#include "reports/reports_int.h"

/* In the order of docs/METRICS.md; the tables follow the views. */
static const char *const view_names[] = {
    "v_summary", "v_population", "v_request_times", "v_latency", "v_interactivity", "v_throughput", "v_qps",
    "v_qps_windows", "v_cache", "v_misses", "v_steps", "v_engines", "v_speculation", "v_memory", "v_quality",
    "v_quality_offset", "v_quality_turn", "v_quality_depth", "v_kl_histogram", "v_http", "v_http_errors", "v_sessions",
    "v_validity", "v_floor",
    "v_arms", "v_frontier", "v_frontier_at", "v_answers",
    "v_audit", "v_audit_excess", "v_audit_offset", "v_audit_profile", "v_audit_turn", "v_audit_depth", "v_audit_suffix",
    "v_audit_length", "v_audit_globals", "v_audit_map", "v_audit_layers", "v_audit_greedy", "v_audit_drafts",
    "v_audit_needles", "v_audit_cost",
    "v_ladder", "v_ladder_figures", "v_claims", "v_claims_summary", "v_claim_sensitivity", "v_claim_points", "v_paired",
    "manifest", "runs", "sessions", "requests", "steps", "quality", "expectations", "http_requests",
    "endpoint_metrics",
    "audits", "audit_arms", "audit_fronts", "audit_turns", "audit_positions", "audit_layers", "audit_globals",
    "audit_greedy", "audit_drafts", "audit_needles", "audit_stats",
    "ladders", "ladder_rungs", "ladder_figures", "claims", "claim_sensitivity", "paired"
};

const char *const *cedar_report_views(size_t *count) {
    *count = sizeof view_names / sizeof *view_names;
    return view_names;
}

void cedar_report_csv_text(const char *text, FILE *to) {
    if (*text && !strpbrk(text, "\",\r\n")) {
        fputs(text, to);
        return;
    }
    fputc('"', to);
    for (; *text; text++) {
        if (*text == '"') fputc('"', to);
        fputc(*text, to);
    }
    fputc('"', to);
}

static void put_value(FILE *to, sqlite3_stmt *q, int column) {
    char text[32];
    switch (sqlite3_column_type(q, column)) {
    case SQLITE_NULL: return;
    case SQLITE_FLOAT:
        reports_real_text(sqlite3_column_double(q, column), text);
        fputs(text, to);
        return;
    default: cedar_report_csv_text(reports_column_text(q, column), to);
    }
}

static cedar_status put_rows(sqlite3 *db, const char *path, sqlite3_stmt *q, FILE *to, cedar_err *err) {
    int columns = sqlite3_column_count(q);
    for (int i = 0; i < columns; i++) {
        if (i) fputc(',', to);
        cedar_report_csv_text(sqlite3_column_name(q, i), to);
    }
    fputs("\r\n", to);
    bool row;
    cedar_status st;
    while (!(st = reports_next(db, path, q, &row, err)) && row) {
        for (int i = 0; i < columns; i++) {
            if (i) fputc(',', to);
            put_value(to, q, i);
        }
        fputs("\r\n", to);
    }
    return st ? st : reports_flush(to, err);
}

static bool is_view(const char *name) {
    for (size_t i = 0; i < sizeof view_names / sizeof *view_names; i++)
        if (!strcmp(name, view_names[i])) return true;
    return false;
}

/* Names that belong together: 1 audits, 2 ladders and claims, 3 the other tables, 0 the other views. */
static int family(const char *name) {
    if (strstr(name, "audit")) return 1;
    if (strstr(name, "ladder") || strstr(name, "claim")) return 2;
    return strncmp(name, "v_", 2) ? 3 : 0;
}

/* All names do not fit a message: those of the family that the unknown name looks like are listed. */
static cedar_status unknown_view(const char *view, cedar_err *err) {
    static const char *const others[] = { "names with audit or claim list theirs, tables go without v_",
                                          "names with claim or v_ list theirs", "names with audit or v_ list theirs",
                                          "names with v_, audit or claim list theirs" };
    char known[400] = "";
    size_t at = 0;
    for (size_t i = 0; i < sizeof view_names / sizeof *view_names && at < sizeof known; i++) {
        if (family(view_names[i]) != family(view)) continue;
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", view_names[i]);
    }
    return cedar_fail(err, CEDAR_E_ARG, "there is no view \"%.32s\"; known are %s; %s", view, known,
                      others[family(view)]);
}

cedar_status cedar_report_csv(const char *path, const char *view, FILE *to, cedar_err *err) {
    sqlite3 *db;
    sqlite3_stmt *q = NULL;
    if (!is_view(view)) return unknown_view(view, err);
    cedar_status st = reports_open(path, &db, err);
    if (st) return st;
    char sql[64];
    snprintf(sql, sizeof sql, "SELECT * FROM %s", view);    /* one of the names above; views and keys are ordered */
    st = reports_prepare(db, path, sql, &q, err);
    if (!st) st = put_rows(db, path, q, to, err);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return st;
}
