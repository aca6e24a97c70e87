/* The CPU operators in float. The suite is shared: ops_suite.h. */
#define CEDAR_ARITH_F32
#include "tests/ops_suite.h"
