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

static const struct synth_family olmoe = {
    .model_type = "olmoe",
    .class_name = "OlmoeForCausalLM",
    .rotary_divisor = 1,
    .eps = 1e-5,
    .norms = NORM_ALL_HEADS,
    .has_even_layers = true,
};

static const struct synth_family mixtral = {
    .model_type = "mixtral",
    .class_name = "MixtralForCausalLM",
    .rotary_divisor = 1,
    .eps = 1e-5,
    .norms = NORM_NO_HEADS,
    .experts_field = "num_local_experts",
    .has_even_layers = true,
    .block = "block_sparse_moe.",
};

static const struct synth_family qwen2 = {
    .model_type = "qwen2_moe",
    .class_name = "Qwen2MoeForCausalLM",
    .rotary_divisor = 1,
    .norms = NORM_NO_HEADS,
    .shared = SHARED_GATED,
    .bias_field = "qkv_bias",
};

static const struct synth_family glm = {
    .model_type = "glm4_moe",
    .class_name = "Glm4MoeForCausalLM",
    .rotary_divisor = 2,
    .eps = 1e-5,
    .norms = NORM_EACH_HEAD,
    .shared = SHARED_PLAIN,
    .bias_field = "attention_bias",
    .experts_field = "n_routed_experts",
    .correction = "gate.e_score_correction_bias",
    .has_groups = true,
};

static const struct synth_family glm_air = {
    .model_type = "glm4_moe",
    .class_name = "Glm4MoeForCausalLM",
    .rotary_divisor = 2,
    .eps = 1e-5,
    .norms = NORM_NO_HEADS,
    .shared = SHARED_PLAIN,
    .bias_field = "attention_bias",
    .experts_field = "n_routed_experts",
    .correction = "gate.e_score_correction_bias",
    .has_groups = true,
};

static const struct synth_family minimax = {
    .model_type = "minimax_m2",
    .class_name = "MiniMaxM2ForCausalLM",
    .rotary_divisor = 2,
    .norms = NORM_ALL_HEADS,
    .experts_field = "num_local_experts",
    .has_even_layers = true,
    .block = "block_sparse_moe.",
    .correction = "e_score_correction_bias",
};

static const struct synth_latent deepseek_sizes = {1536, 512, 128, 128, 8, 4};
static const struct synth_latent kimi_sizes = {1536, 512, 128, 128, 1, 1};
static const struct synth_latent flash_sizes = {768, 512, 192, 256, 1, 1};
static const struct synth_latent tiny_sizes = {256, 256, 256, 256, 2, 1};

#define LATENT_FAMILY(type, class, sizes, norm_eps) {                                              \
    .model_type = type, .class_name = class, .rotary_divisor = 1, .eps = norm_eps,                 \
    .norms = NORM_NO_HEADS, .shared = SHARED_PLAIN, .experts_field = "n_routed_experts",           \
    .correction = "gate.e_score_correction_bias", .has_groups = true, .latent = sizes}

static const struct synth_family deepseek =
    LATENT_FAMILY("deepseek_v3", "DeepseekV3ForCausalLM", &deepseek_sizes, 1e-6);
static const struct synth_family kimi =
    LATENT_FAMILY("kimi_k2", "DeepseekV3ForCausalLM", &kimi_sizes, 1e-5);
static const struct synth_family glm_flash =
    LATENT_FAMILY("glm4_moe_lite", "Glm4MoeLiteForCausalLM", &flash_sizes, 1e-5);
static const struct synth_family tiny_deepseek =
    LATENT_FAMILY("deepseek_v3", "DeepseekV3ForCausalLM", &tiny_sizes, 1e-6);

static const struct synth_family qwen3_next = {
    .model_type = "qwen3_next",
    .class_name = "Qwen3NextForCausalLM",
    .rotary_divisor = 4,
    .has_delta_net = true,
    .has_attention_gate = true,
    .has_zero_centred_norms = true,
    .has_fused_projections = true,
    .shared = SHARED_GATED,
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
    .shared = SHARED_GATED,
};

