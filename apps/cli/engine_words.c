#include "apps/cli/engine_words.h"

#include <string.h>

#include "flashmoe.h"

const struct word_table words_elastic = {
    "the budget can be elastic on or off, not", "",
    {{"on", FM_ON}, {"off", FM_OFF}},
};

const struct word_table words_check = {
    "--check can be auto, on or off, not", "",
    {{"auto", FM_AUTO}, {"on", FM_ON}, {"off", FM_OFF}},
};

const struct word_table words_lookahead = {
    "looking ahead can be on, off or auto, not", "",
    {{"auto", FM_AUTO}, {"on", FM_ON}, {"off", FM_OFF}},
};

const struct word_table words_io = {
    "experts cannot be read by", ", only direct, page or auto",
    {{"auto", FM_IO_AUTO}, {"direct", FM_IO_DIRECT}, {"page", FM_IO_PAGE}},
};

const struct word_table words_reader = {
    "there is no reader", ", only pread and uring",
    {{"pread", FM_READER_PREAD}, {"uring", FM_READER_URING}},
};

const struct word_table words_policy = {
    "there is no cache policy", ", only lcp and lru",
    {{"lcp", FM_POLICY_LCP}, {"lru", FM_POLICY_LRU}},
};

int word_value(const struct word_table *table, const char *text, int *value, struct fm_error *err)
{
    for (const struct word *word = table->words; word->text != NULL; word++)
        if (strcmp(word->text, text) == 0) {
            *value = word->value;
            return 0;
        }
    return err_set(err, FM_ERR_ARG, "%s '%s'%s", table->before, text, table->after);
}

const char *word_text(const struct word_table *table, int value)
{
    const struct word *word = table->words;
    while (word->value != value && word[1].text != NULL)
        word++;
    return word->text;
}
