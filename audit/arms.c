/* Arms: what is compared with exact recomputation, and where theory puts its fronts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "audit/audit.h"
#include "audit/audit_int.h"

/* --- kinds -------------------------------------------------------------------------------------------------------- */

static const struct kind {
    const char *name;
    cedar_hits hits;
    cedar_fault fault;
    bool decoder;
    const char *what;
} kinds[] = {
    { "exact", CEDAR_HITS_CONTINUE, CEDAR_FAULT_NONE, false, "exact recomputation, fed in another way" },
    { "stored", CEDAR_HITS_STORED, CEDAR_FAULT_NONE, false, "hits served from stored windows" },
    { "encoder", CEDAR_HITS_REPLAY, CEDAR_FAULT_NONE, false, "encoder replay behind hits" },
    { "decoder", CEDAR_HITS_STORED, CEDAR_FAULT_NONE, true,
      "decoder replay in prefill, hits served from stored windows" },
    { "both", CEDAR_HITS_REPLAY, CEDAR_FAULT_NONE, true, "encoder replay behind hits and decoder replay in prefill" },
    { "stale", CEDAR_HITS_REPLAY, CEDAR_FAULT_STALE, false,
      "deliberate fault: encoder replay without the clip, the rows below S hold another sequence's windows" },
    { "zero", CEDAR_HITS_REPLAY, CEDAR_FAULT_ZERO, false,
      "deliberate fault: encoder replay without the clip, the rows below S hold zeros" },
    { "floor", CEDAR_HITS_REPLAY, CEDAR_FAULT_FLOOR, false,
      "deliberate fault: encoder replay without the write floor, replayed rows overwrite cached global rows" },
    { "shift", CEDAR_HITS_REPLAY, CEDAR_FAULT_SHIFT, false,
      "deliberate fault: encoder replay behind global rows that are one position off" },
    { "coarse", CEDAR_HITS_STORED, CEDAR_FAULT_COARSE, false,
      "yardstick: hits served from stored windows with one mantissa bit less" },
    { "wo_a", CEDAR_HITS_CONTINUE, CEDAR_FAULT_NONE, false,
      "yardstick: exact, with one FP8 quantisation of activations more (the input of wo_a)" }
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static cedar_status unknown(const char *text, const char *word, const char *want, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_ARG, "arm \"%.60s\": \"%.40s\" does not fit here; %s", text, word, want);
}

static cedar_status parse_count(const char *text, const char *word, const char *value, uint32_t halo, uint32_t *out,
                                cedar_err *err) {
    char *end;
    unsigned long n = strtoul(value, &end, 10);
    if (strcmp(value, "halo") == 0 && halo > 0) {
        *out = halo;
        return CEDAR_OK;
    }
    if (*value < '0' || *value > '9' || *end || n > 1u << 24)
        return unknown(text, word, halo ? "give a number of rows, or halo" : "give a number of rows", err);
    *out = (uint32_t)n;
    return CEDAR_OK;
}

static cedar_status parse_name(const char *text, const char *word, const char *value, const char *const *names,
                               int count, const char *want, int *out, cedar_err *err) {
    for (*out = 0; *out < count; ++*out)
        if (strcmp(value, names[*out]) == 0) return CEDAR_OK;
    return unknown(text, word, want, err);
}

static const char *const cut_names[] = { "after", "inside", "inside_clip" };
static const char *const hit_names[] = { "continue", "stored", "replay", "cold" };
static const char *const fault_names[] = { "", "stale", "zero", "floor", "shift", "coarse" };
static const char *const arith_names[] = { "wide", "f32", "bf16" };

const char *audit_cut_name(cedar_cut cut) { return cut_names[cut]; }
const char *audit_hits_name(cedar_hits hits) { return hit_names[hits]; }
const char *audit_fault_name(cedar_fault fault) { return fault_names[fault]; }

/* Adds a word to the label, whose words are separated by single spaces. A setting may be there once. */
static cedar_status add_word(const char *text, const char *word, cedar_arm *arm, cedar_err *err) {
    char key[sizeof arm->label + 2];
    size_t at = strlen(arm->label);
    snprintf(key, sizeof key, " %.*s=", (int)strcspn(word, "="), word);
    if (strstr(arm->label, key)) return unknown(text, word, "the setting is there twice", err);
    snprintf(arm->label + at, sizeof arm->label - at, "%s%s", at ? " " : "", word);
    return CEDAR_OK;
}

/* One "key=value" of an arm. halo_keep is known when the cut is. */
static cedar_status parse_word(const char *text, const char *word, const cedar_config *c, cedar_arm *arm,
                               bool *keep_halo, cedar_err *err) {
    const char *value = strchr(word, '=');
    int choice;
    cedar_status st;
    if (!value) return unknown(text, word, "settings are written key=value", err);
    value++;
    size_t n = (size_t)(value - word) - 1;
    bool replays = arm->hits == CEDAR_HITS_REPLAY;
    if (n == 4 && strncmp(word, "rows", n) == 0 && replays)
        return parse_count(text, word, value, cedar_halo_encoder(c), &arm->rows, err);
    if (n == 4 && strncmp(word, "keep", n) == 0 && arm->decoder) {
        *keep_halo = strcmp(value, "halo") == 0;
        return parse_count(text, word, value, 1, &arm->keep, err);
    }
    if (n == 5 && strncmp(word, "chunk", n) == 0) {
        st = parse_count(text, word, value, 0, &arm->chunk, err);
        return st || arm->chunk ? st : unknown(text, word, "a chunk has at least one row", err);
    }
    if (n == 3 && strncmp(word, "cut", n) == 0 && arm->decoder) {
        st = parse_name(text, word, value, cut_names, 3, "cut is after, inside or inside_clip", &choice, err);
        if (!st) arm->cut = (cedar_cut)choice;
        return st;
    }
    if (n == 4 && strncmp(word, "hits", n) == 0 && !replays && !arm->fault) {
        st = parse_name(text, word, value, hit_names, 4, "hits is continue, stored or cold", &choice, err);
        if (!st && choice == CEDAR_HITS_REPLAY) return unknown(text, word, "the arm for that is encoder or both", err);
        if (!st) arm->hits = (cedar_hits)choice;
        return st;
    }
    if (n == 5 && strncmp(word, "arith", n) == 0 && strncmp(text, "exact", 5) == 0) {
        st = parse_name(text, word, value, arith_names, 3, "arith is wide, f32 or bf16", &arm->arith, err);
        return st;
    }
    return unknown(text, word, "settings are rows= (replay length), keep= and cut= (decoder replay), chunk=, hits= and "
                               "arith= (exact)", err);
}

