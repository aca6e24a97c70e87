/* The prefix cache against a naive model, and the cases that prefix caches elsewhere got wrong. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "sim/sim_int.h"

enum { PAGE = 4, POOL = 24 };

/* A pool of counted pages that remembers what each page holds. */
typedef struct pool {
    int refs[POOL];
    int32_t content[POOL][PAGE * POOL]; /* the whole prefix up to and with the page */
    int snaps;                          /* alive */
} pool;

static void pool_retain(void *self, int32_t page) {
    pool *p = self;
    ck_assert_int_gt(p->refs[page], 0);
    p->refs[page]++;
}

static void pool_release(void *self, int32_t page) {
    pool *p = self;
    ck_assert_int_gt(p->refs[page], 0);
    p->refs[page]--;
}

static uint64_t snap_bytes(void *self, const cedar_snap *snap) {
    (void)self;
    (void)snap;
    return 100;
}

static void snap_free(void *self, cedar_snap *snap) {
    ((pool *)self)->snaps--;
    cedar_free(snap);
}

static cedar_snap *snap_new(pool *p) {
    p->snaps++;
    return cedar_calloc(1, 8);
}

static int pool_free_count(const pool *p) {
    int n = 0;
    for (int i = 0; i < POOL; i++) n += p->refs[i] == 0;
    return n;
}

static int32_t pool_take(pool *p) {
    for (int32_t i = 0; i < POOL; i++)
        if (!p->refs[i]) {
            p->refs[i] = 1;
            return i;
        }
    return -1;
}

static cedar_cache *cache_new(pool *p, bool windows, uint64_t bytes_max) {
    cedar_cache_opts o = { PAGE, POOL, windows, bytes_max };
    cedar_cache_host h = { p, pool_retain, pool_release, snap_bytes, snap_free };
    cedar_cache *c = NULL;
    cedar_err err = { 0 };
    memset(p, 0, sizeof *p);
    ck_assert_msg(cedar_cache_new(&o, &h, &c, &err) == CEDAR_OK, "%s", err.msg);
    return c;
}

static bool evict(cedar_cache *c) {
    cedar_err err = { 0 };
    bool evicted;
    ck_assert_msg(cedar_cache_evict(c, &evicted, &err) == CEDAR_OK, "%s", err.msg);
    return evicted;
}

/* Plays one request: adopt the hit, compute the rest on fresh pages, insert, release. Returns the hit's tokens. */
static uint32_t play(cedar_cache *c, pool *p, const int32_t *tokens, uint32_t count, bool snap, cedar_cache_hit *hit) {
    int32_t pages[POOL];
    uint32_t n = count / PAGE;
    cedar_cache_find(c, tokens, count, hit);
    cedar_cache_pages(c, hit->node, pages);
    if (hit->node >= 0) cedar_cache_pin(c, hit->node);
    uint32_t have = hit->hit_tokens / PAGE;
    for (uint32_t i = 0; i < have; i++) {
        ck_assert_mem_eq(p->content[pages[i]], tokens, (size_t)(i + 1) * PAGE * sizeof *tokens);
        pool_retain(p, pages[i]);
    }
    for (uint32_t i = have; i < n; i++) {
        while (pool_free_count(p) == 0) ck_assert(evict(c));
        pages[i] = pool_take(p);
        memcpy(p->content[pages[i]], tokens, (size_t)(i + 1) * PAGE * sizeof *tokens);
    }
    cedar_cache_insert(c, tokens, pages, n, 0, snap && n ? snap_new(p) : NULL, n * PAGE);
    for (uint32_t i = 0; i < n; i++) pool_release(p, pages[i]);
    if (hit->node >= 0) cedar_cache_unpin(c, hit->node);
    const char *broken = cedar_cache_broken(c);
    ck_assert_msg(!broken, "%s", broken);
    return hit->hit_tokens;
}

static void fill(int32_t *tokens, uint32_t count, int32_t first) {
    for (uint32_t i = 0; i < count; i++) tokens[i] = first + (int32_t)i;
}

