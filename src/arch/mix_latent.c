#include "arch/mix_latent.h"

#include <math.h>

#include "base/limits.h"

/* The norms inside have an eps of their own, whatever the configuration says. */
#define INNER_EPS 1e-6f

/* ---- opening --------------------------------------------------------------------------------- */

/* YaRN multiplies scores too: by the square of a factor that cosines and sines do not have. */
static int read_scale(struct latent *a, const struct transformer *t, const struct config *c,
                      struct fm_error *err)
{
    double all_dim = 0, scale = 1 / sqrt((double)(a->plain_dim + a->rope_dim));
    int rc = config_number_or(c, "mscale_all_dim", 0, 1e6, 0, &all_dim, err);
    if (rc == 0 && t->rope.kind != ROPE_DEFAULT && all_dim != 0) {
        const double factor = rope_mscale(t->rope.factor, all_dim);
        scale *= factor * factor;
    }
    a->scale = (float)scale;
    return rc;
}

static int read_rope(const struct latent *a, struct transformer *t, const struct config *c,
                     struct fm_error *err)
{
    if (t->rope_frequencies != NULL)
        return 0;
    if (a->rope_dim % 2 != 0)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'qk_rope_head_dim' is %u, expected an even number", c->file,
                       a->rope_dim);
    const int rc = config_rope(c, &t->rope, err);
    return rc != 0 ? rc : transformer_make_rope(t, a->rope_dim, err);
}

static int latent_read(void *mix, struct transformer *t, const struct transformer_traits *traits,
                       const struct layer_kind *kind, const struct config *c, struct fm_error *err)
{
    struct latent *a = mix;
    (void)kind;
    int rc = config_uint(c, "num_attention_heads", 1, LIMIT_HEADS, &a->n_heads, err);
    if (rc == 0)
        rc = config_uint(c, "kv_lora_rank", 1, LIMIT_HEAD_DIM / 2, &a->rank, err);
    if (rc == 0)
        rc = config_uint(c, "qk_rope_head_dim", 2, LIMIT_HEAD_DIM / 2, &a->rope_dim, err);
    if (rc == 0)
        rc = config_uint(c, "qk_nope_head_dim", 1, a->rank + a->rope_dim, &a->plain_dim, err);
    if (rc == 0)
        rc = config_uint(c, "v_head_dim", 1, LIMIT_HEAD_DIM, &a->value_dim, err);
    if (rc == 0 && config_find(c, "q_lora_rank") != NULL)
        rc = config_uint(c, "q_lora_rank", 1, LIMIT_HIDDEN, &a->q_rank, err);
    if (rc == 0)
        rc = config_bool_or(c, "attention_bias", false, &a->has_bias, err);
    if (rc == 0)
        rc = config_bool_or(c, "rope_interleave", traits->turns_neighbours, &a->turns_neighbours,
                            err);
    if (rc == 0)
        rc = config_refuse_unless(c, "sliding_window", "null", err);
    if (rc == 0)
        rc = read_rope(a, t, c, err);
    return rc != 0 ? rc : read_scale(a, t, c, err);
}

static size_t latent_more_bytes(const void *mix)
{
    const struct latent *a = mix;
    return 2ul * a->n_heads * sizeof *a->heads;
}

/* A converter has cut the matrix of keys and values by head, and has turned those of the keys. */
static void bind_cut_heads(struct latent *a, struct binder *b, const char *prefix)
{
    const uint32_t n = a->n_heads, n_bound = binder_is_probe(b) ? 1 : n;
    for (uint32_t h = 0; h < n_bound; h++)
        binder_matrix_rows(b, &a->heads[h], n * a->rank, a->plain_dim,
                           &(struct row_range){h * a->rank, a->rank}, 1,
                           "%sself_attn.embed_q.weight", prefix);
    for (uint32_t h = 0; h < n_bound; h++)
        binder_matrix_rows(b, &a->heads[n + h], n * a->value_dim, a->rank,
                           &(struct row_range){h * a->value_dim, a->value_dim}, 1,
                           "%sself_attn.unembed_out.weight", prefix);
}

