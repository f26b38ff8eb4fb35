/* Opening a transformer: configuration, checks, tensor names. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "arch/blocks.h"
#include "base/limits.h"
#include "base/mem.h"

#define PREFIX_BYTES 128

void transformer_free(void *arch)
{
    struct transformer *t = arch;
    if (t == NULL)
        return;
    mem_free(t->layers);
    mem_free(t->rope_frequencies);
    mem_free(t);
}

/* ---- configuration -------------------------------------------------------------------------- */

/* transformers turns whole heads in a family without a share of its own, but its scaled
 * frequencies are of that share. */
static int refuse_scaled_share(const struct transformer *t, const struct config *c,
                               struct fm_error *err)
{
    double share;
    int rc = config_number_or(c, "partial_rotary_factor", 0, 1, 1, &share, err);
    if (rc == 0 && (uint32_t)(share * t->head_dim) != t->head_dim)
        rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "%s: field 'partial_rotary_factor' is %g; with rope scaling this version "
                     "computes 1 only for this architecture",
                     c->file, share);
    return rc;
}

static int read_attention(struct transformer *t, const struct transformer_traits *traits,
                          const struct config *c, struct fm_error *err)
{
    int rc = config_uint(c, "num_attention_heads", 1, LIMIT_HEADS, &t->n_heads, err);
    if (rc == 0)
        rc = config_uint_or(c, "num_key_value_heads", 1, LIMIT_HEADS, traits->default_kv_heads,
                            &t->n_kv_heads, err);
    if (rc == 0)
        rc = config_uint_or(c, "head_dim", 1, LIMIT_HEAD_DIM,
                            traits->default_head_dim > 0 ? traits->default_head_dim
                                                         : t->hidden / t->n_heads,
                            &t->head_dim, err);
    double rotated = 1;
    if (rc == 0)
        rc = config_rope(c, &t->rope, err);
    if (rc == 0 && traits->partial_rotary_factor > 0)
        rc = config_number_or(c, "partial_rotary_factor", 0, 1, traits->partial_rotary_factor,
                              &rotated, err);
    else if (rc == 0 && t->rope.kind != ROPE_DEFAULT)
        rc = refuse_scaled_share(t, c, err);
    if (rc != 0)
        return rc;
    if (t->n_heads % t->n_kv_heads != 0)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: num_attention_heads %u is no multiple of num_key_value_heads %u",
                       c->file, t->n_heads, t->n_kv_heads);
    t->has_attention_gate = traits->has_attention_gate;
    t->rotary_dim = (uint32_t)(rotated * t->head_dim);
    if (t->head_dim == 0 || t->rotary_dim % 2 != 0)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: head_dim %u with partial_rotary_factor %g gives %u rotary dimensions, "
                       "expected an even number",
                       c->file, t->head_dim, rotated, t->rotary_dim);
    t->rope_frequencies = mem_new(t->rotary_dim / 2 + 1, sizeof(float), "the rope table", err);
    if (t->rope_frequencies == NULL)
        return FM_ERR_NOMEM;
    rope_frequencies(&t->rope, t->rotary_dim, t->rope_frequencies);
    t->max_context = rope_max_context(&t->rope, t->max_context);
    return 0;
}

static int read_delta_net(struct transformer *t, const struct config *c, struct fm_error *err)
{
    int rc = config_uint(c, "linear_num_key_heads", 1, LIMIT_HEADS, &t->n_key_heads, err);
    if (rc == 0)
        rc = config_uint(c, "linear_num_value_heads", 1, LIMIT_HEADS, &t->n_value_heads, err);
    if (rc == 0)
        rc = config_uint(c, "linear_key_head_dim", 1, LIMIT_HEAD_DIM, &t->key_dim, err);
    if (rc == 0)
        rc = config_uint(c, "linear_value_head_dim", 1, LIMIT_HEAD_DIM, &t->value_dim, err);
    if (rc == 0)
        rc = config_uint(c, "linear_conv_kernel_dim", 1, LIMIT_CONV_KERNEL, &t->conv_kernel, err);
    if (rc == 0 && t->n_value_heads % t->n_key_heads != 0)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: linear_num_value_heads %u is no multiple of linear_num_key_heads %u",
                     c->file, t->n_value_heads, t->n_key_heads);
    return rc;
}

