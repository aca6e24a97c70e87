/* Random step plans: the engine under test and the CPU engine on one rank play the same ones side by side, and all
 * logits, drafts and global rows are compared.
 *
 * wide  Both compute in double and decide alike, unless a decision lies within some 1e-13 of its border: one in 1e12.
 *       What is left is the rounding of a double to the float that is handed out: 2^-24 of the value each way; 2^-22 of
 *       the largest logit of the row is asked. Global rows: the same bytes.
 * f32   Sums in another order differ by some 1e-7 of themselves, and a decision so close to its border (one in a
 *       million, docs/ENGINE.md) goes the other way and takes its sequence with it. So the farthest is not bounded; but
 *       most steps have no such decision behind them: in each walk more than half of them must agree within 1e-5. */
#ifndef CEDAR_TESTS_WALKS_H
#define CEDAR_TESTS_WALKS_H

#include "tests/engine_rig.h"

#ifndef WALK_STEPS
#define WALK_STEPS 63           /* 16 walks of them in wide: 1008 plans */
#endif
enum { SEQS = 6, MODES = 8, WALKS = 2 * MODES };

typedef struct walk {
    rig cpu, other;
    cedar_replay_rules rules;
    int32_t seq[SEQS];          /* -1: not open */
    uint64_t seed, draw;
    float *x, *y;               /* logits of a step */
    uint32_t steps, near;
    double farthest;
    bool wide;
} walk;

static uint32_t below(walk *w, uint32_t n) { return (uint32_t)cedar_rng_below(w->seed, w->draw++, n); }

/* Largest distance of two lists over the largest magnitude. */
static double distance(const float *a, const float *b, size_t n) {
    double top = 0, far = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) ck_abort_msg("a logit is not finite");
        top = fmax(top, fabs((double)a[i]));
        far = fmax(far, fabs((double)a[i] - (double)b[i]));
    }
    return top > 0 ? far / top : far;
}

/* The farthest row; in wide it has to be near. */
static double compare(walk *w, const float *a, const float *b, size_t rows, const char *what) {
    double far = 0;
    for (size_t i = 0; i < rows; i++) far = fmax(far, distance(a + i * w->cpu.v, b + i * w->cpu.v, w->cpu.v));
    if (w->wide)
        ck_assert_msg(far <= 0x1p-22, "seed %llu, step %u, %s: %.3g apart", (unsigned long long)w->seed, w->steps, what,
                      far);
    return far;
}

static void open_rigs(walk *w, const char *dir, cedar_arith arith, const char *backend, uint32_t gpus) {
    cedar_engine_opts o = rig_opts(arith);
    o.page_count = 400;
    w->cpu = rig_open(dir, &o);
    o.backend = backend;
    o.gpus = gpus;
    w->other = rig_open(dir, &o);
    w->wide = arith == CEDAR_WIDE;
    w->x = rig_logits(&w->cpu);
    w->y = rig_logits(&w->cpu);
    for (int i = 0; i < SEQS; i++) w->seq[i] = -1;
}

/* exact; decoder with each cut; encoder; both with each cut. */
static void set_rules(walk *w, int mode) {
    w->rules = rules_exact(&w->cpu);
    w->rules.decoder = mode >= 1 && mode != 4;
    w->rules.encoder = mode >= 4;
    if (w->rules.decoder) w->rules.cut = (cedar_cut)(mode < 4 ? mode - 1 : mode - 5);
    w->rules.decoder_rows = 1 + below(w, 2 * w->cpu.w);
    w->rules.encoder_rows = 1 + below(w, 2 * w->cpu.w);
}

static void open_both(walk *w, int i) {
    w->seq[i] = rig_seq(&w->cpu);
    ck_assert_int_eq(w->seq[i], rig_seq(&w->other));
}

static void close_both(walk *w, int i) {
    cedar_seq_close(w->cpu.e, w->seq[i]);
    cedar_seq_close(w->other.e, w->seq[i]);
    w->seq[i] = -1;
}

/* A sequence that others can continue from, or -1. */
static int pick_source(walk *w) {
    int first = (int)below(w, SEQS);
    for (int k = 0; k < SEQS; k++) {
        int i = (first + k) % SEQS;
        int32_t seq = w->seq[i];
        if (seq >= 0 && cedar_seq_pos(w->cpu.e, seq) > cedar_seq_write_floor(w->cpu.e, seq) + 1) return i;
    }
    return -1;
}

static void adopt(rig *r, int32_t seq, int32_t source, uint32_t hit, const cedar_replay_rules *rules) {
    uint32_t count;
    const cedar_hit_plan plan = cedar_plan_hit(rules, hit);
    OK(cedar_seq_adopt(r->e, seq, r->token, cedar_seq_pages(r->e, source, &count), &plan, err));
}

static void restore(rig *r, int32_t seq, int32_t source) {
    cedar_snap *snap;
    uint32_t count, pos = cedar_seq_pos(r->e, source);
    OK(cedar_snap_save(r->e, source, &snap, err));
    OK(cedar_seq_restore(r->e, seq, r->token, cedar_seq_pages(r->e, source, &count), pos, snap, err));
    cedar_snap_free(snap);
}

