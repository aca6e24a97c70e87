/* Reading AIPerf's per-request records. */
#include "reports/aiperf.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { WHERE_BYTES = 200 };

/* Far more than any record has, and small enough not to take a machine down. */
static const size_t LINE_BYTES_MAX = (size_t)64 << 20;

/* Times must fit int64 nanoseconds with room for sums: about 146 years. */
static const int64_t NS_MAX = (int64_t)1 << 62;

/* --- metrics ------------------------------------------------------------------------------------------------------ */

typedef struct unit {
    const char *name;
    double scale;       /* to ns, or to tokens */
} unit;

static const unit time_units[] = { { "ms", 1e6 }, { "s", 1e9 }, { "us", 1e3 }, { "ns", 1 }, { NULL, 0 } };
static const unit token_units[] = { { "tokens", 1 }, { "token", 1 }, { NULL, 0 } };

static cedar_status find_unit(const json_t *v, const char *where, const char *key, const unit *units, double *scale,
                              cedar_err *err) {
    if (!json_is_string(v))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the unit of \"%s\" must be a string such as \"%s\"", where, key,
                          units->name);
    const char *name = json_string_value(v);
    for (const unit *u = units; u->name; u++)
        if (!strcmp(u->name, name)) {
            *scale = u->scale;
            return CEDAR_OK;
        }
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" has the unit \"%.40s\"; known are %s", where, key, name,
                      units == time_units ? "ns, us, ms and s" : "tokens");
}

/* Value in ns or tokens; *found is false when the metric is absent or null. Plain numbers are in the first unit. */
static cedar_status metric(const cedar_json *metrics, const char *where, const char *key, const unit *units,
                           bool *found, double *out, cedar_err *err) {
    const json_t *v = json_object_get(metrics, key);
    double scale = units->scale;
    *found = false;
    if (json_is_object(v)) {
        const json_t *name = json_object_get(v, "unit");
        cedar_status st = name ? find_unit(name, where, key, units, &scale, err) : CEDAR_OK;
        if (st) return st;
        v = json_object_get(v, "value");
        if (!v) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" has no \"value\"", where, key);
    }
    if (!v || json_is_null(v)) return CEDAR_OK;
    if (!json_is_number(v))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" must be a number or {\"value\": number, \"unit\": text}",
                          where, key);
    *found = true;
    *out = json_number_value(v) * scale;
    return CEDAR_OK;
}

/* Time in whole ns; -1 when absent or negative, since a negative latency is no measurement. */
static cedar_status metric_ns(const cedar_json *metrics, const char *where, const char *key, bool *found, int64_t *out,
                              cedar_err *err) {
    double ns = 0;
    cedar_status st = metric(metrics, where, key, time_units, found, &ns, err);
    if (st) return st;
    if (*found && !(fabs(ns) < (double)NS_MAX))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is %g s, which no request can take", where, key, ns / 1e9);
    *out = *found && ns >= 0 ? llround(ns) : -1;
    return CEDAR_OK;
}

static cedar_status metric_tokens(const cedar_json *metrics, const char *where, const char *key, bool *found,
                                  uint32_t *out, cedar_err *err) {
    double n = 0;
    cedar_status st = metric(metrics, where, key, token_units, found, &n, err);
    if (st || !*found) return st;
    if (!(n >= 0 && n <= UINT32_MAX) || n != floor(n))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is %g; it must be a whole number of tokens from 0 to %u",
                          where, key, n, UINT32_MAX);
    *out = (uint32_t)n;
    return CEDAR_OK;
}

/* Within a millionth and a nanosecond of what the times say: more is another definition, not rounding. */
static bool itl_agrees(const aiperf_record *r, double itl_ns) {
    double expected = (double)(r->latency_ns - r->ttft_ns) / (double)(r->out_tokens - 1);
    return fabs(itl_ns - expected) <= 1 + 1e-6 * fabs(expected);
}

