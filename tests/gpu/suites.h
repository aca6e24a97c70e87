/* The suites of `make test-gpu`; each file of tests/gpu has one. */
#ifndef CEDAR_TESTS_GPU_SUITES_H
#define CEDAR_TESTS_GPU_SUITES_H

#include <check.h>

extern const char *gpu_backend;     /* the backend under test: "cuda", or another one to test the suites themselves */

Suite *gpu_golden_suite(void);
Suite *gpu_same_bits_suite(void);
Suite *gpu_plans_suite(void);
Suite *gpu_operators_suite(void);
Suite *gpu_ranks_suite(void);

#endif
