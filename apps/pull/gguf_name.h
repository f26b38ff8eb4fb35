/* Names of GGUF files: a model is one file, or a set NAME-00001-of-00003.gguf. Any thread; no
 * allocation. */
#ifndef FLASHMOE_APPS_PULL_GGUF_NAME_H
#define FLASHMOE_APPS_PULL_GGUF_NAME_H

#include <stdbool.h>
#include <stddef.h>

/* Returns whether it is a GGUF file of a language model, not one that only adds images to one. */
bool gguf_is_model(const char *path);
/* Writes the path without .gguf and without the number in its set: equal for all files of a set.
 * Cuts it to `bytes`. */
void gguf_stem(const char *path, char *out, size_t bytes);
/* Returns the number of files of its set, 1 for a single file; *number is its own, from 1. */
unsigned gguf_set(const char *path, unsigned *number);
/* Returns whether `wanted` names this file: its path, its name, its stem, the folder it is in, or
 * the end of its stem, such as Q4_K_M. */
bool gguf_matches(const char *path, const char *wanted);

#endif
