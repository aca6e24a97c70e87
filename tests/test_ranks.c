/* Several ranks: what each of them holds, where they meet, and that together they are the engine that one rank is.
 * tests/test_engine_ranks.c asks two ranks everything that an engine is asked. */
#define WALK_STEPS 24
#include "tests/walks.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "engine/cpu/cpu_int.h"
#include "engine/ranks.h"
#include "engine/shard.h"
#include "engine/watch.h"

/* --- shares ------------------------------------------------------------------------------------------------------- */

static cedar_config shape(const char *name) {
    cedar_config c;
    char path[128];
    snprintf(path, sizeof path, "scenarios/models/%s.json", name);
    OK(cedar_config_load(path, &c, err));
    return c;
}

/* Worked out by hand from the shapes: output groups, heads, inner width, vocabulary. */
static const struct {
    const char *model;
    uint32_t rank, ranks;
    int32_t groups[2], heads[2], moe[2], vocab[2];
} hand[] = {
    { "tiny", 0, 1, { 0, 2 }, { 0, 4 }, { 0, 64 }, { 0, 512 } },
    { "tiny", 1, 2, { 1, 1 }, { 2, 2 }, { 32, 32 }, { 256, 256 } },
    { "tiny2", 0, 2, { 0, 1 }, { 0, 2 }, { 0, 0 }, { 0, 160 } },
    { "tiny2", 1, 2, { 1, 2 }, { 2, 4 }, { 0, 32 }, { 160, 160 } },
    { "tiny2", 0, 3, { 0, 1 }, { 0, 2 }, { 0, 0 }, { 0, 104 } },
    { "tiny2", 1, 3, { 1, 1 }, { 2, 2 }, { 0, 0 }, { 104, 104 } },
    { "tiny2", 2, 3, { 2, 1 }, { 4, 2 }, { 0, 32 }, { 208, 112 } },
    { "small", 1, 2, { 1, 1 }, { 2, 2 }, { 64, 64 }, { 128, 136 } },
    { "flash-e128", 0, 2, { 0, 4 }, { 0, 32 }, { 0, 1152 }, { 0, 64640 } },
    { "flash-e128", 3, 4, { 6, 2 }, { 48, 16 }, { 1728, 576 }, { 96960, 32320 } },
    { "flash-e128", 2, 5, { 3, 1 }, { 24, 8 }, { 896, 480 }, { 51712, 25856 } },
    { "flash-e128", 7, 8, { 7, 1 }, { 56, 8 }, { 2016, 288 }, { 113120, 16160 } },
};

START_TEST(shares_are_those_worked_out_by_hand) {
    for (size_t i = 0; i < sizeof hand / sizeof *hand; i++) {
        cedar_config c = shape(hand[i].model), local;
        cedar_shard s;
        OK(cedar_shard_make(&c, hand[i].rank, hand[i].ranks, &s, err));
        const int32_t got[] = { s.group_first, s.groups, s.head_first, s.heads, s.moe_first, s.moe, s.vocab_first,
                                s.vocab };
        const int32_t want[] = { hand[i].groups[0], hand[i].groups[1], hand[i].heads[0], hand[i].heads[1],
                                 hand[i].moe[0],    hand[i].moe[1],    hand[i].vocab[0], hand[i].vocab[1] };
        for (int k = 0; k < 8; k++)
            ck_assert_msg(got[k] == want[k], "%s, rank %u of %u, number %d: %d, expected %d", hand[i].model,
                          hand[i].rank, hand[i].ranks, k, got[k], want[k]);
        cedar_shard_config(&c, &s, &local);
        ck_assert(local.heads == s.heads && local.o_groups == s.groups && local.moe_dim == s.moe);
        ck_assert(local.vocab == c.vocab && local.hidden == c.hidden && local.layers == c.layers);
    }
}
END_TEST

START_TEST(splits_that_cannot_be_are_refused) {
    cedar_config c = shape("tiny");
    cedar_shard s;
    FAILS(cedar_shard_make(&c, 0, 0, &s, err), CEDAR_E_ARG, "gpus is 0; it must be 1 to 2");
    FAILS(cedar_shard_make(&c, 0, 3, &s, err), CEDAR_E_ARG, "gpus is 3, but model tiny has 2 output groups");
    FAILS(cedar_shard_make(&c, 0, 9999, &s, err), CEDAR_E_ARG, "at most 2");
    c.o_lora = 48;
    FAILS(cedar_shard_make(&c, 0, 2, &s, err), CEDAR_E_UNSUPPORTED, "o_lora_rank 48");
    OK(cedar_shard_make(&c, 0, 1, &s, err));
    c = shape("tiny");
    c.vocab = 516;
    FAILS(cedar_shard_make(&c, 0, 2, &s, err), CEDAR_E_UNSUPPORTED, "\"vocab_size\" 516");
    rig r = rig_tiny(CEDAR_F32);
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    cedar_engine *e;
    o.gpus = 3;
    FAILS(cedar_engine_open(r.model, &o, &e, err), CEDAR_E_ARG, "at most 2");
    o.gpus = 2;
    o.allreduce = CEDAR_ALLREDUCE_NCCL;
    FAILS(cedar_engine_open(r.model, &o, &e, err), CEDAR_E_UNSUPPORTED, "add in one way only");
    o.gpus = 1;
    FAILS(cedar_engine_open(r.model, &o, &e, err), CEDAR_E_ARG, "gpus = 1 there is nothing to add");
    o.allreduce = CEDAR_ALLREDUCE_PLAIN;
    o.gpus = 2;
    o.backend = "none";
    FAILS(cedar_engine_open(r.model, &o, &e, err), CEDAR_E_ARG, "\"none\" computes nothing");
    rig_close(&r);
}
END_TEST

