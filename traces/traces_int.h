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

/* One Mooncake row, kept until the file ends because the rows of a session may lie anywhere in it. */
typedef struct traces_row {
    const char *session;   /* NULL: a session of its own */
    cedar_turn turn;
    size_t index;          /* position in the file */
    int line;
    bool has_t, has_delay;
    const char *broken;    /* why the row, and so its session, is unusable; NULL for good ones */
} traces_row;

typedef struct traces_load traces_load;

/* One trace format. `probe` decides by a document's fields; `document` reads one document (a session, or a row of a
 * session); `file_end` completes sessions that are spread over documents and may be NULL. */
typedef struct traces_reader {
    cedar_trace_format format;
    const char *name;
    bool (*probe)(const json_t *doc);
    cedar_status (*document)(traces_load *l, const json_t *doc, cedar_err *err);
    cedar_status (*file_end)(traces_load *l, cedar_err *err);
} traces_reader;

extern const traces_reader traces_weka, traces_mooncake;

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

    char *text;                  /* the document without its id lists */
    size_t text_bytes, text_room;
    traces_ids *lists;           /* [list_count] taken out of the document */
    size_t list_count, list_room;
    bool lifted;                 /* "hash_ids" in the parsed document is an index into lists */
    int64_t *ids;                /* scratch of one list */
    size_t id_room;
    traces_row *rows;            /* [row_count] Mooncake */
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

/* Adds a finished trace to the corpus (no copy of what it points to). */
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

/* A turn in the walk order of the hit rate: time, then trace, then place in the file, then place in the stream. */
typedef struct traces_walk {
    int64_t t_ns;
    uint32_t trace;
    int32_t anchor;          /* the root turn itself, or the one that a subagent is listed behind */
    uint32_t stream, index;
    const cedar_turn *turn;
} traces_walk;

#endif
