#include "arch/mix_attention.h"

#include <assert.h>
#include <math.h>

#include "base/limits.h"
#include "base/mem.h"

/* ---- opening --------------------------------------------------------------------------------- */

/* transformers turns whole heads in a family without a share of its own, but its scaled
 * frequencies are of that share. */
static int refuse_scaled_share(const struct attention *a, const struct config *c,
                               struct fm_error *err)
{
    double share;
    int rc = config_number_or(c, "partial_rotary_factor", 0, 1, 1, &share, err);
    if (rc == 0 && (uint32_t)(share * a->head_dim) != a->head_dim)
        rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "%s: field 'partial_rotary_factor' is %g; with rope scaling this version "
                     "computes 1 only for this architecture",
                     c->file, share);
    return rc;
}

/* Reads which share of a head is rotated. */
static int read_share(const struct attention *a, const struct transformer_traits *traits,
                      const struct config *c, double *share, struct fm_error *err)
{
    double by_default = traits->partial_rotary_factor;
    /* A null is there, too: transformers then takes the factor to be 1. */
    const bool has_share = json_object_get(c->text, "partial_rotary_factor") != NULL;
    if (traits->may_have_rotary_dim && !has_share && config_find(c, "rotary_dim") != NULL) {
        uint32_t n;
        int rc = config_uint(c, "rotary_dim", 0, a->head_dim, &n, err);
        if (rc != 0)
            return rc;
        by_default = (double)n / a->head_dim;
    }
    return config_number_or(c, "partial_rotary_factor", 0, 1, by_default, share, err);
}

/* The rotation is the same in all layers: it is made once for the model. */
static int read_rope(const struct attention *a, struct transformer *t,
                     const struct transformer_traits *traits, const struct config *c,
                     struct fm_error *err)
{
    double rotated = 1;
    int rc = config_rope(c, &t->rope, err);
    if (rc == 0 && traits->partial_rotary_factor > 0)
        rc = read_share(a, traits, c, &rotated, err);
    else if (rc == 0 && t->rope.kind != ROPE_DEFAULT)
        rc = refuse_scaled_share(a, c, err);
    if (rc != 0)
        return rc;
    const uint32_t rotary_dim = (uint32_t)(rotated * a->head_dim);
    if (rotary_dim % 2 != 0)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: head_dim %u with partial_rotary_factor %g gives %u rotary dimensions, "
                       "expected an even number",
                       c->file, a->head_dim, rotated, rotary_dim);
    return transformer_make_rope(t, rotary_dim, err);
}

/* What a family has always, never, or as its configuration says. */
static int read_parts(struct attention *a, const struct transformer_traits *traits,
                      const struct layer_kind *kind, const struct config *c, struct fm_error *err)
{
    bool has_norms = true;
    int rc = 0;
    if (kind->has_window)
        rc = config_uint(c, "sliding_window", 1, LIMIT_CONTEXT, &a->window, err);
    else if (traits->may_have_window)
        rc = config_uint_or(c, "sliding_window", 1, LIMIT_CONTEXT, 0, &a->window, err);
    if (rc == 0 && traits->bias.field != NULL)
        rc = config_bool_or(c, traits->bias.field, traits->bias.by_default, &a->has_bias, err);
    if (rc == 0 && traits->head_norms_field != NULL)
        rc = config_bool_or(c, traits->head_norms_field, false, &has_norms, err);
    a->has_output_bias = a->has_bias && traits->bias.has_output;
    a->norms = has_norms ? traits->head_norms : NORM_NO_HEADS;
    return rc;
}

static int attention_read(void *mix, struct transformer *t, const struct transformer_traits *traits,
                          const struct layer_kind *kind, const struct config *c,
                          struct fm_error *err)
{
    struct attention *a = mix;
    int rc = config_uint(c, "num_attention_heads", 1, LIMIT_HEADS, &a->n_heads, err);
    if (rc == 0)
        rc = config_uint_or(c, "num_key_value_heads", 1, LIMIT_HEADS,
                            traits->default_kv_heads > 0 ? traits->default_kv_heads : a->n_heads,
                            &a->n_kv_heads, err);
    if (rc == 0)
        rc = config_uint_or(c, "head_dim", 1, LIMIT_HEAD_DIM,
                            traits->default_head_dim > 0 ? traits->default_head_dim
                                                         : t->hidden / a->n_heads,
                            &a->head_dim, err);
    if (rc == 0 && a->head_dim == 0)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: hidden_size %u is less than num_attention_heads %u, and there is no "
                     "head_dim", c->file, t->hidden, a->n_heads);
    if (rc == 0 && a->n_heads % a->n_kv_heads != 0)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: num_attention_heads %u is no multiple of num_key_value_heads %u",
                     c->file, a->n_heads, a->n_kv_heads);
    if (rc == 0)
        rc = read_parts(a, traits, kind, c, err);
    if (rc == 0 && t->rope_frequencies == NULL)
        rc = read_rope(a, t, traits, c, err);
    if (rc != 0)
        return rc;
    a->has_gate = traits->has_attention_gate;
    assert(!a->has_gate || a->norms != NORM_ALL_HEADS); /* gates lie between the heads */
    a->eps = t->eps;
    a->scale = 1.0f / sqrtf((float)a->head_dim);
    return 0;
}

