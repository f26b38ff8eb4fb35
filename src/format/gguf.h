/* GGUF: the container, and the source built from one file or a split set.
 *
 * A file is a header (metadata as typed values under keys, then descriptions of tensors) followed
 * by tensor data. Reading the header checks everything that later reads rely on: every length lies
 * inside the file, no key and no tensor occurs twice, each tensor begins at a multiple of the
 * alignment and lies inside the file, no two overlap, rows are whole blocks, and no product of
 * dimensions overflows. Versions 2 and 3, little-endian.
 *
 * A struct gguf borrows the bytes of the header (gguf_parse) or owns them (gguf_read). Keys, names
 * and values point into them and are not NUL-terminated. It is immutable once filled, so any thread
 * may read it. Errors name the file, the key or tensor, and the value. */
#ifndef FLASHMOE_FORMAT_GGUF_H
#define FLASHMOE_FORMAT_GGUF_H

#include "format/directory.h"
#include "format/source.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are those in the file. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    N_GGUF_TYPES,
};

struct gguf_value {
    const char *key;
    uint32_t key_bytes;
    uint32_t type;         /* enum gguf_type */
    uint32_t element_type; /* for an array */
    uint64_t n;            /* elements of an array, or bytes of a string */
    const uint8_t *data;   /* any alignment */
};

/* A number format of ggml. */
struct gguf_format {
    uint32_t id;
    const char *name; /* "Q4_K" */
    const char *quant; /* name of the matching struct quant, which may not exist */
    unsigned block, block_bytes;
};

struct gguf_tensor {
    const char *name;
    uint32_t name_bytes;
    const struct gguf_format *format;
    unsigned n_dims;
    uint64_t dims[LIMIT_TENSOR_DIMS]; /* outermost first, the reverse of the order in the file */
    uint64_t offset, bytes;           /* absolute within the file */
};

struct gguf {
    const char *path; /* for messages, borrowed */
    uint8_t *owned;   /* the header if it was read from a file */
    struct gguf_value *values; /* sorted by key */
    size_t n_values;
    struct gguf_tensor *tensors; /* sorted by offset */
    size_t n_tensors;
    uint64_t data_begin;
};

/* Reads the header of an open file. On failure `out` is zeroed. */
int gguf_read(struct gguf *out, int fd, const char *path, uint64_t file_bytes,
              struct fm_error *err);
/* Does the same from memory: the first `head_bytes` bytes of a file of `file_bytes` bytes. They
 * must contain the whole header. They and `path` must outlive `out`. */
int gguf_parse(struct gguf *out, const char *path, const void *head, size_t head_bytes,
               uint64_t file_bytes, struct fm_error *err);
void gguf_clear(struct gguf *g); /* accepts a zeroed one */

/* Returns NULL if there is no such key. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
/* Returns NULL if there is no such tensor. Linear in the number of tensors. */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);
/* Returns the format with that number or, for tests, the i-th one; NULL if there is none. */
const struct gguf_format *gguf_format_find(uint32_t id);
const struct gguf_format *gguf_format_at(unsigned i);

/* Finds the first file of the only model among the .gguf files of a directory, or of the directory
 * of spares (may be NULL). Image projectors (mmproj-*.gguf) do not count. Fails if there are
 * several models or none. */
int gguf_find_model(const char *dir, const char *spare_dir, char found[DIRECTORY_NAME_BYTES],
                    struct fm_error *err);
/* Opens one file or the split set that it belongs to. Fills kind, files, tensors, config,
 * conventions and texts of a source whose path is set. After a failure, source_close frees the
 * rest. */
int gguf_open(struct source *source, const char *path, const struct source_options *options,
              struct fm_error *err);
/* Does the same without files, for the fuzzer and tests: one header stands for the whole model. The
 * file it adds is not open. */
int gguf_fill_source(struct source *source, const struct gguf *g, const struct gguf_names *names,
                     struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
