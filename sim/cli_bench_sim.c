/* cedar bench sim: how fast the simulator is on one core, each figure beside a peer or limit measured in the same run.
 *
 * A repetition measures all rows once, every other one in the opposite order, so that a slow stretch of the machine
 * meets ours and the peer alike. Files lie in a directory of their own below TMPDIR, which is removed. */
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/version.h"
#include "lua/hardware.h"
#include "reports/reports.h"
#include "sim/cli_int.h"
#include "sim/percentile.h"
#include "sim/sim_int.h"

#define CORPUS "traces/kv-cache-tester/corpus48.jsonl.gz"

enum { REPEAT_MAX = 99, STORE_REQUESTS = 40000, STORE_STEPS = 500000 };

typedef enum figure {
    REPLAY_STORE, REPLAY_STORE_CPU, REPLAY_BARE, REPLAY_BARE_CPU, REQUEST_ROWS, REQUEST_SAME, REQUEST_PLAIN, STEP_ROWS,
    STEP_SAME, STEP_PLAIN, LOOP_BARE, EVENTS, EVENT_RATIO, EVENTS_STORE, EVENT_STORE_RATIO, LOAD,
    FIGURE_COUNT
} figure;

static const struct { const char *name, *unit; double goal; bool less; } figures[FIGURE_COUNT] = {
    [REPLAY_STORE] = { "modelled replay with the store", "requests/s", 100000, false },
    [REPLAY_STORE_CPU] = { "  per second of CPU time", "requests/s", 0, false },
    [REPLAY_BARE] = { "modelled replay without the store", "requests/s", 0, false },
    [REPLAY_BARE_CPU] = { "  per second of CPU time", "requests/s", 0, false },
    [REQUEST_ROWS] = { "store alone: table requests", "rows/s", 0, false },
    [REQUEST_SAME] = { "  ratio to bare inserts (same table)", "", 0.7, false },
    [REQUEST_PLAIN] = { "  the same without keys and checks", "", 0, false },
    [STEP_ROWS] = { "store alone: table steps", "rows/s", 0, false },
    [STEP_SAME] = { "  ratio to bare inserts (same table)", "", 0.7, false },
    [STEP_PLAIN] = { "  the same without keys and checks", "", 0, false },
    [LOOP_BARE] = { "bare event loop", "events/s", 0, false },
    [EVENTS] = { "replay without the store", "events/s", 0, false },
    [EVENT_RATIO] = { "  ratio to the bare loop", "", 0.25, false },
    [EVENTS_STORE] = { "replay with the store", "events/s", 0, false },
    [EVENT_STORE_RATIO] = { "  ratio to the bare loop", "", 0, false },
    [LOAD] = { "loading 48 traces", "s/100 MB of JSON", 1, true },
};

/* Rows of a run, to be stored again. */
typedef struct rows {
    void *v;
    size_t size, count, capacity;
} rows;

typedef struct bench {
    cedar_run_cache *cache;
    char data_dir[1024], folder[512], store[600], bare[600];
    uint64_t requests, repeat, lanes;
    bool csv;
    rows request_rows, step_rows;
    uint64_t events, steps;             /* of one replay */
    double v[FIGURE_COUNT][REPEAT_MAX];
} bench;

static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static cedar_status rows_add(rows *r, size_t size, const void *row, cedar_err *err) {
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 4096;
        void *grown = cedar_realloc(r->v, capacity, size);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu rows", capacity);
        *r = (rows){ grown, size, r->count, capacity };
    }
    memcpy((char *)r->v + r->count++ * size, row, size);
    return CEDAR_OK;
}

/* --- observers ---------------------------------------------------------------------------------------------------- */

/* The texts of the rows belong to the traces, which stay loaded, or to nobody. */
static cedar_status keep_request(void *self, const cedar_request_row *row, cedar_err *err) {
    cedar_request_row copy = *row;
    copy.error = *row->error ? "cut" : "";
    return rows_add(&((bench *)self)->request_rows, sizeof copy, &copy, err);
}
/* Few lanes make many steps; more of them would measure the same and take memory. */
static cedar_status keep_step(void *self, const cedar_step_row *row, cedar_err *err) {
    rows *r = &((bench *)self)->step_rows;
    return r->count < STORE_STEPS ? rows_add(r, sizeof *row, row, err) : CEDAR_OK;
}

/* --- the replay --------------------------------------------------------------------------------------------------- */

