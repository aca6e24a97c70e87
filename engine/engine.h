/* The engine: the DeepSeek-V4.1-Flash text model, its caches and its steps. The only header outsiders include.
 *
 * Ownership   A model owns its weights (mapped or made). An engine borrows a model and owns the KV page pool, the
 *             sequences and all working memory, planned and taken in cedar_engine_open. Pages are reference counted.
 * Threads     One thread at a time per engine. A model may be shared by several engines.
 * Allocation  cedar_engine_step and cedar_engine_draft allocate nothing.
 * Errors      base/status.h. A call that fails leaves the engine as it was.
 * Class       Every operator is D1: the same bits whatever else is in the batch, however a prompt is cut into chunks,
 *             and however many threads run. */
#ifndef CEDAR_ENGINE_ENGINE_H
#define CEDAR_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* --- model shapes ------------------------------------------------------------------------------------------------ */

enum {
    CEDAR_LAYERS_MAX = 128,      /* backbone and draft layers together */
    CEDAR_ENGRAM_LAYERS_MAX = 8,
    CEDAR_NGRAM_MAX = 8,         /* longest Engram n-gram */
    CEDAR_ENGRAM_ROWS_MAX = 64,  /* table rows per token and Engram layer */
    CEDAR_TARGETS_MAX = 8,       /* layers that feed the drafter */
    CEDAR_EXPERTS_PER_TOKEN_MAX = 32,
    CEDAR_HC_MAX = 8,            /* residual streams */
    CEDAR_RATIO_MAX = 8
};

/* A model shape: the published keys of config.json (spec/model.md 1.1) and what follows from them. Layers are numbered
 * over the backbone first, then the draft stages. */
typedef struct cedar_config {
    char name[64];
    int32_t vocab, hidden, layers, heads, head_dim, rope_dim, q_lora, o_groups, o_lora, window;
    int32_t ratio[CEDAR_LAYERS_MAX];            /* [layers + stages] 0 = window only */
    int32_t candidate_source;                   /* layer, or -1 */
    int32_t candidate_blocks, candidate_block;
    int32_t index_heads, index_dim, index_topk;
    double rope_theta, compress_theta;
    double yarn_factor, yarn_beta_fast, yarn_beta_slow;
    int32_t yarn_original;
    int32_t positions_max;
    int32_t eos;                                /* id that ends an answer, -1 = the file names none */
    int32_t experts, experts_per_token, moe_dim;
    double route_scale, swiglu_limit;           /* limit 0 = no clamps */
    int32_t hc, hc_iters;                       /* residual streams, Sinkhorn rounds */
    double hc_eps, norm_eps;
    int32_t engram_layers[CEDAR_ENGRAM_LAYERS_MAX], engram_layer_count;
    int64_t engram_rows[CEDAR_ENGRAM_LAYERS_MAX];               /* table rows per Engram layer */
    int32_t ngram, engram_heads, engram_dim, engram_pad, engram_vocab_compressed;
    int64_t engram_vocab;                                       /* where the prime search starts */
    int64_t engram_mul[CEDAR_ENGRAM_LAYERS_MAX][CEDAR_NGRAM_MAX];
    int64_t engram_prime[CEDAR_ENGRAM_LAYERS_MAX][CEDAR_ENGRAM_ROWS_MAX];   /* (n-gram, head) order */
    int64_t engram_offset[CEDAR_ENGRAM_LAYERS_MAX][CEDAR_ENGRAM_ROWS_MAX];
    int32_t stages, draft_block, draft_noise, markov_rank, draft_experts, draft_experts_per_token;
    int32_t targets[CEDAR_TARGETS_MAX], target_count;
    /* derived */
    int32_t cut;                                /* last KV source; layers before it are the encoder */
    int32_t kv_sources[CEDAR_LAYERS_MAX], kv_source_count;
    bool is_kv_source[CEDAR_LAYERS_MAX], is_index_source[CEDAR_LAYERS_MAX], is_target[CEDAR_LAYERS_MAX];
    int32_t engram_at[CEDAR_LAYERS_MAX];        /* index into engram_layers, or -1 */
    int32_t kv_source_of[CEDAR_LAYERS_MAX];     /* layer whose global KV the layer reads, or -1 */
    int32_t engram_rows_per_token;
    int32_t ratio_lcm;
} cedar_config;

/* Reads config.json (a file, or a checkpoint directory holding one) and checks every assumption of the model; a
 * violation is CEDAR_E_FORMAT and names the key. */
