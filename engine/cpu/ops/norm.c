/* RMS norm and rotary embedding (spec/model.md 2.1, 2.3). */
#include "engine/cpu/ops/ops.h"

void OP(rms_norm)(const real *gain, const real *x, int64_t n, real eps, real *y) {
    real r = 1 / real_sqrt(OP(dot)(x, x, n) / (real)n + eps);
    for (int64_t k = 0; k < n; k++) y[k] = rb(gain[k] * (x[k] * r));
}

void OP(rope_table)(const double *freq, int pairs, int64_t pos, real *table) {
    for (int i = 0; i < pairs; i++) {
        double angle = (double)pos * freq[i];
        table[2 * i] = (real)cos(angle);
        table[2 * i + 1] = (real)sin(angle);
    }
}

void OP(rope)(real *x, int n, const real *table, int pairs, int sign) {
    real *p = x + n - 2 * pairs;
    for (int i = 0; i < pairs; i++) {
        real a = p[2 * i], b = p[2 * i + 1], co = table[2 * i], si = sign < 0 ? -table[2 * i + 1] : table[2 * i + 1];
        p[2 * i] = rb(a * co - b * si);
        p[2 * i + 1] = rb(a * si + b * co);
    }
}
