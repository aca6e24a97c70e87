/* The fit. */
#include "sim/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

void cedar_calibrate_hold_out(cedar_calibrate_step *steps, size_t count, uint32_t out, uint32_t of, uint64_t seed) {
    uint64_t key = cedar_rng_key(seed, "calibrate.held_out");
    for (size_t i = 0; i < count; i++)
        if (steps[i].use == CEDAR_CALIBRATE_FIT && cedar_rng_below(key, i / CEDAR_CALIBRATE_BLOCK, of) < out)
            steps[i].use = CEDAR_CALIBRATE_HELD;
}

void cedar_calibrate_error_add(cedar_calibrate_error *e, double price_ns, double measured_ns) {
    double rel = price_ns / measured_ns - 1;
    e->steps++;
    e->bias += rel;
    e->excess_ns += measured_ns - price_ns;
    e->mean += fabs(rel);
    if (fabs(rel) > e->worst) e->worst = fabs(rel);
}

void cedar_calibrate_error_end(cedar_calibrate_error *e) {
    if (!e->steps) return;
    e->mean /= e->steps;
    e->bias /= e->steps;
    e->excess_ns /= e->steps;
}

/* --- the problem -------------------------------------------------------------------------------------------------- */

enum { KINDS = 6 };             /* decode, prefill, mixed; each trimmed or not */

typedef struct problem {
    const cedar_config *c;
    cedar_graphs graphs;
    const cedar_calibrate_step *steps;
    size_t step_count;
    double weights[KINDS];      /* of a step of the kind */
    const cedar_hardware_key *keys[CEDAR_CALIBRATE_FIGURES];
    uint32_t figures;
} problem;

static uint32_t kind_of(const cedar_calibrate_step *s) {
    return (s->prefill_entries ? s->decode_entries ? 2u : 1u : 0u) * 2 + s->load.trimmed;
}

static double figure(const cedar_hardware *hw, const cedar_hardware_key *k) {
    double v;
    memcpy(&v, (const char *)hw + k->offset, sizeof v);
    return v;
}

static void set_figure(cedar_hardware *hw, const cedar_hardware_key *k, double v) {
    v = v < k->lo ? k->lo : v > k->hi ? k->hi : v;
    memcpy((char *)hw + k->offset, &v, sizeof v);
}

/* What is fitted. Launches stand for everything that a layer costs whatever it works on: the gaps between kernels and
 * the time of those too small to be bound by anything. */
static void choose_figures(problem *p) {
    const char *launch = p->graphs == CEDAR_GRAPHS_OFF ? "eager_launch_ns" : "launch_ns";
    const char *const names[] = { "memory_efficiency", "matmul_efficiency", "indexer_efficiency", "overlap", launch };
    size_t count;
    const cedar_hardware_key *all = cedar_hardware_keys(&count);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (size_t i = 0; i < count; i++)
            if (!strcmp(all[i].key, names[n])) p->keys[p->figures++] = &all[i];
}

/* Every kind weighs the same: a run has thousands of decode steps beside a hundred of prefill. */
static cedar_status weigh(problem *p, cedar_err *err) {
    uint32_t counts[KINDS] = { 0 }, kinds = 0, total = 0;
    for (size_t i = 0; i < p->step_count; i++)
        if (p->steps[i].use == CEDAR_CALIBRATE_FIT) counts[kind_of(&p->steps[i])]++;
    for (int k = 0; k < KINDS; k++) {
        kinds += counts[k] > 0;
        total += counts[k];
    }
    if (total < CEDAR_CALIBRATE_STEPS_MIN)
        return cedar_fail(err, CEDAR_E_ARG, "%u steps are left to fit to, at least %d are needed; play a longer run",
                          total, CEDAR_CALIBRATE_STEPS_MIN);
    for (int k = 0; k < KINDS; k++) p->weights[k] = counts[k] ? 1.0 / kinds / counts[k] : 0;
    return CEDAR_OK;
}

/* Relative errors of all fitted steps into `out`; *sum is the weighted mean of their squares. */
static cedar_status errors_of(const problem *p, const cedar_hardware *hw, double *out, double *sum, cedar_err *err) {
    cedar_cost k;
    cedar_status st = cedar_cost_make(p->c, hw, &(cedar_cost_switches){ .graphs = p->graphs }, &k, err);
    if (st) return st;
    *sum = 0;
    for (size_t i = 0; i < p->step_count; i++) {
        const cedar_calibrate_step *s = &p->steps[i];
        if (s->use != CEDAR_CALIBRATE_FIT) continue;
        double e = (double)cedar_cost_load_ns(&k, s->cut, &s->load, NULL) / s->ns - 1;
        out[i] = e;
        *sum += p->weights[kind_of(s)] * e * e;
    }
    return CEDAR_OK;
}

/* --- least squares ------------------------------------------------------------------------------------------------ */

enum { ROUNDS = 60, N = CEDAR_CALIBRATE_FIGURES };

typedef struct normal {
    double a[N][N], g[N];       /* J^T W J and J^T W e, by the logarithms of the figures */
} normal;

/* Derivatives by central differences of 1 %: prices are whole nanoseconds and have corners. A figure of 0 has none and
 * stays. */
