/* The scenario language against a fake host: sandbox, limits, verbs, overrides, error messages. */
#include <check.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "lua/script.h"
#include "sim/options_int.h"

/* A host that remembers what it was asked. */
typedef struct fake {
    char runs[64][512];         /* "label|lanes|replay|trace|length_scale" */
    char paired[128];
    char audits[64][640];       /* "model|first arm|arms|suffix|length_scale|margin_kl|drafts" */
    int run_count, audit_count, expect_count, expect_failed, admitted;
    uint32_t routed;            /* engines that a router chose, as decimal digits */
    char expect_last[512];
    char findings[32][512];     /* one line a row, by kind */
    int finding_count;
    char out[65536];
    cedar_status run_fails, expect_fails, finding_fails;
    int fail_at;                /* run number that fails with run_fails */
} fake;

static fake host;
static cedar_err err;
static cedar_script_opts script_opts;

static cedar_status fake_run(void *self, const cedar_run_opts *o, cedar_run_result *out, cedar_err *e) {
    fake *f = self;
    snprintf(f->runs[f->run_count % 64], sizeof f->runs[0], "%s|%lld|%s|%s|%s", o->label, (long long)o->lanes,
             cedar_opts_get(o, "replay"), o->trace, cedar_opts_get(o, "length_scale"));
    f->run_count++;
    if (f->run_fails && (f->fail_at == 0 || f->fail_at == f->run_count))
        return cedar_fail(e, f->run_fails, "the engine is out of sorts");
    *out = (cedar_run_result){ .run_id = f->run_count,
                               .event_hash = 0xDEADBEEF00000001ull,
                               .requests = 10,
                               .in_tokens = 1u << 20,
                               .ttft_mean_ms = 3 * (double)o->lanes,
                               .ttft_p50_ms = 2.5 * (double)o->lanes,
                               .itl_mean_ms = 2,
                               .ttft_p90_ms = 5,
                               .total_tok_s = 1000 * (double)o->lanes,
                               .interactivity_p90 = 600 / (double)o->lanes,
                               .floor_interactivity = (600 + (double)(o->seed % 3)) / (double)o->lanes,
                               .kl_mean = o->quality ? 0.25 : (double)NAN,
                               .kl_p99 = (double)NAN };
    for (uint32_t turn = 0; o->policy && turn < 3; turn++) {
        const cedar_policy_request request = { .request_id = turn + 1, .turn = turn, .in_tokens = 100 * turn };
        const cedar_policy_state state = { .running = 2, .pages_free = 7 };
        bool yes = false;
        cedar_status st = o->policy->admit(o->policy->self, &request, &state, &yes, e);
        if (st) return st;
        f->admitted += yes;
    }
    for (uint32_t turn = 0; o->router && turn < 3; turn++) {
        const cedar_policy_request request = { .request_id = turn + 1, .turn = turn, .in_tokens = 100 };
        const cedar_policy_engine engines[] = { { .waiting = 4, .cached_tokens = 64 },
                                                { .waiting = turn, .running = 1 }, { .waiting = 2 } };
        uint32_t engine = 0;
        cedar_status st = o->router->route(o->router->self, &request, engines, 3, &engine, e);
        if (st) return st;
        f->routed = 10 * f->routed + engine;
    }
    snprintf(out->label, sizeof out->label, "%s", o->label);
    snprintf(out->replay, sizeof out->replay, "%s", cedar_opts_get(o, "replay"));
    snprintf(out->status, sizeof out->status, "finished");
    return CEDAR_OK;
}

static cedar_status fake_paired(void *self, const cedar_paired_opts *o, cedar_paired *out, cedar_err *e) {
    fake *f = self;
    if (f->run_fails) return cedar_fail(e, f->run_fails, "the database is out of sorts");
    snprintf(f->paired, sizeof f->paired, "%s %zu %d/%d %d/%d %u %d", o->metric, o->count, (int)o->a[0], (int)o->b[0],
             (int)o->a[o->count - 1], (int)o->b[o->count - 1], o->resamples, (int)o->seed);
    *out = (cedar_paired){ .pairs = 3, .sessions = 2, .left_out = 1, .ratio = 1.25, .ratio_lo = (double)NAN };
    return CEDAR_OK;
}

static cedar_status fake_audit(void *self, const cedar_audit_opts *o, cedar_audit_result *out, cedar_err *e) {
    fake *f = self;
    char suffix[64] = "";
    for (uint32_t i = 0; i < o->suffix.count; i++)
        snprintf(suffix + strlen(suffix), sizeof suffix - strlen(suffix), "%s%u", i ? "," : "", o->suffix.v[i]);
    snprintf(f->audits[f->audit_count++ % 64], sizeof f->audits[0], "%.200s|%s|%u|%s|%s|%g|%d", o->model, o->arms[0],
             o->arm_count, suffix, o->length_scale, o->margin_kl, o->drafts);
    if (f->run_fails) return cedar_fail(e, f->run_fails, "the engine is out of sorts");
    *out = (cedar_audit_result){ .audit_id = f->audit_count, .result_hash = 0xFEED, .positions = 100,
                                 .arm_count = o->arm_count, .overhead = 0.05 };
    snprintf(out->status, sizeof out->status, "finished");
    for (uint32_t i = 0; i < o->arm_count; i++) {
        cedar_audit_arm_result *a = &out->arms[i];
        *a = (cedar_audit_arm_result){ .docs = 4, .positions = 50, .kl_mean = 0.25 / (i + 1), .kl_max = (double)NAN,
                                       .global_rows = 8 };
        snprintf(a->label, sizeof a->label, "%s", o->arms[i]);
        snprintf(a->verdict, sizeof a->verdict, "undecided");
    }
    return CEDAR_OK;
}

static cedar_status fake_expect(void *self, const char *what, bool ok, const char *detail, cedar_err *e) {
    fake *f = self;
    f->expect_count++;
    f->expect_failed += !ok;
    snprintf(f->expect_last, sizeof f->expect_last, "%s|%s|%s", what, ok ? "ok" : "failed", detail);
    return f->expect_fails ? cedar_fail(e, f->expect_fails, "disk full") : CEDAR_OK;
}

static void fake_ladder(const void *row, cedar_finding kind, char *to, size_t bytes) {
    const cedar_ladder_row *l = row;
    const cedar_rung_row *r = row;
    const cedar_figure_row *f = row;
    if (kind == CEDAR_FINDING_LADDER)
        snprintf(to, bytes, "ladder %lld|%s|%s|%s|%s|%s", (long long)l->ladder_id, l->title, l->provenance, l->hardware,
                 l->model, l->note);
    else if (kind == CEDAR_FINDING_RUNG)
        snprintf(to, bytes, "rung %lld.%u|%s|%s|%s|%s", (long long)r->ladder_id, r->rung, r->name, r->why, r->switches,
                 r->beyond ? "beyond" : "published");
    else
        snprintf(to, bytes, "figure %lld.%u|%s|%u|%g|%g|%g|%llu|%s|%lld|%s", (long long)f->ladder_id, f->rung,
                 f->metric, f->context_tokens, f->value, f->lo, f->hi, (unsigned long long)f->n, f->unit,
                 (long long)f->run_id, f->note);
}

static cedar_status fake_finding(void *self, cedar_finding kind, const void *row, cedar_err *e) {
    fake *f = self;
    const cedar_claim_row *c = row;
    const cedar_sensitivity_row *s = row;
    char *to = f->findings[f->finding_count++ % 32];
    size_t bytes = sizeof f->findings[0];
    if (kind == CEDAR_FINDING_CLAIM)
        snprintf(to, bytes, "claim %lld|%s|%s|%s|%s|%g|%g|%g|%g|%llu|%s|%s|%lld|%s", (long long)c->claim_id, c->source,
                 c->model, c->metric, c->unit, c->published, c->ours, c->lo, c->hi, (unsigned long long)c->n,
                 c->provenance, c->verdict, (long long)c->run_id, c->why);
    else if (kind == CEDAR_FINDING_SENSITIVITY)
        snprintf(to, bytes, "sensitivity %lld|%s|%g|%g|%g|%g", (long long)s->claim_id, s->assumption, s->setting_lo,
                 s->setting_hi, s->ours_lo, s->ours_hi);
    else if (kind == CEDAR_FINDING_PAIRED)
        snprintf(to, bytes, "paired %lld|%s|%s|%s|%g", (long long)((const cedar_paired_row *)row)->paired_id,
                 ((const cedar_paired_row *)row)->a_runs, ((const cedar_paired_row *)row)->b_runs,
                 ((const cedar_paired_row *)row)->metric, ((const cedar_paired_row *)row)->ratio);
    else
        fake_ladder(row, kind, to, bytes);
    return f->finding_fails ? cedar_fail(e, f->finding_fails, "disk full") : CEDAR_OK;
}

static cedar_status fake_published(void *self, const char *path, cedar_published_list **out, cedar_err *e) {
    (void)self;
    return cedar_published_load(path, out, e);
}

static cedar_status fake_shape(void *self, const char *model, cedar_shape *out, cedar_err *e) {
    (void)self;
    return cedar_shape_figures(model, ".", out, e);
}

static void fake_print(void *self, const char *text) {
    fake *f = self;
    size_t n = strlen(f->out);
    snprintf(f->out + n, sizeof f->out - n, "%s\n", text);
}

static void reset(void) {
    memset(&host, 0, sizeof host);
    memset(&err, 0, sizeof err);
    memset(&script_opts, 0, sizeof script_opts);
    script_opts.name = "t.lua";
    script_opts.seed = 42;
}

static void check_leaks(void) { ck_assert_int_eq(cedar_mem_live(), 0); }

static cedar_status play_bytes(const char *text, size_t bytes) {
    const cedar_script_host h = { .self = &host, .run = fake_run, .audit = fake_audit, .paired = fake_paired,
                                  .expect = fake_expect, .published = fake_published, .shape = fake_shape,
                                  .finding = fake_finding, .print = fake_print };
    script_opts.text = text;
    script_opts.bytes = bytes;
    return cedar_script_run(&script_opts, &h, &err);
}

