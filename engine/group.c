/* Several ranks as one backend (engine/ranks.h): each has a thread and an instance of the inner backend, all execute
 * the same plans. What the ranks hold alike is read from rank 0 and written on all; a page is written where it lies.
 *
 * A rank that fails, stalls or differs breaks the group: the step ends with a sentence that names it, and so does every
 * later one. A rank that does not even come back then is left behind, since a thread cannot be ended from outside, and
 * may wake up at any time. So ranks work on nothing that is the caller's, but on the group's copies of plan and items
 * and on its own room for results; and closing waits a while, and keeps all that such a rank may touch. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "engine/backend.h"
#include "engine/watch.h"

/* How long a broken group waits for ranks that are still at work, and closing for those left behind; how long a rank
 * that is drilled to be late stays away: longer than the others wait for it, and than those two. */
enum { GRACE_MS = 2000, SETTLE_MS = 1000, LATE_MS = 9000, LOOK_MS = 100 };

/* How long a rank watches for the next job before it sleeps (a guess of what the caller does between two steps), and
 * how long the caller watches before and after the time at which a job should end: waking up takes it some 100 us. */
#define WATCH_JOB_NS 1000000
#define WATCH_END_NS 200000

typedef enum job { JOB_NONE, JOB_OPEN, JOB_STEP, JOB_DRAFT, JOB_CLOSE, JOB_QUIT } job;
typedef enum fault { FAULT_NONE, FAULT_FAIL, FAULT_STALL, FAULT_LATE, FAULT_DIFFER } fault;

typedef struct group group;

typedef struct member {
    group *g;
    cedar_rank rank;
    uint64_t digest;
    void *impl;                     /* of the inner backend */
    pthread_t thread;
    bool started, busy;
    cedar_watcher watcher;
    cedar_status st;                /* of opening */
    cedar_err err;
    cedar_step_out out;             /* other ranks look at it */
    int32_t *argmax;                /* [step_rows] */
    cedar_draft_item *items;        /* [draft_items] copies of the caller's, with ids of their own */
    int32_t *ids;                   /* [draft_items, draft_block] */
} member;

struct group {
    const cedar_backend *inner;
    const cedar_model *model;
    const cedar_engine_opts *opts;
    const cedar_layout *layout;
    uint32_t ranks, draft_items;
    member *member;                 /* [ranks] */
    cedar_ranks *meeting;
    pthread_mutex_t lock;
    pthread_cond_t posted, done;
    _Atomic uint64_t round, ended;  /* jobs posted, and jobs that all ranks are done with; watched without the lock */
    _Atomic job job;
    cedar_watcher watcher;          /* the caller */
    int64_t took_ns[JOB_QUIT + 1];  /* the last job of each kind */
    _Atomic bool abandoned;         /* a rank did not come back */
    uint64_t steps;
    /* the drill */
    fault fault;
    uint32_t fault_rank;
    uint64_t fault_step;
    /* of the job: copies of what the caller lends, and room for results */
    cedar_step_plan plan;
    cedar_plan_entry *entries;      /* [step_seqs] */
    int32_t *tokens;                /* [step_rows] */
    cedar_seq_state *seqs;          /* [seq_count] */
    uint32_t item_count;
    int32_t *forced;                /* [draft_items, draft_block] */
    float *confidence;              /* [draft_items, draft_block] */
    float *logits;                  /* [logit_rows, vocab] of rank 0 */
    uint64_t logit_rows;
    bool wants_logits;
    /* the caller's hooks, not called any more once a rank was left behind */
    cedar_tap_fn tap;
    void *tap_self;
    cedar_inject_fn inject;
    void *inject_self;
    double *injected;               /* [hc * hidden + hc] what rank 0's call gave */
    bool injects;
};

/* --- one rank ----------------------------------------------------------------------------------------------------- */

