/* Modelled runs in parts: prefixes against the tokens they stand for, the ledger's structure under random use, and
 * lists of latencies that are longer than memory has room for. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "sim/percentile.h"
#include "sim/sim_int.h"

static cedar_err failure;
#define OK(call) ck_assert_msg((call) == CEDAR_OK, "%s", failure.msg)

enum { TEXT_BYTES = 65536, TURNS_MAX = 64, TOKENS_MAX = 1024, VOCAB = 1 << 24 };

typedef struct dice { uint64_t key, count; } dice;

static uint32_t roll(dice *d, uint32_t below) { return (uint32_t)cedar_rng_below(d->key, d->count++, below); }

/* Traces whose turns continue, cut, and leave each other, with ids that cover more or less than the whole blocks. */
static cedar_corpus *make_corpus(dice *d) {
    char *text = calloc(TEXT_BYTES, 1);
    size_t n = 0;
    uint32_t traces = 1 + roll(d, 3);
    bool global = roll(d, 4) == 0;
    for (uint32_t t = 0; t < traces; t++) {
        n += (size_t)snprintf(text + n, TEXT_BYTES - n,
                              "{\"id\":\"t%u\",\"models\":[\"m\"],\"block_size\":4,\"hash_id_scope\":\"%s\","
                              "\"tool_tokens\":0,\"system_tokens\":%u,\"requests\":[", t, global ? "global" : "local",
                              roll(d, 4) * 3);
        uint32_t turns = 1 + roll(d, 8), blocks = 0;
        for (uint32_t k = 0; k < turns; k++) {
            uint32_t in = 1 + roll(d, 40) + (roll(d, 2) ? 4 * blocks : 0), fresh = roll(d, 3) ? 0 : 1 + roll(d, 12);
            if (in > 150) in = 1 + roll(d, 60);
            blocks = in / 4;
            uint32_t ids = roll(d, 8) ? blocks : roll(d, blocks + 2);
            n += (size_t)snprintf(text + n, TEXT_BYTES - n,
                                  "%s{\"t\":%u,\"type\":\"s\",\"model\":\"m\",\"in\":%u,\"out\":%u,\"api_time\":1,"
                                  "\"hash_ids\":[", k ? "," : "", 3 * k, in, roll(d, 14));
            for (uint32_t b = 0; b < ids; b++)
                n += (size_t)snprintf(text + n, TEXT_BYTES - n, "%s%u", b ? "," : "",
                                      fresh && b >= fresh ? 1000 * (k + 1) + b : b + 1);
            n += (size_t)snprintf(text + n, TEXT_BYTES - n, "]}");
        }
        n += (size_t)snprintf(text + n, TEXT_BYTES - n, "]}\n");
    }
    cedar_corpus *c;
    OK(cedar_corpus_parse(text, n, "test", &(cedar_corpus_opts){ .format = CEDAR_TRACE_WEKA, .strict = true }, &c,
                          &failure));
    free(text);
    return c;
}

/* One turn: its tokens under a salt, and where it ends in the prefixes. */
typedef struct turn {
    cedar_turn_ref ref;
    int32_t tokens[TOKENS_MAX];
    uint32_t in, fed;
} turn;

static uint32_t gather(const cedar_corpus *c, const cedar_prompts *p, bool salts, turn *out) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < c->trace_count; t++)
        for (uint32_t k = 0; k < c->traces[t].streams[0].turn_count && n < TURNS_MAX; k++, n++) {
            uint32_t answer;
            out[n].ref = (cedar_turn_ref){ t, 0, k, salts ? cedar_prompt_salt(&c->traces[t], 1, 0, 0) : 0 };
            cedar_prompt_lengths(p, &out[n].ref, &out[n].in, &answer);
            out[n].fed = out[n].in + answer - 1;
            ck_assert_uint_lt(out[n].fed, TOKENS_MAX);
            cedar_prompt_fill(p, &out[n].ref, 0, out[n].fed, out[n].tokens);
        }
    return n;
}

/* Pages in front that two turns share, by their tokens. */
static uint32_t shared_by_tokens(const turn *a, const turn *b, uint32_t page) {
    uint32_t n = 0, most = (a->fed < b->fed ? a->fed : b->fed) / page;
    while (n < most && memcmp(a->tokens + n * page, b->tokens + n * page, page * sizeof(int32_t)) == 0) n++;
    return n;
}

static uint32_t shared_by_edges(const cedar_prefixes *x, const turn *a, const turn *b) {
    uint32_t i = cedar_prefixes_turn(x, &a->ref)->all, j = cedar_prefixes_turn(x, &b->ref)->all;
    for (; i != CEDAR_NO_EDGE; i = x->edges[i].parent)
        for (uint32_t k = j; k != CEDAR_NO_EDGE; k = x->edges[k].parent)
            if (i == k) return x->edges[i].end;
    return 0;
}

static uint32_t end_of(const cedar_prefixes *x, uint32_t edge) {
    return edge == CEDAR_NO_EDGE ? 0 : x->edges[edge].end;
}

