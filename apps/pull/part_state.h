/* The file NAME.state beside NAME.part: which bytes of it are on the disk, and of which content.
 * The caller owns everything. Any thread, one at a time per file. */
#ifndef FLASHMOE_APPS_PULL_PART_STATE_H
#define FLASHMOE_APPS_PULL_PART_STATE_H

#include "apps/pull/parts.h"

/* Ranges in ascending order; neighbours are merged. If there are too many, the last ones are left
 * out and downloaded again. */
#define PART_MAX_RANGES 512
struct part_ranges {
    size_t n;
    uint64_t first[PART_MAX_RANGES], end[PART_MAX_RANGES];
};
void part_ranges_add(struct part_ranges *ranges, uint64_t first, uint64_t end);

typedef void part_range_fn(void *ctx, uint64_t first, uint64_t end);
/* Calls fn for each range if NAME.part and NAME.state are there and belong to this content.
 * Otherwise removes both. */
int part_state_load(const struct plat_dir *work, const struct part_item *item, part_range_fn *fn,
                    void *ctx, struct fm_error *err);
int part_state_save(const struct plat_dir *work, const struct part_item *item,
                    const struct part_ranges *ranges, struct fm_error *err);
/* Removes the state. */
int part_state_drop(const struct plat_dir *work, const struct part_item *item,
                    struct fm_error *err);

#endif
