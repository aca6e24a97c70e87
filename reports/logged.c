/* The steps that runs logged, with what each row of a step attended to: for `cedar calibrate`.
 *
 * Table steps counts rows; it does not say at which positions. These follow from table requests and the scheduler's
 * rules (sim/sched.c): every running request with a first token decodes one row a step, the others take prompt rows in
 * the order of admission, each up to the end of its prompt or to where its windows are stored. Every count that both
 * tables hold is compared, so a position is either exact or the step is marked as not known. */
#include "reports/reports.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "reports/reports_int.h"

typedef struct request {
    int64_t id, admit, first, last;             /* schedule; first and last INT64_MAX: not within the run */
    uint32_t in, prefill_steps, decode_steps;   /* as table requests has them */
    uint32_t pos, boundary, prefills, decodes;  /* as followed here */
    bool finished;
} request;

typedef struct reader {
    sqlite3 *db;
    const char *path;
    cedar_logged_run *run;
    request *requests;
    uint32_t request_count;
    uint32_t decoder_rows;                      /* prompt rows of an entry kept behind the cut; 0: all */
    uint32_t chunk_tokens;
    bool stores_windows;                        /* prompts stop at their last whole page */
    cedar_err *err;
} reader;

/* A step of table steps as far as only this file needs it. */
typedef struct logged {
    int64_t start, end;
    uint32_t prefill_rows;
} logged;

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

static cedar_status copy_text(const reader *r, sqlite3_stmt *q, int column, char **out) {
    *out = cedar_strdup(reports_column_text(q, column));
    return *out ? CEDAR_OK : cedar_fail(r->err, CEDAR_E_OOM, "%s: out of memory while reading it", r->path);
}

/* --- options ------------------------------------------------------------------------------------------------------ */

static cedar_status read_options(reader *r, const cedar_json *o, uint32_t window) {
    cedar_logged_run *run = r->run;
    char where[64];
    const char *cut = "", *graphs = "";
    int64_t decoder_rows = 0, chunk = 0, drafts = 0, gpus = 1;      /* programs without the option had one */
    bool cache = false;
    snprintf(where, sizeof where, "options of run %lld", (long long)run->run_id);
    cedar_status st = cedar_json_string(o, where, "cut", &cut, r->err);
    if (!st) st = cedar_json_string(o, where, "graphs", &graphs, r->err);
    if (!st) st = cedar_json_int(o, where, "decoder_rows", 0, UINT32_MAX, &decoder_rows, r->err);
    if (!st) st = cedar_json_int(o, where, "chunk_tokens", 0, UINT32_MAX, &chunk, r->err);
    if (!st) st = cedar_json_int(o, where, "draft_tokens", 0, UINT32_MAX, &drafts, r->err);
    if (!st && cedar_json_has(o, "gpus")) st = cedar_json_int(o, where, "gpus", 1, UINT32_MAX, &gpus, r->err);
    if (!st) st = cedar_json_bool(o, where, "prefix_cache", &cache, r->err);
    if (st) return st;
    run->gpus = (uint32_t)gpus;
    if (drafts)
        return cedar_fail(r->err, CEDAR_E_ARG, "%s: run %lld has draft_tokens = %lld: which rows its steps fed is not "
                          "logged; calibrate with runs without drafts", r->path, (long long)run->run_id,
                          (long long)drafts);
    snprintf(run->cut, sizeof run->cut, "%s", cut);
    snprintf(run->graphs, sizeof run->graphs, "%s", graphs);
    bool decoder = !strcmp(run->replay, "decoder") || !strcmp(run->replay, "both");
    r->decoder_rows = !decoder ? 0 : decoder_rows ? (uint32_t)decoder_rows : window;
    r->chunk_tokens = (uint32_t)chunk;
    r->stores_windows = cache && strcmp(run->replay, "encoder") && strcmp(run->replay, "both");
    return CEDAR_OK;
}

static cedar_status parse_options(reader *r, const char *text, uint32_t window) {
    cedar_json *doc;
    cedar_status st = cedar_json_parse(text, strlen(text), r->path, 1, &doc, r->err);
    if (st) return st;
    st = read_options(r, doc, window);
    cedar_json_free(doc);
    return st;
}

