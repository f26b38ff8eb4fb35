/* How fast a reader brings experts of a model from the disk, measured now: random ones, as decode
 * asks for them, with as many under way as the reader takes. Where a store reads through the page
 * cache, they are taken out of it before each pass, and the store drops what it reads
 * (STORE_PAGES_DROPPED): everything comes from the disk, and little of it is held. Takes memory of
 * its own and gives it back. Any thread may call; it needs the disk for itself to mean anything. */
#ifndef FLASHMOE_STORE_READER_MEASURE_H
#define FLASHMOE_STORE_READER_MEASURE_H

#include "store/expert_store.h"

#ifdef __cplusplus
extern "C" {
#endif

#define READER_PASSES_MAX 16

struct reader_measurement {
    unsigned n_experts_at_a_time;
    unsigned n_passes;
    uint64_t pass_bytes; /* about so many in each */
    /* Memory that the experts are spread over, as over a cache's: bytes that land in memory which
     * the processor's cache does not hold take longer. At least the experts at a time. */
    uint64_t memory_bytes;
    uint64_t seed;       /* of the experts' order */
    void (*pass_done)(void *ctx); /* may be NULL */
    void *ctx;
};

/* Bytes per second of each pass. A read that fails ends it with that read's error. */
int reader_measure(const struct model *model, struct expert_store *store,
                   const struct reader_measurement *how, double figures[READER_PASSES_MAX],
                   struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
