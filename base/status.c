/* Error details. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void mark_cut(char *buf, size_t size, int wanted) {
    if (wanted >= (int)size) memcpy(buf + size - 4, "...", 4);
}

cedar_status cedar_fail(cedar_err *err, cedar_status code, const char *fmt, ...) {
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        mark_cut(err->msg, sizeof err->msg, vsnprintf(err->msg, sizeof err->msg, fmt, ap));
        va_end(ap);
    }
    return code;
}

cedar_status cedar_fail_in(cedar_err *err, cedar_status code, const char *fmt, ...) {
    if (err) {
        char inner[sizeof err->msg];
        memcpy(inner, err->msg, sizeof inner);
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        size_t used = n < 0 ? 0 : n < (int)sizeof err->msg ? (size_t)n : sizeof err->msg - 1;
        int more = snprintf(err->msg + used, sizeof err->msg - used, ": %s", inner);
        mark_cut(err->msg, sizeof err->msg, (int)used + more);
        err->code = code;
    }
    return code;
}

cedar_status cedar_fail_too(cedar_err *err, cedar_status code, const char *fmt, ...) {
    if (err) {
        size_t used = err->code ? strlen(err->msg) : 0, room = sizeof err->msg;
        if (used && used + 2 < room) memcpy(err->msg + used, "; ", 3);
        used += used && used + 2 < room ? 2 : 0;
        va_list ap;
        va_start(ap, fmt);
        int more = vsnprintf(err->msg + used, room - used, fmt, ap);
        va_end(ap);
        mark_cut(err->msg, room, (int)used + more);
        if (!err->code) err->code = code;
    }
    return code;
}

const char *cedar_status_name(cedar_status code) {
    static const char *const names[] = { "ok", "argument", "io", "format", "budget", "out of memory", "cuda", "nccl",
                                         "unsupported", "busy", "expectation", "no progress", "diverged", "database",
                                         "script", "interrupted" };
    const int count = (int)(sizeof names / sizeof *names);
    return code <= 0 && (int)code > -count ? names[-(int)code] : "unknown";
}

void cedar_assert_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "cedar: internal error at %s:%d: %s\nPlease report this with the command that led here.\n", file,
            line, what);
    abort();
}
