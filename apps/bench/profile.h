/* Writes where the time of every evaluation and layer went, as CSV or, where the path ends in
 * .json, as a JSON object whose "rows" is an array of objects with the same names. The labels of
 * replaced routes and of approximations are in both. Rows are kept in memory of a fixed size
 * and written when it is full, between layers, where no time is taken. One thread. */
#ifndef FLASHMOE_APPS_BENCH_PROFILE_H
#define FLASHMOE_APPS_BENCH_PROFILE_H

#include "flashmoe_lab.h"
#include "apps/cli/options.h"
#include "apps/cli/part_file.h"

extern const struct option_group group_profile; /* profile */

struct profile {
    struct part_file out;
    struct profile_row *rows; /* [n_rows] that are not written yet */
    unsigned n_rows;
    uint64_t n_evaluations, n_written;
    bool is_json;
};

/* `path` NULL makes a profile that does nothing. */
int profile_open(struct profile *profile, const char *path, struct fm_error *err);
/* Once the model is open and before the first row. */
int profile_head(struct profile *profile, const struct fm_model_info *info, struct fm_error *err);
static inline bool profile_is_on(const struct profile *profile)
{
    return profile->out.file != NULL;
}
/* As fm_observer's `profile` has it. Faults are reported at the end. */
void profile_add(struct profile *profile, const struct fm_layer_profile *layer);
/* Puts the whole file in place, or with `is_whole` false removes what there is. */
int profile_close(struct profile *profile, bool is_whole, struct fm_error *err);

#endif
