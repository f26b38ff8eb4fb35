/* What model.c and binder.c share: the binder's record of everything bound. */
#ifndef FLASHMOE_MODEL_BINDER_INTERNAL_H
#define FLASHMOE_MODEL_BINDER_INTERNAL_H

#include "model/binder.h"

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
};

/* A pointer to fill in once the dense block exists. */
struct dense_pointer {
    const void **at;
    uint64_t dense_offset;
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
    size_t cap_expert_layers;
    uint64_t dense_bytes, lookup_bytes;
};

int binder_init(struct binder *b, struct model *model, struct fm_error *err);
void binder_clear(struct binder *b);
/* Fails if no call has named one of the tensors. */
int binder_finish(struct binder *b);

#ifdef __cplusplus
}
#endif
#endif
