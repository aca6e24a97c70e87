/* Documents made from a seed: a trunk of tokens in which every turn's prompt begins with the turn before it, needles
 * planted in it, and branches that follow from the same hit.
 *
 * Every token is a pure function of (seed, document, position, pattern). */
#include <stdio.h>
#include <string.h>

#include "audit/audit.h"
#include "base/mem.h"
#include "base/rng.h"

static const uint64_t TURNS_MAX = 1 << 24;      /* of all documents together */
enum { KEY_TOKENS = 4, VALUE_TOKENS = 4, ENTITY_TOKENS = 8, FIRST_TOKEN = 3, SPECIAL_TOKENS = 2 };

/* --- storage ------------------------------------------------------------------------------------------------------ */

cedar_status cedar_audit_docs_new(uint32_t count, uint32_t block_count, cedar_audit_docs **out, cedar_err *err) {
    cedar_audit_docs *d = cedar_calloc(1, sizeof *d);
    if (d) {
        d->docs = cedar_calloc(count, sizeof *d->docs);
        d->blocks = cedar_calloc(block_count, sizeof *d->blocks);
        d->count = count;
        d->block_count = block_count;
    }
    if (!d || !d->docs || !d->blocks) {
        cedar_audit_docs_free(d);
        return cedar_fail(err, CEDAR_E_OOM, "no memory for %u documents", count);
    }
    *out = d;
    return CEDAR_OK;
}

void cedar_audit_docs_free(cedar_audit_docs *d) {
    if (!d) return;
    for (uint32_t i = 0; d->docs && i < d->count; i++) cedar_free(d->docs[i].turns);
    for (uint32_t i = 0; d->blocks && i < d->block_count; i++) cedar_free(d->blocks[i]);
    cedar_free(d->docs);
    cedar_free(d->blocks);
    cedar_free(d);
}

static cedar_status check_turn(const cedar_audit_doc *doc, uint32_t k, cedar_err *err) {
    const cedar_audit_turn *t = &doc->turns[k];
    if (t->hit >= t->prompt || t->prompt >= t->end)
        return cedar_fail(err, CEDAR_E_ARG, "%s turn %u: hit %u, prompt %u and end %u must grow", doc->name, k, t->hit,
                          t->prompt, t->end);
    if (k == 0 && t->hit > 0) return cedar_fail(err, CEDAR_E_ARG, "%s: the first turn has nothing to hit", doc->name);
    if (k == 0) return CEDAR_OK;
    const cedar_audit_turn *before = &doc->turns[k - 1];
    if (t->hit > before->end || memcmp(t->tokens, before->tokens, (size_t)t->hit * sizeof *t->tokens) != 0)
        return cedar_fail(err, CEDAR_E_ARG, "%s turn %u: its hit of %u tokens is not what the turn before left",
                          doc->name, k, t->hit);
    return CEDAR_OK;
}

cedar_status cedar_audit_docs_check(cedar_audit_docs *d, cedar_err *err) {
    d->turns = d->longest = 0;
    for (uint32_t i = 0; i < d->count; i++)
        for (uint32_t k = 0; k < d->docs[i].turn_count; k++) {
            cedar_status st = check_turn(&d->docs[i], k, err);
            if (st) return st;
            d->turns++;
            if (d->docs[i].turns[k].end > d->longest) d->longest = d->docs[i].turns[k].end;
        }
    return d->turns ? CEDAR_OK : cedar_fail(err, CEDAR_E_ARG, "there is no document to audit");
}