START_TEST(hits_are_whole_pages_and_leave_a_token) {
    pool p;
    cedar_cache *c = cache_new(&p, false, 0);
    cedar_cache_hit hit;
    int32_t t[64];
    fill(t, 64, 100);
    ck_assert_uint_eq(play(c, &p, t, 13, false, &hit), 0);
    ck_assert_int_eq(hit.miss, CEDAR_MISS_COLD);
    const struct { uint32_t count, hit; cedar_miss_reason miss; } cases[] = {
        { 1, 0, CEDAR_MISS_PAGE_TAIL }, { 4, 0, CEDAR_MISS_PAGE_TAIL }, { 5, 4, CEDAR_MISS_PAGE_TAIL },
        { 8, 4, CEDAR_MISS_PAGE_TAIL }, { 9, 8, CEDAR_MISS_PAGE_TAIL }, { 12, 8, CEDAR_MISS_PAGE_TAIL },
        { 13, 12, CEDAR_MISS_PAGE_TAIL }, { 16, 12, CEDAR_MISS_PAGE_TAIL }, { 17, 12, CEDAR_MISS_COLD } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cedar_cache_find(c, t, cases[i].count, &hit);
        ck_assert_uint_eq(hit.hit_tokens, cases[i].hit);
        ck_assert_uint_eq(hit.matched_tokens, cases[i].hit);
        ck_assert_int_eq(hit.miss, cases[i].miss);
    }
    t[6]++; /* another token on the second page */
    cedar_cache_find(c, t, 13, &hit);
    ck_assert_uint_eq(hit.hit_tokens, 4);
    cedar_cache_free(c);
    ck_assert_int_eq(pool_free_count(&p), POOL);
}
END_TEST

START_TEST(a_b_a_hits_again) { /* vllm-project/vllm issue 42948: 0 % on the second A in a warm pool */
    pool p;
    cedar_cache *c = cache_new(&p, false, 0);
    cedar_cache_hit hit;
    int32_t a[33], b[33];
    fill(a, 33, 0);
    fill(b, 33, 500);
    ck_assert_uint_eq(play(c, &p, a, 33, false, &hit), 0);
    ck_assert_uint_eq(play(c, &p, b, 33, false, &hit), 0);
    ck_assert_uint_eq(play(c, &p, a, 33, false, &hit), 32);
    ck_assert_uint_eq(play(c, &p, b, 33, false, &hit), 32);
    cedar_cache_free(c);
    ck_assert_int_eq(pool_free_count(&p), POOL);
}
END_TEST

START_TEST(no_phantom_hits_after_eviction) { /* local-inference-lab/vllm issue 480 */
    pool p;
    cedar_cache *c = cache_new(&p, false, 0);
    cedar_cache_hit hit;
    int32_t a[33], big[POOL * PAGE];
    fill(a, 33, 0);
    fill(big, POOL * PAGE, 1000);
    play(c, &p, a, 33, false, &hit);
    ck_assert_uint_eq(play(c, &p, big, POOL * PAGE, false, &hit), 0);
    cedar_cache_find(c, a, 33, &hit);
    ck_assert_uint_eq(hit.hit_tokens, 0);
    ck_assert_int_eq(hit.miss, CEDAR_MISS_EVICTED);
    play(c, &p, a, 33, false, &hit);
    cedar_cache_free(c);
    ck_assert_int_eq(pool_free_count(&p), POOL);
}
END_TEST

START_TEST(eviction_takes_the_oldest_leaf) {
    pool p;
    cedar_cache *c = cache_new(&p, false, 0);
    cedar_cache_hit hit;
    int32_t a[13], b[13];
    fill(a, 13, 0);
    fill(b, 13, 0);
    b[4] = 77; /* shares the first page only */
    play(c, &p, a, 13, false, &hit);
    play(c, &p, b, 13, false, &hit);
    play(c, &p, a, 13, false, &hit); /* a is now the more recent one */
    ck_assert_uint_eq(cedar_cache_page_count(c), 5);
    evict(c);
    cedar_cache_find(c, b, 13, &hit);
    ck_assert_uint_eq(hit.hit_tokens, 8); /* b's last page went, not its second or the shared one */
    cedar_cache_find(c, a, 13, &hit);
    ck_assert_uint_eq(hit.hit_tokens, 12);
    cedar_cache_pin(c, hit.node);
    ck_assert(evict(c));
    ck_assert(!evict(c)); /* the rest is pinned */
    cedar_cache_find(c, a, 13, &hit);
    ck_assert_uint_eq(hit.hit_tokens, 12);
    cedar_cache_unpin(c, hit.node);
    while (evict(c)) ck_assert_ptr_null(cedar_cache_broken(c));
    ck_assert_uint_eq(cedar_cache_page_count(c), 0);
    cedar_cache_free(c);
    ck_assert_int_eq(pool_free_count(&p), POOL);
}
END_TEST

