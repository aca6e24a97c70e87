/* The golden vectors in all arithmetics, as cedar check-golden runs them. */
#include "tests/engine_rig.h"
#include "tests/gpu/suites.h"

/* tiny-s1-ref is what the oracle's bf16 gives, one block deep: for that arithmetic alone. */
static const struct { const char *dir; cedar_arith arith; const char *name; uint32_t gpus; } cases[] = {
    { "tests/golden/tiny-s1", CEDAR_WIDE, "wide", 1 },   { "tests/golden/tiny-s1", CEDAR_F32, "f32", 1 },
    { "tests/golden/tiny-s1", CEDAR_BF16, "bf16", 1 },   { "tests/golden/tiny2-s1", CEDAR_WIDE, "wide", 1 },
    { "tests/golden/tiny2-s1", CEDAR_F32, "f32", 1 },    { "tests/golden/tiny2-s1", CEDAR_BF16, "bf16", 1 },
    { "tests/golden/tiny-s1-ref", CEDAR_BF16, "bf16", 1 },
    /* in bf16 several ranks round their parts, as the vectors' one does not */
    { "tests/golden/tiny-s1", CEDAR_WIDE, "wide", 2 },   { "tests/golden/tiny-s1", CEDAR_F32, "f32", 2 },
    { "tests/golden/tiny2-s1", CEDAR_WIDE, "wide", 3 },  { "tests/golden/tiny2-s1", CEDAR_F32, "f32", 2 },
};
enum { CASES = sizeof cases / sizeof *cases };

static void miss(void *self, bool ok, const char *text) {
    (void)self;
    if (!ok) printf("MISS %s\n", text);
}

START_TEST(golden) {
    uint32_t checked = 0, failed = 0;
    const cedar_golden_opts o = { .backend = gpu_backend, .arith = cases[_i].arith, .gpus = cases[_i].gpus,
                                  .line = miss };
    OK(cedar_golden_check(cases[_i].dir, &o, &checked, &failed, err));
    printf("golden %s %s on %u: %u quantities, %u miss\n", cases[_i].dir, cases[_i].name, cases[_i].gpus, checked,
           failed);
    ck_assert_uint_gt(checked, 0);
    ck_assert_uint_eq(failed, 0);
}
END_TEST

Suite *gpu_golden_suite(void) {
    Suite *s = suite_create("gpu golden");
    TCase *t = tcase_create("golden");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, golden, 0, CASES);
    suite_add_tcase(s, t);
    return s;
}
