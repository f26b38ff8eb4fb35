/* Qwen2 MoE in GGUF files. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"qwen2moe", NULL};

static const struct gguf_field fields[] = {
    {"hidden_size", ".embedding_length", LIMIT_HIDDEN, false},
    {"num_attention_heads", ".attention.head_count", LIMIT_HEADS, false},
    {"num_key_value_heads", ".attention.head_count_kv", LIMIT_HEADS, true},
    {"max_position_embeddings", ".context_length", LIMIT_CONTEXT, true},
    {"intermediate_size", ".feed_forward_length", LIMIT_INTERMEDIATE, false},
    {"num_experts", ".expert_count", LIMIT_EXPERTS, false},
    {"num_experts_per_tok", ".expert_used_count", LIMIT_TOP_K, false},
    {0},
};

/* Older files have only feed_forward_length: the size of the shared expert, and of all experts that
 * a token uses together. */
static int read_sizes(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                      struct fm_error *err)
{
    const uint64_t dense = gguf_config_uint(config, "intermediate_size", 1);
    const uint64_t by_used = dense / gguf_config_uint(config, "num_experts_per_tok", 1);
    uint64_t size, shared;
    int rc = gguf_uint_or(g, ".expert_feed_forward_length", 1, LIMIT_INTERMEDIATE, by_used, &size,
                          err);
    if (rc == 0)
        rc = gguf_uint_or(g, ".expert_shared_feed_forward_length", 1, LIMIT_INTERMEDIATE, dense,
                          &shared, err);
    if (rc != 0)
        return rc;
    gguf_config_set(config, "moe_intermediate_size", json_integer((json_int_t)size), &rc, err);
    gguf_config_set(config, "shared_expert_intermediate_size", json_integer((json_int_t)shared),
                    &rc, err);
    gguf_config_set(config, "qkv_bias", json_boolean(layout->has_attention_bias), &rc, err);
    return rc;
}

extern const struct gguf_family qwen2_moe_gguf;
const struct gguf_family qwen2_moe_gguf = {
    .architectures = architectures,
    .model_type = "qwen2_moe",
    .fields = fields,
    .global_names = gguf_global_names,
    .layer_names = {gguf_attention_names, gguf_bias_names, gguf_expert_names,
                    gguf_shared_expert_names},
    .stop_tokens = gguf_chatml_stop_tokens,
    .more = read_sizes,
};
