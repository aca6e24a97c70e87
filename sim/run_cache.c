/* What the runs of a scenario have in common: the last model and the last traces stay loaded, so that the points of a
 * sweep do not make the same weights and read the same files again. */
#include <string.h>

#include "base/mem.h"
#include "sim/run_int.h"

struct cedar_run_cache {
    char *model_key, *corpus_key;       /* NULL: nothing is kept */
    cedar_model *model;
    char origin[256], hash[65];
    cedar_corpus *corpus;
};

/* The parts, each ended by a byte that no part holds; owned by the caller. */
static char *make_key(const char *const *parts, size_t count) {
    size_t n = 1;
    for (size_t i = 0; i < count; i++) n += strlen(parts[i]) + 1;
    char *key = cedar_calloc(n, 1), *to = key;
    for (size_t i = 0; i < count && key; i++) {
        size_t part = strlen(parts[i]);
        memcpy(to, parts[i], part);
        to[part] = '\n';
        to += part + 1;
    }
    return key;
}

cedar_status cedar_run_cache_new(cedar_run_cache **out, cedar_err *err) {
    *out = cedar_calloc(1, sizeof **out);
    return *out ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "no memory for what runs have in common");
}

static void drop_model(cedar_run_cache *c) {
    cedar_model_close(c->model);
    cedar_free(c->model_key);
    c->model = NULL;
    c->model_key = NULL;
}

static void drop_corpus(cedar_run_cache *c) {
    cedar_corpus_free(c->corpus);
    cedar_free(c->corpus_key);
    c->corpus = NULL;
    c->corpus_key = NULL;
}

void cedar_run_cache_free(cedar_run_cache *c) {
    if (!c) return;
    drop_model(c);
    drop_corpus(c);
    cedar_free(c);
}

cedar_status cedar_run_load_model(cedar_run_cache *c, const cedar_run_opts *o, const char *data_dir, cedar_model **out,
                                  char origin[256], char hash[65], cedar_err *err) {
    cedar_backend_kind backend = cedar_run_backend(o);
    const char *parts[] = { o->model, cedar_opts_get(o, "weights_seed"), data_dir,
                            backend == CEDAR_BACKEND_NONE ? "none" : backend == CEDAR_BACKEND_CUDA ? "cuda" : "host" };
    char *key = c ? make_key(parts, sizeof parts / sizeof *parts) : NULL;
    if (c && !key) return cedar_fail(err, CEDAR_E_OOM, "no memory for the name of a model");
    if (c && c->model && strcmp(key, c->model_key) == 0) {
        cedar_free(key);
    } else {
        if (c) drop_model(c);       /* before the next one takes its memory */
        cedar_weights_place place = backend == CEDAR_BACKEND_NONE   ? CEDAR_WEIGHTS_NONE
                                    : backend == CEDAR_BACKEND_CUDA ? CEDAR_WEIGHTS_DEVICE
                                                                    : CEDAR_WEIGHTS_HOST;
        cedar_status st = cedar_model_find(o->model, data_dir, (uint64_t)o->weights_seed, place, out, origin, err);
        if (st) {
            cedar_free(key);
            return st;
        }
        cedar_model_hash(*out, hash);
        if (!c) return CEDAR_OK;
        c->model = *out;
        c->model_key = key;
        memcpy(c->origin, origin, sizeof c->origin);
        memcpy(c->hash, hash, sizeof c->hash);
    }
    *out = c->model;
    memcpy(origin, c->origin, sizeof c->origin);
    memcpy(hash, c->hash, sizeof c->hash);
    return CEDAR_OK;
}

cedar_status cedar_run_load_corpus(cedar_run_cache *c, const cedar_run_opts *o, const char *data_dir,
                                   cedar_corpus **out, cedar_err *err) {
    const cedar_corpus_opts corpus = { .format = CEDAR_TRACE_AUTO, .strict = o->strict,
                                       .traces_max = (uint32_t)o->traces_max, .split_flattened = o->split_flattened };
    const char *parts[] = { o->trace, cedar_opts_get(o, "strict"), cedar_opts_get(o, "traces_max"),
                            cedar_opts_get(o, "split_flattened"), data_dir };
    char *key = c ? make_key(parts, sizeof parts / sizeof *parts) : NULL;
    if (c && !key) return cedar_fail(err, CEDAR_E_OOM, "no memory for the names of traces");
    if (c && c->corpus && strcmp(key, c->corpus_key) == 0) {
        cedar_free(key);
        *out = c->corpus;
        return CEDAR_OK;
    }
    if (c) drop_corpus(c);
    cedar_status st = cedar_traces_find(o->trace, data_dir, &corpus, out, err);
    if (st || !c) {
        cedar_free(key);
        return st;
    }
    c->corpus = *out;
    c->corpus_key = key;
    return CEDAR_OK;
}
