/* cedar bench: finds the subject. */
#include <string.h>

#include "sim/cli_int.h"

static const struct subject { const char *name; int (*run)(int argc, char **argv); } subjects[] = {
    { "sim", cedar_cli_bench_sim },
    { "gpu", cedar_cli_bench_gpu },
};

int cedar_cli_bench(int argc, char **argv) {
    const char *names[8];
    size_t count = sizeof subjects / sizeof *subjects;
    if (argc < 2) return cedar_cli_usage("bench", "say what to measure");
    for (size_t i = 0; i < count; i++) {
        if (strcmp(argv[1], subjects[i].name) == 0) return subjects[i].run(argc - 1, argv + 1);
        names[i] = subjects[i].name;
    }
    const char *near = cedar_nearest(argv[1], names, count);
    if (near) return cedar_cli_usage("bench", "there is no \"%s\"; do you mean \"%s\"?", argv[1], near);
    return cedar_cli_usage("bench", "there is no \"%s\"", argv[1]);
}