static cedar_status play(const char *text) { return play_bytes(text, strlen(text)); }

static void play_ok(const char *text) {
    cedar_status st = play(text);
    ck_assert_msg(st == CEDAR_OK, "%s\n-> %s", text, err.msg);
}

static void play_bad(const char *text, const char *message) {
    cedar_status st = play(text);
    ck_assert_msg(st == CEDAR_E_SCRIPT, "%s\n-> status %d %s", text, st, err.msg);
    ck_assert_msg(strcmp(err.msg, message) == 0, "%s\n-> %s\nwanted\n   %s", text, err.msg, message);
}

static void play_prints(const char *text, const char *output) {
    host.out[0] = 0;
    play_ok(text);
    ck_assert_str_eq(host.out, output);
}

/* --- sandbox ---------------------------------------------------------------------------------------------------- */

static const struct { const char *text, *message; } escapes[] = {
    { "os.exit(1)", "t.lua:1: \"os\" is not available in scenarios: results must not depend on the machine or the "
                    "time" },
    { "io.open('/etc/passwd')",
      "t.lua:1: \"io\" is not available in scenarios: scenarios do not read or write files; give trace paths to run" },
    { "debug.getregistry()", "t.lua:1: \"debug\" is not available in scenarios: it could reach around the sandbox" },
    { "require 'os'", "t.lua:1: \"require\" is not available in scenarios: a scenario is one file" },
    { "package.loadlib('x', '*')", "t.lua:1: \"package\" is not available in scenarios: a scenario is one file" },
    { "load('return 1')()", "t.lua:1: \"load\" is not available in scenarios: code is not made from text" },
    { "loadstring('return 1')()", "t.lua:1: \"loadstring\" is not available in scenarios: code is not made from text" },
    { "dofile('/etc/passwd')", "t.lua:1: \"dofile\" is not available in scenarios: a scenario is one file" },
    { "loadfile('/etc/passwd')", "t.lua:1: \"loadfile\" is not available in scenarios: a scenario is one file" },
    { "collectgarbage()", "t.lua:1: \"collectgarbage\" is not available in scenarios: memory is managed by the limit" },
    { "coroutine.create(print)", "t.lua:1: \"coroutine\" is not available in scenarios: scenarios run from top to "
                                 "bottom" },
    { "next({})", "t.lua:1: \"next\" is not available in scenarios: its order differs from run to run; use pairs" },
    { "_G.x = 1", "t.lua:1: \"_G\" is not available in scenarios: use the names themselves" },
    { "string.dump(function() end)", "t.lua:1: unknown field \"dump\" of string" },
    { "math.randomseed(1)", "t.lua:1: unknown field \"randomseed\" of math; did you mean \"random\"?" },
    { "string.rep = nil", "t.lua:1: string is read-only" },
    { "math.pi = 3", "t.lua:1: math is read-only" },
    { "table.sort = print", "t.lua:1: table is read-only" },
    { "scenario.seed = 1", "t.lua:1: scenario is read-only" },
    { "getmetatable('').__index = {}", "t.lua:1: attempt to index a string value" },
    { "setmetatable(string, {})", "t.lua:1: cannot change a protected metatable" },
    { "setmetatable(_ENV, {})", "t.lua:1: cannot change a protected metatable" },
    { "getmetatable(_ENV).__index = nil", "t.lua:1: attempt to index a string value" },
    { "setmetatable({}, { __gc = print })",
      "t.lua:1: setmetatable: __gc is not available in scenarios: garbage collection must not be visible" },
    { "setmetatable({}, { __mode = 'k' })",
      "t.lua:1: setmetatable: __mode is not available in scenarios: garbage collection must not be visible" },
    { "string.format('%p', {})",
      "t.lua:1: string.format: %p is not available in scenarios: addresses differ from run to run" },
    { "run = print", "t.lua:1: \"run\" belongs to the scenario language and cannot be assigned; choose another name" },
    { "function pairs() end", "t.lua:1: \"pairs\" belongs to the scenario language and cannot be assigned; choose "
                              "another name" },
    { "print(pritn)", "t.lua:1: unknown name \"pritn\"; did you mean \"print\"?" },
    { "local t = {}\nt.x = lanes", "t.lua:2: unknown name \"lanes\"" },
    { "for k in pairs({[print]=1}) do end",
      "t.lua:1: pairs: a key is a function, which has no order; use numbers, strings or booleans as keys" },
    { "for k in pairs({[{}]=1}) do end",
      "t.lua:1: pairs: a key is a table, which has no order; use numbers, strings or booleans as keys" },
};

START_TEST(escapes_are_refused) {
    ck_assert_uint_ge(sizeof escapes / sizeof *escapes, 25);
    play_bad(escapes[_i].text, escapes[_i].message);
    ck_assert_int_eq(host.run_count, 0);
}
END_TEST

START_TEST(bytecode_is_refused) {
    play_bad("\x1BLua", "t.lua: is compiled Lua; a scenario must be text");
    static const char whole[] = "\x1BLua\x54\x00\x19\x93\r\n\x1A\n\x04\x08\x08xV\x00\x00\x00\x00\x00\x00\x00";
    ck_assert_int_eq(play_bytes(whole, sizeof whole), CEDAR_E_SCRIPT);
    ck_assert_str_eq(err.msg, "t.lua: is compiled Lua; a scenario must be text");
}
END_TEST

START_TEST(no_addresses) {
    play_prints("print({}, print, tostring({}), string.format('%s %10s|', {}, print), nil, true)",
                "table\tfunction\ttable\ttable   function|\tnil\ttrue\n");
    play_prints("print(setmetatable({}, { __name = 'x' }))", "table\n");
    play_prints("print(setmetatable({}, { __tostring = function() return 'mine' end }))", "mine\n");
    play_prints("print(0/0, -(0/0), string.format('%g %.1f', 0/0, -(0/0)), 1/0, 2^53, 10 // 3)",
                "nan\tnan\tnan nan\tinf\t9.007199254741e+15\t3\n");
    play_bad("error({})", "t.lua: error(...) was called with a value that is not text: table");
    play_bad("error(setmetatable({}, { __tostring = function() return 'mine' end }))",
             "t.lua: error(...) was called with a value that is not text: mine");
    play_bad("local t = {} .. 'x'", "t.lua:1: attempt to concatenate a table value");
}
END_TEST

START_TEST(globals) {
    play_prints("x = 1\nfunction f() x = x + 1 return x end\nprint(f(), f())", "2\t3\n");
    play_bad("function f()\n  y = 1\nend\nf()",
             "t.lua:2: assignment to the undeclared global \"y\" inside a function; write \"local y\", or assign it "
             "at the "
             "top level first");
    play_bad("lanes = 4\nprint(lnaes)", "t.lua:2: unknown name \"lnaes\"; did you mean \"lanes\"?");
    play_bad("lanz, lanb, lana, lany = 1, 1, 1, 1\nprint(lanx)",
             "t.lua:2: unknown name \"lanx\"; did you mean \"lana\"?");
    play_bad("print(x)\nx = 1", "t.lua:1: unknown name \"x\"");
    play_bad("_ENV[1] = 2", "t.lua:1: the name of a global must be a string");
    play_prints("for k, v in pairs(scenario) do print(k, v) end", "name\tt.lua\nseed\t42\n");
    play_bad("print(scenario.nmae)", "t.lua:1: unknown field \"nmae\" of scenario; did you mean \"name\"?");
    play_prints("print(('x'):rep(3), #'abc', utf8.char(228), table.concat({1, 2}, '-'), select('#', 1, 2))",
                "xxx\t3\t\xC3\xA4\t1-2\t2\n");
}
END_TEST

START_TEST(pairs_has_a_fixed_order) {
    play_prints("local t = { 'one', 'two', b = 1, a = 2, [2.5] = 3, [-1] = 4, [true] = 5, [false] = 6, [10] = 7, B = 8,"
                " ['a\\0'] = 9, [0] = 10 }\n"
                "for k, v in pairs(t) do print(k == 'a\\0' and 'a0' or k, v) end",
                "1\tone\n2\ttwo\n-1\t4\n0\t10\n2.5\t3\n10\t7\nB\t8\na\t2\na0\t9\nb\t1\nfalse\t6\ntrue\t5\n");
    play_prints("local t = { [2^70] = 'f', [math.maxinteger] = 'max', [math.mininteger] = 'min', [-2^70] = 'nf',"
                " [1/0] = 'inf', [-1/0] = '-inf', [9007199254740993] = 'i', [0.5] = 'h' }\n"
                "for _, v in pairs(t) do print(v) end",
                "-inf\nnf\nmin\nh\ni\nmax\nf\ninf\n");
    play_prints("local t = { a = 1, b = 2, c = 3 }\n"
                "for k in pairs(t) do t.b = nil; t[k] = nil; print(k) end\n"
                "for k in pairs(t) do print('left', k) end", "a\nc\n");
    play_prints("for k in pairs({}) do print(k) end", "");
    play_prints("local t = setmetatable({}, { __pairs = function(t) return function(_, k) if not k then return 1, 2 "
                "end end,"
                " t, nil end })\nfor k, v in pairs(t) do print(k, v) end", "1\t2\n");
    play_bad("pairs()", "t.lua:1: bad argument #1 to 'pairs' (value expected)");
    play_bad("pairs(3)", "t.lua:1: bad argument #1 to 'pairs' (table expected, got number)");
}
END_TEST

/* 200 keys in an order that a hash table would not keep, in a new state each time (each has a new hash seed). */
START_TEST(pairs_does_not_depend_on_the_hash_seed) {
    char first[sizeof host.out] = "";
    for (int i = 0; i < 5; i++) {
        host.out[0] = 0;
        play_ok("local t = {}\nfor i = 1, 200 do t['k' .. (i * 7919 % 1000)] = i end\n"
                "local s = {}\nfor k in pairs(t) do s[#s + 1] = k end\nprint(table.concat(s, ' '))");
        if (i == 0) memcpy(first, host.out, sizeof first);
        ck_assert_str_eq(first, host.out);
    }
    ck_assert_int_eq(strncmp(first, "k109 k112 k115 k118 ", 20), 0);
}
END_TEST

