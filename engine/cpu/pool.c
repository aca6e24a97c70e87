/* The thread pool. */
#include "engine/cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/mem.h"

enum { SPIN_ROUNDS = 2000 };    /* about 2 us: a step hands out work every few hundred us */

static inline void cpu_relax(void) {
#if defined __x86_64__
    __builtin_ia32_pause();
#endif
}

struct cedar_pool {
    uint32_t workers;           /* the caller is worker 0 */
    pthread_t *threads;         /* [workers - 1] */
    uint32_t started;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    _Atomic uint64_t round;     /* number of the current job */
    _Atomic uint32_t next, busy;
    uint32_t items;
    cedar_pool_fn fn;
    void *ctx;
    bool quit;
};

typedef struct thread_arg { cedar_pool *pool; uint32_t worker; } thread_arg;

static void take_items(cedar_pool *p, uint32_t worker) {
    for (;;) {
        uint32_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->items) return;
        p->fn(p->ctx, i, worker);
    }
}

static void *thread_main(void *arg) {
    thread_arg a = *(thread_arg *)arg;
    cedar_free(arg);
    cedar_pool *p = a.pool;
    uint64_t seen = 0;
    for (;;) {
        for (int s = 0; s < SPIN_ROUNDS && atomic_load_explicit(&p->round, memory_order_acquire) == seen; s++)
            cpu_relax();
        pthread_mutex_lock(&p->lock);
        while (atomic_load(&p->round) == seen && !p->quit) pthread_cond_wait(&p->wake, &p->lock);
        seen = atomic_load(&p->round);
        bool quit = p->quit;
        pthread_mutex_unlock(&p->lock);
        if (quit) return NULL;
        take_items(p, a.worker);
        if (atomic_fetch_sub(&p->busy, 1) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

cedar_status cedar_pool_open(uint32_t threads, cedar_pool **out, cedar_err *err) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (threads == 0) threads = online > 0 ? (uint32_t)online : 1;
    if (threads > 1024) return cedar_fail(err, CEDAR_E_ARG, "threads is %u; at most 1024 are supported", threads);
    cedar_pool *p = cedar_calloc(1, sizeof *p);
    if (!p) return cedar_fail(err, CEDAR_E_OOM, "no memory for a thread pool");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->workers = threads;
    p->threads = cedar_calloc(threads, sizeof *p->threads);
    cedar_status st = p->threads ? CEDAR_OK : cedar_fail(err, CEDAR_E_OOM, "no memory for a thread pool");
    for (uint32_t i = 1; i < threads && !st; i++) {
        thread_arg *a = cedar_calloc(1, sizeof *a);
        if (a) *a = (thread_arg){ p, i };
        if (!a || pthread_create(&p->threads[i - 1], NULL, thread_main, a)) {
            cedar_free(a);
            st = cedar_fail(err, CEDAR_E_OOM, "the system gave %u of %u threads; ask for fewer with threads=", i,
                            threads);
        } else {
            p->started++;
        }
    }
    if (st) {
        cedar_pool_close(p);
        return st;
    }
    *out = p;
    return CEDAR_OK;
}

void cedar_pool_close(cedar_pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    atomic_fetch_add(&p->round, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->started; i++) pthread_join(p->threads[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    cedar_free(p->threads);
    cedar_free(p);
}

uint32_t cedar_pool_workers(const cedar_pool *p) { return p->workers; }

void cedar_pool_run(cedar_pool *p, uint32_t items, cedar_pool_fn fn, void *ctx) {
    if (items <= 1 || p->workers == 1) {
        for (uint32_t i = 0; i < items; i++) fn(ctx, i, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->ctx = ctx;
    p->items = items;
    atomic_store(&p->next, 0);
    atomic_store(&p->busy, p->workers - 1);
    atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    take_items(p, 0);
    for (int s = 0; s < SPIN_ROUNDS && atomic_load(&p->busy); s++) cpu_relax();
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->busy)) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
