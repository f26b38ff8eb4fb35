/* Qwen3.8-Flash-Next (qwen4_exp): as Qwen3.5 MoE, with a residual of four streams, tables of
 * n-grams, and attention that chooses the blocks it looks at. Of a multimodal checkpoint the text
 * part is used. */
#include "arch/mix_attention.h"
#include "arch/mix_delta_net.h"
#include "arch/streams.h"

static const char *const model_types[] = {"qwen4_exp", "qwen4_exp_text", NULL};
static const char *const prefixes[] = {"model.language_model.", "language_model.model.",
                                       "model.", NULL};

/* Checkpoints call attention "full_attention"; transformers writes "indexed_attention". */
static const struct layer_kind kinds[] = {{"full_attention", &mixer_indexed, false},
                                          {"linear_attention", &mixer_delta_net, false},
                                          {"indexed_attention", &mixer_indexed, false},
                                          {0}};

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .default_interval = 4,
    .default_kv_heads = 2,
    .default_head_dim = 256,
    .partial_rotary_factor = 1,
    .bias = {.field = "attention_bias", .has_output = true},
    .has_attention_gate = true,
    .may_have_sigmoid_gate = true,
    .shared = SHARED_GATED,
    .has_zero_centred_norms = true,
    .renormalises_by_default = true,
    .has_streams = true,
    .bind_delta_projections = delta_net_bind_apart,
    .read_more = streams_read,
    .check_layers = streams_check,
    .bind_more = streams_bind,
    .bind_last = streams_bind_last,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    return transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family qwen4_exp_gguf;
extern const struct arch arch_qwen4_exp;
const struct arch arch_qwen4_exp = {
    .family = {.model_types = model_types, .multimodal_type = "qwen4_exp",
               .gguf = &qwen4_exp_gguf, .open = open_model, .close = transformer_free},
    .sizes = streams_sizes,
    .state = streams_state,
    .expert_layer = blocks_expert_layer,
    .embed = streams_embed,
    .place = streams_place,
    .mix = streams_mix,
    .route = streams_route,
    .predict = streams_predict,
    .dense = blocks_dense, /* no layer is */
    .experts = blocks_experts,
    .routed = blocks_routed,
    .close = streams_close,
    .table_rows = streams_table_rows,
    .final_norm = streams_final_norm,
    .head = blocks_head,
};
