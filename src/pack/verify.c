#include <stdio.h>
#include <string.h>

#include "arch/arch.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "base/sized.h"
#include "flashmoe_lab.h"
#include "format/disks.h"
#include "pack/device.h"

#define BUFFER_BYTES (4u << 20)
#define MAX_WORKERS 64
#define IO_WORKERS 4 /* reading needs more threads than there are processors */

enum verdict { VERDICT_GOOD, VERDICT_WRONG, VERDICT_UNREADABLE };

/* A verification. Items: the tensors of dense.bin, then the experts layer by layer; of a mirrored
 * model those of each folder, since each has to work alone. */
struct verify {
    const struct source *source;
    struct device_file *files; /* [source->n_files] */
    struct device_file dense[SOURCE_MAX_DISKS]; /* [n_copies]; the first is unused */
    void **buffers;            /* [n_workers] */
    unsigned n_workers;
    uint64_t n_items, n_taken;
    uint64_t *layer_first; /* [n_layers] first item of each layer */
    unsigned n_copies;     /* of everything */
    uint8_t *verdicts;     /* [n_items] */
    uint64_t total_bytes;
};

/* Where an item is. */
struct place {
    const struct packed_tensor *tensor; /* or: */
    const struct packed_layer *layer;
    uint32_t expert;
    struct device_range ranges[SOURCE_MAX_DISKS]; /* one for each folder that has a part of it */
    unsigned n_ranges;
    unsigned copy; /* which folder of a mirror */
    const struct packed_sum *sum;
};

static struct place place_of(const struct verify *v, uint64_t item)
{
    const struct packed *packed = v->source->packed;
    if (item < packed->n_tensors * v->n_copies) {
        const struct packed_tensor *t = &packed->tensors[item % packed->n_tensors];
        const unsigned copy = (unsigned)(item / packed->n_tensors);
        const struct device_file *file = copy == 0 ? &v->files[0] : &v->dense[copy];
        return (struct place){.tensor = t, .ranges = {{file, t->offset, t->bytes}},
                              .n_ranges = 1, .copy = copy, .sum = &t->sum};
    }
    uint32_t l = packed->n_layers - 1;
    while (v->layer_first[l] > item)
        l--;
    const struct packed_layer *layer = &packed->layers[l];
    const uint64_t in_layer = item - v->layer_first[l];
    const uint32_t expert = (uint32_t)(in_layer % layer->n_experts);
    const unsigned copy = (unsigned)(in_layer / layer->n_experts); /* 0 if it has parts */
    struct place place = {.layer = layer, .expert = expert, .n_ranges = packed->n_parts,
                          .copy = copy, .sum = &layer->sums[expert]};
    for (unsigned d = 0; d < packed->n_parts; d++)
        place.ranges[d] = (struct device_range){&v->files[packed_file_index(packed, l, d + copy)],
                                                expert * layer->part_bytes[d],
                                                layer->part_bytes[d]};
    return place;
}

/* ---- the job of the crew -------------------------------------------------------------------- */

static enum crew_next next_item(void *ctx, struct crew_work *work)
{
    struct verify *v = ctx;
    if (v->n_taken == v->n_items)
        return CREW_END;
    work->first = v->n_taken++;
    return CREW_WORK;
}

static int run_item(void *ctx, struct crew *crew, unsigned worker, struct crew_work *work,
                    struct fm_error *err)
{
    struct verify *v = ctx;
    const struct place place = place_of(v, work->first);
    struct packed_sum sum;
    int rc = device_sum(place.ranges, place.n_ranges, v->buffers[worker], BUFFER_BYTES, crew, &sum,
                        err);
    if (rc == FM_ERR_CANCELLED || rc == FM_ERR_NOMEM)
        return rc;
    v->verdicts[work->first] = rc != 0                                ? VERDICT_UNREADABLE
                               : packed_sum_equal(&sum, place.sum) ? VERDICT_GOOD
                                                                      : VERDICT_WRONG;
    return 0;
}

static void item_done(void *ctx, const struct crew_work *work)
{
    (void)ctx, (void)work;
}

static void show_label(void *ctx, char *text, size_t bytes)
{
    const struct verify *v = ctx;
    if (v->n_taken <= v->source->packed->n_tensors * v->n_copies)
        (void)snprintf(text, bytes, "dense part");
    else
        (void)snprintf(text, bytes, "layer %u", place_of(v, v->n_taken - 1).layer->layer);
}

/* ---- findings ------------------------------------------------------------------------------- */

struct finder {
    const struct fm_verify_options *options;
    struct fm_verify_result *result;
    const struct source *source;
};

static void find(struct finder *f, bool is_bad, const char *what, const char *file,
                 uint64_t offset, uint64_t bytes, const char *why)
{
    const struct fm_verify_item item = {.is_bad = is_bad, .what = what, .file = file,
                                        .offset = offset, .bytes = bytes, .why = why};
    f->result->n_bad += is_bad;
    if (f->options->found != NULL)
        f->options->found(f->options->found_ctx, &item);
}

