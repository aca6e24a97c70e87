/* Layers: what the exact arm and the arm under test computed inside, row by row, through the engine's taps.
 *
 * Both arms' rows of a block are held side by side; they are compared when both have run. */
#include <math.h>
#include <string.h>

#include "audit/audit_int.h"
#include "base/mem.h"

/* What one arm left for one row and layer. */
typedef struct cell {
    double *h, *pre;            /* [hc * hidden], [hc] */
    uint8_t *window;            /* [head_dim + head_dim / 32] */
    int32_t *topk, *router;     /* [index_topk], [experts_per_token] */
    int64_t *engram;            /* [engram_rows_per_token] */
    bool ran, has_window, has_topk, has_engram;
} cell;

struct audit_inside {
    const cedar_config *c;
    cedar_audit_list layers;
    int32_t slot[CEDAR_LAYERS_MAX];     /* layer -> index in layers, or -1 */
    uint32_t rows_max, tokens_max, first;
    cell *cells[2];                     /* exact arm, arm under test: [rows_max][layers] */
    uint8_t *storage[2];
    size_t cell_bytes;
    int who;                            /* whose steps are watched: 0 exact, 1 under test */
    uint32_t latent_first;              /* position */
    double *latent[CEDAR_LAYERS_MAX];   /* by KV source: [tokens_max / ratio + 1][head_dim] of the exact arm */
    double *latent_rel[CEDAR_LAYERS_MAX];   /* relative error of the arm under test, NaN where not seen */
    bool *latent_seen[CEDAR_LAYERS_MAX];
};

/* --- memory ------------------------------------------------------------------------------------------------------- */

static size_t part_bytes(size_t count, size_t size) { return (count * size + 15) / 16 * 16; }

static size_t sizes(const cedar_config *c, size_t out[6]) {
    out[0] = part_bytes((size_t)c->hc * (size_t)c->hidden, sizeof(double));
    out[1] = part_bytes((size_t)c->hc, sizeof(double));
    out[2] = part_bytes((size_t)(c->head_dim + c->head_dim / 32), 1);
    out[3] = part_bytes((size_t)c->index_topk, sizeof(int32_t));
    out[4] = part_bytes((size_t)c->experts_per_token, sizeof(int32_t));
    out[5] = part_bytes((size_t)c->engram_rows_per_token, sizeof(int64_t));
    return out[0] + out[1] + out[2] + out[3] + out[4] + out[5];
}

/* Storage comes from cedar_calloc, aligned; every part is a multiple of 16 bytes. */
static void place(audit_inside *in, int who) {
    size_t part[6];
    sizes(in->c, part);
    for (size_t i = 0; i < (size_t)in->rows_max * in->layers.count; i++) {
        uint8_t *at = in->storage[who] + i * in->cell_bytes;
        cell *x = &in->cells[who][i];
        x->h = (double *)(void *)at;
        x->pre = (double *)(void *)(at += part[0]);
        x->window = at += part[1];
        x->topk = (int32_t *)(void *)(at += part[2]);
        x->router = (int32_t *)(void *)(at += part[3]);
        x->engram = (int64_t *)(void *)(at += part[4]);
    }
}

static bool latents_new(audit_inside *in) {
    const cedar_config *c = in->c;
    bool ok = true;
    for (int32_t k = 0; k < c->kv_source_count; k++) {
        int32_t layer = c->kv_sources[k];
        size_t entries = in->tokens_max / (uint32_t)c->ratio[layer] + 1;
        in->latent[layer] = cedar_calloc(entries * (size_t)c->head_dim, sizeof(double));
        in->latent_rel[layer] = cedar_calloc(entries, sizeof(double));
        in->latent_seen[layer] = cedar_calloc(entries, sizeof(bool));
        ok = ok && in->latent[layer] && in->latent_rel[layer] && in->latent_seen[layer];
    }
    return ok;
}