/* --- requests ----------------------------------------------------------------------------------------------------- */

static int64_t or_never(int64_t ns) { return ns < 0 ? INT64_MAX : ns; }

static cedar_status add_request(reader *r, sqlite3_stmt *q, uint32_t page) {
    request *grown = cedar_realloc(r->requests, r->request_count + 1, sizeof *grown);
    if (!grown) return cedar_fail(r->err, CEDAR_E_OOM, "%s: out of memory for its requests", r->path);
    r->requests = grown;
    uint32_t in = (uint32_t)sqlite3_column_int64(q, 4);
    r->requests[r->request_count++] = (request){
        .id = sqlite3_column_int64(q, 0), .admit = sqlite3_column_int64(q, 1),
        .first = or_never(sqlite3_column_int64(q, 2)), .last = or_never(sqlite3_column_int64(q, 3)), .in = in,
        .pos = (uint32_t)(sqlite3_column_int64(q, 5) - sqlite3_column_int64(q, 6)),
        .prefill_steps = (uint32_t)sqlite3_column_int64(q, 7), .decode_steps = (uint32_t)sqlite3_column_int64(q, 8),
        .boundary = page ? in / page * page : 0, .finished = sqlite3_column_int64(q, 3) >= 0
    };
    return CEDAR_OK;
}

