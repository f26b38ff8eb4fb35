/* The physical limit of decoding: what one token takes of the disk and of memory, and how near a
 * run came to it. Arithmetic alone: no state, nothing fails, any thread.
 *
 * With A the bytes of a token's experts, m the share of them that had to be read, D the dense
 * bytes, B the disk's and W the memory's bytes per second:
 *     t_io = mA / B        t_ram = (A + D + KV + 2mA) / W
 * and tokens per second lie between 1 / (t_io + t_ram), nothing overlapping, and
 * 1 / max(t_io, t_ram), everything overlapping.
 *
 * mA is what was read from the disk, counted, not a rate times a size. Experts that were read ahead
 * and never used are left out of it: they were no part of the work, so a wrong guess lowers the
 * share of the limit that is reached and not the limit. What the heat file had read in the
 * background while tokens were decoded is part of it. KV is all positions before the token, and the
 * recurrent state read and written. */
#ifndef FLASHMOE_APPS_BENCH_LIMIT_H
#define FLASHMOE_APPS_BENCH_LIMIT_H

#include <jansson.h>
#include <stdbool.h>

#include "flashmoe.h"

/* What a token takes, in bytes, as a mean; and what the machine gives, in bytes per second. */
struct limit_load {
    double expert_bytes, dense_bytes, kv_bytes; /* A, D, KV */
    double miss_bytes;                          /* mA */
    double disk_per_s, memory_per_s;            /* B, W; 0: not measured */
};

struct limit {
    struct limit_load load;
    double memory_bytes;      /* A + D + KV + 2mA */
    double io_s, ram_s;       /* of one token; negative: not known */
    bool is_io_bound;         /* t_io is the longer one */
    double min_per_s, max_per_s; /* tokens: nothing overlaps, everything does; 0: not known */
    double tok_per_s;         /* reached; 0: nothing was decoded */
    double percent;           /* of max_per_s; 0: not known */
    /* tok_per_s is above what the limit allows (limit_is_exceeded), so one of the speeds was
     * measured too low: the percentage is not known. */
    bool is_exceeded;
};

/* Whether a share of a limit, in percent, is beyond what measurements that vary explain. Such a
 * share is never shown: something else used the machine while its speed was measured, or the
 * processor's cache holds what the limit takes from memory. */
#define LIMIT_PERCENT_MAX 105.0
static inline bool limit_is_exceeded(double percent)
{
    return percent > LIMIT_PERCENT_MAX;
}
#define LIMIT_EXCEEDED_WHY "the machine was busy when its speed was measured, or the processor's " \
                           "cache holds the model"

/* The bytes of a token at `position` that reads miss_bytes from the disk. */
struct limit_load limit_load_of(const struct fm_model_info *info, double position,
                                double miss_bytes);

/* tok_per_s may be 0: then there are the bounds alone. Where nothing is read from the disk its
 * speed need not be known. */
void limit_of(const struct limit_load *load, double tok_per_s, struct limit *limit);

/* Of all tokens decoded between the two, alone in their batches, with nothing else evaluated; the
 * first stood at first_position. */
void limit_between(const struct fm_stats *before, const struct fm_stats *after,
                   const struct fm_model_info *info, double first_position, double disk_per_s,
                   double memory_per_s, struct limit *limit);

/* One object; what is not known is null. "was_busy": is_exceeded. */
json_t *limit_json(const struct limit *limit);

/* "57.0% of 12.34 tok/s, bound by the disk: a token takes 81 ms of the disk (123.0 MiB) and 40 ms
 * of memory (1.5 GiB); without any overlap 8.26 tok/s"; where the limit is exceeded, that and why
 * instead of the share. */
#define LIMIT_TEXT_BYTES 384
const char *limit_text(const struct limit *limit, char text[LIMIT_TEXT_BYTES]);

#endif
