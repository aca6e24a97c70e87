/* The meeting place: one barrier with a limit, and what is exchanged at it. */
#include "engine/ranks.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/watch.h"

/* What is left of the limit once the user has asked to stop, and how often a rank that waits looks for that. */
#define STOP_NS 1000000000
#define LOOK_NS 100000000
/* How long a rank watches for the others before it sleeps: ranks do the same work. */
#define WATCH_NS 200000

typedef struct place {
    bool here;                  /* waits at the present meeting */
    int64_t left_ns;            /* when it left the last one; its own, and the group's between steps */
    uint64_t value;             /* brought to agree */
    void *pointer;              /* brought to share */
    cedar_watcher watcher;
} place;

struct cedar_ranks {
    uint32_t ranks;
    int64_t limit_ns;
    const volatile int *stop;   /* may be NULL */
    pthread_mutex_t lock;
    pthread_cond_t moved;       /* a meeting is complete, or the group is broken */
    place *place;               /* [ranks] */
    uint32_t here;
    _Atomic uint64_t round;     /* meetings completed, and one more when the group breaks; watched without the lock */
    const char *what;
    uint64_t number;
    _Atomic bool broken;
    cedar_err why;
};

cedar_status cedar_ranks_open(uint32_t ranks, int64_t limit_ns, cedar_ranks **out, cedar_err *err) {
    cedar_ranks *g = cedar_calloc(1, sizeof *g);
    place *p = cedar_calloc(ranks, sizeof *p);
    if (!g || !p) {
        cedar_free(g);
        cedar_free(p);
        return cedar_fail(err, CEDAR_E_OOM, "no memory for a group of %u ranks", ranks);
    }
    *g = (cedar_ranks){ .ranks = ranks, .limit_ns = limit_ns, .place = p, .what = "opening" };
    pthread_mutex_init(&g->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->moved, &attr);
    pthread_condattr_destroy(&attr);
    *out = g;
    return CEDAR_OK;
}

void cedar_ranks_heed(cedar_ranks *g, const volatile int *stop) { g->stop = stop; }

void cedar_ranks_close(cedar_ranks *g) {
    if (!g) return;
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->moved);
    cedar_free(g->place);
    cedar_free(g);
}

/* "step 5"; opening has no number. */
static const char *doing(const cedar_ranks *g, char text[64]) {
    if (g->number) snprintf(text, 64, "%.32s %llu", g->what, (unsigned long long)g->number);
    else snprintf(text, 64, "%.32s", g->what);
    return text;
}

/* The lock is held. The first reason stays. */
static void break_group(cedar_ranks *g, const cedar_err *why) {
    if (atomic_load(&g->broken)) return;
    g->why = *why;
    atomic_store(&g->broken, true);
    g->round++;
    pthread_cond_broadcast(&g->moved);
}

static uint32_t first_missing(const cedar_ranks *g) {
    uint32_t r = 0;
    while (r < g->ranks && g->place[r].here) r++;
    return r;
}

static void break_late(cedar_ranks *g, int64_t waited_ns, bool stopped) {
    cedar_err why;
    char text[64];
    uint32_t late = first_missing(g);
    (void)cedar_fail(&why, stopped ? CEDAR_E_INTERRUPT : CEDAR_E_LIVENESS,
                     "%srank %u of %u stalled at %s: the others have waited %.1f s for it",
                     stopped ? "stopped by the user while " : "", late, g->ranks, doing(g, text),
                     (double)waited_ns / 1e9);
    break_group(g, &why);
}

static struct timespec at_time(int64_t ns) {
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };
}

/* The lock is held. Waits until the meeting is complete or the group broken. The limit counts from `start`; 0: none. */
static void wait_for_others(cedar_ranks *g, uint64_t round, int64_t start, int64_t limit_ns) {
    int64_t waited = 0;
    while (g->round == round) {
        int64_t left = limit_ns - waited;
        struct timespec until = at_time(start + waited + (g->stop && left > LOOK_NS ? LOOK_NS : left));
        if (!limit_ns) pthread_cond_wait(&g->moved, &g->lock);
        else if (pthread_cond_timedwait(&g->moved, &g->lock, &until) == ETIMEDOUT && g->round == round) {
            waited = cedar_now_ns() - start;
            bool stopped = g->stop && *g->stop && waited >= STOP_NS + limit_ns - g->limit_ns;
            if (stopped || waited >= limit_ns) break_late(g, waited, stopped);
        }
    }
}

