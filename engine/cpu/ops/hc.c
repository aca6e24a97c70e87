/* Single-pass mHC: coefficients, collapse, expand (spec/model.md 2.2). */
#include "engine/cpu/ops/ops.h"

/* comb[j][k] /= sum over k (rows) or over j (columns), plus eps. */
static void normalise(real *comb, int n, int step_in, int step_out, real eps) {
    for (int o = 0; o < n; o++) {
        real sum = 0;
        for (int i = 0; i < n; i++) sum += comb[o * step_out + i * step_in];
        for (int i = 0; i < n; i++) comb[o * step_out + i * step_in] /= sum + eps;
    }
}

void OP(hc_from_logits)(const real *m, const real *base, const real *scale, int n, int iters, real eps, real *pre,
                        real *post, real *comb) {
    for (int s = 0; s < n; s++) {
        pre[s] = sigmoid(m[s] * scale[0] + base[s]) + eps;
        post[s] = 2 * sigmoid(m[n + s] * scale[1] + base[n + s]);
    }
    for (int j = 0; j < n; j++) {
        real *row = comb + j * n, top = -INFINITY, sum = 0;
        for (int k = 0; k < n; k++) {
            row[k] = m[2 * n + j * n + k] * scale[2] + base[2 * n + j * n + k];
            if (row[k] > top) top = row[k];
        }
        for (int k = 0; k < n; k++) sum += row[k] = real_exp(row[k] - top);
        for (int k = 0; k < n; k++) row[k] = row[k] / sum + eps;
    }
    normalise(comb, n, n, 1, eps);
    for (int i = 1; i < iters; i++) {
        normalise(comb, n, 1, n, eps);
        normalise(comb, n, n, 1, eps);
    }
}

void OP(hc_project)(const OP(weights) *ws, const cedar_config *c, const OP(hc_site) *site, const real *h, int t_count,
                    real *m, OP(linear_scratch) *s) {
    int64_t width = (int64_t)c->hc * c->hidden, n = site->fn->rows;
    OP(linear_raw)(ws, site->fn, h, width, t_count, m, n, s);
    for (int t = 0; t < t_count; t++) {
        const real *row = h + t * width;
        real r = real_sqrt(OP(dot)(row, row, width) / (real)width + (real)c->norm_eps);
        for (int64_t k = 0; k < n; k++) m[t * n + k] /= r;
    }
}

void OP(hc_coefficients)(const OP(weights) * ws, const cedar_config *c, const OP(hc_site) * site, const real *m,
                         real *pre, real *post, real *comb) {
    OP(hc_from_logits)(m, ws->decoded[site->base->index], ws->decoded[site->scale->index], c->hc, c->hc_iters,
                       (real)c->hc_eps, pre, post, comb);
}

void OP(hc_collapse)(const real *h, const real *pre, int n, int64_t hidden, real *x) {
    for (int64_t k = 0; k < hidden; k++) {
        real sum = 0;
        for (int s = 0; s < n; s++) sum += pre[s] * h[s * hidden + k];
        x[k] = rb(sum);
    }
}

void OP(hc_expand)(real *h, const real *y, const real *post, const real *comb, int n, int64_t hidden) {
    for (int64_t k = 0; k < hidden; k++) {
        real old[CEDAR_HC_MAX];
        for (int s = 0; s < n; s++) old[s] = h[s * hidden + k];
        for (int to = 0; to < n; to++) {
            real sum = 0;
            for (int from = 0; from < n; from++) sum += comb[from * n + to] * old[from];
            h[to * hidden + k] = rb(post[to] * y[k] + sum);
        }
    }
}
