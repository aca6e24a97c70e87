/* A request's body -> what the engine must do, or a refusal that names the field. Pure.
 *
 * What would change the answer and cannot be honoured is refused, and so is a field that nobody knows. Fields that only
 * label a request are ignored. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "serve/serve_int.h"
#include "sim/sim.h"

typedef struct parser {
    serve_kind kind;
    const serve_shape *shape;
    const json_t *doc;
    serve_request *out;
    serve_refusal *why;
} parser;

void serve_refuse(serve_refusal *why, unsigned status, const char *code, const char *param, const char *fmt, ...) {
    *why = (serve_refusal){ .status = status, .code = code };
    why->type = status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
    snprintf(why->param, sizeof why->param, "%s", param);
    va_list args;
    va_start(args, fmt);
    vsnprintf(why->message, sizeof why->message, fmt, args);
    va_end(args);
    /* words of the client may have been cut inside a character */
    for (char *c = why->message; *c; c++) *c = (unsigned char)*c < 0x80 ? *c : '?';
    for (char *c = why->param; *c; c++) *c = (unsigned char)*c < 0x80 ? *c : '?';
}

/* `return bad(...)` reads as what it does. */
#define bad(p, param, ...) (serve_refuse((p)->why, 400, NULL, (param), __VA_ARGS__), false)

/* --- fields ------------------------------------------------------------------------------------------------------- */

/* Fields with one value that changes nothing; any other is refused. "-": null or empty only. */
static const struct neutral { const char *key, *value; } neutrals[] = {
    { "n", "1" },                  { "best_of", "1" },            { "echo", "false" },    { "suffix", "-" },
    { "presence_penalty", "0" },   { "frequency_penalty", "0" },  { "logit_bias", "-" },  { "tools", "-" },
    { "functions", "-" },          { "function_call", "none" },   { "tool_choice", "none" },
    { "repetition_penalty", "1" }, { "min_p", "0" },              { "top_k", "-1" },      { "priority", "0" },
    { "audio", "-" },              { "prediction", "-" },         { "web_search_options", "-" },
    { "use_beam_search", "false" }, { "length_penalty", "1" },    { "stop_token_ids", "-" },
    { "reasoning_effort", "none" },
};

static const char *const handled[] = { "model", "messages", "prompt", "max_tokens", "max_completion_tokens",
                                       "min_tokens", "ignore_eos", "stream", "stream_options", "stop", "seed",
                                       "temperature", "top_p", "logprobs", "top_logprobs", "response_format",
                                       "modalities" };
static const char *const ignored[] = { "user", "metadata", "store", "service_tier", "parallel_tool_calls",
                                       "safety_identifier", "prompt_cache_key", "prompt_cache_retention" };

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* The field's value, NULL when it is absent or null. */
static const json_t *field(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v;
}

static bool is_neutral(const json_t *v, const char *neutral) {
    if (json_is_array(v) || json_is_object(v)) return !json_array_size(v) && !json_object_size(v);
    if (json_is_boolean(v)) return json_is_false(v) && strcmp(neutral, "false") == 0;
    if (json_is_string(v)) return strcmp(json_string_value(v), neutral) == 0;
    char *end;
    double number = strtod(neutral, &end);
    return *end == 0 && json_number_value(v) == number;
}

static bool unknown(const parser *p, const char *key) {
    const char *words[COUNT(handled) + COUNT(neutrals)];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(handled); i++) words[n++] = handled[i];
    for (size_t i = 0; i < COUNT(neutrals); i++) words[n++] = neutrals[i].key;
    const char *near = cedar_nearest(key, words, n);
    if (near) return bad(p, key, "unknown field \"%.63s\"; did you mean \"%s\"?", key, near);
    return bad(p, key, "unknown field \"%.63s\"", key);
}

static bool check_field(const parser *p, const char *key, const json_t *value) {
    for (size_t i = 0; i < COUNT(handled); i++)
        if (strcmp(key, handled[i]) == 0) return true;
    for (size_t i = 0; i < COUNT(ignored); i++)
        if (strcmp(key, ignored[i]) == 0) return true;
    for (size_t i = 0; i < COUNT(neutrals); i++) {
        const struct neutral *k = &neutrals[i];
        if (strcmp(key, k->key)) continue;
        if (json_is_null(value) || is_neutral(value, k->value)) return true;
        if (*k->value == '-' && !k->value[1]) return bad(p, key, "\"%s\" is not supported", key);
        return bad(p, key, "\"%s\" must be %s: nothing else is supported", key, k->value);
    }
    return unknown(p, key);
}

