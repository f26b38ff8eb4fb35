/* Writes the output files. All workers write the items of a file; then it is synced, read back by
 * all workers, and renamed. While one file is synced and read back, the next one is written, so the
 * disk reads and writes at the same time. At most two files are in progress. A file that an earlier
 * process finished is only read back; if its bytes have changed, it is written again. */
#include <stdio.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "flashmoe_lab.h"
#include "pack/pack_internal.h"

enum work_kind { WORK_OPEN, WORK_WRITE, WORK_SYNC, WORK_READ, WORK_NAME };

struct pipeline {
    struct pack *pack;
    uint32_t n_done;              /* finished files, counted from the first */
    unsigned n_writing, n_reading; /* workers in each step */
    bool is_opening;               /* a worker opens a file, which may take a download */
};

/* ---- work ----------------------------------------------------------------------------------- */

static int open_out(struct pack *pack, struct pack_file *file, unsigned i, struct fm_error *err)
{
    struct pack_out *out = &file->outs[i];
    const struct plat_dir *dir = folders_dir(pack, i);
    int rc = 0;
    if (file->is_damaged) {
        device_close(&out->device);
        rc = plat_dir_remove(dir, path_base(out->path), NULL, err);
    }
    if (rc == 0)
        rc = pack_path(pack, i, file->name, ".tmp", out->path, err);
    bool is_direct = file->from != NULL; /* records are whole pages; tensors are not */
    if (rc == 0)
        rc = plat_dir_create(dir, path_base(out->path), PLAT_SHARED, &is_direct, &out->fd, err);
    if (rc == 0 && !plat_open_file_info(out->fd, &out->made))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", out->path);
    file->is_direct |= is_direct;
    return rc != 0 ? rc : plat_reserve(out->fd, out->path, out->bytes, err);
}

static int open_file(struct pack *pack, struct crew *crew, struct pack_file *file,
                     struct fm_error *err)
{
    int rc = remote_provide(pack, crew, file, err);
    if (rc != 0 || file->is_elsewhere)
        return rc;
    if (file->is_damaged)
        log_warn("pack", "'%s' has changed since an earlier run wrote it: writing it again",
                 file->outs[0].path);
    file->is_direct = false;
    for (unsigned i = 0; rc == 0 && i < file->n_outs; i++)
        rc = open_out(pack, file, i, err);
    return rc;
}

static bool is_split(const struct pack *pack, const struct pack_file *file)
{
    return file->from != NULL && pack->packed.n_parts > 1;
}

/* Returns where the bytes of a file go. */
static struct writer_files files_of(const struct pack *pack, const struct pack_file *file)
{
    struct writer_files to = {.n = file->is_elsewhere ? 0 : file->n_outs,
                              .is_direct = file->is_direct};
    for (unsigned i = 0; i < to.n; i++)
        to.files[i] = (struct writer_file){
            .fd = file->outs[i].fd, .path = file->outs[i].path,
            .part_bytes = is_split(pack, file) ? file->to->part_bytes[i] : 0};
    if (to.n > 0 && is_split(pack, file))
        to.record_bytes = file->to->record.bytes;
    return to;
}

static int write_record(struct pack *pack, const struct pack_file *file, uint32_t expert,
                        struct writer *s, struct fm_error *err)
{
    const struct expert_layer *from = file->from;
    const uint64_t base = expert * file->to->record.bytes;
    const struct source *source = pack->model->source;
    const struct extent *first = from->extents + (size_t)expert * from->n_extents;
    int rc = from->sums == NULL
                 ? 0 : packed_check_record(source, first->file -
                                           packed_file_index(source->packed, 0, 0), expert, err);
    const bool is_settled = record_is_settled(&from->record);
    if (rc == 0 && !is_settled)
        rc = encoder_settle(s->encoder, source, &from->record, first, from->n_extents, err);
    for (unsigned m = 0; rc == 0 && m < EXPERT_MATRICES; m++) {
        const struct record_matrix *a = &from->record.matrices[m];
        const struct record_matrix *b = &file->to->record.matrices[m];
        const struct matrix_source matrix = {
            .source = pack->model->source, .quant = a->quant, .n_rows = a->n_rows,
            .n_cols = a->n_cols, .part_offset = a->part_offset,
            .extents = first, .n_extents = from->n_extents,
            .is_interleaved = a->lies_interleaved,
            .slot = is_settled ? NULL : s->encoder->slot};
        rc = encode_matrix(s, &matrix,
                           &(struct matrix_target){b->quant, b->lies_interleaved, b->part_offset,
                                                   base}, err);
    }
    if (rc == 0)
        rc = writer_pad(s, base + file->to->record.bytes, err);
    if (rc == 0)
        writer_sum(s, &file->to->sums[expert]);
    return rc != 0 ? err_wrap(err, rc, "expert %u of layer %u", expert, from->layer) : 0;
}

