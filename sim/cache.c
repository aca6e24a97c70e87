/* Prefix cache: a tree of KV pages. A node is one page of tokens behind its parent's; a path from the root is a prefix.
 *
 * A hash only finds candidates; a node matches when parent and all tokens are equal. The recency list holds the
 * unpinned nodes. Every use of a node is a use of its whole path, deepest node first, so a parent is always more recent
 * than its children, and the list's oldest node has no children that could be left behind: eviction is one step, and
 * its order depends on the order of uses alone. Stored windows have a recency list of their own and a budget in bytes.
 *
 * Memory: nodes and tokens for the whole pool are taken at the start. The record of evicted prefixes grows up to a
 * limit; then its older half is forgotten, and what is in neither half counts as never cached. */
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "sim/sim_int.h"

enum { NONE = -1 };

typedef struct list_link { int32_t older, newer; } list_link;

typedef struct list { int32_t oldest, newest; } list;

typedef struct node {
    uint64_t hash;              /* of the whole prefix */
    int32_t parent, next;       /* next: in the bucket, or in the list of unused nodes */
    int32_t page;
    uint32_t pins, children, depth, pages;   /* pages: length of the path */
    bool used;
    cedar_snap *snap;
    uint64_t snap_bytes;
    list_link recency, snap_recency;
} node;

/* A set of hashes; open addressing, 0 = empty. */
typedef struct record {
    uint64_t *v;                /* [mask + 1] */
    uint64_t mask, count;
} record;

struct cedar_cache {
    cedar_cache_opts opts;
    cedar_cache_host host;
    node *nodes;                /* [page_count] */
    int32_t *tokens;            /* [page_count, page_tokens] */
    int32_t *buckets;           /* [bucket_mask + 1] first node */
    uint64_t bucket_mask;
    int32_t unused;
    uint32_t count;
    list recency, snap_recency;
    uint64_t window_bytes;
    record evicted, evicted_before;     /* hashes of prefixes given up; only explain misses */
};

/* Prefixes that a record holds at most, so that a long run takes no more and more memory. */
static uint64_t record_limit(const cedar_cache *c) { return 4096 + 16 * (uint64_t)c->opts.page_count; }

/* --- lists -------------------------------------------------------------------------------------------------------- */

static list_link *link_at(cedar_cache *c, bool snaps, int32_t i) {
    return snaps ? &c->nodes[i].snap_recency : &c->nodes[i].recency;
}

static void list_remove(cedar_cache *c, bool snaps, int32_t i) {
    list *l = snaps ? &c->snap_recency : &c->recency;
    list_link *k = link_at(c, snaps, i);
    if (k->older == NONE) l->oldest = k->newer;
    else link_at(c, snaps, k->older)->newer = k->newer;
    if (k->newer == NONE) l->newest = k->older;
    else link_at(c, snaps, k->newer)->older = k->older;
}

static void list_append(cedar_cache *c, bool snaps, int32_t i) {
    list *l = snaps ? &c->snap_recency : &c->recency;
    *link_at(c, snaps, i) = (list_link){ .older = l->newest, .newer = NONE };
    if (l->newest == NONE) l->oldest = i;
    else link_at(c, snaps, l->newest)->newer = i;
    l->newest = i;
}

/* --- making and freeing ------------------------------------------------------------------------------------------- */

cedar_status cedar_cache_new(const cedar_cache_opts *opts, const cedar_cache_host *host, cedar_cache **out,
                             cedar_err *err) {
    cedar_cache *c = cedar_calloc(1, sizeof *c);
    if (!c) goto oom;
    c->opts = *opts;
    c->host = *host;
    c->bucket_mask = 15;
    while (c->bucket_mask + 1 < 2ull * opts->page_count) c->bucket_mask = 2 * c->bucket_mask + 1;
    c->evicted.mask = 63;
    c->nodes = cedar_calloc(opts->page_count, sizeof *c->nodes);
    c->tokens = cedar_calloc(opts->page_count, opts->page_tokens * sizeof *c->tokens);
    c->buckets = cedar_calloc(c->bucket_mask + 1, sizeof *c->buckets);
    c->evicted.v = cedar_calloc(c->evicted.mask + 1, sizeof *c->evicted.v);
    if (!c->nodes || !c->tokens || !c->buckets || !c->evicted.v) goto oom;
    for (uint64_t i = 0; i <= c->bucket_mask; i++) c->buckets[i] = NONE;
    for (uint32_t i = 0; i < opts->page_count; i++) c->nodes[i].next = i + 1 < opts->page_count ? (int32_t)i + 1 : NONE;
    c->unused = opts->page_count ? 0 : NONE;
    c->recency = c->snap_recency = (list){ NONE, NONE };
    *out = c;
    return CEDAR_OK;
oom:
    cedar_cache_free(c);
    return cedar_fail(err, CEDAR_E_OOM, "no memory for a prefix cache of %u pages", opts->page_count);
}

