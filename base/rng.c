/* Random numbers. */
#include "base/rng.h"

uint64_t cedar_rng_key(uint64_t seed, const char *name) {
    uint64_t h = cedar_mix64(seed ^ 0x6365646172ull);
    for (; *name; name++) h = cedar_mix64((h ^ (uint8_t)*name) + 0x9E3779B97F4A7C15ull);
    return h;
}

/* --- numpy's SeedSequence and PCG64 ---------------------------------------------------------------------------- */

static uint32_t hashmix(uint32_t v, uint32_t *h) {
    v ^= *h;
    *h *= 0x931e8875u;
    v *= *h;
    return v ^ (v >> 16);
}

static uint32_t mix(uint32_t x, uint32_t y) {
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ (r >> 16);
}

static void pcg64_step(cedar_pcg64 *g) {
    const unsigned __int128 mul = ((unsigned __int128)0x2360ED051FC65DA4ull << 64) | 0x4385DF649FCCF645ull;
    g->state = g->state * mul + g->inc;
}

void cedar_pcg64_seed(cedar_pcg64 *g, uint64_t seed) {
    uint32_t word[4] = { (uint32_t)seed, (uint32_t)(seed >> 32), 0, 0 }, pool[4], h = 0x43b0d7e5u;
    for (int i = 0; i < 4; i++) pool[i] = hashmix(word[i], &h);
    for (int s = 0; s < 4; s++)
        for (int d = 0; d < 4; d++)
            if (s != d) pool[d] = mix(pool[d], hashmix(pool[s], &h));
    uint32_t out[8], k = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) {
        uint32_t v = pool[i % 4] ^ k;
        k *= 0x58f38dedu;
        v *= k;
        out[i] = v ^ (v >> 16);
    }
    uint64_t w[4];
    for (int i = 0; i < 4; i++) w[i] = out[2 * i] | (uint64_t)out[2 * i + 1] << 32;
    g->state = 0;
    g->inc = (((unsigned __int128)w[2] << 64 | w[3]) << 1) | 1;
    pcg64_step(g);
    g->state += (unsigned __int128)w[0] << 64 | w[1];
    pcg64_step(g);
}

uint64_t cedar_pcg64_next(cedar_pcg64 *g) {
    pcg64_step(g);
    uint64_t x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned r = (unsigned)(g->state >> 122);
    return x >> r | x << ((64 - r) & 63);
}

double cedar_pcg64_double(cedar_pcg64 *g) { return (double)(cedar_pcg64_next(g) >> 11) / 9007199254740992.0; }

/* numpy's bounded draw for ranges above 32 bits: Lemire's multiplication with rejection (arXiv 1805.10941). */
uint64_t cedar_pcg64_integers(cedar_pcg64 *g, uint64_t bound) {
    unsigned __int128 m = (unsigned __int128)cedar_pcg64_next(g) * bound;
    if ((uint64_t)m < bound) {
        uint64_t threshold = (0 - bound) % bound;
        while ((uint64_t)m < threshold) m = (unsigned __int128)cedar_pcg64_next(g) * bound;
    }
    return (uint64_t)(m >> 64);
}