START_TEST(sort_is_stable) {
    play_prints("local t = {}\nfor i = 1, 300 do t[i] = { key = i * 7 % 10, at = i } end\n"
                "table.sort(t, function(a, b) return a.key < b.key end)\n"
                "local bad = 0\nfor i = 2, 300 do local a, b = t[i - 1], t[i]\n"
                "  if a.key > b.key or (a.key == b.key and a.at > b.at) then bad = bad + 1 end end\nprint(bad, #t)",
                "0\t300\n");
    play_prints("local t = { 3, 1, 2 } table.sort(t) print(t[1], t[2], t[3])", "1\t2\t3\n");
    play_prints("local t = { 'b', 'a', 'C' } table.sort(t, function(a, b) return a > b end) print(table.concat(t))",
                "baC\n");
    play_prints("local t = {} table.sort(t) t = { 1 } table.sort(t) print(#t)", "1\n");
    play_prints("local t = { 3, 1, 2 } table.sort(t, function() return true end) print(#t)", "3\n");
    play_bad("table.sort({ 1, 'x' })", "t.lua:1: attempt to compare string with number");
    play_bad("table.sort({ 1, 2 }, 3)", "t.lua:1: bad argument #2 to 'sort' (function expected, got number)");
}
END_TEST

/* Numbers computed from the definition of the generator (base/rng.h) by an independent program. */
START_TEST(random_numbers_repeat) {
    play_prints("print(math.random(0), math.random(100), math.random(-5, 5), string.format('%.17g', math.random()))",
                "-1197934209843279458\t3\t1\t0.373364642684759\n");
    char first[sizeof host.out];
    memcpy(first, host.out, sizeof first);
    play_prints("local a, b = stream('a'), stream('a')\nlocal c = stream('b')\n"
                "print(a(0) == b(0), a(0) == c(0), math.type(a(6)), a(3, 3), a(math.mininteger, math.maxinteger) ~= "
                "a(0))",
                "true\tfalse\tinteger\t3\ttrue\n");
    script_opts.seed = 43;
    host.out[0] = 0;
    play_ok("print(math.random(0), math.random(100), math.random(-5, 5), string.format('%.17g', math.random()))");
    ck_assert_str_ne(first, host.out);
    play_prints("local lo, hi = 10, 0\nfor i = 1, 1000 do local x = math.random(2, 7) lo, hi = math.min(lo, x), "
                "math.max(hi, x) "
                "end\nprint(lo, hi)", "2\t7\n");
    play_bad("math.random(2, 1)", "t.lua:1: random(2, 1): the interval is empty");
    play_bad("math.random(1, 2, 3)", "t.lua:1: random takes at most two numbers");
    play_bad("math.random(1.5)", "t.lua:1: bad argument #1 to 'random' (number has no integer representation)");
}
END_TEST

/* --- limits ----------------------------------------------------------------------------------------------------- */

START_TEST(instruction_limit) {
    static const char *const loops[] = {
        "while true do end", "pcall(function() while true do end end)", "while true do pcall(error) end",
        "local function f() return f() end f()",
        "xpcall(function() while true do end end, function() while true do end end)",
        "while true do xpcall(error, function() while true do end end) end",
        "local t <close> = setmetatable({}, { __close = function() while true do end end }) error('x')",
        "error(setmetatable({}, { __tostring = function() while true do end end }))",
        "print(setmetatable({}, { __tostring = function() while true do end end }))",
        "table.sort({ 1, 2 }, function() while true do end end)",
        "string.gsub('abc', '.', function() while true do end end)",
        "pcall(function() while true do pcall(function() local function f() return 1 + f() end f() end) end end)",
    };
    script_opts.instructions_max = 100000;
    cedar_status st = play(loops[_i]);
    ck_assert_msg(st == CEDAR_E_SCRIPT, "%s: %d %s", loops[_i], st, err.msg);
    ck_assert_int_eq(strncmp(err.msg, "t.lua:1: the scenario ran more than 100000 instructions; is there an endless "
                                      "loop?",
                             80), 0);
}
END_TEST

START_TEST(small_instruction_limits) {
    script_opts.instructions_max = 10;
    play_bad("for i = 1, 1000 do end",
             "t.lua:1: the scenario ran more than 10 instructions; is there an endless loop?");
    script_opts.instructions_max = 100000;
    play_ok("for i = 1, 10000 do end");
}
END_TEST

START_TEST(memory_limit) {
    static const char message[] = "t.lua: the scenario's own data needs more than 4194304 bytes of memory";
    script_opts.memory_max = 4 << 20;
    play_bad("local s = string.rep('x', 100000000)", message);
    play_bad("local t = {}\nfor i = 1, 10000000 do t[i] = i end", message);
    play_bad("local s = 'x'\nwhile true do s = s .. s end", message);
    play_bad("local t = {}\nwhile true do t[#t + 1] = {} end", message);
    play_ok("print(pcall(string.rep, 'x', 100000000))");
    play_ok("for i = 1, 100 do local s = string.rep('x', 1000000) end"); /* garbage is collected */
    script_opts.memory_max = 1000;
    ck_assert_int_ne(play("print(1)"), CEDAR_OK);
}
END_TEST

START_TEST(huge_strings_are_errors) {
    ck_assert_int_eq(play("string.rep('x', 1 << 62)"), CEDAR_E_SCRIPT);
    ck_assert_int_eq(play("string.rep('xx', math.maxinteger)"), CEDAR_E_SCRIPT);
    ck_assert_int_eq(play("string.format('%99999d', 1)"), CEDAR_E_SCRIPT);
    ck_assert_int_eq(play("string.rep('x', 300 << 20)"), CEDAR_E_SCRIPT);
    ck_assert_str_eq(err.msg, "t.lua: the scenario's own data needs more than 268435456 bytes of memory");
}
END_TEST

START_TEST(deep_recursion) {
    play_ok("");
    ck_assert_int_eq(play("local function f() return 1 + f() end\nf()"), CEDAR_E_SCRIPT);
    ck_assert_int_eq(strncmp(err.msg, "t.lua:1: stack overflow", 23), 0);
    ck_assert_int_eq(play("local function f() return pcall(f) end\nassert(f())\nlocal t = setmetatable({}, {})\n"
                          "getmetatable(t).__index = t\nreturn t.x"), CEDAR_E_SCRIPT);
    ck_assert_int_eq(play("local function f(...) return table.unpack({ f(...) }) end f(1)"), CEDAR_E_SCRIPT);
    ck_assert_int_eq(play("return table.unpack({}, 1, 1e7)"), CEDAR_E_SCRIPT);
    ck_assert_str_eq(err.msg, "t.lua:1: too many results to unpack");
    char *nested = cedar_calloc(100001, 1);
    memset(nested, '(', 100000);
    ck_assert_int_eq(play(nested), CEDAR_E_SCRIPT);
    memset(nested, '{', 100000);
    ck_assert_int_eq(play(nested), CEDAR_E_SCRIPT);
    cedar_free(nested);
}
END_TEST

START_TEST(patterns_are_bounded) {
    play_bad("local s = string.rep('a', 3000)\nprint(s:find('.-.-.-.-b'))",
             "t.lua:2: string.find: a pattern with 4 repetitions could take too long on 3000 bytes; use fewer of * + "
             "- ? or a "
             "shorter text");
    play_bad("(('a'):rep(30)):match(('a?'):rep(30) .. ('a'):rep(30))",
             "t.lua:1: string.match: a pattern with 30 repetitions could take too long on 30 bytes; use fewer of * + "
             "- ? or a "
             "shorter text");
    play_bad("for w in string.gmatch(('a'):rep(100000), '^a*b') do end",
             "t.lua:1: string.gmatch: a pattern with 1 repetitions could take too long on 100000 bytes; use fewer of "
             "* + - ? "
             "or a shorter text");
    play_bad("string.gsub(('a'):rep(5000), '(a*)(a*)%1%2b', '')",
             "t.lua:1: string.gsub: a pattern with 4 repetitions could take too long on 5000 bytes; use fewer of * + "
             "- ? or a "
             "shorter text");
    play_prints("print(('  x y '):match('^%s*(.-)%s*$'), ('k=v'):find('(%w+)=(%w+)'))", "x y\t1\t3\tk\tv\n");
    play_prints("print((('a'):rep(100000)):gsub('a', 'b') == ('b'):rep(100000))", "true\n");
    play_prints("print((('a-*'):rep(100000)):find('-*-*-*', 1, true))", "nil\n");
    play_prints("print(('[]*]x'):find('[]*]+x'), ('a%b'):gsub('%%', '!'))", "2\ta!b\t1\n");
    play_prints("print(('f(a(b)c)d'):match('%b()'))", "(a(b)c)\n");
    play_bad("print(('x'):find())", "t.lua:1: bad argument #1 to 'find' (string expected, got no value)");
    play_bad("print(string.format('%d', 'x'))",
             "t.lua:1: bad argument #2 to 'format' (number expected, got string)");
    play_bad("print(string.format('%s %s', 1))", "t.lua:1: bad argument #3 to 'format' (no value)");
}
END_TEST

START_TEST(protected_calls) {
    play_prints("print(pcall(error, 'x'))\nprint(pcall(function(a, b) return b, a end, 1, 2))\nprint(pcall(nil))",
                "false\tx\ntrue\t2\t1\nfalse\tattempt to call a nil value\n");
    play_prints("print(xpcall(error, function(m) return 'handled ' .. m end, 'x'))\n"
                "print(xpcall(function(...) return select('#', ...) end, print, 1, 2, 3))",
                "false\thandled x\ntrue\t3\n");
    play_prints("local ok, m = pcall(function() error({ code = 7 }) end)\nprint(ok, m.code)", "false\t7\n");
    play_prints("print(select(2, pcall(function() local x = nil + 1 end)))",
                "t.lua:1: attempt to perform arithmetic on a nil value\n");
}
END_TEST

