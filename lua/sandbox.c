/* Limits and globals of a scenario: memory cap, instruction limit, and the table of names it may use.
 *
 * The names are those of a fresh library table. Scenario code sees a globals table in front of it: what a scenario
 * assigns at its top level lands there; anything else that is read and does not exist is an error that names the
 * nearest name. The libraries are read-only, and nothing in them depends on the machine, the clock or addresses. */
#include <lualib.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "lua/script_int.h"

enum { INSTRUCTIONS_PER_HOOK = 1000 };

/* --- limits ----------------------------------------------------------------------------------------------------- */

void *script_alloc(void *self, void *p, size_t size_old, size_t size_new) {
    script *s = self;
    size_t old = p ? size_old : 0; /* for a new block, size_old is a type */
    if (size_new == 0) {
        s->memory_used -= old;
        cedar_free(p);
        return NULL;
    }
    if (size_new > old && size_new - old > s->memory_max - s->memory_used) {
        s->memory_refused = true;
        return NULL;
    }
    void *q = cedar_realloc(p, size_new, 1);
    if (!q && size_new <= old) q = p; /* shrinking must not fail */
    if (q) s->memory_used += size_new - old;
    return q;
}

/* Counts instructions. Once an error is fatal, every further call raises it again, also in code that runs while the
 * error makes its way up. */
static void on_count(lua_State *L, lua_Debug *ar) {
    (void)ar;
    script *s = script_of(L);
    s->instructions += (uint64_t)lua_gethookcount(L);
    if (!s->fatal.code && s->opts->stop && *s->opts->stop) {
        script_push_where(L);
        (void)cedar_fail(&s->fatal, CEDAR_E_INTERRUPT, "%sinterrupted", lua_tostring(L, -1));
    } else if (!s->fatal.code && s->instructions >= s->instructions_max) {
        script_push_where(L);
        (void)cedar_fail(&s->fatal, CEDAR_E_SCRIPT,
                         "%sthe scenario ran more than %llu instructions; is there an endless loop?",
                         lua_tostring(L, -1), (unsigned long long)s->instructions_max);
    }
    script_check_fatal(L);
    if (s->policy_end && s->instructions >= s->policy_end)
        luaL_error(L, "the policy ran more than %d instructions for one request", POLICY_INSTRUCTIONS_MAX);
}

static void set_limits(lua_State *L) {
    uint64_t most = script_of(L)->instructions_max;
    lua_sethook(L, on_count, LUA_MASKCOUNT, most < INSTRUCTIONS_PER_HOOK ? (int)most : INSTRUCTIONS_PER_HOOK);
}

/* --- globals ---------------------------------------------------------------------------------------------------- */

/* What Lua programmers look for and do not find, with the reason. */
static const struct { const char *name, *why; } absent[] = {
    { "os", "results must not depend on the machine or the time" },
    { "io", "scenarios do not read or write files; give trace paths to run" },
    { "debug", "it could reach around the sandbox" },
    { "package", "a scenario is one file" },
    { "require", "a scenario is one file" },
    { "dofile", "a scenario is one file" },
    { "loadfile", "a scenario is one file" },
    { "load", "code is not made from text" },
    { "loadstring", "code is not made from text" },
    { "coroutine", "scenarios run from top to bottom" },
    { "collectgarbage", "memory is managed by the limit" },
    { "next", "its order differs from run to run; use pairs" },
    { "unpack", "use table.unpack" },
    { "warn", "use note" },
    { "_G", "use the names themselves" },
    { "_VERSION", "scenarios are Lua 5.4" },
};

/* __index behind the libraries: upvalue 1 is the library table. */
static int unknown_global(lua_State *L) {
    size_t bytes;
    const char *name = stdlib_text(L, 2, &bytes);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (strcmp(absent[i].name, name) == 0)
            return script_fail(L, "\"%s\" is not available in scenarios: %s", name, absent[i].why);
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    values_push_nearest(L, name, lua_upvalueindex(1), lua_gettop(L));
    if (lua_isnil(L, -1)) return script_fail(L, "unknown name \"%.64s\"", name);
    return script_fail(L, "unknown name \"%.64s\"; did you mean \"%s\"?", name, lua_tostring(L, -1));
}

/* True when the function that assigns is the scenario's top level. */
static bool in_main_chunk(lua_State *L) {
    lua_Debug ar;
    if (!lua_getstack(L, 1, &ar)) return false;
    lua_getinfo(L, "S", &ar);
    return strcmp(ar.what, "main") == 0;
}

