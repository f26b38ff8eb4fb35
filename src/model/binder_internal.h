/* What model.c and binder.c share: the binder's record of everything bound. */
#ifndef FLASHMOE_MODEL_BINDER_INTERNAL_H
#define FLASHMOE_MODEL_BINDER_INTERNAL_H

#include "model/binder.h"
#include "model/probe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One run of bytes from a file into the dense block. */
struct dense_read {
    uint32_t file;
    uint64_t offset, bytes, dense_offset;
    /* For vectors: the format they are decoded from, to n floats, which are transposed to columns
     * if they are n_rows rows. NULL: the bytes are copied as they are. */
    const struct quant *vector_quant;
    uint32_t n, n_rows;
    enum vector_transform transform;
    /* For turned matrices, which are decoded in the same way: rows from first_row on of this
     * tensor, and the format that the columns become rows of. NULL: it is none. */
    const struct tensor_info *turned;
    uint32_t first_row;
    const struct quant *turned_quant;
};

/* Returns the bytes that a read fills. */
static inline uint64_t dense_read_fills(const struct dense_read *r)
{
    if (r->turned != NULL)
        return quant_matrix_bytes(r->turned_quant, r->n / r->n_rows, r->n_rows);
    return r->vector_quant != NULL ? (uint64_t)r->n * sizeof(float) : r->bytes;
}

/* A pointer to fill in once the dense block exists. */
struct dense_pointer {
    const void **at;
    uint64_t dense_offset;
};

/* A copy in the host's memory of floats in the dense block. */
struct dense_copy {
    const float **at;
    const float *const *of; /* a pointer that is filled in before */
    uint64_t bytes;
};

struct binder {
    struct model *model;
    int rc; /* sticky */
    struct fm_error *err;
    struct dense_read *reads;
    size_t n_reads, cap_reads;
    struct dense_pointer *pointers;
    size_t n_pointers, cap_pointers;
    struct weight **products; /* matrices used in products */
    size_t n_products, cap_products;
    struct dense_copy *copies;
    size_t n_copies, cap_copies;
    size_t cap_expert_layers;
    uint64_t dense_bytes, lookup_bytes;
    bool wants_mtp;
    uint64_t own_dense_bytes, own_lookup_bytes; /* before the block for multi-token prediction */
    uint64_t own_slot_bytes;
    struct probe *probe; /* notes names and binds nothing (probe.h); NULL: binds */
};

#define BINDER_NAME_BYTES 512

/* ---- what the files of the binder share */

const char *binder_file_of(const struct binder *b, const struct tensor_info *t);
void binder_wrong_shape(struct binder *b, const struct tensor_info *t, const char *expected);
/* Looks the tensor up and makes sure that rows of n_cols columns can be stored as it is. */
const struct tensor_info *binder_take(struct binder *b, const char *name, enum tensor_role role,
                                      uint64_t n_cols, const struct quant **quant);
/* The last dimension as columns: of MLX's codes it is words, which binder_take has looked
 * at. */
bool binder_has_cols(const struct tensor_info *t, uint32_t n_cols);
/* Counts a tensor once for each format that parts of it have in memory. */
void binder_count_dense(struct binder *b, const struct tensor_info *t, const struct quant *quant,
                        uint64_t n_bytes);
void binder_count_experts(struct binder *b, const struct quant *quant, uint64_t n_tensors,
                          uint64_t n_bytes);
/* True when rows from `first` on can be cut out of a part that several rows share. */
bool binder_is_cut(const struct quant *quant, unsigned part, uint64_t first);

int binder_init(struct binder *b, struct model *model, struct fm_error *err);
void binder_clear(struct binder *b);
/* Notes a tensor that a family asks for. */
void binder_note(struct binder *b, const char *name);
/* Fails if no call has named one of the tensors. */
int binder_finish(struct binder *b);

#ifdef __cplusplus
}
#endif
#endif
