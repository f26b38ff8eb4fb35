/* What several commands share: option groups, opening a model, reading the prompt. */
#ifndef FLASHMOE_APPS_CLI_COMMON_H
#define FLASHMOE_APPS_CLI_COMMON_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

#include "base/limits.h"
#include "flashmoe_lab.h"
#include "apps/cli/options.h"

/* The commands in the order help shows them; ends with NULL. */
extern const struct command *const command_list[];

/* Groups of the same title stand together under one heading. */
extern const struct option_group group_engine;   /* memory, threads, pin, cpu, ... */
extern const struct option_group group_kv;       /* kv, which is in group_engine too */
extern const struct option_group group_context;  /* context */
extern const struct option_group group_routes;   /* routes */
extern const struct option_group group_shape;    /* experts, used, layers, tokens: of routes */
extern const struct option_group group_trace;    /* trace */
extern const struct option_group group_json;     /* json */
extern const struct option_group group_messages; /* quiet, verbose */
extern const struct option_group group_help;     /* help; every command has it */

extern const char operand_model_help[];
extern const char option_pin_help[], option_cpu_help[];

/* The model of a command whose first operand is MODEL: what was given; without one, what
 * FLASHMOE_MODEL names, or else the nano model that comes with the program, which "nano" means
 * too: "nano" itself when that is not there. Lives as long as the program. */
const char *app_model_path(const struct args *args);

struct app_model_options {
    unsigned n_context, n_marks; /* as in fm_model_options */
    const char *routes; /* likewise */
    unsigned n_sessions; /* likewise; 0: one */
    bool is_exact;      /* whatever approximations the options ask for */
    bool keeps_heat;    /* without --heat too: in the user's cache folder */
    uint64_t memory_bytes;  /* instead of --memory; 0: that */
    uint64_t caller_bytes;  /* of the budget, left to the command */
    unsigned prefill_chunk; /* without --prefill-chunk; 0: chosen from the budget */
    bool is_again;          /* opened before by this command: the routes are not named again */
};

/* The options of group_engine, as the user gave them. FM_ERR_ARG: a word is none of an option's. */
int app_engine_options(const struct args *args, struct fm_model_options *options,
                       struct fm_error *err);
/* Opens the model with the options of group_engine and a progress bar. Says on standard error when
 * routes or approximations are in use. */
int app_model_open(const struct args *args, const struct app_model_options *how,
                   struct fm_model **out, struct fm_error *err);
int app_model_open_metadata(const struct args *args, const char *kv, struct fm_model **out,
                            struct fm_error *err);
/* Says on standard error when ChatML stands in for a chat template that the model lacks. Says
 * nothing about a model that has no chat form at all. */
void app_note_template(const struct fm_model *model);
/* The clock on the wall, for templates that write the date. */
struct fm_chat_options app_chat_now(void);
/* The machine's speeds, measured now and quickly, for the model and the options of group_engine:
 * memory, and where `with_disk` the disk, of which a few hundred megabytes are read. What was not
 * measured is 0, all of it after a failure. Not while a model is open: it takes memory. `io` is how
 * a run has read its experts, as fm_stats has it; NULL: as the next one will, if that is known. */
struct app_speeds {
    struct fm_machine_speeds machine; /* reading memory alone */
    struct fm_disk_speeds disk;
};
int app_speeds_measure(const struct args *args, bool with_disk, const char *io,
                       struct app_speeds *speeds, struct fm_error *err);
/* The disk alone. */
int app_disk_measure(const struct args *args, const char *io, struct fm_disk_speeds *speeds,
                     struct fm_error *err);
/* A file in the user's cache folder, which is made; false when there is none. */
bool app_cache_path(const char *name, char path[LIMIT_PATH_BYTES]);
/* Such a file for what is kept about a model. */
bool app_kept_path(const char *model, const char *suffix, char path[LIMIT_PATH_BYTES]);
/* Such a file for what '--io auto' goes by, where that is the option. */
void app_keep_io(const char *model, struct fm_model_options *options, char path[LIMIT_PATH_BYTES]);
/* The error of a model none of whose logits is a number. */
int app_not_numbers(const struct args *args, struct fm_error *err);

/* Why an answer ended, as run and chat say it: "stop", "length", "context", "interrupted". */
const char *app_end_name(enum fm_end end);

/* False: what was measured with such a buffer is in part the speed of the processor's caches. */
bool app_is_beyond_cache(uint64_t buffer_bytes);

/* A label of fm_stats, routes or approximate, as JSON: a string or null. */
json_t *json_label(const char *label);
/* Both labels as the first lines of a CSV file, each behind "# "; nothing where there are none. */
void csv_labels(FILE *out, const struct fm_model_info *info);

/* The text of -p, -f or standard input, NUL-terminated; free with mem_free. Fails with
 * FM_ERR_ARG when there is none and standard input is a terminal. */
int prompt_read(const struct args *args, char **text, size_t *text_bytes, struct fm_error *err);

/* A whole file, whatever kind it is; "-" is standard input. NUL-terminated; free with mem_free. */
int file_read(const char *path, char **text, size_t *text_bytes, struct fm_error *err);

#endif
