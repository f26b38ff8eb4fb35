/* OLMoE in GGUF files. llama.cpp's converter writes an epsilon of 1e-5, whatever the model says. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"olmoe", NULL};
static const char *const stop_tokens[] = {"<|endoftext|>", NULL};

extern const struct gguf_family olmoe_gguf;
const struct gguf_family olmoe_gguf = {
    .architectures = architectures,
    .model_type = "olmoe",
    .fields = gguf_even_fields,
    .global_names = gguf_global_names,
    .layer_names = {gguf_attention_names, gguf_expert_names},
    .stop_tokens = stop_tokens,
};
