/* The way between the host's memory and a device's. Transfers run beside the device's queue, one
 * after the other, while operations and the host go on. Whoever starts a transfer leaves both
 * pieces alone until it is over: operations that use them are queued after memory_join, the host
 * waits with memory_settle, and a transfer into a piece that queued operations use waits for a mark
 * behind them.
 *
 * Everything here belongs to the thread that drives the model. */
#ifndef FLASHMOE_BASE_LINK_H
#define FLASHMOE_BASE_LINK_H

#include "base/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

struct memory_link {
    /* Returns a mark behind all operations queued so far, and has the device start on them. */
    uint64_t (*mark)(const struct memory *m);
    /* Copies from the host's memory to the device's or back, after the operations before the mark;
     * 0: after none. */
    void (*transfer)(const struct memory *m, void *to, const void *from, uint64_t bytes,
                     uint64_t mark);
    /* Makes operations that are queued from now on wait for all transfers so far. */
    void (*join)(const struct memory *m);
    /* Waits until all transfers are over. */
    void (*settle)(const struct memory *m);
    /* Copies whole words from the host's memory as an operation of the queue. */
    void (*upload)(const struct memory *m, void *to, const void *from, uint64_t bytes);
    /* Copies n pieces of the same size as one operation of the queue: piece numbers[i] of what
     * begins at `from`, in locked pages, to the same place behind `to`. The host leaves them alone
     * until the operation is done. */
    void (*bring)(const struct memory *m, void *to, const void *from, uint64_t piece_bytes,
                  const uint32_t *numbers, uint32_t n);
    /* Copies to the host's memory as an operation of the queue. */
    void (*download)(const struct memory *m, void *to, const void *from, uint64_t bytes);
    /* Locks whole pages of the host's memory, so that transfers of them are fast. Returns false if
     * the system refuses; then they are slower. */
    bool (*pin)(const struct memory *m, void *at, uint64_t bytes);
    void (*unpin)(const struct memory *m, void *at, uint64_t bytes);
};

#ifdef __cplusplus
}
#endif
#endif
