/* Private to the program: its verbs and what they share. The only part of cedar that prints and ends processes.
 *
 * Each verb gets the words behind its name and returns the exit code. */
#ifndef CEDAR_SIM_CLI_INT_H
#define CEDAR_SIM_CLI_INT_H

#include <stdbool.h>
#include <stdio.h>

#include "engine/engine.h"
#include "sim/sim.h"

enum {
    CEDAR_EXIT_OK = 0, CEDAR_EXIT_USAGE = 1, CEDAR_EXIT_EXPECT = 2, CEDAR_EXIT_LIVENESS = 3, CEDAR_EXIT_DIVERGED = 4,
    CEDAR_EXIT_ENVIRONMENT = 5, CEDAR_EXIT_SIGNAL = 128     /* plus the signal's number */
};

typedef struct cedar_verb {
    const char *name, *summary;
    const char *help;                       /* usage, options, examples */
    int (*run)(int argc, char **argv);      /* argv[0] is the verb */
} cedar_verb;

int cedar_cli_run(int argc, char **argv);
int cedar_cli_replay(int argc, char **argv);
int cedar_cli_report(int argc, char **argv);
int cedar_cli_trace(int argc, char **argv);
int cedar_cli_plan(int argc, char **argv);
int cedar_cli_check_golden(int argc, char **argv);
int cedar_cli_score(int argc, char **argv);
int cedar_cli_calibrate(int argc, char **argv);
int cedar_cli_bench(int argc, char **argv);
int cedar_cli_serve(int argc, char **argv);

/* What `cedar bench` measures; argv[0] is the subject. */
int cedar_cli_bench_sim(int argc, char **argv);
int cedar_cli_bench_gpu(int argc, char **argv);

struct cedar_paired_opts;
struct cedar_paired;

/* Runs of a database compared request by request, with bootstrap intervals over sessions. */
cedar_status cedar_cli_paired(const char *db, const struct cedar_paired_opts *o, struct cedar_paired *out,
                              cedar_err *err) CEDAR_USE_RESULT;

/* Prints "cedar: MESSAGE" to stderr and returns the exit code of the error's class. */
int cedar_cli_fail(const cedar_err *err);
int cedar_cli_exit_code(cedar_status st);

/* Prints a usage error that names the verb and where to read on. */
int cedar_cli_usage(const char *verb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A whole number behind an option, into *out; false after a usage error that names the option and what it takes. */
bool cedar_cli_count(const char *verb, const char *option, const char *text, uint64_t least, uint64_t most,
                     uint64_t *out);

/* The arithmetic behind --arith; false after a usage error. */
bool cedar_cli_arith(const char *verb, const char *text, cedar_arith *out);

/* Where scenarios/ and traces/ are: CEDAR_HOME, else as built in, else found from the program's own place, else ".". */
void cedar_cli_data_dir(char *out, size_t bytes);

/* What a database was made from. */
typedef struct cedar_cli_source {
    const char *path, *text;                /* of the scenario */
    const char *const *words;               /* [word_count] key=value words of the command line */
    size_t word_count;
    uint64_t seed;
} cedar_cli_source;

struct cedar_store;

/* Makes the database and writes its first row. After a failure *out is NULL or to be closed. */
cedar_status cedar_cli_store(const char *db, bool replace, const cedar_cli_source *source, struct cedar_store **out,
                             cedar_err *err) CEDAR_USE_RESULT;

/* A folder that takes no files is said before a model is loaded for nothing. */
cedar_status cedar_cli_check_place(const char *db, cedar_err *err) CEDAR_USE_RESULT;

/* SIGINT and SIGTERM set a flag from here on; a second one ends the process as usual. */
void cedar_cli_catch_signals(void);
const volatile int *cedar_cli_stop(void);   /* 0, or the signal's number */

/* The program as the user calls it, for commands in messages: "./cedar", or "cedar" when it was found in the path. */
const char *cedar_cli_program(void);

/* Columns of the terminal behind `to` (80 when it is none), and whether colours are wanted there. */
int cedar_cli_width(FILE *to);
bool cedar_cli_color(FILE *to);

#endif
