/* Tests of audits: statistics against an independent package, metrics by hand, arms and documents, and whole audits of
 * tiny models whose controls and fronts must be where theory puts them. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "audit/audit.h"
#include "audit/divergence.h"
#include "audit/stats.h"
#include "base/mem.h"
#include "sim/audit_host.h"
#include "tests/sanitized.h"

static cedar_err err;

#define OK(call) ck_assert_msg((call) == CEDAR_OK, "%s", err.msg)
#define NEAR(got, want) ck_assert_double_eq_tol(got, want, 1e-12 + 1e-9 * fabs((double)(want)))

/* --- statistics: expected values by scipy 1.17.1, see tests/audit_reference.py ------------------------------------ */

static const double eight[] = { 0.0031, -0.0012, 0.0048, 0.0005, 0.0022, -0.0003, 0.0017, 0.0029 };

START_TEST(student_cdf_agrees_with_scipy) {
    static const struct { double t, df, want; } cases[] = {
        { -2.5, 1, 0.12111894159084341 },  { 0.3, 3, 0.6081183539800405 },   { 1.7, 9, 0.9383261689280881 },
        { 4.2, 19, 0.9997573417639566 },   { -0.01, 40, 0.4960354984799724 }, { 12, 2.5, 0.9985818924849609 },
        { -8.5, 99, 1.0067283266862694e-13 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_double_eq_tol(cedar_student_cdf(cases[i].t, cases[i].df) / cases[i].want, 1, 1e-10);
    ck_assert_double_eq(cedar_student_cdf((double)INFINITY, 3), 1);
    ck_assert_double_eq(cedar_student_cdf(0, 7), 0.5);
}
END_TEST

START_TEST(t_tests_agree_with_scipy) {
    cedar_part part[8];
    double value, se;
    size_t used;
    for (int i = 0; i < 8; i++) part[i] = (cedar_part){ 7 * eight[i], 7 };     /* equal weights: the plain mean */
    cedar_ratio_se(part, 8, &value, &se, &used);
    NEAR(value, 0.0017125);
    NEAR(se, 0.000695762043682013);
    ck_assert_uint_eq(used, 8);
    NEAR(cedar_t_test(value, se, used), 0.04338066894196984);
    NEAR(cedar_tost(value, se, used, 0.004, false), 0.006671797512019394);
    NEAR(cedar_tost(value, se, used, 0.002, false), 0.3459064139925247);
    NEAR(cedar_tost(-value, se, used, 0.002, false), 0.3459064139925247);
    NEAR(cedar_tost(-value, se, used, 0.002, true), 0.0005402774999518961);
    ck_assert_double_nan(cedar_t_test(1, (double)NAN, 1));
    ck_assert_double_eq(cedar_t_test(0, 0, 4), 1);
    ck_assert_double_eq(cedar_t_test(0.1, 0, 4), 0);
    ck_assert_double_eq(cedar_tost(0.1, 0, 4, 0.2, false), 0);
    ck_assert_double_eq(cedar_tost(0.3, 0, 4, 0.2, false), 1);
}
END_TEST

START_TEST(ratios_weigh_documents_by_their_positions) {
    const cedar_part part[] = { { 3, 10 }, { 1, 4 }, { 4, 8 }, { 1, 5 }, { 5, 12 }, { 0, 0 } };
    double value, se;
    size_t used;
    cedar_ratio_se(part, 6, &value, &se, &used);
    NEAR(value, 0.358974358974359);
    NEAR(se, 0.04900188847919549);
    ck_assert_uint_eq(used, 5);     /* a document without positions says nothing */
    cedar_ratio_se(part + 5, 1, &value, &se, &used);
    ck_assert_double_nan(value);
}
END_TEST

START_TEST(holm_adjusts_in_order) {
    const double p[] = { 0.01, 0.04, (double)NAN, 0.03, 0.005, 0.5, 1e-20 },
                 want[] = { 0.04, 0.09, 0, 0.09, 0.025, 0.5, 6e-20 };
    double got[7];
    cedar_holm(p, 7, got);
    for (int i = 0; i < 7; i++) {
        if (i == 2) ck_assert_double_nan(got[i]);
        else ck_assert_double_eq_tol(got[i] / want[i], 1, 1e-12);
    }
    const double same[] = { 0.02, 0.02, 0.9 };
    cedar_holm(same, 3, got);
    NEAR(got[0], 0.06);
    NEAR(got[1], 0.06);
    NEAR(got[2], 0.9);
}
END_TEST

START_TEST(proportions_and_pairs_agree_with_scipy) {
    cedar_interval w = cedar_wilson(0, 20, 0.95);
    ck_assert_double_eq(w.lo, 0);
    NEAR(w.hi, 0.16112515805281935);
    w = cedar_wilson(20, 20, 0.95);
    NEAR(w.lo, 0.8388748419471808);
    ck_assert_double_eq(w.hi, 1);
    w = cedar_wilson(3, 11, 0.95);
    NEAR(w.lo, 0.09746059290024892);
    NEAR(w.hi, 0.5656453011761292);
    w = cedar_wilson(995, 1000, 0.95);
    NEAR(w.lo, 0.9883490446266248);
    NEAR(w.hi, 0.9978624644726755);
    ck_assert_double_nan(cedar_wilson(0, 0, 0.95).value);
    static const struct { double p, want; } normal[] = { { 1e-12, -7.034483825301131 }, { 0.001, -3.090232306167813 },
                                                         { 0.025, -1.9599639845400545 }, { 0.3, -0.5244005127080409 },
                                                         { 0.5, 0 }, { 0.9999, 3.719016485455709 } };
    for (size_t i = 0; i < sizeof normal / sizeof *normal; i++)
        NEAR(cedar_normal_quantile(normal[i].p), normal[i].want);
    NEAR(cedar_mcnemar(3, 9), 0.14599609375);
    NEAR(cedar_mcnemar(6, 0), 0.03125);
    ck_assert_double_eq(cedar_mcnemar(5, 5), 1);
    ck_assert_double_eq(cedar_mcnemar(1, 0), 1);
    NEAR(cedar_mcnemar(40, 70), 0.005447429511444476);
    ck_assert_double_eq(cedar_mcnemar(0, 0), 1);
}
END_TEST

START_TEST(survival_agrees_with_scipy) {
    const uint32_t step[] = { 3, 5, 5, 8, 10, 10, 1 };     /* 10 = censored */
    double s[11], mean, sum = 0;
    cedar_survival(step, 7, 10, s, &mean);
    NEAR(s[0], 1);
    NEAR(s[1], 1);
    NEAR(s[2], 6 / 7.0);        /* the one that leaves at token 1 has token 0 in common */
    NEAR(s[4], 5 / 7.0);
    NEAR(s[6], 3 / 7.0);
    NEAR(s[9], 2 / 7.0);
    NEAR(s[10], 2 / 7.0);
    for (int i = 0; i < 7; i++) sum += step[i];
    NEAR(mean, sum / 7);        /* all are censored at the same place, so it is the plain mean */
    cedar_survival(step, 0, 10, s, &mean);
    ck_assert_double_nan(mean);
}
END_TEST

/* scipy.stats.bootstrap with 200000 resamples: [0.95833, 1.85833]; the tolerance covers the resampling error of 10000
 * on
 * both ends (about 0.006) and the grid of resampled means (0.00833). */
START_TEST(bootstrap_agrees_with_scipy) {
    static const double x[] = { 0.8, 1.9, 0.3, 2.4, 1.1, 0.7, 3.0, 1.6, 0.9, 1.3, 2.2, 0.5 };
    cedar_part part[12];
    cedar_interval a, b;
    for (int i = 0; i < 12; i++) part[i] = (cedar_part){ x[i], 1 };
    OK(cedar_bootstrap(part, 12, 10000, 7, 0.95, &a, &err));
    NEAR(a.value, 1.3916666666666668);
    ck_assert_double_eq_tol(a.lo, 0.9583333333333334, 0.02);
    ck_assert_double_eq_tol(a.hi, 1.8583333333333334, 0.02);
    OK(cedar_bootstrap(part, 12, 10000, 7, 0.95, &b, &err));
    ck_assert(a.lo == b.lo && a.hi == b.hi);                /* the same seed, the same documents */
    for (int i = 0; i < 12; i++) part[i].sum *= 2;
    OK(cedar_bootstrap(part, 12, 10000, 7, 0.95, &b, &err));
    NEAR(b.lo, 2 * a.lo);                                   /* measures are resampled together */
    OK(cedar_bootstrap(part, 1, 10000, 7, 0.95, &b, &err));
    ck_assert_double_nan(b.lo);
    NEAR(b.value, 1.6);
}
END_TEST

/* --- distributions ------------------------------------------------------------------------------------------------ */

/* Five positions over a vocabulary of three; the formulas by hand, their values by tests/audit_reference.py. Logits are
 * the probabilities' logarithms in float, which is what the tolerance is for. */
START_TEST(divergences_by_hand) {
    static const struct {
        double p[3], q[3];
        int32_t token;
        double kl_pq, kl_qp, js, dlogp, margin, ratio;
        bool same;
    } cases[] = {
        /* equal */
        { { 0.5, 0.25, 0.25 }, { 0.5, 0.25, 0.25 }, 1, 0, 0, 0, 0, 0.25, 0, true },
        /* swapped: KL = (1/2 - 1/4) ln 2 both ways; M = (3/8, 3/8, 1/4): JS = 1/2 ln(4/3) + 1/4 ln(2/3) */
        { { 0.5, 0.25, 0.25 }, { 0.25, 0.5, 0.25 }, 0, 0.173286795139986, 0.173286795139986, 0.0424747591988493,
          -0.693147180559945, 0.25, 0.693147180559945, false },
        /* KL = 1/2 ln(5/4) + 1/4 ln(5/4) + 1/4 ln(5/8); reverse: 2/5 ln(4/5) + 1/5 ln(4/5) + 2/5 ln(8/5);
         * M = (0.45, 0.225, 0.325): JS = (0.75 ln(10/9) + 0.25 ln(10/13) + 0.6 ln(8/9) + 0.4 ln(16/13)) / 2 */
        { { 0.5, 0.25, 0.25 }, { 0.4, 0.2, 0.4 }, 2, 0.0498567561742234, 0.0541153209097684, 0.0129076225719824,
          0.470003629245736, 0.25, 0.470003629245736, true },
        /* a tie of Q's first two: the lowest id counts. KL = ln 2 - (1/2) ln 2 ... = 1/2 ln(3/2) + 1/2 ln(3/4) */
        { { 0.5, 0.25, 0.25 }, { 1 / 3.0, 1 / 3.0, 1 / 3.0 }, 1, 0.0588915178281917, 0.0566330122651324,
          0.0143625915641468, 0.287682072451781, 0.25, 0.405465108108164, true },
        /* P decided, Q not: 0.9 ln(9/2) + 0.05 ln(1/8) + 0.05 ln(1/8); 0.2 ln(2/9) + 0.8 ln 8; M = (0.55, 0.225,
         * 0.225) */
        { { 0.9, 0.05, 0.05 }, { 0.2, 0.4, 0.4 }, 0, 1.14572550293066, 1.36273775398861, 0.27539611524877,
          -1.50407739677627, 0.85, 2.07944154167984, false } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float p[3], q[3];
        cedar_divergence d;
        for (int k = 0; k < 3; k++) {
            p[k] = (float)log(cases[i].p[k]);
            q[k] = (float)log(cases[i].q[k]);
        }
        cedar_divergence_make(p, q, 3, cases[i].token, NULL, &d);
        ck_assert_double_eq_tol(d.kl_pq, cases[i].kl_pq, 2e-7);
        ck_assert_double_eq_tol(d.kl_qp, cases[i].kl_qp, 2e-7);
        ck_assert_double_eq_tol(d.js, cases[i].js, 2e-7);
        ck_assert_double_eq_tol(d.logp_q - d.logp_p, cases[i].dlogp, 2e-7);
        ck_assert_double_eq_tol(d.margin_p, cases[i].margin, 2e-7);
        ck_assert_double_eq_tol(d.ratio_max, cases[i].ratio, 2e-7);
        ck_assert_int_eq(d.top1_same, cases[i].same);
        ck_assert_double_eq(d.top5_jaccard, 1);     /* both have all three */
    }
}
END_TEST

START_TEST(top_tokens_by_hand) {
    const float p[] = { 7, 6, 5, 4, 3, 2, 1, 0 }, q[] = { 7, 6, 5, 0, 0, 4, 3, 0 }, tie[] = { 0, 1, 1, 0, 1, 1, 1, 1 };
    cedar_divergence d;
    cedar_divergence_make(p, q, 8, 0, NULL, &d);
    NEAR(d.top5_jaccard, 3 / 7.0);                  /* {0,1,2,3,4} and {0,1,2,5,6} */
    cedar_divergence_make(tie, p, 8, 0, NULL, &d);
    ck_assert_int_eq(d.top1_p, 1);
    ck_assert_int_eq(d.top1_q, 0);
    ck_assert_double_eq(d.margin_p, 0);
    NEAR(d.top5_jaccard, 3 / 7.0);                  /* {1,2,4,5,6} and {0,1,2,3,4} */
    cedar_divergence_make(p, p, 8, 3, NULL, &d);
    ck_assert(d.kl_pq == 0 && d.kl_qp == 0 && d.js == 0 && d.ratio_max == 0 && d.logp_p == d.logp_q);
}
END_TEST

/* --- arms, fronts, documents -------------------------------------------------------------------------------------- */

static cedar_config load_config(const char *name) {
    char path[128];
    cedar_config c;
    snprintf(path, sizeof path, "scenarios/models/%s.json", name);
    OK(cedar_config_load(path, &c, &err));
    return c;
}

START_TEST(arms_are_read) {
    cedar_config c = load_config("tiny");
    cedar_arm a;
    static const struct { const char *text, *control; } known[] = {
        { "exact", "C0" }, { "exact chunk=7", "C1" }, { "exact hits=cold", "C1" }, { "stored", "C1" },
        { "encoder", "" }, { "decoder", "" }, { "both", "" }, { "encoder rows=halo", "C2" }, { "encoder rows=120",
            "C2" },
        { "decoder keep=halo", "C2" }, { "decoder cut=inside_clip keep=halo", "C2" }, { "encoder rows=0", "C3" },
        { "decoder keep=8", "C3" }, { "both rows=halo keep=halo", "C2" }, { "stale", "C4" }, { "zero", "C4" },
        { "floor", "C4" }, { "shift", "C4" }, { "coarse", "C5" }, { "wo_a", "C5" }, { "exact arith=bf16", "C5" } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        OK(cedar_arm_parse(known[i].text, &c, &a, &err));
        ck_assert_msg(strcmp(a.control, known[i].control) == 0, "%s is %s", known[i].text, a.control);
        ck_assert_str_eq(a.label, known[i].text);
    }
    OK(cedar_arm_parse("decoder keep=halo cut=inside_clip", &c, &a, &err));    /* whatever the order */
    ck_assert_uint_eq(a.keep, cedar_halo_decoder(&c, CEDAR_CUT_INSIDE_CLIP));
    OK(cedar_arm_parse("  encoder   rows=8 ", &c, &a, &err));                  /* results are looked up by label */
    ck_assert_str_eq(a.label, "encoder rows=8");
    static const struct { const char *text, *says; } wrong[] = {
        { "", "arms are exact" }, { "decode", "arms are exact" }, { "encoder keep=3", "settings are rows=" },
        { "encoder rows=x", "a number of rows, or halo" }, { "decoder keep=0", "at least one row" },
        { "decoder cut=before", "cut is after" }, { "encoder rows", "key=value" }, { "encoder chunk=0", "at least "
        "one" },
        { "encoder rows=8 rows=9", "there twice" }, { "exact arith=bf16 arith=wide", "there twice" },
        { "exact hits=replay", "encoder or both" }, { "exact arith=f64", "wide, f32 or bf16" } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(cedar_arm_parse(wrong[i].text, &c, &a, &err), CEDAR_E_ARG);
        ck_assert_msg(strstr(err.msg, wrong[i].says) != NULL, "\"%s\": %s", wrong[i].text, err.msg);
    }
}
END_TEST

/* The table of spec/replay.md 3.2 and 7: x_l is the output of layer l - 1; offsets count from H, or from T - 1. */
START_TEST(fronts_are_the_published_ones) {
    cedar_config c = load_config("flash");
    cedar_arm a;
    bool holds;
    static const struct { int32_t layer, from; bool holds; } encoder[] = {
        { 0, -1, true }, { 1, 126, true }, { 7, 888, false }, { 13, 1650, false }, { 19, 2412, false },
        { 39, 4952, false } };
    OK(cedar_arm_parse("encoder", &c, &a, &err));
    for (size_t i = 0; i < sizeof encoder / sizeof *encoder; i++) {
        ck_assert_int_eq(cedar_exact_front(&c, &a, encoder[i].layer, &holds), encoder[i].from);
        ck_assert_int_eq(holds, encoder[i].holds);
    }
    OK(cedar_arm_parse("encoder rows=halo", &c, &a, &err));
    ck_assert_uint_eq(a.rows, 5080);
    ck_assert_int_eq(cedar_exact_front(&c, &a, 39, &holds), 0);
    ck_assert(holds);
    OK(cedar_arm_parse("decoder", &c, &a, &err));
    ck_assert_int_eq(cedar_exact_front(&c, &a, 39, &holds), 2285 + 1);
    ck_assert(holds);
    ck_assert_int_eq(cedar_exact_front(&c, &a, 20, &holds), INT32_MIN);
    OK(cedar_arm_parse("decoder cut=inside_clip", &c, &a, &err));
    ck_assert_int_eq(cedar_exact_front(&c, &a, 39, &holds), 2412 + 1);
    OK(cedar_arm_parse("decoder keep=halo", &c, &a, &err));
    ck_assert_uint_eq(a.keep, 2414);
    ck_assert_int_eq(cedar_exact_front(&c, &a, 39, &holds), 0);     /* row T - 1 is the first that counts */
    OK(cedar_arm_parse("decoder keep=halo cut=inside_clip", &c, &a, &err));
    ck_assert_uint_eq(a.keep, 2541);
    OK(cedar_arm_parse("stored", &c, &a, &err));
    ck_assert_int_eq(cedar_exact_front(&c, &a, 39, &holds), INT32_MIN);
    OK(cedar_arm_parse("stale", &c, &a, &err));
    ck_assert_int_eq(cedar_exact_front(&c, &a, 0, &holds), INT32_MAX);
}
END_TEST

static cedar_audit_opts *options(const char *const *words) {
    cedar_audit_opts *o = malloc(sizeof *o);
    cedar_audit_defaults(o);
    for (; *words; words += 2) OK(cedar_audit_set(o, words[0], words[1], &err));
    return o;
}

START_TEST(documents_are_turns_of_one_text) {
    cedar_config c = load_config("tiny");
    static const char *const words[] = { "docs", "3", "turns", "4", "prompts", "40,50", "suffix", "6,9", "answer", "5",
                                         "hit_back", "0,7", "repeats", "2", "needles", "12,30", NULL };
    cedar_audit_opts *o = options(words);
    cedar_audit_docs *d, *again;
    OK(cedar_audit_docs_make(o, &c, &d, &err));
    ck_assert_uint_eq(d->count, 3);
    ck_assert_uint_eq(d->docs[0].turn_count, 7);
    ck_assert_uint_eq(d->docs[0].turns[0].prompt, 40);
    ck_assert_uint_eq(d->docs[1].turns[0].prompt, 50);
    const cedar_audit_turn *t = d->docs[0].turns;
    ck_assert_uint_eq(t[0].end, 45);
    ck_assert_uint_eq(t[1].hit, 45);                /* document 0, turn 1: hit_back 0, suffix 6 */
    ck_assert_uint_eq(t[1].prompt, 51);
    ck_assert_uint_eq(t[3].hit, 56 - 7);
    ck_assert_uint_eq(t[3].prompt, 56 + 9);
    ck_assert_uint_eq(t[4].hit, t[3].hit);          /* the second branch from the same hit */
    ck_assert(memcmp(t[3].tokens + t[3].hit, t[4].tokens + t[4].hit, 4 * (t[3].end - t[3].hit)) != 0);
    ck_assert(memcmp(t[3].tokens, t[4].tokens, 4 * t[3].hit) == 0);
    const cedar_audit_turn *last = &t[6];
    ck_assert_uint_eq(last->needle_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const cedar_needle *n = &last->needle[i];
        ck_assert_uint_eq(last->hit - n->pos, i ? 30 : 12);
        ck_assert(memcmp(last->tokens + n->answer - 4, last->tokens + n->pos - 4, 8 * sizeof(int32_t)) == 0);
        ck_assert(n->answer + n->tokens <= last->end);
    }
    ck_assert_uint_eq(last->needle[0].answer, last->prompt);
    for (uint32_t i = 0; i < d->count; i++)
        for (uint32_t p = 0; p < d->docs[i].turns[6].end; p++) {
            int32_t token = d->docs[i].turns[6].tokens[p];
            ck_assert(token >= 3 && token < c.vocab && token != c.draft_noise && token != c.engram_pad);
        }
    OK(cedar_audit_docs_make(o, &c, &again, &err));
    ck_assert(memcmp(again->docs[2].turns[6].tokens, d->docs[2].turns[6].tokens, 4 * d->docs[2].turns[6].end) == 0);
    cedar_audit_docs_free(again);
    cedar_audit_docs_free(d);
    static const struct { const char *key, *value, *says; } wrong[] = {
        { "turns", "400", "the context ends at 4096" }, { "hit_back", "500", "leaves nothing" },
        { "needles", "2", "needs two turns" }, { "needles", "12,14", "overlap" }, { "suffix", "", "at least one "
        "value" } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cedar_audit_opts bad = *o;
        OK(cedar_audit_set(&bad, wrong[i].key, wrong[i].value, &err));
        ck_assert_int_eq(cedar_audit_docs_make(&bad, &c, &d, &err), CEDAR_E_ARG);
        ck_assert_msg(strstr(err.msg, wrong[i].says) != NULL, "%s: %s", wrong[i].key, err.msg);
    }
    free(o);
}
END_TEST

/* Documents of a trace are the turns of its root stream; a hit is what a turn has in common with the one before, at
 * most all but its last prompt token. Trace 0460 shrinks its context. */
START_TEST(traces_become_documents) {
    cedar_config c = load_config("tiny");
    static const char *const words[] = { "docs", "5", "turns", "4", "context_max", "230", NULL },
                             *const path[] = { "traces/kv-cache-tester/trace_0460.json" };
    cedar_audit_opts *o = options(words);
    cedar_corpus *corpus;
    cedar_audit_docs *d;
    const cedar_corpus_opts all = { .format = CEDAR_TRACE_AUTO, .strict = true };
    OK(cedar_corpus_load(path, 1, &all, &corpus, &err));
    OK(cedar_audit_docs_traces(o, corpus, &c, 1, 64, &d, &err));
    ck_assert_uint_eq(d->count, 1);
    ck_assert_uint_eq(d->docs[0].turn_count, 4);
    const cedar_stream *s = &corpus->traces[0].streams[0];
    for (uint32_t k = 0; k < 4; k++) {
        const cedar_audit_turn *t = &d->docs[0].turns[k];
        ck_assert_uint_eq(t->prompt, s->turns[k].in_tokens / 64);
        if (k == 0) continue;
        const cedar_audit_turn *before = t - 1;
        ck_assert(memcmp(t->tokens, before->tokens, t->hit * sizeof(int32_t)) == 0);
        bool all_of_it = t->hit == before->end || t->hit == t->prompt - 1;
        ck_assert(all_of_it || t->tokens[t->hit] != before->tokens[t->hit]);
    }
    ck_assert_uint_lt(d->docs[0].turns[3].hit, d->docs[0].turns[2].prompt);    /* the shrunk one */
    cedar_audit_docs_free(d);
    OK(cedar_audit_set(o, "context_max", "100", &err));         /* not even one turn fits */
    ck_assert_int_eq(cedar_audit_docs_traces(o, corpus, &c, 1, 64, &d, &err), CEDAR_E_ARG);
    ck_assert_msg(strstr(err.msg, "fits into 100 tokens") && strstr(err.msg, "or context_max larger"), "%s", err.msg);
    cedar_corpus_free(corpus);
    free(o);
}
END_TEST

/* Documents of a file: turns as written, each hitting all of the one before, up to the context; and what is refused. */
START_TEST(files_become_documents) {
    cedar_config c = load_config("tiny");
    static const char *const words[] = { "docs", "3", "turns", "2", "context_max", "7", NULL };
    cedar_audit_opts *o = options(words);
    cedar_audit_docs *d;
    char path[] = "/tmp/cedar_documents_XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    static const struct { const char *text; cedar_status st; const char *says; } v[] = {
        { "{\"documents\": [{\"name\": \"a\", \"tokens\": [9, 8, 7, 6, 5, 4, 3, 2], \"prompts\": [2, 5, 7], "
          "\"ends\": [3, 6, 8]}, {\"name\": \"long\", \"tokens\": [1, 1, 1, 1, 1, 1, 1, 1], \"prompts\": [7], "
          "\"ends\": [8]}, {\"name\": \"b\", \"tokens\": [511, 0], \"prompts\": [1], \"ends\": [2]}]}", CEDAR_OK, "" },
        { "{\"documents\": [{\"name\": \"a\", \"tokens\": [1, 512], \"prompts\": [1], \"ends\": [2]}]}", CEDAR_E_FORMAT,
          "\"documents\"[0]: \"tokens\"[1] must be a whole number from 0 to 511" },
        { "{\"documents\": [{\"name\": \"a\", \"tokens\": [1, 2], \"prompts\": [1], \"ends\": [3]}]}", CEDAR_E_FORMAT,
          "its end at 3" },
        { "{\"documents\": [{\"name\": \"a\", \"tokens\": [1, 2], \"prompts\": [], \"ends\": [2]}]}", CEDAR_E_FORMAT,
          "\"prompts\" has 0 entries and \"ends\" 1" },
        { "{\"documents\": [{\"name\": \"a\", \"prompts\": [], \"ends\": [2]}]}", CEDAR_E_FORMAT,
          "\"tokens\" must be an array" },
        { "{\"documents\": [{\"name\": \"a\", \"tokens\": [1, 2, 3], \"prompts\": [1.5], \"ends\": [3]}]}",
          CEDAR_E_FORMAT, "\"documents\"[0]: \"prompts\"[0] must be a whole number" },
        { "{\"documents\": [{\"name\": \"a\", \"tokens\": [1, 2], \"prompts\": [1], \"ends\": [null]}]}",
          CEDAR_E_FORMAT, "\"documents\"[0]: \"ends\"[0] must be a whole number" },
        { "{\"documents\": [{\"name\": \"a\", \"tokens\": [1, 2], \"prompts\": [1], \"ends\": [2]}, {\"name\": \"b\", "
          "\"tokens\": [1, 2], \"prompts\": [1], \"ends\": [2]}]}", CEDAR_E_FORMAT,
          "\"documents\"[1] has the tokens of \"documents\"[0]" },
        { "{\"documents\": [3]}", CEDAR_E_FORMAT, "\"documents\"[0] must be an object" },
        { "{\"documents\": []}", CEDAR_E_ARG, "there is no document" },
        { "{}", CEDAR_E_FORMAT, "\"documents\" must be an array" },
    };
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        ck_assert_int_eq(ftruncate(fd, 0), 0);
        ck_assert_int_eq(pwrite(fd, v[i].text, strlen(v[i].text), 0), (ssize_t)strlen(v[i].text));
        cedar_status st = cedar_audit_docs_file(o, path, &c, &d, &err);
        ck_assert_int_eq(st, v[i].st);
        if (st) {
            ck_assert_msg(strstr(err.msg, v[i].says) != NULL, "%s", err.msg);
            continue;
        }
        ck_assert_uint_eq(d->count, 2);
        ck_assert_str_eq(d->docs[1].name, "b");
        ck_assert_uint_eq(d->docs[0].turn_count, 2);
        const cedar_audit_turn *t = &d->docs[0].turns[1];
        ck_assert(t->hit == 3 && t->prompt == 5 && t->end == 6 && t->tokens[5] == 4 && d->longest == 6);
        cedar_audit_docs_free(d);
    }
    close(fd);
    unlink(path);
    free(o);
}
END_TEST

