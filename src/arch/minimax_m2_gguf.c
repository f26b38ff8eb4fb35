/* MiniMax-M2 in GGUF files. */
#include "arch/gguf_pieces.h"

static const char *const architectures[] = {"minimax-m2", NULL};
static const char *const stop_tokens[] = {"[e~[", NULL};
static const char *const own_keys[] = {".expert_gating_func", NULL};

static const struct gguf_name names[] = {
    {"exp_probs_b.bias", "mlp.e_score_correction_bias", false, false},
    {0},
};

static int read_more(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                     struct fm_error *err)
{
    (void)layout;
    return gguf_read_sigmoid_router(g, config, err);
}

extern const struct gguf_family minimax_m2_gguf;
const struct gguf_family minimax_m2_gguf = {
    .architectures = architectures,
    .model_type = "minimax_m2",
    .fields = gguf_even_fields,
    .global_names = gguf_global_names,
    .layer_names = {gguf_attention_names, gguf_expert_names, names},
    .has_partial_rotary = true,
    .stop_tokens = stop_tokens,
    .own_keys = own_keys,
    .more = read_more,
};
