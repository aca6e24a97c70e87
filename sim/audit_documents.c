/* Documents of an audit from a file: texts that were made into tokens elsewhere, with their turns.
 *
 * {"documents": [{"name": TEXT, "tokens": [...], "prompts": [T of each turn], "ends": [end of each turn]}, ...]}
 * A turn's prompt begins with all of the turn before; its hit is that turn's end. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "sim/audit_host.h"

enum { WHERE_BYTES = 300 };
static const size_t file_bytes_max = (size_t)1 << 30;

/* The array behind a key; NULL after an error. */
static const json_t *array_of(const json_t *o, const char *where, const char *key, cedar_err *err) {
    const json_t *a = json_object_get(o, key);
    if (json_is_array(a)) return a;
    cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\" must be an array", where, key);
    return NULL;
}

static cedar_status read_tokens(const json_t *doc, const char *where, const cedar_config *c, int32_t **block,
                                uint32_t *count, cedar_err *err) {
    const json_t *a = array_of(doc, where, "tokens", err);
    if (!a) return CEDAR_E_FORMAT;
    *count = (uint32_t)json_array_size(a);
    *block = cedar_calloc(*count ? *count : 1, sizeof **block);
    if (!*block) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %u tokens", where, *count);
    for (uint32_t i = 0; i < *count; i++) {
        const json_t *v = json_array_get(a, i);
        int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= c->vocab)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"tokens\"[%u] must be a whole number from 0 to %d", where, i,
                              c->vocab - 1);
        (*block)[i] = (int32_t)id;
    }
    return CEDAR_OK;
}

/* Entry k of a list, or an error that names it. */
static cedar_status read_place(const json_t *list, const char *where, const char *key, size_t k, int64_t *out,
                               cedar_err *err) {
    const json_t *v = json_array_get(list, k);
    if (!json_is_integer(v))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"%s\"[%zu] must be a whole number", where, key, k);
    *out = json_integer_value(v);
    return CEDAR_OK;
}

/* Turns that end by `limit` and by the last token. */
static cedar_status read_turns(const json_t *doc, const char *where, const cedar_audit_opts *o, uint32_t limit,
                               const int32_t *tokens, uint32_t count, cedar_audit_doc *d, cedar_err *err) {
    const json_t *prompts = array_of(doc, where, "prompts", err), *ends = prompts ? array_of(doc, where, "ends", err)
                                                                                 : NULL;
    if (!ends) return CEDAR_E_FORMAT;
    size_t turns = json_array_size(ends);
    if (json_array_size(prompts) != turns)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: \"prompts\" has %zu entries and \"ends\" %zu; a turn has one of "
                          "each", where, json_array_size(prompts), turns);
    if (turns > o->turns) turns = o->turns;
    d->turns = cedar_calloc(turns ? turns : 1, sizeof *d->turns);
    if (!d->turns) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu turns", where, turns);
    for (size_t k = 0, before = 0; k < turns; k++) {
        int64_t prompt = 0, end = 0;
        cedar_status st = read_place(prompts, where, "prompts", k, &prompt, err);
        if (!st) st = read_place(ends, where, "ends", k, &end, err);
        if (st) return st;
        if (prompt <= (int64_t)before || end <= prompt || end > count)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: turn %zu has its prompt's end at %lld and its end at %lld; "
                              "both must grow, from %zu on, up to the %u tokens", where, k, (long long)prompt,
                              (long long)end, before, count);
        if (end > limit) break;
        d->turns[k] = (cedar_audit_turn){ .tokens = tokens, .hit = (uint32_t)before, .prompt = (uint32_t)prompt,
                                          .end = (uint32_t)end };
        d->turn_count++;
        before = (size_t)end;
    }
    return CEDAR_OK;
}

/* The document is the unit of the statistics: one that is there twice would count as two. */
static cedar_status check_new(const json_t *list, size_t i, const char *where, cedar_err *err) {
    const json_t *tokens = json_object_get(json_array_get(list, i), "tokens");
    for (size_t k = 0; k < i; k++) {
        const json_t *other = json_object_get(json_array_get(list, k), "tokens");
        if (json_array_size(other) == json_array_size(tokens) && json_equal(other, tokens))
            return cedar_fail(err, CEDAR_E_FORMAT, "%s has the tokens of \"documents\"[%zu]; each document counts once",
                              where, k);
    }
    return CEDAR_OK;
}

static cedar_status read_doc(const cedar_audit_opts *o, const json_t *doc, const char *where, const cedar_config *c,
                             cedar_audit_doc *d, int32_t **block, cedar_err *err) {
    const char *name;
    uint32_t count = 0;
    if (!json_is_object(doc)) return cedar_fail(err, CEDAR_E_FORMAT, "%s must be an object", where);
    cedar_status st = cedar_json_string(doc, where, "name", &name, err);
    if (!st) snprintf(d->name, sizeof d->name, "%s", name);
    if (!st) st = read_tokens(doc, where, c, block, &count, err);
    if (!st) st = read_turns(doc, where, o, cedar_audit_context(o, c), *block, count, d, err);
    return st;
}

cedar_status cedar_audit_docs_file(const cedar_audit_opts *o, const char *path, const cedar_config *c,
                                   cedar_audit_docs **out, cedar_err *err) {
    cedar_json *doc = NULL;
    cedar_audit_docs *d = NULL;
    cedar_status st = cedar_json_load(path, file_bytes_max, &doc, err);
    if (st) return st;
    const json_t *list = array_of(doc, path, "documents", err);
    size_t count = list ? json_array_size(list) : 0;
    if (count > o->docs) count = o->docs;
    if (!list) st = CEDAR_E_FORMAT;
    else if (!count) st = cedar_fail(err, CEDAR_E_ARG, "%s: there is no document in it", path);
    if (!st) st = cedar_audit_docs_new((uint32_t)count, (uint32_t)count, &d, err);
    uint32_t used = 0;
    for (size_t i = 0; i < count && !st; i++) {
        char where[WHERE_BYTES];
        snprintf(where, sizeof where, "%.200s: \"documents\"[%zu]", path, i);
        st = read_doc(o, json_array_get(list, i), where, c, &d->docs[used], &d->blocks[i], err);
        if (!st) st = check_new(list, i, where, err);
        if (d->docs[used].turn_count) used++;
        else if (!st) cedar_free(d->docs[used].turns), d->docs[used] = (cedar_audit_doc){ 0 };
    }
    if (!st && !used)
        st = cedar_fail(err, CEDAR_E_ARG, "%s: no document begins with a turn that fits into %u tokens", path,
                        cedar_audit_context(o, c));
    if (!st) {
        d->count = used;
        st = cedar_audit_docs_check(d, err);
    }
    cedar_json_free(doc);
    if (st) cedar_audit_docs_free(d);
    else *out = d;
    return st;
}
