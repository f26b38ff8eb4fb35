/* The options that say what stands before a conversation and where what was computed of it is kept
 * for the next start. One thread. */
#ifndef FLASHMOE_APPS_CLI_PREFIX_OPTIONS_H
#define FLASHMOE_APPS_CLI_PREFIX_OPTIONS_H

#include "apps/cli/options.h"
#include "flashmoe.h"

extern const struct option_group group_prefix; /* system, system-file, snapshots, snapshot-limit */

/* The text of --system or --system-file without newlines at its end; NULL and 0 without either.
 * Freed with mem_free. */
int prefix_read_system(const struct args *args, char **text, size_t *text_bytes,
                       struct fm_error *err);

/* The folder of --snapshots, or NULL without it. */
int prefix_open_snapshots(const struct args *args, struct fm_model *model,
                          struct fm_snapshots **out, struct fm_error *err);

/* How many tokens two conversations have in common that differ in the user's message alone: what
 * can be kept for any message. */
size_t prefix_common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b);

#endif
