/* The verbs of scenarios: run, sweep, compare, expect, print, note, options (docs/SCENARIOS.md). search.c has two more,
 * audit.c one, findings.c the rest.
 *
 * A verb reads its table in the order of the option table, never in the order of the Lua table, so which of several
 * mistakes is reported first does not change from run to run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lua/script_int.h"

enum { SWEEP_POINTS_MAX = 10000, AXES_MAX = 64, LABEL_BYTES = 64 };

/* The varied keys of a sweep, in the order of the option table. */
typedef struct axes {
    int table;                          /* stack index of {key = {...}} */
    int count;
    lua_Integer points;                 /* product of the lengths */
    struct axis { const cedar_opt_info *option; lua_Integer length; } axis[AXES_MAX];
} axes;

/* --- options from tables ---------------------------------------------------------------------------------------- */

/* Raises for the first key, by bytes, that is no option. */
static void check_keys(lua_State *L, const char *verb, cedar_run_opts *o, int table) {
    const char *first = NULL;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            script_fail(L, "%s: options are written key = value; there is a value without a key", verb);
        const char *key = lua_tostring(L, -2);
        if (strcmp(key, "floor") == 0) continue;
        if (strcmp(key, "routing_policy") == 0)
            script_fail(L, "%s: routing_policy is made from the function that is given as routing", verb);
        if (!values_find(key) && (!first || strcmp(key, first) < 0)) first = key;
    }
    if (first) values_set(L, verb, o, first, ""); /* raises: unknown option */
}

/* floor = { tok_s_user = 150, percentile = 90, mode = "admit" } is short for the three options. */
static void set_floor(lua_State *L, const char *verb, cedar_run_opts *o, int table) {
    static const char *const names[] = { "tok_s_user", "percentile", "mode" };
    lua_pushliteral(L, "floor");
    int type = lua_rawget(L, table), found = 0, floor = lua_gettop(L);
    if (type == LUA_TNIL) {
        lua_pop(L, 1);
        return;
    }
    if (type != LUA_TTABLE)
        script_fail(L, "%s: floor must be a table such as { tok_s_user = 150, percentile = 90 }", verb);
    for (int i = 0; i < 3; i++) {
        lua_pushfstring(L, "floor_%s", names[i]);
        const cedar_opt_info *k = values_find(lua_tostring(L, -1));
        lua_pushstring(L, names[i]);
        if (lua_rawget(L, floor) != LUA_TNIL) {
            values_set(L, verb, o, k->key, values_push_option(L, verb, k, -1));
            found++;
        }
        lua_settop(L, floor);
    }
    for (lua_pushnil(L); lua_next(L, floor); lua_pop(L, 1)) found--;
    if (found < 0) script_fail(L, "%s: floor has a key that is none of tok_s_user, percentile, mode", verb);
    lua_pop(L, 1);
}

static void set_from_table(lua_State *L, const char *verb, cedar_run_opts *o, int table) {
    size_t count;
    const cedar_opt_info *option = cedar_opt_table(&count);
    set_floor(L, verb, o, table);
    for (size_t i = 0; i < count; i++) {
        lua_pushstring(L, option[i].key);
        int type = lua_rawget(L, table);
        if (strcmp(option[i].key, "admission") == 0 && type != LUA_TNIL) {
            policy_set(L, verb, o, lua_gettop(L));
        } else if (strcmp(option[i].key, "routing") == 0 && type == LUA_TFUNCTION) {
            policy_set_router(L, verb, o, lua_gettop(L));
        } else if (type != LUA_TNIL) {
            values_set(L, verb, o, option[i].key, values_push_option(L, verb, &option[i], -1));
            lua_pop(L, 1);
        }
        lua_pop(L, 1);
    }
}

/* Sets the values of one point; the last axis moves fastest. */
static void set_from_axes(lua_State *L, const char *verb, cedar_run_opts *o, const axes *a, lua_Integer p) {
    for (int i = a->count - 1; i >= 0; i--) {
        const struct axis *x = &a->axis[i];
        lua_getfield(L, a->table, x->option->key);
        if (lua_rawgeti(L, -1, p % x->length + 1) == LUA_TNIL)
            script_fail(L, "%s: value %lld of %s is nil", verb, (long long)(p % x->length + 1), x->option->key);
        values_set(L, verb, o, x->option->key, values_push_option(L, verb, x->option, -1));
        lua_pop(L, 3);
        p /= x->length;
    }
}