cedar_status cedar_config_load(const char *path, cedar_config *out, cedar_err *err) CEDAR_USE_RESULT;

/* --- weights ----------------------------------------------------------------------------------------------------- */

typedef struct cedar_model cedar_model;

/* Maps a checkpoint in the official layout: config.json, model.safetensors or shards with
 * model.safetensors.index.json, token_map.bin (int32 LE [vocab]; absent: identity modulo the compressed vocabulary).
 * Missing, extra or misshapen tensors, truncated files and NaN scales are CEDAR_E_FORMAT with the tensor's name. */
cedar_status cedar_model_open(const char *dir, cedar_model **out, cedar_err *err) CEDAR_USE_RESULT;

/* Makes seeded weights for any shape, in memory. bytes_max: refuse (CEDAR_E_BUDGET) above it. */
cedar_status cedar_model_synth(const cedar_config *config, uint64_t seed, uint64_t bytes_max, cedar_model **out,
                               cedar_err *err) CEDAR_USE_RESULT;

/* A model whose weights the backend makes on its device from the seed: the same bits as cedar_model_synth, without host
 * memory. For backends that can ("cuda"). */
cedar_status cedar_model_seeded(const cedar_config *config, uint64_t seed, cedar_model **out,
                                cedar_err *err) CEDAR_USE_RESULT;

/* A model without weights, for the backend "none" and modelled time. */
cedar_status cedar_model_shape(const cedar_config *config, cedar_model **out, cedar_err *err) CEDAR_USE_RESULT;

/* Writes a model as a checkpoint directory (one safetensors file); the directory is created and must be empty or
 * new. */
cedar_status cedar_model_save(const cedar_model *m, const char *config_json, const char *dir,
                              cedar_err *err) CEDAR_USE_RESULT;

void cedar_model_close(cedar_model *m);
const cedar_config *cedar_model_config(const cedar_model *m);
const int32_t *cedar_model_token_map(const cedar_model *m);     /* [vocab] raw -> compressed id */

/* Hash of the model: SHA-256 over names, types, shapes and bytes of all tensors and the token map. Reads everything. */
void cedar_model_hash(const cedar_model *m, char out[65]);

/* --- step plans (design: the heart) ------------------------------------------------------------------------------- */

/* Where decoder replay cuts (spec/replay.md 2.2). The cut layer is the last KV source. */
typedef enum cedar_cut {
    CEDAR_CUT_AFTER,        /* the cut layer runs on all rows */
    CEDAR_CUT_INSIDE,       /* it writes window and global KV of all rows; the rest of it runs on kept rows */
    CEDAR_CUT_INSIDE_CLIP   /* as INSIDE, and its window too is written and read from the first kept row only */
} cedar_cut;

/* What is approximated, for all sequences of a run. */
typedef struct cedar_replay_rules {
    uint32_t window;            /* W of the model */
    bool decoder, encoder;      /* decoder replay in prefill; encoder replay after prefix hits */
    cedar_cut cut;
    uint32_t encoder_rows;      /* rows replayed before a hit's end; W by default */
    uint32_t decoder_rows;      /* rows kept behind the cut; W by default */
    bool adopt_short_hits;      /* true: a hit <= encoder_rows replays from 0; false: it is not adopted (vLLM) */
} cedar_replay_rules;

/* What a prefix hit of `hit` tokens becomes under encoder replay (spec/replay.md 1.2, 1.12). */
typedef struct cedar_hit_plan {
    uint32_t hit;               /* tokens whose global rows are adopted; 0 = the hit is not used */
    uint32_t start;             /* S: first position to feed; window_lo of the sequence */
    uint32_t replayed;          /* hit - start rows that are fed again */
    uint32_t write_floor;       /* global rows whose last position is below it are never written */
} cedar_hit_plan;

cedar_hit_plan cedar_plan_hit(const cedar_replay_rules *rules, uint32_t hit);

typedef enum cedar_rows_kind { CEDAR_ROWS_PREFILL, CEDAR_ROWS_DECODE, CEDAR_ROWS_VERIFY } cedar_rows_kind;

/* Window bounds of a sequence: first position a row may read, by layer group. They never decrease. */
typedef struct cedar_bounds {
    uint32_t lo_encoder;        /* layers before the cut */
    uint32_t lo_cut;            /* the cut layer */
    uint32_t lo_late;           /* layers behind the cut, and the draft rings */
} cedar_bounds;

