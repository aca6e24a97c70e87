/* Private to engine/cuda: launchers, one per operator. Each checks nothing, allocates nothing and does not wait; launch
 * errors are read once per step (backend.cu). `n` rows are those of d.active[0 .. n). All are class D1. */
#ifndef CEDAR_ENGINE_CUDA_OPS_CUH
#define CEDAR_ENGINE_CUDA_OPS_CUH

#include "engine/cuda/cuda_int.cuh"

struct hc_site { dev_weight fn, base, scale; };

/* Source or destination of a linear layer: row i is at base + row(i) * ld reals; indexed rows go through d.active. */
struct dev_rows {
    void *base;
    int64_t ld;
    bool indexed;
};

/* synth.cu: seeded weights, the same bits as engine/synth.c; recipe on the device */
void launch_synth(const cedar_synth_recipe *recipe, const dev_weight &w, uint8_t *data, uint8_t *scale,
                  uint64_t scale_count, cudaStream_t s);

/* spread.cu: codes of an FP8 or FP4 weight as they were stored, at a multiple of 8 bytes and in rows of whole eights,
 * to what kernels decode; other kinds stay as they are */
void launch_spread(int kind, uint8_t *codes, uint64_t bytes, cudaStream_t s);

/* inputs.cu: arrays of words and page tables from pinned host memory to the device */
enum { INPUT_ARRAYS = 7 };
struct dev_inputs {
    struct words {
        uint32_t *to;
        const uint32_t *from;
        uint32_t count;
    } array[INPUT_ARRAYS];
    uint32_t arrays;
    /* pages [entries, pages_per_seq] of the entries' sequences, of which page_count [entries] are there, at most
     * pages_most, to page_table [sequence, pages_per_seq] */
    uint32_t entries, pages_per_seq, pages_most;
    const dev_entry *entry;
    const uint32_t *page_count;
    const int32_t *pages;
    int32_t *page_table;

    void add(void *to, const void *from, uint64_t bytes) {
        CEDAR_ASSERT(arrays < INPUT_ARRAYS);
        array[arrays++] = words{ (uint32_t *)to, (const uint32_t *)from, (uint32_t)(bytes / 4) };
    }
};
void launch_inputs(const dev_inputs &in, cudaStream_t s);

/* streams.cu: embedding, mHC, norms */
/* rotation tables */
template <class A> void launch_begin(const dev &d, uint32_t n, const double *freq, cudaStream_t s);
template <class A> void launch_embed(const dev &d, uint32_t n, const dev_weight &embed, cudaStream_t s);
template <class A> void launch_hc(const dev &d, uint32_t n, const hc_site &site, void *pre, chain s);
/* x = norm(collapse(h, pre)), and its FP8 round trip xq; out_indexed: rows of x by row id, else by place in the
 * list. */
template <class A>
void launch_collapse(const dev &d, uint32_t n, const void *pre, const dev_weight &gain, void *x, void *xq,
                     bool out_indexed, cudaStream_t s);
template <class A> void launch_expand(const dev &d, uint32_t n, const void *y, cudaStream_t s);        /* y by place */
template <class A>
void launch_norm(const dev &d, uint32_t n, const dev_weight &gain, void *x, int64_t width, void *xq, cudaStream_t s);
/* blocks of 32 */
template <class A> void launch_quantise(const void *x, void *xq, int64_t blocks, cudaStream_t s);
/* *digest = a hash of the rows' streams, whatever their order. */
void launch_digest(const dev &d, uint32_t n, unsigned long long *digest, cudaStream_t s);
template <class A> void launch_feature(const dev &d, uint32_t n, int slot, cudaStream_t s);

/* linear.cu: y = x W^T; rounded to bf16 in that arithmetic if `round` */
template <class A> void launch_linear(const dev &d, uint32_t n, const dev_weight &w, int64_t n_first, int64_t n_count,
                                      const dev_rows &x, const dev_rows &y, bool round, cudaStream_t s);

/* engram.cu */
template <class A>
void launch_engram_rows(const dev &d, uint32_t n, int slot, const int64_t *mul, const int64_t *prime,
                        const int64_t *offset, int32_t pad, const dev_weight &embed, void *e, chain s);
