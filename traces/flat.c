/* Owns the readers of flat tables, one request per row with lengths and a time only: Azure LLM inference traces,
 * BurstGPT, and tables with a timestamp in seconds. Nothing in them says what prompts share. */
#include <stdio.h>
#include <string.h>

#include "traces/traces_int.h"

enum { TIME, INPUT, OUTPUT, MODEL, SESSION }; /* columns of all three; those that a format lacks are never there */

static cedar_status lengths(const traces_csv *csv, cedar_turn *t, cedar_err *err) {
    cedar_status st = traces_csv_tokens(csv, INPUT, &t->in_recorded, err);
    if (!st) st = traces_csv_tokens(csv, OUTPUT, &t->out_tokens, err);
    t->in_tokens = t->in_recorded ? t->in_recorded : 1;
    return st;
}

static traces_row new_row(const traces_load *l) {
    return (traces_row){ .line = l->line, .has_t = true, .turn = { .ttft_ns = -1, .think_ns = -1, .model = -1 } };
}

static cedar_status session(traces_load *l, const traces_row *rows, size_t count, cedar_err *err) {
    cedar_trace t;
    cedar_status st = traces_rows_trace(l, rows, count, &t, err);
    if (st) return st;
    t.block_tokens = HASH_BLOCK_TOKENS;
    t.id_space = l->file_space;
    return traces_add(l, &t, err);
}

/* --- Azure ------------------------------------------------------------------------------------------------------- */

static const traces_column azure_columns[] = {
    [TIME] = { "TIMESTAMP", NULL, true },
    [INPUT] = { "ContextTokens", NULL, true },
    [OUTPUT] = { "GeneratedTokens", NULL, true },
};

static cedar_status azure_record(traces_load *l, const traces_csv *csv, cedar_err *err) {
    traces_row row = new_row(l);
    const char *stamp = traces_csv_text(csv, TIME);
    if (!stamp || !traces_stamp_parse(stamp, &row.turn.t_ns))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"TIMESTAMP\" is \"%.40s\", it must be a date and time such as "
                          "2023-11-16 18:17:03.9799600", csv->where, stamp ? stamp : "");
    cedar_status st = lengths(csv, &row.turn, err);
    return st ? st : traces_row_keep(l, &row, err);
}

static cedar_status azure_end(traces_load *l, cedar_err *err) {
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < l->row_count; i++)
        if (l->rows[i].turn.t_ns < first) first = l->rows[i].turn.t_ns;
    for (size_t i = 0; i < l->row_count; i++) l->rows[i].turn.t_ns -= first;
    return traces_rows_end(l, err);
}

const traces_reader traces_azure = { .format = CEDAR_TRACE_AZURE, .columns = azure_columns,
                                     .column_count = sizeof azure_columns / sizeof *azure_columns,
                                     .record = azure_record, .file_end = azure_end, .session = session };

/* --- BurstGPT ---------------------------------------------------------------------------------------------------- */

enum { ELAPSED = SESSION + 1 };

static const traces_column burst_columns[] = {
    [TIME] = { "Timestamp", NULL, true },
    [INPUT] = { "Request tokens", NULL, true },
    [OUTPUT] = { "Response tokens", NULL, true },
    [MODEL] = { "Model", NULL, false },
    [SESSION] = { "Session ID", NULL, false },
    [ELAPSED] = { "Elapsed time", NULL, false },
};

static cedar_status burst_record(traces_load *l, const traces_csv *csv, cedar_err *err) {
    traces_row row = new_row(l);
    bool present;
    cedar_status st = traces_csv_name(l, csv, SESSION, &row.session, err);
    if (!st) st = traces_csv_time(csv, TIME, NS_PER_S, START_S_MAX, &row.turn.t_ns, &present, err);
    if (!st) st = traces_csv_time(csv, ELAPSED, NS_PER_S, SPAN_S_MAX, &row.turn.api_ns, &row.turn.has_api, err);
    if (!st) st = traces_csv_name(l, csv, MODEL, &row.model, err);
    if (!st) st = lengths(csv, &row.turn, err);
    return traces_row_done(l, &row, st, err);
}

const traces_reader traces_burstgpt = { .format = CEDAR_TRACE_BURSTGPT, .columns = burst_columns,
                                        .column_count = sizeof burst_columns / sizeof *burst_columns,
                                        .record = burst_record, .file_end = traces_rows_end, .session = session };

/* --- timed ------------------------------------------------------------------------------------------------------- */

static const traces_column timed_columns[] = {
    [TIME] = { "timestamp", NULL, true },
    [INPUT] = { "input_length", NULL, true },
    [OUTPUT] = { "output_length", NULL, true },
};

static cedar_status timed_record(traces_load *l, const traces_csv *csv, cedar_err *err) {
    traces_row row = new_row(l);
    bool present;
    cedar_status st = traces_csv_time(csv, TIME, NS_PER_S, START_S_MAX, &row.turn.t_ns, &present, err);
    if (!st) st = lengths(csv, &row.turn, err);
    return st ? st : traces_row_keep(l, &row, err);
}

/* The same as JSON lines. Their fields are those of Mooncake rows, whose times are milliseconds, so that the format has
 * to be given. */
static bool never(const json_t *doc) {
    (void)doc;
    return false;
}

static cedar_status timed_document(traces_load *l, const json_t *doc, cedar_err *err) {
    traces_row row = new_row(l);
    char where[WHERE_BYTES];
    bool present;
    snprintf(where, sizeof where, "%.300s:%d", l->name, l->line);
    cedar_status st = traces_time_get(doc, where, "timestamp", NS_PER_S, START_S_MAX, &row.turn.t_ns, &present, err);
    if (!st && !present) st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"timestamp\" is missing", where);
    if (!st) st = traces_tokens_get(doc, where, "input_length", true, &row.turn.in_recorded, err);
    if (!st) st = traces_tokens_get(doc, where, "output_length", true, &row.turn.out_tokens, err);
    row.turn.in_tokens = row.turn.in_recorded ? row.turn.in_recorded : 1;
    return st ? st : traces_row_keep(l, &row, err);
}

const traces_reader traces_timed = { .format = CEDAR_TRACE_TIMED, .probe = never, .document = timed_document,
                                     .columns = timed_columns,
                                     .column_count = sizeof timed_columns / sizeof *timed_columns,
                                     .record = timed_record, .file_end = traces_rows_end, .session = session };
