/* Options of llama.cpp, Ollama, mlx-lm and vLLM: which are accepted because an option here means
 * the same, and what to use instead of the others. Constant tables; any thread. */
#ifndef FLASHMOE_APPS_CLI_OTHER_TOOLS_H
#define FLASHMOE_APPS_CLI_OTHER_TOOLS_H

#include <stddef.h>

#define OTHER_MODEL "MODEL" /* `ours` of the options that name the model */

struct other_option {
    const char *spellings; /* with their dashes, separated by blanks; NULL ends the table */
    const char *ours;      /* applies to commands that have this option; NULL: to all */
    const char *answer;    /* what to use instead; NULL: it means the same as `ours` */
};

extern const struct other_option other_options[];

/* Returns the entry of a word of `bytes` bytes such as "-ngl", or NULL. */
const struct other_option *other_option_find(const char *word, size_t bytes);
/* Copies the spelling at *rest and moves *rest behind it. Returns 0 at the end, else its length.
 * Spellings are shorter than OTHER_BYTES. */
#define OTHER_BYTES 32
size_t other_option_next(const char **rest, char spelling[OTHER_BYTES]);

/* Returns the command that does what a command of another tool does, as in "list" for "ls", or
 * NULL. */
const char *other_command_find(const char *word);

#endif
