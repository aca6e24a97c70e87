/* Modelled time: hardware descriptions, and runs that the cost model clocks instead of an engine. */
#define JOURNAL_MODEL "scenarios/models/tiny.json"

#include <inttypes.h>
#include <malloc.h>
#include <sys/resource.h>

#include "journal.h"
#include "lua/hardware.h"
#include "reports/reports.h"

#define TWO HEAD("one", 8) TURN(0, 66, 6, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16") "," \
    TURN(3, 90, 7, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22") "]}\n" \
    HEAD("two", 8) TURN(0, 40, 3, 1, "31,32,33,34,35,36,37,38,39,40") "," \
    TURN(2, 61, 8, 1, "31,32,33,34,35,36,37,38,39,40,41,42,43,44,45") "]}"

#define MODELLED "clock=modelled hardware=h200 lanes=2 page_tokens=4 step_tokens=24 "

/* Plays TWO; NULL and the message in `says` when it is refused. */
static journal *play(const char *settings, bool knows_hardware, char says[480]) {
    journal *l = calloc(1, sizeof *l);
    cedar_run_result out;
    cedar_err err = { 0 };
    if (knows_hardware) l->hardware = cedar_hardware_find;
    int64_t live = cedar_mem_live();
    cedar_status st = play_run(TWO, settings, l, NULL, &out, &err);
    ck_assert_int_eq(cedar_mem_live(), live);
    snprintf(says, 480, "%s", err.msg);
    if (!st) return l;
    journal_free(l);
    return NULL;
}

static journal *must_play(const char *settings) {
    char says[480];
    journal *l = play(settings, true, says);
    ck_assert_msg(l, "%s", says);
    return l;
}

START_TEST(twice_the_same_to_the_nanosecond) {
    journal *x = must_play(MODELLED), *y = must_play(MODELLED "threads=2");
    ck_assert_str_eq(x->rows, y->rows);
    ck_assert_str_eq(x->timing, y->timing);
    ck_assert_uint_eq(x->requests, 4);
    ck_assert_uint_gt(x->hits, 0);
    journal_free(x);
    journal_free(y);
}
END_TEST

/* The engine, when one computes beside the clock, must not change what is scheduled. */
START_TEST(with_and_without_an_engine_the_same_schedule) {
    journal *x = must_play(MODELLED), *y = must_play(MODELLED "backend=cpu");
    ck_assert_str_eq(x->timing, y->timing);
    /* without the first line, which names the backend, and the event hash, which covers the logits */
    char *rows_x = strchr(x->rows, '\n'), *rows_y = strchr(y->rows, '\n');
    *strstr(rows_x, "end finished") = *strstr(rows_y, "end finished") = 0;
    ck_assert(strcmp(rows_x, rows_y) == 0);
    journal_free(x);
    journal_free(y);
}
END_TEST

START_TEST(launches_and_hardware_have_a_price) {
    journal *split = must_play(MODELLED), *off = must_play(MODELLED "graphs=off");
    journal *four = must_play("clock=modelled hardware=gb300-tp4 lanes=2 page_tokens=4 step_tokens=24");
    ck_assert_int_gt(off->step_ns[0], split->step_ns[0]);
    ck_assert_int_ne(four->step_ns[0], split->step_ns[0]);
    journal_free(split);
    journal_free(off);
    journal_free(four);
}
END_TEST

static const struct { const char *settings; bool knows; const char *says;
} refusals[] = {
    { "clock=modelled", true, "needs hardware to price" },
    { "clock=modelled hardware=h200", false, "needs hardware to price" },
    { "clock=modelled hardware=h2000", true,
      "hardware \"h2000\" is not known: there is no ./scenarios/hardware/h2000.lua" },
    { "clock=modelled hardware=./nowhere.lua", true, "./nowhere.lua: No such file" },
    { "backend=none", true, "needs clock = \"modelled\"" },
    { "clock=modelled hardware=h200 quality=true", true, "no logits" },
    { "clock=modelled hardware=h200 continuation=greedy", true, "no logits" },
    { "clock=modelled hardware=h200 backend=cpu engines=2", true,
      "engines = 2: a run has several engines only when they are modelled and compute nothing" },
    { "engines=2", true, "take clock = \"modelled\" and backend = \"none\"" },
    { "steps_per_row=8", true, "steps_per_row = 8: steps are summed up only where they are modelled" },
    { "routing=policy", true, "routing: a function is asked only where engines are modelled" },
    { "clock=modelled hardware=h200 backend=cpu routing=policy", true, "a function is asked only where engines" },
    { "clock=modelled hardware=h200 routing=policy", true, "routing = \"policy\" needs a function" },
};

