#include "session/draft_gate.h"

#include <assert.h>

/* Share of a new measurement in what is remembered. The time of a row follows the machine; how many
 * times as long other passes take changes slowly. The last sixteen results or so decide. */
#define ROW_SHARE 0.2
#define TIME_SHARE 0.1
#define FASTER_SHARE 0.3
/* Measurements of which the shortest counts. */
#define N_COLD 3
#define RESULT_SHARE 0.06
#define OFTEN_SHARE 0.08
#define TOKEN_SHARE 0.04
/* A time counts as at most so many times as long or as short as expected: something else ran. */
#define SURPRISE 1.5
/* What is expected of a draft before any was checked. */
#define FIRST_EXPECTATION 0.6
/* It counts as so many results. */
#define FIRST_WEIGHT 4
/* What a further row is expected to cost before a pass had it. Few, so that it is tried. */
#define FIRST_ROW_COST 0.3
/* Worth it: so much more than the same time without drafts gives. */
#define MARGIN 1.03
/* The same for drafts that are decided on one by one: fewer of them are wrong. */
#define CHAIN_MARGIN 0.015
/* One of so many passes whose drafts seem not worth it has one all the same: fewer and fewer. If it
 * takes twice as long, that costs less than 1 % in the end. */
#define FIRST_PATIENCE 16
#define PATIENCE 128
/* At the beginning little is known of the block: so many passes ask it, one of so many. */
#define N_LESSONS 8
#define LESSON 4
/* Where drafts are worth it, one of so many passes has none, and one has another number. */
#define PLAIN_PROBE 32
#define DEPTH_PROBE 16
/* A further draft of the block costs more than its row. */
#define CHAIN_PROBE 64
/* One of so many chains has another part of the vocabulary. */
#define HEAD_PROBE 96
/* One of so many predicted drafts that seem not worth it is computed all the same. */
#define CUT_PROBE 48

/* What is expected of predicted drafts before any was checked, by how sure the block is: much, so
 * that they are tried. */
static const double first_right[DRAFT_SURE] = {0.6, 0.6, 0.65, 0.7, 0.8, 0.9};
/* Margins of logits from which on the block is so sure. */
static const float margins[DRAFT_SURE] = {0, 0.5f, 1, 2, 3.5f, 6};

uint32_t draft_sure_of_margin(float margin)
{
    uint32_t sure = 0;
    while (sure + 1 < DRAFT_SURE && margin >= margins[sure + 1])
        sure++;
    return sure;
}

uint32_t draft_sure_of_match(uint32_t n_tokens)
{
    uint32_t sure = 0;
    for (uint32_t from = 4; sure + 1 < DRAFT_SURE && n_tokens >= from; from *= 2)
        sure++; /* from 4, 8, 16 and 32 tokens on */
    return sure;
}

void draft_gate_init(struct draft_gate *gate, bool is_open)
{
    *gate = (struct draft_gate){.is_open = is_open};
    for (uint32_t s = 0; s < N_DRAFT_SOURCES; s++)
        for (uint32_t i = 0; i < SEQUENCE_DRAFTS; i++)
            for (uint32_t c = 0; c < DRAFT_SURE; c++) {
                struct draft_record *r = &gate->records[s][i];
                r->right[c] = s == DRAFT_PREDICTED ? first_right[c] : FIRST_EXPECTATION;
                r->often[c] = 1.0 / DRAFT_SURE;
            }
    gate->times[1] = 1;
    gate->head = DRAFT_HEADS - 1;
    for (uint32_t i = 0; i < DRAFT_HEADS; i++)
        gate->covered[i] = 1;
    for (uint32_t s = 0; s < N_DRAFT_SOURCES; s++)
        gate->tries[s].patience = FIRST_PATIENCE;
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
    /* The first measurements count for more, all of them for the same. Memory that is used for the
     * first time makes some of them too long, so the shortest of these counts. */
    const double share = seen < 1 / TIME_SHARE ? 1 / seen : TIME_SHARE;
    const bool is_first = seen == 1 || (seen <= N_COLD && ratio < 1);
    if (n_rows > 1)
        gate->times[n_rows] *= is_first ? ratio : 1 + share * (limited(ratio) - 1);
    if (n_rows == 1 || seen > 1)
        gate->row_ns *= 1 + ROW_SHARE * (limited(ratio) - 1);
}

