/* Routes replace the routers' choice of experts, to measure speed: random weights choose almost
 * uniformly, which no trained model does. They are generated from a few parameters or replayed from
 * a recorded trace. The same text gives the same experts on every machine.
 *
 * A `struct routes` owns one table of 16-bit ids, [n_positions, n_layers, n_used]. It is made at
 * open and constant afterwards, so any thread may read it. Positions after the table's end start
 * again at its beginning. Sequences at the same position get the same experts. */
#ifndef FLASHMOE_LAB_ROUTES_H
#define FLASHMOE_LAB_ROUTES_H

#include "base/err.h"
#include "flashmoe_lab.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Maximum positions of a table whose length the caller chooses: 4096 positions of 48 layers and 10
 * experts take 4 MB. */
#define ROUTES_POSITIONS_MAX 4096

struct routes_shape {
    uint32_t n_layers; /* with routed experts */
    uint32_t n_experts, n_used;
    uint32_t n_positions; /* of the table */
    uint32_t n_warm;      /* leading positions that are prompt; the others are decoded */
};

struct routes {
    struct routes_shape shape;
    char *label;   /* describes the origin; shown in every output */
    uint16_t *ids; /* [n_positions, n_layers, n_used], ascending and distinct in each row */
    uint32_t recall; /* share of a row that is predicted, in millionths; 0: nothing is */
    uint64_t seed;   /* of what is predicted */
};

/* Opens routes. `text` is "gen", "gen:KEY=VALUE,..." or the path of a trace: a CSV file, or raw
 * bytes if it ends in ".u8" (routes_internal.h describes both). A field of `shape` that is 0 takes
 * the value of the trace, or of the trace that the generator is fitted to; n_warm always does.
 * Fails with FM_ERR_ARG for a bad text or shape, with FM_ERR_FORMAT for a bad file, naming line,
 * field and value, or with FM_ERR_NOMEM. */
int routes_open(const char *text, const struct routes_shape *shape, struct routes **out,
                struct fm_error *err);
void routes_close(struct routes *routes); /* accepts NULL */

/* Returns the n_used experts of one token in one expert layer. */
static inline const uint16_t *routes_at(const struct routes *routes, uint32_t position,
                                        uint32_t layer)
{
    const struct routes_shape *s = &routes->shape;
    return routes->ids + ((size_t)(position % s->n_positions) * s->n_layers + layer) * s->n_used;
}

/* Copies these experts for an engine (replace_ids_fn); ctx is the struct routes. */
void routes_copy_ids(void *ctx, uint32_t position, uint32_t layer, uint32_t *ids);

/* Predicts these experts for an engine's lookahead, as well as `recall` says: each of them with
 * that probability, and otherwise one that the token does not use but others do. The same every
 * time. */
void routes_predict_ids(void *ctx, uint32_t position, uint32_t layer, uint32_t *ids);

/* Measures reuse over n_tokens positions after the first n_warm, which only fill the LRU. Fails
 * with FM_ERR_ARG or FM_ERR_NOMEM. */
int routes_measure(const struct routes *routes, uint32_t n_tokens, struct fm_routes_stats *stats,
                   struct fm_error *err);
uint32_t routes_capacity(uint32_t n_experts, uint32_t i); /* like fm_routes_capacity */

/* The same figures for the reference traces of this project, frozen. */
struct routes_reference {
    const char *name;
    struct fm_routes_stats stats;
};
/* Returns the i-th reference, or NULL when there is none. */
const struct routes_reference *routes_reference(uint32_t i);

#ifdef __cplusplus
}
#endif
#endif