START_TEST(pages_are_dealt_out) {
    for (uint32_t ranks = 1; ranks <= 8; ranks++)
        for (uint32_t pages = 0; pages < 40; pages++) {
            uint32_t count[8] = { 0 };
            for (uint32_t p = 0; p < pages; p++) {
                ck_assert_uint_eq(p / ranks, count[p % ranks]);     /* its number there: no gap */
                count[p % ranks]++;
            }
            for (uint32_t r = 0; r < ranks; r++) {
                const cedar_shard s = { .rank = r, .ranks = ranks };
                ck_assert_uint_eq(cedar_shard_pages(&s, pages), count[r]);
            }
        }
}
END_TEST

/* One stored element: its code, and the scale that covers it (0 without). */
typedef struct element { uint32_t code, scale; } element;

static element element_of(const cedar_weight *w, int64_t row, int64_t col) {
    int64_t i = row * w->cols + col, across = (w->cols + 31) / 32;
    element e = { 0, 0 };
    switch (w->kind) {
    case CEDAR_W_TILES: e = (element){ w->data[i], w->scale[row / 32 * across + col / 32] }; break;
    case CEDAR_W_ROWS: e = (element){ w->data[i], w->scale[row * across + col / 32] }; break;
    case CEDAR_W_FP4:
        e = (element){ (uint32_t)w->data[i / 2] >> (i % 2 * 4) & 15u, w->scale[row * across + col / 32] };
        break;
    case CEDAR_W_BF16: memcpy(&e.code, w->data + 2 * i, 2); break;
    case CEDAR_W_F32: memcpy(&e.code, w->data + 4 * i, 4); break;
    case CEDAR_W_NONE: ck_abort_msg("a tensor without a kind");
    }
    return e;
}

enum { TENSORS_MAX = 8192, RANKS_MAX = 4 };

typedef struct listing {
    const cedar_weight *slot[TENSORS_MAX];
    char name[TENSORS_MAX][96];
    uint32_t count;
} listing;

static cedar_status list_tensor(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    listing *l = self;
    ck_assert_uint_lt(l->count, TENSORS_MAX);
    l->slot[l->count] = t->slot;
    snprintf(l->name[l->count++], sizeof l->name[0], "%s", t->name);
    return CEDAR_OK;
}

/* 0: whole on every rank; 1: by rows; 2: by columns. Said anew here. */
static int axis_of(const char *name) {
    static const char *const rows[] = { "attn.wq_b.weight", "attn.wo_a.weight", ".w1.weight", ".w3.weight" },
                            *const columns[] = { "attn.attn_sink", "attn.wo_b.weight", ".w2.weight" };
    if (!strcmp(name, "head.weight")) return 1;
    for (size_t i = 0; i < 4; i++)
        if (strstr(name, rows[i])) return 1;
    for (size_t i = 0; i < 3; i++)
        if (strstr(name, columns[i])) return 2;
    return 0;
}

/* The parts of all ranks, put side by side, are the tensor, element for element and scale for scale. */
static void compare_parts(const char *name, const cedar_weight *whole, const cedar_weight *const *part,
                          uint32_t ranks) {
    int axis = axis_of(name);
    int64_t row_first = 0, col_first = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        const cedar_weight *p = part[r];
        ck_assert_int_eq(p->kind, whole->kind);
        ck_assert_uint_eq(p->index, whole->index);
        if (axis != 1) ck_assert_int_eq(p->rows, whole->rows);
        if (axis != 2) ck_assert_int_eq(p->cols, whole->cols);
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t k = 0; k < p->cols; k++) {
                element a = element_of(p, i, k), b = element_of(whole, row_first + i, col_first + k);
                if (a.code != b.code || a.scale != b.scale)     /* no assertion each: there are millions */
                    ck_abort_msg("%s, rank %u of %u, element [%lld, %lld]: code %x and scale %x, expected %x and %x",
                                 name, r, ranks, (long long)i, (long long)k, a.code, a.scale, b.code, b.scale);
            }
        if (axis == 1) row_first += p->rows;
        if (axis == 2) col_first += p->cols;
    }
    if (axis == 1) ck_assert_int_eq(row_first, whole->rows);
    if (axis == 2) ck_assert_int_eq(col_first, whole->cols);
}

