/* Looking into directories. */
#ifndef FLASHMOE_FORMAT_DIRECTORY_H
#define FLASHMOE_FORMAT_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIRECTORY_NAME_BYTES 256

/* What source_open takes, for messages. */
#define SOURCE_EXPECTED                                                                            \
    "expected a packed model (NAME.fmoe), a .gguf file, or a Hugging Face directory with "         \
    "config.json and *.safetensors"

bool name_has_suffix(const char *name, const char *suffix);

/* The first entry in name order with one of the suffixes, into `found`; `dir` may be NULL. */
bool directory_find(const char *dir, const char *const suffixes[], size_t n_suffixes,
                    char found[DIRECTORY_NAME_BYTES]);

/* False without a directory (NULL) too. */
bool directory_has(const char *dir, const char *name);

#ifdef __cplusplus
}
#endif
#endif