/* __newindex of the globals: upvalue 1 is the library table. Only new names come here. */
static int new_global(lua_State *L) {
    if (lua_type(L, 2) != LUA_TSTRING) return script_fail(L, "the name of a global must be a string");
    const char *name = lua_tostring(L, 2);
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
        return script_fail(L, "\"%.64s\" belongs to the scenario language and cannot be assigned; choose another name",
                           name);
    if (!in_main_chunk(L))
        return script_fail(L, "assignment to the undeclared global \"%.64s\" inside a function; write \"local "
                              "%.64s\", or "
                           "assign it at the top level first", name, name);
    lua_settop(L, 3);
    lua_rawset(L, 1);
    return 0;
}

/* Globals in front of the library table at the top, which is popped. */
static void set_globals(lua_State *L) {
    int lib = lua_gettop(L);
    lua_createtable(L, 0, 1);
    lua_pushvalue(L, lib);
    lua_pushcclosure(L, unknown_global, 1);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, lib);

    lua_newtable(L);
    lua_createtable(L, 0, 3);
    lua_pushvalue(L, lib);
    lua_setfield(L, -2, "__index");
    lua_pushvalue(L, lib);
    lua_pushcclosure(L, new_global, 1);
    lua_setfield(L, -2, "__newindex");
    lua_pushliteral(L, "locked");
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
    lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    lua_pop(L, 1);
}

/* --- libraries -------------------------------------------------------------------------------------------------- */

static int refuse_write(lua_State *L) {
    return script_fail(L, "%s is read-only", lua_tostring(L, lua_upvalueindex(1)));
}

/* Iterates over a read-only table: upvalue 1 is pairs, 2 the table behind. */
static int pairs_behind(lua_State *L) {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_call(L, 1, 3);
    return 3;
}

/* Replaces the table at the top by a read-only view of it, and puts that into the library table as `name`. */
static void add_frozen(lua_State *L, int lib, const char *name) {
    int real = lua_gettop(L);
    values_make_strict(L, name);
    lua_newtable(L);
    lua_createtable(L, 0, 4);
    lua_pushvalue(L, real);
    lua_setfield(L, -2, "__index");
    lua_pushstring(L, name);
    lua_pushcclosure(L, refuse_write, 1);
    lua_setfield(L, -2, "__newindex");
    lua_getfield(L, lib, "pairs");
    lua_pushvalue(L, real);
    lua_pushcclosure(L, pairs_behind, 2);
    lua_setfield(L, -2, "__pairs");
    lua_pushliteral(L, "locked");
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
    lua_setfield(L, lib, name);
    lua_pop(L, 1);
}

static void remove_field(lua_State *L, const char *name) {
    lua_pushnil(L);
    lua_setfield(L, -2, name);
}

/* The base functions that are as harmless as they come. */
static void add_base(lua_State *L, int lib) {
    static const char *const keep[] = { "assert", "error", "getmetatable", "ipairs", "rawequal", "rawget", "rawlen",
                                        "rawset", "select", "tonumber", "type" };
    lua_pushcfunction(L, luaopen_base);
    lua_call(L, 0, 1);
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        lua_getfield(L, -1, keep[i]);
        lua_setfield(L, lib, keep[i]);
    }
    lua_pop(L, 1);
    stdlib_open_base(L);
}

static void add_string(lua_State *L, int lib) {
    lua_pushcfunction(L, luaopen_string);
    lua_call(L, 0, 1);
    remove_field(L, "dump");
    stdlib_open_string(L);
    lua_pushliteral(L, "");
    lua_getmetatable(L, -1);
    lua_pushliteral(L, "locked");
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 2);
    add_frozen(L, lib, "string");
}

static void add_scenario(lua_State *L, int lib) {
    const cedar_script_opts *o = script_of(L)->opts;
    lua_createtable(L, 0, 2);
    lua_pushstring(L, o->name);
    lua_setfield(L, -2, "name");
    lua_pushinteger(L, (lua_Integer)o->seed);
    lua_setfield(L, -2, "seed");
    add_frozen(L, lib, "scenario");
}

void sandbox_open(lua_State *L) {
    lua_newtable(L);
    int lib = lua_gettop(L);
    add_base(L, lib);
    add_string(L, lib);

    lua_pushcfunction(L, luaopen_table);
    lua_call(L, 0, 1);
    stdlib_open_table(L);
    add_frozen(L, lib, "table");

    lua_pushcfunction(L, luaopen_math);
    lua_call(L, 0, 1);
    remove_field(L, "randomseed");
    stdlib_open_math(L);
    add_frozen(L, lib, "math");

    lua_pushcfunction(L, luaopen_utf8);
    lua_call(L, 0, 1);
    add_frozen(L, lib, "utf8");

    verbs_open(L);
    add_scenario(L, lib);
    set_globals(L);
    set_limits(L);
}
