/* The store: an observer that writes rows into an SQLite file.
 *
 * The file is in WAL mode while it is written, so that a killed process loses at most the transaction under way and
 * others may read meanwhile; closing brings everything into the one file. Rows are bound from tables of columns below:
 * name, kind and place of each member of an observer row. */
#include "base/clock.h"
#include "reports/reports.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "reports/reports_int.h"

/* Bounds of a transaction: large enough to make commits cheap, small enough that a crash loses little. */
enum { TX_ROWS_MAX = 4096, AGE_ROWS = 16, BUSY_TIMEOUT_MS = 5000 };    /* AGE_ROWS: between two looks at the clock */
static const int64_t TX_AGE_MAX_NS = 1000000000;

typedef reports_field column;

#define MANIFEST(member, kind) { #member, COLUMN_##kind, offsetof(cedar_manifest_row, member) }
static const column manifest_columns[] = {
    MANIFEST(cedar_version, TEXT), { "commit_id", COLUMN_TEXT, offsetof(cedar_manifest_row, commit) },
    MANIFEST(commit_dirty, BOOL), MANIFEST(compiler, TEXT), MANIFEST(build_flags, TEXT), MANIFEST(scenario_path, TEXT),
    MANIFEST(scenario_text, TEXT), MANIFEST(scenario_hash, TEXT), MANIFEST(overrides, TEXT), MANIFEST(machine, TEXT),
    MANIFEST(started_at, TEXT), MANIFEST(seed, SEED)
};

#define RUN(member, kind) { #member, COLUMN_##kind, offsetof(cedar_run_row, member) }
static const column run_columns[] = { RUN(run_id, I64),
                                      RUN(label, TEXT),
                                      RUN(config_json, TEXT),
                                      RUN(config_hash, TEXT),
                                      RUN(model_name, TEXT),
                                      RUN(model_hash, TEXT),
                                      RUN(model_origin, TEXT),
                                      RUN(trace_paths, TEXT),
                                      RUN(trace_hash, TEXT),
                                      RUN(backend, TEXT),
                                      RUN(device, TEXT),
                                      RUN(arith, TEXT),
                                      RUN(clock, TEXT),
                                      RUN(replay, TEXT),
                                      RUN(rules, TEXT),
                                      RUN(admission, TEXT),
                                      RUN(floor_mode, TEXT),
                                      RUN(floor_milli_tok_s_user, U64),
                                      RUN(floor_percentile, U32),
                                      RUN(seed, SEED),
                                      RUN(lanes, U32),
                                      RUN(vocab, U32),
                                      RUN(window, U32),
                                      RUN(page_tokens, U32),
                                      RUN(kv_token_bytes_x1000, U64),
                                      RUN(window_snap_bytes, U64),
                                      RUN(plan_total_bytes, U64) };

#define SESSION(member, kind) { #member, COLUMN_##kind, offsetof(cedar_session_row, member) }
static const column session_columns[] = {
    SESSION(run_id, I64), SESSION(session_id, I64), SESSION(lane, I32), SESSION(pass, I32), SESSION(trace_id, TEXT),
    SESSION(streams, U32), SESSION(requests_planned, U32), SESSION(requests_done, U32), SESSION(start_sched_ns, I64),
    SESSION(end_sched_ns, I64), SESSION(start_ns, I64), SESSION(end_ns, I64), SESSION(outcome, TEXT),
    SESSION(first_turn, U32), SESSION(t_star_ns, I64), SESSION(idle_cut_ns, I64)
};

#define REQUEST(member, kind) { #member, COLUMN_##kind, offsetof(cedar_request_row, member) }
static const column request_columns[] = { REQUEST(run_id, I64),
                                          REQUEST(request_id, I64),
                                          REQUEST(session_id, I64),
                                          REQUEST(lane, I32),
                                          REQUEST(stream, I32),
                                          REQUEST(turn, I32),
                                          REQUEST(engine, U32),
                                          REQUEST(trace_id, TEXT),
                                          REQUEST(phase, TEXT),
                                          REQUEST(in_recorded, U32),
                                          REQUEST(out_recorded, U32),
                                          REQUEST(in_tokens, U32),
                                          REQUEST(out_tokens, U32),
                                          REQUEST(hit_tokens, U32),
                                          REQUEST(matched_tokens, U32),
                                          REQUEST(replayed_tokens, U32),
                                          REQUEST(trimmed_tokens, U32),
                                          REQUEST(prefill_steps, U32),
                                          REQUEST(decode_steps, U32),
                                          REQUEST(drafted_tokens, U32),
                                          REQUEST(accepted_tokens, U32),
                                          REQUEST(blocks_total, U32),
                                          REQUEST(blocks_hit_theory, U32),
                                          REQUEST(provenance_depth, U32),
                                          REQUEST(miss, MISS),
                                          REQUEST(arrival_sched_ns, I64),
                                          REQUEST(admit_sched_ns, I64),
                                          REQUEST(first_sched_ns, I64),
                                          REQUEST(last_sched_ns, I64),
                                          REQUEST(arrival_ns, I64),
                                          REQUEST(admit_ns, I64),
                                          REQUEST(first_ns, I64),
                                          REQUEST(last_ns, I64),
                                          REQUEST(error, TEXT) };

