/* GLM-4.7-Flash: built like DeepSeek-V3, with one dense layer first. */
#include "arch/mix_latent.h"

static const char *const model_types[] = {"glm4_moe_lite", NULL};
static const char *const prefixes[] = {"model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_latent, false}, {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .default_eps = 1e-5,
    .n_dense_layers = 1,
    .turns_neighbours = true,
    .bias = {.field = "attention_bias"},
    .shared = SHARED_PLAIN,
    .router = {.score = ROUTER_SIGMOID, .correction = "gate.e_score_correction_bias",
               .has_groups = true, .default_scale = 1.8},
    .renormalises_by_default = true,
    .may_have_predictors = true,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    double share;
    const int rc = config_number_or(config, "partial_rotary_factor", 0, 1, 1, &share, err);
    if (rc == 0 && share != 1) /* the table would have other frequencies */
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: field 'partial_rotary_factor' is %g; this version computes 1 only for "
                       "this architecture", config->file, share);
    return rc != 0 ? rc : transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct arch arch_glm4_moe_lite;
const struct arch arch_glm4_moe_lite = {
    .family = {.model_types = model_types, .open = open_model, .close = transformer_free},
    BLOCKS_FUNCTIONS,
};
