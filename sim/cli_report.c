/* cedar report: the results in a database as text, HTML or CSV. */
#include <errno.h>
#include <getopt.h>
#include <string.h>
#include <unistd.h>

#include "reports/reports.h"
#include "sim/cli_int.h"

static cedar_status write_html(const char *db, const char *out, cedar_err *err) {
    FILE *to = fopen(out, "wb");
    if (!to) return cedar_fail(err, CEDAR_E_IO, "%s: %s", out, strerror(errno));
    cedar_status st = cedar_report_html(db, to, err);
    bool bad = ferror(to) != 0;
    if (fclose(to) || bad)
        if (!st) st = cedar_fail(err, CEDAR_E_IO, "%s: could not be written: %s", out, strerror(errno));
    if (st) unlink(out);
    return st;
}

int cedar_cli_report(int argc, char **argv) {
    static const struct option options[] = { { "output", required_argument, NULL, 'o' },
                                             { "text", no_argument, NULL, 't' },
                                             { "csv", required_argument, NULL, 'c' },
                                             { NULL, 0, NULL, 0 } };
    const char *html = NULL, *view = NULL;
    bool text = false;
    for (int c; (c = getopt_long(argc, argv, "o:tc:", options, NULL)) != -1;) {
        if (c == 'o') html = optarg;
        else if (c == 't') text = true;
        else if (c == 'c') view = optarg;
        else return cedar_cli_usage("report", "an option is wrong");
    }
    if (optind + 1 != argc) return cedar_cli_usage("report", "give one database");
    if ((html != NULL) + (view != NULL) + text > 1)
        return cedar_cli_usage("report", "-o, --text and --csv exclude each other");
    const char *db = argv[optind];
    cedar_err err = { 0 };
    cedar_status st;
    if (html) st = write_html(db, html, &err);
    else if (view) st = cedar_report_csv(db, view, stdout, &err);
    else st = cedar_report_text(db, stdout, cedar_cli_width(stdout), cedar_cli_color(stdout), &err);
    if (st) return cedar_cli_fail(&err);
    if (html) fprintf(stderr, "wrote %s\n", html);
    return CEDAR_EXIT_OK;
}
