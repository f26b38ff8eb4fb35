/* Converts metadata to the config.json that transformers would have written. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fmath.h"
#include "base/log.h"
#include "base/mem.h"
#include "format/gguf_internal.h"

/* Keys that change the arithmetic, and the values with which they do not. */
static const struct {
    const char *key;
    double neutral[2];
    const char *expected;
} neutral_keys[] = {
    {".expert_weights_scale", {0, 1}, "1"},
    {".expert_group_count", {0, 1}, "1"},
    {".expert_group_used_count", {0, 1}, "1"},
    {".leading_dense_block_count", {0, 0}, "0"},
    {".attention.sliding_window", {0, 0}, "0"},
    {".attention.scale", {0, 0}, "0"},
    {".attention.clamp_kqv", {0, 0}, "0"},
    {".attn_logit_softcapping", {0, 0}, "0"},
    {".final_logit_softcapping", {0, 0}, "0"},
    {".router_logit_softcapping", {0, 0}, "0"},
    {".logit_scale", {0, 1}, "1"},
    {".residual_scale", {0, 1}, "1"},
    {".embedding_scale", {0, 1}, "1"},
};

/* Larger than any factor of a rope scaling. */
#define MAX_SCALING 1e6

/* Keys below "ARCHITECTURE.rope.scaling." that are read or change nothing by themselves. Any other
 * key may be a scaling that this version does not support. */
static const char *const scaling_keys[] = {
    "type",           "factor",          "original_context_length", "finetuned",
    "attn_factor",    "yarn_ext_factor", "yarn_attn_factor",        "yarn_beta_fast",
    "yarn_beta_slow", "yarn_log_multiplier",
};

/* ---- what is refused --------------------------------------------------------------------- */

static int check_type(const struct gguf *g, struct fm_error *err)
{
    const char *text;
    uint64_t bytes;
    int rc = gguf_text_or_null(g, "general.type", &text, &bytes, err);
    if (rc != 0)
        return rc;
    if (gguf_text_is(text, bytes, "adapter"))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: key 'general.type' is \"adapter\": a LoRA is not a model. Merge it "
                       "into its base model and give the merged file, or give the base model alone",
                       g->path);
    if (text != NULL && !gguf_text_is(text, bytes, "model"))
        return gguf_refuse(g, "general.type", gguf_find(g, "general.type"), "\"model\"", err);
    return 0;
}

int gguf_find_family(const struct gguf *g, const struct gguf_family *const *families,
                     struct gguf_layout *layout, struct fm_error *err)
{
    const char *text;
    uint64_t bytes;
    int rc = check_type(g, err);
    if (rc == 0)
        rc = gguf_text_or_null(g, "general.architecture", &text, &bytes, err);
    if (rc != 0)
        return rc;
    if (text == NULL)
        return err_set(err, FM_ERR_FORMAT, "%s: key 'general.architecture' is missing", g->path);
    for (size_t i = 0; families != NULL && families[i] != NULL; i++)
        for (const char *const *name = families[i]->architectures; *name != NULL; name++)
            if (gguf_text_is(text, bytes, *name)) {
                layout->family = families[i];
                layout->architecture = *name;
                return 0;
            }
    return gguf_refuse_architecture(g, families, text, bytes, err);
}

static int check_scaling_keys(const struct gguf *g, const char *architecture, struct fm_error *err)
{
    char prefix[GGUF_KEY_BYTES];
    const int length = snprintf(prefix, sizeof prefix, "%s.rope.scaling.", architecture);
    for (size_t i = 0; i < g->n_values; i++) {
        const struct gguf_value *v = &g->values[i];
        if (v->key_bytes <= (uint32_t)length || memcmp(v->key, prefix, (size_t)length) != 0)
            continue;
        size_t k = 0;
        while (k < sizeof scaling_keys / sizeof scaling_keys[0] &&
               !gguf_text_is(v->key + length, v->key_bytes - (uint32_t)length, scaling_keys[k]))
            k++;
        if (k == sizeof scaling_keys / sizeof scaling_keys[0])
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: key '%.*s' is unknown: it may be a rope scaling that this version "
                           "does not support",
                           g->path, (int)v->key_bytes, v->key);
    }
    return 0;
}

