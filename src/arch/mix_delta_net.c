#include "arch/mix_delta_net.h"

#include <string.h>

#include "arch/recurrent.h"
#include "base/limits.h"

static uint32_t key_width(const struct delta_net *d)
{
    return d->n_key_heads * d->key_dim;
}

static uint32_t value_width(const struct delta_net *d)
{
    return d->n_value_heads * d->value_dim;
}

static uint32_t conv_channels(const struct delta_net *d)
{
    return 2 * key_width(d) + value_width(d);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* What the output is multiplied with, besides the norm's weight. */
static int read_gate(struct delta_net *d, const struct config *c, struct fm_error *err)
{
    const json_t *value = config_find(c, "output_gate_type");
    const char *type = json_string_value(value);
    char shown[80];
    if (value == NULL || (type != NULL && strcmp(type, "silu") == 0))
        return 0;
    d->has_sigmoid_gate = type != NULL && strcmp(type, "sigmoid") == 0;
    if (d->has_sigmoid_gate)
        return 0;
    return err_set(err, FM_ERR_UNSUPPORTED,
                   "%s: field 'output_gate_type' is %s, expected \"silu\" or \"sigmoid\"",
                   c->file, jdoc_show(value, shown, sizeof shown));
}

static int delta_net_read(void *mix, struct transformer *t, const struct transformer_traits *traits,
                          const struct layer_kind *kind, const struct config *c,
                          struct fm_error *err)
{
    struct delta_net *d = mix;
    (void)kind;
    int rc = config_uint(c, "linear_num_key_heads", 1, LIMIT_HEADS, &d->n_key_heads, err);
    if (rc == 0)
        rc = config_uint(c, "linear_num_value_heads", 1, LIMIT_HEADS, &d->n_value_heads, err);
    if (rc == 0)
        rc = config_uint(c, "linear_key_head_dim", 1, LIMIT_HEAD_DIM, &d->key_dim, err);
    if (rc == 0)
        rc = config_uint(c, "linear_value_head_dim", 1, LIMIT_HEAD_DIM, &d->value_dim, err);
    if (rc == 0)
        rc = config_uint(c, "linear_conv_kernel_dim", 1, LIMIT_CONV_KERNEL, &d->conv_kernel, err);
    if (rc == 0 && d->n_value_heads % d->n_key_heads != 0)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: linear_num_value_heads %u is no multiple of linear_num_key_heads %u",
                     c->file, d->n_value_heads, d->n_key_heads);
    if (rc == 0 && traits->may_have_sigmoid_gate)
        rc = read_gate(d, c, err);
    d->eps = t->eps;
    d->bind_projections = traits->bind_delta_projections;
    return rc;
}

void delta_net_bind_qkv_z(struct binder *b, const struct transformer *t, struct delta_net *d,
                          const char *prefix)
{
    binder_matrix(b, &d->qkv, TENSOR_MATRIX, conv_channels(d), t->hidden,
                  "%slinear_attn.in_proj_qkv.weight", prefix);
    binder_matrix(b, &d->z, TENSOR_MATRIX, value_width(d), t->hidden,
                  "%slinear_attn.in_proj_z.weight", prefix);
}

void delta_net_bind_apart(struct binder *b, const struct transformer *t, struct delta_net *d,
                          const char *prefix)
{
    delta_net_bind_qkv_z(b, t, d, prefix);
    binder_matrix(b, &d->b, TENSOR_MATRIX, d->n_value_heads, t->hidden,
                  "%slinear_attn.in_proj_b.weight", prefix);
    binder_matrix(b, &d->a, TENSOR_MATRIX, d->n_value_heads, t->hidden,
                  "%slinear_attn.in_proj_a.weight", prefix);
}

