/* Owns splitting flattened agents: requests of several agents that a recording mixed into the root stream are told
 * apart by their prompts (docs/TRACES.md "Flattened agents" has the rules).
 *
 * A chain is one agent's turns, as a list linked by turn numbers. Chains are made in two passes: first every turn goes
 * on the chain whose last prompt it contains or opens a new one; then a chain that goes on from a shortened prompt of
 * another is put behind it when nobody returns to the longer prompt (a context that was compacted). */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "traces/traces_int.h"

#define CHAINS_MAX 4096u      /* every turn is compared with every chain's last */
#define SLACK_NS 1000         /* recorded times are rounded */
#define GROUP_MIN 3           /* agents at the same time from the same turn that make a work group */
#define AUX_TURNS_MAX 2       /* an auxiliary chain has at most these turns, */
#define AUX_SHARE 4           /* and no prompt over a 1/4 of the root's largest */
#define NONE UINT32_MAX

typedef enum kind { KIND_AGENT, KIND_GROUP, KIND_AUX } kind;

typedef struct chain {
    uint32_t first, last;     /* turns */
    uint32_t tail;            /* last turn with ids: what others are compared with */
    uint32_t turn_count;
    uint32_t fork_turn;       /* turn with the longest common prefix when the chain began; NONE: shares nothing */
    uint32_t fork_depth;      /* blocks of it */
    uint32_t fork_next;       /* next chain that began from the same turn */
    uint32_t into;            /* chain it was put behind; NONE */
    kind kind;
    uint32_t group, member;   /* of KIND_GROUP */
} chain;

typedef struct split {
    const cedar_stream *root;
    chain *chains;            /* [count] in the order of first turns */
    uint32_t count, room;
    uint32_t *next;           /* [turns] next turn of the chain */
    uint32_t *owner;          /* [turns] chain */
    uint32_t *forks;          /* [turns] first chain that began from the turn */
} split;

static int64_t turn_end(const cedar_turn *t) {
    return t->t_ns + t->api_ns;
}

static bool same_model(const cedar_turn *a, const cedar_turn *b) {
    return a->model == b->model || a->model < 0 || b->model < 0;
}

/* --- first pass -------------------------------------------------------------------------------------------------- */

/* Chain whose last prompt is a prefix of the turn's, the longest; NONE. */
static uint32_t find_extended(const split *s, const cedar_turn *t) {
    uint32_t best = NONE, best_blocks = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->chains[i].tail == NONE) continue;
        const cedar_turn *tail = &s->root->turns[s->chains[i].tail];
        uint32_t n = tail->block_count;
        if (n > t->block_count || n <= best_blocks || turn_end(tail) > t->t_ns + SLACK_NS || !same_model(tail, t))
            continue;
        /* Ids are chained, so that nearly all mismatches show in the last one. */
        if (tail->block_ids[n - 1] != t->block_ids[n - 1] || cedar_turn_common_blocks(tail, t) < n) continue;
        best = i;
        best_blocks = n;
    }
    return best;
}

/* Turn at the end of a chain with the longest common prefix. */
static void find_fork(const split *s, const cedar_turn *t, chain *c) {
    uint32_t tail_blocks = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->chains[i].tail == NONE) continue;
        const cedar_turn *tail = &s->root->turns[s->chains[i].tail];
        uint32_t depth = cedar_turn_common_blocks(tail, t);
        if (!depth || depth < c->fork_depth || (depth == c->fork_depth && tail->block_count <= tail_blocks)) continue;
        c->fork_turn = s->chains[i].tail;
        c->fork_depth = depth;
        tail_blocks = tail->block_count;
    }
}

static void append(split *s, uint32_t index, uint32_t turn) {
    chain *c = &s->chains[index];
    if (c->turn_count++) s->next[c->last] = turn;
    else c->first = turn;
    c->last = turn;
    s->owner[turn] = index;
    if (s->root->turns[turn].block_count) c->tail = turn;
}

static cedar_status open_chain(split *s, const cedar_trace *t, uint32_t turn, cedar_err *err) {
    if (s->count == CHAINS_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: the root stream splits into more than %u agents", t->file,
                          t->line, CHAINS_MAX);
    void *p = s->chains;
    size_t room = s->room;
    cedar_status st = traces_grow(&p, &room, s->count + 1u, sizeof *s->chains, err);
    if (st) return st;
    s->chains = p;
    s->room = (uint32_t)room;
    chain c = { .tail = NONE, .fork_turn = NONE, .fork_next = NONE, .into = NONE };
    find_fork(s, &s->root->turns[turn], &c);
    if (c.fork_turn != NONE) {
        c.fork_next = s->forks[c.fork_turn];
        s->forks[c.fork_turn] = s->count;
    }
    s->chains[s->count++] = c;
    append(s, s->count - 1, turn);
    return CEDAR_OK;
}