static int read_experts(struct transformer *t, const struct transformer_traits *traits,
                        const struct config *c, struct fm_error *err)
{
    int rc = config_uint(c, "num_experts", 1, LIMIT_EXPERTS, &t->n_experts, err);
    if (rc == 0)
        rc = config_experts_per_token(c, "num_experts_per_tok",
                                      t->n_experts < LIMIT_TOP_K ? t->n_experts : LIMIT_TOP_K,
                                      &t->n_experts_trained, &t->n_experts_per_token, err);
    if (rc == 0)
        rc = config_uint(c, "moe_intermediate_size", 1, LIMIT_INTERMEDIATE,
                         &t->expert_intermediate, err);
    if (rc == 0 && traits->has_shared_expert)
        rc = config_uint(c, "shared_expert_intermediate_size", 1, LIMIT_INTERMEDIATE,
                         &t->shared_intermediate, err);
    if (rc == 0)
        rc = config_bool_or(c, "norm_topk_prob", traits->renormalises_by_default,
                            &t->renormalises, err);
    t->renormalises |= traits->always_renormalises;
    return rc;
}

static int refuse_unsupported(const struct transformer_traits *traits, const struct config *c,
                              struct fm_error *err)
{
    int rc = config_refuse_unless(c, "hidden_act", "\"silu\"", err);
    if (rc == 0)
        rc = config_refuse_unless(c, "attention_bias", "false", err);
    if (rc == 0)
        rc = config_refuse_general(c, err);
    if (rc == 0 && traits->has_attention_gate)
        rc = config_refuse_unless(c, "attn_output_gate", "true", err);
    return rc;
}

static int read_config(struct transformer *t, const struct transformer_traits *traits,
                       const struct config *c, struct fm_error *err)
{
    double eps;
    int rc = refuse_unsupported(traits, c, err);
    if (rc == 0)
        rc = config_uint(c, "num_hidden_layers", 1, LIMIT_LAYERS, &t->n_layers, err);
    if (rc == 0)
        rc = config_uint(c, "hidden_size", 1, LIMIT_HIDDEN, &t->hidden, err);
    if (rc == 0)
        rc = config_uint(c, "vocab_size", 1, LIMIT_VOCAB, &t->vocabulary, err);
    if (rc == 0)
        rc = config_uint_or(c, "max_position_embeddings", 1, LIMIT_CONTEXT, LIMIT_CONTEXT,
                            &t->max_context, err);
    if (rc == 0)
        rc = config_number_or(c, "rms_norm_eps", 0, 1, 1e-6, &eps, err);
    if (rc == 0)
        rc = config_bool_or(c, "tie_word_embeddings", false, &t->has_tied_head, err);
    if (rc == 0)
        rc = read_attention(t, traits, c, err);
    if (rc == 0 && traits->has_delta_net)
        rc = read_delta_net(t, c, err);
    if (rc == 0)
        rc = read_experts(t, traits, c, err);
    if (rc == 0)
        t->eps = (float)eps;
    return rc;
}

/* ---- what each layer is --------------------------------------------------------------------- */

static int read_layer_types(struct transformer *t, const struct transformer_traits *traits,
                            const struct config *c, struct fm_error *err)
{
    const json_t *types = config_find(c, "layer_types");
    if (types == NULL && !traits->has_delta_net)
        return 0;
    if (types == NULL) {
        uint32_t interval;
        int rc = config_uint_or(c, "full_attention_interval", 1, LIMIT_LAYERS, 4, &interval, err);
        for (uint32_t i = 0; rc == 0 && i < t->n_layers; i++)
            t->layers[i].is_recurrent = (i + 1) % interval != 0;
        return rc;
    }
    if (!json_is_array(types) || json_array_size(types) != t->n_layers)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'layer_types' is not a list of %u layers (num_hidden_layers)",
                       c->file, t->n_layers);
    for (uint32_t i = 0; i < t->n_layers; i++) {
        char shown[80];
        (void)jdoc_show(json_array_get(types, i), shown, sizeof shown);
        if (strcmp(shown, "\"linear_attention\"") == 0 && traits->has_delta_net)
            t->layers[i].is_recurrent = true;
        else if (strcmp(shown, "\"full_attention\"") != 0)
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: field 'layer_types[%u]' is %s, expected %s\"full_attention\"",
                           c->file, i, shown,
                           traits->has_delta_net ? "\"linear_attention\" or " : "");
    }
    return 0;
}

