/* Random numbers: integer, counter based, with named streams; and numpy's default_rng where a published rule needs it.
 *
 * A stream is a pure function of (seed, name, counter): a new consumer shifts nobody else's numbers.
 * Threads: state is the caller's. Allocation: none. Class D0 on every machine. */
#ifndef CEDAR_BASE_RNG_H
#define CEDAR_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* 64-bit finaliser of Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (variant 13 of Stafford). */
static inline uint64_t cedar_mix64(uint64_t x);

/* Key of the stream `name` under `seed`. */
uint64_t cedar_rng_key(uint64_t seed, const char *name);

/* Number `counter` of the stream with this key. */
static inline uint64_t cedar_rng_at(uint64_t key, uint64_t counter);

/* Number in [0, bound) by multiply-high of rng_at; bound > 0. */
static inline uint64_t cedar_rng_below(uint64_t key, uint64_t counter, uint64_t bound);

/* numpy.random.default_rng(seed): SeedSequence and PCG64 XSL-RR (spec/agentx.md appendix A). */
typedef struct cedar_pcg64 {
    unsigned __int128 state, inc;
} cedar_pcg64;

void cedar_pcg64_seed(cedar_pcg64 *g, uint64_t seed);
uint64_t cedar_pcg64_next(cedar_pcg64 *g);
double cedar_pcg64_double(cedar_pcg64 *g);                       /* [0, 1), 53 bits */
uint64_t cedar_pcg64_integers(cedar_pcg64 *g, uint64_t bound);   /* default_rng.integers(0, bound), bound > 2^32 */

/* In the header because prompts are made of millions of them. */
static inline uint64_t cedar_mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static inline uint64_t cedar_rng_at(uint64_t key, uint64_t counter) {
    return cedar_mix64(key + (counter + 1) * 0x9E3779B97F4A7C15ull);
}

static inline uint64_t cedar_rng_below(uint64_t key, uint64_t counter, uint64_t bound) {
    return (uint64_t)(((unsigned __int128)cedar_rng_at(key, counter) * bound) >> 64);
}

#endif
