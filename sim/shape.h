/* What follows from a model's shape alone: counts of parameters, bytes of a token. Memory: base/mem.h. */
#ifndef CEDAR_SIM_SHAPE_H
#define CEDAR_SIM_SHAPE_H

#include "base/status.h"

typedef struct cedar_shape {
    char name[64];
    double layers, cut, window;         /* cut: layers before the last KV source */
    double parameters;                  /* of all text tensors: the four below */
    double parameters_backbone;         /* 40 layers, embedding, head, Engram projections */
    double parameters_engram;           /* Engram tables */
    double parameters_draft;            /* draft stages */
    double active_prefill;              /* per token: attention, chosen and shared experts, router and mHC of the
                                         * layers before the cut (spec/model.md 1.3) */
    double active_decode;               /* the same of all layers, and the head */
    double kv_token_bytes;              /* global KV rows and index keys of all sources */
    double window_bytes;                /* windows of all layers, one sequence */
} cedar_shape;

/* By name, as the option `model`; nothing is loaded but the shape. data_dir may be NULL. */
cedar_status cedar_shape_figures(const char *model, const char *data_dir, cedar_shape *out,
                                 cedar_err *err) CEDAR_USE_RESULT;

#endif
