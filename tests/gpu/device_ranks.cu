/* Exchanges between ranks, driven by one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/peers.cuh"
#include "engine/cuda/tensor.cuh"
#include "tests/gpu/device_ranks.h"

struct gpu_ranks {
    int ranks;
    peer_link link[GPU_RANKS_MAX];
    cudaStream_t s[GPU_RANKS_MAX];
    cudaGraphExec_t graph[GPU_RANKS_MAX];
    uint8_t *part[GPU_RANKS_MAX], *out[GPU_RANKS_MAX];
    uint32_t *note[GPU_RANKS_MAX], *wrong[GPU_RANKS_MAX];   /* note [NOTES] of each rank, read by all */
};

enum { NOTES = 1024 };

static void need(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "device_ranks: %s: %s\n", what, cudaGetErrorString(e));
    exit(70);
}

extern "C" int gpu_devices(void) {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

static void on(const gpu_ranks *g, int rank) { need(cudaSetDevice(g->link[rank].device), "cudaSetDevice"); }

extern "C" gpu_ranks *gpu_ranks_open(int ranks, bool distinct, uint32_t rows, size_t row_bytes, size_t values) {
    gpu_ranks *g = (gpu_ranks *)calloc(1, sizeof *g);
    peer_link *all[GPU_RANKS_MAX];
    uint64_t half = (uint64_t)ranks * rows * row_bytes, two = peers_sum_bytes(ranks, rows, row_bytes);
    g->ranks = ranks;
    if (half < two) half = two;
    if (half < values * 8) half = values * 8;
    for (int r = 0; r < ranks; r++) {
        need(cudaSetDevice(distinct ? r : 0), "cudaSetDevice");
        need(peers_open(&g->link[r], r, ranks, !distinct, half), "peers_open");
        need(cudaStreamCreateWithFlags(&g->s[r], cudaStreamNonBlocking), "a stream");
        need(cudaMalloc(&g->part[r], values * 8), "cudaMalloc");
        need(cudaMalloc(&g->out[r], values * 8), "cudaMalloc");
        need(cudaMalloc(&g->note[r], NOTES * 4), "cudaMalloc");
        need(cudaMalloc(&g->wrong[r], 4), "cudaMalloc");
        need(cudaMemset(g->part[r], 0, values * 8), "cudaMemset");
        need(cudaMemset(g->out[r], 0, values * 8), "cudaMemset");
        need(cudaMemset(g->wrong[r], 0, 4), "cudaMemset");
        need(cudaDeviceSynchronize(), "opening");
        all[r] = &g->link[r];
    }
    for (int r = 0; r < ranks; r++) {
        on(g, r);
        need(peers_connect(&g->link[r], all), "peers_connect");
    }
    return g;
}

extern "C" void gpu_ranks_close(gpu_ranks *g) {
    gpu_ranks_wait(g);
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        if (g->graph[r]) cudaGraphExecDestroy(g->graph[r]);
        cudaFree(g->part[r]);
        cudaFree(g->out[r]);
        cudaFree(g->note[r]);
        cudaFree(g->wrong[r]);
        cudaStreamDestroy(g->s[r]);
        peers_close(&g->link[r]);
    }
    free(g);
}

extern "C" void gpu_ranks_limit(gpu_ranks *g, double seconds) {
    for (int r = 0; r < g->ranks; r++) g->link[r].p.limit_ns = (unsigned long long)(seconds * 1e9);
}

extern "C" void gpu_ranks_put(gpu_ranks *g, int rank, const void *host, size_t bytes) {
    on(g, rank);
    need(cudaMemcpyAsync(g->part[rank], host, bytes, cudaMemcpyHostToDevice, g->s[rank]), "copying in");
    need(cudaStreamSynchronize(g->s[rank]), "copying in");
}

extern "C" void gpu_ranks_get(gpu_ranks *g, int rank, void *host, size_t bytes) {
    on(g, rank);
    need(cudaMemcpyAsync(host, g->out[rank], bytes, cudaMemcpyDeviceToHost, g->s[rank]), "copying out");
    need(cudaStreamSynchronize(g->s[rank]), "copying out");
}

