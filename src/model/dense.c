/* Reads the dense weights past the page cache where the file system allows it, several pieces at a
 * time. A start then takes as long as the disk needs, and nothing is in memory twice. */
#include <stdlib.h>
#include <string.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/pool.h"
#include "model/dense_internal.h"

/* Reads in flight, and bytes of one read: enough to keep an SSD busy. */
#define N_READERS 8
#define PIECE_BYTES (1u << 19)
/* Buffer of one reader: a piece, and the pages that it begins and ends in. */
#define READER_BYTES (PIECE_BYTES + 2 * MEM_PAGE)
/* Bytes between two calls of the progress function. */
#define ROUND_BYTES (512u * PIECE_BYTES)

struct dense_plan {
    struct dense_read *reads;
    size_t n_reads;
    struct dense_pointer *pointers;
    size_t n_pointers;
    struct weight **products;
    size_t n_products;
};

void dense_plan_free(struct dense_plan *plan)
{
    if (plan == NULL)
        return;
    mem_free(plan->reads);
    mem_free(plan->pointers);
    mem_free(plan->products);
    mem_free(plan);
}

int dense_plan_take(struct model *model, struct binder *b, struct fm_error *err)
{
    struct dense_plan *plan = mem_new(1, sizeof *plan, "the list of reads", err);
    if (plan == NULL)
        return FM_ERR_NOMEM;
    *plan = (struct dense_plan){b->reads,      b->n_reads,     b->pointers,
                                b->n_pointers, b->products,    b->n_products};
    b->reads = NULL;
    b->pointers = NULL;
    b->products = NULL;
    model->dense_plan = plan;
    return 0;
}

/* ---- vectors --------------------------------------------------------------------------------- */