START_TEST(options_are_checked) {
    cedar_audit_opts *o = malloc(sizeof *o);
    cedar_audit_defaults(o);
    static const struct { const char *key, *value, *says; } wrong[] = {
        { "dogs", "1", "unknown option" }, { "docs", "0", "allowed are 1" }, { "docs", "1.5", "whole number" },
        { "docs", "-1", "not negative" }, { "docs", "inf", "not negative" }, { "drafts", "yes", "true or false" },
        { "pattern", "waves", "one of random" }, { "suffix", "3,x", "not negative" }, { "arms", "", "at least one "
        "arm" },
        { "margin_kl", "1e9", "allowed are" } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(cedar_audit_set(o, wrong[i].key, wrong[i].value, &err), CEDAR_E_ARG);
        ck_assert_msg(strstr(err.msg, wrong[i].says) != NULL, "%s: %s", wrong[i].key, err.msg);
    }
    size_t count;
    const cedar_audit_option *k = cedar_audit_table(&count);
    for (size_t i = 0; i < count; i++) {            /* every default reads back as itself */
        char text[4096];
        cedar_audit_get(o, &k[i], text, sizeof text);
        ck_assert_str_eq(text, k[i].value_default);
        OK(cedar_audit_set(o, k[i].key, text, &err));
    }
    free(o);
}
END_TEST

