/* Tests of scoring: percentiles, the front and its value at a target, the start draw, validity. Expected numbers are
 * published fixtures, computed by hand, or by an independent program. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "sim/frontier.h"
#include "sim/percentile.h"
#include "sim/start.h"
#include "sim/validity.h"

enum { POINTS_MAX = 64 };

static cedar_err err;

/* --- percentiles -------------------------------------------------------------------------------------------------- */

START_TEST(percentile_of_one_to_ten) {
    double v[] = { 7, 1, 10, 3, 2, 9, 4, 8, 6, 5 };
    cedar_sort_real(v, 10);
    for (int i = 0; i < 10; i++) ck_assert_double_eq(v[i], i + 1);
    ck_assert_double_eq(cedar_percentile(v, 10, 0), 1);
    ck_assert_double_eq(cedar_percentile(v, 10, 50), 5.5);
    ck_assert_double_eq(cedar_percentile(v, 10, 75), 7.75);
    ck_assert_double_eq_tol(cedar_percentile(v, 10, 90), 9.1, 1e-14);
    ck_assert_double_eq_tol(cedar_percentile(v, 10, 95), 9.55, 1e-14);
    ck_assert_double_eq(cedar_percentile(v, 10, 100), 10);
}
END_TEST

START_TEST(percentile_of_few) {
    double v[] = { 4, 6 };
    ck_assert_double_nan(cedar_percentile(v, 0, 50));
    ck_assert_double_eq(cedar_percentile(v, 1, 90), 4);
    ck_assert_double_eq(cedar_percentile(v, 2, 50), 5);
    cedar_sort_real(NULL, 0);
}
END_TEST

/* 1 / p90(ITL) is the slow tail; it is neither the p10 nor the p90 of 1 / ITL. */
START_TEST(interactivity_is_not_a_percentile_of_speeds) {
    double itl[10], speed[10];
    for (int i = 0; i < 10; i++) {
        itl[i] = (i + 1) * 1e-3;
        speed[i] = 1 / itl[i];
    }
    cedar_sort_real(speed, 10);
    ck_assert_double_eq_tol(1 / cedar_percentile(itl, 10, 90), 109.89010989010988, 1e-10);
    ck_assert_double_eq_tol(cedar_percentile(speed, 10, 10), 110, 1e-10);
    ck_assert_double_eq_tol(cedar_percentile(speed, 10, 90), 550, 1e-10);
}
END_TEST

/* --- the front ---------------------------------------------------------------------------------------------------- */

/* Measured points of one model on two machines' layouts: (p90 interactivity, tok/s/GPU). */
static const cedar_front_point measured[] = {
    { 287.23, 10133.87, NULL }, { 255.57, 10743.47, NULL }, { 166.86, 27095.30, NULL }, { 104.87, 46969.42, NULL },
    { 57.33, 83359.20, NULL },  { 24.83, 103358.43, NULL },
    { 284.58, 5691.77, NULL },  { 221.80, 14553.90, NULL }, { 141.46, 26473.64, NULL }, { 82.72, 47932.15, NULL },
    { 40.45, 67353.94, NULL }
};
enum { TP2 = 6, TP4 = 5 };

static cedar_front *front_of(const cedar_front_point *points, uint32_t count, uint32_t extra_count) {
    cedar_front *f = NULL;
    ck_assert_msg(!cedar_front_make(points, count, extra_count, &f, &err), "%s", err.msg);
    return f;
}

static double value(const cedar_front *f, uint32_t metric, double x, cedar_front_method method) {
    double v = NAN;
    ck_assert_msg(cedar_front_at(f, metric, x, method, &v), "no value at %g", x);
    return v;
}

START_TEST(front_of_measured_points) {
    static const uint32_t index[] = { 5, 4, 9, 3, 2, 7, 1, 0 };
    static const double slope[] = { -396.42405788373117, -1053.2346534633066, -86.92821670428921, -86.92821670428921,
                                    -271.65492827416347, -156.780196123679, -38.509159823120534, -9.627289955780132 };
    cedar_front *f = front_of(measured, TP2 + TP4, 0);
    ck_assert_uint_eq(f->count, 8);
    ck_assert_uint_eq(f->dominated, 3);
    for (int i = 0; i < 8; i++) {
        ck_assert_uint_eq(f->index[i], index[i]);
        ck_assert_double_eq(f->x[i], measured[index[i]].x);
        ck_assert_double_eq(f->value[i], measured[index[i]].y);
        ck_assert_double_eq(f->slope[i], slope[i]);
    }
    cedar_front_free(f);
}
END_TEST

