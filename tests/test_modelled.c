/* Modelled time: hardware descriptions, and runs that the cost model clocks instead of an engine. */
#define JOURNAL_MODEL "scenarios/models/tiny.json"

#include <inttypes.h>
#include <math.h>
#include <malloc.h>
#include <sys/resource.h>

#include "journal.h"
#include "lua/hardware.h"
#include "reports/reports.h"

#define TWO HEAD("one", 8) TURN(0, 66, 6, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16") "," \
    TURN(3, 90, 7, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22") "]}\n" \
    HEAD("two", 8) TURN(0, 40, 3, 1, "31,32,33,34,35,36,37,38,39,40") "," \
    TURN(2, 61, 8, 1, "31,32,33,34,35,36,37,38,39,40,41,42,43,44,45") "]}"

#define MODELLED "clock=modelled hardware=h200 lanes=2 page_tokens=4 step_tokens=24 "

/* Plays TWO; NULL and the message in `says` when it is refused. */
static journal *play(const char *settings, bool knows_hardware, char says[480]) {
    journal *l = calloc(1, sizeof *l);
    cedar_run_result out;
    cedar_err err = { 0 };
    if (knows_hardware) l->hardware = cedar_hardware_find;
    int64_t live = cedar_mem_live();
    cedar_status st = play_run(TWO, settings, l, NULL, &out, &err);
    ck_assert_int_eq(cedar_mem_live(), live);
    snprintf(says, 480, "%s", err.msg);
    if (!st) return l;
    journal_free(l);
    return NULL;
}

static journal *must_play(const char *settings) {
    char says[480];
    journal *l = play(settings, true, says);
    ck_assert_msg(l, "%s", says);
    return l;
}

START_TEST(twice_the_same_to_the_nanosecond) {
    journal *x = must_play(MODELLED), *y = must_play(MODELLED "threads=2");
    ck_assert_str_eq(x->rows, y->rows);
    ck_assert_str_eq(x->timing, y->timing);
    ck_assert_uint_eq(x->requests, 4);
    ck_assert_uint_gt(x->hits, 0);
    journal_free(x);
    journal_free(y);
}
END_TEST

/* The engine, when one computes beside the clock, must not change what is scheduled. */
#define SLOW "clock=modelled hardware=./tests/slow_hardware.lua lanes=2 page_tokens=4 step_tokens=24 "
#define DRAFTS "draft_tokens=3 acceptance_length=2.51"
START_TEST(with_and_without_an_engine_the_same_schedule) {
    static const char *const settings[][2] = {
        { MODELLED, MODELLED "backend=cpu" },
        { MODELLED DRAFTS, MODELLED "backend=cpu " DRAFTS }, { SLOW DRAFTS, SLOW "backend=cpu " DRAFTS } };
    for (int i = 0; i < 3; i++) {
        journal *x = must_play(settings[i][0]), *y = must_play(settings[i][1]);
        ck_assert_str_eq(x->timing, y->timing);
        ck_assert((x->drafted > 0) == (i > 0));
        /* without the first line, which names the backend, and the event hash, which covers the logits */
        char *rows_x = strchr(x->rows, '\n'), *rows_y = strchr(y->rows, '\n');
        *strstr(rows_x, "end finished") = *strstr(rows_y, "end finished") = 0;
        ck_assert(strcmp(rows_x, rows_y) == 0);
        journal_free(x);
        journal_free(y);
    }
}
END_TEST

START_TEST(launches_and_hardware_have_a_price) {
    journal *split = must_play(MODELLED), *off = must_play(MODELLED "graphs=off");
    journal *four = must_play("clock=modelled hardware=gb300-tp4 lanes=2 page_tokens=4 step_tokens=24");
    ck_assert_int_gt(off->step_ns[0], split->step_ns[0]);
    ck_assert_int_ne(four->step_ns[0], split->step_ns[0]);
    journal_free(split);
    journal_free(off);
    journal_free(four);
}
END_TEST

/* Figures of the description that a run sets otherwise: 8 layers of 18 kernels, 970 ns and twice that apart. */
START_TEST(assumptions_of_one_run) {
    journal *plain = must_play(MODELLED), *same = must_play(MODELLED "assume=launch_ns=970"),
            *twice = must_play(MODELLED "assume=launch_ns=1940");
    ck_assert_str_eq(plain->timing, same->timing);
    ck_assert_int_le(llabs((long long)(twice->step_ns[0] - plain->step_ns[0] - 8 * 18 * 970)), 1);
    journal_free(plain);
    journal_free(same);
    journal_free(twice);
}
END_TEST

