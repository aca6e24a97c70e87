/* Owns the reader of Mooncake rows: one JSON object per request, ids of 512-token blocks (or of block_size
 * tokens, cedar's extension), times in milliseconds. Rows
 * with a session_id (AIPerf's extension) form sessions of several turns; any other row is a session of its own. */
#include <stdio.h>

#include "base/json.h"
#include "traces/traces_int.h"

#define BLOCK_TOKENS_DEFAULT 512
#define BLOCK_TOKENS_MAX 65536

static bool probe(const json_t *doc) {
    return json_object_get(doc, "input_length") != NULL;
}

static cedar_status check_length(const traces_row *row, const char *where, cedar_err *err) {
    int64_t n = row->turn.block_count, in = row->turn.in_recorded, block = row->block_tokens;
    if (in <= n * block && in > (n - 1) * block) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"input_length\" %lld does not fit %lld \"hash_ids\" of %lld tokens "
                      "each; it needs %lld", where, (long long)in, (long long)n, (long long)block,
                      (long long)((in + block - 1) / block));
}

static cedar_status read_row(traces_load *l, const json_t *o, const char *where, traces_row *row, cedar_err *err) {
    cedar_turn *t = &row->turn;
    const json_t *ids = json_object_get(o, "hash_ids");
    int64_t block = BLOCK_TOKENS_DEFAULT;
    t->ttft_ns = t->think_ns = -1;
    t->model = -1;
    if (json_object_get(o, "text_input"))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"text_input\" rows have no token counts; give input_length and "
                          "hash_ids instead", where);
    cedar_status st = traces_time_get(o, where, "timestamp", NS_PER_MS, START_S_MAX, &t->t_ns, &row->has_t, err);
    if (!st) st = traces_time_get(o, where, "delay", NS_PER_MS, SPAN_S_MAX, &t->delay_ns, &row->has_delay, err);
    if (!st) st = traces_tokens_get(o, where, "input_length", true, &t->in_recorded, err);
    if (!st) st = traces_tokens_get(o, where, "output_length", true, &t->out_tokens, err);
    if (!st && cedar_json_has(o, "block_size"))
        st = cedar_json_int(o, where, "block_size", 1, BLOCK_TOKENS_MAX, &block, err);
    row->block_tokens = (uint32_t)block;
    if (!st && ids && !json_is_null(ids)) {
        st = traces_ids_get(l, o, where, t, err);
        if (!st) st = check_length(row, where, err);
    }
    if (!st && !row->has_t && !row->session)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"timestamp\" is missing", where);
    t->in_tokens = t->in_recorded ? t->in_recorded : 1;
    return st;
}

static cedar_status document(traces_load *l, const json_t *doc, cedar_err *err) {
    char where[WHERE_BYTES];
    traces_row row = { .line = l->line };
    snprintf(where, sizeof where, "%.300s:%d", l->name, l->line);
    cedar_status st = traces_label_get(l, doc, where, "session_id", &row.session, err);
    if (!st) st = read_row(l, doc, where, &row, err);
    return traces_row_done(l, &row, st, err);
}

static cedar_status session(traces_load *l, const traces_row *rows, size_t count, cedar_err *err) {
    cedar_trace t;
    for (size_t k = 1; k < count; k++)
        if (rows[k].block_tokens != rows->block_tokens)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: \"block_size\" is %u, the session's first row says %u",
                              l->name, rows[k].line, rows[k].block_tokens, rows->block_tokens);
    cedar_status st = traces_rows_trace(l, rows, count, &t, err);
    if (st) return st;
    t.ids_global = true;
    t.id_space = l->file_space;
    t.block_tokens = rows->block_tokens;
    return traces_add(l, &t, err);
}

const traces_reader traces_mooncake = { .format = CEDAR_TRACE_MOONCAKE, .probe = probe, .document = document,
                                        .file_end = traces_rows_end, .session = session };
