/* Owns reading tables: CSV as RFC 4180 has it, with LF or CRLF, and columns found by their names in any order. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "traces/traces_int.h"

#define RECORD_BYTES_MAX ((size_t)1 << 20)

/* Where the scan of a table stands. */
typedef struct table {
    traces_load *l;
    const char *p, *end;
    int line;                 /* of the next record */
    char *text;               /* scratch of one record */
    size_t text_bytes, text_room;
    size_t starts[FIELDS_MAX];
    bool quoted[FIELDS_MAX];
    traces_csv csv;
} table;

static cedar_status put_char(table *t, char c, cedar_err *err) {
    if (t->text_bytes == RECORD_BYTES_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a record is longer than %zu bytes", t->l->name, t->l->line,
                          RECORD_BYTES_MAX);
    void *p = t->text;
    cedar_status st = traces_grow(&p, &t->text_room, t->text_bytes + 1, 1, err);
    if (st) return st;
    t->text = p;
    t->text[t->text_bytes++] = c;
    return CEDAR_OK;
}

/* A field in quotes; p is behind the opening one and ends behind the closing one. */
static cedar_status read_quoted(table *t, cedar_err *err) {
    for (;;) {
        if (t->p == t->end)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a quoted field is not closed before the file ends",
                              t->l->name, t->l->line);
        char c = *t->p++;
        if (c == '"' && (t->p == t->end || *t->p != '"')) return CEDAR_OK;
        if (c == '"') t->p++;
        if (c == '\n') t->line++;
        cedar_status st = put_char(t, c, err);
        if (st) return st;
    }
}

static bool at_line_end(const table *t) {
    return t->p == t->end || *t->p == '\n' || (*t->p == '\r' && (t->p + 1 == t->end || t->p[1] == '\n'));
}

static cedar_status read_field(table *t, bool *quoted, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    *quoted = t->p < t->end && *t->p == '"';
    if (*quoted) {
        t->p++;
        st = read_quoted(t, err);
        if (!st && !at_line_end(t) && *t->p != ',')
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: text behind a quoted field; a quote inside is written twice",
                            t->l->name, t->l->line);
    }
    while (!st && !at_line_end(t) && *t->p != ',') {
        if (*t->p == '"')
            return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a quote inside a field that does not begin with one",
                              t->l->name, t->l->line);
        st = put_char(t, *t->p++, err);
    }
    return st ? st : put_char(t, 0, err);
}

/* Blanks at both ends of a field without quotes mean nothing. */
static char *trimmed(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    size_t n = strlen(s);
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\t')) s[--n] = 0;
    return s;
}

static void next_line(table *t) {
    while (t->p < t->end && *t->p != '\n') t->p++;
    if (t->p < t->end) t->p++;
    t->line++;
}

static cedar_status split_record(table *t, cedar_err *err) {
    size_t n = 0;
    t->text_bytes = 0;
    for (;;) {
        if (n == FIELDS_MAX)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: more than %d columns", t->l->name, t->l->line, FIELDS_MAX);
        t->starts[n] = t->text_bytes;
        cedar_status st = read_field(t, &t->quoted[n++], err);
        if (st) return st;
        if (at_line_end(t)) break;
        t->p++;
    }
    t->csv.field_count = n;
    for (size_t i = 0; i < n; i++) {
        char *field = t->text + t->starts[i];
        t->csv.fields[i] = t->quoted[i] ? field : trimmed(field);
    }
    return CEDAR_OK;
}

/* Next record that is not an empty line; *more false at the end. A malformed record is passed over with its line. */
static cedar_status next_record(table *t, bool *more, cedar_err *err) {
    while (t->p < t->end && at_line_end(t)) next_line(t);
    *more = t->p < t->end;
    if (!*more) return CEDAR_OK;
    t->l->line = t->line;
    cedar_status st = split_record(t, err);
    next_line(t);
    return st;
}

/* --- columns ----------------------------------------------------------------------------------------------------- */

/* Field of a column, -1 when the file does not have it. */
static int find_column(const traces_csv *csv, const traces_column *c) {
    for (size_t i = 0; i < csv->field_count; i++)
        if (!strcasecmp(csv->fields[i], c->name) || (c->alias && !strcasecmp(csv->fields[i], c->alias))) return (int)i;
    return -1;
}

static const traces_column *missing_column(const traces_csv *csv, const traces_reader *r) {
    for (size_t i = 0; i < r->column_count; i++)
        if (r->columns[i].required && find_column(csv, &r->columns[i]) < 0) return &r->columns[i];
    return NULL;
}

static cedar_status find_reader(table *t, const traces_reader *const *readers, size_t count, cedar_err *err) {
    traces_load *l = t->l;
    const traces_column *missing = NULL;
    for (size_t i = 0; i < count && !l->reader; i++) {
        if (!readers[i]->columns || (l->opts.format != CEDAR_TRACE_AUTO && readers[i]->format != l->opts.format))
            continue;
        missing = missing_column(&t->csv, readers[i]);
        if (!missing) l->reader = readers[i];
    }
    if (l->reader) return CEDAR_OK;
    if (l->opts.format != CEDAR_TRACE_AUTO && missing)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: column \"%s\" is missing", l->name, l->line, missing->name);
    return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: no known table: its columns are neither those of tracelab_csv, "
                      "blis, azure, burstgpt nor timed", l->name, l->line);
}

