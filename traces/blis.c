/* Owns the reader of BLIS TraceV2: a header in a small part of YAML and a table with times in microseconds. The header
 * is a file beside the table (NAME.yaml and NAME.csv), or stands in front of it with a line "---" between. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "traces/traces_int.h"

/* --- header ------------------------------------------------------------------------------------------------------ */

typedef struct header {
    bool version, unit; /* seen */
} header;

/* Value of a line behind its key: blanks, a comment and quotes taken off. */
static void clean_value(char *v) {
    size_t n;
    char quote = v[0] == '"' || v[0] == '\'' ? v[0] : 0;
    if (quote) {
        char *close = strchr(v + 1, quote);
        size_t gap = close ? strspn(close + 1, " \t") : 0;
        if (close && (!close[1 + gap] || (gap && close[1 + gap] == '#'))) {
            *close = 0;
            memmove(v, v + 1, strlen(v));
            return;
        }
    }
    char *comment = strstr(v, " #");
    if (comment) *comment = 0;
    for (n = strlen(v); n && (v[n - 1] == ' ' || v[n - 1] == '\t'); n--) v[n - 1] = 0;
}

static bool one_of(const char *value, const char *const *known) {
    for (; *known; known++)
        if (!strcmp(value, *known)) return true;
    return false;
}

static cedar_status set_value(traces_load *l, header *h, int line, const char *key, const char *value,
                              cedar_err *err) {
    static const char *const versions[] = { "2", "3", NULL }, *const units[] = { "us", "microseconds", NULL };
    static const char *const growths[] = { "", "accumulate", NULL };
    static const char *const modes[] = { "real", "generated", "replayed", NULL };
    static const struct { const char *key; const char *const *known; const char *text; } rules[] = {
        { "trace_version", versions, "2 or 3" },
        { "time_unit", units, "us or microseconds" },
        { "session_context_growth", growths, "accumulate or empty" },
        { "mode", modes, "real, generated or replayed" },
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!strcmp(key, rules[i].key) && !one_of(value, rules[i].known))
            return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: \"%s\" is \"%.40s\", known are %s", l->name, line, key,
                              value,
                              rules[i].text);
    h->version |= !strcmp(key, "trace_version");
    h->unit |= !strcmp(key, "time_unit");
    if (!strcmp(key, "session_context_growth")) l->accumulate = *value;
    return CEDAR_OK;
}

/* One line of the header. Only keys without indentation matter; what lies below them says nothing about requests. */
static cedar_status header_line(traces_load *l, header *h, int line, char *text, cedar_err *err) {
    size_t indent = strspn(text, " ");
    char *p = text + indent;
    if (!*p || *p == '#') return CEDAR_OK;
    char *colon = strchr(p, ':');
    if (!colon || colon == p || (colon[1] && colon[1] != ' ') || *p == '-' || *p == '\t')
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a line of the header must be \"key: value\", not \"%.40s\"",
                          l->name, line, text);
    if (indent) return CEDAR_OK;
    *colon = 0;
    char *value = colon + 1 + strspn(colon + 1, " ");
    clean_value(value);
    return set_value(l, h, line, p, value, err);
}

cedar_status traces_blis_header(traces_load *l, const char *p, const char *end, int line, cedar_err *err) {
    header h = { 0 };
    char text[512];
    if (end - p >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) p += 3;
    for (; p < end; line++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((eol ? eol : end) - p);
        if (n >= sizeof text)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a line of the header is longer than %zu bytes", l->name,
                              line,
                              sizeof text - 1);
        memcpy(text, p, n);
        if (n && text[n - 1] == '\r') n--;
        text[n] = 0;
        if (strlen(text) != n)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a line of the header holds a zero byte", l->name, line);
        cedar_status st = header_line(l, &h, line, text, err);
        if (st) return st;
        p = eol ? eol + 1 : end;
    }
    if (!h.version || !h.unit)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the header lacks \"%s\"", l->name,
                          h.version ? "time_unit" : "trace_version");
    return CEDAR_OK;
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

enum { REQUEST, SESSION, ROUND, GROUP, PREFIX, INPUT, OUTPUT, MODEL, ARRIVAL, FIRST, LAST, THINK };

