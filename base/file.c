/* Whole files into memory, and how many may be open. */
#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/mem.h"

enum { FILES_OF_OTHERS = 64 };  /* databases, logs, standard streams */

/* Fills *buf, which grows as needed: sizes that the system tells are not trusted, since pipes have none and files grow.
 * *buf is the caller's to free, also after a failure. */
static cedar_status read_all(FILE *f, const char *path, size_t bytes_max, char **buf, size_t *bytes, cedar_err *err) {
    size_t n = 0, room = 0, got = 1;
    while (got) {
        if (room - n < 4096) {
            size_t wanted = room ? 2 * room : (size_t)1 << 16;
            char *grown = cedar_realloc(*buf, wanted, 1);
            if (!grown) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu bytes", path, wanted);
            *buf = grown;
            room = wanted;
        }
        got = fread(*buf + n, 1, room - n - 1, f);
        n += got;
        if (n > bytes_max)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: larger than the %zu bytes allowed here", path, bytes_max);
    }
    if (ferror(f)) return cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    (*buf)[n] = 0;
    *bytes = n;
    return CEDAR_OK;
}

cedar_status cedar_file_read(const char *path, size_t bytes_max, char **text, size_t *bytes, cedar_err *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    char *buf = NULL;
    size_t n = 0;
    cedar_status st = read_all(f, path, bytes_max, &buf, &n, err);
    fclose(f);
    if (st) {
        cedar_free(buf);
        return st;
    }
    *text = buf;
    *bytes = n;
    return CEDAR_OK;
}

cedar_status cedar_files_allow(uint32_t connections, const char *lower, cedar_err *err) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files)) return CEDAR_OK;
    rlim_t want = connections ? (rlim_t)connections + FILES_OF_OTHERS : files.rlim_max;
    if (want <= files.rlim_cur) return CEDAR_OK;
    unsigned long long most = files.rlim_max;
    files.rlim_cur = want;
    if (want <= files.rlim_max && !setrlimit(RLIMIT_NOFILE, &files)) return CEDAR_OK;
    if (!connections) return CEDAR_OK;      /* nobody asked for a number: what the soft limit gives is what there is */
    return cedar_fail(err, CEDAR_E_UNSUPPORTED,
                      "%u connections need %llu open files, and the system allows %llu; raise the limit (ulimit -n) or "
                      "lower %s", connections, (unsigned long long)want, most, lower);
}
