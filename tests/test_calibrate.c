/* Calibration: the positions that are derived for logged steps, and figures that a fit must find again.
 *
 * The database is a modelled run on hardware with known efficiencies: there each duration is the price of the very plan
 * that was played, so a step whose positions are derived must have exactly its logged price. */
#include <check.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "lua/hardware.h"
#include "reports/reports.h"
#include "sim/calibrate.h"
#include "sim/cli_int.h"

#define OK(call) ck_assert_msg((call) == CEDAR_OK, "%s", failure.msg)

static cedar_err failure;
static char dir[] = "/tmp/cedar-test-XXXXXX", said[20000];

static const char *in_dir(const char *name) {
    static char path[4][128];
    static int turn;
    char *out = path[turn++ % 4];
    snprintf(out, sizeof *path, "%s/%s", dir, name);
    return out;
}

static void write_file(const char *name, const char *text) {
    FILE *f = fopen(in_dir(name), "wb");
    ck_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* A verb in a process of its own; what it prints goes into `said`. */
static int verb(int (*call)(int, char **), const char *words) {
    char text[1024], *argv[32], *save = NULL;
    int argc = 0, status;
    snprintf(text, sizeof text, "%s", words);
    for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
    argv[argc] = NULL;
    pid_t child = fork();
    if (child == 0) {
        if (!freopen(in_dir("said"), "wb", stdout) || dup2(fileno(stdout), 2) < 0) _exit(99);
        int code = call(argc, argv);
        fflush(stdout);
        _exit(code);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    FILE *f = fopen(in_dir("said"), "rb");
    said[fread(said, 1, sizeof said - 1, f)] = 0;
    fclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static int calibrate(const char *words) { return verb(cedar_cli_calibrate, words); }

static void sql(const char *name, const char *text) {
    sqlite3 *db;
    ck_assert_int_eq(sqlite3_open(in_dir(name), &db), SQLITE_OK);
    ck_assert_msg(sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK, "%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void copy(const char *from, const char *to) {
    char words[300];
    snprintf(words, sizeof words, "cp %s %s", in_dir(from), in_dir(to));
    ck_assert_int_eq(system(words), 0);
}

/* Known efficiencies; every figure that is fitted differs from h200's. */
static const char truth[] =
    "return { name = 'truth', gpus = 1, hbm_bytes = 141e9, copy_bytes_s = 4.3e12, matmul_flop_s = 790e12,\n"
    "  attention_flop_s = 410e12, indexer_flop_s = 770e12, memory_efficiency = 0.4, matmul_efficiency = 0.3,\n"
    "  attention_efficiency = 1, indexer_efficiency = 0.1, overlap = 0.6, kernels_per_layer = 18, launch_ns = 1500,\n"
    "  eager_launch_ns = 6500, step_host_ns = 50000, host_link_bytes_s = 55e9 }";

/* Arms with lanes that prefill and decode at the same time, prompts that share a step, hits, stored windows. */
static const char scenario[] =
    "local base = { model = 'flash-e32', clock = 'modelled', hardware = HARDWARE, page_tokens = 128,\n"
    "  trace = 'traces/kv-cache-tester/trace_0058.json,traces/kv-cache-tester/trace_0103.json,'\n"
    "    .. 'traces/kv-cache-tester/trace_0057.json', lanes = 3, think_cap_s = 1, context_max = 163840 }\n"
    "local function arm(more) for k, v in pairs(base) do more[k] = more[k] == nil and v or more[k] end run(more) end\n"
    "arm { replay = 'exact', step_tokens = 2048 }\n"
    "arm { replay = 'decoder', step_tokens = 2048, cut = 'inside' }\n"
    "arm { replay = 'both', step_tokens = 1024, chunk_tokens = 300, decoder_rows = 96 }\n"
    "arm { replay = 'encoder', step_tokens = 512 }\n"
    "arm { replay = 'exact', step_tokens = 512, chunk_tokens = 200, prefix_cache = false }\n";

static void make_database(void) {
    char text[4096], words[512];
    ck_assert(mkdtemp(dir));
    write_file("truth.lua", truth);
    snprintf(text, sizeof text, "local HARDWARE = '%s'\n%s", in_dir("truth.lua"), scenario);
    write_file("scenario.lua", text);
    snprintf(words, sizeof words, "run %s -q -o %s", in_dir("scenario.lua"), in_dir("modelled.db"));
    ck_assert_msg(verb(cedar_cli_run, words) == 0, "%s", said);
    copy("modelled.db", "measured.db");
    sql("measured.db", "UPDATE runs SET clock = 'measured', backend = 'cuda', arith = 'bf16'");
}

static cedar_config shape(void) {
    cedar_config c;
    OK(cedar_config_load("scenarios/models/flash-e32.json", &c, &failure));
    return c;
}

static cedar_hardware true_hardware(void) {
    cedar_hardware hw;
    OK(cedar_hardware_load(in_dir("truth.lua"), &hw, NULL, &failure));
    return hw;
}

START_TEST(derived_positions_give_the_logged_price) {
    cedar_config c = shape();
    cedar_hardware hw = true_hardware();
    cedar_cost k;
    cedar_logged *l;
    int64_t live = cedar_mem_live();
    OK(cedar_cost_make(&c, &hw, &(cedar_cost_switches){ .graphs = CEDAR_GRAPHS_SPLIT }, &k, &failure));
    OK(cedar_logged_load(in_dir("measured.db"), (cedar_run_range){ 1, INT64_MAX }, &l, &failure));
    ck_assert_uint_eq(l->run_count, 5);
    uint32_t mixed = 0, shared = 0, trimmed = 0;
    for (uint32_t i = 0; i < l->run_count; i++) {
        const cedar_logged_run *r = &l->runs[i];
        ck_assert_uint_gt(r->step_count, 200);
        for (uint32_t n = 0; n < r->step_count; n++) {
            const cedar_logged_step *s = &r->steps[n];
            const cedar_cost_load load = { .rows = s->rows, .context = s->context, .kept_rows = s->kept_rows,
                                           .kept_context = s->kept_context, .logits = s->logits,
                                           .trimmed = s->trimmed };
            cedar_cut cut = strcmp(r->cut, "inside") ? CEDAR_CUT_AFTER : CEDAR_CUT_INSIDE;
            ck_assert_msg(s->known, "run %u, step %u is not known", i + 1, n + 1);
            ck_assert_int_eq(cedar_cost_load_ns(&k, cut, &load, NULL), s->duration_ns);
            mixed += s->decode_entries && s->prefill_entries;
            shared += s->prefill_entries > 1;
            trimmed += s->trimmed;
        }
    }
    ck_assert_uint_gt(mixed, 20);       /* the database has what is hard */
    ck_assert_uint_gt(shared, 5);
    ck_assert_uint_gt(trimmed, 20);
    cedar_logged_free(l);
    ck_assert_int_eq(cedar_mem_live(), live);
}
END_TEST

/* A row that table requests lacks: its steps are not known, those without it are. */
START_TEST(steps_of_missing_requests_are_left_out) {
    cedar_logged *l;
    copy("measured.db", "missing.db");
    sql("missing.db", "DELETE FROM requests WHERE run_id = 1 AND request_id = (SELECT MAX(request_id) FROM requests "
        "WHERE run_id = 1)");
    OK(cedar_logged_load(in_dir("missing.db"), (cedar_run_range){ 1, 1 }, &l, &failure));
    uint32_t known = 0;
    for (uint32_t n = 0; n < l->runs[0].step_count; n++) known += l->runs[0].steps[n].known;
    ck_assert_uint_gt(known, 0);
    ck_assert_uint_lt(known, l->runs[0].step_count);
    cedar_logged_free(l);
}
END_TEST

/* One count of one step that contradicts what follows from requests: that step alone is left out. */
START_TEST(a_count_that_disagrees_leaves_its_step_out) {
    static const char *const counts[] = { "kept_rows", "decode_entries", "prefill_entries" };
    char change[200];
    cedar_logged *l;
    copy("measured.db", "counts.db");
    snprintf(change, sizeof change, "UPDATE steps SET %s = %s + 1 WHERE run_id = 2 AND step_id = 900", counts[_i],
             counts[_i]);
    sql("counts.db", change);
    OK(cedar_logged_load(in_dir("counts.db"), (cedar_run_range){ 2, 2 }, &l, &failure));
    ck_assert_uint_gt(l->runs[0].step_count, 900);
    for (uint32_t n = 0; n < l->runs[0].step_count; n++)
        ck_assert_int_eq(l->runs[0].steps[n].known, l->runs[0].steps[n].step_id != 900);
    cedar_logged_free(l);
}
END_TEST

static void figures_are_found(const char *db, double within) {
    static const char *const fitted[] = { "memory_efficiency", "matmul_efficiency", "indexer_efficiency", "overlap",
                                          "launch_ns" };
    char words[512];
    cedar_hardware hw, want = true_hardware();
    snprintf(words, sizeof words, "calibrate %s -o %s --replace", in_dir(db), in_dir("fitted.lua"));
    ck_assert_msg(calibrate(words) == 0, "%s", said);
    OK(cedar_hardware_load(in_dir("fitted.lua"), &hw, NULL, &failure));
    ck_assert_str_eq(hw.name, "fitted");
    size_t count;
    const cedar_hardware_key *keys = cedar_hardware_keys(&count);
    for (size_t i = 0; i < count; i++) {
        double got, right, allowed = 0;
        memcpy(&got, (const char *)&hw + keys[i].offset, sizeof got);
        memcpy(&right, (const char *)&want + keys[i].offset, sizeof right);
        for (size_t n = 0; n < sizeof fitted / sizeof *fitted; n++)
            if (!strcmp(keys[i].key, fitted[n])) allowed = within * right;
        ck_assert_msg(fabs(got - right) <= allowed, "%s is %g, it should be %g", keys[i].key, got, right);
    }
}

/* Figures are rounded to four digits, durations to nanoseconds. All others must come through as h200.lua has them. */
START_TEST(the_fit_finds_the_figures) { figures_are_found("measured.db", 0.002); }
END_TEST

/* Up to 3 % noise on every step; its mean over hundreds of steps is what a figure may be off by, times how weakly the
 * steps tell it. */
START_TEST(noise_moves_the_figures_little) {
    copy("measured.db", "noisy.db");
    sql("noisy.db", "UPDATE steps SET duration_ns = "
        "duration_ns * (1000 + (step_id * 7919 + run_id * 104729) % 61 - 30) / 1000");
    figures_are_found("noisy.db", 0.08);
    ck_assert_ptr_nonnull(strstr(said, "held out"));
}
END_TEST

/* What `all` says of held-out steps: mean and worst. */
static void held_out(double *mean, double *worst) {
    const char *all = strstr(said, "\nall  ");
    ck_assert_msg(all && sscanf(all, " all %*u %*f %*f %*f %*u %lf %lf", mean, worst) == 2, "%s", said);
}

START_TEST(held_out_steps_are_met_and_seeds_matter) {
    char words[512], first[sizeof said];
    double mean, worst;
    snprintf(words, sizeof words, "calibrate %s -o %s --replace --seed 1", in_dir("measured.db"), in_dir("x.lua"));
    ck_assert_msg(calibrate(words) == 0, "%s", said);
    held_out(&mean, &worst);
    ck_assert(mean <= 0.05 && worst <= 0.2);
    memcpy(first, said, sizeof first);
    ck_assert_int_eq(calibrate(words), 0);
    ck_assert_str_eq(first, said);
    words[strlen(words) - 1] = '2';
    ck_assert_int_eq(calibrate(words), 0);
    ck_assert_str_ne(first, said);
}
END_TEST

/* Without -o a description is compared as it is: the true one has no error, another one has. */
START_TEST(without_output_nothing_is_fitted) {
    char words[512];
    snprintf(words, sizeof words, "calibrate %s --hardware %s", in_dir("measured.db"), in_dir("truth.lua"));
    ck_assert_msg(calibrate(words) == 0, "%s", said);
    ck_assert_ptr_nonnull(strstr(said, "without -o nothing is fitted"));
    const char *all = strstr(said, "\nall  ");
    double mean, worst;
    ck_assert(all && sscanf(all, " all - %*u %lf %lf", &mean, &worst) == 2);
    ck_assert(mean == 0 && worst == 0);
    snprintf(words, sizeof words, "calibrate %s --hardware h200", in_dir("measured.db"));
    ck_assert_int_eq(calibrate(words), 0);
    all = strstr(said, "\nall  ");
    ck_assert(all && sscanf(all, " all - %*u %lf %lf", &mean, &worst) == 2);
    ck_assert(mean > 20);
}
END_TEST

/* Graphs are captured at the first step of a shape; the slow one must not count. */
START_TEST(first_steps_of_a_shape_are_left_out) {
    char words[512];
    double mean, worst;
    copy("measured.db", "capture.db");
    sql("capture.db", "UPDATE steps AS s SET duration_ns = 3 * duration_ns WHERE NOT EXISTS (SELECT 1 FROM steps AS t "
        "WHERE t.run_id = s.run_id AND t.step_id < s.step_id AND t.rows = s.rows AND t.kept_rows = s.kept_rows AND "
        "t.entries = s.entries AND t.trimmed = s.trimmed)");
    snprintf(words, sizeof words, "calibrate %s -o %s --replace", in_dir("capture.db"), in_dir("x.lua"));
    ck_assert_msg(calibrate(words) == 0, "%s", said);
    held_out(&mean, &worst);
    ck_assert(mean <= 0.05 && worst <= 0.2);
}
END_TEST

static void read_back(const char *name, char *text, size_t size) {
    FILE *f = fopen(in_dir(name), "rb");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, size - 1, f)] = 0;
    fclose(f);
}

START_TEST(a_description_names_its_sources) {
    static const char *const parts[] = { "name = \"sources\"", "{ 1.41e+11, \"data sheet\" }",
                                         "fitted to runs 1, 2, 3, 4, 5 of measured.db", "flash-e32 on card-x;",
                                         "fitted .. \"h200 has 0.55\"", "fitted .. \"h200 has 970\"",
                                         "\"6.5 us per eager launch, measured on one H200\"", "-- links" };
    char words[512], text[8192];
    snprintf(words, sizeof words, "calibrate %s -o %s --device card-x", in_dir("measured.db"), in_dir("sources.lua"));
    ck_assert_msg(calibrate(words) == 0, "%s", said);
    read_back("sources.lua", text, sizeof text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        ck_assert_msg(strstr(text, parts[i]), "\"%s\" is not in %s", parts[i], text);
    double fitted, held;
    ck_assert(sscanf(strstr(said, "  fitted "), " fitted %lf held out %lf", &fitted, &held) == 2);
    ck_assert(held / (fitted + held) > 0.2 && held / (fitted + held) < 0.3);    /* one in four */
}
END_TEST

/* Steps faster than the data sheet allows: whoever reads the description learns that its figures are no findings. */
START_TEST(a_description_doubts_figures_at_their_bounds) {
    char words[512], text[8192];
    copy("measured.db", "bound.db");
    sql("bound.db", "UPDATE steps SET duration_ns = duration_ns / 4");
    snprintf(words, sizeof words, "calibrate %s -o %s", in_dir("bound.db"), in_dir("bound.lua"));
    ck_assert_msg(calibrate(words) == 0, "%s", said);
    read_back("bound.lua", text, sizeof text);
    ck_assert_msg(strstr(text, "fitted .. \"h200 has 0.75: at its bound, so a term of the model is off\""), "%s", text);
}
END_TEST

static const struct { const char *change, *words, *says; } refusals[] = {
    { "UPDATE runs SET clock = 'modelled'", "", "only measured steps can be fitted" },
    { "UPDATE runs SET backend = 'cpu'", "", "ran on backend \"cpu\"" },
    { "UPDATE runs SET arith = 'f32' WHERE run_id = 2", "", "differs from run 1" },
    { "UPDATE runs SET device = 'card-y' WHERE run_id = 2", "", "run 2 ran on \"card-y\", run 1 on \"\"" },
    { "UPDATE runs SET model_name = 'nosuch'", "", "there is no" },
    { "DELETE FROM steps WHERE step_id > 60; DELETE FROM requests; UPDATE runs SET steps = 60", "--run 1",
      "steps are left to fit to, at least 64 are needed" },
    { "UPDATE steps SET steps = 2 WHERE run_id = 1 AND step_id = 5", "", "several steps a row" },
    { "UPDATE requests SET decode_steps = decode_steps + 1 WHERE run_id = 3 AND request_id = 2", "",
      "request 2 of run 3 has" },
    { "UPDATE runs SET config_json = json_set(config_json, '$.draft_tokens', 3) WHERE run_id = 2", "",
      "run 2 has draft_tokens = 3" },
    { "UPDATE runs SET config_json = json_set(config_json, '$.gpus', 2)", "",
      "run 1 has gpus = 2, but hardware \"h200\" describes 1" },
    { "", "--held-out 1/1000 --run 3 --seed 3", "no step is held out" },
    { "", "--run 9", "has no run 9" },
    { "", "--run 9-12", "has no run from 9 to 12" },
    { "", "--run 3-2", "two like 3-7" },
    { "", "--run 1-", "two like 3-7" },
    { "", "--run 0", "two like 3-7" },
    { "", "--held-out 4/4", "--held-out is 4/4" },
    { "", "--hardware nosuch", "hardware \"nosuch\" is not known" },
};

/* The name of the GPU comes from the database, where nobody gives another. */
START_TEST(database_names_the_device) {
    char words[512], text[8192];
    copy("measured.db", "named.db");
    sql("named.db", "UPDATE runs SET device = 'card-y'");
    snprintf(words, sizeof words, "calibrate %s -o %s", in_dir("named.db"), in_dir("named.lua"));
    ck_assert_msg(calibrate(words) == 0, "%s", said);
    read_back("named.lua", text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "flash-e32 on card-y;"));
}
END_TEST

START_TEST(refusals_say_why) {
    char words[512];
    copy("measured.db", "refused.db");
    sql("refused.db", refusals[_i].change);
    snprintf(words, sizeof words, "calibrate %s -o %s %s", in_dir("refused.db"), in_dir("refused.lua"),
             refusals[_i].words);
    ck_assert_int_ne(calibrate(words), 0);
    ck_assert_msg(strstr(said, refusals[_i].says), "%s", said);
    ck_assert_int_ne(access(in_dir("refused.lua"), F_OK), 0);
}
END_TEST

/* A description that leaves launches out starts no logarithm at 0. */
START_TEST(a_figure_of_zero_stays) {
    char words[512], text[1024], *at;
    cedar_hardware hw;
    snprintf(text, sizeof text, "%s", truth);
    at = strstr(text, " launch_ns = 1500");
    memcpy(at, " launch_ns = 0000", 17);
    write_file("zero.lua", text);
    snprintf(words, sizeof words, "calibrate %s -o %s --hardware %s", in_dir("measured.db"), in_dir("y.lua"),
             in_dir("zero.lua"));
    ck_assert_msg(calibrate(words) == 0, "%s", said);
    OK(cedar_hardware_load(in_dir("y.lua"), &hw, NULL, &failure));
    ck_assert(hw.launch_ns == 0 && hw.memory_efficiency > 0.3 && hw.memory_efficiency < 0.45);
}
END_TEST

START_TEST(a_file_is_not_overwritten_by_accident) {
    char words[512];
    write_file("mine.lua", "mine");
    snprintf(words, sizeof words, "calibrate %s -o %s", in_dir("measured.db"), in_dir("mine.lua"));
    ck_assert_int_ne(calibrate(words), 0);
    ck_assert_ptr_nonnull(strstr(said, "is there already"));
}
END_TEST

static void remove_all(void) {
    char words[200];
    snprintf(words, sizeof words, "rm -rf %s", dir);
    if (system(words)) perror(dir);
}

int main(void) {
    Suite *s = suite_create("calibrate");
    TCase *t = tcase_create("calibrate");
    tcase_set_timeout(t, 600);
    tcase_add_unchecked_fixture(t, make_database, remove_all);
    tcase_add_test(t, derived_positions_give_the_logged_price);
    tcase_add_test(t, steps_of_missing_requests_are_left_out);
    tcase_add_loop_test(t, a_count_that_disagrees_leaves_its_step_out, 0, 3);
    tcase_add_test(t, the_fit_finds_the_figures);
    tcase_add_test(t, noise_moves_the_figures_little);
    tcase_add_test(t, held_out_steps_are_met_and_seeds_matter);
    tcase_add_test(t, without_output_nothing_is_fitted);
    tcase_add_test(t, first_steps_of_a_shape_are_left_out);
    tcase_add_test(t, a_description_names_its_sources);
    tcase_add_test(t, a_description_doubts_figures_at_their_bounds);
    tcase_add_test(t, database_names_the_device);
    tcase_add_loop_test(t, refusals_say_why, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(t, a_figure_of_zero_stays);
    tcase_add_test(t, a_file_is_not_overwritten_by_accident);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