static void set_from_overrides(lua_State *L, const char *verb, cedar_run_opts *o) {
    const cedar_script_opts *s = script_of(L)->opts;
    for (size_t i = 0; i < s->override_count; i++) {
        const char *equals = strchr(s->overrides[i], '=');
        if (strncmp(s->overrides[i], "admission=", 10) == 0)
            script_fail(L, "%s: admission can only be given as a function of the scenario", verb);
        if (strncmp(s->overrides[i], "routing_policy=", 15) == 0)
            script_fail(L, "%s: routing_policy can only be given as a function of the scenario", verb);
        if (strncmp(s->overrides[i], "routing=", 8) == 0) values_set(L, verb, o, "routing_policy", "");
        lua_pushlstring(L, s->overrides[i], (size_t)(equals - s->overrides[i]));
        if (values_find(lua_tostring(L, -1)))   /* others are options of audits */
            values_set(L, verb, o, lua_tostring(L, -1), equals + 1);
        lua_pop(L, 1);
    }
}

/* "base: lanes=4 replay=exact", cut to what a label may hold. */
static void set_label(lua_State *L, const char *verb, cedar_run_opts *o, const axes *a) {
    char label[4 * LABEL_BYTES];
    size_t n = (size_t)snprintf(label, sizeof label, "%s", cedar_opts_get(o, "label"));
    for (int i = 0; i < a->count; i++) {
        const char *key = a->axis[i].option->key;
        if (strcmp(key, "label") == 0) return; /* the sweep names its points itself */
        if (n < LABEL_BYTES)
            n += (size_t)snprintf(label + n, sizeof label - n, "%s%s=%.64s", n == 0 ? "" : i == 0 ? ": " : " ", key,
                                  cedar_opts_get(o, key));
    }
    if (n >= LABEL_BYTES) {
        n = LABEL_BYTES - 4;
        while (n > 0 && ((unsigned char)label[n] & 0xC0) == 0x80) n--; /* not inside a character */
        memcpy(label + n, "...", 4);
    }
    values_set(L, verb, o, "label", label);
}

/* Pushes checked options: defaults, then the table, then point p of the axes (NULL: none), then the overrides. */
static cedar_run_opts **push_point(lua_State *L, const char *verb, int table, const axes *a, lua_Integer p) {
    cedar_run_opts **box = values_new_opts(L);
    cedar_err err = { 0 };
    if (cedar_opts_new(box, &err)) script_fail_status(L, verb, &err);
    check_keys(L, verb, *box, table);
    set_from_table(L, verb, *box, table);
    if (a) set_from_axes(L, verb, *box, a, p);
    set_from_overrides(L, verb, *box);
    if (a) set_label(L, verb, *box, a);
    if (cedar_opts_check(*box, &err)) script_fail(L, "%s: %s", verb, err.msg);
    return box;
}

cedar_run_opts **verbs_push_options(lua_State *L, const char *verb, int table) {
    cedar_run_opts **box = values_new_opts(L);
    cedar_err err = { 0 };
    if (cedar_opts_new(box, &err)) script_fail_status(L, verb, &err);
    check_keys(L, verb, *box, table);
    set_from_table(L, verb, *box, table);
    set_from_overrides(L, verb, *box);
    return box;
}

/* --- run, sweep ------------------------------------------------------------------------------------------------- */

/* Plays the options in the box at the top, frees them, and pushes the result in their place. */
static void play_point(lua_State *L, const char *verb, cedar_run_opts **box) {
    script *s = script_of(L);
    cedar_run_result result = { 0 };
    cedar_err err = { 0 };
    cedar_status st = s->host->run(s->host->self, *box, &result, &err);
    if (st) {
        err.code = st;
        script_fail_status(L, verb, &err);
    }
    values_push_result(L, &result, *box);
    values_free_opts(box);
    lua_remove(L, -2);
}

void verbs_play(lua_State *L, const char *verb, cedar_run_opts **box) {
    cedar_err err = { 0 };
    if (cedar_opts_check(*box, &err)) script_fail(L, "%s: %s", verb, err.msg);
    play_point(L, verb, box);
}

void verbs_need_table(lua_State *L, const char *verb, int index, const char *example) {
    if (script_of(L)->policy_end) script_fail(L, "%s cannot be called by a policy", verb);
    if (!lua_istable(L, index))
        script_fail(L, "%s needs a table of options, for example %s; it got %s", verb, example,
                    lua_isnone(L, index) ? "nothing" : luaL_typename(L, index));
}

static int verb_run(lua_State *L) {
    script_check_fatal(L);
    verbs_need_table(L, "run", 1, "run{ trace = \"traces\" }");
    lua_settop(L, 1);
    play_point(L, "run", push_point(L, "run", 1, NULL, 0));
    return 1;
}