#define END(member, kind) { #member, COLUMN_##kind, offsetof(reports_end_row, member) }
static const column end_columns[] = { END(run_id, I64), END(request_id, I64), END(end_ns, I64) };

#define STEP(member, kind) { #member, COLUMN_##kind, offsetof(cedar_step_row, member) }
static const column step_columns[] = {
    STEP(run_id, I64), STEP(step_id, I64), STEP(steps, U32), STEP(engine, U32), STEP(entries, U32),
    STEP(prefill_entries, U32), STEP(decode_entries, U32), STEP(rows, U32), STEP(prefill_rows, U32),
    STEP(decode_rows, U32), STEP(replayed_rows, U32), STEP(kept_rows, U32), STEP(trimmed, U32), STEP(graph, TEXT),
    STEP(waiting, U32), STEP(running, U32), STEP(pages_free, U32), STEP(pages_cached, U32), STEP(kv_bytes_used, U64),
    STEP(window_bytes_stored, U64), STEP(start_sched_ns, I64), STEP(end_sched_ns, I64), STEP(start_ns, I64),
    STEP(end_ns, I64), STEP(duration_ns, I64), STEP(plan_ns, I64)
};

#define QUALITY(member, kind) { #member, COLUMN_##kind, offsetof(cedar_quality_row, member) }
static const column quality_columns[] = {
    QUALITY(run_id, I64), QUALITY(request_id, I64), QUALITY(pos, U32), QUALITY(offset, I32), QUALITY(hit_tokens, U32),
    QUALITY(prompt_tokens, U32), QUALITY(token, I32), QUALITY(kl_pq, REAL), QUALITY(kl_qp, REAL), QUALITY(js, REAL),
    QUALITY(logp_p, REAL), QUALITY(logp_q, REAL), QUALITY(top1_prob_p, REAL), QUALITY(margin_p, REAL),
    QUALITY(ratio_max, REAL), QUALITY(top1_same, BOOL)
};

/* run_id comes last: it is the WHERE of an update. */
#define RUN_END(member, kind) { #member, COLUMN_##kind, offsetof(cedar_run_end_row, member) }
static const column run_end_columns[] = {
    RUN_END(status, TEXT), RUN_END(error, TEXT), RUN_END(event_hash, HASH), RUN_END(requests, U64),
    RUN_END(sessions, U64), RUN_END(steps, U64), RUN_END(quality_rows, U64), RUN_END(requests_unfinished, U64),
    RUN_END(sessions_unfinished, U64), RUN_END(end_sched_ns, I64), RUN_END(end_ns, I64), RUN_END(wall_ns, I64),
    RUN_END(profile_sched_ns, I64), RUN_END(profile_ns, I64), RUN_END(primers, U64), RUN_END(warmups, U64),
    RUN_END(overflows, U64), RUN_END(traces_passed_over, U64), RUN_END(forced_turns, U64), RUN_END(idle_cut_ns, I64),
    RUN_END(submission_valid, BOOL), RUN_END(gate_ok, BOOL), RUN_END(invalid, TEXT), RUN_END(invalid_why, TEXT),
    RUN_END(run_id, I64)
};

#define EXPECT(member, kind) { #member, COLUMN_##kind, offsetof(cedar_expect_row, member) }
static const column expect_columns[] = { EXPECT(what, TEXT), EXPECT(detail, TEXT), EXPECT(ok, BOOL) };

