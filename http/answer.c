/* What the events of an answer say: content and its times, token counts, why it ended, what went wrong. */
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "http/http_int.h"

/* Everything that JSON allows is let in: whole numbers of any length, which become reals, and the character 0, which
 * is a token of many vocabularies. */
enum { ANY_JSON = JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL };

static bool is_count(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    double n = json_number_value(v);
    return json_is_number(v) && n >= 0 && n <= UINT32_MAX && n == floor(n);
}

/* 0 when there is none. */
static uint32_t count_of(const json_t *o, const char *key) {
    return is_count(o, key) ? (uint32_t)json_number_value(json_object_get(o, key)) : 0;
}

/* Counts may come with every event; the last ones are those of the whole answer. */
static void read_usage(http_answer *a, const json_t *usage) {
    if (!is_count(usage, "prompt_tokens") || !is_count(usage, "completion_tokens")) return;
    a->usage = true;
    a->prompt_tokens = count_of(usage, "prompt_tokens");
    a->completion_tokens = count_of(usage, "completion_tokens");
    a->cached_tokens = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    if (!a->cached_tokens) a->cached_tokens = count_of(usage, "prompt_cache_hit_tokens");
}

static bool has_text(const json_t *o, const char *key) {
    return json_string_length(json_object_get(o, key)) > 0;
}

/* Whether a choice brings something that the model made. The first event of a chat has an empty content. */
static bool has_content(const json_t *choice) {
    const json_t *delta = json_object_get(choice, "delta");
    return has_text(choice, "text") || has_text(delta, "content") || has_text(delta, "reasoning_content") ||
           has_text(delta, "reasoning") || has_text(delta, "refusal") ||
           json_array_size(json_object_get(delta, "tool_calls")) > 0;
}

static void read_choice(http_answer *a, const json_t *choice, int64_t now_ns) {
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (finish) {
        a->finished = true;
        http_copy_text(a->finish, sizeof a->finish, finish, a->key);
        http_clean_text(a->finish, NULL);
    }
    if (!has_content(choice)) return;
    if (!a->deltas++) a->first_ns = now_ns;
    a->last_ns = now_ns;
}

static void message_of(const json_t *error, const char *key, char out[CEDAR_HTTP_ERROR_BYTES]) {
    const char *text = json_string_value(error);
    if (!text) text = json_string_value(json_object_get(error, "message"));
    http_copy_text(out, CEDAR_HTTP_ERROR_BYTES, text ? text : "no message", key);
}

bool http_answer_event(http_answer *a, const char *data, size_t bytes, int64_t now_ns) {
    if (a->done || bytes == 0) return true;
    if (bytes == 6 && memcmp(data, "[DONE]", 6) == 0) {
        a->done = true;
        return true;
    }
    json_t *event = json_loadb(data, bytes, ANY_JSON, NULL);
    if (!json_is_object(event)) {
        json_decref(event);
        a->class_ = CEDAR_HTTP_MALFORMED;
        snprintf(a->error, sizeof a->error, "an event of %zu bytes is not a JSON object", bytes);
        return false;
    }
    const json_t *error = json_object_get(event, "error"), *choice;
    size_t i;
    if (error && !json_is_null(error)) {
        message_of(error, a->key, a->error);
        a->class_ = http_says_overflow(a->error) ? CEDAR_HTTP_OVERFLOW : CEDAR_HTTP_STREAM_ERROR;
    }
    read_usage(a, json_object_get(event, "usage"));
    json_array_foreach(json_object_get(event, "choices"), i, choice) read_choice(a, choice, now_ns);
    json_decref(event);
    return a->class_ == CEDAR_HTTP_OK;
}

void http_error_text(const char *body, const char *key, char out[CEDAR_HTTP_ERROR_BYTES]) {
    json_t *doc = json_loads(body, ANY_JSON, NULL);
    const json_t *error = json_object_get(doc, "error");
    if (!error && json_is_object(doc)) error = json_object_get(doc, "message") ? doc : json_object_get(doc, "detail");
    if (error) message_of(error, key, out);
    else http_copy_text(out, CEDAR_HTTP_ERROR_BYTES, body, key);
    json_decref(doc);
}

bool http_says_overflow(const char *text) {
    static const char *const signs[] = { "context length", "context_length", "maximum context", "context window",
                                         "exceeds the context", "context overflow", "max_model_len", "context size",
                                         "longer than the model" };
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (strcasestr(text, signs[i])) return true;
    return false;
}

/* Stars, since what is left and right of a word that is taken out may make the same word again. */
void http_copy_text(char *out, size_t room, const char *text, const char *key) {
    size_t n = key ? strlen(key) : 0, stars = 0, i = 0;
    for (; text[i] && i + 1 < room; i++) {
        if (n && strncmp(text + i, key, n) == 0) stars = n;
        out[i] = stars ? '*' : text[i];
        stars -= stars > 0;
    }
    out[i] = 0;
}

void http_clean_text(char *text, const char *key) {
    http_copy_text(text, SIZE_MAX, text, key);
    for (unsigned char *s = (unsigned char *)text; *s;) {
        size_t n = cedar_utf8_bytes((const char *)s, NULL);
        if (n == 1 && !isprint(*s)) *s = ' ';
        if (n == 0) *s = '?';
        s += n ? n : 1;
    }
}
