/* Characters of UTF-8 text. */
#include "base/utf8.h"

size_t cedar_utf8_bytes(const char *s, uint32_t *code) {
    static const uint32_t lowest[] = { 0, 0x80, 0x800, 0x10000 };
    const unsigned char *p = (const unsigned char *)s;
    uint32_t c = *p;
    int more = c < 0x80 ? 0 : c >= 0xC2 && c < 0xE0 ? 1 : (c & 0xF0) == 0xE0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : -1;
    if (more < 0) return 0;
    c &= more ? 0x3Fu >> more : 0x7Fu;
    for (int i = 1; i <= more; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3Fu);
    }
    if (c < lowest[more] || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return 0;
    if (code) *code = c;
    return (size_t)more + 1;
}
