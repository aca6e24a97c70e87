/* Opening databases: what a file is, read-only access, SQL errors as sentences; and what all reports need. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "reports/reports_int.h"

/* Offsets in the first page of an SQLite file (sqlite.org/fileformat.html 1.3). */
enum { HEADER_BYTES = 100, HEADER_USER_VERSION = 60, HEADER_APPLICATION_ID = 68 };

static uint32_t big_endian_32(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

cedar_status reports_file_kind(const char *path, reports_file *out, cedar_err *err) {
    unsigned char head[HEADER_BYTES];
    struct stat info;
    if (stat(path, &info)) {
        *out = REPORTS_FILE_NONE;
        return errno == ENOENT ? CEDAR_OK : cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    }
    *out = REPORTS_FILE_FOREIGN;
    if (!S_ISREG(info.st_mode)) return CEDAR_OK;
    FILE *f = fopen(path, "rb");
    if (!f) return cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    size_t n = fread(head, 1, sizeof head, f);
    bool bad = ferror(f);
    fclose(f);
    if (bad) return cedar_fail(err, CEDAR_E_IO, "%s: cannot be read", path);
    if (n == 0) *out = REPORTS_FILE_EMPTY;
    else if (n == sizeof head && !memcmp(head, "SQLite format 3", 16) &&
             big_endian_32(head + HEADER_APPLICATION_ID) == REPORTS_APPLICATION_ID)
        *out = REPORTS_FILE_CEDAR;
    return CEDAR_OK;
}

/* Cause of an I/O error: the system's word for it when SQLite kept it, else what SQLite was doing. */
static const char *io_cause(int extended_code, int system_errno) {
    if (system_errno) return strerror(system_errno);
    switch (extended_code) {
    case SQLITE_IOERR_WRITE: case SQLITE_IOERR_FSYNC: case SQLITE_IOERR_TRUNCATE:
        return "cannot be written (a disk quota or a limit on file sizes?)";
    case SQLITE_IOERR_READ: case SQLITE_IOERR_SHORT_READ: return "cannot be read";
    default: return "disk I/O error";
    }
}

cedar_status reports_sql_fail(cedar_err *err, sqlite3 *db, const char *path, const char *doing) {
    int code = db ? sqlite3_extended_errcode(db) : SQLITE_NOMEM;
    int sys = db ? sqlite3_system_errno(db) : 0;
    switch (code & 0xFF) {
    case SQLITE_FULL:
        return cedar_fail(err, CEDAR_E_IO, "%s: the disk is full while %s; free some space or write elsewhere", path,
                          doing);
    case SQLITE_IOERR: return cedar_fail(err, CEDAR_E_IO, "%s: %s while %s", path, io_cause(code, sys), doing);
    case SQLITE_CANTOPEN:
        return cedar_fail(err, CEDAR_E_IO,
                          "%s: cannot be opened (%s) while %s; its directory must be readable, and "
                          "writable if a -wal file lies next to it",
                          path, sys ? strerror(sys) : "no reason given", doing);
    case SQLITE_READONLY:
        if (code == SQLITE_READONLY_ROLLBACK || code == SQLITE_READONLY_RECOVERY || code == SQLITE_READONLY_CANTINIT)
            return cedar_fail(err, CEDAR_E_IO,
                              "%s: the program that wrote it was killed in the middle of a write; `sqlite3 FILE "
                              ".tables` repairs it, --replace writes it anew",
                              path);
        return cedar_fail(err, CEDAR_E_IO, "%s: is read-only while %s", path, doing);
    case SQLITE_BUSY: case SQLITE_LOCKED:
        return cedar_fail(err, CEDAR_E_BUSY, "%s: is in use by another program while %s", path, doing);
    case SQLITE_CORRUPT: case SQLITE_NOTADB:
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: is damaged (%s) while %s; `sqlite3 FILE .recover` may save its rows", path,
                          sqlite3_errmsg(db), doing);
    case SQLITE_NOMEM: return cedar_fail(err, CEDAR_E_OOM, "%s: out of memory while %s", path, doing);
    default: return cedar_fail(err, CEDAR_E_DB, "%s: %s while %s", path, sqlite3_errmsg(db), doing);
    }
}

