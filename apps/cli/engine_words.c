#include "apps/cli/engine_words.h"

#include <string.h>

#include "flashmoe.h"

const struct word_table words_elastic = {
    "--elastic must be on or off",
    {{"on", FM_ON}, {"off", FM_OFF}},
};

const struct word_table words_check = {
    "--check must be auto, on or off",
    {{"auto", FM_AUTO}, {"on", FM_ON}, {"off", FM_OFF}},
};

const struct word_table words_lookahead = {
    "--lookahead must be on, off or auto",
    {{"auto", FM_AUTO}, {"on", FM_ON}, {"off", FM_OFF}},
};

const struct word_table words_io = {
    "--io must be direct, page or auto",
    {{"auto", FM_IO_AUTO}, {"direct", FM_IO_DIRECT}, {"page", FM_IO_PAGE}},
};

const struct word_table words_reader = {
    "--reader must be pread or uring",
    {{"pread", FM_READER_PREAD}, {"uring", FM_READER_URING}},
};

const struct word_table words_policy = {
    "--policy must be lcp or lru",
    {{"lcp", FM_POLICY_LCP}, {"lru", FM_POLICY_LRU}},
};

int word_value(const struct word_table *table, const char *text, int *value, struct fm_error *err)
{
    for (const struct word *word = table->words; word->text != NULL; word++)
        if (strcmp(word->text, text) == 0) {
            *value = word->value;
            return 0;
        }
    return err_set(err, FM_ERR_ARG, "%s, not '%s'", table->rule, text);
}

const char *word_text(const struct word_table *table, int value)
{
    const struct word *word = table->words;
    while (word->value != value && word[1].text != NULL)
        word++;
    return word->text;
}