/* One sequence's part of a step. */
typedef struct cedar_plan_entry {
    int32_t seq;
    cedar_rows_kind kind;
    uint32_t pos;               /* position of the first row */
    uint32_t rows;              /* rows fed */
    uint32_t kept;              /* last rows that run behind the cut; == rows when not trimmed */
    uint32_t replayed;          /* leading rows that only rebuild windows (position < write_floor) */
    uint32_t write_floor;
    uint32_t logits;            /* last rows whose logits are wanted, <= kept */
    cedar_bounds bounds;        /* in force for this step */
    const int32_t *tokens;      /* [rows] borrowed until the step returns */
} cedar_plan_entry;

typedef struct cedar_step_plan {
    cedar_cut cut;
    uint32_t entry_count, rows, kept, logits;   /* totals over the entries */
    bool trimmed;                               /* some entry keeps fewer rows than it feeds */
    cedar_plan_entry *entries;                  /* [entry_count] borrowed */
} cedar_step_plan;

/* Fills `entry` for `rows` tokens of a sequence at `pos` with bounds `now` and write floor `write_floor`. Pure.
 * prompt_logprobs: the rows are never trimmed (spec/replay.md 2.5). logits: how many last rows want logits. */
void cedar_plan_rows(const cedar_replay_rules *rules, cedar_rows_kind kind, uint32_t pos, uint32_t rows,
                     cedar_bounds now, uint32_t write_floor, bool prompt_logprobs, uint32_t logits,
                     cedar_plan_entry *entry);

/* Sums the entries into the plan's totals. */
void cedar_plan_total(cedar_step_plan *plan);

/* Indices of the rows that run behind the cut, in step order, and the first of each entry in them.
 * kept_rows [plan->kept], first_kept [entry_count + 1]. */
void cedar_plan_kept_rows(const cedar_step_plan *plan, uint32_t *kept_rows, uint32_t *first_kept);

/* Next chunk of a prefill that has `left` rows to feed under a budget; 0 = wait for a fresh budget. `min_last`: a final
 * chunk may not be shorter (0 = no such rule; tokenspeed uses W, spec/replay.md 2.4). */
uint32_t cedar_plan_chunk(uint32_t left, uint32_t budget, uint32_t min_last);

/* Replay lengths that reproduce exact results (spec/replay.md 3.1, X2 and X3). */
uint32_t cedar_halo_encoder(const cedar_config *c);                  /* (W-1) * layers */
uint32_t cedar_halo_decoder(const cedar_config *c, cedar_cut cut);   /* W + (J-1)*(W-1), J clipped layers */

/* --- engines ------------------------------------------------------------------------------------------------------ */

typedef enum cedar_arith {
    CEDAR_WIDE,     /* double; only the model's own quantisers round: the truth */
    CEDAR_F32,      /* float */
    CEDAR_BF16      /* float, rounded to bf16 where the vendor's reference rounds */
} cedar_arith;

typedef struct cedar_engine cedar_engine;
typedef struct cedar_snap cedar_snap;       /* stored windows of one sequence at one position */

enum { CEDAR_GPUS_MAX = 64 };

/* How several GPUs add their parts of a layer's output. */
typedef enum cedar_allreduce {
    CEDAR_ALLREDUCE_PLAIN,      /* peer to peer, a kernel of its own */
    CEDAR_ALLREDUCE_FUSED,      /* the same with the kernels behind it in one launch, where a step has few rows */
    CEDAR_ALLREDUCE_NCCL
} cedar_allreduce;

typedef struct cedar_engine_opts {
    const char *backend;        /* "cpu", "cuda", "auto" (a GPU if there is one), "none" (no numerics) */
    cedar_arith arith;
    uint32_t threads;           /* 0 = all processors online */
    uint32_t page_tokens;       /* tokens per KV page; a multiple of every compression ratio */
    uint32_t page_count;        /* pages in the pool */
    uint32_t seq_count;         /* sequences open at once */
    uint32_t context_tokens;    /* longest sequence */
    uint32_t step_rows;         /* most rows in one step */
    uint32_t step_seqs;         /* most entries in one step */
    uint32_t verify_rows;       /* most rows cedar_seq_truncate may take back */
    bool wo_a_fp8;              /* deployment variant: quantise the input of wo_a with FP8Q32 (spec/model.md 2.8) */
    bool eager;                 /* GPU backends: launch kernels one by one instead of as graphs */
    uint32_t gpus;              /* ranks that compute together, 0 = 1; on the CPU: that many groups of threads */
    cedar_allreduce allreduce;  /* GPU backends with gpus > 1; the CPU has one way */
    bool one_stream;            /* GPU backends: nothing runs on side streams */
    const volatile int *stop;   /* NULL, or borrowed: once not zero, ranks on the CPU wait less for a late one */
    uint64_t weight_cache_bytes;/* decode weights ahead if they fit this; else per use. Same bits either way. */
} cedar_engine_opts;

