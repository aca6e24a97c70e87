/* Owns the reader of weka / kv-cache-tester sessions: one JSON object per session, with its subagents inside. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "traces/traces_int.h"

#define BLOCK_TOKENS_DEFAULT 64
#define BLOCK_TOKENS_MAX 65536
#define SUBAGENT "subagent"

/* One session while it is read. */
typedef struct session {
    traces_load *l;
    cedar_trace trace;
    const char *models[MODELS_MAX];
    const json_t *requests;
    uint32_t root_count, sub_count; /* entries of either kind */
} session;

static bool probe(const json_t *doc) {
    return json_is_array(json_object_get(doc, "requests"));
}

static cedar_status model_index(session *s, const json_t *name, const char *where, int32_t *out, cedar_err *err) {
    *out = -1;
    if (!name || json_is_null(name)) return CEDAR_OK;
    if (!json_is_string(name)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: a model's name must be a string", where);
    return traces_model_add(s->l, where, json_string_value(name), json_string_length(name), s->models,
                            &s->trace.model_count, out, err);
}

/* --- one request ------------------------------------------------------------------------------------------------- */

/* Written by tools that subtract a rounded end from a rounded start, so that small negative values occur; nothing is
 * replayed from it, and a session is not lost over it. */
static cedar_status read_think(const json_t *o, const char *where, cedar_turn *turn, cedar_err *err) {
    const json_t *v = json_object_get(o, "think_time");
    turn->think_ns = -1;
    if (!json_is_number(v) || json_number_value(v) >= 0)
        return traces_time_get(o, where, "think_time", NS_PER_S, SPAN_S_MAX, &turn->think_ns, &turn->has_think, err);
    turn->think_ns = 0;
    turn->has_think = true;
    return CEDAR_OK;
}

static cedar_status read_times(const json_t *o, const char *where, cedar_turn *turn, cedar_err *err) {
    bool has_t, has_ttft;
    turn->ttft_ns = -1;
    cedar_status st = traces_time_get(o, where, "t", NS_PER_S, START_S_MAX, &turn->t_ns, &has_t, err);
    if (!st && !has_t) st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"t\" is missing", where);
    if (!st) st = traces_time_get(o, where, "api_time", NS_PER_S, SPAN_S_MAX, &turn->api_ns, &turn->has_api, err);
    if (!st) st = traces_time_get(o, where, "ttft", NS_PER_S, SPAN_S_MAX, &turn->ttft_ns, &has_ttft, err);
    if (!st) st = read_think(o, where, turn, err);
    return st;
}

static cedar_status read_turn(session *s, const json_t *o, const char *where, cedar_turn *turn, cedar_err *err) {
    cedar_status st = read_times(o, where, turn, err);
    if (!st) st = traces_tokens_get(o, where, "in", true, &turn->in_recorded, err);
    if (!st) st = traces_tokens_get(o, where, "out", true, &turn->out_tokens, err);
    if (!st) st = traces_ids_get(s->l, o, where, turn, err);
    if (!st) st = model_index(s, json_object_get(o, "model"), where, &turn->model, err);
    turn->in_tokens = turn->in_recorded ? turn->in_recorded : 1;
    return st;
}

static cedar_status check_order(const cedar_stream *s, uint32_t k, const char *where, cedar_err *err) {
    if (!k || s->turns[k].t_ns >= s->turns[k - 1].t_ns) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"t\" is %.9g s, before the %.9g s of the previous request of its "
                      "stream", where, (double)s->turns[k].t_ns / 1e9, (double)s->turns[k - 1].t_ns / 1e9);
}

/* "n" and "s" are requests, and so is an entry that does not say. */
static cedar_status entry_kind(const json_t *o, const char *where, bool *subagent, cedar_err *err) {
    const json_t *type = json_object_get(o, "type");
    const char *text = json_string_value(type);
    *subagent = text && !strcmp(text, SUBAGENT);
    if (!json_is_object(o)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: must be an object", where);
    if (!type || json_is_null(type) || *subagent || (text && (!strcmp(text, "n") || !strcmp(text, "s"))))
        return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"type\" is \"%.40s\", known are \"n\", \"s\" and \"" SUBAGENT "\"",
                      where, text ? text : "not a string");
}

/* --- subagents --------------------------------------------------------------------------------------------------- */