#define HTTP(member, kind) { #member, COLUMN_##kind, offsetof(cedar_http_row, member) }
static const column http_columns[] = {
    HTTP(run_id, I64), HTTP(request_id, I64), HTTP(endpoint, U32), HTTP(status, I32), HTTP(error_class, TEXT),
    HTTP(finish, TEXT), HTTP(in_asked, U32), HTTP(out_asked, U32), HTTP(deltas, U32), HTTP(usage, BOOL),
    HTTP(retry_after_s, I64), HTTP(end_ns, I64)
};

#define METRIC(member, kind) { #member, COLUMN_##kind, offsetof(cedar_metric_row, member) }
static const column metric_columns[] = { METRIC(run_id, I64), METRIC(endpoint, U32), METRIC(moment, TEXT),
                                         METRIC(name, TEXT),  METRIC(labels, TEXT),  METRIC(value, REAL) };

typedef enum statement { ST_MANIFEST, ST_RUN, ST_SESSION, ST_REQUEST, ST_END, ST_STEP, ST_QUALITY, ST_RUN_END,
                         ST_EXPECT, ST_HTTP, ST_METRIC, ST_COUNT } statement;

static const reports_row_kind statements[ST_COUNT] = {
    [ST_MANIFEST] = { "manifest", manifest_columns, sizeof manifest_columns / sizeof *manifest_columns,
                      .commit = true },
    [ST_RUN] = { "runs", run_columns, sizeof run_columns / sizeof *run_columns, .commit = true },
    [ST_SESSION] = { "sessions", session_columns, sizeof session_columns / sizeof *session_columns, .commit = false },
    [ST_REQUEST] = { "requests", request_columns, sizeof request_columns / sizeof *request_columns, .commit = false },
    [ST_END] = { "request_ends", end_columns, sizeof end_columns / sizeof *end_columns, .commit = false },
    [ST_STEP] = { "steps", step_columns, sizeof step_columns / sizeof *step_columns, .commit = false },
    [ST_QUALITY] = { "quality", quality_columns, sizeof quality_columns / sizeof *quality_columns, .commit = false },
    [ST_RUN_END] = { "runs", run_end_columns, sizeof run_end_columns / sizeof *run_end_columns, .commit = true,
                     .keys = 1 },
    [ST_EXPECT] = { "expectations", expect_columns, sizeof expect_columns / sizeof *expect_columns, .commit = true },
    [ST_HTTP] = { "http_requests", http_columns, sizeof http_columns / sizeof *http_columns, .commit = false },
    [ST_METRIC] = { "endpoint_metrics", metric_columns, sizeof metric_columns / sizeof *metric_columns,
                    .commit = false }
};

struct cedar_store {
    sqlite3 *db;
    char *path;
    sqlite3_stmt *insert[ST_COUNT], *audit[CEDAR_AUDIT_KIND_COUNT], *finding[CEDAR_FINDING_COUNT], *begin, *commit;
    int64_t tx_rows, tx_start_ns;       /* of the transaction under way */
    cedar_err broken;                   /* first error that lost rows; from then on everything fails with it */
    cedar_observer observer;
    cedar_audit_observer audit_observer;
};

/* --- rows --------------------------------------------------------------------------------------------------------- */

static const char *miss_name(cedar_miss_reason miss) {
    static const char *const names[] = { "none", "cold", "evicted", "page_tail", "no_windows", "short_hit", "off" };
    return (unsigned)miss < sizeof names / sizeof *names ? names[miss] : "?";
}

/* Not copied: every member is bound anew before the statement runs, and the row lives until it has run. */
static int bind_text(sqlite3_stmt *st, int at, const char *text) {
    return sqlite3_bind_text(st, at, text ? text : "", -1, SQLITE_STATIC);
}

static int bind_number_text(sqlite3_stmt *st, int at, const char *format, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, format, (unsigned long long)value);
    return sqlite3_bind_text(st, at, text, -1, SQLITE_TRANSIENT);
}