static cedar_status set_options(const bench *b, uint64_t requests, const char *steps_per_row, cedar_run_opts *o,
                                cedar_err *err) {
    char count[24], lanes[24];
    snprintf(count, sizeof count, "%" PRIu64, requests);
    snprintf(lanes, sizeof lanes, "%" PRIu64, b->lanes);
    const char *const words[][2] = { { "clock", "modelled" },   { "hardware", "h200" },   { "model", "flash-e32" },
                                     { "trace", CORPUS },       { "lanes", lanes },       { "page_tokens", "64" },
                                     { "step_tokens", "8192" }, { "recycle", "true" },    { "requests_max", count },
                                     { "replay", "both" },      { "label", "bench sim" },
                                     { "steps_per_row", steps_per_row } };
    cedar_status st = CEDAR_OK;
    for (size_t i = 0; i < sizeof words / sizeof *words && !st; i++)
        st = cedar_opts_set(o, words[i][0], words[i][1], err);
    return st;
}

static cedar_status play(bench *b, uint64_t requests, const char *steps_per_row, const cedar_observer *obs,
                         cedar_run_result *out, cedar_err *err) {
    cedar_run_opts *o = NULL;
    cedar_run_host host = { .observer = obs, .data_dir = b->data_dir, .cache = b->cache, .stop = cedar_cli_stop(),
                            .hardware = cedar_hardware_find };
    cedar_status st = cedar_opts_new(&o, err);
    if (!st) st = set_options(b, requests, steps_per_row, o, err);
    if (!st) st = cedar_run(o, 1, &host, out, err);
    cedar_opts_free(o);
    return st;
}

/* A replay without and with the store; its file is closed within the time. */
static cedar_status measure_replay(bench *b, uint64_t n, bool stored, cedar_err *err) {
    cedar_store *store = NULL;
    cedar_run_result a;
    cedar_status st = stored ? cedar_store_create(b->store, true, &store, err) : CEDAR_OK;
    if (st) return st;
    int64_t wall = cedar_now_ns(), cpu = cpu_ns();
    st = play(b, b->requests, "4096", stored ? cedar_store_observer(store) : &cedar_observer_silent, &a, err);
    cedar_status closed = cedar_store_close(store, !st, st ? NULL : err);
    double wall_s = (double)(cedar_now_ns() - wall) / 1e9,
           cpu_s = (double)(cpu_ns() - cpu) / 1e9;
    if (st || closed) return st ? st : closed;
    b->steps = a.steps;
    b->events = a.steps + 2 * a.requests;       /* steps, arrivals and ends */
    b->v[stored ? REPLAY_STORE : REPLAY_BARE][n] = (double)a.requests / wall_s;
    b->v[stored ? REPLAY_STORE_CPU : REPLAY_BARE_CPU][n] = (double)a.requests / cpu_s;
    b->v[stored ? EVENTS_STORE : EVENTS][n] = (double)b->events / wall_s;
    return CEDAR_OK;
}

static cedar_status replay_stored(bench *b, uint64_t n, cedar_err *err) { return measure_replay(b, n, true, err); }
static cedar_status replay_silent(bench *b, uint64_t n, cedar_err *err) { return measure_replay(b, n, false, err); }

/* --- the store ---------------------------------------------------------------------------------------------------- */

static cedar_status capture(bench *b, cedar_err *err) {
    cedar_observer obs = cedar_observer_silent;
    cedar_run_result a;
    obs.self = b;
    obs.request = keep_request;
    obs.step = keep_step;
    return play(b, b->requests < STORE_REQUESTS ? b->requests : STORE_REQUESTS, "1", &obs, &a, err);
}

/* Rows of one table into a new store; the time from the first row to the closed file. */
static cedar_status fill_store(bench *b, bool steps, int64_t *ns, cedar_err *err) {
    const cedar_run_row run = { .run_id = 1, .label = "bench" };
    cedar_store *store;
    cedar_status st = cedar_store_create(b->store, true, &store, err);
    if (st) return st;
    const cedar_observer *o = cedar_store_observer(store);
    st = o->run_begin(o->self, &run, err);
    int64_t start = cedar_now_ns();
    const rows *r = steps ? &b->step_rows : &b->request_rows;
    for (size_t i = 0; i < r->count && !st; i++)
        st = steps ? o->step(o->self, (const cedar_step_row *)r->v + i, err)
                   : o->request(o->self, (const cedar_request_row *)r->v + i, err);
    cedar_status closed = cedar_store_close(store, false, st ? NULL : err);
    *ns = cedar_now_ns() - start;
    return st ? st : closed;
}