/* Options that are right one by one and too much together; documents end where the model's positions do. */
START_TEST(documents_have_limits) {
    static const char *const many[] = { "docs", "100000", "turns", "10000", "repeats", "1000", NULL };
    static const char *const few[] = { "docs", "1", "turns", "1", "prompts", "4090", "answer", "7", "context_max",
                                       "8000", NULL };
    cedar_config c = load_config("tiny");
    cedar_audit_docs *d = NULL;
    cedar_audit_opts *o = options(many);
    ck_assert_int_eq(cedar_audit_docs_make(o, &c, &d, &err), CEDAR_E_ARG);
    ck_assert_msg(strstr(err.msg, "make 999900100000 turns") != NULL, "%s", err.msg);
    free(o);
    o = options(few);
    ck_assert_int_eq(c.positions_max, 4096);
    ck_assert_int_eq(cedar_audit_docs_make(o, &c, &d, &err), CEDAR_E_ARG);
    ck_assert_msg(strstr(err.msg, "the context ends at 4096") != NULL, "%s", err.msg);
    free(o);
}
END_TEST

/* docs/AUDIT.md has a row for every option, with its default and meaning. */
START_TEST(options_are_documented) {
    char *doc = calloc(1, 1 << 18), row[512];
    FILE *f = fopen("docs/AUDIT.md", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert(fread(doc, 1, (1 << 18) - 1, f) > 0);
    fclose(f);
    size_t count;
    const cedar_audit_option *k = cedar_audit_table(&count);
    for (size_t i = 0; i < count; i++) {
        snprintf(row, sizeof row, "\n| `%s` | ", k[i].key);
        const char *at = strstr(doc, row);
        ck_assert_msg(at != NULL, "%s is not in docs/AUDIT.md", k[i].key);
        snprintf(row, sizeof row, " | `%s` | %s |\n", *k[i].value_default ? k[i].value_default : "\"\"", k[i].help);
        const char *rest = strstr(at, row), *line = strchr(at + 1, '\n');
        ck_assert_msg(rest && rest < line, "%s: docs/AUDIT.md has another default or meaning", k[i].key);
    }
    free(doc);
}
END_TEST

/* --- whole audits ------------------------------------------------------------------------------------------------- */

enum { ARMS_MAX = 32, LAYERS_MAX_HERE = 16, OFFSETS = 600, OFFSET_0 = 260 };

/* What an observer saw, by arm. */
typedef struct seen {
    uint32_t rows[CEDAR_AUDIT_KIND_COUNT];
    double kl[ARMS_MAX][OFFSETS];                       /* largest by offset + OFFSET_0 */
    double stream[ARMS_MAX][LAYERS_MAX_HERE][OFFSETS];
    double window[ARMS_MAX][LAYERS_MAX_HERE][OFFSETS];
    bool any[ARMS_MAX][OFFSETS], engram;
    double global[ARMS_MAX][LAYERS_MAX_HERE][OFFSETS], latent[ARMS_MAX][LAYERS_MAX_HERE][OFFSETS];
    uint32_t depth[ARMS_MAX], drafts[ARMS_MAX], accepted[ARMS_MAX];
    int32_t front[ARMS_MAX][LAYERS_MAX_HERE];
    bool holds[ARMS_MAX][LAYERS_MAX_HERE];
    uint32_t needles[ARMS_MAX], needles_same[ARMS_MAX];
    int fail_after;                                     /* rows until the observer fails; 0: never */
    cedar_audit_kind stop_at;                           /* the first row of this kind asks for the end ... */
    int stop;                                           /* ... here */
} seen;

static void at_most(double *x, double v) {
    if (v > *x) *x = v;
}

static cedar_status watch(void *self, cedar_audit_kind kind, const void *row, cedar_err *e) {
    seen *s = self;
    s->rows[kind]++;
    if (s->stop_at && kind == s->stop_at) s->stop = 1;
    if (s->fail_after && --s->fail_after == 0) return cedar_fail(e, CEDAR_E_DB, "the disk is full");
    if (kind == CEDAR_AUDIT_POSITION) {
        const cedar_audit_position_row *p = row;
        int at = p->offset + OFFSET_0;
        ck_assert(at >= 0 && at < OFFSETS && p->arm_id < ARMS_MAX);
        at_most(&s->kl[p->arm_id][at], p->kl_pq);
        s->any[p->arm_id][at] = true;
        ck_assert(p->kl_pq >= 0 && p->js >= 0 && p->js <= M_LN2 && p->top1_prob_p > 0 && p->top1_prob_p <= 1);
        ck_assert((p->kl_pq == 0) == (p->kl_qp == 0));
    } else if (kind == CEDAR_AUDIT_LAYER) {
        const cedar_audit_layer_row *l = row;
        int at = l->offset + OFFSET_0;
        ck_assert(at >= 0 && at < OFFSETS && l->layer < LAYERS_MAX_HERE);
        at_most(&s->stream[l->arm_id][l->layer][at], l->stream_rel);
        at_most(&s->window[l->arm_id][l->layer][at], l->window_differ);
        s->engram |= l->engram_differs;
        ck_assert(l->stream_rel == 0 ? l->vector_rel == 0 && l->cosine == 1 && !l->router_flip : l->cosine < 1 + 1e-12);
    } else if (kind == CEDAR_AUDIT_GLOBAL) {
        const cedar_audit_global_row *g = row;
        int at = g->offset + OFFSET_0;
        ck_assert(at >= 0 && at < OFFSETS && g->layer < LAYERS_MAX_HERE);
        at_most(&s->global[g->arm_id][g->layer][at], g->kv_differ + g->index_differ);
        if (!isnan(g->latent_rel)) at_most(&s->latent[g->arm_id][g->layer][at], g->latent_rel);
    } else if (kind == CEDAR_AUDIT_TURN) {
        const cedar_audit_turn_row *t = row;
        if (t->provenance_depth > s->depth[t->arm_id]) s->depth[t->arm_id] = t->provenance_depth;
    } else if (kind == CEDAR_AUDIT_DRAFT) {
        const cedar_audit_draft_row *d = row;
        s->drafts[d->arm_id] += d->drafted;
        s->accepted[d->arm_id] += d->accepted;
    } else if (kind == CEDAR_AUDIT_FRONT) {
        const cedar_audit_front_row *f = row;
        s->front[f->arm_id][f->layer] = f->from_offset;
        s->holds[f->arm_id][f->layer] = f->holds;
    } else if (kind == CEDAR_AUDIT_NEEDLE) {
        const cedar_audit_needle_row *n = row;
        s->needles[n->arm_id]++;
        s->needles_same[n->arm_id] += n->logp_p == n->logp_q;
    }
    return CEDAR_OK;
}

typedef struct bench {
    cedar_model *model;
    seen *s;
    cedar_audit_result *r;
} bench;

static bench bench_new(const char *golden) {
    bench b = { .s = calloc(1, sizeof *b.s), .r = calloc(1, sizeof *b.r) };
    OK(cedar_model_open(golden, &b.model, &err));
    return b;
}

static void bench_free(bench *b) {
    cedar_model_close(b->model);
    free(b->s);
    free(b->r);
}

static cedar_status play(bench *b, const cedar_audit_opts *o, const volatile int *stop) {
    cedar_audit_docs *d = NULL;
    int fail_after = b->s->fail_after;
    cedar_audit_kind stop_at = b->s->stop_at;
    memset(b->s, 0, sizeof *b->s);
    b->s->fail_after = fail_after;
    b->s->stop_at = stop_at;
    cedar_status st = cedar_audit_docs_make(o, cedar_model_config(b->model), &d, &err);
    const cedar_audit_observer observer = { b->s, watch };
    const cedar_audit_host host = { .observer = &observer, .model = b->model, .model_hash = "", .model_origin = "",
                                    .docs = d, .documents = "", .stop = stop };
    if (!st) st = cedar_audit(o, 1, &host, b->r, &err);
    cedar_audit_docs_free(d);
    return st;
}

static const cedar_audit_arm_result *arm(const bench *b, const char *label) {
    for (uint32_t i = 0; i < b->r->arm_count; i++)
        if (strcmp(b->r->arms[i].label, label) == 0) return &b->r->arms[i];
    ck_abort_msg("no arm %s", label);
    return NULL;
}

static const char *const models[] = { "tests/golden/tiny-s1", "tests/golden/tiny2-s1" };

/* C0 to C5 of spec/replay.md 4.4 on both tiny models. */
START_TEST(controls_hold) {
    if (brief_skips("controls_hold", _i)) return;
    static const char *const words[] = {
        "backend", "cpu", "arith", "wide", "threads", "1", "docs", "4", "turns", "4", "prompts", "110,140", "suffix",
        "30,9,50", "answer", "20", "greedy_tokens", "12", "drafts", "true", "needles", "8,60", "layers", "1,3", "arms",
        "exact,exact hits=cold chunk=7,exact chunk=1,stored,encoder rows=halo,decoder keep=halo,"
        "decoder keep=halo cut=inside,decoder keep=halo cut=inside_clip,both rows=halo keep=halo,"
        "encoder,decoder,both,encoder rows=0,encoder rows=4,encoder rows=8,encoder rows=48,encoder rows=96,"
        "stale,zero,floor,shift,coarse,wo_a,exact arith=f32", NULL };
    bench b = bench_new(models[_i]);
    cedar_audit_opts *o = options(words);
    OK(play(&b, o, NULL));
    /* C0, C1 and C2: not one bit of anything */
    for (uint32_t i = 0; i < 9; i++) {
        const cedar_audit_arm_result *a = &b.r->arms[i];
        ck_assert_msg(a->positions > 150 && a->docs == 4, "%s", a->label);
        ck_assert_msg(a->kl_max == 0 && a->dlogp_mean == 0 && a->top1_rate == 1, "%s: KL %g", a->label, a->kl_max);
        ck_assert_msg(a->global_differ == 0 && a->layer_max == 0 && a->global_rows > 0, "%s: rows", a->label);
        ck_assert_msg(a->needle_dlogp == 0 && a->greedy_mean == 12, "%s: greedy %g", a->label, a->greedy_mean);
        ck_assert_str_eq(a->verdict, "zero");
        ck_assert_uint_eq(b.s->accepted[i + 1], b.s->accepted[0]);
        ck_assert_uint_eq(b.s->drafts[i + 1], b.s->drafts[0]);
        ck_assert_uint_eq(b.s->needles_same[i + 1], 8);     /* two in each of four documents */
    }
    /* the arms themselves see something; decoder replay never touches the cache */
    ck_assert(arm(&b, "encoder")->kl_lo > 0 && arm(&b, "encoder")->global_differ > 0);
    ck_assert(arm(&b, "decoder")->kl_lo > 0 && arm(&b, "decoder")->global_differ == 0);
    ck_assert(arm(&b, "both")->kl_lo > 0);
    /* C3: falls with R and reaches 0 */
    static const char *const lengths[] = { "encoder rows=0", "encoder rows=4", "encoder rows=8", "encoder",
                                           "encoder rows=48", "encoder rows=96", "encoder rows=halo" };
    for (size_t i = 1; i < sizeof lengths / sizeof *lengths; i++)
        ck_assert_msg(arm(&b, lengths[i])->kl_mean < arm(&b, lengths[i - 1])->kl_mean, "%s: %g after %g", lengths[i],
                      arm(&b, lengths[i])->kl_mean, arm(&b, lengths[i - 1])->kl_mean);
    /* C4: seen, and what damages the cache itself is worse than replay without the fault */
    static const char *const faults[] = { "stale", "zero", "floor", "shift" };
    for (size_t i = 0; i < 4; i++) {
        ck_assert_msg(arm(&b, faults[i])->kl_lo > 1e-3, "%s: %g", faults[i], arm(&b, faults[i])->kl_lo);
        ck_assert(arm(&b, faults[i])->kl_mean != arm(&b, "encoder")->kl_mean);
        ck_assert_int_eq(arm(&b, faults[i])->adopted_changed > 0, i == 2);     /* only one overwrites cached rows */
    }
    ck_assert(arm(&b, "floor")->kl_lo > arm(&b, "encoder")->kl_hi);
    ck_assert(arm(&b, "shift")->kl_lo > arm(&b, "encoder")->kl_hi);
    for (size_t i = 0; i < 4; i++)
        ck_assert_double_eq_tol(arm(&b, faults[i])->fault_kl, arm(&b, faults[i])->kl_mean - arm(&b, "encoder")->kl_mean,
                                1e-12);
    ck_assert(arm(&b, "floor")->fault_lo > 0 && arm(&b, "shift")->fault_lo > 0 && isnan(arm(&b, "encoder")->fault_kl));
    /* C5: yardsticks are there */
    ck_assert(arm(&b, "coarse")->kl_lo > 0 && arm(&b, "wo_a")->kl_lo > 0);
    ck_assert(arm(&b, "exact arith=f32")->kl_mean < arm(&b, "wo_a")->kl_mean);
    /* I1, I8 and what else no arm but a fault may do */
    for (uint32_t i = 0; i < b.r->arm_count; i++)
        ck_assert(b.r->arms[i].adopted_changed == 0 || strcmp(b.r->arms[i].label, "floor") == 0);
    ck_assert(!b.s->engram);
    double latent = 0;
    for (int at = 0; at < OFFSETS; at++) at_most(&latent, b.s->latent[10][3][at]);
    ck_assert(latent > 0 && latent < 2);        /* contaminated rows differ before quantisation too */
    ck_assert_uint_eq(b.s->depth[10], 2);       /* encoder: the third hit adopts what two replays have made */
    ck_assert_uint_eq(b.s->depth[11], 0);       /* decoder */
    free(o);
    bench_free(&b);
}
END_TEST

/* spec/replay.md 3.2, recomputed for both tiny models and asserted position by position: exact from the front on, and
 * not exact just before it in some document. Encoder arms that replay enough for their new global rows to be exact have
 * fronts that hold in every layer; with R = W only the layers below the second source have. */
START_TEST(fronts_are_where_theory_puts_them) {
    if (sanitized_skips("fronts_are_where_theory_puts_them", 1) ||
        brief_skips("fronts_are_where_theory_puts_them", _i))
        return;
    static const char *const words[] = {
        "backend", "cpu", "arith", "wide", "threads", "1", "docs", "10", "turns", "2", "prompts", "100,101", "suffix",
        "150", "answer", "90", "score_rows", "64", NULL };
    bench b = bench_new(models[_i]);
    cedar_audit_opts *o = options(words);
    const cedar_config *c = cedar_model_config(b.model);
    char arms[256], layers[64];
    uint32_t w = (uint32_t)c->window, clean = (w - 1) * (uint32_t)c->cut;
    snprintf(arms, sizeof arms, "encoder,encoder rows=%u,encoder rows=%u,decoder,decoder cut=inside,"
             "decoder cut=inside_clip,decoder keep=%u", clean, clean + 7, w + 5);
    snprintf(layers, sizeof layers, "0,1,2,3,4,5,6,7%s", c->layers > 8 ? ",8,9" : "");
    OK(cedar_audit_set(o, "arms", arms, &err));
    OK(cedar_audit_set(o, "layers", layers, &err));
    OK(play(&b, o, NULL));
    uint32_t zero = 0, fronts = 0;
    for (uint32_t a = 1; a <= b.r->arm_count; a++) {
        for (int32_t l = 0; l < c->layers; l++) {
            int32_t front = b.s->front[a][l];
            bool decoder = a >= 4;
            for (int at = 0; at < OFFSETS; at++) {
                bool exact = decoder && !front ? l <= c->cut : at - OFFSET_0 >= front && b.s->holds[a][l];
                if (!b.s->any[a][at] || !exact) continue;
                ck_assert_msg(b.s->stream[a][l][at] == 0, "%s layer %d offset %d: %g", b.r->arms[a - 1].label, l,
                              at - OFFSET_0, b.s->stream[a][l][at]);
                zero++;
                if (l == c->layers - 1) ck_assert(b.s->kl[a][at] == 0);
                if (l + 1 < c->layers) ck_assert(b.s->window[a][l + 1][at] == 0);
            }
            /* One key out of W is missing just before a front, and it is itself only as wrong as its own key just
             * before the front below: behind more than three clipped layers FP8 rounding can hide it all. */
            int just = front - 1 + OFFSET_0;
            bool few = decoder || a == 1;
            if (!few || !b.s->holds[a][l] || just < OFFSET_0 || !b.s->any[a][just] || (decoder && !front)) continue;
            ck_assert_msg(b.s->stream[a][l][just] > 0, "%s layer %d is exact before %d", b.r->arms[a - 1].label, l,
                front);
            fronts++;
            if (l == c->layers - 1) ck_assert(b.s->kl[a][just] > 0);
        }
        /* a source's new rows are exact from where its input is: the output of the layer before */
        for (int32_t k = 0; k < c->kv_source_count; k++) {
            int32_t source = c->kv_sources[k];
            for (int at = OFFSET_0; at < OFFSETS; at++) {
                bool exact = a >= 4 || (b.s->holds[a][source - 1] && at - OFFSET_0 >= b.s->front[a][source - 1] +
                                                                                       c->ratio[source] - 1);
                if (exact) ck_assert(b.s->global[a][source][at] == 0 && b.s->latent[a][source][at] == 0);
            }
        }
    }
    ck_assert_uint_gt(zero, 3000);
    ck_assert_uint_eq(fronts, 11);
    free(o);
    bench_free(&b);
}
END_TEST

/* The numbers do not depend on threads, blocks, pages or the order of arms; and a seed is another audit. */
START_TEST(results_repeat) {
    static const char *const words[] = { "backend", "cpu", "docs", "2", "turns", "3", "prompts", "70", "suffix", "20",
                                         "answer", "12", "greedy_tokens", "6", "drafts", "true", "needles", "9", NULL };
    static const struct { const char *key, *value; bool same; } changes[] = {
        { "label", "x", true }, { "threads", "3", true }, { "score_rows", "5", true }, { "page_tokens", "4", true },
        { "seed", "43", false } };
    bench b = bench_new(models[0]);
    cedar_audit_opts *o = options(words);
    OK(play(&b, o, NULL));
    uint64_t hash = b.r->result_hash;
    double kl = arm(&b, "both")->kl_mean;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        cedar_audit_opts other = *o;
        OK(cedar_audit_set(&other, changes[i].key, changes[i].value, &err));
        OK(play(&b, &other, NULL));
        ck_assert_msg((arm(&b, "both")->kl_mean == kl) == changes[i].same, "%s changes the result", changes[i].key);
        /* blocks and pages only show in the order of steps, which the hash counts */
        if (i < 2) ck_assert(b.r->result_hash == hash);
    }
    free(o);
    bench_free(&b);
}
END_TEST