/* Inner times count from the trace's start in new captures and from the marker in old ones. */
static void make_absolute(cedar_stream *s) {
    s->t_relative = s->turns[0].t_ns < s->marker_ns; /* in time order: the first is the smallest */
    for (uint32_t k = 0; s->t_relative && k < s->turn_count; k++) s->turns[k].t_ns += s->marker_ns;
}

static cedar_status read_inner(session *s, const json_t *list, const char *where, cedar_stream *out, cedar_err *err) {
    size_t n = json_array_size(list);
    out->turns = traces_arena_alloc(s->l->arena, n, sizeof *out->turns);
    if (!out->turns) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu requests", where, n);
    out->turn_count = (uint32_t)n;
    cedar_status st = CEDAR_OK;
    for (uint32_t k = 0; !st && k < n; k++) {
        char inner[WHERE_BYTES + 40];
        bool subagent;
        const json_t *o = json_array_get(list, k);
        snprintf(inner, sizeof inner, "%s.requests[%u]", where, k);
        st = entry_kind(o, inner, &subagent, err);
        if (!st && subagent)
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s: a subagent inside a subagent is not supported", inner);
        if (!st) st = read_turn(s, o, inner, &out->turns[k], err);
        if (!st) st = check_order(out, k, inner, err);
    }
    return st;
}

static cedar_status system_tokens(const json_t *o, const char *where, uint32_t *out, cedar_err *err) {
    uint32_t tool = 0, system = 0;
    cedar_status st = traces_tokens_get(o, where, "tool_tokens", false, &tool, err);
    if (!st) st = traces_tokens_get(o, where, "system_tokens", false, &system, err);
    *out = tool + system;
    return st;
}

/* Reads a subagent as the next stream; one that cannot be replayed is counted and left out. */
static cedar_status read_subagent(session *s, const json_t *o, const char *where, uint32_t root_seen, cedar_err *err) {
    cedar_trace *t = &s->trace;
    cedar_stream sub = { .spawn_turn = (int32_t)root_seen - 1, .join_turn = -1 };
    bool has_t;
    const json_t *list = json_object_get(o, "requests");
    cedar_status st = traces_time_get(o, where, "t", NS_PER_S, START_S_MAX, &sub.marker_ns, &has_t, err);
    if (!st && !has_t) st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"t\" is missing", where);
    if (!st && !json_is_array(list)) st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"requests\" must be an array", where);
    if (!st && json_array_size(list) > TURNS_MAX)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: has %zu requests, at most %zu are allowed", where,
                        json_array_size(list), TURNS_MAX);
    if (!st) st = traces_name_get(s->l, o, where, "agent_id", &sub.id, err);
    if (!st) st = system_tokens(o, where, &sub.system_tokens, err);
    if (!st) st = read_inner(s, list, where, &sub, err);
    if (st) return st;
    if (!sub.turn_count) {
        t->empty_streams++;
    } else if (sub.spawn_turn < 0) {
        t->dropped_streams++;
    } else {
        make_absolute(&sub);
        traces_stream_times(&sub);
        t->streams[t->stream_count++] = sub;
    }
    return CEDAR_OK;
}

/* --- the session ------------------------------------------------------------------------------------------------- */

static cedar_status read_scope(const json_t *doc, const char *where, bool *global, cedar_err *err) {
    const json_t *v = json_object_get(doc, "hash_id_scope");
    const char *text = json_string_value(v);
    *global = text && !strcmp(text, "global");
    if (!v || json_is_null(v) || *global || (text && !strcmp(text, "local"))) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"hash_id_scope\" must be \"local\" or \"global\"", where);
}

static cedar_status read_models(session *s, const json_t *doc, const char *where, cedar_err *err) {
    const json_t *list = json_object_get(doc, "models");
    if (list && !json_is_null(list) && !json_is_array(list))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"models\" must be an array of strings", where);
    cedar_status st = CEDAR_OK;
    int32_t index;
    for (size_t i = 0; !st && i < json_array_size(list); i++)
        st = model_index(s, json_array_get(list, i), where, &index, err);
    return st;
}

