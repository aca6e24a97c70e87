/* Private to engine/cuda: two thread blocks of a cluster that load together. Rows are copied by the hardware into both
 * blocks' shared memory at once, swizzled as tiles (wgmma.cuh) want them, and counted in by barriers in shared memory.
 *
 * Order  A place of shared memory is filled again and again. `full` of a block: all bytes of the place's next filling
 *        are there; a block arms it itself, before it copies its share. `empty` of a block: the other one is done with
 *        that place, so that it may be written there. The number of a filling, from 0, says which turn to wait for.
 *        A block leaves when the other will not write to it or its barriers any more (cluster_arrive, cluster_wait). */
#ifndef CEDAR_ENGINE_CUDA_TOGETHER_CUH
#define CEDAR_ENGINE_CUDA_TOGETHER_CUH

#include <cuda.h>
#include <stdint.h>

enum { TOGETHER = 2 };                          /* blocks of a cluster */

static __device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of both blocks meet. Nothing that was written before is made known by it: barriers_made does that for
 * barriers, and the rest is the barriers' to do. */
static __device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

/* Barriers, eight bytes each: one arrival a turn, and as many bytes as it was armed for. */
static __device__ __forceinline__ void barrier_make(uint32_t at) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
}
/* After making them, before cluster_arrive. */
static __device__ __forceinline__ void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives, for that many bytes still to come. */
static __device__ __forceinline__ void barrier_arm(uint32_t at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/* Arrives at the barrier at that place of another block. It says that reads are done, and they are: products were
 * waited for. So no wider order is asked for, here or in barrier_wait: that would wait for all that the thread has
 * under way, and empty the first-level cache. */
static __device__ __forceinline__ void barrier_tell(uint32_t at, uint32_t rank) {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(at),
                 "r"(rank)
                 : "memory");
}

/* Waits for turn `turn` to be complete; the turn after it must not be complete yet. */
static __device__ __forceinline__ void barrier_wait(uint32_t at, int turn) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(at), "r"(turn & 1)
                     : "memory");
}

/* A box of the map at column k, layer z and row, to the same place of both blocks, counted in by both barriers. */
static __device__ __forceinline__ void copy_to_both(uint32_t to, const CUtensorMap *map, int k, int z, int row,
                                                    uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(k), "r"(z), "r"(row), "r"(barrier), "h"((uint16_t)((1 << TOGETHER) - 1))
                 : "memory");
}

#endif