/* What an engine will allocate, before it does (bytes). */
typedef struct cedar_memory_plan {
    uint64_t tensor_count, tensor_count_draft;  /* stored tensors, scales included; of them draft */
    uint64_t parameters, parameters_engram, parameters_draft;   /* all; of them Engram tables, draft stages */
    uint64_t weight_bytes;                      /* the checkpoint: all text tensors */
    uint64_t expert_bytes, draft_bytes, engram_table_bytes, attention_bytes, shared_bytes, embed_head_bytes,
             hc_bytes, other_bytes;             /* parts of weight_bytes */
    uint64_t elements_f8, elements_fp4, elements_bf16, elements_f32;
    uint64_t kv_entry_bytes, index_entry_bytes; /* one global entry */
    uint64_t kv_token_bytes_x1000;              /* global KV and index keys per token, times 1000 */
    uint64_t window_layer_bytes;                /* W rows of one layer */
    uint64_t window_bytes, draft_ring_bytes;    /* per sequence: all backbone layers, all draft stages */
    uint64_t open_group_bytes;                  /* per sequence, 4-byte floats */
    uint64_t verify_slack_bytes;                /* per sequence: ring and open-group slots for verify_rows */
    uint64_t page_bytes, pool_bytes;            /* as allocated */
    uint64_t seq_bytes;                         /* per sequence, as allocated, without pages */
    uint64_t workspace_bytes;
    uint64_t total_bytes;                       /* weights + pool + sequences + workspace; of all ranks together */
    /* of the rank that needs most; with gpus = 1 the same as those of the whole */
    uint64_t rank_weight_bytes, rank_pool_bytes, rank_workspace_bytes, rank_bytes;
} cedar_memory_plan;

/* Works without opening anything; opts may be NULL (then only the parts that depend on the shape are filled). */
cedar_status cedar_plan_memory(const cedar_config *c, const cedar_engine_opts *opts, cedar_memory_plan *out,
                               cedar_err *err) CEDAR_USE_RESULT;

/* Sensible options for a shape: page_tokens 64, one sequence of context_tokens. */
cedar_engine_opts cedar_engine_defaults(const cedar_config *c);

cedar_status cedar_engine_open(const cedar_model *model, const cedar_engine_opts *opts, cedar_engine **out,
                               cedar_err *err) CEDAR_USE_RESULT;
/* Waits a while for ranks that a failed step left behind. One that has not come back then may still read everything, so
 * the memory of the engine and of its model stays until the program ends (cedar_model_close then does nothing): that
 * is CEDAR_E_LIVENESS, and a sentence, behind the one that err holds if it holds one. The program should end. */
cedar_status cedar_engine_close(cedar_engine *e, cedar_err *err);
const cedar_engine_opts *cedar_engine_options(const cedar_engine *e);

/* Refuses more GPUs than the machine has. An engine does not: several ranks may share one, for tests. */
cedar_status cedar_engine_gpus_check(const char *backend, uint32_t gpus, cedar_err *err) CEDAR_USE_RESULT;

/* What an engine computes on: "NVIDIA H200", "2 x NVIDIA H200", "2 ranks" of a CPU, or "". */
enum { CEDAR_DEVICE_BYTES = 128 };
void cedar_device_name(const char *backend, uint32_t gpus, char out[CEDAR_DEVICE_BYTES]);

/* Sequences. A handle is 0 .. seq_count-1. */
/* CEDAR_E_BUSY if none is free */
cedar_status cedar_seq_open(cedar_engine *e, int32_t *seq, cedar_err *err) CEDAR_USE_RESULT;
void cedar_seq_close(cedar_engine *e, int32_t seq);                         /* releases its pages */
uint32_t cedar_seq_pos(const cedar_engine *e, int32_t seq);                 /* tokens committed */
uint32_t cedar_seq_write_floor(const cedar_engine *e, int32_t seq);
cedar_bounds cedar_seq_bounds(const cedar_engine *e, int32_t seq);
const int32_t *cedar_seq_tokens(const cedar_engine *e, int32_t seq);        /* [pos] */
const int32_t *cedar_seq_pages(const cedar_engine *e, int32_t seq, uint32_t *count);

