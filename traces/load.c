/* Owns loading: paths to text, text to documents, documents to the reader of their format, and what happens to a
 * broken trace. The formats are a table; a new one is a file with a traces_reader and a line in that table. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "traces/traces_int.h"

static const traces_reader *const readers[] = {
    &traces_weka, &traces_mooncake, &traces_otel, &traces_tracelab, &traces_llmservingsim, &traces_aiperf,
    &traces_tracelab_csv, &traces_blis, &traces_azure, &traces_burstgpt, &traces_timed,
};
#define READER_COUNT (sizeof readers / sizeof *readers)

bool traces_full(const traces_load *l) {
    return l->opts.traces_max && l->corpus->trace_count >= l->opts.traces_max;
}

cedar_status traces_add(traces_load *l, const cedar_trace *t, cedar_err *err) {
    cedar_corpus *c = l->corpus;
    if (c->trace_count >= TRACES_MAX)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "%s: more than %zu sessions in one corpus", l->name, TRACES_MAX);
    void *p = c->traces;
    cedar_status st = traces_grow(&p, &l->trace_room, c->trace_count + 1u, sizeof *c->traces, err);
    if (st) return st;
    c->traces = p;
    cedar_trace *mine = &c->traces[c->trace_count];
    *mine = *t;
    if (l->opts.split_flattened) st = traces_split(l, mine, err);
    if (!st) st = traces_barriers(l, mine, err);
    if (!st) c->trace_count++;
    return st;
}

cedar_status traces_broken(traces_load *l, cedar_status st, cedar_err *err) {
    if (st != CEDAR_E_FORMAT || l->opts.strict) return st;
    if (l->corpus->skipped++ == 0) snprintf(l->corpus->skipped_first, sizeof l->corpus->skipped_first, "%s", err->msg);
    *err = (cedar_err){ 0 };
    return CEDAR_OK;
}

/* --- fields ------------------------------------------------------------------------------------------------------ */

static const json_t *field(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

static cedar_status missing(const char *where, const char *key, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is missing", where, key);
}

static cedar_status ids_from_array(traces_load *l, const json_t *v, const char *where, cedar_turn *turn,
                                   cedar_err *err) {
    size_t n = json_array_size(v);
    if (n > IDS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"hash_ids\" has %zu entries, at most %zu are allowed", where, n,
                          IDS_MAX);
    int64_t *ids = traces_arena_alloc(l->arena, n, sizeof *ids);
    if (!ids) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu block ids", where, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        if (!json_is_integer(x))
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"hash_ids\"[%zu] must be an integer", where, i);
        ids[i] = json_integer_value(x);
        if (ids[i] < 0)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"hash_ids\"[%zu] is %lld, ids must not be negative", where, i,
                              (long long)ids[i]);
    }
    turn->block_ids = ids;
    turn->block_count = (uint32_t)n;
    return CEDAR_OK;
}

cedar_status traces_ids_get(traces_load *l, const json_t *o, const char *where, cedar_turn *turn, cedar_err *err) {
    const json_t *v = field(o, "hash_ids");
    if (!v) return missing(where, "hash_ids", err);
    if (!l->lifted && json_is_array(v)) return ids_from_array(l, v, where, turn, err);
    if (!l->lifted || !json_is_integer(v) || json_integer_value(v) >= (json_int_t)l->list_count)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"hash_ids\" must be an array of integers", where);
    const traces_ids *list = &l->lists[json_integer_value(v)];
    turn->block_ids = list->values;
    turn->block_count = list->count;
    return CEDAR_OK;
}

