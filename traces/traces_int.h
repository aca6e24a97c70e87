/* What the source files of traces/ share: limits, the arena, reading files, scanning documents, the readers' table.
 *
 * Ownership   A traces_load lives for one call of cedar_corpus_load or cedar_corpus_parse and owns all scratch memory;
 *             what stays after the call lies in the corpus' arena.
 * Threads     None of this is shared. */
#ifndef CEDAR_TRACES_INT_H
#define CEDAR_TRACES_INT_H

#include <jansson.h>

#include "base/hash.h"
#include "traces/traces.h"

/* Limits are checked before memory is asked for, so that a broken or hostile file costs an error and not the machine.
 * They lie far above anything recorded: the longest known session has 561 turns and 10,000 ids per turn. */
#define FILE_BYTES_MAX ((size_t)1 << 32)     /* one file, after decompression */
#define DOCUMENT_BYTES_MAX ((size_t)1 << 28) /* one JSON document */
#define VALUES_MAX ((size_t)1 << 24)         /* JSON values in one document, ids not counted */
#define NEST_MAX 32                          /* depth of arrays and objects */
#define IDS_MAX ((size_t)1 << 22)            /* ids of one request */
#define TURNS_MAX ((size_t)1 << 20)          /* requests of one session */
#define STREAMS_MAX ((size_t)1 << 16)        /* subagents of one session */
#define TRACES_MAX ((size_t)1 << 26)         /* sessions of one corpus */
#define MODELS_MAX ((size_t)256)             /* models of one session */
#define NAME_BYTES_MAX ((size_t)256)         /* ids and model names */
#define TOKENS_MAX ((int64_t)1 << 30)        /* tokens of one request */
#define START_S_MAX 4000000000ll             /* start of a request; large enough for seconds since 1970 */
#define SPAN_S_MAX 1000000000ll              /* a duration; two starts and a span still fit int64 nanoseconds */

#define NS_PER_S 1000000000ll
#define NS_PER_MS 1000000ll
#define NS_PER_US 1000ll

/* Ids made for one file by formats that record none; few in sanitized builds, where memory is dear. */
#ifdef CEDAR_SANITIZED
#define IDS_MADE_MAX ((size_t)1 << 20)
#else
#define IDS_MADE_MAX ((size_t)1 << 26)
#endif
#define BARRIER_CELLS_MAX ((size_t)1 << 24)  /* streams times requests of one session with several streams */
#define HASH_BLOCK_TOKENS 16                 /* tokens per id where cedar makes the ids */
#define TEXT_ID_SPACE 0x40000000u            /* of ids hashed from texts: equal texts share, in whatever file */

#define WHERE_BYTES 400                      /* "file:line: requests[12]" for messages */

/* Memory that lives as long as the corpus: zeroed, 16-byte aligned, freed in one go. */
typedef struct traces_arena traces_arena;
traces_arena *traces_arena_new(void);
void *traces_arena_alloc(traces_arena *a, size_t count, size_t size); /* NULL: out of memory */
char *traces_arena_string(traces_arena *a, const char *text, size_t bytes);
void traces_arena_free(traces_arena *a);

/* Makes room for `need` elements of `size` bytes in *p, which has room for *room. */
cedar_status traces_grow(void **p, size_t *room, size_t need, size_t size, cedar_err *err) CEDAR_USE_RESULT;

/* A list of block ids found by the scanner; the values lie in the arena. */
typedef struct traces_ids {
    const int64_t *values;
    uint32_t count;
} traces_ids;

/* One request of a format with one request per row, kept until the file ends because the rows of a session may lie
 * anywhere in it. Formats use the fields they need. */
typedef struct traces_row {
    const char *session;   /* NULL: a session of its own */
    cedar_turn turn;
    size_t index;          /* position in the file */
    int64_t round;         /* place in the session; equal rounds keep the order of the file */
    int line;
    uint32_t block_tokens; /* Mooncake */
    bool has_t, has_delay, has_wait;
    int64_t wait_ns;       /* after the turn, before the next one */
    const char *group;     /* BLIS: name of a prefix that sessions share, */
    uint32_t group_tokens; /* and its length */
    const char *model;
    const char *broken;    /* why the row, and so its session, is unusable; NULL for good ones */
} traces_row;

