/* The public face of routing statistics. */
#include "arch/routes.h"

unsigned fm_routes_capacity(unsigned n_experts, unsigned i)
{
    return i < FM_ROUTES_POINTS ? routes_capacity(n_experts, i) : 0;
}

int fm_routes_measure(const char *text, struct fm_routes_stats *stats, struct fm_error *err)
{
    struct routes_shape shape = {.n_layers = stats->n_layers, .n_experts = stats->n_experts,
                                 .n_used = stats->n_used};
    /* A generated table should hold all that is measured; a trace is as long as it is. */
    if (stats->n_tokens > 0)
        shape.n_positions = ROUTES_POSITIONS_MAX;
    struct routes *routes;
    int rc = routes_open(text, &shape, &routes, err);
    if (rc != 0)
        return rc;
    const unsigned rest = routes->shape.n_positions - routes->shape.n_warm;
    rc = routes_measure(routes, stats->n_tokens > 0 ? stats->n_tokens : rest, stats, err);
    routes_close(routes);
    return rc;
}

bool fm_routes_reference(unsigned i, const char **name, struct fm_routes_stats *stats)
{
    const struct routes_reference *reference = routes_reference(i);
    if (reference == NULL)
        return false;
    *name = reference->name;
    *stats = reference->stats;
    return true;
}