/* Encoder replay: adopts cached global rows. `seq` is fresh. `pages` hold the rows of tokens [0, hit.hit); each is
 * retained; a last page that is not full is copied, since it will be written. `tokens` [hit.hit]. Afterwards the
 * sequence is at hit.start with all bounds there, and tokens from hit.start on must be fed. */
cedar_status cedar_seq_adopt(cedar_engine *e, int32_t seq, const int32_t *tokens, const int32_t *pages,
                             const cedar_hit_plan *hit, cedar_err *err) CEDAR_USE_RESULT;

/* Exact restore: global rows from `pages` and windows from a snapshot taken at position hit. */
cedar_status cedar_seq_restore(cedar_engine *e, int32_t seq, const int32_t *tokens, const int32_t *pages,
                               uint32_t hit, const cedar_snap *snap, cedar_err *err) CEDAR_USE_RESULT;

/* Takes pages so that the sequence can grow to `tokens`. CEDAR_E_BUSY when the pool is empty, CEDAR_E_ARG beyond
 * context_tokens; nothing is taken then. */
cedar_status cedar_seq_reserve(cedar_engine *e, int32_t seq, uint32_t tokens, cedar_err *err) CEDAR_USE_RESULT;

/* Rolls back to `tokens` (rejected drafts), at most verify_rows below the highest position reached. */
cedar_status cedar_seq_truncate(cedar_engine *e, int32_t seq, uint32_t tokens, cedar_err *err) CEDAR_USE_RESULT;

/* Stored windows: copies all rings, draft rings and open groups at the current position. */
cedar_status cedar_snap_save(const cedar_engine *e, int32_t seq, cedar_snap **out, cedar_err *err) CEDAR_USE_RESULT;
uint32_t cedar_snap_pos(const cedar_snap *s);
/* W rows per layer and stage, open groups: what a cache must store */
uint64_t cedar_snap_bytes(const cedar_snap *s);
void cedar_snap_free(cedar_snap *s);

/* Pages of the pool, for a prefix cache. A page in use has a count of at least 1. */
void cedar_page_retain(cedar_engine *e, int32_t page);
void cedar_page_release(cedar_engine *e, int32_t page);
uint32_t cedar_pages_free(const cedar_engine *e);
uint64_t cedar_page_bytes(const cedar_engine *e);

/* Results of a step; buffers are the caller's. Rows in plan order, the last `logits` rows of each entry. */
typedef struct cedar_step_out {
    float *logits;              /* [plan->logits, vocab]; NULL = not wanted */
    int32_t *argmax;            /* [plan->logits] greedy token, lowest id on ties; NULL = not wanted */
    int64_t duration_ns;        /* out: plan ready to results on the host, monotonic clock */
} cedar_step_out;

/* Executes a plan whose entries were made with cedar_plan_rows from the sequences' present state, and whose positions
 * have pages (cedar_seq_reserve). At most one entry per sequence. */
cedar_status cedar_engine_step(cedar_engine *e, const cedar_step_plan *plan, cedar_step_out *out,
                               cedar_err *err) CEDAR_USE_RESULT;

/* DSpark (spec/model.md 2.11): drafts after the committed tokens, `token` being the one sampled next. Changes
 * nothing. */
typedef struct cedar_draft_item {
    int32_t seq, token;
    /* [block] continue the Markov chain with these instead of the greedy ids; may be NULL */
    const int32_t *forced;
    int32_t *ids;               /* out [block] greedy ids */
    float *logits;              /* out [block, vocab] or NULL */
    float *confidence;          /* out [block] logits of the predicted acceptance, or NULL */
} cedar_draft_item;

cedar_status cedar_engine_draft(cedar_engine *e, cedar_draft_item *items, uint32_t count,
                                cedar_err *err) CEDAR_USE_RESULT;

/* --- looking inside (golden checks, audit) ------------------------------------------------------------------------ */

