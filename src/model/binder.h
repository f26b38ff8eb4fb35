/* The binder: how a family names its tensors. Each call looks a tensor up, checks dtype and shape,
 * reserves its place in the dense block and remembers where to put the pointer. Nothing is read
 * yet. After the first failure, later calls do nothing, and model_open reports that failure. So a
 * family may list its tensors without checking every call.
 *
 * Used by one thread while a model opens. The addresses passed in (struct weight, const float *)
 * must stay valid until the model is closed. */
#ifndef FLASHMOE_MODEL_BINDER_H
#define FLASHMOE_MODEL_BINDER_H

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum vector_transform {
    VECTOR_PLAIN,
    VECTOR_PLUS_ONE, /* zero-centred norms: the file holds w, the layer multiplies by 1 + w */
    VECTOR_NEG_EXP,  /* A_log: the layer uses -exp(w) */
};

struct row_range {
    uint32_t first, count;
};

/* Returns memory for n ranges (mem_new), or NULL after any failure, its own included. */
struct row_range *binder_ranges(struct binder *b, uint32_t n);

/* Returns whether names are only noted (probe.h): whoever binds parts of one tensor binds one. */
bool binder_is_probe(const struct binder *b);
/* Returns NULL if there is no such tensor. Does not mark the tensor as used. */
const struct tensor_info *binder_find(const struct binder *b, const char *name_fmt, ...)
    ERR_PRINTF(2, 3);

/* Returns which changes a converter has made to the values. */
const struct source_conventions *binder_conventions(const struct binder *b);

/* Returns true after any call has failed. */
bool binder_has_failed(const struct binder *b);

/* ---- a model with only some of its layers loaded (model_options) */

/* Sets the number of layers of the whole model. Call it before any other function of this section.
 * Fails if the requested layers are not among them. */
void binder_set_layers(struct binder *b, uint32_t n_layers);
bool binder_has_layer(const struct binder *b, uint32_t layer);
bool binder_has_head(const struct binder *b);
/* Marks the tensors below this prefix as those of a layer that is not loaded, with or without
 * experts. */
void binder_leave_layer(struct binder *b, uint32_t layer, bool has_experts, const char *prefix_fmt,
                        ...) ERR_PRINTF(4, 5);
/* Marks a tensor that only another stage uses. */
void binder_leave(struct binder *b, const char *name_fmt, ...) ERR_PRINTF(2, 3);

/* ---- multi-token prediction */

/* Returns whether the options ask for the block, which belongs to the last layer. */
bool binder_wants_mtp(const struct binder *b);
/* What is bound from here on belongs to the block: nothing else follows. */
void binder_begin_mtp(struct binder *b);

/* ---- tensors */

/* A float tensor [n], ignoring dimensions of size 1, kept as f32. */
void binder_vector(struct binder *b, const float **out, uint32_t n,
                   enum vector_transform transform, const char *name_fmt, ...) ERR_PRINTF(5, 6);

/* A float tensor [n_rows, n_cols], ignoring dimensions of size 1, kept as f32 and column by column,
 * [n_cols, n_rows]. For convolutions, whose channels are computed side by side. */
void binder_table(struct binder *b, const float **out, uint32_t n_rows, uint32_t n_cols,
                  const char *name_fmt, ...) ERR_PRINTF(5, 6);

/* A float tensor [n_rows, n_cols], kept as f32 row by row. */
void binder_rows(struct binder *b, const float **out, uint32_t n_rows, uint32_t n_cols,
                 const char *name_fmt, ...) ERR_PRINTF(5, 6);

/* A float tensor [n_rows, 2 * n_cols] of pairs, kept as f32 in two tables [n_rows, n_cols]: the
 * first number of every pair, and the second. */
void binder_pairs(struct binder *b, const float **first, const float **second, uint32_t n_rows,
                  uint32_t n_cols, const char *name_fmt, ...) ERR_PRINTF(6, 7);

/* Also sets *out to a copy in the host's memory of n floats that an earlier call has bound to *of.
 * It is the same pointer if the dense weights are there anyway. */
void binder_host_copy(struct binder *b, const float **out, const float *const *of, uint64_t n);

/* A matrix [n_rows, n_cols] in the file's own format. An embedding is read row by row, so it counts
 * as one row in the bytes a token reads. */
void binder_matrix(struct binder *b, struct weight *out, enum tensor_role role, uint32_t n_rows,
                   uint32_t n_cols, const char *name_fmt, ...) ERR_PRINTF(6, 7);

/* Selected rows of a matrix [file_rows, n_cols], or of several matrices in one tensor that have so
 * many rows together, in the given order. May be called several times for one tensor. */
void binder_matrix_rows(struct binder *b, struct weight *out, uint32_t file_rows, uint32_t n_cols,
                        const struct row_range *ranges, unsigned n_ranges, const char *name_fmt,
                        ...) ERR_PRINTF(7, 8);

/* Rows [first_row, first_row + n_rows) of a matrix [file_rows, n_cols], turned: the result has
 * n_cols rows. Floats keep their format, everything else becomes f32. */
void binder_turned_rows(struct binder *b, struct weight *out, uint32_t file_rows, uint32_t n_cols,
                        uint32_t first_row, uint32_t n_rows, const char *name_fmt, ...)
    ERR_PRINTF(7, 8);

/* How Hugging Face's files have gate and up of all experts in one tensor. */
enum expert_order {
    EXPERTS_IN_HALVES, /* [n_experts, 2 * intermediate, hidden]: rows of gate, then rows of up */
    /* The rows alternate: one of gate, one of up. Floats are stored column by column, down too:
     * [n_experts, hidden, 2 * intermediate] and [n_experts, intermediate, hidden]. */
    EXPERTS_ZIPPED,
};

/* The routed experts below the prefix (for example "model.layers.3.mlp."), either one tensor per
 * expert and matrix or stacked tensors. The result is model->expert_layers[return value]. */
uint32_t binder_experts(struct binder *b, uint32_t layer, uint32_t n_experts, uint32_t hidden,
                        uint32_t intermediate, enum expert_order order, const char *prefix);

/* A table [n_rows, shape->n_cols] that stays on the disk: the tensor "PREFIXweight", or n_parts
 * shards "PREFIXshard_0.weight" and so on, which have the same number of rows. The caller fills in
 * the first four fields of `shape`. Returns its index in model->row_tables. */
uint32_t binder_row_table(struct binder *b, const struct row_table *shape, uint64_t n_rows,
                          uint32_t n_parts, const char *prefix);

/* Integers [n] that a checkpoint may repeat though they follow from its configuration. Fails if it
 * has others. Nothing is kept of them. */
void binder_expect_integers(struct binder *b, const int64_t *expected, uint32_t n,
                            const char *name_fmt, ...) ERR_PRINTF(4, 5);

/* Marks tensors that begin with `prefix` as known and not used. Logs one line, as a warning if the
 * user may miss what they do. */
void binder_ignore(struct binder *b, const char *prefix, bool is_warning, const char *why);

#ifdef __cplusplus
}
#endif
#endif
