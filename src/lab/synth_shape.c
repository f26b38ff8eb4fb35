/* The shapes of public checkpoints, and their config.json. */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "flashmoe_lab.h"
#include "lab/synth_internal.h"

/* A family is one entry here; each of its shapes is one entry below. */

static const struct synth_family qwen3 = {
    .model_type = "qwen3_moe",
    .class_name = "Qwen3MoeForCausalLM",
    .rotary_divisor = 1,
};

static const struct synth_family qwen3_next = {
    .model_type = "qwen3_next",
    .class_name = "Qwen3NextForCausalLM",
    .rotary_divisor = 4,
    .has_delta_net = true,
    .has_attention_gate = true,
    .has_zero_centred_norms = true,
    .has_fused_projections = true,
};

static const struct synth_family qwen3_5 = {
    .model_type = "qwen3_5_moe_text",
    .class_name = "Qwen3_5MoeForCausalLM",
    .multimodal_type = "qwen3_5_moe",
    .multimodal_class_name = "Qwen3_5MoeForConditionalGeneration",
    .rotary_divisor = 4,
    .has_delta_net = true,
    .has_attention_gate = true,
    .has_zero_centred_norms = true,
    .has_stacked_experts = true,
    .has_rope_parameters = true,
};

/* layers hidden heads kv-heads head-dim experts used expert-width shared-width key-heads
 * value-heads key-dim value-dim conv interval vocab context */
static const struct synth_shape presets[] = {
    {"30b-a3b", &qwen3,
     {48, 2048, 32, 4, 128, 128, 8, 768, 0, 0, 0, 0, 0, 0, 0, 151936, 40960}, 6144, 1e6},
    {"235b-a22b", &qwen3,
     {94, 4096, 64, 4, 128, 128, 8, 1536, 0, 0, 0, 0, 0, 0, 0, 151936, 40960}, 12288, 1e6},
    {"next-80b", &qwen3_next,
     {48, 2048, 16, 2, 256, 512, 10, 512, 512, 16, 32, 128, 128, 4, 4, 151936, 262144}, 5120, 1e7},
    {"coder-next", &qwen3_next,
     {48, 2048, 16, 2, 256, 512, 10, 512, 512, 16, 32, 128, 128, 4, 4, 151936, 262144}, 5120, 5e6},
    {"35b-a3b", &qwen3_5,
     {40, 2048, 16, 2, 256, 256, 8, 512, 512, 16, 32, 128, 128, 4, 4, 248320, 262144}, 0, 1e7},
    {"122b-a10b", &qwen3_5,
     {48, 3072, 32, 2, 256, 256, 8, 1024, 1024, 16, 64, 128, 128, 4, 4, 248320, 262144}, 0, 1e7},
    {"397b", &qwen3_5,
     {60, 4096, 32, 2, 256, 512, 10, 1024, 1024, 16, 64, 128, 128, 4, 4, 248320, 262144}, 0, 1e7},
    /* For tests: every width is a multiple of 256, so that every format fits. */
    {"tiny-qwen3", &qwen3,
     {2, 256, 4, 2, 64, 8, 2, 256, 0, 0, 0, 0, 0, 0, 0, 512, 4096}, 512, 1e6},
    {"tiny-next", &qwen3_next,
     {4, 256, 4, 2, 64, 8, 2, 256, 256, 2, 4, 64, 64, 4, 4, 512, 4096}, 512, 1e7},
    {"tiny-qwen3.5", &qwen3_5,
     {4, 256, 4, 2, 64, 8, 2, 256, 256, 2, 4, 64, 64, 4, 4, 512, 4096}, 0, 1e7},
};

#define N_PRESETS (sizeof presets / sizeof presets[0])

