/* Router and experts (spec/model.md 2.9). */
#include <string.h>

#include "engine/cpu/ops/ops.h"

real OP(sqrt_softplus)(real z) { return real_sqrt(z > 20 ? z : real_log1p(real_exp(z))); }

/* The best experts of each row and their weights. */
static void route(const OP(weights) * ws, const cedar_config *c, const cedar_block *b, int per_token, const real *x,
                  int t_count, OP(moe_scratch) * s) {
    int e_count = b->expert_count;
    OP(linear_raw)(ws, &b->gate, x, c->hidden, t_count, s->score, e_count, s->linear);
    const real *bias = ws->decoded[b->gate_bias.index];
    for (int t = 0; t < t_count; t++) {
        real *score = s->score + (int64_t)t * e_count, *w = s->weight + (int64_t)t * per_token, sum = 0;
        int32_t *ids = s->ids + (int64_t)t * per_token;
        for (int e = 0; e < e_count; e++) {
            score[e] = OP(sqrt_softplus)(score[e]);
            s->biased[e] = score[e] + bias[e];
        }
        int n = OP(top_k)(s->biased, NULL, e_count, per_token, ids, s->heap);
        OP(tape_picks)(s->linear->tape, CEDAR_TAPE_EXPERTS, s->biased, NULL, e_count, per_token, ids);
        for (int k = 0; k < n; k++) sum += score[ids[k]];
        for (int k = 0; k < per_token; k++)
            w[k] = k < n ? score[ids[k]] / (sum + (real)1e-20) * (real)c->route_scale : 0;
    }
}

/* SwiGLU expert of quantised rows xq [T, hidden]; weight NULL for the shared expert -> s->out [T, hidden]. */
static void expert(const OP(weights) *ws, const cedar_config *c, const cedar_expert *e, const real *xq, int t_count,
                   const real *weight, OP(moe_scratch) *s) {
    int64_t m = c->moe_dim;
    real lim = (real)c->swiglu_limit;
    OP(linear)(ws, &e->w1, xq, c->hidden, t_count, s->gate, m, s->linear);
    OP(linear)(ws, &e->w3, xq, c->hidden, t_count, s->up, m, s->linear);
    for (int t = 0; t < t_count; t++) {
        real *g = s->gate + t * m, *u = s->up + t * m;
        for (int64_t k = 0; k < m; k++) {
            real a = g[k], b = u[k];
            if (lim > 0) {
                b = b > lim ? lim : b < -lim ? -lim : b;
                a = a > lim ? lim : a;
            }
            real y = a * sigmoid(a) * b;
            g[k] = rb(weight ? weight[t] * y : y);
        }
        OP(quantise)(g, m, g, s->linear->tape);
    }
    OP(linear)(ws, &e->w2, s->gate, m, t_count, s->out, c->hidden, s->linear);
}

/* Position of expert e in a row's ascending list, or -1. */
static int slot_of(const int32_t *ids, int per_token, int32_t e) {
    for (int k = 0; k < per_token; k++)
        if (ids[k] == e) return k;
    return -1;
}

void OP(moe)(const OP(weights) * ws, const cedar_config *c, const cedar_block *b, int per_token, const real *x,
             int t_count, real *y, OP(moe_scratch) * s) {
    CEDAR_ASSERT(t_count <= LINEAR_ROWS);
    int64_t d = c->hidden;
    route(ws, c, b, per_token, x, t_count, s);
    OP(quantise)(x, t_count * d, s->xq, s->linear->tape);
    memset(y, 0, (size_t)(t_count * d) * sizeof *y);
    for (int32_t e = 0; e < b->expert_count; e++) {
        int rows[LINEAR_ROWS], n = 0;
        real weight[LINEAR_ROWS];
        for (int t = 0; t < t_count; t++) {
            int k = slot_of(s->ids + (int64_t)t * per_token, per_token, e);
            if (k < 0) continue;
            memcpy(s->gather + n * d, s->xq + t * d, (size_t)d * sizeof *y);
            weight[n] = s->weight[(int64_t)t * per_token + k];
            rows[n++] = t;
        }
        if (!n) continue;
        expert(ws, c, &b->experts[e], s->gather, n, weight, s);
        for (int i = 0; i < n; i++)
            for (int64_t k = 0; k < d; k++) y[rows[i] * d + k] += s->out[i * d + k];
    }
    expert(ws, c, &b->shared, s->xq, t_count, NULL, s);
    for (int64_t k = 0; k < t_count * d; k++) y[k] = rb(y[k] + s->out[k]);
}
