/* DeepSeek-V3 (V3, R1, V3.1) and the models built like it: latent attention, a few dense layers
 * first, then experts in groups, chosen by sigmoid scores, beside shared ones. Of a multimodal
 * checkpoint (Kimi-K2.5) the text part is used. */
#include "arch/mix_latent.h"

static const char *const model_types[] = {"deepseek_v3", "kimi_k2", "kimi_k25", NULL};
static const char *const prefixes[] = {"model.", "language_model.model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_latent, false}, {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .begins_with_dense_layers = true,
    .turns_neighbours = true,
    .bias = {.field = "attention_bias"},
    .shared = SHARED_PLAIN,
    .router = {.score = ROUTER_SIGMOID, .correction = "gate.e_score_correction_bias",
               .has_groups = true, .default_groups = 8, .default_groups_chosen = 4,
               .default_scale = 2.5},
    .renormalises_by_default = true,
    .may_have_predictors = true,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    /* Here null is not the default, but false. */
    if (json_is_null(json_object_get(config->text, "norm_topk_prob")))
        return err_set(err, FM_ERR_FORMAT, "%s: field 'norm_topk_prob' is null, expected true or "
                       "false", config->file);
    return transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family deepseek_v3_gguf;
extern const struct arch arch_deepseek_v3;
const struct arch arch_deepseek_v3 = {
    .family = {.model_types = model_types, .multimodal_type = "kimi_k25",
               .gguf = &deepseek_v3_gguf, .open = open_model, .close = transformer_free},
    BLOCKS_FUNCTIONS,
};