static const struct {
    const char *name;
    uint32_t min, max;
} numbers[FM_SYNTH_NUMBERS] = {
    [FM_SYNTH_LAYERS] = {"layers", 1, LIMIT_LAYERS},
    [FM_SYNTH_HIDDEN] = {"hidden", 1, LIMIT_HIDDEN},
    [FM_SYNTH_HEADS] = {"heads", 1, LIMIT_HEADS},
    [FM_SYNTH_KV_HEADS] = {"kv-heads", 1, LIMIT_HEADS},
    [FM_SYNTH_HEAD_DIM] = {"head-dim", 1, LIMIT_HEAD_DIM},
    [FM_SYNTH_EXPERTS] = {"experts", 1, LIMIT_EXPERTS},
    [FM_SYNTH_USED] = {"used", 1, LIMIT_TOP_K},
    [FM_SYNTH_EXPERT_WIDTH] = {"expert-width", 1, LIMIT_INTERMEDIATE},
    [FM_SYNTH_SHARED_WIDTH] = {"shared-width", 1, LIMIT_INTERMEDIATE},
    [FM_SYNTH_KEY_HEADS] = {"key-heads", 1, LIMIT_HEADS},
    [FM_SYNTH_VALUE_HEADS] = {"value-heads", 1, LIMIT_HEADS},
    [FM_SYNTH_KEY_DIM] = {"key-dim", 1, LIMIT_HEAD_DIM},
    [FM_SYNTH_VALUE_DIM] = {"value-dim", 1, LIMIT_HEAD_DIM},
    [FM_SYNTH_CONV] = {"conv", 1, LIMIT_CONV_KERNEL},
    [FM_SYNTH_INTERVAL] = {"interval", 1, LIMIT_LAYERS},
    [FM_SYNTH_VOCAB] = {"vocab", SYNTH_N_TOKENS, LIMIT_VOCAB},
    [FM_SYNTH_CONTEXT] = {"context", 1, LIMIT_CONTEXT},
};

const char *fm_synth_shape_name(unsigned i)
{
    return i < N_PRESETS ? presets[i].name : NULL;
}

static int find_preset(struct synth_shape *shape, const char *name, struct fm_error *err)
{
    char known[256] = "";
    for (size_t i = 0; i < N_PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *shape = presets[i];
            return 0;
        }
        const size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "",
                       presets[i].name);
    }
    return err_set(err, FM_ERR_ARG, "unknown shape '%s'; expected one of %s", name, known);
}

static int no_multiple(const struct synth_shape *shape, unsigned a, unsigned b,
                       struct fm_error *err)
{
    return err_set(err, FM_ERR_ARG, "%s %u is not a multiple of %s %u", numbers[a].name,
                   shape->n[a], numbers[b].name, shape->n[b]);
}

static int check_numbers(const struct fm_synth_options *options, struct fm_error *err)
{
    if (options->numbers == NULL && options->n_numbers > 0)
        return err_set(err, FM_ERR_ARG, "fm_synth_options.numbers is NULL and n_numbers is %u: "
                       "give an element for each", options->n_numbers);
    for (unsigned i = FM_SYNTH_NUMBERS; i < options->n_numbers; i++)
        if (options->numbers[i] != 0)
            return err_set(err, FM_ERR_ARG, "fm_synth_options.numbers[%u] is %u, but this library "
                           "knows only the first %d: it needs a newer library", i,
                           options->numbers[i], FM_SYNTH_NUMBERS);
    return 0;
}

int synth_shape_init(struct synth_shape *shape, const char *name,
                     const struct fm_synth_options *options, struct fm_error *err)
{
    int rc = check_numbers(options, err);
    if (rc == 0)
        rc = find_preset(shape, name, err);
    for (unsigned i = 0; rc == 0 && i < FM_SYNTH_NUMBERS; i++) {
        const uint32_t given = i < options->n_numbers ? options->numbers[i] : 0;
        if (given == 0)
            continue;
        if (shape->n[i] == 0)
            rc = err_set(err, FM_ERR_ARG, "the architecture of %s has no %s", shape->name,
                         numbers[i].name);
        else if (given < numbers[i].min || given > numbers[i].max)
            rc = err_set(err, FM_ERR_ARG, "%s %u is out of range: %u to %u", numbers[i].name,
                         given, numbers[i].min, numbers[i].max);
        shape->n[i] = given;
    }
    if (rc != 0)
        return rc;
    const uint32_t *n = shape->n;
    if (n[FM_SYNTH_USED] > n[FM_SYNTH_EXPERTS])
        return err_set(err, FM_ERR_ARG, "a token cannot use %u of %u experts", n[FM_SYNTH_USED],
                       n[FM_SYNTH_EXPERTS]);
    if (n[FM_SYNTH_HEADS] % n[FM_SYNTH_KV_HEADS] != 0)
        return no_multiple(shape, FM_SYNTH_HEADS, FM_SYNTH_KV_HEADS, err);
    if (shape->family->has_delta_net && n[FM_SYNTH_VALUE_HEADS] % n[FM_SYNTH_KEY_HEADS] != 0)
        return no_multiple(shape, FM_SYNTH_VALUE_HEADS, FM_SYNTH_KEY_HEADS, err);
    if (synth_rotary_dims(shape) % 2 != 0 || synth_rotary_dims(shape) == 0)
        return err_set(err, FM_ERR_ARG, "head-dim %u gives %u rotary dimensions, expected an even "
                       "number", n[FM_SYNTH_HEAD_DIM], synth_rotary_dims(shape));
    return 0;
}

