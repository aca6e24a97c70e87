/* Ledger: the page pool and the prefix cache of an engine that computes nothing.
 *
 * What cache.c keeps as one node per page is here one run per stretch of pages that were added together: where pages
 * are told apart by names, not tokens, and have no ids, all pages of a run are used, pinned and given up alike, the
 * deepest first. The order of eviction is that of cache.c, page for page, without walking paths: a use of a run is a
 * use of its whole path, so a run was last used when the last of those behind it was. The recency list therefore only
 * holds runs where uses ended. One that comes to its front while there are runs behind it was used since, and leaves
 * the list; and when the last run behind one is given up, that one was used no later, and takes its place.
 *
 * Runs lie on the edges of the corpus (sim/prefixes.c). An edge's cached pages are its first `cached`, and pages behind
 * an edge's end are cached only when all of the edge is. `ever` is the most pages an edge has had: it tells a page that
 * was given up from one that never was there, for as long as the session lives that could ask for it.
 *
 * Memory: runs up to a page each; edges per session tree, freed when the tree has ended and its last page is gone. */

#include "base/mem.h"
#include "sim/sim_int.h"

enum { NONE = -1 };

typedef struct links { int32_t older, newer; } links;

typedef struct list { int32_t oldest, newest; } list;

typedef struct edge_state {
    int32_t run;                /* the deepest, NONE when nothing is cached */
    uint32_t cached, ever;      /* pages */
} edge_state;

struct cedar_ledger_tree {
    uint32_t edge_first, edge_count;    /* of its group */
    uint64_t pages;             /* cached, salted ones alone */
    bool ended;
    edge_state edges[];         /* [edge_count] only salted edges are used */
};

typedef struct run {
    int32_t up;                 /* run in front of it; in the list of unused runs: the next */
    uint32_t edge;              /* in the corpus */
    cedar_ledger_tree *tree;    /* NULL: its edge is shared by all sessions */
    uint32_t count, end;        /* pages in it, and in its whole path */
    uint32_t pins, below;       /* pins that end at it; runs behind it */
    bool listed;                /* in the recency list */
    uint32_t depth, path_depth; /* provenance: its own, and the largest on its path */
    uint64_t snap_bytes;        /* stored windows at its end, 0 = none */
    links recency, snaps;
} run;

struct cedar_ledger {
    const cedar_prefixes *x;
    cedar_ledger_opts opts;
    edge_state *shared;         /* [edge_count] only unsalted edges are used */
    run *runs;                  /* [run_capacity] */
    int32_t unused;
    uint32_t run_capacity, run_count;
    uint32_t free_pages, cached_pages;
    list recency, snaps;
    uint64_t window_bytes;
};

/* --- lists -------------------------------------------------------------------------------------------------------- */

static void recency_remove(cedar_ledger *l, int32_t i) {
    run *r = &l->runs[i];
    if (!r->listed) return;
    if (r->recency.older == NONE) l->recency.oldest = r->recency.newer;
    else l->runs[r->recency.older].recency.newer = r->recency.newer;
    if (r->recency.newer == NONE) l->recency.newest = r->recency.older;
    else l->runs[r->recency.newer].recency.older = r->recency.older;
    r->listed = false;
}

/* The run's path becomes the most recently used. */
static void touch(cedar_ledger *l, int32_t i) {
    recency_remove(l, i);
    l->runs[i].listed = true;
    l->runs[i].recency = (links){ .older = l->recency.newest, .newer = NONE };
    if (l->recency.newest == NONE) l->recency.oldest = i;
    else l->runs[l->recency.newest].recency.newer = i;
    l->recency.newest = i;
}

static void put_first(cedar_ledger *l, int32_t i) {
    l->runs[i].listed = true;
    l->runs[i].recency = (links){ .older = NONE, .newer = l->recency.oldest };
    if (l->recency.oldest == NONE) l->recency.newest = i;
    else l->runs[l->recency.oldest].recency.older = i;
    l->recency.oldest = i;
}

static void snaps_remove(cedar_ledger *l, run *r) {
    if (r->snaps.older == NONE) l->snaps.oldest = r->snaps.newer;
    else l->runs[r->snaps.older].snaps.newer = r->snaps.newer;
    if (r->snaps.newer == NONE) l->snaps.newest = r->snaps.older;
    else l->runs[r->snaps.newer].snaps.older = r->snaps.older;
}

