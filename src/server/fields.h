/* Reads the fields of a request. The error names the first wrong field and its value. All later
 * readers return their fallback, so that the caller checks for an error once, at the end. JSON null
 * counts as absent; unknown fields are ignored. Borrows the JSON. One thread. */
#ifndef FLASHMOE_SERVER_FIELDS_H
#define FLASHMOE_SERVER_FIELDS_H

#include <jansson.h>
#include <stdint.h>

#include "server/api_error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fields {
    const json_t *object;
    struct api_error *error;
    const char *path; /* prefix of names in messages, such as "messages[3]."; may be "" */
};

const json_t *fields_find(const struct fields *f, const char *name); /* NULL: absent or null */
bool fields_bool(const struct fields *f, const char *name, bool fallback);
double fields_number(const struct fields *f, const char *name, double min, double max,
                     double fallback);
uint64_t fields_uint(const struct fields *f, const char *name, uint64_t min, uint64_t max,
                     uint64_t fallback);
const char *fields_string(const struct fields *f, const char *name, const char *fallback);
const json_t *fields_array(const struct fields *f, const char *name);  /* NULL: absent */
const json_t *fields_object(const struct fields *f, const char *name); /* likewise */
/* Fails with "PATHNAME WHAT, but it is VALUE"; returns -1. */
int fields_fail(const struct fields *f, const char *name, const char *what);

#ifdef __cplusplus
}
#endif
#endif
