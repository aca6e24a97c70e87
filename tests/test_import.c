/* Tests of importing AIPerf's per-request records: old and new forms, units, errors, sessions, scoring through the
 * views, broken files with their exact messages. Expected numbers are computed by hand. */
#include <check.h>
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "reports/reports.h"

static const double NONE = -1e300;      /* expects NULL */

static char dir[64], in_path[96], db_path[96];
static cedar_err err;
static cedar_import_counts counts;
static sqlite3 *db;

/* --- files -------------------------------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info, (void)type, (void)where;
    return remove(path);
}

static void set_up(void) {
    snprintf(dir, sizeof dir, "/tmp/cedar-import-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(in_path, sizeof in_path, "%s/profile_export.jsonl", dir);
    snprintf(db_path, sizeof db_path, "%s/run.db", dir);
    memset(&err, 0, sizeof err);
    db = NULL;
}

static void tear_down(void) {
    sqlite3_close(db);
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void write_text(const char *text) {
    FILE *f = fopen(in_path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

static void open_db(void) { ck_assert_int_eq(sqlite3_open_v2(db_path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK); }

/* Imports and opens the database. */
static void import(const char *text, const cedar_import_opts *opts) {
    write_text(text);
    ck_assert_msg(!cedar_import_aiperf(in_path, db_path, opts, &counts, &err), "%s", err.msg);
    open_db();
}

static sqlite3_stmt *first_row(const char *sql) {
    sqlite3_stmt *q;
    ck_assert_msg(sqlite3_prepare_v2(db, sql, -1, &q, NULL) == SQLITE_OK, "%s: %s", sql, sqlite3_errmsg(db));
    ck_assert_msg(sqlite3_step(q) == SQLITE_ROW, "%s: no row", sql);
    return q;
}

/* Columns of the first row against numbers, up to rounding of the last digits. */
static void check_row(const char *sql, int n, ...) {
    sqlite3_stmt *q = first_row(sql);
    va_list want;
    va_start(want, n);
    ck_assert_int_eq(sqlite3_column_count(q), n);
    for (int i = 0; i < n; i++) {
        double w = va_arg(want, double);
        double x = sqlite3_column_type(q, i) == SQLITE_NULL ? NONE : sqlite3_column_double(q, i);
        ck_assert_msg(fabs(x - w) <= 1e-12 * fabs(w), "%s: column %d is %.17g, expected %.17g", sql, i, x, w);
    }
    va_end(want);
    sqlite3_finalize(q);
}

static void check_text(const char *sql, const char *want) {
    sqlite3_stmt *q = first_row(sql);
    ck_assert_str_eq((const char *)sqlite3_column_text(q, 0), want);
    sqlite3_finalize(q);
}

/* --- records ------------------------------------------------------------------------------------------------------ */

/* The example of the format's description. */
static const char example[] =
    "{\"metadata\":{\"conversation_id\":\"demo\",\"turn_index\":1,\"request_start_ns\":1000000000,"
    "\"request_end_ns\":3000000000,\"benchmark_phase\":\"profiling\"},\"metrics\":{\"time_to_first_token\":"
    "{\"value\":400.0,\"unit\":\"ms\"},\"request_latency\":{\"value\":2000.0,\"unit\":\"ms\"},\"inter_token_latency\":"
    "{\"value\":8.0,\"unit\":\"ms\"},\"input_sequence_length\":{\"value\":330,\"unit\":\"tokens\"},"
    "\"output_sequence_length\":{\"value\":201,\"unit\":\"tokens\"}},\"error\":null}\n";

