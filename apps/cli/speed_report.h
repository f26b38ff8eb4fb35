/* What limits the speed of a run, and what more memory would change, as text and as JSON. The
 * structs own no memory. One thread. */
#ifndef FLASHMOE_APPS_CLI_SPEED_REPORT_H
#define FLASHMOE_APPS_CLI_SPEED_REPORT_H

#include "apps/bench/limit.h"

#define SPEED_POINTS 5

/* Predictions for one cache size. The hit rate is the measured one, shifted by the difference that
 * the miss curve gives between the two sizes. The limit follows from it. */
struct speed_point {
    uint64_t cache_bytes;
    unsigned n_slots;
    double share;    /* fraction of all experts that fit */
    double hit_rate; /* negative: nothing was decoded */
    struct limit limit;
};

struct speed_report {
    struct fm_stats before, after;
    struct fm_model_info info; /* its strings may dangle: the model may be closed */
    double first_position;
    bool is_resident, has_curve; /* every expert fits; tokens were decoded with experts */
    double curve_hit_rate;       /* of the current cache, on the miss curve */
    struct limit limit;
    struct speed_point now, more; /* the current cache, and one GiB more */
    struct speed_point points[SPEED_POINTS]; /* 1/8, 1/4, 1/2, 3/4 and all of the experts */
};

/* Collects the statistics of an open model. `before` was taken just before the token at
 * first_position was decoded. Since then one session must have decoded single tokens only. */
void speed_report_take(struct speed_report *report, const struct fm_model *model,
                       const struct fm_stats *before, double first_position);
/* Computes the limits from the machine's speeds. The share of the limit is that of the mean speed.
 * The model may be closed. */
void speed_report_finish(struct speed_report *report, const struct limit_speeds *speeds);
/* Recomputes the share of the limit for another speed than the mean. Call it after
 * speed_report_finish. */
void speed_report_set_speed(struct speed_report *report, double tok_per_s);

/* Describe the hit rates of other cache sizes and the effect of one more GiB. limit_text describes
 * the limit. All write into `text` and return it. */
#define SPEED_REPORT_BYTES 320
const char *speed_report_curve_text(const struct speed_report *report,
                                    char text[SPEED_REPORT_BYTES]);
const char *speed_report_more_text(const struct speed_report *report,
                                   char text[SPEED_REPORT_BYTES]);
/* Returns {"limit": ..., "miss_curve": ..., "one_more_gib": ...}. */
json_t *speed_report_json(const struct speed_report *report);

#endif