static const struct { const char *settings; bool knows; const char *says;
} refusals[] = {
    { "clock=modelled hardware=h200 assume=lunch_ns=5", true, "unknown figure \"lunch_ns\"; did you mean" },
    { "clock=modelled hardware=h200 assume=overlap=7", true, "assume: overlap = 7: allowed are 0.01 to 1" },
    { "hardware=h200 assume=launch_ns=5", true, "assume = \"launch_ns=5\": time is taken from a clock" },
    { "clock=modelled hardware=h200 assume=gpus=1.5", true, "gpus = 1.5 and attention_ranks = 1: GPUs are whole" },
    { "clock=modelled hardware=h200 assume=attention_ranks=1.5", true, "attention_ranks = 1.5: GPUs are whole" },
    { "clock=modelled hardware=h200 assume=attention_ranks=2", true, "and each rank has as many of them" },
    { "clock=modelled hardware=h200 assume=gpus=4,attention_ranks=3", true, "gpus = 4 and attention_ranks = 3" },
    { "clock=modelled", true, "needs hardware to price" },
    { "clock=modelled hardware=h200", false, "needs hardware to price" },
    { "clock=modelled hardware=h2000", true,
      "hardware \"h2000\" is not known: there is no ./scenarios/hardware/h2000.lua" },
    { "clock=modelled hardware=./nowhere.lua", true, "./nowhere.lua: No such file" },
    { "backend=none", true, "needs clock = \"modelled\"" },
    { "clock=modelled hardware=h200 quality=true", true, "no logits" },
    { "clock=modelled hardware=h200 continuation=greedy", true, "no logits" },
    { "clock=modelled hardware=h200 backend=cpu engines=2", true,
      "engines = 2: a run has several engines only when they are modelled and compute nothing" },
    { "engines=2", true, "take clock = \"modelled\" and backend = \"none\"" },
    { "steps_per_row=8", true, "steps_per_row = 8: steps are summed up only where they are modelled" },
    { "routing=policy", true, "routing: a function is asked only where engines are modelled" },
    { "clock=modelled hardware=h200 backend=cpu routing=policy", true, "a function is asked only where engines" },
    { "clock=modelled hardware=h200 routing=policy", true, "routing = \"policy\" needs a function" },
    { "graphs=decode", true, "graphs = \"decode\": an engine launches all steps in one way; take clock = \"mod" },
    { "graphs=trimmed", true, "graphs = \"trimmed\": an engine launches" },
    { "kv_rows=fp8", true, "kv_rows = \"fp8\": the engine's global rows are FP4; take clock = \"modelled\"" },
    { "clock=modelled hardware=h200 backend=cpu kv_rows=fp8", true, "clock = \"modelled\" and backend = \"none\"" },
    { "window_store=paged", true, "window_store = \"paged\": the engine stores windows at the end of a step" },
    { "kernels=fused", true, "kernels = \"fused\": an engine has the kernels that it has" },
    { "side_stream=true", true, "side_stream = \"true\": a GPU has side streams unless one_stream = true" },
    { "backend=cpu allreduce=fused", true, "with gpus = 1 there is nothing to add" },
    { "backend=cpu gpus=2 allreduce=nccl", true, "the ranks of the CPU engine add in one way only" },
    { "backend=cpu gpus=3", true, "gpus is 3, but model tiny has 2 output groups of attention heads" },
    { "backend=cpu one_stream=true", true, "one_stream = true needs a GPU" },
    { "clock=modelled hardware=h200 gpus=2", true, "the description of the hardware says how many GPUs there are" },
    { "clock=modelled hardware=h200 one_stream=true", true, "side_stream is the switch" },
    { "clock=modelled hardware=h200 allreduce=fused", true, "is one GPU, which has nothing to add" },
    { "clock=modelled hardware=h200 backend=cpu gpus=2", true, "hardware \"h200\", 1 GPU(s); add assume = \"gpus=2\"" },
    { "clock=modelled hardware=gb300-tp4 backend=cpu gpus=2", true, "hardware \"gb300-tp4\", 4 GPU(s)" },
    { "clock=modelled hardware=h200 allreduce=nccl", true, "allreduce = \"nccl\": the cost model has no price for it" },
    { "clock=modelled hardware=h200 kernels=fused", true, "hardware \"h200\" does not describe it" },
    { "clock=modelled hardware=h200 side_stream=true", true, "give side_stream_kernels in its file" },
    { "clock=modelled hardware=h200 draft_tokens=4 acceptance_length=2", true, "the drafter of tiny makes 3 tokens" },
    { "clock=modelled hardware=h200 draft_tokens=3", true, "nothing verifies drafts where nothing is computed; give" },
};

START_TEST(refusals_say_what_to_do) {
    char says[480];
    ck_assert_ptr_null(play(refusals[_i].settings, refusals[_i].knows, says));
    ck_assert_msg(strstr(says, refusals[_i].says), "%s: %s", refusals[_i].settings, says);
}
END_TEST

/* --- several engines ---------------------------------------------------------------------------------------------- */

enum { ROWS_MAX = 400 };

