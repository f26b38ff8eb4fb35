/* What the server knows of fm_slots beyond the public header. One thread, as all of fm_slots. */
#ifndef FLASHMOE_SESSION_SLOTS_H
#define FLASHMOE_SESSION_SLOTS_H

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the owner that fm_slots_take was last given for session i; 0 for none, and where there is
 * no such session. */
uint64_t slots_owner(const struct fm_slots *slots, unsigned i);

#ifdef __cplusplus
}
#endif
#endif