static int write_tensor(struct pack *pack, uint64_t index, struct writer *s, struct fm_error *err)
{
    const struct tensor_info *t = pack->tensors[index];
    const struct tensor_use *use = &pack->model->uses[t - pack->model->source->tensors];
    struct packed_tensor *out = &pack->packed.tensors[index];
    struct extent extents[QUANT_MAX_PARTS];
    uint64_t slot_offset[QUANT_MAX_PARTS], part_offset[QUANT_MAX_PARTS], slot = 0, bytes;
    for (unsigned p = 0; p < use->quant->n_parts; p++) {
        slot_offset[p] = slot;
        extents[p] = (struct extent){.file = t->parts[p].file, .offset = t->parts[p].offset,
                                     .bytes = t->parts[p].bytes, .slot_offset = slot};
        slot += t->parts[p].bytes;
    }
    const struct matrix_source matrix = {
        .source = pack->model->source, .quant = use->quant, .n_rows = packed_tensor_rows(out),
        .n_cols = out->dims[out->n_dims - 1], .part_offset = slot_offset, .extents = extents,
        .n_extents = use->quant->n_parts};
    (void)packed_tensor_layout(out, &bytes, part_offset); /* the plan has checked that it fits */
    if (pack->model->source->packed != NULL) {
        int bad = packed_check_tensor(pack->model->source, t, err);
        if (bad != 0)
            return bad;
    }
    int rc = encode_matrix(s, &matrix, &(struct matrix_target){out->quant, false, part_offset, 0},
                           err);
    if (rc == 0)
        rc = writer_pad(s, out->offset + out->bytes, err);
    if (rc == 0)
        writer_sum(s, &out->sum);
    return rc != 0 ? err_wrap(err, rc, "tensor '%s'", t->name) : 0;
}

/* Computes the experts [*first, *last) of an item. */
static void experts_of(const struct pack_file *file, uint64_t item, uint32_t *first, uint32_t *last)
{
    *first = (uint32_t)(item * file->item_experts);
    const uint32_t left = file->to->n_experts - *first;
    *last = *first + (left < file->item_experts ? left : file->item_experts);
}

static int write_item(struct pack *pack, struct crew *crew, struct encoder *encoder,
                      struct pack_file *file, uint64_t item, struct fm_error *err)
{
    const struct writer_files to = files_of(pack, file);
    struct writer s;
    uint32_t first = 0, last = 0;
    int rc = 0;
    if (file->from == NULL) {
        writer_begin(&s, encoder, crew, &to, pack->packed.tensors[item].offset);
        rc = write_tensor(pack, item, &s, err);
    } else {
        experts_of(file, item, &first, &last);
        writer_begin(&s, encoder, crew, &to, first * file->to->record.bytes);
    }
    for (uint32_t e = first; rc == 0 && e < last; e++)
        rc = write_record(pack, file, e, &s, err);
    return rc != 0 ? rc : writer_end(&s, err);
}

static int sync_file(const struct pack *pack, struct pack_file *file, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < file->n_outs; i++) {
        struct pack_out *out = &file->outs[i];
        rc = file->was_found ? 0 : plat_sync(out->fd, out->path, err);
        plat_close(out->fd);
        out->fd = -1;
        if (rc == 0)
            rc = device_open_in(&out->device, folders_dir(pack, i), out->path, err);
    }
    return rc;
}

static int check_sum(const struct device_range ranges[], unsigned n,
                     const struct packed_sum *expected, struct encoder *encoder,
                     struct crew *crew, struct fm_error *err)
{
    struct packed_sum sum;
    int rc = device_sum(ranges, n, encoder->out, encoder->out_bytes, crew, &sum, err);
    if (rc == 0 && !packed_sum_equal(&sum, expected))
        rc = err_set(err, FM_ERR_IO, "'%s': %llu bytes at byte %llu are not what was written: the "
                     "disk or the memory is faulty%s", ranges[0].file->path,
                     (unsigned long long)ranges[0].bytes, (unsigned long long)ranges[0].offset,
                     n > 1 ? "; or their parts in the other folders" : "");
    return rc;
}

