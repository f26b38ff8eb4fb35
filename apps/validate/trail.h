/* The way of an answer through the layers: a hash of the hidden state after every layer at every
 * position. Two trails show in which layer two answers part.
 *
 * The trail owns its array. One thread. */
#ifndef FLASHMOE_APPS_VALIDATE_TRAIL_H
#define FLASHMOE_APPS_VALIDATE_TRAIL_H

#include <stdbool.h>

#include "flashmoe_lab.h"

struct trail {
    unsigned n_positions, n_layers; /* room; layer 0 is the embedding, the last one a layer's end */
    uint64_t *hashes;               /* [n_positions, n_layers]; 0: not seen */
    unsigned n_used;
    uint32_t *routes; /* [n_positions, n_layers, n_used], the chosen experts plus 1; 0: none */
};

int trail_new(struct trail *trail, unsigned n_positions, unsigned n_layers, unsigned n_used,
              struct fm_error *err);
void trail_free(struct trail *trail); /* accepts a zeroed one */
/* Watches a session until trail_unwatch. */
void trail_watch(struct trail *trail, struct fm_session *session);
void trail_unwatch(struct fm_session *session);

/* Finds where `b` first differs from `a`: the earliest position, and the earliest layer there. The
 * layer is counted from 0; -1 is the embedding. Returns false if they agree wherever both have
 * seen a state. */
bool trail_differs(const struct trail *a, const struct trail *b, unsigned *position, int *layer);
/* Returns a hash of one layer over positions [first, end). */
uint32_t trail_hash(const struct trail *trail, unsigned layer, unsigned first, unsigned end);
/* Writes the experts that a layer used at a position, as "3, 17, 40"; "" if it has none. */
void trail_experts(const struct trail *trail, unsigned position, unsigned layer, char *text,
                   size_t bytes);

#endif
