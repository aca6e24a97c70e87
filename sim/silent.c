/* An observer that keeps nothing: for runs of which only the result counts. */
#include <stddef.h>

#include "sim/observer.h"

static cedar_status no_run(void *self, const cedar_run_row *row, cedar_err *err) {
    return (void)self, (void)row, (void)err, CEDAR_OK;
}
static cedar_status no_session(void *self, const cedar_session_row *row, cedar_err *err) {
    return (void)self, (void)row, (void)err, CEDAR_OK;
}
static cedar_status no_request(void *self, const cedar_request_row *row, cedar_err *err) {
    return (void)self, (void)row, (void)err, CEDAR_OK;
}
static cedar_status no_step(void *self, const cedar_step_row *row, cedar_err *err) {
    return (void)self, (void)row, (void)err, CEDAR_OK;
}
static cedar_status no_quality(void *self, const cedar_quality_row *row, cedar_err *err) {
    return (void)self, (void)row, (void)err, CEDAR_OK;
}
static cedar_status no_end(void *self, const cedar_run_end_row *row, cedar_err *err) {
    return (void)self, (void)row, (void)err, CEDAR_OK;
}

const cedar_observer cedar_observer_silent = { .run_begin = no_run, .session = no_session, .request = no_request,
                                               .step = no_step, .quality = no_quality, .run_end = no_end };