/* Binds one member. SQLITE_RANGE: a value the database cannot hold. */
static int bind_member(sqlite3_stmt *st, int at, reports_field_kind kind, const void *p) {
    uint64_t u;
    double x;
    switch (kind) {
    case COLUMN_I64: return sqlite3_bind_int64(st, at, *(const int64_t *)p);
    case COLUMN_U64:
        u = *(const uint64_t *)p;
        return u > INT64_MAX ? SQLITE_RANGE : sqlite3_bind_int64(st, at, (int64_t)u);
    case COLUMN_I32: return sqlite3_bind_int64(st, at, *(const int32_t *)p);
    case COLUMN_U32: return sqlite3_bind_int64(st, at, *(const uint32_t *)p);
    case COLUMN_BOOL: return sqlite3_bind_int64(st, at, *(const bool *)p);
    case COLUMN_TEXT: return bind_text(st, at, *(const char *const *)p);
    case COLUMN_REAL:
        x = *(const double *)p;
        return isnan(x) ? SQLITE_RANGE : sqlite3_bind_double(st, at, x);
    case COLUMN_OPTIONAL:
        x = *(const double *)p;
        return isnan(x) ? sqlite3_bind_null(st, at) : sqlite3_bind_double(st, at, x);
    case COLUMN_ID: return *(const int64_t *)p ? sqlite3_bind_int64(st, at, *(const int64_t *)p)
                                               : sqlite3_bind_null(st, at);
    case COLUMN_SEED: return bind_number_text(st, at, "%llu", *(const uint64_t *)p);
    case COLUMN_HASH: return bind_number_text(st, at, "%016llx", *(const uint64_t *)p);
    case COLUMN_MISS: return bind_text(st, at, miss_name(*(const cedar_miss_reason *)p));
    }
    return SQLITE_MISUSE;
}

/* Rows are lost: remembers why, so that nothing is written after a gap. */
static cedar_status break_store(cedar_store *s, const char *doing, cedar_err *err) {
    reports_sql_fail(&s->broken, s->db, s->path, doing);
    return cedar_fail(err, s->broken.code, "%s", s->broken.msg);
}

static cedar_status run_plain(cedar_store *s, sqlite3_stmt *st, const char *doing, cedar_err *err) {
    cedar_status status = sqlite3_step(st) == SQLITE_DONE ? CEDAR_OK : break_store(s, doing, err);
    sqlite3_reset(st);
    return status;
}

static cedar_status begin_if_needed(cedar_store *s, cedar_err *err) {
    if (!sqlite3_get_autocommit(s->db)) return CEDAR_OK;
    s->tx_rows = 0;
    s->tx_start_ns = cedar_now_ns();
    return run_plain(s, s->begin, "beginning a transaction", err);
}

static cedar_status commit_if_open(cedar_store *s, cedar_err *err) {
    return sqlite3_get_autocommit(s->db) ? CEDAR_OK : run_plain(s, s->commit, "committing rows", err);
}

/* Rows refused by a constraint leave the transaction as it was: the run may still report that it failed. */
static cedar_status refuse_row(cedar_store *s, const char *table, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_DB, "%s: table %s refuses a row: %s", s->path, table, sqlite3_errmsg(s->db));
}

static cedar_status write_kind(cedar_store *s, sqlite3_stmt *st, const reports_row_kind *k, const void *row,
                               cedar_err *err) {
    if (s->broken.code) return cedar_fail(err, s->broken.code, "%s", s->broken.msg);
    const column *c = k->columns;
    for (int i = 0; i < k->count; i++) {
        int rc = bind_member(st, i + 1, c[i].kind, (const char *)row + c[i].at);
        if (rc == SQLITE_RANGE)
            return cedar_fail(err, CEDAR_E_DB, "%s: table %s refuses a row: %s is %s", s->path, k->table,
                              c[i].name, c[i].kind == COLUMN_REAL ? "not a number" : "above 2^63-1");
        if (rc) return break_store(s, "binding a row", err);
    }
    cedar_status status = begin_if_needed(s, err);
    if (status) return status;
    int rc = sqlite3_step(st);
    if (rc != SQLITE_DONE)
        status = (rc & 0xFF) == SQLITE_CONSTRAINT ? refuse_row(s, k->table, err)
                                                  : break_store(s, "writing rows", err);
    sqlite3_reset(st);
    if (status) return status;
    bool old = ++s->tx_rows % AGE_ROWS == 0 && cedar_now_ns() - s->tx_start_ns >= TX_AGE_MAX_NS;
    return old || s->tx_rows >= TX_ROWS_MAX || k->commit ? commit_if_open(s, err) : CEDAR_OK;
}

static cedar_status write_row(cedar_store *s, statement which, const void *row, cedar_err *err) {
    return write_kind(s, s->insert[which], &statements[which], row, err);
}

