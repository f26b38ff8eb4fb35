#include "store/reader_measure.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/plat.h"

struct measure_request {
    struct expert_read read;
    uint64_t n_reads; /* so far; they use the places in turn */
    bool is_busy, is_landed, is_ok;
};

struct measure {
    const struct model *model;
    struct expert_store *store;
    unsigned n_requests;
    bool in_groups;
    uint64_t n_places; /* per request */
    struct measure_request *requests;
    char *memory; /* [n_requests, n_places, expert_slot_bytes] */
    uint32_t *layers; /* [n_layers] that have files; a part of a model lacks some */
    uint32_t n_layers;
    int disk;
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
    struct measure_request *request = (struct measure_request *)(void *)read; /* its first member */
    pthread_mutex_lock(&m->lock);
    request->is_landed = true;
    request->is_ok = ok;
    pthread_cond_signal(&m->has_landed);
    pthread_mutex_unlock(&m->lock);
}

static const struct expert_layer *next_expert(struct measure *m, uint32_t *layer, uint32_t *expert)
{
    *layer = m->layers[next_random(m, m->n_layers)];
    *expert = next_random(m, m->model->expert_layers[*layer].n_experts);
    return &m->model->expert_layers[*layer];
}

/* Drops the experts of the next pass from the page cache. Draws the same ones as run_pass. */
static void drop_pages(struct measure *m, uint64_t bytes)
{
    const uint64_t random = m->random;
    uint64_t asked = 0;
    uint32_t layer, expert;
    for (unsigned n = 0; n < m->n_requests || asked < bytes || (m->in_groups && n % m->n_requests);
         n++) {
        const struct expert_layer *l = next_expert(m, &layer, &expert);
        for (uint32_t i = 0; i < l->n_extents; i++) {
            const struct extent *e = &l->extents[(size_t)expert * l->n_extents + i];
            plat_drop_pages(m->model->source->files[e->file].fd, e->offset, e->bytes);
        }
        asked += l->read_bytes;
    }
    m->random = random;
}

static uint64_t start(struct measure *m, struct measure_request *request)
{
    assert(!request->is_busy);
    request->is_busy = true;
    request->is_landed = false;
    const struct expert_layer *l =
        next_expert(m, &request->read.expert_layer, &request->read.expert);
    const uint64_t place = (uint64_t)(request - m->requests) * m->n_places +
                           request->n_reads++ % m->n_places;
    request->read.dst = m->memory + place * m->model->expert_slot_bytes;
    request->read.urgency = READ_NEEDED;
    request->read.done = landed;
    request->read.ctx = m;
    expert_store_submit(m->store, &request->read);
    return l->read_bytes;
}

