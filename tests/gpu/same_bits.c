/* Class D1: a row's logits have the same bits alone and in any batch, in any order, in any chunking, as prefill and as
 * decode, with graphs and without, on one stream and on several, and in a graph that was captured with other inputs.
 * With several ranks also: sums that are fused with what follows, and those that are not. Small models in all
 * arithmetics, and flash-e32 in bf16, for the kernels that only real shapes take. */
#include "base/clock.h"
#include "tests/engine_rig.h"
#include "tests/gpu/device_ranks.h"
#include "tests/gpu/suites.h"

enum { STREAMS = 6 };

static const struct shape {
    const char *name;
    cedar_arith arith;
    uint32_t tokens, streams, trials, gpus;
    bool one_stream;
} shapes[] = {
    { "tests/golden/tiny-s1", CEDAR_WIDE, 160, STREAMS, 8, 1, false },
    { "tests/golden/tiny-s1", CEDAR_F32, 160, STREAMS, 20, 1, false },
    { "tests/golden/tiny-s1", CEDAR_BF16, 160, STREAMS, 20, 1, false },
    { "tests/golden/tiny2-s1", CEDAR_F32, 160, STREAMS, 20, 1, true },
    { "tests/golden/tiny2-s1", CEDAR_BF16, 160, STREAMS, 20, 1, false },
    { "tests/golden/tiny-s1", CEDAR_WIDE, 160, STREAMS, 8, 2, false },
    { "tests/golden/tiny-s1", CEDAR_BF16, 160, STREAMS, 20, 2, false },
    { "tests/golden/tiny2-s1", CEDAR_F32, 160, STREAMS, 20, 2, false },
    { "tests/golden/tiny2-s1", CEDAR_BF16, 160, STREAMS, 20, 3, false },
    { "scenarios/models/flash-e32.json", CEDAR_BF16, 260, 3, 8, 1, false },
    { "scenarios/models/flash-e32.json", CEDAR_BF16, 260, 3, 4, 2, true },
};
enum { SHAPES = sizeof shapes / sizeof *shapes, SMALL = SHAPES - 2 };

typedef struct bed {
    const struct shape *shape;
    int64_t start_ns;
    rig r[2];                       /* with graphs, and without */
    int32_t token[STREAMS][TOKENS_MAX];
    float *alone[STREAMS];          /* logits by position, fed alone and at once, without graphs */
    float *rows;                    /* of a step */
} bed;

static void open_rig(bed *b, int i) {
    cedar_engine_opts o = rig_opts(b->shape->arith);
    o.backend = gpu_backend;
    o.eager = i == 1;
    o.gpus = b->shape->gpus;
    if (i == 0 && !strcmp(gpu_backend, "cuda")) {
        o.one_stream = b->shape->one_stream;
        if (o.gpus > 1 && b->shape->arith == CEDAR_BF16) o.allreduce = CEDAR_ALLREDUCE_FUSED;
    }
    rig *r = &b->r[i];
    if (strstr(b->shape->name, ".json")) {
        static cedar_config c;
        OK(cedar_config_load(b->shape->name, &c, err));
        if (i == 0) OK(cedar_model_seeded(&c, 5, &r->model, err));
        else r->model = b->r[0].model;
        o.page_tokens = 64;
        o.page_count = 64;
    } else if (i == 0) {
        OK(cedar_model_open(b->shape->name, &r->model, err));
    } else {
        r->model = b->r[0].model;
    }
    r->c = cedar_model_config(r->model);
    r->w = (uint32_t)r->c->window;
    r->v = (uint32_t)r->c->vocab;
    OK(cedar_engine_open(r->model, &o, &r->e, err));
}

