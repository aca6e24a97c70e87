/* For `cedar bench gpu`: single operators timed on made-up data, the limits of the device, and how much a step must
 * read and multiply at least.
 *
 * Ownership   A bench owns its device memory, taken in open. One at a time, one thread.
 * Errors      base/status.h; CEDAR_E_UNSUPPORTED in a build without CUDA. */
#ifndef CEDAR_ENGINE_GPU_BENCH_H
#define CEDAR_ENGINE_GPU_BENCH_H

#include "engine/engine.h"

/* --- what a step must do, from the shape alone (gpu_bench.c) ------------------------------------------------------ */

/* Bytes that a decode step of `batch` sequences at `context` tokens has to read: each weight once (of the experts
 * `experts` per layer), one row of the embedding a token, and for each sequence its window, its picks and the index
 * entries that are scored. Nothing written is counted. */
cedar_status cedar_decode_bytes(const cedar_config *c, double experts, uint32_t batch, uint32_t context, double *bytes,
                                cedar_err *err) CEDAR_USE_RESULT;

/* Multiplications and additions of matrices, attention and index scores for a prompt of `tokens` through the layers
 * before the cut, and through all of them. */
cedar_status cedar_prefill_flops(const cedar_config *c, uint32_t tokens, double *encoder, double *all,
                                 cedar_err *err) CEDAR_USE_RESULT;

/* --- operators on a GPU (cuda/bench.cu) --------------------------------------------------------------------------- */

typedef struct cedar_gpu_device {
    char name[128];
    int driver, runtime;                /* CUDA versions, 1000 * major + 10 * minor */
    int multiprocessors;
    uint64_t bytes;
} cedar_gpu_device;

cedar_status cedar_gpu_device_find(cedar_gpu_device *out, cedar_err *err) CEDAR_USE_RESULT;

typedef enum cedar_gpu_limit {
    CEDAR_GPU_IS_BANDWIDTH,             /* these rows are limits themselves: bytes or operations a second */
    CEDAR_GPU_IS_MATRIX,
    CEDAR_GPU_OF_BANDWIDTH,             /* amount: bytes that must be read or written */
    CEDAR_GPU_OF_MATRIX,                /* amount: multiplications and additions */
    CEDAR_GPU_TIME                      /* no limit: the time itself */
} cedar_gpu_limit;

typedef struct cedar_gpu_row {
    const char *name, *what;
    cedar_gpu_limit limit;
    double amount;                      /* of one run */
    double goal;                        /* of the ratio; 0 = none */
} cedar_gpu_row;

typedef struct cedar_gpu_bench cedar_gpu_bench;

/* Operators in the sizes of a shape, which must be one that the bf16 kernels for whole rows take. */
cedar_status cedar_gpu_bench_open(const cedar_config *c, cedar_gpu_bench **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_gpu_bench_close(cedar_gpu_bench *b);
uint32_t cedar_gpu_bench_count(const cedar_gpu_bench *b);
const cedar_gpu_row *cedar_gpu_bench_row(const cedar_gpu_bench *b, uint32_t row);

/* Microseconds of one run, `repeat` times after `warm` runs: each the mean over a graph of runs whose inputs alternate,
 * so that weights and keys come from memory and not from the last run's cache. */
cedar_status cedar_gpu_bench_time(cedar_gpu_bench *b, uint32_t row, uint32_t warm, uint32_t repeat, double *us,
                                  cedar_err *err) CEDAR_USE_RESULT;

/* --- sums over two GPUs (cuda/bench_ranks.cu) --------------------------------------------------------------------- */

typedef enum cedar_sum_kind {
    CEDAR_SUM_NCCL,                     /* the sum alone */
    CEDAR_SUM_ONE_STEP, CEDAR_SUM_TWO_STEPS,
    CEDAR_SUM_SITE_NCCL,                /* with what follows: streams expanded, the next input collapsed and normed */
    CEDAR_SUM_SITE, CEDAR_SUM_SITE_FUSED,
    CEDAR_SUM_KINDS
} cedar_sum_kind;

typedef struct cedar_gpu_sums cedar_gpu_sums;

/* For the first two GPUs; CEDAR_E_UNSUPPORTED where there are fewer. Without NCCL its rows fail with the reason. */
cedar_status cedar_gpu_sums_open(const cedar_config *c, cedar_gpu_sums **out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_gpu_sums_close(cedar_gpu_sums *b);

/* Microseconds of one sum of `tokens` rows of bf16, `repeat` times after `warm` ones: each the longer of both GPUs'
 * means over a graph of 20, which they begin together. */
cedar_status cedar_gpu_sums_time(cedar_gpu_sums *b, cedar_sum_kind kind, uint32_t tokens, uint32_t warm,
                                 uint32_t repeat, double *us, cedar_err *err) CEDAR_USE_RESULT;

#endif