START_TEST(refusals_say_what_to_do) {
    char says[480];
    ck_assert_ptr_null(play(refusals[_i].settings, refusals[_i].knows, says));
    ck_assert_msg(strstr(says, refusals[_i].says), "%s: %s", refusals[_i].settings, says);
}
END_TEST

/* --- several engines ---------------------------------------------------------------------------------------------- */

enum { ROWS_MAX = 400 };

/* Requests by id, and the steps of each engine. */
typedef struct fleet {
    cedar_request_row rows[ROWS_MAX];
    uint32_t count, steps[8], wrong_steps;
    int64_t step_end[8];
    cedar_run_result out;
} fleet;

static cedar_status fleet_run(void *self, const cedar_run_row *r, cedar_err *err) {
    return (void)self, (void)r, (void)err, CEDAR_OK;
}
static cedar_status fleet_session(void *self, const cedar_session_row *r, cedar_err *err) {
    return (void)self, (void)r, (void)err, CEDAR_OK;
}
static cedar_status fleet_end(void *self, const cedar_run_end_row *r, cedar_err *err) {
    return (void)self, (void)r, (void)err, CEDAR_OK;
}
static cedar_status fleet_request(void *self, const cedar_request_row *r, cedar_err *err) {
    fleet *f = self;
    (void)err;
    ck_assert_int_le(r->request_id, ROWS_MAX);
    f->rows[r->request_id - 1] = *r;
    f->count++;
    return CEDAR_OK;
}
static cedar_status fleet_step(void *self, const cedar_step_row *r, cedar_err *err) {
    fleet *f = self;
    (void)err;
    ck_assert(r->engine >= 1 && r->engine <= 8);
    f->wrong_steps += r->start_sched_ns < f->step_end[r->engine - 1];      /* an engine makes one step at a time */
    f->step_end[r->engine - 1] = r->end_sched_ns;
    f->steps[r->engine - 1] += r->steps;
    return CEDAR_OK;
}

/* Sends every request to the engine called like its turn. */
static cedar_status by_turn(void *self, const cedar_policy_request *q, const cedar_policy_engine *engines,
                            uint32_t count, uint32_t *out, cedar_err *err) {
    (void)self;
    (void)engines;
    (void)err;
    *out = q->turn % count;
    return CEDAR_OK;
}

static fleet *play_fleet(const char *text, const char *settings, const cedar_router *router) {
    fleet *f = calloc(1, sizeof *f);
    char path[] = "/tmp/cedar-test-XXXXXX.jsonl", words[512], *save = NULL;
    int fd = mkstemps(path, 6);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    cedar_observer obs = { .self = f, .run_begin = fleet_run, .session = fleet_session, .request = fleet_request,
                           .step = fleet_step, .run_end = fleet_end };
    cedar_run_host host = { .observer = &obs, .data_dir = ".", .hardware = cedar_hardware_find };
    cedar_run_opts *o;
    int64_t live = cedar_mem_live();
    OK(cedar_opts_new(&o, &failure));
    OK(cedar_opts_set(o, "model", JOURNAL_MODEL, &failure));
    OK(cedar_opts_set(o, "trace", path, &failure));
    snprintf(words, sizeof words, MODELLED "%s", settings);
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(w, '=');
        *equals = 0;
        OK(cedar_opts_set(o, w, equals + 1, &failure));
    }
    cedar_opts_router(o, router);
    OK(cedar_run(o, 1, &host, &f->out, &failure));
    cedar_opts_free(o);
    ck_assert_int_eq(cedar_mem_live(), live);
    ck_assert_uint_eq(f->wrong_steps, 0);
    unlink(path);
    return f;
}

