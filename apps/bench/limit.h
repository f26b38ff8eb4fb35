/* The hardware limit of decoding: the disk, memory and arithmetic time of one token, and the share
 * of the limit that a run reached. Pure arithmetic: keeps no state, cannot fail, any thread.
 *
 * A: bytes of a token's experts. m: fraction of them read from the disk. D: dense bytes. B and W:
 * bytes per second of the disk and of memory.
 *     t_io = mA / B        t_ram = (A + D + KV + 2mA) / W
 * Tokens per second are between 1 / (t_io + t_ram), without overlap, and 1 / max(t_io, t_ram), with
 * full overlap.
 *
 * In a long context, attention may need more time for its F float multiply-adds than for the bytes
 * of KV. With P multiply-adds per second in registers, t_fma = F / P. It overlaps with t_ram in any
 * processor, so the larger of the two counts in both bounds. A GPU's is not known.
 *
 * With a GPU, C of the experts' bytes are computed by the processor and S are sent to the GPU or
 * moved between the memories. V and L: bytes per second of the GPU's memory and of the link to it.
 *     t_gpu = (A - C + D + KV + S) / V        t_link = S / L        t_ram = (C + S + 2mA) / W
 * The bounds are then those of all four times.
 *
 * mA is the counted number of bytes read, not an estimate. It excludes prefetched experts that were
 * never used: a wrong prediction lowers the share of the limit, not the limit. It includes what the
 * heat file loads in the background while tokens are decoded. KV covers all positions before the
 * token, and the recurrent state read and written. */
#ifndef FLASHMOE_APPS_BENCH_LIMIT_H
#define FLASHMOE_APPS_BENCH_LIMIT_H

#include <jansson.h>
#include <stdbool.h>

#include "flashmoe.h"

/* The mean bytes of a token, and the machine's bytes per second. */
struct limit_load {
    double expert_bytes, dense_bytes, kv_bytes; /* A, D, KV */
    double miss_bytes;                          /* mA */
    bool has_gpu;
    double host_bytes, link_bytes;              /* C, S */
    double disk_per_s, memory_per_s, gpu_per_s, link_per_s; /* B, W, V, L; 0: not measured */
    double mul_adds, mul_adds_per_s;            /* F, P; without P, F takes no time */
};

/* The machine's bytes and float multiply-adds per second, 0 where not measured. */
struct limit_speeds {
    double disk, memory, gpu, link, mul_adds;
};

enum limit_bound { LIMIT_DISK, LIMIT_MEMORY, LIMIT_GPU, LIMIT_LINK, LIMIT_ARITHMETIC };

struct limit {
    struct limit_load load;
    double memory_bytes, gpu_bytes;     /* the dividends of t_ram and t_gpu */
    double io_s, ram_s, gpu_s, link_s, fma_s; /* per token; negative: unknown */
    enum limit_bound bound;             /* the largest time */
    double min_per_s, max_per_s; /* tokens without and with overlap; 0: unknown */
    double tok_per_s;         /* measured; 0: nothing was decoded */
    double percent;           /* share of max_per_s; 0: unknown */
    double memory_percent;    /* tok_per_s * ram_s: the share of the memory's speed; 0: unknown */
    /* tok_per_s is above the limit (limit_is_exceeded), so a speed was measured too low and the
     * percentage is unknown. */
    bool is_exceeded;
};

/* Returns whether a share in percent is too high to be explained by measurement noise. Such a share
 * is never shown: another program slowed down the measurement, or the processor's cache holds what
 * the limit reads from memory. */
#define LIMIT_PERCENT_MAX 105.0
static inline bool limit_is_exceeded(double percent)
{
    return percent > LIMIT_PERCENT_MAX;
}
#define LIMIT_EXCEEDED_WHY "the machine was busy when its speed was measured, or the processor's " \
                           "cache holds the model"

/* Returns the bytes of a token at `position` that reads miss_bytes from the disk. */
struct limit_load limit_load_of(const struct fm_model_info *info, double position,
                                double miss_bytes);

/* Computes the limit. Without tok_per_s (0) it has the bounds only. The disk's speed may be 0 when
 * nothing is read from it. */
void limit_of(const struct limit_load *load, double tok_per_s, struct limit *limit);

/* Computes the limit of all tokens decoded between two statistics. They must have been the only
 * work and alone in their batches; the first one was at first_position. */
void limit_between(const struct fm_stats *before, const struct fm_stats *after,
                   const struct fm_model_info *info, double first_position,
                   const struct limit_speeds *speeds, struct limit *limit);

/* Returns "disk", "memory", "gpu", "link" or "arithmetic". */
const char *limit_bound_name(enum limit_bound bound);

/* Sets the speeds of a load. */
void limit_set_speeds(struct limit_load *load, const struct limit_speeds *speeds);

/* Returns one object; unknown values are null. "was_busy" is is_exceeded. */
json_t *limit_json(const struct limit *limit);

/* Writes "57.0% of 12.34 tok/s, bound by the disk: 81 ms of disk (123.0 MiB) and 40 ms of memory
 * (1.5 GiB) per token; 8.26 tok/s without overlap". If the limit is exceeded, says so instead of
 * the share. */
#define LIMIT_TEXT_BYTES 512
const char *limit_text(const struct limit *limit, char text[LIMIT_TEXT_BYTES]);

#endif
