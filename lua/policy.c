/* Policies: functions of the scenario that a run asks about each request.
 *
 * A policy runs inside the run that the scenario's verb plays, in the scenario's own state, protected and with a limit
 * of instructions. What it is goes into the run's options: its place, and a hash of its lines in the scenario. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "lua/script_int.h"

/* Lives in a userdata that the registry keeps as long as the scenario runs. */
typedef struct policy {
    cedar_policy face;          /* one of the two is used */
    cedar_router router;
    lua_State *L;
    int place;                  /* reference of the function in the registry */
} policy;

static void push_request(lua_State *L, const cedar_policy_request *r) {
    const struct { const char *name; lua_Integer value; } fields[] = {
        { "request_id", r->request_id }, { "lane", r->lane + 1 }, { "stream", r->stream }, { "turn", r->turn },
        { "in_tokens", r->in_tokens }, { "out_tokens", r->out_tokens }, { "waited_ns", r->waited_ns } };
    lua_createtable(L, 0, 8);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        lua_pushinteger(L, fields[i].value);
        lua_setfield(L, -2, fields[i].name);
    }
    lua_pushboolean(L, r->warmup);
    lua_setfield(L, -2, "warmup");
    values_make_strict(L, "a request");
}

static void push_state(lua_State *L, const cedar_policy_state *s) {
    const struct { const char *name; lua_Integer value; } fields[] = {
        { "now_ns", s->now_ns }, { "waiting", s->waiting }, { "running", s->running }, { "decoding", s->decoding },
        { "pages_free", s->pages_free }, { "pages_total", s->pages_total } };
    lua_createtable(L, 0, 6);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        lua_pushinteger(L, fields[i].value);
        lua_setfield(L, -2, fields[i].name);
    }
    values_make_strict(L, "the state of a run");
}

static void push_engines(lua_State *L, const cedar_policy_engine *engines, uint32_t count) {
    lua_createtable(L, (int)count, 0);
    for (uint32_t i = 0; i < count; i++) {
        const cedar_policy_engine *e = &engines[i];
        const struct { const char *name; lua_Integer value; } fields[] = {
            { "waiting", e->waiting }, { "running", e->running }, { "decoding", e->decoding },
            { "pages_free", e->pages_free }, { "pages_total", e->pages_total }, { "cached_tokens", e->cached_tokens } };
        lua_createtable(L, 0, 6);
        for (size_t k = 0; k < sizeof fields / sizeof *fields; k++) {
            lua_pushinteger(L, fields[k].value);
            lua_setfield(L, -2, fields[k].name);
        }
        values_make_strict(L, "an engine");
        lua_rawseti(L, -2, i + 1);
    }
}

typedef struct question {
    const policy *policy;
    const cedar_policy_request *request;
    const cedar_policy_state *state;
    const cedar_policy_engine *engines;
    uint32_t count;
    bool admit;
    uint32_t engine;
} question;

/* Runs under pcall, with the question as its argument. */
static int ask(lua_State *L) {
    question *q = lua_touserdata(L, 1);
    lua_rawgeti(L, LUA_REGISTRYINDEX, q->policy->place);
    push_request(L, q->request);
    push_state(L, q->state);
    lua_call(L, 2, 1);
    if (!lua_isboolean(L, -1))
        return luaL_error(L, "an admission policy must return true or false; it returned %s", luaL_typename(L, -1));
    q->admit = lua_toboolean(L, -1);
    return 0;
}

/* The same for a router. */
static int ask_router(lua_State *L) {
    question *q = lua_touserdata(L, 1);
    int whole;
    lua_rawgeti(L, LUA_REGISTRYINDEX, q->policy->place);
    push_request(L, q->request);
    push_engines(L, q->engines, q->count);
    lua_call(L, 2, 1);
    lua_Integer n = lua_tointegerx(L, -1, &whole);
    if (lua_type(L, -1) != LUA_TNUMBER)
        return luaL_error(L, "a routing policy must return the number of an engine; it returned %s",
                          luaL_typename(L, -1));
    if (!whole)
        return luaL_error(L, "a routing policy must return a whole number, 1 to %d; it returned %f", (int)q->count,
                          lua_tonumber(L, -1));
    if (n < 1 || n > (lua_Integer)q->count)
        return luaL_error(L, "a routing policy must return the number of an engine, 1 to %d; it returned %I",
                          (int)q->count, (LUAI_UACINT)n);
    q->engine = (uint32_t)n - 1;
    return 0;
}

