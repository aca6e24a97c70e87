/* Safetensors files: u64 LE header length, JSON header, data.
 *
 * Owns parsing and every check of the format: a file that is accepted has tensors that tile its data exactly, in
 * bounds, each as large as its shape and type say. Names and types are borrowed from the JSON document, data from the
 * mapping; both live until cedar_st_close. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/model_int.h"

enum { ST_DIMS_MAX = 8 };
#define ST_HEADER_BYTES_MAX 100000000ull    /* the limit of the format's own library */

struct cedar_safetensors {
    char *name;                         /* of the file, for messages */
    const uint8_t *bytes;               /* whole file */
    uint64_t byte_count;
    bool mapped;
    cedar_json *header;
    uint64_t data_at;                   /* offset of the data in the file */
    uint64_t count;
    cedar_st_tensor *tensors;           /* [count] by position in the file */
    const cedar_st_tensor **by_name;    /* [count] */
};

static const struct { const char *name; uint64_t bytes; } dtypes[] = {
    { "BOOL", 1 }, { "U8", 1 }, { "I8", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "F8_E8M0", 1 },
    { "I16", 2 }, { "U16", 2 }, { "F16", 2 }, { "BF16", 2 }, { "I32", 4 }, { "U32", 4 }, { "F32", 4 },
    { "I64", 8 }, { "U64", 8 }, { "F64", 8 },
};

static uint64_t dtype_bytes(const char *dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (!strcmp(dtypes[i].name, dtype)) return dtypes[i].bytes;
    return 0;
}

static cedar_status bad(const cedar_safetensors *s, const char *tensor, const char *what, cedar_err *err) {
    return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensor \"%s\": %s", s->name, tensor, what);
}

/* Shape and the bytes it needs. */
static cedar_status read_shape(const cedar_safetensors *s, const json_t *o, cedar_st_tensor *t, uint64_t *need,
                               cedar_err *err) {
    const json_t *shape = json_object_get(o, "shape");
    if (!json_is_array(shape)) return bad(s, t->name, "\"shape\" must be an array of sizes", err);
    if (json_array_size(shape) > ST_DIMS_MAX) return bad(s, t->name, "more than 8 dimensions", err);
    t->ndim = (int)json_array_size(shape);
    *need = dtype_bytes(t->dtype);
    if (!*need)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensor \"%s\": type \"%s\" is not known", s->name, t->name,
                          t->dtype);
    for (int i = 0; i < t->ndim; i++) {
        const json_t *v = json_array_get(shape, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return bad(s, t->name, "\"shape\" must hold non-negative integers", err);
        t->shape[i] = json_integer_value(v);
        if (__builtin_mul_overflow(*need, (uint64_t)t->shape[i], need))
            return bad(s, t->name, "the product of its shape exceeds 64 bits", err);
    }
    return CEDAR_OK;
}

static cedar_status read_tensor(const cedar_safetensors *s, const char *name, const json_t *o, cedar_st_tensor *t,
                                cedar_err *err) {
    uint64_t need = 0, room = s->byte_count - s->data_at;
    t->name = name;
    if (!json_is_object(o)) return bad(s, name, "its entry must be an object", err);
    t->dtype = json_string_value(json_object_get(o, "dtype"));
    if (!t->dtype) return bad(s, name, "\"dtype\" must be a string", err);
    cedar_status st = read_shape(s, o, t, &need, err);
    if (st) return st;
    const json_t *at = json_object_get(o, "data_offsets");
    const json_t *lo = json_array_get(at, 0), *hi = json_array_get(at, 1);
    if (json_array_size(at) != 2 || !json_is_integer(lo) || !json_is_integer(hi))
        return bad(s, name, "\"data_offsets\" must be two integers", err);
    int64_t begin = json_integer_value(lo), end = json_integer_value(hi);
    if (begin < 0 || end < begin) return bad(s, name, "\"data_offsets\" must be non-negative and ascend", err);
    if ((uint64_t)end > room)
        return cedar_fail(err, CEDAR_E_FORMAT,
                          "%s: tensor \"%s\" ends at byte %lld of the data, but the file holds only %llu "
                          "(truncated?)",
                          s->name, name, (long long)end, (unsigned long long)room);
    if ((uint64_t)(end - begin) != need)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensor \"%s\" has %lld bytes, but its shape and type need %llu",
                          s->name, name, (long long)(end - begin), (unsigned long long)need);
    t->data = s->bytes + s->data_at + begin;
    t->bytes = need;
    return CEDAR_OK;
}

/* By position; empty tensors before the one that starts where they are, then by name. */
static int compare_place(const void *a, const void *b) {
    const cedar_st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b) {
    const cedar_st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The tensors must tile the data: no hole, no overlap, nothing behind the last. */
static cedar_status check_tiling(const cedar_safetensors *s, cedar_err *err) {
    const uint8_t *next = s->bytes + s->data_at, *end = s->bytes + s->byte_count;
    for (uint64_t i = 0; i < s->count; i++) {
        const cedar_st_tensor *t = &s->tensors[i];
        if (t->data < next)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: tensors \"%s\" and \"%s\" overlap", s->name,
                              s->tensors[i - 1].name, t->name);
        if (t->data > next)
            return cedar_fail(err, CEDAR_E_FORMAT, "%s: %llu bytes before tensor \"%s\" belong to no tensor", s->name,
                              (unsigned long long)(t->data - next), t->name);
        next = t->data + t->bytes;
    }
    if (next != end)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: %llu bytes behind the last tensor belong to no tensor", s->name,
                          (unsigned long long)(end - next));
    return CEDAR_OK;
}

