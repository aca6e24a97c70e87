/* Owns the reader of OpenTelemetry span files: calls of a model with their messages, from which a tree of streams is
 * made. A call goes on the stream whose last answer it quotes (a causal edge); any other call is a stream of its own,
 * and what ended before it began holds it back through spawns, joins and barriers (temporal edges). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "traces/traces_int.h"

#define SPANS_MAX ((size_t)4096)       /* every call is compared with the streams before it */
#define WAIT_MAX_NS (15 * NS_PER_S)    /* longest wait along an edge */

#define MESSAGES "gen_ai.input.messages"
#define OUTPUT_TEXT "gen_ai.output.text"
#define OUTPUT_MESSAGES "gen_ai.output.messages"

typedef struct message {
    const char *role, *text;
    size_t bytes;
    uint64_t hash;         /* of the text */
} message;

/* One call while the file is read; messages and texts lie in the graph's scratch arena. */
typedef struct span {
    cedar_turn turn;
    const char *id;
    message *messages;
    size_t message_count;
    message output;        /* role NULL: none recorded */
    size_t index;          /* in the file */
    int64_t end_ns;
    int32_t next;          /* next call of its stream, -1: the last */
} span;

typedef struct graph {
    traces_load *l;
    traces_arena *scratch;
    span *spans;           /* [count] by start */
    size_t count;
    uint32_t *firsts, *lasts; /* [stream_count] spans */
    uint32_t stream_count;
    const char *names[MODELS_MAX];
    cedar_trace trace;
} graph;

static bool probe(const json_t *doc) {
    return json_is_array(json_object_get(doc, "spans"));
}

/* --- messages ---------------------------------------------------------------------------------------------------- */

static cedar_status no_memory(const char *where, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its messages", where);
}

/* Text of a part: its "text" or "content"; anything else (calls of tools, their results) counts as its JSON. */
static const char *part_text(graph *g, const json_t *part, size_t *bytes) {
    const json_t *v = json_is_string(part) ? part : json_object_get(part, "text");
    if (!json_is_string(v)) v = json_object_get(part, "content");
    if (json_is_string(v)) {
        *bytes = json_string_length(v);
        return json_string_value(v);
    }
    char *dump = json_dumps(part, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    const char *kept = dump ? traces_arena_string(g->scratch, dump, strlen(dump)) : NULL;
    *bytes = dump ? strlen(dump) : 0;
    free(dump);
    return kept;
}

/* Joins the parts of a message. */
static cedar_status join_parts(graph *g, const json_t *list, const char *where, message *m, cedar_err *err) {
    size_t n = json_array_size(list), total = 0, at = 0;
    for (int pass = 0; pass < 2; pass++) {
        char *text = pass ? traces_arena_alloc(g->scratch, total + 1, 1) : NULL;
        if (pass && !text) return no_memory(where, err);
        for (size_t i = 0; i < n; i++) {
            size_t bytes;
            const char *part = part_text(g, json_array_get(list, i), &bytes);
            if (!part) return no_memory(where, err);
            if (pass) memcpy(text + at, part, bytes), at += bytes;
            else total += bytes;
        }
        m->text = text;
    }
    m->bytes = total;
    return CEDAR_OK;
}

static cedar_status keep_text(graph *g, const char *text, size_t bytes, const char *where, message *m,
                              cedar_err *err) {
    m->text = traces_arena_string(g->scratch, text, bytes);
    m->bytes = bytes;
    return m->text ? CEDAR_OK : no_memory(where, err);
}

static uint64_t hash_text(const message *m) {
    uint64_t h = m->bytes;
    for (size_t i = 0; i < m->bytes; i++) h = cedar_fold64(h, (unsigned char)m->text[i]);
    return h;
}

static cedar_status read_message(graph *g, const json_t *o, const char *where, message *m, cedar_err *err) {
    const char *role = json_string_value(json_object_get(o, "role"));
    const json_t *content = json_object_get(o, "content"), *parts = json_object_get(o, "parts");
    if (!json_is_object(o)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: must be an object", where);
    if (!role) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"role\" must be a string", where);
    m->role = traces_arena_string(g->scratch, role, strlen(role));
    if (!m->role) return no_memory(where, err);
    cedar_status st = CEDAR_OK;
    if (json_is_string(content))
        st = keep_text(g, json_string_value(content), json_string_length(content), where, m, err);
    else if (json_is_array(content) || json_is_array(parts))
        st = join_parts(g, json_is_array(content) ? content : parts, where, m, err);
    else if ((m->text = part_text(g, o, &m->bytes)) == NULL)
        st = no_memory(where, err);
    if (!st) m->hash = hash_text(m);
    return st;
}

/* An attribute that holds an array of messages, as JSON or as JSON in a string. *list is owned. */
static cedar_status message_list(const json_t *attributes, const char *key, const char *where, json_t **list,
                                 cedar_err *err) {
    const json_t *v = json_object_get(attributes, key);
    *list = NULL;
    if (json_is_array(v)) {
        *list = json_incref((json_t *)(uintptr_t)v);
        return CEDAR_OK;
    }
    if (!json_is_string(v))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" must be an array of messages, or such an array as a string",
                          where, key);
    json_error_t e;
    *list = json_loadb(json_string_value(v), json_string_length(v), JSON_ALLOW_NUL, &e);
    if (json_is_array(*list)) return CEDAR_OK;
    cedar_status st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" holds no JSON array%s%.100s", where, key,
                                 *list ? "" : ": ", *list ? "" : e.text);
    json_decref(*list);
    *list = NULL;
    return st;
}

