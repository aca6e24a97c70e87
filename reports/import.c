/* Records of AIPerf as a run of cedar's own schema.
 *
 * The file is read twice. The first pass checks it, counts, hashes, and finds the earliest start, from which all times
 * count; nothing is created before it has succeeded. The second pass writes the rows. Memory grows with the sessions of
 * the file, not with its requests. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/version.h"
#include "reports/aiperf.h"
#include "reports/reports.h"
#include "reports/reports_int.h"

/* --- names to numbers --------------------------------------------------------------------------------------------- */

/* Numbers 0, 1, 2, ... for texts in the order they first appear, whatever the hash does. */
typedef struct names {
    char **text;            /* [count] owned */
    uint32_t count, room;
    uint32_t *slot;         /* [slots] number + 1, 0 when free; slots is a power of 2, at least 2 * count */
    uint32_t slots;
} names;

static uint64_t hash_text(const char *s) {
    uint64_t h = 0;
    for (; *s; s++) h = cedar_fold64(h, (uint8_t)*s);
    return h;
}

static uint32_t find_slot(const names *n, const char *text) {
    uint32_t at = (uint32_t)hash_text(text) & (n->slots - 1);
    while (n->slot[at] && strcmp(n->text[n->slot[at] - 1], text)) at = (at + 1) & (n->slots - 1);
    return at;
}

static cedar_status names_grow(names *n, cedar_err *err) {
    if (n->count < n->room) return CEDAR_OK;
    uint32_t room = n->room ? 2 * n->room : 64;
    char **text = cedar_realloc(n->text, room, sizeof *text);
    if (text) n->text = text;
    uint32_t *slot = text ? cedar_calloc(2 * (size_t)room, sizeof *slot) : NULL;
    if (!slot) return cedar_fail(err, CEDAR_E_OOM, "no memory for the names of %u sessions", room);
    cedar_free(n->slot);
    n->slot = slot;
    n->slots = 2 * room;
    n->room = room;
    for (uint32_t i = 0; i < n->count; i++) n->slot[find_slot(n, n->text[i])] = i + 1;
    return CEDAR_OK;
}

static cedar_status names_number(names *n, const char *text, uint32_t *out, cedar_err *err) {
    cedar_status st = names_grow(n, err);
    if (st) return st;
    uint32_t at = find_slot(n, text);
    if (!n->slot[at]) {
        char *copy = cedar_strdup(text);
        if (!copy) return cedar_fail(err, CEDAR_E_OOM, "no memory for the name of a session");
        n->text[n->count] = copy;
        n->slot[at] = ++n->count;
    }
    *out = n->slot[at] - 1;
    return CEDAR_OK;
}

static void names_free(names *n) {
    for (uint32_t i = 0; i < n->count; i++) cedar_free(n->text[i]);
    cedar_free(n->text);
    cedar_free(n->slot);
}

/* --- state -------------------------------------------------------------------------------------------------------- */

typedef struct session {
    uint32_t trace;             /* number in `traces` of the root agent's conversation, until then of the first one */
    uint32_t requests, streams;
    int64_t start_ns, end_ns;
    bool cut, seen, root_seen;
} session;

typedef struct import {
    const char *path;
    cedar_import_opts opts;
    cedar_import_counts counts;
    FILE *file;
    char hash[CEDAR_SHA256_HEX];
    int64_t zero_ns;            /* earliest start: time 0 of the run */
    int64_t end_ns;             /* latest end, from zero_ns */
    uint64_t event_hash;
    names session_names, stream_names, traces;
    session *sessions;          /* [session_room], by number */
    int32_t *stream_index;      /* [stream_room] place within its session, by number */
    uint32_t session_room, stream_room;
    cedar_store *store;
    const cedar_observer *observer;
} import;

enum { RUN_ID = 1 };

static bool is_profiling(const aiperf_record *r) { return !strcmp(r->phase, "profiling"); }

/* --- first pass --------------------------------------------------------------------------------------------------- */

static void count_record(import *m, const aiperf_record *r) {
    cedar_import_counts *c = &m->counts;
    if (!c->requests++ || r->start_ns < m->zero_ns) m->zero_ns = r->start_ns;
    c->cancelled += r->cancelled;
    c->itl_differs += r->itl_differs;
    if (!is_profiling(r)) c->other_phase++;
    else if (r->failed) c->errors++;
    else c->kept++;
}

/* A line that cannot be used: fails when strict, else is counted. */
static cedar_status skip_line(import *m, cedar_status st, const cedar_err *why, cedar_err *err) {
    if (m->opts.strict || st != CEDAR_E_FORMAT) return cedar_fail(err, st, "%s", why->msg);
    if (!m->counts.skipped++) snprintf(m->counts.skipped_first, sizeof m->counts.skipped_first, "%s", why->msg);
    return CEDAR_OK;
}

