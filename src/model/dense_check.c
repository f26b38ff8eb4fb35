/* Verifies the dense weights of a packed model: compares the bytes in memory, as they were read,
 * with the checksums of the tensors in model.json. */
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "model/dense_internal.h"

/* A tensor while its bytes are hashed in the order of the file. */
struct tensor_walk {
    const struct model *model;
    const char *dense; /* the weights, in host memory, from dense_offset `begin` on */
    uint64_t begin;
    const struct packed_tensor *tensor;
    XXH3_state_t *hash;
    uint64_t at;                    /* hashed up to here, in bytes of dense.bin */
    const struct dense_read *cover; /* the read that ends last so far */
};

static const char *memory_of(const struct tensor_walk *w, const struct dense_read *r)
{
    return w->dense + (r->dense_offset - w->begin);
}

/* Returns whether [from, to) contains a byte of the tensor's parts. If not, it is padding. */
static bool has_data(const struct packed_tensor *t, uint64_t from, uint64_t to)
{
    uint64_t bytes, part_offset[QUANT_MAX_PARTS];
    const uint64_t n_rows = packed_tensor_rows(t), n_cols = t->dims[t->n_dims - 1];
    (void)packed_tensor_layout(t, &bytes, part_offset); /* the source was checked */
    for (unsigned p = 0; p < t->quant->n_parts; p++) {
        const uint64_t end = part_offset[p] + quant_part_bytes(t->quant, p, n_rows, n_cols);
        if (from < end && part_offset[p] < to)
            return true;
    }
    return false;
}

/* Hashes bytes that are not in memory: padding, which is zero, or rows that no layer uses, from the
 * file. */
static int hash_gap(struct tensor_walk *w, uint64_t to, struct fm_error *err)
{
    const struct source_file *file = &w->model->source->files[0];
    char buffer[MEM_PAGE] = {0};
    const bool reads = has_data(w->tensor, w->at, to);
    int rc = 0;
    while (rc == 0 && w->at < to) {
        const uint64_t n = to - w->at < sizeof buffer ? to - w->at : sizeof buffer;
        if (reads)
            rc = plat_read_at(file->fd, file->path, buffer, n, w->at, err);
        packed_hash_add(w->hash, buffer, (size_t)n);
        w->at += n;
    }
    return rc;
}

/* Hashes the bytes of a read. Bytes that an earlier read has as well must be equal. */
static int hash_read(struct tensor_walk *w, const struct dense_read *r, struct fm_error *err)
{
    int rc = r->offset > w->at ? hash_gap(w, r->offset, err) : 0;
    const uint64_t end = r->offset + r->bytes, twice = end < w->at ? r->bytes : w->at - r->offset;
    if (rc == 0 && twice > 0 &&
        memcmp(memory_of(w, r), memory_of(w, w->cover) + (r->offset - w->cover->offset),
               (size_t)twice) != 0)
        return packed_explain_tensor(w->model->source, w->tensor, err);
    if (rc != 0 || end <= w->at)
        return rc;
    packed_hash_add(w->hash, memory_of(w, r) + twice, (size_t)(r->bytes - twice));
    w->at = end;
    w->cover = r;
    return 0;
}

/* Returns the index of the first read of dense.bin at or after `offset`. */
static size_t first_read(const struct dense_read *reads, size_t n_reads, uint64_t offset)
{
    size_t low = 0, high = n_reads;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (reads[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int dense_check_matrix(const struct model *model, const struct packed_tensor *tensor,
                       const char *dense, uint64_t begin, const struct dense_read *reads,
                       size_t n_reads, struct fm_error *err)
{
    const uint64_t end = tensor->offset + tensor->bytes;
    struct tensor_walk w = {.model = model, .tensor = tensor, .dense = dense,
                            .begin = begin, .at = tensor->offset};
    w.hash = XXH3_createState();
    if (w.hash == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory: a checksum");
    (void)XXH3_128bits_reset(w.hash); /* fails only without a state */
    int rc = 0;
    for (size_t i = first_read(reads, n_reads, tensor->offset);
         rc == 0 && i < n_reads && reads[i].offset < end; i++)
        if (reads[i].vector_quant == NULL)
            rc = hash_read(&w, &reads[i], err);
        else if (reads[i].turned != NULL)
            rc = dense_check_turned(model, tensor, &reads[i], memory_of(&w, &reads[i]), err);
    if (rc == 0 && w.cover != NULL) { /* it is used, but not as a vector */
        struct packed_sum sum;
        rc = hash_gap(&w, end, err);
        packed_sum_of_hash(w.hash, &sum);
        if (rc == 0 && !packed_sum_equal(&sum, &tensor->sum))
            rc = packed_explain_tensor(model->source, tensor, err);
    }
    (void)XXH3_freeState(w.hash);
    return rc;
}
