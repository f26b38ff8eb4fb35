/* Writes help, the manual page and shell completions from the command tables. `commands` ends with
 * NULL. Everything goes to `out`; the caller checks it for write errors. */
#ifndef FLASHMOE_APPS_CLI_DOCS_H
#define FLASHMOE_APPS_CLI_DOCS_H

#include <stdio.h>

#include "apps/cli/options.h"

/* One sentence about the program, and a section that help and the manual page share. */
extern const char docs_tagline[];
extern const char docs_sizes[];

/* Writes what `flashmoe` alone shows: the commands and first examples. */
void docs_overview(FILE *out, const struct command *const *commands);
void docs_help(FILE *out, const struct command *command);
/* Lists the commands whose first word is `group`. */
void docs_group(FILE *out, const struct command *const *commands, const char *group);
void docs_man(FILE *out, const struct command *const *commands);
/* Returns false when the shell is not bash, zsh or fish. */
bool docs_completions(FILE *out, const struct command *const *commands, const char *shell);

/* Writes "flashmoe run [OPTION...] MODEL" without a newline. */
void docs_usage(FILE *out, const struct command *command);
/* Formats the option's range and default as "0 to 1; default: 0.9", or "" if it has neither. */
void docs_limits(const struct option *option, char *buffer, size_t buffer_bytes);
/* Returns the heading of the group at *group, or NULL if the previous group has the same one. */
const char *docs_heading(const struct command *command, const struct option_group *const *group);
/* Returns whether an option of the command takes a size. */
bool docs_has_sizes(const struct command *command);

#endif
