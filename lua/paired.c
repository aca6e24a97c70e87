/* paired(a, b, {...}): two runs compared request by request. The program looks the requests up and resamples. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lua/script_int.h"

enum { RUNS_MAX = 64 };

static int64_t run_id_of(lua_State *L, int index) {
    lua_pushliteral(L, "run_id");
    if (!lua_istable(L, index) || lua_rawget(L, index) != LUA_TNUMBER)
        script_fail(L, "paired needs two results of run or sweep, or two lists of results");
    int64_t id = (int64_t)lua_tointeger(L, -1);
    lua_pop(L, 1);
    if (id < 1) script_fail(L, "paired: a run with keep = false leaves no requests to compare");
    return id;
}

/* A result, or a list of results. */
static size_t read_runs(lua_State *L, int index, int64_t ids[RUNS_MAX]) {
    size_t n = lua_istable(L, index) ? lua_rawlen(L, index) : 0;
    if (n > RUNS_MAX) script_fail(L, "paired: at most %d runs are compared with as many", RUNS_MAX);
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, index, (lua_Integer)i + 1);
        ids[i] = run_id_of(L, lua_gettop(L));
        lua_pop(L, 1);
    }
    if (n) return n;
    ids[0] = run_id_of(L, index);
    return 1;
}

static lua_Integer number(lua_State *L, const char *key, lua_Integer lo, lua_Integer hi, lua_Integer otherwise) {
    lua_pushstring(L, key);
    if (lua_rawget(L, 3) == LUA_TNIL) return otherwise;
    int whole;
    lua_Integer n = lua_tointegerx(L, -1, &whole);
    if (!whole || n < lo || n > hi)
        script_fail(L, "paired: %s must be a whole number from %d to %d", key, (int)lo, (int)hi);
    return n;
}

static void push_result(lua_State *L, const cedar_paired *p) {
    const struct { const char *name; double value; } reals[] = {
        { "mean_a", p->mean_a }, { "mean_b", p->mean_b }, { "diff", p->diff }, { "diff_lo", p->diff_lo },
        { "diff_hi", p->diff_hi }, { "ratio", p->ratio }, { "ratio_lo", p->ratio_lo }, { "ratio_hi", p->ratio_hi } };
    lua_newtable(L);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        lua_pushnumber(L, reals[i].value);
        lua_setfield(L, -2, reals[i].name);
    }
    const struct { const char *name; uint64_t value; } counts[] = { { "pairs", p->pairs }, { "sessions", p->sessions },
                                                                    { "left_out", p->left_out } };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        lua_pushinteger(L, (lua_Integer)counts[i].value);
        lua_setfield(L, -2, counts[i].name);
    }
    values_make_strict(L, "a paired comparison");
}

static const char *push_ids(lua_State *L, const int64_t *ids, size_t n) {
    luaL_Buffer b;
    char text[24];
    luaL_buffinit(L, &b);
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s%" PRId64, i ? "," : "", ids[i]);
        luaL_addstring(&b, text);
    }
    luaL_pushresult(&b);
    return lua_tostring(L, -1);
}

static void keep(lua_State *L, const cedar_paired_opts *o, const cedar_paired *p) {
    const cedar_paired_row row = { .paired_id = ++script_of(L)->comparisons, .a_run = o->a[0], .b_run = o->b[0],
                                   .a_runs = push_ids(L, o->a, o->count), .b_runs = push_ids(L, o->b, o->count),
                                   .metric = o->metric, .pairs = p->pairs, .sessions = p->sessions,
                                   .left_out = p->left_out, .mean_a = p->mean_a, .mean_b = p->mean_b, .diff = p->diff,
                                   .diff_lo = p->diff_lo, .diff_hi = p->diff_hi, .ratio = p->ratio,
                                   .ratio_lo = p->ratio_lo, .ratio_hi = p->ratio_hi, .resamples = o->resamples,
                                   .seed = o->seed };
    findings_emit(L, "paired", CEDAR_FINDING_PAIRED, &row);
    lua_pop(L, 2);
}

int verb_paired(lua_State *L) {
    static const char *const known[] = { "metric", "resamples", "seed" };
    script *s = script_of(L);
    cedar_paired_opts o = { 0 };
    int64_t a[RUNS_MAX], b[RUNS_MAX];
    script_check_fatal(L);
    verbs_need_table(L, "paired", 3, "paired(a, b, { metric = \"ttft_ms\" })");
    lua_settop(L, 3);
    values_check_keys(L, "paired", 3, known, sizeof known / sizeof *known);
    o.a = a;
    o.b = b;
    o.count = read_runs(L, 1, a);
    if (read_runs(L, 2, b) != o.count) script_fail(L, "paired: both lists must have the same number of results");
    o.resamples = (uint32_t)number(L, "resamples", 2, 1000000, 2000);
    o.seed = (uint64_t)number(L, "seed", 0, INT32_MAX, 42);
    lua_pushliteral(L, "metric");
    if (lua_rawget(L, 3) != LUA_TSTRING) script_fail(L, "paired: metric must be a text such as \"ttft_ms\"");
    o.metric = lua_tostring(L, -1);
    if (!s->host->paired) script_fail(L, "paired: there is no database to look into");
    cedar_paired out = { 0 };
    cedar_err err = { 0 };
    cedar_status st = s->host->paired(s->host->self, &o, &out, &err);
    if (st) {
        err.code = st;
        script_fail_status(L, "paired", &err);
    }
    keep(L, &o, &out);
    push_result(L, &out);
    return 1;
}
