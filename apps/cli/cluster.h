/* The cluster of this process: the ranks that mpirun has started, or the threads of --stages.
 * Called from the main thread only. */
#ifndef FLASHMOE_APPS_CLI_CLUSTER_H
#define FLASHMOE_APPS_CLI_CLUSTER_H

#include <jansson.h>

#include "apps/cli/options.h"
#include "flashmoe.h"

extern const struct option_group group_ranks; /* layers, stages, rank-timeout */

/* Joins the other ranks if there are any. Fails with FM_ERR_ARG when the command or its options are
 * not for several ranks. */
int cluster_enter(const struct args *args, struct fm_error *err);
/* Says why this process does not begin, and returns the status. Rank 0 says it for all: mpirun
 * ends the others while they wait. If it does not, they do. */
int cluster_refuse(const struct fm_error *err, int status);
/* Returns the cluster of this process; NULL: it is alone. */
struct fm_cluster *cluster_of_process(void);
/* Lets the other ranks go. */
void cluster_exit(void);
/* Returns whether this process is another rank than the first: then cluster_work is all it does. It
 * returns the exit status. */
bool cluster_is_worker(void);
int cluster_work(const struct args *args);
/* For the handler of SIGTERM of a command that goes on after it. */
void cluster_alarm_from_signal(void);
/* Sets the options of a model that the first rank opens. `layers` holds what --layers says. */
#define CLUSTER_MAX_RANKS 64
/* Reads "20,14,14" into `layers`. */
int cluster_parse_layers(const char *text, unsigned layers[CLUSTER_MAX_RANKS], unsigned *n,
                         struct fm_error *err);
int cluster_options(const struct args *args, struct fm_model_options *options,
                    unsigned layers[CLUSTER_MAX_RANKS], struct fm_error *err);

/* Print a line for each rank on standard error, or put the same into an object as "ranks". Without
 * ranks they do nothing. */
void cluster_say(const struct fm_model *model);
void cluster_put(json_t *to, const struct fm_model *model);

#endif