/* Comparing and reporting may add 15 % to the forward passes. */
START_TEST(auditing_is_cheap) {
    if (sanitized_skips("auditing_is_cheap", 1)) return;
    static const char *const words[] = { "backend", "cpu", "docs", "4", "turns", "3", "prompts", "120", "suffix", "40",
                                         "answer", "30", NULL };
    bench b = bench_new(models[0]);
    cedar_audit_opts *o = options(words);
    OK(play(&b, o, NULL));
    ck_assert(b.r->wall_s >= b.r->forward_s && b.r->forward_s > b.r->exact_s && b.r->exact_s > 0);
    ck_assert_msg(b.r->overhead <= 0.15, "comparing added %.1f %%", 100 * b.r->overhead);
    free(o);
    bench_free(&b);
}
END_TEST

START_TEST(audits_end_when_they_must) {
    static const char *const words[] = { "backend", "cpu", "docs", "2", "turns", "2", "prompts", "40", "answer", "8",
                                         "arms", "encoder,both", NULL };
    bench b = bench_new(models[0]);
    cedar_audit_opts *o = options(words);
    int stop = 1;
    ck_assert_int_eq(play(&b, o, &stop), CEDAR_E_INTERRUPT);
    ck_assert_str_eq(b.r->status, "interrupted");
    ck_assert_uint_eq(b.s->rows[CEDAR_AUDIT_END], 1);
    for (int after = 1; after < 60; after += 7) {           /* whatever row cannot be stored, the audit says why */
        b.s->fail_after = after;
        ck_assert_int_eq(play(&b, o, NULL), CEDAR_E_DB);
        ck_assert_ptr_nonnull(strstr(err.msg, "the disk is full"));
    }
    b.s->fail_after = 0;
    static const struct { const char *key, *value, *says; cedar_status st; } wrong[] = {
        { "arms", "encoder rows=1,enc", "arms are exact", CEDAR_E_ARG },
        { "arms", "encoder rows=8,both,encoder  rows=8", "is there twice", CEDAR_E_ARG },
        { "greedy_tokens", "4096", "the model's 4096 positions", CEDAR_E_ARG },
        { "layers", "8", "none of the model's layers 0 to 7", CEDAR_E_ARG },
        { "backend", "cuda", "not in this build", CEDAR_E_UNSUPPORTED } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cedar_audit_opts bad = *o;
        OK(cedar_audit_set(&bad, wrong[i].key, wrong[i].value, &err));
        cedar_status st = play(&b, &bad, NULL);
        if (st == CEDAR_OK && strcmp(wrong[i].key, "backend") == 0) continue;   /* a build with a GPU */
        ck_assert_msg(st == wrong[i].st || st == CEDAR_E_CUDA || st == CEDAR_E_ARG, "%s: %s", wrong[i].key, err.msg);
        if (st == wrong[i].st) ck_assert_msg(strstr(err.msg, wrong[i].says) != NULL, "%s", err.msg);
    }
    free(o);
    bench_free(&b);
}
END_TEST