static bool is_own(const struct gguf_family *family, const char *key)
{
    for (const char *const *own = family->own_keys; own != NULL && *own != NULL; own++)
        if (strcmp(*own, key) == 0)
            return true;
    return false;
}

static int check_neutral(const struct gguf *g, const struct gguf_family *family,
                         struct fm_error *err)
{
    char key[GGUF_KEY_BYTES];
    for (size_t i = 0; i < sizeof neutral_keys / sizeof neutral_keys[0]; i++) {
        const double *neutral = neutral_keys[i].neutral;
        double x;
        if (is_own(family, neutral_keys[i].key))
            continue;
        int rc = gguf_number_or(g, neutral_keys[i].key, -HUGE_VAL, HUGE_VAL, neutral[0], &x, err);
        if (rc != 0)
            return rc;
        if (x != neutral[0] && x != neutral[1])
            return gguf_refuse(g, key, gguf_look(g, neutral_keys[i].key, key),
                               neutral_keys[i].expected, err);
    }
    bool is_causal;
    int rc = gguf_bool_or(g, ".attention.causal", true, &is_causal, err);
    if (rc != 0)
        return rc;
    if (!is_causal)
        return gguf_refuse(g, key, gguf_look(g, ".attention.causal", key), "true", err);
    uint64_t gating;
    if (is_own(family, ".expert_gating_func"))
        return 0;
    rc = gguf_uint_or(g, ".expert_gating_func", 0, UINT32_MAX, 0, &gating, err);
    if (rc == 0 && gating > 1)
        rc = gguf_refuse(g, key, gguf_look(g, ".expert_gating_func", key), "1 (softmax)", err);
    return rc;
}

/* ---- the document ------------------------------------------------------------------------ */

void gguf_config_set(json_t *config, const char *field, json_t *value, int *rc,
                     struct fm_error *err)
{
    if (json_object_set_new(config, field, value) != 0 && *rc == 0)
        *rc = err_set(err, FM_ERR_NOMEM, "out of memory for the configuration");
}