/* A layer is routed unless the configuration says otherwise. */
static int read_dense_layers(struct transformer *t, const struct config *c, struct fm_error *err)
{
    uint32_t step;
    int rc = config_uint_or(c, "decoder_sparse_step", 1, LIMIT_LAYERS, 1, &step, err);
    for (uint32_t i = 0; rc == 0 && i < t->n_layers; i++)
        t->layers[i].expert_layer = (i + 1) % step != 0 ? ARCH_NO_EXPERTS : 0;
    const json_t *list = config_find(c, "mlp_only_layers");
    if (rc == 0 && list != NULL && !json_is_array(list))
        rc = err_set(err, FM_ERR_FORMAT, "%s: field 'mlp_only_layers' is not a list", c->file);
    for (size_t k = 0; rc == 0 && k < json_array_size(list); k++) {
        const json_t *entry = json_array_get(list, k);
        json_int_t i = json_integer_value(entry);
        if (!json_is_integer(entry) || i < 0 || i >= t->n_layers)
            rc = err_set(err, FM_ERR_FORMAT,
                         "%s: field 'mlp_only_layers[%zu]' is not a layer below %u", c->file, k,
                         t->n_layers);
        else
            t->layers[i].expert_layer = ARCH_NO_EXPERTS;
    }
    for (uint32_t i = 0; rc == 0 && i < t->n_layers; i++)
        t->has_dense_layers |= t->layers[i].expert_layer == ARCH_NO_EXPERTS;
    if (rc == 0 && t->has_dense_layers)
        rc = config_uint(c, "intermediate_size", 1, LIMIT_INTERMEDIATE, &t->dense_intermediate,
                         err);
    return rc;
}

/* ---- tensors -------------------------------------------------------------------------------- */

struct names {
    const char *model; /* "model." or the like */
    enum vector_transform norm;
};

static void bind_attention(struct binder *b, const struct transformer *t,
                           struct attention_weights *w, const struct names *names,
                           const char *prefix)
{
    const uint32_t q_width = t->n_heads * t->head_dim, kv_width = t->n_kv_heads * t->head_dim;
    binder_matrix(b, &w->q, TENSOR_MATRIX, t->has_attention_gate ? 2 * q_width : q_width,
                  t->hidden, "%sself_attn.q_proj.weight", prefix);
    binder_matrix(b, &w->k, TENSOR_MATRIX, kv_width, t->hidden, "%sself_attn.k_proj.weight",
                  prefix);
    binder_matrix(b, &w->v, TENSOR_MATRIX, kv_width, t->hidden, "%sself_attn.v_proj.weight",
                  prefix);
    binder_matrix(b, &w->o, TENSOR_MATRIX, t->hidden, q_width, "%sself_attn.o_proj.weight",
                  prefix);
    binder_vector(b, &w->q_norm, t->head_dim, names->norm, "%sself_attn.q_norm.weight", prefix);
    binder_vector(b, &w->k_norm, t->head_dim, names->norm, "%sself_attn.k_norm.weight", prefix);
}

void blocks_bind_qkv_z(struct binder *b, const struct transformer *t, struct delta_net_weights *w,
                       const char *prefix)
{
    const uint32_t values = t->n_value_heads * t->value_dim;
    const uint32_t channels = 2 * t->n_key_heads * t->key_dim + values;
    binder_matrix(b, &w->qkv, TENSOR_MATRIX, channels, t->hidden,
                  "%slinear_attn.in_proj_qkv.weight", prefix);
    binder_matrix(b, &w->z, TENSOR_MATRIX, values, t->hidden, "%slinear_attn.in_proj_z.weight",
                  prefix);
}