static bool check_fields(const parser *p) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)p->doc, key, value)
        if (!check_field(p, key, value)) return false;
    const json_t *format = field(p->doc, "response_format"), *modes = field(p->doc, "modalities");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && (!type || strcmp(type, "text")))
        return bad(p, "response_format", "only {\"type\": \"text\"} is supported");
    const char *mode = json_string_value(json_array_get(modes, 0));
    if (modes && (json_array_size(modes) != 1 || !mode || strcmp(mode, "text")))
        return bad(p, "modalities", "only [\"text\"] is supported");
    return true;
}

static bool get_int(const parser *p, const char *key, int64_t lo, int64_t hi, int64_t *out) {
    const json_t *v = field(p->doc, key);
    if (!v) return true;
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return bad(p, key, "\"%s\" must be a whole number from %lld to %lld", key, (long long)lo, (long long)hi);
    *out = json_integer_value(v);
    return true;
}

static bool get_real(const parser *p, const char *key, double lo, double hi, double *out) {
    const json_t *v = field(p->doc, key);
    if (!v) return true;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= lo && x <= hi))
        return bad(p, key, "\"%s\" must be a number from %g to %g", key, lo, hi);
    *out = x;
    return true;
}

static bool get_bool(const parser *p, const char *key, bool *out) {
    const json_t *v = field(p->doc, key);
    if (v && !json_is_boolean(v)) return bad(p, key, "\"%s\" must be true or false", key);
    if (v) *out = json_is_true(v);
    return true;
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static bool get_model(const parser *p) {
    const json_t *v = field(p->doc, "model");
    if (v && !json_is_string(v)) return bad(p, "model", "\"model\" must be a string");
    if (!v || strcmp(json_string_value(v), p->shape->model) == 0) return true;
    serve_refuse(p->why, 404, "model_not_found", "model", "there is no model \"%.100s\"; this server has \"%.100s\"",
                 json_string_value(v), p->shape->model);
    return false;
}

static bool get_stream(const parser *p) {
    serve_request *r = p->out;
    const json_t *options = field(p->doc, "stream_options");
    if (!get_bool(p, "stream", &r->stream)) return false;
    if (!options) return true;
    if (!json_is_object(options)) return bad(p, "stream_options", "\"stream_options\" must be an object");
    if (!r->stream) return bad(p, "stream_options", "\"stream_options\" needs \"stream\": true");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)options, key, value) {
        if (strcmp(key, "include_usage"))
            return bad(p, "stream_options", "\"stream_options\" may only hold \"include_usage\", not \"%.63s\"", key);
        if (!json_is_boolean(value) && !json_is_null(value))
            return bad(p, "stream_options", "\"include_usage\" must be true or false");
        r->include_usage = json_is_true(value);
    }
    return true;
}

static bool add_stop(const parser *p, const json_t *v) {
    serve_request *r = p->out;
    size_t n = json_string_length(v);
    if (!json_is_string(v) || !n || n > SERVE_STOP_BYTES_MAX)
        return bad(p, "stop", "each \"stop\" must be a string of 1 to %d bytes", SERVE_STOP_BYTES_MAX);
    memcpy(r->stops[r->stop_count++], json_string_value(v), n + 1);
    return true;
}

static bool get_stop(const parser *p) {
    const json_t *v = field(p->doc, "stop");
    if (!v) return true;
    if (!json_is_array(v)) return add_stop(p, v);
    if (json_array_size(v) > SERVE_STOPS_MAX) return bad(p, "stop", "at most %d strings", SERVE_STOPS_MAX);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!add_stop(p, json_array_get(v, i))) return false;
    return true;
}

/* Chat: "logprobs" is a switch and "top_logprobs" how many; plain completions: "logprobs" is how many. */
static bool get_logprobs(const parser *p) {
    serve_request *r = p->out;
    int64_t top = 0, most = p->shape->vocab < SERVE_TOP_LOGPROBS_MAX ? p->shape->vocab : SERVE_TOP_LOGPROBS_MAX;
    const json_t *count = field(p->doc, "top_logprobs");
    if (p->kind == SERVE_CHAT) {
        if (!get_bool(p, "logprobs", &r->logprobs) || !get_int(p, "top_logprobs", 0, most, &top)) return false;
        if (count && !r->logprobs) return bad(p, "top_logprobs", "\"top_logprobs\" needs \"logprobs\": true");
    } else {
        if (count) return bad(p, "top_logprobs", "plain completions take \"logprobs\": N instead");
        r->logprobs = field(p->doc, "logprobs") != NULL;
        if (!get_int(p, "logprobs", 0, most, &top)) return false;
    }
    r->top_logprobs = (uint32_t)top;
    return true;
}