/* Reads the axes. A key that the command line overrides has one point: the override. */
static void read_axes(lua_State *L, axes *a) {
    size_t count;
    const cedar_opt_info *option = cedar_opt_table(&count);
    a->points = 1;
    for (size_t i = 0; i < count; i++) {
        lua_pushstring(L, option[i].key);
        int type = lua_rawget(L, a->table);
        lua_Integer length = type == LUA_TTABLE ? (lua_Integer)lua_rawlen(L, -1) : 0;
        lua_pop(L, 1);
        if (type == LUA_TNIL) continue;
        if (length == 0)
            script_fail(L, "sweep: %s must be a list of values, for example %s = { 1, 2 }", option[i].key,
                        option[i].key);
        if (values_override(script_of(L), option[i].key)) length = 1;
        a->axis[a->count++] = (struct axis){ &option[i], length };
        if (__builtin_mul_overflow(a->points, length, &a->points) || a->points > SWEEP_POINTS_MAX)
            script_fail(L, "sweep: more than %d points", SWEEP_POINTS_MAX);
    }
    if (a->count == 0) script_fail(L, "sweep: the second table names no option to vary");
}

static int verb_sweep(lua_State *L) {
    script_check_fatal(L);
    verbs_need_table(L, "sweep", 1, "sweep({ trace = \"traces\" }, { lanes = { 1, 2, 4 } })");
    verbs_need_table(L, "sweep", 2, "sweep({ trace = \"traces\" }, { lanes = { 1, 2, 4 } })");
    lua_settop(L, 2);
    axes a = { .table = 2 };
    cedar_run_opts **box = values_new_opts(L);
    cedar_err err = { 0 };
    if (cedar_opts_new(box, &err)) script_fail_status(L, "sweep", &err);
    check_keys(L, "sweep", *box, 2);
    values_free_opts(box);
    read_axes(L, &a);
    for (lua_Integer p = 0; p < a.points; p++) { /* all points must be right before the first is played */
        values_free_opts(push_point(L, "sweep", 1, &a, p));
        lua_pop(L, 1);
    }
    lua_createtable(L, (int)a.points, 0);
    for (lua_Integer p = 0; p < a.points; p++) {
        play_point(L, "sweep", push_point(L, "sweep", 1, &a, p));
        lua_rawseti(L, -2, p + 1);
    }
    return 1;
}

/* --- compare ---------------------------------------------------------------------------------------------------- */

static double number_field(lua_State *L, int index, const char *name) {
    lua_pushstring(L, name);
    lua_rawget(L, index);
    if (!lua_isnumber(L, -1)) script_fail(L, "compare: argument %d is not a result: it has no number \"%s\"", index,
                                          name);
    double x = lua_tonumber(L, -1);
    lua_pop(L, 1);
    return x;
}

/* compare(result, base): ratios result / base; nan where the base is 0 or nan. */
static int verb_compare(lua_State *L) {
    static const char *const names[] = { "ttft_p50_ms", "ttft_p90_ms", "itl_p50_ms", "itl_p90_ms", "interactivity_p90",
                                         "total_tok_s", "output_tok_s", "span_s", "kv_bytes_peak",
                                             "window_bytes_peak" };
    for (int i = 1; i <= 2; i++)
        if (!lua_istable(L, i)) return script_fail(L, "compare needs two results of run or sweep");
    lua_settop(L, 2);
    lua_newtable(L);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double x = number_field(L, 1, names[i]), base = number_field(L, 2, names[i]);
        lua_pushnumber(L, base != 0 ? x / base : (double)NAN);
        lua_setfield(L, -2, names[i]);
    }
    values_make_strict(L, "a comparison");
    return 1;
}

/* --- expect ----------------------------------------------------------------------------------------------------- */

/* Tells the host, counts, and pushes whether it held. */
static int record(lua_State *L, const char *what, bool ok, const char *detail) {
    script *s = script_of(L);
    cedar_err err = { 0 };
    cedar_status st = s->host->expect ? s->host->expect(s->host->self, what, ok, detail, &err) : CEDAR_OK;
    if (st) {
        err.code = st;
        return script_fail_status(L, "expect", &err);
    }
    s->expect_count++;
    if (!ok && s->expect_failed++ == 0) {
        script_push_where(L);
        snprintf(s->expect_first, sizeof s->expect_first, "%s%.100s%s%.100s", lua_tostring(L, -1), what,
                 *detail ? ": " : "", detail);
    }
    lua_pushboolean(L, ok);
    return 1;
}

