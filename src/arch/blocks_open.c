/* Opening a transformer: configuration, checks, tensor names. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "arch/blocks.h"
#include "arch/ffn.h"
#include "arch/mtp.h"
#include "base/limits.h"
#include "base/mem.h"

static void free_layers(struct transformer *t)
{
    for (uint32_t i = 0; t->layers != NULL && i < t->n_layers + 1; i++) {
        mem_free(t->layers[i].mix);
        mem_free(t->layers[i].ffn);
    }
    mem_free(t->layers);
}

void transformer_free(void *arch)
{
    struct transformer *t = arch;
    if (t == NULL)
        return;
    free_layers(t);
    for (unsigned i = 0; i < TRANSFORMER_KINDS; i++)
        mem_free(t->shapes[i]);
    mem_free(t->rope_frequencies);
    mem_free(t->more);
    mem_free(t->mtp);
    mem_free(t);
}

int transformer_make_rope(struct transformer *t, uint32_t rotary_dim, struct fm_error *err)
{
    t->rotary_dim = rotary_dim;
    t->rope_frequencies = mem_new(rotary_dim / 2 + 1, sizeof(float), "the rope table", err);
    if (t->rope_frequencies == NULL)
        return FM_ERR_NOMEM;
    rope_frequencies(&t->rope, rotary_dim, t->rope_frequencies);
    t->max_context = rope_max_context(&t->rope, t->max_context);
    return 0;
}

/* ---- configuration -------------------------------------------------------------------------- */

static uint32_t or_one(uint32_t n)
{
    return n > 0 ? n : 1;
}

/* Reads the groups of experts that a row is limited to. */
static int read_groups(struct router *r, const struct router_traits *traits,
                       const struct config *c, struct fm_error *err)
{
    double scale;
    int rc = config_uint_or(c, "n_group", 1, r->n_experts, or_one(traits->default_groups),
                            &r->n_groups, err);
    if (rc == 0 && r->n_experts % r->n_groups != 0)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: field 'n_group' is %u, which does not divide the %u experts", c->file,
                     r->n_groups, r->n_experts);
    if (rc == 0)
        rc = config_uint_or(c, "topk_group", 1, r->n_groups < LIMIT_TOP_K ? r->n_groups
                                                                          : LIMIT_TOP_K,
                            or_one(traits->default_groups_chosen), &r->n_groups_chosen, err);
    if (rc == 0)
        rc = config_number_or(c, "routed_scaling_factor", 0, 1e6,
                              traits->default_scale > 0 ? traits->default_scale : 1, &scale, err);
    if (rc != 0)
        return rc;
    const uint32_t size = r->n_experts / r->n_groups;
    if (r->n_groups > 1 && size < 2)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: field 'n_group' is %u for %u experts; a group needs two at least",
                       c->file, r->n_groups, r->n_experts);
    if (r->k > size * r->n_groups_chosen)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'topk_group' is %u: groups of %u experts have fewer than the %u "
                       "of num_experts_per_tok",
                       c->file, r->n_groups_chosen, size, r->k);
    r->scale = (float)scale;
    return 0;
}

/* The size of all shared experts together. */
static int read_shared(struct transformer *t, const struct transformer_traits *traits,
                       const struct config *c, struct fm_error *err)
{
    uint32_t n;
    if (traits->shared == SHARED_NONE)
        return 0;
    if (traits->shared == SHARED_GATED)
        return config_uint(c, "shared_expert_intermediate_size", 1, LIMIT_INTERMEDIATE,
                           &t->shared_intermediate, err);
    int rc = config_uint_or(c, "n_shared_experts", 0, LIMIT_INTERMEDIATE / t->expert_intermediate,
                            1, &n, err);
    t->shared_intermediate = n * t->expert_intermediate;
    return rc;
}

