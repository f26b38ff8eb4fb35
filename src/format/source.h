/* A source: the files of a checkpoint, its tensors and its configuration, before anything is
 * known about the architecture. Every container format fills the same struct.
 *
 * Every offset and size is checked against its file when the source opens: each tensor lies
 * wholly inside its file, no two tensors of a file overlap, bytes equal the product of the
 * dimensions times the element size, and no name occurs twice. A source is immutable after
 * opening and may be read by any thread. Its files stay open until source_close. */
#ifndef FLASHMOE_FORMAT_SOURCE_H
#define FLASHMOE_FORMAT_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "base/jdoc.h"
#include "base/limits.h"
#include "quant/quant.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tensor_info {
    const char *name;
    const char *dtype;         /* as the file spells it: "BF16", "U32" */
    const struct quant *quant; /* NULL for a dtype no weight is used in directly */
    unsigned n_dims;
    uint64_t dims[LIMIT_TENSOR_DIMS]; /* outermost first */
    unsigned file;                    /* index into files */
    uint64_t offset, bytes;           /* absolute within the file; offsets may be odd */
};

struct source_file {
    char *path;
    int fd;
    uint64_t bytes;
};

struct source {
    char *dir;
    struct source_file *files;
    unsigned n_files;
    struct tensor_info *tensors; /* sorted by name (strcmp) */
    size_t n_tensors;
    struct jdoc config; /* config.json */
};

/* Opens a Hugging Face directory: config.json, and model.safetensors or the shards named by
 * model.safetensors.index.json. Errors name the file, the tensor or field, and the value, and say
 * what is expected. */
int source_open(const char *dir, struct source **out, struct fm_error *err);
void source_close(struct source *source); /* accepts NULL */

/* NULL when there is no such tensor. */
const struct tensor_info *source_find(const struct source *source, const char *name);

/* "[16, 128]" for messages. */
const char *tensor_info_shape(const struct tensor_info *tensor, char *buffer, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
