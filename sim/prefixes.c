/* Prefixes: a corpus as a tree of pages, made once, so that looking for a cached prefix needs no tokens.
 *
 * Every turn's prompt and answer is a path of page names. Equal beginnings share edges, and every place where a turn's
 * pages may end is the end of an edge: so a cache says what it holds by a count per edge (sim/ledger.c). Traces whose
 * block ids mean the same are one group; edges of a group lie in a row. */
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "sim/sim_int.h"

enum { NONE = CEDAR_NO_EDGE };

/* Edges while they are made. */
typedef struct build {
    const cedar_prompts *prompts;
    const cedar_corpus *corpus;
    uint32_t page_tokens;
    bool salts;
    cedar_edge *edges;
    size_t *at;                 /* [capacity] where an edge's names begin in `names` */
    uint32_t count, capacity;
    cedar_page_name *names;     /* of all edges; parts of a split edge share them */
    size_t name_count, name_capacity;
    uint32_t *buckets;          /* [bucket_mask + 1] edge by (parent, first name), NONE = empty; linear probing */
    uint32_t bucket_mask;
    cedar_page_name *path;      /* names of the turn at hand */
    uint32_t path_capacity;
} build;

static uint32_t bucket_of(const build *b, uint32_t parent, uint64_t name) {
    return (uint32_t)cedar_mix64(name ^ ((uint64_t)parent << 32)) & b->bucket_mask;
}

static bool same_name(const cedar_page_name *a, const cedar_page_name *b) {
    return a->name == b->name && a->salted == b->salted;
}

static uint32_t child_of(const build *b, uint32_t parent, const cedar_page_name *name) {
    uint32_t i = bucket_of(b, parent, name->name);
    for (; b->buckets[i] != NONE; i = (i + 1) & b->bucket_mask) {
        uint32_t e = b->buckets[i];
        if (b->edges[e].parent == parent && same_name(&b->names[b->at[e]], name)) return e;
    }
    return NONE;
}

static void bucket_put(build *b, uint32_t e) {
    uint32_t i = bucket_of(b, b->edges[e].parent, b->names[b->at[e]].name);
    while (b->buckets[i] != NONE) i = (i + 1) & b->bucket_mask;
    b->buckets[i] = e;
}

static cedar_status oom(cedar_err *err) {
    return cedar_fail(err, CEDAR_E_OOM, "no memory for the prefixes of a corpus");
}

/* Room for two more edges. */
static cedar_status edge_room(build *b, cedar_err *err) {
    if (b->count + 2 <= b->capacity) return CEDAR_OK;
    uint32_t capacity = b->capacity ? 2 * b->capacity : 256, mask = 2 * capacity - 1;
    cedar_edge *edges = cedar_realloc(b->edges, capacity, sizeof *edges);
    if (edges) b->edges = edges;
    size_t *at = cedar_realloc(b->at, capacity, sizeof *at);
    if (at) b->at = at;
    uint32_t *buckets = cedar_realloc(b->buckets, (size_t)mask + 1, sizeof *buckets);
    if (buckets) b->buckets = buckets;
    if (!edges || !at || !buckets) return oom(err);
    b->capacity = capacity;
    b->bucket_mask = mask;
    memset(b->buckets, 0xFF, ((size_t)mask + 1) * sizeof *b->buckets);
    for (uint32_t e = 0; e < b->count; e++) bucket_put(b, e);
    return CEDAR_OK;
}

static cedar_status name_room(build *b, uint32_t more, cedar_err *err) {
    size_t capacity = b->name_capacity ? b->name_capacity : 4096;
    while (capacity < b->name_count + more) capacity *= 2;
    if (capacity == b->name_capacity) return CEDAR_OK;
    cedar_page_name *names = cedar_realloc(b->names, capacity, sizeof *names);
    if (!names) return oom(err);
    b->names = names;
    b->name_capacity = capacity;
    return CEDAR_OK;
}