static void bind_delta_net(struct binder *b, const struct transformer *t,
                           const struct transformer_traits *traits, struct delta_net_weights *w,
                           const char *prefix)
{
    const uint32_t values = t->n_value_heads * t->value_dim;
    const uint32_t channels = 2 * t->n_key_heads * t->key_dim + values;
    traits->bind_delta_projections(b, t, w, prefix);
    binder_matrix(b, &w->out, TENSOR_MATRIX, t->hidden, values, "%slinear_attn.out_proj.weight",
                  prefix);
    binder_table(b, &w->conv, channels, t->conv_kernel, "%slinear_attn.conv1d.weight", prefix);
    binder_vector(b, &w->decay, t->n_value_heads,
                  binder_conventions(b)->has_final_decay ? VECTOR_PLAIN : VECTOR_NEG_EXP,
                  "%slinear_attn.A_log", prefix);
    binder_vector(b, &w->dt_bias, t->n_value_heads, VECTOR_PLAIN, "%slinear_attn.dt_bias",
                  prefix);
    binder_vector(b, &w->norm, t->value_dim, VECTOR_PLAIN, "%slinear_attn.norm.weight", prefix);
}

static void bind_ffn(struct binder *b, struct ffn_weights *w, uint32_t hidden,
                     uint32_t intermediate, const char *prefix, const char *block)
{
    binder_matrix(b, &w->gate, TENSOR_MATRIX, intermediate, hidden, "%s%s.gate_proj.weight",
                  prefix, block);
    binder_matrix(b, &w->up, TENSOR_MATRIX, intermediate, hidden, "%s%s.up_proj.weight", prefix,
                  block);
    binder_matrix(b, &w->down, TENSOR_MATRIX, hidden, intermediate, "%s%s.down_proj.weight",
                  prefix, block);
}

static void bind_moe(struct binder *b, const struct transformer *t, struct transformer_layer *l,
                     uint32_t layer, const char *prefix)
{
    char mlp[PREFIX_BYTES + 8];
    (void)snprintf(mlp, sizeof mlp, "%smlp.", prefix);
    binder_matrix(b, &l->router, TENSOR_GATE, t->n_experts, t->hidden, "%sgate.weight", mlp);
    l->expert_layer =
        binder_experts(b, layer, t->n_experts, t->hidden, t->expert_intermediate, mlp);
    if (t->shared_intermediate > 0) {
        bind_ffn(b, &l->shared, t->hidden, t->shared_intermediate, mlp, "shared_expert");
        binder_matrix(b, &l->shared_gate, TENSOR_GATE, 1, t->hidden,
                      "%sshared_expert_gate.weight", mlp);
    }
}

static void bind_layer(struct binder *b, const struct transformer *t,
                       const struct transformer_traits *traits, const struct names *names,
                       uint32_t layer)
{
    struct transformer_layer *l = &t->layers[layer];
    char prefix[PREFIX_BYTES];
    (void)snprintf(prefix, sizeof prefix, "%slayers.%u.", names->model, layer);
    binder_vector(b, &l->mix_norm, t->hidden, names->norm, "%sinput_layernorm.weight", prefix);
    binder_vector(b, &l->ffn_norm, t->hidden, names->norm, "%spost_attention_layernorm.weight",
                  prefix);
    if (l->is_recurrent)
        bind_delta_net(b, t, traits, &l->delta_net, prefix);
    else
        bind_attention(b, t, &l->attention, names, prefix);
    if (l->expert_layer == ARCH_NO_EXPERTS)
        bind_ffn(b, &l->dense, t->hidden, t->dense_intermediate, prefix, "mlp");
    else
        bind_moe(b, t, l, layer, prefix);
}

static const char *find_prefix(const struct binder *b, const char *const *prefixes,
                               uint32_t first_layer)
{
    /* The embedding may lie in a file that is not here. */
    for (const char *const *p = prefixes; *p != NULL; p++)
        if (binder_find(b, "%sembed_tokens.weight", *p) != NULL ||
            binder_find(b, "%slayers.%u.input_layernorm.weight", *p, first_layer) != NULL)
            return *p;
    return prefixes[0];
}