/* Two sessions on two engines: each is played as if it were alone on one. */
START_TEST(an_engine_of_its_own_is_like_being_alone) {
    static const char one[] = HEAD("one", 8) TURN(0, 66, 6, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16") ","
        TURN(3, 90, 7, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22") "]}\n",
        two[] = HEAD("two", 8) TURN(0, 40, 3, 1, "31,32,33,34,35,36,37,38,39,40") ","
        TURN(2, 61, 8, 1, "31,32,33,34,35,36,37,38,39,40,41,42,43,44,45") "]}\n";
    fleet *both = play_fleet(TWO, "engines=2 kv_pages=64", NULL);
    fleet *alone[] = { play_fleet(one, "lanes=1 kv_pages=64", NULL), play_fleet(two, "lanes=1 kv_pages=64", NULL) };
    ck_assert_uint_eq(both->count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const cedar_request_row *r = &both->rows[i], *a = &alone[r->lane]->rows[r->turn];
        ck_assert_uint_eq(r->engine, (uint32_t)r->lane + 1);
        ck_assert_uint_eq(a->engine, 1);
        ck_assert_uint_eq(r->hit_tokens, a->hit_tokens);
        ck_assert_int_eq(r->arrival_ns, a->arrival_ns);
        ck_assert_int_eq(r->first_ns, a->first_ns);
        ck_assert_int_eq(r->last_ns, a->last_ns);
    }
    for (int i = 0; i < 2; i++) ck_assert_uint_eq(both->steps[i], alone[i]->out.steps);
    ck_assert_uint_gt(both->rows[2].hit_tokens, 0);
    free(both);
    for (int i = 0; i < 2; i++) free(alone[i]);
}
END_TEST

START_TEST(rules_of_routing) {
    static const cedar_router router = { .route = by_turn };
    fleet *round = play_fleet(TWO, "engines=3 routing=round_robin", NULL),
          *session = play_fleet(TWO, "engines=3 routing=session", NULL),
          *prefix = play_fleet(TWO, "engines=3 routing=prefix", NULL),
          *policy = play_fleet(TWO, "engines=3 routing=policy", &router);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(round->rows[i].engine, i % 3 + 1);
        ck_assert_uint_eq(policy->rows[i].engine, (uint32_t)policy->rows[i].turn + 1);
        ck_assert_uint_eq(session->rows[i].engine, (uint32_t)session->rows[i].lane + 1);
        ck_assert_uint_eq(prefix->rows[i].engine, (uint32_t)prefix->rows[i].lane + 1);
    }
    /* a second turn finds its first turn's pages where they are, and nowhere else */
    ck_assert_uint_gt(session->out.hit_tokens, 60);
    ck_assert_uint_eq(prefix->out.hit_tokens, session->out.hit_tokens);
    ck_assert_uint_eq(policy->out.hit_tokens, 0);
    free(round);
    free(session);
    free(prefix);
    free(policy);
}
END_TEST

/* The least loaded engine: three sessions that begin at once spread over three engines; the next to begin joins the one
 * whose request has ended. */
START_TEST(the_least_loaded_engine_is_taken) {
    static const char four[] = HEAD("a", 0) TURN(0, 8, 40, 1, "1,2") "]}\n" HEAD("b", 0) TURN(0, 8, 3, 1, "1,2") "]}\n"
        HEAD("c", 0) TURN(0, 8, 40, 1, "1,2") "]}\n" HEAD("d", 0) TURN(0, 8, 40, 1, "1,2") "]}\n";
    fleet *f = play_fleet(four, "lanes=3 engines=3 routing=least_loaded", NULL);
    ck_assert_uint_eq(f->count, 4);
    for (uint32_t i = 0; i < 3; i++) ck_assert_uint_eq(f->rows[i].engine, i + 1);
    ck_assert_uint_eq(f->rows[3].engine, 2);
    free(f);
}
END_TEST

