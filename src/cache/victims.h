/* Victims: the slots whose experts may be dropped, in the order of their heat. One pool for all
 * layers, of which every layer keeps at least its floor: a token needs all layers, and a pool
 * without floors that holds less than one token's experts never has a single hit.
 *
 * A heap for each layer and a tournament between their coldest ones: adding, removing and taking
 * are O(log n). Slots that are pinned, being read or empty are not in it. Belongs to the thread
 * that drives the plans. Nothing allocates after victims_init. */
#ifndef FLASHMOE_CACHE_VICTIMS_H
#define FLASHMOE_CACHE_VICTIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/heat.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NO_VICTIM UINT32_MAX

struct victims {
    const struct heat *heat;
    uint32_t n_layers, n_experts, floor;
    struct victim {
        uint32_t layer, expert, place; /* in the layer's heap; NO_VICTIM: not in it */
    } *slots;                          /* [n_slots] */
    uint32_t *heaps;                   /* [n_layers, n_experts] slots, the coldest first */
    uint32_t *n_in_heap, *n_held;      /* [n_layers]; held: in the heap, pinned or being read */
    uint32_t *winners;                 /* [2 * n_leaves] layers: a tree whose root is 1 */
    uint32_t n_leaves;
};

/* The heat must outlive it. */
int victims_init(struct victims *v, const struct heat *heat, uint32_t n_slots, uint32_t floor,
                 struct fm_error *err);
void victims_clear(struct victims *v);
uint64_t victims_bytes(uint32_t n_layers, uint32_t n_experts, uint64_t n_slots);

/* The slot will hold the layer's expert, and counts as the layer's until victims_give_up. */
void victims_hold(struct victims *v, uint32_t slot, uint32_t layer, uint32_t expert);
void victims_give_up(struct victims *v, uint32_t slot); /* it is not in the order */

void victims_add(struct victims *v, uint32_t slot); /* held, with the expert's heat as it is now */
void victims_remove(struct victims *v, uint32_t slot);

/* The slot that `layer` should have: its own coldest, or another layer's that is colder by more
 * than heat_margin. It stays where it is; NO_VICTIM when there is none. Ties go to the lower expert
 * of a layer, and between layers to the lower one. */
uint32_t victims_coldest(const struct victims *v, uint32_t layer);

/* The coldest slot of the layers that have more than their floor; NO_VICTIM when there is none. */
uint32_t victims_spare(const struct victims *v);
void victims_set_floor(struct victims *v, uint32_t floor);

/* After heat_pass for a layer. */
void victims_aged(struct victims *v, uint32_t layer);

#ifdef __cplusplus
}
#endif
#endif
