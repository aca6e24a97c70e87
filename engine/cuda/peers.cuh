/* Private to engine/cuda: exchange between the ranks of an engine (engine/ranks.h) by peer access: sums of partial
 * outputs, columns of the head, and meetings. Ranks have GPUs of their own, or, for tests, share some.
 *
 * Protocol    Every rank has an inbox that the others write into. A word of all ones means that nothing has come yet;
 *             no partial sum is stored so (a NaN is canonical). The reader takes a word as soon as it is there and puts
 *             all ones back. An inbox has two halves, for even and odd exchanges: whoever writes exchange e + 1 has
 *             read e of all others, so these are done with e - 1, which used the same half. Exchanges are counted in
 *             device memory, by the kernels, so that a captured graph can be launched again and again.
 * Order       All ranks launch the same exchanges in the same order on one stream each. Meetings count for themselves
 *             and may be on another stream.
 * Class       D1: parts are added in rank order in fp32 (or the real type), and rounded once: the same bits on all
 *             ranks, in either way of summing, whatever is in the batch.
 * Waiting     has a limit. After it the kernels go on with what there is, the rank that was waited for is written to
 *             the host (peers_fault), and later waits of that rank return at once: its results are void. */
#ifndef CEDAR_ENGINE_CUDA_PEERS_CUH
#define CEDAR_ENGINE_CUDA_PEERS_CUH

#include "engine/cuda/ops.cuh"

/* Counters of a rank, in its device memory. */
struct peer_state {
    uint32_t exchanges, tickets;        /* exchanges done; blocks of the present one that are */
    uint32_t meetings;
    uint32_t broken;                    /* a wait ran out */
};

/* What kernels see; passed by value. */
struct peers {
    int rank, ranks;
    int blocks;                         /* of a launch, at most: few where ranks share a GPU, since blocks that wait for
                                         * another rank's kernels must leave them room */
    bool early;                         /* the next kernel may begin while this one waits */
    unsigned long long limit_ns;
    uint64_t half_bytes;                /* of an inbox */
    uint8_t *inbox[CEDAR_CUDA_RANKS_MAX];       /* [2, half_bytes] of each rank */
    uint32_t *flags[CEDAR_CUDA_RANKS_MAX];      /* [ranks] of each rank: meetings that the others have come to */
    peer_state *state;
    volatile unsigned long long *fault; /* [2] in host memory: what went wrong; not 0: stop waiting */
};

/* A rank's end of the exchange. Owns the inbox and the counters. */
struct peer_link {
    peers p;
    int device;
    uint8_t *memory;
    volatile unsigned long long *fault; /* [2] on the host: 0, or 1 << 63 | rank waited for << 32 | exchange; stop */
};

/* On the current device. shared: another rank has the same one. */
cudaError_t peers_open(peer_link *l, int rank, int ranks, bool shared, uint64_t half_bytes);
/* When all are open, and before the first exchange of any; peer access is switched on here. */
cudaError_t peers_connect(peer_link *l, peer_link *const *all);
/* When no rank exchanges any more. */
void peers_close(peer_link *l);
/* The rank that this one waited for in vain, or -1. */
int peers_fault(const peer_link *l);
/* Ends this rank's waits, as if they had run out. */
void peers_stop(peer_link *l);

/* Bytes of half an inbox for sums of up to `rows` rows of `row_bytes` each. */
uint64_t peers_sum_bytes(int ranks, uint32_t rows, uint64_t row_bytes);

/* In one step every rank gets the parts of all and adds them; in two each adds a share, which the others then get. Up
 * to some rows the first is faster; SUM_AS_MEASURED knows (peers_one_step; `cedar bench gpu` has rows of both). */
enum sum_way { SUM_AS_MEASURED, SUM_ONE_STEP, SUM_TWO_STEPS };
bool peers_one_step(int ranks, uint32_t rows, sum_way way);

/* out [rows, width] = sum of the ranks' parts, bf16; part NULL: zeros. width a multiple of 8. */
void peers_sum(const peers &p, const uint16_t *part, uint32_t rows, int width, uint16_t *out, sum_way way, chain s);
/* A part is the sum of a row's pairs, m.ids and m.out (bf16), rounded to bf16. */
void peers_sum_experts(const peers &p, const dev_moe &m, uint32_t rows, int width, uint16_t *out, sum_way way, chain s);
/* In place, in the real type; none: this rank's part is zero whatever is in y. */
template <class R>
void peers_sum_reals(const peers &p, R *y, bool none, uint32_t rows, int width, sum_way way, cudaStream_t s);

/* Columns [first[r], first[r + 1]) of out [rows, width] are rank r's part [rows, its columns]. */
struct peer_columns { int first[CEDAR_CUDA_RANKS_MAX + 1]; };
template <class R>
void peers_gather(const peers &p, const R *part, uint32_t rows, const peer_columns &c, R *out, cudaStream_t s);

/* What the ranks wrote before, to whichever memory, is visible to all of them after it. */
void peers_meet(const peers &p, cudaStream_t s);

/* --- NCCL, loaded when it is asked for ---------------------------------------------------------------------------- */

struct nccl;
/* For all ranks at once; devices [ranks] are distinct. Sums of up to `bytes` are connected here. Another device may be
 * the current one afterwards. */
cedar_status nccl_open(int ranks, const int *devices, uint64_t bytes, nccl **out, cedar_err *err);
/* By this rank's thread, when no graph of it holds a sum: ends its sums that wait for others. It makes no more. */
void nccl_stop(nccl *n, int rank);
/* The same, and the last rank to leave closes n. nccl_close: all leave. */
void nccl_leave(nccl *n, int rank);
void nccl_close(nccl *n);
/* Sum of the ranks' x [count] into y. real_bytes: 2 is bf16. False: it failed (nccl_error). */
bool nccl_sum(nccl *n, int rank, const void *x, void *y, uint64_t count, int real_bytes, cudaStream_t s);
/* Around calls for several ranks by one thread. */
bool nccl_group(nccl *n, bool begin);
const char *nccl_error(const nccl *n);

#endif
