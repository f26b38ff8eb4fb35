/* Reads typed values of a GGUF header. A key that begins with '.' is relative to the architecture:
 * ".block_count" is "qwen3moe.block_count" in a file of that architecture. Any thread; nothing is
 * allocated. Errors name the file, the key and the value. */
#ifndef FLASHMOE_FORMAT_GGUF_VALUES_H
#define FLASHMOE_FORMAT_GGUF_VALUES_H

#include "format/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Room for the full key of '.KEY' including the architecture. */
#define GGUF_KEY_BYTES (2 * LIMIT_GGUF_NAME_BYTES + 8)
const struct gguf_value *gguf_look(const struct gguf *g, const char *key,
                                   char full_key[GGUF_KEY_BYTES]);

/* Read integers of any width, and arrays of equal integers, because some converters write one per
 * layer. If the key is absent, the *_or form returns `fallback` and the other form fails. */
int gguf_uint(const struct gguf *g, const char *key, uint64_t min, uint64_t max, uint64_t *out,
              struct fm_error *err);
int gguf_uint_or(const struct gguf *g, const char *key, uint64_t min, uint64_t max,
                 uint64_t fallback, uint64_t *out, struct fm_error *err);
/* Reads any number. */
int gguf_number_or(const struct gguf *g, const char *key, double min, double max, double fallback,
                   double *out, struct fm_error *err);
int gguf_bool_or(const struct gguf *g, const char *key, bool fallback, bool *out,
                 struct fm_error *err);
/* Returns text of *bytes bytes that is not NUL-terminated; NULL and 0 if the key is absent. */
int gguf_text_or_null(const struct gguf *g, const char *key, const char **text, uint64_t *bytes,
                      struct fm_error *err);
bool gguf_text_is(const char *text, uint64_t bytes, const char *wanted);

/* Returns the error for a value that is valid but not supported. */
int gguf_refuse(const struct gguf *g, const char *full_key, const struct gguf_value *value,
                const char *expected, struct fm_error *err);

/* Reads element i of an array of integers or booleans. */
bool gguf_element(const struct gguf_value *array, uint64_t i, int64_t *out);

#ifdef __cplusplus
}
#endif
#endif
