/* Scenario files of the program: one, or several that write one database after each other.
 *
 * Several are kept as one text, with a line of one form feed between them, which is white space to Lua and to a reader;
 * names are joined likewise by " + ". Each is played as a program of its own, with its own name and lines in messages,
 * by `cedar run` and from the stored text by `cedar replay`. */
#ifndef CEDAR_SIM_CLI_SCENARIO_H
#define CEDAR_SIM_CLI_SCENARIO_H

#include "lua/script.h"

typedef struct cedar_cli_scenario {
    char *path, *text;              /* of all parts; owned (cedar_cli_scenario_free) */
    size_t bytes;
} cedar_cli_scenario;

/* Reads `count` files, each as given or else under data_dir. */
cedar_status cedar_cli_scenario_read(char *const *paths, int count, const char *data_dir, cedar_cli_scenario *out,
                                     cedar_err *err) CEDAR_USE_RESULT;
void cedar_cli_scenario_free(cedar_cli_scenario *s);

/* Plays the parts in order. A failed expectation does not keep the next part from being played; anything else does.
 * opts: but name, text and bytes. */
cedar_status cedar_cli_scenario_play(const cedar_cli_scenario *s, const cedar_script_opts *opts,
                                     const cedar_script_host *host, cedar_err *err) CEDAR_USE_RESULT;

#endif