static void run_open(member *m) {
    group *g = m->g;
    m->st = g->inner->open(g->model, g->opts, g->layout, &m->rank, &m->impl, &m->err);
    if (m->st) cedar_ranks_fail(g->meeting, m->rank.shard.rank, m->st, m->err.msg);
}

static uint64_t plan_hash(const cedar_step_plan *plan) {
    uint64_t h = cedar_fold64((uint64_t)plan->cut, plan->entry_count);
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        const cedar_plan_entry *e = &plan->entries[i];
        const uint64_t words[] = { (uint64_t)e->seq, (uint64_t)e->kind, e->pos, e->rows, e->kept, e->replayed,
                                   e->write_floor, e->logits, e->bounds.lo_encoder, e->bounds.lo_cut,
                                   e->bounds.lo_late };
        for (size_t k = 0; k < sizeof words / sizeof *words; k++) h = cedar_fold64(h, words[k]);
        for (uint32_t k = 0; k < e->rows; k++) h = cedar_fold64(h, (uint64_t)e->tokens[k]);
    }
    return h;
}

static uint64_t fold_ids(uint64_t h, const int32_t *ids, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) h = cedar_fold64(h, (uint64_t)ids[i]);
    return h;
}

/* The planted fault of this step, if it is this rank's. */
static fault drill(const member *m) {
    const group *g = m->g;
    return g->fault_rank == m->rank.shard.rank && g->fault_step == g->steps ? g->fault : FAULT_NONE;
}

static void stall(void) {
    for (;;) pause();
}

static void come_late(void) {
    const struct timespec away = { .tv_sec = LATE_MS / 1000, .tv_nsec = LATE_MS % 1000 * 1000000l };
    nanosleep(&away, NULL);
}

static void run_step(member *m) {
    group *g = m->g;
    const cedar_step_plan *plan = &g->plan;
    uint32_t rank = m->rank.shard.rank;
    fault planted = drill(m);
    if (planted == FAULT_STALL) stall();
    if (planted == FAULT_LATE) come_late();
    if (planted == FAULT_FAIL) {
        cedar_ranks_fail(g->meeting, rank, CEDAR_E_LIVENESS, "planted by CEDAR_RANK_FAULT");
        return;
    }
    if (!cedar_ranks_agree(g->meeting, rank, plan_hash(plan), "executes another plan than rank 0")) return;
    /* tokens are made on every rank, so that they can be compared; logits are the same on all, and one is enough; all
     * ranks run the head, or none */
    m->out = (cedar_step_out){ .logits = rank == 0 && g->wants_logits ? g->logits : NULL,
                               .argmax = plan->logits ? m->argmax : NULL };
    m->digest = 0;
    cedar_step_begin("a step");
    cedar_status st = g->inner->step(m->impl, plan, g->seqs, &m->out, &m->err);
    cedar_step_end();
    if (st) {
        cedar_ranks_fail(g->meeting, rank, st, m->err.msg);
        return;
    }
    uint64_t result = fold_ids(m->digest, m->argmax, plan->logits) ^ (planted == FAULT_DIFFER);
    (void)cedar_ranks_agree(g->meeting, rank, result, "has other results than rank 0");
}

static void run_draft(member *m) {
    group *g = m->g;
    uint32_t rank = m->rank.shard.rank, block = (uint32_t)g->model->config.draft_block;
    m->digest = 0;
    cedar_step_begin("a draft");
    cedar_status st = g->inner->draft(m->impl, m->items, g->item_count, g->seqs, &m->err);
    cedar_step_end();
    if (st) {
        cedar_ranks_fail(g->meeting, rank, st, m->err.msg);
        return;
    }
    uint64_t result = m->digest;
    for (uint32_t i = 0; i < g->item_count; i++) result = fold_ids(result, m->items[i].ids, block);
    (void)cedar_ranks_agree(g->meeting, rank, result, "drafts other tokens than rank 0");
}

