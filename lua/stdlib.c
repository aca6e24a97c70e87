/* Library functions that scenarios get in place of Lua's own, because Lua's depend on addresses, the clock or table
 * layout, or can be used to run without end.
 *
 *   pairs       fixed order: 1..n, other numbers ascending, strings by bytes, false, true; other keys are an error
 *   tostring    no addresses: a table prints as "table"; NaN always prints as "nan"
 *   pcall, xpcall   do not catch fatal errors (instruction limit, interrupt, database)
 *   setmetatable    no finalisers and no weak tables: both follow the garbage collector
 *   string      find, match, gmatch, gsub refuse patterns that could run for minutes; format prints no addresses
 *   table.sort  stable, so equal elements keep their order; Lua's chooses pivots by the clock
 *   math.random, stream   integer generator of base/rng.h under the scenario's seed */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "lua/script_int.h"

static const double pattern_work_max = 1e9; /* character comparisons: a few seconds */

/* --- tostring --------------------------------------------------------------------------------------------------- */

const char *stdlib_text(lua_State *L, int index, size_t *bytes) {
    index = lua_absindex(L, index);
    if (luaL_callmeta(L, index, "__tostring")) {
        if (lua_type(L, -1) != LUA_TSTRING) script_fail(L, "__tostring must return a string");
        return lua_tolstring(L, -1, bytes);
    }
    switch (lua_type(L, index)) {
    case LUA_TNUMBER:
        if (isnan(lua_tonumber(L, index))) {
            lua_pushliteral(L, "nan");
            break;
        }
        lua_pushvalue(L, index);
        lua_tolstring(L, -1, NULL);
        break;
    case LUA_TSTRING: lua_pushvalue(L, index); break;
    case LUA_TBOOLEAN: lua_pushstring(L, lua_toboolean(L, index) ? "true" : "false"); break;
    default: lua_pushstring(L, luaL_typename(L, index)); break;
    }
    return lua_tolstring(L, -1, bytes);
}

static int lib_tostring(lua_State *L) {
    luaL_checkany(L, 1);
    stdlib_text(L, 1, NULL);
    return 1;
}

/* --- pairs ------------------------------------------------------------------------------------------------------ */

/* A key in sorting order: class, then number or text. */
typedef struct sort_key {
    int class;                  /* 0: 1..n, 1: other numbers, 2: strings, 3: booleans */
    bool is_float;
    lua_Integer integer;        /* also of booleans */
    double real;
    const char *text;
    size_t bytes;
} sort_key;

static int compare_mixed(lua_Integer i, double f) {
    if (f >= 0x1p63) return -1;
    if (f < -0x1p63) return 1;
    return i <= (lua_Integer)floor(f) ? -1 : 1; /* a float key is never a whole number in this range */
}

static int compare_numbers(const sort_key *a, const sort_key *b) {
    if (a->is_float && b->is_float) return a->real < b->real ? -1 : a->real > b->real;
    if (a->is_float) return -compare_mixed(b->integer, a->real);
    if (b->is_float) return compare_mixed(a->integer, b->real);
    return a->integer < b->integer ? -1 : a->integer > b->integer;
}