/* Which control of spec/replay.md 4.4 an arm is; "" when it is what the audit is about. */
static const char *control_of(const cedar_arm *a, const cedar_config *c) {
    uint32_t w = (uint32_t)c->window;
    if (a->fault == CEDAR_FAULT_COARSE || a->wo_a_fp8 || a->arith >= 0) return "C5";
    if (a->fault) return "C4";
    bool halo_rows = a->hits != CEDAR_HITS_REPLAY || a->rows >= cedar_halo_encoder(c);
    bool halo_keep = !a->decoder || a->keep >= cedar_halo_decoder(c, a->cut);
    if (!a->decoder && a->hits == CEDAR_HITS_CONTINUE && !a->chunk) return "C0";
    if (!a->decoder && a->hits != CEDAR_HITS_REPLAY) return "C1";
    if (halo_rows && halo_keep) return "C2";
    bool usual = (a->hits != CEDAR_HITS_REPLAY || a->rows == w) && (!a->decoder || a->keep == w);
    return usual ? "" : "C3";
}

cedar_status cedar_arm_parse(const char *text, const cedar_config *c, cedar_arm *out, cedar_err *err) {
    char words[sizeof out->label], *save = NULL;
    if (strlen(text) >= sizeof words) return cedar_fail(err, CEDAR_E_ARG, "arm \"%.60s...\" is too long", text);
    snprintf(words, sizeof words, "%s", text);
    const char *word = strtok_r(words, " ", &save);
    const struct kind *k = NULL;
    for (int i = 0; i < KINDS && word; i++)
        if (strcmp(kinds[i].name, word) == 0) k = &kinds[i];
    if (!k)
        return unknown(text, word ? word : "", "arms are exact, stored, encoder, decoder, both, stale, zero, floor, "
                                               "shift, coarse and wo_a", err);
    uint32_t w = (uint32_t)c->window;
    cedar_arm arm = { .hits = k->hits, .fault = k->fault, .decoder = k->decoder, .rows = w, .keep = w, .arith = -1,
                      .wo_a_fp8 = strcmp(k->name, "wo_a") == 0 };
    bool keep_halo = false;
    for (cedar_status st = add_word(text, k->name, &arm, err); (word = strtok_r(NULL, " ", &save));) {
        if (!st) st = add_word(text, word, &arm, err);
        if (!st) st = parse_word(text, word, c, &arm, &keep_halo, err);
        if (st) return st;
    }
    if (keep_halo) arm.keep = cedar_halo_decoder(c, arm.cut);
    if (arm.decoder && arm.keep == 0) return unknown(text, "keep=0", "at least one row is kept", err);
    snprintf(arm.what, sizeof arm.what, "%s", k->what);
    snprintf(arm.control, sizeof arm.control, "%s", control_of(&arm, c));
    *out = arm;
    return CEDAR_OK;
}

/* --- fronts ------------------------------------------------------------------------------------------------------- */

/* Only attention mixes positions: a layer's output at p needs its input at p - (W - 1) .. p. A window clipped at F is
 * exact again W - 1 positions further with every layer behind the clip. */
static int64_t encoder_front(const cedar_config *c, const cedar_arm *a, int32_t layer, bool *holds) {
    int64_t w = c->window;
    for (int32_t k = 0; k < c->kv_source_count; k++)      /* a source whose new rows begin before its front */
        if (c->kv_sources[k] <= layer && (w - 1) * c->kv_sources[k] > (int64_t)a->rows) *holds = false;
    return (w - 1) * (layer + 1) - (int64_t)a->rows;
}

static int64_t decoder_front(const cedar_config *c, const cedar_arm *a, int32_t layer) {
    int64_t clipped = layer - c->cut + (a->cut == CEDAR_CUT_INSIDE_CLIP);
    return clipped <= 0 ? INT32_MIN : 1 - (int64_t)a->keep + (c->window - 1) * clipped;
}

int32_t cedar_exact_front(const cedar_config *c, const cedar_arm *a, int32_t layer, bool *holds) {
    *holds = true;
    if (a->fault || a->arith >= 0 || a->wo_a_fp8) {
        *holds = false;
        return INT32_MAX;
    }
    if (a->hits == CEDAR_HITS_REPLAY) {
        /* with decoder replay too, the late layers are clipped at a place that depends on the suffix */
        if (a->decoder && layer > c->cut) *holds = false;
        return (int32_t)encoder_front(c, a, layer, holds);
    }
    return a->decoder ? (int32_t)decoder_front(c, a, layer) : INT32_MIN;
}
