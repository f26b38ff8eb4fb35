#include "backend/prefer.h"

#include <math.h>
#include <string.h>

#include "base/fmath.h"
#include "base/limits.h"

/* The k highest scores, ascending by id; of equal ones the lower id. */
static void choose(const float *scores, uint32_t n, uint32_t k, uint32_t *ids)
{
    uint32_t best[LIMIT_TOP_K], n_best = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (n_best == k && !(scores[e] > scores[best[k - 1]]))
            continue;
        uint32_t j = n_best < k ? n_best++ : k - 1;
        for (; j > 0 && scores[e] > scores[best[j - 1]]; j--)
            best[j] = best[j - 1];
        best[j] = e;
    }
    for (uint32_t i = 0; i < k; i++) {
        uint32_t j = i;
        for (; j > 0 && best[i] < ids[j - 1]; j--)
            ids[j] = ids[j - 1];
        ids[j] = best[i];
    }
}

/* Returns the expert with the highest logit. One that is not a number ranks last, as in the
 * router. */
static uint32_t fill_scores(const struct backend_preference *p, const float *logits)
{
    const uint32_t n = p->n_experts;
    float least = INFINITY;
    uint32_t top = 0;
    for (uint32_t e = 0; e < n; e++) {
        p->scores[e] = logits[e] == logits[e] ? logits[e] : -INFINITY;
        least = logits[e] < least && logits[e] > -INFINITY ? logits[e] : least;
        top = p->scores[e] > p->scores[top] ? e : top;
    }
    const float bias = p->bias * (p->scores[top] - least);
    for (uint32_t e = 0; e < n; e++)
        if (p->resident[e])
            p->scores[e] += bias;
    p->scores[top] = INFINITY;
    return top;
}

static void prefer_row(const struct backend_preference *p, const float *logits, uint32_t *ids,
                       float *weights)
{
    uint32_t chosen[LIMIT_TOP_K];
    const uint32_t top = fill_scores(p, logits), k = p->k;
    choose(p->scores, p->n_experts, k, chosen);
    if (memcmp(chosen, ids, k * sizeof *ids) == 0)
        return;
    float scale = 0, total = 0;
    for (uint32_t i = 0; i < k; i++)
        scale = ids[i] == top ? weights[i] : scale;
    for (uint32_t i = 0; i < k; i++) {
        ids[i] = chosen[i];
        weights[i] = fmath_exp(logits[chosen[i]] - logits[top]);
        total += weights[i];
    }
    scale = p->renormalises ? 1 / total : scale;
    for (uint32_t i = 0; i < k; i++)
        weights[i] *= scale;
}

void prefer_resident(const struct backend_preference *p)
{
    for (size_t row = 0; row < p->n; row++)
        prefer_row(p, p->logits + row * p->n_experts, p->ids + row * p->k, p->weights + row * p->k);
}
