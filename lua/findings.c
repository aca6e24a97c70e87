/* ladder{...} and claim{...}: what a scenario concludes from its runs; published(path) and shape(model): what it
 * compares with (docs/SCENARIOS.md).
 *
 * Rows go to the host one by one, each checked before; texts are borrowed from the tables, which stay on the stack
 * meanwhile. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "lua/script_int.h"
#include "sim/claims.h"

enum { WHY_BYTES = 400, SWITCHES_MAX = 64 };

/* --- fields ------------------------------------------------------------------------------------------------------- */

/* The text under a key of the table at `t`; `otherwise` when there is none, which NULL forbids. */
static const char *text_field(lua_State *L, const char *verb, int t, const char *key, const char *otherwise) {
    size_t bytes = 0;
    lua_pushstring(L, key);
    int type = lua_rawget(L, t);
    if (type == LUA_TNIL && !otherwise) script_fail(L, "%s: %s is missing", verb, key);
    if (type != LUA_TNIL && type != LUA_TSTRING)
        script_fail(L, "%s: %s must be a text, not a %s", verb, key, luaL_typename(L, -1));
    const char *text = type == LUA_TNIL ? otherwise : lua_tolstring(L, -1, &bytes);
    if (type != LUA_TNIL && strlen(text) != bytes) script_fail(L, "%s: %s holds a zero byte", verb, key);
    lua_pop(L, 1);
    return text;
}

/* The finite number under a key; NaN when there is none. */
static double number_or_nan(lua_State *L, const char *verb, int t, const char *key) {
    lua_pushstring(L, key);
    int type = lua_rawget(L, t);
    if (type != LUA_TNIL && type != LUA_TNUMBER)
        script_fail(L, "%s: %s must be a number, not a %s", verb, key, luaL_typename(L, -1));
    double x = type == LUA_TNIL ? (double)NAN : lua_tonumber(L, -1);
    if (type != LUA_TNIL && !isfinite(x))
        script_fail(L, "%s: %s = %s: must be a finite number", verb, key, stdlib_text(L, -1, NULL));
    lua_pop(L, 1);
    return x;
}

static double number_field(lua_State *L, const char *verb, int t, const char *key) {
    double x = number_or_nan(L, verb, t, key);
    if (isnan(x)) script_fail(L, "%s: %s is missing", verb, key);
    return x;
}

/* The whole number of 0 or more under a key; 0 when there is none. */
static int64_t whole_field(lua_State *L, const char *verb, int t, const char *key) {
    double x = number_or_nan(L, verb, t, key);
    if (!isnan(x) && (x < 0 || x > 4e15 || x != floor(x)))
        script_fail(L, "%s: %s = %.17g: must be a whole number of 0 or more", verb, key, x);
    return isnan(x) ? 0 : (int64_t)x;
}

/* true or false under a key; false when there is none. */
static bool flag_field(lua_State *L, const char *verb, int t, const char *key) {
    lua_pushstring(L, key);
    int type = lua_rawget(L, t);
    if (type != LUA_TNIL && type != LUA_TBOOLEAN)
        script_fail(L, "%s: %s must be true or false, not a %s", verb, key, luaL_typename(L, -1));
    bool on = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return on;
}

/* run = RESULT or its number; 0 when there is none. */
static int64_t run_field(lua_State *L, const char *verb, int t) {
    lua_pushliteral(L, "run");
    int64_t id = 0;
    if (lua_rawget(L, t) == LUA_TTABLE) {
        lua_pushliteral(L, "run_id");
        if (lua_rawget(L, -2) != LUA_TNUMBER) script_fail(L, "%s: run is a table without run_id", verb);
        id = (int64_t)lua_tonumber(L, -1);
        lua_pop(L, 1);
    } else {
        id = whole_field(L, verb, t, "run");
    }
    lua_pop(L, 1);
    return id;
}

/* lo and hi: both or none, around the figure. */
static void interval_fields(lua_State *L, const char *verb, int t, double figure, double *lo, double *hi) {
    *lo = number_or_nan(L, verb, t, "lo");
    *hi = number_or_nan(L, verb, t, "hi");
    if (isnan(*lo) != isnan(*hi)) script_fail(L, "%s: lo and hi go together", verb);
    if (!isnan(*lo) && !(*lo <= figure && figure <= *hi))
        script_fail(L, "%s: the figure %.6g does not lie between lo = %.6g and hi = %.6g", verb, figure, *lo, *hi);
}

