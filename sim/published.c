/* The file of published figures: CSV into rows. The text is cut into fields where it lies. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "sim/claims.h"

enum { FIELDS = 10, FILE_BYTES_MAX = 16 << 20, VALUE = 7 };

static const char *const names[FIELDS] = { "source", "date", "model", "hardware", "engine",
                                           "metric", "condition", "value", "unit", "url" };
static const bool needed[FIELDS] = { true, false, true, false, false, true, false, true, true, false };

typedef struct reader {
    const char *path;
    char *at;                       /* next byte */
    int line;                       /* it lies on */
    char *field[FIELDS];
    int first_line, count;          /* of the line just read; count: fields it has */
    cedar_err *err;
} reader;

static const char *field_name(int i) { return i < FIELDS ? names[i] : "behind the last"; }

/* A field in quotes, from behind the first of them; "" stands for one quote. */
static cedar_status read_quoted(reader *r, char **out) {
    char *from = r->at + 1, *to = from, *p = from;
    int line = r->line;
    for (;; p++) {
        if (!*p)
            return cedar_fail(r->err, CEDAR_E_FORMAT, "%s:%d: field %s: the quote that opens it is never closed",
                              r->path, line, field_name(r->count));
        if (*p == '"' && *++p != '"') break;
        if (*p == '\n') r->line++;
        *to++ = *p;
    }
    if (*p && *p != ',' && *p != '\n' && *p != '\r')
        return cedar_fail(r->err, CEDAR_E_FORMAT, "%s:%d: field %s: \"%.8s\" stands behind the closing quote", r->path,
                          r->line, field_name(r->count), p);
    r->at = p;
    *out = from;
    /* the byte behind the text is one of the field's own: a quote at least */
    *to = 0;
    return CEDAR_OK;
}

/* A plain field; the separator behind it is still needed, so it is ended by the caller. */
static cedar_status read_plain(reader *r, char **out) {
    size_t n = strcspn(r->at, ",\r\n\"");
    *out = r->at;
    r->at += n;
    if (*r->at == '"')
        return cedar_fail(r->err, CEDAR_E_FORMAT,
                          "%s:%d: field %s: a quote inside a field that does not begin with one", r->path,
                          r->line, field_name(r->count));
    return CEDAR_OK;
}

/* Reads the fields of one line, and goes on to the next. */
static cedar_status read_line(reader *r) {
    r->first_line = r->line;
    for (r->count = 0;;) {
        char *text = NULL;
        cedar_status st = *r->at == '"' ? read_quoted(r, &text) : read_plain(r, &text);
        if (st) return st;
        if (r->count < FIELDS) r->field[r->count] = text;
        r->count++;
        char *end = r->at;
        bool more = *end == ',';
        if (*r->at == '\r') r->at++;
        if (!more && *r->at && *r->at != '\n')
            return cedar_fail(r->err, CEDAR_E_FORMAT, "%s:%d: field %s: a carriage return inside a line", r->path,
                              r->line, field_name(r->count - 1));
        if (*r->at == '\n') r->line++;
        if (*r->at) r->at++;
        *end = 0;
        if (!more) return CEDAR_OK;
    }
}

static cedar_status check_count(const reader *r) {
    if (r->count == FIELDS) return CEDAR_OK;
    return cedar_fail(r->err, CEDAR_E_FORMAT, "%s:%d: has %d fields instead of %d%s%s", r->path, r->first_line,
                      r->count, FIELDS,
                      r->count < FIELDS ? "; the first that is missing: " : "; is a comma not in quotes?",
                      r->count < FIELDS ? names[r->count] : "");
}

static cedar_status read_heading(reader *r) {
    cedar_status st = read_line(r);
    if (!st) st = check_count(r);
    for (int i = 0; i < FIELDS && !st; i++)
        if (strcmp(r->field[i], names[i]))
            st = cedar_fail(r->err, CEDAR_E_FORMAT, "%s:%d: column %d is called \"%.32s\", wanted \"%s\"", r->path,
                            r->first_line, i + 1, r->field[i], names[i]);
    return st;
}

/* A decimal number without sign of its digits' place: what strtod also takes (hexadecimal, inf, spaces) is refused. */
static cedar_status read_value(const reader *r, cedar_published *out) {
    const char *text = r->field[VALUE], *p = text + (*text == '-');
    size_t whole = strspn(p, "0123456789"), part = p[whole] == '.' ? strspn(p + whole + 1, "0123456789") : 0;
    bool dot = p[whole] == '.';
    if (whole == 0 || (dot && part == 0) || p[whole + dot + part] || whole + part > 15)
        return cedar_fail(r->err, CEDAR_E_FORMAT, "%s:%d: field value: \"%.32s\" is not a decimal number of at most 15 "
                          "digits, such as 5.3", r->path, r->first_line, text);
    out->value = strtod(text, NULL);
    out->last_digit = 1;
    for (size_t i = 0; i < part; i++) out->last_digit /= 10;
    return CEDAR_OK;
}

