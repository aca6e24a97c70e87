/* Owns the reader of Mooncake rows: one JSON object per request, ids of 512-token blocks, times in milliseconds. Rows
 * with a session_id (AIPerf's extension) form sessions of several turns; any other row is a session of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "traces/traces_int.h"

#define BLOCK_TOKENS 512
#define ROWS_MAX ((size_t)1 << 26)

static bool probe(const json_t *doc) {
    return json_object_get(doc, "input_length") != NULL;
}

/* --- one row ----------------------------------------------------------------------------------------------------- */

/* Session ids are strings or integers; integers are kept as their decimal text. */
static cedar_status read_session(traces_load *l, const json_t *o, const char *where, const char **out,
                                 cedar_err *err) {
    const json_t *v = json_object_get(o, "session_id");
    *out = NULL;
    if (!v || json_is_null(v)) return CEDAR_OK;
    if (!json_is_integer(v)) return traces_name_get(l, o, where, "session_id", out, err);
    char text[24];
    int n = snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    *out = traces_arena_string(l->arena, text, (size_t)n);
    return *out ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: no memory for \"session_id\"", where);
}

static cedar_status check_length(const cedar_turn *t, const char *where, cedar_err *err) {
    int64_t n = t->block_count, in = t->in_recorded;
    if (in <= n * BLOCK_TOKENS && in > (n - 1) * BLOCK_TOKENS) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"input_length\" %lld does not fit %lld \"hash_ids\" of %d tokens "
                      "each; it needs %lld", where, (long long)in, (long long)n, BLOCK_TOKENS,
                      (long long)((in + BLOCK_TOKENS - 1) / BLOCK_TOKENS));
}

static cedar_status read_row(traces_load *l, const json_t *o, const char *where, traces_row *row, cedar_err *err) {
    cedar_turn *t = &row->turn;
    const json_t *ids = json_object_get(o, "hash_ids");
    t->ttft_ns = t->think_ns = -1;
    t->model = -1;
    if (json_object_get(o, "text_input"))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"text_input\" rows have no token counts; give input_length and "
                          "hash_ids instead", where);
    cedar_status st = traces_time_get(o, where, "timestamp", NS_PER_MS, START_S_MAX, &t->t_ns, &row->has_t, err);
    if (!st) st = traces_time_get(o, where, "delay", NS_PER_MS, SPAN_S_MAX, &t->delay_ns, &row->has_delay, err);
    if (!st) st = traces_tokens_get(o, where, "input_length", true, &t->in_recorded, err);
    if (!st) st = traces_tokens_get(o, where, "output_length", true, &t->out_tokens, err);
    if (!st && ids && !json_is_null(ids)) {
        st = traces_ids_get(l, o, where, t, err);
        if (!st) st = check_length(t, where, err);
    }
    if (!st && !row->has_t && !row->session)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"timestamp\" is missing", where);
    t->in_tokens = t->in_recorded ? t->in_recorded : 1;
    return st;
}

static cedar_status keep_row(traces_load *l, const traces_row *row, cedar_err *err) {
    if (l->row_count >= ROWS_MAX)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "%s: more than %zu rows in one file", l->name, ROWS_MAX);
    void *p = l->rows;
    cedar_status st = traces_grow(&p, &l->row_room, l->row_count + 1, sizeof *l->rows, err);
    if (st) return st;
    l->rows = p;
    l->rows[l->row_count] = *row;
    l->rows[l->row_count].index = l->row_count;
    l->row_count++;
    return CEDAR_OK;
}

static cedar_status document(traces_load *l, const json_t *doc, cedar_err *err) {
    char where[WHERE_BYTES];
    traces_row row = { .line = l->line };
    snprintf(where, sizeof where, "%.300s:%d", l->name, l->line);
    cedar_status st = read_session(l, doc, where, &row.session, err);
    if (!st) st = read_row(l, doc, where, &row, err);
    if (st == CEDAR_E_FORMAT && row.session) {
        /* A session with a hole would be another session: the row stays as a mark, and file_end leaves the session
         * out and counts it once. */
        row.broken = traces_arena_string(l->arena, err->msg, strlen(err->msg));
        st = row.broken ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: no memory for a message", where);
    }
    return st ? st : keep_row(l, &row, err);
}

/* --- sessions ---------------------------------------------------------------------------------------------------- */

/* Rows of one session: rows[first .. first + count) of the array sorted by session. */
typedef struct group {
    size_t first, count, index; /* index: position of its first row in the file */
} group;

static int by_session(const void *a, const void *b) {
    const traces_row *x = a, *y = b;
    if (x->session && y->session) {
        int d = strcmp(x->session, y->session);
        if (d) return d;
    } else if (x->session || y->session) {
        return x->session ? 1 : -1;
    }
    return x->index < y->index ? -1 : x->index > y->index;
}

static int by_index(const void *a, const void *b) {
    const group *x = a, *y = b;
    return x->index < y->index ? -1 : x->index > y->index;
}