static int read_record(const struct pack *pack, const struct pack_file *file, uint32_t expert,
                       struct encoder *encoder, struct crew *crew, struct fm_error *err)
{
    struct device_range parts[SOURCE_MAX_DISKS];
    for (unsigned i = 0; i < file->n_outs; i++) {
        const uint64_t n = is_split(pack, file) ? file->to->part_bytes[i] : file->to->record.bytes;
        parts[i] = (struct device_range){&file->outs[i].device, expert * n, n};
    }
    const struct packed_sum *sum = &file->to->sums[expert];
    if (is_split(pack, file))
        return check_sum(parts, file->n_outs, sum, encoder, crew, err);
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < file->n_outs; i++)
        rc = check_sum(&parts[i], 1, sum, encoder, crew, err);
    return rc;
}

static int read_item(struct pack *pack, struct crew *crew, struct encoder *encoder,
                     const struct pack_file *file, uint64_t item, struct fm_error *err)
{
    int rc = 0;
    if (file->from == NULL) {
        const struct packed_tensor *t = &pack->packed.tensors[item];
        for (unsigned i = 0; rc == 0 && i < file->n_outs; i++)
            rc = check_sum(&(struct device_range){&file->outs[i].device, t->offset, t->bytes}, 1,
                           &t->sum, encoder, crew, err);
        return rc;
    }
    uint32_t first, last;
    experts_of(file, item, &first, &last);
    for (uint32_t e = first; rc == 0 && e < last; e++)
        rc = read_record(pack, file, e, encoder, crew, err);
    return rc;
}

/* Reads an item back. Sets *is_bad for a found file that is damaged and can be written again. */
static int read_back(struct pack *pack, struct crew *crew, struct encoder *encoder,
                     const struct pack_file *file, uint64_t item, bool *is_bad,
                     struct fm_error *err)
{
    int rc = read_item(pack, crew, encoder, file, item, err);
    if (rc != FM_ERR_IO || !file->was_found)
        return rc;
    *is_bad = true;
    return partial_check_source(pack, file, err);
}

static int name_file(struct pack *pack, struct pack_file *file, struct fm_error *err)
{
    const uint32_t index = (uint32_t)(file - pack->files);
    for (unsigned i = 0; i < file->n_outs; i++)
        device_close(&file->outs[i].device);
    int rc = file->was_found ? 0 : partial_finish(pack, file, err);
    /* Files are finished in order, so all earlier ones are done too. */
    return rc != 0 || !pack->options->consume ? rc : space_consume(pack, index + 1, err);
}

static int run_work(void *ctx, struct crew *crew, unsigned worker, struct crew_work *work,
                    struct fm_error *err)
{
    struct pack *pack = ((struct pipeline *)ctx)->pack;
    struct pack_file *file = &pack->files[work->first];
    struct encoder *encoder = &pack->encoders[worker];
    switch ((enum work_kind)work->kind) {
    case WORK_OPEN:
        return open_file(pack, crew, file, err);
    case WORK_WRITE:
        return write_item(pack, crew, encoder, file, work->second, err);
    case WORK_SYNC:
        return sync_file(pack, file, err);
    case WORK_READ:
        return read_back(pack, crew, encoder, file, work->second, &work->is_bad, err);
    case WORK_NAME:
        break;
    }
    return name_file(pack, file, err);
}

/* ---- order ---------------------------------------------------------------------------------- */

static bool take_item(struct pack_file *file, enum pack_step step, struct crew_work *work)
{
    if (file->step != step || file->n_taken == file->n_items)
        return false;
    work->second = file->n_taken++;
    return true;
}

/* Lets one worker do a step of the whole file. */
static bool take_whole(struct pack_file *file, enum pack_step from, enum pack_step to)
{
    if (file->step != from)
        return false;
    file->step = to;
    return true;
}

/* Where source files are fetched, naming a layer puts stubs into the places of those that it has
 * used up. dense.bin, the last file, reads stubs: it begins when nothing else is under way. */
static bool may_open(const struct pipeline *p, uint32_t index)
{
    return p->pack->files[index].from != NULL || p->pack->options->remote == NULL ||
           index == p->n_done;
}

static bool take(struct pipeline *p, uint32_t index, bool prefers_writing, struct crew_work *work)
{
    struct pack_file *file = &p->pack->files[index];
    work->first = index;
    if (take_whole(file, PACK_WRITTEN, PACK_SYNCING)) {
        work->kind = WORK_SYNC;
    } else if (index == p->n_done && take_whole(file, PACK_READ, PACK_NAMING)) {
        work->kind = WORK_NAME;
    } else if (!prefers_writing && take_item(file, PACK_READING, work)) {
        work->kind = WORK_READ;
        p->n_reading++;
    } else if (prefers_writing && !p->is_opening && may_open(p, index) &&
               take_whole(file, PACK_WAITING, PACK_WRITING)) {
        work->kind = WORK_OPEN;
        p->is_opening = true;
        file->n_taken = file->n_items; /* nothing to write before it is open */
    } else if (prefers_writing && take_item(file, PACK_WRITING, work)) {
        work->kind = WORK_WRITE;
        p->n_writing++;
    } else {
        return false;
    }
    return true;
}

