/* Options of an audit: one table for Lua, the database and the documentation. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "audit/audit.h"
#include "audit/audit_int.h"
#include "base/json.h"

#define AT(member) offsetof(cedar_audit_opts, member), sizeof(((cedar_audit_opts *)0)->member)

static const double whole_max = 9007199254740992.0; /* 2^53: what a Lua number and JSON hold exactly */

static const cedar_audit_option table[] = {
    { "label", CEDAR_AUDIT_TEXT, "", 0, 0, NULL, "name of the audit in tables and reports", AT(label) },
    { "model", CEDAR_AUDIT_TEXT, "tiny", 0, 0, NULL, "name in scenarios/models, config.json, or checkpoint directory",
      AT(model) },
    { "weights_seed", CEDAR_AUDIT_INT, "1", 0, whole_max, NULL, "seed of synthetic weights", AT(weights_seed) },
    { "backend", CEDAR_AUDIT_CHOICE, "auto", 0, 0, "auto|cpu|cuda", "engine; auto takes a GPU if there is one",
      AT(backend) },
    { "arith", CEDAR_AUDIT_CHOICE, "f32", 0, 0, "wide|f32|bf16", "arithmetic between the model's own quantisers",
      AT(arith) },
    { "threads", CEDAR_AUDIT_INT, "0", 0, 1024, NULL, "threads of the CPU engine and of scoring; 0 = all processors",
      AT(threads) },
    { "gpus", CEDAR_AUDIT_INT, "1", 1, CEDAR_GPUS_MAX, NULL,
      "GPUs that compute together, at most the model's output groups; on the CPU: groups of threads", AT(gpus) },
    { "seed", CEDAR_AUDIT_INT, "42", 0, whole_max, NULL, "seed of the documents and of the resamples", AT(seed) },
    { "arms", CEDAR_AUDIT_TEXTS, "exact,exact hits=cold chunk=7,encoder,decoder,both", 0, 0, NULL,
      "arms compared with exact recomputation", AT(arms) },
    { "trace", CEDAR_AUDIT_TEXT, "", 0, 0, NULL,
      "trace files and directories, separated by commas: documents are their root streams; empty = made from the seed",
      AT(trace) },
    { "documents", CEDAR_AUDIT_TEXT, "", 0, 0, NULL, "file of documents made into tokens, with their turns",
      AT(documents) },
    { "length_scale", CEDAR_AUDIT_TEXT, "1", 0, 0, NULL, "recorded lengths times this, \"1/32\"", AT(length_scale) },
    { "docs", CEDAR_AUDIT_INT, "8", 1, 100000, NULL, "documents, the unit of the statistics; of traces: at most",
      AT(docs) },
    { "turns", CEDAR_AUDIT_INT, "4", 1, 10000, NULL, "turns of a document; of traces: at most", AT(turns) },
    { "prompts", CEDAR_AUDIT_INTS, "96", 1, 1 << 24, NULL, "tokens of a document's first prompt, one after the other",
      AT(prompts) },
    { "suffix", CEDAR_AUDIT_INTS, "24", 1, 1 << 24, NULL, "new prompt tokens of later turns, one after the other",
      AT(suffix) },
    { "answer", CEDAR_AUDIT_INTS, "16", 1, 1 << 24, NULL, "tokens of the forced answers, one after the other",
      AT(answer) },
    { "hit_back", CEDAR_AUDIT_INTS, "0", 0, 1 << 24, NULL,
      "tokens by which the hit of a later turn ends before the turn before it, one after the other", AT(hit_back) },
    { "repeats", CEDAR_AUDIT_INT, "1", 1, 1000, NULL, "turns that follow from the same hit, with suffixes of their own",
      AT(repeats) },
    { "pattern", CEDAR_AUDIT_CHOICE, "random", 0, 0, "random|run|copy|brackets|entity", "what the tokens look like",
      AT(pattern) },
    { "lag", CEDAR_AUDIT_INT, "0", 0, 1 << 24, NULL,
      "distance of copies, length of runs or entities; 0 = the model's window", AT(lag) },
    { "needles", CEDAR_AUDIT_INTS, "", 0, 1 << 24, NULL,
      "facts asked for in the last turn: tokens from each one's value to the hit's end", AT(needles) },
    { "score", CEDAR_AUDIT_CHOICE, "all", 0, 0, "all|answer", "positions compared: all behind the hit, or the answer",
      AT(score) },
    { "layers", CEDAR_AUDIT_INTS, "", 0, CEDAR_LAYERS_MAX, NULL, "layers looked into at every scored position",
      AT(layers) },
    { "globals", CEDAR_AUDIT_INT, "1", 0, 1e9, NULL, "compare the global rows of every n-th document; 0 = of none",
      AT(globals) },
    { "positions", CEDAR_AUDIT_BOOL, "true", 0, 0, NULL, "keep a row per scored position; false: the statistics alone",
      AT(keep_positions) },
    { "greedy_tokens", CEDAR_AUDIT_INT, "0", 0, 1 << 20, NULL, "greedy continuation followed behind a prompt",
      AT(greedy_tokens) },
    { "greedy_turns", CEDAR_AUDIT_CHOICE, "last", 0, 0, "last|all", "turns that are continued", AT(greedy_turns) },
    { "drafts", CEDAR_AUDIT_BOOL, "false", 0, 0, NULL, "DSpark acceptance along the greedy continuation", AT(drafts) },
    { "noise_margin", CEDAR_AUDIT_REAL, "0", 0, 1, NULL, "margin below which a greedy flip counts as a tie",
      AT(noise_margin) },
    { "page_tokens", CEDAR_AUDIT_INT, "16", 1, 65536, NULL, "tokens per KV page", AT(page_tokens) },
    { "step_tokens", CEDAR_AUDIT_INT, "512", 1, 1 << 20, NULL, "rows of a step at most, and of a prompt's chunks",
      AT(step_tokens) },
    { "score_rows", CEDAR_AUDIT_INT, "0", 0, 1 << 20, NULL, "rows compared at a time; 0 = what 256 MiB of logits hold",
      AT(score_rows) },
    { "context_max", CEDAR_AUDIT_INT, "0", 0, 1 << 24, NULL, "documents end here; 0 = what the model allows",
      AT(context_max) },
    { "resamples", CEDAR_AUDIT_INT, "10000", 2, 10000000, NULL, "bootstrap resamples of documents", AT(resamples) },
    { "margin_kl", CEDAR_AUDIT_REAL, "0.001", 0, 100, NULL, "equivalence margin of mean KL, nats", AT(margin_kl) },
    { "margin_dlogp", CEDAR_AUDIT_REAL, "0.001", 0, 100, NULL, "equivalence margin of mean dlogp, nats per token",
      AT(margin_dlogp) },
    { "margin_top1", CEDAR_AUDIT_REAL, "0.001", 0, 1, NULL, "equivalence margin of decisive top-1 disagreement",
      AT(margin_top1) }
};
enum { KEYS = sizeof table / sizeof *table };

