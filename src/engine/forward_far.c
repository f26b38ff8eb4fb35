/* Experts in the host's memory beside a device. An expert is sent to the device for one use, or the
 * processor computes it where it is; both go on at the same time, and the device computes what it
 * has meanwhile.
 *
 * The processor has a thread of its own here (a job). The thread that drives the device does not
 * wait for it, but queues what follows, down to the router of the next layer: the device waits at a
 * gate until the results are there. So the time that queueing takes is hidden behind the job. */
#include <assert.h>
#include <string.h>

#include "base/carve.h"
#include "base/gate.h"
#include "base/link.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/pool.h"
#include "engine/forward_internal.h"

/* The processor has work in every layer of a token, and waits for the device in between. Waking its
 * threads took a sixth of the time. */
#define SPIN_NS 500000
/* Of the device's memory, if a layer has so many experts; more if experts are so large that these
 * are fewer than the least places: three groups of two. */
#define RING_BYTES (128ull << 20)
#define MIN_PLACES 6u
/* With more threads than these, one is spared for driving the device. */
#define FEW_THREADS 4

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t place_bytes(const struct model *model)
{
    return mem_round_up(model->expert_slot_bytes, 256);
}

static uint32_t n_places(const struct model *model)
{
    const uint32_t n_experts = model->shape.n_experts;
    const uint32_t max = n_experts < FAR_MAX_PLACES ? n_experts : FAR_MAX_PLACES;
    const uint64_t n = RING_BYTES / place_bytes(model);
    const uint32_t found = n < max ? (uint32_t)n : max;
    return found < MIN_PLACES ? MIN_PLACES : found;
}

uint64_t far_row_bytes(const struct model *model)
{
    return n_places(model) * place_bytes(model);
}

/* Rows and results of the processor, and the gate. */
static void carve_far(struct carver *c, struct step *step, uint32_t **gate,
                      const struct model *model)
{
    const uint64_t hidden = model->shape.hidden, k = model->shape.n_experts_per_token;
    step->normed = carve(c, FAR_ROWS * hidden, sizeof(float));
    step->expert_parts = carve(c, FAR_ROWS * k * hidden, sizeof(float));
    *gate = carve(c, 1, sizeof **gate);
}

static uint64_t block_bytes(const struct model *model)
{
    struct carver c = {0};
    struct step step;
    uint32_t *gate;
    carve_far(&c, &step, &gate, model);
    return mem_round_up(c.bytes, MEM_PAGE);
}

uint64_t far_host_bytes(const struct model *model)
{
    return block_bytes(model);
}

void forward_far_options(const struct model *model, struct backend_options *backend)
{
    struct arch_sizes sizes;
    arch_of(model)->sizes(model->arch, &sizes);
    backend->max_cols = sizes.max_cols;
    backend->max_rows = FAR_ROWS;
    backend->max_ffn_rows = (size_t)FAR_ROWS * model->shape.n_experts_per_token;
    backend->max_intermediate = sizes.max_routed_intermediate;
    backend->n_context = 1;
    backend->spin_ns = SPIN_NS;
    backend->n_threads -= backend->n_threads > FEW_THREADS;
}

int far_open(struct forward *f, struct fm_error *err)
{
    struct far *far = &f->far;
    const struct memory *m = f->be->memory;
    const uint64_t bytes = block_bytes(f->model);
    assert(m->link != NULL);
    far->ring = memory_make(m, far_row_bytes(f->model), "places for experts", err);
    far->host_block = mem_new_aligned(MEM_PAGE, bytes, "scratch memory", err);
    if (far->ring == NULL || far->host_block == NULL)
        return FM_ERR_NOMEM;
    far->is_pinned = m->link->pin(m, far->host_block, bytes);
    struct carver c = {.at = far->host_block};
    far->step = (struct step){.arch = f->model->arch, .model = f->model, .be = f->options.host_be};
    carve_far(&c, &far->step, &far->gate, f->model);
    *far->gate = 0;
    far->n_places = n_places(f->model);
    far->n_together = far->n_places / 3 < FAR_TOGETHER ? far->n_places / 3 : FAR_TOGETHER;
    far->has_gate = far->is_pinned && m->link->has_gates(m);
    far_split_init(far, f->model->expert_slot_bytes);
    return pool_open_patient(2, false, SPIN_NS, &far->beside, err);
}

void far_close(struct forward *f)
{
    struct far *far = &f->far;
    const struct memory *m = f->be->memory;
    assert(!far->job.is_running);
    pool_close(far->beside);
    if (far->is_pinned)
        m->link->unpin(m, far->host_block, block_bytes(f->model));
    mem_free(far->host_block);
    if (far->ring != NULL)
        memory_free(m, far->ring);
}

/* ---- the processor --------------------------------------------------------------------------- */