static enum crew_next next_work(void *ctx, struct crew_work *work)
{
    struct pipeline *p = ctx;
    const struct pack *pack = p->pack;
    while (p->n_done < pack->n_files && pack->files[p->n_done].step == PACK_DONE)
        p->n_done++;
    if (p->n_done == pack->n_files)
        return CREW_END;
    uint32_t end = p->n_done;
    for (unsigned n_open = 0; end < pack->n_files && n_open < PACK_WINDOW; end++)
        n_open += pack->files[end].step != PACK_DONE;
    /* Balances writing and reading between the workers. */
    const bool prefers_writing = p->n_writing <= p->n_reading;
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t f = p->n_done; f < end; f++)
            if (take(p, f, i == 0 ? prefers_writing : !prefers_writing, work))
                return CREW_WORK;
    return CREW_WAIT;
}

static void begin_step(struct pack_file *file, enum pack_step step)
{
    file->step = step;
    file->n_taken = file->n_done = 0;
}

static void all_is_read(struct pack *pack, struct pack_file *file)
{
    const bool again = file->was_found && file->is_damaged;
    begin_step(file, again ? PACK_WAITING : PACK_READ);
    if (again) {
        file->was_found = false;
        pack->result->found_bytes -= file->n_copies * file->bytes;
    }
}

static void work_done(void *ctx, const struct crew_work *work)
{
    struct pipeline *p = ctx;
    struct pack_file *file = &p->pack->files[work->first];
    switch ((enum work_kind)work->kind) {
    case WORK_OPEN:
        p->is_opening = false;
        begin_step(file, file->n_items > 0 ? PACK_WRITING : PACK_WRITTEN);
        break;
    case WORK_WRITE:
        p->n_writing--;
        if (++file->n_done == file->n_items)
            begin_step(file, file->is_elsewhere ? PACK_READ : PACK_WRITTEN);
        break;
    case WORK_SYNC:
        begin_step(file, file->n_items > 0 ? PACK_READING : PACK_READ);
        break;
    case WORK_READ:
        p->n_reading--;
        file->is_damaged = file->is_damaged || work->is_bad;
        if (++file->n_done == file->n_items)
            all_is_read(p->pack, file);
        break;
    case WORK_NAME:
        file->step = PACK_DONE;
        break;
    }
}

static void show_label(void *ctx, char *text, size_t bytes)
{
    const struct pipeline *p = ctx;
    const struct pack *pack = p->pack;
    const uint32_t f = p->n_done < pack->n_files ? p->n_done : pack->n_files - 1;
    if (pack->files[f].from == NULL)
        (void)snprintf(text, bytes, "dense part");
    else
        (void)snprintf(text, bytes, "layer %u of %u", f + (pack->files[0].from != NULL),
                       pack->n_files - 1);
}

/* Reports half of the counted bytes, because each byte is written and read back. Bytes written
 * again count twice. */
static bool show_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    const struct fm_pack_options *options = ctx;
    done = done < total ? done : total;
    return options->progress(options->progress_ctx, what, done / 2, total / 2);
}

int pipeline_run(struct pack *pack, struct fm_error *err)
{
    pack->encoders = mem_new(pack->n_workers, sizeof *pack->encoders, "the workers", err);
    int rc = pack->encoders == NULL ? FM_ERR_NOMEM : 0;
    for (unsigned i = 0; rc == 0 && i < pack->n_workers; i++)
        rc = encoder_init(&pack->encoders[i], &pack->needs, err);
    struct pipeline pipeline = {.pack = pack};
    const struct crew_job job = {.ctx = &pipeline, .next = next_work, .run = run_work,
                                 .done = work_done, .label = show_label};
    const struct crew_options options = {
        .n_threads = pack->n_workers,
        .progress = pack->options->progress != NULL ? show_progress : NULL,
        .progress_ctx = (void *)(uintptr_t)pack->options,
        .done_bytes = pack->done_bytes, .total_bytes = pack->total_bytes};
    if (rc == 0)
        rc = crew_run(&job, &options, err);
    for (unsigned i = 0; pack->encoders != NULL && i < pack->n_workers; i++)
        encoder_clear(&pack->encoders[i]);
    for (uint32_t i = 0; i < pack->n_files * pack->n_folders; i++) {
        plat_close(pack->outs[i].fd);
        device_close(&pack->outs[i].device);
    }
    mem_free(pack->encoders);
    return rc;
}