/* The rows of a head: first those of its keys, then those of its values. */
static void bind_heads(struct latent *a, struct binder *b, const char *prefix)
{
    const uint32_t rows = a->plain_dim + a->value_dim, all = a->n_heads * rows;
    const uint32_t n_bound = binder_is_probe(b) ? 1 : a->n_heads;
    const char *name = "%sself_attn.kv_b_proj.weight";
    for (uint32_t h = 0; h < n_bound; h++)
        binder_turned_rows(b, &a->heads[h], all, a->rank, h * rows, a->plain_dim, name, prefix);
    for (uint32_t h = 0; h < n_bound; h++)
        binder_matrix_rows(b, &a->heads[a->n_heads + h], all, a->rank,
                           &(struct row_range){h * rows + a->plain_dim, a->value_dim}, 1, name,
                           prefix);
}

static void latent_bind(void *mix, struct binder *b, const struct transformer *t,
                        const struct layer_names *names)
{
    struct latent *a = mix;
    const char *prefix = names->prefix;
    const uint32_t q_rows = a->n_heads * (a->plain_dim + a->rope_dim);
    if (a->q_rank > 0) {
        binder_matrix(b, &a->q_a, TENSOR_MATRIX, a->q_rank, t->hidden,
                      "%sself_attn.q_a_proj.weight", prefix);
        binder_vector(b, &a->q_norm, a->q_rank, names->norm, "%sself_attn.q_a_layernorm.weight",
                      prefix);
        binder_matrix(b, &a->q, TENSOR_MATRIX, q_rows, a->q_rank, "%sself_attn.q_b_proj.weight",
                      prefix);
    } else {
        binder_matrix(b, &a->q, TENSOR_MATRIX, q_rows, t->hidden, "%sself_attn.q_proj.weight",
                      prefix);
    }
    binder_matrix(b, &a->kv_a, TENSOR_MATRIX, a->rank + a->rope_dim, t->hidden,
                  "%sself_attn.kv_a_proj_with_mqa.weight", prefix);
    binder_vector(b, &a->kv_norm, a->rank, names->norm, "%sself_attn.kv_a_layernorm.weight",
                  prefix);
    if (binder_find(b, "%sself_attn.embed_q.weight", prefix) != NULL)
        bind_cut_heads(a, b, prefix);
    else
        bind_heads(a, b, prefix);
    binder_matrix(b, &a->o, TENSOR_MATRIX, t->hidden, a->n_heads * a->value_dim,
                  "%sself_attn.o_proj.weight", prefix);
    if (!a->has_bias)
        return;
    if (a->q_rank > 0)
        binder_vector(b, &a->q_a_bias, a->q_rank, VECTOR_PLAIN, "%sself_attn.q_a_proj.bias",
                      prefix);
    binder_vector(b, &a->kv_a_bias, a->rank + a->rope_dim, VECTOR_PLAIN,
                  "%sself_attn.kv_a_proj_with_mqa.bias", prefix);
    binder_vector(b, &a->o_bias, t->hidden, VECTOR_PLAIN, "%sself_attn.o_proj.bias", prefix);
}

/* ---- running --------------------------------------------------------------------------------- */

/* A row that is kept, and a query that it is compared with. */
static uint32_t kept_dim(const struct latent *a)
{
    return a->rank + a->rope_dim;
}

/* Floats per row of each buffer. Wide queries and what heads have gathered take most, so there are
 * only a few of them at a time. */
struct widths {
    size_t q, values, q_short, kv;
    size_t wide; /* a query that is compared with the rows that are kept, and its result */
};

static struct widths widths_of(const struct latent *a)
{
    const size_t n = a->n_heads;
    return (struct widths){.q = n * (a->plain_dim + a->rope_dim), .values = n * a->value_dim,
                           .q_short = a->q_rank, .kv = kept_dim(a), .wide = n * kept_dim(a)};
}

