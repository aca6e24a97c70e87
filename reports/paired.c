/* Requests that two runs have in common: the same turn of the same stream of the same session. Sessions are known by
 * their trace and by how many of that trace the run has started before, not by lanes: in real time a list's next trace
 * goes to whichever lane is free first. */
#include <string.h>

#include "base/mem.h"
#include "reports/reports.h"
#include "reports/reports_int.h"

static const struct { const char *name, *sql; } metrics[] = {
    { "ttft_ms", "ttft_ns / 1e6" }, { "itl_ms", "itl_ns / 1e6" }, { "e2el_ms", "e2el_ns / 1e6" },
    { "e2e_norm_ms", "e2e_norm_ns / 1e6" } };

/* One row for each session, over all pairs of runs: sums over the turns that both have a value of. */
static char *make_sql(const int64_t *a, const int64_t *b, size_t n, const char *metric) {
    sqlite3_str *s = sqlite3_str_new(NULL);
    sqlite3_str_appendall(s, "WITH couples(a, b) AS (VALUES ");
    for (size_t i = 0; i < n; i++)
        sqlite3_str_appendf(s, "%s(%lld, %lld)", i ? ", " : "", (long long)a[i], (long long)b[i]);
    sqlite3_str_appendf(s, "), played AS (SELECT run_id, session_id, trace_id AS tree, "
                        "ROW_NUMBER() OVER (PARTITION BY run_id, trace_id ORDER BY session_id) AS nth FROM sessions), "
                        "v AS MATERIALIZED (SELECT run_id, p.tree, p.nth, t.stream, t.turn, %s AS x "
                        "FROM v_request_times t JOIN played p USING (run_id, session_id) WHERE x IS NOT NULL) "
                        "SELECT p.tree, p.nth, SUM(p.x), SUM(q.x), COUNT(*), "
                        "(SELECT SUM((SELECT COUNT(*) FROM v WHERE run_id = a) + "
                        "(SELECT COUNT(*) FROM v WHERE run_id = b)) FROM couples) "
                        "FROM couples JOIN v p ON p.run_id = a JOIN v q ON q.run_id = b AND q.tree = p.tree "
                        "AND q.nth = p.nth AND q.stream = p.stream AND q.turn = p.turn "
                        "GROUP BY p.tree, p.nth ORDER BY p.tree, p.nth", metric);
    return sqlite3_str_finish(s);
}

static cedar_status read_pairs(sqlite3 *db, const char *path, sqlite3_stmt *q, cedar_pairs *out, cedar_err *err) {
    size_t room = 0;
    uint64_t all = 0, paired = 0;
    for (bool row;;) {
        cedar_status st = reports_next(db, path, q, &row, err);
        if (st) return st;
        if (!row) break;
        if (out->count == room) {
            room = room ? 2 * room : 64;
            cedar_pair *grown = cedar_realloc(out->list, room, sizeof *grown);
            if (!grown) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu sessions", path, room);
            out->list = grown;
        }
        cedar_pair *p = &out->list[out->count++];
        *p = (cedar_pair){ sqlite3_column_double(q, 2), sqlite3_column_double(q, 3),
                           (uint64_t)sqlite3_column_int64(q, 4) };
        paired += 2 * p->count;
        all = (uint64_t)sqlite3_column_int64(q, 5);
    }
    out->left_out = all - paired;
    return CEDAR_OK;
}

cedar_status cedar_pairs_load(const char *path, const int64_t *a, const int64_t *b, size_t n, const char *metric,
                              cedar_pairs *out, cedar_err *err) {
    const char *expression = NULL;
    *out = (cedar_pairs){ 0 };
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        if (strcmp(metrics[i].name, metric) == 0) expression = metrics[i].sql;
    if (!expression)
        return cedar_fail(err, CEDAR_E_ARG, "metric \"%.40s\" is none of ttft_ms, itl_ms, e2el_ms, e2e_norm_ms",
                          metric);
    sqlite3 *db;
    sqlite3_stmt *q = NULL;
    cedar_status st = reports_open(path, &db, err);
    if (st) return st;
    char *sql = make_sql(a, b, n, expression);
    if (!sql) st = cedar_fail(err, CEDAR_E_OOM, "%s: no memory for a query", path);
    if (!st) st = reports_prepare(db, path, sql, &q, err);
    if (!st) st = read_pairs(db, path, q, out, err);
    sqlite3_finalize(q);
    sqlite3_free(sql);
    sqlite3_close(db);
    if (st) cedar_pairs_free(out);
    return st;
}

void cedar_pairs_free(cedar_pairs *p) {
    cedar_free(p->list);
    *p = (cedar_pairs){ 0 };
}
