/* cedar calibrate: a hardware description whose efficiencies are fitted to the steps that a GPU run logged. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "lua/hardware.h"
#include "reports/reports.h"
#include "sim/calibrate.h"
#include "sim/cli_int.h"
#include "sim/sim_int.h"

enum { SHAPES_MAX = 64 };       /* graphs that the engine keeps; the least recently used one makes room */

typedef struct calibration {
    const char *db, *out, *base_name, *device;
    cedar_run_range runs;
    uint32_t held, of;
    uint64_t seed;
    char data_dir[1024];
    cedar_logged *logged;
    cedar_config *config;
    cedar_graphs graphs;
    cedar_calibrate_step *steps;
    size_t step_count;
    cedar_hardware hw;
    cedar_hardware_sources sources;
    cedar_calibrate_error held_error;
    bool replace;
    cedar_calibrate_figure figures[CEDAR_CALIBRATE_FIGURES];
    uint32_t figure_count;
} calibration;

static const char *file_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* --- what can be fitted to ---------------------------------------------------------------------------------------- */

static int word_of(const char *word, const char *const *words, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(word, words[i])) return i;
    return -1;
}

static int graphs_of(const cedar_logged_run *r) {
    static const char *const words[] = { "full", "split", "off" };     /* in the order of cedar_graphs */
    return word_of(r->graphs, words, 3);
}

static int cut_of(const cedar_logged_run *r) {
    static const char *const words[] = { "after", "inside", "inside_clip" };    /* in the order of cedar_cut */
    return word_of(r->cut, words, 3);
}

static cedar_status check_run(const calibration *x, const cedar_logged_run *r, cedar_err *err) {
    const cedar_logged_run *first = &x->logged->runs[0];
    long long id = (long long)r->run_id;
    if (strcmp(r->clock, "measured"))
        return cedar_fail(err, CEDAR_E_ARG,
                          "%s: run %lld was played with clock \"%s\"; only measured steps can be fitted", x->db, id,
                          r->clock);
    if (strcmp(r->backend, "cuda"))
        return cedar_fail(err, CEDAR_E_ARG,
                          "%s: run %lld ran on backend \"%s\"; the cost model prices GPUs, so a run on \"cuda\" is "
                          "needed", x->db, id, r->backend);
    if (strcmp(r->model, first->model) || strcmp(r->arith, first->arith) || strcmp(r->graphs, first->graphs))
        return cedar_fail(err, CEDAR_E_ARG,
                          "%s: run %lld (%s, %s, graphs %s) differs from run %lld (%s, %s, graphs %s) in model, arith "
                          "or graphs; choose with --run", x->db, id, r->model, r->arith, r->graphs,
                          (long long)first->run_id, first->model, first->arith, first->graphs);
    if (strcmp(r->device, first->device))
        return cedar_fail(err, CEDAR_E_ARG, "%s: run %lld ran on \"%s\", run %lld on \"%s\"; choose with --run",
                          x->db, id, r->device, (long long)first->run_id, first->device);
    if (graphs_of(r) < 0 || cut_of(r) < 0)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: run %lld has graphs \"%s\" and cut \"%s\"; this program does not know them", x->db, id,
                          r->graphs, r->cut);
    return CEDAR_OK;
}

/* Steps of several GPUs fitted to a description of one would look like one that is faster than it is. */
static cedar_status check_gpus(const calibration *x, cedar_err *err) {
    for (uint32_t i = 0; i < x->logged->run_count; i++) {
        const cedar_logged_run *r = &x->logged->runs[i];
        if ((double)r->gpus == x->hw.gpus) continue;
        return cedar_fail(err, CEDAR_E_ARG,
                          "%s: run %lld has gpus = %u, but hardware \"%s\" describes %g; choose another with "
                          "--hardware, or other runs with --run", x->db, (long long)r->run_id, r->gpus, x->hw.name,
                          x->hw.gpus);
    }
    return CEDAR_OK;
}

