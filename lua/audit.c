/* audit{...}: options from a table, and the result as a table (docs/SCENARIOS.md). */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "lua/script_int.h"

/* --- options ------------------------------------------------------------------------------------------------------ */

static int wrong_type(lua_State *L, const cedar_audit_option *k, const char *want, int index) {
    return script_fail(L, "audit: %s must be %s, not a %s", k->key, want, luaL_typename(L, index));
}

/* A whole or decimal number as text. */
static const char *push_number(lua_State *L, const cedar_audit_option *k, int index) {
    char text[64];
    int whole;
    if (lua_type(L, index) != LUA_TNUMBER) wrong_type(L, k, "a number", index);
    lua_Integer i = lua_tointegerx(L, index, &whole);
    if (whole) return lua_pushfstring(L, "%I", (LUAI_UACINT)i);
    snprintf(text, sizeof text, "%.17g", lua_tonumber(L, index));
    return lua_pushstring(L, text);
}

static const char *push_text(lua_State *L, const cedar_audit_option *k, int index) {
    size_t bytes;
    const char *text = lua_tolstring(L, index, &bytes);
    if (strlen(text) != bytes) script_fail(L, "audit: %s holds a zero byte", k->key);
    lua_pushvalue(L, index);
    return text;
}

/* Values of a list, joined by commas; one value counts as a list of one. */
static const char *push_list(lua_State *L, const cedar_audit_option *k, int index) {
    bool texts = k->type == CEDAR_AUDIT_TEXTS;
    int want = texts ? LUA_TSTRING : LUA_TNUMBER;
    if (lua_type(L, index) == want) {
        if (texts) push_text(L, k, index);
        else push_number(L, k, index);
        return lua_tostring(L, -1);
    }
    if (!lua_istable(L, index)) wrong_type(L, k, texts ? "a text or a list of texts" : "a number or a list", index);
    lua_Integer n = (lua_Integer)lua_rawlen(L, index);
    lua_pushliteral(L, "");
    for (lua_Integer i = 1; i <= n; i++) {
        if (lua_rawgeti(L, index, i) != want)
            wrong_type(L, k, texts ? "a list of texts" : "a list of whole numbers", -1);
        if (texts && strchr(push_text(L, k, -1), ','))
            script_fail(L, "audit: %s: \"%.60s\" holds a comma", k->key, lua_tostring(L, -1));
        if (!texts) push_number(L, k, -1);
        lua_remove(L, -2);
        lua_pushfstring(L, "%s%s%s", lua_tostring(L, -2), i > 1 ? "," : "", lua_tostring(L, -1));
        lua_replace(L, -3);
        lua_pop(L, 1);
    }
    return lua_tostring(L, -1);
}

static const char *push_value(lua_State *L, const cedar_audit_option *k, int index) {
    switch (k->type) {
    case CEDAR_AUDIT_INT: case CEDAR_AUDIT_REAL: return push_number(L, k, index);
    case CEDAR_AUDIT_BOOL:
        if (!lua_isboolean(L, index)) wrong_type(L, k, "true or false", index);
        return lua_pushstring(L, lua_toboolean(L, index) ? "true" : "false");
    case CEDAR_AUDIT_TEXT: case CEDAR_AUDIT_CHOICE:
        if (strcmp(k->key, "length_scale") == 0 || strcmp(k->key, "trace") == 0)    /* as runs take them */
            return values_push_option(L, "audit", values_find(k->key), index);
        if (lua_type(L, index) != LUA_TSTRING) wrong_type(L, k, "a text", index);
        return push_text(L, k, index);
    case CEDAR_AUDIT_INTS: case CEDAR_AUDIT_TEXTS: return push_list(L, k, index);
    }
    return NULL;
}

/* Raises for the first key, by bytes, that is no option. */
static void check_keys(lua_State *L, int table) {
    size_t count;
    const cedar_audit_option *option = cedar_audit_table(&count);
    const char *first = NULL, *keys[128];
    for (size_t i = 0; i < count; i++) keys[i] = option[i].key;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            script_fail(L, "audit: options are written key = value; there is a value without a key");
        const char *key = lua_tostring(L, -2);
        bool known = false;
        for (size_t i = 0; i < count; i++) known = known || strcmp(key, keys[i]) == 0;
        if (!known && (!first || strcmp(key, first) < 0)) first = key;
    }
    if (!first) return;
    const char *near = cedar_nearest(first, keys, count);
    if (near) script_fail(L, "audit: unknown option \"%.64s\"; did you mean \"%s\"?", first, near);
    script_fail(L, "audit: unknown option \"%.64s\"; docs/AUDIT.md lists the options", first);
}

static void set_option(lua_State *L, cedar_audit_opts *o, const cedar_audit_option *k, const char *text) {
    cedar_err err = { 0 };
    if (cedar_audit_set(o, k->key, text, &err)) script_fail(L, "audit: %s", err.msg);
}