/* Requests by id, and the steps of each engine. */
typedef struct fleet {
    cedar_request_row rows[ROWS_MAX];
    uint32_t count, steps[8], wrong_steps, decode_rows;
    int64_t step_end[8];
    cedar_run_result out;
} fleet;

static cedar_status fleet_run(void *self, const cedar_run_row *r, cedar_err *err) {
    return (void)self, (void)r, (void)err, CEDAR_OK;
}
static cedar_status fleet_session(void *self, const cedar_session_row *r, cedar_err *err) {
    return (void)self, (void)r, (void)err, CEDAR_OK;
}
static cedar_status fleet_end(void *self, const cedar_run_end_row *r, cedar_err *err) {
    return (void)self, (void)r, (void)err, CEDAR_OK;
}
static cedar_status fleet_request(void *self, const cedar_request_row *r, cedar_err *err) {
    fleet *f = self;
    (void)err;
    ck_assert_int_le(r->request_id, ROWS_MAX);
    f->rows[r->request_id - 1] = *r;
    f->count++;
    return CEDAR_OK;
}
static cedar_status fleet_step(void *self, const cedar_step_row *r, cedar_err *err) {
    fleet *f = self;
    (void)err;
    ck_assert(r->engine >= 1 && r->engine <= 8);
    f->wrong_steps += r->start_sched_ns < f->step_end[r->engine - 1];      /* an engine makes one step at a time */
    f->step_end[r->engine - 1] = r->end_sched_ns;
    f->steps[r->engine - 1] += r->steps;
    f->decode_rows += r->decode_rows;
    return CEDAR_OK;
}

/* Sends every request to the engine called like its turn. */
static cedar_status by_turn(void *self, const cedar_policy_request *q, const cedar_policy_engine *engines,
                            uint32_t count, uint32_t *out, cedar_err *err) {
    (void)self;
    (void)engines;
    (void)err;
    *out = q->turn % count;
    return CEDAR_OK;
}

static fleet *play_fleet(const char *text, const char *settings, const cedar_router *router) {
    fleet *f = calloc(1, sizeof *f);
    char path[] = "/tmp/cedar-test-XXXXXX.jsonl", words[512], *save = NULL;
    int fd = mkstemps(path, 6);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    cedar_observer obs = { .self = f, .run_begin = fleet_run, .session = fleet_session, .request = fleet_request,
                           .step = fleet_step, .run_end = fleet_end };
    cedar_run_host host = { .observer = &obs, .data_dir = ".", .hardware = cedar_hardware_find };
    cedar_run_opts *o;
    int64_t live = cedar_mem_live();
    OK(cedar_opts_new(&o, &failure));
    OK(cedar_opts_set(o, "model", JOURNAL_MODEL, &failure));
    OK(cedar_opts_set(o, "trace", path, &failure));
    snprintf(words, sizeof words, MODELLED "%s", settings);
    for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(w, '=');
        *equals = 0;
        OK(cedar_opts_set(o, w, equals + 1, &failure));
    }
    cedar_opts_router(o, router);
    OK(cedar_run(o, 1, &host, &f->out, &failure));
    cedar_opts_free(o);
    ck_assert_int_eq(cedar_mem_live(), live);
    ck_assert_uint_eq(f->wrong_steps, 0);
    unlink(path);
    return f;
}

/* Two sessions on two engines: each is played as if it were alone on one. */
START_TEST(an_engine_of_its_own_is_like_being_alone) {
    static const char one[] = HEAD("one", 8) TURN(0, 66, 6, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16") ","
        TURN(3, 90, 7, 1, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22") "]}\n",
        two[] = HEAD("two", 8) TURN(0, 40, 3, 1, "31,32,33,34,35,36,37,38,39,40") ","
        TURN(2, 61, 8, 1, "31,32,33,34,35,36,37,38,39,40,41,42,43,44,45") "]}\n";
    fleet *both = play_fleet(TWO, "engines=2 kv_pages=64", NULL);
    fleet *alone[] = { play_fleet(one, "lanes=1 kv_pages=64", NULL), play_fleet(two, "lanes=1 kv_pages=64", NULL) };
    ck_assert_uint_eq(both->count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const cedar_request_row *r = &both->rows[i], *a = &alone[r->lane]->rows[r->turn];
        ck_assert_uint_eq(r->engine, (uint32_t)r->lane + 1);
        ck_assert_uint_eq(a->engine, 1);
        ck_assert_uint_eq(r->hit_tokens, a->hit_tokens);
        ck_assert_int_eq(r->arrival_ns, a->arrival_ns);
        ck_assert_int_eq(r->first_ns, a->first_ns);
        ck_assert_int_eq(r->last_ns, a->last_ns);
    }
    for (int i = 0; i < 2; i++) ck_assert_uint_eq(both->steps[i], alone[i]->out.steps);
    ck_assert_uint_gt(both->rows[2].hit_tokens, 0);
    free(both);
    for (int i = 0; i < 2; i++) free(alone[i]);
}
END_TEST