/* Pushes the table under a key; returns its place, or 0 with nothing pushed when there is none. */
static int table_field(lua_State *L, const char *verb, int t, const char *key) {
    lua_pushstring(L, key);
    int type = lua_rawget(L, t);
    if (type == LUA_TTABLE) return lua_gettop(L);
    if (type != LUA_TNIL) script_fail(L, "%s: %s must be a table, not a %s", verb, key, luaL_typename(L, -1));
    lua_pop(L, 1);
    return 0;
}

/* Pushes item i of the list at `list`; returns its place. */
static int list_item(lua_State *L, const char *verb, int list, const char *name, lua_Integer i) {
    if (lua_rawgeti(L, list, i) != LUA_TTABLE)
        script_fail(L, "%s: item %lld of %s must be a table, not a %s", verb, (long long)i, name, luaL_typename(L, -1));
    return lua_gettop(L);
}

void findings_emit(lua_State *L, const char *verb, cedar_finding kind, const void *row) {
    const script *s = script_of(L);
    cedar_err err = { 0 };
    cedar_status st = s->host->finding ? s->host->finding(s->host->self, kind, row, &err) : CEDAR_OK;
    if (!st) return;
    err.code = st;
    script_fail_status(L, verb, &err);
}

/* --- switches as JSON --------------------------------------------------------------------------------------------- */

static void add_json_text(luaL_Buffer *b, const char *text) {
    char code[CEDAR_JSON_CHAR_BYTES];
    luaL_addchar(b, '"');
    for (; *text; text++) luaL_addstring(b, cedar_json_char(*text, code));
    luaL_addchar(b, '"');
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Keys of the table at `t`, sorted, so that the text does not depend on the table's order. */
static size_t sorted_keys(lua_State *L, int t, const char *keys[SWITCHES_MAX]) {
    size_t count = 0;
    for (lua_pushnil(L); lua_next(L, t); lua_pop(L, 1)) {
        int type = lua_type(L, -1);
        if (lua_type(L, -2) != LUA_TSTRING) script_fail(L, "ladder: switches are written key = value");
        if (type != LUA_TSTRING && type != LUA_TNUMBER && type != LUA_TBOOLEAN)
            script_fail(L, "ladder: the switch %.64s must be a text, a number or true or false", lua_tostring(L, -2));
        if (type == LUA_TNUMBER && !isfinite(lua_tonumber(L, -1)))
            script_fail(L, "ladder: the switch %.64s must be a finite number", lua_tostring(L, -2));
        if (count == SWITCHES_MAX) script_fail(L, "ladder: a rung has more than %d switches", SWITCHES_MAX);
        keys[count++] = lua_tostring(L, -2);
    }
    qsort(keys, count, sizeof *keys, compare_texts);
    return count;
}

/* Pushes the switches of the rung at `t` as a JSON object. The values are put on the stack before the buffer, which
 * wants the top for itself. */
static const char *push_switches(lua_State *L, int t) {
    const char *keys[SWITCHES_MAX], *values[SWITCHES_MAX];
    bool quoted[SWITCHES_MAX];
    luaL_Buffer b;
    luaL_checkstack(L, SWITCHES_MAX + 8, "ladder");
    int at = table_field(L, "ladder", t, "switches");
    size_t count = at ? sorted_keys(L, at, keys) : 0;
    for (size_t i = 0; i < count; i++) {
        lua_pushstring(L, keys[i]);
        quoted[i] = lua_rawget(L, at) == LUA_TSTRING;
        values[i] = stdlib_text(L, -1, NULL);
    }
    luaL_buffinit(L, &b);
    luaL_addchar(&b, '{');
    for (size_t i = 0; i < count; i++) {
        if (i) luaL_addchar(&b, ',');
        add_json_text(&b, keys[i]);
        luaL_addchar(&b, ':');
        if (quoted[i]) add_json_text(&b, values[i]);
        else luaL_addstring(&b, values[i]);
    }
    luaL_addchar(&b, '}');
    luaL_pushresult(&b);
    return lua_tostring(L, -1);
}

/* --- ladder ------------------------------------------------------------------------------------------------------- */

static void put_figure(lua_State *L, int t, const cedar_rung_row *rung) {
    static const char *const known[] = { "metric", "context", "value", "lo", "hi", "n", "unit", "run", "note" };
    values_check_keys(L, "ladder", t, known, sizeof known / sizeof *known);
    cedar_figure_row row = { .ladder_id = rung->ladder_id,
                             .rung = rung->rung,
                             .metric = text_field(L, "ladder", t, "metric", NULL),
                             .unit = text_field(L, "ladder", t, "unit", NULL),
                             .note = text_field(L, "ladder", t, "note", ""),
                             .value = number_field(L, "ladder", t, "value"),
                             .n = (uint64_t)whole_field(L, "ladder", t, "n"),
                             .run_id = run_field(L, "ladder", t) };
    int64_t context = whole_field(L, "ladder", t, "context");
    if (context > UINT32_MAX) script_fail(L, "ladder: context is above 2^32-1 tokens");
    row.context_tokens = (uint32_t)context;
    interval_fields(L, "ladder", t, row.value, &row.lo, &row.hi);
    findings_emit(L, "ladder", CEDAR_FINDING_FIGURE, &row);
}

static void put_rung(lua_State *L, int t, int64_t ladder_id, lua_Integer number) {
    static const char *const known[] = { "name", "why", "switches", "figures", "beyond" };
    values_check_keys(L, "ladder", t, known, sizeof known / sizeof *known);
    cedar_rung_row row = { .ladder_id = ladder_id,
                           .rung = (uint32_t)number,
                           .name = text_field(L, "ladder", t, "name", NULL),
                           .why = text_field(L, "ladder", t, "why", ""),
                           .switches = push_switches(L, t),
                           .beyond = flag_field(L, "ladder", t, "beyond") };
    findings_emit(L, "ladder", CEDAR_FINDING_RUNG, &row);
    int list = table_field(L, "ladder", t, "figures");
    if (!list) return;
    for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, list); i++) {
        put_figure(L, list_item(L, "ladder", list, "figures", i), &row);
        lua_settop(L, list);
    }
}

