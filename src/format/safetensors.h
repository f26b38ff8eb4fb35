/* Reads the header of one safetensors file: 8 bytes of header length, that many bytes of JSON, then
 * tensor data. Checks everything that later reads rely on: each tensor lies inside the file, no two
 * overlap, the size equals the product of the dimensions and the element size, and no product of
 * dimensions overflows. The last tensor must end at the end of the file. Gaps between tensors, any
 * order, any alignment and empty tensors are accepted.
 *
 * A struct safetensors owns its tensors and their names and does not keep the file. It is immutable
 * once filled, so any thread may read it. */
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
    size_t names_bytes; /* of all names, including their NULs */
};

/* Reads the header of an open file. `path` is used for messages. On failure `out` is zeroed. Errors
 * name the file, the tensor or field, and the value. */
int safetensors_read(struct safetensors *out, int fd, const char *path, uint64_t file_bytes,
                     struct fm_error *err);

/* Does the same from memory: the first `head_bytes` bytes of a file of `file_bytes` bytes. */
int safetensors_parse(struct safetensors *out, const char *path, const void *head,
                      size_t head_bytes, uint64_t file_bytes, struct fm_error *err);

void safetensors_clear(struct safetensors *st); /* accepts a zeroed one */

#ifdef __cplusplus
}
#endif
#endif