/* 16 heads of 20,000,003 rows and more, the next primes. */
static const struct synth_streams flash_next_sizes = {4, 320, 4, 128, 4, 2048, 2, 3, 8, 20000000,
                                                      128, 128, 4, 320001536};
static const struct synth_streams tiny_streams = {4, 64, 2, 64, 4, 32, 2, 3, 2, 250, 8, 4, 4, 1040};

#define STREAMS_FAMILY(sizes)                                                                      \
    {                                                                                              \
        .model_type = "qwen4_exp_text", .class_name = "Qwen4ExpForCausalLM",                       \
        .multimodal_type = "qwen4_exp",                                                            \
        .multimodal_class_name = "Qwen4ExpForConditionalGeneration", .rotary_divisor = 4,          \
        .has_delta_net = true, .has_attention_gate = true, .has_zero_centred_norms = true,         \
        .has_stacked_experts = true, .has_rope_parameters = true, .shared = SHARED_GATED,          \
        .streams = (sizes)                                                                         \
    }
static const struct synth_family flash_next = STREAMS_FAMILY(&flash_next_sizes),
                                 tiny_flash_next = STREAMS_FAMILY(&tiny_streams);

static const struct synth_family gpt_oss = {
    .model_type = "gpt_oss",
    .class_name = "GptOssForCausalLM",
    .rotary_divisor = 1,
    .has_rope_parameters = true,
    .eps = 1e-5,
    .norms = NORM_NO_HEADS,
    .is_gpt_oss = true,
};

/* layers hidden heads kv-heads head-dim experts used expert-width shared-width key-heads
 * value-heads key-dim value-dim conv interval vocab context; dense width, rope theta, dense layers,
 * factor of the routed experts */
