/* What a family does not find, or does not know, in a model that it was not made for. While a probe
 * is recorded, the configuration and the binder refuse nothing: they note what they would refuse.
 * One thread; the owner frees it. */
#ifndef FLASHMOE_MODEL_PROBE_H
#define FLASHMOE_MODEL_PROBE_H

#include "base/name_set.h"

#ifdef __cplusplus
extern "C" {
#endif

struct probe {
    struct name_set read_fields;    /* fields that it looks at */
    struct name_set wanted_fields;  /* fields that it needs and that are not there */
    struct name_set other_values;   /* fields whose values it does not compute */
    struct name_set other_fields;   /* fields that it does not look at */
    struct name_set wanted_tensors; /* the same for tensors */
    struct name_set other_tensors;
    bool is_whole;  /* the family went on to the end */
    char stop[160]; /* otherwise why it did not */
};

#ifdef __cplusplus
}
#endif
#endif
