/* Reads a checkpoint's config.json the way transformers 5 does. A multimodal checkpoint nests the
 * language model's fields in `text_config`. One table (config.c) lists the fields that may be in
 * two places, and which place counts. tests/oracle/sweep_config.py checks that table against
 * transformers. The struct borrows the document. */
#ifndef FLASHMOE_MODEL_CONFIG_H
#define FLASHMOE_MODEL_CONFIG_H

#include "base/jdoc.h"
#include "model/rope.h"

#ifdef __cplusplus
extern "C" {
#endif

struct probe;

struct config {
    const char *file;
    const json_t *root;
    const json_t *text; /* text_config, or the root itself */
    const json_t *rope; /* whichever of rope_scaling and rope_parameters counts, or NULL */
    const char *model_type; /* of the language model */
    const char *root_type;  /* of the whole checkpoint */
    uint32_t experts_per_token; /* overrides the configuration; 0: no override */
    struct probe *probe; /* notes what the functions below would refuse (probe.h); NULL: none */
};

int config_init(struct config *config, const struct jdoc *doc, struct fm_error *err);
/* Refuses a rope scaling that is not implemented, or that is in a place where it has no effect. */
int config_check(const struct config *config, struct fm_error *err);

/* Returns the field's value from the place that counts, or NULL if it is absent or null. */
const json_t *config_find(const struct config *config, const char *field);

int config_uint(const struct config *config, const char *field, uint64_t min, uint64_t max,
                uint32_t *out, struct fm_error *err);
int config_uint_or(const struct config *config, const char *field, uint64_t min, uint64_t max,
                   uint32_t fallback, uint32_t *out, struct fm_error *err);
int config_number_or(const struct config *config, const char *field, double min, double max,
                     double fallback, double *out, struct fm_error *err);
int config_bool_or(const struct config *config, const char *field, bool fallback, bool *out,
                   struct fm_error *err);

/* Reads the configuration's `field`, the number of experts per token, 1 to `max`, into *trained.
 * Sets *used to the same, or to fewer if the caller of model_open asked for fewer. */
int config_experts_per_token(const struct config *config, const char *field, uint64_t max,
                             uint32_t *trained, uint32_t *used, struct fm_error *err);

/* Refuses a field that has any other value, because the arithmetic would be wrong. */
int config_refuse_unless(const struct config *config, const char *field, const char *supported,
                         struct fm_error *err);

/* Refuses the fields with which transformers changes the arithmetic of any family. */
int config_refuse_general(const struct config *config, struct fm_error *err);

/* Reads the rotation's base and its scaling. */
int config_rope(const struct config *config, struct rope *rope, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
