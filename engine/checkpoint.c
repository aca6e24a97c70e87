/* Checkpoints in the official layout: finds every tensor of the shape in the safetensors files of a directory, checks
 * type, shape and values, and points the model at the mapped bytes.
 *
 * Types are those of the official files and no others: F8_E4M3 with F8_E8M0 scales, I8 for packed FP4, BF16, F32.
 * Tensors of the vision tower and its aligner are left alone; any other tensor that the shape does not have is refused.
 * Ownership: a store owns the mapped files and becomes the model's storage. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/model_int.h"

enum { PATH_BYTES = 4096, SHARDS_MAX = 4096 };
#define INDEX_BYTES_MAX 100000000ull
/* Scales are always scanned for NaN; data only up to this size, so that an Engram table of 100 GB is not read whole
 * before the first token. A NaN code behind the limit would show in the first step that uses it. */
#define SCAN_BYTES_MAX (1ull << 30)

typedef struct entry {
    const cedar_st_tensor *tensor;
    uint32_t file;
    bool used;
} entry;

typedef struct store {
    uint32_t file_count;
    char **names;                       /* [file_count] paths */
    cedar_safetensors **files;          /* [file_count] */
    uint64_t count;
    entry *entries;                     /* [count] ascending name; while opening only */
} store;

static void store_free(void *self) {
    store *s = self;
    if (!s) return;
    for (uint32_t i = 0; i < s->file_count; i++) {
        if (s->files) cedar_st_close(s->files[i]);
        if (s->names) cedar_free(s->names[i]);
    }
    cedar_free(s->files);
    cedar_free(s->names);
    cedar_free(s->entries);
    cedar_free(s);
}

static cedar_status join(const char *dir, const char *name, char out[PATH_BYTES], cedar_err *err) {
    int n = snprintf(out, PATH_BYTES, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_BYTES) return cedar_fail(err, CEDAR_E_ARG, "%s: the path is too long", dir);
    return CEDAR_OK;
}

static bool exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

/* --- which files -------------------------------------------------------------------------------------------------- */

static cedar_status store_room(store *s, uint32_t files, cedar_err *err) {
    s->names = cedar_calloc(files, sizeof *s->names);
    s->files = cedar_calloc(files, sizeof *s->files);
    if (!s->names || !s->files) return cedar_fail(err, CEDAR_E_OOM, "no memory for a list of %u files", files);
    return CEDAR_OK;
}

static cedar_status store_add(store *s, const char *dir, const char *name, cedar_err *err) {
    char path[PATH_BYTES];
    cedar_status st = join(dir, name, path, err);
    if (st) return st;
    uint32_t i = s->file_count++;
    s->names[i] = cedar_strdup(path);
    if (!s->names[i]) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory", path);
    return cedar_st_open(path, &s->files[i], err);
}

static int compare_text(const void *a, const void *b) {
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* Opens every distinct shard of a weight map, in ascending order of name. */
static cedar_status open_shards(store *s, const char *dir, const char *index_path, const json_t *map, cedar_err *err) {
    const char *name;
    json_t *value;
    size_t n = 0;
    cedar_status st = CEDAR_OK;
    const char **shards = cedar_calloc(json_object_size(map), sizeof *shards);
    if (!shards) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory", index_path);
    json_object_foreach((json_t *)(uintptr_t)map, name, value) {
        shards[n] = json_string_value(value);
        if (!shards[n] || !shards[n][0] || strchr(shards[n], '/')) {
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s: the file of tensor \"%s\" must be a file name without folder",
                            index_path, name);
            goto done;
        }
        n++;
    }
    if (n > 1) qsort(shards, n, sizeof *shards, compare_text);
    size_t distinct = 0;
    for (size_t i = 0; i < n; i++)
        if (!i || strcmp(shards[i], shards[distinct - 1])) shards[distinct++] = shards[i];
    if (!distinct || distinct > SHARDS_MAX) {
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: \"weight_map\" names %zu files, allowed are 1 to %d", index_path,
                        distinct, SHARDS_MAX);
        goto done;
    }
    st = store_room(s, (uint32_t)distinct, err);
    for (size_t i = 0; i < distinct && !st; i++) {
        st = store_add(s, dir, shards[i], err);
        if (st == CEDAR_E_IO) st = cedar_fail_in(err, st, "%s names a file that cannot be opened", index_path);
    }
