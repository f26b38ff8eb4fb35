/* GLM-4.5 and its successors in GGUF files. The blocks for multi-token prediction come last. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"glm4moe", NULL};
static const char *const stop_tokens[] = {"<|endoftext|>", "<|user|>", "<|observation|>", NULL};
static const char *const own_keys[] = {".expert_gating_func", ".expert_weights_scale",
                                       ".expert_group_count", ".expert_group_used_count",
                                       ".leading_dense_block_count", NULL};

static const struct gguf_field fields[] = {
    {"hidden_size", ".embedding_length", LIMIT_HIDDEN, false},
    {"num_attention_heads", ".attention.head_count", LIMIT_HEADS, false},
    {"num_key_value_heads", ".attention.head_count_kv", LIMIT_HEADS, true},
    {"max_position_embeddings", ".context_length", LIMIT_CONTEXT, true},
    {"intermediate_size", ".feed_forward_length", LIMIT_INTERMEDIATE, false},
    {"n_routed_experts", ".expert_count", LIMIT_EXPERTS, false},
    {"num_experts_per_tok", ".expert_used_count", LIMIT_TOP_K, false},
    {"moe_intermediate_size", ".expert_feed_forward_length", LIMIT_INTERMEDIATE, false},
    {"n_shared_experts", ".expert_shared_count", LIMIT_EXPERTS, false},
    {0},
};

static const struct gguf_name names[] = {
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", false, false},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight", false, false},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight", false, false},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight", false, false},
    {0},
};

static int read_more(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                     struct fm_error *err)
{
    uint64_t n_dense;
    int rc = gguf_read_sigmoid_router(g, config, err);
    if (rc == 0)
        rc = gguf_uint_or(g, ".leading_dense_block_count", 0, layout->n_layers - 1, 0, &n_dense,
                          err);
    if (rc != 0)
        return rc;
    gguf_config_set(config, "first_k_dense_replace", json_integer((json_int_t)n_dense), &rc, err);
    gguf_config_set(config, "attention_bias", json_boolean(layout->has_attention_bias), &rc, err);
    gguf_config_set(config, "use_qk_norm", json_boolean(layout->has_head_norms), &rc, err);
    return rc;
}

extern const struct gguf_family glm4_moe_gguf;
const struct gguf_family glm4_moe_gguf = {
    .architectures = architectures,
    .model_type = "glm4_moe",
    .fields = fields,
    .global_names = gguf_global_names,
    .layer_names = {gguf_post_norm_names, gguf_attention_names, gguf_bias_names, gguf_dense_names,
                    gguf_expert_names, names},
    .has_partial_rotary = true,
    .stop_tokens = stop_tokens,
    .own_keys = own_keys,
    .more = read_more,
};