static int by_place_on_disk(const void *a, const void *b)
{
    const struct dense_read *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static float transformed(float x, enum vector_transform transform)
{
    switch (transform) {
    case VECTOR_PLUS_ONE:
        return 1.0f + x;
    case VECTOR_NEG_EXP:
        return -fmath_exp_of(x);
    case VECTOR_PLAIN:
        break;
    }
    return x;
}

/* [n_rows, n_cols] in the file becomes [n_cols, n_rows]. */
static void decode_turned(const struct dense_read *r, const char *raw, float *dst)
{
    const struct quant *quant = r->vector_quant;
    const uint32_t n_rows = r->n_rows, n_cols = r->n / n_rows;
    const size_t element_bytes = quant_row_bytes(quant, 1); /* floats: one block a column */
    for (uint32_t i = 0; i < r->n; i++) {
        const void *one[] = {raw + i * element_bytes};
        quant->decode_row(quant, one, &dst[i % n_cols * n_rows + i / n_cols], 1);
    }
}

/* A vector is a tensor of its own. Its padding is zero in a packed file, as it is in `raw`. */
static int check_vector(const struct model *model, const struct packed_tensor *tensor,
                        const void *raw, struct fm_error *err)
{
    struct packed_sum sum;
    packed_sum_of(raw, (size_t)tensor->bytes, &sum);
    return packed_sum_equal(&sum, &tensor->sum) ? 0
                                                : packed_explain_tensor(model->source, tensor, err);
}

static int read_vector(const struct model *model, char *dense, const struct dense_read *r,
                       bool checks, struct fm_error *err)
{
    const struct source_file *file = &model->source->files[r->file];
    const struct packed *packed = model->source->packed;
    const struct packed_tensor *tensor =
        checks && packed != NULL ? packed_tensor_at(packed, r->offset) : NULL;
    void *raw = mem_new(tensor != NULL ? tensor->bytes : r->bytes, 1, "a vector", err);
    if (raw == NULL)
        return FM_ERR_NOMEM;
    int rc = plat_read_at(file->fd, file->path, raw, r->bytes, r->offset, err);
    if (rc == 0 && tensor != NULL)
        rc = check_vector(model, tensor, raw, err);
    if (rc == 0) {
        float *dst = (float *)(void *)(dense + r->dense_offset);
        const void *parts[] = {raw};
        if (r->n_rows > 1)
            decode_turned(r, raw, dst);
        else
            r->vector_quant->decode_row(r->vector_quant, parts, dst, r->n);
        for (uint32_t i = 0; i < r->n; i++)
            dst[i] = transformed(dst[i], r->transform);
    }
    mem_free(raw);
    return rc;
}

/* ---- matrices -------------------------------------------------------------------------------- */

struct dense_load {
    const struct model *model;
    char *dense; /* model->dense, for the host */
    struct dense_plan *plan;
    int *direct_fds; /* [n_files]: past the page cache, or -1 */
    char *buffers;   /* [N_READERS, READER_BYTES] */
    uint64_t begin, end; /* of this round, in bytes of all matrices one after the other */
    struct load_outcome {
        int rc;
        struct fm_error err;
    } outcomes[N_READERS];
};

/* Reads whole pages of a file to their final place. */
static int read_whole_pages(const struct dense_load *load, uint32_t file, char *dst,
                            uint64_t bytes, uint64_t offset, struct fm_error *err)
{
    const int64_t got = plat_read_device(load->direct_fds[file], dst, bytes, offset);
    if (got == (int64_t)bytes)
        return 0;
    return plat_explain_read(got, load->model->source->files[file].path, bytes, offset, err);
}

/* Reads a piece of a file. Whole pages go to their final place when memory and file have the same
 * offset within a page; otherwise they go through a buffer. */
static int read_piece(const struct dense_load *load, uint32_t file, char *buffer, char *dst,
                      uint64_t bytes, uint64_t offset, struct fm_error *err)
{
    const struct source_file *f = &load->model->source->files[file];
    const int fd = load->direct_fds[file];
    if (fd < 0)
        return plat_read_at(f->fd, f->path, dst, bytes, offset, err);
    if (((uintptr_t)dst | offset | bytes) % MEM_PAGE == 0)
        return read_whole_pages(load, file, dst, bytes, offset, err);
    const uint64_t skip = offset % MEM_PAGE;
    const int64_t got =
        plat_read_device(fd, buffer, mem_round_up(skip + bytes, MEM_PAGE), offset - skip);
    if (got < (int64_t)(skip + bytes)) {
        const int64_t mine = got < (int64_t)skip ? (got < 0 ? got : 0) : got - (int64_t)skip;
        return plat_explain_read(mine, f->path, bytes, offset, err);
    }
    memcpy(dst, buffer + skip, (size_t)bytes);
    return 0;
}

/* Returns the bytes of the next read, such that the read after it begins at a page. */
static uint64_t piece_bytes(uint64_t offset, uint64_t left)
{
    const uint64_t begun = offset % MEM_PAGE;
    if (begun > 0)
        return left < MEM_PAGE - begun ? left : MEM_PAGE - begun;
    if (left >= PIECE_BYTES)
        return PIECE_BYTES;
    return left < MEM_PAGE ? left : left / MEM_PAGE * MEM_PAGE;
}

/* Reads the bytes from `begin` to `end` of all matrices, piece by piece. */
static int read_range(const struct dense_load *load, char *buffer, uint64_t begin, uint64_t end,
                      struct fm_error *err)
{
    uint64_t at = 0; /* where the matrix begins */
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < load->plan->n_reads && at < end; i++) {
        const struct dense_read *r = &load->plan->reads[i];
        if (r->vector_quant != NULL)
            continue;
        uint64_t from = begin > at ? begin - at : 0;
        const uint64_t to = end - at < r->bytes ? end - at : r->bytes;
        while (rc == 0 && from < to) {
            const uint64_t n = piece_bytes(r->offset + from, to - from);
            rc = read_piece(load, r->file, buffer, load->dense + r->dense_offset + from, n,
                            r->offset + from, err);
            from += n;
        }
        at += r->bytes;
    }
    return rc;
}

