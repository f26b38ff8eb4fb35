/* A function of fm_slots that only the server uses. One thread at a time, as for all of
 * fm_slots. */
#ifndef FLASHMOE_SESSION_SLOTS_H
#define FLASHMOE_SESSION_SLOTS_H

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the owner that fm_slots_take was last given for session i. Returns 0 when there was none
 * or no such session exists. */
uint64_t slots_owner(const struct fm_slots *slots, unsigned i);

#ifdef __cplusplus
}
#endif
#endif