START_TEST(stop_flag) {
    volatile int stop = 1;
    script_opts.stop = &stop;
    ck_assert_int_eq(play("while true do pcall(function() while true do end end) end"), CEDAR_E_INTERRUPT);
    ck_assert_str_eq(err.msg, "t.lua:1: interrupted");
}
END_TEST

/* --- verbs ------------------------------------------------------------------------------------------------------ */

START_TEST(run_returns_results) {
    play_prints("local r = run{ trace = 'a', lanes = 2, label = 'first', quality = true }\n"
                "print(r.run_id, r.label, r.replay, r.status, r.event_hash, r.requests, r.in_tokens, r.ttft_p50_ms, "
                "r.total_tok_s, r.kl_mean, r.kl_p99)\n"
                "print(r.options.lanes, r.options.trace, r.options.quality, r.options.length_scale, "
                "r.options.think_cap_s)",
                "1\tfirst\texact\tfinished\tdeadbeef00000001\t10\t1048576\t5.0\t2000.0\t0.25\tnan\n"
                "2\ta\ttrue\t1\t300\n");
    ck_assert_str_eq(host.runs[0], "first|2|exact|a|1");
    play_ok("local n = 0\nfor k in pairs(run{ trace = 'a' }) do n = n + 1 end\nassert(n == 40, n)");
    play_ok("local r = run{ trace = 'a' } r.mine = 1 assert(r.mine == 1)");
    play_bad("local r = run{ trace = 'a' }\nprint(r.tft_p50_ms)",
             "t.lua:2: unknown field \"tft_p50_ms\" of a result; did you mean \"ttft_p50_ms\"?");
    play_bad("local r = run{ trace = 'a' }\nprint(r.options.lane)",
             "t.lua:2: unknown field \"lane\" of the options of a result; did you mean \"lanes\"?");
}
END_TEST

START_TEST(run_converts_values) {
    play_ok("run{ trace = { 'a', 'b' }, length_scale = 1/64 }\nrun{ trace = 'a', length_scale = 1/3, lanes = 2^3 }\n"
            "run{ trace = 'a', length_scale = '2/128' }\nrun{ trace = 'a', length_scale = 0.75, time_scale = 0.1 + "
            "0.2 }\n"
            "run{ trace = 'a', length_scale = 1, duration_s = 1e3 }");
    ck_assert_str_eq(host.runs[0], "|4|exact|a,b|1/64");
    ck_assert_str_eq(host.runs[1], "|8|exact|a|1/3");
    ck_assert_str_eq(host.runs[2], "|4|exact|a|1/64");
    ck_assert_str_eq(host.runs[3], "|4|exact|a|3/4");
    ck_assert_str_eq(host.runs[4], "|4|exact|a|1");
}
END_TEST

static const struct { const char *text, *message;
} mistakes[] = {
    { "run{ trace = 'a',\n  lane = 4 }", "t.lua:1: run: unknown option \"lane\"; did you mean \"lanes\"?" },
    { "local base = {}\n\nrun(base)", "t.lua:3: run: trace is not set; give a trace file or directory" },
    { "run{ trace = 'a', lanes = 0 }", "t.lua:1: run: lanes = 0: allowed are 1 to 4096" },
    { "run{ trace = 'a', lanes = '4' }", "t.lua:1: run: lanes must be a whole number, not a string" },
    { "run{ trace = 'a', lanes = 1.5 }", "t.lua:1: run: lanes = 1.5: must be a whole number" },
    { "run{ trace = 'a', lanes = 0/0 }", "t.lua:1: run: lanes = nan: must be a whole number" },
    { "run{ trace = 'a', lanes = { 1, 2 } }", "t.lua:1: run: lanes must be a whole number, not a table" },
    { "run{ trace = 'a', duration_s = true }", "t.lua:1: run: duration_s must be a number, not a boolean" },
    { "run{ trace = 'a', duration_s = 1/0 }", "t.lua:1: run: duration_s = inf: must be a finite number" },
    { "run{ trace = 'a', duration_s = -1 }", "t.lua:1: run: duration_s = -1: allowed are 0 to 31536000" },
    { "run{ trace = 'a', time_scale = 1e-9 }",
      "t.lua:1: run: time_scale = 1e-09: too small, use at most 6 digits after the point" },
    { "run{ trace = 'a', strict = 1 }", "t.lua:1: run: strict must be true or false, not a number" },
    { "run{ trace = 'a', replay = 1 }", "t.lua:1: run: replay must be a string, not a number" },
    { "run{ trace = 'a', replay = 'fast' }",
      "t.lua:1: run: replay = \"fast\": must be one of exact|decoder|encoder|both" },
    { "run{ trace = 'a\\0b' }", "t.lua:1: run: trace holds a zero byte" },
    { "run{ trace = {} }", "t.lua:1: run: trace is an empty list" },
    { "run{ trace = { 1 } }", "t.lua:1: run: trace must be a string or a list of strings, not a number" },
    { "run{ trace = { 'a,b' } }", "t.lua:1: run: trace: path 1 of the list holds a comma" },
    { "run{ trace = 3 }", "t.lua:1: run: trace must be a string or a list of strings, not a number" },
    { "run{ trace = 'a', length_scale = 'x' }",
      "t.lua:1: run: length_scale = \"x\": must be a number, or two whole numbers such as \"1/64\"" },
    { "run{ 'a' }", "t.lua:1: run: options are written key = value; there is a value without a key" },
    { "run()", "t.lua:1: run needs a table of options, for example run{ trace = \"traces\" }; it got nothing" },
    { "run 'a'", "t.lua:1: run needs a table of options, for example run{ trace = \"traces\" }; it got string" },
    { "print(pcall(run, { lane = 1 }))\nlocal ok, m = pcall(run, { lane = 1 })\nerror(m)",
      "t.lua:3: t.lua:2: run: unknown option \"lane\"; did you mean \"lanes\"?" },
    { "run{ trace = 'a', tarce = 1, lnaes = 2 }", "t.lua:1: run: unknown option \"lnaes\"; did you mean \"lanes\"?" },
    { "sweep({ trace = 'a' })",
      "t.lua:1: sweep needs a table of options, for example sweep({ trace = \"traces\" }, { lanes = { 1, 2, 4 } }); "
      "it got "
      "nothing" },
    { "sweep({ trace = 'a' }, {})", "t.lua:1: sweep: the second table names no option to vary" },
    { "sweep({ trace = 'a' }, { lanes = 4 })",
      "t.lua:1: sweep: lanes must be a list of values, for example lanes = { 1, 2 }" },
    { "sweep({ trace = 'a' }, { lanes = {} })",
      "t.lua:1: sweep: lanes must be a list of values, for example lanes = { 1, 2 }" },
    { "sweep({ trace = 'a' }, { lane = { 1 } })", "t.lua:1: sweep: unknown option \"lane\"; did you mean \"lanes\"?" },
    { "sweep({ trace = 'a' }, { lanes = { 1, 0 } })", "t.lua:1: sweep: lanes = 0: allowed are 1 to 4096" },
    { "local t = {} for i = 1, 101 do t[i] = i end\nsweep({ trace = 'a' }, { lanes = t, seed = t })",
      "t.lua:2: sweep: more than 10000 points" },
    { "expect(1)", "t.lua:1: expect(what, condition, detail): what must be a text that names the expectation" },
    { "expect('x')", "t.lua:1: expect: the condition is missing" },
    { "expect{ what = 'x', value = 1, lt = 3 }", "t.lua:1: expect: unknown key \"lt\"; did you mean \"le\"?" },
    { "expect{ what = 'x', value = 1, bogus = 3 }",
      "t.lua:1: expect: unknown key \"bogus\"; known are what, value, le, ge, eq" },
    { "expect{ what = 'x', le = 3 }", "t.lua:1: expect: value is missing" },
    { "expect{ value = 1, le = 3 }", "t.lua:1: expect: what must be a text that names the expectation" },
    { "expect{ what = 'x', value = 1 }", "t.lua:1: expect: give at least one of le, ge, eq" },
    { "expect{ what = 'x', value = 'a', le = 1 }",
      "t.lua:1: expect: le compares numbers; value is a string, le is a number" },
    { "compare(1, 2)", "t.lua:1: compare needs two results of run or sweep" },
    { "compare({}, {})", "t.lua:1: compare: argument 1 is not a result: it has no number \"ttft_p50_ms\"" },
    { "run{ trace = 'a', floor = 150 }",
      "t.lua:1: run: floor must be a table such as { tok_s_user = 150, percentile = 90 }" },
    { "run{ trace = 'a', floor = { tok = 150 } }",
      "t.lua:1: run: floor has a key that is none of tok_s_user, percentile, mode" },
    { "run{ trace = 'a', floor = { mode = 'admit' } }",
      "t.lua:1: run: floor_mode = \"admit\" needs a floor; give floor_tok_s_user, for example 150" },
    { "run{ trace = 'a', routing = print }",
      "t.lua:1: run: routing must be a function written in the scenario" },
    { "run{ trace = 'a', routing = 'nearest' }",
      "t.lua:1: run: routing = \"nearest\": must be one of session|round_robin|least_loaded|prefix|policy" },
    { "run{ trace = 'a', routing_policy = 'x' }",
      "t.lua:1: run: routing_policy is made from the function that is given as routing" },
    { "run{ trace = 'a', admission = 'x' }",
      "t.lua:1: run: admission must be a function of a request and the run's state, not a string" },
    { "run{ trace = 'a', admission = print }", "t.lua:1: run: admission must be a function written in the scenario" },
    { "search({ trace = 'a' }, {})",
      "t.lua:1: search: the first table needs a floor, for example floor = { tok_s_user = 150 }" },
    { "search({ trace = 'a', floor = { tok_s_user = 1 } }, { key = 'replay' })",
      "t.lua:1: search: key = \"replay\" is no option with whole numbers" },
    { "search({ trace = 'a', floor = { tok_s_user = 1 } }, { low = 3 })",
      "t.lua:1: search: the second table has a key that is none of key, lo, hi, seeds" },
    { "search({ trace = 'a', floor = { tok_s_user = 1 } }, { lo = 3, hi = 2 })",
      "t.lua:1: search: lo = 3 is above hi = 2" },
    { "frontier(1)", "t.lua:1: frontier needs a list of results, as sweep returns it" },
    { "frontier({ {} })", "t.lua:1: frontier: a point has no number \"interactivity_p90\"" },
    { "paired(1, 2, {})", "t.lua:1: paired needs two results of run or sweep, or two lists of results" },
    { "paired({ run_id = 0 }, { run_id = 2 }, { metric = 'ttft_ms' })",
      "t.lua:1: paired: a run with keep = false leaves no requests to compare" },
    { "paired({ run_id = 1 }, { run_id = 2 })",
      "t.lua:1: paired needs a table of options, for example paired(a, b, { metric = \"ttft_ms\" }); it got nothing" },
    { "paired({ run_id = 1 }, { run_id = 2 }, { metrik = 1 })",
      "t.lua:1: paired: unknown key \"metrik\"; did you mean \"metric\"?" },
    { "paired({ run_id = 1 }, { run_id = 2 }, { what = 1 })",
      "t.lua:1: paired: unknown key \"what\"; known are metric, resamples, seed" },
    { "paired({ run_id = 1 }, { run_id = 2 }, { resamples = 1 })",
      "t.lua:1: paired: resamples must be a whole number from 2 to 1000000" },
    { "paired({ run_id = 1 }, { run_id = 2 }, {})", "t.lua:1: paired: metric must be a text such as \"ttft_ms\"" },
    { "paired({ { run_id = 1 } }, { { run_id = 2 }, { run_id = 3 } }, {})",
      "t.lua:1: paired: both lists must have the same number of results" },
    { "stream()", "t.lua:1: bad argument #1 to 'stream' (string expected, got no value)" },
    { "x = ", "t.lua:1: unexpected symbol near <eof>" },
    { "\n\nerror('mine')", "t.lua:3: mine" },
    { "error('mine', 0)", "t.lua:1: mine" },
    { "assert(false)", "t.lua:1: assertion failed!" },
    { "assert(nil, 'because')", "t.lua:1: because" },
};