/* Wherever the user's wish comes: no further draft, turn or statistic. */
START_TEST(audits_stop_at_once) {
    static const char *const words[] = { "backend", "cpu", "docs", "2", "turns", "2", "prompts", "20", "suffix", "4",
                                         "answer", "4", "arms", "encoder,stored", "greedy_tokens", "60",
                                         "greedy_turns", "all", "drafts", "true", "resamples", "10", NULL };
    static const cedar_audit_kind kinds[] = { CEDAR_AUDIT_ARM, CEDAR_AUDIT_DRAFT, CEDAR_AUDIT_GREEDY,
                                              CEDAR_AUDIT_STAT };
    bench b = bench_new(models[0]);
    cedar_audit_opts *o = options(words);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        b.s->stop_at = kinds[i];
        ck_assert_int_eq(play(&b, o, &b.s->stop), CEDAR_E_INTERRUPT);
        ck_assert_str_eq(b.r->status, "interrupted");
        ck_assert_uint_eq(b.s->rows[kinds[i]], kinds[i] == CEDAR_AUDIT_ARM ? 2 : 1);
        ck_assert_uint_eq(b.s->rows[CEDAR_AUDIT_END], 1);
    }
    free(o);
    bench_free(&b);
}
END_TEST

/* Every allocation may fail: the audit ends with a sentence and leaks nothing. */
START_TEST(audits_survive_any_failed_allocation) {
    if (brief_skips("audits_survive_any_failed_allocation", 1)) return;
    static const char *const words[] = { "backend", "cpu", "threads", "1", "docs", "2", "turns", "2", "prompts", "20",
                                         "suffix", "4", "answer", "4", "arms", "encoder,stored,shift,wo_a", "layers",
                                         "1", "greedy_tokens", "3", "drafts", "true", "resamples", "10", NULL };
    bench b = bench_new(models[0]);
    cedar_audit_opts *o = options(words);
    int64_t before = cedar_mem_live(), n = 0;
    cedar_status st;
    do {
        cedar_mem_fail_at(++n);
        st = play(&b, o, NULL);
        cedar_mem_fail_at(0);
        ck_assert_int_eq(cedar_mem_live(), before);
        ck_assert_msg(st == CEDAR_OK || st == CEDAR_E_OOM, "allocation %lld: %s", (long long)n, err.msg);
    } while (st);
    ck_assert_int_gt(n, 100);
    free(o);
    bench_free(&b);
}
END_TEST