done:
    cedar_free(shards);
    return st;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The weight map and the files must say the same about every tensor. */
static cedar_status compare_map(const store *s, const char *index_path, const json_t *map, cedar_err *err) {
    for (uint64_t i = 0; i < s->count; i++) {
        const char *name = s->entries[i].tensor->name, *file = s->names[s->entries[i].file];
        const char *want = json_string_value(json_object_get(map, name));
        if (!want)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensor \"%s\" is not in the weight map of %s", file, name,
                              index_path);
        if (strcmp(want, base_name(file)))
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensor \"%s\" should be in %s, but %s holds it", index_path,
                              name, want, base_name(file));
    }
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, name, value) {
        bool found = false;
        for (uint32_t f = 0; f < s->file_count && !found; f++) found = cedar_st_find(s->files[f], name);
        if (!found)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensor \"%s\" should be in %s, but no file holds it",
                              index_path, name, json_string_value(value));
    }
    return CEDAR_OK;
}

static int compare_entry(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int order = strcmp(x->tensor->name, y->tensor->name);
    return order ? order : (x->file > y->file) - (x->file < y->file);
}

static cedar_status list_entries(store *s, cedar_err *err) {
    uint64_t total = 0, n = 0;
    for (uint32_t f = 0; f < s->file_count; f++) total += cedar_st_count(s->files[f]);
    s->entries = cedar_calloc(total, sizeof *s->entries);
    if (!s->entries)
        return cedar_fail(err, CEDAR_E_OOM, "no memory for a list of %llu tensors", (unsigned long long)total);
    for (uint32_t f = 0; f < s->file_count; f++)
        for (uint64_t i = 0; i < cedar_st_count(s->files[f]); i++)
            s->entries[n++] = (entry){ .tensor = cedar_st_at(s->files[f], i), .file = f };
    s->count = n;
    if (n > 1) qsort(s->entries, n, sizeof *s->entries, compare_entry);
    for (uint64_t i = 1; i < n; i++)
        if (!strcmp(s->entries[i].tensor->name, s->entries[i - 1].tensor->name))
            return cedar_fail(err, CEDAR_E_FORMAT, "tensor \"%s\" is in both %s and %s", s->entries[i].tensor->name,
                              s->names[s->entries[i - 1].file], s->names[s->entries[i].file]);
    return CEDAR_OK;
}

static cedar_status open_indexed(store *s, const char *dir, const char *index_path, cedar_err *err) {
    cedar_json *doc = NULL;
    const cedar_json *map;
    cedar_status st = cedar_json_load(index_path, INDEX_BYTES_MAX, &doc, err);
    if (st) return st;
    st = cedar_json_object(doc, index_path, "weight_map", &map, err);
    if (!st) st = open_shards(s, dir, index_path, map, err);
    if (!st) st = list_entries(s, err);
    if (!st) st = compare_map(s, index_path, map, err);
    cedar_json_free(doc);
    return st;
}

/* model.safetensors if there is one, else the shards of model.safetensors.index.json. */
static cedar_status store_open(const char *dir, store *s, cedar_err *err) {
    char single[PATH_BYTES], index_path[PATH_BYTES];
    cedar_status st;
    if ((st = join(dir, "model.safetensors", single, err))) return st;
    if ((st = join(dir, "model.safetensors.index.json", index_path, err))) return st;
    if (!exists(single) && !exists(index_path))
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: has neither model.safetensors nor model.safetensors.index.json, which names the shards",
                          dir);
    if (!exists(single)) return open_indexed(s, dir, index_path, err);
    if ((st = store_room(s, 1, err))) return st;
    if ((st = store_add(s, dir, "model.safetensors", err))) return st;
    return list_entries(s, err);
}

/* --- one tensor --------------------------------------------------------------------------------------------------- */

