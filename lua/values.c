/* Conversions between Lua values, option texts and result records. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua/script_int.h"

#define OPTS_TYPE "cedar run options"

/* --- nearest names ---------------------------------------------------------------------------------------------- */

static size_t count_keys(lua_State *L, int table) {
    size_t count = 0;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) count++;
    return count;
}

static int compare_words(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Adds the string keys of a table to words, sorted; they stay valid while the table holds them. */
static size_t add_words(lua_State *L, int table, const char **words) {
    size_t count = 0;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1))
        if (lua_type(L, -2) == LUA_TSTRING) words[count++] = lua_tostring(L, -2);
    qsort(words, count, sizeof *words, compare_words);
    return count;
}

void values_push_nearest(lua_State *L, const char *word, int index, int index2) {
    size_t room = count_keys(L, index) + (index2 ? count_keys(L, index2) : 0) + 1;
    const char **words = lua_newuserdatauv(L, room * sizeof *words, 0);
    size_t count = add_words(L, index, words);
    if (index2) count += add_words(L, index2, words + count);
    lua_pushstring(L, cedar_nearest(word, words, count)); /* NULL becomes nil */
    lua_remove(L, -2);
}

static void unknown_key(lua_State *L, const char *verb, const char *key, const char *const *known, size_t count) {
    const char *near = cedar_nearest(key, known, count);
    if (near) script_fail(L, "%s: unknown key \"%.64s\"; did you mean \"%s\"?", verb, key, near);
    lua_pushstring(L, known[0]);
    for (size_t i = 1; i < count; i++) {
        lua_pushfstring(L, ", %s", known[i]);
        lua_concat(L, 2);
    }
    script_fail(L, "%s: unknown key \"%.64s\"; known are %s", verb, key, lua_tostring(L, -1));
}

void values_check_keys(lua_State *L, const char *verb, int index, const char *const *known, size_t count) {
    const char *first = NULL;
    for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
        const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";
        bool found = false;
        for (size_t i = 0; i < count; i++) found |= strcmp(known[i], key) == 0;
        if (!found && (!first || strcmp(key, first) < 0)) first = key;
    }
    if (first) unknown_key(L, verb, first, known, count);
}

/* __index of a strict table. Upvalue 1: what the table is. */
static int unknown_field(lua_State *L) {
    const char *what = lua_tostring(L, lua_upvalueindex(1));
    const char *name = stdlib_text(L, 2, NULL);
    if (lua_type(L, 1) == LUA_TTABLE) values_push_nearest(L, name, 1, 0);
    else lua_pushnil(L);
    if (lua_isnil(L, -1)) return script_fail(L, "unknown field \"%.64s\" of %s", name, what);
    return script_fail(L, "unknown field \"%.64s\" of %s; did you mean \"%s\"?", name, what, lua_tostring(L, -1));
}

void values_make_strict(lua_State *L, const char *what) {
    lua_createtable(L, 0, 2);
    lua_pushstring(L, what);
    lua_pushcclosure(L, unknown_field, 1);
    lua_setfield(L, -2, "__index");
    lua_pushliteral(L, "locked");
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
}

/* --- run options ------------------------------------------------------------------------------------------------ */

void values_free_opts(cedar_run_opts **box) {
    cedar_opts_free(*box);
    *box = NULL;
}

static int opts_gc(lua_State *L) {
    values_free_opts(luaL_checkudata(L, 1, OPTS_TYPE));
    return 0;
}

cedar_run_opts **values_new_opts(lua_State *L) {
    cedar_run_opts **box = lua_newuserdatauv(L, sizeof *box, 0);
    *box = NULL;
    if (luaL_newmetatable(L, OPTS_TYPE)) {
        lua_pushcfunction(L, opts_gc);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    return box;
}

const cedar_opt_info *values_find(const char *key) {
    size_t count;
    const cedar_opt_info *table = cedar_opt_table(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].key, key) == 0) return &table[i];
    return NULL;
}

const char *values_override(const script *s, const char *key) {
    size_t n = strlen(key);
    for (size_t i = s->opts->override_count; i-- > 0;) {
        const char *word = s->opts->overrides[i];
        if (strncmp(word, key, n) == 0 && word[n] == '=') return word + n + 1;
    }
    return NULL;
}

void values_set(lua_State *L, const char *verb, cedar_run_opts *o, const char *key, const char *value) {
    cedar_err err = { 0 };
    cedar_status st = cedar_opts_set(o, key, value, &err);
    if (st == CEDAR_E_OOM) script_fail_status(L, verb, &err);
    if (st) script_fail(L, "%s: %s", verb, err.msg);
}