typedef struct traces_load traces_load;

/* A column that a reader of tables uses. */
typedef struct traces_column {
    const char *name, *alias; /* alias may be NULL; compared without regard to case */
    bool required;
} traces_column;

#define COLUMNS_MAX 16     /* columns of a traces_column table */
#define FIELDS_MAX 256     /* columns of a file */

/* One record of a CSV file. */
typedef struct traces_csv {
    char *fields[FIELDS_MAX]; /* [field_count], 0-terminated, borrowed until the next record */
    size_t field_count;
    int place[COLUMNS_MAX];   /* field of each column of the reader; -1: the file does not have it */
    const traces_column *columns;
    char where[WHERE_BYTES];
} traces_csv;

/* One trace format. JSON formats have `probe` and `document`: probe decides by a document's fields; document reads one
 * document (a session, or a row of a session). Tables have `columns` and `record`. file_end completes what is spread
 * over a file, and session makes a trace of the rows of one session; either may be NULL. */
typedef struct traces_reader {
    cedar_trace_format format;
    bool (*probe)(const json_t *doc);
    cedar_status (*document)(traces_load *l, const json_t *doc, cedar_err *err);
    const traces_column *columns;
    size_t column_count;
    cedar_status (*record)(traces_load *l, const traces_csv *csv, cedar_err *err);
    cedar_status (*file_end)(traces_load *l, cedar_err *err);
    cedar_status (*session)(traces_load *l, const traces_row *rows, size_t count, cedar_err *err);
} traces_reader;

extern const traces_reader traces_weka, traces_mooncake, traces_aiperf, traces_llmservingsim, traces_otel,
    traces_tracelab, traces_tracelab_csv, traces_blis, traces_azure, traces_burstgpt, traces_timed;

struct traces_load {
    cedar_corpus *corpus;
    traces_arena *arena;         /* the corpus' */
    cedar_corpus_opts opts;
    size_t trace_room;
    cedar_sha256 sha;
    uint32_t space_next;         /* next unused id space */

    const traces_reader *reader; /* of the current file; NULL until known */
    const char *name;            /* current file, in the arena */
    int line;                    /* first line of the current document */
    uint32_t file_space;         /* id space of the current file, 0 while it has none */
    size_t ids_made;             /* ids made for the current file by formats that record none */
    bool accumulate;             /* BLIS header: rounds of a session repeat the earlier ones */
    bool from_disk;              /* the current file has a path, so that files beside it may be looked for */

    char *text;                  /* the document without its id lists */
    size_t text_bytes, text_room;
    traces_ids *lists;           /* [list_count] taken out of the document */
    size_t list_count, list_room;
    bool lifted;                 /* "hash_ids" in the parsed document is an index into lists */
    int64_t *ids;                /* scratch of one list */
    size_t id_room;
    traces_row *rows;            /* [row_count] */
    size_t row_count, row_room;
};

/* Bytes of a file, decompressed when they are gzip; the bytes on disk go into sha. *text is owned (cedar_free). */
cedar_status traces_file_read(const char *path, cedar_sha256 *sha, char **text, size_t *bytes,
                              cedar_err *err) CEDAR_USE_RESULT;

/* The trace files of a directory, sorted by name. *paths [*count] and each path are owned (traces_paths_free). */
cedar_status traces_dir_list(const char *path, char ***paths, size_t *count, cedar_err *err) CEDAR_USE_RESULT;
void traces_paths_free(char **paths, size_t count);

/* Finds the end of the JSON object that starts at p, copies it to l->text with every well-formed list of ids replaced
 * by its index in l->lists. *stop is one past the object, NULL when the text ends before it does. */
cedar_status traces_scan(traces_load *l, const char *p, const char *end, const char **stop,
                         cedar_err *err) CEDAR_USE_RESULT;

/* Parses the object that traces_scan found at [p, stop). *doc is owned (json_decref). */
cedar_status traces_parse(traces_load *l, const char *p, const char *stop, json_t **doc,
                          cedar_err *err) CEDAR_USE_RESULT;

/* Adds a trace to the corpus (no copy of what it points to) after splitting flattened agents, when that is wanted, and
 * finding its barriers. */
