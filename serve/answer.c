/* What a job has produced -> the JSON of the OpenAI API. Pure; any thread that holds a view. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/serve_int.h"

static bool is_chat(const serve_job *j) { return j->req.kind == SERVE_CHAT; }

static const char *finish_word(serve_finish f) { return f == SERVE_STOP ? "stop" : "length"; }

static json_t *usage(const serve_job *j, const serve_view *v) {
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)j->req.prompt, "completion_tokens",
                     (json_int_t)v->produced, "total_tokens", (json_int_t)j->req.prompt + v->produced,
                     "prompt_tokens_details", "cached_tokens", (json_int_t)v->hit_tokens);
}

/* --- log probabilities -------------------------------------------------------------------------------------------- */

static json_t *token_word(int32_t id) {
    char text[SERVE_TOKEN_BYTES];
    return json_stringn(text, serve_token_text(id, text));
}

static json_t *token_bytes(int32_t id) {
    char text[SERVE_TOKEN_BYTES];
    size_t n = serve_token_text(id, text);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer((unsigned char)text[i]));
    return list;
}

static json_t *chat_logprob(int32_t id, float value) {
    return json_pack("{s:o, s:f, s:o}", "token", token_word(id), "logprob", (double)value, "bytes", token_bytes(id));
}

static int32_t token_at(const serve_job *j, uint32_t i) { return j->req.tokens[j->req.prompt + i]; }

static json_t *chat_logprobs(const serve_job *j, uint32_t from, uint32_t to) {
    json_t *list = json_array();
    for (uint32_t i = from; i < to; i++) {
        json_t *one = chat_logprob(token_at(j, i), j->chosen[i]), *top = json_array();
        for (uint32_t k = i * j->req.top_logprobs; k < (i + 1) * j->req.top_logprobs; k++)
            json_array_append_new(top, chat_logprob(j->top_ids[k], j->top_values[k]));
        json_object_set_new(one, "top_logprobs", top);
        json_array_append_new(list, one);
    }
    return json_pack("{s:o}", "content", list);
}

static json_t *plain_logprobs(const serve_job *j, uint32_t from, uint32_t to) {
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
    for (uint32_t i = from; i < to; i++) {
        char word[SERVE_TOKEN_BYTES + 1];
        json_t *top = json_object();
        for (uint32_t k = i * j->req.top_logprobs; k < (i + 1) * j->req.top_logprobs; k++) {
            word[serve_token_text(j->top_ids[k], word)] = 0;
            json_object_set_new(top, word, json_real((double)j->top_values[k]));
        }
        json_array_append_new(tokens, token_word(token_at(j, i)));
        json_array_append_new(values, json_real((double)j->chosen[i]));
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer((json_int_t)i));     /* a token is a character */
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops,
                     "text_offset", offsets);
}

