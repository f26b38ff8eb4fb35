/* Commands and their options as constant tables. Parsing, help, the manual page and the shell
 * completions are all generated from these tables, so that they cannot disagree.
 *
 * The tables are constant data and the parsed arguments borrow argv; nothing here allocates,
 * prints or exits. A usage error is a sentence in `struct fm_error` with FM_ERR_ARG. */
#ifndef FLASHMOE_APPS_CLI_OPTIONS_H
#define FLASHMOE_APPS_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define OPTIONS_MAX 64 /* options of one command */
#define REPEATS_MAX 16 /* of one option */
#define OPERANDS_MAX 128 /* operands of one command line */
#define WORD_BYTES 64  /* a command or option name in a message */

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
    const char *shown;    /* the default in words, where no fixed value says it */
    const char *excludes; /* names, separated by blanks, that may not be given with this one */
    const char *help;     /* sentences without a full stop at the end */
    bool is_many; /* OPTION_STRING: every value counts; otherwise the last one does */
};

struct option_group {
    const char *title;
    const struct option *options; /* ends with a NULL name */
};

struct operand {
    const char *name; /* "MODEL"; NULL ends a table */
    const char *help;
    const char *choices; /* separated by blanks; NULL: a path, or a command where is_command */
    const char *(*choice)(unsigned i); /* in their place: the i-th, NULL behind the last */
    bool is_optional, is_command;
    bool is_many; /* takes all words that follow; the last one of its table */
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
};

struct arg_value {
    const struct option *option;
    bool is_given;
    bool has_value; /* given, or the option has a default */
    uint64_t number;
    double real;
    const char *text; /* borrowed from argv or the table */
    const char *texts[REPEATS_MAX]; /* likewise, all of them where is_many */
    size_t n_texts;
};

struct args {
    const struct command *command;
    struct arg_value values[OPTIONS_MAX];
    size_t n_values;
    const char *operands[OPERANDS_MAX];
    size_t n_operands;
    bool wants_help; /* --help was seen: nothing after it was checked */
};

/* Parses everything after the command's name. Options and operands may be mixed; "--" ends the
 * options. */
int args_parse(const struct command *command, int argc, char *const *argv, struct args *args,
               struct fm_error *err);

/* Readers. The name must be one of the command's options; the kind must fit. */
bool args_given(const struct args *args, const char *name);
bool args_has(const struct args *args, const char *name); /* given or with a default */
bool args_flag(const struct args *args, const char *name);
uint64_t args_uint(const struct args *args, const char *name); /* also bytes; 0 without value */
double args_float(const struct args *args, const char *name);
const char *args_text(const struct args *args, const char *name); /* NULL without value */
/* The values of an option that may be given several times. */
size_t args_count(const struct args *args, const char *name);
const char *args_text_at(const struct args *args, const char *name, size_t i);
const char *args_operand(const struct args *args, size_t i);      /* NULL when absent */

/* "8G" and the like in bytes. `available_bytes` is what "100%" means; 0: unknown. */
int bytes_parse(const char *text, uint64_t available_bytes, uint64_t *out, struct fm_error *err);

/* The word of `words` (ends with NULL) closest to `word`, or NULL when none is close. */
const char *nearest_word(const char *word, const char *const *words);

/* The command whose name is argv[0] or argv[0] argv[1]; *n_words is the number of words used.
 * The error says what was probably meant. `commands` ends with NULL. */
int command_find(const struct command *const *commands, int argc, char *const *argv,
                 const struct command **out, int *n_words, struct fm_error *err);

#endif