/* Cuts an edge at page `at`; it keeps its number and its end, so that nobody who ends there has to know. */
static uint32_t split(build *b, uint32_t e, uint32_t at) {
    uint32_t up = b->count++, i = bucket_of(b, b->edges[e].parent, b->names[b->at[e]].name);
    b->edges[up] = b->edges[e];
    b->edges[up].end = at;
    b->at[up] = b->at[e];
    while (b->buckets[i] != e) i = (i + 1) & b->bucket_mask;
    b->buckets[i] = up;
    b->at[e] += at - b->edges[e].first;
    b->edges[e].parent = up;
    b->edges[e].first = at;
    bucket_put(b, e);
    return up;
}

/* New edges below `parent` for pages [first, end) of the path: one, or two where the salted part begins. */
static cedar_status append(build *b, uint32_t parent, uint32_t first, uint32_t end, uint32_t *out, cedar_err *err) {
    cedar_status st = name_room(b, end - first, err);
    while (!st && first < end) {
        st = edge_room(b, err);
        if (st) break;
        uint32_t stop = first;
        while (stop < end && b->path[stop].salted == b->path[first].salted) stop++;
        uint32_t e = b->count++;
        b->edges[e] = (cedar_edge){ .parent = parent, .first = first, .end = stop, .salted = b->path[first].salted };
        b->at[e] = b->name_count;
        memcpy(b->names + b->name_count, b->path + first, (stop - first) * sizeof *b->names);
        b->name_count += stop - first;
        bucket_put(b, e);
        parent = e;
        first = stop;
    }
    *out = parent;
    return st;
}

/* The edge that ends at page `end` of the path, from one that lies on it (NONE: the root); made if it is not there. */
static cedar_status reach(build *b, uint32_t from, uint32_t end, uint32_t *out, cedar_err *err) {
    uint32_t at = from, page = from == NONE ? 0 : b->edges[from].end;
    cedar_status st = edge_room(b, err);
    while (!st && page < end) {
        uint32_t e = child_of(b, at, &b->path[page]);
        if (e == NONE) return append(b, at, page, end, out, err);
        const cedar_page_name *names = b->names + b->at[e];
        uint32_t n = b->edges[e].end - page, same = 1, most = end - page < n ? end - page : n;
        while (same < most && same_name(&names[same], &b->path[page + same])) same++;
        if (same < n) e = split(b, e, page + same);
        at = e;
        page += same;
        st = edge_room(b, err);
    }
    *out = at;
    return st;
}

static cedar_status path_room(build *b, uint32_t pages, cedar_err *err) {
    if (pages <= b->path_capacity) return CEDAR_OK;
    uint32_t capacity = b->path_capacity ? b->path_capacity : 1024;
    while (capacity < pages) capacity *= 2;
    cedar_page_name *path = cedar_realloc(b->path, capacity, sizeof *path);
    if (!path) return oom(err);
    b->path = path;
    b->path_capacity = capacity;
    return CEDAR_OK;
}

static cedar_status add_turn(build *b, const cedar_turn_ref *ref, uint32_t in, uint32_t out_tokens,
                             cedar_turn_edges *out, cedar_err *err) {
    uint64_t fed = (uint64_t)in + out_tokens - 1;
    uint32_t pages = (uint32_t)(fed / b->page_tokens), kept = cedar_prompt_pages_kept(b->prompts, ref, b->page_tokens);
    cedar_status st = path_room(b, pages, err);
    if (st) return st;
    cedar_prompt_names(b->prompts, ref, b->page_tokens, kept < pages ? kept : pages, pages, b->path);
    st = reach(b, NONE, (in - 1) / b->page_tokens, &out->find, err);
    if (!st) st = reach(b, out->find, in / b->page_tokens, &out->prompt, err);
    if (!st) st = reach(b, out->prompt, pages, &out->all, err);
    return st;
}

static cedar_status add_trace(build *b, cedar_prefixes *x, uint32_t trace, cedar_err *err) {
    const cedar_trace *t = &b->corpus->traces[trace];
    cedar_status st = CEDAR_OK;
    for (uint32_t s = 0; s < t->stream_count && !st; s++)
        for (uint32_t k = 0; k < t->streams[s].turn_count && !st; k++) {
            const cedar_turn_ref ref = { .trace = trace, .stream = s, .turn = k, .salt = b->salts && !t->ids_global };
            uint32_t in, out;
            cedar_prompt_lengths(b->prompts, &ref, &in, &out);
            st = add_turn(b, &ref, in, out, &x->turns[x->turn_first[x->stream_first[trace] + s] + k], err);
        }
    return st;
}