static cedar_status check_counts(const import *m, cedar_err *err) {
    if (m->counts.requests) return CEDAR_OK;
    if (!m->counts.lines)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: is empty; AIPerf's profile_export.jsonl has one request a line",
                          m->path);
    return cedar_fail(err, CEDAR_E_FORMAT,
                      "%s: none of its %llu lines is a record of AIPerf's profile_export.jsonl: %.300s", m->path,
                      (unsigned long long)m->counts.lines, m->counts.skipped_first);
}

static cedar_status first_pass(import *m, cedar_err *err) {
    aiperf_lines l;
    aiperf_record r;
    bool more;
    cedar_status st = aiperf_lines_open(&l, m->file, m->path, err);
    while (!st && !(st = aiperf_lines_next(&l, &more, err)) && more) {
        cedar_err why = { 0 };
        m->counts.lines++;
        cedar_status bad = aiperf_record_parse(l.text, l.bytes, m->path, l.line, &r, &why);
        if (bad) st = skip_line(m, bad, &why, err);
        else count_record(m, &r);
        aiperf_record_free(&r);
    }
    if (!st) cedar_sha256_hex(&l.hash, m->hash);
    aiperf_lines_close(&l);
    return st ? st : check_counts(m, err);
}

/* --- the run ------------------------------------------------------------------------------------------------------ */

/* Owned by the caller (free): jansson's memory. */
static char *config_json(const import *m) {
    const cedar_import_counts *c = &m->counts;
    json_t *j = json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I}", "origin", "imported", "format", "aiperf", "file",
                          m->path, "strict", m->opts.strict, "lines", (json_int_t)c->lines, "skipped",
                          (json_int_t)c->skipped, "cancelled", (json_int_t)c->cancelled, "itl_differs",
                          (json_int_t)c->itl_differs);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

static void hash_of_text(const char *text, char out[CEDAR_SHA256_HEX]) {
    cedar_sha256 h;
    cedar_sha256_init(&h);
    cedar_sha256_add(&h, text, strlen(text));
    cedar_sha256_hex(&h, out);
}