static cedar_status measure_table(bench *b, uint64_t n, bool steps, cedar_err *err) {
    int64_t ours, same, plain;
    uint64_t count = 0;
    const char *table = steps ? "steps" : "requests";
    cedar_status st = fill_store(b, steps, &ours, err);
    if (!st) st = cedar_bare_insert(b->store, table, false, b->bare, &count, &same, err);
    unlink(b->bare);
    if (!st) st = cedar_bare_insert(b->store, table, true, b->bare, &count, &plain, err);
    unlink(b->bare);
    if (st) return st;
    b->v[steps ? STEP_ROWS : REQUEST_ROWS][n] = (double)count * 1e9 / (double)ours;
    b->v[steps ? STEP_SAME : REQUEST_SAME][n] = (double)same / (double)ours;
    b->v[steps ? STEP_PLAIN : REQUEST_PLAIN][n] = (double)plain / (double)ours;
    return CEDAR_OK;
}

static cedar_status store_requests(bench *b, uint64_t n, cedar_err *err) { return measure_table(b, n, false, err); }
static cedar_status store_steps(bench *b, uint64_t n, cedar_err *err) { return measure_table(b, n, true, err); }

/* --- the bare loop, and loading ----------------------------------------------------------------------------------- */

/* As many events as a replay has, a timer of each lane pending at any time; nothing is done but to take and set
 * them. */
static cedar_status bare_loop(bench *b, uint64_t n, cedar_err *err) {
    cedar_events q = { 0 };
    cedar_status st = CEDAR_OK;
    uint64_t key = cedar_rng_key(1, "bench/loop");
    for (uint32_t i = 0; i < b->lanes && !st; i++) {
        const cedar_event e = { .time_ns = (int64_t)cedar_rng_below(key, i, 1000000), .lane = i };
        st = cedar_events_push(&q, e, err);
    }
    int64_t start = cedar_now_ns();
    for (uint64_t i = 0; i < b->events && !st; i++) {
        cedar_event e = cedar_events_pop(&q);
        e.time_ns += (int64_t)cedar_rng_below(key, b->lanes + i, 1000000);
        e.sequence = 0;
        st = cedar_events_push(&q, e, err);
    }
    b->v[LOOP_BARE][n] = (double)b->events * 1e9 / (double)(cedar_now_ns() - start);
    cedar_events_free(&q);
    return st;
}