uint32_t synth_rotary_dims(const struct synth_shape *shape)
{
    return shape->n[FM_SYNTH_HEAD_DIM] / shape->family->rotary_divisor;
}

/* ---- config.json ----------------------------------------------------------------------------- */

static void set_uint(json_t *config, const char *field, uint32_t n)
{
    (void)json_object_set_new(config, field, json_integer(n)); /* synth_config checks for failure */
}

static json_t *common_config(const struct synth_shape *shape)
{
    const uint32_t *n = shape->n;
    json_t *config = json_pack(
        "{s:[s], s:s, s:s, s:b, s:b, s:f, s:i, s:[i,i], s:i}",
        "architectures", shape->family->class_name, "model_type", shape->family->model_type,
        "hidden_act", "silu", "attention_bias", 0, "tie_word_embeddings", 0,
        "rms_norm_eps", 1e-6, "bos_token_id", SYNTH_END_OF_TEXT, "eos_token_id", SYNTH_IM_END,
        SYNTH_END_OF_TEXT, "vocab_size", (int)n[FM_SYNTH_VOCAB]);
    set_uint(config, "num_hidden_layers", n[FM_SYNTH_LAYERS]);
    set_uint(config, "hidden_size", n[FM_SYNTH_HIDDEN]);
    set_uint(config, "num_attention_heads", n[FM_SYNTH_HEADS]);
    set_uint(config, "num_key_value_heads", n[FM_SYNTH_KV_HEADS]);
    set_uint(config, "head_dim", n[FM_SYNTH_HEAD_DIM]);
    set_uint(config, "num_experts", n[FM_SYNTH_EXPERTS]);
    set_uint(config, "num_experts_per_tok", n[FM_SYNTH_USED]);
    set_uint(config, "moe_intermediate_size", n[FM_SYNTH_EXPERT_WIDTH]);
    set_uint(config, "max_position_embeddings", n[FM_SYNTH_CONTEXT]);
    if (shape->dense_width > 0)
        set_uint(config, "intermediate_size", shape->dense_width);
    if (!shape->family->has_rope_parameters) {
        (void)json_object_update_new(config, json_pack("{s:b, s:i, s:[], s:f}", "norm_topk_prob",
                                                       1, "decoder_sparse_step", 1,
                                                       "mlp_only_layers", "rope_theta",
                                                       shape->rope_theta));
    }
    return config;
}

static void add_delta_net(json_t *config, const struct synth_shape *shape)
{
    const uint32_t *n = shape->n;
    set_uint(config, "shared_expert_intermediate_size", n[FM_SYNTH_SHARED_WIDTH]);
    set_uint(config, "linear_num_key_heads", n[FM_SYNTH_KEY_HEADS]);
    set_uint(config, "linear_num_value_heads", n[FM_SYNTH_VALUE_HEADS]);
    set_uint(config, "linear_key_head_dim", n[FM_SYNTH_KEY_DIM]);
    set_uint(config, "linear_value_head_dim", n[FM_SYNTH_VALUE_DIM]);
    set_uint(config, "linear_conv_kernel_dim", n[FM_SYNTH_CONV]);
    set_uint(config, "full_attention_interval", n[FM_SYNTH_INTERVAL]);
    json_t *types = json_array();
    for (uint32_t i = 0; i < n[FM_SYNTH_LAYERS]; i++)
        (void)json_array_append_new(types, json_string(synth_is_recurrent(shape, i)
                                                           ? "linear_attention"
                                                           : "full_attention"));
    (void)json_object_set_new(config, "layer_types", types);
    const double rotary_share = 1.0 / shape->family->rotary_divisor;
    if (!shape->family->has_rope_parameters)
        (void)json_object_set_new(config, "partial_rotary_factor", json_real(rotary_share));
    else
        (void)json_object_set_new(
            config, "rope_parameters",
            json_pack("{s:s, s:f, s:f, s:[i,i,i], s:b}", "rope_type", "default", "rope_theta",
                      shape->rope_theta, "partial_rotary_factor", rotary_share, "mrope_section",
                      11, 11, 10, "mrope_interleaved", 1));
}

json_t *synth_config(const struct synth_shape *shape)
{
    json_t *config = common_config(shape);
    if (shape->family->has_delta_net)
        add_delta_net(config, shape);
    return config;
}
