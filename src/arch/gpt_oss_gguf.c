/* gpt-oss in GGUF files. The converter takes gate and up apart. The files do not say that YaRN's
 * ramp is not rounded to whole dimensions, nor which layers have a window. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"gpt-oss", NULL};

static const struct gguf_field fields[] = {
    {"hidden_size", ".embedding_length", LIMIT_HIDDEN, false},
    {"num_attention_heads", ".attention.head_count", LIMIT_HEADS, false},
    {"num_key_value_heads", ".attention.head_count_kv", LIMIT_HEADS, true},
    {"max_position_embeddings", ".context_length", LIMIT_CONTEXT, true},
    {"num_local_experts", ".expert_count", LIMIT_EXPERTS, false},
    {"num_experts_per_tok", ".expert_used_count", LIMIT_TOP_K, false},
    {"intermediate_size", ".expert_feed_forward_length", LIMIT_INTERMEDIATE, false},
    {"sliding_window", ".attention.sliding_window", LIMIT_CONTEXT, false},
    {0},
};

static const struct gguf_name own_names[] = {
    {"attn_q.bias", "self_attn.q_proj.bias", false, false},
    {"attn_k.bias", "self_attn.k_proj.bias", false, false},
    {"attn_v.bias", "self_attn.v_proj.bias", false, false},
    {"attn_output.bias", "self_attn.o_proj.bias", false, false},
    {"attn_sinks.weight", "self_attn.sinks", false, false},
    {"ffn_gate_inp.weight", "mlp.router.weight", false, false},
    {"ffn_gate_inp.bias", "mlp.router.bias", false, false},
    {"ffn_gate_exps.bias", "mlp.experts.gate_proj.bias", false, false},
    {"ffn_up_exps.bias", "mlp.experts.up_proj.bias", false, false},
    {"ffn_down_exps.bias", "mlp.experts.down_proj.bias", false, false},
    {0},
};

static const char *const own_keys[] = {".attention.sliding_window", NULL};
static const char *const stop_tokens[] = {"<|return|>", "<|call|>", NULL};

static int read_more(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                     struct fm_error *err)
{
    (void)g, (void)layout;
    int rc = 0;
    json_t *rope = json_object_get(config, "rope_scaling");
    if (rope != NULL)
        gguf_config_set(rope, "truncate", json_false(), &rc, err);
    else
        gguf_config_set(config, "rope_scaling", json_pack("{s:s}", "rope_type", "default"), &rc,
                        err);
    return rc;
}

extern const struct gguf_family gpt_oss_gguf;
const struct gguf_family gpt_oss_gguf = {
    .architectures = architectures,
    .model_type = "gpt_oss",
    .fields = fields,
    .global_names = gguf_global_names,
    .layer_names = {own_names, gguf_post_norm_names, gguf_attention_names, gguf_expert_names},
    .renormalises = true,
    .stop_tokens = stop_tokens,
    .own_keys = own_keys,
    .more = read_more,
};