/* ladder{ title, provenance, hardware, model, note, rungs = { { name, why, switches, beyond, figures = { ... } } } }
 */
int verb_ladder(lua_State *L) {
    static const char *const known[] = { "title", "provenance", "hardware", "model", "note", "rungs" };
    script_check_fatal(L);
    verbs_need_table(L, "ladder", 1, "ladder{ title = \"...\", provenance = \"modelled\", rungs = { ... } }");
    script *s = script_of(L);
    lua_settop(L, 1);
    values_check_keys(L, "ladder", 1, known, sizeof known / sizeof *known);
    cedar_ladder_row row = { .ladder_id = s->ladders + 1,
                             .title = text_field(L, "ladder", 1, "title", NULL),
                             .provenance = text_field(L, "ladder", 1, "provenance", NULL),
                             .hardware = text_field(L, "ladder", 1, "hardware", NULL),
                             .model = text_field(L, "ladder", 1, "model", NULL),
                             .note = text_field(L, "ladder", 1, "note", "") };
    if (strcmp(row.provenance, "measured") && strcmp(row.provenance, "modelled"))
        script_fail(L, "ladder: provenance = \"%.32s\": must be measured or modelled, never both", row.provenance);
    int list = table_field(L, "ladder", 1, "rungs");
    if (!list || lua_rawlen(L, list) == 0) script_fail(L, "ladder: rungs is missing or empty");
    findings_emit(L, "ladder", CEDAR_FINDING_LADDER, &row);
    s->ladders++;
    for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, list); i++) {
        put_rung(L, list_item(L, "ladder", list, "rungs", i), row.ladder_id, i);
        lua_settop(L, list);
    }
    lua_pushinteger(L, (lua_Integer)row.ladder_id);
    return 1;
}

/* --- claim -------------------------------------------------------------------------------------------------------- */

/* What the file says: `published`, a row of it. */
static cedar_claim_row read_published(lua_State *L, int t) {
    static const char *const known[] = { "row", "line", "source", "date", "model", "hardware", "engine", "metric",
                                         "condition", "value", "last_digit", "unit", "url" };
    values_check_keys(L, "claim", t, known, sizeof known / sizeof *known);
    cedar_claim_row row = { .claim_id = whole_field(L, "claim", t, "row"),
                            .source = text_field(L, "claim", t, "source", NULL),
                            .date = text_field(L, "claim", t, "date", ""),
                            .model = text_field(L, "claim", t, "model", NULL),
                            .hardware = text_field(L, "claim", t, "hardware", ""),
                            .engine = text_field(L, "claim", t, "engine", ""),
                            .metric = text_field(L, "claim", t, "metric", NULL),
                            .condition = text_field(L, "claim", t, "condition", ""),
                            .unit = text_field(L, "claim", t, "unit", NULL),
                            .url = text_field(L, "claim", t, "url", ""),
                            .published = number_field(L, "claim", t, "value"),
                            .ours = (double)NAN, .lo = (double)NAN, .hi = (double)NAN,
                            .provenance = "none", .verdict = cedar_claim_verdict_name(CEDAR_CLAIM_NOT_TESTED) };
    if (row.claim_id < 1) script_fail(L, "claim: row of the published figure must be 1 or more");
    return row;
}

