/* The way between the host's memory and a device's. Transfers run beside the device's queue, one
 * after the other, while operations and the host go on. Sends among them need not wait for each
 * other. Whoever starts a transfer leaves both
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

/* Pieces of the host's locked pages: number numbers[i] of those that begin at `from`. The host
 * leaves them alone until they are copied. With a gate, a word of locked pages too, it may still
 * write them: the device waits until the word has reached opens_at, counted round. Some thread must
 * write it then, whatever the others wait for. */
struct link_pieces {
    const void *from;
    uint64_t bytes; /* of each */
    const uint32_t *numbers;
    uint32_t n;
    const uint32_t *gate; /* NULL: none */
    uint32_t opens_at;
};

struct memory_link {
    /* Has the device start on the operations queued so far. */
    void (*start)(const struct memory *m);
    /* Returns a mark behind them, and has the device start on them. */
    uint64_t (*mark)(const struct memory *m);
    /* Copies from the host's memory to the device's or back, after the operations before the mark;
     * 0: after none. */
    void (*transfer)(const struct memory *m, void *to, const void *from, uint64_t bytes,
                     uint64_t mark);
    /* The same from the host's memory to a piece that no transfer under way uses: it may overtake
     * other sends, but nothing else. */
    void (*send)(const struct memory *m, void *to, const void *from, uint64_t bytes,
                 uint64_t mark);
    /* Makes operations that are queued from now on wait for all transfers so far. */
    void (*join)(const struct memory *m);
    /* Waits until all transfers are over. */
    void (*settle)(const struct memory *m);
    /* Returns whether they are, without waiting. */
    bool (*is_settled)(const struct memory *m);
    /* Returns whether operations may read these locked pages where they are. */
    bool (*sees)(const struct memory *m, const void *at, uint64_t bytes);
    /* Copies whole words from the host's memory as an operation of the queue. */
    void (*upload)(const struct memory *m, void *to, const void *from, uint64_t bytes);
    /* Copies pieces as one operation of the queue, each to the same place behind `to`. */
    void (*bring)(const struct memory *m, void *to, const struct link_pieces *pieces);
    /* Returns whether pieces may have a gate. */
    bool (*has_gates)(const struct memory *m);
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