static int read_experts(struct transformer *t, const struct transformer_traits *traits,
                        const struct config *c, struct fm_error *err)
{
    uint32_t n, k = 0;
    bool renormalises = false;
    int rc = config_uint(c, "num_experts", 1, LIMIT_EXPERTS, &n, err);
    if (rc == 0)
        rc = config_experts_per_token(c, "num_experts_per_tok", n < LIMIT_TOP_K ? n : LIMIT_TOP_K,
                                      &t->n_experts_trained, &k, err);
    if (rc == 0)
        rc = config_uint(c, "moe_intermediate_size", 1, LIMIT_INTERMEDIATE,
                         &t->expert_intermediate, err);
    if (rc == 0)
        rc = read_shared(t, traits, c, err);
    if (rc == 0)
        rc = config_bool_or(c, "norm_topk_prob", traits->renormalises_by_default, &renormalises,
                            err);
    if (rc != 0)
        return rc;
    t->router = (struct router){
        .score = traits->router.score, .n_experts = n, .k = k, .scale = 1,
        .renormalises = renormalises || traits->always_renormalises};
    return traits->router.has_groups ? read_groups(&t->router, &traits->router, c, err)
                                     : 0;
}

static int refuse_unsupported(const struct transformer_traits *traits, const struct config *c,
                              struct fm_error *err)
{
    int rc = config_refuse_unless(c, "hidden_act", "\"silu\"", err);
    const char *bias = traits->bias.field;
    if (rc == 0 && (bias == NULL || strcmp(bias, "attention_bias") != 0))
        rc = config_refuse_unless(c, "attention_bias", "false", err);
    if (rc == 0)
        rc = config_refuse_general(c, err);
    if (rc == 0 && traits->has_attention_gate)
        rc = config_refuse_unless(c, "attn_output_gate", "true", err);
    return rc;
}

/* Reads the shape of every kind of layer that the family has. */
static int read_mixers(struct transformer *t, const struct transformer_traits *traits,
                       const struct config *c, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && traits->kinds[i].name != NULL; i++) {
        const struct layer_kind *kind = &traits->kinds[i];
        assert(i < TRANSFORMER_KINDS);
        t->shapes[i] = mem_new(1, kind->mixer->bytes, "the shape of a layer", err);
        rc = t->shapes[i] == NULL ? FM_ERR_NOMEM
                                  : kind->mixer->read(t->shapes[i], t, traits, kind, c, err);
    }
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
        rc = config_number_or(c, "rms_norm_eps", 0, 1,
                              traits->default_eps > 0 ? traits->default_eps : 1e-6, &eps, err);
    if (rc == 0)
        rc = config_bool_or(c, "tie_word_embeddings", false, &t->has_tied_head, err);
    if (rc != 0)
        return rc;
    t->eps = (float)eps;
    t->n_streams = 1;
    t->activation = traits->activation;
    t->router_name = traits->router_name != NULL ? traits->router_name : "gate";
    t->expert_order = traits->expert_order;
    rc = read_experts(t, traits, c, err);
    if (rc == 0)
        rc = read_mixers(t, traits, c, err);
    return rc != 0 || traits->read_more == NULL ? rc : traits->read_more(t, c, err);
}

/* ---- what each layer is --------------------------------------------------------------------- */

static int make_layer(struct transformer *t, const struct transformer_traits *traits,
                      uint32_t layer, unsigned kind, struct fm_error *err)
{
    struct transformer_layer *l = &t->layers[layer];
    l->mixer = traits->kinds[kind].mixer;
    const size_t more = l->mixer->more_bytes != NULL ? l->mixer->more_bytes(t->shapes[kind]) : 0;
    l->mix = mem_new(1, l->mixer->bytes + more, "a layer", err);
    if (l->mix == NULL)
        return FM_ERR_NOMEM;
    memcpy(l->mix, t->shapes[kind], l->mixer->bytes);
    return 0;
}

/* Lists the names of all kinds for an error. */
static const char *show_kinds(const struct transformer_traits *traits, char *text, size_t bytes)
{
    size_t used = 0;
    for (unsigned i = 0; traits->kinds[i].name != NULL && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s\"%s\"", i > 0 ? " or " : "",
                                 traits->kinds[i].name);
    return text;
}

static int read_layer_type(struct transformer *t, const struct transformer_traits *traits,
                           const struct config *c, const json_t *type, uint32_t layer,
                           struct fm_error *err)
{
    char shown[80], kinds[160];
    (void)jdoc_show(type, shown, sizeof shown);
    for (unsigned k = 0; traits->kinds[k].name != NULL; k++) {
        char quoted[80];
        (void)snprintf(quoted, sizeof quoted, "\"%s\"", traits->kinds[k].name);
        if (strcmp(shown, quoted) == 0)
            return make_layer(t, traits, layer, k, err);
    }
    return err_set(err, FM_ERR_UNSUPPORTED, "%s: field 'layer_types[%u]' is %s, expected %s",
                   c->file, layer, shown, show_kinds(traits, kinds, sizeof kinds));
}

