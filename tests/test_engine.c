/* The engine as a whole, on the golden models: the same bits whatever the batch, the chunks, the threads and the pages;
 * replay, stored windows and rollback against exact runs; refused calls change nothing. Numbers against the independent
 * oracle are test_golden's. */
#include "tests/engine_rig.h"

#include "base/hash.h"
#include "engine/backend.h"

static const cedar_arith ariths[] = { CEDAR_WIDE, CEDAR_F32, CEDAR_BF16 };
static const char *const dirs[] = { "tests/golden/tiny-s1", "tests/golden/tiny2-s1" };
static const char *const arith_name[] = { "wide", "f32", "bf16" };

/* --- one result --------------------------------------------------------------------------------------------------- */

/* Loop index: arithmetic + 3 * model. */
START_TEST(chunks_do_not_matter) {
    if (sanitized_skips("chunks_do_not_matter", _i)) return;
    enum { N = 83 };
    static const uint32_t chunks[] = { 1, 2, 3, 7, 15, 16, 17, 32, 33, 48, 64 };
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open(dirs[_i / 3], &o);
    cedar_replay_rules exact = rules_exact(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    int32_t whole = rig_seq(&r);
    rig_feed(&r, whole, N, &exact, (feeding){ 0 }, want);
    for (uint32_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        if (sanitized_drops(i, 4)) continue;
        int32_t seq = rig_seq(&r);
        char what[64];
        snprintf(what, sizeof what, "%s, chunks of %u", arith_name[_i % 3], chunks[i]);
        rig_feed(&r, seq, N, &exact, (feeding){ .chunk = chunks[i] }, got);
        same_rows(&r, got, want, 0, N, what);
        same_globals(&r, seq, &r, whole, N, what);
        same_drafts(&r, seq, &r, whole, what);
        cedar_seq_close(r.e, seq);
    }
    /* single decode steps after any prompt, and one verify step of all rows */
    for (uint32_t prompt = 1; prompt < N; prompt += 13) {
        if (sanitized_drops(prompt / 13, 3)) continue;
        int32_t seq = rig_seq(&r);
        memset(got, 0, (size_t)TOKENS_MAX * r.v * sizeof *got);
        rig_feed(&r, seq, prompt, &exact, (feeding){ 0 }, got);
        rig_feed(&r, seq, prompt + 5 < N ? prompt + 5 : N, &exact, (feeding){ .chunk = 1, .kind = CEDAR_ROWS_DECODE },
                 got);
        rig_feed(&r, seq, N, &exact, (feeding){ .kind = CEDAR_ROWS_VERIFY }, got);
        same_rows(&r, got, want, 0, N, "decode after a prompt");
        same_globals(&r, seq, &r, whole, N, "decode after a prompt");
        cedar_seq_close(r.e, seq);
    }
    cedar_seq_close(r.e, whole);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* Threads, page sizes, decoding weights ahead, slack for rollback: none of them is part of the result. */
START_TEST(options_do_not_matter) {
    if (sanitized_skips("options_do_not_matter", _i)) return;
    enum { N = 53, LONG = 70 };
    cedar_engine_opts base = rig_opts(ariths[_i % 3]);
    rig r = rig_open(dirs[_i / 3], &base);
    cedar_replay_rules both = rules_decoder(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    int32_t cold = rig_seq(&r), seq;
    rig_feed(&r, cold, N, &both, (feeding){ 0 }, want);
    seq = rig_hit(&r, cold, 40, &both);
    rig_feed(&r, seq, LONG, &both, (feeding){ .chunk = 23 }, want);
    for (int v = 0; v < 8; v++) {
        cedar_engine_opts o = base;
        if (v < 4) o.threads = (uint32_t)v + 1;
        if (v == 3) o.threads = 7;      /* more than rows */
        if (v == 4) o.weight_cache_bytes = 0;
        if (v == 5) o.page_tokens = 16;
        if (v == 6) o.page_tokens = 64;
        if (v == 7) o.verify_rows = 0;
        rig s = rig_open(dirs[_i / 3], &o);
        int32_t a = rig_seq(&s), b;
        char what[64];
        snprintf(what, sizeof what, "%s, variation %d", arith_name[_i % 3], v);
        rig_feed(&s, a, N, &both, (feeding){ 0 }, got);
        same_globals(&s, a, &r, cold, N, what);
        same_drafts(&s, a, &r, cold, what);
        b = rig_hit(&s, a, 40, &both);
        rig_feed(&s, b, LONG, &both, (feeding){ .chunk = 23 }, got);
        same_rows(&r, got, want, 0, LONG - 1 - 30, what);
        same_rows(&r, got, want, LONG - 7, LONG, what);
        same_globals(&s, b, &r, seq, LONG, what);
        same_drafts(&s, b, &r, seq, what);
        cedar_seq_close(s.e, a);
        cedar_seq_close(s.e, b);
        rig_close(&s);
    }
    cedar_seq_close(r.e, cold);
    cedar_seq_close(r.e, seq);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* A batch of everything at once: a trimmed cold prompt, a hit above and one below the window, a decode, a verify
 * step, and an untrimmed chunk. Alone each gives the same bits (I7). */
static void prepare_batch(rig *r, int32_t source, int32_t *seqs, const cedar_replay_rules *rules) {
    cedar_replay_rules exact = rules_exact(r);
    seqs[0] = rig_seq(r);
    seqs[1] = rig_hit(r, source, 61, rules);
    seqs[2] = rig_hit(r, source, 11, rules);
    for (int i = 3; i < 6; i++) {
        seqs[i] = rig_seq(r);
        rig_feed(r, seqs[i], 20u + (uint32_t)i * 7, &exact, (feeding){ 0 }, NULL);
    }
}

START_TEST(batches_do_not_matter) {
    if (sanitized_skips("batches_do_not_matter", _i)) return;
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    static const uint32_t count[6] = { 55, 30, 24, 1, 3, 9 };
    static const cedar_rows_kind kind[6] = { CEDAR_ROWS_PREFILL, CEDAR_ROWS_PREFILL, CEDAR_ROWS_PREFILL,
                                             CEDAR_ROWS_DECODE,  CEDAR_ROWS_VERIFY,  CEDAR_ROWS_PREFILL };
    static const int order[4][6] = {
        { 0, 1, 2, 3, 4, 5 }, { 3, 4, 0, 5, 2, 1 }, { 1, 3, -1, -1, -1, -1 }, { 5, 2, 0, 4, -1, -1 }
    };
    rig r = rig_open(dirs[_i / 3], &o);
    cedar_replay_rules exact = rules_exact(&r);
    float *alone[6], *batch = rig_logits(&r), *next = rig_logits(&r);
    for (int cut = 0; cut < 3; cut++) {
        cedar_replay_rules rules = rules_decoder(&r);
        rules.cut = (cedar_cut)cut;
        int32_t source = rig_seq(&r), solo[6], seqs[6];
        rig_feed(&r, source, 64, &exact, (feeding){ 0 }, NULL);
        prepare_batch(&r, source, solo, &rules);
        uint32_t kept[6];
        for (int i = 0; i < 6; i++) {
            alone[i] = rig_logits(&r);
            cedar_plan_entry e = rig_entry(&r, solo[i], r.token, kind[i], count[i], &rules);
            kept[i] = e.kept;
            rig_step(&r, &e, 1, rules.cut, alone[i]);
        }
        for (int v = 0; v < 4; v++) {
            if (sanitized_drops((uint32_t)(4 * cut + v), 5)) continue;      /* each cut, and 1 to 3 threads */
            cedar_engine_opts other = o;
            other.threads = 1 + (uint32_t)v;
            other.seq_count = 8;
            rig s = rig_open(dirs[_i / 3], &other);
            int32_t own = rig_seq(&s);
            rig_feed(&s, own, 64, &exact, (feeding){ 0 }, NULL);
            prepare_batch(&s, own, seqs, &rules);
            cedar_plan_entry e[6];
            uint32_t n = 0;
            for (; n < 6 && order[v][n] >= 0; n++) {
                int i = order[v][n];
                e[n] = rig_entry(&s, seqs[i], s.token, kind[i], count[i], &rules);
            }
            rig_step(&s, e, n, rules.cut, batch);
            size_t at = 0;
            for (uint32_t k = 0; k < n; k++) {
                int i = order[v][k];
                ck_assert_uint_eq(e[k].kept, kept[i]);
                ck_assert_msg(!memcmp(batch + at, alone[i], (size_t)kept[i] * r.v * sizeof *batch),
                              "batch %d, cut %d: entry %d differs", v, cut, i);
                at += (size_t)kept[i] * r.v;
                uint32_t end = cedar_seq_pos(s.e, seqs[i]);
                ck_assert_uint_eq(end, cedar_seq_pos(r.e, solo[i]));
                same_globals(&s, seqs[i], &r, solo[i], end, "batch");
                same_drafts(&s, seqs[i], &r, solo[i], "batch");
            }
            for (int i = 0; i < 6; i++) cedar_seq_close(s.e, seqs[i]);
            cedar_seq_close(s.e, own);
            rig_close(&s);
        }
        for (int i = 0; i < 6; i++) {
            free(alone[i]);
            cedar_seq_close(r.e, solo[i]);
        }
        cedar_seq_close(r.e, source);
    }
    free(batch);
    free(next);
    rig_close(&r);
}
END_TEST

/* Changing one token changes that row and nothing before it, not even a cached byte. */
START_TEST(no_row_sees_the_future) {
    if (brief_skips("no_row_sees_the_future", _i)) return;
    enum { N = 60 };
    cedar_engine_opts o = rig_opts(CEDAR_WIDE);
    rig r = rig_open(dirs[_i], &o);
    cedar_replay_rules exact = rules_exact(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    int32_t base = rig_seq(&r), changed[TOKENS_MAX];
    rig_feed(&r, base, N, &exact, (feeding){ 0 }, want);
    for (uint32_t p = 0; p < N; p += 7) {
        memcpy(changed, r.token, sizeof changed);
        changed[p] = (changed[p] + 1) % (int32_t)r.v;
        int32_t seq = rig_seq(&r);
        rig_feed(&r, seq, N, &exact, (feeding){ .tokens = changed, .chunk = p % 2 ? 0 : 9 }, got);
        same_rows(&r, got, want, 0, p, "before a changed token");
        ck_assert(!rows_equal(&r, got, want, p));
        same_globals(&r, seq, &r, base, p, "before a changed token");
        cedar_seq_close(r.e, seq);
    }
    cedar_seq_close(r.e, base);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

START_TEST(engines_share_a_model) {
    enum { N = 40 };
    rig a = rig_tiny(CEDAR_WIDE), b = a;
    cedar_engine_opts o = rig_opts(CEDAR_WIDE);
    OK(cedar_engine_open(a.model, &o, &b.e, err));
    cedar_replay_rules exact = rules_exact(&a);
    float *x = rig_logits(&a), *y = rig_logits(&a);
    int32_t sa = rig_seq(&a), sb = rig_seq(&b);
    for (uint32_t end = 5; end <= N; end += 5) {
        rig_feed(&a, sa, end, &exact, (feeding){ 0 }, x);
        rig_feed(&b, sb, end, &exact, (feeding){ 0 }, y);
    }
    same_rows(&a, x, y, 0, N, "two engines");
    same_globals(&a, sa, &b, sb, N, "two engines");
    cedar_seq_close(a.e, sa);
    cedar_seq_close(b.e, sb);
    OK(cedar_engine_close(b.e, err));
    free(x);
    free(y);
    rig_close(&a);
}
END_TEST

/* The sequence keeps its tokens as they were fed; greedy picks are the first largest logit. */
START_TEST(tokens_and_picks_are_reported) {
    enum { N = 30 };
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t seq = rig_seq(&r), picks[N];
    float *logits = rig_logits(&r);
    cedar_plan_entry e = rig_entry(&r, seq, r.token, CEDAR_ROWS_PREFILL, N, &exact);
    OK(cedar_seq_reserve(r.e, seq, N, err));
    cedar_step_plan plan = { .entry_count = 1, .entries = &e };
    cedar_plan_total(&plan);
    cedar_step_out out = { .logits = logits, .argmax = picks };
    OK(cedar_engine_step(r.e, &plan, &out, err));
    ck_assert(out.duration_ns > 0);
    ck_assert_uint_eq(cedar_seq_pos(r.e, seq), N);
    ck_assert_mem_eq(cedar_seq_tokens(r.e, seq), r.token, N * sizeof *r.token);
    for (uint32_t p = 0; p < N; p++) {
        uint32_t best = 0;
        for (uint32_t k = 1; k < r.v; k++)
            if (logits[p * r.v + k] > logits[p * r.v + best]) best = k;
        ck_assert_int_eq(picks[p], (int32_t)best);
    }
    cedar_seq_close(r.e, seq);
    free(logits);
    rig_close(&r);
}
END_TEST

/* --- replay ------------------------------------------------------------------------------------------------------- */

/* What a tap saw, by layer and position. */
enum { WATCH_LAYERS = 16, WATCH_ROW = 128, WATCH_TOPK = 16 };

typedef struct watch {
    uint8_t window[WATCH_LAYERS][TOKENS_MAX][WATCH_ROW];
    int32_t topk[WATCH_LAYERS][TOKENS_MAX][WATCH_TOPK];
    int64_t engram[WATCH_LAYERS][TOKENS_MAX][CEDAR_ENGRAM_ROWS_MAX];
    uint8_t ring[WATCH_LAYERS][TOKENS_MAX][WATCH_ROW];
    uint64_t streams[WATCH_LAYERS][TOKENS_MAX];     /* hash of the streams after a layer */
    bool has_window[WATCH_LAYERS][TOKENS_MAX], has_topk[WATCH_LAYERS][TOKENS_MAX], has_engram[WATCH_LAYERS][TOKENS_MAX],
        has_ring[WATCH_LAYERS][TOKENS_MAX];
} watch;

static void watch_tap(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                      uint32_t width) {
    watch *w = self;
    (void)seq;
    if (kind == CEDAR_TAP_WINDOW) {
        memcpy(w->window[layer][pos], data, width);
        w->has_window[layer][pos] = true;
    } else if (kind == CEDAR_TAP_TOPK) {
        memcpy(w->topk[layer][pos], data, width * sizeof(int32_t));
        w->has_topk[layer][pos] = true;
    } else if (kind == CEDAR_TAP_ENGRAM_ROWS) {
        memcpy(w->engram[layer][pos], data, width * sizeof(int64_t));
        w->has_engram[layer][pos] = true;
    } else if (kind == CEDAR_TAP_RING) {
        memcpy(w->ring[layer][pos], data, width);
        w->has_ring[layer][pos] = true;
    } else if (kind == CEDAR_TAP_H) {
        uint64_t hash = 0, word;
        for (uint32_t k = 0; k < width; k++) {
            memcpy(&word, (const double *)data + k, sizeof word);
            hash = cedar_fold64(hash, word);
        }
        w->streams[layer][pos] = hash;
    }
}

static watch *watch_new(rig *r) {
    watch *w = calloc(1, sizeof *w);
    cedar_engine_tap(r->e, watch_tap, w);
    return w;
}

/* I1, I9 and the refused start: hits of 0, 1, W-1, W, W+1 and beyond, odd and even. */
START_TEST(hits_leave_cached_rows_alone) {
    if (brief_skips("hits_leave_cached_rows_alone", _i)) return;
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open(dirs[_i / 3], &o);
    cedar_replay_rules rules = rules_decoder(&r), exact = rules_exact(&r);
    uint32_t w = r.w;
    const uint32_t hits[] = { 0, 1, 2, w - 1, w, w + 1, w + 2, 2 * w + 3, 63, 64 };
    float *want = rig_logits(&r), *got = rig_logits(&r);
    int32_t source = rig_seq(&r), whole = rig_seq(&r);
    rig_feed(&r, source, 64, &exact, (feeding){ 0 }, NULL);
    rig_feed(&r, whole, 110, &exact, (feeding){ 0 }, want);
    size_t bytes, after;
    uint8_t *before = rig_globals(&r, source, 64, &bytes);
    for (size_t i = 0; i < sizeof hits / sizeof *hits; i++) {
        uint32_t hit = hits[i], start = hit > w ? hit - w : 0;
        for (uint32_t suffix = 1; suffix <= w + 1; suffix += suffix == 1 ? w / 2 : 1 + w / 2) {
            int32_t seq = rig_hit(&r, source, hit, &rules);
            cedar_bounds b = cedar_seq_bounds(r.e, seq);
            ck_assert_uint_eq(cedar_seq_pos(r.e, seq), start);
            ck_assert(b.lo_encoder == start && b.lo_cut == start && b.lo_late == start);
            ck_assert_uint_eq(cedar_seq_write_floor(r.e, seq), hit);
            rig_feed(&r, seq, hit + suffix, &rules, (feeding){ 0 }, got);
            same_globals(&r, seq, &r, source, hit, "rows below the hit");
            for (uint32_t k = 0; k < r.v; k++) ck_assert(isfinite(got[(hit + suffix - 1) * r.v + k]));
            if (start == 0 && hit + suffix <= w) same_rows(&r, got, want, 0, hit + suffix, "a hit within the window");
            cedar_seq_close(r.e, seq);
        }
    }
    uint8_t *now = rig_globals(&r, source, 64, &after);
    ck_assert_mem_eq(before, now, bytes);
    free(before);
    free(now);
    cedar_seq_close(r.e, source);
    cedar_seq_close(r.e, whole);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* I2: with every slot that must not be read filled with NaN before each step, no bit changes: exact, decoder
 * replay with each cut, encoder replay, both; final chunks of 1 .. W+1 rows; drafts. */
START_TEST(nothing_stale_is_read) {
    if (brief_skips("nothing_stale_is_read", _i)) return;
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open(dirs[_i / 3], &o);
    cedar_replay_rules exact = rules_exact(&r);
    uint32_t w = r.w;
    const uint32_t chunks[] = { 0, 5, w + 1 }, suffixes[] = { 1, w / 2, w, w + 1, 3 * w };
    float *plain = rig_logits(&r), *poisoned = rig_logits(&r);
    int32_t source = rig_seq(&r);
    rig_feed(&r, source, 64, &exact, (feeding){ .poison = true }, NULL);
    /* bit 0: decoder; bit 1: encoder; 4 .. 7: the other cuts; 8 .. 11: 0 .. 3 with half a window, whose bounds matter
     * to later steps, too */
    for (int mode = 0; mode < 12; mode++) {
        cedar_replay_rules rules = mode % 2 ? rules_decoder(&r) : exact;
        bool other_cut = mode >= 4 && mode < 8, hit = other_cut ? mode % 2 : mode & 2;
        if (other_cut) rules = rules_decoder(&r);
        rules.cut = !other_cut ? CEDAR_CUT_AFTER : mode >= 6 ? CEDAR_CUT_INSIDE_CLIP : CEDAR_CUT_INSIDE;
        if (mode >= 8) rules.decoder_rows = rules.encoder_rows = w / 2;
        for (uint32_t c = 0; c < 3; c++)
            for (uint32_t s = 0; s < 5; s++) {
                /* each mode, chunk and suffix remains */
                if (sanitized_drops(((uint32_t)mode * 3 + c) * 5 + s, 7)) continue;
                uint32_t base = hit ? 57 : 0, end = base + suffixes[s];
                int32_t a = hit ? rig_hit(&r, source, base, &rules) : rig_seq(&r);
                int32_t b = hit ? rig_hit(&r, source, base, &rules) : rig_seq(&r);
                memset(plain, 0, (size_t)TOKENS_MAX * r.v * sizeof *plain);
                memset(poisoned, 0, (size_t)TOKENS_MAX * r.v * sizeof *plain);
                rig_feed(&r, a, end, &rules, (feeding){ .chunk = chunks[c] }, plain);
                rig_feed(&r, b, end, &rules, (feeding){ .chunk = chunks[c], .poison = true }, poisoned);
                cedar_engine_poison(r.e, b);
                same_drafts(&r, a, &r, b, "poisoned");
                rig_feed(&r, a, end + 6, &exact, (feeding){ .chunk = 1, .kind = CEDAR_ROWS_DECODE }, plain);
                rig_feed(&r, b, end + 6, &exact, (feeding){ .chunk = 1, .kind = CEDAR_ROWS_DECODE, .poison = true },
                         poisoned);
                same_rows(&r, poisoned, plain, end - 1, end + 6, "poisoned");
                same_globals(&r, a, &r, b, end + 6, "poisoned");
                cedar_seq_close(r.e, a);
                cedar_seq_close(r.e, b);
            }
    }
    cedar_seq_close(r.e, source);
    free(plain);
    free(poisoned);
    rig_close(&r);
}
END_TEST

/* I3: after a trimmed prefill in chunks whose last one is short, every layer has written all of the last W
 * positions. */
START_TEST(all_window_slots_are_written) {
    rig r = rig_tiny(CEDAR_F32);
    uint32_t w = r.w;
    const uint32_t last[] = { 1, w / 2, w - 1, w, w + 1 };
    for (int hit = 0; hit < 2; hit++)
        for (size_t i = 0; i < 5; i++) {
            cedar_replay_rules rules = rules_decoder(&r), exact = rules_exact(&r);
            int32_t source = rig_seq(&r);
            rig_feed(&r, source, 50, &exact, (feeding){ 0 }, NULL);
            int32_t seq = hit ? rig_hit(&r, source, 50, &rules) : rig_seq(&r);
            watch *t = watch_new(&r);
            uint32_t end = 50 + 2 * w + last[i];
            rig_feed(&r, seq, 50 + w, &rules, (feeding){ 0 }, NULL);
            rig_feed(&r, seq, 50 + 2 * w, &rules, (feeding){ 0 }, NULL);
            rig_feed(&r, seq, end, &rules, (feeding){ 0 }, NULL);
            for (int32_t layer = 0; layer < r.c->layers; layer++)
                for (uint32_t p = end - w; p < end; p++)
                    ck_assert_msg(t->has_window[layer][p], "layer %d position %u", layer, p);
            for (int32_t stage = 0; stage < r.c->stages; stage++)
                for (uint32_t p = end - w; p < end; p++) ck_assert(t->has_ring[stage][p]);
            cedar_engine_tap(r.e, NULL, NULL);
            free(t);
            cedar_seq_close(r.e, seq);
            cedar_seq_close(r.e, source);
        }
    rig_close(&r);
}
END_TEST

/* I4 and I6: prompts up to W, and prompts whose log-probabilities are wanted, are exact under decoder replay. */
START_TEST(untrimmed_prompts_are_exact) {
    if (brief_skips("untrimmed_prompts_are_exact", _i)) return;
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open(dirs[_i / 3], &o);
    cedar_replay_rules exact = rules_exact(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    for (int cut = 0; cut < 3; cut++)
        for (uint32_t n = 1; n <= r.w + 1; n += n < r.w - 2 ? 5 : 1) {
            cedar_replay_rules rules = rules_decoder(&r);
            rules.cut = (cedar_cut)cut;
            int32_t a = rig_seq(&r), b = rig_seq(&r);
            rig_feed(&r, a, n, &exact, (feeding){ 0 }, want);
            rig_feed(&r, b, n, &rules, (feeding){ 0 }, got);
            rig_feed(&r, a, n + 9, &exact, (feeding){ .chunk = 1, .kind = CEDAR_ROWS_DECODE }, want);
            rig_feed(&r, b, n + 9, &rules, (feeding){ .chunk = 1, .kind = CEDAR_ROWS_DECODE }, got);
            if (n <= r.w) {
                same_rows(&r, got, want, 0, n + 9, "a prompt within the window");
                same_drafts(&r, a, &r, b, "a prompt within the window");
            } else {
                ck_assert(!rows_equal(&r, got, want, n - 1));       /* one dropped row is enough to differ */
            }
            cedar_seq_close(r.e, a);
            cedar_seq_close(r.e, b);
        }
    cedar_replay_rules rules = rules_decoder(&r);
    int32_t a = rig_seq(&r), b = rig_seq(&r);
    rig_feed(&r, a, 60, &exact, (feeding){ 0 }, want);
    cedar_plan_entry e;
    cedar_plan_rows(&rules, CEDAR_ROWS_PREFILL, 0, 60, cedar_seq_bounds(r.e, b), 0, true, 60, &e);
    e.seq = b;
    e.tokens = r.token;
    rig_step(&r, &e, 1, rules.cut, got);
    same_rows(&r, got, want, 0, 60, "prompt log-probabilities");
    cedar_seq_close(r.e, a);
    cedar_seq_close(r.e, b);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* I5: replay over a whole halo is exact to the bit. */
START_TEST(halos_reproduce_exact_results) {
    if (brief_skips("halos_reproduce_exact_results", _i)) return;
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open(dirs[_i / 3], &o);
    cedar_replay_rules exact = rules_exact(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    uint32_t enc = cedar_halo_encoder(r.c), n = enc + 30, end = n + 20;
    ck_assert(end <= TOKENS_MAX);
    int32_t whole = rig_seq(&r);
    rig_feed(&r, whole, end, &exact, (feeding){ 0 }, want);
    for (int cut = 0; cut < 3; cut++) {
        cedar_replay_rules rules = rules_decoder(&r);
        rules.cut = (cedar_cut)cut;
        rules.decoder_rows = cedar_halo_decoder(r.c, rules.cut);
        int32_t seq = rig_seq(&r);
        rig_feed(&r, seq, n, &rules, (feeding){ 0 }, got);
        rig_feed(&r, seq, end, &exact, (feeding){ .chunk = 1, .kind = CEDAR_ROWS_DECODE }, got);
        same_rows(&r, got, want, n - 1, end, "decoder halo");
        same_drafts(&r, seq, &r, whole, "decoder halo");
        same_globals(&r, seq, &r, whole, end, "decoder halo");
        cedar_seq_close(r.e, seq);
    }
    int32_t source = rig_seq(&r);
    rig_feed(&r, source, n, &exact, (feeding){ 0 }, NULL);
    for (int chunk = 0; chunk < 2; chunk++) {
        cedar_replay_rules rules = exact;
        rules.encoder_rows = enc;
        int32_t seq = rig_hit(&r, source, n, &rules);
        rig_feed(&r, seq, end, &rules, (feeding){ .chunk = chunk ? 31 : 0 }, got);
        same_rows(&r, got, want, n, end, "encoder halo");
        same_globals(&r, seq, &r, whole, end, "encoder halo");
        same_drafts(&r, seq, &r, whole, "encoder halo");
        cedar_seq_close(r.e, seq);
        rules.encoder_rows = r.w;
        seq = rig_hit(&r, source, n, &rules);
        rig_feed(&r, seq, end, &rules, (feeding){ 0 }, got);
        ck_assert(!rows_equal(&r, got, want, n));       /* a window is not a halo */
        cedar_seq_close(r.e, seq);
    }
    cedar_seq_close(r.e, source);
    cedar_seq_close(r.e, whole);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* One row less than the halo: the oldest window row that the last layer needs is no longer exact. Its streams show it,
 * wherever the one missing key flips a code on the way. */
START_TEST(one_row_less_than_a_halo_is_not_exact) {
    if (brief_skips("one_row_less_than_a_halo_is_not_exact", _i)) return;
    cedar_engine_opts o = rig_opts(CEDAR_WIDE);
    rig r = rig_open(dirs[_i / 2], &o);
    cedar_replay_rules exact = rules_exact(&r), rules = rules_decoder(&r);
    rules.cut = (cedar_cut)(_i % 2);
    int32_t whole = rig_seq(&r), last = r.c->layers - 1, differ = 0;
    watch *want = watch_new(&r);
    rig_feed(&r, whole, 150, &exact, (feeding){ 0 }, NULL);
    watch *got = watch_new(&r);
    for (uint32_t n = 100; n < 150; n += 5)
        for (uint32_t shorter = 0; shorter < 2; shorter++) {
            if (sanitized_drops(n / 5, 3)) continue;
            rules.decoder_rows = cedar_halo_decoder(r.c, rules.cut) - shorter;
            int32_t seq = rig_seq(&r);
            rig_feed(&r, seq, n, &rules, (feeding){ 0 }, NULL);
            for (uint32_t p = n - r.w + shorter; p < n; p++)
                ck_assert(got->streams[last - 1][p] == want->streams[last - 1][p]);
            differ += shorter && got->streams[last - 1][n - r.w] != want->streams[last - 1][n - r.w];
            cedar_seq_close(r.e, seq);
        }
    ck_assert_int_gt(differ, 0);
    cedar_engine_tap(r.e, NULL, NULL);
    free(want);
    free(got);
    cedar_seq_close(r.e, whole);
    rig_close(&r);
}
END_TEST

/* I8: Engram rows of replayed and new tokens are those of a cold run; look-backs reach below the start. */
START_TEST(engram_rows_do_not_depend_on_hits) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules rules = rules_decoder(&r), exact = rules_exact(&r);
    int32_t cold = rig_seq(&r);
    watch *want = watch_new(&r);
    rig_feed(&r, cold, 90, &exact, (feeding){ 0 }, NULL);
    static const uint32_t hits[] = { 0, 1, 3, 16, 17, 40, 61 };
    for (size_t i = 0; i < sizeof hits / sizeof *hits; i++) {
        int32_t seq = rig_hit(&r, cold, hits[i], &rules);
        uint32_t start = cedar_seq_pos(r.e, seq);
        watch *got = watch_new(&r);
        rig_feed(&r, seq, 80, &rules, (feeding){ .chunk = i % 2 ? 0 : 6 }, NULL);
        for (int32_t k = 0; k < r.c->engram_layer_count; k++) {
            int32_t layer = r.c->engram_layers[k];
            for (uint32_t p = start; p < 80; p++) {
                ck_assert(got->has_engram[layer][p] && want->has_engram[layer][p]);
                ck_assert_mem_eq(got->engram[layer][p], want->engram[layer][p],
                                 (size_t)r.c->engram_rows_per_token * sizeof(int64_t));
            }
        }
        free(got);
        cedar_seq_close(r.e, seq);
    }
    cedar_engine_tap(r.e, NULL, NULL);
    free(want);
    cedar_seq_close(r.e, cold);
    rig_close(&r);
}
END_TEST

/* --- deliberate faults -------------------------------------------------------------------------------------------- */

/* Without the clip a replay is as good as the windows below its start: with the right ones it is exact, with zeroed,
 * coarser or another text's it is not. */
START_TEST(unclipped_replays_read_what_they_are_given) {
    enum { HIT = 80, END = 120 };
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open("tests/golden/tiny-s1", &o);
    cedar_replay_rules exact = rules_exact(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    const cedar_hit_plan plan = cedar_plan_hit(&exact, HIT);
    int32_t cold = rig_seq(&r), other = rig_seq(&r), text[TOKENS_MAX];
    for (uint32_t i = 0; i < TOKENS_MAX; i++) text[i] = r.token[TOKENS_MAX - 1 - i];
    cedar_snap *right, *wrong;
    rig_feed(&r, cold, plan.start, &exact, (feeding){ 0 }, NULL);
    OK(cedar_snap_save(r.e, cold, &right, err));
    rig_feed(&r, cold, END, &exact, (feeding){ 0 }, want);
    rig_feed(&r, other, plan.start, &exact, (feeding){ .tokens = text }, NULL);
    OK(cedar_snap_save(r.e, other, &wrong, err));
    for (int fault = 0; fault < 4; fault++) {
        int32_t seq = rig_seq(&r);
        uint32_t count;
        cedar_snap *windows = fault == 1 ? wrong : right;
        if (fault == 2) cedar_snap_damage_windows(r.e, right, CEDAR_SNAP_COARSE);
        if (fault == 3) cedar_snap_damage_windows(r.e, right, CEDAR_SNAP_ZERO);
        OK(cedar_seq_adopt_unclipped(r.e, seq, r.token, cedar_seq_pages(r.e, cold, &count), &plan, windows, err));
        ck_assert_uint_eq(cedar_seq_pos(r.e, seq), plan.start);
        rig_feed(&r, seq, END, &exact, (feeding){ 0 }, got);
        if (fault == 0) same_rows(&r, got, want, HIT, END, "the right windows");
        else ck_assert_msg(!rows_equal(&r, got, want, HIT), "fault %d changes nothing", fault);
        cedar_seq_close(r.e, seq);
    }
    int32_t seq = rig_seq(&r);
    uint32_t count;
    const cedar_hit_plan later = cedar_plan_hit(&exact, HIT + 1);
    FAILS(cedar_seq_adopt_unclipped(r.e, seq, r.token, cedar_seq_pages(r.e, cold, &count), &later, right, err),
          CEDAR_E_ARG, "windows stored at 64 cannot serve a hit of 65 tokens");
    cedar_seq_close(r.e, seq);
    cedar_snap_free(right);
    cedar_snap_free(wrong);
    cedar_seq_close(r.e, cold);
    cedar_seq_close(r.e, other);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* --- fronts: where replay is exact again -------------------------------------------------------------------------- */

/* Which inputs of which layers cannot be trusted to be exact: x[l][p], the input of layer l at position p, follows the
 * window of W, the clip, and the global rows that were picked. A row is also marked when its picks differ. */
typedef struct taint {
    bool x[WATCH_LAYERS + 1][TOKENS_MAX];
    bool rows[WATCH_LAYERS][TOKENS_MAX];    /* by source layer and entry */
} taint;

/* lo[l]: first window position layer l may read. first[l]: first position fed through layer l. written: global rows of
 * positions from here on are new. */
static void spread(const rig *r, const watch *got, const watch *want, const uint32_t *lo, const uint32_t *first,
                   uint32_t written, uint32_t end, taint *t) {
    const cedar_config *c = r->c;
    const int32_t (*picks)[WATCH_TOPK] = NULL, (*exact)[WATCH_TOPK] = NULL;
    for (int32_t l = 0; l < c->layers; l++) {
        if (c->is_kv_source[l])
            for (uint32_t p = written; p < end; p++) {
                uint32_t ratio = (uint32_t)c->ratio[l];
                if (p % ratio != ratio - 1) continue;
                for (uint32_t k = 0; k < ratio; k++) t->rows[l][p / ratio] |= t->x[l][p - k];
            }
        if (c->is_index_source[l]) {
            picks = got->topk[l];
            exact = want->topk[l];
        }
        for (uint32_t p = first[l]; p < end; p++) {
            bool bad = false;
            uint32_t from = p + 1 > r->w ? p + 1 - r->w : 0;
            for (uint32_t q = from; q <= p; q++) bad |= q < lo[l] || t->x[l][q];
            if (c->ratio[l] > 0) {
                bad |= memcmp(picks[p], exact[p], (size_t)c->index_topk * sizeof(int32_t)) != 0;
                for (int32_t k = 0; k < c->index_topk && picks[p][k] >= 0; k++)
                    bad |= t->rows[c->kv_source_of[l]][picks[p][k]];
            }
            t->x[l + 1][p] = bad;
        }
        for (uint32_t p = 0; p < first[l]; p++) t->x[l + 1][p] = true;
    }
}

/* Window bytes of every row that is not marked must be those of the exact run. Returns marked rows that differ,
 * and counts unmarked rows of layers >= 4. */
static uint32_t compare_windows(const rig *r, const watch *got, const watch *want, const taint *t,
                                const uint32_t *first, uint32_t end, uint32_t *clean_deep) {
    uint32_t differ = 0, bytes = (uint32_t)(r->c->head_dim + r->c->head_dim / 32);
    *clean_deep = 0;
    for (int32_t l = 0; l < r->c->layers; l++)
        for (uint32_t p = first[l]; p < end; p++) {
            if (!got->has_window[l][p]) continue;
            bool equal = !memcmp(got->window[l][p], want->window[l][p], bytes);
            if (!t->x[l][p]) ck_assert_msg(equal, "layer %d position %u should be exact", l, p);
            if (!t->x[l][p] && l >= 4) ++*clean_deep;
            differ += !equal;
        }
    return differ;
}

/* The clip of an encoder hit: layer l is exact from S + (W-1) l on, for the layers that no contaminated row can
 * reach. */
START_TEST(encoder_fronts_are_where_they_should_be) {
    if (brief_skips("encoder_fronts_are_where_they_should_be", _i)) return;
    enum { HIT = 64, END = 240 };
    cedar_engine_opts o = rig_opts(_i == 0 ? CEDAR_WIDE : _i == 1 ? CEDAR_F32 : CEDAR_BF16);
    rig r = rig_open("tests/golden/tiny-s1", &o);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t cold = rig_seq(&r), source = rig_seq(&r);
    rig_feed(&r, source, HIT, &exact, (feeding){ 0 }, NULL);
    watch *want = watch_new(&r);
    rig_feed(&r, cold, END, &exact, (feeding){ 0 }, NULL);
    int32_t seq = rig_hit(&r, source, HIT, &exact);
    watch *got = watch_new(&r);
    rig_feed(&r, seq, END, &exact, (feeding){ .chunk = 50 }, NULL);
    cedar_engine_tap(r.e, NULL, NULL);
    uint32_t s = HIT - r.w, lo[WATCH_LAYERS], first[WATCH_LAYERS], clean = 0;
    for (int l = 0; l < WATCH_LAYERS; l++) lo[l] = first[l] = s;
    /* layers 0..3 read at most global rows of layer 1, whose new rows are all exact: S + 15 <= HIT */
    uint32_t bytes = (uint32_t)(r.c->head_dim + r.c->head_dim / 32), before = 0;
    for (uint32_t l = 0; l <= 3; l++)
        for (uint32_t p = s; p < END; p++) {
            bool equal = !memcmp(got->window[l][p], want->window[l][p], bytes);
            if (p >= s + (r.w - 1) * l) ck_assert_msg(equal, "layer %u position %u", l, p);
            else before += !equal;
            if (l == 0) continue;
            bool streams = got->streams[l - 1][p] == want->streams[l - 1][p];
            if (p >= s + (r.w - 1) * l) ck_assert_msg(streams, "input of layer %u position %u", l, p);
            else if (l == 1 && _i < 2) ck_assert_msg(!streams, "position %u misses keys and is still exact", p);
        }
    ck_assert_msg(before >= 80, "only %u of 90 rows before the fronts differ", before);
    taint *t = calloc(1, sizeof *t);
    spread(&r, got, want, lo, first, HIT, END, t);
    uint32_t differ = compare_windows(&r, got, want, t, first, END, &clean);
    ck_assert_msg(clean > 0, "no row of a deep layer is expected to be exact");
    ck_assert(differ > before);
    /* contaminated global rows of source 3 end where its input is exact again */
    size_t kv = (size_t)r.c->head_dim / 2 + (size_t)r.c->head_dim / 16;
    uint8_t a[128], b[128];
    uint32_t contaminated = 0;
    for (uint32_t j = 0; j < END / 2; j++) {
        OK(cedar_engine_read_global(r.e, seq, 3, j, 1, a, NULL, err));
        OK(cedar_engine_read_global(r.e, cold, 3, j, 1, b, NULL, err));
        bool equal = !memcmp(a, b, kv);
        if (2 * j + 1 < HIT || 2 * j >= s + (r.w - 1) * 3) ck_assert_msg(equal, "entry %u of layer 3", j);
        else contaminated += !equal;
        OK(cedar_engine_read_global(r.e, seq, 1, j, 1, a, NULL, err));
        OK(cedar_engine_read_global(r.e, cold, 1, j, 1, b, NULL, err));
        ck_assert_mem_eq(a, b, kv);
    }
    ck_assert_uint_gt(contaminated, 0);
    free(t);
    free(got);
    free(want);
    cedar_seq_close(r.e, seq);
    cedar_seq_close(r.e, cold);
    cedar_seq_close(r.e, source);
    rig_close(&r);
}
END_TEST

/* Decoder replay: layers up to the cut are exact, layer cut+1+j from T - W + (W-1) j on (one layer later when the
 * cut layer is clipped too), global rows always, and after the last front every logit. */
START_TEST(decoder_fronts_are_where_they_should_be) {
    if (brief_skips("decoder_fronts_are_where_they_should_be", _i % 3)) return;     /* each cut */
    enum { T = 100, END = 180 };
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open("tests/golden/tiny-s1", &o);
    cedar_replay_rules exact = rules_exact(&r), rules = rules_decoder(&r);
    rules.cut = (cedar_cut)(_i / 3);
    bool clip = rules.cut == CEDAR_CUT_INSIDE_CLIP;
    float *x = rig_logits(&r), *y = rig_logits(&r);
    int32_t cold = rig_seq(&r), seq = rig_seq(&r);
    watch *want = watch_new(&r);
    rig_feed(&r, cold, END, &exact, (feeding){ 0 }, x);
    watch *got = watch_new(&r);
    rig_feed(&r, seq, T, &rules, (feeding){ 0 }, y);
    rig_feed(&r, seq, END, &exact, (feeding){ .chunk = 1, .kind = CEDAR_ROWS_DECODE }, y);
    cedar_engine_tap(r.e, NULL, NULL);
    uint32_t bytes = (uint32_t)(r.c->head_dim + r.c->head_dim / 32), first_kept = T - r.w, differ = 0;
    uint32_t lo[WATCH_LAYERS] = { 0 }, first[WATCH_LAYERS] = { 0 }, clean;
    for (int32_t l = 0; l < r.c->layers; l++) {
        uint32_t clipped_before = (uint32_t)(l > r.c->cut ? l - r.c->cut - 1 + (clip ? 1 : 0) : 0);
        uint32_t front = l > r.c->cut ? first_kept + (r.w - 1) * clipped_before : 0;
        if (front > first_kept && clipped_before == 1)      /* one key is missing: the streams must show it */
            ck_assert(_i % 3 == 2 || got->streams[l - 1][front - 1] != want->streams[l - 1][front - 1]);
        for (uint32_t p = front; p < END && l > r.c->cut; p++)
            ck_assert(got->streams[l - 1][p] == want->streams[l - 1][p]);
        for (uint32_t p = l > r.c->cut ? first_kept : 0; p < END; p++) {
            bool equal = !memcmp(got->window[l][p], want->window[l][p], bytes);
            if (p >= front) ck_assert_msg(equal, "layer %d position %u", l, p);
            else differ += !equal;
        }
        if (l > r.c->cut || (clip && l == r.c->cut)) lo[l] = first_kept;
        if (l > r.c->cut) first[l] = first_kept;
    }
    ck_assert_uint_gt(differ, 30);
    uint32_t layers_clipped = (uint32_t)(r.c->layers - r.c->cut - 1) + (clip ? 1 : 0);
    uint32_t final = first_kept + (r.w - 1) * layers_clipped;
    same_rows(&r, y, x, final, END, "behind the last front");
    ck_assert(!rows_equal(&r, x, y, T - 1));
    same_globals(&r, seq, &r, cold, END, "decoder replay");
    taint *t = calloc(1, sizeof *t);
    spread(&r, got, want, lo, first, 0, END, t);
    compare_windows(&r, got, want, t, first, END, &clean);
    ck_assert_uint_gt(clean, 0);
    free(t);
    free(got);
    free(want);
    free(x);
    free(y);
    cedar_seq_close(r.e, seq);
    cedar_seq_close(r.e, cold);
    rig_close(&r);
}
END_TEST

/* --- stored windows ----------------------------------------------------------------------------------------------- */

START_TEST(stored_windows_continue_exactly) {
    if (brief_skips("stored_windows_continue_exactly", _i)) return;
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open(dirs[_i / 3], &o);
    cedar_replay_rules exact = rules_exact(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    int32_t whole = rig_seq(&r);
    rig_feed(&r, whole, 100, &exact, (feeding){ 0 }, want);
    const uint32_t at[] = { 0, 1, 2, r.w - 1, r.w, r.w + 1, 39, 40, 63 };
    for (uint32_t i = 0; i < sizeof at / sizeof *at; i++) {
        if (sanitized_drops(i, 2)) continue;
        int32_t source = rig_seq(&r), seq = rig_seq(&r);
        cedar_snap *snap = NULL;
        uint32_t count;
        rig_feed(&r, source, at[i], &exact, (feeding){ 0 }, NULL);
        OK(cedar_snap_save(r.e, source, &snap, err));
        ck_assert_uint_eq(cedar_snap_pos(snap), at[i]);
        rig_feed(&r, source, at[i] + 20, &exact, (feeding){ 0 }, NULL); /* moving on does not change what was stored */
        OK(cedar_seq_restore(r.e, seq, r.token, cedar_seq_pages(r.e, source, &count), at[i], snap, err));
        FAILS(cedar_seq_truncate(r.e, seq, at[i] ? at[i] - 1 : 1, err), CEDAR_E_ARG, "cannot roll back");
        cedar_engine_poison(r.e, seq);
        if (at[i]) {
            int32_t fresh = rig_seq(&r);
            rig_feed(&r, fresh, at[i], &exact, (feeding){ 0 }, NULL);
            same_drafts(&r, seq, &r, fresh, "restored");
            cedar_seq_close(r.e, fresh);
        }
        rig_feed(&r, seq, 100, &exact, (feeding){ .chunk = i % 2 ? 1 : 9 }, got);
        same_rows(&r, got, want, at[i], 100, "restored");
        same_globals(&r, seq, &r, whole, 100, "restored");
        cedar_snap_free(snap);
        cedar_seq_close(r.e, source);
        cedar_seq_close(r.e, seq);
    }
    cedar_seq_close(r.e, whole);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* Windows stored after a replay carry its bounds: the restored sequence goes on as the replayed one does. */
START_TEST(stored_windows_keep_a_replays_bounds) {
    if (brief_skips("stored_windows_keep_a_replays_bounds", _i)) return;
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open(dirs[_i / 3], &o);
    cedar_replay_rules exact = rules_exact(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    int32_t source = rig_seq(&r);
    rig_feed(&r, source, 64, &exact, (feeding){ 0 }, NULL);
    for (int mode = 0; mode < 4; mode++)
        for (uint32_t suffix = 1; suffix <= 2 * r.w; suffix += 7) {
            if (sanitized_drops(suffix / 7 + (uint32_t)mode, 3)) continue;
            cedar_replay_rules rules = mode & 1 ? rules_decoder(&r) : exact;
            if (mode & 2) rules.cut = CEDAR_CUT_INSIDE_CLIP;
            if (mode & 2) rules.decoder_rows = rules.encoder_rows = r.w / 2; /* bounds reach into the stored window */
            int32_t seq = rig_hit(&r, source, 51, &rules), back = rig_seq(&r);
            uint32_t at = 51 + suffix, count;
            cedar_snap *snap = NULL;
            rig_feed(&r, seq, at, &rules, (feeding){ 0 }, NULL);
            OK(cedar_snap_save(r.e, seq, &snap, err));
            OK(cedar_seq_restore(r.e, back, r.token, cedar_seq_pages(r.e, seq, &count), at, snap, err));
            cedar_bounds a = cedar_seq_bounds(r.e, seq), b = cedar_seq_bounds(r.e, back);
            uint32_t lo = at > r.w ? at - r.w : 0;
            ck_assert(b.lo_encoder == (a.lo_encoder > lo ? a.lo_encoder : lo) &&
                      b.lo_cut == (a.lo_cut > lo ? a.lo_cut : lo) && b.lo_late == (a.lo_late > lo ? a.lo_late : lo));
            cedar_engine_poison(r.e, back);
            same_drafts(&r, seq, &r, back, "restored after replay");
            rig_feed(&r, seq, at + 20, &exact, (feeding){ .chunk = 6 }, want);
            rig_feed(&r, back, at + 20, &exact, (feeding){ .chunk = 6 }, got);
            same_rows(&r, got, want, at, at + 20, "restored after replay");
            same_globals(&r, seq, &r, back, at + 20, "restored after replay");
            cedar_snap_free(snap);
            cedar_seq_close(r.e, seq);
            cedar_seq_close(r.e, back);
        }
    cedar_seq_close(r.e, source);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

START_TEST(stored_windows_of_another_kind_are_refused) {
    rig r = rig_tiny(CEDAR_WIDE), s = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t a = rig_seq(&r), b = rig_seq(&s), c = rig_seq(&r);
    uint32_t count;
    cedar_snap *snap = NULL;
    rig_feed(&r, a, 20, &exact, (feeding){ 0 }, NULL);
    rig_feed(&s, b, 20, &exact, (feeding){ 0 }, NULL);
    OK(cedar_snap_save(s.e, b, &snap, err));
    FAILS(cedar_seq_restore(r.e, c, r.token, cedar_seq_pages(r.e, a, &count), 20, snap, err), CEDAR_E_ARG,
          "another shape");
    FAILS(cedar_seq_restore(r.e, c, r.token, cedar_seq_pages(r.e, a, &count), 19, snap, err), CEDAR_E_ARG,
          "windows stored at 20 cannot serve a hit of 19 tokens");
    ck_assert_uint_eq(cedar_seq_pos(r.e, c), 0);
    cedar_snap_free(snap);
    cedar_snap_free(NULL);
    cedar_seq_close(r.e, a);
    cedar_seq_close(r.e, c);
    cedar_seq_close(s.e, b);
    rig_close(&r);
    rig_close(&s);
}
END_TEST

/* What a cache must keep: 64 + 2 bytes per row and layer in tiny, two drafts stages included, and the open groups. */
START_TEST(stored_windows_are_counted) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r);
    static const struct {
        uint32_t pos;
        uint64_t bytes;
    } want[] = {
        { 4, 4 * 10 * 66 }, { 16, 16 * 10 * 66 }, { 40, 16 * 10 * 66 }, { 41, 16 * 10 * 66 + 2 * 2 * 64 * 4 }
    };
    for (int i = 0; i < 4; i++) {
        int32_t seq = rig_seq(&r);
        cedar_snap *snap = NULL;
        rig_feed(&r, seq, want[i].pos, &exact, (feeding){ 0 }, NULL);
        OK(cedar_snap_save(r.e, seq, &snap, err));
        ck_assert_uint_eq(cedar_snap_bytes(snap), want[i].bytes);
        cedar_snap_free(snap);
        cedar_seq_close(r.e, seq);
    }
    rig_close(&r);
}
END_TEST

/* --- rollback ----------------------------------------------------------------------------------------------------- */

/* Verify steps of verify_rows wrong and right tokens at every position: continuing is as if the wrong ones never
 * were. */
START_TEST(rejected_rows_leave_no_trace) {
    if (brief_skips("rejected_rows_leave_no_trace", _i)) return;
    enum { N = 60 };
    cedar_engine_opts o = rig_opts(ariths[_i % 3]);
    rig r = rig_open(dirs[_i / 3], &o);
    cedar_replay_rules exact = rules_exact(&r), start = rules_decoder(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    for (int mode = 0; mode < 2; mode++) {              /* after an exact or a replayed prefill of 33 tokens */
        int32_t whole = rig_seq(&r), source = rig_seq(&r);
        rig_feed(&r, source, 31, &exact, (feeding){ 0 }, NULL);
        if (mode) {
            cedar_seq_close(r.e, whole);
            whole = rig_hit(&r, source, 31, &start);
        }
        rig_feed(&r, whole, 33, mode ? &start : &exact, (feeding){ 0 }, want);
        rig_feed(&r, whole, N, &exact, (feeding){ .chunk = 1, .kind = CEDAR_ROWS_DECODE }, want);
        for (uint32_t keep = 0; keep <= o.verify_rows; keep++)
            for (int poison = 0; poison < 2; poison++) {
                if (sanitized_drops(2 * keep + (uint32_t)poison, 3)) continue;
                int32_t seq = mode ? rig_hit(&r, source, 31, &start) : rig_seq(&r), wrong[TOKENS_MAX];
                rig_feed(&r, seq, 33, mode ? &start : &exact, (feeding){ 0 }, got);
                uint32_t pos = 33;
                while (pos + 1 + o.verify_rows < N) {
                    /* one sampled token and verify_rows drafts, of which `keep` are right */
                    uint32_t rows = 1 + o.verify_rows, now = pos + 1 + keep;
                    memcpy(wrong, r.token, sizeof wrong);
                    for (uint32_t k = now; k < pos + rows; k++) wrong[k] = (wrong[k] + 3) % (int32_t)r.v;
                    rig_feed(&r, seq, pos + rows, &exact,
                             (feeding){ .kind = CEDAR_ROWS_VERIFY, .tokens = wrong, .poison = poison }, got);
                    OK(cedar_seq_truncate(r.e, seq, now, err));
                    ck_assert_uint_eq(cedar_seq_pos(r.e, seq), now);
                    same_rows(&r, got, want, pos, now, "accepted rows");
                    if (poison) cedar_engine_poison(r.e, seq);
                    pos = now;
                }
                rig_feed(&r, seq, N, &exact, (feeding){ .chunk = 4, .poison = poison }, got);
                same_rows(&r, got, want, pos, N, "after rejected rows");
                same_globals(&r, seq, &r, whole, N, "after rejected rows");
                same_drafts(&r, seq, &r, whole, "after rejected rows");
                cedar_seq_close(r.e, seq);
            }
        cedar_seq_close(r.e, whole);
        cedar_seq_close(r.e, source);
    }
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* A draft asks nothing of the state and leaves nothing behind, nor does a verify step that is taken back whole. */
START_TEST(drafts_survive_a_round_trip) {
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    rig r = rig_open(dirs[_i], &o);
    cedar_replay_rules exact = rules_exact(&r);
    for (uint32_t n = 1; n < 50; n += 6) {
        int32_t a = rig_seq(&r), b = rig_seq(&r);
        rig_feed(&r, a, n, &exact, (feeding){ 0 }, NULL);
        rig_feed(&r, b, n, &exact, (feeding){ .chunk = 1 }, NULL);
        rig_feed(&r, b, n + o.verify_rows, &exact, (feeding){ .kind = CEDAR_ROWS_VERIFY }, NULL);
        OK(cedar_seq_truncate(r.e, b, n, err));
        same_drafts(&r, a, &r, b, "round trip");
        same_drafts(&r, a, &r, b, "drafted twice");
        cedar_seq_close(r.e, a);
        cedar_seq_close(r.e, b);
    }
    rig_close(&r);
}
END_TEST

START_TEST(drafts_of_a_batch_are_drafts_alone) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r);
    enum { SEQS = 4 };
    size_t n = (size_t)r.c->draft_block * r.v;
    int32_t seq[SEQS], ids[SEQS][8], one[8], forced[8];
    float *many = calloc(SEQS * n, sizeof *many), *alone = calloc(n, sizeof *alone), conf[SEQS][8], conf1[8];
    cedar_draft_item it[SEQS];
    for (int i = 0; i < SEQS; i++) {
        seq[i] = rig_seq(&r);
        rig_feed(&r, seq[i], 3 + 9 * (uint32_t)i, &exact, (feeding){ 0 }, NULL);
        it[i] = (cedar_draft_item){ seq[i], 5 + i, NULL, ids[i], many + (size_t)i * n, conf[i] };
    }
    OK(cedar_engine_draft(r.e, it, SEQS, err));
    for (int i = 0; i < SEQS; i++) {
        cedar_draft_item single = { seq[i], 5 + i, NULL, one, alone, conf1 };
        OK(cedar_engine_draft(r.e, &single, 1, err));
        ck_assert_mem_eq(alone, many + (size_t)i * n, n * sizeof *alone);
        ck_assert_mem_eq(one, ids[i], (size_t)r.c->draft_block * sizeof *one);
        ck_assert_mem_eq(conf1, conf[i], (size_t)r.c->draft_block * sizeof *conf1);
        for (int32_t k = 0; k < r.c->draft_block; k++) {
            const float *row = alone + (size_t)k * r.v;
            for (uint32_t v = 0; v < r.v; v++) ck_assert(row[v] <= row[one[k]]);
        }
        /* forcing the greedy chain changes nothing; another chain changes later rows only */
        memcpy(forced, one, sizeof forced);
        single.forced = forced;
        OK(cedar_engine_draft(r.e, &single, 1, err));
        ck_assert_mem_eq(alone, many + (size_t)i * n, n * sizeof *alone);
        forced[0] = (forced[0] + 1) % (int32_t)r.v;
        OK(cedar_engine_draft(r.e, &single, 1, err));
        ck_assert_mem_eq(alone, many + (size_t)i * n, r.v * sizeof *alone);
        ck_assert(memcmp(alone + r.v, many + (size_t)i * n + r.v, r.v * sizeof *alone));
    }
    forced[1] = (int32_t)r.v;
    it[0].forced = forced;
    FAILS(cedar_engine_draft(r.e, it, 1, err), CEDAR_E_ARG, "forced token 512 is outside the vocabulary of 512");
    it[0].forced = NULL;
    it[0].token = -1;
    FAILS(cedar_engine_draft(r.e, it, 1, err), CEDAR_E_ARG, "token -1 is outside the vocabulary of 512");
    for (int i = 0; i < SEQS; i++) cedar_seq_close(r.e, seq[i]);
    free(many);
    free(alone);
    rig_close(&r);
}
END_TEST

START_TEST(models_without_a_drafter_say_so) {
    cedar_config c;
    cedar_model *m = NULL;
    cedar_engine *e = NULL;
    int32_t seq, ids[8];
    OK(cedar_config_load("scenarios/models/tiny.json", &c, err));
    c.stages = 0;
    c.target_count = 0;
    memset(c.is_target, 0, sizeof c.is_target);
    OK(cedar_model_synth(&c, 3, 1u << 30, &m, err));
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    OK(cedar_engine_open(m, &o, &e, err));
    OK(cedar_seq_open(e, &seq, err));
    cedar_draft_item it = { .seq = seq, .token = 1, .ids = ids };
    FAILS(cedar_engine_draft(e, &it, 1, err), CEDAR_E_UNSUPPORTED, "this model has no drafter");
    cedar_seq_close(e, seq);
    OK(cedar_engine_close(e, err));
    cedar_model_close(m);
}
END_TEST

/* --- refused calls ------------------------------------------------------------------------------------------------ */

START_TEST(rollbacks_have_limits) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r), rules = rules_decoder(&r);
    int32_t seq = rig_seq(&r);
    rig_feed(&r, seq, 40, &exact, (feeding){ 0 }, NULL);
    FAILS(cedar_seq_truncate(r.e, seq, 41, err), CEDAR_E_ARG, "cannot roll back from 40 to 41 tokens");
    FAILS(cedar_seq_truncate(r.e, seq, 35, err), CEDAR_E_ARG,
          "cannot roll back from 40 to 35 tokens; verify_rows is 4");
    OK(cedar_seq_truncate(r.e, seq, 38, err));
    FAILS(cedar_seq_truncate(r.e, seq, 35, err), CEDAR_E_ARG, "cannot roll back");     /* slots hold what 40 left */
    OK(cedar_seq_truncate(r.e, seq, 36, err));
    int32_t hit = rig_hit(&r, seq, 33, &exact);
    rig_feed(&r, hit, 34, &exact, (feeding){ 0 }, NULL);
    FAILS(cedar_seq_truncate(r.e, hit, 32, err), CEDAR_E_ARG, "cannot roll back"); /* cached rows are not rewritten */
    OK(cedar_seq_truncate(r.e, hit, 33, err));
    rules.decoder_rows = 2;
    int32_t cold = rig_seq(&r);
    rig_feed(&r, cold, 30, &rules, (feeding){ 0 }, NULL);
    FAILS(cedar_seq_truncate(r.e, cold, 27, err), CEDAR_E_ARG,
          "cannot roll back"); /* below the clip no window is left */
    OK(cedar_seq_truncate(r.e, cold, 28, err));
    cedar_seq_close(r.e, seq);
    cedar_seq_close(r.e, hit);
    cedar_seq_close(r.e, cold);
    rig_close(&r);
}
END_TEST

/* I10 and every other plan that does not follow from the state. */
START_TEST(bad_plans_are_refused) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r), rules = rules_decoder(&r);
    int32_t seq = rig_seq(&r), other = rig_seq(&r), bad_tokens[4] = { 1, 2, 512, 3 };
    rig_feed(&r, seq, 40, &exact, (feeding){ 0 }, NULL);
    int32_t hit = rig_hit(&r, seq, 36, &exact);
    OK(cedar_seq_reserve(r.e, hit, 60, err));
    OK(cedar_seq_reserve(r.e, seq, 60, err));
    cedar_plan_entry good = rig_entry(&r, seq, r.token, CEDAR_ROWS_PREFILL, 4, &exact), e = good, two[2];
    cedar_step_plan plan = { .entry_count = 1, .entries = &e };
    cedar_step_out out = { 0 };
#define REFUSED(change, part) \
    do { \
        e = good; \
        change; \
        cedar_plan_total(&plan); \
        FAILS(cedar_engine_step(r.e, &plan, &out, err), CEDAR_E_ARG, part); \
    } while (0)
    REFUSED(e.seq = 7, "a step names sequence 7, which is not open");
    REFUSED(e.seq = -1, "sequence -1");
    REFUSED(e.seq = 1000, "sequence 1000");
    REFUSED(e.pos = 41, "feeds sequence 0 from 41, but it is at 40");
    REFUSED(e.kept = 0, "4 rows, 0 kept");
    REFUSED(e.kept = 5, "4 rows, 5 kept");
    REFUSED((e.kept = 2, e.logits = 3), "4 rows, 2 kept and 3 with logits");
    REFUSED((e.rows = 0, e.kept = 0, e.logits = 0), "has 0 rows");
    REFUSED((e.rows = 40, e.kept = 40), "without pages");
    REFUSED(e.tokens = bad_tokens, "token 512 at position 42 is outside the vocabulary of 512");
    bad_tokens[0] = -1;
    REFUSED(e.tokens = bad_tokens, "token -1 at position 40");
    REFUSED(e.write_floor = 50, "write floor 50, but the sequence's is 0");
    REFUSED((e.bounds.lo_late = 41), "rows below a window bound");
    REFUSED((e.bounds.lo_encoder = 41), "rows below a window bound");
    REFUSED((e.bounds.lo_cut = 41), "rows below a window bound");
    e = good;
    cedar_plan_total(&plan);
    plan.rows = 3;
    FAILS(cedar_engine_step(r.e, &plan, &out, err), CEDAR_E_ARG, "totals do not match");
    cedar_plan_total(&plan);
    plan.kept = 3;
    FAILS(cedar_engine_step(r.e, &plan, &out, err), CEDAR_E_ARG, "totals do not match");
    cedar_plan_total(&plan);
    plan.trimmed = true;
    FAILS(cedar_engine_step(r.e, &plan, &out, err), CEDAR_E_ARG, "totals do not match");
    plan.entry_count = 0;
    plan.rows = plan.kept = plan.logits = 0;
    FAILS(cedar_engine_step(r.e, &plan, &out, err), CEDAR_E_ARG, "0 entries");
    two[0] = two[1] = good;
    plan = (cedar_step_plan){ .entry_count = 2, .entries = two };
    cedar_plan_total(&plan);
    FAILS(cedar_engine_step(r.e, &plan, &out, err), CEDAR_E_ARG, "names sequence 0 twice");
    /* decode cannot start before the windows are rebuilt: the sequence is at S, not at the hit */
    plan = (cedar_step_plan){ .entry_count = 1, .entries = &e };
    REFUSED((e.seq = hit, e.pos = 36, e.write_floor = 36, e.bounds = cedar_seq_bounds(r.e, hit)),
            "from 36, but it is at 20");
    REFUSED((e.seq = hit, e.pos = 20, e.write_floor = 36), "lowers a window bound");
    REFUSED((e.seq = hit, e.pos = 20, e.write_floor = 0, e.bounds = cedar_seq_bounds(r.e, hit)),
            "write floor 0, but the sequence's is 36");
    /* nothing changed: the same step goes through and gives what an undisturbed engine gives */
    float *want = rig_logits(&r), *got = rig_logits(&r);
    rig_feed(&r, seq, 44, &exact, (feeding){ 0 }, got);
    rig_feed(&r, other, 44, &exact, (feeding){ 0 }, want);
    same_rows(&r, got, want, 40, 44, "after refused steps");
    rig_feed(&r, hit, 44, &rules, (feeding){ 0 }, NULL);
    cedar_seq_close(r.e, seq);
    cedar_seq_close(r.e, other);
    cedar_seq_close(r.e, hit);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

START_TEST(steps_have_a_size) {
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.step_rows = 8;
    o.step_seqs = 2;
    rig r = rig_open(dirs[0], &o);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t seq[3];
    cedar_plan_entry e[3];
    cedar_step_out out = { 0 };
    for (int i = 0; i < 3; i++) {
        seq[i] = rig_seq(&r);
        OK(cedar_seq_reserve(r.e, seq[i], 20, err));
        e[i] = rig_entry(&r, seq[i], r.token, CEDAR_ROWS_PREFILL, i == 0 ? 9 : 4, &exact);
    }
    cedar_step_plan plan = { .entry_count = 1, .entries = e };
    cedar_plan_total(&plan);
    FAILS(cedar_engine_step(r.e, &plan, &out, err), CEDAR_E_ARG,
          "9 rows and 1 entries; this engine takes 1 to 8 rows and 2 entries");
    e[0] = rig_entry(&r, seq[0], r.token, CEDAR_ROWS_PREFILL, 1, &exact);
    e[1].rows = e[1].kept = e[1].logits = 1;
    e[2].rows = e[2].kept = e[2].logits = 1;
    plan = (cedar_step_plan){ .entry_count = 3, .entries = e };
    cedar_plan_total(&plan);
    FAILS(cedar_engine_step(r.e, &plan, &out, err), CEDAR_E_ARG, "3 entries");
    for (int i = 0; i < 3; i++) cedar_seq_close(r.e, seq[i]);
    rig_close(&r);
}
END_TEST

START_TEST(bad_options_are_refused) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_engine *e = NULL;
    static const struct { size_t at; uint32_t value; const char *part; } bad[] = {
        { offsetof(cedar_engine_opts, page_tokens), 0, "page_tokens is 0; it must be a positive multiple of 2" },
        { offsetof(cedar_engine_opts, page_tokens), 7, "page_tokens is 7" },
        { offsetof(cedar_engine_opts, page_count), 0, "must be at least 1" },
        { offsetof(cedar_engine_opts, seq_count), 0, "must be at least 1" },
        { offsetof(cedar_engine_opts, context_tokens), 0, "must be at least 1" },
        { offsetof(cedar_engine_opts, step_rows), 0, "must be at least 1" },
        { offsetof(cedar_engine_opts, step_seqs), 0, "must be at least 1" },
        { offsetof(cedar_engine_opts, verify_rows), 5000, "any engine takes" },
        { offsetof(cedar_engine_opts, context_tokens), UINT32_MAX, "any engine takes" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cedar_engine_opts o = rig_opts(CEDAR_F32);
        memcpy((char *)&o + bad[i].at, &bad[i].value, sizeof bad[i].value);
        FAILS(cedar_engine_open(r.model, &o, &e, err), CEDAR_E_ARG, bad[i].part);
        ck_assert_ptr_null(e);
    }
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.backend = "abacus";
    FAILS(cedar_engine_open(r.model, &o, &e, err), CEDAR_E_UNSUPPORTED, "backend \"abacus\"");
    char device[CEDAR_DEVICE_BYTES] = "x";
    cedar_device_name("cpu", 1, device);
    ck_assert_str_eq(device, "");
    cedar_device_name("cpu", 2, device);
    ck_assert_str_eq(device, "2 ranks");
    rig_close(&r);
}
END_TEST

/* --- pages -------------------------------------------------------------------------------------------------------- */

START_TEST(pages_run_out_without_a_trace) {
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.page_count = 6;
    o.seq_count = 3;
    rig r = rig_open(dirs[0], &o);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t a = rig_seq(&r), b = rig_seq(&r), c = rig_seq(&r), d;
    uint32_t count;
    FAILS(cedar_seq_open(r.e, &d, err), CEDAR_E_BUSY, "all 3 sequences are in use");
    rig_feed(&r, a, 20, &exact, (feeding){ 0 }, NULL);          /* three pages of 8 */
    ck_assert_uint_eq(cedar_pages_free(r.e), 3);
    FAILS(cedar_seq_reserve(r.e, b, 25, err), CEDAR_E_BUSY, "4 KV pages are needed, 3 are free");
    ck_assert_uint_eq(cedar_pages_free(r.e), 3);
    cedar_seq_pages(r.e, b, &count);
    ck_assert_uint_eq(count, 0);
    FAILS(cedar_seq_reserve(r.e, b, TOKENS_MAX + 1, err), CEDAR_E_ARG, "more than context_tokens, 320");
    OK(cedar_seq_reserve(r.e, b, 24, err));
    OK(cedar_seq_reserve(r.e, b, 10, err));                     /* never shrinks */
    ck_assert_uint_eq(cedar_pages_free(r.e), 0);
    const cedar_hit_plan odd = { 19, 3, 16, 19 }, even = { 16, 0, 16, 16 };
    const int32_t *pages = cedar_seq_pages(r.e, a, &count);
    FAILS(cedar_seq_adopt(r.e, c, r.token, pages, &odd, err), CEDAR_E_BUSY,
          "no free KV page to copy a partly used page into");
    ck_assert_uint_eq(cedar_seq_pos(r.e, c), 0);
    cedar_seq_pages(r.e, c, &count);
    ck_assert_uint_eq(count, 0);
    OK(cedar_seq_adopt(r.e, c, r.token, pages, &even, err));     /* whole pages are shared: none is needed */
    ck_assert_uint_eq(cedar_pages_free(r.e), 0);
    FAILS(cedar_seq_adopt(r.e, c, r.token, pages, &even, err), CEDAR_E_ARG, "only be adopted by a fresh sequence");
    cedar_seq_close(r.e, b);
    ck_assert_uint_eq(cedar_pages_free(r.e), 3);
    cedar_seq_close(r.e, a);                                    /* two of its pages live on in c */
    ck_assert_uint_eq(cedar_pages_free(r.e), 4);
    const int32_t *shared = cedar_seq_pages(r.e, c, &count);
    ck_assert_uint_eq(count, 2);
    int32_t kept = shared[0];
    cedar_page_retain(r.e, kept);                               /* a prefix cache holds it */
    rig_feed(&r, c, 18, &exact, (feeding){ 0 }, NULL);
    cedar_seq_close(r.e, c);
    ck_assert_uint_eq(cedar_pages_free(r.e), 5);
    cedar_page_release(r.e, kept);
    rig_close(&r);
}
END_TEST

START_TEST(hits_need_enough_replay) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t a = rig_seq(&r), b = rig_seq(&r);
    uint32_t count;
    rig_feed(&r, a, 40, &exact, (feeding){ 0 }, NULL);
    const int32_t *pages = cedar_seq_pages(r.e, a, &count);
    const cedar_hit_plan none = { 33, 33, 0, 33 }, back = { 20, 21, 0, 20 }, far = { 1000, 984, 16, 1000 },
                         one = { 33, 32, 1, 33 };
    FAILS(cedar_seq_adopt(r.e, b, r.token, pages, &none, err), CEDAR_E_ARG,
          "leaves 1 tokens of a compressed entry open");
    FAILS(cedar_seq_adopt(r.e, b, r.token, pages, &back, err), CEDAR_E_ARG,
          "replay starts at 21, after the hit's end 20");
    FAILS(cedar_seq_adopt(r.e, b, r.token, pages, &far, err), CEDAR_E_ARG, "longer than context_tokens");
    OK(cedar_seq_adopt(r.e, b, r.token, pages, &one, err));
    rig_feed(&r, b, 41, &exact, (feeding){ 0 }, NULL);
    same_globals(&r, b, &r, a, 33, "one replayed row");
    cedar_seq_close(r.e, a);
    cedar_seq_close(r.e, b);
    rig_close(&r);
}
END_TEST

/* A sequence that goes on past a shared prefix writes into pages of its own. */
START_TEST(shared_pages_are_never_written) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t source = rig_seq(&r), other[TOKENS_MAX];
    rig_feed(&r, source, 60, &exact, (feeding){ 0 }, NULL);
    size_t n;
    uint8_t *before = rig_globals(&r, source, 60, &n);
    for (uint32_t hit = 16; hit <= 56; hit += 5) {
        int32_t seq = rig_hit(&r, source, hit, &exact);
        memcpy(other, r.token, sizeof other);
        for (uint32_t p = hit; p < TOKENS_MAX; p++) other[p] = (other[p] + 11) % (int32_t)r.v;
        rig_feed(&r, seq, 90, &exact, (feeding){ .tokens = other, .chunk = 13 }, NULL);
        size_t m;
        uint8_t *now = rig_globals(&r, source, 60, &m);
        ck_assert_mem_eq(before, now, n);
        free(now);
        cedar_seq_close(r.e, seq);
    }
    free(before);
    cedar_seq_close(r.e, source);
    rig_close(&r);
}
END_TEST

/* --- memory ------------------------------------------------------------------------------------------------------- */

START_TEST(cached_bytes_are_the_published_ones) {
    rig r = rig_tiny(CEDAR_F32);
    ck_assert_uint_eq(cedar_page_bytes(r.e), 106 * 8);
    rig_close(&r);
    cedar_config c;
    cedar_layout l;
    OK(cedar_config_load("scenarios/models/tiny.json", &c, err));
    cedar_layout_make(&c, 64, 0, &l);
    ck_assert_uint_eq(l.page_bytes, 106 * 64);
    ck_assert_uint_eq(l.kv_code_bytes + l.kv_scale_bytes, 36);
    ck_assert_uint_eq(l.index_code_bytes + l.index_scale_bytes, 17);
    ck_assert_uint_eq((uint64_t)c.layers * l.ring_slots * l.ring_row_bytes, 8448);
    OK(cedar_config_load("scenarios/models/flash.json", &c, err));
    cedar_layout_make(&c, 64, 0, &l);
    ck_assert_uint_eq(l.page_bytes, 890 * 64);
    ck_assert_uint_eq(l.kv_code_bytes + l.kv_scale_bytes, 288);
    ck_assert_uint_eq(l.index_code_bytes + l.index_scale_bytes, 68);
    ck_assert_uint_eq((uint64_t)l.ring_slots * l.ring_row_bytes, 67584);
    ck_assert_uint_eq(40ull * l.ring_slots * l.ring_row_bytes, 2703360);
    ck_assert_uint_eq(l.ring_bytes, 2906112);
    ck_assert_uint_eq(l.open_reals * 4, 12288);
    cedar_layout_make(&c, 64, 5, &l);
    ck_assert_uint_eq(l.ring_slots, 133);
}
END_TEST

/* Parts of a page, rows of a ring: nothing overlaps, nothing is wasted. */
START_TEST(layouts_have_no_gaps) {
    static const char *const models[] = { "tiny", "tiny2", "mid", "mid-small", "flash" };
    for (size_t i = 0; i < 5; i++)
        for (uint32_t pages = 8; pages <= 128; pages *= 2) {
            char path[64];
            cedar_config c;
            cedar_layout l;
            snprintf(path, sizeof path, "scenarios/models/%s.json", models[i]);
            OK(cedar_config_load(path, &c, err));
            cedar_layout_make(&c, pages, 3, &l);
            uint64_t at = 0;
            for (int32_t k = 0; k < l.part_count; k++) {
                const cedar_page_part *p = &l.part[k];
                ck_assert_uint_eq(p->entries, pages / (uint32_t)c.ratio[p->layer]);
                ck_assert_uint_eq(p->kv_codes, at);
                at += (uint64_t)p->entries * (uint32_t)c.head_dim / 2;
                ck_assert_uint_eq(p->kv_scales, at);
                at += (uint64_t)p->entries * (uint32_t)c.head_dim / 16;
                ck_assert_uint_eq(p->index_codes, at);
                at += (uint64_t)p->entries * (uint32_t)c.index_dim / 2;
                ck_assert_uint_eq(p->index_scales, at);
                at += (uint64_t)p->entries * (uint32_t)c.index_dim / 32;
                ck_assert_int_eq(l.part_of[p->layer], k);
            }
            ck_assert_uint_eq(l.page_bytes, at);
        }
}
END_TEST

/* Every allocation of opening an engine may fail: the error says so and nothing is left. */
START_TEST(opening_survives_any_failed_allocation) {
    rig r = rig_tiny(ariths[_i]);
    cedar_engine_opts o = rig_opts(ariths[_i]);
    o.threads = 3;
    int64_t live = cedar_mem_live(), n = 1;
    for (;; n++) {
        cedar_engine *e = NULL;
        cedar_err err = { 0 };
        cedar_mem_fail_at(n);
        cedar_status st = cedar_engine_open(r.model, &o, &e, &err);
        cedar_mem_fail_at(0);
        if (!st) {
            ck_assert(!cedar_engine_close(e, &err));
            ck_assert_int_eq(cedar_mem_live(), live);
            break;
        }
        ck_assert_int_eq(st, CEDAR_E_OOM);
        ck_assert_ptr_null(e);
        ck_assert_int_ne(err.msg[0], 0);
        ck_assert_msg(cedar_mem_live() == live, "allocation %lld leaks", (long long)n);
        ck_assert(n < 1000);
    }
    ck_assert_msg(n > 10, "only %lld allocations", (long long)n);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t seq = rig_seq(&r);
    rig_feed(&r, seq, 20, &exact, (feeding){ 0 }, NULL);
    for (n = 1; n <= 2; n++) {
        cedar_snap *snap = NULL;
        live = cedar_mem_live();
        cedar_mem_fail_at(n);
        FAILS(cedar_snap_save(r.e, seq, &snap, err), CEDAR_E_OOM, "stored windows");
        cedar_mem_fail_at(0);
        ck_assert_int_eq(cedar_mem_live(), live);
    }
    cedar_seq_close(r.e, seq);
    rig_close(&r);
}
END_TEST

/* Steps and drafts allocate nothing (the guard would abort), and the count of allocations stays. The logits that are
 * wanted of several ranks get their room before the first step that wants so many. */
START_TEST(steps_allocate_nothing) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules rules = rules_decoder(&r);
    int32_t seq[2] = { rig_seq(&r), rig_seq(&r) }, ids[8];
    int64_t live = cedar_mem_live();
    for (int i = 0; i < 2; i++) {
        rig_feed(&r, seq[i], 60, &rules, (feeding){ .chunk = 20 }, NULL);
        rig_draft(&r, seq[i], 3, ids, NULL);
        if (i == 0 && RIG_GPUS > 1) live = cedar_mem_live();
        ck_assert_int_eq(cedar_mem_live(), live);
    }
    for (int i = 0; i < 2; i++) cedar_seq_close(r.e, seq[i]);
    rig_close(&r);
}
END_TEST

static void allocating_tap(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                           uint32_t width) {
    (void)self, (void)kind, (void)layer, (void)seq, (void)pos, (void)data, (void)width;
    cedar_free(cedar_calloc(1, 16));
}

START_TEST(allocating_in_a_step_aborts) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t seq = rig_seq(&r);
    cedar_engine_tap(r.e, allocating_tap, NULL);
    rig_feed(&r, seq, 4, &exact, (feeding){ 0 }, NULL);
}
END_TEST

/* Taps come from one thread, rows in order, and change no bit. */
typedef struct order {
    int32_t last_layer[CEDAR_TAP_KIND_COUNT];
    uint32_t last_pos[CEDAR_TAP_KIND_COUNT];
    bool wrong;
} order;

static void order_tap(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                      uint32_t width) {
    order *w = self;
    (void)seq, (void)data, (void)width;
    if (kind == CEDAR_TAP_RING) return;         /* by row, then by stage */
    w->wrong |= layer < w->last_layer[kind] || (layer == w->last_layer[kind] && pos < w->last_pos[kind]);
    w->last_layer[kind] = layer;
    w->last_pos[kind] = pos;
}

START_TEST(taps_are_in_order_and_change_nothing) {
    cedar_engine_opts o = rig_opts(CEDAR_F32);
    o.threads = 4;
    rig r = rig_open(dirs[0], &o);
    cedar_replay_rules exact = rules_exact(&r);
    float *want = rig_logits(&r), *got = rig_logits(&r);
    int32_t a = rig_seq(&r), b = rig_seq(&r);
    order w = { 0 };
    rig_feed(&r, a, 50, &exact, (feeding){ 0 }, want);
    cedar_engine_tap(r.e, order_tap, &w);
    rig_feed(&r, b, 50, &exact, (feeding){ 0 }, got);
    cedar_engine_tap(r.e, NULL, NULL);
    ck_assert(!w.wrong);
    same_rows(&r, got, want, 0, 50, "tapped");
    cedar_seq_close(r.e, a);
    cedar_seq_close(r.e, b);
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* Entries one by one and in stretches that begin and end anywhere in a page: the same bytes. */
START_TEST(stretches_of_global_rows_are_their_rows) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t seq = rig_seq(&r);
    enum { ENTRIES = 75 };
    static uint8_t kv[2][ENTRIES * 36], index[2][ENTRIES * 17];
    rig_feed(&r, seq, ENTRIES, &exact, (feeding){ 0 }, NULL);
    for (uint32_t i = 0; i < ENTRIES; i++)
        OK(cedar_engine_read_global(r.e, seq, 4, i, 1, kv[0] + i * 36, index[0] + i * 17, err));
    for (uint32_t first = 0; first < ENTRIES; first += 7)
        for (uint32_t n = 1; first + n <= ENTRIES; n += 5) {
            OK(cedar_engine_read_global(r.e, seq, 4, first, n, kv[1], index[1], err));
            ck_assert(!memcmp(kv[0] + first * 36, kv[1], n * 36) && !memcmp(index[0] + first * 17, index[1], n * 17));
        }
    ck_assert(memcmp(kv[0], kv[0] + 36, 36) != 0);
    cedar_seq_close(r.e, seq);
    rig_close(&r);
}
END_TEST

START_TEST(looking_inside_has_limits) {
    rig r = rig_tiny(CEDAR_F32);
    cedar_replay_rules exact = rules_exact(&r);
    int32_t seq = rig_seq(&r);
    uint8_t kv[4 * 36], index[4 * 17];
    double kvf[64], score[64];
    rig_feed(&r, seq, 21, &exact, (feeding){ 0 }, NULL);
    FAILS(cedar_engine_read_global(r.e, seq, 2, 0, 1, kv, index, err), CEDAR_E_ARG, "layer 2 writes no global KV");
    FAILS(cedar_engine_read_global(r.e, seq, -1, 0, 1, kv, index, err), CEDAR_E_ARG, "layer -1");
    FAILS(cedar_engine_read_global(r.e, seq, 4, 22, 4, kv, index, err), CEDAR_E_ARG,
          "entries up to 26 of layer 4 are not there");
    OK(cedar_engine_read_global(r.e, seq, 4, 0, 4, kv, NULL, err));
    OK(cedar_engine_read_global(r.e, seq, 4, 0, 4, NULL, index, err));
    FAILS(cedar_engine_read_open(r.e, seq, 4, 20, kvf, score, err), CEDAR_E_ARG, "layer 4 keeps no open group");
    FAILS(cedar_engine_read_open(r.e, seq, 1, 21, kvf, score, err), CEDAR_E_ARG, "position 21 is not in an open group");
    OK(cedar_engine_read_open(r.e, seq, 1, 20, kvf, score, err));
    for (int k = 0; k < 64; k++) ck_assert(isfinite(kvf[k]) && isfinite(score[k]));
    cedar_seq_close(r.e, seq);
    rig_close(&r);
}
END_TEST

/* With several ranks (test_engine_ranks.c) all of it takes minutes more, and test_ranks plays the same at random. Of
 * one rank only the case "threads" has several threads, and is enough for ThreadSanitizer. */
static TCase *cases(const char *name) {
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 600);
    tcase_set_tags(t, RIG_GPUS > 1 ? "slow" : strcmp(name, "threads") ? "one_thread" : "");
    return t;
}

static Suite *suite(void) {
    Suite *s = suite_create("engine");
    TCase *t = cases("threads");
    tcase_add_loop_test(t, options_do_not_matter, 0, 6);
    tcase_add_loop_test(t, batches_do_not_matter, 0, 4);
    tcase_add_loop_test(t, opening_survives_any_failed_allocation, 0, 3);
    tcase_add_test(t, steps_allocate_nothing);
    suite_add_tcase(s, t);
    t = cases("one result");
    tcase_add_loop_test(t, chunks_do_not_matter, 0, 6);
    tcase_add_loop_test(t, no_row_sees_the_future, 0, 2);
    tcase_add_test(t, engines_share_a_model);
    tcase_add_test(t, tokens_and_picks_are_reported);
    suite_add_tcase(s, t);
    t = cases("replay");
    tcase_add_loop_test(t, hits_leave_cached_rows_alone, 0, 6);
    tcase_add_loop_test(t, nothing_stale_is_read, 0, 4);      /* the second model in double only */
    tcase_add_test(t, all_window_slots_are_written);
    tcase_add_loop_test(t, untrimmed_prompts_are_exact, 0, 6);
    tcase_add_loop_test(t, halos_reproduce_exact_results, 0, 6);
    tcase_add_loop_test(t, one_row_less_than_a_halo_is_not_exact, 0, 4);
    tcase_add_test(t, engram_rows_do_not_depend_on_hits);
    tcase_add_loop_test(t, unclipped_replays_read_what_they_are_given, 0, 3);
    tcase_add_loop_test(t, encoder_fronts_are_where_they_should_be, 0, 3);
    tcase_add_loop_test(t, decoder_fronts_are_where_they_should_be, 0, 9);
    suite_add_tcase(s, t);
    t = cases("stored windows and rollback");
    tcase_add_loop_test(t, stored_windows_continue_exactly, 0, 6);
    tcase_add_loop_test(t, stored_windows_keep_a_replays_bounds, 0, 6);
    tcase_add_test(t, stored_windows_of_another_kind_are_refused);
    tcase_add_test(t, stored_windows_are_counted);
    tcase_add_loop_test(t, rejected_rows_leave_no_trace, 0, 6);
    tcase_add_loop_test(t, drafts_survive_a_round_trip, 0, 2);
    tcase_add_test(t, drafts_of_a_batch_are_drafts_alone);
    tcase_add_test(t, models_without_a_drafter_say_so);
    suite_add_tcase(s, t);
    t = cases("refusals and memory");
    tcase_add_test(t, rollbacks_have_limits);
    tcase_add_test(t, bad_plans_are_refused);
    tcase_add_test(t, steps_have_a_size);
    tcase_add_test(t, bad_options_are_refused);
    tcase_add_test(t, pages_run_out_without_a_trace);
    tcase_add_test(t, hits_need_enough_replay);
    tcase_add_test(t, shared_pages_are_never_written);
    tcase_add_test(t, cached_bytes_are_the_published_ones);
    tcase_add_test(t, layouts_have_no_gaps);
    tcase_add_test_raise_signal(t, allocating_in_a_step_aborts, 6);
    tcase_add_test(t, taps_are_in_order_and_change_nothing);
    tcase_add_test(t, stretches_of_global_rows_are_their_rows);
    tcase_add_test(t, looking_inside_has_limits);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
