/* Owns rows: requests that stand one by one in a file and are put together into sessions when it ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "traces/traces_int.h"

#define ROWS_MAX ((size_t)1 << 26)

cedar_status traces_row_keep(traces_load *l, const traces_row *row, cedar_err *err) {
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

cedar_status traces_row_done(traces_load *l, traces_row *row, cedar_status st, cedar_err *err) {
    if (st == CEDAR_E_FORMAT && row->session) {
        /* A session with a hole would be another session: the row stays as a mark, and traces_rows_end leaves the
         * session out and counts it once. */
        row->broken = traces_arena_string(l->arena, err->msg, strlen(err->msg));
        st = row->broken ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: no memory for a message", l->name);
    }
    return st ? st : traces_row_keep(l, row, err);
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
        if (x->round != y->round) return x->round < y->round ? -1 : 1;
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

const char *traces_place_name(traces_load *l, int line) {
    const char *slash = strrchr(l->name, '/'), *base = slash ? slash + 1 : l->name;
    size_t stem = strcspn(base, ".");
    char text[NAME_BYTES_MAX];
    int n = snprintf(text, sizeof text, "%.*s:%d", stem < 200 ? (int)stem : 200, base, line);
    return traces_arena_string(l->arena, text, (size_t)n);
}

/* Names of the models of a session's rows. */
static cedar_status add_models(traces_load *l, const traces_row *rows, size_t count, cedar_turn *turns,
                               cedar_trace *t, cedar_err *err) {
    const char *names[MODELS_MAX];
    char where[WHERE_BYTES];
    cedar_status st = CEDAR_OK;
    for (size_t k = 0; !st && k < count; k++) {
        turns[k].model = -1;
        snprintf(where, sizeof where, "%.300s:%d", l->name, rows[k].line);
        if (rows[k].model)
            st = traces_model_add(l, where, rows[k].model, strlen(rows[k].model), names, &t->model_count,
                                  &turns[k].model, err);
    }
    if (st) return st;
    t->models = traces_arena_alloc(l->arena, t->model_count, sizeof *t->models);
    if (!t->models) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %u models", l->name, t->model_count);
    for (uint32_t i = 0; i < t->model_count; i++) t->models[i] = names[i];
    return CEDAR_OK;
}

cedar_status traces_rows_trace(traces_load *l, const traces_row *rows, size_t count, cedar_trace *out,
                               cedar_err *err) {
    cedar_stream *s = traces_arena_alloc(l->arena, 1, sizeof *s);
    cedar_turn *turns = traces_arena_alloc(l->arena, count, sizeof *turns);
    const char *name = rows->session ? rows->session : traces_place_name(l, rows->line);
    if (!s || !turns || !name) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu rows", l->name, count);
    if (count > TURNS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: the session has %zu rows, at most %zu are allowed", l->name,
                          rows->line, count, TURNS_MAX);
    for (uint32_t k = 0; k < count; k++) {
        turns[k] = rows[k].turn;
        cedar_status st = place_row(l, &rows[k], k, turns, err);
        if (st) return st;
    }
    *s = (cedar_stream){ .id = "", .turns = turns, .turn_count = (uint32_t)count, .spawn_turn = -1, .join_turn = -1 };
    traces_stream_times(s);
    for (uint32_t k = 1; k < count; k++)
        if (rows[k].has_delay) turns[k].delay_ns = rows[k].turn.delay_ns;
    *out = (cedar_trace){ .id = name, .file = l->name, .line = rows->line, .streams = s, .stream_count = 1 };
    return add_models(l, rows, count, turns, out, err);
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
        if (i && same_session(&l->rows[i - 1], &l->rows[i])) {
            groups[n - 1].count++;
            if (l->rows[i].index < groups[n - 1].index) groups[n - 1].index = l->rows[i].index;
        } else {
            groups[n++] = (group){ i, 1, l->rows[i].index };
        }
    }
    qsort(groups, n, sizeof *groups, by_index);
    return n;
}

cedar_status traces_rows_end(traces_load *l, cedar_err *err) {
    if (!l->row_count) return CEDAR_OK;
    group *groups = cedar_calloc(l->row_count, sizeof *groups);
    if (!groups) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu rows", l->name, l->row_count);
    if (!l->file_space) l->file_space = l->space_next++;
    qsort(l->rows, l->row_count, sizeof *l->rows, by_session);
    size_t n = make_groups(l, groups);
    cedar_status st = CEDAR_OK;
    for (size_t i = 0; !st && i < n && !traces_full(l); i++) {
        st = check_group(l, &groups[i], err);
        if (!st) st = l->reader->session(l, &l->rows[groups[i].first], groups[i].count, err);
        if (st) st = traces_broken(l, st, err);
    }
    cedar_free(groups);
    return st;
}
