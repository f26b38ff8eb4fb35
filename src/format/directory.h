/* Searches directories for files. Any thread; no allocation. The caller owns all buffers. */
#ifndef FLASHMOE_FORMAT_DIRECTORY_H
#define FLASHMOE_FORMAT_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIRECTORY_NAME_BYTES 256

/* What source_open accepts, for messages. */
#define SOURCE_EXPECTED                                                                            \
    "expected a packed model (NAME.fmoe), a .gguf file, or a Hugging Face directory with "         \
    "config.json and *.safetensors"

bool name_has_suffix(const char *name, const char *suffix);

/* Copies the first entry in name order that has one of the suffixes to `found`. Returns false if
 * there is none; `dir` may be NULL. */
bool directory_find(const char *dir, const char *const suffixes[], size_t n_suffixes,
                    char found[DIRECTORY_NAME_BYTES]);

/* Returns whether the directory has an entry of that name; false if `dir` is NULL. */
bool directory_has(const char *dir, const char *name);

#ifdef __cplusplus
}
#endif
#endif
