/* Qwen3-Next (80B-A3B, Coder-Next): three gated delta rule layers to one of gated attention, a
 * shared expert. The projections of a recurrent layer are fused and grouped by key head. */
#include "arch/mix_attention.h"
#include "arch/mix_delta_net.h"
#include "arch/mtp.h"
#include "base/limits.h"

static const char *const model_types[] = {"qwen3_next", NULL};
static const char *const prefixes[] = {"model.", NULL};

/* Rows of the fused tensor are, for each key head: its queries, its keys, then the values and the
 * gates z of its value heads. They are put in order while reading: all queries, all keys, all
 * values; all z. */
static void bind_fused(struct binder *b, const struct transformer *t, struct delta_net *d,
                       const char *prefix)
{
    const uint32_t heads = d->n_key_heads;
    const uint32_t key_dim = d->key_dim, values = d->n_value_heads / heads * d->value_dim;
    const uint32_t stride = 2 * key_dim + 2 * values;
    struct row_range qkv[3 * LIMIT_HEADS] = {{0}}, one[LIMIT_HEADS] = {{0}};
    const char *fused = "%slinear_attn.in_proj_qkvz.weight";
    for (uint32_t h = 0; h < heads; h++) {
        qkv[h] = (struct row_range){h * stride, key_dim};
        qkv[heads + h] = (struct row_range){h * stride + key_dim, key_dim};
        qkv[2 * heads + h] = (struct row_range){h * stride + 2 * key_dim, values};
        one[h] = (struct row_range){h * stride + 2 * key_dim + values, values};
    }
    binder_matrix_rows(b, &d->qkv, heads * stride, t->hidden, qkv, 3 * heads, fused, prefix);
    binder_matrix_rows(b, &d->z, heads * stride, t->hidden, one, heads, fused, prefix);
}

/* GGUF has the fused tensor in order already, under other names. In the other one the rows of each
 * key head are b, then a, of its value heads. */
static void bind_delta_projections(struct binder *b, const struct transformer *t,
                                   struct delta_net *d, const char *prefix)
{
    const uint32_t heads = d->n_key_heads, per_key = d->n_value_heads / heads;
    const char *small = "%slinear_attn.in_proj_ba.weight";
    struct row_range one[LIMIT_HEADS] = {{0}};
    if (binder_find(b, "%slinear_attn.in_proj_qkv.weight", prefix) != NULL)
        delta_net_bind_qkv_z(b, t, d, prefix);
    else
        bind_fused(b, t, d, prefix);
    for (uint32_t h = 0; h < heads; h++)
        one[h] = (struct row_range){h * 2 * per_key, per_key};
    binder_matrix_rows(b, &d->b, 2 * d->n_value_heads, t->hidden, one, heads, small, prefix);
    for (uint32_t h = 0; h < heads; h++)
        one[h].first += per_key;
    binder_matrix_rows(b, &d->a, 2 * d->n_value_heads, t->hidden, one, heads, small, prefix);
}

static const struct layer_kind kinds[] = {{"full_attention", &mixer_attention, false},
                                          {"linear_attention", &mixer_delta_net, false},
                                          {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .default_interval = 4,
    .default_kv_heads = 2,
    .default_head_dim = 256,
    .may_have_dense_layers = true,
    .partial_rotary_factor = 0.25,
    .has_attention_gate = true,
    .may_have_mtp = true,
    .shared = SHARED_GATED,
    .has_zero_centred_norms = true,
    .renormalises_by_default = true,
    .bind_delta_projections = bind_delta_projections,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    return transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family qwen3_next_gguf;
extern const struct arch arch_qwen3_next;
const struct arch arch_qwen3_next = {
    .family = {.model_types = model_types, .gguf = &qwen3_next_gguf, .open = open_model,
               .close = transformer_free},
    BLOCKS_FUNCTIONS,
    .mtp = &blocks_mtp,
};