static void run_job(member *m, job j) {
    switch (j) {
    case JOB_OPEN: run_open(m); return;
    case JOB_STEP: run_step(m); return;
    case JOB_DRAFT: run_draft(m); return;
    case JOB_CLOSE:
        if (m->impl) m->g->inner->close(m->impl);
        m->impl = NULL;
        return;
    case JOB_NONE: case JOB_QUIT: return;
    }
}

/* The lock is held. */
static bool any_busy(const group *g) {
    for (uint32_t r = 0; r < g->ranks; r++)
        if (g->member[r].busy) return true;
    return false;
}

static void end_job(member *m) {
    group *g = m->g;
    pthread_mutex_lock(&g->lock);
    m->busy = false;
    pthread_cond_signal(&g->done);
    if (!any_busy(g)) g->ended++;
    pthread_mutex_unlock(&g->lock);
}

static void *rank_main(void *arg) {
    member *m = arg;
    group *g = m->g;
    uint64_t seen = 0;
    for (job j = JOB_NONE; j != JOB_QUIT;) {
        if (!cedar_watch(&m->watcher, &g->round, seen, WATCH_JOB_NS)) {
            pthread_mutex_lock(&g->lock);
            while (g->round == seen) pthread_cond_wait(&g->posted, &g->lock);
            pthread_mutex_unlock(&g->lock);
        }
        /* no other is posted before this rank is done with it */
        seen = g->round;
        j = g->job;
        run_job(m, j);
        end_job(m);
    }
    return NULL;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* The lock is held. Until a rank is done, or that time, or for a moment. */
static void wait_briefly(group *g, int64_t most_ns) {
    int64_t until = cedar_now_ns() + LOOK_MS * 1000000ll;
    if (until > most_ns) until = most_ns;
    struct timespec at = { .tv_sec = until / 1000000000, .tv_nsec = until % 1000000000 };
    pthread_cond_timedwait(&g->done, &g->lock, &at);
}

/* The lock is held, but while watching. Waits for all ranks; in a broken group for a while only, but when opening or
 * closing, which end. To be woken takes long: the caller wakes up on its own at watch_at, before the job should end. */
static void await(group *g, job j, int64_t watch_at) {
    uint64_t ended = g->ended;
    int64_t broken_at = 0;
    while (any_busy(g)) {
        int64_t now = cedar_now_ns();
        bool patient = j == JOB_OPEN || j == JOB_CLOSE;
        if (!patient && cedar_ranks_broken(g->meeting)) {
            if (!broken_at) broken_at = now;
            if (now - broken_at > GRACE_MS * 1000000ll) {
                g->abandoned = true;
                return;
            }
        }
        if (now < watch_at) {
            wait_briefly(g, watch_at);
        } else {
            watch_at = INT64_MAX;
            pthread_mutex_unlock(&g->lock);
            (void)cedar_watch(&g->watcher, &g->ended, ended, 2 * WATCH_END_NS);
            pthread_mutex_lock(&g->lock);
        }
    }
}

/* Runs a job on all ranks and returns when they are done. It should take as long as the last of its kind did. */
static void post(group *g, job j) {
    int64_t start = cedar_now_ns();
    pthread_mutex_lock(&g->lock);
    for (uint32_t r = 0; r < g->ranks; r++) g->member[r].busy = g->member[r].started;
    pthread_cond_broadcast(&g->posted);
    g->job = j;                 /* before the round: who watches that reads the job without the lock */
    g->round++;
    await(g, j, start + g->took_ns[j] - WATCH_END_NS);
    pthread_mutex_unlock(&g->lock);
    g->took_ns[j] = cedar_now_ns() - start;
}

static cedar_status group_settle(void *self, cedar_err *err) {
    group *g = self;
    if (!g->abandoned) return CEDAR_OK;
    int64_t until = cedar_now_ns() + SETTLE_MS * 1000000ll;
    uint32_t r = 0;
    pthread_mutex_lock(&g->lock);
    while (any_busy(g) && cedar_now_ns() < until) wait_briefly(g, until);
    while (r < g->ranks && !g->member[r].busy) r++;
    pthread_mutex_unlock(&g->lock);
    if (r < g->ranks)
        return cedar_fail_too(err, CEDAR_E_LIVENESS,
                              "rank %u of %u has not come back, so the memory of its engine and model is kept until "
                              "the program ends",
                              r, g->ranks);
    g->abandoned = false;
    return CEDAR_OK;
}

static void free_members(group *g) {
    for (uint32_t r = 0; g->member && r < g->ranks; r++) {
        cedar_free(g->member[r].argmax);
        cedar_free(g->member[r].items);
        cedar_free(g->member[r].ids);
    }
    cedar_free(g->member);
}

static void group_close(void *self) {
    group *g = self;
    CEDAR_ASSERT(!g->abandoned);
    if (g->member) {
        post(g, JOB_CLOSE);
        post(g, JOB_QUIT);
    }
    for (uint32_t r = 0; g->member && r < g->ranks; r++)
        if (g->member[r].started) pthread_join(g->member[r].thread, NULL);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->posted);
    pthread_cond_destroy(&g->done);
    cedar_ranks_close(g->meeting);
    free_members(g);
    void *const owned[] = { g->entries, g->tokens, g->seqs, g->forced, g->confidence, g->logits, g->injected };
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) cedar_free(owned[i]);
    cedar_free(g);
}

