/* Owns the pass over the text in front of the JSON parser: it finds where a document ends, checks the limits, and
 * takes the lists of block ids out.
 *
 * Ids are nine tenths of a trace. Parsed as JSON values each would cost an allocation and tens of bytes; here they go
 * from the text straight into the arena, and the parser sees `"hash_ids":7`, the number of the list. A document in
 * which any list is not plain (negative, fractional, malformed) is parsed as it stands, so that the reader can name
 * the place. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "traces/traces_int.h"

#define KEY "hash_ids"
#define KEY_BYTES (sizeof KEY - 1)

typedef struct scan {
    const char *copied;  /* everything before it is in l->text */
    size_t values, depth;
    bool plain;          /* every list so far could be taken out */
} scan;

static const char *skip_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static cedar_status append(traces_load *l, const char *text, size_t bytes, cedar_err *err) {
    void *p = l->text;
    cedar_status st = traces_grow(&p, &l->text_room, l->text_bytes + bytes, 1, err);
    if (st) return st;
    l->text = p;
    memcpy(l->text + l->text_bytes, text, bytes);
    l->text_bytes += bytes;
    return CEDAR_OK;
}

/* One integer as JSON writes it, in [0, 2^63). NULL when there is none. */
static const char *read_id(const char *p, const char *end, int64_t *out) {
    if (p == end || *p < '0' || *p > '9') return NULL;
    if (*p == '0' && p + 1 < end && p[1] >= '0' && p[1] <= '9') return NULL;
    int64_t x = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        int digit = *p - '0';
        if (x > (INT64_MAX - digit) / 10) return NULL;
        x = 10 * x + digit;
    }
    *out = x;
    return p;
}

/* Reads the list behind '[' into l->ids. *stop is one past ']', or NULL when the list is not plain. */
static cedar_status read_list(traces_load *l, const char *p, const char *end, size_t *count, const char **stop,
                              cedar_err *err) {
    size_t n = 0;
    *stop = NULL;
    *count = 0;
    p = skip_space(p, end);
    if (p < end && *p == ']') {
        *stop = p + 1;
        return CEDAR_OK;
    }
    while (n < IDS_MAX) {
        if (n == l->id_room) {
            void *grown = l->ids;
            cedar_status st = traces_grow(&grown, &l->id_room, n + 1, sizeof *l->ids, err);
            if (st) return st;
            l->ids = grown;
        }
        if (!(p = read_id(p, end, &l->ids[n]))) return CEDAR_OK;
        n++;
        p = skip_space(p, end);
        if (p == end) return CEDAR_OK;
        if (*p == ']') {
            *count = n;
            *stop = p + 1;
            return CEDAR_OK;
        }
        if (*p != ',') return CEDAR_OK;
        p = skip_space(p + 1, end);
    }
    return CEDAR_OK;
}

static cedar_status keep_list(traces_load *l, size_t count, cedar_err *err) {
    void *lists = l->lists;
    cedar_status st = traces_grow(&lists, &l->list_room, l->list_count + 1, sizeof *l->lists, err);
    if (st) return st;
    l->lists = lists;
    int64_t *values = traces_arena_alloc(l->arena, count, sizeof *values);
    if (!values) return cedar_fail(err, CEDAR_E_OOM, "%s:%d: no memory for %zu block ids", l->name, l->line, count);
    if (count) memcpy(values, l->ids, count * sizeof *values);
    l->lists[l->list_count++] = (traces_ids){ values, (uint32_t)count };
    return CEDAR_OK;
}

/* p is behind the key; moves over ": [ids]" and puts ":index" into the copy. */
static cedar_status lift(traces_load *l, scan *s, const char **at, const char *end, cedar_err *err) {
    const char *p = skip_space(*at, end);
    if (p == end || *p != ':') return CEDAR_OK; /* a value of this text, not a key */
    const char *open = skip_space(p + 1, end), *stop = NULL;
    size_t count = 0;
    if (open < end && *open == '[') {
        cedar_status st = read_list(l, open + 1, end, &count, &stop, err);
        if (st) return st;
    }
    if (!stop) {
        s->plain = false;
        return CEDAR_OK;
    }
    char number[24];
    int digits = snprintf(number, sizeof number, ":%zu", l->list_count);
    cedar_status st = keep_list(l, count, err);
    if (!st) st = append(l, s->copied, (size_t)(*at - s->copied), err);
    if (!st) st = append(l, number, (size_t)digits, err);
    s->copied = *at = stop;
    return st;
}

/* p is behind the opening quote. *stop is behind the closing one, NULL when there is none. */
static void scan_string(scan *s, const char *p, const char *end, const char **stop) {
    for (; p < end && *p != '"'; p++) {
        if (*p != '\\') continue;
        /* A key may be spelled with \u escapes; such documents are left to the parser entirely. */
        if (p + 1 < end && p[1] == 'u') s->plain = false;
        p++;
    }
    *stop = p < end ? p + 1 : NULL;
}

static cedar_status check_limits(const traces_load *l, const scan *s, const char *begin, const char *p,
                                 cedar_err *err) {
    if (s->depth > NEST_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: nested more than %d levels deep", l->name, l->line, NEST_MAX);
    if (s->values > VALUES_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: more than %zu values in one document", l->name, l->line,
                          VALUES_MAX);
    if ((size_t)(p - begin) > DOCUMENT_BYTES_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: one document is larger than %zu bytes", l->name, l->line,
                          DOCUMENT_BYTES_MAX);
    return CEDAR_OK;
}

cedar_status traces_scan(traces_load *l, const char *begin, const char *end, const char **stop, cedar_err *err) {
    scan s = { .copied = begin, .plain = true };
    l->text_bytes = l->list_count = 0;
    *stop = NULL;
    cedar_status st = CEDAR_OK;
    const char *p = begin;
    while (p < end) {
        char c = *p++;
        if (c == '"') {
            const char *text = p, *after;
            scan_string(&s, p, end, &after);
            if (!after) break;
            p = after;
            bool key = (size_t)(after - 1 - text) == KEY_BYTES && !memcmp(text, KEY, KEY_BYTES);
            if (key && s.plain && (st = lift(l, &s, &p, end, err))) return st;
        } else if (c == '{' || c == '[') {
            s.depth++;
            s.values++;
        } else if (c == ',') {
            s.values++;
        } else if (c == '}' || c == ']') {
            if (--s.depth == 0) {
                *stop = p;
                break;
            }
        } else {
            continue;
        }
        if ((st = check_limits(l, &s, begin, p, err))) return st;
    }
    l->lifted = s.plain && *stop;
    if (!*stop) return CEDAR_OK;
    return append(l, s.copied, (size_t)(*stop - s.copied), err);
}

cedar_status traces_parse(traces_load *l, const char *p, const char *stop, json_t **doc, cedar_err *err) {
    if (l->lifted && cedar_json_parse(l->text, l->text_bytes, l->name, l->line, doc, NULL) == CEDAR_OK) return CEDAR_OK;
    /* From the original: the positions in the message are those of the file. */
    l->lifted = false;
    return cedar_json_parse(p, (size_t)(stop - p), l->name, l->line, doc, err);
}
