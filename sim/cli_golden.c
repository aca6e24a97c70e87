/* cedar check-golden: the engine against golden vectors. */
#include <getopt.h>
#include <string.h>

#include "engine/engine.h"
#include "sim/cli_int.h"

static void print_line(void *self, bool ok, const char *text) {
    (void)self;
    printf("%s %s\n", ok ? "ok  " : "MISS", text);
}

int cedar_cli_check_golden(int argc, char **argv) {
    static const struct option options[] = { { "backend", required_argument, NULL, 'b' },
                                             { "arith", required_argument, NULL, 'a' },
                                             { "threads", required_argument, NULL, 'j' },
                                             { "gpus", required_argument, NULL, 'g' },
                                             { "verbose", no_argument, NULL, 'v' },
                                             { NULL, 0, NULL, 0 } };
    uint64_t count;
    cedar_golden_opts o = { .backend = "cpu", .arith = CEDAR_WIDE, .line = print_line };
    for (int c; (c = getopt_long(argc, argv, "b:a:j:g:v", options, NULL)) != -1;) {
        if (c == 'b') o.backend = optarg;
        else if (c == 'v') o.verbose = true;
        else if (c == 'a' && !cedar_cli_arith("check-golden", optarg, &o.arith)) return CEDAR_EXIT_USAGE;
        else if (c == 'j') {
            if (!cedar_cli_count("check-golden", "--threads", optarg, 0, 4096, &count)) return CEDAR_EXIT_USAGE;
            o.threads = (uint32_t)count;
        } else if (c == 'g') {
            if (!cedar_cli_count("check-golden", "--gpus", optarg, 1, CEDAR_GPUS_MAX, &count)) return CEDAR_EXIT_USAGE;
            o.gpus = (uint32_t)count;
        } else if (c != 'a') return cedar_cli_usage("check-golden", "an option is wrong");
    }
    if (optind == argc) return cedar_cli_usage("check-golden", "give at least one directory");
    uint32_t missed = 0;
    for (int i = optind; i < argc; i++) {
        uint32_t checked = 0, failed = 0;
        cedar_err err = { 0 };
        if (cedar_golden_check(argv[i], &o, &checked, &failed, &err)) return cedar_cli_fail(&err);
        printf("%s: %u quantities checked, %u miss\n", argv[i], checked, failed);
        missed += failed;
    }
    return missed ? CEDAR_EXIT_DIVERGED : CEDAR_EXIT_OK;
}
