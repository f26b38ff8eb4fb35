/* The options for the system message and for snapshots of what was computed. One thread. */
#ifndef FLASHMOE_APPS_CLI_PREFIX_OPTIONS_H
#define FLASHMOE_APPS_CLI_PREFIX_OPTIONS_H

#include "apps/cli/options.h"
#include "flashmoe.h"

extern const struct option_group group_prefix; /* system, system-file, snapshots, snapshot-limit */

/* Reads the text of --system or --system-file without trailing newlines; NULL and 0 without either.
 * Free it with mem_free. */
int prefix_read_system(const struct args *args, char **text, size_t *text_bytes,
                       struct fm_error *err);

/* Opens the folder of --snapshots; *out is NULL without the option. */
int prefix_open_snapshots(const struct args *args, struct fm_model *model,
                          struct fm_snapshots **out, struct fm_error *err);

/* Returns the number of leading tokens that two conversations share. When they differ only in the
 * user message, that prefix can be reused for any message. */
size_t prefix_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

#endif