static bool get_sampling(const parser *p) {
    serve_request *r = p->out;
    int64_t seed = 0;
    r->temperature = r->top_p = 1;
    if (!get_real(p, "temperature", 0, 2, &r->temperature) || !get_real(p, "top_p", 0, 1, &r->top_p)) return false;
    if (r->top_p <= 0) return bad(p, "top_p", "\"top_p\" must be above 0");
    if (!get_int(p, "seed", INT64_MIN, INT64_MAX, &seed)) return false;
    r->seeded = field(p->doc, "seed") != NULL;
    r->seed = (uint64_t)seed;
    return get_bool(p, "ignore_eos", &r->ignore_eos);
}

/* 0 when the request does not say. */
static bool get_max_tokens(const parser *p, int64_t *out) {
    int64_t most = INT32_MAX, older = 0;
    *out = 0;
    if (!get_int(p, "max_completion_tokens", 1, most, out) || !get_int(p, "max_tokens", 1, most, &older)) return false;
    if (*out && older && *out != older)
        return bad(p, "max_tokens", "\"max_tokens\" and \"max_completion_tokens\" contradict each other");
    if (!*out) *out = older;
    return true;
}

/* --- prompts ------------------------------------------------------------------------------------------------------ */

typedef struct text { char *bytes; size_t count, capacity; } text;

static bool append(const parser *p, text *t, const char *bytes, size_t count) {
    if (t->count + count > t->capacity) {
        size_t capacity = 2 * (t->count + count) + 256;
        char *grown = cedar_realloc(t->bytes, capacity, 1);
        if (!grown) {
            serve_refuse(p->why, 503, NULL, "", "no memory for the prompt");
            return false;
        }
        t->bytes = grown;
        t->capacity = capacity;
    }
    memcpy(t->bytes + t->count, bytes, count);
    t->count += count;
    return true;
}

static bool add_content(const parser *p, text *t, const json_t *content, size_t index) {
    if (!content) return true;
    if (json_is_string(content)) return append(p, t, json_string_value(content), json_string_length(content));
    if (!json_is_array(content))
        return bad(p, "messages", "\"content\" of message %zu must be a string or a list of text parts", index);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i), *words = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!type || strcmp(type, "text") || !json_is_string(words))
            return bad(p, "messages", "part %zu of message %zu is not of type \"text\"", i, index);
        if (!append(p, t, json_string_value(words), json_string_length(words))) return false;
    }
    return true;
}

static bool add_message(const parser *p, text *t, const json_t *m, size_t index) {
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool", "function" };
    const char *role = json_string_value(json_object_get(m, "role"));
    bool known = false;
    for (size_t i = 0; i < COUNT(roles) && role; i++) known |= strcmp(role, roles[i]) == 0;
    if (!known) return bad(p, "messages", "message %zu has no \"role\" that is known", index);
    if (field(m, "tool_calls") || field(m, "function_call"))
        return bad(p, "messages", "message %zu has tool calls, which are not supported", index);
    return append(p, t, role, strlen(role)) && append(p, t, ": ", 2) && add_content(p, t, field(m, "content"), index) &&
           append(p, t, "\n", 1);
}

/* Room for `count` ids; owned by the request from then on. */
static bool need_ids(const parser *p, size_t count) {
    p->out->tokens = cedar_calloc(count + 1, sizeof *p->out->tokens);
    if (!p->out->tokens) serve_refuse(p->why, 503, NULL, "", "no memory for a prompt of %zu tokens", count);
    return p->out->tokens != NULL;
}

static bool encode(const parser *p, const char *bytes, size_t count) {
    if (!need_ids(p, count)) return false;
    p->out->prompt = serve_tokens_encode(p->shape->vocab, bytes, count, p->out->tokens);
    return true;
}

/* Each message is a line that begins with its role; the answer continues a line of the assistant. So a prompt whose
 * history holds an answer begins with the prompt of that answer and its tokens. */
