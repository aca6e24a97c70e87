/* The peer of the store in `cedar bench sim`: the rows of a table once more, through nothing but a prepared
 * statement. */
#include "reports/reports.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "reports/reports_int.h"

enum { COLUMNS_MAX = 64, ROWS_OF_COMMIT = 4096 };

/* A value of a row, as SQLite gives it. */
typedef struct cell {
    int64_t number;
    char *text;         /* NULL: it is a number */
} cell;

typedef struct copy {
    cell *cells;        /* [row_count, columns] */
    uint64_t row_count, capacity;
    int columns;
    char *sql;          /* of its table */
} copy;

static void free_copy(copy *c) {
    for (uint64_t i = 0; i < c->row_count * (uint64_t)c->columns; i++) cedar_free(c->cells[i].text);
    cedar_free(c->cells);
    cedar_free(c->sql);
}

static cedar_status add_row(copy *c, sqlite3_stmt *q, cedar_err *err) {
    if (c->row_count == c->capacity) {
        uint64_t capacity = c->capacity ? 2 * c->capacity : 1024;
        cell *grown = cedar_realloc(c->cells, capacity * (uint64_t)c->columns, sizeof *grown);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %llu rows", (unsigned long long)capacity);
        c->cells = grown;
        c->capacity = capacity;
    }
    cell *to = c->cells + c->row_count++ * (uint64_t)c->columns;
    cedar_status st = CEDAR_OK;
    for (int i = 0; i < c->columns; i++) {
        bool text = sqlite3_column_type(q, i) == SQLITE_TEXT;
        to[i] = (cell){ .number = text ? 0 : sqlite3_column_int64(q, i),
                        .text = text ? cedar_strdup(reports_column_text(q, i)) : NULL };
        if (text && !to[i].text) st = cedar_fail(err, CEDAR_E_OOM, "no memory for a text of a row");
    }
    return st;
}

/* All rows of a table whose values are whole numbers and texts. */
static cedar_status read_rows(const char *path, const char *table, copy *out, cedar_err *err) {
    sqlite3 *db;
    sqlite3_stmt *q = NULL;
    char sql[96];
    bool row;
    cedar_status st = reports_open(path, &db, err);
    if (st) return st;
    snprintf(sql, sizeof sql, "SELECT * FROM \"%.64s\"", table);
    st = reports_prepare(db, path, sql, &q, err);
    out->columns = st ? 0 : sqlite3_column_count(q);
    CEDAR_ASSERT(out->columns <= COLUMNS_MAX);
    while (!st && !(st = reports_next(db, path, q, &row, err)) && row) st = add_row(out, q, err);
    sqlite3_finalize(q);
    q = NULL;
    if (!st) st = reports_prepare(db, path, "SELECT sql FROM sqlite_schema WHERE name = ?", &q, err);
    if (!st) sqlite3_bind_text(q, 1, table, -1, SQLITE_STATIC);
    if (!st) st = reports_next(db, path, q, &row, err);
    if (!st && !(out->sql = cedar_strdup(reports_column_text(q, 0))))
        st = cedar_fail(err, CEDAR_E_OOM, "no memory for the text of a table");
    sqlite3_finalize(q);
    sqlite3_close(db);
    return st;
}

/* The table as it was, or one of as many columns, without types, keys or checks; and its statement. */
static cedar_status make_table(sqlite3 *db, const char *path, const char *name, const char *sql, int columns,
                               sqlite3_stmt **insert, cedar_err *err) {
    char table[16 * COLUMNS_MAX] = "CREATE TABLE bare (c0", values[16 * COLUMNS_MAX];
    snprintf(values, sizeof values, "INSERT INTO \"%.64s\" VALUES (?", sql ? name : "bare");
    for (int i = 1; i < columns; i++) {
        snprintf(table + strlen(table), sizeof table - strlen(table), ", c%d", i);
        strcat(values, ",?");
    }
    strcat(table, ")");
    strcat(values, ")");
    cedar_status st = reports_run_sql(db, path, "PRAGMA page_size = 4096; PRAGMA journal_mode = wal; "
                                      "PRAGMA synchronous = NORMAL", "setting it up", err);
    if (!st) st = reports_run_sql(db, path, sql ? sql : table, "making its table", err);
    return st ? st : reports_prepare(db, path, values, insert, err);
}

static cedar_status insert_rows(sqlite3 *db, const char *path, sqlite3_stmt *insert, const copy *c, cedar_err *err) {
    cedar_status st = reports_run_sql(db, path, "BEGIN", "writing rows", err);
    for (uint64_t r = 0; r < c->row_count && !st; r++) {
        const cell *from = c->cells + r * (uint64_t)c->columns;
        for (int i = 0; i < c->columns; i++) {
            if (from[i].text) sqlite3_bind_text(insert, i + 1, from[i].text, -1, SQLITE_STATIC);
            else sqlite3_bind_int64(insert, i + 1, from[i].number);
        }
        if (sqlite3_step(insert) != SQLITE_DONE) st = reports_sql_fail(err, db, path, "writing rows");
        sqlite3_reset(insert);
        if (!st && (r + 1) % ROWS_OF_COMMIT == 0) st = reports_run_sql(db, path, "COMMIT; BEGIN", "writing rows", err);
    }
    return st ? st : reports_run_sql(db, path, "COMMIT; PRAGMA journal_mode = delete", "writing rows", err);
}

cedar_status cedar_bare_insert(const char *path, const char *table, bool plain, const char *to, uint64_t *rows,
                               int64_t *ns, cedar_err *err) {
    copy c = { 0 };
    sqlite3 *db = NULL;
    sqlite3_stmt *insert = NULL;
    cedar_status st = read_rows(path, table, &c, err);
    if (!st) st = reports_db_open(to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, &db, err);
    if (!st) st = make_table(db, to, table, plain ? NULL : c.sql, c.columns, &insert, err);
    int64_t start = cedar_now_ns();
    if (!st) st = insert_rows(db, to, insert, &c, err);
    sqlite3_finalize(insert);
    sqlite3_close(db);
    *ns = cedar_now_ns() - start;
    *rows = c.row_count;
    free_copy(&c);
    return st;
}