/* When the first request started, if the file's clock counts from 1970; a monotonic clock does not reach 2001. */
static void start_text(const import *m, char out[32]) {
    time_t s = (time_t)(m->zero_ns / 1000000000);
    struct tm utc;
    snprintf(out, 32, "unknown");
    if (s >= 1000000000 && gmtime_r(&s, &utc)) strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

static cedar_status write_manifest(import *m, cedar_err *err) {
    /* A scenario that says why there is none, should somebody play it. */
    static const char scenario[] = "error(\"these records were imported; they cannot be played again\")\n";
    char hash[CEDAR_SHA256_HEX], when[32];
    hash_of_text(scenario, hash);
    start_text(m, when);
    cedar_manifest_row row = { .cedar_version = cedar_version(), .commit = cedar_build_commit(),
                               .commit_dirty = cedar_build_dirty(), .compiler = cedar_build_compiler(),
                               .build_flags = cedar_build_flags(), .scenario_path = m->path, .scenario_text = scenario,
                               .scenario_hash = hash, .overrides = "[]", .machine = "{}", .started_at = when };
    return m->observer->manifest(m->observer->self, &row, err);
}

static cedar_status write_run(import *m, cedar_err *err) {
    char hash[CEDAR_SHA256_HEX];
    const char *slash = strrchr(m->path, '/');
    char *config = config_json(m);
    if (!config) return cedar_fail(err, CEDAR_E_ARG, "%s: its name is not valid UTF-8, or memory ran out", m->path);
    hash_of_text(config, hash);
    cedar_run_row row = { .run_id = RUN_ID, .label = m->opts.label ? m->opts.label : slash ? slash + 1 : m->path,
                          .config_json = config, .config_hash = hash, .model_name = "unknown", .model_hash = "",
                          .model_origin = "imported", .trace_paths = m->path, .trace_hash = m->hash,
                          .backend = "imported", .arith = "unknown", .clock = "wall", .replay = "unknown",
                          .lanes = m->opts.lanes };
    cedar_status st = m->observer->run_begin(m->observer->self, &row, err);
    free(config);
    return st;
}

/* Room for the session and the stream with these numbers. */
static cedar_status make_room(import *m, uint32_t session_number, uint32_t stream_number, cedar_err *err) {
    if (session_number >= m->session_room) {
        uint32_t room = 2 * session_number + 64;
        session *grown = cedar_realloc(m->sessions, room, sizeof *grown);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u sessions", room);
        memset(grown + m->session_room, 0, (room - m->session_room) * sizeof *grown);
        m->sessions = grown;
        m->session_room = room;
    }
    if (stream_number >= m->stream_room) {
        uint32_t room = 2 * stream_number + 64;
        int32_t *grown = cedar_realloc(m->stream_index, room, sizeof *grown);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u streams", room);
        for (uint32_t i = m->stream_room; i < room; i++) grown[i] = -1;
        m->stream_index = grown;
        m->stream_room = room;
    }
    return CEDAR_OK;
}

/* The tree a request belongs to: its root, else its own session, else its conversation, else a number. */
static cedar_status number_session(import *m, const aiperf_record *r, int line, uint32_t *out, cedar_err *err) {
    char number[48];
    const char *text = r->root[0] ? r->root : r->correlation[0] ? r->correlation : r->conversation;
    if (!text[0]) {
        if (r->session_num >= 0) snprintf(number, sizeof number, "session %lld", (long long)r->session_num);
        else snprintf(number, sizeof number, "line %d", line);
        text = number;
    }
    return names_number(&m->session_names, text, out, err);
}

/* Stream 0 is the root agent; others count up in the order they appear within their session. */
static cedar_status find_place(import *m, const aiperf_record *r, int line, uint32_t *session_number, int32_t *stream,
                               cedar_err *err) {
    uint32_t stream_number = 0;
    bool is_root = !r->root[0] || !r->correlation[0] || !strcmp(r->root, r->correlation);
    cedar_status st = number_session(m, r, line, session_number, err);
    if (!st && !is_root) st = names_number(&m->stream_names, r->correlation, &stream_number, err);
    if (!st) st = make_room(m, *session_number, stream_number, err);
    if (st) return st;
    session *s = &m->sessions[*session_number];
    if (!s->streams) s->streams = 1;        /* the root agent, even if its records come later or never */
    if (!is_root && m->stream_index[stream_number] < 0) m->stream_index[stream_number] = (int32_t)s->streams++;
    *stream = is_root ? 0 : m->stream_index[stream_number];
    return CEDAR_OK;
}

static cedar_status update_session(import *m, const aiperf_record *r, int32_t stream, session *s, cedar_err *err) {
    int64_t start_ns = r->start_ns - m->zero_ns, end_ns = r->end_ns - m->zero_ns;
    if (!s->seen || (stream == 0 && !s->root_seen)) {
        cedar_status st = names_number(&m->traces, r->conversation, &s->trace, err);
        if (st) return st;
    }
    if (!s->seen) {
        s->start_ns = start_ns;
        s->end_ns = end_ns;
        s->seen = true;
    }
    s->root_seen |= stream == 0;
    if (start_ns < s->start_ns) s->start_ns = start_ns;
    if (end_ns > s->end_ns) s->end_ns = end_ns;
    if (end_ns > m->end_ns) m->end_ns = end_ns;
    s->requests++;
    s->cut |= r->cancelled;
    return CEDAR_OK;
}

static void fold_request(import *m, const cedar_request_row *row, int64_t end_ns) {
    const int64_t words[] = { row->request_id, row->session_id, row->stream, row->turn, row->in_tokens, row->out_tokens,
                              row->arrival_ns, row->first_ns, row->last_ns, end_ns, row->error[0] != 0 };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        m->event_hash = cedar_fold64(m->event_hash, (uint64_t)words[i]);
    m->event_hash = cedar_fold64(m->event_hash, hash_text(row->phase));
}

static cedar_status write_request(import *m, const aiperf_record *r, int line, cedar_err *err) {
    uint32_t number;
    int32_t stream;
    cedar_status st = find_place(m, r, line, &number, &stream, err);
    if (!st) st = update_session(m, r, stream, &m->sessions[number], err);
    if (st) return st;
    int64_t start = r->start_ns - m->zero_ns, end = r->end_ns - m->zero_ns;
    int64_t first = r->ttft_ns >= 0 ? start + r->ttft_ns : -1, last = r->latency_ns >= 0 ? start + r->latency_ns : -1;
    cedar_request_row row = { .run_id = RUN_ID, .request_id = line, .session_id = (int64_t)number + 1, .stream = stream,
                              .turn = r->turn, .trace_id = r->conversation, .phase = r->phase,
                              .in_recorded = r->in_tokens, .out_recorded = r->out_tokens, .in_tokens = r->in_tokens,
                              .out_tokens = r->out_tokens, .miss = CEDAR_MISS_NONE, .arrival_sched_ns = start,
                              .admit_sched_ns = -1, .first_sched_ns = first, .last_sched_ns = last, .arrival_ns = start,
                              .admit_ns = -1, .first_ns = first, .last_ns = last, .error = r->error };
    reports_end_row end_row = { RUN_ID, line, end };
    st = m->observer->request(m->observer->self, &row, err);
    if (!st && !r->failed && end != last) st = reports_store_end(m->store, &end_row, err);
    fold_request(m, &row, end);
    return st;
}

static cedar_status write_sessions(import *m, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (uint32_t i = 0; i < m->session_names.count && !st; i++) {
        const session *s = &m->sessions[i];
        cedar_session_row row = { .run_id = RUN_ID, .session_id = (int64_t)i + 1, .trace_id = m->traces.text[s->trace],
                                  .streams = s->streams, .requests_planned = s->requests, .requests_done = s->requests,
                                  .start_sched_ns = s->start_ns, .end_sched_ns = s->end_ns, .start_ns = s->start_ns,
                                  .end_ns = s->end_ns, .outcome = s->cut ? "cut" : "finished", .t_star_ns = -1 };
        st = m->observer->session(m->observer->self, &row, err);
    }
    m->counts.sessions = m->session_names.count;
    return st;
}

/* Names and sentences are those of sim/validity.h; an import can fail the gate, and can never be a submission. */
static cedar_status write_run_end(import *m, cedar_err *err) {
    const cedar_import_counts *c = &m->counts;
    bool rate = c->kept && c->errors > c->kept / 10;
    char invalid[64], why[192];
    snprintf(invalid, sizeof invalid, "scenario_unknown%s", !c->kept ? " no_success" : rate ? " error_rate" : "");
    int at = snprintf(why, sizeof why, "the scenario's rules cannot be found again");
    if (!c->kept) snprintf(why + at, sizeof why - (size_t)at, "; no request completed");
    else if (rate)
        snprintf(why + at, sizeof why - (size_t)at, "; %llu errors are more than 10%% of %llu completed requests",
                 (unsigned long long)c->errors, (unsigned long long)c->kept);
    cedar_run_end_row row = { .run_id = RUN_ID, .status = "finished", .error = "", .event_hash = m->event_hash,
                              .requests = m->counts.requests, .sessions = m->counts.sessions, .end_sched_ns = m->end_ns,
                              .end_ns = m->end_ns, .profile_sched_ns = -1, .profile_ns = -1,
                              .gate_ok = c->kept && !rate, .invalid = invalid, .invalid_why = why };
    return m->observer->run_end(m->observer->self, &row, err);
}

/* --- second pass -------------------------------------------------------------------------------------------------- */

static cedar_status changed(const import *m, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_IO, "%s: changed while it was read; import it when its writer is done", m->path);
}