START_TEST(rules_of_routing) {
    static const cedar_router router = { .route = by_turn };
    fleet *round = play_fleet(TWO, "engines=3 routing=round_robin", NULL),
          *session = play_fleet(TWO, "engines=3 routing=session", NULL),
          *prefix = play_fleet(TWO, "engines=3 routing=prefix", NULL),
          *policy = play_fleet(TWO, "engines=3 routing=policy", &router);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(round->rows[i].engine, i % 3 + 1);
        ck_assert_uint_eq(policy->rows[i].engine, (uint32_t)policy->rows[i].turn + 1);
        ck_assert_uint_eq(session->rows[i].engine, (uint32_t)session->rows[i].lane + 1);
        ck_assert_uint_eq(prefix->rows[i].engine, (uint32_t)prefix->rows[i].lane + 1);
    }
    /* a second turn finds its first turn's pages where they are, and nowhere else */
    ck_assert_uint_gt(session->out.hit_tokens, 60);
    ck_assert_uint_eq(prefix->out.hit_tokens, session->out.hit_tokens);
    ck_assert_uint_eq(policy->out.hit_tokens, 0);
    free(round);
    free(session);
    free(prefix);
    free(policy);
}
END_TEST

/* The least loaded engine: three sessions that begin at once spread over three engines; the next to begin joins the one
 * whose request has ended. */
START_TEST(the_least_loaded_engine_is_taken) {
    static const char four[] = HEAD("a", 0) TURN(0, 8, 40, 1, "1,2") "]}\n" HEAD("b", 0) TURN(0, 8, 3, 1, "1,2") "]}\n"
        HEAD("c", 0) TURN(0, 8, 40, 1, "1,2") "]}\n" HEAD("d", 0) TURN(0, 8, 40, 1, "1,2") "]}\n";
    fleet *f = play_fleet(four, "lanes=3 engines=3 routing=least_loaded", NULL);
    ck_assert_uint_eq(f->count, 4);
    for (uint32_t i = 0; i < 3; i++) ck_assert_uint_eq(f->rows[i].engine, i + 1);
    ck_assert_uint_eq(f->rows[3].engine, 2);
    free(f);
}
END_TEST

/* --- switches ----------------------------------------------------------------------------------------------------- */

#define TP4 "clock=modelled hardware=gb300-tp4 lanes=2 page_tokens=4 step_tokens=24 "

static int64_t all_steps_ns(const journal *l) {
    int64_t sum = 0;
    for (uint64_t i = 0; i < l->steps; i++) sum += l->step_ns[i];
    return sum;
}

/* Each switch of the model changes what a run takes, and in which direction. */
START_TEST(switches_change_what_a_run_takes) {
    static const struct { const char *with; bool faster; } switches[] = {
        { TP4 "kernels=fused", true }, { TP4 "side_stream=true", true }, { TP4 "allreduce=fused", true },
        { TP4 "graphs=decode", false }, { TP4 "graphs=off", false },
    };
    journal *plain = must_play(TP4);
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        journal *l = must_play(switches[i].with);
        ck_assert_uint_eq(l->steps, plain->steps);
        int64_t with = all_steps_ns(l), without = all_steps_ns(plain);
        ck_assert_msg(with != without && (with < without) == switches[i].faster, "%s: %ld, %ld without",
                      switches[i].with, (long)with, (long)without);
        journal_free(l);
    }
    journal_free(plain);
}
END_TEST

/* FP8 rows: the described memory holds fewer pages, in the ratio of their bytes. tiny has 64 + 32 elements an entry: 53
 * bytes in FP4 (spec/model.md 3.4, 4.1), 99 in FP8. */
START_TEST(fp8_rows_take_more_memory) {
    fleet *fp4 = play_fleet(TWO, "kv_pages=64", NULL), *fp8 = play_fleet(TWO, "kv_pages=64 kv_rows=fp8", NULL);
    ck_assert_uint_gt(fp4->out.kv_bytes_peak, 0);
    ck_assert_uint_eq(fp8->out.kv_bytes_peak * 53, fp4->out.kv_bytes_peak * 99);
    free(fp4);
    free(fp8);
}
END_TEST

/* Windows in pages of their own: the same hits and windows, but no prompt ends a step for them. */
START_TEST(paged_windows_end_no_step) {
#define PAGED "step_tokens=200 window_store=paged "
    fleet *step = play_fleet(TWO, "step_tokens=200", NULL), *paged = play_fleet(TWO, PAGED, NULL),
          *encoder = play_fleet(TWO, PAGED "replay=encoder", NULL);
    ck_assert_uint_gt(step->out.hit_tokens, 0);
    ck_assert_uint_eq(paged->out.hit_tokens, step->out.hit_tokens);
    ck_assert_uint_eq(paged->out.window_bytes_peak, step->out.window_bytes_peak);
    ck_assert_uint_eq(encoder->out.window_bytes_peak, 0);
    for (int i = 0; i < 4; i++) {
        const cedar_request_row *r = &step->rows[i];
        ck_assert_uint_eq(paged->rows[i].prefill_steps, 1);
        ck_assert_uint_eq(r->prefill_steps, 1 + (r->in_tokens % 4 != 0));     /* pages of 4 tokens */
    }
    free(step);
    free(paged);
    free(encoder);
}
END_TEST