/* A new sequence in slot i: fresh, from stored windows, or with encoder replay from a hit. */
static void begin(walk *w, int i) {
    int source = pick_source(w);
    uint32_t how = below(w, 3);
    open_both(w, i);
    if (source < 0 || how == 0) return;
    int32_t from = w->seq[source];
    uint32_t pos = cedar_seq_pos(w->cpu.e, from);
    if (w->rules.encoder && how == 1) {
        uint32_t hit = 1 + below(w, pos);
        adopt(&w->cpu, w->seq[i], from, hit, &w->rules);
        adopt(&w->other, w->seq[i], from, hit, &w->rules);
    } else {
        restore(&w->cpu, w->seq[i], from);
        restore(&w->other, w->seq[i], from);
    }
}

static cedar_plan_entry draw_entry(walk *w, int i) {
    uint32_t pos = cedar_seq_pos(w->cpu.e, w->seq[i]), left = TOKENS_MAX - pos, kind = below(w, 5), rows;
    bool replays = pos < cedar_seq_write_floor(w->cpu.e, w->seq[i]);    /* drafts come after the prompt */
    cedar_rows_kind k = kind > 1 || replays ? CEDAR_ROWS_PREFILL : kind == 0 ? CEDAR_ROWS_DECODE : CEDAR_ROWS_VERIFY;
    rows = k == CEDAR_ROWS_DECODE ? 1 : k == CEDAR_ROWS_VERIFY ? 1 + below(w, 4) : 1 + below(w, 48);
    if (rows > left) rows = left;
    return rig_entry(&w->cpu, w->seq[i], w->cpu.token, k, rows, &w->rules);
}

static void take_back(walk *w, const cedar_plan_entry *e, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (e[i].kind != CEDAR_ROWS_VERIFY) continue;
        uint32_t to = e[i].pos + 1 + below(w, e[i].rows);
        OK(cedar_seq_truncate(w->cpu.e, e[i].seq, to, err));
        OK(cedar_seq_truncate(w->other.e, e[i].seq, to, err));
    }
}

static void random_step(walk *w) {
    cedar_plan_entry e[SEQS], same[SEQS];
    uint32_t count = 0, first = below(w, SEQS), wanted = 1 + below(w, 4), kept = 0;
    for (uint32_t k = 0; k < SEQS && count < wanted; k++) {
        int i = (int)((first + k) % SEQS);
        if (w->seq[i] >= 0 && cedar_seq_pos(w->cpu.e, w->seq[i]) + 4 > TOKENS_MAX) close_both(w, i);
        if (w->seq[i] < 0) begin(w, i);
        if (cedar_seq_pos(w->cpu.e, w->seq[i]) >= TOKENS_MAX) continue;
        e[count] = draw_entry(w, i);
        same[count] = e[count];
        same[count].tokens = w->other.token + e[count].pos;
        kept += e[count++].kept;
    }
    if (!count) return;
    rig_step(&w->cpu, e, count, w->rules.cut, w->x);
    rig_step(&w->other, same, count, w->rules.cut, w->y);
    double far = compare(w, w->x, w->y, kept, "logits");
    w->steps++;
    w->near += far <= 1e-5;
    w->farthest = fmax(w->farthest, far);
    take_back(w, e, count);
}

static void compare_drafts(walk *w) {
    int i = pick_source(w);
    if (i < 0 || !w->cpu.c->stages) return;
    int32_t a[64], b[64], token = (int32_t)below(w, w->cpu.v);
    rig_draft(&w->cpu, w->seq[i], token, a, w->x);
    rig_draft(&w->other, w->seq[i], token, b, w->y);
    compare(w, w->x, w->y, (size_t)w->cpu.c->draft_block, "drafts");
    if (w->wide) ck_assert_msg(!memcmp(a, b, (size_t)w->cpu.c->draft_block * sizeof *a), "drafted tokens differ");
}

static void finish(walk *w) {
    for (int i = 0; i < SEQS; i++) {
        if (w->seq[i] < 0) continue;
        uint32_t pos = cedar_seq_pos(w->cpu.e, w->seq[i]);
        if (w->wide) same_globals(&w->cpu, w->seq[i], &w->other, w->seq[i], pos, "after a walk");
        close_both(w, i);
    }
    free(w->x);
    free(w->y);
    rig_close(&w->cpu);
    rig_close(&w->other);
}

static inline void play_walk(int number, cedar_arith arith, const char *backend, uint32_t gpus) {
    static const char *const dirs[] = { "tests/golden/tiny-s1", "tests/golden/tiny2-s1" };
    walk w = { .seed = 500 + (uint64_t)number };
    open_rigs(&w, dirs[number / MODES], arith, backend, gpus);
    set_rules(&w, number % MODES);
    while (w.steps < WALK_STEPS) {
        if (below(&w, 8) == 0) {
            int i = (int)below(&w, SEQS);
            if (w.seq[i] >= 0) close_both(&w, i);
        }
        random_step(&w);
        if (below(&w, 8) == 0) compare_drafts(&w);
    }
    printf("plans %s %s gpus %u mode %d: %u steps, %u within 1e-5, farthest %.3g\n", dirs[number / MODES], backend,
           gpus, number % MODES, w.steps, w.near, w.farthest);
    ck_assert_msg(2 * w.near > w.steps, "only %u of %u steps agree within 1e-5", w.near, w.steps);
    finish(&w);
}

#endif