START_TEST(hits_fall_back_to_stored_windows) {
    pool p;
    cedar_cache *c = cache_new(&p, true, 250); /* room for two snapshots of 100 bytes */
    cedar_cache_hit hit;
    int32_t a[33], b[33], d[33];
    fill(a, 33, 0);
    play(c, &p, a, 8, true, &hit); /* windows at 8 */
    cedar_cache_find(c, a, 33, &hit);
    ck_assert_uint_eq(hit.hit_tokens, 8);
    ck_assert_ptr_nonnull(hit.snap);
    play(c, &p, a, 21, false, &hit); /* pages to 20, no windows there */
    cedar_cache_find(c, a, 33, &hit);
    ck_assert_uint_eq(hit.matched_tokens, 20);
    ck_assert_uint_eq(hit.hit_tokens, 8);
    ck_assert_int_eq(hit.miss, CEDAR_MISS_NO_WINDOWS);
    fill(b, 33, 300);
    fill(d, 33, 600);
    play(c, &p, b, 8, true, &hit);
    ck_assert_uint_eq(cedar_cache_window_bytes(c), 200);
    play(c, &p, d, 8, true, &hit); /* over the budget: the oldest windows go, its pages stay */
    ck_assert_uint_eq(cedar_cache_window_bytes(c), 200);
    cedar_cache_find(c, a, 33, &hit);
    ck_assert_uint_eq(hit.matched_tokens, 20);
    ck_assert_uint_eq(hit.hit_tokens, 0);
    ck_assert_int_eq(hit.node, -1);
    ck_assert_int_eq(hit.miss, CEDAR_MISS_NO_WINDOWS);
    cedar_cache_free(c);
    ck_assert_int_eq(p.snaps, 0);
    ck_assert_int_eq(pool_free_count(&p), POOL);
}
END_TEST

START_TEST(provenance_is_the_deepest_of_the_path) {
    pool p;
    cedar_cache *c = cache_new(&p, false, 0);
    cedar_cache_hit hit;
    int32_t t[13], pages[3];
    fill(t, 13, 0);
    for (uint32_t i = 0; i < 3; i++) {
        pages[i] = pool_take(&p);
        cedar_cache_insert(c, t, pages, i + 1, i == 1 ? 5 : i, NULL, 0);
        pool_release(&p, pages[i]);
    }
    const uint32_t depth[] = { 0, 5, 5 };
    for (uint32_t i = 0; i < 3; i++) {
        cedar_cache_find(c, t, (i + 1) * PAGE + 1, &hit);
        ck_assert_uint_eq(hit.depth, depth[i]);
    }
    cedar_cache_free(c);
}
END_TEST

/* Naive model: a list of prefixes with the time of their last use. */
typedef struct naive { int32_t tokens[POOL * PAGE]; uint32_t pages; uint64_t used; bool there; } naive;

enum { NAIVE_MAX = 4 * POOL };

static uint32_t naive_hit(const naive *n, const int32_t *t, uint32_t count) {
    uint32_t best = 0;
    for (int i = 0; i < NAIVE_MAX; i++)
        if (n[i].there && n[i].pages * PAGE < count && n[i].pages > best &&
            !memcmp(n[i].tokens, t, n[i].pages * PAGE * sizeof *t)) best = n[i].pages;
    return best * PAGE;
}

