/* Private to engine/: what a backend does. The bookkeeping of sequences and pages is engine.c's and the same for all;
 * a backend owns the bytes (page pool, rings, weights on its device) and executes plans. */
#ifndef CEDAR_ENGINE_BACKEND_H
#define CEDAR_ENGINE_BACKEND_H

#include "engine/engine.h"
#include "engine/layout.h"
#include "engine/model_int.h"
#include "engine/ranks.h"
#include "engine/tape.h"

/* A sequence as the bookkeeping knows it; read-only to backends. */
typedef struct cedar_seq_state {
    bool open;
    uint32_t pos, high, truncate_min;   /* committed; highest reached; lowest position truncate may go to */
    uint32_t write_floor;
    cedar_bounds bounds;
    int32_t *tokens;                    /* [context_tokens] */
    int32_t *pages;                     /* [context_tokens / page_tokens, rounded up] */
    uint32_t page_count;
} cedar_seq_state;

typedef struct cedar_backend {
    const char *name;
    bool makes_weights;         /* can fill a seeded model's weights itself */
    /* Working memory of an engine with these options, without pool, sequences and weights. With o->gpus > 1: of one
     * rank whose shape is c. */
    uint64_t (*workspace_bytes)(const cedar_config *c, const cedar_engine_opts *o);
    /* rank NULL: alone. Otherwise m, o and l are those of the whole engine, and the backend takes its share of the
     * weights, and its pages of the pool, from rank->shard. */
    cedar_status (*open)(const cedar_model *m, const cedar_engine_opts *o, const cedar_layout *l,
                         const cedar_rank *rank, void **self, cedar_err *err);
    void (*close)(void *self);
    void (*seq_reset)(void *self, int32_t seq);                                 /* rings and open groups become NaN */
    void (*page_copy)(void *self, int32_t to, int32_t from);
    cedar_status (*step)(void *self, const cedar_step_plan *plan, const cedar_seq_state *seqs, cedar_step_out *out,
                         cedar_err *err);
    cedar_status (*draft)(void *self, cedar_draft_item *items, uint32_t count, const cedar_seq_state *seqs,
                          cedar_err *err);
    uint64_t (*snap_bytes)(const void *self);                                   /* size of the buffer below */
    /* rows [pos - W, pos) and open groups */
    void (*snap_save)(const void *self, int32_t seq, uint32_t pos, uint8_t *buf);
    void (*snap_load)(void *self, int32_t seq, uint32_t pos, const uint8_t *buf);
    void (*tap)(void *self, cedar_tap_fn fn, void *tap_self);
    void (*inject)(void *self, cedar_inject_fn fn, void *inject_self);
    /* entries [first, first + count) of a page as records, codes then scales; either pointer may be NULL */
    void (*read_entries)(const void *self, int32_t page, int32_t part, uint32_t first, uint32_t count, uint8_t *kv,
                         uint8_t *index);
    void (*read_open)(const void *self, int32_t seq, int32_t part, uint32_t pos, double *kvf, double *score);
    void (*poison)(void *self, int32_t seq, uint32_t ring, uint32_t lo, uint32_t hi);   /* all but positions [lo, hi) */
    void (*tape)(void *self, cedar_tape *tape);     /* NULL: decisions cannot be recorded or followed */
    /* Before a step or draft that wants so many rows of logits: takes what memory they need. NULL: none. */
    cedar_status (*reserve)(void *self, uint64_t rows, cedar_err *err);
    /* Before close, waits a while for threads that were left behind in a call; CEDAR_E_LIVENESS and a sentence when one
     * is still at work: then nothing that it may touch is freed. NULL: calls leave none behind. */
    cedar_status (*settle)(void *self, cedar_err *err);
} cedar_backend;

const cedar_backend *cedar_backend_find(const char *name);  /* NULL when this build has none of that name */
extern const cedar_backend cedar_backend_cpu, cedar_backend_none;
extern const cedar_backend cedar_backend_group;    /* opts.gpus instances of the backend that opts names */
#ifdef CEDAR_HAVE_CUDA
extern const cedar_backend cedar_backend_cuda;
bool cedar_cuda_present(void);                              /* a GPU that can be used */
int cedar_cuda_devices(void);                               /* how many of them; 0 = none */
void cedar_cuda_device_name(char out[CEDAR_DEVICE_BYTES]);  /* of the GPU that engines use; "" when unknown */
#endif

/* Options that no engine can have, open or planned; zero counts are left to cedar_engine_open, since a plan may ask for
 * none. */
cedar_status cedar_engine_opts_check(const cedar_config *c, const cedar_engine_opts *o,
                                     cedar_err *err) CEDAR_USE_RESULT;

/* Workspace of the CPU backend, for the memory plan. */
uint64_t cedar_cpu_workspace_bytes(const cedar_config *c, const cedar_engine_opts *o);

#endif
