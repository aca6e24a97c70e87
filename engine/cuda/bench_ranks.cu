/* Sums over two GPUs for `cedar bench gpu` (engine/gpu_bench.h): ours in one step and in two, NCCL's, and the end of a
 * block in one launch against one launch after the other. One thread drives both GPUs.
 *
 * Time  A graph on each GPU: a pause until both are launched, a meeting, then CALLS calls between two looks at the
 *       GPU's clock, which cost one kernel more. What the last kernel before a sum wrote is in the cache in a step too,
 *       so inputs are not rotated. */
#include <string.h>

#include "engine/cuda/tensor.cuh"

extern "C" {
#include "base/mem.h"
#include "engine/gpu_bench.h"
}

enum { GPUS = 2, CALLS = 20, TOKENS_MAX = 2048, PAUSE_NS = 60000, STREAMS = 4 };

/* A GPU's end. */
struct side {
    peer_link link;
    cudaStream_t s;
    unsigned long long *clock;          /* [2] on the device: begin, end */
    uint8_t *memory;
    uint16_t *part, *sum, *packed;
    void *streams[2];                   /* turn by turn: a site reads them before the one before it has ended */
    dev d;
    collapse_into next;
};

struct cedar_gpu_sums {
    int hidden;
    nccl *n;
    cedar_err no_nccl;                  /* why there is none */
    side side[GPUS];
};

static cedar_status check(cudaError_t e, const char *what, cedar_err *err) {
    if (e == cudaSuccess) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_CUDA, "CUDA: %s failed: %s", what, cudaGetErrorString(e));
}

static __global__ void fill_value(float *p, uint64_t count, float v) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = v;
}

static __global__ void fill_bf16(uint16_t *p, uint64_t count, uint32_t seed) {
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        p[i] = (uint16_t)(0x3C00u | (((uint32_t)i + seed) * 2654435761u >> 16 & 0x83FFu));
}

static __global__ void fill_rows(uint32_t *p, uint32_t count) {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) p[i] = i;
}

static __device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

static __global__ void pause_ns(uint32_t ns) {
    unsigned long long begin = now_ns();
    while (now_ns() - begin < ns) {}
}

static __global__ void look(unsigned long long *clock) { *clock = now_ns(); }

struct carver {
    uint8_t *base;
    uint64_t used;
    void *take(uint64_t bytes) {
        uint64_t at = used;
        used += (bytes + 255) / 256 * 256;
        return base ? base + at : NULL;
    }
};

static void carve(side &s, const cedar_config *c, carver &m) {
    uint64_t n = TOKENS_MAX, hidden = (uint64_t)c->hidden;
    s.part = (uint16_t *)m.take(n * hidden * 2);
    s.sum = (uint16_t *)m.take(n * hidden * 2);
    s.packed = (uint16_t *)m.take(2 * n * (uint64_t)padded(c->hidden) * 2);
    for (int i = 0; i < 2; i++) s.streams[i] = m.take(n * STREAMS * hidden * 2);
    s.d.post = m.take(n * STREAMS * 4);
    s.d.comb = m.take(n * STREAMS * STREAMS * 4);
    s.next.pre = (const float *)m.take(n * STREAMS * 4);
    s.next.gain.data = (const uint8_t *)m.take(hidden * 2);
    s.d.active = (uint32_t *)m.take(n * 4);
    s.clock = (unsigned long long *)m.take(2 * sizeof *s.clock);
}

/* Streams stay of one size from call to call: half of what comes in, an eighth of each of four old ones. */
static void fill_side(side &s, const cedar_config *c, int rank) {
    uint64_t n = TOKENS_MAX, hidden = (uint64_t)c->hidden;
    fill_bf16<<<512, 256, 0, s.s>>>(s.part, n * hidden, (uint32_t)rank);
    for (int i = 0; i < 2; i++) fill_bf16<<<512, 256, 0, s.s>>>((uint16_t *)s.streams[i], n * STREAMS * hidden, 7);
    fill_bf16<<<8, 256, 0, s.s>>>((uint16_t *)(uintptr_t)s.next.gain.data, hidden, 9);
    fill_value<<<8, 256, 0, s.s>>>((float *)s.d.post, n * STREAMS, 0.5f);
    fill_value<<<8, 256, 0, s.s>>>((float *)s.d.comb, n * STREAMS * STREAMS, 0.125f);
    fill_value<<<8, 256, 0, s.s>>>((float *)(uintptr_t)s.next.pre, n * STREAMS, 0.25f);
    fill_rows<<<1, 256, 0, s.s>>>(s.d.active, TOKENS_MAX);
}