START_TEST(example_of_the_format) {
    cedar_import_opts opts = { .strict = true, .lanes = 16, .label = "point 16" };
    import(example, &opts);
    ck_assert_uint_eq(counts.lines, 1);
    ck_assert_uint_eq(counts.requests, 1);
    ck_assert_uint_eq(counts.kept, 1);
    ck_assert_uint_eq(counts.sessions, 1);
    ck_assert_uint_eq(counts.errors + counts.cancelled + counts.other_phase + counts.skipped + counts.itl_differs, 0);
    check_row("SELECT request_id, session_id, turn, in_tokens, out_tokens, arrival_ns, first_ns, last_ns FROM requests",
              8, 1.0, 1.0, 1.0, 330.0, 201.0, 0.0, 400e6, 2000e6);
    check_row("SELECT ttft_ns, e2el_ns, itl_ns FROM v_request_times", 3, 400e6, 2000e6, 8e6);
    check_row("SELECT p90_intvty FROM v_interactivity WHERE metric = 'itl'", 1, 125.0);
    check_row("SELECT duration_ns, input_tok_s, output_tok_s, total_tok_s FROM v_throughput", 4, 2e9, 165.0, 100.5,
              265.5);
    check_row("SELECT lanes, status = 'finished', requests, sessions, steps FROM runs", 5, 16.0, 1.0, 1.0, 1.0, 0.0);
    check_text("SELECT label FROM runs", "point 16");
    check_text("SELECT model_origin || ' ' || backend || ' ' || json_extract(config_json, '$.origin') FROM runs",
               "imported imported imported");
    check_row("SELECT finished FROM manifest", 1, 1.0);
    check_row("SELECT count(*) FROM request_ends", 1, 0.0);
    check_row("SELECT valid FROM v_validity", 1, 1.0);
    check_row("SELECT n, hit_rate, hit_tokens, in_tokens FROM v_cache", 4, 1.0, NONE, NONE, NONE);
    check_row("SELECT count(*) FROM v_misses", 1, 0.0);
    check_text("SELECT started_at FROM manifest", "unknown");
}
END_TEST

/* Records with a clock that counts from 1970; the line is made up after a public example of the format. */
START_TEST(clock_that_counts_from_1970) {
    import(
        "{\"metadata\":{\"request_start_ns\":1759813207532900363,\"request_end_ns\":1759813207838764604},\"metrics\":"
        "{\"request_latency\":{\"value\":297.52522799999997,\"unit\":\"ms\"},\"time_to_first_token\":"
        "{\"value\":255.88656799999998,\"unit\":\"ms\"},\"input_sequence_length\":550,\"output_sequence_length\":9,"
        "\"inter_token_latency\":5.2048325,\"output_token_throughput_per_user\":192.13}}",
        NULL);
    ck_assert_uint_eq(counts.itl_differs, 0);
    check_text("SELECT started_at FROM manifest", "2025-10-07T05:00:07Z");
    check_row("SELECT ttft_ns, e2el_ns, itl_ns, end_ns FROM v_request_times", 4, 255886568.0, 297525228.0, 5204832.5,
              305864241.0);
    check_row("SELECT duration_ns FROM v_throughput", 1, 305864241.0);
}
END_TEST

/* Plain numbers (ms), no phase; and every unit, for one request of 10 ms TTFT and 2 s in all. */
START_TEST(forms_of_a_metric) {
    static const char *const forms[][2] = {
        { "10", "2000" }, { "10.0", "2e3" },
        { "{\"value\":10}", "{\"value\":2000.0}" },
        { "{\"value\":10,\"unit\":\"ms\"}", "{\"unit\":\"s\",\"value\":2}" },
        { "{\"value\":0.01,\"unit\":\"s\"}", "{\"value\":2000000,\"unit\":\"us\"}" },
        { "{\"value\":10000000,\"unit\":\"ns\"}", "{\"value\":2000,\"unit\":\"ms\"}" }
    };
    char text[4096];
    int at = 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        at += snprintf(text + at, sizeof text - (size_t)at,
                       "{\"metadata\":{\"request_start_ns\":5,\"request_end_ns\":2000000005},\"metrics\":{"
                       "\"time_to_first_token\":%s,\"request_latency\":%s,\"input_sequence_length\":7,"
                       "\"output_sequence_length\":3.0}}\n", forms[i][0], forms[i][1]);
    cedar_import_opts opts = { .strict = true };
    import(text, &opts);
    ck_assert_uint_eq(counts.kept, 6);
    check_row("SELECT count(*), min(ttft_ns), max(ttft_ns), min(e2el_ns), max(e2el_ns), min(itl_ns), max(itl_ns), "
              "min(in_tokens), max(out_tokens) FROM v_request_times WHERE phase = 'profiling'", 9,
              6.0, 10e6, 10e6, 2000e6, 2000e6, 995e6, 995e6, 7.0, 3.0);
    ck_assert_uint_eq(counts.sessions, 6);      /* nothing says which requests belong together */
}
END_TEST

