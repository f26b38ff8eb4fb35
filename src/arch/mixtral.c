/* Mixtral (8x7B, 8x22B): softmax attention, with a window if the configuration has one, and a
 * router that takes the softmax over the experts that it has chosen. */
#include "arch/mix_attention.h"

static const char *const model_types[] = {"mixtral", NULL};
static const char *const prefixes[] = {"model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_attention, false}, {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .default_kv_heads = 8,
    .default_eps = 1e-5,
    .may_have_window = true,
    .other_block = "block_sparse_moe.",
    .head_norms = NORM_NO_HEADS,
    .always_renormalises = true,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    return transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family mixtral_gguf;
extern const struct arch arch_mixtral;
const struct arch arch_mixtral = {
    .family = {.model_types = model_types, .gguf = &mixtral_gguf, .open = open_model,
               .close = transformer_free},
    BLOCKS_FUNCTIONS,
};
