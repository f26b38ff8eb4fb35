/* The binder: how a family names its tensors. Each call looks a tensor up, checks dtype and
 * shape, reserves its place in the dense block and remembers where to put the pointer; nothing is
 * read yet. The first failure sticks, later calls do nothing, and model_open reports it; so a
 * family may list its tensors without checking every call.
 *
 * Used by one thread while a model opens. The addresses handed in (struct weight, const float *)
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

/* NULL when there is no such tensor; does not count as naming it. */
const struct tensor_info *binder_find(const struct binder *b, const char *name_fmt, ...)
    ERR_PRINTF(2, 3);

/* What a converter has done to the values. */
const struct source_conventions *binder_conventions(const struct binder *b);

/* True after any call has failed. */
bool binder_has_failed(const struct binder *b);

/* ---- a model of which only some layers are here (model_options) */

/* How many layers the whole model has; before the first question. Fails when the layers that were
 * asked for are none of them. */
void binder_set_layers(struct binder *b, uint32_t n_layers);
bool binder_has_layer(const struct binder *b, uint32_t layer);
/* Tensors below this prefix are those of a layer that is not here, with experts or without. */
void binder_leave_layer(struct binder *b, uint32_t layer, bool has_experts, const char *prefix_fmt,
                        ...) ERR_PRINTF(4, 5);
/* A tensor that only another stage uses. */
void binder_leave(struct binder *b, const char *name_fmt, ...) ERR_PRINTF(2, 3);

/* ---- tensors */

/* A float tensor [n], dimensions of one aside, kept as f32. */
void binder_vector(struct binder *b, const float **out, uint32_t n,
                   enum vector_transform transform, const char *name_fmt, ...) ERR_PRINTF(5, 6);

/* A float tensor [n_rows, n_cols], dimensions of one aside, kept as f32 and column by column,
 * [n_cols, n_rows]: convolutions, whose channels are computed side by side. */
void binder_table(struct binder *b, const float **out, uint32_t n_rows, uint32_t n_cols,
                  const char *name_fmt, ...) ERR_PRINTF(5, 6);

/* A matrix [n_rows, n_cols] in the file's own format. An embedding is read row by row: it counts as
 * one row in the bytes a token reads. */
void binder_matrix(struct binder *b, struct weight *out, enum tensor_role role, uint32_t n_rows,
                   uint32_t n_cols, const char *name_fmt, ...) ERR_PRINTF(6, 7);

/* Chosen rows of a matrix [file_rows, n_cols], in the order given. May be called several times
 * for one tensor. */
void binder_matrix_rows(struct binder *b, struct weight *out, uint32_t file_rows, uint32_t n_cols,
                        const struct row_range *ranges, unsigned n_ranges, const char *name_fmt,
                        ...) ERR_PRINTF(7, 8);

/* The routed experts below "PREFIX" (say "model.layers.3.mlp."), one tensor per expert and matrix
 * or stacked ones. The result is model->expert_layers[return value]. */
uint32_t binder_experts(struct binder *b, uint32_t layer, uint32_t n_experts, uint32_t hidden,
                        uint32_t intermediate, const char *prefix);

/* Tensors that begin with `prefix` are known and not used; one log line says so, a warning when
 * something is missing that the user may expect. */
void binder_ignore(struct binder *b, const char *prefix, bool is_warning, const char *why);

#ifdef __cplusplus
}
#endif
#endif
