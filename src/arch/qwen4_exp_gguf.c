/* Qwen3.8-Flash-Next in GGUF files. The converter adds 1 to zero-centred norms, stores -exp(A_log)
 * in place of A_log, reorders the value heads, takes the index's queries and keys apart, and leaves
 * out the fields that the hash of n-grams follows from: it writes the numbers themselves. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"qwen4exp", NULL};

static const struct gguf_name global_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight", false, false},
    {"output.weight", "lm_head.weight", false, false},
    {"output_hc_norm.weight", "model.hyper_connection_mixer.hc_norm.weight", false, false},
    {"output_hc_down.weight", "model.hyper_connection_mixer.input_mix_weight_down.weight", false,
     false},
    {"output_hc_up.weight", "model.hyper_connection_mixer.input_mix_weight_up.weight", false,
     false},
    {0},
};

static const struct gguf_name own_names[] = {
    {"hc_attn_norm.weight", "attn_hyper_connection.hc_norm.weight", false, false},
    {"hc_attn_down.weight", "attn_hyper_connection.input_mix_weight_down.weight", false, false},
    {"hc_attn_up.weight", "attn_hyper_connection.input_mix_weight_up.weight", false, false},
    {"hc_attn_inject.weight", "attn_hyper_connection.block_inject_weight.weight", false, false},
    {"hc_ffn_norm.weight", "mlp_hyper_connection.hc_norm.weight", false, false},
    {"hc_ffn_down.weight", "mlp_hyper_connection.input_mix_weight_down.weight", false, false},
    {"hc_ffn_up.weight", "mlp_hyper_connection.input_mix_weight_up.weight", false, false},
    {"hc_ffn_inject.weight", "mlp_hyper_connection.block_inject_weight.weight", false, false},
    {"indexer.q_proj.weight", "self_attn.indexer.index_q_proj.weight", false, false},
    {"indexer.k_proj.weight", "self_attn.indexer.index_k_proj.weight", false, false},
    {"indexer.q_norm.weight", "self_attn.indexer.q_layernorm.weight", false, false},
    {"indexer.k_norm.weight", "self_attn.indexer.k_layernorm.weight", false, false},
    {"ple_key.weight", "ple.key_proj.weight", false, false},
    {"ple_value.weight", "ple.value_proj.weight", false, false},
    {"ple_norm_key.weight", "ple.norm_key.weight", false, false},
    {"ple_norm_query.weight", "ple.norm_query.weight", false, false},
    {"ple_norm_conv.weight", "ple.norm_conv.weight", false, false},
    {"ple_conv1d.weight", "ple.conv1d.weight", false, false},
    {0},
};

static const struct gguf_field stream_fields[] = {
    {"hc_count", ".hyper_connection.count", LIMIT_STREAMS, false},
    {"hc_lowrank", ".hyper_connection.low_rank", LIMIT_HIDDEN, false},
    {"indexer_n_heads", ".attention.indexer.head_count", LIMIT_HEADS, false},
    {"indexer_head_dim", ".attention.indexer.key_length", LIMIT_HEAD_DIM, false},
    {"indexer_budget", ".attention.indexer.top_k", LIMIT_INDEX_BUDGET, false},
    {0},
};

static const struct gguf_field table_fields[] = {
    {"ngram_size", ".ple.ngram_size", 8, false},
    {"heads_per_ngram", ".ple.heads_per_ngram", 64, false},
    {"ple_conv_kernel_size", ".ple.conv_kernel", LIMIT_CONV_KERNEL, false},
    {0},
};

/* Reads a list of integers, at most `max` of them. */
static int read_list(const struct gguf *g, const char *name, uint64_t max, json_t **out,
                     struct fm_error *err)
{
    char key[GGUF_KEY_BYTES];
    const struct gguf_value *value = gguf_look(g, name, key);
    json_t *list = json_array();
    int64_t x;
    uint64_t n = 0;
    int rc = 0;
    for (; rc == 0 && value != NULL && n <= max && gguf_element(value, n, &x); n++)
        if (json_array_append_new(list, json_integer(x)) != 0)
            rc = err_set(err, FM_ERR_NOMEM, "out of memory for the configuration");
    if (rc == 0 && (n == 0 || n > max))
        rc = err_set(err, FM_ERR_FORMAT, "%s: key '%s' is not a list of 1 to %llu integers",
                     g->path, key, (unsigned long long)max);
    if (rc != 0) {
        json_decref(list);
        list = NULL;
    }
    *out = list;
    return rc;
}

