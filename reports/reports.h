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

#include "audit/observer.h"
#include "base/status.h"
#include "sim/observer.h"

typedef struct cedar_store cedar_store;

/* Creates the database. An existing file is refused unless `replace`; only a cedar database is ever replaced. Rows are
 * written in transactions of bounded age and size, so a killed process leaves a readable file that says "running". */
cedar_status cedar_store_create(const char *path, bool replace, cedar_store **out, cedar_err *err) CEDAR_USE_RESULT;

/* The observer that writes into the store; valid until cedar_store_close. */
const cedar_observer *cedar_store_observer(cedar_store *s);

/* The same for audits. */
const cedar_audit_observer *cedar_store_audit_observer(cedar_store *s);

/* Commits and leaves one single file; frees the store in any case. `finished`: the scenario came to its end. After a
 * write error (disk full) the first error is returned again. CEDAR_E_BUSY: every row is saved, but another program has
 * the file open, so that its -wal file must stay beside it. NULL is allowed. */
cedar_status cedar_store_close(cedar_store *s, bool finished, cedar_err *err) CEDAR_USE_RESULT;

/* For `cedar bench sim`: writes all rows of a table of `path` into the new file `to`, into the same table, or a plain
 * one without types, keys or checks. *ns: what the prepared inserts, their commits and closing took. */
cedar_status cedar_bare_insert(const char *path, const char *table, bool plain, const char *to, uint64_t *rows,
                               int64_t *ns, cedar_err *err) CEDAR_USE_RESULT;

/* What `cedar replay` needs from an earlier run. */
typedef struct cedar_stored_run {
    int64_t run_id;
    char *label, *config_json;
    uint64_t event_hash;
    char status[16];
    cedar_recorded recorded;
} cedar_stored_run;

typedef struct cedar_stored_audit {
    char label[64], status[16];
    uint64_t result_hash;
} cedar_stored_audit;

typedef struct cedar_stored {
    char *scenario_path, *scenario_text, *overrides;
    cedar_stored_run *runs;
    cedar_stored_audit *audits;
    uint32_t run_count, audit_count;
    bool finished;
} cedar_stored;

cedar_status cedar_stored_load(const char *path, cedar_stored **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_stored_free(cedar_stored *s);

/* --- logged steps, for `cedar calibrate` -------------------------------------------------------------------------- */

typedef struct cedar_logged_step {
    int64_t step_id, duration_ns;
    uint32_t rows, decode_entries, prefill_entries, kept_rows, logits;
    bool trimmed;
    bool known;                 /* the sums below: false for steps with sequences that table requests lacks */
    double context;             /* positions that the rows attend to (pos + 1 each), derived from table requests */
    double kept_context;        /* of the rows that run behind the cut */
} cedar_logged_step;

typedef struct cedar_logged_run {
    int64_t run_id;
    char *label, *model;
    char backend[16], arith[16], clock[16], replay[16], cut[16], graphs[16], device[128];
    cedar_logged_step *steps;
    uint32_t step_count, gpus;
} cedar_logged_run;

typedef struct cedar_logged {
    char commit[64], started_at[32];
    bool commit_dirty;
    cedar_logged_run *runs;
    uint32_t run_count;
} cedar_logged;

/* Runs by number; last INT64_MAX: to the end. */
typedef struct cedar_run_range { int64_t first, last; } cedar_run_range;

/* The steps of the runs in the range that had an engine. CEDAR_E_ARG: none, several engines, or several steps a row;
 * CEDAR_E_FORMAT: tables that contradict each other. Owned by the caller. */
cedar_status cedar_logged_load(const char *path, cedar_run_range range, cedar_logged **out,
                               cedar_err *err) CEDAR_USE_RESULT;
void cedar_logged_free(cedar_logged *l);

/* Reports. `width` is the terminal's width in columns for text, taken as 60 when smaller; `color` allows ANSI colours.
 * On failure part of a report may have been written. CSV is RFC 4180; NULL is an empty field, empty text is "". */
cedar_status cedar_report_text(const char *path, FILE *to, int width, bool color, cedar_err *err) CEDAR_USE_RESULT;
/* What is printed behind a run: answers, few runs side by side, what needs attention, and how `program`, as the user
 * calls it, shows the rest. */
cedar_status cedar_report_brief(const char *path, const char *program, FILE *to, int width, bool color,
                                cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_report_html(const char *path, FILE *to, cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_report_csv(const char *path, const char *view, FILE *to, cedar_err *err) CEDAR_USE_RESULT;

/* A text as a field of CSV (RFC 4180); "" is quoted to differ from NULL, which is an empty field. */
void cedar_report_csv_text(const char *text, FILE *to);

/* --- records of other tools (docs/IMPORT.md) ---------------------------------------------------------------------- */

typedef struct cedar_import_opts {
    bool strict;                /* a line that is no usable record fails the import; else it is left out and counted */
    bool replace;               /* as in cedar_store_create */
    const char *label;          /* of the run; NULL: the file's name without its folder */
    uint32_t lanes;             /* concurrency the records were made with, 0 when unknown: the file does not say */
} cedar_import_opts;

typedef struct cedar_import_counts {
    uint64_t lines;             /* not blank */
    uint64_t requests;          /* rows of the run: kept + errors + other_phase */
    uint64_t kept;              /* profiling requests without error: what metrics rest on */
    uint64_t errors;            /* profiling requests in error, cancelled ones among them */
    uint64_t cancelled;         /* of any phase */
    uint64_t other_phase;       /* warm-up and the like */
    uint64_t sessions;
    uint64_t skipped;           /* lines left out (not strict) */
    char skipped_first[480];    /* why the first of them was left out, "" if none was */
    uint64_t itl_differs;       /* requests whose own ITL is not (E2EL - TTFT) / (OSL - 1) */
} cedar_import_counts;

/* Reads AIPerf's profile_export.jsonl into a new database as one run: status "finished", model_origin and backend
 * "imported"; every view and report then scores it. request_id is the line in the file, times count from the first
 * request's start. The file is read twice, line by line, and must not change meanwhile. opts NULL: all zero. *out is
 * zero after a failure, and no database is left behind. CEDAR_E_FORMAT when nothing in it can be used. */
cedar_status cedar_import_aiperf(const char *path, const char *db_path, const cedar_import_opts *opts,
                                 cedar_import_counts *out, cedar_err *err) CEDAR_USE_RESULT;

/* --- requests that two runs have in common, for paired comparisons of scenarios ----------------------------------- */

typedef struct cedar_pair {
    double a, b;                /* sums over the requests that both runs have a value of */
    uint64_t count;
} cedar_pair;

typedef struct cedar_pairs {
    cedar_pair *list;           /* [count] one for each session: trace, and how many of that trace before it */
    size_t count;
    uint64_t left_out;          /* requests of either run without a partner */
} cedar_pairs;

/* Runs a[i] and b[i] [n], request by request: same trace, number among the sessions of that trace, stream and turn;
 * lanes do not matter. metric: ttft_ms, itl_ms, e2el_ms or e2e_norm_ms, over kept requests. Owned by the caller. */
cedar_status cedar_pairs_load(const char *path, const int64_t *a, const int64_t *b, size_t n, const char *metric,
                              cedar_pairs *out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_pairs_free(cedar_pairs *p);

/* Names that cedar_report_csv takes, for help: the views in the order of docs/METRICS.md, then the tables. */
const char *const *cedar_report_views(size_t *count);

#endif
