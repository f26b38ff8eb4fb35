/* gpt-oss (20b, 120b): attention with a sink for each head, a window in every second layer, and
 * biases everywhere. Checkpoints have the experts in MXFP4; transformers writes them as floats,
 * column by column. In both, the rows of gate and up alternate. */
#include "arch/ffn.h"
#include "arch/mix_attention.h"

static const char *const model_types[] = {"gpt_oss", NULL};
static const char *const prefixes[] = {"model.", NULL};

static const struct layer_kind kinds[] = {{"full_attention", &mixer_attention, false},
                                          {"sliding_attention", &mixer_attention, true},
                                          {0}};

/* Much larger than in any model. */
#define MAX_SWIGLU 1e6

static int read_more(struct transformer *t, const struct config *config, struct fm_error *err)
{
    double alpha, limit;
    if (config->rope == NULL) /* transformers would scale the rope all the same */
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'rope_parameters' is missing, and there is no 'rope_scaling': "
                       "this architecture needs one of them, \"rope_type\": \"default\" without "
                       "scaling",
                       config->file);
    int rc = config_number_or(config, "swiglu_alpha", 0, MAX_SWIGLU, 1.702, &alpha, err);
    if (rc == 0)
        rc = config_number_or(config, "swiglu_limit", 0, MAX_SWIGLU, 7, &limit, err);
    if (rc == 0)
        t->activation = (struct activation){.kind = ACTIVATION_CLAMPED_SWIGLU,
                                            .alpha = (float)alpha, .limit = (float)limit};
    return rc;
}

static void bind_more(struct binder *b, const struct transformer *t, struct transformer_layer *l,
                      const struct layer_names *names)
{
    struct ffn_routed *r = l->ffn;
    struct attention *a = l->mix;
    binder_vector(b, &a->sinks, a->n_heads, VECTOR_PLAIN, "%sself_attn.sinks", names->prefix);
    binder_vector(b, &r->router_bias, t->router.n_experts, VECTOR_PLAIN, "%smlp.router.bias",
                  names->prefix);
    ffn_bind_expert_biases(b, t, r, names);
}

static const struct transformer_traits traits = {
    .prefixes = prefixes,
    .kinds = kinds,
    .default_interval = 2,
    .has_own_interval = true,
    .default_kv_heads = 8,
    .default_head_dim = 64,
    .default_eps = 1e-5,
    .head_norms = NORM_NO_HEADS,
    .bias = {.field = "attention_bias", .by_default = true, .has_output = true},
    .router_name = "router",
    .expert_order = EXPERTS_ZIPPED,
    .always_renormalises = true,
    .read_more = read_more,
    .bind_more = bind_more,
};

static int open_model(const struct config *config, struct binder *binder,
                      struct model_shape *shape, void **arch, struct fm_error *err)
{
    return transformer_open(&traits, config, binder, shape, arch, err);
}

extern const struct gguf_family gpt_oss_gguf;
extern const struct arch arch_gpt_oss;
const struct arch arch_gpt_oss = {
    .family = {.model_types = model_types, .gguf = &gpt_oss_gguf, .open = open_model,
               .close = transformer_free},
    BLOCKS_FUNCTIONS,
};
