/* Measures how much routing reuses experts, and lists reference figures of real models. */
#include <string.h>

#include "lab/routes.h"
#include "base/mem.h"
#include "flashmoe_lab.h"

uint32_t routes_capacity(uint32_t n_experts, uint32_t i)
{
    static const uint8_t parts_of_32[FM_ROUTES_POINTS] = {2, 3, 4, 6, 8, 12, 16};
    const uint32_t n = (uint32_t)((uint64_t)n_experts * parts_of_32[i] / 32);
    return n > 0 ? n : 1;
}

static uint32_t count_common(const uint16_t *a, const uint16_t *b, uint32_t k)
{
    uint32_t n = 0;
    for (uint32_t i = 0, j = 0; i < k && j < k;) {
        n += a[i] == b[j];
        const bool moves_a = a[i] <= b[j], moves_b = b[j] <= a[i];
        i += moves_a;
        j += moves_b;
    }
    return n;
}

static double mean_overlap(const struct routes *r, uint32_t n_tokens, uint32_t lag)
{
    uint64_t n_common = 0;
    if (n_tokens <= lag)
        return -1;
    for (uint32_t p = r->shape.n_warm + lag; p < r->shape.n_warm + n_tokens; p++)
        for (uint32_t layer = 0; layer < r->shape.n_layers; layer++)
            n_common += count_common(routes_at(r, p, layer), routes_at(r, p - lag, layer),
                                     r->shape.n_used);
    return (double)n_common /
           ((double)(n_tokens - lag) * r->shape.n_layers * r->shape.n_used);
}

/* Returns the mean number of distinct experts per window. Windows start every half window.
 * seen[expert] is the last window that used it. */
static double mean_distinct(const struct routes *r, uint32_t n_tokens, uint32_t window,
                            uint32_t *seen)
{
    uint64_t n_distinct = 0, n_windows = 0;
    if (n_tokens < window)
        return -1;
    memset(seen, 0, r->shape.n_experts * sizeof *seen);
    for (uint32_t first = 0; first + window <= n_tokens; first += window / 2)
        for (uint32_t layer = 0; layer < r->shape.n_layers; layer++) {
            n_windows++;
            for (uint32_t p = first; p < first + window; p++) {
                const uint16_t *ids = routes_at(r, r->shape.n_warm + p, layer);
                for (uint32_t i = 0; i < r->shape.n_used; i++) {
                    n_distinct += seen[ids[i]] != n_windows;
                    seen[ids[i]] = (uint32_t)n_windows;
                }
            }
        }
    return (double)n_distinct / (double)n_windows;
}

/* The LRU caches of all sizes for one layer. */
struct lru {
    /* all experts used so far, latest first: a cache of size c holds the first c */
    uint16_t *recent;
    uint32_t n_recent;
    uint32_t capacity[FM_ROUTES_POINTS];
    uint64_t hits[FM_ROUTES_POINTS];
};

static uint32_t lru_find(const struct lru *lru, uint16_t id)
{
    uint32_t at = 0;
    while (at < lru->n_recent && lru->recent[at] != id)
        at++;
    return at;
}

/* Looks up all experts of a token before any of them is inserted. */
static void lru_token(struct lru *lru, const uint16_t *ids, uint32_t k, bool is_counted)
{
    for (uint32_t i = 0; is_counted && i < k; i++) {
        const uint32_t at = lru_find(lru, ids[i]);
        for (uint32_t c = 0; at < lru->n_recent && c < FM_ROUTES_POINTS; c++)
            lru->hits[c] += at < lru->capacity[c];
    }
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t at = lru_find(lru, ids[i]);
        lru->n_recent += at == lru->n_recent;
        memmove(lru->recent + 1, lru->recent, at * sizeof *lru->recent);
        lru->recent[0] = ids[i];
    }
}

static void measure_lru(const struct routes *r, uint32_t n_tokens, uint16_t *recent,
                        double lru_hits[FM_ROUTES_POINTS])
{
    const struct routes_shape *s = &r->shape;
    struct lru lru = {.recent = recent};
    for (uint32_t i = 0; i < FM_ROUTES_POINTS; i++)
        lru.capacity[i] = routes_capacity(s->n_experts, i);
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        lru.n_recent = 0;
        for (uint32_t p = 0; p < s->n_warm + n_tokens; p++)
            lru_token(&lru, routes_at(r, p, layer), s->n_used, p >= s->n_warm);
    }
    for (uint32_t i = 0; i < FM_ROUTES_POINTS; i++)
        lru_hits[i] = (double)lru.hits[i] / ((double)n_tokens * s->n_layers * s->n_used);
}

int routes_measure(const struct routes *r, uint32_t n_tokens, struct fm_routes_stats *stats,
                   struct fm_error *err)
{
    const struct routes_shape *s = &r->shape;
    *stats = (struct fm_routes_stats){.n_layers = s->n_layers, .n_experts = s->n_experts,
                                      .n_used = s->n_used, .n_warm = s->n_warm,
                                      .n_tokens = n_tokens};
    uint32_t *seen = mem_new(s->n_experts, sizeof *seen, "the statistics", err);
    uint16_t *recent = mem_new(s->n_experts, sizeof *recent, "the statistics", err);
    const bool has_memory = seen != NULL && recent != NULL;
    for (uint32_t i = 0; has_memory && i < FM_ROUTES_POINTS; i++) {
        stats->overlap[i] = mean_overlap(r, n_tokens, 1u << i);
        stats->distinct[i] = mean_distinct(r, n_tokens, 2u << i, seen);
    }
    if (has_memory)
        measure_lru(r, n_tokens, recent, stats->lru_hits);
    mem_free(recent);
    mem_free(seen);
    return has_memory ? 0 : FM_ERR_NOMEM;
}

/* ---- real models -------------------------------------------------------------------------- */

/* Decode of one prompt each, recorded by others (BigMoeOnEdge) with fewer experts per token than
 * the models were trained with. tests/routes measures them again if the traces are available. */
static const struct routes_reference reference_list[] = {
    {"Qwen3-30B-A3B",
     {0, 48, 128, 6, 28, 128,
      {0.3795, 0.2893, 0.2769, 0.2668, 0.2828, 0.2364, 0.2431},
      {9.723, 15.592, 23.673, 33.471, 42.958, 52.125, 63.729},
      {0.4294, 0.5258, 0.6139, 0.7293, 0.8181, 0.9174, 0.9582}}},
    {"gemma-4-26B-A4B",
     {0, 30, 128, 6, 29, 128,
      {0.3571, 0.2929, 0.2840, 0.2610, 0.2372, 0.2188, 0.2595},
      {9.857, 15.777, 23.868, 34.756, 46.757, 57.500, 66.933},
      {0.4159, 0.5266, 0.6148, 0.7212, 0.7961, 0.9071, 0.9509}}},
    {"gpt-oss-120b",
     {0, 36, 128, 2, 85, 64,
      {0.1788, 0.2099, 0.1340, 0.1310, 0.1036, 0.1181, -1},
      {3.642, 6.151, 10.026, 16.016, 24.361, 35.889, -1},
      {0.5154, 0.5970, 0.6584, 0.7480, 0.8030, 0.8587, 0.8863}}},
};

const struct routes_reference *routes_reference(uint32_t i)
{
    return i < sizeof reference_list / sizeof reference_list[0] ? &reference_list[i] : NULL;
}
