/* Figures of a hardware description, set from text. */
#include "sim/assume.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

enum { KEYS_MAX = 64, WORD_BYTES = 128 };

static cedar_status unknown(const char *key, cedar_err *err) {
    size_t count;
    const cedar_hardware_key *keys = cedar_hardware_keys(&count);
    const char *words[KEYS_MAX];
    CEDAR_ASSERT(count <= KEYS_MAX);
    for (size_t i = 0; i < count; i++) words[i] = keys[i].key;
    const char *near = cedar_nearest(key, words, count);
    return cedar_fail(err, CEDAR_E_ARG, near ? "assume: unknown figure \"%s\"; did you mean \"%s\"?"
                                             : "assume: unknown figure \"%s\"", key, near);
}

/* One "key=value". */
static cedar_status set_word(cedar_hardware *hw, char *word, cedar_err *err) {
    size_t count;
    const cedar_hardware_key *k = cedar_hardware_keys(&count), *end = k + count;
    char *equals = strchr(word, '='), *rest;
    if (!equals) return cedar_fail(err, CEDAR_E_ARG, "assume: \"%s\" is not key=value, such as launch_ns=500", word);
    *equals = 0;
    while (k < end && strcmp(k->key, word)) k++;
    if (k == end) return unknown(word, err);
    double v = strtod(equals + 1, &rest);
    if (rest == equals + 1 || *rest)
        return cedar_fail(err, CEDAR_E_ARG, "assume: %s = \"%s\" is not a number", word, equals + 1);
    if (!(v >= k->lo && v <= k->hi))
        return cedar_fail(err, CEDAR_E_ARG, "assume: %s = %g: allowed are %g to %g (%s)", word, v, k->lo, k->hi,
                          k->help);
    memcpy((char *)hw + k->offset, &v, sizeof v);
    return CEDAR_OK;
}

cedar_status cedar_hardware_assume(cedar_hardware *hw, const char *text, cedar_err *err) {
    char word[WORD_BYTES];
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        if (n >= sizeof word) return cedar_fail(err, CEDAR_E_ARG, "assume: \"%.40s...\" is too long for one figure", p);
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        cedar_status st = set_word(hw, word, err);
        if (st) return st;
        p += n + (p[n] == ',');
    }
    return CEDAR_OK;
}