/* --- speculation -------------------------------------------------------------------------------------------------- */

#define LONG_ANSWER HEAD("one", 8) TURN(0, 40, 3000, 1, "1,2,3,4,5,6,7,8,9,10") "]}\n" \
    HEAD("two", 8) TURN(0, 17, 2000, 1, "31,32,33,34") "]}\n"
#define SPECULATE "draft_tokens=3 kv_pages=4000 context_max=4096 "

/* Over many steps the mean of what verify steps yield is the option, within four standard errors of a draw between its
 * whole part and one more. The last step of an answer may yield less. */
START_TEST(acceptance_has_the_mean_of_the_option) {
    static const struct { const char *settings; double mean; } cases[] = {
        { SPECULATE "acceptance_length=2.51", 2.51 }, { SPECULATE "acceptance_length=1.2", 1.2 },
        { SPECULATE "acceptance_length=3.9", 3.9 }, { SPECULATE "acceptance_length=2", 2 },
        { "draft_tokens=1 kv_pages=4000 acceptance_length=1.51", 1.51 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fleet *f = play_fleet(LONG_ANSWER, cases[i].settings, NULL);
        double tokens = 0, steps = 0, part = cases[i].mean - floor(cases[i].mean);
        ck_assert_uint_eq(f->count, 2);
        for (uint32_t n = 0; n < f->count; n++) {
            ck_assert_str_eq(f->rows[n].error, "");
            tokens += f->rows[n].out_tokens - 1;
            steps += f->rows[n].decode_steps;
        }
        ck_assert_double_eq(tokens, 4998);
        double error = 4 * sqrt(part * (1 - part) / steps) + 2 * 4 / steps;
        ck_assert_msg(fabs(tokens / steps - cases[i].mean) <= error, "%s: %.4f, error %.4f", cases[i].settings,
                      tokens / steps, error);
        free(f);
    }
}
END_TEST

/* Draws are of (request, step): other requests, and how steps are reported, do not touch them; the seed does. */
START_TEST(acceptance_is_the_requests_own) {
    static const char alone[] = HEAD("one", 8) TURN(0, 40, 3000, 1, "1,2,3,4,5,6,7,8,9,10") "]}\n";
#define AT SPECULATE "acceptance_length=2.51 "
    fleet *a = play_fleet(LONG_ANSWER, AT, NULL), *again = play_fleet(LONG_ANSWER, AT "steps_per_row=7", NULL),
          *b = play_fleet(alone, AT, NULL), *seed = play_fleet(LONG_ANSWER, AT "seed=7", NULL),
          *none = play_fleet(LONG_ANSWER, "kv_pages=4000", NULL);
    ck_assert_uint_eq(a->out.event_hash, again->out.event_hash);
    ck_assert_uint_ne(a->out.event_hash, seed->out.event_hash);
    ck_assert_uint_eq(a->rows[0].decode_steps, b->rows[0].decode_steps);
    ck_assert_uint_ne(a->rows[0].decode_steps, seed->rows[0].decode_steps);
    ck_assert_uint_eq(none->rows[0].decode_steps, 2999);
    ck_assert_int_lt(a->rows[0].last_ns - a->rows[0].first_ns, none->rows[0].last_ns - none->rows[0].first_ns);
    fleet *const all[] = { a, again, b, seed, none };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}
END_TEST

/* Whole lengths need no chance: 12 tokens behind the first in steps of up to 4 rows yield 4, 4 and 4, or 3 four times;
 * 7 yield 3, 3 and 1, the last of a single row. With a prefix cache that stores windows a step ends at 20, the last
 * whole page of 23 positions. */
#define ALONE SPECULATE "prefix_cache=false "
START_TEST(verify_steps_by_hand) {
    static const char text[] = HEAD("one", 8) TURN(0, 16, 13, 1, "1,2,3,4") "]}\n",
        seven[] = HEAD("one", 8) TURN(0, 16, 8, 1, "1,2,3,4") "]}\n";
    static const struct { const char *text, *settings; uint32_t steps, rows; } cases[] = {
        { text, ALONE "acceptance_length=4", 3, 12 }, { text, ALONE "acceptance_length=3", 4, 4 + 4 + 4 + 3 },
        { seven, ALONE "acceptance_length=3", 3, 4 + 4 + 1 }, { seven, ALONE "acceptance_length=1", 7, 22 },
        { seven, SPECULATE "acceptance_length=3", 3, 4 + 1 + 3 }, { seven, SPECULATE "acceptance_length=1", 7, 16 },
        { seven, "kv_pages=4000", 7, 7 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fleet *f = play_fleet(cases[i].text, cases[i].settings, NULL);
        ck_assert_uint_eq(f->rows[0].decode_steps, cases[i].steps);
        ck_assert_uint_eq(f->rows[0].decode_steps + f->rows[0].accepted_tokens, f->rows[0].out_tokens - 1);
        ck_assert_uint_eq(f->rows[0].decode_steps + f->rows[0].drafted_tokens, cases[i].rows);
        ck_assert_msg(f->decode_rows == cases[i].rows, "case %zu: %u rows", i, f->decode_rows);
        free(f);
    }
}
END_TEST

/* A run stopped in the middle of answers reports what was produced: between one token a step and four. */
START_TEST(unfinished_answers_count_their_tokens) {
    static const char *const settings = MODELLED SPECULATE "acceptance_length=2.51";
    int looked = 0;
    for (int row = 4; row < 40; row += 5) {
        journal *l = calloc(1, sizeof *l), *again = calloc(1, sizeof *l);
        cedar_run_result a, b;
        cedar_err err = { 0 };
        l->hardware = again->hardware = cedar_hardware_find;
        l->stop_at_row = row;
        cedar_status st = play_run(TWO, settings, l, NULL, &a, &err);
        again->stop_at_step = (int)l->steps;
        if (st == CEDAR_E_INTERRUPT && l->steps) {
            looked++;
            ck_assert_int_eq(play_run(TWO, settings, again, NULL, &b, &err), CEDAR_E_INTERRUPT);
            ck_assert_uint_eq(a.event_hash, b.event_hash);
            ck_assert(strcmp(l->rows, again->rows) == 0);
        }
        journal_free(l);
        journal_free(again);
    }
    ck_assert_int_ge(looked, 3);
}
END_TEST

/* Summed rows have the sums of single ones, and nothing else changes. */
START_TEST(steps_may_share_a_row) {
    journal *one = must_play(MODELLED);
    fleet *f = play_fleet(TWO, "steps_per_row=7", NULL), *g = play_fleet(TWO, "steps_per_row=1", NULL);
    ck_assert_uint_eq(f->out.event_hash, g->out.event_hash);
    ck_assert_uint_eq(f->steps[0], g->steps[0]);
    ck_assert_uint_eq(f->steps[0], one->steps);
    ck_assert_int_eq(f->step_end[0], g->step_end[0]);
    journal_free(one);
    free(f);
    free(g);
}
END_TEST

/* A run that is stopped at any row ends so that a replay, which is told when the last step begins, reaches the same
 * events; with engines whose steps overlap too. */
START_TEST(stopped_runs_replay_to_the_same_events) {
    static const char *const settings[] = { MODELLED, MODELLED "engines=2 kv_pages=64",
                                            MODELLED "engines=2 routing=round_robin" };
    int stopped = 0;
    for (int row = 1; row < 60; row++) {
        journal *l = calloc(1, sizeof *l), *again = calloc(1, sizeof *l);
        cedar_run_result a, b;
        cedar_err err = { 0 };
        l->hardware = again->hardware = cedar_hardware_find;
        l->stop_at_row = row;
        cedar_status st = play_run(TWO, settings[_i], l, NULL, &a, &err);
        again->stop_at_step = (int)l->steps;
        if (st == CEDAR_E_INTERRUPT && l->steps) {
            stopped++;
            ck_assert_int_eq(play_run(TWO, settings[_i], again, NULL, &b, &err), CEDAR_E_INTERRUPT);
            ck_assert_msg(a.event_hash == b.event_hash, "stopped after row %d, step %d", row, (int)l->steps);
            ck_assert(strcmp(l->rows, again->rows) == 0);
        }
        journal_free(l);
        journal_free(again);
    }
    ck_assert_int_ge(stopped, 15);
}
END_TEST

START_TEST(no_allocation_failure_leaks) {
    int64_t live = cedar_mem_live();
    int failures = 0;
    for (int64_t n = 1; n < 3000; n++) {
        journal *l = calloc(1, sizeof *l);
        cedar_run_result a;
        cedar_err err = { 0 };
        l->hardware = cedar_hardware_find;
        l->fail_alloc = n;
        cedar_status st = play_run(TWO, MODELLED "engines=2 kv_pages=30 routing=prefix", l, NULL, &a, &err);
        cedar_mem_fail_at(0);
        ck_assert_msg(st == CEDAR_OK || st == CEDAR_E_OOM, "allocation %d: %s", (int)n, err.msg);
        ck_assert_int_eq(cedar_mem_live(), live);
        journal_free(l);
        failures += st != CEDAR_OK;
        if (!st) break;
    }
    ck_assert_int_gt(failures, 40);
}
END_TEST

/* --- memory, with the store on ------------------------------------------------------------------------------------ */

/* Passes rows on to a store and looks at memory after a tenth of the requests and from then on. */
typedef struct watch {
    cedar_observer store;
    uint64_t requests, total;
    int64_t live_at, live_most;     /* allocations of cedar's own */
    size_t bytes_at, bytes_most;    /* allocated, those of SQLite too */
    long rss_at, rss_end;           /* KiB, largest so far */
} watch;

static size_t allocated(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static long largest_rss(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
}

static cedar_status watch_request(void *self, const cedar_request_row *r, cedar_err *err) {
    watch *w = self;
    cedar_status st = w->store.request(w->store.self, r, err);
    if (++w->requests == w->total / 10) {
        w->live_at = cedar_mem_live();
        w->bytes_at = allocated();
        w->rss_at = largest_rss();
    }
    if (!w->live_at || w->requests % 64) return st;
    if (cedar_mem_live() > w->live_most) w->live_most = cedar_mem_live();
    if (allocated() > w->bytes_most) w->bytes_most = allocated();
    return st;
}
static cedar_status watch_run(void *self, const cedar_run_row *r, cedar_err *err) {
    watch *w = self;
    return w->store.run_begin(w->store.self, r, err);
}
static cedar_status watch_session(void *self, const cedar_session_row *r, cedar_err *err) {
    watch *w = self;
    return w->store.session(w->store.self, r, err);
}
static cedar_status watch_step(void *self, const cedar_step_row *r, cedar_err *err) {
    watch *w = self;
    return w->store.step(w->store.self, r, err);
}
static cedar_status watch_end(void *self, const cedar_run_end_row *r, cedar_err *err) {
    watch *w = self;
    w->rss_end = largest_rss();
    return w->store.run_end(w->store.self, r, err);
}

/* Prefix caches that are full all the time, sessions that end and begin, two engines, every row in a database. */
static void play_long(uint64_t requests) {
    char db[] = "/tmp/cedar-test-XXXXXX", count[24];
    int fd = mkstemp(db);
    ck_assert_int_ge(fd, 0);
    close(fd);
    unlink(db);
    cedar_store *store;
    OK(cedar_store_create(db, false, &store, &failure));
    watch w = { .store = *cedar_store_observer(store), .total = requests };
    cedar_observer obs = { .self = &w, .run_begin = watch_run, .session = watch_session, .request = watch_request,
                           .step = watch_step, .run_end = watch_end };
    cedar_run_host host = { .observer = &obs, .data_dir = ".", .hardware = cedar_hardware_find };
    static const char *const words[][2] = {
        { "model", JOURNAL_MODEL }, { "trace", "traces/kv-cache-tester/trace_0057.json" }, { "clock", "modelled" },
        { "hardware", "h200" }, { "length_scale", "1/64" }, { "recycle", "true" }, { "lanes", "16" },
        { "page_tokens", "4" }, { "step_tokens", "256" }, { "kv_pages", "4000" }, { "engines", "2" },
        { "time_scale", "0.01" }, { "steps_per_row", "8" } };
    cedar_run_opts *o;
    cedar_run_result a;
    OK(cedar_opts_new(&o, &failure));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        OK(cedar_opts_set(o, words[i][0], words[i][1], &failure));
    snprintf(count, sizeof count, "%" PRIu64, requests);
    OK(cedar_opts_set(o, "requests_max", count, &failure));
    OK(cedar_run(o, 1, &host, &a, &failure));
    cedar_opts_free(o);
    OK(cedar_store_close(store, true, &failure));
    unlink(db);
    ck_assert_uint_ge(w.requests, requests);
    ck_assert_uint_gt(a.hit_tokens, 0);
    ck_assert_msg(w.live_most <= w.live_at + 512, "%ld allocations after a tenth, %ld later", (long)w.live_at,
                  (long)w.live_most);
#ifndef CEDAR_SANITIZED     /* sanitizers have an allocator of their own, and keep what was freed */
    ck_assert_msg(w.bytes_most <= w.bytes_at + w.bytes_at / 20, "%zu bytes after a tenth, %zu later", w.bytes_at,
                  w.bytes_most);
    if (requests >= 1000000)    /* over fewer, what the allocator keeps of freed blocks could pass for a leak */
        ck_assert_msg(w.rss_end <= w.rss_at + w.rss_at / 20 + 512, "%ld KiB resident after a tenth, %ld at the end",
                      w.rss_at, w.rss_end);
#endif
    fprintf(stderr, "%" PRIu64 " requests: %zu, then at most %zu bytes allocated; %ld, then %ld KiB resident\n",
            w.requests, w.bytes_at, w.bytes_most, w.rss_at, w.rss_end);
}

/* After a tenth of these, SQLite's cache of pages and the lists of latencies are full. */
#ifdef CEDAR_SANITIZED
enum { LONG_REQUESTS = 50000 };
#else
enum { LONG_REQUESTS = 200000 };
#endif

START_TEST(memory_is_flat_with_the_store_on) { play_long(LONG_REQUESTS); }
END_TEST

START_TEST(memory_is_flat_over_a_million_requests) { play_long(1000000); }
END_TEST

/* --- descriptions ------------------------------------------------------------------------------------------------- */
#define ALL "gpus = 1, hbm_bytes = 141e9, copy_bytes_s = 4e12, matmul_flop_s = 8e14, attention_flop_s = 4e14, " \
    "indexer_flop_s = 7e14, kernels_per_layer = 18, launch_ns = 970, eager_launch_ns = 6500"

/* Loads a description from text through a file. */
static cedar_status load(const char *text, cedar_hardware *hw, cedar_err *err) {
    char path[] = "/tmp/cedar-test-XXXXXX.lua";
    int fd = mkstemps(path, 4);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    int64_t live = cedar_mem_live();
    cedar_status st = cedar_hardware_load(path, hw, NULL, err);
    ck_assert_int_eq(cedar_mem_live(), live);
    unlink(path);
    return st;
}

static const struct { const char *text, *says; } broken[] = {
    { "return 7", "must return a table" },
    { "return {", "expected" },
    { "return { 5 }", "every figure needs a name" },
    { "return { name = 7, " ALL " }", "name must be a string" },
    { "return { " ALL " }", "name is missing" },
    { "return { name = 'x', gpu = 1, " ALL " }", "unknown figure \"gpu\"; did you mean \"gpus\"?" },
    { "return { name = 'x', " ALL ", step_host_ns = 'fast' }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = '970' }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = { 970 } }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = -1 }", "step_host_ns must be a number" },
    { "return { name = 'x', " ALL ", step_host_ns = 0/0 }", "step_host_ns must be a number" },
    { "return { name = 'x', gpus = 1 }", "is missing" },
    { "while true do end", "instructions for a table" },
    { "return { name = os.getenv('HOME'), " ALL " }", "global 'os'" },
};

START_TEST(broken_descriptions_name_the_fault) {
    cedar_hardware hw = { .gpus = -7 };
    cedar_err err = { 0 };
    ck_assert_int_ne(load(broken[_i].text, &hw, &err), CEDAR_OK);
    ck_assert_msg(strstr(err.msg, broken[_i].says), "%s: %s", broken[_i].text, err.msg);
    ck_assert_double_eq(hw.gpus, -7); /* nothing was set */
}
END_TEST

START_TEST(good_descriptions_load) {
    cedar_hardware hw;
    OK(load("return { name = 'x', " ALL ", step_host_ns = { 970, 'measured' } }", &hw, &failure));
    ck_assert_str_eq(hw.name, "x");
    ck_assert_double_eq(hw.step_host_ns, 970);
    static const char *const shipped[] = { "h200", "h200-cedar", "gb300-tp4", "gb300-dep2" };
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        OK(cedar_hardware_find(".", shipped[i], &hw, &failure));
        ck_assert_str_eq(hw.name, shipped[i]);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("modelled");
    TCase *t = tcase_create("runs");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, twice_the_same_to_the_nanosecond);
    tcase_add_test(t, with_and_without_an_engine_the_same_schedule);
    tcase_add_test(t, launches_and_hardware_have_a_price);
    tcase_add_test(t, assumptions_of_one_run);
    tcase_add_test(t, an_engine_of_its_own_is_like_being_alone);
    tcase_add_test(t, rules_of_routing);
    tcase_add_test(t, the_least_loaded_engine_is_taken);
    tcase_add_test(t, switches_change_what_a_run_takes);
    tcase_add_test(t, fp8_rows_take_more_memory);
    tcase_add_test(t, paged_windows_end_no_step);
    tcase_add_test(t, acceptance_has_the_mean_of_the_option);
    tcase_add_test(t, acceptance_is_the_requests_own);
    tcase_add_test(t, verify_steps_by_hand);
    tcase_add_test(t, unfinished_answers_count_their_tokens);
    tcase_add_test(t, steps_may_share_a_row);
    tcase_add_loop_test(t, stopped_runs_replay_to_the_same_events, 0, 3);
    tcase_add_test(t, no_allocation_failure_leaks);
    tcase_add_loop_test(t, refusals_say_what_to_do, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(t, memory_is_flat_with_the_store_on);
    suite_add_tcase(s, t);
    t = tcase_create("slow");
    tcase_set_timeout(t, 1200);
    tcase_set_tags(t, "slow");
    tcase_add_test(t, memory_is_flat_over_a_million_requests);
    suite_add_tcase(s, t);
    t = tcase_create("descriptions");
    tcase_add_loop_test(t, broken_descriptions_name_the_fault, 0, sizeof broken / sizeof *broken);
    tcase_add_test(t, good_descriptions_load);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
