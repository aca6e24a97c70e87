/* The verbs over many runs: search (the largest value that keeps the speed floor) and frontier (what a sweep
 * offers). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lua/script_int.h"

/* --- search ------------------------------------------------------------------------------------------------------- */

enum { SEEDS_MAX = 31, LABEL_BYTES_MAX = 63 };

typedef struct hunt {
    const char *key;
    lua_Integer lo, hi, seeds, seed;
    double floor;
    int probes;                 /* stack index of the list of probes */
} hunt;

/* One-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom. */
static const double t95[SEEDS_MAX - 1] = { 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
                                           1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725,
                                           1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697 };

/* Lower 95 % confidence bound of the mean; one value bounds itself. NaN stays NaN. */
static double lower_bound(const double *x, lua_Integer n, double *mean) {
    double sum = 0, squares = 0;
    for (lua_Integer i = 0; i < n; i++) sum += x[i];
    *mean = sum / (double)n;
    for (lua_Integer i = 0; i < n; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    if (n == 1) return *mean;
    return *mean - t95[n - 2] * sqrt(squares / (double)(n - 1) / (double)n);
}

static lua_Integer whole_field(lua_State *L, const char *name, lua_Integer absent) {
    int whole;
    lua_pushstring(L, name);
    if (lua_rawget(L, 2) == LUA_TNIL) {
        lua_pop(L, 1);
        return absent;
    }
    lua_Integer x = lua_tointegerx(L, -1, &whole);
    if (!whole || lua_type(L, -1) != LUA_TNUMBER) script_fail(L, "search: %s must be a whole number", name);
    lua_pop(L, 1);
    return x;
}

static void read_hunt(lua_State *L, hunt *h) {
    static const char *const known[] = { "key", "lo", "hi", "seeds" };
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
        const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= strcmp(known[i], key) == 0;
        if (!found) script_fail(L, "search: the second table has a key that is none of key, lo, hi, seeds");
    }
    lua_pushliteral(L, "key");
    int type = lua_rawget(L, 2);
    h->key = type == LUA_TSTRING ? lua_tostring(L, -1) : "lanes";
    lua_pop(L, 1);              /* the table keeps it */
    const cedar_opt_info *k = values_find(h->key);
    if (!k || k->type != CEDAR_OPT_INT)
        script_fail(L, "search: key = \"%.64s\" is no option with whole numbers", h->key);
    h->lo = whole_field(L, "lo", 1);
    h->hi = whole_field(L, "hi", 64);
    h->seeds = whole_field(L, "seeds", 3);
    if (h->lo > h->hi) script_fail(L, "search: lo = %lld is above hi = %lld", (long long)h->lo, (long long)h->hi);
    if (h->seeds < 1 || h->seeds > SEEDS_MAX) script_fail(L, "search: seeds must be 1 to %d", SEEDS_MAX);
    const char *fixed = values_override(script_of(L), h->key);
    if (fixed) h->lo = h->hi = strtoll(fixed, NULL, 10);
}

/* Plays one run of a probe and appends its result to the list at the top; returns its speed at the floor's
 * percentile. */
static double play_seed(lua_State *L, const hunt *h, lua_Integer value, lua_Integer i) {
    char number[24], label[128];
    cedar_run_opts **box = verbs_push_options(L, "search", 1);
    snprintf(number, sizeof number, "%lld", (long long)value);
    values_set(L, "search", *box, h->key, number);
    snprintf(number, sizeof number, "%lld", (long long)(h->seed + i));
    values_set(L, "search", *box, "seed", number);
    snprintf(label, sizeof label, "search: %.24s=%lld seed=%s", h->key, (long long)value, number);
    label[LABEL_BYTES_MAX] = 0;
    values_set(L, "search", *box, "label", label);
    verbs_play(L, "search", box);
    lua_getfield(L, -1, "floor_interactivity");
    double x = lua_tonumber(L, -1);
    lua_pop(L, 1);
    lua_rawseti(L, -2, i + 1);
    return x;
}