static const traces_column columns[] = {
    [REQUEST] = { "request_id", NULL, true },
    [SESSION] = { "session_id", NULL, false },
    [ROUND] = { "round_index", NULL, false },
    [GROUP] = { "prefix_group", NULL, false },
    [PREFIX] = { "prefix_length", NULL, false },
    [INPUT] = { "input_tokens", NULL, true },
    [OUTPUT] = { "output_tokens", NULL, true },
    [MODEL] = { "model", NULL, false },
    [ARRIVAL] = { "arrival_time_us", NULL, true },
    [FIRST] = { "first_chunk_time_us", NULL, false },
    [LAST] = { "last_chunk_time_us", NULL, false },
    [THINK] = { "think_time_us", NULL, false },
};

/* 0 stands for "not recorded" in the times of chunks and of thinking. */
static cedar_status read_times(const traces_csv *csv, traces_row *row, cedar_err *err) {
    cedar_turn *t = &row->turn;
    int64_t first = 0, last = 0, think = 0;
    bool present;
    cedar_status st = traces_csv_time(csv, ARRIVAL, NS_PER_US, START_S_MAX, &t->t_ns, &row->has_t, err);
    if (!st) st = traces_csv_time(csv, FIRST, NS_PER_US, START_S_MAX, &first, &present, err);
    if (!st) st = traces_csv_time(csv, LAST, NS_PER_US, START_S_MAX, &last, &present, err);
    if (!st) st = traces_csv_time(csv, THINK, NS_PER_US, SPAN_S_MAX, &think, &present, err);
    if (st) return st;
    if ((first && first < t->t_ns) || (last && last < first))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: arrival, first and last chunk must not run backwards: %lld, %lld, "
                          "%lld us", csv->where, (long long)(t->t_ns / NS_PER_US), (long long)(first / NS_PER_US),
                          (long long)(last / NS_PER_US));
    if ((first > last ? first : last) - t->t_ns > SPAN_S_MAX * NS_PER_S)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the request takes more than %lld seconds", csv->where, SPAN_S_MAX);
    if (first) t->ttft_ns = first - t->t_ns;
    t->has_api = last > 0;
    if (last > t->t_ns) t->api_ns = last - t->t_ns;
    row->has_delay = think > 0;
    t->delay_ns = think;
    return CEDAR_OK;
}

static cedar_status record(traces_load *l, const traces_csv *csv, cedar_err *err) {
    traces_row row = { .line = l->line, .turn = { .ttft_ns = -1, .think_ns = -1, .model = -1 } };
    cedar_turn *t = &row.turn;
    uint32_t prefix = 0, input = 0;
    cedar_status st = traces_csv_name(l, csv, SESSION, &row.session, err);
    if (!st) st = traces_csv_int(csv, ROUND, INT32_MAX, &row.round, NULL, err);
    if (!st) st = traces_csv_name(l, csv, GROUP, &row.group, err);
    if (!st) st = traces_csv_name(l, csv, MODEL, &row.model, err);
    if (!st) st = traces_csv_tokens(csv, PREFIX, &prefix, err);
    if (!st) st = traces_csv_tokens(csv, INPUT, &input, err);
    if (!st) st = traces_csv_tokens(csv, OUTPUT, &t->out_tokens, err);
    if (!st) st = read_times(csv, &row, err);
    if (!st && (int64_t)prefix + input > TOKENS_MAX)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: the prompt has %lld tokens, at most %lld are allowed", csv->where,
                        (long long)prefix + input, (long long)TOKENS_MAX);
    row.group_tokens = row.group ? prefix : 0;
    t->in_recorded = prefix + input;
    t->in_tokens = t->in_recorded ? t->in_recorded : 1;
    return traces_row_done(l, &row, st, err);
}

/* --- sessions ---------------------------------------------------------------------------------------------------- */

/* The group's blocks come first, by number in the group; they are the same in every session of the file. The ids of
 * what follows are set apart by their top bit. */