static cedar_status open_side(side &s, const cedar_config *c, int rank, cedar_err *err) {
    uint64_t row = (uint64_t)c->hidden * 2;
    cedar_status st = check(cudaSetDevice(rank), "choosing a GPU", err);
    if (!st) st = check(peers_open(&s.link, rank, GPUS, false, GPUS * TOKENS_MAX * row + 4096), "taking memory", err);
    if (!st) st = check(cudaStreamCreateWithFlags(&s.s, cudaStreamNonBlocking), "making a stream", err);
    if (st) return st;
    s.d.hidden = c->hidden; s.d.hc = STREAMS; s.d.norm_eps = c->norm_eps; s.d.row_max = TOKENS_MAX;
    s.d.real_bytes = 4; s.d.stream_bytes = 2;
    carver m = { NULL, 0 };
    carve(s, c, m);
    st = check(cudaMalloc(&s.memory, m.used), "taking memory", err);
    if (st) return st;
    m = carver{ s.memory, 0 };
    carve(s, c, m);
    s.next.gain = dev_weight{ CEDAR_W_BF16, 1, c->hidden, s.next.gain.data, NULL };
    s.next.indexed = true;
    s.next.quantised = s.packed;
    fill_side(s, c, rank);
    return check(cudaStreamSynchronize(s.s), "making data for a bench", err);
}

extern "C" cedar_status cedar_gpu_sums_open(const cedar_config *c, cedar_gpu_sums **out, cedar_err *err) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < GPUS || c->hc != STREAMS)
        return cedar_fail(err, CEDAR_E_UNSUPPORTED, "sums between GPUs need two of them and four streams; there are %d",
                          devices);
    cedar_gpu_sums *b = (cedar_gpu_sums *)cedar_calloc(1, sizeof *b);
    if (!b) return cedar_fail(err, CEDAR_E_OOM, "no memory for a bench");
    b->hidden = c->hidden;
    cedar_status st = CEDAR_OK;
    peer_link *all[GPUS];
    for (int r = 0; r < GPUS && !st; r++) {
        st = open_side(b->side[r], c, r, err);
        all[r] = &b->side[r].link;
    }
    for (int r = 0; r < GPUS && !st; r++) {
        st = check(cudaSetDevice(r), "choosing a GPU", err);
        if (!st) st = check(peers_connect(all[r], all), "switching on peer access", err);
    }
    static const int device[GPUS] = { 0, 1 };
    if (!st) (void)nccl_open(GPUS, device, (uint64_t)TOKENS_MAX * (uint64_t)c->hidden * 2, &b->n, &b->no_nccl);
    if (st) {
        cedar_gpu_sums_close(b);
        return st;
    }
    *out = b;
    return CEDAR_OK;
}

extern "C" void cedar_gpu_sums_close(cedar_gpu_sums *b) {
    if (!b) return;
    nccl_close(b->n);
    for (int r = 0; r < GPUS; r++) {
        side &s = b->side[r];
        cudaSetDevice(r);
        if (s.s) cudaStreamDestroy(s.s);
        cudaFree(s.memory);
        peers_close(&s.link);
    }
    cudaSetDevice(0);
    cedar_free(b);
}

/* One call on one GPU, but for NCCL's sum, which is launched for both at once. */
static void run(side &s, cedar_sum_kind kind, uint32_t tokens, int hidden, int turn) {
    const peers &p = s.link.p;
    chain next = { s.s, true };         /* as in a step, where a linear layer comes before */
    bool plain = kind == CEDAR_SUM_ONE_STEP || kind == CEDAR_SUM_TWO_STEPS;
    s.next.woven = !few_rows(tokens);
    s.d.h = s.streams[turn];
    if (plain || kind == CEDAR_SUM_SITE)
        peers_sum(p, s.part, tokens, hidden, s.sum,
                  kind == CEDAR_SUM_ONE_STEP    ? SUM_ONE_STEP
                  : kind == CEDAR_SUM_TWO_STEPS ? SUM_TWO_STEPS
                                                : SUM_AS_MEASURED,
                  next);
    if (kind == CEDAR_SUM_SITE || kind == CEDAR_SUM_SITE_NCCL) {
        tensor_expand(s.d, tokens, s.sum, chain{ s.s, kind == CEDAR_SUM_SITE });
        tensor_collapse(s.d, tokens, s.next, next);
    }
    if (kind == CEDAR_SUM_SITE_FUSED) tensor_site(s.d, p, s.part, tokens, s.next, next);
}

static bool with_nccl(cedar_sum_kind kind) { return kind == CEDAR_SUM_NCCL || kind == CEDAR_SUM_SITE_NCCL; }

static cedar_status call(cedar_gpu_sums *b, cedar_sum_kind kind, uint32_t tokens, int turn, cedar_err *err) {
    bool ok = true;
    if (with_nccl(kind)) {
        ok = nccl_group(b->n, true);
        for (int r = 0; r < GPUS && ok; r++)
            ok = nccl_sum(b->n, r, b->side[r].part, b->side[r].sum, (uint64_t)tokens * (uint64_t)b->hidden, 2,
                          b->side[r].s);
        ok = nccl_group(b->n, false) && ok;
    }
    if (!ok) return cedar_fail(err, CEDAR_E_NCCL, "a sum by NCCL failed: %s", nccl_error(b->n));
    for (int r = 0; r < GPUS; r++) {
        cudaSetDevice(r);
        run(b->side[r], kind, tokens, b->hidden, turn);
    }
    return check(cudaGetLastError(), "a launch in a bench", err);
}

