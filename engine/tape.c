/* Tapes of decisions. */
#include "engine/tape.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/quant.h"

const char *const cedar_tape_kind_name[CEDAR_TAPE_KIND_COUNT] = { "FP8Q32", "FP4Q32", "FP4Q16",      "top-k",
                                                                 "blocks", "experts", "draft token", "Engram gate" };

/* How far the inputs of a decision in float may be from those in double, relative to the largest of its block or list.
 *
 * When all decisions before are the same, everything that was quantised is the same in both runs, and products of it
 * are summed in double: one rounding. What differs comes from the roundings (each at most u = 2^-24) on the way from
 * there. Their number R, on the longest way:
 *   streams     Each sub-layer multiplies hc streams by their coefficients and adds a branch: 2 * (hc + 1) operations.
 *               Its coefficients come through norm, projection, exponential and the last Sinkhorn round: hc + 10. The
 *               branch brings the roundings of its sum: 1 after attention, experts + 1 after the experts. A mix is
 *               doubly stochastic: it carries the errors of earlier layers on, and does not enlarge them. Engram: 4.
 *   attention   a softmax and a sum in float over window + top-k keys: two roundings a key, and 12 for query, rotation
 *               and logit.
 *   a decision  collapse, norm, rotation: 2 * hc + 12.
 * A rounding error is spread evenly between -u and u at most: a standard deviation of u / sqrt(3). Such errors are
 * independent and add like the root of their number; six standard deviations are exceeded once in 5e8 decisions. A
 * projection mixes the elements of a row, so that its errors go with the row's root mean square, which the largest
 * element of a block seldom falls below. */
double cedar_tape_tie(const cedar_config *c) {
    double hc = c->hc, experts = c->experts_per_token > c->draft_experts_per_token ? c->experts_per_token
                                                                                  : c->draft_experts_per_token;
    double layer = 2 * (2 * (hc + 1) + hc + 10) + 1 + experts + 1;
    double r = (c->layers + c->stages) * layer + 4 * c->engram_layer_count;
    r += 2 * (c->window + c->index_topk) + 12 + 2 * hc + 12;
    return 6 * sqrt(r / 3) * 0x1p-24;
}

/* --- records ------------------------------------------------------------------------------------------------------ */

static uint64_t padded(uint64_t bytes) { return sizeof(cedar_tape_head) + (bytes + 7) / 8 * 8; }

void cedar_tape_record(cedar_tape *t) {
    t->used = t->at = 0;
    t->following = false;
}

void cedar_tape_follow(cedar_tape *t, double tie) {
    *t = (cedar_tape){ .bytes = t->bytes, .used = t->used, .size = t->size, .following = true, .tie = tie };
}

void cedar_tape_end(cedar_tape *t) { t->lost |= t->at != t->used; }

void cedar_tape_free(cedar_tape *t) {
    cedar_free(t->bytes);
    *t = (cedar_tape){ 0 };
}

/* Most bytes that a row records: two for every element that is quantised, as a block's head is shorter than it. */
static uint64_t row_bytes(const cedar_config *c) {
    int64_t experts = c->experts_per_token > c->draft_experts_per_token ? c->experts_per_token
                                                                        : c->draft_experts_per_token;
    int64_t elements = 3 * (int64_t)c->hidden + c->q_lora + (int64_t)c->heads * c->head_dim +
                       (int64_t)c->o_groups * c->o_lora + 2 * (int64_t)c->head_dim +
                       ((int64_t)c->index_heads + 1) * c->index_dim + (experts + 1) * c->moe_dim +
                       (int64_t)c->engram_rows_per_token * c->engram_dim;
    int64_t lists = 4 * ((int64_t)c->index_topk + c->candidate_blocks + experts) + 16 * (c->hc + 5);
    int64_t rings = (int64_t)(c->target_count + 1) * c->hidden + (int64_t)c->stages * c->head_dim;
    return (uint64_t)((c->layers + c->stages) * (2 * elements + lists) + 2 * rings);
}

cedar_status cedar_tape_reserve(cedar_tape *t, const cedar_config *c, uint32_t rows, cedar_err *err) {
    uint64_t need = t->used + rows * row_bytes(c);
    if (t->following || need <= t->size) return CEDAR_OK;
    need += need / 2;
    uint8_t *more = cedar_realloc(t->bytes, need, 1);
    if (!more)
        return cedar_fail(err, CEDAR_E_OOM, "no memory for the %llu bytes that decisions of %u rows may take",
                          (unsigned long long)need, rows);
    t->bytes = more;
    t->size = need;
    return CEDAR_OK;
}

const void *cedar_tape_peek(const cedar_tape *t, cedar_tape_kind kind, uint32_t bytes) {
    if (!t->following || t->lost || t->at + padded(bytes) > t->used) return NULL;
    cedar_tape_head h;
    memcpy(&h, t->bytes + t->at, sizeof h);
    return h.kind == (uint32_t)kind && h.bytes == bytes ? t->bytes + t->at + sizeof h : NULL;
}

static void append(cedar_tape *t, cedar_tape_kind kind, const void *mine, uint32_t bytes) {
    const cedar_tape_head h = { (uint32_t)kind, bytes };
    CEDAR_ASSERT(t->used + padded(bytes) <= t->size);
    memcpy(t->bytes + t->used, &h, sizeof h);
    memcpy(t->bytes + t->used + sizeof h, mine, bytes);
    t->used += padded(bytes);
}

