#include "arch/gguf_pieces.h"

const struct gguf_field gguf_moe_fields[] = {
    {"hidden_size", ".embedding_length", LIMIT_HIDDEN, false},
    {"num_attention_heads", ".attention.head_count", LIMIT_HEADS, false},
    {"num_key_value_heads", ".attention.head_count_kv", LIMIT_HEADS, true},
    {"max_position_embeddings", ".context_length", LIMIT_CONTEXT, true},
    {"intermediate_size", ".feed_forward_length", LIMIT_INTERMEDIATE, true},
    {"num_experts", ".expert_count", LIMIT_EXPERTS, false},
    {"num_experts_per_tok", ".expert_used_count", LIMIT_TOP_K, false},
    {"moe_intermediate_size", ".expert_feed_forward_length", LIMIT_INTERMEDIATE, false},
    {0},
};

const struct gguf_field gguf_even_fields[] = {
    {"hidden_size", ".embedding_length", LIMIT_HIDDEN, false},
    {"num_attention_heads", ".attention.head_count", LIMIT_HEADS, false},
    {"num_key_value_heads", ".attention.head_count_kv", LIMIT_HEADS, true},
    {"max_position_embeddings", ".context_length", LIMIT_CONTEXT, true},
    {"intermediate_size", ".feed_forward_length", LIMIT_INTERMEDIATE, false},
    {"num_experts", ".expert_count", LIMIT_EXPERTS, false},
    {"num_experts_per_tok", ".expert_used_count", LIMIT_TOP_K, false},
    {0},
};

const struct gguf_name gguf_global_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight", false, false},
    {"output_norm.weight", "model.norm.weight", false, false},
    {"output.weight", "lm_head.weight", false, false},
    {0},
};

const struct gguf_name gguf_attention_names[] = {
    {"attn_norm.weight", "input_layernorm.weight", false, false},
    {"ffn_norm.weight", "post_attention_layernorm.weight", false, false},
    {"attn_q.weight", "self_attn.q_proj.weight", false, false},
    {"attn_k.weight", "self_attn.k_proj.weight", false, false},
    {"attn_v.weight", "self_attn.v_proj.weight", false, false},
    {"attn_output.weight", "self_attn.o_proj.weight", false, false},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", false, false},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", false, false},
    {0},
};

const struct gguf_name gguf_bias_names[] = {
    {"attn_q.bias", "self_attn.q_proj.bias", false, false},
    {"attn_k.bias", "self_attn.k_proj.bias", false, false},
    {"attn_v.bias", "self_attn.v_proj.bias", false, false},
    {0},
};

const struct gguf_name gguf_dense_names[] = {
    {"ffn_gate.weight", "mlp.gate_proj.weight", false, false},
    {"ffn_up.weight", "mlp.up_proj.weight", false, false},
    {"ffn_down.weight", "mlp.down_proj.weight", false, false},
    {0},
};

const struct gguf_name gguf_post_norm_names[] = {
    {"post_attention_norm.weight", "post_attention_layernorm.weight", false, false},
    {0},
};

const struct gguf_name gguf_expert_names[] = {
    {"ffn_gate_inp.weight", "mlp.gate.weight", false, false},
    {"ffn_gate_exps.weight", "mlp.experts.gate_proj.weight", false, false},
    {"ffn_up_exps.weight", "mlp.experts.up_proj.weight", false, false},
    {"ffn_down_exps.weight", "mlp.experts.down_proj.weight", false, false},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj.weight", false, false},
    {0},
};

const struct gguf_name gguf_shared_expert_names[] = {
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", false, true},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", false, false},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", false, false},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", false, false},
    {0},
};

const struct gguf_name gguf_delta_net_names[] = {
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight", true, false},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight", true, false},
    {"ssm_in.weight", "linear_attn.in_proj_qkvz.weight", true, false},
    {"ssm_ba.weight", "linear_attn.in_proj_ba.weight", true, false},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight", true, false},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight", true, false},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight", true, false},
    {"ssm_dt.bias", "linear_attn.dt_bias", true, false},
    {"ssm_a", "linear_attn.A_log", true, false},
    {"ssm_norm.weight", "linear_attn.norm.weight", true, false},
    {"ssm_out.weight", "linear_attn.out_proj.weight", true, false},
    {0},
};

const char *const gguf_chatml_stop_tokens[] = {"<|im_end|>", "<|endoftext|>", NULL};