static const char *const cut_models[] = { "tiny", "tiny2", "small" };

START_TEST(parts_make_up_the_whole) {
    cedar_config c = shape(cut_models[_i]);
    cedar_model *m;
    listing *whole = calloc(1, sizeof *whole), *own = calloc(RANKS_MAX, sizeof *own);
    OK(cedar_model_synth(&c, 5, 1ull << 32, &m, err));
    OK(cedar_tensors_visit(&c, m, list_tensor, whole, err));
    for (uint32_t ranks = 2; ranks <= RANKS_MAX && ranks <= (uint32_t)c.o_groups; ranks++) {
        cedar_model *local[RANKS_MAX];
        const cedar_weight *part[RANKS_MAX];
        for (uint32_t r = 0; r < ranks; r++) {
            cedar_shard s;
            OK(cedar_shard_make(&c, r, ranks, &s, err));
            OK(cedar_cpu_slice(m, &s, &local[r], err));
            own[r].count = 0;
            OK(cedar_tensors_visit(&local[r]->config, local[r], list_tensor, &own[r], err));
            ck_assert_uint_eq(own[r].count, whole->count);
        }
        for (uint32_t t = 0; t < whole->count; t++) {
            for (uint32_t r = 0; r < ranks; r++) part[r] = own[r].slot[t];
            compare_parts(whole->name[t], whole->slot[t], part, ranks);
        }
        for (uint32_t r = 0; r < ranks; r++) cedar_model_close(local[r]);
    }
    cedar_model_close(m);
    free(whole);
    free(own);
}
END_TEST

/* --- meetings ----------------------------------------------------------------------------------------------------- */

enum { VISITORS = 4, MEETINGS = 2000 };
#define SHORT_NS 50000000

typedef struct visit {
    cedar_ranks *g;
    uint32_t rank;
    uint64_t *board;            /* [VISITORS] */
    uint64_t sum;
    int late_ms;                /* -1: does not come at all */
    uint64_t value;
    bool whole;
} visit;

static void together(visit *v, uint32_t count, void *(*fn)(void *)) {
    pthread_t t[VISITORS];
    for (uint32_t i = 0; i < count; i++) ck_assert(!pthread_create(&t[i], NULL, fn, &v[i]));
    for (uint32_t i = 0; i < count; i++) pthread_join(t[i], NULL);
}

/* Each writes its place of the board, and after the meeting reads those of all. */
static void *meet_often(void *arg) {
    visit *v = arg;
    void *all[VISITORS];
    v->whole = cedar_ranks_share(v->g, v->rank, &v->board[v->rank], all);
    for (uint32_t i = 0; i < MEETINGS && v->whole; i++) {
        v->board[v->rank] = (uint64_t)(i + 1) * (v->rank + 1);
        v->whole = cedar_ranks_meet(v->g, v->rank);
        for (uint32_t r = 0; r < VISITORS; r++) v->sum += *(uint64_t *)all[r];
        v->whole = v->whole && cedar_ranks_agree(v->g, v->rank, i, "is elsewhere");
    }
    return NULL;
}

START_TEST(what_was_written_before_a_meeting_is_there_after_it) {
    uint64_t board[VISITORS] = { 0 }, want = (uint64_t)MEETINGS * (MEETINGS + 1) / 2 * (1 + 2 + 3 + 4);
    visit v[VISITORS];
    cedar_ranks *g;
    OK(cedar_ranks_open(VISITORS, CEDAR_RANKS_LIMIT_NS, &g, err));
    for (uint32_t r = 0; r < VISITORS; r++) v[r] = (visit){ .g = g, .rank = r, .board = board };
    together(v, VISITORS, meet_often);
    for (uint32_t r = 0; r < VISITORS; r++) {
        ck_assert(v[r].whole);
        ck_assert_uint_eq(v[r].sum, want);
    }
    ck_assert(!cedar_ranks_broken(g));
    cedar_ranks_close(g);
}
END_TEST

static void wait_ms(int64_t ms) {
    nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l }, NULL);
}

static void *meet_once(void *arg) {
    visit *v = arg;
    if (v->late_ms < 0) return NULL;
    wait_ms(v->late_ms);
    v->whole = cedar_ranks_agree(v->g, v->rank, v->value, "has other numbers than rank 0");
    return NULL;
}

