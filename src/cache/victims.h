/* Victims keep the evictable slots in the order of their heat. All layers share one pool, but every
 * layer keeps at least `floor` slots: a token needs all layers, and a pool without floors that
 * holds fewer experts than one token uses never has a hit.
 *
 * Each layer has a heap, and a tournament tree compares the coldest slots of the layers. Adding,
 * removing and finding a victim take O(log n). Slots that are pinned, being read or empty are not
 * in a heap. The struct owns its arrays; nothing allocates after victims_init. It belongs to the
 * thread that drives the plans. */
#ifndef FLASHMOE_CACHE_VICTIMS_H
#define FLASHMOE_CACHE_VICTIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "cache/heat.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NO_VICTIM UINT32_MAX

struct victim {
    uint32_t layer, expert, place; /* place: index in the layer's heap, or NO_VICTIM */
};

struct victims {
    const struct heat *heat;
    uint32_t n_layers, n_experts, floor;
    struct victim *slots;         /* [n_slots] */
    uint32_t *heaps;              /* [n_layers, n_experts] slots, the coldest first */
    uint32_t *n_in_heap, *n_held; /* [n_layers]; held: in the heap, pinned or being read */
    uint32_t *winners; /* [2 * n_leaves] layers: a tournament tree with its root at 1 */
    uint32_t n_leaves;
};

/* Allocates the arrays. The heat must outlive the victims. Fails with FM_ERR_NOMEM. */
int victims_init(struct victims *v, const struct heat *heat, uint32_t n_slots, uint32_t floor,
                 struct fm_error *err);
void victims_clear(struct victims *v);
uint64_t victims_bytes(uint32_t n_layers, uint32_t n_experts, uint64_t n_slots);

/* Assigns a slot to an expert. The slot counts for the layer until victims_unassign. */
void victims_assign(struct victims *v, uint32_t slot, uint32_t layer, uint32_t expert);
void victims_unassign(struct victims *v, uint32_t slot); /* the slot is in no heap */

/* an assigned slot; its heat must not change until remove */
void victims_add(struct victims *v, uint32_t slot);
void victims_remove(struct victims *v, uint32_t slot);

/* Returns the slot to evict for `layer`: its own coldest, or that of another layer when it is
 * colder by more than heat_margin. Does not remove it. Returns NO_VICTIM when there is none. Ties
 * go to the lower expert in a layer, and to the lower layer between layers. */
uint32_t victims_coldest(const struct victims *v, uint32_t layer);

/* Returns the coldest slot of the layers that have more than their floor, or NO_VICTIM. */
uint32_t victims_spare(const struct victims *v);
void victims_set_floor(struct victims *v, uint32_t floor);

/* Updates the tournament after heat_advance for a layer. */
void victims_refresh(struct victims *v, uint32_t layer);

#ifdef __cplusplus
}
#endif
#endif
