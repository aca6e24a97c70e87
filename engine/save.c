/* Writing a model as a checkpoint directory: config.json, model.safetensors, token_map.bin.
 *
 * Tensors are written in the official order, so equal models give equal files. A failure removes what was written.
 * Allocation: the header text, freed before return. */
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "engine/model_int.h"

enum { PATH_BYTES = 4096 };

/* Header text under construction. */
typedef struct header {
    char *text;
    size_t used, room;
    uint64_t offset;            /* of the next tensor's data */
} header;

static cedar_status append(header *h, cedar_err *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static cedar_status append(header *h, cedar_err *err, const char *fmt, ...) {
    char piece[400];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(piece, sizeof piece, fmt, args);
    va_end(args);
    CEDAR_ASSERT(n >= 0 && (size_t)n < sizeof piece);
    if (h->used + (size_t)n > h->room) {
        size_t room = 2 * h->room + sizeof piece;
        char *grown = cedar_realloc(h->text, room, 1);
        if (!grown) return cedar_fail(err, CEDAR_E_OOM, "no memory for a safetensors header of %zu bytes", room);
        h->text = grown;
        h->room = room;
    }
    memcpy(h->text + h->used, piece, (size_t)n);
    h->used += (size_t)n;
    return CEDAR_OK;
}

static cedar_status append_entry(header *h, const char *name, const char *dtype, const char *shape, uint64_t bytes,
                                 cedar_err *err) {
    uint64_t begin = h->offset;
    h->offset += bytes;
    return append(h, err, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}", begin ? "," : "{",
                  name, dtype, shape, (unsigned long long)begin, (unsigned long long)h->offset);
}

static cedar_status describe(void *self, const cedar_tensor_info *t, cedar_err *err) {
    static const char *const dtype[] = { [CEDAR_W_TILES] = "F8_E4M3", [CEDAR_W_ROWS] = "F8_E4M3", [CEDAR_W_FP4] = "I8",
                                         [CEDAR_W_BF16] = "BF16", [CEDAR_W_F32] = "F32" };
    char shape[64];
    long long cols = t->kind == CEDAR_W_FP4 ? t->cols / 2 : t->cols;
    if (t->ndim == 1) snprintf(shape, sizeof shape, "[%lld]", cols);
    else snprintf(shape, sizeof shape, "[%lld,%lld]", (long long)t->rows, cols);
    cedar_status st = append_entry(self, t->name, dtype[t->kind], shape, cedar_tensor_data_bytes(t), err);
    if (st || !t->scale_name[0]) return st;
    snprintf(shape, sizeof shape, "[%lld,%lld]", (long long)(t->kind == CEDAR_W_TILES ? (t->rows + 31) / 32 : t->rows),
             (long long)(t->cols + 31) / 32);
    return append_entry(self, t->scale_name, "F8_E8M0", shape, cedar_tensor_scale_bytes(t), err);
}

static cedar_status write_bytes(FILE *f, const void *data, uint64_t bytes, cedar_err *err) {
    if (fwrite(data, 1, bytes, f) == bytes) return CEDAR_OK;
    return cedar_fail(err, CEDAR_E_IO, "%s", strerror(errno));
}

static cedar_status write_tensor(void *self, const cedar_tensor_info *t, cedar_err *err) {
    cedar_status st = write_bytes(self, t->slot->data, cedar_tensor_data_bytes(t), err);
    return st || !t->slot->scale ? st : write_bytes(self, t->slot->scale, cedar_tensor_scale_bytes(t), err);
}

static cedar_status write_weights(FILE *f, const cedar_model *m, cedar_err *err) {
    cedar_model *walked = (cedar_model *)(uintptr_t)m; /* the walk wants slots it could fill; here they are only read */
    header h = { 0 };
    cedar_status st = cedar_tensors_visit(&m->config, NULL, describe, &h, err);
    if (!st) st = append(&h, err, "}");
    while (!st && h.used % 8) st = append(&h, err, " ");
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)h.used >> (8 * i));
    if (!st) st = write_bytes(f, length, sizeof length, err);
    if (!st) st = write_bytes(f, h.text, h.used, err);
    if (!st) st = cedar_tensors_visit(&m->config, walked, write_tensor, f, err);
    cedar_free(h.text);
    return st;
}

