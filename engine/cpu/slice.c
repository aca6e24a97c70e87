/* The slices of a rank, in memory of its own. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/cpu/cpu_int.h"

typedef struct slicing {
    const cedar_config *whole;
    const cedar_shard *shard;
    cedar_weight **slot;        /* [tensors] of the rank's model, in the order of the walk; NULL while counting */
    uint64_t tensors, bytes;
    uint8_t *storage;           /* NULL while measuring */
} slicing;

static cedar_status count_slot(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    slicing *s = self;
    if (s->slot) s->slot[s->tensors] = t->slot;
    s->tensors++;
    return CEDAR_OK;
}

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

/* One tensor of the whole model: measured, or put into the rank's. */
static cedar_status slice_tensor(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    slicing *s = self;
    uint64_t i = s->tensors++;
    const cedar_slice part = cedar_shard_slice(s->whole, s->shard, t);
    uint64_t data = part.whole ? 0 : cedar_slice_data_bytes(t, &part),
             scale = part.whole ? 0 : cedar_slice_scale_bytes(t, &part);
    uint8_t *at = s->storage ? s->storage + s->bytes : NULL;
    s->bytes += aligned(data) + aligned(scale);
    if (!s->storage) return CEDAR_OK;
    cedar_weight w = *t->slot;
    if (!part.whole) {
        cedar_slice_copy(t, &part, at, scale ? at + aligned(data) : NULL);
        w.rows = part.rows;
        w.cols = part.cols;
        w.data = at;
        w.scale = scale ? at + aligned(data) : NULL;
    }
    *s->slot[i] = w;
    return CEDAR_OK;
}

static cedar_status walk(slicing *s, const cedar_model *whole, cedar_err *err) {
    s->tensors = s->bytes = 0;
    /* the visitor hands out slots; nothing of the whole model is changed */
    return cedar_tensors_visit(&whole->config, (cedar_model *)(uintptr_t)whole, slice_tensor, s, err);
}

static cedar_status fill(slicing *s, const cedar_model *whole, cedar_model *m, cedar_err *err) {
    cedar_status st = cedar_tensors_visit(&m->config, NULL, count_slot, s, err);
    if (st) return st;
    s->slot = cedar_calloc(s->tensors, sizeof *s->slot);
    if (!s->slot) return cedar_fail(err, CEDAR_E_OOM, "no memory for a list of %llu weights",
                                    (unsigned long long)s->tensors);
    s->tensors = 0;
    st = cedar_tensors_visit(&m->config, m, count_slot, s, err);
    if (!st) st = walk(s, whole, err);
    if (st) return st;
    m->storage = cedar_calloc(1, s->bytes);
    m->storage_free = cedar_free;
    if (!m->storage)
        return cedar_fail(err, CEDAR_E_OOM, "no memory for the %llu bytes of weights of rank %u of %u",
                          (unsigned long long)s->bytes, s->shard->rank, s->shard->ranks);
    s->storage = m->storage;
    return walk(s, whole, err);
}

cedar_status cedar_cpu_slice(const cedar_model *whole, const cedar_shard *shard, cedar_model **out, cedar_err *err) {
    cedar_config local;
    cedar_model *m = NULL;
    cedar_shard_config(&whole->config, shard, &local);
    cedar_status st = cedar_model_new(&local, &m, err);
    if (st) return st;
    memcpy(m->token_map, whole->token_map, (size_t)local.vocab * sizeof *m->token_map);
    snprintf(m->origin, sizeof m->origin, "rank %u of %u of %.200s", shard->rank, shard->ranks, whole->origin);
    slicing s = { .whole = &whole->config, .shard = shard };
    st = fill(&s, whole, m, err);
    cedar_free(s.slot);
    if (st) {
        cedar_model_close(m);
        return st;
    }
    *out = m;
    return CEDAR_OK;
}