static int compare_keys(const void *pa, const void *pb) {
    const sort_key *a = pa, *b = pb;
    if (a->class != b->class) return a->class < b->class ? -1 : 1;
    if (a->class != 2) return compare_numbers(a, b);
    int d = memcmp(a->text, b->text, a->bytes < b->bytes ? a->bytes : b->bytes);
    return d ? d : a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* Fills a sort_key from the key at the top; border is n of 1..n. */
static void read_key(lua_State *L, lua_Integer border, sort_key *k) {
    switch (lua_type(L, -1)) {
    case LUA_TNUMBER:
        k->is_float = !lua_isinteger(L, -1);
        k->real = lua_tonumber(L, -1);
        k->integer = k->is_float ? 0 : lua_tointeger(L, -1);
        k->class = !k->is_float && k->integer >= 1 && k->integer <= border ? 0 : 1;
        break;
    case LUA_TSTRING:
        k->class = 2;
        k->text = lua_tolstring(L, -1, &k->bytes);
        break;
    case LUA_TBOOLEAN:
        k->class = 3;
        k->integer = lua_toboolean(L, -1);
        break;
    default:
        script_fail(L, "pairs: a key is a %s, which has no order; use numbers, strings or booleans as keys",
                    luaL_typename(L, -1));
    }
}

static void push_key(lua_State *L, const sort_key *k) {
    if (k->class == 2) lua_pushlstring(L, k->text, k->bytes);
    else if (k->class == 3) lua_pushboolean(L, k->integer != 0);
    else if (k->is_float) lua_pushnumber(L, k->real);
    else lua_pushinteger(L, k->integer);
}

/* Pushes a list of the keys of the table at index 1, in order. */
static void push_keys(lua_State *L) {
    lua_Integer border = 0;
    while (lua_rawgeti(L, 1, border + 1) != LUA_TNIL) {
        border++;
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    size_t count = 0, i = 0;
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) count++;
    sort_key *keys = lua_newuserdatauv(L, (count + 1) * sizeof *keys, 0);
    for (lua_pushnil(L); lua_next(L, 1); i++) {
        lua_pop(L, 1);
        memset(&keys[i], 0, sizeof keys[i]);
        read_key(L, border, &keys[i]);
    }
    qsort(keys, count, sizeof *keys, compare_keys);
    lua_createtable(L, (int)count, 0);
    for (i = 0; i < count; i++) {
        push_key(L, &keys[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_remove(L, -2);
}

/* Upvalues: the table, its keys, and how many of them are done. Keys that are gone by now are skipped. */
static int pairs_next(lua_State *L) {
    lua_Integer i = lua_tointeger(L, lua_upvalueindex(3));
    while (lua_rawgeti(L, lua_upvalueindex(2), ++i) != LUA_TNIL) {
        lua_pushvalue(L, -1);
        if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) {
            lua_pushinteger(L, i);
            lua_replace(L, lua_upvalueindex(3));
            return 2;
        }
        lua_pop(L, 2);
    }
    return 1;
}

static int lib_pairs(lua_State *L) {
    luaL_checkany(L, 1);
    if (luaL_getmetafield(L, 1, "__pairs") != LUA_TNIL) {
        lua_pushvalue(L, 1);
        lua_call(L, 1, 3);
        return 3;
    }
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    push_keys(L);
    lua_pushvalue(L, 1);
    lua_insert(L, -2);
    lua_pushinteger(L, 0);
    lua_pushcclosure(L, pairs_next, 3);
    lua_pushvalue(L, 1);
    lua_pushnil(L);
    return 3;
}

/* --- random numbers --------------------------------------------------------------------------------------------- */

/* Upvalues: key and counter of a stream. Arguments as those of Lua's math.random. */
static int stream_draw(lua_State *L) {
    uint64_t key = (uint64_t)lua_tointeger(L, lua_upvalueindex(1));
    uint64_t counter = (uint64_t)lua_tointeger(L, lua_upvalueindex(2));
    int args = lua_gettop(L);
    lua_Integer lo = args >= 2 ? luaL_checkinteger(L, 1) : 1;
    lua_Integer hi = args >= 1 ? luaL_checkinteger(L, args >= 2 ? 2 : 1) : 0;
    if (args > 2) return script_fail(L, "random takes at most two numbers");
    bool all_bits = args == 1 && hi == 0;
    if (args >= 1 && !all_bits && lo > hi)
        return script_fail(L, "random(%lld, %lld): the interval is empty", (long long)lo, (long long)hi);
    uint64_t bound = (uint64_t)hi - (uint64_t)lo + 1; /* 0: all of 2^64 */
    if (args == 0) lua_pushnumber(L, (double)(cedar_rng_at(key, counter) >> 11) * 0x1p-53);
    else if (all_bits || bound == 0) lua_pushinteger(L, (lua_Integer)cedar_rng_at(key, counter));
    else lua_pushinteger(L, (lua_Integer)((uint64_t)lo + cedar_rng_below(key, counter, bound)));
    lua_pushinteger(L, (lua_Integer)(counter + 1));
    lua_replace(L, lua_upvalueindex(2));
    return 1;
}

static void push_stream(lua_State *L, const char *name) {
    lua_pushinteger(L, (lua_Integer)cedar_rng_key(script_of(L)->opts->seed, name));
    lua_pushinteger(L, 0);
    lua_pushcclosure(L, stream_draw, 2);
}

static int lib_stream(lua_State *L) {
    const char *name = luaL_checkstring(L, 1);
    push_stream(L, lua_pushfstring(L, "scenario/%s", name));
    return 1;
}

/* --- pcall, xpcall, setmetatable -------------------------------------------------------------------------------- */

/* Behind a protected call: raises again what it must not catch, the error of a policy's limit among it. */
static void check_caught(lua_State *L, int status) {
    const script *s = script_of(L);
    script_check_fatal(L);
    if (status != LUA_OK && s->policy_end && s->instructions >= s->policy_end) lua_error(L);
}

static int lib_pcall(lua_State *L) {
    luaL_checkany(L, 1);
    int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
    check_caught(L, status);
    lua_pushboolean(L, status == LUA_OK);
    lua_insert(L, 1);
    return lua_gettop(L);
}

/* The handler runs after the stack has been unwound. Inside the error it would run with the instruction count off when
 * the error comes from the count itself, and could loop for ever. */
static int lib_xpcall(lua_State *L) {
    luaL_checktype(L, 2, LUA_TFUNCTION);
    lua_pushvalue(L, 1);
    lua_insert(L, 3);
    int status = lua_pcall(L, lua_gettop(L) - 3, LUA_MULTRET, 0);
    check_caught(L, status);
    if (status == LUA_OK) {
        lua_pushboolean(L, 1);
        lua_replace(L, 2);
        return lua_gettop(L) - 1;
    }
    lua_pushvalue(L, 2);
    lua_insert(L, -2);
    lua_call(L, 1, 1);
    lua_pushboolean(L, 0);
    lua_insert(L, -2);
    return 2;
}

/* Upvalue 1: Lua's own. */
static int lib_setmetatable(lua_State *L) {
    static const char *const refused[] = { "__gc", "__mode" };
    for (size_t i = 0; lua_istable(L, 2) && i < 2; i++) {
        lua_pushstring(L, refused[i]);
        if (lua_rawget(L, 2) != LUA_TNIL)
            return script_fail(L, "setmetatable: %s is not available in scenarios: garbage collection must not be "
                                  "visible",
                               refused[i]);
        lua_pop(L, 1);
    }
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

void stdlib_open_base(lua_State *L) {
    static const luaL_Reg functions[] = {
        { "pairs", lib_pairs }, { "tostring", lib_tostring }, { "pcall", lib_pcall }, { "xpcall", lib_xpcall },
        { "stream", lib_stream }, { NULL, NULL } };
    luaL_setfuncs(L, functions, 0);
    lua_getglobal(L, "setmetatable");
    lua_pushcclosure(L, lib_setmetatable, 1);
    lua_setfield(L, -2, "setmetatable");
}

/* --- string ----------------------------------------------------------------------------------------------------- */

/* Position behind the character class that starts at p[i]. */
static size_t skip_class(const char *p, size_t n, size_t i) {
    i++;
    if (i < n && p[i] == '^') i++;
    if (i < n && p[i] == ']') i++;
    while (i < n && p[i] != ']') i += p[i] == '%' ? 2 : 1;
    return i + 1;
}

/* Items of a pattern whose length is searched for: each multiplies the work by the text's length at worst. */
static int count_repeats(const char *p, size_t n) {
    int repeats = 0;
    for (size_t i = 0; i < n;) {
        if (p[i] == '%' && i + 1 < n) {
            bool searched = p[i + 1] == 'b' || (p[i + 1] >= '0' && p[i + 1] <= '9');
            repeats += searched;
            i += p[i + 1] == 'b' ? 4 : 2;
        } else if (p[i] == '[') {
            i = skip_class(p, n, i);
        } else {
            repeats += strchr("*+-?", p[i]) != NULL && p[i];
            i++;
        }
    }
    return repeats;
}

/* Lua matches by backtracking, in C, where no instructions are counted. With r repeats on n characters there are at
 * most binomial(n + r, r) ways to place their ends, and n + 1 starts unless the pattern is anchored. */
static void check_pattern(lua_State *L, const char *name, bool anchors) {
    size_t n, m;
    const char *text = lua_tolstring(L, 1, &n), *pattern = lua_tolstring(L, 2, &m);
    if (!text || !pattern) return; /* wrong types: the original says so */
    int repeats = count_repeats(pattern, m);
    double work = anchors && m > 0 && pattern[0] == '^' ? 1 : (double)n + 1;
    for (int i = 1; i <= repeats && work <= pattern_work_max; i++) work = work * ((double)n + i) / i;
    if (repeats > 0 && work > pattern_work_max)
        script_fail(L, "string.%s: a pattern with %d repetitions could take too long on %zu bytes; use fewer of * + - "
                       "? or "
                    "a shorter text", name, repeats, n);
}

/* Upvalue 1 of these is Lua's own function, called in the same frame so that its messages name the right line. */
static int lib_find(lua_State *L) {
    if (!lua_toboolean(L, 4)) check_pattern(L, "find", true);
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

static int lib_match(lua_State *L) {
    check_pattern(L, "match", true);
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

static int lib_gmatch(lua_State *L) {
    check_pattern(L, "gmatch", false);
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

static int lib_gsub(lua_State *L) {
    check_pattern(L, "gsub", true);
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

/* Replaces the argument of one conversion where Lua's own would print an address or the sign of a NaN. */
static void fix_argument(lua_State *L, char conversion, int arg) {
    if (conversion == 'p') script_fail(L, "string.format: %%p is not available in scenarios: addresses differ from "
                                          "run to run");
    if (arg > lua_gettop(L)) return; /* missing: the original says so */
    if (conversion == 's' && lua_type(L, arg) != LUA_TSTRING) {
        stdlib_text(L, arg, NULL);
        lua_replace(L, arg);
    } else if (strchr("aAeEfFgG", conversion) && lua_type(L, arg) == LUA_TNUMBER && isnan(lua_tonumber(L, arg))) {
        lua_pushnumber(L, fabs(lua_tonumber(L, arg)));
        lua_replace(L, arg);
    }
}

static int lib_format(lua_State *L) {
    size_t n;
    const char *f = luaL_checklstring(L, 1, &n);
    int arg = 1;
    for (size_t i = 0; i < n; i++) {
        if (f[i] != '%' || ++i >= n || f[i] == '%') continue;
        while (i < n && f[i] && strchr("-+ #0123456789.", f[i])) i++;
        if (i < n && f[i]) fix_argument(L, f[i], ++arg);
    }
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

void stdlib_open_string(lua_State *L) {
    static const luaL_Reg wrapped[] = { { "find", lib_find }, { "match", lib_match }, { "gmatch", lib_gmatch },
                                        { "gsub", lib_gsub }, { "format", lib_format } };
    for (size_t i = 0; i < sizeof wrapped / sizeof *wrapped; i++) {
        lua_getfield(L, -1, wrapped[i].name);
        lua_pushcclosure(L, wrapped[i].func, 1);
        lua_setfield(L, -2, wrapped[i].name);
    }
}

/* --- table.sort ------------------------------------------------------------------------------------------------- */

/* True when the value at the top is less than the one below it, by the function at index 2 if there is one. */
static bool top_is_less(lua_State *L) {
    if (lua_isnil(L, 2)) return lua_compare(L, -1, -2, LUA_OPLT);
    lua_pushvalue(L, 2);
    lua_pushvalue(L, -2);
    lua_pushvalue(L, -4);
    lua_call(L, 2, 1);
    bool less = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return less;
}

/* Merges the sorted runs [lo, mid) and [mid, hi) of the table at `from` into the one at `to`. */
static void merge_runs(lua_State *L, int from, int to, lua_Integer lo, lua_Integer mid, lua_Integer hi) {
    lua_Integer left = lo, right = mid;
    for (lua_Integer at = lo; at < hi; at++) {
        bool take_right = left >= mid;
        if (left < mid && right < hi) {
            lua_rawgeti(L, from, left);
            lua_rawgeti(L, from, right);
            take_right = top_is_less(L);
            lua_pop(L, 2);
        }
        lua_rawgeti(L, from, take_right ? right++ : left++);
        lua_rawseti(L, to, at);
    }
}

static int lib_sort(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    if (!lua_isnoneornil(L, 2)) luaL_checktype(L, 2, LUA_TFUNCTION);
    lua_settop(L, 2);
    lua_Integer n = luaL_len(L, 1);
    lua_newtable(L);
    lua_newtable(L);
    int from = 3, to = 4;
    for (lua_Integer i = 1; i <= n; i++) {
        lua_geti(L, 1, i);
        lua_rawseti(L, from, i);
    }
    for (lua_Integer width = 1; width < n; width *= 2) {
        for (lua_Integer lo = 1; lo <= n; lo += 2 * width) {
            lua_Integer mid = lo + width < n + 1 ? lo + width : n + 1;
            lua_Integer hi = mid + width < n + 1 ? mid + width : n + 1;
            merge_runs(L, from, to, lo, mid, hi);
        }
        int swap = from;
        from = to;
        to = swap;
    }
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, from, i);
        lua_seti(L, 1, i);
    }
    return 0;
}

void stdlib_open_table(lua_State *L) {
    lua_pushcfunction(L, lib_sort);
    lua_setfield(L, -2, "sort");
}

void stdlib_open_math(lua_State *L) {
    push_stream(L, "scenario");
    lua_setfield(L, -2, "random");
}
