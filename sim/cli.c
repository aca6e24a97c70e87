/* What the verbs share: errors and exit codes, options, places, signals, the terminal. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "sim/cli_int.h"

int cedar_cli_exit_code(cedar_status st) {
    switch (st) {
    case CEDAR_OK: return CEDAR_EXIT_OK;
    case CEDAR_E_ARG:
    case CEDAR_E_SCRIPT: return CEDAR_EXIT_USAGE;
    case CEDAR_E_EXPECT: return CEDAR_EXIT_EXPECT;
    case CEDAR_E_LIVENESS: return CEDAR_EXIT_LIVENESS;
    case CEDAR_E_DIVERGED: return CEDAR_EXIT_DIVERGED;
    case CEDAR_E_INTERRUPT: return CEDAR_EXIT_SIGNAL + (*cedar_cli_stop() ? *cedar_cli_stop() : SIGINT);
    default: return CEDAR_EXIT_ENVIRONMENT;
    }
}

const char *cedar_cli_program(void) {
    return strchr(program_invocation_name, '/') ? program_invocation_name : "cedar";
}

int cedar_cli_fail(const cedar_err *err) {
    fprintf(stderr, "cedar: %s\n", *err->msg ? err->msg : cedar_status_name(err->code));
    return cedar_cli_exit_code(err->code);
}

int cedar_cli_usage(const char *verb, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "cedar %s: ", verb);
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "; see `%s help %s`\n", cedar_cli_program(), verb);
    va_end(args);
    return CEDAR_EXIT_USAGE;
}

bool cedar_cli_count(const char *verb, const char *option, const char *text, uint64_t least, uint64_t most,
                     uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && n >= least && n <= most) {
        *out = n;
        return true;
    }
    cedar_cli_usage(verb, "%s is \"%s\"; it must be a whole number from %llu to %llu", option, text,
                    (unsigned long long)least, (unsigned long long)most);
    return false;
}

bool cedar_cli_arith(const char *verb, const char *text, cedar_arith *out) {
    static const char *const names[] = { "wide", "f32", "bf16" };
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (cedar_arith)i;
            return true;
        }
    cedar_cli_usage(verb, "--arith %s is none of wide, f32, bf16", text);
    return false;
}

/* --- places ------------------------------------------------------------------------------------------------------- */

void cedar_cli_data_dir(char *out, size_t bytes) {
    const char *home = getenv("CEDAR_HOME");
    if (home && *home) {
        snprintf(out, bytes, "%s", home);
        return;
    }
#ifdef CEDAR_DATA_DIR
    snprintf(out, bytes, "%s", CEDAR_DATA_DIR);
#else
    char path[512], probe[560];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    for (int level = 0; level <= 3; level++) {
        char *slash = strrchr(path, '/');
        if (!slash) break;
        *slash = 0;
        snprintf(probe, sizeof probe, "%s/scenarios", path);
        if (access(probe, R_OK) == 0) {
            snprintf(out, bytes, "%s", path);
            return;
        }
    }
    snprintf(out, bytes, ".");
#endif
}

/* --- signals ------------------------------------------------------------------------------------------------------ */

static volatile int stop_signal;    /* written by the handler, like the next */
static volatile int64_t first_signal_ns;

/* The first signal asks for an end after the running step. A later one ends the program at once; within a second of the
 * first it does not count, because `timeout` and terminals may send the same signal to a process and to its group. */
static void on_signal(int number) {
    int64_t now_ns = cedar_now_ns();
    if (!stop_signal) {
        stop_signal = number;
        first_signal_ns = now_ns;
    } else if (now_ns - first_signal_ns > 1000000000) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

void cedar_cli_catch_signals(void) {
    struct sigaction a = { .sa_handler = on_signal };
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

const volatile int *cedar_cli_stop(void) { return &stop_signal; }

/* --- terminal ----------------------------------------------------------------------------------------------------- */

int cedar_cli_width(FILE *to) {
    struct winsize w;
    return ioctl(fileno(to), TIOCGWINSZ, &w) == 0 && w.ws_col >= 20 ? w.ws_col : 80;
}

bool cedar_cli_color(FILE *to) {
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(to)) && !(none && *none) && !(term && strcmp(term, "dumb") == 0);
}