/* Digits and a colon; false = something else, or above most. *text moves behind them. */
static bool read_number(const char **text, uint64_t most, uint64_t *out) {
    char *end;
    errno = 0;
    *out = strtoull(*text, &end, 10);
    bool good = **text >= '0' && **text <= '9' && *end == ':' && !errno && *out <= most;
    if (good) *text = end + 1;
    return good;
}

/* CEDAR_RANK_FAULT=RANK:STEP:fail|stall|late|differ, for drills. */
static cedar_status read_fault(group *g, cedar_err *err) {
    static const char *const names[] = { [FAULT_FAIL] = "fail", [FAULT_STALL] = "stall", [FAULT_LATE] = "late",
                                         [FAULT_DIFFER] = "differ" };
    const char *text = getenv("CEDAR_RANK_FAULT");
    const char *rest = text;
    uint64_t rank = 0, step = 0;
    if (!text || !*text) return CEDAR_OK;
    if (read_number(&rest, g->ranks - 1, &rank) && read_number(&rest, UINT64_MAX, &step) && step > 0)
        for (int f = FAULT_FAIL; f <= FAULT_DIFFER; f++)
            if (!strcmp(rest, names[f])) g->fault = (fault)f;
    if (!g->fault)
        return cedar_fail(err, CEDAR_E_ARG,
                          "CEDAR_RANK_FAULT is \"%.64s\"; it must be RANK:STEP:WHAT with a rank below %u, a step "
                          "from 1 on, and fail, stall, late or differ",
                          text, g->ranks);
    g->fault_rank = (uint32_t)rank;
    g->fault_step = step;
    return CEDAR_OK;
}

static cedar_status take_members(group *g, cedar_err *err) {
    const cedar_config *c = &g->model->config;
    const cedar_engine_opts *o = g->opts;
    size_t drafted = (size_t)o->seq_count * (size_t)c->draft_block;
    g->draft_items = o->seq_count;
    g->member = cedar_calloc(g->ranks, sizeof *g->member);
    g->entries = cedar_calloc(o->step_seqs, sizeof *g->entries);
    g->tokens = cedar_calloc(o->step_rows, sizeof *g->tokens);
    g->seqs = cedar_calloc(o->seq_count, sizeof *g->seqs);
    g->forced = cedar_calloc(drafted, sizeof *g->forced);
    g->confidence = cedar_calloc(drafted, sizeof *g->confidence);
    g->injected = cedar_calloc((size_t)c->hc * (size_t)c->hidden + (size_t)c->hc, sizeof *g->injected);
    bool taken = g->member && g->entries && g->tokens && g->seqs && g->forced && g->confidence && g->injected;
    for (uint32_t r = 0; r < g->ranks && taken; r++) {
        member *m = &g->member[r];
        m->g = g;
        m->rank = (cedar_rank){ .group = g->meeting, .digest = &m->digest };
        cedar_status st = cedar_shard_make(c, r, g->ranks, &m->rank.shard, err);
        if (st) return st;
        m->argmax = cedar_calloc(o->step_rows, sizeof *m->argmax);
        m->items = cedar_calloc(g->draft_items, sizeof *m->items);
        m->ids = cedar_calloc(drafted, sizeof *m->ids);
        taken = m->argmax && m->items && m->ids;
    }
    return taken ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "no memory for %u ranks", g->ranks);
}

