/* Assumptions changed for one run: figures of a hardware description that are set otherwise. Pure functions. */
#ifndef CEDAR_SIM_ASSUME_H
#define CEDAR_SIM_ASSUME_H

#include "sim/cost.h"

/* Sets the figures of text, "key=value,key=value"; "" changes nothing. An unknown figure names the nearest one, a value
 * out of range names the range; then *hw may be changed in part. */
cedar_status cedar_hardware_assume(cedar_hardware *hw, const char *text, cedar_err *err) CEDAR_USE_RESULT;

#endif
