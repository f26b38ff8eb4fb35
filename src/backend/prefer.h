/* Cache-biased routing, which is approximate: an expert that is in memory is chosen before one that
 * is not when the router rates them about the same, so that fewer are read. What is computed then
 * depends on what the cache holds. This is the definition, over the host's memory. */
#ifndef FLASHMOE_BACKEND_PREFER_H
#define FLASHMOE_BACKEND_PREFER_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* backend_ops.prefer */
void prefer_resident(const struct backend_preference *p);

#ifdef __cplusplus
}
#endif
#endif
