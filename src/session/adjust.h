/* What changes logits before a token is chosen from them: bias, and the penalties on tokens that
 * were there already. Owns its tables, which are all allocated at the start, and only those that
 * are needed. One thread. */
#ifndef FLASHMOE_SESSION_ADJUST_H
#define FLASHMOE_SESSION_ADJUST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

struct adjust {
    bool is_on; /* otherwise every logit stays as it is */
    float repetition, presence, frequency; /* 1, 0, 0: off */
    uint32_t vocabulary;
    float *bias;           /* [vocabulary], or NULL */
    uint32_t *n_seen;      /* [vocabulary], prompt and answer, or NULL without penalties */
    uint32_t *n_generated; /* [vocabulary], the answer alone, likewise */
    uint32_t *window;      /* [n_window] the last tokens as 2 * id + is_generated; NULL: all */
    uint32_t n_window;
    uint64_t n_tokens;
};

/* FM_ERR_ARG for what is out of range. */
int adjust_init(struct adjust *a, const struct fm_sampling *sampling, uint32_t vocabulary,
                struct fm_error *err);
void adjust_clear(struct adjust *a); /* accepts a zeroed one */

/* One more token; ids outside the vocabulary are ignored. */
void adjust_accept(struct adjust *a, int32_t id, bool is_generated);

/* The logit after bias, repetition, frequency and presence, in this order. Here because it is
 * asked for every token of the vocabulary. */
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
    return logit;
}

#ifdef __cplusplus
}
#endif
#endif
