/* Waiting without sleep. */
#include "engine/watch.h"

#include <sched.h>
#include <stdatomic.h>

#include "base/clock.h"

/* Looks before others go first, about a us; what shows that another thread was at work (a call that finds none takes
 * less than a us, an interrupt some us); and how long waits are for sleeping then. */
enum { LOOKS = 16, WORK_NS = 20000, CROWDED_NS = 200000000 };

static inline void relax(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#endif
}

static bool changes(const _Atomic uint64_t *word, uint64_t seen) {
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load(word) != seen) return true;
        relax();
    }
    return false;
}

bool cedar_watch(cedar_watcher *w, const _Atomic uint64_t *word, uint64_t seen, int64_t ns) {
    int64_t start = cedar_now_ns(), before = start;
    if (start < w->sleeps_until) return false;
    while (!changes(word, seen)) {
        sched_yield();
        int64_t now = cedar_now_ns();
        bool crowded = now - before > WORK_NS;
        if (crowded) w->sleeps_until = now + CROWDED_NS;
        if (crowded || now - start > ns) return atomic_load(word) != seen;
        before = now;
    }
    return true;
}
