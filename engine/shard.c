/* Shares of ranks. Allocation: none. */
#include "engine/shard.h"

#include <string.h>

typedef struct range { int32_t first, count; } range;

/* Units [U*r/N, U*(r+1)/N). */
static range share(int32_t units, uint32_t rank, uint32_t ranks) {
    int64_t lo = (int64_t)units * rank / ranks, hi = (int64_t)units * (rank + 1) / ranks;
    return (range){ (int32_t)lo, (int32_t)(hi - lo) };
}

static cedar_status check_cuts(const cedar_config *c, cedar_err *err) {
    int64_t group_width = (int64_t)c->heads / c->o_groups * c->head_dim;
    if (c->o_lora % 32 || group_width % 32)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED,
                          "%s: an output group is %lld wide and has o_lora_rank %d; both must be multiples of 32 for "
                          "more than one GPU, since a scale covers 32 channels",
                          c->name, (long long)group_width, c->o_lora);
    if (c->moe_dim % CEDAR_SHARD_MOE_UNIT || c->vocab % CEDAR_SHARD_VOCAB_UNIT)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED,
                          "%s: \"moe_intermediate_size\" is %d and \"vocab_size\" %d; more than one GPU needs "
                          "multiples of %d and %d",
                          c->name, c->moe_dim, c->vocab, CEDAR_SHARD_MOE_UNIT, CEDAR_SHARD_VOCAB_UNIT);
    return CEDAR_OK;
}

cedar_status cedar_shard_make(const cedar_config *c, uint32_t rank, uint32_t ranks, cedar_shard *out, cedar_err *err) {
    if (ranks == 0)
        return cedar_fail(err, CEDAR_E_ARG, "gpus is 0; it must be 1 to %d, the output groups of model %s", c->o_groups,
                          c->name);
    if (ranks > (uint32_t)c->o_groups)
        return cedar_fail(err, CEDAR_E_ARG,
                          "gpus is %u, but model %s has %d output groups of attention heads, and every GPU needs one: "
                          "at most %d",
                          ranks, c->name, c->o_groups, c->o_groups);
    CEDAR_ASSERT(rank < ranks);
    if (ranks == 1) {
        *out = (cedar_shard){ 0, 1, 0, c->o_groups, 0, c->heads, 0, c->moe_dim, 0, c->vocab };
        return CEDAR_OK;
    }
    cedar_status st = check_cuts(c, err);
    if (st) return st;
    int32_t per_group = c->heads / c->o_groups;
    range g = share(c->o_groups, rank, ranks), m = share(c->moe_dim / CEDAR_SHARD_MOE_UNIT, rank, ranks),
          v = share(c->vocab / CEDAR_SHARD_VOCAB_UNIT, rank, ranks);
    *out = (cedar_shard){
        .rank = rank, .ranks = ranks,
        .group_first = g.first, .groups = g.count,
        .head_first = g.first * per_group, .heads = g.count * per_group,
        .moe_first = m.first * CEDAR_SHARD_MOE_UNIT, .moe = m.count * CEDAR_SHARD_MOE_UNIT,
        .vocab_first = v.first * CEDAR_SHARD_VOCAB_UNIT, .vocab = v.count * CEDAR_SHARD_VOCAB_UNIT,
    };
    return CEDAR_OK;
}

void cedar_shard_config(const cedar_config *whole, const cedar_shard *s, cedar_config *local) {
    *local = *whole;
    local->heads = s->heads;
    local->o_groups = s->groups;
    local->moe_dim = s->moe;
}

/* --- slices ------------------------------------------------------------------------------------------------------- */

typedef enum cut { CUT_HEADS, CUT_GROUPS, CUT_MOE, CUT_VOCAB } cut;

/* By the end of the official name. The drafter's "mtp.N.norm" and "markov_head.head" are not "head.weight". */
static const struct { const char *end; cut by; bool columns; } cuts[] = {
    { ".attn.attn_sink", CUT_HEADS, true },     /* one element a head */
    { ".attn.wq_b.weight", CUT_HEADS, false },
    { ".attn.wo_a.weight", CUT_GROUPS, false },
    { ".attn.wo_b.weight", CUT_GROUPS, true },
    { ".w1.weight", CUT_MOE, false },
    { ".w3.weight", CUT_MOE, false },
    { ".w2.weight", CUT_MOE, true },
};

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}

