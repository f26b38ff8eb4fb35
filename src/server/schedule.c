#include "server/schedule.h"

#include <assert.h>

static bool is_before(const struct schedule_entry *a, const struct schedule_entry *b)
{
    return a->due != b->due ? a->due < b->due : a->order < b->order;
}

/* Returns the prompt to read next that has no piece yet; NULL: there is none. */
static struct schedule_entry *next_prompt(struct schedule_entry *entries, size_t n)
{
    struct schedule_entry *first = NULL;
    for (size_t i = 0; i < n; i++)
        if (entries[i].n_piece == 0 && (first == NULL || is_before(&entries[i], first)))
            first = &entries[i];
    return first;
}

static size_t piece_of(const struct schedule_entry *entry, size_t n_max)
{
    size_t n = entry->n_left - 1;
    if (entry->n_stop > 0 && entry->n_stop < n)
        n = entry->n_stop;
    return n < n_max ? n : n_max;
}

void schedule_pass(struct schedule_entry *entries, size_t n, size_t n_max)
{
    size_t n_rest = n_max > 0 ? n_max : 1;
    struct schedule_entry *next;
    for (size_t i = 0; i < n; i++)
        entries[i].n_piece = schedule_is_single(&entries[i]) ? 1 : 0;
    while (n_rest > 0 && (next = next_prompt(entries, n)) != NULL) {
        next->n_piece = piece_of(next, n_rest);
        assert(next->n_piece > 0 && next->n_piece <= n_rest);
        n_rest -= next->n_piece;
    }
}

/* ---- the pace -------------------------------------------------------------------------------- */

/* The number aims at a little less than the limit: times vary from pass to pass. */
static double aim(const struct pace *p)
{
    return (double)(p->limit_ns - p->limit_ns / 8);
}

static size_t within(const struct pace *p, double n)
{
    const size_t min = p->n_max < PACE_MIN ? p->n_max : PACE_MIN;
    if (n < (double)min)
        return min;
    return n < (double)p->n_max ? (size_t)n : p->n_max;
}

void pace_init(struct pace *p, uint64_t limit_ns, size_t n_max)
{
    assert(n_max > 0);
    *p = (struct pace){.limit_ns = limit_ns, .n_max = n_max};
    p->n_tokens = within(p, PACE_MIN);
}

/* A pass of prompts alone says how long a token takes at best: half as many are tried first. */
static void learn_from_prompts(struct pace *p, size_t n_prompt, uint64_t took_ns)
{
    if (p->token_ns <= 0 && took_ns > 0)
        p->n_tokens = within(p, (double)n_prompt * aim(p) / (double)took_ns / 2);
}

/* Compares a pass with the one before, if their numbers differ enough. */
static void learn_slope(struct pace *p, double n, double ns)
{
    const double more = n - p->last_n, min = ns / n / 8, max = ns / n;
    if (p->last_n > 0 && (more > n / 4 || more < -p->last_n / 4)) {
        double slope = (ns - p->last_ns) / more;
        slope = slope < min ? min : slope > max ? max : slope;
        p->token_ns = p->token_ns > 0 ? (p->token_ns + slope) / 2 : slope;
    }
    p->last_n = n;
    p->last_ns = ns;
}

void pace_note(struct pace *p, size_t n_prompt, bool has_answers, uint64_t took_ns)
{
    if (n_prompt == 0)
        return;
    if (!has_answers) {
        learn_from_prompts(p, n_prompt, took_ns);
        return;
    }
    const bool was_known = p->token_ns > 0;
    learn_slope(p, (double)n_prompt, (double)took_ns + 1);
    if (p->token_ns <= 0) { /* another number tells more */
        p->n_tokens = within(p, 2 * (double)n_prompt);
        return;
    }
    const double rest = (double)took_ns - p->token_ns * (double)n_prompt;
    const double fixed = rest > 0 ? rest : 0;
    p->fixed_ns = was_known ? p->fixed_ns + (fixed - p->fixed_ns) / 4 : fixed;
    const double in_time = (aim(p) - p->fixed_ns) / p->token_ns;
    const double floor = p->fixed_ns / p->token_ns / 2;
    const double n = in_time > floor ? in_time : floor, now = (double)p->n_tokens;
    p->n_tokens = within(p, n < now / 2 ? now / 2 : n > 2 * now ? 2 * now : n);
}

/* ---- answers between the layers of a prompt ------------------------------------------------- */

/* Follows a time: at once if it is longer than before, slowly if it is shorter. */
static uint64_t follow(uint64_t ns, uint64_t now_ns)
{
    return now_ns > ns ? now_ns : ns - (ns - now_ns) / 8;
}

/* Times vary: a little less than the limit. */
static uint64_t aim_of(const struct turns *t)
{
    return t->limit_ns - t->limit_ns / 8;
}

void turns_begin(struct turns *t)
{
    t->looked_ns = 0;
}

bool turns_look(struct turns *t, uint64_t now_ns)
{
    const bool is_first = t->looked_ns == 0;
    if (!is_first)
        t->layer_ns = follow(t->layer_ns, now_ns - t->looked_ns);
    t->looked_ns = now_ns;
    return is_first || now_ns + t->layer_ns + t->answers_ns > t->answered_ns + aim_of(t);
}

void turns_note(struct turns *t, uint64_t begin_ns, uint64_t end_ns)
{
    t->answers_ns = follow(t->answers_ns, end_ns - begin_ns);
    t->answered_ns = end_ns;
    if (t->looked_ns > 0)
        t->looked_ns = end_ns;
}

uint64_t turns_layer_max_ns(const struct turns *t)
{
    const uint64_t min = t->limit_ns / 4;
    return t->answers_ns + min < aim_of(t) ? aim_of(t) - t->answers_ns : min;
}
