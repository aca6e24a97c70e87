/* cedar trace: statistics, oddities and conversion of trace files. */
#include <getopt.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "sim/cli_int.h"
#include "traces/traces.h"

/* What the `file` column holds: the path behind the last "traces/" folder, else the path as given. A file of several
 * traces names the trace too. */
static void file_name(const cedar_corpus *c, const cedar_trace *t, char *out, size_t bytes) {
    const char *name = t->file;
    for (const char *s = name; (s = strstr(s, "traces/")); s++)
        if (s == t->file || s[-1] == '/') name = s + strlen("traces/");
    const cedar_trace *end = c->traces + c->trace_count;    /* traces of one file are neighbours */
    bool several = (t > c->traces && !strcmp(t[-1].file, t->file)) || (t + 1 < end && !strcmp(t[1].file, t->file));
    if (several) snprintf(out, bytes, "%s#%s", name, t->id);
    else snprintf(out, bytes, "%s", name);
}

static void print_stats(const char *name, const cedar_trace_stats *s) {
    printf("%-44.44s %6u %5u %11llu %9llu %9.0f %9llu %7.0f %6.1f%% %9.2f %9.2f\n", name, s->requests, s->subagents,
           (unsigned long long)s->isl_sum, (unsigned long long)s->osl_sum, s->isl_p50, (unsigned long long)s->isl_max,
           s->osl_p50, 100 * s->hit_rate, s->delay_p50_s, s->delay_p90_s);
}

static cedar_status stat_one(const cedar_corpus *c, const cedar_trace *t, bool csv, cedar_err *err) {
    cedar_trace_stats s;
    char name[1024], *row = NULL;
    cedar_status st = cedar_trace_stats_make(t, &s, err);
    if (st) return st;
    file_name(c, t, name, sizeof name);
    if (csv) {
        st = cedar_trace_stats_row(name, &s, &row, err);
        if (!st) puts(row);
        cedar_free(row);
    } else {
        print_stats(name, &s);
    }
    cedar_trace_stats_free(&s);
    return st;
}

static cedar_status stat_all(const cedar_corpus *c, bool csv, cedar_err *err) {
    if (csv) puts(cedar_trace_stats_header());
    else
        printf("%-44s %6s %5s %11s %9s %9s %9s %7s %7s %9s %9s\n", "trace", "reqs", "subs", "in", "out", "in p50",
               "in max", "out p50", "hit", "delay p50", "delay p90");
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < c->trace_count && !st; i++) st = stat_one(c, &c->traces[i], csv, err);
    if (st || csv) return st;
    cedar_corpus_stats all;
    st = cedar_corpus_stats_make(c, &all, err);
    if (!st)
        printf("\n%llu traces, %llu streams, %llu requests, %llu prompt and %llu answer tokens, infinite-cache hit "
               "rate %.1f%%\n",
               (unsigned long long)all.traces, (unsigned long long)all.streams, (unsigned long long)all.requests,
               (unsigned long long)all.isl_sum, (unsigned long long)all.osl_sum, 100 * all.hit_rate);
    return st;
}

static void check_all(const cedar_corpus *c) {
    for (uint32_t i = 0; i < c->trace_count; i++) {
        cedar_trace_check check;
        char text[4096];
        cedar_trace_check_make(&c->traces[i], &check);
        cedar_trace_check_format(&c->traces[i], &check, text, sizeof text);
        fputs(text, stdout);
    }
    printf("%u traces read, %u left out%s%s\n", c->trace_count, c->skipped, c->skipped ? "; the first because: " : "",
           c->skipped ? c->skipped_first : "");
}

typedef struct request {
    const char *what;           /* "stat", "check" or "convert" */
    const char *from, *to, *out;    /* format names and the file to write; NULL: not given */
    bool csv, strict;
    const char *const *files;
    size_t file_count;
} request;