START_TEST(mistakes_name_file_and_line) {
    play_bad(mistakes[_i].text, mistakes[_i].message);
    ck_assert_int_eq(host.run_count, 0);
}
END_TEST

START_TEST(sweep_order) {
    play_prints("local r = sweep({ trace = 'a' }, { replay = { 'exact', 'both' }, lanes = { 1, 2, 4 } })\n"
                "print(#r)\nfor _, x in ipairs(r) do print(x.run_id, x.label) end",
                "6\n1\tlanes=1 replay=exact\n2\tlanes=1 replay=both\n3\tlanes=2 replay=exact\n4\tlanes=2 replay=both\n"
                "5\tlanes=4 replay=exact\n6\tlanes=4 replay=both\n");
    ck_assert_str_eq(host.runs[5], "lanes=4 replay=both|4|both|a|1");
    play_prints("local r = sweep({ trace = 'a', label = 'mine', lanes = 9 }, { lanes = { 3 } }) print(#r, r[1].label)",
                "1\tmine: lanes=3\n");
    play_prints("local r = sweep({ trace = 'a' }, { label = { 'x', 'y' } }) print(r[1].label, r[2].label)", "x\ty\n");
    play_prints("local r = sweep({}, { trace = { { 'a', 'b' }, 'c' } }) print(r[1].label, r[2].label)",
                "trace=a,b\ttrace=c\n");
    play_prints("local long = string.rep('x', 62) .. '\xC3\xA4'\n"
                "local r = sweep({}, { trace = { long } }) print(#r[1].label, r[1].label)",
                "63\ttrace=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\n");
}
END_TEST

START_TEST(overrides_win) {
    static const char *const words[] = { "lanes=8", "label=cmd" };
    script_opts.overrides = words;
    script_opts.override_count = 2;
    play_ok("run{ trace = 'a', lanes = 2 }\nlocal r = sweep({ trace = 'a' }, { lanes = { 1, 2 }, replay = { 'exact', "
            "'both' } })\n"
            "assert(#r == 2)");
    ck_assert_str_eq(host.runs[0], "cmd|8|exact|a|1");
    ck_assert_str_eq(host.runs[1], "cmd: lanes=8 replay=exact|8|exact|a|1");
    ck_assert_str_eq(host.runs[2], "cmd: lanes=8 replay=both|8|both|a|1");
    static const char *const trace[] = { "trace=x,y" };
    script_opts.overrides = trace;
    script_opts.override_count = 1;
    play_ok("run{}");
    ck_assert_str_eq(host.runs[3], "|4|exact|x,y|1");
}
END_TEST

START_TEST(bad_overrides_stop_everything) {
    static const char *const cases[][2] = {
        { "lane=8", "override lane: unknown option \"lane\"; did you mean \"lanes\"?" },
        { "lanes=0", "override lanes: lanes = 0: allowed are 1 to 4096" },
        { "lanes", "\"lanes\": an override is key=value, for example lanes=8" },
        { "=8", "\"=8\": an override is key=value, for example lanes=8" },
        { "lanes=", "override lanes: lanes: the value is empty" },
        { "http_kye=sk-1", "override http_kye: unknown option \"http_kye\"; did you mean \"http_key\"?" },
        { "http_key=sk-1", "override http_key: http_key says where the key is, never the key itself: \"env:NAME\" or "
                           "\"file:PATH\"" } };
    script_opts.override_count = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        script_opts.overrides = &cases[i][0];
        ck_assert_int_eq(play("print('ran') run{ trace = 'a' }"), CEDAR_E_ARG);
        ck_assert_str_eq(err.msg, cases[i][1]);
    }
    ck_assert_int_eq(host.run_count, 0);
    ck_assert_str_eq(host.out, "");
}
END_TEST

START_TEST(ladders) {
    play_prints("local r = run{ trace = 'a' }\n"
                "local function one(v) return { title = 't', provenance = 'modelled', hardware = 'h', model = 'm',\n"
                "  rungs = { { name = 'first', switches = { zeta = 1.5, alpha = true, beta = 'a \"b\"\\\\\\n' },\n"
                "    figures = { { metric = 'ttft', context = 1024, value = v, unit = 'ms', n = 3, run = r },\n"
                "      { metric = 'itl', value = 7, lo = 6.5, hi = 8, unit = 'ms', run = 2, note = 'why' } } },\n"
                "    { name = 'second', why = 'because', beyond = true } } } end\n"
                "print(ladder(one(5)), ladder(one(6)))", "1\t2\n");
    ck_assert_int_eq(host.finding_count, 10);
    ck_assert_str_eq(host.findings[0], "ladder 1|t|modelled|h|m|");
    ck_assert_str_eq(host.findings[1],
                     "rung 1.1|first||{\"alpha\":true,\"beta\":\"a \\\"b\\\"\\\\\\u000a\",\"zeta\":1.5}|published");
    ck_assert_str_eq(host.findings[2], "figure 1.1|ttft|1024|5|nan|nan|3|ms|1|");
    ck_assert_str_eq(host.findings[3], "figure 1.1|itl|0|7|6.5|8|0|ms|2|why");
    ck_assert_str_eq(host.findings[4], "rung 1.2|second|because|{}|beyond");
    ck_assert_str_eq(host.findings[5], "ladder 2|t|modelled|h|m|");
    ck_assert_str_eq(host.findings[7], "figure 2.1|ttft|1024|6|nan|nan|3|ms|1|");
}
END_TEST

#define ROW "{ row = 4, source = 's', model = 'm', metric = 'x', value = 5.3, last_digit = 0.1, unit = 'x' }"

START_TEST(claims) {
    play_prints("local p = " ROW "\n"
                "print(claim{ published = p, ours = 5.34, provenance = 'computed', rule = 'rounded' })\n"
                "print(claim{ published = p, ours = 5, lo = 4, hi = 6, n = 9, provenance = 'modelled',\n"
                "  rule = 'within', share = 0.2, why = 'By a run.',\n"
                "  run = 3, sensitivity = { { assumption = 'a', setting_lo = 1,\n"
                "  setting_hi = 2, ours_lo = 4, ours_hi = 6 } } })\n"
                "print(claim{ published = p, why = 'No such hardware.' })",
                "reproduced\nundecided\nnot tested\n");
    ck_assert_int_eq(host.finding_count, 4);
    ck_assert_str_eq(host.findings[0], "claim 4|s|m|x|x|5.3|5.34|nan|nan|0|computed|reproduced|0|"
                                       "rule: rounded, the published 5.3; ours, 5.34, is that");
    ck_assert_str_eq(host.findings[1], "claim 4|s|m|x|x|5.3|5|4|6|9|modelled|undecided|3|rule: within 20 % of 5.3: "
                                       "4.24 to 6.36; ours, 5, interval 4 to 6: only a part of it is. By a run.");
    ck_assert_str_eq(host.findings[2], "sensitivity 4|a|1|2|4|6");
    ck_assert_str_eq(host.findings[3], "claim 4|s|m|x|x|5.3|nan|nan|nan|0|none|not tested|0|No such hardware.");
    host.finding_fails = CEDAR_E_DB;
    ck_assert_int_eq(play("pcall(claim, { published = " ROW ", why = 'w' }) print('on')"), CEDAR_E_DB);
    ck_assert_str_eq(err.msg, "t.lua:1: claim: disk full");
}
END_TEST

