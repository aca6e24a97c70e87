/* Choosing a token from logits. Class D0: sums in order of the id, in double; the random number is the caller's. */
#include <math.h>

#include "serve/serve_int.h"

static int32_t best(const float *logits, int32_t vocab, int32_t banned) {
    int32_t id = -1;
    for (int32_t i = 0; i < vocab; i++)
        if (i != banned && (id < 0 || logits[i] > logits[id])) id = i;
    return id;
}

/* Order of the heap: the larger weight, then the lower id. */
static bool before(const double *weights, int32_t a, int32_t b) {
    return weights[a] > weights[b] || (weights[a] == weights[b] && a < b);
}

static void sink(const double *weights, int32_t *heap, int32_t count, int32_t at) {
    for (int32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(weights, heap[child + 1], heap[child])) child++;
        if (!before(weights, heap[child], heap[at])) return;
        int32_t t = heap[at];
        heap[at] = heap[child];
        heap[child] = t;
    }
}

/* Leaves weight only to the most likely ids that together have at least the share top_p; returns what is left. */
static double keep_top(double *weights, int32_t *heap, int32_t vocab, double total, double top_p) {
    int32_t count = vocab;
    double kept = 0;
    for (int32_t i = 0; i < vocab; i++) heap[i] = i;
    for (int32_t i = vocab / 2; i-- > 0;) sink(weights, heap, vocab, i);
    while (count > 0 && (kept == 0 || kept < top_p * total)) {
        kept += weights[heap[0]];
        int32_t t = heap[0];
        heap[0] = heap[--count];
        heap[count] = t;        /* kept ids gather at the end */
        sink(weights, heap, count, 0);
    }
    for (int32_t i = 0; i < count; i++) weights[heap[i]] = 0;
    double left = 0;
    for (int32_t i = 0; i < vocab; i++) left += weights[i];
    return left;
}

int32_t serve_sample(const float *logits, int32_t vocab, const serve_choice *c, double *weights, int32_t *heap) {
    int32_t top = best(logits, vocab, c->banned), last = top;
    if (c->temperature <= 0 || top < 0) return top;
    double total = 0;
    for (int32_t i = 0; i < vocab; i++) {
        weights[i] = i == c->banned ? 0 : exp(((double)logits[i] - (double)logits[top]) / c->temperature);
        total += weights[i];
    }
    if (c->top_p < 1) total = keep_top(weights, heap, vocab, total, c->top_p);
    double mark = (double)(c->random >> 11) * 0x1p-53 * total, sum = 0;
    for (int32_t i = 0; i < vocab; i++) {
        if (weights[i] <= 0) continue;
        sum += weights[i];
        last = i;
        if (sum > mark) break;
    }
    return last;
}

float serve_logprobs(const float *logits, int32_t vocab, int32_t id, uint32_t count, int32_t *ids, float *values) {
    int32_t top = best(logits, vocab, -1);
    double sum = 0;
    for (int32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)logits[top]);
    double log_total = (double)logits[top] + log(sum);
    uint32_t n = 0;
    for (int32_t i = 0; i < vocab && count; i++) {
        if (n == count && !(logits[i] > logits[ids[n - 1]])) continue;
        uint32_t at = n < count ? n++ : n - 1;
        for (; at > 0 && logits[i] > logits[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
    for (uint32_t i = 0; i < n; i++) values[i] = (float)((double)logits[ids[i]] - log_total);
    return (float)((double)logits[id] - log_total);
}
