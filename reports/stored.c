/* Reading back what a replay of an earlier execution needs: scenario, options, and the recorded step durations. */
#include "reports/reports.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "reports/reports_int.h"

static cedar_status copy_column(sqlite3_stmt *q, int column, const char *path, char **out, cedar_err *err) {
    *out = cedar_strdup(reports_column_text(q, column));
    return *out ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: out of memory while reading it", path);
}

static cedar_status load_manifest(sqlite3 *db, const char *path, cedar_stored *s, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    cedar_status st =
        reports_prepare(db, path, "SELECT scenario_path, scenario_text, overrides, finished FROM manifest", &q, err);
    if (!st) st = reports_next(db, path, q, &row, err);
    if (!st && !row)
        st = cedar_fail(err, CEDAR_E_FORMAT,
                        "%s: has no manifest: the program that wrote it was stopped before it began", path);
    if (!st) st = copy_column(q, 0, path, &s->scenario_path, err);
    if (!st) st = copy_column(q, 1, path, &s->scenario_text, err);
    if (!st) st = copy_column(q, 2, path, &s->overrides, err);
    if (!st) s->finished = sqlite3_column_int(q, 3);
    sqlite3_finalize(q);
    return st;
}

/* Steps of a run, and whether a row sums up several: then there are no durations, and the cost model, which is asked
 * again, needs none. */
static cedar_status count_steps(sqlite3 *db, const char *path, cedar_stored_run *run, bool *summed, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    cedar_status st = reports_prepare(db, path, "SELECT COALESCE(SUM(steps), 0), COALESCE(MAX(steps), 1) > 1 "
                                      "FROM steps WHERE run_id = ?", &q, err);
    if (!st) sqlite3_bind_int64(q, 1, run->run_id);
    if (!st) st = reports_next(db, path, q, &row, err);
    *summed = !st && row && sqlite3_column_int(q, 1);
    if (*summed) run->recorded.count = (uint64_t)sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return st;
}

/* Durations by step_id - 1; step ids must be 1, 2, ... without a gap. */
static cedar_status load_steps(sqlite3 *db, const char *path, cedar_stored_run *run, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    uint64_t n = 0;
    cedar_status st = reports_prepare(db, path, "SELECT step_id, duration_ns, COUNT(*) OVER () FROM steps "
                                      "WHERE run_id = ? ORDER BY step_id", &q, err);
    if (!st) sqlite3_bind_int64(q, 1, run->run_id);
    while (!st && !(st = reports_next(db, path, q, &row, err)) && row) {
        if (!run->recorded.step_ns) {
            run->recorded.count = (uint64_t)sqlite3_column_int64(q, 2);
            run->recorded.step_ns = cedar_calloc(run->recorded.count, sizeof *run->recorded.step_ns);
            if (!run->recorded.step_ns) {
                st = cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for %llu steps", path,
                                (unsigned long long)run->recorded.count);
                break;
            }
        }
        if (sqlite3_column_int64(q, 0) != (int64_t)n + 1) {
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s: run %lld lacks step %llu, so it cannot be replayed", path,
                            (long long)run->run_id, (unsigned long long)n + 1);
            break;
        }
        run->recorded.step_ns[n++] = sqlite3_column_int64(q, 1);
    }
    sqlite3_finalize(q);
    return st;
}

static cedar_status load_run(sqlite3 *db, const char *path, sqlite3_stmt *q, cedar_stored_run *run, cedar_err *err) {
    run->run_id = sqlite3_column_int64(q, 0);
    run->event_hash = run->recorded.event_hash = strtoull(reports_column_text(q, 3), NULL, 16);
    snprintf(run->status, sizeof run->status, "%s", reports_column_text(q, 4));
    cedar_status st = copy_column(q, 1, path, &run->label, err);
    if (!st) st = copy_column(q, 2, path, &run->config_json, err);
    bool summed = false;
    if (!st) st = count_steps(db, path, run, &summed, err);
    return st || summed ? st : load_steps(db, path, run, err);
}

static cedar_status load_runs(sqlite3 *db, const char *path, cedar_stored *s, cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(db, path, "SELECT run_id, label, config_json, event_hash, status, "
                                      "COUNT(*) OVER () FROM runs ORDER BY run_id", &q, err);
    while (!st && !(st = reports_next(db, path, q, &row, err)) && row) {
        if (!s->runs && !(s->runs = cedar_calloc((size_t)sqlite3_column_int64(q, 5), sizeof *s->runs))) {
            st = cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for its runs", path);
            break;
        }
        st = load_run(db, path, q, &s->runs[s->run_count++], err);
    }
    sqlite3_finalize(q);
    return st;
}

cedar_status cedar_stored_load(const char *path, cedar_stored **out, cedar_err *err) {
    sqlite3 *db;
    *out = NULL;
    cedar_status st = reports_open(path, &db, err);
    if (st) return st;
    cedar_stored *s = cedar_calloc(1, sizeof *s);
    if (!s) st = cedar_fail(err, CEDAR_E_OOM, "%s: out of memory while reading it", path);
    if (!st) st = load_manifest(db, path, s, err);
    if (!st) st = load_runs(db, path, s, err);
    sqlite3_close(db);
    if (st) cedar_stored_free(s);
    else *out = s;
    return st;
}

void cedar_stored_free(cedar_stored *s) {
    if (!s) return;
    for (uint32_t i = 0; i < s->run_count; i++) {
        cedar_free(s->runs[i].label);
        cedar_free(s->runs[i].config_json);
        cedar_free(s->runs[i].recorded.step_ns);
    }
    cedar_free(s->runs);
    cedar_free(s->scenario_path);
    cedar_free(s->scenario_text);
    cedar_free(s->overrides);
    cedar_free(s);
}
