/* Owns the readers of TraceLab: rounds as one JSON object per line, and the replay table. Both give the length of the
 * prefix that a round shares with what its session asked and got before; ids are made from these lengths. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "traces/traces_int.h"

/* --- one session of either form ---------------------------------------------------------------------------------- */

static cedar_status session(traces_load *l, const traces_row *rows, size_t count, cedar_err *err) {
    cedar_trace t;
    char where[WHERE_BYTES];
    int64_t next = 0;
    snprintf(where, sizeof where, "%.300s:%d", l->name, rows->line);
    uint64_t *keep = cedar_calloc(count, sizeof *keep);
    if (!keep) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu rounds", where, count);
    cedar_status st = CEDAR_OK;
    for (size_t k = 1; !st && k < count; k++)
        if (rows[k].round == rows[k - 1].round)
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: round %lld of session \"%.60s\" is there twice", l->name,
                            rows[k].line, (long long)rows[k].round, rows[k].session);
    if (!st) st = traces_rows_trace(l, rows, count, &t, err);
    for (size_t k = 0; !st && k < count; k++) keep[k] = rows[k].turn.prefix_tokens;
    if (!st) st = traces_ids_from_prefix(l, where, t.streams->turns, keep, (uint32_t)count, &next, err);
    cedar_free(keep);
    if (st) return st;
    t.block_tokens = HASH_BLOCK_TOKENS;
    t.id_space = l->space_next++;
    return traces_add(l, &t, err);
}

static cedar_status set_prompt(cedar_turn *t, uint32_t prefix, uint64_t total, const char *where, cedar_err *err) {
    if (total > (uint64_t)TOKENS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the prompt has %llu tokens, at most %lld are allowed", where,
                          (unsigned long long)total, (long long)TOKENS_MAX);
    t->prefix_tokens = prefix;
    t->has_prefix = true;
    t->in_recorded = (uint32_t)total;
    t->in_tokens = total ? (uint32_t)total : 1;
    return CEDAR_OK;
}

/* --- the table --------------------------------------------------------------------------------------------------- */

enum { SESSION, ARRIVAL, ROUND, PREFIX, INPUT, OUTPUT, WAIT };

static const traces_column columns[] = {
    [SESSION] = { "session_id", "id", true },
    [ARRIVAL] = { "arrival_time", NULL, false },
    [ROUND] = { "round_idx", NULL, true },
    [PREFIX] = { "prefix_len", NULL, true },
    [INPUT] = { "input_len", NULL, true },
    [OUTPUT] = { "output_len", NULL, true },
    [WAIT] = { "tool_wait_after_ms", NULL, false },
};

static cedar_status record(traces_load *l, const traces_csv *csv, cedar_err *err) {
    traces_row row = { .line = l->line, .turn = { .ttft_ns = -1, .think_ns = -1, .model = -1 } };
    cedar_turn *t = &row.turn;
    uint32_t prefix = 0, input = 0;
    cedar_status st = traces_csv_name(l, csv, SESSION, &row.session, err);
    if (!st) st = traces_csv_int(csv, ROUND, INT32_MAX, &row.round, NULL, err);
    if (!st) st = traces_csv_time(csv, ARRIVAL, NS_PER_MS, START_S_MAX, &t->t_ns, &row.has_t, err);
    if (!st) st = traces_csv_tokens(csv, PREFIX, &prefix, err);
    if (!st) st = traces_csv_tokens(csv, INPUT, &input, err);
    if (!st) st = traces_csv_tokens(csv, OUTPUT, &t->out_tokens, err);
    if (!st) st = traces_csv_time(csv, WAIT, NS_PER_MS, SPAN_S_MAX, &row.wait_ns, &row.has_wait, err);
    if (!st) st = set_prompt(t, prefix, (uint64_t)prefix + input, csv->where, err);
    return traces_row_done(l, &row, st, err);
}

/* The arrival is the session's; a round follows the wait behind the round before it. */
static cedar_status table_session(traces_load *l, const traces_row *rows, size_t count, cedar_err *err) {
    traces_row *own = cedar_calloc(count, sizeof *own);
    if (!own) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu rounds", l->name, count);
    memcpy(own, rows, count * sizeof *own);
    for (size_t k = 1; k < count; k++) {
        own[k].has_t = false;
        own[k].has_delay = true;
        own[k].turn.t_ns = 0;
        own[k].turn.delay_ns = own[k - 1].wait_ns;
    }
    cedar_status st = session(l, own, count, err);
    cedar_free(own);
    return st;
}

