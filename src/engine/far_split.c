/* Which experts in the host's memory are sent to the device, and which the processor computes. All
 * places give the same bits, so only time decides: what sending an expert and computing one take is
 * measured while the model runs. */
#include "engine/forward_internal.h"

/* How much a measurement changes what is believed. */
#define NEWEST 0.125
/* Every so many layers one more expert goes the way that seems slower: its time must be known. */
#define LOOK_EVERY 64
/* Before anything is measured: 12 GB/s and 6 GB/s. */
#define SEND_NS_PER_BYTE (1 / 12.0)
#define COMPUTE_NS_PER_BYTE (1 / 6.0)

void far_split_init(struct far *far, uint64_t expert_bytes)
{
    far->send_ns = SEND_NS_PER_BYTE * (double)expert_bytes;
    far->compute_ns = COMPUTE_NS_PER_BYTE * (double)expert_bytes;
}

static void learn(double *known_ns, double ns)
{
    *known_ns += NEWEST * (ns - *known_ns);
}

void far_note_sending(struct far *far, uint32_t n, uint64_t ns)
{
    learn(&far->send_ns, (double)ns / n);
}

void far_note_computing(struct far *far, uint64_t n_rows, uint64_t ns)
{
    learn(&far->compute_ns, (double)ns / (double)n_rows);
}

bool far_wants_sending(const struct far *far)
{
    return far->n_looks % LOOK_EVERY == 1;
}

void forward_far_stats(const struct forward *f, struct far_stats *stats)
{
    *stats = (struct far_stats){.n_computed = f->far.n_computed,
                                .send_ns = (uint64_t)f->far.send_ns,
                                .compute_ns = (uint64_t)f->far.compute_ns};
}

static uint32_t n_rows_of(const struct forward *f, const struct expert_item *item)
{
    const uint32_t expert = f->groups.chosen[item->index].expert;
    return f->groups.start[expert + 1] - f->groups.start[expert];
}

/* Each goes where it is over earlier. */
uint32_t far_choose_split(struct forward *f, const struct expert_item *items, uint32_t n)
{
    const struct far *far = &f->far;
    double send_ns = 0, compute_ns = 0;
    uint32_t first = 0, end = n;
    if (f->step.n_rows > FAR_ROWS)
        return n;
    const bool looks = f->far.n_looks++ % LOOK_EVERY == 0 && n > 1;
    while (first < end) {
        const double next_ns = compute_ns + far->compute_ns * n_rows_of(f, &items[end - 1]);
        if (send_ns + far->send_ns <= next_ns) {
            send_ns += far->send_ns;
            first++;
        } else {
            compute_ns = next_ns;
            end--;
        }
    }
    if (looks && (first == 0 || first == n))
        first = first == 0 ? 1 : n - 1;
    return first;
}