START_TEST(files_of_claims) {
    play_prints("local p = published('scenarios/claims/published_claims.csv')\n"
                "print(#p >= 240, p[2].row, p[2].line, p[2].metric, p[2].value, p[2].unit, p[2].model)\n"
                "print(math.abs(p[2].last_digit - 0.1) < 1e-12)\n"
                "print(claim{ published = p[2], why = 'w' }, claim{ published = p[#p], why = 'w' })",
                "true\t2\t3\tthroughput_ratio_at_interactivity\t5.3\tx\tDeepSeek-V4.1-Flash\ntrue\n"
                "not tested\tnot tested\n");
    play_prints("local s = shape('flash')\nprint(s.name, s.layers, s.kv_token_bytes)", "flash\t40.0\t890.0\n");
    ck_assert_int_eq(play("published('no/such.csv')"), CEDAR_E_IO);
    ck_assert_str_eq(err.msg, "t.lua:1: published: no/such.csv: No such file or directory");
    play_bad("published(1)", "t.lua:1: published(path): path must be a text, such as "
                             "\"scenarios/claims/published_claims.csv\"");
    play_bad("shape{}", "t.lua:1: shape(model): model must be a name, such as \"flash\"");
    play_bad("print(shape('flash').layer)", "t.lua:1: unknown field \"layer\" of a shape; did you mean \"layers\"?");
    const cedar_script_host bare = { .self = &host, .print = fake_print };
    reset();
    script_opts.text = "claim{ published = " ROW ", why = 'w' }";
    script_opts.bytes = strlen(script_opts.text);
    ck_assert_int_eq(cedar_script_run(&script_opts, &bare, &err), CEDAR_OK);    /* findings may be thrown away */
    script_opts.text = "shape 'flash'";
    script_opts.bytes = strlen(script_opts.text);
    ck_assert_int_eq(cedar_script_run(&script_opts, &bare, &err), CEDAR_E_SCRIPT);
    ck_assert_str_eq(err.msg, "t.lua:1: shape: this program has no shapes");
    script_opts.text = "published 'a.csv'";
    script_opts.bytes = strlen(script_opts.text);
    ck_assert_int_eq(cedar_script_run(&script_opts, &bare, &err), CEDAR_E_SCRIPT);
    ck_assert_str_eq(err.msg, "t.lua:1: published: this program reads no files of published figures");
}
END_TEST

#define RUNGS "ladder{ title = 't', provenance = 'modelled', hardware = 'h', model = 'm', rungs = "
#define CLAIM "claim{ published = " ROW ", "

static const struct { const char *text, *message; } finding_mistakes[] = {
    { "ladder()", "t.lua:1: ladder needs a table of options, for example ladder{ title = \"...\", provenance = "
                  "\"modelled\", rungs = { ... } }; it got nothing" },
    { "ladder{ titel = 't' }", "t.lua:1: ladder: unknown key \"titel\"; did you mean \"title\"?" },
    { "ladder{ title = 't' }", "t.lua:1: ladder: provenance is missing" },
    { "ladder{ title = 't', provenance = 'both', hardware = 'h', model = 'm' }",
      "t.lua:1: ladder: provenance = \"both\": must be measured or modelled, never both" },
    { RUNGS "{} }", "t.lua:1: ladder: rungs is missing or empty" },
    { RUNGS "{ 1 } }", "t.lua:1: ladder: item 1 of rungs must be a table, not a number" },
    { RUNGS "{ { why = 'w' } } }", "t.lua:1: ladder: name is missing" },
    { RUNGS "{ { name = 'n', switches = { {} } } } }", "t.lua:1: ladder: switches are written key = value" },
    { RUNGS "{ { name = 'n', switches = { a = {} } } } }",
      "t.lua:1: ladder: the switch a must be a text, a number or true or false" },
    { RUNGS "{ { name = 'n', switches = { a = 1/0 } } } }",
      "t.lua:1: ladder: the switch a must be a finite number" },
    { RUNGS "{ { name = 'n', figures = { { metric = 'x', unit = 'ms' } } } } }", "t.lua:1: ladder: value is missing" },
    { RUNGS "{ { name = 'n', figures = { { metric = 'x', unit = 'ms', value = 0/0 } } } } }",
      "t.lua:1: ladder: value = nan: must be a finite number" },
    { RUNGS "{ { name = 'n', figures = { { metric = 'x', unit = 'ms', value = 1, context = 1.5 } } } } }",
      "t.lua:1: ladder: context = 1.5: must be a whole number of 0 or more" },
    { RUNGS "{ { name = 'n', figures = { { metric = 'x', unit = 'ms', value = 1, lo = 2, hi = 3 } } } } }",
      "t.lua:1: ladder: the figure 1 does not lie between lo = 2 and hi = 3" },
    { RUNGS "{ { name = 'n', figures = { { metric = 'x', unit = 'ms', value = 1, lo = 1 } } } } }",
      "t.lua:1: ladder: lo and hi go together" },
    { RUNGS "{ { name = 'n', figures = { { metric = 'x', unit = 'ms', value = 1, run = {} } } } } }",
      "t.lua:1: ladder: run is a table without run_id" },
    { "claim{ ours = 1 }", "t.lua:1: claim: published is missing" },
    { CLAIM "}", "t.lua:1: claim: row 4 has no figure of ours, so why must say why it is not tested" },
    { CLAIM "verdict = 'reproduced' }",
      "t.lua:1: claim: unknown key \"verdict\"; known are published, ours, lo, hi, n, provenance, rule, share, why, "
      "run, sensitivity" },
    { CLAIM "ours = 1 }", "t.lua:1: claim: provenance is missing" },
    { CLAIM "ours = 1, provenance = 'none' }",
      "t.lua:1: claim: provenance = \"none\": must be measured, modelled, computed or imported" },
    { CLAIM "ours = 1, provenance = 'computed' }", "t.lua:1: claim: rule is missing" },
    { CLAIM "ours = 1, provenance = 'computed', rule = 'near' }",
      "t.lua:1: claim: rule = \"near\": must be rounded, digit, within, at_least or at_most" },
    { CLAIM "ours = 1, provenance = 'computed', rule = 'within' }", "t.lua:1: claim: share is missing" },
    { CLAIM "ours = 1, provenance = 'computed', rule = 'within', share = -1 }",
      "t.lua:1: claim: share = -1: must be from 0 to below 1" },
    { CLAIM "ours = 1, provenance = 'computed', rule = 'within', share = 1 }",
      "t.lua:1: claim: share = 1: must be from 0 to below 1" },
    { CLAIM "why = 'w', sensitivity = {} }", "t.lua:1: claim: sensitivity needs a figure of ours" },
    { "claim{ published = { row = 1 }, why = 'w' }", "t.lua:1: claim: source is missing" },
};

START_TEST(finding_mistake_messages) { play_bad(finding_mistakes[_i].text, finding_mistakes[_i].message); }
END_TEST

START_TEST(expectations) {
    play_prints("print(expect('sums', 1 + 1 == 2))", "true\n");
    ck_assert_str_eq(host.expect_last, "sums|ok|");
    play_ok("expect{ what = 'ttft', value = 3, le = 3, ge = 3, eq = 3 }");
    ck_assert_str_eq(host.expect_last, "ttft|ok|3, wanted <= 3, wanted >= 3, wanted == 3");
    ck_assert_int_eq(play("print(expect{ what = 'ttft', value = 3.5, le = 3 })\n\nexpect('other', nil, 'no ' .. 1)\n"
                          "expect('third', true)"), CEDAR_E_EXPECT);
    ck_assert_str_eq(err.msg, "2 of 3 expectations failed; the first: t.lua:1: ttft: 3.5, wanted <= 3");
    ck_assert_str_eq(host.out, "true\nfalse\n");
    ck_assert_int_eq(host.expect_count, 5);
    ck_assert_int_eq(host.expect_failed, 2);
    ck_assert_int_eq(play("expect{ what = 'nan', value = 0/0, le = 1 }"), CEDAR_E_EXPECT);
    ck_assert_int_eq(play("expect{ what = 'nan', value = 0/0, ge = 1 }"), CEDAR_E_EXPECT);
    ck_assert_int_eq(play("expect{ what = 'nan', value = 0/0, eq = 0/0 }"), CEDAR_E_EXPECT);
    ck_assert_int_eq(play("expect{ what = 'ge', value = 1, ge = 2 }"), CEDAR_E_EXPECT);
    ck_assert_str_eq(host.expect_last, "ge|failed|1, wanted >= 2");
    play_ok("expect{ what = 'hash', value = 'ab', eq = 'ab' }");
    ck_assert_int_eq(play("expect{ what = 'flag', value = false, eq = true }"), CEDAR_E_EXPECT);
    /* An error in the scenario weighs more than a failed expectation. */
    ck_assert_int_eq(play("expect('x', false) error('y')"), CEDAR_E_SCRIPT);
}
END_TEST

START_TEST(print_note_options_compare) {
    play_prints("print()\nprint(1, nil, 'a')\nnote('x', 2)", "\n1\tnil\ta\nnote: x 2\n");
    play_ok("local o = options()\nassert(#o >= 60)\nassert(o[1].key == 'label' and o[2].default == 'plain')\n"
            "for _, k in ipairs(o) do assert(#k.help > 10 and k.type) end");
    play_prints("local a, b = run{ trace = 'a', lanes = 1 }, run{ trace = 'a', lanes = 4 }\n"
                "local c = compare(b, a)\nprint(c.ttft_p50_ms, c.total_tok_s, c.itl_p50_ms)", "4.0\t4.0\tnan\n");
    const cedar_script_host h = { .self = &host, .run = fake_run };
    ck_assert_int_eq(cedar_script_run(&script_opts, &h, &err), CEDAR_OK); /* print and expect may be absent */
}
END_TEST

/* The fake's speed is (600 + seed mod 3) / lanes: with seeds 42, 43, 44 the mean is 601 / lanes, and the lower bound of
 * the mean (601 - 2.920 / sqrt(3)) / lanes = 599.31 / lanes. */