/* Two turns share as many edges as their tokens say, and every turn ends where it should. */
START_TEST(prefixes_are_those_of_the_tokens) {
    static turn turns[TURNS_MAX];
    uint64_t pairs = 0, shared = 0;
    for (uint64_t seed = 0; seed < 120; seed++) {
        dice d = { cedar_rng_key(seed, "test/prefixes"), 0 };
        cedar_corpus *c = make_corpus(&d);
        cedar_prompts *p;
        cedar_prefixes *x;
        const cedar_prompt_rules rules = { .vocab = VOCAB, .length_num = 1 + roll(&d, 2),
                                           .length_den = 1 + roll(&d, 2) };
        uint32_t page = 1 + roll(&d, 9);
        bool salts = roll(&d, 3) > 0;
        OK(cedar_prompts_new(c, &rules, &p, &failure));
        OK(cedar_prefixes_new(p, c, page, salts, &x, &failure));
        uint32_t n = gather(c, p, salts, turns);
        for (uint32_t i = 0; i < n; i++) {
            const cedar_turn_edges *e = cedar_prefixes_turn(x, &turns[i].ref);
            ck_assert_uint_eq(end_of(x, e->find), (turns[i].in - 1) / page);
            ck_assert_uint_eq(end_of(x, e->prompt), turns[i].in / page);
            ck_assert_uint_eq(end_of(x, e->all), turns[i].fed / page);
            for (uint32_t k = 0; k < i; k++) {
                uint32_t want = shared_by_tokens(&turns[i], &turns[k], page);
                ck_assert_uint_eq(shared_by_edges(x, &turns[i], &turns[k]), want);
                pairs++;
                shared += want > 0;
            }
        }
        cedar_prefixes_free(x);
        cedar_prompts_free(p);
        cedar_corpus_free(c);
    }
    ck_assert_uint_gt(pairs, 5000);
    ck_assert_uint_gt(shared, 500);
}
END_TEST

/* The pages that a salt changes are those whose tokens it changes. */
START_TEST(salted_edges_are_those_of_the_tokens) {
    static turn a[TURNS_MAX], b[TURNS_MAX];
    for (uint64_t seed = 0; seed < 40; seed++) {
        dice d = { cedar_rng_key(seed, "test/salted"), 0 };
        cedar_corpus *c = make_corpus(&d);
        cedar_prompts *p;
        cedar_prefixes *x;
        const cedar_prompt_rules rules = { .vocab = VOCAB, .length_num = 1, .length_den = 1 };
        uint32_t page = 1 + roll(&d, 5);
        OK(cedar_prompts_new(c, &rules, &p, &failure));
        OK(cedar_prefixes_new(p, c, page, true, &x, &failure));
        uint32_t n = gather(c, p, true, a);
        gather(c, p, true, b);
        for (uint32_t i = 0; i < n; i++) {
            b[i].ref.salt = cedar_prompt_salt(&c->traces[b[i].ref.trace], 1, 7, 3);
            cedar_prompt_fill(p, &b[i].ref, 0, b[i].fed, b[i].tokens);
            uint32_t same = shared_by_tokens(&a[i], &b[i], page), plain = 0;
            for (uint32_t e = cedar_prefixes_turn(x, &a[i].ref)->all; e != CEDAR_NO_EDGE; e = x->edges[e].parent)
                if (!x->edges[e].salted && x->edges[e].end > plain) plain = x->edges[e].end;
            ck_assert_uint_eq(plain, same);
        }
        cedar_prefixes_free(x);
        cedar_prompts_free(p);
        cedar_corpus_free(c);
    }
}
END_TEST

/* --- the ledger --------------------------------------------------------------------------------------------------- */

enum { TREES = 6, FLYING = 8 };

typedef struct flight { cedar_turn_ref ref; int tree; int32_t run; uint32_t pages; bool used; } flight;

static void check_ledger(const cedar_ledger *l, const flight *f, uint32_t page_count) {
    uint32_t held = 0;
    for (int i = 0; i < FLYING; i++) held += f[i].used ? f[i].pages : 0;
    const char *broken = cedar_ledger_broken(l);
    ck_assert_msg(!broken, "%s", broken);
    ck_assert_uint_eq(cedar_ledger_free_pages(l) + cedar_ledger_cached_pages(l) + held, page_count);
}

