/* What the measurements of a model share: the model and its prompt, pieces of work that repeat, and
 * the machine's own speed, measured in the same run with the same threads. One thread. */
#ifndef FLASHMOE_APPS_BENCH_BENCH_COMMON_H
#define FLASHMOE_APPS_BENCH_BENCH_COMMON_H

#include "apps/cli/common.h"
#include "apps/cli/known.h"
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
    unsigned n_tokens, n_repeat; /* of a piece; pieces that count */
    unsigned n_warm;             /* pieces before them that do not */
    struct fm_model *model;
    struct fm_session *session;
    struct fm_sampler *sampler; /* the command's, closed here; may be NULL */
    struct fm_model_info info;
    int32_t *prompt;
    size_t n_prompt;
    bool is_resident; /* the cache has room for every expert of the model */
    struct progress progress;
    uint64_t n_tokens_done; /* for the progress line, counted or not */

    struct bench_piece pieces[BENCH_REPEAT_MAX];
    struct fm_stats begin, end; /* around all pieces that count */
    struct known known;         /* of decoding; not finished */
    struct profile profile;     /* of the pieces that count */
    bool is_counting;           /* one of them is running */
    char logits_hash[33];
    json_t *recall; /* of looking ahead: a number for every layer, null where it was not tried */
    char *architecture, *routes, *approximate; /* the model is closed when results are printed */
    struct fm_speed read; /* bytes per second, before and behind the pieces */
    struct fm_speed int8; /* operations per second; 0: not measured */
    struct fm_disk_speeds disk; /* behind the pieces; all 0: not measured */
    unsigned n_measured;  /* times that the machine was measured */
    uint64_t read_buffer_bytes; /* the smallest */
};

/* How one command uses it. */
struct bench_kind {
    unsigned measure;         /* FM_MEASURE_* */
    bool measures_disk;       /* too, where not every expert fits */
    const char *pieces_name;  /* in JSON */
    /* Positions of the session; the bench has nothing but its options yet. */
    unsigned (*n_context)(const struct bench *bench);
    int (*open)(struct bench *bench, struct fm_error *err); /* prompt, n_warm and the like */
    /* Before the pieces that do not count, if any, and again before those that do; may be NULL. */
    int (*start)(struct bench *bench, struct fm_error *err);
    int (*piece)(struct bench *bench, struct fm_error *err);
    int (*print)(const struct bench *bench); /* returns the exit status */
};

/* All of a command that has the options "tokens" and "repeat"; returns the exit status. */
int bench_run(const struct args *args, const struct bench_kind *kind);

/* For `open`: `n` tokens of a fixed text, over and over, or of a sequence without a tokenizer. */
int bench_make_prompt(struct bench *bench, size_t n, struct fm_error *err);
/* For `open`: looks into the session with the bench as ctx; `observer` may have more than that. */
void bench_observe(struct bench *bench, struct fm_observer observer);
/* For `piece`: so many tokens are done altogether. */
void bench_progress(struct bench *bench, uint64_t n_tokens_done);

/* ---- results ------------------------------------------------------------------------------- */

struct fm_speed bench_tok_per_s(const struct bench *bench);
double bench_hit_rate(const struct bench *bench);
double bench_bytes_per_token(const struct bench *bench);
/* The keys that all of these commands have; takes the reference to `more` and adds to it. */
json_t *bench_json(const struct bench *bench, const struct bench_kind *kind, json_t *more);
/* The lines about memory and disk; the last lines of the text. */
void bench_print_read(const struct bench *bench);
void bench_print_disk(const struct bench *bench); /* none when it was not measured */
void bench_print_rest(const struct bench *bench);
void bench_print_engine(const struct fm_stats *stats); /* memory, processor, routes */
/* That the cache has changed its size, if it has; `where` is "" or "at this budget ". */
void bench_print_elastic(const char *where, uint64_t n_shrinks, uint64_t n_grows);

#endif