extern "C" void gpu_ranks_sum(gpu_ranks *g, uint32_t rows, int width, int real_bytes, bool two_steps, int only) {
    sum_way way = two_steps ? SUM_TWO_STEPS : SUM_ONE_STEP;
    for (int r = 0; r < g->ranks && r < only; r++) {
        const peers &p = g->link[r].p;
        size_t bytes = (size_t)rows * width * real_bytes;
        on(g, r);
        if (real_bytes == 2) {
            peers_sum(p, (const uint16_t *)g->part[r], rows, width, (uint16_t *)g->out[r], way,
                      chain{ g->s[r], false });
            continue;
        }
        need(cudaMemcpyAsync(g->out[r], g->part[r], bytes, cudaMemcpyDeviceToDevice, g->s[r]), "copying");
        if (real_bytes == 4) peers_sum_reals(p, (float *)g->out[r], false, rows, width, way, g->s[r]);
        else peers_sum_reals(p, (double *)g->out[r], false, rows, width, way, g->s[r]);
    }
    need(cudaGetLastError(), "a sum");
}

extern "C" void gpu_ranks_gather(gpu_ranks *g, uint32_t rows, const int *first, int real_bytes) {
    peer_columns c;
    for (int r = 0; r <= g->ranks; r++) c.first[r] = first[r];
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        if (real_bytes == 4)
            peers_gather(g->link[r].p, (const float *)g->part[r], rows, c, (float *)g->out[r], g->s[r]);
        else peers_gather(g->link[r].p, (const double *)g->part[r], rows, c, (double *)g->out[r], g->s[r]);
    }
    need(cudaGetLastError(), "a gather");
}

static __global__ void sit(uint32_t ns) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begin < ns);
}

extern "C" void gpu_ranks_delay(gpu_ranks *g, int rank, uint32_t ns) {
    on(g, rank);
    sit<<<1, 1, 0, g->s[rank]>>>(ns);
}

static __global__ void remake(const uint16_t *out, uint32_t count, int rank, __nv_bfloat16 *part) {
    for (uint32_t i = blockIdx.x * 128 + threadIdx.x; i < count; i += gridDim.x * 128) {
        uint32_t v = (out[i] * 2654435761u + (uint32_t)rank * 40503u + i * 9973u) >> 20 & 127;
        part[i] = __float2bfloat16_rn((float)v);
    }
}

extern "C" void gpu_ranks_remake(gpu_ranks *g, uint32_t count) {
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        remake<<<4, 128, 0, g->s[r]>>>((const uint16_t *)g->out[r], count, r, (__nv_bfloat16 *)g->part[r]);
    }
}

static __global__ void write_note(uint32_t *note, uint32_t number) { note[threadIdx.x] = number + threadIdx.x; }

struct all_notes { const uint32_t *at[GPU_RANKS_MAX]; };
static __global__ void read_notes(all_notes notes, int ranks, uint32_t number, uint32_t *wrong) {
    for (int r = 0; r < ranks; r++)
        if (notes.at[r][threadIdx.x] != number + threadIdx.x) atomicAdd(wrong, 1);
}

extern "C" void gpu_ranks_meet(gpu_ranks *g, uint32_t number) {
    all_notes notes;
    for (int r = 0; r < g->ranks; r++) notes.at[r] = g->note[r];
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        write_note<<<1, NOTES, 0, g->s[r]>>>(g->note[r], number);
        peers_meet(g->link[r].p, g->s[r]);
        read_notes<<<1, NOTES, 0, g->s[r]>>>(notes, g->ranks, number, g->wrong[r]);
        peers_meet(g->link[r].p, g->s[r]);
    }
    need(cudaGetLastError(), "a meeting");
}

extern "C" uint32_t gpu_ranks_wrong(gpu_ranks *g) {
    uint32_t sum = 0, wrong = 0;
    gpu_ranks_wait(g);
    for (int r = 0; r < g->ranks; r++, sum += wrong) {
        on(g, r);
        need(cudaMemcpy(&wrong, g->wrong[r], 4, cudaMemcpyDeviceToHost), "copying out");
    }
    return sum;
}

extern "C" void gpu_ranks_capture(gpu_ranks *g) {
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        need(cudaStreamBeginCapture(g->s[r], cudaStreamCaptureModeThreadLocal), "beginning a graph");
    }
}

/* All captures end before a graph is built: building is refused while a stream of the thread captures. */
extern "C" void gpu_ranks_captured(gpu_ranks *g) {
    cudaGraph_t graph[GPU_RANKS_MAX];
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        need(cudaStreamEndCapture(g->s[r], &graph[r]), "capturing a graph");
    }
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        if (g->graph[r]) cudaGraphExecDestroy(g->graph[r]);
        need(cudaGraphInstantiate(&g->graph[r], graph[r], 0), "building a graph");
        need(cudaGraphUpload(g->graph[r], g->s[r]), "uploading a graph");
        need(cudaStreamSynchronize(g->s[r]), "uploading a graph");
        cudaGraphDestroy(graph[r]);
    }
}