void draft_gate_prediction(struct draft_gate *gate, const struct draft_pass *pass, uint64_t ns)
{
    if (pass->n_predictions == 0 || gate->row_ns == 0)
        return;
    double *at = &gate->predictions[gate->head];
    const double took = (double)ns / pass->n_predictions / gate->row_ns;
    const double seen = ++gate->n_predicted[gate->head];
    const bool is_first = seen == 1 || (seen <= N_COLD && took < *at);
    /* Nothing makes a prediction shorter than it is; much makes one longer. */
    const double share = took < *at ? FASTER_SHARE : TIME_SHARE;
    const double most = SURPRISE * *at;
    *at = is_first ? took : *at + share * ((took < most ? took : most) - *at);
}

/* Returns the time of a draft in a part of the vocabulary. The head's time follows its size, so one
 * that was not timed follows from the others. */
static double prediction_of(const struct draft_gate *gate, uint32_t head)
{
    static const double sizes[DRAFT_HEADS] = {0.125, 0.25, 0.5, 1};
    uint32_t low = 0, high = DRAFT_HEADS - 1;
    if (gate->predictions[head] > 0)
        return gate->predictions[head];
    while (low < high && gate->predictions[low] == 0)
        low++;
    while (high > low && gate->predictions[high] == 0)
        high--;
    if (low == high)
        return gate->predictions[low];
    const double slope = (gate->predictions[high] - gate->predictions[low]) /
                         (sizes[high] - sizes[low]);
    return gate->predictions[low] + slope * (sizes[head] - sizes[low]);
}

/* Returns the time of one draft for each of so many sessions. The block is a layer and the model's
 * head, so more rows take as many times as long as they do in a pass. */
static double predictions_of(const struct draft_gate *gate, uint32_t head, uint32_t n_sessions)
{
    return prediction_of(gate, head) * time_of(gate, n_sessions);
}

/* Returns what a session pays of it. */
static double share_of(const struct draft_gate *gate, uint32_t n_sessions)
{
    return predictions_of(gate, gate->head, n_sessions) / n_sessions;
}

void draft_gate_token(struct draft_gate *gate, const bool in_part[DRAFT_HEADS])
{
    for (uint32_t i = 0; i < DRAFT_HEADS; i++)
        gate->covered[i] += TOKEN_SHARE * ((in_part[i] ? 1 : 0) - gate->covered[i]);
}

/* ---- results --------------------------------------------------------------------------------- */

void draft_gate_result(struct draft_gate *gate, enum draft_source source, uint32_t sure,
                       uint32_t at, bool is_right)
{
    assert(at < SEQUENCE_DRAFTS && sure < DRAFT_SURE);
    struct draft_record *r = &gate->records[source][at];
    const double seen = ++r->n_checked[sure] + FIRST_WEIGHT;
    const double share = seen < 1 / RESULT_SHARE ? 1 / seen : RESULT_SHARE;
    r->right[sure] += share * ((is_right ? 1 : 0) - r->right[sure]);
}

static void note_sure(struct draft_record *r, uint32_t sure)
{
    const double seen = ++r->n_seen + 1; /* the first expectation counts as one */
    const double share = seen < 1 / OFTEN_SHARE ? 1 / seen : OFTEN_SHARE;
    for (uint32_t c = 0; c < DRAFT_SURE; c++)
        r->often[c] += share * ((c == sure ? 1 : 0) - r->often[c]);
}

/* Returns the number of tokens that n drafts will probably give. */
static double expected(const struct draft_gate *gate, enum draft_source source, uint32_t sure,
                       uint32_t n)
{
    double all = 0, right = 1;
    for (uint32_t i = 0; i < n; i++) {
        right *= gate->records[source][i].right[sure];
        all += right;
    }
    return all;
}

/* ---- drafts that are there ------------------------------------------------------------------- */