/* Formats one record: times in ms; error is JSON. */
static int put_record(char *to, size_t room, const char *phase, double start, double ttft, double latency, double end,
                      int in, int out, const char *error) {
    int n = snprintf(to, room,
                     "{\"metadata\":{\"conversation_id\":\"c\",\"request_start_ns\":%.0f,\"request_end_ns\":%.0f,"
                     "\"benchmark_phase\":\"%s\"},\"metrics\":{\"time_to_first_token\":%g,\"request_latency\":%g,"
                     "\"input_sequence_length\":%d,\"output_sequence_length\":%d},\"error\":%s}\n",
                     start * 1e6, end * 1e6, phase, ttft, latency, in, out, error);
    ck_assert_int_lt(n, (int)room);
    return n;
}

/* Ten requests with ITLs of 1 to 10 ms (101 tokens each), among rows that must not count: a warm-up row and an error
 * row, both far slower, larger, earlier or later than the rest. The last response goes on 1 s after its last token. */
START_TEST(population_and_scores) {
    char text[8192];
    int at = put_record(text, sizeof text, "warmup", 0, 9000, 90000, 90000, 1000000, 1000, "null");
    for (int i = 1; i <= 10; i++)
        at += put_record(text + at, sizeof text - (size_t)at, "profiling", 10000 + 100 * i, 50, 50 + 100 * i,
                         10050 + 200 * i + (i == 10 ? 1000 : 0), 999, 101, "null");
    put_record(text + at, sizeof text - (size_t)at, "profiling", 5000, 8000, 95000, 100000, 1000000, 1000,
               "{\"code\":500,\"type\":\"ServerError\",\"message\":\"out of pages\"}");
    import(text, NULL);
    ck_assert_uint_eq(counts.requests, 12);
    ck_assert_uint_eq(counts.kept, 10);
    ck_assert_uint_eq(counts.errors, 1);
    ck_assert_uint_eq(counts.other_phase, 1);
    check_row("SELECT n, mean_ns, p50_ns, p75_ns, p90_ns, p95_ns, std_ns FROM v_latency WHERE metric = 'itl'", 7,
              10.0, 5.5e6, 5.5e6, 7.75e6, 9.1e6, 9.55e6, 2.8722813232690143e6);
    check_row("SELECT n, p90_ns FROM v_latency WHERE metric = 'ttft'", 2, 10.0, 50e6);
    /* 1 / p90(ITL), not a percentile of 1 / ITL (110 or 550). */
    check_row("SELECT p90_intvty, mean_intvty FROM v_interactivity WHERE metric = 'itl'", 2, 1e3 / 9.1, 1e3 / 5.5);
    /* From the first kept start, 10.1 s, to the last kept response's end, 13.05 s. */
    check_row("SELECT n, duration_ns, total_tokens, total_tok_s FROM v_throughput", 4, 10.0, 2.95e9, 11000.0,
              11000 / 2.95);
    check_row("SELECT request_id, end_ns FROM request_ends ORDER BY request_id DESC", 2, 11.0, 13.05e9);
    check_row("SELECT completed, errors, valid FROM v_validity", 3, 10.0, 1.0, 1.0);
    check_text("SELECT error FROM requests WHERE error <> ''", "500 ServerError: out of pages");
    check_row("SELECT first_ns, last_ns, in_tokens FROM requests WHERE error <> ''", 3, -1.0, -1.0, 0.0);
}
END_TEST

