/* fm_disk_measure: measures how fast experts are read from the disk. */
#include <stdio.h>
#include <stdlib.h>

#include "base/plat.h"
#include "base/sized.h"
#include "engine/options.h"
#include "engine/streaming.h"
#include "flashmoe_lab.h"
#include "store/reader_measure.h"

#define PASSES 7
#define PASSES_QUICK 3
#define PASS_BYTES (512ull << 20)
/* Experts of a pass with few at a time: a hard disk takes a second for them. */
#define FEW_EXPERTS 64
/* More than the processor's caches hold. */
#define MEASURE_MEMORY_BYTES (1ull << 30)

/* Returns a quarter of the model's budget, so that the measurement stays well inside it. */
static uint64_t measure_memory(uint64_t budget)
{
    const uint64_t quarter = (budget > 0 ? budget : plat_memory_available()) / 4;
    return quarter < MEASURE_MEMORY_BYTES ? quarter : MEASURE_MEMORY_BYTES;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures the disks `how` names. */
static int measure_disks(const struct model *model, struct expert_store *store,
                         const struct reader_measurement *how, struct fm_speed *speed,
                         struct fm_error *err)
{
    double figures[READER_PASSES_MAX];
    int rc = reader_measure(model, store, how, figures, err);
    if (rc != 0)
        return rc;
    qsort(figures, how->n_passes, sizeof figures[0], compare);
    *speed = (struct fm_speed){.median = figures[how->n_passes / 2], .min = figures[0],
                               .max = figures[how->n_passes - 1]};
    return 0;
}

/* Measures each disk by itself. */
static int measure_each(const struct model *model, struct expert_store *store,
                        const struct reader_measurement *all, struct fm_disk_speeds *speeds,
                        struct fm_error *err)
{
    const struct source *source = model->source;
    int rc = 0;
    for (unsigned d = 0; rc == 0 && d < source->n_disks; d++) {
        struct fm_disk_speed *one = &speeds->disks[d];
        struct reader_measurement how = *all;
        how.disk = (int)d;
        (void)snprintf(one->folder, sizeof one->folder, "%s", source->disks[d].folder);
        one->is_lost = source->disks[d].is_lost;
        if (!one->is_lost)
            rc = measure_disks(model, store, &how, &one->read, err);
    }
    speeds->n_disks = source->n_disks;
    speeds->is_mirrored = source->is_mirrored;
    return rc;
}

/* Measures groups of one and of two experts. So few are asked for in decode: a layer's are known
 * when its router has chosen, and the next layer's when they have been computed. */
static int measure_few(const struct model *model, struct expert_store *store,
                       const struct reader_measurement *all, struct fm_disk_speeds *speeds,
                       struct fm_error *err)
{
    struct reader_measurement how = *all;
    how.in_groups = true;
    how.pass_bytes = FEW_EXPERTS * speeds->expert_bytes;
    how.memory_bytes = all->memory_bytes < how.pass_bytes ? all->memory_bytes : how.pass_bytes;
    how.n_experts_at_a_time = 1;
    const int rc = measure_disks(model, store, &how, &speeds->one, err);
    how.n_experts_at_a_time = 2;
    return rc == 0 ? measure_disks(model, store, &how, &speeds->two, err) : rc;
}

/* Measures one way of reading. Through the page cache experts come from the disk too, because few
 * pages of a model that exceeds memory are cached. */
static int measure(const struct model *model, const struct streaming *s, bool quick,
                   uint64_t memory_bytes, struct fm_disk_speeds *speeds, struct fm_error *err)
{
    struct expert_store *store;
    struct streaming how_read = *s;
    how_read.io = s->io == STORE_PAGES ? STORE_PAGES_DROPPED : s->io;
    int rc = streaming_open_store(&how_read, model, false, &speeds->reader, &store, err);
    if (rc != 0)
        return rc;
    const struct reader_measurement how = {
        .n_experts_at_a_time = s->reader.depth * expert_store_n_disks(model),
        .n_passes = quick ? PASSES_QUICK : PASSES,
        .pass_bytes = quick ? PASS_BYTES / 2 : PASS_BYTES,
        .memory_bytes = memory_bytes,
        .disk = -1,
    };
    speeds->io = expert_store_is_direct(store) ? "direct" : "page";
    rc = measure_disks(model, store, &how, &speeds->read, err);
    if (rc == 0)
        rc = measure_few(model, store, &how, speeds, err);
    if (rc == 0 && expert_store_n_disks(model) > 1)
        rc = measure_each(model, store, &how, speeds, err);
    expert_store_close(store);
    return rc;
}

int fm_disk_measure(const char *model_path, const struct fm_model_options *options, bool quick,
                    struct fm_disk_speeds *speeds, struct fm_error *err)
{
    struct own_options own;
    struct fm_disk_speeds found = {0};
    struct streaming s;
    struct model *model = NULL;
    int rc = sized_check(speeds, "fm_disk_speeds", err);
    if (rc == 0)
        rc = own_options_take(&own, options, err);
    if (rc == 0)
        rc = streaming_open_model(model_path, &own.o, &s, &model, err);
    if (rc == 0) {
        io_choose(&s, model, false);
        streaming_fit(&s, model);
        found.read_depth = s.reader.depth;
        for (uint32_t i = 0; i < model->n_expert_layers; i++)
            if (model->expert_layers[i].read_bytes > found.expert_bytes)
                found.expert_bytes = model->expert_layers[i].read_bytes;
        rc = measure(model, &s, quick, measure_memory(own.o.memory_bytes), &found, err);
    }
    (void)sized_give(speeds, &found, sizeof found); /* a wrong size was refused above */
    model_close(model);
    return rc;
}
