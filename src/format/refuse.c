#include "format/refuse.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "format/directory.h"
#include "format/source.h"

#define INSTEAD                                                                                    \
    "download the same model in BF16, in FP8 with blocks of 128 x 128, in MLX's format, or as GGUF"
#define PACKED_READ                                                                                \
    "of compressed-tensors this version reads pack-quantized weights of 4 bits, symmetric, in "    \
    "groups of 32 columns"

/* ---- adapters ------------------------------------------------------------------------------ */

#define ADAPTER_CONFIG "adapter_config.json"

static const char *const adapter_names[] = {ADAPTER_CONFIG, "adapter_model.safetensors",
                                            "adapter_model.bin", "adapters.safetensors"};

/* Loads adapter_config.json if it can be read: it names the base model. */
static void load_adapter_config(const char *dir, struct jdoc *doc)
{
    struct fm_error ignored = {0};
    char *path = source_join(dir, ADAPTER_CONFIG, &ignored);
    *doc = (struct jdoc){0};
    if (path != NULL && directory_has(dir, ADAPTER_CONFIG))
        (void)jdoc_load(doc, path, LIMIT_CONFIG_JSON_BYTES, &ignored);
    mem_free(path);
}

int refuse_adapter(const char *dir, struct fm_error *err)
{
    size_t i = 0;
    while (i < sizeof adapter_names / sizeof adapter_names[0] &&
           !directory_has(dir, adapter_names[i]))
        i++;
    if (i == sizeof adapter_names / sizeof adapter_names[0])
        return 0;
    struct jdoc doc;
    load_adapter_config(dir, &doc);
    const char *base = json_string_value(json_object_get(doc.root, "base_model_name_or_path"));
    const char *kind = json_string_value(json_object_get(doc.root, "peft_type"));
    int rc = err_set(err, FM_ERR_UNSUPPORTED,
                     "'%s' is an adapter (%.32s), not a model: it has '%s'. Merge it into its base "
                     "model%s%.160s and give the merged checkpoint, or give the base model alone",
                     dir, kind != NULL ? kind : "LoRA", adapter_names[i],
                     base != NULL ? " " : "", base != NULL ? base : "");
    jdoc_clear(&doc);
    return rc;
}

/* ---- quantisation -------------------------------------------------------------------------- */

static const char *const config_names[] = {"quantization_config", "compression_config"};

static int refuse_fp8_blocks(const struct jdoc *config, const char *prefix, const char *name,
                             const json_t *value, struct fm_error *err)
{
    const json_t *blocks = jdoc_find(value, "weight_block_size");
    char shown[80];
    if (blocks == NULL || strcmp(jdoc_show(blocks, shown, sizeof shown), "[128,128]") == 0)
        return 0;
    return err_set(err, FM_ERR_UNSUPPORTED,
                   "%s: field '%s%s.weight_block_size' is %s; this version reads FP8 only with "
                   "[128,128]: %s",
                   config->file, prefix, name, shown, INSTEAD);
}

/* ---- compressed-tensors ---- */

/* What a field must be, as JSON text. */
struct expected_field {
    const char *name, *value;
    bool may_be_missing; /* or null */
};

static const struct expected_field packed_config[] = {
    {"format", "\"pack-quantized\"", false}, {"quantization_status", "\"compressed\"", true},
    {"kv_cache_scheme", "null", true},       {"sparsity_config", "{}", true},
    {"transform_config", "{}", true},        {NULL, NULL, false}};
static const struct expected_field packed_group[] = {{"format", "\"pack-quantized\"", true},
                                                     {"input_activations", "null", true},
                                                     {"output_activations", "null", true},
                                                     {NULL, NULL, false}};
static const struct expected_field packed_weights[] = {
    {"num_bits", "4", false},       {"group_size", "32", false}, {"strategy", "\"group\"", true},
    {"symmetric", "true", true},    {"type", "\"int\"", true},   {"dynamic", "false", true},
    {"actorder", "null", true},     {"block_structure", "null", true},
    {NULL, NULL, false}};

/* Fails unless every field of `object`, which is called `label`, is as expected. */
static int check_fields(const struct jdoc *config, const char *label, const json_t *object,
                        const struct expected_field *expected, struct fm_error *err)
{
    for (; expected->name != NULL; expected++) {
        const json_t *value = jdoc_find(object, expected->name);
        char shown[80] = "missing";
        if (value == NULL && expected->may_be_missing)
            continue;
        if (value != NULL && strcmp(jdoc_show(value, shown, sizeof shown), expected->value) == 0)
            continue;
        return err_set(err, FM_ERR_UNSUPPORTED, "%s: field '%.200s.%s' is %s: " PACKED_READ "; %s",
                       config->file, label, expected->name, shown, INSTEAD);
    }
    return 0;
}

