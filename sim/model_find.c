/* Finding models and traces by the names users write. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "sim/sim_int.h"

enum { PATH_BYTES = 1024 };

static bool is_directory(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static bool exists(const char *path) { return access(path, R_OK) == 0; }

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* A directory or file as given, else the same under data_dir, else a name in scenarios/models. */
static cedar_status model_path(const char *name, const char *data_dir, char out[PATH_BYTES], cedar_err *err) {
    const char *dir = data_dir ? data_dir : ".";
    if (!*name)
        return cedar_fail(err, CEDAR_E_ARG,
                          "model is empty; give a name in scenarios/models, a config.json, or a "
                          "checkpoint directory");
    bool path = strchr(name, '/') || ends_with(name, ".json");
    int n = 0;
    if (path || is_directory(name)) {
        n = snprintf(out, PATH_BYTES, "%s", name);
        if (n < PATH_BYTES && exists(out)) return CEDAR_OK;
        n = snprintf(out, PATH_BYTES, "%s/%s", dir, name);
        if (n < PATH_BYTES && exists(out)) return CEDAR_OK;
        return cedar_fail(err, CEDAR_E_IO, "model %s: no such file or directory, neither here nor under %s", name, dir);
    }
    n = snprintf(out, PATH_BYTES, "%s/scenarios/models/%s.json", dir, name);
    if (n < PATH_BYTES && exists(out)) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_IO,
                      "model %s: there is no %s/scenarios/models/%s.json; give a name from that folder, a "
                      "config.json, or a checkpoint directory",
                      name, dir, name);
}

/* A directory is a checkpoint when it holds weights, or what is left of them: then opening it says what is missing, and
 * seeded weights do not take their place unseen. Else it is only a shape. */
static bool has_weights(const char *path) {
    bool found = false;
    DIR *d = opendir(path);
    for (struct dirent *e; d && !found && (e = readdir(d));)
        found = ends_with(e->d_name, ".safetensors") || ends_with(e->d_name, ".safetensors.index.json");
    if (d) closedir(d);
    return found;
}

/* Seeded weights may take half of the machine's memory. */
static uint64_t synth_bytes_max(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size / 2 : 1ull << 32;
}

cedar_status cedar_shape_find(const char *name, const char *data_dir, cedar_config *out, cedar_err *err) {
    char path[PATH_BYTES];
    cedar_status st = model_path(name, data_dir, path, err);
    return st ? st : cedar_config_load(path, out, err);
}

cedar_status cedar_model_find(const char *name, const char *data_dir, uint64_t seed, cedar_weights_place place,
                              cedar_model **out, char origin[256], cedar_err *err) {
    char path[PATH_BYTES];
    cedar_status st = model_path(name, data_dir, path, err);
    if (st) return st;
    if (place != CEDAR_WEIGHTS_NONE && is_directory(path) && has_weights(path)) {
        snprintf(origin, 256, "checkpoint %.240s", path);
        return cedar_model_open(path, out, err);
    }
    cedar_config *config = cedar_calloc(1, sizeof *config);
    if (!config) return cedar_fail(err, CEDAR_E_OOM, "no memory for a model's shape");
    st = cedar_config_load(path, config, err);
    if (!st && place == CEDAR_WEIGHTS_HOST) st = cedar_model_synth(config, seed, synth_bytes_max(), out, err);
    else if (!st && place == CEDAR_WEIGHTS_DEVICE) st = cedar_model_seeded(config, seed, out, err);
    else if (!st) st = cedar_model_shape(config, out, err);
    if (st == CEDAR_E_BUDGET)
        cedar_fail_in(err, st, "seeded weights for model %s may take half of this machine's memory", name);
    if (place == CEDAR_WEIGHTS_NONE) snprintf(origin, 256, "shape only");
    else snprintf(origin, 256, "synthetic seed %llu", (unsigned long long)seed);
    cedar_free(config);
    return st;
}

/* --- traces ------------------------------------------------------------------------------------------------------- */

static cedar_status trace_path(const char *word, size_t bytes, const char *data_dir, char **out, cedar_err *err) {
    const char *dir = data_dir ? data_dir : ".";
    size_t room = bytes + strlen(dir) + 2;
    char *path = cedar_calloc(room, 1);
    if (!path) return cedar_fail(err, CEDAR_E_OOM, "no memory for a path");
    snprintf(path, room, "%.*s", (int)bytes, word);
    if (!exists(path)) snprintf(path, room, "%s/%.*s", dir, (int)bytes, word);
    if (!exists(path)) {
        cedar_free(path);
        return cedar_fail(err, CEDAR_E_IO, "trace %.*s: no such file or directory, neither here nor under %s",
                          (int)bytes, word, dir);
    }
    *out = path;
    return CEDAR_OK;
}

cedar_status cedar_traces_find(const char *paths, const char *data_dir, const cedar_corpus_opts *opts,
                               cedar_corpus **out, cedar_err *err) {
    size_t count = 1, n = 0;
    for (const char *s = paths; *s; s++) count += *s == ',';
    char **found = cedar_calloc(count, sizeof *found);
    if (!found) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu paths", count);
    cedar_status st = CEDAR_OK;
    for (const char *s = paths; !st && n < count; n++) {
        size_t bytes = strcspn(s, ",");
        st = trace_path(s, bytes, data_dir, &found[n], err);
        s += bytes + (s[bytes] == ',');
    }
    if (!st) st = cedar_corpus_load((const char *const *)found, count, opts, out, err);
    for (size_t i = 0; i < count; i++) cedar_free(found[i]);
    cedar_free(found);
    return st;
}
