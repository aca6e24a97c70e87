/* Event queue: a binary heap keyed (time, class, sequence). The sequence makes the order total, so that events of one
 * time come out in the order they went in, on every machine. */
#include "base/mem.h"
#include "sim/sim_int.h"

static bool before(const cedar_event *a, const cedar_event *b) {
    if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns;
    if (a->class_ != b->class_) return a->class_ < b->class_;
    return a->sequence < b->sequence;
}

static void swap(cedar_event *a, cedar_event *b) {
    cedar_event t = *a;
    *a = *b;
    *b = t;
}

cedar_status cedar_events_push(cedar_events *q, cedar_event event, cedar_err *err) {
    if (q->count == q->capacity) {
        size_t capacity = q->capacity ? 2 * q->capacity : 64;
        cedar_event *heap = cedar_realloc(q->heap, capacity, sizeof *heap);
        if (!heap) return cedar_fail(err, CEDAR_E_OOM, "no memory for %zu waiting events", capacity);
        q->heap = heap;
        q->capacity = capacity;
    }
    q->pushed++;
    if (!event.sequence) event.sequence = q->pushed;
    event.time_ns += q->shift_ns;
    size_t i = q->count++;
    q->heap[i] = event;
    for (; i > 0 && before(&q->heap[i], &q->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&q->heap[i], &q->heap[(i - 1) / 2]);
    return CEDAR_OK;
}

const cedar_event *cedar_events_first(cedar_events *q) {
    if (!q->count) return NULL;
    q->first = q->heap[0];
    q->first.time_ns -= q->shift_ns;
    return &q->first;
}

cedar_event cedar_events_pop(cedar_events *q) {
    CEDAR_ASSERT(q->count > 0);
    cedar_event first = q->heap[0];
    first.time_ns -= q->shift_ns;
    q->heap[0] = q->heap[--q->count];
    for (size_t i = 0;;) {
        size_t child = 2 * i + 1;
        if (child >= q->count) break;
        if (child + 1 < q->count && before(&q->heap[child + 1], &q->heap[child])) child++;
        if (!before(&q->heap[child], &q->heap[i])) break;
        swap(&q->heap[child], &q->heap[i]);
        i = child;
    }
    return first;
}

void cedar_events_clear(cedar_events *q) { q->count = 0; }

void cedar_events_free(cedar_events *q) {
    cedar_free(q->heap);
    *q = (cedar_events){ 0 };
}