static int read_layer_types(struct transformer *t, const struct transformer_traits *traits,
                            const struct config *c, struct fm_error *err)
{
    const json_t *types = config_find(c, "layer_types");
    uint32_t interval = traits->has_own_interval ? traits->default_interval : 1;
    int rc = 0;
    if (types == NULL && traits->default_interval > 0 && !traits->has_own_interval)
        rc = config_uint_or(c, "full_attention_interval", 1, LIMIT_LAYERS,
                            traits->default_interval, &interval, err);
    if (types != NULL && (!json_is_array(types) || json_array_size(types) != t->n_layers))
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: field 'layer_types' is not a list of %u layers (num_hidden_layers)",
                     c->file, t->n_layers);
    for (uint32_t i = 0; rc == 0 && i < t->n_layers; i++)
        rc = types != NULL ? read_layer_type(t, traits, c, json_array_get(types, i), i, err)
                           : make_layer(t, traits, i, (i + 1) % interval == 0 ? 0 : 1, err);
    return rc;
}

/* Layers are routed unless the configuration says otherwise. */
static int read_dense_layers(struct transformer *t, const struct config *c, struct fm_error *err)
{
    uint32_t step;
    int rc = config_uint_or(c, "decoder_sparse_step", 1, LIMIT_LAYERS, 1, &step, err);
    for (uint32_t i = 0; rc == 0 && i < t->n_layers; i++)
        if ((i + 1) % step != 0)
            t->layers[i].block = &ffn_block_dense;
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
            t->layers[i].block = &ffn_block_dense;
    }
    bool has_any = false;
    for (uint32_t i = 0; rc == 0 && i < t->n_layers; i++)
        has_any |= t->layers[i].block == &ffn_block_dense;
    if (rc == 0 && has_any)
        rc = config_uint(c, "intermediate_size", 1, LIMIT_INTERMEDIATE, &t->dense_intermediate,
                         err);
    return rc;
}

/* The first layers are dense. One at least has experts. */
static int read_first_layers(struct transformer *t, const struct config *c, struct fm_error *err)
{
    uint32_t n;
    int rc = config_uint(c, "first_k_dense_replace", 0, t->n_layers - 1, &n, err);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        t->layers[i].block = &ffn_block_dense;
    if (rc == 0 && n > 0)
        rc = config_uint(c, "intermediate_size", 1, LIMIT_INTERMEDIATE, &t->dense_intermediate,
                         err);
    return rc;
}

/* The same, or a list that names the block of every layer. */
static int read_block_types(struct transformer *t, uint32_t n_dense, const struct config *c,
                            struct fm_error *err)
{
    const json_t *types = config_find(c, "mlp_layer_types");
    bool has_dense = false;
    if (types != NULL && (!json_is_array(types) || json_array_size(types) != t->n_layers))
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'mlp_layer_types' is not a list of %u layers "
                       "(num_hidden_layers)", c->file, t->n_layers);
    for (uint32_t i = 0; i < t->n_layers; i++) {
        const char *type = types != NULL ? json_string_value(json_array_get(types, i))
                                         : i < n_dense ? "dense" : "sparse";
        if (type == NULL || (strcmp(type, "dense") != 0 && strcmp(type, "sparse") != 0))
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: field 'mlp_layer_types[%u]' is neither \"dense\" nor \"sparse\"",
                           c->file, i);
        if (strcmp(type, "dense") == 0) {
            t->layers[i].block = &ffn_block_dense;
            has_dense = true;
        }
    }
    return has_dense ? config_uint(c, "intermediate_size", 1, LIMIT_INTERMEDIATE,
                                   &t->dense_intermediate, err) : 0;
}

static int make_ffn(struct transformer_layer *l, struct fm_error *err)
{
    l->ffn = mem_new(1, l->block->bytes, "a layer", err);
    return l->ffn == NULL ? FM_ERR_NOMEM : 0;
}

static int make_ffns(struct transformer *t, struct fm_error *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < t->n_layers; i++)
        rc = make_ffn(&t->layers[i], err);
    return rc;
}