static cedar_status read_messages(graph *g, const json_t *attributes, const char *key, const char *where, message **out,
                                  size_t *count, cedar_err *err) {
    json_t *list;
    cedar_status st = message_list(attributes, key, where, &list, err);
    if (st) return st;
    size_t n = json_array_size(list);
    *out = traces_arena_alloc(g->scratch, n, sizeof **out);
    if (!*out) st = no_memory(where, err);
    for (size_t i = 0; !st && i < n; i++) {
        char inner[WHERE_BYTES + 80];
        snprintf(inner, sizeof inner, "%s: %s[%zu]", where, key, i);
        st = read_message(g, json_array_get(list, i), inner, &(*out)[i], err);
    }
    *count = n;
    json_decref(list);
    return st;
}

/* --- calls ------------------------------------------------------------------------------------------------------- */

static cedar_status read_output(graph *g, const json_t *a, const char *where, span *s, cedar_err *err) {
    const json_t *text = json_object_get(a, OUTPUT_TEXT);
    message *list;
    size_t n;
    if (json_is_string(text)) {
        s->output.role = "assistant";
        cedar_status st = keep_text(g, json_string_value(text), json_string_length(text), where, &s->output, err);
        if (!st) s->output.hash = hash_text(&s->output);
        return st;
    }
    if (!cedar_json_has(a, OUTPUT_MESSAGES)) return CEDAR_OK;
    cedar_status st = read_messages(g, a, OUTPUT_MESSAGES, where, &list, &n, err);
    if (!st && n) s->output = list[n - 1];
    return st;
}

static cedar_status count_tokens(const json_t *a, const char *where, const char *key, const char *alias, uint32_t *out,
                                 bool *present, cedar_err *err) {
    const char *name = cedar_json_has(a, key) ? key : alias;
    *present = cedar_json_has(a, name);
    return traces_tokens_get(a, where, name, false, out, err);
}

/* Lengths as the server counted them, else as the texts give them. */
static cedar_status read_lengths(graph *g, const json_t *a, const char *where, span *s, cedar_err *err) {
    cedar_turn *t = &s->turn;
    traces_blocks b = { 0 };
    bool has_in, has_out;
    cedar_status st = count_tokens(a, where, "gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens", &t->in_recorded,
                                   &has_in, err);
    if (!st) st = count_tokens(a, where, "gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens", &t->out_tokens,
                               &has_out, err);
    for (size_t i = 0; !st && i < s->message_count; i++)
        st = traces_blocks_text(&b, s->messages[i].role, s->messages[i].text, s->messages[i].bytes, err);
    if (!st && !has_in && b.tokens > (uint64_t)TOKENS_MAX)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: the messages have more than %lld tokens", where,
                        (long long)TOKENS_MAX);
    if (!st) {
        if (!has_in) t->in_recorded = (uint32_t)b.tokens;
        if (!has_out && s->output.role) t->out_tokens = s->output.bytes ? (uint32_t)((s->output.bytes + 3) / 4) : 1;
        t->in_tokens = t->in_recorded ? t->in_recorded : 1;
        size_t whole = t->in_tokens / HASH_BLOCK_TOKENS;
        st = traces_blocks_give(g->l, &b, b.count < whole ? b.count : whole, where, t, err);
    }
    traces_blocks_free(&b);
    return st;
}

static cedar_status read_times(const json_t *o, const char *where, span *s, cedar_err *err) {
    bool has_start, has_end;
    cedar_status st = traces_stamp_get(o, where, "start_time", &s->turn.t_ns, &has_start, err);
    if (!st) st = traces_stamp_get(o, where, "end_time", &s->end_ns, &has_end, err);
    if (st) return st;
    if (!has_start || !has_end)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is missing", where, has_start ? "end_time" : "start_time");
    if (s->end_ns < s->turn.t_ns || s->end_ns - s->turn.t_ns > SPAN_S_MAX * NS_PER_S)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"end_time\" must not be before \"start_time\", nor more than %lld "
                          "seconds behind it", where, SPAN_S_MAX);
    s->turn.api_ns = s->end_ns - s->turn.t_ns;
    s->turn.has_api = true;
    return CEDAR_OK;
}