/* One bound of expect{...}: true when it holds. Adds ", <= 3" to the text at the top. */
static bool check_bound(lua_State *L, const char *key, const char *sign, int op, bool swap) {
    lua_getfield(L, 1, key);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return true;
    }
    lua_getfield(L, 1, "value");
    if (op != LUA_OPEQ && (lua_type(L, -1) != LUA_TNUMBER || lua_type(L, -2) != LUA_TNUMBER))
        script_fail(L, "expect: %s compares numbers; value is a %s, %s is a %s", key, luaL_typename(L, -1), key,
                    luaL_typename(L, -2));
    bool holds = swap ? lua_compare(L, -2, -1, op) : lua_compare(L, -1, -2, op);
    lua_pop(L, 1);
    const char *bound = stdlib_text(L, -1, NULL);
    lua_pushfstring(L, "%s, wanted %s %s", lua_tostring(L, -3), sign, bound);
    lua_replace(L, -4);
    lua_pop(L, 2);
    return holds;
}

static int expect_table(lua_State *L) {
    static const char *const known[] = { "what", "value", "le", "ge", "eq" };
    lua_settop(L, 1);
    values_check_keys(L, "expect", 1, known, sizeof known / sizeof *known);
    lua_getfield(L, 1, "what");
    if (lua_type(L, -1) != LUA_TSTRING) return script_fail(L, "expect: what must be a text that names the expectation");
    const char *what = lua_tostring(L, -1);
    lua_getfield(L, 1, "value");
    if (lua_isnil(L, -1)) return script_fail(L, "expect: value is missing");
    stdlib_text(L, -1, NULL);
    lua_remove(L, -2);
    size_t before = lua_rawlen(L, -1);
    bool ok = check_bound(L, "le", "<=", LUA_OPLE, false);
    ok &= check_bound(L, "ge", ">=", LUA_OPLE, true);
    ok &= check_bound(L, "eq", "==", LUA_OPEQ, false);
    if (lua_rawlen(L, -1) == before) return script_fail(L, "expect: give at least one of le, ge, eq");
    return record(L, what, ok, lua_tostring(L, -1));
}

static int verb_expect(lua_State *L) {
    script_check_fatal(L);
    if (lua_istable(L, 1)) return expect_table(L);
    if (lua_type(L, 1) != LUA_TSTRING)
        return script_fail(L, "expect(what, condition, detail): what must be a text that names the expectation");
    if (lua_isnone(L, 2)) return script_fail(L, "expect: the condition is missing");
    const char *detail = lua_isnoneornil(L, 3) ? "" : stdlib_text(L, 3, NULL);
    return record(L, lua_tostring(L, 1), lua_toboolean(L, 2), detail);
}

/* --- print, note, options --------------------------------------------------------------------------------------- */

static int print_joined(lua_State *L, const char *first, const char *between) {
    script *s = script_of(L);
    int args = lua_gettop(L);
    luaL_checkstack(L, 4, "print");
    lua_pushstring(L, first);
    for (int i = 1; i <= args; i++) {
        if (i > 1) {
            lua_pushstring(L, between);
            lua_concat(L, 2);
        }
        stdlib_text(L, i, NULL);
        lua_concat(L, 2);
    }
    if (s->host->print) s->host->print(s->host->self, lua_tostring(L, -1));
    return 0;
}

static int verb_print(lua_State *L) { return print_joined(L, "", "\t"); }
static int verb_note(lua_State *L) { return print_joined(L, "note: ", " "); }

static int verb_options(lua_State *L) {
    static const char *const types[] = { "int", "real", "ratio", "bool", "string", "choice" };
    size_t count;
    const cedar_opt_info *option = cedar_opt_table(&count);
    lua_createtable(L, (int)count, 0);
    for (size_t i = 0; i < count; i++) {
        const struct { const char *name, *value; } texts[] = {
            { "key", option[i].key }, { "type", types[option[i].type] }, { "default", option[i].value_default },
            { "choices", option[i].choices ? option[i].choices : "" }, { "help", option[i].help } };
        lua_newtable(L);
        for (size_t t = 0; t < sizeof texts / sizeof *texts; t++) {
            lua_pushstring(L, texts[t].value);
            lua_setfield(L, -2, texts[t].name);
        }
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

void verbs_open(lua_State *L) {
    static const luaL_Reg verbs[] = { { "run", verb_run }, { "sweep", verb_sweep }, { "compare", verb_compare },
                                      { "expect", verb_expect }, { "print", verb_print }, { "note", verb_note },
                                      { "options", verb_options }, { "search", verb_search },
                                      { "frontier", verb_frontier }, { "audit", verb_audit },
                                      { "ladder", verb_ladder }, { "claim", verb_claim },
                                      { "published", verb_published }, { "shape", verb_shape }, { NULL, NULL } };
    luaL_setfuncs(L, verbs, 0);
}
