/* Whole files into memory, and how many may be open.
 *
 * Threads: no state. Memory: base/mem.h. */
#ifndef CEDAR_BASE_FILE_H
#define CEDAR_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The bytes of a file, and a 0 behind them that is not counted; *text is owned by the caller (cedar_free). A file of
 * more than bytes_max bytes is CEDAR_E_FORMAT, one that cannot be read CEDAR_E_IO. Pipes are read to their end. */
cedar_status cedar_file_read(const char *path, size_t bytes_max, char **text, size_t *bytes,
                             cedar_err *err) CEDAR_USE_RESULT;

/* Lets the process open `connections` sockets beside its own files, 0: as many as the system allows. The soft limit is
 * often smaller than what may be had. CEDAR_E_UNSUPPORTED: it may not have so many; `lower` says what to lower then. */
cedar_status cedar_files_allow(uint32_t connections, const char *lower, cedar_err *err) CEDAR_USE_RESULT;

#endif
