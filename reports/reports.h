/* Results: the SQLite store (an observer), its views, and reports made from the database alone.
 *
 * Ownership   A store owns its database handle. Readers open the file themselves, read-only.
 * Threads     One thread per store.
 * Errors      base/status.h. Reports write to the FILE they are given and print nothing else.
 * Schema      reports/schema.sql, documented in docs/METRICS.md. */
#ifndef CEDAR_REPORTS_REPORTS_H
#define CEDAR_REPORTS_REPORTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "sim/observer.h"

typedef struct cedar_store cedar_store;

/* Creates the database. An existing file is refused unless `replace`; only a cedar database is ever replaced. Rows are
 * written in transactions of bounded age and size, so a killed process leaves a readable file that says "running". */
cedar_status cedar_store_create(const char *path, bool replace, cedar_store **out, cedar_err *err) CEDAR_USE_RESULT;

/* The observer that writes into the store; valid until cedar_store_close. */
const cedar_observer *cedar_store_observer(cedar_store *s);

/* Commits, builds what is derived, and leaves one single file. `finished`: the scenario came to its end. */
cedar_status cedar_store_close(cedar_store *s, bool finished, cedar_err *err) CEDAR_USE_RESULT;

/* What `cedar replay` needs from an earlier run. */
typedef struct cedar_stored_run {
    int64_t run_id;
    char *label, *config_json;
    uint64_t event_hash;
    char status[16];
    cedar_recorded recorded;
} cedar_stored_run;

typedef struct cedar_stored {
    char *scenario_path, *scenario_text, *overrides;
    cedar_stored_run *runs;
    uint32_t run_count;
    bool finished;
} cedar_stored;

cedar_status cedar_stored_load(const char *path, cedar_stored **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_stored_free(cedar_stored *s);

/* Reports. `width` is the terminal's width in columns for text; `color` allows ANSI colours. */
cedar_status cedar_report_text(const char *path, FILE *to, int width, bool color, cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_report_html(const char *path, FILE *to, cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_report_csv(const char *path, const char *view, FILE *to, cedar_err *err) CEDAR_USE_RESULT;

/* Names of the views, for help and errors; *count of them. */
const char *const *cedar_report_views(size_t *count);

#endif