START_TEST(value_at_target_of_measured_points) {
    static const struct { double x, steffen[3], linear[3]; } rows[] = {
        { 50, { 88176.75660774182, 62787.46228784905, 90075.2054422702 },
          { 87869.79556615384, 62966.00305890703, 87869.79556615384 } },
        { 100, { 49979.580622725414, 40819.41793589189, 47273.608539693574 },
          { 50697.19090029449, 41619.53418794689, 47181.09020767494 } },
        { 150, { 31159.22562223662, 24348.511992912616, 32843.35169266598 },
          { 32500.65026939829, 25206.5927059995, 32500.65026939829 } },
        { 200, { 18812.57888041888, 17201.312367587147, 18736.838192411193 },
          { 20986.63529252621, 17788.28302215584, 19530.283691299603 } }
    };
    cedar_front *f[] = { front_of(measured, TP2, 0), front_of(measured + TP2, TP4, 0),
                         front_of(measured, TP2 + TP4, 0) };
    for (int r = 0; r < 4; r++)
        for (int s = 0; s < 3; s++) {
            ck_assert_double_eq(value(f[s], 0, rows[r].x, CEDAR_FRONT_STEFFEN), rows[r].steffen[s]);
            ck_assert_double_eq(value(f[s], 0, rows[r].x, CEDAR_FRONT_LINEAR), rows[r].linear[s]);
        }
    for (int s = 0; s < 3; s++) cedar_front_free(f[s]);
}
END_TEST

START_TEST(no_value_outside) {
    double v = 42;
    cedar_front *f = front_of(measured, TP2, 0);
    for (int m = 0; m < 2; m++) {
        ck_assert(!cedar_front_at(f, 0, 24.829999999999, (cedar_front_method)m, &v));
        ck_assert(!cedar_front_at(f, 0, 287.2300000001, (cedar_front_method)m, &v));
        ck_assert(!cedar_front_at(f, 0, NAN, (cedar_front_method)m, &v));
        ck_assert(!cedar_front_at(f, 0, INFINITY, (cedar_front_method)m, &v));
        ck_assert(!cedar_front_at(f, 0, -INFINITY, (cedar_front_method)m, &v));
        ck_assert_double_eq(v, 42);
        ck_assert_double_eq(value(f, 0, 24.83, (cedar_front_method)m), 103358.43);
        ck_assert_double_eq(value(f, 0, 166.86, (cedar_front_method)m), 27095.30);
        ck_assert_double_eq(value(f, 0, 287.23, (cedar_front_method)m), 10133.87);
    }
    cedar_front_free(f);
}
END_TEST

START_TEST(small_fronts) {
    double v = 42;
    cedar_front *f = front_of(NULL, 0, 0);
    ck_assert_uint_eq(f->count, 0);
    ck_assert(!cedar_front_at(f, 0, 1, CEDAR_FRONT_STEFFEN, &v));
    cedar_front_free(f);

    const cedar_front_point two[] = { { 10, 100, NULL }, { 30, 20, NULL } };
    f = front_of(two, 1, 0);
    ck_assert_double_eq(value(f, 0, 10, CEDAR_FRONT_STEFFEN), 100);
    ck_assert(!cedar_front_at(f, 0, 10.5, CEDAR_FRONT_STEFFEN, &v));
    cedar_front_free(f);

    f = front_of(two, 2, 0);
    ck_assert_double_eq(value(f, 0, 20, CEDAR_FRONT_STEFFEN), 60);
    ck_assert_double_eq(value(f, 0, 15, CEDAR_FRONT_LINEAR), 80);
    ck_assert_double_eq(f->slope[0], -4);
    ck_assert_double_eq(f->slope[1], -4);
    cedar_front_free(f);
}
END_TEST