/* Options of the table at 1, then key=value words of the command line whose keys an audit has too. */
static void read_options(lua_State *L, cedar_audit_opts *o) {
    size_t count;
    const cedar_audit_option *option = cedar_audit_table(&count);
    check_keys(L, 1);
    for (size_t i = 0; i < count; i++) {
        lua_pushstring(L, option[i].key);
        if (lua_rawget(L, 1) != LUA_TNIL) set_option(L, o, &option[i], push_value(L, &option[i], lua_gettop(L)));
        lua_settop(L, 2);
        const char *word = values_override(script_of(L), option[i].key);
        if (word) set_option(L, o, &option[i], word);
    }
}

/* --- results ------------------------------------------------------------------------------------------------------ */

typedef enum field_kind { FIELD_TEXT, FIELD_COUNT, FIELD_REAL } field_kind;
typedef struct field { const char *name; field_kind kind; size_t place; } field;

#define ARM(name, kind) { #name, kind, offsetof(cedar_audit_arm_result, name) }
static const field arm_fields[] = {
    ARM(label, FIELD_TEXT), ARM(control, FIELD_TEXT), ARM(docs, FIELD_COUNT), ARM(positions, FIELD_COUNT),
    ARM(kl_mean, FIELD_REAL), ARM(kl_lo, FIELD_REAL), ARM(kl_hi, FIELD_REAL), ARM(kl_max, FIELD_REAL),
    ARM(top1_rate, FIELD_REAL), ARM(decisive, FIELD_COUNT), ARM(decisive_rate, FIELD_REAL),
    ARM(dlogp_mean, FIELD_REAL), ARM(dlogp_lo, FIELD_REAL), ARM(dlogp_hi, FIELD_REAL),
    ARM(kl_p_equivalent, FIELD_REAL), ARM(needle_dlogp, FIELD_REAL), ARM(greedy_mean, FIELD_REAL),
    ARM(fault_kl, FIELD_REAL), ARM(fault_lo, FIELD_REAL), ARM(fault_hi, FIELD_REAL),
    ARM(layer_max, FIELD_REAL), ARM(global_rows, FIELD_COUNT), ARM(global_differ, FIELD_COUNT),
    ARM(adopted_changed, FIELD_COUNT), ARM(window_bytes, FIELD_COUNT), ARM(prompt_rows, FIELD_COUNT),
    ARM(prompt_kept, FIELD_COUNT), ARM(replayed, FIELD_COUNT), ARM(verdict, FIELD_TEXT), ARM(prompt_s, FIELD_REAL),
    ARM(forward_s, FIELD_REAL)
};

#define RESULT(name, kind) { #name, kind, offsetof(cedar_audit_result, name) }
static const field result_fields[] = {
    RESULT(audit_id, FIELD_COUNT), RESULT(status, FIELD_TEXT), RESULT(positions, FIELD_COUNT),
    RESULT(exact_s, FIELD_REAL), RESULT(forward_s, FIELD_REAL), RESULT(score_s, FIELD_REAL),
    RESULT(wall_s, FIELD_REAL), RESULT(overhead, FIELD_REAL)
};

static void set_fields(lua_State *L, const void *record, const field *f, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const char *at = (const char *)record + f[i].place;
        uint64_t whole;
        double real;
        if (f[i].kind == FIELD_TEXT) lua_pushstring(L, at);
        else if (f[i].kind == FIELD_COUNT) lua_pushinteger(L, (lua_Integer)(memcpy(&whole, at, sizeof whole), whole));
        else lua_pushnumber(L, (memcpy(&real, at, sizeof real), real));
        lua_setfield(L, -2, f[i].name);
    }
}

/* arms: by number, and by label; a list that ipairs can walk. */
static void push_result(lua_State *L, const cedar_audit_result *r) {
    char hash[17];
    lua_newtable(L);
    set_fields(L, r, result_fields, sizeof result_fields / sizeof *result_fields);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->result_hash);
    lua_pushstring(L, hash);
    lua_setfield(L, -2, "result_hash");
    lua_createtable(L, (int)r->arm_count, (int)r->arm_count);
    for (uint32_t i = 0; i < r->arm_count; i++) {
        lua_newtable(L);
        set_fields(L, &r->arms[i], arm_fields, sizeof arm_fields / sizeof *arm_fields);
        values_make_strict(L, "an arm of an audit");
        lua_pushvalue(L, -1);
        lua_rawseti(L, -3, (lua_Integer)i + 1);
        lua_setfield(L, -2, r->arms[i].label);
    }
    lua_setfield(L, -2, "arms");
    values_make_strict(L, "the result of an audit");
}

int verb_audit(lua_State *L) {
    script_check_fatal(L);
    verbs_need_table(L, "audit", 1, "audit{ arms = { \"encoder\", \"decoder\" } }");
    script *s = script_of(L);
    lua_settop(L, 1);
    cedar_audit_opts *o = lua_newuserdatauv(L, sizeof *o, 0);
    cedar_audit_defaults(o);
    read_options(L, o);
    cedar_audit_result *r = lua_newuserdatauv(L, sizeof *r, 0);
    cedar_err err = { 0 };
    if (!s->host->audit) return script_fail(L, "audit: this program plays no audits");
    cedar_status st = s->host->audit(s->host->self, o, r, &err);
    if (st) {
        err.code = st;
        return script_fail_status(L, "audit", &err);
    }
    push_result(L, r);
    return 1;
}
