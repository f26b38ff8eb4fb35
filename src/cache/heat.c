#include "cache/heat.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/fmath.h"
#include "base/mem.h"

/* The clocks start here, so that restored uses can lie before it. */
#define FIRST_CLOCK (1u << 20)
#define LN_2 0.6931471805599453

static const char *const names[N_HEAT_POLICIES] = {[HEAT_LCP] = "lcp", [HEAT_LRU] = "lru"};

const char *heat_policy_name(enum heat_policy policy)
{
    return names[policy];
}

uint64_t heat_bytes(uint32_t n_layers, uint32_t n_experts)
{
    return n_layers * sizeof(uint32_t) +
           (uint64_t)n_layers * n_experts * (sizeof(float) + sizeof(uint32_t) + sizeof(double));
}

int heat_init(struct heat *heat, enum heat_policy policy, uint32_t n_layers, uint32_t n_experts,
              struct fm_error *err)
{
    const uint64_t n = (uint64_t)n_layers * n_experts;
    *heat = (struct heat){.policy = policy, .n_layers = n_layers, .n_experts = n_experts};
    heat->clocks = mem_new(n_layers, sizeof *heat->clocks, "the cache order", err);
    heat->counts = mem_new(n, sizeof *heat->counts, "the cache order", err);
    heat->lasts = mem_new(n, sizeof *heat->lasts, "the cache order", err);
    heat->keys = mem_new(n, sizeof *heat->keys, "the cache order", err);
    if (heat->clocks == NULL || heat->counts == NULL || heat->lasts == NULL || heat->keys == NULL)
        return FM_ERR_NOMEM;
    for (uint32_t i = 0; i < n_layers; i++)
        heat->clocks[i] = FIRST_CLOCK;
    for (uint64_t i = 0; i < n; i++)
        heat->keys[i] = -INFINITY;
    for (uint32_t i = 0; i < HEAT_FADE; i++)
        heat->fades[i] = fmath_pow_of(0.5, (double)i / HEAT_FADE);
    return 0;
}

void heat_clear(struct heat *heat)
{
    mem_free(heat->clocks);
    mem_free(heat->counts);
    mem_free(heat->lasts);
    mem_free(heat->keys);
}

void heat_advance(struct heat *heat, uint32_t layer, uint32_t n_tokens)
{
    heat->clocks[layer] += n_tokens;
}

static void set_key(struct heat *heat, size_t at)
{
    heat->keys[at] = heat->policy == HEAT_LRU
                         ? (double)heat->n_uses
                         : fmath_log((double)heat->counts[at]) / LN_2 +
                               (double)heat->lasts[at] / HEAT_HALF_LIFE;
}

/* Returns the weight of one use that was n_tokens ago. */
static double faded(const struct heat *heat, uint32_t n_tokens)
{
    const uint32_t n_halves = n_tokens / HEAT_FADE;
    return n_halves < 32 ? heat->fades[n_tokens % HEAT_FADE] / (double)(UINT64_C(1) << n_halves)
                         : 0;
}

void heat_use(struct heat *heat, uint32_t layer, uint32_t expert, uint32_t n, uint32_t idle)
{
    const size_t at = (size_t)layer * heat->n_experts + expert;
    const uint32_t last = heat->clocks[layer] - idle;
    assert(n > 0 && last >= heat->lasts[at] && last <= heat->clocks[layer]);
    const double before = (double)heat->counts[at] * faded(heat, last - heat->lasts[at]);
    heat->counts[at] = (float)(before + n);
    heat->lasts[at] = last;
    heat->n_uses++;
    set_key(heat, at);
}

double heat_at_probability(const struct heat *heat, double probability)
{
    return heat->policy == HEAT_LRU ? (double)heat->n_uses + 1
                                    : fmath_log(probability / HEAT_REUSE_PROBABILITY) / LN_2;
}

double heat_level(const struct heat *heat, uint32_t layer, uint32_t expert)
{
    const size_t at = (size_t)layer * heat->n_experts + expert;
    const double level = (double)heat->counts[at] * (1 - heat->fades[1]) *
                         faded(heat, heat->clocks[layer] - heat->lasts[at]);
    return level < 1 ? level : 1;
}

void heat_restore(struct heat *heat, uint32_t layer, uint32_t expert, uint32_t count,
                  uint32_t idle)
{
    const size_t at = (size_t)layer * heat->n_experts + expert;
    if (count == 0)
        return;
    heat->counts[at] = (float)count;
    heat->lasts[at] = heat->clocks[layer] - (idle < FIRST_CLOCK ? idle : FIRST_CLOCK);
    if (heat->policy == HEAT_LRU)
        heat->keys[at] = -(double)idle;
    else
        set_key(heat, at);
}
