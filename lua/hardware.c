/* Hardware descriptions. */
#include "lua/hardware.h"

#include <errno.h>
#include <lauxlib.h>
#include <lua.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "sim/sim.h"

enum { FILE_BYTES_MAX = 1 << 16, INSTRUCTIONS_MAX = 100000, KEYS_MAX = 64 };

typedef struct reader {
    const char *path;
    char text[FILE_BYTES_MAX];
    size_t bytes;
    cedar_hardware *out;
    cedar_hardware_sources *sources;        /* may be NULL */
    cedar_err *err;
    cedar_status st;
} reader;

static void too_long(lua_State *L, lua_Debug *ar) {
    (void)ar;
    luaL_error(L, "more than %d instructions for a table of figures", INSTRUCTIONS_MAX);
}

static const cedar_hardware_key *find_key(const char *name) {
    size_t count;
    const cedar_hardware_key *k = cedar_hardware_keys(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(k[i].key, name) == 0) return &k[i];
    return NULL;
}

static void unknown_key(reader *r, const char *name) {
    size_t count;
    const cedar_hardware_key *k = cedar_hardware_keys(&count);
    const char *words[KEYS_MAX];
    CEDAR_ASSERT(count < KEYS_MAX);
    for (size_t i = 0; i < count; i++) words[i] = k[i].key;
    words[count] = "name";
    const char *near = cedar_nearest(name, words, count + 1);
    r->st = cedar_fail(r->err, CEDAR_E_FORMAT,
                       near ? "%s: unknown figure \"%s\"; did you mean \"%s\"?" : "%s: unknown figure \"%s\"", r->path,
                       name, near);
}

/* The figure at the top of the stack: a number, or { number, "source" }. */
static bool figure(lua_State *L, double *out) {
    if (lua_istable(L, -1)) {
        bool sourced = lua_rawgeti(L, -1, 2) == LUA_TSTRING && lua_rawlen(L, -2) == 2;
        lua_pop(L, 1);
        if (!sourced) return false;
        bool number = lua_rawgeti(L, -1, 1) == LUA_TNUMBER;
        *out = lua_tonumber(L, -1);
        lua_pop(L, 1);
        return number;
    }
    if (lua_type(L, -1) != LUA_TNUMBER) return false;
    *out = lua_tonumber(L, -1);
    return true;
}

/* Keeps the source of the figure at the top of the stack. */
static void keep_source(lua_State *L, const reader *r, const cedar_hardware_key *k) {
    if (!r->sources || !lua_istable(L, -1)) return;
    size_t count;
    ptrdiff_t at = k - cedar_hardware_keys(&count);
    CEDAR_ASSERT(count <= CEDAR_HARDWARE_FIGURES_MAX);
    lua_rawgeti(L, -1, 2);
    snprintf(r->sources->text[at], CEDAR_HARDWARE_SOURCE_MAX, "%s", lua_tostring(L, -1));
    lua_pop(L, 1);
}

/* One pair of the table: key at -2, value at -1. */
static void read_pair(lua_State *L, reader *r) {
    if (lua_type(L, -2) != LUA_TSTRING) {
        r->st = cedar_fail(r->err, CEDAR_E_FORMAT, "%s: every figure needs a name, e.g. gpus = 1", r->path);
        return;
    }
    const char *name = lua_tostring(L, -2);
    if (strcmp(name, "name") == 0) {
        if (lua_type(L, -1) != LUA_TSTRING || strlen(lua_tostring(L, -1)) >= sizeof r->out->name)
            r->st = cedar_fail(r->err, CEDAR_E_FORMAT, "%s: name must be a string of at most %zu bytes", r->path,
                               sizeof r->out->name - 1);
        else snprintf(r->out->name, sizeof r->out->name, "%s", lua_tostring(L, -1));
        return;
    }
    const cedar_hardware_key *k = find_key(name);
    double v = 0;
    if (!k) {
        unknown_key(r, name);
        return;
    }
    if (!figure(L, &v) || !(v >= k->lo && v <= k->hi)) {
        r->st = cedar_fail(r->err, CEDAR_E_FORMAT,
                           "%s: %s must be a number from %g to %g, or such a number and its source (%s)", r->path, name,
                           k->lo, k->hi, k->help);
        return;
    }
    memcpy((char *)r->out + k->offset, &v, sizeof v);
    keep_source(L, r, k);
}