static void use_ledger(uint64_t seed) {
    static turn turns[TURNS_MAX];
    dice d = { cedar_rng_key(seed, "test/ledger"), 0 };
    cedar_corpus *c = make_corpus(&d);
    cedar_prompts *p;
    cedar_prefixes *x;
    cedar_ledger *l;
    const cedar_prompt_rules rules = { .vocab = VOCAB, .length_num = 1, .length_den = 1 };
    cedar_ledger_opts o = { .page_count = 40 + roll(&d, 120), .cache = true, .windows = roll(&d, 2),
                            .window_bytes_max = roll(&d, 2) ? 700 : 0 };
    OK(cedar_prompts_new(c, &rules, &p, &failure));
    OK(cedar_prefixes_new(p, c, 4, true, &x, &failure));
    OK(cedar_ledger_new(x, &o, &l, &failure));
    uint32_t n = gather(c, p, true, turns);
    cedar_ledger_tree *trees[TREES] = { NULL };
    uint32_t tree_trace[TREES] = { 0 };
    flight f[FLYING] = { 0 };
    for (int step = 0; step < 600; step++) {
        int i = (int)roll(&d, FLYING);
        if (!f[i].used) {
            const turn *t = &turns[roll(&d, n)];
            int tree = (int)roll(&d, TREES);
            if (trees[tree] && tree_trace[tree] != t->ref.trace) continue;
            if (!trees[tree]) OK(cedar_ledger_tree_open(l, t->ref.trace, &trees[tree], &failure));
            tree_trace[tree] = t->ref.trace;
            cedar_ledger_hit hit;
            cedar_ledger_find(l, trees[tree], cedar_prefixes_turn(x, &t->ref)->find, &hit);
            ck_assert(hit.hit_pages <= hit.matched_pages && hit.matched_pages * 4 < t->in);
            uint32_t pages = (t->fed + 3) / 4 - hit.hit_pages;
            bool there;
            if (hit.run >= 0) cedar_ledger_pin(l, hit.run);
            cedar_ledger_take(l, pages, &there);
            if (there) f[i] = (flight){ t->ref, tree, hit.run, pages, true };
            else if (hit.run >= 0) cedar_ledger_unpin(l, hit.run);
        } else {
            cedar_ledger_give(l, f[i].pages);
            if (roll(&d, 6))
                OK(cedar_ledger_keep(l, trees[f[i].tree], cedar_prefixes_turn(x, &f[i].ref)->all, roll(&d, 3),
                                     roll(&d, 3) ? 100 : 0, &failure));
            if (f[i].run >= 0) cedar_ledger_unpin(l, f[i].run);
            f[i].used = false;
            bool busy = false;
            for (int k = 0; k < FLYING; k++) busy |= f[k].used && f[k].tree == f[i].tree;
            if (!busy && roll(&d, 5) == 0) {
                cedar_ledger_tree_end(trees[f[i].tree]);
                trees[f[i].tree] = NULL;
            }
        }
        check_ledger(l, f, o.page_count);
    }
    for (int i = 0; i < FLYING; i++)
        if (f[i].used && f[i].run >= 0) cedar_ledger_unpin(l, f[i].run);
    for (int i = 0; i < TREES; i++) cedar_ledger_tree_end(trees[i]);
    cedar_ledger_free(l);
    cedar_prefixes_free(x);
    cedar_prompts_free(p);
    cedar_corpus_free(c);
}

START_TEST(the_ledger_keeps_its_structure) {
    int64_t live = cedar_mem_live();
    for (uint64_t seed = 0; seed < 60; seed++) use_ledger(seed);
    ck_assert_int_eq(cedar_mem_live(), live);
}
END_TEST

/* --- latencies ---------------------------------------------------------------------------------------------------- */

/* Lists below and above what is kept in memory, with equal and negative values, against the sorted list. */
START_TEST(long_lists_have_the_percentiles_of_short_ones) {
    static const size_t counts[] = { 1, 2, 255, 257, 32768, 32769, 65536, 100003 };
    for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
        cedar_samples s = { 0 };
        double *v = calloc(counts[n], sizeof *v), sum = 0;
        for (size_t i = 0; i < counts[n]; i++) {
            uint64_t bits = cedar_rng_at(cedar_rng_key(n, "test/samples"), i);
            v[i] = i % 5 == 0 ? (double)(bits % 7) : i % 11 == 0 ? -(double)(bits >> 40) / 3 : (double)(bits >> 20) / 7;
            sum += v[i];
            OK(cedar_samples_add(&s, v[i], &failure));
        }
        ck_assert_double_eq(cedar_samples_mean(&s), sum / (double)counts[n]);
        cedar_sort_real(v, counts[n]);
        static const double p[] = { 0, 1, 50, 90, 99.9, 100 };
        for (size_t k = 0; k < sizeof p / sizeof *p; k++) {
            double got;
            OK(cedar_samples_percentile(&s, p[k], &got, &failure));
            ck_assert_double_eq(got, cedar_percentile(v, counts[n], p[k]));
        }
        OK(cedar_samples_add(&s, 1e300, &failure));     /* may go on after it was looked at */
        double most;
        OK(cedar_samples_percentile(&s, 100, &most, &failure));
        ck_assert_double_eq(most, 1e300);
        cedar_samples_free(&s);
        free(v);
    }
    cedar_samples none = { 0 };
    double nan;
    OK(cedar_samples_percentile(&none, 50, &nan, &failure));
    ck_assert(isnan(nan) && isnan(cedar_samples_mean(&none)));
}
END_TEST

int main(void) {
    Suite *s = suite_create("ledger");
    TCase *t = tcase_create("ledger");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, prefixes_are_those_of_the_tokens);
    tcase_add_test(t, salted_edges_are_those_of_the_tokens);
    tcase_add_test(t, the_ledger_keeps_its_structure);
    tcase_add_test(t, long_lists_have_the_percentiles_of_short_ones);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
