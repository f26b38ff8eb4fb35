/* Qwen3 MoE in GGUF files. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"qwen3moe", NULL};

extern const struct gguf_family qwen3_moe_gguf;
const struct gguf_family qwen3_moe_gguf = {
    .architectures = architectures,
    .model_type = "qwen3_moe",
    .fields = gguf_moe_fields,
    .global_names = gguf_global_names,
    .layer_names = {gguf_attention_names, gguf_post_norm_names, gguf_expert_names},
    .renormalises = true,
    .stop_tokens = gguf_chatml_stop_tokens,
};