static void read_part(void *ctx, unsigned part, unsigned n_parts)
{
    struct dense_load *load = ctx;
    struct load_outcome *outcome = &load->outcomes[part];
    char *buffer = load->buffers + part * (size_t)READER_BYTES;
    size_t begin, end;
    pool_range((size_t)((load->end - load->begin + MEM_PAGE - 1) / MEM_PAGE), part, n_parts, &begin,
               &end);
    const uint64_t last = load->begin + (uint64_t)end * MEM_PAGE;
    outcome->rc = read_range(load, buffer, load->begin + (uint64_t)begin * MEM_PAGE,
                             last < load->end ? last : load->end, &outcome->err);
}

/* Returns the outcome of the first thread that failed. */
static int outcome_of(const struct dense_load *load, struct fm_error *err)
{
    for (unsigned i = 0; i < N_READERS; i++)
        if (load->outcomes[i].rc != 0)
            return err_set(err, load->outcomes[i].rc, "%s", load->outcomes[i].err.text);
    return 0;
}

static int read_matrices(struct dense_load *load, struct pool *pool, uint64_t total,
                         uint64_t *done, fm_progress_fn *progress, void *progress_ctx,
                         struct fm_error *err)
{
    const uint64_t n_vectors = *done;
    while (*done < total) {
        load->begin = *done - n_vectors;
        load->end = total - *done < ROUND_BYTES ? total - n_vectors : load->begin + ROUND_BYTES;
        pool_run(pool, read_part, load);
        int rc = outcome_of(load, err);
        if (rc != 0)
            return rc;
        *done = n_vectors + load->end;
        if (progress != NULL)
            progress(progress_ctx, *done, total);
    }
    return 0;
}

/* ---- verifying ------------------------------------------------------------------------------- */

static void check_share(void *ctx, unsigned part, unsigned n_parts)
{
    struct dense_load *load = ctx;
    struct load_outcome *outcome = &load->outcomes[part];
    const struct packed *packed = load->model->source->packed;
    for (size_t i = part; i < packed->n_tensors && outcome->rc == 0; i += n_parts)
        outcome->rc = dense_check_matrix(load->model, &packed->tensors[i], load->dense,
                                         load->plan->reads, load->plan->n_reads, &outcome->err);
}

/* Verifies the bytes in memory. A packed model has checksums; of other models it is only known
 * whether a file has changed since its header was read. */
static int check_dense(struct dense_load *load, struct pool *pool, struct fm_error *err)
{
    const struct source *source = load->model->source;
    if (source->packed != NULL) {
        pool_run(pool, check_share, load);
        return outcome_of(load, err);
    }
    for (uint32_t i = 0; i < source->n_files; i++)
        if (source_file_has_changed(&source->files[i]))
            return source_explain_change(source->files[i].path, err);
    return 0;
}

/* ---- layout ---------------------------------------------------------------------------------- */

/* Prepares weights in the piece that the host may write. */
static void prepare_share(void *ctx, unsigned part, unsigned n_parts)
{
    const struct dense_load *load = ctx;
    const struct weight_preparer *preparer = load->model->preparer;
    for (size_t i = 0; i < load->plan->n_products; i++) {
        struct weight w = *load->plan->products[i];
        for (unsigned p = 0; p < w.quant->n_parts; p++)
            w.parts[p] =
                load->dense + ((const char *)w.parts[p] - (const char *)load->model->dense);
        if (preparer->changes(&w))
            preparer->prepare(&w, part, n_parts);
    }
}

static void prepare_matrices(struct dense_load *load, struct pool *pool)
{
    const struct weight_preparer *preparer = load->model->preparer;
    if (preparer == NULL)
        return;
    pool_run(pool, prepare_share, load);
    for (size_t i = 0; i < load->plan->n_products; i++) {
        struct weight *w = load->plan->products[i];
        w->is_interleaved |= preparer->changes(w);
    }
}

/* ---- gaps ------------------------------------------------------------------------------------ */

static int by_place_in_memory(const void *a, const void *b)
{
    const struct dense_read *x = a, *y = b;
    return (x->dense_offset > y->dense_offset) - (x->dense_offset < y->dense_offset);
}