static cedar_status derive(const problem *p, const cedar_hardware *hw, double *errors, double *columns, normal *out,
                           cedar_err *err) {
    double *less = columns + p->figures * p->step_count, ignored;
    memset(out, 0, sizeof *out);
    for (uint32_t n = 0; n < p->figures; n++) {
        double *more = columns + n * p->step_count, v = figure(hw, p->keys[n]);
        cedar_hardware up = *hw, down = *hw;
        set_figure(&up, p->keys[n], v * 1.01);
        set_figure(&down, p->keys[n], v / 1.01);
        double width = v > 0 ? log(figure(&up, p->keys[n]) / figure(&down, p->keys[n])) : INFINITY;
        cedar_status st = errors_of(p, &up, more, &ignored, err);
        if (!st) st = errors_of(p, &down, less, &ignored, err);
        if (st) return st;
        for (size_t i = 0; i < p->step_count; i++) more[i] = (more[i] - less[i]) / width;
    }
    for (size_t i = 0; i < p->step_count; i++) {
        if (p->steps[i].use != CEDAR_CALIBRATE_FIT) continue;
        double w = p->weights[kind_of(&p->steps[i])];
        for (uint32_t n = 0; n < p->figures; n++) {
            double d = columns[n * p->step_count + i];
            out->g[n] += w * d * errors[i];
            for (uint32_t m = 0; m <= n; m++) out->a[n][m] += w * d * columns[m * p->step_count + i];
        }
    }
    return CEDAR_OK;
}

/* Solves (A + damping * diag A) x = -g by Cholesky; a figure without influence does not move. */
static void solve(const normal *s, uint32_t n, double damping, double x[N]) {
    double l[N][N] = { { 0 } }, y[N];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j <= i; j++) {
            double v = s->a[i][j] + (i == j ? damping * s->a[i][i] : 0);
            for (uint32_t k = 0; k < j; k++) v -= l[i][k] * l[j][k];
            if (i == j) l[i][i] = v > 1e-14 ? sqrt(v) : INFINITY;
            else l[i][j] = v / l[j][j];
        }
    for (uint32_t i = 0; i < n; i++) {
        y[i] = -s->g[i];
        for (uint32_t k = 0; k < i; k++) y[i] -= l[i][k] * y[k];
        y[i] = isinf(l[i][i]) ? 0 : y[i] / l[i][i];
    }
    for (uint32_t i = n; i-- > 0;) {
        x[i] = y[i];
        for (uint32_t k = i + 1; k < n; k++) x[i] -= l[k][i] * x[k];
        x[i] = isinf(l[i][i]) ? 0 : x[i] / l[i][i];
    }
}

/* `room`: (figures + 3) columns of step_count. */
static cedar_status descend(const problem *p, cedar_hardware *hw, double *room, normal *last, cedar_err *err) {
    double *errors = room, *tried = room + p->step_count, *columns = room + 2 * p->step_count;
    double sum, damping = 1e-3;
    cedar_status st = errors_of(p, hw, errors, &sum, err);
    for (int round = 0; round < ROUNDS && !st; round++) {
        st = derive(p, hw, errors, columns, last, err);
        bool better = false;
        double gain = 0;
        while (!st && !better && damping < 1e8) {
            double x[N], sum_new;
            cedar_hardware next = *hw;
            solve(last, p->figures, damping, x);
            for (uint32_t n = 0; n < p->figures; n++) {
                double by = x[n] > 1 ? 1 : x[n] < -1 ? -1 : x[n];
                set_figure(&next, p->keys[n], figure(hw, p->keys[n]) * exp(by));
            }
            st = errors_of(p, &next, tried, &sum_new, err);
            better = !st && sum_new < sum;
            if (!better) {
                damping *= 10;
                continue;
            }
            gain = (sum - sum_new) / sum;
            sum = sum_new;
            *hw = next;
            memcpy(errors, tried, p->step_count * sizeof *errors);
            damping = damping > 1e-8 ? damping / 10 : damping;
        }
        if (!better || gain < 1e-9) break;
    }
    return st;
}

/* To the four digits that a description shows, so that a report and the file it goes with say the same. */
static void round_figure(cedar_hardware *hw, const cedar_hardware_key *k) {
    char text[32];
    snprintf(text, sizeof text, "%.4g", figure(hw, k));
    set_figure(hw, k, strtod(text, NULL));
}

cedar_status cedar_calibrate_fit(const cedar_config *c, cedar_graphs graphs, const cedar_calibrate_step *steps,
                                 size_t step_count, cedar_hardware *hw, cedar_calibrate_figure *out, uint32_t *count,
                                 cedar_err *err) {
    problem p = { .c = c, .graphs = graphs, .steps = steps, .step_count = step_count };
    cedar_hardware fitted = *hw;
    normal last = { 0 };
    choose_figures(&p);
    cedar_status st = weigh(&p, err);
    if (st) return st;
    double *room = cedar_calloc((p.figures + 3) * step_count, sizeof *room);
    if (!room) return cedar_fail(err, CEDAR_E_OOM, "no memory to fit %zu steps", step_count);
    st = descend(&p, &fitted, room, &last, err);
    cedar_free(room);
    if (st) return st;
    for (uint32_t n = 0; n < p.figures; n++) round_figure(&fitted, p.keys[n]);
    for (uint32_t n = 0; n < p.figures; n++)
        out[n] = (cedar_calibrate_figure){ .key = p.keys[n], .before = figure(hw, p.keys[n]),
                                           .after = figure(&fitted, p.keys[n]), .slope = sqrt(last.a[n][n]) };
    *count = p.figures;
    *hw = fitted;
    return CEDAR_OK;
}
