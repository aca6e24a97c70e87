/* The backend that computes nothing: sequences, pages and plans are kept as with any other, tokens are all 0 and no
 * logits exist. For modelled time, where a cost model says how long a step takes. Needs no weights. */
#include "engine/backend.h"

#include <string.h>

#include "base/mem.h"

static uint64_t none_workspace_bytes(const cedar_config *c, const cedar_engine_opts *o) {
    (void)c;
    (void)o;
    return 0;
}

static cedar_status none_open(const cedar_model *m, const cedar_engine_opts *o, const cedar_layout *l,
                              const cedar_rank *rank, void **self, cedar_err *err) {
    (void)rank;
    (void)m;
    (void)o;
    (void)l;
    static const char nothing;
    union { const char *in; void *out; } u = { .in = &nothing };    /* a marker that is never written through */
    (void)err;
    *self = u.out;
    return CEDAR_OK;
}

static cedar_status none_step(void *self, const cedar_step_plan *plan, const cedar_seq_state *seqs, cedar_step_out *out,
                              cedar_err *err) {
    (void)self;
    (void)seqs;
    if (out->logits)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "the backend \"none\" has no logits; quality needs a real engine");
    if (out->argmax) memset(out->argmax, 0, plan->logits * sizeof *out->argmax);
    return CEDAR_OK;
}

static cedar_status none_draft(void *self, cedar_draft_item *items, uint32_t count, const cedar_seq_state *seqs,
                               cedar_err *err) {
    (void)self;
    (void)items;
    (void)count;
    (void)seqs;
    return cedar_fail(err, CEDAR_E_UNSUPPORTED, "the backend \"none\" cannot draft");
}

static void none_close(void *self) { (void)self; }
static void none_seq_reset(void *self, int32_t seq) { (void)self, (void)seq; }
static void none_page_copy(void *self, int32_t to, int32_t from) { (void)self, (void)to, (void)from; }
static uint64_t none_snap_bytes(const void *self) { (void)self; return 0; }
static void none_snap_save(const void *self, int32_t seq, uint32_t pos, uint8_t *buf) {
    (void)self, (void)seq, (void)pos, (void)buf;
}
static void none_snap_load(void *self, int32_t seq, uint32_t pos, const uint8_t *buf) {
    (void)self, (void)seq, (void)pos, (void)buf;
}
static void none_tap(void *self, cedar_tap_fn fn, void *tap_self) { (void)self, (void)fn, (void)tap_self; }
static void none_inject(void *self, cedar_inject_fn fn, void *inject_self) { (void)self, (void)fn, (void)inject_self; }

static void none_read_entries(const void *self, int32_t page, int32_t part, uint32_t first, uint32_t count, uint8_t *kv,
                              uint8_t *index) {
    (void)self, (void)page, (void)part, (void)first, (void)count, (void)kv, (void)index;
}

static void none_read_open(const void *self, int32_t seq, int32_t part, uint32_t pos, double *kvf, double *score) {
    (void)self, (void)seq, (void)part, (void)pos, (void)kvf, (void)score;
}

static void none_poison(void *self, int32_t seq, uint32_t ring, uint32_t lo, uint32_t hi) {
    (void)self, (void)seq, (void)ring, (void)lo, (void)hi;
}

const cedar_backend cedar_backend_none = {
    .name = "none",
    .workspace_bytes = none_workspace_bytes,
    .open = none_open,
    .close = none_close,
    .seq_reset = none_seq_reset,
    .page_copy = none_page_copy,
    .step = none_step,
    .draft = none_draft,
    .snap_bytes = none_snap_bytes,
    .snap_save = none_snap_save,
    .snap_load = none_snap_load,
    .tap = none_tap,
    .inject = none_inject,
    .read_entries = none_read_entries,
    .read_open = none_read_open,
    .poison = none_poison,
};
