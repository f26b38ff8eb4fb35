/* What several commands share: option groups, opening a model, reading the prompt.
 *
 * Called from the main thread only. Functions that can fail return 0 or an FM_ERR code and fill
 * `err`. */
#ifndef FLASHMOE_APPS_CLI_COMMON_H
#define FLASHMOE_APPS_CLI_COMMON_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

#include "base/limits.h"
#include "flashmoe_lab.h"
#include "apps/cli/options.h"

/* All commands, in the order of the help; ends with NULL. */
extern const struct command *const command_list[];

/* Adjacent groups with the same title share one heading. */
extern const struct option_group group_engine;   /* memory, threads, pin, cpu, ... */
extern const struct option_group group_kv;       /* kv alone; group_engine contains it too */
extern const struct option_group group_formats;  /* experts, dense, embed, head of a pack */
extern const struct option_group group_context;  /* context */
extern const struct option_group group_routes;   /* routes */
extern const struct option_group group_shape;    /* experts, used, layers, tokens of routes */
extern const struct option_group group_trace;    /* trace */
extern const struct option_group group_json;     /* json */
extern const struct option_group group_messages; /* quiet, verbose */
extern const struct option_group group_wrap;     /* no-wrap */
extern const struct option_group group_help;     /* help; part of every command */

extern const char operand_model_help[];
extern const char option_pin_help[], option_cpu_help[];

/* Returns the path of the model of a command whose first operand is MODEL. Without the operand it
 * is FLASHMOE_MODEL, else the bundled nano model. The string lives as long as the program. */
const char *app_model_path(const struct args *args);

/* Replaces the name of a pulled model, and "nano" for the bundled one, by the model's path.
 * Anything else stays as it is. *path is `text`, `buffer`, or a string that lives as long as the
 * program. Fails like store_resolve, and if the bundled model is not installed. */
int app_model_find(const char *text, char buffer[LIMIT_PATH_BYTES], const char **path,
                   struct fm_error *err);

/* Writes the name of a model: its file's or folder's name without .fmoe or .gguf; in the cache of
 * huggingface_hub, the model's name there. */
#define APP_NAME_BYTES 128
void app_model_name(const char *path, char name[APP_NAME_BYTES]);

/* Checks, for a command whose MODEL has a default, that the default can be found. The message says
 * where it was looked for. */
int app_model_check(const struct args *args, struct fm_error *err);

struct app_model_options {
    unsigned n_context, n_marks; /* as in fm_model_options */
    const char *routes; /* likewise */
    unsigned n_sessions; /* likewise; 0: one */
    bool is_exact;      /* ignores the approximations of the options */
    bool keeps_heat;    /* without --heat, uses a file in the user's cache folder */
    uint64_t memory_bytes;  /* replaces --memory; 0: does not */
    uint64_t caller_bytes;  /* part of the budget that the command itself uses */
    unsigned prefill_chunk; /* used without --prefill-chunk; 0: chosen from the budget */
    unsigned n_drafts;      /* used without --draft, as many as are worth it; 0: none */
    bool is_again;          /* this command opened it before: does not repeat the warnings */
};

/* Reads the options of group_engine. Fails with FM_ERR_ARG when a value is not a known word. */
int app_engine_options(const struct args *args, struct fm_model_options *options,
                       struct fm_error *err);
/* Opens the model with the options of group_engine and shows a progress bar. Warns on standard
 * error when routes or approximations are in use. The caller closes *out. */
int app_model_open(const struct args *args, const struct app_model_options *how,
                   struct fm_model **out, struct fm_error *err);
int app_model_open_metadata(const struct args *args, const char *kv, struct fm_model **out,
                            struct fm_error *err);
/* Says on standard error that ChatML replaces a missing chat template. Says nothing about a model
 * that cannot chat at all. */
void app_note_template(const struct fm_model *model);
/* Returns chat options with the current local time, for templates that write the date. */
struct fm_chat_options app_chat_now(void);
/* Measures the machine quickly, for the model and the options of group_engine: memory and, with
 * `with_disk`, the disk, from which it reads a few hundred megabytes. Speeds that were not measured
 * are 0; after a failure all are. No model may be open, since this takes memory. `io` is the mode
 * to measure, as fm_stats names it; NULL: the mode that the next run will use, if it is known. */
struct app_speeds {
    struct fm_machine_speeds machine; /* memory reads only */
    struct fm_disk_speeds disk;
    struct fm_gpu_speeds gpu; /* by app_gpu_measure */
};
int app_speeds_measure(const struct args *args, bool with_disk, const char *io,
                       struct app_speeds *speeds, struct fm_error *err);
/* Measures the GPU of --gpu quickly. Its speeds are 0 without one, or if it cannot be measured. */
void app_gpu_measure(const struct args *args, struct fm_gpu_speeds *speeds);
/* Measures the disk only. */
int app_disk_measure(const struct args *args, const char *io, struct fm_disk_speeds *speeds,
                     struct fm_error *err);
/* Builds the path of a file in the user's cache folder and creates the folder. Returns false when
 * there is no such folder. */
bool app_cache_path(const char *name, char path[LIMIT_PATH_BYTES]);
/* Builds the path of the cache file with this suffix for a model. */
bool app_kept_path(const char *model, const char *suffix, char path[LIMIT_PATH_BYTES]);
/* With --io auto, sets the file that stores the measured choice; `path` holds its name. */
void app_keep_io(const char *model, struct fm_model_options *options, char path[LIMIT_PATH_BYTES]);
/* Sets the error for a model whose logits are NaN. */
int app_not_numbers(const struct args *args, struct fm_error *err);

/* Returns why an answer ended: "stop", "length", "context" or "interrupted". */
const char *app_end_name(enum fm_end end);

/* Returns whether a buffer is so large that the processor's caches hardly affect its speed. */
bool app_is_beyond_cache(uint64_t buffer_bytes);

/* Returns a label of fm_stats (routes or approximate) as a JSON string or null. */
json_t *json_label(const char *label);
/* Writes both labels as comment lines ("# ...") at the start of a CSV file, if there are any. */
void csv_labels(FILE *out, const struct fm_model_info *info);

/* Reads the text of -p, -f or standard input, NUL-terminated; free it with mem_free. Fails with
 * FM_ERR_ARG when none is given and standard input is a terminal. */
int prompt_read(const struct args *args, char **text, size_t *text_bytes, struct fm_error *err);

/* Reads a whole file; "-" is standard input. NUL-terminated; free it with mem_free. */
int file_read(const char *path, char **text, size_t *text_bytes, struct fm_error *err);

#endif