cedar_status reports_db_open(const char *path, int flags, sqlite3 **out, cedar_err *err) {
    /* "./" keeps SQLite from reading ":memory:" or "file:..." as anything but a name. */
    size_t n = strlen(path) + 3;
    char *name = cedar_calloc(n, 1);
    *out = NULL;
    if (!name) return cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for its name", path);
    snprintf(name, n, "%s%s", path[0] == '/' ? "" : "./", path);
    int rc = sqlite3_open_v2(name, out, flags, NULL);
    cedar_free(name);
    if (rc == SQLITE_OK) return CEDAR_OK;
    cedar_status st = reports_sql_fail(err, *out, path, "opening it");
    sqlite3_close(*out);
    *out = NULL;
    return st;
}

static cedar_status pragma_int(sqlite3 *db, const char *path, const char *sql, int64_t *out, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    cedar_status st = reports_prepare(db, path, sql, &q, err);
    if (!st) st = reports_next(db, path, q, &row, err);
    if (!st) *out = row ? sqlite3_column_int64(q, 0) : 0;
    sqlite3_finalize(q);
    return st;
}

static cedar_status check_version(sqlite3 *db, const char *path, cedar_err *err) {
    int64_t version = 0;
    cedar_status st = pragma_int(db, path, "PRAGMA user_version", &version, err);
    if (st || version == REPORTS_SCHEMA_VERSION) return st;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: has database schema %lld, this cedar reads schema %d; use the cedar %s",
                      path, (long long)version, REPORTS_SCHEMA_VERSION,
                      version < REPORTS_SCHEMA_VERSION ? "that wrote it, or run its scenario again" : "that wrote it");
}

cedar_status reports_open(const char *path, sqlite3 **out, cedar_err *err) {
    reports_file kind;
    cedar_status st = reports_file_kind(path, &kind, err);
    *out = NULL;
    if (st) return st;
    if (kind == REPORTS_FILE_NONE) return cedar_fail(err, CEDAR_E_IO, "%s: there is no such file", path);
    if (kind == REPORTS_FILE_EMPTY)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: is empty, not a cedar database; `cedar run SCENARIO -o FILE` makes one", path);
    if (kind == REPORTS_FILE_FOREIGN)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: is not a cedar database; `cedar run SCENARIO -o FILE` makes one",
                          path);
    sqlite3 *db;
    if ((st = reports_db_open(path, SQLITE_OPEN_READONLY, &db, err))) return st;
    sqlite3_busy_timeout(db, 5000);
    sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, (int *)NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, (int *)NULL);
    if (sqlite3_exec(db, "BEGIN", NULL, NULL, NULL)) st = reports_sql_fail(err, db, path, "starting to read it");
    if (!st) st = check_version(db, path, err);
    if (st) sqlite3_close(db);
    else *out = db;
    return st;
}

cedar_status reports_run_sql(sqlite3 *db, const char *path, const char *sql, const char *doing, cedar_err *err) {
    return sqlite3_exec(db, sql, NULL, NULL, NULL) ? reports_sql_fail(err, db, path, doing) : CEDAR_OK;
}

char *reports_embedded(const char *from, const char *end) {
    char *text = cedar_calloc((size_t)(end - from) + 1, 1);
    if (text) memcpy(text, from, (size_t)(end - from));
    return text;
}

/* "CREATE VIEW v_" of views.sql becomes "CREATE TEMP TABLE v_", or "CREATE TEMP VIEW v_" for v_request_times. */
static char *temporary_views(void) {
    static const char view[] = "CREATE VIEW v_", table[] = "CREATE TEMP TABLE v_", stays[] = "CREATE TEMP VIEW v_";
    const size_t head = sizeof view - 1;
    size_t count = 0;
    char *text = reports_embedded(_binary_views_sql_start, _binary_views_sql_end);
    for (char *p = text; p && (p = strstr(p, view)); p += head) count++;
    char *out = text ? cedar_calloc(strlen(text) + count * sizeof table + 1, 1) : NULL;
    char *to = out;
    for (const char *p = text, *next; out && *p; p = next) {
        const char *found = strstr(p, view);
        next = found ? found + head : p + strlen(p);
        size_t keep = (size_t)((found ? found : next) - p);
        memcpy(to, p, keep);
        to += keep;
        if (found) to = stpcpy(to, strncmp(next, "request_times ", 14) ? table : stays);
    }
    cedar_free(text);
    return out;
}