static uint64_t larger(uint64_t x, uint64_t y)
{
    return x > y ? x : y;
}

static void latent_sizes(const void *mix, struct mixer_sizes *s)
{
    const struct latent *a = mix;
    const struct widths w = widths_of(a);
    const uint64_t own = larger(kept_dim(a), a->q_rank); /* also of a head */
    s->max_cols = larger(s->max_cols, larger(w.values, own));
    s->floats_per_row = larger(s->floats_per_row, larger(w.q, w.values) + w.q_short + w.kv);
    s->floats_per_few = larger(s->floats_per_few, 2 * w.wide);
    s->n_heads = (unsigned)larger(s->n_heads, a->n_heads);
    s->head_dim = (unsigned)larger(s->head_dim, kept_dim(a));
}

static void latent_state(const void *mix, struct layer_state *state)
{
    const struct latent *a = mix;
    layer_state_add(state, (struct state_part){STATE_BY_POSITION, 1, kept_dim(a), 0, NULL});
    state->position_mul_adds = a->n_heads * (uint64_t)(kept_dim(a) + a->rank);
}

/* Queries and the rows that are kept, before they turn. */
static void project(const struct latent *a, struct step *step, float *q, float *q_short, float *kv)
{
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t n = step->n_rows;
    const struct backend_product products[] = {
        {&a->kv_a, kv, a->kv_a_bias},
        {a->q_rank > 0 ? &a->q_a : &a->q, a->q_rank > 0 ? q_short : q, a->q_a_bias}};
    be->ops->input(be, step->normed, n, t->hidden);
    be->ops->matmul(be, products, 2);
    if (a->q_rank == 0)
        return;
    be->ops->rms_norm(be, q_short, a->q_norm, INNER_EPS, n, a->q_rank, q_short);
    be->ops->input(be, q_short, n, a->q_rank);
    be->ops->matmul(be, &(struct backend_product){&a->q, q, NULL}, 1);
}

/* Turns rope_dim numbers of every head, from x on. */
static void turn(const struct latent *a, struct step *step, const float *rope, float *x,
                 size_t stride, unsigned n_heads)
{
    step->be->ops->norm_rope(step->be, &(struct backend_heads){
        .x = x, .row_stride = n_heads * stride, .head_stride = stride, .n_heads = n_heads,
        .head_dim = a->rope_dim, .rotary_dim = a->rope_dim,
        .turns_neighbours = a->turns_neighbours, .rope = rope}, step->n_rows);
}

/* Some rows of a step: those from `first` on, at most ARCH_FEW_ROWS. The segments have only these,
 * and count them from 0. */
struct few_rows {
    size_t first, n;
    struct backend_segment segments[ARCH_FEW_ROWS];
    uint32_t n_segments;
};

static void take_rows(const struct step *step, size_t first, struct few_rows *few)
{
    const size_t left = step->n_rows - first;
    few->first = first;
    few->n = left < ARCH_FEW_ROWS ? left : ARCH_FEW_ROWS;
    few->n_segments = 0;
    for (uint32_t i = 0; i < step->n_segments; i++) {
        struct backend_segment one = step->segments[i];
        const size_t begin = one.first_row > first ? one.first_row : first;
        const size_t end = (size_t)one.first_row + one.n_rows < first + few->n
                               ? (size_t)one.first_row + one.n_rows : first + few->n;
        if (begin >= end)
            continue;
        one.position += (uint32_t)(begin - one.first_row);
        one.first_row = (uint32_t)(begin - first);
        one.n_rows = (uint32_t)(end - begin);
        few->segments[few->n_segments++] = one;
    }
}

