#include "engine/pressure.h"

/* Tasks that wait for memory more than a tenth of the time. */
#define STALL_SHARE 10
#define SECOND_NS 1000000000ull

static uint64_t min_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t above(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* A limit may have come down far below what the reserve was made for. */
static uint64_t reserve_of(const struct pressure *p, const struct plat_pressure *seen)
{
    return min_of(p->reserve, (seen->own + seen->available) / 10);
}

/* Returns whether hardly any memory is free. */
static bool is_scarce(const struct pressure *p, const struct plat_pressure *seen)
{
    return seen->available < reserve_of(p, seen) / 4;
}

/* Returns how much the budget shrinks: a quarter of what can go for every second of pressure. */
static uint64_t cut_of(const struct pressure *p, uint64_t elapsed_ns)
{
    const uint64_t ms = min_of(elapsed_ns, SECOND_NS) / 1000000;
    return above(p->budget, p->min) / 4 / 1000 * ms;
}

static bool is_stalled(uint64_t stall_us, uint64_t last_us, uint64_t elapsed_ns)
{
    return above(stall_us, last_us) * 1000 > elapsed_ns / STALL_SHARE;
}

/* Returns whether tasks wait for memory that this budget could give back. Stalls of the own cgroup
 * count while less than four reserves are free: a small page cache makes its readers wait, too.
 * Stalls of others count only when the reserve is touched: they may have limits of their own. */
static bool tasks_wait(const struct pressure *p, uint64_t elapsed_ns,
                       const struct plat_pressure *seen)
{
    const uint64_t reserve = reserve_of(p, seen);
    const uint64_t spare = above(seen->own + seen->available, p->budget);
    if (p->ignores_stalls)
        return false;
    return (spare / 4 < reserve && is_stalled(seen->stall_us, p->last.stall_us, elapsed_ns)) ||
           (seen->available < reserve &&
            is_stalled(seen->machine_stall_us, p->last.machine_stall_us, elapsed_ns));
}

/* Returns what the budget must shrink to, or the budget itself when there is no pressure. */
static uint64_t shrunk(const struct pressure *p, uint64_t now_ns, const struct plat_pressure *seen)
{
    const uint64_t fits = seen->own + seen->available;
    const uint64_t spare = above(fits, p->budget);
    const uint64_t reserve = reserve_of(p, seen);
    uint64_t target = p->budget;
    if (!p->has_last)
        return spare < reserve / 2 ? above(fits, reserve) : target;
    if (is_scarce(p, seen)) /* others are waiting for more than can be seen */
        return above(fits, 2 * reserve);
    /* Page cache can fill a group to its limit too: that alone is no pressure. */
    const bool has_hit = seen->n_limit_hits > p->last.n_limit_hits;
    if (spare < reserve / 2 || (has_hit && spare < reserve))
        target = above(fits, reserve);
    const uint64_t elapsed_ns = above(now_ns, p->last_ns);
    if (tasks_wait(p, elapsed_ns, seen) || seen->n_kills > p->last.n_kills)
        target = min_of(target, above(p->budget, cut_of(p, elapsed_ns)));
    return target;
}

static uint64_t grown(struct pressure *p, uint64_t now_ns, const struct plat_pressure *seen)
{
    const uint64_t fits = seen->own + seen->available;
    const uint64_t step = min_of(p->max, fits) / PRESSURE_GROW_SHARE;
    const uint64_t wanted = above(p->max, p->budget);
    const uint64_t spare = above(fits, p->budget + reserve_of(p, seen));
    if (wanted == 0 || spare < min_of(step, wanted) ||
        above(now_ns, p->pressed_ns) < PRESSURE_CALM_NS ||
        above(now_ns, p->grown_ns) < PRESSURE_GROW_NS)
        return p->budget;
    p->grown_ns = now_ns;
    return p->budget + min_of(step, wanted);
}

uint64_t pressure_follow(struct pressure *p, uint64_t now_ns, const struct plat_pressure *seen,
                         bool *is_urgent)
{
    const uint64_t target = shrunk(p, now_ns, seen);
    if (!p->has_last || target < p->budget)
        p->pressed_ns = now_ns;
    *is_urgent = target < p->budget && is_scarce(p, seen);
    if (target < p->budget)
        p->budget = target > p->min ? target : min_of(p->min, p->budget);
    else
        p->budget = grown(p, now_ns, seen);
    p->has_last = true;
    p->last_ns = now_ns;
    p->last = *seen;
    return p->budget;
}

uint64_t pressure_raised(const struct pressure *p, const struct plat_pressure *seen)
{
    return p->budget + min_of(above(p->max, p->budget), seen->available / 2);
}
