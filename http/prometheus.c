/* Samples of a Prometheus text document: `name{labels} value [timestamp]`, one a line. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "http/http.h"

static bool name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
}

/* End of a label set that begins behind `{`; NULL when the line ends before it does. */
static const char *labels_end(const char *s, const char *end) {
    bool text = false;
    for (; s < end; s++) {
        if (text && *s == '\\') s++;
        else if (*s == '"') text = !text;
        else if (!text && *s == '}') return s;
    }
    return NULL;
}

static bool read_sample(const char *s, const char *end, cedar_http_sample *out) {
    char number[40];
    *out = (cedar_http_sample){ .name = s, .labels = "" };
    while (s < end && name_byte(*s)) s++;
    out->name_bytes = (size_t)(s - out->name);
    if (!out->name_bytes) return false;
    if (s < end && *s == '{') {
        const char *close = labels_end(++s, end);
        if (!close) return false;
        out->labels = s;
        out->label_bytes = (size_t)(close - s);
        s = close + 1;
    }
    while (s < end && (*s == ' ' || *s == '\t')) s++;
    size_t n = 0;
    while (s + n < end && s[n] != ' ' && s[n] != '\t' && s[n] != '\r') n++;
    if (n == 0 || n >= sizeof number) return false;
    memcpy(number, s, n);
    number[n] = 0;
    char *rest;
    out->value = strtod(number, &rest);
    return *rest == 0 && isfinite(out->value);
}

bool cedar_http_sample_next(const char **text, cedar_http_sample *out) {
    while (**text) {
        const char *line = *text, *end = strchrnul(line, '\n');
        *text = *end ? end + 1 : end;
        if (*line != '#' && read_sample(line, end, out)) return true;
    }
    return false;
}