int gguf_config_read(json_t *config, const struct gguf *g, const struct gguf_field *fields,
                     struct fm_error *err)
{
    for (const struct gguf_field *f = fields; f->name != NULL; f++) {
        char key[GGUF_KEY_BYTES];
        uint64_t value;
        if (f->is_optional && gguf_look(g, f->key, key) == NULL)
            continue;
        int rc = gguf_uint(g, f->key, 1, f->max, &value, err);
        if (rc == 0)
            gguf_config_set(config, f->name, json_integer((json_int_t)value), &rc, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

uint64_t gguf_config_uint(const json_t *config, const char *field, uint64_t fallback)
{
    const json_t *value = json_object_get(config, field);
    return value != NULL ? (uint64_t)json_integer_value(value) : fallback;
}

/* Returns the share of a head that is rotated, rounded so that multiplying it by the head size and
 * truncating gives back the integer. */
static double rotary_share(uint64_t n_rotated, uint64_t head_dim)
{
    double share = (double)n_rotated / (double)head_dim;
    if ((uint64_t)(share * (double)head_dim) < n_rotated)
        share = nextafter(share, 1);
    return share;
}

static int set_norm_and_base(json_t *config, const struct gguf *g, struct fm_error *err)
{
    double theta, eps;
    int rc = gguf_number_or(g, ".rope.freq_base", 1, 1e12, 10000, &theta, err);
    if (rc == 0)
        rc = gguf_number_or(g, ".attention.layer_norm_rms_epsilon", 0, 1, 1e-6, &eps, err);
    if (rc != 0)
        return rc;
    gguf_config_set(config, "rms_norm_eps", json_real(eps), &rc, err);
    gguf_config_set(config, "rope_theta", json_real(theta), &rc, err);
    return rc;
}

static int set_heads(json_t *config, const struct gguf *g, struct gguf_layout *layout,
                     struct fm_error *err)
{
    const uint64_t n_heads = gguf_config_uint(config, "num_attention_heads", 1);
    const uint64_t n_kv_heads = gguf_config_uint(config, "num_key_value_heads", n_heads);
    const uint64_t by_hidden = gguf_config_uint(config, "hidden_size", 1) / n_heads;
    uint64_t head_dim, value_dim, n_rotated;
    int rc = gguf_uint_or(g, ".attention.key_length", 1, LIMIT_HEAD_DIM, by_hidden, &head_dim,
                          err);
    if (rc == 0)
        rc = gguf_uint_or(g, ".attention.value_length", 1, LIMIT_HEAD_DIM, head_dim, &value_dim,
                          err);
    if (rc == 0 && (head_dim != value_dim || head_dim == 0))
        rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "%s: key '%s.attention.key_length' is %llu but value_length is %llu; this "
                     "version needs equal values",
                     g->path, layout->architecture, (unsigned long long)head_dim,
                     (unsigned long long)value_dim);
    if (rc == 0)
        rc = gguf_uint_or(g, ".rope.dimension_count", 0, head_dim, head_dim, &n_rotated, err);
    if (rc == 0 && !layout->family->has_partial_rotary && n_rotated != head_dim)
        rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "%s: key '%s.rope.dimension_count' is %llu but attention.key_length is %llu; "
                     "for this architecture this version needs equal values",
                     g->path, layout->architecture, (unsigned long long)n_rotated,
                     (unsigned long long)head_dim);
    if (rc != 0)
        return rc;
    layout->q_rows = n_heads * head_dim * (layout->family->has_attention_gate ? 2 : 1);
    layout->kv_rows = n_kv_heads * head_dim;
    gguf_config_set(config, "num_key_value_heads", json_integer((json_int_t)n_kv_heads), &rc, err);
    gguf_config_set(config, "head_dim", json_integer((json_int_t)head_dim), &rc, err);
    gguf_config_set(config, "partial_rotary_factor",
                    json_real(rotary_share(n_rotated, head_dim)), &rc, err);
    return rc;
}

/* ---- rope scaling ------------------------------------------------------------------------ */

struct scaling {
    bool is_yarn;
    double factor; /* 1 for no scaling */
};

/* Reads the kind of scaling and the factor as llama.cpp does: a factor alone scales linearly; it
 * also has an older name. */
static int read_scaling(const struct gguf *g, struct scaling *out, struct fm_error *err)
{
    const char *type, *name = ".rope.scaling.factor";
    uint64_t bytes;
    double factor = 0;
    char key[GGUF_KEY_BYTES];
    *out = (struct scaling){.factor = 1};
    int rc = gguf_text_or_null(g, ".rope.scaling.type", &type, &bytes, err);
    if (rc == 0 && gguf_look(g, name, key) == NULL)
        name = ".rope.scale_linear";
    if (rc == 0)
        rc = gguf_number_or(g, name, -HUGE_VAL, HUGE_VAL, 0, &factor, err);
    if (rc != 0 || gguf_text_is(type, bytes, "none"))
        return rc;
    out->is_yarn = gguf_text_is(type, bytes, "yarn");
    if (type != NULL && !out->is_yarn && !gguf_text_is(type, bytes, "linear"))
        return gguf_refuse(g, key, gguf_look(g, ".rope.scaling.type", key),
                           "\"none\", \"linear\" or \"yarn\"", err);
    if (factor == 0 && type != NULL)
        return gguf_refuse(g, key, gguf_look(g, ".rope.scaling.type", key),
                           "\"none\" without rope.scaling.factor", err);
    if (factor != 0 && !(factor >= 1 && factor <= MAX_SCALING))
        return gguf_refuse(g, key, gguf_look(g, name, key), "1 to 1000000", err);
    out->factor = factor != 0 ? factor : 1;
    return 0;
}

/* Reads the value that llama.cpp multiplies with YaRN's own attention factor; 1 without YaRN. */
static int read_attention_share(const struct gguf *g, bool is_yarn, double *out,
                                struct fm_error *err)
{
    static const char *const names[] = {".rope.scaling.attn_factor",
                                        ".rope.scaling.yarn_attn_factor"};
    char key[GGUF_KEY_BYTES];
    *out = 1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        double x;
        int rc = gguf_number_or(g, names[i], -HUGE_VAL, HUGE_VAL, 1, &x, err);
        if (rc != 0)
            return rc;
        x = x == 0 && i == 0 ? 1 : x; /* 0 means not set */
        if (is_yarn ? !(x >= 1 / MAX_SCALING && x <= MAX_SCALING) : x != 1)
            return gguf_refuse(g, key, gguf_look(g, names[i], key),
                               is_yarn ? "0.000001 to 1000000" : "1", err);
        *out *= x;
    }
    return 0;
}

