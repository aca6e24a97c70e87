/* Status codes and error details, shared by every module.
 *
 * 0 is success everywhere, failures are negative. A function that can fail returns cedar_status and fills a
 * caller-owned cedar_err with one sentence a user can act on. Libraries never print and never exit.
 * Threads: no state. Allocation: none. */
#ifndef CEDAR_BASE_STATUS_H
#define CEDAR_BASE_STATUS_H

#include <stdint.h>

typedef enum cedar_status {
    CEDAR_OK = 0,
    CEDAR_E_ARG = -1,         /* the caller asked for something that makes no sense */
    CEDAR_E_IO = -2,          /* a file could not be opened, read or written */
    CEDAR_E_FORMAT = -3,      /* a file's content is not what its format says */
    CEDAR_E_BUDGET = -4,      /* a plan does not fit the memory it was given */
    CEDAR_E_OOM = -5,         /* the system refused memory */
    CEDAR_E_CUDA = -6,
    CEDAR_E_NCCL = -7,
    CEDAR_E_UNSUPPORTED = -8, /* valid, but this build or backend cannot do it */
    CEDAR_E_BUSY = -9,        /* not now: pages or slots are taken; the same call may succeed later */
    CEDAR_E_EXPECT = -10,     /* an expectation of the scenario does not hold */
    CEDAR_E_LIVENESS = -11,   /* no progress is possible */
    CEDAR_E_DIVERGED = -12,   /* a repeated run differs from the recorded one */
    CEDAR_E_DB = -13,         /* SQLite refused */
    CEDAR_E_SCRIPT = -14,     /* the scenario raised an error */
    CEDAR_E_INTERRUPT = -15   /* the user asked to stop */
} cedar_status;

typedef struct cedar_err {
    cedar_status code;
    char msg[480];            /* one sentence; "" while code is CEDAR_OK */
} cedar_err;

#define CEDAR_USE_RESULT __attribute__((warn_unused_result))

/* Fills err (NULL is allowed) and returns code, so that `return cedar_fail(err, CEDAR_E_IO, ...)` reads well.
 * A message that does not fit is cut and ends in "...". */
cedar_status cedar_fail(cedar_err *err, cedar_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " in front of the message of an error on its way up, sets its code (NULL is allowed) and returns it.
 * Cut as above. */
cedar_status cedar_fail_in(cedar_err *err, cedar_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A failure on the way out of another: "; sentence" behind its message, and its code stays. Else as cedar_fail. */
cedar_status cedar_fail_too(cedar_err *err, cedar_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Short name of a code, e.g. "format". Never NULL. */
const char *cedar_status_name(cedar_status code);

/* Programmer errors: on in every build, prints place and condition, aborts. */
void cedar_assert_failed(const char *file, int line, const char *what) __attribute__((noreturn));
#define CEDAR_ASSERT(x) ((x) ? (void)0 : cedar_assert_failed(__FILE__, __LINE__, #x))

#endif
