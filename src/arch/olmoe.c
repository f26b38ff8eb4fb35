/* OLMoE (1B-7B): softmax attention whose queries and keys are normed over all heads together, and a
 * router whose weights do not add up to 1. */
#include "arch/mix_attention.h"

static const char *const model_types[] = {"olmoe", NULL};
static const char *const prefixes[] = {"model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_attention, false}, {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .default_eps = 1e-5,
    .bias = {.field = "attention_bias", .has_output = true},
    .head_norms = NORM_ALL_HEADS,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    int rc = config_refuse_unless(config, "clip_qkv", "null", err);
    if (rc == 0) /* transformers keeps only so many positions then */
        rc = config_refuse_unless(config, "sliding_window", "null", err);
    return rc != 0 ? rc : transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family olmoe_gguf;
extern const struct arch arch_olmoe;
const struct arch arch_olmoe = {
    .family = {.model_types = model_types, .gguf = &olmoe_gguf, .open = open_model,
               .close = transformer_free},
    BLOCKS_FUNCTIONS,
};