static cedar_status read_tensors(cedar_safetensors *s, cedar_err *err) {
    const char *name;
    json_t *value;
    size_t room = json_object_size(s->header);
    s->tensors = cedar_calloc(room, sizeof *s->tensors);
    s->by_name = cedar_calloc(room, sizeof *s->by_name);
    if (!s->tensors || !s->by_name)
        return cedar_fail(err, CEDAR_E_OOM, "%s: no memory for a list of %zu tensors", s->name, room);
    json_object_foreach(s->header, name, value) {
        if (!strcmp(name, "__metadata__")) continue;
        cedar_status st = read_tensor(s, name, value, &s->tensors[s->count], err);
        if (st) return st;
        s->count++;
    }
    if (s->count > 1) qsort(s->tensors, s->count, sizeof *s->tensors, compare_place);
    for (uint64_t i = 0; i < s->count; i++) s->by_name[i] = &s->tensors[i];
    if (s->count > 1) qsort(s->by_name, s->count, sizeof *s->by_name, compare_name);
    return check_tiling(s, err);
}

static cedar_status read_header(cedar_safetensors *s, cedar_err *err) {
    uint64_t length = 0;
    if (s->byte_count < 8)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: %llu bytes are too few for a safetensors file", s->name,
                          (unsigned long long)s->byte_count);
    for (int i = 7; i >= 0; i--) length = length << 8 | s->bytes[i];
    if (length > ST_HEADER_BYTES_MAX)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the header claims %llu bytes, at most %llu are allowed", s->name,
                          (unsigned long long)length, ST_HEADER_BYTES_MAX);
    if (length > s->byte_count - 8)
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the header claims %llu bytes, but only %llu follow (truncated?)",
                          s->name, (unsigned long long)length, (unsigned long long)(s->byte_count - 8));
    s->data_at = 8 + length;
    cedar_status st = cedar_json_parse((const char *)s->bytes + 8, length, s->name, 1, &s->header, err);
    if (st) return st;
    if (!json_is_object(s->header))
        return cedar_fail(err, CEDAR_E_FORMAT, "%s: the header must be a JSON object", s->name);
    return CEDAR_OK;
}

/* Takes over the mapping on success only. */
static cedar_status parse(const uint8_t *data, uint64_t bytes, const char *name, bool mapped, cedar_safetensors **out,
                          cedar_err *err) {
    cedar_safetensors *s = cedar_calloc(1, sizeof *s);
    if (!s) return cedar_fail(err, CEDAR_E_OOM, "%s: no memory", name);
    s->bytes = data;
    s->byte_count = bytes;
    s->name = cedar_strdup(name);
    cedar_status st = s->name ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "%s: no memory", name);
    if (!st) st = read_header(s, err);
    if (!st) st = read_tensors(s, err);
    if (st) {
        cedar_st_close(s);
        return st;
    }
    s->mapped = mapped;
    *out = s;
    return CEDAR_OK;
}

cedar_status cedar_st_parse(const uint8_t *data, uint64_t bytes, const char *name, cedar_safetensors **out,
                            cedar_err *err) {
    return parse(data, bytes, name, false, out, err);
}

cedar_status cedar_st_open(const char *path, cedar_safetensors **out, cedar_err *err) {
    struct stat info;
    void *map = MAP_FAILED;
    uint64_t bytes = 0;
    cedar_status st = CEDAR_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &info)) {
        st = cedar_fail(err, CEDAR_E_IO, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        st = cedar_fail(err, CEDAR_E_IO, "%s: not a regular file", path);
    } else if (info.st_size < 8) {
        st = cedar_fail(err, CEDAR_E_FORMAT, "%s: %lld bytes are too few for a safetensors file", path,
                        (long long)info.st_size);
    } else {
        bytes = (uint64_t)info.st_size;
        map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) st = cedar_fail(err, CEDAR_E_IO, "%s: cannot be mapped: %s", path, strerror(errno));
    }
    close(fd);
    if (st) return st;
    st = parse(map, bytes, path, true, out, err);
    if (st) munmap(map, bytes);
    return st;
}

void cedar_st_close(cedar_safetensors *s) {
    if (!s) return;
    if (s->mapped) munmap((void *)(uintptr_t)s->bytes, s->byte_count);
    cedar_json_free(s->header);
    cedar_free(s->tensors);
    cedar_free(s->by_name);
    cedar_free(s->name);
    cedar_free(s);
}

uint64_t cedar_st_count(const cedar_safetensors *s) { return s->count; }

const cedar_st_tensor *cedar_st_at(const cedar_safetensors *s, uint64_t i) {
    return i < s->count ? &s->tensors[i] : NULL;
}

const cedar_st_tensor *cedar_st_find(const cedar_safetensors *s, const char *name) {
    uint64_t lo = 0, hi = s->count;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        int order = strcmp(name, s->by_name[mid]->name);
        if (!order) return s->by_name[mid];
        if (order < 0) hi = mid;
        else lo = mid + 1;
    }
    return NULL;
}