/* Clears the gaps between weights, so that the block has the same bytes at every start. */
static void clear_gaps(const struct model *model, char *dense, struct dense_plan *plan)
{
    uint64_t end = 0;
    qsort(plan->reads, plan->n_reads, sizeof *plan->reads, by_place_in_memory);
    for (size_t i = 0; i < plan->n_reads; i++) {
        const struct dense_read *r = &plan->reads[i];
        memset(dense + end, 0, (size_t)(r->dense_offset - end));
        end = r->dense_offset +
              (r->vector_quant != NULL ? (uint64_t)r->n * sizeof(float) : r->bytes);
    }
    memset(dense + end, 0, (size_t)(model->dense_bytes - end));
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int open_load(struct dense_load *load, struct pool **pool, struct fm_error *err)
{
    const struct source *source = load->model->source;
    load->direct_fds = mem_new(source->n_files, sizeof *load->direct_fds, "file numbers", err);
    load->buffers = mem_new_aligned(MEM_PAGE, N_READERS * (uint64_t)READER_BYTES,
                                    "read buffers", err);
    if (load->direct_fds == NULL || load->buffers == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t i = 0; i < source->n_files; i++)
        load->direct_fds[i] = -1;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < load->plan->n_reads; i++) {
        const uint32_t file = load->plan->reads[i].file;
        if (load->plan->reads[i].vector_quant == NULL && load->direct_fds[file] < 0)
            rc = source_reopen_direct(&source->files[file], &load->direct_fds[file], err);
    }
    return rc != 0 ? rc : pool_open(N_READERS, false, pool, err);
}

static void close_load(struct dense_load *load, struct pool *pool)
{
    pool_close(pool);
    for (uint32_t i = 0; load->direct_fds != NULL && i < load->model->source->n_files; i++)
        plat_close(load->direct_fds[i]);
    mem_free(load->direct_fds);
    mem_free(load->buffers);
}

uint64_t model_dense_read_bytes(const struct model *model)
{
    uint64_t total = 0;
    for (size_t i = 0; model->dense_plan != NULL && i < model->dense_plan->n_reads; i++)
        total += model->dense_plan->reads[i].bytes;
    return total;
}

static int load_into(struct model *model, char *dense, bool checks, fm_progress_fn *progress,
                     void *progress_ctx, struct fm_error *err)
{
    struct dense_plan *plan = model->dense_plan;
    struct dense_load load = {.model = model, .dense = dense, .plan = plan};
    struct pool *pool = NULL;
    qsort(plan->reads, plan->n_reads, sizeof *plan->reads, by_place_on_disk);
    const uint64_t total = model_dense_read_bytes(model);
    uint64_t done = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < plan->n_reads; i++) {
        if (plan->reads[i].vector_quant == NULL)
            continue;
        rc = read_vector(model, dense, &plan->reads[i], checks, err);
        done += plan->reads[i].bytes;
    }
    if (rc == 0)
        rc = open_load(&load, &pool, err);
    if (rc == 0)
        rc = read_matrices(&load, pool, total, &done, progress, progress_ctx, err);
    if (rc == 0 && checks)
        rc = check_dense(&load, pool, err);
    for (size_t i = 0; rc == 0 && i < plan->n_pointers; i++)
        *plan->pointers[i].at = (const char *)model->dense + plan->pointers[i].dense_offset;
    if (rc == 0) {
        prepare_matrices(&load, pool);
        clear_gaps(model, dense, plan);
    }
    close_load(&load, pool);
    return rc;
}

int model_load_dense(struct model *model, const struct memory *memory, bool checks,
                     fm_progress_fn *progress, void *progress_ctx, struct fm_error *err)
{
    model->memory = memory;
    model->dense = memory_make(memory, model->dense_bytes, "the dense weights", err);
    if (model->dense == NULL)
        return FM_ERR_NOMEM;
    char *dense = memory_open(memory, model->dense, model->dense_bytes, MEMORY_FILL);
    int rc = load_into(model, dense, checks, progress, progress_ctx, err);
    memory_close(memory, model->dense, model->dense_bytes);
    if (rc != 0)
        return rc;
    dense_plan_free(model->dense_plan);
    model->dense_plan = NULL;
    return 0;
}
