/* Characters of UTF-8 text.
 *
 * Threads: no state. Allocation: none. */
#ifndef CEDAR_BASE_UTF8_H
#define CEDAR_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the character at the front of a text that a 0 byte ends, 0 where there is none: overlong forms, surrogates
 * and what lies above U+10FFFF are no characters. *code (may be NULL) is its code point; that of the end has one byte
 * and is 0. */
size_t cedar_utf8_bytes(const char *s, uint32_t *code);

#endif