static json_t *logprobs(const serve_job *j, uint32_t from, uint32_t to) {
    if (!j->req.logprobs) return json_null();
    return is_chat(j) ? chat_logprobs(j, from, to) : plain_logprobs(j, from, to);
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

/* The members that all answers begin with. */
static json_t *head(const serve_job *j, const char *model, const char *object) {
    char id[40];
    snprintf(id, sizeof id, "%s-%lld", is_chat(j) ? "chatcmpl" : "cmpl", (long long)j->id);
    return json_pack("{s:s, s:s, s:I, s:s}", "id", id, "object", object, "created", (json_int_t)j->created_s, "model",
                     model);
}

char *serve_answer_whole(const serve_job *j, const serve_view *v, const char *model) {
    json_t *answer = head(j, model, is_chat(j) ? "chat.completion" : "text_completion");
    json_t *text = json_stringn(j->text, v->text_bytes), *choice;
    if (is_chat(j))
        choice = json_pack("{s:i, s:{s:s, s:o}, s:o, s:s}", "index", 0, "message", "role", "assistant", "content", text,
                           "logprobs", logprobs(j, 0, v->produced), "finish_reason", finish_word(v->finish));
    else
        choice = json_pack("{s:i, s:o, s:o, s:s}", "index", 0, "text", text, "logprobs", logprobs(j, 0, v->produced),
                           "finish_reason", finish_word(v->finish));
    json_object_set_new(answer, "choices", json_pack("[o]", choice));
    json_object_set_new(answer, "usage", usage(j, v));
    char *out = json_dumps(answer, JSON_COMPACT);
    json_decref(answer);
    return out;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

typedef struct events { FILE *to; const serve_job *j; const serve_view *v; const char *model; } events;

/* One chunk; takes `choices` over. */
static void send_chunk(const events *e, json_t *choices, json_t *used) {
    json_t *chunk = head(e->j, e->model, is_chat(e->j) ? "chat.completion.chunk" : "text_completion");
    json_object_set_new(chunk, "choices", choices);
    if (e->j->req.include_usage) json_object_set_new(chunk, "usage", used ? used : json_null());
    else json_decref(used);
    fputs("data: ", e->to);
    json_dumpf(chunk, e->to, JSON_COMPACT);
    fputs("\n\n", e->to);
    json_decref(chunk);
}

static void send_delta(const events *e, json_t *delta, json_t *scores, const char *finish) {
    send_chunk(e, json_pack("[{s:i, s:o, s:o, s:s?}]", "index", 0, is_chat(e->j) ? "delta" : "text", delta, "logprobs",
                            scores, "finish_reason", finish), NULL);
}

static void send_text(const events *e, serve_shown *shown) {
    json_t *text = json_stringn(e->j->text + shown->text_bytes, e->v->text_bytes - shown->text_bytes);
    json_t *delta = is_chat(e->j) ? json_pack("{s:o}", "content", text) : text;
    send_delta(e, delta, logprobs(e->j, shown->tokens, e->v->produced), NULL);
    shown->text_bytes = e->v->text_bytes;
    shown->tokens = e->v->produced;
}

static void send_end(const events *e) {
    if (e->v->finish == SERVE_FAILED) {
        serve_refusal why;
        serve_refuse(&why, 503, NULL, "", "the server ended this request before its answer was complete");
        char *text = serve_answer_error(&why);
        fprintf(e->to, "data: %s\n\n", text ? text : "{}");
        free(text);
        return;
    }
    send_delta(e, is_chat(e->j) ? json_object() : json_string(""), json_null(), finish_word(e->v->finish));
    if (e->j->req.include_usage) send_chunk(e, json_array(), usage(e->j, e->v));
    fputs("data: [DONE]\n\n", e->to);
}

char *serve_answer_events(const serve_job *j, const serve_view *v, const char *model, serve_shown *shown) {
    char *out = NULL;
    size_t bytes = 0;
    events e = { open_memstream(&out, &bytes), j, v, model };
    if (!e.to) return NULL;
    bool news = v->text_bytes > shown->text_bytes || v->finish != SERVE_RUNNING;
    /* the role comes with the first words, so that a client's first delta is the first token */
    if (news && !shown->started && is_chat(j)) {
        shown->started = true;
        send_delta(&e, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), json_null(), NULL);
    }
    if (v->text_bytes > shown->text_bytes || (news && j->req.logprobs && v->produced > shown->tokens))
        send_text(&e, shown);
    if (v->finish != SERVE_RUNNING && !shown->ended) {
        shown->ended = true;
        send_end(&e);
    }
    if (fclose(e.to) == 0) return out;
    free(out);
    return NULL;
}

/* --- the rest ----------------------------------------------------------------------------------------------------- */

char *serve_answer_error(const serve_refusal *why) {
    json_t *error = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", why->message, "type", why->type,
                              "param", *why->param ? why->param : NULL, "code", why->code);
    char *out = json_dumps(error, JSON_COMPACT);
    json_decref(error);
    return out;
}

char *serve_answer_models(const char *model, uint32_t context, int64_t created_s, bool one) {
    json_t *entry = json_pack("{s:s, s:s, s:I, s:s, s:I}", "id", model, "object", "model", "created",
                              (json_int_t)created_s, "owned_by", "cedar", "max_model_len", (json_int_t)context);
    json_t *answer = one ? entry : json_pack("{s:s, s:[o]}", "object", "list", "data", entry);
    char *out = json_dumps(answer, JSON_COMPACT);
    json_decref(answer);
    return out;
}
