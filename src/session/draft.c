#include "session/draft.h"

/* A longer match drafts no better. */
#define MATCH_MAX 32

/* Returns how many tokens up to ids[at] equal those up to the end. ids[at] is known to. */
static uint32_t match_length(const int32_t *ids, uint32_t n, uint32_t at)
{
    uint32_t length = 1;
    while (length < MATCH_MAX && length <= at && ids[at - length] == ids[n - length])
        length++;
    return length;
}

uint32_t draft_look_up(const int32_t *ids, uint32_t n, int32_t id, uint32_t min_match,
                       int32_t *drafts, uint32_t max, uint32_t *match)
{
    uint32_t best = 0, best_at = 0;
    for (uint32_t at = n; at-- > 0 && best < MATCH_MAX;) {
        const uint32_t length = ids[at] == id ? match_length(ids, n, at) : 0;
        if (length > best) { /* the latest of the longest */
            best = length;
            best_at = at;
        }
    }
    *match = best;
    if (best < min_match)
        return 0;
    for (uint32_t i = 0; i < max; i++) { /* a text that repeats itself goes on so */
        const uint32_t at = best_at + 1 + i;
        drafts[i] = at < n ? ids[at] : at == n ? id : drafts[at - n - 1];
    }
    return max;
}