static const struct synth_shape presets[] = {
    {"30b-a3b", &qwen3,
     {48, 2048, 32, 4, 128, 128, 8, 768, 0, 0, 0, 0, 0, 0, 0, 151936, 40960}, 6144, 1e6, 0, 0},
    {"235b-a22b", &qwen3,
     {94, 4096, 64, 4, 128, 128, 8, 1536, 0, 0, 0, 0, 0, 0, 0, 151936, 40960}, 12288, 1e6, 0, 0},
    {"next-80b", &qwen3_next,
     {48, 2048, 16, 2, 256, 512, 10, 512, 512, 16, 32, 128, 128, 4, 4, 151936, 262144},
     5120, 1e7, 0, 0},
    {"coder-next", &qwen3_next,
     {48, 2048, 16, 2, 256, 512, 10, 512, 512, 16, 32, 128, 128, 4, 4, 151936, 262144},
     5120, 5e6, 0, 0},
    {"35b-a3b", &qwen3_5,
     {40, 2048, 16, 2, 256, 256, 8, 512, 512, 16, 32, 128, 128, 4, 4, 248320, 262144},
     0, 1e7, 0, 0},
    {"122b-a10b", &qwen3_5,
     {48, 3072, 32, 2, 256, 256, 8, 1024, 1024, 16, 64, 128, 128, 4, 4, 248320, 262144},
     0, 1e7, 0, 0},
    {"397b", &qwen3_5,
     {60, 4096, 32, 2, 256, 512, 10, 1024, 1024, 16, 64, 128, 128, 4, 4, 248320, 262144},
     0, 1e7, 0, 0},
    {"qwen3.8-flash-next", &flash_next,
     {48, 2560, 24, 2, 256, 512, 10, 640, 640, 16, 48, 128, 128, 4, 4, 248320, 262144},
     0, 1e7, 0, 0},
    {"olmoe-1b-7b", &olmoe,
     {16, 2048, 16, 16, 128, 64, 8, 1024, 0, 0, 0, 0, 0, 0, 0, 50304, 4096}, 0, 1e4, 0, 0},
    {"mixtral-8x7b", &mixtral,
     {32, 4096, 32, 8, 128, 8, 2, 14336, 0, 0, 0, 0, 0, 0, 0, 32000, 32768}, 0, 1e6, 0, 0},
    {"mixtral-8x22b", &mixtral,
     {56, 6144, 48, 8, 128, 8, 2, 16384, 0, 0, 0, 0, 0, 0, 0, 32768, 65536}, 0, 1e6, 0, 0},
    {"qwen1.5-moe-a2.7b", &qwen2,
     {24, 2048, 16, 16, 128, 60, 4, 1408, 5632, 0, 0, 0, 0, 0, 0, 151936, 8192}, 5632, 1e6, 0, 0},
    {"57b-a14b", &qwen2,
     {28, 3584, 28, 4, 128, 64, 8, 2560, 20480, 0, 0, 0, 0, 0, 0, 151936, 32768}, 18944, 1e6, 0, 0},
    {"glm-4.5-air", &glm_air,
     {46, 4096, 96, 8, 128, 128, 8, 1408, 1408, 0, 0, 0, 0, 0, 0, 151552, 131072},
     10944, 1e6, 1, 1},
    {"glm-4.5", &glm,
     {92, 5120, 96, 8, 128, 160, 8, 1536, 1536, 0, 0, 0, 0, 0, 0, 151552, 131072},
     12288, 1e6, 3, 2.5},
    {"deepseek-v3", &deepseek,
     {61, 7168, 128, 128, 64, 256, 8, 2048, 2048, 0, 0, 0, 0, 0, 0, 129280, 163840},
     18432, 1e4, 3, 2.5},
    {"kimi-k2", &kimi,
     {61, 7168, 64, 64, 64, 384, 8, 2048, 2048, 0, 0, 0, 0, 0, 0, 163840, 131072},
     18432, 5e4, 1, 2.827},
    {"glm-4.7-flash", &glm_flash,
     {47, 2048, 20, 20, 64, 64, 4, 1536, 1536, 0, 0, 0, 0, 0, 0, 154880, 202752},
     10240, 1e6, 1, 1.8},
    {"minimax-m2", &minimax,
     {62, 3072, 48, 8, 128, 256, 8, 1536, 0, 0, 0, 0, 0, 0, 0, 200064, 196608}, 0, 5e6, 0, 0},
    {"gpt-oss-20b", &gpt_oss,
     {24, 2880, 64, 8, 64, 32, 4, 2880, 0, 0, 0, 0, 0, 0, 0, 201088, 131072}, 0, 150000, 0, 0},
    {"gpt-oss-120b", &gpt_oss,
     {36, 2880, 64, 8, 64, 128, 4, 2880, 0, 0, 0, 0, 0, 0, 0, 201088, 131072}, 0, 150000, 0, 0},
    /* For tests: every width is a multiple of 256, so that every format fits. */
    {"tiny-olmoe", &olmoe,
     {2, 256, 4, 2, 64, 8, 2, 256, 0, 0, 0, 0, 0, 0, 0, 512, 4096}, 0, 1e4, 0, 0},
    {"tiny-mixtral", &mixtral,
     {2, 256, 4, 2, 64, 8, 2, 256, 0, 0, 0, 0, 0, 0, 0, 512, 4096}, 0, 1e6, 0, 0},
    {"tiny-qwen2", &qwen2,
     {2, 256, 4, 2, 64, 8, 2, 256, 512, 0, 0, 0, 0, 0, 0, 512, 4096}, 512, 1e6, 0, 0},
    {"tiny-glm", &glm,
     {3, 256, 4, 2, 64, 8, 2, 256, 512, 0, 0, 0, 0, 0, 0, 512, 4096}, 512, 1e6, 1, 2.5},
    {"tiny-minimax", &minimax,
     {2, 256, 4, 2, 64, 8, 2, 256, 0, 0, 0, 0, 0, 0, 0, 512, 4096}, 0, 5e6, 0, 0},
    {"tiny-qwen3", &qwen3,
     {2, 256, 4, 2, 64, 8, 2, 256, 0, 0, 0, 0, 0, 0, 0, 512, 4096}, 512, 1e6, 0, 0},
    {"tiny-next", &qwen3_next,
     {4, 256, 4, 2, 64, 8, 2, 256, 256, 2, 4, 64, 64, 4, 4, 512, 4096}, 512, 1e7, 0, 0},
    {"tiny-qwen3.5", &qwen3_5,
     {4, 256, 4, 2, 64, 8, 2, 256, 256, 2, 4, 64, 64, 4, 4, 512, 4096}, 0, 1e7, 0, 0},
    {"tiny-flash-next", &tiny_flash_next,
     {4, 256, 4, 2, 64, 8, 2, 256, 256, 2, 4, 64, 64, 4, 4, 512, 4096}, 0, 1e7, 0, 0},
    {"tiny-deepseek", &tiny_deepseek,
     {3, 256, 4, 4, 64, 8, 2, 256, 256, 0, 0, 0, 0, 0, 0, 512, 4096}, 512, 1e4, 1, 2.5},
    {"tiny-gpt-oss", &gpt_oss,
     {2, 256, 4, 2, 64, 8, 2, 256, 0, 0, 0, 0, 0, 0, 0, 512, 4096}, 0, 150000, 0, 0},
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
    char known[1024] = "";
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
    if (shape->family->shared == SHARED_PLAIN &&
        n[FM_SYNTH_SHARED_WIDTH] % n[FM_SYNTH_EXPERT_WIDTH] != 0)
        return no_multiple(shape, FM_SYNTH_SHARED_WIDTH, FM_SYNTH_EXPERT_WIDTH, err);
    if (n[FM_SYNTH_LAYERS] <= shape->n_dense)
        return err_set(err, FM_ERR_ARG, "layers %u: the first %u of %s have no experts, so it "
                       "needs more", n[FM_SYNTH_LAYERS], shape->n_dense, shape->name);
    const struct synth_streams *s = shape->family->streams;
    const uint32_t n_rows = s != NULL ? (s->ngram_size - 1) * s->heads : 1;
    if (s != NULL && (n[FM_SYNTH_HIDDEN] % n_rows != 0 || n[FM_SYNTH_LAYERS] < s->table_layer ||
                      !synth_is_recurrent(shape, s->table_layer - 1)))
        return err_set(err, FM_ERR_ARG, "layer %u of %s has a table of n-grams: it must be there, "
                       "not be of full attention, and hidden a multiple of %u", s->table_layer,
                       shape->name, n_rows);
    const struct synth_latent *latent = shape->family->latent;
    if (latent != NULL && n[FM_SYNTH_EXPERTS] / latent->n_groups * latent->n_groups_chosen <
                              n[FM_SYNTH_USED])
        return err_set(err, FM_ERR_ARG, "experts %u: a token uses %u, from %u of %u groups of %s",
                       n[FM_SYNTH_EXPERTS], n[FM_SYNTH_USED], latent->n_groups_chosen,
                       latent->n_groups, shape->name);
    if (latent != NULL && n[FM_SYNTH_EXPERTS] % latent->n_groups != 0)
        return err_set(err, FM_ERR_ARG, "experts %u is not a multiple of the %u groups of %s",
                       n[FM_SYNTH_EXPERTS], latent->n_groups, shape->name);
    if (synth_rotary_dims(shape) % 2 != 0 || synth_rotary_dims(shape) == 0)
        return err_set(err, FM_ERR_ARG, "head-dim %u gives %u rotary dimensions, expected an even "
                       "number", n[FM_SYNTH_HEAD_DIM], synth_rotary_dims(shape));
    return 0;
}

