/* The machine's clock, for how long something took. Results that must repeat never depend on it.
 *
 * Threads: any; may be called in a signal handler. */
#ifndef CEDAR_BASE_CLOCK_H
#define CEDAR_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of a clock that is never set back; only differences mean anything. */
int64_t cedar_now_ns(void);

#endif