/* Summed rows have the sums of single ones, and nothing else changes. */
START_TEST(steps_may_share_a_row) {
    journal *one = must_play(MODELLED);
    fleet *f = play_fleet(TWO, "steps_per_row=7", NULL), *g = play_fleet(TWO, "steps_per_row=1", NULL);
    ck_assert_uint_eq(f->out.event_hash, g->out.event_hash);
    ck_assert_uint_eq(f->steps[0], g->steps[0]);
    ck_assert_uint_eq(f->steps[0], one->steps);
    ck_assert_int_eq(f->step_end[0], g->step_end[0]);
    journal_free(one);
    free(f);
    free(g);
}
END_TEST

/* A run that is stopped at any row ends so that a replay, which is told when the last step begins, reaches the same
 * events; with engines whose steps overlap too. */
START_TEST(stopped_runs_replay_to_the_same_events) {
    static const char *const settings[] = { MODELLED, MODELLED "engines=2 kv_pages=64",
                                            MODELLED "engines=2 routing=round_robin" };
    int stopped = 0;
    for (int row = 1; row < 60; row++) {
        journal *l = calloc(1, sizeof *l), *again = calloc(1, sizeof *l);
        cedar_run_result a, b;
        cedar_err err = { 0 };
        l->hardware = again->hardware = cedar_hardware_find;
        l->stop_at_row = row;
        cedar_status st = play_run(TWO, settings[_i], l, NULL, &a, &err);
        again->stop_at_step = (int)l->steps;
        if (st == CEDAR_E_INTERRUPT && l->steps) {
            stopped++;
            ck_assert_int_eq(play_run(TWO, settings[_i], again, NULL, &b, &err), CEDAR_E_INTERRUPT);
            ck_assert_msg(a.event_hash == b.event_hash, "stopped after row %d, step %d", row, (int)l->steps);
            ck_assert(strcmp(l->rows, again->rows) == 0);
        }
        journal_free(l);
        journal_free(again);
    }
    ck_assert_int_ge(stopped, 15);
}
END_TEST

START_TEST(no_allocation_failure_leaks) {
    int64_t live = cedar_mem_live();
    int failures = 0;
    for (int64_t n = 1; n < 3000; n++) {
        journal *l = calloc(1, sizeof *l);
        cedar_run_result a;
        cedar_err err = { 0 };
        l->hardware = cedar_hardware_find;
        l->fail_alloc = n;
        cedar_status st = play_run(TWO, MODELLED "engines=2 kv_pages=30 routing=prefix", l, NULL, &a, &err);
        cedar_mem_fail_at(0);
        ck_assert_msg(st == CEDAR_OK || st == CEDAR_E_OOM, "allocation %d: %s", (int)n, err.msg);
        ck_assert_int_eq(cedar_mem_live(), live);
        journal_free(l);
        failures += st != CEDAR_OK;
        if (!st) break;
    }
    ck_assert_int_gt(failures, 40);
}
END_TEST

/* --- memory, with the store on ------------------------------------------------------------------------------------ */

/* Passes rows on to a store and looks at memory after a tenth of the requests and from then on. */
typedef struct watch {
    cedar_observer store;
    uint64_t requests, total;
    int64_t live_at, live_most;     /* allocations of cedar's own */
    size_t bytes_at, bytes_most;    /* allocated, those of SQLite too */
    long rss_at, rss_end;           /* KiB, largest so far */
} watch;