static void range_of(const cedar_config *c, const cedar_shard *s, cut by, int64_t length, int64_t *first,
                     int64_t *count) {
    int64_t part[4][3] = {
        [CUT_HEADS] = { s->head_first, s->heads, c->heads },
        [CUT_GROUPS] = { s->group_first, s->groups, c->o_groups },
        [CUT_MOE] = { s->moe_first, s->moe, c->moe_dim },
        [CUT_VOCAB] = { s->vocab_first, s->vocab, c->vocab },
    };
    int64_t each = length / part[by][2];
    CEDAR_ASSERT(each * part[by][2] == length);
    *first = part[by][0] * each;
    *count = part[by][1] * each;
}

cedar_slice cedar_shard_slice(const cedar_config *c, const cedar_shard *s, const cedar_tensor_info *t) {
    cedar_slice out = { 0, t->rows, 0, t->cols, true };
    if (s->ranks == 1) return out;
    if (!strcmp(t->name, "head.weight")) {
        out.whole = false;
        range_of(c, s, CUT_VOCAB, t->rows, &out.row, &out.rows);
    }
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        if (!ends_with(t->name, cuts[i].end)) continue;
        out.whole = false;
        if (cuts[i].columns) range_of(c, s, cuts[i].by, t->cols, &out.col, &out.cols);
        else range_of(c, s, cuts[i].by, t->rows, &out.row, &out.rows);
    }
    return out;
}

static cedar_tensor_info sized(const cedar_tensor_info *t, const cedar_slice *s) {
    cedar_tensor_info local = *t;
    local.rows = s->rows;
    local.cols = s->cols;
    return local;
}

uint64_t cedar_slice_data_bytes(const cedar_tensor_info *t, const cedar_slice *s) {
    cedar_tensor_info local = sized(t, s);
    return cedar_tensor_data_bytes(&local);
}

uint64_t cedar_slice_scale_bytes(const cedar_tensor_info *t, const cedar_slice *s) {
    cedar_tensor_info local = sized(t, s);
    return cedar_tensor_scale_bytes(&local);
}

/* Rows [row, row + rows) of bytes [at, at + width) out of rows of `pitch` bytes. */
static void copy_block(const uint8_t *from, int64_t pitch, int64_t row, int64_t rows, int64_t at, int64_t width,
                       uint8_t *to) {
    if (width == 0) return;     /* a share may be empty, and then there is no place either */
    for (int64_t r = 0; r < rows; r++) memcpy(to + r * width, from + (row + r) * pitch + at, (size_t)width);
}

void cedar_slice_copy(const cedar_tensor_info *t, const cedar_slice *s, uint8_t *data, uint8_t *scale) {
    const cedar_weight *w = t->slot;
    int64_t halves = t->kind == CEDAR_W_FP4 ? 1 : t->kind == CEDAR_W_BF16 ? 4 : t->kind == CEDAR_W_F32 ? 8 : 2;
    bool tiles = t->kind == CEDAR_W_TILES, scaled = tiles || t->kind == CEDAR_W_ROWS || t->kind == CEDAR_W_FP4;
    copy_block(w->data, t->cols * halves / 2, s->row, s->rows, s->col * halves / 2, s->cols * halves / 2, data);
    if (!scaled) return;
    /* a scale covers 32 columns, and 32 rows of a tile: a cut inside would share it */
    CEDAR_ASSERT(s->col % 32 == 0 && (s->col + s->cols == t->cols || s->cols % 32 == 0));
    CEDAR_ASSERT(!tiles || (s->row % 32 == 0 && (s->row + s->rows == t->rows || s->rows % 32 == 0)));
    int64_t tall = tiles ? 32 : 1;
    copy_block(w->scale, (t->cols + 31) / 32, s->row / tall, (s->rows + tall - 1) / tall, s->col / 32,
               (s->cols + 31) / 32, scale);
}
