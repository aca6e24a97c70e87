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
    int ranks, last;                    /* last: a result that was not 0 */
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

cedar_status nccl_open(int ranks, const int *devices, nccl **out, cedar_err *err) {
    nccl *n = (nccl *)cedar_calloc(1, sizeof *n);
    if (!n) return cedar_fail(err, CEDAR_E_OOM, "no memory for NCCL");
    cedar_status st = find_all(n, err);
    if (!st && (n->last = n->init_all(n->comm, ranks, devices)))
        st = cedar_fail(err, CEDAR_E_NCCL, "NCCL cannot connect %d GPUs: %s", ranks, n->error_string(n->last));
    if (st) {
        nccl_close(n);
        return st;
    }
    n->ranks = ranks;
    *out = n;
    return CEDAR_OK;
}

/* Ends what is still under way: a rank may wait for one that failed. */
void nccl_close(nccl *n) {
    if (!n) return;
    for (int r = 0; r < n->ranks; r++) n->abort(n->comm[r]);
    if (n->library) dlclose(n->library);
    cedar_free(n);
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