/* --- making and freeing ------------------------------------------------------------------------------------------- */

static cedar_status room_for(const cedar_corpus *c, cedar_prefixes *x, cedar_err *err) {
    uint64_t streams = 0, turns = 0;
    for (uint32_t i = 0; i < c->trace_count; i++) streams += c->traces[i].stream_count;
    x->stream_first = cedar_calloc(c->trace_count, sizeof *x->stream_first);
    x->turn_first = cedar_calloc(streams, sizeof *x->turn_first);
    x->group_first = cedar_calloc(c->trace_count, sizeof *x->group_first);
    x->group_count = cedar_calloc(c->trace_count, sizeof *x->group_count);
    if (!x->stream_first || !x->turn_first || !x->group_first || !x->group_count) return oom(err);
    streams = 0;
    for (uint32_t i = 0; i < c->trace_count; i++) {
        x->stream_first[i] = (uint32_t)streams;
        for (uint32_t s = 0; s < c->traces[i].stream_count; s++) {
            x->turn_first[streams++] = turns;
            turns += c->traces[i].streams[s].turn_count;
        }
    }
    x->turns = cedar_calloc(turns, sizeof *x->turns);
    return x->turns ? CEDAR_OK : oom(err);
}

/* A group: a trace and those behind it with the same scope. */
static cedar_status add_group(build *b, cedar_prefixes *x, uint32_t lead, cedar_err *err) {
    uint64_t scope = cedar_prompt_scope(b->prompts, lead);
    uint32_t first = b->count;
    cedar_status st = CEDAR_OK;
    for (uint32_t i = lead; i < b->corpus->trace_count && !st; i++) {
        if (cedar_prompt_scope(b->prompts, i) != scope) continue;
        st = add_trace(b, x, i, err);
        x->group_first[i] = first;
    }
    for (uint32_t i = lead; i < b->corpus->trace_count; i++)
        if (cedar_prompt_scope(b->prompts, i) == scope) x->group_count[i] = b->count - first;
    return st;
}

cedar_status cedar_prefixes_new(const cedar_prompts *p, const cedar_corpus *corpus, uint32_t page_tokens, bool salts,
                                cedar_prefixes **out, cedar_err *err) {
    build b = { .prompts = p, .corpus = corpus, .page_tokens = page_tokens, .salts = salts };
    bool *done = cedar_calloc(corpus->trace_count, sizeof *done);
    cedar_prefixes *x = cedar_calloc(1, sizeof *x);
    cedar_status st = done && x ? room_for(corpus, x, err) : oom(err);
    for (uint32_t i = 0; i < corpus->trace_count && !st; i++) {
        if (done[i]) continue;
        st = add_group(&b, x, i, err);
        for (uint32_t k = i; k < corpus->trace_count; k++)
            done[k] |= cedar_prompt_scope(p, k) == cedar_prompt_scope(p, i);
    }
    void *const scratch[] = { done, b.at, b.names, b.buckets, b.path };
    for (size_t i = 0; i < sizeof scratch / sizeof *scratch; i++) cedar_free(scratch[i]);
    if (!x) {
        cedar_free(b.edges);
        return st;
    }
    x->edges = b.edges;
    x->edge_count = b.count;
    if (st) cedar_prefixes_free(x);
    else *out = x;
    return st;
}

void cedar_prefixes_free(cedar_prefixes *x) {
    if (!x) return;
    void *const parts[] = { x->edges, x->group_first, x->group_count, x->stream_first, x->turn_first, x->turns };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) cedar_free(parts[i]);
    cedar_free(x);
}

const cedar_turn_edges *cedar_prefixes_turn(const cedar_prefixes *x, const cedar_turn_ref *ref) {
    return &x->turns[x->turn_first[x->stream_first[ref->trace] + ref->stream] + ref->turn];
}