START_TEST(errors_and_cancelled) {
    static const char head[] = "{\"metadata\":{\"x_correlation_id\":\"s\",\"request_start_ns\":1,\"request_end_ns\":2",
                      tail[] = "\"metrics\":null,\"error\":";
    char text[4096];
    snprintf(
        text, sizeof text,
        "%s,\"was_cancelled\":true},%s{\"code\":499,\"type\":\"RequestCancellationError\",\"message\":\"after 0 s\"}}\n"
        "%s,\"was_cancelled\":true},\"metrics\":{}}\n"
        "%s,\"was_cancelled\":false},%s\"boom\"}\n"
        "%s},%s{}}\n"
        "%s},%s{\"code\":429}}\n"
        "%s},%s{\"message\":\"only\"}}\n"
        "%s",
        head, tail, head, head, tail, head, tail, head, tail, head, tail, example);
    import(text, &(cedar_import_opts){ .strict = true });
    ck_assert_uint_eq(counts.errors, 6);
    ck_assert_uint_eq(counts.cancelled, 2);
    ck_assert_uint_eq(counts.kept, 1);
    check_text("SELECT group_concat(error, '|') FROM (SELECT error FROM requests ORDER BY request_id)",
               "499 RequestCancellationError: after 0 s|cancelled|boom|failed without a message|429|only|");
    check_text("SELECT outcome FROM sessions WHERE session_id = 1", "cut");
    check_text("SELECT outcome FROM sessions WHERE session_id = 2", "finished");
    check_row("SELECT errors, valid FROM v_validity", 2, 6.0, 0.0);
}
END_TEST

/* OSL 0 and 1 have no ITL and count for throughput; no TTFT, a negative one, one of 0. */
START_TEST(latencies_that_are_none) {
    char text[4096];
    int at = put_record(text, sizeof text, "profiling", 0, 5, 10, 10, 4, 0, "null");
    at += put_record(text + at, sizeof text - (size_t)at, "profiling", 0, 5, 10, 10, 4, 1, "null");
    at += put_record(text + at, sizeof text - (size_t)at, "profiling", 0, -5, 10, 10, 4, 2, "null");
    at += put_record(text + at, sizeof text - (size_t)at, "profiling", 0, 0, 10, 10, 4, 2, "null");
    at += put_record(text + at, sizeof text - (size_t)at, "profiling", 0, 5, -1, 10, 4, 2, "null");
    snprintf(text + at, sizeof text - (size_t)at, "%s",
             "{\"metadata\":{\"request_start_ns\":0,\"request_end_ns\":10000000},\"metrics\":{\"request_latency\":10,"
             "\"input_sequence_length\":4,\"output_sequence_length\":2}}\n");
    import(text, &(cedar_import_opts){ .strict = true });
    check_row("SELECT n, excluded_undefined FROM v_latency WHERE metric = 'ttft'", 2, 3.0, 3.0);
    check_row("SELECT n, excluded_undefined, p50_ns FROM v_latency WHERE metric = 'itl'", 3, 1.0, 5.0, 10e6);
    check_row("SELECT n, excluded_undefined FROM v_latency WHERE metric = 'e2el'", 2, 5.0, 1.0);
    check_row("SELECT n, total_tokens, duration_ns FROM v_throughput", 3, 6.0, 33.0, 10e6);
}
END_TEST

/* A file's own ITL by another definition (mean gap between chunks, say) is noticed, and not used. */
START_TEST(itl_of_another_definition) {
    char text[2048], *at;
    snprintf(text, sizeof text, "%s%s", example, example);
    ck_assert_ptr_nonnull(at = strstr(text, ":8.0"));
    memcpy(at, ":40.", 4);
    at = strstr(text, ":40.,");
    ck_assert_ptr_nonnull(at);
    memcpy(at, ":40 ,", 5);
    import(text, &(cedar_import_opts){ .strict = true });
    ck_assert_uint_eq(counts.itl_differs, 1);
    check_row("SELECT min(itl_ns), max(itl_ns) FROM v_request_times", 2, 8e6, 8e6);
    check_row("SELECT json_extract(config_json, '$.itl_differs') FROM runs", 1, 1.0);
}
END_TEST

