/* Measures how fast a store reads random experts from the disk, as decode does, with as many in
 * flight as asked for. When the store reads through the page cache, the experts of a pass are
 * dropped from it first, and the store must drop what it reads (STORE_PAGES_DROPPED): then all
 * bytes come from the disk. Allocates its own memory and frees it. Any thread may call this; other
 * disk traffic makes the figures meaningless. */
#ifndef FLASHMOE_STORE_READER_MEASURE_H
#define FLASHMOE_STORE_READER_MEASURE_H

#include "store/expert_store.h"

#ifdef __cplusplus
extern "C" {
#endif

#define READER_PASSES_MAX 16

struct reader_measurement {
    unsigned n_experts_at_a_time;
    bool in_groups; /* the next ones are asked for when all of these are there */
    unsigned n_passes;
    uint64_t pass_bytes; /* approximate size of a pass */
    /* Memory that the experts are spread over, like the slots of a cache: bytes that land in memory
     * outside the processor's cache take longer. Rounded up to the experts in flight. */
    uint64_t memory_bytes;
    uint64_t seed;       /* of the random order */
    int disk;            /* reads only what is on this one; -1: all */
    void (*pass_done)(void *ctx); /* may be NULL */
    void *ctx;
};

/* Sets figures[i] to the bytes per second of pass i. Stops at the first read that fails and returns
 * its error. */
int reader_measure(const struct model *model, struct expert_store *store,
                   const struct reader_measurement *how, double figures[READER_PASSES_MAX],
                   struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