cedar_status traces_time_get(const json_t *o, const char *where, const char *key, int64_t unit_ns, int64_t max_s,
                             int64_t *out, bool *present, cedar_err *err) {
    const json_t *v = field(o, key);
    *present = v;
    if (!v) return CEDAR_OK;
    if (!json_is_number(v)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" must be a number", where, key);
    int64_t max = max_s * (NS_PER_S / unit_ns);
    double x = json_number_value(v);
    if (!(x >= 0 && x <= (double)max))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is %g, allowed are 0 to %lld %s", where, key, x,
                          (long long)max, unit_ns == NS_PER_S ? "seconds" : "milliseconds");
    /* Whole units and fraction apart: the subtraction is exact, so that a decimal like 440412.123 keeps its digits. */
    double whole = floor(x);
    *out = (int64_t)whole * unit_ns + llround((x - whole) * (double)unit_ns);
    return CEDAR_OK;
}

cedar_status traces_tokens_get(const json_t *o, const char *where, const char *key, bool required, uint32_t *out,
                               cedar_err *err) {
    const json_t *v = field(o, key);
    if (!v) return required ? missing(where, key, err) : CEDAR_OK;
    if (!json_is_integer(v)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" must be an integer", where, key);
    int64_t x = json_integer_value(v);
    if (x < 0 || x > TOKENS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is %lld, allowed are 0 to %lld tokens", where, key,
                          (long long)x, (long long)TOKENS_MAX);
    *out = (uint32_t)x;
    return CEDAR_OK;
}

cedar_status traces_name_get(traces_load *l, const json_t *o, const char *where, const char *key, const char **out,
                             cedar_err *err) {
    const json_t *v = field(o, key);
    if (!v) return missing(where, key, err);
    if (!json_is_string(v)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" must be a string", where, key);
    size_t n = json_string_length(v);
    if (!n || n > NAME_BYTES_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" has %zu bytes, allowed are 1 to %zu", where, key, n,
                          NAME_BYTES_MAX);
    *out = traces_arena_string(l->arena, json_string_value(v), n);
    return *out ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: no memory for \"%s\"", where, key);
}

cedar_status traces_label_get(traces_load *l, const json_t *o, const char *where, const char *key, const char **out,
                              cedar_err *err) {
    const json_t *v = field(o, key);
    *out = NULL;
    if (!v) return CEDAR_OK;
    if (!json_is_integer(v)) return traces_name_get(l, o, where, key, out, err);
    char text[24];
    int n = snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    *out = traces_arena_string(l->arena, text, (size_t)n);
    return *out ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: no memory for \"%s\"", where, key);
}

cedar_status traces_stamp_get(const json_t *o, const char *where, const char *key, int64_t *out, bool *present,
                              cedar_err *err) {
    const json_t *v = field(o, key);
    *present = v;
    if (!v) return CEDAR_OK;
    const char *text = json_string_value(v);
    if (text && traces_stamp_parse(text, out)) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is \"%.40s\", it must be a date and time such as "
                      "2026-02-25T10:00:00.000000Z", where, key, text ? text : "not a string");
}

cedar_status traces_model_add(traces_load *l, const char *where, const char *name, size_t bytes, const char **names,
                              uint32_t *count, int32_t *out, cedar_err *err) {
    uint32_t i = 0;
    while (i < *count && strcmp(names[i], name)) i++;
    if (i == *count) {
        if (i == MODELS_MAX || bytes > NAME_BYTES_MAX)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: at most %zu models with names of at most %zu bytes are allowed",
                              where, MODELS_MAX, NAME_BYTES_MAX);
        names[i] = traces_arena_string(l->arena, name, bytes);
        if (!names[i]) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for a model's name", where);
        ++*count;
    }
    *out = (int32_t)i;
    return CEDAR_OK;
}

/* --- documents --------------------------------------------------------------------------------------------------- */