static int put_place(char *to, size_t room, int start, const char *conversation, const char *correlation,
                     const char *root, int turn) {
    int n = snprintf(to, room,
                     "{\"metadata\":{\"session_num\":3,\"conversation_id\":\"%s\",\"x_correlation_id\":\"%s\","
                     "\"root_correlation_id\":%s,\"turn_index\":%d,\"request_start_ns\":%d,\"request_end_ns\":%d},"
                     "\"metrics\":{\"request_latency\":1,\"input_sequence_length\":1,\"output_sequence_length\":1}}\n",
                     conversation, correlation, root, turn, start, start + 1000);
    ck_assert_int_lt(n, (int)room);
    return n;
}

/* Trees by root_correlation_id; a subagent's record may come first; the same conversation twice is two sessions. */
START_TEST(sessions_and_streams) {
    char text[8192];
    int at = put_place(text, sizeof text, 500, "t1::sa:x", "A1", "\"A\"", 0);
    at += put_place(text + at, sizeof text - (size_t)at, 100, "t1", "A", "\"A\"", 0);
    at += put_place(text + at, sizeof text - (size_t)at, 300, "t1", "B", "null", 0);
    at += put_place(text + at, sizeof text - (size_t)at, 900, "t1::sa:y", "A2", "\"A\"", 0);
    at += put_place(text + at, sizeof text - (size_t)at, 1900, "t1", "A", "\"A\"", 1);
    put_place(text + at, sizeof text - (size_t)at, 700, "t1::sa:x", "A1", "\"A\"", 1);
    import(text, &(cedar_import_opts){ .strict = true });
    ck_assert_uint_eq(counts.sessions, 2);
    check_text("SELECT group_concat(session_id || '/' || stream || '/' || turn, ' ') FROM "
               "(SELECT * FROM requests ORDER BY request_id)", "1/1/0 1/0/0 2/0/0 1/2/0 1/0/1 1/1/1");
    check_text(
        "SELECT group_concat(trace_id || ' ' || streams || ' ' || requests_done || ' ' || start_ns || ' ' || end_ns, "
        "', ') FROM (SELECT * FROM sessions ORDER BY session_id)",
        "t1 3 5 0 2800, t1 1 1 200 1200");
    check_row("SELECT end_ns, requests, sessions FROM runs", 3, 2800.0, 6.0, 2.0);
}
END_TEST

/* More sessions than any table begins with. */
START_TEST(many_sessions) {
    enum { N = 3000 };
    char line[512];
    FILE *f = fopen(in_path, "w");
    for (int i = 0; i < 2 * N; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i % N);
        put_place(line, sizeof line, i, "t", name, "\"root\"", i / N);
        if (i % 2) put_place(line, sizeof line, i, name, name, "null", i / N);
        fputs(line, f);
    }
    fclose(f);
    ck_assert_msg(!cedar_import_aiperf(in_path, db_path, NULL, &counts, &err), "%s", err.msg);
    open_db();
    ck_assert_uint_eq(counts.sessions, N / 2 + 1);
    check_row("SELECT streams, requests_done FROM sessions WHERE session_id = 1", 2, N / 2 + 1.0, (double)N);
    check_row("SELECT count(*), min(requests_done), max(requests_done) FROM sessions WHERE session_id > 1", 3, N / 2.0,
              2.0, 2.0);
    check_row("SELECT count(DISTINCT stream), min(stream), max(stream) FROM requests WHERE session_id = 1", 3, N / 2.0,
              1.0, N / 2.0);
}
END_TEST

