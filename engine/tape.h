/* Private to engine/: a tape of decisions.
 *
 * Rounding to a code and picking the best are discontinuous: an error of one ulp may turn a decision, and everything
 * after it follows. So a run in float is compared with a run in double decision by decision: the double run records
 * every decision in the order of the calls, the float run follows. At each decision it makes its own; where that
 * differs from the tape's, its own inputs must lie so close to the border between the two that errors of float explain
 * it (a near-tie); then it goes on with the tape's. What remains between the two runs is smooth, and small.
 *
 * A decision is a code or a scale of FP8Q32, FP4Q32 and FP4Q16, a top-k list, a list of candidate blocks, a list of
 * experts, a drafted token, the sign in an Engram gate. The codes of +0 and -0 are one.
 *
 * A tape belongs to whoever declares it; an engine borrows it. Recording takes memory ahead of a step
 * (cedar_tape_reserve), never inside. */
#ifndef CEDAR_ENGINE_TAPE_H
#define CEDAR_ENGINE_TAPE_H

#include "engine/engine.h"

typedef enum cedar_tape_kind {
    CEDAR_TAPE_FP8Q32,          /* 32 codes, then the scale */
    CEDAR_TAPE_FP4Q32,          /* 32 codes of a byte each, then the scale */
    CEDAR_TAPE_FP4Q16,          /* 16 codes of a byte each, then the scale */
    CEDAR_TAPE_TOPK,            /* int32 [k] ascending, -1 padded; as all lists */
    CEDAR_TAPE_BLOCKS,
    CEDAR_TAPE_EXPERTS,
    CEDAR_TAPE_DRAFT,           /* int32 [1], as the next */
    CEDAR_TAPE_GATE,            /* 1 = negative */
    CEDAR_TAPE_KIND_COUNT
} cedar_tape_kind;

extern const char *const cedar_tape_kind_name[CEDAR_TAPE_KIND_COUNT];

/* What a record starts with; `bytes` of payload follow, padded to a multiple of 8. */
typedef struct cedar_tape_head { uint32_t kind, bytes; } cedar_tape_head;

typedef struct cedar_tape {
    uint8_t *bytes;             /* [size] records, `used` of them written */
    uint64_t used, size, at;    /* at: the next record to follow */
    bool following, lost;       /* lost: the runs do not make the same decisions in the same order */
    double tie;                 /* largest distance of a near-tie */
    int32_t layer;              /* the one being run, for messages; set by the forward pass */
    uint64_t decisions, ties;   /* followed; of them near-ties */
    double widest;              /* largest distance among the near-ties */
    uint64_t wrong;             /* differences that are no near-ties */
    cedar_tape_kind wrong_kind; /* the first of them */
    int32_t wrong_layer;
    double wrong_distance;
} cedar_tape;

/* The largest distance of a near-tie for a shape, from the roundings of a float engine (tape.c). */
double cedar_tape_tie(const cedar_config *c);

void cedar_tape_record(cedar_tape *t);              /* empties it: what comes is recorded */
void cedar_tape_follow(cedar_tape *t, double tie);  /* from the start, counts at zero */
void cedar_tape_end(cedar_tape *t);                 /* after following: decisions left over are a difference too */
void cedar_tape_free(cedar_tape *t);                /* its memory; the tape is empty then */

/* Room for what `rows` rows of a step or draft decide. */
cedar_status cedar_tape_reserve(cedar_tape *t, const cedar_config *c, uint32_t rows, cedar_err *err) CEDAR_USE_RESULT;

/* One record. Recording: appends `mine` and returns NULL. Following: the tape's, or NULL when the tape is lost. */
const void *cedar_tape_next(cedar_tape *t, cedar_tape_kind kind, const void *mine, uint32_t bytes, uint32_t decisions);
/* Following: the payload of the record that comes, or NULL. */
const void *cedar_tape_peek(const cedar_tape *t, cedar_tape_kind kind, uint32_t bytes);

/* A decision that differs, whose inputs lie `distance` from the border: a near-tie, or wrong. NaN is wrong. */
void cedar_tape_judge(cedar_tape *t, cedar_tape_kind kind, double distance);

/* Quantised blocks of x: recorded, or compared and then overwritten with the tape's codes and scales. Distances are
 * relative to the largest element of the block. */
void cedar_tape_fp8q32(cedar_tape *t, const double *x, uint8_t *codes, uint8_t *scale);     /* 32 elements */
void cedar_tape_fp4q32(cedar_tape *t, const double *x, int n, uint8_t *nibbles, uint8_t *scales);
void cedar_tape_fp4q16(cedar_tape *t, const double *x, int n, uint8_t *nibbles, uint8_t *scales);

/* Steps and drafts of the engine record on the tape or follow it, on one thread; NULL: no longer. False when its
 * backend cannot. */
bool cedar_engine_tape(cedar_engine *e, cedar_tape *t);

#endif
