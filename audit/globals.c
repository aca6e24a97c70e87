/* Global rows: the bytes an arm's cache holds against those of the exact arm. */
#include "audit/audit_int.h"
#include "base/mem.h"

static size_t kv_bytes(const cedar_config *c) { return (size_t)c->head_dim / 2 + (size_t)c->head_dim / 16; }
static size_t index_bytes(const cedar_config *c) { return (size_t)c->index_dim / 2 + (size_t)c->index_dim / 32; }

/* Whole entries whose last position is in [from, to). */
static uint32_t first_entry(const cedar_config *c, int32_t layer, uint32_t from) {
    return from / (uint32_t)c->ratio[layer];
}
static uint32_t entry_count(const cedar_config *c, int32_t layer, uint32_t from, uint32_t to) {
    uint32_t first = first_entry(c, layer, from), end = to / (uint32_t)c->ratio[layer];
    return end > first ? end - first : 0;
}

void audit_rows_free(audit_rows *r) {
    cedar_free(r->bytes);
    *r = (audit_rows){ 0 };
}

cedar_status audit_rows_read(audit_rows *r, const cedar_engine *e, const cedar_config *c, int32_t seq, uint32_t from,
                             uint32_t to, cedar_err *err) {
    size_t each = kv_bytes(c) + index_bytes(c), need = 0, at = 0;
    for (int32_t k = 0; k < c->kv_source_count; k++) need += entry_count(c, c->kv_sources[k], from, to) * each;
    if (need > r->capacity) {
        uint8_t *more = cedar_realloc(r->bytes, need, 1);
        if (!more) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu bytes of global rows", need);
        r->bytes = more;
        r->capacity = need;
    }
    cedar_status st = CEDAR_OK;
    for (int32_t k = 0; k < c->kv_source_count && !st; k++) {
        int32_t layer = c->kv_sources[k];
        uint32_t n = entry_count(c, layer, from, to);
        if (n == 0) continue;
        st = cedar_engine_read_global(e, seq, layer, first_entry(c, layer, from), n, r->bytes + at,
                                      r->bytes + at + n * kv_bytes(c), err);
        at += n * each;
    }
    r->count = at;
    r->from = from;
    r->to = to;
    return st;
}

static double differ_share(const uint8_t *a, const uint8_t *b, size_t n) {
    size_t differ = 0;
    for (size_t k = 0; k < n; k++) differ += a[k] != b[k];
    return (double)differ / (double)n;
}

cedar_status audit_rows_compare(const cedar_config *c, const audit_rows *a, const audit_rows *b, audit_rows_fn fn,
                                void *self, cedar_err *err) {
    size_t at = 0;
    CEDAR_ASSERT(a->from == b->from && a->to == b->to && a->count == b->count);
    for (int32_t k = 0; k < c->kv_source_count; k++) {
        int32_t layer = c->kv_sources[k];
        uint32_t n = entry_count(c, layer, a->from, a->to), ratio = (uint32_t)c->ratio[layer];
        size_t kv = kv_bytes(c), ix = index_bytes(c), index_at = at + n * kv;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t entry = first_entry(c, layer, a->from) + i;
            cedar_status st = fn(self, layer, entry, entry * ratio + ratio - 1,
                                 differ_share(a->bytes + at + i * kv, b->bytes + at + i * kv, kv),
                                 differ_share(a->bytes + index_at + i * ix, b->bytes + index_at + i * ix, ix), err);
            if (st) return st;
        }
        at = index_at + n * ix;
    }
    return CEDAR_OK;
}

static cedar_status count_one(void *self, int32_t source, uint32_t entry, uint32_t pos, double kv, double index,
                              cedar_err *err) {
    (void)source;
    (void)entry;
    (void)pos;
    (void)err;
    *(uint32_t *)self += kv > 0 || index > 0;
    return CEDAR_OK;
}

uint32_t audit_rows_differ(const cedar_config *c, const audit_rows *a, const audit_rows *b) {
    uint32_t differ = 0;
    cedar_status st = audit_rows_compare(c, a, b, count_one, &differ, NULL);
    CEDAR_ASSERT(st == CEDAR_OK);
    return differ;
}
