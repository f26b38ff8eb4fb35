/* The public API of routing statistics and replays. */
#include "base/sized.h"
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
    /* A generated table is made long enough for the measurement; a trace has a fixed length. */
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
    struct fm_routes_stats own;
    struct routes *routes;
    int rc = sized_take(&own, sizeof own, stats, "fm_routes_stats", err);
    if (rc == 0)
        rc = open_and_measure(text, &own, &routes, err);
    if (rc != 0)
        return rc;
    routes_close(routes);
    return sized_give(stats, &own, sizeof own);
}

/* ---- cache policies ---------------------------------------------------------------------- */

_Static_assert(N_REPLAY_POLICIES <= FM_REPLAY_POLICIES, "there is room for every policy");

const char *fm_replay_policy_name(unsigned i)
{
    return i < N_REPLAY_POLICIES ? replay_policy_name((enum replay_policy)i) : NULL;
}

/* Returns the i-th of the caller's points, which are spaced by the caller's own struct size. */
static struct fm_replay_point *point_at(struct fm_replay_point *points, unsigned i)
{
    return (struct fm_replay_point *)((char *)points + i * points->size);
}

static int check_points(struct fm_replay_point *points, unsigned n_points, struct fm_error *err)
{
    for (unsigned i = 0; i < n_points; i++) {
        struct fm_replay_point own;
        if (point_at(points, i)->size != points->size)
            return err_set(err, FM_ERR_ARG, "fm_replay_point.size is %zu in point %u and %zu in "
                           "point 0: give all points the same size", point_at(points, i)->size, i,
                           points->size);
        const int rc = sized_take(&own, sizeof own, point_at(points, i), "fm_replay_point", err);
        if (rc != 0)
            return rc;
        if (!(own.share > 0 && own.share <= 1))
            return err_set(err, FM_ERR_ARG, "fm_replay_point.share is %g: expected more than 0 and "
                           "at most 1", own.share);
    }
    return 0;
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

/* Opens routes, measures them and describes them for a replay. */
static int open_replay(const char *text, const struct fm_routes_stats *stats,
                       struct fm_routes_stats *own, struct routes **routes,
                       struct replay_routes *out, struct fm_error *err)
{
    int rc = sized_take(own, sizeof *own, stats, "fm_routes_stats", err);
    if (rc == 0)
        rc = open_and_measure(text, own, routes, err);
    if (rc != 0)
        return rc;
    const struct routes_shape *s = &(*routes)->shape;
    *out = (struct replay_routes){.n_layers = s->n_layers, .n_experts = s->n_experts,
                                  .n_used = s->n_used, .n_positions = s->n_positions,
                                  .ids = (*routes)->ids, .n_warm = s->n_warm,
                                  .n_tokens = own->n_tokens};
    return 0;
}

int fm_routes_replay(const char *text, struct fm_routes_stats *stats,
                     struct fm_replay_point *points, unsigned n_points, struct fm_error *err)
{
    struct fm_routes_stats own;
    struct routes *routes;
    struct replay_routes r;
    int rc = check_points(points, n_points, err);
    if (rc == 0)
        rc = open_replay(text, stats, &own, &routes, &r, err);
    if (rc != 0)
        return rc;
    for (unsigned i = 0; rc == 0 && i < n_points; i++) {
        struct fm_replay_point point = {.share = point_at(points, i)->share};
        rc = replay_point(&r, &point, err);
        (void)sized_give(point_at(points, i), &point, sizeof point); /* checked above */
    }
    routes_close(routes);
    return rc != 0 ? rc : sized_give(stats, &own, sizeof own);
}

/* ---- two tiers --------------------------------------------------------------------------- */

_Static_assert(N_REPLAY_MOVES <= FM_REPLAY_MOVES, "there is room for every policy");

const char *fm_replay_moves_name(unsigned i)
{
    return i < N_REPLAY_MOVES ? replay_moves_name((enum replay_moves)i) : NULL;
}

static struct fm_replay_tiers *tiers_at(struct fm_replay_tiers *points, unsigned i)
{
    return (struct fm_replay_tiers *)((char *)points + i * points->size);
}

static int check_tiers(struct fm_replay_tiers *points, unsigned n_points, struct fm_error *err)
{
    for (unsigned i = 0; i < n_points; i++) {
        struct fm_replay_tiers own;
        if (tiers_at(points, i)->size != points->size)
            return err_set(err, FM_ERR_ARG, "fm_replay_tiers.size is %zu in point %u and %zu in "
                           "point 0: give all points the same size", tiers_at(points, i)->size, i,
                           points->size);
        const int rc = sized_take(&own, sizeof own, tiers_at(points, i), "fm_replay_tiers", err);
        if (rc != 0)
            return rc;
        if (!(own.above > 0 && own.below > 0 && own.above <= 1 && own.below <= 1))
            return err_set(err, FM_ERR_ARG, "fm_replay_tiers.above is %g and .below is %g: "
                           "expected more than 0 and at most 1 each", own.above, own.below);
    }
    return 0;
}

static int replay_tier_point(const struct replay_routes *r, struct fm_replay_tiers *point,
                             struct fm_error *err)
{
    const double n_all = (double)r->n_layers * r->n_experts;
    const double n_uses = (double)r->n_tokens * r->n_layers * r->n_used;
    const uint32_t n_above = (uint32_t)(point->above * n_all + 1e-9);
    const uint32_t n_below = (uint32_t)(point->below * n_all + 1e-9);
    point->n_above = n_above > 0 ? n_above : 1;
    point->n_below = n_below > r->n_layers ? n_below : r->n_layers;
    for (unsigned i = 0; i < N_REPLAY_MOVES; i++) {
        struct replay_tier_counts counts;
        const int rc = replay_tiers(r, (enum replay_moves)i, point->n_above, point->n_below,
                                    &counts, err);
        if (rc != 0)
            return rc;
        point->hits_above[i] = (double)counts.n_above / n_uses;
        point->hits_below[i] = (double)counts.n_below / n_uses;
        point->moved_up[i] = (double)counts.n_moved_up / r->n_tokens;
        point->moved_down[i] = (double)counts.n_moved_down / r->n_tokens;
    }
    return 0;
}

int fm_routes_replay_tiers(const char *text, struct fm_routes_stats *stats,
                           struct fm_replay_tiers *points, unsigned n_points, struct fm_error *err)
{
    struct fm_routes_stats own;
    struct routes *routes;
    struct replay_routes r;
    int rc = check_tiers(points, n_points, err);
    if (rc == 0)
        rc = open_replay(text, stats, &own, &routes, &r, err);
    if (rc != 0)
        return rc;
    for (unsigned i = 0; rc == 0 && i < n_points; i++) {
        struct fm_replay_tiers point = {.above = tiers_at(points, i)->above,
                                        .below = tiers_at(points, i)->below};
        rc = replay_tier_point(&r, &point, err);
        (void)sized_give(tiers_at(points, i), &point, sizeof point); /* checked above */
    }
    routes_close(routes);
    return rc != 0 ? rc : sized_give(stats, &own, sizeof own);
}

bool fm_routes_reference(unsigned i, const char **name, struct fm_routes_stats *stats)
{
    const struct routes_reference *reference = routes_reference(i);
    if (reference == NULL)
        return false;
    *name = reference->name;
    return sized_give(stats, &reference->stats, sizeof reference->stats) == 0;
}
