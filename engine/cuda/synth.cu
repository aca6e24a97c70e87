/* Seeded weights made on the device: the recipe of engine/synth.c, integer operations only. */
#include "engine/cuda/ops.cuh"

static __device__ __forceinline__ unsigned long long mix64(unsigned long long x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static __device__ __forceinline__ unsigned long long rng_at(unsigned long long key, unsigned long long counter) {
    return mix64(key + (counter + 1) * 0x9E3779B97F4A7C15ull);
}

static __device__ __forceinline__ uint32_t level_sum(uint32_t half) {
    half = (half & 0x00ff00ffu) + (half >> 8 & 0x00ff00ffu);
    return (half & 0xffffu) + (half >> 16);
}

/* Two elements a turn: they share a random number, and two nibbles share a byte. */
static __global__ void elements(const cedar_synth_recipe *r, int kind, uint64_t count, int64_t cols, uint8_t *data) {
    __shared__ uint32_t table[2][CEDAR_SYNTH_LEVELS];
    for (int i = threadIdx.x; i < 2 * CEDAR_SYNTH_LEVELS; i += blockDim.x) (&table[0][0])[i] = (&r->table[0][0])[i];
    __syncthreads();
    unsigned long long key = r->key;
    int64_t split = r->split;
    for (uint64_t i = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * 2; i < count;
         i += (uint64_t)gridDim.x * blockDim.x * 2) {
        unsigned long long word = rng_at(key, i >> 1);
        uint32_t bits[2];
        for (int k = 0; k < 2; k++)
            bits[k] = table[split < cols && (int64_t)((i + k) % (uint64_t)cols) >= split]
                           [level_sum((uint32_t)(word >> (32 * k)))];
        bool second = i + 1 < count;
        if (kind == CEDAR_W_FP4) {
            data[i / 2] = (uint8_t)(bits[0] | (second ? bits[1] << 4 : 0));
        } else if (kind == CEDAR_W_TILES || kind == CEDAR_W_ROWS) {
            data[i] = (uint8_t)bits[0];
            if (second) data[i + 1] = (uint8_t)bits[1];
        } else if (kind == CEDAR_W_BF16) {
            ((uint16_t *)data)[i] = (uint16_t)bits[0];
            if (second) ((uint16_t *)data)[i + 1] = (uint16_t)bits[1];
        } else {
            ((uint32_t *)data)[i] = bits[0];
            if (second) ((uint32_t *)data)[i + 1] = bits[1];
        }
    }
}

static __global__ void scales(const cedar_synth_recipe *r, uint64_t count, uint8_t *scale) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        scale[i] = (uint8_t)(r->scale_base + __umul64hi(rng_at(r->scale_key, i), 3ull));
}

void launch_synth(const cedar_synth_recipe *recipe, const dev_weight &w, uint8_t *data, uint8_t *scale,
                  uint64_t scale_count, cudaStream_t s) {
    uint64_t count = (uint64_t)w.rows * (uint64_t)w.cols, blocks = (count / 2 + 255) / 256;
    elements<<<(unsigned)(blocks < 1      ? 1
                          : blocks < 4096 ? blocks
                                          : 4096),
               256, 0, s>>>(recipe, w.kind, count, w.cols, data);
    blocks = (scale_count + 255) / 256;
    if (scale_count) scales<<<(unsigned)(blocks < 4096 ? blocks : 4096), 256, 0, s>>>(recipe, scale_count, scale);
}
