/* A step's inputs: read by one kernel from pinned host memory, over the bus, where a copy for each array would cost a
 * few microseconds each. */
#include "engine/cuda/ops.cuh"

enum { INPUT_THREADS = 256, INPUT_BLOCKS = 16 };

/* blockIdx.y: an array, then an entry's pages. */
static __global__ void __launch_bounds__(INPUT_THREADS) inputs_kernel(const __grid_constant__ dev_inputs in) {
    uint32_t i = blockIdx.x * INPUT_THREADS + threadIdx.x, step = gridDim.x * INPUT_THREADS;
    if (blockIdx.y < in.arrays) {
        const dev_inputs::words &a = in.array[blockIdx.y];
        for (; i < a.count; i += step) a.to[i] = a.from[i];
        return;
    }
    uint32_t entry = blockIdx.y - in.arrays, count = in.page_count[entry];
    int32_t seq = in.entry[entry].seq;
    for (; i < in.pages_most; i += step) {      /* asked for before it is known whether it counts */
        int32_t page = in.pages[(uint64_t)entry * in.pages_per_seq + i];
        if (i < count) in.page_table[(uint64_t)seq * in.pages_per_seq + i] = page;
    }
}

void launch_inputs(const dev_inputs &in, cudaStream_t s) {
    uint32_t most = in.pages_most;
    for (uint32_t a = 0; a < in.arrays; a++) most = in.array[a].count > most ? in.array[a].count : most;
    unsigned blocks = (most + INPUT_THREADS - 1) / INPUT_THREADS;
    if (blocks < 1) blocks = 1;
    if (blocks > INPUT_BLOCKS) blocks = INPUT_BLOCKS;
    inputs_kernel<<<dim3(blocks, in.arrays + in.entries), INPUT_THREADS, 0, s>>>(in);
}