/* Names each folder of a mirror that is missing or holds something else. */
static void find_lost(struct finder *f, unsigned n_copies)
{
    const struct source *source = f->source;
    for (unsigned i = 1; i < n_copies; i++)
        if (source->disks[i].is_lost)
            find(f, true, "the mirror", source->disks[i].folder, 0, 0, "cannot be used");
}

static void find_bad_weights(struct finder *f, const struct verify *v)
{
    for (uint64_t i = 0; i < v->n_items; i++) {
        if (v->verdicts[i] == VERDICT_GOOD)
            continue;
        const struct place place = place_of(v, i);
        if (v->n_copies > 1 && v->source->disks[place.copy].is_lost)
            continue; /* find_lost has said it once */
        char what[FM_ERROR_BYTES];
        if (place.tensor != NULL)
            (void)snprintf(what, sizeof what, "tensor '%.600s'", place.tensor->name);
        else
            (void)snprintf(what, sizeof what, "expert %u of layer %u", place.expert,
                           place.layer->layer);
        const char *why = v->verdicts[i] == VERDICT_UNREADABLE ? "cannot be read"
                          : place.n_ranges == 1 ? "does not have its checksum"
                                                : "and its parts in the other folders do not have "
                                                  "their checksum";
        find(f, true, what, place.ranges[0].file->path, place.ranges[0].offset,
             place.ranges[0].bytes, why);
    }
}

/* Verifies the other files of a folder. */
static int find_bad_texts(struct finder *f, const char *folder, struct fm_error *err)
{
    const struct packed *packed = f->source->packed;
    const struct source there = {.kind = SOURCE_PACKED, .path = (char *)folder,
                                 .packed = f->source->packed};
    for (size_t i = 0; i < packed->n_files; i++) {
        char label[LIMIT_PATH_BYTES], *text = NULL;
        size_t bytes;
        int rc = source_read_text(&there, packed->files[i].name, LIMIT_TOKENIZER_JSON_BYTES, &text,
                                  &bytes, label, err);
        if (rc == FM_ERR_NOMEM)
            return rc;
        if (rc != 0 || text == NULL)
            find(f, true, packed->files[i].name, label, 0, packed->files[i].bytes,
                 rc == FM_ERR_FORMAT ? "does not have its checksum"
                 : rc == 0           ? "is missing"
                                     : "cannot be read");
        mem_free(text);
    }
    return 0;
}

static int find_extra(void *ctx, const char *name, struct fm_error *err)
{
    struct finder *f = ctx;
    const struct packed *packed = f->source->packed;
    bool is_known = strcmp(name, PACKED_MODEL_NAME) == 0 || strcmp(name, DISKS_NAME) == 0;
    for (size_t i = 0; i < packed->n_files; i++)
        is_known = is_known || strcmp(name, packed->files[i].name) == 0;
    for (unsigned i = 0; i < f->source->n_files; i++)
        is_known = is_known || strcmp(name, path_base(f->source->files[i].path)) == 0;
    (void)err;
    if (!is_known)
        find(f, false, name, f->source->path, 0, 0, "is not part of the model");
    return 0;
}

/* ---- verifying a model ---------------------------------------------------------------------- */

static int make_tables(struct verify *v, struct fm_error *err)
{
    const struct packed *packed = v->source->packed;
    v->n_items = packed->n_tensors * v->n_copies;
    v->total_bytes = packed->dense_bytes * v->n_copies;
    v->layer_first = mem_new(packed->n_layers, sizeof *v->layer_first, "the layers", err);
    v->files = mem_new(v->source->n_files, sizeof *v->files, "the files", err);
    v->buffers = mem_new(v->n_workers, sizeof *v->buffers, "read buffers", err);
    if (v->layer_first == NULL || v->files == NULL || v->buffers == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t i = 0; i < packed->n_layers; i++) {
        v->layer_first[i] = v->n_items;
        if (v->source->files[i + 1].fd < 0)
            continue; /* another part of the model has it */
        const uint64_t n = (uint64_t)packed->layers[i].n_experts * v->n_copies;
        v->n_items += n;
        v->total_bytes += n * packed->layers[i].record.bytes;
    }
    for (unsigned i = 0; i < v->source->n_files; i++)
        v->files[i] = (struct device_file){.path = v->source->files[i].path, .fd = -1};
    for (unsigned i = 0; i < v->n_workers; i++) {
        v->buffers[i] = mem_new_aligned(MEM_PAGE, BUFFER_BYTES, "a read buffer", err);
        if (v->buffers[i] == NULL)
            return FM_ERR_NOMEM;
    }
    v->verdicts = mem_new(v->n_items, 1, "the verdicts", err);
    return v->verdicts == NULL ? FM_ERR_NOMEM : 0;
}