START_TEST(search_finds_the_largest_that_keeps_the_floor) {
    play_prints(
        "local s = search({ trace = 'a', floor = { tok_s_user = 150, percentile = 90 } }, { hi = 64 })\n"
        "print(s.key, s.found, s.value, s.at_hi, #s.results, s.results[1].options.floor_tok_s_user)\n"
        "for _, p in ipairs(s.probes) do print(p.value, p.holds) end\n"
        "print(string.format('%.2f %.2f', s.probes[1].mean, s.probes[1].bound))",
        "lanes\ttrue\t3\tfalse\t3\t150\n"
        "1\ttrue\n64\tfalse\n32\tfalse\n16\tfalse\n8\tfalse\n4\tfalse\n2\ttrue\n3\ttrue\n"
        "601.00 599.31\n"); /* 4 lanes have a mean of 150.25, but a bound of 149.83 */
    ck_assert_int_eq(host.run_count, 8 * 3);        /* every probe is a run */
    ck_assert_str_eq(host.runs[4], "search: lanes=64 seed=43|64|exact|a|1");
    play_prints(
        "local s = search({ trace = 'a', floor = { tok_s_user = 150 } }, { hi = 64, seeds = 1 })\nprint(s.value)",
        "4\n");
    play_prints("local s = search({ trace = 'a', floor = { tok_s_user = 900 } }, { hi = 8, seeds = 1 })\n"
                "print(s.found, s.value, s.at_hi, #s.probes)", "false\t0\tfalse\t1\n");
    play_prints("local s = search({ trace = 'a', floor = { tok_s_user = 20 } }, { hi = 8, seeds = 2 })\n"
                "print(s.found, s.value, s.at_hi, #s.probes)", "true\t8\ttrue\t2\n");
}
END_TEST

START_TEST(pairs_are_asked_for) {
    play_ok("local a, b, c = run{ trace = 'a' }, run{ trace = 'a' }, run{ trace = 'a' }\n"
            "local p = paired(a, b, { metric = 'itl_ms' })\n"
            "print(p.pairs, p.sessions, p.left_out, p.ratio, p.ratio_lo)");
    ck_assert_str_eq(host.out, "3\t2\t1\t1.25\tnan\n");
    ck_assert_str_eq(host.paired, "itl_ms 1 1/2 1/2 2000 42");
    play_ok("local a, b, c = run{ trace = 'a' }, run{ trace = 'a' }, run{ trace = 'a' }\n"
            "paired({ a, b }, { b, c }, { metric = 'ttft_ms', resamples = 10, seed = 7 })");
    ck_assert_str_eq(host.paired, "ttft_ms 2 4/5 5/6 10 7");
    ck_assert_str_eq(host.findings[host.finding_count - 1], "paired 1|4,5|5,6|ttft_ms|1.25");
}
END_TEST

START_TEST(frontier_keeps_what_nobody_beats) {
    play_prints("local points = sweep({ trace = 'a' }, { lanes = { 1, 2, 4 } })\n"
                "points[4] = { interactivity_p90 = 140, total_tok_s = 900 }\n"      /* beaten by 4 lanes: 150, 4000 */
                "points[5] = { interactivity_p90 = 0/0, total_tok_s = 9e9 }\n"
                "local f = frontier(points)\n"
                "print(#f.points, f.dominated, f.left_out, f.points[1].options.lanes)\n"
                "print(f:at(150), f:at(700))\n"
                "print(select(2, f:at(225)), select(2, f:at(225, 'ttft_p50_ms')))",
                "3\t1\t1\t4\n4000.0\tnil\tnil\n3000.0\t7.5\n");
    play_bad("local f = frontier(sweep({ trace = 'a' }, { lanes = { 1 } }))\nf:at(1, 'speed')",
             "t.lua:2: front:at: a front does not know the metric \"speed\"");
}
END_TEST

static const struct { const char *text, *message; } policy_mistakes[] = {
    { "run{ trace = 'a', admission = function() end }",
      "t.lua:1: run: admission policy, request 1: an admission policy must return true or false; it returned nil" },
    { "run{ trace = 'a', admission = function(r) return r.turn > 0 or r.lane.x end }",
      "t.lua:1: run: admission policy, request 1: t.lua:1: attempt to index a number value (field 'lane')" },
    { "run{ trace = 'a', admission = function(r) return r.in_token end }",
      "t.lua:1: run: admission policy, request 1: t.lua:1: unknown field \"in_token\" of a request; did you "
      "mean \"in_tokens\"?" },
    { "run{ trace = 'a', admission = function() while true do end end }",
      "t.lua:1: run: admission policy, request 1: the policy ran more than 100000 instructions for one request" },
    { "run{ trace = 'a', admission = function() run{ trace = 'b' } end }",
      "t.lua:1: run: admission policy, request 1: t.lua:1: run cannot be called by a policy" },
    { "run{ trace = 'a', routing = function() end }",
      "t.lua:1: run: routing policy, request 1: a routing policy must return the number of an engine; it returned "
      "nil" },
    { "run{ trace = 'a', routing = function() return 1.5 end }",
      "t.lua:1: run: routing policy, request 1: a routing policy must return a whole number, 1 to 3; it returned "
      "1.5" },
    { "run{ trace = 'a', routing = function(r) return r.turn + 1 + #'ab' end }",
      "t.lua:1: run: routing policy, request 2: a routing policy must return the number of an engine, 1 to 3; it "
      "returned 4" },
    { "run{ trace = 'a', routing = function(r, e) return e[1].load end }",
      "t.lua:1: run: routing policy, request 1: t.lua:1: unknown field \"load\" of an engine" },
    { "run{ trace = 'a', routing = function() while true do end end }",
      "t.lua:1: run: routing policy, request 1: the policy ran more than 100000 instructions for one request" },
    { "run{ trace = 'a', routing = function() while true do pcall(function() while true do end end) end end }",
      "t.lua:1: run: routing policy, request 1: the policy ran more than 100000 instructions for one request" },
    { "run{ trace = 'a', routing = function() xpcall(function() while true do end end, print) return 1 end }",
      "t.lua:1: run: routing policy, request 1: the policy ran more than 100000 instructions for one request" },
};

START_TEST(mistakes_of_policies) {
    play_bad(policy_mistakes[_i].text, policy_mistakes[_i].message);
    ck_assert_int_eq(host.run_count, 1);
}
END_TEST

START_TEST(policies_are_asked_and_recorded) {
    play_prints("local limit = 150\nlocal function small(request, state)\n  return request.in_tokens < limit and "
                "state.running < 3\nend\nlocal a = run{ trace = 'a', admission = small }\n"
                "local b = run{ trace = 'a' }\nprint(a.options.admission:match('^lines 2%-4, sha256 %x+$') ~= nil, "
                "b.options.admission)", "true\t\n");
    ck_assert_int_eq(host.admitted, 2);             /* of requests with 0, 100 and 200 tokens */
    play_ok("run{ trace = 'a', floor = { tok_s_user = 150, percentile = 95, mode = 'admit' } }");
}
END_TEST

START_TEST(routers_are_asked_and_recorded) {
    play_prints("local function idle(request, engines)\n  local best = 1\n  for i, e in ipairs(engines) do\n    if "
                "e.waiting + e.running < engines[best].waiting + engines[best].running then best = i end\n  end\n"
                "  return engines[1].cached_tokens > request.in_tokens and 1 or best\nend\n"
                "local a = run{ trace = 'a', engines = 3, routing = idle }\n"
                "local b = run{ trace = 'a', engines = 3, routing = 'prefix' }\n"
                "print(a.options.routing, a.options.routing_policy:match('^lines 1%-7, sha256 %x+$') ~= nil, "
                "b.options.routing, b.options.routing_policy)", "policy\ttrue\tprefix\t\n");
    ck_assert_uint_eq(host.routed, 112);            /* the second has 1, 2, 3 at work, the third always 2 */
}
END_TEST

START_TEST(host_errors_carry_their_code) {
    host.run_fails = CEDAR_E_FORMAT;
    ck_assert_int_eq(play("local r\n\nr = run{ trace = 'a' }"), CEDAR_E_FORMAT);
    ck_assert_str_eq(err.msg, "t.lua:3: run: the engine is out of sorts");
    play_prints("print(pcall(run, { trace = 'a' }))", "false\tt.lua:1: run: the engine is out of sorts\n");
    play_bad("pcall(run, { trace = 'a' }) error('later')", "t.lua:1: later");
    host.run_fails = CEDAR_E_LIVENESS;
    host.fail_at = host.run_count + 2;
    ck_assert_int_eq(play("sweep({ trace = 'a' }, { lanes = { 1, 2, 3 } })"), CEDAR_E_LIVENESS);
    ck_assert_str_eq(err.msg, "t.lua:1: sweep: the engine is out of sorts");
}
END_TEST

START_TEST(fatal_errors_cannot_be_caught) {
    static const cedar_status codes[] = { CEDAR_E_INTERRUPT, CEDAR_E_DB };
    static const char *const texts[] = {
        "pcall(run, { trace = 'a' })\nprint('on') while true do end",
        "pcall(pcall, run, { trace = 'a' })\nprint('on')",
        "xpcall(run, function() return 1 end, { trace = 'a' })\nprint('on')",
        "xpcall(run, function() while true do end end, { trace = 'a' })\nprint('on')",
        "pcall(table.sort, { 1, 2 }, function() run{ trace = 'a' } end)\nprint('on')",
        "do local t <close> = setmetatable({}, { __close = function() print('on') end }) run{ trace = 'a' } end" };
    host.run_fails = codes[_i];
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        host.out[0] = 0;
        ck_assert_int_eq(play(texts[i]), codes[_i]);
        ck_assert_str_eq(err.msg, "t.lua:1: run: the engine is out of sorts");
        ck_assert_msg(i == 5 || *host.out == 0, "%s went on", texts[i]);
    }
    host.run_fails = CEDAR_OK;
    host.expect_fails = codes[_i];
    ck_assert_int_eq(play("pcall(expect, 'x', true) print('on')"), codes[_i]);
    ck_assert_str_eq(err.msg, "t.lua:1: expect: disk full");
}
END_TEST

