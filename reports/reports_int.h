/* What the files of reports/ share: opening databases, SQL errors, embedded files. Not for other modules. */
#ifndef CEDAR_REPORTS_REPORTS_INT_H
#define CEDAR_REPORTS_REPORTS_INT_H

#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "audit/observer.h"
#include "base/status.h"
#include "sim/observer.h"

struct cedar_store;

enum {
    REPORTS_APPLICATION_ID = 0x43454452,    /* "CEDR", as in schema.sql */
    REPORTS_SCHEMA_VERSION = 5              /* PRAGMA user_version, as in schema.sql */
};

/* Embedded files: reports/schema.sql, views.sql, report.css, report.js and Chart.js. Not zero terminated. */
extern const char _binary_schema_sql_start[], _binary_schema_sql_end[];
extern const char _binary_views_sql_start[], _binary_views_sql_end[];
extern const char _binary_report_css_start[], _binary_report_css_end[];
extern const char _binary_report_js_start[], _binary_report_js_end[];
extern const char _binary_chart_min_js_start[], _binary_chart_min_js_end[];

/* What the first bytes of a file say it is. */
typedef enum reports_file {
    REPORTS_FILE_NONE,
    REPORTS_FILE_EMPTY,
    REPORTS_FILE_FOREIGN,
    REPORTS_FILE_CEDAR
} reports_file;

/* Looks at a path without SQLite. REPORTS_FILE_NONE when nothing is there; CEDAR_E_IO when it cannot be read. */
cedar_status reports_file_kind(const char *path, reports_file *out, cedar_err *err) CEDAR_USE_RESULT;

/* sqlite3_open_v2 without URIs and special names. *out is NULL on failure. */
cedar_status reports_db_open(const char *path, int flags, sqlite3 **out, cedar_err *err) CEDAR_USE_RESULT;

/* Opens a cedar database of this schema read-only and starts a read transaction, so that every query of a report sees
 * the same state. Owned by the caller (sqlite3_close). */
cedar_status reports_open(const char *path, sqlite3 **out, cedar_err *err) CEDAR_USE_RESULT;

/* reports_open, and every view evaluated once into a temporary table of the same name, which hides the view: a report
 * asks for most of them several times. v_request_times, as long as the table it comes from, stays a view. The SQL is
 * this program's own, so that a changed view in the file cannot change a report. */
cedar_status reports_open_evaluated(const char *path, sqlite3 **out, cedar_err *err) CEDAR_USE_RESULT;

/* Turns the last error of db into a sentence: "PATH: <cause> while <doing>". */
cedar_status reports_sql_fail(cedar_err *err, sqlite3 *db, const char *path, const char *doing);

/* Prepares one statement, owned by the caller (sqlite3_finalize); *out is NULL on failure. */
cedar_status reports_prepare(sqlite3 *db, const char *path, const char *sql, sqlite3_stmt **out, cedar_err *err)
    CEDAR_USE_RESULT;

/* Steps; *row is false at the end. */
cedar_status reports_next(sqlite3 *db, const char *path, sqlite3_stmt *st, bool *row, cedar_err *err) CEDAR_USE_RESULT;

/* Text of a column, "" for NULL; borrowed until the next step. */
const char *reports_column_text(sqlite3_stmt *st, int column);

/* Decodes one code point of UTF-8 and advances; bytes that are not UTF-8 give 0xFFFD one by one. 0 at the end. */
uint32_t reports_utf8_next(const char **s);

/* Writes a code point as UTF-8. */
void reports_utf8_put(FILE *to, uint32_t c);

/* Runs SQL that yields no rows. */
cedar_status reports_run_sql(sqlite3 *db, const char *path, const char *sql, const char *doing, cedar_err *err)
    CEDAR_USE_RESULT;

/* Zero-terminated copy of an embedded file; NULL when out of memory. Owned by the caller (cedar_free). */
char *reports_embedded(const char *from, const char *end);

/* Removes a database and what SQLite may have left beside it. */
cedar_status reports_remove_database(const char *path, cedar_err *err) CEDAR_USE_RESULT;

