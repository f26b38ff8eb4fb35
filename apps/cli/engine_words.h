/* The words of options that are enums in the library: one constant table per option. Any thread. */
#ifndef FLASHMOE_APPS_CLI_ENGINE_WORDS_H
#define FLASHMOE_APPS_CLI_ENGINE_WORDS_H

#include "base/err.h"

#define WORDS_MAX 4

struct word {
    const char *text; /* NULL ends a table */
    int value;
};

struct word_table {
    const char *rule; /* start of the error for a word that is not in the table */
    struct word words[WORDS_MAX];
};

extern const struct word_table words_elastic;   /* enum fm_choice */
extern const struct word_table words_check;     /* enum fm_choice */
extern const struct word_table words_lookahead; /* enum fm_choice */
extern const struct word_table words_io;        /* enum fm_io */
extern const struct word_table words_reader;    /* enum fm_reader */
extern const struct word_table words_policy;    /* enum fm_policy */

/* Finds the value of a word. Fails with FM_ERR_ARG and the valid words. */
int word_value(const struct word_table *table, const char *text, int *value, struct fm_error *err);
/* Returns the word of a value; the value must be in the table. */
const char *word_text(const struct word_table *table, int value);

#endif