static void snaps_append(cedar_ledger *l, int32_t i) {
    l->runs[i].snaps = (links){ .older = l->snaps.newest, .newer = NONE };
    if (l->snaps.newest == NONE) l->snaps.oldest = i;
    else l->runs[l->snaps.newest].snaps.newer = i;
    l->snaps.newest = i;
}

/* --- making and freeing ------------------------------------------------------------------------------------------- */

cedar_status cedar_ledger_new(const cedar_prefixes *x, const cedar_ledger_opts *opts, cedar_ledger **out,
                              cedar_err *err) {
    cedar_ledger *l = cedar_calloc(1, sizeof *l);
    if (!l) goto oom;
    *l = (cedar_ledger){ .x = x, .opts = *opts, .unused = NONE, .free_pages = opts->page_count,
                         .recency = { NONE, NONE }, .snaps = { NONE, NONE } };
    l->shared = cedar_calloc(x->edge_count, sizeof *l->shared);
    if (!l->shared) goto oom;
    for (uint32_t e = 0; e < x->edge_count; e++) l->shared[e].run = NONE;
    *out = l;
    return CEDAR_OK;
oom:
    cedar_ledger_free(l);
    return cedar_fail(err, CEDAR_E_OOM, "no memory for a ledger of %u prefix edges", x->edge_count);
}

static void tree_free_when_empty(cedar_ledger_tree *t) {
    if (t->ended && !t->pages) cedar_free(t);
}

/* Gives up pages of the oldest run; false when all are pinned. */
static bool evict(cedar_ledger *l, uint32_t most);

void cedar_ledger_free(cedar_ledger *l) {
    if (!l) return;
    while (evict(l, UINT32_MAX)) continue;
    cedar_free(l->shared);
    cedar_free(l->runs);
    cedar_free(l);
}

cedar_status cedar_ledger_tree_open(cedar_ledger *l, uint32_t trace, cedar_ledger_tree **out, cedar_err *err) {
    uint32_t count = l->x->group_count[trace];
    cedar_ledger_tree *t = cedar_calloc(1, sizeof *t + count * sizeof *t->edges);
    if (!t) return cedar_fail(err, CEDAR_E_OOM, "no memory for the %u prefix edges of a session", count);
    t->edge_first = l->x->group_first[trace];
    t->edge_count = count;
    for (uint32_t e = 0; e < count; e++) t->edges[e].run = NONE;
    *out = t;
    return CEDAR_OK;
}

void cedar_ledger_tree_end(cedar_ledger_tree *t) {
    if (!t) return;
    t->ended = true;
    tree_free_when_empty(t);
}

/* --- finding ------------------------------------------------------------------------------------------------------ */

static const edge_state *state_of(const cedar_ledger *l, const cedar_ledger_tree *t, uint32_t e) {
    static const edge_state nothing = { .run = NONE };
    if (!t && l->x->edges[e].salted) return &nothing;
    return l->x->edges[e].salted ? &t->edges[e - t->edge_first] : &l->shared[e];
}

static edge_state *state_at(cedar_ledger *l, cedar_ledger_tree *t, uint32_t e) {
    return l->x->edges[e].salted ? &t->edges[e - t->edge_first] : &l->shared[e];
}

void cedar_ledger_find(const cedar_ledger *l, const cedar_ledger_tree *t, uint32_t edge, cedar_ledger_hit *out) {
    *out = (cedar_ledger_hit){ .run = NONE, .miss = l->opts.cache ? CEDAR_MISS_PAGE_TAIL : CEDAR_MISS_OFF };
    if (!l->opts.cache) return;
    int32_t at = NONE;
    for (uint32_t e = edge; e != CEDAR_NO_EDGE; e = l->x->edges[e].parent) {
        const edge_state *s = state_of(l, t, e);
        uint32_t pages = l->x->edges[e].end - l->x->edges[e].first;
        if (s->cached < pages) out->miss = s->ever > s->cached ? CEDAR_MISS_EVICTED : CEDAR_MISS_COLD;
        if (!s->cached) continue;
        at = s->run;
        break;
    }
    out->matched_pages = at == NONE ? 0 : l->runs[at].end;
    while (l->opts.windows && at != NONE && !l->runs[at].snap_bytes) {
        at = l->runs[at].up;
        out->miss = CEDAR_MISS_NO_WINDOWS;
    }
    if (at == NONE) return;
    out->run = at;
    out->hit_pages = l->runs[at].end;
    out->depth = l->runs[at].path_depth;
}

/* --- using -------------------------------------------------------------------------------------------------------- */

