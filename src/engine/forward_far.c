/* Experts in the host's memory beside a device. An expert is sent to the device for one use, or the
 * processor computes it where it is; both go on at the same time, and the device computes what it
 * has meanwhile. */
#include <assert.h>
#include <string.h>

#include "base/carve.h"
#include "base/link.h"
#include "base/mem.h"
#include "base/plat.h"
#include "engine/forward_internal.h"

/* The processor has work in every layer of a token, and waits for the device in between. Waking its
 * threads took a sixth of the time. */
#define SPIN_NS 500000

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t ring_place_bytes(const struct model *model)
{
    return mem_round_up(model->expert_slot_bytes, 256);
}

uint64_t far_row_bytes(const struct model *model)
{
    return FAR_RING * ring_place_bytes(model);
}

/* Rows and results of the processor. */
static void carve_far(struct carver *c, struct step *step, const struct model *model)
{
    const uint64_t hidden = model->shape.hidden, k = model->shape.n_experts_per_token;
    step->normed = carve(c, FAR_ROWS * hidden, sizeof(float));
    step->expert_parts = carve(c, FAR_ROWS * k * hidden, sizeof(float));
}

static uint64_t block_bytes(const struct model *model)
{
    struct carver c = {0};
    struct step step;
    carve_far(&c, &step, model);
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
    carve_far(&c, &far->step, f->model);
    far_split_init(far, f->model->expert_slot_bytes);
    return 0;
}

void far_close(struct forward *f)
{
    struct far *far = &f->far;
    const struct memory *m = f->be->memory;
    if (far->is_pinned)
        m->link->unpin(m, far->host_block, block_bytes(f->model));
    mem_free(far->host_block);
    if (far->ring != NULL)
        memory_free(m, far->ring);
}

/* ---- the processor --------------------------------------------------------------------------- */

/* Gives the processor the rows of the layer, once. They came with the router's choice. */
static void take_rows(struct forward *f)
{
    struct step *step = &f->far.step;
    const uint64_t hidden = f->model->shape.hidden;
    if (f->far.has_rows)
        return;
    step->n_rows = f->step.n_rows;
    step->be->ops->input(step->be, step->normed, step->n_rows, hidden);
    f->far.has_rows = true;
}

void far_ask_for_rows(struct forward *f)
{
    const struct memory *m = f->be->memory;
    f->far.has_rows = false;
    if (f->options.has_far && f->step.n_rows <= FAR_ROWS)
        m->link->download(m, f->far.step.normed, f->step.normed,
                          f->step.n_rows * (uint64_t)f->model->shape.hidden * sizeof(float));
}

/* Gives the device what the processor has computed. It fetches them itself out of locked pages: a
 * call for each of them took longer than computing one. The next layer's are computed when it has
 * them. */
static void give_results(struct forward *f, const struct step_expert *experts, uint32_t n)
{
    const struct memory *m = f->be->memory;
    const uint64_t bytes = f->model->shape.hidden * sizeof(float);
    uint32_t numbers[FAR_TOGETHER * FAR_ROWS], n_parts = 0;
    assert(n <= FAR_TOGETHER);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < experts[i].n; j++) {
            assert(n_parts < FAR_TOGETHER * FAR_ROWS);
            numbers[n_parts++] = experts[i].places[j];
        }
    if (f->far.is_pinned) {
        m->link->bring(m, f->step.expert_parts, f->far.step.expert_parts, bytes, numbers, n_parts);
        return;
    }
    for (uint32_t i = 0; i < n_parts; i++)
        m->link->upload(m, (char *)f->step.expert_parts + numbers[i] * bytes,
                        (const char *)f->far.step.expert_parts + numbers[i] * bytes, bytes);
}

static void compute(struct forward *f, uint32_t layer, const struct expert_item *items, uint32_t n)
{
    struct step_expert experts[ARCH_EXPERTS_TOGETHER];
    uint64_t n_rows = 0;
    if (n == 0)
        return;
    const uint64_t begin_ns = plat_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        experts[i] = forward_expert(f, &items[i], items[i].slot);
        n_rows += experts[i].n;
        if (items[i].is_arriving)
            expert_cache_await(f->cache);
    }
    f->arch->experts(&f->far.step, layer, experts, n, false);
    far_note_computing(&f->far, n_rows, plat_now_ns() - begin_ns);
    f->far.n_computed += n;
    give_results(f, experts, n);
}

/* ---- the device ------------------------------------------------------------------------------ */

/* Starts to send experts to places of the ring. A place is free when the operations that used it
 * last are done. */
static void send(struct forward *f, const struct expert_item *items, uint32_t n, char **places)
{
    struct far *far = &f->far;
    const struct memory *m = f->be->memory;
    const bool measures = n > 0 && far_wants_sending(far);
    if (measures)
        m->link->settle(m); /* what is on its way is not part of it */
    const uint64_t begin_ns = plat_now_ns();
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = far->next++ % FAR_RING;
        places[i] = far->ring + at * ring_place_bytes(f->model);
        expert_cache_send(f->cache, &items[i], places[i], far->marks[at]);
    }
    if (!measures)
        return;
    m->link->settle(m);
    far_note_sending(far, n, plat_now_ns() - begin_ns);
}

/* Computes the experts that were sent last. */
static void use_sent(struct forward *f, uint32_t layer, const struct expert_item *items, uint32_t n,
                     char **places)
{
    struct step_expert experts[FAR_TOGETHER];
    struct far *far = &f->far;
    if (n == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        experts[i] = forward_expert(f, &items[i], places[i]);
    expert_cache_join(f->cache);
    forward_compute(f, layer, experts, n, false);
    const uint64_t mark = f->be->memory->link->mark(f->be->memory);
    for (uint32_t i = 0; i < n; i++)
        far->marks[(far->next - n + i) % FAR_RING] = mark;
}

void far_begin(struct forward *f, struct far_work *work, const struct expert_item *items,
               uint32_t n)
{
    *work = (struct far_work){.items = items, .n = n < FAR_TOGETHER ? n : FAR_TOGETHER,
                              .n_left = n};
    if (n == 0)
        return;
    work->n_sent = far_choose_split(f, items, work->n);
    if (work->n_sent < work->n)
        take_rows(f);
    send(f, items, work->n_sent, work->places);
}

void far_end(struct forward *f, uint32_t layer, struct far_work *work)
{
    while (work->n > 0) {
        (void)f->be->memory->link->mark(f->be->memory); /* the device starts now */
        compute(f, layer, work->items + work->n_sent, work->n - work->n_sent);
        use_sent(f, layer, work->items, work->n_sent, work->places);
        far_begin(f, work, work->items + work->n, work->n_left - work->n);
    }
}