/* --- rows of the store -------------------------------------------------------------------------------------------- */

typedef enum reports_field_kind {
    COLUMN_I64, COLUMN_U64, COLUMN_I32, COLUMN_U32, COLUMN_BOOL, COLUMN_TEXT, COLUMN_REAL,
    COLUMN_OPTIONAL, /* double, NULL for NaN */
    COLUMN_ID,      /* int64_t, NULL for 0 */
    COLUMN_SEED,    /* uint64_t as decimal text */
    COLUMN_HASH,    /* uint64_t as 16 hexadecimal digits */
    COLUMN_MISS     /* cedar_miss_reason by name */
} reports_field_kind;

typedef struct reports_field {
    const char *name;
    reports_field_kind kind;
    size_t at;      /* offset of the member in the row */
} reports_field;

typedef struct reports_row_kind {
    const char *table;
    const reports_field *columns;
    int count;
    bool commit;    /* the row is made durable at once, together with everything before it */
    int keys;       /* 0: the row is inserted; else it updates the row named by its last columns, so many */
} reports_row_kind;

/* store_audit.c: how a row of an audit is stored. */
const reports_row_kind *reports_audit_kind(cedar_audit_kind kind);

/* store_findings.c: how a row of a ladder, a claim or a paired comparison is stored. */
const reports_row_kind *reports_finding_kind(cedar_finding kind);

/* A request whose response was complete later than its last token: a row beside its request row. */
typedef struct reports_end_row {
    int64_t run_id, request_id, end_ns;
} reports_end_row;

cedar_status reports_store_end(struct cedar_store *s, const reports_end_row *row, cedar_err *err) CEDAR_USE_RESULT;

/* Shortest of 15 to 17 digits that reads back as x, into out. NaN and infinities as "nan", "inf", "-inf". */
void reports_real_text(double x, char out[32]);

/* --- tables that both reports show (tables.c) ------------------------------------------------------------------- */

typedef enum reports_kind {
    REPORTS_TEXT,
    REPORTS_CHOICE,     /* text; the page lets one sort the table, and choose rows by this column */
    REPORTS_LINK,       /* text; an address of the web */
    REPORTS_COUNT,      /* 1,234,567 */
    REPORTS_NUMBER,     /* four significant digits, no exponent */
    REPORTS_SHARE,      /* 0..1 as a percentage; never shown as 100% unless it is */
    REPORTS_BYTES,
    REPORTS_SMALL,      /* divergences: 1.23e-05 */
    REPORTS_SIGNED      /* as SMALL, with its sign */
} reports_kind;

/* The backend of a run, and its GPU if it had one. */
#define REPORTS_BACKEND "backend || CASE device WHEN '' THEN '' ELSE ' on ' || device END"

enum { REPORTS_COLUMNS_MAX = 20, REPORTS_CELL_BYTES = 64 };

typedef struct reports_column {
    const char *head;   /* with the unit; NULL ends the list */
    reports_kind kind;
} reports_column;

/* A query and how to show its columns. */
typedef struct reports_table {
    const char *id, *title, *note;
    const char *sql;                                    /* yields the columns in order */
    reports_column columns[REPORTS_COLUMNS_MAX + 1];
} reports_table;

/* tables_audit.c: the tables about audits [*count]. */
const reports_table *reports_audit_tables(size_t *count);

/* tables_claims.c: those about fronts, single steps, ladders and claims. */
const reports_table *reports_claim_tables(size_t *count);

/* The table called id; a programmer error when there is none. */
const reports_table *reports_table_get(const char *id);
int reports_table_width(const reports_table *t);

bool reports_is_text(reports_kind kind);

/* A numeric column of the current row as text, "-" in typographic form for NULL. Not for text. */
void reports_format(reports_kind kind, sqlite3_stmt *q, int column, char out[REPORTS_CELL_BYTES]);
void reports_format_real(reports_kind kind, double x, char out[REPORTS_CELL_BYTES]);

/* CEDAR_E_IO when writing to `to` has failed. */
cedar_status reports_flush(FILE *to, cedar_err *err) CEDAR_USE_RESULT;

#endif
