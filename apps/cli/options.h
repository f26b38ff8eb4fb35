/* Commands and their options as constant tables. Parsing, help, the manual page and the shell
 * completions all use these tables, so that they cannot disagree.
 *
 * The tables are constant; parsed arguments borrow argv. Nothing here allocates, prints or exits.
 * One thread. A usage error fails with FM_ERR_ARG and a message. */
#ifndef FLASHMOE_APPS_CLI_OPTIONS_H
#define FLASHMOE_APPS_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define OPTIONS_MAX 64   /* options per command */
#define REPEATS_MAX 16   /* values per option with is_many */
#define OPERANDS_MAX 128 /* operands per command line */
#define WORD_BYTES 64    /* a command or option name in a message */

enum option_kind {
    OPTION_FLAG,
    OPTION_UINT,
    OPTION_FLOAT,
    OPTION_BYTES, /* "8G", "512M", "1.5GiB", "70%" of the available memory */
    OPTION_STRING,
    OPTION_PATH
};

struct option {
    const char *name; /* without the dashes; NULL ends a table */
    char letter;      /* 0: none */
    enum option_kind kind;
    const char *metavar;
    uint64_t min, max; /* OPTION_UINT and OPTION_BYTES; max 0: no limit */
    double float_min, float_max;
    const char *value;    /* the default, parsed like an argument; NULL: none */
    const char *shown;    /* the default as text, when it is not a fixed value */
    const char *excludes; /* options that conflict with this one, separated by blanks */
    /* Values of OPTION_UINT as other tools write them, separated by blanks; NULL: none. */
    const char *as_unset; /* mean the same as leaving the option out */
    const char *as_max;   /* mean `max` */
    const char *help;     /* sentences; the last one has no full stop */
    bool is_many; /* OPTION_STRING: keeps every value; otherwise the last one wins */
};

struct option_group {
    const char *title;
    const struct option *options; /* ends with a NULL name */
};

struct operand {
    const char *name; /* "MODEL"; NULL ends a table */
    const char *help;
    const char *choices; /* separated by blanks; NULL: a path, or a command with is_command */
    const char *(*choice)(unsigned i); /* replaces `choices`: returns the i-th, NULL at the end */
    bool is_optional, is_command;
    bool is_many; /* takes all remaining words; must be the last operand */
    bool is_pulled_name; /* the name of a pulled model, not a path */
    bool is_question;    /* text; a single word may be this or the MODEL before it */
};

struct example {
    const char *line; /* NULL ends a table */
    const char *meaning;
};

struct args;

struct command {
    const char *name;        /* one or two words: "run", "eval nll" */
    const char *summary;     /* one line without a full stop */
    const char *description; /* paragraphs separated by one newline; may be NULL */
    const struct operand *operands;
    const struct option_group *const *groups; /* ends with NULL */
    const struct example *examples;           /* may be NULL */
    int (*run)(const struct args *args);      /* returns the exit status */
    bool is_for_all_ranks; /* under mpirun every rank runs it, not only the first */
};

struct arg_value {
    const struct option *option;
    bool is_given;
    bool has_value; /* it was given or has a default */
    uint64_t number;
    double real;
    const char *text; /* borrowed from argv or the table */
    const char *texts[REPEATS_MAX]; /* all values with is_many, borrowed likewise */
    size_t n_texts;
};

struct args {
    const struct command *command;
    const struct command *const *commands; /* all of them, ends with NULL: for suggestions */
    struct arg_value values[OPTIONS_MAX];
    size_t n_values;
    const char *operands[OPERANDS_MAX];
    size_t n_operands;
    const char *model; /* of -m, as other tools have it; it is also the first operand, so that
                        * there may be one operand too many (question_split) */
    bool wants_help; /* --help was given; nothing after it was checked */
};

/* Parses everything after the command's name, one of `commands`. Options and operands may come in
 * any order; "--" ends the options. Options of other tools count where one of ours means the same
 * (apps/cli/other_tools.h). */
int args_parse(const struct command *const *commands, const struct command *command, int argc,
               char *const *argv, struct args *args, struct fm_error *err);

/* Return the value of an option. The command must have an option of this name and kind. */
bool args_given(const struct args *args, const char *name);
bool args_has(const struct args *args, const char *name); /* given, or has a default */
bool args_flag(const struct args *args, const char *name);
uint64_t args_uint(const struct args *args, const char *name); /* also bytes; 0: no value */
double args_float(const struct args *args, const char *name);
const char *args_text(const struct args *args, const char *name); /* NULL: no value */
/* Return the values of an option with is_many. */
size_t args_count(const struct args *args, const char *name);
const char *args_text_at(const struct args *args, const char *name, size_t i);
const char *args_operand(const struct args *args, size_t i);      /* NULL when absent */

/* Parses a size such as "8G" into bytes. `available_bytes` stands for 100%; 0: unknown. */
int bytes_parse(const char *text, uint64_t available_bytes, uint64_t *out, struct fm_error *err);

/* Returns the entry of `words` (ends with NULL) closest to `word`, or NULL if none is close. */
const char *nearest_word(const char *word, const char *const *words);

/* Finds the command named argv[0] or argv[0] argv[1]; *n_words is the number of words used. The
 * error suggests what was probably meant. `commands` ends with NULL. */
int command_find(const struct command *const *commands, int argc, char *const *argv,
                 const struct command **out, int *n_words, struct fm_error *err);

/* Returns whether the operand is a model: a path, or the name of a pulled one. */
bool operand_is_model(const struct operand *operand);

/* Returns whether commands of two words, such as "bench decode", begin with this word. */
bool command_is_group(const struct command *const *commands, const char *word);
/* Returns whether --help or -h is among the options at the start of these words. */
bool words_ask_help(int argc, char *const *argv);

#endif