/* --- the scenarios of the repository ---------------------------------------------------------------------------- */

static size_t read_file(const char *path, char *to, size_t room) {
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "%s is not there; run the tests from the top folder", path);
    size_t n = fread(to, 1, room - 1, f);
    fclose(f);
    to[n] = 0;
    return n;
}

/* Each scenario is in the index and gets to its end against the fake host, also when a key that it varies is
 * overridden. Its expectations need a real engine, so they may fail here. */
/* --- audits ----------------------------------------------------------------------------------------------------- */

START_TEST(audits_are_played) {
    play_prints("local r = audit{ model = 'tiny2', arms = { 'encoder', 'decoder keep=halo' }, suffix = { 3, 4 }, "
                "length_scale = 1/32, margin_kl = 0.5, drafts = true }\n"
                "print(r.status, r.positions, r.result_hash, r.overhead)\n"
                "for i, a in ipairs(r.arms) do print(i, a.label, a.kl_mean, a.verdict) end\n"
                "print(r.arms['decoder keep=halo'].docs, r.arms.both)",
                "finished\t100\t000000000000feed\t0.05\n1\tencoder\t0.25\tundecided\n"
                "2\tdecoder keep=halo\t0.125\tundecided\n4\tnil\n");
    ck_assert_str_eq(host.audits[0], "tiny2|encoder|2|3,4|1/32|0.5|1");
    play_ok("audit{ suffix = 9, arms = 'both' }");
    ck_assert_str_eq(host.audits[1], "tiny|both|1|9|1|0.001|0");
    /* words of the command line: keys of audits, of runs, of both */
    static const char *const words[] = { "model=mid", "suffix=5,6", "lanes=2" };
    script_opts.overrides = words;
    script_opts.override_count = 3;
    play_ok("audit{ suffix = 9, arms = 'both' }\nrun{ trace = 'a' }");
    ck_assert_str_eq(host.audits[2], "mid|both|1|5,6|1|0.001|0");
    ck_assert_str_eq(host.runs[0], "|2|exact|a|1");
    static const char *const bad[] = { "suffix=x" };
    script_opts.overrides = bad;
    script_opts.override_count = 1;
    ck_assert_int_eq(play("print(1)"), CEDAR_E_ARG);
    ck_assert_str_eq(err.msg, "override suffix: suffix = \"x\": must be a number that is not negative");
}
END_TEST

static const struct { const char *text, *message; } audit_mistakes[] = {
    { "audit()", "t.lua:1: audit needs a table of options, for example audit{ arms = { \"encoder\", \"decoder\" } }; "
      "it got nothing" },
    { "audit{ arm = 'encoder' }", "t.lua:1: audit: unknown option \"arm\"; did you mean \"arms\"?" },
    { "audit{ wibble = 2 }", "t.lua:1: audit: unknown option \"wibble\"; docs/AUDIT.md lists the options" },
    { "audit{ 'encoder' }", "t.lua:1: audit: options are written key = value; there is a value without a key" },
    { "audit{ docs = 'many' }", "t.lua:1: audit: docs must be a number, not a string" },
    { "audit{ docs = 0 }", "t.lua:1: audit: docs = 0: allowed are 1 to 100000" },
    { "audit{ suffix = { 1, 'a' } }", "t.lua:1: audit: suffix must be a list of whole numbers, not a string" },
    { "audit{ suffix = { 1.5 } }", "t.lua:1: audit: suffix = \"1.5\": must be a whole number" },
    { "audit{ arms = { 'a,b' } }", "t.lua:1: audit: arms: \"a,b\" holds a comma" },
    { "audit{ arms = {} }", "t.lua:1: audit: arms: name at least one arm, for example \"encoder\"" },
    { "audit{ drafts = 1 }", "t.lua:1: audit: drafts must be true or false, not a number" },
    { "audit{ pattern = 'wave' }",
      "t.lua:1: audit: pattern = \"wave\": must be one of random|run|copy|brackets|entity" },
    { "audit{ label = 'a\\0b' }", "t.lua:1: audit: label holds a zero byte" },
    { "audit{ arms = { 'both', 'a\\0b' } }", "t.lua:1: audit: arms holds a zero byte" },
    { "print(audit{}.arm)", "t.lua:1: unknown field \"arm\" of the result of an audit; did you mean \"arms\"?" },
    { "print(audit{}.arms.encoder.kl)", "t.lua:1: unknown field \"kl\" of an arm of an audit" } };

START_TEST(mistakes_of_audits) {
    play_bad(audit_mistakes[_i].text, audit_mistakes[_i].message);
}
END_TEST

START_TEST(scenario_files_run) {
    static const char *const words[] = { "replay=both", "lanes=1" };
    static char text[65536], list[65536];
    glob_t files;
    ck_assert_int_eq(glob("scenarios/*.lua", 0, NULL, &files), 0);
    ck_assert_uint_ge(files.gl_pathc, 5);
    read_file("scenarios/INDEX.md", list, sizeof list);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *path = files.gl_pathv[i];
        char link[256];
        snprintf(link, sizeof link, "](%s)", strrchr(path, '/') + 1);
        ck_assert_msg(strstr(list, link) != NULL, "%s is not in scenarios/INDEX.md", path);
        size_t n = read_file(path, text, sizeof text);
        size_t first = strstr(text, "backend = \"http\"") != NULL;    /* endpoints know no replay */
        for (size_t overrides = 0; overrides <= 2 - first; overrides++) {
            reset();
            script_opts.name = path;
            script_opts.overrides = words + first;
            script_opts.override_count = overrides;
            cedar_status st = play_bytes(text, n);
            ck_assert_msg(st == CEDAR_OK || st == CEDAR_E_EXPECT, "%s: %s", path, err.msg);
            ck_assert_int_ge(host.run_count + host.audit_count, 1);
            ck_assert_int_ge(host.expect_count, 1);
        }
    }
    globfree(&files);
}
END_TEST

/* --- memory ----------------------------------------------------------------------------------------------------- */

/* Each of the first allocations fails once: a clean error or success, no leak, no crash. */
START_TEST(memory_faults) {
    int64_t step = 1, n = 1;
    int failures = 0;
    for (; n < 4000; n += step) {
        cedar_mem_fail_at(n);
        cedar_status st = play("local r = sweep({ trace = { 'a', 'b' } }, { lanes = { 1, 2 } })\n"
                               "for k, v in pairs(r[1]) do print(k, v) end\nexpect{ what = 'x', value = 1, le = 2 }\n"
                               "print(string.format('%s', {}), #options(), frontier(r):at(150))\n"
                               "run{ trace = 'a', admission = function() return true end }");
        cedar_mem_fail_at(0);
        ck_assert_msg(st == CEDAR_OK || st == CEDAR_E_OOM, "allocation %d: %d %s", (int)n, st, err.msg);
        ck_assert_int_eq(cedar_mem_live(), 0);
        failures += st != CEDAR_OK;
    }
    ck_assert_int_gt(failures, 5);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("lua");
    TCase *c = tcase_create("lua");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, reset, check_leaks);
    tcase_add_loop_test(c, escapes_are_refused, 0, (int)(sizeof escapes / sizeof *escapes));
    tcase_add_test(c, bytecode_is_refused);
    tcase_add_test(c, no_addresses);
    tcase_add_test(c, globals);
    tcase_add_test(c, pairs_has_a_fixed_order);
    tcase_add_test(c, pairs_does_not_depend_on_the_hash_seed);
    tcase_add_test(c, sort_is_stable);
    tcase_add_test(c, random_numbers_repeat);
    tcase_add_loop_test(c, instruction_limit, 0, 12);
    tcase_add_test(c, small_instruction_limits);
    tcase_add_test(c, memory_limit);
    tcase_add_test(c, huge_strings_are_errors);
    tcase_add_test(c, deep_recursion);
    tcase_add_test(c, patterns_are_bounded);
    tcase_add_test(c, protected_calls);
    tcase_add_test(c, stop_flag);
    tcase_add_test(c, run_returns_results);
    tcase_add_test(c, run_converts_values);
    tcase_add_loop_test(c, mistakes_name_file_and_line, 0, (int)(sizeof mistakes / sizeof *mistakes));
    tcase_add_test(c, sweep_order);
    tcase_add_test(c, overrides_win);
    tcase_add_test(c, bad_overrides_stop_everything);
    tcase_add_test(c, ladders);
    tcase_add_test(c, claims);
    tcase_add_test(c, files_of_claims);
    tcase_add_loop_test(c, finding_mistake_messages, 0,
                        (int)(sizeof finding_mistakes / sizeof *finding_mistakes));
    tcase_add_test(c, expectations);
    tcase_add_test(c, print_note_options_compare);
    tcase_add_test(c, host_errors_carry_their_code);
    tcase_add_test(c, search_finds_the_largest_that_keeps_the_floor);
    tcase_add_test(c, pairs_are_asked_for);
    tcase_add_test(c, frontier_keeps_what_nobody_beats);
    tcase_add_test(c, policies_are_asked_and_recorded);
    tcase_add_test(c, routers_are_asked_and_recorded);
    tcase_add_loop_test(c, mistakes_of_policies, 0, sizeof policy_mistakes / sizeof *policy_mistakes);
    tcase_add_loop_test(c, fatal_errors_cannot_be_caught, 0, 2);
    tcase_add_test(c, audits_are_played);
    tcase_add_loop_test(c, mistakes_of_audits, 0, sizeof audit_mistakes / sizeof *audit_mistakes);
    tcase_add_test(c, scenario_files_run);
    tcase_add_test(c, memory_faults);
    suite_add_tcase(suite, c);
    SRunner *r = srunner_create(suite);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