static entry *store_find(const store *s, const char *name) {
    uint64_t lo = 0, hi = s->count;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        int order = strcmp(name, s->entries[mid].tensor->name);
        if (!order) return &s->entries[mid];
        if (order < 0) hi = mid;
        else lo = mid + 1;
    }
    return NULL;
}

static void shape_text(int ndim, const int64_t *shape, char out[200]) {
    int n = snprintf(out, 200, "[");
    for (int i = 0; i < ndim && n < 170; i++)
        n += snprintf(out + n, (size_t)(200 - n), i ? ", %lld" : "%lld", (long long)shape[i]);
    snprintf(out + n, (size_t)(200 - n), "]");
}

/* Finds a stored tensor and checks its type and shape. */
static cedar_status take(const store *s, const char *name, const char *dtype, int ndim, const int64_t *shape,
                         const cedar_st_tensor **out, cedar_err *err) {
    entry *e = store_find(s, name);
    char want[200], found[200];
    shape_text(ndim, shape, want);
    if (!e)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensor \"%s\" is missing, expected %s %s", s->names[0], name, dtype,
                          want);
    const cedar_st_tensor *t = e->tensor;
    bool same = t->ndim == ndim && !strcmp(t->dtype, dtype);
    for (int i = 0; i < ndim && same; i++) same = t->shape[i] == shape[i];
    if (!same) {
        shape_text(t->ndim, t->shape, found);
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensor \"%s\" is %s %s, expected %s %s", s->names[e->file], name,
                          t->dtype, found, dtype, want);
    }
    e->used = true;
    *out = t;
    return CEDAR_OK;
}

/* Index of the first value that is no finite number, or -1. Little endian, as the files are. */
static int64_t find_bad(const uint8_t *p, uint64_t bytes, cedar_weight_kind kind) {
    if (kind == CEDAR_W_TILES || kind == CEDAR_W_ROWS) {
        for (uint64_t i = 0; i < bytes; i++)
            if ((p[i] & 0x7f) == 0x7f) return (int64_t)i;
    } else if (kind == CEDAR_W_BF16) {
        for (uint64_t i = 0; i < bytes; i += 2)
            if ((p[i + 1] & 0x7f) == 0x7f && (p[i] & 0x80)) return (int64_t)(i / 2);
    } else if (kind == CEDAR_W_F32) {
        for (uint64_t i = 0; i < bytes; i += 4)
            if ((p[i + 3] & 0x7f) == 0x7f && (p[i + 2] & 0x80)) return (int64_t)(i / 4);
    }
    return -1;                          /* every FP4 code is a number */
}

static cedar_status check_values(const cedar_tensor_info *t, const cedar_st_tensor *data, const cedar_st_tensor *scale,
                                 cedar_err *err) {
    int64_t at = data->bytes <= SCAN_BYTES_MAX ? find_bad(data->data, data->bytes, t->kind) : -1;
    if (at >= 0)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "tensor \"%s\": element %lld (row %lld, column %lld) is not a finite number", t->name,
                          (long long)at, (long long)(at / t->cols), (long long)(at % t->cols));
    const uint8_t *nan_byte = scale ? memchr(scale->data, 0xff, scale->bytes) : NULL;
    if (nan_byte)
        return cedar_fail(err, CEDAR_E_FORMAT, "tensor \"%s\": scale %lld is NaN (byte 255)", t->scale_name,
                          (long long)(nan_byte - scale->data));
    return CEDAR_OK;
}