START_TEST(points_left_out) {
    const cedar_front_point p[] = {
        { 0, 900, NULL }, { -1, 900, NULL }, { NAN, 900, NULL }, { 5, NAN, NULL }, { INFINITY, 900, NULL },
        { 10, 50, NULL }, { 10, 70, NULL },  { 10, 70, NULL },   { 10, 60, NULL }, { 20, 70, NULL },
        { 20, 30, NULL }, { 30, 40, NULL },  { 40, 40, NULL },   { 35, 10, NULL }
    };
    cedar_front *f = front_of(p, sizeof p / sizeof *p, 0);
    ck_assert_uint_eq(f->not_finite, 3);
    ck_assert_uint_eq(f->not_positive, 2);
    /* x = 20 has 70 as x = 10 has, and x = 40 has 40 as x = 30 has: the faster of equals stays. */
    ck_assert_uint_eq(f->count, 2);
    ck_assert_uint_eq(f->index[0], 9);
    ck_assert_uint_eq(f->index[1], 12);
    ck_assert_uint_eq(f->dominated, 7);
    cedar_front_free(f);

    f = front_of(p + 5, 4, 0);      /* x equal four times: the larger y, and of those the first */
    ck_assert_uint_eq(f->count, 1);
    ck_assert_uint_eq(f->index[0], 1);
    cedar_front_free(f);
}
END_TEST

/* Cubic by hand: knots 1, 2, 4 with values 8, 4, 2. Secants -4 and -1, p = (-4*2 - 1*1)/3 = -3, so the middle slope is
 * -2 * min(4, 1, 1.5) = -2; ends (3*-4 + 2)/2 = -5 and (3*-1 + 2)/2 = -0.5. At 1.5: 0.5*8 + 0.125*-5 + 0.5*4 -
 * 0.125*-2. */
START_TEST(more_metrics_on_the_same_knots) {
    const double extra[][3] = { { 8, 5, -1 }, { 4, 5, NAN }, { 2, 5, -3 } };
    const cedar_front_point p[] = { { 4, 1, extra[2] }, { 1, 3, extra[0] }, { 2, 2, extra[1] } };
    cedar_front *f = front_of(p, 3, 3);
    double v = 42;
    ck_assert_uint_eq(f->metrics, 4);
    ck_assert_double_eq(f->slope[3 + 0], -5);
    ck_assert_double_eq(f->slope[3 + 1], -2);
    ck_assert_double_eq(f->slope[3 + 2], -0.5);
    ck_assert_double_eq(value(f, 1, 1.5, CEDAR_FRONT_STEFFEN), 5.625);
    ck_assert_double_eq(value(f, 1, 1.5, CEDAR_FRONT_LINEAR), 6);
    ck_assert_double_eq(value(f, 2, 3.3, CEDAR_FRONT_STEFFEN), 5);
    ck_assert_double_eq(f->slope[6 + 1], 0);        /* two secants of 0 */
    /* A knot lacks the third metric: its own knots have values, what lies between has none. Negative ones stay so. */
    ck_assert_double_eq(value(f, 3, 1, CEDAR_FRONT_STEFFEN), -1);
    ck_assert_double_eq(value(f, 3, 4, CEDAR_FRONT_LINEAR), -3);
    ck_assert(!cedar_front_at(f, 3, 2, CEDAR_FRONT_LINEAR, &v));
    ck_assert(!cedar_front_at(f, 3, 1.5, CEDAR_FRONT_STEFFEN, &v));
    ck_assert(!cedar_front_at(f, 3, 3, CEDAR_FRONT_LINEAR, &v));
    cedar_front_free(f);
}
END_TEST

START_TEST(y_is_clamped_at_zero) {
    const cedar_front_point p[] = { { 1, 10, NULL }, { 2, -5, NULL }, { 3, -20, NULL } };
    cedar_front *f = front_of(p, 3, 0);
    ck_assert_double_eq(value(f, 0, 2, CEDAR_FRONT_STEFFEN), 0);
    ck_assert_double_eq(value(f, 0, 2.5, CEDAR_FRONT_LINEAR), 0);
    ck_assert_double_eq(value(f, 0, 1, CEDAR_FRONT_STEFFEN), 10);
    cedar_front_free(f);
}
END_TEST