static cedar_status on_audit(void *self, cedar_audit_kind kind, const void *row, cedar_err *err) {
    cedar_store *s = self;
    return write_kind(s, s->audit[kind], reports_audit_kind(kind), row, err);
}

static cedar_status on_manifest(void *self, const cedar_manifest_row *row, cedar_err *err) {
    return write_row(self, ST_MANIFEST, row, err);
}
static cedar_status on_run_begin(void *self, const cedar_run_row *row, cedar_err *err) {
    return write_row(self, ST_RUN, row, err);
}
static cedar_status on_session(void *self, const cedar_session_row *row, cedar_err *err) {
    return write_row(self, ST_SESSION, row, err);
}
static cedar_status on_request(void *self, const cedar_request_row *row, cedar_err *err) {
    return write_row(self, ST_REQUEST, row, err);
}
static cedar_status on_step(void *self, const cedar_step_row *row, cedar_err *err) {
    return write_row(self, ST_STEP, row, err);
}
static cedar_status on_quality(void *self, const cedar_quality_row *row, cedar_err *err) {
    return write_row(self, ST_QUALITY, row, err);
}
static cedar_status on_run_end(void *self, const cedar_run_end_row *row, cedar_err *err) {
    cedar_store *s = self;
    cedar_status st = write_row(s, ST_RUN_END, row, err);
    if (!st && sqlite3_changes(s->db) != 1)
        st = cedar_fail(err, CEDAR_E_DB, "%s: run %lld ends, but it never began", s->path, (long long)row->run_id);
    return st;
}
static cedar_status on_expect(void *self, const cedar_expect_row *row, cedar_err *err) {
    return write_row(self, ST_EXPECT, row, err);
}

static cedar_status on_finding(void *self, cedar_finding kind, const void *row, cedar_err *err) {
    cedar_store *s = self;
    return write_kind(s, s->finding[kind], reports_finding_kind(kind), row, err);
}

/* An answer's end is also what throughput counts to, where it comes behind the last token. */
static cedar_status on_http(void *self, const cedar_http_row *row, cedar_err *err) {
    const reports_end_row end = { .run_id = row->run_id, .request_id = row->request_id, .end_ns = row->end_ns };
    cedar_status st = write_row(self, ST_HTTP, row, err);
    return st || !row->endpoint ? st : write_row(self, ST_END, &end, err);
}

static cedar_status on_metric(void *self, const cedar_metric_row *row, cedar_err *err) {
    return write_row(self, ST_METRIC, row, err);
}

/* In real time the next row may be hours away: those that are there do not wait for it. */
static cedar_status on_tick(void *self, cedar_err *err) {
    cedar_store *s = self;
    if (s->broken.code) return cedar_fail(err, s->broken.code, "%s", s->broken.msg);
    bool old = !sqlite3_get_autocommit(s->db) && cedar_now_ns() - s->tx_start_ns >= TX_AGE_MAX_NS;
    return old ? commit_if_open(s, err) : CEDAR_OK;
}

