/* Qwen3 MoE (30B-A3B, 235B-A22B): softmax attention in every layer, no shared expert. */
#include "arch/mix_attention.h"

static const char *const model_types[] = {"qwen3_moe", NULL};
static const char *const prefixes[] = {"model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_attention, false}, {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .default_kv_heads = 4,
    .may_have_dense_layers = true,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    return transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family qwen3_moe_gguf;
extern const struct arch arch_qwen3_moe;
const struct arch arch_qwen3_moe = {
    .family = {.model_types = model_types, .gguf = &qwen3_moe_gguf, .open = open_model,
               .close = transformer_free},
    BLOCKS_FUNCTIONS,
};
