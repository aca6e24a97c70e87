/* Owns the set of block ids behind the hit rates: open addressing, linear probing, at most half full. It is never
 * walked, so its order reaches no result. */
#include "base/mem.h"
#include "base/rng.h"
#include "traces/traces_int.h"

typedef struct slot {
    int64_t id;
    uint32_t space, used; /* used: how many ids there were with this one; 0: free */
} slot;

struct traces_seen {
    slot *slots;
    size_t mask, count;
};

#define SLOTS_FIRST 1024

traces_seen *traces_seen_new(void) {
    traces_seen *s = cedar_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->slots = cedar_calloc(SLOTS_FIRST, sizeof *s->slots);
    s->mask = SLOTS_FIRST - 1;
    if (s->slots) return s;
    cedar_free(s);
    return NULL;
}

void traces_seen_free(traces_seen *s) {
    if (s) cedar_free(s->slots);
    cedar_free(s);
}

static size_t find(const slot *slots, size_t mask, uint32_t space, int64_t id) {
    size_t i = cedar_mix64((uint64_t)id ^ ((uint64_t)space << 32)) & mask;
    while (slots[i].used && (slots[i].id != id || slots[i].space != space)) i = (i + 1) & mask;
    return i;
}

bool traces_seen_has(const traces_seen *s, uint32_t space, int64_t id) {
    return s->slots[find(s->slots, s->mask, space, id)].used;
}

static bool grow(traces_seen *s) {
    size_t room = 2 * (s->mask + 1);
    slot *slots = cedar_calloc(room, sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i <= s->mask; i++)
        if (s->slots[i].used) slots[find(slots, room - 1, s->slots[i].space, s->slots[i].id)] = s->slots[i];
    cedar_free(s->slots);
    s->slots = slots;
    s->mask = room - 1;
    return true;
}

bool traces_seen_add(traces_seen *s, uint32_t space, int64_t id) {
    size_t i = find(s->slots, s->mask, space, id);
    if (s->slots[i].used) return true;
    if (2 * (s->count + 1) > s->mask + 1) {
        if (!grow(s)) return false;
        i = find(s->slots, s->mask, space, id);
    }
    s->slots[i] = (slot){ id, space, (uint32_t)++s->count };
    return true;
}

uint32_t traces_seen_number(const traces_seen *s, uint32_t space, int64_t id) {
    return s->slots[find(s->slots, s->mask, space, id)].used - 1;
}

size_t traces_seen_count(const traces_seen *s) {
    return s->count;
}