static cedar_status second_pass(import *m, cedar_err *err) {
    aiperf_lines l;
    aiperf_record r;
    bool more;
    uint64_t requests = 0;
    char hash[CEDAR_SHA256_HEX];
    cedar_status st = aiperf_lines_open(&l, m->file, m->path, err);
    while (!st && !(st = aiperf_lines_next(&l, &more, err)) && more) {
        cedar_err why = { 0 };
        cedar_status bad = aiperf_record_parse(l.text, l.bytes, m->path, l.line, &r, &why);
        if (bad && bad != CEDAR_E_FORMAT) st = cedar_fail(err, bad, "%s", why.msg);
        if (bad) continue;
        if (++requests > m->counts.requests || r.start_ns < m->zero_ns) st = changed(m, err);
        else st = write_request(m, &r, l.line, err);
        aiperf_record_free(&r);
    }
    if (!st) {
        cedar_sha256_hex(&l.hash, hash);
        if (strcmp(hash, m->hash)) st = changed(m, err);
    }
    aiperf_lines_close(&l);
    return st;
}

static cedar_status write_all(import *m, cedar_err *err) {
    cedar_status st = write_manifest(m, err);
    if (!st) st = write_run(m, err);
    if (!st) st = second_pass(m, err);
    if (!st) st = write_sessions(m, err);
    return st ? st : write_run_end(m, err);
}

/* Creates the database and fills it; a failure leaves none. */
static cedar_status write_database(import *m, const char *db_path, cedar_err *err) {
    cedar_status st = cedar_store_create(db_path, m->opts.replace, &m->store, err);
    if (st) return st;
    m->observer = cedar_store_observer(m->store);
    st = write_all(m, err);
    cedar_status closed = cedar_store_close(m->store, !st, st ? NULL : err);
    if (st) (void)!reports_remove_database(db_path, NULL);
    return st ? st : closed;
}

cedar_status cedar_import_aiperf(const char *path, const char *db_path, const cedar_import_opts *opts,
                                 cedar_import_counts *out, cedar_err *err) {
    import m = { .path = path, .opts = opts ? *opts : (cedar_import_opts){ 0 } };
    *out = (cedar_import_counts){ 0 };
    m.file = fopen(path, "rb");
    if (!m.file) return cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    cedar_status st = first_pass(&m, err);
    if (!st) st = write_database(&m, db_path, err);
    fclose(m.file);
    names_free(&m.session_names);
    names_free(&m.stream_names);
    names_free(&m.traces);
    cedar_free(m.sessions);
    cedar_free(m.stream_index);
    if (!st) *out = m.counts;
    return st;
}
