/* Attention that chooses the blocks of positions it looks at: an index with keys of its own finds
 * the best ones. */
#include "arch/mix_attention.h"
#include "base/limits.h"

static int indexed_read(void *mix, struct transformer *t, const struct transformer_traits *traits,
                        const struct layer_kind *kind, const struct config *c, struct fm_error *err)
{
    struct attention *a = mix;
    struct attention_index *x = &a->index;
    uint32_t budget = 0, kv_heads;
    int rc = mixer_attention.read(mix, t, traits, kind, c, err);
    if (rc == 0)
        rc = config_uint(c, "indexer_n_heads", 1, LIMIT_HEADS, &x->n_heads, err);
    if (rc == 0)
        rc = config_uint(c, "indexer_kv_heads", 1, 1, &kv_heads, err);
    if (rc == 0)
        rc = config_uint(c, "indexer_head_dim", 1, LIMIT_HEAD_DIM, &x->dim, err);
    if (rc == 0)
        rc = config_uint(c, "indexer_compress_ratio", 1, LIMIT_INDEX_RATIO, &x->ratio, err);
    if (rc == 0)
        rc = config_uint(c, "indexer_budget", x->ratio, LIMIT_INDEX_BUDGET, &budget, err);
    if (rc != 0)
        return rc;
    if (budget % x->ratio != 0)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'indexer_budget' is %u, no multiple of indexer_compress_ratio "
                       "%u", c->file, budget, x->ratio);
    if (t->rotary_dim > x->dim)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'indexer_head_dim' is %u, less than the %u dimensions that turn "
                       "(head_dim, partial_rotary_factor)", c->file, x->dim, t->rotary_dim);
    x->n_best = budget / x->ratio;
    t->index_ratio = x->ratio;
    return 0;
}

static void indexed_bind(void *mix, struct binder *b, const struct transformer *t,
                         const struct layer_names *names)
{
    struct attention *a = mix;
    struct attention_index *x = &a->index;
    mixer_attention.bind(mix, b, t, names);
    if (binder_find(b, "%sself_attn.indexer.index_q_proj.weight", names->prefix) != NULL) {
        binder_matrix(b, &x->qk, TENSOR_MATRIX, x->n_heads * x->dim, t->hidden,
                      "%sself_attn.indexer.index_q_proj.weight", names->prefix);
        binder_matrix(b, &x->k, TENSOR_MATRIX, x->dim, t->hidden,
                      "%sself_attn.indexer.index_k_proj.weight", names->prefix);
    } else {
        binder_matrix(b, &x->qk, TENSOR_MATRIX, (x->n_heads + 1) * x->dim, t->hidden,
                      "%sself_attn.indexer.index_qk_proj.weight", names->prefix);
    }
    binder_vector(b, &x->q_norm, x->dim, names->norm, "%sself_attn.indexer.q_layernorm.weight",
                  names->prefix);
    binder_vector(b, &x->k_norm, x->dim, names->norm, "%sself_attn.indexer.k_layernorm.weight",
                  names->prefix);
}

/* Floats of a row: queries and the key of the index, that key and the block's, what is chosen. */
static uint64_t index_floats(const struct attention_index *x)
{
    return (x->n_heads + 3ull) * x->dim + 1 + x->n_best;
}

static void indexed_sizes(const void *mix, struct mixer_sizes *s)
{
    const struct attention *a = mix;
    struct mixer_sizes own = {0};
    mixer_attention.sizes(mix, &own);
    mixer_attention.sizes(mix, s);
    own.floats_per_row += index_floats(&a->index);
    s->floats_per_row = s->floats_per_row > own.floats_per_row ? s->floats_per_row
                                                               : own.floats_per_row;
    s->index_best = s->index_best > a->index.n_best ? s->index_best : a->index.n_best;
}

/* Keys of the index are compared with each other, and near ones decide: they are not rounded. */
static void indexed_state(const void *mix, struct layer_state *state)
{
    const struct attention *a = mix;
    mixer_attention.state(mix, state);
    layer_state_add(state, (struct state_part){.kind = STATE_BY_POSITION, .n_rows = 1,
                                               .n_values = a->index.dim, .format = &kv_f32});
    /* Beyond the blocks that it chooses, only the index grows with the context. */
    state->position_mul_adds = (uint64_t)a->index.n_heads * a->index.dim / a->index.ratio;
}

float *attention_index_key(const struct attention *a, const struct step *step, float *scratch)
{
    return scratch + (size_t)step->n_rows * a->index.qk.n_rows;
}

const uint32_t *attention_choose(const struct attention *a, struct step *step,
                                 const struct mix_buffers *m, float *scratch)
{
    const struct attention_index *x = &a->index;
    const struct transformer *t = transformer_of(step);
    struct backend *be = step->be;
    const size_t n = step->n_rows, row = x->qk.n_rows;
    float *qk = scratch, *key = attention_index_key(a, step, scratch), *mean = key + n * x->dim;
    uint32_t *chosen = (uint32_t *)(void *)(mean + n * x->dim);
    const struct backend_index index = {
        .segments = step->segments, .n_segments = step->n_segments, .ratio = x->ratio,
        .dim = x->dim, .n_heads = x->n_heads, .n_best = x->n_best,
        .block_positions = step->kv_block_positions, .block_bytes = step->kv_block_bytes,
        .key = key, .mean = mean, .q = qk, .q_row_stride = row, .chosen = chosen};
    if (x->k.n_rows == 0)
        be->ops->copy_heads(be, &(struct backend_head_copy){
            qk + (size_t)x->n_heads * x->dim, key, row, x->dim, 1, x->dim}, n);
    be->ops->norm_rope(be, &(struct backend_heads){
        .x = qk, .row_stride = row, .head_stride = x->dim, .n_heads = x->n_heads,
        .head_dim = x->dim, .rotary_dim = t->rotary_dim, .norm = x->q_norm, .eps = a->eps,
        .rope = m->rope}, n);
    be->ops->streams->index_means(be, &index);
    be->ops->norm_rope(be, &(struct backend_heads){
        .x = mean, .row_stride = x->dim, .head_stride = x->dim, .n_heads = 1, .head_dim = x->dim,
        .rotary_dim = t->rotary_dim, .norm = x->k_norm, .eps = a->eps, .rope = m->block_rope}, n);
    be->ops->streams->index_choose(be, &index);
    return chosen;
}

const struct mixer mixer_indexed = {
    .bytes = sizeof(struct attention),
    .read = indexed_read,
    .bind = indexed_bind,
    .sizes = indexed_sizes,
    .state = indexed_state,
    .run = attention_run,
};