/* Databases of before table paired: the views read an empty one. */
static cedar_status add_missing_table(sqlite3 *db, const char *path, cedar_err *err) {
    static const char head[] = "CREATE TABLE paired (", end[] = ") STRICT;";
    int64_t there = 0;
    cedar_status st = pragma_int(db, path, "SELECT COUNT(*) FROM sqlite_schema WHERE name = 'paired'", &there, err);
    if (st || there) return st;
    char *schema = reports_embedded(_binary_schema_sql_start, _binary_schema_sql_end);
    char *from = schema ? strstr(schema, head) : NULL, *to = from ? strstr(from, end) : NULL;
    char *sql = to ? sqlite3_mprintf("CREATE TEMP TABLE paired (%.*s", (int)(to + sizeof end - 1 - from) -
                                     (int)(sizeof head - 1), from + sizeof head - 1) : NULL;
    st = sql ? reports_run_sql(db, path, sql, "adding a table that it is too old for", err)
             : cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for its tables", path);
    sqlite3_free(sql);
    cedar_free(schema);
    return st;
}

cedar_status reports_open_evaluated(const char *path, sqlite3 **out, cedar_err *err) {
    cedar_status st = reports_open(path, out, err);
    if (st) return st;
    char *sql = temporary_views();
    if (!sql) st = cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for its views", path);
    if (!st) st = reports_run_sql(*out, path, "PRAGMA temp_store = MEMORY", "setting it up", err);
    if (!st) st = add_missing_table(*out, path, err);
    if (!st) st = reports_run_sql(*out, path, sql, "evaluating its views", err);
    cedar_free(sql);
    if (st) {
        sqlite3_close(*out);
        *out = NULL;
    }
    return st;
}

cedar_status reports_prepare(sqlite3 *db, const char *path, const char *sql, sqlite3_stmt **out, cedar_err *err) {
    *out = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, out, NULL) == SQLITE_OK) return CEDAR_OK;
    return reports_sql_fail(err, db, path, "preparing a query");
}

cedar_status reports_next(sqlite3 *db, const char *path, sqlite3_stmt *st, bool *row, cedar_err *err) {
    int rc = sqlite3_step(st);
    *row = rc == SQLITE_ROW;
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? CEDAR_OK : reports_sql_fail(err, db, path, "reading it");
}

const char *reports_column_text(sqlite3_stmt *st, int column) {
    const unsigned char *t = sqlite3_column_text(st, column);
    return t ? (const char *)t : "";
}

uint32_t reports_utf8_next(const char **s) {
    uint32_t c = 0xFFFD;
    size_t n = cedar_utf8_bytes(*s, &c);
    if (c) *s += n ? n : 1;
    return c;
}

void reports_utf8_put(FILE *to, uint32_t c) {
    if (c < 0x80) {
        fputc((int)c, to);
    } else if (c < 0x800) {
        fputc((int)(0xC0 | c >> 6), to);
        fputc((int)(0x80 | (c & 0x3F)), to);
    } else {
        if (c < 0x10000) {
            fputc((int)(0xE0 | c >> 12), to);
        } else {
            fputc((int)(0xF0 | c >> 18), to);
            fputc((int)(0x80 | (c >> 12 & 0x3F)), to);
        }
        fputc((int)(0x80 | (c >> 6 & 0x3F)), to);
        fputc((int)(0x80 | (c & 0x3F)), to);
    }
}

void reports_real_text(double x, char out[32]) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, x);
        if (isnan(x) || strtod(out, NULL) == x) return;
    }
}

cedar_status reports_flush(FILE *to, cedar_err *err) {
    errno = 0;
    if (fflush(to) || ferror(to))
        return cedar_fail(err, CEDAR_E_IO, "the report could not be written: %s",
                          errno ? strerror(errno) : "an earlier write failed");
    return CEDAR_OK;
}