/* Plays all seeds at a value, notes the probe, and leaves its results at the top. */
static bool probe(lua_State *L, const hunt *h, lua_Integer value) {
    double x[SEEDS_MAX], mean;
    lua_newtable(L);
    for (lua_Integer i = 0; i < h->seeds; i++) x[i] = play_seed(L, h, value, i);
    double bound = lower_bound(x, h->seeds, &mean);
    bool holds = bound >= h->floor;
    lua_createtable(L, 0, 4);
    lua_pushinteger(L, value);
    lua_setfield(L, -2, "value");
    lua_pushnumber(L, mean);
    lua_setfield(L, -2, "mean");
    lua_pushnumber(L, bound);
    lua_setfield(L, -2, "bound");
    lua_pushboolean(L, holds);
    lua_setfield(L, -2, "holds");
    values_make_strict(L, "a probe");
    lua_rawseti(L, h->probes, (lua_Integer)lua_rawlen(L, h->probes) + 1);
    return holds;
}

/* Largest value that holds between lo and hi; its results at `best`. lo - 1 when none does. */
static lua_Integer bisect(lua_State *L, const hunt *h, int best) {
    lua_Integer lo = h->lo - 1, hi = h->hi + 1; /* lo holds, or lies below all; hi does not, or lies above all */
    for (bool ends = true; hi - lo > 1;) {
        lua_Integer value = lo < h->lo ? h->lo : ends ? h->hi : lo + (hi - lo) / 2;
        if (value == h->hi) ends = false;
        bool holds = probe(L, h, value);
        if (holds) lua_replace(L, best);
        else lua_pop(L, 1);
        if (holds) lo = value;
        else hi = value;
        if (!holds && value == h->lo) break;
    }
    return lo;
}

/* search(base, { key = "lanes", lo = 1, hi = 64, seeds = 3 }): the largest value at which the lower 95 % confidence
 * bound of the users' speed, over runs with so many seeds, reaches the floor of base; at_hi: that is hi, and a larger
 * one may reach it too. */
int verb_search(lua_State *L) {
    static const char example[] =
        "search({ trace = \"traces\", floor = { tok_s_user = 150 } }, { key = \"lanes\", hi = 64 })";
    hunt h = { 0 };
    script_check_fatal(L);
    verbs_need_table(L, "search", 1, example);
    verbs_need_table(L, "search", 2, example);
    lua_settop(L, 2);
    read_hunt(L, &h);
    cedar_run_opts **box = verbs_push_options(L, "search", 1);
    h.floor = strtod(cedar_opts_get(*box, "floor_tok_s_user"), NULL);
    h.seed = strtoll(cedar_opts_get(*box, "seed"), NULL, 10);
    values_free_opts(box);
    lua_settop(L, 2);
    if (!(h.floor > 0))
        script_fail(L, "search: the first table needs a floor, for example floor = { tok_s_user = 150 }");
    lua_newtable(L);
    h.probes = lua_gettop(L);
    lua_newtable(L);
    int best = lua_gettop(L);
    lua_Integer value = bisect(L, &h, best);
    lua_createtable(L, 0, 6);
    lua_pushstring(L, h.key);
    lua_setfield(L, -2, "key");
    lua_pushboolean(L, value >= h.lo);
    lua_setfield(L, -2, "found");
    lua_pushinteger(L, value >= h.lo ? value : 0);
    lua_setfield(L, -2, "value");
    lua_pushboolean(L, value == h.hi);
    lua_setfield(L, -2, "at_hi");
    lua_pushvalue(L, best);
    lua_setfield(L, -2, "results");
    lua_pushvalue(L, h.probes);
    lua_setfield(L, -2, "probes");
    values_make_strict(L, "a search");
    return 1;
}

/* --- frontier ----------------------------------------------------------------------------------------------------- */

/* Metrics that a front can be asked for besides y. */
static const char *const extras[] = { "ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "itl_p50_ms", "itl_p90_ms",
                                      "output_tok_s", "hit_rate", "kl_mean", "top1_rate", "dlogp_mean" };
enum { EXTRA_COUNT = sizeof extras / sizeof *extras };

static double number_at(lua_State *L, int table, const char *name, bool needed) {
    lua_pushstring(L, name);
    int type = lua_rawget(L, table);
    if (needed && type != LUA_TNUMBER) script_fail(L, "frontier: a point has no number \"%.64s\"", name);
    double x = type == LUA_TNUMBER ? lua_tonumber(L, -1) : (double)NAN;
    lua_pop(L, 1);
    return x;
}

static int front_collect(lua_State *L) {
    cedar_front **box = lua_touserdata(L, 1);
    cedar_front_free(*box);
    *box = NULL;
    return 0;
}

/* front:at(x, metric): Steffen's value and the straight line's; nil and nil outside the front. Upvalues: front, y's
 * name. */
