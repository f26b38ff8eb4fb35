/* What `flashmoe validate` found: every answer at every budget, whether it agrees, what it cost.
 *
 * The reference is the answer to each prompt at the largest budget. Everything else is compared
 * with it: other budgets, a cache that another topic has filled, resets, memory pressure.
 * `struct validation` owns its arrays; validation_free frees them. One thread. */
#ifndef FLASHMOE_APPS_VALIDATE_VALIDATE_H
#define FLASHMOE_APPS_VALIDATE_VALIDATE_H

#include "apps/bench/budgets.h"
#include "apps/bench/limit.h"
#include "apps/bench/topics.h"
#include "apps/cli/common.h"
#include "apps/validate/steps.h"
#include "apps/validate/trail.h"

#define VALIDATE_PROMPTS 12
#define VALIDATE_TOKENS 4096 /* of an answer, at most */
#define VALIDATE_FAILURES 8 /* then the run ends */
#define VALIDATE_WINDOWS 20 /* of the long answer */
#define VALIDATE_CYCLES 100
#define VALIDATE_CLIFF 8
#define VALIDATE_LAYERS 1024 /* LIMIT_LAYERS */
#define HASH_BYTES 33

/* With an empty cache, and with the cache that another prompt has filled. */
enum { AFTER_OPENING, AFTER_SWITCH, N_AFTER };

struct counts {
    double seconds;
    uint64_t n_tokens, n_hits, n_misses, bytes_read;
};

/* One answer to one prompt. */
struct answer {
    bool was_run, is_same; /* is_same: text and logits are those of the reference */
    double open_s;         /* opening the model; 0: it was open */
    struct counts prompt, decode;
    struct fm_stats before, after; /* of decoding; strings must not be used */
};

/* What every answer to a prompt has to be. */
struct reference {
    const char *name;
    unsigned topic;
    size_t n_prompt;
    int32_t *ids;            /* [n_tokens] */
    char (*hashes)[HASH_BYTES]; /* [n_tokens + 1]: logits up to each token */
    char text_hash[17];      /* of the text, or of the ids without a tokenizer */
    char *text;              /* NULL without a tokenizer */
    struct trail trail;      /* hidden states of every layer and position */
};

/* The answers at one budget. */
struct point {
    uint64_t budget_bytes, n_slots, n_shrinks, n_grows, peak_bytes;
    struct answer answers[VALIDATE_PROMPTS][N_AFTER];
    struct limit limits[N_AFTER]; /* of decoding */
};

struct failure {
    uint64_t budget_bytes; /* 0: not at one budget */
    const char *prompt;    /* NULL: none in particular */
    int token, layer;      /* the first that differs, from 0; -1: unknown */
    char text[512];        /* one sentence without a full stop */
};

/* One answer of a thousand tokens, at two budgets. */
struct long_run {
    bool was_run, is_same;
    unsigned n_tokens, n_windows;
    uint64_t budget_bytes[2];
    double tok_per_s[2][VALIDATE_WINDOWS];
    double resident_bytes[2][VALIDATE_WINDOWS];
    double seconds[2];
};

struct cycles {
    bool was_run, is_same, is_flat;
    unsigned n;
    uint64_t budget_bytes;
    uint64_t resident_bytes[VALIDATE_CYCLES];
};

/* Speed with one budget beside what is free. */
struct cliff_point {
    uint64_t budget_bytes; /* 0: chosen by the engine */
    uint64_t free_bytes;   /* before the model was opened, without what the other process took */
    uint64_t held_bytes;   /* taken by another process */
    uint64_t min_free_bytes, peak_bytes, n_slots, n_shrinks, n_grows;
    double tok_per_s, hit_rate;
    bool is_refused, is_stopped, is_same; /* by the engine; because memory ran low */
    char why[256];
};

struct cliff {
    bool was_run;
    uint64_t free_bytes, floor_bytes; /* at the start; what must stay free */
    unsigned n;
    struct cliff_point points[VALIDATE_CLIFF];
    uint64_t cliff_bytes; /* the first budget that is clearly slower than a smaller one; 0: none */
    char note[320];       /* why there is none, or why it was left out */
    bool was_pressed;
    struct cliff_point before, during; /* without and with another process */
    bool gave_back;                    /* the other process had to release memory */
    uint64_t max_held_bytes;
    uint64_t n_kills;
    char pressure_note[320];
};

struct layer_times {
    double mix_ms, route_ms, wait_ms, compute_ms, hits, misses; /* per token */
};

struct files {
    bool was_run, has_checksums;
    uint64_t n_bytes, n_experts, n_tensors, n_bad;
    double seconds;
    char what[256]; /* the first bad item */
};

struct against {
    const char *path; /* NULL: not compared */
    json_t *report;   /* owned */
    unsigned n_compared, n_different; /* prompts */
};

