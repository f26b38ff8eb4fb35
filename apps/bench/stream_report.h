/* The results of `bench stream`: every budget, cold and warm, as a table, JSON or a plot. The
 * command owns the strings. One thread. */
#ifndef FLASHMOE_APPS_BENCH_STREAM_REPORT_H
#define FLASHMOE_APPS_BENCH_STREAM_REPORT_H

#include "apps/cli/common.h"
#include "apps/cli/gpu_report.h"
#include "apps/bench/budgets.h"
#include "apps/bench/limit.h"
#include "flashmoe_lab.h"

#define STREAM_BUDGETS_MAX BUDGETS_MAX

enum { STREAM_COLD, STREAM_WARM, STREAM_PASSES };

struct stream_pass {
    double hit_rate, bytes_per_token;
    struct limit limit; /* includes the speed */
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
    struct fm_model_info info; /* the model is closed: its strings must not be used */
    char *architecture, *routes, *approximate; /* copies; routes NULL: the model's own */
    char cpu_level[32];
    char gpu_text[GPU_REPORT_BYTES + 128]; /* its name and the division of its memory; may be "" */
    struct fm_gpu_speeds gpu;              /* 0: not measured */
    unsigned n_threads;
    bool is_text;       /* topics are six texts; otherwise they come from the routes */
    /* With --cache-bias the logits depend on the budget. Otherwise they were compared, and a
     * difference was an error. */
    bool depends_on_budget;
    unsigned n_tokens, n_topic_tokens; /* per pass, per topic */
    struct stream_point points[STREAM_BUDGETS_MAX];
    unsigned n_points;
    /* Measured before every budget and after the last one. */
    struct fm_speed disk[STREAM_BUDGETS_MAX + 1], memory[STREAM_BUDGETS_MAX + 1];
    struct fm_disk_speeds reads; /* how the disk was read */
    unsigned n_measured;
    uint64_t read_buffer_bytes; /* of the smallest memory measurement */
};

int stream_print_table(const struct stream *stream); /* both print functions return the status */
int stream_print_json(const struct stream *stream);
void stream_write_svg(const struct stream *stream, FILE *out);

#endif