START_TEST(import_repeats) {
    char first[96], text[2048];
    import(example, NULL);
    sqlite3_stmt *q = first_row("SELECT event_hash || trace_hash || config_hash FROM runs");
    snprintf(text, sizeof text, "%s", (const char *)sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
    sqlite3_close(db);
    db = NULL;
    snprintf(first, sizeof first, "%s", db_path);
    snprintf(db_path, sizeof db_path, "%s/again.db", dir);
    import(example, NULL);
    check_text("SELECT event_hash || trace_hash || config_hash FROM runs", text);
    sqlite3_close(db);
    db = NULL;
    char command[256];
    snprintf(command, sizeof command, "cmp -s %s %s", first, db_path);
    ck_assert_int_eq(system(command), 0);
    /* sha256sum of the example, by another program. */
    open_db();
    check_text("SELECT trace_hash FROM runs", "f0150999e20c3d1ef2a49ce779e862ba9e4b0bbc6771ef43a7fc593e7d469728");
}
END_TEST

/* --- what is refused ---------------------------------------------------------------------------------------------- */

START_TEST(lenient_leaves_lines_out) {
    char text[4096];
    snprintf(text, sizeof text, "nonsense\n%s{\"metadata\":{}}\n%s", example, example);
    import(text, NULL);
    ck_assert_uint_eq(counts.lines, 4);
    ck_assert_uint_eq(counts.kept, 2);
    ck_assert_uint_eq(counts.skipped, 2);
    char want[256];
    snprintf(want, sizeof want, "%s:1: not valid JSON: '[' or '{' expected near 'nonsense'; each record is one line",
             in_path);
    ck_assert_str_eq(counts.skipped_first, want);
    check_row("SELECT json_extract(config_json, '$.skipped'), json_extract(config_json, '$.lines') FROM runs", 2, 2.0,
              4.0);
    check_row("SELECT min(request_id), max(request_id) FROM requests", 2, 2.0, 4.0);
}
END_TEST

START_TEST(nothing_usable) {
    char want[600];
    write_text("{\"a\":1}\n");
    ck_assert_int_eq(cedar_import_aiperf(in_path, db_path, NULL, &counts, &err), CEDAR_E_FORMAT);
    snprintf(want, sizeof want,
             "%s: none of its 1 lines is a record of AIPerf's profile_export.jsonl: %s:1: \"metadata\" is "
             "missing",
             in_path, in_path);
    ck_assert_str_eq(err.msg, want);
    ck_assert_int_eq(access(db_path, F_OK), -1);
}
END_TEST

START_TEST(files_that_cannot_be_read) {
    char want[256], fifo[128];
    ck_assert_int_eq(cedar_import_aiperf("/nowhere/x.jsonl", db_path, NULL, &counts, &err), CEDAR_E_IO);
    ck_assert_str_eq(err.msg, "/nowhere/x.jsonl: No such file or directory");
    ck_assert_int_eq(cedar_import_aiperf(dir, db_path, NULL, &counts, &err), CEDAR_E_IO);
    snprintf(want, sizeof want, "%s: Is a directory", dir);
    ck_assert_str_eq(err.msg, want);
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    snprintf(fifo, sizeof fifo, "/dev/fd/%d", ends[0]);
    ck_assert_int_eq(cedar_import_aiperf(fifo, db_path, NULL, &counts, &err), CEDAR_E_IO);
    snprintf(want, sizeof want, "%s: is read twice, so it must be a file on a disk: Illegal seek", fifo);
    ck_assert_str_eq(err.msg, want);
    ck_assert_int_eq(access(db_path, F_OK), -1);
}
END_TEST

START_TEST(databases_that_are_there) {
    import(example, NULL);
    sqlite3_close(db);
    db = NULL;
    ck_assert_int_eq(cedar_import_aiperf(in_path, db_path, NULL, &counts, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "exists; choose another name"));
    ck_assert_int_eq(access(db_path, F_OK), 0);
    ck_assert_int_eq(cedar_import_aiperf(in_path, in_path, &(cedar_import_opts){ .replace = true }, &counts, &err),
                     CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, "is not a cedar database, so it is never overwritten"));
    import(example, &(cedar_import_opts){ .replace = true });
}
END_TEST