extern "C" void gpu_ranks_replay(gpu_ranks *g) {
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        need(cudaGraphLaunch(g->graph[r], g->s[r]), "launching a graph");
    }
}

extern "C" void gpu_ranks_wait(gpu_ranks *g) {
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        need(cudaStreamSynchronize(g->s[r]), "waiting");
    }
}

extern "C" int gpu_ranks_fault(gpu_ranks *g, int rank) { return peers_fault(&g->link[rank]); }

/* --- the end of a block ------------------------------------------------------------------------------------------- */

static void *put(const void *host, size_t bytes) {
    void *p = NULL;
    need(cudaMalloc(&p, bytes), "cudaMalloc");
    need(host ? cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice) : cudaMemset(p, 0, bytes), "filling");
    return p;
}

/* A rank's buffers. */
struct site_rank {
    dev d;
    dev_moe m;
    collapse_into next;
    uint16_t *x;
};

static site_rank make_site(const gpu_site *s, int rank) {
    site_rank w = {};
    size_t n = s->n, hidden = (size_t)s->hidden, slots = (size_t)s->per_token + 1;
    uint32_t *active = (uint32_t *)calloc(n, 4);
    for (uint32_t i = 0; i < n; i++) active[i] = (i + 1) % s->n;        /* rows are not where they are listed */
    w.d.hidden = s->hidden; w.d.hc = 4; w.d.norm_eps = 1e-6; w.d.row_max = s->n; w.d.real_bytes = 4;
    w.d.stream_bytes = 2;
    w.d.active = (uint32_t *)put(active, n * 4);
    w.d.h = put(s->h, n * 4 * hidden * 2);
    w.d.post = put(s->post, n * 4 * 4);
    w.d.comb = put(s->comb, n * 16 * 4);
    w.x = (uint16_t *)put(s->x[rank], n * slots * hidden * 2);
    w.m.per_token = s->per_token;
    w.m.ids = s->ids ? (int32_t *)put(s->ids, n * (size_t)s->per_token * 4) : NULL;
    w.m.out = w.x;
    size_t wide = (size_t)padded(s->hidden);
    uint16_t *packed = (uint16_t *)put(NULL, 2 * n * wide * 2);
    w.next = collapse_into{ put(s->pre, n * 4 * 4),
                            { CEDAR_W_BF16, 1, s->hidden, (const uint8_t *)put(s->gain, hidden * 2), NULL },
                            true, s->woven, packed, packed + n * wide };
    free(active);
    return w;
}

static void drop_site(site_rank *w) {
    void *all[] = { w->d.active, w->d.h, w->d.post, w->d.comb, w->x, w->m.ids, (void *)(uintptr_t)w->next.pre,
                    (void *)(uintptr_t)w->next.gain.data, w->next.plain };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) need(cudaFree(all[i]), "cudaFree");
}

extern "C" void gpu_ranks_site(gpu_ranks *g, const gpu_site *s, bool fused, int rank, uint16_t *h, uint16_t *packed) {
    site_rank w[GPU_RANKS_MAX];
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        w[r] = make_site(s, r);
        need(cudaDeviceSynchronize(), "filling");
    }
    for (int r = 0; r < g->ranks; r++) {
        const peers &p = g->link[r].p;
        chain c = { g->s[r], true };            /* as in a step: a kernel may begin before the one in front has ended */
        uint16_t *y = (uint16_t *)g->out[r];
        const collapse_into &next = w[r].next;
        on(g, r);
        if (fused && s->per_token) {
            tensor_site_experts(w[r].d, p, w[r].m, s->n, next, c);
        } else if (fused) {
            tensor_site(w[r].d, p, w[r].x, s->n, next, c);
        } else {
            if (s->per_token) peers_sum_experts(p, w[r].m, s->n, s->hidden, y, SUM_AS_MEASURED, c);
            else peers_sum(p, w[r].x, s->n, s->hidden, y, SUM_AS_MEASURED, c);
            tensor_expand(w[r].d, s->n, y, c);
            tensor_collapse(w[r].d, s->n, next, c);
        }
        need(cudaGetLastError(), "the end of a block");
    }
    gpu_ranks_wait(g);
    on(g, rank);
    need(cudaMemcpy(h, w[rank].d.h, (size_t)s->n * 4 * s->hidden * 2, cudaMemcpyDeviceToHost), "copying out");
    need(cudaMemcpy(packed, w[rank].next.plain, 2 * (size_t)s->n * (size_t)padded(s->hidden) * 2,
                    cudaMemcpyDeviceToHost),
         "copying out");
    for (int r = 0; r < g->ranks; r++) {
        on(g, r);
        drop_site(&w[r]);
    }
}