const void *cedar_tape_next(cedar_tape *t, cedar_tape_kind kind, const void *mine, uint32_t bytes,
                            uint32_t decisions) {
    if (!t->following) {
        append(t, kind, mine, bytes);
        return NULL;
    }
    const void *theirs = cedar_tape_peek(t, kind, bytes);
    t->lost |= !theirs;
    if (!theirs) return NULL;
    t->at += padded(bytes);
    t->decisions += decisions;
    return theirs;
}

void cedar_tape_judge(cedar_tape *t, cedar_tape_kind kind, double distance) {
    if (distance <= t->tie) {
        t->ties++;
        if (distance > t->widest) t->widest = distance;
        return;
    }
    if (t->wrong++) return;
    t->wrong_kind = kind;
    t->wrong_layer = t->layer;
    t->wrong_distance = distance;
}

/* --- quantised blocks --------------------------------------------------------------------------------------------- */

enum { BLOCK_MAX = 32 };

typedef struct format {
    cedar_tape_kind kind;
    int n;
    double amax_min, max;       /* floor of a block's largest element; value of the largest code */
    const float *value;         /* of a code */
    uint8_t sign;               /* bit of a code */
    bool e4m3_scale;            /* else a power of two */
} format;

static const format fp8q32 = { CEDAR_TAPE_FP8Q32, 32, (double)1e-4f, 448, cedar_e4m3_value, 0x80, false };
static const format fp4q32 = { CEDAR_TAPE_FP4Q32, 32, 6 * 0x1p-126, 6, cedar_e2m1_value, 8, false };
static const format fp4q16 = { CEDAR_TAPE_FP4Q16, 16, 6 * 0x1p-9, 6, cedar_e2m1_value, 8, true };

static double scale_value(const format *f, uint8_t scale) {
    return f->e4m3_scale ? (double)cedar_e4m3_value[scale] : cedar_ue8m0_value(scale);
}

static double largest(const format *f, const double *x) {
    double top = f->amax_min;
    for (int k = 0; k < f->n; k++)
        if (fabs(x[k]) > top) top = fabs(x[k]);
    return top;
}

/* Place of a code on the line of codes; +0 and -0 share one. */
static int place(const format *f, uint8_t code) {
    int magnitude = code & (f->sign - 1);
    return code & f->sign ? -magnitude : magnitude;
}

/* From the largest element to where its scale changes: an E4M3 scale is rounded, a power of two is the next above. */
static double scale_distance(const format *f, double amax, uint8_t a, uint8_t b) {
    if (a - b != 1 && b - a != 1) return INFINITY;
    double lower = scale_value(f, a < b ? a : b), upper = scale_value(f, a < b ? b : a);
    double border = f->max * (f->e4m3_scale ? (lower + upper) / 2 : lower);
    return fabs(amax - border) / amax;
}

static double code_distance(const format *f, double x, double scale, double amax, uint8_t a, uint8_t b) {
    int steps = place(f, a) - place(f, b);
    if (steps != 1 && steps != -1) return INFINITY;
    return fabs(x - scale * ((double)f->value[a] + (double)f->value[b]) / 2) / amax;
}

/* code [n + 1]: the codes, then the scale. */
static void block(cedar_tape *t, const format *f, const double *x, uint8_t *code) {
    const uint8_t *want = cedar_tape_next(t, f->kind, code, (uint32_t)f->n + 1, (uint32_t)f->n + 1);
    if (!want || memcmp(code, want, (size_t)f->n + 1) == 0) return;
    double amax = largest(f, x), scale = scale_value(f, want[f->n]);
    bool rescaled = code[f->n] != want[f->n];
    if (rescaled) cedar_tape_judge(t, f->kind, scale_distance(f, amax, code[f->n], want[f->n]));
    for (int k = 0; k < f->n; k++) {
        uint8_t mine = !rescaled      ? code[k]
                       : f == &fp8q32 ? cedar_e4m3_encode(x[k] / scale)
                                      : cedar_e2m1_encode(x[k] / scale);
        if (place(f, mine) != place(f, want[k]))
            cedar_tape_judge(t, f->kind, code_distance(f, x[k], scale, amax, mine, want[k]));
    }
    memcpy(code, want, (size_t)f->n + 1);
}

void cedar_tape_fp8q32(cedar_tape *t, const double *x, uint8_t *codes, uint8_t *scale) {
    uint8_t code[BLOCK_MAX + 1];
    memcpy(code, codes, 32);
    code[32] = *scale;
    block(t, &fp8q32, x, code);
    memcpy(codes, code, 32);
    *scale = code[32];
}

static void nibble_blocks(cedar_tape *t, const format *f, const double *x, int n, uint8_t *nibbles, uint8_t *scales) {
    for (int b = 0; b < n; b += f->n) {
        uint8_t code[BLOCK_MAX + 1], *packed = nibbles + b / 2;
        for (int k = 0; k < f->n; k++) code[k] = (uint8_t)(packed[k / 2] >> (k % 2 * 4) & 15);
        code[f->n] = scales[b / f->n];
        block(t, f, x + b, code);
        for (int k = 0; k < f->n; k += 2) packed[k / 2] = (uint8_t)(code[k] | code[k + 1] << 4);
        scales[b / f->n] = code[f->n];
    }
}

void cedar_tape_fp4q32(cedar_tape *t, const double *x, int n, uint8_t *nibbles, uint8_t *scales) {
    nibble_blocks(t, &fp4q32, x, n, nibbles, scales);
}

void cedar_tape_fp4q16(cedar_tape *t, const double *x, int n, uint8_t *nibbles, uint8_t *scales) {
    nibble_blocks(t, &fp4q16, x, n, nibbles, scales);
}