static const char *read_provenance(lua_State *L) {
    static const char *const known[] = { "measured", "modelled", "computed", "imported" };
    const char *text = text_field(L, "claim", 1, "provenance", NULL);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(text, known[i]) == 0) return text;
    script_fail(L, "claim: provenance = \"%.32s\": must be measured, modelled, computed or imported", text);
}

static cedar_claim_test read_test(lua_State *L, int published, const cedar_claim_row *row) {
    cedar_claim_test t = { .published = row->published, .ours = row->ours, .lo = row->lo, .hi = row->hi };
    const char *name = text_field(L, "claim", 1, "rule", NULL);
    if (!cedar_claim_rule_find(name, &t.rule))
        script_fail(L, "claim: rule = \"%.32s\": must be rounded, digit, within, at_least or at_most", name);
    if (t.rule == CEDAR_CLAIM_ROUNDED || t.rule == CEDAR_CLAIM_DIGIT) {
        t.last_digit = number_field(L, "claim", published, "last_digit");
        if (t.last_digit <= 0) script_fail(L, "claim: last_digit must be above 0");
    } else {
        t.share = number_field(L, "claim", 1, "share");
        if (t.share < 0 || t.share >= 1) script_fail(L, "claim: share = %g: must be from 0 to below 1", t.share);
    }
    return t;
}

/* Our figure, and the verdict on it, which is never given, always worked out. Pushes the text of why. */
static void read_ours(lua_State *L, int published, cedar_claim_row *row) {
    char why[WHY_BYTES];
    interval_fields(L, "claim", 1, row->ours, &row->lo, &row->hi);
    row->provenance = read_provenance(L);
    row->n = (uint64_t)whole_field(L, "claim", 1, "n");
    row->run_id = run_field(L, "claim", 1);
    const cedar_claim_test t = read_test(L, published, row);
    row->verdict = cedar_claim_verdict_name(cedar_claim_judge(&t, why, WHY_BYTES));
    const char *how = text_field(L, "claim", 1, "why", "");
    row->why = lua_pushfstring(L, *how ? "%s. %s" : "%s", why, how);
}

static void put_sensitivity(lua_State *L, int t, int64_t claim_id) {
    static const char *const known[] = { "assumption", "setting_lo", "setting_hi", "ours_lo", "ours_hi" };
    values_check_keys(L, "claim", t, known, sizeof known / sizeof *known);
    const cedar_sensitivity_row row = { .claim_id = claim_id,
                                        .assumption = text_field(L, "claim", t, "assumption", NULL),
                                        .setting_lo = number_field(L, "claim", t, "setting_lo"),
                                        .setting_hi = number_field(L, "claim", t, "setting_hi"),
                                        .ours_lo = number_field(L, "claim", t, "ours_lo"),
                                        .ours_hi = number_field(L, "claim", t, "ours_hi") };
    findings_emit(L, "claim", CEDAR_FINDING_SENSITIVITY, &row);
}

/* claim{ published, ours, lo, hi, n, provenance, rule, share, why, run, sensitivity }, or, for a figure that is not
 * tested, claim{ published, why }. Returns the verdict. */
