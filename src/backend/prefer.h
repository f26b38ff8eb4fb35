/* Cache-biased routing, which is approximate. If the router rates two experts about the same, the
 * one in memory is chosen, so that fewer are read. The result then depends on what the cache holds.
 * This is the reference definition, on host memory. */
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