static cedar_status load_requests(reader *r, uint32_t page) {
    if (!r->stores_windows) page = 0;
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(r->db, r->path, "SELECT request_id, admit_sched_ns, first_sched_ns, "
                                      "last_sched_ns, in_tokens, hit_tokens, replayed_tokens, prefill_steps, "
                                      "decode_steps FROM requests WHERE run_id = ? AND admit_sched_ns >= 0 "
                                      "ORDER BY admit_sched_ns, request_id", &q, r->err);
    if (!st) sqlite3_bind_int64(q, 1, r->run->run_id);
    while (!st && !(st = reports_next(r->db, r->path, q, &row, r->err)) && row) st = add_request(r, q, page);
    sqlite3_finalize(q);
    return st;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static void add_rows(cedar_logged_step *s, uint32_t pos, uint32_t rows, uint32_t kept, uint32_t *kept_sum) {
    double n = rows, k = kept, first = (double)pos + rows - kept;
    s->context += n * pos + n * (n + 1) / 2;
    s->kept_context += k * first + k * (k + 1) / 2;
    *kept_sum += kept;
}

/* The most prompt rows that a request may take next, as in sim/sched.c. */
static uint32_t rows_most(const reader *r, const request *q) {
    uint32_t rows = (q->boundary > q->pos ? q->boundary : q->in) - q->pos;
    return r->chunk_tokens ? min_u32(rows, r->chunk_tokens) : rows;
}

/* Follows every running request through the step. The step is known when the counts agree. */
static void follow(reader *r, cedar_logged_step *s, const logged *l, uint32_t from, uint32_t to) {
    uint32_t decodes = 0, prompts = 0, left = l->prefill_rows, kept = 0;
    s->known = true;
    for (uint32_t i = from; i < to; i++) {
        request *q = &r->requests[i];
        if (q->last <= l->start) continue;
        if (q->first <= l->start) {
            add_rows(s, q->in + q->decodes++, 1, 1, &kept);
            decodes++;
            s->logits++;
        } else if (prompts < s->prefill_entries) {
            uint32_t rows = min_u32(rows_most(r, q), left);     /* only the last entry may get less than it could */
            prompts++;
            s->known &= rows && (q->pos + rows == q->in) == (q->first == l->end);
            bool trims = r->decoder_rows && rows > r->decoder_rows;
            add_rows(s, q->pos, rows, trims ? r->decoder_rows : rows, &kept);
            q->pos += rows;
            q->prefills++;
            left -= rows;
            s->logits += q->pos == q->in;
        }
    }
    s->known &= decodes == s->decode_entries && prompts == s->prefill_entries && !left && kept == s->kept_rows;
}

static cedar_status add_step(reader *r, sqlite3_stmt *q, cedar_logged_step *s, logged *l) {
    if (sqlite3_column_int64(q, 1) != 1)
        return cedar_fail(r->err, CEDAR_E_ARG, "%s: run %lld has several steps a row (steps_per_row); only single "
                          "steps can be fitted", r->path, (long long)r->run->run_id);
    if (sqlite3_column_int64(q, 2) != 1)
        return cedar_fail(r->err, CEDAR_E_ARG, "%s: run %lld has several engines; steps of one engine can be fitted",
                          r->path, (long long)r->run->run_id);
    *s = (cedar_logged_step){ .step_id = sqlite3_column_int64(q, 0),
                              .prefill_entries = (uint32_t)sqlite3_column_int64(q, 3),
                              .decode_entries = (uint32_t)sqlite3_column_int64(q, 4),
                              .rows = (uint32_t)sqlite3_column_int64(q, 5),
                              .kept_rows = (uint32_t)sqlite3_column_int64(q, 7),
                              .trimmed = sqlite3_column_int(q, 8),
                              .duration_ns = sqlite3_column_int64(q, 11) };
    *l = (logged){ .start = sqlite3_column_int64(q, 9), .end = sqlite3_column_int64(q, 10),
                   .prefill_rows = (uint32_t)sqlite3_column_int64(q, 6) };
    return CEDAR_OK;
}

static cedar_status load_steps(reader *r) {
    sqlite3_stmt *q;
    bool row;
    uint32_t from = 0, to = 0;
    cedar_logged_run *run = r->run;
    cedar_status st = reports_prepare(r->db, r->path, "SELECT step_id, steps, engine, prefill_entries, decode_entries, "
                                      "rows, prefill_rows, kept_rows, trimmed, start_sched_ns, end_sched_ns, "
                                      "duration_ns, COUNT(*) OVER () FROM steps WHERE run_id = ? ORDER BY step_id",
                                      &q, r->err);
    if (!st) sqlite3_bind_int64(q, 1, run->run_id);
    while (!st && !(st = reports_next(r->db, r->path, q, &row, r->err)) && row) {
        if (!run->steps) run->steps = cedar_calloc((size_t)sqlite3_column_int64(q, 12), sizeof *run->steps);
        if (!run->steps) {
            st = cedar_fail(r->err, CEDAR_E_OOM, "%s: out of memory for its steps", r->path);
            break;
        }
        logged l = { 0 };
        cedar_logged_step *s = &run->steps[run->step_count];
        st = add_step(r, q, s, &l);
        if (st) break;
        run->step_count++;
        while (to < r->request_count && r->requests[to].admit <= l.start) to++;
        while (from < to && r->requests[from].last <= l.start) from++;
        follow(r, s, &l, from, to);
    }
    sqlite3_finalize(q);
    return st;
}

/* What was followed must have come out where the requests' own rows say. */
static cedar_status check_requests(const reader *r) {
    for (uint32_t i = 0; i < r->request_count; i++) {
        const request *q = &r->requests[i];
        if (!q->finished || (q->pos == q->in && q->prefills == q->prefill_steps && q->decodes == q->decode_steps))
            continue;
        return cedar_fail(r->err, CEDAR_E_FORMAT,
                          "%s: request %lld of run %lld has a prompt up to %u in %u steps and decodes in %u; by the "
                          "schedule it is %u, %u and %u, so the positions of its rows cannot be told", r->path,
                          (long long)q->id, (long long)r->run->run_id, q->in, q->prefill_steps, q->decode_steps, q->pos,
                          q->prefills, q->decodes);
    }
    return CEDAR_OK;
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

static cedar_status read_run(reader *r, sqlite3_stmt *q) {
    cedar_logged_run *run = r->run;
    run->run_id = sqlite3_column_int64(q, 0);
    cedar_status st = copy_text(r, q, 1, &run->label);
    if (!st) st = copy_text(r, q, 2, &run->model);
    snprintf(run->backend, sizeof run->backend, "%s", reports_column_text(q, 3));
    snprintf(run->device, sizeof run->device, "%s", reports_column_text(q, 10));
    snprintf(run->arith, sizeof run->arith, "%s", reports_column_text(q, 4));
    snprintf(run->clock, sizeof run->clock, "%s", reports_column_text(q, 5));
    snprintf(run->replay, sizeof run->replay, "%s", reports_column_text(q, 6));
    if (!st) st = parse_options(r, reports_column_text(q, 9), (uint32_t)sqlite3_column_int64(q, 7));
    if (!st) st = load_requests(r, (uint32_t)sqlite3_column_int64(q, 8));
    if (!st) st = load_steps(r);
    if (!st) st = check_requests(r);
    cedar_free(r->requests);
    return st;
}

static cedar_status load_runs(sqlite3 *db, const char *path, cedar_run_range range, cedar_logged *out,
                              cedar_err *err) {
    sqlite3_stmt *q;
    bool row;
    cedar_status st = reports_prepare(db, path, "SELECT run_id, label, model_name, backend, arith, clock, replay, "
                                      "window, page_tokens, config_json, device FROM runs WHERE run_id BETWEEN ? AND ? "
                                      "AND backend <> 'imported' ORDER BY run_id", &q, err);
    if (!st) {
        sqlite3_bind_int64(q, 1, range.first);
        sqlite3_bind_int64(q, 2, range.last);
    }
    while (!st && !(st = reports_next(db, path, q, &row, err)) && row) {
        cedar_logged_run *grown = cedar_realloc(out->runs, out->run_count + 1, sizeof *grown);
        if (!grown) {
            st = cedar_fail(err, CEDAR_E_OOM, "%s: out of memory for its runs", path);
            break;
        }
        out->runs = grown;
        memset(&out->runs[out->run_count], 0, sizeof *grown);
        reader r = { .db = db, .path = path, .run = &out->runs[out->run_count++], .err = err };
        st = read_run(&r, q);
    }
    sqlite3_finalize(q);
    if (st || out->run_count) return st;
    if (range.last == INT64_MAX) return cedar_fail(err, CEDAR_E_ARG, "%s: has no run with an engine", path);
    return range.first == range.last
               ? cedar_fail(err, CEDAR_E_ARG, "%s: has no run %lld with an engine", path, (long long)range.first)
               : cedar_fail(err, CEDAR_E_ARG, "%s: has no run from %lld to %lld with an engine", path,
                            (long long)range.first, (long long)range.last);
}

static cedar_status load_manifest(sqlite3 *db, const char *path, cedar_logged *out, cedar_err *err) {
    sqlite3_stmt *q;
    bool row = false;
    cedar_status st = reports_prepare(db, path, "SELECT commit_id, commit_dirty, started_at FROM manifest", &q, err);
    if (!st) st = reports_next(db, path, q, &row, err);
    if (!st && row) {
        snprintf(out->commit, sizeof out->commit, "%s", reports_column_text(q, 0));
        out->commit_dirty = sqlite3_column_int(q, 1);
        snprintf(out->started_at, sizeof out->started_at, "%s", reports_column_text(q, 2));
    }
    sqlite3_finalize(q);
    return st;
}

cedar_status cedar_logged_load(const char *path, cedar_run_range range, cedar_logged **out, cedar_err *err) {
    sqlite3 *db;
    *out = NULL;
    cedar_status st = reports_open(path, &db, err);
    if (st) return st;
    cedar_logged *l = cedar_calloc(1, sizeof *l);
    st = l ? load_manifest(db, path, l, err) : cedar_fail(err, CEDAR_E_OOM, "%s: no memory for its steps", path);
    if (!st) st = load_runs(db, path, range, l, err);
    sqlite3_close(db);
    if (st) cedar_logged_free(l);
    else *out = l;
    return st;
}

void cedar_logged_free(cedar_logged *l) {
    if (!l) return;
    for (uint32_t i = 0; i < l->run_count; i++) {
        cedar_free(l->runs[i].label);
        cedar_free(l->runs[i].model);
        cedar_free(l->runs[i].steps);
    }
    cedar_free(l->runs);
    cedar_free(l);
}
