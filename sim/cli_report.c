/* cedar report: the results in a database as text, HTML or CSV; and databases made from another tool's records. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "reports/reports.h"
#include "sim/cli_int.h"

/* A report takes its name only when it is complete, so that a failure leaves what was there. Pipes and devices are
 * written as they are and never removed or replaced. */
typedef struct report_file {
    FILE *to;
    char *path;             /* where it goes: behind a link, if `out` is one */
    char *temp;             /* beside it, with the report under way; NULL for pipes and devices */
} report_file;

static bool same_file(const struct stat *a, const char *path) {
    struct stat b;
    return stat(path, &b) == 0 && a->st_dev == b.st_dev && a->st_ino == b.st_ino;
}

static cedar_status report_file_open(report_file *f, const char *db, const char *out, cedar_err *err) {
    struct stat info;
    bool there = stat(out, &info) == 0;
    if (there && same_file(&info, db))
        return cedar_fail(err, CEDAR_E_ARG, "%s: is the database itself; give the report another name", out);
    bool plain = !there || S_ISREG(info.st_mode);
    char *real = plain && there ? realpath(out, NULL) : NULL;
    f->path = cedar_strdup(real ? real : out);
    free(real);
    size_t room = f->path ? strlen(f->path) + 40 : 0;
    if (f->path && plain) f->temp = cedar_calloc(room, 1);
    if (!f->path || (plain && !f->temp)) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its name", out);
    if (plain) snprintf(f->temp, room, "%s.%ld.part", f->path, (long)getpid());
    const char *name = plain ? f->temp : f->path;
    f->to = fopen(name, plain ? "wbx" : "wb");
    if (!f->to) return cedar_fail(err, CEDAR_E_IO, "%s: cannot be written: %s", out, strerror(errno));
    if (plain && there) (void)!fchmod(fileno(f->to), info.st_mode & 0777);     /* the mode of the file it replaces */
    return CEDAR_OK;
}

/* Closes the file and, when all went well, gives it its name. */
static cedar_status report_file_close(report_file *f, cedar_status st, cedar_err *err) {
    if (f->to) {
        bool bad = ferror(f->to) != 0;
        if ((fclose(f->to) || bad) && !st)
            st = cedar_fail(err, CEDAR_E_IO, "%s: could not be written: %s", f->path, strerror(errno));
        if (f->temp && !st && rename(f->temp, f->path))
            st = cedar_fail(err, CEDAR_E_IO, "%s: %s", f->path, strerror(errno));
        if (f->temp && st) unlink(f->temp);
    }
    cedar_free(f->path);
    cedar_free(f->temp);
    return st;
}

static cedar_status write_html(const char *db, const char *out, cedar_err *err) {
    report_file f = { 0 };
    cedar_status st = report_file_open(&f, db, out, err);
    if (!st) st = cedar_report_html(db, f.to, err);
    return report_file_close(&f, st, err);
}

/* What was left out or looks odd goes to stderr, so that a report on stdout stays clean. */
static cedar_status import_records(const char *from, const char *db, const cedar_import_opts *opts, cedar_err *err) {
    cedar_import_counts n;
    cedar_status st = cedar_import_aiperf(from, db, opts, &n, err);
    if (st) return st;
    fprintf(stderr, "imported %llu requests of %s into %s: %llu kept, %llu in error, %llu of other phases\n",
            (unsigned long long)n.requests, from, db, (unsigned long long)n.kept, (unsigned long long)n.errors,
            (unsigned long long)n.other_phase);
    if (n.skipped)
        fprintf(stderr, "left out %llu of %llu lines; the first: %s\n", (unsigned long long)n.skipped,
                (unsigned long long)n.lines, n.skipped_first);
    if (n.itl_differs)
        fprintf(stderr, "%llu requests have an inter-token latency of another definition; (E2EL - TTFT) / (OSL - 1) is "
                "used\n", (unsigned long long)n.itl_differs);
    return CEDAR_OK;
}

int cedar_cli_report(int argc, char **argv) {
    static const struct option options[] = { { "output", required_argument, NULL, 'o' },
                                             { "text", no_argument, NULL, 't' },
                                             { "csv", required_argument, NULL, 'c' },
                                             { "import", required_argument, NULL, 'i' },
                                             { "strict", no_argument, NULL, 's' },
                                             { "replace", no_argument, NULL, 'r' },
                                             { "lanes", required_argument, NULL, 'l' },
                                             { NULL, 0, NULL, 0 } };
    const char *html = NULL, *view = NULL, *import = NULL;
    cedar_import_opts import_opts = { 0 };
    uint64_t lanes;
    bool text = false;
    for (int c; (c = getopt_long(argc, argv, "o:tc:i:r", options, NULL)) != -1;) {
        if (c == 'o') html = optarg;
        else if (c == 't') text = true;
        else if (c == 'c') view = optarg;
        else if (c == 'i') import = optarg;
        else if (c == 's') import_opts.strict = true;
        else if (c == 'r') import_opts.replace = true;
        else if (c == 'l') {
            if (!cedar_cli_count("report", "--lanes", optarg, 0, 1000000, &lanes)) return CEDAR_EXIT_USAGE;
            import_opts.lanes = (uint32_t)lanes;
        } else return cedar_cli_usage("report", "an option is wrong");
    }
    if (optind + 1 != argc) return cedar_cli_usage("report", "give one database");
    if ((html != NULL) + (view != NULL) + text > 1)
        return cedar_cli_usage("report", "-o, --text and --csv exclude each other");
    if (!import && (import_opts.strict || import_opts.replace || import_opts.lanes))
        return cedar_cli_usage("report", "--strict, --replace and --lanes go with --import");
    const char *db = argv[optind];
    if (!*db || (html && !*html)) return cedar_cli_usage("report", "the name of a file is empty");
    cedar_err err = { 0 };
    cedar_status st = import ? import_records(import, db, &import_opts, &err) : CEDAR_OK;
    if (st) return cedar_cli_fail(&err);
    if (html) st = write_html(db, html, &err);
    else if (view) st = cedar_report_csv(db, view, stdout, &err);
    else st = cedar_report_text(db, stdout, cedar_cli_width(stdout), cedar_cli_color(stdout), &err);
    if (st) return cedar_cli_fail(&err);
    if (html) fprintf(stderr, "wrote %s\n", html);
    return CEDAR_EXIT_OK;
}
