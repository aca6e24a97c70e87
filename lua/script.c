/* One scenario execution: sets up the sandbox, runs the text, and turns what happened into a status.
 *
 * Everything that touches Lua runs inside one lua_pcall, the opening of the libraries included, so no Lua error can
 * leave this file. All memory of the state goes through script_alloc and is gone after lua_close. */
#include "lua/script.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "lua/script_int.h"

script *script_of(lua_State *L) {
    script *s;
    memcpy(&s, lua_getextraspace(L), sizeof s);
    return s;
}

/* --- errors ----------------------------------------------------------------------------------------------------- */

void script_push_where(lua_State *L) {
    lua_Debug ar;
    for (int level = 0; lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "Sl", &ar);
        if (ar.currentline > 0) {
            lua_pushfstring(L, "%s:%d: ", ar.short_src, ar.currentline);
            return;
        }
    }
    lua_pushliteral(L, "");
}

int script_fail(lua_State *L, const char *fmt, ...) {
    char text[sizeof(cedar_err)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    script_push_where(L);
    lua_pushstring(L, text);
    lua_concat(L, 2);
    lua_error(L);
    __builtin_unreachable();
}

void script_check_fatal(lua_State *L) {
    script *s = script_of(L);
    if (!s->fatal.code) return;
    lua_pushstring(L, s->fatal.msg);
    lua_error(L);
}

int script_fail_status(lua_State *L, const char *what, const cedar_err *err) {
    script *s = script_of(L);
    cedar_err e = { 0 };
    script_push_where(L);
    (void)cedar_fail(&e, err->code, "%s%s: %s", lua_tostring(L, -1), what,
                     *err->msg ? err->msg : cedar_status_name(err->code));
    if (e.code == CEDAR_E_INTERRUPT || e.code == CEDAR_E_DB) s->fatal = e;
    else s->raised = e;
    lua_pushstring(L, e.msg);
    lua_error(L);
    __builtin_unreachable();
}

/* Message handler: names file and line where the message does not. Runs with hooks off, so it calls no Lua code. */
static int add_place(lua_State *L) {
    lua_Debug ar;
    if (lua_type(L, 1) != LUA_TSTRING) return 1;
    const char *msg = lua_tostring(L, 1);
    for (int level = 0; lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "S", &ar);
        size_t n = strlen(ar.short_src);
        if (*ar.what != 'C' && strncmp(msg, ar.short_src, n) == 0 && msg[n] == ':') return 1;
    }
    script_push_where(L);
    lua_insert(L, 1);
    lua_concat(L, 2);
    return 1;
}

/* --- running ---------------------------------------------------------------------------------------------------- */

static int text_of_error(lua_State *L) {
    stdlib_text(L, 1, NULL);
    return 1;
}

/* Runs everything; an error leaves as a string. */
static int play(lua_State *L) {
    script *s = script_of(L);
    sandbox_open(L);
    lua_settop(L, 0);
    lua_pushcfunction(L, add_place);
    lua_pushfstring(L, "@%s", s->opts->name);
    if (s->opts->bytes > 0 && s->opts->text[0] == LUA_SIGNATURE[0])
        return luaL_error(L, "%s: is compiled Lua; a scenario must be text", s->opts->name);
    /* Mode "t" refuses compiled chunks, which could break the interpreter. */
    if (luaL_loadbufferx(L, s->opts->text, s->opts->bytes, lua_tostring(L, 2), "t")) return lua_error(L);
    int status = lua_pcall(L, 0, 0, 1);
    if (status == LUA_ERRMEM || (status && lua_type(L, -1) == LUA_TSTRING)) return lua_error(L);
    if (status) {
        lua_pushfstring(L, "%s: error(...) was called with a value that is not text: ", s->opts->name);
        lua_pushcfunction(L, text_of_error);
        lua_pushvalue(L, -3);
        lua_call(L, 1, 1);
        lua_concat(L, 2);
        return lua_error(L);
    }
    return 0;
}

/* Status of an uncaught error, whose message is at the top. */
static cedar_status uncaught(const script *s, lua_State *L, int status, cedar_err *err) {
    const char *msg = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "unknown error";
    bool no_memory = status == LUA_ERRMEM || strcmp(msg, "not enough memory") == 0;
    if (no_memory && s->memory_refused)
        return cedar_fail(err, CEDAR_E_SCRIPT, "%s: the scenario's own data needs more than %llu bytes of memory",
                          s->opts->name, (unsigned long long)s->memory_max);
    if (no_memory) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for the scenario", s->opts->name);
    if (s->raised.code && strcmp(msg, s->raised.msg) == 0)
        return cedar_fail(err, s->raised.code, "%s", s->raised.msg);
    return cedar_fail(err, CEDAR_E_SCRIPT, "%s", msg);
}

static bool is_audit_option(const char *key) {
    size_t count;
    const cedar_audit_option *option = cedar_audit_table(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(option[i].key, key) == 0) return true;
    return false;
}

/* Overrides must be right before anything runs: as options of runs, or of audits where runs have no such key. */
static cedar_status check_overrides(const cedar_script_opts *opts, cedar_err *err) {
    cedar_run_opts *o = NULL;
    cedar_audit_opts *audit = cedar_calloc(1, sizeof *audit);
    cedar_status st = audit ? cedar_opts_new(&o, err) : cedar_fail(err, CEDAR_E_OOM, "no memory for options");
    for (size_t i = 0; i < opts->override_count && !st; i++) {
        const char *word = opts->overrides[i], *value = strchr(word, '=');
        char key[64];
        if (!value || value == word || value - word >= (ptrdiff_t)sizeof key) {
            st = cedar_fail(err, CEDAR_E_ARG, "\"%.64s\": an override is key=value, for example lanes=8", word);
            break;
        }
        snprintf(key, sizeof key, "%.*s", (int)(value - word), word);
        bool of_audits = !values_find(key) && is_audit_option(key);
        st = of_audits ? cedar_audit_set(audit, key, value + 1, err) : cedar_opts_set(o, key, value + 1, err);
        if (st) st = cedar_fail_in(err, st, "override %s", key);    /* without the value, which may be a secret */
    }
    cedar_opts_free(o);
    cedar_free(audit);
    return st;
}

static cedar_status finish(const script *s, cedar_err *err) {
    if (s->expect_failed == 0) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_EXPECT, "%llu of %llu expectations failed; the first: %s",
                      (unsigned long long)s->expect_failed, (unsigned long long)s->expect_count, s->expect_first);
}

cedar_status cedar_script_run(const cedar_script_opts *opts, const cedar_script_host *host, cedar_err *err) {
    cedar_status st = check_overrides(opts, err);
    if (st) return st;
    script s = { .opts = opts, .host = host };
    s.memory_max = opts->memory_max ? opts->memory_max : CEDAR_SCRIPT_MEMORY;
    s.instructions_max = opts->instructions_max ? opts->instructions_max : CEDAR_SCRIPT_INSTRUCTIONS;
    lua_State *L = lua_newstate(script_alloc, &s);
    if (!L) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for a Lua state", opts->name);
    script *self = &s;
    memcpy(lua_getextraspace(L), &self, sizeof self);
    lua_pushcfunction(L, play);
    int status = lua_pcall(L, 0, 0, 0);
    if (s.fatal.code) st = cedar_fail(err, s.fatal.code, "%s", s.fatal.msg);
    else if (status) st = uncaught(&s, L, status, err);
    else st = finish(&s, err);
    lua_close(L);
    return st;
}