static int refuse_packed_group(const struct jdoc *config, const char *label, const json_t *group,
                               struct fm_error *err)
{
    char weights[200], shown[80];
    (void)snprintf(weights, sizeof weights, "%s.weights", label);
    if (!json_is_object(group) || !json_is_object(jdoc_find(group, "weights")))
        return err_set(err, FM_ERR_FORMAT, "%s: field '%.200s' is %s, expected an object that has "
                       "an object 'weights'",
                       config->file, label, jdoc_show(group, shown, sizeof shown));
    const int rc = check_fields(config, label, group, packed_group, err);
    return rc != 0 ? rc
                   : check_fields(config, weights, jdoc_find(group, "weights"), packed_weights,
                                  err);
}

static int refuse_packed(const struct jdoc *config, const char *prefix, const char *name,
                         const json_t *value, struct fm_error *err)
{
    char label[160], shown[80];
    (void)snprintf(label, sizeof label, "%s%s", prefix, name);
    int rc = check_fields(config, label, value, packed_config, err);
    json_t *groups = json_object_get(value, "config_groups");
    if (rc == 0 && json_object_size(groups) == 0)
        rc = err_set(err, FM_ERR_FORMAT, "%s: field '%s.config_groups' is %s, expected an object "
                     "with groups of modules",
                     config->file, label,
                     groups == NULL ? "missing" : jdoc_show(groups, shown, sizeof shown));
    for (void *i = json_object_iter(groups); rc == 0 && i != NULL;
         i = json_object_iter_next(groups, i)) {
        (void)snprintf(label, sizeof label, "%s%s.config_groups.%.64s", prefix, name,
                       json_object_iter_key(i));
        rc = refuse_packed_group(config, label, json_object_iter_value(i), err);
    }
    return rc;
}

bool refuse_expects_packed(const struct jdoc *config)
{
    const json_t *const holders[] = {config->root, jdoc_find(config->root, "text_config")};
    for (size_t i = 0; i < 2 * (sizeof config_names / sizeof config_names[0]); i++) {
        const char *method = json_string_value(
            jdoc_find(jdoc_find(holders[i % 2], config_names[i / 2]), "quant_method"));
        if (method != NULL && strcmp(method, "compressed-tensors") == 0)
            return true;
    }
    return false;
}

/* ---- every method ---- */

/* The only architecture whose checkpoints have MXFP4 in tensors of their own. */
static bool is_gpt_oss(const struct jdoc *config)
{
    const char *type = json_string_value(jdoc_find(config->root, "model_type"));
    return type != NULL && strcmp(type, "gpt_oss") == 0;
}

static int refuse_one(const struct jdoc *config, const char *prefix, const char *name,
                      const json_t *value, struct fm_error *err)
{
    char shown[80];
    if (!json_is_object(value))
        return err_set(err, FM_ERR_FORMAT, "%s: field '%s%s' is %s, expected an object",
                       config->file, prefix, name, jdoc_show(value, shown, sizeof shown));
    const json_t *method = jdoc_find(value, "quant_method");
    if (method == NULL && !json_is_true(jdoc_find(value, "load_in_4bit")) &&
        !json_is_true(jdoc_find(value, "load_in_8bit")))
        return 0;
    if (method != NULL && strcmp(jdoc_show(method, shown, sizeof shown), "\"fp8\"") == 0)
        return refuse_fp8_blocks(config, prefix, name, value, err);
    if (method != NULL && strcmp(shown, "\"compressed-tensors\"") == 0)
        return refuse_packed(config, prefix, name, value, err);
    if (method != NULL && strcmp(shown, "\"mxfp4\"") == 0 && is_gpt_oss(config))
        return 0;
    return err_set(err, FM_ERR_UNSUPPORTED,
                   "%s: field '%s%s.quant_method' is %s, which this version does not read: %s",
                   config->file, prefix, name,
                   method != NULL ? shown : "missing, but load_in_4bit or load_in_8bit is true "
                                            "(bitsandbytes)",
                   INSTEAD);
}

int refuse_quantised(const struct jdoc *config, struct fm_error *err)
{
    const json_t *text = jdoc_find(config->root, "text_config");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof config_names / sizeof config_names[0]; i++) {
        const char *name = config_names[i];
        const json_t *in_root = jdoc_find(config->root, name), *in_text = jdoc_find(text, name);
        if (in_root != NULL)
            rc = refuse_one(config, "", name, in_root, err);
        if (rc == 0 && in_text != NULL)
            rc = refuse_one(config, "text_config.", name, in_text, err);
    }
    return rc;
}