static cedar_status read_span(graph *g, const json_t *o, const json_t *a, const char *where, span *s,
                              cedar_err *err) {
    *s = (span){ .turn = { .ttft_ns = -1, .think_ns = -1, .model = -1 }, .next = -1 };
    cedar_status st = traces_name_get(g->l, o, where, "span_id", &s->id, err);
    if (!st) st = read_times(o, where, s, err);
    if (!st && cedar_json_has(a, MESSAGES))
        st = read_messages(g, a, MESSAGES, where, &s->messages, &s->message_count, err);
    if (!st) st = read_output(g, a, where, s, err);
    if (!st) st = read_lengths(g, a, where, s, err);
    if (!st && cedar_json_has(a, "gen_ai.request.model")) {
        const char *name;
        st = cedar_json_string(a, where, "gen_ai.request.model", &name, err);
        if (!st)
            st = traces_model_add(g->l, where, name, strlen(name), g->names, &g->trace.model_count, &s->turn.model,
                                  err);
    }
    return st;
}

static int by_start(const void *a, const void *b) {
    const span *x = a, *y = b;
    if (x->turn.t_ns != y->turn.t_ns) return x->turn.t_ns < y->turn.t_ns ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Calls of a model; other spans (tools, agents) only group them. */
static cedar_status read_spans(graph *g, const json_t *doc, const char *where, cedar_err *err) {
    const json_t *list = json_object_get(doc, "spans");
    size_t n = json_array_size(list);
    if (!json_is_array(list)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"spans\" must be an array", where);
    if (n > SPANS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: has %zu spans, at most %zu are allowed", where, n, SPANS_MAX);
    g->spans = traces_arena_alloc(g->scratch, n, sizeof *g->spans);
    if (!g->spans) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu spans", where, n);
    cedar_status st = CEDAR_OK;
    for (size_t i = 0; !st && i < n; i++) {
        char inner[WHERE_BYTES];
        const json_t *o = json_array_get(list, i), *a = json_object_get(o, "attributes");
        snprintf(inner, sizeof inner, "%.340s: spans[%zu]", where, i);
        if (!json_is_object(o)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: must be an object", inner);
        if (!cedar_json_has(a, MESSAGES) && !cedar_json_has(a, "gen_ai.usage.prompt_tokens") &&
            !cedar_json_has(a, "gen_ai.usage.input_tokens")) continue;
        st = read_span(g, o, a, inner, &g->spans[g->count], err);
        g->spans[g->count++].index = i;
    }
    if (st) return st;
    if (!g->count)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: no span is a call of a model, with \"" MESSAGES "\" or "
                          "\"gen_ai.usage.prompt_tokens\"", where);
    qsort(g->spans, g->count, sizeof *g->spans, by_start);
    int64_t first = g->spans[0].turn.t_ns;
    for (size_t i = 0; i < g->count; i++) {
        g->spans[i].turn.t_ns -= first;
        g->spans[i].end_ns -= first;
    }
    return CEDAR_OK;
}

/* --- streams ----------------------------------------------------------------------------------------------------- */

static bool same_text(const message *a, const message *b) {
    return a->hash == b->hash && a->bytes == b->bytes && !memcmp(a->text, b->text, a->bytes);
}

/* How much of b's messages goes back to a's answer: one more than the answer's place among them, 0 when b does not
 * quote it. */
static size_t quoted_at(const span *a, const span *b) {
    if (!a->output.role) return 0;
    for (size_t i = b->message_count; i-- > 0;)
        if (!strcmp(b->messages[i].role, "assistant") && same_text(&a->output, &b->messages[i])) return i + 1;
    return 0;
}

/* Whether b's messages begin with a's, followed by a's answer. */
static bool extends(const span *a, const span *b) {
    if (quoted_at(a, b) == 0 || a->message_count >= b->message_count) return false;
    for (size_t i = 0; i < a->message_count; i++)
        if (strcmp(a->messages[i].role, b->messages[i].role) || !same_text(&a->messages[i], &b->messages[i]))
            return false;
    return same_text(&a->output, &b->messages[a->message_count]);
}

/* The stream that call b goes on; stream_count: none. One that b extends is better than one it quotes, then the one
 * with more of b's messages, then the first. */
static uint32_t find_stream(const graph *g, const span *b) {
    uint32_t best = g->stream_count;
    size_t best_at = 0;
    bool best_extends = false;
    for (uint32_t i = 0; i < g->stream_count; i++) {
        const span *a = &g->spans[g->lasts[i]];
        size_t at = a->end_ns <= b->turn.t_ns ? quoted_at(a, b) : 0;
        if (!at) continue;
        bool ext = extends(a, b);
        if (best < g->stream_count && (ext < best_extends || (ext == best_extends && at <= best_at))) continue;
        best = i;
        best_at = at;
        best_extends = ext;
    }
    return best;
}

static cedar_status make_chains(graph *g, const char *where, cedar_err *err) {
    g->firsts = traces_arena_alloc(g->scratch, g->count, sizeof *g->firsts);
    g->lasts = traces_arena_alloc(g->scratch, g->count, sizeof *g->lasts);
    if (!g->firsts || !g->lasts) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for streams", where);
    for (uint32_t i = 0; i < g->count; i++) {
        uint32_t s = find_stream(g, &g->spans[i]);
        if (s == g->stream_count) g->firsts[g->stream_count++] = i;
        else g->spans[g->lasts[s]].next = (int32_t)i;
        g->lasts[s] = i;
    }
    return CEDAR_OK;
}

static void cap_waits(cedar_stream *s) {
    for (uint32_t k = 0; k < s->turn_count; k++)
        if (s->turns[k].delay_ns > WAIT_MAX_NS) s->turns[k].delay_ns = WAIT_MAX_NS;
    if (s->spawn_offset_ns > WAIT_MAX_NS) s->spawn_offset_ns = WAIT_MAX_NS;
}

/* Last turn of the root that has ended when the stream starts. Recorded ends may run backwards; every turn up to the
 * one taken must have ended. */
static int32_t find_spawn(const cedar_stream *root, const cedar_stream *s) {
    int32_t k = -1;
    while (k + 1 < (int32_t)root->turn_count &&
           root->turns[k + 1].t_ns + root->turns[k + 1].api_ns <= s->turns[0].t_ns) k++;
    return k;
}

static cedar_status make_streams(graph *g, const char *where, cedar_err *err) {
    cedar_trace *t = &g->trace;
    traces_arena *arena = g->l->arena;
    t->stream_count = g->stream_count;
    t->streams = traces_arena_alloc(arena, g->stream_count, sizeof *t->streams);
    cedar_turn *turns = traces_arena_alloc(arena, g->count, sizeof *turns);
    t->models = traces_arena_alloc(arena, t->model_count, sizeof *t->models);
    if (!t->streams || !turns || !t->models) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for streams", where);
    for (uint32_t i = 0; i < t->model_count; i++) t->models[i] = g->names[i];
    for (uint32_t i = 0; i < g->stream_count; i++) {
        cedar_stream *s = &t->streams[i];
        *s = (cedar_stream){ .id = i ? g->spans[g->firsts[i]].id : "", .turns = turns, .spawn_turn = -1,
                             .join_turn = -1 };
        for (int32_t k = (int32_t)g->firsts[i]; k >= 0; k = g->spans[k].next) turns[s->turn_count++] = g->spans[k].turn;
        turns += s->turn_count;
        traces_stream_times(s);
        s->marker_ns = s->start_ns;
        if (i) s->spawn_turn = find_spawn(&t->streams[0], s);
    }
    traces_streams_link(t);
    for (uint32_t i = 0; i < g->stream_count; i++) cap_waits(&t->streams[i]);
    return CEDAR_OK;
}

static cedar_status read_id(graph *g, const json_t *doc, const char *where, cedar_err *err) {
    const json_t *o = cedar_json_has(doc, "trace_id") ? doc : json_array_get(json_object_get(doc, "spans"), 0);
    return traces_name_get(g->l, o, where, "trace_id", &g->trace.id, err);
}

static cedar_status document(traces_load *l, const json_t *doc, cedar_err *err) {
    char where[WHERE_BYTES];
    graph g = { .l = l, .trace = { .file = l->name, .line = l->line, .ids_global = true, .id_space = TEXT_ID_SPACE,
                                   .block_tokens = HASH_BLOCK_TOKENS } };
    snprintf(where, sizeof where, "%.300s:%d", l->name, l->line);
    g.scratch = traces_arena_new();
    cedar_status st = g.scratch ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: no memory for spans", where);
    if (!st) st = read_id(&g, doc, where, err);
    if (!st) st = read_spans(&g, doc, where, err);
    if (!st) st = make_chains(&g, where, err);
    if (!st) st = make_streams(&g, where, err);
    if (!st) st = traces_add(l, &g.trace, err);
    traces_arena_free(g.scratch);
    return st;
}

const traces_reader traces_otel = { .format = CEDAR_TRACE_OTEL, .probe = probe, .document = document };