/* Rank 2 does something at a meeting of three in step 7. */
static void meeting_of(int late_ms, uint64_t value, cedar_status status, const char *says) {
    visit v[3];
    cedar_ranks *g;
    OK(cedar_ranks_open(3, SHORT_NS, &g, err));
    cedar_ranks_now(g, "step", 7);
    for (uint32_t r = 0; r < 3; r++)
        v[r] = (visit){ .g = g, .rank = r, .late_ms = r == 2 ? late_ms : 0, .value = r == 2 ? value : 3 };
    together(v, 3, meet_once);
    for (uint32_t r = 0; r < 3; r++) ck_assert(!v[r].whole);
    FAILS(cedar_ranks_error(g, err), status, says);
    ck_assert(!cedar_ranks_meet(g, 0));     /* at once, and the first reason stays */
    cedar_ranks_fail(g, 1, CEDAR_E_OOM, "later");
    FAILS(cedar_ranks_error(g, err), status, says);
    cedar_ranks_close(g);
}

START_TEST(a_rank_that_does_not_come_is_named) {
    int64_t start = cedar_now_ns();
    meeting_of(-1, 3, CEDAR_E_LIVENESS, "rank 2 of 3 stalled at step 7");
    ck_assert_int_ge(cedar_now_ns() - start, SHORT_NS);
    ck_assert_int_lt(cedar_now_ns() - start, 40ll * SHORT_NS);
}
END_TEST

