/* Run options as the simulator reads them: typed fields behind the text table of sim/options.c.
 *
 * Private to sim/. Only sim/options.c writes a cedar_run_opts; everything else reads it. Every field holds a value
 * inside the range of its table entry at all times, so readers need no checks of their own beyond cedar_opts_check.
 *
 * No float reaches the schedule: times are int64 ns, the time scale is parts per 10^9, the length scale a reduced
 * fraction. */
#ifndef CEDAR_SIM_OPTIONS_INT_H
#define CEDAR_SIM_OPTIONS_INT_H

#include "engine/engine.h"
#include "sim/cost.h"
#include "sim/sim.h"

typedef enum cedar_backend {
    CEDAR_BACKEND_AUTO,
    CEDAR_BACKEND_CPU,
    CEDAR_BACKEND_CUDA,
    CEDAR_BACKEND_NONE,
    CEDAR_BACKEND_HTTP
} cedar_backend_kind;
typedef enum cedar_order { CEDAR_ORDER_SEQUENTIAL, CEDAR_ORDER_SHUFFLE } cedar_order;
typedef enum cedar_replay_kind {
    CEDAR_REPLAY_EXACT, CEDAR_REPLAY_DECODER, CEDAR_REPLAY_ENCODER, CEDAR_REPLAY_BOTH
} cedar_replay_kind;
typedef enum cedar_continuation { CEDAR_CONTINUATION_FORCED, CEDAR_CONTINUATION_GREEDY } cedar_continuation;
typedef enum cedar_clock {
    CEDAR_CLOCK_MEASURED, CEDAR_CLOCK_RECORDED, CEDAR_CLOCK_MODELLED, CEDAR_CLOCK_WALL
} cedar_clock;
typedef enum cedar_pace { CEDAR_PACE_FIXED, CEDAR_PACE_MEASURED } cedar_pace;
typedef enum cedar_rules { CEDAR_RULES_PLAIN, CEDAR_RULES_AGENTX, CEDAR_RULES_AGENTX_FAST } cedar_rules;
typedef enum cedar_primers { CEDAR_PRIMERS_SPREAD, CEDAR_PRIMERS_BURST } cedar_primers;
typedef enum cedar_on_error { CEDAR_ON_ERROR_ADVANCE, CEDAR_ON_ERROR_END } cedar_on_error;
typedef enum cedar_history { CEDAR_HISTORY_RECORDED } cedar_history;
typedef enum cedar_salt { CEDAR_SALT_TREE, CEDAR_SALT_NONE } cedar_salt;
typedef enum cedar_kv_rows { CEDAR_KV_ROWS_FP4, CEDAR_KV_ROWS_FP8 } cedar_kv_rows;
typedef enum cedar_window_store { CEDAR_WINDOWS_STEP, CEDAR_WINDOWS_PAGED } cedar_window_store;
typedef enum cedar_kernels { CEDAR_KERNELS_SEPARATE, CEDAR_KERNELS_FUSED } cedar_kernels;
typedef enum cedar_floor_mode { CEDAR_FLOOR_MARK, CEDAR_FLOOR_ADMIT } cedar_floor_mode;

typedef enum cedar_routing {
    CEDAR_ROUTING_SESSION, CEDAR_ROUTING_ROUND_ROBIN, CEDAR_ROUTING_LEAST_LOADED, CEDAR_ROUTING_PREFIX,
    CEDAR_ROUTING_POLICY
} cedar_routing;

enum { CEDAR_HTTP_SESSION_HEADERS_MAX = 15, CEDAR_HTTP_HEADER_NAME_MAX = 80 };

typedef enum cedar_http_api { CEDAR_HTTP_API_CHAT, CEDAR_HTTP_API_COMPLETIONS } cedar_http_api;

enum { CEDAR_OPT_KEYS_MAX = 96 };

struct cedar_run_opts {
    const char *label;              /* "" = none */
    cedar_rules rules;              /* where defaults come from, and which keys are locked */
    bool unsafe_override;           /* locked keys may be changed */

    const char *model;              /* name in scenarios/models or at the endpoint, config.json, or checkpoint */
    int64_t weights_seed;
    cedar_backend_kind backend;
    cedar_arith arith;
    int64_t threads;                /* 0 = all */
    int64_t gpus;
    bool one_stream;

