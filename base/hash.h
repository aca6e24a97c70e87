/* Hashes: SHA-256 (libmd), and the running event hash.
 * Threads: state is the caller's. Allocation: none. */
#ifndef CEDAR_BASE_HASH_H
#define CEDAR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define CEDAR_SHA256_HEX 65 /* 64 hex digits and the final 0 */

typedef struct cedar_sha256 { uint64_t opaque[32]; } cedar_sha256;

/* init, then add any number of times, then digest or hex, which end it. */
void cedar_sha256_init(cedar_sha256 *s);
void cedar_sha256_add(cedar_sha256 *s, const void *data, size_t bytes);
void cedar_sha256_digest(cedar_sha256 *s, uint8_t out[32]);
void cedar_sha256_hex(cedar_sha256 *s, char out[CEDAR_SHA256_HEX]);

/* Running hash of a sequence of 64-bit words: order matters, any change of any word changes the result with
 * probability 1 - 2^-64. Start with 0. */
uint64_t cedar_fold64(uint64_t hash, uint64_t word);

#endif
