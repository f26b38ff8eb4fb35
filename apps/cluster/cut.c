#include "apps/cluster/cut.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- one stage ------------------------------------------------------------------------------- */

double cut_hit_rate(const struct cut_curve *c, double share)
{
    if (c->n_points == 0 || share >= 1)
        return 1;
    unsigned i = 0;
    while (i < c->n_points && c->shares[i] < share)
        i++;
    if (i == c->n_points)
        return c->hits[i - 1] + (1 - c->hits[i - 1]) * (share - c->shares[i - 1]) /
                                    (1 - c->shares[i - 1]);
    const double low_share = i > 0 ? c->shares[i - 1] : 0, low = i > 0 ? c->hits[i - 1] : 0;
    const double width = c->shares[i] - low_share;
    return width > 0 ? low + (c->hits[i] - low) * (share - low_share) / width : c->hits[i];
}

static void add(struct cut_layer *sum, const struct cut_layer *l)
{
    sum->dense += l->dense;
    sum->dense_token += l->dense_token;
    sum->experts += l->experts;
    sum->expert_token += l->expert_token;
    sum->kv += l->kv;
    sum->kv_token += l->kv_token;
    sum->mul_adds += l->mul_adds;
}

/* Computes a stage from the sums of its layers. */
static bool stage_of_sum(const struct cut_problem *p, unsigned rank, const struct cut_layer *sum,
                         struct cut_stage *s)
{
    const struct cut_machine *m = &p->machines[rank];
    const double beside = p->overhead_bytes + sum->dense + sum->kv;
    s->need_bytes = beside + sum->expert_token; /* as the engine: one token's experts have slots */
    s->experts_bytes = sum->experts;
    s->cache_bytes = m->memory_bytes - beside;
    s->cache_bytes = s->cache_bytes < sum->experts ? s->cache_bytes : sum->experts;
    s->share = sum->experts > 0 ? s->cache_bytes / sum->experts : 1;
    s->hit_rate = s->share > 0 ? cut_hit_rate(&p->curve, s->share) : 0;
    struct limit_load load = {
        .expert_bytes = sum->expert_token, .dense_bytes = sum->dense_token,
        .kv_bytes = sum->kv_token, .miss_bytes = (1 - s->hit_rate) * sum->expert_token,
        .mul_adds = sum->mul_adds, .disk_per_s = m->disk_per_s, .memory_per_s = m->memory_per_s,
        .mul_adds_per_s = m->mul_adds_per_s};
    limit_of(&load, 0, &s->limit);
    s->min_s = s->limit.max_per_s > 0 ? 1 / s->limit.max_per_s : 0;
    s->max_s = s->limit.min_per_s > 0 ? 1 / s->limit.min_per_s : 0;
    return s->need_bytes <= m->memory_bytes;
}

bool cut_stage_of(const struct cut_problem *p, unsigned rank, unsigned first, unsigned n,
                  struct cut_stage *s)
{
    struct cut_layer sum = {0};
    *s = (struct cut_stage){.first_layer = first, .n_layers = n};
    if (rank == 0)
        add(&sum, &p->head);
    for (unsigned i = first; i < first + n; i++)
        add(&sum, &p->layers[i]);
    return stage_of_sum(p, rank, &sum, s);
}

static double hop_of(const struct cut_problem *p, unsigned rank, unsigned n_ranks)
{
    const struct cut_machine *m = &p->machines[rank];
    if (n_ranks <= 1)
        return 0;
    return m->latency_s + (m->bytes_per_s > 0 ? p->message_bytes / m->bytes_per_s : 0);
}

/* ---- a given cut ----------------------------------------------------------------------------- */

static int explain(const struct cut_problem *p, unsigned rank, const struct cut_stage *s,
                   struct fm_error *err)
{
    return err_set(err, FM_ERR_BUDGET, "rank %u (%s) has %.2f GB for layers %u to %u, and they "
                   "need %.2f GB at least", rank, p->machines[rank].host,
                   p->machines[rank].memory_bytes / 1e9, s->first_layer,
                   s->first_layer + s->n_layers - 1, s->need_bytes / 1e9);
}

int cut_of(const struct cut_problem *p, const unsigned *n_layers, unsigned n_ranks,
           struct cut *cut, struct fm_error *err)
{
    unsigned first = 0;
    *cut = (struct cut){.n_ranks = n_ranks};
    for (unsigned r = 0; r < n_ranks; r++) {
        struct cut_stage *s = &cut->stages[r];
        if (!cut_stage_of(p, r, first, n_layers[r], s))
            return explain(p, r, s, err);
        s->hop_s = hop_of(p, r, n_ranks);
        cut->hops_s += s->hop_s;
        cut->min_s += s->min_s + s->hop_s;
        cut->max_s += s->max_s + s->hop_s;
        if (s->max_s > cut->stages[cut->slowest_stage].max_s)
            cut->slowest_stage = r;
        if (s->hop_s > cut->stages[cut->slowest_hop].hop_s)
            cut->slowest_hop = r;
        first += n_layers[r];
    }
    return 0;
}

/* ---- the best one ---------------------------------------------------------------------------- */

/* Times of all stages, and tables of a search. */
struct search {
    const struct cut_problem *p;
    unsigned n_ranks, n_layers;
    double *seconds; /* [n_ranks, n_layers, n_layers + 1]: of layers [first, end); INFINITY */
    double *best;    /* [n_ranks, n_layers + 1]: of the first ranks with layers [0, end) */
    unsigned *firsts; /* likewise: where the last of these ranks begins */
};