/* The user asks to stop before two of three ranks meet the third, which does not come. */
START_TEST(a_stop_cuts_the_waiting_short) {
    static const struct { int stop; cedar_status status; const char *says; int64_t least_ns, most_ns; } rows[] = {
        { 2, CEDAR_E_INTERRUPT, "stopped by the user while rank 2 of 3 stalled at step 7", 900000000, 2000000000 },
        { 0, CEDAR_E_LIVENESS, "rank 2 of 3 stalled at step 7", 2500000000, 4000000000 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        visit v[3];
        volatile int stop = rows[i].stop;
        cedar_ranks *g;
        OK(cedar_ranks_open(3, 2500000000, &g, err));
        cedar_ranks_heed(g, &stop);
        cedar_ranks_now(g, "step", 7);
        for (uint32_t r = 0; r < 3; r++) v[r] = (visit){ .g = g, .rank = r, .late_ms = r == 2 ? -1 : 0 };
        int64_t start = cedar_now_ns();
        together(v, 3, meet_once);
        int64_t took = cedar_now_ns() - start;
        FAILS(cedar_ranks_error(g, err), rows[i].status, rows[i].says);
        ck_assert_int_ge(took, rows[i].least_ns);
        ck_assert_int_lt(took, rows[i].most_ns);
        cedar_ranks_close(g);
    }
}
END_TEST

START_TEST(a_rank_that_differs_is_named) {
    meeting_of(0, 4, CEDAR_E_DIVERGED, "rank 2 of 3 has other numbers than rank 0 at step 7");
    meeting_of(10, 4, CEDAR_E_DIVERGED, "rank 2 of 3");
}
END_TEST

static void *fail_or_meet(void *arg) {
    visit *v = arg;
    if (v->rank == 1) cedar_ranks_fail(v->g, 1, CEDAR_E_CUDA, "CUDA: it broke");
    else v->whole = cedar_ranks_meet(v->g, v->rank);
    return NULL;
}

START_TEST(a_rank_that_fails_frees_the_others) {
    visit v[VISITORS];
    cedar_ranks *g;
    OK(cedar_ranks_open(VISITORS, CEDAR_RANKS_LIMIT_NS, &g, err));
    for (uint32_t r = 0; r < VISITORS; r++) v[r] = (visit){ .g = g, .rank = r };
    int64_t start = cedar_now_ns();
    together(v, VISITORS, fail_or_meet);
    ck_assert_int_lt(cedar_now_ns() - start, CEDAR_RANKS_LIMIT_NS);
    for (uint32_t r = 0; r < VISITORS; r++) ck_assert(!v[r].whole);
    FAILS(cedar_ranks_error(g, err), CEDAR_E_CUDA, "rank 1 of 4 failed at opening: CUDA: it broke");
    cedar_ranks_close(g);
}
END_TEST

START_TEST(watching_ends) {
    cedar_watcher w = { 0 };
    _Atomic uint64_t word = 5;
    ck_assert(cedar_watch(&w, &word, 4, SHORT_NS));
    int64_t start = cedar_now_ns();
    ck_assert(!cedar_watch(&w, &word, 5, SHORT_NS));
    ck_assert_int_lt(cedar_now_ns() - start, 40ll * SHORT_NS);
    w.sleeps_until = cedar_now_ns() + 10 * SHORT_NS;
    ck_assert(!cedar_watch(&w, &word, 4, SHORT_NS));
    w.sleeps_until = cedar_now_ns();
    ck_assert(cedar_watch(&w, &word, 4, SHORT_NS));
}
END_TEST

static void *work_until(void *arg) {
    _Atomic bool *stop = arg;
    while (!atomic_load(stop)) continue;
    return NULL;
}

START_TEST(a_watcher_leaves_the_processor_to_one_that_works) {
    cedar_watcher w = { 0 };
    _Atomic uint64_t word = 5;
    _Atomic bool stop = false;
    pthread_t worker;
    cpu_set_t usable, one;
    ck_assert(!sched_getaffinity(0, sizeof usable, &usable));
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    ck_assert(!sched_setaffinity(0, sizeof one, &one));         /* what is started now shares it */
    ck_assert(!pthread_create(&worker, NULL, work_until, &stop));
    int64_t start = cedar_now_ns();
    ck_assert(!cedar_watch(&w, &word, 5, CEDAR_RANKS_LIMIT_NS));
    int64_t took = cedar_now_ns() - start;
    atomic_store(&stop, true);
    pthread_join(worker, NULL);
    ck_assert(!sched_setaffinity(0, sizeof usable, &usable));
    ck_assert_int_lt(took, CEDAR_RANKS_LIMIT_NS);
    ck_assert_int_gt(w.sleeps_until, start);
}
END_TEST

/* --- together they are one engine --------------------------------------------------------------------------------- */

/* tiny-s1-ref is left out: it pins the roundings of one rank in bf16, and each rank's part is rounded once more. */
static const struct { const char *dir; cedar_arith arith; uint32_t gpus; } golden_cases[] = {
    { "tests/golden/tiny-s1", CEDAR_WIDE, 2 },  { "tests/golden/tiny-s1", CEDAR_F32, 2 },
    { "tests/golden/tiny-s1", CEDAR_BF16, 2 },  { "tests/golden/tiny2-s1", CEDAR_WIDE, 2 },
    { "tests/golden/tiny2-s1", CEDAR_F32, 2 },  { "tests/golden/tiny2-s1", CEDAR_BF16, 2 },
    { "tests/golden/tiny2-s1", CEDAR_WIDE, 3 }, { "tests/golden/tiny2-s1", CEDAR_F32, 3 },
    { "tests/golden/tiny2-s1", CEDAR_BF16, 3 },
};
enum { GOLDEN_CASES = sizeof golden_cases / sizeof *golden_cases };

static void print_miss(void *self, bool ok, const char *text) {
    (void)self;
    if (!ok) printf("MISS %s\n", text);
}

START_TEST(golden_vectors_hold) {
    if (sanitized_skips("golden_vectors_hold", _i)) return;
    uint32_t checked = 0, failed = 0;
    const cedar_golden_opts o = { .backend = "cpu", .arith = golden_cases[_i].arith, .gpus = golden_cases[_i].gpus,
                                  .threads = golden_cases[_i].gpus, .line = print_miss };
    OK(cedar_golden_check(golden_cases[_i].dir, &o, &checked, &failed, err));
    ck_assert_uint_gt(checked, 100);
    ck_assert_uint_eq(failed, 0);
}
END_TEST

/* Walk i of two ranks; on tiny2, which has three output groups, every other one of three. */
static uint32_t gpus_of(int i) { return i >= MODES && i % 2 ? 3 : 2; }

START_TEST(plans_wide) {
    if (sanitized_skips("plans_wide", _i % 11)) return;
    play_walk(_i, CEDAR_WIDE, "cpu", gpus_of(_i));
}
END_TEST

START_TEST(plans_f32) {
    if (sanitized_skips("plans_f32", _i)) return;
    play_walk(_i, CEDAR_F32, "cpu", gpus_of(_i));
}
END_TEST

/* Both halves of the head are the same, so that every best token is one of rank 0 and one of rank 1: the lower counts,
 * in steps and in drafts. */
START_TEST(ties_go_to_the_lowest_token_over_all_ranks) {
    enum { N = 50 };
    cedar_config c = shape("tiny");
    rig r = { .c = &c, .v = (uint32_t)c.vocab, .w = (uint32_t)c.window };
    OK(cedar_model_synth(&c, 9, 1ull << 32, &r.model, err));
    size_t half = (size_t)c.vocab / 2 * (size_t)c.hidden * 2, chain = (size_t)c.vocab / 2 * (size_t)c.markov_rank * 2;
    uint8_t *head = (uint8_t *)(uintptr_t)r.model->head.data, *markov = (uint8_t *)(uintptr_t)r.model->markov_head.data;
    memcpy(head + half, head, half);
    memcpy(markov + chain, markov, chain);
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.gpus = 2;
    OK(cedar_engine_open(r.model, &o, &r.e, err));
    cedar_replay_rules exact = rules_exact(&r);
    int32_t seq = rig_seq(&r), picks[N], ids[64], middle = c.vocab / 2, high = 0;
    float *logits = rig_logits(&r);
    for (uint32_t i = 0; i < N; i++) r.token[i] = (int32_t)cedar_rng_below(77, i, r.v);
    cedar_plan_entry e = rig_entry(&r, seq, r.token, CEDAR_ROWS_PREFILL, N, &exact);
    OK(cedar_seq_reserve(r.e, seq, N, err));
    cedar_step_plan plan = { .entry_count = 1, .entries = &e };
    cedar_plan_total(&plan);
    cedar_step_out out = { .logits = logits, .argmax = picks };
    OK(cedar_engine_step(r.e, &plan, &out, err));
    for (uint32_t i = 0; i < N; i++) {
        const float *row = logits + i * r.v;
        int32_t best = 0;
        for (int32_t k = 1; k < c.vocab; k++)
            if (row[k] > row[best]) best = k;
        ck_assert_mem_eq(row, row + middle, (size_t)middle * sizeof *row);
        ck_assert_int_eq(picks[i], best);
        ck_assert_int_lt(picks[i], middle);
        high += picks[i] > middle / 4;
    }
    ck_assert_int_gt(high, 0);      /* not all of them the first token */
    cedar_draft_item item = { .seq = seq, .token = 3, .ids = ids };
    OK(cedar_engine_draft(r.e, &item, 1, err));
    for (int32_t k = 0; k < c.draft_block; k++) ck_assert_int_lt(ids[k], middle);
    cedar_seq_close(r.e, seq);
    free(logits);
    rig_close(&r);
}
END_TEST

/* More threads than ranks, fewer, and an odd rest. */
START_TEST(threads_are_shared_out) {
    enum { N = 40 };
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.gpus = 3;
    rig a = rig_open("tests/golden/tiny2-s1", &o);
    cedar_replay_rules exact = rules_exact(&a);
    float *want = rig_logits(&a), *got = rig_logits(&a);
    int32_t seq = rig_seq(&a);
    rig_feed(&a, seq, N, &exact, (feeding){ .chunk = 17 }, want);
    for (uint32_t threads = 2; threads <= 7; threads += 5) {
        o.threads = threads;
        rig b = rig_open("tests/golden/tiny2-s1", &o);
        int32_t s = rig_seq(&b);
        rig_feed(&b, s, N, &exact, (feeding){ .chunk = 9 }, got);
        same_rows(&a, got, want, 0, N, "threads");
        cedar_seq_close(b.e, s);
        rig_close(&b);
    }
    cedar_seq_close(a.e, seq);
    free(want);
    free(got);
    rig_close(&a);
}
END_TEST

/* A pool of fewer pages than ranks, and an odd number of them. */
START_TEST(small_pools_work) {
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.gpus = 3;
    for (uint32_t pages = 1; pages <= 5; pages += 2) {
        o.page_count = pages;
        rig r = rig_open("tests/golden/tiny2-s1", &o);
        cedar_replay_rules exact = rules_exact(&r);
        int32_t seq = rig_seq(&r);
        rig_feed(&r, seq, pages * o.page_tokens, &exact, (feeding){ .chunk = 3 }, NULL);
        FAILS(cedar_seq_reserve(r.e, seq, pages * o.page_tokens + 1, err), CEDAR_E_BUSY, "0 are free");
        cedar_seq_close(r.e, seq);
        rig_close(&r);
    }
}
END_TEST

/* --- faults ------------------------------------------------------------------------------------------------------- */

static cedar_status one_step(rig *r, int32_t seq, uint32_t rows, cedar_err *said) {
    cedar_replay_rules exact = rules_exact(r);
    int32_t picks[TOKENS_MAX];
    cedar_plan_entry e = rig_entry(r, seq, r->token, CEDAR_ROWS_PREFILL, rows, &exact);
    OK(cedar_seq_reserve(r->e, seq, e.pos + rows, err));
    cedar_step_plan plan = { .entry_count = 1, .entries = &e };
    cedar_plan_total(&plan);
    cedar_step_out out = { .argmax = picks };
    return cedar_engine_step(r->e, &plan, &out, said);
}

static int64_t processor_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

START_TEST(ranks_without_work_sleep) {
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.gpus = 2;
    rig r = rig_open("tests/golden/tiny-s1", &o);
    int32_t seq = rig_seq(&r);
    for (int i = 0; i < 3; i++) {
        OK(one_step(&r, seq, 1, err));
        wait_ms(100);
        int64_t before = processor_ns();
        wait_ms(300);
        ck_assert_int_lt(processor_ns() - before, 30000000);
    }
    cedar_seq_close(r.e, seq);
    rig_close(&r);
}
END_TEST

/* Rank 1 does `what` in the third step; the rig is as the failure left it. */
static rig drilled(const char *what, cedar_status status, const char *says, int64_t most_ns) {
    char text[32];
    snprintf(text, sizeof text, "1:3:%s", what);
    ck_assert(!setenv("CEDAR_RANK_FAULT", text, 1));
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.gpus = 2;
    rig r = rig_open("tests/golden/tiny-s1", &o);
    int32_t seq = rig_seq(&r);
    OK(one_step(&r, seq, 20, err));
    OK(one_step(&r, seq, 1, err));
    int64_t start = cedar_now_ns();
    FAILS(one_step(&r, seq, 1, err), status, says);
    ck_assert_int_lt(cedar_now_ns() - start, most_ns);
    ck_assert_uint_eq(cedar_seq_pos(r.e, seq), 21);         /* the engine is as it was, */
    start = cedar_now_ns();
    FAILS(one_step(&r, seq, 1, err), status, says);         /* but computes no more */
    int32_t ids[64];
    cedar_draft_item item = { .seq = seq, .ids = ids };
    FAILS(cedar_engine_draft(r.e, &item, 1, err), status, says);
    ck_assert_int_lt(cedar_now_ns() - start, 1000000000);
    cedar_seq_close(r.e, seq);
    ck_assert(!unsetenv("CEDAR_RANK_FAULT"));
    return r;
}

static void drill(const char *what, cedar_status status, const char *says, int64_t most_ns) {
    rig r = drilled(what, status, says, most_ns);
    rig_close(&r);
}

/* As rig_close, but that a rank is still away. */
static void close_without(rig *r, uint32_t rank) {
    char says[96];
    cedar_err told = { .code = CEDAR_E_LIVENESS, .msg = "the step failed" };
    snprintf(says, sizeof says, "the step failed; rank %u of 2 has not come back", rank);
    ck_assert_int_eq(cedar_engine_close(r->e, &told), CEDAR_E_LIVENESS);
    ck_assert_msg(!strncmp(told.msg, says, strlen(says)), "%s", told.msg);
    cedar_model_close(r->model);
}

START_TEST(a_rank_that_fails_ends_the_step) {
    drill("fail", CEDAR_E_LIVENESS, "rank 1 of 2 failed at step 3: planted by CEDAR_RANK_FAULT", 4000000000);
}
END_TEST

START_TEST(a_rank_that_computes_something_else_ends_the_step) {
    drill("differ", CEDAR_E_DIVERGED, "rank 1 of 2 has other results than rank 0 at step 3", 4000000000);
}
END_TEST

START_TEST(a_rank_that_stalls_ends_the_step) {
    rig r = drilled("stall", CEDAR_E_LIVENESS, "rank 1 of 2 stalled at step 3", 9000000000);
    close_without(&r, 1);
}
END_TEST

/* It comes back 9 s after the step began: after 7 s the step ended without it, and a second later the engine was closed
 * without it. It looks at the plan then, and at the other ranks. */
START_TEST(a_rank_that_is_late_finds_what_it_needs) {
    rig r = drilled("late", CEDAR_E_LIVENESS, "rank 1 of 2 stalled at step 3", 9000000000);
    close_without(&r, 1);
    wait_ms(3000);
}
END_TEST

/* A tap that holds rank 0 up behind the last layer, once, until it is let go. */
typedef struct sleeper {
    int32_t layer;
    _Atomic bool asleep, wake;
} sleeper;

static void sleep_once(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                       uint32_t width) {
    (void)seq, (void)pos, (void)data, (void)width;
    sleeper *s = self;
    if (kind != CEDAR_TAP_H || layer != s->layer || atomic_exchange(&s->asleep, true)) return;
    while (!atomic_load(&s->wake)) wait_ms(10);
}

/* A step whose plan, tokens and buffers are gone as soon as it has failed. */
static void step_asleep(rig *r, int32_t seq, uint32_t rows) {
    cedar_replay_rules exact = rules_exact(r);
    cedar_plan_entry *e = malloc(sizeof *e);
    int32_t *tokens = malloc(rows * sizeof *tokens), *picks = malloc(rows * sizeof *picks);
    float *logits = malloc((size_t)rows * r->v * sizeof *logits);
    memcpy(tokens, r->token, rows * sizeof *tokens);
    *e = rig_entry(r, seq, tokens, CEDAR_ROWS_PREFILL, rows, &exact);
    OK(cedar_seq_reserve(r->e, seq, rows, err));
    cedar_step_plan *plan = malloc(sizeof *plan);
    *plan = (cedar_step_plan){ .entry_count = 1, .entries = e };
    cedar_plan_total(plan);
    cedar_step_out *out = malloc(sizeof *out);
    *out = (cedar_step_out){ .logits = logits, .argmax = picks };
    FAILS(cedar_engine_step(r->e, plan, out, err), CEDAR_E_LIVENESS, "rank 0 of 2 stalled at step 1");
    void *const lent[] = { e, tokens, picks, logits, plan, out };
    for (size_t i = 0; i < sizeof lent / sizeof *lent; i++) free(lent[i]);
}

/* Rank 0 stalls in the middle of a step, behind its last sum: when it wakes up it goes through draft windows and head,
 * which read weights, and writes logits. In 0 that is after engine and model were closed, in 1 just before. */
START_TEST(a_rank_that_wakes_up_goes_on_in_memory_that_is_there) {
    int64_t before = cedar_mem_live();
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.gpus = 2;
    o.weight_cache_bytes = 0;       /* weights are read where the model has them */
    rig r = rig_open("tests/golden/tiny-s1", &o);
    static sleeper s;               /* the rank may look at it as long as the test runs */
    s.layer = r.c->layers - 1;
    cedar_engine_tap(r.e, sleep_once, &s);
    int32_t seq = rig_seq(&r);
    step_asleep(&r, seq, 20);
    ck_assert(atomic_load(&s.asleep));
    cedar_engine_tap(r.e, NULL, NULL);
    cedar_seq_close(r.e, seq);
    if (_i) {
        atomic_store(&s.wake, true);
        rig_close(&r);
        ck_assert_int_eq(cedar_mem_live(), before);
    } else {
        close_without(&r, 0);
        atomic_store(&s.wake, true);
        wait_ms(1000);
    }
}
END_TEST

START_TEST(drills_are_spelt_out) {
    static const char *const wrong[] = { "1", "1:0:fail", "2:1:fail", "1:1:die", "1:1:fail ", ":1:fail",
                                         "1:-5:fail", " 1:5:fail", "1: 5:fail", "+1:5:fail", "4294967297:3:fail",
                                         "1:99999999999999999999999:fail", "1:5:", "1:5:fail:x" };
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    rig r = rig_open("tests/golden/tiny-s1", &o);
    o.gpus = 2;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cedar_engine *e;
        ck_assert(!setenv("CEDAR_RANK_FAULT", wrong[i], 1));
        FAILS(cedar_engine_open(r.model, &o, &e, err), CEDAR_E_ARG, "it must be RANK:STEP:WHAT");
    }
    ck_assert(!unsetenv("CEDAR_RANK_FAULT"));
    rig_close(&r);
}
END_TEST

