/* The parts of a router that the kernels and cache-biased routing share: scores, groups and
 * weights. Every level gives these bits. Pure functions. */
#ifndef FLASHMOE_BACKEND_ROUTER_H
#define FLASHMOE_BACKEND_ROUTER_H

#include "backend/backend.h"
#include "base/fmath.h"
#include "base/limits.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ROUTER_LANES 16

/* A plain router takes the softmax of the logits alone. The highest logits win, so choosing needs
 * no scores. */
SHARED_FN bool router_is_plain(const struct router *r)
{
    return r->score == ROUTER_SOFTMAX && r->correction == NULL && r->n_groups <= 1;
}

/* A NaN is never chosen over a number. */
SHARED_FN float router_rank(float x)
{
    return x == x ? x : -INFINITY;
}

/* Inserts e into a list of at most k ids, sorted by value, highest first. On a tie, the earlier one
 * stays first. */
SHARED_FN void router_insert(uint32_t e, float value, unsigned k, unsigned *n, uint32_t *ids,
                             float *values)
{
    if (*n == k && !(value > values[k - 1]))
        return;
    unsigned j = *n < k ? (*n)++ : k - 1;
    for (; j > 0 && value > values[j - 1]; j--) {
        ids[j] = ids[j - 1];
        values[j] = values[j - 1];
    }
    ids[j] = e;
    values[j] = value;
}

SHARED_FN void router_sort(uint32_t *ids, float *values, unsigned k)
{
    for (unsigned i = 1; i < k; i++) {
        const uint32_t id = ids[i];
        const float value = values[i];
        unsigned j = i;
        for (; j > 0 && ids[j - 1] > id; j--) {
            ids[j] = ids[j - 1];
            values[j] = values[j - 1];
        }
        ids[j] = id;
        values[j] = value;
    }
}

/* What the softmax of a row needs. A sigmoid needs nothing. */
struct router_row {
    float max, total;
};

SHARED_FN struct router_row router_row_of(const struct router *r, const float *logits)
{
    struct router_row row = {-INFINITY, 0};
    float lane[ROUTER_LANES] = {0};
    if (r->score != ROUTER_SOFTMAX)
        return row;
    for (uint32_t e = 0; e < r->n_experts; e++)
        row.max = logits[e] > row.max ? logits[e] : row.max;
    for (uint32_t e = 0; e < r->n_experts; e++)
        lane[e % ROUTER_LANES] += fmath_exp(logits[e] - row.max);
    for (unsigned width = ROUTER_LANES / 2; width > 0; width /= 2)
        for (unsigned j = 0; j < width; j++)
            lane[j] += lane[j + width];
    row.total = lane[0];
    return row;
}

SHARED_FN float router_score_of(const struct router *r, const struct router_row *row,
                                float logit)
{
    return r->score == ROUTER_SIGMOID ? fmath_sigmoid(logit)
                                      : fmath_exp(logit - row->max) / row->total;
}

/* Returns the value an expert is chosen by. */
SHARED_FN float router_choice(const struct router *r, const struct router_row *row,
                              const float *logits, uint32_t e)
{
    const float score = router_score_of(r, row, logits[e]);
    return router_rank(r->correction != NULL ? score + r->correction[e] : score);
}

SHARED_FN uint32_t router_group_size(const struct router *r)
{
    return r->n_groups > 1 ? r->n_experts / r->n_groups : r->n_experts;
}

/* The two highest choices of a group. */
struct router_pair {
    float first, second;
};

SHARED_FN void router_pair_add(struct router_pair *pair, float choice)
{
    if (choice > pair->first) {
        pair->second = pair->first;
        pair->first = choice;
    } else if (choice > pair->second) {
        pair->second = choice;
    }
}

SHARED_FN struct router_pair router_pair_of(const struct router *r,
                                            const struct router_row *row,
                                            const float *logits, uint32_t begin, uint32_t end)
{
    struct router_pair pair = {-INFINITY, -INFINITY};
    for (uint32_t e = begin; e < end; e++)
        router_pair_add(&pair, router_choice(r, row, logits, e));
    return pair;
}

/* Finds the chosen groups, ascending. Returns their number. `pair_of` is router_pair_of or a faster
 * equivalent. */
SHARED_FN unsigned router_groups(const struct router *r, const struct router_row *row,
                                 const float *logits,
                                 struct router_pair (*pair_of)(const struct router *r,
                                                               const struct router_row *row,
                                                               const float *logits,
                                                               uint32_t begin, uint32_t end),
                                 uint32_t groups[LIMIT_TOP_K])
{
    const uint32_t size = router_group_size(r);
    float sums[LIMIT_TOP_K];
    unsigned n = 0;
    groups[0] = 0;
    if (r->n_groups <= 1)
        return 1;
    for (uint32_t g = 0; g < r->n_groups; g++) {
        const struct router_pair pair = pair_of(r, row, logits, g * size, (g + 1) * size);
        router_insert(g, router_rank(pair.first + pair.second), r->n_groups_chosen, &n, groups,
                      sums);
    }
    router_sort(groups, sums, n);
    return n;
}

/* Sorts the chosen experts and computes their weights. */
SHARED_FN void router_weigh(const struct router *r, const struct router_row *row,
                            const float *logits, uint32_t *ids, float *weights)
{
    float total = 0;
    router_sort(ids, weights, r->k);
    for (unsigned i = 0; i < r->k; i++) {
        weights[i] = router_score_of(r, row, logits[ids[i]]);
        total += weights[i];
    }
    for (unsigned i = 0; i < r->k; i++)
        weights[i] = (r->renormalises ? weights[i] / (total + 1e-20f) : weights[i]) * r->scale;
}

#ifdef __cplusplus
}
#endif
#endif