cedar_status traces_add(traces_load *l, const cedar_trace *t, cedar_err *err) CEDAR_USE_RESULT;

/* What to do with a broken trace: counted and forgotten (CEDAR_OK), or, strict, passed on. Only CEDAR_E_FORMAT is ever
 * forgotten. */
cedar_status traces_broken(traces_load *l, cedar_status st, cedar_err *err) CEDAR_USE_RESULT;

bool traces_full(const traces_load *l); /* traces_max reached */

/* Fields. `where` names the object in messages. A null value counts as absent. */
cedar_status traces_ids_get(traces_load *l, const json_t *o, const char *where, cedar_turn *turn,
                            cedar_err *err) CEDAR_USE_RESULT;
/* A time of unit `unit_ns` nanoseconds in [0, max_s] seconds; *out stays as it is when the field is absent. */
cedar_status traces_time_get(const json_t *o, const char *where, const char *key, int64_t unit_ns, int64_t max_s,
                             int64_t *out, bool *present, cedar_err *err) CEDAR_USE_RESULT;
/* Token count in [0, TOKENS_MAX]; absent is an error when `required`, else *out stays. */
cedar_status traces_tokens_get(const json_t *o, const char *where, const char *key, bool required, uint32_t *out,
                               cedar_err *err) CEDAR_USE_RESULT;
/* String of 1 to NAME_BYTES_MAX bytes, copied into the arena. */
cedar_status traces_name_get(traces_load *l, const json_t *o, const char *where, const char *key, const char **out,
                             cedar_err *err) CEDAR_USE_RESULT;

/* An id that may be a string or an integer, kept as decimal text. *out stays NULL when it is absent. */
cedar_status traces_label_get(traces_load *l, const json_t *o, const char *where, const char *key, const char **out,
                              cedar_err *err) CEDAR_USE_RESULT;
/* A time point such as 2023-11-16T18:17:03.97996Z as nanoseconds since 1970. */
cedar_status traces_stamp_get(const json_t *o, const char *where, const char *key, int64_t *out, bool *present,
                              cedar_err *err) CEDAR_USE_RESULT;

/* Text to numbers. A date with time, the zone being Z, +hh:mm or absent (UTC), with up to 9 decimals. */
bool traces_stamp_parse(const char *text, int64_t *ns);
/* A decimal number of `unit_ns`, exact: "0.7" in seconds is 700000000. false: no such number, or outside [0, max]. */
bool traces_decimal_parse(const char *text, int64_t unit_ns, int64_t max_ns, int64_t *ns);

/* Fields of a record. `column` is an index into the reader's columns. An empty field counts as absent; absent is an
 * error when the column is required. */
const char *traces_csv_text(const traces_csv *csv, size_t column); /* NULL: absent */
cedar_status traces_csv_int(const traces_csv *csv, size_t column, int64_t hi, int64_t *out, bool *present,
                            cedar_err *err) CEDAR_USE_RESULT;
cedar_status traces_csv_tokens(const traces_csv *csv, size_t column, uint32_t *out, cedar_err *err) CEDAR_USE_RESULT;
cedar_status traces_csv_time(const traces_csv *csv, size_t column, int64_t unit_ns, int64_t max_s, int64_t *out,
                             bool *present, cedar_err *err) CEDAR_USE_RESULT;
cedar_status traces_csv_name(traces_load *l, const traces_csv *csv, size_t column, const char **out,
                             cedar_err *err) CEDAR_USE_RESULT; /* *out NULL: absent */

/* Reads a table from [p, end). `readers` are tried in order when the format is not given. */
cedar_status traces_csv_read(traces_load *l, const char *p, const char *end, const traces_reader *const *readers,
                             size_t reader_count, cedar_err *err) CEDAR_USE_RESULT;

/* The header of a BLIS trace in [p, end); sets what it says in l. */
cedar_status traces_blis_header(traces_load *l, const char *p, const char *end, int line,
                                cedar_err *err) CEDAR_USE_RESULT;

