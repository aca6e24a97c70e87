/* The API key: from an environment variable or a file, so that it is in no command line, option or database. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "http/http.h"

enum { KEY_BYTES_MAX = 8192 };

bool cedar_http_key_source(const char *source) {
    return !*source || (strncmp(source, "env:", 4) == 0 && source[4]) ||
           (strncmp(source, "file:", 5) == 0 && source[5]);
}

/* What may stand in a header; spaces and newlines around it are not part of it. */
static cedar_status trim(char *key, cedar_err *err) {
    size_t begin = strspn(key, " \t\r\n"), n = strlen(key + begin);
    while (n && strchr(" \t\r\n", key[begin + n - 1])) n--;
    memmove(key, key + begin, n);
    key[n] = 0;
    if (!n) return cedar_fail(err, CEDAR_E_ARG, "http_key: the key is empty");
    for (size_t i = 0; i < n; i++)
        if (!isgraph((unsigned char)key[i]))
            return cedar_fail(err, CEDAR_E_ARG, "http_key: byte %zu of the key cannot stand in a header", i + 1);
    return CEDAR_OK;
}

cedar_status cedar_http_key(const char *source, char **out, cedar_err *err) {
    *out = NULL;
    if (!*source) return CEDAR_OK;
    if (!cedar_http_key_source(source))
        return cedar_fail(err, CEDAR_E_ARG,
                          "http_key says where the key is, never the key: \"env:NAME\" or \"file:PATH\"");
    char *key = NULL;
    size_t bytes;
    cedar_status st = CEDAR_OK;
    if (*source == 'f') {
        st = cedar_file_read(source + 5, KEY_BYTES_MAX, &key, &bytes, err);
        if (!st && strlen(key) != bytes) st = cedar_fail(err, CEDAR_E_ARG, "http_key: a byte of the key is 0");
    } else {
        const char *value = getenv(source + 4);
        if (!value)
            return cedar_fail(err, CEDAR_E_ARG, "http_key: the environment has no variable %.64s", source + 4);
        key = cedar_strdup(value);
        if (!key) st = cedar_fail(err, CEDAR_E_OOM, "http_key: no memory for the key");
    }
    if (!st) st = trim(key, err);
    if (st) {
        cedar_free(key);
        return st;
    }
    *out = key;
    return CEDAR_OK;
}
