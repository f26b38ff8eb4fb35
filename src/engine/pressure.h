/* What a memory budget follows: how scarce memory is. A pure function of what was seen and when, so
 * that tests bring a clock of their own.
 *
 * What could be resident is what is and what is available. Of that, a reserve is left to everybody
 * else. When half of it is gone, the budget shrinks at once until it is there again; when there was
 * no pressure for some seconds and more than the reserve is there, it grows by a few percent a
 * second. Allocates nothing, reads nothing. One thread at a time. */
#ifndef FLASHMOE_ENGINE_PRESSURE_H
#define FLASHMOE_ENGINE_PRESSURE_H

#include "base/plat.h"

#ifdef __cplusplus
extern "C" {
#endif

struct pressure {
    uint64_t min, max; /* bytes the budget may be */
    uint64_t reserve;
    /* Experts are read through the page cache: who waits for memory may wait for its pages, which
     * a smaller budget makes no faster. */
    bool ignores_stalls;
    uint64_t budget; /* now */
    bool has_last;
    uint64_t last_ns, pressed_ns, grown_ns; /* the last look, the last pressure, the last growth */
    struct plat_pressure last;
};

#define PRESSURE_CALM_NS 5000000000ull /* so long after pressure nothing grows */
#define PRESSURE_GROW_NS 1000000000ull /* between two growths */
#define PRESSURE_GROW_SHARE 50         /* of what the budget could be, that a growth is */

/* The new budget. *is_urgent: hardly anything is left, so that it is better to stop for a moment
 * than to shrink little by little. */
uint64_t pressure_follow(struct pressure *p, uint64_t now_ns, const struct plat_pressure *seen,
                         bool *is_urgent);

/* What the budget may become at once because its least grows: half of what is available on top.
 * Little always fits, and what would drive others out does not. */
uint64_t pressure_raised(const struct pressure *p, const struct plat_pressure *seen);

#ifdef __cplusplus
}
#endif
#endif