static void group_ids(const traces_row *row, int64_t *ids, uint32_t count) {
    uint64_t key = cedar_rng_key(0, row->group);
    for (uint32_t i = 0; i < count; i++) ids[i] = (int64_t)(cedar_rng_at(key, i) >> 2);
}

static cedar_status make_ids(traces_load *l, const traces_row *rows, size_t count, cedar_turn *turns, const char *where,
                             cedar_err *err) {
    /* Unique in the file: sessions count from the index of their first row. */
    int64_t next = (int64_t)1 << 62 | (int64_t)rows->index << 36;
    if (count == 1 && !rows->group) return CEDAR_OK; /* shares nothing */
    uint64_t *keep = cedar_calloc(count, sizeof *keep);
    if (!keep) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu rounds", where, count);
    /* Rounds that accumulate repeat what was asked and got; one with a shorter prompt was compacted and does not. */
    for (size_t k = 1; l->accumulate && k < count; k++) {
        uint64_t known = (uint64_t)turns[k - 1].in_tokens + turns[k - 1].out_tokens;
        keep[k] = turns[k].in_tokens >= known ? known : 0;
    }
    cedar_status st = traces_ids_from_prefix(l, where, turns, keep, (uint32_t)count, &next, err);
    for (size_t k = 0; !st && k < count; k++) {
        uint32_t n = rows[k].group_tokens / HASH_BLOCK_TOKENS;
        if (!n) continue;
        st = traces_ids_made(l, where, turns[k].block_count, err);
        int64_t *ids = st ? NULL : traces_arena_alloc(l->arena, turns[k].block_count, sizeof *ids);
        if (!st && !ids) st = cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %u block ids", where,
                                         turns[k].block_count);
        if (st) break;
        memcpy(ids, turns[k].block_ids, turns[k].block_count * sizeof *ids);
        group_ids(&rows[k], ids, n);
        turns[k].block_ids = ids;
    }
    cedar_free(keep);
    return st;
}

static cedar_status session(traces_load *l, const traces_row *rows, size_t count, cedar_err *err) {
    cedar_trace t;
    char where[WHERE_BYTES];
    snprintf(where, sizeof where, "%.300s:%d", l->name, rows->line);
    cedar_status st = traces_rows_trace(l, rows, count, &t, err);
    if (!st) st = make_ids(l, rows, count, t.streams->turns, where, err);
    if (st) return st;
    t.ids_global = true;
    t.id_space = l->file_space;
    t.block_tokens = HASH_BLOCK_TOKENS;
    return traces_add(l, &t, err);
}

/* Files beside a table: NAME.yaml or NAME.yml for NAME.csv. */
static cedar_status read_beside(traces_load *l, bool *found, cedar_err *err) {
    static const char *const tails[] = { ".yaml", ".yml" };
    size_t n = strlen(l->name);
    *found = false;
    if (!l->from_disk || n < 4 || strcmp(l->name + n - 4, ".csv")) return CEDAR_OK;
    for (size_t i = 0; i < 2 && !*found; i++) {
        char *text = NULL, *path = traces_arena_alloc(l->arena, n + 2, 1);
        size_t bytes = 0;
        if (!path) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for the name of its header", l->name);
        snprintf(path, n + 2, "%.*s%s", (int)n - 4, l->name, tails[i]);
        FILE *f = fopen(path, "rb");
        if (!f) continue;
        fclose(f);
        *found = true;
        cedar_status st = traces_file_read(path, &l->sha, &text, &bytes, err);
        const char *table = l->name;
        l->name = path;
        if (!st) st = traces_blis_header(l, text, text + bytes, 1, err);
        l->name = table;
        l->corpus->bytes_read += bytes;
        cedar_free(text);
        if (st) return st;
    }
    return CEDAR_OK;
}

static cedar_status file_end(traces_load *l, cedar_err *err) {
    bool found;
    cedar_status st = read_beside(l, &found, err);
    if (st) return traces_broken(l, st, err);
    return traces_rows_end(l, err);
}

const traces_reader traces_blis = { .format = CEDAR_TRACE_BLIS, .columns = columns,
                                    .column_count = sizeof columns / sizeof *columns, .record = record,
                                    .file_end = file_end, .session = session };
