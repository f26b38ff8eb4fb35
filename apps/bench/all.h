/* What `flashmoe bench all` measures: regimes, their cases, every run of a case, and what the model
 * and the machine are.
 *
 * A case is a command of this program, run as a process of its own: fresh memory each time, and the
 * same for another version of the program. `struct all` owns everything; all_free frees it. One
 * thread. Values that are unknown are NaN. */
#ifndef FLASHMOE_APPS_BENCH_ALL_H
#define FLASHMOE_APPS_BENCH_ALL_H

#include "apps/bench/quiet.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"
#include "flashmoe_lab.h"

#define ALL_CASES_MAX 96
#define ALL_ROUNDS_MAX 31
#define ALL_WORDS_MAX 40
#define ALL_EXTRAS 4
#define ALL_WHY_BYTES 640
#define ALL_FIXED_MAX 32

enum { ALL_THIS, ALL_OTHER, ALL_PROGRAMS }; /* this program, and that of --versus */

/* How the result of a case is read. */
enum all_kind { ALL_BENCH, ALL_SERVE, ALL_DRAFT, ALL_COLD, ALL_WARM };

/* A figure beside the main one. */
struct all_extra {
    const char *name, *unit; /* name NULL: none */
    double factor;           /* from the program's unit */
};

struct all;

struct all_regime {
    const char *name, *title;
    const char *what;            /* one sentence without a full stop */
    const char *x_title, *x_unit; /* NULL: cases are no numbers, and no curve is drawn */
    const char *unit;            /* "tok/s", or "s", where less is better */
    struct all_extra extras[ALL_EXTRAS];
    /* Adds the cases, or says with all_leave_out why there are none. */
    int (*build)(struct all *all, unsigned regime, struct fm_error *err);
};

/* One run of one case. */
struct all_run {
    bool was_run;
    double value, limit, percent; /* percent: share of the limit */
    bool is_exceeded;             /* the value is above the limit, which was measured too low */
    char bound[16];               /* what the limit is; "" if unknown */
    double extras[ALL_EXTRAS];
    char hash[33];                /* of the logits; "": none */
    double seconds;
    struct quiet_view quiet;
};

struct all_case {
    unsigned regime;
    enum all_kind kind;
    char label[48];
    double x;
    uint64_t budget_bytes;  /* 0: the program chooses */
    /* After the program. Borrowed from the table, argv or `store`. */
    const char *words[ALL_WORDS_MAX];
    unsigned n_words;
    char store[384];
    size_t store_used;
    struct all_run runs[ALL_PROGRAMS][ALL_ROUNDS_MAX];
    char failed[ALL_WHY_BYTES]; /* why it is not run any more; "": it is */
    bool differs;               /* two runs had other logits */
};

/* What a budget needs beside experts, with a context and a chunk of prompts. */
struct all_fixed {
    unsigned n_context, chunk;
    bool with_drafts;
    uint64_t bytes, slot_bytes, kv_bytes;
};

/* What the model is. */
struct all_facts {
    char name[APP_NAME_BYTES], container[48], architecture[48], formats[96];
    uint64_t dense_bytes, experts_bytes, n_parameters, state_bytes;
    unsigned n_layers, n_moe_layers, n_experts, n_experts_per_token, max_context;
    bool has_tokenizer, has_mtp, is_packed;
    unsigned n_disks; /* that the experts lie on */
    char disk_folders[FM_DISKS_MAX][LIMIT_PATH_BYTES]; /* "" if unknown */
    char gpu[128];    /* "": none */
    uint64_t gpu_fixed_bytes, gpu_cache_bytes, n_gpu_slots;
};

struct all {
    const struct args *args;
    const char *programs[ALL_PROGRAMS]; /* [ALL_OTHER] may be NULL */
    char own_path[LIMIT_PATH_BYTES];
    char versions[ALL_PROGRAMS][64];
    const char *model, *packed; /* packed: a packed copy; may be NULL */
    bool is_quick, is_cut; /* is_cut: Ctrl-C ended it */
    unsigned n_repeat, n_rounds; /* wanted; begun */
    struct all_facts facts;
    struct fm_machine_info machine;
    char cpu_level[32];
    uint64_t usable_bytes; /* no budget is larger */
    struct all_fixed fixed[ALL_FIXED_MAX];
    unsigned n_fixed;
    bool is_chosen[ALL_CASES_MAX]; /* regimes */
    char left_out[ALL_CASES_MAX][ALL_WHY_BYTES]; /* why a regime has no case; "": it has */
    struct all_case *cases; /* [n_cases] */
    unsigned n_cases;
    /* The machine's speeds before each round: bytes per second. */
    double memory_per_s[ALL_ROUNDS_MAX], disk_per_s[ALL_ROUNDS_MAX], first_token_s[ALL_ROUNDS_MAX];
    struct quiet_view before; /* the machine before the first run */
    char heat_path[LIMIT_PATH_BYTES];
    double seconds;
    int64_t begin_wall_ns;
};