static void bind_biases(struct attention *a, struct binder *b, const struct transformer *t,
                        const char *prefix)
{
    const uint32_t q_width = a->n_heads * a->head_dim, kv_width = a->n_kv_heads * a->head_dim;
    binder_vector(b, &a->q_bias, a->has_gate ? 2 * q_width : q_width, VECTOR_PLAIN,
                  "%sself_attn.q_proj.bias", prefix);
    binder_vector(b, &a->k_bias, kv_width, VECTOR_PLAIN, "%sself_attn.k_proj.bias", prefix);
    binder_vector(b, &a->v_bias, kv_width, VECTOR_PLAIN, "%sself_attn.v_proj.bias", prefix);
    if (a->has_output_bias)
        binder_vector(b, &a->o_bias, t->hidden, VECTOR_PLAIN, "%sself_attn.o_proj.bias", prefix);
}

/* Binds queries or keys. llama.cpp's converter moves the rows of some families so that those that
 * are rotated together are neighbours: row 2i + half of a head is row half * dim / 2 + i here. */
static void bind_rotated(struct binder *b, const struct attention *a, struct weight *out,
                         uint32_t n_rows, uint32_t n_cols, const char *prefix, const char *name)
{
    if (!binder_conventions(b)->has_paired_rows) {
        binder_matrix(b, out, TENSOR_MATRIX, n_rows, n_cols, "%sself_attn.%s.weight", prefix, name);
        return;
    }
    struct row_range *rows = binder_ranges(b, n_rows);
    const uint32_t half = a->head_dim / 2;
    for (uint32_t r = 0; rows != NULL && r < n_rows; r++) {
        const uint32_t at = r % a->head_dim;
        rows[r] = (struct row_range){r - at + 2 * (at % half) + at / half, 1};
    }
    binder_matrix_rows(b, out, n_rows, n_cols, rows, n_rows, "%sself_attn.%s.weight", prefix, name);
    mem_free(rows);
}

