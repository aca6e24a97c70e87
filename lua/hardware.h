/* Hardware descriptions: small Lua files that return one table of figures, each with its source. No Lua type here. */
#ifndef CEDAR_LUA_HARDWARE_H
#define CEDAR_LUA_HARDWARE_H

#include "sim/cost.h"

enum { CEDAR_HARDWARE_FIGURES_MAX = 40, CEDAR_HARDWARE_SOURCE_MAX = 256 };

/* The source of each figure, in the order of cedar_hardware_keys; "" where none is given. */
typedef struct cedar_hardware_sources {
    char text[CEDAR_HARDWARE_FIGURES_MAX][CEDAR_HARDWARE_SOURCE_MAX];
} cedar_hardware_sources;

/* Reads a description: `return { name = "...", gpus = { 1, "why" }, ... }`. Figures are numbers, or a number and its
 * source. Unknown keys, missing figures and figures out of range are CEDAR_E_FORMAT and name file and key. The file
 * runs without any library and with an instruction limit. `sources` may be NULL; longer ones are cut. */
cedar_status cedar_hardware_load(const char *path, cedar_hardware *out, cedar_hardware_sources *sources,
                                 cedar_err *err) CEDAR_USE_RESULT;

/* By name: DATA_DIR/scenarios/hardware/NAME.lua; anything with a slash or ending in .lua is a path. The first
 * without sources. */
cedar_status cedar_hardware_find(const char *data_dir, const char *name, cedar_hardware *out,
                                 cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_hardware_find_sources(const char *data_dir, const char *name, cedar_hardware *out,
                                         cedar_hardware_sources *sources, cedar_err *err) CEDAR_USE_RESULT;

#endif
