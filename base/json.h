/* JSON reading (jansson) with errors that name file, line and field.
 *
 * A cedar_json is a borrowed view of a value inside a document; the document owns everything.
 * Threads: a document may be read from several threads, not changed. */
#ifndef CEDAR_BASE_JSON_H
#define CEDAR_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct json_t;
typedef struct json_t cedar_json;

/* Parses text [bytes]; `name` and `line_first` (1 for whole files) go into error messages. Duplicate keys and
 * trailing text are errors. *out is owned by the caller (cedar_json_free). */
cedar_status cedar_json_parse(const char *text, size_t bytes, const char *name, int line_first, cedar_json **out,
                              cedar_err *err) CEDAR_USE_RESULT;

/* Reads and parses a whole file of at most bytes_max bytes. */
cedar_status cedar_json_load(const char *path, size_t bytes_max, cedar_json **out, cedar_err *err) CEDAR_USE_RESULT;

void cedar_json_free(cedar_json *doc);

/* Fields of an object. `where` names the object in messages, e.g. "config.json: text_config". A missing field, a
 * wrong type, or a number outside [lo, hi] is CEDAR_E_FORMAT. */
cedar_status cedar_json_int(const cedar_json *o, const char *where, const char *key, int64_t lo, int64_t hi,
                            int64_t *out, cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_json_real(const cedar_json *o, const char *where, const char *key, double lo, double hi,
                             double *out, cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_json_string(const cedar_json *o, const char *where, const char *key, const char **out,
                               cedar_err *err) CEDAR_USE_RESULT;   /* borrowed from the document */
cedar_status cedar_json_bool(const cedar_json *o, const char *where, const char *key, bool *out,
                             cedar_err *err) CEDAR_USE_RESULT;
cedar_status cedar_json_object(const cedar_json *o, const char *where, const char *key, const cedar_json **out,
                               cedar_err *err) CEDAR_USE_RESULT;

/* Array of integers in [lo, hi], at most n_max of them, into out. */
cedar_status cedar_json_ints(const cedar_json *o, const char *where, const char *key, int64_t lo, int64_t hi,
                             size_t n_max, int64_t *out, size_t *n, cedar_err *err) CEDAR_USE_RESULT;

bool cedar_json_has(const cedar_json *o, const char *key);   /* false for null values */

/* A byte of a string as it stands between the quotes of JSON text: itself, or escaped. For writers that own no
 * document; text is taken as UTF-8 already. Returns out. */
enum { CEDAR_JSON_CHAR_BYTES = 8 };
const char *cedar_json_char(char c, char out[CEDAR_JSON_CHAR_BYTES]);

#endif