static cedar_status make_chains(split *s, const cedar_trace *t, cedar_err *err) {
    for (uint32_t k = 0; k < s->root->turn_count; k++) {
        const cedar_turn *turn = &s->root->turns[k];
        /* Without ids there is nothing to tell it by: it stays with the root. */
        uint32_t i = !turn->block_count && s->count ? 0 : find_extended(s, turn);
        if (i != NONE) {
            append(s, i, k);
            continue;
        }
        cedar_status st = open_chain(s, t, k, err);
        if (st) return st;
    }
    return CEDAR_OK;
}

/* --- second pass ------------------------------------------------------------------------------------------------- */

/* The chain that goes on from turn k: begun after it ended, with the same model, sharing most; then the earliest. */
static uint32_t find_continuation(const split *s, uint32_t k) {
    const cedar_turn *t = &s->root->turns[k];
    uint32_t best = NONE;
    for (uint32_t i = s->forks[k]; i != NONE; i = s->chains[i].fork_next) {
        const cedar_turn *first = &s->root->turns[s->chains[i].first];
        if (turn_end(t) > first->t_ns + SLACK_NS || !same_model(t, first)) continue;
        if (best == NONE || s->chains[i].fork_depth > s->chains[best].fork_depth ||
            (s->chains[i].fork_depth == s->chains[best].fork_depth && i < best)) best = i;
    }
    return best;
}

static uint32_t owner_of(const split *s, uint32_t turn) {
    uint32_t i = s->owner[turn];
    while (s->chains[i].into != NONE) i = s->chains[i].into;
    return i;
}

static void join_compacted(split *s) {
    for (uint32_t k = 0; k < s->root->turn_count; k++) {
        if (s->forks[k] == NONE) continue;
        uint32_t mine = owner_of(s, k);
        if (s->chains[mine].last != k) continue; /* somebody returned to the longer prompt */
        uint32_t more = find_continuation(s, k);
        if (more == NONE) continue;
        s->next[k] = s->chains[more].first;
        s->chains[mine].last = s->chains[more].last;
        s->chains[mine].turn_count += s->chains[more].turn_count;
        s->chains[more].into = mine;
    }
}

/* --- kinds ------------------------------------------------------------------------------------------------------- */

static uint32_t largest_prompt(const split *s, const chain *c) {
    uint32_t most = 0;
    for (uint32_t k = c->first; k != NONE; k = s->next[k])
        if (s->root->turns[k].in_recorded > most) most = s->root->turns[k].in_recorded;
    return most;
}

static bool is_aux(const split *s, const chain *c) {
    const cedar_turn *first = &s->root->turns[c->first], *main = &s->root->turns[0];
    if (c->turn_count == 1 && !same_model(first, main)) return true;
    return c->turn_count <= AUX_TURNS_MAX && c->fork_turn == NONE &&
           largest_prompt(s, c) <= largest_prompt(s, &s->chains[0]) / AUX_SHARE;
}

static int64_t chain_end(const split *s, const chain *c) {
    int64_t end = 0;
    for (uint32_t k = c->first; k != NONE; k = s->next[k])
        if (turn_end(&s->root->turns[k]) > end) end = turn_end(&s->root->turns[k]);
    return end;
}

/* Next chain behind i that lives and began from the same turn as `from`. */
static uint32_t next_sibling(const split *s, uint32_t i, uint32_t from) {
    for (i++; i < s->count; i++)
        if (s->chains[i].into == NONE && s->chains[i].kind != KIND_AUX && s->chains[i].fork_turn == from) return i;
    return NONE;
}

/* Marks the chains from `first` on that run at the same time, one overlapping the next, when they are enough. */
static void mark_group(split *s, uint32_t first, bool *seen, uint32_t *groups) {
    uint32_t size = 0, from = s->chains[first].fork_turn;
    for (int pass = 0; pass < 2; pass++) {
        int64_t end = chain_end(s, &s->chains[first]);
        uint32_t member = 0;
        for (uint32_t i = first; i != NONE; i = next_sibling(s, i, from)) {
            chain *c = &s->chains[i];
            if (i != first && s->root->turns[c->first].t_ns >= end) break;
            if (chain_end(s, c) > end) end = chain_end(s, c);
            seen[i] = true;
            if (pass && size >= GROUP_MIN) {
                c->kind = KIND_GROUP;
                c->group = *groups;
                c->member = member;
            }
            member++;
        }
        size = member;
    }
    *groups += size >= GROUP_MIN;
}