/* NULL: two engines of two ranks each have no room on one GPU. */
static bed *open_bed(const struct shape *shape) {
    if (shape->gpus > 1 && strstr(shape->name, ".json") && gpu_devices() < (int)shape->gpus) return NULL;
    bed *b = calloc(1, sizeof *b);
    b->shape = shape;
    b->start_ns = cedar_now_ns();
    for (int i = 0; i < 2; i++) open_rig(b, i);
    const cedar_replay_rules exact = rules_exact(&b->r[1]);
    for (uint32_t s = 0; s < shape->streams; s++) {
        for (uint32_t i = 0; i < TOKENS_MAX; i++)
            b->token[s][i] = (int32_t)cedar_rng_below(100 + s, i, b->r[0].v);
        b->alone[s] = rig_logits(&b->r[1]);
        int32_t seq = rig_seq(&b->r[1]);
        rig_feed(&b->r[1], seq, shape->tokens, &exact, (feeding){ .tokens = b->token[s] }, b->alone[s]);
        cedar_seq_close(b->r[1].e, seq);
        same_rows(&b->r[1], b->alone[s], b->alone[s], 0, shape->tokens, "alone");   /* all are finite */
    }
    b->rows = rig_logits(&b->r[0]);
    return b;
}

static void close_bed(bed *b, const char *test) {
    static const char *const ariths[] = { "wide", "f32", "bf16" };
    printf("same bits, %s, %s %s: %.1f s\n", test, b->shape->name, ariths[b->shape->arith],
           (double)(cedar_now_ns() - b->start_ns) / 1e9);
    for (uint32_t s = 0; s < b->shape->streams; s++) free(b->alone[s]);
    free(b->rows);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(cedar_pages_free(b->r[i].e), cedar_engine_options(b->r[i].e)->page_count);
        OK(cedar_engine_close(b->r[i].e, err));
    }
    cedar_model_close(b->r[0].model);
    free(b);
}

/* Chunks come from a few lengths on both sides of the kernels' borders, so that graphs are used again. */
static uint32_t draw_rows(uint64_t seed, uint64_t *draw, uint32_t left) {
    static const uint32_t lengths[] = { 1, 1, 1, 2, 5, 8, 9, 16, 17, 32, 33, 64, 100 };
    uint32_t n = lengths[cedar_rng_below(seed, (*draw)++, sizeof lengths / sizeof *lengths)];
    return n < left ? n : left;
}

/* One step of some of the sequences in random order; each row against its stream alone. */
static void random_step(bed *b, rig *r, uint64_t seed, uint64_t *draw, const int32_t *seq) {
    uint32_t order[STREAMS], n = b->shape->streams, count = 0, row = 0, total = 0;
    cedar_plan_entry e[STREAMS];
    const cedar_replay_rules exact = rules_exact(r);
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = (uint32_t)cedar_rng_below(seed, (*draw)++, i), t = order[i - 1];
        order[i - 1] = order[k];
        order[k] = t;
    }
    uint32_t wanted = 1 + (uint32_t)cedar_rng_below(seed, (*draw)++, n);
    for (uint32_t i = 0; i < n && count < wanted; i++) {
        uint32_t s = order[i], left = b->shape->tokens - cedar_seq_pos(r->e, seq[s]);
        if (!left) continue;
        uint32_t rows = draw_rows(seed, draw, left);
        if (total + rows > TOKENS_MAX) continue;
        total += rows;
        order[count] = s;
        cedar_rows_kind kind = rows == 1 ? CEDAR_ROWS_DECODE : CEDAR_ROWS_PREFILL;
        e[count++] = rig_entry(r, seq[s], b->token[s], kind, rows, &exact);
    }
    if (!count) return;
    rig_step(r, e, count, CEDAR_CUT_AFTER, b->rows);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < e[i].rows; k++, row++)
            ck_assert_msg(!memcmp(b->rows + (size_t)row * r->v, b->alone[order[i]] + (size_t)(e[i].pos + k) * r->v,
                                  r->v * sizeof(float)),
                          "stream %u, position %u: other bits in a batch of %u entries and %u rows than alone",
                          order[i], e[i].pos + k, count, total);
}

static bool done(const bed *b, const rig *r, const int32_t *seq) {
    for (uint32_t s = 0; s < b->shape->streams; s++)
        if (cedar_seq_pos(r->e, seq[s]) < b->shape->tokens) return false;
    return true;
}

