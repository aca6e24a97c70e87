/* The cost model: what a step plan takes on described hardware, in whole nanoseconds, without any numerics.
 *
 * The price of a step: for each group of layers the larger of weight bytes over bandwidth and matrix operations over
 * rate, and what of the smaller does not hide in it (`overlap`); the larger of the two for attention and for index
 * scores of each layer; residual streams; then the head, launches, all-reduces, the drafter, and the host's work.
 * Layers that are launched kernel by kernel take the larger of the host's launches and the device's work, since the
 * host launches ahead. Nothing else overlaps. It is a model (docs/MODELLED.md): figures made with it are
 * marked "modelled" wherever they appear.
 * Determinism: +, -, *, / and comparisons of doubles only, rounded once: the same integer on every machine.
 * Threads: pure functions. Allocation: none. */
#ifndef CEDAR_SIM_COST_H
#define CEDAR_SIM_COST_H

#include "engine/engine.h"

/* Hardware as scenarios/hardware/NAME.lua describes it; rates are of one GPU, before the efficiencies. */
typedef struct cedar_hardware {
    char name[64];
    double gpus;                    /* that serve one replica together */
    double attention_ranks;         /* groups of GPUs that have all but routed experts, and sequences of their own */
    double hbm_bytes;               /* per GPU */
    double copy_bytes_s;            /* bytes read plus written by a large copy */
    double matmul_flop_s;           /* dense layers and experts */
    double attention_flop_s;        /* sparse attention core */
    double indexer_flop_s;          /* index scores */
    double memory_efficiency;       /* share of copy_bytes_s that weight and cache reads reach */
    double matmul_efficiency, attention_efficiency, indexer_efficiency;
    double overlap;                 /* share of the shorter of weight reads and matrix operations that costs nothing */
    double kernels_per_layer;       /* launches of one layer */
    double fused_kernels_per_layer; /* the same with fused kernels; 0 = not described, as with the next four */
    double side_stream_kernels;     /* launches of a layer that a second stream hides */
    double fused_allreduce_ns;      /* one all-reduce with the mHC kernel behind it in one */
    double fused_allreduce_kernels; /* launches of a layer that this saves */
    double fused_allreduce_rows;    /* most rows that it takes; 0 = any */
    double stream_passes;           /* residual streams read or written by a site, times; not shared between GPUs */
    double fused_stream_passes;     /* the same with fused kernels; 0 = as stream_passes */
    double layer_ns;                /* what a layer takes whatever it works on, beside its launches */
    double launch_ns;               /* between two kernels of a graph */
    double eager_launch_ns;         /* between two launches without a graph */
    double step_host_ns;            /* planning, input copies, sampling, results: once a step */
    double allreduce_ns;            /* one all-reduce of a few rows; used when gpus > 1 */
    double link_bytes_s;            /* large all-reduces, per GPU */
    double host_link_bytes_s;       /* host to device */
    double dollars_hour;            /* per GPU; 0 = unknown */
} cedar_hardware;

/* One member of the description. */
typedef struct cedar_hardware_key {
    const char *key;
    size_t offset;                  /* of the double in cedar_hardware */
    double lo, hi, value_default;   /* default NaN: must be given */
    const char *help;
} cedar_hardware_key;

const cedar_hardware_key *cedar_hardware_keys(size_t *count);

/* How steps are launched. Full: one graph, nothing is trimmed. Split: a graph for each part. Off: kernel by kernel.
 * Decode: steps with prompt rows kernel by kernel, others as a graph. Trimmed: as decode, but the layers behind the cut
 * of a trimmed step are a graph. */
typedef enum cedar_graphs {
    CEDAR_GRAPHS_FULL, CEDAR_GRAPHS_SPLIT, CEDAR_GRAPHS_OFF, CEDAR_GRAPHS_DECODE, CEDAR_GRAPHS_TRIMMED
} cedar_graphs;

/* What of the described engine is switched on; all zero but `graphs`: a plain one. */
typedef struct cedar_cost_switches {
    cedar_graphs graphs;
    bool fp8_rows;                  /* global KV rows and index keys in FP8 instead of FP4 */
    bool fused_kernels, side_stream, fused_allreduce;
    uint32_t draft_tokens;          /* of each sequence and step; 0: nothing is drafted */
} cedar_cost_switches;

enum { CEDAR_COST_KINDS = CEDAR_LAYERS_MAX };

/* Layers that cost the same per row. */
typedef struct cedar_cost_kind {
    double ratio;                   /* 0: window only */
    bool scores, pooled;            /* it scores entries; only those of the candidate pool */
} cedar_cost_kind;

