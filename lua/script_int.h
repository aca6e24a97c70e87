/* Private to lua/: the state of one scenario execution, and what the files share.
 *
 * script.c owns the execution, sandbox.c limits and globals, stdlib.c the changed library functions, verbs.c the
 * verbs, search.c those that try many points, audit.c audits, paired.c comparisons by request, findings.c ladders and
 * claims, policy.c functions that a run calls, values.c conversions. Every function that takes a lua_State may raise a
 * Lua error unless it says otherwise; C memory that must survive that lives in Lua userdata. */
#ifndef CEDAR_LUA_SCRIPT_INT_H
#define CEDAR_LUA_SCRIPT_INT_H

#include <lauxlib.h>
#include <lua.h>

#include <stdbool.h>

#include "lua/script.h"

enum { POLICY_INSTRUCTIONS_MAX = 100000 };  /* of one call; counted in steps of the hook */

typedef struct script {
    const cedar_script_opts *opts;
    const cedar_script_host *host;
    uint64_t memory_max, memory_used;   /* bytes */
    bool memory_refused;                /* an allocation hit memory_max */
    uint64_t instructions_max, instructions;
    uint64_t policy_end;                /* instructions at which a call of a policy is broken off; 0 = none runs */
    cedar_err fatal;                    /* an error that no pcall may swallow; code CEDAR_OK = none */
    cedar_err raised;                   /* the last error of a callback, as raised */
    uint64_t expect_count, expect_failed;
    char expect_first[256];             /* the first expectation that failed */
    int64_t ladders, comparisons;       /* so many so far */
} script;

script *script_of(lua_State *L);        /* no error */

/* Pushes "file:line: " of the innermost Lua function on the call stack, or "". */
void script_push_where(lua_State *L);

/* Raises "file:line: message". */
int script_fail(lua_State *L, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));

/* Raises a failed call's error: "file:line: what: message". Interrupts and database errors become fatal. */
int script_fail_status(lua_State *L, const char *what, const cedar_err *err) __attribute__((noreturn));

/* Raises the fatal error if there is one. */
void script_check_fatal(lua_State *L);

/* sandbox.c */
void *script_alloc(void *self, void *p, size_t size_old, size_t size_new);
void sandbox_open(lua_State *L);        /* libraries, globals, limits; raises */

/* stdlib.c: changes the freshly opened standard functions in the table at the top of the stack. */
void stdlib_open_base(lua_State *L);
void stdlib_open_string(lua_State *L);
void stdlib_open_table(lua_State *L);
void stdlib_open_math(lua_State *L);

/* Pushes the text of the value at `index`: as tostring, without addresses. */
const char *stdlib_text(lua_State *L, int index, size_t *bytes);

/* verbs.c: adds the verbs to the table at the top of the stack. */
void verbs_open(lua_State *L);

/* Pushes options in a userdata: defaults, then the table at `table`, then the overrides; not checked. */
cedar_run_opts **verbs_push_options(lua_State *L, const char *verb, int table);

/* Checks and plays the options in the box at the top, frees them, and pushes the result in their place. */
void verbs_play(lua_State *L, const char *verb, cedar_run_opts **box);

/* Raises unless the value at `index` is a table; and when a policy calls the verb. */
void verbs_need_table(lua_State *L, const char *verb, int index, const char *example);

/* search.c: search(base, {...}) and frontier(points, {...}). */
int verb_search(lua_State *L);
int verb_frontier(lua_State *L);

/* audit.c: audit{...}. */
int verb_audit(lua_State *L);

/* findings.c: ladder{...}, claim{...}, published(path) and shape(model). */
int verb_published(lua_State *L);
int verb_shape(lua_State *L);
int verb_ladder(lua_State *L);

/* Gives a row of findings.c or paired.c to the host. */
void findings_emit(lua_State *L, const char *verb, cedar_finding kind, const void *row);

int verb_claim(lua_State *L);
/* paired.c: paired(a, b, {...}). */
int verb_paired(lua_State *L);

/* policy.c: makes the function at `index` the run's admission policy, and its name and hash the option `admission`. */
void policy_set(lua_State *L, const char *verb, cedar_run_opts *o, int index);

/* The same for its router; the options `routing` and `routing_policy`. The value must be a function. */
void policy_set_router(lua_State *L, const char *verb, cedar_run_opts *o, int index);

/* values.c */

/* Nearest word among the string keys of the table at `index` (and, behind them in order, the table at `index2` unless
 * 0); pushes it, or nil. Keys are looked at in byte order. */
void values_push_nearest(lua_State *L, const char *word, int index, int index2);

/* Run options in a userdata, freed with it; empty at first. */
cedar_run_opts **values_new_opts(lua_State *L);
void values_free_opts(cedar_run_opts **box);

/* Text of the Lua value at `index` for an option; pushes it. Wrong types raise with `verb` and the key. */
const char *values_push_option(lua_State *L, const char *verb, const cedar_opt_info *k, int index);

/* Pushes the typed Lua value of an option's text. */
void values_push_typed(lua_State *L, const cedar_opt_info *k, const char *text);

/* Sets one option from Lua or from an override; raises with the verb. */
void values_set(lua_State *L, const char *verb, cedar_run_opts *o, const char *key, const char *value);

/* Entry of the option table, or NULL; no error. */
const cedar_opt_info *values_find(const char *key);

/* Value of the override of `key`, the last one given, or NULL; no error. */
const char *values_override(const script *s, const char *key);

/* Result tables. */
void values_push_result(lua_State *L, const cedar_run_result *r, const cedar_run_opts *o);

/* Raises for the first key, by bytes, of the table at `index` that is none of known [count]. */
void values_check_keys(lua_State *L, const char *verb, int index, const char *const *known, size_t count);

/* Makes the table at the top answer reads of unknown fields with an error: `unknown field "x" of WHAT; ...`. */
void values_make_strict(lua_State *L, const char *what);

#endif
