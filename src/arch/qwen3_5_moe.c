/* Qwen3.5 MoE (35B, 122B, 397B): as Qwen3-Next with separate projections and a router that always
 * renormalises. Of a multimodal checkpoint the text part is used. */
#include "arch/mix_attention.h"
#include "arch/mix_delta_net.h"
#include "arch/mtp.h"

static const char *const model_types[] = {"qwen3_5_moe", "qwen3_5_moe_text", NULL};
static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                       "model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_attention, false},
                                          {"linear_attention", &mixer_delta_net, false},
                                          {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .default_interval = 4,
    .default_kv_heads = 2,
    .default_head_dim = 256,
    .partial_rotary_factor = 0.25,
    .has_attention_gate = true,
    .may_have_mtp = true,
    .shared = SHARED_GATED,
    .has_zero_centred_norms = true,
    .always_renormalises = true,
    .bind_delta_projections = delta_net_bind_apart,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    return transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family qwen3_5_moe_gguf;
extern const struct arch arch_qwen3_5_moe;
const struct arch arch_qwen3_5_moe = {
    .family = {.model_types = model_types, .multimodal_type = "qwen3_5_moe",
               .gguf = &qwen3_5_moe_gguf, .open = open_model, .close = transformer_free},
    BLOCKS_FUNCTIONS,
    .mtp = &blocks_mtp,
};