START_TEST(batches_and_chunks) {
    bed *b = open_bed(&shapes[_i]);
    if (!b) return;
    for (uint32_t trial = 0; trial < b->shape->trials; trial++) {
        rig *r = &b->r[trial % 4 == 3];             /* graphs three times out of four */
        int32_t seq[STREAMS];
        uint64_t draw = 0;
        for (uint32_t s = 0; s < b->shape->streams; s++) seq[s] = rig_seq(r);
        while (!done(b, r, seq)) random_step(b, r, 1000 + trial, &draw, seq);
        for (uint32_t s = 0; s < b->shape->streams; s++) cedar_seq_close(r->e, seq[s]);
    }
    close_bed(b, "batches_and_chunks");
}
END_TEST

/* Row by row, as decode, against the same rows at once. */
START_TEST(decode_is_prefill) {
    bed *b = open_bed(&shapes[_i]);
    if (!b) return;
    for (int i = 0; i < 2; i++) {
        rig *r = &b->r[i];
        const cedar_replay_rules exact = rules_exact(r);
        float *logits = rig_logits(r);
        int32_t seq = rig_seq(r);
        rig_feed(r, seq, b->shape->tokens, &exact,
                 (feeding){ .chunk = 1, .kind = CEDAR_ROWS_DECODE, .tokens = b->token[0] }, logits);
        same_rows(r, logits, b->alone[0], 0, b->shape->tokens, i ? "decode, eager" : "decode, graphs");
        cedar_seq_close(r->e, seq);
        free(logits);
    }
    close_bed(b, "decode_is_prefill");
}
END_TEST

/* Trimmed steps too: what replay gives with graphs has the bits it has without, on inputs the graphs were not captured
 * with (the second stream on), and again on those they were. */
START_TEST(graphs_on_other_inputs) {
    bed *b = open_bed(&shapes[_i]);
    if (!b) return;
    static const uint32_t turns[] = { 0, 1, 2, 0 };
    float *x = rig_logits(&b->r[0]), *y = rig_logits(&b->r[0]);
    uint32_t end = b->shape->tokens;
    for (int cut = CEDAR_CUT_AFTER; cut <= CEDAR_CUT_INSIDE_CLIP; cut++)
        for (int turn = 0; turn < 4; turn++) {
            cedar_replay_rules rules = rules_decoder(&b->r[0]);
            rules.cut = (cedar_cut)cut;
            rules.decoder_rows = 7;
            feeding f = { .chunk = end / 4, .tokens = b->token[turns[turn]] };
            int32_t sx = rig_seq(&b->r[0]), sy = rig_seq(&b->r[1]);
            memset(x, 0, (size_t)TOKENS_MAX * b->r[0].v * sizeof *x);
            memset(y, 0, (size_t)TOKENS_MAX * b->r[0].v * sizeof *y);
            rig_feed(&b->r[0], sx, end, &rules, f, x);
            rig_feed(&b->r[1], sy, end, &rules, f, y);
            same_rows(&b->r[0], x, y, 0, end, "replay with graphs and without");
            ck_assert(!rows_equal(&b->r[0], x, b->alone[turns[turn]], end - 1));     /* replay did trim */
            same_globals(&b->r[0], sx, &b->r[1], sy, end, "replay with graphs and without");
            if (b->r[0].c->stages) same_drafts(&b->r[0], sx, &b->r[1], sy, "replay with graphs and without");
            cedar_seq_close(b->r[0].e, sx);
            cedar_seq_close(b->r[1].e, sy);
        }
    free(x);
    free(y);
    close_bed(b, "graphs_on_other_inputs");
}
END_TEST

static void add_shapes(Suite *s, const char *name, int first, int last) {
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, batches_and_chunks, first, last);
    tcase_add_loop_test(t, decode_is_prefill, first, last);
    tcase_add_loop_test(t, graphs_on_other_inputs, first, last);
    suite_add_tcase(s, t);
}

Suite *gpu_same_bits_suite(void) {
    Suite *s = suite_create("gpu same bits");
    add_shapes(s, "small shapes", 0, SMALL);
    if (!strcmp(gpu_backend, "cuda")) add_shapes(s, "real shapes", SMALL, SHAPES);
    return s;
}