static cedar_status read_metrics(const cedar_json *doc, const char *at, aiperf_record *r, cedar_err *err) {
    char where[WHERE_BYTES + 16];
    const cedar_json *m;
    bool in = false, out = false, ttft = false, latency = false, itl = false;
    double itl_ns = 0;
    snprintf(where, sizeof where, "%s: metrics", at);
    r->ttft_ns = r->latency_ns = -1;
    if (r->failed) return CEDAR_OK;     /* what a failed request measured never counts */
    cedar_status st = cedar_json_object(doc, at, "metrics", &m, err);
    if (!st) st = metric_ns(m, where, "time_to_first_token", &ttft, &r->ttft_ns, err);
    if (!st) st = metric_ns(m, where, "request_latency", &latency, &r->latency_ns, err);
    if (!st) st = metric(m, where, "inter_token_latency", time_units, &itl, &itl_ns, err);
    if (!st) st = metric_tokens(m, where, "input_sequence_length", &in, &r->in_tokens, err);
    if (!st) st = metric_tokens(m, where, "output_sequence_length", &out, &r->out_tokens, err);
    if (st) return st;
    const char *missing = !in ? "input_sequence_length" : !out ? "output_sequence_length" : "request_latency";
    if (!in || !out || !latency) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is missing", where, missing);
    if (itl && r->out_tokens >= 2 && r->ttft_ns >= 0 && r->latency_ns >= 0) r->itl_differs = !itl_agrees(r, itl_ns);
    return CEDAR_OK;
}

/* --- metadata and error ------------------------------------------------------------------------------------------- */

/* Text of an optional field; `otherwise` when absent or null. */
static cedar_status text_of(const cedar_json *o, const char *where, const char *key, const char *otherwise,
                            const char **out, cedar_err *err) {
    *out = otherwise;
    return cedar_json_has(o, key) ? cedar_json_string(o, where, key, out, err) : CEDAR_OK;
}

static cedar_status int_of(const cedar_json *o, const char *where, const char *key, int64_t hi, int64_t otherwise,
                           int64_t *out, cedar_err *err) {
    *out = otherwise;
    return cedar_json_has(o, key) ? cedar_json_int(o, where, key, 0, hi, out, err) : CEDAR_OK;
}

static cedar_status read_metadata(const cedar_json *doc, const char *at, aiperf_record *r, cedar_err *err) {
    char where[WHERE_BYTES + 16];
    const cedar_json *m;
    int64_t turn = 0;
    snprintf(where, sizeof where, "%s: metadata", at);
    cedar_status st = cedar_json_object(doc, at, "metadata", &m, err);
    if (!st) st = cedar_json_int(m, where, "request_start_ns", 0, NS_MAX, &r->start_ns, err);
    if (!st) st = cedar_json_int(m, where, "request_end_ns", 0, NS_MAX, &r->end_ns, err);
    if (!st) st = int_of(m, where, "turn_index", INT32_MAX, 0, &turn, err);
    if (!st) st = int_of(m, where, "session_num", INT64_MAX, -1, &r->session_num, err);
    if (!st) st = text_of(m, where, "conversation_id", "", &r->conversation, err);
    if (!st) st = text_of(m, where, "x_correlation_id", "", &r->correlation, err);
    if (!st) st = text_of(m, where, "root_correlation_id", "", &r->root, err);
    if (!st) st = text_of(m, where, "benchmark_phase", "profiling", &r->phase, err);
    if (!st && cedar_json_has(m, "was_cancelled"))
        st = cedar_json_bool(m, where, "was_cancelled", &r->cancelled, err);
    if (st) return st;
    if (!r->phase[0]) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"benchmark_phase\" is empty", where);
    if (r->end_ns < r->start_ns)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"request_end_ns\" is %lld, before \"request_start_ns\" %lld",
                          where, (long long)r->end_ns, (long long)r->start_ns);
    r->turn = (int32_t)turn;
    return CEDAR_OK;
}

/* Cuts a text at n bytes, not within a character. */
static void add_cut(char *to, size_t room, const char *text) {
    size_t at = strlen(to), n = strlen(text);
    if (n >= room - at) {
        n = room - at - 1;
        while (n && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
    }
    memcpy(to + at, text, n);
    to[at + n] = 0;
}

static void add_part(char *to, size_t room, const char *separator, const char *text) {
    if (to[0]) add_cut(to, room, separator);
    add_cut(to, room, text);
}

/* {code, type, message}, any of which may be absent, or a plain text. */
static cedar_status read_error(const cedar_json *doc, const char *at, aiperf_record *r, cedar_err *err) {
    const json_t *e = json_object_get(doc, "error");
    r->failed = r->cancelled || (e && !json_is_null(e));
    if (!r->failed) return CEDAR_OK;
    if (json_is_string(e)) {
        add_cut(r->error, sizeof r->error, json_string_value(e));
    } else if (json_is_object(e)) {
        const json_t *code = json_object_get(e, "code");
        const char *type = json_string_value(json_object_get(e, "type"));
        const char *message = json_string_value(json_object_get(e, "message"));
        if (json_is_integer(code)) snprintf(r->error, sizeof r->error, "%lld", (long long)json_integer_value(code));
        if (type) add_part(r->error, sizeof r->error, " ", type);
        if (message) add_part(r->error, sizeof r->error, ": ", message);
    } else if (e && !json_is_null(e)) {
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"error\" must be null, a string or an object", at);
    }
    if (!r->error[0]) add_cut(r->error, sizeof r->error, r->cancelled ? "cancelled" : "failed without a message");
    return CEDAR_OK;
}

