#include "store/disk_share.h"

#include <assert.h>

/* Speed is an average over about this many bytes. */
#define RECENT_BYTES (64ull << 20)
/* A disk that gets nothing because it was slow is tried again. The tries take at most this part of
 * the time that the other disks need meanwhile. */
#define TRY_PART (1.0 / 32)

/* Bytes per ns; 0: nothing was read yet. */
static double speed_of(const struct disk_load *disk)
{
    return disk->recent_ns > 0 ? (double)disk->recent_bytes / (double)disk->recent_ns : 0;
}

/* A disk that nothing is known of counts as fast as the fastest one. */
static double expected_speed(const struct disk_load *disk, double fastest)
{
    const double speed = speed_of(disk);
    return speed > 0 ? speed : fastest;
}

static double fastest_of(const struct disk_share *share)
{
    double fastest = 0;
    for (unsigned i = 0; i < share->n; i++)
        if (!share->disks[i].is_lost && speed_of(&share->disks[i]) > fastest)
            fastest = speed_of(&share->disks[i]);
    return fastest > 0 ? fastest : 1;
}

static bool deserves_try(const struct disk_load *disk, uint64_t bytes, double fastest)
{
    const double cost = (double)bytes / expected_speed(disk, fastest);
    return disk->n_in_flight == 0 && TRY_PART * (double)disk->skipped_bytes / fastest > cost;
}

/* Expected time until the operation is done. A needed one overtakes guesses. */
static double time_on(const struct disk_load *disk, uint64_t bytes, enum read_urgency urgency,
                      double fastest)
{
    uint64_t before = disk->waiting[READ_NEEDED];
    if (urgency != READ_NEEDED)
        before += disk->waiting[READ_GUESSED];
    return (double)(before + bytes) / expected_speed(disk, fastest);
}

unsigned disk_share_pick(const struct disk_share *share, uint64_t bytes, enum read_urgency urgency)
{
    const double fastest = fastest_of(share);
    double best_time = 0;
    unsigned best = share->n;
    for (unsigned i = 0; i < share->n; i++) {
        const struct disk_load *disk = &share->disks[i];
        if (disk->is_lost)
            continue;
        if (deserves_try(disk, bytes, fastest))
            return i;
        const double time = time_on(disk, bytes, urgency, fastest);
        if (best == share->n || time < best_time) {
            best = i;
            best_time = time;
        }
    }
    return best < share->n ? best : 0;
}

/* What is known of a disk that got nothing for long counts as much as one operation. */
static void age(struct disk_load *load, uint64_t bytes)
{
    if (load->skipped_bytes <= RECENT_BYTES || load->recent_bytes <= bytes)
        return;
    load->recent_ns = (uint64_t)((double)load->recent_ns * (double)bytes /
                                 (double)load->recent_bytes);
    load->recent_bytes = bytes;
}

void disk_share_begin(struct disk_share *share, unsigned disk, uint64_t bytes,
                      enum read_urgency urgency, uint64_t now_ns)
{
    assert(disk < share->n);
    struct disk_load *load = &share->disks[disk];
    if (load->n_in_flight++ == 0)
        load->since_ns = now_ns;
    age(load, bytes);
    load->waiting[urgency] += bytes;
    for (unsigned i = 0; i < share->n; i++)
        share->disks[i].skipped_bytes += bytes;
    load->skipped_bytes = 0;
}

void disk_share_end(struct disk_share *share, unsigned disk, uint64_t bytes,
                    enum read_urgency urgency, bool ok, uint64_t now_ns)
{
    assert(disk < share->n);
    struct disk_load *load = &share->disks[disk];
    assert(load->n_in_flight > 0 && load->waiting[urgency] >= bytes);
    load->n_in_flight--;
    load->waiting[urgency] -= bytes;
    /* Threads may get here in another order than they looked at the clock. */
    const uint64_t ns = now_ns > load->since_ns ? now_ns - load->since_ns : 0;
    load->since_ns += ns;
    load->busy_ns += ns;
    load->recent_ns += ns;
    if (!ok)
        return;
    load->bytes += bytes;
    load->recent_bytes += bytes;
    if (load->recent_bytes > RECENT_BYTES) {
        load->recent_bytes /= 2;
        load->recent_ns /= 2;
    }
}
