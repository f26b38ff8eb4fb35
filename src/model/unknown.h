/* Refuses a model of a family that this version does not have. */
#ifndef FLASHMOE_MODEL_UNKNOWN_H
#define FLASHMOE_MODEL_UNKNOWN_H

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns FM_ERR_UNSUPPORTED with a message that names the model's type, the family that is nearest
 * to the model, and what that family lacks: fields of config.json and tensors. A model without
 * experts is only named. Other return values are failures to find that out. */
int model_refuse_unknown(struct source *source, const struct config *config,
                         const char *model_type, const struct model_family *const *families,
                         struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