/* The N-th allocation fails, in whatever thread: opening ends with a sentence, leaves nothing, and hangs nowhere. */
START_TEST(opening_that_fails_leaves_nothing) {
    cedar_model *m;
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.gpus = 2;
    OK(cedar_model_open("tests/golden/tiny-s1", &m, err));
    int64_t before = cedar_mem_live(), n = 1;
    for (bool opened = false; !opened; n++) {
        cedar_err err = { 0 };
        cedar_engine *e = NULL;
        cedar_mem_fail_at(n);
        opened = cedar_engine_open(m, &o, &e, &err) == CEDAR_OK;
        cedar_mem_fail_at(0);
        if (!opened) ck_assert_msg(err.code == CEDAR_E_OOM, "allocation %lld: %s", (long long)n, err.msg);
        ck_assert(!cedar_engine_close(e, &err));
        ck_assert_int_eq(cedar_mem_live(), before);
    }
    ck_assert_int_gt(n, 20);
    cedar_model_close(m);
}
END_TEST

#ifdef CEDAR_SANITIZED          /* every walk and every golden case makes the same accesses, ten times slower */
enum { PLAYED = 2, CHECKED = 2 };
#else
enum { PLAYED = WALKS, CHECKED = GOLDEN_CASES };
#endif

static Suite *ranks_suite(void) {
    Suite *s = suite_create("ranks");
    TCase *t = tcase_create("shares");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, shares_are_those_worked_out_by_hand);
    tcase_add_test(t, splits_that_cannot_be_are_refused);
    tcase_add_test(t, pages_are_dealt_out);
    tcase_add_loop_test(t, parts_make_up_the_whole, 0, 3);
    suite_add_tcase(s, t);
    t = tcase_create("meetings");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, what_was_written_before_a_meeting_is_there_after_it);
    tcase_add_test(t, a_rank_that_does_not_come_is_named);
    tcase_add_test(t, a_stop_cuts_the_waiting_short);
    tcase_add_test(t, a_rank_that_differs_is_named);
    tcase_add_test(t, a_rank_that_fails_frees_the_others);
    tcase_add_test(t, watching_ends);
    tcase_add_test(t, a_watcher_leaves_the_processor_to_one_that_works);
    tcase_add_test(t, ranks_without_work_sleep);
    suite_add_tcase(s, t);
    t = tcase_create("one engine");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, golden_vectors_hold, 0, CHECKED);
    tcase_add_loop_test(t, plans_wide, 0, PLAYED);
    tcase_add_loop_test(t, plans_f32, 0, PLAYED);
    tcase_add_test(t, ties_go_to_the_lowest_token_over_all_ranks);
    tcase_add_test(t, threads_are_shared_out);
    tcase_add_test(t, small_pools_work);
    suite_add_tcase(s, t);
    t = tcase_create("faults");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, a_rank_that_fails_ends_the_step);
    tcase_add_test(t, a_rank_that_computes_something_else_ends_the_step);
    tcase_add_test(t, a_rank_that_stalls_ends_the_step);
    tcase_add_test(t, a_rank_that_is_late_finds_what_it_needs);
    tcase_add_loop_test(t, a_rank_that_wakes_up_goes_on_in_memory_that_is_there, 0, 2);
    tcase_add_test(t, drills_are_spelt_out);
    tcase_add_test(t, opening_that_fails_leaves_nothing);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(ranks_suite());
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