static int front_at(lua_State *L) {
    cedar_front *const *box = lua_touserdata(L, lua_upvalueindex(1));
    if (lua_type(L, 2) != LUA_TNUMBER) return script_fail(L, "front:at(x, metric): x must be a number");
    const char *metric = lua_isnoneornil(L, 3) ? lua_tostring(L, lua_upvalueindex(2)) : lua_tostring(L, 3);
    uint32_t m = UINT32_MAX;
    if (metric && strcmp(metric, lua_tostring(L, lua_upvalueindex(2))) == 0) m = 0;
    for (uint32_t i = 0; i < EXTRA_COUNT && metric && m == UINT32_MAX; i++)
        if (strcmp(metric, extras[i]) == 0) m = i + 1;
    if (m == UINT32_MAX)
        return script_fail(L, "front:at: a front does not know the metric \"%.64s\"", metric ? metric : "?");
    for (int method = CEDAR_FRONT_STEFFEN; method <= CEDAR_FRONT_LINEAR; method++) {
        double y;
        if (cedar_front_at(*box, m, lua_tonumber(L, 2), (cedar_front_method)method, &y)) lua_pushnumber(L, y);
        else lua_pushnil(L);
    }
    return 2;
}

static const char *axis_name(lua_State *L, const char *name, const char *absent) {
    if (lua_isnoneornil(L, 2)) return absent;
    lua_pushstring(L, name);
    int type = lua_rawget(L, 2);
    const char *text = type == LUA_TNIL ? absent : type == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    if (!text) script_fail(L, "frontier: %s must be the name of a result's field", name);
    lua_pop(L, 1);              /* the table keeps it */
    return text;
}

/* Pushes a userdata with the front of the points at stack index 1. */
static cedar_front **push_front(lua_State *L, const char *x, const char *y) {
    uint32_t n = (uint32_t)lua_rawlen(L, 1);
    cedar_front_point *points = lua_newuserdatauv(L, (n + 1) * sizeof *points, 0);
    double *extra = lua_newuserdatauv(L, (n + 1) * EXTRA_COUNT * sizeof *extra, 0);
    for (uint32_t i = 0; i < n; i++) {
        if (lua_rawgeti(L, 1, i + 1) != LUA_TTABLE) script_fail(L, "frontier: point %d is not a result", (int)i + 1);
        int point = lua_gettop(L);
        for (int k = 0; k < EXTRA_COUNT; k++)
            extra[i * EXTRA_COUNT + (uint32_t)k] = number_at(L, point, extras[k], false);
        points[i] = (cedar_front_point){ .x = number_at(L, point, x, true), .y = number_at(L, point, y, true),
                                         .extra = extra + i * EXTRA_COUNT };
        lua_pop(L, 1);
    }
    cedar_front **box = lua_newuserdatauv(L, sizeof *box, 0);
    *box = NULL;
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, front_collect);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    cedar_err err = { 0 };
    if (cedar_front_make(points, n, EXTRA_COUNT, box, &err)) script_fail_status(L, "frontier", &err);
    lua_replace(L, -3);
    lua_pop(L, 1);
    return box;
}

/* frontier(points, { x = "interactivity_p90", y = "total_tok_s" }): the points that none beats in both. */
int verb_frontier(lua_State *L) {
    script_check_fatal(L);
    if (!lua_istable(L, 1)) return script_fail(L, "frontier needs a list of results, as sweep returns it");
    if (!lua_isnoneornil(L, 2) && !lua_istable(L, 2))
        return script_fail(L, "frontier: the second argument is a table such as { y = \"output_tok_s\" }");
    lua_settop(L, 2);
    const char *x = axis_name(L, "x", "interactivity_p90"), *y = axis_name(L, "y", "total_tok_s");
    const cedar_front *front = *push_front(L, x, y);
    int box = lua_gettop(L);
    lua_createtable(L, 0, 5);
    lua_createtable(L, (int)front->count, 0);
    for (uint32_t i = 0; i < front->count; i++) {
        lua_rawgeti(L, 1, front->index[i] + 1);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "points");
    lua_pushinteger(L, front->dominated);
    lua_setfield(L, -2, "dominated");
    lua_pushinteger(L, (lua_Integer)front->not_finite + front->not_positive);
    lua_setfield(L, -2, "left_out");
    lua_pushvalue(L, box);
    lua_pushstring(L, y);
    lua_pushcclosure(L, front_at, 2);
    lua_setfield(L, -2, "at");
    values_make_strict(L, "a front");
    return 1;
}