static cedar_status place_columns(table *t, cedar_err *err) {
    const traces_reader *r = t->l->reader;
    traces_csv *csv = &t->csv;
    csv->columns = r->columns;
    for (size_t i = 0; i < r->column_count; i++) {
        csv->place[i] = find_column(csv, &r->columns[i]);
        for (size_t j = csv->place[i] < 0 ? csv->field_count : (size_t)csv->place[i] + 1; j < csv->field_count; j++)
            if (!strcasecmp(csv->fields[j], csv->fields[csv->place[i]]))
                return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: column \"%s\" is there twice", t->l->name, t->l->line,
                                  csv->fields[j]);
    }
    return CEDAR_OK;
}

static cedar_status read_header(table *t, const traces_reader *const *readers, size_t count, cedar_err *err) {
    bool more;
    cedar_status st = next_record(t, &more, err);
    if (!st && !more) st = cedar_fail(err, CEDAR_E_FORMAT, "%s: holds no trace", t->l->name);
    if (!st) st = find_reader(t, readers, count, err);
    if (!st) st = place_columns(t, err);
    return st;
}

static cedar_status read_record(table *t, size_t column_count, cedar_err *err) {
    traces_csv *csv = &t->csv;
    if (csv->field_count != column_count)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: has %zu fields, the header has %zu", t->l->name, t->l->line,
                          csv->field_count, column_count);
    snprintf(csv->where, sizeof csv->where, "%.300s:%d", t->l->name, t->l->line);
    return t->l->reader->record(t->l, csv, err);
}

cedar_status traces_csv_read(traces_load *l, const char *p, const char *end, const traces_reader *const *readers,
                             size_t reader_count, cedar_err *err) {
    table *t = cedar_calloc(1, sizeof *t);
    if (!t) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory to read a table", l->name);
    *t = (table){ .l = l, .p = p, .end = end, .line = l->line };
    cedar_status st = read_header(t, readers, reader_count, err);
    size_t columns = t->csv.field_count, records = 0;
    bool more = !st;
    while (!st && more) {
        st = next_record(t, &more, err);
        records += more;
        if (!st && more) st = read_record(t, columns, err);
        if (!st && !more && !records) st = cedar_fail(err, CEDAR_E_FORMAT, "%s: holds no trace", l->name);
        if (st && more) st = traces_broken(l, st, err);
    }
    if (st) st = traces_broken(l, st, err);
    cedar_free(t->text);
    cedar_free(t);
    return st;
}

/* --- fields ------------------------------------------------------------------------------------------------------ */

const char *traces_csv_text(const traces_csv *csv, size_t column) {
    int i = csv->place[column];
    return i >= 0 && csv->fields[i][0] ? csv->fields[i] : NULL;
}

/* The field, or NULL with *st set when it is required. */
static const char *field(const traces_csv *csv, size_t column, cedar_status *st, cedar_err *err) {
    const char *text = traces_csv_text(csv, column);
    *st = CEDAR_OK;
    if (!text && csv->columns[column].required)
        *st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is empty", csv->where, csv->columns[column].name);
    return text;
}

cedar_status traces_csv_int(const traces_csv *csv, size_t column, int64_t hi, int64_t *out, bool *present,
                            cedar_err *err) {
    cedar_status st;
    const char *text = field(csv, column, &st, err);
    if (present) *present = text;
    if (!text) return st;
    int64_t x = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && x <= hi; p++) x = 10 * x + (*p - '0');
    /* Spreadsheets and data frames write whole numbers as 12.0. */
    if (p != text && *p == '.')
        for (p++; *p == '0'; p++) {}
    if (p == text || *p || x > hi)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is \"%.40s\", allowed are whole numbers from 0 to %lld",
                          csv->where, csv->columns[column].name, text, (long long)hi);
    *out = x;
    return CEDAR_OK;
}

cedar_status traces_csv_tokens(const traces_csv *csv, size_t column, uint32_t *out, cedar_err *err) {
    int64_t x = *out;
    cedar_status st = traces_csv_int(csv, column, TOKENS_MAX, &x, NULL, err);
    *out = (uint32_t)x;
    return st;
}

cedar_status traces_csv_time(const traces_csv *csv, size_t column, int64_t unit_ns, int64_t max_s, int64_t *out,
                             bool *present, cedar_err *err) {
    cedar_status st;
    const char *text = field(csv, column, &st, err);
    *present = text;
    if (!text || traces_decimal_parse(text, unit_ns, max_s * NS_PER_S, out)) return st;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is \"%.40s\", allowed are 0 to %lld %s", csv->where,
                      csv->columns[column].name, text, (long long)(max_s * (NS_PER_S / unit_ns)),
                      unit_ns == NS_PER_S ? "seconds" : unit_ns == NS_PER_MS ? "milliseconds" : "microseconds");
}

cedar_status traces_csv_name(traces_load *l, const traces_csv *csv, size_t column, const char **out, cedar_err *err) {
    cedar_status st;
    const char *text = field(csv, column, &st, err);
    *out = NULL;
    if (!text) return st;
    size_t n = strlen(text);
    if (n > NAME_BYTES_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" has %zu bytes, allowed are 1 to %zu", csv->where,
                          csv->columns[column].name, n, NAME_BYTES_MAX);
    json_t *utf8 = json_stringn(text, n);
    if (!utf8)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is not valid UTF-8", csv->where, csv->columns[column].name);
    json_decref(utf8);
    *out = traces_arena_string(l->arena, text, n);
    return *out ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: no memory for \"%s\"", csv->where,
                                        csv->columns[column].name);
}