int verb_claim(lua_State *L) {
    static const char *const known[] = { "published", "ours", "lo", "hi", "n", "provenance", "rule", "share", "why",
                                         "run", "sensitivity" };
    script_check_fatal(L);
    verbs_need_table(L, "claim", 1, "claim{ published = row, why = \"...\" }");
    lua_settop(L, 1);
    values_check_keys(L, "claim", 1, known, sizeof known / sizeof *known);
    int published = table_field(L, "claim", 1, "published");
    if (!published) script_fail(L, "claim: published is missing");
    cedar_claim_row row = read_published(L, published);
    row.ours = number_or_nan(L, "claim", 1, "ours");
    if (!isnan(row.ours)) read_ours(L, published, &row);
    else if (!*(row.why = text_field(L, "claim", 1, "why", "")))
        script_fail(L, "claim: row %lld has no figure of ours, so why must say why it is not tested",
                    (long long)row.claim_id);
    int list = table_field(L, "claim", 1, "sensitivity");
    if (list && isnan(row.ours)) script_fail(L, "claim: sensitivity needs a figure of ours");
    findings_emit(L, "claim", CEDAR_FINDING_CLAIM, &row);
    for (lua_Integer i = 1; list && i <= (lua_Integer)lua_rawlen(L, list); i++) {
        put_sensitivity(L, list_item(L, "claim", list, "sensitivity", i), row.claim_id);
        lua_settop(L, list);
    }
    lua_pushstring(L, row.verdict);
    return 1;
}

/* --- published, shape --------------------------------------------------------------------------------------------- */

static int free_list(lua_State *L) {
    cedar_published_list **box = lua_touserdata(L, 1);
    cedar_published_free(*box);
    *box = NULL;
    return 0;
}

/* Pushes a box whose list is freed with it, whatever happens. */
static cedar_published_list **push_list_box(lua_State *L) {
    cedar_published_list **box = lua_newuserdatauv(L, sizeof *box, 0);
    *box = NULL;
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, free_list);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    return box;
}

static void push_row(lua_State *L, const cedar_published *p) {
    const struct { const char *key, *text; } texts[] = {
        { "source", p->source }, { "date", p->date }, { "model", p->model }, { "hardware", p->hardware },
        { "engine", p->engine }, { "metric", p->metric }, { "condition", p->condition }, { "unit", p->unit },
        { "url", p->url } };
    lua_createtable(L, 0, 13);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        lua_pushstring(L, texts[i].text);
        lua_setfield(L, -2, texts[i].key);
    }
    lua_pushinteger(L, (lua_Integer)p->row);
    lua_setfield(L, -2, "row");
    lua_pushinteger(L, p->line);
    lua_setfield(L, -2, "line");
    lua_pushnumber(L, p->value);
    lua_setfield(L, -2, "value");
    lua_pushnumber(L, p->last_digit);
    lua_setfield(L, -2, "last_digit");
    values_make_strict(L, "a published figure");
}

int verb_published(lua_State *L) {
    const script *s = script_of(L);
    cedar_err err = { 0 };
    script_check_fatal(L);
    if (lua_type(L, 1) != LUA_TSTRING)
        script_fail(L, "published(path): path must be a text, such as \"scenarios/claims/published_claims.csv\"");
    if (!s->host->published) script_fail(L, "published: this program reads no files of published figures");
    cedar_published_list **box = push_list_box(L);
    cedar_status st = s->host->published(s->host->self, lua_tostring(L, 1), box, &err);
    if (st) {
        err.code = st;
        return script_fail_status(L, "published", &err);
    }
    lua_createtable(L, (int)(*box)->count, 0);
    for (size_t i = 0; i < (*box)->count; i++) {
        push_row(L, &(*box)->rows[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

int verb_shape(lua_State *L) {
    const script *s = script_of(L);
    cedar_err err = { 0 };
    cedar_shape x;
    script_check_fatal(L);
    if (lua_type(L, 1) != LUA_TSTRING) script_fail(L, "shape(model): model must be a name, such as \"flash\"");
    if (!s->host->shape) script_fail(L, "shape: this program has no shapes");
    cedar_status st = s->host->shape(s->host->self, lua_tostring(L, 1), &x, &err);
    if (st) {
        err.code = st;
        return script_fail_status(L, "shape", &err);
    }
    const struct { const char *key; double value; } figures[] = {
        { "layers", x.layers }, { "cut", x.cut }, { "window", x.window }, { "parameters", x.parameters },
        { "parameters_backbone", x.parameters_backbone }, { "parameters_engram", x.parameters_engram },
        { "parameters_draft", x.parameters_draft }, { "active_prefill", x.active_prefill },
        { "active_decode", x.active_decode }, { "kv_token_bytes", x.kv_token_bytes },
        { "window_bytes", x.window_bytes } };
    lua_newtable(L);
    lua_pushstring(L, x.name);
    lua_setfield(L, -2, "name");
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        lua_pushnumber(L, figures[i].value);
        lua_setfield(L, -2, figures[i].key);
    }
    values_make_strict(L, "a shape");
    return 1;
}
