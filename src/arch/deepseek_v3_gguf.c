/* DeepSeek-V3 and the models built like it in GGUF files. The converter has cut the matrix of keys
 * and values into those of the heads, and has turned those of the keys; old files have it whole. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"deepseek2", NULL};
static const char *const stop_tokens[] = {"<｜end▁of▁sentence｜>", "<|im_end|>", "<|endoftext|>",
                                          "<|user|>", "<|observation|>", NULL};
static const char *const own_keys[] = {
    ".expert_gating_func", ".expert_weights_scale", ".expert_group_count",
    ".expert_group_used_count", ".leading_dense_block_count", ".rope.scaling.yarn_log_multiplier",
    NULL};

static const struct gguf_field fields[] = {
    {"hidden_size", ".embedding_length", LIMIT_HIDDEN, false},
    {"num_attention_heads", ".attention.head_count", LIMIT_HEADS, false},
    {"max_position_embeddings", ".context_length", LIMIT_CONTEXT, true},
    {"intermediate_size", ".feed_forward_length", LIMIT_INTERMEDIATE, false},
    {"n_routed_experts", ".expert_count", LIMIT_EXPERTS, false},
    {"num_experts_per_tok", ".expert_used_count", LIMIT_TOP_K, false},
    {"moe_intermediate_size", ".expert_feed_forward_length", LIMIT_INTERMEDIATE, false},
    {"n_shared_experts", ".expert_shared_count", LIMIT_EXPERTS, true},
    {"kv_lora_rank", ".attention.kv_lora_rank", LIMIT_HEAD_DIM, false},
    {"q_lora_rank", ".attention.q_lora_rank", LIMIT_HIDDEN, true},
    {"qk_rope_head_dim", ".rope.dimension_count", LIMIT_HEAD_DIM / 2, false},
    {0},
};

static const struct gguf_name names[] = {
    {"attn_q_a.weight", "self_attn.q_a_proj.weight", false, false},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", false, false},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight", false, false},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", false, false},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", false, false},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight", false, false},
    {"attn_k_b.weight", "self_attn.embed_q.weight", false, false},
    {"attn_v_b.weight", "self_attn.unembed_out.weight", false, false},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", false, false},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight", false, false},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight", false, false},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight", false, false},
    {0},
};

/* Files whose keys and values are cut by head have the sizes of heads under names of their own. */
static int read_heads(const struct gguf *g, json_t *config, struct fm_error *err)
{
    char key[GGUF_KEY_BYTES];
    const uint64_t rope = gguf_config_uint(config, "qk_rope_head_dim", 0);
    const bool is_cut = gguf_look(g, ".attention.key_length_mla", key) != NULL;
    uint64_t head, value;
    int rc = gguf_uint(g, is_cut ? ".attention.key_length_mla" : ".attention.key_length", rope + 1,
                       LIMIT_HEAD_DIM, &head, err);
    if (rc == 0)
        rc = gguf_uint(g, is_cut ? ".attention.value_length_mla" : ".attention.value_length", 1,
                       LIMIT_HEAD_DIM, &value, err);
    if (rc != 0)
        return rc;
    gguf_config_set(config, "qk_nope_head_dim", json_integer((json_int_t)(head - rope)), &rc, err);
    gguf_config_set(config, "v_head_dim", json_integer((json_int_t)value), &rc, err);
    return rc;
}

static int read_more(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                     struct fm_error *err)
{
    uint64_t n_dense;
    int rc = read_heads(g, config, err);
    if (rc == 0)
        rc = gguf_read_sigmoid_router(g, config, err);
    if (rc == 0)
        rc = gguf_uint_or(g, ".leading_dense_block_count", 0, layout->n_layers - 1, 0, &n_dense,
                          err);
    if (rc == 0)
        gguf_config_set(config, "first_k_dense_replace", json_integer((json_int_t)n_dense), &rc,
                        err);
    return rc;
}

extern const struct gguf_family deepseek_v3_gguf;
const struct gguf_family deepseek_v3_gguf = {
    .architectures = architectures,
    .model_type = "deepseek_v3",
    .fields = fields,
    .global_names = gguf_global_names,
    .layer_names = {gguf_attention_names, gguf_dense_names, gguf_expert_names, names},
    .has_latent_heads = true,
    .stop_tokens = stop_tokens,
    .own_keys = own_keys,
    .more = read_more,
};