/* Returns the number of drafts with the most tokens per time. */
static uint32_t best_number(const struct draft_gate *gate, enum draft_source source, uint32_t sure,
                            const struct draft_pass *pass, uint32_t n)
{
    double best_rate = MARGIN * pass->n_tokens / time_of(gate, pass->n_rows);
    uint32_t best = 0;
    for (uint32_t i = 1; i <= n; i++) {
        const double rate = (pass->n_tokens + expected(gate, source, sure, i)) /
                            time_of(gate, pass->n_rows + i);
        if (rate > best_rate) {
            best = i;
            best_rate = rate;
        }
    }
    return best;
}

/* Returns whether to try one draft of a source, now that none is worth it. */
static bool is_tried(const struct draft_gate *gate, struct draft_pass *pass,
                     enum draft_source source)
{
    const struct draft_tries *tries = &gate->tries[source];
    const bool is_due = tries->n_refused + 1 >= tries->patience && !pass->is_tried[source];
    pass->is_refused[source] = true;
    pass->is_tried[source] |= is_due;
    return is_due;
}

/* Changes the best number now and then, so that the gate notices when another becomes better. */
static uint32_t probed(const struct draft_gate *gate, struct draft_pass *pass,
                       enum draft_source source, uint32_t best, uint32_t n)
{
    if (best == 0)
        return is_tried(gate, pass, source) ? 1 : 0;
    pass->is_worth[source] = true;
    if (!pass->has_other_depth)
        return best;
    pass->has_other_depth = false;
    return best < n ? best + 1 : best > 1 ? best - 1 : best;
}

/* ---- drafts of the model's own block --------------------------------------------------------- */

/* Returns the time that a token takes without further drafts: so much is one worth. */
static double token_time(const struct draft_gate *gate, const struct draft_pass *pass)
{
    return time_of(gate, pass->n_rows) / pass->n_tokens;
}

/* Returns the time that making draft `at` and computing it, if it turns out to be worth it, will
 * probably gain, and likewise `more` further ones; it may be a loss. All before it are right with
 * the probability is_right. Making one costs the session so much. */
static double chain_gain(const struct draft_gate *gate, const struct draft_pass *pass, uint32_t at,
                         double is_right, uint32_t more, double cost)
{
    const struct draft_record *r = &gate->records[DRAFT_PREDICTED][at];
    const uint32_t n_rows = pass->n_rows + 1;
    const double token = token_time(gate, pass);
    const double row = time_of(gate, n_rows) - time_of(gate, n_rows - 1);
    double gain = -cost;
    for (uint32_t c = 0; c < DRAFT_SURE; c++) {
        const double right = is_right * r->right[c];
        double one = right * token - row;
        if (more > 0 && n_rows < DRAFT_ROWS) {
            const struct draft_pass next = {.n_rows = n_rows,
                                            .n_tokens = time_of(gate, n_rows) / token};
            const double further = chain_gain(gate, &next, at + 1, right, more - 1, cost);
            one += further > 0 ? further : 0;
        }
        gain += one > 0 ? r->often[c] * one : 0;
    }
    return gain;
}

/* Returns the share of the next drafts that will be right. */
static double mean_right(const struct draft_gate *gate)
{
    const struct draft_record *r = &gate->records[DRAFT_PREDICTED][0];
    double sum = 0;
    for (uint32_t c = 0; c < DRAFT_SURE; c++)
        sum += r->often[c] * r->right[c];
    return sum;
}

/* Chooses the part of the vocabulary in which drafts take the least time, with the tokens that they
 * miss there. The largest and the smallest are timed first; now and then another one is. */
static uint32_t best_head(struct draft_gate *gate, const struct draft_pass *pass)
{
    const double token = token_time(gate, pass), right = mean_right(gate) * pass->n_chains;
    uint32_t best = DRAFT_HEADS - 1;
    double best_cost = 0;
    for (uint32_t i = DRAFT_HEADS; i-- > 0;) {
        const double cost = predictions_of(gate, i, pass->n_chains) +
                            right * (1 - gate->covered[i]) * token;
        if (gate->n_predicted[i] < N_COLD && (i == 0 || i == DRAFT_HEADS - 1))
            return i;
        if (i == DRAFT_HEADS - 1 || cost < best_cost) {
            best = i;
            best_cost = cost;
        }
    }
    return ++gate->n_chains % HEAD_PROBE != 0 ? best : best > 0 ? best - 1 : best + 1;
}

