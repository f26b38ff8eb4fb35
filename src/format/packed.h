/* The packed form, NAME.fmoe/: how it is laid out, and how it is read. docs/PACKED.md is the
 * normative description; record.h is the one definition of every offset.
 *
 * A struct packed belongs to its source. */
#ifndef FLASHMOE_FORMAT_PACKED_H
#define FLASHMOE_FORMAT_PACKED_H

#include <xxhash.h>

#include "format/record.h"
#include "format/source.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PACKED_VERSION 2
#define PACKED_VERSION_BY_ROWS 1 /* of a model without interleaved matrices */
#define PACKED_FORMAT "flashmoe-packed"
#define PACKED_MODEL_NAME "model.json"
#define PACKED_DENSE_NAME "dense.bin"
/* experts-LLL.bin, LLL the layer in at least three digits. */
#define PACKED_EXPERTS_NAME "experts-%03u.bin"
#define PACKED_NAME_BYTES 32

/* XXH3-128 in the canonical (big-endian) byte order; 32 hexadecimal digits in JSON. */
struct packed_sum {
    uint8_t bytes[16];
};

/* One file of experts. */
struct packed_layer {
    uint32_t layer, n_experts;
    char *prefix; /* "model.layers.3.mlp." */
    struct record record;
    struct packed_sum *sums; /* [n_experts] of the whole record, padding included */
};

/* A file in the directory whose bytes are known: tokenizer.json and the like. */
struct packed_file {
    char *name;
    uint64_t bytes;
    struct packed_sum sum;
};

/* A tensor of dense.bin, in the order of the directory. */
struct packed_tensor {
    const char *name; /* borrowed: of the source's tensor when it was read */
    const struct quant *quant;
    unsigned n_dims;
    uint64_t dims[LIMIT_TENSOR_DIMS];
    uint64_t offset, bytes; /* all parts, padding between and behind them included */
    struct packed_sum sum;
};

struct packed {
    struct packed_layer *layers; /* by ascending layer; file i + 1 of the source */
    uint32_t n_layers;
    struct packed_tensor *tensors; /* by ascending offset */
    size_t n_tensors;
    struct packed_file *files;
    size_t n_files;
    uint64_t dense_bytes; /* every byte belongs to a tensor, which has the checksum */
};

/* model.json ends with this, the checksum of everything before it in place of the %s. */
#define PACKED_SEAL ",\n \"self\": \"%s\"\n}\n"
#define PACKED_SEAL_BYTES (sizeof PACKED_SEAL - 1 - 2 + 32)

/* Reads model.json and opens the files it names. */
int packed_open(struct source *source, const char *dir, const struct source_options *options,
                struct fm_error *err);
/* model.json alone, from memory, without opening files or looking at their sizes: packed_open's
 * first half. Fills source->packed, conventions, tensors and config. The second form takes the text
 * without the seal's checksum being right, for the fuzzer. */
int packed_parse(struct source *source, const char *label, const char *text, size_t bytes,
                 struct fm_error *err);
int packed_parse_unsealed(struct source *source, const char *label, const char *text, size_t bytes,
                 struct fm_error *err);
void packed_free(struct packed *packed); /* accepts NULL */

/* All dimensions but the last; packed_tensor_layout sees that it fits. */
uint64_t packed_tensor_rows(const struct packed_tensor *tensor);
/* The bytes a tensor takes in dense.bin from `offset` on, trailing padding included; *part_offset
 * are absolute. False when its format cannot hold the shape. */
bool packed_tensor_layout(const struct packed_tensor *tensor, uint64_t *bytes,
                          uint64_t part_offset[QUANT_MAX_PARTS]);

/* The text of model.json for a model whose other files are complete: packed_parse's inverse, and
 * the same bytes for the same model. Freed with mem_free. */
int packed_model_text(const struct packed *packed, json_t *config,
                      const struct source_conventions *conventions, json_t *provenance,
                      char **text, size_t *bytes, struct fm_error *err);

/* The tensor that `offset` of dense.bin belongs to; NULL behind the last one. */
const struct packed_tensor *packed_tensor_at(const struct packed *packed, uint64_t offset);
/* Says that a tensor does not have its checksum. */
int packed_explain_tensor(const struct source *source, const struct packed_tensor *tensor,
                          struct fm_error *err);
/* Reads a tensor of the source that lies in dense.bin; the error says that it does not have its
 * checksum. */
int packed_check_tensor(const struct source *source, const struct tensor_info *tensor,
                        struct fm_error *err);
/* The same for one expert's record, which begins at `offset` of `file`. */
int packed_check_record(const struct source_file *file, uint64_t offset, uint64_t bytes,
                        const struct packed_sum *expected, struct fm_error *err);
/* Reads every file beside the weights; the error names the first that does not have its checksum
 * or is missing. */
int packed_check_texts(const struct source *source, struct fm_error *err);
/* The checksum of bytes [offset, offset + bytes) of a file. */
int packed_sum_range(const struct source_file *file, uint64_t offset, uint64_t bytes,
                     struct packed_sum *sum, struct fm_error *err);

/* Whether model.json lists a file beside the weights. */
bool packed_lists(const struct packed *packed, const char *name);
/* Holds a file beside the weights against its checksum; one the model does not list is refused. */
int packed_check_text(const struct packed *packed, const char *name, const char *label,
                      const char *text, size_t bytes, struct fm_error *err);

void packed_sum_of(const void *data, size_t bytes, struct packed_sum *sum);
/* Adds bytes to a hash; faster than XXH3_128bits_update where the processor has wide vectors. */
void packed_hash_add(XXH3_state_t *hash, const void *data, size_t bytes);
/* Of what a hash has taken so far. */
void packed_sum_of_hash(const XXH3_state_t *hash, struct packed_sum *sum);
void packed_sum_hex(const struct packed_sum *sum, char hex[33]);
bool packed_sum_equal(const struct packed_sum *a, const struct packed_sum *b);

#ifdef __cplusplus
}
#endif
#endif