uint32_t cedar_audit_context(const cedar_audit_opts *o, const cedar_config *c) {
    uint32_t most = (uint32_t)c->positions_max;
    return o->context_max && o->context_max < most ? o->context_max : most;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

typedef struct writer {
    const cedar_audit_opts *o;
    uint64_t key;               /* of the document's random numbers */
    uint32_t range, lag, phase; /* ids to choose from; phase: where entities begin modulo lag */
    int32_t special[2];         /* ids that no document uses, ascending: the drafter's noise, Engram's padding */
} writer;

/* The i-th id that documents may use. */
static int32_t usable(const writer *w, uint32_t i) {
    int32_t id = FIRST_TOKEN + (int32_t)i;
    for (int k = 0; k < 2; k++) id += id >= w->special[k] && w->special[k] >= FIRST_TOKEN;
    return id;
}

static int32_t random_token(const writer *w, uint64_t counter) {
    return usable(w, (uint32_t)cedar_rng_below(w->key, counter, w->range));
}

/* Brackets of one kind among few fillers; openings and closings are as frequent. */
static int32_t bracket_token(const writer *w, uint64_t p) {
    uint64_t draw = cedar_rng_below(w->key, p, 8);
    return usable(w, (uint32_t)(draw < 3 ? 0 : draw < 6 ? 1 : draw % 6 + 2));
}

/* Token p of stream `branch`; branch 0 is the trunk. */
static int32_t token_at(const writer *w, uint32_t branch, uint32_t p) {
    uint64_t at = (uint64_t)branch << 32 | p;
    const char *pattern = w->o->pattern;
    if (strcmp(pattern, "run") == 0) return random_token(w, (uint64_t)branch << 32 | p / w->lag);
    if (strcmp(pattern, "copy") == 0) return random_token(w, (uint64_t)branch << 32 | p % w->lag);
    if (strcmp(pattern, "brackets") == 0) return bracket_token(w, at);
    if (strcmp(pattern, "entity") == 0) {
        uint32_t inside = (p + w->lag - w->phase) % w->lag;
        if (inside < ENTITY_TOKENS) return random_token(w, UINT64_MAX - inside);
    }
    return random_token(w, at);
}

static uint32_t cycle(const cedar_audit_list *l, uint32_t i) { return l->v[i % l->count]; }

/* --- turns -------------------------------------------------------------------------------------------------------- */

static cedar_status too_long(const cedar_audit_doc *doc, uint64_t end, uint32_t limit, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_ARG,
                      "%s needs %llu tokens, and the context ends at %u; make prompts, suffix, answer or turns smaller",
                      doc->name, (unsigned long long)end, limit);
}

/* Answer length of a turn; the last one has to hold the forced answers of all needles. */
static uint32_t answer_of(const cedar_audit_opts *o, uint32_t doc, uint32_t k) {
    uint32_t answer = cycle(&o->answer, doc + k), needed = o->needles.count * (KEY_TOKENS + VALUE_TOKENS);
    return k + 1 == o->turns && answer < needed ? needed : answer;
}

/* Lengths of all turns; branches of a turn share its numbers. */
static cedar_status plan_turns(const cedar_audit_opts *o, uint32_t doc, uint32_t limit, cedar_audit_doc *d,
                               cedar_err *err) {
    uint64_t end = (uint64_t)cycle(&o->prompts, doc) + answer_of(o, doc, 0);
    d->turns[0] = (cedar_audit_turn){ .prompt = cycle(&o->prompts, doc), .end = (uint32_t)end };
    for (uint32_t k = 1; k < o->turns && end <= limit; k++) {
        uint32_t back = cycle(&o->hit_back, doc + k - 1), before = (uint32_t)end;
        if (back >= before)
            return cedar_fail(err, CEDAR_E_ARG, "%s turn %u: hit_back %u leaves nothing of %u tokens", d->name, k, back,
                              before);
        uint32_t prompt = before + cycle(&o->suffix, doc + k - 1);
        end = (uint64_t)prompt + answer_of(o, doc, k);
        for (uint32_t r = 0; r < o->repeats; r++)
            d->turns[1 + (k - 1) * o->repeats + r] =
                (cedar_audit_turn){ .hit = before - back, .prompt = prompt, .end = (uint32_t)end };
    }
    return end > limit ? too_long(d, end, limit, err) : CEDAR_OK;
}

/* Plants key and value, asks with the key at the prompt's end, and makes the answers the forced continuation. */
static cedar_status plant(const cedar_audit_opts *o, const writer *w, cedar_audit_doc *d, int32_t *trunk,
                          cedar_err *err) {
    cedar_audit_turn *t = &d->turns[d->turn_count - 1];
    uint32_t at = t->prompt;
    if (o->needles.count > CEDAR_NEEDLES_MAX)
        return cedar_fail(err, CEDAR_E_ARG, "needles: at most %d", CEDAR_NEEDLES_MAX);
    for (uint32_t i = 0; i < o->needles.count; i++) {
        uint32_t back = o->needles.v[i], pos = t->hit - back;
        if (d->turn_count < 2 || back < VALUE_TOKENS || back + KEY_TOKENS > t->hit || t->hit + KEY_TOKENS > t->prompt)
            return cedar_fail(err, CEDAR_E_ARG,
                              "%s: a needle %u tokens before the hit's end needs two turns, %d tokens of its own "
                              "before the hit's end at %u, and a last suffix of at least %d",
                              d->name, back, KEY_TOKENS + VALUE_TOKENS, t->hit, KEY_TOKENS);
        for (uint32_t k = 0; k < i; k++) {
            uint32_t other = o->needles.v[k], gap = other > back ? other - back : back - other;
            if (gap < KEY_TOKENS + VALUE_TOKENS)
                return cedar_fail(err, CEDAR_E_ARG, "needles %u and %u overlap; they need %d tokens each", other, back,
                                  KEY_TOKENS + VALUE_TOKENS);
        }
        for (uint32_t k = 0; k < KEY_TOKENS + VALUE_TOKENS; k++)
            trunk[pos - KEY_TOKENS + k] = random_token(w, UINT64_MAX - 1000 - i * 100 - k);
        memcpy(trunk + at - KEY_TOKENS, trunk + pos - KEY_TOKENS, (KEY_TOKENS + VALUE_TOKENS) * sizeof *trunk);
        t->needle[t->needle_count++] = (cedar_needle){ .pos = pos, .tokens = VALUE_TOKENS, .answer = at, .back = back };
        at += VALUE_TOKENS + KEY_TOKENS;
    }
    return CEDAR_OK;
}

