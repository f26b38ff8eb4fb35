/* The packed form, NAME.fmoe/: its layout, and how it is read. docs/PACKED.md is the normative
 * description; record.h defines every offset.
 *
 * A struct packed belongs to its source and follows its rules for threads. Errors name the file and
 * the field. */
#ifndef FLASHMOE_FORMAT_PACKED_H
#define FLASHMOE_FORMAT_PACKED_H

#include <xxhash.h>

#include "format/record.h"
#include "format/source.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PACKED_VERSION 3         /* the latest that is read */
#define PACKED_VERSION_BY_ROWS 1 /* for a model without interleaved matrices */
#define PACKED_VERSION_MIXED 2   /* with some, in one folder */
#define PACKED_VERSION_SPLIT 3   /* for a model that is split over several folders */
#define PACKED_FORMAT "flashmoe-packed"
#define PACKED_MODEL_NAME "model.json"
#define PACKED_DENSE_NAME "dense.bin"
/* LLL in experts-LLL.bin is the layer with at least three digits. */
#define PACKED_EXPERTS_NAME "experts-%03u.bin"
#define PACKED_NAME_BYTES 32

/* XXH3-128 in canonical (big-endian) byte order; 32 hexadecimal digits in JSON. */
struct packed_sum {
    uint8_t bytes[16];
};

/* One file of experts. */
struct packed_layer {
    uint32_t layer, n_experts;
    char *prefix; /* "model.layers.3.mlp." */
    struct record record;
    struct packed_sum *sums; /* [n_experts] checksum of the whole record, including padding */
    bool is_elsewhere; /* this is part of a model, and another part has the file */
    uint64_t part_bytes[SOURCE_MAX_DISKS]; /* [n_parts] bytes of a record in each folder */
};

/* A small file of the model with known content, such as tokenizer.json. */
struct packed_file {
    char *name;
    uint64_t bytes;
    struct packed_sum sum;
};

/* A tensor of dense.bin, in the order of model.json. */
struct packed_tensor {
    const char *name; /* borrowed from the source's tensor if it was read */
    const struct quant *quant;
    unsigned n_dims;
    uint64_t dims[LIMIT_TENSOR_DIMS];
    uint64_t offset, bytes; /* all parts, with the padding between and after them */
    struct packed_sum sum;
};

struct packed {
    struct packed_layer *layers; /* by ascending layer */
    uint32_t n_layers;
    unsigned n_parts; /* folders that each record is split over; 1: it is not */
    struct packed_tensor *tensors; /* by ascending offset */
    size_t n_tensors;
    struct packed_file *files;
    size_t n_files;
    uint64_t dense_bytes; /* every byte belongs to a tensor, whose checksum covers it */
};

/* model.json ends with this. The %s is the checksum of everything before it. */
#define PACKED_SEAL ",\n \"self\": \"%s\"\n}\n"
#define PACKED_SEAL_BYTES (sizeof PACKED_SEAL - 1 - 2 + 32)

/* Reads model.json and opens the files that it lists. */
int packed_open(struct source *source, const char *dir, const struct source_options *options,
                struct fm_error *err);
/* Parses model.json from memory without opening files or checking their sizes: the first half of
 * packed_open. Fills source->packed, conventions, tensors and config. The second form ignores the
 * checksum at the end, for the fuzzer. */
int packed_parse(struct source *source, const char *label, const char *text, size_t bytes,
                 struct fm_error *err);
int packed_parse_unsealed(struct source *source, const char *label, const char *text, size_t bytes,
                 struct fm_error *err);
void packed_free(struct packed *packed); /* accepts NULL */

/* Writes the layers whose files this part of a model has, such as "0-3, 6"; "none". */
#define PACKED_LAYERS_BYTES 160
const char *packed_layers_here(const struct packed *packed, char text[PACKED_LAYERS_BYTES]);
/* Returns whether another part of the model has some of the layers. */
bool packed_is_part(const struct packed *packed);

/* Returns the index among the source's files of the file that layers[index] has on a disk; the
 * first file is dense.bin. */
static inline unsigned packed_file_index(const struct packed *packed, uint32_t index, unsigned disk)
{
    return 1 + disk * packed->n_layers + index;
}

/* Returns the product of all dimensions but the last; packed_tensor_layout checks that it fits. */
uint64_t packed_tensor_rows(const struct packed_tensor *tensor);
/* Computes the bytes that a tensor takes in dense.bin from `offset` on, including trailing padding;
 * part_offset[] is absolute. Returns false if its format cannot have the shape. */
bool packed_tensor_layout(const struct packed_tensor *tensor, uint64_t *bytes,
                          uint64_t part_offset[QUANT_MAX_PARTS]);

/* Returns the text of model.json for a model whose other files are complete: the inverse of
 * packed_parse. The same model gives the same bytes. Free with mem_free. */
int packed_model_text(const struct packed *packed, json_t *config,
                      const struct source_conventions *conventions, json_t *provenance,
                      char **text, size_t *bytes, struct fm_error *err);

/* Returns the tensor that contains `offset` of dense.bin; NULL after the last one. */
const struct packed_tensor *packed_tensor_at(const struct packed *packed, uint64_t offset);
/* Returns the error for a tensor that does not match its checksum. */
int packed_explain_tensor(const struct source *source, const struct packed_tensor *tensor,
                          struct fm_error *err);
/* Reads a tensor of the source that is in dense.bin and verifies its checksum. */
int packed_check_tensor(const struct source *source, const struct tensor_info *tensor,
                        struct fm_error *err);
/* Does the same for the record of one expert of layers[index]. */
int packed_check_record(const struct source *source, uint32_t index, uint32_t expert,
                        struct fm_error *err);
/* Reads and verifies every small file of the model. The error names the first that is missing or
 * does not match its checksum. */
int packed_check_texts(const struct source *source, struct fm_error *err);

/* Returns whether model.json lists a small file. */
bool packed_lists(const struct packed *packed, const char *name);
/* Verifies the checksum of a small file; fails if the model does not list it. */
int packed_check_text(const struct packed *packed, const char *name, const char *label,
                      const char *text, size_t bytes, struct fm_error *err);

void packed_sum_of(const void *data, size_t bytes, struct packed_sum *sum);
/* Adds bytes to a hash. Faster than XXH3_128bits_update on processors with wide vectors. */
void packed_hash_add(XXH3_state_t *hash, const void *data, size_t bytes);
/* Returns the checksum of everything added so far. */
void packed_sum_of_hash(const XXH3_state_t *hash, struct packed_sum *sum);
void packed_sum_hex(const struct packed_sum *sum, char hex[33]);
bool packed_sum_equal(const struct packed_sum *a, const struct packed_sum *b);

#ifdef __cplusplus
}
#endif
#endif
