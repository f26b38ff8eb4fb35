/* Reads the dense weights past the page cache where the file system allows it, several pieces at a
 * time. A start then takes as long as the disk needs, and nothing is in memory twice. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/fmath.h"
#include "base/mem.h"
#include "base/plat.h"
#include "base/pool.h"
#include "model/dense_internal.h"
#include "quant/interleave.h"

/* Reads in flight, and bytes of one read: enough to keep an SSD busy. */
#define N_READERS 8
#define PIECE_BYTES (1u << 19)
/* From so many bytes on, whole pages are read straight to their place; others go through a buffer,
 * with their neighbours in the file. */
#define MIN_STRAIGHT_BYTES (1u << 17)
/* Bytes between two calls of the progress function. */
#define ROUND_BYTES (512u * PIECE_BYTES)

void dense_plan_free(struct dense_plan *plan)
{
    if (plan == NULL)
        return;
    mem_free(plan->reads);
    mem_free(plan->pointers);
    mem_free(plan->products);
    mem_free(plan->copies);
    mem_free(plan);
}

int dense_plan_take(struct model *model, struct binder *b, struct fm_error *err)
{
    struct dense_plan *plan = mem_new(1, sizeof *plan, "the list of reads", err);
    if (plan == NULL)
        return FM_ERR_NOMEM;
    *plan = (struct dense_plan){b->reads,      b->n_reads,     b->pointers,
                                b->n_pointers, b->products,    b->n_products,
                                b->copies,     b->n_copies};
    b->reads = NULL;
    b->pointers = NULL;
    b->products = NULL;
    b->copies = NULL;
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

/* ---- turned matrices ------------------------------------------------------------------------- */

/* The rows of a turned matrix as the file has them. */
struct turned_rows {
    const struct quant *quant;
    char *parts[QUANT_MAX_PARTS]; /* in one block, whose first byte is that of the first part */
};

/* Reads them; the caller frees the first part. */
static int read_rows(const struct model *model, const struct dense_read *r,
                     struct turned_rows *rows, struct fm_error *err)
{
    const struct quant *q = rows->quant = r->vector_quant;
    const uint32_t n_cols = r->n / r->n_rows;
    uint64_t bytes[QUANT_MAX_PARTS], all = 0;
    for (unsigned p = 0; p < q->n_parts; p++) {
        const uint64_t first = quant_part_row(q, p, r->first_row);
        const uint64_t last = quant_part_row(q, p, r->first_row + r->n_rows - 1);
        bytes[p] = (last - first + 1) * quant_part_row_bytes(q, p, n_cols);
        all += bytes[p];
    }
    char *at = mem_new(all, 1, "rows of a matrix", err);
    int rc = at != NULL ? 0 : FM_ERR_NOMEM;
    for (unsigned p = 0; rc == 0 && p < q->n_parts; p++, at += bytes[p - 1]) {
        const struct source_file *file = &model->source->files[r->turned->parts[p].file];
        const uint64_t skip = quant_part_row(q, p, r->first_row) *
                              quant_part_row_bytes(q, p, n_cols);
        rows->parts[p] = at;
        rc = plat_read_at(file->fd, file->path, at, bytes[p], r->turned->parts[p].offset + skip,
                          err);
    }
    return rc;
}

/* Decodes row i of the matrix. */
static void decode_row(const struct dense_read *r, const struct turned_rows *rows, uint32_t i,
                       float *x)
{
    const struct quant *q = rows->quant;
    const uint32_t n_cols = r->n / r->n_rows;
    const void *parts[QUANT_MAX_PARTS];
    for (unsigned p = 0; p < q->n_parts; p++)
        parts[p] = rows->parts[p] + (quant_part_row(q, p, r->first_row + i) -
                                     quant_part_row(q, p, r->first_row)) *
                                        quant_part_row_bytes(q, p, n_cols);
    q->decode_row(q, parts, x, n_cols);
}

/* Row by row: column j of all rows goes to row j of the result, as floats, which are encoded
 * last. */
static void turn(const struct dense_read *r, const struct turned_rows *rows, float *x,
                 float *turned, char *dst)
{
    const struct quant *to = r->turned_quant;
    const uint32_t n_rows = r->n_rows, n_cols = r->n / n_rows;
    for (uint32_t i = 0; i < n_rows; i++) {
        decode_row(r, rows, i, x);
        for (uint32_t j = 0; j < n_cols; j++)
            turned[(size_t)j * n_rows + i] = x[j];
    }
    for (uint32_t j = 0; j < n_cols; j++) {
        void *part[] = {dst + j * quant_row_bytes(to, n_rows)};
        to->encode_row(to, turned + (size_t)j * n_rows, part, n_rows);
    }
}

/* What is read here of a packed tensor is verified later (dense_check_turned). */
static int read_turned(const struct model *model, char *dst, const struct dense_read *r,
                       struct fm_error *err)
{
    struct turned_rows rows = {0};
    const uint32_t n_cols = r->n / r->n_rows;
    float *x = mem_new((size_t)r->n + n_cols, sizeof *x, "a matrix", err);
    int rc = x != NULL ? read_rows(model, r, &rows, err) : FM_ERR_NOMEM;
    if (rc == 0)
        turn(r, &rows, x, x + n_cols, dst);
    mem_free(rows.parts[0]);
    mem_free(x);
    return rc;
}

int dense_check_turned(const struct model *model, const struct packed_tensor *tensor,
                       const struct dense_read *r, const char *memory, struct fm_error *err)
{
    const uint64_t bytes = dense_read_fills(r);
    char *again = mem_new(bytes, 1, "a matrix", err);
    int rc = again != NULL ? read_turned(model, again, r, err) : FM_ERR_NOMEM;
    if (rc == 0 && memcmp(again, memory, (size_t)bytes) != 0)
        rc = packed_explain_tensor(model->source, tensor, err);
    mem_free(again);
    return rc;
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

static int read_vector(const struct model *model, float *dst, const struct dense_read *r,
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
    bool checks;
    struct dense_plan *plan;
    struct dense_window window; /* of the reads at hand */
    struct dense_read *reads;   /* [n_reads], those of the window, sorted by their place on disk */
    size_t n_reads;
    char *dense; /* the window's bytes, for the host */
    int *direct_fds; /* [n_files]: past the page cache, or -1 */
    char *buffers;   /* [N_READERS, PIECE_BYTES] */
    struct pool *pool;
    uint64_t begin, end; /* of this round, in bytes of the window's matrices one after the other */
    struct load_outcome {
        int rc;
        struct fm_error err;
    } outcomes[N_READERS];
};

static char *place_of(const struct dense_load *load, uint64_t dense_offset)
{
    return load->dense + (dense_offset - load->window.begin_offset);
}

/* How far all of the dense weights are. */
struct load_progress {
    model_load_fn *show;
    void *ctx;
    uint64_t done, total;
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

/* Where a reader is in its range. */
struct reader {
    size_t i;      /* the read at hand */
    uint64_t from; /* its next byte */
    uint64_t left; /* bytes of the range that are still to be read */
};

/* Goes on by n bytes of the read at hand, to the next matrix if these were its last. */
static void reader_advance(const struct dense_load *load, struct reader *at, uint64_t n)
{
    at->from += n;
    at->left -= n;
    if (at->from < load->reads[at->i].bytes)
        return;
    at->from = 0;
    do
        at->i++;
    while (at->i < load->n_reads && load->reads[at->i].vector_quant != NULL);
}

/* Returns the bytes of the read at hand that are in the range. */
static uint64_t reader_bytes(const struct dense_load *load, const struct reader *at)
{
    const uint64_t bytes = load->reads[at->i].bytes - at->from;
    return bytes < at->left ? bytes : at->left;
}

/* Returns how many bytes can be read straight to their place: whole pages, where memory and file
 * are both at the beginning of one. */
static uint64_t straight_bytes(const struct dense_load *load, const struct reader *at)
{
    const struct dense_read *r = &load->reads[at->i];
    const char *place = place_of(load, r->dense_offset + at->from);
    if (((uintptr_t)place | (r->offset + at->from)) % MEM_PAGE != 0)
        return 0;
    const uint64_t n = reader_bytes(load, at) / MEM_PAGE * MEM_PAGE;
    return n < PIECE_BYTES ? n : PIECE_BYTES;
}

/* Returns how many bytes of the read at hand a buffer takes: all that are in the range, or those
 * before the page from which many can be read straight to their place. */
static uint64_t gathered_bytes(const struct dense_load *load, const struct reader *at)
{
    const struct dense_read *r = &load->reads[at->i];
    const uint64_t n = reader_bytes(load, at), begun = (r->offset + at->from) % MEM_PAGE;
    const uint64_t head = begun > 0 ? MEM_PAGE - begun : 0;
    if (n < head + MIN_STRAIGHT_BYTES)
        return n;
    struct reader behind = *at;
    if (head > 0)
        reader_advance(load, &behind, head);
    return straight_bytes(load, &behind) >= MIN_STRAIGHT_BYTES ? head : n;
}

/* Goes through reads that are neighbours in a file, from byte `offset` on, and copies them from
 * `buffer`, which has the file from there on; from NULL nothing is copied. Gaps of less than a page
 * are read with them. Stops where PIECE_BYTES of whole pages end, so that the next read begins with
 * a page. Returns the byte of the file behind the last one. */
static uint64_t gather(const struct dense_load *load, struct reader *at, uint64_t offset,
                       const char *buffer)
{
    const uint32_t file = load->reads[at->i].file;
    const uint64_t stop = offset - offset % MEM_PAGE + PIECE_BYTES;
    uint64_t end = offset;
    while (at->left > 0) {
        const struct dense_read *r = &load->reads[at->i];
        const uint64_t here = r->offset + at->from;
        if (r->file != file || here < end || here - end >= MEM_PAGE || here >= stop)
            break;
        uint64_t n = gathered_bytes(load, at);
        n = n < stop - here ? n : stop - here;
        if (n == 0)
            break;
        if (buffer != NULL)
            memcpy(place_of(load, r->dense_offset + at->from), buffer + (here - offset),
                   (size_t)n);
        end = here + n;
        reader_advance(load, at, n);
    }
    return end;
}

/* Reads what lies side by side in the file with one read, because a matrix whose rows go to several
 * places has many small parts, and each read takes the disk's latency. */
static int read_gathered(const struct dense_load *load, char *buffer, struct reader *at,
                         struct fm_error *err)
{
    const struct dense_read *r = &load->reads[at->i];
    const struct source_file *f = &load->model->source->files[r->file];
    const uint64_t offset = r->offset + at->from, skip = offset % MEM_PAGE;
    struct reader ahead = *at;
    const uint64_t bytes = gather(load, &ahead, offset, NULL) - offset;
    assert(bytes > 0 && skip + bytes <= PIECE_BYTES);
    const int64_t got = plat_read_device(load->direct_fds[r->file], buffer,
                                         mem_round_up(skip + bytes, MEM_PAGE), offset - skip);
    if (got < (int64_t)(skip + bytes)) {
        const int64_t mine = got < (int64_t)skip ? (got < 0 ? got : 0) : got - (int64_t)skip;
        return plat_explain_read(mine, f->path, bytes, offset, err);
    }
    (void)gather(load, at, offset, buffer + skip);
    return 0;
}

/* Reads some of what is left with one read, and goes on behind it. */
static int read_piece(const struct dense_load *load, char *buffer, struct reader *at,
                      struct fm_error *err)
{
    const struct dense_read *r = &load->reads[at->i];
    const struct source_file *f = &load->model->source->files[r->file];
    char *place = place_of(load, r->dense_offset + at->from);
    const bool is_direct = load->direct_fds[r->file] >= 0;
    uint64_t n = is_direct ? straight_bytes(load, at) : reader_bytes(load, at);
    int rc;
    if (is_direct && n < MIN_STRAIGHT_BYTES)
        return read_gathered(load, buffer, at, err);
    n = n < PIECE_BYTES ? n : PIECE_BYTES;
    if (is_direct)
        rc = read_whole_pages(load, r->file, place, n, r->offset + at->from, err);
    else
        rc = plat_read_at(f->fd, f->path, place, n, r->offset + at->from, err);
    if (rc == 0)
        reader_advance(load, at, n);
    return rc;
}

/* Reads the bytes from `begin` to `end` of the window's matrices, piece by piece. */
static int read_range(const struct dense_load *load, char *buffer, uint64_t begin, uint64_t end,
                      struct fm_error *err)
{
    struct reader at = {.left = end};
    int rc = 0;
    while (at.i < load->n_reads && load->reads[at.i].vector_quant != NULL)
        at.i++;
    while (end - at.left < begin) {
        const uint64_t n = reader_bytes(load, &at), skip = begin - (end - at.left);
        reader_advance(load, &at, n < skip ? n : skip);
    }
    while (rc == 0 && at.left > 0)
        rc = read_piece(load, buffer, &at, err);
    return rc;
}

static void read_part(void *ctx, unsigned part, unsigned n_parts)
{
    struct dense_load *load = ctx;
    struct load_outcome *outcome = &load->outcomes[part];
    char *buffer = load->buffers + part * (size_t)PIECE_BYTES;
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

/* Adds n bytes and tells whoever wants to know. Fails if the load is to be given up. */
static int tell_progress(struct load_progress *p, uint64_t n, struct fm_error *err)
{
    p->done += n;
    return p->show == NULL || p->show(p->ctx, p->done, p->total)
               ? 0 : err_set(err, FM_ERR_CANCELLED, "loading was given up");
}

/* After the matrices: vectors lie between these, so one thread would be the first to touch most
 * large pages, which the system clears then. */
static int read_vectors(struct dense_load *load, struct load_progress *p, struct fm_error *err)
{
    uint64_t n_bytes = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < load->n_reads; i++) {
        const struct dense_read *r = &load->reads[i];
        if (r->vector_quant == NULL)
            continue;
        char *to = place_of(load, r->dense_offset);
        rc = r->turned != NULL ? read_turned(load->model, to, r, err)
                               : read_vector(load->model, (float *)(void *)to, r, load->checks,
                                             err);
        n_bytes += r->bytes;
    }
    return rc == 0 && n_bytes > 0 ? tell_progress(p, n_bytes, err) : rc;
}

static int read_matrices(struct dense_load *load, struct load_progress *p, struct fm_error *err)
{
    uint64_t all = 0;
    for (size_t i = 0; i < load->n_reads; i++)
        all += load->reads[i].vector_quant == NULL ? load->reads[i].bytes : 0;
    for (load->begin = 0; load->begin < all; load->begin = load->end) {
        load->end = all - load->begin < ROUND_BYTES ? all : load->begin + ROUND_BYTES;
        pool_run(load->pool, read_part, load);
        int rc = outcome_of(load, err);
        if (rc == 0)
            rc = tell_progress(p, load->end - load->begin, err);
        if (rc != 0)
            return rc;
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
                                         load->window.begin_offset, load->reads, load->n_reads,
                                         &outcome->err);
}

/* Verifies the window's bytes in memory, if the model has checksums. */
static int check_window(struct dense_load *load, struct fm_error *err)
{
    if (load->model->source->packed == NULL || !load->checks)
        return 0;
    pool_run(load->pool, check_share, load);
    return outcome_of(load, err);
}

/* Of models without checksums it is only known whether a file has changed since its header was
 * read. */
static int check_files(const struct dense_load *load, struct fm_error *err)
{
    const struct source *source = load->model->source;
    if (source->packed != NULL || !load->checks)
        return 0;
    for (uint32_t i = 0; i < source->n_files; i++)
        if (source_file_has_changed(&source->files[i]))
            return source_explain_change(source->files[i].path, err);
    return 0;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static uint64_t dense_offset_of(const struct dense_load *load, const void *part)
{
    return (uint64_t)((const char *)part - (const char *)load->model->dense);
}

/* Whether a matrix lies in the window: the whole matrix, then. */
static bool is_in_window(const struct dense_load *load, const struct weight *w)
{
    const uint64_t at = dense_offset_of(load, w->parts[0]);
    return at >= load->window.begin_offset && at < load->window.end_offset;
}

/* Prepares weights in the piece that the host may write. */
static void prepare_share(void *ctx, unsigned part, unsigned n_parts)
{
    const struct dense_load *load = ctx;
    const struct weight_preparer *preparer = load->model->preparer;
    for (size_t i = 0; i < load->plan->n_products; i++) {
        struct weight w = *load->plan->products[i];
        if (!is_in_window(load, &w) || !preparer->changes(&w))
            continue;
        for (unsigned p = 0; p < w.quant->n_parts; p++)
            w.parts[p] = place_of(load, dense_offset_of(load, w.parts[p]));
        preparer->prepare(&w, part, n_parts);
    }
}

static void prepare_matrices(struct dense_load *load)
{
    const struct weight_preparer *preparer = load->model->preparer;
    if (preparer == NULL)
        return;
    pool_run(load->pool, prepare_share, load);
    for (size_t i = 0; i < load->plan->n_products; i++) {
        struct weight *w = load->plan->products[i];
        if (is_in_window(load, w))
            w->is_interleaved |= preparer->changes(w);
    }
}

static int by_place_in_memory(const void *a, const void *b)
{
    const char *x = ((const struct weight_part *)a)->at, *y = ((const struct weight_part *)b)->at;
    return x < y ? -1 : x > y;
}

/* Keeps a list of the matrices whose order no file has. */
static int list_turned(struct model *model, const struct dense_plan *plan, struct fm_error *err)
{
    model->turned = mem_new(plan->n_products * QUANT_MAX_PARTS + 1, sizeof *model->turned,
                            "the list of matrices", err);
    if (model->turned == NULL)
        return FM_ERR_NOMEM;
    for (size_t i = 0; i < plan->n_products; i++) {
        const struct weight *w = plan->products[i];
        if (!w->is_interleaved || !interleave_suits_memory(w->quant, w->n_rows, w->n_cols))
            continue;
        for (unsigned p = 0; p < w->quant->n_parts; p++)
            model->turned[model->n_turned++] = (struct weight_part){
                .quant = w->quant, .part = p, .n_rows = w->n_rows, .n_cols = w->n_cols,
                .at = w->parts[p]};
    }
    qsort(model->turned, model->n_turned, sizeof *model->turned, by_place_in_memory);
    return 0;
}

/* ---- copies for the host --------------------------------------------------------------------- */

/* Finds a place for each copy; without a device the weight itself is the copy. The pointers to the
 * weights are set. */
static int place_copies(struct model *model, const struct dense_plan *plan, struct fm_error *err)
{
    uint64_t used = 0;
    if (plan->n_copies > 0 && !model->memory->is_host) {
        model->host_copies = mem_new_aligned(MEM_CACHE_LINE, model->host_copy_bytes,
                                             "copies of dense weights", err);
        if (model->host_copies == NULL)
            return FM_ERR_NOMEM;
    }
    for (size_t i = 0; i < plan->n_copies; i++) {
        const struct dense_copy *c = &plan->copies[i];
        *c->at = model->host_copies == NULL
                     ? *c->of : (const float *)(const void *)(model->host_copies + used);
        used += c->bytes;
    }
    return 0;
}

/* Copies what lies in the window. */
static void copy_for_host(const struct dense_load *load)
{
    const struct model *model = load->model;
    char *to = model->host_copies;
    for (size_t i = 0; to != NULL && i < load->plan->n_copies; i++) {
        const struct dense_copy *c = &load->plan->copies[i];
        const uint64_t at = dense_offset_of(load, *c->of);
        const uint64_t begin = at > load->window.begin_offset ? at : load->window.begin_offset;
        const uint64_t last = at + c->bytes < load->window.end_offset ? at + c->bytes
                                                                      : load->window.end_offset;
        if (begin < last)
            memcpy(to + (begin - at), place_of(load, begin), last - begin);
        to += c->bytes;
    }
}

/* ---- gaps ------------------------------------------------------------------------------------ */

/* Clears the gaps between weights, so that the block has the same bytes at every start. Leaves the
 * reads sorted by their place in memory. */
static void clear_gaps(const struct dense_load *load)
{
    uint64_t end = load->window.begin_offset;
    dense_sort_in_memory(load->reads, load->n_reads);
    for (size_t i = 0; i < load->n_reads; i++) {
        const struct dense_read *r = &load->reads[i];
        memset(place_of(load, end), 0, (size_t)(r->dense_offset - end));
        end = r->dense_offset + dense_read_fills(r);
    }
    memset(place_of(load, end), 0, (size_t)(load->window.end_offset - end));
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int open_load(struct dense_load *load, struct fm_error *err)
{
    const struct source *source = load->model->source;
    load->direct_fds = mem_new(source->n_files, sizeof *load->direct_fds, "file numbers", err);
    load->buffers = mem_new_aligned(MEM_PAGE, N_READERS * (uint64_t)PIECE_BYTES,
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
    return rc != 0 ? rc : pool_open(N_READERS, false, &load->pool, err);
}

static void close_load(struct dense_load *load)
{
    pool_close(load->pool);
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

static int load_window(struct dense_load *load, struct load_progress *p, struct fm_error *err)
{
    qsort(load->reads, load->n_reads, sizeof *load->reads, by_place_on_disk);
    int rc = read_matrices(load, p, err);
    if (rc == 0)
        rc = read_vectors(load, p, err);
    if (rc == 0)
        rc = check_window(load, err);
    if (rc == 0) {
        copy_for_host(load);
        prepare_matrices(load);
    }
    clear_gaps(load);
    return rc;
}

static int load_windows(struct dense_load *load, const bool *joined, struct load_progress *p,
                        struct fm_error *err)
{
    const struct memory *memory = load->model->memory;
    const uint64_t all = load->model->dense_bytes;
    int rc = 0;
    while (rc == 0 && load->window.end_offset < all) {
        dense_next_window(load->plan, joined, memory->handy_bytes, all, &load->window);
        char *at = (char *)load->model->dense + load->window.begin_offset;
        const uint64_t bytes = load->window.end_offset - load->window.begin_offset;
        load->reads = load->plan->reads + load->window.first;
        load->n_reads = load->window.end - load->window.first;
        load->dense = memory_open(memory, at, bytes, MEMORY_FILL);
        if (load->dense == NULL)
            return err_set(err, FM_ERR_NOMEM, "out of memory: %llu bytes of dense weights",
                           (unsigned long long)bytes);
        rc = load_window(load, p, err);
        memory_close(memory, at, bytes);
    }
    return rc;
}

static int load_all(struct model *model, struct dense_load *load, struct load_progress *p,
                    struct fm_error *err)
{
    const struct dense_plan *plan = load->plan;
    bool *joined = NULL;
    int rc = open_load(load, err);
    for (size_t i = 0; i < plan->n_pointers; i++)
        *plan->pointers[i].at = (const char *)load->model->dense + plan->pointers[i].dense_offset;
    if (rc == 0)
        rc = place_copies(model, plan, err);
    dense_sort_in_memory(plan->reads, plan->n_reads);
    if (rc == 0 && load->model->memory->handy_bytes > 0)
        rc = dense_find_joined(load->model, plan, &joined, err);
    if (rc == 0)
        rc = load_windows(load, joined, p, err);
    if (rc == 0)
        rc = check_files(load, err);
    close_load(load);
    mem_free(joined);
    return rc;
}

int model_load_dense(struct model *model, const struct memory *memory, bool checks,
                     model_load_fn *progress, void *progress_ctx, struct fm_error *err)
{
    struct dense_load load = {.model = model, .checks = checks, .plan = model->dense_plan};
    struct load_progress p = {.show = progress, .ctx = progress_ctx,
                              .total = model_dense_read_bytes(model)};
    model->memory = memory;
    model->dense = memory_make(memory, model->dense_bytes, "the dense weights", err);
    if (model->dense == NULL)
        return FM_ERR_NOMEM;
    int rc = load_all(model, &load, &p, err);
    if (rc == 0)
        rc = list_turned(model, model->dense_plan, err);
    if (rc != 0)
        return rc;
    dense_plan_free(model->dense_plan);
    model->dense_plan = NULL;
    return 0;
}
