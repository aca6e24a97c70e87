/* Owns the way from paths to text: reading files, undoing gzip, listing directories. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "base/mem.h"
#include "traces/traces_int.h"

static cedar_status too_large(const char *path, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: larger than the %zu bytes that one trace file may have; split it", path,
                      FILE_BYTES_MAX);
}

static cedar_status no_memory(const char *path, size_t bytes, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu bytes", path, bytes);
}

static cedar_status read_all(const char *path, char **out, size_t *bytes, cedar_err *err) {
    FILE *f = fopen(path, "rb");
    if (!f) return cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    char *buf = NULL;
    size_t n = 0, room = 0, got = 0;
    cedar_status st = CEDAR_OK;
    struct stat info;
    /* The size is a hint only: pipes have none and files may grow. One byte more lets the end show at once. */
    size_t hint = !fstat(fileno(f), &info) && info.st_size > 0 ? (size_t)info.st_size + 1 : (size_t)1 << 16;
    if (hint > FILE_BYTES_MAX + 1) st = too_large(path, err);
    while (!st) {
        if (n == room) {
            size_t wanted = room ? 2 * room : hint;
            char *grown = cedar_realloc(buf, wanted, 1);
            if (!grown) {
                st = no_memory(path, wanted, err);
                break;
            }
            buf = grown;
            room = wanted;
        }
        got = fread(buf + n, 1, room - n, f);
        n += got;
        if (n > FILE_BYTES_MAX) st = too_large(path, err);
        if (!got) break;
    }
    if (!st && ferror(f)) st = cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    fclose(f);
    if (st) {
        cedar_free(buf);
        return st;
    }
    *out = buf;
    *bytes = n;
    return CEDAR_OK;
}

static cedar_status bad_gzip(const char *path, const char *why, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: not a complete gzip file: %s", path, why ? why : "damaged data");
}

/* All members of a gzip file, one after the other (tools append members). */
static cedar_status inflate_all(const char *path, char *raw, size_t raw_bytes, char **out, size_t *bytes,
                                cedar_err *err) {
    z_stream z = { 0 };
    if (inflateInit2(&z, 15 + 16) != Z_OK) return no_memory(path, 0, err);
    char *buf = NULL;
    size_t n = 0, room = 0, fed = 0;
    cedar_status st = CEDAR_OK;
    int rc = Z_OK;
    for (;;) {
        if (n == room) {
            size_t wanted = room ? 2 * room : 4 * raw_bytes + 64;
            if (n > FILE_BYTES_MAX) {
                st = too_large(path, err);
                break;
            }
            char *grown = cedar_realloc(buf, wanted, 1);
            if (!grown) {
                st = no_memory(path, wanted, err);
                break;
            }
            buf = grown;
            room = wanted;
        }
        if (!z.avail_in) {
            size_t part = raw_bytes - fed < UINT32_MAX ? raw_bytes - fed : UINT32_MAX;
            z.next_in = (Bytef *)(raw + fed);
            z.avail_in = (uInt)part;
            fed += part;
        }
        size_t space = room - n < UINT32_MAX ? room - n : UINT32_MAX;
        z.next_out = (Bytef *)(buf + n);
        z.avail_out = (uInt)space;
        rc = inflate(&z, Z_NO_FLUSH);
        n += space - z.avail_out;
        if (rc == Z_STREAM_END) {
            if (!z.avail_in && fed == raw_bytes) break;
            if (inflateReset(&z) != Z_OK) {
                st = bad_gzip(path, z.msg, err);
                break;
            }
        } else if (rc != Z_OK && !(rc == Z_BUF_ERROR && n == room)) {
            st = bad_gzip(path, rc == Z_BUF_ERROR ? "it ends too early" : z.msg, err);
            break;
        }
    }
    inflateEnd(&z);
    if (!st && n > FILE_BYTES_MAX) st = too_large(path, err);
    if (st) {
        cedar_free(buf);
        return st;
    }
    *out = buf;
    *bytes = n;
    return CEDAR_OK;
}

cedar_status traces_file_read(const char *path, cedar_sha256 *sha, char **text, size_t *bytes, cedar_err *err) {
    char *raw = NULL;
    size_t n = 0;
    cedar_status st = read_all(path, &raw, &n, err);
    if (st) return st;
    cedar_sha256_add(sha, raw, n);
    bool gzip = n >= 2 && (unsigned char)raw[0] == 0x1f && (unsigned char)raw[1] == 0x8b;
    if (!gzip) {
        *text = raw;
        *bytes = n;
        return CEDAR_OK;
    }
    st = inflate_all(path, raw, n, text, bytes, err);
    cedar_free(raw);
    return st;
}

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), m = strlen(tail);
    return n > m && !strcmp(s + n - m, tail);
}

static bool is_trace_name(const char *name) {
    static const char *const tails[] = { ".json", ".jsonl", ".csv", ".json.gz", ".jsonl.gz", ".csv.gz" };
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (name[0] != '.' && ends_with(name, tails[i])) return true;
    return false;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void traces_paths_free(char **paths, size_t count) {
    for (size_t i = 0; i < count; i++) cedar_free(paths[i]);
    cedar_free(paths);
}

cedar_status traces_dir_list(const char *path, char ***paths, size_t *count, cedar_err *err) {
    DIR *d = opendir(path);
    if (!d) return cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    void *list = NULL;
    size_t n = 0, room = 0, m = strlen(path);
    while (m > 1 && path[m - 1] == '/') m--; /* so that messages and trace->file read the same with and without */
    cedar_status st = CEDAR_OK;
    const struct dirent *e;
    while (!st && (e = readdir(d))) {
        if (!is_trace_name(e->d_name)) continue;
        size_t bytes = m + strlen(e->d_name) + 2;
        char *full = cedar_calloc(bytes, 1);
        if (!full) {
            st = no_memory(path, bytes, err);
            break;
        }
        snprintf(full, bytes, "%.*s/%s", (int)m, path, e->d_name);
        struct stat info;
        if (stat(full, &info) || !S_ISREG(info.st_mode)) {
            cedar_free(full);
            continue;
        }
        st = traces_grow(&list, &room, n + 1, sizeof(char *), err);
        if (st) cedar_free(full);
        else ((char **)list)[n++] = full;
    }
    closedir(d);
    if (!st && !n)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: no file here ends in .json, .jsonl or .csv, or these with .gz", path);
    if (st) {
        traces_paths_free(list, n);
        return st;
    }
    qsort(list, n, sizeof(char *), by_name);
    *paths = list;
    *count = n;
    return CEDAR_OK;
}
