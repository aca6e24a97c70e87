/* Records of AIPerf's profile_export.jsonl, one request a line. Not for other modules.
 *
 * Newer files write a metric as {"value": 400.0, "unit": "ms"}, older ones as a plain number (times in ms) and without
 * a benchmark_phase. Unknown fields are ignored. docs/IMPORT.md has the fields that are read.
 * Threads: no state. Errors: base/status.h; messages name file, line and field. */
#ifndef CEDAR_REPORTS_AIPERF_H
#define CEDAR_REPORTS_AIPERF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/status.h"

enum { AIPERF_ERROR_BYTES = 512 };

/* Texts are borrowed from doc, "" when absent. Times in ns. */
typedef struct aiperf_record {
    cedar_json *doc;                /* owned: aiperf_record_free */
    const char *conversation, *correlation, *root, *phase;
    int64_t session_num;            /* -1 when absent */
    int32_t turn;
    int64_t start_ns, end_ns;       /* of the request, on the file's clock; end is when the response was complete */
    int64_t ttft_ns, latency_ns;    /* -1 when absent or below 0 */
    uint32_t in_tokens, out_tokens;
    bool failed, cancelled;         /* a cancelled request has failed */
    bool itl_differs;               /* the file's own ITL is not (latency - TTFT) / (OSL - 1) */
    char error[AIPERF_ERROR_BYTES]; /* "" unless failed */
} aiperf_record;

/* Parses one line; `name` and `line` go into messages. A line that is not a usable record is CEDAR_E_FORMAT, and *out
 * is then empty. */
cedar_status aiperf_record_parse(const char *text, size_t bytes, const char *name, int line, aiperf_record *out,
                                 cedar_err *err) CEDAR_USE_RESULT;
void aiperf_record_free(aiperf_record *r);

/* Lines of a file, hashed while they are read. */
typedef struct aiperf_lines {
    FILE *file;                     /* borrowed */
    const char *name;               /* borrowed */
    char *text;                     /* the current line, without its end */
    size_t bytes, room;
    int line;                       /* its number, 1 for the first */
    cedar_sha256 hash;
} aiperf_lines;

/* Starts at the beginning of a file that can be read again. */
cedar_status aiperf_lines_open(aiperf_lines *l, FILE *file, const char *name, cedar_err *err) CEDAR_USE_RESULT;

/* Next line that is not blank; *more is false at the end. */
cedar_status aiperf_lines_next(aiperf_lines *l, bool *more, cedar_err *err) CEDAR_USE_RESULT;
void aiperf_lines_close(aiperf_lines *l);

#endif
