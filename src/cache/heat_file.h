/* The heat file: what a cache has learnt about the experts of a model, kept from one run to the
 * next. Losing it costs a slower start and nothing else. Any thread may call anything. */
#ifndef FLASHMOE_CACHE_HEAT_FILE_H
#define FLASHMOE_CACHE_HEAT_FILE_H

#include <stdbool.h>

#include "cache/heat.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* True when there was one for this model. A file that is damaged or another model's is left alone
 * and said to be so in the log. */
bool heat_file_load(const char *path, const struct model *model, struct heat *heat);

/* Replaces the file in one step; a reader sees the old one or the new one, whole. */
int heat_file_save(const char *path, const struct model *model, const struct heat *heat,
                   struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