/* Tokens of the trunk, then of the branches: the last turn of each hit is the trunk itself. */
static cedar_status fill(const cedar_audit_opts *o, const writer *w, cedar_audit_doc *d, int32_t **blocks,
                         cedar_err *err) {
    uint32_t length = d->turns[d->turn_count - 1].end, used = 0;
    int32_t *trunk = blocks[used++] = cedar_calloc(length, sizeof *trunk);
    if (!trunk) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u tokens", length);
    for (uint32_t p = 0; p < length; p++) trunk[p] = token_at(w, 0, p);
    cedar_status st = plant(o, w, d, trunk, err);
    if (st) return st;
    for (uint32_t k = 0; k < d->turn_count; k++) {
        cedar_audit_turn *t = &d->turns[k];
        t->tokens = trunk;
        if (k == 0 || (k - 1) % o->repeats == o->repeats - 1) continue;
        int32_t *own = blocks[used++] = cedar_calloc(t->end, sizeof *own);
        if (!own) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u tokens", t->end);
        for (uint32_t p = 0; p < t->end; p++) own[p] = p < t->hit ? trunk[p] : token_at(w, k, p);
        t->tokens = own;
    }
    return CEDAR_OK;
}

static cedar_status make_doc(const cedar_audit_opts *o, const cedar_config *c, uint32_t i, cedar_audit_doc *d,
                             int32_t **blocks, cedar_err *err) {
    char name[32];
    uint32_t limit = cedar_audit_context(o, c);
    snprintf(d->name, sizeof d->name, "%s-%u", o->pattern, i);
    snprintf(name, sizeof name, "audit/doc/%u", i);
    d->turn_count = 1 + (o->turns - 1) * o->repeats;
    d->turns = cedar_calloc(d->turn_count, sizeof *d->turns);
    if (!d->turns) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u turns", d->turn_count);
    cedar_status st = plan_turns(o, i, limit, d, err);
    if (st) return st;
    writer w = { .o = o, .key = cedar_rng_key(o->seed, name), .lag = o->lag ? o->lag : (uint32_t)c->window,
                 .range = (uint32_t)c->vocab - FIRST_TOKEN - SPECIAL_TOKENS, .special = { -1, -1 } };
    int32_t noise = c->stages ? c->draft_noise : -1, pad = c->engram_layer_count ? c->engram_pad : -1;
    w.special[0] = noise < pad ? noise : pad;
    w.special[1] = noise < pad ? pad : noise;
    /* an entity lies across S of the last turn */
    uint32_t start = d->turns[d->turn_count - 1].hit, half = (uint32_t)c->window + ENTITY_TOKENS / 2;
    w.phase = (start > half ? start - half : 0) % w.lag;
    return fill(o, &w, d, blocks, err);
}

cedar_status cedar_audit_docs_make(const cedar_audit_opts *o, const cedar_config *c, cedar_audit_docs **out,
                                   cedar_err *err) {
    if (!o->prompts.count || !o->suffix.count || !o->answer.count || !o->hit_back.count)
        return cedar_fail(err, CEDAR_E_ARG, "prompts, suffix, answer and hit_back need at least one value each");
    if (c->vocab < 32) return cedar_fail(err, CEDAR_E_ARG, "a vocabulary of %d is too small to write with", c->vocab);
    uint64_t turns = (uint64_t)o->docs * (1 + (uint64_t)(o->turns - 1) * o->repeats);
    if (turns > TURNS_MAX)
        return cedar_fail(err, CEDAR_E_ARG, "docs, turns and repeats make %llu turns, and at most %llu are audited",
                          (unsigned long long)turns, (unsigned long long)TURNS_MAX);
    uint32_t blocks = 1 + (o->turns - 1) * (o->repeats - 1);
    cedar_audit_docs *d = NULL;
    cedar_status st = cedar_audit_docs_new(o->docs, o->docs * blocks, &d, err);
    for (uint32_t i = 0; i < o->docs && !st; i++)
        st = make_doc(o, c, i, &d->docs[i], d->blocks + (size_t)i * blocks, err);
    if (!st) st = cedar_audit_docs_check(d, err);
    if (st) {
        cedar_audit_docs_free(d);
        return st;
    }
    *out = d;
    return CEDAR_OK;
}