static cedar_status load(calibration *x, cedar_err *err) {
    cedar_status st = cedar_logged_load(x->db, x->runs, &x->logged, err);
    for (uint32_t i = 0; i < (st ? 0 : x->logged->run_count) && !st; i++) st = check_run(x, &x->logged->runs[i], err);
    if (st) return st;
    x->graphs = (cedar_graphs)graphs_of(&x->logged->runs[0]);
    if (!x->device) x->device = x->logged->runs[0].device;
    if (!*x->device) x->device = "a GPU that the database does not name";
    x->config = cedar_calloc(1, sizeof *x->config);
    if (!x->config) return cedar_fail(err, CEDAR_E_OOM, "no memory for a model's shape");
    st = cedar_shape_find(x->logged->runs[0].model, x->data_dir, x->config, err);
    if (st) return cedar_fail_in(err, st, "%s: its steps cannot be priced", x->db);
    st = cedar_hardware_find_sources(x->data_dir, x->base_name, &x->hw, &x->sources, err);
    return st ? st : check_gpus(x, err);
}

/* What tells one captured graph from another (engine/cuda/backend.cu). */
typedef struct shape {
    uint32_t rows, kept, entries, logits;
    bool trimmed;
} shape;

/* Whether a step like it ran lately; the list is in the order of last use. */
static bool seen_before(shape list[SHAPES_MAX], uint32_t *count, const shape *s) {
    uint32_t at = 0;
    while (at < *count && (list[at].rows != s->rows || list[at].kept != s->kept || list[at].entries != s->entries ||
                           list[at].logits != s->logits || list[at].trimmed != s->trimmed)) at++;
    bool seen = at < *count;
    if (!seen && *count < SHAPES_MAX) at = (*count)++;
    if (at == SHAPES_MAX) at--;
    memmove(list + 1, list, at * sizeof *list);
    list[0] = *s;
    return seen;
}

static cedar_calibrate_step step_of(const cedar_logged_run *r, const cedar_logged_step *s, bool seen) {
    cedar_calibrate_use use = !s->known || !s->duration_ns ? CEDAR_CALIBRATE_UNKNOWN
                              : seen                       ? CEDAR_CALIBRATE_FIT
                                                           : CEDAR_CALIBRATE_FIRST;
    return (cedar_calibrate_step){
        .load = { .rows = s->rows, .context = s->context, .kept_rows = s->kept_rows, .kept_context = s->kept_context,
                  .logits = s->logits, .trimmed = s->trimmed },
        .cut = (cedar_cut)cut_of(r), .ns = (double)s->duration_ns, .decode_entries = s->decode_entries,
        .prefill_entries = s->prefill_entries, .use = use
    };
}

static cedar_status collect(calibration *x, cedar_err *err) {
    size_t all = 0;
    for (uint32_t i = 0; i < x->logged->run_count; i++) all += x->logged->runs[i].step_count;
    x->steps = cedar_calloc(all, sizeof *x->steps);
    if (!x->steps) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu steps", all);
    for (uint32_t i = 0; i < x->logged->run_count; i++) {
        const cedar_logged_run *r = &x->logged->runs[i];
        shape shapes[SHAPES_MAX];
        uint32_t shape_count = 0;
        for (uint32_t n = 0; n < r->step_count; n++) {
            const cedar_logged_step *s = &r->steps[n];
            const shape key = { s->rows, s->kept_rows, s->decode_entries + s->prefill_entries, s->logits, s->trimmed };
            x->steps[x->step_count++] = step_of(r, s, seen_before(shapes, &shape_count, &key));
        }
    }
    return CEDAR_OK;
}

/* --- the table of errors ------------------------------------------------------------------------------------------ */

/* A line holds steps of one kind and about as many rows: (kind * 2 + trimmed) * 32 + log2 of rows. */
enum { LINES_MAX = 3 * 2 * 32 };

static uint32_t line_of(const cedar_calibrate_step *s) {
    uint32_t kind = !s->prefill_entries ? 0 : s->decode_entries ? 2 : 1, log2 = 0;
    while (log2 < 31 && s->load.rows >= (double)(2ull << log2)) log2++;
    return (kind * 2 + s->load.trimmed) * 32 + log2;
}

static void name_line(uint32_t line, char out[64]) {
    static const char *const kinds[] = { "decode", "prefill", "mixed" };
    uint64_t least = 1ull << line % 32;
    int n = snprintf(out, 64, "%s%s, ", kinds[line / 64], line / 32 % 2 ? ", trimmed" : "");
    if (least == 1) snprintf(out + n, 64 - (size_t)n, "1 row");
    else snprintf(out + n, 64 - (size_t)n, "%llu-%llu rows", (unsigned long long)least,
                  (unsigned long long)(2 * least - 1));
}

