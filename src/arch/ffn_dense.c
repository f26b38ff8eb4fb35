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

struct backend_ffn ffn_on_all_rows(const struct step *step, const struct ffn_weights *w,
                                   float *out)
{
    return (struct backend_ffn){
        .gate = w->gate, .up = w->up, .down = w->down, .gate_bias = w->gate_bias,
        .up_bias = w->up_bias, .down_bias = w->down_bias,
        .activation = transformer_of(step)->activation, .n = step->n_rows, .out = out};
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
    const struct backend_ffn block = ffn_on_all_rows(step, &d->weights, step->ffn);
    be->ops->ffn(be, &block, 1);
}

const struct ffn_block ffn_block_dense = {
    .bytes = sizeof(struct ffn_dense),
    .bind = dense_bind,
    .max_intermediate = dense_intermediate,
    .run = dense_run,
};