int gguf_read_sigmoid_router(const struct gguf *g, json_t *config, struct fm_error *err)
{
    char key[GGUF_KEY_BYTES];
    uint64_t gating, n_groups, n_chosen;
    double scale;
    int rc = gguf_uint_or(g, ".expert_gating_func", 0, UINT32_MAX, 0, &gating, err);
    if (rc == 0 && gating != 0 && gating != 2) /* 0: not set */
        rc = gguf_refuse(g, key, gguf_look(g, ".expert_gating_func", key), "2 (sigmoid)", err);
    if (rc == 0)
        rc = gguf_number_or(g, ".expert_weights_scale", 0, 1e6, 0, &scale, err);
    if (rc == 0)
        rc = gguf_uint_or(g, ".expert_group_count", 0, LIMIT_EXPERTS, 0, &n_groups, err);
    if (rc == 0)
        rc = gguf_uint_or(g, ".expert_group_used_count", 0, LIMIT_EXPERTS, 0, &n_chosen, err);
    if (rc != 0)
        return rc;
    /* 0 means not set everywhere. */
    gguf_config_set(config, "routed_scaling_factor", json_real(scale != 0 ? scale : 1), &rc, err);
    gguf_config_set(config, "n_group", json_integer(n_groups > 0 ? (json_int_t)n_groups : 1), &rc,
                    err);
    gguf_config_set(config, "topk_group", json_integer(n_chosen > 0 ? (json_int_t)n_chosen : 1),
                    &rc, err);
    return rc;
}

static const struct gguf_field delta_fields[] = {
    {"linear_conv_kernel_dim", ".ssm.conv_kernel", LIMIT_CONV_KERNEL, false},
    {"linear_key_head_dim", ".ssm.state_size", LIMIT_HEAD_DIM, false},
    {"linear_num_key_heads", ".ssm.group_count", LIMIT_HEADS, false},
    {"linear_num_value_heads", ".ssm.time_step_rank", LIMIT_HEADS, false},
    {0},
};

/* Finds out which layers are recurrent: a list says so, or all but every n-th are. */
static int read_layer_types(const struct gguf *g, struct gguf_layout *layout, struct fm_error *err)
{
    char key[GGUF_KEY_BYTES];
    const struct gguf_value *list = gguf_look(g, ".attention.recurrent_layers", key);
    uint64_t interval;
    int rc = gguf_uint_or(g, ".full_attention_interval", 1, LIMIT_LAYERS, 4, &interval, err);
    for (uint64_t i = 0; rc == 0 && i < layout->n_layers; i++) {
        int64_t flag = (i + 1) % interval != 0;
        if (list != NULL && !gguf_element(list, i, &flag))
            rc = err_set(err, FM_ERR_FORMAT,
                         "%s: key '%s' is not a list of truth values for %llu layers", g->path,
                         key, (unsigned long long)layout->n_layers);
        layout->is_recurrent[i] = flag != 0;
    }
    return rc;
}

int gguf_read_delta_net(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                        struct fm_error *err)
{
    uint64_t inner, shared;
    int rc = gguf_config_read(config, g, delta_fields, err);
    if (rc == 0)
        rc = gguf_uint(g, ".ssm.inner_size", 1, (uint64_t)LIMIT_HEADS * LIMIT_HEAD_DIM, &inner,
                       err);
    if (rc == 0)
        rc = gguf_uint_or(g, ".expert_shared_feed_forward_length", 1, LIMIT_INTERMEDIATE,
                          gguf_config_uint(config, "intermediate_size", 0), &shared, err);
    if (rc == 0)
        rc = read_layer_types(g, layout, err);
    if (rc != 0)
        return rc;
    const uint64_t n_value_heads = gguf_config_uint(config, "linear_num_value_heads", 1);
    if (inner % n_value_heads != 0)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: key '%s.ssm.inner_size' is %llu, no multiple of ssm.time_step_rank "
                       "%llu",
                       g->path, layout->architecture, (unsigned long long)inner,
                       (unsigned long long)n_value_heads);
    json_t *types = json_array();
    for (uint64_t i = 0; i < layout->n_layers; i++) {
        const char *type = layout->is_recurrent[i] ? "linear_attention" : "full_attention";
        if (json_array_append_new(types, json_string(type)) != 0 && rc == 0)
            rc = err_set(err, FM_ERR_NOMEM, "out of memory for the configuration");
    }
    gguf_config_set(config, "layer_types", types, &rc, err);
    gguf_config_set(config, "linear_value_head_dim",
                    json_integer((json_int_t)(inner / n_value_heads)), &rc, err);
    if (shared > 0)
        gguf_config_set(config, "shared_expert_intermediate_size",
                        json_integer((json_int_t)shared), &rc, err);
    if (gguf_config_uint(config, "linear_num_key_heads", 1) == n_value_heads)
        layout->conventions.has_tiled_value_heads = false; /* either order is the same */
    return rc;
}
