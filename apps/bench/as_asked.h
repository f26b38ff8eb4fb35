/* What the disk allows decode that asks for a layer's missing experts when its router has chosen,
 * and for the next layer's when these have been computed. So few experts are asked for at a time
 * that a disk gives less than its most, which the limit of limit.h goes by. Without reads ahead
 * nothing can be faster; with them it says nothing. Pure arithmetic. */
#ifndef FLASHMOE_APPS_BENCH_AS_ASKED_H
#define FLASHMOE_APPS_BENCH_AS_ASKED_H

#include "apps/bench/limit.h"
#include "flashmoe_lab.h"

struct as_asked {
    double n_layers;   /* per token, that have missing experts */
    double n_experts;  /* that such a layer misses */
    double disk_per_s; /* bytes, if so many are asked for at a time */
    double io_s;       /* per token */
    double max_per_s;  /* tokens; 0: nothing was read, some was read ahead, or a speed is unknown */
    double percent;    /* of it that limit->tok_per_s is; 0: unknown, or above the limit */
};

/* `before`, `after` and `limit` as in limit_between. */
void as_asked_of(const struct fm_stats *before, const struct fm_stats *after,
                 const struct fm_disk_speeds *disk, const struct limit *limit,
                 struct as_asked *asked);

/* Returns an object, or null if max_per_s is unknown. */
json_t *as_asked_json(const struct as_asked *asked);

/* Writes "75.0% of 62.3 tok/s: 14.2 layers per token read 1.6 experts each, which the disk gives at
 * 2.5 GB/s (13.1 ms)". */
#define AS_ASKED_BYTES 256
const char *as_asked_text(const struct as_asked *asked, char text[AS_ASKED_BYTES]);

#endif
