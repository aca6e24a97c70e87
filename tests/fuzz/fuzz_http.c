/* Fuzz target (libFuzzer): what endpoints send. The first byte says how the rest is cut into packets; the events must
 * not depend on it, and events, error texts and samples of any bytes keep their promises.
 *
 *     make fuzz T=http S=60 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "http/http_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LIMIT = 4096 };

typedef struct heard {
    uint64_t hash, events;
    http_answer answer;
    int64_t now;
} heard;

static bool on_event(void *self, const char *data, size_t bytes) {
    heard *h = self;
    if (bytes >= LIMIT) abort();
    h->events++;
    for (size_t i = 0; i < bytes; i++) h->hash = h->hash * 1099511628211u + (uint8_t)data[i] + 1;
    h->hash = h->hash * 31 + 7;
    return h->answer.class_ || http_answer_event(&h->answer, data, bytes, ++h->now) || h->answer.class_;
}

static cedar_status listen_to(const char *text, size_t size, size_t step, heard *h) {
    *h = (heard){ .answer = { .first_ns = -1, .last_ns = -1 } };
    http_sse s = { .limit = LIMIT, .self = h, .event = on_event };
    cedar_status st = CEDAR_OK;
    for (size_t at = 0; at < size && !st; at += step)
        st = http_sse_feed(&s, text + at, size - at < step ? size - at : step);
    if (!st) st = http_sse_end(&s);
    http_sse_free(&s);
    const http_answer *a = &h->answer;
    if ((a->deltas > 0) != (a->first_ns >= 0) || a->last_ns < a->first_ns) abort();
    if (memchr(a->error, 0, sizeof a->error) == NULL || memchr(a->finish, 0, sizeof a->finish) == NULL) abort();
    return st;
}

static void read_texts(const char *text, size_t size) {
    char *copy = malloc(size + 1), error[CEDAR_HTTP_ERROR_BYTES];
    if (!copy) abort();
    memcpy(copy, text, size);
    copy[size] = 0;
    http_error_text(copy, "data", error);
    if (strstr(error, "data")) abort();
    http_says_overflow(error);
    cedar_http_sample s;
    for (const char *left = copy; cedar_http_sample_next(&left, &s);) {
        if (s.name < copy || s.name + s.name_bytes > copy + size || !s.name_bytes) abort();
        if (s.label_bytes && (s.labels < copy || s.labels + s.label_bytes > copy + size)) abort();
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    const char *text = (const char *)data + 1;
    heard whole, parts;
    size_t step = data[0] ? data[0] : 1;
    cedar_status st = listen_to(text, size - 1, size, &whole);
    /* one line may reach the limit in one packet and not in many, which forget what they have passed over */
    cedar_status again = listen_to(text, size - 1, step, &parts);
    if (st != again && st != CEDAR_E_BUDGET && again != CEDAR_E_BUDGET) abort();
    if (!st && !again && (whole.hash != parts.hash || whole.events != parts.events)) abort();
    read_texts(text, size - 1);
    if (cedar_mem_live()) abort();
    return 0;
}