static cedar_status start_threads(group *g, cedar_err *err) {
    for (uint32_t r = 0; r < g->ranks; r++) {
        member *m = &g->member[r];
        if (pthread_create(&m->thread, NULL, rank_main, m))
            return cedar_fail(err, CEDAR_E_OOM, "the system gave %u of the %u threads of the ranks", r, g->ranks);
        m->started = true;
    }
    return CEDAR_OK;
}

static void init_sync(group *g) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->posted, NULL);
    pthread_cond_init(&g->done, &attr);
    pthread_condattr_destroy(&attr);
}

static cedar_status group_open(const cedar_model *m, const cedar_engine_opts *o, const cedar_layout *l,
                               const cedar_rank *rank, void **self, cedar_err *err) {
    CEDAR_ASSERT(!rank);
    group *g = cedar_calloc(1, sizeof *g);
    if (!g) return cedar_fail(err, CEDAR_E_OOM, "no memory for a group of ranks");
    *g = (group){ .inner = cedar_backend_find(o->backend), .model = m, .opts = o, .layout = l, .ranks = o->gpus };
    init_sync(g);
    cedar_status st = read_fault(g, err);
    if (!st) st = cedar_ranks_open(g->ranks, CEDAR_RANKS_LIMIT_NS, &g->meeting, err);
    if (!st) cedar_ranks_heed(g->meeting, o->stop);
    if (!st) st = take_members(g, err);
    if (!st) st = start_threads(g, err);
    if (!st) {
        post(g, JOB_OPEN);
        st = cedar_ranks_error(g->meeting, err);
    }
    if (st) {
        group_close(g);
        return st;
    }
    *self = g;
    return CEDAR_OK;
}

static cedar_status group_reserve(void *self, uint64_t rows, cedar_err *err) {
    group *g = self;
    if (rows <= g->logit_rows || cedar_ranks_broken(g->meeting)) return CEDAR_OK;
    float *logits = cedar_realloc(g->logits, rows, (size_t)g->model->config.vocab * sizeof *logits);
    if (!logits) return cedar_fail(err, CEDAR_E_OOM, "no memory for %llu rows of logits", (unsigned long long)rows);
    g->logits = logits;
    g->logit_rows = rows;
    return CEDAR_OK;
}

static void copy_plan(group *g, const cedar_step_plan *plan) {
    int32_t *tokens = g->tokens;
    g->plan = *plan;
    g->plan.entries = g->entries;
    for (uint32_t i = 0; i < plan->entry_count; i++) {
        g->entries[i] = plan->entries[i];
        g->entries[i].tokens = tokens;
        memcpy(tokens, plan->entries[i].tokens, plan->entries[i].rows * sizeof *tokens);
        tokens += plan->entries[i].rows;
    }
}

static void copy_seqs(group *g, const cedar_seq_state *seqs) {
    memcpy(g->seqs, seqs, g->opts->seq_count * sizeof *seqs);
}