const cedar_audit_option *cedar_audit_table(size_t *count) {
    *count = KEYS;
    return table;
}

static cedar_status bad(const cedar_audit_option *k, const char *text, const char *want, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_ARG, "%s = \"%.64s\": must be %s", k->key, text, want);
}

static cedar_status parse_number(const cedar_audit_option *k, const char *text, double *out, cedar_err *err) {
    char *end;
    errno = 0;
    *out = strtod(text, &end);
    bool plain = isdigit((unsigned char)*text) || (*text == '.' && isdigit((unsigned char)text[1]));
    if (!plain || *end || errno || !isfinite(*out)) return bad(k, text, "a number that is not negative", err);
    if (k->type != CEDAR_AUDIT_REAL && *out != floor(*out)) return bad(k, text, "a whole number", err);
    if (*out < k->lo || *out > k->hi)
        return cedar_fail(err, CEDAR_E_ARG, "%s = %.64s: allowed are %.0f to %.0f", k->key, text, k->lo, k->hi);
    return CEDAR_OK;
}

/* Copies the piece of a list up to the next comma. */
static cedar_status take_piece(const cedar_audit_option *k, const char **text, char *out, size_t room, cedar_err *err) {
    size_t n = strcspn(*text, ",");
    if (n >= room)
        return cedar_fail(err, CEDAR_E_ARG, "%s: \"%.64s...\" is longer than %zu bytes", k->key, *text, room - 1);
    memcpy(out, *text, n);
    out[n] = 0;
    *text += n + ((*text)[n] == ',');
    return CEDAR_OK;
}

