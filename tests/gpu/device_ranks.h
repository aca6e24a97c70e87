/* Exchanges between ranks (engine/cuda/peers.cuh) for tests in C: all ranks are driven by one thread, each on a stream
 * of its own, on GPUs of their own or all on the first one. Nothing waits but gpu_ranks_wait and what says so. */
#ifndef CEDAR_TESTS_GPU_DEVICE_RANKS_H
#define CEDAR_TESTS_GPU_DEVICE_RANKS_H

#ifdef __cplusplus
extern "C" {
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#endif

enum { GPU_RANKS_MAX = 8 };

int gpu_devices(void);

/* Buffers of every rank hold `values` numbers of up to 8 bytes; sums have up to `rows` rows of row_bytes. */
typedef struct gpu_ranks gpu_ranks;
gpu_ranks *gpu_ranks_open(int ranks, bool distinct, uint32_t rows, size_t row_bytes, size_t values);
void gpu_ranks_close(gpu_ranks *g);
void gpu_ranks_limit(gpu_ranks *g, double seconds);     /* of a wait */

/* A rank's part, and its result; wait for that rank. */
void gpu_ranks_put(gpu_ranks *g, int rank, const void *host, size_t bytes);
void gpu_ranks_get(gpu_ranks *g, int rank, void *host, size_t bytes);

/* Of all ranks, or of those below `only`. real_bytes: 2 bf16, 4 float, 8 double. */
void gpu_ranks_sum(gpu_ranks *g, uint32_t rows, int width, int real_bytes, bool two_steps, int only);
void gpu_ranks_gather(gpu_ranks *g, uint32_t rows, const int *first, int real_bytes);
/* One rank alone sits for a while. */
void gpu_ranks_delay(gpu_ranks *g, int rank, uint32_t ns);
/* part[i] of all ranks becomes the bf16 of gpu_ranks_next(out[i], rank, i). */
static inline uint32_t gpu_ranks_next(uint32_t bits, int rank, uint32_t i) {
    return (bits * 2654435761u + (uint32_t)rank * 40503u + i * 9973u) >> 20 & 127;
}
void gpu_ranks_remake(gpu_ranks *g, uint32_t count);

/* Each rank writes `number` into its own memory, all meet, each reads all, all meet: how often something else was read
 * is counted on the device, for gpu_ranks_wrong, which waits. */
void gpu_ranks_meet(gpu_ranks *g, uint32_t number);
uint32_t gpu_ranks_wrong(gpu_ranks *g);

/* What is launched in between becomes a graph a rank; then they can be launched. */
void gpu_ranks_capture(gpu_ranks *g);
void gpu_ranks_captured(gpu_ranks *g);
void gpu_ranks_replay(gpu_ranks *g);

void gpu_ranks_wait(gpu_ranks *g);
int gpu_ranks_fault(gpu_ranks *g, int rank);            /* the rank that this one waited for in vain, or -1 */

/* The end of a block (tensor.cuh, tensor_site) of n rows, fused, or by one kernel after the other. x: per rank, host
 * bf16 [n, hidden], or with per_token > 0 [n, per_token + 1, hidden] and ids [n, per_token]. h [n, 4, hidden] bf16 and
 * the packed inputs [2, n, padded(hidden)] of `rank` come back. */
typedef struct gpu_site {
    int hidden, per_token;
    uint32_t n;
    bool woven;
    const uint16_t *x[GPU_RANKS_MAX];
    const int32_t *ids;
    const uint16_t *h, *gain;
    const float *pre, *post, *comb;
} gpu_site;
void gpu_ranks_site(gpu_ranks *g, const gpu_site *site, bool fused, int rank, uint16_t *h, uint16_t *packed);

#ifdef __cplusplus
}
#endif
#endif