uint32_t synth_rotary_dims(const struct synth_shape *shape)
{
    return shape->n[FM_SYNTH_HEAD_DIM] / shape->family->rotary_divisor;
}

double synth_eps(const struct synth_shape *shape)
{
    return shape->family->eps > 0 ? shape->family->eps : 1e-6;
}

const char *synth_block(const struct synth_shape *shape)
{
    return shape->family->block != NULL ? shape->family->block : "mlp.";
}

/* ---- config.json ----------------------------------------------------------------------------- */

static void set_uint(json_t *config, const char *field, uint32_t n)
{
    (void)json_object_set_new(config, field, json_integer(n)); /* synth_config checks for failure */
}

static json_t *common_config(const struct synth_shape *shape)
{
    const struct synth_family *family = shape->family;
    const uint32_t *n = shape->n;
    json_t *config = json_pack(
        "{s:[s], s:s, s:s, s:b, s:b, s:f, s:i, s:[i,i], s:i}",
        "architectures", shape->family->class_name, "model_type", shape->family->model_type,
        "hidden_act", "silu", "attention_bias", 0, "tie_word_embeddings", 0,
        "rms_norm_eps", synth_eps(shape), "bos_token_id", SYNTH_END_OF_TEXT, "eos_token_id",
        SYNTH_IM_END, SYNTH_END_OF_TEXT, "vocab_size", (int)n[FM_SYNTH_VOCAB]);
    set_uint(config, "num_hidden_layers", n[FM_SYNTH_LAYERS]);
    set_uint(config, "hidden_size", n[FM_SYNTH_HIDDEN]);
    set_uint(config, "num_attention_heads", n[FM_SYNTH_HEADS]);
    set_uint(config, "num_key_value_heads", n[FM_SYNTH_KV_HEADS]);
    set_uint(config, "head_dim", n[FM_SYNTH_HEAD_DIM]);
    set_uint(config, family->experts_field != NULL ? family->experts_field : "num_experts",
             n[FM_SYNTH_EXPERTS]);
    set_uint(config, "num_experts_per_tok", n[FM_SYNTH_USED]);
    set_uint(config, family->has_even_layers ? "intermediate_size" : "moe_intermediate_size",
             n[FM_SYNTH_EXPERT_WIDTH]);
    set_uint(config, "max_position_embeddings", n[FM_SYNTH_CONTEXT]);
    if (shape->dense_width > 0)
        set_uint(config, "intermediate_size", shape->dense_width);
    if (family == &qwen3 || family == &qwen3_next || family == &qwen2)
        (void)json_object_update_new(config, json_pack("{s:i, s:[]}", "decoder_sparse_step", 1,
                                                       "mlp_only_layers"));
    if (!family->has_rope_parameters)
        (void)json_object_update_new(config, json_pack("{s:b, s:f}", "norm_topk_prob",
                                                       family != &olmoe && family != &qwen2,
                                                       "rope_theta", shape->rope_theta));
    return config;
}

