/* Fuzz target for the file of published figures (libFuzzer): what is accepted must satisfy what scenarios rely on, what
 * is refused must say why, and nothing may stay behind. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "sim/claims.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_row(const cedar_published *p, int64_t row, int line_before) {
    CEDAR_ASSERT(p->row == row && p->line > line_before);
    CEDAR_ASSERT(*p->source && *p->model && *p->metric && *p->unit);
    CEDAR_ASSERT(p->date && p->hardware && p->engine && p->condition && p->url);
    CEDAR_ASSERT(isfinite(p->value) && p->last_digit > 0 && p->last_digit <= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[64];
    cedar_published_list *l;
    cedar_err err = { 0 };
    int64_t live = cedar_mem_live();
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    CEDAR_ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    cedar_status st = cedar_published_load(path, &l, &err);
    CEDAR_ASSERT(st == CEDAR_OK ? l && l->count > 0 : st == CEDAR_E_FORMAT && !l && strstr(err.msg, path));
    for (size_t i = 0; !st && i < l->count; i++)
        check_row(&l->rows[i], (int64_t)i + 1, i ? l->rows[i - 1].line : 1);
    cedar_published_free(l);
    close(fd);
    CEDAR_ASSERT(cedar_mem_live() == live);
    return 0;
}