/* Repeated hits adopt the same rows, so the arms' branches agree with the exact arm's branches or not by themselves;
 * hits that end early and odd ones are hits too. */
START_TEST(branches_and_early_hits) {
    static const char *const words[] = {
        "backend", "cpu", "arith", "wide", "docs", "2", "turns", "3", "prompts", "71", "suffix", "13,20", "answer", "9",
        "repeats", "3", "hit_back", "4,1", "arms", "exact,exact hits=cold,stored,encoder rows=halo,encoder,decoder",
        NULL };
    bench b = bench_new(models[0]);
    cedar_audit_opts *o = options(words);
    OK(play(&b, o, NULL));
    ck_assert_uint_eq(b.s->rows[CEDAR_AUDIT_TURN], 6 * 2 * 7);
    for (int i = 0; i < 4; i++) ck_assert_msg(b.r->arms[i].kl_max == 0, "%s", b.r->arms[i].label);
    ck_assert(arm(&b, "encoder")->kl_max > 0 && arm(&b, "encoder")->adopted_changed == 0);
    ck_assert(arm(&b, "decoder")->kl_max > 0);
    free(o);
    bench_free(&b);
}
END_TEST

/* --- the audit's numbers against the engine's own, asked for one by one
 * ---------------------------------------------- */

typedef struct taken {
    double h[2][1024], pre[2][8];       /* exact arm, decoder arm: streams of one layer and position */
    int32_t router[2][8];
    uint8_t window[2][256];
    int who;
    int32_t layer;
    uint32_t pos;
} taken;