/* A shape on hardware, with everything that does not depend on the plan. */
typedef struct cedar_cost {
    cedar_hardware hw;
    const cedar_config *c;          /* borrowed */
    cedar_cost_switches on;
    double kernels;                 /* launches of a layer: separate or fused */
    double stream_ns;               /* per row and layer: residual streams */
    double layer_bytes;             /* per layer: attention, shared expert, router, mHC */
    double source_bytes;            /* per KV source: compressor and index key weights */
    double index_bytes;             /* per index source: indexer query weights */
    double expert_bytes;            /* one routed expert */
    double head_bytes;
    double draft_bytes;             /* of a draft pass: all stages without their routed experts, head and chain */
    double draft_layer_flop;        /* per row and stage */
    double layer_flop;              /* per row and layer, without attention core and indexer */
    double own_flop;                /* of it, what a rank does for its own rows: all but routed experts */
    double core_flop;               /* per row, layer and key */
    double score_flop;              /* per row and scored entry */
    double kv_key_bytes, window_key_bytes, index_key_bytes;
    double bandwidth, matmul_rate, attention_rate, indexer_rate;    /* of all GPUs, with their efficiencies */
    int32_t index_layers[CEDAR_LAYERS_MAX], index_layer_count;      /* layers that score, ascending */
    cedar_cost_kind kinds[CEDAR_COST_KINDS];
    uint32_t kind_count;
    uint8_t kind[CEDAR_LAYERS_MAX]; /* of each layer */
} cedar_cost;

/* What a step's price depends on. Sums over its rows: how many, and positions that they attend to (pos + 1 each). */
typedef struct cedar_cost_load {
    double rows, context;
    double kept_rows, kept_context; /* of the rows that run behind the cut */
    uint32_t logits;
    uint32_t drafts;                /* sequences that are drafted for */
    uint32_t sequences;             /* that ranks can share: what one sequence does stays on one rank */
    bool trimmed;
    bool prompts;                   /* there are prompt rows */
} cedar_cost_load;

/* Adds `rows` rows of a sequence from position pos on, the last `kept` of which run behind the cut. */
void cedar_cost_load_add(cedar_cost_load *load, uint32_t pos, uint32_t rows, uint32_t kept);

/* What a step that trims nothing has in common with the one before, so that it is worked out once; zero-initialised
 * knows nothing. It changes no price. */
typedef struct cedar_cost_memo {
    double rows, spread, dense_ns;  /* weights and matrix operations of all layers on so many rows, so spread */
    double attention_ns;            /* of all layers, with the kinds below */
    struct {
        double keys, chosen, entries;           /* what the figures of a layer of the kind follow from */
        double attention_ns, indexer_ns;
    } kinds[CEDAR_COST_KINDS];
} cedar_cost_memo;

/* Where a step's time goes, nanoseconds. */
typedef struct cedar_cost_parts {
    int64_t weights_ns, matmul_ns;  /* the larger of the two counts, per group of layers */
    int64_t stream_ns, attention_ns, indexer_ns, head_ns, draft_ns;
    int64_t launch_ns;              /* what launching adds to the work of the layers, layer_ns included */
    int64_t link_ns, host_ns;
    int64_t total_ns;
    double bytes, flop;             /* counted, all GPUs */
} cedar_cost_parts;

/* `c` must outlive the cost. A description that holds an impossible figure, or lacks one that a switch needs, is
 * CEDAR_E_ARG; so are more drafts than the shape's drafter makes. */
cedar_status cedar_cost_make(const cedar_config *c, const cedar_hardware *hw, const cedar_cost_switches *on,
                             cedar_cost *out, cedar_err *err) CEDAR_USE_RESULT;

/* Bytes that a global KV row and its index key take together in FP8: 1650 per token of the full shape instead of 890
 * (spec/model.md 4.1). */
uint64_t cedar_cost_fp8_row_bytes(const cedar_config *c);

/* Price of a step from its sums; memo may be NULL. */
int64_t cedar_cost_load_ns(const cedar_cost *k, cedar_cut cut, const cedar_cost_load *load, cedar_cost_memo *memo);

/* Price of a plan; parts may be NULL. */
int64_t cedar_cost_step_ns(const cedar_cost *k, const cedar_step_plan *plan, cedar_cost_parts *parts);

/* Price of a step of so many decoding sequences of context_mean tokens, with their drafts, and a prompt chunk of
 * prefill_rows that starts at prefill_pos (0 rows: none). For admission under a speed floor. */
int64_t cedar_cost_predict_ns(const cedar_cost *k, uint32_t sequences, uint32_t context_mean, uint32_t prefill_rows,
                              uint32_t prefill_pos);

/* Expected distinct experts of `rows` tokens with uniform routing: E (1 - (1 - k/E)^rows) (spec/performance.md 2.2). */
double cedar_cost_experts_touched(const cedar_config *c, uint32_t rows);

/* Bytes of weights that the GPUs must hold together: all tensors but the Engram tables, which lie in host memory; those
 * but experts once for each rank. */
double cedar_cost_weight_bytes(const cedar_config *c, double ranks);

#endif