static int wrong_type(lua_State *L, const char *verb, const cedar_opt_info *k, const char *want, int index) {
    return script_fail(L, "%s: %s must be %s, not a %s", verb, k->key, want, luaL_typename(L, index));
}

static const char *push_whole(lua_State *L, const char *verb, const cedar_opt_info *k, int index) {
    int whole;
    lua_Integer i = lua_tointegerx(L, index, &whole);
    if (lua_type(L, index) != LUA_TNUMBER) wrong_type(L, verb, k, "a whole number", index);
    if (!whole) script_fail(L, "%s: %s = %s: must be a whole number", verb, k->key, stdlib_text(L, index, NULL));
    return lua_pushfstring(L, "%I", (LUAI_UACINT)i);
}

/* A decimal number as text: rounded to the digits the option can hold, never to 0. */
static const char *push_decimal(lua_State *L, const char *verb, const cedar_opt_info *k, int index, int digits) {
    char text[400];
    double x = lua_tonumber(L, index);
    if (!isfinite(x)) script_fail(L, "%s: %s = %s: must be a finite number", verb, k->key, stdlib_text(L, index, NULL));
    int n = snprintf(text, sizeof text, "%.*f", digits, x);
    if (x != 0 && strtod(text, NULL) == 0)
        script_fail(L, "%s: %s = %s: too small, use at most %d digits after the point", verb, k->key,
                    stdlib_text(L, index, NULL), digits);
    while (text[n - 1] == '0') text[--n] = 0;
    if (text[n - 1] == '.') text[--n] = 0;
    return lua_pushstring(L, text);
}

/* 1/64 and 1/3 are floats in Lua; both become the fraction that was meant. */
static const char *push_ratio(lua_State *L, const char *verb, const cedar_opt_info *k, int index) {
    double x = lua_tonumber(L, index), den = x > 0 ? round(1 / x) : 0;
    if (den >= 2 && den <= 1e9 && 1 / den == x) return lua_pushfstring(L, "1/%I", (LUAI_UACINT)den);
    return push_decimal(L, verb, k, index, 9);
}

/* A list of paths, joined by commas. */
static const char *push_paths(lua_State *L, const char *verb, const cedar_opt_info *k, int index) {
    luaL_Buffer b;
    lua_Integer n = (lua_Integer)lua_rawlen(L, index);
    if (n == 0) script_fail(L, "%s: %s is an empty list", verb, k->key);
    for (lua_Integer i = 1; i <= n; i++) { /* checked before the buffer takes part of the stack */
        if (lua_rawgeti(L, index, i) != LUA_TSTRING) wrong_type(L, verb, k, "a string or a list of strings", -1);
        if (strchr(lua_tostring(L, -1), ','))
            script_fail(L, "%s: %s: path %lld of the list holds a comma", verb, k->key, (long long)i);
        lua_pop(L, 1);
    }
    luaL_buffinit(L, &b);
    for (lua_Integer i = 1; i <= n; i++) {
        if (i > 1) luaL_addchar(&b, ',');
        lua_rawgeti(L, index, i);
        luaL_addvalue(&b);
    }
    luaL_pushresult(&b);
    return lua_tostring(L, -1);
}

static const char *push_text(lua_State *L, const char *verb, const cedar_opt_info *k, int index) {
    size_t n;
    const char *text = lua_tolstring(L, index, &n);
    if (strlen(text) != n) script_fail(L, "%s: %s holds a zero byte", verb, k->key);
    lua_pushvalue(L, index);
    return text;
}

const char *values_push_option(lua_State *L, const char *verb, const cedar_opt_info *k, int index) {
    index = lua_absindex(L, index);
    bool is_text = lua_type(L, index) == LUA_TSTRING, is_number = lua_type(L, index) == LUA_TNUMBER;
    switch (k->type) {
    case CEDAR_OPT_INT: return push_whole(L, verb, k, index);
    case CEDAR_OPT_REAL:
        if (!is_number) wrong_type(L, verb, k, "a number", index);
        return push_decimal(L, verb, k, index, 6);
    case CEDAR_OPT_RATIO:
        if (is_text) return push_text(L, verb, k, index);
        if (!is_number) wrong_type(L, verb, k, "a number or a text such as \"1/64\"", index);
        return push_ratio(L, verb, k, index);
    case CEDAR_OPT_BOOL:
        if (!lua_isboolean(L, index)) wrong_type(L, verb, k, "true or false", index);
        return lua_pushstring(L, lua_toboolean(L, index) ? "true" : "false");
    case CEDAR_OPT_STRING:
    case CEDAR_OPT_CHOICE:
        if (is_text) return push_text(L, verb, k, index);
        if (lua_istable(L, index) && strcmp(k->key, "trace") == 0) return push_paths(L, verb, k, index);
        wrong_type(L, verb, k, strcmp(k->key, "trace") == 0 ? "a string or a list of strings" : "a string", index);
    }
    return NULL;
}

