/* Reading a checkpoint's config.json. A multimodal checkpoint nests the language model's fields
 * in `text_config`; a field is looked up there first and at the root second. The struct borrows
 * the document. */
#ifndef FLASHMOE_MODEL_CONFIG_H
#define FLASHMOE_MODEL_CONFIG_H

#include "base/jdoc.h"

#ifdef __cplusplus
extern "C" {
#endif

struct config {
    const char *file;
    const json_t *root;
    const json_t *text; /* text_config, or the root itself */
    const char *model_type;
    uint32_t experts_per_token; /* in place of the configuration's own; 0: that one */
};

int config_init(struct config *config, const struct jdoc *doc, struct fm_error *err);

/* The object that holds `field`, text_config first. */
const json_t *config_holder(const struct config *config, const char *field);

int config_uint(const struct config *config, const char *field, uint64_t min, uint64_t max,
                uint32_t *out, struct fm_error *err);
int config_uint_or(const struct config *config, const char *field, uint64_t min, uint64_t max,
                   uint32_t fallback, uint32_t *out, struct fm_error *err);
int config_number_or(const struct config *config, const char *field, double min, double max,
                     double fallback, double *out, struct fm_error *err);
int config_bool_or(const struct config *config, const char *field, bool fallback, bool *out,
                   struct fm_error *err);

/* Experts a token is given to: the configuration's `field`, 1 to `most`, as *trained, and in *used
 * that or fewer of them where the caller of model_open asked for it. */
int config_experts_per_token(const struct config *config, const char *field, uint64_t most,
                             uint32_t *trained, uint32_t *used, struct fm_error *err);

/* Refuses a field that is there with another value: the arithmetic would be wrong. */
int config_refuse_unless(const struct config *config, const char *field, const char *supported,
                         struct fm_error *err);

struct config_rope {
    double theta;
    double partial_rotary_factor;
};

/* rope_parameters, rope_scaling, or plain fields; a scaling this version cannot compute is
 * refused by name. */
int config_rope(const struct config *config, double default_partial, struct config_rope *out,
                struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