/* Makes the block for multi-token prediction and its layer. */
static int make_mtp(struct transformer *t, const struct transformer_traits *traits,
                    struct fm_error *err)
{
    t->layers[t->n_layers].block = &ffn_block_routed;
    int rc = make_layer(t, traits, t->n_layers, 0, err);
    if (rc == 0)
        rc = make_ffn(&t->layers[t->n_layers], err);
    if (rc == 0)
        t->mtp = mem_new(1, sizeof *t->mtp, "the block for multi-token prediction", err);
    return rc == 0 && t->mtp == NULL ? FM_ERR_NOMEM : rc;
}

/* ---- tensors -------------------------------------------------------------------------------- */

static void bind_layer(struct binder *b, const struct transformer *t,
                       const struct transformer_traits *traits, const char *prefix,
                       enum vector_transform norm, uint32_t layer)
{
    struct transformer_layer *l = &t->layers[layer];
    const struct layer_names names = {.layer = layer, .prefix = prefix, .norm = norm,
                                      .traits = traits};
    if (!traits->has_streams) {
        binder_vector(b, &l->mix_norm, t->hidden, norm, "%sinput_layernorm.weight", prefix);
        binder_vector(b, &l->ffn_norm, t->hidden, norm, "%spost_attention_layernorm.weight",
                      prefix);
    }
    l->mixer->bind(l->mix, b, t, &names);
    l->expert_layer = l->block->bind(l->ffn, b, t, &names);
    if (traits->bind_more != NULL)
        traits->bind_more(b, t, l, &names);
}

static const char *find_prefix(const struct binder *b, const char *const *prefixes,
                               uint32_t first_layer)
{
    /* The embedding may lie in a file that is not here. */
    for (const char *const *p = prefixes; *p != NULL; p++)
        if (binder_find(b, "%sembed_tokens.weight", *p) != NULL ||
            binder_find(b, "%slayers.%u.input_layernorm.weight", *p, first_layer) != NULL ||
            binder_find(b, "%slayers.%u.mlp.gate.weight", *p, first_layer) != NULL)
            return *p;
    return prefixes[0];
}

static void bind_final_norm(struct binder *b, struct transformer *t,
                            const struct transformer_traits *traits, const char *model,
                            enum vector_transform norm)
{
    const struct layer_names names = {.prefix = model, .norm = norm, .traits = traits};
    if (traits->bind_last != NULL)
        traits->bind_last(b, t, &names);
    else if (binder_has_head(b))
        binder_vector(b, &t->final_norm, t->hidden, norm, "%snorm.weight", model);
    else
        binder_leave(b, "%snorm.weight", model);
}

static void bind_embedding(struct binder *b, struct transformer *t, const char *model)
{
    const bool has_head = binder_has_head(b);
    if (binder_has_layer(b, 0) || (has_head && t->has_tied_head))
        binder_matrix(b, &t->embedding, t->has_tied_head ? TENSOR_HEAD : TENSOR_EMBEDDING,
                      t->vocabulary, t->hidden, "%sembed_tokens.weight", model);
    else
        binder_leave(b, "%sembed_tokens.weight", model);
}

static void bind_head(struct binder *b, struct transformer *t, const char *root)
{
    if (t->has_tied_head)
        return;
    if (binder_has_head(b))
        binder_matrix(b, &t->head, TENSOR_HEAD, t->vocabulary, t->hidden, "%slm_head.weight",
                      root);
    else
        binder_leave(b, "%slm_head.weight", root);
}

/* Marks the layers behind the last one as not used, if they have what predictors have. */
static void ignore_predictors(struct binder *b, const char *model, uint32_t first)
{
    for (uint32_t i = first; binder_find(b, "%slayers.%u.enorm.weight", model, i) != NULL; i++) {
        char prefix[LAYER_PREFIX_BYTES];
        (void)snprintf(prefix, sizeof prefix, "%slayers.%u.", model, i);
        binder_ignore(b, prefix, false, "multi-token prediction is not used");
    }
}

static void bind_layers(struct binder *b, const struct transformer *t,
                        const struct transformer_traits *traits, const char *model,
                        enum vector_transform norm)
{
    for (uint32_t i = 0; i < t->n_layers && !binder_has_failed(b); i++) {
        char prefix[LAYER_PREFIX_BYTES];
        (void)snprintf(prefix, sizeof prefix, "%slayers.%u.", model, i);
        if (binder_has_layer(b, i))
            bind_layer(b, t, traits, prefix, norm, i);
        else
            binder_leave_layer(b, i, t->layers[i].block == &ffn_block_routed, "%s", prefix);
    }
}

