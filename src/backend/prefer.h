/* Cache-biased routing, which is approximate. If the router rates two experts about the same, the
 * one in memory is chosen, so that fewer are read. The result then depends on what the cache holds.
 * The functions work on memory that the caller can read. Pure functions for any thread. */
#ifndef FLASHMOE_BACKEND_PREFER_H
#define FLASHMOE_BACKEND_PREFER_H

#include <string.h>

#include "backend/router.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Finds the k highest scores, ascending by id. Ties go to the lower id. */
SHARED_FN void prefer_choose(const float *scores, uint32_t n, uint32_t k, uint32_t *ids)
{
    float best[LIMIT_TOP_K];
    unsigned n_best = 0;
    for (uint32_t e = 0; e < n; e++)
        router_insert(e, scores[e], k, &n_best, ids, best);
    router_sort(ids, best, k);
}

/* Computes each expert's rating. Experts outside the chosen groups get minus infinity. */
SHARED_FN void prefer_rate(const struct router *r, const struct router_row *row,
                           const float *logits, float *scores)
{
    uint32_t groups[LIMIT_TOP_K];
    for (uint32_t e = 0; e < r->n_experts; e++)
        scores[e] = router_is_plain(r) ? router_rank(logits[e]) : -INFINITY;
    if (router_is_plain(r))
        return;
    const uint32_t size = router_group_size(r);
    const unsigned n_groups = router_groups(r, row, logits, router_pair_of, groups);
    for (unsigned g = 0; g < n_groups; g++)
        for (uint32_t e = groups[g] * size; e < (groups[g] + 1) * size; e++)
            scores[e] = router_choice(r, row, logits, e);
}

/* Adds the bias to resident experts. Returns the expert with the highest rating. */
SHARED_FN uint32_t prefer_add_bias(const struct backend_preference *p)
{
    const uint32_t n = p->router->n_experts;
    float *scores = p->scores, lowest = INFINITY;
    uint32_t top = 0;
    for (uint32_t e = 0; e < n; e++) {
        lowest = scores[e] < lowest && scores[e] > -INFINITY ? scores[e] : lowest;
        top = scores[e] > scores[top] ? e : top;
    }
    const float bias = p->bias * (scores[top] - lowest);
    for (uint32_t e = 0; e < n; e++)
        if (p->resident[e])
            scores[e] += bias;
    scores[top] = INFINITY;
    return top;
}

/* Computes the softmax over the chosen experts, or their share of the softmax over all experts,
 * which follows from the weight of `top`. */
SHARED_FN void prefer_weigh_plain(const struct router *r, const float *logits, uint32_t top,
                                  float top_weight, const uint32_t *ids, float *weights)
{
    float total = 0;
    for (uint32_t i = 0; i < r->k; i++) {
        weights[i] = fmath_exp(logits[ids[i]] - logits[top]);
        total += weights[i];
    }
    const float factor = r->renormalises ? 1 / total * r->scale : top_weight;
    for (uint32_t i = 0; i < r->k; i++)
        weights[i] *= factor;
}

SHARED_FN void prefer_row(const struct backend_preference *p, const float *logits, uint32_t *ids,
                          float *weights)
{
    const struct router *r = p->router;
    const struct router_row row = router_row_of(r, logits);
    uint32_t chosen[LIMIT_TOP_K];
    prefer_rate(r, &row, logits, p->scores);
    const uint32_t top = prefer_add_bias(p);
    prefer_choose(p->scores, r->n_experts, r->k, chosen);
    uint32_t n_same = 0;
    while (n_same < r->k && chosen[n_same] == ids[n_same])
        n_same++;
    if (n_same == r->k)
        return;
    float top_weight = 0;
    for (uint32_t i = 0; i < r->k; i++)
        top_weight = ids[i] == top ? weights[i] : top_weight;
    memcpy(ids, chosen, r->k * sizeof *ids);
    if (router_is_plain(r))
        prefer_weigh_plain(r, logits, top, top_weight, ids, weights);
    else
        router_weigh(r, &row, logits, ids, weights);
}

/* backend_ops.prefer */
SHARED_FN void prefer_resident(const struct backend_preference *p)
{
    const size_t n_experts = p->router->n_experts, k = p->router->k;
    for (size_t t = 0; t < p->n; t++)
        prefer_row(p, p->logits + t * n_experts, p->ids + t * k, p->weights + t * k);
}

#ifdef __cplusplus
}
#endif
#endif
