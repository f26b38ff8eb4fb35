#include "session/draft.h"

#include <assert.h>

/* ---- drafts --------------------------------------------------------------------------------- */

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
                       int32_t *drafts, uint32_t max)
{
    uint32_t best = 0, best_at = 0;
    for (uint32_t at = n; at-- > 0 && best < MATCH_MAX;) {
        const uint32_t length = ids[at] == id ? match_length(ids, n, at) : 0;
        if (length > best) { /* the latest of the longest */
            best = length;
            best_at = at;
        }
    }
    if (best < min_match)
        return 0;
    for (uint32_t i = 0; i < max; i++) { /* a text that repeats itself goes on so */
        const uint32_t at = best_at + 1 + i;
        drafts[i] = at < n ? ids[at] : at == n ? id : drafts[at - n - 1];
    }
    return max;
}

/* ---- how many are worth it ------------------------------------------------------------------- */

/* Share of a new measurement in what is remembered: the last ten or so decide. */
#define TIME_SHARE 0.1
#define RESULT_SHARE 0.06
/* What is expected of a draft before any was checked. */
#define FIRST_EXPECTATION 0.6
/* One of so many drafts that seem not worth it is computed all the same: the text and the cache
 * change. At twice the time of a pass this costs less than 1 %. */
#define PROBE_EVERY 128
/* Worth it: so much more than the same time without drafts gives. */
#define MARGIN 1.03

void draft_gate_init(struct draft_gate *gate, bool is_open)
{
    *gate = (struct draft_gate){.is_open = is_open};
    for (uint32_t i = 0; i < SEQUENCE_DRAFTS; i++)
        gate->accepted[i] = FIRST_EXPECTATION;
}

/* Estimates the time of a pass from those with fewer and with more rows. Returns 0 if it cannot. */
static double time_of(const struct draft_gate *gate, uint32_t n_rows)
{
    uint32_t below = n_rows, above = n_rows;
    while (below > 0 && gate->pass_ns[below] == 0)
        below--;
    while (above <= DRAFT_ROWS && gate->pass_ns[above] == 0)
        above++;
    if (below == 0 || above > DRAFT_ROWS)
        return 0;
    if (below == above)
        return gate->pass_ns[below];
    const double share = (double)(n_rows - below) / (double)(above - below);
    return gate->pass_ns[below] + share * (gate->pass_ns[above] - gate->pass_ns[below]);
}

/* Returns the number of drafts with the most tokens per time; n if some time is unknown. */
static uint32_t best_number(const struct draft_gate *gate, uint32_t n_rows, uint32_t n)
{
    const double plain_ns = time_of(gate, n_rows);
    double right = 1, expected = n_rows, best_rate;
    uint32_t best = 0;
    if (plain_ns == 0)
        return 0; /* the next passes show it */
    best_rate = MARGIN * (double)n_rows / plain_ns;
    for (uint32_t i = 1; i <= n; i++) {
        const double ns = time_of(gate, n_rows + i);
        right *= gate->accepted[i - 1];
        expected += right;
        if (ns == 0)
            return n;
        if (expected / ns > best_rate) {
            best = i;
            best_rate = expected / ns;
        }
    }
    return best;
}

uint32_t draft_gate_choose(struct draft_gate *gate, uint32_t n_rows, uint32_t n)
{
    if (n == 0 || n_rows + n > DRAFT_ROWS)
        return 0;
    uint32_t chosen = gate->is_open ? n : best_number(gate, n_rows, n);
    if (chosen == 0 && gate->pass_ns[n_rows] > 0 && ++gate->n_refused >= PROBE_EVERY)
        chosen = n;
    if (chosen > 0)
        gate->n_refused = 0;
    return chosen;
}

static void blend(double *value, double seen, double share)
{
    *value += share * (seen - *value);
}

void draft_gate_time(struct draft_gate *gate, uint32_t n_rows, uint64_t ns)
{
    if (n_rows > DRAFT_ROWS)
        return;
    if (gate->pass_ns[n_rows] == 0)
        gate->pass_ns[n_rows] = (double)ns;
    else
        blend(&gate->pass_ns[n_rows], (double)ns, TIME_SHARE);
}

void draft_gate_result(struct draft_gate *gate, uint32_t at, bool is_right)
{
    assert(at < SEQUENCE_DRAFTS);
    blend(&gate->accepted[at], is_right ? 1 : 0, RESULT_SHARE);
}
