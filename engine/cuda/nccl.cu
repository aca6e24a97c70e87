/* NCCL's sums, as the peer of our own: loaded when it is asked for, so that a build needs neither its headers nor the
 * library. The declarations are those of its public interface, stable since version 2.10 (bf16). */
#include <dlfcn.h>
#include <string.h>

#include "engine/cuda/peers.cuh"

extern "C" {
#include "base/mem.h"
}

enum { NCCL_SUM = 0, NCCL_FLOAT = 7, NCCL_DOUBLE = 8, NCCL_BF16 = 9 };

struct nccl {
    void *library;
    int ranks, users, last;             /* users: ranks that have not left; last: a result that was not 0 */
    void *comm[CEDAR_CUDA_RANKS_MAX];
    int (*init_all)(void **comms, int count, const int *devices);
    int (*abort)(void *comm);
    int (*all_reduce)(const void *x, void *y, size_t count, int type, int op, void *comm, cudaStream_t s);
    int (*group_start)(void);
    int (*group_end)(void);
    const char *(*error_string)(int result);
};

static cedar_status find_all(nccl *n, cedar_err *err) {
    const struct { const char *name; void **to; } wanted[] = {
        { "ncclCommInitAll", (void **)&n->init_all },     { "ncclCommAbort", (void **)&n->abort },
        { "ncclAllReduce", (void **)&n->all_reduce },     { "ncclGroupStart", (void **)&n->group_start },
        { "ncclGroupEnd", (void **)&n->group_end },       { "ncclGetErrorString", (void **)&n->error_string },
    };
    n->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!n->library)
        return cedar_fail(err, CEDAR_E_NCCL,
                          "allreduce = \"nccl\": %s; install NCCL 2 where the loader finds it (LD_LIBRARY_PATH), or "
                          "take \"plain\" or \"fused\"",
                          dlerror());
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].to = dlsym(n->library, wanted[i].name);
        if (!*wanted[i].to)
            return cedar_fail(err, CEDAR_E_NCCL, "libnccl.so.2 has no %s; NCCL 2.10 or later is needed",
                              wanted[i].name);
    }
    return CEDAR_OK;
}

/* An end of connect_all. */
struct nccl_end {
    uint16_t *x;
    cudaStream_t s;
};

static cudaError_t open_end(nccl_end *e, int device, uint64_t bytes) {
    cudaError_t st = cudaSetDevice(device);
    if (!st) st = cudaMalloc(&e->x, bytes);
    if (!st) st = cudaStreamCreateWithFlags(&e->s, cudaStreamNonBlocking);
    return st ? st : cudaMemsetAsync(e->x, 0, bytes, e->s);
}

/* Sums of 1 KiB, 2, 4 and so on up to `bytes`: NCCL connects at the first one of a kind, and picks kinds by size. It
 * cannot while a graph is captured, or while another rank already waits on its GPU, as with a thread for each rank it
 * might. */
static cedar_status connect_all(nccl *n, const int *devices, uint64_t bytes, cedar_err *err) {
    nccl_end end[CEDAR_CUDA_RANKS_MAX] = {};
    cudaError_t e = cudaSuccess;
    bool ok = true;
    for (int r = 0; r < n->ranks && !e; r++) e = open_end(&end[r], devices[r], bytes);
    for (uint64_t size = 1024; size <= bytes && !e && ok; size *= 2) {
        ok = nccl_group(n, true);
        for (int r = 0; r < n->ranks && ok; r++) ok = nccl_sum(n, r, end[r].x, end[r].x, size / 2, 2, end[r].s);
        ok = nccl_group(n, false) && ok;
    }
    for (int r = 0; r < n->ranks; r++) {
        if (!e && ok) e = cudaStreamSynchronize(end[r].s);
        cudaSetDevice(devices[r]);
        if (end[r].s) cudaStreamDestroy(end[r].s);
        cudaFree(end[r].x);
    }
    if (!ok) return cedar_fail(err, CEDAR_E_NCCL, "NCCL cannot connect %d GPUs: %s", n->ranks, nccl_error(n));
    if (e) return cedar_fail(err, CEDAR_E_CUDA, "CUDA: the first sums by NCCL failed: %s", cudaGetErrorString(e));
    return CEDAR_OK;
}

cedar_status nccl_open(int ranks, const int *devices, uint64_t bytes, nccl **out, cedar_err *err) {
    nccl *n = (nccl *)cedar_calloc(1, sizeof *n);
    if (!n) return cedar_fail(err, CEDAR_E_OOM, "no memory for NCCL");
    n->ranks = n->users = ranks;
    cedar_status st = find_all(n, err);
    if (!st && (n->last = n->init_all(n->comm, ranks, devices)))
        st = cedar_fail(err, CEDAR_E_NCCL, "NCCL cannot connect %d GPUs: %s", ranks, n->error_string(n->last));
    if (!st) st = connect_all(n, devices, bytes, err);
    if (st) {
        nccl_close(n);
        return st;
    }
    *out = n;
    return CEDAR_OK;
}

/* Aborts: a rank may wait for one that failed. It returns when no graph holds a sum any more. */
void nccl_stop(nccl *n, int rank) {
    if (n->comm[rank]) n->abort(n->comm[rank]);
    n->comm[rank] = NULL;
}

void nccl_leave(nccl *n, int rank) {
    nccl_stop(n, rank);
    if (__atomic_sub_fetch(&n->users, 1, __ATOMIC_ACQ_REL)) return;
    if (n->library) dlclose(n->library);
    cedar_free(n);
}

void nccl_close(nccl *n) {
    for (int r = 0, ranks = n ? n->ranks : 0; r < ranks; r++) nccl_leave(n, r);
}

bool nccl_sum(nccl *n, int rank, const void *x, void *y, uint64_t count, int real_bytes, cudaStream_t s) {
    int type = real_bytes == 2 ? NCCL_BF16 : real_bytes == 4 ? NCCL_FLOAT : NCCL_DOUBLE;
    int result = n->all_reduce(x, y, count, type, NCCL_SUM, n->comm[rank], s);
    if (result) n->last = result;
    return !result;
}

bool nccl_group(nccl *n, bool begin) {
    int result = begin ? n->group_start() : n->group_end();
    if (result) n->last = result;
    return !result;
}

const char *nccl_error(const nccl *n) { return n->error_string(n->last); }