static const char *skip_blank(const char *p, const char *end, int *line) {
    for (; p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'); p++)
        if (*p == '\n') ++*line;
    return p;
}

static const char *line_end(const char *p, const char *end) {
    const char *e = memchr(p, '\n', (size_t)(end - p));
    return e ? e : end;
}

static cedar_status find_reader(traces_load *l, const json_t *doc, cedar_err *err) {
    for (size_t i = 0; i < READER_COUNT && !l->reader; i++) {
        if (!readers[i]->document) continue;
        bool wanted = l->opts.format == CEDAR_TRACE_AUTO ? readers[i]->probe(doc)
                                                          : readers[i]->format == l->opts.format;
        if (wanted) l->reader = readers[i];
    }
    if (l->reader) return CEDAR_OK;
    if (l->opts.format != CEDAR_TRACE_AUTO)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: %s is a table, not JSON", l->name, l->line,
                          cedar_trace_format_name(l->opts.format));
    return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: no known trace format: none of \"requests\" (weka), "
                      "\"input_length\" (mooncake), \"spans\" (otel), \"input_tokens_total\" (tracelab), "
                          "\"input_toks\" "
                      "or \"sub_requests\" (llmservingsim), \"turns\" or \"text\" (aiperf) is among its fields",
                          l->name,
                      l->line);
}

static cedar_status read_document(traces_load *l, const char *p, const char *stop, cedar_err *err) {
    json_t *doc = NULL;
    cedar_status st = traces_parse(l, p, stop, &doc, err);
    if (st) return st;
    st = find_reader(l, doc, err);
    if (!st) st = l->reader->document(l, doc, err);
    json_decref(doc);
    return st;
}

/* One document in [p, end), which holds nothing else but blanks. */
static cedar_status read_one(traces_load *l, const char *p, const char *end, const char *unit, cedar_err *err) {
    const char *stop;
    if (*p != '{')
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a trace is a JSON object and starts with '{', not with '%c'",
                          l->name, l->line, *p >= ' ' && *p < 127 ? *p : '?');
    cedar_status st = traces_scan(l, p, end, &stop, err);
    if (st) return st;
    if (!stop)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: the JSON object is not complete at the end of the %s", l->name,
                          l->line, unit);
    int line = l->line;
    const char *rest = skip_blank(stop, end, &line);
    if (rest != end) {
        line = l->line;
        for (const char *q = p; q < rest; q++) line += *q == '\n';
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: text after the end of the JSON object; several traces in one "
                          "file need one whole trace per line", l->name, line);
    }
    return read_document(l, p, stop, err);
}

/* Is the object that starts at p closed before end? */
static bool closed_before(const char *p, const char *end) {
    size_t depth = 0;
    for (; p < end; p++) {
        if (*p == '"') {
            for (p++; p < end && *p != '"'; p++) p += *p == '\\';
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if ((*p == '}' || *p == ']') && --depth == 0) {
            return true;
        }
    }
    return false;
}

/* Does the object that starts at p go on in the next line? A truncated line does not count: the next then starts an
 * object of its own. */
static bool spans_lines(const char *p, const char *end) {
    const char *eol = line_end(p, end);
    if (*p != '{' || closed_before(p, eol)) return false;
    int line = 0;
    const char *next = skip_blank(eol, end, &line);
    return next < end && *next != '{';
}

static cedar_status pretty_printed(const traces_load *l, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: the JSON object goes on in the next line; a file of several traces "
                      "needs each whole trace on one line (pretty-printed JSON: try `jq -c .`)", l->name, l->line);
}

static cedar_status read_lines(traces_load *l, const char *p, const char *end, cedar_err *err) {
    int line = l->line;
    while ((p = skip_blank(p, end, &line)) < end && !traces_full(l)) {
        const char *eol = line_end(p, end);
        l->line = line;
        cedar_status st = read_one(l, p, eol, "line", err);
        if (st) {
            /* The framing itself is wrong when an object goes on; skipping line after line would hide that. */
            if (st == CEDAR_E_FORMAT && spans_lines(p, end)) return pretty_printed(l, err);
            st = traces_broken(l, st, err);
        }
        if (st) return st;
        p = eol;
    }
    return CEDAR_OK;
}

