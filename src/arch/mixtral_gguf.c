/* Mixtral in GGUF files: the architecture "llama" with experts. The converter reorders the rows of
 * queries and keys. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"llama", NULL};
static const char *const stop_tokens[] = {"</s>", NULL};

static const struct gguf_field fields[] = {
    {"hidden_size", ".embedding_length", LIMIT_HIDDEN, false},
    {"num_attention_heads", ".attention.head_count", LIMIT_HEADS, false},
    {"num_key_value_heads", ".attention.head_count_kv", LIMIT_HEADS, true},
    {"max_position_embeddings", ".context_length", LIMIT_CONTEXT, true},
    {"intermediate_size", ".feed_forward_length", LIMIT_INTERMEDIATE, false},
    {0},
};

static const struct gguf_field expert_fields[] = {
    {"num_local_experts", ".expert_count", LIMIT_EXPERTS, false},
    {"num_experts_per_tok", ".expert_used_count", LIMIT_TOP_K, false},
    {0},
};

/* Dense models have the same architecture. */
static int read_experts(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                        struct fm_error *err)
{
    uint64_t n;
    int rc = gguf_uint_or(g, ".expert_count", 0, LIMIT_EXPERTS, 0, &n, err);
    if (rc == 0 && n == 0)
        rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "%s: key '%s.expert_count' is missing or 0: this is a dense model, and this "
                     "version runs models with experts only", g->path, layout->architecture);
    return rc != 0 ? rc : gguf_config_read(config, g, expert_fields, err);
}

extern const struct gguf_family mixtral_gguf;
const struct gguf_family mixtral_gguf = {
    .architectures = architectures,
    .model_type = "mixtral",
    .fields = fields,
    .global_names = gguf_global_names,
    .layer_names = {gguf_attention_names, gguf_expert_names},
    .renormalises = true,
    .conventions = {.has_paired_rows = true},
    .stop_tokens = stop_tokens,
    .more = read_experts,
};