static void take(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                 uint32_t width) {
    taken *t = self;
    (void)seq;
    if (layer != t->layer || pos != t->pos) return;
    if (kind == CEDAR_TAP_H) memcpy(t->h[t->who], data, width * sizeof(double));
    if (kind == CEDAR_TAP_PRE) memcpy(t->pre[t->who], data, width * sizeof(double));
    if (kind == CEDAR_TAP_ROUTER_IDS) memcpy(t->router[t->who], data, width * sizeof(int32_t));
    if (kind == CEDAR_TAP_WINDOW) memcpy(t->window[t->who], data, width);
}

typedef struct rows_of {
    cedar_audit_layer_row layer;
    cedar_audit_draft_row draft[128];
    double logp[2][256];                /* by position of the last turn: P, Q */
    cedar_audit_needle_row needle[4];
    uint32_t draft_count, needle_count, doc, pos;
    int32_t diverged;
} rows_of;

static cedar_status collect(void *self, cedar_audit_kind kind, const void *row, cedar_err *e) {
    rows_of *r = self;
    (void)e;
    const cedar_audit_layer_row *l = row;
    const cedar_audit_draft_row *d = row;
    const cedar_audit_greedy_row *g = row;
    if (kind == CEDAR_AUDIT_LAYER && l->doc == r->doc && l->pos == r->pos) r->layer = *l;
    if (kind == CEDAR_AUDIT_DRAFT && d->doc == r->doc && d->arm_id == 0) r->draft[r->draft_count++] = *d;
    if (kind == CEDAR_AUDIT_GREEDY && g->doc == r->doc) r->diverged = g->diverged_at;
    if (kind == CEDAR_AUDIT_POSITION) {
        const cedar_audit_position_row *p = row;
        r->logp[0][p->pos] = p->logp_p;
        r->logp[1][p->pos] = p->logp_q;
    }
    if (kind == CEDAR_AUDIT_NEEDLE) r->needle[r->needle_count++] = *(const cedar_audit_needle_row *)row;
    return CEDAR_OK;
}

/* Feeds tokens [pos, end) as one step and returns the last row's logits. */
static void feed(cedar_engine *e, int32_t seq, const int32_t *tokens, uint32_t end, const cedar_replay_rules *rules,
                 float *logits) {
    cedar_plan_entry entry;
    uint32_t pos = cedar_seq_pos(e, seq);
    OK(cedar_seq_reserve(e, seq, end, &err));
    cedar_plan_rows(rules, CEDAR_ROWS_PREFILL, pos, end - pos, cedar_seq_bounds(e, seq), cedar_seq_write_floor(e, seq),
                    false, 1, &entry);
    entry.seq = seq;
    entry.tokens = tokens + pos;
    cedar_step_plan plan = { .cut = rules->cut, .entry_count = 1, .entries = &entry };
    cedar_plan_total(&plan);
    cedar_step_out out = { .logits = logits };
    OK(cedar_engine_step(e, &plan, &out, &err));
}

static int32_t best(const float *x, int32_t n) {
    int32_t top = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[top]) top = i;
    return top;
}