static cedar_status wait_both(cedar_gpu_sums *b, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (int r = 0; r < GPUS && !st; r++) {
        st = check(cudaSetDevice(r), "choosing a GPU", err);
        if (!st) st = check(cudaStreamSynchronize(b->side[r].s), "a sum between GPUs", err);
        if (!st && peers_fault(&b->side[r].link) >= 0)
            st = cedar_fail(err, CEDAR_E_LIVENESS, "GPU %d waited in vain for GPU %d", r,
                            peers_fault(&b->side[r].link));
    }
    return st;
}

/* The captures of both GPUs end before a graph is built: building is refused while a stream of the thread captures. */
static cedar_status capture(cedar_gpu_sums *b, cedar_sum_kind kind, uint32_t tokens, cudaGraphExec_t exec[GPUS],
                            cedar_err *err) {
    cedar_status st = CEDAR_OK;
    cudaGraph_t graph[GPUS] = {};
    int begun = 0;
    for (; begun < GPUS; begun++) {
        side &s = b->side[begun];
        st = check(cudaSetDevice(begun), "choosing a GPU", err);
        if (!st) st = check(cudaStreamBeginCapture(s.s, cudaStreamCaptureModeRelaxed), "beginning a graph", err);
        if (st) break;
        pause_ns<<<1, 1, 0, s.s>>>(PAUSE_NS);
        peers_meet(s.link.p, s.s);
        look<<<1, 1, 0, s.s>>>(&s.clock[0]);
    }
    for (int i = 0; i < CALLS && !st; i++) st = call(b, kind, tokens, i % 2, err);
    for (int r = 0; r < begun; r++) {
        cudaSetDevice(r);
        look<<<1, 1, 0, b->side[r].s>>>(&b->side[r].clock[1]);
        cudaError_t e = cudaStreamEndCapture(b->side[r].s, &graph[r]);
        if (!st) st = check(e, "capturing a graph", err);
    }
    for (int r = 0; r < begun; r++) {
        cudaSetDevice(r);
        if (!st) st = check(cudaGraphInstantiate(&exec[r], graph[r], 0), "building a graph", err);
        if (!st) st = check(cudaGraphUpload(exec[r], b->side[r].s), "uploading a graph", err);
        if (graph[r]) cudaGraphDestroy(graph[r]);
    }
    return st ? st : wait_both(b, err);
}

static cedar_status launch_both(cedar_gpu_sums *b, cudaGraphExec_t exec[GPUS], double *us, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (int r = 0; r < GPUS && !st; r++) {
        st = check(cudaSetDevice(r), "choosing a GPU", err);
        if (!st) st = check(cudaGraphLaunch(exec[r], b->side[r].s), "launching a graph", err);
    }
    if (!st) st = wait_both(b, err);
    *us = 0;
    for (int r = 0; r < GPUS && !st; r++) {
        unsigned long long clock[2] = { 0, 0 };
        cudaSetDevice(r);
        st = check(cudaMemcpy(clock, b->side[r].clock, sizeof clock, cudaMemcpyDeviceToHost), "timing a graph", err);
        double mean = (double)(clock[1] - clock[0]) / 1e3 / CALLS;
        if (mean > *us) *us = mean;
    }
    return st;
}

extern "C" cedar_status cedar_gpu_sums_time(cedar_gpu_sums *b, cedar_sum_kind kind, uint32_t tokens, uint32_t warm,
                                            uint32_t repeat, double *us, cedar_err *err) {
    CEDAR_ASSERT(tokens >= 1 && tokens <= TOKENS_MAX);
    if (with_nccl(kind) && !b->n) return cedar_fail(err, b->no_nccl.code, "%s", b->no_nccl.msg);
    cudaGraphExec_t exec[GPUS] = {};
    double ignored;
    cedar_status st = call(b, kind, tokens, 0, err);    /* once outside: a kernel is loaded at its first launch */
    if (!st) st = wait_both(b, err);
    if (!st) st = capture(b, kind, tokens, exec, err);
    for (uint32_t i = 0; i < (warm + CALLS - 1) / CALLS + 1 && !st; i++) st = launch_both(b, exec, &ignored, err);
    for (uint32_t i = 0; i < repeat && !st; i++) st = launch_both(b, exec, &us[i], err);
    for (int r = 0; r < GPUS; r++) {
        cudaSetDevice(r);
        if (exec[r]) cudaGraphExecDestroy(exec[r]);
    }
    cudaSetDevice(0);
    return st;
}