static cedar_status load(bench *b, uint64_t n, cedar_err *err) {
    cedar_corpus *c = NULL;
    const cedar_corpus_opts o = { .format = CEDAR_TRACE_AUTO, .strict = true };
    int64_t start = cedar_now_ns();
    cedar_status st = cedar_traces_find(CORPUS, b->data_dir, &o, &c, err);
    if (st) return st;
    b->v[LOAD][n] = (double)(cedar_now_ns() - start) / 1e9 / ((double)c->bytes_read / 1e8);
    cedar_corpus_free(c);
    return CEDAR_OK;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static void print_figure(const bench *b, figure f) {
    double v[REPEAT_MAX];
    memcpy(v, b->v[f], b->repeat * sizeof *v);
    cedar_sort_real(v, b->repeat);
    double median = cedar_percentile(v, b->repeat, 50), goal = figures[f].goal;
    bool met = figures[f].less ? median <= goal : median >= goal;
    const char *says = goal > 0 ? met ? "yes" : "no" : "";
    int digits = median < 100 ? 3 : 0;
    const char *name = figures[f].name;
    if (b->csv) {
        printf("\"%s\",\"%s\",%.*f,%.*f,%.*f,%" PRIu64 ",%g,%s\n", name, figures[f].unit, digits, median, digits, v[0],
               digits, v[b->repeat - 1], b->repeat, goal, says);
        return;
    }
    printf("%-36s %12.*f %12.*f %12.*f  %-17s", name, digits, median, digits, v[0], digits, v[b->repeat - 1],
           figures[f].unit);
    if (goal > 0) printf(" %s %g: %s", figures[f].less ? "<=" : ">=", goal, says);
    putchar('\n');
}

static void print_all(const bench *b) {
    if (b->csv) {
        puts("figure,unit,median,least,most,repetitions,goal,met");
    } else {
        printf("cedar %s, commit %s%s, %s\n", cedar_version(), cedar_build_commit(),
               cedar_build_dirty() ? " (changed)" : "", cedar_build_compiler());
        printf("%s, flash-e32 on h200 (modelled), replay both, %" PRIu64 " lanes, %" PRIu64 " requests, %" PRIu64
               " steps;\nsteps_per_row 4096, for \"store alone\" 1: %zu request rows, %zu step rows; %" PRIu64
               " repetitions\n\n", CORPUS, b->lanes, b->requests, b->steps, b->request_rows.count, b->step_rows.count,
               b->repeat);
        printf("%-36s %12s %12s %12s  %-17s %s\n", "", "median", "least", "most", "", "goal");
    }
    for (int f = 0; f < FIGURE_COUNT; f++) print_figure(b, (figure)f);
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

static cedar_status measure(bench *b, cedar_err *err) {
    cedar_status (*const parts[])(bench *, uint64_t, cedar_err *) = { replay_silent, bare_loop, replay_stored,
                                                                      store_requests, store_steps, load };
    int count = sizeof parts / sizeof *parts;
    cedar_status st = capture(b, err);              /* warms up, and loads model and traces */
    if (!st) st = replay_silent(b, 0, err);         /* so that the number of events is known */
    for (uint64_t n = 0; n < b->repeat && !st; n++) {
        for (int i = 0; i < count && !st; i++) st = parts[n % 2 ? count - 1 - i : i](b, n, err);
        b->v[EVENT_RATIO][n] = b->v[EVENTS][n] / b->v[LOOP_BARE][n];
        b->v[EVENT_STORE_RATIO][n] = b->v[EVENTS_STORE][n] / b->v[LOOP_BARE][n];
    }
    return st;
}

/* False after a usage error, which is never 0. */
static bool read_options(int argc, char **argv, bench *b) {
    static const struct option options[] = { { "requests", required_argument, NULL, 'n' },
                                             { "repeat", required_argument, NULL, 'r' },
                                             { "lanes", required_argument, NULL, 'l' },
                                             { "csv", no_argument, NULL, 'c' },
                                             { NULL, 0, NULL, 0 } };
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "c", options, NULL)) != -1;) {
        if (c == 'n') ok = cedar_cli_count("bench", "--requests", optarg, 1, 1000000000, &b->requests);
        else if (c == 'r') ok = cedar_cli_count("bench", "--repeat", optarg, 1, REPEAT_MAX, &b->repeat);
        else if (c == 'l') ok = cedar_cli_count("bench", "--lanes", optarg, 1, 4096, &b->lanes);
        else if (c == 'c') b->csv = true;
        else ok = !cedar_cli_usage("bench", "an option of sim is wrong");
    }
    if (ok && optind < argc) ok = !cedar_cli_usage("bench", "\"%s\" is too much", argv[optind]);
    return ok;
}

static cedar_status make_folder(bench *b, cedar_err *err) {
    const char *tmp = getenv("TMPDIR");
    snprintf(b->folder, sizeof b->folder, "%s/cedar-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(b->folder)) return cedar_fail(err, CEDAR_E_IO, "%s: cannot be made", b->folder);
    snprintf(b->store, sizeof b->store, "%s/store.db", b->folder);
    snprintf(b->bare, sizeof b->bare, "%s/bare.db", b->folder);
    return CEDAR_OK;
}

int cedar_cli_bench_sim(int argc, char **argv) {
    bench *b = cedar_calloc(1, sizeof *b);
    cedar_err err = { 0 };
    if (!b) return cedar_fail(&err, CEDAR_E_OOM, "no memory for a bench"), cedar_cli_fail(&err);
    b->requests = 200000;
    b->repeat = 5;
    b->lanes = 128;
    if (!read_options(argc, argv, b)) {
        cedar_free(b);
        return CEDAR_EXIT_USAGE;
    }
    cedar_cli_data_dir(b->data_dir, sizeof b->data_dir);
    cedar_cli_catch_signals();
    cedar_status st = cedar_run_cache_new(&b->cache, &err);
    if (!st) st = make_folder(b, &err);
    if (!st) {
        st = measure(b, &err);
        unlink(b->store);
        unlink(b->bare);
        rmdir(b->folder);
    }
    if (!st) print_all(b);
    cedar_run_cache_free(b->cache);
    cedar_free(b->request_rows.v);
    cedar_free(b->step_rows.v);
    cedar_free(b);
    return st ? cedar_cli_fail(&err) : CEDAR_EXIT_OK;
}