static cedar_status write_map(FILE *f, const cedar_model *m, cedar_err *err) {
    cedar_status st = CEDAR_OK;
    for (int32_t i = 0; i < m->config.vocab && !st; i++) {
        uint32_t id = (uint32_t)m->token_map[i];
        uint8_t le[4] = { (uint8_t)id, (uint8_t)(id >> 8), (uint8_t)(id >> 16), (uint8_t)(id >> 24) };
        st = write_bytes(f, le, sizeof le, err);
    }
    return st;
}

/* --- the directory ------------------------------------------------------------------------------------------------ */

static cedar_status add_line(void *self, const cedar_tensor_info *t, cedar_err *err) {
    (void)err;
    char line[160];
    int n =
        snprintf(line, sizeof line, "%s %d %lld %lld\n", t->name, (int)t->kind, (long long)t->rows, (long long)t->cols);
    cedar_sha256_add(self, line, (size_t)n);
    return CEDAR_OK;
}

static cedar_status list_hash(const cedar_config *c, char out[CEDAR_SHA256_HEX], cedar_err *err) {
    cedar_sha256 s;
    cedar_sha256_init(&s);
    cedar_status st = cedar_tensors_visit(c, NULL, add_line, &s, err);
    cedar_sha256_hex(&s, out);
    return st;
}

/* The text must describe the model, or the directory could not be opened again. */
static cedar_status check_text(const cedar_model *m, const char *config_json, cedar_err *err) {
    cedar_config c;
    char model[CEDAR_SHA256_HEX], text[CEDAR_SHA256_HEX];
    cedar_status st = cedar_config_parse(config_json, strlen(config_json), "config.json", &c, err);
    if (!st) st = list_hash(&m->config, model, err);
    if (!st) st = list_hash(&c, text, err);
    if (!st && (strcmp(model, text) || c.vocab != m->config.vocab ||
                c.engram_vocab_compressed != m->config.engram_vocab_compressed))
        st = cedar_fail(err, CEDAR_E_ARG, "the given config.json describes other tensors than the model \"%s\" has",
                        m->config.name);
    return st;
}

/* Creates dir or finds it empty. */
static cedar_status claim(const char *dir, bool *made, cedar_err *err) {
    *made = mkdir(dir, 0777) == 0;
    if (*made) return CEDAR_OK;
    DIR *d = errno == EEXIST ? opendir(dir) : NULL;
    if (!d) return cedar_fail(err, CEDAR_E_IO, "%s: cannot be created: %s", dir, strerror(errno));
    bool empty = true;
    for (struct dirent *e = readdir(d); e && empty; e = readdir(d))
        empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
    closedir(d);
    return empty ? CEDAR_OK
                 : cedar_fail(err, CEDAR_E_ARG, "%s: not empty; a checkpoint is only written into a new folder", dir);
}

typedef enum part { PART_CONFIG, PART_WEIGHTS, PART_MAP, PART_COUNT } part;
static const char *const part_name[PART_COUNT] = { "config.json", "model.safetensors", "token_map.bin" };

static cedar_status write_part(const cedar_model *m, const char *config_json, const char *dir, part p, cedar_err *err) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", dir, part_name[p]);
    FILE *f = fopen(path, "wb");
    if (!f) return cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    cedar_status st = p == PART_CONFIG    ? write_bytes(f, config_json, strlen(config_json), err)
                      : p == PART_WEIGHTS ? write_weights(f, m, err)
                                          : write_map(f, m, err);
    if (fclose(f) && !st) st = cedar_fail(err, CEDAR_E_IO, "%s", strerror(errno));
    return st ? cedar_fail_in(err, st, "%s", path) : CEDAR_OK;
}

cedar_status cedar_model_save(const cedar_model *m, const char *config_json, const char *dir, cedar_err *err) {
    bool made;
    if (strlen(dir) + 32 > PATH_BYTES) return cedar_fail(err, CEDAR_E_ARG, "%s: the path is too long", dir);
    cedar_status st = check_text(m, config_json, err);
    if (st) return st;
    if ((st = claim(dir, &made, err))) return st;
    for (int p = 0; p < PART_COUNT && !st; p++) st = write_part(m, config_json, dir, (part)p, err);
    if (!st) return CEDAR_OK;
    for (int p = 0; p < PART_COUNT; p++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", dir, part_name[p]);
        unlink(path);
    }
    if (made) rmdir(dir);
    return st;
}