/* What lies before a pinned run has runs behind it, so that it is safe too. */
void cedar_ledger_pin(cedar_ledger *l, int32_t i) {
    if (l->runs[i].pins++ == 0) recency_remove(l, i);
}

void cedar_ledger_unpin(cedar_ledger *l, int32_t i) {
    CEDAR_ASSERT(l->runs[i].pins > 0);
    if (--l->runs[i].pins == 0) touch(l, i);
}

/* --- giving up ---------------------------------------------------------------------------------------------------- */

static void snap_drop(cedar_ledger *l, int32_t i) {
    run *r = &l->runs[i];
    if (!r->snap_bytes) return;
    snaps_remove(l, r);
    l->window_bytes -= r->snap_bytes;
    r->snap_bytes = 0;
}

/* Takes the last pages of a run away. */
static void shrink(cedar_ledger *l, int32_t i, uint32_t pages) {
    run *r = &l->runs[i];
    cedar_ledger_tree *t = r->tree;
    edge_state *s = state_at(l, t, r->edge);
    CEDAR_ASSERT(s->run == i && !r->below && !r->pins && pages <= r->count);
    snap_drop(l, i);
    s->cached -= pages;
    r->count -= pages;
    r->end -= pages;
    l->cached_pages -= pages;
    l->free_pages += pages;
    if (!r->count) {
        int32_t up = r->up;
        s->run = up != NONE && l->runs[up].edge == r->edge ? up : NONE;
        recency_remove(l, i);
        if (up != NONE && --l->runs[up].below == 0 && !l->runs[up].pins && !l->runs[up].listed) put_first(l, up);
        *r = (run){ .up = l->unused };
        l->unused = i;
        l->run_count--;
    }
    if (!t) return;
    t->pages -= pages;
    tree_free_when_empty(t);
}

static bool evict(cedar_ledger *l, uint32_t most) {
    while (l->recency.oldest != NONE && l->runs[l->recency.oldest].below) recency_remove(l, l->recency.oldest);
    int32_t i = l->recency.oldest;
    if (i == NONE) return false;
    shrink(l, i, most < l->runs[i].count ? most : l->runs[i].count);
    return true;
}

void cedar_ledger_take(cedar_ledger *l, uint32_t pages, bool *there) {
    while (l->free_pages < pages && evict(l, pages - l->free_pages)) continue;
    *there = l->free_pages >= pages;
    if (*there) l->free_pages -= pages;
}

void cedar_ledger_give(cedar_ledger *l, uint32_t pages) { l->free_pages += pages; }

/* --- keeping ------------------------------------------------------------------------------------------------------ */

static cedar_status run_room(cedar_ledger *l, cedar_err *err) {
    if (l->unused != NONE) return CEDAR_OK;
    uint32_t capacity = l->run_capacity ? 2 * l->run_capacity : 256;
    run *runs = cedar_realloc(l->runs, capacity, sizeof *runs);
    if (!runs) return cedar_fail(err, CEDAR_E_OOM, "no memory for %u stretches of cached pages", capacity);
    for (uint32_t i = l->run_capacity; i < capacity; i++)
        runs[i] = (run){ .up = i + 1 < capacity ? (int32_t)i + 1 : NONE };
    l->unused = (int32_t)l->run_capacity;
    l->runs = runs;
    l->run_capacity = capacity;
    return CEDAR_OK;
}

/* Fills up an edge whose parent is full. */
static cedar_status fill(cedar_ledger *l, cedar_ledger_tree *t, uint32_t e, uint32_t depth, cedar_err *err) {
    const cedar_edge *edge = &l->x->edges[e];
    edge_state *s = state_at(l, t, e);
    uint32_t pages = edge->end - edge->first, more = pages - s->cached;
    if (!more) return CEDAR_OK;
    cedar_status st = run_room(l, err);
    if (st) return st;
    int32_t up = s->cached ? s->run : edge->parent == CEDAR_NO_EDGE ? NONE : state_at(l, t, edge->parent)->run;
    int32_t i = l->unused;
    uint32_t above = up == NONE ? 0 : l->runs[up].path_depth;
    CEDAR_ASSERT(l->free_pages >= more);    /* the pages were the request's */
    l->unused = l->runs[i].up;
    l->runs[i] = (run){ .up = up, .edge = e, .tree = edge->salted ? t : NULL, .count = more, .end = edge->end,
                        .depth = depth, .path_depth = depth > above ? depth : above };
    if (up != NONE) l->runs[up].below++;
    l->run_count++;
    l->free_pages -= more;
    l->cached_pages += more;
    if (edge->salted) t->pages += more;
    *s = (edge_state){ .run = i, .cached = pages, .ever = pages > s->ever ? pages : s->ever };
    return CEDAR_OK;
}

