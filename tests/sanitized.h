/* Tests that take minutes under a sanitizer. */
#ifndef CEDAR_TESTS_SANITIZED_H
#define CEDAR_TESTS_SANITIZED_H

#include <stdbool.h>
#include <stdio.h>

/* Built with a sanitizer: true for all repeats but the first, which are thereby skipped, and said to be. */
static inline bool sanitized_skips(const char *test, int repeat) {
#ifdef CEDAR_SANITIZED
    if (repeat == 0) return false;
    printf("SKIP %s %d: takes minutes under a sanitizer; make test runs it\n", test, repeat);
    fflush(stdout);
    return true;
#else
    (void)test;
    (void)repeat;
    return false;
#endif
}

#endif
