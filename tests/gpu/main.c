/* make test-gpu: the CUDA engine on a GPU. Run from the folder of the sources. Without a GPU it says so and passes.
 *
 *     test_gpu [--backend NAME] [SUITE...]
 *
 * --backend cpu puts the CPU engine in the place of the one under test, which tests the suites golden, same_bits and
 * plans where there is no GPU. Each test runs in a process of its own; the parent never touches CUDA. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/backend.h"
#include "tests/gpu/suites.h"

const char *gpu_backend = "cuda";

/* kernels: the suite is about kernels of the CUDA engine, which no other backend has. */
static const struct { const char *name; Suite *(*make)(void); bool kernels; } suites[] = {
    { "operators", gpu_operators_suite, true },  { "ranks", gpu_ranks_suite, true },
    { "same_bits", gpu_same_bits_suite, false }, { "plans", gpu_plans_suite, false },
    { "golden", gpu_golden_suite, false },
};

/* In a child: CUDA must not have been started in a process that forks. */
static bool gpu_present(void) {
#ifdef CEDAR_HAVE_CUDA
    int status = 1;
    pid_t child = fork();
    if (child == 0) _exit(cedar_cuda_present() ? 0 : 1);
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
#else
    return false;
#endif
}

static bool chosen(const char *name, int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (!strcmp(name, argv[i])) return true;
    return argc == 0;
}

int main(int argc, char **argv) {
    argc--;
    argv++;
    if (argc >= 2 && !strcmp(argv[0], "--backend")) {
        gpu_backend = argv[1];
        argc -= 2;
        argv += 2;
    }
    bool cuda = !strcmp(gpu_backend, "cuda");
    /* Ranks that share a GPU: a kernel that waits for another rank's must not keep it from being loaded or queued. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    if (cuda && !gpu_present()) {
        puts("test_gpu: skipped, there is no GPU on this machine that CUDA can use");
        return EXIT_SUCCESS;
    }
    int failed = 0, run = 0;
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        if (!chosen(suites[i].name, argc, argv) || (!cuda && suites[i].kernels)) continue;
        SRunner *r = srunner_create(suites[i].make());
        srunner_run_all(r, CK_VERBOSE);
        failed += srunner_ntests_failed(r);
        run += srunner_ntests_run(r);
        srunner_free(r);
    }
    printf("test_gpu: %d passed, %d failed, backend %s\n", run - failed, failed, gpu_backend);
    return failed || !run ? EXIT_FAILURE : EXIT_SUCCESS;
}
