/* JSON reading over jansson. */
#include "base/json.h"

#include <jansson.h>

#include "base/file.h"
#include "base/mem.h"

cedar_status cedar_json_parse(const char *text, size_t bytes, const char *name, int line_first, cedar_json **out,
                              cedar_err *err) {
    json_error_t e;
    json_t *doc = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (!doc) {
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: not valid JSON: %s", name,
                          line_first - 1 + (e.line > 0 ? e.line : 1), e.text);
    }
    *out = doc;
    return CEDAR_OK;
}

cedar_status cedar_json_load(const char *path, size_t bytes_max, cedar_json **out, cedar_err *err) {
    char *text;
    size_t bytes;
    cedar_status st = cedar_file_read(path, bytes_max, &text, &bytes, err);
    if (st) return st;
    st = cedar_json_parse(text, bytes, path, 1, out, err);
    cedar_free(text);
    return st;
}

void cedar_json_free(cedar_json *doc) { json_decref(doc); }

bool cedar_json_has(const cedar_json *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v);
}

static cedar_status get(const cedar_json *o, const char *where, const char *key, const json_t **v, cedar_err *err) {
    *v = json_object_get(o, key);
    if (!*v) return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is missing", where, key);
    return CEDAR_OK;
}

static cedar_status wrong(const char *where, const char *key, const char *want, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" must be %s", where, key, want);
}

static cedar_status check_int(const json_t *v, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out,
                              cedar_err *err) {
    if (!json_is_integer(v)) return wrong(where, key, "an integer", err);
    int64_t x = json_integer_value(v);
    if (x < lo || x > hi)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is %lld, allowed are %lld to %lld", where, key, (long long)x,
                          (long long)lo, (long long)hi);
    *out = x;
    return CEDAR_OK;
}

cedar_status cedar_json_int(const cedar_json *o, const char *where, const char *key, int64_t lo, int64_t hi,
                            int64_t *out, cedar_err *err) {
    const json_t *v;
    cedar_status st = get(o, where, key, &v, err);
    return st ? st : check_int(v, where, key, lo, hi, out, err);
}

cedar_status cedar_json_real(const cedar_json *o, const char *where, const char *key, double lo, double hi,
                             double *out, cedar_err *err) {
    const json_t *v;
    cedar_status st = get(o, where, key, &v, err);
    if (st) return st;
    if (!json_is_number(v)) return wrong(where, key, "a number", err);
    double x = json_number_value(v);
    if (!(x >= lo && x <= hi))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" is %g, allowed are %g to %g", where, key, x, lo, hi);
    *out = x;
    return CEDAR_OK;
}

cedar_status cedar_json_string(const cedar_json *o, const char *where, const char *key, const char **out,
                               cedar_err *err) {
    const json_t *v;
    cedar_status st = get(o, where, key, &v, err);
    if (st) return st;
    if (!json_is_string(v)) return wrong(where, key, "a string", err);
    *out = json_string_value(v);
    return CEDAR_OK;
}

cedar_status cedar_json_bool(const cedar_json *o, const char *where, const char *key, bool *out, cedar_err *err) {
    const json_t *v;
    cedar_status st = get(o, where, key, &v, err);
    if (st) return st;
    if (!json_is_boolean(v)) return wrong(where, key, "true or false", err);
    *out = json_is_true(v);
    return CEDAR_OK;
}

cedar_status cedar_json_object(const cedar_json *o, const char *where, const char *key, const cedar_json **out,
                               cedar_err *err) {
    const json_t *v;
    cedar_status st = get(o, where, key, &v, err);
    if (st) return st;
    if (!json_is_object(v)) return wrong(where, key, "an object", err);
    *out = v;
    return CEDAR_OK;
}

cedar_status cedar_json_ints(const cedar_json *o, const char *where, const char *key, int64_t lo, int64_t hi,
                             size_t n_max, int64_t *out, size_t *n, cedar_err *err) {
    const json_t *v;
    cedar_status st = get(o, where, key, &v, err);
    if (st) return st;
    if (!json_is_array(v)) return wrong(where, key, "an array of integers", err);
    size_t count = json_array_size(v);
    if (count > n_max)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" has %zu entries, at most %zu are allowed", where, key, count,
                          n_max);
    for (size_t i = 0; i < count; i++)
        if ((st = check_int(json_array_get(v, i), where, key, lo, hi, &out[i], err))) return st;
    *n = count;
    return CEDAR_OK;
}

const char *cedar_json_char(char c, char out[CEDAR_JSON_CHAR_BYTES]) {
    const char *form = (unsigned char)c < 0x20 ? "\\u%04x" : c == '"' || c == '\\' ? "\\%c" : "%c";
    snprintf(out, CEDAR_JSON_CHAR_BYTES, form, c);
    return out;
}
