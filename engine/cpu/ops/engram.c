/* Engram: n-gram hash, table lookup, gate (spec/model.md 2.10). */
#include "engine/cpu/ops/ops.h"

void OP(engram_hash)(const cedar_config *c, int slot, const int64_t *back, int64_t *rows) {
    int n = 0;
    int64_t r = back[0] * c->engram_mul[slot][0];
    for (int k = 1; k < c->ngram; k++) {
        r ^= back[k] * c->engram_mul[slot][k];
        for (int a = 0; a < c->engram_heads; a++, n++)
            rows[n] = r % c->engram_prime[slot][n] + c->engram_offset[slot][n];
    }
}

real OP(engram_gate)(real dot) {
    real a = real_abs(dot);
    real g = real_sqrt(a > (real)1e-6 ? a : (real)1e-6);
    return sigmoid(signbit(dot) ? -g : g);
}

/* The gate jumps where its product changes sign: a decision. `size`: sum of the absolute values of what `sum` sums.
 * Returns sum with the sign to go on with. */
static real tape_sign(cedar_tape *tape, real sum, double size) {
    int32_t mine = signbit(sum) != 0;
    const int32_t *theirs = cedar_tape_next(tape, CEDAR_TAPE_GATE, &mine, sizeof mine, 1);
    if (!theirs || *theirs == mine) return sum;
    cedar_tape_judge(tape, CEDAR_TAPE_GATE, fabs((double)sum) / size);
    return -sum;
}

void OP(engram)(const OP(weights) * ws, const cedar_config *c, const cedar_block *b, const int64_t *rows, real *h,
                real *e, real *kv, real *gains, OP(linear_scratch) * s) {
    int64_t d = c->hidden, dim = c->engram_dim, width = c->engram_rows_per_token * dim;
    for (int k = 0; k < c->engram_rows_per_token; k++) OP(decode_row)(&b->engram_embed, rows[k], e + k * dim);
    OP(quantise)(e, width, e, s->tape);
    OP(linear)(ws, &b->engram_wkv, e, width, 1, kv, b->engram_wkv.rows, s);
    const real *value = kv + c->hc * d;
    for (int i = 0; i < c->hc; i++) {
        real *hs = h + i * d, sum = 0;
        const real *key = kv + i * d;
        real *qw = gains, *kw = gains + d;
        OP(decode_row)(&b->engram_q, i, qw);
        OP(decode_row)(&b->engram_k, i, kw);
        for (int64_t k = 0; k < d; k++) sum += hs[k] * qw[k] * kw[k] * key[k];
        if (s->tape) {
            double size = 0;
            for (int64_t k = 0; k < d; k++) size += fabs((double)hs[k] * (double)(qw[k] * kw[k] * key[k]));
            sum = tape_sign(s->tape, sum, size);
        }
        real eps = (real)c->norm_eps;
        real inv_h = 1 / real_sqrt(OP(dot)(hs, hs, d) / (real)d + eps);
        real inv_key = 1 / real_sqrt(OP(dot)(key, key, d) / (real)d + eps);
        real gate = OP(engram_gate)(sum * inv_h * inv_key * (real)(1 / sqrt((double)d)));
        for (int64_t k = 0; k < d; k++) hs[k] = rb(hs[k] + gate * value[k]);
    }
}
