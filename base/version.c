/* Owns the version, and the facts of this build that the Makefile writes into build_info.h. */
#include "base/version.h"

#ifndef CEDAR_BUILD_COMMIT      /* compiled by hand */
#define CEDAR_BUILD_COMMIT ""
#define CEDAR_BUILD_DIRTY false
#define CEDAR_BUILD_COMPILER __VERSION__
#define CEDAR_BUILD_FLAGS ""
#endif

const char *cedar_version(void) { return "0.1.0"; }
const char *cedar_build_commit(void) { return CEDAR_BUILD_COMMIT; }
bool cedar_build_dirty(void) { return CEDAR_BUILD_DIRTY; }
const char *cedar_build_compiler(void) { return CEDAR_BUILD_COMPILER; }
const char *cedar_build_flags(void) { return CEDAR_BUILD_FLAGS; }
