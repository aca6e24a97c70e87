/* Owns the reader of AIPerf conversations: one per line, as texts. A prompt is all texts of the conversation so far and
 * the answers between them; lengths and block ids come from the texts (text.c). Answers are not recorded: a turn may
 * say how long its answer is ("max_tokens"), else it counts as 0. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "traces/traces_int.h"

static bool probe(const json_t *doc) {
    return json_is_array(json_object_get(doc, "turns")) ||
           ((json_object_get(doc, "text") || json_object_get(doc, "texts")) && !json_object_get(doc, "input_length"));
}

/* One conversation while it is read. */
typedef struct talk {
    traces_load *l;
    traces_blocks blocks;
    cedar_turn *turns;
    const char *names[MODELS_MAX];
    cedar_trace trace;
} talk;

/* --- texts ------------------------------------------------------------------------------------------------------- */

static cedar_status add_text(talk *t, const json_t *v, const char *role, const char *where, cedar_err *err) {
    if (!json_is_string(v))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: a text must be a string", where);
    cedar_status st = traces_blocks_text(&t->blocks, role, json_string_value(v), json_string_length(v), err);
    return st ? cedar_fail_in(err, st, "%s", where) : CEDAR_OK;
}

/* An entry of "texts": a string, or an object with a list of "contents". */
static cedar_status add_entry(talk *t, const json_t *v, const char *role, const char *where, cedar_err *err) {
    const json_t *list = json_object_get(v, "contents");
    if (!json_is_array(list)) return add_text(t, v, role, where, err);
    cedar_status st = CEDAR_OK;
    for (size_t i = 0; !st && i < json_array_size(list); i++)
        st = add_text(t, json_array_get(list, i), role, where, err);
    return st;
}

static cedar_status add_texts(talk *t, const json_t *o, const char *where, cedar_err *err) {
    static const char *const media[] = { "image", "images", "audio", "audios", "video", "videos" };
    const json_t *text = json_object_get(o, "text"), *texts = json_object_get(o, "texts");
    const json_t *role = json_object_get(o, "role");
    const char *speaker = role && !json_is_null(role) ? json_string_value(role) : "user";
    for (size_t i = 0; i < sizeof media / sizeof *media; i++)
        if (cedar_json_has(o, media[i]))
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" has no token count; only texts can be replayed", where,
                              media[i]);
    if (!speaker) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"role\" must be a string", where);
    if (cedar_json_has(o, "text") == cedar_json_has(o, "texts"))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: needs either \"text\" or \"texts\"", where);
    if (cedar_json_has(o, "text")) return add_text(t, text, speaker, where, err);
    if (!json_is_array(texts) || !json_array_size(texts))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"texts\" must be an array that is not empty", where);
    cedar_status st = CEDAR_OK;
    for (size_t i = 0; !st && i < json_array_size(texts); i++)
        st = add_entry(t, json_array_get(texts, i), speaker, where, err);
    return st;
}

/* The answer to turn k stands between its text and the next: tokens that nothing else shares. */
static cedar_status add_answer(talk *t, uint32_t k, cedar_err *err) {
    uint64_t key = cedar_fold64(cedar_rng_key(0, "answer"), (uint64_t)t->l->corpus->trace_count << 32 | k);
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; !st && i < t->turns[k].out_tokens; i++)
        st = traces_blocks_token(&t->blocks, cedar_fold64(key, i), err);
    return st;
}

/* --- turns ------------------------------------------------------------------------------------------------------- */

static cedar_status read_time(talk *t, const json_t *o, uint32_t k, const char *where, cedar_err *err) {
    cedar_turn *turn = &t->turns[k];
    bool has_t, has_delay;
    cedar_status st = traces_time_get(o, where, "timestamp", NS_PER_MS, START_S_MAX, &turn->t_ns, &has_t, err);
    if (!st) st = traces_time_get(o, where, "delay", NS_PER_MS, SPAN_S_MAX, &turn->delay_ns, &has_delay, err);
    if (st) return st;
    if (has_t && has_delay)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"timestamp\" and \"delay\" exclude each other", where);
    if (!has_t && k) turn->t_ns = turn[-1].t_ns + turn->delay_ns;
    if (turn->t_ns > START_S_MAX * NS_PER_S)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the delays of the session add up to more than %lld seconds", where,
                          START_S_MAX);
    if (k && turn->t_ns < turn[-1].t_ns)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"timestamp\" is %lld ms, before the %lld ms of the previous turn",
                          where, (long long)(turn->t_ns / NS_PER_MS), (long long)(turn[-1].t_ns / NS_PER_MS));
    return CEDAR_OK;
}

