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
#include <stdio.h>

#include "base/status.h"

/* Formats that can be read; docs/TRACES.md has a section for each. */
typedef enum cedar_trace_format {
    CEDAR_TRACE_AUTO,           /* by the fields of a file's first document, or by its columns */
    CEDAR_TRACE_WEKA,
    CEDAR_TRACE_MOONCAKE,
    CEDAR_TRACE_AIPERF,         /* single- and multi-turn conversations with texts */
    CEDAR_TRACE_LLMSERVINGSIM,
    CEDAR_TRACE_OTEL,           /* OpenTelemetry spans */
    CEDAR_TRACE_TRACELAB,       /* one round per line */
    CEDAR_TRACE_TRACELAB_CSV,   /* replay table */
    CEDAR_TRACE_BLIS,           /* TraceV2 */
    CEDAR_TRACE_AZURE,
    CEDAR_TRACE_BURSTGPT,
    CEDAR_TRACE_TIMED,          /* timestamp in seconds, input_length, output_length */
    CEDAR_TRACE_FORMAT_COUNT
} cedar_trace_format;

/* The names of the formats in the order of the enum, for options and messages. */
#define CEDAR_TRACE_FORMAT_NAMES \
    "auto|weka|mooncake|aiperf|llmservingsim|otel|tracelab|tracelab_csv|blis|azure|burstgpt|timed"

const char *cedar_trace_format_name(cedar_trace_format format); /* never NULL */

/* The format called `name`; an unknown name is CEDAR_E_ARG and the message lists the known ones. */
cedar_status cedar_trace_format_find(const char *name, cedar_trace_format *out, cedar_err *err) CEDAR_USE_RESULT;

/* A turn of another stream that must have completed. */
typedef struct cedar_barrier {
    uint32_t stream, turn;
} cedar_barrier;

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
    bool has_prefix;            /* prefix_tokens is recorded */
    uint32_t prefix_tokens;     /* front of the prompt that the recording calls reused; block_ids say what is shared */
    /* Turns of other streams that must complete before this one starts, in the order of streams [barrier_count]. What
     * already follows from the stream's own order, spawns, joins and other barriers is left out. */
    const cedar_barrier *barriers;
    uint32_t barrier_count;
} cedar_turn;

/* One ordered list of turns with its own context: the root, or a subagent. */
typedef struct cedar_stream {
    const char *id;             /* "" for the root, the agent id, or "::fa:000" and the like for split agents */
    cedar_turn *turns;
    uint32_t turn_count;
    int32_t spawn_turn;         /* root turn after which it starts; -1: starts with the session (the root, and
                                 * streams of span graphs that begin before any root turn has ended) */
    int32_t join_turn;          /* root turn that waits for it; -1 = background */
    int64_t spawn_offset_ns;    /* recorded start minus the spawn turn's recorded end, or minus the root's start without
                                 * a spawn turn; at least 0 */
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
    uint32_t split_streams;     /* streams made by split_flattened */
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
    bool split_flattened;       /* give agents whose requests are mixed into the root stream streams of their own */
} cedar_corpus_opts;

/* Loads files and directories (names sorted; .json, .jsonl, .csv and these with .gz), in order. Nothing loaded at all
 * is CEDAR_E_FORMAT. */
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
    uint32_t delay_over_300, overlap_pairs;             /* delays above 300 s; turns that overlap the one before */
    double first_t, last_t, tstar_lo, tstar_hi;         /* seconds from the trace's start, as the table prints them */
    uint32_t len_floor, no_api;                         /* requests with floor(in / block) ids; without a duration */
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

/* Writes the name of a stream that is unique in its corpus as far as the trace's id is: the trace's id for the root,
 * "ID::sa:AGENT" for subagents, "ID::fa:000" and the like for split agents. Returns the length as snprintf does. */
size_t cedar_stream_name(const cedar_trace *t, uint32_t stream, char *buf, size_t size);

/* --- writing ----------------------------------------------------------------------------------------------------- */

/* What a target format has no place for. */
typedef enum cedar_loss {
    CEDAR_LOSS_STREAMS,         /* streams whose spawn or join is lost: they become sessions of their own */
    CEDAR_LOSS_SPAWN,           /* streams that start with the session, written as subagents of the first root turn */
    CEDAR_LOSS_NAMES,           /* streams that got another name, because an earlier one has the same */
    CEDAR_LOSS_LEFT_OUT,        /* subagents that were left out when loading */
    CEDAR_LOSS_IDS,             /* turns whose block ids are lost; the length of the shared prefix is kept */
    CEDAR_LOSS_IDS_NUMBERED,    /* turns whose block ids are numbered anew, because ids of several spaces meet */
    CEDAR_LOSS_IDS_ADDED,       /* turns with fewer ids than the format asks for; ids that nothing shares were added */
    CEDAR_LOSS_IDS_CUT,         /* turns with more ids than the format allows; the last were left out */
    CEDAR_LOSS_START,           /* turns whose recorded start is lost (the wait before them is kept) */
    CEDAR_LOSS_DELAY,           /* turns whose wait is lost: the format computes it from the times */
    CEDAR_LOSS_ROUNDED,         /* turns whose times do not fit the format's unit exactly */
    CEDAR_LOSS_DURATION,        /* turns whose recorded duration is lost */
    CEDAR_LOSS_TTFT,            /* turns whose recorded time to the first token is lost */
    CEDAR_LOSS_THINK,           /* turns whose recorded think time is lost */
    CEDAR_LOSS_MODEL,           /* turns whose model is lost */
    CEDAR_LOSS_SYSTEM,          /* streams whose count of system tokens is lost */
    CEDAR_LOSS_COUNT
} cedar_loss;

typedef struct cedar_losses {
    uint64_t count[CEDAR_LOSS_COUNT];
} cedar_losses;

const char *cedar_loss_text(cedar_loss kind); /* "block ids lost, ..."; never NULL */

/* "  TEXT: COUNT UNIT" per kind that occurred, each with newline; as snprintf. Nothing was lost: "". */
size_t cedar_losses_format(const cedar_losses *l, char *buf, size_t size);

/* Whether cedar_trace_write knows the format: weka, mooncake, llmservingsim, tracelab_csv, blis. */
bool cedar_trace_writable(cedar_trace_format format);

/* Writes a corpus to `out`; what the format cannot keep is counted in *losses. `header` gets the header of formats that
 * have one in a file of its own (blis); NULL: it goes to the front of `out`. A format that cannot be written is
 * CEDAR_E_UNSUPPORTED, a failing write CEDAR_E_IO. The files stay open. */
cedar_status cedar_trace_write(const cedar_corpus *c, cedar_trace_format format, FILE *out, FILE *header,
                               cedar_losses *losses, cedar_err *err) CEDAR_USE_RESULT;

/* Loads `paths` and writes them to the file `to_path` in the format `to`. blis puts
 * its header beside it, with .yaml in place of the extension. *traces and *skipped (may be NULL) are counts. After a
 * failure no partial output stays. */
cedar_status cedar_trace_convert(const char *const *paths, size_t path_count, const cedar_corpus_opts *opts,
                                 cedar_trace_format to, const char *to_path, cedar_losses *losses, uint32_t *traces,
                                 uint32_t *skipped, cedar_err *err) CEDAR_USE_RESULT;

/* Common prefix in blocks of two turns. */
uint32_t cedar_turn_common_blocks(const cedar_turn *a, const cedar_turn *b);

#endif