static cedar_status set_ints(cedar_audit_opts *o, const cedar_audit_option *k, const char *text, cedar_err *err) {
    cedar_audit_list list = { .count = 0 };
    while (*text) {
        char piece[32];
        double x;
        if (list.count == CEDAR_AUDIT_LIST_MAX)
            return cedar_fail(err, CEDAR_E_ARG, "%s: at most %d values", k->key, CEDAR_AUDIT_LIST_MAX);
        cedar_status st = take_piece(k, &text, piece, sizeof piece, err);
        if (!st) st = parse_number(k, piece, &x, err);
        if (st) return st;
        list.v[list.count++] = (uint32_t)x;
    }
    memcpy((char *)o + k->place, &list, sizeof list);
    return CEDAR_OK;
}

static cedar_status set_arms(cedar_audit_opts *o, const cedar_audit_option *k, const char *text, cedar_err *err) {
    char arms[CEDAR_AUDIT_LIST_MAX][sizeof *o->arms] = { "" };
    uint32_t count = 0;
    while (*text) {
        if (count == CEDAR_AUDIT_LIST_MAX)
            return cedar_fail(err, CEDAR_E_ARG, "%s: at most %d arms", k->key, CEDAR_AUDIT_LIST_MAX);
        cedar_status st = take_piece(k, &text, arms[count++], sizeof *arms, err);
        if (st) return st;
    }
    if (count == 0) return cedar_fail(err, CEDAR_E_ARG, "%s: name at least one arm, for example \"encoder\"", k->key);
    memcpy(o->arms, arms, sizeof arms);
    o->arm_count = count;
    return CEDAR_OK;
}

static bool is_choice(const char *choices, const char *text) {
    size_t n = strlen(text);
    for (const char *c = choices; *c; c += strcspn(c, "|"), c += *c == '|')
        if (strcspn(c, "|") == n && strncmp(c, text, n) == 0) return true;
    return false;
}

static cedar_status set_text(cedar_audit_opts *o, const cedar_audit_option *k, const char *text, cedar_err *err) {
    if (strlen(text) >= k->room)
        return cedar_fail(err, CEDAR_E_ARG, "%s: \"%.64s...\" is longer than %zu bytes", k->key, text, k->room - 1);
    if (k->type == CEDAR_AUDIT_CHOICE && !is_choice(k->choices, text)) {
        char want[160];
        snprintf(want, sizeof want, "one of %s", k->choices);
        return bad(k, text, want, err);
    }
    snprintf((char *)o + k->place, k->room, "%s", text);
    return CEDAR_OK;
}

static cedar_status set_number(cedar_audit_opts *o, const cedar_audit_option *k, const char *text, cedar_err *err) {
    double x;
    cedar_status st = parse_number(k, text, &x, err);
    if (st) return st;
    char *at = (char *)o + k->place;
    if (k->type == CEDAR_AUDIT_REAL) memcpy(at, &x, sizeof x);
    else if (k->room == sizeof(uint64_t)) memcpy(at, &(uint64_t){ (uint64_t)x }, sizeof(uint64_t));
    else memcpy(at, &(uint32_t){ (uint32_t)x }, sizeof(uint32_t));
    return CEDAR_OK;
}