/* All are here, the lock is held: do they agree? */
static void compare(cedar_ranks *g, const char *what) {
    for (uint32_t r = 1; r < g->ranks; r++) {
        if (g->place[r].value == g->place[0].value) continue;
        cedar_err why;
        char text[64];
        (void)cedar_fail(&why, CEDAR_E_DIVERGED, "rank %u of %u %s at %s", r, g->ranks, what, doing(g, text));
        break_group(g, &why);
        return;
    }
}

/* The lock is held. */
static void complete(cedar_ranks *g, const char *agree) {
    if (agree) compare(g, agree);
    for (uint32_t r = 0; r < g->ranks; r++) g->place[r].here = false;
    g->here = 0;
    g->round++;
    pthread_cond_broadcast(&g->moved);
}

/* The lock is held, and given back. Who sees the meeting complete while it watches does not need it again. */
static bool arrive(cedar_ranks *g, uint32_t rank, bool limited, const char *agree) {
    place *p = &g->place[rank];
    uint64_t round = g->round;
    int64_t now = cedar_now_ns(), worked = now - p->left_ns;
    if (atomic_load(&g->broken)) {
        pthread_mutex_unlock(&g->lock);
        return false;
    }
    p->here = true;
    bool last = ++g->here == g->ranks;
    if (last) complete(g, agree);
    pthread_mutex_unlock(&g->lock);
    if (!last && !cedar_watch(&p->watcher, &g->round, round, WATCH_NS)) {
        pthread_mutex_lock(&g->lock);
        wait_for_others(g, round, now, limited ? g->limit_ns + 4 * worked : 0);
        pthread_mutex_unlock(&g->lock);
    }
    p->left_ns = cedar_now_ns();
    return !atomic_load(&g->broken);
}

bool cedar_ranks_meet(cedar_ranks *g, uint32_t rank) {
    pthread_mutex_lock(&g->lock);
    return arrive(g, rank, true, NULL);
}

bool cedar_ranks_agree(cedar_ranks *g, uint32_t rank, uint64_t value, const char *what) {
    pthread_mutex_lock(&g->lock);
    g->place[rank].value = value;
    return arrive(g, rank, true, what);
}

bool cedar_ranks_share(cedar_ranks *g, uint32_t rank, void *mine, void **all) {
    pthread_mutex_lock(&g->lock);
    g->place[rank].pointer = mine;
    if (!arrive(g, rank, false, NULL)) return false;
    for (uint32_t r = 0; r < g->ranks; r++) all[r] = g->place[r].pointer;
    /* nobody posts the next pointer before all have read this one */
    pthread_mutex_lock(&g->lock);
    return arrive(g, rank, false, NULL);
}

void cedar_ranks_fail(cedar_ranks *g, uint32_t rank, cedar_status code, const char *message) {
    cedar_err why;
    char text[64];
    pthread_mutex_lock(&g->lock);
    (void)cedar_fail(&why, code, "rank %u of %u failed at %s: %s", rank, g->ranks, doing(g, text), message);
    break_group(g, &why);
    pthread_mutex_unlock(&g->lock);
}

bool cedar_ranks_broken(const cedar_ranks *g) { return atomic_load(&g->broken); }

cedar_status cedar_ranks_error(const cedar_ranks *g, cedar_err *err) {
    /* the reason is written once, before the flag */
    if (!atomic_load(&g->broken)) return CEDAR_OK;
    return cedar_fail(err, g->why.code, "%s", g->why.msg);
}

void cedar_ranks_now(cedar_ranks *g, const char *what, uint64_t number) {
    pthread_mutex_lock(&g->lock);
    g->what = what;
    g->number = number;
    int64_t now = cedar_now_ns();
    for (uint32_t r = 0; r < g->ranks; r++) g->place[r].left_ns = now;
    pthread_mutex_unlock(&g->lock);
}
