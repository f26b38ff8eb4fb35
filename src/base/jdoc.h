/* Loads JSON documents with jansson and reads fields; errors name the file, the field and the
 * value. A jdoc owns its tree. Nodes are borrowed and live until jdoc_clear. A jdoc is immutable
 * after loading, so any thread may read it. */
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

/* Both fail with FM_ERR_FORMAT unless the root is an object without duplicate keys. */
int jdoc_load(struct jdoc *doc, const char *path, size_t max_bytes, struct fm_error *err);
int jdoc_parse(struct jdoc *doc, const char *file, const char *text, size_t bytes,
               struct fm_error *err);
void jdoc_clear(struct jdoc *doc); /* accepts a zeroed one */

/* Field readers. `file` is used only for messages. A JSON null counts as absent. When the field is
 * absent, the *_or form returns `fallback` and the other form fails. Both fail when the value has
 * the wrong type or is outside [min, max]. */
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
/* Returns NULL when the field is absent or null. */
const json_t *jdoc_find(const json_t *object, const char *field);

/* Writes a value for a message, at most about 60 characters of its JSON text, and returns
 * `buffer`. */
const char *jdoc_show(const json_t *value, char *buffer, size_t buffer_bytes);

#ifdef __cplusplus
}
#endif
#endif
