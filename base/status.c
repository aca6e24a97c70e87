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
        if (n < 0 || n >= (int)sizeof err->msg) n = (int)sizeof err->msg - 1;
        size_t room = sizeof err->msg - (size_t)n;
        mark_cut(err->msg + n, room < 4 ? 0 : room, room < 4 ? -1 : snprintf(err->msg + n, room, ": %s", inner));
        err->code = code;
    }
    return code;
}

const char *cedar_status_name(cedar_status code) {
    static const char *const names[] = { "ok", "argument", "io", "format", "budget", "out of memory", "cuda", "nccl",
                                         "unsupported", "busy", "expectation", "no progress", "diverged", "database",
                                         "script", "interrupted" };
    int i = -(int)code;
    return i >= 0 && i < (int)(sizeof names / sizeof *names) ? names[i] : "unknown";
}

void cedar_assert_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "cedar: internal error at %s:%d: %s\nPlease report this with the command that led here.\n", file,
            line, what);
    abort();
}