/* Every file of tests/broken/import, strict: "ok" or the exact message behind the folder's name. */
START_TEST(broken_files) {
    FILE *f = fopen("tests/broken/import/expected.txt", "r");
    char line[1024];
    int n = 0;
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        char path[1100], want[1280], *tab = strchr(line, '\t');
        ck_assert_ptr_nonnull(tab);
        *tab = 0;
        tab[1 + strcspn(tab + 1, "\n")] = 0;
        snprintf(path, sizeof path, "tests/broken/import/%s", line);
        int64_t live = cedar_mem_live();
        err.msg[0] = 0;
        cedar_status st = cedar_import_aiperf(path, db_path, &(cedar_import_opts){ .strict = true }, &counts, &err);
        ck_assert_int_eq(cedar_mem_live(), live);
        if (!strcmp(tab + 1, "ok")) {
            ck_assert_msg(!st, "%s", err.msg);
            ck_assert_int_eq(unlink(db_path), 0);
        } else {
            snprintf(want, sizeof want, "tests/broken/import/%s", tab + 1);
            ck_assert_str_eq(err.msg, want);
            ck_assert_int_eq(st, CEDAR_E_FORMAT);
            ck_assert_int_eq(access(db_path, F_OK), -1);
        }
        n++;
    }
    fclose(f);
    ck_assert_int_ge(n, 38);
}
END_TEST

/* Every allocation fails once: an error, nothing left alive, no database left behind. */
START_TEST(out_of_memory) {
    write_text(example);
    int64_t live = cedar_mem_live();
    cedar_status st = CEDAR_E_OOM;
    int n = 0;
    while (st) {
        ck_assert_int_lt(++n, 100);
        cedar_mem_fail_at(n);
        st = cedar_import_aiperf(in_path, db_path, NULL, &counts, &err);
        cedar_mem_fail_at(0);
        ck_assert_int_eq(cedar_mem_live(), live);
        if (!st) break;
        ck_assert_msg(st == CEDAR_E_OOM && err.msg[0], "allocation %d: %s", n, err.msg);
        ck_assert_int_eq(access(db_path, F_OK), -1);
        ck_assert_uint_eq(counts.requests, 0);
    }
    ck_assert_int_gt(n, 10);
}
END_TEST

/* A disk that is full half way: an error that says so, and nothing left of the database. */
START_TEST(disk_full) {
    char line[512], beside[128];
    FILE *f = fopen(in_path, "w");
    for (int i = 0; i < 20000; i++) {
        put_place(line, sizeof line, i, "t", "s", "null", i);
        fputs(line, f);
    }
    fclose(f);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit small = { 1 << 20, 1 << 20 };
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    ck_assert_int_eq(cedar_import_aiperf(in_path, db_path, NULL, &counts, &err), CEDAR_E_IO);
    ck_assert_ptr_nonnull(strstr(err.msg, db_path));
    ck_assert_ptr_nonnull(strstr(err.msg, "while"));
    ck_assert_int_eq(access(db_path, F_OK), -1);
    snprintf(beside, sizeof beside, "%s-wal", db_path);
    ck_assert_int_eq(access(beside, F_OK), -1);
}
END_TEST

static Suite *import_suite(void) {
    Suite *s = suite_create("import");
    TCase *t = tcase_create("records");
    tcase_set_timeout(t, 20);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, example_of_the_format);
    tcase_add_test(t, clock_that_counts_from_1970);
    tcase_add_test(t, forms_of_a_metric);
    tcase_add_test(t, population_and_scores);
    tcase_add_test(t, errors_and_cancelled);
    tcase_add_test(t, latencies_that_are_none);
    tcase_add_test(t, itl_of_another_definition);
    tcase_add_test(t, sessions_and_streams);
    tcase_add_test(t, many_sessions);
    tcase_add_test(t, import_repeats);
    suite_add_tcase(s, t);
    t = tcase_create("refused");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, set_up, tear_down);
    tcase_add_test(t, lenient_leaves_lines_out);
    tcase_add_test(t, nothing_usable);
    tcase_add_test(t, files_that_cannot_be_read);
    tcase_add_test(t, databases_that_are_there);
    tcase_add_test(t, broken_files);
    tcase_add_test(t, out_of_memory);
    tcase_add_test(t, disk_full);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(import_suite());
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