static bool same_session(const traces_row *a, const traces_row *b) {
    return a->session && b->session && !strcmp(a->session, b->session);
}

/* Start of a row whose session gives a delay instead of a timestamp. */
static cedar_status place_row(const traces_load *l, const traces_row *row, uint32_t k, cedar_turn *turns,
                              cedar_err *err) {
    cedar_turn *t = &turns[k];
    if (!row->has_t && !k) t->t_ns = 0;
    if (!row->has_t && k) {
        if (!row->has_delay)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: a later turn of a session needs \"timestamp\" or \"delay\"",
                              l->name, row->line);
        t->t_ns = t[-1].t_ns + t[-1].api_ns + row->turn.delay_ns;
    }
    if (t->t_ns > START_S_MAX * NS_PER_S)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: the delays of the session add up to more than %lld seconds",
                          l->name, row->line, START_S_MAX);
    if (k && t->t_ns < t[-1].t_ns)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: \"timestamp\" is %lld ms, before the %lld ms of the previous "
                          "row of its session", l->name, row->line, (long long)(t->t_ns / NS_PER_MS),
                          (long long)(t[-1].t_ns / NS_PER_MS));
    return CEDAR_OK;
}

/* Sessions without an id of their own are called after their place: "file:line". */
static const char *group_name(traces_load *l, const traces_row *row) {
    if (row->session) return row->session;
    const char *slash = strrchr(l->name, '/'), *base = slash ? slash + 1 : l->name;
    size_t stem = strcspn(base, ".");
    char text[NAME_BYTES_MAX];
    int n = snprintf(text, sizeof text, "%.*s:%d", stem < 200 ? (int)stem : 200, base, row->line);
    return traces_arena_string(l->arena, text, (size_t)n);
}

static cedar_status add_group(traces_load *l, const group *g, cedar_err *err) {
    const traces_row *rows = &l->rows[g->first];
    cedar_stream *s = traces_arena_alloc(l->arena, 1, sizeof *s);
    cedar_turn *turns = traces_arena_alloc(l->arena, g->count, sizeof *turns);
    const char *name = group_name(l, rows);
    if (!s || !turns || !name) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu rows", l->name, g->count);
    if (g->count > TURNS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: the session has %zu rows, at most %zu are allowed", l->name,
                          rows->line, g->count, TURNS_MAX);
    for (uint32_t k = 0; k < g->count; k++) {
        turns[k] = rows[k].turn;
        cedar_status st = place_row(l, &rows[k], k, turns, err);
        if (st) return st;
    }
    *s = (cedar_stream){ .id = "", .turns = turns, .turn_count = (uint32_t)g->count, .spawn_turn = -1,
                         .join_turn = -1 };
    traces_stream_times(s);
    for (uint32_t k = 1; k < g->count; k++)
        if (rows[k].has_delay) turns[k].delay_ns = rows[k].turn.delay_ns;
    cedar_trace t = { .id = name, .file = l->name, .line = rows->line, .ids_global = true, .id_space = l->file_space,
                      .block_tokens = BLOCK_TOKENS, .streams = s, .stream_count = 1 };
    return traces_add(l, &t, err);
}

/* The first broken row of a session, as an error. */
static cedar_status check_group(const traces_load *l, const group *g, cedar_err *err) {
    for (size_t k = 0; k < g->count; k++) {
        const char *broken = l->rows[g->first + k].broken;
        if (broken) return cedar_fail(err, CEDAR_E_FORMAT, "%s", broken);
    }
    return CEDAR_OK;
}

/* Groups the sorted rows; groups come out in the order of their first rows. */
static size_t make_groups(const traces_load *l, group *groups) {
    size_t n = 0;
    for (size_t i = 0; i < l->row_count; i++) {
        if (i && same_session(&l->rows[i - 1], &l->rows[i])) groups[n - 1].count++;
        else groups[n++] = (group){ i, 1, l->rows[i].index };
    }
    qsort(groups, n, sizeof *groups, by_index);
    return n;
}

static cedar_status file_end(traces_load *l, cedar_err *err) {
    if (!l->row_count) return CEDAR_OK;
    group *groups = cedar_calloc(l->row_count, sizeof *groups);
    if (!groups) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu rows", l->name, l->row_count);
    l->file_space = l->space_next++;
    qsort(l->rows, l->row_count, sizeof *l->rows, by_session);
    size_t n = make_groups(l, groups);
    cedar_status st = CEDAR_OK;
    for (size_t i = 0; !st && i < n && !traces_full(l); i++) {
        st = check_group(l, &groups[i], err);
        if (!st) st = add_group(l, &groups[i], err);
        if (st) st = traces_broken(l, st, err);
    }
    cedar_free(groups);
    return st;
}

const traces_reader traces_mooncake = { CEDAR_TRACE_MOONCAKE, "mooncake", probe, document, file_end };
