/* MiniMax-M2 (M2, M2.5): softmax attention that norms queries and keys over all heads together and
 * rotates half of each head, and a sigmoid router with a correction. */
#include "arch/mix_attention.h"

static const char *const model_types[] = {"minimax_m2", NULL};
static const char *const prefixes[] = {"model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_attention, false}, {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .partial_rotary_factor = 1,
    .may_have_rotary_dim = true,
    .default_kv_heads = 8,
    .default_head_dim = 128,
    .router = {.score = ROUTER_SIGMOID, .correction = "e_score_correction_bias"},
    .other_block = "block_sparse_moe.",
    .may_have_predictors = true,
    .head_norms = NORM_ALL_HEADS,
    .always_renormalises = true,
};

/* What the checkpoints say of themselves, and transformers does not read. With a window it would
 * keep only so many positions. */
static const struct {
    const char *field, *supported;
} fixed[] = {
    {"use_qk_norm", "true"},
    {"qk_norm_type", "\"per_layer\""},
    {"scoring_func", "\"sigmoid\""},
    {"use_routing_bias", "true"},
    {"shared_intermediate_size", "0"},
    {"sliding_window", "null"},
};

/* Older models of the maker have layers of another kind of attention, number 0. */
static int refuse_other_attention(const struct config *config, struct fm_error *err)
{
    const json_t *list = config_find(config, "attn_type_list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char shown[80];
        const json_t *kind = json_array_get(list, i);
        if (!json_is_integer(kind) || json_integer_value(kind) != 1)
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: field 'attn_type_list[%zu]' is %s; this version computes 1 only",
                           config->file, i, jdoc_show(kind, shown, sizeof shown));
    }
    return 0;
}

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    int rc = refuse_other_attention(config, err);
    for (size_t i = 0; rc == 0 && i < sizeof fixed / sizeof fixed[0]; i++)
        rc = config_refuse_unless(config, fixed[i].field, fixed[i].supported, err);
    return rc != 0 ? rc : transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family minimax_m2_gguf;
extern const struct arch arch_minimax_m2;
const struct arch arch_minimax_m2 = {
    .family = {.model_types = model_types, .gguf = &minimax_m2_gguf, .open = open_model,
               .close = transformer_free},
    BLOCKS_FUNCTIONS,
};
