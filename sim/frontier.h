/* The front of a sweep, and its value at a target: "throughput at 150 tok/s/user".
 *
 * Points are (x, y) with more metrics beside y. x is a speed per user (higher is better), y a throughput (higher is
 * better). The front keeps the points that no other point beats in both: x strictly rising, y strictly falling. Between
 * its knots a value is read off by Steffen's monotone cubic or by straight lines; outside there is none.
 * Ownership   A front owns copies of its numbers.
 * Threads     Read-only after cedar_front_make.
 * Class D0: plain double arithmetic in one fixed order. */
#ifndef CEDAR_SIM_FRONTIER_H
#define CEDAR_SIM_FRONTIER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum cedar_front_method { CEDAR_FRONT_STEFFEN, CEDAR_FRONT_LINEAR } cedar_front_method;

/* A point of a sweep. extra [extra_count of the front], borrowed; NaN = this point lacks the metric. */
typedef struct cedar_front_point {
    double x, y;
    const double *extra;        /* NULL when there are none */
} cedar_front_point;

typedef struct cedar_front {
    uint32_t count;             /* knots; 0 is a legal, empty front */
    uint32_t metrics;           /* 1 + extra_count; metric 0 is y, metric 1 + k is extra[k] */
    uint32_t *index;            /* [count] place of each knot in the points handed in */
    double *x;                  /* [count] strictly rising */
    double *value;              /* [metrics, count]; row 0 strictly falling */
    double *slope;              /* [metrics, count] Steffen's slopes at the knots; NaN next to a missing value */
    uint32_t not_finite;        /* points left out: x or y is NaN or infinite */
    uint32_t not_positive;      /* points left out: x <= 0 */
    uint32_t dominated;         /* points left out: another point is at least as good in x and y */
} cedar_front;

/* points [count], in any order. Of points equal in x the larger y stays; of points equal in both, the first. */
cedar_status cedar_front_make(const cedar_front_point *points, uint32_t count, uint32_t extra_count, cedar_front **out,
                              cedar_err *err) CEDAR_USE_RESULT;
void cedar_front_free(cedar_front *f);

/* Value of a metric at x. False, and *out untouched, when there is none: x outside the knots (nothing is ever
 * extrapolated), or a knot needed for it lacks the metric. y is clamped at 0. */
bool cedar_front_at(const cedar_front *f, uint32_t metric, double x, cedar_front_method method, double *out);

/* Steffen's slopes for knots x [n] strictly rising, v [n] into slope [n]. One knot: 0. Two: the secant. */
void cedar_steffen_slopes(const double *x, const double *v, uint32_t n, double *slope);

#endif
