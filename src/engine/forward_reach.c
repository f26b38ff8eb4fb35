/* Experts in the host's memory beside a device: who brings them? Either the device reads those that
 * its router chose over the link while it computes, and nobody waits for the host. Or the host
 * learns what was chosen, and the processor takes part (forward_far.c). Both give the same bits.
 * Which is faster depends on the link, the processor and how many experts are not in the device's
 * memory, so both are measured while the model runs. */
#include "base/plat.h"
#include "engine/forward_internal.h"

/* How much a measurement changes what is believed of the faster way, and of the other, which is
 * rarely measured. */
#define NEWEST 0.125
#define NEWEST_OF_OTHER 0.5
/* Passes of each kind before one is believed to be faster. */
#define FIRST_PASSES 4
/* Every so many passes the slower way is measured again; less often if it is far slower. */
#define LOOK_EVERY 64
#define LOOK_RARELY 256
#define FAR_SLOWER 1.5

static bool choose(const struct reach_times *t)
{
    if (t->n[0] < FIRST_PASSES || t->n[1] < FIRST_PASSES)
        return t->n[1] <= t->n[0];
    const bool best = t->ns[1] <= t->ns[0];
    const bool is_far = t->ns[!best] > FAR_SLOWER * t->ns[best];
    return t->n_passes % (is_far ? LOOK_RARELY : LOOK_EVERY) == 0 ? !best : best;
}

bool reach_begin(struct reach *reach, uint32_t n_rows, uint64_t n_misses)
{
    reach->times[n_rows].n_passes++;
    reach->begin_ns = plat_now_ns();
    reach->n_misses = n_misses;
    return choose(&reach->times[n_rows]);
}

/* Reads from a disk say nothing about either. */
void reach_end(struct reach *reach, uint32_t n_rows, bool is_reaching, uint64_t n_misses)
{
    struct reach_times *t = &reach->times[n_rows];
    if (n_misses != reach->n_misses)
        return;
    const double ns = (double)(plat_now_ns() - reach->begin_ns);
    const bool is_other = t->ns[is_reaching] > t->ns[!is_reaching];
    const double newest = t->n[is_reaching] == 0 ? 1 : is_other ? NEWEST_OF_OTHER : NEWEST;
    t->ns[is_reaching] += newest * (ns - t->ns[is_reaching]);
    t->n[is_reaching] += t->n[is_reaching] < FIRST_PASSES;
}