const traces_reader traces_tracelab_csv = { .format = CEDAR_TRACE_TRACELAB_CSV, .columns = columns,
                                            .column_count = sizeof columns / sizeof *columns, .record = record,
                                            .file_end = traces_rows_end, .session = table_session };

/* --- rounds as JSON ---------------------------------------------------------------------------------------------- */

static bool probe(const json_t *doc) {
    return json_object_get(doc, "input_tokens_total") && json_object_get(doc, "round_index");
}

/* Events before the model's first output are its input; a usage report comes when the answer is complete. */
static bool is_input(const char *type) {
    return !strcmp(type, "user_message") || !strcmp(type, "tool_result");
}

/* A round is sent when the last event of its input is there and ends with its last event. */
static cedar_status read_events(const json_t *doc, const char *where, traces_row *row, cedar_err *err) {
    const json_t *list = json_object_get(doc, "timing_events");
    int64_t sent = -1, first_output = -1, last = -1;
    if (!json_is_array(list) || !json_array_size(list))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"timing_events\" must be an array with at least one event", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        char inner[WHERE_BYTES + 40];
        const char *type = json_string_value(json_object_get(e, "event_type"));
        int64_t t;
        bool present;
        snprintf(inner, sizeof inner, "%s: timing_events[%zu]", where, i);
        if (!json_is_object(e) || !type)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: must be an object with a string \"event_type\"", inner);
        cedar_status st = traces_stamp_get(e, inner, "timestamp", &t, &present, err);
        if (!st && !present) st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"timestamp\" is missing", inner);
        if (st) return st;
        if (is_input(type) && first_output < 0 && t > sent) sent = t;
        if (!is_input(type) && (first_output < 0 || t < first_output)) first_output = t;
        if (t > last) last = t;
    }
    cedar_turn *turn = &row->turn;
    turn->t_ns = sent >= 0 ? sent : first_output;
    row->has_t = true;
    if (last - turn->t_ns > SPAN_S_MAX * NS_PER_S)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the round takes more than %lld seconds", where, SPAN_S_MAX);
    if (last > turn->t_ns) turn->api_ns = last - turn->t_ns;
    turn->has_api = first_output >= 0;
    if (sent >= 0 && first_output >= sent) turn->ttft_ns = first_output - sent;
    return CEDAR_OK;
}

static cedar_status read_prompt(const json_t *doc, const char *where, cedar_turn *t, cedar_err *err) {
    uint32_t total = 0, prefix = 0;
    cedar_status st = traces_tokens_get(doc, where, "input_tokens_total", true, &total, err);
    if (!st) st = traces_tokens_get(doc, where, "prefix_tokens", true, &prefix, err);
    if (!st) st = traces_tokens_get(doc, where, "output_tokens", true, &t->out_tokens, err);
    if (!st && prefix > total)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"prefix_tokens\" is %u, more than the %u of \"input_tokens_total\"",
                        where, prefix, total);
    return st ? st : set_prompt(t, prefix, total, where, err);
}

static cedar_status document(traces_load *l, const json_t *doc, cedar_err *err) {
    char where[WHERE_BYTES];
    traces_row row = { .line = l->line, .turn = { .ttft_ns = -1, .think_ns = -1, .model = -1 } };
    snprintf(where, sizeof where, "%.300s:%d", l->name, l->line);
    cedar_status st = traces_label_get(l, doc, where, "session_id", &row.session, err);
    if (!st && !row.session) st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"session_id\" is missing", where);
    if (!st) st = cedar_json_int(doc, where, "round_index", 0, INT32_MAX, &row.round, err);
    if (!st && cedar_json_has(doc, "model")) st = traces_name_get(l, doc, where, "model", &row.model, err);
    if (!st) st = read_prompt(doc, where, &row.turn, err);
    if (!st) st = read_events(doc, where, &row, err);
    return traces_row_done(l, &row, st, err);
}

/* Dates become times from the first round of the file. */
static cedar_status file_end(traces_load *l, cedar_err *err) {
    int64_t first = INT64_MAX;
    for (size_t i = 0; i < l->row_count; i++)
        if (!l->rows[i].broken && l->rows[i].turn.t_ns < first) first = l->rows[i].turn.t_ns;
    for (size_t i = 0; i < l->row_count; i++) l->rows[i].turn.t_ns -= l->rows[i].broken ? 0 : first;
    return traces_rows_end(l, err);
}

const traces_reader traces_tracelab = { .format = CEDAR_TRACE_TRACELAB, .probe = probe, .document = document,
                                        .file_end = file_end, .session = session };
