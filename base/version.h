/* What this program was built from, and how: the first thing a result needs to be repeated.
 *
 * Strings live as long as the program. Threads: no state. Allocation: none. */
#ifndef CEDAR_BASE_VERSION_H
#define CEDAR_BASE_VERSION_H

#include <stdbool.h>

const char *cedar_version(void);            /* "0.1.0" */
const char *cedar_build_commit(void);       /* 40 hexadecimal digits; "" when built outside its repository */
bool cedar_build_dirty(void);               /* built from files that differ from the commit */
const char *cedar_build_compiler(void);     /* e.g. "gcc 12.2.0" */
const char *cedar_build_flags(void);        /* those that can change results or speed, e.g. "-O3 -g" */

#endif