/* Comes last. A stage without the first layer has no embedding yet. */
static void bind_mtp(struct binder *b, struct transformer *t,
                     const struct transformer_traits *traits, const char *model,
                     enum vector_transform norm)
{
    binder_begin_mtp(b);
    if (!binder_has_layer(b, 0) && !t->has_tied_head)
        binder_matrix(b, &t->embedding, TENSOR_EMBEDDING, t->vocabulary, t->hidden,
                      "%sembed_tokens.weight", model);
    bind_layer(b, t, traits, "mtp.layers.0.", norm, t->n_layers);
    mtp_bind(b, t->mtp, t, norm);
}

static void bind_all(struct binder *b, struct transformer *t,
                     const struct transformer_traits *traits)
{
    uint32_t first = 0;
    while (first + 1 < t->n_layers && !binder_has_layer(b, first))
        first++;
    const char *model = find_prefix(b, traits->prefixes, first);
    const enum vector_transform norm =
        traits->has_zero_centred_norms && !binder_conventions(b)->has_final_norms
            ? VECTOR_PLUS_ONE : VECTOR_PLAIN;
    /* mlx-lm puts the whole language model of a multimodal one below a name of its own. */
    const char *root = strncmp(model, "language_model.", 15) == 0 ? "language_model." : "";
    /* As in transformers, a head in the files is used whatever the configuration says. */
    t->has_tied_head = t->has_tied_head && binder_find(b, "%slm_head.weight", root) == NULL;
    bind_embedding(b, t, model);
    bind_final_norm(b, t, traits, model, norm);
    bind_layers(b, t, traits, model, norm);
    bind_head(b, t, root);
    if (t->mtp != NULL)
        bind_mtp(b, t, traits, model, norm);
    binder_ignore(b, "model.visual.", true, "this version reads text only, no images");
    binder_ignore(b, "vision_tower.", true, "this version reads text only, no images");
    binder_ignore(b, "mm_projector.", true, "this version reads text only, no images");
    binder_ignore(b, "mtp.", false, "multi-token prediction is not used");
    if (traits->may_have_predictors)
        ignore_predictors(b, model, t->n_layers);
}

static bool has_positions(const struct layer_state *state)
{
    uint32_t i = 0;
    while (i < state->n_parts && state->parts[i].kind != STATE_BY_POSITION)
        i++;
    return i < state->n_parts;
}

static void fill_shape(const struct transformer *t, struct model_shape *shape)
{
    *shape = (struct model_shape){
        .n_layers = t->n_layers, .hidden = t->hidden, .vocabulary = t->vocabulary,
        .row_floats = t->n_streams * t->hidden,
        .max_context = t->max_context, .rope = t->rope, .n_experts = t->router.n_experts,
        .n_experts_per_token = t->router.k,
        .n_experts_trained = t->n_experts_trained, .has_tied_head = t->has_tied_head,
    };
    for (uint32_t i = 0; i < t->n_layers; i++) {
        struct layer_state state = {0};
        t->layers[i].mixer->state(t->layers[i].mix, &state);
        shape->n_attention_layers += has_positions(&state);
    }
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
    t->layers = mem_new((uint64_t)t->n_layers + 1, sizeof *t->layers, "the layers", err);
    if (t->layers == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t i = 0; i < t->n_layers; i++)
        t->layers[i].block = &ffn_block_routed;
    rc = read_layer_types(t, traits, config, err);
    if (rc == 0 && traits->check_layers != NULL)
        rc = traits->check_layers(t, config, err);
    if (rc == 0 && traits->may_have_dense_layers)
        rc = read_dense_layers(t, config, err);
    if (rc == 0 && traits->begins_with_dense_layers)
        rc = read_first_layers(t, config, err);
    if (rc == 0 && traits->n_dense_layers > 0)
        rc = read_block_types(t, traits->n_dense_layers, config, err);
    if (rc == 0)
        rc = make_ffns(t, err);
    if (rc == 0)
        binder_set_layers(binder, t->n_layers);
    if (rc == 0 && mtp_is_wanted(binder, traits))
        rc = make_mtp(t, traits, err);
    if (rc == 0) {
        bind_all(binder, t, traits);
        fill_shape(t, shape);
    }
    return rc;
}