static int set_yarn(json_t *rope, const struct gguf *g, const struct gguf_family *family,
                    double factor, double share, struct fm_error *err)
{
    char key[GGUF_KEY_BYTES];
    uint64_t original;
    double extrapolation, log_multiplier, fast, slow;
    const bool has_multiplier = is_own(family, ".rope.scaling.yarn_log_multiplier");
    int rc = gguf_uint_or(g, ".rope.scaling.original_context_length", 1, LIMIT_CONTEXT, 0,
                          &original, err);
    if (rc == 0)
        rc = gguf_number_or(g, ".rope.scaling.yarn_ext_factor", -HUGE_VAL, HUGE_VAL, 1,
                            &extrapolation, err);
    if (rc == 0 && extrapolation != 1 && extrapolation != -1) /* -1 means not set */
        rc = gguf_refuse(g, key, gguf_look(g, ".rope.scaling.yarn_ext_factor", key), "1", err);
    if (rc == 0)
        rc = gguf_number_or(g, ".rope.scaling.yarn_log_multiplier",
                            has_multiplier ? 0 : -HUGE_VAL,
                            has_multiplier ? MAX_SCALING / 10 : HUGE_VAL, 0, &log_multiplier, err);
    if (rc == 0 && log_multiplier != 0 && !has_multiplier)
        rc = gguf_refuse(g, key, gguf_look(g, ".rope.scaling.yarn_log_multiplier", key), "0", err);
    if (rc == 0)
        rc = gguf_number_or(g, ".rope.scaling.yarn_beta_fast", 1 / MAX_SCALING, MAX_SCALING, 32,
                            &fast, err);
    if (rc == 0)
        rc = gguf_number_or(g, ".rope.scaling.yarn_beta_slow", 1 / MAX_SCALING, MAX_SCALING, 1,
                            &slow, err);
    if (rc != 0)
        return rc;
    if (has_multiplier && log_multiplier != 0) { /* a tenth of two fields that are equal */
        gguf_config_set(rope, "mscale", json_real(10 * log_multiplier), &rc, err);
        gguf_config_set(rope, "mscale_all_dim", json_real(10 * log_multiplier), &rc, err);
    }
    gguf_config_set(rope, "beta_fast", json_real(fast), &rc, err);
    gguf_config_set(rope, "beta_slow", json_real(slow), &rc, err);
    if (original > 0)
        gguf_config_set(rope, "original_max_position_embeddings",
                        json_integer((json_int_t)original), &rc, err);
    if (share != 1)
        gguf_config_set(rope, "attention_factor",
                        json_real(share * (0.1 * fmath_log_of(factor) + 1)), &rc, err);
    return rc;
}

