/* Tests that take minutes under a sanitizer, and show as much there with fewer rounds: a sanitizer looks at what code
 * does to memory, and more positions, arithmetics or chunks of a kind go through the same code. The other builds run
 * all rounds and compare the numbers. CEDAR_BRIEF in the environment is for a second build without sanitizer: it drops
 * what only repeats a comparison on more of a kind. */
#ifndef CEDAR_TESTS_SANITIZED_H
#define CEDAR_TESTS_SANITIZED_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

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

/* The same for a brief run too. */
static inline bool brief_skips(const char *test, int repeat) {
    if (repeat == 0 || !getenv("CEDAR_BRIEF")) return sanitized_skips(test, repeat);
    printf("SKIP %s %d: one of a kind is enough for a second compiler; make test runs it\n", test, repeat);
    fflush(stdout);
    return true;
}

/* Built with a sanitizer: true for all but every `every`-th round of a loop inside a test. */
static inline bool sanitized_drops(uint32_t round, uint32_t every) {
#ifdef CEDAR_SANITIZED
    return round % every != 0;
#else
    (void)round;
    (void)every;
    return false;
#endif
}

#endif
