/* All that test_engine.c asks of an engine, asked of two ranks: the same bits whatever the batch, the chunks, the
 * threads and the pages; replay, stored windows, rollback, drafts, refusals. */
#define RIG_GPUS 2
#include "tests/test_engine.c"
