/* The public face of routing statistics and of replays. */
#include "lab/routes.h"
#include "lab/replay.h"
#include "flashmoe_lab.h"

unsigned fm_routes_capacity(unsigned n_experts, unsigned i)
{
    return i < FM_ROUTES_POINTS ? routes_capacity(n_experts, i) : 0;
}

static int open_and_measure(const char *text, struct fm_routes_stats *stats,
                            struct routes **routes, struct fm_error *err)
{
    struct routes_shape shape = {.n_layers = stats->n_layers, .n_experts = stats->n_experts,
                                 .n_used = stats->n_used};
    /* A generated table should hold all that is measured; a trace is as long as it is. */
    if (stats->n_tokens > 0)
        shape.n_positions = ROUTES_POSITIONS_MAX;
    int rc = routes_open(text, &shape, routes, err);
    if (rc != 0)
        return rc;
    const unsigned rest = (*routes)->shape.n_positions - (*routes)->shape.n_warm;
    rc = routes_measure(*routes, stats->n_tokens > 0 ? stats->n_tokens : rest, stats, err);
    if (rc != 0)
        routes_close(*routes);
    return rc;
}

int fm_routes_measure(const char *text, struct fm_routes_stats *stats, struct fm_error *err)
{
    struct routes *routes;
    int rc = open_and_measure(text, stats, &routes, err);
    if (rc == 0)
        routes_close(routes);
    return rc;
}

/* ---- cache policies ---------------------------------------------------------------------- */

_Static_assert(FM_REPLAY_POLICIES == N_REPLAY_POLICIES, "every policy is public");

const char *fm_replay_policy(unsigned i)
{
    return i < N_REPLAY_POLICIES ? replay_policy_name((enum replay_policy)i) : NULL;
}

static int replay_point(const struct replay_routes *r, struct fm_replay_point *point,
                        struct fm_error *err)
{
    const uint32_t n_slots = (uint32_t)(point->share * r->n_layers * r->n_experts);
    const double n_token = (double)r->n_layers * r->n_used;
    const uint32_t n_late = r->n_tokens - r->n_tokens / 2;
    point->n_slots = n_slots > r->n_layers ? n_slots : r->n_layers;
    for (unsigned i = 0; i < N_REPLAY_POLICIES; i++) {
        struct replay_hits hits;
        int rc = replay_run(r, (enum replay_policy)i, point->n_slots, &hits, err);
        if (rc != 0)
            return rc;
        point->hits[i] = i == REPLAY_STATIC ? -1 : (double)hits.n_all / (n_token * r->n_tokens);
        point->late_hits[i] = (double)hits.n_late / (n_token * n_late);
    }
    return 0;
}

int fm_routes_replay(const char *text, struct fm_routes_stats *stats,
                     struct fm_replay_point *points, unsigned n_points, struct fm_error *err)
{
    for (unsigned i = 0; i < n_points; i++)
        if (!(points[i].share > 0 && points[i].share <= 1))
            return err_set(err, FM_ERR_ARG, "a cache of %g of all experts is not possible",
                           points[i].share);
    struct routes *routes;
    int rc = open_and_measure(text, stats, &routes, err);
    if (rc != 0)
        return rc;
    const struct routes_shape *s = &routes->shape;
    const struct replay_routes r = {.n_layers = s->n_layers, .n_experts = s->n_experts,
                                    .n_used = s->n_used, .n_positions = s->n_positions,
                                    .ids = routes->ids, .n_warm = s->n_warm,
                                    .n_tokens = stats->n_tokens};
    for (unsigned i = 0; rc == 0 && i < n_points; i++)
        rc = replay_point(&r, &points[i], err);
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
