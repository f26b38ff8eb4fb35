/* Typed values of a GGUF header. A key that begins with '.' stands below the name of the
 * architecture, so ".block_count" is "qwen3moe.block_count" in a file of that architecture.
 * Any thread; errors name the file, the key and the value. */
#ifndef FLASHMOE_FORMAT_GGUF_VALUES_H
#define FLASHMOE_FORMAT_GGUF_VALUES_H

#include "format/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The full key of '.KEY'; the architecture is looked up. */
#define GGUF_KEY_BYTES (2 * LIMIT_GGUF_NAME_BYTES + 8)
const struct gguf_value *gguf_look(const struct gguf *g, const char *key,
                                   char full_key[GGUF_KEY_BYTES]);

/* Whole numbers of any width, and arrays of equal ones: some converters write one per layer. The
 * *_or form gives `fallback` when the key is absent; the other one fails then. */
int gguf_uint(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
              struct fm_error *err);
int gguf_uint_or(const struct gguf *g, const char *key, uint64_t min, uint64_t max,
                 uint64_t fallback, uint64_t *out, struct fm_error *err);
/* Any number. */
int gguf_number_or(const struct gguf *g, const char *key, double min, double max, double fallback,
                   double *out, struct fm_error *err);
int gguf_bool_or(const struct gguf *g, const char *key, bool fallback, bool *out,
                 struct fm_error *err);
/* Text of *bytes bytes, not NUL-terminated; NULL and 0 when the key is absent. */
int gguf_text_or_null(const struct gguf *g, const char *key, const char **text, uint64_t *bytes,
                      struct fm_error *err);
bool gguf_text_is(const char *text, uint64_t bytes, const char *wanted);

/* The error for a value that is understood and not supported. */
int gguf_refuse(const struct gguf *g, const char *full_key, const struct gguf_value *value,
                const char *expected, struct fm_error *err);

/* Element i of an array of whole numbers or truth values. */
bool gguf_element(const struct gguf_value *array, uint64_t i, int64_t *out);

#ifdef __cplusplus
}
#endif
#endif