/* ---- regimes (all_regimes.c) ----------------------------------------------------------------- */

extern const struct all_regime all_regimes[]; /* ends with a NULL name */

/* Asks the program what the model is, and what is free. */
int all_find_facts(struct all *all, struct fm_error *err);
/* Makes the cases of the chosen regimes. */
int all_build(struct all *all, struct fm_error *err);
/* Reads --only. Fails with FM_ERR_ARG and the names. */
int all_choose(struct all *all, const char *list, struct fm_error *err);

/* ---- asking (all_ask.c) ---------------------------------------------------------------------- */

/* Runs a command of this program that must work, and parses the object that it prints. */
int all_ask(const struct all *all, const char *const *words, json_t **out, struct fm_error *err);
/* Finds what a budget needs beside experts. */
int all_find_fixed(struct all *all, unsigned n_context, unsigned chunk, bool with_drafts,
                   const struct all_fixed **out, struct fm_error *err);
/* Return a member of an object: 0 and "" if it is not there. */
double all_number(const json_t *object, const char *name);
uint64_t all_count(const json_t *object, const char *name);
const char *all_string(const json_t *object, const char *name);

/* ---- running (all_run.c) --------------------------------------------------------------------- */

/* Runs all rounds. Returns 0, FM_ERR_CANCELLED after Ctrl-C, or an error. `saved` is called after
 * every round and may fail. */
int all_run(struct all *all, int (*saved)(struct all *all, struct fm_error *err),
            struct fm_error *err);
/* Reads the object that a case printed; NULL for ALL_COLD and ALL_WARM. Returns false and says why
 * if a value is missing. */
bool all_read(const struct all_case *one, const struct all_facts *facts, const json_t *object,
              struct all_run *run, char why[ALL_WHY_BYTES]);

/* ---- results (all_result.c) ------------------------------------------------------------------ */

/* Median, smallest and largest over the rounds, without unknown ones. */
struct all_spread {
    unsigned n;
    double median, min, max;
};

struct all_result {
    struct all_spread value[ALL_PROGRAMS], limit, percent, extras[ALL_EXTRAS];
    struct all_spread ratio;  /* speed of this program over that of the other, in pairs */
    const char *bound;        /* of the run with the median; "" if unknown */
    unsigned n_runs, n_busy, n_exceeded; /* of this program: runs on a machine that was not quiet */
    unsigned n_unknown;                  /* runs of which it is not known */
};

struct all_spread all_spread_of(const double *values, unsigned n);
void all_result(const struct all *all, const struct all_case *one, struct all_result *result);
bool all_is_less_better(const struct all_regime *regime);
/* Returns whether any run of the case gave a value. */
bool all_has_result(const struct all_case *one);
/* Writes the command of a case, with MODEL for the model. */
#define ALL_COMMAND_BYTES 512
const char *all_command(const struct all *all, const struct all_case *one,
                        char text[ALL_COMMAND_BYTES]);
/* Writes a message of a program without the paths of this machine: MODEL for the model, as in a
 * command, and the last name of any other path. */
const char *all_public_text(const struct all *all, const char *message, char text[ALL_WHY_BYTES]);
/* Writes "39.1 (38.4 to 41.8)"; "-" if nothing is known. */
const char *all_spread_text(const struct all_spread *s, char text[UNIT_BYTES * 2]);
/* Writes the extras of a case: "hits 78 %, read 61.5 MB per token". */
#define ALL_EXTRAS_BYTES 256
const char *all_extras_text(const struct all_regime *regime, const struct all_result *result,
                            char text[ALL_EXTRAS_BYTES]);
/* Writes the share of the limit: "85.8 %", "above" or "-". */
const char *all_share_text(const struct all_result *result, char text[UNIT_BYTES]);
/* Writes what is to be known about the machine while the case ran: "" or "busy in 2 of 5". */
const char *all_mark_text(const struct all_result *result, char text[UNIT_BYTES * 2]);

/* ---- reports --------------------------------------------------------------------------------- */

json_t *all_json(const struct all *all); /* a new reference; NULL: out of memory */
void all_print(const struct all *all, FILE *out);    /* for a terminal */
void all_markdown(const struct all *all, FILE *out);
void all_html(const struct all *all, FILE *out);
void all_list(const struct all *all, FILE *out);     /* the cases with their commands */

#endif
