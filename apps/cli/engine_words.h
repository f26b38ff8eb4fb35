/* The words of options that are enums in the library: one table for each. */
#ifndef FLASHMOE_APPS_CLI_ENGINE_WORDS_H
#define FLASHMOE_APPS_CLI_ENGINE_WORDS_H

#include "base/err.h"

#define WORDS_MAX 4

struct word {
    const char *text; /* NULL ends a table */
    int value;
};

struct word_table {
    const char *before, *after; /* around the word that is refused */
    struct word words[WORDS_MAX];
};

extern const struct word_table words_elastic;   /* enum fm_choice */
extern const struct word_table words_check;     /* enum fm_choice */
extern const struct word_table words_lookahead; /* enum fm_choice */
extern const struct word_table words_io;        /* enum fm_io */
extern const struct word_table words_reader;    /* enum fm_reader */
extern const struct word_table words_policy;    /* enum fm_policy */

/* Finds the value of a word. FM_ERR_ARG, with the words that there are: it is none of them. */
int word_value(const struct word_table *table, const char *text, int *value, struct fm_error *err);
/* Returns the word of a value that is in the table. */
const char *word_text(const struct word_table *table, int value);

#endif
