/* Codes of FP8 and FP4 weights, brought into the order in which kernels decode them (pairs.cuh), once, when a model
 * opens. */
#include "engine/cuda/ops.cuh"
#include "engine/cuda/pairs.cuh"

static __device__ uint2 spread(uint2 codes) { return e4m3_spread(codes); }
static __device__ uint32_t spread(uint32_t codes) { return e2m1_spread(codes); }

/* Eights: what holds eight codes. */
template <class Eights> static __global__ void spread_kernel(Eights *codes, uint64_t count) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        codes[i] = spread(codes[i]);
}

template <class Eights> static void launch(uint8_t *codes, uint64_t bytes, cudaStream_t s) {
    enum { THREADS = 256, BLOCKS_MOST = 4096 };
    uint64_t count = bytes / sizeof(Eights), blocks = (count + THREADS - 1) / THREADS;
    if (blocks > BLOCKS_MOST) blocks = BLOCKS_MOST;
    if (blocks) spread_kernel<<<(unsigned)blocks, THREADS, 0, s>>>((Eights *)codes, count);
}

void launch_spread(int kind, uint8_t *codes, uint64_t bytes, cudaStream_t s) {
    if (kind == CEDAR_W_TILES) launch<uint2>(codes, bytes, s);
    if (kind == CEDAR_W_FP4) launch<uint32_t>(codes, bytes, s);
}
