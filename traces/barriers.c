/* Owns the barriers between the streams of a session: what must have completed before a turn may start, besides the
 * order inside its stream, its spawn and its joins.
 *
 * Rule: for each other stream, the turn that ended last of those that started before this one and had ended by its
 * start. What follows from other barriers or from the structure is left out. For every turn a row says how many turns
 * of each stream are certain to be complete when it starts; a barrier is needed when no later candidate's row covers
 * it. Turns are taken in an order that respects all edges, so that one pass is enough. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "traces/traces_int.h"

/* A turn as the pass sees it. Where a recording contradicts its own structure (a subagent that runs before the turn
 * that spawns it), its start is moved to what the structure allows: edges then never close a circle. */
typedef struct node {
    int64_t start_ns, end_ns;
    uint32_t stream, turn;
    uint32_t order;        /* in the structure: no turn comes before one that it follows */
} node;

typedef struct pass {
    const cedar_trace *t;
    size_t count;
    node *nodes;           /* [count] by (start, order) */
    size_t *first;         /* [streams + 1] of each stream's turns in rank and ended */
    uint32_t *rank;        /* [count] place of (stream, turn) in nodes */
    uint32_t *ended;       /* [count] per stream: ranks of its turns by (end, start, turn) */
    size_t *reached;       /* [streams] how many of them had ended */
    uint32_t *rows;        /* [count][streams] */
    uint32_t *candidates;  /* [streams] ranks */
    cedar_barrier *found;  /* [streams] */
} pass;

/* --- nodes ------------------------------------------------------------------------------------------------------- */

static uint32_t add_stream(pass *p, uint32_t stream, int64_t after_ns, uint32_t order) {
    const cedar_stream *s = &p->t->streams[stream];
    for (uint32_t k = 0; k < s->turn_count; k++) {
        int64_t start = s->turns[k].t_ns > after_ns ? s->turns[k].t_ns : after_ns;
        p->nodes[p->first[stream] + k] = (node){ start, start + s->turns[k].api_ns, stream, k, order++ };
        after_ns = start;
    }
    return order;
}

/* Streams by the turn that spawns or joins them, as lists: heads[turn + 1], next[stream]. */
static void list_by(const cedar_trace *t, bool join, uint32_t *heads, uint32_t *next) {
    for (uint32_t i = 0; i <= t->streams[0].turn_count; i++) heads[i] = 0;
    for (uint32_t i = t->stream_count; i-- > 1;) {
        int32_t turn = join ? t->streams[i].join_turn : t->streams[i].spawn_turn;
        next[i] = heads[turn + 1];
        heads[turn + 1] = i;
    }
}

static void make_nodes(pass *p, uint32_t *heads, uint32_t *next) {
    const cedar_stream *root = &p->t->streams[0];
    uint32_t *join_heads = heads + root->turn_count + 1, *join_next = next + p->t->stream_count, order = 0;
    int64_t after = INT64_MIN;
    list_by(p->t, false, heads, next);
    list_by(p->t, true, join_heads, join_next);
    for (uint32_t i = heads[0]; i; i = next[i]) order = add_stream(p, i, INT64_MIN, order);
    for (uint32_t k = 0; k < root->turn_count; k++) {
        int64_t start = root->turns[k].t_ns > after ? root->turns[k].t_ns : after;
        for (uint32_t i = join_heads[k + 1]; i; i = join_next[i]) {
            int64_t last = p->nodes[p->first[i + 1] - 1].start_ns;
            if (last > start) start = last;
        }
        p->nodes[k] = (node){ start, start + root->turns[k].api_ns, 0, k, order++ };
        for (uint32_t i = heads[k + 1]; i; i = next[i]) order = add_stream(p, i, start, order);
        after = start;
    }
}

