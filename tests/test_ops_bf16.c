/* The CPU operators in float with bf16 rounding. The suite is shared: ops_suite.h. */
#define CEDAR_ARITH_BF16
#include "tests/ops_suite.h"