static int set_scaling(json_t *config, const struct gguf *g, const struct gguf_family *family,
                       struct fm_error *err)
{
    struct scaling scaling;
    double share;
    int rc = read_scaling(g, &scaling, err);
    const bool is_scaled = rc == 0 && scaling.factor != 1;
    if (rc == 0)
        rc = read_attention_share(g, is_scaled && scaling.is_yarn, &share, err);
    if (rc != 0 || !is_scaled)
        return rc;
    json_t *rope = json_object();
    gguf_config_set(config, "rope_scaling", rope, &rc, err);
    if (rc != 0)
        return rc;
    gguf_config_set(rope, "rope_type", json_string(scaling.is_yarn ? "yarn" : "linear"), &rc, err);
    gguf_config_set(rope, "factor", json_real(scaling.factor), &rc, err);
    return rc != 0 || !scaling.is_yarn ? rc : set_yarn(rope, g, family, scaling.factor, share, err);
}

static int read_layers(const struct gguf *g, struct gguf_layout *layout, struct fm_error *err)
{
    uint64_t n_blocks = 0, n_extra;
    int rc = gguf_uint(g, ".block_count", 1, LIMIT_LAYERS, &n_blocks, err);
    if (rc == 0)
        rc = gguf_uint_or(g, ".nextn_predict_layers", 0, n_blocks - 1, 0, &n_extra, err);
    if (rc == 0)
        layout->n_layers = n_blocks - n_extra;
    layout->n_blocks = n_blocks;
    return rc;
}

static int fill(json_t *config, const struct gguf *g, const struct gguf_head *head,
                struct gguf_layout *layout, struct fm_error *err)
{
    bool renormalises;
    int rc = check_neutral(g, layout->family, err);
    if (rc == 0)
        rc = check_scaling_keys(g, layout->architecture, err);
    if (rc == 0)
        rc = read_layers(g, layout, err);
    if (rc == 0)
        rc = gguf_config_read(config, g, layout->family->fields, err);
    if (rc == 0)
        rc = set_norm_and_base(config, g, err);
    if (rc == 0 && !layout->family->has_latent_heads)
        rc = set_heads(config, g, layout, err);
    if (rc == 0)
        rc = set_scaling(config, g, layout->family, err);
    if (rc == 0 && layout->family->more != NULL)
        rc = layout->family->more(g, config, layout, err);
    if (rc == 0)
        rc = gguf_bool_or(g, ".expert_weights_norm", layout->family->renormalises, &renormalises,
                          err);
    uint64_t eos;
    if (rc == 0)
        rc = gguf_uint_or(g, "tokenizer.ggml.eos_token_id", 0, UINT32_MAX, UINT64_MAX, &eos, err);
    if (rc != 0)
        return rc;
    gguf_config_set(config, "model_type", json_string(layout->family->model_type), &rc, err);
    gguf_config_set(config, "num_hidden_layers", json_integer((json_int_t)layout->n_layers), &rc,
                    err);
    gguf_config_set(config, "vocab_size", json_integer((json_int_t)head->vocabulary), &rc, err);
    gguf_config_set(config, "tie_word_embeddings", json_boolean(head->is_tied), &rc, err);
    gguf_config_set(config, "norm_topk_prob", json_boolean(renormalises), &rc, err);
    if (eos < head->vocabulary)
        gguf_config_set(config, "eos_token_id", json_integer((json_int_t)eos), &rc, err);
    else if (eos != UINT64_MAX)
        log_warn("format", "%s: key 'tokenizer.ggml.eos_token_id' is %llu, but the embedding has "
                 "%llu rows; the key is ignored",
                 g->path, (unsigned long long)eos, (unsigned long long)head->vocabulary);
    return rc;
}

int gguf_read_config(struct source *source, const struct gguf *g, const struct gguf_head *head,
                     struct gguf_layout *layout, struct fm_error *err)
{
    json_t *config = json_object();
    if (config == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory for the configuration");
    source->config = (struct jdoc){.root = config, .file = mem_strdup(g->path, err)};
    if (source->config.file == NULL)
        return FM_ERR_NOMEM;
    layout->conventions = layout->family->conventions;
    const int rc = fill(config, g, head, layout, err);
    source->conventions = layout->conventions;
    return rc;
}
