/* The machines of a cluster as JSON: what 'flashmoe cluster probe' prints and 'cluster plan' reads.
 * Called from the main thread only. */
#ifndef FLASHMOE_APPS_CLUSTER_MACHINES_H
#define FLASHMOE_APPS_CLUSTER_MACHINES_H

#include <jansson.h>

#include "apps/cluster/cut.h"
#include "base/err.h"

struct machines {
    unsigned n;
    struct cut_machine list[CUT_RANKS];
};

/* Returns an array of objects, one per machine. */
json_t *machines_json(const struct machines *machines);
/* Reads the field "machines" of a text. `name` is the file's, for errors, which name the rank and
 * the field. */
int machines_parse(struct machines *machines, const char *name, const char *text, size_t bytes,
                   struct fm_error *err);
/* Reads one machine. */
int machine_read(struct cut_machine *machine, const char *name, const json_t *object,
                 struct fm_error *err);
/* Prints a table of them. */
void machines_print(const struct machines *machines);

#endif
