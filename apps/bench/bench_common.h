/* What the benchmarks of one model share: the model and its prompt, repeated pieces of work, and
 * the machine's speed, measured in the same run with the same threads.
 *
 * bench_run owns everything in `struct bench` and frees it. One thread. */
#ifndef FLASHMOE_APPS_BENCH_BENCH_COMMON_H
#define FLASHMOE_APPS_BENCH_BENCH_COMMON_H

#include "apps/cli/common.h"
#include "apps/cli/speed_report.h"
#include "apps/bench/profile.h"
#include "apps/cli/term.h"
#include "flashmoe_lab.h"

#define BENCH_REPEAT_MAX 100

struct bench_piece {
    double tok_per_s, hit_rate;
    uint64_t bytes_read;
};

struct bench {
    const struct args *args;
    unsigned n_tokens, n_repeat; /* tokens per piece and sequence; measured pieces */
    unsigned n_sequences;        /* decoded together */
    unsigned n_warm;             /* warm-up pieces, which are not measured */
    struct fm_model *model;
    struct fm_session *session;
    struct fm_session **others; /* [n_sequences - 1] further sessions */
    struct fm_sampler *sampler; /* set by the command, closed by bench_run; may be NULL */
    struct fm_model_info info;
    int32_t *prompt;
    size_t n_prompt;
    bool is_resident; /* the cache has room for every expert */
    struct progress progress;
    uint64_t n_tokens_done; /* for the progress line; includes warm-up */

    struct bench_piece pieces[BENCH_REPEAT_MAX];
    struct fm_stats begin, end; /* before and after the measured pieces */
    struct speed_report report; /* of decoding; needs speed_report_finish */
    struct profile profile;     /* of the measured pieces */
    bool is_counting;           /* a measured piece is running */
    char logits_hash[33];
    json_t *recall; /* of predicted experts: a number per layer, null where nothing was predicted */
    /* Copies: the model is closed before printing. */
    char *architecture, *routes, *approximate, *gpu;
    struct fm_speed read; /* memory bytes per second, before and after the pieces */
    struct fm_speed int8, fma; /* operations per second; 0: not measured */
    size_t n_before; /* positions before the first measured token; 0: n_prompt */
    struct fm_disk_speeds disk; /* after the pieces; all 0: not measured */
    struct fm_gpu_speeds gpu_speeds; /* likewise */
    unsigned n_measured;  /* number of measurements of the machine */
    uint64_t read_buffer_bytes; /* of the smallest measurement */
};

/* What differs between the commands. */
struct bench_kind {
    unsigned measure;         /* FM_MEASURE_* */
    bool measures_disk;       /* unless every expert fits */
    const char *pieces_name;  /* JSON key */
    /* Returns the positions that the session needs. Only the options of the bench are set yet. */
    unsigned (*n_context)(const struct bench *bench);
    /* Returns how many sequences are decoded together; NULL: one. */
    unsigned (*n_sequences)(const struct bench *bench);
    int (*open)(struct bench *bench, struct fm_error *err); /* sets the prompt, n_warm, ... */
    /* Called before the warm-up pieces, if any, and again before the measured ones; may be NULL. */
    int (*start)(struct bench *bench, struct fm_error *err);
    int (*piece)(struct bench *bench, struct fm_error *err);
    int (*print)(const struct bench *bench); /* returns the exit status */
};

/* Runs a command with the options "tokens" and "repeat"; returns the exit status. */
int bench_run(const struct args *args, const struct bench_kind *kind);

/* For `open`: fills the prompt with `n` tokens of a repeated text, or of any ids without a
 * tokenizer. */
int bench_make_prompt(struct bench *bench, size_t n, struct fm_error *err);
/* For `open`: observes the session with the bench as ctx. `observer` may set further callbacks. */
void bench_observe(struct bench *bench, struct fm_observer observer);
/* For `piece`: reports the total number of tokens done. */
void bench_progress(struct bench *bench, uint64_t n_tokens_done);

/* ---- results ------------------------------------------------------------------------------- */

/* Returns the median, the smallest and the largest of up to BENCH_REPEAT_MAX values. */
struct fm_speed bench_spread(const double *values, unsigned n);
struct fm_speed bench_tok_per_s(const struct bench *bench);
double bench_hit_rate(const struct bench *bench);
double bench_bytes_per_token(const struct bench *bench);
/* Adds the common keys to `more` and returns it; takes the reference. */
json_t *bench_json(const struct bench *bench, const struct bench_kind *kind, json_t *more);
/* Print the lines about memory, the disk, and the rest. */
void bench_print_read(const struct bench *bench);
void bench_print_disk(const struct bench *bench); /* prints nothing if it was not measured */
void bench_print_gpu(const struct bench *bench); /* prints nothing without a GPU */
/* Returns the machine's speeds, as they were measured. */
struct limit_speeds bench_speeds(const struct bench *bench);
void bench_print_rest(const struct bench *bench);
void bench_print_engine(const struct fm_stats *stats); /* memory, processor, routes */
/* Prints that the cache changed its size, if it did. `where` is "" or such as "at 8.0 GiB ". */
void bench_print_elastic(const char *where, uint64_t n_shrinks, uint64_t n_grows);

#endif