static void snap_put(cedar_ledger *l, int32_t i, uint64_t bytes) {
    run *r = &l->runs[i];
    uint64_t most = l->opts.window_bytes_max;
    if (!l->opts.windows || (!r->snap_bytes && most && bytes > most)) return;
    if (r->snap_bytes) {        /* the same position: the older one has as much worth */
        snaps_remove(l, r);
        snaps_append(l, i);
        return;
    }
    while (most && l->window_bytes + bytes > most) snap_drop(l, l->snaps.oldest);
    r->snap_bytes = bytes;
    l->window_bytes += bytes;
    snaps_append(l, i);
}

cedar_status cedar_ledger_keep(cedar_ledger *l, cedar_ledger_tree *t, uint32_t edge, uint32_t depth,
                               uint64_t snap_bytes, cedar_err *err) {
    if (!l->opts.cache || edge == CEDAR_NO_EDGE) return CEDAR_OK;
    cedar_status st = CEDAR_OK;
    uint32_t full = edge;       /* deepest edge of the path that holds anything, or the first */
    while (!state_of(l, t, full)->cached && l->x->edges[full].parent != CEDAR_NO_EDGE) full = l->x->edges[full].parent;
    for (uint32_t e = full; !st; ) {
        st = fill(l, t, e, depth, err);
        if (e == edge) break;
        uint32_t next = edge;   /* the edge of the path behind e */
        while (l->x->edges[next].parent != e) next = l->x->edges[next].parent;
        e = next;
    }
    if (st) return st;
    int32_t end = state_of(l, t, edge)->run;
    if (snap_bytes) snap_put(l, end, snap_bytes);
    if (!l->runs[end].pins) touch(l, end);
    return CEDAR_OK;
}

uint32_t cedar_ledger_free_pages(const cedar_ledger *l) { return l->free_pages; }
uint32_t cedar_ledger_cached_pages(const cedar_ledger *l) { return l->cached_pages; }
uint64_t cedar_ledger_window_bytes(const cedar_ledger *l) { return l->window_bytes; }

/* --- self check --------------------------------------------------------------------------------------------------- */

static const char *run_broken(const cedar_ledger *l, int32_t i) {
    const run *r = &l->runs[i];
    const cedar_edge *e = &l->x->edges[r->edge];
    if (e->salted != (r->tree != NULL)) return "a run is on an edge of another kind";
    if (r->end <= e->first || r->end > e->end) return "a run ends outside its edge";
    if (r->up == NONE) return r->end == r->count ? NULL : "a run at the root does not begin at page 0";
    const run *up = &l->runs[r->up];
    if (!up->count) return "the run in front of a run is gone";
    if (up->end != r->end - r->count) return "two runs do not meet";
    if (up->edge != r->edge && (up->edge != e->parent || up->end != e->first)) return "a run hangs on a wrong edge";
    return r->path_depth == (r->depth > up->path_depth ? r->depth : up->path_depth) ? NULL
                                                                                    : "a path's depth is wrong";
}

const char *cedar_ledger_broken(const cedar_ledger *l) {
    uint32_t used = 0, marked = 0, listed = 0, pages = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < l->run_capacity; i++) {
        const run *r = &l->runs[i];
        if (!r->count) continue;
        const char *broken = run_broken(l, (int32_t)i);
        if (broken) return broken;
        if (!r->below && !r->pins && !r->listed) return "a run that could be given up is not in the recency list";
        used++;
        marked += r->listed;
        pages += r->count;
        bytes += r->snap_bytes;
    }
    for (int32_t i = l->recency.oldest; i != NONE; i = l->runs[i].recency.newer) {
        if (l->runs[i].pins) return "a pinned run is in the recency list";
        if (++listed > used) return "the recency list has a loop";
    }
    if (used != l->run_count) return "the count of runs is wrong";
    if (listed != marked) return "the recency list has lost a run";
    if (pages != l->cached_pages) return "the count of cached pages is wrong";
    if (bytes != l->window_bytes) return "the bytes of stored windows are wrong";
    if (l->opts.window_bytes_max && bytes > l->opts.window_bytes_max) return "stored windows are over their budget";
    return NULL;
}