static double *seconds_at(const struct search *s, unsigned rank, unsigned first, unsigned end)
{
    return &s->seconds[((size_t)rank * s->n_layers + first) * (s->n_layers + 1) + end];
}

static void fill_seconds(struct search *s)
{
    for (unsigned r = 0; r < s->n_ranks; r++)
        for (unsigned first = 0; first < s->n_layers; first++) {
            struct cut_layer sum = {0};
            if (r == 0)
                add(&sum, &s->p->head);
            for (unsigned end = first + 1; end <= s->n_layers; end++) {
                struct cut_stage stage;
                add(&sum, &s->p->layers[end - 1]);
                const bool fits = stage_of_sum(s->p, r, &sum, &stage);
                *seconds_at(s, r, first, end) = fits ? stage.max_s : INFINITY;
            }
        }
}

/* Returns the smallest sum of stages that take at most `limit_s` each; INFINITY: there is none. */
static double find_sum(struct search *s, double limit_s)
{
    const unsigned n = s->n_layers + 1;
    for (unsigned r = 0; r < s->n_ranks; r++)
        for (unsigned end = 0; end <= s->n_layers; end++) {
            double best = INFINITY;
            unsigned from = 0;
            for (unsigned first = r == 0 ? 0 : r; first < end; first++) {
                const double own = *seconds_at(s, r, first, end);
                const double before = r > 0 ? s->best[(r - 1) * n + first] : 0;
                if (own <= limit_s && before + own < best) {
                    best = before + own;
                    from = first;
                }
                if (r == 0)
                    break; /* the first rank begins with layer 0 */
            }
            s->best[r * n + end] = best;
            s->firsts[r * n + end] = from;
        }
    return s->best[(s->n_ranks - 1) * n + s->n_layers];
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Finds the smallest time of the slowest stage whose sum is within the tolerance. */
static double find_limit(struct search *s, double max_sum, double *times)
{
    const size_t n_all = (size_t)s->n_ranks * s->n_layers * (s->n_layers + 1);
    size_t n = 0;
    for (size_t i = 0; i < n_all; i++)
        if (s->seconds[i] > 0 && isfinite(s->seconds[i]))
            times[n++] = s->seconds[i];
    qsort(times, n, sizeof *times, compare);
    size_t low = 0, high = n > 0 ? n - 1 : 0; /* times[high] works */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (find_sum(s, times[middle]) <= max_sum)
            high = middle;
        else
            low = middle + 1;
    }
    return n > 0 ? times[high] : INFINITY;
}

/* Says why nothing fits: with all memory together, or with the smallest machine. */
static int nothing_fits(const struct cut_problem *p, unsigned n_ranks, struct fm_error *err)
{
    struct cut_layer all = {0};
    double memory = 0;
    add(&all, &p->head);
    for (unsigned i = 0; i < p->n_layers; i++)
        add(&all, &p->layers[i]);
    for (unsigned r = 0; r < n_ranks; r++)
        memory += p->machines[r].memory_bytes;
    return err_set(err, FM_ERR_BUDGET, "the model does not fit %u machine%s: it needs %.2f GB "
                   "(%.2f GB of dense weights, %.2f GB of one token's experts, %.2f GB of keys, "
                   "values and state, %.2f GB of program and scratch on each), and they have %.2f "
                   "GB together; a layer must fit a machine as a whole", n_ranks,
                   n_ranks == 1 ? "" : "s",
                   (all.dense + all.expert_token + all.kv + n_ranks * p->overhead_bytes) / 1e9,
                   all.dense / 1e9, all.expert_token / 1e9, all.kv / 1e9, p->overhead_bytes / 1e9,
                   memory / 1e9);
}

static int run_search(struct search *s, double *times, struct cut *cut, struct fm_error *err)
{
    unsigned n_layers[CUT_RANKS];
    fill_seconds(s);
    const double best = find_sum(s, INFINITY);
    if (!isfinite(best))
        return nothing_fits(s->p, s->n_ranks, err);
    const double limit_s = find_limit(s, best * (1 + CUT_TOLERANCE), times);
    (void)find_sum(s, limit_s);
    unsigned end = s->n_layers;
    for (unsigned r = s->n_ranks; r-- > 0;) {
        const unsigned first = s->firsts[r * (s->n_layers + 1) + end];
        n_layers[r] = end - first;
        end = first;
    }
    return cut_of(s->p, n_layers, s->n_ranks, cut, err);
}

int cut_find(const struct cut_problem *p, unsigned n_ranks, struct cut *cut,
             struct fm_error *err)
{
    const size_t n = (size_t)n_ranks * p->n_layers * (p->n_layers + 1);
    const size_t n_best = (size_t)n_ranks * (p->n_layers + 1);
    if (n_ranks > p->n_layers)
        return err_set(err, FM_ERR_ARG, "%u ranks are too many for the %u layers of the model",
                       n_ranks, p->n_layers);
    struct search s = {.p = p, .n_ranks = n_ranks, .n_layers = p->n_layers};
    s.seconds = mem_new(n, sizeof *s.seconds, "the plan", err);
    s.best = mem_new(n_best, sizeof *s.best, "the plan", err);
    s.firsts = mem_new(n_best, sizeof *s.firsts, "the plan", err);
    double *times = mem_new(n, sizeof *times, "the plan", err);
    int rc = s.seconds == NULL || s.best == NULL || s.firsts == NULL || times == NULL
                 ? FM_ERR_NOMEM : run_search(&s, times, cut, err);
    mem_free(s.seconds);
    mem_free(s.best);
    mem_free(s.firsts);
    mem_free(times);
    return rc;
}
