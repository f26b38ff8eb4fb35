/* Qwen3-Next in GGUF files. The converter adds 1 to zero-centred norms, stores -exp(A_log)
 * in place of A_log. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"qwen3next", NULL};

extern const struct gguf_family qwen3_next_gguf;
const struct gguf_family qwen3_next_gguf = {
    .architectures = architectures,
    .model_type = "qwen3_next",
    .fields = gguf_moe_fields,
    .global_names = gguf_global_names,
    .layer_names = {gguf_post_norm_names, gguf_attention_names, gguf_delta_net_names,
                    gguf_expert_names, gguf_shared_expert_names},
    .has_attention_gate = true,
    .has_partial_rotary = true,
    .renormalises = true,
    .conventions = {.has_final_norms = true, .has_final_decay = true},
    .stop_tokens = gguf_chatml_stop_tokens,
    .more = gguf_read_delta_net,
};