cedar_status audit_inside_new(const cedar_config *c, const cedar_audit_list *layers, uint32_t rows_max,
                              uint32_t tokens_max, audit_inside **out, cedar_err *err) {
    *out = NULL;
    if (layers->count == 0) return CEDAR_OK;
    for (uint32_t i = 0; i < layers->count; i++)
        if (layers->v[i] >= (uint32_t)c->layers)
            return cedar_fail(err, CEDAR_E_ARG, "layers: %u is none of the model's layers 0 to %d", layers->v[i],
                              c->layers - 1);
    size_t part[6];
    audit_inside *in = cedar_calloc(1, sizeof *in);
    if (!in) return cedar_fail(err, CEDAR_E_OOM, "no memory for a look inside");
    in->c = c;
    in->layers = *layers;
    in->rows_max = rows_max;
    in->tokens_max = tokens_max;
    in->cell_bytes = sizes(c, part);
    for (int l = 0; l < CEDAR_LAYERS_MAX; l++) in->slot[l] = -1;
    for (uint32_t i = 0; i < layers->count; i++) in->slot[layers->v[i]] = (int32_t)i;
    bool ok = latents_new(in);
    for (int who = 0; who < 2; who++) {
        in->cells[who] = cedar_calloc((size_t)rows_max * layers->count, sizeof(cell));
        in->storage[who] = cedar_calloc((size_t)rows_max * layers->count, in->cell_bytes);
        ok = ok && in->cells[who] && in->storage[who];
    }
    if (!ok) {
        audit_inside_free(in);
        return cedar_fail(err, CEDAR_E_OOM, "no memory to look into %u layers of %u rows; choose fewer layers or a "
                          "smaller score_rows", layers->count, rows_max);
    }
    place(in, 0);
    place(in, 1);
    *out = in;
    return CEDAR_OK;
}

void audit_inside_free(audit_inside *in) {
    if (!in) return;
    for (int who = 0; who < 2; who++) {
        cedar_free(in->cells[who]);
        cedar_free(in->storage[who]);
    }
    for (int l = 0; l < CEDAR_LAYERS_MAX; l++) {
        cedar_free(in->latent[l]);
        cedar_free(in->latent_rel[l]);
        cedar_free(in->latent_seen[l]);
    }
    cedar_free(in);
}

/* --- watching ----------------------------------------------------------------------------------------------------- */

