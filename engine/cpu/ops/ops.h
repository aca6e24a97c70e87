/* Private to engine/cpu/ops: the operators, once per arithmetic (engine/cpu/arith.h).
 *
 * Every operator is class D1: what it computes for a row depends on that row's inputs alone, and each sum has one
 * fixed order. T rows of a block, K inputs, N outputs; matrices are row major, ld = reals from one row to the next.
 * No operator allocates. */
#ifndef CEDAR_ENGINE_CPU_OPS_H
#define CEDAR_ENGINE_CPU_OPS_H

#include "engine/cpu/arith.h"
#include "engine/cpu/cpu_int.h"
#include "engine/tape.h"

enum { PANEL = 16, LINEAR_ROWS = 64 };

/* Weights as reals. decoded[w->index] is the whole tensor, or NULL: then it is decoded at each use. Vectors lie as they
 * are, matrices in panels (linear.c). */
typedef struct OP(weights) {
    const real *const *decoded;
} OP(weights);

/* Scratch of a linear layer; K the longest input. It goes wherever decisions are made, so the tape travels with it. */
typedef struct OP(linear_scratch) {
    cedar_tape *tape;   /* that records or corrects decisions (engine/tape.h); NULL in normal runs */
    double *x;          /* [rows of a block, K] inputs */
    real *panel, *row;  /* [K, PANEL], [K] a panel decoded for one use */
} OP(linear_scratch);

/* --- linear.c ----------------------------------------------------------------------------------------------------- */

/* sum_k a[k] b[k] in double: eight lanes, each summed in ascending k, then pairwise; the tail after them. */
real OP(dot)(const real *a, const real *b, int64_t n);
/* Four at once; same bits as four dots. */
void OP(dot4)(const real *const a[4], const real *const b[4], int64_t n, real out[4]);

/* Row `row` of w as reals. */
void OP(decode_row)(const cedar_weight *w, int64_t row, real *out);
/* Rows [first, first + PANEL) as a panel [K, PANEL], zeros past the end; scratch [K]. */
void OP(decode_panel)(const cedar_weight *w, int64_t first, real *panel, real *scratch);

/* y [T, n_count] = x [T, K] times rows [n_first, n_first + n_count) of w, not rounded; n_first a multiple of PANEL. */
void OP(linear_rows)(const OP(weights) *ws, const cedar_weight *w, int64_t n_first, int64_t n_count, const real *x,
                     int64_t ldx, int t_count, real *y, int64_t ldy, OP(linear_scratch) *s);
/* The whole matrix, and rounded to bf16 in that arithmetic. */
void OP(linear_raw)(const OP(weights) *ws, const cedar_weight *w, const real *x, int64_t ldx, int t_count, real *y,
                    int64_t ldy, OP(linear_scratch) *s);
void OP(linear)(const OP(weights) *ws, const cedar_weight *w, const real *x, int64_t ldx, int t_count, real *y,
                int64_t ldy, OP(linear_scratch) *s);

/* out [n] = FP8Q32 of x [n], decoded: what an FP8 linear multiplies. May alias. tape: NULL, or sees all codes. */
void OP(quantise)(const real *x, int64_t n, real *out, cedar_tape *tape);
/* FP8Q32 record of x [n]: codes, then scales; and back. */
void OP(ring_encode)(const real *x, int n, uint8_t *record, cedar_tape *tape);
void OP(ring_decode)(const uint8_t *record, int n, real *x);
/* FP4Q16 and FP4Q32 through double; n at most CEDAR_VECTOR_MAX. */
enum { CEDAR_VECTOR_MAX = 4096 };
void OP(fp4q16_encode)(const real *x, int n, uint8_t *nibbles, uint8_t *scales, cedar_tape *tape);
void OP(fp4q16_decode)(const uint8_t *nibbles, const uint8_t *scales, int n, real *x);
void OP(fp4q32_encode)(const real *x, int n, uint8_t *nibbles, uint8_t *scales, cedar_tape *tape);
void OP(fp4q32_decode)(const uint8_t *nibbles, const uint8_t *scales, int n, real *x);

/* --- norm.c ------------------------------------------------------------------------------------------------------- */

/* y = rb(gain * (x / rms(x))), spec/model.md 2.1. May alias. */
void OP(rms_norm)(const real *gain, const real *x, int64_t n, real eps, real *y);

