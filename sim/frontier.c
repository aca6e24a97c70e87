/* The front of a sweep and its interpolation.
 *
 * The slopes follow M. Steffen, "A simple method for monotonic interpolation in one dimension" (1990), with the end
 * slopes that charting libraries use, so that a number read here is the number drawn there. */
#include "sim/frontier.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

typedef struct candidate {
    double x, y;
    uint32_t index;
} candidate;

/* x rising; y falling on ties, so that the best of equal x comes first; then the order they were handed in. */
static int by_x(const void *a, const void *b) {
    const candidate *p = a, *q = b;
    if (p->x != q->x) return p->x < q->x ? -1 : 1;
    if (p->y != q->y) return p->y > q->y ? -1 : 1;
    return (p->index > q->index) - (p->index < q->index);
}

/* Sorts out the points that cannot be on any front; returns how many are left in c. */
static uint32_t gather(const cedar_front_point *points, uint32_t count, candidate *c, cedar_front *f) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!isfinite(points[i].x) || !isfinite(points[i].y)) f->not_finite++;
        else if (points[i].x <= 0) f->not_positive++;
        else c[n++] = (candidate){ points[i].x, points[i].y, i };
    }
    return n;
}

/* c [n] sorted by_x becomes the front in place; returns its length. */
static uint32_t keep_front(candidate *c, uint32_t n) {
    uint32_t top = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (top && c[top - 1].x == c[i].x) continue;
        while (top && c[i].y >= c[top - 1].y) top--;
        c[top++] = c[i];
    }
    return top;
}

static double sign(double s) { return s < 0 ? -1 : 1; }

static double smaller(double a, double b) { return a < b ? a : b; }

/* Slope at the middle of three knots: 0 where the data turn, else bounded so that the curve cannot overshoot. */
static double middle_slope(double h0, double h1, double s0, double s1) {
    double p = (s0 * h1 + s1 * h0) / (h0 + h1);
    if (isnan(p)) return p;
    return (sign(s0) + sign(s1)) * smaller(smaller(fabs(s0), fabs(s1)), 0.5 * fabs(p));
}

static double secant(const double *x, const double *v, uint32_t i) { return (v[i + 1] - v[i]) / (x[i + 1] - x[i]); }

void cedar_steffen_slopes(const double *x, const double *v, uint32_t n, double *slope) {
    if (n < 3) {
        for (uint32_t i = 0; i < n; i++) slope[i] = n == 2 ? secant(x, v, 0) : 0;
        return;
    }
    for (uint32_t i = 1; i + 1 < n; i++)
        slope[i] = middle_slope(x[i] - x[i - 1], x[i + 1] - x[i], secant(x, v, i - 1), secant(x, v, i));
    slope[0] = (3 * secant(x, v, 0) - slope[1]) / 2;
    slope[n - 1] = (3 * secant(x, v, n - 2) - slope[n - 2]) / 2;
}

static void fill(cedar_front *f, const cedar_front_point *points, const candidate *c) {
    for (uint32_t i = 0; i < f->count; i++) {
        f->index[i] = c[i].index;
        f->x[i] = c[i].x;
        f->value[i] = c[i].y;
        for (uint32_t m = 1; m < f->metrics; m++)
            f->value[(size_t)m * f->count + i] = points[c[i].index].extra ? points[c[i].index].extra[m - 1] : NAN;
    }
    for (uint32_t m = 0; m < f->metrics; m++)
        cedar_steffen_slopes(f->x, f->value + (size_t)m * f->count, f->count, f->slope + (size_t)m * f->count);
}

cedar_status cedar_front_make(const cedar_front_point *points, uint32_t count, uint32_t extra_count, cedar_front **out,
                              cedar_err *err) {
    cedar_status st = CEDAR_OK;
    candidate *c = cedar_calloc(count, sizeof *c);
    cedar_front *f = cedar_calloc(1, sizeof *f);
    if (!c || !f) goto oom;
    uint32_t n = gather(points, count, c, f);
    if (n) qsort(c, n, sizeof *c, by_x);
    f->count = keep_front(c, n);
    f->dominated = n - f->count;
    f->metrics = 1 + extra_count;
    f->index = cedar_calloc(f->count, sizeof *f->index);
    f->x = cedar_calloc(f->count, sizeof *f->x);
    f->value = cedar_calloc((size_t)f->metrics * f->count, sizeof *f->value);
    f->slope = cedar_calloc((size_t)f->metrics * f->count, sizeof *f->slope);
    if (!f->index || !f->x || !f->value || !f->slope) goto oom;
    fill(f, points, c);
    *out = f;
    f = NULL;
    goto done;
oom:
    st = cedar_fail(err, CEDAR_E_OOM, "no memory for a front of %u points with %u metrics", count, 1 + extra_count);
done:
    cedar_free(c);
    cedar_front_free(f);
    return st;
}

void cedar_front_free(cedar_front *f) {
    if (!f) return;
    cedar_free(f->index);
    cedar_free(f->x);
    cedar_free(f->value);
    cedar_free(f->slope);
    cedar_free(f);
}

/* Place i of the knots with x[i] <= at < x[i + 1]; the last knot when at is there. x[0] <= at <= x[n - 1]. */
static uint32_t find_knot(const double *x, uint32_t n, double at) {
    uint32_t lo = 0, hi = n;
    while (hi - lo > 1) {
        uint32_t middle = lo + (hi - lo) / 2;
        if (x[middle] <= at) lo = middle;
        else hi = middle;
    }
    return lo;
}

static double hermite(double h, double t, double v0, double m0, double v1, double m1) {
    double r2 = (1 - t) * (1 - t), t2 = t * t;
    return (1 + 2 * t) * r2 * v0 + t * r2 * h * m0 + t2 * (3 - 2 * t) * v1 + t2 * (t - 1) * h * m1;
}

bool cedar_front_at(const cedar_front *f, uint32_t metric, double x, cedar_front_method method, double *out) {
    CEDAR_ASSERT(metric < f->metrics);
    if (!f->count || !(x >= f->x[0] && x <= f->x[f->count - 1])) return false;
    uint32_t i = find_knot(f->x, f->count, x);
    const double *v = f->value + (size_t)metric * f->count + i, *m = f->slope + (size_t)metric * f->count + i;
    double at = v[0];
    if (x != f->x[i]) {
        double h = f->x[i + 1] - f->x[i], t = (x - f->x[i]) / h;
        bool straight = method == CEDAR_FRONT_LINEAR || f->count == 2;
        at = straight ? v[0] + t * (v[1] - v[0]) : hermite(h, t, v[0], m[0], v[1], m[1]);
    }
    if (!isfinite(at)) return false;
    *out = metric == 0 && at < 0 ? 0 : at;
    return true;
}
