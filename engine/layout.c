/* Cache layouts. */
#include "engine/layout.h"

void cedar_layout_make(const cedar_config *c, uint32_t page_tokens, uint32_t verify_rows, cedar_layout *l) {
    *l = (cedar_layout){ .page_tokens = page_tokens, .part_count = c->kv_source_count };
    uint32_t d = (uint32_t)c->head_dim, x = (uint32_t)c->index_dim;
    l->kv_code_bytes = d / 2;
    l->kv_scale_bytes = d / 16;
    l->index_code_bytes = x / 2;
    l->index_scale_bytes = x / 32;
    for (int32_t i = 0; i < CEDAR_LAYERS_MAX; i++) l->part_of[i] = -1;
    uint64_t at = 0, reals = 0;
    for (int32_t k = 0; k < l->part_count; k++) {
        cedar_page_part *p = &l->part[k];
        p->layer = c->kv_sources[k];
        p->ratio = c->ratio[p->layer];
        p->entries = page_tokens / (uint32_t)p->ratio;
        l->part_of[p->layer] = k;
        p->kv_codes = at;
        p->kv_scales = p->kv_codes + (uint64_t)p->entries * l->kv_code_bytes;
        p->index_codes = p->kv_scales + (uint64_t)p->entries * l->kv_scale_bytes;
        p->index_scales = p->index_codes + (uint64_t)p->entries * l->index_code_bytes;
        at = p->index_scales + (uint64_t)p->entries * l->index_scale_bytes;
        l->open_slots[k] = p->ratio > 1 ? (uint32_t)p->ratio - 1 + verify_rows : 0;
        l->open_first[k] = reals;
        reals += (uint64_t)l->open_slots[k] * 2 * d;
    }
    l->page_bytes = at;
    l->open_reals = reals;
    l->ring_row_bytes = d + d / 32;
    l->ring_slots = (uint32_t)c->window + verify_rows;
    l->ring_count = (uint32_t)(c->layers + c->stages);
    l->ring_bytes = (uint64_t)l->ring_count * l->ring_slots * l->ring_row_bytes;
}