static void print_errors(const cedar_calibrate_error *e) {
    if (e->steps) printf("%7u%7.2f%8.2f%+8.2f", e->steps, 100 * e->mean, 100 * e->worst, 100 * e->bias);
    else printf("%7s%23s", "-", "");
}

static void print_line(const char *name, cedar_calibrate_error e[CEDAR_CALIBRATE_USES]) {
    for (int u = 0; u < CEDAR_CALIBRATE_USES; u++) cedar_calibrate_error_end(&e[u]);
    printf("%-32s", name);
    print_errors(&e[CEDAR_CALIBRATE_FIT]);
    print_errors(&e[CEDAR_CALIBRATE_HELD]);
    const cedar_calibrate_error *first = &e[CEDAR_CALIBRATE_FIRST];
    if (first->steps) printf("%7u%+9.2f%+10.2f", first->steps, 100 * first->bias, first->excess_ns / 1e6);
    putchar('\n');
}

static cedar_status print_table(calibration *x, cedar_err *err) {
    cedar_cost k;
    cedar_status st = cedar_cost_make(x->config, &x->hw, &(cedar_cost_switches){ .graphs = x->graphs }, &k, err);
    cedar_calibrate_error(*lines)[CEDAR_CALIBRATE_USES] = st ? NULL : cedar_calloc(LINES_MAX + 1, sizeof *lines);
    if (st) return st;
    if (!lines) return cedar_fail(err, CEDAR_E_OOM, "no memory for a table");
    for (size_t i = 0; i < x->step_count; i++) {
        const cedar_calibrate_step *s = &x->steps[i];
        if (s->use == CEDAR_CALIBRATE_UNKNOWN) continue;
        double ns = (double)cedar_cost_load_ns(&k, s->cut, &s->load, NULL);
        cedar_calibrate_error_add(&lines[line_of(s)][s->use], ns, s->ns);
        cedar_calibrate_error_add(&lines[LINES_MAX][s->use], ns, s->ns);
    }
    printf("\n%-32s%30s%30s%26s\n%-32s", "errors in %", "fitted", "held out", "first of a shape", "step");
    for (int i = 0; i < 2; i++) printf("%7s%7s%8s%8s", "steps", "mean", "worst", "bias");
    printf("%7s%9s%10s\n", "steps", "bias", "more, ms");
    for (uint32_t i = 0; i < LINES_MAX; i++) {
        char name[64];
        name_line(i, name);
        bool any = false;
        for (int u = 0; u < CEDAR_CALIBRATE_USES; u++) any |= lines[i][u].steps > 0;
        if (any) print_line(name, lines[i]);
    }
    print_line("all", lines[LINES_MAX]);
    x->held_error = lines[LINES_MAX][CEDAR_CALIBRATE_HELD];
    cedar_free(lines);
    return CEDAR_OK;
}

static void count_uses(const calibration *x, uint32_t counts[CEDAR_CALIBRATE_USES]) {
    memset(counts, 0, CEDAR_CALIBRATE_USES * sizeof *counts);
    for (size_t i = 0; i < x->step_count; i++) counts[x->steps[i].use]++;
}

static void print_steps(const calibration *x) {
    uint32_t n[CEDAR_CALIBRATE_USES];
    count_uses(x, n);
    const cedar_logged_run *first = &x->logged->runs[0];
    printf("%s: %u run%s of %s, %s, graphs %s; %zu steps\n", x->db, x->logged->run_count,
           x->logged->run_count == 1 ? "" : "s", first->model, first->arith, first->graphs, x->step_count);
    printf("  fitted    %7u\n", n[CEDAR_CALIBRATE_FIT]);
    if (x->out)
        printf("  held out  %7u  about %u/%u, in blocks of %d steps from stream \"calibrate.held_out\", seed %llu\n",
               n[CEDAR_CALIBRATE_HELD], x->held, x->of, CEDAR_CALIBRATE_BLOCK, (unsigned long long)x->seed);
    else
        printf("  held out  %7u  all: without -o nothing is fitted, %s is compared\n", n[CEDAR_CALIBRATE_HELD],
               x->base_name);
    printf("  left out  %7u  first of a shape, or first again after %d others: a graph is captured then\n",
           n[CEDAR_CALIBRATE_FIRST], SHAPES_MAX);
    printf("  left out  %7u  with sequences whose positions table requests does not tell\n\n",
           n[CEDAR_CALIBRATE_UNKNOWN]);
}

