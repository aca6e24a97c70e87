/* Hardware descriptions: small Lua files that return one table of figures, each with its source. No Lua type here. */
#ifndef CEDAR_LUA_HARDWARE_H
#define CEDAR_LUA_HARDWARE_H

#include "sim/cost.h"

/* Reads a description: `return { name = "...", gpus = { 1, "why" }, ... }`. Figures are numbers, or a number and its
 * source. Unknown keys, missing figures and figures out of range are CEDAR_E_FORMAT and name file and key. The file
 * runs without any library and with an instruction limit. */
cedar_status cedar_hardware_load(const char *path, cedar_hardware *out, cedar_err *err) CEDAR_USE_RESULT;

/* By name: DATA_DIR/scenarios/hardware/NAME.lua; anything with a slash or ending in .lua is a path. */
cedar_status cedar_hardware_find(const char *data_dir, const char *name, cedar_hardware *out,
                                 cedar_err *err) CEDAR_USE_RESULT;

#endif