static void bind_embedding(struct binder *b, struct transformer *t, const struct names *names)
{
    const bool has_head = binder_has_layer(b, t->n_layers - 1);
    if (binder_has_layer(b, 0) || (has_head && t->has_tied_head))
        binder_matrix(b, &t->embedding, t->has_tied_head ? TENSOR_HEAD : TENSOR_EMBEDDING,
                      t->vocabulary, t->hidden, "%sembed_tokens.weight", names->model);
    else
        binder_leave(b, "%sembed_tokens.weight", names->model);
    if (has_head)
        binder_vector(b, &t->final_norm, t->hidden, names->norm, "%snorm.weight", names->model);
    else
        binder_leave(b, "%snorm.weight", names->model);
}

static void bind_head(struct binder *b, struct transformer *t, const char *root)
{
    if (t->has_tied_head)
        return;
    if (binder_has_layer(b, t->n_layers - 1))
        binder_matrix(b, &t->head, TENSOR_HEAD, t->vocabulary, t->hidden, "%slm_head.weight",
                      root);
    else
        binder_leave(b, "%slm_head.weight", root);
}

static void bind_all(struct binder *b, struct transformer *t,
                     const struct transformer_traits *traits)
{
    uint32_t first = 0;
    while (first + 1 < t->n_layers && !binder_has_layer(b, first))
        first++;
    struct names names = {.model = find_prefix(b, traits->prefixes, first), .norm = VECTOR_PLAIN};
    /* mlx-lm puts the whole language model of a multimodal one below a name of its own. */
    const char *root = strncmp(names.model, "language_model.", 15) == 0 ? "language_model." : "";
    /* A head in the files is used whatever the configuration says, as transformers does. */
    t->has_tied_head = t->has_tied_head && binder_find(b, "%slm_head.weight", root) == NULL;
    t->has_tiled_value_heads = binder_conventions(b)->has_tiled_value_heads;
    if (traits->has_zero_centred_norms && !binder_conventions(b)->has_final_norms)
        names.norm = VECTOR_PLUS_ONE;
    bind_embedding(b, t, &names);
    for (uint32_t i = 0; i < t->n_layers && !binder_has_failed(b); i++)
        if (binder_has_layer(b, i))
            bind_layer(b, t, traits, &names, i);
        else
            binder_leave_layer(b, i, t->layers[i].expert_layer != ARCH_NO_EXPERTS,
                               "%slayers.%u.", names.model, i);
    bind_head(b, t, root);
    binder_ignore(b, "model.visual.", true, "this version reads text only, no images");
    binder_ignore(b, "vision_tower.", true, "this version reads text only, no images");
    binder_ignore(b, "mtp.", false, "multi-token prediction is not used");
}

static void fill_shape(const struct transformer *t, struct model_shape *shape)
{
    *shape = (struct model_shape){
        .n_layers = t->n_layers, .hidden = t->hidden, .vocabulary = t->vocabulary,
        .max_context = t->max_context, .rope = t->rope, .n_experts = t->n_experts,
        .n_experts_per_token = t->n_experts_per_token,
        .n_experts_trained = t->n_experts_trained, .has_tied_head = t->has_tied_head,
    };
    for (uint32_t i = 0; i < t->n_layers; i++)
        shape->n_attention_layers += !t->layers[i].is_recurrent;
}

int transformer_open(const struct transformer_traits *traits, const struct config *config,
                     struct binder *binder, struct model_shape *shape, void **arch,
                     struct fm_error *err)
{
    struct transformer *t = mem_new(1, sizeof *t, "the transformer", err);
    if (t == NULL)
        return FM_ERR_NOMEM;
    *arch = t; /* model_close frees it, also after a failure */
    int rc = read_config(t, traits, config, err);
    if (rc != 0)
        return rc;
    t->layers = mem_new(t->n_layers, sizeof *t->layers, "the layers", err);
    if (t->layers == NULL)
        return FM_ERR_NOMEM;
    rc = read_layer_types(t, traits, config, err);
    if (rc == 0 && traits->may_have_dense_layers)
        rc = read_dense_layers(t, config, err);
    if (rc == 0) {
        binder_set_layers(binder, t->n_layers);
        bind_all(binder, t, traits);
        fill_shape(t, shape);
    }
    return rc;
}
