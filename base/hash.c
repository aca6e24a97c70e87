/* Hashes. */
#include "base/hash.h"

#include <sha2.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"

_Static_assert(sizeof(SHA2_CTX) <= sizeof(cedar_sha256), "cedar_sha256 holds libmd's context");

/* The context is copied in and out, so that cedar_sha256 needs no type of libmd. */
void cedar_sha256_init(cedar_sha256 *s) {
    SHA2_CTX c;
    SHA256Init(&c);
    memcpy(s, &c, sizeof c);
}

void cedar_sha256_add(cedar_sha256 *s, const void *data, size_t bytes) {
    SHA2_CTX c;
    memcpy(&c, s, sizeof c);
    SHA256Update(&c, data, bytes);
    memcpy(s, &c, sizeof c);
}

void cedar_sha256_digest(cedar_sha256 *s, uint8_t out[32]) {
    SHA2_CTX c;
    memcpy(&c, s, sizeof c);
    SHA256Final(out, &c);
}

void cedar_sha256_hex(cedar_sha256 *s, char out[CEDAR_SHA256_HEX]) {
    uint8_t d[32];
    cedar_sha256_digest(s, d);
    for (int i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", d[i]);
}

uint64_t cedar_fold64(uint64_t hash, uint64_t word) {
    return cedar_mix64(hash * 0x9E3779B97F4A7C15ull + cedar_mix64(word) + 1);
}