/* Calls `how` with the question, under a limit of instructions. what: the policy's kind, for messages. */
static cedar_status call(question *q, lua_CFunction how, const char *what, cedar_err *err) {
    lua_State *L = q->policy->L;
    script *s = script_of(L);
    int top = lua_gettop(L);
    if (!lua_checkstack(L, 4)) return cedar_fail(err, CEDAR_E_OOM, "no memory to call the %s policy", what);
    s->policy_end = s->instructions + POLICY_INSTRUCTIONS_MAX;
    lua_pushcfunction(L, how);
    lua_pushlightuserdata(L, q);
    int status = lua_pcall(L, 1, 0, 0);
    s->policy_end = 0;
    cedar_status st = CEDAR_OK;
    if (s->fatal.code) st = cedar_fail(err, s->fatal.code, "%s", s->fatal.msg);
    else if (status)
        st = cedar_fail(err, CEDAR_E_SCRIPT, "%s policy, request %lld: %s", what, (long long)q->request->request_id,
                        lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "an error that is not text");
    lua_settop(L, top);
    return st;
}

static cedar_status admit(void *self, const cedar_policy_request *request, const cedar_policy_state *state, bool *out,
                          cedar_err *err) {
    question q = { .policy = self, .request = request, .state = state };
    cedar_status st = call(&q, ask, "admission", err);
    *out = q.admit;
    return st;
}

static cedar_status route(void *self, const cedar_policy_request *request, const cedar_policy_engine *engines,
                          uint32_t count, uint32_t *out, cedar_err *err) {
    question q = { .policy = self, .request = request, .engines = engines, .count = count };
    cedar_status st = call(&q, ask_router, "routing", err);
    *out = q.engine;
    return st;
}

/* "FILE lines 3-7, sha256 HEX" of the function at `index`; pushes it. */
static const char *push_name(lua_State *L, const char *verb, const char *option, int index) {
    const cedar_script_opts *o = script_of(L)->opts;
    lua_Debug ar;
    lua_pushvalue(L, index);
    lua_getinfo(L, ">S", &ar);
    if (*ar.what == 'C') script_fail(L, "%s: %s must be a function written in the scenario", verb, option);
    const char *from = o->text, *end = o->text + o->bytes;
    for (int line = 1; line < ar.linedefined && from < end; line++) {
        const char *nl = memchr(from, '\n', (size_t)(end - from));
        from = nl ? nl + 1 : end;
    }
    const char *to = from;
    for (int line = ar.linedefined; line <= ar.lastlinedefined && to < end; line++) {
        const char *nl = memchr(to, '\n', (size_t)(end - to));
        to = nl ? nl + 1 : end;
    }
    char hash[CEDAR_SHA256_HEX];
    cedar_sha256 h;
    cedar_sha256_init(&h);
    cedar_sha256_add(&h, from, (size_t)(to - from));
    cedar_sha256_hex(&h, hash);
    return lua_pushfstring(L, "lines %d-%d, sha256 %s", ar.linedefined, ar.lastlinedefined, hash);
}

/* A policy of the function at `index`, kept by the registry. */
static policy *keep(lua_State *L, int index) {
    policy *p = lua_newuserdatauv(L, sizeof *p, 0);
    lua_pushvalue(L, index);
    int place = luaL_ref(L, LUA_REGISTRYINDEX);
    *p = (policy){ .face = { .self = p, .admit = admit }, .router = { .self = p, .route = route }, .L = L,
                   .place = place };
    luaL_ref(L, LUA_REGISTRYINDEX);             /* pops it */
    return p;
}

void policy_set(lua_State *L, const char *verb, cedar_run_opts *o, int index) {
    if (!lua_isfunction(L, index))
        script_fail(L, "%s: admission must be a function of a request and the run's state, not a %s", verb,
                    luaL_typename(L, index));
    values_set(L, verb, o, "admission", push_name(L, verb, "admission", index));
    lua_pop(L, 1);
    cedar_opts_policy(o, &keep(L, index)->face);
}

void policy_set_router(lua_State *L, const char *verb, cedar_run_opts *o, int index) {
    values_set(L, verb, o, "routing_policy", push_name(L, verb, "routing", index));
    lua_pop(L, 1);
    values_set(L, verb, o, "routing", "policy");
    cedar_opts_router(o, &keep(L, index)->router);
}
