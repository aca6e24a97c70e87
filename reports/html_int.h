/* What the files of the HTML report share: the page being written and the parts it is made of (html_parts.c).
 * The sections are in html.c, the JSON block for the charts in html_data.c. Not for other files. */
#ifndef CEDAR_REPORTS_HTML_INT_H
#define CEDAR_REPORTS_HTML_INT_H

#include <sqlite3.h>
#include <stdio.h>

#include "reports/reports_int.h"

enum {
    PAGE_RUNS = 32,             /* runs whose requests and steps are shown one by one */
    PAGE_ARMS = 24,             /* arms in the chart of fronts, those of several runs first */
    PAGE_CURVE_POINTS = 300,    /* per run and distribution, up to PAGE_FULL_RUNS runs */
    PAGE_TIMELINE = 400,        /* requests per run, likewise */
    PAGE_FULL_RUNS = 16,        /* more runs share the points of so many */
    PAGE_TIME_BINS = 120,       /* per run, for step rows and memory */
    PAGE_PROFILE = 1000,        /* points of an arm's error by offset */
    PAGE_STEPS = 60,            /* rows of the steps explorer per run; shared() lets a few runs have more */
    PAGE_CLAIMS = 60,           /* tested claims in the chart of ratios */
    PAGE_BARS = 24,             /* runs in the charts about the cache */
    PAGE_FOLD = 24,             /* with more runs, tables with a row of each are folded */
    PAGE_CARDS = 8              /* runs that get a card; with more there are none */
};

typedef struct page {
    sqlite3 *db;                /* borrowed */
    const char *path;           /* of the database, borrowed */
    FILE *to;
    int run_count, audit_count, ladder_count, claim_count;
} page;

/* --- html_parts.c: escaped text, tables, figures ------------------------------------------------------------------ */

/* Points per run that keep the page small however many runs there are. */
int page_shared(const page *p, int limit);

/* Rows of the steps explorer per run: few runs share what PAGE_FULL_RUNS may have. */
int page_step_rows(const page *p);

void page_char(FILE *to, uint32_t c);
void page_text(FILE *to, const char *s);

/* A JSON string that cannot end a script element either; a column as a JSON value. */
void page_json_text(FILE *to, const char *s);
void page_json_value(FILE *to, sqlite3_stmt *q, int column);

/* A word of a shell command, quoted when it has to be. */
void page_shell_word(FILE *to, const char *word);

/* An embedded file as it is; ` 'sha256-BASE64'` of one, as a content security policy wants it. */
void page_file(FILE *to, const char *from, const char *end);
void page_script_hash(FILE *to, const char *from, const char *end);

/* A table in a fold or open; *any (may be NULL) tells whether it has rows. Without rows nothing is written. */
cedar_status page_table(const page *p, const char *id, bool fold, bool *any, cedar_err *err) CEDAR_USE_RESULT;

/* The same for a list that NULL ends. */
cedar_status page_tables(const page *p, const char *const *ids, bool fold, cedar_err *err) CEDAR_USE_RESULT;

/* An open table with ?1 of its query bound. A title of its own (else NULL) also puts the value into its id. */
cedar_status page_table_bound(const page *p, const char *id, int64_t bound, const char *title, cedar_err *err)
    CEDAR_USE_RESULT;

/* A chart to be drawn by the script; `about` is its text alternative. Both are HTML of this program. */
void page_chart(const page *p, const char *id, const char *title, const char *about);

void page_section(const page *p, const char *id, const char *title, const char *intro);
void page_section_end(const page *p);

/* A choice among the rows of a query: value, text. */
cedar_status page_choice(const page *p, const char *id, const char *label, const char *sql, cedar_err *err)
    CEDAR_USE_RESULT;

/* First column of the first row, "" without one. */
cedar_status page_one_text(const page *p, const char *sql, char *out, size_t bytes, cedar_err *err) CEDAR_USE_RESULT;

/* --- html_data.c -------------------------------------------------------------------------------------------------- */

/* The JSON block that the script draws from. */
cedar_status page_data(const page *p, cedar_err *err) CEDAR_USE_RESULT;

#endif