static cedar_status group_step(void *self, const cedar_step_plan *plan, const cedar_seq_state *seqs,
                               cedar_step_out *out, cedar_err *err) {
    group *g = self;
    size_t vocab = (size_t)g->model->config.vocab;
    if (cedar_ranks_broken(g->meeting)) return cedar_ranks_error(g->meeting, err);
    copy_plan(g, plan);
    copy_seqs(g, seqs);
    g->wants_logits = out->logits && plan->logits;
    cedar_ranks_now(g->meeting, "step", ++g->steps);
    post(g, JOB_STEP);
    if (cedar_ranks_broken(g->meeting)) return cedar_ranks_error(g->meeting, err);
    if (out->argmax && plan->logits) memcpy(out->argmax, g->member[0].argmax, plan->logits * sizeof *out->argmax);
    if (g->wants_logits) memcpy(out->logits, g->logits, plan->logits * vocab * sizeof *out->logits);
    return CEDAR_OK;
}

/* Each rank's own items; what only the caller wants to see is made by rank 0. */
static void copy_items(group *g, const cedar_draft_item *items, uint32_t count) {
    size_t block = (size_t)g->model->config.draft_block, wide = block * (size_t)g->model->config.vocab;
    float *logits = g->logits;
    g->item_count = count;
    for (uint32_t i = 0; i < count; i++) {
        int32_t *forced = items[i].forced ? g->forced + i * block : NULL;
        if (forced) memcpy(forced, items[i].forced, block * sizeof *forced);
        for (uint32_t r = 0; r < g->ranks; r++)
            g->member[r].items[i] = (cedar_draft_item){ .seq = items[i].seq, .token = items[i].token, .forced = forced,
                                                        .ids = g->member[r].ids + i * block };
        if (items[i].confidence) g->member[0].items[i].confidence = g->confidence + i * block;
        if (!items[i].logits) continue;
        g->member[0].items[i].logits = logits;
        logits += wide;
    }
}

static void give_items(const group *g, cedar_draft_item *items) {
    size_t block = (size_t)g->model->config.draft_block, wide = block * (size_t)g->model->config.vocab;
    for (uint32_t i = 0; i < g->item_count; i++) {
        const cedar_draft_item *made = &g->member[0].items[i];
        memcpy(items[i].ids, made->ids, block * sizeof *made->ids);
        if (made->confidence) memcpy(items[i].confidence, made->confidence, block * sizeof *made->confidence);
        if (made->logits) memcpy(items[i].logits, made->logits, wide * sizeof *made->logits);
    }
}

static cedar_status group_draft(void *self, cedar_draft_item *items, uint32_t count, const cedar_seq_state *seqs,
                                cedar_err *err) {
    group *g = self;
    if (cedar_ranks_broken(g->meeting)) return cedar_ranks_error(g->meeting, err);
    copy_seqs(g, seqs);
    for (uint32_t first = 0; first < count; first += g->item_count) {
        copy_items(g, items + first, count - first < g->draft_items ? count - first : g->draft_items);
        cedar_ranks_now(g->meeting, "the drafts behind step", g->steps);
        post(g, JOB_DRAFT);
        if (cedar_ranks_broken(g->meeting)) return cedar_ranks_error(g->meeting, err);
        give_items(g, items + first);
    }
    return CEDAR_OK;
}

/* --- what is called for the ranks that hold the bytes ------------------------------------------------------------- */

static void group_seq_reset(void *self, int32_t seq) {
    group *g = self;
    for (uint32_t r = 0; r < g->ranks && !g->abandoned; r++) g->inner->seq_reset(g->member[r].impl, seq);
}

static void group_page_copy(void *self, int32_t to, int32_t from) {
    group *g = self;
    if (!g->abandoned) g->inner->page_copy(g->member[(uint32_t)to % g->ranks].impl, to, from);
}

static uint64_t group_snap_bytes(const void *self) {
    const group *g = self;
    return g->inner->snap_bytes(g->member[0].impl);
}

static void group_snap_save(const void *self, int32_t seq, uint32_t pos, uint8_t *buf) {
    const group *g = self;
    if (!g->abandoned) g->inner->snap_save(g->member[0].impl, seq, pos, buf);
}