/* Makes wide queries of the plain ones. `apart` is scratch. */
static void widen(const struct latent *a, struct backend *be, size_t n, const float *q,
                  float *apart, float *wide)
{
    const size_t stride = a->plain_dim + a->rope_dim;
    be->ops->copy_heads(be, &(struct backend_head_copy){q, apart, stride, a->plain_dim, a->n_heads,
                                                        a->plain_dim}, n);
    be->ops->head_products(be, &(struct backend_head_products){
        .w = a->heads, .n_heads = a->n_heads, .x = apart, .y = wide, .y_stride = kept_dim(a)}, n);
    be->ops->copy_heads(be, &(struct backend_head_copy){q + a->plain_dim, wide + a->rank, stride,
                                                        kept_dim(a), a->n_heads, a->rope_dim}, n);
}

/* Attends to the rows that are kept. The result of each head is what its values are made of,
 * [n, n_heads, rank]: in `out`, or in `wide` if the format is rotated, because a whole row turns
 * back. */
static const float *attend(const struct latent *a, const struct step *step,
                           const struct few_rows *few, float *wide, const float *kv, float *out)
{
    struct backend *be = step->be;
    const bool is_rotated = step->kv_format->plain == NULL;
    be->ops->attention(be, &(struct backend_attention){
        .segments = few->segments, .n_segments = few->n_segments,
        .kv_format = step->kv_format, .n_heads = a->n_heads, .n_kv_heads = 1,
        .head_dim = kept_dim(a), .value_dim = is_rotated ? kept_dim(a) : a->rank,
        .block_positions = step->kv_block_positions, .block_bytes = step->kv_block_bytes,
        .q = wide, .q_row_stride = (size_t)a->n_heads * kept_dim(a),
        .q_head_stride = kept_dim(a), .k = kv, .scale = a->scale, .out = out});
    if (!is_rotated)
        return out;
    be->ops->copy_heads(be, &(struct backend_head_copy){out, wide, kept_dim(a), a->rank,
                                                        a->n_heads, a->rank}, few->n);
    return wide;
}

/* Values take the place of the queries from the front on. Queries lie so far behind that no row's
 * values reach the queries of a later one. */
static void latent_run(const void *mix, struct step *step, const struct mix_buffers *m)
{
    const struct latent *a = mix;
    struct backend *be = step->be;
    const size_t n = step->n_rows, n_few = n < ARCH_FEW_ROWS ? n : ARCH_FEW_ROWS;
    const struct widths w = widths_of(a);
    float *values = m->scratch, *q = values + (w.values > w.q ? n * (w.values - w.q) : 0);
    float *q_short = q + n * w.q, *kv = q_short + n * w.q_short;
    float *wide = kv + n * w.kv, *out = wide + n_few * w.wide;
    project(a, step, q, q_short, kv);
    be->ops->norm_rope(be, &(struct backend_heads){
        .x = kv, .row_stride = kept_dim(a), .head_stride = kept_dim(a), .n_heads = 1,
        .head_dim = a->rank, .norm = a->kv_norm, .eps = INNER_EPS, .rope = m->rope}, n);
    turn(a, step, m->rope, kv + a->rank, kept_dim(a), 1);
    turn(a, step, m->rope, q + a->plain_dim, a->plain_dim + a->rope_dim, a->n_heads);
    struct few_rows few;
    for (size_t first = 0; first < n; first += few.n) {
        take_rows(step, first, &few);
        widen(a, be, few.n, q + first * w.q, out, wide);
        const float *made = attend(a, step, &few, wide, kv + first * w.kv, out);
        be->ops->head_products(be, &(struct backend_head_products){
            .w = a->heads + a->n_heads, .n_heads = a->n_heads, .x = made,
            .y = values + first * w.values, .y_stride = a->value_dim}, few.n);
    }
    be->ops->input(be, values, n, a->o.n_cols);
    be->ops->matmul(be, &(struct backend_product){&a->o, m->out, a->o_bias}, 1);
}

const struct mixer mixer_latent = {
    .bytes = sizeof(struct latent),
    .more_bytes = latent_more_bytes,
    .read = latent_read,
    .bind = latent_bind,
    .sizes = latent_sizes,
    .state = latent_state,
    .run = latent_run,
};