cedar_status cedar_audit_set(cedar_audit_opts *o, const char *key, const char *text, cedar_err *err) {
    const cedar_audit_option *k = NULL;
    for (int i = 0; i < KEYS; i++)
        if (strcmp(table[i].key, key) == 0) k = &table[i];
    if (!k) return cedar_fail(err, CEDAR_E_ARG, "unknown option \"%.64s\"; docs/AUDIT.md lists the options", key);
    switch (k->type) {
    case CEDAR_AUDIT_INT: case CEDAR_AUDIT_REAL: return set_number(o, k, text, err);
    case CEDAR_AUDIT_BOOL:
        if (strcmp(text, "true") && strcmp(text, "false")) return bad(k, text, "true or false", err);
        *((bool *)o + k->place) = *text == 't';
        return CEDAR_OK;
    case CEDAR_AUDIT_TEXT: case CEDAR_AUDIT_CHOICE: return set_text(o, k, text, err);
    case CEDAR_AUDIT_INTS: return set_ints(o, k, text, err);
    case CEDAR_AUDIT_TEXTS: return set_arms(o, k, text, err);
    }
    return CEDAR_OK;
}

void cedar_audit_defaults(cedar_audit_opts *o) {
    memset(o, 0, sizeof *o);
    for (int i = 0; i < KEYS; i++) {
        cedar_status st = cedar_audit_set(o, table[i].key, table[i].value_default, NULL);
        CEDAR_ASSERT(st == CEDAR_OK);
    }
}

/* --- values to text ----------------------------------------------------------------------------------------------- */

static void get_list(const cedar_audit_opts *o, const cedar_audit_option *k, char *out, size_t bytes) {
    cedar_audit_list list;
    bool texts = k->type == CEDAR_AUDIT_TEXTS;
    memcpy(&list, (const char *)o + k->place, texts ? 0 : sizeof list);
    uint32_t count = texts ? o->arm_count : list.count;
    size_t at = 0;
    *out = 0;
    for (uint32_t i = 0; i < count && at < bytes; i++) {
        if (texts) at += (size_t)snprintf(out + at, bytes - at, "%s%s", i ? "," : "", o->arms[i]);
        else at += (size_t)snprintf(out + at, bytes - at, "%s%u", i ? "," : "", list.v[i]);
    }
}

void cedar_audit_get(const cedar_audit_opts *o, const cedar_audit_option *k, char *out, size_t bytes) {
    const char *at = (const char *)o + k->place;
    uint64_t whole = 0;
    double real;
    switch (k->type) {
    case CEDAR_AUDIT_INT:
        memcpy(&whole, at, k->room);    /* 4 or 8 bytes, little endian as everywhere here */
        snprintf(out, bytes, "%llu", (unsigned long long)whole);
        return;
    case CEDAR_AUDIT_REAL:
        memcpy(&real, at, sizeof real);
        snprintf(out, bytes, "%.9g", real);
        return;
    case CEDAR_AUDIT_BOOL: snprintf(out, bytes, "%s", *(const bool *)at ? "true" : "false"); return;
    case CEDAR_AUDIT_TEXT: case CEDAR_AUDIT_CHOICE: snprintf(out, bytes, "%s", at); return;
    case CEDAR_AUDIT_INTS: case CEDAR_AUDIT_TEXTS: get_list(o, k, out, bytes); return;
    }
}

static size_t put_json(char *out, size_t bytes, size_t at, const char *text) {
    char code[CEDAR_JSON_CHAR_BYTES];
    if (at + 1 < bytes) out[at++] = '"';
    for (; *text && at + sizeof code < bytes; text++)
        at += (size_t)snprintf(out + at, bytes - at, "%s", cedar_json_char(*text, code));
    if (at + 1 < bytes) out[at++] = '"';
    return at;
}

void audit_options_json(const cedar_audit_opts *o, char *out, size_t bytes) {
    char value[CEDAR_AUDIT_LIST_MAX * 64 + 16];
    size_t at = 0;
    out[at++] = '{';
    for (int i = 0; i < KEYS; i++) {
        if (i > 0) out[at++] = ',';
        at = put_json(out, bytes, at, table[i].key);
        out[at++] = ':';
        cedar_audit_get(o, &table[i], value, sizeof value);
        at = put_json(out, bytes, at, value);
    }
    out[at++] = '}';
    out[at] = 0;
}
