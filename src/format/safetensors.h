/* The header of one safetensors file: 8 bytes of header length, that many bytes of JSON, then
 * tensor data. Reading it checks everything a later read relies on: each tensor lies wholly
 * inside the file, no two overlap, bytes equal the product of the dimensions times the element
 * size, and no product of dimensions overflows. The last tensor ends where the file
 * does. Gaps between tensors are accepted, and so are any order, any alignment and tensors without
 * elements.
 *
 * A struct safetensors owns its tensors and their names and does not keep the file. It is
 * immutable once filled and may be read by any thread. */
#ifndef FLASHMOE_FORMAT_SAFETENSORS_H
#define FLASHMOE_FORMAT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "format/source.h"

#ifdef __cplusplus
extern "C" {
#endif

struct safetensors {
    struct tensor_info *tensors; /* by ascending offset; `file` is 0 */
    size_t n_tensors;
    size_t names_bytes; /* of all names with their terminators */
};

/* Reads the header of an open file. `path` is used for messages. On failure `out` is zeroed.
 * Errors name the file, the tensor or field, and the value. */
int safetensors_read(struct safetensors *out, int fd, const char *path, uint64_t file_bytes,
                     struct fm_error *err);

/* The same from memory: the first `head_bytes` bytes of a file of `file_bytes` bytes. */
int safetensors_parse(struct safetensors *out, const char *path, const void *head,
                      size_t head_bytes, uint64_t file_bytes, struct fm_error *err);

void safetensors_clear(struct safetensors *st); /* accepts a zeroed one */

#ifdef __cplusplus
}
#endif
#endif