static cedar_status open_tensor(void *self, const cedar_tensor_info *t, cedar_err *err) {
    static const char *const dtype[] = { [CEDAR_W_TILES] = "F8_E4M3", [CEDAR_W_ROWS] = "F8_E4M3", [CEDAR_W_FP4] = "I8",
                                         [CEDAR_W_BF16] = "BF16", [CEDAR_W_F32] = "F32" };
    store *s = self;
    const cedar_st_tensor *data, *scale = NULL;
    int64_t stored[2] = { t->rows, t->kind == CEDAR_W_FP4 ? t->cols / 2 : t->cols };
    int64_t scales[2] = { t->kind == CEDAR_W_TILES ? (t->rows + 31) / 32 : t->rows, (t->cols + 31) / 32 };
    cedar_status st = take(s, t->name, dtype[t->kind], t->ndim, stored + 2 - t->ndim, &data, err);
    if (!st && t->scale_name[0]) st = take(s, t->scale_name, "F8_E8M0", 2, scales, &scale, err);
    if (!st) st = check_values(t, data, scale, err);
    if (st) return st;
    *t->slot = (cedar_weight){ .kind = t->kind, .rows = t->rows, .cols = t->cols, .data = data->data,
                               .scale = scale ? scale->data : NULL };
    return CEDAR_OK;
}

/* Image parts that a text engine leaves alone. */
static bool is_ignorable(const char *name) {
    static const char *const prefix[] = { "vision.", "vision_", "visual.", "aligner.", "projector.", "image_" };
    for (size_t i = 0; i < sizeof prefix / sizeof prefix[0]; i++)
        if (!strncmp(name, prefix[i], strlen(prefix[i]))) return true;
    return false;
}

static cedar_status check_extras(const store *s, cedar_err *err) {
    for (uint64_t i = 0; i < s->count; i++) {
        const entry *e = &s->entries[i];
        if (!e->used && !is_ignorable(e->tensor->name))
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensor \"%s\" does not belong to the shape in config.json",
                              s->names[e->file], e->tensor->name);
    }
    return CEDAR_OK;
}

/* --- token map ---------------------------------------------------------------------------------------------------- */

static cedar_status read_token_map(const char *dir, cedar_model *m, cedar_err *err) {
    char path[PATH_BYTES];
    cedar_status st = join(dir, "token_map.bin", path, err);
    if (st) return st;
    FILE *f = fopen(path, "rb");
    if (!f) return errno == ENOENT ? CEDAR_OK : cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    int32_t limit = m->config.engram_vocab_compressed;
    for (int32_t i = 0; i < m->config.vocab && !st; i++) {
        uint8_t b[4];
        if (fread(b, 1, 4, f) != 4) {
            st = cedar_fail(err, CEDAR_E_FORMAT, "%s: ends after %d entries, \"vocab_size\" is %d", path, i,
                            m->config.vocab);
            break;
        }
        uint32_t id = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        if (id >= (uint32_t)limit)
            st = cedar_fail(err, CEDAR_E_FORMAT,
                            "%s: entry %d is %d, it must lie below \"engram_compressed_vocab_size\" %d", path, i,
                            (int32_t)id, limit);
        m->token_map[i] = (int32_t)id;
    }
    if (!st && fgetc(f) != EOF)
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: longer than the %d entries of \"vocab_size\"", path, m->config.vocab);
    fclose(f);
    return st;
}

cedar_status cedar_model_open(const char *dir, cedar_model **out, cedar_err *err) {
    cedar_config *config = NULL;
    cedar_model *m = NULL;
    store *s = NULL;
    char path[PATH_BYTES];
    cedar_status st = join(dir, "config.json", path, err);
    if (st) return st;
    config = cedar_calloc(1, sizeof *config);
    s = cedar_calloc(1, sizeof *s);
    if (!config || !s) {
        st = cedar_fail(err, CEDAR_E_OOM, "%s: no memory", dir);
        goto done;
    }
    if ((st = cedar_config_load(path, config, err))) goto done;
    if ((st = cedar_model_new(config, &m, err))) goto done;
    if ((st = store_open(dir, s, err))) goto done;
    if ((st = cedar_tensors_visit(config, m, open_tensor, s, err))) goto done;
    if ((st = check_extras(s, err))) goto done;
    if ((st = read_token_map(dir, m, err))) goto done;
    snprintf(m->origin, sizeof m->origin, "checkpoint %.240s", dir);
    cedar_free(s->entries);
    s->entries = NULL;
    m->storage = s;
    m->storage_free = store_free;
    s = NULL;
    *out = m;
    m = NULL;
done:
    store_free(s);
    cedar_model_close(m);
    cedar_free(config);
    return st;
}