static void snap_drop(cedar_cache *c, int32_t i) {
    node *n = &c->nodes[i];
    if (!n->snap) return;
    list_remove(c, true, i);
    c->window_bytes -= n->snap_bytes;
    c->host.snap_free(c->host.self, n->snap);
    n->snap = NULL;
    n->snap_bytes = 0;
}

void cedar_cache_free(cedar_cache *c) {
    if (!c) return;
    for (uint32_t i = 0; c->count && i < c->opts.page_count; i++) {
        if (!c->nodes[i].used) continue;
        snap_drop(c, (int32_t)i);
        c->host.page_release(c->host.self, c->nodes[i].page);
    }
    cedar_free(c->nodes);
    cedar_free(c->tokens);
    cedar_free(c->buckets);
    cedar_free(c->evicted.v);
    cedar_free(c->evicted_before.v);
    cedar_free(c);
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

/* Most of a modelled run is this loop, so two tokens cost one multiplication. Who uses the hash compares tokens too. */
static uint64_t prefix_hash(const cedar_cache *c, uint64_t parent_hash, const int32_t *tokens) {
    uint64_t h = 0;
    uint32_t i = 0, count = c->opts.page_tokens;
    for (; i + 1 < count; i += 2) {
        h = (h ^ ((uint64_t)(uint32_t)tokens[i + 1] << 32 | (uint32_t)tokens[i])) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 32;
    }
    if (i < count) h = (h ^ (uint32_t)tokens[i]) * 0x9E3779B97F4A7C15ull;
    h = cedar_fold64(parent_hash, h);
    return h ? h : 1;   /* 0 means empty in the record of evicted prefixes */
}

static int32_t child_find(const cedar_cache *c, int32_t parent, uint64_t hash, const int32_t *tokens) {
    size_t bytes = c->opts.page_tokens * sizeof *tokens;
    for (int32_t i = c->buckets[hash & c->bucket_mask]; i != NONE; i = c->nodes[i].next)
        if (c->nodes[i].parent == parent && c->nodes[i].hash == hash &&
            !memcmp(c->tokens + (size_t)i * c->opts.page_tokens, tokens, bytes)) return i;
    return NONE;
}

static bool recorded(const record *r, uint64_t hash) {
    if (!r->v) return false;
    uint64_t i = hash & r->mask;
    while (r->v[i] && r->v[i] != hash) i = (i + 1) & r->mask;
    return r->v[i] == hash;
}

static bool was_evicted(const cedar_cache *c, uint64_t hash) {
    return recorded(&c->evicted, hash) || recorded(&c->evicted_before, hash);
}

void cedar_cache_find(const cedar_cache *c, const int32_t *tokens, uint32_t count, cedar_cache_hit *out) {
    *out = (cedar_cache_hit){ .node = NONE };
    uint32_t pages = count ? (count - 1) / c->opts.page_tokens : 0, found = 0;
    uint64_t hash = 0;
    int32_t at = NONE;
    out->miss = CEDAR_MISS_PAGE_TAIL;
    for (; found < pages; found++) {
        const int32_t *page = tokens + (size_t)found * c->opts.page_tokens;
        hash = prefix_hash(c, hash, page);
        int32_t child = child_find(c, at, hash, page);
        if (child == NONE) {
            out->miss = was_evicted(c, hash) ? CEDAR_MISS_EVICTED : CEDAR_MISS_COLD;
            break;
        }
        at = child;
    }
    out->matched_tokens = found * c->opts.page_tokens;
    while (c->opts.windows && at != NONE && !c->nodes[at].snap) {
        at = c->nodes[at].parent;
        out->miss = CEDAR_MISS_NO_WINDOWS;
    }
    out->node = at;
    out->hit_tokens = at == NONE ? 0 : c->nodes[at].pages * c->opts.page_tokens;
    out->depth = cedar_cache_depth(c, at);
    out->snap = at == NONE || !c->opts.windows ? NULL : c->nodes[at].snap;
}

void cedar_cache_pages(const cedar_cache *c, int32_t at, int32_t *pages) {
    for (; at != NONE; at = c->nodes[at].parent) pages[c->nodes[at].pages - 1] = c->nodes[at].page;
}

uint32_t cedar_cache_depth(const cedar_cache *c, int32_t at) {
    uint32_t depth = 0;
    for (; at != NONE; at = c->nodes[at].parent)
        if (c->nodes[at].depth > depth) depth = c->nodes[at].depth;
    return depth;
}

/* --- using -------------------------------------------------------------------------------------------------------- */

/* The path becomes the most recently used, its root last. Pinned nodes are in no list. */
static void touch(cedar_cache *c, int32_t at) {
    for (; at != NONE; at = c->nodes[at].parent) {
        if (c->nodes[at].pins) continue;
        list_remove(c, false, at);
        list_append(c, false, at);
    }
}

void cedar_cache_pin(cedar_cache *c, int32_t at) {
    for (; at != NONE; at = c->nodes[at].parent)
        if (c->nodes[at].pins++ == 0) list_remove(c, false, at);
}

void cedar_cache_unpin(cedar_cache *c, int32_t at) {
    for (; at != NONE; at = c->nodes[at].parent) {
        CEDAR_ASSERT(c->nodes[at].pins > 0);
        if (--c->nodes[at].pins == 0) list_append(c, false, at);
    }
}

/* --- adding ------------------------------------------------------------------------------------------------------- */

static int32_t node_add(cedar_cache *c, int32_t parent, uint64_t hash, const int32_t *tokens, int32_t page,
                        uint32_t depth) {
    int32_t i = c->unused;
    CEDAR_ASSERT(i != NONE);   /* a node per page of the pool: the page was one of them */
    node *n = &c->nodes[i];
    c->unused = n->next;
    int32_t *bucket = &c->buckets[hash & c->bucket_mask];
    *n = (node){ .hash = hash, .parent = parent, .next = *bucket, .page = page, .depth = depth, .used = true,
                 .pages = parent == NONE ? 1 : c->nodes[parent].pages + 1 };
    *bucket = i;
    memcpy(c->tokens + (size_t)i * c->opts.page_tokens, tokens, c->opts.page_tokens * sizeof *tokens);
    if (parent != NONE) c->nodes[parent].children++;
    c->host.page_retain(c->host.self, page);
    list_append(c, false, i);
    c->count++;
    return i;
}

static void snap_put(cedar_cache *c, int32_t i, cedar_snap *snap) {
    node *n = &c->nodes[i];
    uint64_t bytes = c->host.snap_bytes(c->host.self, snap), most = c->opts.window_bytes_max;
    if (n->snap || !c->opts.windows || (most && bytes > most)) {
        if (n->snap) {   /* the same position: keep the older one, it has as much worth */
            list_remove(c, true, i);
            list_append(c, true, i);
        }
        c->host.snap_free(c->host.self, snap);
        return;
    }
    while (most && c->window_bytes + bytes > most) snap_drop(c, c->snap_recency.oldest);
    n->snap = snap;
    n->snap_bytes = bytes;
    c->window_bytes += bytes;
    list_append(c, true, i);
}

void cedar_cache_insert(cedar_cache *c, const int32_t *tokens, const int32_t *pages, uint32_t page_count,
                        uint32_t depth, cedar_snap *snap, uint32_t snap_pos) {
    uint64_t hash = 0;
    int32_t at = NONE;
    CEDAR_ASSERT(!snap ||
                 (snap_pos && snap_pos % c->opts.page_tokens == 0 && snap_pos / c->opts.page_tokens <= page_count));
    for (uint32_t i = 0; i < page_count; i++) {
        const int32_t *page = tokens + (size_t)i * c->opts.page_tokens;
        hash = prefix_hash(c, hash, page);
        int32_t child = child_find(c, at, hash, page);
        at = child == NONE ? node_add(c, at, hash, page, pages[i], depth) : child;
        if (snap && (i + 1) * c->opts.page_tokens == snap_pos) snap_put(c, at, snap);
    }
    touch(c, at);
}

/* --- evicting ----------------------------------------------------------------------------------------------------- */

static void remember(record *r, uint64_t hash) {
    uint64_t i = hash & r->mask;
    while (r->v[i] && r->v[i] != hash) i = (i + 1) & r->mask;
    r->count += !r->v[i];
    r->v[i] = hash;
}

/* Room for one more. A full record becomes the one before, whose place was the forgotten one's. */
static cedar_status remember_room(cedar_cache *c, cedar_err *err) {
    bool full = c->evicted.count >= record_limit(c);
    if (!full && 2 * (c->evicted.count + 1) <= c->evicted.mask + 1) return CEDAR_OK;
    record grown = { .mask = full ? 63 : 2 * c->evicted.mask + 1 };
    grown.v = cedar_calloc(grown.mask + 1, sizeof *grown.v);
    if (!grown.v)
        return cedar_fail(err, CEDAR_E_OOM, "no memory to remember %llu evicted pages",
                          (unsigned long long)c->evicted.count);
    record *old = full ? &c->evicted_before : &c->evicted;
    for (uint64_t i = 0; !full && i <= old->mask; i++)
        if (old->v[i]) remember(&grown, old->v[i]);
    cedar_free(old->v);
    if (full) c->evicted_before = c->evicted;
    c->evicted = grown;
    return CEDAR_OK;
}

static void bucket_remove(cedar_cache *c, int32_t i) {
    int32_t *at = &c->buckets[c->nodes[i].hash & c->bucket_mask];
    while (*at != i) at = &c->nodes[*at].next;
    *at = c->nodes[i].next;
}

cedar_status cedar_cache_evict(cedar_cache *c, bool *evicted, cedar_err *err) {
    int32_t i = c->recency.oldest;
    *evicted = false;
    if (i == NONE) return CEDAR_OK;
    cedar_status st = remember_room(c, err);
    if (st) return st;
    node *n = &c->nodes[i];
    CEDAR_ASSERT(n->children == 0 && n->pins == 0);
    remember(&c->evicted, n->hash);
    snap_drop(c, i);
    list_remove(c, false, i);
    bucket_remove(c, i);
    if (n->parent != NONE) c->nodes[n->parent].children--;
    c->host.page_release(c->host.self, n->page);
    *n = (node){ .next = c->unused };
    c->unused = i;
    c->count--;
    *evicted = true;
    return CEDAR_OK;
}

uint32_t cedar_cache_page_count(const cedar_cache *c) { return c->count; }
uint64_t cedar_cache_window_bytes(const cedar_cache *c) { return c->window_bytes; }

/* --- self check --------------------------------------------------------------------------------------------------- */

static const char *node_broken(const cedar_cache *c, uint32_t i) {
    const node *n = &c->nodes[i];
    if (n->parent != NONE) {
        const node *up = &c->nodes[n->parent];
        if (!up->used) return "a node's parent is gone";
        if (up->pins < n->pins) return "a node is pinned more often than its parent";
        if (n->pages != up->pages + 1) return "a path's length is wrong";
    }
    const int32_t *tokens = c->tokens + (size_t)i * c->opts.page_tokens;
    if (prefix_hash(c, n->parent == NONE ? 0 : c->nodes[n->parent].hash, tokens) != n->hash)
        return "a node's hash is wrong";
    if (child_find(c, n->parent, n->hash, tokens) != (int32_t)i) return "a node cannot be found, or is there twice";
    uint32_t children = 0;
    for (uint32_t k = 0; k < c->opts.page_count; k++) children += c->nodes[k].used && c->nodes[k].parent == (int32_t)i;
    return children == n->children ? NULL : "a node's count of children is wrong";
}

const char *cedar_cache_broken(const cedar_cache *c) {
    uint32_t used = 0, unpinned = 0, listed = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < c->opts.page_count; i++) {
        if (!c->nodes[i].used) continue;
        const char *broken = node_broken(c, i);
        if (broken) return broken;
        used++;
        unpinned += c->nodes[i].pins == 0;
        bytes += c->nodes[i].snap_bytes;
    }
    for (int32_t i = c->recency.oldest; i != NONE; i = c->nodes[i].recency.newer) {
        if (c->nodes[i].pins) return "a pinned node is in the recency list";
        if (++listed > used) return "the recency list has a loop";
    }
    if (used != c->count) return "the count of nodes is wrong";
    if (listed != unpinned) return "an unpinned node is not in the recency list";
    if (bytes != c->window_bytes) return "the bytes of stored windows are wrong";
    if (c->opts.window_bytes_max && bytes > c->opts.window_bytes_max) return "stored windows are over their budget";
    return NULL;
}