/* Looks so many drafts further than the next one: others matter little, and take time. */
#define LOOK_FURTHER 1

static double gain_of(const struct draft_gate *gate, const struct draft_pass *pass, uint32_t at,
                      double is_right, uint32_t n, double cost)
{
    const uint32_t more = n - at - 1;
    return chain_gain(gate, pass, at, is_right, more < LOOK_FURTHER ? more : LOOK_FURTHER, cost);
}

/* Returns whether to try one draft because little is known yet. */
static bool is_lesson(struct draft_gate *gate)
{
    if (gate->n_lessons == N_LESSONS ||
        (gate->tries[DRAFT_PREDICTED].n_refused + 1) % LESSON != 0)
        return false;
    gate->n_lessons++;
    return true;
}

/* Returns whether the first draft of a chain is a try: it is computed whatever it seems worth. */
static bool takes_try(struct draft_pass *pass, uint32_t at)
{
    const bool is_try = at == 0 && pass->has_try;
    pass->has_try &= !is_try;
    return is_try;
}

/* Returns how many drafts the gate lets a session have: none before the time without them is
 * known. */
static uint32_t max_drafts(const struct draft_gate *gate, const struct draft_pass *pass, uint32_t n)
{
    const uint32_t room = pass->n_rows < DRAFT_ROWS ? DRAFT_ROWS - pass->n_rows : 0;
    if (!gate->is_open && (gate->row_ns == 0 || pass->is_plain))
        return 0;
    return n < room ? n : room;
}

uint32_t draft_gate_chains(struct draft_gate *gate, struct draft_pass *pass, uint32_t n_sessions,
                           uint32_t n)
{
    const uint32_t most = max_drafts(gate, pass, n);
    pass->n_chains = most > 0 && !pass->is_unpredicted ? n_sessions : 0;
    if (pass->n_chains == 0 || gate->is_open)
        return pass->is_unpredicted ? 0 : most;
    gate->head = best_head(gate, pass);
    const double gain = gain_of(gate, pass, 0, 1, most, share_of(gate, n_sessions));
    if (n_sessions * gain > CHAIN_MARGIN * time_of(gate, pass->n_rows)) {
        pass->is_worth[DRAFT_PREDICTED] = true;
        return most;
    }
    pass->has_try = is_tried(gate, pass, DRAFT_PREDICTED) || is_lesson(gate);
    pass->n_chains = pass->has_try ? 1 : 0;
    return pass->n_chains;
}

/* A chain is to go on, and will gain so much before the prediction is paid. */
static enum draft_verdict go_on(struct draft_pass *pass, double gain)
{
    pass->n_going++;
    pass->going_gain += gain;
    return DRAFT_GO_ON;
}

/* Ends a chain, or has it go on all the same as a probe. */
static enum draft_verdict stop(struct draft_pass *pass)
{
    pass->is_stopped = true;
    if (!pass->has_longer_chain)
        return DRAFT_STOP;
    pass->has_longer_chain = false;
    pass->must_go_on = true;
    return go_on(pass, 0);
}

enum draft_verdict draft_gate_judge(struct draft_gate *gate, struct draft_chain *chain,
                                    uint32_t sure, struct draft_pass *pass, uint32_t n)
{
    const uint32_t at = chain->n;
    struct draft_record *r = &gate->records[DRAFT_PREDICTED][at];
    assert(at < n && n <= SEQUENCE_DRAFTS && sure < DRAFT_SURE);
    note_sure(r, sure);
    if (pass->n_rows >= DRAFT_ROWS)
        return DRAFT_DROP;
    assert(pass->n_chains > 0);
    const double token = token_time(gate, pass), right = chain->is_right * r->right[sure];
    const double row = time_of(gate, pass->n_rows + 1) - time_of(gate, pass->n_rows);
    const struct draft_pass next = {.n_rows = pass->n_rows + 1,
                                    .n_tokens = pass->n_tokens + right};
    const bool has_more = at + 1 < n && next.n_rows < DRAFT_ROWS;
    const double cost = share_of(gate, pass->n_chains);
    const double further = has_more ? gain_of(gate, &next, at + 1, right, n, cost) : 0;
    const bool is_due = takes_try(pass, at) || gate->is_open;
    if (!is_due && right * token - row + (further > 0 ? further : 0) <= 0 &&
        ++gate->n_cut % CUT_PROBE != 0)
        return DRAFT_DROP;
    chain->n++;
    chain->is_right = right;
    pass->n_rows = next.n_rows;
    pass->n_tokens = next.n_tokens;
    if (!has_more)
        return DRAFT_STOP;
    return gate->is_open || further > 0 ? go_on(pass, further + cost) : stop(pass);
}