static cedar_status read_turn(talk *t, const json_t *o, uint32_t k, const char *where, cedar_err *err) {
    cedar_turn *turn = &t->turns[k];
    *turn = (cedar_turn){ .ttft_ns = -1, .think_ns = -1, .model = -1 };
    if (!json_is_object(o)) return cedar_fail(err, CEDAR_E_FORMAT, "%s: must be an object", where);
    cedar_status st = read_time(t, o, k, where, err);
    if (!st) st = traces_tokens_get(o, where, "max_tokens", false, &turn->out_tokens, err);
    if (!st && cedar_json_has(o, "model")) {
        const char *name;
        st = cedar_json_string(o, where, "model", &name, err);
        if (!st)
            st = traces_model_add(t->l, where, name, strlen(name), t->names, &t->trace.model_count, &turn->model, err);
    }
    if (!st && k && t->blocks.tokens + t->turns[k - 1].out_tokens > IDS_MAX * HASH_BLOCK_TOKENS)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: the prompt has more than %zu tokens", where,
                        IDS_MAX * HASH_BLOCK_TOKENS);
    if (!st && k) st = add_answer(t, k - 1, err);
    if (!st) st = add_texts(t, o, where, err);
    if (st) return st;
    if (t->blocks.tokens > IDS_MAX * HASH_BLOCK_TOKENS)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the prompt has more than %zu tokens", where,
                          IDS_MAX * HASH_BLOCK_TOKENS);
    turn->in_tokens = turn->in_recorded = (uint32_t)t->blocks.tokens;
    turn->block_count = (uint32_t)(t->blocks.tokens / HASH_BLOCK_TOKENS);
    return CEDAR_OK;
}

static cedar_status read_turns(talk *t, const json_t *doc, const char *where, cedar_err *err) {
    const json_t *list = json_object_get(doc, "turns");
    bool single = !list;
    size_t n = single ? 1 : json_array_size(list);
    if (!single && !json_is_array(list))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"turns\" must be an array", where);
    if (!n || n > TURNS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: has %zu turns, allowed are 1 to %zu", where, n, TURNS_MAX);
    t->turns = traces_arena_alloc(t->l->arena, n, sizeof *t->turns);
    t->trace.streams = traces_arena_alloc(t->l->arena, 1, sizeof *t->trace.streams);
    if (!t->turns || !t->trace.streams)
        return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu turns", where, n);
    cedar_status st = CEDAR_OK;
    for (uint32_t k = 0; !st && k < n; k++) {
        char inner[WHERE_BYTES + 40];
        snprintf(inner, sizeof inner, "%s: turns[%u]", where, k);
        st = read_turn(t, single ? doc : json_array_get(list, k), k, single ? where : inner, err);
    }
    t->trace.streams[0] = (cedar_stream){ .id = "", .turns = t->turns, .turn_count = (uint32_t)n, .spawn_turn = -1,
                                          .join_turn = -1 };
    return st;
}

/* The context only grows, so that all turns share the ids of the last one. */
static cedar_status give_ids(talk *t, const char *where, cedar_err *err) {
    cedar_stream *s = &t->trace.streams[0];
    cedar_turn all = { 0 };
    cedar_status st = traces_blocks_give(t->l, &t->blocks, t->blocks.count, where, &all, err);
    for (uint32_t k = 0; !st && k < s->turn_count; k++) s->turns[k].block_ids = all.block_ids;
    return st;
}

static cedar_status finish(talk *t, const char *where, cedar_err *err) {
    traces_load *l = t->l;
    cedar_status st = give_ids(t, where, err);
    if (st) return st;
    /* No durations are recorded, so that the wait that was read is the difference of starts, as it is here. */
    traces_stream_times(&t->trace.streams[0]);
    t->trace.models = traces_arena_alloc(l->arena, t->trace.model_count, sizeof *t->trace.models);
    if (!t->trace.models) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for models", where);
    for (uint32_t i = 0; i < t->trace.model_count; i++) t->trace.models[i] = t->names[i];
    return traces_add(l, &t->trace, err);
}

static cedar_status document(traces_load *l, const json_t *doc, cedar_err *err) {
    char where[WHERE_BYTES];
    talk t = { .l = l, .trace = { .file = l->name, .line = l->line, .stream_count = 1, .ids_global = true,
                                  .id_space = TEXT_ID_SPACE, .block_tokens = HASH_BLOCK_TOKENS } };
    snprintf(where, sizeof where, "%.300s:%d", l->name, l->line);
    cedar_status st = traces_label_get(l, doc, where, "session_id", &t.trace.id, err);
    if (!st && !t.trace.id && !(t.trace.id = traces_place_name(l, l->line)))
        st = cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its name", where);
    if (!st) st = read_turns(&t, doc, where, err);
    if (!st) st = finish(&t, where, err);
    traces_blocks_free(&t.blocks);
    return st;
}

const traces_reader traces_aiperf = { .format = CEDAR_TRACE_AIPERF, .probe = probe, .document = document };
