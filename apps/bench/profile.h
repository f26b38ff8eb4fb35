/* Writes the times of every evaluation and layer as CSV, or as a JSON object if the path ends in
 * .json; its "rows" are objects with the same names. Both include the labels of replaced routes and
 * of approximations. A fixed buffer collects rows and is written when full, between layers, where
 * no time is measured. The struct owns the buffer and the file. One thread. */
#ifndef FLASHMOE_APPS_BENCH_PROFILE_H
#define FLASHMOE_APPS_BENCH_PROFILE_H

#include "flashmoe_lab.h"
#include "apps/cli/options.h"
#include "apps/cli/part_file.h"

extern const struct option_group group_profile; /* profile */

struct profile {
    struct part_file out;
    struct profile_row *rows; /* [n_rows] not yet written */
    unsigned n_rows;
    uint64_t n_evaluations, n_written;
    bool is_json;
};

/* Opens the file. A NULL `path` makes every call do nothing. */
int profile_open(struct profile *profile, const char *path, struct fm_error *err);
/* Writes the head. Call after opening the model and before the first row. */
int profile_head(struct profile *profile, const struct fm_model_info *info, struct fm_error *err);
static inline bool profile_is_on(const struct profile *profile)
{
    return profile->out.file != NULL;
}
/* Adds a row, with fm_observer's `profile` arguments. Write errors are reported on closing. */
void profile_add(struct profile *profile, const struct fm_layer_profile *layer);
/* Renames the file into place, or removes it if `is_whole` is false. */
int profile_close(struct profile *profile, bool is_whole, struct fm_error *err);

#endif