/* What to think of a fitted figure. */
static const char *doubt_of(const cedar_calibrate_figure *f) {
    bool low = f->after < 2 * f->key->lo, high = f->after >= f->key->hi;
    return low || high ? ": at its bound, so a term of the model is off" : f->slope < 0.01 ? ": hardly told" : "";
}

static void print_figures(const calibration *x) {
    printf("%-22s%12s%12s  %s\n", "figure", file_of(x->base_name), "fitted", "a change of 1 % moves prices by (rms)");
    for (uint32_t i = 0; i < x->figure_count; i++) {
        const cedar_calibrate_figure *f = &x->figures[i];
        printf("%-22s%12.4g%12.4g  %.3f %%%s\n", f->key->key, f->before, f->after, f->slope, doubt_of(f));
    }
    printf("all other figures are those of %s, attention_efficiency and step_host_ns among them\n",
           file_of(x->base_name));
}

/* --- the description ---------------------------------------------------------------------------------------------- */

static const char *const sections[] = { "what it is", "memory", "compute", "launches and host", "links" };

enum { SECTIONS = sizeof sections / sizeof *sections };

static int section_of(const char *key) {
    if (strstr(key, "link") || strstr(key, "allreduce")) return 4;
    if (strstr(key, "launch") || strstr(key, "kernels") || strstr(key, "host") ||
        strstr(key, "layer_ns")) return 3;
    if (strstr(key, "copy") || strstr(key, "memory") || strstr(key, "passes")) return 1;
    return strstr(key, "flop") || strstr(key, "efficiency") || !strcmp(key, "overlap") ? 2 : 0;
}

static void put_lua_text(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c == 127) fprintf(to, "\\%03u", c);
        else if (c == '"' || c == '\\') fprintf(to, "\\%c", c);
        else fputc(c, to);
    }
    fputc('"', to);
}

static void put_number(FILE *to, double v) {
    char text[32];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    fputs(text, to);
}

/* "run 2", "runs 1, 2, 3", or how many. */
static void name_runs(const cedar_logged *l, char out[120]) {
    if (l->run_count > 8) {
        snprintf(out, 120, "%u runs", l->run_count);
        return;
    }
    int n = snprintf(out, 120, l->run_count > 1 ? "runs" : "run");
    for (uint32_t i = 0; i < l->run_count && n < 100; i++)
        n += snprintf(out + n, 120 - (size_t)n, "%s %lld", i ? "," : "", (long long)l->runs[i].run_id);
}

/* Where fitted figures come from: a local of the file, since it is the same for all. */
static void put_fitted_source(FILE *to, const calibration *x) {
    const cedar_logged *l = x->logged;
    char runs[120], text[400];
    name_runs(l, runs);
    fputs("local fitted = ", to);
    snprintf(text, sizeof text, "fitted to %s of %.64s, %s;", runs, file_of(x->db), l->started_at);
    put_lua_text(to, text);
    fputs("\n  .. ", to);
    snprintf(text, sizeof text, " commit %.12s%s; %.40s on %.80s; ", *l->commit ? l->commit : "unknown",
             l->commit_dirty ? " with changes" : "", l->runs[0].model, x->device);
    put_lua_text(to, text);
    fputs("\n\n", to);
}

static const cedar_calibrate_figure *fitted_figure(const calibration *x, const cedar_hardware_key *k) {
    for (uint32_t i = 0; i < x->figure_count; i++)
        if (x->figures[i].key == k) return &x->figures[i];
    return NULL;
}

