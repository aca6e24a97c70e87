/* Figures of a shape. */
#include "sim/shape.h"

#include <stdio.h>

#include "base/mem.h"
#include "sim/sim_int.h"

/* Parameters that a token meets in one layer: routed experts that it goes to, not all. */
static double active_layer(const cedar_config *c) {
    double d = c->hidden, heads = (double)c->heads * c->head_dim, ql = c->q_lora,
           lora = (double)c->o_groups * c->o_lora;
    double attention = ql * d + heads * ql + c->head_dim * d + lora * (heads / c->o_groups) + d * lora;
    double expert = 3.0 * c->moe_dim * d, router = c->experts * d, mix = 2.0 * (2 + c->hc) * c->hc * c->hc * d;
    return attention + (c->experts_per_token + 1) * expert + router + mix;
}

static void fill(const cedar_config *c, const cedar_memory_plan *p, cedar_shape *out) {
    double layer = active_layer(c);
    *out = (cedar_shape){ .layers = c->layers, .cut = c->cut, .window = c->window,
                          .parameters = (double)p->parameters,
                          .parameters_engram = (double)p->parameters_engram,
                          .parameters_draft = (double)p->parameters_draft,
                          .active_prefill = c->cut * layer,
                          .active_decode = c->layers * layer + (double)c->vocab * c->hidden,
                          .kv_token_bytes = (double)p->kv_token_bytes_x1000 / 1000,
                          .window_bytes = (double)p->window_bytes };
    out->parameters_backbone = out->parameters - out->parameters_engram - out->parameters_draft;
    snprintf(out->name, sizeof out->name, "%s", c->name);
}

cedar_status cedar_shape_figures(const char *model, const char *data_dir, cedar_shape *out, cedar_err *err) {
    cedar_config *c = cedar_calloc(1, sizeof *c);
    cedar_memory_plan plan;
    if (!c) return cedar_fail(err, CEDAR_E_OOM, "no memory for a model's shape");
    cedar_status st = cedar_shape_find(model, data_dir, c, err);
    if (!st) st = cedar_plan_memory(c, NULL, &plan, err);
    if (!st) fill(c, &plan, out);
    cedar_free(c);
    return st;
}
