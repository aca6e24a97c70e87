/* Figures of a hardware description, set from text. */
#include "sim/assume.h"

#include <stdbool.h>
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

/* A decimal number: what strtod also takes (hexadecimal, words, spaces) is refused. */
static bool read_number(const char *text, double *out) {
    char *rest;
    *out = strtod(text, &rest);
    return *text && !*rest && text[strspn(text, "0123456789.eE+-")] == 0;
}

/* One "key=value". set: which figures were set before. */
static cedar_status set_word(cedar_hardware *hw, char *word, bool set[KEYS_MAX], cedar_err *err) {
    size_t count, i = 0;
    const cedar_hardware_key *keys = cedar_hardware_keys(&count);
    char *equals = strchr(word, '=');
    double v;
    if (!equals) return cedar_fail(err, CEDAR_E_ARG, "assume: \"%s\" is not key=value, such as launch_ns=500", word);
    *equals = 0;
    while (i < count && strcmp(keys[i].key, word)) i++;
    if (i == count) return unknown(word, err);
    const cedar_hardware_key *k = &keys[i];
    if (set[i]) return cedar_fail(err, CEDAR_E_ARG, "assume: %s is set twice", word);
    if (!read_number(equals + 1, &v))
        return cedar_fail(err, CEDAR_E_ARG, "assume: %s = \"%s\" is not a number", word, equals + 1);
    if (!(v >= k->lo && v <= k->hi))
        return cedar_fail(err, CEDAR_E_ARG, "assume: %s = %g: allowed are %g to %g (%s)", word, v, k->lo, k->hi,
                          k->help);
    memcpy((char *)hw + k->offset, &v, sizeof v);
    set[i] = true;
    return CEDAR_OK;
}

cedar_status cedar_hardware_assume(cedar_hardware *hw, const char *text, cedar_err *err) {
    char word[WORD_BYTES];
    bool set[KEYS_MAX] = { false };
    for (const char *p = text; *text; p++) {
        size_t n = strcspn(p, ",");
        if (n >= sizeof word) return cedar_fail(err, CEDAR_E_ARG, "assume: \"%.40s...\" is too long for one figure", p);
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        cedar_status st = set_word(hw, word, set, err);
        p += n;
        if (st || !*p) return st;
    }
    return CEDAR_OK;
}
