/* Owns block ids that cedar makes itself: by hashing tokens or texts, or from recorded lengths of shared prefixes.
 *
 * There is no tokenizer here: four bytes of UTF-8 count as a token, a message ends a token, and an empty message
 * counts as one. What matters for a replay is that equal texts have equal lengths and equal prefixes equal ids. */
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "traces/traces_int.h"

#define BYTES_PER_TOKEN 4

void traces_blocks_free(traces_blocks *b) {
    cedar_free(b->ids);
    *b = (traces_blocks){ 0 };
}

cedar_status traces_blocks_token(traces_blocks *b, uint64_t token, cedar_err *err) {
    b->chain = cedar_fold64(b->chain, token);
    if (++b->tokens % HASH_BLOCK_TOKENS) return CEDAR_OK;
    if (b->count == b->room) {
        void *p = b->ids;
        cedar_status st = traces_grow(&p, &b->room, b->count + 1, sizeof *b->ids, err);
        if (st) return st;
        b->ids = p;
    }
    /* The chain holds everything from the first token on, so that an id names its block and all before it. */
    b->ids[b->count++] = (int64_t)(cedar_mix64(b->chain) & INT64_MAX);
    return CEDAR_OK;
}

cedar_status traces_blocks_text(traces_blocks *b, const char *role, const char *text, size_t bytes, cedar_err *err) {
    uint64_t speaker = cedar_rng_key(0, role);
    cedar_status st = CEDAR_OK;
    size_t at = 0;
    do {
        size_t n = bytes - at < BYTES_PER_TOKEN ? bytes - at : BYTES_PER_TOKEN;
        uint64_t token = n; /* tells "a" and "a\0" apart */
        for (size_t i = 0; i < n; i++) token = token << 8 | (unsigned char)text[at + i];
        st = traces_blocks_token(b, token ^ speaker, err);
        speaker = 0;
        at += n;
    } while (!st && at < bytes);
    return st;
}

cedar_status traces_ids_made(traces_load *l, const char *where, size_t count, cedar_err *err) {
    if (count > IDS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the prompt needs %zu block ids, at most %zu are allowed", where,
                          count, IDS_MAX);
    l->ids_made += count;
    if (l->ids_made <= IDS_MADE_MAX) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_UNSUPPORTED, "%s: the prompts of the file need more than %zu block ids; split the "
                      "file", where, IDS_MADE_MAX);
}

cedar_status traces_blocks_give(traces_load *l, const traces_blocks *b, size_t count, const char *where,
                                cedar_turn *turn, cedar_err *err) {
    cedar_status st = traces_ids_made(l, where, count, err);
    if (st) return st;
    int64_t *ids = traces_arena_alloc(l->arena, count, sizeof *ids);
    if (!ids) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu block ids", where, count);
    if (count) memcpy(ids, b->ids, count * sizeof *ids);
    turn->block_ids = ids;
    turn->block_count = (uint32_t)count;
    return CEDAR_OK;
}

static uint32_t whole_blocks(uint64_t tokens) {
    return (uint32_t)(tokens / HASH_BLOCK_TOKENS);
}

/* Blocks that turn k takes over from turn k-1. Every turn's list may go on in the answer, whose blocks are known by
 * number as well: block i of what follows the prompt is the i-th new block of the next turn when it keeps them. */
static uint32_t kept_blocks(const cedar_turn *prev, const cedar_turn *t, uint64_t keep) {
    uint64_t known = (uint64_t)prev->in_tokens + prev->out_tokens;
    if (keep > known) keep = known;
    if (keep > t->in_tokens) keep = t->in_tokens;
    uint32_t blocks = whole_blocks(keep), in_prompt = whole_blocks(prev->in_tokens);
    return blocks < in_prompt ? blocks : in_prompt;
}

cedar_status traces_ids_from_prefix(traces_load *l, const char *where, cedar_turn *turns, const uint64_t *keep,
                                    uint32_t count, int64_t *next, cedar_err *err) {
    uint32_t first = 0;
    while (first < count) {
        /* Turns that only add share one array, as long as the last of them needs it. */
        uint32_t last = first;
        while (last + 1 < count && kept_blocks(&turns[last], &turns[last + 1], keep[last + 1]) ==
                                       whole_blocks(turns[last].in_tokens)) last++;
        size_t need = whole_blocks(turns[last].in_tokens), kept = 0;
        cedar_status st = traces_ids_made(l, where, need, err);
        if (st) return st;
        int64_t *ids = traces_arena_alloc(l->arena, need, sizeof *ids);
        if (!ids) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %zu block ids", where, need);
        if (first) {
            kept = kept_blocks(&turns[first - 1], &turns[first], keep[first]);
            memcpy(ids, turns[first - 1].block_ids, kept * sizeof *ids);
        }
        for (size_t i = kept; i < need; i++) ids[i] = (*next)++;
        for (uint32_t k = first; k <= last; k++) {
            turns[k].block_ids = ids;
            turns[k].block_count = whole_blocks(turns[k].in_tokens);
        }
        first = last + 1;
    }
    return CEDAR_OK;
}