static void add_latent(json_t *config, const struct synth_latent *latent, uint32_t rope_dim)
{
    set_uint(config, "q_lora_rank", latent->q_rank);
    set_uint(config, "kv_lora_rank", latent->rank);
    set_uint(config, "qk_nope_head_dim", latent->plain_dim);
    set_uint(config, "qk_rope_head_dim", rope_dim);
    set_uint(config, "v_head_dim", latent->value_dim);
}

/* What families with softmax attention alone have. */
static void add_attention(json_t *config, const struct synth_shape *shape)
{
    const struct synth_family *family = shape->family;
    const uint32_t *n = shape->n;
    if (family->bias_field != NULL)
        (void)json_object_set_new(config, family->bias_field, json_true());
    if (family->shared == SHARED_GATED)
        set_uint(config, "shared_expert_intermediate_size", n[FM_SYNTH_SHARED_WIDTH]);
    if (family->shared == SHARED_PLAIN)
        set_uint(config, "n_shared_experts", n[FM_SYNTH_SHARED_WIDTH] / n[FM_SYNTH_EXPERT_WIDTH]);
    if (family->rotary_divisor > 1)
        (void)json_object_set_new(config, "partial_rotary_factor",
                                  json_real(1.0 / family->rotary_divisor));
    if (!family->has_groups)
        return;
    set_uint(config, "first_k_dense_replace", shape->n_dense);
    set_uint(config, "n_group", family->latent != NULL ? family->latent->n_groups : 1);
    set_uint(config, "topk_group", family->latent != NULL ? family->latent->n_groups_chosen : 1);
    (void)json_object_set_new(config, "routed_scaling_factor", json_real(shape->route_scale));
    if (family->latent == NULL)
        (void)json_object_set_new(config, "use_qk_norm",
                                  json_boolean(family->norms != NORM_NO_HEADS));
    else
        add_latent(config, family->latent, n[FM_SYNTH_HEAD_DIM]);
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

static void add_streams(json_t *config, const struct synth_streams *s)
{
    set_uint(config, "hc_count", s->n_streams);
    set_uint(config, "hc_lowrank", s->rank);
    set_uint(config, "indexer_n_heads", s->index_heads);
    set_uint(config, "indexer_kv_heads", 1);
    set_uint(config, "indexer_head_dim", s->index_dim);
    set_uint(config, "indexer_compress_ratio", s->ratio);
    set_uint(config, "indexer_budget", s->budget);
    set_uint(config, "ngram_size", s->ngram_size);
    set_uint(config, "heads_per_ngram", s->heads);
    set_uint(config, "ngram_vocab_size_base", s->first_size);
    set_uint(config, "make_ngram_vocab_size_divisible_by", s->padding);
    set_uint(config, "split_ngram_parts", s->n_parts);
    set_uint(config, "ple_conv_kernel_size", s->conv);
    set_uint(config, "seed", 1234);
    (void)json_object_update_new(config, json_pack("{s:[i], s:s, s:b}", "ple_layer_ids",
                                                   (int)s->table_layer, "output_gate_type",
                                                   "sigmoid", "norm_topk_prob", 1));
}

/* YaRN makes the context 32 times as long; every second layer has a window. */
static void add_gpt_oss(json_t *config, const struct synth_shape *shape)
{
    const uint32_t *n = shape->n, original = n[FM_SYNTH_CONTEXT] / 32;
    set_uint(config, "num_local_experts", n[FM_SYNTH_EXPERTS]);
    set_uint(config, "intermediate_size", n[FM_SYNTH_EXPERT_WIDTH]);
    (void)json_object_update_new(
        config, json_pack("{s:b, s:f, s:f, s:f, s:i, s:{s:s, s:f, s:f, s:f, s:f, s:b, s:i}}",
                          "attention_bias", 1, "rms_norm_eps", 1e-5, "swiglu_limit", 7.0,
                          "rope_theta", shape->rope_theta, "sliding_window", 128,
                          "rope_parameters", "rope_type", "yarn", "rope_theta", shape->rope_theta,
                          "factor", 32.0, "beta_fast", 32.0, "beta_slow", 1.0, "truncate", 0,
                          "original_max_position_embeddings", (int)(original > 0 ? original : 1)));
    json_t *types = json_array();
    for (uint32_t i = 0; i < n[FM_SYNTH_LAYERS]; i++)
        (void)json_array_append_new(types, json_string(i % 2 == 0 ? "sliding_attention"
                                                                  : "full_attention"));
    (void)json_object_set_new(config, "layer_types", types);
}

json_t *synth_config(const struct synth_shape *shape)
{
    json_t *config = common_config(shape);
    if (shape->family->is_gpt_oss)
        add_gpt_oss(config, shape);
    if (shape->family->has_delta_net)
        add_delta_net(config, shape);
    else
        add_attention(config, shape);
    if (shape->family->streams != NULL)
        add_streams(config, shape->family->streams);
    return config;
}
