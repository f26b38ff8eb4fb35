#include "session/draft_gate.h"

#include <assert.h>

/* Share of a new measurement in what is remembered. The time of a row follows the machine; how many
 * times as long other passes take changes slowly. The last sixteen results or so decide. */
#define ROW_SHARE 0.2
#define TIME_SHARE 0.1
#define RESULT_SHARE 0.06
/* A time counts as at most so many times as long or as short as expected: something else ran. */
#define SURPRISE 1.5
/* What is expected of a draft before any was checked. */
#define FIRST_EXPECTATION 0.6
/* What a further row is expected to cost before a pass had it. Few, so that it is tried. */
#define FIRST_ROW_COST 0.3
/* Worth it: so much more than the same time without drafts gives. */
#define MARGIN 1.03
/* One of so many passes whose drafts seem not worth it computes one all the same: fewer and fewer.
 * If it takes twice as long, that costs less than 1 % in the end. */
#define FIRST_PATIENCE 16
#define PATIENCE 128
/* Where drafts are worth it, one of so many passes has none, and one has another number. */
#define PLAIN_PROBE 32
#define DEPTH_PROBE 16

void draft_gate_init(struct draft_gate *gate, bool is_open)
{
    *gate = (struct draft_gate){.is_open = is_open};
    for (uint32_t s = 0; s < N_DRAFT_SOURCES; s++)
        for (uint32_t i = 0; i < SEQUENCE_DRAFTS; i++)
            gate->right[s][i] = FIRST_EXPECTATION;
    gate->times[1] = 1;
    gate->patience = FIRST_PATIENCE;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Returns how many times as long as one with one row a pass takes: from those with fewer and with
 * more rows if it is unknown. */
static double time_of(const struct draft_gate *gate, uint32_t n_rows)
{
    uint32_t below = n_rows, above = n_rows;
    while (gate->times[below] == 0) /* the time of one row is known */
        below--;
    while (above <= DRAFT_ROWS && gate->times[above] == 0)
        above++;
    if (below == above)
        return gate->times[below];
    const double more = (double)(n_rows - below);
    if (above > DRAFT_ROWS)
        return gate->times[below] * (1 + FIRST_ROW_COST * more / below);
    return gate->times[below] +
           more / (double)(above - below) * (gate->times[above] - gate->times[below]);
}

static double limited(double ratio)
{
    return ratio > SURPRISE ? SURPRISE : ratio < 1 / SURPRISE ? 1 / SURPRISE : ratio;
}

void draft_gate_time(struct draft_gate *gate, uint32_t n_rows, uint64_t ns)
{
    if (n_rows == 0 || n_rows > DRAFT_ROWS || ns == 0)
        return;
    if (gate->row_ns == 0)
        gate->row_ns = (double)ns / time_of(gate, n_rows);
    if (gate->times[n_rows] == 0)
        gate->times[n_rows] = time_of(gate, n_rows);
    const double ratio = (double)ns / (gate->row_ns * gate->times[n_rows]);
    const double seen = ++gate->n_timed[n_rows];
    /* The first measurements count for more, all of them for the same. */
    const double share = seen < 1 / TIME_SHARE ? 1 / seen : TIME_SHARE;
    if (n_rows > 1)
        gate->times[n_rows] *= 1 + share * ((seen > 1 ? limited(ratio) : ratio) - 1);
    if (n_rows == 1 || seen > 1)
        gate->row_ns *= 1 + ROW_SHARE * (limited(ratio) - 1);
}

void draft_gate_prediction(struct draft_gate *gate, uint32_t n, uint64_t ns)
{
    if (n == 0 || gate->row_ns == 0)
        return;
    const double seen = (double)ns / n / gate->row_ns, before = gate->prediction;
    gate->prediction =
        before == 0 ? seen : before * (1 + TIME_SHARE * (limited(seen / before) - 1));
}

/* ---- results --------------------------------------------------------------------------------- */

void draft_gate_result(struct draft_gate *gate, enum draft_source source, uint32_t at,
                       bool is_right)
{
    assert(at < SEQUENCE_DRAFTS);
    double *right = &gate->right[source][at];
    *right += RESULT_SHARE * ((is_right ? 1 : 0) - *right);
}

/* Returns the number of tokens that n drafts will probably give. */
static double expected(const struct draft_gate *gate, enum draft_source source, uint32_t n)
{
    double all = 0, right = 1;
    for (uint32_t i = 0; i < n; i++) {
        right *= gate->right[source][i];
        all += right;
    }
    return all;
}

/* ---- the decision ---------------------------------------------------------------------------- */

/* Returns the number of drafts with the most tokens per time. */
static uint32_t best_number(const struct draft_gate *gate, enum draft_source source,
                            const struct draft_pass *pass, uint32_t n)
{
    const double made = source == DRAFT_PREDICTED ? gate->prediction : 0;
    double best_rate = MARGIN * pass->n_tokens / time_of(gate, pass->n_rows);
    uint32_t best = 0;
    for (uint32_t i = 1; i <= n; i++) {
        const double rate = (pass->n_tokens + expected(gate, source, i)) /
                            (time_of(gate, pass->n_rows + i) + made * i);
        if (rate > best_rate) {
            best = i;
            best_rate = rate;
        }
    }
    return best;
}

/* Changes the best number now and then, so that the gate notices when another becomes better. */
static uint32_t probed(struct draft_gate *gate, uint32_t best, uint32_t n)
{
    if (best == 0) {
        gate->n_accepted = 0;
        if (++gate->n_refused < gate->patience)
            return 0;
        gate->n_refused = 0;
        gate->patience = gate->patience < PATIENCE ? 2 * gate->patience : PATIENCE;
        return 1;
    }
    gate->n_refused = 0;
    gate->patience = FIRST_PATIENCE;
    if (++gate->n_accepted % PLAIN_PROBE == 0)
        return 0;
    if (gate->n_accepted % DEPTH_PROBE != DEPTH_PROBE / 2)
        return best;
    return best < n ? best + 1 : best > 1 ? best - 1 : best;
}

uint32_t draft_gate_choose(struct draft_gate *gate, enum draft_source source,
                           struct draft_pass *pass, uint32_t n)
{
    const uint32_t room = pass->n_rows < DRAFT_ROWS ? DRAFT_ROWS - pass->n_rows : 0;
    const uint32_t most = n < room ? n : room;
    uint32_t chosen = most;
    if (most > 0 && !gate->is_open) /* the time without drafts comes first */
        chosen = gate->row_ns == 0 ? 0
                                   : probed(gate, best_number(gate, source, pass, most), most);
    pass->n_rows += chosen;
    pass->n_tokens += expected(gate, source, chosen);
    return chosen;
}