static int by_start(const void *a, const void *b) {
    const node *x = a, *y = b;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static int by_end(const void *a, const void *b, void *nodes) {
    const node *x = (const node *)nodes + *(const uint32_t *)a, *y = (const node *)nodes + *(const uint32_t *)b;
    if (x->end_ns != y->end_ns) return x->end_ns < y->end_ns ? -1 : 1;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

static int by_rank_down(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x > y ? -1 : x < y;
}

static int by_stream(const void *a, const void *b) {
    const cedar_barrier *x = a, *y = b;
    return x->stream < y->stream ? -1 : x->stream > y->stream;
}

static void sort_nodes(pass *p) {
    uint32_t streams = p->t->stream_count;
    qsort(p->nodes, p->count, sizeof *p->nodes, by_start);
    for (uint32_t i = 0; i < p->count; i++) p->rank[p->first[p->nodes[i].stream] + p->nodes[i].turn] = i;
    memcpy(p->ended, p->rank, p->count * sizeof *p->ended);
    for (uint32_t i = 0; i < streams; i++)
        qsort_r(p->ended + p->first[i], p->first[i + 1] - p->first[i], sizeof *p->ended, by_end, p->nodes);
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

/* row takes over what is complete once the turn at `rank` is. */
static void cover(const pass *p, uint32_t *row, uint32_t rank) {
    const node *n = &p->nodes[rank];
    const uint32_t *other = p->rows + (size_t)rank * p->t->stream_count;
    for (uint32_t i = 0; i < p->t->stream_count; i++)
        if (other[i] > row[i]) row[i] = other[i];
    if (n->turn + 1 > row[n->stream]) row[n->stream] = n->turn + 1;
}

/* The turn before it in its stream, its spawn, and its joins. */
static void cover_structure(const pass *p, const node *n, uint32_t *row, const uint32_t *joins,
                            const uint32_t *join_next) {
    const cedar_stream *s = &p->t->streams[n->stream];
    if (n->turn) cover(p, row, p->rank[p->first[n->stream] + n->turn - 1]);
    else if (s->spawn_turn >= 0) cover(p, row, p->rank[s->spawn_turn]);
    for (uint32_t i = n->stream ? 0 : joins[n->turn + 1]; i; i = join_next[i])
        cover(p, row, p->rank[p->first[i + 1] - 1]);
}

static size_t find_candidates(pass *p, const node *n) {
    size_t count = 0;
    for (uint32_t i = 0; i < p->t->stream_count; i++) {
        size_t limit = p->first[i + 1] - p->first[i];
        for (; p->reached[i] < limit; p->reached[i]++) {
            const node *x = &p->nodes[p->ended[p->first[i] + p->reached[i]]];
            if (x->end_ns > n->start_ns || x->start_ns >= n->start_ns) break;
        }
        if (i != n->stream && p->reached[i]) p->candidates[count++] = p->ended[p->first[i] + p->reached[i] - 1];
    }
    qsort(p->candidates, count, sizeof *p->candidates, by_rank_down);
    return count;
}

/* Later candidates first: whatever covers one of them comes before it. */
static uint32_t reduce(pass *p, size_t candidate_count, uint32_t *row) {
    uint32_t count = 0;
    for (size_t i = 0; i < candidate_count; i++) {
        const node *c = &p->nodes[p->candidates[i]];
        if (row[c->stream] > c->turn) continue;
        cover(p, row, p->candidates[i]);
        p->found[count++] = (cedar_barrier){ c->stream, c->turn };
    }
    qsort(p->found, count, sizeof *p->found, by_stream);
    return count;
}

static cedar_status walk(traces_load *l, pass *p, const uint32_t *joins, const uint32_t *join_next, cedar_err *err) {
    for (uint32_t r = 0; r < p->count; r++) {
        const node *n = &p->nodes[r];
        uint32_t *row = p->rows + (size_t)r * p->t->stream_count;
        cover_structure(p, n, row, joins, join_next);
        uint32_t count = reduce(p, find_candidates(p, n), row);
        cedar_turn *turn = &p->t->streams[n->stream].turns[n->turn];
        if (!count) continue;
        cedar_barrier *list = traces_arena_alloc(l->arena, count, sizeof *list);
        if (!list) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for barriers", p->t->id);
        memcpy(list, p->found, count * sizeof *list);
        turn->barriers = list;
        turn->barrier_count = count;
    }
    return CEDAR_OK;
}

cedar_status traces_barriers(traces_load *l, cedar_trace *t, cedar_err *err) {
    uint32_t streams = t->stream_count;
    if (streams < 2) return CEDAR_OK;
    pass p = { .t = t };
    for (uint32_t i = 0; i < streams; i++) p.count += t->streams[i].turn_count;
    if (p.count > BARRIER_CELLS_MAX / streams)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s:%d: %zu requests in %u streams; at most %zu requests times streams "
                          "are allowed", t->file, t->line, p.count, streams, BARRIER_CELLS_MAX);
    size_t roots = t->streams[0].turn_count + 1u;
    uint32_t *heads = cedar_calloc(2 * roots, sizeof *heads), *next = cedar_calloc(2 * (size_t)streams, sizeof *next);
    p.nodes = cedar_calloc(p.count, sizeof *p.nodes);
    p.first = cedar_calloc(streams + 1u, sizeof *p.first);
    p.rank = cedar_calloc(p.count, sizeof *p.rank);
    p.ended = cedar_calloc(p.count, sizeof *p.ended);
    p.reached = cedar_calloc(streams, sizeof *p.reached);
    p.rows = cedar_calloc(p.count * streams, sizeof *p.rows);
    p.candidates = cedar_calloc(streams, sizeof *p.candidates);
    p.found = cedar_calloc(streams, sizeof *p.found);
    cedar_status st = CEDAR_OK;
    if (heads && next && p.nodes && p.first && p.rank && p.ended && p.reached && p.rows && p.candidates && p.found) {
        for (uint32_t i = 0; i < streams; i++) p.first[i + 1] = p.first[i] + t->streams[i].turn_count;
        make_nodes(&p, heads, next);
        sort_nodes(&p);
        st = walk(l, &p, heads + roots, next + streams, err);
    } else {
        st = cedar_fail(err, CEDAR_E_OOM, "%s: no memory to find the barriers of %zu requests", t->id, p.count);
    }
    cedar_free(heads);
    cedar_free(next);
    cedar_free(p.nodes);
    cedar_free(p.first);
    cedar_free(p.rank);
    cedar_free(p.ended);
    cedar_free(p.reached);
    cedar_free(p.rows);
    cedar_free(p.candidates);
    cedar_free(p.found);
    return st;
}