void far_ask_for_rows(struct forward *f)
{
    const struct memory *m = f->be->memory;
    if (f->options.has_far && f->step.n_rows <= FAR_ROWS)
        m->link->download(m, f->far.step.normed, f->step.normed,
                          f->step.n_rows * (uint64_t)f->model->shape.hidden * sizeof(float));
}

/* The job, on its thread. The rows came with the router's choice. */
static void run_job(void *ctx, unsigned part, unsigned n_parts)
{
    struct forward *f = ctx;
    struct far_job *job = &f->far.job;
    struct step *step = &f->far.step;
    const uint64_t begin_ns = plat_now_ns();
    (void)part;
    (void)n_parts;
    step->n_rows = job->n_rows;
    if (!job->has_rows)
        step->be->ops->input(step->be, step->normed, step->n_rows, f->model->shape.hidden);
    job->has_rows = true;
    f->arch->experts(step, job->layer, job->experts, job->n, false);
    job->ns = plat_now_ns() - begin_ns;
    gate_set(f->far.gate, job->number);
}

void far_wait(struct forward *f)
{
    struct far *far = &f->far;
    if (!far->job.is_running)
        return;
    pool_wait(far->beside);
    far->job.is_running = false;
    far_note_computing(far, far->job.n_expert_rows, far->job.ns);
    far->n_computed += far->job.n;
}

static void start_job(struct forward *f, uint32_t layer, const struct expert_item *items,
                      uint32_t n)
{
    struct far_job *job = &f->far.job;
    far_wait(f);
    if (n == 0)
        return;
    assert(n <= FAR_JOB);
    job->layer = layer;
    job->n_rows = f->step.n_rows;
    job->n = n;
    job->n_expert_rows = 0;
    job->number++;
    job->is_running = true;
    for (uint32_t i = 0; i < n; i++) {
        job->experts[i] = forward_expert(f, &items[i], items[i].slot);
        job->n_expert_rows += job->experts[i].n;
        if (items[i].is_arriving)
            expert_cache_await(f->cache);
    }
    pool_start(f->far.beside, run_job, f);
}

/* Queues that the device gets what the job computes. It fetches the results itself out of locked
 * pages: a call for each of them took longer than computing one. The next layer's are computed when
 * it has them. */
static void give_results(struct forward *f)
{
    const struct memory *m = f->be->memory;
    const struct far *far = &f->far;
    const uint64_t bytes = f->model->shape.hidden * sizeof(float);
    uint32_t numbers[FAR_JOB * FAR_ROWS], n = 0;
    for (uint32_t i = 0; i < far->job.n; i++)
        for (uint32_t j = 0; j < far->job.experts[i].n; j++) {
            assert(n < FAR_JOB * FAR_ROWS);
            numbers[n++] = far->job.experts[i].places[j];
        }
    const struct link_pieces pieces = {.from = far->step.expert_parts, .bytes = bytes,
                                       .numbers = numbers, .n = n,
                                       .gate = far->has_gate ? far->gate : NULL,
                                       .opens_at = far->job.number};
    if (!far->has_gate)
        far_wait(f);
    if (far->is_pinned) {
        m->link->bring(m, f->step.expert_parts, &pieces);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        m->link->upload(m, (char *)f->step.expert_parts + numbers[i] * bytes,
                        (const char *)far->step.expert_parts + numbers[i] * bytes, bytes);
}

void far_end_plan(struct forward *f)
{
    if (!f->far.job.is_running || !expert_cache_is_verified(f->cache)) {
        far_wait(f);
        expert_cache_end(f->cache);
        return;
    }
    expert_cache_end_in_use(f->cache);
    f->far.holds_slots = true;
}

void far_settle(struct forward *f)
{
    const struct memory *m = f->be->memory;
    if (f->far.job.is_running)
        m->link->start(m); /* the device waits at the gate, not for the host */
    far_wait(f);
    f->far.job.has_rows = false; /* the next layer's come */
    if (f->far.holds_slots)
        expert_cache_let_go(f->cache);
    f->far.holds_slots = false;
}

/* ---- the device ------------------------------------------------------------------------------ */

/* Those that were sent ahead may still travel: only a mark tells. */
void far_note_waited(struct forward *f)
{
    const struct far_ahead *ahead = &f->far.ahead;
    f->far.first = ahead->first < ahead->n ? ahead->place + ahead->first : f->far.next;
}

static char *memory_of(const struct forward *f, uint64_t place)
{
    return f->far.ring + place % f->far.n_places * place_bytes(f->model);
}

/* Returns the mark behind the operations that used a place before; 0: they are done. Those of few
 * rows set none, because the host waits for the device before the places come again: if it did not,
 * a mark behind all that is queued does. */
static uint64_t mark_before(struct forward *f, uint64_t place)
{
    const struct memory *m = f->be->memory;
    const uint64_t mark = f->far.marks[place % f->far.n_places];
    if (place < f->far.first + f->far.n_places)
        return 0;
    if (mark > 0)
        return mark;
    if (!f->far.ahead.is_joined) /* what was sent ahead and dropped may still travel */
        expert_cache_join(f->cache);
    f->far.ahead.is_joined = true;
    return m->link->mark(m);
}

/* Forgets the next one that was sent ahead. */
static void drop_ahead(struct far *far)
{
    const uint64_t place = far->ahead.place + far->ahead.first++;
    far->marks[place % far->n_places] = 0;
}

/* Returns whether an expert was sent ahead, and where to. They come in ascending order. */
static bool take_ahead(struct far *far, uint32_t layer, uint32_t expert, uint64_t *place)
{
    struct far_ahead *ahead = &far->ahead;
    while (ahead->first < ahead->n &&
           (ahead->layer != layer || ahead->experts[ahead->first] < expert))
        drop_ahead(far);
    if (ahead->first == ahead->n || ahead->experts[ahead->first] != expert)
        return false;
    *place = ahead->place + ahead->first++;
    return true;
}

/* Returns a place that is free when what was queued is done. */
static uint64_t next_place(struct far *far)
{
    const struct far_ahead *ahead = &far->ahead;
    while (ahead->first < ahead->n &&
           far->next - (ahead->place + ahead->first) >= far->n_places)
        drop_ahead(far);
    return far->next++;
}

/* Starts to send those experts that are not there yet. */
static void send(struct forward *f, uint32_t layer, const struct expert_item *items, uint32_t n,
                 uint64_t *places)
{
    struct far *far = &f->far;
    const struct memory *m = f->be->memory;
    const uint32_t expert_layer = f->arch->expert_layer(f->model->arch, layer);
    const bool measures = n > 0 && f->step.n_rows <= FAR_ROWS && far_wants_sending(far);
    if (measures)
        m->link->settle(m); /* what is on its way is not part of it */
    const uint64_t begin_ns = plat_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t expert = f->groups.chosen[items[i].index].expert;
        if (take_ahead(far, expert_layer, expert, &places[i]))
            continue;
        places[i] = next_place(far);
        expert_cache_send(f->cache, &items[i], memory_of(f, places[i]),
                          mark_before(f, places[i]));
    }
    if (!measures)
        return;
    m->link->settle(m);
    far_note_sending(far, n, plat_now_ns() - begin_ns);
}

