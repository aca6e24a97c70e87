/* The CPU operators in double. The suite is shared: ops_suite.h. */
#define CEDAR_ARITH_WIDE
#include "tests/ops_suite.h"