static bool has_tail(const char *name, const char *tail) {
    size_t n = strlen(name), m = strlen(tail);
    if (n > 3 && !strcmp(name + n - 3, ".gz")) n -= 3;
    return n > m && !strncmp(name + n - m, tail, m);
}

/* A table is a file called .csv, or anything that is not JSON when the format given is a table. */
static bool is_table(const traces_load *l, char first) {
    if (has_tail(l->name, ".csv")) return first != '{';
    for (size_t i = 0; i < READER_COUNT; i++)
        if (readers[i]->format == l->opts.format) return readers[i]->columns && first != '{';
    return false;
}

/* "key: value" instead of columns in the first line that is not a comment. */
static bool has_header(const char *p, const char *end) {
    while (p < end && *p == '#') {
        p = line_end(p, end);
        if (p < end) p++;
    }
    while (p < end && *p != ':' && *p != ',' && *p != '\n') p++;
    return p < end && *p == ':';
}

/* A table, perhaps with the header of a BLIS trace and a line "---" in front of it. */
static cedar_status read_table(traces_load *l, const char *p, const char *end, cedar_err *err) {
    if (has_header(p, end)) {
        const char *q = p, *mark = NULL;
        int line = l->line;
        for (; q < end && !mark; q = q < end ? q + 1 : end, line++) {
            const char *eol = line_end(q, end);
            if (end - q >= 3 && !memcmp(q, "---", 3) && (eol - q == 3 || (eol - q == 4 && q[3] == '\r'))) mark = q;
            q = eol;
        }
        if (!mark) {
            cedar_status st = cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a header without a table; a line \"---\" stands "
                                         "between them, or the table is a .csv file beside the header", l->name,
                                             l->line);
            return traces_broken(l, st, err);
        }
        cedar_status st = traces_blis_header(l, p, mark, l->line, err);
        if (st) return traces_broken(l, st, err);
        l->line = line;
        l->from_disk = false;
        p = q;
    }
    return traces_csv_read(l, p, end, readers, READER_COUNT, err);
}

static cedar_status read_text(traces_load *l, const char *text, size_t bytes, cedar_err *err) {
    const char *p = text, *end = text + bytes;
    l->reader = NULL;
    l->row_count = 0;
    l->file_space = 0;
    l->ids_made = 0;
    l->accumulate = false;
    l->line = 1;
    if (bytes >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) p += 3; /* a byte order mark, as some editors write */
    p = skip_blank(p, end, &l->line);
    if (p == end) {
        cedar_status st = cedar_fail(err, CEDAR_E_FORMAT, "%s: holds no trace", l->name);
        return traces_broken(l, st, err);
    }
    cedar_status st;
    if (is_table(l, *p)) st = read_table(l, p, end, err);
    else if (!spans_lines(p, end)) st = read_lines(l, p, end, err);
    else if (has_tail(l->name, ".jsonl")) st = pretty_printed(l, err);
    else if ((st = read_one(l, p, end, "file", err))) st = traces_broken(l, st, err);
    if (!st && l->reader && l->reader->file_end) st = l->reader->file_end(l, err);
    return st;
}

/* --- corpora ----------------------------------------------------------------------------------------------------- */

static cedar_status load_begin(traces_load *l, const cedar_corpus_opts *opts, cedar_err *err) {
    *l = (traces_load){ .space_next = 1 };
    if (opts) l->opts = *opts;
    cedar_sha256_init(&l->sha);
    l->corpus = cedar_calloc(1, sizeof *l->corpus);
    if (l->corpus) l->corpus->arena = l->arena = traces_arena_new();
    return l->arena ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "no memory for a corpus of traces");
}

