/* Tokens and texts for models that have no tokenizer: one token is one character.
 *
 * The ids of tab, line feed, carriage return and printable ASCII are those characters. Every other id is a character of
 * Unicode's supplementary private use areas. So each sequence of ids has a text that gives the same ids back, and its
 * length in characters is its length in tokens. Characters outside both become one token a byte: the vocabulary must
 * have 256 ids at least, which cedar_serve_open sees to. */
#include <string.h>

#include "serve/serve_int.h"

/* Two code points at the end of each plane are no characters: the ids go around those of the first. */
enum { PRIVATE_FIRST = 0xF0000, PLANE_CHARACTERS = 0xFFFE };

static bool is_plain(int32_t id) { return id == '\t' || id == '\n' || id == '\r' || (id >= 32 && id < 127); }

size_t serve_token_text(int32_t id, char out[SERVE_TOKEN_BYTES]) {
    if (is_plain(id)) {
        out[0] = (char)id;
        return 1;
    }
    uint32_t point = PRIVATE_FIRST + (uint32_t)id + (id >= PLANE_CHARACTERS ? 2 : 0);
    out[0] = (char)(0xF0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 63));
    out[2] = (char)(0x80 | (point >> 6 & 63));
    out[3] = (char)(0x80 | (point & 63));
    return SERVE_TOKEN_BYTES;
}

/* The id of a private character at the front of text, -1 when there is none. */
static int32_t private_id(int32_t vocab, const char *text, size_t bytes) {
    const unsigned char *s = (const unsigned char *)text;
    if (bytes < SERVE_TOKEN_BYTES || s[0] < 0xF3) return -1;
    uint32_t point = (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 63) << 12 | (uint32_t)(s[2] & 63) << 6 |
                     (uint32_t)(s[3] & 63);
    if (point < PRIVATE_FIRST) return -1;
    uint32_t id = point - PRIVATE_FIRST;
    if (id == PLANE_CHARACTERS || id == PLANE_CHARACTERS + 1) return -1;
    if (id > PLANE_CHARACTERS) id -= 2;
    return id < (uint32_t)vocab && id < SERVE_VOCAB_MAX && !is_plain((int32_t)id) ? (int32_t)id : -1;
}

uint32_t serve_tokens_encode(int32_t vocab, const char *text, size_t bytes, int32_t *out) {
    uint32_t n = 0;
    for (size_t i = 0; i < bytes;) {
        int32_t id = private_id(vocab, text + i, bytes - i);
        i += id >= 0 ? SERVE_TOKEN_BYTES : 1;
        out[n++] = id >= 0 ? id : (unsigned char)text[i - 1];
    }
    return n;
}
