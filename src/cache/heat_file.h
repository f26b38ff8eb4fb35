/* The heat file keeps what a cache has learnt about a model's experts from one process to the next.
 * Without it the cache starts cold; nothing else is lost. Any thread may call these functions. */
#ifndef FLASHMOE_CACHE_HEAT_FILE_H
#define FLASHMOE_CACHE_HEAT_FILE_H

#include <stdbool.h>

#include "cache/heat.h"
#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Restores the heat from a file. Returns false when there is no file for this model. Ignores and
 * logs a file that is damaged or belongs to another model. */
bool heat_file_load(const char *path, const struct model *model, struct heat *heat);

/* Replaces the file atomically: a reader sees either the whole old file or the whole new one. Fails
 * with FM_ERR_NOMEM or FM_ERR_IO. */
int heat_file_save(const char *path, const struct model *model, const struct heat *heat,
                   struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
