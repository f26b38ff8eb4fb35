/* JSON documents over jansson, with field readers whose errors name file, field and value.
 * A jdoc owns the tree; nodes are borrowed and live until jdoc_clear. A jdoc is immutable after
 * loading and may be read from any thread. */
#ifndef FLASHMOE_BASE_JDOC_H
#define FLASHMOE_BASE_JDOC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct jdoc {
    json_t *root;
    char *file; /* for messages */
};

/* The root must be an object; duplicate keys are refused. */
int jdoc_load(struct jdoc *doc, const char *path, size_t max_bytes, struct fm_error *err);
int jdoc_parse(struct jdoc *doc, const char *file, const char *text, size_t bytes,
               struct fm_error *err);
void jdoc_clear(struct jdoc *doc); /* accepts a zeroed one */

/* Field readers. `file` is used for the message only. A JSON null counts as absent. The *_or
 * form returns `fallback` when the field is absent; the other one fails then. A value of another
 * type or outside [min, max] fails in both. */
int jdoc_uint(const json_t *object, const char *file, const char *field, uint64_t min,
              uint64_t max, uint64_t *out, struct fm_error *err);
int jdoc_uint_or(const json_t *object, const char *file, const char *field, uint64_t min,
                 uint64_t max, uint64_t fallback, uint64_t *out, struct fm_error *err);
int jdoc_number_or(const json_t *object, const char *file, const char *field, double min,
                   double max, double fallback, double *out, struct fm_error *err);
int jdoc_bool_or(const json_t *object, const char *file, const char *field, bool fallback,
                 bool *out, struct fm_error *err);
int jdoc_string(const json_t *object, const char *file, const char *field, const char **out,
                struct fm_error *err);
/* NULL when absent or null. */
const json_t *jdoc_find(const json_t *object, const char *field);

/* A value as it may stand in a message: at most ~60 characters of its JSON text. */
const char *jdoc_show(const json_t *value, char *buffer, size_t buffer_bytes);

#ifdef __cplusplus
}
#endif
#endif
