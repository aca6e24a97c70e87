/* Private to engine/: waiting without sleep for what another thread is about to do. To be woken takes tens of us, which
 * several ranks would pay several times a step. Who has watched for a while in vain sleeps as before.
 *
 * Threads: any; a watcher belongs to one. Allocation: none. */
#ifndef CEDAR_ENGINE_WATCH_H
#define CEDAR_ENGINE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* A thread that watches; zeros to begin with. */
typedef struct cedar_watcher {
    int64_t sleeps_until;       /* waits before that time are for sleeping */
} cedar_watcher;

/* Until *word is no longer `seen`, for about `ns`. True: it changed, and what was written before the change is visible.
 *
 * Between looks other threads of this processor go first. When one of them was at work meanwhile, this wait and those
 * of the next 0.2 s are for sleeping, which false says at once: that thread may be the one that is waited for, and who
 * is woken is put on a free processor, while who only lets others go first stays, and may be kept off for some ms. */
bool cedar_watch(cedar_watcher *w, const _Atomic uint64_t *word, uint64_t seen, int64_t ns);

#endif
