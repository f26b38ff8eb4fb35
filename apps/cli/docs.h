/* What is generated from the command tables: help, the manual page, shell completions.
 * `commands` ends with NULL. Everything is written to `out`; the caller checks it for errors. */
#ifndef FLASHMOE_APPS_CLI_DOCS_H
#define FLASHMOE_APPS_CLI_DOCS_H

#include <stdio.h>

#include "apps/cli/options.h"

/* One sentence on the program, and the sections that help and the manual page share. */
extern const char docs_tagline[];
extern const char docs_sizes[];

/* What `flashmoe` alone shows: the commands and two examples. */
void docs_overview(FILE *out, const struct command *const *commands);
void docs_help(FILE *out, const struct command *command);
void docs_man(FILE *out, const struct command *const *commands);
/* False when the shell is not one of bash, zsh, fish. */
bool docs_completions(FILE *out, const struct command *const *commands, const char *shell);

/* "flashmoe run [OPTION...] MODEL" without a newline. */
void docs_usage(FILE *out, const struct command *command);
/* The option's range and default as "0 to 1; default: 0.9", empty when there is nothing to say. */
void docs_limits(const struct option *option, char *buffer, size_t buffer_bytes);
/* The heading of the group at *group, NULL when the group before it has the same one. */
const char *docs_heading(const struct command *command, const struct option_group *const *group);
/* True when an option of the command takes a size. */
bool docs_has_sizes(const struct command *command);

#endif
