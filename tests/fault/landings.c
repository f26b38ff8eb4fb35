#include "landings.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache/expert_cache_internal.h"

#define MAX_CACHES 64 /* one per stage of a model */

/* A cache that has submitted reads. */
struct watched {
    struct expert_cache *cache; /* NULL if the entry is free */
    long n_under_way;           /* reads submitted and not completed */
    bool is_waiting;            /* its thread waits for a read to land */
};

static struct {
    pthread_mutex_t lock; /* may be taken while a cache's lock is held */
    pthread_cond_t is_due;
    struct watched caches[MAX_CACHES];
    void (*done)(struct expert_read *read, bool ok); /* the cache's callback */
    long n_under_way; /* of all caches */
    bool holds;
    long n_held;        /* checksums that wait */
    unsigned n_rounds;  /* how often waiting checksums were released */
} landings = {.lock = PTHREAD_MUTEX_INITIALIZER, .is_due = PTHREAD_COND_INITIALIZER};

int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
void __real_expert_store_submit(struct expert_store *store, struct expert_read *read);
void __wrap_expert_store_submit(struct expert_store *store, struct expert_read *read);
void __real_expert_cache_close(struct expert_cache *cache);
void __wrap_expert_cache_close(struct expert_cache *cache);

/* ---- checksums; all with the lock held ------------------------------------------------------- */

static void let_go(void)
{
    landings.n_rounds++;
    landings.n_held = 0;
    pthread_cond_broadcast(&landings.is_due);
}

/* Called without the cache's lock. While its thread waits, reads are only added to the list; one
 * that is being added is still pending and not held. */
__attribute__((no_sanitize("thread"))) static bool has_landed(const struct expert_cache *cache)
{
    return __atomic_load_n(&cache->first_landed, __ATOMIC_RELAXED) != NO_SLOT;
}

/* Called whenever a thread starts to wait, a checksum is held, or a read completes. */
static void check(const struct watched *w)
{
    if (!w->is_waiting || has_landed(w->cache))
        return;
    if (w->n_under_way == 0) {
        (void)fprintf(stderr, "the cache waits for a read to land, and none is under way: it waits "
                      "for %u experts of the plan and for %u checksums\n",
                      w->cache->plan.n_in_flight, w->cache->plan.n_unverified);
        exit(1);
    }
    if (landings.n_held == landings.n_under_way)
        let_go();
}

static void check_all(void)
{
    for (unsigned i = 0; i < MAX_CACHES; i++)
        if (landings.caches[i].cache != NULL)
            check(&landings.caches[i]);
}

static struct watched *find(const struct expert_cache *cache)
{
    for (unsigned i = 0; i < MAX_CACHES; i++)
        if (landings.caches[i].cache == cache)
            return &landings.caches[i];
    return NULL;
}

/* ---- what tests call ------------------------------------------------------------------------- */

void landings_hold(bool holds)
{
    pthread_mutex_lock(&landings.lock);
    landings.holds = holds;
    let_go();
    pthread_mutex_unlock(&landings.lock);
}

void landings_wait(void)
{
    pthread_mutex_lock(&landings.lock);
    if (landings.holds) {
        const unsigned n_rounds = landings.n_rounds;
        landings.n_held++;
        check_all();
        while (landings.n_rounds == n_rounds)
            (void)__real_pthread_cond_wait(&landings.is_due, &landings.lock);
    }
    pthread_mutex_unlock(&landings.lock);
}

/* ---- what the cache calls, and is called by -------------------------------------------------- */

static void note_done(struct expert_read *read, bool ok)
{
    struct expert_cache *cache = read->ctx; /* a cache is not closed before all its reads have
                                             * completed */
    landings.done(read, ok);
    pthread_mutex_lock(&landings.lock);
    find(cache)->n_under_way--;
    landings.n_under_way--;
    check_all();
    pthread_mutex_unlock(&landings.lock);
}

void __wrap_expert_store_submit(struct expert_store *store, struct expert_read *read)
{
    pthread_mutex_lock(&landings.lock);
    struct watched *w = find(read->ctx);
    if (w == NULL)
        w = find(NULL);
    if (w == NULL)
        abort();
    w->cache = read->ctx;
    w->n_under_way++;
    landings.n_under_way++;
    if (landings.done == NULL) /* the same for all caches */
        landings.done = read->done;
    read->done = note_done;
    pthread_mutex_unlock(&landings.lock);
    __real_expert_store_submit(store, read);
}

void __wrap_expert_cache_close(struct expert_cache *cache)
{
    pthread_mutex_lock(&landings.lock);
    struct watched *w = cache != NULL ? find(cache) : NULL;
    if (w != NULL)
        *w = (struct watched){0};
    pthread_mutex_unlock(&landings.lock);
    __real_expert_cache_close(cache);
}

/* Returns the cache whose thread waits on this condition, or NULL. The lock must be held. */
static struct watched *find_waiting(const pthread_cond_t *cond)
{
    for (unsigned i = 0; i < MAX_CACHES; i++)
        if (landings.caches[i].cache != NULL && cond == &landings.caches[i].cache->has_landed)
            return &landings.caches[i];
    return NULL;
}

static void set_waiting(const pthread_cond_t *cond, bool is_waiting)
{
    pthread_mutex_lock(&landings.lock);
    struct watched *w = find_waiting(cond);
    if (w != NULL) {
        w->is_waiting = is_waiting;
        check(w);
    }
    pthread_mutex_unlock(&landings.lock);
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    set_waiting(cond, true);
    const int rc = __real_pthread_cond_wait(cond, mutex);
    set_waiting(cond, false);
    return rc;
}
