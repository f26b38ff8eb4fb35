/* Which experts move between two tiers of slots. The cache (tiers.c) and `bench replay`
 * (lab/replay_tiers.c) both decide with these functions. */
#ifndef FLASHMOE_CACHE_TIER_POLICY_H
#define FLASHMOE_CACHE_TIER_POLICY_H

#include "cache/victims.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An expert that takes the place of another is two transfers, or one if the other's bytes are still
 * in the second tier. Experts that are sent for one use wait for them. A plan earns one transfer,
 * and so many can be saved up. */
#define TIER_MAX_TRANSFERS 16
/* So many experts may be on their way up at a time. */
#define TIER_MAX_ARRIVING 64

struct tier_moves {
    uint32_t n_left; /* transfers */
};

/* A plan has ended. */
static inline void tier_moves_earn(struct tier_moves *moves)
{
    moves->n_left += moves->n_left < TIER_MAX_TRANSFERS;
}

/* Returns whether an expert of the second tier should take the place of one of the first: it was
 * used more than once lately, and half as often again. */
static inline bool tier_is_worth_a_move(const struct heat *heat, const struct victim *below,
                                        const struct victim *above)
{
    const double once = heat_level_of_one(heat);
    const double level = heat_level(heat, below->layer, below->expert);
    return level > 1.5 * once && level >= 1.5 * heat_level(heat, above->layer, above->expert);
}

/* Heat that is comparable between layers. */
static inline double tier_heat(const struct heat *heat, const struct victim *expert)
{
    return heat_key(heat, expert->layer, expert->expert) - heat_age(heat, expert->layer);
}

/* Returns the slot of the second tier that an expert of the first takes when it leaves and no slot
 * there is empty: that of the coldest expert, if it is colder. NO_VICTIM: the expert is dropped. */
static inline uint32_t tier_slot_below(const struct victims *below, const struct victim *leaving)
{
    const uint32_t coldest = victims_spare(below);
    const bool is_colder = coldest != NO_VICTIM && tier_heat(below->heat, &below->slots[coldest]) <
                                                       tier_heat(below->heat, leaving);
    return is_colder ? coldest : NO_VICTIM;
}

#ifdef __cplusplus
}
#endif
#endif
