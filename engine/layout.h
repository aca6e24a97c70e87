/* Private to engine/: where a token's cached bytes lie. One place for writers and readers of every cache format.
 *
 * Page: for each KV source in layer order: kv codes of all entries, kv scales of all entries, index codes, index
 * scales.
 * Ring row: E4M3 codes [head_dim], then UE8M0 scales [head_dim/32]. */
#ifndef CEDAR_ENGINE_LAYOUT_H
#define CEDAR_ENGINE_LAYOUT_H

#include "engine/engine.h"

typedef struct cedar_page_part {
    int32_t layer, ratio;
    uint32_t entries;                                       /* per page */
    uint64_t kv_codes, kv_scales, index_codes, index_scales;/* byte offsets in a page */
} cedar_page_part;

typedef struct cedar_layout {
    uint32_t page_tokens;
    uint32_t kv_code_bytes, kv_scale_bytes, index_code_bytes, index_scale_bytes;   /* per entry */
    uint64_t page_bytes;
    int32_t part_count;
    int32_t part_of[CEDAR_LAYERS_MAX];                      /* KV source layer -> part, else -1 */
    cedar_page_part part[CEDAR_LAYERS_MAX];
    uint32_t ring_row_bytes, ring_slots;                    /* slots = window + verify_rows */
    uint32_t ring_count;                                    /* layers + stages */
    uint64_t ring_bytes;                                    /* all rings of a sequence */
    uint32_t open_slots[CEDAR_LAYERS_MAX];                  /* by part: ratio - 1 + verify_rows, 0 for ratio 1 */
    uint64_t open_reals;                                    /* reals of all open groups of a sequence */
    uint64_t open_first[CEDAR_LAYERS_MAX];                  /* by part: first real */
} cedar_layout;

void cedar_layout_make(const cedar_config *c, uint32_t page_tokens, uint32_t verify_rows, cedar_layout *out);

#endif