bool draft_gate_goes_on(const struct draft_gate *gate, struct draft_pass *pass)
{
    const double gain = pass->going_gain;
    const bool must_go_on = pass->must_go_on || gate->is_open;
    pass->n_predictions += time_of(gate, pass->n_chains);
    pass->n_chains = pass->n_going;
    pass->n_going = 0;
    pass->going_gain = 0;
    pass->must_go_on = false;
    return pass->n_chains > 0 &&
           (must_go_on || gain > predictions_of(gate, gate->head, pass->n_chains));
}

void draft_gate_spent(struct draft_gate *gate, uint32_t n_sessions, uint64_t n_tokens, uint64_t ns,
                      bool counts)
{
    draft_trials_note(&gate->trials, n_sessions, n_tokens, ns, counts && !gate->is_open);
}

/* ---- the decision ---------------------------------------------------------------------------- */

void draft_gate_begin(struct draft_gate *gate, struct draft_pass *pass, uint32_t n_sessions)
{
    const bool is_plain = !gate->is_open && draft_trials_begin(&gate->trials, n_sessions);
    *pass = (struct draft_pass){
        .n_rows = n_sessions, .n_tokens = n_sessions, .n_sessions = n_sessions,
        .is_plain = gate->n_accepted + 1 >= PLAIN_PROBE,
        .is_unpredicted = is_plain,
        .has_other_depth = (gate->n_depths + 1) % DEPTH_PROBE == DEPTH_PROBE / 2,
        .has_longer_chain = (gate->n_stops + 1) % CHAIN_PROBE == 0,
    };
}

uint32_t draft_gate_choose(struct draft_gate *gate, enum draft_source source, uint32_t sure,
                           struct draft_pass *pass, uint32_t n)
{
    const uint32_t most = max_drafts(gate, pass, n);
    if (most == 0)
        return 0;
    const uint32_t best = best_number(gate, source, sure, pass, most);
    const uint32_t chosen = gate->is_open ? most : probed(gate, pass, source, best, most);
    pass->n_rows += chosen;
    pass->n_tokens += expected(gate, source, sure, chosen);
    return chosen;
}

/* Counts the passes in which drafts of a source were not worth it. */
static void end_tries(struct draft_tries *tries, bool is_worth, bool is_tried, bool is_refused)
{
    if (is_worth) {
        *tries = (struct draft_tries){.patience = FIRST_PATIENCE};
    } else if (is_tried) {
        tries->n_refused = 0;
        tries->patience = tries->patience < PATIENCE ? 2 * tries->patience : PATIENCE;
    } else {
        tries->n_refused += is_refused;
    }
}

void draft_gate_end(struct draft_gate *gate, const struct draft_pass *pass)
{
    bool is_any_worth = false, is_other_worth = false, is_any_refused = false;
    for (uint32_t s = 0; s < N_DRAFT_SOURCES; s++) {
        end_tries(&gate->tries[s], pass->is_worth[s], pass->is_tried[s], pass->is_refused[s]);
        is_any_worth |= pass->is_worth[s];
        is_other_worth |= pass->is_worth[s] && s != DRAFT_PREDICTED;
        is_any_refused |= pass->is_refused[s];
    }
    gate->n_accepted = pass->n_rows > pass->n_sessions ? gate->n_accepted + 1 : 0;
    const bool is_over = is_any_refused && !is_any_worth;
    gate->n_depths = is_over ? 0 : gate->n_depths + is_other_worth;
    gate->n_stops = is_over ? 0 : gate->n_stops + pass->is_stopped;
}