static size_t allocated(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static long largest_rss(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
}

static cedar_status watch_request(void *self, const cedar_request_row *r, cedar_err *err) {
    watch *w = self;
    cedar_status st = w->store.request(w->store.self, r, err);
    if (++w->requests == w->total / 10) {
        w->live_at = cedar_mem_live();
        w->bytes_at = allocated();
        w->rss_at = largest_rss();
    }
    if (!w->live_at || w->requests % 64) return st;
    if (cedar_mem_live() > w->live_most) w->live_most = cedar_mem_live();
    if (allocated() > w->bytes_most) w->bytes_most = allocated();
    return st;
}
static cedar_status watch_run(void *self, const cedar_run_row *r, cedar_err *err) {
    watch *w = self;
    return w->store.run_begin(w->store.self, r, err);
}
static cedar_status watch_session(void *self, const cedar_session_row *r, cedar_err *err) {
    watch *w = self;
    return w->store.session(w->store.self, r, err);
}
static cedar_status watch_step(void *self, const cedar_step_row *r, cedar_err *err) {
    watch *w = self;
    return w->store.step(w->store.self, r, err);
}
static cedar_status watch_end(void *self, const cedar_run_end_row *r, cedar_err *err) {
    watch *w = self;
    w->rss_end = largest_rss();
    return w->store.run_end(w->store.self, r, err);
}

/* Prefix caches that are full all the time, sessions that end and begin, two engines, every row in a database. */
static void play_long(uint64_t requests) {
    char db[] = "/tmp/cedar-test-XXXXXX", count[24];
    int fd = mkstemp(db);
    ck_assert_int_ge(fd, 0);
    close(fd);
    unlink(db);
    cedar_store *store;
    OK(cedar_store_create(db, false, &store, &failure));
    watch w = { .store = *cedar_store_observer(store), .total = requests };
    cedar_observer obs = { .self = &w, .run_begin = watch_run, .session = watch_session, .request = watch_request,
                           .step = watch_step, .run_end = watch_end };
    cedar_run_host host = { .observer = &obs, .data_dir = ".", .hardware = cedar_hardware_find };
    static const char *const words[][2] = {
        { "model", JOURNAL_MODEL }, { "trace", "traces/kv-cache-tester/trace_0057.json" }, { "clock", "modelled" },
        { "hardware", "h200" }, { "length_scale", "1/64" }, { "recycle", "true" }, { "lanes", "16" },
        { "page_tokens", "4" }, { "step_tokens", "256" }, { "kv_pages", "4000" }, { "engines", "2" },
        { "time_scale", "0.01" }, { "steps_per_row", "8" } };
    cedar_run_opts *o;
    cedar_run_result a;
    OK(cedar_opts_new(&o, &failure));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        OK(cedar_opts_set(o, words[i][0], words[i][1], &failure));
    snprintf(count, sizeof count, "%" PRIu64, requests);
    OK(cedar_opts_set(o, "requests_max", count, &failure));
    OK(cedar_run(o, 1, &host, &a, &failure));
    cedar_opts_free(o);
    OK(cedar_store_close(store, true, &failure));
    unlink(db);
    ck_assert_uint_ge(w.requests, requests);
    ck_assert_uint_gt(a.hit_tokens, 0);
    ck_assert_msg(w.live_most <= w.live_at + 512, "%ld allocations after a tenth, %ld later", (long)w.live_at,
                  (long)w.live_most);
#ifndef CEDAR_SANITIZED     /* sanitizers have an allocator of their own, and keep what was freed */
    ck_assert_msg(w.bytes_most <= w.bytes_at + w.bytes_at / 20, "%zu bytes after a tenth, %zu later", w.bytes_at,
                  w.bytes_most);
    if (requests >= 1000000)    /* over fewer, what the allocator keeps of freed blocks could pass for a leak */
        ck_assert_msg(w.rss_end <= w.rss_at + w.rss_at / 20 + 512, "%ld KiB resident after a tenth, %ld at the end",
                      w.rss_at, w.rss_end);
#endif
    fprintf(stderr, "%" PRIu64 " requests: %zu, then at most %zu bytes allocated; %ld, then %ld KiB resident\n",
            w.requests, w.bytes_at, w.bytes_most, w.rss_at, w.rss_end);
}

/* After a tenth of these, SQLite's cache of pages and the lists of latencies are full. */
#ifdef CEDAR_SANITIZED
enum { LONG_REQUESTS = 50000 };
#else
enum { LONG_REQUESTS = 200000 };
#endif

START_TEST(memory_is_flat_with_the_store_on) { play_long(LONG_REQUESTS); }
END_TEST

START_TEST(memory_is_flat_over_a_million_requests) { play_long(1000000); }
END_TEST

/* --- descriptions ------------------------------------------------------------------------------------------------- */
#define ALL "gpus = 1, hbm_bytes = 141e9, copy_bytes_s = 4e12, matmul_flop_s = 8e14, attention_flop_s = 4e14, " \
    "indexer_flop_s = 7e14, kernels_per_layer = 18, launch_ns = 970, eager_launch_ns = 6500"

/* Loads a description from text through a file. */
static cedar_status load(const char *text, cedar_hardware *hw, cedar_err *err) {
    char path[] = "/tmp/cedar-test-XXXXXX.lua";
    int fd = mkstemps(path, 4);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    int64_t live = cedar_mem_live();
    cedar_status st = cedar_hardware_load(path, hw, NULL, err);
    ck_assert_int_eq(cedar_mem_live(), live);
    unlink(path);
    return st;
}

static const struct { const char *text, *says; } broken[] = {
    { "return 7", "must return a table" },
    { "return {", "expected" },
    { "return { 5 }", "every figure needs a name" },
    { "return { name = 7, " ALL " }", "name must be a string" },
    { "return { " ALL " }", "name is missing" },
    { "return { name = 'x', gpu = 1, " ALL " }", "unknown figure \"gpu\"; did you mean \"gpus\"?" },
    { "return { name = 'x', " ALL ", step_host_ns = 'fast' }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = '970' }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = { 970 } }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = -1 }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = 0/0 }", "step_host_ns must be a number" },
    { "return { name = 'x', gpus = 1 }", "is missing" },
    { "while true do end", "instructions for a table" },
    { "return { name = os.getenv('HOME'), " ALL " }", "global 'os'" },
};

START_TEST(broken_descriptions_name_the_fault) {
    cedar_hardware hw = { .gpus = -7 };
    cedar_err err = { 0 };
    ck_assert_int_ne(load(broken[_i].text, &hw, &err), CEDAR_OK);
    ck_assert_msg(strstr(err.msg, broken[_i].says), "%s: %s", broken[_i].text, err.msg);
    ck_assert_double_eq(hw.gpus, -7); /* nothing was set */
}
END_TEST

START_TEST(good_descriptions_load) {
    cedar_hardware hw;
    OK(load("return { name = 'x', " ALL ", step_host_ns = { 970, 'measured' } }", &hw, &failure));
    ck_assert_str_eq(hw.name, "x");
    ck_assert_double_eq(hw.step_host_ns, 970);
    static const char *const shipped[] = { "h200", "h200-cedar", "gb300-tp4" };
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        OK(cedar_hardware_find(".", shipped[i], &hw, &failure));
        ck_assert_str_eq(hw.name, shipped[i]);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("modelled");
    TCase *t = tcase_create("runs");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, twice_the_same_to_the_nanosecond);
    tcase_add_test(t, with_and_without_an_engine_the_same_schedule);
    tcase_add_test(t, launches_and_hardware_have_a_price);
    tcase_add_test(t, an_engine_of_its_own_is_like_being_alone);
    tcase_add_test(t, rules_of_routing);
    tcase_add_test(t, the_least_loaded_engine_is_taken);
    tcase_add_test(t, steps_may_share_a_row);
    tcase_add_loop_test(t, stopped_runs_replay_to_the_same_events, 0, 3);
    tcase_add_test(t, no_allocation_failure_leaks);
    tcase_add_loop_test(t, refusals_say_what_to_do, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(t, memory_is_flat_with_the_store_on);
    suite_add_tcase(s, t);
    t = tcase_create("slow");
    tcase_set_timeout(t, 1200);
    tcase_set_tags(t, "slow");
    tcase_add_test(t, memory_is_flat_over_a_million_requests);
    suite_add_tcase(s, t);
    t = tcase_create("descriptions");
    tcase_add_loop_test(t, broken_descriptions_name_the_fault, 0, sizeof broken / sizeof *broken);
    tcase_add_test(t, good_descriptions_load);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
