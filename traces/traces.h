/* Traces: readers for recorded agent sessions, and the in-memory session tree.
 *
 * Ownership   A corpus owns its traces; everything reachable from it lives until cedar_corpus_free.
 * Threads     A corpus is read-only after loading and may be shared.
 * Errors      base/status.h; messages name file, line and field. Libraries print nothing.
 * Formats     spec: docs/TRACES.md. Times are int64 nanoseconds from the trace's start. */
#ifndef CEDAR_TRACES_TRACES_H
#define CEDAR_TRACES_TRACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum cedar_trace_format { CEDAR_TRACE_AUTO, CEDAR_TRACE_WEKA, CEDAR_TRACE_MOONCAKE } cedar_trace_format;

/* One request of a stream. */
typedef struct cedar_turn {
    int64_t t_ns;               /* recorded start */
    int64_t api_ns;             /* recorded duration; 0 when the trace has none */
    int64_t ttft_ns;            /* recorded, -1 when absent */
    int64_t think_ns;           /* recorded think time, -1 when absent, negative counts as 0 (not used for replay) */
    int64_t delay_ns;           /* wait before this turn: max(0, t - previous end in the stream); first turn 0 */
    uint32_t in_tokens;         /* prompt, >= 1 (0 in the trace counts as 1) */
    uint32_t out_tokens;        /* answer as recorded; may be 0 */
    const int64_t *block_ids;   /* [block_count] borrowed from the corpus */
    uint32_t block_count;       /* as recorded: may be fewer or more than in_tokens / block_tokens */
    uint32_t in_recorded;       /* `in` as written */
    bool has_api, has_think;
    int32_t model;              /* index into trace->models, -1 when absent */
} cedar_turn;

/* One ordered list of turns with its own context: the root, or a subagent. */
typedef struct cedar_stream {
    const char *id;             /* "" for the root, else the agent id */
    cedar_turn *turns;
    uint32_t turn_count;
    int32_t spawn_turn;         /* root turn after which it starts; -1 for the root itself */
    int32_t join_turn;          /* root turn that waits for it; -1 = background */
    int64_t spawn_offset_ns;    /* recorded start minus the spawn turn's recorded end, at least 0 */
    uint32_t system_tokens;     /* tool and system tokens at the front of its first prompt */
    int64_t start_ns, end_ns;   /* min start and max recorded end of its turns */
    int64_t marker_ns;          /* subagents: recorded time of the entry that announces it */
    bool t_relative;            /* its recorded times counted from the marker; t_ns here never does */
} cedar_stream;

/* One recorded session: stream 0 is the root. */
typedef struct cedar_trace {
    const char *id;
    const char *file;           /* where it came from */
    int32_t line;               /* line of its JSON, 1 for whole files */
    bool ids_global;            /* ids comparable across traces, of the same id_space only */
    uint32_t id_space;          /* equal block ids mean equal blocks exactly when the id spaces are equal: one per trace
                                 * for local ids, one per file for Mooncake, one per block size for global weka ids */
    uint32_t block_tokens;      /* tokens per block id */
    const char **models;
    uint32_t model_count;
    cedar_stream *streams;
    uint32_t stream_count;
    uint32_t dropped_streams;   /* subagents without a spawn turn */
    uint32_t empty_streams;     /* subagents without requests, dropped too */
} cedar_trace;

typedef struct cedar_corpus {
    cedar_trace *traces;
    uint32_t trace_count;
    uint32_t skipped;           /* broken traces left out (not strict) */
    char skipped_first[480];    /* why the first of them was left out */
    uint64_t bytes_read;        /* uncompressed */
    char hash[65];              /* SHA-256 over the files' bytes on disk in reading order: `cat FILES | sha256sum` */
    void *arena;                /* private */
} cedar_corpus;

typedef struct cedar_corpus_opts {
    cedar_trace_format format;
    bool strict;                /* a broken trace fails the load instead of being skipped and counted */
    uint32_t traces_max;        /* 0 = all */
} cedar_corpus_opts;

/* Loads files and directories (names sorted; .json, .jsonl and either with .gz), in order. Nothing loaded at all is
 * CEDAR_E_FORMAT. */
cedar_status cedar_corpus_load(const char *const *paths, size_t path_count, const cedar_corpus_opts *opts,
                               cedar_corpus **out, cedar_err *err) CEDAR_USE_RESULT;

/* Parses one buffer as if it were a file called `name` (tests, fuzzing). */
cedar_status cedar_corpus_parse(const char *text, size_t bytes, const char *name, const cedar_corpus_opts *opts,
                                cedar_corpus **out, cedar_err *err) CEDAR_USE_RESULT;

void cedar_corpus_free(cedar_corpus *c);

