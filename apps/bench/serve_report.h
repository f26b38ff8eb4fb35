/* The results of `bench serve`: speeds and times of rounds, the limit of a batch, and how both are
 * printed. Plain data without pointers to free. One thread. */
#ifndef FLASHMOE_APPS_BENCH_SERVE_REPORT_H
#define FLASHMOE_APPS_BENCH_SERVE_REPORT_H

#include "apps/bench/bench_common.h"
#include "apps/bench/serve_client.h"

#define SERVE_TARGETS_MAX (1 + REPEATS_MAX)
#define SERVE_VOCABULARY_MIN 16

struct serve_shape {
    unsigned n_users, n_prefix, n_prompt, n_tokens, n_repeat;
};

/* What rounds measured, a value for each. */
struct serve_part {
    unsigned n;
    double tok_per_s[BENCH_REPEAT_MAX];    /* of all users, from asking to the last text */
    double first_s[BENCH_REPEAT_MAX];      /* first user's first text */
    double first_median_s[BENCH_REPEAT_MAX];
    double first_last_s[BENCH_REPEAT_MAX]; /* last user's */
    double user_per_s[BENCH_REPEAT_MAX];   /* median user, from first to last text */
    double user_min_per_s[BENCH_REPEAT_MAX];
    double gap_s[BENCH_REPEAT_MAX];        /* longest in any stream */
    double cached[BENCH_REPEAT_MAX];       /* share of prompt tokens that were not computed */
};

/* What passes read while all users got text, over all rounds. */
struct serve_counts {
    uint64_t ns, n_passes, n_tokens, n_experts; /* n_experts: used in passes, each once */
    uint64_t bytes_read, n_unused;              /* n_unused: experts that were read for nothing */
    bool has_prompts; /* some passes had prompts: nothing is known */
};

struct serve_target {
    const char *name;
    const struct http_url *url;
    char model[128];
    bool is_own; /* it is served by this process */
    struct serve_part parts[2]; /* new prompts, cached prompts */
    struct serve_counts counts; /* of this process's own server */
    uint64_t hashes[SERVE_USERS_MAX]; /* of the texts in the first part of a round */
    bool differs; /* a user got another text when it asked the same again */
};

/* The machine and the model of this process. */
struct serve_machine {
    struct fm_model_info info; /* its strings are not valid */
    struct fm_stats stats;     /* likewise */
    bool is_resident;
    struct fm_speed read, int8;
    struct fm_disk_speeds disk;
    unsigned n_measured;
};

void serve_report_note(struct serve_target *target, const struct serve_shape *shape,
                       bool is_cached, const struct serve_answer *answers);
/* Adds what the passes between two statistics did. */
void serve_report_count(struct serve_target *target, const struct fm_stats *before,
                        const struct fm_stats *after, uint64_t ns);
/* Measures memory and arithmetic and, after the work, the disk in the mode `io` if experts are on
 * it. No model may be open. */
int serve_report_measure(struct serve_machine *machine, const struct args *args, const char *io,
                         struct fm_error *err);
/* Prints everything and returns the exit status. */
int serve_report_print(const struct args *args, const struct serve_shape *shape,
                       const struct serve_target *targets, unsigned n_targets,
                       const struct serve_machine *machine);

#endif