START_TEST(numbers_agree_with_the_engine) {
    enum { T = 60, GREEDY = 100 };
    /* of the patterns and documents, one whose drafts are accepted at times */
    static const char *const words[] = { "backend", "cpu", "docs", "2", "pattern", "entity", "turns", "1", "prompts",
                                         "60", "answer", "4", "arms", "decoder", "layers", "6", "greedy_tokens", "100",
                                         "drafts", "true", NULL };
    bench b = bench_new(models[0]);
    const cedar_config *c = cedar_model_config(b.model);
    cedar_audit_opts *o = options(words);
    cedar_audit_docs *d;
    static rows_of r;
    static taken t;
    r.pos = T + 2;
    r.doc = 1;
    OK(cedar_audit_docs_make(o, c, &d, &err));
    const cedar_audit_observer observer = { &r, collect };
    const cedar_audit_host host = { .observer = &observer, .model = b.model, .model_hash = "", .model_origin = "",
                                    .docs = d, .documents = "" };
    OK(cedar_audit(o, 1, &host, b.r, &err));

    cedar_engine_opts eo = cedar_engine_defaults(c);
    eo.arith = CEDAR_F32;
    eo.context_tokens = eo.step_rows = 192;
    eo.seq_count = 4;
    eo.page_count = 30;
    cedar_engine *e;
    OK(cedar_engine_open(b.model, &eo, &e, &err));
    cedar_replay_rules exact = { .window = 16, .encoder_rows = 16, .decoder_rows = 16 }, decoder = exact;
    decoder.decoder = true;
    float *logits = calloc((size_t)c->vocab, sizeof *logits);
    int32_t seq[2], text[256], ids[8];
    const int32_t *tokens = d->docs[1].turns[0].tokens;
    t.layer = 6;
    t.pos = r.pos;
    cedar_engine_tap(e, take, &t);
    for (t.who = 0; t.who < 2; t.who++) {
        OK(cedar_seq_open(e, &seq[t.who], &err));
        feed(e, seq[t.who], tokens, T, t.who ? &decoder : &exact, logits);
        feed(e, seq[t.who], tokens, T + 4, &exact, logits);
    }
    cedar_engine_tap(e, NULL, NULL);
    double difference = 0, size = 0, dot = 0, pp = 0, qq = 0, vector = 0;
    for (int32_t k = 0; k < c->hc * c->hidden; k++) {
        difference += pow(t.h[0][k] - t.h[1][k], 2);
        size += pow(t.h[0][k], 2);
    }
    for (int32_t k = 0; k < c->hidden; k++) {
        double v[2] = { 0 };
        for (int w = 0; w < 2; w++)
            for (int32_t s = 0; s < c->hc; s++) v[w] += t.pre[w][s] * t.h[w][s * c->hidden + k];
        dot += v[0] * v[1];
        pp += v[0] * v[0];
        qq += v[1] * v[1];
        vector += pow(v[0] - v[1], 2);
    }
    ck_assert(difference > 0);
    NEAR(r.layer.stream_rel, sqrt(difference / size));
    NEAR(r.layer.vector_rel, sqrt(vector / pp));
    NEAR(r.layer.cosine, dot / sqrt(pp * qq));
    ck_assert_int_eq(r.layer.router_flip, memcmp(t.router[0], t.router[1], sizeof(int32_t) * 2) != 0);
    int differ = 0, bytes = c->head_dim + c->head_dim / 32;
    for (int k = 0; k < bytes; k++) differ += t.window[0][k] != t.window[1][k];
    NEAR(r.layer.window_differ, (double)differ / bytes);

    /* the exact arm's greedy tokens one by one, and drafts behind each cycle's last accepted one */
    int32_t lone;
    OK(cedar_seq_open(e, &lone, &err));
    memcpy(text, tokens, T * sizeof *text);
    feed(e, lone, text, T, &exact, logits);
    for (uint32_t i = 0; i < GREEDY; i++) {
        text[T + i] = best(logits, c->vocab);
        if (i + 1 < GREEDY) feed(e, lone, text, T + i + 1, &exact, logits);
    }
    cedar_seq_close(e, lone);
    OK(cedar_seq_open(e, &lone, &err));
    feed(e, lone, text, T, &exact, logits);
    uint32_t at = 0, cycle = 0, accepted = 0;
    for (; at + 1 < GREEDY; cycle++) {
        cedar_draft_item item = { .seq = lone, .token = text[T + at], .ids = ids };
        OK(cedar_engine_draft(e, &item, 1, &err));
        uint32_t good = 0, left = GREEDY - 1 - at;
        uint32_t drafted = (uint32_t)c->draft_block < left ? (uint32_t)c->draft_block : left;
        while (good < drafted && ids[good] == text[T + at + 1 + good]) good++;
        ck_assert_uint_lt(cycle, r.draft_count);
        ck_assert_uint_eq(r.draft[cycle].generated, at);
        ck_assert_uint_eq(r.draft[cycle].drafted, drafted);
        ck_assert_uint_eq(r.draft[cycle].accepted, good);
        accepted += good;
        uint32_t take_rows = 1 + good < left ? 1 + good : left;
        feed(e, lone, text, T + at + take_rows, &exact, logits);
        at += take_rows;
    }
    ck_assert_uint_eq(cycle, r.draft_count);
    ck_assert_uint_gt(accepted, 0);

    /* the decoder arm decodes by itself: it leaves the exact arm's tokens where the audit says */
    cedar_seq_close(e, lone);
    OK(cedar_seq_open(e, &lone, &err));
    feed(e, lone, text, T, &decoder, logits);
    int32_t left_at = -1, own[256];
    memcpy(own, text, sizeof own);
    for (uint32_t i = 0; i < GREEDY && left_at < 0; i++) {
        own[T + i] = best(logits, c->vocab);
        if (own[T + i] != text[T + i]) left_at = (int32_t)i;
        else if (i + 1 < GREEDY) feed(e, lone, own, T + i + 1, &exact, logits);
    }
    ck_assert_int_eq(r.diverged, left_at);
    OK(cedar_engine_close(e, &err));
    cedar_audit_docs_free(d);
    free(logits);
    free(o);
    bench_free(&b);
}
END_TEST

/* A needle's numbers are those of the positions that choose its tokens. */
START_TEST(needles_sum_their_positions) {
    static const char *const words[] = { "backend", "cpu", "docs", "1", "turns", "2", "prompts", "60", "suffix", "12",
                                         "answer", "10", "needles", "9,30", "arms", "encoder", NULL };
    bench b = bench_new(models[0]);
    cedar_audit_opts *o = options(words);
    cedar_audit_docs *d;
    static rows_of r;
    OK(cedar_audit_docs_make(o, cedar_model_config(b.model), &d, &err));
    const cedar_audit_observer observer = { &r, collect };
    const cedar_audit_host host = { .observer = &observer, .model = b.model, .model_hash = "", .model_origin = "",
                                    .docs = d, .documents = "" };
    OK(cedar_audit(o, 1, &host, b.r, &err));
    ck_assert_uint_eq(r.needle_count, 2);
    ck_assert_str_eq(r.needle[0].place, "replayed");            /* 9 before H, W = 16 */
    ck_assert_str_eq(r.needle[1].place, "window");
    for (uint32_t i = 0; i < 2; i++) {
        const cedar_needle *n = &d->docs[0].turns[1].needle[i];
        double p = 0, q = 0;
        for (uint32_t k = 0; k < n->tokens; k++) {
            p += r.logp[0][n->answer - 1 + k];
            q += r.logp[1][n->answer - 1 + k];
        }
        NEAR(r.needle[i].logp_p, p);
        NEAR(r.needle[i].logp_q, q);
        ck_assert(r.needle[i].pos == n->pos && p != q);
    }
    cedar_audit_docs_free(d);
    free(o);
    bench_free(&b);
}
END_TEST

static Suite *suite(void) {
    Suite *s = suite_create("audit");
    TCase *t = tcase_create("statistics");
    tcase_add_test(t, student_cdf_agrees_with_scipy);
    tcase_add_test(t, t_tests_agree_with_scipy);
    tcase_add_test(t, ratios_weigh_documents_by_their_positions);
    tcase_add_test(t, holm_adjusts_in_order);
    tcase_add_test(t, proportions_and_pairs_agree_with_scipy);
    tcase_add_test(t, survival_agrees_with_scipy);
    tcase_add_test(t, bootstrap_agrees_with_scipy);
    tcase_add_test(t, divergences_by_hand);
    tcase_add_test(t, top_tokens_by_hand);
    suite_add_tcase(s, t);
    t = tcase_create("parts");
    tcase_add_test(t, arms_are_read);
    tcase_add_test(t, fronts_are_the_published_ones);
    tcase_add_test(t, documents_are_turns_of_one_text);
    tcase_add_test(t, traces_become_documents);
    tcase_add_test(t, files_become_documents);
    tcase_add_test(t, options_are_checked);
    tcase_add_test(t, documents_have_limits);
    tcase_add_test(t, options_are_documented);
    suite_add_tcase(s, t);
    t = tcase_create("controls");
    tcase_set_timeout(t, 1500);
    tcase_set_tags(t, "one_thread");
    tcase_add_loop_test(t, controls_hold, 0, 2);
    suite_add_tcase(s, t);
    t = tcase_create("audits");
    tcase_set_timeout(t, 1500);
    tcase_add_loop_test(t, fronts_are_where_theory_puts_them, 0, 2);
    tcase_add_test(t, results_repeat);
    tcase_add_test(t, auditing_is_cheap);
    tcase_add_test(t, audits_survive_any_failed_allocation);
    tcase_add_test(t, branches_and_early_hits);
    tcase_add_test(t, numbers_agree_with_the_engine);
    tcase_add_test(t, needles_sum_their_positions);
    suite_add_tcase(s, t);
    t = tcase_create("ends");
    tcase_set_timeout(t, 300);
    tcase_add_test(t, audits_end_when_they_must);
    tcase_add_test(t, audits_stop_at_once);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(suite());
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