static void put_figure(FILE *to, const calibration *x, const cedar_hardware_key *k, size_t at) {
    const cedar_calibrate_figure *f = fitted_figure(x, k);
    double v;
    memcpy(&v, (const char *)&x->hw + k->offset, sizeof v);
    fprintf(to, "  %-20s = { ", k->key);
    put_number(to, v);
    const char *source = *x->sources.text[at] ? x->sources.text[at] : "no source given";
    char before[160] = "";
    if (f) snprintf(before, sizeof before, "%.64s has %.6g%s", file_of(x->base_name), f->before, doubt_of(f));
    fputs(f ? ", fitted .. " : strlen(source) > 70 ? ",\n    " : ", ", to);
    put_lua_text(to, f ? before : source);
    fputs(" },\n", to);
}

static void put_description(FILE *to, const calibration *x) {
    size_t count;
    const cedar_hardware_key *keys = cedar_hardware_keys(&count);
    fprintf(to, "-- Made by `cedar calibrate`: %s with some figures fitted to logged steps (docs/MODELLED.md).\n",
            file_of(x->base_name));
    fprintf(to, "-- Held out %u/%u, seed %llu: %u steps, mean error %.2f %%, worst %.2f %%.\n", x->held, x->of,
            (unsigned long long)x->seed, x->held_error.steps, 100 * x->held_error.mean, 100 * x->held_error.worst);
    put_fitted_source(to, x);
    fputs("return {\n  name = ", to);
    put_lua_text(to, x->hw.name);
    fputs(",\n", to);
    for (int s = 0; s < SECTIONS; s++) {
        fprintf(to, "  -- %s\n", sections[s]);
        for (size_t i = 0; i < count; i++)
            if (section_of(keys[i].key) == s) put_figure(to, x, &keys[i], i);
    }
    fputs("}\n", to);
}

/* The name of the description is that of its file. */
static cedar_status name_description(calibration *x, cedar_err *err) {
    const char *file = file_of(x->out);
    size_t n = strlen(file);
    if (n < 5 || n - 4 >= sizeof x->hw.name || strcmp(file + n - 4, ".lua"))
        return cedar_fail(err, CEDAR_E_ARG, "-o %s: must end in NAME.lua with a NAME of at most %zu bytes", x->out,
                          sizeof x->hw.name - 1);
    snprintf(x->hw.name, sizeof x->hw.name, "%.*s", (int)(n - 4), file);
    return CEDAR_OK;
}

/* The file takes its name only when it is complete. */
static cedar_status write_description(const calibration *x, cedar_err *err) {
    size_t room = strlen(x->out) + 40;
    char *part = cedar_calloc(room, 1);
    if (!part) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its name", x->out);
    snprintf(part, room, "%s.%ld.part", x->out, (long)getpid());
    FILE *to = fopen(part, "wbx");
    cedar_status st = CEDAR_OK;
    if (!to) st = cedar_fail(err, CEDAR_E_IO, "%s: cannot be written: %s", x->out, strerror(errno));
    if (to) {
        put_description(to, x);
        bool bad = ferror(to) != 0;
        if (fclose(to) || bad)
            st = cedar_fail(err, CEDAR_E_IO, "%s: could not be written: %s", x->out, strerror(errno));
        if (!st && rename(part, x->out)) st = cedar_fail(err, CEDAR_E_IO, "%s: %s", x->out, strerror(errno));
        if (st) unlink(part);
    }
    cedar_free(part);
    return st;
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

/* An error on no step at all would read as none. */
static cedar_status check_held_out(const calibration *x, cedar_err *err) {
    uint32_t n[CEDAR_CALIBRATE_USES];
    count_uses(x, n);
    if (n[CEDAR_CALIBRATE_HELD]) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_ARG,
                      "%s: no step is held out at --held-out %u/%u and --seed %llu; take a larger share", x->db,
                      x->held, x->of, (unsigned long long)x->seed);
}

/* Before anything long is done. */
static cedar_status check_output(calibration *x, cedar_err *err) {
    cedar_status st = name_description(x, err);
    if (!st && !x->replace && access(x->out, F_OK) == 0)
        st = cedar_fail(err, CEDAR_E_ARG, "%s is there already; give another name, or --replace", x->out);
    return st;
}

