/* How a memory budget follows the machine's free memory. A pure function of what was seen and when,
 * so that tests bring a clock of their own.
 *
 * A reserve of the free memory is left to other processes. When half of the reserve is gone, the
 * budget shrinks at once until it is there again. After some seconds without pressure, with more
 * than the reserve free, the budget grows by a few percent a second. Allocates nothing, reads
 * nothing. One thread at a time. */
#ifndef FLASHMOE_ENGINE_PRESSURE_H
#define FLASHMOE_ENGINE_PRESSURE_H

#include "base/plat.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pressure {
    uint64_t min, max; /* bytes the budget may be */
    uint64_t reserve;
    /* Experts are read through the page cache. A stall may then be a wait for its pages, which a
     * smaller budget does not shorten. */
    bool ignores_stalls;
    uint64_t budget; /* now */
    bool has_last;
    uint64_t last_ns, pressed_ns, grown_ns; /* the last look, the last pressure, the last growth */
    struct plat_pressure last;
};

#define PRESSURE_CALM_NS 5000000000ull /* so long after pressure nothing grows */
#define PRESSURE_GROW_NS 1000000000ull /* between two growths */
#define PRESSURE_GROW_SHARE 50         /* of what the budget could be, that a growth is */

/* Returns the new budget. *is_urgent: hardly any memory is free, so the cache should shrink at once
 * rather than little by little. */
uint64_t pressure_follow(struct pressure *p, uint64_t now_ns, const struct plat_pressure *seen,
                         bool *is_urgent);

/* Returns what the budget may become at once when its minimum grows: half of the available memory
 * more. A small increase always fits; one that would push other processes out does not. */
uint64_t pressure_raised(const struct pressure *p, const struct plat_pressure *seen);

#ifdef __cplusplus
}
#endif
#endif
