/* Sink attention over one latent per position that serves as key and value of every head (spec/model.md 2.8). */
#include "engine/cpu/ops/ops.h"

static void logits_of(const real *q, const real *keys, int count, int d, real scale, real *logits) {
    const real *const qs[4] = { q, q, q, q };
    for (int n = 0; n < count; n += 4) {
        const real *ks[4];
        for (int i = 0; i < 4; i++) ks[i] = keys + (int64_t)(n + i < count ? n + i : count - 1) * d;
        real out[4];
        OP(dot4)(ks, qs, d, out);
        for (int i = 0; i < 4 && n + i < count; i++) logits[n + i] = out[i] * scale;
    }
}

void OP(sink_attention)(real *q, int heads, int d, const real *keys, int count, const real *sink, real *logits) {
    real scale = (real)(1 / sqrt((double)d));
    for (int h = 0; h < heads; h++) {
        real *o = q + (int64_t)h * d, top = (real)-1e30, total = 0;
        logits_of(o, keys, count, d, scale, logits);
        for (int n = 0; n < count; n++)
            if (logits[n] > top) top = logits[n];
        for (int n = 0; n < count; n++) total += logits[n] = real_exp(logits[n] - top);
        total += real_exp(sink[h] - top);
        for (int k = 0; k < d; k++) o[k] = 0;
        for (int n = 0; n < count; n++) {
            real p = rb(logits[n]);
            const real *key = keys + (int64_t)n * d;
            for (int k = 0; k < d; k++) o[k] += p * key[k];
        }
        for (int k = 0; k < d; k++) o[k] = rb(o[k] / total);
    }
}
