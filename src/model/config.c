#include "model/config.h"

#include <string.h>

int config_init(struct config *config, const struct jdoc *doc, struct fm_error *err)
{
    *config = (struct config){.file = doc->file, .root = doc->root, .text = doc->root};
    const json_t *text = jdoc_find(doc->root, "text_config");
    if (text != NULL && !json_is_object(text))
        return err_set(err, FM_ERR_FORMAT, "%s: field 'text_config' is not an object", doc->file);
    if (text != NULL)
        config->text = text;
    return jdoc_string(config_holder(config, "model_type"), config->file, "model_type",
                       &config->model_type, err);
}

const json_t *config_holder(const struct config *config, const char *field)
{
    return jdoc_find(config->text, field) != NULL ? config->text : config->root;
}

int config_uint(const struct config *config, const char *field, uint64_t min, uint64_t max,
                uint32_t *out, struct fm_error *err)
{
    uint64_t value = 0;
    int rc = jdoc_uint(config_holder(config, field), config->file, field, min, max, &value, err);
    *out = (uint32_t)value;
    return rc;
}

int config_uint_or(const struct config *config, const char *field, uint64_t min, uint64_t max,
                   uint32_t fallback, uint32_t *out, struct fm_error *err)
{
    uint64_t value = 0;
    int rc = jdoc_uint_or(config_holder(config, field), config->file, field, min, max, fallback,
                          &value, err);
    *out = (uint32_t)value;
    return rc;
}

int config_number_or(const struct config *config, const char *field, double min, double max,
                     double fallback, double *out, struct fm_error *err)
{
    return jdoc_number_or(config_holder(config, field), config->file, field, min, max, fallback,
                          out, err);
}

int config_bool_or(const struct config *config, const char *field, bool fallback, bool *out,
                   struct fm_error *err)
{
    return jdoc_bool_or(config_holder(config, field), config->file, field, fallback, out, err);
}

int config_experts_per_token(const struct config *config, const char *field, uint64_t most,
                             uint32_t *trained, uint32_t *used, struct fm_error *err)
{
    int rc = config_uint(config, field, 1, most, trained, err);
    const uint32_t asked = config->experts_per_token;
    *used = asked > 0 ? asked : *trained;
    if (rc == 0 && asked > *trained)
        rc = err_set(err, FM_ERR_ARG,
                     "%u experts per token were asked for, the model was made for %u (%s, field "
                     "'%s'): expected 1 to %u",
                     asked, *trained, config->file, field, *trained);
    return rc;
}

int config_refuse_unless(const struct config *config, const char *field, const char *supported,
                         struct fm_error *err)
{
    const json_t *value = jdoc_find(config_holder(config, field), field);
    if (value == NULL)
        return 0;
    char shown[80];
    (void)jdoc_show(value, shown, sizeof shown);
    if (strcmp(shown, supported) == 0)
        return 0;
    return err_set(err, FM_ERR_UNSUPPORTED, "%s: field '%s' is %s; this version computes %s only",
                   config->file, field, shown, supported);
}

int config_rope(const struct config *config, double default_partial, struct config_rope *out,
                struct fm_error *err)
{
    const char *field = "rope_parameters";
    const json_t *rope = jdoc_find(config_holder(config, field), field);
    if (rope == NULL) {
        field = "rope_scaling";
        rope = jdoc_find(config_holder(config, field), field);
    }
    if (rope != NULL && !json_is_object(rope))
        return err_set(err, FM_ERR_FORMAT, "%s: field '%s' is not an object", config->file, field);
    const json_t *type = jdoc_find(rope, "rope_type");
    type = type != NULL ? type : jdoc_find(rope, "type");
    if (type != NULL) {
        char shown[80];
        (void)jdoc_show(type, shown, sizeof shown);
        if (strcmp(shown, "\"default\"") != 0 && strcmp(shown, "\"mrope\"") != 0)
            return err_set(err, FM_ERR_UNSUPPORTED,
                           "%s: field '%s.rope_type' is %s; this version computes \"default\" only",
                           config->file, field, shown);
    }
    const char *theta = "rope_theta", *partial = "partial_rotary_factor";
    const json_t *holder = jdoc_find(rope, theta) ? rope : config_holder(config, theta);
    int rc = jdoc_number_or(holder, config->file, theta, 1.0, 1e12, 0, &out->theta, err);
    if (rc == 0 && out->theta == 0)
        rc = err_set(err, FM_ERR_FORMAT, "%s: field '%s' is missing", config->file, theta);
    holder = jdoc_find(rope, partial) ? rope : config_holder(config, partial);
    if (rc == 0)
        rc = jdoc_number_or(holder, config->file, partial, 0.0, 1.0, default_partial,
                            &out->partial_rotary_factor, err);
    return rc;
}