/* Waits for a request that has landed and frees it; NULL when none is in flight. */
static struct measure_request *wait_for_one(struct measure *m)
{
    bool is_any = false;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        is_any = false;
        for (unsigned i = 0; i < m->n_requests; i++) {
            struct measure_request *request = &m->requests[i];
            is_any |= request->is_busy;
            if (request->is_busy && request->is_landed) {
                request->is_busy = false;
                pthread_mutex_unlock(&m->lock);
                return request;
            }
        }
        if (!is_any)
            break;
        pthread_cond_wait(&m->has_landed, &m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* Returns the bytes that the measured disks have read so far. */
static uint64_t read_so_far(const struct measure *m)
{
    uint64_t bytes = 0;
    for (unsigned d = 0; d < expert_store_n_disks(m->model); d++)
        if (m->disk < 0 || m->disk == (int)d)
            bytes += expert_store_disk(m->store, d).bytes;
    return bytes;
}

static int run_pass(struct measure *m, uint64_t bytes, double *figure, struct fm_error *err)
{
    uint64_t asked = 0;
    int rc = 0;
    if (!expert_store_is_direct(m->store))
        drop_pages(m, bytes);
    const uint64_t before = read_so_far(m);
    const uint64_t begin_ns = plat_now_ns();
    do {
        for (unsigned i = 0; i < m->n_requests; i++)
            asked += start(m, &m->requests[i]);
        struct measure_request *request;
        while ((request = wait_for_one(m)) != NULL) {
            if (!request->is_ok && rc == 0)
                rc = expert_store_explain(m->store, &request->read, err);
            if (rc == 0 && asked < bytes && !m->in_groups)
                asked += start(m, request);
        }
    } while (rc == 0 && asked < bytes);
    const uint64_t ns = plat_now_ns() - begin_ns;
    *figure = (double)(read_so_far(m) - before) * 1e9 / (double)(ns > 0 ? ns : 1);
    return rc;
}

/* Returns whether a layer has files, and some of its first expert on the measured disk. */
static bool is_measured(const struct measure *m, const struct expert_layer *layer)
{
    const struct source *source = m->model->source;
    bool is_there = false;
    if (source->files[layer->extents[0].file].fd < 0)
        return false;
    for (uint32_t i = 0; i < layer->n_extents; i++)
        is_there |= (int)source->files[layer->extents[i].file].disk == m->disk;
    return is_there || m->disk < 0 || source->is_mirrored;
}

static int find_layers(struct measure *m, struct fm_error *err)
{
    const struct model *model = m->model;
    m->layers = mem_new(model->n_expert_layers, sizeof *m->layers, "the measurement", err);
    if (m->layers == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t i = 0; i < model->n_expert_layers; i++)
        if (is_measured(m, &model->expert_layers[i]))
            m->layers[m->n_layers++] = i;
    return m->n_layers > 0 ? 0 : err_set(err, FM_ERR_IO, "'%s' has no file of experts to read",
                                         model->source->path);
}

static int take_memory(struct measure *m, uint64_t bytes, struct fm_error *err)
{
    const uint64_t n = bytes / m->model->expert_slot_bytes / m->n_requests;
    m->n_places = n > 1 ? n : 1;
    const uint64_t all = m->n_requests * m->n_places * m->model->expert_slot_bytes;
    m->requests = mem_new(m->n_requests, sizeof *m->requests, "the measurement", err);
    m->memory = mem_new_bulk(all, "the measurement", err);
    if (m->requests == NULL || m->memory == NULL)
        return FM_ERR_NOMEM;
    for (uint64_t at = 0; at < all; at += MEM_PAGE)
        m->memory[at] = 1; /* the system provides a page at its first use */
    return 0;
}

int reader_measure(const struct model *model, struct expert_store *store,
                   const struct reader_measurement *how, double figures[READER_PASSES_MAX],
                   struct fm_error *err)
{
    struct measure m = {.model = model, .store = store, .n_requests = how->n_experts_at_a_time,
                        .in_groups = how->in_groups,
                        .disk = how->disk, .random = 1 + how->seed};
    expert_store_read_only(store, how->disk);
    int rc = find_layers(&m, err);
    if (rc == 0)
        rc = take_memory(&m, how->memory_bytes, err);
    pthread_mutex_init(&m.lock, NULL);
    pthread_cond_init(&m.has_landed, NULL);
    double first;
    /* Warms up the disk and reads into every place once: under a hypervisor the first use of memory
     * is slower (1.8 GB/s, then 3.8). */
    const uint64_t all = m.n_requests * m.n_places * model->expert_slot_bytes;
    if (rc == 0)
        rc = run_pass(&m, all > how->pass_bytes / 4 ? all : how->pass_bytes / 4, &first, err);
    for (unsigned i = 0; rc == 0 && i < how->n_passes && i < READER_PASSES_MAX; i++) {
        rc = run_pass(&m, how->pass_bytes, &figures[i], err);
        if (rc == 0 && how->pass_done != NULL)
            how->pass_done(how->ctx);
    }
    expert_store_read_only(store, -1);
    pthread_cond_destroy(&m.has_landed);
    pthread_mutex_destroy(&m.lock);
    mem_free(m.memory);
    mem_free(m.requests);
    mem_free(m.layers);
    return rc;
}