static cedar_status read_head(session *s, const json_t *doc, const char *where, cedar_err *err) {
    cedar_trace *t = &s->trace;
    int64_t block = BLOCK_TOKENS_DEFAULT;
    cedar_status st = traces_name_get(s->l, doc, where, "id", &t->id, err);
    if (!st && cedar_json_has(doc, "block_size"))
        st = cedar_json_int(doc, where, "block_size", 1, BLOCK_TOKENS_MAX, &block, err);
    t->block_tokens = (uint32_t)block;
    if (!st) st = read_scope(doc, where, &t->ids_global, err);
    if (!st) st = read_models(s, doc, where, err);
    return st;
}

/* Counts the entries of either kind, so that the arrays can be made in one piece. */
static cedar_status count_entries(session *s, const json_t *doc, const char *where, cedar_err *err) {
    s->requests = json_object_get(doc, "requests");
    if (!json_is_array(s->requests))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"requests\" must be an array", where);
    size_t n = json_array_size(s->requests), subs = 0;
    for (size_t i = 0; i < n; i++) {
        const char *type = json_string_value(json_object_get(json_array_get(s->requests, i), "type"));
        subs += type && !strcmp(type, SUBAGENT);
    }
    if (n - subs > TURNS_MAX || subs > STREAMS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: %zu requests and %zu subagents, at most %zu and %zu are allowed",
                          where, n - subs, subs, TURNS_MAX, STREAMS_MAX);
    if (n == subs) return cedar_fail(err, CEDAR_E_FORMAT, "%s: no request of the root agent", where);
    s->root_count = (uint32_t)(n - subs);
    s->sub_count = (uint32_t)subs;
    return CEDAR_OK;
}

static cedar_status read_entries(session *s, const json_t *doc, const char *where, cedar_err *err) {
    cedar_trace *t = &s->trace;
    traces_arena *a = s->l->arena;
    t->streams = traces_arena_alloc(a, 1 + (size_t)s->sub_count, sizeof *t->streams);
    cedar_turn *turns = traces_arena_alloc(a, s->root_count, sizeof *turns);
    if (!t->streams || !turns)
        return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %u requests", where, s->root_count);
    cedar_stream *root = &t->streams[0];
    *root = (cedar_stream){ .id = "", .turns = turns, .turn_count = s->root_count, .spawn_turn = -1, .join_turn = -1 };
    t->stream_count = 1;
    cedar_status st = system_tokens(doc, where, &root->system_tokens, err);
    uint32_t root_seen = 0;
    for (uint32_t i = 0; !st && i < s->root_count + s->sub_count; i++) {
        char entry[WHERE_BYTES];
        bool subagent;
        const json_t *o = json_array_get(s->requests, i);
        snprintf(entry, sizeof entry, "%.340s: requests[%u]", where, i);
        st = entry_kind(o, entry, &subagent, err);
        if (!st && subagent) {
            st = read_subagent(s, o, entry, root_seen, err);
        } else if (!st) {
            st = read_turn(s, o, entry, &turns[root_seen], err);
            if (!st) st = check_order(root, root_seen++, entry, err);
        }
    }
    return st;
}

/* Global ids are shared by all sessions with blocks of the same size. The top bit keeps these spaces apart from the
 * counted ones. */
static uint32_t global_space(const cedar_trace *t) {
    return 0x80000000u | t->block_tokens;
}

static cedar_status document(traces_load *l, const json_t *doc, cedar_err *err) {
    char where[WHERE_BYTES];
    session s = { .l = l, .trace = { .file = l->name, .line = l->line } };
    cedar_trace *t = &s.trace;
    snprintf(where, sizeof where, "%.300s:%d", l->name, l->line);
    cedar_status st = read_head(&s, doc, where, err);
    if (!st) st = count_entries(&s, doc, where, err);
    if (!st) st = read_entries(&s, doc, where, err);
    if (st) return st;
    t->models = traces_arena_alloc(l->arena, t->model_count, sizeof *t->models);
    if (!t->models) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %u models", where, t->model_count);
    for (uint32_t i = 0; i < t->model_count; i++) t->models[i] = s.models[i];
    traces_stream_times(&t->streams[0]);
    traces_streams_link(t);
    t->id_space = t->ids_global ? global_space(t) : l->space_next++;
    return traces_add(l, t, err);
}

const traces_reader traces_weka = { .format = CEDAR_TRACE_WEKA, .probe = probe, .document = document };
