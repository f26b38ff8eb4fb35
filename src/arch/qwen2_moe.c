/* Qwen2 MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): softmax attention with biases, a shared expert. */
#include "arch/mix_attention.h"

static const char *const model_types[] = {"qwen2_moe", NULL};
static const char *const prefixes[] = {"model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_attention, false}, {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .default_kv_heads = 16,
    .may_have_dense_layers = true,
    .bias = {.field = "qkv_bias", .by_default = true},
    .shared = SHARED_GATED,
    .head_norms = NORM_NO_HEADS,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    return transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family qwen2_moe_gguf;
extern const struct arch arch_qwen2_moe;
const struct arch arch_qwen2_moe = {
    .family = {.model_types = model_types, .gguf = &qwen2_moe_gguf, .open = open_model,
               .close = transformer_free},
    BLOCKS_FUNCTIONS,
};
