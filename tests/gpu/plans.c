/* Random step plans on the GPU (tests/walks.h). */
#include "tests/walks.h"
#include "tests/gpu/suites.h"

START_TEST(plans_wide) { play_walk(_i, CEDAR_WIDE, gpu_backend, 1); }
END_TEST

START_TEST(plans_f32) { play_walk(_i, CEDAR_F32, gpu_backend, 1); }
END_TEST

/* Ranks, which may share a GPU, beside a CPU engine that is one. The shape tiny2 has room for three. */
static uint32_t ranks_of(int number) { return number / MODES && number % 2 ? 3 : 2; }

START_TEST(ranks_wide) { play_walk(_i, CEDAR_WIDE, gpu_backend, ranks_of(_i)); }
END_TEST

START_TEST(ranks_f32) { play_walk(_i, CEDAR_F32, gpu_backend, ranks_of(_i)); }
END_TEST

Suite *gpu_plans_suite(void) {
    Suite *s = suite_create("gpu plans");
    TCase *t = tcase_create("plans");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, plans_wide, 0, WALKS);
    tcase_add_loop_test(t, plans_f32, 0, WALKS);
    tcase_add_loop_test(t, ranks_wide, 0, WALKS);
    tcase_add_loop_test(t, ranks_f32, 0, WALKS);
    suite_add_tcase(s, t);
    return s;
}