void values_push_typed(lua_State *L, const cedar_opt_info *k, const char *text) {
    switch (k->type) {
    case CEDAR_OPT_INT:
    case CEDAR_OPT_REAL:
        if (!lua_stringtonumber(L, text)) lua_pushstring(L, text);
        break;
    case CEDAR_OPT_BOOL: lua_pushboolean(L, strcmp(text, "true") == 0); break;
    default: lua_pushstring(L, text); break;
    }
}

/* --- results ---------------------------------------------------------------------------------------------------- */

typedef enum field_kind { FIELD_TEXT, FIELD_COUNT, FIELD_REAL, FIELD_HASH, FIELD_BOOL } field_kind;

#define FIELD(name, kind) { #name, kind, offsetof(cedar_run_result, name) }

static const struct field { const char *name; field_kind kind; size_t place; } fields[] = {
    FIELD(run_id, FIELD_COUNT), FIELD(label, FIELD_TEXT), FIELD(replay, FIELD_TEXT), FIELD(status, FIELD_TEXT),
    FIELD(event_hash, FIELD_HASH), FIELD(requests, FIELD_COUNT), FIELD(warmup_requests, FIELD_COUNT),
    FIELD(errors, FIELD_COUNT),
    FIELD(sessions, FIELD_COUNT), FIELD(steps, FIELD_COUNT), FIELD(in_tokens, FIELD_COUNT),
    FIELD(out_tokens, FIELD_COUNT), FIELD(hit_tokens, FIELD_COUNT), FIELD(replayed_tokens, FIELD_COUNT),
    FIELD(trimmed_tokens, FIELD_COUNT), FIELD(ttft_mean_ms, FIELD_REAL), FIELD(ttft_p50_ms, FIELD_REAL),
    FIELD(ttft_p90_ms, FIELD_REAL), FIELD(itl_mean_ms, FIELD_REAL), FIELD(itl_p50_ms, FIELD_REAL),
    FIELD(itl_p90_ms, FIELD_REAL), FIELD(interactivity_p90, FIELD_REAL),
    FIELD(floor_interactivity, FIELD_REAL), FIELD(floor_met, FIELD_BOOL), FIELD(submission_valid, FIELD_BOOL),
    FIELD(gate_ok, FIELD_BOOL), FIELD(invalid, FIELD_TEXT),
    FIELD(total_tok_s, FIELD_REAL), FIELD(output_tok_s, FIELD_REAL), FIELD(span_s, FIELD_REAL),
    FIELD(hit_rate, FIELD_REAL), FIELD(kv_bytes_peak, FIELD_COUNT), FIELD(window_bytes_peak, FIELD_COUNT),
    FIELD(kv_tokens_fit, FIELD_REAL), FIELD(quality_rows, FIELD_COUNT),
    FIELD(kl_mean, FIELD_REAL), FIELD(kl_p99, FIELD_REAL),
    FIELD(top1_rate, FIELD_REAL), FIELD(dlogp_mean, FIELD_REAL),
};

static void push_field(lua_State *L, const cedar_run_result *r, const struct field *f) {
    const char *at = (const char *)r + f->place;
    char hash[17];
    uint64_t count;
    double real;
    switch (f->kind) {
    case FIELD_TEXT: lua_pushstring(L, at); break;
    case FIELD_COUNT:
        memcpy(&count, at, sizeof count);
        lua_pushinteger(L, (lua_Integer)count);
        break;
    case FIELD_REAL:
        memcpy(&real, at, sizeof real);
        lua_pushnumber(L, real);
        break;
    case FIELD_BOOL: lua_pushboolean(L, *(const bool *)at); break;
    case FIELD_HASH:
        memcpy(&count, at, sizeof count);
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)count);
        lua_pushstring(L, hash);
        break;
    }
}

void values_push_result(lua_State *L, const cedar_run_result *r, const cedar_run_opts *o) {
    size_t count;
    const cedar_opt_info *table = cedar_opt_table(&count);
    lua_newtable(L);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        push_field(L, r, &fields[i]);
        lua_setfield(L, -2, fields[i].name);
    }
    lua_createtable(L, 0, (int)count);
    for (size_t i = 0; i < count; i++) {
        values_push_typed(L, &table[i], cedar_opts_get(o, table[i].key));
        lua_setfield(L, -2, table[i].key);
    }
    values_make_strict(L, "the options of a result");
    lua_setfield(L, -2, "options");
    values_make_strict(L, "a result");
}