/* Keeps a row for traces_rows_end. */
cedar_status traces_row_keep(traces_load *l, const traces_row *row, cedar_err *err) CEDAR_USE_RESULT;
/* Keeps a row that was read with status st: a row of a session stays as a mark when it is broken. */
cedar_status traces_row_done(traces_load *l, traces_row *row, cedar_status st, cedar_err *err) CEDAR_USE_RESULT;
/* A reader's file_end: sorts the rows into sessions, in the order of their first rows, and gives each to `session`. */
cedar_status traces_rows_end(traces_load *l, cedar_err *err) CEDAR_USE_RESULT;
/* Turns and starts of one session: a stream with its times, and the trace's id, file and line. The trace still needs
 * block_tokens and id_space. */
cedar_status traces_rows_trace(traces_load *l, const traces_row *rows, size_t count, cedar_trace *out,
                               cedar_err *err) CEDAR_USE_RESULT;
/* "FILE:LINE" for sessions without an id; NULL: no memory. */
const char *traces_place_name(traces_load *l, int line);

/* Gives the turns of a stream ids of HASH_BLOCK_TOKENS tokens: turn k repeats the first keep[k] tokens of what turn k-1
 * asked and got; everything else is new. `next` is the next unused id. */
cedar_status traces_ids_from_prefix(traces_load *l, const char *where, cedar_turn *turns, const uint64_t *keep,
                                    uint32_t count, int64_t *next, cedar_err *err) CEDAR_USE_RESULT;

/* Block ids made by hashing tokens, or texts of 4 bytes per token: equal prefixes give equal ids. */
typedef struct traces_blocks {
    int64_t *ids;          /* [count] cedar memory, traces_blocks_free */
    size_t count, room;
    uint64_t tokens;       /* so far */
    uint64_t chain;
} traces_blocks;
cedar_status traces_blocks_token(traces_blocks *b, uint64_t token, cedar_err *err) CEDAR_USE_RESULT;
/* ceil(bytes / 4) tokens, at least 1; `role` makes equal texts of different speakers differ. */
cedar_status traces_blocks_text(traces_blocks *b, const char *role, const char *text, size_t bytes,
                                cedar_err *err) CEDAR_USE_RESULT;
void traces_blocks_free(traces_blocks *b);
/* Copy of the first `count` ids into the arena, as the turn's. */
cedar_status traces_blocks_give(traces_load *l, const traces_blocks *b, size_t count, const char *where,
                                cedar_turn *turn, cedar_err *err) CEDAR_USE_RESULT;
/* Counts ids that a format makes against the limit of the file. */
cedar_status traces_ids_made(traces_load *l, const char *where, size_t count, cedar_err *err) CEDAR_USE_RESULT;

/* Index of a model's name among the trace's, added when new: names[MODELS_MAX] is scratch of the caller. */
cedar_status traces_model_add(traces_load *l, const char *where, const char *name, size_t bytes, const char **names,
                              uint32_t *count, int32_t *out, cedar_err *err) CEDAR_USE_RESULT;

/* Moves flattened agents out of the root stream. */
cedar_status traces_split(traces_load *l, cedar_trace *t, cedar_err *err) CEDAR_USE_RESULT;
/* Fills the barriers of all turns. */
cedar_status traces_barriers(traces_load *l, cedar_trace *t, cedar_err *err) CEDAR_USE_RESULT;

/* Times of a stream from its turns: delays, start and end. The turns are in time order. */
void traces_stream_times(cedar_stream *s);
/* Joins of all subagents, and their offsets from the spawn turn. Streams have their times. */
void traces_streams_link(cedar_trace *t);

/* A set of block ids, each in an id space. */
typedef struct traces_seen traces_seen;
traces_seen *traces_seen_new(void);
void traces_seen_free(traces_seen *s);
bool traces_seen_has(const traces_seen *s, uint32_t space, int64_t id);
bool traces_seen_add(traces_seen *s, uint32_t space, int64_t id); /* false: out of memory */
/* Place of an id that is in the set in the order of adding, from 0. */
uint32_t traces_seen_number(const traces_seen *s, uint32_t space, int64_t id);
size_t traces_seen_count(const traces_seen *s);

/* A turn in the walk order of the hit rate: time, then trace, then place in the file, then place in the stream. */
typedef struct traces_walk {
    int64_t t_ns;
    uint32_t trace;
    int32_t anchor;          /* the root turn itself, or the one that a subagent is listed behind */
    uint32_t stream, index;
    const cedar_turn *turn;
} traces_walk;

#endif
