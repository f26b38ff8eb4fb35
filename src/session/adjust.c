#include "session/adjust.h"

#include <assert.h>
#include <math.h>

#include "base/limits.h"
#include "base/mem.h"

/* OpenAI allows penalties from -2 to 2 and a bias from -100 to 100. This allows more. */
#define PENALTY_MAX 100.0f

static bool is_within(float x, float min, float max)
{
    return x >= min && x <= max; /* false for NaN */
}

static int check(const struct fm_sampling *p, uint32_t vocabulary, struct fm_error *err)
{
    if (!is_within(p->repetition_penalty, 0, PENALTY_MAX) ||
        !is_within(p->presence_penalty, -PENALTY_MAX, PENALTY_MAX) ||
        !is_within(p->frequency_penalty, -PENALTY_MAX, PENALTY_MAX))
        return err_set(err, FM_ERR_ARG, "repetition penalty %g, presence penalty %g, frequency "
                       "penalty %g: expected 0 to 100, -100 to 100, -100 to 100",
                       (double)p->repetition_penalty, (double)p->presence_penalty,
                       (double)p->frequency_penalty);
    if (p->penalty_window > LIMIT_CONTEXT)
        return err_set(err, FM_ERR_ARG, "a penalty window of %u tokens: expected 0 to %u",
                       p->penalty_window, LIMIT_CONTEXT);
    for (unsigned i = 0; i < p->n_logit_bias; i++) {
        const struct fm_logit_bias *b = &p->logit_bias[i];
        if (b->id < 0 || (uint32_t)b->id >= vocabulary)
            return err_set(err, FM_ERR_ARG, "logit bias for token %d: ids go from 0 to %u", b->id,
                           vocabulary - 1);
        if (!is_within(b->bias, -1e30f, 1e30f) && b->bias != -INFINITY)
            return err_set(err, FM_ERR_ARG, "logit bias %g for token %d is not a finite number",
                           (double)b->bias, b->id);
    }
    return 0;
}

int adjust_init(struct adjust *a, const struct fm_sampling *p, uint32_t vocabulary,
                uint32_t max_context, struct fm_error *err)
{
    *a = (struct adjust){.repetition = p->repetition_penalty > 0 ? p->repetition_penalty : 1,
                         .presence = p->presence_penalty, .frequency = p->frequency_penalty,
                         .vocabulary = vocabulary};
    int rc = check(p, vocabulary, err);
    if (rc != 0)
        return rc;
    const bool has_penalty = a->repetition != 1 || a->presence != 0 || a->frequency != 0;
    bool ok = true;
    if (p->n_logit_bias > 0)
        ok = (a->bias = mem_new(vocabulary, sizeof *a->bias, "the sampler", err)) != NULL;
    if (ok && has_penalty)
        ok = (a->n_seen = mem_new(vocabulary, sizeof *a->n_seen, "the sampler", err)) != NULL &&
             (a->n_generated = mem_new(vocabulary, sizeof *a->n_generated, "the sampler", err)) !=
                 NULL;
    if (ok && has_penalty && p->penalty_window > 0 && p->penalty_window <= max_context) {
        a->n_window = p->penalty_window;
        ok = (a->window = mem_new(a->n_window, sizeof *a->window, "the sampler", err)) != NULL;
    }
    if (!ok) {
        adjust_clear(a);
        return FM_ERR_NOMEM;
    }
    for (unsigned i = 0; i < p->n_logit_bias; i++)
        a->bias[p->logit_bias[i].id] += p->logit_bias[i].bias;
    a->is_on = has_penalty || p->n_logit_bias > 0;
    return 0;
}

void adjust_clear(struct adjust *a)
{
    mem_free(a->bias);
    mem_free(a->n_seen);
    mem_free(a->n_generated);
    mem_free(a->window);
    *a = (struct adjust){0};
}

void adjust_accept(struct adjust *a, int32_t id, bool is_generated)
{
    if (a->n_seen == NULL || id < 0 || (uint32_t)id >= a->vocabulary)
        return;
    a->n_seen[id]++;
    a->n_generated[id] += is_generated;
    if (a->window == NULL)
        return;
    uint32_t *place = &a->window[a->n_tokens % a->n_window];
    if (a->n_tokens >= a->n_window) { /* the oldest token leaves the window */
        assert(*place >> 1 < a->vocabulary && a->n_seen[*place >> 1] > 0);
        assert(a->n_generated[*place >> 1] >= (*place & 1));
        a->n_seen[*place >> 1]--;
        a->n_generated[*place >> 1] -= *place & 1;
    }
    *place = (uint32_t)id << 1 | is_generated;
    a->n_tokens++;
}