void far_send_ahead(struct forward *f, uint32_t expert_layer)
{
    struct far *far = &f->far;
    struct far_ahead *ahead = &far->ahead;
    const uint32_t n_experts = f->model->expert_layers[expert_layer].n_experts;
    while (ahead->first < ahead->n)
        drop_ahead(far);
    ahead->layer = expert_layer;
    ahead->place = far->next;
    ahead->first = ahead->n = 0;
    for (uint32_t e = 0; e < n_experts && ahead->n < far->n_places; e++) {
        if (!expert_cache_is_below(f->cache, expert_layer, e))
            continue;
        expert_cache_send_ahead(f->cache, expert_layer, e, memory_of(f, far->next),
                                mark_before(f, far->next));
        ahead->experts[ahead->n++] = e;
        far->next++;
    }
    ahead->is_joined = false;
}

/* Queues the experts that were sent last. */
static void use_sent(struct forward *f, uint32_t layer, const struct far_work *work)
{
    struct step_expert experts[FAR_TOGETHER];
    struct far *far = &f->far;
    uint64_t mark = 0;
    if (work->n_sent == 0)
        return;
    for (uint32_t i = 0; i < work->n_sent; i++)
        experts[i] = forward_expert(f, &work->items[i], memory_of(f, work->places[i]));
    expert_cache_join(f->cache);
    far->ahead.is_joined = true;
    forward_compute(f, layer, experts, work->n_sent, false);
    if (f->step.n_rows > FAR_ROWS)
        mark = f->be->memory->link->mark(f->be->memory);
    for (uint32_t i = 0; i < work->n_sent; i++)
        far->marks[work->places[i] % far->n_places] = mark;
}

void far_begin(struct forward *f, uint32_t layer, struct far_work *work,
               const struct expert_item *items, uint32_t n)
{
    const uint32_t max_sent = f->far.n_together;
    const uint32_t max = f->step.n_rows > FAR_ROWS ? max_sent : FAR_JOB;
    *work = (struct far_work){.items = items, .n = n < max ? n : max, .n_left = n};
    if (n == 0)
        return;
    work->n_sent = far_choose_split(f, items, work->n);
    work->n_sent = work->n_sent < max_sent ? work->n_sent : max_sent;
    start_job(f, layer, items + work->n_sent, work->n - work->n_sent);
    send(f, layer, items, work->n_sent, work->places);
}

void far_end(struct forward *f, uint32_t layer, struct far_work *work)
{
    while (work->n > 0) {
        use_sent(f, layer, work);
        if (work->n_sent < work->n)
            give_results(f);
        far_begin(f, layer, work, work->items + work->n, work->n_left - work->n);
    }
}