static cedar_status find_kinds(split *s, cedar_err *err) {
    uint32_t groups = 0;
    bool *seen = cedar_calloc(s->count, sizeof *seen);
    if (!seen) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u agents", s->count);
    for (uint32_t i = 1; i < s->count; i++)
        if (s->chains[i].into == NONE && is_aux(s, &s->chains[i])) s->chains[i].kind = KIND_AUX;
    for (uint32_t i = 1; i < s->count; i++) {
        const chain *c = &s->chains[i];
        if (!seen[i] && c->into == NONE && c->kind != KIND_AUX && c->fork_turn != NONE) mark_group(s, i, seen, &groups);
    }
    cedar_free(seen);
    return CEDAR_OK;
}

/* --- streams ----------------------------------------------------------------------------------------------------- */

static const char *chain_id(traces_load *l, const chain *c, uint32_t *agents, uint32_t *aux) {
    char id[48];
    int n;
    if (c->kind == KIND_GROUP) n = snprintf(id, sizeof id, "::wg:%03u_%03u", c->group, c->member);
    else if (c->kind == KIND_AUX) n = snprintf(id, sizeof id, "::aux:%03u", (*aux)++);
    else n = snprintf(id, sizeof id, "::fa:%03u", (*agents)++);
    return traces_arena_string(l->arena, id, (size_t)n);
}

/* Copies a chain's turns; a wait stays as it is where the turn before is the same as in the root. */
static void fill_stream(const split *s, const chain *c, cedar_stream *out) {
    uint32_t n = 0, before = NONE;
    for (uint32_t k = c->first; k != NONE; before = k, k = s->next[k]) out->turns[n++] = s->root->turns[k];
    out->turn_count = n;
    traces_stream_times(out);
    n = 0;
    before = NONE;
    for (uint32_t k = c->first; k != NONE; before = k, k = s->next[k], n++)
        if (before != NONE && before + 1 == k) out->turns[n].delay_ns = s->root->turns[k].delay_ns;
}

/* Number of the last turn of chain 0 that is turn k or before it. */
static int32_t main_turn(const split *s, uint32_t k) {
    int32_t n = -1;
    for (uint32_t i = s->chains[0].first; i != NONE && i <= k; i = s->next[i]) n++;
    return n;
}

static cedar_status make_streams(traces_load *l, split *s, cedar_trace *t, uint32_t extra, cedar_err *err) {
    uint32_t n = t->stream_count, agents = 0, aux = 0;
    cedar_stream *streams = traces_arena_alloc(l->arena, n + extra, sizeof *streams);
    cedar_turn *turns = traces_arena_alloc(l->arena, s->root->turn_count, sizeof *turns);
    if (!streams || !turns) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for %u agents", t->id, extra);
    memcpy(streams, t->streams, n * sizeof *streams);
    streams[0].turns = turns;
    fill_stream(s, &s->chains[0], &streams[0]);
    turns += streams[0].turn_count;
    for (uint32_t i = 1; i < n; i++)
        if (streams[i].spawn_turn >= 0) streams[i].spawn_turn = main_turn(s, (uint32_t)streams[i].spawn_turn);
    for (uint32_t i = 1; i < s->count; i++) {
        const chain *c = &s->chains[i];
        if (c->into != NONE) continue;
        streams[n] = (cedar_stream){ .id = chain_id(l, c, &agents, &aux), .turns = turns, .join_turn = -1,
                                     .spawn_turn = main_turn(s, c->first) };
        if (!streams[n].id) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for the name of an agent", t->id);
        fill_stream(s, c, &streams[n]);
        streams[n].marker_ns = streams[n].start_ns;
        turns += streams[n].turn_count;
        n++;
    }
    t->streams = streams;
    t->stream_count = n;
    t->split_streams = extra;
    traces_streams_link(t);
    return CEDAR_OK;
}

cedar_status traces_split(traces_load *l, cedar_trace *t, cedar_err *err) {
    split s = { .root = &t->streams[0] };
    uint32_t n = s.root->turn_count, extra = 0;
    s.next = cedar_calloc(n, sizeof *s.next);
    s.owner = cedar_calloc(n, sizeof *s.owner);
    s.forks = cedar_calloc(n, sizeof *s.forks);
    cedar_status st = s.next && s.owner && s.forks ? CEDAR_OK
                                                   : cedar_fail(err, CEDAR_E_OOM, "%s: no memory to split it", t->id);
    for (uint32_t k = 0; !st && k < n; k++) s.next[k] = s.forks[k] = NONE;
    if (!st) st = make_chains(&s, t, err);
    if (!st) join_compacted(&s);
    for (uint32_t i = 1; !st && i < s.count; i++) extra += s.chains[i].into == NONE;
    if (!st && extra) st = find_kinds(&s, err);
    if (!st && extra) st = make_streams(l, &s, t, extra, err);
    cedar_free(s.chains);
    cedar_free(s.next);
    cedar_free(s.owner);
    cedar_free(s.forks);
    return st;
}
