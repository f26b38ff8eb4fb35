#include "arch/ffn.h"

void ffn_bind(struct binder *b, struct ffn_weights *w, uint32_t hidden, uint32_t intermediate,
              const char *prefix, const char *block)
{
    binder_matrix(b, &w->gate, TENSOR_MATRIX, intermediate, hidden, "%s%s.gate_proj.weight",
                  prefix, block);
    binder_matrix(b, &w->up, TENSOR_MATRIX, intermediate, hidden, "%s%s.up_proj.weight", prefix,
                  block);
    binder_matrix(b, &w->down, TENSOR_MATRIX, hidden, intermediate, "%s%s.down_proj.weight",
                  prefix, block);
}

static uint32_t dense_bind(void *ffn, struct binder *b, const struct transformer *t,
                           const struct layer_names *names)
{
    struct ffn_dense *d = ffn;
    ffn_bind(b, &d->weights, t->hidden, t->dense_intermediate, names->prefix, "mlp");
    return ARCH_NO_EXPERTS;
}

static uint32_t dense_intermediate(const struct transformer *t)
{
    return t->dense_intermediate;
}

static void dense_run(const void *ffn, struct step *step)
{
    const struct ffn_dense *d = ffn;
    struct backend *be = step->be;
    be->ops->input(be, step->normed, step->n_rows, d->weights.gate.n_cols);
    be->ops->ffn(be, &(struct backend_ffn){.gate = d->weights.gate, .up = d->weights.up,
                                           .down = d->weights.down, .n = step->n_rows,
                                           .out = step->ffn}, 1);
}

const struct ffn_block ffn_block_dense = {
    .bytes = sizeof(struct ffn_dense),
    .bind = dense_bind,
    .max_intermediate = dense_intermediate,
    .run = dense_run,
};
