/* What a run knows of its own speed: the limit it was bound by, and what more memory would give, as
 * text and as JSON. One thread. */
#ifndef FLASHMOE_APPS_CLI_KNOWN_H
#define FLASHMOE_APPS_CLI_KNOWN_H

#include "apps/bench/limit.h"

#define KNOWN_POINTS 5

/* A cache of some size. Hit rates are today's, as the bytes read tell it, moved by what the miss
 * curve says of the other size; the limit follows from them. */
struct known_point {
    uint64_t cache_bytes;
    unsigned n_slots;
    double share;    /* of all experts */
    double hit_rate; /* negative: nothing was decoded */
    struct limit limit;
};

struct known {
    struct fm_stats before, after;
    struct fm_model_info info; /* its texts are not looked at: the model may be closed */
    double first_position;
    bool is_resident, has_curve; /* every expert fits; tokens were decoded with experts */
    double curve_hit_rate;       /* what the curve says of today's cache */
    struct limit limit;
    struct known_point now, more; /* today's, and one GiB more */
    struct known_point points[KNOWN_POINTS]; /* 1/8, 1/4, 1/2, 3/4 and all of the experts */
};

/* While the model is open. `before` was taken when the token at first_position was about to be
 * decoded; since then nothing but single tokens of one session. */
void known_take(struct known *known, const struct fm_model *model, const struct fm_stats *before,
                double first_position);
/* The machine's bytes per second, 0 where they were not measured; the model may be closed. What is
 * reached of the limit is the mean speed. */
void known_finish(struct known *known, double disk_per_s, double memory_per_s);
/* After that, where another speed is shown than the mean: the limit is held against it. */
void known_set_speed(struct known *known, double tok_per_s);

/* The limit alone is limit_text's; these are "a cache of 25% would have ..." and "one more GiB
 * would ...". */
#define KNOWN_TEXT_BYTES 320
const char *known_curve_text(const struct known *known, char text[KNOWN_TEXT_BYTES]);
const char *known_more_text(const struct known *known, char text[KNOWN_TEXT_BYTES]);
/* {"limit": ..., "miss_curve": ..., "one_more_gib": ...} */
json_t *known_json(const struct known *known);

#endif