template <class A>
void launch_engram_gate(const dev &d, uint32_t n, const dev_weight &q, const dev_weight &k, const void *kv, chain s);

/* attention.cu */
template <class A>
void launch_rope_heads(const dev &d, uint32_t n, void *q, int heads, int width, int kind, int sign, cudaStream_t s);
/* kv [place, head_dim] -> norm, rope, FP8 record of the row */
template <class A>
void launch_window_rows(const dev &d, uint32_t n, const dev_weight &gain, const void *kv, int kind, chain s);
/* The same straight into the draft ring (ring index `ring`), for rows a ring still holds. */
template <class A> void launch_commit_ring(const dev &d, uint32_t n, uint32_t ring, cudaStream_t s);
template <class A>
void launch_attention(const dev &d, uint32_t n, int layer, int part, int lo_kind, void *q, const dev_weight &sink,
                      cudaStream_t s);
template <class A>
void launch_draft_attention(const dev &d, uint32_t rows, int32_t seq, uint32_t lo, uint32_t pos, int ring, void *q,
                            const dev_weight &sink, cudaStream_t s);
void launch_commit_windows(const dev &d, uint32_t entries, int layer, int lo_kind, cudaStream_t s);

/* compress.cu */
template <class A>
void launch_comp_store(const dev &d, uint32_t n, const void *kv, int half, bool round, cudaStream_t s);
/* Entries that the rows complete; latents [place, head_dim], or NULL. */
template <class A>
void launch_groups(const dev &d, uint32_t n, int part, int ratio, const dev_weight &norm, const dev_weight &wk,
                   const dev_weight &k_norm, const double *freq, void *latents, cudaStream_t s);
template <class A> void launch_commit_open(const dev &d, uint32_t entries, int part, cudaStream_t s);

/* indexer.cu */
/* iq [place, heads, dim] -> rotated, and of that the FP4Q32 values; g [place, heads] scaled. The one kernel before
 * either in s may still run when it begins, but not one before that. */
template <class A> void launch_index_query(const dev &d, uint32_t n, void *iq, chain s);
template <class A> void launch_index_gates(const dev &d, uint32_t n, void *g, chain s);
template <class A>
void launch_scores(const dev &d, uint32_t first, uint32_t n, const void *iq, const void *g, int part, int ratio,
                   bool pooled, cudaStream_t s);
/* The one kernel before in s may still write scores, but not rows or pools: those are read before it has ended. */
template <class A> void launch_select(const dev &d, uint32_t first, uint32_t n, int ratio, bool pooled, chain s);
template <class A> void launch_pool(const dev &d, uint32_t first, uint32_t n, int ratio, chain s);

/* moe.cu */
struct dev_moe {
    const dev_weight *w1, *w2, *w3;     /* [experts] on the device */
    dev_weight shared1, shared2, shared3, bias, gate;
    int experts, per_token, moe_dim;
    double route_scale, limit;
    void *z;                            /* [n, experts] */
    int32_t *ids;                       /* [n, per_token] ascending */
    void *weight;                       /* [n, per_token] */
    void *a, *b, *aq;                   /* [n, per_token + 1, moe_dim] */
    void *out;                          /* [n, per_token + 1, hidden] */
};
template <class A> void launch_moe(const dev &d, uint32_t n, const dev_moe &m, const void *xq, void *y, cudaStream_t s);
/* Its parts around the matrices. */
template <class A> void launch_route(uint32_t n, const dev_moe &m, chain s);

/* head.cu */
template <class A>
void launch_logits(const dev &d, uint32_t n, const void *y, float *logits, int32_t *argmax, int vocab, chain s);
template <class A>
void launch_markov(const dev &d, int vocab, const void *base, const void *extra, float *logits, int32_t *id,
                   cudaStream_t s);
template <class A>
void launch_row(const dev &d, const dev_weight &w, const int32_t *id, int forced, void *out, cudaStream_t s);
template <class A>
void launch_confidence(const dev &d, const dev_weight &w, const void *y, const void *e, int rank, float *out,
                       cudaStream_t s);

#define CEDAR_ARITHMETICS(instantiate) instantiate(wide) instantiate(f32) instantiate(bf16)

#endif