static void attention_bind(void *mix, struct binder *b, const struct transformer *t,
                           const struct layer_names *names)
{
    struct attention *a = mix;
    const char *prefix = names->prefix;
    const uint32_t q_width = a->n_heads * a->head_dim, kv_width = a->n_kv_heads * a->head_dim;
    bind_rotated(b, a, &a->q, a->has_gate ? 2 * q_width : q_width, t->hidden, prefix, "q_proj");
    bind_rotated(b, a, &a->k, kv_width, t->hidden, prefix, "k_proj");
    binder_matrix(b, &a->v, TENSOR_MATRIX, kv_width, t->hidden, "%sself_attn.v_proj.weight",
                  prefix);
    binder_matrix(b, &a->o, TENSOR_MATRIX, t->hidden, q_width, "%sself_attn.o_proj.weight",
                  prefix);
    if (a->has_bias)
        bind_biases(a, b, t, prefix);
    if (a->norms == NORM_NO_HEADS)
        return;
    const bool is_wide = a->norms == NORM_ALL_HEADS;
    binder_vector(b, &a->q_norm, is_wide ? q_width : a->head_dim, names->norm,
                  "%sself_attn.q_norm.weight", prefix);
    binder_vector(b, &a->k_norm, is_wide ? kv_width : a->head_dim, names->norm,
                  "%sself_attn.k_norm.weight", prefix);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Floats per query head in q's output: query, and gate behind it. */
static uint32_t query_stride(const struct attention *a)
{
    return a->head_dim * (a->has_gate ? 2 : 1);
}

static void attention_sizes(const void *mix, struct mixer_sizes *s)
{
    const struct attention *a = mix;
    const uint64_t width = (uint64_t)a->n_heads * a->head_dim;
    s->max_cols = s->max_cols > width ? s->max_cols : width;
    const uint64_t floats = (uint64_t)a->n_heads * query_stride(a) +
                            2ull * a->n_kv_heads * a->head_dim + width;
    s->floats_per_row = s->floats_per_row > floats ? s->floats_per_row : floats;
    s->n_heads = s->n_heads > a->n_heads ? s->n_heads : a->n_heads;
    s->head_dim = s->head_dim > a->head_dim ? s->head_dim : a->head_dim;
}

static void attention_state(const void *mix, struct layer_state *state)
{
    const struct attention *a = mix;
    const struct state_part heads = {STATE_BY_POSITION, a->n_kv_heads, a->head_dim, 0, NULL};
    for (unsigned i = 0; i < ATTENTION_PARTS; i++)
        layer_state_add(state, heads);
    state->position_mul_adds = a->window > 0 ? 0 : 2ull * a->n_heads * a->head_dim;
}

/* Queries or keys of all rows: norms and rotation. */
static void prepare_heads(const struct attention *a, struct step *step, const float *rope,
                          float *x, size_t stride, unsigned n_heads, const float *norm)
{
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t width = n_heads * stride;
    if (a->norms == NORM_ALL_HEADS)
        be->ops->rms_norm(be, x, norm, a->eps, step->n_rows, width, x);
    be->ops->norm_rope(be, &(struct backend_heads){
        .x = x, .row_stride = width, .head_stride = stride, .n_heads = n_heads,
        .head_dim = a->head_dim, .rotary_dim = t->rotary_dim,
        .norm = a->norms == NORM_EACH_HEAD ? norm : NULL, .eps = a->eps, .rope = rope,
    }, step->n_rows);
}

void attention_run(const void *mix, struct step *step, const struct mix_buffers *m)
{
    const struct attention *a = mix;
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t n = step->n_rows, dim = a->head_dim;
    const size_t q_row = (size_t)a->n_heads * query_stride(a), kv_row = a->n_kv_heads * dim;
    float *q = m->scratch, *k = q + n * q_row, *v = k + n * kv_row, *heads = v + n * kv_row;
    float *index = heads + n * a->n_heads * dim;
    const struct backend_product products[] = {
        {&a->q, q, a->q_bias}, {&a->k, k, a->k_bias}, {&a->v, v, a->v_bias},
        {&a->index.qk, index, NULL}, {&a->index.k, attention_index_key(a, step, index), NULL}};
    be->ops->input(be, step->normed, n, t->hidden);
    be->ops->matmul(be, products, a->index.ratio == 0 ? 3 : a->index.k.n_rows == 0 ? 4 : 5);
    prepare_heads(a, step, m->rope, q, query_stride(a), a->n_heads, a->q_norm);
    prepare_heads(a, step, m->rope, k, dim, a->n_kv_heads, a->k_norm);
    be->ops->attention(be, &(struct backend_attention){
        .segments = step->segments, .n_segments = step->n_segments,
        .kv_format = step->kv_format, .n_heads = a->n_heads, .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim, .value_dim = a->head_dim,
        .block_positions = step->kv_block_positions,
        .block_bytes = step->kv_block_bytes, .q = q, .gate = a->has_gate ? q + dim : NULL,
        .q_row_stride = q_row, .q_head_stride = query_stride(a), .k = k, .v = v,
        .scale = a->scale, .window = a->window, .sinks = a->sinks,
        .chosen = a->index.ratio > 0 ? attention_choose(a, step, m, index) : NULL,
        .ratio = a->index.ratio, .n_best = a->index.n_best, .out = heads,
    });
    be->ops->input(be, heads, n, a->o.n_cols);
    be->ops->matmul(be, &(struct backend_product){&a->o, m->out, a->o_bias}, 1);
}

/* Every row sees itself alone, so that the time does not grow with the positions. */
void attention_keep(const void *mix, struct step *step, const struct mix_buffers *m)
{
    const struct attention *a = mix;
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t n = step->n_rows, kv_row = (size_t)a->n_kv_heads * a->head_dim;
    const size_t q_row = (size_t)a->n_heads * a->head_dim;
    float *k = m->scratch, *v = k + n * kv_row, *q = v + n * kv_row;
    const struct backend_product products[] = {{&a->k, k, a->k_bias}, {&a->v, v, a->v_bias}};
    be->ops->input(be, step->normed, n, t->hidden);
    be->ops->matmul(be, products, 2);
    prepare_heads(a, step, m->rope, k, a->head_dim, a->n_kv_heads, a->k_norm);
    memory_clear(be->memory, q, n * q_row * sizeof *q);
    be->ops->attention(be, &(struct backend_attention){
        .segments = step->segments, .n_segments = step->n_segments,
        .kv_format = step->kv_format, .n_heads = a->n_heads, .n_kv_heads = a->n_kv_heads,
        .head_dim = a->head_dim, .value_dim = a->head_dim,
        .block_positions = step->kv_block_positions, .block_bytes = step->kv_block_bytes,
        .q = q, .q_row_stride = q_row, .q_head_stride = a->head_dim, .k = k, .v = v,
        .scale = a->scale, .window = 1, .out = q + n * q_row,
    });
}

const struct mixer mixer_attention = {
    .bytes = sizeof(struct attention),
    .read = attention_read,
    .bind = attention_bind,
    .sizes = attention_sizes,
    .state = attention_state,
    .run = attention_run,
};