/* Frees the scratch memory; hands the corpus over, or frees it when st is a failure. */
static cedar_status load_end(traces_load *l, cedar_status st, cedar_corpus **out, cedar_err *err) {
    cedar_corpus *c = l->corpus;
    cedar_free(l->text);
    cedar_free(l->lists);
    cedar_free(l->ids);
    cedar_free(l->rows);
    if (!st && !c->trace_count) {
        if (c->skipped > 1)
            st = cedar_fail(err, CEDAR_E_FORMAT, "no usable trace, %u broken ones; the first: %s", c->skipped,
                            c->skipped_first);
        else
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s", c->skipped ? c->skipped_first : "no trace to load");
    }
    if (st) {
        cedar_corpus_free(c);
        return st;
    }
    cedar_sha256_hex(&l->sha, c->hash);
    *out = c;
    return CEDAR_OK;
}

/* The table of a BLIS header: NAME.csv for NAME.yaml. */
static const char *table_of(traces_load *l, const char *path) {
    size_t n = strlen(path), tail = n > 5 && !strcmp(path + n - 5, ".yaml") ? 5
                                  : n > 4 && !strcmp(path + n - 4, ".yml") ? 4 : 0;
    if (!tail) return traces_arena_string(l->arena, path, n);
    char *name = traces_arena_alloc(l->arena, n - tail + 5, 1);
    if (name) snprintf(name, n - tail + 5, "%.*s.csv", (int)(n - tail), path);
    return name;
}

static cedar_status load_file(traces_load *l, const char *path, cedar_err *err) {
    char *text = NULL;
    size_t bytes = 0;
    l->name = table_of(l, path);
    if (!l->name) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its name", path);
    cedar_status st = traces_file_read(l->name, &l->sha, &text, &bytes, err);
    if (st) return traces_broken(l, st, err);
    l->from_disk = true;
    l->corpus->bytes_read += bytes;
    st = read_text(l, text, bytes, err);
    cedar_free(text);
    return st;
}

static cedar_status load_path(traces_load *l, const char *path, cedar_err *err) {
    struct stat info;
    if (stat(path, &info) || !S_ISDIR(info.st_mode)) return load_file(l, path, err);
    char **paths = NULL;
    size_t count = 0;
    cedar_status st = traces_dir_list(path, &paths, &count, err);
    for (size_t i = 0; !st && i < count && !traces_full(l); i++) st = load_file(l, paths[i], err);
    traces_paths_free(paths, count);
    return st;
}

cedar_status cedar_corpus_load(const char *const *paths, size_t path_count, const cedar_corpus_opts *opts,
                               cedar_corpus **out, cedar_err *err) {
    traces_load l;
    cedar_err own = { 0 };
    err = err ? err : &own; /* traces_broken keeps the message */
    if (!path_count) return cedar_fail(err, CEDAR_E_ARG, "no trace file or directory was given");
    cedar_status st = load_begin(&l, opts, err);
    for (size_t i = 0; !st && i < path_count && !traces_full(&l); i++) st = load_path(&l, paths[i], err);
    return load_end(&l, st, out, err);
}

cedar_status cedar_corpus_parse(const char *text, size_t bytes, const char *name, const cedar_corpus_opts *opts,
                                cedar_corpus **out, cedar_err *err) {
    traces_load l;
    cedar_err own = { 0 };
    err = err ? err : &own;
    cedar_status st = load_begin(&l, opts, err);
    if (!st && !(l.name = traces_arena_string(l.arena, name, strlen(name))))
        st = cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its name", name);
    if (!st && bytes > FILE_BYTES_MAX)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: larger than the %zu bytes that one trace file may have", name,
                        FILE_BYTES_MAX);
    if (!st) {
        cedar_sha256_add(&l.sha, text, bytes);
        l.corpus->bytes_read = bytes;
        st = read_text(&l, text, bytes, err);
    }
    return load_end(&l, st, out, err);
}

void cedar_corpus_free(cedar_corpus *c) {
    if (!c) return;
    traces_arena_free(c->arena);
    cedar_free(c->traces);
    cedar_free(c);
}
