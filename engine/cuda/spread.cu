/* Codes of FP4 weights, brought into the order in which kernels decode them (pairs.cuh), once, when a model opens. */
#include "engine/cuda/ops.cuh"
#include "engine/cuda/pairs.cuh"

static __global__ void spread_kernel(uint32_t *word, uint64_t count) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        word[i] = e2m1_spread(word[i]);
}

void launch_spread(uint8_t *codes, uint64_t bytes, cudaStream_t s) {
    enum { THREADS = 256, BLOCKS_MOST = 4096 };
    uint64_t words = bytes / sizeof(uint32_t), blocks = (words + THREADS - 1) / THREADS;
    if (blocks > BLOCKS_MOST) blocks = BLOCKS_MOST;
    if (blocks) spread_kernel<<<(unsigned)blocks, THREADS, 0, s>>>((uint32_t *)codes, words);
}