static bool get_messages(const parser *p) {
    static const char answer[] = "assistant: ";
    const json_t *list = field(p->doc, "messages");
    if (field(p->doc, "prompt")) return bad(p, "prompt", "chat completions take \"messages\" instead");
    if (!json_is_array(list) || !json_array_size(list))
        return bad(p, "messages", "\"messages\" must be a list of at least one message");
    text t = { 0 };
    bool good = true;
    for (size_t i = 0; i < json_array_size(list) && good; i++) good = add_message(p, &t, json_array_get(list, i), i);
    good = good && append(p, &t, answer, sizeof answer - 1) && encode(p, t.bytes, t.count);
    cedar_free(t.bytes);
    return good;
}

static bool get_ids(const parser *p, const json_t *list) {
    size_t n = json_array_size(list);
    if (!need_ids(p, n)) return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= p->shape->vocab)
            return bad(p, "prompt", "item %zu of \"prompt\" is no token id from 0 to %d", i, p->shape->vocab - 1);
        p->out->tokens[i] = (int32_t)json_integer_value(v);
    }
    p->out->prompt = (uint32_t)n;
    return true;
}

static bool get_prompt(const parser *p) {
    const json_t *v = field(p->doc, "prompt"), *first = json_array_get(v, 0);
    if (field(p->doc, "messages")) return bad(p, "messages", "plain completions take \"prompt\" instead");
    if (json_is_string(first) || json_is_array(first)) {
        if (json_array_size(v) > 1) return bad(p, "prompt", "one prompt a request, not %zu", json_array_size(v));
        v = first;
    }
    bool good;
    if (json_is_string(v)) good = encode(p, json_string_value(v), json_string_length(v));
    else if (json_is_array(v)) good = get_ids(p, v);
    else return bad(p, "prompt", "\"prompt\" must be a string or a list of token ids");
    if (good && !p->out->prompt) return bad(p, "prompt", "\"prompt\" is empty");
    return good;
}

/* --- all of it ---------------------------------------------------------------------------------------------------- */

/* Prompt and answer must fit the context. Without a length the answer may be as long as the context leaves room for
 * in a chat, and 16 tokens long else, as OpenAI has it. */
static bool fit(const parser *p, int64_t most) {
    serve_request *r = p->out;
    uint32_t context = p->shape->context;
    int64_t room = (int64_t)context - r->prompt, wanted = most;
    if (!wanted) wanted = p->kind == SERVE_COMPLETION ? 16 : room > 1 ? room : 1;
    if (wanted > room) {
        serve_refuse(p->why, 400, "context_length_exceeded", p->kind == SERVE_CHAT ? "messages" : "prompt",
                     "This model's maximum context length is %u tokens, but %lld were requested (%u in the prompt, "
                     "%lld in the completion)", context, (long long)wanted + r->prompt, r->prompt, (long long)wanted);
        return false;
    }
    int64_t least = 0;
    if (!get_int(p, "min_tokens", 0, wanted, &least)) return false;
    int32_t *grown = cedar_realloc(r->tokens, (size_t)r->prompt + (size_t)wanted, sizeof *r->tokens);
    if (!grown) {
        serve_refuse(p->why, 503, NULL, "", "no memory for %lld tokens", (long long)wanted + r->prompt);
        return false;
    }
    r->tokens = grown;
    r->max_tokens = (uint32_t)wanted;
    r->min_tokens = (uint32_t)least;
    return true;
}

static bool parse(const parser *p) {
    int64_t most;
    if (!json_is_object(p->doc)) return bad(p, "", "the body must be a JSON object");
    return check_fields(p) && get_model(p) && get_stream(p) && get_stop(p) && get_logprobs(p) && get_sampling(p) &&
           get_max_tokens(p, &most) && (p->kind == SERVE_CHAT ? get_messages(p) : get_prompt(p)) && fit(p, most);
}

bool serve_parse(serve_kind kind, const serve_shape *shape, const char *body, size_t bytes, serve_request *out,
                 serve_refusal *why) {
    cedar_json *doc = NULL;
    cedar_err err = { 0 };
    *out = (serve_request){ .kind = kind };
    if (cedar_json_parse(body, bytes, "body", 1, &doc, &err)) {
        serve_refuse(why, 400, NULL, "", "%.300s", err.msg);
        return false;
    }
    const parser p = { kind, shape, doc, out, why };
    bool good = parse(&p);
    cedar_json_free(doc);
    if (good) return true;
    cedar_free(out->tokens);
    out->tokens = NULL;
    return false;
}