static bool beats(const cedar_front_point *a, const cedar_front_point *b) {
    return (a->x >= b->x && a->y > b->y) || (a->x > b->x && a->y >= b->y);
}

static bool counts(const cedar_front_point *p) { return isfinite(p->x) && isfinite(p->y) && p->x > 0; }

/* Few distinct values, so that ties are common; some points that cannot count. */
static cedar_front_point random_point(uint64_t key, uint64_t i) {
    static const double odd[] = { NAN, INFINITY, -INFINITY, 0, -3 };
    cedar_front_point p = { 1 + (double)cedar_rng_below(key, 3 * i, 40), (double)cedar_rng_below(key, 3 * i + 1, 40),
                            NULL };
    uint64_t kind = cedar_rng_below(key, 3 * i + 2, 40);
    if (kind < 5) p.x = odd[kind];
    else if (kind < 8) p.y = odd[kind - 5];
    return p;
}

/* Random points: strictly falling; a counted point is on the front exactly when nothing beats it and it is the first of
 * its equals; all points accounted for; between two knots every reading lies between their values. */
START_TEST(front_of_random_points) {
    uint64_t key = cedar_rng_key((uint64_t)_i, "front");
    uint32_t n = (uint32_t)cedar_rng_below(key, 1 << 20, POINTS_MAX);
    cedar_front_point p[POINTS_MAX];
    for (uint32_t i = 0; i < n; i++) p[i] = random_point(key, i);
    cedar_front *f = front_of(p, n, 0);
    bool on[POINTS_MAX] = { false };
    for (uint32_t k = 0; k < f->count; k++) {
        on[f->index[k]] = true;
        ck_assert(!k || (f->x[k] > f->x[k - 1] && f->value[k] < f->value[k - 1]));
        ck_assert(f->slope[k] <= 0);
    }
    uint32_t out = 0;
    for (uint32_t i = 0; i < n; i++) {
        bool best = counts(&p[i]);
        out += !counts(&p[i]);
        for (uint32_t j = 0; j < n && best; j++)
            best = !counts(&p[j]) || !(beats(&p[j], &p[i]) || (j < i && p[j].x == p[i].x && p[j].y == p[i].y));
        ck_assert_msg(on[i] == best, "seed %d: point %u (%g, %g)", _i, i, p[i].x, p[i].y);
    }
    ck_assert_uint_eq(f->not_finite + f->not_positive, out);
    ck_assert_uint_eq(f->count + f->dominated + out, n);
    for (uint32_t k = 0; k + 1 < f->count; k++) {
        double before = f->value[k];
        for (int step = 1; step <= 16; step++) {
            double x = f->x[k] + step / 16.0 * (f->x[k + 1] - f->x[k]);
            double v = value(f, 0, x, CEDAR_FRONT_STEFFEN), slack = 1e-12 * (1 + fabs(before));
            ck_assert_msg(v <= before + slack && v >= f->value[k + 1] - slack, "seed %d: %g at %g", _i, v, x);
            before = v;
        }
    }
    cedar_front_free(f);
}
END_TEST

START_TEST(front_out_of_memory) {
    int64_t live = cedar_mem_live();
    cedar_front *f = NULL;
    cedar_status st = CEDAR_E_OOM;
    int n = 0;
    while (st) {
        ck_assert_int_lt(++n, 10);
        cedar_mem_fail_at(n);
        st = cedar_front_make(measured, TP2, 0, &f, &err);
        cedar_mem_fail_at(0);
        ck_assert(!st || (st == CEDAR_E_OOM && !f && cedar_mem_live() == live));
    }
    ck_assert_int_eq(n, 7);     /* six allocations */
    cedar_front_free(f);
    cedar_front_free(NULL);
    ck_assert_int_eq(cedar_mem_live(), live);
}
END_TEST

/* --- the start draw ----------------------------------------------------------------------------------------------- */

