/* Fits the few efficiencies of the cost model (sim/cost.h) to steps that were measured, and says how well the rest of
 * the steps is met (docs/MODELLED.md "Calibration"). The verb is sim/cli_calibrate.c.
 *
 * Method: least squares of relative errors (Levenberg and Marquardt on the logarithms of the figures, differences for
 * derivatives), weighted so that every kind of step counts the same however many there are of it.
 * Determinism: double arithmetic in a fixed order; the same steps give the same figures. Threads: pure functions. */
#ifndef CEDAR_SIM_CALIBRATE_H
#define CEDAR_SIM_CALIBRATE_H

#include "sim/cost.h"

enum { CEDAR_CALIBRATE_FIGURES = 6, CEDAR_CALIBRATE_STEPS_MIN = 64, CEDAR_CALIBRATE_BLOCK = 16 };

typedef enum cedar_calibrate_use {
    CEDAR_CALIBRATE_FIT,
    CEDAR_CALIBRATE_HELD,       /* held out */
    CEDAR_CALIBRATE_FIRST,      /* first of its shape: its graph was captured then */
    CEDAR_CALIBRATE_UNKNOWN,    /* it cannot be priced */
    CEDAR_CALIBRATE_USES
} cedar_calibrate_use;

/* A measured step. */
typedef struct cedar_calibrate_step {
    cedar_cost_load load;
    cedar_cut cut;
    double ns;
    uint32_t decode_entries, prefill_entries;
    cedar_calibrate_use use;
} cedar_calibrate_step;

/* One figure that is fitted. */
typedef struct cedar_calibrate_figure {
    const cedar_hardware_key *key;
    double before, after;
    double slope;               /* rms relative change of fitted steps' prices over that of the figure */
} cedar_calibrate_figure;

/* Errors of steps: mean and worst of |price / measured - 1|, the mean with its sign, and the mean of what was measured
 * beyond the price. */
typedef struct cedar_calibrate_error {
    uint32_t steps;
    double mean, worst, bias, excess_ns;
} cedar_calibrate_error;

/* Holds out about one step in `of` times `out`: blocks of CEDAR_CALIBRATE_BLOCK consecutive steps are drawn from the
 * stream "calibrate.held_out" under `seed`, since neighbours hardly differ. Only steps with use FIT are touched. */
void cedar_calibrate_hold_out(cedar_calibrate_step *steps, size_t count, uint32_t out, uint32_t of, uint64_t seed);

/* Changes the figures of *hw that the steps with use FIT can tell. CEDAR_E_ARG: too few of them, or a description that
 * cannot be priced. *count figures are written to `out`. */
cedar_status cedar_calibrate_fit(const cedar_config *c, cedar_graphs graphs, const cedar_calibrate_step *steps,
                                 size_t step_count, cedar_hardware *hw, cedar_calibrate_figure *out, uint32_t *count,
                                 cedar_err *err) CEDAR_USE_RESULT;

/* Adds a step's error to the sums; cedar_calibrate_error_end makes means of them. */
void cedar_calibrate_error_add(cedar_calibrate_error *e, double price_ns, double measured_ns);
void cedar_calibrate_error_end(cedar_calibrate_error *e);

#endif