/* The columns of traces/STATS_weka.csv, defined in docs/TRACES.md: linear percentiles, one seen-set per trace. */
typedef struct cedar_trace_stats {
    uint32_t requests, main, subagents;
    uint64_t isl_sum, osl_sum;
    double isl_p50, osl_p50;
    uint64_t isl_max;
    uint32_t osl_zero;
    uint64_t blocks_total, blocks_hit_seen, blocks_hit_prefix;
    double hit_rate;
    double delay_p50_s, delay_p90_s, delay_sum_s;
    uint32_t delay_over_300, overlap_pairs;
    double first_t, last_t, tstar_lo, tstar_hi;
    uint32_t len_floor, no_api;
    char *spawn_join;           /* owned; cedar_trace_stats_free */
} cedar_trace_stats;

/* Fills *out, which the caller frees with cedar_trace_stats_free; *out is zero after a failure. */
cedar_status cedar_trace_stats_make(const cedar_trace *t, cedar_trace_stats *out, cedar_err *err) CEDAR_USE_RESULT;
void cedar_trace_stats_free(cedar_trace_stats *s); /* what it points to, not s; zeroes s */

/* CSV header line and one row, without newline; *out is owned by the caller (cedar_free). */
const char *cedar_trace_stats_header(void);
cedar_status cedar_trace_stats_row(const char *file, const cedar_trace_stats *s, char **out,
                                   cedar_err *err) CEDAR_USE_RESULT;

/* Sums over a corpus. The hit rate is that of an infinite cache: all turns in time order, and a block is hit when it
 * was seen before in the same id space; so traces with global ids share, others do not. */
typedef struct cedar_corpus_stats {
    uint64_t traces, streams, requests;
    uint64_t isl_sum, osl_sum;
    uint64_t blocks_total, blocks_hit_seen;
    double hit_rate;            /* 0 when there are no blocks */
} cedar_corpus_stats;

cedar_status cedar_corpus_stats_make(const cedar_corpus *c, cedar_corpus_stats *out, cedar_err *err) CEDAR_USE_RESULT;

/* Things a recorded trace may contain that a reader of results should know of. All are accepted when loading. */
typedef enum cedar_oddity {
    CEDAR_ODDITY_IDS_NEITHER,   /* requests whose id count is neither floor nor ceil of in / block_tokens */
    CEDAR_ODDITY_IDS_CEIL,      /* requests whose id count is the ceil and not the floor */
    CEDAR_ODDITY_IDS_WIDE,      /* requests with an id above 2^31 - 1 */
    CEDAR_ODDITY_IN_ZERO,       /* requests with in = 0, replayed as 1 */
    CEDAR_ODDITY_OUT_ZERO,      /* requests with out = 0 */
    CEDAR_ODDITY_NO_API,        /* requests without api_time, counted as 0 */
    CEDAR_ODDITY_NO_THINK,      /* requests without think_time */
    CEDAR_ODDITY_OVERLAP,       /* turns that start before the previous one of their stream ends */
    CEDAR_ODDITY_SHRINK,        /* turns with a shorter prompt than the previous one of their stream */
    CEDAR_ODDITY_PREFIX_CUT,    /* turns that lose more than the last block of the previous turn's */
    CEDAR_ODDITY_IDLE,          /* turns more than 300 s after the previous one of their stream */
    CEDAR_ODDITY_MODELS,        /* turns of another model than the previous one of their stream */
    CEDAR_ODDITY_BACKGROUND,    /* subagents that no root turn waits for */
    CEDAR_ODDITY_RELATIVE,      /* subagents whose recorded times count from their marker */
    CEDAR_ODDITY_NO_SPAWN,      /* subagents listed before the first root turn, left out */
    CEDAR_ODDITY_EMPTY,         /* subagents without requests, left out */
    CEDAR_ODDITY_COUNT
} cedar_oddity;

typedef struct cedar_trace_check {
    uint32_t requests, streams;
    uint32_t found[CEDAR_ODDITY_COUNT];
    uint32_t of[CEDAR_ODDITY_COUNT];  /* how many could have been: requests, pairs of turns, or subagents */
} cedar_trace_check;

void cedar_trace_check_make(const cedar_trace *t, cedar_trace_check *out);

/* "ids neither floor nor ceil" and "requests". Never NULL. */
const char *cedar_oddity_text(cedar_oddity kind);
const char *cedar_oddity_unit(cedar_oddity kind);

/* Text for people: a line for the trace and an indented line per kind found, each with newline. Writes at most size
 * bytes with the final 0 and returns the length of the whole text, as snprintf does. */
size_t cedar_trace_check_format(const cedar_trace *t, const cedar_trace_check *c, char *buf, size_t size);

/* Common prefix in blocks of two turns. */
uint32_t cedar_turn_common_blocks(const cedar_turn *a, const cedar_turn *b);

#endif