START_TEST(seed_and_draw_of_a_lane) {
    static const struct { const char *trace; uint32_t lane; uint64_t seed64; double u; } rows[] = {
        { "trace_0291", 0, 9498404945125676575u, 0.9021088424105904 },
        { "trace_0291", 1, 17454281198154932524u, 0.6750777967042995 },
        { "trace_0277", 0, 5455050004541897606u, 0.9991842346951498 },
        { "trace_0277", 1, 2008786018912519716u, 0.12461339112189762 }
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t seed64 = cedar_start_seed64(42, rows[i].trace, rows[i].lane);
        ck_assert_uint_eq(seed64, rows[i].seed64);
        ck_assert_double_eq(cedar_start_unit(seed64), rows[i].u);
    }
    ck_assert_double_eq(cedar_start_unit(0), 0.6369616873214543);
    ck_assert_double_eq(cedar_start_unit(42), 0.7739560485559633);
}
END_TEST

static cedar_corpus *load(const char *path) {
    cedar_corpus *c = NULL;
    cedar_corpus_opts opts = { .strict = true };
    ck_assert_msg(!cedar_corpus_load(&path, 1, &opts, &c, &err), "%s", err.msg);
    return c;
}

/* `next` of each stream was computed from the file by another program. */
START_TEST(start_of_recorded_sessions) {
    static const struct {
        const char *path;
        uint32_t lane;
        double t_star;
        uint32_t next[5], primers, ahead, over;
    } rows[] = { { "traces/kv-cache-tester/trace_0291.json", 0, 955.5371761028174, { 15, 0, 0 }, 1, 2, 0 },
                 { "traces/kv-cache-tester/trace_0291.json", 1, 800.8155184539801, { 8, 0, 0 }, 1, 2, 0 },
                 { "traces/kv-cache-tester/trace_0277.json", 0, 751.4908341808164, { 7, 4, 12, 17, 3 }, 2, 0, 3 },
                 { "traces/kv-cache-tester/trace_0277.json", 1, 313.0977684208047, { 6, 4, 12, 16, 0 }, 2, 1, 2 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cedar_corpus *c = load(rows[i].path);
        uint32_t next[8];
        cedar_start s;
        ck_assert_uint_le(c->traces[0].stream_count, 5);
        ck_assert(!cedar_start_draw(&c->traces[0], 42, rows[i].lane, 0.25, 0.75, next, &s, &err));
        ck_assert_double_eq(s.t_star_s, rows[i].t_star);
        for (uint32_t k = 0; k < c->traces[0].stream_count; k++) ck_assert_uint_eq(next[k], rows[i].next[k]);
        ck_assert_uint_eq(s.primers, rows[i].primers);
        ck_assert_uint_eq(s.ahead, rows[i].ahead);
        ck_assert_uint_eq(s.over, rows[i].over);
        ck_assert(!s.empty);
        cedar_corpus_free(c);
    }
}
END_TEST

START_TEST(start_window_of_a_session) {
    cedar_corpus *c = load("traces/kv-cache-tester/trace_0291.json");
    uint32_t next[8];
    cedar_start s;
    ck_assert(!cedar_start_draw(&c->traces[0], 42, 0, 0.25, 0.75, next, &s, &err));
    ck_assert_double_eq(s.lo_s, 340.75);
    ck_assert_double_eq(s.hi_s, 1022.25);
    /* 955.5371761028174 s lies between two nanoseconds. */
    ck_assert_int_eq(s.t_star_ns, 955537176103);

    cedar_turn primed = { .t_ns = 955537176103 - 5000 };
    ck_assert_int_eq(cedar_start_lead_ns(&s, &primed, 10000), 5000);
    ck_assert_int_eq(cedar_start_lead_ns(&s, &primed, 4000), 4000);
    primed.t_ns = s.t_star_ns + 1;
    ck_assert_int_eq(cedar_start_lead_ns(&s, &primed, 4000), 0);

    /* A window of no width: t* is the time itself, and a turn exactly there is still to come. */
    ck_assert(!cedar_start_draw(&c->traces[0], 42, 0, 1, 1, next, &s, &err));
    ck_assert_double_eq(s.t_star_s, 1363);
    ck_assert_int_eq(s.t_star_ns, 1363000000000);
    ck_assert_uint_eq(next[0], c->traces[0].streams[0].turn_count - 1);
    ck_assert(!cedar_start_draw(&c->traces[0], 42, 0, 0, 0, next, &s, &err));
    ck_assert_uint_eq(next[0], 0);
    ck_assert_uint_eq(s.ahead, c->traces[0].stream_count);
    cedar_corpus_free(c);
}
END_TEST

/* t_star_ns must sort every time as the comparison of seconds does. */
START_TEST(start_in_nanoseconds_agrees) {
    cedar_turn turns[] = { { .t_ns = 100000000 }, { .t_ns = 1700000000 } };
    cedar_stream stream = { .id = "", .turns = turns, .turn_count = 2 };
    cedar_trace t = { .id = "made", .streams = &stream, .stream_count = 1 };
    uint32_t next;
    cedar_start s;
    ck_assert(!cedar_start_draw(&t, (uint64_t)_i, 3, 0, 1, &next, &s, &err));
    ck_assert(s.t_star_s >= 0.1 && s.t_star_s <= 1.7);
    ck_assert((double)s.t_star_ns / 1e9 >= s.t_star_s);
    ck_assert((double)(s.t_star_ns - 1) / 1e9 < s.t_star_s);
    ck_assert_uint_eq(next, 1);
}
END_TEST

START_TEST(start_refuses) {
    cedar_turn turn = { .t_ns = 5 };
    cedar_stream stream = { .id = "", .turns = &turn, .turn_count = 1 };
    cedar_trace t = { .id = "made", .streams = &stream, .stream_count = 1 };
    static const double bad[][2] = { { -0.1, 0.5 }, { 0.5, 0.4 }, { 0, 1.01 }, { NAN, 1 }, { 0, NAN } };
    uint32_t next;
    cedar_start s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_int_eq(cedar_start_draw(&t, 1, 0, bad[i][0], bad[i][1], &next, &s, &err), CEDAR_E_ARG);
    ck_assert_int_eq(cedar_start_draw(&t, 1, 0, 0.5, 0.4, &next, &s, &err), CEDAR_E_ARG);
    ck_assert_str_eq(err.msg, "the start window is 0.5 to 0.4; it must be 0 <= from <= to <= 1");
    stream.turn_count = 0;
    ck_assert_int_eq(cedar_start_draw(&t, 1, 0, 0, 1, &next, &s, &err), CEDAR_E_ARG);
    ck_assert_str_eq(err.msg, "trace made has no turns to start at");
}
END_TEST

/* --- validity ----------------------------------------------------------------------------------------------------- */

static cedar_validity_in sound(void) {
    return (cedar_validity_in){ .completed = 1000, .errors = 100, .overflow = 11, .overflow_skipped = 0,
                                .phase_ns = 3600000000000, .last_sample_ns = 3528000000000 };
}

/* Every limit exactly reached is still valid. */
START_TEST(validity_at_the_limits) {
    cedar_validity_in in = sound();
    cedar_validity v;
    cedar_validity_make(&in, &v);
    ck_assert_msg(v.valid && v.submission_valid && v.gate_ok && !v.reasons, "%s", v.text);
    ck_assert_str_eq(v.text, "");
}
END_TEST

static void expect_invalid(const cedar_validity_in *in, unsigned reasons, const char *text) {
    cedar_validity v;
    cedar_validity_make(in, &v);
    ck_assert_uint_eq(v.reasons, reasons);
    ck_assert_str_eq(v.text, text);
    ck_assert(!v.valid);
    ck_assert(v.submission_valid == !(reasons & CEDAR_INVALID_SUBMISSION));
    ck_assert(v.gate_ok == !(reasons & CEDAR_INVALID_GATE));
}

START_TEST(validity_reasons) {
    cedar_validity_in in = sound();
    in.locks_overridden = true;
    expect_invalid(&in, CEDAR_INVALID_LOCKS, "a rule of the scenario was overridden");
    in = sound();
    in.overflow = 12;       /* of 1100 */
    expect_invalid(&in, CEDAR_INVALID_OVERFLOW,
                   "12 context overflows are more than 1% of 1000 completed, 100 errors and 0 skipped");
    in.overflow_skipped = 100;
    cedar_validity v;
    cedar_validity_make(&in, &v);
    ck_assert(v.valid);     /* 12 of 1200 */
    in = sound();
    in.cancelled = true;
    expect_invalid(&in, CEDAR_INVALID_CANCELLED, "the run was cancelled");
    in = sound();
    in.last_sample_ns = 3527999999999;
    expect_invalid(&in, CEDAR_INVALID_COVERAGE,
                   "the last TTFT or ITL sample is at 3528.000 s, before 98% of the 3600.000 s phase");
    in.last_sample_ns = -1;
    expect_invalid(&in, CEDAR_INVALID_COVERAGE, "there is no TTFT or ITL sample");
    in = sound();
    in.scenario_unknown = true;
    expect_invalid(&in, CEDAR_INVALID_SCENARIO, "no AgentX rules were asked for");
    in = sound();
    in.errors = 101;
    expect_invalid(&in, CEDAR_INVALID_ERRORS, "101 errors are more than 10% of 1000 completed requests");
    in = sound();
    in.completed = in.overflow = 0;
    expect_invalid(&in, CEDAR_INVALID_EMPTY, "no request completed");
}
END_TEST

START_TEST(validity_of_everything_wrong) {
    cedar_validity_in in = { .completed = 1,
                             .errors = UINT64_MAX,
                             .overflow = UINT64_MAX,
                             .overflow_skipped = UINT64_MAX,
                             .phase_ns = INT64_MAX,
                             .last_sample_ns = INT64_MAX / 2,
                             .locks_overridden = true,
                             .cancelled = true,
                             .scenario_unknown = true };
    cedar_validity v;
    cedar_validity_make(&in, &v);
    ck_assert_uint_eq(v.reasons, 127 - CEDAR_INVALID_EMPTY);
    ck_assert_ptr_nonnull(strstr(v.text, "; 18446744073709551615 errors are more than 10% of 1 completed requests"));
    in.completed = 0;
    cedar_validity_make(&in, &v);
    ck_assert_uint_eq(v.reasons, 127 - CEDAR_INVALID_ERRORS);
    ck_assert_str_eq(cedar_invalid_name(CEDAR_INVALID_LOCKS), "unsafe_override");
    for (unsigned a = 0; a < CEDAR_INVALID_COUNT; a++)
        for (unsigned b = 0; b < a; b++)
            ck_assert_str_ne(cedar_invalid_name((cedar_invalid)(1u << a)),
                             cedar_invalid_name((cedar_invalid)(1u << b)));
}
END_TEST

static Suite *score_suite(void) {
    Suite *s = suite_create("score");
    TCase *t = tcase_create("percentile");
    tcase_set_timeout(t, 10);
    tcase_add_test(t, percentile_of_one_to_ten);
    tcase_add_test(t, percentile_of_few);
    tcase_add_test(t, interactivity_is_not_a_percentile_of_speeds);
    suite_add_tcase(s, t);
    t = tcase_create("front");
    tcase_set_timeout(t, 10);
    tcase_add_test(t, front_of_measured_points);
    tcase_add_test(t, value_at_target_of_measured_points);
    tcase_add_test(t, no_value_outside);
    tcase_add_test(t, small_fronts);
    tcase_add_test(t, points_left_out);
    tcase_add_test(t, more_metrics_on_the_same_knots);
    tcase_add_test(t, y_is_clamped_at_zero);
    tcase_add_loop_test(t, front_of_random_points, 0, 200);
    tcase_add_test(t, front_out_of_memory);
    suite_add_tcase(s, t);
    t = tcase_create("start");
    tcase_set_timeout(t, 20);
    tcase_add_test(t, seed_and_draw_of_a_lane);
    tcase_add_test(t, start_of_recorded_sessions);
    tcase_add_test(t, start_window_of_a_session);
    tcase_add_loop_test(t, start_in_nanoseconds_agrees, 0, 50);
    tcase_add_test(t, start_refuses);
    suite_add_tcase(s, t);
    t = tcase_create("validity");
    tcase_set_timeout(t, 10);
    tcase_add_test(t, validity_at_the_limits);
    tcase_add_test(t, validity_reasons);
    tcase_add_test(t, validity_of_everything_wrong);
    suite_add_tcase(s, t);
    return s;
}

int main(void) {
    SRunner *r = srunner_create(score_suite());
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