static void clear_tables(struct verify *v)
{
    for (unsigned i = 0; v->files != NULL && i < v->source->n_files; i++)
        device_close(&v->files[i]);
    for (unsigned i = 0; v->buffers != NULL && i < v->n_workers; i++)
        mem_free(v->buffers[i]);
    for (unsigned i = 1; i < v->n_copies; i++) {
        device_close(&v->dense[i]);
        mem_free((char *)v->dense[i].path);
    }
    mem_free(v->layer_first);
    mem_free(v->files);
    mem_free(v->buffers);
    mem_free(v->verdicts);
}

/* Opens dense.bin in the other folders of a mirror. One that cannot be opened is a finding. */
static int open_dense(struct verify *v, struct fm_error *err)
{
    const struct source *source = v->source;
    for (unsigned i = 1; i < v->n_copies; i++) {
        struct fm_error ignored;
        char *path = source_join(source->disks[i].folder, PACKED_DENSE_NAME, err);
        if (path == NULL)
            return FM_ERR_NOMEM;
        if (source->disks[i].is_lost || device_open(&v->dense[i], path, &ignored) != 0)
            v->dense[i].fd = -1;
        v->dense[i].path = path;
    }
    return 0;
}

static int verify_weights(struct verify *v, struct finder *finder, struct fm_error *err)
{
    const struct fm_verify_options *o = finder->options;
    for (unsigned i = 0; i < SOURCE_MAX_DISKS; i++)
        v->dense[i] = (struct device_file){.fd = -1};
    int rc = make_tables(v, err);
    if (rc == 0)
        rc = open_dense(v, err);
    for (unsigned i = 0; rc == 0 && i < v->source->n_files; i++)
        if (v->source->files[i].fd >= 0)
            rc = device_open(&v->files[i], v->source->files[i].path, err);
    const struct crew_job job = {.ctx = v, .next = next_item, .run = run_item,
                                 .done = item_done, .label = show_label};
    const struct crew_options options = {.n_threads = v->n_workers, .progress = o->progress,
                                         .progress_ctx = o->progress_ctx,
                                         .total_bytes = v->total_bytes};
    if (rc == 0)
        rc = crew_run(&job, &options, err);
    if (rc == 0) {
        find_lost(finder, v->n_copies);
        find_bad_weights(finder, v);
        finder->result->n_tensors = v->source->packed->n_tensors;
        finder->result->n_experts = v->n_items / v->n_copies - v->source->packed->n_tensors;
        finder->result->n_bytes = v->total_bytes;
    }
    clear_tables(v);
    return rc;
}

static int verify_all(const char *path, const struct fm_verify_options *options,
                      struct fm_verify_result *result, struct fm_error *err)
{
    struct finder finder = {.options = options, .result = result};
    const struct model_options families = {.families = arch_families(), .may_be_part = true};
    struct source *source;
    int rc = model_source_open(path, &families, &source, err);
    if (rc != 0)
        return rc;
    finder.source = source;
    unsigned n = finder.options->n_threads > 0 ? finder.options->n_threads : plat_n_cpus();
    n += IO_WORKERS;
    struct verify verify = {.source = source, .n_workers = n < MAX_WORKERS ? n : MAX_WORKERS,
                            .n_copies = source->is_mirrored ? source->n_disks : 1};
    if (source->packed == NULL)
        rc = err_set(err, FM_ERR_UNSUPPORTED, "'%s' is a %s, which has no checksums: only packed "
                     "models can be verified (flashmoe pack makes one)", path,
                     source_kind_name(source));
    if (rc == 0)
        rc = verify_weights(&verify, &finder, err);
    if (rc == 0)
        rc = find_bad_texts(&finder, source->path, err);
    for (unsigned i = 1; rc == 0 && i < verify.n_copies; i++)
        if (!source->disks[i].is_lost)
            rc = find_bad_texts(&finder, source->disks[i].folder, err);
    if (rc == 0) {
        finder.result->n_files = source->packed->n_files;
        if (packed_is_part(source->packed))
            (void)packed_layers_here(source->packed, finder.result->layers_here);
        struct plat_dir dir;
        rc = plat_dir_open(path, PLAT_ANY_LINK, &dir, err);
        if (rc == 0)
            rc = plat_dir_each_name(&dir, find_extra, &finder, err);
        plat_dir_close(&dir);
    }
    source_close(source);
    return rc;
}

int fm_verify(const char *path, const struct fm_verify_options *options,
              struct fm_verify_result *result, struct fm_error *err)
{
    struct fm_verify_options own;
    struct fm_verify_result found = {0};
    int rc = result != NULL ? sized_check(result, "fm_verify_result", err) : 0;
    if (rc == 0)
        rc = sized_take(&own, sizeof own, options, "fm_verify_options", err);
    if (rc == 0)
        rc = verify_all(path, &own, &found, err);
    if (result != NULL)
        (void)sized_give(result, &found, sizeof found); /* a wrong size was refused above */
    return rc;
}
