/* The options that say how tokens are chosen, and what they come to for a model. One thread. */
#ifndef FLASHMOE_APPS_CLI_SAMPLING_OPTIONS_H
#define FLASHMOE_APPS_CLI_SAMPLING_OPTIONS_H

#include <jansson.h>

#include "apps/cli/options.h"
#include "flashmoe.h"

extern const struct option_group group_sampling; /* greedy, temp, top-k, ..., seed */

/* What the model recommends, changed by what was given. `bias` has SAMPLING_BIAS_MAX places, which
 * the result borrows. Unless `is_quiet`, says which options have no effect. */
#define SAMPLING_BIAS_MAX 1024
int sampling_choose(const struct args *args, const struct fm_model *model, bool is_quiet,
                    struct fm_logit_bias *bias, struct fm_sampling *sampling,
                    struct fm_error *err);

/* The strings of --stop, borrowed from `args`. FM_ERR_ARG when one is empty or too long. */
int stops_choose(const struct args *args, const char *stops[REPEATS_MAX], unsigned *n_stops,
                 struct fm_error *err);

/* All but the seed, each number as it was typed. */
json_t *sampling_json(const struct fm_sampling *sampling);

#endif