cedar_status reports_store_end(cedar_store *s, const reports_end_row *row, cedar_err *err) {
    return write_row(s, ST_END, row, err);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* INSERT, or UPDATE of the row that the last `keys` columns name. The manifest has one row, number 1. */
static cedar_status prepare_kind(cedar_store *s, const reports_row_kind *k, sqlite3_stmt **out, cedar_err *err) {
    const column *c = k->columns;
    sqlite3_str *sql = sqlite3_str_new(s->db);
    if (k->keys) {
        sqlite3_str_appendf(sql, "UPDATE \"%w\" SET ", k->table);
        for (int i = 0; i < k->count - k->keys; i++)
            sqlite3_str_appendf(sql, "%s\"%w\" = ?", i ? ", " : "", c[i].name);
        for (int i = k->count - k->keys; i < k->count; i++)
            sqlite3_str_appendf(sql, "%s\"%w\" = ?", i > k->count - k->keys ? " AND " : " WHERE ", c[i].name);
    } else {
        bool manifest = k == &statements[ST_MANIFEST];
        sqlite3_str_appendf(sql, "INSERT INTO \"%w\" (%s", k->table, manifest ? "id, " : "");
        for (int i = 0; i < k->count; i++) sqlite3_str_appendf(sql, "%s\"%w\"", i ? ", " : "", c[i].name);
        sqlite3_str_appendf(sql, ") VALUES (%s", manifest ? "1, " : "");
        for (int i = 0; i < k->count; i++) sqlite3_str_appendf(sql, "%s?", i ? ", " : "");
        sqlite3_str_appendf(sql, ")");
    }
    char *text = sqlite3_str_finish(sql);
    if (!text) return cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for its statements", s->path);
    cedar_status st = reports_prepare(s->db, s->path, text, out, err);
    sqlite3_free(text);
    return st;
}

static cedar_status run_embedded(cedar_store *s, const char *from, const char *end, cedar_err *err) {
    char *sql = reports_embedded(from, end);
    if (!sql) return cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for its schema", s->path);
    cedar_status st = reports_run_sql(s->db, s->path, sql, "making its tables", err);
    cedar_free(sql);
    return st;
}

static cedar_status run_sql(cedar_store *s, const char *sql, const char *doing, cedar_err *err) {
    return reports_run_sql(s->db, s->path, sql, doing, err);
}

/* Changes the journal mode and checks that SQLite did it. */
static cedar_status set_journal(sqlite3 *db, const char *path, const char *mode, cedar_err *err) {
    char sql[40];
    sqlite3_stmt *q;
    bool row;
    snprintf(sql, sizeof sql, "PRAGMA journal_mode = %s", mode);
    cedar_status st = reports_prepare(db, path, sql, &q, err);
    if (!st) st = reports_next(db, path, q, &row, err);
    if (!st && (!row || sqlite3_stricmp(reports_column_text(q, 0), mode)))
        st = cedar_fail(err, CEDAR_E_BUSY,
                        "%s: cannot change to journal mode %s; another program has the file open, or "
                        "its file system has no shared memory",
                        path, mode);
    sqlite3_finalize(q);
    return st;
}

/* The schema goes in before WAL starts: the file itself then says what it is from the first moment. */
static cedar_status make_schema(cedar_store *s, cedar_err *err) {
    cedar_status st = run_sql(s, "PRAGMA page_size = 4096; PRAGMA foreign_keys = ON; BEGIN", "making its tables", err);
    if (!st) st = run_embedded(s, _binary_schema_sql_start, _binary_schema_sql_end, err);
    if (!st) st = run_embedded(s, _binary_views_sql_start, _binary_views_sql_end, err);
    if (!st) st = run_sql(s, "COMMIT", "making its tables", err);
    if (!st) st = set_journal(s->db, s->path, "wal", err);
    if (!st) st = run_sql(s, "PRAGMA synchronous = NORMAL", "setting it up", err);
    if (!st) st = reports_prepare(s->db, s->path, "BEGIN", &s->begin, err);
    if (!st) st = reports_prepare(s->db, s->path, "COMMIT", &s->commit, err);
    for (int i = 0; i < ST_COUNT && !st; i++) st = prepare_kind(s, &statements[i], &s->insert[i], err);
    for (int i = 0; i < CEDAR_AUDIT_KIND_COUNT && !st; i++)
        st = prepare_kind(s, reports_audit_kind((cedar_audit_kind)i), &s->audit[i], err);
    for (int i = 0; i < CEDAR_FINDING_COUNT && !st; i++)
        st = prepare_kind(s, reports_finding_kind((cedar_finding)i), &s->finding[i], err);
    return st;
}

cedar_status reports_remove_database(const char *path, cedar_err *err) {
    static const char *const suffixes[] = { "-wal", "-shm", "-journal" };
    size_t n = strlen(path) + 16;
    char *name = cedar_calloc(n, 1);
    if (!name) return cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for its name", path);
    int failed = unlink(path) && errno != ENOENT ? errno : 0;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && !failed; i++) {
        snprintf(name, n, "%s%s", path, suffixes[i]);
        if (unlink(name) && errno != ENOENT) failed = errno;
    }
    cedar_free(name);
    return failed ? cedar_fail(err, CEDAR_E_IO, "%s: cannot be replaced: %s", path, strerror(failed)) : CEDAR_OK;
}

/* A database that another process is writing must not be taken away from it: leaving WAL needs the only connection. */
static cedar_status check_unused(const char *path, cedar_err *err) {
    sqlite3 *db;
    cedar_status st = reports_db_open(path, SQLITE_OPEN_READWRITE, &db, err);
    if (st) return st;
    st = set_journal(db, path, "delete", err);
    sqlite3_close(db);
    if (st == CEDAR_E_BUSY)
        return cedar_fail(err, st, "%s: is in use by another program and cannot be replaced", path);
    return CEDAR_OK;    /* a damaged one may be replaced */
}