/* Rotation table of a position: cos and sin per pair, [pairs, 2]; freq [pairs]. Angles in double (spec 2.3). */
void OP(rope_table)(const double *freq, int pairs, int64_t pos, real *table);
/* Rotates the last 2*pairs of x [n], adjacent channels; sign -1 inverts. */
void OP(rope)(real *x, int n, const real *table, int pairs, int sign);

/* --- hc.c (single-pass mHC, spec/model.md 2.2) -------------------------------------------------------------------- */

typedef struct OP(hc_site) { const cedar_weight *fn, *base, *scale; } OP(hc_site);

/* Projections of a site for T rows of streams h [T, n*D], divided by the streams' RMS: m [T, (2+n)n]. */
void OP(hc_project)(const OP(weights) *ws, const cedar_config *c, const OP(hc_site) *site, const real *h, int t_count,
                    real *m, OP(linear_scratch) *s);
/* Coefficients of one row from its projections: pre [n], post [n], comb [n, n] (from, to). */
void OP(hc_coefficients)(const OP(weights) * ws, const cedar_config *c, const OP(hc_site) * site, const real *m,
                         real *pre, real *post, real *comb);
/* m -> coefficients: the part after the projection, for tests. m, base [(2+n)n], scale [3]. */
void OP(hc_from_logits)(const real *m, const real *base, const real *scale, int n, int iters, real eps, real *pre,
                        real *post, real *comb);
void OP(hc_collapse)(const real *h, const real *pre, int n, int64_t hidden, real *x);
/* h becomes expand(y, h, post, comb), in place. */
void OP(hc_expand)(real *h, const real *y, const real *post, const real *comb, int n, int64_t hidden);

/* --- attention.c -------------------------------------------------------------------------------------------------- */

/* Sink attention of one query row (spec 2.8). q [H, d] in, o out in place; keys [count, d]; sink [H];
 * logits [count] scratch. */
void OP(sink_attention)(real *q, int heads, int d, const real *keys, int count, const real *sink, real *logits);

/* --- select.c ----------------------------------------------------------------------------------------------------- */

/* Best k of count scores, ids ascending, -1 padded to k. Higher score first, then lower id; -inf and NaN are never
 * picked (spec 2.7). ids[i] is i, or names[i] when names is given (ascending). Returns how many. */
int OP(top_k)(const real *score, const int32_t *names, int count, int k, int32_t *ids, real *heap_score);
/* Candidate blocks of one query: score [visible]; ids [blocks_max] ascending out; block_score scratch. Returns how
 * many. */
int OP(candidate_blocks)(const real *score, int visible, int block, int blocks_max, int32_t *ids, real *block_score,
                         real *heap_score);
/* Shows the ids [k] that top_k picked to the tape, which may replace them; score, names, count as there. */
void OP(tape_picks)(cedar_tape *tape, cedar_tape_kind kind, const real *score, const int32_t *names, int count, int k,
                    int32_t *ids);

/* --- moe.c -------------------------------------------------------------------------------------------------------- */

/* Scratch of a block of rows; sizes in parentheses are reals or ints per row unless said otherwise. */
typedef struct OP(moe_scratch) {
    real *score;        /* (experts) */
    real *biased;       /* experts in all */
    real *heap;         /* CEDAR_EXPERTS_PER_TOKEN_MAX in all */
    int32_t *ids;       /* (experts per token) */
    real *weight;       /* (experts per token) */
    real *xq;           /* (hidden) */
    real *gather;       /* (hidden) */
    real *gate, *up;    /* (moe_dim) */
    real *out;          /* (hidden) */
    OP(linear_scratch) *linear;
} OP(moe_scratch);

/* Router, routed experts in ascending id, shared expert (spec 2.9). x [T, hidden] -> y [T, hidden]. */
void OP(moe)(const OP(weights) * ws, const cedar_config *c, const cedar_block *b, int per_token, const real *x,
             int t_count, real *y, OP(moe_scratch) * s);
real OP(sqrt_softplus)(real z);

/* --- engram.c ----------------------------------------------------------------------------------------------------- */

/* Absolute table rows of a token: back[k] = compressed id k positions before it (pad before the start). */
void OP(engram_hash)(const cedar_config *c, int slot, const int64_t *back, int64_t *rows);
/* h [n, D] += gate * value, in place (spec 2.10). e, kv, gains: scratch [rows*dim], [(n+1)*D], [2, D]. */
void OP(engram)(const OP(weights) * ws, const cedar_config *c, const cedar_block *b, const int64_t *rows, real *h,
                real *e, real *kv, real *gains, OP(linear_scratch) * s);
real OP(engram_gate)(real dot);

#endif
