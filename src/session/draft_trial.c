#include "session/draft_trial.h"

#include <stddef.h>

/* Passes that are timed together, and how many such stretches lie between two trials. The first
 * trials come soon. A trial that is a fifth slower costs 2 % then. */
#define STRETCH 24
#define EARLY 2
#define EVERY 14
#define N_EARLY 3
/* Passes after a change of the way that do not count: the cache has experts of the other one. */
#define SETTLE 6
/* Share of a trial in what is remembered, and how much one can say at most. */
#define GAIN_SHARE 0.4
#define GAIN_MAX 0.5

static uint32_t kind_of(uint32_t n_sessions)
{
    uint32_t kind = 0;
    while (kind + 1 < DRAFT_TRIALS && n_sessions > 1u << kind)
        kind++;
    return kind;
}

static bool goes_plain(const struct draft_trial *t)
{
    return t->is_plain != t->is_other_way;
}

/* A stretch on the other way is over, with this rate. */
static void end_trial(struct draft_trial *t, double rate)
{
    const double drafted = t->is_plain ? rate : t->rate, plain = t->is_plain ? t->rate : rate;
    double gain = drafted / plain - 1;
    gain = gain > GAIN_MAX ? GAIN_MAX : gain < -GAIN_MAX ? -GAIN_MAX : gain;
    t->gain += (t->n_trials == 0 ? 1 : GAIN_SHARE) * (gain - t->gain);
    t->n_trials++;
    t->is_plain = t->gain < 0;
}

static void end_stretch(struct draft_trial *t)
{
    const double rate = t->n_tokens / t->ns;
    const bool was_plain = goes_plain(t);
    if (t->is_other_way) {
        end_trial(t, rate);
        t->is_other_way = false;
        t->n_stretches = 0;
    } else {
        t->rate = rate;
        t->is_other_way = ++t->n_stretches >= (t->n_trials < N_EARLY ? EARLY : EVERY);
    }
    t->n_unsettled = goes_plain(t) != was_plain ? SETTLE : 0;
    t->n_passes = 0;
    t->n_tokens = t->ns = 0;
}

/* The drafts of a stretch's last pass are taken behind it, so it ends when the next pass begins. */
bool draft_trials_begin(struct draft_trials *trials, uint32_t n_sessions)
{
    if (n_sessions == 0)
        return false;
    struct draft_trial *t = &trials->kinds[kind_of(n_sessions)];
    if (t->n_passes >= STRETCH && t->ns > 0)
        end_stretch(t);
    return goes_plain(t);
}

void draft_trials_note(struct draft_trials *trials, uint32_t n_sessions, uint64_t n_tokens,
                       uint64_t ns, bool counts)
{
    if (n_sessions > 0)
        trials->at_hand = counts ? &trials->kinds[kind_of(n_sessions)] : NULL;
    struct draft_trial *t = trials->at_hand;
    if (t != NULL && n_sessions > 0 && t->n_unsettled > 0) {
        t->n_unsettled--;
        trials->at_hand = NULL;
        return;
    }
    if (t == NULL)
        return; /* what follows are drafts of a pass that does not count */
    t->n_tokens += (double)n_tokens;
    t->ns += (double)ns;
    t->n_passes += n_sessions > 0;
}