static void naive_use(naive *n, const int32_t *t, uint32_t pages, uint64_t *now) {
    for (uint32_t k = pages; k > 0; k--) { /* deepest first, as documented */
        int at = -1;
        for (int i = 0; i < NAIVE_MAX; i++) {
            if (n[i].there && n[i].pages == k && !memcmp(n[i].tokens, t, k * PAGE * sizeof *t)) at = i;
        }
        for (int i = 0; i < NAIVE_MAX && at < 0; i++)
            if (!n[i].there) {
                at = i;
                n[i].there = true;
                n[i].pages = k;
                memcpy(n[i].tokens, t, k * PAGE * sizeof *t);
            }
        n[at].used = ++*now;
    }
}

static void naive_evict(naive *n) {
    int at = -1;
    for (int i = 0; i < NAIVE_MAX; i++)
        if (n[i].there && (at < 0 || n[i].used < n[at].used)) at = i;
    if (at >= 0) n[at].there = false;
}

START_TEST(agrees_with_a_naive_model) {
    pool p;
    cedar_cache *c = cache_new(&p, false, 0);
    static naive n[NAIVE_MAX];
    memset(n, 0, sizeof n);
    uint64_t key = cedar_rng_key((uint64_t)_i, "test/cache"), draw = 0, now = 0;
    for (int round = 0; round < 600; round++) {
        int32_t t[40];
        uint32_t count = 1 + (uint32_t)cedar_rng_below(key, draw++, 40);
        for (uint32_t i = 0; i < 40; i += 2) /* few values: many shared prefixes */
            t[i] = t[i + 1] = (int32_t)cedar_rng_below(key, draw++, i < 8 ? 2 : 3);
        cedar_cache_hit hit;
        uint32_t expect = naive_hit(n, t, count), need = count / PAGE - expect / PAGE;
        cedar_cache_find(c, t, count, &hit);
        ck_assert_uint_eq(hit.hit_tokens, expect);
        /* The naive side evicts what the real one will have to; a hit is pinned, so use it first on both sides. */
        if (hit.node >= 0) {
            cedar_cache_pin(c, hit.node);
            cedar_cache_unpin(c, hit.node);
        }
        naive_use(n, t, expect / PAGE, &now);
        int missing = (int)need - pool_free_count(&p);
        for (int i = 0; i < missing; i++) {
            naive_evict(n);
            ck_assert(evict(c));
        }
        play(c, &p, t, count, false, &hit);
        naive_use(n, t, count / PAGE, &now);
        uint32_t held = 0;
        for (int i = 0; i < NAIVE_MAX; i++) held += n[i].there;
        ck_assert_uint_eq(cedar_cache_page_count(c), held);
        ck_assert_int_eq(pool_free_count(&p), POOL - (int)held);
    }
    while (evict(c)) continue;
    ck_assert_int_eq(pool_free_count(&p), POOL);
    cedar_cache_free(c);
}
END_TEST

START_TEST(survives_memory_failures) {
    pool p;
    cedar_cache_opts o = { PAGE, POOL, false, 0 };
    cedar_cache_host h = { &p, pool_retain, pool_release, snap_bytes, snap_free };
    int64_t live = cedar_mem_live();
    for (int64_t n = 1;; n++) {
        cedar_cache *c = NULL;
        cedar_err err = { 0 };
        cedar_mem_fail_at(n);
        cedar_status st = cedar_cache_new(&o, &h, &c, &err);
        cedar_mem_fail_at(0);
        if (st == CEDAR_OK) {
            ck_assert_int_gt(n, 1);
            cedar_cache_free(c);
            break;
        }
        ck_assert_int_eq(st, CEDAR_E_OOM);
        ck_assert_int_eq(cedar_mem_live(), live);
    }
    ck_assert_int_eq(cedar_mem_live(), live);
}
END_TEST

int main(void) {
    Suite *s = suite_create("cache");
    TCase *t = tcase_create("cache");
    tcase_set_timeout(t, 20);
    tcase_add_test(t, hits_are_whole_pages_and_leave_a_token);
    tcase_add_test(t, a_b_a_hits_again);
    tcase_add_test(t, no_phantom_hits_after_eviction);
    tcase_add_test(t, eviction_takes_the_oldest_leaf);
    tcase_add_test(t, hits_fall_back_to_stored_windows);
    tcase_add_test(t, provenance_is_the_deepest_of_the_path);
    tcase_add_loop_test(t, agrees_with_a_naive_model, 1, 6);
    tcase_add_test(t, survives_memory_failures);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