typedef enum cedar_tap_kind {
    CEDAR_TAP_H,            /* streams after a block            double [hc * hidden] */
    CEDAR_TAP_PRE,          /* pre that the block returns       double [hc] */
    CEDAR_TAP_LATENT,       /* source, per entry; pos = entry   double [head_dim] */
    CEDAR_TAP_SCORES,       /* before the pool mask; width = entries visible to the row   double [width] */
    CEDAR_TAP_TOPK,         /* ascending entries, -1 padded     int32 [index_topk] */
    CEDAR_TAP_POOL,         /* 0/1 per visible entry            uint8 [width] */
    CEDAR_TAP_ROUTER_IDS,   /* ascending                        int32 [experts_per_token] */
    CEDAR_TAP_ROUTER_W,     /*                                  double [experts_per_token] */
    CEDAR_TAP_ENGRAM_ROWS,  /* absolute table rows              int64 [engram_rows_per_token] */
    CEDAR_TAP_WINDOW,       /* FP8 codes, then scales           uint8 [head_dim + head_dim/32] */
    CEDAR_TAP_RING,         /* draft ring row, layer = stage    uint8 [head_dim + head_dim/32] */
    CEDAR_TAP_KIND_COUNT
} cedar_tap_kind;

/* Called once per row, from one thread (with gpus > 1 not the caller's), in ascending (entry, row) order within a kind
 * and layer. */
typedef void (*cedar_tap_fn)(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos,
                             const void *data, uint32_t width);

/* Sets (NULL: clears) the tap. With a tap set, steps run on one thread. */
void cedar_engine_tap(cedar_engine *e, cedar_tap_fn fn, void *self);

/* Replaces the input of a layer: called once per row before layer `layer` >= 1 with its streams h [hc * hidden] and pre
 * [hc], which the hook may overwrite (then it returns true). Lets an engine be checked one block deep. */
typedef bool (*cedar_inject_fn)(void *self, int32_t layer, int32_t seq, uint32_t pos, double *h, double *pre);
void cedar_engine_inject(cedar_engine *e, cedar_inject_fn fn, void *self);

/* Packed bytes of global entries [first, first + count) of a KV source: kv records [count, head_dim/2 + head_dim/16]
 * and index records [count, index_dim/2 + index_dim/32], codes then scales; either pointer may be NULL. */
cedar_status cedar_engine_read_global(const cedar_engine *e, int32_t seq, int32_t layer, uint32_t first, uint32_t count,
                                      uint8_t *kv, uint8_t *index, cedar_err *err) CEDAR_USE_RESULT;

/* Compressor input of an uncommitted group's position: kvf and score, [head_dim] each. */
cedar_status cedar_engine_read_open(const cedar_engine *e, int32_t seq, int32_t layer, uint32_t pos, double *kvf,
                                    double *score, cedar_err *err) CEDAR_USE_RESULT;

/* Deliberate faults, for audits that must show that they see one (spec/replay.md 4.4, C4 and C5). */

/* As cedar_seq_adopt, but without the clip: rows below hit->start are readable and come from `windows`, which may
 * belong to any sequence; it must have been stored at position hit->start. */
cedar_status cedar_seq_adopt_unclipped(cedar_engine *e, int32_t seq, const int32_t *tokens, const int32_t *pages,
                                       const cedar_hit_plan *hit, const cedar_snap *windows,
                                       cedar_err *err) CEDAR_USE_RESULT;

typedef enum cedar_snap_damage {
    CEDAR_SNAP_ZERO,        /* every window row becomes 0 */
    CEDAR_SNAP_COARSE       /* codes lose their last mantissa bit, E4M3 becomes E4M2: to nearest, ties to even */
} cedar_snap_damage;

/* Changes the stored windows; open groups stay. */
void cedar_snap_damage_windows(const cedar_engine *e, cedar_snap *s, cedar_snap_damage damage);

/* Overwrites with NaN codes every ring slot that no row at or after the present position may read (tests, I2). */
void cedar_engine_poison(cedar_engine *e, int32_t seq);

/* --- golden vectors ----------------------------------------------------------------------------------------------- */

struct cedar_tape;

typedef struct cedar_golden_opts {
    const char *backend;
    cedar_arith arith;
    uint32_t threads, gpus;
    bool verbose;                               /* report passes too */
    void (*line)(void *self, bool ok, const char *text);    /* one line per quantity and case */
    void *self;
    /* for tests, NULL otherwise: the checkpoint of the engine under test, where decisions are recorded with that of the
     * directory; and a look at each tape before it is followed */
    const char *tested;
    void (*recorded)(void *self, struct cedar_tape *tape);
} cedar_golden_opts;

/* Runs a golden directory (checkpoint, golden.safetensors, manifest.json). *failed: quantities that miss. */
cedar_status cedar_golden_check(const char *dir, const cedar_golden_opts *opts, uint32_t *checked, uint32_t *failed,
                                cedar_err *err) CEDAR_USE_RESULT;

#endif