static void delta_net_bind(void *mix, struct binder *b, const struct transformer *t,
                           const struct layer_names *names)
{
    struct delta_net *d = mix;
    const char *prefix = names->prefix;
    d->has_tiled_value_heads = binder_conventions(b)->has_tiled_value_heads;
    d->bind_projections(b, t, d, prefix);
    binder_matrix(b, &d->out, TENSOR_MATRIX, t->hidden, value_width(d),
                  "%slinear_attn.out_proj.weight", prefix);
    binder_table(b, &d->conv, conv_channels(d), d->conv_kernel, "%slinear_attn.conv1d.weight",
                 prefix);
    binder_vector(b, &d->decay, d->n_value_heads,
                  binder_conventions(b)->has_final_decay ? VECTOR_PLAIN : VECTOR_NEG_EXP,
                  "%slinear_attn.A_log", prefix);
    binder_vector(b, &d->dt_bias, d->n_value_heads, VECTOR_PLAIN, "%slinear_attn.dt_bias",
                  prefix);
    binder_vector(b, &d->norm, d->value_dim, VECTOR_PLAIN, "%slinear_attn.norm.weight", prefix);
}

/* ---- running --------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void delta_net_sizes(const void *mix, struct mixer_sizes *s)
{
    const struct delta_net *d = mix;
    s->max_cols = larger(s->max_cols, larger(value_width(d), d->key_dim));
    s->floats_per_row =
        larger(s->floats_per_row,
               2ull * conv_channels(d) + 2ull * value_width(d) + 2ull * d->n_value_heads);
    s->key_dim = (unsigned)larger(s->key_dim, d->key_dim);
}

static void delta_net_state(const void *mix, struct layer_state *state)
{
    const struct delta_net *d = mix;
    const uint64_t conv = (uint64_t)(d->conv_kernel - 1) * conv_channels(d);
    const uint64_t delta = (uint64_t)d->n_value_heads * d->key_dim * d->value_dim;
    layer_state_add(state, (struct state_part){.kind = STATE_RECURRENT,
                                               .bytes = conv * sizeof(float)});
    layer_state_add(state, (struct state_part){.kind = STATE_RECURRENT,
                                               .bytes = delta * sizeof(float)});
}

static void run_segments(void *ctx, struct backend *be, const struct backend_segment *segments,
                         size_t n)
{
    struct backend_delta_net *args = ctx;
    args->segments = segments;
    args->n_segments = n;
    be->ops->delta_net(be, args);
}

static void delta_net_run(const void *mix, struct step *step, const struct mix_buffers *m)
{
    const struct delta_net *d = mix;
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t n = step->n_rows;
    float *qkv = m->scratch, *convolved = qkv + n * conv_channels(d);
    float *z = convolved + n * conv_channels(d), *beta = z + n * value_width(d);
    float *alpha = beta + n * d->n_value_heads, *heads = alpha + n * d->n_value_heads;
    const struct backend_product products[] = {
        {&d->qkv, qkv, NULL}, {&d->z, z, NULL}, {&d->b, beta, NULL}, {&d->a, alpha, NULL}};
    be->ops->input(be, step->normed, n, t->hidden);
    be->ops->matmul(be, products, 4);
    struct layer_state state = {0};
    delta_net_state(d, &state);
    struct backend_delta_net args = {
        .n_key_heads = d->n_key_heads, .n_value_heads = d->n_value_heads,
        .has_tiled_value_heads = d->has_tiled_value_heads, .key_dim = d->key_dim,
        .value_dim = d->value_dim, .kernel = d->conv_kernel,
        .qkv = qkv, .z = z, .b = beta, .a = alpha, .conv_weight = d->conv,
        .decay = d->decay, .dt_bias = d->dt_bias, .norm = d->norm, .eps = d->eps,
        .has_sigmoid_gate = d->has_sigmoid_gate,
        .mixed = convolved, .out = heads,
    };
    recurrent_run(be, &state, step->segments, step->n_segments, be->ops->delta_net_leaves_trails,
                  run_segments, &args);
    be->ops->input(be, heads, n, d->out.n_cols);
    be->ops->matmul(be, &(struct backend_product){&d->out, m->out, NULL}, 1);
}

const struct mixer mixer_delta_net = {
    .bytes = sizeof(struct delta_net),
    .read = delta_net_read,
    .bind = delta_net_bind,
    .sizes = delta_net_sizes,
    .state = delta_net_state,
    .run = delta_net_run,
};
