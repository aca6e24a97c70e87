/* Admission of a request: prefix hit, pages, sequence. Leaves nothing behind when it does not succeed. */
#include "sim/admit.h"

static void host_page_retain(void *self, int32_t page) { cedar_page_retain(self, page); }
static void host_page_release(void *self, int32_t page) { cedar_page_release(self, page); }

static uint64_t host_snap_bytes(void *self, const cedar_snap *snap) {
    (void)self;
    return cedar_snap_bytes(snap);
}

static void host_snap_free(void *self, cedar_snap *snap) {
    (void)self;
    cedar_snap_free(snap);
}

cedar_cache_host cedar_cache_engine_host(cedar_engine *e) {
    return (cedar_cache_host){ e, host_page_retain, host_page_release, host_snap_bytes, host_snap_free };
}

cedar_hit_plan cedar_admit_hit(const cedar_replay_rules *rules, uint32_t tokens) {
    if (!rules->encoder) return (cedar_hit_plan){ .hit = tokens, .start = tokens, .write_floor = tokens };
    return tokens ? cedar_plan_hit(rules, tokens) : (cedar_hit_plan){ 0 };
}

/* What the cache holds of the prompt, and what the arm's rules make of it. */
static void find_hit(const cedar_admitter *a, const int32_t *tokens, uint32_t prompt, cedar_admission *out) {
    *out = (cedar_admission){ .seq = -1, .node = -1, .hit = { .node = -1, .miss = CEDAR_MISS_OFF } };
    if (!a->cache) return;
    cedar_cache_find(a->cache, tokens, prompt, &out->hit);
    out->plan = cedar_admit_hit(a->rules, out->hit.hit_tokens);
    if (out->hit.hit_tokens && !out->plan.hit) {
        out->hit.node = -1;
        out->hit.depth = 0;
        out->hit.miss = CEDAR_MISS_SHORT_HIT;
    }
}

/* Frees cached pages until `need` are there; false when pinned ones are in the way. */
static cedar_status make_room(const cedar_admitter *a, uint32_t need, bool *there, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    bool evicted = true;
    while (!st && cedar_pages_free(a->engine) < need && a->cache && evicted)
        st = cedar_cache_evict(a->cache, &evicted, err);
    *there = cedar_pages_free(a->engine) >= need;
    return st;
}

static cedar_status take_sequence(const cedar_admitter *a, const int32_t *tokens, uint32_t fed, cedar_admission *out,
                                  cedar_err *err) {
    const cedar_hit_plan *plan = &out->plan;
    cedar_status st = cedar_seq_open(a->engine, &out->seq, err);
    if (st) {
        out->seq = -1;
        return st;
    }
    if (plan->hit) cedar_cache_pages(a->cache, out->hit.node, a->pages);
    if (plan->hit && a->rules->encoder) st = cedar_seq_adopt(a->engine, out->seq, tokens, a->pages, plan, err);
    else if (plan->hit) st = cedar_seq_restore(a->engine, out->seq, tokens, a->pages, plan->hit, out->hit.snap, err);
    if (!st) st = cedar_seq_reserve(a->engine, out->seq, fed, err);
    if (!st) return CEDAR_OK;
    cedar_seq_close(a->engine, out->seq);
    out->seq = -1;
    return st;
}

cedar_status cedar_admit(const cedar_admitter *a, const int32_t *tokens, uint32_t prompt, uint32_t fed,
                         cedar_admission *out, bool *admitted, cedar_err *err) {
    uint32_t page = cedar_engine_options(a->engine)->page_tokens;
    find_hit(a, tokens, prompt, out);
    if (out->hit.node >= 0) cedar_cache_pin(a->cache, out->hit.node);
    out->node = out->hit.node;
    cedar_status st = make_room(a, (fed + page - 1) / page - out->plan.hit / page, admitted, err);
    if (!st && *admitted) st = take_sequence(a, tokens, fed, out, err);
    if (st || !*admitted) {
        if (out->node >= 0) cedar_cache_unpin(a->cache, out->node);
        out->node = -1;
        return st;
    }
    uint32_t boundary = prompt / page * page;
    out->boundary = a->windows && boundary > out->plan.start ? boundary : 0;
    out->depth = out->hit.depth + (out->plan.replayed > 0);
    return CEDAR_OK;
}
