/* The results of `bench stream`: what every budget gave, cold and warm, and how they are shown. */
#ifndef FLASHMOE_APPS_BENCH_STREAM_REPORT_H
#define FLASHMOE_APPS_BENCH_STREAM_REPORT_H

#include "apps/cli/common.h"
#include "apps/bench/limit.h"
#include "flashmoe_lab.h"

#define STREAM_BUDGETS_MAX 16

enum { STREAM_COLD, STREAM_WARM, STREAM_PASSES };

struct stream_pass {
    double hit_rate, bytes_per_token;
    struct limit limit; /* has the speed too */
};

struct stream_point {
    uint64_t budget_bytes;
    uint64_t n_slots; /* at the end */
    uint64_t n_shrinks, n_grows;
    uint64_t peak_bytes; /* resident; 0: not measured */
    struct stream_pass passes[STREAM_PASSES];
};

struct stream {
    const struct args *args;
    struct fm_model_info info; /* of a model that is closed: no texts but `architecture` */
    char *architecture, *routes, *approximate; /* routes NULL: the model's own */
    char cpu_level[32];
    unsigned n_threads;
    bool is_text;       /* six texts; or else the topics are those of the routes */
    /* A bias to what is in memory makes the budget part of the result. Without one the logits were
     * compared, and a difference was an error. */
    bool depends_on_budget;
    unsigned n_tokens, n_topic_tokens; /* of a pass, of a topic */
    struct stream_point points[STREAM_BUDGETS_MAX];
    unsigned n_points;
    /* Before every budget, and after the last one. */
    struct fm_speed disk[STREAM_BUDGETS_MAX + 1], memory[STREAM_BUDGETS_MAX + 1];
    struct fm_disk_speeds reads; /* how they were made */
    unsigned n_measured;
    uint64_t read_buffer_bytes; /* of memory, the smallest */
};

int stream_print_table(const struct stream *stream); /* these return the exit status */
int stream_print_json(const struct stream *stream);
void stream_write_svg(const struct stream *stream, FILE *out);

#endif