/* The ratio of the layers that have an index; it is 0 in the others. */
static int read_ratio(const struct gguf *g, json_t *config, const struct gguf_layout *layout,
                      struct fm_error *err)
{
    static const char name[] = ".attention.compress_ratios";
    char key[GGUF_KEY_BYTES];
    const struct gguf_value *list = gguf_look(g, name, key);
    int64_t ratio = 0;
    int rc = 0;
    for (uint64_t i = 0; i < layout->n_layers; i++) {
        int64_t own;
        if (list == NULL || !gguf_element(list, i, &own) || (own == 0) != layout->is_recurrent[i] ||
            (own != 0 && ratio != 0 && own != ratio))
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: key '%s' does not have the same number above 0 for all attention "
                           "layers and 0 for the others (see layer %llu). A converter that found "
                           "no sparse attention writes 0 everywhere", g->path, key,
                           (unsigned long long)i);
        ratio = own != 0 ? own : ratio;
    }
    gguf_config_set(config, "indexer_compress_ratio", json_integer(ratio), &rc, err);
    gguf_config_set(config, "indexer_kv_heads", json_integer(1), &rc, err);
    return rc;
}

static int read_hash(const struct gguf *g, json_t *config, struct fm_error *err)
{
    static const struct {
        const char *field, *key;
    } lists[] = {{"multipliers", ".ple.layer_multipliers"}, {"sizes", ".ple.head_vocab_sizes"},
                 {"offsets", ".ple.head_offsets"}};
    json_t *hash = json_object();
    uint64_t end_token;
    int rc = 0;
    gguf_config_set(config, "ple_hash", hash, &rc, err);
    for (size_t i = 0; rc == 0 && i < sizeof lists / sizeof lists[0]; i++) {
        json_t *list = NULL;
        rc = read_list(g, lists[i].key, 64, &list, err);
        if (rc == 0)
            gguf_config_set(hash, lists[i].field, list, &rc, err);
    }
    if (rc == 0)
        rc = gguf_uint(g, ".ple.eos_token_id", 0, LIMIT_VOCAB, &end_token, err);
    if (rc == 0)
        gguf_config_set(hash, "end_token", json_integer((json_int_t)end_token), &rc, err);
    return rc;
}

/* The table has one tensor outside of blocks, whichever layer it belongs to. */
static int read_table(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                      struct fm_error *err)
{
    char key[GGUF_KEY_BYTES];
    const struct gguf_value *layers = gguf_look(g, ".ple.layers", key);
    int64_t layer, second;
    uint64_t n_cols;
    if (layers == NULL)
        return 0;
    if (!gguf_element(layers, 0, &layer) || gguf_element(layers, 1, &second) || layer < 0 ||
        layer >= (int64_t)layout->n_layers)
        return gguf_refuse(g, key, layers, "a list with one layer", err);
    layout->moved = (struct gguf_name){"per_layer_token_embd.weight",
                                       "ple.ple_embedding.ngram_embedding.weight", false, false};
    layout->moved_layer = (uint64_t)layer;
    int rc = gguf_config_read(config, g, table_fields, err);
    if (rc == 0)
        rc = gguf_uint(g, ".embedding_length_per_layer_input", 1, LIMIT_HIDDEN, &n_cols, err);
    if (rc == 0)
        rc = read_hash(g, config, err);
    const uint64_t n_heads = (gguf_config_uint(config, "ngram_size", 2) - 1) *
                             gguf_config_uint(config, "heads_per_ngram", 1);
    if (rc == 0)
        gguf_config_set(config, "ple_layer_ids", json_pack("[I]", (json_int_t)layer + 1), &rc, err);
    if (rc == 0)
        gguf_config_set(config, "ple_embed_dim", json_integer((json_int_t)(n_heads * n_cols)), &rc,
                        err);
    return rc;
}

static int read_more(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                     struct fm_error *err)
{
    int rc = gguf_read_delta_net(g, config, layout, err);
    gguf_config_set(config, "output_gate_type", json_string("sigmoid"), &rc, err);
    if (rc == 0)
        rc = gguf_config_read(config, g, stream_fields, err);
    if (rc == 0)
        rc = read_ratio(g, config, layout, err);
    return rc != 0 ? rc : read_table(g, config, layout, err);
}

extern const struct gguf_family qwen4_exp_gguf;
const struct gguf_family qwen4_exp_gguf = {
    .architectures = architectures,
    .model_type = "qwen4_exp_text",
    .fields = gguf_moe_fields,
    .global_names = global_names,
    .layer_names = {own_names, gguf_attention_names, gguf_delta_net_names, gguf_expert_names,
                    gguf_shared_expert_names},
    .has_attention_gate = true,
    .has_partial_rotary = true,
    .renormalises = true,
    .conventions = {.has_final_norms = true, .has_final_decay = true,
                    .has_tiled_value_heads = true},
    .stop_tokens = gguf_chatml_stop_tokens,
    .more = read_more,
};
