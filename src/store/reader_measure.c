#include "store/reader_measure.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/plat.h"

struct measure_slot {
    struct expert_read read;
    uint64_t n_reads; /* so far: each of its places in turn */
    bool is_busy, is_landed, is_ok;
};

struct measure {
    const struct model *model;
    struct expert_store *store;
    unsigned n_slots;
    uint64_t n_places; /* of each slot */
    struct measure_slot *slots;
    char *memory; /* [n_slots, n_places, expert_slot_bytes] */
    uint64_t random;
    pthread_mutex_t lock; /* covers is_landed and is_ok */
    pthread_cond_t has_landed;
};

static uint32_t next_random(struct measure *m, uint32_t below)
{
    m->random = m->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(((m->random >> 32) * below) >> 32);
}

/* Runs on a reader thread. */
static void landed(struct expert_read *read, bool ok)
{
    struct measure *m = read->ctx;
    struct measure_slot *slot = (struct measure_slot *)(void *)read; /* its first member */
    pthread_mutex_lock(&m->lock);
    slot->is_landed = true;
    slot->is_ok = ok;
    pthread_cond_signal(&m->has_landed);
    pthread_mutex_unlock(&m->lock);
}

static const struct expert_layer *next_expert(struct measure *m, uint32_t *layer, uint32_t *expert)
{
    *layer = next_random(m, m->model->n_expert_layers);
    *expert = next_random(m, m->model->expert_layers[*layer].n_experts);
    return &m->model->expert_layers[*layer];
}

/* Takes the experts of the next pass, as run_pass will draw them, out of the page cache. */
static void drop_pages(struct measure *m, uint64_t bytes)
{
    const uint64_t random = m->random;
    uint64_t asked = 0;
    uint32_t layer, expert;
    for (unsigned n = 0; n < m->n_slots || asked < bytes; n++) {
        const struct expert_layer *l = next_expert(m, &layer, &expert);
        for (uint32_t i = 0; i < l->n_extents; i++) {
            const struct extent *e = &l->extents[(size_t)expert * l->n_extents + i];
            plat_drop_pages(m->model->source->files[e->file].fd, e->offset, e->bytes);
        }
        asked += l->read_bytes;
    }
    m->random = random;
}

static uint64_t start(struct measure *m, struct measure_slot *slot)
{
    assert(!slot->is_busy);
    slot->is_busy = true;
    slot->is_landed = false;
    const struct expert_layer *l =
        next_expert(m, &slot->read.expert_layer, &slot->read.expert);
    const uint64_t place = (uint64_t)(slot - m->slots) * m->n_places +
                           slot->n_reads++ % m->n_places;
    slot->read.dst = m->memory + place * m->model->expert_slot_bytes;
    slot->read.urgency = READ_NEEDED;
    slot->read.done = landed;
    slot->read.ctx = m;
    expert_store_submit(m->store, &slot->read);
    return l->read_bytes;
}

/* Waits for a slot that has landed and makes it free; NULL when none is under way. */
static struct measure_slot *wait_for_one(struct measure *m)
{
    bool is_any = false;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        is_any = false;
        for (unsigned i = 0; i < m->n_slots; i++) {
            struct measure_slot *slot = &m->slots[i];
            is_any |= slot->is_busy;
            if (slot->is_busy && slot->is_landed) {
                slot->is_busy = false;
                pthread_mutex_unlock(&m->lock);
                return slot;
            }
        }
        if (!is_any)
            break;
        pthread_cond_wait(&m->has_landed, &m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static int run_pass(struct measure *m, uint64_t bytes, double *figure, struct fm_error *err)
{
    uint64_t asked = 0;
    int rc = 0;
    if (!expert_store_is_direct(m->store))
        drop_pages(m, bytes);
    const uint64_t begin_ns = plat_now_ns();
    for (unsigned i = 0; i < m->n_slots; i++)
        asked += start(m, &m->slots[i]);
    for (struct measure_slot *slot = wait_for_one(m); slot != NULL; slot = wait_for_one(m)) {
        if (!slot->is_ok && rc == 0)
            rc = expert_store_explain(m->store, &slot->read, err);
        if (rc == 0 && asked < bytes)
            asked += start(m, slot);
    }
    const uint64_t ns = plat_now_ns() - begin_ns;
    *figure = (double)asked * 1e9 / (double)(ns > 0 ? ns : 1);
    return rc;
}

static int take_memory(struct measure *m, uint64_t bytes, struct fm_error *err)
{
    const uint64_t n = bytes / m->model->expert_slot_bytes / m->n_slots;
    m->n_places = n > 1 ? n : 1;
    const uint64_t all = m->n_slots * m->n_places * m->model->expert_slot_bytes;
    m->slots = mem_new(m->n_slots, sizeof *m->slots, "the measurement", err);
    m->memory = mem_new_bulk(all, "the measurement", err);
    if (m->slots == NULL || m->memory == NULL)
        return FM_ERR_NOMEM;
    for (uint64_t at = 0; at < all; at += MEM_PAGE)
        m->memory[at] = 1; /* a page is there from its first use on */
    return 0;
}

int reader_measure(const struct model *model, struct expert_store *store,
                   const struct reader_measurement *how, double figures[READER_PASSES_MAX],
                   struct fm_error *err)
{
    struct measure m = {.model = model, .store = store, .n_slots = how->n_experts_at_a_time,
                        .random = 1 + how->seed};
    int rc = take_memory(&m, how->memory_bytes, err);
    pthread_mutex_init(&m.lock, NULL);
    pthread_cond_init(&m.has_landed, NULL);
    double first;
    /* The disk wakes up, and every place has been read into once: under a hypervisor memory takes
     * longer the first time (1.8 GB/s, then 3.8). */
    const uint64_t all = m.n_slots * m.n_places * model->expert_slot_bytes;
    if (rc == 0)
        rc = run_pass(&m, all > how->pass_bytes / 4 ? all : how->pass_bytes / 4, &first, err);
    for (unsigned i = 0; rc == 0 && i < how->n_passes && i < READER_PASSES_MAX; i++) {
        rc = run_pass(&m, how->pass_bytes, &figures[i], err);
        if (rc == 0 && how->pass_done != NULL)
            how->pass_done(how->ctx);
    }
    pthread_cond_destroy(&m.has_landed);
    pthread_mutex_destroy(&m.lock);
    mem_free(m.memory);
    mem_free(m.slots);
    return rc;
}