static cedar_status clear_way(const char *path, bool replace, cedar_err *err) {
    reports_file kind;
    cedar_status st = reports_file_kind(path, &kind, err);
    if (st || kind == REPORTS_FILE_NONE) return st;
    if (kind != REPORTS_FILE_CEDAR)
        return cedar_fail(err, CEDAR_E_IO, "%s: exists and is not a cedar database, so it is never overwritten; choose "
                          "another name or remove it yourself", path);
    if (!replace)
        return cedar_fail(err, CEDAR_E_IO, "%s: exists; choose another name, or ask for it to be replaced", path);
    if ((st = check_unused(path, err))) return st;
    return reports_remove_database(path, err);
}

/* Claims the name, so that two programs cannot both create it, and so that the system's reason reaches the user. */
static cedar_status claim_file(const char *path, cedar_err *err) {
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
    if (fd < 0) return cedar_fail(err, CEDAR_E_IO, "%s: cannot be created: %s", path, strerror(errno));
    close(fd);
    return CEDAR_OK;
}

static void free_store(cedar_store *s) {
    for (int i = 0; i < ST_COUNT; i++) sqlite3_finalize(s->insert[i]);
    for (int i = 0; i < CEDAR_AUDIT_KIND_COUNT; i++) sqlite3_finalize(s->audit[i]);
    for (int i = 0; i < CEDAR_FINDING_COUNT; i++) sqlite3_finalize(s->finding[i]);
    sqlite3_finalize(s->begin);
    sqlite3_finalize(s->commit);
    sqlite3_close(s->db);
    cedar_free(s->path);
    cedar_free(s);
}

cedar_status cedar_store_create(const char *path, bool replace, cedar_store **out, cedar_err *err) {
    *out = NULL;
    cedar_store *s = cedar_calloc(1, sizeof *s);
    if (!s || !(s->path = cedar_strdup(path))) {
        cedar_free(s);
        return cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for the store", path);
    }
    s->observer = (cedar_observer){ s, on_manifest, on_run_begin, on_session, on_request, on_step, on_quality,
                                    on_run_end, on_expect, on_finding, on_http, on_metric, on_tick };
    s->audit_observer = (cedar_audit_observer){ s, on_audit };
    bool claimed = false;
    cedar_status st = clear_way(path, replace, err);
    if (!st) st = claim_file(path, err);
    if (!st) {
        claimed = true;
        /* one thread writes: without a mutex around every value that is bound */
        st = reports_db_open(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, &s->db, err);
    }
    if (!st) {
        sqlite3_busy_timeout(s->db, BUSY_TIMEOUT_MS);
        st = make_schema(s, err);
    }
    if (st) {
        free_store(s);
        if (claimed) (void)!reports_remove_database(path, NULL);
        return st;
    }
    *out = s;
    return CEDAR_OK;
}

const cedar_observer *cedar_store_observer(cedar_store *s) { return &s->observer; }
const cedar_audit_observer *cedar_store_audit_observer(cedar_store *s) { return &s->audit_observer; }

cedar_status cedar_store_close(cedar_store *s, bool finished, cedar_err *err) {
    if (!s) return CEDAR_OK;
    cedar_status st = CEDAR_OK;
    if (s->broken.code) st = cedar_fail(err, s->broken.code, "%s", s->broken.msg);
    if (!st && finished) {
        st = begin_if_needed(s, err);
        if (!st) st = run_sql(s, "UPDATE manifest SET finished = 1", "marking it finished", err);
    }
    if (!st) st = commit_if_open(s, err);
    /* Leaving WAL checkpoints; prepared statements would keep the file busy. */
    for (int i = 0; i < ST_COUNT; i++) sqlite3_reset(s->insert[i]);
    for (int i = 0; i < CEDAR_AUDIT_KIND_COUNT; i++) sqlite3_reset(s->audit[i]);
    for (int i = 0; i < CEDAR_FINDING_COUNT; i++) sqlite3_reset(s->finding[i]);
    if (!st) {
        st = set_journal(s->db, s->path, "delete", err);
        if (st == CEDAR_E_BUSY)
            st = cedar_fail(err, st,
                            "%s: every row is saved, but another program has the file open; keep %s-wal beside "
                            "it until that program has closed it",
                            s->path, s->path);
    }
    free_store(s);
    return st;
}