static cedar_status look(const request *r, const cedar_corpus_opts *opts, cedar_err *err) {
    cedar_corpus *corpus = NULL;
    bool stat = strcmp(r->what, "stat") == 0;
    cedar_status st = cedar_corpus_load(r->files, r->file_count, opts, &corpus, err);
    if (!st && stat) st = stat_all(corpus, r->csv, err);
    else if (!st) check_all(corpus);
    if (!st && stat && corpus->skipped)
        fprintf(stderr, "cedar: %u traces left out; the first because: %s\n", corpus->skipped, corpus->skipped_first);
    cedar_corpus_free(corpus);
    return st;
}

/* What the target format cannot keep goes to stderr: it is no part of the result, and must not be missed. */
static cedar_status convert(const request *r, const cedar_corpus_opts *opts, cedar_err *err) {
    cedar_trace_format to;
    cedar_losses losses = { 0 };
    uint32_t traces = 0, skipped = 0;
    char text[4096];
    cedar_status st = cedar_trace_format_find(r->to, &to, err);
    if (!st && access(r->out, F_OK) == 0)
        st = cedar_fail(err, CEDAR_E_IO, "%s exists; remove it, or give another file with -o", r->out);
    if (!st) st = cedar_trace_convert(r->files, r->file_count, opts, to, r->out, &losses, &traces, &skipped, err);
    if (st) return st;
    if (cedar_losses_format(&losses, text, sizeof text)) fprintf(stderr, "not kept by %s:\n%s", r->to, text);
    fprintf(stderr, "wrote %s: %u traces, %u left out\n", r->out, traces, skipped);
    return CEDAR_OK;
}

/* Options of all three verbs; those that a verb does not have are refused. */
static bool read_options(int argc, char **argv, request *r) {
    static const struct option options[] = { { "csv", no_argument, NULL, 'c' },
                                             { "strict", no_argument, NULL, 's' },
                                             { "from", required_argument, NULL, 'f' },
                                             { "to", required_argument, NULL, 't' },
                                             { "output", required_argument, NULL, 'o' },
                                             { NULL, 0, NULL, 0 } };
    bool stat = strcmp(r->what, "stat") == 0, converts = strcmp(r->what, "convert") == 0;
    for (int c; (c = getopt_long(argc, argv, "csf:t:o:", options, NULL)) != -1;) {
        if (c == 'c' && stat) r->csv = true;
        else if (c == 's' && !stat) r->strict = true;
        else if (c == 'f') r->from = optarg;
        else if (c == 't' && converts) r->to = optarg;
        else if (c == 'o' && converts) r->out = optarg;
        else return false;
    }
    return true;
}

int cedar_cli_trace(int argc, char **argv) {
    if (argc < 2) return cedar_cli_usage("trace", "say stat, check or convert");
    request r = { .what = argv[1] };
    bool converts = strcmp(r.what, "convert") == 0;
    if (strcmp(r.what, "stat") && strcmp(r.what, "check") && !converts)
        return cedar_cli_usage("trace", "\"%s\" is none of stat, check, convert", r.what);
    argc--;
    argv++;
    if (!read_options(argc, argv, &r)) return cedar_cli_usage("trace", "an option of %s is wrong", r.what);
    if (optind == argc) return cedar_cli_usage("trace", "give at least one file");
    if (converts && (!r.to || !r.out)) return cedar_cli_usage("trace", "convert needs --to FORMAT and -o FILE");
    r.files = (const char *const *)argv + optind;
    r.file_count = (size_t)(argc - optind);
    cedar_err err = { 0 };
    cedar_corpus_opts o = { .format = CEDAR_TRACE_AUTO, .strict = r.strict };
    cedar_status st = r.from ? cedar_trace_format_find(r.from, &o.format, &err) : CEDAR_OK;
    if (!st) st = converts ? convert(&r, &o, &err) : look(&r, &o, &err);
    return st ? cedar_cli_fail(&err) : CEDAR_EXIT_OK;
}
