/* Adjusts logits before a token is picked: logit bias, and penalties on tokens that have occurred.
 * Owns its tables. adjust_init allocates only the ones that are needed; nothing allocates later.
 * One thread at a time. */
#ifndef FLASHMOE_SESSION_ADJUST_H
#define FLASHMOE_SESSION_ADJUST_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct adjust {
    bool is_on; /* false: every logit stays as it is */
    float repetition, presence, frequency; /* 1, 0, 0: off */
    uint32_t vocabulary;
    float *bias;           /* [vocabulary], or NULL */
    uint32_t *n_seen;      /* [vocabulary] counts in prompt and answer; NULL without penalties */
    uint32_t *n_generated; /* [vocabulary] counts in the answer; NULL without penalties */
    uint32_t *window;      /* [n_window] last tokens as 2 * id + is_generated; NULL: no window */
    uint32_t n_window;
    uint64_t n_tokens;
};

/* Allocates the tables. A window that is larger than the model's longest context counts all tokens,
 * so it needs no table: a client may ask for 2^24 tokens. Fails with FM_ERR_ARG for a parameter out
 * of range, or FM_ERR_NOMEM. */
int adjust_init(struct adjust *a, const struct fm_sampling *sampling, uint32_t vocabulary,
                uint32_t max_context, struct fm_error *err);
void adjust_clear(struct adjust *a); /* accepts a zeroed struct */

/* Counts one more token. Ignores ids outside the vocabulary. */
void adjust_accept(struct adjust *a, int32_t id, bool is_generated);

/* Returns the logit after bias, repetition, frequency and presence, in this order. Inline because
 * it is called for every token of the vocabulary. */
static inline float adjust_logit(const struct adjust *a, uint32_t id, float logit)
{
    if (a->bias != NULL)
        logit += a->bias[id];
    if (a->n_seen == NULL)
        return logit;
    if (a->n_seen[id] > 0)
        logit = logit > 0 ? logit / a->repetition : logit * a->repetition;
    if (a->n_generated[id] > 0) {
        logit -= a->frequency * (float)a->n_generated[id];
        logit -= a->presence;
    }
    /* A tiny repetition penalty must not make a logit infinite: the sampler takes differences. */
    return logit > FLT_MAX ? FLT_MAX : logit;
}

#ifdef __cplusplus
}
#endif
#endif
