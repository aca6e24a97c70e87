/* Fuzz target for the import of AIPerf records (libFuzzer).
 *
 * The first byte chooses what is driven; the rest is the file. Mostly only its lines are parsed, which is fast; one
 * choice in sixteen imports it whole into a database. What is accepted must satisfy what the rows rely on, and nothing
 * may stay behind. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "reports/aiperf.h"
#include "reports/reports.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_record(const aiperf_record *r) {
    CEDAR_ASSERT(r->doc && r->conversation && r->correlation && r->root && r->phase[0]);
    CEDAR_ASSERT(r->start_ns >= 0 && r->end_ns >= r->start_ns && r->turn >= 0 && r->session_num >= -1);
    CEDAR_ASSERT(r->ttft_ns >= -1 && r->latency_ns >= -1);
    CEDAR_ASSERT(r->failed == (r->error[0] != 0) && (!r->cancelled || r->failed));
    CEDAR_ASSERT(!r->failed || (!r->in_tokens && !r->out_tokens && !r->itl_differs && r->ttft_ns == -1));
    CEDAR_ASSERT(strlen(r->error) < sizeof r->error);
}

static void parse_lines(FILE *f) {
    aiperf_lines l;
    aiperf_record r;
    cedar_err err = { 0 };
    bool more;
    cedar_status st = aiperf_lines_open(&l, f, "fuzz.jsonl", &err);
    while (!st && !(st = aiperf_lines_next(&l, &more, &err)) && more) {
        cedar_status bad = aiperf_record_parse(l.text, l.bytes, "fuzz.jsonl", l.line, &r, &err);
        CEDAR_ASSERT(bad == CEDAR_OK || (bad == CEDAR_E_FORMAT && err.msg[0] && !r.doc));
        if (!bad) check_record(&r);
        aiperf_record_free(&r);
    }
    CEDAR_ASSERT(st == CEDAR_OK || (st == CEDAR_E_FORMAT && err.msg[0]));
    aiperf_lines_close(&l);
}

static void import_whole(int fd, bool strict) {
    char path[64], db[64];
    cedar_import_opts opts = { .strict = strict };
    cedar_import_counts c;
    cedar_err err = { 0 };
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(db, sizeof db, "/dev/shm/cedar-fuzz-import-%ld.db", (long)getpid());
    unlink(db);
    cedar_status st = cedar_import_aiperf(path, db, &opts, &c, &err);
    CEDAR_ASSERT(st == CEDAR_OK || (st == CEDAR_E_FORMAT && err.msg[0] && access(db, F_OK) == -1));
    CEDAR_ASSERT(c.requests == c.kept + c.errors + c.other_phase && c.lines == c.requests + c.skipped);
    CEDAR_ASSERT(c.sessions <= c.requests && c.cancelled <= c.requests && c.itl_differs <= c.requests);
    CEDAR_ASSERT(!strict || !c.skipped);
    CEDAR_ASSERT(!c.skipped == !c.skipped_first[0]);
    CEDAR_ASSERT(st || c.requests);
    unlink(db);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    CEDAR_ASSERT(fd >= 0 && write(fd, data + 1, size - 1) == (ssize_t)(size - 1));
    int64_t live = cedar_mem_live();
    FILE *f = fdopen(fd, "rb");
    CEDAR_ASSERT(f);
    if (data[0] % 16) parse_lines(f);
    else import_whole(fd, data[0] & 16);
    fclose(f);
    CEDAR_ASSERT(cedar_mem_live() == live);
    return 0;
}