static cedar_status calibrate(calibration *x, cedar_err *err) {
    cedar_status st = load(x, err);
    if (!st && x->out) st = check_output(x, err);
    if (!st) st = collect(x, err);
    if (st) return st;
    cedar_calibrate_hold_out(x->steps, x->step_count, x->out ? x->held : 1, x->out ? x->of : 1, x->seed);
    if (x->out)
        st = cedar_calibrate_fit(x->config, x->graphs, x->steps, x->step_count, &x->hw, x->figures, &x->figure_count,
                                 err);
    if (!st && x->out) st = check_held_out(x, err);
    if (st) return st;
    print_steps(x);
    if (x->out) print_figures(x);
    st = print_table(x, err);
    if (!st && x->out) st = write_description(x, err);
    if (!st && x->out) printf("\nwrote %s\n", x->out);
    return st;
}

static bool read_whole(const char *text, uint64_t most, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    *out = n;
    return *text >= '0' && *text <= '9' && !*end && !errno && n <= most;
}

static bool read_share(const char *text, uint32_t *held, uint32_t *of) {
    char part[16];
    uint64_t a, b;
    size_t n = strcspn(text, "/");
    if (!text[n] || n >= sizeof part) return false;
    snprintf(part, sizeof part, "%.*s", (int)n, text);
    if (!read_whole(part, 1000, &a) || !read_whole(text + n + 1, 1000, &b) || !a || a >= b) return false;
    *held = (uint32_t)a;
    *of = (uint32_t)b;
    return true;
}

/* "7" or "3-7". */
static bool read_range(const char *text, cedar_run_range *out) {
    char first[24];
    uint64_t a, b;
    size_t n = strcspn(text, "-");
    if (n >= sizeof first) return false;
    snprintf(first, sizeof first, "%.*s", (int)n, text);
    if (!read_whole(first, INT64_MAX - 1, &a) || !a) return false;
    b = a;
    if (text[n] && (!read_whole(text + n + 1, INT64_MAX - 1, &b) || b < a)) return false;
    *out = (cedar_run_range){ (int64_t)a, (int64_t)b };
    return true;
}

static int read_words(calibration *x, int argc, char **argv) {
    static const struct option options[] = { { "output", required_argument, NULL, 'o' },
                                             { "hardware", required_argument, NULL, 'w' },
                                             { "device", required_argument, NULL, 'd' },
                                             { "held-out", required_argument, NULL, 'h' },
                                             { "run", required_argument, NULL, 'n' },
                                             { "seed", required_argument, NULL, 's' },
                                             { "replace", no_argument, NULL, 'r' },
                                             { NULL, 0, NULL, 0 } };
    for (int c; (c = getopt_long(argc, argv, "o:r", options, NULL)) != -1;) {
        switch (c) {
        case 'o': x->out = optarg; break;
        case 'w': x->base_name = optarg; break;
        case 'd': x->device = optarg; break;
        case 'r': x->replace = true; break;
        case 'h':
            if (!read_share(optarg, &x->held, &x->of))
                return cedar_cli_usage("calibrate", "--held-out is %s; it must be a share like 1/4", optarg);
            break;
        case 'n':
            if (!read_range(optarg, &x->runs))
                return cedar_cli_usage("calibrate", "--run is %s; it must be the number of a run, or two like 3-7",
                                       optarg);
            break;
        case 's':
            if (!read_whole(optarg, UINT64_MAX, &x->seed))
                return cedar_cli_usage("calibrate", "--seed is %s; it must be a whole number", optarg);
            break;
        default: return cedar_cli_usage("calibrate", "an option is wrong");
        }
    }
    if (optind + 1 != argc) return cedar_cli_usage("calibrate", "give one database");
    x->db = argv[optind];
    return CEDAR_EXIT_OK;
}

int cedar_cli_calibrate(int argc, char **argv) {
    calibration x = { .base_name = "h200", .runs = { 1, INT64_MAX }, .held = 1, .of = 4, .seed = 1 };
    int code = read_words(&x, argc, argv);
    if (code) return code;
    cedar_cli_data_dir(x.data_dir, sizeof x.data_dir);
    cedar_err err = { 0 };
    cedar_status st = calibrate(&x, &err);
    cedar_logged_free(x.logged);
    cedar_free(x.config);
    cedar_free(x.steps);
    return st ? cedar_cli_fail(&err) : CEDAR_EXIT_OK;
}
