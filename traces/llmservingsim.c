/* Owns the reader of LLMServingSim requests: flat ones, one per line, and agentic ones, a session with all its calls
 * per line; a file may mix them. Times are nanoseconds. Token ids are hashed into blocks; "hash_ids" with "block_size"
 * (cedar's extension) give blocks as they are. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "traces/traces_int.h"

#define BLOCK_TOKENS_MAX 65536

static bool probe(const json_t *doc) {
    return json_object_get(doc, "sub_requests") || json_object_get(doc, "input_toks");
}

static cedar_status get_time(const json_t *o, const char *where, const char *key, int64_t max_s, bool required,
                             int64_t *out, cedar_err *err) {
    *out = 0;
    if (!cedar_json_has(o, key))
        return required ? cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is missing", where, key) : CEDAR_OK;
    return cedar_json_int(o, where, key, 0, max_s * NS_PER_S, out, err);
}

static cedar_status hash_tokens(traces_load *l, const json_t *list, const char *where, cedar_turn *t, cedar_err *err) {
    traces_blocks b = { 0 };
    size_t n = json_array_size(list);
    cedar_status st = CEDAR_OK;
    if (!json_is_array(list) || n != t->in_recorded)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"input_tok_ids\" must be an array of as many ids as "
                          "\"input_toks\" "
                          "says, %u; it has %zu", where, t->in_recorded, n);
    for (size_t i = 0; !st && i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"input_tok_ids\"[%zu] must be an integer that is not negative",
                            where, i);
        else st = traces_blocks_token(&b, (uint64_t)json_integer_value(v), err);
    }
    if (!st) st = traces_blocks_give(l, &b, b.count, where, t, err);
    traces_blocks_free(&b);
    return st;
}

/* One request; *block is the block size of its session, 0 while it is not known. */
static cedar_status read_call(traces_load *l, const json_t *o, const char *where, cedar_turn *t, uint32_t *block,
                              cedar_err *err) {
    int64_t size = HASH_BLOCK_TOKENS;
    bool ids = cedar_json_has(o, "hash_ids"), tokens = cedar_json_has(o, "input_tok_ids");
    *t = (cedar_turn){ .ttft_ns = -1, .think_ns = -1, .model = -1 };
    cedar_status st = traces_tokens_get(o, where, "input_toks", true, &t->in_recorded, err);
    if (!st) st = traces_tokens_get(o, where, "output_toks", true, &t->out_tokens, err);
    t->in_tokens = t->in_recorded ? t->in_recorded : 1;
    if (!st && ids && cedar_json_has(o, "block_size"))
        st = cedar_json_int(o, where, "block_size", 1, BLOCK_TOKENS_MAX, &size, err);
    if (st || !(ids || tokens)) return st;
    if (*block && *block != (uint32_t)size)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: blocks have %lld tokens here and %u in an earlier request of the "
                          "session", where, (long long)size, *block);
    *block = (uint32_t)size;
    return ids ? traces_ids_get(l, o, where, t, err)
               : hash_tokens(l, json_object_get(o, "input_tok_ids"), where, t, err);
}

/* --- sessions ---------------------------------------------------------------------------------------------------- */

static cedar_status read_calls(traces_load *l, const json_t *list, const char *where, int64_t start_ns,
                               cedar_turn *turns, uint32_t *block, cedar_err *err) {
    int64_t wait = 0, t_ns = start_ns;
    cedar_status st = CEDAR_OK;
    for (uint32_t k = 0; !st && k < json_array_size(list); k++) {
        char inner[WHERE_BYTES + 40];
        const json_t *o = json_array_get(list, k);
        snprintf(inner, sizeof inner, "%s: sub_requests[%u]", where, k);
        if (!json_is_object(o)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: must be an object", inner);
        st = read_call(l, o, inner, &turns[k], block, err);
        t_ns += wait;
        if (!st && t_ns > START_S_MAX * NS_PER_S)
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s: the waits of the session add up to more than %lld seconds", inner,
                            START_S_MAX);
        turns[k].t_ns = t_ns;
        if (!st) st = get_time(o, inner, "tool_duration_ns", SPAN_S_MAX, false, &wait, err);
    }
    return st;
}

/* A session's calls, or the line itself when it is a flat request. */
static cedar_status read_turns(traces_load *l, const json_t *doc, const char *where, int64_t start_ns,
                               cedar_stream *s, uint32_t *block, cedar_err *err) {
    const json_t *list = json_object_get(doc, "sub_requests");
    bool flat = !list || json_is_null(list);
    size_t n = flat ? 1 : json_array_size(list);
    if (!flat && (!json_is_array(list) || !n || n > TURNS_MAX))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"sub_requests\" must be an array of 1 to %zu requests", where,
                          TURNS_MAX);
    cedar_turn *turns = traces_arena_alloc(l->arena, n, sizeof *turns);
    if (!turns) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu requests", where, n);
    *s = (cedar_stream){ .id = "", .turns = turns, .turn_count = (uint32_t)n, .spawn_turn = -1, .join_turn = -1 };
    if (!flat) return read_calls(l, list, where, start_ns, turns, block, err);
    cedar_status st = read_call(l, doc, where, turns, block, err);
    turns->t_ns = start_ns;
    return st;
}

static cedar_status document(traces_load *l, const json_t *doc, cedar_err *err) {
    char where[WHERE_BYTES];
    int64_t start = 0;
    uint32_t block = 0;
    if (!l->file_space) l->file_space = l->space_next++;
    cedar_trace t = { .file = l->name, .line = l->line, .ids_global = true, .id_space = l->file_space,
                      .stream_count = 1 };
    snprintf(where, sizeof where, "%.300s:%d", l->name, l->line);
    t.streams = traces_arena_alloc(l->arena, 1, sizeof *t.streams);
    cedar_status st = t.streams ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: no memory for a stream", where);
    if (!st) st = traces_label_get(l, doc, where, "session_id", &t.id, err);
    if (!st && !t.id && !(t.id = traces_place_name(l, l->line)))
        st = cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its name", where);
    if (!st) st = get_time(doc, where, "arrival_time_ns", START_S_MAX, true, &start, err);
    if (!st) st = read_turns(l, doc, where, start, t.streams, &block, err);
    if (st) return st;
    traces_stream_times(t.streams);
    t.block_tokens = block ? block : HASH_BLOCK_TOKENS;
    return traces_add(l, &t, err);
}

const traces_reader traces_llmservingsim = { .format = CEDAR_TRACE_LLMSERVINGSIM, .probe = probe,
                                             .document = document };