cedar_status aiperf_record_parse(const char *text, size_t bytes, const char *name, int line, aiperf_record *out,
                                 cedar_err *err) {
    char at[WHERE_BYTES];
    aiperf_record r = { 0 };
    *out = r;
    cedar_err why = { 0 };
    cedar_status st = cedar_json_parse(text, bytes, name, line, &r.doc, &why);
    if (st) return cedar_fail(err, st, "%.400s; each record is one line", why.msg);
    snprintf(at, sizeof at, "%.180s:%d", name, line);
    if (!json_is_object(r.doc)) st = cedar_fail(err, CEDAR_E_FORMAT, "%s: a record must be a JSON object", at);
    if (!st) st = read_metadata(r.doc, at, &r, err);
    if (!st) st = read_error(r.doc, at, &r, err);
    if (!st) st = read_metrics(r.doc, at, &r, err);
    if (st) aiperf_record_free(&r);
    else *out = r;
    return st;
}

void aiperf_record_free(aiperf_record *r) {
    if (r->doc) cedar_json_free(r->doc);
    *r = (aiperf_record){ 0 };
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

cedar_status aiperf_lines_open(aiperf_lines *l, FILE *file, const char *name, cedar_err *err) {
    *l = (aiperf_lines){ .file = file, .name = name };
    cedar_sha256_init(&l->hash);
    if (fseek(file, 0, SEEK_SET))
        return cedar_fail(err, CEDAR_E_IO, "%s: is read twice, so it must be a file on a disk: %s", name,
                          strerror(errno));
    return CEDAR_OK;
}

static cedar_status line_append(aiperf_lines *l, char c, cedar_err *err) {
    if (l->bytes == l->room) {
        size_t room = l->room ? 2 * l->room : 4096;
        char *grown = l->bytes < LINE_BYTES_MAX ? cedar_realloc(l->text, room, 1) : NULL;
        if (!grown)
            return l->bytes < LINE_BYTES_MAX
                       ? cedar_fail(err, CEDAR_E_OOM, "%s:%d: no memory for a line of %zu bytes", l->name, l->line,
                                    room)
                       : cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a line of more than %zu bytes is no record", l->name,
                                    l->line, LINE_BYTES_MAX);
        l->text = grown;
        l->room = room;
    }
    l->text[l->bytes++] = c;
    return CEDAR_OK;
}

/* One line with its end; no bytes at the end of the file. */
static cedar_status read_line(aiperf_lines *l, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    int c = EOF;
    l->bytes = 0;
    if (l->line == INT_MAX) return cedar_fail(err, CEDAR_E_FORMAT, "%s: has more than %d lines", l->name, INT_MAX);
    l->line++;
    errno = 0;
    while (!st && (c = getc_unlocked(l->file)) != EOF) {
        st = line_append(l, (char)c, err);
        if (c == '\n') break;
    }
    if (!st && c == EOF && ferror(l->file)) st = cedar_fail(err, CEDAR_E_IO, "%s: %s", l->name, strerror(errno));
    if (!st && l->bytes) cedar_sha256_add(&l->hash, l->text, l->bytes);
    return st;
}

static bool is_blank(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (!strchr(" \t\r\n", text[i]) || !text[i]) return false;
    return true;
}

cedar_status aiperf_lines_next(aiperf_lines *l, bool *more, cedar_err *err) {
    cedar_status st;
    do {
        st = read_line(l, err);
        *more = !st && l->bytes > 0;
    } while (*more && is_blank(l->text, l->bytes));
    while (*more && (l->text[l->bytes - 1] == '\n' || l->text[l->bytes - 1] == '\r')) l->bytes--;
    if (*more && l->line == 1 && l->bytes >= 2 && (unsigned char)l->text[0] == 0x1f &&
        (unsigned char)l->text[1] == 0x8b)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: is compressed; unpack it with gunzip first", l->name);
    return st;
}

void aiperf_lines_close(aiperf_lines *l) {
    cedar_free(l->text);
    l->text = NULL;
}
