/* The sampling options, combined with the model's recommendations. One thread; nothing here owns
 * memory. */
#ifndef FLASHMOE_APPS_CLI_SAMPLING_OPTIONS_H
#define FLASHMOE_APPS_CLI_SAMPLING_OPTIONS_H

#include <jansson.h>

#include "apps/cli/options.h"
#include "flashmoe.h"

extern const struct option_group group_sampling; /* greedy, temp, top-k, ..., seed */

/* Fills the model's recommendations, overridden by the options. `bias` has SAMPLING_BIAS_MAX
 * entries and is borrowed by the result. Unless `is_quiet`, names options that have no effect. */
#define SAMPLING_BIAS_MAX 1024
int sampling_choose(const struct args *args, const struct fm_model *model, bool is_quiet,
                    struct fm_logit_bias *bias, struct fm_sampling *sampling,
                    struct fm_error *err);

/* Returns the strings of --stop, borrowed from `args`. Fails with FM_ERR_ARG when one is empty or
 * too long. */
int stops_choose(const struct args *args, const char *stops[REPEATS_MAX], unsigned *n_stops,
                 struct fm_error *err);

/* Returns all settings except the seed, each number as it was typed. */
json_t *sampling_json(const struct fm_sampling *sampling);

#endif