static void group_snap_load(void *self, int32_t seq, uint32_t pos, const uint8_t *buf) {
    group *g = self;
    for (uint32_t r = 0; r < g->ranks && !g->abandoned; r++) g->inner->snap_load(g->member[r].impl, seq, pos, buf);
}

static void tap_caller(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                       uint32_t width) {
    const group *g = self;
    if (!g->abandoned) g->tap(g->tap_self, kind, layer, seq, pos, data, width);
}

static void tap_of_others(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                          uint32_t width) {
    (void)self, (void)kind, (void)layer, (void)seq, (void)pos, (void)data, (void)width;
}

/* All that a tap sees is the same on every rank; the others stop where rank 0 does. */
static void group_tap(void *self, cedar_tap_fn fn, void *tap_self) {
    group *g = self;
    if (g->abandoned) return;
    g->tap = fn;
    g->tap_self = tap_self;
    for (uint32_t r = 0; r < g->ranks; r++)
        g->inner->tap(g->member[r].impl, !fn ? NULL : r == 0 ? tap_caller : tap_of_others, g);
}

/* The hook is called once a row, by rank 0; the others get what it gave. */
static bool inject_on_all(void *self, int32_t layer, int32_t seq, uint32_t pos, double *h, double *pre) {
    member *m = self;
    group *g = m->g;
    const cedar_config *c = &g->model->config;
    uint32_t rank = m->rank.shard.rank;
    size_t width = (size_t)c->hc * (size_t)c->hidden;
    if (rank == 0) {
        g->injects = !g->abandoned && g->inject(g->inject_self, layer, seq, pos, h, pre);
        memcpy(g->injected, h, width * sizeof *h);
        memcpy(g->injected + width, pre, (size_t)c->hc * sizeof *pre);
    }
    if (!cedar_ranks_meet(g->meeting, rank)) return false;
    bool injects = g->injects;
    if (rank && injects) {
        memcpy(h, g->injected, width * sizeof *h);
        memcpy(pre, g->injected + width, (size_t)c->hc * sizeof *pre);
    }
    /* the next row's waits until all have this one's */
    return cedar_ranks_meet(g->meeting, rank) && injects;
}

static void group_inject(void *self, cedar_inject_fn fn, void *inject_self) {
    group *g = self;
    if (g->abandoned) return;
    g->inject = fn;
    g->inject_self = inject_self;
    for (uint32_t r = 0; r < g->ranks; r++)
        g->inner->inject(g->member[r].impl, fn ? inject_on_all : NULL, &g->member[r]);
}

/* Every rank can read every page. */
static void group_read_entries(const void *self, int32_t page, int32_t part, uint32_t first, uint32_t count,
                               uint8_t *kv, uint8_t *index) {
    const group *g = self;
    g->inner->read_entries(g->member[0].impl, page, part, first, count, kv, index);
}

static void group_read_open(const void *self, int32_t seq, int32_t part, uint32_t pos, double *kvf, double *score) {
    const group *g = self;
    g->inner->read_open(g->member[0].impl, seq, part, pos, kvf, score);
}

static void group_poison(void *self, int32_t seq, uint32_t ring, uint32_t lo, uint32_t hi) {
    group *g = self;
    for (uint32_t r = 0; r < g->ranks && !g->abandoned; r++) g->inner->poison(g->member[r].impl, seq, ring, lo, hi);
}

const cedar_backend cedar_backend_group = {
    .name = "group",
    .open = group_open,
    .close = group_close,
    .seq_reset = group_seq_reset,
    .page_copy = group_page_copy,
    .step = group_step,
    .draft = group_draft,
    .snap_bytes = group_snap_bytes,
    .snap_save = group_snap_save,
    .snap_load = group_snap_load,
    .tap = group_tap,
    .inject = group_inject,
    .read_entries = group_read_entries,
    .read_open = group_read_open,
    .poison = group_poison,
    .reserve = group_reserve,
    .settle = group_settle,
};
