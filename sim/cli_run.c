/* cedar run and cedar replay: a scenario against the simulator, into a database or against one. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/version.h"
#include "lua/hardware.h"
#include "lua/script.h"
#include "reports/reports.h"
#include "sim/audit_host.h"
#include "sim/cli_int.h"
#include "sim/cli_scenario.h"

/* One execution of a scenario by `cedar run`. */
typedef struct execution {
    char *const *paths;         /* [path_count] of the scenarios */
    int path_count;
    cedar_cli_scenario scenario;
    const char *db;
    char data_dir[1024];
    const char *const *overrides;
    size_t override_count;
    bool replace, quiet, bar;   /* bar: progress goes to a terminal */
    cedar_store *store;         /* made for the first row: a scenario that does not even start leaves no file, and the
                                 * one it was to replace as it is */
    cedar_observer observer;    /* first_run until there is a store, then the store's */
    cedar_run_cache *cache;
    int64_t runs, audits, last_bar_ns;
} execution;

/* --- the manifest ------------------------------------------------------------------------------------------------- */

static char *overrides_json(const char *const *words, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(list, json_string(words[i]));
    char *text = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return text;
}

static void cpu_name(char *out, size_t bytes) {
    char line[512];
    snprintf(out, bytes, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon) continue;
        colon[1 + strcspn(colon + 1, "\n")] = 0;
        snprintf(out, bytes, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (f) fclose(f);
}

static char *machine_json(void) {
    struct utsname u;
    char cpu[256], os[512] = "unknown";
    cpu_name(cpu, sizeof cpu);
    if (uname(&u) == 0) snprintf(os, sizeof os, "%s %s %s", u.sysname, u.release, u.machine);
    json_t *o = json_object();
    json_object_set_new(o, "cpu", json_string(cpu));
    json_object_set_new(o, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(o, "memory_bytes", json_integer((json_int_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)));
    json_object_set_new(o, "os", json_string(os));
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text;
}

/* Seed of the scenario's own random numbers: the word seed=N of the command line, else 42. */
static uint64_t scenario_seed(const char *const *words, size_t count) {
    uint64_t seed = 42;
    for (size_t i = 0; i < count; i++)
        if (strncmp(words[i], "seed=", 5) == 0) seed = strtoull(words[i] + 5, NULL, 10);
    return seed;
}

static cedar_status write_manifest(const cedar_observer *to, const cedar_cli_source *source, const char *machine,
                                   const char *overrides, cedar_err *err) {
    char hash[CEDAR_SHA256_HEX], when[32];
    cedar_sha256 s;
    cedar_sha256_init(&s);
    cedar_sha256_add(&s, source->text, strlen(source->text));
    cedar_sha256_hex(&s, hash);
    time_t now = time(NULL);
    struct tm utc;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    cedar_manifest_row row = { .cedar_version = cedar_version(),
                               .commit = cedar_build_commit(),
                               .commit_dirty = cedar_build_dirty(),
                               .compiler = cedar_build_compiler(),
                               .build_flags = cedar_build_flags(),
                               .scenario_path = source->path,
                               .scenario_text = source->text,
                               .scenario_hash = hash,
                               .overrides = overrides,
                               .machine = machine,
                               .started_at = when,
                               .seed = source->seed };
    return to->manifest(to->self, &row, err);
}

/* Whatever can be refused is refused before the database is made, since it may replace an older one. */
cedar_status cedar_cli_store(const char *db, bool replace, const cedar_cli_source *source, cedar_store **out,
                             cedar_err *err) {
    char *machine = machine_json(), *overrides = overrides_json(source->words, source->word_count);
    cedar_status st = CEDAR_OK;
    if (!machine || !overrides)
        st = cedar_fail(err, CEDAR_E_ARG, "a key=value word is not valid UTF-8, or memory ran out");
    if (!st) st = cedar_store_create(db, replace, out, err);
    if (!st) st = write_manifest(cedar_store_observer(*out), source, machine, overrides, err);
    free(machine);
    free(overrides);
    return st;
}

static cedar_status need_store(execution *x, cedar_err *err) {
    if (x->store) return CEDAR_OK;
    const cedar_cli_source source = { .path = x->scenario.path, .text = x->scenario.text, .words = x->overrides,
                                      .word_count = x->override_count,
                                      .seed = scenario_seed(x->overrides, x->override_count) };
    cedar_status st = cedar_cli_store(x->db, x->replace, &source, &x->store, err);
    if (x->store) x->observer = *cedar_store_observer(x->store);
    return st;
}

static cedar_status first_run(void *self, const cedar_run_row *row, cedar_err *err) {
    execution *x = self;
    cedar_status st = need_store(x, err);
    return st ? st : x->observer.run_begin(x->observer.self, row, err);
}

cedar_status cedar_cli_check_place(const char *db, cedar_err *err) {
    const char *slash = strrchr(db, '/');
    char *folder = cedar_strdup(slash ? db : ".");
    if (!folder) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its name", db);
    if (slash) folder[slash > db ? slash - db : 1] = 0;
    bool bad = access(folder, W_OK | X_OK) != 0;
    int why = errno;
    cedar_free(folder);
    return bad ? cedar_fail(err, CEDAR_E_IO, "%s: cannot be created: %s", db, strerror(why)) : CEDAR_OK;
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

static void clear_bar(const execution *x) {
    if (x->bar) fputs("\r\033[K", stderr);
}

static void show_progress(void *self, const cedar_progress *p) {
    execution *x = self;
    if (!x->bar || p->elapsed_wall_ns - x->last_bar_ns < 100000000) return;
    x->last_bar_ns = p->elapsed_wall_ns;
    int cells = 24, full = p->total ? (int)(p->done * (uint64_t)cells / p->total) : 0; /* warm-up can go beyond */
    char bar[32];
    for (int i = 0; i < cells; i++) bar[i] = i < full ? '#' : '.';
    bar[cells] = 0;
    double seconds = (double)p->elapsed_wall_ns / 1e9;
    char of[24] = "";
    if (p->total) snprintf(of, sizeof of, "/%" PRIu64, p->total);
    fprintf(stderr, "\r\033[K%.20s [%s] %" PRIu64 "%s requests, %" PRIu64 " steps, %.0f s", p->label, bar, p->done, of,
            p->steps, seconds);
}

/* --- what a scenario may do --------------------------------------------------------------------------------------- */

/* A run with keep = false: nobody hears of it but the scenario. */
static bool is_kept(const cedar_run_opts *opts) { return strcmp(cedar_opts_get(opts, "keep"), "true") == 0; }

static cedar_status play_unkept(const cedar_run_opts *opts, const char *data_dir, cedar_run_cache *cache,
                                cedar_run_result *out, cedar_err *err) {
    const cedar_run_host host = { .observer = &cedar_observer_silent, .data_dir = data_dir, .stop = cedar_cli_stop(),
                                  .hardware = cedar_hardware_find, .cache = cache };
    *out = (cedar_run_result){ 0 };
    return cedar_run(opts, 0, &host, out, err);
}

static cedar_status host_run(void *self, const cedar_run_opts *opts, cedar_run_result *out, cedar_err *err) {
    execution *x = self;
    if (!is_kept(opts)) return play_unkept(opts, x->data_dir, x->cache, out, err);
    cedar_status st = x->store ? CEDAR_OK : cedar_cli_check_place(x->db, err);
    if (st) return st;
    cedar_run_host host = { .observer = &x->observer, .data_dir = x->data_dir, .progress = show_progress, .self = x,
                            .stop = cedar_cli_stop(), .hardware = cedar_hardware_find, .cache = x->cache };
    x->last_bar_ns = 0;
    *out = (cedar_run_result){ 0 };
    st = cedar_run(opts, ++x->runs, &host, out, err);
    clear_bar(x);
    return st;
}

static cedar_status first_audit_row(void *self, cedar_audit_kind kind, const void *row, cedar_err *err) {
    execution *x = self;
    cedar_status st = need_store(x, err);
    const cedar_audit_observer *store = st ? NULL : cedar_store_audit_observer(x->store);
    return st ? st : store->row(store->self, kind, row, err);
}

static void show_audit_progress(void *self, const char *label, uint64_t done, uint64_t total, int64_t elapsed_ns) {
    const cedar_progress p = { .label = *label ? label : "audit", .done = done, .total = total, .steps = done,
                               .elapsed_wall_ns = elapsed_ns };
    show_progress(self, &p);
}

static cedar_status host_audit(void *self, const cedar_audit_opts *opts, cedar_audit_result *out, cedar_err *err) {
    execution *x = self;
    cedar_status st = x->store ? CEDAR_OK : cedar_cli_check_place(x->db, err);
    if (st) return st;
    const cedar_audit_observer rows = { x, first_audit_row };
    const cedar_audit_setting setting = { .observer = &rows, .data_dir = x->data_dir, .progress = show_audit_progress,
                                          .self = x, .stop = cedar_cli_stop(), .cache = x->cache };
    x->last_bar_ns = 0;
    st = cedar_audit_play(opts, ++x->audits, &setting, out, err);
    clear_bar(x);
    return st;
}

static cedar_status host_paired(void *self, const cedar_paired_opts *opts, cedar_paired *out, cedar_err *err) {
    const execution *x = self;
    return cedar_cli_paired(x->db, opts, out, err);
}

static cedar_status host_expect(void *self, const char *what, bool ok, const char *detail, cedar_err *err) {
    execution *x = self;
    cedar_status st = need_store(x, err);
    if (st) return st;
    if (!ok) fprintf(stderr, "cedar: expectation failed: %s%s%s\n", what, *detail ? ": " : "", detail);
    cedar_expect_row row = { .what = what, .detail = detail, .ok = ok };
    return x->observer.expect(x->observer.self, &row, err);
}

static cedar_status host_finding(void *self, cedar_finding kind, const void *row, cedar_err *err) {
    execution *x = self;
    cedar_status st = need_store(x, err);
    return st ? st : x->observer.finding(x->observer.self, kind, row, err);
}

/* A file as given, or else under the data directory. */
static cedar_status find_published(const char *data_dir, const char *path, cedar_published_list **out, cedar_err *err) {
    char found[2048];
    int n = snprintf(found, sizeof found, "%s", path);
    if (access(path, R_OK)) n = snprintf(found, sizeof found, "%s/%s", data_dir, path);
    if (n >= (int)sizeof found || access(found, R_OK))
        return cedar_fail(err, CEDAR_E_IO, "%.200s: no such file, neither here nor under %.200s", path, data_dir);
    return cedar_published_load(found, out, err);
}

static cedar_status host_published(void *self, const char *path, cedar_published_list **out, cedar_err *err) {
    return find_published(((const execution *)self)->data_dir, path, out, err);
}

static cedar_status host_shape(void *self, const char *model, cedar_shape *out, cedar_err *err) {
    return cedar_shape_figures(model, ((const execution *)self)->data_dir, out, err);
}

static void host_print(void *self, const char *text) {
    (void)self;
    puts(text);
    fflush(stdout);
}

/* --- cedar run ---------------------------------------------------------------------------------------------------- */

/* NAME.lua -> NAME.db in the current folder. */
static void default_db(const char *scenario, char *out, size_t bytes) {
    const char *slash = strrchr(scenario, '/'), *name = slash ? slash + 1 : scenario;
    size_t n = strlen(name);
    if (n > 4 && strcmp(name + n - 4, ".lua") == 0) n -= 4;
    snprintf(out, bytes, "%.*s.db", (int)n, name);
}

/* The outcome of the scenario, then that of closing the database; the summary comes from the database. */
static int end_run(execution *x, cedar_status st, cedar_err *err) {
    int code = st ? cedar_cli_fail(err) : CEDAR_EXIT_OK;
    bool finished = st == CEDAR_OK || st == CEDAR_E_EXPECT;
    cedar_err why = { 0 };
    if (!x->store) {
        if (finished) fputs("cedar: the scenario stores nothing, so no database was written\n", stderr);
        return code;
    }
    st = cedar_store_close(x->store, finished, &why);
    if (st) return cedar_cli_fail(&why);
    if (!x->quiet && (x->runs || x->audits)) {
        st = cedar_report_brief(x->db, cedar_cli_program(), stdout, cedar_cli_width(stdout), cedar_cli_color(stdout),
                                &why);
        if (st) return cedar_cli_fail(&why);
    }
    fprintf(stderr, "%swrote %s\n", finished ? "" : "not finished; ", x->db);
    return code;
}

static int execute(execution *x) {
    cedar_err err = { 0 };
    cedar_status st = cedar_cli_scenario_read(x->paths, x->path_count, x->data_dir, &x->scenario, &err);
    if (!st && access(x->db, F_OK) == 0 && !x->replace)
        st = cedar_fail(&err, CEDAR_E_IO, "%s exists; add --replace to overwrite it, or -o FILE to write elsewhere",
                        x->db);
    if (!st) st = cedar_run_cache_new(&x->cache, &err);
    if (st) return cedar_cli_fail(&err);
    x->observer = (cedar_observer){ .self = x, .run_begin = first_run };
    cedar_script_host host = { .self = x, .run = host_run, .audit = host_audit, .paired = host_paired,
                               .expect = host_expect, .published = host_published, .shape = host_shape,
                               .finding = host_finding, .print = host_print };
    cedar_script_opts o = { .overrides = x->overrides, .override_count = x->override_count,
                            .seed = scenario_seed(x->overrides, x->override_count),
                            .stop = cedar_cli_stop() };
    cedar_cli_catch_signals();
    st = cedar_cli_scenario_play(&x->scenario, &o, &host, &err);
    cedar_run_cache_free(x->cache);
    return end_run(x, st, &err);
}

int cedar_cli_run(int argc, char **argv) {
    static const struct option options[] = { { "output", required_argument, NULL, 'o' },
                                             { "replace", no_argument, NULL, 'r' },
                                             { "quiet", no_argument, NULL, 'q' },
                                             { NULL, 0, NULL, 0 } };
    execution x = { 0 };
    for (int c; (c = getopt_long(argc, argv, "o:rq", options, NULL)) != -1;) {
        if (c == 'o' && !*optarg) return cedar_cli_usage("run", "the name of the database is empty");
        if (c == 'o') x.db = optarg;
        else if (c == 'r') x.replace = true;
        else if (c == 'q') x.quiet = true;
        else return cedar_cli_usage("run", "an option is wrong");
    }
    if (optind == argc) return cedar_cli_usage("run", "give a scenario");
    x.paths = argv + optind;
    for (; optind < argc && !strchr(argv[optind], '='); optind++, x.path_count++) {
        if (!*argv[optind]) return cedar_cli_usage("run", "the name of the scenario is empty");
        const char *end = strrchr(argv[optind], '.');
        if (x.path_count && (!end || strcmp(end, ".lua")))
            return cedar_cli_usage("run", "\"%s\" is neither a key=value word nor another scenario, NAME.lua",
                                   argv[optind]);
    }
    if (!x.path_count)
        return cedar_cli_usage("run", "give a scenario before %.*s", (int)strcspn(argv[optind], "="), argv[optind]);
    for (int i = optind; i < argc; i++)
        if (!strchr(argv[i], '=')) return cedar_cli_usage("run", "\"%s\" is not a key=value word", argv[i]);
    x.overrides = (const char *const *)argv + optind;
    x.override_count = (size_t)(argc - optind);
    x.bar = !x.quiet && isatty(STDERR_FILENO) && !(getenv("TERM") && strcmp(getenv("TERM"), "dumb") == 0);
    char db[1024];
    default_db(x.paths[0], db, sizeof db);
    if (!x.db) x.db = db;
    cedar_cli_data_dir(x.data_dir, sizeof x.data_dir);
    int code = execute(&x);
    cedar_cli_scenario_free(&x.scenario);
    return code;
}

/* --- cedar replay ------------------------------------------------------------------------------------------------- */

typedef struct replay {
    cedar_stored *stored;
    const char *db;
    char data_dir[1024];
    cedar_run_cache *cache;
    uint32_t runs, audits, different;
    uint32_t skipped;           /* never ended, so there is no hash to compare with */
    uint64_t steps;             /* of the run that plays */
    uint64_t stop_after;        /* an interrupted run ends behind this step */
    bool interrupted;
    volatile int stop;          /* the user's wish, or the end of an interrupted run */
    bool verbose, headed;       /* headed: the names of the columns are printed */
} replay;

static void put_head(replay *x) {
    if (!x->headed) printf("%4s  %-24s  %-16s  %-16s  %8s\n", "run", "label", "recorded", "replayed", "steps");
    x->headed = true;
}

static cedar_status watch_step(void *self, const cedar_step_row *row, cedar_err *err) {
    replay *x = self;
    (void)err;
    x->steps = (uint64_t)row->step_id;
    if (*cedar_cli_stop() || (x->interrupted && x->steps >= x->stop_after)) x->stop = 1;
    return CEDAR_OK;
}

static cedar_status play_again(replay *x, const cedar_stored_run *old, const cedar_run_opts *opts,
                               cedar_run_result *out, cedar_err *err) {
    cedar_run_opts *o = NULL;
    cedar_observer obs = cedar_observer_silent;
    obs.self = x;
    obs.step = watch_step;
    cedar_run_host host = { .observer = &obs, .data_dir = x->data_dir, .recorded = &old->recorded, .stop = &x->stop,
                            .hardware = cedar_hardware_find, .cache = x->cache };
    x->steps = 0;
    x->interrupted = strcmp(old->status, "interrupted") == 0;
    x->stop_after = old->recorded.count;
    x->stop = x->interrupted && !x->stop_after;
    cedar_status st = cedar_opts_copy(opts, &o, err);
    /* modelled time needs no recording: the model gives the same durations again */
    bool modelled = !st && strcmp(cedar_opts_get(o, "clock"), "modelled") == 0;
    if (!st) st = modelled ? cedar_opts_set(o, "steps_per_row", "1", err) : cedar_opts_set(o, "clock", "recorded", err);
    if (!st) st = cedar_run(o, old->run_id, &host, out, err);
    cedar_opts_free(o);
    if (st == CEDAR_E_INTERRUPT && x->interrupted && !*cedar_cli_stop()) st = CEDAR_OK;
    return st;
}

static cedar_status replay_run(void *self, const cedar_run_opts *opts, cedar_run_result *out, cedar_err *err) {
    replay *x = self;
    if (!is_kept(opts)) return play_unkept(opts, x->data_dir, x->cache, out, err);
    if (x->runs == x->stored->run_count && !x->stored->finished)
        return cedar_fail(err, CEDAR_E_INTERRUPT, "the recording ends here");
    if (x->runs == x->stored->run_count) {
        x->runs++;
        return cedar_fail(err, CEDAR_E_DIVERGED, "the scenario plays more runs than the %u of the database",
                          x->stored->run_count);
    }
    const cedar_stored_run *old = &x->stored->runs[x->runs++];
    if (strcmp(cedar_opts_get(opts, "backend"), "http") == 0)
        return cedar_fail(err, CEDAR_E_ARG, "run %" PRId64 " was played at an endpoint in real time, which does not "
                          "repeat; such runs cannot be played again", old->run_id);
    if (strcmp(old->status, "finished") && strcmp(old->status, "interrupted")) {
        x->skipped++;
        put_head(x);
        printf("%4" PRId64 "  %-24.24s  not compared: its status is \"%s\"\n", old->run_id, old->label, old->status);
        return cedar_fail(err, CEDAR_E_INTERRUPT, "the recorded run did not end");
    }
    cedar_status st = play_again(x, old, opts, out, err);
    if (st && st != CEDAR_E_DIVERGED) return st;
    bool same = !st && out->event_hash == old->event_hash;
    x->different += !same;
    put_head(x);
    printf("%4" PRId64 "  %-24.24s  %016" PRIx64 "  %016" PRIx64 "  %8" PRIu64 "  %s\n", old->run_id, old->label,
           old->event_hash, st ? 0 : out->event_hash, x->steps, same ? "same" : "DIFFERENT");
    fflush(stdout);
    if (st) printf("      %s\n", err->msg);
    if (st || !x->interrupted) return st;
    return cedar_fail(err, CEDAR_E_INTERRUPT, "the recorded run was interrupted here");   /* as the scenario saw it */
}

static cedar_status ignore_audit_row(void *self, cedar_audit_kind kind, const void *row, cedar_err *err) {
    (void)self;
    (void)kind;
    (void)row;
    (void)err;
    return CEDAR_OK;
}

/* An audit needs no recording: it is played again, and its result must have the same hash. */
static cedar_status replay_audit(void *self, const cedar_audit_opts *opts, cedar_audit_result *out, cedar_err *err) {
    replay *x = self;
    const cedar_audit_observer nobody = { x, ignore_audit_row };
    const cedar_audit_setting setting = { .observer = &nobody, .data_dir = x->data_dir, .self = x,
                                          .stop = cedar_cli_stop(), .cache = x->cache };
    if (x->audits == x->stored->audit_count && !x->stored->finished)
        return cedar_fail(err, CEDAR_E_INTERRUPT, "the recording ends here");
    const cedar_stored_audit *old = x->audits < x->stored->audit_count ? &x->stored->audits[x->audits] : NULL;
    x->audits++;
    if (!old) return cedar_fail(err, CEDAR_E_DIVERGED, "the scenario plays more audits than the %u of the database",
                                x->stored->audit_count);
    if (strcmp(old->status, "finished")) {
        x->skipped++;
        put_head(x);
        printf("%4u  %-24.24s  not compared: its status is \"%s\"\n", x->audits, old->label, old->status);
        return cedar_fail(err, CEDAR_E_INTERRUPT, "the recorded audit did not end");
    }
    cedar_status st = cedar_audit_play(opts, x->audits, &setting, out, err);
    if (st) return st;
    bool same = out->result_hash == old->result_hash;
    x->different += !same;
    put_head(x);
    printf("%4u  audit %-18.18s  %016" PRIx64 "  %016" PRIx64 "  %8" PRIu64 "  %s\n", x->audits, old->label,
           old->result_hash, out->result_hash, out->positions, same ? "same" : "DIFFERENT");
    fflush(stdout);
    return CEDAR_OK;
}

/* What the recorded runs say, since these have the durations of those. */
static cedar_status replay_paired(void *self, const cedar_paired_opts *opts, cedar_paired *out, cedar_err *err) {
    const replay *x = self;
    return cedar_cli_paired(x->db, opts, out, err);
}

static cedar_status replay_expect(void *self, const char *what, bool ok, const char *detail, cedar_err *err) {
    (void)self;
    (void)what;
    (void)ok;
    (void)detail;
    (void)err;
    return CEDAR_OK;
}

/* The words of a JSON array of strings. words[count] point into *doc, which the caller gives back with json_decref. */
static cedar_status parse_overrides(const char *text, json_t **doc, const char ***words, size_t *count,
                                    cedar_err *err) {
    json_error_t why;
    *doc = json_loads(text && *text ? text : "[]", 0, &why);
    *count = json_array_size(*doc);
    *words = cedar_calloc(*count, sizeof **words);
    if (!*words) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu words", *count);
    for (size_t i = 0; i < *count; i++) (*words)[i] = json_string_value(json_array_get(*doc, i));
    bool good = json_is_array(*doc);
    for (size_t i = 0; i < *count; i++) good = good && (*words)[i];
    return good ? CEDAR_OK : cedar_fail(err, CEDAR_E_FORMAT, "the database's list of key=value words is damaged");
}

static int verdict(const replay *x, cedar_status st, cedar_err *err) {
    bool ended = !st || st == CEDAR_E_EXPECT || (st == CEDAR_E_INTERRUPT && !*cedar_cli_stop());
    if (*cedar_cli_stop() || (!ended && st != CEDAR_E_DIVERGED && !x->different)) return cedar_cli_fail(err);
    uint32_t played = x->runs + x->audits, stored = x->stored->run_count + x->stored->audit_count;
    bool more = x->runs > x->stored->run_count || x->audits > x->stored->audit_count;
    uint32_t missing = (x->runs < x->stored->run_count ? x->stored->run_count - x->runs : 0) +
                       (x->audits < x->stored->audit_count ? x->stored->audit_count - x->audits : 0);
    if (missing) printf("%u run%s of the database did not come up again\n", missing, missing == 1 ? "" : "s");
    if (more) printf("%s\n", err->msg);
    if (!x->different && !missing && !more) {
        uint32_t compared = played - x->skipped;
        if (!compared) {
            printf("nothing was compared: no run of the database came to its end\n");
            return CEDAR_EXIT_ENVIRONMENT;
        }
        printf("%u run%s, all the same%s\n", compared, compared == 1 ? "" : "s",
               x->skipped ? "; the last was not compared" : "");
        return CEDAR_EXIT_OK;
    }
    printf("%u of %u runs differ\n", x->different + missing, stored);
    return CEDAR_EXIT_DIVERGED;
}

static cedar_status replay_published(void *self, const char *path, cedar_published_list **out, cedar_err *err) {
    return find_published(((const replay *)self)->data_dir, path, out, err);
}

static cedar_status replay_shape(void *self, const char *model, cedar_shape *out, cedar_err *err) {
    return cedar_shape_figures(model, ((const replay *)self)->data_dir, out, err);
}

static int replay_all(replay *x, const char *db) {
    cedar_err err = { 0 };
    x->db = db;
    json_t *doc = NULL;
    const char **words = NULL;
    size_t count = 0;
    cedar_status st = cedar_stored_load(db, &x->stored, &err);
    if (!st) st = cedar_run_cache_new(&x->cache, &err);
    if (!st) st = parse_overrides(x->stored->overrides, &doc, &words, &count, &err);
    int code;
    if (st) {
        code = cedar_cli_fail(&err);
    } else {
        cedar_script_host host = {
            .self = x, .published = replay_published, .shape = replay_shape, .run = replay_run,
            .audit = replay_audit, .paired = replay_paired, .expect = replay_expect,
            .print = x->verbose ? host_print : NULL
        };
        const cedar_cli_scenario scenario = { .path = x->stored->scenario_path, .text = x->stored->scenario_text,
                                              .bytes = strlen(x->stored->scenario_text) };
        cedar_script_opts o = { .overrides = words, .override_count = count,
                                .seed = scenario_seed(words, count), .stop = cedar_cli_stop() };
        cedar_cli_catch_signals();
        st = cedar_cli_scenario_play(&scenario, &o, &host, &err);
        code = verdict(x, st, &err);
    }
    cedar_free(words);
    json_decref(doc);
    cedar_run_cache_free(x->cache);
    cedar_stored_free(x->stored);
    return code;
}

int cedar_cli_replay(int argc, char **argv) {
    static const struct option options[] = { { "verbose", no_argument, NULL, 'v' }, { NULL, 0, NULL, 0 } };
    replay x = { 0 };
    for (int c; (c = getopt_long(argc, argv, "v", options, NULL)) != -1;) {
        if (c == 'v') x.verbose = true;
        else return cedar_cli_usage("replay", "an option is wrong");
    }
    if (optind + 1 != argc) return cedar_cli_usage("replay", "give one database");
    cedar_cli_data_dir(x.data_dir, sizeof x.data_dir);
    return replay_all(&x, argv[optind]);
}