struct validation {
    const struct args *args;
    bool is_quick, is_text;
    unsigned n_tokens, n_prompts, n_long, n_cycles;
    struct steps steps;
    struct budgets budgets;
    uint64_t whole_bytes; /* a budget with room for everything, whatever the machine has */
    uint64_t min_bytes;   /* the smallest that the model can be opened with; 0: unknown */
    unsigned n_context;
    bool is_again; /* the model was opened before */

    struct fm_model_info info; /* strings are copies below */
    char architecture[64], container[64], io[16], cpu_level[32], gpu[160], routes[512];
    char approximate[256];
    unsigned n_threads;
    struct fm_machine_info machine;
    struct app_speeds speeds[2]; /* before and after */
    unsigned n_measured;

    struct files files;
    struct reference references[VALIDATE_PROMPTS];
    struct point points[BUDGETS_MAX]; /* as in budgets, ascending */
    struct long_run long_run;
    struct cycles cycles;
    struct cliff cliff;
    struct against against;
    uint64_t layers_budget_bytes; /* of the times below */
    struct layer_times layers[VALIDATE_LAYERS + 1]; /* the last is the head */
    unsigned n_layers;                              /* with the head */
    struct failure failures[VALIDATE_FAILURES];
    unsigned n_failures;
    double seconds;
    bool is_cut; /* some parts were left out after failures */
};

int validation_new(struct validation **out, const struct args *args, struct fm_error *err);
void validation_free(struct validation *v); /* accepts NULL */

/* Adds a failure and says it. The sentence is formatted as by printf. */
void validation_fail(struct validation *v, const struct failure *where, const char *fmt, ...)
    ERR_PRINTF(3, 4);
/* Returns whether nothing more should be run. */
bool validation_is_over(const struct validation *v);

/* ---- the parts; each returns 0, FM_ERR_CANCELLED, or an error of the command itself ---------- */

int validate_files(struct validation *v, struct fm_error *err);
int validate_ends(struct validation *v, struct fm_error *err);
int validate_references(struct validation *v, struct fm_error *err);
int validate_budgets(struct validation *v, struct fm_error *err);
int validate_long_run(struct validation *v, struct fm_error *err);
int validate_cycles(struct validation *v, struct fm_error *err);
int validate_cliff(struct validation *v, struct fm_error *err);
/* Reads the report of --against, if it is given; fails with FM_ERR_ARG if it is none. */
int validate_read_report(struct validation *v, struct fm_error *err);
/* Fails with FM_ERR_ARG if that report is of another model. The model has to be known. */
int validate_same_model(const struct validation *v, struct fm_error *err);
void validate_against(struct validation *v);
/* Writes a hash of every layer, beginning with the embedding, at a step of a reference: 0 is the
 * prompt, i the i-th token. Returns `text`. */
#define HASH_DIGITS 8
const char *validation_step(const struct reference *r, unsigned step,
                            char text[HASH_DIGITS * (VALIDATE_LAYERS + 1) + 1]);
/* Fills in the limits, from the machine's speeds. */
void validate_limits(struct validation *v);

/* ---- what they share ------------------------------------------------------------------------- */

struct runner {
    struct validation *v;
    struct fm_model *model;
    struct topics topics;
    double open_s;
    /* With guard_bytes set, an answer stops with FM_ERR_BUDGET when less memory is free. */
    uint64_t guard_bytes, min_free_bytes;
    bool is_low;
};

/* Opens the model with a budget (0: --memory or the free memory) and a session. Call runner_close
 * after a failure too. */
int runner_open(struct runner *r, struct validation *v, uint64_t memory_bytes,
                struct fm_error *err);
void runner_close(struct runner *r);

/* The tokens of an answer. */
struct spoken {
    int32_t *ids;               /* [n] */
    char (*hashes)[HASH_BYTES]; /* [n + 1]: of all logits up to each token */
    unsigned n;
};
/* Answers a prompt. Fills in `out`, and all of `answer` but is_same. */
int runner_answer(struct runner *r, unsigned prompt, struct spoken *out, struct answer *answer,
                  struct fm_error *err);
/* Returns the first token whose id or logits differ; -1: none. */
int spoken_differs(const struct spoken *a, const struct spoken *b);
int spoken_new(struct spoken *s, unsigned n, struct fm_error *err);
void spoken_free(struct spoken *s);
struct spoken reference_spoken(const struct validation *v, unsigned prompt);

/* Returns the mean over all prompts of a value of the answers. */
struct counts point_sum(const struct validation *v, const struct point *p, unsigned after,
                        bool is_prompt);
double point_open_s(const struct validation *v, const struct point *p);
double counts_hit_rate(const struct counts *c);

/* ---- the report ------------------------------------------------------------------------------ */

json_t *validation_json(const struct validation *v); /* a new reference; NULL: out of memory */
void validation_html(const struct validation *v, FILE *out);
void validation_print(const struct validation *v);
/* Returns the sentences about what no run of this kind can notice. */
const char *validation_blind_spot(const struct validation *v, unsigned i);

#endif