static cedar_status make_row(const reader *r, int64_t row, cedar_published *out) {
    cedar_status st = check_count(r);
    for (int i = 0; i < FIELDS && !st; i++)
        if (needed[i] && !*r->field[i])
            st = cedar_fail(r->err, CEDAR_E_FORMAT, "%s:%d: field %s is empty", r->path, r->first_line, names[i]);
    if (st) return st;
    *out = (cedar_published){ .row = row, .line = r->first_line, .source = r->field[0], .date = r->field[1],
                              .model = r->field[2], .hardware = r->field[3], .engine = r->field[4],
                              .metric = r->field[5], .condition = r->field[6], .unit = r->field[8],
                              .url = r->field[9] };
    return read_value(r, out);
}

/* What is claimed, without how much. */
static int compare_claims(const void *a, const void *b) {
    const cedar_published *x = *(const cedar_published *const *)a, *y = *(const cedar_published *const *)b;
    const char *const of_x[] = { x->model, x->hardware, x->engine, x->metric, x->condition, x->source, x->date },
                *const of_y[] = { y->model, y->hardware, y->engine, y->metric, y->condition, y->source, y->date };
    for (size_t i = 0; i < sizeof of_x / sizeof *of_x; i++) {
        int d = strcmp(of_x[i], of_y[i]);
        if (d) return d;
    }
    return 0;
}

static int compare_fully(const void *a, const void *b) {
    const cedar_published *x = *(const cedar_published *const *)a, *y = *(const cedar_published *const *)b;
    int d = compare_claims(a, b);
    return d ? d : x->line < y->line ? -1 : x->line > y->line;
}

static cedar_status refuse_twins(const reader *r, const cedar_published_list *l) {
    const cedar_published **by = cedar_calloc(l->count + 1, sizeof *by);
    cedar_status st = by ? CEDAR_OK : cedar_fail(r->err, CEDAR_E_OOM, "%s: no memory for its lines", r->path);
    for (size_t i = 0; i < l->count && !st; i++) by[i] = &l->rows[i];
    if (!st) qsort(by, l->count, sizeof *by, compare_fully);
    for (size_t i = 1; i < l->count && !st; i++)
        if (compare_claims(&by[i - 1], &by[i]) == 0)
            st = cedar_fail(r->err, CEDAR_E_FORMAT, "%s:%d: claims the same as line %d: %s, \"%.60s\"", r->path,
                            by[i]->line, by[i - 1]->line, by[i]->metric, by[i]->condition);
    cedar_free(by);
    return st;
}

static cedar_status read_rows(reader *r, cedar_published_list *l) {
    cedar_status st = read_heading(r);
    size_t room = 0;
    while (!st && *r->at) {
        st = read_line(r);
        if (st || (r->count == 1 && !*r->field[0])) continue;   /* a blank line */
        if (l->count == room) {
            cedar_published *grown = cedar_realloc(l->rows, room = room ? 2 * room : 64, sizeof *grown);
            if (!grown) return cedar_fail(r->err, CEDAR_E_OOM, "%s: no memory for its lines", r->path);
            l->rows = grown;
        }
        st = make_row(r, (int64_t)l->count + 1, &l->rows[l->count]);
        if (!st) l->count++;
    }
    if (!st && l->count == 0)
        st = cedar_fail(r->err, CEDAR_E_FORMAT, "%s: has a heading and no line below it", r->path);
    return st ? st : refuse_twins(r, l);
}

cedar_status cedar_published_load(const char *path, cedar_published_list **out, cedar_err *err) {
    size_t bytes = 0;
    *out = NULL;
    cedar_published_list *l = cedar_calloc(1, sizeof *l);
    if (!l) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its lines", path);
    cedar_status st = cedar_file_read(path, FILE_BYTES_MAX, &l->text, &bytes, err);
    if (!st && strlen(l->text) != bytes)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: byte %zu is 0; a CSV file is text", path, strlen(l->text) + 1);
    reader r = { .path = path, .at = l->text, .line = 1, .err = err };
    if (!st) st = read_rows(&r, l);
    if (st) cedar_published_free(l);
    else *out = l;
    return st;
}

void cedar_published_free(cedar_published_list *l) {
    if (!l) return;
    cedar_free(l->rows);
    cedar_free(l->text);
    cedar_free(l);
}
