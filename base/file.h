/* Whole files into memory.
 *
 * Threads: no state. Memory: base/mem.h. */
#ifndef CEDAR_BASE_FILE_H
#define CEDAR_BASE_FILE_H

#include <stddef.h>

#include "base/status.h"

/* The bytes of a file, and a 0 behind them that is not counted; *text is owned by the caller (cedar_free). A file of
 * more than bytes_max bytes is CEDAR_E_FORMAT, one that cannot be read CEDAR_E_IO. Pipes are read to their end. */
cedar_status cedar_file_read(const char *path, size_t bytes_max, char **text, size_t *bytes,
                             cedar_err *err) CEDAR_USE_RESULT;

#endif
