/* Routing that takes the place of the routers' own choice, for measuring speed: random weights
 * choose almost uniformly, which no trained model does. It is generated from a few numbers, or
 * replayed from a recorded trace. The same text gives the same experts on every machine.
 *
 * A `struct routes` owns one table, [n_positions, n_layers, n_used] ids of two bytes, made when it
 * is opened and constant afterwards: any thread may look. Positions beyond the table begin again at
 * its first. Sequences at the same position get the same experts. */
#ifndef FLASHMOE_LAB_ROUTES_H
#define FLASHMOE_LAB_ROUTES_H

#include "base/err.h"
#include "flashmoe_lab.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Positions a table has at most where the caller says how many: 4096 of 48 layers and 10 experts
 * take 4 MB. */
#define ROUTES_POSITIONS_MAX 4096

struct routes_shape {
    uint32_t n_layers; /* with routed experts */
    uint32_t n_experts, n_used;
    uint32_t n_positions; /* of the table */
    uint32_t n_warm;      /* positions that are prompt; the rest is decoded */
};

struct routes {
    struct routes_shape shape;
    char *label;   /* where it comes from, in words for every output */
    uint16_t *ids; /* [n_positions, n_layers, n_used], each row ascending and distinct */
};

/* `text` is "gen", "gen:KEY=VALUE,..." or the path of a trace: a CSV, or the raw bytes of nano's
 * routes where it ends in ".u8" (routes_internal.h has both). A field of `shape` that is 0 takes
 * the trace's own value, or that of the trace the generator is fitted to; n_warm is always theirs.
 * FM_ERR_ARG for a bad text or shape, FM_ERR_FORMAT for a bad file: line, field and value. */
int routes_open(const char *text, const struct routes_shape *shape, struct routes **out,
                struct fm_error *err);
void routes_close(struct routes *routes); /* accepts NULL */

/* The n_used experts of one token in one expert layer. */
static inline const uint16_t *routes_at(const struct routes *routes, uint32_t position,
                                        uint32_t layer)
{
    const struct routes_shape *s = &routes->shape;
    return routes->ids + ((size_t)(position % s->n_positions) * s->n_layers + layer) * s->n_used;
}

/* The same as an engine asks for it (replace_ids_fn); ctx is the struct routes. */
void routes_copy_ids(void *ctx, uint32_t position, uint32_t layer, uint32_t *ids);

/* Reuse over `n_tokens` positions after the first n_warm, which only warm the LRU. */
int routes_measure(const struct routes *routes, uint32_t n_tokens, struct fm_routes_stats *stats,
                   struct fm_error *err);
uint32_t routes_capacity(uint32_t n_experts, uint32_t i); /* as fm_routes_capacity */

/* The same numbers of the traces that the project refers to, frozen; NULL when there is none. */
struct routes_reference {
    const char *name;
    struct fm_routes_stats stats;
};
const struct routes_reference *routes_reference(uint32_t i);

#ifdef __cplusplus
}
#endif
#endif