    const char *trace;              /* paths, comma separated; "" is refused by cedar_opts_check */
    int64_t traces_max;             /* 0 = all */
    bool strict, split_flattened;
    int64_t lanes;
    int64_t seed;
    cedar_order order;
    int64_t passes;
    bool recycle;                   /* lanes take traces without end; passes is not used */
    int64_t turns_max;              /* per stream, 0 = all */
    int64_t requests_max;           /* after the warm-up, 0 = all */
    int64_t duration_ns;            /* of schedule time after the warm-up, 0 = until the traces end */
    int64_t start_lo_ppb, start_hi_ppb;     /* window of a lane's first start, share of the session times 10^9 */
    cedar_primers primers;
    int64_t warmup_requests;        /* per lane */
    int64_t warmup_grace_ns;
    int64_t length_num, length_den; /* length_scale, reduced; tokens per block = block_tokens * num / den */
    int64_t time_scale_ppb;         /* recorded delays times this / 10^9 */
    int64_t think_cap_ns;           /* longest delay, after scaling */
    int64_t tree_idle_cap_ns, global_idle_cap_ns;   /* 0 = none */
    bool barriers;
    cedar_on_error on_error;
    int64_t errors_max_ppb;         /* errors per completed request; BILLION = never stop */
    cedar_history history;
    cedar_salt salt;
    int64_t context_max;            /* 0 = positions_max of the model */

    int64_t floor_ppb;              /* tok/s/user times 10^9, 0 = none */
    int64_t floor_percentile;
    cedar_floor_mode floor_mode;
    const char *admission;          /* name and hash of the policy below, "" = none */

    cedar_replay_kind replay;
    cedar_cut cut;
    int64_t encoder_rows;           /* 0 = window of the model */
    int64_t decoder_rows;           /* 0 = window of the model */
    bool adopt_short_hits;
    bool prefix_cache;
    int64_t page_tokens;
    int64_t kv_pages;               /* 0 = made from lanes and context */
    int64_t window_cache_bytes;     /* 0 = unlimited */
    cedar_window_store window_store;

    int64_t engines;
    cedar_routing routing;
    const char *routing_policy;     /* name and hash of the policy below, "" = none */

    const char *endpoints;          /* base URLs, comma separated; "" unless backend is http */
    cedar_http_api http_api;
    int64_t http_vocab;             /* 0 = prompts are text */
    const char *http_key;           /* where the key is, never the key */
    const char *http_ca_file;       /* "" = the system's authorities */
    const char *http_body;          /* JSON object, "" = none */
    bool http_ignore_eos;
    const char *http_session_headers;   /* names, comma separated */
    const char *http_nonce;         /* "" = fresh */
    int64_t http_concurrent_max;    /* 0 = no limit */
    int64_t http_connect_ns, http_first_ns, http_stall_ns, http_total_ns;   /* 0 = no limit */
    bool http_metrics;

    int64_t step_tokens;
    int64_t chunk_tokens;           /* 0 = step_tokens */
    int64_t batch_max;              /* 0 = no limit */
    cedar_continuation continuation;
    int64_t draft_tokens;           /* 0 = no speculation */
    int64_t acceptance_ppb;         /* mean tokens of a step with drafts times 10^9; 0 = drafts are verified */

    cedar_clock clock;
    const char *hardware;           /* name in scenarios/hardware, or a file; "" = none */
    const char *assume;             /* figures of it that are set otherwise; "" = none */
    cedar_graphs graphs;            /* cost.h, as the switches below */
    cedar_kv_rows kv_rows;
    cedar_kernels kernels;
    bool side_stream;
    cedar_allreduce allreduce;      /* of the cost model, or of an engine's GPUs */
    cedar_pace pace;
    int64_t pace_step_us, pace_row_us;

    bool keep;                      /* false: no row of the run is stored */
    int64_t steps_per_row;

    bool quality;
    int64_t quality_every;
    bool prompt_scores;

    const cedar_policy *policy;     /* borrowed, NULL = none */
    const cedar_router *router;     /* the same */
    bool given[CEDAR_OPT_KEYS_MAX]; /* set by the user: keeps its value when `rules` changes the defaults */
    char *text[CEDAR_OPT_KEYS_MAX]; /* value of each key as canonical text, in table order; owned. The strings above
                                     * point into it. */
};

/* Names of the locked keys that differ from what the rules ask for, joined by ", ", into names; how many they are. */
uint32_t cedar_opts_locks(const cedar_run_opts *o, char *names, size_t bytes);

#endif
