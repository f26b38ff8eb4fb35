/* GLM-4.5, 4.6, 4.7 and 4.5-Air: softmax attention with biases that rotates half of each head;
 * dense layers first, then a sigmoid router with a correction and an ungated shared expert. */
#include "arch/mix_attention.h"

static const char *const model_types[] = {"glm4_moe", NULL};
static const char *const prefixes[] = {"model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_attention, false}, {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .partial_rotary_factor = 0.5,
    .default_kv_heads = 8,
    .default_eps = 1e-5,
    .begins_with_dense_layers = true,
    .bias = {.field = "attention_bias"},
    .shared = SHARED_PLAIN,
    .router = {.score = ROUTER_SIGMOID, .correction = "gate.e_score_correction_bias",
               .has_groups = true},
    .may_have_predictors = true,
    .head_norms = NORM_EACH_HEAD,
    .head_norms_field = "use_qk_norm",
    .renormalises_by_default = true,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    /* transformers keeps only so many positions then. */
    int rc = config_refuse_unless(config, "sliding_window", "null", err);
    return rc != 0 ? rc : transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family glm4_moe_gguf;
extern const struct arch arch_glm4_moe;
const struct arch arch_glm4_moe = {
    .family = {.model_types = model_types, .gguf = &glm4_moe_gguf, .open = open_model,
               .close = transformer_free},
    BLOCKS_FUNCTIONS,
};
