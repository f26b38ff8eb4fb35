/* Which disk reads what, for a model that several disks hold: how many bytes wait for each disk,
 * and how fast it has been. A read that any disk can serve goes to the one that is expected to
 * finish it first, so a disk twice as fast gets twice as many bytes.
 *
 * Plain arithmetic over times that the caller gives. The caller owns the struct and locks it. */
#ifndef FLASHMOE_STORE_DISK_SHARE_H
#define FLASHMOE_STORE_DISK_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "format/source.h"
#include "store/reader.h"

#ifdef __cplusplus
extern "C" {
#endif

struct disk_load {
    bool is_lost; /* it has failed: nothing goes there any more */
    unsigned n_in_flight;
    uint64_t waiting[2]; /* bytes of operations in flight, by enum read_urgency */
    uint64_t since_ns;   /* the time up to which busy_ns is counted, while something is in flight */
    uint64_t bytes, busy_ns; /* read so far, and in how much time with something in flight */
    uint64_t recent_bytes, recent_ns; /* the same, where older ones count less */
    uint64_t skipped_bytes; /* that other disks have got since this one got something */
};

struct disk_share {
    unsigned n;
    struct disk_load disks[SOURCE_MAX_DISKS];
};

/* Returns the disk for an operation that all disks can serve. Returns 0 when all are lost. */
unsigned disk_share_pick(const struct disk_share *share, uint64_t bytes,
                         enum read_urgency urgency);
/* Call when an operation is submitted, and when it is done. */
void disk_share_begin(struct disk_share *share, unsigned disk, uint64_t bytes,
                      enum read_urgency urgency, uint64_t now_ns);
void disk_share_end(struct disk_share *share, unsigned disk, uint64_t bytes,
                    enum read_urgency urgency, bool ok, uint64_t now_ns);

#ifdef __cplusplus
}
#endif
#endif