static double relative(const double *want, const double *got, size_t n) {
    double difference = 0, size = 0;
    for (size_t k = 0; k < n; k++) {
        difference += (got[k] - want[k]) * (got[k] - want[k]);
        size += want[k] * want[k];
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}

/* The exact arm's steps come first, so its latent is there when the arm's comes. */
static void see_latent(audit_inside *in, int32_t layer, uint32_t entry, const double *latent) {
    uint32_t ratio = (uint32_t)in->c->ratio[layer], first = in->latent_first / ratio, d = (uint32_t)in->c->head_dim;
    if (entry < first || entry - first > in->tokens_max / ratio) return;
    entry -= first;
    double *want = in->latent[layer] + (size_t)entry * d;
    if (in->who == 0) {
        memcpy(want, latent, d * sizeof *want);
        in->latent_seen[layer][entry] = true;
    } else if (in->latent_seen[layer][entry]) {
        in->latent_rel[layer][entry] = relative(want, latent, d);
    }
}

static void tap(void *self, cedar_tap_kind kind, int32_t layer, int32_t seq, uint32_t pos, const void *data,
                uint32_t width) {
    audit_inside *in = self;
    (void)seq;
    if (kind == CEDAR_TAP_LATENT) see_latent(in, layer, pos, data);
    if (kind == CEDAR_TAP_LATENT || kind == CEDAR_TAP_RING || layer >= in->c->layers || in->slot[layer] < 0) return;
    if (pos < in->first || pos - in->first >= in->rows_max) return;
    cell *x = &in->cells[in->who][(size_t)(pos - in->first) * in->layers.count + (size_t)in->slot[layer]];
    switch (kind) {
    case CEDAR_TAP_H:
        memcpy(x->h, data, width * sizeof(double));
        x->ran = true;
        return;
    case CEDAR_TAP_PRE: memcpy(x->pre, data, width * sizeof(double)); return;
    case CEDAR_TAP_WINDOW:
        memcpy(x->window, data, width);
        x->has_window = true;
        return;
    case CEDAR_TAP_TOPK:
        memcpy(x->topk, data, width * sizeof(int32_t));
        x->has_topk = true;
        return;
    case CEDAR_TAP_ROUTER_IDS: memcpy(x->router, data, width * sizeof(int32_t)); return;
    case CEDAR_TAP_ENGRAM_ROWS:
        memcpy(x->engram, data, width * sizeof(int64_t));
        x->has_engram = true;
        return;
    default: return;
    }
}

void audit_inside_watch(audit_inside *in, cedar_engine *e, uint32_t first, bool exact) {
    in->who = exact ? 0 : 1;
    in->first = first;
    for (size_t i = 0; i < (size_t)in->rows_max * in->layers.count; i++) {
        cell *x = &in->cells[in->who][i];
        x->ran = x->has_window = x->has_topk = x->has_engram = false;
    }
    cedar_engine_tap(e, tap, in);
}

void audit_inside_stop(cedar_engine *e) { cedar_engine_tap(e, NULL, NULL); }

void audit_inside_turn(audit_inside *in, uint32_t first) {
    in->latent_first = first;
    for (int32_t k = 0; k < in->c->kv_source_count; k++) {
        int32_t layer = in->c->kv_sources[k];
        size_t entries = in->tokens_max / (uint32_t)in->c->ratio[layer] + 1;
        memset(in->latent_seen[layer], 0, entries * sizeof(bool));
        for (size_t i = 0; i < entries; i++) in->latent_rel[layer][i] = (double)NAN;
    }
}

double audit_inside_latent(const audit_inside *in, int32_t source, uint32_t entry) {
    uint32_t ratio = (uint32_t)in->c->ratio[source], first = in->latent_first / ratio;
    if (entry < first || entry - first > in->tokens_max / ratio) return (double)NAN;
    return in->latent_rel[source][entry - first];
}

/* --- comparing ---------------------------------------------------------------------------------------------------- */

static double vector_at(const cedar_config *c, const cell *x, int32_t k) {
    double sum = 0;
    for (int32_t s = 0; s < c->hc; s++) sum += x->pre[s] * x->h[(int64_t)s * c->hidden + k];
    return sum;
}

static void compare_vectors(const cedar_config *c, const cell *p, const cell *q, cedar_audit_layer_row *out) {
    double difference = 0, pp = 0, qq = 0, pq = 0;
    for (int32_t k = 0; k < c->hidden; k++) {
        double a = vector_at(c, p, k), b = vector_at(c, q, k);
        difference += (b - a) * (b - a);
        pp += a * a;
        qq += b * b;
        pq += a * b;
    }
    out->vector_rel = difference == 0 ? 0 : sqrt(difference / pp);
    out->cosine = difference == 0 ? 1 : pq / sqrt(pp * qq);
}

/* Both lists ascend and are padded with -1. */
static double list_jaccard(const int32_t *a, const int32_t *b, int32_t n) {
    int32_t i = 0, k = 0, both = 0, either = 0;
    while ((i < n && a[i] >= 0) || (k < n && b[k] >= 0)) {
        int64_t x = i < n && a[i] >= 0 ? a[i] : INT64_MAX, y = k < n && b[k] >= 0 ? b[k] : INT64_MAX;
        both += x == y;
        either++;
        i += x <= y;
        k += y <= x;
    }
    return either ? (double)both / (double)either : 1;
}

bool audit_inside_compare(const audit_inside *in, uint32_t pos, uint32_t i, cedar_audit_layer_row *out) {
    const cedar_config *c = in->c;
    if (pos < in->first || pos - in->first >= in->rows_max) return false;
    size_t at = (size_t)(pos - in->first) * in->layers.count + i, bytes = (size_t)(c->head_dim + c->head_dim / 32);
    const cell *p = &in->cells[0][at], *q = &in->cells[1][at];
    if (!p->ran || !q->ran) return false;
    size_t differ = 0;
    for (size_t k = 0; k < bytes; k++) differ += p->window[k] != q->window[k];
    out->layer = (int32_t)in->layers.v[i];
    out->stream_rel = relative(p->h, q->h, (size_t)c->hc * (size_t)c->hidden);
    compare_vectors(c, p, q, out);
    out->window_differ = p->has_window && q->has_window ? (double)differ / (double)bytes : (double)NAN;
    out->topk_jaccard = p->has_topk && q->has_topk ? list_jaccard(p->topk, q->topk, c->index_topk) : (double)NAN;
    out->router_flip = memcmp(p->router, q->router, (size_t)c->experts_per_token * sizeof *p->router) != 0;
    out->engram_differs = p->has_engram != q->has_engram ||
                          (p->has_engram && memcmp(p->engram, q->engram,
                                                   (size_t)c->engram_rows_per_token * sizeof *p->engram) != 0);
    return true;
}