static int read_table(lua_State *L) {
    reader *r = lua_touserdata(L, 1);
    char chunk[512];
    snprintf(chunk, sizeof chunk, "@%s", r->path);
    lua_sethook(L, too_long, LUA_MASKCOUNT, INSTRUCTIONS_MAX);
    if (luaL_loadbufferx(L, r->text, r->bytes, chunk, "t")) return lua_error(L);
    lua_call(L, 0, 1);
    if (!lua_istable(L, -1)) return luaL_error(L, "%s: must return a table of figures", r->path);
    lua_pushnil(L);
    while (!r->st && lua_next(L, -2)) {     /* any order: each pair sets its own member */
        read_pair(L, r);
        lua_pop(L, 1);
    }
    return 0;
}

static cedar_status read_file(reader *r) {
    FILE *f = fopen(r->path, "rb");
    if (!f) return cedar_fail(r->err, CEDAR_E_IO, "%s: %s", r->path, strerror(errno));
    r->bytes = fread(r->text, 1, sizeof r->text, f);
    bool bad = ferror(f);
    fclose(f);
    if (bad) return cedar_fail(r->err, CEDAR_E_IO, "%s: reading failed", r->path);
    if (r->bytes == sizeof r->text)
        return cedar_fail(r->err, CEDAR_E_FORMAT, "%s: larger than the %d bytes a description may have", r->path,
                          FILE_BYTES_MAX - 1);
    return CEDAR_OK;
}

static void set_defaults(cedar_hardware *hw) {
    size_t count;
    const cedar_hardware_key *k = cedar_hardware_keys(&count);
    memset(hw, 0, sizeof *hw);
    for (size_t i = 0; i < count; i++) memcpy((char *)hw + k[i].offset, &k[i].value_default, sizeof(double));
}

static cedar_status all_there(const reader *r) {
    size_t count;
    const cedar_hardware_key *k = cedar_hardware_keys(&count);
    for (size_t i = 0; i < count; i++) {
        double v;
        memcpy(&v, (const char *)r->out + k[i].offset, sizeof v);
        if (isnan(v)) return cedar_fail(r->err, CEDAR_E_FORMAT, "%s: %s is missing (%s)", r->path, k[i].key, k[i].help);
    }
    if (!*r->out->name) return cedar_fail(r->err, CEDAR_E_FORMAT, "%s: name is missing", r->path);
    return CEDAR_OK;
}

cedar_status cedar_hardware_load(const char *path, cedar_hardware *out, cedar_hardware_sources *sources,
                                 cedar_err *err) {
    reader *r = cedar_calloc(1, sizeof *r);
    if (!r) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory", path);
    cedar_hardware hw;
    set_defaults(&hw);
    if (sources) memset(sources, 0, sizeof *sources);
    r->path = path;
    r->out = &hw;
    r->sources = sources;
    r->err = err;
    cedar_status st = read_file(r);
    lua_State *L = st ? NULL : luaL_newstate();
    if (!st && !L) st = cedar_fail(err, CEDAR_E_OOM, "%s: no memory", path);
    if (!st) {
        lua_pushcfunction(L, read_table);
        lua_pushlightuserdata(L, r);
        if (lua_pcall(L, 1, 0, 0))
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s", lua_isstring(L, -1) ? lua_tostring(L, -1) : "not a description");
        else st = r->st ? r->st : all_there(r);
    }
    if (L) lua_close(L);
    cedar_free(r);
    if (!st) *out = hw;
    return st;
}

cedar_status cedar_hardware_find_sources(const char *data_dir, const char *name, cedar_hardware *out,
                                         cedar_hardware_sources *sources, cedar_err *err) {
    char path[4096];
    size_t n = strlen(name);
    if (strchr(name, '/') || (n > 4 && strcmp(name + n - 4, ".lua") == 0))
        return cedar_hardware_load(name, out, sources, err);
    if (snprintf(path, sizeof path, "%s/scenarios/hardware/%s.lua", data_dir ? data_dir : ".", name) >=
        (int)sizeof path)
        return cedar_fail(err, CEDAR_E_ARG, "hardware \"%.64s\" has too long a path", name);
    cedar_status st = cedar_hardware_load(path, out, sources, err);
    return st == CEDAR_E_IO ? cedar_fail(err, st, "hardware \"%.64s\" is not known: there is no %.200s", name, path)
                            : st;
}

cedar_status cedar_hardware_find(const char *data_dir, const char *name, cedar_hardware *out, cedar_err *err) {
    return cedar_hardware_find_sources(data_dir, name, out, NULL, err);
}
